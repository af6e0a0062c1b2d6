package ctp_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/txn"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A run that is stopped, or fails at a record, costs the records that it held one
// delivery each and no more: the end of a share session counts as one since
// KAFKA-19972. As often as the group's limit allows, nothing is lost.
func TestRunStoppedAgainAndAgain(t *testing.T) {
	stopped := errors.New("stopped")
	ends := map[string]func(stop context.CancelCauseFunc) error{
		"stopped":          func(stop context.CancelCauseFunc) error { stop(stopped); return nil },
		"failed at record": func(context.CancelCauseFunc) error { return stopped },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				bubble(t, dialect, func(e *env) {
					const n = 300
					e.produce(n, plain)
					var consumed int64
					for range deliveryCountLimit - 1 {
						ctx, cancel := context.WithCancelCause(e.t.Context())
						opts := e.options()
						opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
							return []*kgo.Record{r}, end(cancel)
						}
						res, err := ctp.Run(ctx, e.cl, opts)
						cancel(nil)
						if !errors.Is(err, stopped) {
							e.t.Fatalf("Run = %+v, %v; want it to end with %v", res, err, stopped)
						}
						consumed += res.Consumed
					}
					if res := e.run(e.options()); consumed+res.Consumed != n {
						e.t.Errorf("the runs consumed %d and the last one %d, want %d in all", consumed, res.Consumed, n)
					}
					wantEachOnce(e.t, e.committed(), n, nil)
				})
			})
		})
	}
}

// A run that ends with the last delivery of records says so: they are not
// delivered again.
func TestRunWarnsOfLastDeliveries(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 300
			e.produce(n, plain)
			stopped := errors.New("stopped")
			warned := 0
			for i := range deliveryCountLimit {
				ctx, cancel := context.WithCancelCause(e.t.Context())
				opts := e.options()
				opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
					cancel(stopped)
					return []*kgo.Record{r}, nil
				}
				opts.Warn = func(err error) {
					if errors.Is(err, ctp.ErrLastDelivery) {
						warned = i + 1
					}
				}
				res, err := ctp.Run(ctx, e.cl, opts)
				cancel(nil)
				if !errors.Is(err, stopped) {
					e.t.Fatalf("Run = %+v, %v; want it stopped", res, err)
				}
			}
			if warned != deliveryCountLimit {
				e.t.Errorf("warned in run %d, want the last one, %d", warned, deliveryCountLimit)
			}
		})
	})
}

// deliveryCountLimit is the default of group.share.delivery.count.limit.
const deliveryCountLimit = 5

// A run that is told to stop when no broker answers any more ends soon: after 5 s
// for cleaning up, and one that each client waits for its connections to close.
func TestRunStoppedWithSilentBrokers(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			e.produce(100, plain)
			stopped := errors.New("stopped")
			ctx, cancel := context.WithCancelCause(e.t.Context())
			opts := e.options()
			opts.Warn = func(error) {}
			var since time.Time
			opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				if string(r.Key) == "50" {
					everything := func(int16) bool { return true }
					e.lose.Store(&everything)
					since = time.Now()
					cancel(stopped)
				}
				return []*kgo.Record{r}, nil
			}
			res, err := ctp.Run(ctx, e.cl, opts)
			if took := time.Since(since); !errors.Is(err, stopped) || took > 7*time.Second {
				e.t.Errorf("Run = %+v, %v after %s; want it to end with %v within 7 s", res, err, took, stopped)
			}
			e.lose.Store(nil)
		})
	})
}

// A run that is told to stop leaves the group also when the transaction coordinator
// is silent: what this member was assigned has no other reader as long as it is in.
func TestRunStoppedWithSilentCoordinator(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			e.produce(100, plain)
			stopped := errors.New("stopped")
			ctx, cancel := context.WithCancelCause(e.t.Context())
			opts := e.options()
			opts.Warn = func(error) {}
			opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				if string(r.Key) == "50" {
					lose := func(key int16) bool { return key == int16(kmsg.EndTxn) || key == int16(kmsg.DescribeTransactions) }
					e.lose.Store(&lose)
					cancel(stopped)
				}
				return []*kgo.Record{r}, nil
			}
			if res, err := ctp.Run(ctx, e.cl, opts); !errors.Is(err, stopped) {
				e.t.Fatalf("Run = %+v, %v; want it to end with %v", res, err, stopped)
			}
			_, s := e.share()
			if members := len(s.Groups[0].Members); members != 0 || len(s.Sessions) != 0 {
				e.t.Errorf("after the run: %d members, %d share sessions; want none", members, len(s.Sessions))
			}
			e.lose.Store(nil)
		})
	})
}

// A run that is told to stop while it waits for the answer to a commit that no
// broker got says that the outcome is unknown, and not that it was aborted.
func TestRunStoppedWhileCommitting(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			e.produce(10, plain)
			stopped := errors.New("stopped")
			ctx, cancel := context.WithCancelCause(e.t.Context())
			var committing atomic.Bool // kgo writes from many goroutines
			lose := func(key int16) bool {
				if key == int16(kmsg.EndTxn) {
					committing.Store(true)
					cancel(stopped)
				}
				return committing.Load()
			}
			e.lose.Store(&lose)
			opts := e.options()
			opts.Warn = func(error) {}
			res, err := ctp.Run(ctx, e.cl, opts)
			if _, ok := errors.AsType[*txn.OutcomeUnknownError](err); !ok || res.Unknown != 1 || res.Aborted != 0 || res.Consumed != 0 {
				e.t.Errorf("Run = %+v, %v; want an unknown outcome", res, err)
			}
			e.lose.Store(nil)
		})
	})
}
