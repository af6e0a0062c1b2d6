package commands

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/txn"
	"github.com/mattn/go-shellwords"
	"github.com/spf13/cobra"
)

// ctpOptions is everything "ctp" can be told.
type ctpOptions struct {
	ctp.Options
	connection
	JQ          string
	Program     string
	ExecTimeout time.Duration
	Follow      bool
	Partition   string
	Preflight   bool
	MetricsAddr string // HOST:PORT; "" serves none

	Sandbox bool // run against a sandbox of this process
	SandboxConfig
	Loads          []sandboxLoad
	sandboxServers string // of that sandbox, once it runs
}

func newCtpCmd(d *Deps, run runFunc[ctpOptions, *ctp.Result]) *cobra.Command {
	var opts ctpOptions
	var onError, guarantee string
	var topics, loads []string
	cmd := &cobra.Command{
		Use:   "ctp --from <topic> --to <topic>",
		Short: "Consume, transform, produce and acknowledge in one transaction",
		Long: `Consume records of a share group, transform them, produce the results to another
topic and acknowledge the source records, each batch in one Kafka transaction:
either all of it takes effect or nothing does (KIP-1289).

Key, value, headers and timestamp are copied byte for byte. With --jq each value
has to be one JSON value, and each result of the expression becomes a record; no
result acknowledges the record and produces nothing. A null value is copied. The
filter of what a command shows, which is --jq elsewhere, is --output-jq here.

Each of the --workers is a member of the share group with a transactional ID of
its own: that of --transactional-id with -0, -1 and so on added. A run takes the
place of an earlier one with the same transactional ID: what that one left open
is aborted at once, and it is fenced if it still runs.

On a released Kafka, which does not implement the KIP, --guarantee at-least-once
works: the batch is produced in a transaction and acknowledged after its commit.
If ctp dies, or a lock expires, between the two, that batch is produced again.

With --metrics-addr the counters of the result can be scraped while it runs,
with the group's lag and the client metrics of KIP-1289.

To rehearse what is done about records that hang, --hold-before-commit keeps
each transaction open once its records are staged; 'kshare inspect pending'
shows them.

Without --until-empty or --max-records it runs until it is stopped. Then the
open transaction is aborted and everything that was acquired is given back.`,
		Example: `  kshare ctp -b localhost:9092 --from orders --to shipped
  kshare ctp -b localhost:9092 --from orders --to big --jq 'select(.amount > 100)' --until-empty
  kshare ctp --sandbox --load orders=examples/orders.ndjson --from orders --to shipped --until-empty`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.OnError, opts.Guarantee = ctp.OnError(onError), ctp.Guarantee(guarantee)
			if opts.DeadLetterTopic != "" && !cmd.Flags().Changed("on-error") {
				opts.OnError = ctp.Reject
			}
			if err := opts.check(cmd.Flags().Changed, topics, loads); err != nil {
				return err
			}
			if opts.Preflight {
				checks, err := runCtpPreflight(cmd.Context(), d, opts)
				return d.show(ctpPreflightView(checks), err)
			}
			res, err := run(cmd.Context(), d, opts)
			return d.show(ctpView(res), err)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.From, "from", "", "source `topic`")
	fs.StringVar(&opts.To, "to", "", "destination `topic`")
	fs.StringVar(&opts.GroupID, "group", "", "share `group` (default kshare- and the source topic)")
	fs.StringVar(&opts.TransactionalID, "transactional-id", "", "`prefix` of the workers' transactional IDs (default kshare-ctp- and the group)")
	fs.StringVar(&opts.JQ, "jq", "", "transform values by a jq `expression`; --output-jq filters the result")
	fs.StringVar(&guarantee, "guarantee", string(ctp.ExactlyOnce), "`promise` about each record: exactly-once, or at-least-once where the cluster lacks the former")
	fs.StringVar(&onError, "on-error", string(ctp.Fail), "`what` becomes of a record that cannot be transformed: fail, release or reject")
	fs.IntVar(&opts.BatchRecords, "batch-records", ctp.DefaultBatchRecords, "most `records` of one transaction")
	fs.Int64Var(&opts.MaxRecords, "max-records", 0, "stop after `number` source records (default no limit)")
	fs.StringVar(&opts.Program, "exec", "", "transform by a `command` that lives as long as its worker: JSON lines in and out, see 'kshare help exec'")
	fs.DurationVar(&opts.ExecTimeout, "exec-timeout", ctp.DefaultExecTimeout, "`duration` that --exec may take for one record")
	fs.IntVar(&opts.MaxAttempts, "max-attempts", 0, "`number` of times that a record may kill --exec or take too long, before --on-error decides (default the group's delivery count limit less one)")
	fs.StringVar(&opts.DeadLetterTopic, "dlq", "", "produce what is rejected to `topic` too, in the same transaction; implies --on-error reject")
	fs.StringVar(&opts.Partition, "partition", partitionHash, "`how` partitions are chosen: hash of the key, or keep that of the source")
	fs.Float64Var(&opts.Rate, "rate", 0, "most source `records` a second (default no limit)")
	fs.BoolVar(&opts.UntilEmpty, "until-empty", false, "stop when the group has nothing left of the source topic")
	fs.BoolVar(&opts.Follow, "follow", false, "go on when nothing is left, which is the default")
	fs.DurationVar(&opts.StallTimeout, "stall-timeout", 0, "fail when nothing was committed for `duration` and records are left (default never)")
	fs.IntVar(&opts.Workers, "workers", 1, "`number` of members that work at once")
	fs.DurationVar(&opts.TxnTimeout, "txn-timeout", txn.DefaultTimeout, "transaction timeout, a `duration`")
	fs.DurationVar(&opts.HoldBeforeCommit, "hold-before-commit", 0, "rehearse: hold each transaction for `duration` when its records are staged")
	fs.StringVar(&opts.AutoOffsetReset, "auto-offset-reset", "", "set `where` the group starts if it is new: earliest, latest or by_duration:PT1H")
	fs.StringVar(&opts.IsolationLevel, "isolation-level", "", "set `what` the group reads: read_committed or read_uncommitted")
	fs.BoolVar(&opts.RequireReadCommitted, "require-read-committed", false, "refuse to read a group that sees uncommitted records")
	fs.BoolVar(&opts.Preflight, "preflight", false, "check what can be checked, and stop")
	fs.StringVar(&opts.MetricsAddr, "metrics-addr", "", "serve /metrics for Prometheus, and /healthz, on `address` HOST:PORT; PORT alone is on loopback, port 0 any free one")
	fs.IntVar(&opts.AbortEvery, "abort-every", 0, "rehearse: abort each `number`th transaction instead of committing it, unless its records were delivered before")
	opts.connection.addTo(fs)
	fs.BoolVar(&opts.Sandbox, "sandbox", false, "run on a sandbox that lives as long as the command")
	addRepeated(fs, &topics, "topic", "with --sandbox: create a topic, `name[:partitions]`; may be repeated")
	addRepeated(fs, &loads, "load", "with --sandbox: load `topic=file`, one record a line, - for stdin; may be repeated")
	fs.StringVar(&opts.Profile, "profile", "kip", "with --sandbox: its `dialect`, "+dialectChoice())
	return exits(cmd, exitAuth, exitUnsupported, exitRefused, exitFenced, exitUnknownOutcome)
}

