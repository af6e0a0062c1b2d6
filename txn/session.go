package txn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Config describes a transactional producer.
type Config struct {
	// TransactionalID is required. Two sessions with the same one fence each
	// other: the later one goes on, the earlier one gets a *FencedError.
	TransactionalID string
	// Timeout is after how long the coordinator aborts a transaction by itself;
	// 0 is 60 s. The broker's transaction.max.timeout.ms bounds it.
	Timeout time.Duration
	// ProduceOnly makes a session that cannot stage acknowledgements, which works
	// on every Kafka with transactions.
	ProduceOnly bool
	// Metrics is told what Kafka's own client counts; nil counts nothing.
	Metrics Metrics
	// ProducerOpts are further options for kgo's producer.
	ProducerOpts []kgo.Opt
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// DefaultTimeout is the transaction timeout when none is given, which is also
// that of Kafka's own clients.
const DefaultTimeout = 60 * time.Second

// phase is where a session is between two transactions. It says what may be
// called.
type phase int32

const (
	phaseIdle     phase = iota // Begin
	phaseOpen                  // all but Begin
	phasePrepared              // Commit and Abort
	phaseUnknown               // Commit and Abort: the last commit was not confirmed
	phaseClosed                // nothing
)

// why says why something may not be called.
func (p phase) why() string {
	switch p {
	case phaseIdle:
		return "no transaction is open"
	case phaseOpen:
		return "a transaction is open"
	case phasePrepared:
		return "the transaction is prepared"
	case phaseUnknown:
		return "the outcome of the last commit is unknown"
	case phaseClosed:
		return "the session is closed"
	}
	return fmt.Sprintf("phase(%d)", int32(p))
}

// Session runs one transaction after the other under one transactional ID. Its
// methods are to be called by one goroutine at a time, except Produce and
// SendShareAcknowledgements, which may run at once with each other between
// Begin and Commit, Prepare or Abort, and CheckOwner. What is called in another
// order than
//
//	Begin, any of Produce and SendShareAcknowledgements, [Prepare], Commit or Abort
//
// returns a *StateError, and nothing is sent.
type Session struct {
	identity // the epoch may change while gate is held only
	cfg      Config

	// gate is held while the epoch may change: by Begin, Commit, Prepare and Abort.
	gate     sync.Mutex
	phase    atomic.Int32
	producer *kgo.Client
	stale    atomic.Bool            // kgo's idea of the epoch is not the coordinator's any more
	leftOpen bool                   // an abort failed: the coordinator may have the transaction open
	reached  sync.Map               // a partition that took records, by topic; of this producer
	last     atomic.Pointer[string] // the topic that was last put into reached

	// Of the transaction that is open; reset by Begin.
	staging    staging
	produced   atomic.Int64 // records handed to the producer
	deliveries *deliveries
	promise    func(*kgo.Record, error) // tells deliveries
	committing bool                     // a commit was sent
	unknown    *OutcomeUnknownError     // of phaseUnknown
}

// NewSession checks that the cluster can stage acknowledgements, unless the
// session only produces, and initialises the producer, which aborts what an
// earlier session with the same transactional ID left open, prepared or not. It
// may return *cluster.UnsupportedError, *cluster.AuthError,
// *TimeoutRejectedError, *cluster.DialError or *cluster.Error.
func NewSession(ctx context.Context, cl *cluster.Client, cfg Config) (*Session, error) {
	if cfg.TransactionalID == "" {
		return nil, errors.New("transactional session: no transactional ID")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Session{cfg: cfg, identity: identity{
		cl: cl, transactionalID: cfg.TransactionalID, timeout: cfg.Timeout, now: cfg.Now, metrics: cfg.Metrics,
		producerID: -1, node: -1,
	}}
	if !cfg.ProduceOnly {
		var err error
		if s.dialect, err = cl.RequireTxnShareAcknowledge(ctx); err != nil {
			return nil, err
		}
	}
	// While a broker is restarted its clients find the new coordinator only by
	// and by.
	for try := 0; ; try++ {
		err := s.renewProducer(ctx)
		if err == nil {
			return s, nil
		}
		if !cluster.IsUnanswered(err) || try == initTries || !backOff(ctx, try) {
			return nil, err
		}
	}
}

// initTries is how often the first producer is tried again, in about 3 s.
const initTries = 8

// Dialect is the form of KIP-1289 that the session speaks; the zero value for
// one that only produces.
func (s *Session) Dialect() wire.Dialect { return s.dialect }

// TransactionalID is the ID from the configuration.
func (s *Session) TransactionalID() string { return s.transactionalID }

// ProducerID returns the producer ID and epoch of the open or last transaction.
func (s *Session) ProducerID() (id int64, epoch int16) { return s.producerID, s.epoch }

func (s *Session) in() phase { return phase(s.phase.Load()) }

func (s *Session) enter(p phase) { s.phase.Store(int32(p)) }

func (s *Session) mustBeOpen(op string) error {
	if p := s.in(); p != phaseOpen {
		return &StateError{op, p.why()}
	}
	return nil
}

// sawEndTxn is a hook of kgo's producer: it sends an EndTxn again when it got no
// answer, and tells only of the last one.
type sawEndTxn struct{ s *Session }

// OnBrokerE2E notes an EndTxn without an answer.
func (h sawEndTxn) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if key == int16(kmsg.EndTxn) && (e2e.WriteErr != nil && e2e.BytesWritten > 0 || e2e.ReadErr != nil) {
		h.s.unanswered.Store(true)
	}
}

// renewProducer replaces kgo's producer by a new one, whose InitProducerId
// aborts a transaction that is still open and raises the epoch. It is how the
// session goes on after kgo's idea of the epoch has become wrong: kgo cannot be
// told of an EndTxn that it did not send itself.
//
// InitProducerId takes the transactional ID over from whoever has it, so before
// any but the first one the session makes sure that it still has it itself.
func (s *Session) renewProducer(ctx context.Context) error {
	if s.producerID >= 0 {
		if _, err := s.checkOwner(ctx); err != nil {
			return err
		}
	}
	if s.producer != nil {
		s.producer.Close()
		s.producer = nil
	}
	opts := append([]kgo.Opt{
		kgo.TransactionalID(s.transactionalID),
		kgo.TransactionTimeout(s.timeout),
		kgo.WithHooks(sawEndTxn{s}),
	}, s.cfg.ProducerOpts...)
	p, err := s.cl.NewKgo(opts...)
	if err != nil {
		return err
	}
	id, epoch, err := p.ProducerID(ctx)
	if err != nil {
		p.Close()
		return s.initError(err)
	}
	s.producer, s.producerID, s.epoch = p, id, epoch
	s.stale.Store(false)
	s.leftOpen = false
	s.reached.Clear()
	s.last.Store(nil)
	return nil
}

// follow takes over the epoch that the end of a transaction has left kgo with.
func (s *Session) follow(ctx context.Context) {
	if s.stale.Load() {
		return // kgo does not know it, and endTxn has noted it
	}
	if id, epoch, err := s.producer.ProducerID(ctx); err == nil {
		s.producerID, s.epoch = id, epoch
	}
}

// CheckOwner asks the coordinator whether this session still has its
// transactional ID. It returns a *FencedError when another producer has taken
// it over. It may be called beside all other methods; while a transaction is
// being ended it waits.
func (s *Session) CheckOwner(ctx context.Context) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	_, err := s.checkOwner(ctx)
	return err
}

