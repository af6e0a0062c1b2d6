package sandbox

import (
	"cmp"
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// DescribeShareGroupOffsets: v0-1 (KIP-932, KIP-1226)
//
// Behavior:
//   - The start offset is the persisted one; -1 where a share-partition has no
//     state, or its leader has not set one yet
//   - Topics nil means all topics that the group has state for; those that the
//     caller may not DESCRIBE are left out then, and refused when named
//
// Version notes:
//   - v1: Lag, the records from the start offset to the high watermark that are
//     not done with; -1 where unknown
//
// AlterShareGroupOffsets: v0 (KIP-932)
//
// Behavior:
//   - Gives share-partitions of an empty group a new start offset; their state
//     is dropped, TX_PENDING included. Makes the group if need be
//
// DeleteShareGroupOffsets: v0 (KIP-932)
//
// Behavior:
//   - Removes the state of whole topics from an empty group

func (p *plane) handleDescribeOffsets(ctx context.Context, c caller, req *kmsg.DescribeShareGroupOffsetsRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.DescribeShareGroupOffsetsResponse)
	for _, rg := range req.Groups {
		resp.Groups = append(resp.Groups, p.describeOffsets(ctx, c, rg))
	}
	return resp, nil
}

func (p *plane) describeOffsets(ctx context.Context, c caller, rg kmsg.DescribeShareGroupOffsetsRequestGroup) kmsg.DescribeShareGroupOffsetsResponseGroup {
	out := kmsg.NewDescribeShareGroupOffsetsResponseGroup()
	out.GroupID = rg.GroupID
	var code int16
	switch {
	case !p.k.authorized(c, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeGroup, rg.GroupID):
		code = kerr.GroupAuthorizationFailed.Code
	case p.k.coordinator(rg.GroupID) != c.broker:
		code = kerr.NotCoordinator.Code
	case p.group(rg.GroupID) == nil:
		code = kerr.GroupIDNotFound.Code
	}
	if code != 0 {
		out.ErrorCode, out.ErrorMessage = code, message(code)
		return out
	}
	topics := rg.Topics
	if topics == nil {
		topics = p.topicsOfGroup(rg.GroupID)
	}
	for _, rt := range topics {
		allowed := p.k.authorized(c, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeTopic, rt.Topic)
		if !allowed && rg.Topics == nil {
			continue
		}
		t := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopic()
		t.Topic = rt.Topic
		topic, known := p.k.topicByName(rt.Topic)
		if allowed && known {
			t.TopicID = topic.id
		}
		for _, n := range rt.Partitions {
			part := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopicPartition()
			part.Partition, part.StartOffset, part.Lag = n, -1, -1
			switch {
			case !allowed:
				part.ErrorCode = kerr.TopicAuthorizationFailed.Code
			case known:
				p.describeOffset(ctx, rg.GroupID, topic, &part)
			}
			part.ErrorMessage = message(part.ErrorCode)
			t.Partitions = append(t.Partitions, part)
		}
		out.Topics = append(out.Topics, t)
	}
	return out
}

func (p *plane) describeOffset(ctx context.Context, group string, topic topicInfo, part *kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition) {
	info, ok := p.k.partition(topic.name, part.Partition)
	if !ok {
		return
	}
	part.LeaderEpoch = info.leaderEpoch
	st, code := p.co.read(ctx, shareStateKey{group, topic.id, part.Partition}, -1)
	switch {
	case code == kerr.UnknownTopicOrPartition.Code || code == kerr.InvalidRequest.Code:
		return // the group has no state there
	case code != 0:
		part.ErrorCode = leaderCode(code)
		return
	}
	part.StartOffset = st.startOffset
	if st.startOffset >= 0 && st.deliveryCompleteCount >= 0 {
		part.Lag = max(0, info.highWatermark-st.startOffset-int64(st.deliveryCompleteCount))
	}
}

// topicsOfGroup lists the topics that a group has state for, by name.
func (p *plane) topicsOfGroup(group string) []kmsg.DescribeShareGroupOffsetsRequestGroupTopic {
	index := make(map[[16]byte]int)
	topics := []kmsg.DescribeShareGroupOffsetsRequestGroupTopic{}
	for _, k := range p.groupKeys(group) {
		i, ok := index[k.topicID]
		if !ok {
			topic, known := p.k.topicByID(k.topicID)
			if !known {
				continue // deleted
			}
			i = len(topics)
			index[k.topicID] = i
			t := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
			t.Topic = topic.name
			topics = append(topics, t)
		}
		topics[i].Partitions = append(topics[i].Partitions, k.partition)
	}
	slices.SortFunc(topics, func(a, b kmsg.DescribeShareGroupOffsetsRequestGroupTopic) int { return cmp.Compare(a.Topic, b.Topic) })
	return topics
}

