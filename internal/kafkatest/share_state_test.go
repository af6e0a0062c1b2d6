package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
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
	// warnings are what the member warns of, as far as they are received.
	warnings chan error
}

func newGroup(t *testing.T, k *kafkatest.Cluster) *group {
	t.Helper()
	ctx := testContext(t)
	name := strings.NewReplacer("/", "-", ".", "-").Replace(t.Name())
	// A group ID of more than ASCII: its hash is over UTF-16.
	g := &group{id: name + ":\u00e9\U0001F600", topic: name, cl: k.Client(t, kgo.DefaultProduceTopic(name)), kafka: k, warnings: make(chan error, 1)}
	created, err := kadm.NewClient(g.cl).CreateTopic(ctx, 1, 1, nil, g.topic)
	if err != nil {
		t.Fatal(err)
	}
	g.topicID = created.ID
	g.produce(t, 20)
	conn, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: k.Bootstrap()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.SetGroupConfig(ctx, g.id, "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	g.member, err = share.NewConsumer(ctx, conn, share.Config{GroupID: g.id, Topics: []string{g.topic}, Warn: g.warn})
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

func (g *group) warn(err error) {
	select {
	case g.warnings <- err:
	default:
	}
}

func (g *group) produce(t *testing.T, n int) {
	t.Helper()
	var records []*kgo.Record
	for range n {
		records = append(records, &kgo.Record{Value: []byte("value")})
	}
	if err := g.cl.ProduceSync(testContext(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
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

func wantAnswer(t *testing.T, code int16, message *string, want *kerr.Error, text string) {
	t.Helper()
	got := ""
	if message != nil {
		got = *message
	}
	if code != want.Code || got != text {
		t.Errorf("ReadShareGroupState: %v, %q\nwant %s, %q", kerr.ErrorForCode(code), got, want.Message, text)
	}
}

func stateBatch(first, last int64, state wire.RecordState, count int16) wire.StateBatch {
	return wire.StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: state, DeliveryCount: count, Staged: wire.NoStagedOwner()}
}

// stateEnd is how many records there are in the partition of __share_group_state
// that the group's are in.
func (g *group) stateEnd(t *testing.T) int64 {
	t.Helper()
	ends, err := kadm.NewClient(g.cl).ListEndOffsets(testContext(t), "__share_group_state")
	if err != nil {
		t.Fatal(err)
	}
	end, ok := ends.Lookup("__share_group_state", wire.ShareStatePartition(g.id, g.topicID, 0, 3))
	if !ok || end.Err != nil {
		t.Fatalf("end of __share_group_state: %+v", end)
	}
	return end.Offset
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
		switch g.kafka.Version() {
		case kafkatest.Kafka42:
			wantAnswer(t, p.ErrorCode, p.ErrorMessage, kerr.FencedLeaderEpoch, "The leader epoch in the request is older than the epoch on the broker.")
		default:
			wantAnswer(t, p.ErrorCode, p.ErrorMessage, kerr.InvalidRequest, "The leader epoch cannot be a negative number.")
		}
	})
}

func TestReadShareGroupStateWithTheLeaderEpochOfTheSummaryChangesNothing(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		g.acknowledge(t, wire.Accept, wire.Reject, wire.Accept)
		before, end := g.summary(t), g.stateEnd(t)
		if before.StartOffset != 0 || before.DeliveryCompleteCount != 3 {
			t.Errorf("summary %+v, want start offset 0 and 3 complete", before)
		}
		p := g.read(t, before.LeaderEpoch)
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			t.Fatalf("ReadShareGroupState: %v", err)
		}
		want := []wire.StateBatch{
			stateBatch(0, 0, wire.Acknowledged, 1), stateBatch(1, 1, wire.Archived, 1), stateBatch(2, 2, wire.Acknowledged, 1),
		}
		var got []wire.StateBatch
		for _, b := range p.StateBatches {
			got = append(got, stateBatch(b.FirstOffset, b.LastOffset, wire.RecordState(b.DeliveryState), b.DeliveryCount))
		}
		if p.StateEpoch != before.StateEpoch || p.StartOffset != 0 || !slices.Equal(got, want) {
			t.Errorf("state %+v, want state epoch %d, start offset 0, %v", p, before.StateEpoch, want)
		}
		if after := g.summary(t); !reflect.DeepEqual(after, before) {
			t.Errorf("the summary was %+v and is %+v", before, after)
		}
		if now := g.stateEnd(t); now != end {
			t.Errorf("__share_group_state had %d records and has %d", end, now)
		}
		g.acknowledge(t, wire.Accept) // the leader is not fenced
	})
}

