package inspect

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
)

// GroupOptions says which share groups to describe.
type GroupOptions struct {
	// GroupIDs are the groups to describe with all there is to know of them; nil
	// lists all, with what takes few requests.
	GroupIDs []string
	// Dialect is [cluster.Config]'s.
	Dialect string
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// GroupReport is what is known of share groups.
type GroupReport struct {
	ClusterID string     `json:"-"`
	Groups    []GroupRow `json:"-"`    // sorted by group ID
	Notes     []string   `json:"-"`    // what is odd, a sentence each
	Gaps      []Gap      `json:"gaps"` // what could not be seen
}

// GroupRow is one share group. Nil is unknown throughout.
type GroupRow struct {
	GroupID             string  `json:"group_id"`
	State               *string `json:"state"` // Empty, Stable, Dead
	Coordinator         *int32  `json:"coordinator"`
	GroupEpoch          *int32  `json:"group_epoch"`
	AssignmentEpoch     *int32  `json:"assignment_epoch"`
	Assignor            *string `json:"assignor"`
	MemberCount         *int    `json:"member_count"`
	SharePartitionCount *int    `json:"share_partition_count"`
	// Lag is that of all share-partitions together, of those that have no start
	// offset yet none; nil when it is not told of one that has.
	Lag *int64 `json:"lag"`
	*GroupDescription
}

// GroupDescription is what only the description of a group has.
type GroupDescription struct {
	Members         []MemberRow         `json:"members"`          // by member ID
	SharePartitions []SharePartitionRow `json:"share_partitions"` // by topic and partition
	Configs         []GroupConfig       `json:"configs"`          // by name
	// RecordLockDurationMS is how long a record stays acquired.
	RecordLockDurationMS *int64 `json:"record_lock_duration_ms"`
	// DeadLetterQueue is nil on brokers that have none (before Kafka 4.4).
	DeadLetterQueue *DeadLetterQueue `json:"dead_letter_queue,omitempty"`
	// TxPending is nil on a cluster that does not implement KIP-1289.
	TxPending *TxPendingSummary `json:"tx_pending,omitempty"`
}

// MemberRow is a member of a share group.
type MemberRow struct {
	MemberID    string            `json:"member_id"`
	ClientID    string            `json:"client_id"`
	ClientHost  string            `json:"client_host"`
	RackID      string            `json:"rack_id,omitempty"`
	MemberEpoch int32             `json:"member_epoch"`
	Topics      []string          `json:"topics"`
	Assignment  []TopicPartitions `json:"assignment"`
}

// SharePartitionRow is one share-partition.
type SharePartitionRow struct {
	Topic   string `json:"topic"`
	TopicID string `json:"topic_id"` // Kafka's text form
	// TopicState: "" when the topic exists, "deleted" when no topic has the name,
	// "recreated" when one with another ID has it.
	TopicState  string `json:"topic_state,omitempty"`
	Partition   int32  `json:"partition"`
	StartOffset *int64 `json:"start_offset"` // nil also when it has none yet
	EndOffset   *int64 `json:"end_offset"`   // the high watermark
	Lag         *int64 `json:"lag"`          // see [SharePartition]
	LeaderEpoch *int32 `json:"leader_epoch"`
	// Members are the IDs of the members that it is assigned to.
	Members []string `json:"members"`
}

// The states of a topic that is not what it was.
const (
	topicDeleted   = "deleted"
	topicRecreated = "recreated"
)

// TxPendingSummary says how many records of a group are TX_PENDING.
type TxPendingSummary struct {
	Status          Status `json:"status"`
	Reason          string `json:"reason"`
	Records         int64  `json:"records"`
	SharePartitions int    `json:"share_partitions"`
	Owners          int    `json:"owners"`
	OldestAgeMS     *int64 `json:"oldest_age_ms"`
}

// GroupNotFoundError says that there is no share group of an ID.
type GroupNotFoundError struct {
	GroupID string
	Type    string // of the group that has the ID, such as consumer; "": there is none
}

// Error names the group, and what it is instead.
func (e *GroupNotFoundError) Error() string {
	if e.Type == "" {
		return fmt.Sprintf("no such share group: %q", e.GroupID)
	}
	return fmt.Sprintf("group %q is a %s group, no share group", e.GroupID, e.Type)
}

// Unwrap returns GROUP_ID_NOT_FOUND, which is what a broker answers.
func (*GroupNotFoundError) Unwrap() error { return kerr.GroupIDNotFound }

// Hint says where to look.
func (*GroupNotFoundError) Hint() string { return "'kshare inspect group' lists the share groups" }

// DescribeGroups reads share groups. What could not be seen is in the report. It
// may return, together with a report of the other groups, a *GroupNotFoundError,
// or a *cluster.AuthError when no group that was asked for may be described.
func DescribeGroups(ctx context.Context, cl Cluster, o GroupOptions) (*GroupReport, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	cl = newSparing(cl)
	d, err := cl.Describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe share groups: %w", err)
	}
	groups, gaps, err := ListShareGroups(ctx, cl, d.Brokers, GroupQuery{GroupIDs: o.GroupIDs, Members: true, Offsets: true})
	if err != nil {
		return nil, err
	}
	c := groupDescriber{cl: cl, o: o, d: d}
	c.gaps.add(gaps...)
	r := &GroupReport{ClusterID: d.ClusterID, Groups: make([]GroupRow, 0, len(groups))}
	for _, g := range groups {
		r.Groups = append(r.Groups, newGroupRow(g))
	}
	if o.GroupIDs != nil {
		c.describe(ctx, groups, r)
	}
	missing := c.missing(ctx, groups)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.Gaps = c.gaps.sorted()
	return r, missing
}

