package kafkatest_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// onShareGroups runs a test on each release that has share groups.
func onShareGroups(t *testing.T, test func(*testing.T, *group)) {
	t.Helper()
	for _, version := range []string{kafkatest.Kafka44, kafkatest.Kafka42} {
		t.Run(version, func(t *testing.T) {
			test(t, newGroup(t, kafkatest.Shared(t, kafkatest.Config{Version: version})))
		})
	}
}

// group is a share group of one member, with a topic of its own.
type group struct {
	id      string
	topic   string
	topicID [16]byte
	cl      *kgo.Client
	kafka   *kafkatest.Cluster
	member  *share.Consumer
}

// groupRecords is how many records each topic has.
const groupRecords = 20

func newGroup(t *testing.T, k *kafkatest.Cluster) *group {
	t.Helper()
	ctx := testContext(t)
	name := strings.NewReplacer("/", "-", ".", "-").Replace(t.Name())
	// A group ID of more than ASCII: its hash is over UTF-16.
	g := &group{id: name + ":\u00e9\U0001F600", topic: name, cl: k.Client(t, kgo.DefaultProduceTopic(name)), kafka: k}
	created, err := kadm.NewClient(g.cl).CreateTopic(ctx, 1, 1, nil, g.topic)
	if err != nil {
		t.Fatal(err)
	}
	g.topicID = created.ID
	for i := range groupRecords {
		if err := g.cl.ProduceSync(ctx, &kgo.Record{Value: fmt.Appendf(nil, "%d", i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: k.Bootstrap()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.SetGroupConfig(ctx, g.id, "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	g.member, err = share.NewConsumer(ctx, conn, share.Config{GroupID: g.id, Topics: []string{g.topic}, Warn: func(err error) { t.Log("WARN", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.member.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return g
}

// acknowledge says types of the next records.
func (g *group) acknowledge(t *testing.T, types ...wire.AcknowledgeType) {
	t.Helper()
	for len(types) > 0 {
		b, err := g.member.Poll(testContext(t), len(types))
		if err != nil {
			t.Fatal(err)
		}
		acks := new(share.Acknowledgements)
		for _, p := range b.Partitions {
			for _, r := range p.Records {
				acks.Add(p.TopicPartition, r.Offset, types[0])
				types = types[1:]
			}
		}
		if err := g.member.Acknowledge(testContext(t), b, acks); err != nil {
			t.Fatal(err)
		}
	}
}

func readState(group string, topicID [16]byte, partition, leaderEpoch int32) *kmsg.ReadShareGroupStateRequest {
	req := kmsg.NewPtrReadShareGroupStateRequest()
	req.GroupID = group
	topic := kmsg.NewReadShareGroupStateRequestTopic()
	topic.TopicID = topicID
	p := kmsg.NewReadShareGroupStateRequestTopicPartition()
	p.Partition, p.LeaderEpoch = partition, leaderEpoch
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return req
}

func readSummary(group string, topicID [16]byte, partition int32) *kmsg.ReadShareGroupStateSummaryRequest {
	req := kmsg.NewPtrReadShareGroupStateSummaryRequest()
	req.GroupID = group
	topic := kmsg.NewReadShareGroupStateSummaryRequestTopic()
	topic.TopicID = topicID
	p := kmsg.NewReadShareGroupStateSummaryRequestTopicPartition()
	p.Partition, p.LeaderEpoch = partition, -1
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return req
}

func (g *group) read(t *testing.T, leaderEpoch int32) kmsg.ReadShareGroupStateResponseTopicPartition {
	t.Helper()
	resp := request[*kmsg.ReadShareGroupStateResponse](t, g.cl.Broker(1), readState(g.id, g.topicID, 0, leaderEpoch))
	return resp.Topics[0].Partitions[0]
}

func (g *group) summary(t *testing.T) kmsg.ReadShareGroupStateSummaryResponseTopicPartition {
	t.Helper()
	resp := request[*kmsg.ReadShareGroupStateSummaryResponse](t, g.cl.Broker(1), readSummary(g.id, g.topicID, 0))
	p := resp.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
		t.Fatalf("ReadShareGroupStateSummary: %v", err)
	}
	return p
}

func wantAnswer(t *testing.T, what string, code int16, message *string, want *kerr.Error, text string) {
	t.Helper()
	got := ""
	if message != nil {
		got = *message
	}
	if code != want.Code || got != text {
		t.Errorf("%s: %v, %q\nwant %s, %q", what, kerr.ErrorForCode(code), got, want.Message, text)
	}
}

// stateRecord is a record of __share_group_state and where it is.
type stateRecord struct {
	wire.ShareStateRecord
	partition int32
}

// stateRecords reads what __share_group_state says of the group, until
// enough is true.
func (g *group) stateRecords(t *testing.T, enough func([]stateRecord) bool) []stateRecord {
	t.Helper()
	cl := g.kafka.Client(t, kgo.ConsumeTopics("__share_group_state"))
	var all []stateRecord
	for !enough(all) {
		fetches := cl.PollFetches(testContext(t))
		if err := fetches.Err(); err != nil {
			t.Fatalf("read __share_group_state: %v, after %+v", err, all)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			parsed, err := wire.ParseShareStateRecord(r.Key, r.Value)
			if err != nil {
				t.Errorf("record %x, %x: %v", r.Key, r.Value, err)
			}
			// What we would write is, byte by byte, what Kafka wrote.
			if got := parsed.Key.AppendTo(nil); string(got) != string(r.Key) {
				t.Errorf("key %x is written as %x", r.Key, got)
			}
			var value []byte
			switch {
			case parsed.Snapshot != nil:
				value = parsed.Snapshot.AppendTo(nil)
			case parsed.Update != nil:
				value = parsed.Update.AppendTo(nil)
			}
			if string(value) != string(r.Value) {
				t.Errorf("value %x is written as %x", r.Value, value)
			}
			if parsed.Key.GroupID == g.id {
				all = append(all, stateRecord{parsed, r.Partition})
			}
		})
	}
	return all
}

func TestReadShareGroupStateWithLeaderEpochMinus1IsRefused(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		g.acknowledge(t, wire.Accept)
		p := g.read(t, -1)
		t.Log(kerr.ErrorForCode(p.ErrorCode), *p.ErrorMessage)
	})
}

func TestReadShareGroupStateSummaryTellsTheLeaderEpochToReadTheStateWith(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		g.acknowledge(t, wire.Accept, wire.Reject, wire.Accept)
		before := g.summary(t)
		p := g.read(t, before.LeaderEpoch)
		t.Logf("%+v", before)
		t.Logf("%+v", p)
		t.Logf("%+v", g.summary(t))
	})
}

