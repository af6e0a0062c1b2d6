package ctp_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/sandbox"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// takes is a transform that takes a while for each record.
func takes(d time.Duration) ctp.Transform {
	return func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
		select {
		case <-time.After(d):
			return []*kgo.Record{r}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// A batch takes longer than an acquisition lock lasts, and others wait behind
// it: none of them loses its locks, so every record is delivered once.
func TestRunSlowerThanLocks(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 1200
			e.produce(n, plain)
			opts := e.options()
			opts.BatchRecords = 100
			opts.Transform = takes(400 * time.Millisecond)
			res := e.run(opts)
			if res.Consumed != n || res.Aborted != 0 || res.Released != 0 || res.LockExpired != 0 {
				e.t.Errorf("Run = %+v, want %d consumed, nothing aborted, released or expired", res, n)
			}
			wantEachOnce(e.t, e.committed(), n, nil)
		})
	})
}

// Where locks cannot be renewed, records that wait too long come again. The run
// gives up before the delivery count limit archives any of them unseen.
func TestRunSlowerThanLocksThatCannotBeRenewed(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 1200
			e.produce(n, plain)
			if err := e.cl.SetGroupConfig(e.t.Context(), "g", "share.renew.acknowledge.enable", "false"); err != nil {
				e.t.Fatal(err)
			}
			opts := e.options()
			opts.BatchRecords = 100
			opts.Transform = takes(400 * time.Millisecond)
			ctx, cancel := context.WithTimeout(e.t.Context(), e.limit)
			defer cancel()
			res, err := ctp.Run(ctx, e.cl, opts)
			stuck, ok := errors.AsType[*ctp.StuckError](err)
			if !ok || stuck.Deliveries >= stuck.Limit || res.LockExpired == 0 {
				e.t.Fatalf("Run = %+v, %v; want it to count locks that expire, and to give up before the delivery count limit", res, err)
			}
			opts.BatchRecords = 10
			if second := e.run(opts); res.Consumed+second.Consumed != n {
				e.t.Errorf("runs consumed %d and %d, want %d in all", res.Consumed, second.Consumed, n)
			}
			wantEachOnce(e.t, e.committed(), n, nil)
		})
	})
}

// A transaction that would take longer than its timeout is made smaller.
func TestRunSlowerThanTransactions(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 500
			e.produce(n, plain)
			opts := e.options()
			opts.TxnTimeout = time.Second
			opts.Transform = takes(50 * time.Millisecond)
			res := e.run(opts)
			if res.Consumed != n || res.Aborted == 0 || res.Aborted > 3 {
				e.t.Errorf("Run = %+v, want %d consumed after few aborts", res, n)
			}
			wantEachOnce(e.t, e.committed(), n, nil)

			e.produce(1, plain)
			opts.Transform = takes(time.Hour)
			ctx, cancel := context.WithTimeout(e.t.Context(), e.limit)
			defer cancel()
			res, err := ctp.Run(ctx, e.cl, opts)
			stuck, ok := errors.AsType[*ctp.StuckError](err)
			if !ok || !strings.Contains(stuck.Hint(), "--txn-timeout") || res.Consumed != 0 {
				e.t.Errorf("Run = %+v, %v; want it to give up and name --txn-timeout", res, err)
			}
		})
	})
}

// A cluster that restarts under a run costs the batches that were in flight,
// one of each leader, and nothing more.
func TestRunSurvivesARestartOfTheCluster(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 900
			e.produce(n, plain)
			opts := e.options()
			opts.BatchRecords = 20
			restarted := false
			opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				if string(r.Key) == "450" && !restarted {
					restarted = true
					e.restart(time.Second)
				}
				return []*kgo.Record{r}, nil
			}
			res := e.run(opts)
			if res.Consumed != n || res.Aborted == 0 {
				e.t.Errorf("Run = %+v, want %d consumed, some of it after an abort", res, n)
			}
			wantEachOnce(e.t, e.committed(), n, nil)
			e.wantQuiet()
		}, sandbox.WithDataDir(t.TempDir()))
	})
}

// An idle run sits out an hour without brokers, in few words, and goes on.
func TestRunSitsOutAnOutage(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 100
			e.produce(n/2, plain)
			opts := e.options()
			opts.UntilEmpty, opts.MaxRecords = false, n
			var warnings atomic.Int64
			opts.Warn = func(error) { warnings.Add(1) }
			opts.Counts = new(ctp.Counts)
			var wg sync.WaitGroup
			wg.Go(func() {
				for opts.Counts.Consumed.Load() < n/2 {
					bubbleSleep(time.Second)
				}
				e.restart(time.Hour)
				e.produce(n/2, func(i int) []byte { return plain(n/2 + i) })
			})
			res := e.run(opts)
			wg.Wait()
			if res.Consumed != n || warnings.Load() > 20 {
				e.t.Errorf("Run = %+v with %d warnings, want %d consumed and at most 20 warnings", res, warnings.Load(), n)
			}
			e.wantQuiet()
		}, sandbox.WithDataDir(t.TempDir()))
	})
}

// The destination takes no records, and the producer's buffer is full: the worker
// gives the transaction up when that has to end, says so, and no record is to blame.
func TestRunDestinationTakesNothing(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n, fan = 80, 81 // one record fills the buffer
			e.produce(n, plain)
			lose := func(key int16) bool { return key == int16(kmsg.Produce) }
			e.lose.Store(&lose)
			opts := e.options()
			opts.OnError, opts.MaxAttempts = ctp.Reject, 1
			opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				out := []*kgo.Record{r}
				for len(out) < fan {
					out = append(out, &kgo.Record{Value: r.Value})
				}
				return out, nil
			}
			opts.BatchRecords = n / 2
			began, warned := time.Now(), 0
			opts.Warn = func(err error) {
				if strings.Contains(err.Error(), "has taken no records") {
					warned++
					e.lose.Store(nil)
				}
			}
			res := e.run(opts)
			if took := time.Since(began); warned != 1 || res.Produced != n*fan || res.Rejected != 0 || res.Aborted != 1 || took > 2*time.Minute {
				e.t.Errorf("Run = %+v after %s, %d warnings; want %d produced, one transaction aborted with a warning, none rejected", res, took, warned, n*fan)
			}
		})
	})
}
