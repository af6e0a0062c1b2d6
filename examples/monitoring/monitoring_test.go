package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/promtext"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.yaml.in/yaml/v3"
)

// pendingUnknown is the one alert that 'kshare inspect metrics' has no need of: a
// metric that is missing is a state there.
const pendingUnknown = "KafkaShareTxnPendingUnknown"

// rules is alerts.yml.
type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

// dashboard is what is looked at of dashboard.json.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func readYAML(t *testing.T, file string, v any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func readRules(t *testing.T) rules {
	t.Helper()
	var r rules
	readYAML(t, "alerts.yml", &r)
	if len(r.Groups) == 0 || len(r.Groups[0].Rules) == 0 {
		t.Fatal("alerts.yml has no rules")
	}
	return r
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	b, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Panels) == 0 {
		t.Fatal("dashboard.json has no panels")
	}
	return d
}

// expressions returns every expression of the rules and the dashboard, by where it
// stands.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			out["alert "+r.Alert] = r.Expr
		}
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			out["panel "+p.Title+" "+string('A'+rune(i))] = strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
		}
	}
	for _, v := range d.Templating.List {
		if inner, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			out["variable "+v.Name] = inner[:strings.LastIndex(inner, ",")]
		}
	}
	return out
}

// busySandbox is a sandbox of a dialect on which all happened that has a metric.
func busySandbox(t *testing.T, dialect string) *sandbox.Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	d, ok := wire.DialectByName(dialect)
	if !ok {
		t.Fatalf("no dialect %q", dialect)
	}
	s, err := sandbox.Start(ctx, sandbox.WithDialect(d), sandbox.WithTopics(sandbox.Topic{Name: "orders", Partitions: 3}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: s.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	p, err := cl.NewKgo(kgo.DefaultProduceTopic("orders"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 30 {
		if err := p.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := cl.SetGroupConfig(ctx, "billing", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "billing", Topics: []string{"orders"}, MaxRecords: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abandon()
	poll := func() *share.Batch {
		t.Helper()
		b, err := c.Poll(ctx, 2)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := poll()
	if err := c.Acknowledge(ctx, b, b.All(wire.Release)); err != nil {
		t.Fatal(err)
	}
	// Of two sessions with one transactional ID the first is fenced. A request of
	// each makes an error, and a staged record.
	var sessions []*txn.Session
	for range 2 {
		s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "billing-1"})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	b = poll()
	acks := txn.ShareAcknowledgements{Acknowledgements: b.All(wire.Accept), Group: c.GroupMetadata()}
	if err := sessions[0].SendShareAcknowledgements(ctx, acks); err == nil {
		t.Fatal("a fenced producer could stage")
	}
	if err := sessions[1].SendShareAcknowledgements(ctx, acks); err != nil {
		t.Fatal(err)
	}
	return s
}

// series is what the sandboxes of both dialects serve.
func series(t *testing.T) []promtext.Sample {
	t.Helper()
	var out []promtext.Sample
	for _, dialect := range []string{"kip", "draft"} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
		r.RemoteAddr, r.Host = "127.0.0.1:1", "127.0.0.1"
		w := httptest.NewRecorder()
		busySandbox(t, dialect).ControlHandler().ServeHTTP(w, r)
		err := promtext.Parse(w.Body, func([]byte) bool { return true }, func(s promtext.Sample) { out = append(out, s) })
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) == 0 {
		t.Fatal("a sandbox has no metrics")
	}
	return out
}

// matches reports whether a selector takes a series, whatever it asks of labels
// that Prometheus adds.
func matches(t *testing.T, filters []metricsql.LabelFilter, s promtext.Sample) bool {
	t.Helper()
	for _, f := range filters {
		got := ""
		switch f.Label {
		case "__name__":
			got = s.Name
		case "job", "instance":
			continue
		default:
			for _, l := range s.Labels {
				if l.Name == f.Label {
					got = l.Value
				}
			}
		}
		ok := got == f.Value
		if f.IsRegexp {
			re, err := regexp.Compile("^(?:" + f.Value + ")$")
			if err != nil {
				t.Fatal(err)
			}
			ok = re.MatchString(got)
		}
		if ok == f.IsNegative {
			return false
		}
	}
	return true
}

// Every selector of a rule and of a panel finds something on a sandbox, and groups
// by labels that are there.
func TestSelectorsFindWhatBrokersServe(t *testing.T) {
	all := series(t)
	for where, expr := range expressions(t) {
		e, err := metricsql.Parse(expr)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			continue
		}
		selectors := 0
		metricsql.VisitAll(e, func(x metricsql.Expr) {
			m, ok := x.(*metricsql.MetricExpr)
			if !ok {
				return
			}
			for _, filters := range m.LabelFilterss {
				selectors++
				if filters[0].Value == "up" {
					continue // which Prometheus makes
				}
				if !slices.ContainsFunc(all, func(s promtext.Sample) bool { return matches(t, filters, s) }) {
					t.Errorf("%s: nothing on a sandbox is %s", where, m.AppendString(nil))
				}
			}
		})
		if selectors == 0 {
			t.Errorf("%s looks at no metric: %s", where, expr)
		}
	}
	// The test can fail.
	for _, wrong := range []string{`kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecords"}`, `x`} {
		e, err := metricsql.Parse(wrong)
		if err != nil {
			t.Fatal(err)
		}
		filters := e.(*metricsql.MetricExpr).LabelFilterss[0]
		if slices.ContainsFunc(all, func(s promtext.Sample) bool { return matches(t, filters, s) }) {
			t.Errorf("%s is taken for a metric", wrong)
		}
	}
}

// 'kshare inspect metrics' knows all that a sandbox serves, and judges the alerts
// that Prometheus does.
func TestAlertsAreThoseOfInspect(t *testing.T) {
	server := httptest.NewServer(busySandbox(t, "kip").ControlHandler())
	defer server.Close()
	e, err := inspect.NewMetricsEndpoint(inspect.EndpointPrometheus, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := inspect.ReadMetrics(t.Context(), inspect.MetricsOptions{Endpoints: []inspect.MetricsEndpoint{e}, Now: time.Now})
	if err != nil || rep.Incomplete() {
		t.Fatal(rep, err)
	}
	known := make(map[string]bool)
	for _, r := range rep.Rows {
		known[r.Metric+"/"+r.Attribute] = known[r.Metric+"/"+r.Attribute] || r.Value != nil
	}
	for name, ok := range known {
		if !ok {
			t.Errorf("a sandbox on which all happened does not tell of %s", name)
		}
	}
	severities := map[string]string{pendingUnknown: "warning"}
	for _, a := range rep.Alerts {
		severities[a.Alert] = a.Severity
	}
	tests, err := os.ReadFile("alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if want, ok := severities[r.Alert]; !ok || r.Labels["severity"] != want {
				t.Errorf("alert %s has the severity %q, that of kshare inspect metrics is %q (there: %v)", r.Alert, r.Labels["severity"], want, ok)
			}
			delete(severities, r.Alert)
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s does not say what it is about", r.Alert)
			}
			if _, err := time.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("alert %s: for %q", r.Alert, r.For)
			}
			if !bytes.Contains(tests, []byte(r.Alert)) {
				t.Errorf("alert %s is not in alerts_test.yml", r.Alert)
			}
		}
	}
	for name := range severities {
		t.Errorf("alerts.yml lacks %s", name)
	}
}

