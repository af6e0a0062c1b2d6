package txn

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// identity is a producer as its transaction coordinator knows it, whoever sends
// its records: kgo's producer, or nobody.
type identity struct {
	cl              *cluster.Client
	transactionalID string
	timeout         time.Duration // 0: transactions do not time out
	now             func() time.Time
	dialect         wire.Dialect // the zero value for a producer that stages nothing
	metrics         Metrics      // nil counts nothing

	producerID int64 // -1 before the first
	epoch      int16 // of the open transaction, or for the next one
	began      time.Time
	node       int32 // the coordinator, as far as known; -1 when it is not
	// unanswered: an EndTxn of this transaction was sent, and what became of it
	// the answer did not say. One that was sent before may still be on its way.
	unanswered atomic.Bool
}

// deadline is when the coordinator may abort the open transaction; the zero time
// when it never does.
func (p *identity) deadline() time.Time {
	if p.timeout == 0 {
		return time.Time{}
	}
	return p.began.Add(p.timeout)
}

func (p *identity) overdue() bool { return p.timeout > 0 && p.now().After(p.deadline()) }

// coordinator returns the node ID of the transaction coordinator.
func (p *identity) coordinator(ctx context.Context) (int32, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType = 1
	req.CoordinatorKey, req.CoordinatorKeys = p.transactionalID, []string{p.transactionalID}
	resp, err := req.RequestWith(ctx, p.cl.Requestor())
	if err != nil {
		return -1, err
	}
	for _, c := range resp.Coordinators {
		if c.Key == p.transactionalID {
			return c.NodeID, kerr.ErrorForCode(c.ErrorCode)
		}
	}
	return resp.NodeID, kerr.ErrorForCode(resp.ErrorCode)
}

// request sends a request to the coordinator once: unlike a request that kgo
// routes itself, it is never sent again behind our back. sent is false when it
// cannot have reached the broker.
func (p *identity) request(ctx context.Context, req kmsg.Request) (resp kmsg.Response, sent bool, err error) {
	if p.node < 0 {
		if p.node, err = p.coordinator(ctx); err != nil {
			p.node = -1
			return nil, false, err
		}
	}
	resp, err = p.cl.RequestBroker(ctx, p.node, req)
	if err != nil {
		p.node = -1
	}
	return resp, err == nil || !isDial(err), err
}

// endTxn ends the transaction by an EndTxn of our own, and tries again while the
// coordinator says that this helps. Its answer is in p when there is one: the
// epoch is raised (KIP-890).
//
// A transaction with acknowledgements needs v5 of the request, which is what
// transaction.version 2 means for a client: the end marker of an older one
// carries no transaction version, and the newest implementation refuses such a
// marker for __share_group_state.
func (p *identity) endTxn(ctx context.Context, commit bool) error {
	raises, err := p.endRaisesEpoch(ctx)
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.transactionalID, p.producerID, p.epoch, commit
		kreq := kmsg.Request(req)
		if !raises {
			kreq = endTxnV4{req}
		}
		kresp, sent, err := p.request(ctx, kreq)
		if err == nil {
			resp := kresp.(*kmsg.EndTxnResponse)
			if err = kerr.ErrorForCode(resp.ErrorCode); err == nil {
				if resp.Version >= endTxnRaises && resp.ProducerID >= 0 {
					p.producerID, p.epoch = resp.ProducerID, resp.ProducerEpoch
				}
				return nil
			}
		} else if sent && !isAnswer(err) {
			p.unanswered.Store(true)
			return err
		}
		if classOf(err) != retriable {
			return err
		}
		p.node = -1
		if !backOff(ctx, try) {
			return cluster.Join(context.Cause(ctx), err)
		}
	}
}

// endTxnRaises is the first version of EndTxn after which the producer has a new
// epoch (KIP-890).
const endTxnRaises = 5

// endTxnV4 is an EndTxn for a cluster below transaction.version 2.
type endTxnV4 struct{ *kmsg.EndTxnRequest }

func (endTxnV4) MaxVersion() int16 { return endTxnRaises - 1 }

// endRaisesEpoch reports whether the end of a transaction raises the epoch. It
// does wherever acknowledgements can be staged.
func (p *identity) endRaisesEpoch(ctx context.Context) (bool, error) {
	if p.dialect.Name != "" {
		return true, nil
	}
	brokers, err := p.cl.BrokerVersions(ctx)
	if err != nil {
		return false, err
	}
	known := false
	for _, b := range brokers {
		if b.Err != nil {
			err = b.Err
			continue
		}
		known = true
		if b.Finalized[wire.FeatureTransactionVersion] >= wire.TransactionVersion {
			return true, nil
		}
	}
	if !known { // unknown is not zero
		return false, fmt.Errorf("read the level of %s: %w", wire.FeatureTransactionVersion, err)
	}
	return false, nil
}

