package share

import (
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kshare/kshare/wire"
)

var (
	orders0 = TopicPartition{Topic: "orders", TopicID: [16]byte{1}, Partition: 0}
	orders1 = TopicPartition{Topic: "orders", TopicID: [16]byte{1}, Partition: 1}
)

func batch(first, last int64, t wire.AcknowledgeType) wire.AcknowledgementBatch {
	return wire.AcknowledgementBatch{FirstOffset: first, LastOffset: last, AcknowledgeTypes: []int8{int8(t)}}
}

func TestBatches(t *testing.T) {
	type add struct {
		first, last int64
		typ         wire.AcknowledgeType
	}
	tests := map[string]struct {
		add      []add
		want     []wire.AcknowledgementBatch
		conflict bool
	}{
		"nothing":                              {nil, nil, false},
		"offsets in a row become one batch":    {[]add{{3, 3, wire.Accept}, {4, 4, wire.Accept}, {5, 5, wire.Accept}}, []wire.AcknowledgementBatch{batch(3, 5, wire.Accept)}, false},
		"types that change often are listed":   {[]add{{3, 4, wire.Accept}, {5, 5, wire.Reject}, {6, 7, wire.Accept}}, []wire.AcknowledgementBatch{{FirstOffset: 3, LastOffset: 7, AcknowledgeTypes: []int8{1, 1, 3, 1, 1}}}, false},
		"a long range keeps one type":          {[]add{{3, 99, wire.Accept}, {100, 100, wire.Reject}, {101, 199, wire.Accept}}, []wire.AcknowledgementBatch{batch(3, 99, wire.Accept), batch(100, 100, wire.Reject), batch(101, 199, wire.Accept)}, false},
		"a run that becomes long is split off": {[]add{{1, 1, wire.Reject}, {2, 15, wire.Accept}, {16, 40, wire.Accept}}, []wire.AcknowledgementBatch{{FirstOffset: 1, LastOffset: 1, AcknowledgeTypes: []int8{3}}, batch(2, 40, wire.Accept)}, false},
		"a hole splits":                        {[]add{{1, 1, wire.Accept}, {3, 3, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 1, wire.Accept), batch(3, 3, wire.Accept)}, false},
		"any order":                            {[]add{{70, 90, wire.Accept}, {1, 2, wire.Reject}, {13, 69, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 2, wire.Reject), batch(13, 90, wire.Accept)}, false},
		"the same said twice counts once":      {[]add{{1, 5, wire.Accept}, {3, 7, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 7, wire.Accept)}, false},
		"a range inside another":               {[]add{{1, 9, wire.Accept}, {3, 4, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 9, wire.Accept)}, false},
		"two types for one offset is an error": {[]add{{1, 5, wire.Accept}, {5, 6, wire.Reject}}, nil, true},
		"a type inside another is an error":    {[]add{{1, 9, wire.Accept}, {3, 4, wire.Reject}}, nil, true},
		"a range that ends before it begins":   {[]add{{5, 4, wire.Accept}}, nil, true},
		"an empty range hides behind no other": {[]add{{5, 4, wire.Accept}, {5, 6, wire.Accept}}, nil, true},
		"everything there is":                  {[]add{{0, 1<<63 - 1, wire.Reject}}, []wire.AcknowledgementBatch{batch(0, 1<<63-1, wire.Reject)}, false},
		"a negative offset":                    {[]add{{-1, 4, wire.Accept}}, nil, true},
		"the last offset there is":             {[]add{{1<<63 - 1, 1<<63 - 1, wire.Accept}}, []wire.AcknowledgementBatch{batch(1<<63-1, 1<<63-1, wire.Accept)}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var a Acknowledgements
			for _, r := range tt.add {
				a.AddRange(orders0, Range{r.first, r.last}, r.typ)
			}
			got, err := a.Batches(orders0)
			_, conflict := errors.AsType[*ConflictError](err)
			if !reflect.DeepEqual(got, tt.want) || conflict != tt.conflict {
				t.Errorf("Batches after %v = %v, %v; want %v, conflict %v", tt.add, got, err, tt.want, tt.conflict)
			}
		})
	}
}

// typesOf returns the type of each offset in batches. It fails when they are
// not in order, or say something twice.
func typesOf(t *testing.T, batches []wire.AcknowledgementBatch) map[int64]wire.AcknowledgeType {
	t.Helper()
	got := make(map[int64]wire.AcknowledgeType)
	end := int64(-1)
	for i, b := range batches {
		n := b.LastOffset - b.FirstOffset + 1
		if b.FirstOffset <= end || n < 1 || len(b.AcknowledgeTypes) != 1 && int64(len(b.AcknowledgeTypes)) != n {
			t.Fatalf("batch %d of %v is out of order, or has %d types", i, batches, len(b.AcknowledgeTypes))
		}
		end = b.LastOffset
		for o := b.FirstOffset; o <= b.LastOffset; o++ {
			typ := b.AcknowledgeTypes[0]
			if len(b.AcknowledgeTypes) > 1 {
				typ = b.AcknowledgeTypes[o-b.FirstOffset]
			}
			got[o] = wire.AcknowledgeType(typ)
		}
	}
	return got
}

