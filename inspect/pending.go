package inspect

import "time"

// Verdict says how sure it is that the records of a row are TX_PENDING and whose
// they are (design, section 5; the reference's section 8).
type Verdict string

// The verdicts, the surest first.
const (
	// VerdictExact: the persisted state says TX_PENDING and names the owner.
	VerdictExact Verdict = "exact"
	// VerdictOrphan: the persisted state says TX_PENDING, and no transaction of
	// that owner is open: nothing will resolve it by itself.
	VerdictOrphan Verdict = "orphan"
	// VerdictLikely: an open transaction lists a state partition, and exactly one
	// share-partition that is not done has its state there, or one has not moved.
	VerdictLikely Verdict = "likely"
	// VerdictPossible: an open transaction lists a state partition, or may do so;
	// which share-partition it concerns, if any, is not known.
	VerdictPossible Verdict = "possible"
)

// Status is the verdict on the whole.
type Status string

// The statuses.
const (
	StatusNone    Status = "none"    // no record is TX_PENDING
	StatusPending Status = "pending" // some are, or may be
	// StatusUnknown: something that was needed could not be seen. Rows are true,
	// and there may be more.
	StatusUnknown Status = "unknown"
	// StatusUnsupported: this cluster does not implement KIP-1289, so TX_PENDING
	// does not exist there, and none was found.
	StatusUnsupported Status = "unsupported"
)

// PendingReport says which records are TX_PENDING.
type PendingReport struct {
	Status       Status         `json:"status"`
	Reason       string         `json:"reason"` // for the status, a sentence without a full stop
	Time         time.Time      `json:"-"`
	ClusterID    string         `json:"-"`
	Rows         []PendingRow   `json:"-"` // the oldest first
	Groups       []GroupSummary `json:"groups"`
	Owners       []OwnerSummary `json:"owners"`
	Candidates   []Candidates   `json:"candidates"`     // for rows that name no share-partition, by state partition
	Records      int64          `json:"records"`        // TX_PENDING for certain, in Rows
	NextDeadline *time.Time     `json:"next_deadline"`  // the earliest of Rows; nil: none
	LastDeadline *time.Time     `json:"last_deadline"`  // the latest of Rows; nil: none
	TwoPhase     int            `json:"two_phase_rows"` // rows that never time out
	Stuck        int            `json:"stuck_rows"`
	Gaps         []Gap          `json:"gaps"`
	// Warnings are sentences about what is not as it should be and hides nothing.
	Warnings []string `json:"-"`
}

// PendingRow is a range of records of one share-partition with one owner, or
// where the records are not known one state partition of one transaction. Nil is
// unknown throughout.
type PendingRow struct {
	Verdict Verdict `json:"verdict"`

	GroupID     *string `json:"group_id"`
	Topic       *string `json:"topic"`    // nil also when the topic is no more
	TopicID     *string `json:"topic_id"` // Kafka's text form
	Partition   *int32  `json:"partition"`
	FirstOffset *int64  `json:"first_offset"`
	LastOffset  *int64  `json:"last_offset"` // inclusive
	Count       *int64  `json:"count"`
	// AcknowledgeType is accept, reject or gap.
	AcknowledgeType *string `json:"acknowledge_type"`
	DeliveryCount   *int16  `json:"delivery_count"` // the highest of the range
	// Topic state: "" when the topic exists, "deleted" when no topic has its ID,
	// "recreated" when another one has its name now.
	TopicState string `json:"topic_state,omitempty"`

	TransactionalID  *string    `json:"transactional_id"`
	ProducerID       *int64     `json:"producer_id"`
	ProducerEpoch    *int16     `json:"producer_epoch"` // of the staged records; of the transaction where there are none to see
	Coordinator      *int32     `json:"coordinator"`
	TransactionState *string    `json:"transaction_state"`
	Started          *time.Time `json:"started"`
	AgeMS            *int64     `json:"age_ms"` // since Started, else since Staged; never below 0
	Staged           *time.Time `json:"staged"` // when the state was written
	TimeoutMS        *int32     `json:"timeout_ms"`
	Deadline         *time.Time `json:"deadline"` // nil also when it never ends by itself
	TwoPhase         bool       `json:"two_phase"`
	// GroupMembers is how many members the group has now. Which of them staged
	// the records, nobody knows: the state does not keep it.
	GroupMembers *int `json:"group_members"`
	// Stuck: it should have ended for longer than [StuckAfter]. The end is decided
	// and the markers have not come, or its timeout has passed and its coordinator
	// does nothing about it.
	Stuck bool `json:"stuck"`

	StatePartition  int32 `json:"state_partition"`
	CandidateGroups int   `json:"candidate_groups,omitempty"`           // groups of the candidates
	CandidateParts  int   `json:"candidate_share_partitions,omitempty"` // share-partitions that it may concern

	Evidence []string `json:"evidence"` // sentences, the weightiest first
	Advice   string   `json:"advice"`   // what resolves it, a sentence
	// Command is the kshare command that resolves it, as arguments after
	// "kshare"; nil when there is none to give. It is not in JSON: how to reach
	// the cluster is not known here.
	Command []string `json:"-"`
}

// Candidates are the share-partitions whose state is kept in one partition of
// __share_group_state and which are not done, so that a transaction that lists it
// may hold records of any of them.
type Candidates struct {
	StatePartition  int32            `json:"state_partition"`
	Count           int              `json:"count"`
	SharePartitions []CandidateShare `json:"share_partitions"` // at most [MaxCandidates], sorted
}

// CandidateShare names one candidate.
type CandidateShare struct {
	GroupID   string `json:"group_id"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Lag       *int64 `json:"lag"` // nil: not told
}

// MaxCandidates bounds how many candidates are named for one state partition.
const MaxCandidates = 20

// StuckAfter is how long a transaction may be in a Prepare state, or over its
// deadline, before it is called stuck.
const StuckAfter = time.Minute

// GroupSummary sums up the rows of one group. Rows that name no group are in
// none.
type GroupSummary struct {
	GroupID         string `json:"group_id"`
	Records         int64  `json:"records"`
	SharePartitions int    `json:"share_partitions"`
	Owners          int    `json:"owners"`
	OldestAgeMS     *int64 `json:"oldest_age_ms"`
}

// OwnerSummary sums up the rows of one owner: a transactional ID, or a producer
// ID where the former is not known.
type OwnerSummary struct {
	TransactionalID  *string    `json:"transactional_id"`
	ProducerIDs      []int64    `json:"producer_ids"` // more than one after a rotation
	TransactionState *string    `json:"transaction_state"`
	Records          int64      `json:"records"`
	SharePartitions  int        `json:"share_partitions"`
	OldestAgeMS      *int64     `json:"oldest_age_ms"`
	Deadline         *time.Time `json:"deadline"`
	TwoPhase         bool       `json:"two_phase"`
	Stuck            bool       `json:"stuck"`
	Orphan           bool       `json:"orphan"` // some of its rows are
	Rows             int        `json:"rows"`
}

// Filter chooses rows. The zero value takes all. What a row does not know, it may
// be: a row without a group passes any group filter that one of its candidates
// passes, and a row without age passes OlderThan. A filter never turns a status
// into [StatusNone] that is not: gaps stay.
type Filter struct {
	Groups           []string // group IDs; empty takes all
	Topics           []string
	TransactionalIDs []string
	OlderThan        time.Duration
	// Done lets candidates count that are done, for what may become pending: a
	// transaction that lists the state partition of one may have been refused
	// there, or found its records done, and can stage the next ones.
	Done bool
}
