package inspect

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// stateTopic holds the state of share-partitions (KIP-932). A transaction in
// which share acknowledgements are staged lists partitions of it.
const stateTopic = "__share_group_state"

// Source names where a piece of evidence comes from: a request by its name in
// Kafka, or what else was read.
type Source string

// The sources of evidence (the reference's section 8).
const (
	SourceListTransactions     Source = "ListTransactions"
	SourceDescribeTransactions Source = "DescribeTransactions"
	SourceMetadata             Source = "Metadata"
	SourceListGroups           Source = "ListGroups"
	SourceShareGroupDescribe   Source = "ShareGroupDescribe"
	SourceShareGroupOffsets    Source = "DescribeShareGroupOffsets"
	SourceShareGroupState      Source = "ReadShareGroupState"
	SourceStateTopic           Source = stateTopic
	SourceDescribeProducers    Source = "DescribeProducers"
	SourceDescribeConfigs      Source = "DescribeConfigs"
	SourceListOffsets          Source = "ListOffsets"
)

// Evidence is what the sources said. A list that is empty proves nothing by
// itself: look at Gaps. It is not changed after it was collected and may be read
// concurrently.
type Evidence struct {
	Time      time.Time // when the collection began, by the clock of this machine
	ClusterID string    // "" when the brokers do not say
	Support   cluster.Support
	// StatePartitions is the number of partitions of __share_group_state; 0 when
	// the topic does not exist: no share group was ever used.
	StatePartitions int32
	// Sweep is how often a coordinator looks for transactions that are over their
	// timeout (transaction.abort.timed.out.transaction.cleanup.interval.ms);
	// Kafka's default of 10 s where it could not be read.
	Sweep time.Duration

	Transactions []Transaction // that have not ended, sorted by transactional ID
	// Ended are transactions that own records in States and have ended, or whose
	// transactional ID has gone on to another: the owners of orphans, sorted by
	// transactional ID.
	Ended  []Transaction
	Groups []Group // share groups, sorted by group ID
	// States are the share-partitions that hold records in TX_PENDING, sorted by
	// group ID, topic ID and partition.
	States []ShareState
	// Persists is true when any state with a staged owner was seen, which proves
	// that this cluster writes TX_PENDING down.
	Persists bool
	// StatesRead is the number of share-partitions whose state was read.
	StatesRead int
	// Topics names the topics that exist, by topic ID; "" where one of States has
	// a topic whose name this principal may not see. Nil when the topics could not
	// be described, so that no topic is known not to exist.
	Topics map[[16]byte]string
	Gaps   []Gap // what could not be seen, in the order of discovery
}

// Missing returns an error for the first group or topic of a filter that does not
// exist, and nil where something is not known: what is misspelt has nothing
// pending, and whoever asks about it must not hear that. It may return
// *GroupNotFoundError, or *cluster.Error with UNKNOWN_TOPIC_OR_PARTITION.
func (e *Evidence) Missing(f Filter) error {
	if len(e.Gaps) > 0 {
		return nil
	}
	for _, id := range f.Groups {
		if !slices.ContainsFunc(e.Groups, func(g Group) bool { return g.GroupID == id }) {
			return &GroupNotFoundError{GroupID: id}
		}
	}
	if e.Topics == nil || slices.ContainsFunc(e.States, func(s ShareState) bool { return e.Topics[s.TopicID] == "" }) {
		return nil // one that was deleted has no name any more, and may be meant
	}
	existing := slices.Collect(maps.Values(e.Topics))
	for _, name := range f.Topics {
		if !slices.Contains(existing, name) {
			return &cluster.Error{
				Op: fmt.Sprintf("describe topic %q", name), Broker: -1, Err: kerr.UnknownTopicOrPartition, Advice: "check its name",
			}
		}
	}
	return nil
}

// Transaction is a transaction as its coordinator tells of it
// (ListTransactions, DescribeTransactions v0).
type Transaction struct {
	TransactionalID string
	State           string // Ongoing, PrepareCommit, PrepareAbort, PrepareEpochFence; of ended ones also Empty, CompleteCommit, CompleteAbort
	ProducerID      int64
	ProducerEpoch   int16     // -1: not told; one above that of the staged records once the transaction is being ended (TV2)
	Coordinator     int32     // node ID of the broker that lists it
	TimeoutMS       int32     // -1: not told; [TwoPhaseTimeoutMS] never times out
	Started         time.Time // by the coordinator's clock; zero: not told
	// Partitions are what takes part in it, sorted by topic; nil: not told. In a
	// Prepare state a partition vanishes once its end marker is written.
	Partitions []TopicPartitions
	// PrepareSince is since when earlier evidence saw it in its Prepare state;
	// zero: in none.
	PrepareSince time.Time
}

