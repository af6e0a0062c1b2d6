package ctp_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/sandbox"
)

// A run that has had nothing to do for so long that its coordinator has forgotten
// the transactional ID (transactional.id.expiration.ms) takes it anew, and goes on:
// nobody else has it.
func TestRunWhoseTransactionalIDExpires(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 40
			e.produce(n, plain)
			done := errors.New("all is done")
			ctx, cancel := context.WithCancelCause(e.t.Context())
			defer cancel(nil)
			opts := e.options()
			opts.UntilEmpty, opts.Counts = false, new(ctp.Counts)
			reach := func(n int64) {
				for opts.Counts.Consumed.Load() < n && ctx.Err() == nil {
					bubbleSleep(time.Second)
				}
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				reach(n)
				if _, err := e.sb.InjectFault(ctx, sandbox.Fault{Kind: sandbox.FaultForgetTransaction, TransactionalID: "kshare-ctp-g-0"}); err != nil {
					e.t.Error(err)
				}
				e.produce(n, plain)
				reach(2 * n)
				cancel(done)
			})
			res, err := ctp.Run(ctx, e.cl, opts)
			cancel(nil)
			wg.Wait()
			if !errors.Is(err, done) || res.Consumed != 2*n || res.Unknown != 0 {
				e.t.Errorf("Run = %+v, %v; want all of %d consumed", res, err, 2*n)
			}
			if got := e.committed(); len(got) != 2*n {
				e.t.Errorf("%d records are at the destination, want %d", len(got), 2*n)
			}
			e.wantQuiet()
		})
	})
}
