package feature_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/internal/apptest"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// lowering is a bench whose level is to be lowered below that of transactional
// acknowledgement.
type lowering struct {
	*apptest.Bench
	cl *cluster.Client
	d  wire.Dialect
}

func everywhere(t *testing.T, test func(b lowering)) {
	t.Helper()
	apptest.Everywhere(t, func(b *apptest.Bench) { test(lowering{b, b.Connect(), b.Sandbox.Dialect()}) })
}

// downgrade lowers share.version. change may add to the options.
func (b lowering) downgrade(change func(c *feature.Change, o *feature.ExecuteOptions)) (*feature.Result, error) {
	b.T.Helper()
	rep, err := feature.Describe(b.T.Context(), b.cl, feature.DescribeOptions{})
	b.Check(err)
	c, err := feature.NewDowngrade(rep, []feature.Update{{Feature: wire.FeatureShareVersion, Level: b.d.ShareVersion - 1}}, false)
	b.Check(err)
	o := feature.ExecuteOptions{Now: time.Now}
	if change != nil {
		change(c, &o)
	}
	return c.Execute(b.T.Context(), b.cl, o)
}

// draining makes a downgrade drain first; 0 is as long as that takes.
func (b lowering) draining(timeout time.Duration) func(c *feature.Change, x *feature.ExecuteOptions) {
	return func(c *feature.Change, x *feature.ExecuteOptions) {
		x.Drain = func(ctx context.Context) (*drain.Result, error) {
			clock := drain.NewClock(time.Now)
			obs := c.Observer(b.cl, "", time.Now)
			first, err := obs.Observe(ctx, nil)
			if err != nil {
				return nil, err
			}
			o := c.DrainOptions(feature.GuardOptions{})
			o.Timeout = timeout
			plan, err := drain.NewPlan(first.Evidence, o, time.Now())
			if err != nil {
				return nil, err
			}
			return plan.Execute(ctx, drain.Execution{Observer: obs, Actor: &drain.ClusterActor{Cluster: b.cl, Clock: clock}, Clock: clock})
		}
	}
}

// wantLevel fails unless the level was lowered, or not.
func (b lowering) wantLevel(res *feature.Result, err error, lowered bool) {
	b.T.Helper()
	want := b.d.ShareVersion
	if lowered {
		want--
	}
	if b.Sandbox.ShareVersion() != want || res.Changed != lowered {
		b.T.Errorf("share.version is %d, changed %v (%v), want %d", b.Sandbox.ShareVersion(), res.Changed, err, want)
	}
}

// While a transaction is open the level is not lowered, and the rows say why; nor
// is it by a dry run.
func TestDowngradeRefusedWhileOpen(t *testing.T) {
	everywhere(t, func(b lowering) {
		a := b.App("g", "in", "billing-1")
		a.MustStage()
		for _, dryRun := range []bool{false, true} {
			res, err := b.downgrade(func(_ *feature.Change, o *feature.ExecuteOptions) { o.DryRun = dryRun })
			e, ok := errors.AsType[*feature.RefusedError](err)
			if !ok || !strings.Contains(err.Error(), `1 open transaction holds or may hold share acknowledgements: "billing-1" (Ongoing)`) {
				b.T.Fatalf("downgrade (dry run %v): %v, want it refused", dryRun, err)
			}
			if len(e.Pending) != 1 || *e.Pending[0].TransactionalID != "billing-1" || len(e.Transactions) != 1 {
				b.T.Errorf("refused with rows %+v and transactions %+v", e.Pending, e.Transactions)
			}
			b.wantLevel(res, err, false)
		}
		b.Check(a.Commit())
		res, err := b.downgrade(func(_ *feature.Change, o *feature.ExecuteOptions) { o.DryRun = true })
		if err != nil || !res.Validated {
			b.T.Errorf("dry run with nothing open: %+v, %v", res, err)
		}
		b.wantLevel(res, err, false)
		res, err = b.downgrade(nil)
		b.Check(err)
		b.wantLevel(res, err, true)
	})
}

// A downgrade that drains waits for whatever ends the transaction.
func TestDowngradeDrains(t *testing.T) {
	for end, do := range map[string]func(*apptest.App) error{
		"commit": (*apptest.App).Commit, "abort": (*apptest.App).Abort, "timeout": nil,
	} {
		t.Run(end, func(t *testing.T) {
			everywhere(t, func(b lowering) {
				a := b.App("g", "in", "billing-1")
				a.MustStage()
				ended := make(chan error, 1)
				ended <- nil
				if do != nil {
					<-ended
					go func() {
						<-time.After(10 * time.Second)
						ended <- do(a)
					}()
				}
				res, err := b.downgrade(b.draining(0))
				b.Check(errors.Join(err, <-ended))
				b.wantLevel(res, err, true)
				if res.Drain == nil || res.Drain.Status != drain.StatusDrained || res.Raced {
					b.T.Errorf("result %+v with drain %+v", res, res.Drain)
				}
				if records, open := b.Truth(); records > 0 || open > 0 {
					b.T.Errorf("%d records are pending, %d transactions open", records, open)
				}
			})
		})
	}
}

