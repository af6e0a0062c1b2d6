package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/kshare/kshare/wire"
)

// coordinatorLoad replays __share_group_state, end markers included.
//
// Live, the end of a transaction takes two steps: its marker is appended to the
// log, then the share plane writes a snapshot with what the marker decided.
// Between the two other records of the same share-partition may be written, and
// among them a snapshot, such as that of another transaction that ended, which
// repeats TX_PENDING for records whose marker stands before it. To put such a
// snapshot in the place of the state would lose the decision. So decisions are
// remembered until a record shows that they were acted on, or until the records
// are staged anew. The latter always is an update: the coordinator never stages
// by a snapshot alone.
//
// The time is that of reading the log: updates are only collected, and merged
// when a marker or the end of the log asks for the state.
type coordinatorLoad struct {
	states  map[shareStateKey]*loadingState
	pending map[producerIn]map[shareStateKey]struct{} // who may have TX_PENDING records
	ended   map[producerIn]int16                      // the highest epoch in a marker
}

// loadingState is the state of one share-partition so far.
type loadingState struct {
	coordinatedState
	newer   []wire.StateBatch // of updates, to be merged onto batches
	decided []wire.StateBatch // by a marker and not yet said by a record; they name the owner
}

// producerIn is a producer as seen from one partition of __share_group_state.
type producerIn struct {
	partition  int32
	producerID int64
}

func newCoordinatorLoad() *coordinatorLoad {
	return &coordinatorLoad{
		states:  make(map[shareStateKey]*loadingState),
		pending: make(map[producerIn]map[shareStateKey]struct{}),
		ended:   make(map[producerIn]int16),
	}
}

// replay applies the next record or marker of a partition.
func (l *coordinatorLoad) replay(r stateRecord) error {
	if r.marker {
		l.end(r)
		return nil
	}
	rec, err := wire.ParseShareStateRecord(r.key, r.value)
	if errors.Is(err, wire.ErrUnknownRecordType) {
		return nil // of a newer release; Kafka skips it as well
	}
	if err != nil {
		return fmt.Errorf("%s-%d: %w", stateTopic, r.partition, err)
	}
	k := shareStateKey{group: rec.Key.GroupID, topicID: rec.Key.TopicID, partition: rec.Key.Partition}
	if rec.Tombstone() {
		delete(l.states, k)
		return nil
	}
	st, known := l.states[k]
	if !known {
		st = &loadingState{coordinatedState: coordinatedState{shareState: shareState{startOffset: -1, deliveryCompleteCount: -1}}}
		l.states[k] = st
	}
	if rec.Snapshot != nil {
		st.snapshot(*rec.Snapshot)
		l.track(r.partition, k, rec.Snapshot.StateBatches)
	} else {
		st.update(*rec.Update)
		l.track(r.partition, k, rec.Update.StateBatches)
	}
	return nil
}

// track remembers whose end k waits for.
func (l *coordinatorLoad) track(partition int32, k shareStateKey, batches []wire.StateBatch) {
	for _, b := range batches {
		if b.DeliveryState != wire.TxPending {
			continue
		}
		p := producerIn{partition, b.Staged.ProducerID}
		if l.pending[p] == nil {
			l.pending[p] = make(map[shareStateKey]struct{})
		}
		l.pending[p][k] = struct{}{}
	}
}

func (st *loadingState) snapshot(v wire.ShareSnapshot) {
	st.coordinatedState = coordinatedState{
		shareState: shareState{
			stateEpoch: v.StateEpoch, leaderEpoch: max(v.LeaderEpoch, st.leaderEpoch), startOffset: v.StartOffset,
			deliveryCompleteCount: v.DeliveryCompleteCount,
			batches:               wire.MergeStateBatches(nil, v.StateBatches, v.StartOffset),
		},
		snapshotEpoch: v.SnapshotEpoch,
	}
	st.newer = nil
	still := overruled(st.batches, st.decided)
	st.decided = nil
	st.decide(still)
}

func (st *loadingState) update(v wire.ShareUpdate) {
	st.leaderEpoch = max(v.LeaderEpoch, st.leaderEpoch)
	if v.StartOffset >= 0 {
		st.startOffset = v.StartOffset
	}
	st.newer = append(st.newer, v.StateBatches...)
	st.snapshotEpoch = v.SnapshotEpoch
	st.updates++
	if len(st.decided) > 0 {
		st.decided = without(st.decided, v.StateBatches, st.startOffset)
	}
	if v.DeliveryCompleteCount >= 0 {
		// Who wrote the update did not count yet what the marker decided.
		st.deliveryCompleteCount = v.DeliveryCompleteCount + terminalRecords(st.decided)
	}
}

// merge brings batches up to date.
func (st *loadingState) merge() {
	st.batches = wire.MergeStateBatches(st.batches, st.newer, st.startOffset)
	st.newer = nil
}

// decide puts TX_PENDING ranges into the state that a marker decided, and
// remembers that it did. The state is merged, and each of batches still names
// the owner.
func (st *loadingState) decide(batches []wire.StateBatch) {
	if len(batches) == 0 {
		return
	}
	resolved := slices.Clone(batches)
	for i := range resolved {
		resolved[i].Staged = wire.NoStagedOwner()
	}
	if st.deliveryCompleteCount >= 0 {
		st.deliveryCompleteCount += terminalRecords(resolved)
	}
	st.batches = wire.MergeStateBatches(st.batches, resolved, st.startOffset)
	st.decided = wire.MergeStateBatches(st.decided, batches, st.startOffset)
}

