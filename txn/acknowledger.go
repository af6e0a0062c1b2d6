package txn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// AcknowledgerConfig describes an [Acknowledger].
type AcknowledgerConfig struct {
	// TransactionalID is required. Two acknowledgers with the same one fence each
	// other, as sessions do.
	TransactionalID string
	// Timeout is after how long the coordinator aborts a transaction by itself;
	// 0 is 60 s. The broker's transaction.max.timeout.ms bounds it.
	Timeout time.Duration
	// TwoPhaseCommit makes transactions that do not time out (KIP-939), so that
	// one that is prepared waits for its decision however long that takes; one
	// that nobody decides holds its records for ever. It needs a broker with
	// InitProducerId v6, which no release up to Kafka 4.4 offers (unless
	// unstable.api.versions.enable is set), its transaction.two.phase.commit.enable,
	// and TWO_PHASE_COMMIT on the transactional ID; a broker without either of the
	// last two answers TRANSACTIONAL_ID_AUTHORIZATION_FAILED. Timeout is not used
	// then.
	TwoPhaseCommit bool
	// Metrics is told what Kafka's own client counts; nil counts nothing.
	Metrics Metrics
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Acknowledger commits acknowledgements in transactions of their own, for those
// that read from a share group and write elsewhere (KIP-1289,
// TransactionalShareAcknowledger). It needs no producer: it keeps the producer ID
// and epoch itself.
//
// A transaction of Kafka holds nothing of the other system. Either write there
// first, such that to write the same again does no harm, and commit the
// acknowledgements when that is durable: after a crash in between the records
// come again. Or prepare the acknowledgements, write with the token in the same
// transaction of the other system, and commit them after that: then both happen
// once, or none; see PrepareAcknowledgements.
//
// It is safe for concurrent use: calls wait for each other. Closing it waits too.
type Acknowledger struct {
	mu sync.Mutex
	identity
	cfg     AcknowledgerConfig
	phase   phase
	stale   bool // the epoch is not to be used any more
	staging staging
	unknown *OutcomeUnknownError // of phaseUnknown
	// committing: a commit of the transaction was sent.
	committing bool
}

// NewAcknowledger checks that the cluster can stage acknowledgements and
// initialises the producer ID, which aborts what an earlier user of the
// transactional ID left open, prepared or not. It may return
// *cluster.UnsupportedError, *cluster.AuthError, *TimeoutRejectedError,
// *cluster.DialError or *cluster.Error.
func NewAcknowledger(ctx context.Context, cl *cluster.Client, cfg AcknowledgerConfig) (*Acknowledger, error) {
	if cfg.TransactionalID == "" {
		return nil, errors.New("transactional acknowledger: no transactional ID")
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &Acknowledger{cfg: cfg, identity: identity{
		cl: cl, transactionalID: cfg.TransactionalID, timeout: cfg.Timeout, now: cfg.Now, metrics: cfg.Metrics,
		producerID: -1, epoch: -1, node: -1,
	}}
	if cfg.TwoPhaseCommit {
		a.timeout = 0
	}
	var err error
	if a.dialect, err = cl.RequireTxnShareAcknowledge(ctx); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		err := a.initialise(ctx, -1, -1)
		if err == nil {
			return a, nil
		}
		if !mayPass(err) || try == initTries || !backOff(ctx, try) {
			return nil, a.initError(err)
		}
	}
}

// TransactionalID is the ID from the configuration.
func (a *Acknowledger) TransactionalID() string { return a.transactionalID }

// Dialect is the form of KIP-1289 that the acknowledger speaks.
func (a *Acknowledger) Dialect() wire.Dialect { return a.dialect }

// initialise takes a producer ID and epoch for the transactional ID. With those
// that are known the coordinator refuses when another producer has come since
// (KIP-360), with -1 it fences whoever has it.
func (a *Acknowledger) initialise(ctx context.Context, producerID int64, epoch int16) error {
	for try := 0; ; try++ {
		id, e, err := a.initProducerID(ctx, producerID, epoch)
		if err == nil {
			a.producerID, a.epoch, a.stale = id, e, false
			return nil
		}
		if classOf(err) != retriable {
			return err
		}
		a.node = -1
		if !backOff(ctx, try) {
			return cluster.Join(context.Cause(ctx), err)
		}
	}
}

func (a *Acknowledger) initProducerID(ctx context.Context, producerID int64, epoch int16) (int64, int16, error) {
	if a.cfg.TwoPhaseCommit {
		return a.initTwoPhase(ctx, producerID, epoch)
	}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &a.transactionalID, millis(a.timeout)
	req.ProducerID, req.ProducerEpoch = producerID, epoch
	kresp, _, err := a.request(ctx, req)
	if err != nil {
		return 0, 0, err
	}
	resp := kresp.(*kmsg.InitProducerIDResponse)
	return resp.ProducerID, resp.ProducerEpoch, kerr.ErrorForCode(resp.ErrorCode)
}

const whatTwoPhase = "two-phase commit (KIP-939)"

// initTwoPhase does the same with transactions that do not time out.
func (a *Acknowledger) initTwoPhase(ctx context.Context, producerID int64, epoch int16) (int64, int16, error) {
	if err := a.requireTwoPhase(ctx); err != nil {
		return 0, 0, err
	}
	req := wire.NewInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &a.transactionalID, math.MaxInt32
	req.ProducerID, req.ProducerEpoch, req.Enable2Pc = producerID, epoch, true
	kresp, _, err := a.request(ctx, req)
	if err != nil {
		return 0, 0, err
	}
	resp := kresp.(*wire.InitProducerIDResponse)
	err = kerr.ErrorForCode(resp.ErrorCode)
	if errors.Is(err, kerr.InvalidTxnState) || errors.Is(err, kerr.UnsupportedVersion) {
		return 0, 0, &cluster.UnsupportedError{
			What: whatTwoPhase, Reason: fmt.Sprintf("the transaction coordinator refuses it with %s", cluster.Name(err)),
			Advice: "set transaction.two.phase.commit.enable=true on the brokers",
		}
	}
	return resp.ProducerID, resp.ProducerEpoch, err
}

// initError is that of an identity, and says what else two-phase commit needs: a
// broker that has it switched off says that it is not authorised (Kafka 4.4), as
// does one that has no ACL for it.
func (a *Acknowledger) initError(err error) error {
	err = a.identity.initError(err)
	if denied, ok := errors.AsType[*cluster.AuthError](err); ok && a.cfg.TwoPhaseCommit && errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		return &cluster.AuthError{Err: denied.Err, Advice: fmt.Sprintf(
			"%s needs transaction.two.phase.commit.enable=true on the brokers, and WRITE and TWO_PHASE_COMMIT on transactional ID %q", whatTwoPhase, a.transactionalID)}
	}
	return err
}

