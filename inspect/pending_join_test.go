package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
)

// Twelve o'clock is when the evidence is from. With 50 partitions of
// __share_group_state the share-partitions of topic ID t1 are kept where
// statePartition says.
var (
	noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	t1   = [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	t2   = [16]byte{2}
)

const t1Text = "AAECAwQFBgcICQoLDA0ODw"

func statePartition(group string, partition int32) int32 {
	return wire.ShareStatePartition(group, t1, partition, 50)
}

// evidence is what a cluster with the group g1 on the topic orders says; nothing
// is pending there.
func evidence(changes ...func(*Evidence)) *Evidence {
	ev := &Evidence{
		Time: noon, ClusterID: "c1", StatePartitions: 50, Sweep: 10 * time.Second,
		Support: cluster.Support{Verdict: cluster.Usable},
		Topics:  map[[16]byte]string{t1: "orders"},
	}
	for _, change := range changes {
		change(ev)
	}
	return ev
}

// txn is a transaction that began ten seconds ago with a timeout of a minute and
// lists state partitions; -1 in parts is one that was not described.
func txn(id, state string, pid int64, epoch int16, parts ...int32) Transaction {
	t := Transaction{
		TransactionalID: id, State: state, ProducerID: pid, ProducerEpoch: epoch, Coordinator: 2,
		TimeoutMS: 60_000, Started: noon.Add(-10 * time.Second),
		Partitions: []TopicPartitions{{"shipped", []int32{0}}},
	}
	switch {
	case slices.Contains(parts, -1):
		t.ProducerEpoch, t.TimeoutMS, t.Started, t.Partitions = -1, -1, time.Time{}, nil
	case len(parts) > 0:
		t.Partitions = append([]TopicPartitions{{stateTopic, parts}}, t.Partitions...)
	}
	return t
}

func with(ts ...Transaction) func(*Evidence) {
	return func(ev *Evidence) { ev.Transactions = append(ev.Transactions, ts...) }
}

func ended(ts ...Transaction) func(*Evidence) {
	return func(ev *Evidence) { ev.Ended = append(ev.Ended, ts...) }
}

func gap(g Gap) func(*Evidence) {
	return func(ev *Evidence) { ev.Gaps = append(ev.Gaps, g) }
}

// states is the state of one partition of orders in a group.
func states(group string, partition int32, batches ...wire.StateBatch) func(*Evidence) {
	return func(ev *Evidence) {
		ev.States = append(ev.States, ShareState{
			GroupID: group, TopicID: t1, Partition: partition, StatePartition: statePartition(group, partition),
			Batches: batches, Sources: []Source{SourceStateTopic, SourceShareGroupState},
		})
		ev.Persists = true
	}
}

func written(at time.Time) func(*Evidence) {
	return func(ev *Evidence) { ev.States[len(ev.States)-1].Written = at }
}

// staged is a range of records that a producer has staged.
func staged(first, last, pid int64, epoch int16, ack wire.AcknowledgeType) wire.StateBatch {
	return wire.StateBatch{
		FirstOffset: first, LastOffset: last, DeliveryState: wire.TxPending, DeliveryCount: 1,
		Staged: wire.StagedOwner{ProducerID: pid, ProducerEpoch: epoch, AcknowledgeType: int8(ack), DeliveryState: int8(wire.Acknowledged)},
	}
}

func ownerless(first, last int64) wire.StateBatch {
	return wire.StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: wire.TxPending, DeliveryCount: 2, Staged: wire.NoStagedOwner()}
}

// group is a group with partitions of orders and their lags.
func group(id string, lags ...int64) func(*Evidence) {
	return func(ev *Evidence) {
		g := Group{GroupID: id, State: "Stable"}
		for i, lag := range lags {
			g.Partitions = append(g.Partitions, SharePartition{Topic: "orders", TopicID: t1, Partition: int32(i), Lag: lag})
		}
		ev.Groups = append(ev.Groups, g)
	}
}

func unmoved(partition int32, since time.Time) func(*Evidence) {
	return func(ev *Evidence) { ev.Groups[len(ev.Groups)-1].Partitions[partition].UnmovedSince = since }
}

// row is a row in short: verdict, records, owner, and marks.
func row(r PendingRow) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", r.Verdict)
	if r.GroupID != nil {
		topic := "?"
		if r.Topic != nil {
			topic = *r.Topic
		}
		fmt.Fprintf(&b, " %s/%s-%d", *r.GroupID, topic, *r.Partition)
	}
	if r.FirstOffset != nil {
		fmt.Fprintf(&b, " %d-%d", *r.FirstOffset, *r.LastOffset)
		if *r.Count != *r.LastOffset-*r.FirstOffset+1 {
			fmt.Fprintf(&b, " COUNT %d", *r.Count)
		}
	}
	if r.AcknowledgeType != nil {
		b.WriteString(" " + *r.AcknowledgeType)
	}
	if r.TransactionalID != nil {
		b.WriteString(" of " + *r.TransactionalID)
	}
	if r.ProducerID != nil {
		fmt.Fprintf(&b, " pid %d", *r.ProducerID)
	}
	if r.ProducerEpoch != nil {
		fmt.Fprintf(&b, " epoch %d", *r.ProducerEpoch)
	}
	if r.TransactionState != nil {
		b.WriteString(" " + *r.TransactionState)
	}
	if r.AgeMS != nil {
		fmt.Fprintf(&b, " age %s", time.Duration(*r.AgeMS)*time.Millisecond)
	}
	if r.Deadline != nil {
		fmt.Fprintf(&b, " ends %s", r.Deadline.Format("15:04:05"))
	}
	if r.TwoPhase {
		b.WriteString(" 2pc")
	}
	if r.Stuck {
		b.WriteString(" stuck")
	}
	if r.TopicState != "" {
		b.WriteString(" topic-" + r.TopicState)
	}
	if r.CandidateParts > 0 {
		fmt.Fprintf(&b, " candidates %d in %d", r.CandidateParts, r.CandidateGroups)
	}
	return b.String()
}

