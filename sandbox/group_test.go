package sandbox

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestHeartbeatErrors(t *testing.T) {
	beat := func(group, member string, epoch int32, topics ...string) *kmsg.ShareGroupHeartbeatRequest {
		return &kmsg.ShareGroupHeartbeatRequest{Version: 1, GroupID: group, MemberID: member, MemberEpoch: epoch, SubscribedTopicNames: topics}
	}
	rack := " "
	for _, row := range []struct {
		name   string
		req    *kmsg.ShareGroupHeartbeatRequest
		broker int32
		deny   string
		want   *kerr.Error
	}{
		{"a join", beat("g", "n", 0, "in"), 0, "", nil},
		{"no group", beat("", "n", 0, "in"), 0, "", kerr.InvalidRequest},
		{"no member ID", beat("g", "", 0, "in"), 0, "", kerr.InvalidRequest},
		{"a member ID of 37 characters", beat("g", strings.Repeat("n", 37), 0, "in"), 0, "", kerr.InvalidRequest},
		{"an epoch below -1", beat("g", "n", -2, "in"), 0, "", kerr.InvalidRequest},
		{"a join without topics", beat("g", "n", 0), 0, "", kerr.InvalidRequest},
		{"an empty rack", &kmsg.ShareGroupHeartbeatRequest{Version: 1, GroupID: "g", MemberID: "n", RackID: &rack, SubscribedTopicNames: []string{"in"}}, 0, "", kerr.InvalidRequest},
		{"another broker", beat("g", "n", 0, "in"), 1, "", kerr.NotCoordinator},
		{"no READ on the group", beat("g", "n", 0, "in"), 0, "g", kerr.GroupAuthorizationFailed},
		{"no DESCRIBE on a topic", beat("g", "n", 0, "in"), 0, "in", kerr.TopicAuthorizationFailed},
		{"a heartbeat to a group that is not there", beat("h", "m", 1), 0, "", kerr.GroupIDNotFound},
		{"leaving a group that is not there", beat("h", "m", -1), 0, "", kerr.GroupIDNotFound},
		{"a heartbeat of a stranger", beat("g", "n", 1), 0, "", kerr.UnknownMemberID},
		{"a stranger that leaves", beat("g", "n", -1), 0, "", kerr.UnknownMemberID},
		{"the current epoch", beat("g", "m", 3), 0, "", nil},
		{"the epoch before it", beat("g", "m", 1), 0, "", nil},
		{"an epoch that the member never had", beat("g", "m", 2), 0, "", kerr.FencedMemberEpoch},
		{"an epoch to come", beat("g", "m", 4), 0, "", kerr.FencedMemberEpoch},
		{"joining again", beat("g", "m", 0, "in"), 0, "", nil},
		{"one member too many", beat("full", "n", 0, "in"), 0, "", kerr.GroupMaxSizeReached},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip")
				r.k.topic("in", 3)
				r.heartbeat("g", "m", 0, "in")
				r.heartbeat("g", "o", 0, "in")
				r.heartbeat("g", "p", 0, "in")
				r.heartbeat("g", "m", 1) // its epoch goes from 1 to 3
				r.heartbeat("full", "m", 0, "in")
				if row.req.GroupID == "full" {
					r.k.set("group.share.max.size", "1")
				}
				if row.deny != "" {
					r.k.deny(row.deny)
				}
				resp := ask[*kmsg.ShareGroupHeartbeatResponse](r, r.on(row.broker), row.req)
				r.wantCode(resp.ErrorCode, row.want)
				if (resp.ErrorMessage == nil) != (row.want == nil) {
					t.Errorf("error message %v", resp.ErrorMessage)
				}
			})
		})
	}
}

