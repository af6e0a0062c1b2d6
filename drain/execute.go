package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Status is how a drain ended.
type Status string

// The statuses.
const (
	StatusDrained Status = "drained" // nothing is pending, for long enough
	// StatusPending: something is, and it does not end by itself.
	StatusPending Status = "pending"
	// StatusUnknown: something that was needed could not be seen, or not for long
	// enough.
	StatusUnknown  Status = "unknown"
	StatusTimedOut Status = "timed_out"
)

// Observation is what an [Observer] saw at one look.
type Observation struct {
	Evidence *inspect.Evidence
	// Producers are those that were to be watched, as far as a coordinator knows
	// them, in any state.
	Producers []inspect.Transaction
	// Gauge is the metric TxnPendingRecordsCount; nil where it was not read.
	Gauge *Gauge
}

// Gauge is how many records are in TX_PENDING by the metrics of brokers, also in
// the memory of leaders alone (KIP-1289).
type Gauge struct {
	Records int64
	Brokers int // that tell
}

// Observer looks at a cluster. watch are transactional IDs to tell about also
// when they have no transaction open. It may return *cluster.AuthError, which
// ends a drain where a broker said it; after any other error it is asked again.
type Observer interface {
	Observe(ctx context.Context, watch []string) (Observation, error)
}

// Actor acts on a cluster. Its methods return when the act is done, or an error
// when it is not: [ErrEnded] where there was nothing left to do, [ErrOpen] where a
// transaction does it. They are called concurrently, for different steps.
type Actor interface {
	// Fence aborts the transaction of a step, if it is still the same one.
	Fence(ctx context.Context, s Step) error
	// WriteMarkers writes the end markers of an orphan.
	WriteMarkers(ctx context.Context, s Step) error
}

// Clock is the time of a drain.
type Clock interface {
	Now() time.Time
	// Wait returns nil after d, or the cause of ctx if that ends before.
	Wait(ctx context.Context, d time.Duration) error
}

// NewClock returns a clock that tells the time by now and waits in real time.
func NewClock(now func() time.Time) Clock { return realClock{now} }

type realClock struct{ now func() time.Time }

func (c realClock) Now() time.Time { return c.now() }

func (realClock) Wait(ctx context.Context, d time.Duration) error { return pause.For(ctx, d) }

// parallel is how many acts are done at once.
const parallel = 8

// Execution is what a plan is executed with. All but Progress are required.
type Execution struct {
	Observer Observer
	Actor    Actor
	Clock    Clock
	// Progress is told after each look, and before acts. nil is nobody.
	Progress func(Progress)
}

// Progress is where a drain stands.
type Progress struct {
	Looks        int
	Records      int64 // TX_PENDING for certain
	Holders      int
	NextDeadline time.Time // when the next transaction ends by itself at the latest; zero: none does
	Quiet        time.Duration
	QuietPeriod  time.Duration
	Clean        bool       // nothing is pending at the moment
	Running      []Producer // as in [Result]
	Unknown      string     // why it is not known what is pending; "" when it is
	Acting       int        // acts that are being done now
	Left         time.Duration
}

// ActStatus says what came of an act.
type ActStatus string

// The statuses of acts.
const (
	ActPlanned ActStatus = "planned" // of a dry run
	ActDone    ActStatus = "done"
	ActEnded   ActStatus = "ended" // it had ended by itself, and nothing was done
	ActFailed  ActStatus = "failed"
	// ActUnknown: it was begun, and cut off; it may take effect.
	ActUnknown      ActStatus = "unknown"
	ActNotAttempted ActStatus = "not_attempted"
)

// ActResult is an act and what came of it.
type ActResult struct {
	Step
	Status ActStatus `json:"status"`
	Error  *string   `json:"error"`

	err error
}

