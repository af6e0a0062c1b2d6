package share

import (
	"errors"
	"math/rand/v2"
	"reflect"
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
		"a type of its own splits":             {[]add{{3, 4, wire.Accept}, {5, 5, wire.Reject}, {6, 9, wire.Accept}}, []wire.AcknowledgementBatch{batch(3, 4, wire.Accept), batch(5, 5, wire.Reject), batch(6, 9, wire.Accept)}, false},
		"a hole splits":                        {[]add{{1, 1, wire.Accept}, {3, 3, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 1, wire.Accept), batch(3, 3, wire.Accept)}, false},
		"any order":                            {[]add{{7, 9, wire.Accept}, {1, 2, wire.Reject}, {3, 6, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 2, wire.Reject), batch(3, 9, wire.Accept)}, false},
		"the same said twice counts once":      {[]add{{1, 5, wire.Accept}, {3, 7, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 7, wire.Accept)}, false},
		"a range inside another":               {[]add{{1, 9, wire.Accept}, {3, 4, wire.Accept}}, []wire.AcknowledgementBatch{batch(1, 9, wire.Accept)}, false},
		"two types for one offset is an error": {[]add{{1, 5, wire.Accept}, {5, 6, wire.Reject}}, nil, true},
		"a type inside another is an error":    {[]add{{1, 9, wire.Accept}, {3, 4, wire.Reject}}, nil, true},
		"a range that ends before it begins":   {[]add{{5, 4, wire.Accept}}, nil, true},
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

// Whatever order records are added in, each is in exactly one batch, with its
// type, and no two neighbouring batches could have been one.
func TestBatchesCoverEachOffsetOnce(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		want := make(map[int64]wire.AcknowledgeType)
		for range rnd.IntN(60) {
			want[rnd.Int64N(80)] = []wire.AcknowledgeType{wire.Accept, wire.Reject}[rnd.IntN(2)]
		}
		var a Acknowledgements
		for o, typ := range want { // in random order
			a.Add(orders0, o, typ)
			if rnd.IntN(3) == 0 {
				a.Add(orders0, o, typ)
			}
		}
		batches, err := a.Batches(orders0)
		if err != nil {
			t.Fatalf("Batches of %v: %v", want, err)
		}
		got := make(map[int64]wire.AcknowledgeType)
		for i, b := range batches {
			typ := wire.AcknowledgeType(b.AcknowledgeTypes[0])
			for o := b.FirstOffset; o <= b.LastOffset; o++ {
				if _, twice := got[o]; twice {
					t.Fatalf("offset %d is in two of %v", o, batches)
				}
				got[o] = typ
			}
			if i > 0 && batches[i-1].LastOffset+1 == b.FirstOffset && batches[i-1].AcknowledgeTypes[0] == b.AcknowledgeTypes[0] {
				t.Fatalf("batches %d and %d of %v could be one", i-1, i, batches)
			}
		}
		if !reflect.DeepEqual(got, want) && len(want) > 0 {
			t.Fatalf("Batches say %v, want %v", got, want)
		}
		accepted := int64(0)
		for _, typ := range want {
			if typ == wire.Accept {
				accepted++
			}
		}
		if n := a.Count(wire.Accept); n != accepted {
			t.Fatalf("Count(Accept) of %v = %d, want %d", want, n, accepted)
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
		covered := 0
		for _, b := range batches {
			covered += int(b.LastOffset - b.FirstOffset + 1)
		}
		if err == nil && covered != len(said) {
			t.Fatalf("Batches cover %d offsets, %d were added", covered, len(said))
		}
	})
}
