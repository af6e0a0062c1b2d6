package inspect

import (
	"maps"
	"slices"
	"strings"
)

// Metric is one attribute of an MBean of Kafka brokers that tells of share groups
// or of their transactions.
type Metric struct {
	Domain    string // "kafka.server" or "kafka.network"
	Type      string // of the MBean, such as "ShareGroupMetrics"
	Name      string // of the MBean; "" where it has none, as Kafka's own metrics
	Attribute string // "Value", "Count", "99thPercentile", ...; of a nameless MBean that of Kafka's metric
	// Or is the attribute that the same metric has where it is of another kind:
	// the text and the drafts of KIP-1289 differ. "" is none.
	Or string

	Unit    string // "records", "ms", ...
	Counter bool   // it only rises, until the broker starts again
	// Highest: of several series the highest counts. Else they are added up.
	Highest bool
	// Split is a label whose values are told apart, such as "ackType"; "" is none.
	Split string
	// Only has labels that a series must have with these values.
	Only map[string]string
	// Total: only series without a topic, which count all topics.
	Total bool

	Proposed bool   // of KIP-1289, which no released Kafka has
	Meaning  string // a sentence without full stop
}

// Metrics returns the metrics that [ReadMetrics] looks for, those of KIP-1289
// first. They are those of the text put to the vote that a broker has, and of
// Kafka 4.4. The slice is the caller's.
func Metrics() []Metric {
	const (
		server  = "kafka.server"
		network = "kafka.network"
		groups  = "ShareGroupMetrics"
		parts   = "SharePartitionMetrics"
		topics  = "BrokerTopicMetrics"
		state   = "share-coordinator-metrics"
		group   = "group-coordinator-metrics"
	)
	request := map[string]string{"request": "TxnShareAcknowledge"}
	return []Metric{
		{
			Domain: server, Type: groups, Name: "TxnPendingRecordsCount", Attribute: "Value", Unit: "records", Proposed: true,
			Meaning: "records in TX_PENDING; a busy loop keeps it above 0 most of the time",
		},
		{
			Domain: server, Type: groups, Name: "TxnPendingLockExpiredCount", Attribute: "Count", Or: "Value", Unit: "records", Counter: true, Proposed: true,
			Meaning: "records that were still in TX_PENDING when their acquisition lock ran out: an abandoned transaction, or an end marker that does not come",
		},
		{
			Domain: server, Type: groups, Name: "TxnShareAcknowledgeRequestLatencyMs", Attribute: "Count", Unit: "requests", Counter: true, Proposed: true,
			Meaning: "requests to stage acknowledgements in a transaction",
		},
		{
			Domain: server, Type: groups, Name: "TxnShareAcknowledgeRequestLatencyMs", Attribute: "99thPercentile", Unit: "ms", Highest: true, Proposed: true,
			Meaning: "how long staging takes; it is part of every transaction",
		},
		{
			Domain: network, Type: "RequestMetrics", Name: "ErrorsPerSec", Attribute: "Count", Unit: "errors", Counter: true, Split: "error", Only: request, Proposed: true,
			Meaning: "codes that staging was answered with",
		},
		{
			Domain: server, Type: "ReplicaManager", Name: "PartitionsWithLateTransactionsCount", Attribute: "Value", Unit: "partitions",
			Meaning: "partitions with records of a transaction that is open for 5 minutes longer than any may be; one that only holds acknowledgements is not seen here",
		},
		{
			Domain: server, Type: groups, Name: "RecordAcknowledgementsPerSec", Attribute: "Count", Unit: "records", Counter: true, Split: "ackType",
			Meaning: "records acknowledged without a transaction",
		},
		{
			Domain: server, Type: parts, Name: "AcquisitionLockTimeoutPerSec", Attribute: "Count", Unit: "records", Counter: true,
			Meaning: "records that came back because nobody acknowledged them in time",
		},
		{
			Domain: server, Type: parts, Name: "AcquisitionLockTimeoutPerSec", Attribute: "OneMinuteRate", Unit: "records/s",
			Meaning: "how many a second of late",
		},
		{
			Domain: server, Type: parts, Name: "InFlightMessageCount", Attribute: "Value", Unit: "records",
			Meaning: "records between start and end of all loaded share-partitions: no more than these are in TX_PENDING",
		},
		{
			Domain: server, Type: parts, Name: "InFlightBatchCount", Attribute: "Value", Unit: "batches",
			Meaning: "ranges that they are kept in",
		},
		{
			Domain: server, Type: "ShareSessionCache", Name: "ShareSessionsCount", Attribute: "Value", Unit: "sessions",
			Meaning: "open share sessions",
		},
		{
			Domain: server, Type: topics, Name: "TotalShareFetchRequestsPerSec", Attribute: "Count", Unit: "requests", Counter: true, Total: true,
			Meaning: "ShareFetch requests, each counted once for each topic",
		},
		{
			Domain: server, Type: topics, Name: "FailedShareFetchRequestsPerSec", Attribute: "Count", Unit: "requests", Counter: true, Total: true,
			Meaning: "ShareFetch requests that failed",
		},
		{
			Domain: server, Type: topics, Name: "TotalShareAcknowledgementRequestsPerSec", Attribute: "Count", Unit: "requests", Counter: true, Total: true,
			Meaning: "plain acknowledgements, each counted once for each topic",
		},
		{
			Domain: server, Type: topics, Name: "FailedShareAcknowledgementRequestsPerSec", Attribute: "Count", Unit: "requests", Counter: true, Total: true,
			Meaning: "plain acknowledgements that failed",
		},
		{
			Domain: server, Type: groups, Name: "PartitionLoadTimeMs", Attribute: "99thPercentile", Unit: "ms", Highest: true,
			Meaning: "how long a share-partition takes to load after its leader moved",
		},
		{
			Domain: server, Type: state, Attribute: "write-rate", Unit: "writes/s",
			Meaning: "writes of share-partition state, staging and its end among them",
		},
		{
			Domain: server, Type: state, Attribute: "write-latency-avg", Unit: "ms", Highest: true,
			Meaning: "how long such a write takes",
		},
		{
			Domain: server, Type: state, Attribute: "write-latency-max", Unit: "ms", Highest: true,
			Meaning: "how long the longest took",
		},
		{
			Domain: server, Type: state, Attribute: "num-partitions", Unit: "partitions", Split: "state",
			Meaning: "partitions of __share_group_state that the broker coordinates",
		},
		{
			Domain: server, Type: group, Attribute: "group-count", Unit: "groups", Only: map[string]string{"protocol": "share"},
			Meaning: "share groups; brokers count them once a minute",
		},
		{
			Domain: server, Type: group, Attribute: "share-group-count", Unit: "groups", Split: "state",
			Meaning: "share groups by state",
		},
	}
}