// Result is what came of a drain.
type Result struct {
	Status Status `json:"status"`
	Reason string `json:"reason"` // a sentence without a full stop
	DryRun bool   `json:"dry_run"`

	Groups []string `json:"groups"` // the scope; empty is all
	Topics []string `json:"topics"`

	Started       time.Time     `json:"started"`
	Ended         time.Time     `json:"ended"`
	Deadline      time.Time     `json:"deadline"`
	LooksTaken    int           `json:"looks"`
	Clean         int           `json:"clean_looks"` // in a row, at the end
	QuietMS       int64         `json:"quiet_ms"`    // for how long nothing was pending, at the end
	QuietPeriodMS int64         `json:"quiet_period_ms"`
	History       []Look        `json:"history"` // looks that differ from the one before
	Records       int64         `json:"records"` // TX_PENDING for certain, at the end
	Steps         []Step        `json:"holders"` // of Survivors, and what would become of them
	Acts          []ActResult   `json:"acts"`
	Running       []Producer    `json:"producers_still_running"`
	Gaps          []inspect.Gap `json:"gaps"`
	// InMemory are share-partitions that may hold records in the memory of their
	// leaders, which nothing would give away; see [Options.AcceptMemory].
	InMemory []string `json:"may_hold_in_memory"`

	// Pending is what is pending in scope at the end: its rows are the survivors.
	// Where the last look failed, or was cut off, it is that of the one before, and
	// its Time says when that was.
	Pending   *inspect.PendingReport `json:"-"`
	ClusterID string                 `json:"-"`
	Warnings  []string               `json:"-"`
}

// DryRun returns the result of doing nothing: what is pending, and the acts that
// would be done. StatusDrained is then about one look alone. The error is that of [Plan.Execute] where it can be told now
// that the drain would not succeed: something does not end by itself, or cannot
// be seen.
func (p *Plan) DryRun() (*Result, error) {
	e := p.execution(Execution{})
	res := e.result()
	res.DryRun = true
	for _, s := range p.Acts() {
		res.Acts = append(res.Acts, ActResult{Step: s, Status: ActPlanned})
	}
	left := slices.DeleteFunc(slices.Clone(p.Steps), func(s Step) bool { return s.Action != ActionLeave })
	switch {
	case len(p.Pending.Gaps) > 0:
		res.Status, res.Reason = StatusUnknown, p.Pending.Reason
	case nothing(p.Pending):
		res.Status, res.Reason = StatusDrained, p.Pending.Reason+", at this one look"
		return res, nil
	default:
		res.Status, res.Reason = StatusPending, p.Pending.Reason
		if len(left) == 0 {
			return res, nil
		}
		h := newHistory(p.Options)
		h.last.steps = left
		res.Reason = h.stalledReason()
	}
	return res, &NotDrainedError{Result: res}
}

// Execute drains. The plan's own look is the first one, so it should be fresh;
// acts look once more at what they end. It returns the result also with an
// error. Ended by ctx, it says what was done, and nothing that it began is left
// half done: a coordinator finishes it, and a second drain goes on from there.
//
// It may return *NotDrainedError, *TimeoutError, *PartialError, *ActError,
// *cluster.AuthError, or the cause of ctx.
func (p *Plan) Execute(ctx context.Context, x Execution) (*Result, error) {
	e := p.execution(x)
	return e.run(ctx)
}

// execution is a drain on its way.
type execution struct {
	Execution
	plan *Plan
	h    *history
	acts []ActResult
	now  time.Time
	cut  bool // a look was ended from outside
}

func (p *Plan) execution(x Execution) *execution {
	e := &execution{Execution: x, plan: p, h: newHistory(p.Options), now: p.Started}
	e.h.add(look{Evidence: p.first, report: p.Pending, steps: p.Steps, began: p.Started})
	return e
}

func (e *execution) run(ctx context.Context) (*Result, error) {
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	for {
		e.now = e.Clock.Now()
		d := e.h.decide(e.now, e.plan.Deadline, e.fences())
		e.tell(len(d.acts))
		switch {
		case d.end != "":
			return e.end(d.end, d.reason, nil)
		case len(d.acts) > 0:
			e.act(ctx, d.acts)
		default:
			if err := e.Clock.Wait(ctx, d.wait); err != nil {
				return e.stopped(err)
			}
		}
		if err := e.look(ctx); err != nil {
			e.cut = true
			return e.stopped(err)
		}
	}
}

