package share

import "testing"

func held(turn, fetch int64, ranges ...int64) *PartitionBatch {
	p := &PartitionBatch{turn: turn, fetch: fetch}
	for i := 0; i < len(ranges); i += 2 {
		p.Acquired = append(p.Acquired, AcquiredRange{Range{ranges[i], ranges[i+1]}, 1})
	}
	return p
}

// A batch is superseded by a later fetch of the same offsets, or by a commit of
// them, and by nothing else in its turn.
func TestHoldings(t *testing.T) {
	type step struct {
		acquired *PartitionBatch
		done     Range
	}
	acquire := func(fetch int64, ranges ...int64) step { return step{acquired: held(1, fetch, ranges...)} }
	commit := func(first, last int64) step { return step{done: Range{first, last}} }
	for name, tt := range map[string]struct {
		steps []step
		batch *PartitionBatch
		want  bool
	}{
		"alone":                                 {[]step{acquire(1, 0, 9)}, held(1, 1, 0, 9), false},
		"of an earlier turn":                    {[]step{acquire(1, 0, 9)}, held(0, 1, 0, 9), true},
		"followed by others":                    {[]step{acquire(1, 0, 9), acquire(2, 10, 19)}, held(1, 1, 0, 9), false},
		"acquired again":                        {[]step{acquire(1, 0, 9), acquire(2, 0, 9)}, held(1, 1, 0, 9), true},
		"the later one":                         {[]step{acquire(1, 0, 9), acquire(2, 0, 9)}, held(1, 2, 0, 9), false},
		"one offset of it acquired again":       {[]step{acquire(1, 0, 9), acquire(2, 9, 19)}, held(1, 1, 0, 9), true},
		"what is left of it, without that":      {[]step{acquire(1, 0, 9), acquire(2, 9, 19)}, held(1, 1, 0, 8), false},
		"between two that came again":           {[]step{acquire(1, 0, 29), acquire(2, 0, 9, 20, 29)}, held(1, 1, 10, 19), false},
		"committed":                             {[]step{acquire(1, 0, 9), commit(0, 9)}, held(1, 2, 5, 5), true},
		"acquired again before the commit":      {[]step{acquire(1, 0, 9), acquire(2, 0, 9), commit(0, 9)}, held(1, 2, 0, 9), true},
		"beside what is committed":              {[]step{acquire(1, 0, 19), commit(0, 4), commit(10, 19), commit(5, 8)}, held(1, 1, 9, 9), false},
		"among commits that join":               {[]step{acquire(1, 0, 19), commit(0, 4), commit(10, 19), commit(5, 9)}, held(1, 1, 9, 9), true},
		"lower offsets that others gave back":   {[]step{acquire(1, 10, 19), acquire(2, 0, 9)}, held(1, 1, 10, 19), false},
		"the lower ones themselves":             {[]step{acquire(1, 10, 19), acquire(2, 0, 9)}, held(1, 2, 0, 9), false},
		"acquired a third time":                 {[]step{acquire(1, 0, 9), acquire(2, 0, 9), acquire(3, 3, 3)}, held(1, 2, 0, 9), true},
		"the part of it that was not a third":   {[]step{acquire(1, 0, 9), acquire(2, 0, 9), acquire(3, 3, 3)}, held(1, 2, 4, 9), false},
		"acquired in part beyond all before it": {[]step{acquire(1, 0, 9), acquire(2, 5, 19)}, held(1, 1, 0, 4), false},
	} {
		h := &holdings{turn: 1, top: -1}
		for _, s := range tt.steps {
			if s.acquired == nil {
				h.commit(s.done)
			} else if n := h.acquire(s.acquired.Acquired); n != s.acquired.fetch {
				t.Fatalf("%s: fetch %d is counted as %d", name, s.acquired.fetch, n)
			}
		}
		if got := h.supersedes(tt.batch); got != tt.want {
			t.Errorf("%s: superseded %v, want %v", name, got, tt.want)
		}
	}
}

// What is remembered is bounded, and a batch of which nothing is remembered any
// more is taken for superseded.
func TestHoldingsAreBounded(t *testing.T) {
	h := &holdings{turn: 1, top: -1}
	h.acquire(held(1, 1, 0, 99_999).Acquired)
	for i := range int64(3 * maxReacquired) {
		h.acquire(held(1, 0, 2*i, 2*i).Acquired)
		h.commit(Range{2 * i, 2 * i})
	}
	if len(h.again) > maxReacquired || len(h.done) > maxDone {
		t.Errorf("%d ranges that came again and %d that are done are remembered", len(h.again), len(h.done))
	}
	if !h.supersedes(held(1, 1, 99_999, 99_999)) {
		t.Error("a batch whose time is forgotten passes")
	}
	if h.supersedes(held(1, h.fetched, 99_999, 99_999)) {
		t.Error("the last batch is superseded")
	}
}
