package sandbox

import (
	"iter"
	"slices"
	"sort"

	"github.com/kshare/kshare/wire"
)

// partRange is a run of offsets of a share-partition that are alike.
type partRange struct {
	span
	partRecord
}

// partRecord is what there is to know of one record.
type partRecord struct {
	hold          *partHold // who has it; nil unless ACQUIRED or TX_PENDING
	deliveryCount int16
	state         wire.RecordState
}

func (r partRange) records() int64 { return r.last - r.first + 1 }

// clip returns the part of r inside [first, last].
func (r partRange) clip(first, last int64) partRange {
	r.first, r.last = max(r.first, first), min(r.last, last)
	return r
}

// partChunkMax bounds the ranges of a chunk, and with it what an insertion or
// a removal in the middle has to move: 128 ranges are 4 KiB.
const partChunkMax = 128

// partStates is the number of record states, for tables indexed by state.
const partStates = int(wire.TxPending) + 1

type partChunk struct {
	ranges []partRange
	states [partStates]int32 // ranges in each state
}

// partRanges is a gapless ascending sequence of ranges in which no two
// neighbours are alike. It is a list of short slices: a lookup is two binary
// searches, a change in the middle moves no more than one chunk, and a chunk
// knows which states it has, so that a search for a state skips most of them.
type partRanges struct {
	chunks []*partChunk // none is empty
}

type partPos struct{ chunk, index int }

func (l *partRanges) empty() bool { return len(l.chunks) == 0 }

func (l *partRanges) first() *partRange { return &l.chunks[0].ranges[0] }

func (l *partRanges) last() *partRange {
	c := l.chunks[len(l.chunks)-1]
	return &c.ranges[len(c.ranges)-1]
}

func (l *partRanges) at(p partPos) *partRange { return &l.chunks[p.chunk].ranges[p.index] }

// find returns the position of the range that has offset, which must be
// between the first and the last one.
func (l *partRanges) find(offset int64) partPos {
	c := sort.Search(len(l.chunks), func(i int) bool { return l.chunks[i].ranges[0].first > offset }) - 1
	ranges := l.chunks[c].ranges
	return partPos{c, sort.Search(len(ranges), func(i int) bool { return ranges[i].first > offset }) - 1}
}

func (l *partRanges) next(p partPos) (partPos, bool) {
	if p.index+1 < len(l.chunks[p.chunk].ranges) {
		return partPos{p.chunk, p.index + 1}, true
	}
	return partPos{p.chunk + 1, 0}, p.chunk+1 < len(l.chunks)
}

func (l *partRanges) prev(p partPos) (partPos, bool) {
	switch {
	case p.index > 0:
		return partPos{p.chunk, p.index - 1}, true
	case p.chunk > 0:
		return partPos{p.chunk - 1, len(l.chunks[p.chunk-1].ranges) - 1}, true
	}
	return partPos{}, false
}

