package inspect

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// requester is what a collector of this package needs of a connection;
// *cluster.Client is one.
type requester interface {
	Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	RequestBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error)
}

// GroupQuery says which share groups to read, and what of them. The zero value
// lists all.
type GroupQuery struct {
	// GroupIDs are the groups to read; nil reads all that the brokers list. One
	// that is no share group is left out of the result.
	GroupIDs []string
	Members  bool // describe them: state, members, epochs
	Offsets  bool // read start offset and lag of their share-partitions
}

const (
	// brokersAtOnce bounds how many brokers are asked at the same time. Each
	// serves the requests of one connection one after the other.
	brokersAtOnce = 16
	// describeGroupsBatch is how many groups are described with one request.
	describeGroupsBatch = 100
	// groupOffsetsBatch is how many groups one request asks offsets of: for each
	// the coordinator asks share coordinators and partition leaders in turn.
	groupOffsetsBatch = 50
)

// typeShare is the type of a share group in ListGroups v5.
const typeShare = "share"

// ListShareGroups reads share groups and says what it could not see: groups and
// topics that may not be described are left out by brokers without a word, so
// whether there may be any is found out first. brokers are those of
// [cluster.Client.Describe]. The groups are sorted by ID, what they have by
// topic and partition. It fails only with the error of ctx.
func ListShareGroups(ctx context.Context, cl requester, brokers []cluster.BrokerVersions, q GroupQuery) ([]Group, []Gap, error) {
	c := &groupCollector{cl: cl, found: make(map[string]*Group)}
	if c.probe(ctx, brokers, q) {
		if q.GroupIDs == nil {
			c.list(ctx, brokers)
		} else {
			c.find(ctx, q.GroupIDs)
		}
		if c.disabled {
			c.cannotDescribe()
		} else {
			c.read(ctx, q)
		}
	}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	groups := make([]Group, 0, len(c.found))
	for _, id := range slices.Sorted(maps.Keys(c.found)) {
		groups = append(groups, *c.found[id])
	}
	return groups, c.sortedGaps(), nil
}

type groupCollector struct {
	cl       requester
	disabled bool // share.version is 0

	mu    sync.Mutex
	found map[string]*Group
	gaps  []Gap
}

func (c *groupCollector) gap(g Gap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gaps = append(c.gaps, g)
}

// sortedGaps puts what goroutines found into an order that does not depend on
// them: by broker, then by what there is to say.
func (c *groupCollector) sortedGaps() []Gap {
	slices.SortStableFunc(c.gaps, func(a, b Gap) int {
		return cmp.Or(cmp.Compare(nodeOf(a), nodeOf(b)), strings.Compare(string(a.Source), string(b.Source)), strings.Compare(a.Reason, b.Reason))
	})
	return c.gaps
}

func nodeOf(g Gap) int32 {
	if g.Broker == nil {
		return -1
	}
	return *g.Broker
}

// kafkaError returns the name that a broker gave to err; "" when none did.
func kafkaError(err error) string {
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		return ke.Message
	}
	return ""
}

// probe finds out whether groups or topics are hidden from this principal, and
// whether there can be share groups at all.
func (c *groupCollector) probe(ctx context.Context, brokers []cluster.BrokerVersions, q GroupQuery) bool {
	var asked *int32
	for _, b := range brokers {
		switch _, knows := b.Keys[int16(kmsg.ShareGroupDescribe)]; {
		case b.Err != nil:
			c.gap(Gap{
				Source: SourceListGroups, Broker: new(b.NodeID), KafkaError: kafkaError(b.Err),
				Reason: fmt.Sprintf("broker %d did not answer, so groups that it coordinates are not known: %s", b.NodeID, cluster.Name(b.Err)),
				Advice: "start the broker, or unregister it if it is gone for good",
			})
		case knows && asked == nil:
			asked = new(b.NodeID)
		}
	}
	if asked == nil {
		return false // no broker that answers knows share groups
	}
	c.probeGroups(ctx, *asked)
	if q.Offsets {
		c.probeTopics(ctx)
	}
	return true
}

