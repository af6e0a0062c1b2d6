package commands

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestDrainParsing(t *testing.T) {
	for args, want := range map[string]drainOptions{
		"":                                     {},
		"--group|a|--group|b,c|--topic|orders": {Options: drain.Options{Groups: []string{"a", "b,c"}, Topics: []string{"orders"}}},
		"--fence|billing-1|--fence|a,b":        {Options: drain.Options{Fence: []string{"billing-1", "a,b"}}},
		"--fence|all":                          {Options: drain.Options{Fence: []string{}, FenceAll: true}},
		"--fence|all|--fence|flink-1|--abort-hanging": {Options: drain.Options{Fence: []string{"flink-1"}, FenceAll: true, AbortHanging: true}},
		"--accept-memory": {Options: drain.Options{AcceptMemory: true}},
		"--quiet-period|30s|--interval|1s|--dry-run|--dialect|kip": {Options: drain.Options{QuietPeriod: 30 * time.Second, Interval: time.Second}, DryRun: true, connection: connection{Dialect: "kip"}},
	} {
		got, err := parseAct(t, newDrainCmd, args, true)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("drain %s = %+v, %v, want %+v", args, got, err, want)
		}
	}
}

func TestDrainUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		yes  bool
		want string
	}{
		{"x", true, "takes no argument"},
		{"--interval|10ms", true, "--interval 10ms: want at least 100ms"},
		{"--quiet-period|0s", true, "--quiet-period 0s: want a positive duration"},
		{"--dialect|x", true, `--dialect "x"`},
		// What may change the cluster is not begun where nobody can be asked.
		{"--fence|all", false, "there is no terminal to confirm it on"},
		{"--abort-hanging", false, "there is no terminal to confirm it on"},
	} {
		_, err := parseAct(t, newDrainCmd, c.args, c.yes)
		if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("drain %s: error %v (%d), want a usage error with %q", c.args, err, code, c.want)
		}
	}
	for _, args := range []string{"", "--fence|all|--dry-run"} {
		if _, err := parseAct(t, newDrainCmd, args, false); err != nil {
			t.Errorf("drain %s without --yes: %v, want it to go on: it changes nothing", args, err)
		}
	}
}

// drainEvidence is a cluster with all kinds of holders.
func drainEvidence() *inspect.Evidence {
	orders := [16]byte{1}
	at := func(ago time.Duration) time.Time { return pendingNoon.Add(-ago) }
	holding := func(id string, producerID int64, epoch int16, state string, ago time.Duration, timeout int32) inspect.Transaction {
		return inspect.Transaction{
			TransactionalID: id, State: state, ProducerID: producerID, ProducerEpoch: epoch, Coordinator: 1, TimeoutMS: timeout, Started: at(ago),
			Partitions: []inspect.TopicPartitions{{Topic: statesTopic, Partitions: []int32{0}}},
		}
	}
	staged := func(group string, producerID int64, epoch int16, first, last int64) inspect.ShareState {
		return inspect.ShareState{
			GroupID: group, TopicID: orders, Partition: 0, Sources: []inspect.Source{inspect.SourceStateTopic},
			Batches: []wire.StateBatch{{
				FirstOffset: first, LastOffset: last, DeliveryState: wire.TxPending, DeliveryCount: 1,
				Staged: wire.StagedOwner{ProducerID: producerID, ProducerEpoch: epoch, AcknowledgeType: int8(wire.Accept)},
			}},
		}
	}
	return &inspect.Evidence{
		Time: pendingNoon, ClusterID: "golden", Sweep: 10 * time.Second, StatePartitions: 50, Persists: true,
		Support: cluster.Support{Verdict: cluster.Usable}, Topics: map[[16]byte]string{orders: "orders"},
		Transactions: []inspect.Transaction{
			holding("billing-1", 7, 3, "Ongoing", 20*time.Second, 60_000),
			holding("billing-2", 8, 1, "PrepareCommit", 5*time.Second, 60_000),
			holding("flink-1", 9, 0, "Ongoing", time.Hour, inspect.TwoPhaseTimeoutMS),
		},
		States: []inspect.ShareState{
			staged("billing", 7, 3, 10, 14), staged("audit", 8, 0, 3, 3), staged("billing", 9, 0, 20, 21), staged("billing", 11, 4, 30, 30),
		},
	}
}

