package txn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// NotKnownError says that the coordinator does not know the transaction of a
// token: neither as open nor as the last one that ended. It has been ended, or
// was never begun, and how it ended cannot be told any more.
type NotKnownError struct {
	Token Token
	State string // of the transactional ID; "" when the coordinator does not know it at all
}

// Error names the transaction.
func (e *NotKnownError) Error() string {
	state := "does not know that transactional ID"
	if e.State != "" {
		state = fmt.Sprintf("has it as %s, and nothing of this transaction", e.State)
	}
	return fmt.Sprintf("transaction of %q (producer ID %d, epoch %d) is not known: its coordinator %s",
		e.Token.TransactionalID, e.Token.ProducerID, e.Token.ProducerEpoch, state)
}

// Hint says where else to look.
func (e *NotKnownError) Hint() string {
	return "an ID that is not used expires (transactional.id.expiration.ms); look for the transaction's own records in the destination topics"
}

// Resumed is a transaction that is ended by its token. It is safe for concurrent
// use.
type Resumed struct {
	identity
	token Token

	mu       sync.Mutex
	outcome  Outcome
	state    string
	deadline time.Time
}

// Resume looks a transaction up by its token, to commit or abort it: after a
// crash of the process that prepared it, or in another one. It makes no producer
// and takes the transactional ID from nobody: the producer ID and epoch of the
// token are those that the transaction is ended with, and the coordinator is
// asked first whether the transaction that is open has exactly these.
//
// A transaction that has ended already is no error, see [Resumed.Outcome]. It may
// return *TokenError for a token of another cluster, *FencedError when another
// producer has used the transactional ID since (how this transaction ended, the
// coordinator cannot tell then), *NotKnownError, *cluster.AuthError,
// *cluster.DialError or *cluster.Error.
func Resume(ctx context.Context, cl *cluster.Client, t Token) (*Resumed, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	if id := cl.ClusterID(); t.ClusterID != "" && id != "" && t.ClusterID != id {
		return nil, &TokenError{
			Reason: fmt.Sprintf("it is of cluster %q, and this is cluster %q", t.ClusterID, id),
			Advice: "connect to the cluster that it was prepared on",
		}
	}
	r := &Resumed{token: t.normal(), identity: identity{
		cl: cl, transactionalID: t.TransactionalID, producerID: t.ProducerID, epoch: t.ProducerEpoch,
		now: time.Now, began: t.Created, node: -1,
	}}
	if !t.Deadline.IsZero() {
		r.timeout = max(t.Deadline.Sub(t.Created), 1)
	}
	if t.Dialect != "" {
		var ok bool
		if r.dialect, ok = wire.DialectByName(t.Dialect); !ok {
			return nil, &TokenError{Reason: fmt.Sprintf("it is of dialect %q, which this software does not know", t.Dialect)}
		}
	}
	if err := r.look(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// look asks the coordinator how the transaction stands. A decision that is being
// carried out is waited for.
func (r *Resumed) look(ctx context.Context) error {
	raises, err := r.endRaisesEpoch(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, outcomeWait)
	defer cancel()
	for try := 0; ; try++ {
		d, err := describe(ctx, r.cl, r.transactionalID)
		switch {
		case errors.Is(err, kerr.TransactionalIDNotFound):
			return &NotKnownError{Token: r.token}
		case err != nil:
			return cluster.Classify(err)
		}
		r.state, r.deadline = d.state, d.deadline()
		switch r.outcome = judge(r.producerID, r.epoch, raises, d); {
		case r.outcome == OutcomeEnding:
			if backOff(ctx, try) {
				continue
			}
			r.outcome = decided(d, r.outcome)
			return nil
		case r.outcome == OutcomeUnknown && (d.producerID != r.producerID || d.producerEpoch > r.epoch):
			return &FencedError{
				TransactionalID: r.transactionalID, ProducerID: r.producerID, ProducerEpoch: r.epoch,
				CurrentEpoch: r.currentEpoch(d), Err: kerr.ProducerFenced,
			}
		case r.outcome == OutcomeUnknown, r.outcome == OutcomeOpen && d.state != stateOngoing:
			return &NotKnownError{Token: r.token, State: d.state}
		}
		return nil
	}
}

// currentEpoch is the epoch that the coordinator has for our producer ID; -1 when
// it has another one.
func (p *identity) currentEpoch(d description) int16 {
	if d.producerID != p.producerID {
		return -1
	}
	return d.producerEpoch
}

// Token returns the token that the transaction was resumed from.
func (r *Resumed) Token() Token { return r.token }

// Outcome says how the transaction stands: OutcomeOpen, OutcomeCommitted or
// OutcomeAborted, as found by Resume or by Commit or Abort since then, and
// OutcomeUnknown after one of these returned *OutcomeUnknownError.
func (r *Resumed) Outcome() Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcome
}

// State is the coordinator's own name of the state that Resume found, such as
// "Ongoing".
func (r *Resumed) State() string { return r.state }

// Deadline is when the coordinator aborts the transaction by itself, as it says;
// the zero time for never, and when it is not open any more.
func (r *Resumed) Deadline() time.Time { return r.deadline }

// Commit commits the transaction. It returns nil when the coordinator has
// confirmed that, or has committed it before. It may return *AbortedError,
// *FencedError, *OutcomeUnknownError, after which it may be called again,
// *cluster.AuthError or *cluster.Error.
func (r *Resumed) Commit(ctx context.Context) error { return r.end(ctx, true) }

// Abort aborts the transaction. It returns nil when the coordinator has
// confirmed that, or has aborted it before. It may return *CommittedError,
// *FencedError, *OutcomeUnknownError, after which it may be called again,
// *cluster.AuthError or *cluster.Error.
func (r *Resumed) Abort(ctx context.Context) error { return r.end(ctx, false) }

func (r *Resumed) end(ctx context.Context, commit bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	switch r.outcome {
	case OutcomeCommitted, OutcomeAborted:
		return r.mismatch(commit, nil)
	case OutcomeOpen, OutcomeEnding:
		err = r.endTxn(ctx, commit)
	case OutcomeUnknown:
		err = errUnconfirmed
	}
	if err == nil {
		r.outcome = ended(commit)
		return nil
	}
	outcome, d, err := r.settle(ctx, commit, err)
	switch outcome {
	case OutcomeCommitted, OutcomeAborted:
		r.outcome = outcome
		return r.mismatch(commit, err)
	case OutcomeOpen:
		return r.classify(ctx, "end transaction of", err)
	case OutcomeUnknown, OutcomeEnding:
	}
	if d.producerID >= 0 && (d.producerID != r.producerID || d.producerEpoch > r.epoch) {
		err = r.fencedOrLate(d, err)
		if !r.unanswered.Load() {
			if isA[*AbortedError](err) {
				r.outcome = OutcomeAborted
			}
			return err
		}
	}
	r.outcome = OutcomeUnknown
	return r.outcomeUnknown(&staging{}, 0, d, err)
}

// mismatch returns an error when the outcome is not the one that was wanted.
func (r *Resumed) mismatch(commit bool, err error) error {
	switch {
	case commit == (r.outcome == OutcomeCommitted):
		return nil
	case commit:
		return &AbortedError{TransactionalID: r.transactionalID, Err: err}
	}
	return &CommittedError{TransactionalID: r.transactionalID, Err: err}
}
