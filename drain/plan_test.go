package drain

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/wire"
)

func TestPlanSteps(t *testing.T) {
	ongoing := holding("billing-1", 7, 3, "Ongoing", 0, 20*time.Second, 60_000)
	twoPhase := holding("flink-1", 7, 3, "Ongoing", 0, time.Hour, inspect.TwoPhaseTimeoutMS)
	overdue := holding("billing-1", 7, 3, "Ongoing", 0, time.Hour, 60_000)
	undescribed := inspect.Transaction{TransactionalID: "billing-1", State: "Ongoing", ProducerID: 7, ProducerEpoch: -1, TimeoutMS: -1}
	for name, c := range map[string]struct {
		ev      *inspect.Evidence
		o       Options
		action  Action
		reason  string // part of it
		warning string // part of one of the plan; "" is none
		want    func(Step) bool
	}{
		"waits for a timeout": {
			ev: evidence(with(ongoing), staged("g", 7, 3, 5)), action: ActionWait, reason: "by its timeout at 2026-07-01T12:00:50Z",
			want: func(s Step) bool {
				return *s.TransactionalID == "billing-1" && s.Records == 5 && slices.Equal(s.Groups, []string{"g"}) && *s.ProducerEpoch == 3
			},
		},
		"waits for markers": {
			ev:     evidence(with(holding("billing-1", 7, 4, "PrepareCommit", 0, 20*time.Second, 60_000)), staged("g", 7, 3, 5)),
			action: ActionWait, reason: "its end is decided (PrepareCommit)",
		},
		"never fences what is decided": {
			ev: evidence(with(holding("billing-1", 7, 4, "PrepareCommit", 0, 20*time.Second, 60_000)), staged("g", 7, 3, 5)),
			o:  Options{Fence: []string{"billing-1"}, FenceAll: true}, action: ActionWait, reason: "its end is decided",
		},
		"leaves markers that do not come": {
			ev: evidence(with(holding("billing-1", 7, 4, "PrepareCommit", 0, time.Hour, 60_000)), staged("g", 7, 3, 5)),
			o:  Options{FenceAll: true, AbortHanging: true}, action: ActionLeave, reason: "look at broker 1", warning: "is not waited for",
		},
		"leaves a two-phase commit": {
			ev: evidence(with(twoPhase), staged("g", 7, 3, 5)), action: ActionLeave, reason: "never times out", warning: `"flink-1" is not waited for: it is part of a two-phase commit`,
		},
		"all does not fence a two-phase commit": {
			ev: evidence(with(twoPhase), staged("g", 7, 3, 5)), o: Options{FenceAll: true},
			action: ActionLeave, reason: "fencing it discards it", warning: "is not waited for",
		},
		"its name does": {
			ev: evidence(with(twoPhase), staged("g", 7, 3, 5)), o: Options{Fence: []string{"flink-1"}},
			action: ActionFence, reason: "InitProducerId", warning: "discards the decision",
		},
		"fences all": {
			ev: evidence(with(ongoing), staged("g", 7, 3, 5)), o: Options{FenceAll: true}, action: ActionFence, reason: "aborts its transaction",
		},
		"fences what is registered and not staged yet": {
			ev: evidence(with(ongoing), group("g", 3)), o: Options{Fence: []string{"billing-1"}}, action: ActionFence, reason: "aborts its transaction",
		},
		"never fences what may hold nothing": {
			ev: evidence(with(undescribed), gap(silent())), o: Options{FenceAll: true}, action: ActionWait, reason: "it ends when its producer ends it",
		},
		"leaves what should have timed out": {
			ev: evidence(with(overdue), staged("g", 7, 3, 5)), action: ActionLeave, reason: "fencing it does", warning: "is not waited for",
		},
		"fences what should have timed out": {
			ev: evidence(with(overdue), staged("g", 7, 3, 5)), o: Options{FenceAll: true}, action: ActionFence, reason: "InitProducerId",
		},
		"leaves an orphan": {
			ev: evidence(staged("g", 7, 3, 5)), o: Options{FenceAll: true}, action: ActionLeave,
			reason: "no coordinator knows its transaction; --abort-hanging does", warning: "producer 7 is not waited for",
		},
		"aborts an orphan of unknown outcome, with a warning": {
			ev: evidence(staged("g", 7, 3, 5)), o: Options{AbortHanging: true}, action: ActionAbort,
			reason: "no coordinator knows its transaction", warning: "its records are delivered again",
			want: func(s Step) bool { return s.Records == 5 && slices.Equal(s.StatePartitions, []int32{0}) },
		},
		"aborts an orphan that was aborted": {
			ev: evidence(staged("g", 7, 3, 5), ended(holding("billing-1", 7, 4, "CompleteAbort", 0, time.Hour, 60_000))), o: Options{AbortHanging: true},
			action: ActionAbort, reason: `"billing-1" was aborted, and its marker did not arrive`,
		},
		"commits an orphan that was committed": {
			ev: evidence(staged("g", 7, 3, 5), ended(holding("billing-1", 7, 4, "CompleteCommit", 0, time.Hour, 60_000))), o: Options{AbortHanging: true},
			action: ActionCommit, reason: `"billing-1" was committed, and its marker did not arrive`,
		},
		"does not take a later commit for that of an orphan": {
			ev: evidence(staged("g", 7, 3, 5), ended(holding("billing-1", 7, 5, "CompleteCommit", 0, time.Hour, 60_000))), o: Options{AbortHanging: true},
			action: ActionAbort, reason: `"billing-1" has gone on since`, warning: "delivered again",
		},
		"an owner that is hidden is no orphan": {
			ev: evidence(staged("g", 7, 3, 5), gap(inspect.Gap{Source: inspect.SourceListTransactions, ACL: &inspect.ACL{ResourceType: "TRANSACTIONAL_ID"}})),
			o:  Options{AbortHanging: true, FenceAll: true}, action: ActionWait, reason: "cannot be seen",
		},
		"says what an act does out of scope": {
			ev: evidence(with(ongoing), staged("g", 7, 3, 5), staged("other", 7, 3, 2)), o: Options{Groups: []string{"g"}, FenceAll: true},
			action: ActionFence, reason: "InitProducerId", warning: "out of scope, which share its fate: other",
			want: func(s Step) bool { return s.Records == 5 && slices.Equal(s.OtherGroups, []string{"other"}) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(c.ev, c.o, t0)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.Steps) != 1 {
				t.Fatalf("steps %+v, want one", p.Steps)
			}
			s := p.Steps[0]
			if s.Action != c.action || !strings.Contains(s.Reason, c.reason) {
				t.Errorf("step is to %s: %q, want to %s with %q", s.Action, s.Reason, c.action, c.reason)
			}
			if c.want != nil && !c.want(s) {
				t.Errorf("step %+v is not as wanted", s)
			}
			if got := strings.Join(p.Warnings, "; "); !strings.Contains(got, c.warning) || c.warning == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
			if acts := p.Acts(); (len(acts) == 1) != c.action.acts() {
				t.Errorf("acts %+v of action %s", acts, c.action)
			}
		})
	}
}

