package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// stopped is a sandbox in the middle of a transaction: records of topic "in" are
// staged in it, and time is that of a synctest bubble.
type stopped struct {
	t       *testing.T
	persist bool
	cl      *cluster.Client // that looks
	session *txn.Session
	member  *share.Consumer
	staged  share.Batch
	before  time.Time // right before the transaction began
	ids     map[string][16]byte
	restart func() *cluster.Client // a client of another process
}

const (
	heldID      = "billing-1"
	heldTimeout = 40 * time.Second
)

// stopInTransaction runs do on a sandbox with that dialect and pending state.
func stopInTransaction(t *testing.T, d wire.Dialect, p sandbox.PendingState, typ wire.AcknowledgeType, do func(s *stopped)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		sb, err := sandbox.Start(t.Context(),
			sandbox.WithDialect(d), sandbox.WithPendingState(p), sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092),
			sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 3}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		}()
		s := &stopped{t: t, persist: p == sandbox.PendingPersisted}
		var clients []*cluster.Client
		defer func() {
			for _, cl := range clients {
				cl.Close()
			}
		}()
		s.restart = func() *cluster.Client {
			cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs(), Dialer: network.DialContext})
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, cl)
			return cl
		}
		s.cl = s.restart()
		s.stage(typ)
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
			defer cancel()
			_ = s.session.Close(ctx)
			_ = s.member.Close(ctx)
		}()
		do(s)
	})
}

// stage acknowledges some of the records of two partitions in a transaction that
// stays open.
func (s *stopped) stage(typ wire.AcknowledgeType) {
	s.t.Helper()
	ctx := s.t.Context()
	cl := s.restart()
	check := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	check(cl.SetGroupConfig(ctx, "g", "share.auto.offset.reset", "earliest"))
	topics, err := cl.Topics(ctx, "in")
	check(err)
	s.ids = map[string][16]byte{"in": topics["in"].ID}
	producer, err := cl.NewKgo(kgo.DefaultProduceTopic("in"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	check(err)
	defer producer.Close()
	for i := range int32(20) {
		check(producer.ProduceSync(ctx, &kgo.Record{Partition: i % 2}).FirstErr())
	}
	s.member, err = share.NewConsumer(ctx, cl, share.Config{GroupID: "g", Topics: []string{"in"}, MaxWait: 50 * time.Millisecond})
	check(err)
	s.session, err = txn.NewSession(ctx, s.restart(), txn.Config{TransactionalID: heldID, Timeout: heldTimeout})
	check(err)
	for len(s.staged.Partitions) < 2 { // each leader's records come when it answers
		batch, err := s.member.Poll(ctx, 20)
		check(err)
		s.staged.Partitions = append(s.staged.Partitions, batch.Partitions...)
	}
	s.before = time.Now()
	check(s.session.Begin(ctx))
	// Two of the records of each partition stay acquired.
	var acks share.Acknowledgements
	for _, p := range s.staged.Partitions {
		for _, r := range p.Records[:len(p.Records)-2] {
			acks.Add(p.TopicPartition, r.Offset, typ)
		}
	}
	check(s.session.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: &acks, Group: s.member.GroupMetadata()}))
}

// look returns the report, and its rows as sentences.
func (s *stopped) look() (*inspect.PendingReport, []string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Minute)
	defer cancel()
	ev, err := inspect.Collect(ctx, s.cl, inspect.CollectOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	rep := inspect.NewPendingReport(ev, inspect.Filter{})
	rows := []string{}
	for _, r := range rep.Rows {
		row := string(r.Verdict)
		if r.GroupID != nil {
			row += fmt.Sprintf(" %s/%s-%d", *r.GroupID, *r.Topic, *r.Partition)
		}
		if r.FirstOffset != nil {
			row += fmt.Sprintf(" %d-%d %s", *r.FirstOffset, *r.LastOffset, *r.AcknowledgeType)
		}
		rows = append(rows, row+fmt.Sprintf(" in %d", r.StatePartition))
	}
	return rep, rows
}

