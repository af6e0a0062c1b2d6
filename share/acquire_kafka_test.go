package share_test

import (
	"testing"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
)

// On a real Kafka, too, a member may fetch from a partition before any is
// assigned to it, and reading why something is not offered changes nothing.
func TestAcquireRangesOnKafka(t *testing.T) {
	onKafka(t, func(t *testing.T, k *kafka) {
		const n = 60
		k.create(t, 2)
		k.fromEarliest(t)
		k.produce(t, 2*n)
		topics, err := k.connect(t).Topics(testContext(t), k.topic)
		if err != nil {
			t.Fatal(err)
		}
		other := k.member(t, share.Config{MaxRecords: 5})
		held := poll(t, other, 5)
		tp := held.Partitions[0].TopicPartition
		locked, last := held.Partitions[0].Acquired[0].Range, held.Partitions[0].Acquired[0].LastOffset
		if topics[k.topic].ID != tp.TopicID {
			t.Fatalf("topic ID %x, want %x", tp.TopicID, topics[k.topic].ID)
		}
		asked := share.Range{FirstOffset: last + 20, LastOffset: last + 22}
		a, err := share.AcquireRanges(testContext(t), k.connect(t), share.AcquireConfig{
			GroupID: k.group,
			Ranges: []share.AskedRange{
				{Topic: k.topic, Partition: tp.Partition, Range: asked},
				{Topic: k.topic, Partition: tp.Partition, Range: locked},
				{Topic: k.topic, Partition: tp.Partition, Range: share.Range{FirstOffset: 10_000, LastOffset: 10_001}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Reports) != 3 || a.Reports[0].Status != share.RangeLocked || a.Reports[1].Status != share.RangeAcquired || a.Reports[2].Status != share.RangeBeyondEnd {
			t.Errorf("reports %+v, want %v locked, %v acquired, and the rest beyond the end", a.Reports, locked, asked)
		}
		if err := a.Acknowledge(testContext(t), a.Batch.All(wire.Accept)); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		// The leader can still write its state, and the other member what it holds.
		acknowledge(t, other, held, wire.Accept)
		for left := 2*n - 3 - held.Acquired(); left > 0; {
			b := poll(t, other, n)
			acknowledge(t, other, b, wire.Accept)
			left -= b.Acquired()
		}
		k.wantLag(t, 0)
	})
}
