package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
)

// Names in the cluster that the demonstration uses. The topics have to exist,
// with [Orders] in the first.
const (
	SourceTopic      = "orders"
	DestinationTopic = "shipped"

	copyGroup    = "demo-copy"
	pendingGroup = "demo-pending"
	pendingTxn   = "demo-pending-0"
)

const (
	orderCount     = 1000
	paidEvery      = 4
	malformedEvery = 100
	stagedRecords  = 25
)

// Orders returns the records of the source topic, one a line: orderCount
// orders, of which some are paid and some are no JSON.
func Orders() io.Reader {
	var b strings.Builder
	for i := range orderCount {
		switch {
		case i%malformedEvery == malformedEvery/2:
			fmt.Fprintf(&b, "order %d: connection reset\n", i)
		case i%paidEvery == 1:
			fmt.Fprintf(&b, `{"id":%d,"status":"paid"}`+"\n", i)
		default:
			fmt.Fprintf(&b, `{"id":%d,"status":"placed"}`+"\n", i)
		}
	}
	return strings.NewReader(b.String())
}

// Options says where the demonstration is given.
type Options struct {
	BootstrapServers []string
	Dialect          wire.Dialect     // that the cluster speaks
	Started          func(Step)       // is told of each step as it starts; nil is nobody
	Now              func() time.Time // the clock; required
}

// Step is one step and what came of it.
type Step struct {
	Name     string        `json:"name"`
	Title    string        `json:"title"`  // what is done
	Result   string        `json:"result"` // what the cluster said; "" until the step is done
	Duration time.Duration `json:"duration_ms"`
}

// tour is the state that steps hand on.
type tour struct {
	Options
	cl       *cluster.Client
	low      int16 // level before, and after
	consumer *share.Consumer
	session  *txn.Session
}

// Run gives the demonstration. It returns the steps that were done, also when
// the next one failed.
func Run(ctx context.Context, o Options) (done []Step, err error) {
	t := &tour{Options: o, low: o.Dialect.ShareVersion - 1}
	if t.cl, err = cluster.Connect(ctx, cluster.Config{BootstrapServers: o.BootstrapServers}); err != nil {
		return nil, err
	}
	defer t.cl.Close()
	defer func() { err = errors.Join(err, t.leave(ctx)) }()
	for _, s := range []struct {
		name, title string
		run         func(context.Context) (string, error)
	}{
		{"look", fmt.Sprintf("see what share.version %d allows", t.low), t.look},
		{"raise", fmt.Sprintf("raise share.version from %d to %d", t.low, o.Dialect.ShareVersion), t.raise},
		{"copy", "ship the paid orders, each batch in one transaction", t.copy},
		{"stage", "acknowledge records in a transaction and leave it open", t.stage},
		{"inspect", "see what hangs in TX_PENDING, and on whom", t.inspect},
		{"refuse", fmt.Sprintf("try to lower share.version to %d under them", t.low), t.refuse},
		{"drain", "commit, and drain until nothing is left in TX_PENDING for sure", t.drain},
		{"lower", fmt.Sprintf("lower share.version from %d to %d", o.Dialect.ShareVersion, t.low), t.lower},
	} {
		step := Step{Name: s.name, Title: s.title}
		if o.Started != nil {
			o.Started(step)
		}
		started := o.Now()
		if step.Result, err = s.run(ctx); err != nil {
			return done, fmt.Errorf("demo step %q: %w", s.name, err)
		}
		step.Duration = o.Now().Sub(started)
		done = append(done, step)
	}
	return done, nil
}

// leaveTimeout bounds the clean-up after a tour that was cut short.
const leaveTimeout = 5 * time.Second

// leave closes what the steps opened, if it is open.
func (t *tour) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	var err error
	if t.session != nil {
		err = t.session.Close(ctx)
	}
	if t.consumer != nil {
		err = errors.Join(err, t.consumer.Close(ctx))
	}
	t.session, t.consumer = nil, nil
	return err
}

func (t *tour) look(ctx context.Context) (string, error) {
	return t.expect(ctx, cluster.NotEnabled)
}