// hurried reports whether a look is incomplete for want of time alone: there is
// none for another one, what is missing was not answered in what the deadline
// left, and the look before saw everything. It tells of no broker that it is
// silent.
func (e *execution) hurried(l look) bool {
	before := e.h.last
	if before.err != nil || len(before.report.Gaps) > 0 || e.plan.Deadline.Sub(e.Clock.Now()) > l.took {
		return false
	}
	if l.err != nil {
		return errors.Is(l.err, context.DeadlineExceeded)
	}
	gaps := l.report.Gaps
	return len(gaps) > 0 && !slices.ContainsFunc(gaps, func(g inspect.Gap) bool { return !g.Unanswered })
}

// bounded returns a context that ends a look or an act in the midst of which the
// deadline passes. A margin lets the one that is due at the deadline finish.
func (e *execution) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, e.plan.Deadline.Sub(e.Clock.Now())+e.plan.Options.interval(), errLate)
}

// errLate is the cause of a context that ended since time is up.
var errLate = errors.New("time is up")

func (e *execution) fences() []Step {
	return slices.DeleteFunc(e.plan.Acts(), func(s Step) bool { return s.Action != ActionFence })
}

// look takes a look. It fails when ctx ended, and when the principal was
// refused; any other failure is a look that saw nothing.
func (e *execution) look(ctx context.Context) error {
	l := look{began: e.Clock.Now()}
	o, err := e.Observer.Observe(ctx, e.h.suspects)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if refused(err) {
		return err
	}
	l.took = e.Clock.Now().Sub(l.began)
	if l.err = err; err == nil {
		l.Evidence, l.watched, l.gauge = o.Evidence, o.Producers, o.Gauge
		l.report = inspect.NewPendingReport(o.Evidence, e.plan.Options.filter())
	}
	if e.hurried(l) {
		return errLate
	}
	e.h.add(l)
	return nil
}

// refused reports whether a broker says that this principal may not. One that goes
// away with a first request unanswered looks like one that speaks another
// protocol, and is taken for that where nothing was ever answered; here something
// was.
func refused(err error) bool {
	_, auth := errors.AsType[*cluster.AuthError](err)
	_, said := errors.AsType[*kerr.Error](err)
	return auth && said
}

// act does acts, some at once. Where ctx ends, the rest is not attempted.
func (e *execution) act(ctx context.Context, steps []Step) {
	results := make([]ActResult, len(steps))
	var wg sync.WaitGroup
	free := make(chan struct{}, parallel)
	for i, s := range steps {
		results[i] = ActResult{Step: s, Status: ActNotAttempted}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		if ctx.Err() != nil {
			continue
		}
		wg.Go(func() {
			defer func() { <-free }()
			do := e.Actor.WriteMarkers
			if s.Action == ActionFence {
				do = e.Actor.Fence
			}
			results[i].note(do(ctx, s), ctx.Err() != nil)
		})
	}
	wg.Wait()
	// What was not attempted comes again.
	e.acts = slices.DeleteFunc(e.acts, func(a ActResult) bool {
		return a.Status == ActNotAttempted && slices.ContainsFunc(results, func(r ActResult) bool { return sameStep(a.Step, r.Step) })
	})
	e.acts = append(e.acts, results...)
	e.h.acted(results)
}

// sameStep reports whether two steps write the markers of one orphan.
func sameStep(a, b Step) bool {
	return a.Action != ActionFence && b.Action != ActionFence && orphanKey(a) == orphanKey(b)
}

// note takes in how an act ended.
func (r *ActResult) note(err error, cut bool) {
	switch {
	case err == nil:
		r.Status = ActDone
		return
	case errors.Is(err, ErrEnded):
		r.Status = ActEnded
		return
	case errors.Is(err, ErrOpen) && !cut: // the next look tells
		r.Status = ActNotAttempted
		return
	case cut:
		r.Status = ActUnknown
	default:
		r.Status = ActFailed
	}
	r.err = &ActError{Step: r.Step, Err: err}
	r.Error = new(err.Error())
}

