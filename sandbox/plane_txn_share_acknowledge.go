package sandbox

import (
	"context"
	"slices"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TxnShareAcknowledge: v0 (KIP-1289, a draft; read on 2026-11-29)
//
// Behavior:
//   - Puts acknowledgements of acquired records into a transaction: the records
//     are TX_PENDING until its end marker
//   - What concerns the whole request is checked first, from the feature to the
//     member's epoch; then the partitions of __share_group_state that hold the
//     share-partitions' state are registered in the transaction; only then is
//     anything staged
//   - A partition's batches are staged all or not at all; partitions do not
//     depend on each other, so a client must abort when any of them failed
//   - The same staged again by the same member is a success that changes nothing
//   - Neither looks at nor changes the share session
//
// The order of the checks is that of the newest draft. Dialects differ in:
//   - a type that may not be staged: 121 in kip, 42 in the drafts
//   - a topic that is not allowed: the whole request in kip, its partitions in
//     the drafts
//   - CurrentLeader and NodeEndpoints: in kip only
//
// The state is persisted unless the sandbox is told to keep it in memory, as
// the text put to the vote does.

func (p *plane) handleTxnShareAcknowledge(ctx context.Context, c caller, req *wire.TxnShareAcknowledgeRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*wire.TxnShareAcknowledgeResponse)
	acks := acksOfTxn(req.Topics)
	if code := p.checkTxnRequest(c, req, acks); code != 0 {
		resp.ErrorCode = code
		return resp, nil
	}
	if !slices.ContainsFunc(acks, func(a *partitionAcks) bool { return a.code == 0 }) {
		p.fillTxnResponse(resp, acks)
		return resp, nil
	}
	if code := p.group(req.GroupID).checkMember(req.MemberID, req.MemberEpoch); code != 0 {
		resp.ErrorCode = code
		return resp, nil
	}
	// The transaction must not end between registering and staging: its
	// marker would have come and gone before there is anything to resolve.
	unlock := p.transactionGuard(*req.TransactionalID)
	defer unlock()
	if code := p.register(ctx, req, acks); code != 0 {
		resp.ErrorCode = code
		return resp, nil
	}
	p.stage(ctx, c, req, acks)
	p.fillTxnResponse(resp, acks)
	return resp, nil
}

func acksOfTxn(topics []wire.TxnShareAcknowledgeRequestTopic) []*partitionAcks {
	var out []*partitionAcks
	for _, t := range topics {
		for _, rp := range t.Partitions {
			a := &partitionAcks{sessionPartition: sessionPartition{t.TopicID, rp.Partition}}
			a.batches = slices.Grow(a.batches, len(rp.AcknowledgementBatches))
			for _, b := range rp.AcknowledgementBatches {
				a.batches = append(a.batches, ackBatch{span{b.FirstOffset, b.LastOffset}, b.AcknowledgeTypes})
			}
			out = append(out, a)
		}
	}
	return out
}

// checkTxnRequest does the checks that need neither the coordinators nor the
// state. It returns the top-level code; partitions that cannot be staged get
// theirs.
func (p *plane) checkTxnRequest(c caller, req *wire.TxnShareAcknowledgeRequest, acks []*partitionAcks) int16 {
	switch {
	case !p.cfg.enabled():
		return kerr.UnsupportedVersion.Code
	case req.TransactionalID == nil || !validMemberID(req.MemberID):
		return kerr.InvalidRequest.Code
	case !p.k.authorized(c, kmsg.ACLOperationWrite, kmsg.ACLResourceTypeTransactionalId, *req.TransactionalID):
		return kerr.TransactionalIDAuthorizationFailed.Code
	case !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeGroup, req.GroupID):
		return kerr.GroupAuthorizationFailed.Code
	}
	for _, a := range acks {
		topic, ok := p.k.topicByID(a.topicID)
		if !ok {
			a.refuse(p.k, kerr.UnknownTopicID.Code)
			continue
		}
		a.topic = topic.name
		switch {
		case !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeTopic, topic.name):
			if p.deniesWhole() {
				return kerr.TopicAuthorizationFailed.Code
			}
			a.refuse(p.k, kerr.TopicAuthorizationFailed.Code)
		case a.partition < 0 || a.partition >= topic.partitions:
			a.refuse(p.k, kerr.UnknownTopicOrPartition.Code)
		}
	}
	return 0
}

// deniesWhole reports whether a topic that is not allowed fails the whole
// request: the text that has CurrentLeader in the response also lists
// TOPIC_AUTHORIZATION_FAILED among the top-level errors alone.
func (p *plane) deniesWhole() bool { return p.cfg.dialect.Layout == wire.ResponseWithLeader }

// register adds the partitions of __share_group_state that hold the state of
// the share-partitions to the transaction.
func (p *plane) register(ctx context.Context, req *wire.TxnShareAcknowledgeRequest, acks []*partitionAcks) int16 {
	var partitions []int32
	for _, a := range acks {
		if a.code == 0 {
			partitions = append(partitions, wire.ShareStatePartition(req.GroupID, a.topicID, a.partition, p.co.partitions()))
		}
	}
	slices.Sort(partitions)
	return p.k.addPartitionsToTxn(ctx, *req.TransactionalID, req.ProducerID, req.ProducerEpoch, slices.Compact(partitions))
}

// stage stages the acknowledgements that nothing spoke against yet. The caller
// holds the guard of the transaction.
func (p *plane) stage(ctx context.Context, c caller, req *wire.TxnShareAcknowledgeRequest, acks []*partitionAcks) {
	for _, a := range acks {
		if a.code != 0 {
			continue
		}
		lp, code := p.lead(ctx, a.key(req.GroupID), a.topic, c.broker)
		if code != 0 {
			a.refuse(p.k, code)
			continue
		}
		a.op = &operation{lp: lp, pending: true}
	}
	o := owner{req.ProducerID, req.ProducerEpoch}
	p.txns.name(o.producerID, *req.TransactionalID)
	defer p.txns.forgetName(o.producerID)
	p.changeAll(ctx, acks, false, func(a *partitionAcks, lim partitionLimits) (change, int16) {
		return a.op.lp.stage(p.cfg.now(), req.MemberID, o, a.batches, lim)
	})
}

func (p *plane) fillTxnResponse(resp *wire.TxnShareAcknowledgeResponse, acks []*partitionAcks) {
	index := make(map[[16]byte]int)
	leaders := make(map[int32]bool)
	for _, a := range acks {
		i, ok := index[a.topicID]
		if !ok {
			i = len(resp.Topics)
			index[a.topicID] = i
			resp.Topics = append(resp.Topics, wire.TxnShareAcknowledgeResponseTopic{TopicID: a.topicID})
		}
		part := wire.TxnShareAcknowledgeResponseTopicPartition{
			Partition: a.partition, ErrorCode: a.code, ErrorMessage: message(a.code),
		}
		if a.code == kerr.NotLeaderForPartition.Code {
			part.CurrentLeader = &wire.TxnShareAcknowledgeResponseCurrentLeader{LeaderID: a.leader, LeaderEpoch: a.leaderEpoch}
			leaders[a.leader] = true
		}
		resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, part)
	}
	if p.cfg.dialect.Layout != wire.ResponseWithLeader {
		return
	}
	for _, n := range p.k.nodes() {
		if leaders[n.id] {
			resp.NodeEndpoints = append(resp.NodeEndpoints, wire.TxnShareAcknowledgeResponseNodeEndpoint{NodeID: n.id, Host: n.host, Port: n.port})
		}
	}
}
