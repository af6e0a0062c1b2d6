package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topicLog makes the records of one partition of __share_group_state.
type topicLog struct{ records []*kgo.Record }

func (l *topicLog) add(minute int, k ShareKey, recordType int16, value []byte) {
	l.records = append(l.records, &kgo.Record{
		Key:   wire.ShareStateKey{Type: recordType, GroupID: k.GroupID, TopicID: k.TopicID, Partition: k.Partition}.AppendTo(nil),
		Value: value, Offset: int64(len(l.records)), Timestamp: stagedAt.Add(time.Duration(minute) * time.Minute),
	})
}

func (l *topicLog) snapshot(minute int, k ShareKey, start int64, batches ...wire.StateBatch) {
	l.add(minute, k, wire.ShareSnapshotType, wire.ShareSnapshot{
		SnapshotEpoch: 1, StateEpoch: 2, LeaderEpoch: 3, StartOffset: start, StateBatches: batches, DeliveryCompleteCount: -1,
	}.AppendTo(nil))
}

func (l *topicLog) update(minute int, k ShareKey, start int64, batches ...wire.StateBatch) {
	l.add(minute, k, wire.ShareUpdateType, wire.ShareUpdate{
		SnapshotEpoch: 1, LeaderEpoch: 4, StartOffset: start, StateBatches: batches, DeliveryCompleteCount: -1,
	}.AppendTo(nil))
}

func (l *topicLog) tombstone(k ShareKey) { l.add(0, k, wire.ShareSnapshotType, nil) }

func TestStateFold(t *testing.T) {
	k, other := ShareKey{"g", fakeTopicID, 0}, ShareKey{"g", fakeTopicID, 1}
	a, b := ownedBy(1, 5), ownedBy(2, 9)
	at := func(minute int) time.Time { return stagedAt.Add(time.Duration(minute) * time.Minute) }
	since := func(o wire.StagedOwner, minute int) StagedSince {
		return StagedSince{o.ProducerID, o.ProducerEpoch, at(minute)}
	}
	for _, c := range []struct {
		name     string
		log      func(*topicLog)
		batches  []wire.StateBatch // nil: nothing is pending
		staged   []StagedSince
		read     int
		persists bool
	}{
		{"empty", func(*topicLog) {}, nil, nil, 0, false},
		{"nothing pending", func(l *topicLog) { l.snapshot(0, k, 0, stateBatchOf(0, 9, wire.Available)) }, nil, nil, 1, false},
		{
			"a snapshot replaces", func(l *topicLog) {
				l.snapshot(0, k, 0, stateBatchOf(0, 3, wire.Available), pendingBatch(7, 8, a))
				l.snapshot(1, k, 2, pendingBatch(0, 5, b))
			},
			[]wire.StateBatch{pendingBatch(2, 5, b)},
			[]StagedSince{since(b, 1)},
			1, true,
		},
		{
			"a snapshot repeats what was staged before", func(l *topicLog) {
				l.update(1, k, 0, pendingBatch(0, 1, a))
				l.snapshot(8, k, 0, pendingBatch(0, 1, a), pendingBatch(2, 3, b))
			},
			[]wire.StateBatch{pendingBatch(0, 1, a), pendingBatch(2, 3, b)},
			[]StagedSince{since(a, 1), since(b, 8)},
			1, true,
		},
		{
			"updates are merged", func(l *topicLog) {
				l.snapshot(0, k, 0, stateBatchOf(0, 9, wire.Available))
				l.update(1, k, -1, pendingBatch(2, 5, b))
				l.update(2, k, 1, pendingBatch(6, 6, a))
				l.update(3, k, -1, pendingBatch(7, 7, a), stateBatchOf(4, 5, wire.Acknowledged))
			},
			[]wire.StateBatch{
				stateBatchOf(1, 1, wire.Available), pendingBatch(2, 3, b), stateBatchOf(4, 5, wire.Acknowledged),
				pendingBatch(6, 7, a), stateBatchOf(8, 9, wire.Available),
			},
			[]StagedSince{since(a, 2), since(b, 1)},
			1, true,
		},
		{
			"an update without a snapshot", func(l *topicLog) { l.update(1, k, 4, pendingBatch(3, 5, a)) },
			[]wire.StateBatch{pendingBatch(4, 5, a)},
			[]StagedSince{since(a, 1)},
			1, true,
		},
		{
			"resolved", func(l *topicLog) {
				l.update(1, k, 0, pendingBatch(0, 5, a))
				l.update(2, k, 6)
			},
			nil, nil, 1, true,
		},
		{
			"resolved by a snapshot, and staged anew", func(l *topicLog) {
				l.update(1, k, 0, pendingBatch(0, 5, a))
				l.snapshot(2, k, 0, stateBatchOf(0, 5, wire.Available))
				l.update(3, k, 0, pendingBatch(0, 5, a))
			},
			[]wire.StateBatch{pendingBatch(0, 5, a)},
			[]StagedSince{since(a, 3)},
			1, true,
		},
		{
			"a tombstone removes", func(l *topicLog) {
				l.snapshot(0, k, 0, pendingBatch(0, 5, a))
				l.snapshot(0, other, 0)
				l.tombstone(k)
			},
			nil, nil, 1, true,
		},
		{
			"no owner that can be read", func(l *topicLog) { l.snapshot(0, k, 0, pendingBatch(0, 5, wire.NoStagedOwner())) },
			[]wire.StateBatch{pendingBatch(0, 5, wire.NoStagedOwner())},
			[]StagedSince{since(wire.NoStagedOwner(), 0)},
			1, false,
		},
		{
			"types of a newer release", func(l *topicLog) {
				l.snapshot(0, k, 0, pendingBatch(0, 5, a))
				l.add(1, k, 17, []byte("?"))
			},
			[]wire.StateBatch{pendingBatch(0, 5, a)},
			[]StagedSince{since(a, 0)},
			1, true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := new(topicLog)
			c.log(l)
			f := newStateFold(3)
			for _, r := range l.records {
				f.add(r)
			}
			if len(f.states) != c.read || f.persists != c.persists || len(f.gaps()) > 0 {
				t.Errorf("read %d, persists %t, gaps %+v; want %d, %t", len(f.states), f.persists, f.gaps(), c.read, c.persists)
			}
			got := f.pending()
			if c.batches == nil {
				if len(got) > 0 {
					t.Errorf("pending %+v, want nothing", got)
				}
				return
			}
			if len(got) != 1 || !slices.Equal(got[0].Batches, c.batches) || !slices.Equal(got[0].Staged, c.staged) {
				t.Fatalf("pending %+v, want %+v by %+v", got, c.batches, c.staged)
			}
			first := slices.MinFunc(c.staged, func(a, b StagedSince) int { return a.Since.Compare(b.Since) })
			if s := got[0]; s.Key() != k || s.StatePartition != 3 || !s.Written.Equal(first.Since) || !slices.Equal(s.Sources, []Source{SourceStateTopic}) {
				t.Errorf("state %+v", s)
			}
		})
	}
}

