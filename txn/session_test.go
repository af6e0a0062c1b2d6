package txn_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rig is a sandbox with topics "in", which has records, and "out", a member of
// group "g", and a session.
type rig struct {
	t  *testing.T
	sb *sandbox.Sandbox
	cl *cluster.Client
	c  *share.Consumer

	dial  func(ctx context.Context, network, address string) (net.Conn, error) // nil dials TCP
	users bool                                                                 // connect as admin
}

// asAdmin reports whether the test is one of those whose sandbox has users.
func asAdmin(t *testing.T) bool {
	return strings.HasPrefix(t.Name(), "TestAuthorization/") || strings.HasPrefix(t.Name(), "TestContract/group_authorization/txn.")
}

func newRig(t *testing.T, dialect string, records int, opts ...sandbox.Option) *rig {
	t.Helper()
	return newRigOn(t, nil, dialect, records, opts...)
}

// newRigOn is newRig on a network of its own.
func newRigOn(t *testing.T, dial func(ctx context.Context, network, address string) (net.Conn, error), dialect string, records int, opts ...sandbox.Option) *rig {
	t.Helper()
	d, ok := wire.DialectByName(dialect)
	if !ok {
		t.Fatalf("no dialect %q", dialect)
	}
	sb, err := sandbox.Start(t.Context(), append([]sandbox.Option{
		sandbox.WithDialect(d),
		sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 2}, sandbox.Topic{Name: "out", Partitions: 1}),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, sb: sb, dial: dial, users: asAdmin(t)}
	r.cl = r.connect()
	if err := r.cl.SetGroupConfig(t.Context(), "g", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	producer, err := r.cl.NewKgo(kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i := range records {
		if err := producer.ProduceSync(t.Context(), &kgo.Record{Key: []byte(strconv.Itoa(i))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	r.c, err = share.NewConsumer(t.Context(), r.connect(), share.Config{GroupID: "g", Topics: []string{"in"}, MaxWait: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.c.Close(context.WithoutCancel(t.Context())) })
	return r
}

func (r *rig) connect() *cluster.Client {
	r.t.Helper()
	if r.users {
		return r.connectAs("admin", "a")
	}
	cl, err := cluster.Connect(r.t.Context(), cluster.Config{BootstrapServers: r.sb.Addrs(), Dialer: r.dial})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cl.Close)
	return cl
}

func (r *rig) session(cfg txn.Config) *txn.Session {
	r.t.Helper()
	if cfg.TransactionalID == "" {
		cfg.TransactionalID = "id"
	}
	s, err := txn.NewSession(r.t.Context(), r.cl, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close(context.WithoutCancel(r.t.Context())) })
	return s
}

// acquire polls until n records are held.
func (r *rig) acquire(n int) []*share.Batch {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	var out []*share.Batch
	for n > 0 {
		b, err := r.c.Poll(ctx, n)
		if err != nil {
			r.t.Fatalf("%d records are missing: %v", n, err)
		}
		n -= b.Len()
		out = append(out, b)
	}
	return out
}

func (r *rig) stage(s *txn.Session, batches []*share.Batch, typ wire.AcknowledgeType) error {
	acks := new(share.Acknowledgements)
	for _, b := range batches {
		acks.Merge(b.All(typ))
	}
	return s.SendShareAcknowledgements(r.t.Context(), txn.ShareAcknowledgements{Acknowledgements: acks, Group: r.c.GroupMetadata()})
}

func (r *rig) pending() int {
	r.t.Helper()
	st, err := r.sb.State()
	if err != nil {
		r.t.Fatal(err)
	}
	return st.Pending
}

// visible counts the records of "out" that a read_committed consumer may read.
func (r *rig) visible() int64 {
	r.t.Helper()
	cl, err := r.cl.NewKgo(kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.KeepControlRecords())
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	list := kmsg.NewPtrListOffsetsRequest()
	list.ReplicaID, list.IsolationLevel = -1, 1
	lt := kmsg.NewListOffsetsRequestTopic()
	lt.Topic = "out"
	lp := kmsg.NewListOffsetsRequestTopicPartition()
	lp.Timestamp = -1
	lt.Partitions = append(lt.Partitions, lp)
	list.Topics = append(list.Topics, lt)
	resp, err := list.RequestWith(r.t.Context(), cl)
	if err != nil {
		r.t.Fatal(err)
	}
	var n int64
	for end := resp.Topics[0].Partitions[0].Offset; end > 0; {
		fetches := cl.PollFetches(r.t.Context())
		if err := fetches.Err(); err != nil {
			r.t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			if !rec.Attrs.IsControl() {
				n++
			}
			if rec.Offset == end-1 {
				end = 0
			}
		})
	}
	return n
}

func eachDialect(t *testing.T, do func(t *testing.T, dialect string)) {
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) { do(t, d.Name) })
	}
}

