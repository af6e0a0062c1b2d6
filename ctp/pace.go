package ctp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kshare/kshare/share"
)

// ErrDrill is why a transaction was aborted that could have been committed.
var ErrDrill = errors.New("aborted to rehearse it")

// drill reports whether the transaction of b is to be aborted all the same.
// Records that were delivered before are left alone: a rehearsal brings none
// nearer to the group's delivery count limit than by one.
func (w *worker) drill(b *share.Batch) bool {
	if w.opts.AbortEvery == 0 {
		return false
	}
	w.ends++
	return w.ends%w.opts.AbortEvery == 0 && mostDeliveries(b) == 1
}

// mostRecords bounds a transaction, and what waits behind it, to what the rate
// allows in a second, and to what the run is to consume: each record that is
// acquired beyond that loses a delivery for nothing.
func (w *worker) mostRecords() int {
	n := w.opts.BatchRecords
	if w.limiter != nil {
		n = min(n, w.limiter.Burst())
	}
	if w.opts.MaxRecords > 0 {
		n = int(min(int64(n), w.opts.MaxRecords))
	}
	return n
}

// throttle waits until n more records are within the rate. What was fetched and
// waits keeps its locks meanwhile.
func (w *worker) throttle(ctx context.Context, n int) error {
	if w.limiter == nil {
		return nil
	}
	now := w.opts.Now()
	wait := w.limiter.ReserveN(now, min(n, w.limiter.Burst())).DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		left := w.consumer.Waiting().LockDuration()
		renew := time.NewTimer(max(left/2, time.Second))
		select {
		case <-end.C:
			renew.Stop()
			return nil
		case <-ctx.Done():
			renew.Stop()
			return context.Cause(ctx)
		case <-renew.C:
			if w.noRenew.Load() || left == 0 {
				continue
			}
			if err := w.consumer.RenewWaiting(ctx); err != nil && ctx.Err() == nil {
				w.opts.Warn(err)
			}
		}
	}
}

// StalledError says that nothing was committed for a while although the group
// has records left, or nobody could be asked whether it has.
type StalledError struct {
	GroupID string
	Topic   string
	For     time.Duration
	Err     error  // why nobody could be asked; nil when there are records
	HeldBy  string // who may have them, as far as that could be found out
}

// Error names the group and the topic.
func (e *StalledError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("nothing was committed for %s, and whether share group %q has records left of topic %q cannot be found out: %v", e.For, e.GroupID, e.Topic, e.Err)
	}
	return fmt.Sprintf("nothing was committed for %s, and share group %q has records left of topic %q", e.For, e.GroupID, e.Topic)
}

// Unwrap returns why nobody could be asked.
func (e *StalledError) Unwrap() error { return e.Err }

// Hint says who may have them.
func (e *StalledError) Hint() string {
	if e.Err != nil {
		return "the cluster does not answer, or not as it should: 'kshare doctor' looks at it"
	}
	return e.HeldBy
}

// done counts the source records that will not come again.
func (r *run) done() int64 { return r.opts.Counts.Consumed.Load() + r.opts.Counts.Gone.Load() }

// beginsLate reports whether what the log has is no sign of records for a group that
// has no start offset yet: it does not begin at the start of the log, and nobody
// here holds any. The start offset is persisted with the first acknowledgement only,
// so on a topic where nothing happens such a group has all of its log behind it.
func (r *run) beginsLate(ctx context.Context) bool {
	if r.working.Load() > 0 || r.got.Load() && r.done() == 0 {
		return false
	}
	reset := r.opts.AutoOffsetReset
	if reset == "" {
		// Kafka's default is latest, also for a principal that may not read it.
		reset, _, _ = r.cl.GroupConfig(ctx, r.opts.GroupID, offsetResetConfig)
	}
	return reset != "earliest"
}

// watch ends the run with *StalledError when it stalls. The function that it
// returns ends the watching.
func (r *run) watch(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	if r.opts.StallTimeout == 0 {
		return func() {}
	}
	ctx, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := r.done()
		tick := time.NewTicker(r.opts.StallTimeout)
		defer tick.Stop()
		unanswered := 0 // in a row
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			now := r.done()
			if now != last {
				last, unanswered = now, 0
				continue
			}
			// An outage may be short, and the group idle: it is asked twice.
			empty, err := groupEmpty(ctx, r.cl, r.opts.GroupID, r.opts.From, r.beginsLate(ctx))
			switch {
			case err != nil:
				unanswered++
			case empty:
				unanswered = 0
			}
			if (err == nil && !empty || unanswered >= 2) && ctx.Err() == nil && r.done() == last {
				stalled := &StalledError{GroupID: r.opts.GroupID, Topic: r.opts.From, For: r.opts.StallTimeout, Err: err}
				if err == nil {
					stalled.HeldBy = r.heldBy(ctx)
				}
				cancel(stalled)
				return
			}
		}
	}()
	return func() {
		end()
		<-done
	}
}