// want is what is to be seen of the staged records: exactly those where they are
// written down, else the share-partition that the transaction may concern, if only
// one has its state in that partition.
func (s *stopped) want(typ wire.AcknowledgeType) []string {
	state := func(p int32) int32 { return wire.ShareStatePartition("g", s.ids["in"], p, 50) }
	byState := make(map[int32][]string)
	for _, p := range s.staged.Partitions {
		n := state(p.Partition)
		row := fmt.Sprintf("likely g/in-%d in %d", p.Partition, n)
		if s.persist {
			rs := p.Records[:len(p.Records)-2]
			row = fmt.Sprintf("exact g/in-%d %d-%d %s in %d", p.Partition, rs[0].Offset, rs[len(rs)-1].Offset, typ, n)
		}
		byState[n] = append(byState[n], row)
	}
	var out []string
	for n, rows := range byState {
		// Partition 2 has no records, and is a candidate all the same as long as
		// nobody tells its lag.
		others := state(2) == n
		if !s.persist && (len(rows) > 1 || others) {
			rows = []string{fmt.Sprintf("possible in %d", n)}
		}
		out = append(out, rows...)
	}
	slices.Sort(out)
	return out
}

// awaitNone looks until nothing is pending, and returns how long that took.
func (s *stopped) awaitNone() time.Duration {
	s.t.Helper()
	start := time.Now()
	for {
		rep, rows := s.look()
		if rep.Status == inspect.StatusNone && len(rows) == 0 {
			return time.Since(start)
		}
		if took := time.Since(start); took > 5*time.Minute || rep.Status != inspect.StatusPending {
			s.t.Fatalf("after %s the status is %s: %s\n  %s", took, rep.Status, rep.Reason, strings.Join(rows, "\n  "))
		}
		<-time.After(500 * time.Millisecond)
	}
}

// eachStopped runs a test for each dialect, pending state and acknowledge type.
func eachStopped(t *testing.T, test func(s *stopped, typ wire.AcknowledgeType)) {
	t.Helper()
	for _, d := range wire.Dialects() {
		for name, p := range map[string]sandbox.PendingState{"persisted": sandbox.PendingPersisted, "memory": sandbox.PendingMemory} {
			for _, typ := range []wire.AcknowledgeType{wire.Accept, wire.Reject} {
				t.Run(d.Name+"/"+name+"/"+typ.String(), func(t *testing.T) {
					stopInTransaction(t, d, p, typ, func(s *stopped) { test(s, typ) })
				})
			}
		}
	}
}

// In the middle of a transaction exactly what is staged is shown, with its owner,
// age and deadline; and it is gone once the transaction has ended.
func TestPendingOnSandbox(t *testing.T) {
	ends := map[string]func(s *stopped, deadline time.Time){
		"commit": func(s *stopped, _ time.Time) {
			if err := s.session.Commit(s.t.Context(), txn.Guard{}); err != nil {
				s.t.Fatal(err)
			}
			if took := s.awaitNone(); took > 5*time.Second {
				s.t.Errorf("it took %s", took)
			}
		},
		"abort": func(s *stopped, _ time.Time) {
			if err := s.session.Abort(s.t.Context()); err != nil {
				s.t.Fatal(err)
			}
			if took := s.awaitNone(); took > 5*time.Second {
				s.t.Errorf("it took %s", took)
			}
		},
		"fence": func(s *stopped, _ time.Time) {
			successor, err := txn.NewSession(s.t.Context(), s.restart(), txn.Config{TransactionalID: heldID})
			if err != nil {
				s.t.Fatal(err)
			}
			defer func() { _ = successor.Close(s.t.Context()) }()
			if took := s.awaitNone(); took > 5*time.Second {
				s.t.Errorf("it took %s", took)
			}
			if _, ok := errors.AsType[*txn.FencedError](s.session.CheckOwner(s.t.Context())); !ok {
				s.t.Error("the owner is not fenced")
			}
		},
		"timeout": func(s *stopped, deadline time.Time) {
			<-time.After(time.Until(s.before.Add(heldTimeout - time.Millisecond)))
			if rep, _ := s.look(); rep.Status != inspect.StatusPending {
				s.t.Errorf("right before the timeout the status is %s", rep.Status)
			}
			s.awaitNone()
			if now := time.Now(); now.Before(s.before.Add(heldTimeout)) || now.After(deadline.Add(time.Second)) {
				s.t.Errorf("it ended %s after it began, want it between its timeout of %s and the deadline shown, %s",
					now.Sub(s.before), heldTimeout, deadline.Sub(s.before))
			}
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			eachStopped(t, func(s *stopped, typ wire.AcknowledgeType) {
				end(s, s.checkStopped(typ))
			})
		})
	}
}

