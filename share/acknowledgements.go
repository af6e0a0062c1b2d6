package share

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
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

// Acknowledgements collects what a member says of the records that it acquired,
// and compresses it to the batches of a request (KIP-932, and for those that
// take part in a transaction KIP-1289). The zero value is empty and ready for
// use. It is not safe for concurrent use.
//
// Adding offsets in ascending order costs constant time for each; in any other
// order the offsets of a partition are sorted once, when they are asked for.
type Acknowledgements struct {
	parts map[TopicPartition]*PartitionAcknowledgements
	last  *PartitionAcknowledgements // of the last Add, which the next one mostly repeats
}

// FromRecords returns acknowledgements of the records of a batch, each with the
// type that decide returns for it; a nil decide accepts all. Acquired offsets
// without a record are left out, see [Batch.GapAcknowledgements]: not every
// dialect lets them take part in a transaction.
func FromRecords(b *Batch, decide func(*kgo.Record) wire.AcknowledgeType) *Acknowledgements {
	a := new(Acknowledgements)
	for _, p := range b.Partitions {
		if len(p.Records) == 0 {
			continue
		}
		types := make([]wire.AcknowledgeType, 0, len(p.Records))
		from := p.Records[0].Offset
		for _, r := range p.Records {
			if r.Offset != from+int64(len(types)) {
				a.AddTypes(p.TopicPartition, from, types)
				from, types = r.Offset, types[:0]
			}
			t := wire.Accept
			if decide != nil {
				t = decide(r)
			}
			types = append(types, t)
		}
		a.AddTypes(p.TopicPartition, from, types)
	}
	return a
}

// Partition returns what is said of one partition, to add to it: that saves
// looking the partition up for each offset.
func (a *Acknowledgements) Partition(tp TopicPartition) *PartitionAcknowledgements {
	if p := a.last; p != nil && p.tp == tp {
		return p
	}
	p := a.parts[tp]
	if p == nil {
		if a.parts == nil {
			a.parts = make(map[TopicPartition]*PartitionAcknowledgements)
		}
		p = &PartitionAcknowledgements{tp: tp}
		a.parts[tp] = p
	}
	a.last = p
	return p
}

// Add says t of one record. Adding the same offset again with the same type
// changes nothing; with another type it is an error that Batches reports.
func (a *Acknowledgements) Add(tp TopicPartition, offset int64, t wire.AcknowledgeType) {
	a.Partition(tp).Add(offset, t)
}

// AddRange says t of a range of records.
func (a *Acknowledgements) AddRange(tp TopicPartition, r Range, t wire.AcknowledgeType) {
	a.Partition(tp).AddRange(r, t)
}

// AddTypes says types[i] of the record at offset first+i, for all of types.
func (a *Acknowledgements) AddTypes(tp TopicPartition, first int64, types []wire.AcknowledgeType) {
	a.Partition(tp).AddTypes(first, types)
}

// Merge adds all of b.
func (a *Acknowledgements) Merge(b *Acknowledgements) {
	for _, tp := range b.Partitions() {
		to := a.Partition(tp)
		spans := b.parts[tp].spans
		for i := range spans {
			spans[i].each(to.AddRange)
		}
	}
}

// As returns acknowledgements that say t of everything that something was said
// of here.
func (a *Acknowledgements) As(t wire.AcknowledgeType) *Acknowledgements {
	out := new(Acknowledgements)
	for _, tp := range a.Partitions() {
		to := out.Partition(tp)
		for _, s := range a.parts[tp].spans {
			to.AddRange(s.Range, t)
		}
	}
	return out
}

// Empty reports whether nothing was added.
func (a *Acknowledgements) Empty() bool {
	for _, p := range a.parts {
		if len(p.spans) > 0 {
			return false
		}
	}
	return true
}

// Partitions lists the partitions that something was said of, sorted.
func (a *Acknowledgements) Partitions() []TopicPartition {
	out := make([]TopicPartition, 0, len(a.parts))
	for tp, p := range a.parts {
		if len(p.spans) > 0 {
			out = append(out, tp)
		}
	}
	slices.SortFunc(out, compareTopicPartitions)
	return out
}

// Count returns how many records got type t. Records that were added twice
// count once.
func (a *Acknowledgements) Count(t wire.AcknowledgeType) int64 {
	var n int64
	for _, p := range a.parts {
		end := int64(-1)
		spans := p.inOrder()
		for i := range spans {
			spans[i].each(func(r Range, typ wire.AcknowledgeType) {
				first := max(r.FirstOffset, end+1)
				if typ == t && r.LastOffset >= first {
					n += r.LastOffset - first + 1
				}
				end = max(end, r.LastOffset)
			})
		}
	}
	return n
}

