package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/internal/promtext"
)

var metricsTime = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// readingsOf returns what a page says, as "ID split" by value.
func readingsOf(t *testing.T, page string) map[string]float64 {
	t.Helper()
	index := newMetricIndex(Metrics())
	sums := newMetricSums(index, "host:1")
	err := promtext.Parse(strings.NewReader(page), index.wanted, func(s promtext.Sample) {
		if x, ok := index.series(s); ok {
			sums.add(x)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return readings(index, sums.answer())
}

func readings(index *metricIndex, a endpointAnswer) map[string]float64 {
	out := make(map[string]float64)
	for k, v := range a.values {
		id := index.metrics[k.metric].ID()
		if k.split != "" {
			id += " " + k.split
		}
		if k.broker != "host:1" {
			id += " @" + k.broker
		}
		out[id] = v.value
	}
	return out
}

// Pages that the JMX exporter 1.0.1 in a broker of Kafka 4.4.0 served: without
// rules, with all in lower case, and by the rules that most people use. A group
// had a share session on two partitions.
func TestMetricsOfKafka(t *testing.T) {
	common := map[string]float64{
		"PartitionsWithLateTransactionsCount":            0,
		"RecordAcknowledgementsPerSec/Count Release":     0,
		"RecordAcknowledgementsPerSec/Count Reject":      0,
		"RecordAcknowledgementsPerSec/Count Renew":       0,
		"AcquisitionLockTimeoutPerSec/Count":             0,
		"InFlightMessageCount":                           0,
		"InFlightBatchCount":                             0,
		"ShareSessionsCount":                             1,
		"FailedShareFetchRequestsPerSec/Count":           0,
		"FailedShareAcknowledgementRequestsPerSec/Count": 0,
	}
	own := map[string]float64{
		"share-coordinator-metrics/num-partitions active":  3,
		"share-coordinator-metrics/num-partitions failed":  0,
		"share-coordinator-metrics/num-partitions loading": 0,
		"group-coordinator-metrics/group-count":            0,
		"group-coordinator-metrics/share-group-count Dead": 0, "group-coordinator-metrics/share-group-count Empty": 0,
		"group-coordinator-metrics/share-group-count Stable": 0,
	}
	for name, c := range map[string][]map[string]float64{
		"default": {common, own, {
			"AcquisitionLockTimeoutPerSec/OneMinuteRate": 0,
			"RecordAcknowledgementsPerSec/Count Accept":  50, "PartitionLoadTimeMs/99thPercentile": 19,
			"TotalShareFetchRequestsPerSec/Count": 23, "TotalShareAcknowledgementRequestsPerSec/Count": 1,
			"share-coordinator-metrics/write-rate": 0.025847140013957454, "share-coordinator-metrics/write-latency-avg": 4, "share-coordinator-metrics/write-latency-max": 4,
		}},
		"lowercase": {common, own, {
			"AcquisitionLockTimeoutPerSec/OneMinuteRate": 0,
			"RecordAcknowledgementsPerSec/Count Accept":  0, "PartitionLoadTimeMs/99thPercentile": 17,
			"TotalShareFetchRequestsPerSec/Count": 15, "TotalShareAcknowledgementRequestsPerSec/Count": 0,
		}},
		// These rules leave out what has no name, and rates.
		"rules": {common, {
			"RecordAcknowledgementsPerSec/Count Accept": 0, "PartitionLoadTimeMs/99thPercentile": 25,
			"TotalShareFetchRequestsPerSec/Count": 16, "TotalShareAcknowledgementRequestsPerSec/Count": 0,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata", "metrics", "kafka-4.4.0-"+name+".txt"))
			if err != nil {
				t.Fatal(err)
			}
			want := make(map[string]float64)
			for _, m := range c {
				maps.Copy(want, m)
			}
			got := readingsOf(t, string(b))
			if name == "lowercase" { // which has the writes of some start
				maps.DeleteFunc(got, func(k string, _ float64) bool { return strings.Contains(k, "write-") })
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("read %v\nwant %v", got, want)
			}
		})
	}
}

// What exporters make of the names that KIP-1289 brings, and of more than one
// series of one metric.
func TestMetricNames(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		want map[string]float64
	}{
		"the exporter's default": {`kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} 3.0
kafka_server_ShareGroupMetrics_Count{name="TxnPendingLockExpiredCount"} 2
kafka_server_ShareGroupMetrics_Count{name="TxnShareAcknowledgeRequestLatencyMs"} 7
kafka_server_ShareGroupMetrics_99thPercentile{name="TxnShareAcknowledgeRequestLatencyMs"} 12.5
kafka_network_RequestMetrics_Count{error="NONE",name="ErrorsPerSec",request="TxnShareAcknowledge"} 5
kafka_network_RequestMetrics_Count{error="INVALID_RECORD_STATE",name="ErrorsPerSec",request="TxnShareAcknowledge"} 1
kafka_network_RequestMetrics_Count{error="NONE",name="ErrorsPerSec",request="Fetch"} 500
`, map[string]float64{
			"TxnPendingRecordsCount": 3, "TxnPendingLockExpiredCount/Count": 2,
			"TxnShareAcknowledgeRequestLatencyMs/Count": 7, "TxnShareAcknowledgeRequestLatencyMs/99thPercentile": 12.5,
			"ErrorsPerSec/Count NONE": 5, "ErrorsPerSec/Count INVALID_RECORD_STATE": 1,
		}},
		"rules": {`kafka_server_sharegroupmetrics_txnpendingrecordscount 3
kafka_server_sharegroupmetrics_txnpendinglockexpiredcount_count 2
kafka_server_sharegroupmetrics_txnshareacknowledgerequestlatencyms_count 7
kafka_server_sharegroupmetrics_txnshareacknowledgerequestlatencyms{quantile="0.99"} 12.5
kafka_server_sharegroupmetrics_txnshareacknowledgerequestlatencyms{quantile="0.999"} 99
kafka_network_requestmetrics_errors_total{error="NONE",request="TxnShareAcknowledge"} 5
kafka_server_sharepartitionmetrics_inflightmessagecount_group_billing_v2{partition="0",topic="src"} 4
kafka_server_sharepartitionmetrics_inflightmessagecount_group_billing_v2{partition="1",topic="src"} 5
`, map[string]float64{
			"TxnPendingRecordsCount": 3, "TxnPendingLockExpiredCount/Count": 2,
			"TxnShareAcknowledgeRequestLatencyMs/Count": 7, "TxnShareAcknowledgeRequestLatencyMs/99thPercentile": 12.5,
			"ErrorsPerSec/Count NONE": 5, "InFlightMessageCount": 9,
		}},
		"any case": {`KAFKA_SERVER_SHAREGROUPMETRICS_VALUE{NAME="txnpendingrecordscount"} 1
Kafka_Server_ShareGroupMetrics_RecordAcknowledgementsPerSec_Count{acktype="Accept"} 8
`, map[string]float64{"TxnPendingRecordsCount": 1, "RecordAcknowledgementsPerSec/Count Accept": 8}},
		"a gauge where the text has a counter": {`kafka_server_ShareGroupMetrics_Value{name="TxnPendingLockExpiredCount"} 4
`, map[string]float64{"TxnPendingLockExpiredCount/Count": 4}},
		"both of them are not two": {`kafka_server_ShareGroupMetrics_Value{name="TxnPendingLockExpiredCount"} 4
kafka_server_ShareGroupMetrics_Count{name="TxnPendingLockExpiredCount"} 5
`, map[string]float64{"TxnPendingLockExpiredCount/Count": 5}},
		"two names of one": {`kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} 3
kafka_server_sharegroupmetrics_txnpendingrecordscount 3
`, map[string]float64{"TxnPendingRecordsCount": 3}},
		"groups are added up": {`kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount",group="a"} 3
kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount",group="b"} 4
`, map[string]float64{"TxnPendingRecordsCount": 7}},
		"of percentiles the highest": {`kafka_server_ShareGroupMetrics_99thPercentile{name="PartitionLoadTimeMs",group="a"} 3
kafka_server_ShareGroupMetrics_99thPercentile{name="PartitionLoadTimeMs",group="b"} 2
`, map[string]float64{"PartitionLoadTimeMs/99thPercentile": 3}},
		"topics are in the total": {`kafka_server_BrokerTopicMetrics_Count{name="TotalShareFetchRequestsPerSec"} 5
kafka_server_BrokerTopicMetrics_Count{name="TotalShareFetchRequestsPerSec",topic="a"} 3
kafka_server_BrokerTopicMetrics_Count{name="TotalShareFetchRequestsPerSec",topic="b"} 2
`, map[string]float64{"TotalShareFetchRequestsPerSec/Count": 5}},
		"topics without a total": {`kafka_server_BrokerTopicMetrics_Count{name="TotalShareFetchRequestsPerSec",topic="a"} 3
`, nil},
		"brokers": {`kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount",broker="0"} 3
kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount",broker="1",instance="x"} 4
kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount",instance="b2:9404"} 5
`, map[string]float64{"TxnPendingRecordsCount @0": 3, "TxnPendingRecordsCount @1": 4, "TxnPendingRecordsCount @b2:9404": 5}},
		"no number": {`kafka_server_share_coordinator_metrics_write_latency_avg NaN
kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} +Inf
`, nil},
		"something else": {`kafka_server_ShareGroupMetrics_Value{name="Other"} 1
kafka_server_ShareGroupMetrics_Value 1
kafka_server_ShareGroupMetrics_Mean{name="TxnPendingRecordsCount"} 1
kafka_server_sharegroupmetrics_txnpendingrecordscountdown 1
kafka_server_sharegroupmetrics_partitionloadtimems{quantile="x"} 1
kafka_server_sharegroupmetrics_partitionloadtimems{quantile="1"} 1
kafka_server_group_coordinator_metrics_group_count{protocol="classic"} 4
kafka_server_share_coordinator_metrics_event_queue_size 4
kafka_producer_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} 1
`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want == nil {
				c.want = map[string]float64{}
			}
			if got := readingsOf(t, c.page); !reflect.DeepEqual(got, c.want) {
				t.Errorf("read %v, want %v", got, c.want)
			}
		})
	}
}

// Metrics have names of their own, and what is said of them is fit to print.
func TestMetricsCatalogue(t *testing.T) {
	ids := make(map[string]bool)
	for _, m := range Metrics() {
		if ids[m.ID()] {
			t.Errorf("%s is there twice", m.ID())
		}
		ids[m.ID()] = true
		if m.Meaning == "" || strings.HasSuffix(m.Meaning, ".") || m.Unit == "" || m.Counter && m.Highest {
			t.Errorf("%s: %+v", m.ID(), m)
		}
	}
	names := AlertNames()
	for _, r := range alertRules() {
		for _, id := range r.metrics {
			if !ids[id] {
				t.Errorf("alert %s looks at %q, which is no metric", r.name, id)
			}
		}
	}
	if slices.Sort(names); len(slices.Compact(names)) != len(alertRules()) {
		t.Errorf("alerts %q", names)
	}
}

func TestParseObjectName(t *testing.T) {
	for s, want := range map[string]map[string]string{
		"kafka.server:type=ShareGroupMetrics,name=X":           {"type": "ShareGroupMetrics", "name": "X"},
		"kafka.server:ackType=Accept,type=T":                   {"acktype": "Accept", "type": "T"},
		`kafka.server:group="a,b=\"c\"\n\\\*",name=X,type="T"`: {"group": "a,b=\"c\"\n\\*", "name": "X", "type": "T"},
		"kafka.server:group=g:1,type=T":                        {"group": "g:1", "type": "T"},
		"kafka.server:type=T,group=":                           {"type": "T", "group": ""},
		"kafka.server:":                                        {},
	} {
		if got, err := parseObjectName(s); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("parseObjectName(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "x", "d:type", `d:a="b`, `d:a="b\`, `d:a="b"c`} {
		if got, err := parseObjectName(s); err == nil {
			t.Errorf("parseObjectName(%q) = %v, want an error", s, got)
		}
	}
}

func TestNewMetricsEndpoint(t *testing.T) {
	for _, c := range []struct {
		kind     EndpointKind
		in, want string // "" is an error
	}{
		{EndpointPrometheus, "b1:9404", "http://b1:9404/metrics"},
		{EndpointPrometheus, "[::1]:9404", "http://[::1]:9404/metrics"},
		{EndpointPrometheus, "b1", "http://b1/metrics"},
		{EndpointPrometheus, "http://b1:9404", "http://b1:9404/metrics"},
		{EndpointPrometheus, "https://b1:9404/", "https://b1:9404/metrics"},
		{EndpointPrometheus, "http://b1:9404/federate?match[]=x#y", "http://b1:9404/federate?match[]=x"},
		{EndpointPrometheus, "http://u:secret@b1/m", "http://u:xxxxx@b1/m"},
		{EndpointJolokia, "b1:8778", "http://b1:8778/jolokia/"},
		{EndpointJolokia, "https://b1:8778/j", "https://b1:8778/j"},
		{EndpointPrometheus, "", ""},
		{EndpointPrometheus, "ftp://b1/metrics", ""},
		{EndpointPrometheus, "http://", ""},
		{EndpointPrometheus, "http://b1:x/", ""},
		{EndpointPrometheus, "b 1", ""},
	} {
		e, err := NewMetricsEndpoint(c.kind, c.in)
		if c.want == "" {
			if err == nil {
				t.Errorf("NewMetricsEndpoint(%q) = %v, want an error", c.in, e)
			}
			continue
		}
		if err != nil || e.String() != c.want {
			t.Errorf("NewMetricsEndpoint(%q) = %v, %v, want %s", c.in, e, err, c.want)
		}
	}
	if _, err := NewMetricsEndpoint(EndpointPrometheus, "http://u:secret@b 1/"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error tells a password: %v", err)
	}
}

// serve returns an endpoint that answers like h.
func serveMetrics(t *testing.T, kind EndpointKind, h http.HandlerFunc) MetricsEndpoint {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	e, err := NewMetricsEndpoint(kind, s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func answerWith(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

const (
	textFormat  = "text/plain; version=0.0.4"
	pendingPage = `kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} 3` + "\n"
)

func readMetrics(t *testing.T, o MetricsOptions) *MetricsReport {
	t.Helper()
	o.Now = func() time.Time { return metricsTime }
	r, err := ReadMetrics(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// rowsOf returns the rows of a metric.
func rowsOfMetric(r *MetricsReport, metric, attribute string) []MetricRow {
	var out []MetricRow
	for _, row := range r.Rows {
		if row.Metric == metric && row.Attribute == attribute {
			out = append(out, row)
		}
	}
	return out
}

// An endpoint that does not say what it should is an error of that endpoint, the
// others count, and nothing is taken for 0.
func TestEndpointsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		kind EndpointKind
		h    http.HandlerFunc
		want string
	}{
		"status": {EndpointPrometheus, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }, "HTTP status 401 Unauthorized"},
		"html":   {EndpointPrometheus, answerWith("text/html; charset=utf-8", "<html>"), "the answer is text/html, not metrics in the text format of Prometheus"},
		"html without a type": {EndpointPrometheus, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			_, _ = io.WriteString(w, "<html>")
		}, `the answer is not in the text format of Prometheus: line 1: want the name of a metric`},
		"empty":           {EndpointPrometheus, answerWith(textFormat, ""), "the answer has no metrics"},
		"comments":        {EndpointPrometheus, answerWith(textFormat, "# HELP a b\n"), "the answer has no metrics"},
		"broken":          {EndpointPrometheus, answerWith(textFormat, pendingPage+"a b c\n"), "the answer is not in the text format of Prometheus: line 2: "},
		"cut off":         {EndpointPrometheus, cutOff(textFormat, pendingPage), "unexpected EOF"},
		"redirect loop":   {EndpointPrometheus, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/metrics", http.StatusFound) }, "stopped after 10 redirects"},
		"no Jolokia":      {EndpointJolokia, answerWith("text/html", "<html>"), "the answer is not Jolokia's: invalid character '<'"},
		"other JSON":      {EndpointJolokia, answerWith("application/json", `{"status":200}`), "the answer is not Jolokia's: json: cannot unmarshal object"},
		"too few answers": {EndpointJolokia, answerWith("application/json", `[{"status":404}]`), "1 answers to "},
		"a refused read": {EndpointJolokia, serveJolokia(func(r jolokiaRead) string {
			return `{"status":403,"error":"No access"}`
		}), "read kafka.server:type=ShareGroupMetrics,name=TxnPendingRecordsCount,*: status 403: No access"},
		"an MBean without a name": {EndpointJolokia, serveJolokia(func(r jolokiaRead) string {
			return `{"status":200,"value":{"x":{"Value":1}}}`
		}), `"x" is not the name of an MBean`},
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := serveMetrics(t, c.kind, c.h), serveMetrics(t, EndpointPrometheus, answerWith(textFormat, pendingPage))
			r := readMetrics(t, MetricsOptions{Endpoints: []MetricsEndpoint{bad, good}})
			if !r.Incomplete() || r.Endpoints[0].Error == nil || !strings.Contains(*r.Endpoints[0].Error, c.want) {
				t.Fatalf("endpoint %s, want the error %q", errorText(r.Endpoints[0].Error), c.want)
			}
			if strings.Contains(*r.Endpoints[0].Error, bad.URL.Host) && name != "redirect loop" {
				t.Errorf("the error repeats the endpoint: %s", *r.Endpoints[0].Error)
			}
			rows := rowsOfMetric(r, "TxnPendingRecordsCount", "Value")
			if len(rows) != 2 || rows[0].Value != nil || rows[0].Broker != bad.URL.Host || rows[1].Value == nil || *rows[1].Value != 3 {
				t.Errorf("rows %+v, want one that is not known and one of 3", rows)
			}
			if a := r.Alerts[0]; a.State != AlertWatch || !slices.Equal(a.Brokers, []string{good.URL.Host}) {
				t.Errorf("alert %+v, want that of the broker that answers", a)
			}
			// Where no broker has anything to say, that is not known either.
			r = readMetrics(t, MetricsOptions{Endpoints: []MetricsEndpoint{bad}})
			if a := r.Alerts[0]; a.State != AlertUnknown || !strings.Contains(a.Reason, c.want) {
				t.Errorf("alert %+v, want it unknown because %q", a, c.want)
			}
		})
	}
	refused := serveMetrics(t, EndpointPrometheus, nil)
	refused.URL.Host = "127.0.0.1:1"
	r := readMetrics(t, MetricsOptions{Endpoints: []MetricsEndpoint{refused}})
	if !r.Incomplete() || !strings.Contains(*r.Endpoints[0].Error, "connection refused") || len(r.Endpoints[0].Brokers) != 0 {
		t.Errorf("endpoint %+v, want it refused", r.Endpoints[0])
	}
	for _, row := range r.Rows {
		if row.Value != nil {
			t.Errorf("row of a silent broker: %+v", row)
		}
	}
}

func errorText(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

// cutOff promises more than it sends.
func cutOff(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, body)
	}
}

func TestLongAnswer(t *testing.T) {
	e := serveMetrics(t, EndpointPrometheus, answerWith(textFormat, strings.Repeat("a 1\n", 1<<20)))
	s := &metricsReader{client: http.DefaultClient, index: newMetricIndex(Metrics()), limit: 2 << 20, timeout: time.Minute}
	if a := s.ask(t.Context(), e, "host:1"); a.err == nil || a.err.Error() != "the answer is longer than 2 MiB" {
		t.Errorf("4 MiB where 2 are allowed: %v", a.err)
	}
	s.limit = 4 << 20
	if a := s.ask(t.Context(), e, "host:1"); a.err != nil {
		t.Errorf("4 MiB where 4 are allowed: %v", a.err)
	}
}

// The user of a URL is sent, and not shown.
func TestBasicAuthentication(t *testing.T) {
	e := serveMetrics(t, EndpointPrometheus, func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != "reader" || p != "secret" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		answerWith(textFormat, pendingPage)(w, r)
	})
	e.URL.User = url.UserPassword("reader", "secret")
	r := readMetrics(t, MetricsOptions{Endpoints: []MetricsEndpoint{e}})
	if r.Incomplete() || strings.Contains(r.Endpoints[0].Endpoint, "secret") || *rowsOfMetric(r, "TxnPendingRecordsCount", "Value")[0].Value != 3 {
		t.Errorf("endpoint %+v", r.Endpoints[0])
	}
}

