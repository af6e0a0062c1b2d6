package sandbox

import (
	"context"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stateTopic is the internal topic that holds share-partition state (KIP-932).
const stateTopic = "__share_group_state"

// caller is what the share plane knows of the connection that a request came
// in on. It is comparable by conn.
type caller struct {
	conn      uint64          // unique in the life of the process
	broker    int32           // node ID of the broker that was addressed
	principal string          // "User:alice"; "User:ANONYMOUS" without SASL
	clientID  string          // from the request header, "" if null
	host      string          // remote address without port
	version   int16           // api version of the request
	gone      <-chan struct{} // closed when the connection is
}

// topicInfo names a topic and counts its partitions.
type topicInfo struct {
	name       string
	id         [16]byte
	partitions int32
}

// partitionInfo is a snapshot of one partition of the log.
type partitionInfo struct {
	leader           int32
	leaderEpoch      int32
	logStartOffset   int64
	highWatermark    int64
	lastStableOffset int64
}

// node is one broker of the sandbox as clients address it.
type node struct {
	id   int32
	host string
	port int32
}

// abortedTxn is one entry of a fetch response's AbortedTransactions.
type abortedTxn struct{ producerID, firstOffset int64 }

// fetched is what one read of the log returned.
type fetched struct {
	records []byte // whole record batches, possibly starting below the offset asked for; not shared
	aborted []abortedTxn
	partitionInfo
}

// txnState is one transaction as its coordinator describes it.
type txnState struct {
	transactionalID string
	state           string // "Ongoing", "CompleteCommit", "Empty", …
	producerID      int64
	producerEpoch   int16
	start           time.Time
	timeout         time.Duration
	statePartitions []int32 // of __share_group_state, that are registered; sorted
}

func (s txnState) holdsShareAcks() bool { return len(s.statePartitions) > 0 }

// stateRecord is one record of __share_group_state-N, or an end marker found there.
type stateRecord struct {
	partition int32
	key       []byte
	value     []byte // nil is a tombstone
	timestamp time.Time

	marker        bool // the fields below hold instead of key and value
	producerID    int64
	producerEpoch int16
	commit        bool
}

// kafka is what the share plane needs from the cluster behind it: the log, the
// transaction coordinator, configuration and ACLs. Implementations are safe for
// concurrent use; a call may block on I/O with the backing broker and honours
// its context. Error codes are Kafka's; 0 is none.
type kafka interface {
	nodes() []node
	topicByName(name string) (topicInfo, bool)
	topicByID(id [16]byte) (topicInfo, bool)
	partition(topic string, partition int32) (partitionInfo, bool)
	coordinator(key string) int32 // node ID, for group IDs and transactional IDs

	// fetch reads whole record batches from offset on; empty when offset is
	// the high watermark (or the last stable offset for readCommitted).
	fetch(ctx context.Context, topic string, partition int32, offset int64, maxBytes int32, readCommitted bool) (fetched, error)
	// offsetForTime returns the first offset at or after t, -1 if none.
	offsetForTime(ctx context.Context, topic string, partition int32, t time.Time) (int64, error)

	// groupConfig returns the value in force of a GROUP config such as
	// "share.isolation.level", falling back to the broker's "group.…" default.
	groupConfig(group, name string) string
	// brokerConfig returns the value in force of a broker config.
	brokerConfig(name string) string

	// authorized answers as the authorizer would; true when there is none.
	authorized(c caller, op kmsg.ACLOperation, resource kmsg.ACLResourceType, name string) bool

	// addPartitionsToTxn registers partitions of __share_group_state in the
	// transaction, as the leader does towards the transaction coordinator, and
	// returns the code that the leader sees (47 where the coordinator said 90).
	addPartitionsToTxn(ctx context.Context, transactionalID string, producerID int64, producerEpoch int16, partitions []int32) int16

	// appendState appends records to __share_group_state, in order within a
	// partition, and returns once they are durable.
	appendState(ctx context.Context, records []stateRecord) error
	// readState reads all partitions of __share_group_state from the start to
	// the high watermark, in order within a partition.
	readState(ctx context.Context, each func(stateRecord) error) error
}

// shareStateKey names a share-partition.
type shareStateKey struct {
	group     string
	topicID   [16]byte
	partition int32
}

// shareState is the persisted state of one share-partition, as the share
// coordinator holds it. Batches are sorted, do not overlap, and are in states
// Available, Acknowledged, Archiving, Archived or TxPending.
type shareState struct {
	stateEpoch            int32
	leaderEpoch           int32
	startOffset           int64 // -1: not initialised to an offset yet
	deliveryCompleteCount int32
	batches               []wire.StateBatch
}

// coordinator is the share coordinator: it keeps shareState for each
// share-partition and writes it to __share_group_state as Kafka's records. Safe
// for concurrent use. Error codes are Kafka's.
type coordinator interface {
	initialize(ctx context.Context, k shareStateKey, stateEpoch int32, startOffset int64) int16
	// read returns the state; a leaderEpoch above the known one is stored
	// (fencing older leaders), -1 reads only.
	read(ctx context.Context, k shareStateKey, leaderEpoch int32) (shareState, int16)
	// write merges batches onto the state and moves the start offset (-1
	// leaves it). All keys of one call are written with one append.
	write(ctx context.Context, writes []shareStateWrite) []int16
	remove(ctx context.Context, k shareStateKey) int16
	// peek returns the state without waiting for writes that are under way.
	peek(k shareStateKey) (shareState, bool)
	// keys lists every share-partition that has state, sorted.
	keys() []shareStateKey
	// partitions is the partition count of __share_group_state.
	partitions() int32
}

// shareStateWrite is one partition's part of a WriteShareGroupState.
type shareStateWrite struct {
	shareStateKey
	stateEpoch            int32
	leaderEpoch           int32
	startOffset           int64 // -1 leaves it
	deliveryCompleteCount int32 // -1 leaves it
	batches               []wire.StateBatch
	snapshot              bool // write a full snapshot record, as end markers do
}

// The leader's view of one share-partition. partition.go implements it as
// *sharePartition: a pure state machine over ranges of offsets. It has no lock,
// no clock and no I/O: the caller serialises calls and passes the time in.

// owner is the producer that staged a record.
type owner struct {
	producerID    int64
	producerEpoch int16
}

// span is an inclusive range of offsets.
type span struct{ first, last int64 }

// ackBatch is one acknowledgement batch of a request: types has one entry for
// the whole range, or one for each offset of it.
type ackBatch struct {
	span
	types []int8
}

// acquiredRange is one entry of AcquiredRecords.
type acquiredRange struct {
	span
	deliveryCount int16
}

// partitionLimits is the configuration that a share-partition operation obeys,
// read anew for each operation.
type partitionLimits struct {
	deliveryCountLimit int16
	maxRecordLocks     int
	lockDuration       time.Duration
	deadLetterQueue    bool // REJECT and the delivery count limit lead to Archiving first
	renew              bool // share.renew.acknowledge.enable
}

// change is what one operation did to a share-partition: what has to be
// persisted, and how to take it back when persisting fails.
type change struct {
	batches []wire.StateBatch // ranges whose persisted state changed, sorted
	undo    func()            // restores the state before the operation; never nil
}

// pendingRange is a maximal range of TX_PENDING records with one owner, one
// member and one acknowledge type.
type pendingRange struct {
	span
	owner
	ackType       wire.AcknowledgeType
	target        wire.RecordState
	deliveryCount int16
	memberID      string // "" after a reload
}

// rangeState is a maximal range of records that are alike.
type rangeState struct {
	span
	state         wire.RecordState
	deliveryCount int16
	memberID      string
	lockExpiry    time.Time // zero when no lock runs
	owner                   // -1, -1 unless TX_PENDING
}
