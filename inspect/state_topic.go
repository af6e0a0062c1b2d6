package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The topic __share_group_state is read from its start to its high watermark, as
// a share coordinator does when it becomes one (KIP-932): a snapshot replaces the
// state of its share-partition, an update is merged onto it, a tombstone removes
// it.
//
// Where we differ from the coordinator: end markers of transactions are passed
// over. Between the marker and the record that says what became of the records,
// the topic still says TX_PENDING, and the coordinator may know better; it is
// asked afterwards.

// readersInFlight is how many partitions are read at once. Each holds a fetch,
// its records, and the states of a partition.
const readersInFlight = 4

// topicStates is what was read of the topic.
type topicStates struct {
	pending  []ShareState // that hold records in TX_PENDING, in no order
	read     int          // share-partitions that have state
	persists bool         // a staged owner was seen, resolved since or not
	unread   []int32      // partitions that could not be read, ascending
	gaps     []Gap
}

// readStateTopic reads partitions of the topic. Of each, only what is pending is
// kept once its end is reached, so that memory follows the largest partitions. The
// error is that of ctx.
func readStateTopic(ctx context.Context, cl Cluster, topic cluster.Topic, partitions []int32) (topicStates, error) {
	var mu sync.Mutex
	var out topicStates
	var gaps gapList
	each(partitions, readersInFlight, func(p int32) {
		f := newStateFold(p)
		err := cl.ReadPartition(ctx, topic, p, f.add)
		mu.Lock()
		defer mu.Unlock()
		out.persists = out.persists || f.persists
		if err != nil {
			// What was read of it is the past.
			out.unread = append(out.unread, p)
			gaps.add(readGap(p, err))
			return
		}
		out.read += len(f.states)
		out.pending = append(out.pending, f.pending()...)
		gaps.add(f.gaps()...)
	})
	if ctx.Err() != nil {
		return topicStates{}, context.Cause(ctx)
	}
	slices.Sort(out.unread)
	out.gaps = gaps.sorted()
	return out, nil
}

func readGap(partition int32, err error) Gap {
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return aclGap(SourceStateTopic, aclReadState, kerr.TopicAuthorizationFailed,
			"what share coordinators have written about TX_PENDING cannot be read")
	}
	g := ErrorGap(SourceStateTopic, fmt.Sprintf("%s-%d could not be read", stateTopic, partition), err)
	if e, ok := errors.AsType[*cluster.Error](err); ok && e.Broker >= 0 {
		g.Broker = new(e.Broker)
	}
	return g
}

// stateFold is the state of the share-partitions of one partition of the topic.
type stateFold struct {
	partition int32
	states    map[ShareKey]*foldedState
	persists  bool

	undecoded int   // records that could not be decoded
	first     int64 // offset of the first of them
	firstErr  error
}

// foldedState is the state of one share-partition so far.
type foldedState struct {
	stateEpoch, leaderEpoch int32
	startOffset             int64
	batches                 []wire.StateBatch
	newer                   []wire.StateBatch // of updates, to be merged onto batches
	staged                  []StagedSince     // owners that may have records pending
}

func newStateFold(partition int32) *stateFold {
	return &stateFold{partition: partition, states: make(map[ShareKey]*foldedState)}
}

// add applies the next record.
func (f *stateFold) add(r *kgo.Record) {
	rec, err := wire.ParseShareStateRecord(r.Key, r.Value)
	if errors.Is(err, wire.ErrUnknownRecordType) {
		return // of a newer release; Kafka passes it over too
	}
	if err != nil {
		if f.undecoded++; f.undecoded == 1 {
			f.first, f.firstErr = r.Offset, err
		}
		return
	}
	k := ShareKey{rec.Key.GroupID, rec.Key.TopicID, rec.Key.Partition}
	if rec.Tombstone() {
		delete(f.states, k)
		return
	}
	s := f.states[k]
	if s == nil {
		s = &foldedState{startOffset: -1}
		f.states[k] = s
	}
	if rec.Snapshot != nil {
		f.note(s.snapshot(rec.Snapshot, r.Timestamp))
	} else {
		f.note(s.update(rec.Update, r.Timestamp))
	}
}