func (t *tour) raise(ctx context.Context) (string, error) {
	change, err := t.change(ctx, feature.NewUpgrade, t.Dialect.ShareVersion)
	if err != nil {
		return "", err
	}
	if _, err := change.Execute(ctx, t.cl, t.execute()); err != nil {
		return "", err
	}
	return t.expect(ctx, cluster.Usable)
}

// change makes a change of share.version, as the cluster is now.
func (t *tour) change(ctx context.Context, to func(*feature.Report, []feature.Update) (*feature.Change, error), level int16) (*feature.Change, error) {
	rep, err := feature.Describe(ctx, t.cl, feature.DescribeOptions{})
	if err != nil {
		return nil, err
	}
	return to(rep, []feature.Update{{Feature: wire.FeatureShareVersion, Level: level}})
}

func (t *tour) execute() feature.ExecuteOptions {
	return feature.ExecuteOptions{Poll: lookEvery, Now: t.Now}
}

// downgrade tries to lower the level: the guard looks at who would suffer.
func (t *tour) downgrade(ctx context.Context) error {
	change, err := t.change(ctx, safeDowngrade, t.low)
	if err != nil {
		return err
	}
	_, err = change.Execute(ctx, t.cl, t.execute())
	return err
}

func safeDowngrade(r *feature.Report, u []feature.Update) (*feature.Change, error) {
	return feature.NewDowngrade(r, u, false)
}

func (t *tour) lower(ctx context.Context) (string, error) {
	if err := t.downgrade(ctx); err != nil {
		return "", err
	}
	return t.expect(ctx, cluster.NotEnabled)
}

// expect asks every broker whether TxnShareAcknowledge may be sent.
func (t *tour) expect(ctx context.Context, want cluster.Verdict) (string, error) {
	s, err := t.cl.TxnShareAcknowledgeSupport(ctx)
	if err != nil {
		return "", err
	}
	if s.Verdict != want {
		return "", fmt.Errorf("transactional acknowledgements are %s (%s), want %s", s.Verdict, s.Reason, want)
	}
	return fmt.Sprintf("%d brokers: transactional acknowledgements are %s: %s", len(s.Brokers), s.Verdict, s.Reason), nil
}

func (t *tour) copy(ctx context.Context) (string, error) {
	transform, err := ctp.JQ(`select(.status == "paid") | .status = "shipped"`)
	if err != nil {
		return "", err
	}
	res, err := ctp.Run(ctx, t.cl, ctp.Options{
		From: SourceTopic, To: DestinationTopic, GroupID: copyGroup,
		Transform: transform, OnError: ctp.Reject,
		UntilEmpty: true, AutoOffsetReset: "earliest", Now: t.Now,
	})
	if err != nil {
		return "", err
	}
	transactions := "transactions"
	if res.Committed == 1 {
		transactions = "transaction"
	}
	return fmt.Sprintf("%d consumed, %d produced, %d rejected, in %d %s, %d aborted", res.Consumed, res.Produced, res.Rejected, res.Committed, transactions, res.Aborted), nil
}

