package share_test

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/kshare/kshare/share"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A topic was deleted and created again, and a broker that is asked for it has not
// heard of that yet. The coordinator has, tells the assignment once, and the member
// has to fetch all the same.
func TestBrokerBehindCoordinator(t *testing.T) {
	for behind, when := range map[int64]string{1: "with the assignment", 2: "with the leaders"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			fake := fakekafka.Start(t, fakekafka.Config{Brokers: 1, Topics: []string{"in"}})
			cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: []string{fake.BootstrapServers()}})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			topics, err := cl.Topics(t.Context(), "in")
			if err != nil {
				t.Fatal(err)
			}
			id := topics["in"].ID
			var asked atomic.Int64
			fake.Answer(int16(kmsg.Metadata), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
				meta := req.(*kmsg.MetadataRequest)
				if len(meta.Topics) != 1 || asked.Add(1) != behind {
					return nil, false
				}
				return formerTopic(t, fake, meta), true
			})
			fake.Answer(int16(kmsg.ShareGroupHeartbeat), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
				beat := req.(*kmsg.ShareGroupHeartbeatRequest)
				resp := beat.ResponseKind().(*kmsg.ShareGroupHeartbeatResponse)
				resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &beat.MemberID, 1, 10
				if beat.MemberEpoch == 0 {
					tp := kmsg.NewShareGroupHeartbeatResponseAssignmentTopicPartition()
					tp.TopicID, tp.Partitions = id, []int32{0}
					resp.Assignment = &kmsg.ShareGroupHeartbeatResponseAssignment{TopicPartitions: []kmsg.ShareGroupHeartbeatResponseAssignmentTopicPartition{tp}}
				}
				return resp, true
			})
			ctx, fetched := context.WithTimeout(t.Context(), 10*time.Second)
			defer fetched()
			fake.Answer(int16(kmsg.ShareFetch), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
				if f := req.(*kmsg.ShareFetchRequest); len(f.Topics) == 1 && f.Topics[0].TopicID == id {
					fetched()
				}
				return nil, true
			})
			c, err := share.NewConsumer(t.Context(), cl, share.Config{GroupID: "g", Topics: []string{"in"}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Abandon()
			<-ctx.Done()
			if context.Cause(ctx) == context.DeadlineExceeded {
				t.Errorf("no fetch, after %d requests for metadata", asked.Load())
			}
		})
	}
}

// formerTopic is the metadata of a topic that had the name before.
func formerTopic(t *testing.T, fake *fakekafka.Cluster, req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	host, port, err := net.SplitHostPort(fake.Addr(0))
	if err != nil {
		t.Error(err)
	}
	b := kmsg.NewMetadataResponseBroker()
	b.Host = host
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Error(err)
	}
	b.Port = int32(n)
	resp.Brokers = append(resp.Brokers, b)
	topic := kmsg.NewMetadataResponseTopic()
	topic.Topic, topic.TopicID = req.Topics[0].Topic, [16]byte{1}
	topic.Partitions = append(topic.Partitions, kmsg.NewMetadataResponseTopicPartition())
	resp.Topics = append(resp.Topics, topic)
	return resp
}