// jolokia answers each read of a bulk request.
func serveJolokia(answer func(jolokiaRead) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/jolokia/" {
			http.NotFound(w, r)
			return
		}
		var reads []jolokiaRead
		if err := json.NewDecoder(r.Body).Decode(&reads); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var b bytes.Buffer
		for i, read := range reads {
			b.WriteString(map[bool]string{true: "[", false: ","}[i == 0] + answer(read))
		}
		b.WriteString("]")
		_, _ = w.Write(b.Bytes())
	}
}

// A Jolokia agent and an exporter of the same broker say the same.
func TestJolokia(t *testing.T) {
	beans := map[string]string{
		"kafka.server:type=ShareGroupMetrics,name=TxnPendingRecordsCount,*":                 `{"kafka.server:name=TxnPendingRecordsCount,type=ShareGroupMetrics":{"Value":3}}`,
		"kafka.server:type=ShareGroupMetrics,name=TxnPendingLockExpiredCount,*":             `{"kafka.server:name=TxnPendingLockExpiredCount,type=ShareGroupMetrics":{"Count":2}}`,
		"kafka.server:type=ShareGroupMetrics,name=TxnShareAcknowledgeRequestLatencyMs,*":    `{"kafka.server:name=TxnShareAcknowledgeRequestLatencyMs,type=ShareGroupMetrics":{"99thPercentile":12.5,"Count":7}}`,
		"kafka.server:type=ShareGroupMetrics,name=RecordAcknowledgementsPerSec,*":           `{"kafka.server:ackType=Accept,name=RecordAcknowledgementsPerSec,type=ShareGroupMetrics":{"Count":50},"kafka.server:ackType=Release,name=RecordAcknowledgementsPerSec,type=ShareGroupMetrics":{"Count":1}}`,
		"kafka.server:type=SharePartitionMetrics,name=InFlightMessageCount,*":               `{"kafka.server:group=\"a,b\",name=InFlightMessageCount,partition=0,topic=t,type=SharePartitionMetrics":{"Value":4},"kafka.server:group=g,name=InFlightMessageCount,partition=1,topic=t,type=SharePartitionMetrics":{"Value":5}}`,
		"kafka.server:type=BrokerTopicMetrics,name=TotalShareFetchRequestsPerSec,*":         `{"kafka.server:name=TotalShareFetchRequestsPerSec,type=BrokerTopicMetrics":{"Count":8},"kafka.server:name=TotalShareFetchRequestsPerSec,topic=t,type=BrokerTopicMetrics":{"Count":8}}`,
		"kafka.network:type=RequestMetrics,name=ErrorsPerSec,request=TxnShareAcknowledge,*": `{"kafka.network:error=NONE,name=ErrorsPerSec,request=TxnShareAcknowledge,type=RequestMetrics":{"Count":7},"kafka.network:error=NONE,name=ErrorsPerSec,request=Fetch,type=RequestMetrics":{"Count":70}}`,
		"kafka.server:type=share-coordinator-metrics,*":                                     `{"kafka.server:type=share-coordinator-metrics":{"write-rate":0.5,"write-latency-avg":"NaN","write-latency-max":null},"kafka.server:state=active,type=share-coordinator-metrics":{"num-partitions":3}}`,
	}
	e := serveMetrics(t, EndpointJolokia, serveJolokia(func(r jolokiaRead) string {
		if v, ok := beans[r.MBean]; ok && r.Type == "read" && len(r.Attribute) > 0 {
			return `{"status":200,"timestamp":1,"value":` + v + `}`
		}
		return `{"status":404,"error_type":"javax.management.InstanceNotFoundException","error":"no"}`
	}))
	s := &metricsReader{client: http.DefaultClient, index: newMetricIndex(Metrics()), limit: maxPageBytes, timeout: time.Minute}
	a := s.ask(t.Context(), e, "host:1")
	if a.err != nil {
		t.Fatal(a.err)
	}
	want := map[string]float64{
		"TxnPendingRecordsCount": 3, "TxnPendingLockExpiredCount/Count": 2,
		"TxnShareAcknowledgeRequestLatencyMs/Count": 7, "TxnShareAcknowledgeRequestLatencyMs/99thPercentile": 12.5,
		"RecordAcknowledgementsPerSec/Count Accept": 50, "RecordAcknowledgementsPerSec/Count Release": 1,
		"InFlightMessageCount": 9, "TotalShareFetchRequestsPerSec/Count": 8, "ErrorsPerSec/Count NONE": 7,
		"share-coordinator-metrics/write-rate": 0.5, "share-coordinator-metrics/num-partitions active": 3,
	}
	if got := readings(s.index, a); !reflect.DeepEqual(got, want) {
		t.Errorf("read %v\nwant %v", got, want)
	}
}

