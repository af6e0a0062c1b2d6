package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// featureChangeOptions is everything "feature upgrade" and "feature downgrade"
// can be told.
type featureChangeOptions struct {
	featureTarget
	connection
	DryRun            bool
	WaitTimeout       time.Duration
	Unsafe            bool
	ForceLiveProducer bool
	Drain             bool
}

// defaultFeatureWait is far above what brokers need to learn of a level, which
// is milliseconds.
const defaultFeatureWait = time.Minute

func (o *featureChangeOptions) addTo(fs *pflag.FlagSet, detailed *bool) {
	fs.BoolVar(&o.DryRun, "dry-run", false, "have the controller validate the change, and change nothing")
	fs.BoolVar(detailed, "detailed-exitcode", false, "end with 10 when something was changed")
	fs.DurationVar(&o.WaitTimeout, "wait-timeout", defaultFeatureWait, "wait at most `duration` for all brokers to report the levels")
	o.connection.addTo(fs)
}

func (o *featureChangeOptions) check() error {
	if o.WaitTimeout <= 0 {
		return usagef("--wait-timeout %s: want a positive duration", o.WaitTimeout)
	}
	return checkDialect(o.Dialect)
}

func newFeatureUpgradeCmd(d *Deps, run runFunc[featureChangeOptions, *feature.Result]) *cobra.Command {
	var opts featureChangeOptions
	var target featureTargetFlags
	var detailed bool
	cmd := &cobra.Command{
		Use:   "upgrade [<name-level>...]",
		Short: "Raise feature levels, after checking every broker",
		Long: `Raise feature levels. Every broker is asked first: one that is silent, or does
not support the level, stops the command before anything is sent (exit status
6). What the level means on this cluster and what cannot be undone is said
before you are asked; scripts take --yes.

The controller validates the change first, then one request makes it, for all
levels or for none. The command ends when every broker reports the levels and,
for transactional acknowledgement, advertises the request.

A level that is already in force changes nothing, and nothing is sent. There is
no default level: software that does not know a level cannot start any more.`,
		Example: `  kshare feature upgrade share.version=1 transaction.version=2 --dry-run
  kshare feature upgrade --feature share.version --version 1 --yes
  kshare feature upgrade --enable txn-acks --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if opts.featureTarget, err = target.target(args); err != nil {
				return err
			}
			if err := opts.check(); err != nil {
				return err
			}
			res, err := run(cmd.Context(), d, opts)
			return d.showFeatureChange("feature.upgrade", res, err, detailed)
		},
	}
	fs := cmd.Flags()
	target.addTo(fs)
	target.addEnable(fs)
	opts.addTo(fs, &detailed)
	return exits(cmd, exitPartial, exitAuth, exitUnsupported, exitRefused, exitChanged)
}

func runFeatureUpgrade(ctx context.Context, d *Deps, opts featureChangeOptions) (*feature.Result, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	rep, err := feature.Describe(ctx, cl, feature.DescribeOptions{Dialect: cl.Dialect()})
	if err != nil {
		return nil, err
	}
	updates := opts.Updates
	if opts.Enable != "" {
		if updates, err = rep.EnableUpdates(); err != nil {
			return nil, err
		}
	}
	change, err := feature.NewUpgrade(rep, updates)
	if err != nil {
		return change.Result(), err
	}
	return d.changeFeatures(ctx, cl, change, opts)
}

// changeFeatures says what a change means, asks, and makes it.
func (d *Deps) changeFeatures(ctx context.Context, cl *cluster.Client, change *feature.Change, opts featureChangeOptions) (*feature.Result, error) {
	execute := feature.ExecuteOptions{
		DryRun: opts.DryRun, WaitTimeout: opts.WaitTimeout, Dialect: cl.Dialect(), Now: d.Now,
		Guard: feature.GuardOptions{ForceLiveProducers: opts.ForceLiveProducer, WillDrain: opts.Drain},
	}
	if !change.Needed() {
		return change.Execute(ctx, cl, execute) // which sends nothing
	}
	seen, err := change.Check(ctx, cl, execute)
	if err != nil {
		return change.Result(), err
	}
	live, err := change.LiveGroups(ctx, cl)
	if err != nil {
		return change.Result(), err
	}
	d.announce(change, seen)
	for _, l := range live {
		d.Warn(l)
	}
	if !opts.DryRun {
		if err := d.Confirm(change.Question(), change.Names()); err != nil {
			return change.Result(), err
		}
		execute.Guard.WillDrain = false // it has, by then
	}
	if opts.Drain {
		execute.Drain = d.drainBefore(cl, change, opts)
	}
	p := d.Progress("waiting for brokers to catch up", "")
	defer p.Close()
	execute.Waiting = func(missing []string) { p.Update(int64(len(missing)), -1, strings.Join(missing, "; ")) }
	return change.Execute(ctx, cl, execute)
}

// drainBefore returns what waits until nobody suffers from a change.
func (d *Deps) drainBefore(cl *cluster.Client, change *feature.Change, opts featureChangeOptions) func(context.Context) (*drain.Result, error) {
	return func(ctx context.Context) (*drain.Result, error) {
		clock := drain.NewClock(d.Now)
		return d.drain(ctx, drainOptions{
			connection: opts.connection,
			Options:    change.DrainOptions(feature.GuardOptions{ForceLiveProducers: opts.ForceLiveProducer}),
		}, drain.Execution{
			Observer: change.Observer(cl, cl.Dialect(), d.Now),
			Actor:    &drain.ClusterActor{Cluster: cl, Clock: clock},
			Clock:    clock,
		})
	}
}

// announce says what is to know before a change is made, also where it is not
// asked about.
func (d *Deps) announce(change *feature.Change, seen *inspect.Evidence) {
	for _, it := range change.Items {
		if it.From == nil || *it.From != it.To {
			d.Notice(fmt.Sprintf("%s=%d means here: %s", it.Feature, it.To, it.Meaning))
		}
	}
	for _, e := range change.Effects {
		d.Notice(e)
	}
	for _, e := range change.NoReturn {
		d.Warn(e)
	}
	for _, t := range change.Affected(seen) {
		d.Warn(fmt.Sprintf("transaction %q is open (%s, producer ID %d)", t.TransactionalID, t.State, t.ProducerID))
	}
	if seen != nil {
		for _, g := range seen.Gaps {
			d.Warn(g.Reason)
		}
	}
}

// showFeatureChange shows a result, with the transactions that an error names.
func (d *Deps) showFeatureChange(kind string, res *feature.Result, err error, detailed bool) error {
	if e, ok := errors.AsType[*feature.RefusedError](err); ok && res != nil && res.Transactions == nil {
		res.Transactions, res.Pending = e.Transactions, e.Pending
	}
	v := featureChangeView(kind, res)
	if res != nil && len(res.Pending) > 0 {
		rows := inspectPendingView(d, &inspect.PendingReport{Time: d.Now(), Rows: res.Pending})
		v.Sections = []output.Section{{Table: v.Table, Wide: v.Wide}, {Table: rows.Table, Wide: rows.Wide}}
	}
	if err := d.show(v, err); err != nil {
		return err
	}
	if detailed && res.Changed {
		return errChanged
	}
	return nil
}

func featureChangeView(kind string, res *feature.Result) output.View {
	if res == nil {
		return output.View{}
	}
	t, wide := changeTables()
	for _, it := range res.Items {
		t.Row(output.Key(it.Feature), it.From, it.To, itemCell(it, res), it.Meaning)
		reason := any(output.NA())
		if it.Reason != nil {
			reason = *it.Reason
		}
		wide.Row(output.Key(it.Feature), it.From, it.To, itemCell(it, res), it.Level, it.Meaning, reason)
	}
	return output.View{
		Kind: kind, Version: 1, ClusterID: res.ClusterID(), Warnings: res.Warnings,
		Items: res.Items, Data: res, Table: t, Wide: wide,
	}
}

func changeTables() (t, wide *output.Table) {
	return output.NewTable("FEATURE", "FROM", "TO", "RESULT", "MEANING"),
		output.NewTable("FEATURE", "FROM", "TO", "RESULT", "LEVEL", "MEANING", "REASON")
}

func itemCell(it feature.Item, res *feature.Result) any {
	switch {
	case it.From != nil && *it.From == it.To:
		return output.Muted("already so")
	case it.Applied && res.Direction == feature.Upgrade:
		return output.Good("raised")
	case it.Applied:
		return output.Good("lowered")
	case res.DryRun && res.Validated:
		return output.Good("valid")
	}
	return output.Warn("not applied")
}