// MBean returns the object name without what varies, such as
// "kafka.server:type=ShareGroupMetrics,name=TxnPendingRecordsCount".
func (m Metric) MBean() string {
	b := m.Domain + ":type=" + m.Type
	if m.Name != "" {
		b += ",name=" + m.Name
	}
	for _, name := range slices.Sorted(maps.Keys(m.Only)) {
		b += "," + name + "=" + m.Only[name]
	}
	return b
}

// ID names the metric in a few words: "TxnPendingRecordsCount",
// "PartitionLoadTimeMs/99thPercentile", "share-coordinator-metrics/write-rate".
func (m Metric) ID() string {
	switch {
	case m.Name == "":
		return m.Type + "/" + m.Attribute
	case m.Attribute == "Value":
		return m.Name
	default:
		return m.Name + "/" + m.Attribute
	}
}

// attributes returns the names under which a broker may have the value, the
// likeliest first.
func (m Metric) attributes() []string {
	if m.Or == "" {
		return []string{m.Attribute}
	}
	return []string{m.Attribute, m.Or}
}

// takes reports whether a series with these labels counts, and the value of the
// label that splits, if any does.
func (m Metric) takes(label func(name string) (string, bool)) (split string, ok bool) {
	for name, want := range m.Only {
		if got, _ := label(name); got != want {
			return "", false
		}
	}
	if _, has := label("topic"); has && m.Total {
		return "", false
	}
	if m.Split == "" {
		return "", true
	}
	return label(m.Split)
}

// metricSeries is a series of a broker, whichever endpoint it came from.
type metricSeries struct {
	metrics []int // of the index: those that it is the attribute of
	// attribute is that of the MBean, in lower case; exported is what the endpoint
	// calls it. Two names of one attribute are not added up.
	attribute, exported string
	labels              func(name string) (string, bool)
	value               float64
}

// metricIndex finds metrics by what a series says of itself.
type metricIndex struct {
	metrics []Metric
	byKey   map[metricKey][]int
	types   []exportedType
}

// metricKey names an attribute, all in lower case.
type metricKey struct{ typ, name, attribute string }

// exportedType is the MBeans of one type.
type exportedType struct {
	prefix string // that a JMX exporter's names of it begin with, in lower case
	typ    string // in lower case
	names  []string
}

func newMetricIndex(metrics []Metric) *metricIndex {
	x := &metricIndex{metrics: metrics, byKey: make(map[metricKey][]int)}
	for i, m := range metrics {
		typ, name := strings.ToLower(m.Type), strings.ToLower(m.Name)
		for _, a := range m.attributes() {
			k := metricKey{typ, name, strings.ToLower(a)}
			x.byKey[k] = append(x.byKey[k], i)
		}
		at := slices.IndexFunc(x.types, func(t exportedType) bool { return t.typ == typ })
		if at < 0 {
			at = len(x.types)
			x.types = append(x.types, exportedType{prefix: exportedName(m.Domain+"_"+m.Type) + "_", typ: typ})
		}
		if t := &x.types[at]; !slices.Contains(t.names, name) {
			t.names = append(t.names, name)
		}
	}
	return x
}

// exportedName replaces what Prometheus has no place for in names.
func exportedName(s string) string {
	return strings.ToLower(strings.NewReplacer(".", "_", "-", "_").Replace(s))
}
