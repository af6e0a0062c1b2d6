package feature

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
)

// stateTopic holds the state of share-partitions (KIP-932).
const stateTopic = "__share_group_state"

// Cluster is what this package needs of a connection; *cluster.Client is one.
type Cluster = inspect.Cluster

// Transaction is a transaction that is open: begun and not ended, or ended and
// its markers not all written (PrepareCommit, PrepareAbort).
type Transaction struct {
	TransactionalID string     `json:"transactional_id"`
	State           string     `json:"state"`
	ProducerID      int64      `json:"producer_id"`
	Coordinator     int32      `json:"coordinator"`
	Started         *time.Time `json:"started"`    // nil when the coordinator does not say
	TimeoutMS       *int32     `json:"timeout_ms"` // nil when it does not say
	// HoldsShareAcks says whether share acknowledgements may be staged in it;
	// nil when it is not known.
	HoldsShareAcks *bool `json:"holds_share_acknowledgements"`
}

func newTransaction(t inspect.Transaction) Transaction {
	out := Transaction{TransactionalID: t.TransactionalID, State: t.State, ProducerID: t.ProducerID, Coordinator: t.Coordinator}
	if !t.Started.IsZero() {
		out.Started = new(t.Started.UTC())
	}
	if t.TimeoutMS >= 0 {
		out.TimeoutMS = new(t.TimeoutMS)
	}
	if parts, known := t.StatePartitions(); known {
		out.HoldsShareAcks = new(len(parts) > 0)
	}
	return out
}

// openOf returns the transactions of evidence that pass keep.
func openOf(ev *inspect.Evidence, keep func(inspect.Transaction) bool) []Transaction {
	var out []Transaction
	for _, t := range ev.Transactions {
		if t.Open() && keep(t) {
			out = append(out, newTransaction(t))
		}
	}
	return out
}

// Observer returns what looks at who would suffer from the change. Where
// transactional acknowledgement goes away with it, that is everybody who holds
// pending records; where transaction.version alone is lowered, the transactions.
// now is the clock of this machine; nil is time.Now.
func (c *Change) Observer(cl Cluster, dialect string, now func() time.Time) drain.Observer {
	if now == nil {
		now = time.Now
	}
	o := &drain.ClusterObserver{Cluster: cl, Dialect: dialect, Now: now}
	if c.losesTxnAcks {
		return o
	}
	return &transactionObserver{o}
}

// transactionObserver looks at transactions alone: to lower transaction.version
// nobody has to be allowed to read the state of share groups.
type transactionObserver struct{ *drain.ClusterObserver }

// Observe lists the open transactions.
func (o *transactionObserver) Observe(ctx context.Context, watch []string) (drain.Observation, error) {
	ev := &inspect.Evidence{Time: o.Now(), Sweep: defaultSweep}
	d, err := o.Cluster.Describe(ctx)
	if err != nil {
		return drain.Observation{}, err
	}
	ev.ClusterID, ev.Support = d.ClusterID, cluster.Detect(d.Brokers, o.Dialect)
	gaps, err := inspect.ProbeTransactions(ctx, o.Cluster, d.Brokers)
	if err != nil {
		return drain.Observation{}, err
	}
	// Which of them hold share acknowledgements does not matter here.
	ev.Gaps = slices.DeleteFunc(gaps, func(g inspect.Gap) bool { return g.ACL != nil && g.ACL.ResourceType == "TOPIC" })
	open, gaps, err := inspect.ListTransactions(ctx, o.Cluster, d.Brokers, inspect.TransactionQuery{States: inspect.OpenStates(), Describe: true, Now: o.Now})
	if err != nil {
		return drain.Observation{}, err
	}
	producers, untold := o.Watch(ctx, watch)
	ev.Transactions, ev.Gaps = open, slices.Concat(ev.Gaps, gaps, untold)
	return drain.Observation{Evidence: ev, Producers: producers}, nil
}

// defaultSweep is Kafka's default of
// transaction.abort.timed.out.transaction.cleanup.interval.ms.
const defaultSweep = 10 * time.Second

// look looks at who would suffer from the change, if anybody could.
func (c *Change) look(ctx context.Context, cl Cluster, o ExecuteOptions) (*inspect.Evidence, error) {
	if !c.NeedsTransactions() {
		return nil, nil //nolint:nilnil // nothing has to be known
	}
	obs := o.Observer
	if obs == nil {
		obs = c.Observer(cl, o.Dialect, o.Now)
	}
	seen, err := obs.Observe(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: look at transactions: %w", c.Op(), err)
	}
	return seen.Evidence, nil
}

