package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
)

func TestInspectMetricsParsing(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"--endpoint b1:9404", "[prometheus http://b1:9404/metrics] 0s [] false"},
		{
			"--endpoint b1:9404 --endpoint https://b2/m --jolokia b3:8778 --for 60s --check --alert KafkaShareLateTransactions",
			"[prometheus http://b1:9404/metrics prometheus https://b2/m jolokia http://b3:8778/jolokia/] 1m0s [KafkaShareLateTransactions] true",
		},
	} {
		got, err := parseFeature(t, newInspectMetricsCmd, c.args)
		var endpoints []string
		for _, e := range got.Endpoints {
			endpoints = append(endpoints, fmt.Sprintf("%s %s", e.Kind, e))
		}
		if s := fmt.Sprint(endpoints, got.For, got.Alerts, got.Check); err != nil || s != strings.Replace(c.want, "] ", "] ", 1) {
			t.Errorf("inspect metrics %s = %s, %v, want %s", c.args, s, err, c.want)
		}
	}
}

func TestInspectMetricsUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                    "no endpoint to read metrics from",
		"--endpoint ftp://b1": "--endpoint number 1: want a URL with http or https",
		"--endpoint b1:1 --jolokia http://u:secret@b:x": "--jolokia number 1: want a URL or HOST:PORT",
		"--endpoint b1:1 --endpoint http://b1:1/":       "--endpoint http://b1:1/metrics: given twice",
		"--endpoint b1:1 --for -1s":                     "--for -1s: want a positive duration",
		"--endpoint b1:1 --for 0s":                      "--for 0s: want a positive duration",
		"--endpoint b1:1 --endpoint-timeout 0s":         "--endpoint-timeout 0s: want a positive duration",
		"--endpoint b1:1 --alert x":                     `--alert "x": want one of KafkaShareTxnPendingRecords, `,
	} {
		_, err := parseFeature(t, newInspectMetricsCmd, args)
		if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("inspect metrics %s: error %v (%d), want a usage error with %q", args, err, code, want)
		}
	}
}

// metricPages is a network of endpoints, by host; one that has no page refuses.
type metricPages map[string]string

func (p metricPages) RoundTrip(r *http.Request) (*http.Response, error) {
	page, ok := p[r.URL.Host]
	if !ok {
		return nil, errors.New("connection refused")
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(page)),
	}, nil
}

