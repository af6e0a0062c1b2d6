package share_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// orders starts a sandbox with a topic "orders" of one partition that holds
// values, and a share group "billing" that reads it from the start.
func orders(ctx context.Context, values ...string) (cl *cluster.Client, stop func()) {
	sb, err := sandbox.Start(ctx, sandbox.WithTopics(sandbox.Topic{Name: "orders", Partitions: 1}))
	if err != nil {
		log.Fatal(err)
	}
	if cl, err = cluster.Connect(ctx, cluster.Config{BootstrapServers: sb.Addrs()}); err != nil {
		log.Fatal(err)
	}
	if err := cl.SetGroupConfig(ctx, "billing", "share.auto.offset.reset", "earliest"); err != nil {
		log.Fatal(err)
	}
	p, err := cl.NewKgo(kgo.DefaultProduceTopic("orders"))
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	for _, v := range values {
		if err := p.ProduceSync(ctx, kgo.StringRecord(v)).FirstErr(); err != nil {
			log.Fatal(err)
		}
	}
	return cl, func() {
		cl.Close()
		_ = sb.Close()
	}
}

// A member polls records and says of each what has become of it. Nothing is
// acknowledged by polling again.
func ExampleConsumer() {
	ctx := context.Background()
	cl, stop := orders(ctx, "3 apples", "", "1 pear")
	defer stop()

	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "billing", Topics: []string{"orders"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	for n := 0; n < 3; {
		b, err := c.Poll(ctx, 10)
		if err != nil {
			log.Fatal(err)
		}
		acks := share.FromRecords(b, func(r *kgo.Record) wire.AcknowledgeType {
			if len(r.Value) == 0 {
				fmt.Println("rejected: an order of nothing")
				return wire.Reject
			}
			fmt.Printf("accepted: %s\n", r.Value)
			return wire.Accept
		})
		acks.Merge(b.GapAcknowledgements()) // what was acquired and has no record
		if err := c.Acknowledge(ctx, b, acks); err != nil {
			log.Fatal(err)
		}
		n += b.Len()
	}
	// Output:
	// accepted: 3 apples
	// rejected: an order of nothing
	// accepted: 1 pear
}

// The snapshot says as whom records are acknowledged in a transaction.
func ExampleConsumer_GroupMetadata() {
	ctx := context.Background()
	cl, stop := orders(ctx)
	defer stop()

	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "billing", Topics: []string{"orders"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	m := c.GroupMetadata()
	fmt.Println(m.GroupID, len(m.MemberID) > 0, m.MemberEpoch > 0)
	// Output: billing true true
}

// Types may differ from offset to offset; what is sent is as small as that
// allows.
func ExampleAcknowledgements() {
	orders := share.TopicPartition{Topic: "orders", Partition: 0}
	acks := new(share.Acknowledgements)
	acks.AddRange(orders, share.Range{FirstOffset: 0, LastOffset: 99_999}, wire.Accept)
	acks.AddTypes(orders, 100_000, []wire.AcknowledgeType{wire.Reject, wire.Accept, wire.Reject})
	acks.Add(orders, 200_000, wire.Accept)

	batches, err := acks.Batches(orders)
	if err != nil {
		log.Fatal(err)
	}
	for _, b := range batches {
		fmt.Println(b.FirstOffset, b.LastOffset, b.AcknowledgeTypes)
	}
	fmt.Println(acks.Count(wire.Accept), "accepted,", acks.Count(wire.Reject), "rejected")
	// Output:
	// 0 99999 [1]
	// 100000 100002 [3 1 3]
	// 200000 200000 [1]
	// 100002 accepted, 2 rejected
}

// Offsets that somebody has decided about are acquired and acknowledged by hand.
func ExampleAcquireRanges() {
	ctx := context.Background()
	cl, stop := orders(ctx, "good", "poison", "good")
	defer stop()
	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "billing", Topics: []string{"orders"}}) // a group begins with a member
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Close(ctx); err != nil {
		log.Fatal(err)
	}

	a, err := share.AcquireRanges(ctx, cl, share.AcquireConfig{
		GroupID: "billing",
		Ranges: []share.AskedRange{
			{Topic: "orders", Partition: 0, Range: share.Range{FirstOffset: 1, LastOffset: 1}},
			{Topic: "orders", Partition: 0, Range: share.Range{FirstOffset: 7, LastOffset: 9}},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close(ctx)
	for _, r := range a.Reports {
		fmt.Printf("%d to %d: %s\n", r.FirstOffset, r.LastOffset, r.Status)
	}
	if err := a.Acknowledge(ctx, a.Batch.All(wire.Reject)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Repeat("rejected ", int(a.Batch.Acquired())) + string(a.Batch.Partitions[0].Records[0].Value))
	// Output:
	// 1 to 1: acquired
	// 7 to 9: beyond the end
	// rejected poison
}