// So a tool that guesses the epoch takes the share-partition away from its group:
// its leader cannot even load the state again, until the epoch of the partition's
// leader has become as high as the guess.
func TestReadShareGroupStateWithAHigherLeaderEpochFencesTheLeader(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		g.acknowledge(t, wire.Accept)
		held, err := g.member.Poll(testContext(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		epoch := g.summary(t).LeaderEpoch
		if err := kerr.ErrorForCode(g.read(t, epoch+5).ErrorCode); err != nil {
			t.Fatalf("ReadShareGroupState: %v", err)
		}
		if got := g.summary(t).LeaderEpoch; got != epoch+5 {
			t.Errorf("leader epoch %d, want %d", got, epoch+5)
		}
		p := g.read(t, epoch)
		wantAnswer(t, p.ErrorCode, p.ErrorMessage, kerr.FencedLeaderEpoch, "The leader epoch in the request is older than the epoch on the broker.")
		err = g.member.Acknowledge(testContext(t), held, held.All(wire.Accept))
		if !errors.Is(err, kerr.NotLeaderForPartition) {
			t.Errorf("acknowledge: %v, want NOT_LEADER_FOR_PARTITION", err)
		}
		// Fetches fail, once the old share-partition is gone.
		for err := range g.warnings {
			if errors.Is(err, kerr.NotLeaderForPartition) {
				break
			}
		}
	})
}

func TestReadShareGroupStateOfAnUnknownSharePartition(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		g.acknowledge(t, wire.Accept)
		end := g.stateEnd(t)
		unknown := *g
		unknown.id += "-unknown"
		want := kmsg.NewReadShareGroupStateSummaryResponseTopicPartition()
		want.StartOffset, want.DeliveryCompleteCount = -1, -1
		if got := unknown.summary(t); !reflect.DeepEqual(got, want) {
			t.Errorf("summary %+v, want %+v", got, want)
		}
		p := unknown.read(t, 0)
		wantAnswer(t, p.ErrorCode, p.ErrorMessage, kerr.InvalidRequest, "Read operation on uninitialized share partition not allowed.")
		if now := g.stateEnd(t); now != end {
			t.Errorf("__share_group_state had %d records and has %d", end, now)
		}
	})
}

func TestShareStateRecordsAreWhereAndAsPackageWireSays(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		// One acknowledgement more than there are updates between snapshots.
		const updates = 500
		g.produce(t, updates)
		g.acknowledge(t, wire.Accept, wire.Reject, wire.Release, wire.Accept)
		for range updates {
			g.acknowledge(t, wire.Accept)
		}
		if err := g.member.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := kadm.NewClient(g.cl).DeleteGroup(testContext(t), g.id); err != nil {
			t.Fatal(err)
		}
		records := g.stateRecords(t, func(rs []stateRecord) bool { return len(rs) > 0 && rs[len(rs)-1].Tombstone() })

		where := wire.ShareStatePartition(g.id, g.topicID, 0, 3)
		var snapshots []*wire.ShareSnapshot
		for i, r := range records {
			if r.partition != where || r.Key.TopicID != g.topicID || r.Key.Partition != 0 {
				t.Errorf("record %d is of %x-%d in partition %d, want %x-0 in partition %d", i, r.Key.TopicID, r.Key.Partition, r.partition, g.topicID, where)
			}
			if r.Snapshot != nil {
				snapshots = append(snapshots, r.Snapshot)
			}
		}
		summary := fmt.Sprintf("%d records, snapshots %+v", len(records), snapshots)
		if len(snapshots) != 2 {
			t.Fatalf("%s, want 2 snapshots", summary)
		}
		first, second := *snapshots[0], *snapshots[1]
		// Made when the group was first seen, before any leader read it.
		if records[0].Snapshot != snapshots[0] || first.SnapshotEpoch != 0 || first.LeaderEpoch != 0 || first.StartOffset != -1 ||
			first.DeliveryCompleteCount != -1 || first.CreateTimestamp != first.WriteTimestamp || len(first.StateBatches) > 0 {
			t.Errorf("%s, want the first record to be an empty snapshot", summary)
		}
		if u := records[1].Update; u == nil || u.SnapshotEpoch != 0 || u.LeaderEpoch != 0 || u.StartOffset != 0 || u.DeliveryCompleteCount != 3 ||
			!slices.Equal(u.StateBatches, []wire.StateBatch{
				stateBatch(0, 0, wire.Acknowledged, 1), stateBatch(1, 1, wire.Archived, 1),
				stateBatch(2, 2, wire.Available, 1), stateBatch(3, 3, wire.Acknowledged, 1),
			}) {
			t.Errorf("record 1 is %+v", records[1])
		}
		if second.SnapshotEpoch != 1 || second.StateEpoch != first.StateEpoch || second.StartOffset < 2 {
			t.Errorf("%s, want the second snapshot to be the next", summary)
		}
	})
}