// checkStopped checks what is shown in the middle of the transaction, and returns
// the deadline.
func (s *stopped) checkStopped(typ wire.AcknowledgeType) time.Time {
	t := s.t
	t.Helper()
	<-time.After(3 * time.Second)
	rep, rows := s.look()
	if got, want := slices.Sorted(slices.Values(rows)), s.want(typ); !slices.Equal(got, want) {
		t.Fatalf("rows are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if rep.Status != inspect.StatusPending || len(rep.Gaps) > 0 || len(rep.Owners) != 1 || len(rep.Rows) == 0 {
		t.Fatalf("status %s, gaps %v, owners %+v", rep.Status, rep.Gaps, rep.Owners)
	}
	var deadline time.Time
	for _, r := range rep.Rows {
		id, epoch := s.session.ProducerID()
		if *r.TransactionalID != heldID || *r.ProducerID != id || *r.ProducerEpoch != epoch || *r.TransactionState != "Ongoing" || *r.TimeoutMS != int32(heldTimeout.Milliseconds()) {
			t.Errorf("owner of %+v", r)
		}
		age := time.Duration(*r.AgeMS) * time.Millisecond
		if since := rep.Time.Sub(s.before); age < since-100*time.Millisecond || age > since+time.Millisecond {
			t.Errorf("age %s, want %s", age, since)
		}
		deadline = r.Started.Add(heldTimeout + 10*time.Second)
		if !r.Deadline.Equal(deadline) || r.TwoPhase || r.Stuck || *r.Coordinator < 0 {
			t.Errorf("deadline %s of %+v, want %s", r.Deadline, r, deadline)
		}
		if !slices.Equal(r.Command, []string{"txn", "fence", heldID}) {
			t.Errorf("command %q", r.Command)
		}
		if r.GroupID != nil && *r.GroupMembers != 1 {
			t.Errorf("%d members", *r.GroupMembers)
		}
	}
	return deadline
}

// What has not moved tells the one candidate that holds pending records from
// those that are merely read slowly, where nothing is written down.
func TestPendingUnmovedOnSandbox(t *testing.T) {
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			stopInTransaction(t, d, sandbox.PendingMemory, wire.Accept, func(s *stopped) {
				first, err := inspect.Collect(s.t.Context(), s.cl, inspect.CollectOptions{})
				if err != nil {
					s.t.Fatal(err)
				}
				<-time.After(31 * time.Second)
				ev, err := inspect.Collect(s.t.Context(), s.cl, inspect.CollectOptions{Previous: first})
				if err != nil {
					s.t.Fatal(err)
				}
				unmoved := 0
				for _, p := range ev.Groups[0].Partitions {
					if p.UnmovedSince.Equal(first.Time) {
						unmoved++
					}
				}
				if unmoved < 2 {
					s.t.Errorf("%d share-partitions are known not to have moved: %+v, from %+v", unmoved, ev.Groups[0].Partitions, first.Groups[0].Partitions)
				}
			})
		})
	}
}
