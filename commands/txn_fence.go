package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// txnFenceOptions is everything "txn fence" can be told.
type txnFenceOptions struct {
	connection
	TransactionalIDs []string
	DryRun           bool
}

func newTxnFenceCmd(d *Deps, run runFunc[txnFenceOptions, *txnFenceResult]) *cobra.Command {
	var opts txnFenceOptions
	cmd := &cobra.Command{
		Use:   "fence <transactional-id>...",
		Short: "Take transactional IDs from their producers, which aborts what is open",
		Long: `Take transactional IDs from the producers that have them, with InitProducerId:
a transaction that is open is aborted, and the next request of the producer
fails. Records that it produced are not visible to read_committed consumers, and
records whose acknowledgements it had staged are delivered again.

Where a transaction is part of a two-phase commit, its decision is discarded,
even if it is prepared. A transaction that is being committed is not touched,
since that is decided (exit status 6).

The command ends when the abort is complete, after a minute at the latest unless
--timeout says otherwise. It needs WRITE on the transactional IDs.`,
		Example: `  kshare txn fence billing-1 --dry-run
  kshare txn fence billing-1 billing-2 --yes`,
		Args: needIDs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.TransactionalIDs = args
			if err := checkDialect(opts.Dialect); err != nil {
				return err
			}
			if !opts.DryRun {
				if err := d.canConfirm(); err != nil {
					return err
				}
			}
			res, err := run(cmd.Context(), d, opts)
			return d.show(txnFenceView(res), err)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&opts.DryRun, "dry-run", false, "show what would be fenced, and do nothing")
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth, exitUnsupported, exitRefused)
}

// needIDs is for commands that take transactional IDs as arguments.
func needIDs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return hintf(usagef("%q needs a transactional ID", cmd.CommandPath()), "'kshare inspect txn' lists them")
	}
	if slices.Contains(args, "") {
		return usagef("a transactional ID is empty")
	}
	if sorted := slices.Compact(slices.Sorted(slices.Values(args))); len(sorted) < len(args) {
		return usagef("a transactional ID is given twice")
	}
	return nil
}

// defaultActTimeout bounds acts where --timeout does not.
const defaultActTimeout = time.Minute

// actContext returns a context for acts by hand.
func actContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, defaultActTimeout, &timeoutError{flag: defaultActTimeout.String() + " (the default)"})
}

// txnFenceResult is what came of "txn fence".
type txnFenceResult struct {
	ClusterID string     `json:"-"`
	Items     []txnFence `json:"-"`
	DryRun    bool       `json:"dry_run"`
}

// txnFence is one transactional ID that was to be fenced.
type txnFence struct {
	TransactionalID string     `json:"transactional_id"`
	State           string     `json:"transaction_state"` // before
	Coordinator     int32      `json:"coordinator"`
	ProducerID      int64      `json:"producer_id"`    // before
	ProducerEpoch   *int16     `json:"producer_epoch"` // before
	Started         *time.Time `json:"started"`        // of the open transaction
	TwoPhase        bool       `json:"two_phase"`
	// HoldsShareAcks: share acknowledgements are staged in the open transaction.
	HoldsShareAcks *bool                     `json:"holds_share_acknowledgements"`
	Partitions     []inspect.TopicPartitions `json:"topic_partitions"`
	Plan           string                    `json:"plan"`   // a sentence without a full stop
	Result         string                    `json:"result"` // planned, fenced, refused, failed or not_attempted
	Error          *string                   `json:"error"`
	NewProducerID  *int64                    `json:"new_producer_id"`
	NewEpoch       *int16                    `json:"new_producer_epoch"`

	want inspect.Transaction
}

func runTxnFence(ctx context.Context, d *Deps, opts txnFenceOptions) (*txnFenceResult, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	res, err := planTxnFence(ctx, d, cl, opts)
	if err != nil || opts.DryRun {
		return res, err
	}
	if err := d.Confirm(res.question(), "fence"); err != nil {
		return nil, err
	}
	ctx, cancel := actContext(ctx)
	defer cancel()
	return res, res.execute(ctx, cl, drain.NewClock(d.Now))
}

