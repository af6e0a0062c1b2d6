package drain_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/apptest"
	"github.com/kshare/kshare/sandbox"
)

// The soak: applications stage, commit, abort, die, are fenced and time out, and
// faults strike, while drains run. What a drain says is held against what the
// sandbox knows:
//
//   - drained: nothing is TX_PENDING in scope that was before its last look, and
//     no transaction that took part in scope then is open. Where it was told to
//     accept what may be in memory, that is named
//   - otherwise: each range that is TX_PENDING in scope is named, and each
//     transaction, or it says that it does not know, and why
//
// All that a run does follows from its seed; how its goroutines take turns does
// not, so a failure may need some repetitions to come again:
//
//	go test ./drain -run Soak -seed 17 -count 20 -v

var (
	soakCount = flag.Int("soak", 0, "how many `runs` the soak has; 0 is 1 with -seed, and otherwise what continuous integration has time for")
	soakSeed  = flag.Uint64("seed", 0, "`seed` of the first run of the soak; those after it have the next ones; 0 is 1")
)

// longestRun is how long a run may take by the wall clock. Where one goes round
// in circles at one moment of its own time, nothing else ends it.
const longestRun = 20 * time.Second

func TestSoak(t *testing.T) {
	first, count := max(*soakSeed, 1), *soakCount
	switch {
	case count > 0:
	case *soakSeed > 0:
		count = 1
	default:
		count = soakRuns
	}
	tally := newTally()
	before := runtime.NumGoroutine()
	start := time.Now()
	t.Run("runs", func(t *testing.T) {
		workers := min(runtime.GOMAXPROCS(0), count)
		for w := range workers {
			t.Run(fmt.Sprint("worker ", w), func(t *testing.T) {
				t.Parallel()
				failures := 0
				for i := w; i < count && failures < mostFailures; i += workers {
					if !soakOne(t, first+uint64(i), tally) {
						failures++
					}
				}
			})
		}
	})
	// What runs start is gone with them, so that any number of them fits.
	if after := runtime.NumGoroutine(); after > before+workersLeft {
		t.Errorf("%d goroutines before %d runs and %d after them", before, count, after)
	}
	t.Logf("%d runs from seed %d on in %v\n%s", count, first, time.Since(start).Round(time.Millisecond), tally)
	if missing := tally.missing(); count >= enoughRuns && len(missing) > 0 && !t.Failed() {
		t.Errorf("never happened in %d runs: %s", count, strings.Join(missing, ", "))
	}
}

// enoughRuns is in how many runs everything is to happen that may: what is rare
// need not come about in the few that the race detector leaves time for.
const enoughRuns = 2000

// mostFailures is how many failures of one worker are shown: they can have one
// reason, or several.
const mostFailures = 500

// workersLeft is how many goroutines of the testing package may still be on
// their way out.
const workersLeft = 8

// soakOne does one run. It returns false when that failed.
func soakOne(t *testing.T, seed uint64, tally *tally) bool {
	t.Helper()
	again := fmt.Sprintf("go test ./drain -run Soak -seed %d", seed)
	var run atomic.Pointer[soakRun]
	late := time.AfterFunc(longestRun, func() {
		debug.SetTraceback("all")
		story := ""
		if r := run.Load(); r != nil {
			story = r.story()
		}
		panic(fmt.Sprintf("the run of seed %d does not end: %s\n%s", seed, again, story))
	})
	defer late.Stop()
	defer func() {
		if p := recover(); p != nil { // such as goroutines that are left in the bubble
			panic(fmt.Sprintf("seed %d: %s: %v", seed, again, p))
		}
	}()
	plan := newSoakPlan(seed)
	apptest.Run(t, plan.dialect, plan.pending, func(b *apptest.Bench) {
		r := newSoakRun(b, plan, tally)
		run.Store(r)
		r.do()
	}, plan.sandboxOptions()...)
	r := run.Load()
	if len(r.violations) > 0 {
		t.Errorf("seed %d: %s\nagain: %s\n%s", seed, strings.Join(r.violations, "\n\n"), again, r.story())
	}
	return len(r.violations) == 0
}