// Batches returns the acknowledgement batches of one partition: sorted, not
// overlapping, and small on the wire. A batch has one type for its whole range,
// or one for each offset where the types change often. It returns a
// *ConflictError when one offset was given two types, and nil for a partition of
// which nothing was said.
func (a *Acknowledgements) Batches(tp TopicPartition) ([]wire.AcknowledgementBatch, error) {
	p := a.parts[tp]
	if p == nil || len(p.spans) == 0 {
		return nil, nil
	}
	spans := p.spans
	if p.unsorted {
		clean := PartitionAcknowledgements{tp: tp}
		if err := clean.takeSorted(p.inOrder()); err != nil {
			return nil, err
		}
		spans = clean.spans
	}
	out := make([]wire.AcknowledgementBatch, 0, len(spans))
	uniform := make([]int8, len(spans))
	for i, s := range spans {
		b := wire.AcknowledgementBatch{FirstOffset: s.FirstOffset, LastOffset: s.LastOffset}
		if b.AcknowledgeTypes = slices.Clip(s.types); s.types == nil {
			uniform[i] = int8(s.typ)
			b.AcknowledgeTypes = uniform[i : i+1 : i+1]
		}
		out = append(out, b)
	}
	return out, nil
}

// PartitionAcknowledgements is the part of [Acknowledgements] that is about one
// partition. It is not safe for concurrent use.
type PartitionAcknowledgements struct {
	tp    TopicPartition
	spans []span
	// unsorted: spans do not follow each other, or hold what is no range.
	unsorted bool
	// run counts the offsets of one type at the end of the last span, when that
	// has a type for each offset.
	run int
}

// span is a range with one type, or with one for each offset of it.
type span struct {
	Range
	typ   wire.AcknowledgeType
	types []int8 // nil for one type
}

// each calls do for each part of a span that has one type.
func (s *span) each(do func(Range, wire.AcknowledgeType)) {
	if s.types == nil {
		do(s.Range, s.typ)
		return
	}
	for i := 0; i < len(s.types); {
		j := i + 1
		for j < len(s.types) && s.types[j] == s.types[i] {
			j++
		}
		do(Range{s.FirstOffset + int64(i), s.FirstOffset + int64(j) - 1}, wire.AcknowledgeType(s.types[i]))
		i = j
	}
}

// minRun is how many offsets of one type in a row become a batch of their own. A
// batch takes 18 bytes beside its types, so shorter runs are cheaper with a byte
// for each offset.
const minRun = 20

// Add says t of one record.
func (p *PartitionAcknowledgements) Add(offset int64, t wire.AcknowledgeType) {
	// The fast path: the next offset of a span with a type for each, where the
	// type changes.
	if n := len(p.spans); n > 0 {
		s := &p.spans[n-1]
		if k := len(s.types); k > 0 && offset == s.LastOffset+1 && int8(t) != s.types[k-1] {
			s.types = append(s.types, int8(t))
			s.LastOffset = offset
			p.run = 1
			return
		}
	}
	p.AddRange(Range{offset, offset}, t)
}

// AddTypes says types[i] of the record at offset first+i, for all of types.
func (p *PartitionAcknowledgements) AddTypes(first int64, types []wire.AcknowledgeType) {
	for i := 0; i < len(types); {
		j := i + 1
		for j < len(types) && types[j] == types[i] {
			j++
		}
		p.AddRange(Range{first + int64(i), first + int64(j) - 1}, types[i])
		i = j + p.addChanges(first+int64(j), types[j:])
	}
}

// addChanges adds types from the offset first on as long as each differs from
// the one before, if the last span has a type for each offset. It returns how
// many it has added.
func (p *PartitionAcknowledgements) addChanges(first int64, types []wire.AcknowledgeType) int {
	s := &p.spans[len(p.spans)-1]
	if len(s.types) == 0 || s.LastOffset+1 != first {
		return 0
	}
	n := changes(wire.AcknowledgeType(s.types[len(s.types)-1]), types)
	if n == 0 {
		return 0
	}
	k := len(s.types)
	s.types = slices.Grow(s.types, n)[:k+n]
	added := s.types[k:]
	for i, t := range types[:len(added)] {
		added[i] = int8(t)
	}
	s.LastOffset += int64(n)
	p.run = 1
	return n
}

