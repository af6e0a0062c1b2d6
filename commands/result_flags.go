package commands

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/internal/demo"
	"github.com/kshare/kshare/internal/doctor"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// resultFlags are the global flags that say what of a result is shown.
type resultFlags struct {
	Columns   []string
	NoHeaders bool
	OutputJQ  string
	JQ        string // the same by a shorter name, which "ctp" has for something else
	Raw       bool
	TimeZone  string
}

const (
	flagOutputJQ = "output-jq"
	flagJQ       = "jq"
)

func (r *resultFlags) addTo(fs *pflag.FlagSet) {
	fs.StringSliceVar(&r.Columns, "columns", nil, "show these columns alone, `name,...` in that order; for table, wide and csv")
	fs.BoolVar(&r.NoHeaders, "no-headers", false, "leave out the headings, and what is no row; for table, wide and csv")
	fs.StringVar(&r.OutputJQ, flagOutputJQ, "", "filter the JSON of the result by a jq `expression`; implies -o json")
	fs.StringVar(&r.JQ, flagJQ, "", "the same as --output-jq `expression`; but 'kshare ctp' transforms records by its --jq")
	fs.BoolVarP(&r.Raw, "raw-output", "r", false, "write strings that --output-jq results in without quotes")
	fs.StringVar(&r.TimeZone, "time-zone", "", "show times in tables in this `zone`: UTC, Local, or a name such as Europe/Paris (default UTC)")
}

// filter returns the expression that the result is put through, and the flag that
// has it.
func (r *resultFlags) filter() (flag, expression string) {
	if r.JQ != "" {
		return "--" + flagJQ, r.JQ
	}
	return "--" + flagOutputJQ, r.OutputJQ
}

// checkResult returns a usage error for what the flags that say what is shown of a
// result ask of this command, and prepares what they ask for.
func (d *Deps) checkResult(cmd *cobra.Command) error {
	if err := d.checkTimeZone(); err != nil {
		return err
	}
	r := &d.flags.resultFlags
	for i, name := range r.Columns {
		r.Columns[i] = strings.TrimSpace(name) // "a, b" is one word in quotes
	}
	changed := cmd.Flags().Changed
	filters := r.OutputJQ != "" || r.JQ != ""
	flag, expression := r.filter()
	switch rowsOnly := len(r.Columns) > 0 || r.NoHeaders; {
	case r.OutputJQ != "" && r.JQ != "":
		return usagef("--jq and --output-jq are the same: give one of them")
	case r.Raw && !filters:
		return usagef("--raw-output is for --output-jq")
	case filters && rowsOnly:
		return usagef("%s is for JSON, and --columns and --no-headers are for tables", flag)
	case filters && changed("output") && d.flags.Output != output.FormatJSON:
		return usagef("%s is for JSON, and --output is %s", flag, d.flags.Output)
	case filters:
		d.flags.Output = output.FormatJSON
		f, err := output.NewFilter(expression, r.Raw)
		if err != nil {
			return hintf(usagef("%s: %s", flag, err), "quote the expression, so that the shell leaves it alone")
		}
		d.filter = f
	case rowsOnly && d.machine():
		return hintf(usagef("--columns and --no-headers are for tables, and --output is %s", d.flags.Output),
			"take parts of JSON by --output-jq, such as '.items[] | [.topic, .partition]'")
	}
	return d.checkHasResult(cmd, flag, filters)
}

// checkHasResult refuses flags about a result for commands that have none, and
// columns that no result of the command has.
func (d *Deps) checkHasResult(cmd *cobra.Command, filterFlag string, filters bool) error {
	r := &d.flags.resultFlags
	if !filters && len(r.Columns) == 0 {
		return nil
	}
	views := d.viewsOf(commandPath(cmd))
	switch {
	case len(views) == 0 && filters:
		return usagef("%s: %q has no JSON", filterFlag, cmd.CommandPath())
	case len(r.Columns) == 0:
		return nil
	}
	var err error
	for _, v := range views {
		if err = v.CheckColumns(r.Columns); err == nil {
			return nil
		}
	}
	columns := columnsOf(views)
	if len(columns) == 0 {
		return usagef("--columns: %q has no rows", cmd.CommandPath())
	}
	if len(views) > 1 { // a result of one kind has it, and this says what none has
		e := &output.ColumnsError{}
		for _, name := range slices.Backward(r.Columns) {
			if !slices.ContainsFunc(columns, func(c string) bool { return strings.EqualFold(c, name) }) {
				e.Unknown = name
			}
		}
		err = e
	}
	return columnsError(err, columns)
}

// columnsOf returns the names of the columns that views have, each once.
func columnsOf(views []output.View) []string {
	var columns []string
	for _, v := range views {
		for _, name := range v.ColumnNames() {
			if !slices.Contains(columns, name) {
				columns = append(columns, name)
			}
		}
	}
	return columns
}

// columnsError is the usage error about columns, of which these exist; nil are
// those that the error knows.
func columnsError(err error, known []string) error {
	e, ok := errors.AsType[*output.ColumnsError](err)
	if !ok {
		return err
	}
	if known == nil {
		known = e.Known
	}
	return hintf(usagef("--columns: %s", e), "%s", (&output.ColumnsError{Known: known}).Hint())
}

