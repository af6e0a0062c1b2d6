package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupsFake is a cluster with share groups, as ListShareGroups asks it.
type groupsFake struct {
	Cluster
	coordinator map[string]int32 // of each group; a broker lists what it coordinates
	listedBy    map[string]int32 // where another broker still lists it
	groups      map[string]kmsg.ShareGroupDescribeResponseGroup
	offsets     map[string]kmsg.DescribeShareGroupOffsetsResponseGroup
	hidden      int16           // code of a group that does not exist
	hiddenTopic int16           // code of a topic that does not exist
	broken      map[int32]error // brokers that fail
	version     int16           // of DescribeShareGroupOffsets

	mu   sync.Mutex
	sent []string // requests, as "node kind n"
}

func (f *groupsFake) note(node int32, kind string, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, fmt.Sprintf("%d %s %d", node, kind, n))
}

func (f *groupsFake) RequestBroker(_ context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	if err := f.broken[node]; err != nil {
		return nil, err
	}
	return f.answer(node, req), nil
}

func (f *groupsFake) Request(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
	return f.answer(-1, req), nil
}

func (f *groupsFake) Topics(context.Context, ...string) (map[string]cluster.Topic, error) {
	return nil, kerr.ErrorForCode(f.hiddenTopic)
}

// answer answers for a broker, or for whichever is right with -1.
func (f *groupsFake) answer(node int32, req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.ListGroupsRequest:
		f.note(node, "list", len(req.TypesFilter))
		resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
		for id, at := range f.coordinator {
			if by, ok := f.listedBy[id]; ok {
				at = by
			}
			if at == node {
				resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{Group: id, GroupState: "Stable", GroupType: "share"})
			}
		}
		if node == 0 { // a broker that does not know the filter
			resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{Group: "consumers", GroupState: "Stable", GroupType: "consumer"})
		}
		return resp
	case *kmsg.ShareGroupDescribeRequest:
		f.note(node, "describe", len(req.GroupIDs))
		resp := req.ResponseKind().(*kmsg.ShareGroupDescribeResponse)
		for _, id := range req.GroupIDs {
			g, ok := f.groups[id]
			switch at, known := f.coordinator[id]; {
			case !known || !ok && g.ErrorCode == 0:
				g.ErrorCode = f.hidden
			case node >= 0 && at != node:
				g = kmsg.ShareGroupDescribeResponseGroup{ErrorCode: kerr.NotCoordinator.Code}
			}
			g.GroupID = id
			resp.Groups = append(resp.Groups, g)
		}
		return resp
	case *kmsg.DescribeShareGroupOffsetsRequest:
		f.note(node, "offsets", len(req.Groups))
		resp := req.ResponseKind().(*kmsg.DescribeShareGroupOffsetsResponse)
		resp.Version = f.version
		for _, rg := range req.Groups {
			g := f.offsets[rg.GroupID]
			if node >= 0 && f.coordinator[rg.GroupID] != node {
				g = kmsg.DescribeShareGroupOffsetsResponseGroup{ErrorCode: kerr.NotCoordinator.Code}
			}
			g.GroupID = rg.GroupID
			resp.Groups = append(resp.Groups, g)
		}
		return resp
	}
	panic(fmt.Sprintf("unexpected request %T", req))
}

// shareBrokers returns brokers that know share groups.
func shareBrokers(nodes ...int32) []cluster.BrokerVersions {
	var out []cluster.BrokerVersions
	for _, n := range nodes {
		out = append(out, cluster.BrokerVersions{NodeID: n, Keys: map[int16]cluster.VersionRange{int16(kmsg.ShareGroupDescribe): {Max: 1}}})
	}
	return out
}

func offsetsOf(topics ...kmsg.DescribeShareGroupOffsetsResponseGroupTopic) kmsg.DescribeShareGroupOffsetsResponseGroup {
	return kmsg.DescribeShareGroupOffsetsResponseGroup{Topics: topics}
}

func topicOffsets(topic string, parts ...kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition) kmsg.DescribeShareGroupOffsetsResponseGroupTopic {
	return kmsg.DescribeShareGroupOffsetsResponseGroupTopic{Topic: topic, TopicID: [16]byte{topic[0]}, Partitions: parts}
}

func partitionOffset(partition int32, start, lag int64) kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition {
	return kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition{Partition: partition, StartOffset: start, LeaderEpoch: 3, Lag: lag}
}

func describedGroup(state string, members ...kmsg.ShareGroupDescribeResponseGroupMember) kmsg.ShareGroupDescribeResponseGroup {
	return kmsg.ShareGroupDescribeResponseGroup{GroupState: state, GroupEpoch: 7, AssignmentEpoch: 6, Assignor: "simple", Members: members}
}