// A busy share-partition has hundreds of updates and owners between two snapshots.
func TestStateFoldOfManyUpdates(t *testing.T) {
	k := ShareKey{"g", fakeTopicID, 0}
	l := new(topicLog)
	l.snapshot(0, k, 0)
	var want []wire.StateBatch
	for i := range int64(500) {
		owner := ownedBy(i%7, int16(i))
		l.update(1, k, -1, pendingBatch(i, i, owner))
		if i%2 == 0 {
			l.update(2, k, -1, stateBatchOf(i, i, wire.Acknowledged))
			want = append(want, stateBatchOf(i, i, wire.Acknowledged))
		} else {
			want = append(want, pendingBatch(i, i, owner))
		}
	}
	f := newStateFold(0)
	for _, r := range l.records {
		f.add(r)
	}
	got := f.pending()
	if len(got) != 1 || !slices.Equal(got[0].Batches, want) || len(got[0].Staged) != 250 {
		t.Errorf("%d states, %d owners", len(got), len(got[0].Staged))
	}
}

func TestStateRecordsThatCannotBeDecoded(t *testing.T) {
	k := ShareKey{"g", fakeTopicID, 0}
	l := new(topicLog)
	l.snapshot(0, k, 0, pendingBatch(0, 5, ownedBy(1, 5)))
	l.add(0, k, wire.ShareSnapshotType, []byte{0, 9, 1}) // version 9
	l.records = append(l.records, &kgo.Record{Key: []byte{0}, Offset: 2})
	f := newFakeCluster()
	f.records[1] = l.records
	read, err := readStateTopic(t.Context(), f, f.topics[0], []int32{0, 1, 2})
	if err != nil || len(read.pending) != 1 || len(read.unread) > 0 || len(read.gaps) != 1 {
		t.Fatalf("%+v, %v", read, err)
	}
	want := "the record at offset 1 of __share_group_state-1 could not be decoded: share snapshot: unsupported version: 9, and 1 more after it"
	if g := read.gaps[0]; g.Reason != want || g.Source != SourceStateTopic || g.Advice == "" {
		t.Errorf("gap %+v, want %q", g, want)
	}
}

func TestReadStateTopicWithoutAPartition(t *testing.T) {
	f := newFakeCluster()
	f.write(fakeKey(0), pendingBatch(0, 5, ownedBy(1, 5)))
	f.write(fakeKey(1), pendingBatch(0, 5, ownedBy(1, 5)))
	f.beforeRead = func(p int32) error {
		if p == 1 {
			return &cluster.Error{Op: "read", Broker: 1, Topic: stateTopic, Partition: 1, Err: kerr.NotLeaderForPartition}
		}
		return nil
	}
	read, err := readStateTopic(t.Context(), f, f.topics[0], []int32{0, 1, 2})
	if err != nil || len(read.pending) != 1 || read.read != 1 || !slices.Equal(read.unread, []int32{1}) ||
		!slices.Equal(gapsBy(read.gaps), []string{"__share_group_state broker 1 NOT_LEADER_FOR_PARTITION"}) {
		t.Fatalf("%+v, %v", read, err)
	}
	if !strings.Contains(read.gaps[0].Reason, "__share_group_state-1 could not be read") {
		t.Errorf("gap %q", read.gaps[0].Reason)
	}

	f.beforeRead, f.denied[aclReadState] = nil, true
	read, err = readStateTopic(t.Context(), f, f.topics[0], []int32{0, 1, 2})
	if err != nil || len(read.pending) > 0 || !slices.Equal(read.unread, []int32{0, 1, 2}) ||
		!slices.Equal(gapsBy(read.gaps), []string{fmt.Sprintf("%s %s %s", SourceStateTopic, aclReadState, "TOPIC_AUTHORIZATION_FAILED")}) {
		t.Errorf("%+v, %v, want one gap that names READ", read, err)
	}
}
