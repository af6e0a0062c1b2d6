package commands_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// What is scraped while ctp runs never goes back, and is in the end what the result
// says.
func TestCtpMetrics(t *testing.T) {
	t.Parallel()
	const records = 600
	var lines strings.Builder
	for i := range records {
		if i%50 == 7 {
			lines.WriteString("{\n") // no JSON
			continue
		}
		fmt.Fprintf(&lines, "{\"i\":%d}\n", i)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	stderr, w := io.Pipe()
	done := make(chan cmdtest.Result, 1)
	go func() {
		done <- cmdtest.RunContext(t, ctx, cmdtest.Setup{Stdin: strings.NewReader(lines.String()), Change: func(d *commands.Deps) {
			d.ErrOut, d.StartSandbox = w, commands.System().StartSandbox
		}}, "ctp", "--sandbox", "--load", "in=-", "--topic", "dead:1", "--from", "in", "--to", "out", "--dlq", "dead", "--jq", ".",
			"--batch-records", "20", "--abort-every", "4", "--metrics-addr", "0", "-o", "json")
		_ = w.Close()
	}()
	url := announced(t, stderr)
	if body := get(t, strings.TrimSuffix(url, "/metrics")+"/healthz"); body != "ok\n" {
		t.Errorf("/healthz says %q", body)
	}
	var page string
	var last map[string]float64
	for last["kshare_ctp_records_consumed_total"] < records || last["kshare_ctp_lag_records"] > 0 {
		page = get(t, url)
		now := samples(parsed(t, page))
		for name, v := range last {
			if strings.Contains(name, "_total") && now[name] < v {
				t.Fatalf("%s has gone back from %g to %g", name, v, now[name])
			}
		}
		last = now
	}
	stop(&commands.SignalError{Signal: os.Interrupt})
	res := (<-done).Want(t, 130)
	var doc struct {
		Data map[string]any `json:"data"`
	}
	if err := json.Unmarshal([]byte(res.Stdout), &doc); err != nil {
		t.Fatalf("%q: %v", res.Stdout, err)
	}
	txns := doc.Data["transactions"].(map[string]any)
	for name, want := range map[string]any{
		"kshare_ctp_records_consumed_total":                doc.Data["consumed"],
		"kshare_ctp_records_produced_total":                doc.Data["produced"],
		"kshare_ctp_records_acknowledged_total":            doc.Data["acknowledged"],
		"kshare_ctp_records_rejected_total":                doc.Data["rejected"],
		"kshare_ctp_dead_letters_total":                    doc.Data["dead_letters"],
		"kshare_ctp_records_released_total":                doc.Data["released"],
		"kshare_ctp_records_unconfirmed_total":             doc.Data["unconfirmed"],
		"kshare_ctp_locks_expired_total":                   doc.Data["lock_expired"],
		"kshare_ctp_records_gone_total":                    doc.Data["gone"],
		"kshare_ctp_exec_restarts_total":                   doc.Data["exec_restarts"],
		`kshare_ctp_transactions_total{outcome=committed}`: txns["committed"],
		`kshare_ctp_transactions_total{outcome=aborted}`:   txns["aborted"],
		`kshare_ctp_transactions_total{outcome=unknown}`:   txns["unknown"],
		"kshare_ctp_lag_records":                           0.0,
	} {
		if got, ok := last[name]; !ok || any(got) != want {
			t.Errorf("%s is %v (%v), the result says %v", name, got, ok, want)
		}
	}
	staged := last["kafka_producer_share_ack_txn_send_total"]
	if ends := txns["committed"].(float64) + txns["aborted"].(float64); staged < ends || txns["aborted"].(float64) == 0 || last["kafka_consumer_share_group_metadata_fetch_total"] < ends {
		t.Errorf("%g stages, %g looks at the group, for %g transactions, %v of them aborted", staged, last["kafka_consumer_share_group_metadata_fetch_total"], ends, txns["aborted"])
	}
	if problems, err := promlint.New(strings.NewReader(page)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("Prometheus' own linter: %v, %v", problems, err)
	}
	checkClientFamilies(t, parsed(t, page))
}

// announced returns the address that ctp says its metrics are at, and reads on.
func announced(t *testing.T, stderr io.Reader) string {
	t.Helper()
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		var note struct {
			Kind    string `json:"kind"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal(lines.Bytes(), &note); err != nil {
			t.Fatalf("%q on stderr: %v", lines.Text(), err)
		}
		if url := regexp.MustCompile(`http://\S+/metrics`).FindString(note.Message); url != "" && note.Kind == "notice" {
			go func() { _, _ = io.Copy(io.Discard, stderr) }() // what is left in the scanner matters to nobody
			return url
		}
	}
	t.Fatalf("no address of metrics on stderr: %v", lines.Err())
	return ""
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}

// parsed reads a page as Prometheus does.
func parsed(t *testing.T, page string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatalf("%v in\n%s", err, page)
	}
	return families
}

// samples names each value by its metric and labels.
func samples(families map[string]*dto.MetricFamily) map[string]float64 {
	out := make(map[string]float64)
	for name, f := range families {
		for _, m := range f.Metric {
			key := name
			for _, l := range m.Label {
				key += "{" + l.GetName() + "=" + l.GetValue() + "}"
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}

// checkClientFamilies fails unless what Kafka's own clients count is called, and
// said to be, the same as in package metrics.
func checkClientFamilies(t *testing.T, got map[string]*dto.MetricFamily) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if _, err := metrics.New(reg); err != nil {
		t.Fatal(err)
	}
	want, err := reg.Gather()
	if err != nil || len(want) == 0 {
		t.Fatal(want, err)
	}
	for _, w := range want {
		g := got[w.GetName()]
		if g.GetHelp() != w.GetHelp() || g.GetType() != w.GetType() || fmt.Sprint(labels(g)) != fmt.Sprint(labels(w)) {
			t.Errorf("%s is %s %v %q, want %s %v %q", w.GetName(), g.GetType(), labels(g), g.GetHelp(), w.GetType(), labels(w), w.GetHelp())
		}
	}
}

func labels(f *dto.MetricFamily) []string {
	var out []string
	for _, m := range f.GetMetric() {
		for _, l := range m.Label {
			out = append(out, l.GetName()+"="+l.GetValue())
		}
	}
	return out
}

// An address that is taken is told before anything is connected to.
func TestCtpMetricsAddressTaken(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr := l.Addr().String()
	res := cmdtest.Run(t, cmdtest.Setup{}, "ctp", "-b", "127.0.0.1:1", "--from", "a", "--to", "b", "--metrics-addr", addr).Want(t, 1)
	if want := "error: --metrics-addr " + addr + ": "; !strings.Contains(res.Stderr, want) || !strings.Contains(res.Stderr, "hint: give another address") {
		t.Errorf("stderr is %q, want %q and a hint", res.Stderr, want)
	}
	// Who serves to others is told so.
	res = cmdtest.Run(t, cmdtest.Setup{}, "ctp", "-b", "127.0.0.1:1", "--from", "a", "--to", "b", "--metrics-addr", ":0").Want(t, 7)
	if !strings.Contains(res.Stderr, "warning: metrics are served to everybody") {
		t.Errorf("stderr is %q, want a warning", res.Stderr)
	}
}
