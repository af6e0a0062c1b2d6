package share

import (
	"fmt"
	"slices"
)

// SupersededError says that records may have been acquired anew since a batch was
// polled: the share session in which they were acquired has ended, or their
// leader has moved, or has handed the same records out once more, as it does when
// it has lost its state or their locks have run out. It may have done so to this
// very member, so what is staged or acknowledged now may be another batch's. A
// transaction of the batch has to be aborted.
type SupersededError struct {
	TopicPartition TopicPartition
}

// Error names the partition.
func (e *SupersededError) Error() string {
	return fmt.Sprintf("%s: the records of this batch may have been delivered again", e.TopicPartition)
}

// holdings is what this member has acquired of a partition since that was added to
// a share session.
type holdings struct {
	turn    int64 // how often it was added to one
	fetched int64 // how often something was acquired in this turn
	top     int64 // the highest offset that was; -1 for none
	// again are offsets that were acquired when they, or higher ones, had been
	// before: they may be in an earlier batch too.
	again []reacquired
	// forgotten is up to which fetch that is not known any more.
	forgotten int64
	// done are offsets that are committed. What is acquired of them all the same
	// was so before the commit, by a fetch that was under way.
	done rangeSet
}

type reacquired struct {
	Range
	fetch int64
}

const (
	// maxReacquired bounds what is remembered: batches that are older are taken
	// for superseded.
	maxReacquired = 1024
	// maxDone bounds what is remembered of commits. Nothing that is fetched now
	// was acquired before so many others were committed.
	maxDone = 1024
)

// holdingsOf is called with mu held.
func (c *Consumer) holdingsOf(tp TopicPartition) *holdings {
	h := c.holdings[tp]
	if h == nil {
		h = &holdings{top: -1}
		c.holdings[tp] = h
	}
	return h
}

// nextTurn is called when a partition is added to a share session, before the
// broker is told: from then on it may acquire what an earlier batch still holds.
func (c *Consumer) nextTurn(tp TopicPartition) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.holdingsOf(tp)
	*h = holdings{turn: h.turn + 1, top: -1}
	c.dropReady(func(p *PartitionBatch) bool { return p.TopicPartition == tp })
	return h.turn
}

// acquire notes what one fetch has acquired, ascending, and returns its number.
func (h *holdings) acquire(ranges []AcquiredRange) int64 {
	h.fetched++
	top := h.top
	for _, r := range ranges {
		if r.FirstOffset <= top {
			h.again = append(h.again, reacquired{Range{r.FirstOffset, min(r.LastOffset, top)}, h.fetched})
		}
		h.top = max(h.top, r.LastOffset)
	}
	if n := len(h.again) - maxReacquired; n > 0 {
		h.forgotten = h.again[n-1].fetch
		h.again = slices.Delete(h.again, 0, n)
	}
	return h.fetched
}

// commit notes that offsets are done.
func (h *holdings) commit(r Range) {
	if n := len(h.done); n > 0 && r.FirstOffset-1 <= h.done[n-1].LastOffset {
		h.done = newRangeSet(append(h.done, r))
	} else {
		h.done = append(h.done, r)
	}
	if n := len(h.done) - maxDone; n > 0 {
		h.done = slices.Delete(h.done, 0, n)
	}
}

// supersedes reports whether any of p may be another batch's, or is done.
func (h *holdings) supersedes(p *PartitionBatch) bool {
	if p.turn != h.turn || p.fetch < h.forgotten {
		return true
	}
	for _, r := range p.Acquired {
		if slices.ContainsFunc(h.again, func(a reacquired) bool { return a.fetch > p.fetch && overlap(a.Range, r.Range) }) ||
			slices.ContainsFunc(h.done, func(d Range) bool { return overlap(d, r.Range) }) {
			return true
		}
	}
	return false
}

func overlap(a, b Range) bool { return a.FirstOffset <= b.LastOffset && b.FirstOffset <= a.LastOffset }

// superseded returns the partitions of b of which this member may have acquired
// the same records again.
func (c *Consumer) superseded(b *Batch) map[TopicPartition]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out map[TopicPartition]bool
	for _, p := range b.Partitions {
		if !c.holdingsOf(p.TopicPartition).supersedes(p) {
			continue
		}
		if out == nil {
			out = make(map[TopicPartition]bool)
		}
		out[p.TopicPartition] = true
	}
	return out
}

// Committed tells the consumer that a transaction was committed in which acks were
// staged, all of them of b: should the same records have been acquired once more,
// that batch is superseded. What is to be acknowledged plainly of b has to be so
// before.
func (c *Consumer) Committed(b *Batch, acks *Acknowledgements) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range b.Partitions {
		h := c.holdingsOf(p.TopicPartition)
		part := acks.parts[p.TopicPartition]
		if part == nil || p.turn != h.turn {
			continue
		}
		for i := range part.spans {
			h.commit(part.spans[i].Range)
		}
	}
}

// CheckHeld returns a *SupersededError when the records of b may be in another
// batch too. A caller that stages acknowledgements of b checks when all of them
// are confirmed, and before it commits: a broker takes those of an earlier
// delivery for those of a later one to the same member, and both batches would be
// committed. For the same reason the abort that has to follow may take the records
// away from the later delivery, and hand them out once more: when something of b was
// staged, call [Consumer.Reset] after it; and call [Consumer.Committed] after a
// commit. It is safe for concurrent use.
func (c *Consumer) CheckHeld(b *Batch) error {
	superseded := c.superseded(b)
	if len(superseded) == 0 {
		return nil
	}
	return &SupersededError{sortedPartitions(superseded)[0]}
}
