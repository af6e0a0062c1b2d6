package ctp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

// Run consumes, transforms, produces and acknowledges until the context ends,
// MaxRecords are done, or, with UntilEmpty, nothing is left. It checks first
// what can be checked without touching the group: *OptionError for options,
// *cluster.UnsupportedError for the cluster, *cluster.Error for topics,
// *cluster.AuthError. While it runs it may fail with *RecordError,
// *txn.FencedError, *txn.OutcomeUnknownError, *StuckError or one of those.
//
// The result is returned with an error too; it is nil only when nothing was
// started. When the context ends, open transactions are aborted, everything
// that was acquired is released, and the context's cause is returned.
func Run(ctx context.Context, cl *cluster.Client, opts Options) (*Result, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	dialect, err := preflight(ctx, cl, &opts)
	if err != nil {
		return nil, err
	}
	if err := configureGroup(ctx, cl, &opts); err != nil {
		return nil, err
	}
	start := opts.Now()
	r := &run{opts: opts, start: start, cl: cl, dialect: dialect, left: opts.MaxRecords, given: make(chan struct{}), limits: readLimits(ctx, cl, opts.GroupID), to: readDestination(ctx, cl, opts.To)}
	if opts.DeadLetterTopic != "" {
		r.dead = readDestination(ctx, cl, opts.DeadLetterTopic)
	}
	if r.opts.MaxAttempts == 0 {
		r.opts.MaxAttempts = max(1, int(r.limits.deliveries)-1)
	}
	if opts.Rate > 0 {
		r.limiter = rate.NewLimiter(rate.Limit(opts.Rate), max(1, int(opts.Rate)))
	}
	err = r.work(ctx)
	res := opts.result(dialect.Name, opts.Now().Sub(start))
	if err == nil && res.Consumed+res.Gone == 0 && opts.UntilEmpty {
		opts.Warn(r.nothing(ErrNothingConsumed))
	}
	return res, err
}

// nothing says why there may be nothing to consume.
func (r *run) nothing(what error) error {
	return fmt.Errorf("%w: share group %q has nothing to read of topic %q; a group that is new starts at the end of a topic, with --auto-offset-reset earliest at its beginning, and one that is not new where it stands",
		what, r.opts.GroupID, r.opts.From)
}

// nothingYetAfter is how long a run waits for its first record before it says so.
const nothingYetAfter = 10 * time.Second

// tellNothingYet says once that this run has got nothing since it began.
func (r *run) tellNothingYet() {
	if r.got.Load() || r.opts.Now().Sub(r.start) < nothingYetAfter {
		return
	}
	r.told.Do(func() { r.opts.Warn(r.nothing(ErrNothingYet)) })
}

// run is what the workers of one Run share.
type run struct {
	opts     Options
	start    time.Time
	cl       *cluster.Client
	dialect  wire.Dialect
	limits   groupLimits
	to       destination
	dead     destination                             // of dead letters
	unknown  atomic.Pointer[txn.OutcomeUnknownError] // of any worker
	joined   atomic.Int32                            // workers that have become members
	working  atomic.Int32                            // workers that have a batch in work
	toldGone sync.Once                               // of ErrGone
	got      atomic.Bool                             // any record
	told     sync.Once                               // of ErrNothingYet
	toldWait sync.Once                               // of ErrWaiting

	limiter *rate.Limiter // nil is no limit

	mu       sync.Mutex
	left     int64         // source records that may still be taken, when MaxRecords is set
	reserved int64         // that were taken and are not consumed yet
	given    chan struct{} // closed when any of those are settled

	end   context.Context // ends when the run is finished
	ended context.CancelFunc
}

func (r *run) work(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.end, r.ended = context.WithCancel(context.WithoutCancel(ctx))
	defer r.ended()
	stop := r.watch(ctx, cancel)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	for i := range r.opts.Workers {
		g.Go(func() error {
			w := &worker{run: r, id: r.opts.TransactionalID + "-" + strconv.Itoa(i)}
			return w.run1(gctx)
		})
	}
	err := g.Wait()
	switch unknown, cause := r.unknown.Load(), context.Cause(ctx); {
	case unknown != nil:
		return unknown // no other error, and no signal, matters as much
	case cause != nil && errors.Is(err, context.Canceled):
		return cause
	}
	return err
}

// finished reports whether all records are consumed that may be.
func (r *run) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opts.MaxRecords > 0 && r.left == 0 && r.reserved == 0
}

