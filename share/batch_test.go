package share

import (
	"encoding/base64"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func acquired(ranges ...int64) []AcquiredRange {
	var out []AcquiredRange
	for i := 0; i < len(ranges); i += 2 {
		out = append(out, AcquiredRange{Range{ranges[i], ranges[i+1]}, 1})
	}
	return out
}

func records(offsets ...int64) []*kgo.Record {
	var out []*kgo.Record
	for _, o := range offsets {
		out = append(out, &kgo.Record{Offset: o})
	}
	return out
}

func offsets(rs []*kgo.Record) []int64 {
	var out []int64
	for _, r := range rs {
		out = append(out, r.Offset)
	}
	return out
}

func TestSplitAcquired(t *testing.T) {
	tests := map[string]struct {
		acquired []AcquiredRange
		records  []int64
		kept     []int64
		gaps     []Range
	}{
		"all acquired":                             {acquired(0, 2), []int64{0, 1, 2}, []int64{0, 1, 2}, nil},
		"records of the batch that others hold":    {acquired(2, 3), []int64{0, 1, 2, 3, 4}, []int64{2, 3}, nil},
		"two ranges of one batch":                  {acquired(0, 0, 3, 4), []int64{0, 1, 2, 3, 4}, []int64{0, 3, 4}, nil},
		"compacted records are gaps":               {acquired(0, 5), []int64{1, 4}, []int64{1, 4}, []Range{{0, 0}, {2, 3}, {5, 5}}},
		"a range without any record is one gap":    {acquired(7, 9), nil, nil, []Range{{7, 9}}},
		"a control record at the end is a gap":     {acquired(0, 2), []int64{0, 1}, []int64{0, 1}, []Range{{2, 2}}},
		"records after the last range are dropped": {acquired(0, 0), []int64{0, 1, 2}, []int64{0}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			kept, gaps := splitAcquired(tt.acquired, records(tt.records...))
			if !reflect.DeepEqual(offsets(kept), tt.kept) || !reflect.DeepEqual(gaps, tt.gaps) {
				t.Errorf("splitAcquired(%v, %v) = %v, %v; want %v, %v", tt.acquired, tt.records, offsets(kept), gaps, tt.kept, tt.gaps)
			}
		})
	}
}

func TestDropOverlaps(t *testing.T) {
	got := dropOverlaps(acquired(0, 5, 3, 8, 4, 6, 9, 9))
	if want := acquired(0, 5, 6, 8, 9, 9); !reflect.DeepEqual(got, want) {
		t.Errorf("dropOverlaps = %v, want %v", got, want)
	}
}

// A batch that is handed out in parts: every acquired offset is in exactly one.
func TestTake(t *testing.T) {
	whole := func() *PartitionBatch {
		return &PartitionBatch{
			TopicPartition: orders0,
			Acquired:       acquired(0, 4, 8, 10),
			Records:        records(0, 1, 3, 8, 9),
			Gaps:           []Range{{2, 2}, {4, 4}, {10, 10}},
		}
	}
	type part struct {
		records  []int64
		acquired []AcquiredRange
		gaps     []Range
	}
	of := func(p *PartitionBatch) part {
		if p == nil {
			return part{}
		}
		return part{offsets(p.Records), p.Acquired, p.Gaps}
	}
	tests := map[string]struct {
		n          int
		head, tail part
	}{
		"the gap before the next record comes along": {
			2,
			part{[]int64{0, 1}, acquired(0, 2), []Range{{2, 2}}},
			part{[]int64{3, 8, 9}, acquired(3, 4, 8, 10), []Range{{4, 4}, {10, 10}}},
		},
		"a cut between ranges": {
			3,
			part{[]int64{0, 1, 3}, acquired(0, 4), []Range{{2, 2}, {4, 4}}},
			part{[]int64{8, 9}, acquired(8, 10), []Range{{10, 10}}},
		},
		"all of it": {
			5,
			part{[]int64{0, 1, 3, 8, 9}, acquired(0, 4, 8, 10), []Range{{2, 2}, {4, 4}, {10, 10}}},
			part{},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			head, tail := whole().take(tt.n)
			if !reflect.DeepEqual(of(head), tt.head) || !reflect.DeepEqual(of(tail), tt.tail) {
				t.Errorf("take(%d) = %v, %v\nwant %v, %v", tt.n, of(head), of(tail), tt.head, tt.tail)
			}
		})
	}
}

func TestDeliveryCount(t *testing.T) {
	p := &PartitionBatch{Acquired: []AcquiredRange{{Range{0, 4}, 1}, {Range{8, 10}, 3}}}
	for offset, want := range map[int64]int16{0: 1, 4: 1, 5: 0, 8: 3, 10: 3, 11: 0} {
		if got := p.DeliveryCount(offset); got != want {
			t.Errorf("DeliveryCount(%d) = %d, want %d", offset, got, want)
		}
	}
}

func TestNamedMemberID(t *testing.T) {
	a, b := NamedMemberID("g", "id-0"), NamedMemberID("g", "id-0")
	if uuid, err := base64.RawURLEncoding.DecodeString(a); a != b || err != nil || len(uuid) != 16 {
		t.Errorf("NamedMemberID = %q and %q, want the same UUID in Kafka's text form", a, b)
	}
	if NamedMemberID("ab", "c") == NamedMemberID("a", "bc") {
		t.Error("names that differ in where they are cut have one member ID")
	}
}
