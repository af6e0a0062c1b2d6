package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rangeLines writes ranges: offsets, state, delivery count, and owners.
func rangeLines(ranges []RangeRow) []string {
	var out []string
	for _, r := range ranges {
		s := fmt.Sprintf("%d-%d %s %d", r.FirstOffset, r.LastOffset, r.State, r.DeliveryCount)
		if o := r.Owner; o != nil {
			s += fmt.Sprintf(" of %d/%d %s %s", *o.ProducerID, *o.ProducerEpoch, *o.AcknowledgeType, o.Verdict)
			if o.TransactionalID != nil {
				s += fmt.Sprintf(" %s %s", *o.TransactionalID, *o.TransactionState)
			}
		}
		if r.Count != r.LastOffset-r.FirstOffset+1 {
			s += fmt.Sprintf(" but %d", r.Count)
		}
		out = append(out, s)
	}
	return out
}

// kip makes the brokers of a fake ones that implement KIP-1289.
func (c *groupCluster) kip() {
	for i := range c.versions {
		delete(c.versions[i].Keys, 94)
		c.versions[i].Supported["metadata.version"] = cluster.VersionRange{Max: 30}
		c.versions[i].Finalized["metadata.version"] = 30
		c.versions[i].FinalizedEpoch = 1
	}
}

