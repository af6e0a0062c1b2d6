package drain

import (
	"context"

	"github.com/kshare/kshare/inspect"
)

// ClusterActor is the [Actor] of a cluster.
type ClusterActor struct {
	Cluster Cluster
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

// WriteMarkers writes the end markers of a step; see [WriteMarkers].
func (a *ClusterActor) WriteMarkers(ctx context.Context, s Step) error {
	markers := make([]Marker, 0, len(s.StatePartitions))
	for _, p := range s.StatePartitions {
		markers = append(markers, Marker{
			Topic: stateTopic, Partition: p, ProducerID: *s.ProducerID, ProducerEpoch: *s.ProducerEpoch,
			CoordinatorEpoch: -1, Commit: s.Action == ActionCommit,
		})
	}
	return WriteMarkers(ctx, a.Cluster, a.Clock, markers)
}
