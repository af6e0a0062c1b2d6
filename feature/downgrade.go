package feature

import (
	"context"
	"fmt"
	"strings"

	"github.com/kshare/kshare/cluster"
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
}

// NeedsTransactions reports whether the change is safe only where no
// transaction is open that would suffer, so that [Change.Guard] has to look.
func (c *Change) NeedsTransactions() bool { return c.Needed() && (c.losesTxnAcks || c.cutsProducers) }

// Guard refuses a downgrade that open transactions would suffer from: those that
// hold share acknowledgements, when transactional acknowledgement goes away with
// the level, and all, when transaction.version is lowered. Released controllers
// check neither. It is pure. It may return *RefusedError, also where it is not
// known what is open.
func (c *Change) Guard(open *OpenTransactions, o GuardOptions) error {
	if !c.NeedsTransactions() {
		return nil
	}
	culprit := wire.FeatureShareVersion
	if c.cutsProducers {
		culprit = wire.FeatureTransactionVersion
	}
	if c.losesTxnAcks {
		if held := open.HoldingShareAcks(); len(held) > 0 {
			return c.stopped(culprit, held, "wait until they have ended, at the latest after their timeout; records that are staged in them would be stuck",
				"%s share acknowledgements: %s", count(len(held), "open transaction holds or may hold", "open transactions hold or may hold"), ids(held))
		}
	}
	if c.cutsProducers && !o.ForceLiveProducers && len(open.Transactions) > 0 {
		return c.stopped(culprit, open.Transactions, "stop these producers first, or accept that they end with a fatal error: --force-live-producers",
			"%s: %s", count(len(open.Transactions), "producer has an open transaction", "producers have open transactions"), ids(open.Transactions))
	}
	if len(open.Unknown) > 0 && (c.losesTxnAcks || !o.ForceLiveProducers) {
		err := c.refused(culprit, open.Advice, "it is not known which transactions are open, and unknown is not zero: "+strings.Join(open.Unknown, "; "))
		err.Transactions = open.Transactions
		return err
	}
	return nil
}

func (c *Change) stopped(culprit string, by []Transaction, advice, format string, args ...any) error {
	err := c.refused(culprit, advice, fmt.Sprintf(format, args...))
	err.Transactions = by
	return err
}

// left returns the transactions that the change has stranded after all: those
// that were begun between the last look and the change.
func (c *Change) left(open *OpenTransactions, o GuardOptions) []Transaction {
	switch {
	case c.cutsProducers && !o.ForceLiveProducers:
		return open.Transactions
	case c.losesTxnAcks:
		return open.HoldingShareAcks()
	}
	return nil
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
	parts := make([]string, 0, maxNamed+1)
	for i, t := range ts {
		if i == maxNamed {
			parts = append(parts, fmt.Sprintf("and %d more", len(ts)-maxNamed))
			break
		}
		parts = append(parts, fmt.Sprintf("%q (%s)", t.TransactionalID, t.State))
	}
	return strings.Join(parts, ", ")
}

// look lists the open transactions if the change needs them.
func (c *Change) look(ctx context.Context, cl Cluster) (*OpenTransactions, error) {
	if !c.NeedsTransactions() {
		return &OpenTransactions{}, nil
	}
	return ListOpen(ctx, cl, c.report)
}

// Check reads the open transactions, if the change needs to know them, and
// applies [Change.Guard].
func (c *Change) Check(ctx context.Context, cl Cluster, o GuardOptions) (*OpenTransactions, error) {
	if c.Direction == Upgrade {
		return &OpenTransactions{}, c.CheckHealth(ctx, cl)
	}
	open, err := c.look(ctx, cl)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Op(), err)
	}
	return open, c.Guard(open, o)
}

// gone says what is still there of transactional acknowledgement on a broker
// after its level was lowered; "" if nothing.
func gone(b cluster.BrokerVersions, d wire.Dialect) string {
	if _, ok := b.Keys[d.Key]; ok && !d.AlwaysAdvertised {
		return fmt.Sprintf("broker %d still advertises TxnShareAcknowledge (api key %d)", b.NodeID, d.Key)
	}
	return ""
}
