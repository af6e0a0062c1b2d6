package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/pause"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// inspectPendingOptions is everything "inspect pending" can be told.
type inspectPendingOptions struct {
	connection
	inspect.Filter
	Summary  bool
	Check    bool
	Wait     bool
	Watch    bool
	Interval time.Duration
}

// pendingLooker looks at a cluster as often as it is asked to.
type pendingLooker struct {
	Look  func(context.Context) (*inspect.PendingReport, error)
	Close func()
}

const (
	defaultPendingInterval = 2 * time.Second
	minPendingInterval     = 100 * time.Millisecond
)

func newInspectPendingCmd(d *Deps, open runFunc[inspectPendingOptions, *pendingLooker]) *cobra.Command {
	var opts inspectPendingOptions
	cmd := &cobra.Command{
		Use:   "pending",
		Short: "List records that wait in a transaction, since when, and whose they are",
		Long: `List records in TX_PENDING: acknowledged in a transaction that has not ended
(KIP-1289). No request lists them, so several sources are joined, and each row
has a verdict:

  exact     the persisted state says so, and names the owner
  orphan    the persisted state says so, and no transaction of its owner is
            open: nothing will resolve it by itself
  likely    an open transaction has share acknowledgements in a partition of
            __share_group_state, and one share-partition alone fits
  possible  the same, and any of the candidates may be concerned

Nothing found is only "none" where everything needed could be read. Otherwise
the answer is "unknown", tells what is missing, and the exit status is 3. What
is found is listed in any case. A filter lets through what may fit: a row whose
group is not known passes --group when one of its candidates does. A group or a
topic that does not exist is an error (exit status 1), and not "none".

With --wait the command ends when nothing is pending. Unknown is not nothing: it
goes on while a broker is silent, and ends with 3 where a permission is missing,
which waiting does not grant. --timeout bounds the wait (exit status 7).

With --watch it shows the state again and again, in place on a terminal, and
until it is interrupted. Elsewhere it writes one JSON document per line, or YAML
documents with -o yaml.

With --check the exit status is 6 when anything is pending or unknown.`,
		Example: `  kshare inspect pending -b localhost:9092
  kshare inspect pending --older-than 1m --check
  kshare inspect pending --summary
  kshare inspect pending --group billing --wait --timeout 2m
  kshare inspect pending --watch --interval 5s
  kshare inspect pending --jq '.items[] | select(.verdict == "orphan") | .command' -r
  kshare inspect pending --columns group,topic,partition,deadline --no-headers`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(cmd.Flags().Changed, d); err != nil {
				return err
			}
			looker, err := open(cmd.Context(), d, opts)
			if err != nil {
				return err
			}
			defer looker.Close()
			return d.inspectPending(cmd.Context(), opts, looker)
		},
	}
	fs := cmd.Flags()
	addRepeated(fs, &opts.Groups, "group", "only records of this share `group`; may be repeated")
	addRepeated(fs, &opts.Topics, "topic", "only records of this `topic`; may be repeated")
	addRepeated(fs, &opts.TransactionalIDs, "txn", "only records that this transactional `id` owns; may be repeated")
	fs.DurationVar(&opts.OlderThan, "older-than", 0, "only records of transactions that began at least `duration` ago")
	fs.BoolVar(&opts.Summary, "summary", false, "sum up per group and per owner")
	fs.BoolVar(&opts.Check, "check", false, "end with exit status 6 when anything is pending or unknown")
	fs.BoolVar(&opts.Wait, "wait", false, "wait until nothing is pending")
	fs.BoolVar(&opts.Watch, "watch", false, "show the state again and again")
	fs.DurationVar(&opts.Interval, "interval", defaultPendingInterval, "`duration` between two looks, with --wait or --watch")
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth, exitRefused)
}

