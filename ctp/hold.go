package ctp

import (
	"context"
	"time"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
)

// Hold is a transaction that is held open before its commit.
type Hold struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	Records         int64 // source offsets that are staged in it
	Until           time.Time
}

// HoldLimit is what a hold has to be shorter than: a commit that comes later
// would leave no margin before the coordinator may abort the transaction.
func HoldLimit(txnTimeout time.Duration) time.Duration {
	began := time.Time{}.Add(txnTimeout) // any time but the zero one, which means none
	deadline, _ := txn.Guard{TxnDeadline: began.Add(txnTimeout), TxnTimeout: txnTimeout}.Deadline()
	return deadline.Sub(began)
}

// hold waits between staging and the commit. What is staged has no acquisition
// lock that runs: it has to be staged in time, and may then stay for longer than
// a lock lasts. What waits behind it is renewed meanwhile.
func (w *worker) hold(ctx context.Context, b *share.Batch, guard txn.Guard) error {
	now := w.opts.Now()
	if err := guard.Check(now); err != nil {
		return err
	}
	id, epoch := w.session.ProducerID()
	w.opts.Holding(Hold{
		TransactionalID: w.id, ProducerID: id, ProducerEpoch: epoch,
		Records: w.session.Staged(), Until: now.Add(w.opts.HoldBeforeCommit),
	})
	end := time.NewTimer(w.opts.HoldBeforeCommit)
	defer end.Stop()
	renew := time.NewTicker(max(b.LockDuration()/2, time.Millisecond))
	defer renew.Stop()
	for {
		select {
		case <-end.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-renew.C:
			if w.noRenew.Load() {
				continue
			}
			if err := w.renew(ctx, new(share.Batch)); err != nil && ctx.Err() == nil {
				w.opts.Warn(err)
				renew.Stop()
			}
		}
	}
}
