package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ShareGroupHeartbeat: v1 (KIP-932)
//
// Behavior:
//   - MemberEpoch 0 joins, with an ID that the client made; -1 leaves; else the
//     epoch must be the member's, or the one before it, since the response that
//     raised it may have been lost
//   - SubscribedTopicNames nil means unchanged
//   - Share-partitions that are new to the group are initialised before they
//     are assigned
//   - The assignment is in the response to a join, to a request that names the
//     topics, and whenever it changed
//   - A member that is silent for the session timeout is out of the group

func (p *plane) handleHeartbeat(ctx context.Context, c caller, req *kmsg.ShareGroupHeartbeatRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.ShareGroupHeartbeatResponse)
	refuse := func(code int16, why string) (kmsg.Response, error) {
		resp.ErrorCode, resp.ErrorMessage = code, message(code)
		if why != "" {
			resp.ErrorMessage = &why
		}
		return resp, nil
	}
	if why := invalidHeartbeat(req); why != "" {
		return refuse(kerr.InvalidRequest.Code, why)
	}
	if p.k.coordinator(req.GroupID) != c.broker {
		return refuse(kerr.NotCoordinator.Code, "")
	}
	if !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeGroup, req.GroupID) {
		return refuse(kerr.GroupAuthorizationFailed.Code, "")
	}
	for _, t := range req.SubscribedTopicNames {
		if !p.k.authorized(c, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeTopic, t) {
			return refuse(kerr.TopicAuthorizationFailed.Code, "")
		}
	}
	g, err := p.lockGroup(ctx, req.GroupID, req.MemberEpoch == 0)
	switch {
	case err != nil:
		return nil, err
	case g == nil:
		return refuse(kerr.GroupIDNotFound.Code, fmt.Sprintf("share group %q not found", req.GroupID))
	}
	defer g.unlock()
	var code int16
	if req.MemberEpoch == -1 {
		code = g.leave(req.MemberID)
		resp.MemberEpoch = -1
	} else {
		code = p.heartbeat(ctx, c, g, req, resp)
	}
	if code != 0 {
		return refuse(code, "")
	}
	resp.MemberID = &req.MemberID
	resp.HeartbeatIntervalMillis = int32(p.configInt(g.id, "share.heartbeat.interval.ms", 5000))
	return resp, nil
}

// invalidHeartbeat says what is wrong with a heartbeat, "" if nothing is.
func invalidHeartbeat(req *kmsg.ShareGroupHeartbeatRequest) string {
	switch {
	case strings.TrimSpace(req.GroupID) == "":
		return "GroupId can't be empty."
	case !validMemberID(req.MemberID) || strings.TrimSpace(req.MemberID) == "":
		return "MemberId must have 1 to 36 characters."
	case req.RackID != nil && strings.TrimSpace(*req.RackID) == "":
		return "RackId can't be empty."
	case req.MemberEpoch < -1:
		return "MemberEpoch is invalid."
	case req.MemberEpoch == 0 && len(req.SubscribedTopicNames) == 0:
		return "SubscribedTopicNames must be set in first request."
	}
	return ""
}

// heartbeat handles a join or a later heartbeat; the caller holds g.op.
func (p *plane) heartbeat(ctx context.Context, c caller, g *shareGroup, req *kmsg.ShareGroupHeartbeatRequest, resp *kmsg.ShareGroupHeartbeatResponse) int16 {
	now := p.cfg.now()
	g.mu.Lock()
	m, changed, code := g.member(c, req, int(p.brokerInt("group.share.max.size", 200)))
	names := g.subscriptionLocked()
	g.mu.Unlock()
	if code != 0 {
		return code
	}

	topics := make(map[string]topicInfo, len(names))
	for _, name := range names {
		if t, ok := p.k.topicByName(name); ok {
			topics[name] = t
		}
	}
	p.forgetDeleted(ctx, g)
	if p.initialise(ctx, g, topics) {
		changed = true
	}
	timeout := time.Duration(p.configInt(g.id, "share.session.timeout.ms", 45_000)) * time.Millisecond

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members[m.id] != m {
		return kerr.UnknownMemberID.Code // expired meanwhile
	}
	if changed || !maps.Equal(topics, g.topics) {
		g.rebalanceLocked(topics)
	}
	if m.epoch != g.epoch {
		m.previousEpoch, m.epoch = m.epoch, g.epoch
	}
	p.restartSession(g, m, now, timeout)

	target := g.target[m.id]
	if req.MemberEpoch == 0 || req.SubscribedTopicNames != nil || !m.told.equal(target) {
		resp.Assignment = heartbeatAssignment(target)
		m.told = target
	}
	resp.MemberEpoch = m.epoch
	return 0
}