func rowsOf(rep *PendingReport) []string {
	out := []string{}
	for _, r := range rep.Rows {
		out = append(out, row(r))
	}
	return out
}

var (
	n0 = statePartition("g1", 0)
	n1 = statePartition("g1", 1)

	silent      = Gap{Source: SourceListTransactions, Broker: new(int32(3)), Reason: "broker 3 does not answer"}
	hiddenIDs   = Gap{Source: SourceDescribeTransactions, Reason: "some transactional IDs are hidden", ACL: &ACL{"DESCRIBE", "TRANSACTIONAL_ID", "*"}}
	hiddenTopic = Gap{Source: SourceMetadata, Reason: "the state topic is hidden", ACL: &ACL{"DESCRIBE", "TOPIC", stateTopic}}
	hiddenGroup = Gap{Source: SourceShareGroupDescribe, Reason: "some groups are hidden", ACL: &ACL{"DESCRIBE", "GROUP", "*"}}
	hiddenState = Gap{Source: SourceShareGroupState, Reason: "the state may not be read", ACL: &ACL{"CLUSTER_ACTION", "CLUSTER", "kafka-cluster"}}
)

func TestVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		ev     *Evidence
		want   []string
		status Status
	}{
		"nothing": {evidence(), []string{}, StatusNone},
		"a transaction without share acknowledgements": {
			evidence(with(txn("a", "Ongoing", 1, 0))), []string{}, StatusNone,
		},
		"one that has ended": {
			evidence(with(txn("a", "CompleteCommit", 1, 0, n0), txn("b", "Empty", 2, 0, n0))), []string{}, StatusNone,
		},
		"exact: ongoing with the same epoch": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00"},
			StatusPending,
		},
		"exact: being ended, with the epoch raised": {
			evidence(with(txn("a", "PrepareCommit", 1, 6, n0)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 PrepareCommit age 10s"},
			StatusPending,
		},
		"exact: being fenced": {
			evidence(with(txn("a", "PrepareEpochFence", 1, 6, n0)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 PrepareEpochFence age 10s"},
			StatusPending,
		},
		"exact: the marker is written and the partition no more listed": {
			evidence(with(txn("a", "PrepareAbort", 1, 6)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 PrepareAbort age 10s"},
			StatusPending,
		},
		"exact: described before the records were staged": {
			evidence(with(txn("a", "Ongoing", 1, 4)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00"},
			StatusPending,
		},
		"exact: listed and not described": {
			evidence(with(txn("a", "Ongoing", 1, 5, -1)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), written(noon.Add(-3*time.Second)), gap(silent)),
			[]string{"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 Ongoing age 3s"},
			StatusUnknown,
		},
		"exact: its partitions are hidden": {
			evidence(with(txn("a", "Ongoing", 1, 5)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), gap(hiddenTopic)),
			[]string{"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00"},
			StatusUnknown,
		},
		"exact: the owner is hidden": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), written(noon.Add(-time.Minute)), gap(hiddenIDs)),
			[]string{"exact g1/orders-0 10-19 accept pid 1 epoch 5 age 1m0s"},
			StatusUnknown,
		},
		"exact: the owner may be at a silent broker": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), gap(silent)),
			[]string{"exact g1/orders-0 10-19 accept pid 1 epoch 5"},
			StatusUnknown,
		},
		"exact: the owner may be at a broker that Metadata calls dead": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), gap(Gap{Source: SourceMetadata, Broker: new(int32(3)), Reason: "fenced"})),
			[]string{"exact g1/orders-0 10-19 accept pid 1 epoch 5"},
			StatusUnknown,
		},
		"orphan: no coordinator knows it": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Reject)), written(noon.Add(-time.Hour))),
			[]string{"orphan g1/orders-0 10-19 reject pid 1 epoch 5 age 1h0m0s"},
			StatusPending,
		},
		"orphan: what is hidden are groups": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Reject)), gap(hiddenGroup)),
			[]string{"orphan g1/orders-0 10-19 reject pid 1 epoch 5"},
			StatusUnknown,
		},
		"orphan: aborted": {
			evidence(ended(txn("a", "CompleteAbort", 1, 6)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"orphan g1/orders-0 10-19 accept of a pid 1 epoch 5 CompleteAbort"},
			StatusPending,
		},
		"orphan: known to have ended, so nothing that is hidden matters": {
			evidence(ended(txn("a", "CompleteCommit", 1, 6)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), gap(silent)),
			[]string{"orphan g1/orders-0 10-19 accept of a pid 1 epoch 5 CompleteCommit"},
			StatusUnknown,
		},
		"orphan: the state told is that of a later transaction": {
			evidence(ended(txn("a", "CompleteCommit", 1, 9)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"orphan g1/orders-0 10-19 accept of a pid 1 epoch 5"},
			StatusPending,
		},
		"orphan: gone on to the next transaction": {
			evidence(with(txn("a", "Ongoing", 1, 7)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{"orphan g1/orders-0 10-19 accept of a pid 1 epoch 5"},
			StatusPending,
		},
		"orphan: gone on to the next transaction, which has staged there as well": {
			evidence(with(txn("a", "Ongoing", 1, 7, n0)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept), staged(20, 29, 1, 7, wire.Accept))),
			[]string{
				"exact g1/orders-0 20-29 accept of a pid 1 epoch 7 Ongoing age 10s ends 12:01:00",
				"orphan g1/orders-0 10-19 accept of a pid 1 epoch 5",
			},
			StatusPending,
		},
		"orphan: gone on, and nothing to see of the next one": {
			evidence(with(txn("a", "Ongoing", 1, 7, n0)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept))),
			[]string{
				"possible of a pid 1 epoch 7 Ongoing age 10s ends 12:01:00",
				"orphan g1/orders-0 10-19 accept of a pid 1 epoch 5",
			},
			StatusPending,
		},
		"orphan: open, and its end does not reach the state partition": {
			evidence(with(txn("a", "Ongoing", 1, 5, n1)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), states("g1", 1, staged(0, 0, 1, 5, wire.Accept))),
			[]string{
				"exact g1/orders-1 0-0 accept of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00",
				"orphan g1/orders-0 10-19 accept of a pid 1 epoch 5",
			},
			StatusPending,
		},
		"no owner to read: one transaction lists the partition": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), states("g1", 0, ownerless(10, 19))),
			[]string{"exact g1/orders-0 10-19 of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00"},
			StatusPending,
		},
		"no owner to read: two do": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0), txn("b", "Ongoing", 2, 5, n0)), states("g1", 0, ownerless(10, 19))),
			[]string{
				"possible of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00",
				"possible of b pid 2 epoch 5 Ongoing age 10s ends 12:01:00",
				"exact g1/orders-0 10-19",
			},
			StatusPending,
		},
		"no owner to read: none does": {
			evidence(with(txn("a", "Ongoing", 1, 5)), states("g1", 0, ownerless(10, 19))),
			[]string{"orphan g1/orders-0 10-19"},
			StatusPending,
		},
		"no owner to read: none that could be seen": {
			evidence(states("g1", 0, ownerless(10, 19)), gap(hiddenIDs)),
			[]string{"exact g1/orders-0 10-19"},
			StatusUnknown,
		},
		"no owner to read: one, and there may be others": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), states("g1", 0, ownerless(10, 19)), gap(hiddenIDs)),
			[]string{"possible of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00", "exact g1/orders-0 10-19"},
			StatusUnknown,
		},
		"likely: the only candidate": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 3, 3)),
			[]string{"likely g1/orders-0 of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 1 in 1"},
			StatusPending,
		},
		"likely: a lag that is not told is a candidate": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", -1, 3)),
			[]string{"likely g1/orders-0 of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 1 in 1"},
			StatusPending,
		},
		"possible: the only candidate is done": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 0, 3)),
			[]string{"possible of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00"},
			StatusPending,
		},
		"possible: the only candidate, and groups are hidden": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 3), gap(hiddenGroup)),
			[]string{"possible of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 1 in 1"},
			StatusUnknown,
		},
		"possible: many candidates": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 3), func(ev *Evidence) { ev.StatePartitions = 1; ev.Transactions[0].Partitions[0].Partitions = []int32{0} }, group("g2", 3, 0, 3)),
			[]string{"possible of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 3 in 2"},
			StatusPending,
		},
		"likely: one of many has not moved": {
			evidence(with(txn("a", "Ongoing", 1, 5, 0)), group("g1", 3, 4, 5), unmoved(1, noon.Add(-30*time.Second)), unmoved(2, noon.Add(-29*time.Second)), func(ev *Evidence) { ev.StatePartitions = 1 }),
			[]string{"likely g1/orders-1 of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 3 in 1"},
			StatusPending,
		},
		"likely: one has not moved, though groups are hidden": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 3), unmoved(0, noon.Add(-time.Minute)), gap(hiddenGroup)),
			[]string{"likely g1/orders-0 of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 1 in 1"},
			StatusUnknown,
		},
		"possible: two have not moved": {
			evidence(with(txn("a", "Ongoing", 1, 5, 0)), group("g1", 3, 4), unmoved(0, noon.Add(-time.Minute)), unmoved(1, noon.Add(-time.Minute)), func(ev *Evidence) { ev.StatePartitions = 1 }),
			[]string{"possible of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 2 in 1"},
			StatusPending,
		},
		"possible: what is written down has nothing of it": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0, n1)), group("g1", 3, 3), states("g1", 1, staged(0, 0, 1, 5, wire.Accept))),
			[]string{
				"exact g1/orders-1 0-0 accept of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00",
				"possible of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 1 in 1",
			},
			StatusPending,
		},
		"likely: what is written down could not be read": {
			evidence(with(txn("a", "Ongoing", 1, 5, n0, n1)), group("g1", 3, 3), states("g1", 1, staged(0, 0, 1, 5, wire.Accept)), gap(hiddenState)),
			[]string{
				"likely g1/orders-0 of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00 candidates 1 in 1",
				"exact g1/orders-1 0-0 accept of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00",
			},
			StatusUnknown,
		},
		"possible: not described": {
			evidence(with(txn("a", "Ongoing", 1, 5, -1)), group("g1", 3), gap(silent)),
			[]string{"possible of a pid 1 Ongoing"},
			StatusUnknown,
		},
		"prepared counts": {
			evidence(with(txn("a", "PrepareCommit", 1, 6, n0), txn("b", "PrepareAbort", 2, 6, n0)), group("g1", 3)),
			[]string{
				"likely g1/orders-0 of a pid 1 epoch 6 PrepareCommit age 10s candidates 1 in 1",
				"likely g1/orders-0 of b pid 2 epoch 6 PrepareAbort age 10s candidates 1 in 1",
			},
			StatusPending,
		},
		"ranges: one for each owner and acknowledge type": {
			evidence(
				with(txn("a", "Ongoing", 1, 5, n0), txn("b", "Ongoing", 2, 5, n0)),
				states(
					"g1", 0,
					wire.StateBatch{FirstOffset: 0, LastOffset: 9, DeliveryState: wire.Acknowledged, Staged: wire.NoStagedOwner()},
					staged(10, 14, 1, 5, wire.Accept), staged(15, 19, 1, 5, wire.Accept), // one range
					staged(20, 20, 1, 5, wire.Reject), // another type
					staged(21, 21, 1, 5, wire.Gap),
					staged(22, 29, 2, 5, wire.Accept), // another owner
					wire.StateBatch{FirstOffset: 30, LastOffset: 30, DeliveryState: wire.Available, Staged: wire.NoStagedOwner()},
					staged(31, 31, 2, 5, wire.Accept), // another range
					staged(33, 33, 2, 5, wire.Accept), // 32 is in no batch
				),
			),
			[]string{
				"exact g1/orders-0 10-19 accept of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00",
				"exact g1/orders-0 20-20 reject of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00",
				"exact g1/orders-0 21-21 gap of a pid 1 epoch 5 Ongoing age 10s ends 12:01:00",
				"exact g1/orders-0 22-29 accept of b pid 2 epoch 5 Ongoing age 10s ends 12:01:00",
				"exact g1/orders-0 31-31 accept of b pid 2 epoch 5 Ongoing age 10s ends 12:01:00",
				"exact g1/orders-0 33-33 accept of b pid 2 epoch 5 Ongoing age 10s ends 12:01:00",
			},
			StatusPending,
		},
		"a rotated producer ID": {
			evidence(
				with(txn("a", "Ongoing", 2, 0, n0)), ended(txn("a", "Ongoing", 1, 32766)),
				states("g1", 0, staged(10, 19, 1, 32765, wire.Accept), staged(20, 29, 2, 0, wire.Accept)),
			),
			[]string{
				"exact g1/orders-0 20-29 accept of a pid 2 epoch 0 Ongoing age 10s ends 12:01:00",
				"orphan g1/orders-0 10-19 accept of a pid 1 epoch 32765",
			},
			StatusPending,
		},
		"a topic that is no more": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), func(ev *Evidence) { ev.Topics = nil }),
			[]string{"orphan g1/?-0 10-19 accept pid 1 epoch 5 topic-deleted"},
			StatusPending,
		},
		"a topic that is no more, and its group knows the name": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), group("g1", 3), func(ev *Evidence) { ev.Topics = nil }),
			[]string{"orphan g1/orders-0 10-19 accept pid 1 epoch 5 topic-deleted"},
			StatusPending,
		},
		"a topic that could not be described": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), func(ev *Evidence) { ev.Topics = nil }, gap(Gap{Source: SourceMetadata, Reason: "the topics could not be described"})),
			[]string{"orphan g1/?-0 10-19 accept pid 1 epoch 5"},
			StatusUnknown,
		},
		"a topic that was created again": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), group("g1", 3), func(ev *Evidence) { ev.Topics = map[[16]byte]string{t2: "orders"} }),
			[]string{"orphan g1/orders-0 10-19 accept pid 1 epoch 5 topic-recreated"},
			StatusPending,
		},
		"unsupported": {
			evidence(with(txn("a", "Ongoing", 1, 0)), func(ev *Evidence) { ev.Support.Verdict = cluster.NotSupported }), []string{}, StatusUnsupported,
		},
		"unsupported, and yet there they are": {
			evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), func(ev *Evidence) { ev.Support.Verdict = cluster.NotSupported }),
			[]string{"orphan g1/orders-0 10-19 accept pid 1 epoch 5"},
			StatusPending,
		},
		"unsupported, and something is hidden": {
			evidence(gap(hiddenIDs), func(ev *Evidence) { ev.Support.Verdict = cluster.NotSupported }), []string{}, StatusUnknown,
		},
		"no topic": {evidence(func(ev *Evidence) { ev.StatePartitions = 0 }), []string{}, StatusNone},
	} {
		t.Run(name, func(t *testing.T) {
			rep := NewPendingReport(c.ev, Filter{})
			if got := rowsOf(rep); !slices.Equal(got, c.want) {
				t.Errorf("rows are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
			if rep.Status != c.status || rep.Reason == "" || strings.HasSuffix(rep.Reason, ".") {
				t.Errorf("status %s %q, want %s with a sentence", rep.Status, rep.Reason, c.status)
			}
			for _, r := range rep.Rows {
				if len(r.Evidence) == 0 || r.Advice == "" {
					t.Errorf("row %s has evidence %q and advice %q", row(r), r.Evidence, r.Advice)
				}
			}
		})
	}
}

// How many members the group of a row has is told, if the group is.
func TestGroupMembers(t *testing.T) {
	for name, c := range map[string]struct {
		members []string
		want    *int
	}{
		"not told": {nil, nil}, "none is left": {[]string{}, new(0)}, "two": {[]string{"m1", "m2"}, new(2)},
	} {
		for source, rep := range map[string]*PendingReport{
			"state":  NewPendingReport(evidence(states("g1", 0, staged(1, 1, 1, 5, wire.Accept)), group("g1", 3), func(ev *Evidence) { ev.Groups[0].Members = c.members }), Filter{}),
			"likely": NewPendingReport(evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 3), func(ev *Evidence) { ev.Groups[0].Members = c.members }), Filter{}),
		} {
			if got := rep.Rows[0].GroupMembers; !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s, %s: group members %v, want %v", name, source, got, c.want)
			}
		}
	}
}