func TestReadShareGroupStateWithAHigherLeaderEpochFencesTheLeader(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		g.acknowledge(t, wire.Accept)
		epoch := g.summary(t).LeaderEpoch
		t.Logf("%+v", g.read(t, epoch+5))
		t.Logf("%+v", g.summary(t))
		p := g.read(t, epoch)
		t.Log(kerr.ErrorForCode(p.ErrorCode), *p.ErrorMessage)
		b, err := g.member.Poll(testContext(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		err = g.member.Acknowledge(testContext(t), b, b.All(wire.Accept))
		t.Log(err)
		for range 4 {
			b, err := g.member.Poll(testContext(t), 100)
			if err != nil {
				t.Fatal(err)
			}
			err = g.member.Acknowledge(testContext(t), b, b.All(wire.Accept))
			t.Log(err)
		}
	})
}

func TestReadShareGroupStateOfNothing(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		unknown := *g
		unknown.id = g.id + "-unknown"
		s := request[*kmsg.ReadShareGroupStateSummaryResponse](t, g.cl.Broker(1), readSummary(unknown.id, g.topicID, 0))
		t.Logf("%+v", s.Topics[0].Partitions[0])
		p := unknown.read(t, 0)
		t.Logf("%+v %s", p, *p.ErrorMessage)
		s = request[*kmsg.ReadShareGroupStateSummaryResponse](t, g.cl.Broker(1), readSummary(unknown.id, g.topicID, 0))
		t.Logf("%+v", s.Topics[0].Partitions[0])
	})
}

func TestShareStateRecords(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		g.acknowledge(t, wire.Accept, wire.Reject, wire.Release, wire.Accept)
		records := g.stateRecords(t, func(rs []stateRecord) bool { return len(rs) >= 2 })
		for _, r := range records {
			t.Logf("%d %+v %+v", r.partition, r.Snapshot, r.Update)
			if want := wire.ShareStatePartition(g.id, g.topicID, 0, 3); r.partition != want {
				t.Errorf("in partition %d, want %d", r.partition, want)
			}
		}
	})
}

var _ = maps.Clone[map[int]int]