// A producer that keeps staging is named, and the level stays.
func TestDowngradeUnderProducer(t *testing.T) {
	everywhere(t, func(b lowering) {
		a := b.App("g", "in", "billing-1")
		a.MustStage()
		stop := a.Busy(1500*time.Millisecond, 100*time.Millisecond)
		res, err := b.downgrade(b.draining(time.Minute))
		stop()
		if _, ok := errors.AsType[*drain.TimeoutError](err); !ok || !strings.Contains(err.Error(), `producers still running: "billing-1"`) {
			b.T.Errorf("downgrade: %v, want it out of time, with billing-1 named", err)
		}
		b.wantLevel(res, err, false)
	})
}

// after is an observer that lets something happen right after its first look.
type after struct {
	drain.Observer
	do func()
}

func (a *after) Observe(ctx context.Context, watch []string) (drain.Observation, error) {
	o, err := a.Observer.Observe(ctx, watch)
	if a.do != nil {
		a.do()
		a.do = nil
	}
	return o, err
}

// Who gets in between the last look and the change is named: with the broker's
// refusal where it looks itself, and after the change where it cannot know.
func TestDowngradeRaced(t *testing.T) {
	race := func(b lowering, do func()) (*feature.Result, error) {
		return b.downgrade(func(c *feature.Change, o *feature.ExecuteOptions) {
			o.Observer = &after{c.Observer(b.cl, "", time.Now), do}
		})
	}
	t.Run("staged", func(t *testing.T) {
		everywhere(t, func(b lowering) {
			a := b.App("g", "in", "billing-1")
			res, err := race(b, a.MustStage)
			e, ok := errors.AsType[*feature.UpdateError](err)
			if !ok || len(e.Pending) != 1 || *e.Pending[0].TransactionalID != "billing-1" || len(res.Pending) != 1 || !strings.Contains(e.Hint(), "kshare drain") {
				b.T.Errorf("downgrade: %+v, %v, want the broker's refusal, with billing-1", res, err)
			}
			b.wantLevel(res, err, false)
		})
	})
	t.Run("registered", func(t *testing.T) {
		everywhere(t, func(b lowering) {
			// To stage, a state partition is registered in the transaction first.
			res, err := race(b, func() { b.register("billing-1") })
			e, ok := errors.AsType[*feature.RacedError](err)
			if !ok || len(e.Holders) != 1 || e.Holders[0].Name() != `"billing-1"` || len(e.Pending) != 1 || !res.Raced || len(res.Transactions) != 1 {
				b.T.Errorf("downgrade: %+v, %v, want it raced by billing-1", res, err)
			}
			b.wantLevel(res, err, true)
		})
	})
}

// register opens a transaction with a state partition in it.
func (b lowering) register(id string) {
	b.T.Helper()
	ctx := b.T.Context()
	init := kmsg.NewPtrInitProducerIDRequest()
	init.TransactionalID, init.TransactionTimeoutMillis = &id, 60_000
	resp, err := init.RequestWith(ctx, b.cl.Requestor())
	b.Check(err)
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = id, resp.ProducerID, resp.ProducerEpoch
	add.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "__share_group_state", Partitions: []int32{7}}}
	added, err := b.cl.Request(ctx, add)
	b.Check(err)
	if got := added.(*kmsg.AddPartitionsToTxnResponse); len(got.Topics) != 1 || got.Topics[0].Partitions[0].ErrorCode != 0 {
		b.T.Fatalf("register: %+v", got)
	}
}

// transaction.version is not lowered under share acknowledgements, and a drain
// waits for every transaction.
func TestDowngradeTransactionVersion(t *testing.T) {
	everywhere(t, func(b lowering) {
		a := b.App("g", "in", "billing-1")
		a.MustStage()
		rep, err := feature.Describe(b.T.Context(), b.cl, feature.DescribeOptions{})
		b.Check(err)
		newChange := func() *feature.Change {
			c, err := feature.NewDowngrade(rep, []feature.Update{{Feature: wire.FeatureTransactionVersion, Level: 1}}, false)
			b.Check(err)
			return c
		}
		for _, force := range []bool{false, true} {
			res, err := newChange().Execute(b.T.Context(), b.cl, feature.ExecuteOptions{Now: time.Now, Guard: feature.GuardOptions{ForceLiveProducers: force}})
			if e, ok := errors.AsType[*feature.RefusedError](err); !ok || len(e.Pending) != 1 || res.Changed {
				b.T.Errorf("downgrade of transaction.version (forced: %v): %+v, %v, want it refused with a row", force, res, err)
			}
		}
		c := newChange()
		if !c.DrainOptions(feature.GuardOptions{}).AllTransactions || c.DrainOptions(feature.GuardOptions{ForceLiveProducers: true}).AllTransactions {
			b.T.Error("the drain is to wait for all transactions, unless they are to be cut off")
		}
		o := feature.ExecuteOptions{Now: time.Now}
		b.draining(0)(c, &o)
		res, err := c.Execute(b.T.Context(), b.cl, o)
		if err != nil || !res.Changed || res.Drain.Status != drain.StatusDrained {
			b.T.Errorf("downgrade of transaction.version that drains: %+v, %v", res, err)
		}
	})
}
