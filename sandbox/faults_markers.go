package sandbox

import (
	"context"
	"slices"
	"sync/atomic"
)

// Faults in end markers on their way to __share_group_state. Each partition of
// the topic that is registered in the transaction gets one, and each meets its
// own fate. A marker that somebody writes by hand meets none of them.

// markerFate is what happens to the marker of a partition.
type markerFate struct {
	drop, duplicate bool
	delay           *activeFault
	hang            bool // its share coordinator does not answer
}

// fates lets faults strike the markers of a transaction, one strike for each
// fault, and returns what happens to those that do not just arrive.
func (g *gateway) fates(t endedTxn) (map[int32]markerFate, *activeFault) {
	if !g.faults.any() || len(t.statePartitions) == 0 {
		return nil, nil
	}
	selects := func(f *Fault) bool {
		return (f.TransactionalID == "" || f.TransactionalID == t.transactionalID) &&
			(f.StatePartition == nil || slices.Contains(t.statePartitions, *f.StatePartition))
	}
	concerns := func(f *activeFault, n int32) bool {
		return f != nil && (f.StatePartition == nil || *f.StatePartition == n)
	}
	drop := g.faults.strike(FaultDropMarker, false, selects)
	delay := g.faults.strike(FaultDelayMarker, true, selects)
	duplicate := g.faults.strike(FaultDuplicateMarker, true, selects)
	fates := make(map[int32]markerFate)
	for _, n := range t.statePartitions {
		f := markerFate{drop: concerns(drop, n), duplicate: concerns(duplicate, n)}
		if concerns(delay, n) && !f.drop {
			f.delay = delay
		}
		f.hang = g.faults.lasts(FaultHangCoordinator, func(f *Fault) bool {
			return f.Broker == nil && coordinated{coordinator: CoordinatorShare, statePartitions: []int32{n}}.selectedBy(f)
		})
		if f != (markerFate{}) {
			fates[n] = f
		}
	}
	if delay != nil && !slices.ContainsFunc(t.statePartitions, func(n int32) bool { return fates[n].delay != nil }) {
		g.faults.release(delay)
	}
	return fates, duplicate
}

// markers applies the end markers of a transaction, as the faults let them, and
// calls done once none is left.
func (g *gateway) markers(t endedTxn, done func()) {
	fates, duplicate := g.fates(t)
	if len(fates) == 0 {
		g.plane.transactionEnded(g.ctx, t, done)
		return
	}
	late, hung := []int32{}, []int32{}
	var delay *activeFault
	for _, n := range t.statePartitions {
		switch f := fates[n]; {
		case f.delay != nil:
			delay, late = f.delay, append(late, n)
		case f.hang && !f.drop:
			hung = append(hung, n)
		}
	}
	again := func() {}
	if duplicate != nil {
		again = func() { g.duplicateMarkers(t, duplicate) }
	}
	// What does not come now leaves the transaction prepared, with these
	// partitions.
	waiting := slices.Concat(late, hung)
	slices.Sort(waiting)
	g.txns.awaitsMarkers(t.transactionalID, waiting)
	var left atomic.Int32
	left.Store(3)
	one := func() {
		if left.Add(-1) == 0 {
			done()
			g.plane.logMayHaveGrown()
			again()
		}
	}
	now := t
	now.only = func(n int32) bool { f := fates[n]; return !f.drop && f.delay == nil && !f.hang }
	g.plane.transactionEnded(g.ctx, now, one)
	g.later(t, late, one, func(ctx context.Context) bool { return g.faults.await(ctx, delay, nil) })
	g.later(t, hung, one, func(context.Context) bool { return true })
}

// later applies the markers of some partitions once wait has returned true.
func (g *gateway) later(t endedTxn, partitions []int32, done func(), wait func(context.Context) bool) {
	if len(partitions) == 0 {
		done()
		return
	}
	t.only = func(n int32) bool { return slices.Contains(partitions, n) }
	g.background(func() {
		if wait(g.ctx) {
			g.plane.transactionEnded(g.ctx, t, done)
		}
	})
}

// duplicateMarkers applies markers a second time.
func (g *gateway) duplicateMarkers(t endedTxn, f *activeFault) {
	t.only = func(n int32) bool { return f.StatePartition == nil || *f.StatePartition == n }
	apply := func() { g.plane.transactionEnded(g.ctx, t, func() {}) }
	if f.DurationMs == 0 {
		g.faults.release(f)
		apply()
		return
	}
	g.background(func() {
		if g.faults.await(g.ctx, f, nil) {
			apply()
		}
	})
}

// background runs f unless the gateway is closed.
func (g *gateway) background(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.wg.Go(f)
	}
}