// reserve takes up to n of the records that may still be consumed. Where others
// have taken the last ones, it waits whether they give some back. 0 means that
// the run is done.
func (r *run) reserve(ctx context.Context, n int) (int, error) {
	if r.opts.MaxRecords == 0 {
		return n, nil
	}
	for {
		r.mu.Lock()
		n := int(min(int64(n), r.left))
		done := n == 0 && r.reserved == 0
		r.left -= int64(n)
		r.reserved += int64(n)
		given := r.given
		r.mu.Unlock()
		if n > 0 || done {
			return n, nil
		}
		select {
		case <-given:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// settle says what became of n reserved records: so many were consumed, and the
// others are given back.
func (r *run) settle(n, consumed int) {
	if r.opts.MaxRecords == 0 || n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved -= int64(n)
	r.left += int64(n - consumed)
	close(r.given)
	r.given = make(chan struct{})
	if r.left == 0 && r.reserved == 0 {
		r.ended()
	}
}

// preflight checks everything that can be checked before the group is joined,
// in the order in which an operator would want to hear of it.
func preflight(ctx context.Context, cl *cluster.Client, opts *Options) (dialect wire.Dialect, err error) {
	for _, step := range preflightSteps(cl, opts, &dialect, false) {
		if _, err := step.do(ctx); err != nil {
			return dialect, err
		}
	}
	return dialect, nil
}

// checkTopics finds out whether the topics are there and fit together.
func checkTopics(ctx context.Context, cl *cluster.Client, opts *Options) error {
	names := []string{opts.From, opts.To}
	if opts.DeadLetterTopic != "" {
		names = append(names, opts.DeadLetterTopic)
	}
	counts := make(map[string]int)
	for _, name := range names {
		topics, err := cl.Topics(ctx, name)
		if err != nil {
			return err
		}
		if topics[name].IsInternal {
			return &OptionError{"--from, --to, --dlq", fmt.Sprintf("topic %q is internal to Kafka", name)}
		}
		counts[name] = len(topics[name].Partitions)
	}
	if from, to := counts[opts.From], counts[opts.To]; opts.KeepPartition && from > to {
		return &OptionError{"--partition", fmt.Sprintf("keep needs as many partitions in topic %q as in %q, and it has %d and not %d", opts.To, opts.From, to, from)}
	}
	return nil
}

const (
	offsetResetConfig = "share.auto.offset.reset"
	isolationConfig   = "share.isolation.level"
	readCommitted     = "read_committed"
)

// configureGroup sets what was asked for, and warns of what was not and matters.
func configureGroup(ctx context.Context, cl *cluster.Client, opts *Options) error {
	for _, c := range []struct{ name, value string }{
		{offsetResetConfig, opts.AutoOffsetReset},
		{isolationConfig, opts.IsolationLevel},
	} {
		if c.value == "" {
			continue
		}
		if err := cl.SetGroupConfig(ctx, opts.GroupID, c.name, c.value); err != nil {
			return err
		}
	}
	if opts.IsolationLevel == "" || opts.RequireReadCommitted {
		return checkIsolation(ctx, cl, opts)
	}
	return nil
}

const maxTxnTimeoutConfig = "transaction.max.timeout.ms"

// checkTxnTimeout compares with the broker's maximum. A principal that may not
// read broker configs is told by InitProducerId instead.
func checkTxnTimeout(ctx context.Context, cl *cluster.Client, timeout time.Duration) error {
	node, err := cl.AnyBroker(ctx)
	if err != nil {
		return err
	}
	value, ok, err := cl.ResourceConfig(ctx, kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(node)), maxTxnTimeoutConfig)
	if err != nil || !ok {
		return nil
	}
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return nil
	}
	if limit := time.Duration(ms) * time.Millisecond; timeout > limit {
		return &OptionError{"--txn-timeout", fmt.Sprintf("is %s, the broker allows at most %s (%s=%s)", timeout, limit, maxTxnTimeoutConfig, value)}
	}
	return nil
}

// groupLimits are configs of the share group that a run has to know.
type groupLimits struct {
	deliveries int16 // after so many of a record the broker archives it
	renew      bool  // acquisition locks may be renewed
}

// readLimits returns what is in force: the group's own value, or that of the
// brokers, or Kafka's default for a principal that may read neither and for a
// release that does not have the config.
func readLimits(ctx context.Context, cl *cluster.Client, group string) groupLimits {
	l := groupLimits{deliveries: 5, renew: true}
	if v, ok, err := cl.GroupConfig(ctx, group, "share.renew.acknowledge.enable"); err == nil && ok {
		l.renew = v != "false"
	}
	v, ok, err := cl.GroupConfig(ctx, group, "share.delivery.count.limit")
	if err != nil || !ok {
		node, err := cl.AnyBroker(ctx)
		if err != nil {
			return l
		}
		if v, ok, err = cl.ResourceConfig(ctx, kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(node)), "group.share.delivery.count.limit"); err != nil || !ok {
			return l
		}
	}
	if n, err := strconv.ParseInt(v, 10, 16); err == nil {
		l.deliveries = int16(n)
	}
	return l
}

