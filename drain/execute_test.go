package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// world is a cluster as a test tells of it, in virtual time.
type world struct {
	mu  sync.Mutex
	now time.Time
	// see is what a look sees.
	see func(w *world) (Observation, error)
	// fence and mark are what acts do; nil succeeds.
	fence, mark func(ctx context.Context, s Step) error
	gauge       func(w *world) *Gauge // nil: metrics are not read

	looks int
	acts  []string // in order
	watch []string // of the last look
	told  []Progress
}

func (w *world) Now() time.Time { return w.now }

func (w *world) Wait(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.now = w.now.Add(d)
	return nil
}

func (w *world) Observe(_ context.Context, watch []string) (Observation, error) {
	w.looks++
	w.watch = watch
	o, err := w.see(w)
	if o.Evidence != nil {
		o.Evidence.Time = w.now
	}
	if w.gauge != nil {
		o.Gauge = w.gauge(w)
	}
	return o, err
}

func (w *world) act(ctx context.Context, s Step, do func(context.Context, Step) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acts = append(w.acts, string(s.Action)+" "+s.Name())
	if do == nil {
		return nil
	}
	return do(ctx, s)
}

func (w *world) Fence(ctx context.Context, s Step) error        { return w.act(ctx, s, w.fence) }
func (w *world) WriteMarkers(ctx context.Context, s Step) error { return w.act(ctx, s, w.mark) }

// ago is how long after the beginning a look is.
func (w *world) ago() time.Duration { return w.now.Sub(t0) }