// summarize writes groups in a form to compare: "id state coordinator members:
// topic-partition@start+lag".
func summarize(groups []Group) []string {
	var out []string
	for _, g := range groups {
		s := fmt.Sprintf("%s %s %d %v:", g.GroupID, g.State, g.Coordinator, g.Members)
		for _, p := range g.Partitions {
			s += fmt.Sprintf(" %s-%d@%d+%d", p.Topic, p.Partition, p.StartOffset, p.Lag)
		}
		out = append(out, s)
	}
	return out
}

func TestListShareGroups(t *testing.T) {
	rack := "r1"
	member := func(id string) kmsg.ShareGroupDescribeResponseGroupMember {
		return kmsg.ShareGroupDescribeResponseGroupMember{MemberID: id, RackID: &rack, MemberEpoch: 5, ClientID: "c", ClientHost: "/h"}
	}
	two := func() groupsFake {
		return groupsFake{
			coordinator: map[string]int32{"b": 2, "a": 1},
			groups:      map[string]kmsg.ShareGroupDescribeResponseGroup{"a": describedGroup("Stable", member("m2"), member("m1")), "b": describedGroup("Empty")},
			offsets: map[string]kmsg.DescribeShareGroupOffsetsResponseGroup{
				"a": offsetsOf(topicOffsets("z", partitionOffset(0, 1, 2)), topicOffsets("o", partitionOffset(1, -1, -1), partitionOffset(0, 5, 0))),
				"b": offsetsOf(),
			},
		}
	}
	all := GroupQuery{Members: true, Offsets: true}
	full := []string{"a Stable 1 [m1 m2]: o-0@5+0 o-1@-1+-1 z-0@1+2", "b Empty 2 []:"}
	for name, c := range map[string]struct {
		brokers []cluster.BrokerVersions // default is 0, 1 and 2
		change  func(*groupsFake)
		query   GroupQuery
		want    []string
		gaps    []string // what each has in it, in order
	}{
		"all": {query: all, want: full},
		"names alone": {
			want: []string{"a Stable 1 []:", "b Stable 2 []:"},
		},
		"named ones": {
			query: GroupQuery{GroupIDs: []string{"b", "absent"}, Members: true}, want: []string{"b Empty 2 []:"},
		},
		"none is asked for": {query: GroupQuery{GroupIDs: []string{}, Members: true}},
		"a coordinator that moved": {
			change: func(f *groupsFake) { f.listedBy = map[string]int32{"a": 0} },
			query:  all, want: []string{"a Stable 0 [m1 m2]: o-0@5+0 o-1@-1+-1 z-0@1+2", "b Empty 2 []:"},
		},
		"brokers that do not tell the lag": {
			change: func(f *groupsFake) { f.version = -1 },
			query:  GroupQuery{GroupIDs: []string{"a"}, Offsets: true}, want: []string{"a Stable 1 []: o-0@5+-1 o-1@-1+-1 z-0@1+-1"},
		},
		"deleted while we look": {
			change: func(f *groupsFake) {
				f.groups["a"] = kmsg.ShareGroupDescribeResponseGroup{ErrorCode: kerr.GroupIDNotFound.Code}
				f.offsets["a"] = kmsg.DescribeShareGroupOffsetsResponseGroup{ErrorCode: kerr.GroupIDNotFound.Code}
			},
			query: all, want: []string{"b Empty 2 []:"},
		},
		"groups that are hidden": {
			change: func(f *groupsFake) { f.hidden = kerr.GroupAuthorizationFailed.Code },
			query:  all, want: full,
			gaps: []string{"- ShareGroupDescribe GROUP_AUTHORIZATION_FAILED DESCRIBE on GROUP * --operation Describe --group '*'"},
		},
		"topics that are hidden": {
			change: func(f *groupsFake) { f.hiddenTopic = kerr.TopicAuthorizationFailed.Code },
			query:  all, want: full,
			gaps: []string{"- DescribeShareGroupOffsets TOPIC_AUTHORIZATION_FAILED DESCRIBE on TOPIC * share-partitions --operation Describe --topic '*'"},
		},
		"topics do not matter": {
			change: func(f *groupsFake) { f.hiddenTopic = kerr.TopicAuthorizationFailed.Code },
			query:  GroupQuery{Members: true}, want: []string{"a Stable 1 [m1 m2]:", "b Empty 2 []:"},
		},
		"a group that is listed and denied": {
			change: func(f *groupsFake) {
				f.coordinator["it's"] = 0
				f.groups["it's"] = kmsg.ShareGroupDescribeResponseGroup{ErrorCode: kerr.GroupAuthorizationFailed.Code}
				f.offsets["it's"] = kmsg.DescribeShareGroupOffsetsResponseGroup{ErrorCode: kerr.GroupAuthorizationFailed.Code}
			},
			query: all, want: append(slices.Clone(full), "it's Stable 0 []:"),
			gaps: []string{`- ShareGroupDescribe GROUP_AUTHORIZATION_FAILED DESCRIBE on GROUP it's --group 'it'\''s'`},
		},
		"a named group that is hidden": {
			change: func(f *groupsFake) { f.hidden = kerr.GroupAuthorizationFailed.Code },
			query:  GroupQuery{GroupIDs: []string{"a", "secret"}}, want: []string{"a Stable 1 []:"},
			gaps: []string{"- ShareGroupDescribe GROUP_AUTHORIZATION_FAILED DESCRIBE on GROUP secret"},
		},
		"a topic of a group is denied": {
			change: func(f *groupsFake) {
				f.groups["b"] = kmsg.ShareGroupDescribeResponseGroup{ErrorCode: kerr.TopicAuthorizationFailed.Code}
			},
			query: GroupQuery{Members: true}, want: []string{"a Stable 1 [m1 m2]:", "b Stable 2 []:"},
			gaps: []string{"- ShareGroupDescribe TOPIC_AUTHORIZATION_FAILED DESCRIBE on TOPIC *"},
		},
		"share-partitions that fail": {
			change: func(f *groupsFake) {
				bad := func(p int32) kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition {
					return kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition{Partition: p, StartOffset: 9, ErrorCode: kerr.CoordinatorNotAvailable.Code}
				}
				f.offsets["b"] = offsetsOf(topicOffsets("o", bad(0), bad(1), partitionOffset(2, 8, 3), bad(3)))
			},
			query: GroupQuery{GroupIDs: []string{"b"}, Offsets: true}, want: []string{"b Stable 2 []: o-0@-1+-1 o-1@-1+-1 o-2@8+3 o-3@-1+-1"},
			gaps: []string{`- DescribeShareGroupOffsets COORDINATOR_NOT_AVAILABLE "b" in o-0 and 2 more: `},
		},
		"a broker that fails": {
			change: func(f *groupsFake) { f.broken = map[int32]error{2: errors.New("no such protocol")} },
			query:  all, want: full[:1],
			gaps: []string{"2 ListGroups  broker 2 did not list its share groups: no such protocol"},
		},
		"a coordinator goes down": {
			change: func(f *groupsFake) {
				f.broken, f.listedBy = map[int32]error{1: fmt.Errorf("read: %w", io.EOF)}, map[string]int32{"a": 0}
			},
			query: all, want: []string{"a Stable 0 [m1 m2]: o-0@5+0 o-1@-1+-1 z-0@1+2", "b Empty 2 []:"},
			gaps: []string{"1 ListGroups "},
		},
		"a silent broker": {
			brokers: append(shareBrokers(0, 1), cluster.BrokerVersions{NodeID: 2, Err: cluster.ErrFenced}),
			query:   all, want: full[:1],
			gaps: []string{"2 ListGroups  broker 2 did not answer: fenced unregister it"},
		},
		"old brokers have no share groups": {
			brokers: []cluster.BrokerVersions{{NodeID: 1}}, query: all,
		},
		"share.version is 0": {
			change: func(f *groupsFake) {
				for _, id := range []string{"a", "b"} {
					f.groups[id] = kmsg.ShareGroupDescribeResponseGroup{ErrorCode: kerr.UnsupportedVersion.Code}
					f.offsets[id] = kmsg.DescribeShareGroupOffsetsResponseGroup{ErrorCode: kerr.UnsupportedVersion.Code}
				}
			},
			query: all, want: []string{"a Stable 1 []:", "b Stable 2 []:"},
			gaps: []string{
				`- ShareGroupDescribe UNSUPPORTED_VERSION share.version is 0, so share group "a" can be listed and not described finalize`,
				`- ShareGroupDescribe UNSUPPORTED_VERSION share.version is 0, so share group "b" can be listed and not described finalize`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := two()
			f.hidden, f.hiddenTopic, f.version = kerr.GroupIDNotFound.Code, kerr.UnknownTopicOrPartition.Code, 1
			if c.change != nil {
				c.change(&f)
			}
			f.version = max(f.version, 0)
			if c.brokers == nil {
				c.brokers = shareBrokers(0, 1, 2)
			}
			groups, gaps, err := ListShareGroups(t.Context(), &f, c.brokers, c.query)
			if err != nil {
				t.Fatal(err)
			}
			if got := summarize(groups); !slices.Equal(got, c.want) {
				t.Errorf("groups\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			wantGaps(t, gaps, c.gaps)
		})
	}
}

// wantGaps compares gaps with words that each must have, in order: "broker
// source error" and parts of the rest.
func wantGaps(t *testing.T, gaps []Gap, want []string) {
	t.Helper()
	var got []string
	for _, g := range gaps {
		node, acl := "-", ""
		if g.Broker != nil {
			node = fmt.Sprint(*g.Broker)
		}
		if g.ACL != nil {
			acl = g.ACL.String()
		}
		got = append(got, fmt.Sprintf("%s %s %s %s %s %s", node, g.Source, g.KafkaError, acl, g.Reason, g.Advice))
	}
	if len(got) != len(want) {
		t.Fatalf("gaps\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i := range got {
		for w := range strings.FieldsSeq(want[i]) {
			if !strings.Contains(got[i], w) {
				t.Errorf("gap %q, want %q in it", got[i], want[i])
				break
			}
		}
	}
}

func TestShareGroupDetail(t *testing.T) {
	rack := "r1"
	f := groupsFake{
		coordinator: map[string]int32{"a": 0}, hidden: kerr.GroupIDNotFound.Code,
		groups: map[string]kmsg.ShareGroupDescribeResponseGroup{"a": describedGroup("Stable", kmsg.ShareGroupDescribeResponseGroupMember{
			MemberID: "m", RackID: &rack, MemberEpoch: 5, ClientID: "c", ClientHost: "/h", SubscribedTopicNames: []string{"z", "o"},
			Assignment: kmsg.ShareGroupDescribeResponseGroupMemberAssignment{TopicPartitions: []kmsg.ShareGroupDescribeResponseGroupMemberAssignmentTopicPartition{
				{Topic: "z", Partitions: []int32{1}}, {Topic: "o", Partitions: []int32{2, 0}},
			}},
		})},
	}
	groups, gaps, err := ListShareGroups(t.Context(), &f, shareBrokers(0), GroupQuery{Members: true})
	if err != nil || len(gaps) > 0 || len(groups) != 1 {
		t.Fatalf("ListShareGroups = %+v, %+v, %v", groups, gaps, err)
	}
	want := &GroupDetail{GroupEpoch: 7, AssignmentEpoch: 6, Assignor: "simple", Members: []Member{{
		MemberID: "m", ClientID: "c", ClientHost: "/h", RackID: "r1", MemberEpoch: 5, Topics: []string{"o", "z"},
		Assignment: []TopicPartitions{{"o", []int32{0, 2}}, {"z", []int32{1}}},
	}}}
	if !reflect.DeepEqual(groups[0].Detail, want) {
		t.Errorf("detail %+v, want %+v", groups[0].Detail, want)
	}
}

// A thousand groups with a hundred share-partitions each are asked for in few
// requests.
func TestListShareGroupsInBatches(t *testing.T) {
	f := groupsFake{
		coordinator: make(map[string]int32), groups: make(map[string]kmsg.ShareGroupDescribeResponseGroup),
		offsets: make(map[string]kmsg.DescribeShareGroupOffsetsResponseGroup), hidden: kerr.GroupIDNotFound.Code,
		hiddenTopic: kerr.UnknownTopicOrPartition.Code, version: 1,
	}
	var parts []kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition
	for p := range int32(100) {
		parts = append(parts, partitionOffset(p, 0, int64(p)))
	}
	for i := range 1000 {
		id := fmt.Sprintf("g%04d", i)
		f.coordinator[id], f.groups[id], f.offsets[id] = int32(i%2), describedGroup("Empty"), offsetsOf(topicOffsets("o", parts...))
	}
	groups, gaps, err := ListShareGroups(t.Context(), &f, shareBrokers(0, 1), GroupQuery{Members: true, Offsets: true})
	if err != nil || len(gaps) > 0 || len(groups) != 1000 {
		t.Fatalf("ListShareGroups = %d groups, %+v, %v", len(groups), gaps, err)
	}
	for _, g := range groups {
		if len(g.Partitions) != 100 || g.Detail == nil {
			t.Fatalf("group %+v", g)
		}
	}
	if len(f.sent) != 1+2+2*5+2*10 { // a probe, then by coordinator lists, describes and offsets
		t.Errorf("%d requests: %q", len(f.sent), f.sent)
	}
}

func TestListShareGroupsStops(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	_, _, err := ListShareGroups(ctx, &groupsFake{}, shareBrokers(0), GroupQuery{})
	if err == nil || err.Error() != "stopped" {
		t.Errorf("error %v, want the cause", err)
	}
}
