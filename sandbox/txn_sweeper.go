package sandbox

import (
	"context"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The timeout of transactions.
//
// Behavior:
//   - an Ongoing transaction is aborted once its timeout has passed: the epoch
//     rises by one, which fences its producer
//   - kfake has a clock of its own, which nothing can stop and which tells
//     nobody what it did. So it is given transaction.max.timeout.ms for each
//     producer, and only a transaction that is let grow as old as that, with the
//     sweeper stopped, is ended by it; the sweeper finds out
//
// Where we differ from a broker:
//   - a broker looks every transaction.abort.timed.out.transaction.cleanup.interval.ms,
//     by default 10 s; we look when the first timeout has passed, and each second

// sweepMost is the longest pause of the sweeper.
const sweepMost = time.Second

// sweepTransactions runs until the gateway is closed.
func (g *gateway) sweepTransactions() {
	timer := time.NewTimer(sweepMost)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-g.ctx.Done():
			return
		}
		timer.Reset(g.sweep(g.ctx))
	}
}

// sweep aborts the transactions that have timed out, and returns when to look
// again.
func (g *gateway) sweep(ctx context.Context) time.Duration {
	pause := sweepMost
	if g.faults.lasts(FaultStopSweeper, func(*Fault) bool { return true }) {
		return pause
	}
	open, err := g.kafka.listTransactions(ctx)
	if err != nil {
		if ctx.Err() == nil {
			g.logf("transaction timeouts: %v", err)
		}
		return pause
	}
	now := time.Now()
	for _, t := range open {
		if left := t.start.Add(g.txns.timeout(t.transactionalID, t.timeout)).Sub(now); left > 0 {
			pause = min(pause, left)
			continue
		}
		if g.sweeps(t.transactionalID) {
			g.timeOut(ctx, t.transactionalID)
		}
	}
	if g.txns.openCount() == 0 {
		return pause
	}
	for _, r := range g.txns.all() {
		if r.State == txnOngoing && (!r.AbortOnly || r.timedOut(now)) && g.sweeps(r.TransactionalID) {
			g.timeOut(ctx, r.TransactionalID)
		}
	}
	return pause
}

// sweeps reports whether no fault keeps the coordinator from looking after a
// transactional ID: it is forgotten, or does not answer.
func (g *gateway) sweeps(transactionalID string) bool {
	hangs := g.faults.lasts(FaultHangCoordinator, func(f *Fault) bool {
		return f.Broker == nil && coordinated{coordinator: CoordinatorTransaction, transactionalIDs: []string{transactionalID}}.selectedBy(f)
	})
	return !hangs && !g.forgotten(transactionalID)
}

// timedOut reports whether the time of a transaction that is in the log alone is
// over.
func (r txnRecord) timedOut(now time.Time) bool {
	return r.TimeoutMs > 0 && now.UnixMilli() >= r.StartMs+int64(r.TimeoutMs)
}

// timeOut aborts a transaction if it has timed out, or takes note that kfake did.
func (g *gateway) timeOut(ctx context.Context, transactionalID string) {
	unlock := g.plane.transactionGuard(transactionalID)
	defer unlock()
	st, known, err := g.kafka.describeTransaction(ctx, transactionalID)
	if err != nil || !known {
		return
	}
	r, _ := g.txns.get(transactionalID)
	now := time.Now()
	current := r.is(st.producerID, st.producerEpoch)
	switch {
	case r.prepared():
		return
	case st.state == txnOngoing && now.Sub(st.start) >= g.txns.timeout(transactionalID, st.timeout):
	case r.State == txnOngoing && !current && st.state != txnOngoing:
		g.logf("transaction %q of producer %d, epoch %d: timed out in kfake", transactionalID, r.ProducerID, r.ProducerEpoch)
		g.aborted(r.ProducerID, r.ProducerEpoch, r.StatePartitions, txnRecord{
			TransactionalID: transactionalID, ProducerID: st.producerID, ProducerEpoch: st.producerEpoch,
			State: txnCompleteAbort, TimeoutMs: r.TimeoutMs,
		})
		return
	case r.AbortOnly && current && r.timedOut(now):
	default:
		return
	}
	g.logf("transaction %q of producer %d, epoch %d: timed out", transactionalID, st.producerID, st.producerEpoch)
	if g.decide(r, st, st.producerEpoch+1, false) != 0 {
		return
	}
	id, epoch, err := g.kafka.fence(ctx, transactionalID, g.longestTxnTimeout())
	if err != nil {
		g.logf("transaction %q: %v", transactionalID, err)
		g.txns.note(r)
		return
	}
	g.aborted(st.producerID, st.producerEpoch, st.statePartitions, txnRecord{
		TransactionalID: transactionalID, ProducerID: id, ProducerEpoch: epoch, State: txnCompleteAbort, TimeoutMs: r.TimeoutMs,
	})
}

// aborted applies the end marker of a transaction that was aborted by its
// coordinator, and then notes what is left.
func (g *gateway) aborted(producerID int64, epoch int16, statePartitions []int32, after txnRecord) {
	g.ended(endedTxn{
		transactionalID: after.TransactionalID, producerID: producerID, markerEpoch: epoch + 1,
		version: int8(wire.TransactionVersion), statePartitions: statePartitions,
	}, func() { g.txns.note(after) })
}

// fence aborts the open transaction of a transactional ID in kfake and raises
// the epoch.
func (b *backend) fence(ctx context.Context, transactionalID string, timeoutMs int32) (int64, int16, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 4, &transactionalID, timeoutMs
	resp, err := call[*kmsg.InitProducerIDResponse](ctx, b.client, b.coordinator(transactionalID), req)
	if err == nil {
		err = codeError(resp.ErrorCode)
	}
	if err != nil {
		return 0, 0, err
	}
	return resp.ProducerID, resp.ProducerEpoch, nil
}