// Begin starts a transaction. Nothing is sent, except to get a new epoch after
// a transaction whose end left the old one unusable. It may return *StateError
// and what NewSession returns.
func (s *Session) Begin(ctx context.Context) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if p := s.in(); p != phaseIdle {
		return &StateError{"begin transaction", p.why()}
	}
	if s.producer == nil || s.stale.Load() {
		if err := s.renewProducer(ctx); err != nil {
			return err
		}
	}
	if err := s.producer.BeginTransaction(); err != nil {
		s.stale.Store(true)
		return s.classify(ctx, "begin transaction of", err)
	}
	id, epoch, err := s.producer.ProducerID(ctx)
	if err != nil {
		s.stale.Store(true)
		return s.classify(ctx, "begin transaction of", err)
	}
	s.producerID, s.epoch, s.began = id, epoch, s.now()
	s.produced.Store(0)
	s.deliveries = new(deliveries)
	s.promise = s.promiseTo(s.deliveries)
	s.staging.reset()
	s.unanswered.Store(false)
	s.committing, s.unknown = false, nil
	s.enter(phaseOpen)
	return nil
}

// Recover aborts what the last Abort could not, as the next Begin would: a caller
// that may have nothing to begin for a while calls it until it returns nil, since
// nobody else gets the staged records back before the transaction times out. It
// reports whether there was something to do; when nothing was left open, nothing is
// sent. It may return what NewSession returns, and a *FencedError.
func (s *Session) Recover(ctx context.Context) (aborted bool, err error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	if !s.leftOpen || s.in() != phaseIdle {
		return false, nil
	}
	err = s.renewProducer(ctx)
	return err == nil, err
}

