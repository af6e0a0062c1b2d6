package drain_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// bench is a sandbox in a synctest bubble, with topics "in" and "other".
type bench struct {
	t       *testing.T
	sb      *sandbox.Sandbox
	connect func() *cluster.Client
	clock   drain.Clock
	closers []func(context.Context)
}

// inBubble runs a test on a sandbox whose time is virtual.
func inBubble(t *testing.T, d wire.Dialect, p sandbox.PendingState, do func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		sb, err := sandbox.Start(t.Context(),
			sandbox.WithDialect(d), sandbox.WithPendingState(p), sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092),
			sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 2}, sandbox.Topic{Name: "other", Partitions: 1}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sb.Close(); err != nil {
				t.Error(err)
			}
		}()
		b := &bench{t: t, sb: sb, clock: drain.NewClock(time.Now)}
		var clients []*cluster.Client
		defer func() {
			for _, cl := range clients {
				cl.Close()
			}
		}()
		b.connect = func() *cluster.Client {
			cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs(), Dialer: network.DialContext})
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, cl)
			return cl
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
			defer cancel()
			for _, c := range slices.Backward(b.closers) {
				c(ctx)
			}
		}()
		do(b)
	})
}

// everywhere runs a test for each dialect and pending state.
func everywhere(t *testing.T, test func(b *bench, p sandbox.PendingState)) {
	t.Helper()
	for _, d := range wire.Dialects() {
		for _, p := range []sandbox.PendingState{sandbox.PendingPersisted, sandbox.PendingMemory} {
			t.Run(d.Name+"/"+p.String(), func(t *testing.T) {
				inBubble(t, d, p, func(b *bench) { test(b, p) })
			})
		}
	}
}

// app is an application that acknowledges records of a topic in transactions.
type app struct {
	b       *bench
	topic   string
	session *txn.Session
	member  *share.Consumer
	input   *kgo.Client
}

const appTimeout = 40 * time.Second

func (b *bench) app(group, topic, id string) *app {
	b.t.Helper()
	ctx := b.t.Context()
	cl := b.connect()
	b.check(cl.SetGroupConfig(ctx, group, "share.auto.offset.reset", "earliest"))
	a := &app{b: b, topic: topic}
	var err error
	a.input, err = cl.NewKgo(kgo.DefaultProduceTopic(topic))
	b.check(err)
	a.member, err = share.NewConsumer(ctx, cl, share.Config{GroupID: group, Topics: []string{topic}, MaxWait: 50 * time.Millisecond})
	b.check(err)
	a.session, err = txn.NewSession(ctx, b.connect(), txn.Config{TransactionalID: id, Timeout: appTimeout})
	b.check(err)
	b.closers = append(b.closers, func(ctx context.Context) {
		_ = a.session.Close(ctx) // the transaction may have been taken from it
		_ = a.member.Close(ctx)
		a.input.Close()
	})
	return a
}

func (b *bench) check(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// stage produces a record, acquires it, and stages its acknowledgement in a new
// transaction.
func (a *app) stage() error {
	ctx := a.b.t.Context()
	if err := a.input.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
		return err
	}
	var batch *share.Batch
	for batch == nil || batch.Len() == 0 {
		var err error
		if batch, err = a.member.Poll(ctx, 10); err != nil {
			return err
		}
	}
	if err := a.session.Begin(ctx); err != nil {
		return err
	}
	return a.session.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: batch.All(wire.Accept), Group: a.member.GroupMetadata()})
}

func (a *app) mustStage() {
	a.b.t.Helper()
	a.b.check(a.stage())
}

// drain drains as the command does.
func (b *bench) drain(ctx context.Context, o drain.Options) (*drain.Result, error) {
	b.t.Helper()
	cl := b.connect()
	obs := &drain.ClusterObserver{Cluster: cl, Now: time.Now}
	first, err := obs.Observe(ctx, nil)
	b.check(err)
	plan, err := drain.NewPlan(first.Evidence, o, time.Now())
	b.check(err)
	return plan.Execute(ctx, drain.Execution{
		Observer: obs, Actor: &drain.ClusterActor{Cluster: cl, Clock: b.clock}, Clock: b.clock,
	})
}

// pending is what the sandbox itself knows: records in TX_PENDING, and open
// transactions that hold share acknowledgements.
func (b *bench) pending() (records, open int) {
	b.t.Helper()
	st, err := b.sb.State()
	b.check(err)
	cl := b.connect()
	d, err := cl.Describe(b.t.Context())
	b.check(err)
	txns, gaps, err := inspect.ListTransactions(b.t.Context(), cl, d.Brokers, inspect.TransactionQuery{States: inspect.OpenStates(), Describe: true})
	b.check(err)
	if len(gaps) > 0 {
		b.t.Fatalf("transactions are hidden: %v", gaps)
	}
	for _, t := range txns {
		if t.HoldsShareAcks() {
			open++
		}
	}
	return st.Pending, open
}