// terminalRecords counts the records that batches say are done with.
func terminalRecords(batches []wire.StateBatch) int32 {
	n := int64(0)
	for _, b := range batches {
		if b.DeliveryState.Terminal() {
			n += b.LastOffset - b.FirstOffset + 1
		}
	}
	return int32(min(n, math.MaxInt32))
}

// without returns batches less the offsets that said speaks of and those below
// start.
func without(batches, said []wire.StateBatch, start int64) []wire.StateBatch {
	const spoken wire.RecordState = -1
	said = slices.Clone(said)
	for i := range said {
		said[i].DeliveryState = spoken
	}
	return slices.DeleteFunc(wire.MergeStateBatches(batches, said, start), func(b wire.StateBatch) bool { return b.DeliveryState == spoken })
}

// overruled returns the parts of TX_PENDING batches that were decided for the
// same owner. Both are sorted and free of overlaps; so is the result, whose
// batches are in the state that was decided and still name the owner.
func overruled(batches, decided []wire.StateBatch) []wire.StateBatch {
	var out []wire.StateBatch
	for i, j := 0, 0; i < len(batches) && j < len(decided); {
		b, d := batches[i], decided[j]
		first, last := max(b.FirstOffset, d.FirstOffset), min(b.LastOffset, d.LastOffset)
		if first <= last && b.DeliveryState == wire.TxPending && b.Staged == d.Staged {
			d.FirstOffset, d.LastOffset, d.DeliveryCount = first, last, b.DeliveryCount
			out = append(out, d)
		}
		if b.LastOffset <= d.LastOffset {
			i++
		} else {
			j++
		}
	}
	return out
}

// end applies an end marker to what its producer has staged in the partition.
//
// The epoch in a marker is that of the staging, or with transactions of version
// 2 the next one. A commit decides for the batches of the former epoch or, if
// there are none, of the latter; all older ones belong to transactions that
// ended in some other way, and what was not committed is aborted.
func (l *coordinatorLoad) end(m stateRecord) {
	p := producerIn{m.partition, m.producerID}
	if e, ok := l.ended[p]; !ok || m.producerEpoch > e {
		l.ended[p] = m.producerEpoch
	}
	committed := m.producerEpoch - 1
	for _, b := range l.stagedBy(p) {
		if b.Staged.ProducerEpoch == m.producerEpoch {
			committed = m.producerEpoch
			break
		}
	}
	l.resolve(p, func(epoch int16) bool { return epoch <= m.producerEpoch },
		func(epoch int16) bool { return m.commit && epoch == committed })
}

// stagedBy returns all batches that a producer has staged and not ended, of any
// share-partition.
func (l *coordinatorLoad) stagedBy(p producerIn) []wire.StateBatch {
	var out []wire.StateBatch
	for k := range l.pending[p] {
		if st := l.states[k]; st != nil {
			out = append(out, st.stagedBy(p.producerID)...)
		}
	}
	return out
}

// stagedBy returns the batches that a producer has staged and not ended.
func (st *loadingState) stagedBy(producerID int64) []wire.StateBatch {
	st.merge()
	var out []wire.StateBatch
	for _, b := range st.batches {
		if b.DeliveryState == wire.TxPending && b.Staged.ProducerID == producerID {
			out = append(out, b)
		}
	}
	return out
}

// resolve decides all staged batches of p whose epoch is over.
func (l *coordinatorLoad) resolve(p producerIn, over, committed func(epoch int16) bool) {
	for k := range l.pending[p] {
		st := l.states[k]
		if st == nil { // removed
			delete(l.pending[p], k)
			continue
		}
		staged := st.stagedBy(p.producerID)
		ended := slices.DeleteFunc(slices.Clone(staged), func(b wire.StateBatch) bool { return !over(b.Staged.ProducerEpoch) })
		for i := range ended {
			b := &ended[i]
			b.DeliveryState = wire.Available
			if committed(b.Staged.ProducerEpoch) {
				b.DeliveryState = b.Staged.AfterCommit()
			}
		}
		st.decide(ended)
		if len(ended) == len(staged) {
			delete(l.pending[p], k)
		}
	}
	if len(l.pending[p]) == 0 {
		delete(l.pending, p)
	}
}

// finish returns all states, and the share-partitions of which the log does not
// say yet what was decided, sorted.
//
// It decides for what was staged when the transaction had ended already: its
// epoch is below that of a marker, and no marker followed. A producer commits
// only what it was told is staged, so this was not part of a commit; it is
// aborted.
func (l *coordinatorLoad) finish() (states map[shareStateKey]coordinatedState, decided []shareStateKey) {
	for p := range l.pending {
		if e, ok := l.ended[p]; ok {
			l.resolve(p, func(epoch int16) bool { return epoch < e }, func(int16) bool { return false })
		}
	}
	states = make(map[shareStateKey]coordinatedState, len(l.states))
	for _, k := range slices.SortedFunc(maps.Keys(l.states), compareStateKeys) {
		st := l.states[k]
		st.merge()
		states[k] = st.coordinatedState
		if len(st.decided) > 0 {
			decided = append(decided, k)
		}
	}
	return states, decided
}