// check returns a usage error for what the flags alone can tell.
func (o *ctpOptions) check(changed func(string) bool, topics, loads []string) error {
	switch {
	case o.From == "" || o.To == "":
		return usagef("--from and --to are needed: the topics to consume and to produce to")
	case o.From == o.To:
		return usagef("--from and --to are both %q: every record would be consumed again for ever", o.From)
	case o.BatchRecords < 1 || o.BatchRecords > ctp.MaxBatchRecords:
		return usagef("--batch-records %d: want 1 to %d", o.BatchRecords, ctp.MaxBatchRecords)
	case o.MaxRecords < 0 || changed("max-records") && o.MaxRecords == 0:
		return usagef("--max-records %d: want at least 1", o.MaxRecords)
	case o.Workers < 1 || o.Workers > maxWorkers:
		return usagef("--workers %d: want 1 to %d", o.Workers, maxWorkers)
	case o.TxnTimeout < minTxnTimeout:
		return usagef("--txn-timeout %s: want at least %s", o.TxnTimeout, minTxnTimeout)
	case !slices.Contains([]ctp.OnError{ctp.Fail, ctp.Release, ctp.Reject}, o.OnError):
		return usagef("--on-error %q: want fail, release or reject", o.OnError)
	case !slices.Contains([]ctp.Guarantee{ctp.ExactlyOnce, ctp.AtLeastOnce}, o.Guarantee):
		return usagef("--guarantee %q: want exactly-once or at-least-once", o.Guarantee)
	case !slices.Contains([]string{"", "read_committed", "read_uncommitted"}, o.IsolationLevel):
		return usagef("--isolation-level %q: want read_committed or read_uncommitted", o.IsolationLevel)
	case o.AutoOffsetReset != "" && !isOffsetReset(o.AutoOffsetReset):
		return usagef("--auto-offset-reset %q: want earliest, latest, or by_duration: and an ISO 8601 duration such as by_duration:PT1H30M", o.AutoOffsetReset)
	}
	if err := o.checkHold(changed); err != nil {
		return err
	}
	if err := o.checkPace(changed); err != nil {
		return err
	}
	if err := o.checkMetrics(changed); err != nil {
		return err
	}
	for _, t := range []struct{ flag, name string }{{"--from", o.From}, {"--to", o.To}, {"--dlq", o.DeadLetterTopic}} {
		if t.name == "" && !changed(strings.TrimPrefix(t.flag, "--")) {
			continue
		}
		if err := checkTopicName(t.flag, t.name, t.name); err != nil {
			return err
		}
	}
	if err := checkDialect(o.Dialect); err != nil {
		return err
	}
	if o.JQ != "" {
		transform, err := ctp.JQ(o.JQ)
		if err != nil {
			return hintf(usagef("--jq: %s", err), "quote the expression, so that the shell leaves it alone")
		}
		o.Transform = transform
	}
	if err := o.checkExec(changed); err != nil {
		return err
	}
	return o.checkSandbox(changed, topics, loads)
}

