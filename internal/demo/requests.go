package demo

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The upgrade types of UpdateFeatures.
const (
	upgradeOnly   = 1
	safeDowngrade = 2
)

// setShareVersion finalizes a level of share.version.
func (t *tour) setShareVersion(ctx context.Context, level int16) error {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.Feature, u.MaxVersionLevel, u.UpgradeType = wire.FeatureShareVersion, level, upgradeOnly
	if level < t.Dialect.ShareVersion {
		u.UpgradeType, u.AllowDowngrade = safeDowngrade, true
	}
	req.FeatureUpdates = append(req.FeatureUpdates, u)
	op := fmt.Sprintf("set %s to %d", wire.FeatureShareVersion, level)
	resp, err := req.RequestWith(ctx, t.cl.Requestor())
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return &cluster.Error{Op: op, Broker: -1, Err: err, Detail: deref(resp.ErrorMessage)}
	}
	for _, r := range resp.Results {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return &cluster.Error{Op: op, Broker: -1, Err: err, Detail: deref(r.ErrorMessage)}
		}
	}
	return nil
}

// describe returns the transaction of the tour as its coordinator sees it.
func (t *tour) describe(ctx context.Context) (kmsg.DescribeTransactionsResponseTransactionState, error) {
	var none kmsg.DescribeTransactionsResponseTransactionState
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{pendingTxn}
	op := fmt.Sprintf("describe transaction %q", pendingTxn)
	resp, err := req.RequestWith(ctx, t.cl.Requestor())
	if err != nil {
		return none, fmt.Errorf("%s: %w", op, err)
	}
	if len(resp.TransactionStates) != 1 {
		return none, fmt.Errorf("%s: %d answers", op, len(resp.TransactionStates))
	}
	tx := resp.TransactionStates[0]
	if err := kerr.ErrorForCode(tx.ErrorCode); err != nil {
		return none, &cluster.Error{Op: op, Broker: -1, Err: err}
	}
	return tx, nil
}

// topicsOf names the partitions of a transaction, sorted by topic.
func topicsOf(tx kmsg.DescribeTransactionsResponseTransactionState) string {
	var names []string
	for _, topic := range tx.Topics {
		for _, p := range topic.Partitions {
			names = append(names, fmt.Sprintf("%s-%d", topic.Topic, p))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// pending counts the records of the tour's group in TX_PENDING, by reading the
// state of each share-partition from its share coordinator (KIP-932,
// ReadShareGroupState).
func (t *tour) pending(ctx context.Context) (int64, error) {
	topics, err := t.cl.Topics(ctx, SourceTopic)
	if err != nil {
		return 0, err
	}
	topic := topics[SourceTopic]
	var n int64
	for _, p := range topic.Partitions {
		batches, err := t.readState(ctx, topic.ID, p.Partition)
		if err != nil {
			return 0, err
		}
		for _, b := range batches {
			if wire.RecordState(b.DeliveryState) == wire.TxPending {
				n += b.LastOffset - b.FirstOffset + 1
			}
		}
	}
	return n, nil
}

func (t *tour) readState(ctx context.Context, topicID [16]byte, partition int32) ([]kmsg.ReadShareGroupStateResponseTopicPartitionStateBatch, error) {
	op := fmt.Sprintf("read state of share-partition %s/%s-%d", pendingGroup, SourceTopic, partition)
	node, err := t.shareCoordinator(ctx, topicID, partition)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	req := kmsg.NewPtrReadShareGroupStateRequest()
	req.GroupID = pendingGroup
	rp := kmsg.NewReadShareGroupStateRequestTopicPartition()
	rp.Partition, rp.LeaderEpoch = partition, -1 // -1 only reads; any other fences the leader
	rt := kmsg.NewReadShareGroupStateRequestTopic()
	rt.TopicID, rt.Partitions = topicID, append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := t.cl.RequestBroker(ctx, node, req)
	if err != nil {
		return nil, fmt.Errorf("%s: broker %d: %w", op, node, err)
	}
	state := resp.(*kmsg.ReadShareGroupStateResponse)
	if len(state.Topics) != 1 || len(state.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("%s: broker %d answers for other partitions", op, node)
	}
	answer := state.Topics[0].Partitions[0]
	if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
		return nil, &cluster.Error{Op: op, Broker: node, Err: err, Detail: deref(answer.ErrorMessage)}
	}
	return answer.StateBatches, nil
}

// coordinatorTypeShare is the key type of FindCoordinator v6 for share-partitions.
const coordinatorTypeShare = 2

func (t *tour) shareCoordinator(ctx context.Context, topicID [16]byte, partition int32) (int32, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType = coordinatorTypeShare
	req.CoordinatorKeys = []string{fmt.Sprintf("%s:%s:%d", pendingGroup, base64.RawURLEncoding.EncodeToString(topicID[:]), partition)}
	resp, err := req.RequestWith(ctx, t.cl.Requestor())
	if err != nil {
		return 0, fmt.Errorf("find share coordinator: %w", err)
	}
	if len(resp.Coordinators) != 1 {
		return 0, fmt.Errorf("find share coordinator: %d answers", len(resp.Coordinators))
	}
	c := resp.Coordinators[0]
	if err := kerr.ErrorForCode(c.ErrorCode); err != nil {
		return 0, &cluster.Error{Op: "find share coordinator", Broker: -1, Err: err, Detail: deref(c.ErrorMessage)}
	}
	return c.NodeID, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