// roundTrip is a network that answers at once, or never.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func textAnswer(body string) *http.Response {
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{"Content-Type": {textFormat}},
		Body: io.NopCloser(strings.NewReader(body)),
	}
}

// One endpoint hangs: the others are read, and it costs five seconds.
func TestEndpointTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "hangs" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return textAnswer(pendingPage), nil
		})}
		var endpoints []MetricsEndpoint
		for _, host := range append(slices.Repeat([]string{"hangs"}, 20), "b1") {
			e, err := NewMetricsEndpoint(EndpointPrometheus, host)
			if err != nil {
				t.Fatal(err)
			}
			endpoints = append(endpoints, e)
		}
		start := time.Now()
		r, err := ReadMetrics(t.Context(), MetricsOptions{Endpoints: endpoints, Client: client, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 2*EndpointTimeout { // 16 at the same time
			t.Errorf("it took %v, want %v", d, 2*EndpointTimeout)
		}
		if got := errorText(r.Endpoints[0].Error); got != "no answer within 5s" {
			t.Errorf("error %q", got)
		}
		if r.Endpoints[20].Error != nil || *rowsOfMetric(r, "TxnPendingRecordsCount", "Value")[20].Value != 3 {
			t.Errorf("the one that answers: %+v", r.Endpoints[20])
		}

		// Who is told to stop says why.
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		for _, o := range []MetricsOptions{
			{Endpoints: endpoints[:1], Client: client, Now: time.Now},
			{Endpoints: endpoints[20:], Client: client, Now: time.Now, For: time.Hour},
			{Endpoints: endpoints[:1], Client: client, Now: time.Now, Timeout: time.Hour},
		} {
			if r, err := ReadMetrics(ctx, o); r != nil || !errors.Is(err, stop) {
				t.Errorf("stopped: %v, %v", r, err)
			}
		}
	})
}

