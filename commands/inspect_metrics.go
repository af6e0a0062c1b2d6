package commands

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// inspectMetricsOptions is everything "inspect metrics" can be told.
type inspectMetricsOptions struct {
	Endpoints []inspect.MetricsEndpoint
	Timeout   time.Duration // of an endpoint
	For       time.Duration // 0 looks once
	Alerts    []string      // empty is all
	Check     bool
}

func newInspectMetricsCmd(d *Deps, run runFunc[inspectMetricsOptions, *inspect.MetricsReport]) *cobra.Command {
	var opts inspectMetricsOptions
	var endpoints, jolokia []string
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "Show what brokers measure, what it means, and which alerts fire",
		Long: `Show the metrics of brokers that tell of share groups and their transactions:
those of KIP-1289 and the useful ones of Kafka, what each means, and which of
the alerts of examples/monitoring/alerts.yml would fire.

They are read over HTTP and not through Kafka: from the JMX exporter in a
broker (--endpoint), by the names that it has without rules or by those of its
usual rules, or from a Jolokia agent (--jolokia). Give one endpoint for each
broker. HOST:PORT stands for http://HOST:PORT/metrics, or /jolokia/; a user
and password in a URL are sent as basic authentication. 'kshare sandbox run
--control' serves the metrics of all its brokers at /metrics.

A metric that is missing is unknown ("?"), never 0: no released Kafka has
those of KIP-1289, and an exporter may leave metrics out. An endpoint that
does not answer in time makes the answer incomplete (exit status 3). Where none
does, nothing is known, and the exit status says why, such as 7.

One look does not tell what lasts. With --for it looks five times within that
duration: an alert on what lasts fires when it was so each time, and counters
tell how much they rose. Until then such an alert is in the state "watch".

With --check the exit status is 6 when an alert fires, and also when one could
not be decided; --alert checks some alone.`,
		Example: `  kshare inspect metrics --endpoint 127.0.0.1:9404
  kshare inspect metrics --endpoint b1:9404 --endpoint b2:9404 --for 60s --check
  kshare inspect metrics --jolokia http://b1:8778/jolokia/ -o json
  kshare inspect metrics --endpoint 127.0.0.1:9404 --check --alert KafkaShareLateTransactions`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opts.Endpoints, err = parseMetricsEndpoints(endpoints, jolokia); err != nil {
				return err
			}
			if err := checkMetricsOptions(opts, cmd.Flags().Changed("for")); err != nil {
				return err
			}
			rep, err := run(cmd.Context(), d, opts)
			if err == nil && opts.Check {
				err = rep.CheckAlerts()
			}
			if err == nil {
				err = rep.Unanswered()
			}
			err = d.show(inspectMetricsView(rep), err)
			if !opts.Check {
				d.hintAlerts(rep)
			}
			return err
		},
	}
	fs := cmd.Flags()
	addRepeated(fs, &endpoints, "endpoint", "`url` or host:port of metrics in the text format of Prometheus; may be repeated")
	addRepeated(fs, &jolokia, "jolokia", "`url` or host:port of a Jolokia agent; may be repeated")
	fs.DurationVar(&opts.Timeout, "endpoint-timeout", inspect.EndpointTimeout, "`duration` that an endpoint may take to answer")
	fs.DurationVar(&opts.For, "for", 0, "look five times within `duration` (default one look)")
	addRepeated(fs, &opts.Alerts, "alert", "judge this alert alone, by `name`; may be repeated")
	fs.BoolVar(&opts.Check, "check", false, "end with exit status 6 when an alert fires or is not decided")
	return exits(cmd, exitPartial, exitAuth, exitRefused)
}

