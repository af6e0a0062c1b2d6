package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
)

// txnAbortOptions is everything "txn abort" can be told. What is not given is -1.
type txnAbortOptions struct {
	connection
	Topic            string
	Partition        int32
	StartOffset      int64
	ProducerID       int64
	ProducerEpoch    int16
	CoordinatorEpoch int32
	Force            bool
	DryRun           bool
}

// statesTopic is the topic in whose partitions records are TX_PENDING.
const statesTopic = "__share_group_state"

func newTxnAbortCmd(d *Deps, run runFunc[txnAbortOptions, *txnAbortResult]) *cobra.Command {
	opts := txnAbortOptions{}
	var from tokenSource
	cmd := &cobra.Command{
		Use:   "abort [<token>]",
		Short: "Abort a prepared transaction, or write the marker of one that nobody will end",
		Long: `With a token, as an argument or by --token-file, abort a prepared transaction as
'kshare txn resume --abort' does.

With --topic and --partition, write the ABORT marker of a transaction into one
partition, past its coordinator (WriteTxnMarkers, KIP-664). It is the last
resort, for transactions that hang:
'kshare txn find-hanging' finds those that hold consumers back, 'kshare inspect
pending' the records that were left in TX_PENDING, each with the command.

In a topic the transaction is named by the offset where it begins, or by its
producer; in __share_group_state by the producer that has staged records there,
and the epoch is that of these records.

It stops where the transaction is open and lists the partition, since its
coordinator will end it ('kshare txn fence' makes it), and where that cannot be
seen, or whether the producer has staged anything there (exit status 6); --force
writes the marker all the same. It never does for
a transaction that is being committed, or whose records are in TX_PENDING though
it was committed: 'kshare drain --abort-hanging' finishes the commit.

It needs ALTER or CLUSTER_ACTION on the cluster, and READ on the topic.`,
		Example: `  kshare txn abort --token-file token.txt --yes
  kshare txn abort --topic shipped --partition 0 --start-offset 1200 --yes
  kshare txn abort --topic shipped --partition 0 --producer-id 4000 --producer-epoch 0 --yes
  kshare txn abort --topic __share_group_state --partition 7 --producer-id 4000 --producer-epoch 0 --dry-run`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 || from.File != "" {
				for _, f := range []string{"topic", "partition", "start-offset", "producer-id", "producer-epoch", "coordinator-epoch", "force"} {
					if cmd.Flags().Changed(f) {
						return usagef("--%s is for a marker by hand, and a token names its transaction by itself", f)
					}
				}
				return runEnd(cmd, d, txnEndOptions{connection: opts.connection, Decision: decideAbort, DryRun: opts.DryRun}, &from, args, runTxnEnd)
			}
			if err := opts.check(cmd.Flags().Changed); err != nil {
				return err
			}
			if !opts.DryRun {
				if err := d.canConfirm(); err != nil {
					return err
				}
			}
			res, err := run(cmd.Context(), d, opts)
			return d.show(txnAbortView(res), err)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.Topic, "topic", "", "`name` of the topic")
	fs.Int32Var(&opts.Partition, "partition", -1, "`number` of the partition")
	fs.Int64Var(&opts.StartOffset, "start-offset", -1, "the `offset` where the transaction begins")
	fs.Int64Var(&opts.ProducerID, "producer-id", -1, "`id` of the producer")
	fs.Int16Var(&opts.ProducerEpoch, "producer-epoch", -1, "`epoch` of the producer")
	fs.Int32Var(&opts.CoordinatorEpoch, "coordinator-epoch", -1, "`epoch` of the coordinator (default what the leader of the partition knows)")
	hideDefaults(fs, "partition", "start-offset", "producer-id", "producer-epoch", "coordinator-epoch")
	fs.BoolVar(&opts.Force, "force", false, "write it also where a coordinator may end the transaction")
	fs.BoolVar(&opts.DryRun, "dry-run", false, "show what would be aborted, and do nothing")
	from.addTo(fs)
	opts.connection.addTo(fs)
	return exits(cmd, exitAuth, exitUnsupported, exitRefused, exitFenced, exitUnknownOutcome, exitOtherwise)
}

