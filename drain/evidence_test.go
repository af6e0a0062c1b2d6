package drain

import (
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/wire"
)

// t0 is when the clocks of these tests begin.
var t0 = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

var orders = [16]byte{1}

// evidence is that of a cluster that can stage, with one topic, orders.
func evidence(change ...func(*inspect.Evidence)) *inspect.Evidence {
	ev := &inspect.Evidence{
		Time: t0, ClusterID: "test", Sweep: 10 * time.Second, StatePartitions: 50,
		Support: cluster.Support{Verdict: cluster.Usable},
		Topics:  map[[16]byte]string{orders: "orders"},
	}
	for _, c := range change {
		c(ev)
	}
	return ev
}

// holding returns a transaction that lists state partition n and began ago.
func holding(id string, producerID int64, epoch int16, state string, n int32, ago time.Duration, timeout int32) inspect.Transaction {
	return inspect.Transaction{
		TransactionalID: id, State: state, ProducerID: producerID, ProducerEpoch: epoch, Coordinator: 1,
		TimeoutMS: timeout, Started: t0.Add(-ago),
		Partitions: []inspect.TopicPartitions{{Topic: stateTopic, Partitions: []int32{n}}},
	}
}

func with(ts ...inspect.Transaction) func(*inspect.Evidence) {
	return func(ev *inspect.Evidence) { ev.Transactions = append(ev.Transactions, ts...) }
}

func ended(ts ...inspect.Transaction) func(*inspect.Evidence) {
	return func(ev *inspect.Evidence) { ev.Ended = append(ev.Ended, ts...) }
}

// staged is n records of a group that a producer has staged, in its state
// partition 0.
func staged(group string, producerID int64, epoch int16, n int64) func(*inspect.Evidence) {
	return func(ev *inspect.Evidence) {
		ev.Persists = true
		ev.States = append(ev.States, inspect.ShareState{
			GroupID: group, TopicID: orders, Partition: int32(len(ev.States)), Sources: []inspect.Source{inspect.SourceStateTopic},
			Batches: []wire.StateBatch{{
				FirstOffset: 10, LastOffset: 10 + n - 1, DeliveryState: wire.TxPending, DeliveryCount: 1,
				Staged: wire.StagedOwner{ProducerID: producerID, ProducerEpoch: epoch, AcknowledgeType: int8(wire.Accept), DeliveryState: int8(wire.Acknowledged)},
			}},
		})
	}
}

// group is a share group with one share-partition of orders that has a lag.
func group(id string, partition int32) func(*inspect.Evidence) {
	return func(ev *inspect.Evidence) {
		ev.Groups = append(ev.Groups, inspect.Group{
			GroupID: id, State: "Stable",
			Partitions: []inspect.SharePartition{{Topic: "orders", TopicID: orders, Partition: partition, StartOffset: 10, Lag: 3}},
		})
	}
}

func brokers(n int) func(*inspect.Evidence) {
	return func(ev *inspect.Evidence) { ev.Support.Brokers = make([]cluster.BrokerSupport, n) }
}

func gap(g inspect.Gap) func(*inspect.Evidence) {
	return func(ev *inspect.Evidence) { ev.Gaps = append(ev.Gaps, g) }
}

// hidden is what a principal without READ on the state topic has.
func hidden() inspect.Gap {
	return inspect.Gap{
		Source: inspect.SourceStateTopic, Reason: "this principal lacks READ", Advice: "grant it",
		ACL: &inspect.ACL{Operation: "READ", ResourceType: "TOPIC", ResourceName: stateTopic},
	}
}

// silent is what a broker leaves that does not answer.
func silent() inspect.Gap {
	return inspect.Gap{Source: inspect.SourceListTransactions, Broker: new(int32(2)), Reason: "broker 2 did not answer"}
}
