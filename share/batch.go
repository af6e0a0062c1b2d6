package share

import (
	"slices"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// AcquiredRange is a range of offsets that this member holds the acquisition
// lock of (AcquiredRecords of ShareFetch).
type AcquiredRange struct {
	Range
	// DeliveryCount counts the deliveries, this one included; from 1.
	DeliveryCount int16
}

// PartitionBatch is what one ShareFetch returned of one partition, or the part
// of it that one Poll handed out.
type PartitionBatch struct {
	TopicPartition
	// Leader is the node ID of the broker that handed the records out and that
	// has to be told of their acknowledgement.
	Leader int32
	// Acquired are the ranges that this member holds, ascending.
	Acquired []AcquiredRange
	// Records are the acquired records, by offset. Acquired offsets without a
	// record, control records and compacted ones, are in Gaps.
	Records []*kgo.Record
	// Gaps are acquired offsets that have no record, ascending. They still have
	// to be acknowledged, as [wire.Gap].
	Gaps []Range
	// LockDeadline is when the acquisition locks expire at the earliest.
	LockDeadline time.Time
	// LockDuration is the group's acquisition lock duration, 0 if the broker
	// did not say.
	LockDuration time.Duration

	session *session // where it was acquired
	turn    int64    // holdings.turn of the partition when it was
	fetch   int64    // holdings.fetched after it was
}

// sameFetch reports whether q was acquired by the same fetch as p.
func (p *PartitionBatch) sameFetch(q *PartitionBatch) bool {
	return p.TopicPartition == q.TopicPartition && p.session == q.session && p.turn == q.turn && p.fetch == q.fetch
}

// acquiredCount counts the acquired offsets.
func (p *PartitionBatch) acquiredCount() int64 {
	var n int64
	for _, r := range p.Acquired {
		n += r.Len()
	}
	return n
}

// DeliveryCount returns how often the record at offset was delivered, this time
// included; 0 when the offset is not acquired.
func (p *PartitionBatch) DeliveryCount(offset int64) int16 {
	i, ok := slices.BinarySearchFunc(p.Acquired, offset, func(r AcquiredRange, o int64) int {
		switch {
		case r.LastOffset < o:
			return -1
		case r.FirstOffset > o:
			return 1
		}
		return 0
	})
	if !ok {
		return 0
	}
	return p.Acquired[i].DeliveryCount
}

// Batch is what one Poll returned.
type Batch struct {
	Partitions []*PartitionBatch
}

// Len counts the records.
func (b *Batch) Len() int {
	n := 0
	for _, p := range b.Partitions {
		n += len(p.Records)
	}
	return n
}

// Acquired counts the acquired offsets, gaps included.
func (b *Batch) Acquired() int64 {
	var n int64
	for _, p := range b.Partitions {
		n += p.acquiredCount()
	}
	return n
}

// LockDeadline is when the first acquisition lock of the batch expires at the
// earliest; the zero time for an empty batch.
func (b *Batch) LockDeadline() time.Time {
	var t time.Time
	for _, p := range b.Partitions {
		if t.IsZero() || p.LockDeadline.Before(t) {
			t = p.LockDeadline
		}
	}
	return t
}

// LockDuration is the shortest acquisition lock duration of the batch.
func (b *Batch) LockDuration() time.Duration {
	var d time.Duration
	for _, p := range b.Partitions {
		if d == 0 || p.LockDuration < d {
			d = p.LockDuration
		}
	}
	return d
}

// All returns acknowledgements that say t of everything acquired.
func (b *Batch) All(t wire.AcknowledgeType) *Acknowledgements {
	a := new(Acknowledgements)
	for _, p := range b.Partitions {
		for _, r := range p.Acquired {
			a.AddRange(p.TopicPartition, r.Range, t)
		}
	}
	return a
}

// GapAcknowledgements returns acknowledgements that say [wire.Gap] of every
// acquired offset that has no record. They can be staged in a transaction where
// the dialect allows that type, and are else to be acknowledged plainly.
func (b *Batch) GapAcknowledgements() *Acknowledgements {
	a := new(Acknowledgements)
	for _, p := range b.Partitions {
		for _, g := range p.Gaps {
			a.AddRange(p.TopicPartition, g, wire.Gap)
		}
	}
	return a
}

// Leaders maps each partition of the batch to the broker that handed it out.
func (b *Batch) Leaders() map[TopicPartition]int32 {
	out := make(map[TopicPartition]int32, len(b.Partitions))
	for _, p := range b.Partitions {
		out[p.TopicPartition] = p.Leader
	}
	return out
}

// decodePartition turns one partition of a ShareFetch response into a batch. A
// record that cannot be decoded is an error: its offsets are acquired, and the
// caller has to release them.
func decodePartition(tp TopicPartition, rp *kmsg.ShareFetchResponseTopicPartition, acquired []AcquiredRange, dec kgo.Decompressor) (*PartitionBatch, error) {
	p := &PartitionBatch{TopicPartition: tp, Acquired: acquired}
	if len(p.Acquired) == 0 {
		return p, nil
	}
	classic := kmsg.NewFetchResponseTopicPartition()
	classic.Partition = rp.Partition
	classic.RecordBatches = rp.Records
	decoded, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		Offset: p.Acquired[0].FirstOffset, Topic: tp.Topic, Partition: tp.Partition,
	}, &classic, dec, nil)
	if decoded.Err != nil {
		return p, decoded.Err
	}
	p.Records, p.Gaps = splitAcquired(p.Acquired, decoded.Records)
	return p, nil
}