// Deadline is when the coordinator may abort the open transaction.
func (s *Session) Deadline() time.Time { return s.deadline() }

// Produce hands a record to the producer. It blocks only while the producer's
// buffer is full. A failure to deliver it is kept and forbids the commit, which
// returns it. The record must not be changed until the transaction has ended. It
// returns a *StateError, and does nothing, when no transaction is open or it is
// prepared.
func (s *Session) Produce(ctx context.Context, r *kgo.Record) error {
	if err := s.mustBeOpen("produce"); err != nil {
		return err
	}
	s.produced.Add(1)
	s.producer.Produce(ctx, r, s.promise)
	return nil
}

// deliveries is what is known of the records of one transaction. One that was given
// up may be told of late.
type deliveries struct {
	told atomic.Int64          // how many were delivered, or failed
	err  atomic.Pointer[error] // why the first failed
}

// promiseTo returns what kgo calls for each record.
func (s *Session) promiseTo(d *deliveries) func(*kgo.Record, error) {
	return func(r *kgo.Record, err error) {
		defer d.told.Add(1)
		if err == nil {
			if last := s.last.Load(); last == nil || *last != r.Topic {
				topic := r.Topic
				s.reached.Store(topic, r.Partition)
				s.last.Store(&topic)
			}
			return
		}
		if d.err.Load() == nil {
			wrapped := error(&cluster.Error{Op: "produce", Broker: -1, Topic: r.Topic, Partition: r.Partition, Err: err, Advice: refusedAdvice(r, err)})
			d.err.CompareAndSwap(nil, &wrapped)
		}
	}
}

// refusedAdvice says what may be wrong with a record that a broker refused, "" if
// there is nothing to say.
func refusedAdvice(r *kgo.Record, err error) string {
	switch {
	case errors.Is(err, kerr.InvalidRecord) && r.Key == nil:
		return "the record has no key, and a compacted topic takes none without (cleanup.policy)"
	case errors.Is(err, kerr.MessageTooLarge):
		return fmt.Sprintf("topic %q takes smaller record batches alone (max.message.bytes); a value of this one has %d bytes", r.Topic, len(r.Value))
	}
	return ""
}

// Produced counts the records handed to Produce in the open or last transaction.
func (s *Session) Produced() int64 { return s.produced.Load() }

// Staged counts the offsets that brokers confirmed as staged in the open or
// last transaction.
func (s *Session) Staged() int64 {
	_, n, _ := s.staging.state()
	return n
}

