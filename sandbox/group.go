package sandbox

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Share groups as their group coordinator keeps them (KIP-932).
//
// A change of members, of what they subscribe to, or of the topics behind that
// raises the group epoch and computes the assignment anew. A member learns its
// part, and takes over the group epoch, with its own next heartbeat: nothing is
// revoked first, since several members may hold one partition.
//
// Leaving and expiring end the membership only. What the member acquired is
// released when its share session closes, or when the locks run out.

// groupMember is one member of a share group.
type groupMember struct {
	id            string
	rackID        *string
	clientID      string
	clientHost    string
	epoch         int32
	previousEpoch int32
	topics        []string // sorted
	told          memberAssignment
	timer         *time.Timer
	deadline      time.Time // of its session
}

// memberAssignment is the partitions of one member, ascending, by topic.
type memberAssignment map[[16]byte][]int32

func (a memberAssignment) equal(o memberAssignment) bool {
	return maps.EqualFunc(a, o, func(x, y []int32) bool { return slices.Equal(x, y) })
}

// shareGroup is one share group.
type shareGroup struct {
	id string

	// op serialises what changes the group, and is held while new
	// share-partitions are initialised.
	op chan struct{}

	mu      sync.Mutex
	epoch   int32
	members map[string]*groupMember
	target  map[string]memberAssignment // by member ID
	topics  map[string]topicInfo        // that target was computed on
	ready   map[[16]byte]map[int32]bool // share-partitions that have state
	dead    bool                        // deleted
}

func newShareGroup(id string) *shareGroup {
	return &shareGroup{
		id: id, op: make(chan struct{}, 1),
		members: make(map[string]*groupMember),
		target:  make(map[string]memberAssignment),
		topics:  make(map[string]topicInfo),
		ready:   make(map[[16]byte]map[int32]bool),
	}
}

// setReady notes that share-partitions have state, or have it no more.
func (g *shareGroup) setReady(topicID [16]byte, partition int32, ready bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !ready {
		delete(g.ready[topicID], partition)
		return
	}
	if g.ready[topicID] == nil {
		g.ready[topicID] = make(map[int32]bool)
	}
	g.ready[topicID][partition] = true
}

// checkMember returns UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH unless the member
// is in the group with that epoch.
func (g *shareGroup) checkMember(id string, epoch int32) int16 {
	if g == nil {
		return kerr.UnknownMemberID.Code
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch m := g.members[id]; {
	case m == nil:
		return kerr.UnknownMemberID.Code
	case m.epoch != epoch:
		return kerr.StaleMemberEpoch.Code
	}
	return 0
}

// size returns the number of members.
func (g *shareGroup) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.members)
}

// state returns the group state as ShareGroupDescribe names it.
func (g *shareGroup) stateLocked() string {
	if len(g.members) == 0 {
		return "Empty"
	}
	return "Stable"
}

// subscriptionLocked returns the topics that any member subscribes to, sorted.
func (g *shareGroup) subscriptionLocked() []string {
	names := make(map[string]struct{})
	for _, m := range g.members {
		for _, t := range m.topics {
			names[t] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// rebalanceLocked raises the group epoch and computes the assignment on topics,
// of which only partitions that are ready are assigned.
func (g *shareGroup) rebalanceLocked(topics map[string]topicInfo) {
	g.epoch++
	g.topics = topics
	subscribers := make(map[string][]string) // members by topic, sorted
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		for _, t := range g.members[id].topics {
			subscribers[t] = append(subscribers[t], id)
		}
	}
	var wanted []assignTopic
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		t := topics[name]
		at := assignTopic{id: t.id, members: subscribers[name]}
		for n := range t.partitions {
			if g.ready[t.id][n] {
				at.partitions = append(at.partitions, n)
			}
		}
		if len(at.members) > 0 && len(at.partitions) > 0 {
			wanted = append(wanted, at)
		}
	}
	g.target = assignSimple(wanted, g.target)
}

// removeLocked takes a member out of the group.
func (g *shareGroup) removeLocked(m *groupMember) {
	if m.timer != nil {
		m.timer.Stop()
	}
	delete(g.members, m.id)
	delete(g.target, m.id)
	topics := maps.Clone(g.topics)
	subscribed := g.subscriptionLocked()
	maps.DeleteFunc(topics, func(name string, _ topicInfo) bool {
		_, ok := slices.BinarySearch(subscribed, name)
		return !ok
	})
	g.rebalanceLocked(topics)
}

func (g *shareGroup) stopTimers() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		if m.timer != nil {
			m.timer.Stop()
		}
	}
}

