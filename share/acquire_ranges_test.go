package share

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Sets of ranges say the same as sets of offsets.
func TestRangeSets(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	random := func() (rangeSet, map[int64]bool) {
		var in []Range
		want := make(map[int64]bool)
		for range rnd.IntN(8) {
			first := rnd.Int64N(60)
			r := Range{first, first + rnd.Int64N(10)}
			in = append(in, r)
			for o := r.FirstOffset; o <= r.LastOffset; o++ {
				want[o] = true
			}
		}
		return newRangeSet(in), want
	}
	same := func(op string, got rangeSet, in func(o int64) bool) {
		t.Helper()
		n := int64(0)
		for o := int64(-2); o < 80; o++ {
			if got.has(o) != in(o) {
				t.Fatalf("%s = %v is wrong about %d", op, got, o)
			}
			if in(o) {
				n++
				if o > got.last() {
					t.Fatalf("%s = %v ends at %d", op, got, got.last())
				}
			}
		}
		if got.len() != n {
			t.Fatalf("%s = %v has %d offsets, want %d", op, got, got.len(), n)
		}
		for i, r := range got {
			if r.LastOffset < r.FirstOffset || i > 0 && r.FirstOffset <= got[i-1].LastOffset {
				t.Fatalf("%s = %v is out of order", op, got)
			}
		}
	}
	for range 2000 {
		a, inA := random()
		b, inB := random()
		same("newRangeSet", a, func(o int64) bool { return inA[o] })
		same("and", a.and(b), func(o int64) bool { return inA[o] && inB[o] })
		same("without", a.without(b), func(o int64) bool { return inA[o] && !inB[o] })
	}
	if got := (rangeSet{{5, maxOffset}}).without(rangeSet{{7, maxOffset}}); !reflect.DeepEqual(got, rangeSet{{5, 6}}) {
		t.Errorf("without the end of all offsets: %v", got)
	}
}

func TestKeep(t *testing.T) {
	p := &PartitionBatch{
		TopicPartition: orders0,
		Acquired:       []AcquiredRange{{Range{2, 5}, 1}, {Range{8, 9}, 3}},
		Records:        []*kgo.Record{{Offset: 2}, {Offset: 5}, {Offset: 8}, {Offset: 9}},
		Gaps:           []Range{{3, 4}},
	}
	got := p.keep(rangeSet{{4, 8}})
	want := &PartitionBatch{
		TopicPartition: orders0,
		Acquired:       []AcquiredRange{{Range{4, 5}, 1}, {Range{8, 8}, 3}},
		Records:        []*kgo.Record{p.Records[1], p.Records[2]},
		Gaps:           []Range{{4, 4}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("keep(4-8) = %+v, want %+v", got, want)
	}
	if got := p.keep(rangeSet{{6, 7}}); got != nil {
		t.Errorf("keep of what is not held = %+v", got)
	}
	if len(p.Records) != 4 || p.Records[0].Offset != 2 {
		t.Errorf("keep has changed the batch: %v", p.Records)
	}
}

func TestReport(t *testing.T) {
	asked := rangeSet{{0, 9}, {20, 29}, {100, 109}}
	acquired := []AcquiredRange{{Range{22, 23}, 1}, {Range{24, 24}, 4}}
	k := knowledge{
		start: 5, end: 105,
		states: []wire.StateBatch{
			{FirstOffset: 5, LastOffset: 6, DeliveryState: wire.Acknowledged},
			{FirstOffset: 7, LastOffset: 8, DeliveryState: wire.TxPending, Staged: wire.StagedOwner{ProducerID: 9, ProducerEpoch: 2, AcknowledgeType: 1, DeliveryState: 2}},
			{FirstOffset: 9, LastOffset: 21, DeliveryState: wire.Archived},
			{FirstOffset: 22, LastOffset: 28, DeliveryState: wire.Available},
		},
		ids: map[int64]string{9: "orders-1"},
	}
	type row struct {
		first, last int64
		status      RangeStatus
		reason      string
	}
	rows := func(in []RangeReport) []row {
		var out []row
		for _, r := range in {
			out = append(out, row{r.FirstOffset, r.LastOffset, r.Status, r.Reason})
		}
		return out
	}
	check := func(k knowledge, want []row) {
		t.Helper()
		got := rows(report(orders0, asked, acquired, k))
		if len(got) != len(want) {
			t.Fatalf("report = %v, want %v", got, want)
		}
		for i, w := range want {
			g := got[i]
			if g.first != w.first || g.last != w.last || g.status != w.status || !strings.Contains(g.reason, w.reason) {
				t.Errorf("report %d = %v, want %v", i, g, w)
			}
		}
	}
	check(k, []row{
		{0, 4, RangeTerminal, "below the start offset 5"},
		{5, 6, RangeTerminal, "ACKNOWLEDGED"},
		{7, 8, RangePending, `of "orders-1" (producer ID 9, epoch 2)`},
		{9, 9, RangeTerminal, "ARCHIVED"},
		{20, 21, RangeTerminal, "ARCHIVED"},
		{22, 23, RangeAcquired, "1st"},
		{24, 24, RangeAcquired, "4th"},
		{25, 29, RangeLocked, "another member"},
		{100, 104, RangeLocked, "another member"},
		{105, 109, RangeBeyondEnd, "up to offset 104"},
	})
	k.states, k.stateErr = nil, errors.New("CLUSTER_AUTHORIZATION_FAILED")
	check(k, []row{
		{0, 4, RangeTerminal, "below"},
		{5, 9, RangeNotOffered, "CLUSTER_AUTHORIZATION_FAILED"},
		{20, 21, RangeNotOffered, "pending"},
		{22, 23, RangeAcquired, ""},
		{24, 24, RangeAcquired, ""},
		{25, 29, RangeNotOffered, ""},
		{100, 104, RangeNotOffered, ""},
		{105, 109, RangeBeyondEnd, ""},
	})
	// What is acquired counts for more than what was known before.
	if got := rows(report(orders0, rangeSet{{22, 24}}, acquired, knowledge{start: 30, end: 0})); len(got) != 2 || slices.ContainsFunc(got, func(r row) bool { return r.status != RangeAcquired }) {
		t.Errorf("report of acquired offsets = %v", got)
	}
}

func TestOrdinal(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 111: "111th"} {
		if got := ordinal(n); got != want {
			t.Errorf("ordinal(%d) = %s, want %s", n, got, want)
		}
	}
}