func TestHeartbeatEpochsAndAssignments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		id := r.k.topic("in", 4)
		steps := []struct {
			name   string
			member string
			epoch  int32
			topics []string
			before func()
			want   int32   // member epoch
			parts  []int32 // assigned; nil is no assignment in the response
		}{
			{"the first member gets all", "m", 0, []string{"in"}, nil, 1, []int32{0, 1, 2, 3}},
			{"nothing changed", "m", 1, nil, nil, 1, nil},
			{"a full request gets the assignment", "m", 1, []string{"in"}, nil, 1, []int32{0, 1, 2, 3}},
			{"a second member gets its half at once", "n", 0, []string{"in"}, nil, 2, []int32{2, 3}},
			{"the first hears of it with its next heartbeat", "m", 1, nil, nil, 2, []int32{0, 1}},
			{"the response was lost", "m", 1, nil, nil, 2, nil},
			{"the topic grows", "m", 2, nil, func() { r.growTopic("in", 6) }, 3, []int32{0, 1, 4}},
			{"the second hears of that", "n", 2, nil, nil, 3, []int32{2, 3, 5}},
			{"a topic that is not there yet", "n", 3, []string{"in", "later"}, nil, 4, []int32{2, 3, 5}},
			{"it is made", "n", 4, nil, func() { r.k.topic("later", 1) }, 5, []int32{2, 3, 5}},
			{"the first leaves", "m", -1, nil, nil, -1, nil},
			{"the second gets the rest", "n", 5, nil, nil, 6, []int32{0, 1, 2, 3, 4, 5}},
		}
		for _, s := range steps {
			if s.before != nil {
				s.before()
			}
			resp := r.heartbeat("g", s.member, s.epoch, s.topics...)
			if resp.ErrorCode != 0 || resp.MemberEpoch != s.want {
				t.Fatalf("%s: member epoch %d, %s, want %d", s.name, resp.MemberEpoch, errorName(resp.ErrorCode), s.want)
			}
			var got []int32
			if resp.Assignment != nil {
				for _, tp := range resp.Assignment.TopicPartitions {
					if tp.TopicID == id {
						got = tp.Partitions
					}
				}
			}
			if !slices.Equal(got, s.parts) {
				t.Fatalf("%s: assigned %v, want %v", s.name, got, s.parts)
			}
		}
	})
}

// growTopic adds partitions to a topic.
func (r *planeRig) growTopic(name string, partitions int) {
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	for _, t := range r.k.topics {
		if t.name != name {
			continue
		}
		for n := len(t.parts); n < partitions; n++ {
			t.parts = append(t.parts, &fakePartition{partitionInfo: partitionInfo{leader: int32(n % 3), leaderEpoch: 1}})
		}
		t.partitions = int32(partitions)
	}
}

// A share-partition is assigned once it is initialised, and not before.
func TestHeartbeatInitialises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		id := r.k.topic("in", 2)
		r.co.refuse = func(k shareStateKey) int16 {
			if k.partition == 1 {
				return kerr.CoordinatorNotAvailable.Code
			}
			return 0
		}
		assigned := func(resp *kmsg.ShareGroupHeartbeatResponse, want ...int32) {
			t.Helper()
			if got := resp.Assignment.TopicPartitions; len(got) != 1 || got[0].TopicID != id || !slices.Equal(got[0].Partitions, want) {
				t.Fatalf("assigned %+v, want %v", got, want)
			}
		}
		first := r.heartbeat("g", "m", 0, "in")
		assigned(first, 0)
		if st, _ := r.co.read(t.Context(), shareStateKey{"g", id, 0}, -1); st.startOffset != -1 || st.stateEpoch != first.MemberEpoch {
			t.Errorf("state %+v, want start offset -1 and state epoch %d", st, first.MemberEpoch)
		}
		r.co.refuse = nil
		second := r.heartbeat("g", "m", first.MemberEpoch)
		assigned(second, 0, 1)
		if second.MemberEpoch != first.MemberEpoch+1 {
			t.Errorf("member epoch %d after %d", second.MemberEpoch, first.MemberEpoch)
		}
	})
}

// A member that is silent is out after the session timeout; what it acquired
// stays acquired until its locks run out, since its share session goes on.
func TestMemberExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 3})
		r.k.set("share.session.timeout.ms", "10000")
		m := r.join("g", "m", "in", 0, 0)
		bubbleSleep(9 * time.Second)
		if resp := r.heartbeat("g", "m", m.epoch); resp.ErrorCode != 0 || resp.HeartbeatIntervalMillis != 5000 {
			t.Fatalf("heartbeat: %s, interval %d ms, want 5000", errorName(resp.ErrorCode), resp.HeartbeatIntervalMillis)
		}
		m.fetch(10)
		bubbleSleep(9 * time.Second)
		r.wantCode(r.heartbeat("g", "m", m.epoch).ErrorCode, nil)
		bubbleSleep(11 * time.Second)
		r.wantCode(r.heartbeat("g", "m", m.epoch).ErrorCode, kerr.UnknownMemberID)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 2, ackAccept), kerr.UnknownMemberID)
		r.wantStates("g", "in", 0, "0-2 ACQUIRED")
		bubbleSleep(11 * time.Second)
		r.wantStates("g", "in", 0, "0-2 AVAILABLE")
	})
}

func TestShareGroupDescribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 2)
		r.heartbeat("g", "m", 0, "in", "later")
		describe := func(c caller, group string) kmsg.ShareGroupDescribeResponseGroup {
			req := &kmsg.ShareGroupDescribeRequest{Version: 1, GroupIDs: []string{group}, IncludeAuthorizedOperations: true}
			return ask[*kmsg.ShareGroupDescribeResponse](r, c, req).Groups[0]
		}
		g := describe(r.on(0), "g")
		if g.ErrorCode != 0 || g.GroupState != "Stable" || g.GroupEpoch != 1 || g.AssignmentEpoch != 1 || g.Assignor != "simple" || len(g.Members) != 1 {
			t.Fatalf("group %+v", g)
		}
		if want := int32(1<<kmsg.ACLOperationRead | 1<<kmsg.ACLOperationDelete | 1<<kmsg.ACLOperationDescribe | 1<<kmsg.ACLOperationDescribeConfigs | 1<<kmsg.ACLOperationAlterConfigs); g.AuthorizedOperations != want {
			t.Errorf("authorized operations %b, want %b", g.AuthorizedOperations, want)
		}
		m := g.Members[0]
		if m.MemberID != "m" || m.MemberEpoch != 1 || m.ClientID != "test" || !slices.Equal(m.SubscribedTopicNames, []string{"in", "later"}) {
			t.Errorf("member %+v", m)
		}
		if a := m.Assignment.TopicPartitions; len(a) != 1 || a[0].Topic != "in" || !slices.Equal(a[0].Partitions, []int32{0, 1}) {
			t.Errorf("assignment %+v, want partitions 0 and 1 of in", m.Assignment)
		}
		r.wantCode(describe(r.on(1), "g").ErrorCode, kerr.NotCoordinator)
		if none := describe(r.on(0), "none"); none.ErrorCode != kerr.GroupIDNotFound.Code || none.GroupState != "Dead" {
			t.Errorf("unknown group: %s, %s, want GROUP_ID_NOT_FOUND and Dead", errorName(none.ErrorCode), none.GroupState)
		}
		r.heartbeat("g", "m", -1)
		if g := describe(r.on(0), "g"); g.GroupState != "Empty" || g.GroupEpoch != 2 {
			t.Errorf("after the last member left: %s in epoch %d, want Empty in 2", g.GroupState, g.GroupEpoch)
		}
		r.heartbeat("g", "m", 0, "in")
		r.k.deny("in")
		if g := describe(r.on(0), "g"); g.ErrorCode != kerr.TopicAuthorizationFailed.Code || len(g.Members) != 0 {
			t.Errorf("with a topic denied: %s and %d members, want TOPIC_AUTHORIZATION_FAILED and none", errorName(g.ErrorCode), len(g.Members))
		}
		r.k.deny("g")
		r.wantCode(describe(r.on(0), "g").ErrorCode, kerr.GroupAuthorizationFailed)
	})
}

// listGroups and deleteGroup stand behind ListGroups and DeleteGroups.
func TestListAndDeleteGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 2)
		r.heartbeat("b", "m", 0, "in")
		r.heartbeat("a", "m", 0, "in")
		r.heartbeat("a", "m", -1)
		if got, want := r.p.listGroups(0), []groupListing{{"a", "Empty"}, {"b", "Stable"}}; !slices.Equal(got, want) {
			t.Errorf("listGroups(0) = %v, want %v", got, want)
		}
		if got := r.p.listGroups(1); len(got) != 0 {
			t.Errorf("listGroups(1) = %v, want none", got)
		}
		for _, row := range []struct {
			id    string
			code  int16
			found bool
		}{{"none", 0, false}, {"b", kerr.NonEmptyGroup.Code, true}, {"a", 0, true}, {"a", 0, false}} {
			if code, found := r.p.deleteGroup(t.Context(), row.id); code != row.code || found != row.found {
				t.Errorf("deleteGroup(%q) = %s, %v, want %s, %v", row.id, errorName(code), found, errorName(row.code), row.found)
			}
		}
		for _, k := range r.co.keys() {
			if k.group == "a" {
				t.Errorf("the state of %v is left", k)
			}
		}
		if resp := r.heartbeat("a", "m", 0, "in"); resp.ErrorCode != 0 || resp.MemberEpoch != 1 {
			t.Errorf("joining it again: %s, epoch %d, want 1", errorName(resp.ErrorCode), resp.MemberEpoch)
		}
	})
}

// The state of a topic goes with it.
func TestDeletedTopicLosesItsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.topic("gone", 1)
		epoch := r.heartbeat("g", "m", 0, "in", "gone").MemberEpoch
		r.k.deleteTopic("gone")
		resp := r.heartbeat("g", "m", epoch)
		if resp.Assignment == nil || len(resp.Assignment.TopicPartitions) != 1 {
			t.Errorf("assignment %+v, want the topic that is left", resp.Assignment)
		}
		if keys := r.co.keys(); len(keys) != 1 {
			t.Errorf("state of %v, want that of one share-partition", keys)
		}
	})
}