// A cluster of one broker is told why share groups do not work there.
func TestNoStateTopic(t *testing.T) {
	brokers := func(n int) func(*Evidence) {
		return func(ev *Evidence) {
			ev.StatePartitions, ev.Support.Brokers = 0, make([]cluster.BrokerSupport, n)
		}
	}
	for n, want := range map[int]string{0: "", 1: "1 broker cannot create topic __share_group_state unless share.coordinator", 2: "2 brokers cannot", 3: ""} {
		rep := NewPendingReport(evidence(brokers(n)), Filter{})
		got := strings.Join(rep.Warnings, "; ")
		if rep.Status != StatusNone || (want == "") != (got == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%d brokers: status %s, warnings %q, want %q", n, rep.Status, got, want)
		}
		if !strings.Contains(rep.Reason, "no share group has been used yet") {
			t.Errorf("%d brokers: reason %q", n, rep.Reason)
		}
	}
	if rep := NewPendingReport(evidence(brokers(1), gap(hiddenTopic)), Filter{}); rep.Status != StatusUnknown || len(rep.Warnings) != 0 {
		t.Errorf("a hidden topic: status %s, warnings %q", rep.Status, rep.Warnings)
	}
}

// What resolves a row, and what is never offered.
func TestAdvice(t *testing.T) {
	old := func(since time.Duration) func(*Transaction) {
		return func(t *Transaction) { t.Started = noon.Add(-since) }
	}
	prepared := func(since time.Duration) func(*Transaction) {
		return func(t *Transaction) { t.PrepareSince = noon.Add(-since) }
	}
	twoPhase := func(t *Transaction) { t.TimeoutMS = TwoPhaseTimeoutMS }
	notTold := func(t *Transaction) { t.Started = time.Time{} }
	for name, c := range map[string]struct {
		state   string
		epoch   int16
		change  []func(*Transaction)
		command []string
		advice  string
		stuck   bool
		twoPC   bool
		ends    bool
	}{
		"ongoing":                {state: "Ongoing", epoch: 5, command: []string{"txn", "fence", "a b"}, advice: "ends by itself at 2026-11-29T12:01:00Z", ends: true},
		"over its deadline":      {state: "Ongoing", epoch: 5, change: []func(*Transaction){old(130 * time.Second)}, command: []string{"txn", "fence", "a b"}, advice: "should end it any moment", ends: true},
		"long over it":           {state: "Ongoing", epoch: 5, change: []func(*Transaction){old(131 * time.Second)}, command: []string{"txn", "fence", "a b"}, advice: "its coordinator (broker 2) has not ended it", stuck: true, ends: true},
		"start not told":         {state: "Ongoing", epoch: 5, change: []func(*Transaction){notTold}, command: []string{"txn", "fence", "a b"}, advice: "when its timeout has passed"},
		"two-phase":              {state: "Ongoing", epoch: 5, change: []func(*Transaction){old(time.Hour), twoPhase}, command: []string{"txn", "fence", "a b"}, advice: "discards a decision to commit", twoPC: true},
		"commit":                 {state: "PrepareCommit", epoch: 6, advice: "its commit is decided, do not abort it: its end markers are being written"},
		"commit, stuck":          {state: "PrepareCommit", epoch: 6, change: []func(*Transaction){prepared(61 * time.Second)}, advice: "look at its coordinator (broker 2)", stuck: true},
		"commit, at the limit":   {state: "PrepareCommit", epoch: 6, change: []func(*Transaction){prepared(60 * time.Second)}, advice: "its commit is decided, do not abort it: its end markers are being written"},
		"commit, stuck by age":   {state: "PrepareCommit", epoch: 6, change: []func(*Transaction){old(131 * time.Second)}, advice: "look at its coordinator (broker 2)", stuck: true},
		"two-phase, stuck":       {state: "PrepareCommit", epoch: 6, change: []func(*Transaction){twoPhase, prepared(2 * time.Minute)}, advice: "its commit is decided, do not abort it: its end markers take longer", stuck: true, twoPC: true},
		"two-phase, only old":    {state: "PrepareCommit", epoch: 6, change: []func(*Transaction){twoPhase, old(time.Hour)}, advice: "its commit is decided, do not abort it: its end markers are being written", twoPC: true},
		"abort":                  {state: "PrepareAbort", epoch: 6, advice: "its abort is decided"},
		"abort, stuck":           {state: "PrepareAbort", epoch: 6, change: []func(*Transaction){prepared(2 * time.Minute)}, advice: "look at its coordinator (broker 2)", stuck: true},
		"fenced":                 {state: "PrepareEpochFence", epoch: 6, advice: "its abort is decided"},
		"gone":                   {state: "", command: []string{"txn", "abort", "--topic", "__share_group_state", "--partition", fmt.Sprint(n0), "--producer-id", "1", "--producer-epoch", "5"}, advice: "an abort marker gives the records back"},
		"aborted":                {state: "CompleteAbort", epoch: 6, command: []string{"txn", "abort", "--topic", "__share_group_state", "--partition", fmt.Sprint(n0), "--producer-id", "1", "--producer-epoch", "5"}, advice: "an abort marker gives the records back"},
		"committed":              {state: "CompleteCommit", epoch: 6, command: []string{"drain", "--abort-hanging", "--group", "g1"}, advice: "do not abort it, that would deliver the records again"},
		"committed, another one": {state: "CompleteCommit", epoch: 8, command: []string{"txn", "abort", "--topic", "__share_group_state", "--partition", fmt.Sprint(n0), "--producer-id", "1", "--producer-epoch", "5"}, advice: "an abort marker gives the records back"},
	} {
		t.Run(name, func(t *testing.T) {
			tx := txn("a b", c.state, 1, c.epoch, n0)
			for _, change := range c.change {
				change(&tx)
			}
			ev := evidence(states("g1", 0, staged(10, 19, 1, 5, wire.Accept)))
			switch {
			case tx.Open():
				ev.Transactions = []Transaction{tx}
			case c.state != "":
				ev.Ended = []Transaction{tx}
			}
			rep := NewPendingReport(ev, Filter{})
			if len(rep.Rows) != 1 {
				t.Fatalf("rows %q", rowsOf(rep))
			}
			r := rep.Rows[0]
			if !slices.Equal(r.Command, c.command) {
				t.Errorf("command %q, want %q", r.Command, c.command)
			}
			if !strings.Contains(r.Advice, c.advice) || strings.HasSuffix(r.Advice, ".") {
				t.Errorf("advice %q, want %q", r.Advice, c.advice)
			}
			if r.Stuck != c.stuck || r.TwoPhase != c.twoPC || (r.Deadline != nil) != c.ends {
				t.Errorf("row %s: stuck %v, two-phase %v, ends %v; want %v, %v, %v", row(r), r.Stuck, r.TwoPhase, r.Deadline, c.stuck, c.twoPC, c.ends)
			}
			if (rep.Stuck == 1) != c.stuck {
				t.Errorf("%d rows are counted as stuck", rep.Stuck)
			}
		})
	}
	// An ID that looks like a flag is none.
	rep := NewPendingReport(evidence(with(txn("-x", "Ongoing", 1, 5, n0))), Filter{})
	if got, want := rep.Rows[0].Command, []string{"txn", "fence", "--", "-x"}; !slices.Equal(got, want) {
		t.Errorf("command %q, want %q", got, want)
	}
	// Without an owner no marker can be made.
	rep = NewPendingReport(evidence(states("g1", 0, ownerless(1, 2))), Filter{})
	if r := rep.Rows[0]; r.Command != nil || !strings.Contains(r.Advice, "without its owner") {
		t.Errorf("an orphan without owner has command %q, advice %q", r.Command, r.Advice)
	}
}

