package commands

import (
	"context"
	"slices"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/spf13/cobra"
)

// txnFindHangingOptions is everything "txn find-hanging" can be told.
type txnFindHangingOptions struct {
	connection
	Topics     []string
	Partitions []int32
	OlderThan  time.Duration
}

func newTxnFindHangingCmd(d *Deps, run runFunc[txnFindHangingOptions, *inspect.HangingReport]) *cobra.Command {
	var opts txnFindHangingOptions
	var check bool
	cmd := &cobra.Command{
		Use:   "find-hanging",
		Short: "Find transactions that hold consumers back and that nobody will end",
		Long: `Find transactions that are open in a partition and that no coordinator will end
(KIP-664): consumers with read_committed do not get past them. All topics are
looked at, internal ones too, since transactions often hang in
__consumer_offsets. What seems to hang is looked at twice, since a transaction
that ends in between looks the same.

Each comes with the command that aborts it. Records that were left in TX_PENDING
are no transactional records: 'kshare inspect pending' finds those.

What could not be seen makes the answer incomplete (exit status 3). With --check
the exit status is 6 when anything hangs, or something could not be seen. It
needs DESCRIBE on all transactional IDs, and DESCRIBE and READ on the topics.`,
		Example: `  kshare txn find-hanging -b localhost:9092
  kshare txn find-hanging --topic shipped --older-than 15m --check`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(cmd.Flags().Changed); err != nil {
				return err
			}
			rep, err := run(cmd.Context(), d, opts)
			if err == nil && check {
				err = checkHanging(rep)
			}
			if rep == nil {
				return err
			}
			// The document is that of "inspect txn --hanging".
			err = d.show(inspectHangingView(d, rep), err)
			d.hintHanging(rep)
			return err
		},
	}
	fs := cmd.Flags()
	addRepeated(fs, &opts.Topics, "topic", "only this `topic`; may be repeated")
	fs.Int32SliceVar(&opts.Partitions, "partition", nil, "only these `partitions` of the topics")
	hideDefaults(fs, "partition")
	fs.DurationVar(&opts.OlderThan, "older-than", 0, "only transactions whose last record is older than `duration`")
	fs.BoolVar(&check, "check", false, "end with exit status 6 when anything hangs or is unknown")
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth, exitRefused)
}

// check returns a usage error for what the flags alone can tell.
func (o *txnFindHangingOptions) check(changed func(string) bool) error {
	switch {
	case slices.ContainsFunc(o.Partitions, func(p int32) bool { return p < 0 }):
		return usagef("--partition: want 0 or more")
	case len(o.Partitions) > 0 && len(o.Topics) == 0:
		return usagef("--partition needs --topic")
	case o.OlderThan < 0 || changed("older-than") && o.OlderThan == 0:
		return usagef("--older-than %s: want a positive duration", o.OlderThan)
	}
	return checkDialect(o.Dialect)
}

func runTxnFindHanging(ctx context.Context, d *Deps, opts txnFindHangingOptions) (*inspect.HangingReport, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return inspect.ListHanging(ctx, cl, inspect.HangingOptions{
		Topics: opts.Topics, Partitions: opts.Partitions, MinAge: opts.OlderThan, Now: d.Now,
	})
}

func checkHanging(rep *inspect.HangingReport) error {
	switch {
	case len(rep.Rows) > 0:
		return &pendingCheckError{count(len(rep.Rows), "transaction hangs", "transactions hang")}
	case len(rep.Gaps) > 0:
		return &pendingCheckError{"it is not known whether a transaction hangs: " + rep.Gaps[0].Reason}
	}
	return nil
}