// requireTwoPhase returns an *UnsupportedError unless every broker has the
// version of InitProducerId that says so: a coordinator without it would take the
// request for one of an ordinary transaction.
func (a *Acknowledger) requireTwoPhase(ctx context.Context) error {
	brokers, err := a.cl.BrokerVersions(ctx)
	if err != nil {
		return err
	}
	for _, b := range brokers {
		if b.Err != nil {
			return b.Err
		}
		if v := b.Keys[int16(kmsg.InitProducerID)]; v.Max < wire.InitProducerIDTwoPhase {
			return &cluster.UnsupportedError{
				What: whatTwoPhase,
				Reason: "InitProducerId v" + strconv.Itoa(int(wire.InitProducerIDTwoPhase)) + " is needed, and broker " +
					strconv.Itoa(int(b.NodeID)) + " has v" + strconv.Itoa(int(v.Max)),
				Advice: "no released Apache Kafka up to 4.4 offers it; without it a prepared transaction lives until the transaction timeout",
			}
		}
	}
	return nil
}

func millis(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 1), math.MaxInt32))
}

// CommitAcknowledgements stages acknowledgements in a transaction and commits it:
// all of them take effect, or none. There may be those of several members and
// groups. It does nothing when there are none.
//
// After an error nothing took effect, and the transaction was aborted; if that
// failed too, AbortAcknowledgements or the next call does it. After
// *OutcomeUnknownError the acknowledgements may have taken effect: find out with
// AbortAcknowledgements, which settles it, or with [Resume]. It may return
// *StateError, *TypeError before a byte is sent, *StageError,
// *share.ConflictError, *AbortedError, *FencedError, *OutcomeUnknownError,
// *cluster.AuthError, *cluster.UnsupportedError or *cluster.Error.
func (a *Acknowledger) CommitAcknowledgements(ctx context.Context, acks ...ShareAcknowledgements) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if nothing(acks) {
		return a.mustBeIdle("commit acknowledgements")
	}
	if err := a.stageAcks(ctx, "commit acknowledgements", acks); err != nil {
		return err
	}
	return a.commit(ctx)
}