func (r *rig) produce(s *txn.Session) {
	r.t.Helper()
	if err := s.Produce(r.t.Context(), out()); err != nil {
		r.t.Fatal(err)
	}
}

func out() *kgo.Record { return &kgo.Record{Topic: "out", Value: []byte("v")} }

func TestCommitTakesEffectOnBothSides(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 10)
		s := r.session(txn.Config{})
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.produce(s)
		r.produce(s)
		if err := r.stage(s, r.acquire(10), wire.Accept); err != nil {
			t.Fatal(err)
		}
		if n := r.pending(); n != 10 || s.Staged() != 10 || s.Produced() != 2 {
			t.Errorf("before the commit: %d pending, %d staged, %d produced; want 10, 10 and 2", n, s.Staged(), s.Produced())
		}
		if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
			t.Fatal(err)
		}
		if pending, visible := r.pending(), r.visible(); pending != 0 || visible != 2 {
			t.Errorf("after the commit: %d pending, %d visible; want 0 and 2", pending, visible)
		}
	})
}

func TestAbortTakesNoEffect(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		for _, produced := range []int{0, 2} {
			t.Run(strconv.Itoa(produced)+" produced", func(t *testing.T) {
				r := newRig(t, dialect, 5)
				s := r.session(txn.Config{})
				for range 3 { // and again, with the epoch that the abort has left
					if err := s.Begin(t.Context()); err != nil {
						t.Fatal(err)
					}
					for range produced {
						r.produce(s)
					}
					held := r.acquire(5)
					if err := r.stage(s, held, wire.Accept); err != nil {
						t.Fatal(err)
					}
					if err := s.Abort(t.Context()); err != nil {
						t.Fatal(err)
					}
					if n := r.pending(); n != 0 {
						t.Errorf("after the abort: %d pending", n)
					}
					if s.Dialect().AfterAbort == wire.Acquired {
						for _, b := range held {
							if err := r.c.Acknowledge(t.Context(), b, b.All(wire.Release)); err != nil {
								t.Error(err)
							}
						}
					}
				}
				if n := r.visible(); n != 0 {
					t.Errorf("%d records of aborted transactions are visible", n)
				}
			})
		}
	})
}

// A session goes from transactions with records to those with acknowledgements
// alone and back.
func TestTransactionsWithAndWithoutRecords(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 8)
		s := r.session(txn.Config{})
		for i, produce := range []bool{true, false, false, true, false} {
			if err := s.Begin(t.Context()); err != nil {
				t.Fatalf("transaction %d: %v", i, err)
			}
			if produce {
				r.produce(s)
			}
			if err := r.stage(s, r.acquire(1), wire.Accept); err != nil {
				t.Fatalf("transaction %d: %v", i, err)
			}
			if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
				t.Fatalf("transaction %d: %v", i, err)
			}
		}
		if pending, visible := r.pending(), r.visible(); pending != 0 || visible != 2 {
			t.Errorf("%d pending, %d visible; want 0 and 2", pending, visible)
		}
	})
}

