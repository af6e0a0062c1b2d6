package ctp

import (
	"context"
	"time"

	"github.com/kshare/kshare/share"
)

// lockKeeper renews the acquisition locks of a batch while it is transformed,
// each time half of the lock duration has passed. It has to be stopped before
// records are staged, which ends their locks.
type lockKeeper struct {
	timer  *time.Timer
	cancel context.CancelFunc
	done   chan struct{}
}

// keepLocks starts to keep the locks of b, unless that is known not to work.
func (w *worker) keepLocks(ctx context.Context, b *share.Batch) *lockKeeper {
	half := b.LockDuration() / 2
	if half <= 0 || w.noRenew {
		return &lockKeeper{}
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &lockKeeper{cancel: cancel, done: make(chan struct{})}
	k.timer = time.AfterFunc(b.LockDeadline().Sub(w.opts.Now())-half, func() {
		defer close(k.done)
		for {
			if err := w.consumer.Renew(ctx, b); err != nil {
				if ctx.Err() == nil {
					w.noRenew = true
					w.opts.Warn(err)
				}
				return
			}
			t := time.NewTimer(half)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
	})
	return k
}

// stop ends the renewing and waits until none is under way.
func (k *lockKeeper) stop() {
	if k.timer == nil {
		return
	}
	k.cancel()
	if !k.timer.Stop() {
		<-k.done
	}
}