// probeGroups describes a group that nobody has, on a broker that need not be
// its coordinator: the check of access comes first.
func (c *groupCollector) probeGroups(ctx context.Context, node int32) {
	groups, err := c.describeAt(ctx, node, []string{"kshare-probe-" + rand.Text()})
	if err == nil && len(groups) != 1 {
		err = fmt.Errorf("%d answers", len(groups))
	}
	if err == nil {
		err = kerr.ErrorForCode(groups[0].ErrorCode)
	}
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		c.gap(Gap{
			Source: SourceShareGroupDescribe, Broker: &node, KafkaError: kafkaError(err),
			Reason: "this principal may not describe every group, so share groups may be hidden from it",
			ACL:    &ACL{Operation: "DESCRIBE", ResourceType: "GROUP", ResourceName: "*"},
			Advice: "grant DESCRIBE on all groups to this principal: bin/kafka-acls.sh --add --operation Describe --group '*'",
		})
	case errors.Is(err, kerr.UnsupportedVersion):
		c.disabled = true
	case err != nil && kafkaError(err) == "":
		c.gap(Gap{
			Source: SourceShareGroupDescribe, Broker: &node,
			Reason: fmt.Sprintf("find out whether groups are hidden: broker %d: %s", node, cluster.Name(err)),
		})
	}
}

// probeTopics describes a topic that nobody has. DescribeShareGroupOffsets
// leaves out topics that may not be described.
func (c *groupCollector) probeTopics(ctx context.Context) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = new("kshare-probe-" + rand.Text())
	req.Topics = append(req.Topics, t)
	kresp, err := c.cl.Request(ctx, req)
	if err == nil {
		topics := kresp.(*kmsg.MetadataResponse).Topics
		if len(topics) == 1 {
			err = kerr.ErrorForCode(topics[0].ErrorCode)
		} else {
			err = fmt.Errorf("%d answers", len(topics))
		}
	}
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		c.gap(Gap{
			Source: SourceShareGroupOffsets, KafkaError: kafkaError(err),
			Reason: "this principal may not describe every topic, so share-partitions may be hidden from it",
			ACL:    &ACL{Operation: "DESCRIBE", ResourceType: "TOPIC", ResourceName: "*"},
			Advice: "grant DESCRIBE on all topics to this principal: bin/kafka-acls.sh --add --operation Describe --topic '*'",
		})
	case err != nil && kafkaError(err) == "":
		c.gap(Gap{Source: SourceMetadata, Reason: "find out whether topics are hidden: " + cluster.Name(err)})
	}
}

// cannotDescribe keeps what was listed of share groups that cannot be used.
func (c *groupCollector) cannotDescribe() {
	if len(c.found) == 0 {
		return
	}
	c.gap(Gap{
		Source: SourceShareGroupDescribe, KafkaError: kerr.UnsupportedVersion.Message,
		Reason: fmt.Sprintf("share.version is 0, so the share groups that there are, %d, can be listed and not described", len(c.found)),
		Advice: "finalize share.version=1 to see them",
	})
}

