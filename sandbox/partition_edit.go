package sandbox

import (
	"cmp"
	"slices"
	"time"

	"github.com/kshare/kshare/wire"
)

// partEdit is one operation on a share-partition: it writes at once and keeps
// what it takes to go back.
type partEdit struct {
	p      *sharePartition
	before int64 // SPSO before the operation
	after  int64 // SPSO after it
	steps  []partStep
}

type partStepKind int8

const (
	partWritten  partStepKind = iota // old became new
	partExtended                     // new was added at the end of the window
	partDropped                      // old left the window at its head
)

type partStep struct {
	span
	old, new partRecord
	kind     partStepKind
}

func (p *sharePartition) edit() *partEdit {
	return &partEdit{p: p, before: p.start, after: p.start}
}

// write makes r, a part of one range, what n says. Only state, deliveryCount
// and hold may differ.
func (e *partEdit) write(r, n partRange) {
	e.p.write(r, n)
	// Neighbours that change alike are one step: an operation that takes many
	// small batches off one range stays as small as its result.
	if i := len(e.steps) - 1; i >= 0 {
		if s := &e.steps[i]; s.kind == partWritten && s.last+1 == n.first && s.old == r.partRecord && s.new == n.partRecord {
			s.last = n.last
			return
		}
	}
	e.steps = append(e.steps, partStep{n.span, r.partRecord, n.partRecord, partWritten})
}

// extend adds n at the end of the window.
func (e *partEdit) extend(n partRange) {
	e.p.push(n)
	e.steps = append(e.steps, partStep{span: n.span, new: n.partRecord, kind: partExtended})
}

// drop forgets r, which is at the head of the window.
func (e *partEdit) drop(r partRange) {
	p := e.p
	p.window.trimFront(r.last)
	p.records[r.state] -= r.records()
	if r.hold != nil {
		p.letGo(r)
	}
	p.start = r.last + 1
	e.steps = append(e.steps, partStep{span: r.span, old: r.partRecord, kind: partDropped})
}

// advance moves SPSO over the terminal records at the head.
func (e *partEdit) advance() {
	for !e.p.window.empty() && e.p.window.first().state.Terminal() {
		e.drop(*e.p.window.first())
	}
	e.after = e.p.start
}

// done ends a successful operation.
func (e *partEdit) done() change {
	e.advance()
	return change{batches: e.batches(), undo: func() { e.revert(false) }}
}

// fail ends an operation that may not be done: nothing has happened.
func (e *partEdit) fail(code int16) (change, int16) {
	e.revert(false)
	return change{undo: func() {}}, code
}

// batches is what has to be persisted of the operation. That includes records
// that SPSO has passed by it, so that an operation that only moves SPSO is not
// taken for one that did nothing.
func (e *partEdit) batches() []wire.StateBatch {
	if len(e.steps) == 0 {
		return nil
	}
	out := make([]wire.StateBatch, 0, len(e.steps))
	for _, s := range e.steps {
		if b, ok := s.persisted(); ok {
			out = append(out, b)
		}
	}
	byOffset := func(a, b wire.StateBatch) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) }
	if !slices.IsSortedFunc(out, byOffset) {
		slices.SortFunc(out, byOffset)
	}
	return partCoalesced(out)
}

// persisted is the persisted form of the new range; false when that does not
// change.
func (s partStep) persisted() (wire.StateBatch, bool) {
	if s.kind == partDropped {
		return wire.StateBatch{}, false
	}
	b := wire.StateBatch{
		FirstOffset: s.first, LastOffset: s.last,
		DeliveryState: s.new.state, DeliveryCount: s.new.deliveryCount, Staged: wire.NoStagedOwner(),
	}
	switch s.new.state {
	case wire.Acquired:
		// Nobody persists an acquisition, but what was persisted as TX_PENDING
		// must not stay so.
		b.DeliveryState = wire.Available
		return b, s.old.state == wire.TxPending
	case wire.TxPending:
		b.Staged = s.new.hold.staged()
		return b, true
	default:
		return b, true
	}
}

// staged is the persisted form of a holder of TX_PENDING records.
func (h partHolder) staged() wire.StagedOwner {
	return wire.StagedOwner{
		ProducerID: h.producerID, ProducerEpoch: h.producerEpoch,
		AcknowledgeType: int8(h.ackType), DeliveryState: int8(h.target),
	}
}

// partCoalesced joins adjacent batches that are alike. It reuses bs.
func partCoalesced(bs []wire.StateBatch) []wire.StateBatch {
	alike := func(a, b wire.StateBatch) bool {
		a.FirstOffset, a.LastOffset = b.FirstOffset, b.LastOffset
		return a == b
	}
	out := bs[:0]
	for _, b := range bs {
		if n := len(out) - 1; n >= 0 && out[n].LastOffset+1 == b.FirstOffset && alike(out[n], b) {
			out[n].LastOffset = b.LastOffset
			continue
		}
		out = append(out, b)
	}
	return out
}

// revert takes the operation back, last step first. With stopLocks records come
// back ACQUIRED without a running acquisition lock.
//
// It is exact when nothing has happened since. Otherwise it leaves alone what a
// later operation has changed: such records are where that operation put them,
// and SPSO only moves back if it is where this operation left it.
func (e *partEdit) revert(stopLocks bool) {
	p := e.p
	moveBack := p.start == e.after
	for _, s := range slices.Backward(e.steps) {
		switch s.kind {
		case partDropped:
			if moveBack {
				p.restore(partRange{s.span, s.old})
			}
		case partExtended:
			p.cut(partRange{s.span, s.new})
		case partWritten:
			old := s.old
			if stopLocks && old.state == wire.Acquired {
				old.hold = &partHold{partHolder: old.hold.partHolder}
				old.hold.lockExpiry = time.Time{}
			}
			p.rewrite(s.span, s.new, old)
		}
	}
	if moveBack {
		p.start = e.before
		p.closeHead(e.before)
	}
	e.steps = nil
}

// restore puts r back at the head of the window.
func (p *sharePartition) restore(r partRange) {
	p.closeHead(r.last + 1)
	p.start = r.first
	r.hold = p.revived(r.hold)
	p.window.pushFront(r)
	p.records[r.state] += r.records()
	if r.hold != nil {
		p.keep(r)
	}
}

// closeHead makes the window begin at offset, if there is one. The offsets that
// this adds were passed by the log start and have no records.
func (p *sharePartition) closeHead(offset int64) {
	if p.window.empty() || p.window.first().first <= offset {
		return
	}
	r := partRange{span{offset, p.window.first().first - 1}, partRecord{state: wire.Archived}}
	p.window.pushFront(r)
	p.records[r.state] += r.records()
}

// cut takes r off the end of the window, if it still is the end.
func (p *sharePartition) cut(r partRange) {
	if p.window.empty() {
		return
	}
	if end := p.window.last(); end.last != r.last || end.first > r.first || end.partRecord != r.partRecord {
		return
	}
	p.window.trimBack(r.first)
	p.records[r.state] -= r.records()
}

// rewrite makes what still is as now says as old says.
func (p *sharePartition) rewrite(s span, now, old partRecord) {
	for r := range p.pieces(s) {
		if r.partRecord == now {
			n := partRange{r.span, old}
			n.hold = p.revived(old.hold)
			p.write(r, n)
		}
	}
}

// revived is the hold of the same holder that has records today.
func (p *sharePartition) revived(h *partHold) *partHold {
	if h == nil {
		return nil
	}
	return p.holds.get(h.partHolder)
}
