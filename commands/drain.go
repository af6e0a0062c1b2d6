package commands

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// drainOptions is everything "drain" can be told.
type drainOptions struct {
	connection
	drain.Options
	Endpoints []inspect.MetricsEndpoint
	DryRun    bool
}

// fenceAll is the value of --fence that names nobody.
const fenceAll = "all"

func newDrainCmd(d *Deps, run runFunc[drainOptions, *drain.Result]) *cobra.Command {
	var opts drainOptions
	var endpoints, jolokia []string
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Wait until no record is left in a transaction, or end what holds them",
		Long: `Bring the number of records in TX_PENDING (KIP-1289) to zero, of the whole
cluster or of some share groups or topics, and say so only when it is sure.

It looks again and again, and ends with 0 when nothing was pending in three
looks in a row, over a quiet period, with everything readable that is needed.
Who goes on staging meanwhile is named: a drain stops no producer. A group or a
topic that does not exist is an error (1), and not drained.

By itself it only waits: a transaction ends when its producer ends it, or by its
timeout. More is done only when asked, the mildest first, after it was shown and
confirmed (--yes for scripts):

  --fence ID       aborts the transaction and fences its producer. "all" means
                   every transaction in scope that is open when it begins, but
                   never one of a two-phase commit, which has to be named:
                   fencing it discards the decision, if it is prepared
  --abort-hanging  writes the end marker for records that no transaction will
                   end: COMMIT where their transaction is known to have been
                   committed, ABORT otherwise

A transaction without share acknowledgements, or whose end is decided, is never
touched. What will not end by itself is not waited for: the exit status is 6, as
it is when something cannot be seen. --timeout bounds the whole (7); without it
that is what the last open transaction needs to time out, and half a minute.

The quiet period is short where the cluster is known to write TX_PENDING down:
two intervals, at least 5s. Elsewhere leaders may keep it in memory, and it is
the largest transaction timeout, at least 60s, and 10s. Records whose end marker
was lost cannot be seen there, so as long as share-partitions in scope are not
done it is not known whether they hold any (6), unless the metrics of every
broker say so (--endpoint, --jolokia), or --accept-memory is given.

An interrupted drain leaves nothing half done, and a second one goes on.`,
		Example: `  kshare drain -b localhost:9092
  kshare drain --group billing --timeout 2m
  kshare drain --fence all --abort-hanging --dry-run
  kshare drain --fence billing-1 --yes -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(cmd.Flags().Changed, d); err != nil {
				return err
			}
			if len(endpoints)+len(jolokia) > 0 {
				var err error
				if opts.Endpoints, err = parseMetricsEndpoints(endpoints, jolokia); err != nil {
					return err
				}
			}
			res, err := run(cmd.Context(), d, opts)
			return d.show(drainView(d, res), err)
		},
	}
	fs := cmd.Flags()
	addRepeated(fs, &opts.Groups, "group", "only records of this share `group`; may be repeated")
	addRepeated(fs, &opts.Topics, "topic", "only records of this `topic`; may be repeated")
	addRepeated(fs, &opts.Fence, "fence", "fence this transactional `id`, or all; may be repeated")
	fs.BoolVar(&opts.AbortHanging, "abort-hanging", false, "write end markers where no transaction will")
	addRepeated(fs, &endpoints, "endpoint", "`url` or host:port of the metrics of a broker, as of 'inspect metrics'; may be repeated")
	addRepeated(fs, &jolokia, "jolokia", "`url` or host:port of a broker's Jolokia agent; may be repeated")
	fs.BoolVar(&opts.AcceptMemory, "accept-memory", false, "do not mind what leaders may hold in memory, where it cannot be seen")
	fs.BoolVar(&opts.DryRun, "dry-run", false, "look once, show what would be done, and do nothing")
	fs.DurationVar(&opts.QuietPeriod, "quiet-period", 0, "`duration` for which nothing may be pending (default as above)")
	fs.DurationVar(&opts.Interval, "interval", drain.DefaultInterval, "`duration` between two looks")
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth, exitUnsupported, exitRefused)
}

// minDrainInterval keeps a drain from being a load of its own.
const minDrainInterval = 100 * time.Millisecond

// check returns a usage error for what the flags alone can tell, and takes "all"
// out of what is to be fenced.
func (o *drainOptions) check(changed func(string) bool, d *Deps) error {
	switch {
	case o.Interval < minDrainInterval:
		return usagef("--interval %s: want at least %s", o.Interval, minDrainInterval)
	case o.QuietPeriod < 0 || changed("quiet-period") && o.QuietPeriod == 0:
		return usagef("--quiet-period %s: want a positive duration", o.QuietPeriod)
	}
	if o.Interval == drain.DefaultInterval {
		o.Interval = 0
	}
	if n := len(o.Fence); n > 0 {
		o.Fence = slices.DeleteFunc(o.Fence, func(id string) bool { return id == fenceAll })
		o.FenceAll = len(o.Fence) < n
	}
	if err := checkDialect(o.Dialect); err != nil {
		return err
	}
	if o.acts() && !o.DryRun {
		return d.canConfirm()
	}
	return nil
}

// acts reports whether more may be done than to wait.
func (o *drainOptions) acts() bool { return o.FenceAll || len(o.Fence) > 0 || o.AbortHanging }

func runDrain(ctx context.Context, d *Deps, opts drainOptions) (*drain.Result, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	clock := drain.NewClock(d.Now)
	return d.drain(ctx, opts, drain.Execution{
		Observer: &drain.ClusterObserver{Cluster: cl, Dialect: cl.Dialect(), Now: d.Now, Metrics: opts.Endpoints},
		Actor:    &drain.ClusterActor{Cluster: cl, Clock: clock},
		Clock:    clock,
	})
}

// drain plans, says what is to know, asks if there is something to ask about, and
// executes the plan.
func (d *Deps) drain(ctx context.Context, opts drainOptions, x drain.Execution) (*drain.Result, error) {
	first, err := x.Observer.Observe(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := first.Evidence.Missing(inspect.Filter{Groups: opts.Groups, Topics: opts.Topics}); err != nil {
		return nil, err
	}
	now := x.Clock.Now()
	if deadline, ok := ctx.Deadline(); ok {
		opts.Timeout = max(deadline.Sub(now), 1)
	}
	plan, err := drain.NewPlan(first.Evidence, opts.Options, now)
	if err != nil {
		return nil, err
	}
	d.announceDrain(plan, opts)
	if opts.DryRun {
		return plan.DryRun()
	}
	if acts := plan.Acts(); len(acts) > 0 || opts.AbortHanging {
		if err := d.Confirm(drainQuestion(plan, acts), "drain"); err != nil {
			return nil, err
		}
	}
	p := d.Progress("draining, records left", "")
	defer p.Close()
	x.Progress = func(at drain.Progress) { p.Update(at.Records, -1, drainNote(at, x.Clock.Now())) }
	return plan.Execute(ctx, x)
}

// shownHolders is how many holders are told of before a drain begins.
const shownHolders = 10

// announceDrain says what was found, what is going to be done, and how long it
// takes at most.
func (d *Deps) announceDrain(p *drain.Plan, opts drainOptions) {
	d.Notice(p.Pending.Reason)
	// What is left alone is in the warnings.
	steps := slices.DeleteFunc(slices.Clone(p.Steps), func(s drain.Step) bool { return s.Action == drain.ActionLeave })
	for i, s := range steps {
		if i == shownHolders {
			d.Notice(fmt.Sprintf("and %s", count(len(steps)-i, "more holder", "more holders")))
			break
		}
		d.Notice(holderLine(s, opts.DryRun))
	}
	for _, w := range p.Warnings {
		d.Warn(w)
	}
	if !opts.DryRun {
		d.Notice(fmt.Sprintf("this takes %s at most, until %s, and a quiet period of %s is part of it",
			output.Duration(p.Deadline.Sub(p.Started).Round(time.Second)), d.time(p.Deadline), output.Duration(p.QuietPeriod)))
	}
}

func holderLine(s drain.Step, dryRun bool) string {
	verb := map[drain.Action]string{
		drain.ActionFence:  "fenced",
		drain.ActionAbort:  "aborted",
		drain.ActionCommit: "committed",
		drain.ActionWait:   "waited for",
	}[s.Action]
	if dryRun {
		verb = "would be " + verb
	} else {
		verb = "is to be " + verb
	}
	held := "share acknowledgements"
	switch {
	case !s.ShareAcks:
		held = "no share acknowledgements"
	case s.Records > 0:
		held = count(int(s.Records), "record", "records")
	}
	return fmt.Sprintf("%s holds %s and %s: %s", s.Name(), held, verb, s.Reason)
}

// drainQuestion says what is asked for.
func drainQuestion(p *drain.Plan, acts []drain.Step) string {
	var fence, commit, abort int
	for _, s := range acts {
		switch s.Action {
		case drain.ActionFence:
			fence++
		case drain.ActionCommit:
			commit++
		case drain.ActionAbort:
			abort++
		case drain.ActionWait, drain.ActionLeave:
		}
	}
	var parts []string
	if fence > 0 {
		parts = append(parts, fmt.Sprintf("abort %s and fence the producer of each", count(fence, "transaction", "transactions")))
	}
	if abort+commit > 0 {
		parts = append(parts, fmt.Sprintf("write end markers for %s (%d ABORT, %d COMMIT)", count(abort+commit, "producer that left records behind", "producers that left records behind"), abort, commit))
	}
	if len(parts) == 0 {
		parts = append(parts, "write end markers for records that come to light with nobody to end them")
	}
	return fmt.Sprintf("This is to %s, on cluster %s.", strings.Join(parts, ", and to "), p.ClusterID)
}

// drainNote says where a drain stands.
func drainNote(p drain.Progress, now time.Time) string {
	var parts []string
	switch {
	case p.Acting > 0:
		parts = append(parts, "ending "+count(p.Acting, "holder", "holders"))
	case p.Unknown != "":
		parts = append(parts, p.Unknown)
	case p.Clean:
		parts = append(parts, fmt.Sprintf("nothing pending, quiet for %s of %s", output.Duration(p.Quiet), output.Duration(p.QuietPeriod)))
	default:
		parts = append(parts, count(p.Holders, "holder", "holders"))
		if !p.NextDeadline.IsZero() {
			parts = append(parts, "the next ends by itself in "+output.Duration(max(0, p.NextDeadline.Sub(now))))
		}
	}
	if n := len(p.Running); n > 0 {
		names := make([]string, 0, 3)
		for _, r := range p.Running[:min(n, 3)] {
			names = append(names, strconv.Quote(r.TransactionalID))
		}
		if n > 3 {
			names = append(names, fmt.Sprintf("%d more", n-3))
		}
		parts = append(parts, "producers still running: "+strings.Join(names, ", "))
	}
	return strings.Join(append(parts, output.Duration(max(0, p.Left))+" left"), "; ")
}

func drainView(d *Deps, res *drain.Result) output.View {
	if res == nil {
		return output.View{}
	}
	rows := inspectPendingView(d, res.Pending)
	v := output.View{
		Kind: "drain", Version: 1, ClusterID: res.ClusterID, Warnings: res.Warnings,
		// What could not be seen is in the status, and has an exit code of its own.
		Items: rows.Items, Data: res, Table: rows.Table, Wide: rows.Wide,
	}
	acts := output.NewTable("ACT", "HOLDER", "RECORDS", "RESULT", "REASON")
	for _, a := range res.Acts {
		why := a.Reason
		if a.Error != nil {
			why = *a.Error
		}
		acts.Row(string(a.Action), output.Key(a.Name()), a.Records, actCell(a.Status), why)
	}
	v.Sections = []output.Section{{Table: acts}, {Table: v.Table, Wide: v.Wide}}
	v.Text = output.Escape(fmt.Sprintf("%s: %s", strings.ReplaceAll(string(res.Status), "_", " "), res.Reason))
	if acts.Len()+v.Table.Len() > 0 {
		v.Text = "\n" + v.Text
	}
	return v
}

func actCell(s drain.ActStatus) any {
	text := strings.ReplaceAll(string(s), "_", " ")
	switch s {
	case drain.ActDone:
		return output.Good(text)
	case drain.ActFailed:
		return output.Bad(text)
	case drain.ActUnknown, drain.ActNotAttempted:
		return output.Warn(text)
	case drain.ActPlanned, drain.ActEnded:
	}
	return text
}
