package drain_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/apptest"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
)

// persisted runs a test for each dialect, on sandboxes that write TX_PENDING down.
func persisted(t *testing.T, test func(b bench)) {
	t.Helper()
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			apptest.Run(t, d, sandbox.PendingPersisted, func(b *apptest.Bench) { test(bench{b}) })
		})
	}
}

func (b bench) inject(f sandbox.Fault) {
	b.T.Helper()
	_, err := b.Sandbox.InjectFault(b.T.Context(), f)
	b.Check(err)
}

// delivered returns how many records of "in" are acknowledged for good, and how
// many are there to be delivered again, by the persisted state.
func (b bench) delivered() (acknowledged, available int64) {
	b.T.Helper()
	cl := b.Connect()
	topics, err := cl.Topics(b.T.Context(), "in")
	b.Check(err)
	var keys []inspect.ShareKey
	for _, p := range topics["in"].Partitions {
		keys = append(keys, inspect.ShareKey{GroupID: "g", TopicID: topics["in"].ID, Partition: p.Partition})
	}
	states, gaps, err := inspect.ReadShareStates(b.T.Context(), cl, keys)
	b.Check(err)
	if len(gaps) > 0 {
		b.T.Fatalf("states cannot be read: %v", gaps)
	}
	for _, s := range states {
		acknowledged += s.StartOffset
		for _, batch := range s.Batches {
			n := batch.LastOffset - batch.FirstOffset + 1
			switch batch.DeliveryState {
			case wire.Acknowledged:
				acknowledged += n
			case wire.Available:
				available += n
			case wire.Acquired, wire.Archiving, wire.Archived, wire.TxPending:
			}
		}
	}
	return acknowledged, available
}

// A marker that was lost leaves an orphan. It is left alone unless asked, and then
// gets the end that its transaction had: what was committed is never aborted.
func TestFaultLostMarker(t *testing.T) {
	for end, c := range map[string]struct {
		do     func(*apptest.App) error
		action drain.Action
		done   int64 // records that are acknowledged in the end
	}{
		"commit": {(*apptest.App).Commit, drain.ActionCommit, 1},
		"abort":  {(*apptest.App).Abort, drain.ActionAbort, 0},
	} {
		t.Run(end, func(t *testing.T) {
			persisted(t, func(b bench) {
				a := b.App("g", "in", "billing-1")
				a.MustStage()
				b.inject(sandbox.Fault{Kind: sandbox.FaultDropMarker, TransactionalID: "billing-1", Count: 1})
				b.Check(c.do(a))
				res, err := b.drainAs(b.T.Context(), drain.Options{FenceAll: true})
				e, ok := errors.AsType[*drain.NotDrainedError](err)
				if !ok || res.Status != drain.StatusPending || len(res.Pending.Rows) != 1 || res.Pending.Rows[0].Verdict != inspect.VerdictOrphan || !strings.Contains(e.Hint(), "--abort-hanging") {
					b.T.Fatalf("drain: %s (%s), %v; want the orphan named", res.Status, res.Reason, err)
				}
				if records, _ := b.Truth(); records != 1 {
					b.T.Fatalf("%d records are pending, want that of the lost marker", records)
				}
				res, err = b.drainAs(b.T.Context(), drain.Options{AbortHanging: true})
				b.wantDrained(res, err)
				if len(res.Acts) != 1 || res.Acts[0].Action != c.action || res.Acts[0].Status != drain.ActDone {
					b.T.Errorf("acts %+v, want one to %s", res.Acts, c.action)
				}
				if done, _ := b.delivered(); done != c.done {
					b.T.Errorf("%d records are acknowledged, want %d", done, c.done)
				}
			})
		})
	}
}

// A transaction that its coordinator has forgotten has no outcome: its records are
// delivered again, and that is said before.
func TestFaultForgottenTransaction(t *testing.T) {
	persisted(t, func(b bench) {
		b.App("g", "in", "billing-1").MustStage()
		b.inject(sandbox.Fault{Kind: sandbox.FaultForgetTransaction, TransactionalID: "billing-1"})
		obs := &drain.ClusterObserver{Cluster: b.Connect(), Now: time.Now}
		first, err := obs.Observe(b.T.Context(), nil)
		b.Check(err)
		plan, err := drain.NewPlan(first.Evidence, drain.Options{AbortHanging: true}, time.Now())
		b.Check(err)
		if !slices.ContainsFunc(plan.Warnings, func(w string) bool { return strings.Contains(w, "its records are delivered again") }) {
			b.T.Errorf("warnings %q", plan.Warnings)
		}
		res, err := b.drainAs(b.T.Context(), drain.Options{AbortHanging: true})
		b.wantDrained(res, err)
		if done, _ := b.delivered(); done != 0 {
			b.T.Errorf("%d records are acknowledged, want none", done)
		}
	})
}

