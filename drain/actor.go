package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ClusterActor is the [Actor] of a cluster.
type ClusterActor struct {
	Cluster inspect.Cluster
	Clock   Clock
}

// Fence fences the producer of a step; see [Fence].
func (a *ClusterActor) Fence(ctx context.Context, s Step) error {
	want := inspect.Transaction{
		TransactionalID: *s.TransactionalID, State: *s.TransactionState,
		ProducerID: *s.ProducerID, ProducerEpoch: *s.ProducerEpoch, TimeoutMS: -1,
	}
	if s.TimeoutMS != nil {
		want.TimeoutMS = *s.TimeoutMS
	}
	_, err := Fence(ctx, a.Cluster, a.Clock, want)
	return err
}

// WriteMarkers writes the end markers of a step; see [WriteMarkers]. It looks once
// more for a transaction that will do it, and then returns [ErrOpen]: since the
// look a coordinator may have come back that had lost it.
func (a *ClusterActor) WriteMarkers(ctx context.Context, s Step) error {
	if err := a.stillLeft(ctx, s); err != nil {
		return err
	}
	markers := make([]Marker, 0, len(s.StatePartitions))
	for _, p := range s.StatePartitions {
		markers = append(markers, Marker{
			Topic: stateTopic, Partition: p, ProducerID: *s.ProducerID, ProducerEpoch: *s.ProducerEpoch,
			CoordinatorEpoch: -1, Commit: s.Action == ActionCommit,
		})
	}
	return WriteMarkers(ctx, a.Cluster, a.Clock, markers)
}

// stillLeft returns nil while no transaction will end the records of a step, and
// ErrOpen where one will, or may.
func (a *ClusterActor) stillLeft(ctx context.Context, s Step) error {
	txns, err := a.ownersOf(ctx, s)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrOpen, err)
	}
	for _, t := range txns {
		parts, described := t.StatePartitions()
		lists := !described || slices.ContainsFunc(s.StatePartitions, func(p int32) bool { return slices.Contains(parts, p) })
		switch {
		case !t.Open() || t.ProducerID != *s.ProducerID:
		case t.Preparing() && t.ProducerEpoch >= *s.ProducerEpoch, t.ProducerEpoch == *s.ProducerEpoch && lists:
			return ErrOpen
		}
	}
	return nil
}

// ownersOf returns the transactions that may be those of a step: what the
// coordinator of its transactional ID says, or where that is not known all of its
// producer.
func (a *ClusterActor) ownersOf(ctx context.Context, s Step) ([]inspect.Transaction, error) {
	if s.TransactionalID != nil {
		return a.describe(ctx, *s.TransactionalID)
	}
	d, err := a.Cluster.Describe(ctx)
	if err != nil {
		return nil, err
	}
	txns, gaps, err := inspect.ListTransactions(ctx, a.Cluster, d.Brokers, inspect.TransactionQuery{
		States: inspect.OpenStates(), ProducerIDs: []int64{*s.ProducerID}, Describe: true, Now: a.Clock.Now,
	})
	if err == nil && len(gaps) > 0 {
		err = errors.New(gaps[0].Reason)
	}
	return txns, err
}

// describe asks the coordinator of a transactional ID once.
func (a *ClusterActor) describe(ctx context.Context, id string) ([]inspect.Transaction, error) {
	node, err := findCoordinator(ctx, a.Cluster, id)
	if err != nil {
		return nil, err
	}
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	kresp, err := a.Cluster.RequestBroker(ctx, node, req)
	if err != nil {
		return nil, err
	}
	var out []inspect.Transaction
	for _, s := range kresp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
		switch err := kerr.ErrorForCode(s.ErrorCode); {
		case errors.Is(err, kerr.TransactionalIDNotFound):
		case err != nil:
			return nil, err
		default:
			t := inspect.Transaction{TransactionalID: s.TransactionalID, State: s.State, ProducerID: s.ProducerID, ProducerEpoch: s.ProducerEpoch, Coordinator: node}
			for _, topic := range s.Topics {
				t.Partitions = append(t.Partitions, inspect.TopicPartitions{Topic: topic.Topic, Partitions: topic.Partitions})
			}
			out = append(out, t)
		}
	}
	return out, nil
}
