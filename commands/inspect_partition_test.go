package commands

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
)

func TestInspectPartitionParsing(t *testing.T) {
	want := inspectPartitionOptions{GroupID: "g", Topic: "orders", Partition: 7}
	if got, err := parseInspect(t, newInspectPartitionCmd, "g|orders|7"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("inspect partition = %+v, %v, want %+v", got, err, want)
	}
	want.Dialect = "draft"
	if got, err := parseInspect(t, newInspectPartitionCmd, "--dialect|draft|g|orders|07"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("inspect partition = %+v, %v, want %+v", got, err, want)
	}
	for args, want := range map[string]string{
		"g|orders|x":               `partition "x": want a number from 0 on`,
		"g|orders|2147483648":      `partition "2147483648": want a number from 0 on`,
		"g|--|orders|-1":           `partition "-1": want a number from 0 on`,
		"|orders|0":                "the group ID is empty",
		"g||0":                     `the topic "": a name has 1 to 249`,
		"g|a/b|0":                  `the topic "a/b": a name has 1 to 249`,
		"g|orders|0|--dialect|old": `--dialect "old": want kip or draft`,
	} {
		_, err := parseInspect(t, newInspectPartitionCmd, args)
		if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("inspect partition %s: error %v (%d), want a usage error with %q", args, err, code, want)
		}
	}
}

func partitionReport(change func(*inspect.PartitionReport)) *inspect.PartitionReport {
	r := &inspect.PartitionReport{
		ClusterID: "golden", Time: pendingNoon, GroupID: "billing", GroupState: new("Stable"), Topic: "orders", TopicID: "Z03cdLzLTb6RkKltydTIXQ",
		Partition: 3, Members: []string{"Xf1ztk5HQ9m4TTFZMHGzDw"}, StartOffset: new(int64(1200)), EndOffset: new(int64(1260)), Lag: new(int64(50)),
		Leader: new(int32(1)), LeaderEpoch: new(int32(4)), StatePartition: new(int32(17)), ShareCoordinator: new(int32(2)),
		StateRead: true, StateEpoch: new(int32(2)), StateLeaderEpoch: new(int32(4)), DeliveryCompleteCount: new(int32(10)),
		InFlight: inspect.InFlight{AtMost: new(int64(50)), Reason: "what is acquired is known to the leader of the partition alone, in memory, and is never persisted"},
	}
	if change != nil {
		change(r)
	}
	return r
}

func goldenRange(first, last int64, state wire.RecordState, count int16) inspect.RangeRow {
	r := inspect.RangeRow{FirstOffset: first, LastOffset: last, Count: last - first + 1, State: state.String(), RecordState: state, DeliveryCount: count}
	if state == wire.TxPending {
		r.Owner = new(inspect.RangeOwner)
	}
	return r
}

// somePartition has ranges of all states, one of them pending with an owner.
func somePartition(r *inspect.PartitionReport) {
	owned := goldenRange(1212, 1219, wire.TxPending, 1)
	*owned.Owner = inspect.RangeOwner{
		AcknowledgeType: new("accept"), ProducerID: new(int64(4000)), ProducerEpoch: new(int16(3)),
		TransactionalID: new("billing-7"), TransactionState: new("Ongoing"), AgeMS: pendingAge(12300 * time.Millisecond), Verdict: inspect.VerdictExact,
	}
	foreign := goldenRange(1220, 1220, wire.TxPending, 2)
	r.Ranges = []inspect.RangeRow{
		goldenRange(1200, 1207, wire.Acknowledged, 1), goldenRange(1208, 1209, wire.Archived, 5), goldenRange(1210, 1211, wire.Available, 2),
		owned, foreign, goldenRange(1221, 1221, wire.Archiving, 5), goldenRange(1230, 1231, wire.RecordState(9), 1),
	}
	r.InFlight.AtLeast = 9
	r.TxPending = &inspect.TxPendingSummary{Status: inspect.StatusPending, Reason: "9 records are in TX_PENDING", Records: 9, SharePartitions: 1, Owners: 2, OldestAgeMS: pendingAge(12300 * time.Millisecond)}
}

func TestInspectPartitionGolden(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*inspect.PartitionReport)
		width  int
	}{
		"all":    {somePartition, 80},
		"narrow": {somePartition, 12},
		"none":   {func(r *inspect.PartitionReport) { r.DeliveryCompleteCount = new(int32(0)) }, 40},
		"new": {func(r *inspect.PartitionReport) { // no start offset yet
			r.StartOffset, r.Lag, r.InFlight.AtMost, r.StateEpoch, r.StateLeaderEpoch, r.DeliveryCompleteCount = nil, nil, nil, nil, nil, nil
			r.EndOffset = new(int64(0))
		}, 40},
		"pending_all": {func(r *inspect.PartitionReport) {
			r.EndOffset, r.Lag = new(int64(1203)), new(int64(3))
			r.Ranges = []inspect.RangeRow{goldenRange(1200, 1202, wire.TxPending, 1)}
			r.InFlight.AtLeast, r.InFlight.AtMost = 3, r.Lag
		}, 40},
		"memory": {func(r *inspect.PartitionReport) {
			r.TxPending = &inspect.TxPendingSummary{Status: inspect.StatusPending, Reason: "a transaction may hold records"}
			r.Pending = []inspect.PendingRow{{Verdict: inspect.VerdictLikely, TransactionalID: new("billing-7"), StatePartition: 17, Evidence: []string{"it lists __share_group_state-17", "one share-partition alone is not done there"}}}
		}, 40},
		"denied": {func(r *inspect.PartitionReport) {
			r.StateRead, r.StateEpoch, r.StateLeaderEpoch, r.DeliveryCompleteCount = false, nil, nil, nil
			r.Gaps = []inspect.Gap{{
				Source: inspect.SourceShareGroupState, Reason: "this principal lacks CLUSTER_ACTION on CLUSTER kafka-cluster", KafkaError: "CLUSTER_AUTHORIZATION_FAILED",
				ACL: &inspect.ACL{Operation: "CLUSTER_ACTION", ResourceType: "CLUSTER", ResourceName: "kafka-cluster"}, Advice: "grant it",
			}}
		}, 40},
		"recreated": {func(r *inspect.PartitionReport) { r.TopicState, r.EndOffset = "recreated", nil }, 40},
		"odd": {func(r *inspect.PartitionReport) {
			somePartition(r)
			r.GroupID, r.Ranges[3].Owner.TransactionalID = oddIDs()[2], new(oddIDs()[3])
		}, 80},
	} {
		t.Run(name, func(t *testing.T) {
			inspectGolden(t, "partition_"+name, inspectPartitionView(partitionReport(c.change), c.width))
		})
	}
}

// On a terminal the strip is as wide as it, and its letters are in colour.
func TestInspectPartitionOnATerminal(t *testing.T) {
	r := partitionReport(somePartition)
	d := &Deps{StdoutTTY: true, Width: 33}
	if d.stripWidth() != 33 || (&Deps{Width: 33}).stripWidth() != 80 {
		t.Error("the strip is not as wide as the terminal, or not 80 without one")
	}
	var b strings.Builder
	if err := output.Write(&b, inspectPartitionView(r, 33), output.Options{Color: true, Width: 33}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\x1b[32mKKKK\x1b[0m", "\x1b[33mPPPPp\x1b[0m"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%q", want, b.String())
		}
	}
}