// Commit waits until all records are delivered, checks the guard, and commits.
// It returns nil only when the coordinator has confirmed the commit; markers may
// still be under way then. A prepared transaction is committed without a look at
// the guard: what it was prepared for may have been done.
//
// After any error the caller has to call Abort, except after *AbortedError and
// *FencedError, where there is nothing left to abort. After
// *OutcomeUnknownError the caller may call Commit again, which asks once more, or
// Abort, which ends the transaction if it is open and tells if it is committed,
// or leave it to [Resume]. Other errors: *StateError, *GuardError,
// *cluster.AuthError, *cluster.UnsupportedError, and *cluster.Error for what made
// the commit unsafe.
func (s *Session) Commit(ctx context.Context, guard Guard) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	switch p := s.in(); p {
	case phaseOpen:
		if err := s.ready(ctx, "commit"); err != nil {
			return err
		}
		guard.TxnDeadline, guard.TxnTimeout = s.deadline(), s.timeout
		if err := guard.Check(s.now()); err != nil {
			return err
		}
	case phasePrepared:
	case phaseUnknown:
		return s.commitFailed(ctx, s.unknown.Err)
	case phaseIdle, phaseClosed:
		return &StateError{"commit transaction", p.why()}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // nothing was sent
	}
	registered, _, _ := s.staging.state()
	var err error
	switch {
	case s.committing: // kgo commits once only
		err = s.endTxn(ctx, true)
	case s.produced.Load() > 0:
		s.committing = true
		if err = s.producer.EndTransaction(ctx, kgo.TryCommit); err == nil && registered {
			err = s.mustHaveEnded(ctx)
		}
	case registered:
		// kgo knows nothing of a transaction with acknowledgements alone, and
		// will not know the epoch after it: the next Begin takes a new producer.
		s.committing = true
		s.stale.Store(true)
		err = s.endTxn(ctx, true)
	default:
		err = s.producer.EndTransaction(ctx, kgo.TryAbort) // sends nothing: nobody knows of it
	}
	if err == nil {
		s.enter(phaseIdle)
		s.follow(ctx)
		return nil
	}
	return s.commitFailed(ctx, err)
}

// ready makes sure that everything of the open transaction is confirmed: records
// are delivered, and acknowledgements staged.
func (s *Session) ready(ctx context.Context, verb string) error {
	if err := s.producer.Flush(ctx); err != nil {
		return s.failure(ctx, "flush records of", err)
	}
	// Flush does not wait for records that failed before they were buffered.
	for try := 0; s.deliveries.told.Load() < s.produced.Load(); try++ {
		if !backOff(ctx, try) {
			return s.failure(ctx, "flush records of", context.Cause(ctx))
		}
	}
	if err := s.deliveries.err.Load(); err != nil {
		return s.failure(ctx, "produce in", *err)
	}
	if _, _, doubt := s.staging.state(); doubt != nil {
		return doubt
	}
	if err := s.awaitTopics(ctx); err != nil {
		return s.failure(ctx, verb+" transaction of", err)
	}
	return nil
}

// awaitTopics waits until kgo knows the partitions of all topics that took
// records. It produces to a new topic a moment before it files its partitions,
// and EndTransaction goes through the files: a commit in between finds that no
// partition took part, aborts the transaction, and returns nil.
func (s *Session) awaitTopics(ctx context.Context) error {
	var err error
	s.reached.Range(func(topic, partition any) bool {
		for try := 0; err == nil; try++ {
			if leader, _, _ := s.producer.PartitionLeader(topic.(string), partition.(int32)); leader >= 0 {
				break
			}
			if !backOff(ctx, try) {
				err = context.Cause(ctx)
			}
		}
		return err == nil
	})
	return err
}

// failure classifies an error, and remembers that kgo's producer is of no use
// any more when it is one of its epoch.
func (s *Session) failure(ctx context.Context, op string, err error) error {
	if classOf(err) == fenced {
		s.stale.Store(true)
	}
	return s.classify(ctx, op, err)
}