// The age of records without an open transaction is that of their own staging,
// where it is told apart from that of other owners.
func TestAgeByStaging(t *testing.T) {
	ev := evidence(states("g1", 0, staged(0, 0, 8, 0, wire.Accept), staged(1, 1, 9, 0, wire.Accept)), written(noon.Add(-time.Hour)))
	ev.States[0].Staged = []StagedSince{{ProducerID: 9, Since: noon.Add(-time.Minute)}}
	got := rowsOf(NewPendingReport(ev, Filter{}))
	want := []string{"orphan g1/orders-0 0-0 accept pid 8 epoch 0 age 1h0m0s", "orphan g1/orders-0 1-1 accept pid 9 epoch 0 age 1m0s"}
	if !slices.Equal(got, want) {
		t.Errorf("rows %q, want %q", got, want)
	}
}

func TestSorting(t *testing.T) {
	at := func(t Transaction, ago time.Duration) Transaction { t.Started = noon.Add(-ago); return t }
	rep := NewPendingReport(evidence(
		with(at(txn("young", "Ongoing", 1, 5, n0), time.Second), at(txn("old", "Ongoing", 2, 5, n0, n1), time.Minute), at(txn("ahead", "Ongoing", 3, 5, n1), -time.Minute)),
		states("g1", 0, staged(0, 0, 9, 0, wire.Accept), staged(1, 1, 1, 5, wire.Accept), staged(2, 2, 2, 5, wire.Accept), staged(3, 3, 9, 0, wire.Accept)),
		states("g1", 1, staged(7, 7, 2, 5, wire.Accept), staged(8, 8, 3, 5, wire.Accept)),
		states("a", 3, staged(5, 5, 9, 0, wire.Accept)),
	), Filter{})
	want := []string{
		"exact g1/orders-0 2-2 accept of old pid 2 epoch 5 Ongoing age 1m0s ends 12:00:10",
		"exact g1/orders-1 7-7 accept of old pid 2 epoch 5 Ongoing age 1m0s ends 12:00:10",
		"exact g1/orders-0 1-1 accept of young pid 1 epoch 5 Ongoing age 1s ends 12:01:09",
		"exact g1/orders-1 8-8 accept of ahead pid 3 epoch 5 Ongoing age 0s ends 12:02:10", // a clock that is ahead
		"orphan a/orders-3 5-5 accept pid 9 epoch 0",
		"orphan g1/orders-0 0-0 accept pid 9 epoch 0",
		"orphan g1/orders-0 3-3 accept pid 9 epoch 0",
	}
	if got := rowsOf(rep); !slices.Equal(got, want) {
		t.Errorf("rows are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if got := *rep.Rows[0].TopicID; got != t1Text {
		t.Errorf("topic ID %q, want %q", got, t1Text)
	}
	if rep.Records != 7 || rep.NextDeadline.Format("15:04:05") != "12:00:10" || rep.LastDeadline.Format("15:04:05") != "12:02:10" {
		t.Errorf("%d records, deadlines from %v to %v", rep.Records, rep.NextDeadline, rep.LastDeadline)
	}
	if want := "7 records of 3 share-partitions are in TX_PENDING"; rep.Reason != want {
		t.Errorf("reason %q, want %q", rep.Reason, want)
	}
}

func TestFilter(t *testing.T) {
	n2 := statePartition("g2", 0)
	ev := evidence(
		with(txn("a", "Ongoing", 1, 5, n0), txn("b", "Ongoing", 2, 5, n2), txn("c", "Ongoing", 3, 5, -1)),
		states("g1", 0, staged(10, 19, 1, 5, wire.Accept), staged(30, 39, 8, 0, wire.Accept)),
		group("g1", 3), group("g2", 3),
	)
	ev.Transactions[0].Started = noon.Add(-time.Hour)
	const (
		a      = "exact g1/orders-0 10-19 accept of a"
		b      = "possible of b"
		c      = "possible of c"
		orphan = "orphan g1/orders-0 30-39 accept pid 8"
	)
	for name, tt := range map[string]struct {
		f    Filter
		want []string
	}{
		"all":                   {Filter{}, []string{a, b, orphan, c}},
		"a group":               {Filter{Groups: []string{"g1"}}, []string{a, orphan, c}},
		"the candidate's":       {Filter{Groups: []string{"g2"}}, []string{b, c}},
		"either":                {Filter{Groups: []string{"g1", "g2"}}, []string{a, b, orphan, c}},
		"neither":               {Filter{Groups: []string{"g3"}}, []string{c}},
		"a topic":               {Filter{Topics: []string{"orders"}}, []string{a, b, orphan, c}},
		"another topic":         {Filter{Topics: []string{"other"}}, []string{c}},
		"group and topic":       {Filter{Groups: []string{"g2"}, Topics: []string{"orders"}}, []string{b, c}},
		"a transaction":         {Filter{TransactionalIDs: []string{"b"}}, []string{b, orphan}},
		"old":                   {Filter{OlderThan: time.Minute}, []string{a, orphan, c}},
		"as old":                {Filter{OlderThan: 10 * time.Second}, []string{a, b, orphan, c}},
		"old, of another group": {Filter{OlderThan: time.Minute, Groups: []string{"g2"}}, []string{c}},
	} {
		rep := NewPendingReport(ev, tt.f)
		got := rowsOf(rep)
		ok := len(got) == len(tt.want)
		for i := range got {
			ok = ok && i < len(tt.want) && strings.HasPrefix(got[i], tt.want[i])
		}
		if !ok {
			t.Errorf("%s: %+v gives\n  %s\nwant\n  %s", name, tt.f, strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
		}
	}
}

// A transaction may yet stage in a share-partition that is done now.
func TestFilterDone(t *testing.T) {
	ev := evidence(func(ev *Evidence) { ev.StatePartitions = 1 }, with(txn("a", "Ongoing", 1, 5, 0)), group("g1", 3), group("g2", 0))
	for _, tt := range []struct {
		f    Filter
		rows int
	}{
		{Filter{Groups: []string{"g1"}}, 1},
		{Filter{Groups: []string{"g2"}}, 0},
		{Filter{Groups: []string{"g2"}, Done: true}, 1},
		{Filter{Groups: []string{"g2"}, Topics: []string{"other"}, Done: true}, 0},
	} {
		if rep := NewPendingReport(ev, tt.f); len(rep.Rows) != tt.rows {
			t.Errorf("%+v gives %q, want %d rows", tt.f, rowsOf(rep), tt.rows)
		}
	}
	// Its own records elsewhere tell that it is not of that group.
	ev = evidence(func(ev *Evidence) { ev.StatePartitions = 1 }, with(txn("a", "Ongoing", 1, 5, 0)), group("g1", 3), group("g2", 0),
		states("g1", 0, staged(10, 19, 1, 5, wire.Accept)))
	for i := range ev.States {
		ev.States[i].StatePartition = 0
	}
	if rep := NewPendingReport(ev, Filter{Groups: []string{"g2"}, Done: true}); len(rep.Rows) != 0 {
		t.Errorf("rows %q", rowsOf(rep))
	}
}

// The status is about what passes, and a gap stays one.
func TestFilterAndStatus(t *testing.T) {
	none := Filter{Groups: []string{"g3"}}
	ev := evidence(with(txn("a", "Ongoing", 1, 5, n0)), states("g1", 0, staged(10, 19, 1, 5, wire.Accept)), group("g1", 3))
	if rep := NewPendingReport(ev, none); rep.Status != StatusNone || !strings.Contains(rep.Reason, "1 other row is left out") {
		t.Errorf("status %s: %s", rep.Status, rep.Reason)
	}
	ev.Gaps = []Gap{hiddenState, hiddenGroup}
	rep := NewPendingReport(ev, none)
	if rep.Status != StatusUnknown || rep.Reason != "no record in TX_PENDING could be seen, and there may be some: the state may not be read (and 1 more could not be seen)" {
		t.Errorf("status %s: %s", rep.Status, rep.Reason)
	}
	if !reflect.DeepEqual(rep.Gaps, ev.Gaps) {
		t.Errorf("gaps %v", rep.Gaps)
	}
	if rep := NewPendingReport(evidence(), none); rep.Gaps == nil {
		t.Error("without gaps their list is nil")
	}
	// A row without a group may be of one that is hidden.
	ev = evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 3), gap(hiddenGroup))
	if rep := NewPendingReport(ev, none); len(rep.Rows) != 1 {
		t.Errorf("rows %q", rowsOf(rep))
	}
}

