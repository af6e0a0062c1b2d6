package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/internal/promtext"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// GET /metrics and /metrics/{node} of the control address.
//
// Behavior:
//   - /metrics/N is what the JMX exporter of broker N would serve without rules
//     of its own; /metrics is that of all brokers, with a label "broker"
//   - names are those of the JMX exporter 1.x, which cuts "-total" off:
//     kafka_server_share_coordinator_metrics_write is write-total
//   - a metric of a share-partition is there while a leader has it loaded, one of
//     a topic from its first request on
//
// Of KIP-1289, as the text put to the vote names them:
//   - ShareGroupMetrics TxnPendingRecordsCount
//   - ShareGroupMetrics TxnShareAcknowledgeRequestLatencyMs
//   - ShareGroupMetrics TxnPendingLockExpiredCount: a counter in kip; a gauge in
//     draft, where a staged record has no lock that could run out, so 0
//
// Not served: TransactionPartitionsCount, which that text calls existing and no
// Kafka has; and the metrics of clients.
//
// Of Kafka 4.4:
//   - ShareGroupMetrics: RecordAcknowledgementsPerSec, PartitionLoadTimeMs
//   - SharePartitionMetrics: InFlightMessageCount, InFlightBatchCount,
//     AcquisitionLockTimeoutPerSec
//   - ShareSessionCache: ShareSessionsCount, SharePartitionsCount
//   - BrokerTopicMetrics: {Total,Failed}ShareFetchRequestsPerSec and
//     {Total,Failed}ShareAcknowledgementRequestsPerSec
//   - ReplicaManager: PartitionsWithLateTransactionsCount
//   - RequestMetrics of TxnShareAcknowledge: RequestsPerSec, ErrorsPerSec,
//     TotalTimeMs
//   - share-coordinator-metrics: write-total, write-rate, write-latency-avg,
//     write-latency-max, num-partitions
//   - group-coordinator-metrics: group-count, share-group-count, of share groups
//
// Where we differ from a broker:
//   - numbers of groups are those of this moment; a broker counts once a minute
//   - percentiles are of the last 1028 values, not of a sample of some minutes

// mbean is one MBean with some of its attributes.
type mbean struct {
	domain     string   // "kafka.server"
	typ        string   // "ShareGroupMetrics"
	name       string   // "" for Kafka's own metrics, which have none
	tags       []string // keys and values in turn
	attributes []attribute
}

func gauge(typ, name string, v float64, tags ...string) mbean {
	return mbean{"kafka.server", typ, name, tags, []attribute{{"Value", v}}}
}

// family names an attribute as the JMX exporter does.
func (b mbean) family(attribute string) string {
	return strings.NewReplacer(".", "_", "-", "_").Replace(b.domain + "_" + b.typ + "_" + strings.TrimSuffix(attribute, "-total"))
}

