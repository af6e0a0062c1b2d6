package ctp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
)

// OnError says what becomes of a record that cannot be transformed.
type OnError string

const (
	// Fail aborts the batch and ends the run with a *RecordError.
	Fail OnError = "fail"
	// Release gives the record back to the share group, outside the
	// transaction; the group's delivery count limit archives it in the end.
	Release OnError = "release"
	// Reject archives the record, within the transaction of its batch.
	Reject OnError = "reject"
)

// Guarantee says what a run promises about each source record.
type Guarantee string

const (
	// ExactlyOnce produces and acknowledges in one transaction. It needs a
	// cluster that implements KIP-1289.
	ExactlyOnce Guarantee = "exactly-once"
	// AtLeastOnce commits what was produced, then acknowledges the source. It
	// works wherever share groups do. Records whose acknowledgement does not
	// arrive after the commit, because the process dies or the lock expires in
	// between, are produced again.
	AtLeastOnce Guarantee = "at-least-once"
)

// Options says what to run.
type Options struct {
	From string // source topic; required
	To   string // destination topic; required, not From

	// GroupID is the share group; "" is "kshare-" and the source topic.
	GroupID string
	// TransactionalID is the prefix of the workers' transactional IDs, to which
	// "-0", "-1" and so on are added; "" is "kshare-ctp-" and the group. A run
	// with the same one aborts what an earlier one left open, and takes the
	// place of its members at once.
	TransactionalID string

	BatchRecords int   // most records of one transaction, up to MaxBatchRecords; 0 is 5000
	MaxRecords   int64 // stop after that many source records; 0 is no limit
	UntilEmpty   bool  // stop when the group has nothing left of the source
	Workers      int   // members with a transactional ID each; 0 is 1

	// TxnTimeout is the transaction timeout; 0 is 60 s.
	TxnTimeout time.Duration
	// AutoOffsetReset, when not "", is set as share.auto.offset.reset of the
	// group before it is joined: "earliest", "latest" or "by_duration:PT1H".
	AutoOffsetReset string
	// IsolationLevel, when not "", is set as share.isolation.level of the group
	// before it is joined: "read_committed" or "read_uncommitted".
	IsolationLevel string

	// HoldBeforeCommit holds each transaction open for so long when its records
	// are staged, before it is committed: to rehearse what is done about records
	// that hang. It has to be shorter than [HoldLimit] of TxnTimeout, and needs
	// ExactlyOnce, which alone stages. 0 does not hold.
	HoldBeforeCommit time.Duration
	// Holding is told of each transaction that is held. nil drops that. It may be
	// called from several goroutines.
	Holding func(Hold)

	Guarantee Guarantee // "" is ExactlyOnce
	Transform Transform // nil copies each record as it is
	Exec      *Exec     // a program that transforms; nil is none; not with Transform
	OnError   OnError   // "" is Fail, or Reject with a DeadLetterTopic

	// MaxAttempts is how often a record may kill the program, or take longer than
	// it or its transaction may, before OnError decides about it; 0 is one less
	// than the group's delivery count limit.
	MaxAttempts int
	// DeadLetterTopic, when not "", gets a copy of each record that OnError
	// rejects, in the transaction that rejects it, with headers that say where it
	// comes from and why (those of Kafka's dead-letter queue, KIP-1191). It is
	// neither From nor To.
	DeadLetterTopic string

	// Rate is the most source records a second, over all workers; 0 is no limit.
	Rate float64
	// StallTimeout ends the run with *StalledError when nothing was committed for
	// so long although the group has records left; 0 is never.
	StallTimeout time.Duration
	// KeepPartition produces each record to the partition of the destination that
	// has the number of its source partition. Otherwise the key decides, as in
	// Kafka's own producer.
	KeepPartition bool
	// RequireReadCommitted refuses with *RefusedError to read a group that sees
	// uncommitted records.
	RequireReadCommitted bool
	// AbortEvery aborts every so many transactions when they could be committed,
	// to rehearse it; at least 2; 0 is none.
	AbortEvery int

	// Warn is told of conditions that do not end the run. nil drops them. It
	// may be called from several goroutines.
	Warn func(error)
	// Counts, when set, is where the run counts, for progress to be read from.
	Counts *Counts
	// Metrics is told what Kafka's own clients count; nil counts nothing.
	Metrics Metrics
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Metrics is told what the client metrics of KIP-1289 count. Its methods must not
// block, and are called from several goroutines at once.
type Metrics interface {
	share.Metrics
	txn.Metrics
}

// DefaultBatchRecords is how many records one transaction holds at the most
// when nothing else is said.
const DefaultBatchRecords = 5000

// MaxBatchRecords is the most that can be said. A transaction of so many records
// is of no use to anybody; it bounds what is held in memory.
const MaxBatchRecords = 1_000_000

// DefaultGroupID is the share group that reads topic from when none is named.
func DefaultGroupID(from string) string { return "kshare-" + from }

// OptionError says that an option cannot be as it is.
type OptionError struct {
	Option string // as the command line spells it
	Reason string
}

// Error reads "--option: reason".
func (e *OptionError) Error() string { return fmt.Sprintf("%s: %s", e.Option, e.Reason) }

func (o *Options) setDefaults() error {
	switch {
	case o.From == "":
		return &OptionError{"--from", "no source topic is given"}
	case o.To == "":
		return &OptionError{"--to", "no destination topic is given"}
	case o.From == o.To:
		return &OptionError{"--to", fmt.Sprintf("is the source topic %q as well: every record would be consumed again for ever", o.To)}
	case o.BatchRecords < 0 || o.BatchRecords > MaxBatchRecords:
		return &OptionError{"--batch-records", fmt.Sprintf("is %d, has to be 1 to %d", o.BatchRecords, MaxBatchRecords)}
	case o.MaxRecords < 0:
		return &OptionError{"--max-records", fmt.Sprintf("is %d, has to be at least 1", o.MaxRecords)}
	case o.Workers < 0:
		return &OptionError{"--workers", fmt.Sprintf("is %d, has to be at least 1", o.Workers)}
	case o.TxnTimeout < 0 || o.TxnTimeout > 0 && o.TxnTimeout < time.Millisecond:
		return &OptionError{"--txn-timeout", fmt.Sprintf("is %s, has to be at least 1ms", o.TxnTimeout)}
	}
	switch o.Guarantee {
	case "":
		o.Guarantee = ExactlyOnce
	case ExactlyOnce, AtLeastOnce:
	default:
		return &OptionError{"--guarantee", fmt.Sprintf("is %q, has to be %s or %s", o.Guarantee, ExactlyOnce, AtLeastOnce)}
	}
	switch {
	case o.Transform != nil && o.Exec != nil:
		return &OptionError{"--exec", "there is another transform"}
	case o.Exec != nil && len(o.Exec.Command) == 0:
		return &OptionError{"--exec", "no program is given"}
	case o.Exec != nil && o.Exec.Timeout < 0:
		return &OptionError{"--exec-timeout", fmt.Sprintf("is %s, has to be more than 0", o.Exec.Timeout)}
	case o.MaxAttempts < 0:
		return &OptionError{"--max-attempts", fmt.Sprintf("is %d, has to be at least 1", o.MaxAttempts)}
	case o.Rate < 0:
		return &OptionError{"--rate", fmt.Sprintf("is %g, has to be more than 0", o.Rate)}
	case o.StallTimeout < 0:
		return &OptionError{"--stall-timeout", fmt.Sprintf("is %s, has to be more than 0", o.StallTimeout)}
	case o.AbortEvery < 0 || o.AbortEvery == 1:
		return &OptionError{"--abort-every", fmt.Sprintf("is %d, has to be at least 2: otherwise nothing is ever committed", o.AbortEvery)}
	case o.DeadLetterTopic != "" && o.DeadLetterTopic == o.From:
		return &OptionError{"--dlq", fmt.Sprintf("is the source topic %q as well: dead letters would be consumed again for ever", o.From)}
	case o.DeadLetterTopic != "" && o.DeadLetterTopic == o.To:
		return &OptionError{"--dlq", fmt.Sprintf("is the destination topic %q as well: a dead letter could not be told from a result", o.To)}
	case o.DeadLetterTopic != "" && o.OnError != "" && o.OnError != Reject:
		return &OptionError{"--dlq", fmt.Sprintf("goes with records that are rejected, and --on-error is %s", o.OnError)}
	case o.DeadLetterTopic != "":
		o.OnError = Reject
	}
	switch o.OnError {
	case "":
		o.OnError = Fail
	case Fail, Release, Reject:
	default:
		return &OptionError{"--on-error", fmt.Sprintf("is %q, has to be fail, release or reject", o.OnError)}
	}
	if o.GroupID == "" {
		o.GroupID = DefaultGroupID(o.From)
	}
	if o.TransactionalID == "" {
		o.TransactionalID = "kshare-ctp-" + o.GroupID
	}
	if o.BatchRecords == 0 {
		o.BatchRecords = DefaultBatchRecords
	}
	if o.Workers == 0 {
		o.Workers = 1
	}
	if o.TxnTimeout == 0 {
		o.TxnTimeout = txn.DefaultTimeout
	}
	if err := o.checkHold(); err != nil {
		return err
	}
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	if o.Holding == nil {
		o.Holding = func(Hold) {}
	}
	if o.Counts == nil {
		o.Counts = new(Counts)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

func (o *Options) checkHold() error {
	const option = "--hold-before-commit"
	switch limit := HoldLimit(o.TxnTimeout); {
	case o.HoldBeforeCommit < 0:
		return &OptionError{option, fmt.Sprintf("is %s, has to be positive", o.HoldBeforeCommit)}
	case o.HoldBeforeCommit == 0:
		return nil
	case o.Guarantee != ExactlyOnce:
		return &OptionError{option, fmt.Sprintf("holds what is staged, and %s stages nothing", o.Guarantee)}
	case o.HoldBeforeCommit >= limit:
		return &OptionError{option, fmt.Sprintf("is %s, has to be below %s: a transaction with a timeout of %s is not committed after that", o.HoldBeforeCommit, limit, o.TxnTimeout)}
	}
	return nil
}

// Counts counts what a run has done so far. A batch is counted when its
// transaction has ended and the end is confirmed, never before. It may be read
// while the run goes on.
type Counts struct {
	Consumed     atomic.Int64 // source records whose acknowledgement was committed
	Produced     atomic.Int64 // records produced in committed transactions
	Acknowledged atomic.Int64 // source records accepted
	Rejected     atomic.Int64 // source records rejected
	DeadLetters  atomic.Int64 // of the produced ones, those for the dead-letter topic
	Released     atomic.Int64 // source records given back, after an abort or by OnError
	Committed    atomic.Int64 // transactions
	Aborted      atomic.Int64 // transactions
	Unknown      atomic.Int64 // transactions whose outcome is unknown
	Unconfirmed  atomic.Int64 // source records that may be produced again: AtLeastOnce, committed and not acknowledged
	LockExpired  atomic.Int64 // source records that were given up because their acquisition locks had run out, or left no margin
	// Gone counts source records that were deleted from their topic before their
	// transaction was committed: brokers take such acknowledgements, and nothing comes
	// of them. What they became is produced; none of the other counts has them.
	Gone         atomic.Int64
	ExecRestarts atomic.Int64 // programs of Exec that were started in place of one that had ended
}

// Result is what a run has done.
type Result struct {
	From            string
	To              string
	GroupID         string
	TransactionalID string
	Guarantee       Guarantee
	Dialect         string // "" for AtLeastOnce, which uses nothing of KIP-1289

	Consumed     int64 // source records whose acknowledgement was committed
	Produced     int64 // records produced in committed transactions
	Acknowledged int64 // source records accepted
	Rejected     int64 // source records rejected
	DeadLetters  int64 // of the produced ones, those for the dead-letter topic
	Released     int64 // source records given back, after an abort or by OnError
	Committed    int64 // transactions
	Aborted      int64 // transactions
	Unknown      int64 // transactions whose outcome is unknown
	Unconfirmed  int64 // source records that may be produced again: AtLeastOnce, committed and not acknowledged
	LockExpired  int64 // source records that were given up because their acquisition locks had run out, or left no margin
	Gone         int64 // source records that were deleted before their transaction was committed, see Counts
	ExecRestarts int64 // programs of Exec that were started in place of one that had ended
	Elapsed      time.Duration
}

func (o *Options) result(dialect string, elapsed time.Duration) *Result {
	c := o.Counts
	return &Result{
		From: o.From, To: o.To, GroupID: o.GroupID, TransactionalID: o.TransactionalID, Guarantee: o.Guarantee, Dialect: dialect,
		Consumed: c.Consumed.Load(), Produced: c.Produced.Load(), Acknowledged: c.Acknowledged.Load(),
		Rejected: c.Rejected.Load(), DeadLetters: c.DeadLetters.Load(), Released: c.Released.Load(),
		Committed: c.Committed.Load(), Aborted: c.Aborted.Load(), Unknown: c.Unknown.Load(), Unconfirmed: c.Unconfirmed.Load(),
		LockExpired: c.LockExpired.Load(), Gone: c.Gone.Load(), ExecRestarts: c.ExecRestarts.Load(),
		Elapsed: elapsed,
	}
}

// ErrNothingConsumed is warned of when a run until empty ends without a record.
var ErrNothingConsumed = errors.New("nothing was consumed")

// ErrWaiting is warned of when a run until empty has got nothing for ten seconds
// although its group has records left.
var ErrWaiting = errors.New("waiting")

// ErrNothingYet is warned of when a run that goes on has got no record in its first
// ten seconds. It may be as it should.
var ErrNothingYet = errors.New("nothing to consume so far")