func (f *stateFold) note(owner bool) { f.persists = f.persists || owner }

// snapshot replaces the state. It reports whether it saw a staged owner, as update
// does.
func (s *foldedState) snapshot(v *wire.ShareSnapshot, at time.Time) (owner bool) {
	before := s.staged
	*s = foldedState{
		stateEpoch: v.StateEpoch, leaderEpoch: max(v.LeaderEpoch, s.leaderEpoch), startOffset: v.StartOffset,
		batches: wire.MergeStateBatches(nil, v.StateBatches, v.StartOffset),
		staged:  before, // a snapshot repeats what was staged before
	}
	owner = s.stage(s.batches, at)
	s.forget()
	return owner
}

// mergeAfter is how many batches of updates are kept before they are merged, or
// as many as the state has: merging costs the length of both.
const mergeAfter = 64

func (s *foldedState) update(v *wire.ShareUpdate, at time.Time) (owner bool) {
	s.leaderEpoch = max(v.LeaderEpoch, s.leaderEpoch)
	if v.StartOffset >= 0 {
		s.startOffset = v.StartOffset
	}
	s.newer = append(s.newer, v.StateBatches...)
	owner = s.stage(v.StateBatches, at)
	if len(s.newer) > max(mergeAfter, len(s.batches)) || len(s.staged) > mergeAfter {
		s.merge()
	}
	return owner
}

// stage remembers since when owners have records pending.
func (s *foldedState) stage(batches []wire.StateBatch, at time.Time) (owner bool) {
	for _, b := range batches {
		if b.DeliveryState != wire.TxPending {
			continue
		}
		owner = owner || !b.Staged.IsNone()
		if !slices.ContainsFunc(s.staged, func(o StagedSince) bool { return o.owns(b.Staged) }) {
			s.staged = append(s.staged, StagedSince{b.Staged.ProducerID, b.Staged.ProducerEpoch, at.UTC()})
		}
	}
	return owner
}

// merge brings batches up to date.
func (s *foldedState) merge() {
	s.batches, s.newer = wire.MergeStateBatches(s.batches, s.newer, s.startOffset), nil
	s.forget()
}

// forget forgets owners that have nothing pending any more. The state is merged.
func (s *foldedState) forget() {
	s.staged = slices.DeleteFunc(s.staged, func(o StagedSince) bool {
		return !slices.ContainsFunc(s.batches, func(b wire.StateBatch) bool {
			return b.DeliveryState == wire.TxPending && o.owns(b.Staged)
		})
	})
}

// pending returns the states that hold records in TX_PENDING.
func (f *stateFold) pending() []ShareState {
	var out []ShareState
	for k, s := range f.states {
		if len(s.staged) == 0 {
			continue
		}
		s.merge()
		if len(s.staged) == 0 {
			continue
		}
		first := slices.MinFunc(s.staged, func(a, b StagedSince) int { return a.Since.Compare(b.Since) })
		slices.SortFunc(s.staged, func(a, b StagedSince) int {
			return cmp.Or(cmp.Compare(a.ProducerID, b.ProducerID), cmp.Compare(a.ProducerEpoch, b.ProducerEpoch))
		})
		out = append(out, ShareState{
			GroupID: k.GroupID, TopicID: k.TopicID, Partition: k.Partition, StatePartition: f.partition,
			StateEpoch: s.stateEpoch, LeaderEpoch: s.leaderEpoch, StartOffset: s.startOffset,
			Batches: s.batches, Written: first.Since, Staged: s.staged, Sources: []Source{SourceStateTopic},
		})
	}
	return out
}

// gaps says which records could not be decoded.
func (f *stateFold) gaps() []Gap {
	if f.undecoded == 0 {
		return nil
	}
	g := Gap{
		Source: SourceStateTopic,
		Reason: fmt.Sprintf("the record at offset %d of %s-%d could not be decoded: %v", f.first, stateTopic, f.partition, f.firstErr),
		Advice: "see whether a newer kshare knows what this cluster writes",
	}
	if f.undecoded > 1 {
		g.Reason += fmt.Sprintf(", and %d more after it", f.undecoded-1)
	}
	return []Gap{g}
}