// planTxnFence describes the IDs. None is fenced when one of them must not be, or
// is not known: a transactional ID that nobody has would be created.
func planTxnFence(ctx context.Context, d *Deps, cl inspect.Cluster, opts txnFenceOptions) (*txnFenceResult, error) {
	rep, err := inspect.DescribeTransactions(ctx, cl, inspect.TxnOptions{TransactionalIDs: opts.TransactionalIDs, Now: d.Now})
	if err != nil {
		return nil, err
	}
	res := &txnFenceResult{ClusterID: rep.ClusterID, DryRun: opts.DryRun}
	for _, row := range rep.Rows {
		f := newTxnFence(row)
		if f.Result == "refused" && err == nil {
			err = &drain.RefusedError{
				Op: fmt.Sprintf("fence transactional ID %q", f.TransactionalID), Reason: f.Plan,
				Advice: fmt.Sprintf("wait until broker %d, which coordinates it, has written its markers", f.Coordinator),
			}
		}
		if f.TwoPhase && f.State == "Ongoing" {
			d.Warn(fmt.Sprintf("%q is part of a two-phase commit: fencing it discards the decision, if it is prepared", f.TransactionalID))
		}
		res.Items = append(res.Items, f)
	}
	if len(rep.Gaps) > 0 {
		return nil, &inspect.GapError{Gap: rep.Gaps[0]}
	}
	for i := range res.Items {
		if f := &res.Items[i]; err != nil && f.Result != "refused" {
			f.Result = "not_attempted"
		}
		d.Notice(fmt.Sprintf("to be fenced: %q: %s", res.Items[i].TransactionalID, res.Items[i].Plan))
	}
	return res, err
}

func newTxnFence(row inspect.TxnRow) txnFence {
	f := txnFence{
		TransactionalID: row.TransactionalID, State: row.State, Coordinator: row.Coordinator,
		ProducerID: row.ProducerID, ProducerEpoch: row.ProducerEpoch, Started: row.Started, TwoPhase: row.TwoPhase,
		HoldsShareAcks: row.HoldsShareAcks, Partitions: row.Partitions, Result: "planned",
	}
	f.want = inspect.Transaction{
		TransactionalID: row.TransactionalID, State: row.State, ProducerID: row.ProducerID, ProducerEpoch: -1, TimeoutMS: -1,
	}
	if row.ProducerEpoch != nil {
		f.want.ProducerEpoch = *row.ProducerEpoch
	}
	if row.TimeoutMS != nil {
		f.want.TimeoutMS = *row.TimeoutMS
	}
	switch row.State {
	case "Ongoing":
		n := 0
		for _, t := range row.Partitions {
			n += len(t.Partitions)
		}
		f.Plan = fmt.Sprintf("its transaction over %s is aborted, and its producer fenced", count(n, "partition", "partitions"))
	case "PrepareCommit":
		f.Plan, f.Result = "its transaction is being committed, which is decided", "refused"
	case "PrepareAbort", "PrepareEpochFence":
		f.Plan = "its transaction is being aborted, and its producer fenced after that"
	default:
		f.Plan = fmt.Sprintf("no transaction is open (%s), and its producer is fenced", row.State)
	}
	return f
}

func (r *txnFenceResult) question() string {
	open := 0
	names := make([]string, 0, len(r.Items))
	for _, f := range r.Items {
		if f.State == "Ongoing" {
			open++
		}
		names = append(names, fmt.Sprintf("%q", f.TransactionalID))
	}
	return fmt.Sprintf("This is to fence %s on cluster %s, and to abort %s.", strings.Join(names, ", "), r.ClusterID, count(open, "open transaction", "open transactions"))
}