// TwoPhaseTimeoutMS is the timeout of a transaction that takes part in a
// two-phase commit (KIP-939): its coordinator never aborts it by itself.
const TwoPhaseTimeoutMS = math.MaxInt32

// TopicPartitions are partitions of one topic, ascending.
type TopicPartitions struct {
	Topic      string  `json:"topic"`
	Partitions []int32 `json:"partitions"`
}

// TwoPhase reports whether the transaction never times out, which is the mark of
// a two-phase commit. Whether it is prepared, no broker knows.
func (t Transaction) TwoPhase() bool { return t.TimeoutMS == TwoPhaseTimeoutMS }

// Preparing reports whether the end of the transaction is decided and its
// markers are not all written.
func (t Transaction) Preparing() bool { return strings.HasPrefix(t.State, "Prepare") }

// Open reports whether the transaction has begun and not ended.
func (t Transaction) Open() bool { return t.State == "Ongoing" || t.Preparing() }

// StatePartitions returns the partitions of __share_group_state that take part,
// ascending, and whether they are known.
func (t Transaction) StatePartitions() ([]int32, bool) {
	for _, p := range t.Partitions {
		if p.Topic == stateTopic {
			return p.Partitions, true
		}
	}
	return nil, t.Partitions != nil
}

// HoldsShareAcks reports whether share acknowledgements are, or may be, staged
// in the transaction.
func (t Transaction) HoldsShareAcks() bool {
	parts, known := t.StatePartitions()
	return !known || len(parts) > 0
}

// Deadline is when the coordinator ends the transaction by itself at the latest:
// its start, its timeout, and one sweep. It is zero when that is not known, when
// it never does, and when the end is decided already.
func (t Transaction) Deadline(sweep time.Duration) time.Time {
	if t.Started.IsZero() || t.TimeoutMS < 0 || t.TwoPhase() || t.State != "Ongoing" {
		return time.Time{}
	}
	return t.Started.Add(time.Duration(t.TimeoutMS)*time.Millisecond + sweep)
}

// Stuck reports whether the transaction should have ended for longer than
// [StuckAfter]: its timeout has passed, or its end is decided, and its coordinator
// does not get it done.
func (t Transaction) Stuck(now time.Time, sweep time.Duration) bool {
	if t.Preparing() && !t.PrepareSince.IsZero() && now.Sub(t.PrepareSince) > StuckAfter {
		return true
	}
	if t.Started.IsZero() || t.TimeoutMS < 0 || t.TwoPhase() {
		return false
	}
	end := t.Started.Add(time.Duration(t.TimeoutMS)*time.Millisecond + sweep)
	return now.Sub(end) > StuckAfter
}

// Group is a share group (ListGroups v5, ShareGroupDescribe v1,
// DescribeShareGroupOffsets v0 and v1).
type Group struct {
	GroupID     string
	State       string   // Empty, Stable, Dead; "": not told
	Coordinator int32    // node ID; -1: not known
	Members     []string // member IDs, sorted; nil: not told
	// Detail is what else its coordinator tells of it; nil: not told.
	Detail *GroupDetail
	// Partitions are the share-partitions that have state, sorted by topic and
	// partition.
	Partitions []SharePartition
}

// GroupDetail is what a group coordinator tells of the members of a share group
// (ShareGroupDescribe v1).
type GroupDetail struct {
	GroupEpoch      int32    // raised by each change of members or subscriptions
	AssignmentEpoch int32    // the group epoch that the assignment was made for
	Assignor        string   // simple, in all releases so far
	Members         []Member // sorted by member ID
}

// Member is a member of a share group.
type Member struct {
	MemberID    string
	ClientID    string
	ClientHost  string
	RackID      string // "": it named none
	MemberEpoch int32
	Topics      []string          // subscribed, sorted
	Assignment  []TopicPartitions // sorted by topic
}

