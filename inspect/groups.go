package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

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
	// describeGroupsBatch is how many groups are described with one request.
	describeGroupsBatch = 100
	// groupOffsetsBatch is how many groups one request asks offsets of: for each
	// the coordinator asks share coordinators and partition leaders in turn.
	groupOffsetsBatch = 50
)

// typeShare is the type of a share group in ListGroups v5.
const typeShare = "share"

// ListShareGroups reads share groups (ListGroups v5, ShareGroupDescribe v1,
// DescribeShareGroupOffsets v0 and v1). brokers are those of
// [cluster.Client.Describe]. The groups are sorted by ID, what they have by topic
// and partition. What could not be seen is in the gaps: brokers leave out what
// this principal may not describe without a word, so whether they do is found out.
// The error is that of ctx.
func ListShareGroups(ctx context.Context, cl Cluster, brokers []cluster.BrokerVersions, q GroupQuery) ([]Group, []Gap, error) {
	c := &groupCollector{cl: cl, found: make(map[string]*Group)}
	nodes := c.brokers(brokers)
	if len(nodes) > 0 {
		p := prober{cl: cl, brokers: brokers}
		if q.GroupIDs == nil {
			p.groups(ctx)
		}
		each(nodes, inFlight, func(node int32) { c.list(ctx, node, q.GroupIDs) })
		c.findHidden(ctx, nodes[0], q.GroupIDs)
		if q.Offsets && len(c.found) > 0 {
			p.topics(ctx, SourceShareGroupOffsets, "share-partitions of them are hidden too")
		}
		c.gaps.add(p.gaps.sorted()...)
		c.read(ctx, q)
	}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	groups := make([]Group, 0, len(c.found))
	for _, id := range slices.Sorted(maps.Keys(c.found)) {
		groups = append(groups, *c.found[id])
	}
	return groups, c.gaps.sorted(), nil
}

type groupCollector struct {
	cl   Cluster
	gaps gapList

	mu    sync.Mutex
	found map[string]*Group
}

// brokers returns those that may coordinate share groups. One that does not know
// share groups coordinates none.
func (c *groupCollector) brokers(all []cluster.BrokerVersions) []int32 {
	var nodes []int32
	for _, b := range all {
		if b.Err != nil {
			c.gaps.add(silentGap(SourceListGroups, b))
			continue
		}
		if _, knows := b.Keys[int16(kmsg.ShareGroupDescribe)]; knows {
			nodes = append(nodes, b.NodeID)
		}
	}
	return nodes
}

// kafkaError returns the name that a broker gave to err; "" when none did.
func kafkaError(err error) string {
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		return ke.Message
	}
	return ""
}

