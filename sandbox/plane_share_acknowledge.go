package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ShareAcknowledge: v1-2 (KIP-932, KIP-1222)
//
// Behavior:
//   - Acknowledges records that the member acquired, within its share session
//   - A partition's batches are done all or not at all
//   - Epoch -1 closes the session after that, 0 is refused
//   - Records in TX_PENDING are not acquired any more: INVALID_RECORD_STATE
//
// Version notes:
//   - v2: IsRenewAck, acknowledge type 4, AcquisitionLockTimeoutMillis (KIP-1222)

func (p *plane) handleShareAcknowledge(ctx context.Context, c caller, req *kmsg.ShareAcknowledgeRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.ShareAcknowledgeResponse)
	refuse := func(code int16) (kmsg.Response, error) {
		resp.ErrorCode, resp.ErrorMessage = code, message(code)
		return resp, nil
	}
	group, member := stringOf(req.GroupID), stringOf(req.MemberID)
	if group == "" {
		return refuse(kerr.InvalidRequest.Code)
	}
	if !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeGroup, group) {
		return refuse(kerr.GroupAuthorizationFailed.Code)
	}
	if !validMemberID(member) {
		return refuse(kerr.InvalidRequest.Code)
	}

	key := sessionKey{group, member, c.broker}
	var (
		session *shareSession
		code    int16
	)
	switch req.ShareSessionEpoch {
	case 0:
		code = kerr.InvalidShareSessionEpoch.Code
	case -1:
		if session = p.sessions.find(key); session == nil {
			code = kerr.ShareSessionNotFound.Code
		}
	default:
		session, code = p.sessions.advance(key, req.ShareSessionEpoch)
	}
	if code != 0 {
		return refuse(code)
	}

	resp.AcquisitionLockTimeoutMillis = int32(p.lockDuration(group) / time.Millisecond)
	acked := p.acknowledge(ctx, c, group, member, acksOfAcknowledge(req.Topics), req.IsRenewAck)
	if req.ShareSessionEpoch == -1 {
		p.closeSession(session)
	}
	fillAcknowledgeResponse(resp, acked, p.k.nodes())
	return resp, nil
}

func acksOfAcknowledge(topics []kmsg.ShareAcknowledgeRequestTopic) []partitionAcks {
	var out []partitionAcks
	for _, t := range topics {
		for _, rp := range t.Partitions {
			a := partitionAcks{sessionPartition: sessionPartition{t.TopicID, rp.Partition}}
			a.batches = slices.Grow(a.batches, len(rp.AcknowledgementBatches))
			for _, b := range rp.AcknowledgementBatches {
				a.batches = append(a.batches, ackBatch{span{b.FirstOffset, b.LastOffset}, b.AcknowledgeTypes})
			}
			out = append(out, a)
		}
	}
	return out
}

func fillAcknowledgeResponse(resp *kmsg.ShareAcknowledgeResponse, acked []*partitionAcks, nodes []node) {
	index := make(map[[16]byte]int)
	leaders := make(map[int32]bool)
	for _, a := range acked {
		i, ok := index[a.topicID]
		if !ok {
			i = len(resp.Topics)
			index[a.topicID] = i
			t := kmsg.NewShareAcknowledgeResponseTopic()
			t.TopicID = a.topicID
			resp.Topics = append(resp.Topics, t)
		}
		part := kmsg.NewShareAcknowledgeResponseTopicPartition()
		part.Partition, part.ErrorCode, part.ErrorMessage = a.partition, a.code, message(a.code)
		part.CurrentLeader.LeaderID, part.CurrentLeader.LeaderEpoch = -1, -1 // 0 is a broker
		if a.code == kerr.NotLeaderForPartition.Code {
			part.CurrentLeader.LeaderID, part.CurrentLeader.LeaderEpoch = a.leader, a.leaderEpoch
			leaders[a.leader] = true
		}
		resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, part)
	}
	for _, n := range nodes {
		if leaders[n.id] {
			e := kmsg.NewShareAcknowledgeResponseNodeEndpoint()
			e.NodeID, e.Host, e.Port = n.id, n.host, n.port
			resp.NodeEndpoints = append(resp.NodeEndpoints, e)
		}
	}
}

