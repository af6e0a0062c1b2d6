package ctp_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/sandbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A record that takes longer than its transaction may is given up after
// --max-attempts, in a transaction of its own: all others arrive once, and none
// of them is delivered more than twice.
func TestRunSlowRecordIsIsolated(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		for _, onError := range []ctp.OnError{ctp.Reject, ctp.Fail} {
			t.Run(string(onError), func(t *testing.T) {
				bubble(t, dialect, func(e *env) {
					const n = 200
					slow := func(i int) bool { return i == 77 }
					e.produce(n, plain)
					tried, last := 0, time.Duration(0)
					opts := e.options()
					opts.OnError, opts.MaxAttempts = onError, 3
					opts.BatchRecords = 50
					opts.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
						if string(r.Key) != "77" {
							return []*kgo.Record{r}, nil
						}
						tried++
						start := time.Now()
						<-ctx.Done()
						last = time.Since(start)
						return nil, context.Cause(ctx)
					}
					res, err := ctp.Run(e.t.Context(), e.cl, opts)
					if onError == ctp.Fail {
						if err == nil {
							e.t.Fatalf("Run = %+v, want it to fail", res)
						}
						return
					}
					if err != nil {
						e.t.Fatalf("Run: %v (%+v)", err, res)
					}
					if res.Consumed != n || res.Rejected != 1 || tried != 3 || res.Aborted != 3 {
						e.t.Errorf("Run = %+v after %d tries, want %d consumed, one rejected after 3", res, tried, n)
					}
					if last > opts.TxnTimeout && opts.TxnTimeout > 0 || last > 48*time.Second {
						e.t.Errorf("the last try took %s", last)
					}
					wantEachOnce(e.t, e.committed(), n, slow)
					e.wantQuiet()
				})
			})
		}
	})
}

// Several records that each take longer than a transaction may: while one is tried
// alone, those that wait for their turn behind it keep their locks, and lose no
// delivery to it.
func TestRunSlowRecordsDoNotCostEachOther(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 60
			slow := func(i int) bool { return i%10 == 7 }
			e.produce(n, plain)
			tries := make(map[string]int)
			opts := e.options()
			opts.OnError, opts.MaxAttempts = ctp.Reject, 3
			opts.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				if i, _ := strconv.Atoi(string(r.Key)); !slow(i) {
					return []*kgo.Record{r}, nil
				}
				tries[string(r.Key)]++
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			ctx, cancel := context.WithTimeout(e.t.Context(), e.limit)
			defer cancel()
			res, err := ctp.Run(ctx, e.cl, opts)
			if err != nil {
				e.t.Fatalf("Run: %v (%+v)", err, res)
			}
			if res.Consumed != n || res.Rejected != n/10 || res.LockExpired != 0 {
				e.t.Errorf("Run = %+v, want %d consumed, %d of them rejected, and no lock to expire", res, n, n/10)
			}
			// Deliveries in which another one came first count as tries, but for the last.
			for key, times := range tries {
				if times > opts.MaxAttempts {
					e.t.Errorf("record %s was tried %d times, want at most %d", key, times, opts.MaxAttempts)
				}
			}
			wantEachOnce(e.t, e.committed(), n, slow)
			e.wantQuiet()
		})
	})
}

// Records come no faster than the rate, even if the group holds locks of 30 s.
func TestRunRate(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n, rate = 600, 5
			e.produce(n, plain)
			opts := e.options()
			opts.Rate = rate
			start := time.Now()
			res := e.run(opts)
			took := time.Since(start)
			if least := time.Duration(n/rate-1) * time.Second; took < least || took > 3*least {
				e.t.Errorf("%d records at %d a second took %s", n, rate, took)
			}
			if res.Consumed != n || res.Released != 0 || res.Aborted != 0 {
				e.t.Errorf("Run = %+v, want all %d consumed at the first delivery", res, n)
			}
			wantEachOnce(e.t, e.committed(), n, nil)
		})
	})
}

// A run that gets nothing although the group has records left says so.
func TestRunStalls(t *testing.T) {
	bubble(t, "kip", func(e *env) {
		const n = 50
		e.produce(n, plain)
		release := make(chan struct{})
		other := e.options()
		other.TransactionalID = "other"
		other.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
			select {
			case <-release:
				return []*kgo.Record{r}, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		other.TxnTimeout = 10 * time.Minute
		done := make(chan error, 1)
		go func() {
			_, err := ctp.Run(e.t.Context(), e.cl, other)
			done <- err
		}()
		bubbleSleep(5 * time.Second) // the other member has everything now
		opts := e.options()
		opts.UntilEmpty = false
		opts.StallTimeout = time.Minute
		start := time.Now()
		res, err := ctp.Run(e.t.Context(), e.cl, opts)
		if stalled, ok := errors.AsType[*ctp.StalledError](err); !ok || stalled.GroupID != "g" || res.Consumed != 0 || !strings.HasPrefix(stalled.Hint(), "another member may hold them") {
			e.t.Errorf("Run = %+v, %v; want a StalledError", res, err)
		}
		if took := time.Since(start); took < time.Minute || took > 3*time.Minute {
			e.t.Errorf("it took %s", took)
		}
		close(release)
		if err := <-done; err != nil {
			e.t.Errorf("the other run: %v", err)
		}
		wantEachOnce(e.t, e.committed(), n, nil)
	})
}

// A run that can ask nobody whether the group has records left does not wait for
// ever, and does for a while: an outage may be short.
func TestRunStallsUnanswered(t *testing.T) {
	for name, lasts := range map[string]bool{"short": false, "long": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, "kip", func(e *env) {
				e.produce(10, plain)
				ctx, cancel := context.WithTimeout(e.t.Context(), 4*time.Minute)
				defer cancel()
				time.AfterFunc(50*time.Second, func() {
					lose := func(int16) bool { return true }
					e.lose.Store(&lose)
				})
				if !lasts {
					time.AfterFunc(70*time.Second, func() { e.lose.Store(nil) })
				}
				opts := e.options()
				opts.Warn = func(error) {}
				opts.UntilEmpty = false
				opts.StallTimeout = time.Minute
				res, err := ctp.Run(ctx, e.cl, opts)
				e.lose.Store(nil)
				stalled, ok := errors.AsType[*ctp.StalledError](err)
				if res.Consumed != 10 || ok != lasts || ok && stalled.Err == nil {
					e.t.Errorf("Run = %+v, %v; want a StalledError that says why: %v", res, err, lasts)
				}
			})
		})
	}
}