// DrainOptions returns what a drain has to wait for, so that nobody suffers from
// the change: all that is pending, and where transaction.version is lowered every
// open transaction.
func (c *Change) DrainOptions(o GuardOptions) drain.Options {
	// What a leader has left in memory without a transaction is there with any
	// level, so it does not matter here.
	return drain.Options{AllTransactions: c.cutsProducers && !o.ForceLiveProducers, AcceptMemory: true}
}

// usage is who would suffer from a change.
type usage struct {
	rows    []inspect.PendingRow
	holders []drain.Step  // that hold share acknowledgements, or may
	open    []Transaction // in the way, also without
	unknown []string      // why there may be more, a sentence each
	advice  string        // what to do about the first of unknown
}

// inTheWay finds who would suffer from the change. Evidence that is nil knows of
// nobody.
func (c *Change) inTheWay(ev *inspect.Evidence, o GuardOptions) usage {
	var u usage
	if ev == nil {
		return u
	}
	rep := inspect.NewPendingReport(ev, inspect.Filter{})
	for _, g := range rep.Gaps {
		if u.unknown = append(u.unknown, g.Reason); u.advice == "" {
			u.advice = g.Advice
		}
	}
	if c.losesTxnAcks {
		u.rows = rep.Rows
		u.holders = drain.Holders(ev, rep)
		if o.WillDrain {
			u.holders = slices.DeleteFunc(u.holders, func(s drain.Step) bool { return s.Action == drain.ActionWait })
		}
	}
	switch {
	case c.cutsProducers && !o.ForceLiveProducers:
		u.open = openOf(ev, func(t inspect.Transaction) bool { return !o.WillDrain || t.TwoPhase() })
	case c.losesTxnAcks:
		u.open = openOf(ev, func(t inspect.Transaction) bool {
			return slices.ContainsFunc(u.holders, func(s drain.Step) bool {
				return s.TransactionalID != nil && *s.TransactionalID == t.TransactionalID
			})
		})
	}
	return u
}

// Affected returns the open transactions that the change would end badly for,
// whether or not that was accepted.
func (c *Change) Affected(ev *inspect.Evidence) []Transaction {
	return c.inTheWay(ev, GuardOptions{}).open
}

// orphaned splits holders: those with an open transaction, and the others, which
// nothing will end.
func orphaned(holders []drain.Step) (open, orphans []drain.Step) {
	for _, s := range holders {
		if s.Verdict == inspect.VerdictOrphan {
			orphans = append(orphans, s)
		} else {
			open = append(open, s)
		}
	}
	return open, orphans
}

// holderNames names holders in a sentence.
func holderNames(holders []drain.Step) string {
	names := make([]string, 0, len(holders))
	for _, s := range holders {
		name := s.Name()
		if s.TransactionState != nil {
			name += " (" + *s.TransactionState + ")"
		}
		names = append(names, name)
	}
	return list(names)
}

// LiveGroups says, a sentence each, which share groups have members that the
// change cuts off, and whether there may be more. It is for people: who switches
// share groups off knows that they stop, and nothing is lost by it. It may return
// the error of ctx or *cluster.DialError.
func (c *Change) LiveGroups(ctx context.Context, cl Cluster) ([]string, error) {
	if !c.stopsGroups || !c.Needed() {
		return nil, nil
	}
	groups, gaps, err := inspect.ListShareGroups(ctx, cl, c.report.versions, inspect.GroupQuery{Members: true})
	if err != nil {
		return nil, fmt.Errorf("%s: look for share groups: %w", c.Op(), err)
	}
	var out []string
	for _, g := range groups {
		if n := len(g.Members); n > 0 {
			out = append(out, fmt.Sprintf("share group %q has %s", g.GroupID, count(n, "member, which stops working", "members, which stop working")))
		}
	}
	if more := len(out) - maxNamed; more > 0 {
		out = append(out[:maxNamed], fmt.Sprintf("and so have %d more share groups", more))
	}
	for _, g := range gaps {
		out = append(out, "share groups may have members that could not be seen: "+g.Reason)
	}
	return out, nil
}