// partitionAcks is the acknowledgements of one partition in a request, and what
// became of them.
type partitionAcks struct {
	sessionPartition
	batches []ackBatch

	topic       string
	code        int16
	leader      int32 // where code is NOT_LEADER_OR_FOLLOWER
	leaderEpoch int32
	op          *operation
}

func (a *partitionAcks) key(group string) shareStateKey {
	return shareStateKey{group, a.topicID, a.partition}
}

// refuse notes why the acknowledgements were not done.
func (a *partitionAcks) refuse(k kafka, code int16) {
	a.code = code
	if code != kerr.NotLeaderForPartition.Code {
		return
	}
	a.leader, a.leaderEpoch = -1, -1
	if info, ok := k.partition(a.topic, a.partition); ok {
		a.leader, a.leaderEpoch = info.leader, info.leaderEpoch
	}
}

// acknowledge does plain acknowledgements; the result has an entry for each of
// acks, in order.
func (p *plane) acknowledge(ctx context.Context, c caller, group, member string, acks []partitionAcks, renew bool) []*partitionAcks {
	all := make([]*partitionAcks, len(acks))
	for i := range acks {
		a := &acks[i]
		all[i] = a
		topic, ok := p.k.topicByID(a.topicID)
		if !ok {
			a.refuse(p.k, kerr.UnknownTopicID.Code)
			continue
		}
		a.topic = topic.name
		if code := checkAckBatches(a.batches, renew); code != 0 {
			a.refuse(p.k, code)
			continue
		}
		if !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeTopic, topic.name) {
			a.refuse(p.k, kerr.TopicAuthorizationFailed.Code)
			continue
		}
		if len(a.batches) == 0 {
			continue
		}
		// Who never fetched here has nothing to acknowledge here.
		lp, code := p.loaded(a.key(group), topic.name, c.broker)
		if code != 0 {
			a.refuse(p.k, code)
			continue
		}
		a.op = &operation{lp: lp}
	}
	p.changeAll(ctx, all, true, func(a *partitionAcks, lim partitionLimits) (change, int16) {
		return a.op.lp.sp.acknowledge(p.cfg.now(), member, a.batches, renew, lim)
	})
	p.countAcks(c.broker, all)
	return all
}

// checkAckBatches is the check of a plain request before any state is looked at.
func checkAckBatches(batches []ackBatch, renew bool) int16 {
	highest := int8(wire.Reject)
	if renew {
		highest = int8(wire.Renew)
	}
	end := int64(-1)
	for _, b := range batches {
		if b.first > b.last || b.first <= end || !typesFit(b) {
			return kerr.InvalidRequest.Code
		}
		for _, t := range b.types {
			if t < int8(wire.Gap) || t > highest {
				return kerr.InvalidRequest.Code
			}
		}
		end = b.last
	}
	return 0
}

// typesFit reports whether a batch has one type, or one for each offset.
func typesFit(b ackBatch) bool {
	return len(b.types) == 1 || len(b.types) > 0 && int64(len(b.types)) == b.last-b.first+1
}

// changeAll runs do on the share-partitions of acks that have an operation, all
// under their op locks, and persists what it changed with one append. The codes
// of acks say how each went.
func (p *plane) changeAll(ctx context.Context, acks []*partitionAcks, wake bool, do func(*partitionAcks, partitionLimits) (change, int16)) {
	var todo []*partitionAcks
	for _, a := range acks {
		if a.op != nil {
			todo = append(todo, a)
		}
	}
	if len(todo) == 0 {
		return
	}
	slices.SortStableFunc(todo, func(a, b *partitionAcks) int { return compareStateKeys(a.op.lp.key, b.op.lp.key) })
	lim := p.limits(todo[0].op.lp.key.group)
	var (
		ops  []*operation
		prev *leaderPartition
	)
	for _, a := range todo {
		lp := a.op.lp
		code := kerr.InvalidRequest.Code // named twice
		if lp != prev {
			code = p.begin(ctx, lp)
		}
		prev = lp
		if code != 0 {
			a.op = nil
			a.refuse(p.k, code)
			continue
		}
		ops = append(ops, a.op)
		lp.mu.Lock()
		a.op.ch, a.op.code = do(a, lim)
		lp.mu.Unlock()
	}
	p.persist(ops, false)
	for _, a := range todo {
		if a.op == nil {
			continue
		}
		if a.op.code != 0 {
			a.refuse(p.k, a.op.code)
		}
		p.end(a.op.lp, wake)
	}
}