// drainWorld executes a plan on what does not change, with acts that fail for one
// holder, in no time.
type drainWorld struct{ now time.Time }

func (w *drainWorld) Now() time.Time { return w.now }

func (w *drainWorld) Wait(_ context.Context, d time.Duration) error {
	w.now = w.now.Add(d)
	return nil
}

func (w *drainWorld) Observe(context.Context, []string) (drain.Observation, error) {
	ev := drainEvidence()
	ev.Time = w.now
	// What is fenced is gone, and what was being committed, too.
	ev.Transactions = ev.Transactions[2:]
	ev.States = ev.States[2:]
	return drain.Observation{Evidence: ev}, nil
}

func (*drainWorld) Fence(context.Context, drain.Step) error { return nil }

func (*drainWorld) WriteMarkers(_ context.Context, s drain.Step) error {
	return &cluster.Error{Op: "write the ABORT marker of producer 11, epoch 4", Broker: 2, Topic: statesTopic, Partition: s.StatePartitions[0], Err: kerr.ClusterAuthorizationFailed}
}

func TestDrainGolden(t *testing.T) {
	plan, err := drain.NewPlan(drainEvidence(), drain.Options{FenceAll: true, AbortHanging: true}, pendingNoon)
	if err != nil {
		t.Fatal(err)
	}
	dry, err := plan.DryRun()
	if _, ok := errors.AsType[*drain.NotDrainedError](err); !ok {
		t.Fatalf("the dry run ends with %v, want it not to drain a two-phase commit", err)
	}
	w := &drainWorld{now: pendingNoon}
	done, err := plan.Execute(t.Context(), drain.Execution{Observer: w, Actor: w, Clock: w})
	if _, ok := errors.AsType[*drain.PartialError](err); !ok {
		t.Fatalf("the drain ends with %v, want it partly done", err)
	}
	drained, err := drain.NewPlan(&inspect.Evidence{Time: pendingNoon, ClusterID: "golden", StatePartitions: 50, Persists: true, Support: cluster.Support{Verdict: cluster.Usable}}, drain.Options{Groups: []string{"billing"}}, pendingNoon)
	if err != nil {
		t.Fatal(err)
	}
	nothing, err := drained.DryRun()
	if err != nil {
		t.Fatal(err)
	}
	d := &Deps{Now: func() time.Time { return pendingNoon }, flags: &globalFlags{}}
	for name, res := range map[string]*drain.Result{"drain_dry_run": dry, "drain_partly": done, "drain_nothing": nothing} {
		t.Run(name, func(t *testing.T) {
			v := drainView(d, res)
			v.Time = pendingNoon
			golden(t, filepath.Join("testdata", name+".golden"), allFormats(t, v))
		})
	}
}

// allFormats is a view as each format writes it.
func allFormats(t *testing.T, v output.View) string {
	t.Helper()
	var b strings.Builder
	for _, f := range []output.Format{output.FormatTable, output.FormatWide, output.FormatCSV, output.FormatJSON} {
		b.WriteString("-- " + string(f) + " --\n")
		if err := output.Write(&b, v, output.Options{Format: f}); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// What is said before and during a drain.
func TestDrainSays(t *testing.T) {
	plan, err := drain.NewPlan(drainEvidence(), drain.Options{FenceAll: true, AbortHanging: true}, pendingNoon)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	d := &Deps{Now: func() time.Time { return pendingNoon }, ErrOut: &b, Getenv: func(string) string { return "" }, flags: &globalFlags{Color: colorNever}}
	d.announceDrain(plan, drainOptions{})
	d.Notice(drainQuestion(plan, plan.Acts()))
	for _, p := range []drain.Progress{
		{Records: 5, Holders: 2, NextDeadline: pendingNoon.Add(12 * time.Second), Left: time.Minute},
		{Records: 5, Holders: 1, Acting: 3, Left: time.Minute},
		{Clean: true, Quiet: 2 * time.Second, QuietPeriod: 5 * time.Second, Left: 30 * time.Second},
		{Holders: 1, Left: time.Second, Running: []drain.Producer{{TransactionalID: "a"}, {TransactionalID: "b"}, {TransactionalID: "c"}, {TransactionalID: "d"}}},
		{Unknown: "broker 2 did not answer", Left: -time.Second},
	} {
		d.Notice(drainNote(p, pendingNoon))
	}
	golden(t, filepath.Join("testdata", "drain_stderr.golden"), b.String())
}
