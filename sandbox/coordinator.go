package sandbox

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// The share coordinator (KIP-932): who keeps the state of share-partitions and
// writes it to __share_group_state.
//
// What changes is written as a ShareUpdate. After
// share.coordinator.snapshot.update.records.per.snapshot of them, and whenever
// the caller asks, the whole state follows as a ShareSnapshot. Memory changes
// only once the record is durable. When an append fails it may still have
// happened, so the next write of that share-partition adds a snapshot, which
// ends the doubt for whoever reads the log.
//
// A snapshot never is the first record to say that something is TX_PENDING:
// that is always an update, and load depends on it (see coordinatorLoad).
//
// One coordinator serves all brokers of the sandbox. Records for one partition
// of __share_group_state are decided and written one call at a time, as by the
// one leader it has in Kafka; reads wait their turn as well, so what a leader
// reads is never about to be replaced by what an older one has under way.
//
// Where we differ from the broker:
//   - read with leader epoch -1 reads and changes nothing. In the broker code
//     that was read, -1 is below any known leader epoch, which starts at 0, and
//     so is answered FENCED_LEADER_EPOCH.
//   - of two batches for one offset the newer wins, not the one with the higher
//     delivery count and state (see wire.MergeStateBatches).
//   - initialize keeps the leader epoch, and with the state epoch and start
//     offset that are there already it does nothing.
//   - the start offset never moves back by a write, and a write below it does
//     not change the delivery complete count.
//   - batches that cannot be state are refused with INVALID_REQUEST.

// defaultUpdatesPerSnapshot is Kafka's default of
// share.coordinator.snapshot.update.records.per.snapshot.
const defaultUpdatesPerSnapshot = 500

// shareCoordinator implements coordinator.
type shareCoordinator struct {
	k   kafka
	now func() time.Time

	// locks[n] is held while a record for partition n of the topic is decided
	// and written. Several are taken in ascending order.
	locks []chan struct{}

	mu     sync.Mutex
	states map[shareStateKey]coordinatedState
}

var _ coordinator = (*shareCoordinator)(nil)

// coordinatedState is the state of one share-partition and where its records
// stand. Its batches are never changed in place.
type coordinatedState struct {
	shareState
	snapshotEpoch int32
	updates       int  // records since the last snapshot
	inDoubt       bool // the log may hold a record that this state does not
}

// newShareCoordinator returns a coordinator without state for a
// __share_group_state of so many partitions.
func newShareCoordinator(k kafka, now func() time.Time, partitions int32) *shareCoordinator {
	s := &shareCoordinator{
		k: k, now: now,
		locks:  make([]chan struct{}, partitions),
		states: make(map[shareStateKey]coordinatedState),
	}
	for i := range s.locks {
		s.locks[i] = make(chan struct{}, 1)
	}
	return s
}

func (s *shareCoordinator) partitions() int32 { return int32(len(s.locks)) }

// partitionFor returns the partition of __share_group_state that holds k.
func (s *shareCoordinator) partitionFor(k shareStateKey) int32 {
	return wire.ShareStatePartition(k.group, k.topicID, k.partition, s.partitions())
}

func (s *shareCoordinator) keys() []shareStateKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.states), compareStateKeys)
}

func (s *shareCoordinator) peek(k shareStateKey) (shareState, bool) {
	st, ok := s.get(k)
	return st.shareState, ok
}

func (s *shareCoordinator) get(k shareStateKey) (coordinatedState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.states[k]
	return st, ok
}

// lock takes the locks of partitions of __share_group_state. It returns nil if
// ctx ends first.
func (s *shareCoordinator) lock(ctx context.Context, partitions ...int32) (unlock func()) {
	slices.Sort(partitions)
	partitions = slices.Compact(partitions)
	taken := 0
	unlock = func() {
		for _, n := range partitions[:taken] {
			<-s.locks[n]
		}
	}
	for _, n := range partitions {
		select {
		case s.locks[n] <- struct{}{}:
			taken++
		case <-ctx.Done():
			unlock()
			return nil
		}
	}
	return unlock
}

// invalidKey reports whether no share-partition can have this key.
func invalidKey(k shareStateKey) bool {
	return k.partition < 0 || k.group == "" || len(k.group) > math.MaxInt16
}

// topicCode returns UNKNOWN_TOPIC_OR_PARTITION unless the partition exists.
func (s *shareCoordinator) topicCode(k shareStateKey) int16 { return stateTopicCode(s.k, k) }