// fencedAnswer reports whether a broker did not take the epoch.
func fencedAnswer(err error) bool {
	return errors.Is(err, kerr.TransactionalIDNotFound) || errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) || errors.Is(err, kerr.InvalidProducerIDMapping)
}

// commitFailed finds out what became of a commit that was not confirmed. The
// answer alone does not say: a coordinator that had already aborted the
// transaction answers PRODUCER_FENCED or INVALID_TXN_STATE, and a response that
// was lost may have been a success.
func (s *Session) commitFailed(ctx context.Context, err error) error {
	s.stale.Store(true) // kgo must not go on with this epoch, whatever the outcome
	outcome, d, err := s.settle(ctx, true, err)
	switch outcome {
	case OutcomeCommitted:
		s.enter(phaseIdle)
		s.producerID, s.epoch = d.producerID, d.producerEpoch
		return nil
	case OutcomeAborted:
		s.enter(phaseIdle)
		return s.abortedBy(d, err)
	case OutcomeOpen, OutcomeUnknown, OutcomeEnding:
	}
	rotated := d.producerID >= 0 && (d.producerID != s.producerID || d.producerEpoch > s.epoch)
	switch {
	case outcome != OutcomeOpen && s.unanswered.Load():
		if rotated {
			err = s.fencedOrLate(d, err)
		}
		s.enter(phaseUnknown)
		s.unknown = s.outcomeUnknown(&s.staging, s.Produced(), d, err)
		return s.unknown
	case rotated, classOf(err) == fenced, outcome != OutcomeOpen && errors.Is(err, kerr.InvalidTxnState):
		// Every commit that was sent was refused: nothing is committed.
		s.enter(phaseIdle)
		return s.fencedOrLate(d, err)
	}
	if s.in() == phaseUnknown {
		s.enter(phaseOpen)
	}
	err = s.failure(ctx, "commit transaction of", err)
	if s.in() == phaseOpen {
		return s.staging.doubtful(err)
	}
	return err
}

// abortedBy says of a transaction that was found to be aborted by whom: by its
// coordinator, because it took too long, or by another producer.
func (s *Session) abortedBy(d description, err error) error {
	by := s.fencedOrLate(d, err)
	if _, late := errors.AsType[*AbortedError](by); late {
		s.producerID, s.epoch = d.producerID, d.producerEpoch
	}
	return by
}

// Abort ends the open transaction without effect: nothing of it becomes visible
// and its staged records go back. It does nothing when none is open. A
// *FencedError says that another producer has aborted it and the session is at
// its end; a *CommittedError that a commit before this had succeeded after all;
// an *OutcomeUnknownError that whether it did cannot be found out now; an
// *AbortedError that the coordinator has forgotten it, with its transactional ID;
// another error that the coordinator could not be reached: then the next Begin
// aborts, or the coordinator when the transaction times out.
func (s *Session) Abort(ctx context.Context) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	switch s.in() {
	case phaseIdle, phaseClosed:
		return nil
	case phaseOpen, phasePrepared, phaseUnknown:
	}
	if err := s.producer.AbortBufferedRecords(ctx); err != nil {
		s.enter(phaseIdle)
		s.leftOpen = true
		s.stale.Store(true)
		return s.classify(ctx, "abort records of", err)
	}
	var err error
	switch {
	case s.committing: // after that kgo takes a new epoch in place of an answer
		return s.abortFailed(ctx, errUnconfirmed)
	case s.stale.Load():
		// kgo's epoch is not to be trusted: a new producer aborts what is open.
		s.enter(phaseIdle)
		s.leftOpen = true
		return s.renewProducer(ctx)
	default:
		err = s.producer.EndTransaction(ctx, kgo.TryAbort)
		if err == nil {
			err = s.abortStaged(ctx)
		}
	}
	if err == nil {
		s.enter(phaseIdle)
		s.follow(ctx)
		return nil
	}
	return s.abortFailed(ctx, err)
}

