package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// PartitionOptions names a share-partition.
type PartitionOptions struct {
	GroupID   string
	Topic     string
	Partition int32
	Dialect   string           // [cluster.Config]'s
	Now       func() time.Time // the clock of this machine; nil is time.Now
}

// PartitionReport is what is known of one share-partition. Nil is unknown
// throughout.
type PartitionReport struct {
	ClusterID string     `json:"-"`
	Time      time.Time  `json:"-"`
	Ranges    []RangeRow `json:"-"` // by offset

	GroupID    string  `json:"group_id"`
	GroupState *string `json:"group_state"`
	Topic      string  `json:"topic"`
	TopicID    string  `json:"topic_id"` // Kafka's text form
	// TopicState is as in [SharePartitionRow]; never deleted.
	TopicState string   `json:"topic_state,omitempty"`
	Partition  int32    `json:"partition"`
	Members    []string `json:"members"` // IDs of those that it is assigned to

	StartOffset *int64 `json:"start_offset"` // nil also when it has none yet
	EndOffset   *int64 `json:"end_offset"`   // the high watermark
	Lag         *int64 `json:"lag"`          // see [SharePartition]

	Leader      *int32 `json:"leader"`       // of the partition, which holds what is acquired
	LeaderEpoch *int32 `json:"leader_epoch"` // of the partition

	// StatePartition is the partition of __share_group_state that has the state, and
	// ShareCoordinator its leader.
	StatePartition   *int32 `json:"state_partition"`
	ShareCoordinator *int32 `json:"share_coordinator"`
	// StateRead: the state was read; Ranges is then all that is persisted.
	StateRead             bool   `json:"state_read"`
	StateEpoch            *int32 `json:"state_epoch"`
	StateLeaderEpoch      *int32 `json:"state_leader_epoch"` // of the leader that wrote it last
	DeliveryCompleteCount *int32 `json:"delivery_complete_count"`

	InFlight InFlight `json:"in_flight"`
	// TxPending is nil on a cluster that does not implement KIP-1289.
	TxPending *TxPendingSummary `json:"tx_pending,omitempty"`
	// Pending are the rows of [PendingReport] that concern it, or may do so: a row
	// whose share-partition is not known is here where it is a candidate.
	Pending []PendingRow `json:"pending"`
	Gaps    []Gap        `json:"gaps"`
}

// InFlight bounds how many records are acquired or TX_PENDING.
type InFlight struct {
	// AtLeast counts the records that are persisted as TX_PENDING.
	AtLeast int64 `json:"at_least"`
	// AtMost is the lag.
	AtMost *int64 `json:"at_most"`
	Reason string `json:"reason"` // for not knowing it, a sentence without a full stop
}

// notPersisted is why nobody tells how many records are in flight.
const notPersisted = "what is acquired is known to the leader of the partition alone, in memory, and is never persisted"

// RangeRow is a range of records whose state is persisted, and is the same for
// all of them.
type RangeRow struct {
	FirstOffset   int64            `json:"first_offset"`
	LastOffset    int64            `json:"last_offset"` // inclusive
	Count         int64            `json:"count"`
	State         string           `json:"state"` // Kafka's own name
	RecordState   wire.RecordState `json:"-"`
	DeliveryCount int16            `json:"delivery_count"`
	// Owner is nil unless the state is TX_PENDING.
	Owner *RangeOwner `json:"owner,omitempty"`
}

// RangeOwner is who holds a range in TX_PENDING. Nil is unknown throughout, and
// the verdict is "" where no row of [PendingReport] has the range.
type RangeOwner struct {
	AcknowledgeType  *string `json:"acknowledge_type"`
	TransactionalID  *string `json:"transactional_id"`
	TransactionState *string `json:"transaction_state"`
	ProducerID       *int64  `json:"producer_id"`
	ProducerEpoch    *int16  `json:"producer_epoch"` // of the staged records
	AgeMS            *int64  `json:"age_ms"`
	Verdict          Verdict `json:"verdict,omitempty"`
}

// PartitionNotFoundError says that a topic has no such partition.
type PartitionNotFoundError struct {
	Topic      string
	Partition  int32
	Partitions int // that it has
}

// Error names the partition, and those that there are.
func (e *PartitionNotFoundError) Error() string {
	return fmt.Sprintf("topic %q has no partition %d: it has %s, counted from 0", e.Topic, e.Partition, plural(e.Partitions, "partition", "partitions"))
}

// Unwrap returns UNKNOWN_TOPIC_OR_PARTITION, which is what a broker answers.
func (*PartitionNotFoundError) Unwrap() error { return kerr.UnknownTopicOrPartition }

// DescribePartition reads one share-partition. What could not be seen is in the
// report. It may return *GroupNotFoundError, *PartitionNotFoundError,
// *cluster.Error with UNKNOWN_TOPIC_OR_PARTITION, *cluster.DialError,
// *cluster.AuthError, or the error of ctx.
func DescribePartition(ctx context.Context, cl Cluster, o PartitionOptions) (*PartitionReport, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	cl = newSparing(cl)
	d, err := cl.Describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe share-partition: %w", err)
	}
	topics, err := cl.Topics(ctx, o.Topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil, &cluster.Error{
			Op: fmt.Sprintf("describe topic %q", o.Topic), Broker: -1, Err: kerr.UnknownTopicOrPartition,
			Advice: "check its name; what is still pending of a topic that was deleted, 'kshare inspect pending' shows",
		}
	}
	if err != nil {
		return nil, err
	}
	topic := topics[o.Topic]
	i := slices.IndexFunc(topic.Partitions, func(p cluster.Partition) bool { return p.Partition == o.Partition })
	if i < 0 {
		return nil, &PartitionNotFoundError{o.Topic, o.Partition, len(topic.Partitions)}
	}
	groups, gaps, err := ListShareGroups(ctx, cl, d.Brokers, GroupQuery{GroupIDs: []string{o.GroupID}, Members: true, Offsets: true})
	if err != nil {
		return nil, err
	}
	c := groupDescriber{cl: cl, o: GroupOptions{GroupIDs: []string{o.GroupID}, Dialect: o.Dialect, Now: o.Now}, d: d}
	c.gaps.add(gaps...)
	if err := c.missing(ctx, groups); err != nil {
		return nil, err
	}
	p := partitionDescriber{groupDescriber: &c, o: o, r: &PartitionReport{
		ClusterID: d.ClusterID, Time: o.Now(), GroupID: o.GroupID, Topic: o.Topic, TopicID: topicIDText(topic.ID), Partition: o.Partition,
		Leader: told(topic.Partitions[i].Leader), LeaderEpoch: told(topic.Partitions[i].LeaderEpoch),
	}}
	id := topic.ID
	if len(groups) > 0 {
		id = p.group(groups[0], topic.ID)
	}
	p.offsets(ctx)
	p.state(ctx, id)
	p.pending(ctx, id)
	p.r.inFlight()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.r.Gaps = c.gaps.sorted()
	return p.r, nil
}

type partitionDescriber struct {
	*groupDescriber
	o PartitionOptions
	r *PartitionReport
}

// group takes over what the group coordinator tells. It returns the ID of the
// topic that the group has state for, which need not be the one that has the name
// now.
func (p *partitionDescriber) group(g Group, topicID [16]byte) [16]byte {
	if g.State != "" {
		p.r.GroupState = &g.State
	}
	for _, row := range sharePartitionRows(g, nil) {
		if row.Topic == p.o.Topic && row.Partition == p.o.Partition {
			p.r.StartOffset, p.r.Lag, p.r.Members = row.StartOffset, row.Lag, row.Members
		}
	}
	for _, s := range g.Partitions {
		if s.Topic == p.o.Topic && s.Partition == p.o.Partition && s.TopicID != topicID {
			p.r.TopicID, p.r.TopicState = topicIDText(s.TopicID), topicRecreated
			return s.TopicID
		}
	}
	return topicID
}

func (p *partitionDescriber) offsets(ctx context.Context) {
	if p.r.TopicState == topicRecreated {
		return // they are those of another topic
	}
	ends := listOffsets(ctx, p.cl, map[string][]int32{p.o.Topic: {p.o.Partition}}, latestOffset, &p.gaps)
	if end, ok := ends[topicPartition{p.o.Topic, p.o.Partition}]; ok {
		p.r.EndOffset = &end
	}
}

// state reads what is persisted.
func (p *partitionDescriber) state(ctx context.Context, topicID [16]byte) {
	pr := prober{cl: p.cl, brokers: p.d.Brokers}
	topic := pr.stateTopic(ctx)
	p.gaps.add(pr.gaps.sorted()...)
	if topic != nil {
		n := wire.ShareStatePartition(p.o.GroupID, topicID, p.o.Partition, int32(len(topic.Partitions)))
		p.r.StatePartition, p.r.ShareCoordinator = &n, told(topic.Leader(n))
	}
	states, gaps, err := ReadShareStates(ctx, p.cl, []ShareKey{{p.o.GroupID, topicID, p.o.Partition}})
	if err != nil {
		return // of ctx
	}
	p.gaps.add(gaps...)
	p.r.StateRead = len(gaps) == 0 && (topic != nil || len(pr.gaps.gaps) == 0)
	if len(states) == 0 {
		return
	}
	s := states[0]
	p.r.StateEpoch, p.r.StateLeaderEpoch, p.r.DeliveryCompleteCount = told(s.StateEpoch), told(s.LeaderEpoch), s.DeliveryCompleteCount
	if p.r.StartOffset == nil {
		p.r.StartOffset = told(s.StartOffset)
	}
	p.r.Ranges = newRanges(s.Batches)
}

// newRanges joins batches that are the same and follow each other.
func newRanges(batches []wire.StateBatch) []RangeRow {
	var out []RangeRow
	for i, b := range batches {
		if i > 0 && batches[i-1].LastOffset+1 == b.FirstOffset && alike(batches[i-1], b) {
			r := &out[len(out)-1]
			r.LastOffset = b.LastOffset
			r.Count = r.LastOffset - r.FirstOffset + 1
			continue
		}
		r := RangeRow{
			FirstOffset: b.FirstOffset, LastOffset: b.LastOffset, Count: b.LastOffset - b.FirstOffset + 1,
			State: b.DeliveryState.String(), RecordState: b.DeliveryState, DeliveryCount: b.DeliveryCount,
		}
		if b.DeliveryState == wire.TxPending {
			r.Owner = &RangeOwner{ProducerID: told(b.Staged.ProducerID), ProducerEpoch: told(b.Staged.ProducerEpoch)}
			if b.Staged.AcknowledgeType >= 0 {
				r.Owner.AcknowledgeType = new(wire.AcknowledgeType(b.Staged.AcknowledgeType).String())
			}
		}
		out = append(out, r)
	}
	return out
}

func alike(a, b wire.StateBatch) bool {
	return a.DeliveryState == b.DeliveryState && a.DeliveryCount == b.DeliveryCount && a.Staged == b.Staged
}

// pending adds who owns what is TX_PENDING.
func (p *partitionDescriber) pending(ctx context.Context, topicID [16]byte) {
	if cluster.Detect(p.d.Brokers, p.o.Dialect).Verdict == cluster.NotSupported {
		return
	}
	ev, err := Collect(ctx, p.cl, CollectOptions{Dialect: p.o.Dialect, Now: p.o.Now})
	if err != nil {
		p.gaps.add(ErrorGap(SourceStateTopic, "records in TX_PENDING could not be looked for", err))
		return
	}
	p.gaps.add(ev.Gaps...)
	rep := NewPendingReport(ev, Filter{Groups: []string{p.o.GroupID}, Topics: []string{p.o.Topic}})
	p.r.TxPending = &TxPendingSummary{Status: rep.Status, Reason: rep.Reason}
	owners := make(map[string]bool)
	for _, row := range rep.Rows {
		if !p.concerns(&row, topicID) {
			continue
		}
		p.r.Pending = append(p.r.Pending, row)
		if row.Count == nil {
			continue
		}
		s := p.r.TxPending
		s.Records, s.SharePartitions = s.Records+*row.Count, 1
		if row.ProducerID != nil {
			owners[fmt.Sprint(*row.ProducerID)] = true
		}
		if s.OldestAgeMS == nil || row.AgeMS != nil && *row.AgeMS > *s.OldestAgeMS {
			s.OldestAgeMS = row.AgeMS
		}
		own(p.r.Ranges, row)
	}
	p.r.TxPending.Owners = len(owners)
	if len(p.r.Pending) == 0 && rep.Status == StatusPending {
		p.r.TxPending.Status, p.r.TxPending.Reason = StatusNone, "no record of the share-partition is in TX_PENDING"
	}
}

// concerns reports whether a row is about the share-partition, or may be.
func (p *partitionDescriber) concerns(row *PendingRow, topicID [16]byte) bool {
	switch {
	case row.Partition != nil && *row.Partition != p.o.Partition:
		return false
	case row.TopicID != nil:
		return *row.TopicID == topicIDText(topicID)
	case row.StatePartition >= 0 && p.r.StatePartition != nil:
		return row.StatePartition == *p.r.StatePartition
	}
	return true
}

// own notes the owner of a pending row with the ranges that it covers.
func own(ranges []RangeRow, row PendingRow) {
	for _, r := range ranges {
		o := r.Owner
		if o == nil || r.LastOffset < *row.FirstOffset || r.FirstOffset > *row.LastOffset {
			continue
		}
		if o.ProducerID != nil && !equal(o.ProducerID, row.ProducerID) {
			continue // it was resolved, and staged by another, since it was read
		}
		o.TransactionalID, o.TransactionState, o.AgeMS, o.Verdict = row.TransactionalID, row.TransactionState, row.AgeMS, row.Verdict
	}
}

// inFlight bounds what nobody tells.
func (r *PartitionReport) inFlight() {
	r.InFlight = InFlight{AtMost: r.Lag, Reason: notPersisted}
	for _, g := range r.Ranges {
		if g.RecordState == wire.TxPending {
			r.InFlight.AtLeast += g.Count
		}
	}
}

// Window returns the offsets that are worth drawing: from the start offset to the
// last record whose state is persisted and an eighth more, or without any as many
// as n, but not beyond the end. false: the start offset or the end are not known,
// or there is nothing between them.
func (r *PartitionReport) Window(n int) (first, last int64, ok bool) {
	if r.StartOffset == nil || r.EndOffset == nil || *r.EndOffset <= *r.StartOffset {
		return 0, 0, false
	}
	first = *r.StartOffset
	last = first + int64(n) - 1
	if len(r.Ranges) > 0 {
		end := r.Ranges[len(r.Ranges)-1].LastOffset
		last = max(last, end+(end-first)/8)
	}
	return first, min(last, *r.EndOffset-1), true
}

// Strip draws the persisted states from first to last in at most n buckets.
func (r *PartitionReport) Strip(first, last int64, n int) []Bucket {
	batches := make([]wire.StateBatch, 0, len(r.Ranges))
	for _, g := range r.Ranges {
		batches = append(batches, wire.StateBatch{FirstOffset: g.FirstOffset, LastOffset: g.LastOffset, DeliveryState: g.RecordState})
	}
	return newStrip(first, last, batches, n)
}
