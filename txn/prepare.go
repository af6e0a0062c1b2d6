package txn

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Prepare makes the open transaction ready to be committed by whoever has its
// token, also after this process is gone: it waits until all records are
// delivered, forbids to produce and to stage more, and makes sure that the
// coordinator has the transaction open under our producer ID and epoch. It is the
// first phase of a commit together with another participant, such as a database
// (KIP-1289 section 2.3, KIP-939): store the token with what the other one
// prepares, let the other one decide, and end this one accordingly, by Commit or
// Abort here or by [Resume] anywhere.
//
// To the coordinator the transaction looks as before, and it is an ordinary one:
// it aborts it at the token's Deadline, whatever was decided. What has to survive
// that needs two-phase commit ([AcknowledgerConfig.TwoPhaseCommit]). A new session
// under the same transactional ID aborts it too.
//
// It may return *StateError, also for a transaction that holds nothing,
// *FencedError, *AbortedError and what makes a Commit fail before anything is
// sent. The transaction is not prepared then, and has to be aborted.
func (s *Session) Prepare(ctx context.Context) (Token, error) {
	const op = "prepare transaction"
	s.gate.Lock()
	defer s.gate.Unlock()
	if err := s.mustBeOpen(op); err != nil {
		return Token{}, err
	}
	if registered, _, _ := s.staging.state(); !registered && s.produced.Load() == 0 {
		return Token{}, &StateError{op, "it holds nothing"}
	}
	s.enter(phasePrepared) // from here on nothing is added
	t, err := s.prepare(ctx)
	if err != nil {
		s.enter(phaseOpen)
		if _, ok := errors.AsType[*StateError](err); !ok {
			err = s.staging.doubtful(err)
		}
		return Token{}, err
	}
	return t, nil
}

func (s *Session) prepare(ctx context.Context) (Token, error) {
	if err := s.ready(ctx, "prepare"); err != nil {
		return Token{}, err
	}
	return s.token(ctx, &s.staging)
}

// token returns the token of the transaction that is open, after the coordinator
// has confirmed that it is.
func (p *identity) token(ctx context.Context, t *staging) (Token, error) {
	d, err := describe(ctx, p.cl, p.transactionalID)
	if err != nil {
		return Token{}, p.classify(ctx, "prepare transaction of", err)
	}
	if d.producerID != p.producerID || d.producerEpoch != p.epoch || d.state != stateOngoing {
		if d.producerID == p.producerID && d.producerEpoch == p.epoch {
			return Token{}, &StateError{"prepare transaction", fmt.Sprintf("its coordinator has it as %s", d.state)}
		}
		return Token{}, p.fencedOrLate(d, kerr.ProducerFenced)
	}
	return Token{
		TransactionalID: p.transactionalID, ProducerID: p.producerID, ProducerEpoch: p.epoch,
		ClusterID: p.cl.ClusterID(), Dialect: p.dialect.Name, GroupIDs: t.groupIDs(),
		Created: p.now(), Deadline: d.deadline(),
	}.normal(), nil
}
