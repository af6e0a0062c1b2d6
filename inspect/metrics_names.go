package inspect

import (
	"strconv"
	"strings"

	"github.com/kshare/kshare/internal/promtext"
)

// What exporters call Kafka's metrics.
//
// The JMX exporter without rules names a family after type and attribute and has
// the name of the MBean in a label:
//
//	kafka_server_ShareGroupMetrics_Count{ackType="Accept",name="RecordAcknowledgementsPerSec"}
//
// The rules that most people use, those of its examples and of Strimzi, put the
// name of the MBean into that of the family, in lower case, and make of attributes
// suffixes or a label:
//
//	kafka_server_sharegroupmetrics_recordacknowledgements_total{acktype="Accept"}
//	kafka_server_sharegroupmetrics_partitionloadtimems{quantile="0.99"}
//
// Both were read off a broker of Kafka 4.4 (testdata). Upper and lower case are
// the same here, in names of families and labels alike.

// wanted reports whether a family may be of a metric.
func (x *metricIndex) wanted(family []byte) bool {
	for _, t := range x.types {
		if len(family) > len(t.prefix) && strings.EqualFold(string(family[:len(t.prefix)]), t.prefix) {
			return true
		}
	}
	return false
}

// series says what a sample of an exporter is in Kafka's names; false for what is
// no metric of the index.
func (x *metricIndex) series(s promtext.Sample) (metricSeries, bool) {
	out := metricSeries{exported: strings.ToLower(s.Name), value: s.Value, labels: func(name string) (string, bool) {
		for _, l := range s.Labels {
			if strings.EqualFold(l.Name, name) {
				return l.Value, true
			}
		}
		return "", false
	}}
	for _, t := range x.types {
		rest, ok := strings.CutPrefix(out.exported, t.prefix)
		if !ok {
			continue
		}
		for _, name := range t.names {
			if out.attribute, ok = attributeOf(rest, name, out.labels); !ok {
				continue
			}
			if out.metrics = x.byKey[metricKey{t.typ, name, out.attribute}]; out.metrics != nil {
				return out, true
			}
		}
	}
	return metricSeries{}, false
}

// attributeOf returns the attribute of the MBean of that name, "" for one without,
// that an exporter's name ends with; all are in lower case.
func attributeOf(exported, name string, label func(string) (string, bool)) (string, bool) {
	if name == "" {
		// Kafka's own metrics have hyphens. An exporter cuts "-total" off since 1.0,
		// which none here ends with.
		return strings.ReplaceAll(exported, "_", "-"), true
	}
	if bean, ok := label("name"); ok {
		return strings.TrimSuffix(exported, "_total"), strings.EqualFold(bean, name)
	}
	rest, ok := strings.CutPrefix(exported, name)
	if !ok {
		if rest, ok = strings.CutPrefix(exported, strings.TrimSuffix(name, "persec")); !ok {
			return "", false
		}
	}
	if q, ok := label("quantile"); ok {
		return percentileOf(q)
	}
	switch rest {
	case "", "_value":
		return "value", true
	case "_total", "_count", "_count_total", "_total_count":
		return "count", true
	}
	// Rules for two labels, on an MBean that has three, leave one in the name:
	// kafka_server_sharepartitionmetrics_inflightmessagecount_group_billing.
	if strings.HasPrefix(rest, "_group_") {
		return "value", true
	}
	return strings.CutPrefix(rest, "_")
}

// percentileOf returns the attribute of a quantile from 0 to 1.
func percentileOf(quantile string) (string, bool) {
	q, err := strconv.ParseFloat(quantile, 64)
	if err != nil || q <= 0 || q >= 1 {
		return "", false
	}
	// Kafka has 50thPercentile, and 999thPercentile for 99.9.
	digits := strings.TrimPrefix(strconv.FormatFloat(q, 'f', -1, 64), "0.")
	if len(digits) == 1 {
		digits += "0"
	}
	return digits + "thpercentile", true
}