func TestSummaries(t *testing.T) {
	at := func(t Transaction, ago time.Duration) Transaction { t.Started = noon.Add(-ago); return t }
	two := txn("two-phase", "Ongoing", 5, 1, statePartition("g2", 0))
	two.TimeoutMS = TwoPhaseTimeoutMS
	rep := NewPendingReport(evidence(
		with(
			at(txn("a", "Ongoing", 2, 0, n0), time.Minute), // its producer ID was 1
			at(txn("commit", "PrepareCommit", 3, 6, n1), time.Hour),
			two,
			txn("elsewhere", "Ongoing", 6, 0, 49),
		),
		ended(txn("a", "Ongoing", 1, 32766)),
		states("g1", 0, staged(0, 9, 1, 32765, wire.Accept), staged(10, 19, 2, 0, wire.Accept)),
		states("g1", 1, staged(0, 0, 3, 5, wire.Accept), staged(1, 1, 3, 5, wire.Reject), staged(5, 5, 77, 0, wire.Accept)),
		states("g2", 0, staged(0, 99, 5, 1, wire.Accept)),
	), Filter{})
	deadline := noon.Add(10 * time.Second)
	ms := func(d time.Duration) *int64 { return new(d.Milliseconds()) }
	wantGroups := []GroupSummary{
		{GroupID: "g1", Records: 23, SharePartitions: 2, Owners: 3, OldestAgeMS: ms(time.Hour)},
		{GroupID: "g2", Records: 100, SharePartitions: 1, Owners: 1, OldestAgeMS: ms(10 * time.Second)},
	}
	wantOwners := []OwnerSummary{
		{TransactionalID: new("commit"), ProducerIDs: []int64{3}, TransactionState: new("PrepareCommit"), Records: 2, SharePartitions: 1, OldestAgeMS: ms(time.Hour), Stuck: true, Rows: 2},
		{TransactionalID: new("a"), ProducerIDs: []int64{1, 2}, TransactionState: new("Ongoing"), Records: 20, SharePartitions: 1, OldestAgeMS: ms(time.Minute), Deadline: &deadline, Orphan: true, Rows: 2},
		{TransactionalID: new("elsewhere"), ProducerIDs: []int64{6}, TransactionState: new("Ongoing"), OldestAgeMS: ms(10 * time.Second), Deadline: new(noon.Add(time.Minute)), Rows: 1},
		{TransactionalID: new("two-phase"), ProducerIDs: []int64{5}, TransactionState: new("Ongoing"), Records: 100, SharePartitions: 1, OldestAgeMS: ms(10 * time.Second), TwoPhase: true, Rows: 1},
		{ProducerIDs: []int64{77}, Records: 1, SharePartitions: 1, Orphan: true, Rows: 1},
	}
	if !reflect.DeepEqual(rep.Groups, wantGroups) {
		t.Errorf("groups %s\nwant %s", toJSON(t, rep.Groups), toJSON(t, wantGroups))
	}
	if !reflect.DeepEqual(rep.Owners, wantOwners) {
		t.Errorf("owners %s\nwant %s", toJSON(t, rep.Owners), toJSON(t, wantOwners))
	}
	if rep.Records != 123 || rep.TwoPhase != 1 || rep.Stuck != 2 {
		t.Errorf("%d records, %d two-phase rows, %d stuck", rep.Records, rep.TwoPhase, rep.Stuck)
	}
	if want := "123 records of 3 share-partitions are in TX_PENDING, and 1 open transaction may hold more"; rep.Reason != want {
		t.Errorf("reason %q, want %q", rep.Reason, want)
	}
	if empty := NewPendingReport(evidence(), Filter{}); empty.Groups == nil || empty.Owners == nil || empty.Candidates == nil {
		t.Errorf("lists of an empty report are nil: %+v", empty)
	}
}