func TestEmptyTransactions(t *testing.T) {
	r := newRig(t, "kip", 0)
	s := r.session(txn.Config{})
	for range 2 {
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Abort(t.Context()); err != nil {
		t.Errorf("Abort without a transaction: %v", err)
	}
}

func TestCallsInTheWrongOrder(t *testing.T) {
	r := newRig(t, "kip", 0)
	s := r.session(txn.Config{})
	if err := s.Commit(t.Context(), txn.Guard{}); err == nil {
		t.Error("Commit before Begin succeeded")
	}
	if err := s.SendShareAcknowledgements(t.Context(), txn.ShareAcknowledgements{Acknowledgements: new(share.Acknowledgements)}); err == nil {
		t.Error("SendShareAcknowledgements before Begin succeeded")
	}
	if err := s.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(t.Context()); err == nil {
		t.Error("a second Begin succeeded")
	}
}

// Types that may not be part of a transaction are refused before a byte is sent.
func TestTypesThatMayNotBeStaged(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 2)
		s := r.session(txn.Config{})
		held := r.acquire(2)
		for _, typ := range []wire.AcknowledgeType{wire.Gap, wire.Release, wire.Renew} {
			if err := s.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := r.stage(s, held, typ)
			te, ok := errors.AsType[*txn.TypeError](err)
			if s.Dialect().Allows(typ) {
				if err != nil {
					t.Errorf("staging %s: %v", typ, err)
				}
			} else if !ok || te.Type != typ {
				t.Errorf("staging %s: %v, want a *TypeError", typ, err)
			} else if err := s.Commit(t.Context(), txn.Guard{}); !errors.Is(err, te) {
				t.Errorf("Commit after that: %v, want it refused for the same reason", err)
			}
			if n := r.pending(); n != 0 && !s.Dialect().Allows(typ) {
				t.Errorf("%d records are pending after %s was refused", n, typ)
			}
			if err := s.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Any doubt about what was staged forbids the commit.
func TestNoCommitAfterAFailedStage(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 6)
		s := r.session(txn.Config{})
		held := r.acquire(6)
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.produce(s)
		acks := held[0].All(wire.Accept)
		tp := acks.Partitions()[0]
		acks.AddRange(tp, share.Range{FirstOffset: 1000, LastOffset: 1001}, wire.Accept)
		err := s.SendShareAcknowledgements(t.Context(), txn.ShareAcknowledgements{Acknowledgements: acks, Group: r.c.GroupMetadata()})
		se, ok := errors.AsType[*txn.StageError](err)
		if !ok || len(se.Errors) != 1 || se.Errors[0].Topic != "in" || se.Errors[0].Partition != tp.Partition || !strings.Contains(err.Error(), " to 1001") {
			t.Fatalf("staging records that are not there: %v, want a *StageError about %s", err, tp)
		}
		if err := s.Commit(t.Context(), txn.Guard{}); err == nil {
			t.Fatal("Commit after a failed stage succeeded")
		}
		if err := s.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if pending, visible := r.pending(), r.visible(); pending != 0 || visible != 0 {
			t.Errorf("%d pending, %d visible; want none", pending, visible)
		}
	})
}

func TestStaleMemberEpoch(t *testing.T) {
	r := newRig(t, "kip", 2)
	s := r.session(txn.Config{})
	held := r.acquire(2)
	for name, change := range map[string]func(*share.GroupMetadata){
		"STALE_MEMBER_EPOCH": func(m *share.GroupMetadata) { m.MemberEpoch += 7 },
		"UNKNOWN_MEMBER_ID":  func(m *share.GroupMetadata) { m.MemberID = "nobody" },
	} {
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		m := r.c.GroupMetadata()
		change(&m)
		err := s.SendShareAcknowledgements(t.Context(), txn.ShareAcknowledgements{Acknowledgements: held[0].All(wire.Accept), Group: m})
		if cluster.Name(errors.Unwrap(firstOf(err))) != name {
			t.Errorf("staging as %+v: %v, want %s", m, err, name)
		}
		if err := s.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// firstOf returns the first failure of a *StageError.
func firstOf(err error) error {
	if se, ok := errors.AsType[*txn.StageError](err); ok {
		return se.Errors[0]
	}
	return err
}

func TestGuardForbidsALateCommit(t *testing.T) {
	r := newRig(t, "draft", 3)
	now := time.Now()
	s := r.session(txn.Config{Now: func() time.Time { return now }})
	if err := s.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := r.acquire(3)
	if err := r.stage(s, held, wire.Accept); err != nil {
		t.Fatal(err)
	}
	guard := txn.Guard{LockDeadline: held[0].LockDeadline(), LockDuration: held[0].LockDuration()}
	now = now.Add(25 * time.Second)
	g, ok := errors.AsType[*txn.GuardError](s.Commit(t.Context(), guard))
	if !ok || g.What != "acquisition lock" {
		t.Fatalf("Commit with 5s of 30s left: %v, want a *GuardError", g)
	}
	if err := s.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.pending(); n != 0 {
		t.Errorf("%d pending after the abort", n)
	}
}

// A session whose transactional ID was taken over says so, wherever it notices,
// and never takes it back.
func TestFencedSession(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		notices := map[string]func(r *rig, s *txn.Session) error{
			"when it stages": func(r *rig, s *txn.Session) error { return r.stage(s, r.acquire(2), wire.Accept) },
			"when it commits": func(r *rig, s *txn.Session) error {
				r.produce(s)
				return s.Commit(t.Context(), txn.Guard{})
			},
			"when it asks": func(_ *rig, s *txn.Session) error { return s.CheckOwner(t.Context()) },
			"when it aborts and begins again": func(r *rig, s *txn.Session) error {
				_ = r.stage(s, r.acquire(2), wire.Accept)
				return errors.Join(s.Abort(t.Context()), s.Begin(t.Context()))
			},
		}
		for name, notice := range notices {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, dialect, 2)
				old := r.session(txn.Config{})
				if err := old.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				successor := r.session(txn.Config{})
				err := notice(r, old)
				if f, ok := errors.AsType[*txn.FencedError](err); !ok || f.TransactionalID != "id" || !txn.IsFatal(err) {
					t.Errorf("the old session got %v, want a *FencedError", err)
				}
				if err := old.Close(t.Context()); err != nil && !txn.IsFatal(err) {
					t.Errorf("Close of the old session: %v", err)
				}
				if err := successor.CheckOwner(t.Context()); err != nil {
					t.Errorf("the successor: %v", err)
				}
			})
		}
	})
}

