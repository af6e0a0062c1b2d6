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
	// ProducerOpts are further options for kgo's producer.
	ProducerOpts []kgo.Opt
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// DefaultTimeout is the transaction timeout when none is given, which is also
// that of Kafka's own clients.
const DefaultTimeout = 60 * time.Second

// Session runs one transaction after the other under one transactional ID. Its
// methods are to be called by one goroutine at a time, except Produce and
// SendShareAcknowledgements, which may run at once with each other between
// Begin and Commit or Abort, and CheckOwner.
type Session struct {
	cl      *cluster.Client
	cfg     Config
	dialect wire.Dialect

	// gate is held while the epoch may change: by Begin, Commit and Abort.
	gate     sync.Mutex
	producer *kgo.Client
	renew    bool                   // kgo's idea of the epoch is not the coordinator's any more
	reached  sync.Map               // a partition that took records, by topic; of this producer
	last     atomic.Pointer[string] // the topic that was last put into reached

	// Of the transaction that is open; reset by Begin.
	open       bool
	began      time.Time
	producerID int64 // -1 before the first
	epoch      int16
	produced   atomic.Int64 // records handed to the producer
	failed     atomic.Int64
	produceErr atomic.Pointer[error] // the first
	mu         sync.Mutex
	registered bool  // a stage was sent: the coordinator may know the transaction
	staged     int64 // offsets that brokers confirmed as staged
	doubt      error // why the transaction must not be committed
}