func toJSON(t *testing.T, x any) string {
	t.Helper()
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// All candidates are counted, some are named, and those that rows name are not
// listed again.
func TestCandidates(t *testing.T) {
	lags := slices.Repeat([]int64{3}, 15)
	lags[4], lags[5] = 0, -1
	ev := evidence(with(txn("a", "Ongoing", 1, 5, 0), txn("b", "Ongoing", 2, 5, 0)), group("g1", lags...), group("g2", lags...), func(ev *Evidence) { ev.StatePartitions = 1 })
	rep := NewPendingReport(ev, Filter{})
	if len(rep.Candidates) != 1 {
		t.Fatalf("candidates of %d state partitions: %+v", len(rep.Candidates), rep.Candidates)
	}
	c := rep.Candidates[0]
	if c.StatePartition != 0 || c.Count != 28 || len(c.SharePartitions) != MaxCandidates {
		t.Errorf("%d of %d candidates of state partition %d are named", len(c.SharePartitions), c.Count, c.StatePartition)
	}
	if !slices.IsSortedFunc(c.SharePartitions, func(a, b CandidateShare) int {
		return cmp.Or(strings.Compare(a.GroupID, b.GroupID), strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	}) {
		t.Errorf("candidates are not sorted: %+v", c.SharePartitions)
	}
	if got := c.SharePartitions[4]; got.Partition != 5 || got.Lag != nil {
		t.Errorf("candidate %+v, want partition 5 with a lag that is not told", got)
	}
	ev = evidence(with(txn("a", "Ongoing", 1, 5, n0)), group("g1", 3))
	if rep := NewPendingReport(ev, Filter{}); len(rep.Candidates) != 0 {
		t.Errorf("candidates %+v of a row that names its share-partition", rep.Candidates)
	}
}

// Evidence is shared by whoever reads it: the report changes none.
func TestEvidenceIsNotChanged(t *testing.T) {
	build := func() *Evidence {
		return evidence(with(txn("a", "Ongoing", 1, 5, n0)), states("g1", 0, staged(10, 14, 1, 5, wire.Accept), staged(15, 19, 1, 5, wire.Accept)), group("g1", 3))
	}
	ev := build()
	NewPendingReport(ev, Filter{Groups: []string{"g1"}, OlderThan: time.Second})
	if want := build(); !reflect.DeepEqual(ev, want) {
		t.Errorf("evidence became %+v, want %+v", ev, want)
	}
}

// scale is a cluster with that many transactions, each of which lists three state
// partitions, and with 100 share-partitions in each of the groups. Every second
// transaction has staged records that are written down.
func scale(transactions, groups int) *Evidence {
	ev := evidence()
	for g := range groups {
		group(fmt.Sprintf("group-%04d", g), slices.Repeat([]int64{3}, 100)...)(ev)
	}
	for i := range transactions {
		pid := int64(i)
		n := int32(i % 48)
		ev.Transactions = append(ev.Transactions, txn(fmt.Sprintf("txn-%05d", i), "Ongoing", pid, 5, n, n+1, n+2))
		if i%2 == 0 {
			ev.States = append(ev.States, ShareState{
				GroupID: fmt.Sprintf("group-%04d", i%max(groups, 1)), TopicID: t1, Partition: int32(i % 100), StatePartition: n + 1,
				Batches: []wire.StateBatch{staged(10, 19, pid, 5, wire.Accept), staged(20, 29, pid, 5, wire.Reject)},
			})
		}
	}
	return ev
}

// The cost is that of rows and candidates, not of their product.
func TestCostIsLinear(t *testing.T) {
	allocs := func(transactions int) float64 {
		ev := scale(transactions, 100)
		return testing.AllocsPerRun(1, func() { NewPendingReport(ev, Filter{}) })
	}
	few, many := allocs(1000), allocs(4000)
	if many > 5*few {
		t.Errorf("%.0f allocations for 1,000 transactions and %.0f for 4,000", few, many)
	}
	rep := NewPendingReport(scale(1000, 100), Filter{})
	if want := 500*2 + 500*2 + 500*3; len(rep.Rows) != want || len(rep.Owners) != 1000 {
		t.Errorf("%d rows of %d owners, want %d of 1000", len(rep.Rows), len(rep.Owners), want)
	}
}

func BenchmarkNewPendingReport(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		ev := scale(n, 1000)
		b.Run(fmt.Sprintf("transactions=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewPendingReport(ev, Filter{Groups: []string{"group-0001"}})
				NewPendingReport(ev, Filter{})
			}
		})
	}
}
