package share_test

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fetchConn counts the fetches that are sent.
type fetchConn struct {
	net.Conn
	sent func()
}

func (c *fetchConn) Write(b []byte) (int, error) {
	if len(b) > 6 && int16(binary.BigEndian.Uint16(b[4:])) == int16(kmsg.ShareFetch) {
		c.sent()
	}
	return c.Conn.Write(b)
}

// A broker that leads one partition of a session no more, and still leads
// another one, answers at once as long as the session has both: the member has
// to take the first one out of it, and must not ask in a circle.
func TestLeaderOfSomeMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		sb, err := sandbox.Start(t.Context(), sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092), sandbox.WithBrokers(2),
			sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 4}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		}()
		const most = 1000
		var fetches atomic.Int64
		var many atomic.Pointer[func()]
		cl, err := cluster.Connect(t.Context(), cluster.Config{
			BootstrapServers: sb.Addrs(),
			Dialer: func(ctx context.Context, n, address string) (net.Conn, error) {
				conn, err := network.DialContext(ctx, n, address)
				if err != nil {
					return nil, err
				}
				return &fetchConn{conn, func() {
					if stop := many.Load(); fetches.Add(1) == most && stop != nil {
						go (*stop)() // otherwise the bubble's time would stand still
					}
				}}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		c, err := share.NewConsumer(t.Context(), cl, share.Config{GroupID: "g", Topics: []string{"in"}, MaxWait: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Abandon()
		many.Store(new(c.Abandon))
		<-time.After(10 * time.Second)
		for p := range int32(2) { // one of each broker
			for to := range int32(2) {
				if _, err := sb.InjectFault(t.Context(), sandbox.Fault{Kind: sandbox.FaultMoveLeader, Topic: "in", Partition: &p, ToBroker: &to}); err != nil {
					t.Fatal(err)
				}
				<-time.After(30 * time.Second)
			}
		}
		if n := fetches.Load(); n >= most {
			t.Errorf("%d fetches, and more, where a second passes between two", n)
		}
	})
}

// startInBubble starts a sandbox with a topic "in" of two partitions on a network of
// its own, and connects to it. The bubble's test calls end.
func startInBubble(t *testing.T, opts ...sandbox.Option) (sb *sandbox.Sandbox, cl *cluster.Client, end func()) {
	t.Helper()
	var network kfake.VirtualNetwork
	sb, err := sandbox.Start(t.Context(), append([]sandbox.Option{
		sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092),
		sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 2}),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	cl, err = cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs(), Dialer: network.DialContext})
	if err != nil {
		t.Fatal(err)
	}
	return sb, cl, func() {
		cl.Close()
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A coordinator tells a member an assignment once. When that response is lost,
// the member has to ask for it again: nobody else reads what it was assigned.
func TestAssignmentIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sb, cl, end := startInBubble(t)
		defer end()
		join := func() *share.Consumer {
			c, err := share.NewConsumer(t.Context(), cl, share.Config{GroupID: "g", Topics: []string{"in"}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		stays, leaves := join(), join()
		defer stays.Abandon()
		<-time.After(time.Minute)
		if n := len(stays.Assigned()); n != 1 {
			t.Fatalf("%d of 2 share-partitions are assigned to one of two members", n)
		}
		if err := leaves.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		key := int16(kmsg.ShareGroupHeartbeat)
		fault, err := sb.InjectFault(t.Context(), sandbox.Fault{Kind: sandbox.FaultLoseResponse, APIKey: &key, Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.AwaitFault(t.Context(), fault.ID, 1); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if n := len(stays.Assigned()); n != 2 {
			t.Errorf("the member that is left has %d of 2 share-partitions", n)
		}
	})
}

// A leader cannot serve one of its partitions, and answers at once for as long as
// it is asked for it. The records of the others do not wait for that.
func TestOnePartitionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sb, cl, end := startInBubble(t, sandbox.WithBrokers(1))
		defer end()
		c, err := share.NewConsumer(t.Context(), cl, share.Config{GroupID: "g", Topics: []string{"in"}, MaxRecords: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Abandon()
		<-time.After(10 * time.Second)
		tps := c.Assigned()
		if len(tps) != 2 {
			t.Fatalf("assigned %v, want both share-partitions", tps)
		}
		producer, err := cl.NewKgo(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		const n = 50
		for range n {
			if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "in", Partition: 1}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		state := wire.ShareStatePartition("g", tps[0].TopicID, 0, 50)
		if state == wire.ShareStatePartition("g", tps[0].TopicID, 1, 50) {
			t.Fatal("both partitions have their state in one")
		}
		for _, f := range []sandbox.Fault{
			{Kind: sandbox.FaultFailCoordinator, Coordinator: sandbox.CoordinatorShare, StatePartition: &state},
			{Kind: sandbox.FaultCrashLeader, Topic: "in", Partition: new(int32(0))}, // it has to load the state
		} {
			if _, err := sb.InjectFault(t.Context(), f); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Minute) // it has failed often by now
		began := time.Now()
		for got := 0; got < n; {
			b, err := c.Poll(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			got += b.Len()
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%d records of a healthy partition took %s", n, took)
		}
	})
}