// NewSession checks that the cluster can stage acknowledgements, unless the
// session only produces, and initialises the producer, which aborts what an
// earlier session with the same transactional ID left open. It may return *cluster.UnsupportedError, *cluster.AuthError,
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
	s := &Session{cl: cl, cfg: cfg, producerID: -1}
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
		if !cluster.IsUnanswered(err) || try == initTries || !pause(ctx, try) {
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
func (s *Session) TransactionalID() string { return s.cfg.TransactionalID }

// ProducerID returns the producer ID and epoch of the open or last transaction.
func (s *Session) ProducerID() (id int64, epoch int16) { return s.producerID, s.epoch }

// renewProducer replaces kgo's producer by a new one, whose InitProducerId
// aborts a transaction that is still open and raises the epoch. It is how the
// session goes on after kgo's idea of the epoch has become wrong: kgo cannot be
// told of an EndTxn that it did not send itself.
//
// InitProducerId takes the transactional ID over from whoever has it, so before
// any but the first one the session makes sure that it still has it itself.
func (s *Session) renewProducer(ctx context.Context) error {
	if s.producerID >= 0 {
		if err := s.checkOwner(ctx); err != nil {
			return err
		}
	}
	if s.producer != nil {
		s.producer.Close()
		s.producer = nil
	}
	opts := append([]kgo.Opt{
		kgo.TransactionalID(s.cfg.TransactionalID),
		kgo.TransactionTimeout(s.cfg.Timeout),
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
	s.producer, s.producerID, s.epoch, s.renew = p, id, epoch, false
	s.reached.Clear()
	s.last.Store(nil)
	return nil
}

// follow takes over the epoch that the end of a transaction has left kgo with.
func (s *Session) follow(ctx context.Context) {
	if s.renew {
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
	return s.checkOwner(ctx)
}

// checkOwner returns a *FencedError when the coordinator knows a later producer
// under the transactional ID than this session.
func (s *Session) checkOwner(ctx context.Context) error {
	d, err := describe(ctx, s.cl, s.cfg.TransactionalID)
	switch {
	case errors.Is(err, kerr.TransactionalIDNotFound): // it expired
		return nil
	case err != nil:
		return cluster.Classify(err)
	case d.producerID == s.producerID && d.producerEpoch <= s.epoch:
		return nil
	}
	err = s.fencedOrLate(d, kerr.ProducerFenced)
	if _, late := errors.AsType[*AbortedError](err); late {
		return nil // it was our own transaction that timed out
	}
	return err
}

func (s *Session) initError(err error) error {
	if errors.Is(err, kerr.InvalidTransactionTimeout) {
		return &TimeoutRejectedError{TransactionalID: s.cfg.TransactionalID, Err: err}
	}
	return cluster.Classify(&cluster.Error{
		Op: fmt.Sprintf("initialise producer %q", s.cfg.TransactionalID), Broker: -1, Err: err,
	})
}

// Begin starts a transaction. Nothing is sent, except to get a new epoch after
// a transaction whose end left the old one unusable. It may return what
// NewSession returns.
func (s *Session) Begin(ctx context.Context) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.open {
		return errors.New("begin transaction: one is open")
	}
	if s.producer == nil || s.renew {
		if err := s.renewProducer(ctx); err != nil {
			return err
		}
	}
	if err := s.producer.BeginTransaction(); err != nil {
		s.renew = true
		return s.classify(ctx, "begin transaction of", err)
	}
	id, epoch, err := s.producer.ProducerID(ctx)
	if err != nil {
		s.renew = true
		return s.classify(ctx, "begin transaction of", err)
	}
	s.producerID, s.epoch, s.began, s.open = id, epoch, s.cfg.Now(), true
	s.produced.Store(0)
	s.failed.Store(0)
	s.produceErr.Store(nil)
	s.registered, s.staged, s.doubt = false, 0, nil
	return nil
}

// Deadline is when the coordinator may abort the open transaction.
func (s *Session) Deadline() time.Time { return s.began.Add(s.cfg.Timeout) }

// Produce hands a record to the producer. It blocks only while the producer's
// buffer is full. A failure is kept and forbids the commit, which returns it.
// The record must not be changed until the transaction has ended.
func (s *Session) Produce(ctx context.Context, r *kgo.Record) {
	s.produced.Add(1)
	s.producer.Produce(ctx, r, s.delivered)
}

func (s *Session) delivered(r *kgo.Record, err error) {
	if err == nil {
		if last := s.last.Load(); last == nil || *last != r.Topic {
			topic := r.Topic
			s.reached.Store(topic, r.Partition)
			s.last.Store(&topic)
		}
		return
	}
	s.failed.Add(1)
	if s.produceErr.Load() == nil {
		wrapped := error(&cluster.Error{Op: "produce to", Broker: -1, Topic: r.Topic, Partition: r.Partition, Err: err})
		s.produceErr.CompareAndSwap(nil, &wrapped)
	}
}

// Produced counts the records handed to Produce in the open or last transaction.
func (s *Session) Produced() int64 { return s.produced.Load() }

// Staged counts the offsets that brokers confirmed as staged in the open or
// last transaction.
func (s *Session) Staged() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.staged
}

// Commit waits until all records are delivered, checks the guard, and commits.
// It returns nil only when the coordinator has confirmed the commit; markers may
// still be under way then. After any error the caller has to call Abort, except
// after *OutcomeUnknownError and *AbortedError, where there is nothing left to
// abort. Other errors: *GuardError, *FencedError, *cluster.AuthError,
// *cluster.UnsupportedError, and *cluster.Error for what made the commit unsafe.
func (s *Session) Commit(ctx context.Context, guard Guard) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if !s.open {
		return errors.New("commit transaction: none is open")
	}
	if err := s.producer.Flush(ctx); err != nil {
		return s.classify(ctx, "flush records of", err)
	}
	if err := s.produceErr.Load(); err != nil {
		return s.classify(ctx, "produce in", *err)
	}
	s.mu.Lock()
	doubt, registered, staged := s.doubt, s.registered, s.staged
	s.mu.Unlock()
	if doubt != nil {
		return doubt
	}
	guard.TxnDeadline, guard.TxnTimeout = s.Deadline(), s.cfg.Timeout
	if err := guard.Check(s.cfg.Now()); err != nil {
		return err
	}
	var err error
	switch {
	case s.produced.Load() > 0:
		if err := s.awaitTopics(ctx); err != nil {
			return s.classify(ctx, "commit transaction of", err)
		}
		err = s.producer.EndTransaction(ctx, kgo.TryCommit)
	case registered:
		err = s.endTxn(ctx, true)
	default:
		err = s.producer.EndTransaction(ctx, kgo.TryAbort) // sends nothing: nobody knows of it
	}
	if err == nil {
		s.open = false
		s.follow(ctx)
		return nil
	}
	return s.commitFailed(ctx, err, staged)
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
			if !pause(ctx, try) {
				err = context.Cause(ctx)
			}
		}
		return err == nil
	})
	return err
}

// commitFailed finds out what became of a commit that was not confirmed. The
// answer alone does not say: a coordinator that had already aborted the
// transaction answers PRODUCER_FENCED or INVALID_TXN_STATE, and a response that
// was lost may have been a success.
func (s *Session) commitFailed(ctx context.Context, err error, staged int64) error {
	s.renew = true // kgo must not go on with this epoch, whatever the outcome
	outcome, d := awaitOutcome(ctx, s.cl, s.cfg.TransactionalID, s.producerID, s.epoch)
	switch outcome {
	case OutcomeCommitted:
		s.open = false
		s.epoch = d.producerEpoch
		return nil
	case OutcomeAborted:
		s.open = false
		s.epoch = d.producerEpoch
		return &AbortedError{TransactionalID: s.cfg.TransactionalID, Err: err}
	case OutcomeOpen:
		return s.classify(ctx, "commit transaction of", err)
	case OutcomeUnknown, OutcomeEnding:
	}
	if classOf(err) == fenced || errors.Is(err, kerr.InvalidTxnState) {
		s.open = false
		return s.fencedOrLate(d, err)
	}
	s.open = false
	return &OutcomeUnknownError{
		TransactionalID: s.cfg.TransactionalID, ProducerID: s.producerID, ProducerEpoch: s.epoch,
		Records: staged, State: d.state, Err: err,
	}
}