// What is fenced by name has to be something that a drain may touch.
func TestPlanNamed(t *testing.T) {
	ev := evidence(
		with(holding("billing-1", 7, 3, "Ongoing", 0, 20*time.Second, 60_000),
			inspect.Transaction{TransactionalID: "shipping-1", State: "Ongoing", ProducerID: 8, TimeoutMS: 60_000, Started: t0, Partitions: []inspect.TopicPartitions{{Topic: "shipped", Partitions: []int32{0}}}}),
		staged("g", 7, 3, 5))
	for name, c := range map[string]struct {
		o       Options
		refused string // part of the error; "" is none
		warning string
	}{
		"without share acknowledgements": {o: Options{Fence: []string{"shipping-1"}}, refused: `fence "shipping-1": refused, nothing was changed: its transaction holds no share acknowledgements`},
		"out of scope":                   {o: Options{Fence: []string{"billing-1"}, Groups: []string{"other"}}, refused: "in the scope of this drain"},
		"ended":                          {o: Options{Fence: []string{"gone-1"}}, warning: `transaction "gone-1" is not open: there is nothing to fence`},
		"all leaves others alone":        {o: Options{FenceAll: true}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(ev, c.o, t0)
			if c.refused != "" {
				e, ok := errors.AsType[*RefusedError](err)
				if !ok || !strings.Contains(err.Error(), c.refused) || e.Hint() == "" {
					t.Errorf("NewPlan = %v, want it refused with %q", err, c.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(p.Warnings, "; "); got != c.warning {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
			for _, s := range p.Acts() {
				if *s.TransactionalID != "billing-1" {
					t.Errorf("an act on %s", s.Name())
				}
			}
		})
	}
}

// Transactions without share acknowledgements are waited for where it is asked
// for, and never acted on.
func TestPlanAllTransactions(t *testing.T) {
	plain := func(id, state string, ago time.Duration, timeout int32) inspect.Transaction {
		return inspect.Transaction{
			TransactionalID: id, State: state, ProducerID: 8, TimeoutMS: timeout, Started: t0.Add(-ago),
			Partitions: []inspect.TopicPartitions{{Topic: "shipped", Partitions: []int32{0}}},
		}
	}
	ev := evidence(
		with(holding("billing-1", 7, 3, "Ongoing", 0, 20*time.Second, 60_000),
			plain("shipping-1", "Ongoing", 20*time.Second, 60_000), plain("shipping-2", "Ongoing", time.Hour, inspect.TwoPhaseTimeoutMS),
			plain("shipping-3", "PrepareCommit", time.Second, 60_000), plain("shipping-4", "Ongoing", time.Hour, 60_000)),
		staged("g", 7, 3, 5))
	for name, c := range map[string]struct {
		o    Options
		want []string
	}{
		"no":            {Options{FenceAll: true}, []string{`fence "billing-1" true`}},
		"all":           {Options{AllTransactions: true}, []string{`wait "billing-1" true`, `wait "shipping-1" false`, `leave "shipping-2" false`, `wait "shipping-3" false`, `leave "shipping-4" false`}},
		"out of scope":  {Options{AllTransactions: true, Groups: []string{"other"}}, []string{`wait "billing-1" true`, `wait "shipping-1" false`, `leave "shipping-2" false`, `wait "shipping-3" false`, `leave "shipping-4" false`}},
		"never touched": {Options{AllTransactions: true, FenceAll: true}, []string{`fence "billing-1" true`, `wait "shipping-1" false`, `leave "shipping-2" false`, `wait "shipping-3" false`, `leave "shipping-4" false`}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(ev, c.o, t0)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range p.Steps {
				got = append(got, fmt.Sprint(s.Action, " ", s.Name(), " ", s.ShareAcks))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("steps %q, want %q", got, c.want)
			}
		})
	}
}

// What may concern the scope counts, also where another group is likelier.
func TestPlanScope(t *testing.T) {
	billing := with(holding("billing-1", 7, 3, "Ongoing", wire.ShareStatePartition("a", orders, 0, 50), 40*time.Second, 60_000))
	// two groups whose state is in the partition that the transaction lists
	other := ""
	for i := 0; other == ""; i++ {
		if id := fmt.Sprint("b", i); wire.ShareStatePartition(id, orders, 0, 50) == wire.ShareStatePartition("a", orders, 0, 50) {
			other = id
		}
	}
	unmoved := func(ev *inspect.Evidence) {
		ev.Groups[0].Partitions[0].UnmovedSince = t0.Add(-time.Minute)
	}
	for name, c := range map[string]struct {
		ev      *inspect.Evidence
		groups  []string
		topics  []string
		pending bool
	}{
		"the likely one":       {ev: evidence(billing, group("a", 0), group(other, 0), unmoved), groups: []string{"a"}, pending: true},
		"the other one":        {ev: evidence(billing, group("a", 0), group(other, 0), unmoved), groups: []string{other}, pending: true},
		"the only one":         {ev: evidence(billing, group("a", 0)), groups: []string{"a"}, pending: true},
		"not the only one":     {ev: evidence(billing, group("a", 0)), groups: []string{other}},
		"one that is done":     {ev: evidence(billing, group("a", 0), group("c", 0)), groups: []string{"c"}},
		"nobody is known":      {ev: evidence(billing), groups: []string{"a"}, pending: true},
		"another topic":        {ev: evidence(staged("a", 7, 3, 1)), topics: []string{"shipped"}},
		"the topic":            {ev: evidence(staged("a", 7, 3, 1)), topics: []string{"orders"}, pending: true},
		"a topic that is gone": {ev: evidence(staged("a", 7, 3, 1), func(ev *inspect.Evidence) { ev.Topics = nil }), topics: []string{"orders"}, pending: true},
		"another group":        {ev: evidence(staged("a", 7, 3, 1)), groups: []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(c.ev, Options{Groups: c.groups, Topics: c.topics}, t0)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Pending.Status == inspect.StatusPending; got != c.pending || len(p.Steps) > 0 != c.pending {
				t.Errorf("%s (%s) with steps %+v, want pending: %v", p.Pending.Status, p.Pending.Reason, p.Steps, c.pending)
			}
		})
	}
}

// Fencing comes before markers, whoever is older.
func TestPlanMildestFirst(t *testing.T) {
	ev := evidence(staged("g", 9, 0, 1), staged("g", 7, 3, 5), with(holding("billing-1", 7, 3, "Ongoing", 0, time.Second, 60_000)))
	ev.States[0].Written = t0.Add(-time.Hour)
	p, err := NewPlan(ev, Options{FenceAll: true, AbortHanging: true}, t0)
	if err != nil {
		t.Fatal(err)
	}
	var got []Action
	for _, s := range p.Acts() {
		got = append(got, s.Action)
	}
	if want := []Action{ActionFence, ActionAbort}; !slices.Equal(got, want) || p.Steps[0].Action != ActionAbort {
		t.Errorf("acts %v of steps %+v, want %v", got, p.Steps, want)
	}
}

func TestPlanTimes(t *testing.T) {
	released := func(ev *inspect.Evidence) { ev.Support.Verdict = cluster.NotSupported }
	disabled := func(ev *inspect.Evidence) { ev.Support.Verdict = cluster.NotEnabled }
	unused := func(ev *inspect.Evidence) { ev.StatePartitions = 0 }
	persisted := func(ev *inspect.Evidence) { ev.Persists = true }
	long := holding("billing-1", 7, 3, "Ongoing", 0, 20*time.Second, 600_000)
	for name, c := range map[string]struct {
		ev      *inspect.Evidence
		o       Options
		quiet   time.Duration
		timeout time.Duration
	}{
		"may be in memory":          {ev: evidence(), quiet: 70 * time.Second, timeout: 100 * time.Second},
		"may be in memory, longest": {ev: evidence(with(long), group("g", 0)), quiet: 610 * time.Second, timeout: 590*time.Second + 610*time.Second + 30*time.Second},
		"written down":              {ev: evidence(persisted), quiet: 5 * time.Second, timeout: 35 * time.Second},
		"written down, and open":    {ev: evidence(with(long), staged("g", 7, 3, 1)), quiet: 5 * time.Second, timeout: 590*time.Second + 5*time.Second + 30*time.Second},
		"looks far apart":           {ev: evidence(persisted), o: Options{Interval: 10 * time.Second}, quiet: 20 * time.Second, timeout: 50 * time.Second},
		"cannot stage":              {ev: evidence(disabled), quiet: 5 * time.Second, timeout: 35 * time.Second},
		"was never used":            {ev: evidence(unused), quiet: 5 * time.Second, timeout: 35 * time.Second},
		"released":                  {ev: evidence(released), quiet: 5 * time.Second, timeout: 35 * time.Second},
		"as told":                   {ev: evidence(), o: Options{QuietPeriod: time.Second, Timeout: time.Minute}, quiet: time.Second, timeout: time.Minute},
		"fencing takes a moment":    {ev: evidence(with(long), staged("g", 7, 3, 1)), o: Options{FenceAll: true}, quiet: 5 * time.Second, timeout: 95 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(c.ev, c.o, t0)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Deadline.Sub(t0); p.QuietPeriod != c.quiet || got != c.timeout {
				t.Errorf("quiet period %v and timeout %v, want %v and %v", p.QuietPeriod, got, c.quiet, c.timeout)
			}
		})
	}
}