func parseMetricsEndpoints(endpoints, jolokia []string) ([]inspect.MetricsEndpoint, error) {
	var out []inspect.MetricsEndpoint
	for _, kind := range []struct {
		flag   string
		kind   inspect.EndpointKind
		values []string
	}{
		{"--endpoint", inspect.EndpointPrometheus, endpoints},
		{"--jolokia", inspect.EndpointJolokia, jolokia},
	} {
		for i, s := range kind.values {
			e, err := inspect.NewMetricsEndpoint(kind.kind, s)
			if err != nil {
				// The value may have a password, and is not repeated.
				return nil, usagef("%s number %d: %v", kind.flag, i+1, err)
			}
			if slices.ContainsFunc(out, func(o inspect.MetricsEndpoint) bool { return o.URL.String() == e.URL.String() }) {
				return nil, usagef("%s %s: given twice", kind.flag, e)
			}
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil, hintf(usagef("no endpoint to read metrics from"),
			"give --endpoint HOST:PORT of the JMX exporter of each broker, or --jolokia URL; 'kshare sandbox run --control 127.0.0.1:9099' serves metrics at 127.0.0.1:9099")
	}
	return out, nil
}

func checkMetricsOptions(o inspectMetricsOptions, forSet bool) error {
	switch {
	case o.For < 0 || forSet && o.For == 0:
		return usagef("--for %s: want a positive duration", o.For)
	case o.Timeout <= 0:
		return usagef("--endpoint-timeout %s: want a positive duration", o.Timeout)
	}
	for _, a := range o.Alerts {
		if !slices.Contains(inspect.AlertNames(), a) {
			return usagef("--alert %q: want one of %s", a, strings.Join(inspect.AlertNames(), ", "))
		}
	}
	return nil
}

func runInspectMetrics(ctx context.Context, d *Deps, o inspectMetricsOptions) (*inspect.MetricsReport, error) {
	return inspect.ReadMetrics(ctx, inspect.MetricsOptions{Endpoints: o.Endpoints, Timeout: o.Timeout, For: o.For, Alerts: o.Alerts, Now: d.Now})
}

// hintAlerts says what to do about alerts that fire, and how to learn of others.
// Programs find it in the document.
func (d *Deps) hintAlerts(rep *inspect.MetricsReport) {
	if rep == nil || d.machine() {
		return
	}
	watch := false
	for _, a := range rep.Alerts {
		if a.State == inspect.AlertFiring {
			d.Hint(a.Alert + ": " + a.Advice)
		}
		watch = watch || a.State == inspect.AlertWatch
	}
	if watch {
		d.Hint("--for 60s looks longer, which tells what lasts")
	}
}

func inspectMetricsView(rep *inspect.MetricsReport) output.View {
	if rep == nil {
		return output.View{}
	}
	wide := metricRowsTable(rep)
	alerts, alertsWide := alertTables(rep)
	metrics := metricsTable(rep)
	return output.View{
		Kind: "inspect.metrics", Version: 1, Time: rep.Time.Truncate(time.Millisecond),
		Incomplete: rep.Incomplete(), Warnings: endpointWarnings(rep),
		Items: rep.Rows, Data: rep, Table: metrics, Wide: wide, WideApart: true,
		Sections: []output.Section{{Table: alerts, Wide: alertsWide}, {Table: metrics, Wide: wide}},
	}
}

func endpointWarnings(rep *inspect.MetricsReport) []string {
	var out []string
	for _, e := range rep.Endpoints {
		if e.Error != nil {
			out = append(out, fmt.Sprintf("endpoint %s: %s", e.Endpoint, *e.Error))
		}
	}
	return out
}

func alertTables(rep *inspect.MetricsReport) (table, wide *output.Table) {
	table = output.NewTable("ALERT", "SEVERITY", "STATE", "REASON")
	wide = output.NewTable("ALERT", "SEVERITY", "STATE", "BROKERS", "METRICS", "REASON", "MEANING", "ADVICE")
	for _, a := range rep.Alerts {
		table.Row(output.Key(a.Alert), a.Severity, alertCell(a), a.Reason)
		wide.Row(output.Key(a.Alert), a.Severity, alertCell(a), strings.Join(a.Brokers, ","), strings.Join(a.Metrics, ","), a.Reason, a.Meaning, a.Advice)
	}
	return table, wide
}

func alertCell(a inspect.MetricAlert) any {
	switch a.State {
	case inspect.AlertFiring:
		return output.Bad(string(a.State))
	case inspect.AlertOK:
		return output.Good(string(a.State))
	case inspect.AlertWatch, inspect.AlertUnknown:
	}
	return output.Warn(string(a.State))
}

// metricRowsTable has a line for each metric and broker.
func metricRowsTable(rep *inspect.MetricsReport) *output.Table {
	t := output.NewTable("METRIC", "ATTRIBUTE", "LABELS", "BROKER", "ENDPOINT", "VALUE", "CHANGE", "UNIT", "AGGREGATION", "SERIES", "KIP-1289", "MBEAN", "MEANING")
	for i := range rep.Rows {
		r := &rep.Rows[i]
		change := output.NA()
		if r.Change != nil {
			change = numberCell(*r.Change)
		}
		value := output.Unknown()
		if r.Value != nil {
			value = numberCell(*r.Value)
		}
		t.Row(output.Key(r.Metric), r.Attribute, labelsText(r.Labels), r.Broker, r.Endpoint, value, change, r.Unit, r.Aggregation, r.Series, yesNo(r.Proposed), r.MBean, r.Meaning)
	}
	return t
}

// numberCell shows a whole number as one, without an exponent.
func numberCell(v float64) output.Cell {
	return output.CellOf(strconv.FormatFloat(v, 'f', -1, 64))
}

func labelsText(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}

// metricsTable has a line for each metric.
func metricsTable(rep *inspect.MetricsReport) *output.Table {
	header := []string{"METRIC", "VALUE", "UNIT", "PER-BROKER", "MEANING"}
	if rep.Looks > 1 {
		header = slices.Insert(header, 2, "CHANGE")
	}
	t := output.NewTable(header...)
	for rows := range metricLines(rep.Rows) {
		first := rows[0]
		name := first.Metric
		if first.Attribute != "Value" {
			name += "/" + first.Attribute
		}
		if l := labelsText(first.Labels); l != "" {
			name += "{" + l + "}"
		}
		per := make([]string, 0, len(rows))
		for _, r := range rows {
			per = append(per, r.Broker+"="+shortNumber(r.Value))
		}
		line := []any{output.Key(name), totalCell(rows, func(r inspect.MetricRow) *float64 { return r.Value }), first.Unit, strings.Join(per, ","), first.Meaning}
		if rep.Looks > 1 {
			change := any(output.NA())
			if slices.ContainsFunc(rows, func(r inspect.MetricRow) bool { return r.Change != nil }) {
				change = totalCell(rows, func(r inspect.MetricRow) *float64 { return r.Change })
			}
			line = slices.Insert(line, 2, change)
		}
		t.Row(line...)
	}
	return t
}

// metricLines yields the rows of one metric and the same labels.
func metricLines(rows []inspect.MetricRow) func(func([]inspect.MetricRow) bool) {
	key := func(r inspect.MetricRow) [3]string { return [3]string{r.MBean, r.Attribute, labelsText(r.Labels)} }
	return func(yield func([]inspect.MetricRow) bool) {
		for start := 0; start < len(rows); {
			// Rows of one metric stand together; labels come in turn for each broker.
			end := start
			for end < len(rows) && rows[end].MBean == rows[start].MBean && rows[end].Attribute == rows[start].Attribute {
				end++
			}
			same := withSilent(rows[start:end])
			slices.SortStableFunc(same, func(a, b inspect.MetricRow) int { return strings.Compare(key(a)[2], key(b)[2]) })
			for len(same) > 0 {
				n := 1
				for n < len(same) && key(same[n]) == key(same[0]) {
					n++
				}
				if !yield(same[:n]) {
					return
				}
				same = same[n:]
			}
			start = end
		}
	}
}

// withSilent returns the rows of one metric, where a broker that does not have it
// stands in the lines of those that do: a line of its own would look like one more
// kind of what labels tell apart.
func withSilent(rows []inspect.MetricRow) []inspect.MetricRow {
	labels := make(map[string]map[string]string) // by their text, of who has the metric
	for _, r := range rows {
		if r.Value != nil {
			labels[labelsText(r.Labels)] = r.Labels
		}
	}
	if len(labels) == 0 {
		return slices.Clone(rows)
	}
	var out []inspect.MetricRow
	for _, r := range rows {
		if r.Value != nil {
			out = append(out, r)
			continue
		}
		for _, text := range slices.Sorted(maps.Keys(labels)) {
			r.Labels = labels[text]
			out = append(out, r)
		}
	}
	return out
}

// totalCell is a value of all brokers: at least so much, where one is not known.
func totalCell(rows []inspect.MetricRow, of func(inspect.MetricRow) *float64) any {
	total, known := 0.0, 0
	for _, r := range rows {
		v := of(r)
		switch {
		case v == nil:
			continue
		case r.Aggregation == "max" && known > 0:
			total = max(total, *v)
		default:
			total += *v
		}
		known++
	}
	switch {
	case known == 0:
		return output.Unknown()
	case known < len(rows):
		return output.Warn(">=" + shortNumber(&total))
	}
	return output.CellOf(shortNumber(&total))
}

// shortNumber is a number for people: whole, or with three digits.
func shortNumber(v *float64) string {
	switch {
	case v == nil:
		return "?"
	case *v == float64(int64(*v)):
		return strconv.FormatInt(int64(*v), 10)
	case math.Abs(*v) >= 100:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	default:
		return strconv.FormatFloat(*v, 'g', 3, 64)
	}
}