// metricsReport reads pages, five times if long.
func metricsReport(t *testing.T, pages metricPages, long bool, hosts ...string) *inspect.MetricsReport {
	t.Helper()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	o := inspect.MetricsOptions{Client: &http.Client{Transport: pages}, Now: func() time.Time { return now }}
	if long {
		o.For = time.Minute
		looks := 0
		// Each look and each wait asks once; the wait is then over.
		o.Now = func() time.Time {
			looks++
			return now.Add(time.Duration(looks/2) * 15 * time.Second)
		}
	}
	for _, h := range hosts {
		e, err := inspect.NewMetricsEndpoint(inspect.EndpointPrometheus, h)
		if err != nil {
			t.Fatal(err)
		}
		o.Endpoints = append(o.Endpoints, e)
	}
	rep, err := inspect.ReadMetrics(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

const (
	stockPage = `kafka_server_ReplicaManager_Value{name="PartitionsWithLateTransactionsCount"} 0.0
kafka_server_ShareGroupMetrics_Count{ackType="Accept",name="RecordAcknowledgementsPerSec"} 1234567.0
kafka_server_ShareGroupMetrics_Count{ackType="Release",name="RecordAcknowledgementsPerSec"} 12.0
kafka_server_ShareGroupMetrics_99thPercentile{name="PartitionLoadTimeMs"} 19.25
kafka_server_ShareSessionCache_Value{name="ShareSessionsCount"} 0.0
kafka_server_share_coordinator_metrics_write_rate 0.025847140013957454
kafka_server_share_coordinator_metrics_write_latency_avg NaN
kafka_server_group_coordinator_metrics_group_count{protocol="share"} 1.0
`
	kipPage = stockPage + `kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} 3.0
kafka_server_ShareGroupMetrics_Count{name="TxnPendingLockExpiredCount"} 1.0
kafka_server_ShareGroupMetrics_Count{name="TxnShareAcknowledgeRequestLatencyMs"} 42.0
kafka_server_ShareGroupMetrics_99thPercentile{name="TxnShareAcknowledgeRequestLatencyMs"} 1200.5
kafka_network_RequestMetrics_Count{error="NONE",name="ErrorsPerSec",request="TxnShareAcknowledge"} 84.0
kafka_network_RequestMetrics_Count{error="INVALID_TXN_STATE",name="ErrorsPerSec",request="TxnShareAcknowledge"} 2.0
`
)

// Every view in every format, against files that are read as a user would.
func TestInspectMetricsGolden(t *testing.T) {
	pages := metricPages{"b1:9404": kipPage, "b2:9404": strings.Replace(kipPage, "TxnPendingRecordsCount\"} 3.0", "TxnPendingRecordsCount\"} 0.0", 1), "stock:9404": stockPage}
	for name, rep := range map[string]*inspect.MetricsReport{
		"":        metricsReport(t, pages, false, "b1:9404", "b2:9404"),
		"_for":    metricsReport(t, pages, true, "b1:9404", "b2:9404"),
		"_stock":  metricsReport(t, pages, false, "stock:9404"),
		"_silent": metricsReport(t, pages, false, "b1:9404", "silent:9404"),
	} {
		t.Run("metrics"+name, func(t *testing.T) {
			var b strings.Builder
			v := inspectMetricsView(rep)
			for _, f := range output.Formats() {
				b.WriteString("-- " + string(f) + " --\n")
				if err := output.Write(&b, v, output.Options{Format: f}); err != nil {
					t.Fatal(err)
				}
			}
			golden(t, filepath.Join("testdata", "inspect_metrics"+name+".golden"), b.String())
		})
	}
}

// A broker without the metric is in the lines of those that have it: it has no line
// of its own, and the sum is at least what is known.
func TestInspectMetricsSilentBroker(t *testing.T) {
	pages := metricPages{"b1:9404": kipPage, "stock:9404": stockPage}
	var b strings.Builder
	if err := output.Write(&b, inspectMetricsView(metricsReport(t, pages, false, "b1:9404", "stock:9404")), output.Options{}); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, "ErrorsPerSec") {
			lines = append(lines, strings.Join(strings.Fields(line)[:4], " "))
		}
	}
	want := []string{
		"ErrorsPerSec/Count{error=INVALID_TXN_STATE,request=TxnShareAcknowledge} >=2 errors b1:9404=2,stock:9404=?",
		"ErrorsPerSec/Count{error=NONE,request=TxnShareAcknowledge} >=84 errors b1:9404=84,stock:9404=?",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("the lines are\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// What fires, what is not decided and what is silent ends as a script expects.
func TestInspectMetricsExit(t *testing.T) {
	pages := metricPages{"b1:9404": kipPage, "stock:9404": stockPage}
	quiet := strings.NewReplacer("\"} 3.0", "\"} 0.0", "\"} 1.0", "\"} 0.0", "1200.5", "7").Replace(kipPage)
	pages["quiet:9404"] = strings.ReplaceAll(quiet, "INVALID_TXN_STATE", "NONE_OF_IT")
	pages["quiet:9404"] = regexp.MustCompile(`(?m)^.*NONE_OF_IT.*\n`).ReplaceAllString(pages["quiet:9404"], "")
	for _, c := range []struct {
		name   string
		hosts  []string
		args   string
		code   int
		stderr []string
	}{
		{"nothing fires", []string{"quiet:9404"}, "--check", exitDone, nil},
		{"something fires", []string{"quiet:9404", "b1:9404"}, "--check", exitRefused, []string{
			"kshare: error: alerts fire: KafkaShareTxnPendingLockExpired (critical): broker b1:9404: 1 record since the broker started\n",
			"kshare: hint: kshare inspect pending names the transactions that take so long\n",
		}},
		{"something fires, not asked", []string{"b1:9404"}, "", exitDone, []string{
			"kshare: hint: KafkaShareTxnPendingLockExpired: kshare inspect pending names",
			"kshare: hint: --for 60s looks longer, which tells what lasts\n",
		}},
		{"not decided", []string{"stock:9404"}, "--check", exitRefused, []string{
			"kshare: error: alerts are not decided: KafkaShareTxnPendingRecords, KafkaShareTxnPendingStuck: unknown: broker stock:9404: no TxnPendingRecordsCount (KIP-1289); ",
		}},
		{"silent", []string{"quiet:9404", "silent:9404"}, "", exitPartial, []string{
			"kshare: warning: endpoint http://silent:9404/metrics: connection refused\n",
			"kshare: error: the result is incomplete\n",
		}},
		{"silent, checked", []string{"quiet:9404", "silent:9404"}, "--check", exitRefused, []string{"unknown: broker silent:9404: connection refused\n"}},
		{"hints are in the document", []string{"b1:9404"}, "-o json", exitDone, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			d := &Deps{Out: &out, ErrOut: &errOut, Getenv: func(string) string { return "" }, Now: time.Now, flags: &globalFlags{}}
			cmd := newInspectMetricsCmd(d, func(_ context.Context, _ *Deps, o inspectMetricsOptions) (*inspect.MetricsReport, error) {
				return metricsReport(t, pages, false, c.hosts...), nil
			})
			d.flags.addTo(cmd.PersistentFlags())
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(slices.Concat([]string{"--endpoint", "x"}, splitWords(c.args)))
			if code := d.report(cmd.ExecuteContext(t.Context())); code != c.code {
				t.Errorf("ended with %d, want %d\n%s%s", code, c.code, out.String(), errOut.String())
			}
			if out.Len() == 0 {
				t.Error("the metrics are not shown")
			}
			for _, want := range c.stderr {
				if !strings.Contains(errOut.String(), want) {
					t.Errorf("stderr\n%s\nlacks %q", errOut.String(), want)
				}
			}
			if c.stderr == nil && errOut.Len() > 0 {
				t.Errorf("stderr\n%s", errOut.String())
			}
		})
	}
}
