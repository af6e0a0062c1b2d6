package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/txn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// tokenSource is where a command takes the token of a transaction from.
type tokenSource struct {
	Arg  string // the token, or - for stdin
	File string
}

const tokenFileFlag = "token-file"

func (s *tokenSource) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&s.File, tokenFileFlag, "", "read the token from `file`, - for stdin")
}

// maxTokenFile bounds what is read for a token.
const maxTokenFile = 1 << 20

// read returns the text of the token. yes says that nothing will be asked on
// stdin.
func (s *tokenSource) read(cmd *cobra.Command, d *Deps, args []string, yes bool) (string, error) {
	switch {
	case len(args) > 1:
		return "", hintf(usagef("%q takes one token, and got %d", cmd.CommandPath(), len(args)), "quote a token in JSON, which has blanks")
	case len(args) == 1 && s.File != "":
		return "", usagef("the token is given twice, as an argument and by --%s", tokenFileFlag)
	case len(args) == 0 && s.File == "":
		return "", hintf(usagef("%q needs a token", cmd.CommandPath()), "'kshare txn prepare' and 'kshare ack --prepare' print it; - reads it from stdin")
	case len(args) == 1:
		s.Arg = args[0]
	}
	if s.Arg != "" && s.Arg != "-" {
		return s.Arg, nil
	}
	in := d.In
	switch {
	case s.Arg == "-" || s.File == "-":
		if !yes {
			return "", hintf(usagef("stdin has the token, so nothing can be confirmed there"), "repeat the command with --yes, or give --%s FILE", tokenFileFlag)
		}
	case s.File != "":
		f, err := os.Open(s.File)
		if err != nil {
			return "", usagef("--%s: %s", tokenFileFlag, err)
		}
		defer func() { _ = f.Close() }() // it was read
		in = f
	default:
		return "", usagef("the token is empty")
	}
	b, err := io.ReadAll(io.LimitReader(in, maxTokenFile))
	if errors.Is(err, syscall.EISDIR) {
		return "", usagef("--%s %s: is a directory, want a file", tokenFileFlag, s.File)
	}
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	return string(b), nil
}

// What a token is used for.
const (
	decideCommit = "commit"
	decideAbort  = "abort"
)

// txnEndOptions is everything that ends a transaction by its token, or looks at
// it.
type txnEndOptions struct {
	connection
	Token           txn.Token
	TransactionalID string // in place of the token, to look
	Decision        string // "" looks only
	DryRun          bool
}

// newEndCmd makes a command that ends a transaction by its token. The decision is
// fixed, or "" for a command that takes it from flags.
func newEndCmd(d *Deps, cmd *cobra.Command, decision string, run runFunc[txnEndOptions, *txnEndResult]) *cobra.Command {
	var opts txnEndOptions
	var from tokenSource
	var commit, abort bool
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opts.Decision = decision
		if decision == "" {
			switch {
			case commit == abort:
				return hintf(usagef("want --commit or --abort, and one of them"), "'kshare txn describe' tells how a transaction stands and decides nothing")
			case commit:
				opts.Decision = decideCommit
			default:
				opts.Decision = decideAbort
			}
		}
		return runEnd(cmd, d, opts, &from, args, run)
	}
	fs := cmd.Flags()
	if decision == "" {
		fs.BoolVar(&commit, "commit", false, "commit the transaction")
		fs.BoolVar(&abort, "abort", false, "abort the transaction")
	}
	from.addTo(fs)
	fs.BoolVar(&opts.DryRun, "dry-run", false, "tell how the transaction stands and what would be done, and do nothing")
	opts.connection.addTo(fs)
	return exits(cmd, exitAuth, exitUnsupported, exitFenced, exitUnknownOutcome, exitOtherwise)
}

