package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// need is an ACL, and what it is needed for.
type need struct {
	op   kmsg.ACLOperation
	uses string // the commands, for people
}

// What kshare's commands need, by the requests that they send (Kafka 4.4's
// KafkaApis and ControllerApis; for TxnShareAcknowledge the drafts of KIP-1289).
// On a cluster without an authorizer everything is there.

func clusterNeeds() []need {
	return []need{
		{kmsg.ACLOperationDescribe, "list the groups of others: inspect, drain"},
		{kmsg.ACLOperationAlter, "change feature levels: feature upgrade, feature downgrade; write end markers: txn abort, drain --abort-hanging"},
		{kmsg.ACLOperationClusterAction, "read the state of share-partitions: inspect pending, inspect partition, drain"},
		{kmsg.ACLOperationDescribeConfigs, "read brokers' settings: ctp, inspect group"},
	}
}

func topicNeeds(name string) []need {
	if name == shareStateTopic {
		return []need{
			{kmsg.ACLOperationDescribe, "see which transactions hold share acknowledgements: inspect, drain, feature downgrade"},
			{kmsg.ACLOperationRead, "read the history of state: inspect"},
		}
	}
	return []need{
		{kmsg.ACLOperationDescribe, "see the topic: inspect, ctp"},
		{kmsg.ACLOperationRead, "consume from it: ctp --from; see its open transactions: inspect txn"},
		{kmsg.ACLOperationWrite, "produce to it: ctp --to"},
	}
}

func groupNeeds() []need {
	return []need{
		{kmsg.ACLOperationDescribe, "see members and offsets: inspect"},
		{kmsg.ACLOperationRead, "consume and acknowledge: ctp, ack"},
		{kmsg.ACLOperationDescribeConfigs, "read its settings: inspect group"},
		{kmsg.ACLOperationAlterConfigs, "change its settings: ctp --auto-offset-reset, --isolation-level"},
	}
}

// notTold is what brokers answer where they do not say which operations are
// authorized.
const notTold = math.MinInt32

// access finds out which ACLs are there.
func (r *Report) access(ctx context.Context, cl *cluster.Client, o Options) {
	r.clusterAccess(ctx, cl)
	for _, topic := range append([]string{shareStateTopic}, o.Topics...) {
		r.topicAccess(ctx, cl, topic)
	}
	for _, group := range o.Groups {
		r.groupAccess(ctx, cl, group)
	}
	r.transactionAccess(ctx, cl)
	for _, id := range o.TransactionalIDs {
		r.transactionalIDAccess(ctx, cl, id)
	}
}

func (r *Report) clusterAccess(ctx context.Context, cl *cluster.Client) {
	const resource = "cluster"
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeClusterAuthorizedOperations = true
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		r.unknownAccess(resource, err)
		return
	}
	ops := resp.ClusterAuthorizedOperations
	if ops == 0 {
		// Without DESCRIBE the others are not told.
		ops = notTold
		r.grant(resource, clusterNeeds()[0], false)
	} else {
		r.grants(resource, ops, clusterNeeds()[:1])
	}
	r.grants(resource, ops, clusterNeeds()[1:])
}

func (r *Report) topicAccess(ctx context.Context, cl *cluster.Client, name string) {
	resource := "topic " + name
	t, err := describeTopic(ctx, cl, name)
	switch {
	case isDenied(err):
		r.grant(resource, topicNeeds(name)[0], false)
		r.grants(resource, notTold, topicNeeds(name)[1:])
	case isAbsent(err) && name == shareStateTopic:
		// No share group has state yet; there is nothing to see.
	case isAbsent(err):
		r.add("acl", resource, Unknown, "there is no such topic", "create it first, or check its name")
	case err != nil:
		r.unknownAccess(resource, err)
	default:
		r.grants(resource, t.AuthorizedOperations, topicNeeds(name))
	}
}

func (r *Report) groupAccess(ctx context.Context, cl *cluster.Client, name string) {
	resource := "group " + name
	req := kmsg.NewPtrShareGroupDescribeRequest()
	req.GroupIDs, req.IncludeAuthorizedOperations = []string{name}, true
	resp, err := req.RequestWith(ctx, cl.Requestor())
	switch {
	case err != nil:
		r.unknownAccess(resource, err)
		return
	case len(resp.Groups) != 1:
		r.unknownAccess(resource, fmt.Errorf("%d groups are described", len(resp.Groups)))
		return
	}
	switch err := kerr.ErrorForCode(resp.Groups[0].ErrorCode); {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		r.grant(resource, groupNeeds()[0], false)
		r.grants(resource, notTold, groupNeeds()[1:])
	case errors.Is(err, kerr.GroupIDNotFound):
		// It may be described, or the answer would be another one.
		r.grant(resource, groupNeeds()[0], true)
		r.add("acl", resource, Unknown, "the group does not exist yet, so brokers do not tell what else is allowed", "ask again once it has had a member")
	case err != nil:
		r.unknownAccess(resource, err)
	default:
		r.grants(resource, resp.Groups[0].AuthorizedOperations, groupNeeds())
	}
}