// PrepareAcknowledgements stages acknowledgements in a transaction and leaves it
// to CommitPrepared, to AbortAcknowledgements, or to [Resume] with the token in
// any process, also when this one is gone. Unless TwoPhaseCommit was asked for,
// the coordinator aborts the transaction at the token's Deadline.
//
// It may return what CommitAcknowledgements does but *OutcomeUnknownError, and a
// *StateError when there is nothing to acknowledge. After an error nothing is
// prepared.
func (a *Acknowledger) PrepareAcknowledgements(ctx context.Context, acks ...ShareAcknowledgements) (Token, error) {
	const op = "prepare acknowledgements"
	a.mu.Lock()
	defer a.mu.Unlock()
	if nothing(acks) {
		return Token{}, &StateError{op, "there are none"}
	}
	if err := a.stageAcks(ctx, op, acks); err != nil {
		return Token{}, err
	}
	t, err := a.token(ctx, &a.staging)
	if err != nil {
		return Token{}, a.giveUp(ctx, err)
	}
	a.phase = phasePrepared
	return t, nil
}

// CommitPrepared commits what PrepareAcknowledgements has prepared. It returns
// nil when the coordinator has confirmed that. It may return *StateError when
// nothing is prepared, *AbortedError, *FencedError, *OutcomeUnknownError, after
// which it may be called again, *cluster.AuthError or *cluster.Error.
func (a *Acknowledger) CommitPrepared(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.phase {
	case phasePrepared, phaseUnknown:
		return a.commit(ctx)
	case phaseIdle, phaseOpen, phaseClosed:
	}
	why := a.phase.why()
	if a.phase != phaseClosed {
		why = "no transaction is prepared"
	}
	return &StateError{"commit prepared acknowledgements", why}
}

// AbortAcknowledgements ends whatever transaction is open, prepared or not,
// without effect: its records go back to the group. It does nothing when there is
// none. After a commit whose outcome is unknown it settles that: it returns nil
// when the transaction is aborted, and a *CommittedError when it had been
// committed. It may also return *FencedError, *OutcomeUnknownError,
// *cluster.AuthError or *cluster.Error.
func (a *Acknowledger) AbortAcknowledgements(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.abort(ctx)
}

// Close aborts a transaction that is open. One that is prepared, or whose outcome
// is unknown, is left as it is, for [Resume]. Further calls do nothing.
func (a *Acknowledger) Close(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if a.phase == phaseOpen {
		err = a.abort(ctx)
	}
	a.phase = phaseClosed
	return err
}

func nothing(acks []ShareAcknowledgements) bool {
	for _, a := range acks {
		if a.Acknowledgements != nil && !a.Acknowledgements.Empty() {
			return false
		}
	}
	return true
}

func (a *Acknowledger) mustBeIdle(op string) error {
	switch a.phase {
	case phasePrepared, phaseUnknown, phaseClosed:
		return &StateError{op, a.phase.why()}
	case phaseIdle, phaseOpen:
	}
	return nil
}

// stageAcks begins a transaction and stages everything in it.
func (a *Acknowledger) stageAcks(ctx context.Context, op string, acks []ShareAcknowledgements) error {
	if err := a.mustBeIdle(op); err != nil {
		return err
	}
	if a.phase == phaseOpen { // what a call before could not abort
		if err := a.abort(ctx); err != nil {
			return err
		}
	}
	if a.stale {
		if err := a.renew(ctx); err != nil {
			return err
		}
	}
	a.began = a.now()
	a.staging.reset()
	a.unanswered.Store(false)
	a.committing, a.unknown = false, nil
	a.phase = phaseOpen
	for _, in := range acks {
		if err := a.stage(ctx, &a.staging, in); err != nil {
			return a.giveUp(ctx, err)
		}
	}
	return nil
}