const (
	// defaultMaxMessageBytes is Kafka's own message.max.bytes, and mostMessageBytes
	// what a request to produce holds in kgo, less room for what is not records.
	defaultMaxMessageBytes = 1_048_588
	mostMessageBytes       = 100<<20 - 64<<10
)

// destination is what a topic takes.
type destination struct {
	topic     string
	maxRecord int32 // about how many bytes a record may have, see maxMessageBytes
	compacted bool
}

func readDestination(ctx context.Context, cl *cluster.Client, topic string) destination {
	// A principal that may not read it finds out from the broker's refusal.
	policy, _, err := cl.ResourceConfig(ctx, kmsg.ConfigResourceTypeTopic, topic, "cleanup.policy")
	return destination{
		topic: topic, maxRecord: maxMessageBytes(ctx, cl, topic),
		compacted: err == nil && slices.Contains(strings.Split(policy, ","), "compact"),
	}
}

// takes returns why the topic does not take a record.
func (d destination) takes(r *kgo.Record) error {
	if n := batchBytes(r); n > int64(d.maxRecord) {
		return fmt.Errorf("%w: it would have %d bytes, topic %q takes %d (max.message.bytes)", ErrTooLarge, n, d.topic, d.maxRecord)
	}
	if d.compacted && r.Key == nil {
		return fmt.Errorf("%w: topic %q is compacted and takes none without (cleanup.policy)", ErrNoKey, d.topic)
	}
	return nil
}

// maxMessageBytes returns what the topic takes in one record batch
// (max.message.bytes), or Kafka's default for a principal that may not read it.
func maxMessageBytes(ctx context.Context, cl *cluster.Client, topic string) int32 {
	v, ok, err := cl.ResourceConfig(ctx, kmsg.ConfigResourceTypeTopic, topic, "max.message.bytes")
	if err != nil || !ok {
		return defaultMaxMessageBytes
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return defaultMaxMessageBytes
	}
	return int32(min(max(n, 1<<10), mostMessageBytes))
}

// ErrReadUncommitted is warned of when the source group would read records of
// open and aborted upstream transactions.
var ErrReadUncommitted = errors.New("the share group reads uncommitted records")

// RefusedError says that a run was not started because it would not have been
// safe.
type RefusedError struct {
	Reason string
	Advice string
}

// Error is the reason.
func (e *RefusedError) Error() string { return e.Reason }

// Hint says what makes it safe.
func (e *RefusedError) Hint() string { return e.Advice }

// checkIsolation warns of a group that sees records which their own producer
// may still abort, or refuses to read it. What may not be read is not taken for
// read_committed.
func checkIsolation(ctx context.Context, cl *cluster.Client, opts *Options) error {
	value, ok, err := cl.GroupConfig(ctx, opts.GroupID, isolationConfig)
	advice := fmt.Sprintf("run with --isolation-level read_committed, which sets %s of group %q", isolationConfig, opts.GroupID)
	switch {
	case err == nil && ok && value == readCommitted:
		return nil
	case opts.RequireReadCommitted && err != nil:
		return &RefusedError{
			Reason: fmt.Sprintf("share group %q may read uncommitted records: %s cannot be read: %v", opts.GroupID, isolationConfig, err),
			Advice: "grant DESCRIBE_CONFIGS on the group to this principal",
		}
	case opts.RequireReadCommitted:
		return &RefusedError{Reason: fmt.Sprintf("share group %q reads uncommitted records", opts.GroupID), Advice: advice}
	case err != nil:
		return nil
	}
	opts.Warn(fmt.Errorf("%w: if topic %q is written by transactions, %s", ErrReadUncommitted, opts.From, advice))
	return nil
}