// wantDrained fails unless a drain said so and it is true.
func (b *bench) wantDrained(res *drain.Result, err error) {
	b.t.Helper()
	records, open := b.pending()
	if err != nil || res.Status != drain.StatusDrained || records > 0 || open > 0 {
		b.t.Fatalf("drain: %s (%s), %v, with %d records pending and %d transactions open; want it drained", res.Status, res.Reason, err, records, open)
	}
}

// wantSurvivor fails unless a drain names a survivor that is there.
func (b *bench) wantSurvivor(res *drain.Result, id string) {
	b.t.Helper()
	records, _ := b.pending()
	if records == 0 || !slices.ContainsFunc(res.Pending.Rows, func(r inspect.PendingRow) bool { return r.TransactionalID != nil && *r.TransactionalID == id }) {
		b.t.Errorf("%d records are pending, and the survivors are %+v, want %s among them", records, res.Pending.Rows, id)
	}
}

// quiet is the least time that a drain takes from the end of the last
// transaction: where pending records are in memory, the transaction timeout that
// it saw, but at least 60 s, and a sweep.
func quiet(p sandbox.PendingState) time.Duration {
	if p == sandbox.PendingPersisted {
		return 5 * time.Second
	}
	return 70 * time.Second
}

// A drain waits for whatever ends a transaction.
func TestSandboxWaits(t *testing.T) {
	for end, c := range map[string]struct {
		do    func(ctx context.Context, a *app) error // after 10 s; nil does nothing
		after time.Duration                           // when the transaction ends
	}{
		"commit":  {func(ctx context.Context, a *app) error { return a.session.Commit(ctx, txn.Guard{}) }, 10 * time.Second},
		"abort":   {func(ctx context.Context, a *app) error { return a.session.Abort(ctx) }, 10 * time.Second},
		"timeout": {nil, appTimeout},
	} {
		t.Run(end, func(t *testing.T) {
			everywhere(t, func(b *bench, p sandbox.PendingState) {
				a := b.app("g", "in", "billing-1")
				a.mustStage()
				start := time.Now()
				var wg sync.WaitGroup
				if c.do != nil {
					wg.Go(func() {
						<-time.After(10 * time.Second)
						if err := c.do(b.t.Context(), a); err != nil {
							b.t.Error(err)
						}
					})
				}
				res, err := b.drain(b.t.Context(), drain.Options{})
				wg.Wait()
				b.wantDrained(res, err)
				took, least := time.Since(start), c.after+quiet(p)
				if took < least || took > least+30*time.Second {
					b.t.Errorf("it took %v, want little more than %v", took, least)
				}
				if len(res.Running) > 0 || len(res.Acts) > 0 {
					b.t.Errorf("running %v, acts %v", res.Running, res.Acts)
				}
			})
		})
	}
}

// Fencing ends it at once: the producer notices, and what it staged is there
// again.
func TestSandboxFences(t *testing.T) {
	everywhere(t, func(b *bench, p sandbox.PendingState) {
		a, other := b.app("g", "in", "billing-1"), b.app("h", "other", "shipping-1")
		a.mustStage()
		other.mustStage()
		start := time.Now()
		res, err := b.drain(b.t.Context(), drain.Options{Fence: []string{"billing-1"}, FenceAll: true})
		b.wantDrained(res, err)
		if took := time.Since(start); took > quiet(p)+10*time.Second {
			b.t.Errorf("it took %v", took)
		}
		done := make(map[string]drain.ActStatus)
		for _, act := range res.Acts {
			done[*act.TransactionalID] = act.Status
		}
		if want := map[string]drain.ActStatus{"billing-1": drain.ActDone, "shipping-1": drain.ActDone}; !maps.Equal(done, want) {
			b.t.Errorf("acts %v, want %v", done, want)
		}
		if err := a.session.Commit(b.t.Context(), txn.Guard{}); err == nil {
			b.t.Error("a producer that was fenced commits")
		}
	})
}

