package txn_test

import (
	"math"
	"testing"

	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// forget makes the coordinator forget the transactional ID, as one that was not
// used for transactional.id.expiration.ms.
func (r *rig) forget() {
	r.t.Helper()
	if _, err := r.sb.InjectFault(r.t.Context(), sandbox.Fault{Kind: sandbox.FaultForgetTransaction, TransactionalID: "id"}); err != nil {
		r.t.Fatal(err)
	}
}

// A session whose transactional ID has expired is not fenced: nobody has the ID.
// What it had in hand takes no effect, and its next transaction does.
func TestSessionWhoseIDHasExpired(t *testing.T) {
	for name, try := range map[string]func(r *rig, s *txn.Session) error{
		"stage": func(r *rig, s *txn.Session) error {
			r.forget()
			return r.stage(s, r.acquire(4), wire.Accept)
		},
		"produce": func(r *rig, s *txn.Session) error {
			r.forget()
			r.produce(s)
			return s.Commit(r.t.Context(), txn.Guard{})
		},
		"prepare": func(r *rig, s *txn.Session) error {
			r.forget()
			r.produce(s)
			_, err := s.Prepare(r.t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				r := newRig(t, dialect, 4)
				s := r.session(txn.Config{})
				if err := s.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := try(r, s); !isA[*txn.AbortedError](err) || txn.Classify(err) != txn.ClassAbortable {
					t.Errorf("%v, want an *AbortedError", err)
				}
				if err := s.Abort(t.Context()); err != nil && !isA[*txn.AbortedError](err) {
					t.Errorf("Abort: %v", err)
				}
				r.wantAborted()
				r.c.Reset()
				if err := s.Begin(t.Context()); err != nil {
					t.Fatalf("Begin after that: %v", err)
				}
				if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
					t.Fatal(err)
				}
				if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
					t.Fatal(err)
				}
				r.wantCommitted(ender{})
			})
		})
	}
}

// The same of an acknowledger.
func TestAcknowledgerWhoseIDHasExpired(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		a := r.acknowledger(txn.AcknowledgerConfig{})
		r.forget()
		if err := a.CommitAcknowledgements(t.Context(), r.acks(r.acquire(4), wire.Accept)); !isA[*txn.AbortedError](err) || txn.Classify(err) != txn.ClassAbortable {
			t.Errorf("%v, want an *AbortedError", err)
		}
		r.wantAborted()
		r.c.Reset()
		if err := a.CommitAcknowledgements(t.Context(), r.acks(r.acquire(4), wire.Accept)); err != nil {
			t.Fatal(err)
		}
		r.wantCommitted(ender{})
	})
}

// A coordinator that has forgotten a transaction which was open will never commit
// it: that is no unknown outcome. What was staged waits for a marker by hand.
func TestForgottenTransaction(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		for _, produced := range []int{0, 1} {
			r := newRig(t, dialect, 4)
			s := r.session(txn.Config{})
			if err := s.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range produced {
				r.produce(s)
			}
			if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
				t.Fatal(err)
			}
			r.forget()
			if err := s.Commit(t.Context(), txn.Guard{}); !isA[*txn.AbortedError](err) {
				t.Errorf("Commit: %v, want an *AbortedError", err)
			}
			if pending, accepted := r.accepted(); pending != 4 || accepted != 0 {
				t.Errorf("%d records pending, %d acknowledged; want 4 and none", pending, accepted)
			}
			if err := s.Begin(t.Context()); err != nil {
				t.Errorf("Begin after that: %v", err)
			}
		}
	})
}

// At its last epoch a producer gets another ID with the end of a transaction, and
// the next one is begun with that.
func TestProducerIDIsUsedUp(t *testing.T) {
	r := newRig(t, "draft", 24)
	const last = math.MaxInt16 - 2 // that clients get in the sandbox, see its gateway
	id, epoch := r.init("id")
	for e := epoch; e < last-3; e++ { // the session's own is one more
		end := kmsg.NewPtrEndTxnRequest()
		end.TransactionalID, end.ProducerID, end.ProducerEpoch = "id", id, e
		resp, err := end.RequestWith(t.Context(), r.cl.Requestor())
		if err != nil || resp.ErrorCode != 0 || resp.ProducerID != id || resp.ProducerEpoch != e+1 {
			t.Fatalf("EndTxn at epoch %d: %+v, %v", e, resp, err)
		}
	}
	s := r.session(txn.Config{})
	ids := make(map[int64]bool)
	for i := range int64(6) {
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		id, _ := s.ProducerID()
		ids[id] = true
		if i%2 == 0 {
			r.produce(s)
		}
		if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(ids) != 2 {
		t.Errorf("producer IDs %v were used, want two", ids)
	}
	if pending, accepted := r.accepted(); pending != 0 || accepted != 24 || r.visible() != 3 {
		t.Errorf("%d records pending, %d acknowledged; want 0 and 24, and 3 visible", pending, accepted)
	}
}

// init takes a producer ID and epoch for a transactional ID.
func (r *rig) init(transactionalID string) (int64, int16) {
	r.t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &transactionalID, 60_000
	resp, err := req.RequestWith(r.t.Context(), r.cl.Requestor())
	if err != nil || resp.ErrorCode != 0 {
		r.t.Fatalf("InitProducerId: %+v, %v", resp, err)
	}
	return resp.ProducerID, resp.ProducerEpoch
}