// check returns a usage error for what the flags alone can tell.
func (o *txnAbortOptions) check(changed func(string) bool) error {
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"partition", o.Partition < 0},
		{"start-offset", o.StartOffset < 0},
		{"producer-id", o.ProducerID < 0},
		{"producer-epoch", o.ProducerEpoch < 0},
		{"coordinator-epoch", o.CoordinatorEpoch < 0},
	} {
		if f.bad && changed(f.name) {
			return usagef("--%s: want 0 or more", f.name)
		}
	}
	producer := o.ProducerID >= 0 && o.ProducerEpoch >= 0
	switch {
	case o.Topic == "" || o.Partition < 0:
		return hintf(usagef("--topic and --partition are needed, or a token"), "'kshare txn find-hanging' and 'kshare inspect pending' have the whole command")
	case o.Topic == statesTopic && !producer:
		return usagef("in %s a transaction is named by --producer-id and --producer-epoch: records are not staged at an offset of it", statesTopic)
	case o.StartOffset < 0 && !producer:
		return usagef("want --start-offset, or --producer-id and --producer-epoch")
	case o.StartOffset >= 0 && (o.ProducerID >= 0 || o.ProducerEpoch >= 0 || o.CoordinatorEpoch >= 0):
		return usagef("--start-offset names the transaction by itself: leave out the producer, or name that alone")
	}
	return checkDialect(o.Dialect)
}

// txnAbortResult is what came of "txn abort".
type txnAbortResult struct {
	ClusterID string     `json:"-"`
	Items     []txnAbort `json:"-"` // one
	DryRun    bool       `json:"dry_run"`
}

// txnAbort is the marker that was to be written.
type txnAbort struct {
	Topic            string  `json:"topic"`
	Partition        int32   `json:"partition"`
	ProducerID       int64   `json:"producer_id"`
	ProducerEpoch    int16   `json:"producer_epoch"`
	CoordinatorEpoch *int32  `json:"coordinator_epoch"` // nil: the leader is asked right before
	StartOffset      *int64  `json:"start_offset"`      // nil where there is none
	TransactionalID  *string `json:"transactional_id"`
	TransactionState *string `json:"transaction_state"` // as its coordinator has it
	Plan             string  `json:"plan"`              // a sentence without a full stop
	Result           string  `json:"result"`            // planned, aborted, refused or failed
	Error            *string `json:"error"`
}

func runTxnAbort(ctx context.Context, d *Deps, opts txnAbortOptions) (*txnAbortResult, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	res, err := planTxnAbort(ctx, d, cl, opts)
	if err != nil || opts.DryRun {
		return res, err
	}
	a := &res.Items[0]
	if err := d.Confirm(fmt.Sprintf("This is to write an ABORT marker of producer %d, epoch %d, to %s-%d on cluster %s.", a.ProducerID, a.ProducerEpoch, a.Topic, a.Partition, res.ClusterID), "abort"); err != nil {
		return nil, err
	}
	m := drain.Marker{Topic: a.Topic, Partition: a.Partition, ProducerID: a.ProducerID, ProducerEpoch: a.ProducerEpoch, CoordinatorEpoch: -1}
	if a.CoordinatorEpoch != nil {
		m.CoordinatorEpoch = *a.CoordinatorEpoch
	}
	ctx, cancel := actContext(ctx)
	defer cancel()
	if err := drain.WriteMarkers(ctx, cl, drain.NewClock(d.Now), []drain.Marker{m}); err != nil {
		a.Result, a.Error = "failed", new(err.Error())
		return res, &drain.ActError{Err: err}
	}
	a.Result = "aborted"
	return res, nil
}

// planTxnAbort finds the transaction, and whether its coordinator would end it.
func planTxnAbort(ctx context.Context, d *Deps, cl inspect.Cluster, opts txnAbortOptions) (*txnAbortResult, error) {
	desc, err := cl.Describe(ctx)
	if err != nil {
		return nil, err
	}
	topics, err := cl.Topics(ctx, opts.Topic)
	if err != nil {
		return nil, err
	}
	topic := topics[opts.Topic]
	topic.Partitions = slices.DeleteFunc(slices.Clone(topic.Partitions), func(p cluster.Partition) bool { return p.Partition != opts.Partition })
	if len(topic.Partitions) == 0 {
		return nil, hintf(fmt.Errorf("topic %q has no partition %d", opts.Topic, opts.Partition), "it has %d, numbered from 0", len(topics[opts.Topic].Partitions))
	}
	a, err := findProducer(ctx, cl, topic, opts)
	if err != nil {
		return nil, err
	}
	res := &txnAbortResult{ClusterID: desc.ClusterID, Items: []txnAbort{a}, DryRun: opts.DryRun}
	err = res.Items[0].judge(ctx, d, cl, desc.Brokers, opts)
	if res.Items[0].Plan == "" {
		return nil, err
	}
	d.Notice(fmt.Sprintf("%s-%d: producer %d, epoch %d: %s", a.Topic, a.Partition, a.ProducerID, a.ProducerEpoch, res.Items[0].Plan))
	return res, err
}

