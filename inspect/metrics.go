package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"golang.org/x/sync/errgroup"
)

// EndpointKind is what an endpoint of metrics speaks.
type EndpointKind string

// The kinds of endpoints.
const (
	// EndpointPrometheus serves the text format of Prometheus: the JMX exporter of
	// a broker, a sandbox, or the federation of a Prometheus server.
	EndpointPrometheus EndpointKind = "prometheus"
	// EndpointJolokia is a Jolokia agent in a broker, which reads MBeans over HTTP.
	EndpointJolokia EndpointKind = "jolokia"
)

// MetricsEndpoint is where metrics of brokers are read.
type MetricsEndpoint struct {
	Kind EndpointKind
	URL  *url.URL // http or https; a user in it is sent as basic authentication
}

// NewMetricsEndpoint reads a URL, or HOST:PORT, which stands for http and the
// usual path of that kind: /metrics or /jolokia/. It fails for all else.
func NewMetricsEndpoint(kind EndpointKind, s string) (MetricsEndpoint, error) {
	text := s
	if !strings.Contains(s, "://") {
		text = "http://" + s
	}
	u, err := url.Parse(text)
	if err != nil {
		// The error has the text in it, and that may have a password.
		return MetricsEndpoint{}, errors.New("want a URL or HOST:PORT")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return MetricsEndpoint{}, errors.New("want a URL with http or https and a host, or HOST:PORT")
	}
	u.Fragment = ""
	switch {
	case u.Path != "" && u.Path != "/":
	case kind == EndpointJolokia:
		u.Path = "/jolokia/"
	default:
		u.Path = "/metrics"
	}
	return MetricsEndpoint{Kind: kind, URL: u}, nil
}

// String returns the URL without a password.
func (e MetricsEndpoint) String() string { return e.URL.Redacted() }

// EndpointTimeout is how long an endpoint may take to answer unless
// [MetricsOptions] says otherwise.
const EndpointTimeout = 5 * time.Second

// maxEndpoints bounds how many endpoints are asked at the same time.
const maxEndpoints = 16

// metricsLooks is how often brokers are looked at within [MetricsOptions.For].
const metricsLooks = 5

// MetricsOptions says what [ReadMetrics] reads.
type MetricsOptions struct {
	// Endpoints are asked all at once, up to 16. Give each broker once: what two
	// endpoints say of one broker is added up.
	Endpoints []MetricsEndpoint
	// For is how long to look: five times from now on. 0 is once, which does not
	// tell what lasts or rises.
	For     time.Duration
	Timeout time.Duration // of an endpoint; 0 is [EndpointTimeout]
	// Alerts are the names of those to judge; empty takes all.
	Alerts []string
	Client *http.Client     // nil is one of its own
	Now    func() time.Time // required
}

// MetricsReport is what brokers say of themselves, and which alerts fire.
type MetricsReport struct {
	Time      time.Time        `json:"-"`         // of the last look
	Rows      []MetricRow      `json:"-"`         // in the order of [Metrics], then by endpoint and broker
	Looks     int              `json:"looks"`     // how often the endpoints were asked
	WindowMS  int64            `json:"window_ms"` // between the first look and the last
	Endpoints []EndpointReport `json:"endpoints"` // in the order given
	Alerts    []MetricAlert    `json:"alerts"`    // in the order of [MetricAlerts]
}

