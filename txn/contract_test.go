package txn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// What KIP-1289 says of its methods, each with the error that it names.

// "IllegalStateException if no transaction is in progress": nothing is sent, and
// everything stays as it was.
func TestIllegalState(t *testing.T) {
	type calls = map[string]func(ctx context.Context, s *txn.Session) error
	all := calls{
		"Begin":  func(ctx context.Context, s *txn.Session) error { return s.Begin(ctx) },
		"Commit": func(ctx context.Context, s *txn.Session) error { return s.Commit(ctx, txn.Guard{}) },
		"Prepare": func(ctx context.Context, s *txn.Session) error {
			_, err := s.Prepare(ctx)
			return err
		},
		"Produce": func(ctx context.Context, s *txn.Session) error { return s.Produce(ctx, out()) },
		"SendShareAcknowledgements": func(ctx context.Context, s *txn.Session) error {
			return s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: new(share.Acknowledgements)})
		},
	}
	for phase, tt := range map[string]struct {
		reach   func(r *rig, s *txn.Session) error
		allowed []string
	}{
		"new": {func(*rig, *txn.Session) error { return nil }, []string{"Begin"}},
		"open": {
			func(r *rig, s *txn.Session) error { return s.Begin(r.t.Context()) },
			[]string{"Commit", "Produce", "SendShareAcknowledgements"}, // Prepare holds nothing yet
		},
		"prepared": {
			func(r *rig, s *txn.Session) error {
				err := s.Begin(r.t.Context())
				r.produce(s)
				_, perr := s.Prepare(r.t.Context())
				return errors.Join(err, perr)
			},
			[]string{"Commit"},
		},
		"committed": {
			func(r *rig, s *txn.Session) error {
				return errors.Join(s.Begin(r.t.Context()), s.Commit(r.t.Context(), txn.Guard{}))
			}, []string{"Begin"},
		},
		"aborted": {
			func(r *rig, s *txn.Session) error {
				return errors.Join(s.Begin(r.t.Context()), s.Abort(r.t.Context()), s.Abort(r.t.Context()))
			}, []string{"Begin"},
		},
		"closed": {func(r *rig, s *txn.Session) error {
			return errors.Join(s.Close(r.t.Context()), s.Close(r.t.Context()), s.Abort(r.t.Context()))
		}, nil},
	} {
		t.Run(phase, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				r := newRig(t, dialect, 0)
				for name, call := range all {
					s := r.session(txn.Config{})
					if err := tt.reach(r, s); err != nil {
						t.Fatal(err)
					}
					err := call(t.Context(), s)
					if slices.Contains(tt.allowed, name) {
						if err != nil {
							t.Errorf("%s of a session that is %s: %v", name, phase, err)
						}
						continue
					}
					if !isA[*txn.StateError](err) || txn.Classify(err) != txn.ClassFatal {
						t.Errorf("%s of a session that is %s: %v, want a *StateError", name, phase, err)
					}
					// As if it had not been called.
					if slices.Contains(tt.allowed, "Commit") {
						if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
							t.Errorf("Commit after %s: %v", name, err)
						}
					}
				}
			})
		})
	}
}

func TestIllegalStateOfAnAcknowledger(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		a := r.acknowledger(txn.AcknowledgerConfig{})
		ctx := t.Context()
		wantState := func(what string, err error) {
			t.Helper()
			if !isA[*txn.StateError](err) {
				t.Errorf("%s: %v, want a *StateError", what, err)
			}
		}
		wantState("CommitPrepared of nothing", a.CommitPrepared(ctx))
		_, err := a.PrepareAcknowledgements(ctx)
		wantState("PrepareAcknowledgements of nothing", err)
		if err := a.AbortAcknowledgements(ctx); err != nil {
			t.Errorf("AbortAcknowledgements of nothing: %v", err)
		}
		if err := a.CommitAcknowledgements(ctx); err != nil {
			t.Errorf("CommitAcknowledgements of nothing: %v", err)
		}
		acks := r.acks(r.acquire(4), wire.Accept)
		if _, err := a.PrepareAcknowledgements(ctx, acks); err != nil {
			t.Fatal(err)
		}
		wantState("CommitAcknowledgements while one is prepared", a.CommitAcknowledgements(ctx, acks))
		_, err = a.PrepareAcknowledgements(ctx, acks)
		wantState("PrepareAcknowledgements while one is prepared", err)
		if err := a.CommitPrepared(ctx); err != nil {
			t.Fatal(err)
		}
		if err := a.Close(ctx); err != nil {
			t.Fatal(err)
		}
		wantState("CommitAcknowledgements after Close", a.CommitAcknowledgements(ctx, acks))
		wantState("CommitPrepared after Close", a.CommitPrepared(ctx))
		r.wantCommitted(ender{})
	})
}