// soakRun is a run on its way.
type soakRun struct {
	b     *apptest.Bench
	plan  *soakPlan
	tally *tally
	start time.Time
	apps  []*soakApp
	stop  chan struct{} // closed when applications and faults have to end

	mu         sync.Mutex
	events     []string
	violations []string
	meant      map[producer]map[place]bool // where transactions staged, or tried to
	ended      map[producer]string         // how transactions ended, by the answer that their producer got
	rests      map[producer]bool           // ended, and its transactional ID did nothing since
	staged     []stageTimes
	unanswered map[producer]int // stages without an answer: whether they are done is not known
}

// producer is a producer at one epoch, which is one transaction.
type producer struct {
	id    int64
	epoch int16
}

// stageTimes is when a stage succeeded.
type stageTimes struct {
	id         string // transactional ID
	sent, done time.Time
}

// place is what the scope of a drain goes by, and the partition of
// __share_group_state that a transaction lists for it.
type place struct {
	group, topic   string
	statePartition int32
}

func newSoakRun(b *apptest.Bench, plan *soakPlan, tally *tally) *soakRun {
	return &soakRun{
		b: b, plan: plan, tally: tally, start: time.Now(), stop: make(chan struct{}),
		meant: make(map[producer]map[place]bool), ended: make(map[producer]string), rests: make(map[producer]bool), unanswered: make(map[producer]int),
	}
}

func (r *soakRun) do() {
	r.setUp()
	observers := make([]*spy, 0, len(r.plan.drains))
	for _, d := range r.plan.drains {
		observers = append(observers, r.observer(d))
	}
	var drains, rest sync.WaitGroup
	for _, a := range r.apps {
		rest.Go(a.run)
	}
	for i := range r.plan.faults {
		f := r.plan.faults[i]
		rest.Go(func() { r.inject(f) })
	}
	for i, d := range r.plan.drains {
		drains.Go(func() {
			<-time.After(d.at)
			r.drain(d, observers[i])
		})
	}
	drains.Wait()
	close(r.stop)
	r.b.Sandbox.ClearFaults()
	rest.Wait()
	if r.plan.finally {
		r.finish()
	}
}

// finish drains once more when nothing goes wrong any more and nobody begins
// anything: whatever happened before, that succeeds.
func (r *soakRun) finish() {
	o := r.plan.last
	for _, a := range r.apps {
		if a.timeout == twoPhase {
			o.Fence = append(o.Fence, a.id)
		}
	}
	d := soakDrain{Options: o, name: "last"}
	res, err := r.drain(d, r.observer(d))
	switch {
	case res == nil:
		r.violate("the last drain: %v", err)
	case res.Status != drain.StatusDrained && !(res.Status == drain.StatusUnknown && len(res.InMemory) > 0):
		r.violate("the last drain, with nothing going on, ended %s: %s", res.Status, res.Reason)
	}
}

// event notes what happened, for the story of a run that fails.
func (r *soakRun) event(format string, args ...any) {
	at := time.Since(r.start)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%8.3fs  %s", at.Seconds(), fmt.Sprintf(format, args...)))
}

func (r *soakRun) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.event("VIOLATION: %s", text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, text)
}

func (r *soakRun) story() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return fmt.Sprintf("plan:\n%s\nwhat happened:\n  %s\n", r.plan, strings.Join(r.events, "\n  "))
}

// wait waits unless the run ends before.
func (r *soakRun) wait(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.stop:
		return false
	}
}

// Faults

