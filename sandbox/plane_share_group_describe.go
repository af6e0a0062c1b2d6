package sandbox

import (
	"context"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ShareGroupDescribe: v1 (KIP-932)
//
// Behavior:
//   - Needs DESCRIBE on the group, and on every topic that is assigned: one that
//     is denied hides the whole group
//   - A group that is not there is GROUP_ID_NOT_FOUND, and Dead

// assignorName is the only server-side assignor of share groups.
const assignorName = "simple"

func (p *plane) handleDescribe(c caller, req *kmsg.ShareGroupDescribeRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.ShareGroupDescribeResponse)
	for _, id := range req.GroupIDs {
		resp.Groups = append(resp.Groups, p.describeGroup(c, id, req.IncludeAuthorizedOperations))
	}
	return resp, nil
}

func (p *plane) describeGroup(c caller, id string, operations bool) kmsg.ShareGroupDescribeResponseGroup {
	refuse := func(code int16) kmsg.ShareGroupDescribeResponseGroup {
		rg := kmsg.NewShareGroupDescribeResponseGroup()
		rg.GroupID, rg.ErrorCode, rg.ErrorMessage = id, code, message(code)
		if code == kerr.GroupIDNotFound.Code {
			rg.GroupState = "Dead"
		}
		return rg
	}
	if !p.k.authorized(c, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeGroup, id) {
		return refuse(kerr.GroupAuthorizationFailed.Code)
	}
	if p.k.coordinator(id) != c.broker {
		return refuse(kerr.NotCoordinator.Code)
	}
	g := p.group(id)
	if g == nil {
		return refuse(kerr.GroupIDNotFound.Code)
	}
	rg := g.describe()
	for i := range rg.Members {
		a := &rg.Members[i].Assignment
		for j := range a.TopicPartitions {
			tp := &a.TopicPartitions[j]
			tp.Topic = p.topicName(tp.TopicID)
			if !p.k.authorized(c, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeTopic, tp.Topic) {
				return refuse(kerr.TopicAuthorizationFailed.Code)
			}
		}
	}
	if operations {
		rg.AuthorizedOperations = p.authorizedGroupOperations(c, id)
	}
	return rg
}

// describe returns the group but for the names of the topics assigned.
func (g *shareGroup) describe() kmsg.ShareGroupDescribeResponseGroup {
	g.mu.Lock()
	defer g.mu.Unlock()
	rg := kmsg.NewShareGroupDescribeResponseGroup()
	rg.GroupID, rg.GroupState = g.id, g.stateLocked()
	rg.GroupEpoch, rg.AssignmentEpoch, rg.Assignor = g.epoch, g.epoch, assignorName
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		m := g.members[id]
		rm := kmsg.NewShareGroupDescribeResponseGroupMember()
		rm.MemberID, rm.RackID, rm.MemberEpoch = m.id, m.rackID, m.epoch
		rm.ClientID, rm.ClientHost = m.clientID, m.clientHost
		rm.SubscribedTopicNames = slices.Clone(m.topics)
		for _, topicID := range sortedTopicIDs(m.told) {
			tp := kmsg.NewShareGroupDescribeResponseGroupMemberAssignmentTopicPartition()
			tp.TopicID, tp.Partitions = topicID, m.told[topicID]
			rm.Assignment.TopicPartitions = append(rm.Assignment.TopicPartitions, tp)
		}
		rg.Members = append(rg.Members, rm)
	}
	return rg
}

// authorizedGroupOperations returns the bits of what the caller may do to a group.
func (p *plane) authorizedGroupOperations(c caller, id string) int32 {
	var bits int32
	for _, op := range []kmsg.ACLOperation{
		kmsg.ACLOperationRead, kmsg.ACLOperationDelete, kmsg.ACLOperationDescribe,
		kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationAlterConfigs,
	} {
		if p.k.authorized(c, op, kmsg.ACLResourceTypeGroup, id) {
			bits |= 1 << op
		}
	}
	return bits
}

// groupListing is a share group as ListGroups shows it.
type groupListing struct {
	id    string
	state string // "Empty" or "Stable"
}

// listGroups returns all share groups, by ID. ListGroups asks one broker for
// the groups that it coordinates, so pass that broker; -1 stands for all.
func (p *plane) listGroups(broker int32) []groupListing {
	p.mu.Lock()
	groups := slices.Collect(maps.Values(p.groups))
	p.mu.Unlock()
	slices.SortFunc(groups, func(a, b *shareGroup) int { return slices.Compare([]byte(a.id), []byte(b.id)) })
	var out []groupListing
	for _, g := range groups {
		if broker >= 0 && p.k.coordinator(g.id) != broker {
			continue
		}
		g.mu.Lock()
		out = append(out, groupListing{g.id, g.stateLocked()})
		g.mu.Unlock()
	}
	return out
}

// deleteGroup is what DeleteGroups does to a share group: an empty one goes,
// with its state. It reports false if there is no share group with that ID. The
// caller has checked DELETE on the group.
func (p *plane) deleteGroup(ctx context.Context, id string) (code int16, found bool) {
	g, err := p.lockGroup(ctx, id, false)
	switch {
	case err != nil:
		return kerr.RequestTimedOut.Code, true
	case g == nil:
		return 0, false
	}
	defer g.unlock()
	if g.size() > 0 {
		return kerr.NonEmptyGroup.Code, true
	}
	if code := p.removeState(ctx, g, func(shareStateKey) bool { return true }); code != 0 {
		return code, true
	}
	g.mu.Lock()
	g.dead = true
	g.mu.Unlock()
	p.mu.Lock()
	delete(p.groups, id)
	p.mu.Unlock()
	return 0, true
}

// groupKeys lists the share-partitions of a group that have state.
func (p *plane) groupKeys(id string) []shareStateKey {
	return slices.DeleteFunc(p.co.keys(), func(k shareStateKey) bool { return k.group != id })
}