// errUnconfirmed is why an abort looks first.
var errUnconfirmed = errors.New("a commit was sent and not confirmed")

// abortFailed finds out what became of an abort that was not confirmed, or that
// comes after a commit that was not.
func (s *Session) abortFailed(ctx context.Context, err error) error {
	s.stale.Store(true)
	maybeCommitted := s.committing && s.unanswered.Load()
	outcome, d, err := s.settle(ctx, false, err)
	switch outcome {
	case OutcomeAborted:
		// Most likely by ourselves. If it was by another producer that is about
		// to take over, the next Begin finds that out.
		s.enter(phaseIdle)
		s.producerID, s.epoch = d.producerID, d.producerEpoch
		return nil
	case OutcomeCommitted:
		s.enter(phaseIdle)
		s.producerID, s.epoch = d.producerID, d.producerEpoch
		return &CommittedError{TransactionalID: s.transactionalID, Err: err}
	case OutcomeUnknown, OutcomeOpen, OutcomeEnding:
	}
	rotated := d.producerID >= 0 && (d.producerID != s.producerID || d.producerEpoch > s.epoch)
	if rotated {
		err = s.fencedOrLate(d, err)
	}
	if maybeCommitted && outcome != OutcomeOpen {
		s.enter(phaseUnknown)
		s.unknown = s.outcomeUnknown(&s.staging, s.Produced(), d, err)
		return s.unknown
	}
	s.enter(phaseIdle)
	if rotated {
		return err
	}
	s.leftOpen = true
	return s.classify(ctx, "abort transaction of", err)
}

// abortStaged ends a transaction that kgo did not, since no record of it was sent.
func (s *Session) abortStaged(ctx context.Context) error {
	if registered, _, _ := s.staging.state(); !registered {
		return nil
	}
	err := s.mustHaveEnded(ctx)
	if !errors.Is(err, errNotEnded) {
		return err
	}
	s.stale.Store(true)
	return s.endTxn(ctx, false)
}

// errNotEnded is what kgo does not say: it returns nil where it knows of no record
// that was delivered, and so of nothing to end.
var errNotEnded = errors.New("the producer has not ended the transaction")

// mustHaveEnded returns errNotEnded when kgo has not ended a transaction that has
// acknowledgements, of which it does not know. That shows in the epoch, which the end
// of such a transaction raises: left open, they would be committed with the next one,
// without the records that were produced for them.
func (s *Session) mustHaveEnded(ctx context.Context) error {
	id, epoch, err := s.producer.ProducerID(ctx)
	if err == nil && id == s.producerID && epoch == s.epoch {
		return errNotEnded
	}
	return err
}

// outcomeUnknown returns what is known of a transaction whose outcome is not.
func (p *identity) outcomeUnknown(t *staging, produced int64, d description, err error) *OutcomeUnknownError {
	_, staged, _ := t.state()
	return &OutcomeUnknownError{
		TransactionalID: p.transactionalID, ProducerID: p.producerID, ProducerEpoch: p.epoch,
		Records: staged, Staged: t.staged(), Produced: produced,
		ClusterID: p.cl.ClusterID(), Dialect: p.dialect.Name,
		State: d.state, Began: p.began, Deadline: p.deadline(), Err: err,
	}
}

// Close closes the producer. An open transaction is aborted first, and so is one that
// Abort could not abort: read_committed consumers would wait for it. One that is
// prepared, or whose outcome is unknown, is left as it is, for [Resume]. Further
// calls of Close do nothing.
func (s *Session) Close(ctx context.Context) error {
	var err error
	if s.in() == phaseOpen {
		err = s.Abort(ctx)
	}
	if aborted, rerr := s.Recover(ctx); aborted || rerr != nil {
		err = rerr
	}
	s.gate.Lock()
	defer s.gate.Unlock()
	s.enter(phaseClosed)
	if s.producer != nil {
		s.producer.Close()
		s.producer = nil
	}
	return err
}