// Unanswered returns an error where no endpoint has answered, so that nothing is
// known: that of each of them. nil: one has.
func (r *MetricsReport) Unanswered() error {
	var errs []error
	for _, e := range r.Endpoints {
		if e.silent == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", e.Endpoint, e.silent))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("no endpoint answered: %w", cluster.Join(errs...))
}

// Incomplete reports whether an endpoint did not answer.
func (r *MetricsReport) Incomplete() bool {
	return slices.ContainsFunc(r.Endpoints, func(e EndpointReport) bool { return e.Error != nil })
}

// EndpointReport says how an endpoint answered the last time.
type EndpointReport struct {
	Endpoint string       `json:"endpoint"` // its URL, without a password
	Kind     EndpointKind `json:"kind"`
	Brokers  []string     `json:"brokers"` // that it speaks for, sorted; see MetricRow.Broker
	Series   int          `json:"series"`  // that are of [Metrics]
	Error    *string      `json:"error"`   // nil: it answered each time

	silent error // why it did not answer at the last look; nil: it answered at some
}

// MetricRow is one metric of one broker.
type MetricRow struct {
	Metric    string            `json:"metric"`    // of the MBean: TxnPendingRecordsCount; its type where it has no name
	Attribute string            `json:"attribute"` // of the MBean, such as Count; of one without a name that of Kafka's metric
	MBean     string            `json:"mbean"`     // object name, without what varies
	Labels    map[string]string `json:"labels"`    // that all of its series have, such as ackType
	// Broker is the label "broker" or "instance" of the series, or else host and
	// port of the endpoint, with its path where another one has the same.
	Broker   string `json:"broker"`
	Endpoint string `json:"endpoint"` // where it was read, without a password
	// Value is nil where the broker does not say, which is not 0: it does not have
	// the metric, its exporter leaves it out, or nothing of the kind happened yet.
	Value *float64 `json:"value"`
	// Change is how much a counter rose between the looks; nil where that is not
	// known, and for what is no counter.
	Change      *float64 `json:"change"`
	Unit        string   `json:"unit"`        // such as records or ms
	Aggregation string   `json:"aggregation"` // of the series: sum or max
	Series      int      `json:"series"`      // time series that it is made of
	Proposed    bool     `json:"kip_1289"`    // of KIP-1289, which no released Kafka has
	Meaning     string   `json:"meaning"`     // a sentence without a full stop

	metric int // of the index
}

// ReadMetrics asks every endpoint, looks at [Metrics], and judges alerts. An
// endpoint that does not answer in time makes the report incomplete; that is no
// error. It returns one when ctx ends, and then nothing else.
func ReadMetrics(ctx context.Context, o MetricsOptions) (*MetricsReport, error) {
	s := &metricsReader{client: o.Client, index: newMetricIndex(Metrics()), limit: maxPageBytes, timeout: cmp.Or(o.Timeout, EndpointTimeout)}
	names := brokerNames(o.Endpoints)
	if s.client == nil {
		s.client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
		defer s.client.CloseIdleConnections()
	}
	looks := 1
	if o.For > 0 {
		looks = metricsLooks
	}
	var history []metricsLook
	for i := range looks {
		if i > 0 {
			next := history[0].time.Add(o.For * time.Duration(i) / time.Duration(looks-1))
			if err := waitUntil(ctx, o.Now, next); err != nil {
				return nil, err
			}
		}
		look, err := s.look(ctx, o, names)
		if err != nil {
			return nil, err
		}
		history = append(history, look)
	}
	return newMetricsReport(s.index, o, names, history), nil
}

// brokerNames returns what to call the brokers whose series do not.
func brokerNames(endpoints []MetricsEndpoint) []string {
	same := make(map[string]int)
	for _, e := range endpoints {
		same[e.URL.Host]++
	}
	out := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		name := e.URL.Host
		if same[name] > 1 {
			name += e.URL.Path
		}
		out = append(out, name)
	}
	return out
}

