package inspect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ProbeAccess finds out what is hidden from this principal. A broker leaves out
// what may not be described, without a word, so that an empty list proves
// nothing. But it checks access first: what nobody has is asked for, by a name
// that no narrower permission covers, and the error tells whether all of its kind
// may be described. Each permission that is missing is one gap:
//
//   - DESCRIBE on all transactional IDs (DescribeTransactions)
//   - DESCRIBE on all groups (ShareGroupDescribe)
//   - DESCRIBE on __share_group_state (Metadata)
//   - CLUSTER_ACTION (ReadShareGroupStateSummary)
//
// The error is that of ctx.
func ProbeAccess(ctx context.Context, cl Cluster, brokers []cluster.BrokerVersions) ([]Gap, error) {
	p := prober{cl: cl, brokers: brokers}
	each([]func(context.Context){p.transactionalIDs, p.groups, p.stateTopic, p.clusterAction}, inFlight, func(probe func(context.Context)) { probe(ctx) })
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return p.gaps.sorted(), nil
}

type prober struct {
	cl      Cluster
	brokers []cluster.BrokerVersions
	gaps    gapList
}

// nobody is a name that nothing has.
func nobody() string { return "kshare-probe-" + rand.Text() }

// probe sends a request to the first broker that serves and answers it; code
// returns the error code of the answer. Any broker will do: the check of access
// comes before that of who coordinates.
func (p *prober) probe(ctx context.Context, source Source, what string, req kmsg.Request, code func(kmsg.Response) (int16, bool), denied *kerr.Error, gap Gap) {
	err := fmt.Errorf("no broker serves %s", kmsg.NameForKey(req.Key()))
	for _, b := range p.brokers {
		if _, ok := b.Keys[req.Key()]; !ok || b.Err != nil {
			continue
		}
		var resp kmsg.Response
		if resp, err = ask[kmsg.Response](ctx, p.cl, b.NodeID, req); err != nil {
			continue
		}
		c, ok := code(resp)
		switch {
		case !ok:
			err = fmt.Errorf("broker %d gave no answer", b.NodeID)
			continue
		case c == denied.Code:
			p.gaps.add(gap)
		}
		return
	}
	g := Gap{Source: source, Reason: fmt.Sprintf("it could not be found out whether %s: %s", what, cluster.Name(err))}
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		g.KafkaError = ke.Message
	}
	p.gaps.add(g)
}

func (p *prober) transactionalIDs(ctx context.Context) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{nobody()}
	p.probe(ctx, SourceDescribeTransactions, "transactions are hidden", req, func(resp kmsg.Response) (int16, bool) {
		for _, s := range resp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
			return s.ErrorCode, true
		}
		return 0, false
	}, kerr.TransactionalIDAuthorizationFailed, aclGap(SourceDescribeTransactions, aclTransactionalIDs, kerr.TransactionalIDAuthorizationFailed,
		"open transactions may be hidden from it"))
}

func (p *prober) groups(ctx context.Context) {
	req := kmsg.NewPtrShareGroupDescribeRequest()
	req.GroupIDs = []string{nobody()}
	p.probe(ctx, SourceShareGroupDescribe, "share groups are hidden", req, func(resp kmsg.Response) (int16, bool) {
		for _, g := range resp.(*kmsg.ShareGroupDescribeResponse).Groups {
			return g.ErrorCode, true
		}
		return 0, false
	}, kerr.GroupAuthorizationFailed, aclGap(SourceShareGroupDescribe, aclGroups, kerr.GroupAuthorizationFailed,
		"share groups may be hidden from it"))
}

func (p *prober) stateTopic(ctx context.Context) {
	_, err := p.cl.Topics(ctx, stateTopic)
	if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
		p.gaps.add(stateTopicGap(err))
	}
}

func (p *prober) clusterAction(ctx context.Context) {
	req := kmsg.NewPtrReadShareGroupStateSummaryRequest()
	req.GroupID = nobody()
	t := kmsg.NewReadShareGroupStateSummaryRequestTopic()
	if _, err := rand.Read(t.TopicID[:]); err != nil {
		return // never: crypto/rand does not fail
	}
	part := kmsg.NewReadShareGroupStateSummaryRequestTopicPartition()
	part.LeaderEpoch = -1
	t.Partitions = append(t.Partitions, part)
	req.Topics = append(req.Topics, t)
	p.probe(ctx, SourceShareGroupState, "the state of share-partitions may be read", req, func(resp kmsg.Response) (int16, bool) {
		for _, t := range resp.(*kmsg.ReadShareGroupStateSummaryResponse).Topics {
			for _, p := range t.Partitions {
				return p.ErrorCode, true
			}
		}
		return 0, false
	}, kerr.ClusterAuthorizationFailed, clusterActionGap())
}