// Five looks, spread over the time that was asked for; counters tell how much they
// rose.
func TestLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		client := &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			at = append(at, time.Since(start))
			n := len(at)
			count := 100 + 10*n
			if n >= 4 {
				count = n // the broker was restarted
			}
			return textAnswer(fmt.Sprintf(`kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} %d
kafka_server_ShareGroupMetrics_Count{name="TxnShareAcknowledgeRequestLatencyMs"} %d
`, n, count)), nil
		})}
		e, err := NewMetricsEndpoint(EndpointPrometheus, "b1:9404")
		if err != nil {
			t.Fatal(err)
		}
		r, err := ReadMetrics(t.Context(), MetricsOptions{Endpoints: []MetricsEndpoint{e}, Client: client, Now: time.Now, For: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if want := []time.Duration{0, 15 * time.Second, 30 * time.Second, 45 * time.Second, time.Minute}; !slices.Equal(at, want) {
			t.Errorf("looked at %v, want %v", at, want)
		}
		if r.Looks != 5 || r.WindowMS != 60_000 || !r.Time.Equal(start.Add(time.Minute)) {
			t.Errorf("report %+v", r)
		}
		pending := rowsOfMetric(r, "TxnPendingRecordsCount", "Value")[0]
		if *pending.Value != 5 || pending.Change != nil {
			t.Errorf("pending %v, change %v, want that of the last look, and no change of a gauge", *pending.Value, pending.Change)
		}
		// 110, 120, 130, then 4 and 5 of a new life.
		if stages := rowsOfMetric(r, "TxnShareAcknowledgeRequestLatencyMs", "Count")[0]; *stages.Value != 5 || stages.Change == nil || *stages.Change != 25 {
			t.Errorf("stages %+v", stages)
		}
		if r.Alerts[0].State != AlertFiring || r.Alerts[0].Reason != "broker b1:9404: 5 records in TX_PENDING, all the time for 1m0s" {
			t.Errorf("alert %+v", r.Alerts[0])
		}
	})
}