func (e *execution) tell(acting int) {
	if e.Progress == nil {
		return
	}
	p := Progress{
		Looks: e.h.count, Clean: e.h.clean > 0, Quiet: e.h.quietFor(), QuietPeriod: e.h.quietPeriod(),
		Running: slices.Clone(e.h.running), Acting: acting, Left: e.plan.Deadline.Sub(e.now),
	}
	if l := e.h.good; l.report != nil {
		p.Records, p.Holders = l.report.Records, len(l.steps)
		if l.report.NextDeadline != nil {
			p.NextDeadline = *l.report.NextDeadline
		}
		if len(l.report.Gaps) > 0 {
			p.Unknown = l.report.Reason
		}
	}
	if e.h.last.err != nil {
		p.Unknown = e.h.last.err.Error()
	}
	e.Progress(p)
}

// stopped ends a drain from outside: time is up, a signal came, or the principal
// was refused.
func (e *execution) stopped(cause error) (*Result, error) {
	e.now = e.Clock.Now()
	if errors.Is(cause, errLate) || errors.Is(cause, context.DeadlineExceeded) {
		d := e.h.late()
		if e.cut {
			// It may be over since, and something else pending.
			d.reason = fmt.Sprintf("time is up in the midst of a look; %s before: %s", e.now.Sub(e.h.last.began).Round(100*time.Millisecond), d.reason)
		}
		return e.end(d.end, d.reason, nil)
	}
	status := StatusPending
	if e.h.last.err != nil || e.h.last.report.Status == inspect.StatusUnknown || nothing(e.h.last.report) {
		status = StatusUnknown
	}
	return e.end(status, "stopped: "+cause.Error(), cause)
}

// end makes the result, and the error that goes with it.
func (e *execution) end(status Status, reason string, cause error) (*Result, error) {
	res := e.result()
	res.Status, res.Reason = status, reason
	var failed []error
	done := false
	for _, a := range e.acts {
		switch {
		case a.err != nil:
			failed = append(failed, a.err)
			res.Warnings = append(res.Warnings, a.err.Error())
		case a.Status == ActDone:
			done = true
		}
	}
	switch {
	case cause != nil:
		return res, cause
	case status == StatusDrained:
		if n := len(res.InMemory); n > 0 {
			res.Warnings = append(res.Warnings, fmt.Sprintf("%s in the memory of a leader, where it cannot be seen", countText(int64(n), "share-partition may hold records", "share-partitions may hold records")))
		}
		return res, nil
	case len(failed) > 0 && done:
		return res, &PartialError{Result: res, Failed: failed}
	case len(failed) > 0 && status != StatusTimedOut:
		return res, cluster.Join(failed...)
	case status == StatusTimedOut:
		return res, &TimeoutError{Result: res}
	}
	return res, &NotDrainedError{Result: res}
}

func (e *execution) result() *Result {
	res := &Result{
		Groups: e.plan.Options.Groups, Topics: e.plan.Options.Topics,
		Started: exact(e.plan.Started), Ended: exact(e.now), Deadline: exact(e.plan.Deadline),
		LooksTaken: e.h.count, Clean: e.h.clean,
		QuietMS: e.h.quietFor().Milliseconds(), QuietPeriodMS: e.h.quietPeriod().Milliseconds(),
		History: e.h.trail, Acts: e.acts, Running: e.h.running,
		ClusterID: e.plan.ClusterID, InMemory: e.h.inMemory(),
	}
	if l := e.h.good; l.report != nil {
		res.Records, res.Steps, res.Pending, res.Gaps = l.report.Records, l.steps, l.report, l.report.Gaps
	}
	if res.ClusterID == "" && e.h.good.Evidence != nil {
		res.ClusterID = cmp.Or(res.ClusterID, e.h.good.ClusterID)
	}
	return res
}