// list adds the share groups that each broker coordinates.
func (c *groupCollector) list(ctx context.Context, brokers []cluster.BrokerVersions) {
	var nodes []int32
	for _, b := range brokers {
		// A broker that does not know share groups coordinates none.
		if _, knows := b.Keys[int16(kmsg.ShareGroupDescribe)]; b.Err == nil && knows {
			nodes = append(nodes, b.NodeID)
		}
	}
	eachBroker(nodes, func(node int32) {
		req := kmsg.NewPtrListGroupsRequest()
		req.TypesFilter = []string{typeShare}
		kresp, err := c.cl.RequestBroker(ctx, node, req)
		if err == nil {
			err = kerr.ErrorForCode(kresp.(*kmsg.ListGroupsResponse).ErrorCode)
		}
		if err != nil {
			c.gap(Gap{
				Source: SourceListGroups, Broker: &node, KafkaError: kafkaError(err),
				Reason: fmt.Sprintf("list share groups: broker %d: %s", node, cluster.Name(err)),
			})
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, g := range kresp.(*kmsg.ListGroupsResponse).Groups {
			if g.GroupType == typeShare {
				c.found[g.Group] = &Group{GroupID: g.Group, State: g.GroupState, Coordinator: node}
			}
		}
	})
}

// find adds named groups with their coordinators.
func (c *groupCollector) find(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKeys = ids
	kresp, err := c.cl.Request(ctx, req)
	if err != nil {
		c.gap(Gap{Source: SourceShareGroupDescribe, KafkaError: kafkaError(err), Reason: "find the coordinators of groups: " + cluster.Name(err)})
		return
	}
	for _, co := range kresp.(*kmsg.FindCoordinatorResponse).Coordinators {
		err := kerr.ErrorForCode(co.ErrorCode)
		switch {
		case errors.Is(err, kerr.GroupAuthorizationFailed):
			c.denied(SourceShareGroupDescribe, co.Key, err)
		case err != nil:
			c.gap(Gap{
				Source: SourceShareGroupDescribe, KafkaError: kafkaError(err),
				Reason: fmt.Sprintf("find the coordinator of group %q: %s", co.Key, cluster.Name(err)),
			})
		default:
			c.found[co.Key] = &Group{GroupID: co.Key, Coordinator: co.NodeID}
		}
	}
}

// denied says that a group is there and may not be described.
func (c *groupCollector) denied(source Source, group string, err error) {
	g := Gap{Source: source, KafkaError: kafkaError(err), Reason: fmt.Sprintf("this principal may not describe group %q", group)}
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		g.ACL = &ACL{Operation: "DESCRIBE", ResourceType: "GROUP", ResourceName: group}
		g.Advice = fmt.Sprintf("grant DESCRIBE on the group to this principal: bin/kafka-acls.sh --add --operation Describe --group %s", quoteArg(group))
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		g.Reason += ", since it may not describe a topic that the group has"
		g.ACL = &ACL{Operation: "DESCRIBE", ResourceType: "TOPIC", ResourceName: "*"}
		g.Advice = "grant DESCRIBE on all topics to this principal: bin/kafka-acls.sh --add --operation Describe --topic '*'"
	}
	c.gap(g)
}