// findProducer completes what was given from what the leader of the partition
// knows.
func findProducer(ctx context.Context, cl inspect.Cluster, topic cluster.Topic, opts txnAbortOptions) (txnAbort, error) {
	a := txnAbort{Topic: opts.Topic, Partition: opts.Partition, ProducerID: opts.ProducerID, ProducerEpoch: opts.ProducerEpoch, Result: "planned"}
	if opts.CoordinatorEpoch >= 0 {
		a.CoordinatorEpoch = &opts.CoordinatorEpoch
	}
	if opts.Topic == statesTopic {
		return a, nil // staging is no transactional batch: the log knows nothing of it
	}
	known, gaps, err := inspect.DescribeProducers(ctx, cl, inspect.ProducerQuery{Topics: []cluster.Topic{topic}})
	if err != nil {
		return a, err
	}
	if len(gaps) > 0 {
		err := errors.New(gaps[0].Reason)
		if gaps[0].ACL != nil {
			return a, &cluster.AuthError{Err: err, Advice: gaps[0].Advice}
		}
		return a, hintf(err, "%s", gaps[0].Advice)
	}
	i := slices.IndexFunc(known, func(p inspect.Producer) bool {
		if opts.StartOffset >= 0 {
			return p.TxnStartOffset == opts.StartOffset
		}
		return p.ProducerID == opts.ProducerID
	})
	switch {
	case i >= 0 && known[i].TxnStartOffset >= 0 && (opts.StartOffset >= 0 || known[i].ProducerEpoch == int32(opts.ProducerEpoch)):
	case opts.StartOffset >= 0:
		return a, hintf(fmt.Errorf("no transaction that is open in %s-%d begins at offset %d", opts.Topic, opts.Partition, opts.StartOffset), "'kshare txn find-hanging --topic %s' lists those that hang", opts.Topic)
	case i < 0:
		return a, fmt.Errorf("%s-%d knows no producer %d", opts.Topic, opts.Partition, opts.ProducerID)
	case known[i].TxnStartOffset < 0:
		return a, fmt.Errorf("producer %d has no transaction open in %s-%d", opts.ProducerID, opts.Topic, opts.Partition)
	default:
		return a, fmt.Errorf("producer %d has a transaction open in %s-%d with epoch %d, not %d", opts.ProducerID, opts.Topic, opts.Partition, known[i].ProducerEpoch, opts.ProducerEpoch)
	}
	p := known[i]
	a.ProducerID, a.ProducerEpoch, a.StartOffset = p.ProducerID, int16(p.ProducerEpoch), &p.TxnStartOffset
	if a.CoordinatorEpoch == nil {
		a.CoordinatorEpoch = new(max(p.CoordinatorEpoch, 0))
	}
	return a, nil
}

// judge says what is to be done, and refuses what a coordinator will end.
func (a *txnAbort) judge(ctx context.Context, d *Deps, cl inspect.Cluster, brokers []cluster.BrokerVersions, opts txnAbortOptions) error {
	txns, gaps, err := inspect.ListTransactions(ctx, cl, brokers, inspect.TransactionQuery{ProducerIDs: []int64{a.ProducerID}, Describe: true, Now: d.Now})
	if err != nil {
		return err
	}
	hidden, err := inspect.ProbeTransactions(ctx, cl, brokers)
	if err != nil {
		return err
	}
	gaps = append(hidden, gaps...)
	var owner *inspect.Transaction
	if i := slices.IndexFunc(txns, func(t inspect.Transaction) bool { return t.ProducerID == a.ProducerID }); i >= 0 {
		owner = &txns[i]
		a.TransactionalID, a.TransactionState = &owner.TransactionalID, &owner.State
	}
	refuse := func(advice, format string, args ...any) error {
		a.Plan, a.Result = fmt.Sprintf(format, args...), "refused"
		return &drain.RefusedError{Op: fmt.Sprintf("abort the transaction of producer %d in %s-%d", a.ProducerID, a.Topic, a.Partition), Reason: a.Plan, Advice: advice}
	}
	outcome := drain.OutcomeOf(txns, a.ProducerID, a.ProducerEpoch)
	switch {
	case owner != nil && owner.State == "PrepareCommit" && a.holds(*owner):
		return refuse(fmt.Sprintf("look at broker %d, which coordinates it, and at the leaders of its partitions", owner.Coordinator), "%q is being committed, which is decided", owner.TransactionalID)
	case a.Topic == statesTopic && outcome.Committed:
		return refuse("kshare drain --abort-hanging writes the COMMIT marker", "%s", outcome.Text)
	case opts.Force:
		a.Plan = "its ABORT marker is written, whatever a coordinator knows of it (--force)"
		return nil
	case owner != nil && owner.Open() && a.holds(*owner):
		return refuse(fmt.Sprintf("kshare txn fence %s makes its coordinator abort it", owner.TransactionalID), "%q is open (%s) and its coordinator will end it", owner.TransactionalID, owner.State)
	case len(gaps) > 0:
		return refuse(gaps[0].Advice, "it is not known whether a coordinator will end it: %s", gaps[0].Reason)
	}
	if a.Topic == statesTopic {
		ev, err := inspect.Collect(ctx, cl, inspect.CollectOptions{Dialect: opts.Dialect, Now: d.Now})
		if err != nil {
			return err
		}
		if why, advice, err := a.staged(ev); err != nil {
			return err
		} else if why != "" {
			return refuse(advice, "%s", why)
		}
	}
	a.Plan = "its ABORT marker is written: " + outcome.Text
	if owner == nil && a.Topic == statesTopic {
		d.Warn("whether this transaction was committed is not known; if it was, its records are delivered again after the abort")
	}
	return nil
}