// fencedOrLate tells a producer that was fenced by another one from one whose
// transaction timed out: only the latter raises the epoch by exactly one, at a
// time when our own clock says that the timeout has passed.
func (s *Session) fencedOrLate(d description, err error) error {
	late := s.cfg.Now().Sub(s.began) >= s.cfg.Timeout
	if late && d.producerID == s.producerID && d.producerEpoch <= s.epoch+1 && d.state != "Ongoing" {
		return &AbortedError{TransactionalID: s.cfg.TransactionalID, Err: err}
	}
	f := &FencedError{
		TransactionalID: s.cfg.TransactionalID, ProducerID: s.producerID, ProducerEpoch: s.epoch,
		CurrentEpoch: -1, Err: err,
	}
	if d.producerID == s.producerID {
		f.CurrentEpoch = d.producerEpoch
	}
	return f
}

// classify turns an error of the producer into one that says what to do.
func (s *Session) classify(ctx context.Context, op string, err error) error {
	if classOf(err) == fenced {
		s.renew = true
		d, derr := describe(ctx, s.cl, s.cfg.TransactionalID)
		if derr != nil {
			d = description{producerID: -1}
		}
		return s.fencedOrLate(d, err)
	}
	if ce, ok := errors.AsType[*cluster.Error](err); ok {
		return cluster.Classify(ce)
	}
	return cluster.Classify(&cluster.Error{Op: fmt.Sprintf("%s %q", op, s.cfg.TransactionalID), Broker: -1, Err: err})
}

// Abort ends the open transaction without effect: nothing of it becomes visible
// and its staged records go back. It does nothing when none is open. A
// *FencedError says that another producer has aborted it and the session is at
// its end; another error that the coordinator could not be reached: then the
// next Begin aborts, or the coordinator when the transaction times out.
func (s *Session) Abort(ctx context.Context) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if !s.open {
		return nil
	}
	s.open = false
	if err := s.producer.AbortBufferedRecords(ctx); err != nil {
		s.renew = true
		return s.classify(ctx, "abort records of", err)
	}
	if s.renew {
		// kgo's epoch is not to be trusted: a new producer aborts what is open.
		return s.renewProducer(ctx)
	}
	err := s.producer.EndTransaction(ctx, kgo.TryAbort)
	if err == nil {
		err = s.abortStaged(ctx)
	}
	if err == nil {
		s.follow(ctx)
		return nil
	}
	s.renew = true
	return s.classify(ctx, "abort transaction of", err)
}

// abortStaged ends a transaction that kgo did not, since no record of it was
// sent. That it did shows in the epoch, which the end of a transaction raises.
func (s *Session) abortStaged(ctx context.Context) error {
	s.mu.Lock()
	registered := s.registered
	s.mu.Unlock()
	if !registered {
		return nil
	}
	id, epoch, err := s.producer.ProducerID(ctx)
	if err != nil {
		return err
	}
	if id != s.producerID || epoch != s.epoch {
		return nil
	}
	return s.endTxn(ctx, false)
}

// endTxn ends a transaction that kgo knows nothing of, because it holds
// acknowledgements alone. EndTxn v5 raises the epoch, which kgo does not learn,
// so the next Begin takes a new producer. Pinning v4 would avoid that, but its
// end marker carries no transaction version, and the newest implementation
// refuses such a marker for __share_group_state.
func (s *Session) endTxn(ctx context.Context, commit bool) error {
	s.renew = true
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = s.cfg.TransactionalID, s.producerID, s.epoch, commit
	for try := 0; ; try++ {
		resp, err := req.RequestWith(ctx, s.cl.Requestor())
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil && resp.ProducerID >= 0 {
			s.producerID, s.epoch = resp.ProducerID, resp.ProducerEpoch
		}
		if err == nil || classOf(err) != retriable {
			return err
		}
		if !pause(ctx, try) {
			return cluster.Join(context.Cause(ctx), err)
		}
	}
}

// Close closes the producer. An open transaction is aborted first.
func (s *Session) Close(ctx context.Context) error {
	err := s.Abort(ctx)
	if s.producer != nil {
		s.producer.Close()
		s.producer = nil
	}
	return err
}