// transactionAccess finds out whether all transactional IDs may be described,
// with one that nobody has: the check of access comes first.
func (r *Report) transactionAccess(ctx context.Context, cl *cluster.Client) {
	const resource = "transactional_id *"
	code, err := describeTransaction(ctx, cl, "kshare-probe-"+rand.Text())
	all := need{kmsg.ACLOperationDescribe, "see every transaction: inspect, drain, feature downgrade"}
	if err != nil {
		r.unknownAccess(resource, err)
		return
	}
	r.grant(resource, all, code != kerr.TransactionalIDAuthorizationFailed.Code)
}

func (r *Report) transactionalIDAccess(ctx context.Context, cl *cluster.Client, id string) {
	resource := "transactional_id " + id
	code, err := describeTransaction(ctx, cl, id)
	if err != nil {
		r.unknownAccess(resource, err)
		return
	}
	r.grant(resource, need{
		kmsg.ACLOperationDescribe,
		"see its transaction: inspect txn (WRITE, for ctp, ack, txn fence and drain --fence, cannot be found out without writing)",
	}, code != kerr.TransactionalIDAuthorizationFailed.Code)
}

// describeTransaction asks any broker, which checks access before it finds that
// it does not coordinate the ID.
func describeTransaction(ctx context.Context, cl *cluster.Client, id string) (int16, error) {
	node, err := cl.AnyBroker(ctx)
	if err != nil {
		return 0, err
	}
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	kresp, err := cl.RequestBroker(ctx, node, req)
	if err != nil {
		return 0, err
	}
	resp := kresp.(*kmsg.DescribeTransactionsResponse)
	if len(resp.TransactionStates) != 1 {
		return 0, fmt.Errorf("broker %d gives %d answers", node, len(resp.TransactionStates))
	}
	return resp.TransactionStates[0].ErrorCode, nil
}

// grants judges each need by the operations that a broker says are authorized.
func (r *Report) grants(resource string, ops int32, needs []need) {
	for _, n := range needs {
		if ops == notTold {
			r.add("acl", resource, Unknown, n.String()+": brokers do not tell", "")
			continue
		}
		r.grant(resource, n, ops&(1<<n.op) != 0)
	}
}

func (r *Report) grant(resource string, n need, granted bool) {
	if granted {
		r.add("acl", resource, OK, n.String(), "")
		return
	}
	r.add("acl", resource, Warning, "missing: "+n.String(), fmt.Sprintf("bin/kafka-acls.sh --add --allow-principal User:NAME --operation %s %s", n.toolName(), toolResource(resource)))
}

func (r *Report) unknownAccess(resource string, err error) {
	r.add("acl", resource, Unknown, cluster.Name(err), "")
}

// String is the operation as Kafka's documents write it, and its use.
func (n need) String() string { return n.op.String() + ": " + n.uses }

// toolName is the operation as Kafka's tool takes it, such as DescribeConfigs.
func (n need) toolName() string {
	var b strings.Builder
	for part := range strings.SplitSeq(n.op.String(), "_") {
		b.WriteString(part[:1] + strings.ToLower(part[1:]))
	}
	return b.String()
}

// toolResource is a resource as Kafka's tool takes it.
func toolResource(resource string) string {
	kind, name, named := strings.Cut(resource, " ")
	flag := "--" + strings.ReplaceAll(kind, "_", "-")
	if !named {
		return flag
	}
	if name == "*" || strings.ContainsAny(name, " '\"$*?;&|<>()`\\") {
		name = "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	return flag + " " + name
}

// describeTopic returns a topic with the operations that are authorized on it,
// without creating it. The error is the topic's.
func describeTopic(ctx context.Context, cl *cluster.Client, name string) (kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(name)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return kmsg.MetadataResponseTopic{}, err
	}
	if len(resp.Topics) != 1 {
		return kmsg.MetadataResponseTopic{}, fmt.Errorf("%d topics are described", len(resp.Topics))
	}
	return resp.Topics[0], kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

func isDenied(err error) bool { return errors.Is(err, kerr.TopicAuthorizationFailed) }
func isAbsent(err error) bool { return errors.Is(err, kerr.UnknownTopicOrPartition) }

// minInSync returns min.insync.replicas of a topic; 0 when it is not told.
func minInSync(ctx context.Context, cl *cluster.Client, topic string) int {
	text, ok, err := cl.ResourceConfig(ctx, kmsg.ConfigResourceTypeTopic, topic, "min.insync.replicas")
	if err != nil || !ok {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}