// runEnd reads the token and runs the operation.
func runEnd(cmd *cobra.Command, d *Deps, opts txnEndOptions, from *tokenSource, args []string, run runFunc[txnEndOptions, *txnEndResult]) error {
	if err := checkDialect(opts.Dialect); err != nil {
		return err
	}
	text, err := from.read(cmd, d, args, d.flags.Yes || opts.DryRun)
	if err != nil {
		return err
	}
	if opts.Token, err = parseToken(text); err != nil {
		return err
	}
	if !opts.DryRun {
		if err := d.canConfirm(); err != nil {
			return err
		}
	}
	res, err := run(cmd.Context(), d, opts)
	return d.show(txnResumeView(res), err)
}

const endsLong = `

The token is the argument, or is read from --token-file or, for -, from stdin;
all that a command printed with it may be there too. The transaction is looked
up first: one that has ended is not ended again, and where that was as asked,
the command succeeds. So it may be repeated until it does.

It ends with 11 where the opposite was decided before, or the coordinator had
aborted the transaction at its deadline: that is final. It ends with 8 where
another producer has used the transactional ID since, and with 9 where the
coordinator knows nothing of the transaction any more: in both cases it cannot
be told how it ended.

It needs WRITE and DESCRIBE on the transactional ID.`

func newTxnResumeCmd(d *Deps, run runFunc[txnEndOptions, *txnEndResult]) *cobra.Command {
	return newEndCmd(d, &cobra.Command{
		Use:   "resume [<token>]",
		Short: "End a prepared transaction by its token, in any process",
		Long: `Commit or abort a transaction that another process has prepared, or whose
outcome was unknown, by its token (KIP-1289, two-phase commit).` + endsLong,
		Example: `  kshare txn resume --token-file token.txt --abort --dry-run
  kshare txn resume --token-file token.txt --commit --yes
  cat token.txt | kshare txn resume - --commit --yes`,
	}, "", run)
}

func newTxnCommitCmd(d *Deps, run runFunc[txnEndOptions, *txnEndResult]) *cobra.Command {
	return newEndCmd(d, &cobra.Command{
		Use:   "commit [<token>]",
		Short: "Commit a prepared transaction by its token",
		Long:  `Commit a transaction by its token, as 'kshare txn resume --commit' does.` + endsLong,
		Example: `  kshare txn commit --token-file token.txt --yes
  cat token.txt | kshare txn commit - --yes`,
	}, decideCommit, run)
}

