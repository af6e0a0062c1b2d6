package sandbox

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/kshare/kshare/wire"
)

// partHolder says who has records and until when: for ACQUIRED the member and
// the end of its acquisition lock, for TX_PENDING the member, the producer and
// what it staged.
type partHolder struct {
	memberID   string    // "" for TX_PENDING after a reload
	lockExpiry time.Time // zero: no lock runs
	owner                // -1, -1 unless TX_PENDING
	ackType    wire.AcknowledgeType
	target     wire.RecordState // state after a commit; -1 where an older writer left it out
}

// acquiredBy is the holder of records that a member acquired at now.
func acquiredBy(memberID string, now time.Time, lim partitionLimits) partHolder {
	return partHolder{memberID: memberID, lockExpiry: now.Add(lim.lockDuration), owner: owner{-1, -1}}
}

// partHold is all records of a share-partition that one holder has. There is
// one hold for each holder, and ranges point at it: members that acquire and
// transactions that stage many ranges cost one hold each.
type partHold struct {
	partHolder
	records int64
	spans   []span // where the records are; some of it may not be held any more
	index   int    // in partHolds.locks, -1 when no lock runs
}

// partHoldKey is a partHolder that can be compared: a time.Time cannot.
type partHoldKey struct {
	partHolder
	expiry int64
}

func (h partHolder) key() partHoldKey {
	k := partHoldKey{partHolder: h}
	if !h.lockExpiry.IsZero() {
		k.expiry = h.lockExpiry.UnixNano()
		k.lockExpiry = time.Time{}
	}
	return k
}

// partHolds are the holds of a share-partition that have records: found by
// holder, by the producer that staged, and in the order in which their locks
// run out.
type partHolds struct {
	all    map[partHoldKey]*partHold
	staged map[int64][]*partHold // by producer ID
	locks  partLocks
}

// get returns the hold of that holder. A new one is forgotten only by
// [partHolds.drop], so the caller must put records in it.
func (hs *partHolds) get(h partHolder) *partHold {
	k := h.key()
	hold := hs.all[k]
	if hold != nil {
		return hold
	}
	hold = &partHold{partHolder: h, index: -1}
	if hs.all == nil {
		hs.all = make(map[partHoldKey]*partHold)
		hs.staged = make(map[int64][]*partHold)
	}
	hs.all[k] = hold
	if h.producerID >= 0 {
		hs.staged[h.producerID] = append(hs.staged[h.producerID], hold)
	}
	if !h.lockExpiry.IsZero() {
		heap.Push(&hs.locks, hold)
	}
	return hold
}

// drop forgets a hold whose last record is gone.
func (hs *partHolds) drop(hold *partHold) {
	delete(hs.all, hold.key())
	if hold.index >= 0 {
		heap.Remove(&hs.locks, hold.index)
	}
	if hold.producerID < 0 {
		return
	}
	rest := slices.DeleteFunc(hs.staged[hold.producerID], func(h *partHold) bool { return h == hold })
	if len(rest) == 0 {
		delete(hs.staged, hold.producerID)
		return
	}
	hs.staged[hold.producerID] = rest
}

// keep counts the records of r as held and notes where they are.
func (p *sharePartition) keep(r partRange) {
	h := r.hold
	h.records += r.records()
	if n := len(h.spans); n > 0 && h.spans[n-1].last+1 == r.first {
		h.spans[n-1].last = r.last
		return
	}
	// Spans whose records are gone pile up when a hold lives long and its
	// records come and go; then only those that still say something are kept.
	if n := len(h.spans); n >= 64 && int64(n) > 2*h.records {
		p.compactSpans(h)
	}
	h.spans = append(h.spans, r.span)
}

// letGo counts the records of r as held no more.
func (p *sharePartition) letGo(r partRange) {
	if r.hold.records -= r.records(); r.hold.records == 0 {
		p.holds.drop(r.hold)
	}
}

// compactSpans makes h.spans what h really holds.
func (p *sharePartition) compactSpans(h *partHold) {
	slices.SortFunc(h.spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var kept []span
	next := int64(0)
	for _, s := range h.spans {
		s.first = max(s.first, next)
		for r := range p.pieces(s) {
			if r.hold == h {
				kept = append(kept, r.span)
			}
		}
		next = max(next, s.last+1)
	}
	h.spans = kept
}

// partLocks is a heap of the holds with a running lock, the first to run out on
// top. It implements [heap.Interface].
type partLocks []*partHold

func (l partLocks) Len() int           { return len(l) }
func (l partLocks) Less(i, j int) bool { return l[i].lockExpiry.Before(l[j].lockExpiry) }

func (l partLocks) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}

// Push implements [heap.Interface].
func (l *partLocks) Push(x any) {
	h := x.(*partHold)
	h.index = len(*l)
	*l = append(*l, h)
}

// Pop implements [heap.Interface].
func (l *partLocks) Pop() any {
	n := len(*l) - 1
	h := (*l)[n]
	(*l)[n] = nil
	*l = (*l)[:n]
	h.index = -1
	return h
}