// A group that has nothing left is no stall.
func TestRunIdleIsNoStall(t *testing.T) {
	bubble(t, "kip", func(e *env) {
		e.produce(10, plain)
		opts := e.options()
		opts.UntilEmpty = false
		opts.StallTimeout = time.Minute
		ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Minute)
		defer cancel()
		if res, err := ctp.Run(ctx, e.cl, opts); !errors.Is(err, context.DeadlineExceeded) || res.Consumed != 10 {
			e.t.Errorf("Run = %+v, %v; want it to run until its end", res, err)
		}
	})
}

// Transactions that are aborted for rehearsal cost nothing but time.
func TestRunDrill(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 500
			e.produce(n, plain)
			drills := 0
			opts := e.options()
			opts.BatchRecords, opts.AbortEvery = 20, 2
			opts.Warn = func(err error) {
				if errors.Is(err, ctp.ErrDrill) {
					drills++
				}
			}
			res := e.run(opts)
			if res.Consumed != n || drills < 5 || int64(drills) != res.Aborted {
				e.t.Errorf("Run = %+v with %d drills, want all %d consumed, and drills", res, drills, n)
			}
			wantEachOnce(e.t, e.committed(), n, nil)
			e.wantQuiet()
		})
	})
}

// With KeepPartition each record has the partition of its source.
func TestRunKeepsPartitions(t *testing.T) {
	bubble(t, "kip", func(e *env) {
		const n = 300
		e.produce(n, plain)
		opts := e.options()
		opts.To = "wide"
		opts.KeepPartition = true
		opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
			return []*kgo.Record{{Key: r.Key, Value: []byte(strconv.Itoa(int(r.Partition)))}}, nil
		}
		e.run(opts)
		got := e.read("wide")
		used := make(map[int32]bool)
		for _, r := range got {
			used[r.Partition] = true
			if string(r.Value) != strconv.Itoa(int(r.Partition)) {
				e.t.Fatalf("a record of partition %s is in partition %d", r.Value, r.Partition)
			}
		}
		wantEachOnce(e.t, got, n, nil)
		if len(used) < 2 {
			e.t.Errorf("only partitions %v were used: that shows nothing", used)
		}

		opts.To, opts.Transform = "out", nil // has fewer partitions than "in"
		if _, err := ctp.Run(e.t.Context(), e.cl, opts); !isOption(err, "--partition") {
			e.t.Errorf("Run = %v, want it to refuse too few partitions", err)
		}
	}, sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 6}, sandbox.Topic{Name: "out", Partitions: 3}, sandbox.Topic{Name: "wide", Partitions: 8}))
}

func isOption(err error, option string) bool {
	e, ok := errors.AsType[*ctp.OptionError](err)
	return ok && e.Option == option
}

// A group that sees uncommitted records is refused, where that was asked for.
func TestRunRequiresReadCommitted(t *testing.T) {
	bubble(t, "kip", func(e *env) {
		e.produce(3, plain)
		opts := e.options()
		opts.IsolationLevel, opts.RequireReadCommitted = "", true
		if _, err := ctp.Run(e.t.Context(), e.cl, opts); err == nil {
			e.t.Error("Run did not refuse")
		} else if r, ok := errors.AsType[*ctp.RefusedError](err); !ok || r.Hint() == "" {
			e.t.Errorf("Run = %v, want a RefusedError with a hint", err)
		}
		opts.IsolationLevel = "read_committed"
		e.run(opts)
	})
}

// A preflight finds what a run would stumble over, and joins nothing.
func TestPreflight(t *testing.T) {
	bubble(t, "kip", func(e *env) {
		opts := e.options()
		checks, err := ctp.Preflight(e.t.Context(), e.cl, opts)
		if err != nil || len(checks) != 5 {
			e.t.Fatalf("Preflight = %+v, %v", checks, err)
		}
		for _, c := range checks {
			if !c.OK || c.Name == "" || c.Detail == "" {
				e.t.Errorf("check %+v", c)
			}
		}
		opts.To, opts.TxnTimeout = "absent", time.Hour
		checks, err = ctp.Preflight(e.t.Context(), e.cl, opts)
		failed := 0
		for _, c := range checks {
			if !c.OK {
				failed++
			}
		}
		if err == nil || failed != 2 || len(checks) != 5 {
			e.t.Errorf("Preflight = %+v, %v; want two failed checks of five", checks, err)
		}
		if _, s := e.share(); len(s.Groups) != 0 || len(s.Sessions) != 0 {
			e.t.Errorf("it has left %+v", s)
		}
	})
}
