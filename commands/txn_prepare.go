package commands

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/txn"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"
)

// txnPrepareOptions is everything "txn prepare" can be told.
type txnPrepareOptions struct {
	ackOptions
	Produce []produceFile
}

// produceFile is a file whose lines are produced.
type produceFile struct{ Topic, File string }

func newTxnPrepareCmd(d *Deps, run runFunc[txnPrepareOptions, *ackResult]) *cobra.Command {
	opts := txnPrepareOptions{ackOptions: ackOptions{Prepare: true}}
	var flags ackFlags
	var produce []string
	cmd := &cobra.Command{
		Use:   "prepare --transactional-id <id>",
		Short: "Stage acknowledgements and produce records, and leave the commit to a token",
		Long: `Stage acknowledgements of a share group and produce records in one transaction,
wait until all of it is at the brokers, and print the token of the transaction.
'kshare txn resume' commits or aborts it by that, from any process (KIP-1289).

Acknowledgements are named, and acquired, as by 'kshare ack'. Of each file that
--produce names, every line becomes the value of a record.

The transaction is an ordinary one: its coordinator aborts it after
--txn-timeout. With --two-phase it has none, where the brokers offer that
(KIP-939): nothing but a decision, or 'kshare txn fence', ends it then. To
initialise another producer with the same transactional ID aborts it too.

Without acknowledgements it works on released Kafka as well.`,
		Example: `  kshare txn prepare --transactional-id billing-1 --group billing --accept orders:0:7-9 --dry-run
  kshare txn prepare --transactional-id billing-1 --produce shipped=records.txt --token-file token.txt --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(d, cmd.Flags().Changed, &flags, produce); err != nil {
				return err
			}
			res, err := run(cmd.Context(), d, opts)
			return d.showToken(txnPrepareView(res), res, err)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.TransactionalID, "transactional-id", "", "`id` of the transaction")
	fs.StringVar(&opts.GroupID, "group", "", "share `group` to acknowledge in; it has to exist")
	flags.addTo(fs)
	addRepeated(fs, &produce, "produce", "produce the lines of `topic=file`, - for stdin; may be repeated")
	fs.BoolVar(&opts.Partial, "partial", false, "acknowledge what could be acquired, even if that is not all")
	fs.DurationVar(&opts.Wait, "wait", 0, "wait up to `duration` for offsets that another member holds")
	fs.DurationVar(&opts.TxnTimeout, "txn-timeout", txn.DefaultTimeout, "transaction timeout, a `duration`: the coordinator aborts it then")
	fs.BoolVar(&opts.TwoPhase, "two-phase", false, "without a timeout, where the brokers offer that (KIP-939); not with --produce")
	fs.StringVar(&opts.TokenFile, tokenFileFlag, "", "write the token to a new `file` as well")
	fs.BoolVar(&opts.DryRun, "dry-run", false, "tell what would be prepared, and do nothing")
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth, exitUnsupported, exitRefused, exitFenced, exitOtherwise)
}

// check returns a usage error for what the flags alone can tell.
func (o *txnPrepareOptions) check(d *Deps, changed func(string) bool, flags *ackFlags, produce []string) error {
	switch {
	case o.TransactionalID == "":
		return usagef("--transactional-id is needed: the ID of the transaction")
	case !flags.given() && len(produce) == 0:
		return usagef("--accept, --reject, --from-file or --produce is needed: what to prepare")
	case o.TwoPhase && len(produce) > 0:
		return usagef("--two-phase is for acknowledgements alone, and --produce is given")
	case !flags.given() && (o.GroupID != "" || o.Partial || changed("wait")):
		return usagef("--group, --partial and --wait are for acknowledgements, and neither --accept, --reject nor --from-file is given")
	}
	stdin := 0
	if flags.FromFile == "-" {
		stdin++
	}
	for _, s := range produce {
		topic, file, ok := strings.Cut(s, "=")
		if !ok || file == "" || !isTopicName(topic) {
			return usagef("--produce %q: want TOPIC=FILE, or TOPIC=- for stdin", s)
		}
		if file == "-" {
			stdin++
		} else if info, err := os.Stat(file); err != nil {
			return usagef("--produce %q: %s", s, err)
		} else if info.IsDir() {
			return usagef("--produce %q: is a directory, want a file", s)
		}
		o.Produce = append(o.Produce, produceFile{topic, file})
	}
	switch {
	case stdin > 1:
		return usagef("stdin can be read once only")
	case stdin > 0 && !d.flags.Yes && !o.DryRun:
		return hintf(usagef("stdin has what is to be prepared, so nothing can be confirmed there"), "repeat the command with --yes")
	}
	if flags.given() {
		return o.ackOptions.check(d, changed, flags)
	}
	if err := checkTxnTimeout(o.TxnTimeout, o.TwoPhase, changed); err != nil {
		return err
	}
	if err := checkDialect(o.Dialect); err != nil {
		return err
	}
	if !o.DryRun {
		return d.canConfirm()
	}
	return nil
}

func runTxnPrepare(ctx context.Context, d *Deps, opts txnPrepareOptions) (*ackResult, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	res, err := planTxnPrepare(ctx, d, cl, opts)
	if err != nil {
		return res, err
	}
	if opts.DryRun {
		return res, res.planProduce(opts)
	}
	var parts []string
	if n := countOf(res.Items, ackPlanned); n > 0 {
		parts = append(parts, fmt.Sprintf("the acknowledgement of %s in share group %q", count(int(n), "record", "records"), opts.GroupID))
	}
	for _, p := range opts.Produce {
		parts = append(parts, fmt.Sprintf("the lines of %s for topic %q", p.File, p.Topic))
	}
	question := fmt.Sprintf("This is to prepare %s, in a transaction of %q on cluster %s.", strings.Join(parts, ", and "), res.TransactionalID, res.ClusterID)
	if err := d.Confirm(question, "prepare"); err != nil {
		return nil, err
	}
	f, err := createTokenFile(opts.TokenFile)
	if err != nil {
		return nil, err
	}
	if len(opts.Produce) == 0 {
		err = ackAll(ctx, d, cl, opts.ackOptions, res)
	} else {
		err = prepareSession(ctx, d, cl, opts, res)
	}
	return res, f.finish(res, err)
}

func planTxnPrepare(ctx context.Context, d *Deps, cl *cluster.Client, opts txnPrepareOptions) (*ackResult, error) {
	for _, p := range opts.Produce {
		topics, err := cl.Topics(ctx, p.Topic)
		if err != nil {
			return nil, err
		}
		if topics[p.Topic].IsInternal {
			return nil, usagef("--produce: topic %q is internal to Kafka", p.Topic)
		}
	}
	if len(opts.Ranges) > 0 {
		return planAck(ctx, d, cl, opts.ackOptions)
	}
	if err := refuseOpen(ctx, cl, opts.TransactionalID); err != nil {
		return nil, err
	}
	return &ackResult{
		ClusterID: cl.ClusterID(), Items: []ackItem{}, TransactionalID: opts.TransactionalID, DryRun: opts.DryRun, Outcome: ackPlanned,
		Bystanders: new(int64),
	}, nil
}

// prepareSession prepares a transaction that has records. They go first, since the
// acquisition locks of what is acknowledged run from when it is acquired.
func prepareSession(ctx context.Context, d *Deps, cl *cluster.Client, opts txnPrepareOptions, res *ackResult) (err error) {
	res.Outcome = ackFailed
	res.set(ackPlanned, ackFailed)
	s, err := txn.NewSession(ctx, cl, txn.Config{
		TransactionalID: res.TransactionalID, Timeout: opts.TxnTimeout, ProduceOnly: len(opts.Ranges) == 0, Now: d.Now,
	})
	if err != nil {
		return txnTimeoutError(err, opts.TxnTimeout)
	}
	defer func() {
		end, cancel := cleanupContext(ctx)
		defer cancel()
		if err := s.Close(end); err != nil {
			d.Warn(fmt.Sprintf("the transaction of %q could not be aborted, its coordinator does it when it times out: %v", res.TransactionalID, err))
		}
	}()
	if err := s.Begin(ctx); err != nil {
		return err
	}
	for _, p := range opts.Produce {
		if err := produceLines(ctx, d, s, p); err != nil {
			return err
		}
	}
	if s.Produced() == 0 && len(opts.Ranges) == 0 {
		return nothingToPrepare()
	}
	prepare := func() error {
		ctx, cancel := actContext(ctx)
		defer cancel()
		token, err := s.Prepare(ctx)
		if err != nil {
			return err
		}
		res.Produced = s.Produced()
		res.prepared(token)
		return nil
	}
	if len(opts.Ranges) == 0 {
		return prepare()
	}
	return withAcquired(ctx, d, cl, opts.ackOptions, res, func(acks txn.ShareAcknowledgements) error {
		if err := s.SendShareAcknowledgements(ctx, acks); err != nil {
			return err
		}
		return prepare()
	})
}

func nothingToPrepare() error {
	return hintf(errors.New("there is nothing to prepare: what --produce names has no lines"), "nothing was sent, and everything is as it was")
}

// planProduce notes what would be produced. What stdin has is left unread: it is for
// the command that is not a dry run.
func (r *ackResult) planProduce(opts txnPrepareOptions) error {
	lines, stdin := 0, false
	for _, p := range opts.Produce {
		if p.File == "-" {
			stdin = true
			r.toProduce = append(r.toProduce, fmt.Sprintf("the lines of stdin would be produced to topic %q", p.Topic))
			continue
		}
		n := 0
		if err := eachLine(nil, p, func([]byte) error { n++; return nil }); err != nil {
			return err
		}
		lines += n
		r.toProduce = append(r.toProduce, fmt.Sprintf("%s of %s would be produced to topic %q", count(n, "line", "lines"), p.File, p.Topic))
	}
	if lines == 0 && !stdin && len(opts.Produce) > 0 && len(opts.Ranges) == 0 {
		return nothingToPrepare()
	}
	return nil
}

// produceLines produces each line of a file, without its end, as a value.
func produceLines(ctx context.Context, d *Deps, s *txn.Session, p produceFile) error {
	return eachLine(d.In, p, func(line []byte) error {
		return s.Produce(ctx, &kgo.Record{Topic: p.Topic, Value: bytes.TrimSuffix(line, []byte("\n")), Timestamp: d.Now().Truncate(time.Millisecond)})
	})
}

// eachLine calls do for each line of a file, - being stdin.
func eachLine(stdin io.Reader, p produceFile, do func(line []byte) error) error {
	in := stdin
	if p.File != "-" {
		f, err := os.Open(p.File)
		if err != nil {
			return fmt.Errorf("produce to topic %q: %w", p.Topic, err)
		}
		defer func() { _ = f.Close() }() // it was read
		in = f
	}
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("produce to topic %q: read %s: %w", p.Topic, p.File, err)
		}
		if len(line) > 0 {
			if err := do(line); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

func txnPrepareView(res *ackResult) output.View {
	if res == nil {
		return output.View{}
	}
	v := ackRows(res)
	v.Kind = "txn.prepare"
	if len(res.toProduce) > 0 {
		v.Text = strings.Join(res.toProduce, "\n")
		if v.Table.Len() > 0 {
			v.Text = "\n" + v.Text
		}
	}
	return v
}
