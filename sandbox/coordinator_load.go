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
type coordinatorLoad struct {
	states  map[shareStateKey]coordinatedState
	pending map[producerIn]map[shareStateKey]struct{} // who may have TX_PENDING records
	ended   map[producerIn]int16                      // the highest epoch in a marker
	decided map[shareStateKey][]wire.StateBatch       // by marker; what the log has not said yet
}

// producerIn is a producer as seen from one partition of __share_group_state.
type producerIn struct {
	partition  int32
	producerID int64
}

func newCoordinatorLoad() *coordinatorLoad {
	return &coordinatorLoad{
		states:  make(map[shareStateKey]coordinatedState),
		pending: make(map[producerIn]map[shareStateKey]struct{}),
		ended:   make(map[producerIn]int16),
		decided: make(map[shareStateKey][]wire.StateBatch),
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
	switch {
	case rec.Tombstone():
		delete(l.states, k)
		delete(l.decided, k)
	case rec.Snapshot != nil:
		l.snapshot(k, *rec.Snapshot)
	default:
		l.update(k, *rec.Update)
	}
	for _, b := range l.states[k].batches {
		if b.DeliveryState == wire.TxPending {
			p := producerIn{r.partition, b.Staged.ProducerID}
			if l.pending[p] == nil {
				l.pending[p] = make(map[shareStateKey]struct{})
			}
			l.pending[p][k] = struct{}{}
		}
	}
	return nil
}

func (l *coordinatorLoad) snapshot(k shareStateKey, v wire.ShareSnapshot) {
	st := coordinatedState{
		shareState: shareState{
			stateEpoch: v.StateEpoch, leaderEpoch: max(v.LeaderEpoch, l.states[k].leaderEpoch), startOffset: v.StartOffset,
			deliveryCompleteCount: v.DeliveryCompleteCount,
			batches:               wire.MergeStateBatches(nil, v.StateBatches, v.StartOffset),
		},
		snapshotEpoch: v.SnapshotEpoch,
	}
	still := overruled(st.batches, l.decided[k])
	delete(l.decided, k)
	l.states[k] = st
	l.decide(k, still)
}

func (l *coordinatorLoad) update(k shareStateKey, v wire.ShareUpdate) {
	st, known := l.states[k]
	if !known {
		st.startOffset, st.deliveryCompleteCount = -1, -1
	}
	st.leaderEpoch = max(v.LeaderEpoch, st.leaderEpoch)
	if v.StartOffset >= 0 {
		st.startOffset = v.StartOffset
	}
	st.batches = wire.MergeStateBatches(st.batches, v.StateBatches, st.startOffset)
	st.snapshotEpoch = v.SnapshotEpoch
	st.updates++

	// What the update speaks of is no longer decided by a marker before it.
	const spoken wire.RecordState = -1
	said := slices.Clone(v.StateBatches)
	for i := range said {
		said[i].DeliveryState = spoken
	}
	left := wire.MergeStateBatches(l.decided[k], said, st.startOffset)
	left = slices.DeleteFunc(left, func(b wire.StateBatch) bool { return b.DeliveryState == spoken })
	l.keepDecided(k, left)
	if v.DeliveryCompleteCount >= 0 {
		// Who wrote the update did not count yet what the marker decided.
		st.deliveryCompleteCount = v.DeliveryCompleteCount + terminalRecords(left)
	}
	l.states[k] = st
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

// keepDecided replaces what is decided for k.
func (l *coordinatorLoad) keepDecided(k shareStateKey, batches []wire.StateBatch) {
	if len(batches) == 0 {
		delete(l.decided, k)
		return
	}
	l.decided[k] = batches
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

// decide puts TX_PENDING ranges of k into the state that a marker decided, and
// remembers that it did. Each of batches still names the owner.
func (l *coordinatorLoad) decide(k shareStateKey, batches []wire.StateBatch) {
	if len(batches) == 0 {
		return
	}
	st := l.states[k]
	resolved := slices.Clone(batches)
	for i := range resolved {
		resolved[i].Staged = wire.NoStagedOwner()
	}
	if st.deliveryCompleteCount >= 0 {
		st.deliveryCompleteCount += terminalRecords(resolved)
	}
	st.batches = wire.MergeStateBatches(st.batches, resolved, st.startOffset)
	l.states[k] = st
	l.keepDecided(k, wire.MergeStateBatches(l.decided[k], batches, st.startOffset))
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
	for k := range l.pending[p] {
		for range pendingOf(l.states[k].batches, m.producerID, func(epoch int16) bool { return epoch == m.producerEpoch }) {
			committed = m.producerEpoch
			break
		}
	}
	l.resolve(p, func(epoch int16) bool { return epoch <= m.producerEpoch },
		func(epoch int16) bool { return m.commit && epoch == committed })
}

// resolve decides all staged batches of p whose epoch is over.
func (l *coordinatorLoad) resolve(p producerIn, over, committed func(epoch int16) bool) {
	for k := range l.pending[p] {
		var batches []wire.StateBatch
		more := false
		for b := range pendingOf(l.states[k].batches, p.producerID, func(int16) bool { return true }) {
			switch epoch := b.Staged.ProducerEpoch; {
			case !over(epoch):
				more = true
				continue
			case committed(epoch):
				b.DeliveryState = b.Staged.AfterCommit()
			default:
				b.DeliveryState = wire.Available
			}
			batches = append(batches, b)
		}
		l.decide(k, batches)
		if !more {
			delete(l.pending[p], k)
		}
	}
	if len(l.pending[p]) == 0 {
		delete(l.pending, p)
	}
}

// pendingOf returns the batches that a producer has staged with such an epoch.
func pendingOf(batches []wire.StateBatch, producerID int64, epoch func(int16) bool) func(func(wire.StateBatch) bool) {
	return func(yield func(wire.StateBatch) bool) {
		for _, b := range batches {
			if b.DeliveryState == wire.TxPending && b.Staged.ProducerID == producerID && epoch(b.Staged.ProducerEpoch) && !yield(b) {
				return
			}
		}
	}
}

// finish decides what was staged when the transaction had ended already: its
// epoch is below that of a marker, and no marker followed. A producer commits
// only what it was told is staged, so this was not part of a commit; it is
// aborted. It returns the share-partitions of which the
// log does not say yet what was decided, sorted.
func (l *coordinatorLoad) finish() []shareStateKey {
	for p := range l.pending {
		if e, ok := l.ended[p]; ok {
			l.resolve(p, func(epoch int16) bool { return epoch < e }, func(int16) bool { return false })
		}
	}
	return slices.SortedFunc(maps.Keys(l.decided), compareStateKeys)
}
