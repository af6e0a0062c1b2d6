package inspect

import (
	"cmp"
	"slices"

	"github.com/kshare/kshare/wire"
)

// Bucket is a part of a range of offsets and the state of what is in it.
type Bucket struct {
	First, Last int64 // inclusive
	// State is that of its records or, where they differ, the one that most needs
	// a look: TX_PENDING first, terminal ones last. It has no meaning with Unknown.
	State wire.RecordState
	// Unknown: no state is persisted of its records.
	Unknown bool
	// Mixed: not all its records are the same.
	Mixed bool
}

// newStrip divides the offsets from first to last into at most n buckets of equal
// size, the last one perhaps smaller, and says what is in each by persisted
// batches, which are sorted and do not overlap. It is pure. It returns nil where
// there is nothing to divide.
func newStrip(first, last int64, batches []wire.StateBatch, n int) []Bucket {
	if last < first || n < 1 {
		return nil
	}
	count := last - first + 1
	size := (count + int64(n) - 1) / int64(n)
	var out []Bucket
	for from := first; from <= last; from += size {
		to := min(from+size-1, last)
		for len(batches) > 0 && batches[0].LastOffset < from {
			batches = batches[1:]
		}
		out = append(out, newBucket(from, to, batches))
	}
	return out
}

// newBucket says what is in a bucket by batches that begin with the first one
// which reaches it.
func newBucket(first, last int64, batches []wire.StateBatch) Bucket {
	b := Bucket{First: first, Last: last, Unknown: true}
	next, some := first, false // the first offset that is not accounted for, and whether any is
	see := func(state wire.RecordState, unknown bool) {
		switch {
		case !some:
			b.State, b.Unknown, some = state, unknown, true
		case b.Unknown != unknown || !unknown && b.State != state:
			b.Mixed = true
			if weight(state, unknown) < weight(b.State, b.Unknown) {
				b.State, b.Unknown = state, unknown
			}
		}
	}
	for _, s := range batches {
		if s.FirstOffset > last {
			break
		}
		if s.FirstOffset > next {
			see(0, true)
		}
		see(s.DeliveryState, false)
		next = s.LastOffset + 1
	}
	if next <= last {
		see(0, true)
	}
	return b
}

// weight orders states by how much they need a look, the most first.
func weight(state wire.RecordState, unknown bool) int {
	order := []wire.RecordState{wire.TxPending, wire.Archiving, wire.Acquired, wire.Available}
	if unknown {
		return len(order)
	}
	if i := slices.Index(order, state); i >= 0 {
		return i
	}
	return len(order) + 1 + cmp.Compare(int(wire.Archived), int(state))
}