// drain plans from what the world shows first, and executes the plan.
func (w *world) drain(ctx context.Context, t *testing.T, o Options) (*Result, error) {
	t.Helper()
	w.now = t0
	first, err := w.Observe(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPlan(first.Evidence, o, w.now)
	if err != nil {
		t.Fatal(err)
	}
	return p.Execute(ctx, Execution{
		Observer: w, Actor: w, Clock: w,
		Progress: func(p Progress) { w.told = append(w.told, p) },
	})
}

// shows makes a world that shows evidence.
func shows(see func(w *world) *inspect.Evidence) *world {
	return &world{see: func(w *world) (Observation, error) { return Observation{Evidence: see(w)}, nil }}
}

func persisted(ev *inspect.Evidence) { ev.Persists = true }

// began is holding, of a transaction that began at a time after t0.
func began(id string, producerID int64, epoch int16, state string, at time.Duration, timeout int32) inspect.Transaction {
	return holding(id, producerID, epoch, state, 0, -at, timeout)
}

func TestExecute(t *testing.T) {
	billing := began("billing-1", 7, 3, "Ongoing", -20*time.Second, 60_000)
	twoPhase := began("flink-1", 8, 0, "Ongoing", -time.Hour, inspect.TwoPhaseTimeoutMS)
	for name, c := range map[string]struct {
		see    func(w *world) *inspect.Evidence
		gauge  func(w *world) *Gauge
		o      Options
		fence  func(context.Context, Step) error
		mark   func(context.Context, Step) error
		status Status
		reason string        // part of it
		after  time.Duration // when it ends
		acts   []string
		failed string // type of the error; "" is none
		check  func(t *testing.T, w *world, r *Result)
	}{
		"drained over a quiet period": {
			see:    func(*world) *inspect.Evidence { return evidence(persisted) },
			status: StatusDrained, reason: "nothing was pending in 4 looks in a row over 6s", after: 6 * time.Second,
		},
		"drained over a long one where pending may be in memory": {
			see:    func(*world) *inspect.Evidence { return evidence() },
			status: StatusDrained, reason: "in 36 looks in a row over 1m10s", after: 70 * time.Second,
		},
		"may be in memory, and is not known": {
			see:    func(*world) *inspect.Evidence { return evidence(group("g", 0), group("h", 1)) },
			status: StatusUnknown, reason: "2 share-partitions are not done and may hold records in the memory of a leader, whose end marker was lost: g/orders-0, h/orders-1",
			after: 70 * time.Second, failed: "*drain.NotDrainedError",
		},
		"may be in memory, out of scope": {
			see: func(*world) *inspect.Evidence { return evidence(group("g", 0)) }, o: Options{Groups: []string{"h"}},
			status: StatusDrained, after: 70 * time.Second,
		},
		"may be in memory, of another topic": {
			see: func(*world) *inspect.Evidence { return evidence(group("g", 0)) }, o: Options{Topics: []string{"other"}},
			status: StatusDrained, after: 70 * time.Second,
		},
		"metrics of every broker say that nothing is in memory": {
			see:    func(*world) *inspect.Evidence { return evidence(group("g", 0), brokers(2)) },
			gauge:  func(*world) *Gauge { return &Gauge{Brokers: 2} },
			status: StatusDrained, after: 70 * time.Second,
		},
		"metrics of one broker do not": {
			see:    func(*world) *inspect.Evidence { return evidence(group("g", 0), brokers(2)) },
			gauge:  func(*world) *Gauge { return &Gauge{Brokers: 1} },
			status: StatusUnknown, reason: "g/orders-0", after: 70 * time.Second, failed: "*drain.NotDrainedError",
		},
		"metrics count what no transaction holds": {
			see:   func(*world) *inspect.Evidence { return evidence(group("g", 0), brokers(2)) },
			gauge: func(w *world) *Gauge { return &Gauge{Brokers: 2, Records: 3} }, o: Options{Timeout: 20 * time.Second},
			status: StatusTimedOut, reason: "3 records are in TX_PENDING by the metrics of brokers, and no transaction holds them", after: 20 * time.Second, failed: "*drain.TimeoutError",
		},
		"metrics know no scope": {
			see: func(*world) *inspect.Evidence { return evidence(persisted, brokers(2)) }, o: Options{Groups: []string{"g"}},
			gauge:  func(w *world) *Gauge { return &Gauge{Brokers: 2, Records: 3} },
			status: StatusDrained, after: 6 * time.Second,
		},
		"may be in memory, accepted": {
			see: func(*world) *inspect.Evidence { return evidence(group("g", 0)) }, o: Options{AcceptMemory: true},
			status: StatusDrained, after: 70 * time.Second,
			check: func(t *testing.T, _ *world, r *Result) {
				if !slices.Equal(r.InMemory, []string{"g/orders-0"}) || len(r.Warnings) != 1 {
					t.Errorf("in memory %q, warnings %q", r.InMemory, r.Warnings)
				}
			},
		},
		"done, so nothing is in memory": {
			see: func(*world) *inspect.Evidence {
				ev := evidence(group("g", 0))
				ev.Groups[0].Partitions[0].Lag = 0
				return ev
			},
			status: StatusDrained, after: 70 * time.Second,
		},
		"written down, so nothing is in memory": {
			see:    func(*world) *inspect.Evidence { return evidence(persisted, group("g", 0)) },
			status: StatusDrained, after: 6 * time.Second,
		},
		"a short one once it is seen that pending is written down": {
			see: func(w *world) *inspect.Evidence {
				if w.looks == 2 {
					return evidence(persisted)
				}
				return evidence()
			},
			status: StatusDrained, after: 6 * time.Second,
		},
		"three looks at least": {
			see: func(*world) *inspect.Evidence { return evidence() }, o: Options{QuietPeriod: time.Millisecond},
			status: StatusDrained, reason: "in 3 looks", after: 4 * time.Second,
		},
		"transactions without share acknowledgements are waited for": {
			see: func(w *world) *inspect.Evidence {
				ev := evidence(func(ev *inspect.Evidence) { ev.Support.Verdict = cluster.NotSupported })
				if w.ago() < 45*time.Second {
					ev.Transactions = []inspect.Transaction{{
						TransactionalID: "shipping-1", State: "Ongoing", ProducerID: 8, TimeoutMS: 60_000, Started: t0.Add(-20 * time.Second),
						Partitions: []inspect.TopicPartitions{{Topic: "shipped", Partitions: []int32{0}}},
					}}
				}
				return ev
			},
			o:      Options{AllTransactions: true},
			status: StatusDrained, reason: "nothing was pending in 4 looks", after: 52 * time.Second,
		},
		"and named when they stay": {
			see: func(w *world) *inspect.Evidence {
				return evidence(func(ev *inspect.Evidence) { ev.Support.Verdict = cluster.NotSupported }, func(ev *inspect.Evidence) {
					ev.Transactions = []inspect.Transaction{{
						TransactionalID: "shipping-1", State: "Ongoing", ProducerID: 8, TimeoutMS: 60_000, Started: w.now,
						Partitions: []inspect.TopicPartitions{{Topic: "shipped", Partitions: []int32{0}}},
					}}
				})
			},
			o:      Options{AllTransactions: true, Timeout: 10 * time.Second},
			status: StatusTimedOut, reason: `still open: "shipping-1"; producers still running: "shipping-1"`, after: 10 * time.Second, failed: "*drain.TimeoutError",
		},
		"released Kafka has nothing to drain": {
			see: func(*world) *inspect.Evidence {
				return evidence(func(ev *inspect.Evidence) { ev.Support.Verdict = cluster.NotSupported })
			},
			status: StatusDrained, after: 0,
		},
		"waits for a timeout": {
			see: func(w *world) *inspect.Evidence {
				if w.ago() < 45*time.Second {
					return evidence(with(billing), staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			status: StatusDrained, after: 52 * time.Second,
			check: func(t *testing.T, w *world, r *Result) {
				if len(r.Running) > 0 || len(r.Pending.Rows) > 0 || r.Records > 0 {
					t.Errorf("running %v, survivors %v", r.Running, r.Pending.Rows)
				}
				if p := w.told[0]; p.Records != 5 || p.Holders != 1 || !p.NextDeadline.Equal(t0.Add(50*time.Second)) || p.Clean {
					t.Errorf("told first %+v", p)
				}
				if p := w.told[len(w.told)-1]; p.Records != 0 || !p.Clean || p.Quiet != 6*time.Second || p.QuietPeriod != 5*time.Second {
					t.Errorf("told last %+v", p)
				}
			},
		},
		"pending again begins the quiet period anew": {
			see: func(w *world) *inspect.Evidence {
				if w.ago() == 4*time.Second {
					return evidence(with(billing), staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			status: StatusDrained, reason: "over 6s", after: 12 * time.Second,
		},
		"a producer that keeps staging": {
			see: func(w *world) *inspect.Evidence {
				n := int16(w.looks)
				return evidence(with(began("billing-1", 7, n, "Ongoing", w.ago()-time.Second, 60_000)), staged("g", 7, n, 5))
			},
			o:      Options{Timeout: 30 * time.Second},
			status: StatusTimedOut, reason: `5 records are still held by "billing-1"; producers still running: "billing-1"`, after: 30 * time.Second,
			failed: "*drain.TimeoutError",
			check: func(t *testing.T, _ *world, r *Result) {
				if len(r.Pending.Rows) != 1 || len(r.Running) != 1 || r.Running[0].Seen != 15 || r.Running[0].ProducerID != 7 {
					t.Errorf("survivors %v, running %+v", r.Pending.Rows, r.Running)
				}
			},
		},
		"a transaction that is being ended is no new one": {
			see: func(w *world) *inspect.Evidence {
				switch w.looks {
				case 1:
					return evidence(with(billing), staged("g", 7, 3, 5))
				case 2:
					ending := billing
					ending.State, ending.ProducerEpoch = "PrepareCommit", 4
					return evidence(with(ending), staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			status: StatusDrained, after: 10 * time.Second,
			check: func(t *testing.T, _ *world, r *Result) {
				if len(r.Running) > 0 {
					t.Errorf("running %v", r.Running)
				}
			},
		},
		"hidden by access control": {
			see:    func(*world) *inspect.Evidence { return evidence(gap(hidden())) },
			status: StatusUnknown, failed: "*drain.NotDrainedError", after: 0,
		},
		"a broker that comes back": {
			see: func(w *world) *inspect.Evidence {
				if w.looks < 4 {
					return evidence(persisted, gap(silent()))
				}
				return evidence(persisted)
			},
			status: StatusDrained, after: 12 * time.Second,
		},
		"a broker that does not": {
			see:    func(*world) *inspect.Evidence { return evidence(persisted, gap(silent())) },
			status: StatusUnknown, reason: "time is up, and", after: 35 * time.Second, failed: "*drain.NotDrainedError",
		},
		"a two-phase commit is not waited for": {
			see:    func(*world) *inspect.Evidence { return evidence(with(twoPhase), staged("g", 8, 0, 5)) },
			status: StatusPending, reason: `"flink-1": it is part of a two-phase commit`, after: 4 * time.Second, failed: "*drain.NotDrainedError",
		},
		"others are, beside it": {
			see: func(w *world) *inspect.Evidence {
				if w.ago() < 45*time.Second {
					return evidence(with(twoPhase, billing), staged("g", 8, 0, 5), staged("g", 7, 3, 1))
				}
				return evidence(with(twoPhase), staged("g", 8, 0, 5))
			},
			status: StatusPending, after: 50 * time.Second, failed: "*drain.NotDrainedError",
			check: func(t *testing.T, _ *world, r *Result) {
				if len(r.Pending.Rows) != 1 || *r.Pending.Rows[0].TransactionalID != "flink-1" {
					t.Errorf("survivors %v", r.Pending.Rows)
				}
			},
		},
		"a two-phase commit that ends in time": {
			see: func(w *world) *inspect.Evidence {
				if w.looks < 3 {
					return evidence(with(twoPhase), staged("g", 8, 0, 5))
				}
				return evidence(persisted)
			},
			status: StatusDrained, after: 10 * time.Second,
		},
		"fences once": {
			see: func(w *world) *inspect.Evidence {
				if len(w.acts) == 0 {
					return evidence(with(billing), staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			o: Options{FenceAll: true}, acts: []string{`fence "billing-1"`},
			status: StatusDrained, after: 6 * time.Second,
			check: func(t *testing.T, _ *world, r *Result) {
				if len(r.Acts) != 1 || r.Acts[0].Status != ActDone {
					t.Errorf("acts %+v", r.Acts)
				}
			},
		},
		"does not fence who begins anew": {
			see: func(w *world) *inspect.Evidence {
				if w.looks == 1 {
					return evidence(with(billing), staged("g", 7, 3, 5))
				}
				return evidence(with(began("billing-1", 7, 6, "Ongoing", time.Second, 60_000)), staged("g", 7, 6, 5))
			},
			o: Options{FenceAll: true, Timeout: 10 * time.Second}, acts: []string{`fence "billing-1"`},
			status: StatusTimedOut, reason: `producers still running: "billing-1"`, after: 10 * time.Second, failed: "*drain.TimeoutError",
		},
		"what had ended needs no fencing": {
			see: func(w *world) *inspect.Evidence {
				if w.looks == 1 {
					return evidence(with(billing), staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			o: Options{FenceAll: true}, acts: []string{`fence "billing-1"`}, fence: func(context.Context, Step) error { return ErrEnded },
			status: StatusDrained, after: 6 * time.Second,
			check: func(t *testing.T, _ *world, r *Result) {
				if r.Acts[0].Status != ActEnded || r.Acts[0].Error != nil {
					t.Errorf("acts %+v", r.Acts)
				}
			},
		},
		"what cannot be fenced is waited for": {
			see: func(w *world) *inspect.Evidence {
				if w.ago() < 45*time.Second {
					return evidence(with(billing), staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			o: Options{FenceAll: true}, acts: []string{`fence "billing-1"`},
			fence:  func(context.Context, Step) error { return kerr.TransactionalIDAuthorizationFailed },
			status: StatusDrained, after: 52 * time.Second,
			check: func(t *testing.T, _ *world, r *Result) {
				if r.Acts[0].Status != ActFailed || !slices.Equal(r.Warnings, []string{kerr.TransactionalIDAuthorizationFailed.Error()}) {
					t.Errorf("acts %+v, warnings %q", r.Acts, r.Warnings)
				}
			},
		},
		"denied, and nothing ends it": {
			see: func(*world) *inspect.Evidence { return evidence(with(twoPhase), staged("g", 8, 0, 5)) },
			o:   Options{Fence: []string{"flink-1"}}, acts: []string{`fence "flink-1"`},
			fence: func(context.Context, Step) error {
				return &cluster.AuthError{Err: kerr.TransactionalIDAuthorizationFailed}
			},
			status: StatusPending, after: 4 * time.Second, failed: "*drain.ActError",
		},
		"one fenced, one not": {
			see: func(w *world) *inspect.Evidence {
				if len(w.acts) == 0 {
					return evidence(with(twoPhase, billing), staged("g", 8, 0, 5), staged("g", 7, 3, 5))
				}
				return evidence(with(twoPhase), staged("g", 8, 0, 5))
			},
			o: Options{Fence: []string{"flink-1", "billing-1"}}, acts: []string{`fence "billing-1"`, `fence "flink-1"`},
			fence: func(_ context.Context, s Step) error {
				if s.TwoPhase {
					return kerr.TransactionalIDAuthorizationFailed
				}
				return nil
			},
			status: StatusPending, after: 4 * time.Second, failed: "*drain.PartialError",
		},
		"an orphan that is not to be touched": {
			see:    func(*world) *inspect.Evidence { return evidence(staged("g", 7, 3, 5)) },
			status: StatusPending, reason: "--abort-hanging does", after: 4 * time.Second, failed: "*drain.NotDrainedError",
		},
		"an orphan is aborted at the second look": {
			see: func(w *world) *inspect.Evidence {
				if len(w.acts) == 0 {
					return evidence(staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			o: Options{AbortHanging: true}, acts: []string{"abort producer 7"}, status: StatusDrained, after: 8 * time.Second,
		},
		"an orphan that is gone at the second look": {
			see: func(w *world) *inspect.Evidence {
				if w.looks == 1 {
					return evidence(staged("g", 7, 3, 5))
				}
				return evidence(persisted)
			},
			o: Options{AbortHanging: true}, status: StatusDrained, after: 8 * time.Second,
		},
		"an orphan that comes to light is aborted too": {
			see: func(w *world) *inspect.Evidence {
				switch {
				case len(w.acts) > 0:
					return evidence(persisted)
				case w.ago() < 45*time.Second:
					return evidence(with(billing), staged("g", 7, 3, 5))
				}
				return evidence(staged("g", 7, 3, 5), ended(began("billing-1", 7, 4, "CompleteAbort", -20*time.Second, 60_000)))
			},
			o: Options{AbortHanging: true}, acts: []string{`abort "billing-1"`}, status: StatusDrained, after: 54 * time.Second,
		},
		"a marker that does not help is written once": {
			see: func(*world) *inspect.Evidence { return evidence(staged("g", 7, 3, 5)) },
			o:   Options{AbortHanging: true}, acts: []string{"abort producer 7"},
			status: StatusPending, reason: "its end marker was written, and it is still there", after: 6 * time.Second, failed: "*drain.NotDrainedError",
		},
		"a marker that is refused": {
			see: func(*world) *inspect.Evidence { return evidence(staged("g", 7, 3, 5)) },
			o:   Options{AbortHanging: true}, acts: []string{"abort producer 7"},
			mark: func(context.Context, Step) error {
				return &cluster.Error{Op: "write it", Broker: 1, Err: kerr.InvalidProducerEpoch}
			},
			status: StatusPending, reason: "could not be written: write it: broker 1: INVALID_PRODUCER_EPOCH", after: 6 * time.Second, failed: "*drain.ActError",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := shows(c.see)
			w.fence, w.mark, w.gauge = c.fence, c.mark, c.gauge
			res, err := w.drain(t.Context(), t, c.o)
			if res.Status != c.status || !strings.Contains(res.Reason, c.reason) {
				t.Errorf("%s: %q, want %s with %q", res.Status, res.Reason, c.status, c.reason)
			}
			if got := res.Ended.Sub(t0); got != c.after {
				t.Errorf("ended after %v, want %v", got, c.after)
			}
			slices.Sort(w.acts)
			if !slices.Equal(w.acts, c.acts) {
				t.Errorf("acts %q, want %q", w.acts, c.acts)
			}
			if got := typeOf(err); got != c.failed {
				t.Errorf("error %s (%v), want %s", got, err, c.failed)
			}
			if (res.Status == StatusDrained) != (err == nil) || res.Status != StatusUnknown && c.gauge == nil && (res.Status == StatusDrained) != (len(res.Steps) == 0) {
				t.Errorf("%s with error %v and holders %v", res.Status, err, res.Steps)
			}
			if c.check != nil {
				c.check(t, w, res)
			}
		})
	}
}

func typeOf(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf("%T", err)
}

// A marker refused for its epoch does not mean that this process was fenced.
func TestActErrorIsNoFencing(t *testing.T) {
	w := shows(func(*world) *inspect.Evidence { return evidence(staged("g", 7, 3, 5)) })
	w.mark = func(context.Context, Step) error { return &cluster.Error{Broker: 1, Err: kerr.InvalidProducerEpoch} }
	_, err := w.drain(t.Context(), t, Options{AbortHanging: true})
	e, ok := errors.AsType[*ActError](err)
	if !ok || errors.Is(err, kerr.InvalidProducerEpoch) || e.BrokerID() != 1 {
		t.Errorf("Execute fails with %v, want an *ActError of broker 1 that is no INVALID_PRODUCER_EPOCH", err)
	}
}

// Transactions that are always over by the next look give themselves away by
// their epochs.
func TestWatch(t *testing.T) {
	const id = "billing-1"
	at := func(epoch int16, state string) []inspect.Transaction {
		return []inspect.Transaction{{TransactionalID: id, State: state, ProducerID: 7, ProducerEpoch: epoch, TimeoutMS: 60_000}}
	}
	for name, c := range map[string]struct {
		watched func(looks int) []inspect.Transaction
		drained bool
	}{
		"at rest":               {func(int) []inspect.Transaction { return at(4, "CompleteCommit") }, true},
		"expired":               {func(int) []inspect.Transaction { return nil }, true},
		"goes on":               {func(looks int) []inspect.Transaction { return at(int16(4+looks), "CompleteCommit") }, false},
		"producing, not staged": {func(int) []inspect.Transaction { return at(4, "Ongoing") }, false},
		"lost, and found":       {func(looks int) []inspect.Transaction { return at(4, "CompleteCommit")[:looks%2] }, false},
		"ends, and rests":       {func(looks int) []inspect.Transaction { return at(int16(min(4+looks, 8)), "CompleteAbort") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{see: func(w *world) (Observation, error) {
				if w.looks == 1 {
					return Observation{Evidence: evidence(with(began(id, 7, 3, "Ongoing", -time.Second, 60_000)), staged("g", 7, 3, 5))}, nil
				}
				return Observation{Evidence: evidence(persisted), Producers: c.watched(w.looks)}, nil
			}}
			res, err := w.drain(t.Context(), t, Options{Timeout: time.Minute})
			if got := res.Status == StatusDrained; got != c.drained {
				t.Errorf("%s (%s, %v), want drained: %v", res.Status, res.Reason, err, c.drained)
			}
			if !slices.Equal(w.watch, []string{id}) {
				t.Errorf("watched %q", w.watch)
			}
			if !c.drained && (len(res.Running) != 1 || !strings.Contains(err.Error(), `producers still running: "billing-1"`)) {
				t.Errorf("running %+v, error %v", res.Running, err)
			}
		})
	}
}

// A look that fails is a look that saw nothing; being refused ends the drain.
func TestExecuteFailingLooks(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		until  int // the look from which on all is well
		status Status
		failed string
		after  time.Duration
	}{
		"comes back": {errors.New("no route"), 4, StatusDrained, "", 12 * time.Second},
		"does not":   {errors.New("no route"), 1000, StatusUnknown, "*drain.NotDrainedError", 35 * time.Second},
		"refused":    {&cluster.AuthError{Err: kerr.SaslAuthenticationFailed}, 1000, StatusUnknown, "*cluster.AuthError", 2 * time.Second},
		// A broker that restarts looks like one that wants another protocol.
		"restarts": {&cluster.AuthError{Err: &kgo.ErrFirstReadEOF{}}, 4, StatusDrained, "", 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{see: func(w *world) (Observation, error) {
				if w.looks > 1 && w.looks < c.until {
					return Observation{}, c.err
				}
				return Observation{Evidence: evidence(persisted)}, nil
			}}
			res, err := w.drain(t.Context(), t, Options{})
			if res.Status != c.status || typeOf(err) != c.failed || res.Ended.Sub(t0) != c.after {
				t.Errorf("%s (%s) after %v, %v; want %s after %v, %s", res.Status, res.Reason, res.Ended.Sub(t0), err, c.status, c.after, c.failed)
			}
		})
	}
}

// A signal ends a drain in each of its phases, and the result says what was done.
func TestExecuteStopped(t *testing.T) {
	cause := errors.New("interrupt")
	billing := began("billing-1", 7, 3, "Ongoing", -20*time.Second, 60_000)
	shipping := began("shipping-1", 8, 0, "Ongoing", -10*time.Second, 60_000)
	pending := func() *inspect.Evidence {
		return evidence(with(billing, shipping), staged("g", 7, 3, 5), staged("g", 8, 0, 5))
	}
	for name, c := range map[string]struct {
		stop   func(w *world, cancel func())
		clean  bool
		o      Options
		status Status
		acts   map[string]ActStatus
	}{
		"while it waits": {
			stop:   func(w *world, cancel func()) { w.see = cancelAt(w.see, 3, cancel) },
			status: StatusPending,
		},
		"in a quiet period": {
			stop:  func(w *world, cancel func()) { w.see = cancelAt(w.see, 3, cancel) },
			clean: true, status: StatusUnknown,
		},
		"in an act": {
			stop: func(w *world, cancel func()) {
				w.fence = func(ctx context.Context, s Step) error {
					if *s.TransactionalID == "billing-1" {
						return nil
					}
					cancel()
					return context.Cause(ctx)
				}
			},
			o: Options{FenceAll: true}, status: StatusPending,
			acts: map[string]ActStatus{"billing-1": ActDone, "shipping-1": ActUnknown},
		},
		"before the acts": {
			stop: func(_ *world, cancel func()) { cancel() },
			o:    Options{FenceAll: true}, status: StatusPending,
			acts: map[string]ActStatus{"billing-1": ActNotAttempted, "shipping-1": ActNotAttempted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			w := shows(func(*world) *inspect.Evidence {
				if c.clean {
					return evidence(persisted)
				}
				return pending()
			})
			c.stop(w, func() { cancel(cause) })
			res, err := w.drain(ctx, t, c.o)
			if !errors.Is(err, cause) || res.Status != c.status || !strings.Contains(res.Reason, "interrupt") {
				t.Errorf("%s (%s), %v; want %s, stopped by the interrupt", res.Status, res.Reason, err, c.status)
			}
			if len(res.Acts) != len(c.acts) {
				t.Errorf("acts %+v, want %v", res.Acts, c.acts)
			}
			for _, a := range res.Acts {
				if want := c.acts[*a.TransactionalID]; a.Status != want {
					t.Errorf("act on %s is %s, want %s", a.Name(), a.Status, want)
				}
			}
			if !c.clean && len(res.Pending.Rows) != 2 {
				t.Errorf("survivors %v", res.Pending.Rows)
			}
		})
	}
}

func cancelAt(see func(*world) (Observation, error), look int, cancel func()) func(*world) (Observation, error) {
	return func(w *world) (Observation, error) {
		if w.looks == look {
			cancel()
		}
		return see(w)
	}
}

// Looks that take long leave the last one time to finish, so that what is told at
// the end is of the end.
func TestExecuteSlowLooks(t *testing.T) {
	var last time.Duration
	w := shows(func(w *world) *inspect.Evidence {
		if w.looks > 1 {
			last = w.ago()
			w.now = w.now.Add(7 * time.Second)
		}
		return evidence(with(began("billing-1", 7, 3, "Ongoing", -20*time.Second, 60_000)), staged("g", 7, 3, 5))
	})
	res, err := w.drain(t.Context(), t, Options{Timeout: 30 * time.Second})
	if _, ok := errors.AsType[*TimeoutError](err); !ok || last != 20*time.Second || res.Ended.Sub(t0) != 27*time.Second {
		t.Errorf("%s (%s) after %v, %v, with the last look at %v; want it timed out at 27 s, after one at 20 s", res.Status, res.Reason, res.Ended.Sub(t0), err, last)
	}
}

// An act that is not attempted, since a transaction may do it after all, comes
// again when that has not happened, and no sooner than after two looks.
func TestExecuteNotAttempted(t *testing.T) {
	var at []time.Duration
	w := shows(func(w *world) *inspect.Evidence {
		if len(at) == 3 {
			return evidence(persisted)
		}
		return evidence(staged("g", 7, 3, 5))
	})
	w.mark = func(context.Context, Step) error {
		if at = append(at, w.ago()); len(at) < 3 {
			return ErrOpen
		}
		return nil
	}
	res, err := w.drain(t.Context(), t, Options{AbortHanging: true})
	if err != nil || !slices.Equal(at, []time.Duration{2 * time.Second, 4 * time.Second, 6 * time.Second}) || len(res.Acts) != 1 || res.Acts[0].Status != ActDone {
		t.Errorf("%s (%s), %v, with acts %+v at %v", res.Status, res.Reason, err, res.Acts, at)
	}
}

// What the last look did not see for want of time is no silence of a broker.
func TestExecuteLastLookHurried(t *testing.T) {
	billing := began("billing-1", 7, 3, "Ongoing", -20*time.Second, 60_000)
	hurried, late := silent(), inspect.ErrorGap(inspect.SourceStateTopic, "__share_group_state-3 could not be read", context.DeadlineExceeded)
	hurried.Unanswered = true
	for name, c := range map[string]struct {
		from   time.Duration // when it began
		gaps   []inspect.Gap
		err    error
		status Status
		reason string
	}{
		"gaps":                  {from: 10 * time.Second, gaps: []inspect.Gap{hurried, late}, status: StatusTimedOut, reason: `time is up in the midst of a look; 2s before: 1 record is still held by "billing-1"`},
		"nothing seen":          {from: 10 * time.Second, err: context.DeadlineExceeded, status: StatusTimedOut, reason: `time is up in the midst of a look; 2s before: 1 record is still held by "billing-1"`},
		"a gap of another kind": {from: 10 * time.Second, gaps: []inspect.Gap{hurried, silent()}, status: StatusUnknown, reason: "time is up, and 1 record"},
		"another failure":       {from: 10 * time.Second, err: kerr.UnknownServerError, status: StatusUnknown, reason: "time is up, and the cluster could not be looked at"},
		"silent for longer":     {from: 8 * time.Second, gaps: []inspect.Gap{hurried}, status: StatusUnknown, reason: "time is up, and 1 record"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{see: func(w *world) (Observation, error) {
				mods := []func(*inspect.Evidence){with(billing), staged("g", 7, 3, 1)}
				if w.ago() < c.from {
					return Observation{Evidence: evidence(mods...)}, nil
				}
				for _, g := range c.gaps {
					mods = append(mods, gap(g))
				}
				return Observation{Evidence: evidence(mods...)}, c.err
			}}
			res, err := w.drain(t.Context(), t, Options{Timeout: 10 * time.Second})
			if _, timedOut := errors.AsType[*TimeoutError](err); timedOut != (c.status == StatusTimedOut) || res.Status != c.status || !strings.HasPrefix(res.Reason, c.reason) {
				t.Errorf("%s (%s), %v; want %s (%s)", res.Status, res.Reason, err, c.status, c.reason)
			}
			if w.ago() != 10*time.Second {
				t.Errorf("ended after %s", w.ago())
			}
		})
	}
}

// Time that runs out in the midst of a look, or of an act, is a deadline and no
// failure of these.
func TestExecuteDeadlineInside(t *testing.T) {
	billing := began("billing-1", 7, 3, "Ongoing", -20*time.Second, 60_000)
	for _, where := range []string{"look", "act"} {
		t.Run(where, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			w := shows(func(w *world) *inspect.Evidence {
				if where == "look" && w.looks == 2 {
					cancel(context.DeadlineExceeded)
				}
				return evidence(with(billing), staged("g", 7, 3, 5))
			})
			o := Options{FenceAll: where == "act"}
			w.fence = func(ctx context.Context, _ Step) error {
				cancel(context.DeadlineExceeded)
				return &CoordinatorError{Op: "fence", Asked: 1, Suggested: 2, Tries: 3, Last: kerr.NotCoordinator, Err: context.Cause(ctx)}
			}
			res, err := w.drain(ctx, t, o)
			if _, ok := errors.AsType[*TimeoutError](err); !ok || !errors.Is(err, context.DeadlineExceeded) || res.Status != StatusTimedOut || len(res.Pending.Rows) != 1 ||
				!strings.HasPrefix(res.Reason, "time is up in the midst of a look; ") {
				t.Errorf("%s (%s), %v; want it timed out, and told of when that is", res.Status, res.Reason, err)
			}
			if where == "act" && (len(res.Acts) != 1 || res.Acts[0].Status != ActUnknown || !strings.Contains(*res.Acts[0].Error, "broker 1, which is not the coordinator any more (that is said to be broker 2): NOT_COORDINATOR")) {
				t.Errorf("acts %+v", res.Acts)
			}
		})
	}
}
