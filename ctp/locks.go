package ctp

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kshare/kshare/share"
	"github.com/twmb/franz-go/pkg/kerr"
)

// lockKeeper renews the acquisition locks of a batch while it is transformed,
// and those of the batches that wait behind it, each time half of the lock
// duration has passed. It has to be stopped before records are staged, which
// ends their locks.
type lockKeeper struct {
	timer *time.Timer
	quit  chan struct{}
	done  chan struct{}
}

// keepLocks starts to keep the locks of b, unless that is known not to work.
func (w *worker) keepLocks(ctx context.Context, b *share.Batch) *lockKeeper {
	half := b.LockDuration() / 2
	if half <= 0 || w.noRenew.Load() {
		return &lockKeeper{}
	}
	k := &lockKeeper{quit: make(chan struct{}), done: make(chan struct{})}
	k.timer = time.AfterFunc(b.LockDeadline().Sub(w.opts.Now())-half, func() {
		defer close(k.done)
		for {
			if err := w.renew(ctx, b); err != nil {
				if ctx.Err() == nil {
					w.opts.Warn(err)
				}
				if errors.Is(err, kerr.UnsupportedVersion) {
					w.noRenew.Store(true)
				}
				return
			}
			t := time.NewTimer(half)
			select {
			case <-t.C:
			case <-k.quit:
				t.Stop()
				return
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
	})
	return k
}

// renew renews the locks of b and of what waits behind it, which otherwise would
// be delivered again and again without ever being looked at.
func (w *worker) renew(ctx context.Context, b *share.Batch) error {
	all := &share.Batch{Partitions: slices.Concat(b.Partitions, w.aside.Partitions)}
	if err := w.consumer.Renew(ctx, all); err != nil {
		return err
	}
	return w.consumer.RenewWaiting(ctx)
}

// setAside notes what waits for its turn while a part of the same batch is in work.
func (w *worker) setAside(parts []*share.Batch) {
	w.aside = new(share.Batch)
	for _, p := range parts {
		w.aside.Partitions = append(w.aside.Partitions, p.Partitions...)
	}
}

// freshen renews the locks of a part that has waited, if not much is left of them.
// That it fails is told when the locks are found to have run out.
func (w *worker) freshen(ctx context.Context, b *share.Batch) {
	if !w.noRenew.Load() && w.opts.Now().After(b.LockDeadline().Add(-b.LockDuration()/2)) {
		_ = w.renew(ctx, b)
	}
}

// stop ends the renewing and waits for the one that is under way: to cut it off
// would cost the share session, and everything acquired with it.
func (k *lockKeeper) stop() {
	if k.timer == nil {
		return
	}
	close(k.quit)
	if !k.timer.Stop() {
		<-k.done
	}
}
