package sandbox

// The leader's view of one share-partition (KIP-932, KIP-1289).
//
// Behaviour:
// * The window is [SPSO, SPEO]. It has no holes: an offset between two reads of
//   the log that no batch has is ARCHIVED, for there is nothing to deliver, and
//   an offset that the persisted state leaves out is AVAILABLE.
// * SPSO moves over ACKNOWLEDGED and ARCHIVED records as soon as they are at
//   the head, and what is below it is forgotten. TX_PENDING and ARCHIVING hold
//   it back.
// * Every record from SPSO to SPEO counts as in flight, as Kafka counts it.
// * The state is kept by ranges. An operation costs what it touches, times the
//   logarithm of the number of ranges.
//
// Where this differs from Kafka 4.4:
// * Kafka keeps its state by batches as first fetched. That shows in one place:
//   after a record-limited acquire the rest of the batch is not in the window.
// * Acquiring does not isolate or throttle records near the delivery count
//   limit.
// * A session that closes releases as a RELEASE does, which Kafka does since
//   KAFKA-19972 (December 2025); before, it took the delivery back.
// * A request that fails leaves no trace. Kafka keeps the renewals it has done.

import (
	"iter"
	"math"
	"time"

	"github.com/kshare/kshare/wire"
)

// Error codes for a partition of an acknowledgement.
const (
	partInvalidRequest     int16 = 42
	partInvalidRecordState int16 = 121
)

// sharePartition is the state of one share-partition on its leader.
type sharePartition struct {
	dialect wire.Dialect
	start   int64 // SPSO
	window  partRanges
	records [partStates]int64 // records in each state
	holds   partHolds
}

// newSharePartition returns the share-partition as it was persisted. The
// caller resolves a start offset of -1 (share.auto.offset.reset) first. A
// TX_PENDING record keeps its owner but no member: only a marker, or the log
// start, can move it on.
func newSharePartition(st shareState, d wire.Dialect) *sharePartition {
	p := &sharePartition{dialect: d, start: st.startOffset}
	for _, b := range st.batches {
		first := max(b.FirstOffset, p.endOffset()+1)
		if b.LastOffset < first {
			continue
		}
		p.fill(first-1, wire.Available)
		p.push(p.loaded(b, first))
	}
	p.edit().advance()
	return p
}

// loaded is what a persisted batch says, from first on.
func (p *sharePartition) loaded(b wire.StateBatch, first int64) partRange {
	r := partRange{span{first, b.LastOffset}, partRecord{state: b.DeliveryState, deliveryCount: b.DeliveryCount}}
	switch b.DeliveryState {
	case wire.Available, wire.Acknowledged, wire.Archiving, wire.Archived:
	case wire.TxPending:
		r.hold = p.holds.get(partHolder{
			owner:   owner{b.Staged.ProducerID, b.Staged.ProducerEpoch},
			ackType: wire.AcknowledgeType(b.Staged.AcknowledgeType),
			target:  wire.RecordState(b.Staged.DeliveryState),
		})
	default:
		// ACQUIRED is never persisted; delivering once more is what a new
		// leader does with every record it knows nothing of.
		r.state = wire.Available
	}
	return r
}

// startOffset is the SPSO, the lowest offset that is not done with.
func (p *sharePartition) startOffset() int64 { return p.start }

// endOffset is the SPEO, the last offset of the window; startOffset-1 when the
// window is empty.
func (p *sharePartition) endOffset() int64 {
	if p.window.empty() {
		return p.start - 1
	}
	return p.window.last().last
}

// nextFetchOffset is the lowest offset that is worth reading from the log: the
// first AVAILABLE one, or else the first one behind the window.
func (p *sharePartition) nextFetchOffset() int64 {
	if p.records[wire.Available] > 0 {
		for r := range p.window.in(wire.Available) {
			return r.first
		}
	}
	return p.endOffset() + 1
}

// inFlight counts the records of the window, in whatever state, as Kafka's
// InFlightMessageCount does.
func (p *sharePartition) inFlight() int { return int(p.endOffset() - p.start + 1) }

// deliveryCompleteCount counts the terminal records of the window (KIP-1226).
func (p *sharePartition) deliveryCompleteCount() int32 {
	return int32(min(p.records[wire.Acknowledged]+p.records[wire.Archived], math.MaxInt32))
}

// lag counts the records below highWatermark that are not done with (KIP-1226).
func (p *sharePartition) lag(highWatermark int64) int64 {
	return max(0, highWatermark-p.start-int64(p.deliveryCompleteCount()))
}

// canAcquire reports whether a read of the log may yield something to acquire:
// the window may still grow, or has AVAILABLE records.
func (p *sharePartition) canAcquire(lim partitionLimits) bool {
	return p.records[wire.Available] > 0 || p.inFlight() < lim.maxRecordLocks
}