func TestDescribePartition(t *testing.T) {
	key := ShareKey{"g", fakeTopicID, 0}
	where := wire.ShareStatePartition("g", fakeTopicID, 0, fakePartitions)
	done := []string{"2-3 ACKNOWLEDGED 1", "4-4 AVAILABLE 2"}
	persisted := func(c *groupCluster, more ...wire.StateBatch) {
		c.write(key, append([]wire.StateBatch{
			stateBatchOf(2, 2, wire.Acknowledged), stateBatchOf(3, 3, wire.Acknowledged),
			{FirstOffset: 4, LastOffset: 4, DeliveryState: wire.Available, DeliveryCount: 2, Staged: wire.NoStagedOwner()},
		}, more...)...)
		c.states[key].StartOffset = 2
	}
	for name, c := range map[string]struct {
		group   string
		part    int32
		change  func(*groupCluster)
		ranges  []string
		head    string // start, end, lag, whether the state was read, in flight
		pending string // status and verdicts
		gaps    []string
		err     string
	}{
		"nothing is persisted": {head: "2 12 9 read 0-9"},
		"states":               {change: func(c *groupCluster) { persisted(c) }, ranges: done, head: "2 12 9 read 0-9"},
		"no start offset yet":  {part: 1, head: "? 4 ? read 0-?"},
		"pending, with its owner": {
			change: func(c *groupCluster) {
				c.kip()
				persisted(c, pendingBatch(5, 7, ownedBy(77, 3)), pendingBatch(8, 8, ownedBy(78, 0)))
				c.begin("billing", 77, 3, 0, "Ongoing", where)
			},
			ranges: append(slices.Clone(done), "5-7 TX_PENDING 1 of 77/3 accept exact billing Ongoing", "8-8 TX_PENDING 1 of 78/0 accept orphan"),
			head:   "2 12 9 read 4-9", pending: "pending: 4 by 2 exact orphan",
		},
		"pending in memory alone": {
			change: func(c *groupCluster) {
				c.kip()
				persisted(c)
				c.begin("billing", 77, 3, 0, "Ongoing", where)
			},
			ranges: done, head: "2 12 9 read 0-9", pending: "pending: 0 by 0 likely",
		},
		"pending elsewhere": {
			part: 1, change: func(c *groupCluster) {
				c.kip()
				persisted(c, pendingBatch(5, 7, ownedBy(77, 3)))
				c.begin("billing", 77, 3, 0, "Ongoing", where)
			},
			head: "? 4 ? read 0-?", pending: "none: 0 by 0",
		},
		"the state may not be read": {
			change: func(c *groupCluster) { persisted(c); c.denied[aclClusterAction] = true },
			head:   "2 12 9 unread 0-9",
			gaps:   []string{"- ReadShareGroupState CLUSTER_AUTHORIZATION_FAILED CLUSTER_ACTION on CLUSTER"},
		},
		"the state topic is hidden": {
			change: func(c *groupCluster) { persisted(c); c.denied[aclDescribeState] = true },
			head:   "2 12 9 unread 0-9",
			gaps:   []string{"- Metadata TOPIC_AUTHORIZATION_FAILED DESCRIBE on TOPIC __share_group_state"},
		},
		"there is no state topic": {
			change: func(c *groupCluster) { c.topics = c.topics[1:] }, head: "2 12 9 read 0-9",
		},
		"no such group":     {group: "x", err: `no such share group: "x"`},
		"a consumer group":  {group: "c", err: `group "c" is a consumer group, no share group`},
		"no such partition": {part: 2, err: `topic "orders" has no partition 2: it has 2 partitions, counted from 0`},
		"no such topic": {
			change: func(c *groupCluster) { c.topics = c.topics[:1] }, err: `describe topic "orders": UNKNOWN_TOPIC_OR_PARTITION`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newGroupCluster()
			if c.change != nil {
				c.change(f)
			}
			if c.group == "" {
				c.group = "g"
			}
			r, err := DescribePartition(t.Context(), f, PartitionOptions{
				GroupID: c.group, Topic: "orders", Partition: c.part, Now: func() time.Time { return stagedAt.Add(time.Minute) },
			})
			if c.err != "" || err != nil {
				if err == nil || err.Error() != c.err {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if got := rangeLines(r.Ranges); !slices.Equal(got, c.ranges) {
				t.Errorf("ranges\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.ranges, "\n"))
			}
			num := func(n *int64) string {
				if n == nil {
					return "?"
				}
				return fmt.Sprint(*n)
			}
			read := map[bool]string{true: "read", false: "unread"}[r.StateRead]
			if got := fmt.Sprintf("%s %s %s %s %d-%s", num(r.StartOffset), num(r.EndOffset), num(r.Lag), read, r.InFlight.AtLeast, num(r.InFlight.AtMost)); got != c.head {
				t.Errorf("head %q, want %q", got, c.head)
			}
			got := ""
			if p := r.TxPending; p != nil {
				got = fmt.Sprintf("%s: %d by %d", p.Status, p.Records, p.Owners)
				for _, row := range r.Pending {
					got += " " + string(row.Verdict)
				}
			}
			if got != c.pending {
				t.Errorf("pending %q, want %q", got, c.pending)
			}
			wantGaps(t, r.Gaps, c.gaps)
		})
	}
}

func TestDescribePartitionDetail(t *testing.T) {
	f := newGroupCluster()
	f.write(ShareKey{"g", fakeTopicID, 0}, stateBatchOf(2, 2, wire.Acknowledged))
	f.states[ShareKey{"g", fakeTopicID, 0}].StartOffset = 2
	count := func(_ int32, req kmsg.Request) (kmsg.Response, error, bool) {
		if r, ok := req.(*kmsg.ReadShareGroupStateSummaryRequest); ok {
			f.mu.Lock()
			defer f.mu.Unlock()
			resp := f.summaries(wire.ShareStatePartition("g", fakeTopicID, 0, fakePartitions), r).(*kmsg.ReadShareGroupStateSummaryResponse)
			resp.Topics[0].Partitions[0].DeliveryCompleteCount = 1
			return resp, nil, true
		}
		return f.answer(0, req)
	}
	f.intercept = count
	r, err := DescribePartition(t.Context(), f, PartitionOptions{GroupID: "g", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	n := wire.ShareStatePartition("g", fakeTopicID, 0, fakePartitions)
	if *r.Leader != 0 || *r.LeaderEpoch != 4 || *r.StatePartition != n || *r.ShareCoordinator != n || *r.StateEpoch != 1 || *r.StateLeaderEpoch != 7 ||
		*r.DeliveryCompleteCount != 1 || r.TopicID != topicIDText(fakeTopicID) || !slices.Equal(r.Members, []string{"m1"}) || *r.GroupState != "Stable" {
		t.Errorf("report %+v", r)
	}
}

// The state of a group is that of the topic it has state for, and no other that
// has its name now.
func TestDescribePartitionOfARecreatedTopic(t *testing.T) {
	f := newGroupCluster()
	old := [16]byte{8}
	f.groups[0].Partitions[0].TopicID = old
	r, err := DescribePartition(t.Context(), f, PartitionOptions{GroupID: "g", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if r.TopicState != "recreated" || r.TopicID != topicIDText(old) || r.EndOffset != nil || *r.StatePartition != wire.ShareStatePartition("g", old, 0, fakePartitions) {
		t.Errorf("report %+v, want it to be of the old topic, without an end", r)
	}
}

func TestDescribePartitionErrors(t *testing.T) {
	f := newGroupCluster()
	_, err := DescribePartition(t.Context(), f, PartitionOptions{GroupID: "g", Topic: "orders", Partition: 9})
	if _, ok := errors.AsType[*PartitionNotFoundError](err); !ok || !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("error %v, want a *PartitionNotFoundError", err)
	}
	f.denied[ACL{"DESCRIBE", "TOPIC", "orders"}] = true
	_, err = DescribePartition(t.Context(), f, PartitionOptions{GroupID: "g", Topic: "orders"})
	if _, ok := errors.AsType[*cluster.AuthError](err); !ok {
		t.Errorf("error %v, want an *AuthError", err)
	}
	ctx, cancel := contextWithCause(t)
	cancel(errStopped)
	if _, err = DescribePartition(ctx, f, PartitionOptions{GroupID: "g", Topic: "orders"}); !errors.Is(err, errStopped) {
		t.Errorf("error %v, want the cause", err)
	}
}

func TestWindow(t *testing.T) {
	for name, c := range map[string]struct {
		start, end int64 // -1: not known
		persisted  int64 // the last offset; -1: none
		width      int
		want       string
	}{
		"nothing persisted":        {100, 1000, -1, 80, "100-179"},
		"up to the end":            {100, 110, -1, 80, "100-109"},
		"an eighth beyond":         {0, 1000, 800, 80, "0-900"},
		"no less than the width":   {0, 1000, 8, 80, "0-79"},
		"persisted up to the end":  {0, 801, 800, 80, "0-800"},
		"nothing left":             {100, 100, -1, 80, ""},
		"no start offset":          {-1, 100, -1, 80, ""},
		"no end offset":            {10, -1, -1, 80, ""},
		"an end before the start":  {100, 90, -1, 80, ""},
		"all that there is is one": {7, 8, -1, 80, "7-7"},
	} {
		r := PartitionReport{StartOffset: told(c.start), EndOffset: told(c.end)}
		if c.persisted >= 0 {
			r.Ranges = []RangeRow{{FirstOffset: c.start, LastOffset: c.persisted}}
		}
		got := ""
		if first, last, ok := r.Window(c.width); ok {
			got = fmt.Sprintf("%d-%d", first, last)
		}
		if got != c.want {
			t.Errorf("%s: window %q, want %q", name, got, c.want)
		}
	}
}