// The exporter lets through what kshare, the rules and the dashboard look at.
func TestExporterLetsMetricsThrough(t *testing.T) {
	var config struct {
		Include []string `yaml:"includeObjectNames"` //nolint:tagliatelle // the exporter's
	}
	readYAML(t, "jmx-exporter.yml", &config)
	used := make(map[string]bool)
	for _, m := range inspect.Metrics() {
		found := false
		for _, pattern := range config.Include {
			ok, err := covers(pattern, m.MBean())
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				found, used[pattern] = true, true
			}
		}
		if !found {
			t.Errorf("the exporter leaves %s out", m.MBean())
		}
	}
	for _, pattern := range config.Include {
		if !used[pattern] {
			t.Errorf("nothing looks at %s", pattern)
		}
	}
}

// covers reports whether an object name with a ",*" at its end takes an MBean.
func covers(pattern, bean string) (bool, error) {
	domain, keys, ok := strings.Cut(pattern, ":")
	beanDomain, beanKeys, _ := strings.Cut(bean, ":")
	if !ok {
		return false, errors.New("no object name: " + pattern)
	}
	if domain != beanDomain {
		return false, nil
	}
	have := strings.Split(beanKeys, ",")
	for key := range strings.SplitSeq(keys, ",") {
		if key != "*" && !slices.Contains(have, key) {
			return false, nil
		}
	}
	return true, nil
}

// Panels do not overlap, and each says what it shows.
func TestDashboardLayout(t *testing.T) {
	d := readDashboard(t)
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				at := [2]int{x, y}
				if taken[at] != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q at %v", p.Title, taken[at], at)
				}
				taken[at] = p.Title
			}
		}
	}
}