func (r *soakRun) inject(f soakFault) {
	if !r.wait(f.at) {
		return
	}
	ctx, cancel := context.WithTimeout(r.b.T.Context(), time.Minute)
	defer cancel()
	in, err := r.b.Sandbox.InjectFault(ctx, f.Fault)
	if _, ok := errors.AsType[*sandbox.FaultError](err); ok {
		r.event("fault %s: %v", f, err)
		r.tally.count("faults refused", string(f.Kind)) // such as of a transactional ID that is not there yet
		return
	}
	if err != nil {
		r.violate("fault %s: %v", f, err)
		return
	}
	r.event("fault %s: %s", in.ID, f)
	if f.lasts == 0 {
		r.tally.count("faults", string(f.Kind))
		return
	}
	r.wait(f.lasts)
	over, err := r.b.Sandbox.ClearFault(in.ID)
	switch {
	case errors.Is(err, sandbox.ErrNoFault): // it has struck as often as it was to
		over.Hits = 1
	case err != nil:
		r.violate("clear fault %s: %v", in.ID, err)
	}
	r.event("fault %s is over, after %d hits", in.ID, over.Hits)
	if over.Hits > 0 || f.passive() {
		r.tally.count("faults", string(f.Kind))
	} else {
		r.tally.count("faults that struck nothing", string(f.Kind))
	}
}

// Drains

// spy is an observer that notes the truth before each look.
type spy struct {
	drain.ClusterObserver
	r       *soakRun
	metrics bool                // reads the metrics of brokers as well
	last    truth               // before the last look
	before  map[time.Time]truth // before each look, by when that began
	during  map[time.Time]truth // what was so before it and after it
	ended   map[time.Time]time.Time
	seen    []*inspect.Evidence
}

func (r *soakRun) observer(d soakDrain) *spy {
	return &spy{r: r, metrics: d.metrics, before: make(map[time.Time]truth), during: make(map[time.Time]truth), ended: make(map[time.Time]time.Time), ClusterObserver: drain.ClusterObserver{Cluster: r.b.ConnectFrom(d.away), Now: time.Now}}
}

func (s *spy) Observe(ctx context.Context, watch []string) (drain.Observation, error) {
	began := time.Now()
	s.last = s.r.truth()
	s.before[began] = s.last
	o, err := s.ClusterObserver.Observe(ctx, watch)
	s.during[began], s.ended[began] = s.last.and(s.r.truth()), time.Now()
	if err == nil {
		s.seen = append(s.seen, o.Evidence)
	}
	if err == nil && s.metrics {
		st, err := s.r.b.Sandbox.State()
		s.r.b.Check(err)
		o.Gauge = &drain.Gauge{Records: int64(st.Pending), Brokers: len(o.Evidence.Support.Brokers)}
	}
	s.r.tally.count("looks", map[bool]string{true: "that saw something", false: "that failed"}[err == nil])
	return o, err
}

// watchedActor looks at the truth before it writes an end marker.
type watchedActor struct {
	drain.ClusterActor
	r *soakRun
	d soakDrain
}

// WriteMarkers fails the run where it does so although a transaction is open that
// will end the records by itself, or whose coordinator still says that it ended
// otherwise.
func (a *watchedActor) WriteMarkers(ctx context.Context, s drain.Step) error {
	p := producer{*s.ProducerID, *s.ProducerEpoch}
	before := a.r.truth()
	a.r.mu.Lock()
	how, rests := a.r.ended[p], a.r.rests[p]
	a.r.mu.Unlock()
	err := a.ClusterActor.WriteMarkers(ctx, s)
	a.r.event("drain %s: %s of %d/%d in state partitions %v: %s: %v", a.d.name, s.Action, p.id, p.epoch, s.StatePartitions, s.Reason, err)
	if err != nil {
		return err
	}
	for _, tx := range before.open {
		listed := slices.ContainsFunc(s.StatePartitions, func(n int32) bool { return slices.Contains(tx.StatePartitions, n) })
		if tx.ProducerID == p.id && tx.ProducerEpoch == p.epoch && listed {
			a.r.violate("drain %s (%s) writes the %s marker for what is open: %s: %s", a.d.name, a.d, s.Action, openText(tx), s.Reason)
		}
	}
	if rests && how == "committed" && s.Action != drain.ActionCommit || how == "aborted" && s.Action == drain.ActionCommit {
		a.r.violate("drain %s (%s) writes the %s marker for what is %s (%d/%d): %s", a.d.name, a.d, s.Action, how, p.id, p.epoch, s.Reason)
	}
	return nil
}