// stage leaves a transaction open whose records are all in one group of their
// own: the copy has acknowledged the others.
func (t *tour) stage(ctx context.Context) (_ string, err error) {
	if err := t.cl.SetGroupConfig(ctx, pendingGroup, "share.auto.offset.reset", "earliest"); err != nil {
		return "", err
	}
	if t.session, err = txn.NewSession(ctx, t.cl, txn.Config{TransactionalID: pendingTxn, Now: t.Now}); err != nil {
		return "", err
	}
	if t.consumer, err = share.NewConsumer(ctx, t.cl, share.Config{
		GroupID: pendingGroup, Topics: []string{SourceTopic}, MaxRecords: stagedRecords, Now: t.Now,
	}); err != nil {
		return "", err
	}
	batch, err := t.consumer.Poll(ctx, stagedRecords)
	if err != nil {
		return "", err
	}
	if err := t.session.Begin(ctx); err != nil {
		return "", err
	}
	err = t.session.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{
		Acknowledgements: batch.All(wire.Accept),
		Group:            t.consumer.GroupMetadata(),
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d records of share group %q staged in transaction %q", t.session.Staged(), pendingGroup, pendingTxn), nil
}

// inspect looks at what is pending, as "kshare inspect pending" does.
func (t *tour) inspect(ctx context.Context) (string, error) {
	ev, err := t.observer().Observe(ctx, nil)
	if err != nil {
		return "", err
	}
	rep := inspect.NewPendingReport(ev.Evidence, inspect.Filter{Groups: []string{pendingGroup}})
	if rep.Status != inspect.StatusPending || rep.Records != t.session.Staged() {
		return "", fmt.Errorf("pending: %s (%s), want the %d records that were staged", rep.Status, rep.Reason, t.session.Staged())
	}
	for _, r := range rep.Rows {
		if r.Verdict != inspect.VerdictExact || r.TransactionalID == nil || *r.TransactionalID != pendingTxn {
			return "", fmt.Errorf("a row is %s: %s; want all to belong to transaction %q", r.Verdict, strings.Join(r.Evidence, "; "), pendingTxn)
		}
	}
	r := rep.Rows[0]
	return fmt.Sprintf("%d records in TX_PENDING; transaction %q is %s with producer ID %d, epoch %d; it %s",
		rep.Records, pendingTxn, *r.TransactionState, *r.ProducerID, *r.ProducerEpoch, r.Advice), nil
}

// observer is what a drain looks with.
func (t *tour) observer() *drain.ClusterObserver {
	return &drain.ClusterObserver{Cluster: t.cl, Now: t.Now}
}

// refuse tries to lower the level while records are pending.
func (t *tour) refuse(ctx context.Context) (string, error) {
	err := t.downgrade(ctx)
	refused, ok := errors.AsType[*feature.RefusedError](err)
	if !ok {
		return "", fmt.Errorf("the level was to stay where it is while records are pending, and the answer was: %w", cmp.Or(err, errLowered))
	}
	if _, err := t.expect(ctx, cluster.Usable); err != nil {
		return "", err
	}
	return refused.Error(), nil
}

var errLowered = errors.New("lowered")

// The pace of the tour. The quiet period is short, as nobody else is on the
// sandbox; how long it has to be elsewhere is said by [drain.Options].
const (
	lookEvery   = 50 * time.Millisecond
	quietPeriod = 200 * time.Millisecond
)

// drain begins while the records are pending. The application, which knows
// nothing of it, commits while it waits.
func (t *tour) drain(ctx context.Context) (string, error) {
	observer, clock := t.observer(), drain.NewClock(t.Now)
	first, err := observer.Observe(ctx, nil)
	if err != nil {
		return "", err
	}
	plan, err := drain.NewPlan(first.Evidence, drain.Options{Interval: lookEvery, QuietPeriod: quietPeriod}, t.Now())
	if err != nil {
		return "", err
	}
	staged, waiting := t.session.Staged(), false
	waitCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	res, err := plan.Execute(waitCtx, drain.Execution{
		Observer: observer, Actor: &drain.ClusterActor{Cluster: t.cl, Clock: clock}, Clock: clock,
		Progress: func(p drain.Progress) {
			if waiting || p.Records != staged {
				return
			}
			waiting = true
			if err := t.session.Commit(ctx, txn.Guard{}); err != nil {
				stop(err) // there is nothing to wait for
			}
		},
	})
	if err != nil {
		return "", err
	}
	if !waiting {
		return "", fmt.Errorf("the drain met nothing: %s", res.Reason)
	}
	state, err := t.state(ctx)
	if err != nil {
		return "", err
	}
	if err := t.leave(ctx); err != nil {
		return "", fmt.Errorf("leave share group %q: %w", pendingGroup, err)
	}
	return fmt.Sprintf("%d records acknowledged: transaction %q is %s; %s: %s", staged, pendingTxn, state, res.Status, res.Reason), nil
}

// state returns where the transaction of the tour stands, which has to be
// committed.
func (t *tour) state(ctx context.Context) (string, error) {
	rep, err := inspect.DescribeTransactions(ctx, t.cl, inspect.TxnOptions{TransactionalIDs: []string{pendingTxn}, Now: t.Now})
	if err != nil {
		return "", err
	}
	if len(rep.Rows) != 1 || rep.Rows[0].State != "CompleteCommit" {
		return "", fmt.Errorf("transaction %q is not committed: %+v", pendingTxn, rep.Rows)
	}
	return rep.Rows[0].State, nil
}