// "ProducerFencedException if another producer with the same transactionalId has
// fenced this one", "InvalidProducerEpochException if the producer's epoch is
// stale".
func TestFencedAcknowledger(t *testing.T) {
	for name, try := range map[string]func(r *rig, a *txn.Acknowledger, acks txn.ShareAcknowledgements) error{
		"commit": func(r *rig, a *txn.Acknowledger, acks txn.ShareAcknowledgements) error {
			return a.CommitAcknowledgements(r.t.Context(), acks)
		},
		"prepare": func(r *rig, a *txn.Acknowledger, acks txn.ShareAcknowledgements) error {
			_, err := a.PrepareAcknowledgements(r.t.Context(), acks)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				r := newRig(t, dialect, 4)
				old := r.acknowledger(txn.AcknowledgerConfig{})
				successor := r.acknowledger(txn.AcknowledgerConfig{})
				acks := r.acks(r.acquire(4), wire.Accept)
				for range 2 { // it never takes the ID back
					err := try(r, old, acks)
					if !isA[*txn.FencedError](err) || !txn.IsFatal(err) ||
						!errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) {
						t.Errorf("the old acknowledger: %v, want a *FencedError", err)
					}
				}
				if n := r.pending(); n != 0 {
					t.Errorf("%d records are pending", n)
				}
				if err := successor.CommitAcknowledgements(t.Context(), acks); err != nil {
					t.Errorf("the successor: %v", err)
				}
				r.wantCommitted(ender{})
			})
		})
	}
}

func TestFencedPrepare(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		s := r.session(txn.Config{})
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
			t.Fatal(err)
		}
		r.acknowledger(txn.AcknowledgerConfig{})
		if _, err := s.Prepare(t.Context()); !isA[*txn.FencedError](err) || !txn.IsFatal(err) {
			t.Errorf("Prepare after a takeover: %v, want a *FencedError", err)
		}
		if err := s.Commit(t.Context(), txn.Guard{}); !isA[*txn.FencedError](err) {
			t.Errorf("Commit after that: %v, want the same error", err)
		}
	})
}

// "the broker will reject the staging request with STALE_MEMBER_EPOCH and the
// user must abort the transaction and retry".
func TestStaleMemberEpochOfAnAcknowledger(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		a := r.acknowledger(txn.AcknowledgerConfig{})
		acks := r.acks(r.acquire(4), wire.Accept)
		stale := acks
		stale.Group.MemberEpoch += 7
		for name, try := range map[string]func() error{
			"CommitAcknowledgements":  func() error { return a.CommitAcknowledgements(t.Context(), stale) },
			"PrepareAcknowledgements": func() error { _, err := a.PrepareAcknowledgements(t.Context(), stale); return err },
		} {
			err := try()
			if !isA[*txn.StageError](err) || !errors.Is(err, kerr.StaleMemberEpoch) || txn.Classify(err) != txn.ClassAbortable {
				t.Errorf("%s with a stale member epoch: %v, want a *StageError with STALE_MEMBER_EPOCH", name, err)
			}
			if n := r.pending(); n != 0 {
				t.Errorf("%d records are pending after %s", n, name)
			}
		}
		if err := a.CommitAcknowledgements(t.Context(), acks); err != nil {
			t.Errorf("CommitAcknowledgements with the right epoch: %v", err)
		}
		r.wantCommitted(ender{})
	})
}

func TestTypesAnAcknowledgerRefuses(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		a := r.acknowledger(txn.AcknowledgerConfig{})
		held := r.acquire(4)
		for _, typ := range []wire.AcknowledgeType{wire.Release, wire.Renew} {
			if err := a.CommitAcknowledgements(t.Context(), r.acks(held, typ)); !isA[*txn.TypeError](err) || txn.Classify(err) != txn.ClassAbortable {
				t.Errorf("%s: %v, want a *TypeError", typ, err)
			}
		}
		if err := a.CommitAcknowledgements(t.Context(), r.acks(held, wire.Reject)); err != nil {
			t.Error(err)
		}
		if pending, _ := r.accepted(); pending != 0 {
			t.Errorf("%d records are pending", pending)
		}
	})
}