func stateTopicCode(k kafka, key shareStateKey) int16 {
	if t, ok := k.topicByID(key.topicID); !ok || key.partition >= t.partitions {
		return kerr.UnknownTopicOrPartition.Code
	}
	return 0
}

// initialize sets the state of a share-partition to nothing but a start offset.
// Codes: INVALID_REQUEST 42 for a negative partition or state epoch,
// FENCED_STATE_EPOCH 124 for a state epoch below the known one,
// UNKNOWN_TOPIC_OR_PARTITION 3, COORDINATOR_NOT_AVAILABLE 15 when it could not
// be written.
func (s *shareCoordinator) initialize(ctx context.Context, k shareStateKey, stateEpoch int32, startOffset int64) int16 {
	if invalidKey(k) || stateEpoch < 0 || startOffset < -1 {
		return kerr.InvalidRequest.Code
	}
	unlock := s.lock(ctx, s.partitionFor(k))
	if unlock == nil {
		return kerr.CoordinatorNotAvailable.Code
	}
	defer unlock()
	old, known := s.get(k)
	if known && old.stateEpoch > stateEpoch {
		return kerr.FencedStateEpoch.Code
	}
	if code := s.topicCode(k); code != 0 {
		return code
	}
	if known && !old.inDoubt && old.stateEpoch == stateEpoch && old.startOffset == startOffset {
		return 0
	}
	next := coordinatedState{shareState: shareState{
		stateEpoch: stateEpoch, leaderEpoch: old.leaderEpoch, startOffset: startOffset,
	}}
	if startOffset < 0 {
		next.deliveryCompleteCount = -1
	}
	if known {
		next.snapshotEpoch = old.snapshotEpoch + 1
	}
	return s.commit(ctx, map[shareStateKey]coordinatedState{k: next}, []stateRecord{s.snapshotRecord(k, next)})
}

// read returns the state of a share-partition. Codes: INVALID_REQUEST 42 for a
// negative partition and for a share-partition that was not initialized,
// FENCED_LEADER_EPOCH 74 for a leader epoch below the known one,
// UNKNOWN_TOPIC_OR_PARTITION 3, COORDINATOR_NOT_AVAILABLE 15 when a new leader
// epoch could not be written.
func (s *shareCoordinator) read(ctx context.Context, k shareStateKey, leaderEpoch int32) (shareState, int16) {
	if invalidKey(k) || leaderEpoch < -1 {
		return shareState{}, kerr.InvalidRequest.Code
	}
	unlock := s.lock(ctx, s.partitionFor(k))
	if unlock == nil {
		return shareState{}, kerr.CoordinatorNotAvailable.Code
	}
	defer unlock()
	st, known := s.get(k)
	if !known {
		return shareState{}, kerr.InvalidRequest.Code
	}
	if leaderEpoch >= 0 && leaderEpoch < st.leaderEpoch {
		return shareState{}, kerr.FencedLeaderEpoch.Code
	}
	if code := s.topicCode(k); code != 0 {
		return shareState{}, code
	}
	if leaderEpoch > st.leaderEpoch {
		next := st
		next.leaderEpoch = leaderEpoch
		next, records := s.appendUpdate(nil, k, next, nil)
		if code := s.commit(ctx, map[shareStateKey]coordinatedState{k: next}, records); code != 0 {
			return shareState{}, code
		}
		st = next
	}
	out := st.shareState
	out.batches = slices.Clone(out.batches)
	return out, 0
}

