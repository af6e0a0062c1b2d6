package sandbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A whole sandbox lives in a bubble: a fetch that waits an hour takes no time,
// and a transaction times out when its clock says so.
func TestSandboxInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		s, err := Start(t.Context(), WithListen(network.Listen), WithBasePort(9092), WithTopics(Topic{Name: "t", Partitions: 1}))
		if err != nil {
			t.Fatal(err)
		}
		defer closeSandbox(t, s)
		dial := func(broker int32) *rawConn {
			conn, err := network.DialContext(t.Context(), "tcp", s.Addrs()[broker])
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			return &rawConn{Conn: conn, format: kmsg.NewRequestFormatter()}
		}
		info, _ := s.kafka.partition("t", 0)
		fetch := kmsg.NewPtrFetchRequest()
		fetch.Version, fetch.MaxWaitMillis, fetch.MinBytes, fetch.MaxBytes = 12, 3_600_000, 1, 1000
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic = "t"
		rt.Partitions = append(rt.Partitions, kmsg.NewFetchRequestTopicPartition())
		rt.Partitions[0].PartitionMaxBytes = 1000
		fetch.Topics = append(fetch.Topics, rt)
		start := time.Now()
		resp := askGateway[*kmsg.FetchResponse](t, dial(info.leader), fetch)
		if resp.ErrorCode != 0 || time.Since(start) != time.Hour {
			t.Errorf("code %d after %v, want an hour", resp.ErrorCode, time.Since(start))
		}

		c := &txnConn{dial(s.kafka.coordinator("txn")), s, "txn"}
		producerID, epoch := c.init(t)
		c.register(t, producerID, epoch, 1)
		time.Sleep(61 * time.Second) // of the bubble's clock
		st, _, err := s.kafka.describeTransaction(t.Context(), "txn")
		if err != nil || st.state != "Empty" || st.producerEpoch != epoch+1 {
			t.Errorf("after its timeout the transaction is %+v, %v", st, err)
		}
	})
}