// Fence fails the run where it ends a transaction that is not the one of the step.
func (a *watchedActor) Fence(ctx context.Context, s drain.Step) error {
	there := slices.ContainsFunc(a.r.truth().open, func(tx sandbox.OpenTransaction) bool {
		return tx.TransactionalID == *s.TransactionalID && tx.ProducerID == *s.ProducerID && tx.ProducerEpoch == *s.ProducerEpoch
	})
	err := a.ClusterActor.Fence(ctx, s)
	if err == nil && !there {
		a.r.violate("drain %s (%s) fences %s of %d/%d, which had ended", a.d.name, a.d, s.Name(), *s.ProducerID, *s.ProducerEpoch)
	}
	return err
}

// firstLooks is how often a drain tries its first look.
const firstLooks = 3

func (r *soakRun) drain(d soakDrain, obs *spy) (*drain.Result, error) {
	ctx, clock := r.b.T.Context(), drain.NewClock(time.Now)
	var first drain.Observation
	var err error
	for range firstLooks {
		lookCtx, cancel := context.WithTimeout(ctx, time.Minute)
		first, err = obs.Observe(lookCtx, nil)
		cancel()
		if err == nil {
			break
		}
		r.event("drain %s: first look: %v", d.name, err)
		<-time.After(2 * time.Second)
	}
	if err != nil {
		r.tally.count("verdicts", "none: the cluster could not be looked at")
		return nil, err
	}
	plan, err := drain.NewPlan(first.Evidence, d.Options, time.Now())
	if err != nil {
		r.event("drain %s: %v", d.name, err)
		if _, ok := errors.AsType[*drain.RefusedError](err); !ok {
			r.violate("drain %s: %v", d.name, err)
		}
		r.tally.count("verdicts", "none: refused")
		return nil, err
	}
	r.event("drain %s begins: %s", d.name, d)
	res, err := plan.Execute(ctx, drain.Execution{
		Observer: obs, Actor: &watchedActor{drain.ClusterActor{Cluster: obs.Cluster, Clock: clock}, r, d}, Clock: clock,
	})
	r.event("drain %s ends: %s (%s); %v", d.name, res.Status, res.Reason, err)
	r.judge(d, obs, plan, res, err)
	return res, err
}

// judge holds a verdict against the truth.
func (r *soakRun) judge(d soakDrain, obs *spy, plan *drain.Plan, res *drain.Result, err error) {
	now := r.truth()
	kind := string(res.Status)
	r.tally.count("verdicts", fmt.Sprintf("%s (%s)", kind, r.plan.pending))
	for _, o := range d.kinds() {
		r.tally.count("drains", o)
	}
	fail := func(format string, args ...any) {
		r.violate("drain %s (%s) ended %s (%s), %v: %s\n%s", d.name, d, res.Status, res.Reason, err, fmt.Sprintf(format, args...), evidenceText(res, obs, now))
	}
	if res.Status == drain.StatusDrained {
		if err != nil {
			fail("and with an error")
		}
		left := obs.last.and(now).in(r, d.Options)
		if d.AcceptMemory {
			left.pending = slices.DeleteFunc(left.pending, func(p sandbox.PendingRange) bool { return inMemory(res, p) })
		}
		if !left.empty() {
			fail("left is %s", left)
		}
		r.judgeQuiet(d, obs, res, fail)
	} else {
		if err == nil || res.Reason == "" {
			fail("without an error, or a reason")
		}
		before, ok := obs.before[res.Pending.Time]
		if !ok {
			fail("it does not say of when what is pending is")
		}
		if left := before.and(now).in(r, d.Options); res.Status != drain.StatusUnknown {
			for _, missing := range left.unnamed(r, res) {
				fail("not named is %s", missing)
			}
		}
	}
	if res.Status == drain.StatusUnknown && len(res.Gaps)+len(res.InMemory) == 0 && res.Pending.Status != inspect.StatusUnknown && !strings.Contains(res.Reason, "could not be looked at") {
		fail("nothing says what is unknown")
	}
	// A look may end a little after time is up.
	if over := res.Ended.Sub(plan.Deadline); over > cmp.Or(d.Interval, drain.DefaultInterval)+time.Second {
		fail("%v too late", over)
	}
	for _, a := range res.Acts {
		r.tally.count("acts", fmt.Sprintf("%s %s", a.Action, a.Status))
	}
}

