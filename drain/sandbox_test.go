package drain_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/apptest"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
)

// bench adds drains to that of apptest.
type bench struct{ *apptest.Bench }

func everywhere(t *testing.T, test func(b bench)) {
	t.Helper()
	apptest.Everywhere(t, func(b *apptest.Bench) { test(bench{b}) })
}

// drain drains as the command does, and does not mind what may be in memory.
func (b bench) drain(ctx context.Context, o drain.Options) (*drain.Result, error) {
	b.T.Helper()
	o.AcceptMemory = true
	return b.drainAs(ctx, o)
}

func (b bench) drainAs(ctx context.Context, o drain.Options) (*drain.Result, error) {
	b.T.Helper()
	cl, clock := b.Connect(), drain.NewClock(time.Now)
	obs := &drain.ClusterObserver{Cluster: cl, Now: time.Now}
	first, err := obs.Observe(ctx, nil)
	b.Check(err)
	plan, err := drain.NewPlan(first.Evidence, o, time.Now())
	b.Check(err)
	return plan.Execute(ctx, drain.Execution{
		Observer: obs, Actor: &drain.ClusterActor{Cluster: cl, Clock: clock}, Clock: clock,
	})
}

// groupApart returns a group of topic "other" whose state is not kept beside that of
// group "g" and topic "in": of what is staged in memory nobody can tell to which of
// the groups it belongs whose state is in one partition of __share_group_state.
func (b bench) groupApart() string {
	b.T.Helper()
	const statePartitions = 50 // Kafka's default (share.coordinator.state.topic.num.partitions)
	topics, err := b.Connect().Topics(b.T.Context(), "in", "other")
	b.Check(err)
	at := func(group, topic string, partition int32) int32 {
		return wire.ShareStatePartition(group, topics[topic].ID, partition, statePartitions)
	}
	for i := 0; ; i++ {
		group := "h" + strconv.Itoa(i)
		if p := at(group, "other", 0); p != at("g", "in", 0) && p != at("g", "in", 1) {
			return group
		}
	}
}

// wantDrained fails unless a drain said so and it is true.
func (b bench) wantDrained(res *drain.Result, err error) {
	b.T.Helper()
	records, open := b.Truth()
	if err != nil || res.Status != drain.StatusDrained || records > 0 || open > 0 {
		b.T.Fatalf("drain: %s (%s), %v, with %d records pending and %d transactions open; want it drained", res.Status, res.Reason, err, records, open)
	}
}

// wantSurvivor fails unless a drain names a survivor that is there.
func (b bench) wantSurvivor(res *drain.Result, id string) {
	b.T.Helper()
	records, _ := b.Truth()
	if records == 0 || !slices.ContainsFunc(res.Pending.Rows, func(r inspect.PendingRow) bool { return r.TransactionalID != nil && *r.TransactionalID == id }) {
		b.T.Errorf("%d records are pending, and the survivors are %+v, want %s among them", records, res.Pending.Rows, id)
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
		do    func(a *apptest.App) error // after 10 s; nil does nothing
		after time.Duration              // when the transaction ends
	}{
		"commit":  {(*apptest.App).Commit, 10 * time.Second},
		"abort":   {(*apptest.App).Abort, 10 * time.Second},
		"timeout": {nil, apptest.Timeout},
	} {
		t.Run(end, func(t *testing.T) {
			everywhere(t, func(b bench) {
				a := b.App("g", "in", "billing-1")
				a.MustStage()
				start := time.Now()
				var wg sync.WaitGroup
				if c.do != nil {
					wg.Go(func() {
						<-time.After(10 * time.Second)
						if err := c.do(a); err != nil {
							b.T.Error(err)
						}
					})
				}
				res, err := b.drain(b.T.Context(), drain.Options{})
				wg.Wait()
				b.wantDrained(res, err)
				took, least := time.Since(start), c.after+quiet(b.Pending)
				if took < least || took > least+30*time.Second {
					b.T.Errorf("it took %v, want little more than %v", took, least)
				}
				if len(res.Running) > 0 || len(res.Acts) > 0 {
					b.T.Errorf("running %v, acts %v", res.Running, res.Acts)
				}
			})
		})
	}
}

// Fencing ends it at once: the producer notices, and what it staged is there
// again.
func TestSandboxFences(t *testing.T) {
	everywhere(t, func(b bench) {
		a, other := b.App("g", "in", "billing-1"), b.App("h", "other", "shipping-1")
		a.MustStage()
		other.MustStage()
		start := time.Now()
		res, err := b.drain(b.T.Context(), drain.Options{Fence: []string{"billing-1"}, FenceAll: true})
		b.wantDrained(res, err)
		if took := time.Since(start); took > quiet(b.Pending)+10*time.Second {
			b.T.Errorf("it took %v", took)
		}
		done := make(map[string]drain.ActStatus)
		for _, act := range res.Acts {
			done[*act.TransactionalID] = act.Status
		}
		if want := map[string]drain.ActStatus{"billing-1": drain.ActDone, "shipping-1": drain.ActDone}; !maps.Equal(done, want) {
			b.T.Errorf("acts %v, want %v", done, want)
		}
		if err := a.Commit(); err == nil {
			b.T.Error("a producer that was fenced commits")
		}
	})
}

