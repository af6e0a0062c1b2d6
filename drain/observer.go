package drain

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
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
	seen := Observation{Evidence: ev}
	var gaps []inspect.Gap
	seen.Producers, gaps = o.Watch(ctx, watch)
	ev.Gaps = append(ev.Gaps, gaps...)
	o.last = ev
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

// Watch returns where transactional IDs stand, of those that a coordinator knows,
// and a gap for those whose coordinator did not tell: what they did meanwhile
// would go unnoticed.
func (o *ClusterObserver) Watch(ctx context.Context, ids []string) ([]inspect.Transaction, []inspect.Gap) {
	var out []inspect.Transaction
	var gaps []inspect.Gap
	untold := func(n int, err error) {
		gaps = append(gaps, inspect.ErrorGap(inspect.SourceDescribeTransactions,
			fmt.Sprintf("what %s of before %s now could not be seen", countText(int64(n), "producer", "producers"), map[bool]string{true: "does", false: "do"}[n == 1]), err))
	}
	for batch := range slices.Chunk(ids, describeBatch) {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = batch
		kresp, err := o.Cluster.Request(ctx, req)
		if err != nil {
			untold(len(batch), err)
			continue
		}
		failed := make(map[int16]int)
		for _, s := range kresp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
			switch s.ErrorCode {
			case 0:
				out = append(out, inspect.Transaction{
					TransactionalID: s.TransactionalID, State: s.State,
					ProducerID: s.ProducerID, ProducerEpoch: s.ProducerEpoch,
					Coordinator: -1, TimeoutMS: s.TimeoutMillis,
				})
			case kerr.TransactionalIDNotFound.Code: // it has expired
			default:
				failed[s.ErrorCode]++
			}
		}
		for _, code := range slices.Sorted(maps.Keys(failed)) {
			untold(failed[code], kerr.ErrorForCode(code))
		}
	}
	return out, gaps
}