func newGroupRow(g Group) GroupRow {
	r := GroupRow{GroupID: g.GroupID, Coordinator: told(g.Coordinator)}
	if g.State != "" {
		r.State = &g.State
	}
	if d := g.Detail; d != nil {
		r.GroupEpoch, r.AssignmentEpoch, r.Assignor = &d.GroupEpoch, &d.AssignmentEpoch, &d.Assignor
		r.MemberCount = new(len(d.Members))
	}
	if g.Partitions != nil {
		r.SharePartitionCount, r.Lag = new(len(g.Partitions)), totalLag(g.Partitions)
	}
	return r
}

// totalLag adds up what is told; nil when something that is, is not told.
func totalLag(parts []SharePartition) *int64 {
	var sum int64
	for _, p := range parts {
		switch {
		case p.Lag >= 0:
			sum += p.Lag
		case p.StartOffset >= 0 || p.Failed:
			return nil
		}
	}
	return &sum
}

// groupDescriber reads what takes requests for each group.
type groupDescriber struct {
	cl   Cluster
	o    GroupOptions
	d    cluster.Description
	gaps gapList
}

func (c *groupDescriber) describe(ctx context.Context, groups []Group, r *GroupReport) {
	if len(groups) == 0 {
		return
	}
	topics, topicsKnown := c.topics(ctx)
	ends := endOffsets(ctx, c.cl, groups, &c.gaps)
	configs := groupConfigs(ctx, c.cl, c.d.Brokers, groups, &c.gaps)
	pending := c.pending(ctx)
	for i, g := range groups {
		row := &r.Groups[i]
		row.GroupDescription = &GroupDescription{
			Members:         memberRows(g),
			SharePartitions: sharePartitionRows(g, ends),
			Configs:         configs[g.GroupID],
			TxPending:       pending(g.GroupID),
		}
		row.RecordLockDurationMS = configInt(row.Configs, configLockDuration)
		row.DeadLetterQueue = newDeadLetterQueue(ctx, c.cl, row.Configs, topics, c.shareVersion())
		if topicsKnown {
			r.Notes = append(r.Notes, setTopicStates(row, topics)...)
		}
	}
	r.Notes = append(r.Notes, c.deleted(ctx, r.Groups)...)
}