func (b mbean) labels(broker string) []promtext.Label {
	var out []promtext.Label
	if broker != "" {
		out = append(out, promtext.Label{Name: "broker", Value: broker})
	}
	if b.name != "" {
		out = append(out, promtext.Label{Name: "name", Value: b.name})
	}
	for i := 0; i+1 < len(b.tags); i += 2 {
		out = append(out, promtext.Label{Name: b.tags[i], Value: b.tags[i+1]})
	}
	slices.SortFunc(out, func(a, b promtext.Label) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// metricPage is a page in the making.
type metricPage map[string]*promtext.Family

func (p metricPage) add(broker string, beans []mbean) {
	for _, b := range beans {
		labels := b.labels(broker)
		for _, a := range b.attributes {
			name := b.family(a.name)
			f := p[name]
			if f == nil {
				f = &promtext.Family{Name: name, Help: fmt.Sprintf("Attribute %s of %s:type=%s", a.name, b.domain, b.typ)}
				p[name] = f
			}
			f.Samples = append(f.Samples, promtext.Sample{Name: name, Labels: labels, Value: a.value})
		}
	}
}

// families returns the page sorted by names and labels.
func (p metricPage) families() []promtext.Family {
	out := make([]promtext.Family, 0, len(p))
	for _, name := range sortedKeys(p) {
		f := *p[name]
		slices.SortStableFunc(f.Samples, func(a, b promtext.Sample) int {
			return slices.CompareFunc(a.Labels, b.Labels, func(a, b promtext.Label) int {
				return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
			})
		})
		out = append(out, f)
	}
	return out
}

// metrics returns the page of one broker, or of all of them for -1.
func (s *Sandbox) metrics(ctx context.Context, broker int32) ([]promtext.Family, error) {
	late, err := s.kafka.lateTransactionPartitions(ctx, s.plane.now())
	if err != nil {
		return nil, err
	}
	page, beans := make(metricPage), s.plane.metrics()
	for _, n := range s.gateway.nodes {
		label := ""
		if broker < 0 {
			label = strconv.Itoa(int(n.id))
		} else if n.id != broker {
			continue
		}
		page.add(label, append(beans[n.id],
			gauge("ReplicaManager", "PartitionsWithLateTransactionsCount", float64(late[n.id]))))
	}
	return page.families(), nil
}

// lateTransactionAfter is how long beyond the longest timeout that it allows a
// broker waits before it calls a transaction late.
const lateTransactionAfter = 5 * time.Minute

// maxTransactionTimeoutMS is Kafka's default of transaction.max.timeout.ms.
const maxTransactionTimeoutMS = 900_000

// lateTransactionPartitions counts by broker the partitions it leads that have
// records of a transaction which is open for too long. What is staged in one is
// no record, so partitions of __share_group_state do not count.
func (b *backend) lateTransactionPartitions(ctx context.Context, now time.Time) (map[int32]int, error) {
	allowed := time.Duration(parseConfigInt(b.brokerConfig("transaction.max.timeout.ms"), maxTransactionTimeoutMS))*time.Millisecond + lateTransactionAfter
	req := kmsg.NewPtrListTransactionsRequest()
	req.Version = 1
	req.StateFilters = []string{"Ongoing"}
	req.DurationFilterMillis = allowed.Milliseconds()
	resp, err := call[*kmsg.ListTransactionsResponse](ctx, b.client, 0, req) // kfake's brokers list those of all
	if err == nil {
		err = codeError(resp.ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("list late transactions: %w", err)
	}
	late := make(map[logKey]struct{})
	for _, t := range resp.TransactionStates {
		d, err := b.describeKafkaTransaction(ctx, t.TransactionalID)
		if err != nil {
			return nil, err
		}
		if d == nil || now.Sub(time.UnixMilli(d.StartTimestamp)) <= allowed {
			continue // it has ended, and another one began
		}
		for _, topic := range d.Topics {
			for _, p := range topic.Partitions {
				late[logKey{topic.Topic, p}] = struct{}{}
			}
		}
	}
	count := make(map[int32]int)
	for k := range late {
		if info, ok := b.partition(k.topic, k.partition); ok && k.topic != stateTopic {
			count[info.leader]++
		}
	}
	return count, nil
}

// serveMetrics answers GET /metrics and GET /metrics/{node}.
func (s *Sandbox) serveMetrics(w http.ResponseWriter, r *http.Request) {
	broker := int32(-1)
	if node := r.PathValue("node"); node != "" {
		n, err := strconv.ParseInt(node, 10, 32)
		if err != nil || !slices.ContainsFunc(s.gateway.nodes, func(g *gatewayNode) bool { return g.id == int32(n) }) {
			http.Error(w, "no broker has that node ID", http.StatusNotFound)
			return
		}
		broker = int32(n)
	}
	families, err := s.metrics(r.Context(), broker)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", promtext.ContentType)
	_ = promtext.Write(w, families) // the client has gone, or gets it
}