// machine reports whether stdout is for programs that read documents.
func (d *Deps) machine() bool {
	return d.flags.Output == output.FormatJSON || d.flags.Output == output.FormatYAML
}

// rowsOnly reports whether stdout has rows and nothing else.
func (d *Deps) rowsOnly() bool {
	o := output.Options{Columns: d.flags.Columns, NoHeaders: d.flags.NoHeaders}
	return d.flags.Output == output.FormatCSV || o.RowsOnly()
}

// checkTimeZone finds the time zone of the flag or the environment. That of a
// context is found when the command connects, or else when there are times to show.
func (d *Deps) checkTimeZone() error {
	setting, _ := config.Find(config.TimeZone)
	if name := d.flags.TimeZone; name != "" {
		zone, err := config.ParseTimeZone(name)
		if err != nil {
			return usagef("invalid argument %q for \"--%s\" flag: %s", name, setting.Flag, err)
		}
		d.zone = zone
		return nil
	}
	if name := d.Getenv(setting.Env()); name != "" {
		zone, err := config.ParseTimeZone(name)
		if err != nil {
			return usagef("$%s %q: %s", setting.Env(), name, err)
		}
		d.zone = zone
	}
	return nil
}

// findTimeZone finds the time zone of the current context, for a command that has
// not connected. A mistake in the file is not the command's business, which has its
// result.
func (d *Deps) findTimeZone() {
	if d.zone != nil {
		return
	}
	zone, err := config.ResolveTimeZone(config.Input{Getenv: d.Getenv, Path: d.configPath()})
	if err != nil {
		d.Warn("times are in UTC, since the settings are not known: " + err.Error())
		zone = time.UTC
	}
	d.zone = zone
}

// time is a time for people, in their time zone; where lines are read by
// programs, in UTC.
func (d *Deps) time(t time.Time) string {
	if d.machine() {
		return output.Time(t, nil)
	}
	return output.Time(t, d.zone)
}

// viewsOf returns what a command can show, without rows, for the names of columns;
// none for a command that has no result. It is asked before the command runs: a
// name that is wrong must not come to light when the cluster was changed.
func (d *Deps) viewsOf(command string) []output.View {
	views := func(v ...output.View) []output.View { return v }
	switch command {
	case "ack":
		return views(ackView(&ackResult{}))
	case "config check":
		return views(configCheckView(&configCheck{}))
	case "config get-contexts":
		return views(configGetContextsView(&contextList{}))
	case "config set-context", "config use-context", "config delete-context":
		return views(contextChangeView(&contextChange{}))
	case "config view":
		return views(configViewView(&configView{}))
	case "ctp":
		return views(ctpView(&ctp.Result{}), ctpPreflightView([]ctp.Check{}))
	case "demo":
		return views(demoView([]demo.Step{}))
	case "doctor":
		return views(doctorView(&doctor.Report{}))
	case "drain":
		return views(drainView(d, &drain.Result{Pending: &inspect.PendingReport{}}))
	case "feature dependencies":
		return views(featureDependenciesView([]feature.Dependency{}))
	case "feature describe":
		return views(featureDescribeView(d, &feature.Report{}))
	case "feature downgrade", "feature upgrade":
		t, wide := changeTables()
		return views(output.View{Table: t, Wide: wide})
	case "feature mapping":
		return views(featureMappingView(&featureMapping{}))
	case "feature matrix":
		return views(featureMatrixView(&featureMatrixResult{&feature.Matrix{}, &feature.Report{}}))
	case "feature plan":
		return views(output.View{Table: planTable()})
	case "inspect group":
		return views(inspectGroupView(&inspect.GroupReport{}, false), inspectGroupView(&inspect.GroupReport{}, true))
	case "inspect metrics":
		return views(inspectMetricsView(&inspect.MetricsReport{Looks: 1}), inspectMetricsView(&inspect.MetricsReport{Looks: 2}))
	case "inspect partition":
		return views(inspectPartitionView(&inspect.PartitionReport{}, 0))
	case "inspect pending":
		return views(inspectPendingView(d, &inspect.PendingReport{}), inspectPendingSummaryView(&inspect.PendingReport{}))
	case "inspect txn":
		return views(inspectTxnView(&inspect.TxnReport{}, inspectTxnOptions{}), inspectHangingView(d, &inspect.HangingReport{}))
	case "sandbox fault clear", "sandbox fault inject", "sandbox fault list":
		return views(sandboxFaultView(nil, nil))
	case "sandbox run":
		return views(sandboxRunView(sandboxInfo{}))
	case "txn abort":
		return views(txnAbortView(&txnAbortResult{}))
	case "txn commit", "txn resume":
		return views(txnResumeView(&txnEndResult{}))
	case "txn describe":
		return views(txnDescribeView(&txnEndResult{}))
	case "txn fence":
		return views(txnFenceView(&txnFenceResult{}))
	case "txn find-hanging":
		return views(inspectHangingView(d, &inspect.HangingReport{}))
	case "txn prepare":
		return views(txnPrepareView(&ackResult{}))
	case "version":
		return views(versionView(versionInfo{}))
	}
	return nil
}
