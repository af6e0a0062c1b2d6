package share

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kshare/kshare/wire"
)

// TopicPartition names a partition of a topic, by name for people and by ID
// for the protocol.
type TopicPartition struct {
	Topic     string
	TopicID   [16]byte
	Partition int32
}

// String returns "topic-3".
func (tp TopicPartition) String() string { return fmt.Sprintf("%s-%d", tp.Topic, tp.Partition) }

func compareTopicPartitions(a, b TopicPartition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), slices.Compare(a.TopicID[:], b.TopicID[:]), cmp.Compare(a.Partition, b.Partition))
}

// Range is an inclusive range of offsets.
type Range struct{ FirstOffset, LastOffset int64 }

// Len counts the offsets of the range.
func (r Range) Len() int64 { return r.LastOffset - r.FirstOffset + 1 }

type typedRange struct {
	Range
	typ wire.AcknowledgeType
}

// Acknowledgements collects what a member says of the records that it acquired,
// and compresses it to the batches of a request. The zero value is empty and
// ready for use. It is not safe for concurrent use.
type Acknowledgements struct {
	parts map[TopicPartition]*partitionAcks
	last  *partitionAcks // of the last Add, which the next one mostly repeats
}

type partitionAcks struct {
	tp     TopicPartition
	ranges []typedRange
	sorted bool
}

// Add says t of one record. Adding the same offset again with the same type
// changes nothing; with another type it is an error that Batches reports.
func (a *Acknowledgements) Add(tp TopicPartition, offset int64, t wire.AcknowledgeType) {
	a.AddRange(tp, Range{offset, offset}, t)
}

// AddRange says t of a range of records. Ranges that are added in ascending
// order cost no sorting later.
func (a *Acknowledgements) AddRange(tp TopicPartition, r Range, t wire.AcknowledgeType) {
	p := a.last
	if p == nil || p.tp != tp {
		if a.parts == nil {
			a.parts = make(map[TopicPartition]*partitionAcks)
		}
		if p = a.parts[tp]; p == nil {
			p = &partitionAcks{tp: tp, sorted: true}
			a.parts[tp] = p
		}
		a.last = p
	}
	p.add(r, t)
}

func (p *partitionAcks) add(r Range, t wire.AcknowledgeType) {
	if n := len(p.ranges); n > 0 {
		tail := &p.ranges[n-1]
		if r.FirstOffset == tail.LastOffset+1 && t == tail.typ {
			tail.LastOffset = r.LastOffset
			return
		}
		if r.FirstOffset <= tail.LastOffset {
			p.sorted = false
		}
	}
	p.ranges = append(p.ranges, typedRange{r, t})
}

// Merge adds all of b.
func (a *Acknowledgements) Merge(b *Acknowledgements) {
	for _, tp := range b.Partitions() {
		for _, r := range b.parts[tp].ranges {
			a.AddRange(tp, r.Range, r.typ)
		}
	}
}

// As returns acknowledgements that say t of everything that something was said
// of here.
func (a *Acknowledgements) As(t wire.AcknowledgeType) *Acknowledgements {
	out := new(Acknowledgements)
	for _, tp := range a.Partitions() {
		for _, r := range a.parts[tp].ranges {
			out.AddRange(tp, r.Range, t)
		}
	}
	return out
}

// Empty reports whether nothing was added.
func (a *Acknowledgements) Empty() bool { return len(a.parts) == 0 }

// Partitions lists the partitions that something was said of, sorted.
func (a *Acknowledgements) Partitions() []TopicPartition {
	out := make([]TopicPartition, 0, len(a.parts))
	for tp := range a.parts {
		out = append(out, tp)
	}
	slices.SortFunc(out, compareTopicPartitions)
	return out
}

// Count returns how many records got type t. Records that were added twice
// count once.
func (a *Acknowledgements) Count(t wire.AcknowledgeType) int64 {
	var n int64
	for _, p := range a.parts {
		p.sort()
		var end int64 = -1
		for _, r := range p.ranges {
			first := max(r.FirstOffset, end+1)
			if r.typ == t && r.LastOffset >= first {
				n += r.LastOffset - first + 1
			}
			end = max(end, r.LastOffset)
		}
	}
	return n
}

func (p *partitionAcks) sort() {
	if p.sorted {
		return
	}
	slices.SortStableFunc(p.ranges, func(a, b typedRange) int {
		return cmp.Or(cmp.Compare(a.FirstOffset, b.FirstOffset), cmp.Compare(a.LastOffset, b.LastOffset))
	})
	p.sorted = true
}

// Batches returns the acknowledgement batches of one partition: sorted, not
// overlapping, as few as possible, each with one type for its whole range. It
// returns a *ConflictError when one offset was given two types, and nil for a
// partition of which nothing was said.
func (a *Acknowledgements) Batches(tp TopicPartition) ([]wire.AcknowledgementBatch, error) {
	p := a.parts[tp]
	if p == nil {
		return nil, nil
	}
	p.sort()
	var out []wire.AcknowledgementBatch
	for _, r := range p.ranges {
		if r.LastOffset < r.FirstOffset || r.FirstOffset < 0 {
			return nil, &ConflictError{TopicPartition: tp, Range: r.Range, Types: [2]wire.AcknowledgeType{r.typ, r.typ}}
		}
		if n := len(out); n > 0 {
			tail := &out[n-1]
			tailType := wire.AcknowledgeType(tail.AcknowledgeTypes[0])
			if r.FirstOffset <= tail.LastOffset && r.typ != tailType {
				return nil, &ConflictError{
					TopicPartition: tp,
					Range:          Range{r.FirstOffset, min(r.LastOffset, tail.LastOffset)},
					Types:          [2]wire.AcknowledgeType{tailType, r.typ},
				}
			}
			if r.FirstOffset <= tail.LastOffset+1 && r.typ == tailType {
				tail.LastOffset = max(tail.LastOffset, r.LastOffset)
				continue
			}
		}
		out = append(out, wire.AcknowledgementBatch{
			FirstOffset: r.FirstOffset, LastOffset: r.LastOffset, AcknowledgeTypes: []int8{int8(r.typ)},
		})
	}
	return out, nil
}

// ConflictError says that a range was acknowledged with two different types, or
// that it is no range: then both types are the same.
type ConflictError struct {
	TopicPartition TopicPartition
	Range          Range
	Types          [2]wire.AcknowledgeType
}

// Error names the partition, the offsets and the types.
func (e *ConflictError) Error() string {
	if e.Types[0] == e.Types[1] {
		return fmt.Sprintf("%s: %d to %d is not a range of offsets", e.TopicPartition, e.Range.FirstOffset, e.Range.LastOffset)
	}
	return fmt.Sprintf("%s: offsets %d to %d are acknowledged as %s and as %s",
		e.TopicPartition, e.Range.FirstOffset, e.Range.LastOffset, e.Types[0], e.Types[1])
}