// Markers that are held back are waited for, and named as stuck when they do not
// come; nothing is done about them, whatever was asked for.
func TestFaultDelayedMarker(t *testing.T) {
	t.Run("they come", func(t *testing.T) {
		persisted(t, func(b bench) {
			a := b.App("g", "in", "billing-1")
			a.MustStage()
			b.inject(sandbox.Fault{Kind: sandbox.FaultDelayMarker, TransactionalID: "billing-1", DurationMs: 20_000})
			b.Check(a.Commit())
			res, err := b.drainAs(b.T.Context(), drain.Options{FenceAll: true, AbortHanging: true})
			b.wantDrained(res, err)
			if len(res.Acts) > 0 {
				b.T.Errorf("acts %+v on a commit that is decided", res.Acts)
			}
			if done, _ := b.delivered(); done != 1 {
				b.T.Errorf("%d records are acknowledged, want 1", done)
			}
		})
	})
	t.Run("they do not", func(t *testing.T) {
		persisted(t, func(b bench) {
			a := b.App("g", "in", "billing-1")
			a.MustStage()
			b.inject(sandbox.Fault{Kind: sandbox.FaultDelayMarker, TransactionalID: "billing-1"})
			b.Check(a.Commit())
			res, err := b.drainAs(b.T.Context(), drain.Options{FenceAll: true, AbortHanging: true})
			if res.Status != drain.StatusPending || !strings.Contains(res.Reason, "its end is decided (PrepareCommit), and its markers have not been written for a long time") || len(res.Acts) > 0 {
				b.T.Errorf("drain: %s (%s), %v, with acts %+v; want it stuck, and left alone", res.Status, res.Reason, err, res.Acts)
			}
			b.wantSurvivor(res, "billing-1")
			b.Sandbox.ClearFaults()
			res, err = b.drainAs(b.T.Context(), drain.Options{})
			b.wantDrained(res, err)
			if done, _ := b.delivered(); done != 1 {
				b.T.Errorf("%d records are acknowledged, want 1", done)
			}
		})
	})
}

// A transaction that nobody times out is named as overdue, and fencing ends it.
func TestFaultStoppedSweeper(t *testing.T) {
	persisted(t, func(b bench) {
		b.App("g", "in", "billing-1").MustStage()
		b.inject(sandbox.Fault{Kind: sandbox.FaultStopSweeper})
		res, err := b.drainAs(b.T.Context(), drain.Options{Timeout: 10 * time.Minute})
		if res.Status != drain.StatusPending || !strings.Contains(res.Reason, "it should have timed out") {
			b.T.Fatalf("drain: %s (%s), %v; want it overdue", res.Status, res.Reason, err)
		}
		b.wantSurvivor(res, "billing-1")
		res, err = b.drainAs(b.T.Context(), drain.Options{FenceAll: true})
		b.wantDrained(res, err)
	})
}

// A broker that answers nothing makes it unknown, and a drain goes on when it is
// back.
func TestFaultFrozenBroker(t *testing.T) {
	persisted(t, func(b bench) {
		a := b.App("g", "in", "billing-1")
		a.MustStage()
		b.Check(a.Commit())
		b.inject(sandbox.Fault{Kind: sandbox.FaultFreezeBroker, Broker: new(int32(1))})
		res, err := b.drainAs(b.T.Context(), drain.Options{Timeout: time.Minute})
		if _, ok := errors.AsType[*drain.NotDrainedError](err); !ok || res.Status != drain.StatusUnknown {
			b.T.Fatalf("drain with a broker frozen: %s (%s), %v; want it unknown", res.Status, res.Reason, err)
		}
		time.AfterFunc(20*time.Second, func() { b.Sandbox.ClearFaults() })
		res, err = b.drainAs(b.T.Context(), drain.Options{Timeout: 2 * time.Minute})
		b.wantDrained(res, err)
	})
}
