package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
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
		{"drain", "commit, and wait until nothing is left in TX_PENDING", t.drain},
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
	if err := t.setShareVersion(ctx, t.Dialect.ShareVersion); err != nil {
		return "", err
	}
	return t.expect(ctx, cluster.Usable)
}

func (t *tour) lower(ctx context.Context) (string, error) {
	if err := t.setShareVersion(ctx, t.low); err != nil {
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
	return fmt.Sprintf("%d consumed, %d produced, %d rejected, in %d transactions, %d aborted", res.Consumed, res.Produced, res.Rejected, res.Committed, res.Aborted), nil
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

// inspect asks the share coordinator for the state of the records and the
// transaction coordinator for the transaction, as any operator could.
func (t *tour) inspect(ctx context.Context) (string, error) {
	pending, err := t.pending(ctx)
	if err != nil {
		return "", err
	}
	if pending != t.session.Staged() {
		return "", fmt.Errorf("%d records are in TX_PENDING, want the %d that were staged", pending, t.session.Staged())
	}
	tx, err := t.describe(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d records in TX_PENDING; transaction %q is %s with producer ID %d, epoch %d, on %s",
		pending, tx.TransactionalID, tx.State, tx.ProducerID, tx.ProducerEpoch, topicsOf(tx)), nil
}

func (t *tour) drain(ctx context.Context) (string, error) {
	staged := t.session.Staged()
	if err := t.session.Commit(ctx, txn.Guard{}); err != nil {
		return "", err
	}
	looks, err := t.awaitDrained(ctx)
	if err != nil {
		return "", err
	}
	tx, err := t.describe(ctx)
	if err != nil {
		return "", err
	}
	if err := t.leave(ctx); err != nil {
		return "", fmt.Errorf("leave share group %q: %w", pendingGroup, err)
	}
	return fmt.Sprintf("%d records acknowledged, none in TX_PENDING after %d looks; transaction %q is %s", staged, looks, tx.TransactionalID, tx.State), nil
}

// lookEvery is between two looks at what is pending.
const lookEvery = 20 * time.Millisecond

// awaitDrained looks until nothing is pending: the end of a transaction is
// confirmed before its markers are written.
func (t *tour) awaitDrained(ctx context.Context) (looks int, err error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		pending, err := t.pending(ctx)
		looks++
		if err != nil || pending == 0 {
			return looks, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return looks, fmt.Errorf("%d records are still in TX_PENDING: %w", pending, context.Cause(ctx))
		}
	}
}
