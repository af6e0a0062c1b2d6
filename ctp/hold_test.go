package ctp_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/txn"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A transaction is held with everything staged and nothing visible, for longer
// than an acquisition lock lasts, and is then committed; what was fetched
// meanwhile and had to wait is not delivered a second time.
func TestRunHoldsBeforeCommit(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n, hold = 300, 40 * time.Second // a lock lasts 30 s
			e.produce(n, plain)
			var holds []ctp.Hold
			opts := e.options()
			opts.BatchRecords = 100
			opts.HoldBeforeCommit = hold
			opts.Holding = func(h ctp.Hold) {
				if pending, _ := e.share(); int64(pending) != h.Records || h.Records == 0 {
					e.t.Errorf("%d records are TX_PENDING while %+v is held", pending, h)
				}
				if left := time.Until(h.Until); left != hold || h.TransactionalID != "kshare-ctp-g-0" || h.ProducerID < 0 {
					e.t.Errorf("%+v is held for %s", h, left)
				}
				holds = append(holds, h)
			}
			start := time.Now()
			res := e.run(opts)
			if res.Consumed != n || res.Released != 0 || res.Aborted != 0 || int(res.Committed) != len(holds) {
				e.t.Errorf("Run = %+v with %d holds, want all %d consumed at the first try", res, len(holds), n)
			}
			if took := time.Since(start); took < time.Duration(len(holds))*hold {
				e.t.Errorf("%d holds took %s", len(holds), took)
			}
			wantEachOnce(e.t, e.committed(), n, nil)
			e.wantQuiet()
		})
	})
}

// Records that are staged later than their locks allow are not held either: they
// may have been delivered to somebody else before.
func TestRunHoldsNothingThatIsLate(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 50
			e.produce(n, plain)
			var ahead atomic.Int64 // of the clock, as for a process that was halted
			holds, late := 0, 0
			opts := e.options()
			opts.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
			opts.HoldBeforeCommit = time.Second
			opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				if string(r.Key) == "7" && late == 0 {
					ahead.Store(int64(25 * time.Second)) // less than a fifth of the lock is left
				}
				return []*kgo.Record{r}, nil
			}
			opts.Holding = func(ctp.Hold) {
				if holds++; ahead.Load() != 0 {
					e.t.Error("a transaction is held whose locks leave no margin")
				}
			}
			opts.Warn = func(err error) {
				if _, ok := errors.AsType[*txn.GuardError](err); ok {
					late++
					ahead.Store(0)
				}
			}
			res := e.run(opts)
			if late != 1 || holds == 0 || res.Aborted != 1 || res.Consumed != n || res.LockExpired == 0 {
				e.t.Errorf("Run = %+v, %d holds, %d of them refused; want one aborted, and all %d consumed", res, holds, late, n)
			}
			wantEachOnce(e.t, e.committed(), n, nil)
		})
	})
}

// A hold ends at once when the run is told to stop, and nothing takes effect.
func TestRunStoppedWhileHolding(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			e.produce(100, plain)
			stopped := errors.New("stopped")
			ctx, cancel := context.WithCancelCause(e.t.Context())
			opts := e.options()
			opts.HoldBeforeCommit = 40 * time.Second
			var since time.Time
			opts.Holding = func(ctp.Hold) {
				since = time.Now()
				cancel(stopped)
			}
			res, err := ctp.Run(ctx, e.cl, opts)
			if took := time.Since(since); !errors.Is(err, stopped) || res.Consumed != 0 || res.Aborted != 1 || took > 2*time.Second {
				e.t.Errorf("Run = %+v, %v after %s; want it stopped and aborted", res, err, took)
			}
			if got := e.committed(); len(got) != 0 {
				e.t.Errorf("%d records are visible, want none", len(got))
			}
			e.wantQuiet()
		})
	})
}

func TestHoldIsBounded(t *testing.T) {
	for _, c := range []struct {
		hold, timeout time.Duration
		guarantee     ctp.Guarantee
		want          string
	}{
		{hold: 48 * time.Second, want: "is 48s, has to be below 48s"},
		{hold: time.Hour, timeout: time.Minute, want: "is 1h0m0s, has to be below 48s: a transaction with a timeout of 1m0s"},
		{hold: 8 * time.Second, timeout: 10 * time.Second, want: "has to be below 8s"},
		{hold: -time.Second, want: "has to be positive"},
		{hold: time.Second, guarantee: ctp.AtLeastOnce, want: "at-least-once stages nothing"},
	} {
		_, err := ctp.Run(t.Context(), nil, ctp.Options{From: "a", To: "b", HoldBeforeCommit: c.hold, TxnTimeout: c.timeout, Guarantee: c.guarantee})
		oerr, ok := errors.AsType[*ctp.OptionError](err)
		if !ok || oerr.Option != "--hold-before-commit" || !strings.Contains(oerr.Reason, c.want) {
			t.Errorf("hold %s of %s with %q: %v, want %q", c.hold, c.timeout, c.guarantee, err, c.want)
		}
	}
}
