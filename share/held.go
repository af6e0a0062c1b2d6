package share

import "fmt"

// SupersededError says that records may have been acquired anew since a batch was
// polled: the share session in which they were acquired has ended, or their
// leader has moved. The broker may have handed the same records out again, to
// this very member, so what is staged or acknowledged now may be another batch's.
// A transaction of the batch has to be aborted.
type SupersededError struct {
	TopicPartition TopicPartition
}

// Error names the partition.
func (e *SupersededError) Error() string {
	return fmt.Sprintf("%s: the records of this batch may have been delivered again: its share session has ended", e.TopicPartition)
}

// nextTurn is called when a partition is added to a share session, before the
// broker is told: from then on it may acquire what an earlier batch still holds.
func (c *Consumer) nextTurn(tp TopicPartition) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns[tp]++
	c.dropReady(func(p *PartitionBatch) bool { return p.TopicPartition == tp })
	return c.turns[tp]
}

// superseded returns the partitions of b of which this member may have acquired
// the same records again.
func (c *Consumer) superseded(b *Batch) map[TopicPartition]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out map[TopicPartition]bool
	for _, p := range b.Partitions {
		if p.turn == c.turns[p.TopicPartition] {
			continue
		}
		if out == nil {
			out = make(map[TopicPartition]bool)
		}
		out[p.TopicPartition] = true
	}
	return out
}

// CheckHeld returns a *SupersededError when the records of b may be in another
// batch too. A caller that stages acknowledgements of b checks when all of them
// are confirmed, and before it commits: a broker takes those of an earlier
// delivery for those of a later one to the same member, and both batches would be
// committed. For the same reason the abort that has to follow may take the records
// away from the later delivery, and hand them out once more: when something of b was
// staged, call [Consumer.Reset] after it. It is safe for concurrent use.
func (c *Consumer) CheckHeld(b *Batch) error {
	superseded := c.superseded(b)
	if len(superseded) == 0 {
		return nil
	}
	return &SupersededError{sortedPartitions(superseded)[0]}
}
