package sandbox

import (
	"context"
	"fmt"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// InitializeShareGroupState     83 v0
// ReadShareGroupState           84 v0
// WriteShareGroupState          85 v0-1
// DeleteShareGroupState         86 v0
// ReadShareGroupStateSummary    87 v0-1
//
// Behaviour:
//   - CLUSTER_ACTION on the cluster, else CLUSTER_AUTHORIZATION_FAILED for each
//     partition.
//   - NOT_COORDINATOR for a partition whose state another broker leads.
//   - An empty group ID is answered without results.
//   - 84 and 85 carry the staged owner of TX_PENDING records (KIP-1289, draft)
//     as tags of the state batches; see wire.StagedOwnerTags.
//   - 84 with a leader epoch above the known one fences the leader in office;
//     with -1 it reads only.
//   - 87 answers for a share-partition without state as Kafka does: start
//     offset -1, epochs 0, no error.
//
// Version notes:
//   - 85 v1 and 87 v1 add DeliveryCompleteCount (KIP-1226); it stays as it is
//     when 85 v0 writes.

// shareStateAPI serves the requests to the share coordinator, which in Kafka
// brokers alone send and which tools may use to look at state. It is safe for
// concurrent use.
type shareStateAPI struct {
	kafka       kafka
	coordinator coordinator
}

// handle answers one of the five requests.
func (a shareStateAPI) handle(ctx context.Context, c caller, req kmsg.Request) (kmsg.Response, error) {
	allowed := a.kafka.authorized(c, kmsg.ACLOperationClusterAction, kmsg.ACLResourceTypeCluster, "kafka-cluster")
	switch req := req.(type) {
	case *kmsg.InitializeShareGroupStateRequest:
		return a.initialize(ctx, stateCaller{c, allowed, req.GroupID}, req), nil
	case *kmsg.ReadShareGroupStateRequest:
		return a.read(ctx, stateCaller{c, allowed, req.GroupID}, req), nil
	case *kmsg.WriteShareGroupStateRequest:
		return a.write(ctx, stateCaller{c, allowed, req.GroupID}, req), nil
	case *kmsg.DeleteShareGroupStateRequest:
		return a.remove(ctx, stateCaller{c, allowed, req.GroupID}, req), nil
	case *kmsg.ReadShareGroupStateSummaryRequest:
		return a.summary(ctx, stateCaller{c, allowed, req.GroupID}, req), nil
	}
	return nil, fmt.Errorf("share state: api key %d is not served", req.Key())
}

// stateCaller is who asks for the state of a group's share-partitions.
type stateCaller struct {
	caller
	allowed bool // CLUSTER_ACTION
	group   string
}

// admit returns the key of a share-partition, or why the caller cannot ask for
// it here.
func (a shareStateAPI) admit(c stateCaller, topicID [16]byte, partition int32) (shareStateKey, int16) {
	k := shareStateKey{group: c.group, topicID: topicID, partition: partition}
	if !c.allowed {
		return k, kerr.ClusterAuthorizationFailed.Code
	}
	n := wire.ShareStatePartition(k.group, k.topicID, k.partition, a.coordinator.partitions())
	info, ok := a.kafka.partition(stateTopic, n)
	switch {
	case !ok:
		return k, kerr.CoordinatorNotAvailable.Code
	case info.leader != c.broker:
		return k, kerr.NotCoordinator.Code
	case partition < 0:
		return k, kerr.InvalidRequest.Code
	}
	return k, 0
}

func (a shareStateAPI) initialize(ctx context.Context, c stateCaller, req *kmsg.InitializeShareGroupStateRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.InitializeShareGroupStateResponse)
	if c.group == "" {
		return resp
	}
	for _, t := range req.Topics {
		rt := kmsg.NewInitializeShareGroupStateResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			k, code := a.admit(c, t.TopicID, p.Partition)
			if code == 0 {
				code = a.coordinator.initialize(ctx, k, p.StateEpoch, p.StartOffset)
			}
			rp := kmsg.NewInitializeShareGroupStateResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.ErrorMessage = p.Partition, code, message(code)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (a shareStateAPI) read(ctx context.Context, c stateCaller, req *kmsg.ReadShareGroupStateRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ReadShareGroupStateResponse)
	if c.group == "" {
		return resp
	}
	for _, t := range req.Topics {
		rt := kmsg.NewReadShareGroupStateResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewReadShareGroupStateResponseTopicPartition()
			k, code := a.admit(c, t.TopicID, p.Partition)
			var st shareState
			if code == 0 {
				st, code = a.coordinator.read(ctx, k, p.LeaderEpoch)
			}
			rp.Partition, rp.ErrorCode, rp.ErrorMessage = p.Partition, code, message(code)
			if code == 0 {
				rp.StateEpoch, rp.StartOffset = st.stateEpoch, st.startOffset
				rp.StateBatches = readStateBatches(st.batches)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func readStateBatches(batches []wire.StateBatch) []kmsg.ReadShareGroupStateResponseTopicPartitionStateBatch {
	out := make([]kmsg.ReadShareGroupStateResponseTopicPartitionStateBatch, len(batches))
	for i, b := range batches {
		rb := kmsg.NewReadShareGroupStateResponseTopicPartitionStateBatch()
		rb.FirstOffset, rb.LastOffset = b.FirstOffset, b.LastOffset
		rb.DeliveryState, rb.DeliveryCount = int8(b.DeliveryState), b.DeliveryCount
		rb.UnknownTags = wire.StagedOwnerTags(b.Staged)
		out[i] = rb
	}
	return out
}

func (a shareStateAPI) write(ctx context.Context, c stateCaller, req *kmsg.WriteShareGroupStateRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.WriteShareGroupStateResponse)
	if c.group == "" {
		return resp
	}
	type place struct{ topic, partition int } // of a write in the response
	var (
		writes []shareStateWrite
		places []place
	)
	for i, t := range req.Topics {
		rt := kmsg.NewWriteShareGroupStateResponseTopic()
		rt.TopicID = t.TopicID
		for j, p := range t.Partitions {
			k, code := a.admit(c, t.TopicID, p.Partition)
			if code == 0 {
				writes = append(writes, shareStateWrite{
					shareStateKey: k, stateEpoch: p.StateEpoch, leaderEpoch: p.LeaderEpoch, startOffset: p.StartOffset,
					deliveryCompleteCount: p.DeliveryCompleteCount, batches: writtenStateBatches(p.StateBatches),
				})
				places = append(places, place{i, j})
			}
			rp := kmsg.NewWriteShareGroupStateResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.ErrorMessage = p.Partition, code, message(code)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(writes) == 0 {
		return resp
	}
	for i, code := range a.coordinator.write(ctx, writes) {
		rp := &resp.Topics[places[i].topic].Partitions[places[i].partition]
		rp.ErrorCode, rp.ErrorMessage = code, message(code)
	}
	return resp
}

func writtenStateBatches(batches []kmsg.WriteShareGroupStateRequestTopicPartitionStateBatch) []wire.StateBatch {
	out := make([]wire.StateBatch, len(batches))
	for i, b := range batches {
		out[i] = wire.StateBatch{
			FirstOffset: b.FirstOffset, LastOffset: b.LastOffset,
			DeliveryState: wire.RecordState(b.DeliveryState), DeliveryCount: b.DeliveryCount,
			Staged: wire.StagedOwnerFromTags(b.UnknownTags),
		}
	}
	return out
}

func (a shareStateAPI) remove(ctx context.Context, c stateCaller, req *kmsg.DeleteShareGroupStateRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteShareGroupStateResponse)
	if c.group == "" {
		return resp
	}
	for _, t := range req.Topics {
		rt := kmsg.NewDeleteShareGroupStateResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			k, code := a.admit(c, t.TopicID, p.Partition)
			if code == 0 {
				code = stateTopicCode(a.kafka, k)
			}
			if code == 0 {
				code = a.coordinator.remove(ctx, k)
			}
			rp := kmsg.NewDeleteShareGroupStateResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.ErrorMessage = p.Partition, code, message(code)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (a shareStateAPI) summary(ctx context.Context, c stateCaller, req *kmsg.ReadShareGroupStateSummaryRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ReadShareGroupStateSummaryResponse)
	if c.group == "" {
		return resp
	}
	for _, t := range req.Topics {
		rt := kmsg.NewReadShareGroupStateSummaryResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			rt.Partitions = append(rt.Partitions, a.summarize(ctx, c, t.TopicID, p.Partition))
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (a shareStateAPI) summarize(ctx context.Context, c stateCaller, topicID [16]byte, partition int32) kmsg.ReadShareGroupStateSummaryResponseTopicPartition {
	rp := kmsg.NewReadShareGroupStateSummaryResponseTopicPartition()
	rp.Partition = partition
	k, code := a.admit(c, topicID, partition)
	if code == 0 {
		code = stateTopicCode(a.kafka, k)
	}
	if code != 0 {
		rp.ErrorCode, rp.ErrorMessage = code, message(code)
		return rp
	}
	st, code := a.coordinator.read(ctx, k, -1)
	switch code {
	case 0:
		rp.StateEpoch, rp.LeaderEpoch, rp.StartOffset = st.stateEpoch, st.leaderEpoch, st.startOffset
		rp.DeliveryCompleteCount = st.deliveryCompleteCount
	case kerr.InvalidRequest.Code: // all that is left to be wrong: it has no state
		rp.StartOffset, rp.DeliveryCompleteCount = -1, -1
	default:
		rp.ErrorCode, rp.ErrorMessage = code, message(code)
	}
	return rp
}