// execute fences one ID after the other. The result says which were.
func (r *txnFenceResult) execute(ctx context.Context, cl inspect.Cluster, clock drain.Clock) error {
	var failed []error
	fenced := false
	for i := range r.Items {
		f := &r.Items[i]
		if ctx.Err() != nil {
			f.Result = "not_attempted"
			continue
		}
		got, err := fenceNow(ctx, cl, clock, f.want)
		if err != nil {
			f.Result, f.Error = "failed", new(err.Error())
			failed = append(failed, err)
			continue
		}
		fenced = true
		f.Result, f.NewProducerID, f.NewEpoch = "fenced", &got.ProducerID, &got.ProducerEpoch
	}
	switch {
	case len(failed) == 0:
		return nil
	case fenced && ctx.Err() == nil:
		return &partlyError{failed}
	}
	return cluster.Join(failed...)
}

// fenceTries is how often an ID is described anew that keeps changing: the ID was
// named, and not what its producer happened to be doing.
const fenceTries = 5

func fenceNow(ctx context.Context, cl inspect.Cluster, clock drain.Clock, want inspect.Transaction) (drain.Fenced, error) {
	for range fenceTries {
		got, err := drain.Fence(ctx, cl, clock, want)
		if !errors.Is(err, drain.ErrEnded) {
			return got, err
		}
		if want, err = describeUncommitted(ctx, cl, clock, want.TransactionalID); err != nil {
			return got, err
		}
	}
	return drain.Fenced{}, fmt.Errorf("fence transactional ID %q: its producer is so busy that it changed %d times while it was looked at", want.TransactionalID, fenceTries)
}

// describeUncommitted returns where a transactional ID stands, once it is not in
// the midst of a commit.
func describeUncommitted(ctx context.Context, cl inspect.Cluster, clock drain.Clock, id string) (inspect.Transaction, error) {
	for {
		rep, err := inspect.DescribeTransactions(ctx, cl, inspect.TxnOptions{TransactionalIDs: []string{id}})
		if err != nil {
			return inspect.Transaction{}, err
		}
		if len(rep.Rows) == 1 {
			if f := newTxnFence(rep.Rows[0]); f.Result != "refused" {
				return f.want, nil
			}
		}
		if err := clock.Wait(ctx, commitPause); err != nil {
			return inspect.Transaction{}, fmt.Errorf("fence transactional ID %q, whose transaction is being committed: %w", id, err)
		}
	}
}

// commitPause gives a commit that is decided the time to write its markers.
const commitPause = 500 * time.Millisecond

func txnFenceView(res *txnFenceResult) output.View {
	if res == nil {
		return output.View{}
	}
	t := output.NewTable("TRANSACTIONAL-ID", "STATE", "PRODUCER-ID", "PRODUCER-EPOCH", "RESULT", "PLAN")
	wide := output.NewTable("TRANSACTIONAL-ID", "STATE", "COORDINATOR", "PRODUCER-ID", "PRODUCER-EPOCH", "STARTED", "TWO-PHASE", "PARTITIONS", "NEW-PRODUCER-ID", "NEW-PRODUCER-EPOCH", "RESULT", "PLAN", "ERROR")
	for _, f := range res.Items {
		started, reason := any(output.NA()), any(output.NA())
		if f.Started != nil {
			started = f.Started
		}
		if f.Error != nil {
			reason = *f.Error
		}
		id, epoch := any(output.NA()), any(output.NA())
		if f.NewProducerID != nil {
			id, epoch = *f.NewProducerID, *f.NewEpoch
		}
		t.Row(output.Key(f.TransactionalID), f.State, f.ProducerID, f.ProducerEpoch, fenceCell(f.Result), f.Plan)
		wide.Row(output.Key(f.TransactionalID), f.State, f.Coordinator, f.ProducerID, f.ProducerEpoch, started, yesNo(f.TwoPhase),
			joinTopicPartitions(f.Partitions), id, epoch, fenceCell(f.Result), f.Plan, reason)
	}
	return output.View{Kind: "txn.fence", Version: 1, ClusterID: res.ClusterID, Items: res.Items, Data: res, Table: t, Wide: wide}
}

func fenceCell(result string) any {
	text := strings.ReplaceAll(result, "_", " ")
	switch result {
	case "fenced", "aborted":
		return output.Good(text)
	case "failed", "refused":
		return output.Bad(text)
	case "not_attempted":
		return output.Warn(text)
	}
	return text
}