// SharePartition is one share-partition as its group coordinator tells of it.
type SharePartition struct {
	Topic       string
	TopicID     [16]byte
	Partition   int32
	StartOffset int64 // -1: not persisted yet
	LeaderEpoch int32
	// Lag counts records from the start offset on that are not done: available,
	// acquired and TX_PENDING ones alike. -1: not told. 0 proves that nothing is
	// pending.
	Lag int64
	// Failed: its coordinator could not tell of it, and a gap says why.
	Failed bool
	// UnmovedSince is since when earlier evidence saw the same start offset with
	// a lag; zero: there was none.
	UnmovedSince time.Time
}

// ShareState is the persisted state of a share-partition.
type ShareState struct {
	GroupID        string
	TopicID        [16]byte
	Partition      int32
	StatePartition int32 // of __share_group_state
	StateEpoch     int32
	LeaderEpoch    int32
	StartOffset    int64
	// DeliveryCompleteCount is how many records from the start offset on are done;
	// nil: not told (only ReadShareGroupStateSummary v1 tells, Kafka 4.2).
	DeliveryCompleteCount *int32
	Batches               []wire.StateBatch // sorted by offset, all states
	// Written is when the record that staged the pending ones was written, by the
	// broker's clock, the first one where there are several; zero: not known (only
	// the topic tells).
	Written time.Time
	// Staged is that of each owner by itself, sorted by producer ID and epoch.
	Staged  []StagedSince
	Sources []Source // that agree, in the order of reading
}

// WrittenBy returns since when an owner has records pending in the
// share-partition, by the broker's clock; zero: not known.
func (s ShareState) WrittenBy(owner wire.StagedOwner) time.Time {
	if i := slices.IndexFunc(s.Staged, func(o StagedSince) bool { return o.owns(owner) }); i >= 0 {
		return s.Staged[i].Since
	}
	return time.Time{}
}

// StagedSince is when the record was written that staged the first of the records
// which an owner has pending in a share-partition.
type StagedSince struct {
	ProducerID    int64 // -1: the owner could not be decoded
	ProducerEpoch int16
	Since         time.Time
}

func (s StagedSince) owns(o wire.StagedOwner) bool {
	return s.ProducerID == o.ProducerID && s.ProducerEpoch == o.ProducerEpoch
}

// A Gap is something that could not be seen, and makes a report unknown.
type Gap struct {
	Source     Source `json:"source"`
	Broker     *int32 `json:"broker"` // nil: none in particular
	Reason     string `json:"reason"` // a sentence without a full stop
	KafkaError string `json:"kafka_error,omitempty"`
	ACL        *ACL   `json:"acl"`              // that is missing; nil: another reason
	Advice     string `json:"advice,omitempty"` // what to do about it
	// Unanswered: no answer came in time, or the connection broke. The time may have
	// been short: what a deadline leaves is shared between requests.
	Unanswered bool `json:"-"`

	cause error // nil: another reason than an error
}

// GapError is a gap in the way of what needs an answer without gaps.
type GapError struct{ Gap Gap }

// Error returns the reason.
func (e *GapError) Error() string { return e.Gap.Reason }

// Unwrap returns the error that left the gap, nil if it was none.
func (e *GapError) Unwrap() error { return e.Gap.cause }

// Hint returns the advice, or that of the error that left the gap; "" when there
// is none.
func (e *GapError) Hint() string {
	if h, ok := errors.AsType[interface {
		error
		Hint() string
	}](e.Gap.cause); ok && e.Gap.Advice == "" {
		return h.Hint()
	}
	return e.Gap.Advice
}

// BrokerID returns the node ID of the broker; -1 when it is none in particular.
func (e *GapError) BrokerID() int32 { return brokerOf(e.Gap) }

// ACL is a permission (Kafka's own names).
type ACL struct {
	Operation    string `json:"operation"`     // DESCRIBE, READ, CLUSTER_ACTION, ...
	ResourceType string `json:"resource_type"` // TRANSACTIONAL_ID, TOPIC, GROUP, CLUSTER
	ResourceName string `json:"resource_name"` // "*": all of that type
}

// String reads "DESCRIBE on TOPIC __share_group_state".
func (a ACL) String() string {
	return fmt.Sprintf("%s on %s %s", a.Operation, a.ResourceType, a.ResourceName)
}