// "UnsupportedVersionException if the cluster does not advertise" it.
func TestUnsupportedVersion(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		d, _ := wire.DialectByName(dialect)
		r := newRig(t, dialect, 0, sandbox.WithShareVersion(d.ShareVersion-1))
		for name, try := range map[string]func() error{
			"NewSession": func() error {
				_, err := txn.NewSession(t.Context(), r.cl, txn.Config{TransactionalID: "id"})
				return err
			},
			"NewAcknowledger": func() error {
				_, err := txn.NewAcknowledger(t.Context(), r.cl, txn.AcknowledgerConfig{TransactionalID: "id"})
				return err
			},
		} {
			if err := try(); !isA[*cluster.UnsupportedError](err) || !txn.IsFatal(err) {
				t.Errorf("%s: %v, want a *cluster.UnsupportedError", name, err)
			}
		}
		s := r.session(txn.Config{ProduceOnly: true})
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := s.SendShareAcknowledgements(t.Context(), txn.ShareAcknowledgements{})
		if !isA[*txn.StateError](err) {
			t.Errorf("SendShareAcknowledgements of a session that only produces: %v, want a *StateError", err)
		}
	})
}

// A level that is lowered while a session is at work: it stops, and nothing is
// committed.
func TestLevelLoweredWhileRunning(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		s := r.session(txn.Config{})
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.produce(s)
		held := r.acquire(4)
		req := kmsg.NewPtrUpdateFeaturesRequest()
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel, u.UpgradeType = wire.FeatureShareVersion, 1, 2
		req.FeatureUpdates = append(req.FeatureUpdates, u)
		resp, err := req.RequestWith(t.Context(), r.cl.Requestor())
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = r.stage(s, held, wire.Accept)
		unsupported := isA[*cluster.UnsupportedError](err) || errors.Is(err, kerr.UnsupportedVersion)
		if s.Dialect().AlwaysAdvertised && (!unsupported || !txn.IsFatal(err)) || err == nil {
			t.Errorf("staging after the level was lowered: %v, want it unsupported", err)
		}
		if err := s.Commit(t.Context(), txn.Guard{}); err == nil {
			t.Error("Commit after that succeeded")
		}
		if err := s.Abort(t.Context()); err != nil {
			t.Error(err)
		}
		r.wantAborted()
	})
}

// "GroupAuthorizationException if the configured principal cannot" use the share
// group, and the same for the transactional ID and the topic.
func TestAuthorization(t *testing.T) {
	allow := func(resource kmsg.ACLResourceType, name string, operation kmsg.ACLOperation) sandbox.ACL {
		return sandbox.ACL{Principal: "User:eve", Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: operation}
	}
	group := allow(kmsg.ACLResourceTypeGroup, "g", kmsg.ACLOperationRead)
	topic := allow(kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationRead)
	id := allow(kmsg.ACLResourceTypeTransactionalId, "id", kmsg.ACLOperationWrite)
	describe := allow(kmsg.ACLResourceTypeTransactionalId, "id", kmsg.ACLOperationDescribe)
	see := allow(kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationDescribe)
	for name, tt := range map[string]struct {
		acls []sandbox.ACL
		want *kerr.Error
	}{
		"the group":            {[]sandbox.ACL{topic, id, describe}, kerr.GroupAuthorizationFailed},
		"the topic":            {[]sandbox.ACL{see, group, id, describe}, kerr.TopicAuthorizationFailed},
		"the transactional ID": {[]sandbox.ACL{topic, group, describe}, kerr.TransactionalIDAuthorizationFailed},
		"nothing":              {[]sandbox.ACL{topic, group, id, describe}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				r := newRig(t, dialect, 4, sandbox.WithUsers(
					sandbox.User{Name: "admin", Password: "a", Super: true}, sandbox.User{Name: "eve", Password: "e"},
				), sandbox.WithACLs(tt.acls...))
				acks := r.acks(r.acquire(4), wire.Accept)
				eve := r.connectAs("eve", "e")
				for method, try := range map[string]func() error{
					"SendShareAcknowledgements": func() error {
						s, err := txn.NewSession(t.Context(), eve, txn.Config{TransactionalID: "id"})
						if err != nil {
							return err
						}
						defer s.Close(context.WithoutCancel(t.Context()))
						if err := s.Begin(t.Context()); err != nil {
							return err
						}
						return s.SendShareAcknowledgements(t.Context(), acks)
					},
					"PrepareAcknowledgements": func() error {
						a, err := txn.NewAcknowledger(t.Context(), eve, txn.AcknowledgerConfig{TransactionalID: "id"})
						if err != nil {
							return err
						}
						_, err = a.PrepareAcknowledgements(t.Context(), acks)
						return errors.Join(err, a.AbortAcknowledgements(t.Context()))
					},
				} {
					err := try()
					if tt.want == nil {
						if err != nil && dialect == "draft" { // in "kip" the records came back acquired
							t.Errorf("%s of a principal that may: %v", method, err)
						}
						return
					}
					if !errors.Is(err, tt.want) || txn.Classify(err) == txn.ClassOutcomeUnknown {
						t.Errorf("%s: %v, want %v", method, err, tt.want)
					}
					if partition := isA[*txn.StageError](err); !partition && (!isA[*cluster.AuthError](err) || !txn.IsFatal(err)) {
						t.Errorf("%s: %T, want an *AuthError", method, err)
					}
				}
				if n := r.pending(); n != 0 {
					t.Errorf("%d records are pending", n)
				}
			})
		})
	}
}

