package sandbox

import (
	"slices"
	"time"

	"github.com/kshare/kshare/wire"
)

// stage puts acknowledgements of memberID into the transaction of o, all or
// none: what they name becomes TX_PENDING and stays so, without an acquisition
// lock, until a marker resolves it (KIP-1289). Offsets below SPSO are done with
// and count as staged. What the same member has staged in the same way for the
// same producer and epoch may be staged again and does not change.
//
// Codes: the dialect's code for a type that may not be staged; INVALID_REQUEST
// 42 for a wrong number of types and for offsets behind the window;
// INVALID_RECORD_STATE 121 for a record that memberID has not acquired.
//
// A stage that fails changes nothing, and locks run on. When a stage that
// succeeded is undone because it could not be persisted, records are ACQUIRED
// again by the same member but no lock runs, as in the drafts of KIP-1289: the
// member has to acknowledge or leave, or the leader to move.
func (p *sharePartition) stage(_ time.Time, memberID string, o owner, acks []ackBatch, lim partitionLimits) (change, int16) {
	e := p.edit()
	for _, b := range acks {
		if code := p.stageBatch(e, memberID, o, b, lim); code != 0 {
			return e.fail(code)
		}
	}
	c := e.done()
	c.undo = func() { e.revert(true) }
	return c, 0
}

func (p *sharePartition) stageBatch(e *partEdit, memberID string, o owner, b ackBatch, lim partitionLimits) int16 {
	if !b.wellFormed() {
		return partInvalidRequest
	}
	if slices.ContainsFunc(b.types, func(t int8) bool { return !p.dialect.Allows(wire.AcknowledgeType(t)) }) {
		return p.dialect.InvalidTypeCode
	}
	if code := p.covers(b.span); code != 0 {
		return code
	}
	for t, s := range b.runs() {
		h := partHolder{memberID: memberID, owner: o, ackType: t, target: committed(t, lim)}
		for r := range p.pieces(s) {
			switch {
			case r.hold == nil || r.hold.memberID != memberID || memberID == "":
				return partInvalidRecordState
			case r.hold.partHolder == h:
			case r.state != wire.Acquired:
				return partInvalidRecordState
			default:
				n := r
				n.state, n.hold = wire.TxPending, p.holds.get(h)
				e.write(r, n)
			}
		}
	}
	return 0
}

// resolve applies the end marker of a transaction of producerID to the records
// that it staged with an epoch that matches. After a commit they are what was
// staged. After an abort they are, by dialect, AVAILABLE or ACQUIRED again by
// the same member with a new lock; AVAILABLE in either case when no member is
// known. The delivery count stays what it is, and its limit is not looked at. A
// marker that matches nothing changes nothing, so markers may be repeated.
func (p *sharePartition) resolve(now time.Time, producerID int64, matches func(stagedEpoch int16) bool, commit bool, lim partitionLimits) change {
	e := p.edit()
	for _, h := range slices.Clone(p.holds.staged[producerID]) {
		if !matches(h.producerEpoch) {
			continue
		}
		for _, s := range h.spans {
			for r := range p.pieces(s) {
				if r.hold == h {
					e.write(r, p.resolved(r, now, commit, lim))
				}
			}
		}
	}
	return e.done()
}

// resolved is r after the end of the transaction.
func (p *sharePartition) resolved(r partRange, now time.Time, commit bool, lim partitionLimits) partRange {
	h := r.hold
	r.hold = nil
	switch {
	case commit && h.target >= 0:
		r.state = h.target
	case commit: // persisted before the target was
		r.state = committed(h.ackType, lim)
	case p.dialect.AfterAbort == wire.Acquired && h.memberID != "":
		r.state, r.hold = wire.Acquired, p.holds.get(acquiredBy(h.memberID, now, lim))
	default:
		r.state = wire.Available
	}
	return r
}