func newTxnDescribeCmd(d *Deps, run runFunc[txnEndOptions, *txnEndResult]) *cobra.Command {
	var opts txnEndOptions
	var from tokenSource
	cmd := &cobra.Command{
		Use:   "describe [<token-or-id>]",
		Short: "Tell how the transaction of a token stands, or how it ended",
		Long: `Tell how the transaction of a token stands: open, and until when, committed or
aborted. It changes nothing. With a transactional ID in place of the token it
tells the same of the current or last transaction of that ID.

It ends with 8 where another producer has used the transactional ID since the
token was made, and with 9 where the coordinator knows nothing of the
transaction any more: in both cases it cannot be told how it ended.`,
		Example: `  kshare txn describe --token-file token.txt
  kshare txn describe billing-1 -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkDialect(opts.Dialect); err != nil {
				return err
			}
			text, err := from.read(cmd, d, args, true)
			if err != nil {
				return err
			}
			if opts.Token, err = parseToken(text); err != nil {
				if len(args) == 0 || args[0] == "-" || looksLikeToken(text) {
					return err
				}
				opts.TransactionalID = args[0]
			}
			res, err := run(cmd.Context(), d, opts)
			return d.show(txnDescribeView(res), err)
		},
	}
	from.addTo(cmd.Flags())
	opts.connection.addTo(cmd.Flags())
	return exits(cmd, exitAuth, exitUnsupported, exitFenced, exitUnknownOutcome)
}

// tokensIn returns the tokens in a text, each once.
func tokensIn(text string) []string {
	found := regexp.MustCompile(`ktx1\.[A-Za-z0-9_-]+`).FindAllString(text, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

// parseToken reads a token, or the one token in a text around it: all that a
// command wrote when it prepared the transaction, in whatever format. What it finds
// cannot be another by mistake: a token has a checksum.
func parseToken(text string) (txn.Token, error) {
	t, err := txn.ParseToken(text)
	if err == nil {
		return t, nil
	}
	found := tokensIn(text)
	text = strings.TrimSpace(text)
	switch {
	case len(found) > 1:
		return t, hintf(usagef("%d different tokens are given", len(found)), "give one at a time")
	case len(found) == 1 && found[0] != text:
		return txn.ParseToken(found[0])
	case text != "" && !looksLikeToken(text):
		return t, hintf(err, "'kshare txn prepare' and 'kshare ack --prepare' print it; if this is a transactional ID, 'kshare txn describe' tells how it stands, and 'kshare txn fence' aborts what it has open")
	}
	return t, err
}

// looksLikeToken holds for what was meant as a token and is damaged.
func looksLikeToken(s string) bool {
	return strings.HasPrefix(strings.TrimSpace(s), "{") || len(tokensIn(s)) > 0
}

// txnEndResult is what a token was found to stand for, and what was done about it.
type txnEndResult struct {
	ClusterID string   `json:"-"`
	Items     []txnEnd `json:"-"` // one
	DryRun    bool     `json:"dry_run"`
}

// txnEnd is one transaction that was to be ended or described.
type txnEnd struct {
	TransactionalID string     `json:"transactional_id"`
	ProducerID      int64      `json:"producer_id"`
	ProducerEpoch   *int16     `json:"producer_epoch"`
	GroupIDs        []string   `json:"group_ids"` // of the acknowledgements, as the token has them
	Created         *time.Time `json:"created"`   // the token, or the transaction
	Deadline        *time.Time `json:"deadline"`  // null: never, or not open
	PastDeadline    bool       `json:"past_deadline"`
	State           *string    `json:"transaction_state"` // as the coordinator had it
	Outcome         string     `json:"outcome"`           // open, ending, committed, aborted or unknown
	Decision        *string    `json:"decision"`          // commit or abort; null to describe
	// Result is described, planned, committed, aborted, already_committed,
	// already_aborted, fenced, not_known, unknown or failed.
	Result string  `json:"result"`
	Text   string  `json:"text"` // the result, a sentence without a full stop
	Error  *string `json:"error"`
}

func newTxnEnd(t txn.Token, decision string, now time.Time) txnEnd {
	e := txnEnd{
		TransactionalID: t.TransactionalID, ProducerID: t.ProducerID, ProducerEpoch: &t.ProducerEpoch,
		GroupIDs: append([]string{}, t.GroupIDs...), Created: &t.Created,
		Outcome: txn.OutcomeUnknown.String(), Decision: known(decision),
	}
	if !t.Deadline.IsZero() {
		e.Deadline, e.PastDeadline = &t.Deadline, now.After(t.Deadline)
	}
	return e
}

// tell says how it ended. before is the outcome that was found, after the one
// that holds now, err what the end failed with.
func (e *txnEnd) tell(before, after txn.Outcome, err error) {
	e.Outcome = after.String()
	late := ""
	if e.PastDeadline {
		late = ", and it is past its deadline"
	}
	switch {
	case err != nil:
		e.fail(after, err)
	case e.Decision == nil && after == txn.OutcomeOpen && e.PastDeadline:
		e.Result, e.Text = "described", "open, though past its deadline: its coordinator is about to abort it"
	case e.Decision == nil && after == txn.OutcomeOpen && e.Deadline != nil:
		e.Result, e.Text = "described", fmt.Sprintf("open, and its coordinator aborts it at %s", e.Deadline.UTC().Format(time.RFC3339))
	case e.Decision == nil && after == txn.OutcomeOpen:
		e.Result, e.Text = "described", "open, until somebody ends it"
	case e.Decision == nil:
		e.Result, e.Text = "described", after.String()
	case after == txn.OutcomeOpen: // a dry run
		e.Result, e.Text = "planned", "it is open and would be "+endedWord(*e.Decision)+late
	case before != txn.OutcomeOpen:
		e.Result, e.Text = "already_"+after.String(), "it was "+after.String()+" already"
	default:
		e.Result, e.Text = after.String(), after.String()
	}
}

func (e *txnEnd) fail(after txn.Outcome, err error) {
	e.Error = new(err.Error())
	switch {
	case isA[*txn.OutcomeUnknownError]()(err):
		e.Outcome, e.Result, e.Text = txn.OutcomeUnknown.String(), "unknown", "the end was sent, and whether it took effect is not known"
	case isA[*txn.NotKnownError]()(err):
		e.Outcome, e.Result, e.Text = txn.OutcomeUnknown.String(), "not_known", "its coordinator knows nothing of it: how it ended cannot be told"
	case isA[*txn.FencedError]()(err):
		e.Outcome, e.Result, e.Text = txn.OutcomeUnknown.String(), "fenced", "another producer has used the transactional ID since: how it ended cannot be told"
	case isA[*txn.AbortedError]()(err):
		e.Result, e.Text = "already_aborted", "it was aborted already, and cannot be committed"
		if e.PastDeadline {
			e.Text = "it was aborted already, most likely by its coordinator, since it is past its deadline"
		}
	case isA[*txn.CommittedError]()(err):
		e.Result, e.Text = "already_committed", "it was committed already, and cannot be aborted"
	default:
		e.Outcome, e.Result, e.Text = after.String(), "failed", "it could not be ended"
	}
}

func endedWord(decision string) string {
	if decision == decideCommit {
		return "committed"
	}
	return "aborted"
}

func runTxnEnd(ctx context.Context, d *Deps, opts txnEndOptions) (*txnEndResult, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	if opts.TransactionalID != "" {
		return describeByID(ctx, d, cl, opts.TransactionalID)
	}
	res := &txnEndResult{ClusterID: cl.ClusterID(), DryRun: opts.DryRun, Items: []txnEnd{newTxnEnd(opts.Token, opts.Decision, d.Now())}}
	e := &res.Items[0]
	r, err := txn.Resume(ctx, cl, opts.Token)
	if err != nil {
		if ctx.Err() != nil {
			return nil, hintf(fmt.Errorf("look up the transaction of %q: %w", opts.Token.TransactionalID, context.Cause(ctx)),
				"nothing was decided by this call; repeat it")
		}
		if !isA[*txn.NotKnownError]()(err) && !isA[*txn.FencedError]()(err) {
			return nil, err
		}
		e.tell(txn.OutcomeUnknown, txn.OutcomeUnknown, err)
		return res, resumeError(err)
	}
	before := r.Outcome()
	e.State = known(r.State())
	if at := r.Deadline(); !at.IsZero() {
		e.Deadline, e.PastDeadline = &at, d.Now().After(at)
	}
	if opts.Decision == "" || opts.DryRun && before == txn.OutcomeOpen {
		e.tell(before, before, nil)
		return res, nil
	}
	if before == txn.OutcomeOpen {
		if e.PastDeadline {
			d.Warn(fmt.Sprintf("%q is past its deadline of %s: its coordinator may abort it before this arrives", e.TransactionalID, d.time(*e.Deadline)))
		}
		if err := d.Confirm(endQuestion(opts, res.ClusterID), opts.Decision); err != nil {
			return nil, err
		}
	}
	ctx, cancel := actContext(ctx)
	defer cancel()
	end := r.Abort
	if opts.Decision == decideCommit {
		end = r.Commit
	}
	err = end(ctx)
	e.tell(before, r.Outcome(), err)
	return res, resumeError(err)
}

// resumeError adds what to do next to what the end of a transaction by its token
// failed with.
func resumeError(err error) error {
	switch {
	case isA[*txn.OutcomeUnknownError]()(err):
		return err
	case isA[*txn.FencedError]()(err):
		return hintf(err, "whether it was committed is to be seen by what it did: in the destination topics, and by 'kshare inspect partition'")
	case isA[*txn.AbortedError]()(err):
		return hintf(err, "nothing of it took effect: its records are delivered again")
	case isA[*txn.CommittedError]()(err):
		return hintf(err, "all of it took effect: do not process its records again")
	}
	return err
}

func endQuestion(opts txnEndOptions, clusterID string) string {
	t := opts.Token
	groups := ""
	if len(t.GroupIDs) > 0 {
		groups = fmt.Sprintf(", with acknowledgements of share group %s,", quoted(t.GroupIDs))
	}
	return fmt.Sprintf("This is to %s the transaction of %q (producer %d, epoch %d)%s on cluster %s.", opts.Decision, t.TransactionalID, t.ProducerID, t.ProducerEpoch, groups, clusterID)
}

func quoted(names []string) string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, fmt.Sprintf("%q", n))
	}
	return strings.Join(out, ", ")
}

// describeByID tells how the current or last transaction of an ID stands.
func describeByID(ctx context.Context, d *Deps, cl *cluster.Client, id string) (*txnEndResult, error) {
	rep, err := inspect.DescribeTransactions(ctx, cl, inspect.TxnOptions{TransactionalIDs: []string{id}, Now: d.Now})
	if err != nil {
		return nil, err
	}
	if len(rep.Gaps) > 0 {
		return nil, &inspect.GapError{Gap: rep.Gaps[0]}
	}
	res := &txnEndResult{ClusterID: rep.ClusterID}
	for _, row := range rep.Rows {
		e := txnEnd{
			TransactionalID: row.TransactionalID, ProducerID: row.ProducerID, ProducerEpoch: row.ProducerEpoch,
			GroupIDs: []string{}, Created: row.Started, Deadline: row.Deadline, State: &row.State,
		}
		if row.Deadline != nil && row.Started != nil && row.TimeoutMS != nil {
			// From when on it may end, as a token has it, and not when it will have at the
			// latest.
			e.Deadline = new(row.Started.Add(time.Duration(*row.TimeoutMS) * time.Millisecond))
		}
		e.PastDeadline = e.Deadline != nil && d.Now().After(*e.Deadline)
		outcome := outcomeOfState(row.State)
		e.tell(outcome, outcome, nil)
		if outcome == txn.OutcomeUnknown {
			e.Text = "no transaction has begun since its producer was initialised"
		}
		res.Items = append(res.Items, e)
	}
	return res, nil
}

func outcomeOfState(state string) txn.Outcome {
	switch state {
	case "Ongoing":
		return txn.OutcomeOpen
	case "PrepareCommit", "PrepareAbort", "PrepareEpochFence":
		return txn.OutcomeEnding
	case "CompleteCommit":
		return txn.OutcomeCommitted
	case "CompleteAbort":
		return txn.OutcomeAborted
	}
	return txn.OutcomeUnknown
}

func txnResumeView(res *txnEndResult) output.View {
	if res == nil {
		return output.View{}
	}
	v := txnEndView(res)
	v.Kind = "txn.resume"
	return v
}

func txnDescribeView(res *txnEndResult) output.View {
	if res == nil {
		return output.View{}
	}
	v := txnEndView(res)
	v.Kind = "txn.describe"
	return v
}

func txnEndView(res *txnEndResult) output.View {
	t := output.NewTable("TRANSACTIONAL-ID", "PRODUCER-ID", "PRODUCER-EPOCH", "STATE", "DEADLINE", "RESULT", "OUTCOME", "DETAIL")
	for _, e := range res.Items {
		state, deadline := any(output.Unknown()), any(output.NA())
		if e.State != nil {
			state = *e.State
		}
		if e.Deadline != nil {
			deadline = e.Deadline
		}
		t.Row(output.Key(e.TransactionalID), e.ProducerID, e.ProducerEpoch, state, deadline, endCell(e.Result), e.Outcome, e.Text)
	}
	return output.View{Version: 1, ClusterID: res.ClusterID, Items: res.Items, Data: res, Table: t}
}

func endCell(result string) any {
	text := strings.ReplaceAll(result, "_", " ")
	switch result {
	case "committed", "aborted":
		return output.Good(text)
	case "failed", "fenced", "not_known", "refused":
		return output.Bad(text)
	case "unknown":
		return output.Warn(text)
	}
	return text
}