// deleted returns a sentence for each share-partition whose lag has records that
// the log has no more. Kafka counts them until the next acknowledgement there, and
// where nothing is left there may never be one. That the start of a log cannot be
// read is passed over: the same was said of its end.
func (c *groupDescriber) deleted(ctx context.Context, groups []GroupRow) []string {
	asked := make(map[topicPartition]bool)
	byTopic := make(map[string][]int32)
	for _, g := range groups {
		for _, p := range g.SharePartitions {
			tp := topicPartition{p.Topic, p.Partition}
			if p.mayBeDeleted() && !asked[tp] {
				asked[tp] = true
				byTopic[p.Topic] = append(byTopic[p.Topic], p.Partition)
			}
		}
	}
	var unread gapList
	firsts := listOffsets(ctx, c.cl, byTopic, earliestOffset, &unread)
	var notes []string
	for _, g := range groups {
		for _, p := range g.SharePartitions {
			first, ok := firsts[topicPartition{p.Topic, p.Partition}]
			if !ok || !p.mayBeDeleted() {
				continue
			}
			most := max(0, *p.EndOffset-first)
			if first <= *p.StartOffset || *p.Lag <= most {
				continue // those that are deleted may be done
			}
			left := "nothing is left"
			if most > 0 {
				left = fmt.Sprintf("at most %d are left", most)
			}
			notes = append(notes, fmt.Sprintf("the lag of share group %q in %s-%d counts records that are deleted, until its next acknowledgement there: the log begins at offset %d and ends at %d, so that of the %d %s",
				g.GroupID, p.Topic, p.Partition, first, *p.EndOffset, *p.Lag, left))
		}
	}
	return notes
}

// mayBeDeleted reports whether the lag may have records that the log has no more.
func (p SharePartitionRow) mayBeDeleted() bool {
	return p.StartOffset != nil && p.EndOffset != nil && p.Lag != nil && *p.Lag > 0
}

// topics reads which topics there are, by name, and whether those that this
// principal may not describe can be told from those that are not there.
func (c *groupDescriber) topics(ctx context.Context) (map[string]cluster.Topic, bool) {
	all, err := c.cl.AllTopics(ctx)
	if err != nil {
		c.gaps.add(ErrorGap(SourceMetadata, "topics could not be described", err))
		return nil, false
	}
	byName := make(map[string]cluster.Topic, len(all))
	for _, t := range all {
		byName[t.Name] = t
	}
	hidden := slices.ContainsFunc(c.gaps.gaps, func(g Gap) bool { return g.ACL != nil && *g.ACL == aclTopics })
	return byName, !hidden
}

// shareVersion is the finalized level of share.version; -1 when no broker knows.
func (c *groupDescriber) shareVersion() int16 {
	level, epoch := int16(-1), int64(-1)
	for _, b := range c.d.Brokers {
		if b.Err == nil && b.FinalizedEpoch > epoch {
			level, epoch = b.Finalized["share.version"], b.FinalizedEpoch
		}
	}
	return level
}

// pending returns a function that sums up the TX_PENDING records of a group; nil
// on a cluster that has none.
func (c *groupDescriber) pending(ctx context.Context) func(group string) *TxPendingSummary {
	none := func(string) *TxPendingSummary { return nil }
	if cluster.Detect(c.d.Brokers, c.o.Dialect).Verdict == cluster.NotSupported {
		return none
	}
	ev, err := Collect(ctx, c.cl, CollectOptions{Dialect: c.o.Dialect, Now: c.o.Now})
	if err != nil {
		c.gaps.add(ErrorGap(SourceStateTopic, "records in TX_PENDING could not be looked for", err))
		return none
	}
	c.gaps.add(ev.Gaps...)
	return func(group string) *TxPendingSummary {
		return newTxPendingSummary(NewPendingReport(ev, Filter{Groups: []string{group}}), group)
	}
}

func newTxPendingSummary(r *PendingReport, group string) *TxPendingSummary {
	s := &TxPendingSummary{Status: r.Status, Reason: r.Reason}
	for _, g := range r.Groups {
		if g.GroupID == group {
			s.Records, s.SharePartitions, s.Owners, s.OldestAgeMS = g.Records, g.SharePartitions, g.Owners, g.OldestAgeMS
		}
	}
	return s
}

func memberRows(g Group) []MemberRow {
	if g.Detail == nil {
		return nil
	}
	rows := make([]MemberRow, 0, len(g.Detail.Members))
	for _, m := range g.Detail.Members {
		rows = append(rows, MemberRow(m))
	}
	return rows
}

func sharePartitionRows(g Group, ends map[topicPartition]int64) []SharePartitionRow {
	assigned := make(map[topicPartition][]string)
	if g.Detail != nil {
		for _, m := range g.Detail.Members {
			for _, a := range m.Assignment {
				for _, p := range a.Partitions {
					tp := topicPartition{a.Topic, p}
					assigned[tp] = append(assigned[tp], m.MemberID)
				}
			}
		}
	}
	rows := make([]SharePartitionRow, 0, len(g.Partitions))
	for _, p := range g.Partitions {
		tp := topicPartition{p.Topic, p.Partition}
		r := SharePartitionRow{
			Topic: p.Topic, TopicID: topicIDText(p.TopicID), Partition: p.Partition,
			StartOffset: told(p.StartOffset), Lag: told(p.Lag), LeaderEpoch: told(p.LeaderEpoch), Members: assigned[tp],
		}
		if end, ok := ends[tp]; ok {
			r.EndOffset = &end
		}
		rows = append(rows, r)
	}
	return rows
}

// topicIDText is a topic ID in Kafka's text form.
func topicIDText(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// setTopicStates marks the share-partitions of topics that are not what they
// were, and returns a sentence for each such topic.
func setTopicStates(g *GroupRow, topics map[string]cluster.Topic) []string {
	var notes []string
	note := func(format string, args ...any) {
		s := fmt.Sprintf(format, args...)
		if !slices.Contains(notes, s) {
			notes = append(notes, s)
		}
	}
	for i := range g.SharePartitions {
		p := &g.SharePartitions[i]
		t, ok := topics[p.Topic]
		switch {
		case !ok:
			p.TopicState, p.EndOffset = topicDeleted, nil
			note("topic %q, which share group %q has state for, is deleted", p.Topic, g.GroupID)
		case topicIDText(t.ID) != p.TopicID:
			p.TopicState, p.EndOffset = topicRecreated, nil // it is that of another topic
			note("topic %q was deleted and created again since share group %q has state for it", p.Topic, g.GroupID)
		}
	}
	for _, m := range g.Members {
		for _, name := range m.Topics {
			if _, ok := topics[name]; !ok {
				note("topic %q, which members of share group %q subscribe to, does not exist", name, g.GroupID)
			}
		}
	}
	return notes
}

// missing returns an error about the groups that were asked for and are not
// there.
func (c *groupDescriber) missing(ctx context.Context, groups []Group) error {
	var errs []error
	types := func() map[string]string { return c.groupTypes(ctx) }
	for _, id := range c.o.GroupIDs {
		if slices.ContainsFunc(groups, func(g Group) bool { return g.GroupID == id }) {
			continue
		}
		if gap := c.deniedGap(id); gap != nil {
			if len(groups) == 0 {
				err := &cluster.Error{Op: fmt.Sprintf("describe share group %q", id), Broker: -1, Err: kerr.GroupAuthorizationFailed}
				errs = append(errs, &cluster.AuthError{Err: err, Advice: gap.Advice})
			}
			continue
		}
		known := types()
		types = func() map[string]string { return known }
		if known == nil {
			continue // a gap says that not all groups could be listed
		}
		errs = append(errs, &GroupNotFoundError{GroupID: id, Type: known[id]})
	}
	return cluster.Join(errs...)
}

func (c *groupDescriber) deniedGap(group string) *Gap {
	for _, g := range c.gaps.gaps {
		if g.ACL != nil && *g.ACL == (ACL{"DESCRIBE", "GROUP", group}) {
			return &g
		}
	}
	return nil
}

// groupTypes lists the types of all groups, by ID; nil where a broker did not
// answer, so that a group that is not in it may be there all the same.
func (c *groupDescriber) groupTypes(ctx context.Context) map[string]string {
	types := make(map[string]string)
	for _, b := range c.d.Brokers {
		if b.Err != nil {
			return nil
		}
		groups, err := listGroups(ctx, c.cl, b.NodeID, "")
		if err != nil {
			c.gaps.add(newGap(SourceListGroups, b.NodeID, "list its groups", err))
			return nil
		}
		for _, g := range groups {
			types[g.Group] = strings.ToLower(g.GroupType)
		}
	}
	return types
}