// settle finds out how a transaction ended whose end was not confirmed; cause
// says why. One that is still open it ends by itself, as it was meant to: the
// coordinator takes the first end that arrives, and what was lost on its way
// cannot come after that and change anything.
//
// The outcome is never a guess. It is OutcomeOpen when the coordinator refuses to
// end the transaction, with its answer, and OutcomeUnknown when it knows a later
// transaction only or could not be asked until ctx, or outcomeWait, ended.
func (p *identity) settle(ctx context.Context, commit bool, cause error) (Outcome, description, error) {
	ctx, cancel := context.WithTimeout(ctx, outcomeWait)
	defer cancel()
	none := description{producerID: -1}
	if !isAnswer(cause) && !isDial(cause) {
		p.unanswered.Store(true)
	}
	raises, err := p.endRaisesEpoch(ctx)
	if err != nil {
		return OutcomeUnknown, none, cause
	}
	// What kgo refuses to commit, for whatever reason, is not committed here.
	resend := !commit || mayPass(cause)
	last := none
	for try := 0; ; try++ {
		d, err := describe(ctx, p.cl, p.transactionalID)
		switch {
		case err == nil:
			last = d
			o := judge(p.producerID, p.epoch, raises, d)
			if o == OutcomeOpen && resend {
				err := p.endTxn(ctx, commit)
				if err == nil {
					return ended(commit), description{state: completeState(commit), producerID: p.producerID, producerEpoch: p.epoch}, nil
				}
				// After a refusal one more look: an end may have come before it.
				resend, cause = !isAnswer(err), err
				break
			}
			if o != OutcomeEnding {
				return o, d, cause
			}
		case classOf(err) == fatal, errors.Is(err, kerr.TransactionalIDNotFound):
			last.forgotten = classOf(err) != fatal
			return OutcomeUnknown, last, cause
		}
		if !backOff(ctx, try) {
			return decided(last, judge(p.producerID, p.epoch, raises, last)), last, cause
		}
	}
}

// ended is the outcome of an end that was confirmed.
func ended(commit bool) Outcome {
	if commit {
		return OutcomeCommitted
	}
	return OutcomeAborted
}

// checkOwner returns a *FencedError when the coordinator knows a later producer
// under the transactional ID than this one, and otherwise what it describes.
func (p *identity) checkOwner(ctx context.Context) (description, error) {
	d, err := describe(ctx, p.cl, p.transactionalID)
	switch {
	case errors.Is(err, kerr.TransactionalIDNotFound): // it expired
		return description{producerID: -1}, nil
	case err != nil:
		return d, cluster.Classify(err)
	case d.producerID == p.producerID && d.producerEpoch <= p.epoch:
		return d, nil
	case p.unanswered.Load() && p.mayBeOurAbort(d):
		return d, nil
	}
	err = p.fencedOrLate(d, kerr.ProducerFenced)
	if _, late := errors.AsType[*AbortedError](err); late {
		return d, nil // it was our own transaction that timed out
	}
	return d, err
}

// mayBeOurAbort reports whether the coordinator describes what an abort of ours
// leaves that was sent and not confirmed. A producer that is about to take over
// leaves the same for a moment. It is not in the way of a new epoch then: it takes
// another one after that.
func (p *identity) mayBeOurAbort(d description) bool {
	return d.producerID == p.producerID && d.producerEpoch == p.epoch+1 &&
		(d.state == statePrepareAbort || d.state == stateCompleteAbort)
}

// fencedOrLate tells a producer that was fenced by another one from one whose
// transaction timed out: only the latter raises the epoch by exactly one, at a
// time when our own clock says that the timeout has passed. Who has not begun one
// for so long that its transactional ID has expired is not fenced either: then
// nobody has the ID.
func (p *identity) fencedOrLate(d description, err error) error {
	if d.forgotten {
		return &AbortedError{TransactionalID: p.transactionalID, Err: err}
	}
	late := p.timeout > 0 && !p.now().Before(p.deadline())
	if late && d.producerID == p.producerID && d.producerEpoch <= p.epoch+1 && d.state != stateOngoing {
		return &AbortedError{TransactionalID: p.transactionalID, Err: err}
	}
	f := &FencedError{
		TransactionalID: p.transactionalID, ProducerID: p.producerID, ProducerEpoch: p.epoch,
		CurrentEpoch: -1, Err: err,
	}
	if d.producerID == p.producerID {
		f.CurrentEpoch = d.producerEpoch
	}
	return f
}

// classify turns an error of the producer into one that says what to do.
func (p *identity) classify(ctx context.Context, op string, err error) error {
	if classOf(err) == fenced {
		d, derr := describe(ctx, p.cl, p.transactionalID)
		if derr != nil {
			d = description{producerID: -1, forgotten: errors.Is(derr, kerr.TransactionalIDNotFound)}
		}
		return p.fencedOrLate(d, err)
	}
	if ce, ok := errors.AsType[*cluster.Error](err); ok {
		return cluster.Classify(ce)
	}
	return cluster.Classify(&cluster.Error{Op: fmt.Sprintf("%s %q", op, p.transactionalID), Broker: -1, Err: err})
}

func (p *identity) initError(err error) error {
	if isA[*cluster.UnsupportedError](err) {
		return err // it says all, and what to do
	}
	if errors.Is(err, kerr.InvalidTransactionTimeout) {
		return &TimeoutRejectedError{TransactionalID: p.transactionalID, Err: err}
	}
	return cluster.Classify(&cluster.Error{
		Op: fmt.Sprintf("initialise producer %q", p.transactionalID), Broker: -1, Err: err,
	})
}