func waitUntil(ctx context.Context, now func() time.Time, t time.Time) error {
	timer := time.NewTimer(t.Sub(now()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// metricsLook is all endpoints at one time.
type metricsLook struct {
	time    time.Time
	answers []endpointAnswer // by endpoint
}

// endpointAnswer is what an endpoint said at one time.
type endpointAnswer struct {
	err    error
	series int
	values map[seriesKey]metricValue
}

// seriesKey names a row within an endpoint.
type seriesKey struct {
	metric int // of the index
	broker string
	split  string
}

// metricValue is one or more series as one.
type metricValue struct {
	value  float64
	series int
}

func (s *metricsReader) look(ctx context.Context, o MetricsOptions, names []string) (metricsLook, error) {
	l := metricsLook{time: o.Now(), answers: make([]endpointAnswer, len(o.Endpoints))}
	var g errgroup.Group
	g.SetLimit(maxEndpoints)
	for i, e := range o.Endpoints {
		g.Go(func() error {
			l.answers[i] = s.ask(ctx, e, names[i])
			return nil
		})
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		return l, context.Cause(ctx)
	}
	return l, nil
}

// metricSums adds up the series of one endpoint. The zero value is not ready: see
// newMetricSums.
type metricSums struct {
	index   *metricIndex
	unnamed string // what a broker is called that the series do not name
	series  int
	// values are by attribute and by what the endpoint calls it, so that one
	// attribute under two names is not counted twice.
	values map[seriesKey]map[[2]string]metricValue
}

func newMetricSums(index *metricIndex, unnamed string) *metricSums {
	return &metricSums{index: index, unnamed: unnamed, values: make(map[seriesKey]map[[2]string]metricValue)}
}

// add counts a series. A value that is no number says that there is nothing to
// tell, as an average of nothing.
func (s *metricSums) add(x metricSeries) {
	broker := s.unnamed
	for _, name := range []string{"broker", "instance"} {
		if b, ok := x.labels(name); ok {
			broker = b
			break
		}
	}
	counted := false
	for _, i := range x.metrics {
		m := s.index.metrics[i]
		split, ok := m.takes(x.labels)
		if !ok {
			continue
		}
		counted = true
		if math.IsNaN(x.value) || math.IsInf(x.value, 0) {
			continue
		}
		key := seriesKey{i, broker, split}
		if s.values[key] == nil {
			s.values[key] = make(map[[2]string]metricValue)
		}
		form := [2]string{x.attribute, x.exported}
		v := s.values[key][form]
		if m.Highest && v.series > 0 {
			v.value = max(v.value, x.value)
		} else {
			v.value += x.value
		}
		v.series++
		s.values[key][form] = v
	}
	if counted {
		s.series++
	}
}

// answer returns the sums: of each row the likeliest attribute, and of that the
// first name.
func (s *metricSums) answer() endpointAnswer {
	a := endpointAnswer{series: s.series, values: make(map[seriesKey]metricValue, len(s.values))}
	for key, forms := range s.values {
		var names [][2]string
		for f := range forms {
			names = append(names, f)
		}
		attributes := s.index.metrics[key.metric].attributes()
		slices.SortFunc(names, func(a, b [2]string) int {
			rank := func(f [2]string) int {
				return slices.IndexFunc(attributes, func(s string) bool { return strings.EqualFold(s, f[0]) })
			}
			if d := rank(a) - rank(b); d != 0 {
				return d
			}
			return strings.Compare(a[1], b[1])
		})
		a.values[key] = forms[names[0]]
	}
	return a
}

// newMetricsReport makes the report of what was seen, the last look last.
func newMetricsReport(index *metricIndex, o MetricsOptions, names []string, history []metricsLook) *MetricsReport {
	first, last := history[0], history[len(history)-1]
	r := &MetricsReport{
		Time: last.time, Looks: len(history), WindowMS: last.time.Sub(first.time).Milliseconds(),
		Endpoints: make([]EndpointReport, 0, len(o.Endpoints)),
	}
	brokers := make([][]string, len(o.Endpoints))
	for i, e := range o.Endpoints {
		report := EndpointReport{Endpoint: e.String(), Kind: e.Kind, Series: last.answers[i].series, Brokers: []string{}}
		seen := make(map[string]bool)
		answered := false
		for n, look := range history {
			err := look.answers[i].err
			answered = answered || err == nil
			if report.silent = err; answered {
				report.silent = nil
			}
			if err != nil {
				text := err.Error()
				if len(history) > 1 {
					text = fmt.Sprintf("look %d of %d: %s", n+1, len(history), text)
				}
				report.Error = &text
			}
			for k := range look.answers[i].values {
				seen[k.broker] = true
			}
		}
		for b := range seen {
			report.Brokers = append(report.Brokers, b)
		}
		slices.SortFunc(report.Brokers, compareNatural)
		if brokers[i] = report.Brokers; len(brokers[i]) == 0 {
			brokers[i] = []string{names[i]} // of which nothing is known
		}
		r.Endpoints = append(r.Endpoints, report)
	}
	for m := range index.metrics {
		for i, e := range o.Endpoints {
			for _, b := range brokers[i] {
				r.Rows = append(r.Rows, metricRows(index.metrics[m], m, e, i, b, history)...)
			}
		}
	}
	r.Alerts = judgeMetrics(o.Alerts, index, brokers, history)
	return r
}

// compareNatural puts "2" before "10".
func compareNatural(a, b string) int {
	if len(a) != len(b) && isNumber(a) && isNumber(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// metricRows returns the rows of a metric of one broker; one without a value if
// there is none.
func metricRows(m Metric, index int, e MetricsEndpoint, endpoint int, broker string, history []metricsLook) []MetricRow {
	name := m.Name
	if name == "" {
		name = m.Type
	}
	row := MetricRow{
		Metric: name, Attribute: m.Attribute, MBean: m.MBean(), Labels: m.labels(""),
		Broker: broker, Endpoint: e.String(), Unit: m.Unit, Aggregation: "sum", Proposed: m.Proposed, Meaning: m.Meaning, metric: index,
	}
	if m.Highest {
		row.Aggregation = "max"
	}
	last := history[len(history)-1].answers[endpoint].values
	var splits []string
	for k := range last {
		if k.metric == index && k.broker == broker {
			splits = append(splits, k.split)
		}
	}
	slices.Sort(splits)
	var out []MetricRow
	for _, split := range splits {
		k := seriesKey{index, broker, split}
		r := row
		r.Labels = m.labels(split)
		v := last[k]
		r.Value, r.Series = &v.value, v.series
		if change, ok := rise(history, endpoint, k); ok && m.Counter {
			r.Change = &change
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		out = append(out, row)
	}
	return out
}

// labels returns those of a row: what its series must have, and what splits them.
func (m Metric) labels(split string) map[string]string {
	out := make(map[string]string)
	maps.Copy(out, m.Only)
	if split != "" {
		out[m.Split] = split
	}
	return out
}

// rise returns how much a counter rose from the first look to the last; false
// where it is missing in one of them, or there is one only. A counter that is
// lower than before has begun anew.
func rise(history []metricsLook, endpoint int, k seriesKey) (float64, bool) {
	total := 0.0
	for i, look := range history {
		v, ok := look.answers[endpoint].values[k]
		if !ok {
			return 0, false
		}
		if i == 0 {
			continue
		}
		before := history[i-1].answers[endpoint].values[k].value
		if v.value < before {
			before = 0
		}
		total += v.value - before
	}
	return total, len(history) > 1
}