// What a drain was told to do, and could not finish, is no advice.
func TestHintAfterFence(t *testing.T) {
	fence := Step{Action: ActionFence, TransactionalID: new("billing-1"), TransactionState: new("Ongoing")}
	for status, want := range map[ActStatus]string{
		"":         "--fence billing-1",
		ActUnknown: "kshare inspect pending",
		ActFailed:  "kshare inspect pending",
	} {
		res := &Result{Steps: []Step{fence}}
		if status != "" {
			res.Acts = []ActResult{{Step: fence, Status: status}}
		}
		if got := (&TimeoutError{Result: res}).Hint(); !strings.Contains(got, want) {
			t.Errorf("act %q: hint %q, want one about %q", status, got, want)
		}
	}
}

// A dry run says whether the drain could succeed.
func TestDryRun(t *testing.T) {
	ongoing := holding("billing-1", 7, 3, "Ongoing", 0, 20*time.Second, 60_000)
	for name, c := range map[string]struct {
		ev     *inspect.Evidence
		o      Options
		status Status
		acts   int
		failed string // part of the error; "" is none
	}{
		"nothing pending":   {ev: evidence(), status: StatusDrained},
		"ends by itself":    {ev: evidence(with(ongoing), staged("g", 7, 3, 5)), status: StatusPending},
		"is fenced":         {ev: evidence(with(ongoing), staged("g", 7, 3, 5)), o: Options{FenceAll: true}, status: StatusPending, acts: 1},
		"orphan":            {ev: evidence(staged("g", 7, 3, 5)), status: StatusPending, failed: "producer 7: no transaction will end it"},
		"orphan is aborted": {ev: evidence(staged("g", 7, 3, 5)), o: Options{AbortHanging: true}, status: StatusPending, acts: 1},
		"hidden":            {ev: evidence(gap(hidden())), status: StatusUnknown, failed: "it is not known what is pending"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(c.ev, c.o, t0)
			if err != nil {
				t.Fatal(err)
			}
			res, err := p.DryRun()
			if res.Status != c.status || !res.DryRun || len(res.Acts) != c.acts {
				t.Errorf("DryRun = %s (%s) with %d acts, want %s with %d", res.Status, res.Reason, len(res.Acts), c.status, c.acts)
			}
			for _, a := range res.Acts {
				if a.Status != ActPlanned {
					t.Errorf("act %s is %s", a.Name(), a.Status)
				}
			}
			if c.failed == "" && err != nil || c.failed != "" && (err == nil || !strings.Contains(err.Error(), c.failed)) {
				t.Errorf("DryRun fails with %v, want %q", err, c.failed)
			}
		})
	}
}