// quoteArg quotes a word of a shell command.
func quoteArg(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// read describes the groups and reads their offsets, one coordinator beside the
// other.
func (c *groupCollector) read(ctx context.Context, q GroupQuery) {
	byNode := make(map[int32][]string)
	for _, id := range slices.Sorted(maps.Keys(c.found)) {
		node := c.found[id].Coordinator
		byNode[node] = append(byNode[node], id)
	}
	describe, offsets := c.describing(), c.readingOffsets()
	eachBroker(slices.Sorted(maps.Keys(byNode)), func(node int32) {
		if q.Members {
			c.ask(ctx, node, byNode[node], describe)
		}
		if q.Offsets {
			c.ask(ctx, node, byNode[node], offsets)
		}
	})
}

// groupRequest is a request that asks about many groups.
type groupRequest struct {
	source Source
	what   string // being done, such as "describe share groups"
	batch  int
	make   func(ids []string) kmsg.Request
	// take takes an answer over and returns the error of each group that has
	// one.
	take func(kmsg.Response) map[string]error
}

// ask asks a coordinator about its groups, in batches. Of a group whose
// coordinator has moved since it was listed, the new one is asked.
func (c *groupCollector) ask(ctx context.Context, node int32, ids []string, r groupRequest) {
	var moved []string
	for batch := range slices.Chunk(ids, r.batch) {
		kresp, err := c.cl.RequestBroker(ctx, node, r.make(batch))
		switch {
		case err == nil:
			moved = append(moved, c.failures(r, r.take(kresp), isMoved)...)
		case cluster.IsUnanswered(err): // it went down; somebody else has its groups by now, or will soon
			moved = append(moved, batch...)
		default:
			c.unread(r, node, err)
		}
		if ctx.Err() != nil {
			return
		}
	}
	for batch := range slices.Chunk(moved, r.batch) {
		kresp, err := c.cl.Request(ctx, r.make(batch)) // kgo finds the coordinators, and tries again
		if err != nil {
			c.unread(r, node, err)
		}
		if kresp != nil { // from some coordinators, also where others failed
			c.failures(r, r.take(kresp), func(error) bool { return false })
		}
	}
}

func isMoved(err error) bool {
	return errors.Is(err, kerr.NotCoordinator) || errors.Is(err, kerr.CoordinatorNotAvailable) || errors.Is(err, kerr.CoordinatorLoadInProgress)
}

func (c *groupCollector) unread(r groupRequest, node int32, err error) {
	c.gap(Gap{
		Source: r.source, Broker: &node, KafkaError: kafkaError(err),
		Reason: fmt.Sprintf("%s: broker %d: %s", r.what, node, cluster.Name(err)),
	})
}

// failures says of which groups nothing is known, and why, but for those to be
// asked for again, which it returns.
func (c *groupCollector) failures(r groupRequest, errs map[string]error, again func(error) bool) []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(errs)) {
		switch err := errs[id]; {
		case again(err):
			out = append(out, id)
		case errors.Is(err, kerr.GroupIDNotFound): // it was deleted since it was listed, or is no share group
			c.mu.Lock()
			delete(c.found, id)
			c.mu.Unlock()
		case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TopicAuthorizationFailed):
			c.denied(r.source, id, err)
		default:
			c.gap(Gap{Source: r.source, KafkaError: kafkaError(err), Reason: fmt.Sprintf("%s: group %q: %s", r.what, id, cluster.Name(err))})
		}
	}
	return out
}

func (c *groupCollector) describing() groupRequest {
	return groupRequest{
		source: SourceShareGroupDescribe, what: "describe share groups", batch: describeGroupsBatch,
		make: describeRequest,
		take: func(kresp kmsg.Response) map[string]error {
			errs := make(map[string]error)
			for _, rg := range kresp.(*kmsg.ShareGroupDescribeResponse).Groups {
				if err := kerr.ErrorForCode(rg.ErrorCode); err != nil {
					errs[rg.GroupID] = err
					continue
				}
				c.described(rg)
			}
			return errs
		},
	}
}

func describeRequest(ids []string) kmsg.Request {
	req := kmsg.NewPtrShareGroupDescribeRequest()
	req.GroupIDs = ids
	return req
}

func (c *groupCollector) describeAt(ctx context.Context, node int32, ids []string) ([]kmsg.ShareGroupDescribeResponseGroup, error) {
	kresp, err := c.cl.RequestBroker(ctx, node, describeRequest(ids))
	if err != nil {
		return nil, err
	}
	return kresp.(*kmsg.ShareGroupDescribeResponse).Groups, nil
}

func (c *groupCollector) described(rg kmsg.ShareGroupDescribeResponseGroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.found[rg.GroupID]
	if g == nil {
		return
	}
	g.State = rg.GroupState
	g.Detail = newGroupDetail(rg)
	g.Members = make([]string, 0, len(rg.Members))
	for _, m := range g.Detail.Members {
		g.Members = append(g.Members, m.MemberID)
	}
}