// all yields every range; the list must not change meanwhile.
func (l *partRanges) all() iter.Seq[partRange] {
	return func(yield func(partRange) bool) {
		for _, c := range l.chunks {
			for _, r := range c.ranges {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// in yields every range in that state; the list must not change meanwhile.
func (l *partRanges) in(state wire.RecordState) iter.Seq[partRange] {
	return func(yield func(partRange) bool) {
		for _, c := range l.chunks {
			if c.states[state] == 0 {
				continue
			}
			for _, r := range c.ranges {
				if r.state == state && !yield(r) {
					return
				}
			}
		}
	}
}

// replace gives the offsets of r, which lie within one range, the value of r.
func (l *partRanges) replace(r partRange) {
	pos := l.reserve(l.find(r.first))
	old := *l.at(pos)
	if old.partRecord == r.partRecord {
		return
	}
	hasLeft, hasRight := old.first < r.first, r.last < old.last

	// Records are mostly taken in ascending order off a range whose front part
	// was taken before: then only the boundary moves.
	if prev, ok := l.prev(pos); ok && !hasLeft && hasRight && l.at(prev).partRecord == r.partRecord {
		l.at(prev).last, l.at(pos).first = r.last, r.last+1
		return
	}
	if hasRight {
		right := old
		right.first = r.last + 1
		l.insert(partPos{pos.chunk, pos.index + 1}, right)
	}
	if hasLeft {
		l.at(pos).last = r.first - 1
		pos.index++
		l.insert(pos, r)
	} else {
		l.set(pos, r)
	}
	if next, ok := l.next(pos); ok && l.at(next).partRecord == r.partRecord {
		l.at(pos).last = l.at(next).last
		l.remove(next)
	}
	if prev, ok := l.prev(pos); ok && l.at(prev).partRecord == r.partRecord {
		l.at(prev).last = l.at(pos).last
		l.remove(pos)
		pos = prev
	}
	l.shrink(pos.chunk)
}

// reserve makes room for two more ranges in the chunk at pos and returns where
// the range at pos is now.
func (l *partRanges) reserve(pos partPos) partPos {
	c := l.chunks[pos.chunk]
	if len(c.ranges)+2 <= partChunkMax {
		return pos
	}
	half := len(c.ranges) / 2
	right := &partChunk{ranges: slices.Clone(c.ranges[half:])}
	for _, r := range right.ranges {
		right.states[r.state]++
		c.states[r.state]--
	}
	// A copy, for what ascending changes leave behind stays half full.
	c.ranges = slices.Clone(c.ranges[:half])
	l.chunks = slices.Insert(l.chunks, pos.chunk+1, right)
	if pos.index >= half {
		return partPos{pos.chunk + 1, pos.index - half}
	}
	return pos
}

func (l *partRanges) set(p partPos, r partRange) {
	c := l.chunks[p.chunk]
	c.states[c.ranges[p.index].state]--
	c.states[r.state]++
	c.ranges[p.index] = r
}

func (l *partRanges) insert(p partPos, r partRange) {
	c := l.chunks[p.chunk]
	c.ranges = slices.Insert(c.ranges, p.index, r)
	c.states[r.state]++
}

// remove takes out the range at p. Positions before p stay what they were.
func (l *partRanges) remove(p partPos) {
	c := l.chunks[p.chunk]
	c.states[c.ranges[p.index].state]--
	c.ranges = slices.Delete(c.ranges, p.index, p.index+1)
	if len(c.ranges) == 0 {
		l.chunks = slices.Delete(l.chunks, p.chunk, p.chunk+1)
	}
}

// shrink merges a chunk that has become short with a neighbour, so that the
// number of chunks follows the number of ranges down as well as up.
func (l *partRanges) shrink(i int) {
	if len(l.chunks[i].ranges) > partChunkMax/4 {
		return
	}
	for _, left := range []int{i - 1, i} {
		if left < 0 || left+1 >= len(l.chunks) {
			continue
		}
		a, b := l.chunks[left], l.chunks[left+1]
		if len(a.ranges)+len(b.ranges) > partChunkMax/2 {
			continue
		}
		a.ranges = append(a.ranges, b.ranges...)
		for s, n := range b.states {
			a.states[s] += n
		}
		l.chunks = slices.Delete(l.chunks, left+1, left+2)
		return
	}
}

// pushBack adds r behind the last range, to which it is adjacent.
func (l *partRanges) pushBack(r partRange) {
	if !l.empty() && l.last().partRecord == r.partRecord {
		l.last().last = r.last
		return
	}
	if l.empty() || len(l.chunks[len(l.chunks)-1].ranges) == partChunkMax {
		l.chunks = append(l.chunks, &partChunk{})
	}
	c := len(l.chunks) - 1
	l.insert(partPos{c, len(l.chunks[c].ranges)}, r)
}

// pushFront adds r before the first range, to which it is adjacent.
func (l *partRanges) pushFront(r partRange) {
	if !l.empty() && l.first().partRecord == r.partRecord {
		l.first().first = r.first
		return
	}
	if l.empty() || len(l.chunks[0].ranges) == partChunkMax {
		l.chunks = slices.Insert(l.chunks, 0, &partChunk{})
	}
	l.insert(partPos{}, r)
}

// trimFront takes out the offsets up to last, which are within the first range.
func (l *partRanges) trimFront(last int64) {
	r := l.first()
	if last < r.last {
		r.first = last + 1
		return
	}
	c := l.chunks[0]
	c.states[r.state]--
	*r = partRange{}
	c.ranges = c.ranges[1:] // not slices.Delete: the head is dropped again and again
	if len(c.ranges) == 0 {
		l.chunks[0] = nil
		l.chunks = l.chunks[1:]
	}
}

// trimBack takes out the offsets from first on, which are within the last range.
func (l *partRanges) trimBack(first int64) {
	r := l.last()
	if r.first < first {
		r.last = first - 1
		return
	}
	c := len(l.chunks) - 1
	l.remove(partPos{c, len(l.chunks[c].ranges) - 1})
}