// How the partition of a record is chosen.
const (
	partitionHash = "hash"
	partitionKeep = "keep"
)

// checkPace checks how fast and how long to run, and what becomes of records that
// fail.
func (o *ctpOptions) checkPace(changed func(string) bool) error {
	switch {
	case o.Preflight && o.Sandbox:
		return usagef("--preflight looks at a cluster, and --sandbox starts one")
	case o.Follow && (o.UntilEmpty || o.MaxRecords > 0):
		return usagef("--follow excludes --until-empty and --max-records: it goes on for ever")
	case o.Partition != partitionHash && o.Partition != partitionKeep:
		return usagef("--partition %q: want hash or keep", o.Partition)
	case changed("rate") && !(o.Rate > 0 && o.Rate <= maxRate):
		return usagef("--rate %g: want more than 0, up to %d", o.Rate, maxRate)
	case changed("stall-timeout") && o.StallTimeout < minStallTimeout:
		return usagef("--stall-timeout %s: want at least %s", o.StallTimeout, minStallTimeout)
	case changed("abort-every") && o.AbortEvery < 2:
		return usagef("--abort-every %d: want at least 2, or nothing is ever committed", o.AbortEvery)
	case changed("max-attempts") && o.MaxAttempts < 1:
		return usagef("--max-attempts %d: want at least 1", o.MaxAttempts)
	case o.DeadLetterTopic != "" && o.DeadLetterTopic == o.From:
		return usagef("--dlq and --from are both %q: dead letters would be consumed again for ever", o.From)
	case o.DeadLetterTopic != "" && o.DeadLetterTopic == o.To:
		return usagef("--dlq and --to are both %q: who reads it could not tell a dead letter from a result", o.To)
	case o.DeadLetterTopic != "" && o.OnError != ctp.Reject:
		return usagef("--dlq is for records that are rejected, and --on-error is %s", o.OnError)
	}
	o.KeepPartition = o.Partition == partitionKeep
	return nil
}