// list adds the share groups that a broker coordinates: those in ids, or all of
// them if it is nil. FindCoordinator would tell where a group is as well, but it
// creates __consumer_offsets where there is none.
func (c *groupCollector) list(ctx context.Context, node int32, ids []string) {
	groups, err := listGroups(ctx, c.cl, node, typeShare)
	if err != nil {
		c.gaps.add(newGap(SourceListGroups, node, "list its share groups", err))
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range groups {
		if g.GroupType == typeShare && (ids == nil || slices.Contains(ids, g.Group)) {
			c.found[g.Group] = &Group{GroupID: g.Group, State: g.GroupState, Coordinator: node}
		}
	}
}

// listGroups lists the groups of a type that a broker coordinates; "" is any.
func listGroups(ctx context.Context, cl Cluster, node int32, groupType string) ([]kmsg.ListGroupsResponseGroup, error) {
	req := kmsg.NewPtrListGroupsRequest()
	if groupType != "" {
		req.TypesFilter = []string{groupType}
	}
	for try := 1; ; try++ {
		resp, err := ask[*kmsg.ListGroupsResponse](ctx, cl, node, req)
		switch {
		case err != nil:
			return nil, err
		case resp.ErrorCode == 0:
			return resp.Groups, nil
		case lastTry(ctx, try) || !movedCoordinator(resp.ErrorCode):
			return nil, kerr.ErrorForCode(resp.ErrorCode)
		}
		if err := pause.For(ctx, backoff(try)); err != nil {
			return nil, err
		}
	}
}

// findHidden says which of the groups that are asked for and were not listed may
// not be described. Any broker tells: it checks access first.
func (c *groupCollector) findHidden(ctx context.Context, node int32, ids []string) {
	var missing []string
	for _, id := range ids {
		if c.found[id] == nil {
			missing = append(missing, id)
		}
	}
	for batch := range slices.Chunk(missing, describeGroupsBatch) {
		resp, err := ask[*kmsg.ShareGroupDescribeResponse](ctx, c.cl, node, describeRequest(batch))
		if err != nil {
			c.gaps.add(newGap(SourceShareGroupDescribe, node, "describe share groups", err))
			return
		}
		for _, g := range resp.Groups {
			if g.ErrorCode == kerr.GroupAuthorizationFailed.Code {
				c.denied(SourceShareGroupDescribe, g.GroupID, kerr.GroupAuthorizationFailed)
			}
		}
	}
}

// denied says that a group is there, or may be, and may not be described.
func (c *groupCollector) denied(source Source, group string, err *kerr.Error) {
	if err == kerr.TopicAuthorizationFailed {
		c.gaps.add(aclGap(source, aclTopics, err, fmt.Sprintf("share group %q, which has a topic that is hidden, is hidden from it", group)))
		return
	}
	acl := ACL{"DESCRIBE", "GROUP", group}
	c.gaps.add(aclGap(source, acl, err, "the group is hidden from it"))
}

// read describes the groups and reads their offsets, one coordinator beside the
// other.
func (c *groupCollector) read(ctx context.Context, q GroupQuery) {
	byNode := make(map[int32][]string)
	for _, id := range slices.Sorted(maps.Keys(c.found)) {
		node := c.found[id].Coordinator
		byNode[node] = append(byNode[node], id)
	}
	describe, offsets := c.describing(), c.readingOffsets()
	each(slices.Sorted(maps.Keys(byNode)), inFlight, func(node int32) {
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
	what   string // it does, such as "describe"
	batch  int
	make   func(ids []string) kmsg.Request
	// take takes an answer over and returns the error code of each group that
	// has one.
	take func(kmsg.Response) map[string]int16
}

// ask asks a coordinator about its groups, in batches. Of a group whose
// coordinator has moved since it was listed, the new one is asked.
func (c *groupCollector) ask(ctx context.Context, node int32, ids []string, r groupRequest) {
	var moved []string
	for batch := range slices.Chunk(ids, r.batch) {
		kresp, err := ask[kmsg.Response](ctx, c.cl, node, r.make(batch))
		switch {
		case err == nil:
			moved = append(moved, c.failures(r, r.take(kresp), movedCoordinator)...)
		case cluster.IsUnanswered(err) && !isTimeout(err): // it went down, and others have its groups by now, or will soon
			moved = append(moved, batch...)
		default:
			c.gaps.add(newGap(r.source, node, r.what+" "+someGroups(batch), err))
		}
		if ctx.Err() != nil {
			return
		}
	}
	for batch := range slices.Chunk(moved, r.batch) {
		c.askAnew(ctx, node, batch, r)
	}
}

// askAnew asks whoever coordinates groups now.
func (c *groupCollector) askAnew(ctx context.Context, node int32, ids []string, r groupRequest) {
	ctx, cancel := limited(ctx)
	defer cancel()
	kresp, err := c.cl.Request(ctx, r.make(ids)) // kgo finds the coordinators, and tries again
	if err != nil {
		c.gaps.add(newGap(r.source, node, r.what+" "+someGroups(ids), err))
	}
	if kresp != nil { // from some coordinators, also where others failed
		c.failures(r, r.take(kresp), func(int16) bool { return false })
	}
}

// someGroups names the first of several group IDs.
func someGroups(ids []string) string {
	if len(ids) == 1 {
		return fmt.Sprintf("share group %q", ids[0])
	}
	return fmt.Sprintf("%d share groups, %q among them", len(ids), slices.Min(ids))
}

// failures says of which groups nothing is known, and why, but for those to be
// asked for again, which it returns.
func (c *groupCollector) failures(r groupRequest, codes map[string]int16, again func(int16) bool) []string {
	var out []string
	failed := make(map[int16][]string)
	for _, id := range slices.Sorted(maps.Keys(codes)) {
		switch code := codes[id]; {
		case again(code):
			out = append(out, id)
		case code == kerr.GroupIDNotFound.Code: // it was deleted since it was listed
			c.mu.Lock()
			delete(c.found, id)
			c.mu.Unlock()
		case code == kerr.GroupAuthorizationFailed.Code, code == kerr.TopicAuthorizationFailed.Code:
			c.denied(r.source, id, kerr.TypedErrorForCode(code))
		default:
			failed[code] = append(failed[code], id)
		}
	}
	for code, ids := range failed {
		g := ErrorGap(r.source, fmt.Sprintf("no broker could %s %s", r.what, someGroups(ids)), kerr.ErrorForCode(code))
		if code == kerr.UnsupportedVersion.Code {
			g.Reason = fmt.Sprintf("share.version is 0, so %s can be listed and not described", someGroups(ids))
			g.Advice = "finalize share.version=1 to see them"
		}
		c.gaps.add(g)
	}
	return out
}

func (c *groupCollector) describing() groupRequest {
	return groupRequest{
		source: SourceShareGroupDescribe, what: "describe", batch: describeGroupsBatch,
		make: describeRequest,
		take: func(kresp kmsg.Response) map[string]int16 {
			codes := make(map[string]int16)
			for _, rg := range kresp.(*kmsg.ShareGroupDescribeResponse).Groups {
				if rg.ErrorCode != 0 {
					codes[rg.GroupID] = rg.ErrorCode
					continue
				}
				c.described(rg)
			}
			return codes
		},
	}
}

func describeRequest(ids []string) kmsg.Request {
	req := kmsg.NewPtrShareGroupDescribeRequest()
	req.GroupIDs = ids
	return req
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
		source: SourceShareGroupOffsets, what: "tell the offsets of", batch: groupOffsetsBatch,
		make: func(ids []string) kmsg.Request {
			req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
			for _, id := range ids {
				g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
				g.GroupID = id // no topics: all of them
				req.Groups = append(req.Groups, g)
			}
			return req
		},
		take: func(kresp kmsg.Response) map[string]int16 {
			resp := kresp.(*kmsg.DescribeShareGroupOffsetsResponse)
			codes := make(map[string]int16)
			for _, rg := range resp.Groups {
				if rg.ErrorCode != 0 {
					codes[rg.GroupID] = rg.ErrorCode
					continue
				}
				c.offsets(rg, resp.Version)
			}
			return codes
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
				p.StartOffset, p.LeaderEpoch, p.Failed = -1, -1, true
				failed[rp.ErrorCode] = failed[rp.ErrorCode].and(topicPartition{rt.Topic, rp.Partition})
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
		name := kafkaError(kerr.ErrorForCode(code))
		c.gaps.add(Gap{
			Source: SourceShareGroupOffsets, KafkaError: name,
			Reason: fmt.Sprintf("no broker could tell the offsets of share group %q in %s: %s", rg.GroupID, failed[code], name),
		})
	}
}
