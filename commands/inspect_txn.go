package commands

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// inspectTxnOptions is everything "inspect txn" can be told.
type inspectTxnOptions struct {
	connection
	TransactionalIDs []string // nil: a list
	All              bool
	States           []string
	OlderThan        time.Duration
	Pattern          string
	Hanging          bool
}

// txnResult is one of the two that "inspect txn" gives.
type txnResult struct {
	Txns    *inspect.TxnReport
	Hanging *inspect.HangingReport
}

func newInspectTxnCmd(d *Deps, run runFunc[inspectTxnOptions, *txnResult]) *cobra.Command {
	var opts inspectTxnOptions
	cmd := &cobra.Command{
		Use:   "txn [<transactional-id>...]",
		Short: "List transactions that hold share acknowledgements, or all; describe some",
		Long: `List transactions, or describe those that are named: state, producer, age, when
they end by themselves, and which partitions take part.

A list has the transactions that are open and hold share acknowledgements: those
with a partition of __share_group_state. --all lists the others too, and those
that have ended, as far as their coordinators remember. An ended transaction has
no age.

With --hanging it looks for transactions that are open in a partition and that
no coordinator will end there, so that read_committed consumers wait for ever.
Every partition is asked, of internal topics too, and what seems to hang is
looked at twice. --older-than then counts from the last record of the producer.`,
		Example: `  kshare inspect txn -b localhost:9092
  kshare inspect txn --all --older-than 1m
  kshare inspect txn billing-7 -o json
  kshare inspect txn --hanging`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				opts.TransactionalIDs = args
			}
			if err := opts.check(cmd.Flags()); err != nil {
				return err
			}
			res, err := run(cmd.Context(), d, opts)
			if res == nil {
				return err
			}
			if opts.Hanging {
				err = d.show(inspectHangingView(d, res.Hanging), err)
				d.hintHanging(res.Hanging)
				return err
			}
			err = d.show(inspectTxnView(res.Txns, opts), err)
			d.hintGaps(res.Txns.Gaps)
			return err
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&opts.All, "all", false, "those that hold no share acknowledgements too, and those that have ended")
	fs.StringSliceVar(&opts.States, "state", nil, "only transactions in one of these `states`: "+strings.Join(txnStates(), ", "))
	fs.DurationVar(&opts.OlderThan, "older-than", 0, "only open transactions that began more than `duration` ago")
	fs.StringVar(&opts.Pattern, "pattern", "", "only transactional IDs that match this regular `expression` (RE2) as a whole")
	fs.BoolVar(&opts.Hanging, "hanging", false, "look for transactions that no coordinator will end")
	opts.connection.addWithoutDialect(fs)
	return exits(cmd, exitPartial, exitAuth)
}

// txnStates are the states that a coordinator lists, by Kafka's names.
func txnStates() []string {
	return append(inspect.OpenStates(), "CompleteCommit", "CompleteAbort", "Empty")
}

// check returns a usage error for what the flags alone can tell.
func (o *inspectTxnOptions) check(fs *pflag.FlagSet) error {
	for i, s := range o.States {
		j := slices.IndexFunc(txnStates(), func(known string) bool { return strings.EqualFold(s, known) })
		if j < 0 {
			return usagef("--state %q: want %s", s, strings.Join(txnStates(), ", "))
		}
		o.States[i] = txnStates()[j]
	}
	if slices.Contains(o.TransactionalIDs, "") {
		return hintf(usagef("a transactional ID is empty"), "leave the argument out to list transactions")
	}
	if _, err := regexp.Compile(o.Pattern); err != nil {
		return usagef("--pattern %q: %v", o.Pattern, err)
	}
	if o.OlderThan < 0 || fs.Changed("older-than") && o.OlderThan == 0 {
		return usagef("--older-than %s: want a positive duration", o.OlderThan)
	}
	ended := func(s string) bool { return !slices.Contains(inspect.OpenStates(), s) }
	if i := slices.IndexFunc(o.States, ended); i >= 0 && o.OlderThan > 0 {
		return usagef("--older-than is about open transactions, and --state %s is none", o.States[i])
	}
	for _, flag := range []string{"all", "state", "pattern", "older-than", "hanging"} {
		switch {
		case !fs.Changed(flag):
		case len(o.TransactionalIDs) > 0:
			return usagef("--%s chooses from a list, and transactional IDs are named", flag)
		case o.Hanging && flag != "hanging" && flag != "older-than":
			return usagef("--%s and --hanging exclude each other", flag)
		}
	}
	return nil
}