// acquire gives memberID the AVAILABLE records in batches, which are all record
// batches that one read of the log returned, from nextFetchOffset or a lower
// offset on and ascending. It takes whole batches until it has maxRecords, or
// stops at maxRecords exactly when strict (ShareAcquireMode 1). An acquisition
// lock starts on all of them and their delivery count goes up, also past the
// limit: the limit counts when records come back. The result is ascending.
//
// The record lock limit is Kafka's: it bounds the number of records like
// maxRecords does, and once the window is that large, records may only be
// acquired inside it.
//
// Offsets between batches are archived, nothing is there to deliver. The caller
// knows where it read from, so it archives those between that offset and the
// first batch; see archiveGaps.
func (p *sharePartition) acquire(now time.Time, memberID string, batches []span, maxRecords int, strict bool, lim partitionLimits) []acquiredRange {
	end := int64(math.MaxInt64)
	limit := min(maxRecords, lim.maxRecordLocks-p.inFlight())
	if limit <= 0 {
		limit, end = maxRecords, p.endOffset()
	}
	a := &partAcquisition{p: p, holder: acquiredBy(memberID, now, lim), left: int64(limit), strict: strict}
	behind := int64(math.MaxInt64) // the batch before
	for _, b := range batches {
		b.first, b.last = max(b.first, p.start), min(b.last, end)
		if a.left <= 0 || b.first > end {
			break
		}
		p.archiveUnread(span{behind, b.first - 1})
		if b.first <= b.last {
			p.fill(b.first-1, wire.Archived)
			a.take(b)
		}
		behind = b.last + 1
	}
	p.edit().advance()
	return a.acquired
}

// archiveUnread archives the AVAILABLE records of the window in s.
func (p *sharePartition) archiveUnread(s span) {
	for r := range p.pieces(s) {
		if r.state == wire.Available {
			n := r
			n.state = wire.Archived
			p.write(r, n)
		}
	}
}

// partAcquisition is an acquire under way.
type partAcquisition struct {
	p        *sharePartition
	holder   partHolder
	left     int64 // records that may still be acquired
	strict   bool
	acquired []acquiredRange
}

// take acquires what is AVAILABLE in b, which does not begin behind the end of
// the window plus one.
func (a *partAcquisition) take(b span) {
	p := a.p
	for r := range p.pieces(b) {
		if r.state == wire.Available && a.wants() {
			p.write(r, a.add(r))
		}
	}
	if p.endOffset() < b.last && a.wants() {
		p.push(a.add(partRange{span: span{p.endOffset() + 1, b.last}}))
	}
}

// wants reports whether more of a batch is to be acquired.
func (a *partAcquisition) wants() bool { return !a.strict || a.left > 0 }

// add returns what of r is acquired, as it is then, and notes it.
func (a *partAcquisition) add(r partRange) partRange {
	if a.strict && r.records() > a.left {
		r.last = r.first + a.left - 1
	}
	r.state = wire.Acquired
	r.hold = a.p.holds.get(a.holder)
	if r.deliveryCount < math.MaxInt16 {
		r.deliveryCount++
	}
	a.left -= r.records()
	if n := len(a.acquired); n > 0 && a.acquired[n-1].last+1 == r.first && a.acquired[n-1].deliveryCount == r.deliveryCount {
		a.acquired[n-1].last = r.last
		return r
	}
	a.acquired = append(a.acquired, acquiredRange{r.span, r.deliveryCount})
	return r
}

// nextExpiry is when the first acquisition lock runs out; false when no lock
// runs.
func (p *sharePartition) nextExpiry() (time.Time, bool) {
	if len(p.holds.locks) == 0 {
		return time.Time{}, false
	}
	return p.holds.locks[0].lockExpiry, true
}

// pending lists the TX_PENDING records, ascending.
func (p *sharePartition) pending() []pendingRange {
	var out []pendingRange
	for r := range p.window.in(wire.TxPending) {
		out = append(out, pendingRange{
			span: r.span, owner: r.hold.owner, ackType: r.hold.ackType, target: r.hold.target,
			deliveryCount: r.deliveryCount, memberID: r.hold.memberID,
		})
	}
	return out
}

// ranges lists the window, ascending.
func (p *sharePartition) ranges() []rangeState {
	var out []rangeState
	for r := range p.window.all() {
		s := rangeState{span: r.span, state: r.state, deliveryCount: r.deliveryCount, owner: owner{-1, -1}}
		if r.hold != nil {
			s.memberID, s.lockExpiry, s.owner = r.hold.memberID, r.hold.lockExpiry, r.hold.owner
		}
		out = append(out, s)
	}
	return out
}

// pieces yields the parts of the window's ranges that are in s. The loop body
// may change the part it was given and what is before it.
func (p *sharePartition) pieces(s span) iter.Seq[partRange] {
	return func(yield func(partRange) bool) {
		first, last := max(s.first, p.start), min(s.last, p.endOffset())
		for first <= last {
			r := p.window.at(p.window.find(first)).clip(first, last)
			if !yield(r) {
				return
			}
			first = r.last + 1
		}
	}
}

// write makes r, a part of one range, what n says.
func (p *sharePartition) write(r, n partRange) {
	p.window.replace(n)
	p.records[n.state] += n.records()
	p.records[r.state] -= n.records()
	if n.hold == r.hold {
		return
	}
	if n.hold != nil {
		p.keep(n)
	}
	if r.hold != nil {
		p.letGo(r.clip(n.first, n.last))
	}
}

// push adds r at the end of the window.
func (p *sharePartition) push(r partRange) {
	p.window.pushBack(r)
	p.records[r.state] += r.records()
	if r.hold != nil {
		p.keep(r)
	}
}

// fill extends the window to last with never delivered records in that state.
func (p *sharePartition) fill(last int64, state wire.RecordState) {
	if end := p.endOffset(); end < last {
		p.push(partRange{span{end + 1, last}, partRecord{state: state}})
	}
}