func (g *shareGroup) snapshot(topicName func([16]byte) string) groupSnapshot {
	g.mu.Lock()
	s := groupSnapshot{GroupID: g.id, State: g.stateLocked(), GroupEpoch: g.epoch, Members: []memberSnapshot{}}
	told := make([]memberAssignment, 0, len(g.members))
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		m := g.members[id]
		s.Members = append(s.Members, memberSnapshot{
			MemberID: id, MemberEpoch: m.epoch, ClientID: m.clientID,
			Topics: slices.Clone(m.topics), Assignment: make(map[string][]int32),
		})
		told = append(told, m.told)
	}
	g.mu.Unlock()
	for i, a := range told { // an assignment is replaced, never changed
		for id, partitions := range a {
			s.Members[i].Assignment[topicName(id)] = partitions
		}
	}
	return s
}

// assignTopic is a topic to assign: its partitions and its subscribers, sorted.
type assignTopic struct {
	id         [16]byte
	partitions []int32
	members    []string
}

// assignSimple is the assignor of share groups, "simple". Every partition goes
// to at least one of its topic's subscribers and every subscriber gets at least
// one partition. With as many partitions as members, or more, each has one
// member; with fewer, members share them. Both are spread evenly, and what a
// member has it keeps where that allows.
//
// Topics with the same subscribers are one pool: evenness holds over all of
// them together.
func assignSimple(topics []assignTopic, current map[string]memberAssignment) map[string]memberAssignment {
	type pool struct {
		members    []string
		partitions []sessionPartition
	}
	var pools []*pool
	for _, t := range topics {
		i := slices.IndexFunc(pools, func(p *pool) bool { return slices.Equal(p.members, t.members) })
		if i < 0 {
			i = len(pools)
			pools = append(pools, &pool{members: t.members})
		}
		for _, n := range t.partitions {
			pools[i].partitions = append(pools[i].partitions, sessionPartition{t.id, n})
		}
	}
	holds := func(member string, sp sessionPartition) bool {
		_, ok := slices.BinarySearch(current[member][sp.topicID], sp.partition)
		return ok
	}
	target := make(map[string]memberAssignment)
	load := make(map[string]int)
	give := func(member string, sp sessionPartition) {
		if target[member] == nil {
			target[member] = make(memberAssignment)
		}
		target[member][sp.topicID] = append(target[member][sp.topicID], sp.partition)
		load[member]++
	}
	for _, p := range pools {
		if len(p.members) <= len(p.partitions) {
			at := spread(p.partitions, p.members, func(sp sessionPartition, m string) bool { return holds(m, sp) },
				func(m string) int { return load[m] })
			for i, sp := range p.partitions {
				give(p.members[at[i]], sp)
			}
			continue
		}
		at := spread(p.members, p.partitions, holds, func(sessionPartition) int { return 0 })
		for i, m := range p.members {
			give(m, p.partitions[at[i]])
		}
	}
	for _, a := range target {
		for _, partitions := range a {
			slices.Sort(partitions)
		}
	}
	return target
}

// spread puts each item into one bin so that the bins differ by at most one
// item. An item stays in a bin that has it where that is possible; else the
// emptiest bin gets it, with load to decide between equals. It returns the
// index of the bin of each item.
func spread[I, B any](items []I, bins []B, has func(I, B) bool, load func(B) int) []int {
	var (
		at       = make([]int, len(items))
		size     = make([]int, len(bins))
		floor    = len(items) / len(bins)
		larger   = len(items) % len(bins) // bins that may hold one more than floor
		put      = func(item, bin int) { at[item] = bin; size[bin]++ }
		unplaced []int
	)
	// Two rounds, so that every bin keeps its fair share before any bin keeps
	// one more.
	for i := range at {
		at[i] = -1
	}
	for _, limit := range []int{floor, floor + 1} {
		for i, it := range items {
			if at[i] >= 0 {
				continue
			}
			best := -1
			for b := range bins {
				room := size[b] < floor || limit > floor && size[b] == floor && larger > 0
				if room && has(it, bins[b]) && (best < 0 || size[b] < size[best]) {
					best = b
				}
			}
			if best < 0 {
				continue
			}
			if size[best] == floor {
				larger--
			}
			put(i, best)
		}
	}
	for i := range items {
		if at[i] < 0 {
			unplaced = append(unplaced, i)
		}
	}
	for _, i := range unplaced {
		best := 0
		for b := range bins {
			if cmp.Or(cmp.Compare(size[b], size[best]), cmp.Compare(load(bins[b]), load(bins[best]))) < 0 {
				best = b
			}
		}
		put(i, best)
	}
	return at
}