func runInspectTxn(ctx context.Context, d *Deps, opts inspectTxnOptions) (*txnResult, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	if opts.Hanging {
		rep, err := inspect.ListHanging(ctx, cl, inspect.HangingOptions{MinAge: opts.OlderThan, Now: d.Now})
		if err != nil {
			return nil, err
		}
		return &txnResult{Hanging: rep}, nil
	}
	rep, err := inspect.DescribeTransactions(ctx, cl, inspect.TxnOptions{
		TransactionalIDs: opts.TransactionalIDs, All: opts.All, States: opts.States,
		OlderThan: opts.OlderThan, Pattern: opts.Pattern, Now: d.Now,
	})
	if rep == nil {
		return nil, err
	}
	return &txnResult{Txns: rep}, err
}

func inspectTxnView(r *inspect.TxnReport, opts inspectTxnOptions) output.View {
	t := output.NewTable("TRANSACTIONAL-ID", "STATE", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR", "AGE", "LEFT", "SHARE-STATE", "PARTITIONS")
	wide := output.NewTable("TRANSACTIONAL-ID", "STATE", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR", "STARTED", "AGE", "TIMEOUT", "DEADLINE",
		"TWO-PHASE", "SHARE-ACKNOWLEDGEMENTS", "TOPIC-PARTITIONS")
	for i := range r.Rows {
		x := &r.Rows[i]
		t.Row(output.Key(x.TransactionalID), txnStateCell(x), x.ProducerID, x.ProducerEpoch, x.Coordinator,
			txnAgeCell(x), txnLeftCell(x, r.Time), shareStateCell(x), partitionCountCell(x))
		wide.Row(output.Key(x.TransactionalID), txnStateCell(x), x.ProducerID, x.ProducerEpoch, x.Coordinator,
			startedCell(x), txnAgeCell(x), txnTimeoutCell(x), txnDeadlineCell(x), yesNo(x.TwoPhase), holdsCell(x), txnPartitionsCell(x))
	}
	v := output.View{
		Kind: "inspect.txn", Version: 1, ClusterID: r.ClusterID, Time: r.Time.Truncate(time.Millisecond),
		Incomplete: len(r.Gaps) > 0, Warnings: gapWarnings(r.Gaps),
		Items: r.Rows, Data: r, Table: t, Wide: wide,
	}
	if opts.TransactionalIDs != nil {
		v.Sections = []output.Section{{Table: t, Wide: wide}, {Table: participantTable(r.Rows)}}
		return v
	}
	v.Empty = emptyTxns(r, opts)
	return v
}

// emptyTxns is the sentence in place of a table without rows.
func emptyTxns(r *inspect.TxnReport, opts inspectTxnOptions) string {
	if len(r.Gaps) > 0 {
		return "no transaction could be seen, and there may be some"
	}
	what := "no transaction"
	if (!opts.All || opts.OlderThan > 0) && len(opts.States) == 0 {
		what = "no open transaction"
	}
	if opts.OlderThan > 0 || opts.Pattern != "" || len(opts.States) > 0 {
		what += " of that kind"
	}
	switch {
	case opts.All:
		return what + " is known"
	case r.Others > 0:
		return fmt.Sprintf("%s holds share acknowledgements; --all lists %d more", what, r.Others)
	}
	return what + " holds share acknowledgements"
}

// participantTable has a line for each topic that takes part in a transaction.
func participantTable(rows []inspect.TxnRow) *output.Table {
	t := output.NewTable("TRANSACTIONAL-ID", "TOPIC", "PARTITIONS", "HOLDS")
	for _, x := range rows {
		for _, p := range x.Partitions {
			holds := "records"
			switch p.Topic {
			case "__share_group_state":
				holds = "share acknowledgements"
			case "__consumer_offsets":
				holds = "offsets of consumer groups"
			}
			t.Row(output.Key(x.TransactionalID), p.Topic, joinPartitions(p.Partitions), holds)
		}
	}
	return t
}

func txnStateCell(x *inspect.TxnRow) any {
	if x.TwoPhase && isOpen(x) {
		return x.State + " (two-phase)"
	}
	return x.State
}

func isOpen(x *inspect.TxnRow) bool { return slices.Contains(inspect.OpenStates(), x.State) }

func txnAgeCell(x *inspect.TxnRow) any {
	if !isOpen(x) {
		return output.NA()
	}
	return ageCell(x.AgeMS)
}

func startedCell(x *inspect.TxnRow) any {
	if !isOpen(x) {
		return notYet(x.Started)
	}
	return x.Started
}

func txnTimeoutCell(x *inspect.TxnRow) any {
	switch {
	case x.TwoPhase:
		return output.NA()
	case x.TimeoutMS == nil:
		return output.Unknown()
	}
	return time.Duration(*x.TimeoutMS) * time.Millisecond
}

// ends reports whether a transaction will end by itself.
func ends(x *inspect.TxnRow) bool { return x.State == "Ongoing" && !x.TwoPhase }

func txnDeadlineCell(x *inspect.TxnRow) any {
	if !ends(x) {
		return output.NA()
	}
	return x.Deadline
}

func txnLeftCell(x *inspect.TxnRow, now time.Time) any {
	if !ends(x) {
		return output.NA()
	}
	return untilCell(x.Deadline, now)
}

func holdsCell(x *inspect.TxnRow) any {
	if x.HoldsShareAcks == nil {
		return output.Unknown()
	}
	return yesNo(*x.HoldsShareAcks)
}

// shareStateCell is the partitions of __share_group_state that take part.
func shareStateCell(x *inspect.TxnRow) any {
	switch {
	case x.HoldsShareAcks == nil:
		return output.Unknown()
	case !*x.HoldsShareAcks:
		return output.NA()
	}
	for _, p := range x.Partitions {
		if p.Topic == "__share_group_state" {
			return joinPartitions(p.Partitions)
		}
	}
	return output.Unknown()
}

func partitionCountCell(x *inspect.TxnRow) any {
	if x.Partitions == nil {
		return output.Unknown()
	}
	n := 0
	for _, p := range x.Partitions {
		n += len(p.Partitions)
	}
	return n
}

func txnPartitionsCell(x *inspect.TxnRow) any {
	if x.Partitions == nil {
		return output.Unknown()
	}
	return joinTopicPartitions(x.Partitions)
}

// hangingItem is a row with the command that resolves it, which can be pasted
// into a shell; null when there is none.
type hangingItem struct {
	*inspect.HangingRow
	Command *string `json:"command"`
}

func inspectHangingView(d *Deps, r *inspect.HangingReport) output.View {
	items := make([]hangingItem, len(r.Rows))
	t := output.NewTable("TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "START-OFFSET", "AGE", "TRANSACTIONAL-ID", "STATE", "VERDICT")
	wide := output.NewTable("TOPIC", "PARTITION", "LEADER", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH", "START-OFFSET",
		"LAST-TIMESTAMP", "AGE", "TRANSACTIONAL-ID", "TRANSACTION-STATE", "VERDICT", "REASON", "COMMAND")
	for i := range r.Rows {
		x := &r.Rows[i]
		items[i] = hangingItem{HangingRow: x}
		command := output.NA()
		if c, ok := d.commandLine(x.Command); ok {
			items[i].Command, command = &c, output.CellOf(c)
		}
		verdict := output.Bad("hanging")
		if !x.Certain {
			verdict = output.Warn("possible")
		}
		t.Row(output.Key(x.Topic), x.Partition, x.ProducerID, x.ProducerEpoch, x.StartOffset, ageCell(x.AgeMS),
			hangingIDCell(x, x.TransactionalID), hangingIDCell(x, x.TransactionState), verdict)
		wide.Row(output.Key(x.Topic), x.Partition, x.Leader, x.ProducerID, x.ProducerEpoch, notYet(x.CoordinatorEpoch), x.StartOffset,
			x.LastTimestamp, ageCell(x.AgeMS), hangingIDCell(x, x.TransactionalID), hangingIDCell(x, x.TransactionState), verdict, x.Reason, command)
	}
	v := output.View{
		Kind: "inspect.hanging", Version: 1, ClusterID: r.ClusterID, Time: r.Time.Truncate(time.Millisecond),
		Incomplete: len(r.Gaps) > 0, Warnings: gapWarnings(r.Gaps),
		Items: items, Data: r, Table: t, Wide: wide,
		Empty: fmt.Sprintf("no transaction hangs in %s", count(r.Partitions, "partition", "partitions")),
	}
	if v.Incomplete {
		v.Empty = "no transaction that hangs could be seen, and there may be some"
	}
	return v
}

// hangingIDCell is the cell of what no coordinator tells: it does not apply where
// none could, and is not known where one may.
func hangingIDCell(x *inspect.HangingRow, s *string) any {
	if s == nil && x.Certain {
		return output.NA()
	}
	return s
}

// hintHanging says what to do: about what could not be seen, and about each row.
func (d *Deps) hintHanging(r *inspect.HangingReport) {
	d.hintGaps(r.Gaps)
	if d.flags.Output != output.FormatTable {
		return
	}
	for i := range r.Rows[:min(len(r.Rows), shownHints)] {
		x := &r.Rows[i]
		if c, ok := d.commandLine(x.Command); ok {
			d.Hint(fmt.Sprintf("%s-%d: %s; to abort it there: %s", x.Topic, x.Partition, x.Reason, c))
		}
	}
	if more := len(r.Rows) - shownHints; more > 0 {
		d.Hint(fmt.Sprintf("and %d more; -o wide and -o json have the command of each row", more))
	}
}
