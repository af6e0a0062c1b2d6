package inspect

import (
	"math"
	"strings"
	"testing"

	"github.com/kshare/kshare/wire"
)

// draw writes buckets as one letter each, in lower case where they are mixed.
func draw(buckets []Bucket) string {
	var b strings.Builder
	for _, k := range buckets {
		c := string(".?"[0])
		if !k.Unknown {
			c = map[wire.RecordState]string{wire.Available: "A", wire.Acknowledged: "K", wire.Archiving: "G", wire.Archived: "X", wire.TxPending: "P"}[k.State]
		}
		if k.Mixed {
			c = strings.ToLower(strings.ReplaceAll(c, ".", ","))
		}
		b.WriteString(c)
	}
	return b.String()
}

func TestNewStrip(t *testing.T) {
	at := func(first, last int64, s wire.RecordState) wire.StateBatch {
		return wire.StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: s}
	}
	some := []wire.StateBatch{
		at(10, 11, wire.Acknowledged), at(12, 12, wire.TxPending), at(13, 13, wire.Archived),
		at(15, 16, wire.Available), at(17, 19, wire.Archiving),
	}
	for name, c := range map[string]struct {
		first, last int64
		batches     []wire.StateBatch
		n           int
		want        string
	}{
		"a mark for each offset":      {10, 21, some, 80, "KKPX.AAGGG.."},
		"exactly as many":             {10, 21, some, 12, "KKPX.AAGGG.."},
		"two in one":                  {10, 21, some, 6, "KpagG."},
		"one for all":                 {10, 21, some, 1, "p"},
		"the last is smaller":         {10, 20, some, 3, "pgg"},
		"nothing is persisted":        {0, 9, nil, 5, "....."},
		"one offset":                  {12, 12, some, 80, "P"},
		"from the middle of a batch":  {18, 19, some, 2, "GG"},
		"before and after":            {8, 10, some, 3, "..K"},
		"done and nothing, mixed":     {11, 14, []wire.StateBatch{at(11, 12, wire.Acknowledged)}, 1, ","},
		"available and nothing":       {11, 14, []wire.StateBatch{at(11, 12, wire.Available)}, 1, "a"},
		"archived and acknowledged":   {0, 1, []wire.StateBatch{at(0, 0, wire.Acknowledged), at(1, 1, wire.Archived)}, 1, "x"},
		"a batch beyond both ends":    {5, 6, []wire.StateBatch{at(0, 100, wire.Acknowledged)}, 1, "K"},
		"two batches of one state":    {0, 3, []wire.StateBatch{at(0, 1, wire.Available), at(2, 3, wire.Available)}, 1, "A"},
		"nothing":                     {10, 9, some, 80, ""},
		"no room":                     {10, 19, some, 0, ""},
		"a state that nobody knows":   {0, 1, []wire.StateBatch{at(0, 1, 77)}, 2, ""},
		"so many that it is far less": {0, math.MaxInt32, some, 4, "p..."},
	} {
		t.Run(name, func(t *testing.T) {
			got := newStrip(c.first, c.last, c.batches, c.n)
			if draw(got) != c.want {
				t.Errorf("strip %q, want %q: %+v", draw(got), c.want, got)
			}
			next := c.first
			for _, b := range got {
				if b.First != next || b.Last < b.First {
					t.Fatalf("bucket %+v, want one from %d", b, next)
				}
				next = b.Last + 1
			}
			if len(got) > 0 && next != c.last+1 || len(got) > max(c.n, 0) {
				t.Errorf("%d buckets to %d, want at most %d to %d", len(got), next-1, c.n, c.last)
			}
		})
	}
}
