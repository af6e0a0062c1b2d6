package feature

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/wire"
)

// NewDowngrade makes a change that lowers levels. It is pure, and returns what
// [NewUpgrade] does. unsafe asks the controller for an unsafe downgrade, which
// may lose metadata, and which most controllers refuse as well.
func NewDowngrade(r *Report, updates []Update, unsafe bool) (*Change, error) {
	c, err := newChange(r, Downgrade, updates)
	c.Unsafe = unsafe
	return c, err
}

// GuardOptions loosen the guard of a downgrade.
type GuardOptions struct {
	// ForceLiveProducers lets transaction.version be lowered under producers
	// with open transactions. It is no leave to strand share acknowledgements.
	ForceLiveProducers bool
	// WillDrain passes over what ends by itself: a drain is to wait for it first.
	WillDrain bool
}

// NeedsTransactions reports whether the change is safe only where no
// transaction is open that would suffer, so that [Change.Guard] has to look.
func (c *Change) NeedsTransactions() bool { return c.Needed() && (c.losesTxnAcks || c.cutsProducers) }

// Guard refuses a downgrade that somebody would suffer from: who holds share
// acknowledgements, when transactional acknowledgement goes away with the level,
// and who has any transaction open, when transaction.version is lowered. Released
// controllers check neither. It is pure; ev may be nil where
// [Change.NeedsTransactions] is false. It may return *RefusedError, also where it
// is not known what is open.
func (c *Change) Guard(ev *inspect.Evidence, o GuardOptions) error {
	if !c.NeedsTransactions() {
		return nil
	}
	culprit := wire.FeatureShareVersion
	if c.cutsProducers {
		culprit = wire.FeatureTransactionVersion
	}
	u := c.inTheWay(ev, o)
	if len(u.holders) > 0 {
		return c.stopped(culprit, u, c.heldAdvice(u), heldReasons(u)...)
	}
	if c.cutsProducers && len(u.open) > 0 {
		return c.stopped(culprit, u, "stop these producers first (--drain then waits until their transactions have ended), or accept that they end with a fatal error: --force-live-producers",
			fmt.Sprintf("%s: %s", count(len(u.open), "producer has an open transaction", "producers have open transactions"), ids(u.open)))
	}
	if ev == nil || len(u.unknown) > 0 && (c.losesTxnAcks || !o.ForceLiveProducers) {
		if ev == nil {
			u.unknown = []string{"nobody has looked"}
		}
		return c.stopped(culprit, u, u.advice, "it is not known which transactions are open, and unknown is not zero: "+strings.Join(u.unknown, "; "))
	}
	return nil
}

// heldReasons says who holds share acknowledgements.
func heldReasons(u usage) []string {
	open, orphans := orphaned(u.holders)
	var out []string
	if len(open) > 0 {
		out = append(out, fmt.Sprintf("%s share acknowledgements: %s", count(len(open), "open transaction holds or may hold", "open transactions hold or may hold"), holderNames(open)))
	}
	if len(orphans) > 0 {
		out = append(out, fmt.Sprintf("%s TX_PENDING, and no transaction will end that: %s", count(len(orphans), "producer has left records in", "producers have left records in"), holderNames(orphans)))
	}
	return out
}

func (c *Change) heldAdvice(u usage) string {
	if _, orphans := orphaned(u.holders); len(orphans) > 0 {
		return "end them first: kshare drain --abort-hanging; see kshare inspect pending"
	}
	return "wait until they have ended (--drain does), at the latest after their timeout; records that are staged in them would be stuck"
}

func (c *Change) stopped(culprit string, u usage, advice string, reasons ...string) *RefusedError {
	err := c.refused(culprit, advice, reasons...)
	err.Transactions, err.Pending = u.open, u.rows
	return err
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// maxNamed is how many transactions a sentence names. The result has them all.
const maxNamed = 10

func ids(ts []Transaction) string {
	names := make([]string, 0, len(ts))
	for _, t := range ts {
		names = append(names, fmt.Sprintf("%q (%s)", t.TransactionalID, t.State))
	}
	return list(names)
}

// list joins names, the first ones if they are many.
func list(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		names = append(slices.Clone(names[:maxNamed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// Check looks at who would suffer from the change, if that matters to it, and
// applies [Change.Guard]. The evidence is nil where nobody could. An upgrade is
// checked by checkHealth.
func (c *Change) Check(ctx context.Context, cl Cluster, o ExecuteOptions) (*inspect.Evidence, error) {
	if c.Direction == Upgrade {
		return nil, c.checkHealth(ctx, cl)
	}
	ev, err := c.look(ctx, cl, o)
	if err != nil {
		return nil, err
	}
	return ev, c.Guard(ev, o.Guard)
}

// gone says what is still there of transactional acknowledgement on a broker
// after its level was lowered; "" if nothing.
func gone(b cluster.BrokerVersions, d wire.Dialect) string {
	if _, ok := b.Keys[d.Key]; ok && !d.AlwaysAdvertised {
		return fmt.Sprintf("broker %d still advertises TxnShareAcknowledge (api key %d)", b.NodeID, d.Key)
	}
	return ""
}
