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

// ProbeTransactions finds out what of transactions is hidden from this principal.
// A broker leaves out what may not be described, without a word, so that an empty
// list proves nothing. But it checks access first: what nobody has is asked for,
// by a name that no narrower permission covers, and the error tells whether all of
// its kind may be described. Each permission that is missing is one gap:
//
//   - DESCRIBE on all transactional IDs (DescribeTransactions)
//   - DESCRIBE on __share_group_state (Metadata), without which it is hidden which
//     transactions hold share acknowledgements
//
// A partition of __transaction_state without leader is a gap too: nobody lists
// the transactions in it.
//
// The error is that of ctx. [ListShareGroups] probes what it needs by itself.
func ProbeTransactions(ctx context.Context, cl Cluster, brokers []cluster.BrokerVersions) ([]Gap, error) {
	p := prober{cl: cl, brokers: brokers}
	p.transactionalIDs(ctx)
	p.stateTopic(ctx)
	p.transactionTopic(ctx)
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
// comes before that of who coordinates. Where none serves it, there is nothing to
// be hidden.
func (p *prober) probe(ctx context.Context, source Source, what string, req kmsg.Request, code func(kmsg.Response) (int16, bool), denied *kerr.Error, gap Gap) {
	var err error
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
	if err != nil {
		p.gaps.add(ErrorGap(source, "it could not be found out whether "+what, err))
	}
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

// stateTopic returns the topic __share_group_state; nil where there is none, or
// none to see.
func (p *prober) stateTopic(ctx context.Context) *cluster.Topic {
	topics, err := p.cl.Topics(ctx, stateTopic)
	switch {
	case err == nil:
		return new(topics[stateTopic])
	case !errors.Is(err, kerr.UnknownTopicOrPartition): // without the topic no share group was ever used
		p.gaps.add(stateTopicGap(err))
	}
	return nil
}

// transactionTopic looks for partitions without leader. Where the topic may not
// be described, which nothing else needs, that cannot be known.
func (p *prober) transactionTopic(ctx context.Context) {
	topics, err := p.cl.Topics(ctx, transactionTopic)
	if err != nil {
		return
	}
	var headless []int32
	for _, part := range topics[transactionTopic].Partitions {
		if part.Leader < 0 {
			headless = append(headless, part.Partition)
		}
	}
	if len(headless) > 0 {
		p.gaps.add(Gap{
			Source: SourceListTransactions,
			Reason: fmt.Sprintf("%s no leader, %s-%d first, so nobody lists the transactions in there",
				plural(len(headless), "partition of "+transactionTopic+" has", "partitions of "+transactionTopic+" have"), transactionTopic, headless[0]),
			Advice: "start the brokers that have a replica of it",
		})
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

// groups describes a group that nobody has.
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

// topics describes a topic that nobody has. source is what leaves out topics that
// may not be described, and hidden says what of it is missing then.
func (p *prober) topics(ctx context.Context, source Source, hidden string) {
	_, err := p.cl.Topics(ctx, nobody())
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		p.gaps.add(aclGap(source, aclTopics, kerr.TopicAuthorizationFailed, "topics may be hidden from it, and "+hidden))
	case err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition):
		p.gaps.add(Gap{
			Source: SourceMetadata, KafkaError: kafkaError(err),
			Reason: "it could not be found out whether topics are hidden: " + cluster.Name(err),
		})
	}
}