// renew takes a new epoch after one that is not to be used any more. Should
// another producer have come since, it is left alone.
func (a *Acknowledger) renew(ctx context.Context) error {
	d, err := a.checkOwner(ctx)
	if err != nil {
		return err
	}
	if err := a.initialise(ctx, d.producerID, d.epochOr(-1)); err != nil {
		if classOf(err) == fenced {
			return a.fencedOrLate(description{producerID: -1}, err)
		}
		return a.initError(err)
	}
	return nil
}

// epochOr returns the epoch, or none when the transactional ID is not known.
func (d description) epochOr(none int16) int16 {
	if d.producerID < 0 {
		return none
	}
	return d.producerEpoch
}

// giveUp aborts a transaction that cannot be committed, because of err.
func (a *Acknowledger) giveUp(ctx context.Context, err error) error {
	if registered, _, _ := a.staging.state(); !registered {
		a.phase = phaseIdle // nothing was sent
		return err
	}
	if isA[*FencedError](err) || isA[*AbortedError](err) {
		a.phase, a.stale = phaseIdle, true
		return err
	}
	if aerr := a.abort(ctx); isA[*FencedError](aerr) {
		return aerr
	}
	return err
}

func (a *Acknowledger) commit(ctx context.Context) error {
	var err error
	switch {
	case a.phase == phaseUnknown:
		err = a.unknown.Err
	case ctx.Err() != nil && !a.committing:
		return context.Cause(ctx) // nothing was sent
	default:
		a.committing = true
		if err = a.endTxn(ctx, true); err == nil {
			a.phase = phaseIdle
			return nil
		}
	}
	return a.settled(ctx, true, err)
}

func (a *Acknowledger) abort(ctx context.Context) error {
	switch a.phase {
	case phaseIdle, phaseClosed:
		return nil
	case phaseOpen, phasePrepared, phaseUnknown:
	}
	err := errUnconfirmed
	if !a.committing {
		if err = a.endTxn(ctx, false); err == nil {
			a.phase = phaseIdle
			return nil
		}
	}
	err = a.settled(ctx, false, err)
	if err != nil && a.phase == phasePrepared {
		a.phase = phaseOpen // an abort may be on its way: it is not to be committed any more
	}
	return err
}

// settled finds out what became of an end that was not confirmed.
func (a *Acknowledger) settled(ctx context.Context, commit bool, err error) error {
	before := a.unanswered.Load()
	outcome, d, err := a.settle(ctx, commit, err)
	maybeCommitted := commit && a.unanswered.Load() || a.committing && before
	rotated := d.producerID >= 0 && (d.producerID != a.producerID || d.producerEpoch > a.epoch)
	switch {
	case outcome == OutcomeCommitted, outcome == OutcomeAborted:
		a.phase = phaseIdle
		a.stale = d.producerID != a.producerID || d.producerEpoch != a.epoch
		if outcome == OutcomeAborted && commit {
			by := a.fencedOrLate(d, err)
			if isA[*AbortedError](by) {
				a.producerID, a.epoch = d.producerID, d.producerEpoch
			}
			return by
		}
		a.producerID, a.epoch = d.producerID, d.producerEpoch
		if outcome == OutcomeCommitted && !commit {
			return &CommittedError{TransactionalID: a.transactionalID, Err: err}
		}
		return nil
	case outcome != OutcomeOpen && maybeCommitted:
		if rotated {
			err = a.fencedOrLate(d, err)
		}
		a.phase = phaseUnknown
		a.unknown = a.outcomeUnknown(&a.staging, 0, d, err)
		return a.unknown
	case rotated, classOf(err) == fenced:
		a.phase, a.stale = phaseIdle, true
		return a.fencedOrLate(d, err)
	}
	if a.phase == phaseUnknown {
		a.phase = phaseOpen
	}
	return a.classify(ctx, "end transaction of", err)
}