// write applies each of writes in order. Codes are, for each: INVALID_REQUEST
// 42 for what cannot be state and for a share-partition that was not
// initialized, FENCED_LEADER_EPOCH 74, FENCED_STATE_EPOCH 124,
// UNKNOWN_TOPIC_OR_PARTITION 3, and COORDINATOR_NOT_AVAILABLE 15 for all that
// were to be written if that failed. A leader epoch or state epoch of -1 is not
// compared.
func (s *shareCoordinator) write(ctx context.Context, writes []shareStateWrite) []int16 {
	codes := make([]int16, len(writes))
	var partitions []int32
	for i, w := range writes {
		if !w.valid() {
			codes[i] = kerr.InvalidRequest.Code
			continue
		}
		partitions = append(partitions, s.partitionFor(w.shareStateKey))
	}
	unlock := s.lock(ctx, partitions...)
	if unlock == nil {
		return failCodes(codes, kerr.CoordinatorNotAvailable.Code)
	}
	defer unlock()

	var records []stateRecord
	next := make(map[shareStateKey]coordinatedState) // with the writes so far
	for i, w := range writes {
		if codes[i] != 0 {
			continue
		}
		st, known := next[w.shareStateKey]
		if !known {
			st, known = s.get(w.shareStateKey)
		}
		switch {
		case !known:
			codes[i] = kerr.InvalidRequest.Code
		case w.leaderEpoch >= 0 && w.leaderEpoch < st.leaderEpoch:
			codes[i] = kerr.FencedLeaderEpoch.Code
		case w.stateEpoch >= 0 && w.stateEpoch < st.stateEpoch:
			codes[i] = kerr.FencedStateEpoch.Code
		default:
			codes[i] = s.topicCode(w.shareStateKey)
		}
		if codes[i] != 0 {
			continue
		}
		next[w.shareStateKey], records = s.applyWrite(records, st, w)
	}
	if len(records) == 0 {
		return codes
	}
	if code := s.commit(ctx, next, records); code != 0 {
		return failCodes(codes, code)
	}
	return codes
}

// failCodes sets code wherever no other is set.
func failCodes(codes []int16, code int16) []int16 {
	for i, c := range codes {
		if c == 0 {
			codes[i] = code
		}
	}
	return codes
}

// valid reports whether the write could be one at all.
func (w shareStateWrite) valid() bool {
	if invalidKey(w.shareStateKey) || w.leaderEpoch < -1 || w.stateEpoch < -1 || w.startOffset < -1 || w.deliveryCompleteCount < -1 {
		return false
	}
	for _, b := range w.batches {
		if b.FirstOffset < 0 || b.FirstOffset > b.LastOffset || b.DeliveryCount < 0 {
			return false
		}
		switch b.DeliveryState {
		case wire.Available, wire.Acknowledged, wire.Archiving, wire.Archived:
		case wire.TxPending:
			if b.Staged.ProducerID < 0 || b.Staged.ProducerEpoch < 0 {
				return false // no marker would ever resolve it
			}
		default:
			return false
		}
	}
	return true
}

// applyWrite appends the records of one write to records and returns the state
// after it.
func (s *shareCoordinator) applyWrite(records []stateRecord, st coordinatedState, w shareStateWrite) (coordinatedState, []stateRecord) {
	batches := slices.Clone(w.batches)
	for i := range batches {
		if batches[i].DeliveryState != wire.TxPending {
			batches[i].Staged = wire.NoStagedOwner()
		}
	}
	if w.startOffset < 0 || w.startOffset >= st.startOffset {
		if w.startOffset >= 0 {
			st.startOffset = w.startOffset
		}
		if w.deliveryCompleteCount >= 0 {
			st.deliveryCompleteCount = w.deliveryCompleteCount
		}
	}
	st.batches = wire.MergeStateBatches(st.batches, batches, st.startOffset)
	stagesAnything := slices.ContainsFunc(batches, func(b wire.StateBatch) bool { return b.DeliveryState == wire.TxPending })
	if w.snapshot && !stagesAnything {
		st = st.snapshotted()
		return st, append(records, s.snapshotRecord(w.shareStateKey, st))
	}
	st, records = s.appendUpdate(records, w.shareStateKey, st, batches)
	if w.snapshot && st.updates > 0 {
		st = st.snapshotted()
		records = append(records, s.snapshotRecord(w.shareStateKey, st))
	}
	return st, records
}

// appendUpdate appends an update that says what changed, batches, to lead to
// st; and a snapshot of st if one is due.
func (s *shareCoordinator) appendUpdate(records []stateRecord, k shareStateKey, st coordinatedState, batches []wire.StateBatch) (coordinatedState, []stateRecord) {
	u := wire.ShareUpdate{
		SnapshotEpoch: st.snapshotEpoch, LeaderEpoch: st.leaderEpoch, StartOffset: st.startOffset,
		StateBatches:          wire.MergeStateBatches(nil, batches, st.startOffset),
		DeliveryCompleteCount: st.deliveryCompleteCount,
	}
	st.updates++
	records = append(records, s.record(k, wire.ShareUpdateType, u.AppendTo(nil)))
	limit := parseConfigInt(s.k.brokerConfig("share.coordinator.snapshot.update.records.per.snapshot"), defaultUpdatesPerSnapshot)
	if st.inDoubt || int64(st.updates) >= limit {
		st = st.snapshotted()
		records = append(records, s.snapshotRecord(k, st))
	}
	return st, records
}