func (r *rig) connectAs(user, password string) *cluster.Client {
	r.t.Helper()
	cl, err := cluster.Connect(r.t.Context(), cluster.Config{
		BootstrapServers: r.sb.Addrs(), Dialer: r.dial,
		SASL: []sasl.Mechanism{plain.Auth{User: user, Pass: password}.AsMechanism()},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cl.Close)
	return cl
}

// One acknowledger after the other transaction, from several goroutines and for
// several members: every one of them is committed once.
func TestAcknowledgerConcurrently(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		const n = 60
		r := newRig(t, dialect, n)
		a := r.acknowledger(txn.AcknowledgerConfig{})
		var wg sync.WaitGroup
		for _, b := range r.acquire(n) {
			for _, p := range b.Partitions {
				for _, rec := range p.Records {
					acks := new(share.Acknowledgements)
					acks.Add(p.TopicPartition, rec.Offset, wire.Accept)
					wg.Go(func() {
						if err := a.CommitAcknowledgements(t.Context(), txn.ShareAcknowledgements{
							Acknowledgements: acks, Group: r.c.GroupMetadata(), Leaders: b.Leaders(),
						}); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
		wg.Wait()
		if pending, accepted := r.accepted(); pending != 0 || accepted != n {
			t.Errorf("%d records pending, %d acknowledged; want 0 and %d", pending, accepted, n)
		}
	})
}

// Members of several groups may take part in one transaction.
func TestAcknowledgerOfSeveralGroups(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		a := r.acknowledger(txn.AcknowledgerConfig{})
		if err := r.cl.SetGroupConfig(t.Context(), "h", "share.auto.offset.reset", "earliest"); err != nil {
			t.Fatal(err)
		}
		other := *r
		other.c = r.member("h")
		token, err := a.PrepareAcknowledgements(t.Context(), r.acks(r.acquire(4), wire.Accept), other.acks(other.acquire(4), wire.Reject))
		if err != nil || fmt.Sprint(token.GroupIDs) != "[g h]" {
			t.Fatalf("PrepareAcknowledgements = %+v, %v; want both groups", token, err)
		}
		if n := r.pending(); n != 8 {
			t.Errorf("%d records are pending, want 8", n)
		}
		if err := a.CommitPrepared(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := r.pending(); n != 0 {
			t.Errorf("%d records are pending after the commit", n)
		}
	})
}

func (r *rig) member(group string) *share.Consumer {
	r.t.Helper()
	c, err := share.NewConsumer(r.t.Context(), r.connect(), share.Config{GroupID: group, Topics: []string{"in"}, MaxWait: 50 * time.Millisecond})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close(context.WithoutCancel(r.t.Context())) })
	return c
}

// An acknowledger goes on after a transaction that its coordinator has aborted.
func TestAcknowledgerAfterATimeout(t *testing.T) {
	eachBubble(t, 4, func(r *rig) {
		a := r.acknowledger(txn.AcknowledgerConfig{})
		token, err := a.PrepareAcknowledgements(r.t.Context(), r.acks(r.acquire(4), wire.Accept))
		if err != nil {
			r.t.Fatal(err)
		}
		<-time.After(time.Until(token.Deadline))
		for r.pending() > 0 {
			<-time.After(time.Second)
		}
		if err := a.CommitPrepared(r.t.Context()); !isA[*txn.AbortedError](err) || txn.Classify(err) != txn.ClassAbortable {
			r.t.Errorf("CommitPrepared after the timeout: %v, want an *AbortedError", err)
		}
		if a.Dialect().AfterAbort == wire.Acquired {
			<-time.After(31 * time.Second) // for the locks
		}
		if err := a.CommitAcknowledgements(r.t.Context(), r.acks(r.acquire(4), wire.Accept)); err != nil {
			r.t.Errorf("the next transaction: %v", err)
		}
		r.wantCommitted(ender{})
	})
}

// counter counts what Metrics is told.
type counter struct {
	mu         sync.Mutex
	sent, errs int
}

func (c *counter) ShareAcknowledgementsSent(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	if err != nil {
		c.errs++
	}
}

func TestMetrics(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		var c counter
		s := r.session(txn.Config{Metrics: &c})
		held := r.acquire(4)
		for _, typ := range []wire.AcknowledgeType{wire.Release, wire.Accept} {
			if err := s.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			_ = r.stage(s, held, typ)
			if err := s.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if c.sent != 2 || c.errs != 1 {
			t.Errorf("%d sent, %d of them failed; want 2 and 1", c.sent, c.errs)
		}
	})
}

