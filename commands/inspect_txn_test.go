package commands

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
)

func TestInspectTxnParsing(t *testing.T) {
	for args, want := range map[string]inspectTxnOptions{
		"":                              {},
		"billing-7|b 8":                 {TransactionalIDs: []string{"billing-7", "b 8"}},
		"--all":                         {All: true},
		"--state|ongoing,PrepareCommit": {States: []string{"Ongoing", "PrepareCommit"}},
		"--state|Empty|--state|CompleteAbort|--all": {All: true, States: []string{"Empty", "CompleteAbort"}},
		"--older-than|90s|--pattern|a.*":            {OlderThan: 90 * time.Second, Pattern: "a.*"},
		"--hanging|--older-than|1m":                 {Hanging: true, OlderThan: time.Minute},
	} {
		if got, err := parseInspect(t, newInspectTxnCmd, args); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("inspect txn %s = %+v, %v, want %+v", args, got, err, want)
		}
	}
	for args, want := range map[string]string{
		"--state|Dead":                          `--state "Dead": want Ongoing, PrepareCommit`,
		"--pattern|(":                           `--pattern "(": error parsing regexp`,
		"--older-than|0s":                       "--older-than 0s: want a positive duration",
		"--older-than=-1s":                      "--older-than -1s: want a positive duration",
		"--older-than|1m|--state|Ongoing,Empty": "--older-than is about open transactions, and --state Empty is none",
		"a|":                                    "a transactional ID is empty",
		"x|--all":                               "--all chooses from a list, and transactional IDs are named",
		"x|--hanging":                           "--hanging chooses from a list",
		"x|--state|Ongoing":                     "--state chooses from a list",
		"--hanging|--all":                       "--all and --hanging exclude each other",
		"--hanging|--pattern|a":                 "--pattern and --hanging exclude each other",
		"--hanging|--state|Empty":               "--state and --hanging exclude each other",
	} {
		_, err := parseInspect(t, newInspectTxnCmd, args)
		if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("inspect txn %s: error %v (%d), want a usage error with %q", args, err, code, want)
		}
	}
}

// goldenTxns has a transaction of every kind.
func goldenTxns() *inspect.TxnReport {
	started := pendingNoon.Add(-72 * time.Second)
	of := func(id, state string, pid int64, epoch int16) inspect.TxnRow {
		return inspect.TxnRow{
			TransactionalID: id, State: state, ProducerID: pid, ProducerEpoch: &epoch, Coordinator: 2, TimeoutMS: new(int32(60_000)),
			Started: &started, HoldsShareAcks: new(false), Partitions: []inspect.TopicPartitions{},
		}
	}
	acks := of("billing-7", "Ongoing", 4000, 3)
	acks.Started, acks.AgeMS, acks.Deadline = new(pendingNoon.Add(-12300*time.Millisecond)), pendingAge(12300*time.Millisecond), new(pendingNoon.Add(57700*time.Millisecond))
	acks.HoldsShareAcks = new(true)
	acks.Partitions = []inspect.TopicPartitions{{Topic: "__consumer_offsets", Partitions: []int32{4}}, {Topic: "__share_group_state", Partitions: []int32{17, 18, 40}}, {Topic: "shipped", Partitions: []int32{0}}}
	commit := of("billing-8", "PrepareCommit", 4001, 0)
	commit.AgeMS, commit.HoldsShareAcks = pendingAge(72*time.Second), new(true)
	commit.Partitions = []inspect.TopicPartitions{{Topic: "__share_group_state", Partitions: []int32{3}}}
	over := of("over", "Ongoing", 4002, 1)
	over.AgeMS, over.Deadline = pendingAge(72*time.Second), new(pendingNoon.Add(-2*time.Second))
	two := of("flink-sink-1", "Ongoing", 4003, 8)
	two.TwoPhase, two.TimeoutMS, two.AgeMS = true, new(int32(inspect.TwoPhaseTimeoutMS)), pendingAge(72*time.Second)
	done := of("done", "CompleteCommit", 4004, 2)
	empty := of("empty", "Empty", 4005, 0)
	empty.Started = nil
	vague := inspect.TxnRow{TransactionalID: "vague", State: "Ongoing", ProducerID: 4006, Coordinator: 1}
	return &inspect.TxnReport{ClusterID: "golden", Time: pendingNoon, Rows: []inspect.TxnRow{acks, commit, done, empty, two, over, vague}}
}

