package commands

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ackOptions is everything "ack" can be told.
type ackOptions struct {
	connection
	ackSelection
	TransactionalID string // "" makes one
	TxnTimeout      time.Duration
	Wait            time.Duration
	Partial         bool
	Prepare         bool
	TwoPhase        bool
	TokenFile       string
	DryRun          bool
}

func newAckCmd(d *Deps, run runFunc[ackOptions, *ackResult]) *cobra.Command {
	var opts ackOptions
	var flags ackFlags
	cmd := &cobra.Command{
		Use:   "ack --group <group>",
		Short: "Accept or reject given offsets of a share group, in one transaction",
		Long: `Accept or reject given offsets of a share group by hand, all of them in one
transaction: either all take effect or none (KIP-1289).

It joins the group as a member and acquires the offsets itself, stages exactly
these, commits, gives back everything else and leaves. Unless all of them could
be acquired it acknowledges none (exit status 6); --partial acknowledges what
could, and ends with 3.

A group hands out its lowest available offset first: to come to those that were
asked for, the ones before are acquired and released, and each of these records
loses one delivery. Records at the delivery count limit of the group are
archived by that. --dry-run tells how many there are, without becoming a member.

With --prepare it stops before the commit and prints a token, by which 'kshare
txn resume' commits or aborts the transaction. Until then the offsets are
TX_PENDING.

--from-file has one range a line, such as "accept orders:0:7-9" or "reject
orders:1:4"; what follows # does not count.

It needs READ on the group and the topics, and WRITE on the transactional ID, by
default a new one that begins with kshare-ack-. To tell why an offset was not
acquired it needs CLUSTER_ACTION too.`,
		Example: `  kshare ack --group billing --accept orders:0:7-9 --dry-run
  kshare ack --group billing --accept orders:0:7-9 --reject orders:0:10 --yes
  kshare ack --group billing --from-file offsets.txt --prepare --token-file token.txt --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.check(d, cmd.Flags().Changed, &flags); err != nil {
				return err
			}
			res, err := run(cmd.Context(), d, opts)
			return d.showToken(ackView(res), res, err)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.GroupID, "group", "", "share `group`; it has to exist")
	flags.addTo(fs)
	fs.BoolVar(&opts.Partial, "partial", false, "acknowledge what could be acquired, even if that is not all")
	fs.DurationVar(&opts.Wait, "wait", 0, "wait up to `duration` for offsets that another member holds")
	fs.StringVar(&opts.TransactionalID, "transactional-id", "", "`id` of the transaction (default a new one)")
	fs.DurationVar(&opts.TxnTimeout, "txn-timeout", txn.DefaultTimeout, "transaction timeout, a `duration`: the coordinator aborts it then, prepared or not")
	fs.BoolVar(&opts.Prepare, "prepare", false, "stop before the commit, and print the token of the transaction")
	fs.BoolVar(&opts.TwoPhase, "two-phase", false, "with --prepare: without a timeout, where the brokers offer that (KIP-939)")
	fs.StringVar(&opts.TokenFile, tokenFileFlag, "", "with --prepare: write the token to a new `file` as well")
	fs.BoolVar(&opts.DryRun, "dry-run", false, "tell what would be acknowledged, without joining the group")
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth, exitUnsupported, exitRefused, exitFenced, exitUnknownOutcome, exitOtherwise)
}

func (f *ackFlags) addTo(fs *pflag.FlagSet) {
	addRepeated(fs, &f.Accept, "accept", "accept `topic:partition:first-last`, or one offset; may be repeated")
	addRepeated(fs, &f.Reject, "reject", "reject `topic:partition:first-last`, or one offset; may be repeated")
	fs.StringVar(&f.FromFile, "from-file", "", "accept and reject what `file` says, one range a line, - for stdin")
}

// check returns a usage error for what the flags alone can tell.
func (o *ackOptions) check(d *Deps, changed func(string) bool, flags *ackFlags) error {
	switch {
	case o.GroupID == "":
		return usagef("--group is needed: the share group to acknowledge in")
	case !flags.given():
		return usagef("--accept, --reject or --from-file is needed: the offsets to acknowledge")
	case !o.Prepare && o.TwoPhase:
		return usagef("--two-phase is for a transaction that waits, and --prepare is not given")
	case !o.Prepare && o.TokenFile != "":
		return usagef("--%s is for the token of a prepared transaction, and --prepare is not given", tokenFileFlag)
	case o.Wait < 0 || changed("wait") && o.Wait == 0:
		return usagef("--wait %s: want a positive duration", o.Wait)
	}
	if err := checkTxnTimeout(o.TxnTimeout, o.TwoPhase, changed); err != nil {
		return err
	}
	if err := checkDialect(o.Dialect); err != nil {
		return err
	}
	var err error
	if o.Ranges, err = flags.ranges(d.In, d.flags.Yes || o.DryRun); err != nil {
		return err
	}
	if len(o.Ranges) == 0 {
		return usagef("--from-file %s names no offsets", flags.FromFile)
	}
	if !o.DryRun {
		return d.canConfirm()
	}
	return nil
}

func checkTxnTimeout(timeout time.Duration, twoPhase bool, changed func(string) bool) error {
	switch {
	case timeout < minTxnTimeout:
		return usagef("--txn-timeout %s: want at least %s", timeout, minTxnTimeout)
	case twoPhase && changed("txn-timeout"):
		return usagef("--txn-timeout and --two-phase exclude each other: two-phase commit has no timeout")
	}
	return nil
}

// ackResult is what came of acknowledgements by hand.
type ackResult struct {
	ClusterID       string    `json:"-"`
	Items           []ackItem `json:"-"`
	GroupID         *string   `json:"group_id"` // null without acknowledgements
	TransactionalID string    `json:"transactional_id"`
	Dialect         *string   `json:"dialect"` // null without acknowledgements
	DryRun          bool      `json:"dry_run"`
	// Outcome is planned, refused, committed, prepared, failed or unknown.
	Outcome      string `json:"outcome"`
	Acknowledged int64  `json:"acknowledged"` // offsets that were committed or prepared
	Produced     int64  `json:"produced"`     // records that were committed or prepared
	// Bystanders are records that have one delivery less left, or would have; null
	// where that cannot be told.
	Bystanders          *int64 `json:"bystanders"`
	BystanderDeliveries *int16 `json:"bystander_delivery_count"` // the largest of them; null without any
	// Token is of a transaction that is prepared or whose outcome is unknown.
	Token     *string    `json:"token"`
	tokenKept bool       // in a file
	toProduce []string   // what a dry run would produce, a sentence each
	Deadline  *time.Time `json:"deadline"` // of the prepared transaction; null: never, or none
}

func (r *ackResult) set(from, to string) {
	for i := range r.Items {
		if r.Items[i].Result == from {
			r.Items[i].Result = to
		}
	}
}

// ackRefusedError says that offsets were not acknowledged because not all of them
// can be, or because it would end another transaction.
type ackRefusedError struct{ reason, advice string }

func (e *ackRefusedError) Error() string { return "refused, nothing was changed: " + e.reason }
func (e *ackRefusedError) Hint() string  { return e.advice }

func runAck(ctx context.Context, d *Deps, opts ackOptions) (*ackResult, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	res, err := planAck(ctx, d, cl, opts)
	if err != nil || opts.DryRun {
		return res, err
	}
	verb := "commit"
	if opts.Prepare {
		verb = "prepare"
	}
	question := fmt.Sprintf("This is to %s the acknowledgement of %s in share group %q, in a transaction of %q on cluster %s.",
		verb, count(int(countOf(res.Items, ackPlanned)), "record", "records"), opts.GroupID, res.TransactionalID, res.ClusterID)
	if err := d.Confirm(question, "ack"); err != nil {
		return nil, err
	}
	f, err := createTokenFile(opts.TokenFile)
	if err != nil {
		return nil, err
	}
	err = ackAll(ctx, d, cl, opts, res)
	return res, f.finish(res, err)
}

// planAck says what there is to acquire, and refuses what cannot be done.
func planAck(ctx context.Context, d *Deps, cl *cluster.Client, opts ackOptions) (*ackResult, error) {
	dialect, err := cl.RequireTxnShareAcknowledge(ctx)
	if err != nil {
		return nil, err
	}
	res := &ackResult{
		ClusterID: cl.ClusterID(), GroupID: &opts.GroupID, Dialect: known(dialect.Name), DryRun: opts.DryRun,
		TransactionalID: opts.TransactionalID, Outcome: ackPlanned,
	}
	if res.TransactionalID == "" {
		res.TransactionalID = "kshare-ack-" + opts.GroupID + "-" + strings.ToLower(rand.Text()[:idLength])
	} else if err := refuseOpen(ctx, cl, res.TransactionalID); err != nil {
		return nil, err
	}
	found, err := share.DescribeRanges(ctx, cl, share.AcquireConfig{GroupID: opts.GroupID, Ranges: opts.asked(), Now: d.Now})
	if err != nil {
		return nil, err
	}
	res.Items = newAckItems(opts.Ranges, found.Reports, share.RangeUntried, ackPlanned)
	switch n := found.Bystanders; {
	case n < 0:
		d.Warn("how many records lie before those that were asked for cannot be told; each of them loses one delivery")
	case n > 0:
		d.Warn(fmt.Sprintf("%s before those that were asked for: each of them loses one delivery", count(int(n), "available record lies", "available records lie")))
		fallthrough
	default:
		res.Bystanders = &n
	}
	// A transaction may end while this waits, and what another member holds comes
	// back: all else stays as it is.
	lost := int64(0)
	for _, i := range res.Items {
		if s := i.report.Status; s == share.RangeTerminal || s == share.RangeBeyondEnd || s == share.RangePending && opts.Wait == 0 {
			lost += i.Count
		}
	}
	if lost > 0 && !opts.Partial || countOf(res.Items, ackPlanned) == 0 && opts.Wait == 0 {
		return res, res.refuse(lost)
	}
	return res, nil
}

// idLength is how many letters of chance a transactional ID gets, of 5 bits each.
const idLength = 8

// refuse takes everything back.
func (r *ackResult) refuse(lost int64) error {
	r.Outcome = "refused"
	r.set(ackPlanned, ackNotAttempted)
	var all int64
	reason := ""
	for _, i := range r.Items {
		all += i.Count
		if reason == "" && i.Result == ackNotAcquired {
			reason = fmt.Sprintf(", first %s-%d offsets %d to %d: %s", i.Topic, i.Partition, i.FirstOffset, i.LastOffset, i.Reason)
		}
	}
	advice := "--partial acknowledges the others; --wait waits for what another member holds"
	if lost == all {
		advice = "'kshare inspect partition' shows the state of every offset"
	}
	return &ackRefusedError{fmt.Sprintf("%d of %s cannot be acquired%s", lost, count(int(all), "offset", "offsets"), reason), advice}
}

// refuseOpen refuses a transactional ID that has a transaction open: to initialise
// a producer aborts it, prepared or not.
func refuseOpen(ctx context.Context, cl *cluster.Client, id string) error {
	rep, err := inspect.DescribeTransactions(ctx, cl, inspect.TxnOptions{TransactionalIDs: []string{id}})
	if isA[*inspect.TransactionNotFoundError]()(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(rep.Gaps) > 0 {
		return &inspect.GapError{Gap: rep.Gaps[0]}
	}
	for _, t := range rep.Rows {
		if t.State == "Ongoing" {
			return &ackRefusedError{
				fmt.Sprintf("%q has a transaction open, which this would abort", id),
				fmt.Sprintf("choose another --transactional-id, or end that one: by its token, or by 'kshare txn fence %s'", id),
			}
		}
	}
	return nil
}

// ackAll acquires, stages, and commits or prepares.
func ackAll(ctx context.Context, d *Deps, cl *cluster.Client, opts ackOptions, res *ackResult) error {
	res.Outcome = ackFailed
	res.set(ackPlanned, ackFailed)
	a, err := txn.NewAcknowledger(ctx, cl, txn.AcknowledgerConfig{
		TransactionalID: res.TransactionalID, Timeout: opts.TxnTimeout, TwoPhaseCommit: opts.TwoPhase, Now: d.Now,
	})
	if err != nil {
		return txnTimeoutError(err, opts.TxnTimeout)
	}
	defer func() {
		end, cancel := cleanupContext(ctx)
		defer cancel()
		if err := a.Close(end); err != nil {
			d.Warn(fmt.Sprintf("the transaction of %q could not be aborted, its coordinator does it when it times out: %v", res.TransactionalID, err))
		}
	}()
	return withAcquired(ctx, d, cl, opts, res, func(acks txn.ShareAcknowledgements) error {
		ctx, cancel := actContext(ctx)
		defer cancel()
		if !opts.Prepare {
			return res.committed(a.CommitAcknowledgements(ctx, acks))
		}
		token, err := a.PrepareAcknowledgements(ctx, acks)
		if err != nil {
			return err
		}
		res.prepared(token)
		return nil
	})
}

// cleanupContext is for what is given back also when a command was stopped.
func cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
}

const cleanupTimeout = 15 * time.Second

func txnTimeoutError(err error, timeout time.Duration) error {
	if isA[*txn.TimeoutRejectedError]()(err) {
		return hintf(fmt.Errorf("--txn-timeout %s: %w", timeout, err), "choose a shorter --txn-timeout, or raise transaction.max.timeout.ms on the brokers")
	}
	return err
}

// withAcquired holds the offsets as a member of the group while stage acknowledges
// them, and gives back what was not staged.
func withAcquired(ctx context.Context, d *Deps, cl *cluster.Client, opts ackOptions, res *ackResult, stage func(txn.ShareAcknowledgements) error) error {
	acq, err := share.AcquireRanges(ctx, cl, share.AcquireConfig{
		GroupID: opts.GroupID, Ranges: opts.asked(), Wait: opts.Wait, Warn: func(err error) { d.Warn(err.Error()) }, Now: d.Now,
	})
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := cleanupContext(ctx)
		defer cancel()
		if err := acq.Close(end); err != nil {
			d.Warn(fmt.Sprintf("leaving share group %q failed; what was not acknowledged comes back when its acquisition lock expires: %v", opts.GroupID, err))
		}
	}()
	res.Items = newAckItems(opts.Ranges, acq.Reports, share.RangeAcquired, ackReleased)
	res.Bystanders = &acq.Bystanders
	if acq.Bystanders > 0 {
		res.BystanderDeliveries = &acq.MaxDeliveryCount
		text := fmt.Sprintf("%s on the way and released: each has one delivery less left, and the largest delivery count is %d",
			count(int(acq.Bystanders), "record was acquired", "records were acquired"), acq.MaxDeliveryCount)
		if limit := deliveryLimit(ctx, cl, opts.GroupID); limit > 0 && int(acq.MaxDeliveryCount) >= limit {
			text += ", which is the limit of the group: such records are archived"
		}
		d.Warn(text)
	}
	held, lost := countOf(res.Items, ackReleased), countOf(res.Items, ackNotAcquired)
	if held == 0 || lost > 0 && !opts.Partial {
		return res.refuse(lost)
	}
	res.set(ackReleased, ackFailed)
	err = stage(txn.ShareAcknowledgements{Acknowledgements: acknowledgementsOf(res.Items), Group: acq.GroupMetadata(), Leaders: acq.Batch.Leaders()})
	if err == nil && lost > 0 {
		return hintf(&partlyError{[]error{fmt.Errorf("%d of %d offsets could not be acquired", lost, held+lost)}}, "the result on stdout says which, and why")
	}
	return err
}

// deliveryLimit is the delivery count limit of a group; 0 where it cannot be read,
// or is not a config of groups.
func deliveryLimit(ctx context.Context, cl *cluster.Client, group string) int {
	v, ok, err := cl.GroupConfig(ctx, group, "share.delivery.count.limit")
	if err != nil || !ok {
		return 0
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0
	}
	return n
}

// committed notes what a commit has come to.
func (r *ackResult) committed(err error) error {
	if u, ok := errors.AsType[*txn.OutcomeUnknownError](err); ok {
		r.Outcome, r.Token = ackUnknown, known(u.Token().String())
		r.set(ackFailed, ackUnknown)
	}
	if err != nil {
		return err
	}
	r.Outcome = ackCommitted
	r.set(ackFailed, ackCommitted)
	r.Acknowledged = countOf(r.Items, ackCommitted)
	return nil
}

// prepared notes the token.
func (r *ackResult) prepared(t txn.Token) {
	r.Outcome, r.Token = ackPrepared, known(t.String())
	if !t.Deadline.IsZero() {
		r.Deadline = &t.Deadline
	}
	r.set(ackFailed, ackPrepared)
	r.Acknowledged = countOf(r.Items, ackPrepared)
}

// tokenFile is where a token is to be written to; nil is nowhere.
type tokenFile struct{ f *os.File }

// createTokenFile creates the file before anything is prepared. One that exists is
// kept: it may have the token of another transaction.
func createTokenFile(name string) (*tokenFile, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, usagef("--%s: %s", tokenFileFlag, err)
	}
	return &tokenFile{f}, nil
}

// finish writes the token, or removes the file where there is none or it could not
// be written: half a token is none.
func (t *tokenFile) finish(res *ackResult, err error) error {
	if t == nil {
		return err
	}
	if res.Token == nil {
		return cluster.Join(err, t.f.Close(), os.Remove(t.f.Name()))
	}
	_, werr := fmt.Fprintln(t.f, *res.Token)
	if werr = cluster.Join(werr, t.f.Sync(), t.f.Close()); werr != nil {
		return cluster.Join(err, hintf(werr, "the token is told here instead; the transaction can be ended by that, or by 'kshare txn fence %s', which aborts it", res.TransactionalID),
			os.Remove(t.f.Name()))
	}
	res.tokenKept = true
	return err
}

// showToken shows a result, and its token on stderr where stdout has rows alone,
// or where it came neither to stdout nor into a file: nothing but the token, or its
// timeout, ends the transaction. --quiet does not hide it.
func (d *Deps) showToken(v output.View, res *ackResult, err error) error {
	if res == nil || res.Token == nil {
		return d.show(v, err)
	}
	stdout := d.Out
	written := new(bytes.Buffer)
	d.Out = writerFunc(func(b []byte) (int, error) {
		n, err := stdout.Write(b)
		written.Write(b[:n])
		return n, err
	})
	shown := d.show(v, err)
	d.Out = stdout
	switch {
	case !d.machine() && d.rowsOnly():
		d.say("", "token: "+*res.Token)
	case res.tokenKept, strings.Contains(written.String(), *res.Token):
	default:
		d.Warn(fmt.Sprintf("the transaction of %q waits for its token, which is not in what was written to stdout: %s", res.TransactionalID, *res.Token))
	}
	return shown
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func ackView(res *ackResult) output.View {
	if res == nil {
		return output.View{}
	}
	v := ackRows(res)
	v.Kind = "ack"
	return v
}

func ackRows(res *ackResult) output.View {
	t := output.NewTable("TOPIC", "PARTITION", "FIRST-OFFSET", "LAST-OFFSET", "ACKNOWLEDGE-TYPE", "STATUS", "DELIVERY-COUNT", "RESULT", "REASON")
	for _, i := range res.Items {
		deliveries := any(output.NA())
		if i.DeliveryCount != nil {
			deliveries = *i.DeliveryCount
		}
		t.Row(output.Key(i.Topic), i.Partition, i.FirstOffset, i.LastOffset, i.Acknowledge, strings.ReplaceAll(i.Status, "_", " "), deliveries, ackCell(i.Result), i.Reason)
	}
	v := output.View{Version: 1, ClusterID: res.ClusterID, Items: res.Items, Data: res, Table: t}
	if res.Token != nil { // see showToken
		v.Text = fmt.Sprintf("token: %s", *res.Token)
		if t.Len() > 0 {
			v.Text = "\n" + v.Text
		}
	}
	return v
}

func ackCell(result string) any {
	text := strings.ReplaceAll(result, "_", " ")
	switch result {
	case ackCommitted, ackPrepared:
		return output.Good(text)
	case ackFailed, ackNotAcquired:
		return output.Bad(text)
	case ackUnknown, ackReleased:
		return output.Warn(text)
	}
	return text
}