func TestClassify(t *testing.T) {
	if got := txn.Classify(nil); got != txn.ClassNone || txn.IsFatal(nil) {
		t.Errorf("Classify(nil) = %s, want %s", got, txn.ClassNone)
	}
	stage := &txn.StageError{Errors: []*cluster.Error{{Op: "stage", Broker: 1, Err: kerr.NotCoordinator}}}
	for want, errs := range map[txn.Class][]error{
		txn.ClassAbortable: {
			stage, &txn.TypeError{}, &txn.GuardError{}, &txn.AbortedError{Err: kerr.ProducerFenced}, &share.ConflictError{},
			kerr.TransactionAbortable, kerr.InvalidRecordState, kerr.StaleMemberEpoch, kerr.UnknownMemberID, kerr.InvalidProducerEpoch,
			&share.SupersededError{}, errors.New("connection reset"), context.DeadlineExceeded,
		},
		txn.ClassRetriable: {
			&cluster.DialError{Err: errors.New("refused")}, kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.NotCoordinator,
			&cluster.Error{Op: "begin", Err: kerr.CoordinatorNotAvailable},
		},
		txn.ClassFatal: {
			&txn.FencedError{Err: kerr.ProducerFenced}, &cluster.UnsupportedError{}, &cluster.AuthError{Err: kerr.GroupAuthorizationFailed},
			&txn.TimeoutRejectedError{Err: kerr.InvalidTransactionTimeout}, &txn.StateError{}, &txn.CommittedError{}, &txn.TokenError{},
			&txn.NotKnownError{}, kerr.ProducerFenced, kerr.InvalidProducerIDMapping, kerr.UnsupportedVersion, kerr.GroupAuthorizationFailed,
			errors.Join(stage, &txn.FencedError{Err: kerr.ProducerFenced}),
		},
		txn.ClassOutcomeUnknown: {
			&txn.OutcomeUnknownError{Err: &txn.FencedError{Err: kerr.ProducerFenced}},
			errors.Join(&txn.FencedError{Err: kerr.ProducerFenced}, &txn.OutcomeUnknownError{Err: context.DeadlineExceeded}),
		},
	} {
		for _, err := range errs {
			wrapped := fmt.Errorf("run: %w", err)
			if got := txn.Classify(wrapped); got != want || txn.IsFatal(wrapped) != (want == txn.ClassFatal) {
				t.Errorf("Classify(%v) = %s, want %s", err, got, want)
			}
		}
	}
}