func TestInspectTxnGolden(t *testing.T) {
	all := goldenTxns()
	named := goldenTxns()
	named.Rows = named.Rows[:3]
	odd := goldenTxns()
	for i, id := range oddIDs() {
		odd.Rows[i].TransactionalID = id
	}
	odd.Rows = odd.Rows[:len(oddIDs())]
	denied := &inspect.TxnReport{ClusterID: "golden", Time: pendingNoon, Gaps: []inspect.Gap{{
		Source: inspect.SourceDescribeTransactions, Reason: "this principal lacks DESCRIBE on TRANSACTIONAL_ID *", KafkaError: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
		ACL: &inspect.ACL{Operation: "DESCRIBE", ResourceType: "TRANSACTIONAL_ID", ResourceName: "*"}, Advice: "grant it",
	}}}
	for name, v := range map[string]output.View{
		"list":   inspectTxnView(all, inspectTxnOptions{All: true}),
		"named":  inspectTxnView(named, inspectTxnOptions{TransactionalIDs: []string{"billing-7", "billing-8", "done"}}),
		"odd":    inspectTxnView(odd, inspectTxnOptions{All: true}),
		"denied": inspectTxnView(denied, inspectTxnOptions{}),
	} {
		t.Run(name, func(t *testing.T) { inspectGolden(t, "txn_"+name, v) })
	}
}

func TestInspectHangingGolden(t *testing.T) {
	d := &Deps{flags: &globalFlags{}}
	row := inspect.HangingRow{
		Topic: "__consumer_offsets", Partition: 7, Leader: 1, ProducerID: 4000, ProducerEpoch: 3, CoordinatorEpoch: new(int32(5)), StartOffset: 120,
		LastTimestamp: new(pendingNoon.Add(-26 * time.Hour)), AgeMS: pendingAge(26 * time.Hour), Certain: true,
		Reason:  "no coordinator knows a transaction of its producer",
		Command: []string{"txn", "abort", "--topic", "__consumer_offsets", "--partition", "7", "--producer-id", "4000", "--producer-epoch", "3"},
	}
	ended := row
	ended.Topic, ended.CoordinatorEpoch, ended.TransactionalID, ended.TransactionState = "orders", nil, new("billing-7"), new("CompleteAbort")
	vague := row
	vague.Topic, vague.Certain, vague.Command, vague.LastTimestamp, vague.AgeMS = "shipped", false, nil, nil, nil
	vague.Reason = "no transaction of its producer is seen, and it may be hidden"
	some := &inspect.HangingReport{ClusterID: "golden", Time: pendingNoon, Rows: []inspect.HangingRow{row, ended, vague}, Partitions: 62}
	gap := *some
	gap.Rows, gap.Gaps = nil, []inspect.Gap{{Source: inspect.SourceDescribeProducers, Reason: "this principal lacks READ on TOPIC orders", ACL: &inspect.ACL{Operation: "READ", ResourceType: "TOPIC", ResourceName: "orders"}}}
	for name, r := range map[string]*inspect.HangingReport{
		"some": some, "none": {ClusterID: "golden", Time: pendingNoon, Partitions: 62}, "denied": &gap,
	} {
		t.Run(name, func(t *testing.T) { inspectGolden(t, "hanging_"+name, inspectHangingView(d, r)) })
	}
}

func TestEmptyTxns(t *testing.T) {
	for _, c := range []struct {
		others int
		opts   inspectTxnOptions
		want   string
	}{
		{0, inspectTxnOptions{}, "no open transaction holds share acknowledgements"},
		{3, inspectTxnOptions{}, "no open transaction holds share acknowledgements; --all lists 3 more"},
		{0, inspectTxnOptions{All: true}, "no transaction is known"},
		{0, inspectTxnOptions{All: true, OlderThan: time.Minute}, "no open transaction of that kind is known"},
		{1, inspectTxnOptions{States: []string{"Empty"}}, "no transaction of that kind holds share acknowledgements; --all lists 1 more"},
	} {
		if got := emptyTxns(&inspect.TxnReport{Others: c.others}, c.opts); got != c.want {
			t.Errorf("%+v: %q, want %q", c.opts, got, c.want)
		}
	}
}

// What is found is shown also where something that was named is not there.
func TestInspectTxnShowsTheRest(t *testing.T) {
	var out, errOut strings.Builder
	d := &Deps{Out: &out, ErrOut: &errOut, Getenv: func(string) string { return "" }, Now: func() time.Time { return pendingNoon }, flags: &globalFlags{}}
	rep := goldenTxns()
	rep.Rows = rep.Rows[:1]
	cmd := newInspectTxnCmd(d, func(context.Context, *Deps, inspectTxnOptions) (*txnResult, error) {
		return &txnResult{Txns: rep}, &inspect.TransactionNotFoundError{TransactionalID: "x"}
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"billing-7", "x"})
	err := cmd.ExecuteContext(t.Context())
	if _, ok := errors.AsType[*inspect.TransactionNotFoundError](err); !ok || !strings.Contains(out.String(), "billing-7") {
		t.Errorf("stdout %q and error %v, want what is there and what is not", out.String(), err)
	}
	if code := d.report(err); code != exitFailed || !strings.Contains(errOut.String(), `no such transactional ID: "x"`) {
		t.Errorf("it ends with %d and says %q", code, errOut.String())
	}
}