// A transaction that its coordinator has timed out is reported as aborted, and
// the session goes on with a new epoch.
func TestTimedOutTransaction(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 2)
		s := r.session(txn.Config{Timeout: 200 * time.Millisecond})
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.stage(s, r.acquire(2), wire.Accept); err != nil {
			t.Fatal(err)
		}
		for r.pending() > 0 && t.Context().Err() == nil {
			if err := s.CheckOwner(t.Context()); err != nil { // also makes the broker look at deadlines
				t.Fatalf("CheckOwner of a session that is late: %v", err)
			}
		}
		err := s.Commit(t.Context(), txn.Guard{})
		if _, ok := errors.AsType[*txn.GuardError](err); !ok {
			t.Errorf("Commit after the timeout: %v, want the guard to forbid it", err)
		}
		if err := s.Abort(t.Context()); err != nil && txn.IsFatal(err) {
			t.Fatalf("Abort after the timeout: %v", err)
		}
		if err := s.Begin(t.Context()); err != nil {
			t.Fatalf("Begin after the timeout: %v", err)
		}
		r.produce(s)
		if err := s.Commit(t.Context(), txn.Guard{LockDeadline: time.Time{}}); err != nil {
			if _, late := errors.AsType[*txn.GuardError](err); !late {
				t.Fatalf("Commit of the next transaction: %v", err)
			}
		}
	})
}

func TestNewSessionRefuses(t *testing.T) {
	r := newRig(t, "kip", 0)
	if _, err := txn.NewSession(t.Context(), r.cl, txn.Config{}); err == nil {
		t.Error("a session without a transactional ID was made")
	}
	_, err := txn.NewSession(t.Context(), r.cl, txn.Config{TransactionalID: "id", Timeout: 24 * time.Hour})
	if _, ok := errors.AsType[*txn.TimeoutRejectedError](err); !ok || !txn.IsFatal(err) {
		t.Errorf("a timeout of a day: %v, want a *TimeoutRejectedError", err)
	}
}

func (r *rig) acknowledger(cfg txn.AcknowledgerConfig) *txn.Acknowledger {
	r.t.Helper()
	if cfg.TransactionalID == "" {
		cfg.TransactionalID = "id"
	}
	a, err := txn.NewAcknowledger(r.t.Context(), r.cl, cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = a.Close(context.WithoutCancel(r.t.Context())) })
	return a
}

// acks says typ of everything in the batches, as the member is now.
func (r *rig) acks(batches []*share.Batch, typ wire.AcknowledgeType) txn.ShareAcknowledgements {
	acks := new(share.Acknowledgements)
	for _, b := range batches {
		acks.Merge(b.All(typ))
	}
	return txn.ShareAcknowledgements{Acknowledgements: acks, Group: r.c.GroupMetadata()}
}

// accepted counts the records of group "g" that are pending, and those that are
// acknowledged.
func (r *rig) accepted() (pending int, acknowledged int64) {
	r.t.Helper()
	st, err := r.sb.State()
	if err != nil {
		r.t.Fatal(err)
	}
	var s struct {
		Partitions []struct {
			StartOffset int64 `json:"start_offset"`
			Ranges      []struct {
				FirstOffset int64  `json:"first_offset"`
				LastOffset  int64  `json:"last_offset"`
				State       string `json:"state"`
			} `json:"ranges"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal(st.Share, &s); err != nil {
		r.t.Fatal(err)
	}
	for _, p := range s.Partitions {
		acknowledged += p.StartOffset // "in" begins at 0
		for _, g := range p.Ranges {
			if g.State == wire.Acknowledged.String() {
				acknowledged += g.LastOffset - g.FirstOffset + 1
			}
		}
	}
	return st.Pending, acknowledged
}
