package sandbox

import (
	"iter"
	"slices"
	"time"

	"github.com/kshare/kshare/wire"
)

// acknowledge applies the acknowledgement batches of a ShareAcknowledge or
// ShareFetch request for this partition, all or none. Offsets below SPSO are
// done with and count as acknowledged. renewRequest is IsRenewAck (KIP-1222).
//
// Codes: INVALID_REQUEST 42 for batches that are not ascending, a wrong number
// of types, an unknown type, or offsets behind the window;
// INVALID_RECORD_STATE 121 for a record that memberID has not acquired, and for
// RENEW where the group has it disabled.
func (p *sharePartition) acknowledge(now time.Time, memberID string, acks []ackBatch, renewRequest bool, lim partitionLimits) (change, int16) {
	e := p.edit()
	if !validAcks(acks, renewRequest) {
		return e.fail(partInvalidRequest)
	}
	renewed := acquiredBy(memberID, now, lim)
	for _, b := range acks {
		if code := p.covers(b.span); code != 0 {
			return e.fail(code)
		}
		for t, s := range b.runs() {
			for r := range p.pieces(s) {
				if r.state != wire.Acquired || r.hold.memberID != memberID || t == wire.Renew && !lim.renew {
					return e.fail(partInvalidRecordState)
				}
				if t == wire.Renew {
					n := r
					n.hold = p.holds.get(renewed)
					e.write(r, n)
					continue
				}
				e.write(r, r.acknowledged(t, lim))
			}
		}
	}
	return e.done(), 0
}

// validAcks checks what can be told from a request alone.
func validAcks(acks []ackBatch, renewRequest bool) bool {
	last := wire.Reject
	if renewRequest {
		last = wire.Renew
	}
	next := int64(0)
	for _, b := range acks {
		if b.first < next || !b.wellFormed() {
			return false
		}
		if slices.Min(b.types) < int8(wire.Gap) || slices.Max(b.types) > int8(last) {
			return false
		}
		next = b.last + 1
	}
	return true
}

// wellFormed reports whether b is a range with one type, or one for each offset.
func (b ackBatch) wellFormed() bool {
	n := int64(len(b.types))
	return b.first <= b.last && n > 0 && (n == 1 || n == b.last-b.first+1)
}

// runs yields the spans of b that have the same acknowledge type.
func (b ackBatch) runs() iter.Seq2[wire.AcknowledgeType, span] {
	return func(yield func(wire.AcknowledgeType, span) bool) {
		if len(b.types) == 1 {
			yield(wire.AcknowledgeType(b.types[0]), b.span)
			return
		}
		for i := 0; i < len(b.types); {
			n := 1
			for i+n < len(b.types) && b.types[i+n] == b.types[i] {
				n++
			}
			first := b.first + int64(i)
			if !yield(wire.AcknowledgeType(b.types[i]), span{first, first + int64(n) - 1}) {
				return
			}
			i += n
		}
	}
}

// covers reports by its code whether all of s is in the window or below SPSO.
func (p *sharePartition) covers(s span) int16 {
	switch {
	case s.last < p.start:
		return 0
	case p.window.empty():
		return partInvalidRecordState
	case s.last > p.endOffset():
		return partInvalidRequest
	}
	return 0
}

// acknowledged is r after a plain acknowledgement.
func (r partRange) acknowledged(t wire.AcknowledgeType, lim partitionLimits) partRange {
	if t == wire.Release {
		return r.released(lim)
	}
	r.state, r.hold = committed(t, lim), nil
	return r
}

// committed is the state of a record that was acknowledged with that type, other
// than RELEASE and RENEW. A gap has nothing that could go to a dead-letter queue.
func committed(t wire.AcknowledgeType, lim partitionLimits) wire.RecordState {
	switch t {
	case wire.Accept:
		return wire.Acknowledged
	case wire.Reject:
		return rejected(lim)
	default:
		return wire.Archived
	}
}

func rejected(lim partitionLimits) wire.RecordState {
	if lim.deadLetterQueue {
		return wire.Archiving
	}
	return wire.Archived
}

// released is r after its member gave it back or lost it.
func (r partRange) released(lim partitionLimits) partRange {
	r.state, r.hold = wire.Available, nil
	if r.deliveryCount >= lim.deliveryCountLimit {
		r.state = rejected(lim)
	}
	return r
}

// release gives back what memberID has ACQUIRED, when its share session ends or
// it leaves the group. What it staged is the transaction's and stays.
func (p *sharePartition) release(_ time.Time, memberID string, lim partitionLimits) change {
	var mine []partRange
	for r := range p.window.in(wire.Acquired) {
		if r.hold.memberID == memberID {
			mine = append(mine, r)
		}
	}
	e := p.edit()
	for _, r := range mine {
		e.write(r, r.released(lim))
	}
	return e.done()
}

// expire gives back the records whose acquisition lock has run out. A
// TX_PENDING record has no lock.
func (p *sharePartition) expire(now time.Time, lim partitionLimits) change {
	e := p.edit()
	for len(p.holds.locks) > 0 && !p.holds.locks[0].lockExpiry.After(now) {
		h := p.holds.locks[0] // out of the heap with its last record
		for _, s := range h.spans {
			for r := range p.pieces(s) {
				if r.hold == h {
					e.write(r, r.released(lim))
				}
			}
		}
	}
	return e.done()
}

// archiveGaps archives offsets that have no record to deliver, so that SPSO can
// pass them: control batches and aborted records under read_committed, and the
// offsets from where the log was read to the first batch that came back
// (compaction). It takes AVAILABLE records, and what spans add to the window
// without leaving a hole. Spans further behind are left to the read that
// reaches them: the records before them have not been acquired yet, and a
// window that already had them would hold less.
func (p *sharePartition) archiveGaps(spans []span) change {
	e := p.edit()
	for _, s := range spans {
		for r := range p.pieces(s) {
			if r.state == wire.Available {
				n := r
				n.state = wire.Archived
				e.write(r, n)
			}
		}
		if end := p.endOffset(); s.first <= end+1 && end < s.last {
			e.extend(partRange{span{end + 1, s.last}, partRecord{state: wire.Archived}})
		}
	}
	return e.done()
}

// truncateTo forgets what is below the log start offset, in whatever state; a
// marker that comes later finds nothing. As in Kafka only SPSO has to be
// persisted, and that can wait for the next change.
func (p *sharePartition) truncateTo(logStart int64) change {
	e := p.edit()
	for !p.window.empty() && p.window.first().first < logStart {
		e.drop(p.window.first().clip(p.start, logStart-1))
	}
	p.start = max(p.start, logStart)
	return e.done()
}

// completeArchiving archives the ARCHIVING records in s, once the dead-letter
// queue has them (KIP-1191).
func (p *sharePartition) completeArchiving(s span) change {
	e := p.edit()
	for r := range p.pieces(s) {
		if r.state == wire.Archiving {
			n := r
			n.state = wire.Archived
			e.write(r, n)
		}
	}
	return e.done()
}