func TestLagIsUnknownBeforeTheFirstAcknowledgement(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		if _, err := g.member.Poll(testContext(t), 1); err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
		rg := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
		rg.GroupID = g.id
		req.Groups = append(req.Groups, rg)
		resp, err := req.RequestWith(testContext(t), g.cl)
		if err != nil {
			t.Fatal(err)
		}
		p := resp.Groups[0].Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil || p.StartOffset != -1 || p.Lag != -1 {
			t.Errorf("start offset %d, lag %d, %v; want -1 and -1", p.StartOffset, p.Lag, err)
		}
	})
}

// What a leader answers to the epochs of a share session, to a member that never
// joined: it does not ask the coordinator who is a member.
func TestShareSessionEpochs(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		const open, closing = 0, -1
		accept := []int8{int8(wire.Accept)}
		for _, step := range []struct {
			name  string
			acks  bool // ShareAcknowledge
			epoch int32
			types []int8
			want  error
			part  error // of the partition
		}{
			{"acknowledge to open", true, open, accept, kerr.InvalidShareSessionEpoch, nil},
			{"acknowledge without a session", true, 1, accept, kerr.ShareSessionNotFound, nil},
			{"fetch without a session", false, 1, nil, kerr.ShareSessionNotFound, nil},
			{"open with acknowledgements", false, open, accept, kerr.InvalidRequest, nil},
			{"open", false, open, nil, nil, nil},
			{"open again", false, open, nil, nil, nil},
			{"another epoch than the next", false, 3, nil, kerr.InvalidShareSessionEpoch, nil},
			{"the next", true, 1, nil, nil, nil},
			{"a renewal that is none", true, 2, []int8{int8(wire.Renew)}, nil, kerr.InvalidRequest},
			{"an unknown type, at the epoch after a refusal", true, 3, []int8{9}, nil, kerr.InvalidRequest},
			{"close", true, closing, nil, nil, nil},
			{"close again", true, closing, nil, kerr.ShareSessionNotFound, nil},
		} {
			send := g.fetch
			if step.acks {
				send = g.shareAcknowledge
			}
			err, part := send(t, step.epoch, step.types)
			if !errors.Is(err, step.want) || !errors.Is(part, step.part) {
				t.Errorf("%s: %v, partition %v; want %v, %v", step.name, err, part, step.want, step.part)
			}
		}
	})
}

// stranger is the ID of a member that never joined.
const stranger = "6d1dae8c-5a1d-4b7c-8f3e-6f1f3e1c2d3b"

func (g *group) fetch(t *testing.T, epoch int32, types []int8) (err, partition error) {
	t.Helper()
	member := stranger
	req := kmsg.NewPtrShareFetchRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = &g.id, &member, epoch
	req.MinBytes, req.MaxBytes, req.MaxRecords, req.BatchSize = 1, 1<<20, 1, 1
	topic := kmsg.NewShareFetchRequestTopic()
	topic.TopicID = g.topicID
	p := kmsg.NewShareFetchRequestTopicPartition()
	if types != nil {
		b := kmsg.NewShareFetchRequestTopicPartitionAcknowledgementBatch()
		b.AcknowledgeTypes = types
		p.AcknowledgementBatches = append(p.AcknowledgementBatches, b)
	}
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	resp := request[*kmsg.ShareFetchResponse](t, g.cl.Broker(1), req)
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			partition = errors.Join(partition, kerr.ErrorForCode(p.ErrorCode), kerr.ErrorForCode(p.AcknowledgeErrorCode))
		}
	}
	return kerr.ErrorForCode(resp.ErrorCode), partition
}

