package drain

import (
	"context"
	"errors"
	"fmt"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Marker is an end marker that is written by hand (WriteTxnMarkers, KIP-664).
type Marker struct {
	Topic     string
	Partition int32
	// ProducerID and ProducerEpoch are those of the producer whose records it
	// ends: of the transactional batches, or of the staged records where Topic is
	// __share_group_state. The epoch that goes into the marker follows from it.
	ProducerID    int64
	ProducerEpoch int16
	// CoordinatorEpoch is that of the producer's last marker on the partition, as
	// DescribeProducers has it; -1 asks for it.
	CoordinatorEpoch int32
	Commit           bool // else ABORT
}

// wire returns the marker as a broker wants it. A marker for staged
// acknowledgements is one of transaction version 2, whose epoch is one above
// theirs (KIP-890; the reference's section 4.2). For records Kafka's own tool
// writes one of the same epoch, which brokers of all versions take.
func (m Marker) wire() kmsg.WriteTxnMarkersRequestMarker {
	out := kmsg.NewWriteTxnMarkersRequestMarker()
	out.ProducerID, out.ProducerEpoch, out.Committed = m.ProducerID, m.ProducerEpoch, m.Commit
	out.CoordinatorEpoch = max(m.CoordinatorEpoch, 0)
	if m.Topic == stateTopic {
		out.ProducerEpoch++
		out.TransactionVersion = int8(wire.TransactionVersion)
	}
	t := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	t.Topic, t.Partitions = m.Topic, []int32{m.Partition}
	out.Topics = append(out.Topics, t)
	return out
}

func (m Marker) op() string {
	what := "ABORT"
	if m.Commit {
		what = "COMMIT"
	}
	return fmt.Sprintf("write the %s marker of producer %d, epoch %d", what, m.ProducerID, m.ProducerEpoch)
}

// markerTries is how often a marker is sent to a partition whose leader moves.
const markerTries = 5

// markersWithVersion is the first version of WriteTxnMarkers that carries the
// version of the transaction (KIP-1228).
const markersWithVersion = 2

// WriteMarkers writes end markers, each to the leader of its partition. It goes
// past the transaction coordinator, which knows nothing of it: it is for
// transactions that no coordinator will end. All are tried; the errors of those
// that failed are joined. It needs ALTER or CLUSTER_ACTION on the cluster.
//
// It may return *cluster.Error, *cluster.AuthError, or *cluster.UnsupportedError
// where the leader of a state partition is older than Kafka 4.2.
func WriteMarkers(ctx context.Context, cl Cluster, clock Clock, markers []Marker) error {
	var errs []error
	for _, m := range markers {
		if err := writeMarker(ctx, cl, clock, m); err != nil {
			errs = append(errs, err)
		}
	}
	return cluster.Join(errs...)
}

func writeMarker(ctx context.Context, cl Cluster, clock Clock, m Marker) error {
	var node int32
	var err error
	for try, pause := 1, firstPause; ; try, pause = try+1, min(2*pause, longestPause) {
		node, err = sendMarker(ctx, cl, m)
		if err == nil || try == markerTries || !retriable(err) {
			break
		}
		if werr := clock.Wait(ctx, pause); werr != nil {
			err = fmt.Errorf("%w: %w", werr, err)
			break
		}
	}
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*cluster.UnsupportedError](err); ok {
		return err
	}
	return cluster.Classify(&cluster.Error{Op: m.op(), Broker: node, Topic: m.Topic, Partition: m.Partition, Err: err})
}

// sendMarker sends a marker once. The same marker twice does no harm.
func sendMarker(ctx context.Context, cl Cluster, m Marker) (int32, error) {
	topics, err := cl.Topics(ctx, m.Topic)
	if err != nil {
		return -1, err
	}
	node := topics[m.Topic].Leader(m.Partition)
	if node < 0 {
		return -1, kerr.LeaderNotAvailable
	}
	if m.Topic == stateTopic {
		if err := needMarkerVersion(ctx, cl, node); err != nil {
			return node, err
		}
	}
	if m.CoordinatorEpoch < 0 {
		m.CoordinatorEpoch = coordinatorEpoch(ctx, cl, node, m)
	}
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Markers = append(req.Markers, m.wire())
	kresp, err := cl.RequestBroker(ctx, node, req)
	if err != nil {
		return node, err
	}
	for _, rm := range kresp.(*kmsg.WriteTxnMarkersResponse).Markers {
		for _, t := range rm.Topics {
			for _, p := range t.Partitions {
				if t.Topic == m.Topic && p.Partition == m.Partition {
					return node, kerr.ErrorForCode(p.ErrorCode)
				}
			}
		}
	}
	return node, errors.New("the answer is about another partition")
}

// needMarkerVersion returns an error when a broker cannot take the version of
// the transaction along with a marker: it would resolve nothing.
func needMarkerVersion(ctx context.Context, cl Cluster, node int32) error {
	d, err := cl.Describe(ctx)
	if err != nil {
		return err
	}
	for _, b := range d.Brokers {
		switch {
		case b.NodeID != node:
		case b.Err != nil:
			return b.Err
		case b.Keys[int16(kmsg.WriteTxnMarkers)].Max < markersWithVersion:
			return &cluster.UnsupportedError{
				What:   "an end marker for share acknowledgements",
				Reason: fmt.Sprintf("broker %d serves WriteTxnMarkers up to v%d, and v%d is needed (Kafka 4.2)", node, b.Keys[int16(kmsg.WriteTxnMarkers)].Max, markersWithVersion),
			}
		default:
			return nil
		}
	}
	return kerr.BrokerNotAvailable
}

// coordinatorEpoch asks for the coordinator epoch of a producer on a partition.
// It is 0 where there is none, as for staged acknowledgements, which are no
// transactional batches; and where it may not be read, since the broker then
// says itself that 0 is too low.
func coordinatorEpoch(ctx context.Context, cl Cluster, node int32, m Marker) int32 {
	req := kmsg.NewPtrDescribeProducersRequest()
	t := kmsg.NewDescribeProducersRequestTopic()
	t.Topic, t.Partitions = m.Topic, []int32{m.Partition}
	req.Topics = append(req.Topics, t)
	kresp, err := cl.RequestBroker(ctx, node, req)
	if err != nil {
		return 0
	}
	for _, rt := range kresp.(*kmsg.DescribeProducersResponse).Topics {
		for _, rp := range rt.Partitions {
			for _, p := range rp.ActiveProducers {
				if p.ProducerID == m.ProducerID {
					return max(p.CoordinatorEpoch, 0)
				}
			}
		}
	}
	return 0
}