const (
	maxRate         = 1_000_000_000
	minStallTimeout = time.Second
)

// checkExec splits the command of --exec into words, as a shell does, and runs no
// shell: nothing in it is expanded.
func (o *ctpOptions) checkExec(changed func(string) bool) error {
	if !changed("exec") {
		if changed("exec-timeout") {
			return usagef("--exec-timeout is for --exec, and --exec is not given")
		}
		return nil
	}
	p := shellwords.NewParser()
	words, err := p.Parse(o.Program)
	switch {
	case o.JQ != "":
		return usagef("--exec and --jq exclude each other")
	case err != nil:
		return usagef("--exec: %s", err) // the command may have a secret
	case p.Position >= 0:
		return hintf(usagef("--exec: %q, at character %d, is for a shell, and none is involved", o.Program[p.Position:p.Position+1], p.Position+1),
			"put it into a script, or run one yourself: --exec \"sh -c '...'\"")
	case len(words) == 0 || words[0] == "":
		return usagef("--exec: no command is given")
	case o.ExecTimeout <= 0:
		return usagef("--exec-timeout %s: want a positive duration", o.ExecTimeout)
	case changed("exec-timeout") && o.ExecTimeout >= ctp.HoldLimit(o.TxnTimeout):
		return hintf(usagef("--exec-timeout %s: want less than %s, after which a transaction with --txn-timeout %s is not committed", o.ExecTimeout, ctp.HoldLimit(o.TxnTimeout), o.TxnTimeout),
			"choose a longer --txn-timeout")
	}
	o.Exec = &ctp.Exec{Command: words, Timeout: o.ExecTimeout}
	return nil
}

func (o *ctpOptions) checkHold(changed func(string) bool) error {
	const flag = "hold-before-commit"
	switch limit := ctp.HoldLimit(o.TxnTimeout); {
	case !changed(flag):
		return nil
	case o.HoldBeforeCommit <= 0:
		return usagef("--%s %s: want a positive duration", flag, o.HoldBeforeCommit)
	case o.Guarantee != ctp.ExactlyOnce:
		return usagef("--%s holds what is staged, and --guarantee %s stages nothing", flag, o.Guarantee)
	case o.HoldBeforeCommit >= limit:
		return hintf(usagef("--%s %s: want less than %s, after which a transaction with --txn-timeout %s is not committed", flag, o.HoldBeforeCommit, limit, o.TxnTimeout),
			"choose a longer --txn-timeout")
	}
	return nil
}

// isOffsetReset holds for the values of share.auto.offset.reset. A broker may
// take durations that this does not, such as negative parts; no one needs them.
func isOffsetReset(s string) bool {
	d, ok := strings.CutPrefix(s, "by_duration:")
	if !ok {
		return s == "earliest" || s == "latest"
	}
	return regexp.MustCompile(`^P(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?$`).MatchString(d) && strings.ContainsAny(d[len(d)-1:], "DHMS")
}

const (
	maxWorkers    = 64
	minTxnTimeout = time.Second

	defaultSandboxBrokers    = 3
	defaultSandboxPartitions = 6
)

func (o *ctpOptions) checkSandbox(changed func(string) bool, topics, loads []string) error {
	if !o.Sandbox {
		for _, f := range []string{"topic", "load", "profile"} {
			if changed(f) {
				return hintf(usagef("--%s is for a sandbox, and --sandbox is not given", f),
					"add --sandbox to run on a sandbox of this process")
			}
		}
		return nil
	}
	if changed("bootstrap-server") {
		return usagef("--sandbox and --bootstrap-server exclude each other")
	}
	var err error
	if o.SandboxConfig.Topics, o.Loads, err = parseSandboxTopics(topics, loads); err != nil {
		return err
	}
	o.SandboxConfig = o.withDefaults()
	return checkSandboxConfig(&o.SandboxConfig)
}