// snapshotted is st once a new snapshot of it is written.
func (st coordinatedState) snapshotted() coordinatedState {
	st.snapshotEpoch++
	st.updates = 0
	st.inDoubt = false
	return st
}

func (s *shareCoordinator) snapshotRecord(k shareStateKey, st coordinatedState) stateRecord {
	now := s.now().UnixMilli()
	v := wire.ShareSnapshot{
		SnapshotEpoch: st.snapshotEpoch, StateEpoch: st.stateEpoch, LeaderEpoch: st.leaderEpoch,
		StartOffset: st.startOffset, CreateTimestamp: now, WriteTimestamp: now,
		StateBatches: st.batches, DeliveryCompleteCount: st.deliveryCompleteCount,
	}
	return s.record(k, wire.ShareSnapshotType, v.AppendTo(nil))
}

func (s *shareCoordinator) record(k shareStateKey, recordType int16, value []byte) stateRecord {
	key := wire.ShareStateKey{Type: recordType, GroupID: k.group, TopicID: k.topicID, Partition: k.partition}
	return stateRecord{partition: s.partitionFor(k), key: key.AppendTo(nil), value: value, timestamp: s.now()}
}

// remove forgets the state of a share-partition, also when its topic is gone.
// That there is none is not an error. Codes: INVALID_REQUEST 42,
// COORDINATOR_NOT_AVAILABLE 15 when it could not be written.
func (s *shareCoordinator) remove(ctx context.Context, k shareStateKey) int16 {
	if invalidKey(k) {
		return kerr.InvalidRequest.Code
	}
	unlock := s.lock(ctx, s.partitionFor(k))
	if unlock == nil {
		return kerr.CoordinatorNotAvailable.Code
	}
	defer unlock()
	if _, known := s.get(k); !known {
		return 0
	}
	if code := s.appendRecords(ctx, []shareStateKey{k}, []stateRecord{s.record(k, wire.ShareSnapshotType, nil)}); code != 0 {
		return code
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.states, k)
	return 0
}

// commit appends records and, once they are durable, takes over next.
func (s *shareCoordinator) commit(ctx context.Context, next map[shareStateKey]coordinatedState, records []stateRecord) int16 {
	if code := s.appendRecords(ctx, slices.Collect(maps.Keys(next)), records); code != 0 {
		return code
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.states, next)
	return 0
}

// appendRecords writes records of keys with one call. When it fails, some of them or
// all may have been written: the keys are in doubt.
func (s *shareCoordinator) appendRecords(ctx context.Context, keys []shareStateKey, records []stateRecord) int16 {
	if s.k.appendState(ctx, records) == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if st, ok := s.states[k]; ok {
			st.inDoubt = true
			s.states[k] = st
		}
	}
	return kerr.CoordinatorNotAvailable.Code
}

// loadShareCoordinator returns a coordinator with the state that
// __share_group_state holds.
//
// When a transaction ends, the transaction coordinator appends its end marker
// to each partition of the topic that was registered in the transaction. If the
// sandbox went down before the marker was acted on, the log still says
// TX_PENDING, so loading acts on markers itself, writes what they decided as
// snapshots and only then returns: no record stays TX_PENDING whose transaction
// has ended. After an abort such a record is AVAILABLE in every dialect, as no
// member and no lock outlives the process.
func loadShareCoordinator(ctx context.Context, k kafka, now func() time.Time) (*shareCoordinator, error) {
	topic, ok := k.topicByName(stateTopic)
	if !ok || topic.partitions < 1 {
		return nil, fmt.Errorf("load share coordinator: topic %s does not exist", stateTopic)
	}
	l := newCoordinatorLoad()
	if err := k.readState(ctx, l.replay); err != nil {
		return nil, fmt.Errorf("load share coordinator: %w", err)
	}
	s := newShareCoordinator(k, now, topic.partitions)
	states, decided := l.finish()
	s.states = states
	var records []stateRecord
	for _, key := range decided {
		st := s.states[key].snapshotted()
		s.states[key] = st
		records = append(records, s.snapshotRecord(key, st))
	}
	if len(records) > 0 {
		if err := k.appendState(ctx, records); err != nil {
			return nil, fmt.Errorf("load share coordinator: write what end markers decided: %w", err)
		}
	}
	return s, nil
}
