package sandbox

import (
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func (r *planeRig) describeOffsets(c caller, group string, topics []kmsg.DescribeShareGroupOffsetsRequestGroupTopic) kmsg.DescribeShareGroupOffsetsResponseGroup {
	r.t.Helper()
	req := &kmsg.DescribeShareGroupOffsetsRequest{Version: 1, Groups: []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: group, Topics: topics}}}
	return ask[*kmsg.DescribeShareGroupOffsetsResponse](r, c, req).Groups[0]
}

func TestDescribeShareGroupOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 2)
		r.k.topic("other", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.ack(0, 0, 2, ackAccept), nil)
		r.wantCode(m.ack(0, 5, 5, ackReject), nil)
		lag := func(want int64, why string) {
			t.Helper()
			g := r.describeOffsets(r.on(0), "g", nil)
			if len(g.Topics) != 1 || g.Topics[0].Topic != "in" || len(g.Topics[0].Partitions) != 2 {
				t.Fatalf("%+v, want both partitions of in", g)
			}
			p := g.Topics[0].Partitions[0]
			if p.StartOffset != 3 || p.LeaderEpoch != 1 || p.Lag != want {
				t.Errorf("%s: start offset %d, leader epoch %d, lag %d, want 3, 1, %d", why, p.StartOffset, p.LeaderEpoch, p.Lag, want)
			}
			if p := g.Topics[0].Partitions[1]; p.StartOffset != -1 || p.Lag != -1 || p.ErrorCode != 0 {
				t.Errorf("the partition nobody fetched: %+v, want -1 and -1", p)
			}
		}
		lag(6, "acquired")
		r.wantCode(m.stage("t", owner{7, 3}, 0, 6, 9, ackAccept), nil)
		lag(6, "pending")
		r.end("t", owner{7, 3}, true)
		lag(2, "committed")

		named := r.describeOffsets(r.on(0), "g", []kmsg.DescribeShareGroupOffsetsRequestGroupTopic{
			{Topic: "other", Partitions: []int32{0}}, {Topic: "none", Partitions: []int32{0}}, {Topic: "in", Partitions: []int32{9}},
		})
		for _, topic := range named.Topics {
			if p := topic.Partitions[0]; p.StartOffset != -1 || p.Lag != -1 || p.ErrorCode != 0 {
				t.Errorf("%s: %+v, want no offset and no error", topic.Topic, p)
			}
		}
		r.wantCode(r.describeOffsets(r.on(1), "g", nil).ErrorCode, kerr.NotCoordinator)
		r.wantCode(r.describeOffsets(r.on(0), "none", nil).ErrorCode, kerr.GroupIDNotFound)
		r.k.deny("in")
		if g := r.describeOffsets(r.on(0), "g", nil); len(g.Topics) != 0 || g.ErrorCode != 0 {
			t.Errorf("a topic that may not be described is in %+v", g)
		}
		g := r.describeOffsets(r.on(0), "g", []kmsg.DescribeShareGroupOffsetsRequestGroupTopic{{Topic: "in", Partitions: []int32{0}}})
		r.wantCode(g.Topics[0].Partitions[0].ErrorCode, kerr.TopicAuthorizationFailed)
		r.k.deny("g")
		r.wantCode(r.describeOffsets(r.on(0), "g", nil).ErrorCode, kerr.GroupAuthorizationFailed)
	})
}

func (r *planeRig) alterOffset(c caller, group, topic string, partition int32, offset int64) (top, part int16) {
	r.t.Helper()
	req := &kmsg.AlterShareGroupOffsetsRequest{GroupID: group, Topics: []kmsg.AlterShareGroupOffsetsRequestTopic{{
		Topic: topic, Partitions: []kmsg.AlterShareGroupOffsetsRequestTopicPartition{{Partition: partition, StartOffset: offset}},
	}}}
	resp := ask[*kmsg.AlterShareGroupOffsetsResponse](r, c, req)
	if resp.ErrorCode != 0 {
		return resp.ErrorCode, 0
	}
	return 0, resp.Topics[0].Partitions[0].ErrorCode
}

func TestAlterShareGroupOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.topic("secret", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.ack(0, 0, 4, ackAccept), nil)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 5, 9, ackAccept), nil)
		top, _ := r.alterOffset(r.on(0), "g", "in", 0, 2)
		r.wantCode(top, kerr.NonEmptyGroup)
		r.heartbeat("g", "m", -1)

		r.k.deny("secret")
		for _, row := range []struct {
			broker    int32
			group     string
			topic     string
			partition int32
			top, part *kerr.Error
		}{
			{1, "g", "in", 0, kerr.NotCoordinator, nil},
			{0, "", "in", 0, kerr.InvalidGroupID, nil},
			{0, "g", "none", 0, nil, kerr.UnknownTopicOrPartition},
			{0, "g", "in", 5, nil, kerr.UnknownTopicOrPartition},
			{0, "g", "secret", 0, nil, kerr.TopicAuthorizationFailed},
			{0, "g", "in", 0, nil, nil},
			{0, "new", "in", 0, nil, nil}, // makes the group
		} {
			top, part := r.alterOffset(r.on(row.broker), row.group, row.topic, row.partition, 2)
			r.wantCode(top, row.top)
			r.wantCode(part, row.part)
		}
		if n := r.p.pendingCount(); n != 0 {
			t.Errorf("%d records pending after the reset", n)
		}
		r.end("t", owner{7, 3}, true) // a late marker finds nothing
		m = r.join("g", "m", "in", 0, 0)
		r.wantRanges(m.fetch(100), delivered(2, 9, 1))
		o := r.join("new", "o", "in", 0, 0)
		r.wantRanges(o.fetch(100), delivered(2, 9, 1))
		r.k.deny("g")
		top, _ = r.alterOffset(r.on(0), "g", "in", 0, 2)
		r.wantCode(top, kerr.GroupAuthorizationFailed)
	})
}

func TestDeleteShareGroupOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.topic("secret", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.ack(0, 0, 4, ackAccept), nil)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 5, 9, ackAccept), nil)
		del := func(c caller, group, topic string) (top, part int16) {
			t.Helper()
			req := &kmsg.DeleteShareGroupOffsetsRequest{GroupID: group, Topics: []kmsg.DeleteShareGroupOffsetsRequestTopic{{Topic: topic}}}
			resp := ask[*kmsg.DeleteShareGroupOffsetsResponse](r, c, req)
			if resp.ErrorCode != 0 {
				return resp.ErrorCode, 0
			}
			return 0, resp.Topics[0].ErrorCode
		}
		top, _ := del(r.on(0), "g", "in")
		r.wantCode(top, kerr.NonEmptyGroup)
		r.heartbeat("g", "m", -1)
		r.k.deny("secret")
		for _, row := range []struct {
			broker    int32
			group     string
			topic     string
			top, part *kerr.Error
		}{
			{1, "g", "in", kerr.NotCoordinator, nil},
			{0, "", "in", kerr.InvalidGroupID, nil},
			{0, "none", "in", kerr.GroupIDNotFound, nil},
			{0, "g", "none", nil, kerr.UnknownTopicOrPartition},
			{0, "g", "secret", nil, kerr.TopicAuthorizationFailed},
			{0, "g", "in", nil, nil},
		} {
			top, part := del(r.on(row.broker), row.group, row.topic)
			r.wantCode(top, row.top)
			r.wantCode(part, row.part)
		}
		if n, keys := r.p.pendingCount(), r.co.keys(); n != 0 || len(keys) != 0 {
			t.Errorf("%d records pending, state of %v, want nothing", n, keys)
		}
		m = r.join("g", "m", "in", 0, 0)
		r.wantRanges(m.fetch(100), delivered(0, 9, 1))
		r.k.deny("g")
		top, _ = del(r.on(0), "g", "in")
		r.wantCode(top, kerr.GroupAuthorizationFailed)
	})
}