// withDefaults is the sandbox that --sandbox stands for: the destination is
// there, everything loaded is read, and nothing is asked for twice.
func (o *ctpOptions) withDefaults() SandboxConfig {
	c := o.SandboxConfig
	c.Brokers, c.ShareVersion, c.PendingState = defaultSandboxBrokers, -1, pendingPersisted
	if !slices.ContainsFunc(c.Topics, func(t SandboxTopic) bool { return t.Name == o.To }) {
		c.Topics = append(c.Topics, SandboxTopic{Name: o.To, Partitions: defaultSandboxPartitions})
	}
	if o.AutoOffsetReset == "" {
		o.AutoOffsetReset = "earliest"
	}
	if o.IsolationLevel == "" {
		o.IsolationLevel = "read_committed"
	}
	if o.Dialect == "" {
		o.Dialect = c.Profile
	}
	return c
}

// connect connects to the sandbox of --sandbox, if there is one, and otherwise to
// the cluster that the settings name.
func (o *ctpOptions) connect(ctx context.Context, d *Deps) (*cluster.Client, error) {
	if o.Sandbox {
		return d.connected(connectSandbox(ctx, o.sandboxServers, o.Dialect))
	}
	return d.connect(ctx, o.connection)
}

func runCtpPreflight(ctx context.Context, d *Deps, opts ctpOptions) ([]ctp.Check, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	checks, err := ctp.Preflight(ctx, cl, opts.Options)
	return checks, ctpError(err, &opts)
}

func ctpPreflightView(checks []ctp.Check) output.View {
	if checks == nil {
		return output.View{}
	}
	t := output.NewTable("CHECK", "STATE", "DETAIL")
	for _, c := range checks {
		state := output.Good("ok")
		if !c.OK {
			state = output.Bad("failed")
		}
		t.Row(output.Key(c.Name), state, c.Detail)
	}
	return output.View{Kind: "ctp.preflight", Version: 1, Items: checks, Table: t}
}

func runCtp(ctx context.Context, d *Deps, opts ctpOptions) (res *ctp.Result, err error) {
	opts.Counts = new(ctp.Counts)
	metrics, err := serveCtpMetrics(ctx, d, &opts)
	if err != nil {
		return nil, err
	}
	defer metrics.Close()
	if opts.Sandbox {
		var sb *runningSandbox
		if sb, err = runSandboxRun(ctx, d, sandboxRunOptions{SandboxConfig: opts.SandboxConfig, Loads: opts.Loads}); err != nil {
			return nil, err
		}
		defer func() { err = cluster.Join(err, sb.Close()) }()
		opts.sandboxServers = sb.BootstrapServers()
		d.Notice("running on a sandbox that ends with this command")
	}
	cl, err := opts.connect(ctx, d)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	metrics.Connected(cl)
	opts.Warn = func(err error) {
		if errors.Is(err, ctp.ErrNothingYet) {
			d.Notice(err.Error())
			return
		}
		d.Warn(err.Error())
	}
	opts.Holding = func(h ctp.Hold) {
		d.Notice(fmt.Sprintf("holding transaction %q (producer %d, epoch %d) until %s; %d records are staged in it",
			h.TransactionalID, h.ProducerID, h.ProducerEpoch, d.time(h.Until), h.Records))
	}
	if opts.Exec != nil {
		opts.Exec.Env = withoutSecrets(d.Environ())
		stderr := &lineWriter{line: func(s string) { d.Notice("exec: " + s) }}
		defer stderr.Flush()
		opts.Exec.Stderr = stderr
	}
	stop := d.showCtpProgress(ctx, &opts)
	res, err = ctp.Run(ctx, cl, opts.Options)
	stop()
	return res, ctpError(err, &opts)
}