// judgeQuiet fails where a drain was not quiet for as long as it has to be.
func (r *soakRun) judgeQuiet(d soakDrain, obs *spy, res *drain.Result, fail func(string, ...any)) {
	least := 5 * time.Second
	switch {
	case d.QuietPeriod > 0:
		least = d.QuietPeriod
	case r.plan.pending == sandbox.PendingMemory: // Kafka's default timeout, and a sweep
		least = time.Minute + 10*time.Second
	}
	if res.Clean < cmp.Or(d.Looks, drain.DefaultLooks) || res.QuietMS < least.Milliseconds() || res.QuietMS < res.QuietPeriodMS {
		fail("%d looks in %d ms are too little", res.Clean, res.QuietMS)
	}
	looks := slices.SortedFunc(maps.Keys(obs.during), time.Time.Compare)
	clean := looks[max(0, len(looks)-res.Clean):]
	r.judgeRunning(d, obs, clean, fail)
	for _, began := range clean {
		t := obs.during[began].in(r, d.Options)
		t.pending = slices.DeleteFunc(t.pending, func(p sandbox.PendingRange) bool { return r.plan.pending == sandbox.PendingMemory && !t.owns(p) })
		if !t.empty() {
			fail("all through the look at %v there was %s", began.Sub(r.start), t)
		}
	}
}

// judgeRunning fails where a producer that held something in scope at an earlier
// look has staged again between the first clean look and the last one, and has
// ended that: its epoch tells.
func (r *soakRun) judgeRunning(d soakDrain, obs *spy, clean []time.Time, fail func(string, ...any)) {
	known := make(map[string]bool)
	for _, ev := range obs.seen {
		rep := inspect.NewPendingReport(ev, inspect.Filter{Groups: d.Groups, Topics: d.Topics, Done: true})
		for _, s := range drain.Holders(ev, rep) {
			if s.TransactionalID != nil && s.TransactionState != nil {
				known[*s.TransactionalID] = true
			}
		}
	}
	from, to := obs.ended[clean[0]], clean[len(clean)-1]
	r.mu.Lock()
	staged := slices.Clone(r.staged)
	r.mu.Unlock()
	for _, s := range staged {
		if known[s.id] && s.sent.After(from) && s.done.Before(to) {
			fail("%q staged at %v, and went unnoticed", s.id, s.sent.Sub(r.start))
		}
	}
}

// owns reports whether a transaction that is open holds a range.
func (t truth) owns(p sandbox.PendingRange) bool {
	return slices.ContainsFunc(t.open, func(tx sandbox.OpenTransaction) bool { return tx.ProducerID == p.ProducerID })
}

func evidenceText(res *drain.Result, obs *spy, now truth) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  truth before the last look: %s\n  truth now: %s\n  may be in memory: %v\n  looks %d, clean %d, quiet %dms of %dms\n", obs.last, now, res.InMemory, res.LooksTaken, res.Clean, res.QuietMS, res.QuietPeriodMS)
	if res.Pending != nil {
		for _, row := range res.Pending.Rows {
			fmt.Fprintf(&b, "  row %s\n", rowText(row))
		}
	}
	for _, g := range res.Gaps {
		fmt.Fprintf(&b, "  gap %s: %s\n", g.Source, g.Reason)
	}
	for _, s := range res.Steps {
		fmt.Fprintf(&b, "  step %s %s: %s\n", s.Action, s.Name(), s.Reason)
	}
	for _, a := range res.Acts {
		fmt.Fprintf(&b, "  act %s %s: %s\n", a.Action, a.Name(), a.Status)
		if a.Error != nil {
			fmt.Fprintf(&b, "    %s\n", *a.Error)
		}
	}
	for _, l := range res.History {
		fmt.Fprintf(&b, "  look %s: %s, %d records, %d transactions: %s\n", l.Time.Format("15:04:05.000"), l.Status, l.Records, l.Transactions, l.Reason)
	}
	return b.String()
}