func newGroupDetail(rg kmsg.ShareGroupDescribeResponseGroup) *GroupDetail {
	d := &GroupDetail{
		GroupEpoch: rg.GroupEpoch, AssignmentEpoch: rg.AssignmentEpoch, Assignor: rg.Assignor,
		Members: make([]Member, 0, len(rg.Members)),
	}
	for _, rm := range rg.Members {
		m := Member{
			MemberID: rm.MemberID, ClientID: rm.ClientID, ClientHost: rm.ClientHost,
			MemberEpoch: rm.MemberEpoch, Topics: slices.Sorted(slices.Values(rm.SubscribedTopicNames)),
			Assignment: make([]TopicPartitions, 0, len(rm.Assignment.TopicPartitions)),
		}
		if rm.RackID != nil {
			m.RackID = *rm.RackID
		}
		for _, tp := range rm.Assignment.TopicPartitions {
			m.Assignment = append(m.Assignment, TopicPartitions{Topic: tp.Topic, Partitions: slices.Sorted(slices.Values(tp.Partitions))})
		}
		slices.SortFunc(m.Assignment, func(a, b TopicPartitions) int { return strings.Compare(a.Topic, b.Topic) })
		d.Members = append(d.Members, m)
	}
	slices.SortFunc(d.Members, func(a, b Member) int { return strings.Compare(a.MemberID, b.MemberID) })
	return d
}

func (c *groupCollector) readingOffsets() groupRequest {
	return groupRequest{
		source: SourceShareGroupOffsets, what: "read offsets of share groups", batch: groupOffsetsBatch,
		make: func(ids []string) kmsg.Request {
			req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
			for _, id := range ids {
				g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
				g.GroupID = id // no topics: all of them
				req.Groups = append(req.Groups, g)
			}
			return req
		},
		take: func(kresp kmsg.Response) map[string]error {
			resp := kresp.(*kmsg.DescribeShareGroupOffsetsResponse)
			errs := make(map[string]error)
			for _, rg := range resp.Groups {
				if err := kerr.ErrorForCode(rg.ErrorCode); err != nil {
					errs[rg.GroupID] = err
					continue
				}
				c.offsets(rg, resp.Version)
			}
			return errs
		},
	}
}

// offsetsWithLag is the first version of DescribeShareGroupOffsets that tells
// the lag (KIP-1226).
const offsetsWithLag = 1

func (c *groupCollector) offsets(rg kmsg.DescribeShareGroupOffsetsResponseGroup, version int16) {
	parts := make([]SharePartition, 0, len(rg.Topics))
	failed := make(map[int16]partitionFailure)
	for _, rt := range rg.Topics {
		for _, rp := range rt.Partitions {
			p := SharePartition{
				Topic: rt.Topic, TopicID: rt.TopicID, Partition: rp.Partition,
				StartOffset: rp.StartOffset, LeaderEpoch: rp.LeaderEpoch, Lag: -1,
			}
			switch {
			case rp.ErrorCode != 0:
				p.StartOffset = -1
				f := failed[rp.ErrorCode]
				if f.count == 0 {
					f.first = fmt.Sprintf("%s-%d", rt.Topic, rp.Partition)
				}
				f.count++
				failed[rp.ErrorCode] = f
			case version >= offsetsWithLag:
				p.Lag = rp.Lag
			}
			parts = append(parts, p)
		}
	}
	slices.SortFunc(parts, func(a, b SharePartition) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	c.mu.Lock()
	if g := c.found[rg.GroupID]; g != nil {
		g.Partitions = parts
	}
	c.mu.Unlock()
	for _, code := range slices.Sorted(maps.Keys(failed)) {
		err := kerr.ErrorForCode(code)
		c.gap(Gap{
			Source: SourceShareGroupOffsets, KafkaError: kafkaError(err),
			Reason: fmt.Sprintf("read offsets of share group %q: %s: %s", rg.GroupID, failed[code], cluster.Name(err)),
		})
	}
}

// partitionFailure counts partitions with one error.
type partitionFailure struct {
	first string
	count int
}

func (f partitionFailure) String() string {
	if f.count == 1 {
		return f.first
	}
	return fmt.Sprintf("%s and %d more", f.first, f.count-1)
}

// eachBroker calls do for every node, for a bounded number of them at once, and
// returns when all are done.
func eachBroker(nodes []int32, do func(node int32)) {
	var g errgroup.Group
	g.SetLimit(brokersAtOnce)
	for _, node := range nodes {
		g.Go(func() error {
			do(node)
			return nil
		})
	}
	_ = g.Wait() // do returns no error
}
