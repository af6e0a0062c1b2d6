package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupCluster is a fake with the answers that describing a group takes.
type groupCluster struct {
	*fakeCluster
	ends        map[topicPartition]int64
	firsts      map[topicPartition]int64
	endCode     int16
	configs     map[string]string // of every group
	configCode  int16
	topicConfig map[string]string // configDeadLetterAllow, by topic
	otherGroups map[string]string // types of groups that are no share groups, by ID
	detail      map[string]kmsg.ShareGroupDescribeResponseGroup
	deniedGroup string
}

func newGroupCluster() *groupCluster {
	c := &groupCluster{
		fakeCluster: newFakeCluster(),
		ends:        map[topicPartition]int64{{"orders", 0}: 12, {"orders", 1}: 4},
		configs:     map[string]string{"share.record.lock.duration.ms": "30000", "consumer.session.timeout.ms": "45000"},
		otherGroups: map[string]string{"c": "Consumer", "old": "Classic"},
		detail:      map[string]kmsg.ShareGroupDescribeResponseGroup{"g": describedGroup("Stable", memberOf("m1", "orders", 0, 1), memberOf("m2", "orders", 1))},
	}
	for i := range c.versions { // a stock Kafka 4.4, which does not implement the KIP
		c.versions[i].Keys[93], c.versions[i].Keys[94] = cluster.VersionRange{}, cluster.VersionRange{}
		c.versions[i].Supported = map[string]cluster.VersionRange{"share.version": {Max: 2}, "transaction.version": {Max: 2}}
		c.versions[i].Finalized = map[string]int16{"share.version": 2, "transaction.version": 2}
	}
	c.topics[1].Partitions = []cluster.Partition{{Partition: 0, Leader: 0, LeaderEpoch: 4}, {Partition: 1, Leader: 1, LeaderEpoch: 5}}
	c.groups = []Group{
		{GroupID: "g", State: "Stable", Coordinator: 1, Partitions: []SharePartition{
			{Topic: "orders", TopicID: fakeTopicID, Partition: 0, StartOffset: 2, LeaderEpoch: 0, Lag: 9},
			{Topic: "orders", TopicID: fakeTopicID, Partition: 1, StartOffset: -1, Lag: -1},
		}},
		{GroupID: "h", State: "Empty", Coordinator: 2, Partitions: []SharePartition{}},
	}
	c.intercept = c.answer
	return c
}

func memberOf(id, topic string, parts ...int32) kmsg.ShareGroupDescribeResponseGroupMember {
	return kmsg.ShareGroupDescribeResponseGroupMember{
		MemberID: id, MemberEpoch: 7, SubscribedTopicNames: []string{topic},
		Assignment: kmsg.ShareGroupDescribeResponseGroupMemberAssignment{
			TopicPartitions: []kmsg.ShareGroupDescribeResponseGroupMemberAssignmentTopicPartition{{Topic: topic, Partitions: parts}},
		},
	}
}