// Whatever order records are added in, each is in exactly one batch, with its
// type.
func TestBatchesCoverEachOffsetOnce(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 1000 {
		want := make(map[int64]wire.AcknowledgeType)
		run, typ := 0, wire.Accept
		for o := range int64(rnd.IntN(300)) {
			if run--; run < 0 {
				run = rnd.IntN(1 + i%80)
				typ = []wire.AcknowledgeType{wire.Accept, wire.Reject, wire.Gap}[rnd.IntN(3)]
			}
			if rnd.IntN(20) > 0 {
				want[o] = typ
			}
		}
		var a Acknowledgements
		offsets := slices.Sorted(maps.Keys(want))
		if i%3 == 0 {
			rnd.Shuffle(len(offsets), func(i, j int) { offsets[i], offsets[j] = offsets[j], offsets[i] })
		}
		for len(offsets) > 0 {
			// Runs of offsets together, and some of them twice.
			n := 1
			types := []wire.AcknowledgeType{want[offsets[0]]}
			for n < len(offsets) && offsets[n] == offsets[n-1]+1 && rnd.IntN(10) > 0 {
				types = append(types, want[offsets[n]])
				n++
			}
			if i%2 == 0 {
				a.AddTypes(orders0, offsets[0], types)
			} else {
				for j, typ := range types {
					a.Add(orders0, offsets[j], typ)
				}
			}
			if rnd.IntN(30) > 0 {
				offsets = offsets[n:]
			}
		}
		batches, err := a.Batches(orders0)
		if err != nil {
			t.Fatalf("Batches of %v: %v", want, err)
		}
		if got := typesOf(t, batches); !maps.Equal(got, want) {
			t.Fatalf("Batches = %v say %v, want %v", batches, got, want)
		}
		for _, typ := range []wire.AcknowledgeType{wire.Accept, wire.Reject, wire.Gap, wire.Release} {
			n := int64(0)
			for _, w := range want {
				if w == typ {
					n++
				}
			}
			if got := a.Count(typ); got != n {
				t.Fatalf("Count(%s) of %v = %d, want %d", typ, want, got, n)
			}
		}
	}
}

// Batches that were returned stay as they are when more is added.
func TestBatchesDoNotChange(t *testing.T) {
	var a Acknowledgements
	a.AddTypes(orders0, 0, []wire.AcknowledgeType{wire.Accept, wire.Reject, wire.Accept})
	before, err := a.Batches(orders0)
	if err != nil {
		t.Fatal(err)
	}
	for o := range int64(100) {
		a.Add(orders0, 3+o, wire.Reject)
	}
	if want := []wire.AcknowledgementBatch{{FirstOffset: 0, LastOffset: 2, AcknowledgeTypes: []int8{1, 3, 1}}}; !reflect.DeepEqual(before, want) {
		t.Errorf("after more was added the batches are %v, want %v", before, want)
	}
}

// However types alternate, a request is not larger than a byte for each offset
// and one batch header would make it.
func TestBatchesAreSmall(t *testing.T) {
	for _, run := range []int{1, 2, 10, minRun - 1, minRun, minRun + 1, 1000} {
		const n = 10_000
		var a Acknowledgements
		for o := range n {
			a.Add(orders0, int64(o), []wire.AcknowledgeType{wire.Accept, wire.Reject}[o/run%2])
		}
		batches, err := a.Batches(orders0)
		if err != nil {
			t.Fatal(err)
		}
		size := len(wire.AppendAcknowledgementBatches(nil, batches, wire.AcknowledgeTypesArray))
		separate := (n + run - 1) / run * 19
		if limit := min(n, separate) + 40; size > limit {
			t.Errorf("runs of %d: %d bytes in %d batches, want at most %d", run, size, len(batches), limit)
		}
	}
}

func TestMergeAndAs(t *testing.T) {
	var a, b Acknowledgements
	a.Add(orders0, 1, wire.Accept)
	b.Add(orders1, 7, wire.Reject)
	b.Add(orders0, 2, wire.Accept)
	a.Merge(&b)
	if got, want := a.Partitions(), []TopicPartition{orders0, orders1}; !reflect.DeepEqual(got, want) {
		t.Fatalf("Partitions = %v, want %v", got, want)
	}
	released := a.As(wire.Release)
	got, err := released.Batches(orders0)
	if want := []wire.AcknowledgementBatch{batch(1, 2, wire.Release)}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("As(Release).Batches(%v) = %v, %v; want %v", orders0, got, err, want)
	}
	if n := a.Count(wire.Reject); n != 1 {
		t.Errorf("As changed what it was called on: Count(Reject) = %d, want 1", n)
	}
}

func FuzzBatches(f *testing.F) {
	f.Add([]byte{1, 3, 1, 4, 2, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		var a Acknowledgements
		said := make(map[int64]map[wire.AcknowledgeType]bool)
		for i := 0; i+2 < len(in); i += 3 {
			first, n, typ := int64(in[i]), int64(in[i+1]%16), wire.AcknowledgeType(in[i+2]%5)
			a.AddRange(orders0, Range{first, first + n}, typ)
			for o := first; o <= first+n; o++ {
				if said[o] == nil {
					said[o] = make(map[wire.AcknowledgeType]bool)
				}
				said[o][typ] = true
			}
		}
		conflict := false
		for _, types := range said {
			conflict = conflict || len(types) > 1
		}
		batches, err := a.Batches(orders0)
		if (err != nil) != conflict {
			t.Fatalf("Batches = %v, %v; two types for one offset: %v", batches, err, conflict)
		}
		if err != nil {
			return
		}
		got := typesOf(t, batches)
		if len(got) != len(said) {
			t.Fatalf("Batches cover %d offsets, %d were added", len(got), len(said))
		}
		for o, typ := range got {
			if !said[o][typ] {
				t.Fatalf("Batches say %s of offset %d, %v was added", typ, o, said[o])
			}
		}
	})
}
