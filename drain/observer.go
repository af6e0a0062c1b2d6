package drain

import (
	"context"
	"slices"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ClusterObserver is the [Observer] of a cluster. It remembers its last look, so
// it is for one drain and one goroutine.
type ClusterObserver struct {
	Cluster inspect.Cluster
	Dialect string           // [inspect.CollectOptions] has it
	Now     func() time.Time // the clock of this machine; nil is time.Now
	// Metrics are the endpoints of the brokers' metrics, each broker once; none
	// reads no metrics. They tell of what leaders hold in memory.
	Metrics []inspect.MetricsEndpoint

	last *inspect.Evidence
}

// Observe collects evidence; see [inspect.Collect].
func (o *ClusterObserver) Observe(ctx context.Context, watch []string) (Observation, error) {
	ev, err := inspect.Collect(ctx, o.Cluster, inspect.CollectOptions{Dialect: o.Dialect, Previous: o.last, Now: o.Now})
	if err != nil {
		return Observation{}, cluster.Classify(err)
	}
	o.last = ev
	seen := Observation{Evidence: ev, Producers: o.Watch(ctx, watch)}
	if len(o.Metrics) > 0 {
		rep, err := inspect.ReadMetrics(ctx, inspect.MetricsOptions{Endpoints: o.Metrics, Now: func() time.Time { return ev.Time }})
		if err != nil {
			return Observation{}, err
		}
		seen.Gauge = newGauge(rep)
	}
	return seen, nil
}

// pendingMetric counts the records in TX_PENDING of a broker.
const pendingMetric = "TxnPendingRecordsCount"

// newGauge adds up what brokers say; nil where none does.
func newGauge(rep *inspect.MetricsReport) *Gauge {
	var g Gauge
	for _, r := range rep.Rows {
		if r.Metric == pendingMetric && r.Value != nil {
			g.Brokers++
			g.Records += int64(*r.Value)
		}
	}
	if g.Brokers == 0 {
		return nil
	}
	return &g
}

// describeBatch is how many transactional IDs are described with one request.
const describeBatch = 500

// Watch returns where transactional IDs stand, of those that a coordinator knows.
// One that does not answer is a gap in the evidence already.
func (o *ClusterObserver) Watch(ctx context.Context, ids []string) []inspect.Transaction {
	var out []inspect.Transaction
	for batch := range slices.Chunk(ids, describeBatch) {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = batch
		kresp, err := o.Cluster.Request(ctx, req)
		if err != nil {
			continue
		}
		for _, s := range kresp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
			if s.ErrorCode == 0 {
				out = append(out, inspect.Transaction{
					TransactionalID: s.TransactionalID, State: s.State,
					ProducerID: s.ProducerID, ProducerEpoch: s.ProducerEpoch,
					Coordinator: -1, TimeoutMS: s.TimeoutMillis,
				})
			}
		}
	}
	return out
}