// ctpError adds what to do next to errors that the flags have to do with.
func ctpError(err error, opts *ctpOptions) error {
	const shorter = "choose a shorter --txn-timeout, or raise transaction.max.timeout.ms on the brokers"
	if _, ok := errors.AsType[*txn.TimeoutRejectedError](err); ok {
		return hintf(fmt.Errorf("--txn-timeout %s: %w", opts.TxnTimeout, err), shorter)
	}
	if e, ok := errors.AsType[*ctp.OptionError](err); ok && e.Option == "--txn-timeout" {
		return hintf(err, shorter)
	}
	if e, ok := errors.AsType[*cluster.UnsupportedError](err); ok && opts.Guarantee == ctp.ExactlyOnce {
		return hintf(err, "%s; where share groups are enabled, --guarantee at-least-once works", e.Advice)
	}
	if e, ok := errors.AsType[*txn.OutcomeUnknownError](err); ok {
		return hintf(err, "output and acknowledgements share the outcome; 'kshare txn describe %s' tells it, then run again: nothing is lost or doubled either way", e.Token())
	}
	return err
}

const progressEvery = 250 * time.Millisecond

// showCtpProgress shows how many records are done until the function that it
// returns is called.
func (d *Deps) showCtpProgress(ctx context.Context, opts *ctpOptions) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	p := d.Progress("consumed", "records")
	total := int64(-1)
	if opts.MaxRecords > 0 {
		total = opts.MaxRecords
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer p.Close()
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.Update(opts.Counts.Consumed.Load(), total, fmt.Sprintf("%d transactions", opts.Counts.Committed.Load()))
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// ctpResult is the result of "ctp" for programs.
type ctpResult struct {
	From            string          `json:"from"`
	To              string          `json:"to"`
	GroupID         string          `json:"group_id"`
	TransactionalID string          `json:"transactional_id"`
	Guarantee       string          `json:"guarantee"`
	Dialect         *string         `json:"dialect"`     // null where nothing of KIP-1289 is used
	Unconfirmed     int64           `json:"unconfirmed"` // may be produced again
	Consumed        int64           `json:"consumed"`
	Produced        int64           `json:"produced"`
	Acknowledged    int64           `json:"acknowledged"`
	Rejected        int64           `json:"rejected"`
	DeadLetters     int64           `json:"dead_letters"` // of the produced ones
	Released        int64           `json:"released"`
	LockExpired     int64           `json:"lock_expired"`  // given up because their acquisition locks had run out, or left no margin
	Gone            int64           `json:"gone"`          // deleted from the topic before their transaction was committed; not in consumed
	ExecRestarts    int64           `json:"exec_restarts"` // programs of --exec that were started in place of one that had ended
	Transactions    ctpTransactions `json:"transactions"`
	Seconds         float64         `json:"seconds"`
}

type ctpTransactions struct {
	Committed int64 `json:"committed"`
	Aborted   int64 `json:"aborted"`
	Unknown   int64 `json:"unknown"`
}

func ctpView(r *ctp.Result) output.View {
	if r == nil {
		return output.View{}
	}
	// Not Seconds(), which makes 1.6909999999999998 of 1.691 s.
	seconds := float64(r.Elapsed.Round(time.Millisecond).Milliseconds()) / 1000
	t := output.NewTable("CONSUMED", "PRODUCED", "ACKNOWLEDGED", "REJECTED", "RELEASED", "COMMITTED", "ABORTED", "UNKNOWN", "SECONDS")
	t.Row(r.Consumed, r.Produced, r.Acknowledged, r.Rejected, r.Released, r.Committed, r.Aborted, r.Unknown, seconds)
	return output.View{
		Kind: "ctp", Version: 1, Table: t,
		Data: &ctpResult{
			From: r.From, To: r.To, GroupID: r.GroupID, TransactionalID: r.TransactionalID,
			Guarantee: string(r.Guarantee), Dialect: known(r.Dialect), Unconfirmed: r.Unconfirmed,
			Consumed: r.Consumed, Produced: r.Produced, Acknowledged: r.Acknowledged,
			Rejected: r.Rejected, DeadLetters: r.DeadLetters, Released: r.Released,
			LockExpired: r.LockExpired, Gone: r.Gone, ExecRestarts: r.ExecRestarts,
			Transactions: ctpTransactions{r.Committed, r.Aborted, r.Unknown},
			Seconds:      seconds,
		},
	}
}