func rowText(row inspect.PendingRow) string {
	var parts []string
	add := func(name string, known bool, v any) {
		if known {
			parts = append(parts, fmt.Sprintf("%s=%v", name, v))
		}
	}
	parts = append(parts, string(row.Verdict))
	add("group", row.GroupID != nil, deref(row.GroupID))
	add("topic", row.Topic != nil, deref(row.Topic))
	add("partition", row.Partition != nil, deref(row.Partition))
	add("first", row.FirstOffset != nil, deref(row.FirstOffset))
	add("last", row.LastOffset != nil, deref(row.LastOffset))
	add("id", row.TransactionalID != nil, deref(row.TransactionalID))
	add("state", row.TransactionState != nil, deref(row.TransactionState))
	add("producer", row.ProducerID != nil, deref(row.ProducerID))
	add("epoch", row.ProducerEpoch != nil, deref(row.ProducerEpoch))
	add("state-partition", true, row.StatePartition)
	return strings.Join(parts, " ") + ": " + strings.Join(row.Evidence, "; ")
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// Truth

// truth is what the sandbox knows at one moment.
type truth struct {
	pending []sandbox.PendingRange
	open    []sandbox.OpenTransaction // that take part in __share_group_state and that some coordinator knows
}

func (r *soakRun) truth() truth {
	open, err := r.b.Sandbox.OpenParticipants(r.b.T.Context())
	if err != nil {
		r.violate("ground truth: %v", err)
	}
	open = slices.DeleteFunc(open, func(t sandbox.OpenTransaction) bool { return len(t.StatePartitions) == 0 || t.Forgotten })
	return truth{r.b.Sandbox.Pending(), open}
}

func (t truth) empty() bool { return len(t.pending)+len(t.open) == 0 }

// and returns what is in both.
func (t truth) and(o truth) truth {
	var both truth
	for _, a := range t.pending {
		for _, b := range o.pending {
			if a.GroupID != b.GroupID || a.Topic != b.Topic || a.Partition != b.Partition || a.ProducerID != b.ProducerID || a.ProducerEpoch != b.ProducerEpoch {
				continue
			}
			c := b
			c.FirstOffset, c.LastOffset = max(a.FirstOffset, b.FirstOffset), min(a.LastOffset, b.LastOffset)
			if c.FirstOffset <= c.LastOffset {
				both.pending = append(both.pending, c)
			}
		}
	}
	for _, a := range t.open {
		for _, b := range o.open {
			if a.TransactionalID == b.TransactionalID && a.ProducerID == b.ProducerID && a.ProducerEpoch == b.ProducerEpoch {
				both.open = append(both.open, b)
			}
		}
	}
	return both
}

// in returns what is in the scope of a drain: transactions by what they tried to
// stage. One that lists a state partition and has nothing there but records out of
// scope is not in it.
func (t truth) in(r *soakRun, o drain.Options) truth {
	in := func(group, topic string) bool {
		return (len(o.Groups) == 0 || slices.Contains(o.Groups, group)) && (len(o.Topics) == 0 || slices.Contains(o.Topics, topic))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out truth
	for _, p := range t.pending {
		if in(p.GroupID, p.Topic) {
			out.pending = append(out.pending, p)
		}
	}
	for _, tx := range t.open {
		for p := range r.meant[producer{tx.ProducerID, tx.ProducerEpoch}] {
			others := slices.ContainsFunc(t.pending, func(o sandbox.PendingRange) bool {
				return o.ProducerID == tx.ProducerID && o.StatePartition == p.statePartition && !in(o.GroupID, o.Topic)
			})
			if in(p.group, p.topic) && slices.Contains(tx.StatePartitions, p.statePartition) && !others {
				out.open = append(out.open, tx)
				break
			}
		}
	}
	return out
}

// unnamed lists what a result does not name.
func (t truth) unnamed(r *soakRun, res *drain.Result) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, p := range t.pending {
		// A leader has in memory what it is about to write down. It may fail, so
		// until then its owner is all that there is to name.
		early := r.unanswered[producer{p.ProducerID, p.ProducerEpoch}] > 0
		if !inMemory(res, p) && !slices.ContainsFunc(res.Pending.Rows, func(row inspect.PendingRow) bool { return names(row, p, early) }) {
			out = append(out, rangeText(p))
		}
	}
	for _, tx := range t.open {
		if !slices.ContainsFunc(res.Pending.Rows, func(row inspect.PendingRow) bool {
			return row.TransactionalID != nil && *row.TransactionalID == tx.TransactionalID
		}) {
			out = append(out, openText(tx))
		}
	}
	return out
}

// names reports whether a row names a range: the records, or else their owner.
func names(row inspect.PendingRow, p sandbox.PendingRange, early bool) bool {
	if row.FirstOffset != nil && row.GroupID != nil && row.Topic != nil && !early {
		return *row.GroupID == p.GroupID && *row.Topic == p.Topic && *row.Partition == p.Partition &&
			*row.FirstOffset <= p.FirstOffset && p.LastOffset <= *row.LastOffset
	}
	return row.ProducerID != nil && *row.ProducerID == p.ProducerID
}

// inMemory reports whether a result says that a range may be in memory.
func inMemory(res *drain.Result, p sandbox.PendingRange) bool {
	return slices.Contains(res.InMemory, fmt.Sprintf("%s/%s-%d", p.GroupID, p.Topic, p.Partition))
}

func (t truth) String() string {
	if t.empty() {
		return "nothing"
	}
	var parts []string
	for _, p := range t.pending {
		parts = append(parts, rangeText(p))
	}
	for _, tx := range t.open {
		parts = append(parts, openText(tx))
	}
	return strings.Join(parts, "; ")
}

func rangeText(p sandbox.PendingRange) string {
	return fmt.Sprintf("%s/%s-%d %d..%d of %q (%d/%d) in state partition %d", p.GroupID, p.Topic, p.Partition, p.FirstOffset, p.LastOffset, p.TransactionalID, p.ProducerID, p.ProducerEpoch, p.StatePartition)
}

func openText(t sandbox.OpenTransaction) string {
	return fmt.Sprintf("transaction %q (%d/%d) %s with state partitions %v", t.TransactionalID, t.ProducerID, t.ProducerEpoch, t.State, t.StatePartitions)
}

// Coverage

// tally counts what happened in all runs.
type tally struct {
	mu    sync.Mutex
	kinds map[string]map[string]int
}

func newTally() *tally { return &tally{kinds: make(map[string]map[string]int)} }

func (t *tally) count(kind, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds[kind] == nil {
		t.kinds[kind] = make(map[string]int)
	}
	t.kinds[kind][what]++
}

// missing lists what has to have happened and has not.
func (t *tally) missing() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	need := func(kind string, names ...string) {
		for _, n := range names {
			if t.kinds[kind][n] == 0 {
				out = append(out, kind+": "+n)
			}
		}
	}
	for _, k := range sandbox.FaultKinds() {
		need("faults", string(k))
	}
	for _, s := range []drain.Status{drain.StatusDrained, drain.StatusPending, drain.StatusUnknown, drain.StatusTimedOut} {
		for _, p := range []sandbox.PendingState{sandbox.PendingPersisted, sandbox.PendingMemory} {
			need("verdicts", fmt.Sprintf("%s (%s)", s, p))
		}
	}
	need("acts", "fence done", "abort done", "commit done")
	need("applications", "stage ok", "stage failed", "commit ok", "commit failed", "abort ok", "fence ok", "die", "time out")
	return out
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, kind := range sortedKeysOf(t.kinds) {
		fmt.Fprintf(&b, "%s\n", kind)
		for _, what := range sortedKeysOf(t.kinds[kind]) {
			fmt.Fprintf(&b, "  %7d  %s\n", t.kinds[kind][what], what)
		}
	}
	return b.String()
}

func sortedKeysOf[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// pick returns one of several things.
func pick[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }
