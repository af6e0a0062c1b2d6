package ctp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// endOf reads an EndTxn off the network; ok says whether it is one.
func endOf(frame []byte) (commit, ok bool) {
	const length, correlation = 4, 4
	key, version := int16(binary.BigEndian.Uint16(frame[length:])), int16(binary.BigEndian.Uint16(frame[length+2:]))
	if key != int16(kmsg.EndTxn) {
		return false, false
	}
	b := frame[length+4+correlation:]
	b = b[2+binary.BigEndian.Uint16(b):] // the client ID
	req := kmsg.NewPtrEndTxnRequest()
	req.SetVersion(version)
	if req.IsFlexible() {
		b = b[1:] // no tags
	}
	if err := req.ReadFrom(b); err != nil {
		return false, false
	}
	return req.Commit, true
}

// breaks makes the connection break at the first EndTxn that commits, or the first
// that aborts. With silent nobody answers after that, until the fate is taken away.
func (e *env) breaks(commit bool, f fate, silent bool) (broken *atomic.Bool) {
	broken = new(atomic.Bool)
	do := func(_ string, frame []byte) fate {
		c, ok := endOf(frame)
		switch {
		case ok && c == commit && broken.CompareAndSwap(false, true):
			return f
		case silent && broken.Load():
			return cutBefore
		}
		return arrives
	}
	e.fate.Store(&do)
	return broken
}

func refuse(context.Context, *kgo.Record) ([]*kgo.Record, error) { return nil, errors.New("refused") }

// eachEnd runs a test for transactions with records and acknowledgements, and with
// acknowledgements alone, for a connection that breaks before and after the
// coordinator has handled the end of one.
func eachEnd(t *testing.T, do func(e *env, opts ctp.Options, f fate)) {
	for name, change := range map[string]func(*ctp.Options){
		"records":                func(*ctp.Options) {},
		"acknowledgements alone": func(o *ctp.Options) { o.Transform, o.OnError = refuse, ctp.Reject },
	} {
		for fname, f := range map[string]fate{"cut before": cutBefore, "cut after": cutAfter} {
			t.Run(name+"/"+fname, func(t *testing.T) {
				eachDialect(t, func(t *testing.T, dialect string) {
					bubble(t, dialect, func(e *env) {
						opts := e.options()
						opts.BatchRecords = 10
						change(&opts)
						do(e, opts, f)
						e.fate.Store(nil)
					})
				})
			})
		}
	}
}

// wantOutcome fails unless runs have consumed n records in all, and the
// destination has those once that they have not rejected.
func (e *env) wantOutcome(n int64, runs ...*ctp.Result) {
	e.t.Helper()
	var consumed, produced int64
	for _, r := range runs {
		consumed, produced = consumed+r.Consumed, produced+r.Produced
	}
	if consumed != n {
		e.t.Errorf("the runs count %d consumed, want %d", consumed, n)
	}
	if got := e.committed(); int64(len(got)) != produced {
		e.t.Errorf("%d records are at the destination, the runs count %d", len(got), produced)
	} else if produced > 0 {
		wantEachOnce(e.t, got, int(n), nil)
	}
	e.wantQuiet()
}

// A connection that breaks at a commit is looked into: it is a commit, and counted
// once.
func TestRunCommitIsCut(t *testing.T) {
	eachEnd(t, func(e *env, opts ctp.Options, f fate) {
		const n = 60
		e.produce(n, plain)
		broken := e.breaks(true, f, false)
		res := e.run(opts)
		if res.Aborted != 0 || res.Unknown != 0 || !broken.Load() {
			e.t.Errorf("Run = %+v, want commits alone", res)
		}
		e.fate.Store(nil)
		e.wantOutcome(n, res)
	})
}

// A connection that breaks at an abort, and then nobody answers for a while: it is
// an abort, and what was aborted comes again.
func TestRunAbortIsCut(t *testing.T) {
	for _, silent := range []bool{false, true} {
		eachEnd(t, func(e *env, opts ctp.Options, f fate) {
			const n = 60
			e.produce(n, plain)
			opts.AbortEvery = 3
			opts.Warn = func(error) {}
			broken := e.breaks(false, f, silent)
			var over atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for !broken.Load() && !over.Load() {
					bubbleSleep(10 * time.Millisecond)
				}
				bubbleSleep(20 * time.Second)
				e.fate.Store(nil)
			})
			res := e.run(opts)
			over.Store(true)
			wg.Wait()
			if res.Aborted == 0 || res.Unknown != 0 || !broken.Load() {
				e.t.Errorf("Run = %+v, want some transactions aborted and none unknown", res)
			}
			e.wantOutcome(n, res)
		})
	}
}

// A connection that breaks at a commit, and then nobody answers: the outcome is
// unknown, and the batch is not counted. The next run does what is left.
func TestRunCommitIsUnknown(t *testing.T) {
	eachEnd(t, func(e *env, opts ctp.Options, f fate) {
		const n = 60
		e.produce(n, plain)
		opts.Warn = func(error) {}
		counts := new(ctp.Counts)
		opts.Counts = counts
		e.breaks(true, f, true)
		res, err := ctp.Run(e.t.Context(), e.cl, opts)
		unknown, ok := errors.AsType[*txn.OutcomeUnknownError](err)
		if !ok || res.Unknown != 1 || res.Committed != 0 || res.Consumed != 0 || res.Produced != 0 || res.Aborted != 0 || unknown.Records == 0 {
			e.t.Fatalf("Run = %+v, %v; want an unknown outcome, and nothing counted", res, err)
		}
		e.fate.Store(nil)
		opts.Counts = nil
		second := e.run(opts)
		// What was unknown has been the one or the other, with all that it held.
		if f == cutAfter {
			res.Consumed, res.Produced = unknown.Records, unknown.Produced
		}
		e.wantOutcome(n, res, second)
	})
}

// Where a broker has no room for another share session, a run waits for it, in few
// words and few requests, and with no transaction open.
func TestRunWaitsForAShareSession(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 20
			e.produce(n, plain)
			key := int16(kmsg.ShareFetch)
			if _, err := e.sb.InjectFault(e.t.Context(), sandbox.Fault{Kind: sandbox.FaultAnswerError, APIKey: &key, Error: kerr.ShareSessionLimitReached.Message}); err != nil {
				e.t.Fatal(err)
			}
			var fetches, others atomic.Int64
			do := func(_ string, frame []byte) fate {
				switch kmsg.Key(binary.BigEndian.Uint16(frame[4:])) {
				case kmsg.ShareFetch:
					fetches.Add(1)
				case kmsg.Produce, kmsg.EndTxn, kmsg.AddPartitionsToTxn:
					others.Add(1)
				}
				return arrives
			}
			e.fate.Store(&do)
			var mu sync.Mutex
			var warned []string
			opts := e.options()
			opts.UntilEmpty, opts.MaxRecords = false, n
			opts.Warn = func(err error) {
				mu.Lock()
				defer mu.Unlock()
				warned = append(warned, err.Error())
			}
			ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Minute+time.Second)
			defer cancel()
			res, err := ctp.Run(ctx, e.cl, opts)
			if !errors.Is(err, context.DeadlineExceeded) || others.Load() > 0 || fetches.Load() > 3*60 {
				e.t.Errorf("Run = %+v, %v after %d fetches and %d requests of transactions; want the deadline after few and none", res, err, fetches.Load(), others.Load())
			}
			if len(warned) < 5 || len(warned) > 6 || !strings.Contains(warned[0], "group.share.max.share.sessions") {
				e.t.Errorf("warned %q, want one line a minute with the name of the limit", warned)
			}
			e.sb.ClearFaults()
			if res := e.run(opts); res.Consumed != n {
				e.t.Errorf("Run = %+v once there is room, want %d consumed", res, n)
			}
		})
	})
}

// A commit meets the abort by its own coordinator, which answers in the one way or
// the other: the batch is aborted, and comes again.
func TestRunCommitsTooLate(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.InvalidTxnState, kerr.ProducerFenced} {
		t.Run(code.Message, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				bubble(t, dialect, func(e *env) {
					const n = 20
					e.produce(n, plain)
					key := int16(kmsg.EndTxn)
					if _, err := e.sb.InjectFault(e.t.Context(), sandbox.Fault{Kind: sandbox.FaultAnswerError, APIKey: &key, Error: code.Message, Count: 1}); err != nil {
						e.t.Fatal(err)
					}
					var late atomic.Bool // our clock stands still until then: the commit is sent in time
					start := time.Now()
					do := func(_ string, frame []byte) fate {
						if commit, ok := endOf(frame); ok && commit {
							late.Store(true)
						}
						return arrives
					}
					e.fate.Store(&do)
					opts := e.options()
					opts.Now = func() time.Time {
						if late.Load() {
							return time.Now()
						}
						return start
					}
					opts.TxnTimeout, opts.HoldBeforeCommit = 5*time.Second, time.Second
					opts.Holding = func(ctp.Hold) {
						if !late.Load() {
							bubbleSleep(time.Minute)
						}
					}
					res := e.run(opts)
					if res.Aborted != 1 || res.Unknown != 0 {
						e.t.Errorf("Run = %+v, want one transaction aborted", res)
					}
					e.fate.Store(nil)
					e.wantOutcome(n, res)
				})
			})
		})
	}
}

// A commit that got lost arrives when its repetition was refused and the abort is
// under way: it has won, and the batch is counted.
func TestRunCommitArrivesBeforeTheAbort(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 20
			e.produce(n, plain)
			key := int16(kmsg.EndTxn)
			if _, err := e.sb.InjectFault(e.t.Context(), sandbox.Fault{Kind: sandbox.FaultAnswerError, APIKey: &key, Error: kerr.InvalidTxnState.Message, Count: 1}); err != nil {
				e.t.Fatal(err)
			}
			var mu sync.Mutex
			var late []byte // the first commit
			asked := 0
			do := func(address string, frame []byte) fate {
				mu.Lock()
				defer mu.Unlock()
				commit, ok := endOf(frame)
				switch {
				case ok && commit && late == nil:
					late = slices.Clone(frame)
					return cutBefore
				case int16(binary.BigEndian.Uint16(frame[4:])) == int16(kmsg.DescribeTransactions) && late != nil:
					// The commit asks what became of it, and then the abort does.
					if asked++; asked == 2 {
						e.deliver(address, late)
					}
				}
				return arrives
			}
			e.fate.Store(&do)
			var warned []error
			opts := e.options()
			opts.Warn = func(err error) { warned = append(warned, err) }
			res := e.run(opts)
			if res.Unknown != 0 || res.Aborted != 0 || asked < 2 || len(warned) > 0 {
				e.t.Errorf("Run = %+v with warnings %v, asked %d times; want commits alone", res, warned, asked)
			}
			e.fate.Store(nil)
			e.wantOutcome(n, res)
		})
	})
}

// The only records that are left are staged in a transaction that could not be
// aborted. Nobody else gets them back: the worker does, and does not wait until the
// transaction times out.
func TestRunAbortsInTheEnd(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 2
			e.produce(n, plain)
			var broken atomic.Bool
			silent := func(_ string, frame []byte) fate {
				commit, end := endOf(frame)
				broken.Store(broken.Load() || end && !commit)
				if broken.Load() && (end || binary.BigEndian.Uint16(frame[4:]) == uint16(kmsg.DescribeTransactions)) {
					return cutBefore
				}
				return arrives
			}
			e.fate.Store(&silent)
			opts := e.options()
			opts.BatchRecords, opts.AbortEvery = 1, n
			var failed time.Time
			opts.Warn = func(err error) {
				if strings.HasPrefix(err.Error(), "abort: ") && failed.IsZero() {
					failed = time.Now()
					e.fate.Store(nil)
				}
			}
			res := e.run(opts)
			if took := time.Since(failed); !broken.Load() || failed.IsZero() || took > 10*time.Second {
				e.t.Errorf("Run = %+v %s after an abort failed, want it within 10 s", res, took)
			}
			e.wantOutcome(n, res)
		})
	})
}

// deliver sends a request over a connection of its own, and waits for its answer.
func (e *env) deliver(address string, frame []byte) {
	e.t.Helper()
	conn, err := e.network(e.t.Context(), "tcp", address)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write(frame); err != nil {
		e.t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 4)); err != nil {
		e.t.Fatal(err)
	}
}

// While a batch is transformed its records become available once more, and are
// fetched again before it is staged: what is staged is then what the later delivery
// holds, and an abort takes that away from it. No record is committed twice, be it
// with the share session, or within it: leaders lose their state, or locks run out
// before their time.
func TestRunSupersededWhileTransforming(t *testing.T) {
	inject := func(kind sandbox.FaultKind) func(e *env) error {
		return func(e *env) error {
			_, err := e.sb.InjectFault(e.t.Context(), sandbox.Fault{Kind: kind, Topic: "in"})
			return err
		}
	}
	for name, lose := range map[string]func(e *env) error{
		"share sessions": func(e *env) error {
			_, s := e.share()
			return closeSessions(e.t.Context(), e.client(), s.Groups[0].Members[0].MemberID)
		},
		"state of leaders":  inject(sandbox.FaultCrashLeader),
		"acquisition locks": inject(sandbox.FaultExpireLocks),
	} {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				bubble(t, dialect, func(e *env) {
					const n = 60
					e.produce(n, plain)
					opts := e.options()
					lost := false
					opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
						if !lost {
							lost = true
							if err := lose(e); err != nil {
								return nil, err
							}
						}
						bubbleSleep(100 * time.Millisecond) // everything is fetched that there is
						return []*kgo.Record{r}, nil
					}
					res := e.run(opts)
					if res.Aborted == 0 {
						e.t.Errorf("Run = %+v, want what was superseded to be aborted", res)
					}
					e.wantOutcome(n, res)
				})
			})
		})
	}
}