// member finds or makes the member of a heartbeat and takes over what the
// request says of it; changed reports a new subscription. The caller holds the
// mutex of g.
func (g *shareGroup) member(c caller, req *kmsg.ShareGroupHeartbeatRequest, maxSize int) (m *groupMember, changed bool, code int16) {
	m = g.members[req.MemberID]
	switch {
	case m == nil && req.MemberEpoch != 0:
		return nil, false, kerr.UnknownMemberID.Code
	case m == nil && len(g.members) >= maxSize:
		return nil, false, kerr.GroupMaxSizeReached.Code
	case m == nil:
		m = &groupMember{id: req.MemberID}
		g.members[m.id] = m
		changed = true
	case req.MemberEpoch != 0 && req.MemberEpoch != m.epoch && req.MemberEpoch != m.previousEpoch:
		return nil, false, kerr.FencedMemberEpoch.Code
	}
	m.clientID, m.clientHost = c.clientID, c.host
	if req.RackID != nil {
		m.rackID = req.RackID
	}
	if req.SubscribedTopicNames != nil {
		topics := slices.Compact(slices.Sorted(slices.Values(req.SubscribedTopicNames)))
		changed = changed || !slices.Equal(topics, m.topics)
		m.topics = topics
	}
	return m, changed, 0
}

// leave takes a member out of the group at its own wish.
func (g *shareGroup) leave(memberID string) int16 {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.members[memberID]
	if m == nil {
		return kerr.UnknownMemberID.Code
	}
	g.removeLocked(m)
	return 0
}

// restartSession lets the session of a member run from now on; the caller holds
// the mutex of g.
func (p *plane) restartSession(g *shareGroup, m *groupMember, now time.Time, timeout time.Duration) {
	m.deadline = now.Add(timeout)
	if m.timer != nil {
		m.timer.Reset(timeout)
		return
	}
	m.timer = p.after(timeout, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.members[m.id] != m {
			return
		}
		if left := m.deadline.Sub(p.cfg.now()); left > 0 {
			m.timer.Reset(left) // a heartbeat came between
			return
		}
		p.cfg.logf("share group %q: member %s: session timed out", g.id, m.id)
		g.removeLocked(m)
	})
}

// initialise gives state to the share-partitions of topics that have none, true
// if that made any of them assignable. One that fails is tried again with the
// next heartbeat. The caller holds g.op.
func (p *plane) initialise(ctx context.Context, g *shareGroup, topics map[string]topicInfo) bool {
	g.mu.Lock()
	epoch := g.epoch + 1 // that the group has once it assigns them
	var missing []shareStateKey
	for _, t := range topics {
		for n := range t.partitions {
			if !g.ready[t.id][n] {
				missing = append(missing, shareStateKey{g.id, t.id, n})
			}
		}
	}
	g.mu.Unlock()
	slices.SortFunc(missing, compareStateKeys)
	done := false
	for _, k := range missing {
		if code := p.co.initialize(ctx, k, epoch, -1); code != 0 {
			p.cfg.logf("share-partition %s: initialise: %s", k, errorName(code))
			continue
		}
		g.setReady(k.topicID, k.partition, true)
		done = true
	}
	return done
}

// forgetDeleted removes the state that a group has for topics that are gone. The
// caller holds g.op.
func (p *plane) forgetDeleted(ctx context.Context, g *shareGroup) {
	g.mu.Lock()
	ids := slices.Collect(maps.Keys(g.ready))
	g.mu.Unlock()
	for _, id := range ids {
		if _, ok := p.k.topicByID(id); ok {
			continue
		}
		if code := p.removeState(ctx, g, func(k shareStateKey) bool { return k.topicID == id }); code != 0 {
			p.cfg.logf("share group %q: remove the state of topic %s: %s", g.id, topicIDText(id), errorName(code))
			continue
		}
		g.mu.Lock()
		delete(g.ready, id)
		g.mu.Unlock()
	}
}

func heartbeatAssignment(a memberAssignment) *kmsg.ShareGroupHeartbeatResponseAssignment {
	out := new(kmsg.ShareGroupHeartbeatResponseAssignment)
	for _, id := range sortedTopicIDs(a) {
		tp := kmsg.NewShareGroupHeartbeatResponseAssignmentTopicPartition()
		tp.TopicID, tp.Partitions = id, a[id]
		out.TopicPartitions = append(out.TopicPartitions, tp)
	}
	return out
}

func sortedTopicIDs(a memberAssignment) [][16]byte {
	return slices.SortedFunc(maps.Keys(a), func(x, y [16]byte) int { return slices.Compare(x[:], y[:]) })
}

// group returns a share group, nil if there is none.
func (p *plane) group(id string) *shareGroup {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.groups[id]
}

// lockGroup takes op of a share group, which it makes if need be and allowed to;
// nil if there is none. It returns an error when ctx ends first.
func (p *plane) lockGroup(ctx context.Context, id string, create bool) (*shareGroup, error) {
	for {
		g := p.group(id)
		switch {
		case g == nil && create:
			g = p.createGroup(ctx, id)
		case g == nil:
			return nil, nil
		}
		select {
		case g.op <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		g.mu.Lock()
		dead := g.dead
		g.mu.Unlock()
		if !dead {
			return g, nil
		}
		g.unlock() // deleted while we waited
	}
}

func (g *shareGroup) unlock() { <-g.op }

// createGroup returns the share group with that ID, made if need be. What the
// share coordinator knows of it belongs to it.
func (p *plane) createGroup(ctx context.Context, id string) *shareGroup {
	fresh := newShareGroup(id)
	for _, k := range p.co.keys() {
		if k.group != id {
			continue
		}
		fresh.setReady(k.topicID, k.partition, true)
		if st, code := p.co.read(ctx, k, -1); code == 0 {
			fresh.epoch = max(fresh.epoch, st.stateEpoch)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.groups[id]; g != nil {
		return g
	}
	p.groups[id] = fresh
	return fresh
}