// acquiredRanges returns what was acquired, ascending.
func acquiredRanges(rp *kmsg.ShareFetchResponseTopicPartition) []AcquiredRange {
	var out []AcquiredRange
	for _, r := range rp.AcquiredRecords {
		out = append(out, AcquiredRange{Range{r.FirstOffset, r.LastOffset}, r.DeliveryCount})
	}
	slices.SortFunc(out, func(a, b AcquiredRange) int {
		return int(min(1, max(-1, a.FirstOffset-b.FirstOffset)))
	})
	return dropOverlaps(out)
}

// dropOverlaps keeps each offset in the first range that has it, so that no
// offset is ever acknowledged twice in one transaction.
func dropOverlaps(in []AcquiredRange) []AcquiredRange {
	out := in[:0]
	next := int64(0)
	for _, r := range in {
		r.FirstOffset = max(r.FirstOffset, next)
		if r.LastOffset < r.FirstOffset {
			continue
		}
		out = append(out, r)
		next = r.LastOffset + 1
	}
	return out
}

// splitAcquired keeps the records that are acquired and lists the acquired
// offsets that have none. Both inputs are ascending; records is reused.
func splitAcquired(acquired []AcquiredRange, records []*kgo.Record) ([]*kgo.Record, []Range) {
	var gaps []Range
	kept := records[:0]
	i := 0
	for _, r := range acquired {
		next := r.FirstOffset
		for ; i < len(records) && records[i].Offset <= r.LastOffset; i++ {
			o := records[i].Offset
			if o < r.FirstOffset {
				continue
			}
			if o > next {
				gaps = append(gaps, Range{next, o - 1})
			}
			kept = append(kept, records[i])
			next = o + 1
		}
		if next <= r.LastOffset {
			gaps = append(gaps, Range{next, r.LastOffset})
		}
	}
	clear(records[len(kept):])
	return kept, gaps
}

// take splits off the part of p with at most n records, with the gaps before
// the first record that stays. It returns the part and what is left, nil for
// nothing.
func (p *PartitionBatch) take(n int) (part, rest *PartitionBatch) {
	if len(p.Records) <= n {
		return p, nil
	}
	cut := p.Records[n].Offset // the first offset that stays
	head, tail := *p, *p
	head.Records, tail.Records = p.Records[:n:n], p.Records[n:]
	head.Acquired, tail.Acquired = nil, nil
	for _, r := range p.Acquired {
		if r.FirstOffset < cut {
			head.Acquired = append(head.Acquired, AcquiredRange{Range{r.FirstOffset, min(r.LastOffset, cut-1)}, r.DeliveryCount})
		}
		if r.LastOffset >= cut {
			tail.Acquired = append(tail.Acquired, AcquiredRange{Range{max(r.FirstOffset, cut), r.LastOffset}, r.DeliveryCount})
		}
	}
	head.Gaps, tail.Gaps = nil, nil
	for _, g := range p.Gaps {
		if g.FirstOffset < cut {
			head.Gaps = append(head.Gaps, Range{g.FirstOffset, min(g.LastOffset, cut-1)})
		}
		if g.LastOffset >= cut {
			tail.Gaps = append(tail.Gaps, Range{max(g.FirstOffset, cut), g.LastOffset})
		}
	}
	return &head, &tail
}

// needsLeader reports whether a code of a fetch or acknowledge partition is cured
// by looking up the leader again.
func needsLeader(err error) bool {
	return isAny(err,
		kerr.NotLeaderForPartition, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.LeaderNotAvailable,
		kerr.UnknownTopicOrPartition, kerr.UnknownTopicID,
		kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator)
}