func (p *plane) handleAlterOffsets(ctx context.Context, c caller, req *kmsg.AlterShareGroupOffsetsRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.AlterShareGroupOffsetsResponse)
	refuse := func(code int16) (kmsg.Response, error) {
		resp.ErrorCode, resp.ErrorMessage = code, message(code)
		return resp, nil
	}
	switch {
	case req.GroupID == "":
		return refuse(kerr.InvalidGroupID.Code)
	case !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeGroup, req.GroupID):
		return refuse(kerr.GroupAuthorizationFailed.Code)
	case p.k.coordinator(req.GroupID) != c.broker:
		return refuse(kerr.NotCoordinator.Code)
	}
	g, err := p.lockGroup(ctx, req.GroupID, true)
	if err != nil {
		return nil, err
	}
	defer g.unlock()
	g.mu.Lock()
	empty := len(g.members) == 0
	if empty {
		g.epoch++ // which is the state epoch of what follows
	}
	epoch := g.epoch
	g.mu.Unlock()
	if !empty {
		return refuse(kerr.NonEmptyGroup.Code)
	}
	for _, rt := range req.Topics {
		t := kmsg.NewAlterShareGroupOffsetsResponseTopic()
		t.Topic = rt.Topic
		topic, known := p.k.topicByName(rt.Topic)
		allowed := p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeTopic, rt.Topic)
		if known && allowed {
			t.TopicID = topic.id
		}
		for _, rp := range rt.Partitions {
			part := kmsg.NewAlterShareGroupOffsetsResponseTopicPartition()
			part.Partition = rp.Partition
			switch {
			case !allowed:
				part.ErrorCode = kerr.TopicAuthorizationFailed.Code
			case !known || rp.Partition < 0 || rp.Partition >= topic.partitions:
				part.ErrorCode = kerr.UnknownTopicOrPartition.Code
			default:
				part.ErrorCode = p.alterOffset(ctx, g, shareStateKey{g.id, topic.id, rp.Partition}, epoch, rp.StartOffset)
			}
			part.ErrorMessage = message(part.ErrorCode)
			t.Partitions = append(t.Partitions, part)
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp, nil
}

func (p *plane) alterOffset(ctx context.Context, g *shareGroup, k shareStateKey, epoch int32, startOffset int64) int16 {
	if code := p.co.initialize(ctx, k, epoch, startOffset); code != 0 {
		return leaderCode(code)
	}
	g.setReady(k.topicID, k.partition, true)
	p.drop(k)
	return 0
}

func (p *plane) handleDeleteOffsets(ctx context.Context, c caller, req *kmsg.DeleteShareGroupOffsetsRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.DeleteShareGroupOffsetsResponse)
	refuse := func(code int16) (kmsg.Response, error) {
		resp.ErrorCode, resp.ErrorMessage = code, message(code)
		return resp, nil
	}
	switch {
	case req.GroupID == "":
		return refuse(kerr.InvalidGroupID.Code)
	case !p.k.authorized(c, kmsg.ACLOperationDelete, kmsg.ACLResourceTypeGroup, req.GroupID):
		return refuse(kerr.GroupAuthorizationFailed.Code)
	case p.k.coordinator(req.GroupID) != c.broker:
		return refuse(kerr.NotCoordinator.Code)
	}
	g, err := p.lockGroup(ctx, req.GroupID, false)
	switch {
	case err != nil:
		return nil, err
	case g == nil:
		return refuse(kerr.GroupIDNotFound.Code)
	}
	defer g.unlock()
	if g.size() > 0 {
		return refuse(kerr.NonEmptyGroup.Code)
	}
	for _, rt := range req.Topics {
		t := kmsg.NewDeleteShareGroupOffsetsResponseTopic()
		t.Topic = rt.Topic
		topic, known := p.k.topicByName(rt.Topic)
		switch {
		case !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeTopic, rt.Topic):
			t.ErrorCode = kerr.TopicAuthorizationFailed.Code
		case !known:
			t.ErrorCode = kerr.UnknownTopicOrPartition.Code
		default:
			t.TopicID = topic.id
			t.ErrorCode = p.removeState(ctx, g, func(k shareStateKey) bool { return k.topicID == topic.id })
		}
		t.ErrorMessage = message(t.ErrorCode)
		resp.Topics = append(resp.Topics, t)
	}
	return resp, nil
}

// removeState removes the state of those share-partitions of a group, and what
// leaders hold of it. The caller holds g.op.
func (p *plane) removeState(ctx context.Context, g *shareGroup, of func(shareStateKey) bool) int16 {
	for _, k := range p.groupKeys(g.id) {
		if !of(k) {
			continue
		}
		if code := p.co.remove(ctx, k); code != 0 {
			return leaderCode(code)
		}
		g.setReady(k.topicID, k.partition, false)
		p.drop(k)
	}
	return 0
}
