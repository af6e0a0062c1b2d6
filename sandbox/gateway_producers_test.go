package sandbox

import (
	"context"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A marker that is written by hand ends a transaction on its partition, and the
// producer has none there until it adds the partition again.
func TestEndMarkerByHand(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "in", Partitions: 1}))
	cl := newTestClient(t, s, kgo.TransactionalID("hangs"), kgo.DefaultProduceTopic("in"))
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce := func() {
		t.Helper()
		if err := cl.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	produce()
	id, epoch, err := cl.ProducerID(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	info, _ := s.kafka.partition("in", 0)
	leader := dialRaw(t, s, int(info.leader))
	open := func() bool {
		t.Helper()
		req := kmsg.NewPtrDescribeProducersRequest()
		req.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: "in", Partitions: []int32{0}}}
		p := askGateway[*kmsg.DescribeProducersResponse](t, leader, req).Topics[0].Partitions[0]
		if p.ErrorCode != 0 {
			t.Fatalf("DescribeProducers: code %d", p.ErrorCode)
		}
		return slices.ContainsFunc(p.ActiveProducers, func(a kmsg.DescribeProducersResponseTopicPartitionActiveProducer) bool {
			return a.ProducerID == id && a.CurrentTxnStartOffset >= 0
		})
	}
	if !open() {
		t.Fatal("the open transaction is not told")
	}
	for _, topic := range []string{"other", "in"} { // the first one is not there
		req := kmsg.NewPtrWriteTxnMarkersRequest()
		m := kmsg.NewWriteTxnMarkersRequestMarker()
		m.ProducerID, m.ProducerEpoch = id, epoch
		m.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: topic, Partitions: []int32{0}}}
		req.Markers = append(req.Markers, m)
		askGateway[*kmsg.WriteTxnMarkersResponse](t, leader, req)
		if want := topic != "in"; open() != want {
			t.Errorf("after a marker for %s the transaction is open: %v, want %v", topic, !want, want)
		}
	}
	// It has to end all the same, and the next one is told.
	if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce()
	if !open() {
		t.Error("the next transaction is not told")
	}
}