// check returns a usage error for what the flags alone can tell.
func (o *inspectPendingOptions) check(changed func(string) bool, d *Deps) error {
	switch {
	case o.OlderThan < 0 || changed("older-than") && o.OlderThan == 0:
		return usagef("--older-than %s: want a positive duration", o.OlderThan)
	case o.Watch && o.Wait:
		return usagef("--watch and --wait exclude each other")
	case o.Watch && o.Check:
		return usagef("--watch ends when it is interrupted, and --check is about one look")
	case changed("interval") && !o.Watch && !o.Wait:
		return usagef("--interval is for --watch and --wait")
	case o.Interval < minPendingInterval:
		return usagef("--interval %s: want at least %s", o.Interval, minPendingInterval)
	case o.Watch && !d.machine() && !d.StdoutTTY && d.rowsOnly() && d.flags.Output != output.FormatCSV:
		return usagef("--watch writes JSON where stdout is no terminal, and --columns and --no-headers are for tables")
	case o.Watch && d.flags.Output == output.FormatCSV:
		return usagef("--watch has no CSV form: want table, wide, json or yaml")
	}
	return checkDialect(o.Dialect)
}

// openInspectPending connects. Each look keeps the evidence of the one before,
// from which it follows what has not moved since.
func openInspectPending(ctx context.Context, d *Deps, opts inspectPendingOptions) (*pendingLooker, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	var previous *inspect.Evidence
	return &pendingLooker{
		Close: cl.Close,
		Look: func(ctx context.Context) (*inspect.PendingReport, error) {
			ev, err := inspect.Collect(ctx, cl, inspect.CollectOptions{Dialect: cl.Dialect(), Previous: previous, Now: d.Now})
			if err != nil {
				return nil, err
			}
			if previous == nil {
				if err := ev.Missing(opts.Filter); err != nil {
					return nil, err
				}
			}
			previous = ev
			return inspect.NewPendingReport(ev, opts.Filter), nil
		},
	}, nil
}

func (d *Deps) inspectPending(ctx context.Context, opts inspectPendingOptions, looker *pendingLooker) error {
	if opts.Watch {
		return d.watchPending(ctx, opts, looker)
	}
	look := looker.Look
	if opts.Wait {
		look = func(ctx context.Context) (*inspect.PendingReport, error) {
			return d.awaitNonePending(ctx, opts, looker)
		}
	}
	rep, err := look(ctx)
	if err == nil && opts.Check {
		err = checkPending(rep)
	}
	err = d.show(opts.view(d, rep), err)
	d.hintPending(rep)
	return err
}

// pendingCheckError is what --check fails with.
type pendingCheckError struct{ reason string }

func (e *pendingCheckError) Error() string { return e.reason }

func checkPending(rep *inspect.PendingReport) error {
	if rep.Status == inspect.StatusPending || rep.Status == inspect.StatusUnknown {
		return &pendingCheckError{rep.Reason}
	}
	return nil
}

// awaitNonePending looks until nothing is pending. It returns the last report
// also with an error.
func (d *Deps) awaitNonePending(ctx context.Context, opts inspectPendingOptions, looker *pendingLooker) (*inspect.PendingReport, error) {
	progress := d.Progress("records in TX_PENDING", "")
	defer progress.Close()
	told := make(map[string]bool)
	var last *inspect.PendingReport
	for {
		rep, err := d.lookAgain(ctx, looker, last, told)
		if err != nil {
			return last, err
		}
		last = rep
		switch {
		case rep.Status == inspect.StatusNone, rep.Status == inspect.StatusUnsupported:
			return rep, nil
		case slices.ContainsFunc(rep.Gaps, func(g inspect.Gap) bool { return g.ACL != nil }):
			return rep, nil
		}
		d.warnOfEndless(rep, told)
		progress.Update(rep.Records, -1, waitNote(rep))
		if err := pause.For(ctx, opts.Interval); err != nil {
			return last, err
		}
	}
}

// lookAgain looks. Where a look has succeeded before, one that fails is a warning
// and the next one may succeed: brokers are restarted while somebody waits. It
// returns the report before, then.
func (d *Deps) lookAgain(ctx context.Context, looker *pendingLooker, last *inspect.PendingReport, told map[string]bool) (*inspect.PendingReport, error) {
	rep, err := looker.Look(ctx)
	if err == nil {
		return rep, nil
	}
	if _, denied := errors.AsType[*cluster.AuthError](err); denied || last == nil || ctx.Err() != nil {
		return nil, err
	}
	d.warnOnce(told, err.Error())
	return last, nil
}

