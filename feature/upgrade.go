package feature

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// EnableTxnAcks names transactional acknowledgement where a feature is asked for
// by what it does and not by number.
const EnableTxnAcks = "txn-acks"

// EnableUpdates returns the levels that enable transactional acknowledgement in
// the dialect of the cluster. It may return *cluster.UnsupportedError, also where
// the dialect is ambiguous, or *RefusedError where brokers do not agree.
func (r *Report) EnableUpdates() ([]Update, error) {
	switch r.support.Verdict {
	case cluster.Usable, cluster.NotEnabled:
		return r.enableUpdates(r.support.Dialect), nil
	case cluster.NotSupported, cluster.Ambiguous:
		return nil, r.support.Unsupported()
	case cluster.Mixed, cluster.Unknown:
	}
	return nil, &RefusedError{
		Op: "enable transactional acknowledgement (KIP-1289)", Reasons: []string{r.support.Reason},
		Advice: r.support.Unsupported().Hint(),
	}
}

// PlanEnable returns what [Report.EnableUpdates] does, also in the midst of a
// rolling upgrade: then in the dialect of the brokers that have one.
func (r *Report) PlanEnable() ([]Update, error) {
	var d wire.Dialect
	for _, b := range r.support.Brokers {
		switch {
		case b.Verdict != cluster.Usable && b.Verdict != cluster.NotEnabled:
		case d.Name == "":
			d = b.Dialect
		case d.Name != b.Dialect.Name:
			return r.EnableUpdates()
		}
	}
	if r.support.Verdict != cluster.Mixed || d.Name == "" {
		return r.EnableUpdates()
	}
	return r.enableUpdates(d), nil
}

// enableUpdates never lowers a level that is higher than what is needed.
func (r *Report) enableUpdates(d wire.Dialect) []Update {
	needs := []Update{
		{wire.FeatureShareVersion, d.ShareVersion},
		{wire.FeatureTransactionVersion, wire.TransactionVersion},
	}
	for i, need := range needs {
		if f, ok := r.Feature(need.Feature); ok && f.Finalized != nil {
			needs[i].Level = max(need.Level, *f.Finalized)
		}
	}
	return needs
}

// NewUpgrade makes a change that raises levels. It is pure. It may return
// *cluster.UnsupportedError for what no broker supports, *RefusedError where a
// broker is silent, does not support the level, or lacks what it needs, and
// *DirectionError for a level that is lower than the one in force; with the
// change, whose items say why.
func NewUpgrade(r *Report, updates []Update) (*Change, error) {
	c, err := newChange(r, Upgrade, updates)
	if err != nil {
		return c, err
	}
	for _, d := range Dependencies() {
		if err := c.checkDependency(d); err != nil {
			return c, err
		}
	}
	return c, nil
}

// checkDependency refuses what the brokers would accept and then not serve.
// What the controller enforces is left to it, and to its words.
func (c *Change) checkDependency(d Dependency) *RefusedError {
	if d.EnforcedBy != "broker" || d.Dialect != c.report.support.Dialect.Name {
		return nil
	}
	before, after := c.level(d.Feature)
	_, have := c.level(d.Needs)
	if after < d.Level || before >= d.Level || have >= d.NeedsMin {
		return nil
	}
	return c.refused(d.Feature, fmt.Sprintf("raise both in one request: 'kshare feature upgrade --enable %s'", EnableTxnAcks),
		fmt.Sprintf("%s=%d needs %s=%d, which is at %d", d.Feature, d.Level, d.Needs, d.NeedsMin, have))
}

// checkHealth refuses to enable transactional acknowledgement while the topics
// that hold its state are not whole: staging would fail from the first moment.
// A topic that does not exist yet is fine. It does nothing for other changes.
func (c *Change) checkHealth(ctx context.Context, cl Cluster) error {
	if !c.enables {
		return nil
	}
	var reasons []string
	for _, name := range []string{stateTopic, "__transaction_state"} {
		topics, err := cl.Topics(ctx, name)
		switch {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			continue
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			reasons = append(reasons, fmt.Sprintf("topic %s cannot be described: %s", name, cluster.Name(err)))
			continue
		}
		for _, p := range topics[name].Partitions {
			if p.Leader < 0 {
				reasons = append(reasons, fmt.Sprintf("partition %s-%d has no leader", name, p.Partition))
			}
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return c.refused("", "bring the brokers back that lead these partitions, or grant DESCRIBE on the topics", slices.Compact(reasons)...)
}