// changes counts the types at the start that each differ from the one before.
func changes(before wire.AcknowledgeType, types []wire.AcknowledgeType) int {
	n := 0
	for len(types) >= 4 { // four at a time: this looks at every offset there is
		if types[0] == before || types[1] == types[0] || types[2] == types[1] || types[3] == types[2] {
			break
		}
		before, types, n = types[3], types[4:], n+4
	}
	for _, t := range types {
		if t == before {
			break
		}
		before = t
		n++
	}
	return n
}

// AddRange says t of a range of records.
func (p *PartitionAcknowledgements) AddRange(r Range, t wire.AcknowledgeType) {
	if r.FirstOffset < 0 || r.LastOffset < r.FirstOffset {
		p.unsorted = true // Batches says so
		p.spans = append(p.spans, span{Range: r, typ: t})
		return
	}
	n := len(p.spans)
	if n == 0 {
		p.spans = append(p.spans, span{Range: r, typ: t})
		return
	}
	s := &p.spans[n-1]
	switch {
	case r.FirstOffset != s.LastOffset+1 || s.LastOffset < s.FirstOffset:
		p.unsorted = p.unsorted || r.FirstOffset <= s.LastOffset
		p.spans = append(p.spans, span{Range: r, typ: t})
	case s.types == nil && s.typ == t:
		s.LastOffset = r.LastOffset
	case s.types != nil && s.types[len(s.types)-1] == int8(t):
		p.extend(s, r, t)
	case r.long(), s.types == nil && s.long():
		p.spans = append(p.spans, span{Range: r, typ: t})
	default:
		if s.types == nil {
			s.types = slices.Repeat([]int8{int8(s.typ)}, int(s.Len()))
			p.run = len(s.types)
		}
		p.extend(s, r, t)
	}
}

// long reports whether the range becomes a batch of its own.
func (r Range) long() bool { return r.LastOffset-r.FirstOffset >= minRun-1 }

// extend appends a range to the last span, which has a type for each offset. The
// run of one type at its end becomes a span of its own when it has become long.
func (p *PartitionAcknowledgements) extend(s *span, r Range, t wire.AcknowledgeType) {
	if int8(t) != s.types[len(s.types)-1] {
		p.run = 0
	}
	if own := (Range{r.FirstOffset - int64(p.run), r.LastOffset}); own.long() {
		s.LastOffset = own.FirstOffset - 1
		s.types = slices.Clip(s.types[:len(s.types)-p.run])
		p.spans = append(p.spans, span{Range: own, typ: t})
		return
	}
	for range r.Len() {
		s.types = append(s.types, int8(t))
	}
	s.LastOffset = r.LastOffset
	p.run += int(r.Len())
}

// inOrder returns the spans by their first offset.
func (p *PartitionAcknowledgements) inOrder() []span {
	if !p.unsorted {
		return p.spans
	}
	sorted := slices.Clone(p.spans)
	slices.SortStableFunc(sorted, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.FirstOffset, b.FirstOffset), cmp.Compare(a.LastOffset, b.LastOffset))
	})
	return sorted
}

// takeSorted adds spans that are in order and may overlap, each offset once.
func (p *PartitionAcknowledgements) takeSorted(spans []span) error {
	var runs []span // of one type each
	for i := range spans {
		if s := &spans[i]; s.FirstOffset < 0 || s.LastOffset < s.FirstOffset {
			return &ConflictError{TopicPartition: p.tp, Range: s.Range, Types: [2]wire.AcknowledgeType{s.typ, s.typ}}
		}
		spans[i].each(func(r Range, t wire.AcknowledgeType) { runs = append(runs, span{Range: r, typ: t}) })
	}
	// Spans that overlap give runs that are out of order.
	slices.SortStableFunc(runs, func(a, b span) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	done := span{Range: Range{-1, -1}} // the run that reaches furthest
	for _, r := range runs {
		if r.FirstOffset <= done.LastOffset && r.typ != done.typ {
			return &ConflictError{
				TopicPartition: p.tp,
				Range:          Range{r.FirstOffset, min(r.LastOffset, done.LastOffset)},
				Types:          [2]wire.AcknowledgeType{done.typ, r.typ},
			}
		}
		if r.LastOffset <= done.LastOffset {
			continue
		}
		p.AddRange(Range{max(r.FirstOffset, done.LastOffset+1), r.LastOffset}, r.typ)
		done = r
	}
	return nil
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