func (d *Deps) warnOnce(told map[string]bool, msg string) {
	if !told[msg] {
		told[msg] = true
		d.Warn(msg)
	}
}

// warnOfEndless says once of each owner that nothing will end it by itself:
// nobody should wait for it in silence.
func (d *Deps) warnOfEndless(rep *inspect.PendingReport, told map[string]bool) {
	for i := range rep.Owners {
		o := &rep.Owners[i]
		name := ownerName(o.TransactionalID, o.ProducerIDs)
		if o.TwoPhase {
			d.warnOnce(told, name+" takes part in a two-phase commit and never times out; it is waited for all the same")
		}
		if o.Orphan {
			d.warnOnce(told, "records of "+name+" have no open transaction, and nothing will resolve them by itself; they are waited for all the same")
		}
	}
	for _, g := range rep.Gaps {
		d.warnOnce(told, g.Reason)
	}
}

// waitNote says who is waited for.
func waitNote(rep *inspect.PendingReport) string {
	note := count(len(rep.Owners), "owner", "owners")
	if rep.Status == inspect.StatusUnknown {
		note += ", and what could not be seen"
	}
	switch {
	case rep.NextDeadline == nil:
	case rep.NextDeadline.Before(rep.Time):
		note += ", a deadline is over"
	default:
		note += ", next deadline in " + output.Duration(rep.NextDeadline.Sub(rep.Time))
	}
	return note
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// watchPending shows the state again and again until ctx ends.
func (d *Deps) watchPending(ctx context.Context, opts inspectPendingOptions, looker *pendingLooker) (err error) {
	show, end := d.pendingDisplay(opts)
	defer func() { err = cluster.Join(err, end()) }()
	told := make(map[string]bool)
	var last *inspect.PendingReport
	for {
		if last, err = d.lookAgain(ctx, looker, last, told); err != nil {
			return err
		}
		if err := show(last); err != nil {
			return resultError(err)
		}
		if err := pause.For(ctx, opts.Interval); err != nil {
			return err
		}
	}
}

// pendingDisplay returns what shows a report, and what ends that: documents, or a
// screen whose last frame stays.
func (d *Deps) pendingDisplay(opts inspectPendingOptions) (show func(*inspect.PendingReport) error, end func() error) {
	people := d.flags.Output == output.FormatTable || d.flags.Output == output.FormatWide
	if !people || !d.StdoutTTY {
		if people {
			d.flags.Output = output.FormatJSON // also for what is said on stderr
		}
		return func(rep *inspect.PendingReport) error {
			o := d.options(0)
			o.Stream = true
			return output.Write(d.Out, opts.view(d, rep), o)
		}, func() error { return nil }
	}
	screen := output.NewScreen(d.Out)
	var last *inspect.PendingReport
	frame := func(rep *inspect.PendingReport) (string, int, error) {
		width, height := d.size()
		var b strings.Builder
		v := opts.view(d, rep)
		fmt.Fprintf(&b, "%s  %s\n\n", d.time(rep.Time), output.Escape(rep.Reason))
		v.Text = strings.Join(candidatesLines(rep), "\n")
		err := output.Write(&b, v, d.options(width))
		for _, w := range v.Warnings {
			fmt.Fprintln(&b, output.NewStyler(d.color(true)).Render(output.StyleWarn, "warning:"), output.Escape(w))
		}
		return b.String(), height, err
	}
	show = func(rep *inspect.PendingReport) error {
		last = rep
		text, height, err := frame(rep)
		if err != nil {
			return err
		}
		return screen.Draw(text, height)
	}
	end = func() error {
		if err := screen.Close(); err != nil || last == nil {
			return err
		}
		text, _, err := frame(last)
		if err == nil {
			_, err = fmt.Fprint(d.Out, text)
		}
		return err
	}
	return show, end
}
