package inspect

import (
	"context"
	"time"

	"github.com/kshare/kshare/cluster"
)

// CollectOptions says how to collect; the zero value is right for one look.
type CollectOptions struct {
	// Dialect is [cluster.Config]'s: the dialect to assume where ApiVersions is
	// ambiguous; "" assumes none.
	Dialect string
	// Previous is earlier evidence of the same cluster, from which it follows since
	// when something has not moved; nil: there is none.
	Previous *Evidence
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// Collect reads every source that this principal may read. What it could not see
// is in the evidence. It fails only with the error of ctx, or when no broker can
// be reached.
func Collect(ctx context.Context, cl Cluster, opts CollectOptions) (*Evidence, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	ev := &Evidence{Time: opts.Now(), Sweep: defaultSweep}
	d, err := cl.Describe(ctx)
	if err != nil {
		return nil, err
	}
	ev.ClusterID, ev.Support = d.ClusterID, cluster.Detect(d.Brokers, opts.Dialect)
	ev.Gaps, err = ProbeAccess(ctx, cl, d.Brokers)
	if err != nil {
		return nil, err
	}
	txns, gaps, err := ListTransactions(ctx, cl, d.Brokers, TransactionQuery{States: OpenStates(), Describe: true, Now: opts.Now})
	if err != nil {
		return nil, err
	}
	ev.Transactions, ev.Gaps = txns, append(ev.Gaps, gaps...)
	return ev, nil
}

// defaultSweep is Kafka's default of
// transaction.abort.timed.out.transaction.cleanup.interval.ms.
const defaultSweep = 10 * time.Second