// assignCheck fails the test unless an assignment is complete and even.
func assignCheck(t *testing.T, topics []assignTopic, target map[string]memberAssignment) {
	t.Helper()
	for _, at := range topics {
		held := make(map[int32]int)
		for _, m := range at.members {
			for _, n := range target[m][at.id] {
				held[n]++
			}
		}
		for _, n := range at.partitions {
			if held[n] == 0 {
				t.Fatalf("partition %d of %v has no member: %v", n, at.id[0], target)
			}
		}
	}
	subscribed := make(map[string][]assignTopic)
	for _, at := range topics {
		for _, m := range at.members {
			subscribed[m] = append(subscribed[m], at)
		}
	}
	for m, a := range target {
		for id, parts := range a {
			if !slices.ContainsFunc(subscribed[m], func(at assignTopic) bool { return at.id == id }) {
				t.Fatalf("%s has partitions of a topic that it does not subscribe to", m)
			}
			if !slices.IsSorted(parts) || len(slices.Compact(slices.Clone(parts))) != len(parts) {
				t.Fatalf("%s has %v", m, parts)
			}
		}
	}
	for m := range subscribed {
		if len(target[m]) == 0 {
			t.Fatalf("%s has nothing: %v", m, target)
		}
	}
}

// evenness returns the least and the most partitions of a member.
func evenness(members []string, target map[string]memberAssignment) (least, most int) {
	least = 1 << 30
	for _, m := range members {
		n := 0
		for _, parts := range target[m] {
			n += len(parts)
		}
		least, most = min(least, n), max(most, n)
	}
	return least, most
}

// moved counts the partitions that a member has in one and not in the other.
func moved(from, to map[string]memberAssignment) int {
	n := 0
	for m, a := range from {
		for id, parts := range a {
			for _, p := range parts {
				if !slices.Contains(to[m][id], p) {
					n++
				}
			}
		}
	}
	return n
}

func testTopic(id byte, partitions int, members ...string) assignTopic {
	at := assignTopic{id: [16]byte{id}, members: members}
	for n := range partitions {
		at.partitions = append(at.partitions, int32(n))
	}
	return at
}

func TestAssignSimple(t *testing.T) {
	abc := []string{"a", "b", "c"}
	for _, row := range []struct {
		name        string
		topics      []assignTopic
		members     []string
		least, most int
	}{
		{"as many partitions as members", []assignTopic{testTopic(1, 3, abc...)}, abc, 1, 1},
		{"more partitions", []assignTopic{testTopic(1, 7, abc...)}, abc, 2, 3},
		{"fewer partitions", []assignTopic{testTopic(1, 2, abc...)}, abc, 1, 1},
		{"one partition for all", []assignTopic{testTopic(1, 1, abc...)}, abc, 1, 1},
		{"topics of one partition make a pool", []assignTopic{testTopic(1, 1, abc...), testTopic(2, 1, abc...), testTopic(3, 1, abc...)}, abc, 1, 1},
		{"members with different topics", []assignTopic{testTopic(1, 4, "a", "b"), testTopic(2, 4, "b", "c")}, abc, 2, 4},
	} {
		t.Run(row.name, func(t *testing.T) {
			target := assignSimple(row.topics, nil)
			assignCheck(t, row.topics, target)
			if least, most := evenness(row.members, target); least != row.least || most != row.most {
				t.Errorf("members have %d to %d partitions, want %d to %d: %v", least, most, row.least, row.most, target)
			}
			if again := assignSimple(row.topics, target); moved(target, again) != 0 {
				t.Errorf("assigning again moved %d partitions", moved(target, again))
			}
		})
	}
}

// When members come and go, assignments stay complete and even, and no more
// moves than has to.
func TestAssignSimpleKeeps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		partitions := 1 + rng.IntN(12)
		members := make(map[string]bool)
		var target map[string]memberAssignment
		for range 12 {
			before := len(members)
			m := fmt.Sprint("m", rng.IntN(9))
			if members[m] && len(members) > 1 {
				delete(members, m)
				delete(target, m)
			} else {
				members[m] = true
			}
			ids := slices.Sorted(maps.Keys(members))
			topics := []assignTopic{testTopic(1, partitions, ids...)}
			next := assignSimple(topics, target)
			assignCheck(t, topics, next)
			least, most := evenness(ids, next)
			if most-least > 1 {
				t.Fatalf("%d members, %d partitions: %d to %d each", len(ids), partitions, least, most)
			}
			if len(ids) <= partitions && before <= partitions && len(ids) > before {
				// One came: it takes its share, and nothing else moves.
				if n := moved(target, next); n > (partitions+len(ids)-1)/len(ids) {
					t.Fatalf("%d moved when one of %d members joined on %d partitions", n, len(ids), partitions)
				}
			}
			target = next
		}
	}
}