// Only the scope is acted on, and waited for.
func TestSandboxScope(t *testing.T) {
	everywhere(t, func(b *bench, _ sandbox.PendingState) {
		a, other := b.app("g", "in", "billing-1"), b.app("h", "other", "shipping-1")
		a.mustStage()
		other.mustStage()
		res, err := b.drain(b.t.Context(), drain.Options{Groups: []string{"h"}, FenceAll: true, QuietPeriod: 5 * time.Second})
		if err != nil || res.Status != drain.StatusDrained || len(res.Acts) != 1 || *res.Acts[0].TransactionalID != "shipping-1" {
			b.t.Fatalf("drain of a group: %s (%s) with acts %v, %v; want it drained by an act on shipping-1", res.Status, res.Reason, res.Acts, err)
		}
		if records, open := b.pending(); records != 1 || open != 1 {
			b.t.Errorf("%d records are pending in %d transactions, want that of the other group", records, open)
		}
		b.check(a.session.Commit(b.t.Context(), txn.Guard{}))
	})
}

// A producer that goes on is named, also when it is between two transactions in
// every look.
func TestSandboxKeepsStaging(t *testing.T) {
	for name, pauses := range map[string][2]time.Duration{
		"open most of the time": {1500 * time.Millisecond, 100 * time.Millisecond},
		"open some of the time": {500 * time.Millisecond, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(b *bench, _ sandbox.PendingState) {
				a := b.app("g", "in", "billing-1")
				a.mustStage()
				stop := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() {
					for {
						<-time.After(pauses[0])
						if err := a.session.Commit(b.t.Context(), txn.Guard{}); err != nil {
							b.t.Error(err)
							return
						}
						select {
						case <-stop:
							return
						case <-time.After(pauses[1]):
						}
						if err := a.stage(); err != nil {
							b.t.Error(err)
							return
						}
					}
				})
				res, err := b.drain(b.t.Context(), drain.Options{Timeout: 2 * time.Minute})
				close(stop)
				wg.Wait()
				e, ok := errors.AsType[*drain.TimeoutError](err)
				if !ok || !strings.Contains(err.Error(), `producers still running: "billing-1"`) || len(res.Running) != 1 {
					b.t.Errorf("drain: %s (%s), %v; want it timed out, with billing-1 named", res.Status, res.Reason, err)
				}
				if ok && e.Hint() != "stop the producers, and drain again" {
					b.t.Errorf("hint %q", e.Hint())
				}
				// It stopped: a second drain is soon done.
				res, err = b.drain(b.t.Context(), drain.Options{})
				b.wantDrained(res, err)
			})
		})
	}
}

// A drain that is interrupted leaves the cluster as it was, and a second one goes
// on.
func TestSandboxInterrupted(t *testing.T) {
	everywhere(t, func(b *bench, _ sandbox.PendingState) {
		a := b.app("g", "in", "billing-1")
		a.mustStage()
		interrupt := errors.New("interrupt")
		ctx, cancel := context.WithCancelCause(b.t.Context())
		time.AfterFunc(5*time.Second, func() { cancel(interrupt) })
		res, err := b.drain(ctx, drain.Options{})
		if !errors.Is(err, interrupt) || res.Status == drain.StatusDrained {
			b.t.Fatalf("drain: %s (%s), %v; want it interrupted", res.Status, res.Reason, err)
		}
		b.wantSurvivor(res, "billing-1")
		b.check(a.session.Commit(b.t.Context(), txn.Guard{}))
		res, err = b.drain(b.t.Context(), drain.Options{})
		b.wantDrained(res, err)
	})
}

// Time that is too short is told as such.
func TestSandboxTimesOut(t *testing.T) {
	everywhere(t, func(b *bench, _ sandbox.PendingState) {
		a := b.app("g", "in", "billing-1")
		a.mustStage()
		res, err := b.drain(b.t.Context(), drain.Options{Timeout: 10 * time.Second})
		if !errors.Is(err, context.DeadlineExceeded) || res.Status != drain.StatusTimedOut {
			b.t.Errorf("drain: %s (%s), %v; want it timed out", res.Status, res.Reason, err)
		}
		b.wantSurvivor(res, "billing-1")
	})
}

func ExampleNewPlan() {
	started := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	ev := &inspect.Evidence{
		Time: started, Sweep: 10 * time.Second, StatePartitions: 50, Persists: true,
		Transactions: []inspect.Transaction{{
			TransactionalID: "billing-1", State: "Ongoing", ProducerID: 7, TimeoutMS: 60_000, Started: started,
			Partitions: []inspect.TopicPartitions{{Topic: "__share_group_state", Partitions: []int32{4}}},
		}},
	}
	plan, err := drain.NewPlan(ev, drain.Options{FenceAll: true}, started)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range plan.Acts() {
		fmt.Println(s.Action, s.Name())
	}
	fmt.Println("quiet period", plan.QuietPeriod)
	// Output:
	// fence "billing-1"
	// quiet period 5s
}