func (c *groupCluster) answer(_ int32, req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // as kfake has it
	switch req := req.(type) {
	case *kmsg.ListGroupsRequest:
		if req.TypesFilter != nil {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
		for id, typ := range c.otherGroups {
			resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{Group: id, GroupType: typ})
		}
		return resp, nil, true
	case *kmsg.ShareGroupDescribeRequest:
		resp := req.ResponseKind().(*kmsg.ShareGroupDescribeResponse)
		for _, id := range req.GroupIDs {
			g, ok := c.detail[id]
			switch {
			case id == c.deniedGroup:
				g.ErrorCode = kerr.GroupAuthorizationFailed.Code
			case !ok && slices.ContainsFunc(c.groups, func(g Group) bool { return g.GroupID == id }):
				g = describedGroup("Empty")
			case !ok:
				g.ErrorCode = kerr.GroupIDNotFound.Code
			}
			g.GroupID = id
			resp.Groups = append(resp.Groups, g)
		}
		return resp, nil, true
	case *kmsg.ListOffsetsRequest:
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, rt := range req.Topics {
			t := kmsg.NewListOffsetsResponseTopic()
			t.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				p := kmsg.NewListOffsetsResponseTopicPartition()
				p.Partition, p.ErrorCode = rp.Partition, c.endCode
				end, ok := c.ends[topicPartition{rt.Topic, rp.Partition}]
				if !ok && p.ErrorCode == 0 {
					p.ErrorCode = kerr.UnknownTopicOrPartition.Code
				}
				p.Offset = end
				if rp.Timestamp == earliestOffset {
					p.Offset = c.firsts[topicPartition{rt.Topic, rp.Partition}]
				}
				t.Partitions = append(t.Partitions, p)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp, nil, true
	case *kmsg.DescribeConfigsRequest:
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, r := range req.Resources {
			if r.ResourceType == kmsg.ConfigResourceTypeBroker {
				return nil, nil, false
			}
			rr := kmsg.NewDescribeConfigsResponseResource()
			rr.ResourceType, rr.ResourceName, rr.ErrorCode = r.ResourceType, r.ResourceName, c.configCode
			values := c.configs
			if r.ResourceType == kmsg.ConfigResourceTypeTopic {
				values = map[string]string{configDeadLetterAllow: c.topicConfig[r.ResourceName]}
			}
			for name, value := range values {
				rr.Configs = append(rr.Configs, kmsg.DescribeConfigsResponseResourceConfig{
					Name: name, Value: &value, Source: kmsg.ConfigSourceDefaultConfig,
					ConfigSynonyms: []kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{{Name: "group." + name, Value: &value}},
				})
			}
			resp.Resources = append(resp.Resources, rr)
		}
		return resp, nil, true
	}
	return nil, nil, false
}

// groupLines writes a report: the group, then its share-partitions.
func groupLines(r *GroupReport) []string {
	var out []string
	str := func(p any) string {
		switch p := p.(type) {
		case *int:
			if p != nil {
				return fmt.Sprint(*p)
			}
		case *int64:
			if p != nil {
				return fmt.Sprint(*p)
			}
		case *string:
			if p != nil {
				return *p
			}
		}
		return "?"
	}
	for _, g := range r.Groups {
		out = append(out, fmt.Sprintf("%s %s members %s parts %s lag %s", g.GroupID, str(g.State), str(g.MemberCount), str(g.SharePartitionCount), str(g.Lag)))
		if g.GroupDescription == nil {
			continue
		}
		for _, p := range g.SharePartitions {
			line := fmt.Sprintf("%s-%d %s to %s lag %s of %v", p.Topic, p.Partition, str(p.StartOffset), str(p.EndOffset), str(p.Lag), p.Members)
			out = append(out, strings.TrimSpace(line+" "+p.TopicState))
		}
	}
	return out
}

func TestDescribeGroups(t *testing.T) {
	g := "g Stable members 2 parts 2 lag 9"
	described := []string{g, "orders-0 2 to 12 lag 9 of [m1]", "orders-1 ? to 4 lag ? of [m1 m2]"}
	for name, c := range map[string]struct {
		ids    []string
		change func(*groupCluster)
		want   []string
		notes  []string
		gaps   []string
		err    string
	}{
		"all":   {want: []string{g, "h Empty members 0 parts 0 lag 0"}},
		"named": {ids: []string{"g"}, want: described},
		"a lag that is not told": {
			change: func(c *groupCluster) { c.groups[0].Partitions[0].Lag = -1 },
			want:   []string{"g Stable members 2 parts 2 lag ?", "h Empty members 0 parts 0 lag 0"},
		},
		"absent":            {ids: []string{"g", "x"}, want: described, err: `no such share group: "x"`},
		"a consumer group":  {ids: []string{"c"}, err: `group "c" is a consumer group, no share group`},
		"a classic group":   {ids: []string{"old"}, err: `group "old" is a classic group, no share group`},
		"absent, twice":     {ids: []string{"x", "y"}, err: `no such share group: "x"; no such share group: "y"`},
		"empty as can be":   {change: func(c *groupCluster) { c.groups = nil }},
		"named, and hidden": {ids: []string{"s"}, change: func(c *groupCluster) { c.deniedGroup = "s" }, err: `describe share group "s": GROUP_AUTHORIZATION_FAILED`, gaps: []string{"- ShareGroupDescribe GROUP_AUTHORIZATION_FAILED DESCRIBE on GROUP s"}},
		"one of two is hidden": {
			ids: []string{"g", "s"}, change: func(c *groupCluster) { c.deniedGroup = "s" }, want: described,
			gaps: []string{"- ShareGroupDescribe GROUP_AUTHORIZATION_FAILED DESCRIBE on GROUP s"},
		},
		"absent, or of a broker that is silent": {
			ids: []string{"x"}, change: func(c *groupCluster) { c.versions[2].Err = errRefused },
			gaps: []string{"2 ListGroups  broker 2 did not answer"},
		},
		"groups may be hidden": {
			change: func(c *groupCluster) { c.denied[aclGroups] = true; c.intercept = nil },
			gaps:   []string{"- ShareGroupDescribe GROUP_AUTHORIZATION_FAILED DESCRIBE on GROUP *"},
		},
		"a topic that is deleted": {
			ids: []string{"g"}, change: func(c *groupCluster) { c.topics = c.topics[:1] },
			want: []string{g, "orders-0 2 to ? lag 9 of [m1] deleted", "orders-1 ? to ? lag ? of [m1 m2] deleted"},
			notes: []string{
				`topic "orders", which share group "g" has state for, is deleted`,
				`topic "orders", which members of share group "g" subscribe to, does not exist`,
			},
		},
		"a topic that is another one now": {
			ids: []string{"g"}, change: func(c *groupCluster) { c.topics[1].ID = [16]byte{8} },
			want:  []string{g, "orders-0 2 to ? lag 9 of [m1] recreated", "orders-1 ? to ? lag ? of [m1 m2] recreated"},
			notes: []string{`topic "orders" was deleted and created again since share group "g" has state for it`},
		},
		"a lag of records that are deleted": {
			ids: []string{"g"}, change: func(c *groupCluster) { c.firsts = map[topicPartition]int64{{"orders", 0}: 9} }, want: described,
			notes: []string{`the lag of share group "g" in orders-0 counts records that are deleted, until its next acknowledgement there: the log begins at offset 9 and ends at 12, so that of the 9 at most 3 are left`},
		},
		"a lag of which all is deleted": {
			ids: []string{"g"}, change: func(c *groupCluster) { c.firsts = map[topicPartition]int64{{"orders", 0}: 12} }, want: described,
			notes: []string{`the lag of share group "g" in orders-0 counts records that are deleted, until its next acknowledgement there: the log begins at offset 12 and ends at 12, so that of the 9 nothing is left`},
		},
		"a lag that may be of what is there": {
			ids: []string{"g"}, change: func(c *groupCluster) { c.firsts = map[topicPartition]int64{{"orders", 0}: 3} }, want: described,
		},
		"configs that are hidden": {
			ids: []string{"g"}, change: func(c *groupCluster) { c.configCode = kerr.GroupAuthorizationFailed.Code }, want: described,
			gaps: []string{"- DescribeConfigs GROUP_AUTHORIZATION_FAILED DESCRIBE_CONFIGS on GROUP g --operation DescribeConfigs --group 'g'"},
		},
		"ends that are not told": {
			ids: []string{"g"}, change: func(c *groupCluster) { c.endCode = kerr.NotLeaderForPartition.Code },
			want: []string{g, "orders-0 2 to ? lag 9 of [m1]", "orders-1 ? to ? lag ? of [m1 m2]"},
			gaps: []string{"- ListOffsets NOT_LEADER_FOR_PARTITION end offsets of orders-0 and 1 more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newGroupCluster()
			if c.change != nil {
				c.change(f)
			}
			r, err := DescribeGroups(t.Context(), f, GroupOptions{GroupIDs: c.ids})
			if c.err != "" && (err == nil || err.Error() != c.err) || c.err == "" && err != nil {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if got := groupLines(r); !slices.Equal(got, c.want) {
				t.Errorf("report\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if !slices.Equal(r.Notes, c.notes) {
				t.Errorf("notes %q, want %q", r.Notes, c.notes)
			}
			wantGaps(t, r.Gaps, c.gaps)
		})
	}
}

// What is not there, is of another type, and may not be seen are told apart.
func TestDescribeGroupsErrors(t *testing.T) {
	f := newGroupCluster()
	for id, typ := range map[string]string{"x": "", "c": "consumer"} {
		_, err := DescribeGroups(t.Context(), f, GroupOptions{GroupIDs: []string{id}})
		if e, ok := errors.AsType[*GroupNotFoundError](err); !ok || e.Type != typ || !errors.Is(err, kerr.GroupIDNotFound) {
			t.Errorf("error about %s: %v, want a *GroupNotFoundError of type %q", id, err, typ)
		}
	}
	f.deniedGroup = "s"
	_, err := DescribeGroups(t.Context(), f, GroupOptions{GroupIDs: []string{"s"}})
	if a, ok := errors.AsType[*cluster.AuthError](err); !ok || !strings.Contains(a.Hint(), "--operation Describe --group 's'") {
		t.Errorf("error %v, want an *AuthError that says what to grant", err)
	}
	ctx, cancel := contextWithCause(t)
	cancel(errStopped)
	if _, err = DescribeGroups(ctx, f, GroupOptions{}); !errors.Is(err, errStopped) {
		t.Errorf("error %v, want the cause", err)
	}
}

func TestGroupConfigs(t *testing.T) {
	f := newGroupCluster()
	r, err := DescribeGroups(t.Context(), f, GroupOptions{GroupIDs: []string{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	d := r.Groups[0].GroupDescription
	if len(d.Configs) != 1 || d.Configs[0].Name != "share.record.lock.duration.ms" || *d.Configs[0].Value != "30000" ||
		d.Configs[0].Source != "DEFAULT_CONFIG" || d.Configs[0].BrokerConfig != "group.share.record.lock.duration.ms" || *d.RecordLockDurationMS != 30_000 {
		t.Errorf("configs %+v and a lock duration of %d ms, want the one of share groups, and what gives it", d.Configs, *d.RecordLockDurationMS)
	}
	if d.DeadLetterQueue != nil || d.TxPending != nil {
		t.Errorf("description %+v, want neither a dead-letter queue nor TX_PENDING, which the brokers do not know", d)
	}
}

func TestDeadLetterQueue(t *testing.T) {
	const set, name = configDeadLetterTopic, "orders"
	for title, c := range map[string]struct {
		configs map[string]string
		change  func(*groupCluster)
		active  bool
		reason  string // "": there is no queue
	}{
		"brokers that know none": {configs: map[string]string{}},
		"not set":                {configs: map[string]string{set: ""}, reason: "the group names no topic (errors.deadletterqueue.topic.name)"},
		"on": {
			configs: map[string]string{set: name, configDeadLetterCopy: "true"}, active: true,
			change: func(c *groupCluster) { c.topicConfig = map[string]string{name: "true"} },
			reason: `topic "orders" takes rejected records`,
		},
		"not allowed by the topic": {configs: map[string]string{set: name}, reason: `topic "orders" may not be used: errors.deadletterqueue.group.enable is not true there`},
		"no such topic":            {configs: map[string]string{set: "dlq"}, reason: `topic "dlq" does not exist`},
		"a level without": {
			configs: map[string]string{set: name}, reason: "share.version is 1, and dead-letter queues need 2",
			change: func(c *groupCluster) {
				for i := range c.versions {
					c.versions[i].Finalized["share.version"] = 1
				}
			},
		},
	} {
		t.Run(title, func(t *testing.T) {
			f := newGroupCluster()
			f.configs = c.configs
			if c.change != nil {
				c.change(f)
			}
			r, err := DescribeGroups(t.Context(), f, GroupOptions{GroupIDs: []string{"g"}})
			if err != nil {
				t.Fatal(err)
			}
			q := r.Groups[0].DeadLetterQueue
			switch {
			case c.reason == "":
				if q != nil {
					t.Errorf("queue %+v, want none", q)
				}
			case q == nil || q.Active != c.active || q.Reason != c.reason || (q.Topic == nil) != (c.configs[set] == "") || q.CopyRecord != (c.configs[configDeadLetterCopy] == "true"):
				t.Errorf("queue %+v, want active %t since %q", q, c.active, c.reason)
			}
		})
	}
}