// staged looks for records that the producer has staged there: without any, a
// marker would be of no use, and the producer, or the partition, another one than
// was meant. It returns an error where there are none, and why that is not known
// where it is not.
func (a *txnAbort) staged(ev *inspect.Evidence) (why, advice string, err error) {
	epochs := []string{}
	for _, s := range ev.States {
		for _, b := range s.Batches {
			if s.StatePartition != a.Partition || b.DeliveryState != wire.TxPending || b.Staged.ProducerID != a.ProducerID {
				continue
			}
			if b.Staged.ProducerEpoch == a.ProducerEpoch {
				return "", "", nil
			}
			if e := fmt.Sprint(b.Staged.ProducerEpoch); !slices.Contains(epochs, e) {
				epochs = append(epochs, e)
			}
		}
	}
	if len(epochs) > 0 {
		return "", "", fmt.Errorf("records in %s-%d are staged by producer %d with epoch %s, not %d", a.Topic, a.Partition, a.ProducerID, strings.Join(epochs, " and "), a.ProducerEpoch)
	}
	none := fmt.Sprintf("no record is seen in %s-%d that producer %d has staged", a.Topic, a.Partition, a.ProducerID)
	switch {
	case len(ev.Gaps) > 0:
		return none + ", and not all can be seen: " + ev.Gaps[0].Reason, ev.Gaps[0].Advice, nil
	case !ev.Persists:
		return none + ", which is no proof where leaders keep that in memory alone", "--force writes the marker all the same", nil
	}
	return "", "", hintf(errors.New(none), "'kshare inspect pending' shows what is staged, and by whom")
}

// holds reports whether a transaction of the producer is, or may be, the one that
// is open in the partition.
func (a *txnAbort) holds(t inspect.Transaction) bool {
	if t.Partitions == nil {
		return true
	}
	if a.Topic == statesTopic && t.State == "Ongoing" && t.ProducerEpoch > a.ProducerEpoch {
		return false // it has gone on since
	}
	return slices.ContainsFunc(t.Partitions, func(p inspect.TopicPartitions) bool {
		return p.Topic == a.Topic && slices.Contains(p.Partitions, a.Partition)
	})
}

func txnAbortView(res *txnAbortResult) output.View {
	if res == nil {
		return output.View{}
	}
	t := output.NewTable("TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH", "START-OFFSET", "TRANSACTIONAL-ID", "STATE", "RESULT", "PLAN")
	for _, a := range res.Items {
		coordinator, start, id, state := any(output.NA()), any(output.NA()), any(output.NA()), any(output.NA())
		if a.CoordinatorEpoch != nil {
			coordinator = *a.CoordinatorEpoch
		}
		if a.StartOffset != nil {
			start = *a.StartOffset
		}
		if a.TransactionalID != nil {
			id, state = *a.TransactionalID, *a.TransactionState
		}
		t.Row(output.Key(a.Topic), a.Partition, a.ProducerID, a.ProducerEpoch, coordinator, start, id, state, fenceCell(a.Result), a.Plan)
	}
	return output.View{Kind: "txn.abort", Version: 1, ClusterID: res.ClusterID, Items: res.Items, Data: res, Table: t}
}