func (g *group) shareAcknowledge(t *testing.T, epoch int32, types []int8) (err, partition error) {
	t.Helper()
	member := stranger
	req := kmsg.NewPtrShareAcknowledgeRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = &g.id, &member, epoch
	if types != nil {
		topic := kmsg.NewShareAcknowledgeRequestTopic()
		topic.TopicID = g.topicID
		p := kmsg.NewShareAcknowledgeRequestTopicPartition()
		b := kmsg.NewShareAcknowledgeRequestTopicPartitionAcknowledgementBatch()
		b.AcknowledgeTypes = types
		p.AcknowledgementBatches = append(p.AcknowledgementBatches, b)
		topic.Partitions = append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
	}
	resp := request[*kmsg.ShareAcknowledgeResponse](t, g.cl.Broker(1), req)
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			partition = errors.Join(partition, kerr.ErrorForCode(p.ErrorCode))
		}
	}
	return kerr.ErrorForCode(resp.ErrorCode), partition
}

// The names of KIP-1191's configs, and which configs of a group came after 4.2.
func TestConfigsOfShareGroups(t *testing.T) {
	onShareGroups(t, func(t *testing.T, g *group) {
		describe := func(typ kmsg.ConfigResourceType, name string) map[string]string {
			req := kmsg.NewPtrDescribeConfigsRequest()
			r := kmsg.NewDescribeConfigsRequestResource()
			r.ResourceType, r.ResourceName = typ, name
			req.Resources = append(req.Resources, r)
			resp, err := req.RequestWith(testContext(t), g.cl)
			if err != nil {
				t.Fatal(err)
			}
			configs := make(map[string]string)
			for _, c := range resp.Resources[0].Configs {
				ofGroup := typ == kmsg.ConfigResourceTypeGroupConfig && strings.HasPrefix(c.Name, "share.")
				if (ofGroup || strings.HasPrefix(c.Name, "errors.")) && c.Value != nil {
					configs[c.Name] = *c.Value
				}
			}
			return configs
		}
		ofGroup := map[string]string{
			"share.auto.offset.reset": "earliest", "share.heartbeat.interval.ms": "5000", "share.session.timeout.ms": "45000",
			"share.isolation.level": "read_uncommitted", "share.record.lock.duration.ms": "30000",
		}
		ofTopic, ofBroker := map[string]string{}, map[string]string{}
		if g.kafka.Version() == kafkatest.Kafka44 {
			maps.Copy(ofGroup, map[string]string{
				"share.delivery.count.limit": "5", "share.partition.max.record.locks": "2000",
				"share.renew.acknowledge.enable":    "true",
				"share.assignment.interval.ms":      "0", // the broker's own, not Kafka's default
				"errors.deadletterqueue.topic.name": "", "errors.deadletterqueue.copy.record.enable": "false",
			})
			ofTopic["errors.deadletterqueue.group.enable"] = "false"
			ofBroker["errors.deadletterqueue.topic.name.prefix"] = "dlq."
			ofBroker["errors.deadletterqueue.auto.create.topics.enable"] = "false"
		}
		for _, c := range []struct {
			typ  kmsg.ConfigResourceType
			name string
			want map[string]string
		}{
			{kmsg.ConfigResourceTypeGroupConfig, g.id, ofGroup},
			{kmsg.ConfigResourceTypeTopic, g.topic, ofTopic},
			{kmsg.ConfigResourceTypeBroker, "1", ofBroker},
		} {
			if got := describe(c.typ, c.name); !maps.Equal(got, c.want) {
				t.Errorf("configs of %s %q: %v\nwant %v", c.typ, c.name, got, c.want)
			}
		}
	})
}