// Rows come by metric, then by endpoint and broker, and brokers by number.
func TestOrderOfRows(t *testing.T) {
	var page strings.Builder
	for _, b := range []string{"10", "2", "b"} {
		fmt.Fprintf(&page, "kafka_server_ShareGroupMetrics_Value{broker=%q,name=\"TxnPendingRecordsCount\"} 1\n", b)
	}
	r := readMetrics(t, MetricsOptions{Endpoints: []MetricsEndpoint{
		serveMetrics(t, EndpointPrometheus, answerWith(textFormat, page.String())),
		serveMetrics(t, EndpointPrometheus, answerWith(textFormat, pendingPage)),
	}})
	if want := []string{"2", "10", "b"}; !slices.Equal(r.Endpoints[0].Brokers, want) {
		t.Errorf("brokers %q, want %q", r.Endpoints[0].Brokers, want)
	}
	if len(r.Rows) != 4*len(Metrics()) {
		t.Fatalf("%d rows for %d metrics of 4 brokers", len(r.Rows), len(Metrics()))
	}
	for i, row := range r.Rows {
		if row.metric != i/4 {
			t.Fatalf("row %d is %+v", i, row)
		}
	}
	if r.Rows[3].Endpoint != r.Endpoints[1].Endpoint || r.Endpoints[0].Series != 3 {
		t.Errorf("rows %+v of endpoints %+v", r.Rows[:4], r.Endpoints)
	}
}