// Only the scope is acted on, and waited for.
func TestSandboxScope(t *testing.T) {
	everywhere(t, func(b bench) {
		group := b.groupApart()
		a, other := b.App("g", "in", "billing-1"), b.App(group, "other", "shipping-1")
		a.MustStage()
		other.MustStage()
		res, err := b.drain(b.T.Context(), drain.Options{Groups: []string{group}, FenceAll: true, QuietPeriod: 5 * time.Second})
		if err != nil || res.Status != drain.StatusDrained || len(res.Acts) != 1 || *res.Acts[0].TransactionalID != "shipping-1" {
			b.T.Fatalf("drain of a group: %s (%s) with acts %v, %v; want it drained by an act on shipping-1", res.Status, res.Reason, res.Acts, err)
		}
		if records, open := b.Truth(); records != 1 || open != 1 {
			b.T.Errorf("%d records are pending in %d transactions, want that of the other group", records, open)
		}
		b.Check(a.Commit())
	})
}

// A producer that goes on is named, also when it is between two transactions in
// every look.
func TestSandboxKeepsStaging(t *testing.T) {
	for name, c := range map[string]struct{ open, pause time.Duration }{
		"open most of the time": {1500 * time.Millisecond, 100 * time.Millisecond},
		"open some of the time": {500 * time.Millisecond, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(b bench) {
				a := b.App("g", "in", "billing-1")
				a.MustStage()
				stop := a.Busy(c.open, c.pause)
				res, err := b.drain(b.T.Context(), drain.Options{Timeout: 2 * time.Minute})
				stop()
				e, ok := errors.AsType[*drain.TimeoutError](err)
				if !ok || !strings.Contains(err.Error(), `producers still running: "billing-1"`) || len(res.Running) != 1 {
					b.T.Errorf("drain: %s (%s), %v; want it timed out, with billing-1 named", res.Status, res.Reason, err)
				}
				if ok && e.Hint() != "stop the producers, and drain again" {
					b.T.Errorf("hint %q", e.Hint())
				}
				// It stopped: a second drain is soon done.
				res, err = b.drain(b.T.Context(), drain.Options{})
				b.wantDrained(res, err)
			})
		})
	}
}

// A drain that is interrupted leaves the cluster as it was, and a second one goes
// on.
func TestSandboxInterrupted(t *testing.T) {
	everywhere(t, func(b bench) {
		a := b.App("g", "in", "billing-1")
		a.MustStage()
		interrupt := errors.New("interrupt")
		ctx, cancel := context.WithCancelCause(b.T.Context())
		time.AfterFunc(5*time.Second, func() { cancel(interrupt) })
		res, err := b.drain(ctx, drain.Options{})
		if !errors.Is(err, interrupt) || res.Status == drain.StatusDrained {
			b.T.Fatalf("drain: %s (%s), %v; want it interrupted", res.Status, res.Reason, err)
		}
		b.wantSurvivor(res, "billing-1")
		b.Check(a.Commit())
		res, err = b.drain(b.T.Context(), drain.Options{})
		b.wantDrained(res, err)
	})
}

// Where pending records are in memory alone it is not known whether some are left
// behind, as long as there is something that is not done.
func TestSandboxMemory(t *testing.T) {
	everywhere(t, func(b bench) {
		a := b.App("g", "in", "billing-1")
		a.MustStage()
		b.Check(a.Abort())
		res, err := b.drainAs(b.T.Context(), drain.Options{})
		if b.Pending == sandbox.PendingPersisted {
			b.wantDrained(res, err)
			return
		}
		e, ok := errors.AsType[*drain.NotDrainedError](err)
		if !ok || res.Status != drain.StatusUnknown || len(res.InMemory) != 1 || !strings.Contains(e.Hint(), "--accept-memory") {
			b.T.Fatalf("drain: %s (%s), %v; want it unknown what is in memory", res.Status, res.Reason, err)
		}
	})
}

// Coordinators that do not answer hide their transactions. What these hold is not
// taken for left behind: no marker is written for it.
func TestSandboxCoordinatorsFail(t *testing.T) {
	everywhere(t, func(b bench) {
		inject := func(f sandbox.Fault) {
			if _, err := b.Sandbox.InjectFault(b.T.Context(), f); err != nil {
				b.T.Error(err)
			}
		}
		b.App("g", "in", "billing-1").MustStage()
		inject(sandbox.Fault{Kind: sandbox.FaultStopSweeper})
		time.AfterFunc(5*time.Second, func() {
			inject(sandbox.Fault{Kind: sandbox.FaultFailCoordinator, Coordinator: sandbox.CoordinatorTransaction})
		})
		res, err := b.drain(b.T.Context(), drain.Options{AbortHanging: true, Timeout: 3 * time.Minute})
		if res.Status != drain.StatusUnknown || len(res.Acts) > 0 {
			b.T.Errorf("drain: %s (%s), %v, with acts %+v; want it unknown, and nothing done", res.Status, res.Reason, err, res.Acts)
		}
		b.Sandbox.ClearFaults()
		if records, open := b.Truth(); records != 1 || open != 1 {
			b.T.Errorf("%d records are pending in %d transactions, want 1 in 1", records, open)
		}
	})
}

// Time that is too short is told as such.
func TestSandboxTimesOut(t *testing.T) {
	everywhere(t, func(b bench) {
		a := b.App("g", "in", "billing-1")
		a.MustStage()
		res, err := b.drain(b.T.Context(), drain.Options{Timeout: 10 * time.Second})
		if !errors.Is(err, context.DeadlineExceeded) || res.Status != drain.StatusTimedOut {
			b.T.Errorf("drain: %s (%s), %v; want it timed out", res.Status, res.Reason, err)
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
