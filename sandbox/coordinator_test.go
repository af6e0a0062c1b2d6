package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// coordinatorKafka is the cluster behind a share coordinator: a log of
// __share_group_state in memory. The methods of kafka that a share coordinator
// has no use for are left out and panic.
type coordinatorKafka struct {
	kafka

	topics    map[[16]byte]topicInfo
	leaders   []int32 // of the partitions of __share_group_state
	configs   map[string]string
	denied    bool
	appendErr error
	readErr   error
	lost      bool // an append that fails has written its records all the same
	enter     chan struct{}
	leave     chan struct{}

	mu      sync.Mutex
	log     map[int32][]stateRecord
	appends int
}

var (
	coordTopic = [16]byte{1}
	coordKey   = shareStateKey{group: "g", topicID: coordTopic, partition: 0}
	coordTime  = time.UnixMilli(1_764_369_566_720)
)

func newCoordinatorKafka(partitions int) *coordinatorKafka {
	return &coordinatorKafka{
		topics:  map[[16]byte]topicInfo{coordTopic: {name: "orders", id: coordTopic, partitions: 4}},
		leaders: slices.Repeat([]int32{1}, partitions),
		configs: map[string]string{},
		log:     make(map[int32][]stateRecord),
	}
}

func (k *coordinatorKafka) topicByName(name string) (topicInfo, bool) {
	if name != stateTopic || len(k.leaders) == 0 {
		return topicInfo{}, false
	}
	return topicInfo{name: stateTopic, partitions: int32(len(k.leaders))}, true
}

func (k *coordinatorKafka) topicByID(id [16]byte) (topicInfo, bool) {
	t, ok := k.topics[id]
	return t, ok
}

func (k *coordinatorKafka) partition(topic string, partition int32) (partitionInfo, bool) {
	if topic != stateTopic || partition < 0 || int(partition) >= len(k.leaders) {
		return partitionInfo{}, false
	}
	return partitionInfo{leader: k.leaders[partition]}, true
}

func (k *coordinatorKafka) brokerConfig(name string) string { return k.configs[name] }

func (k *coordinatorKafka) authorized(_ caller, op kmsg.ACLOperation, resource kmsg.ACLResourceType, name string) bool {
	return !k.denied && op == kmsg.ACLOperationClusterAction && resource == kmsg.ACLResourceTypeCluster && name == "kafka-cluster"
}

func (k *coordinatorKafka) appendState(ctx context.Context, records []stateRecord) error {
	if k.enter != nil {
		k.enter <- struct{}{}
		select {
		case <-k.leave:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.appends++
	if k.appendErr == nil || k.lost {
		for _, r := range records {
			k.log[r.partition] = append(k.log[r.partition], r)
		}
	}
	return k.appendErr
}

func (k *coordinatorKafka) readState(_ context.Context, each func(stateRecord) error) error {
	for _, n := range slices.Sorted(maps.Keys(k.log)) {
		for _, r := range k.log[n] {
			if err := each(r); err != nil {
				return err
			}
		}
	}
	return k.readErr
}

// marker appends an end marker to partition n.
func (k *coordinatorKafka) marker(n int32, producerID int64, epoch int16, commit bool) {
	k.log[n] = append(k.log[n], stateRecord{partition: n, marker: true, producerID: producerID, producerEpoch: epoch, commit: commit})
}

// values returns all records as text, oldest first: "snapshot", "update" or
// "tombstone" with what they say.
func (k *coordinatorKafka) values(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, n := range slices.Sorted(maps.Keys(k.log)) {
		for _, r := range k.log[n] {
			out = append(out, coordRecordText(t, r))
		}
	}
	return out
}

func coordRecordText(t *testing.T, r stateRecord) string {
	t.Helper()
	if r.marker {
		return fmt.Sprintf("marker pid=%d epoch=%d commit=%v", r.producerID, r.producerEpoch, r.commit)
	}
	rec, err := wire.ParseShareStateRecord(r.key, r.value)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case rec.Snapshot != nil:
		s := rec.Snapshot
		return fmt.Sprintf("snapshot %d state=%d leader=%d start=%d complete=%d %s",
			s.SnapshotEpoch, s.StateEpoch, s.LeaderEpoch, s.StartOffset, s.DeliveryCompleteCount, coordBatchText(s.StateBatches))
	case rec.Update != nil:
		u := rec.Update
		return fmt.Sprintf("update %d leader=%d start=%d complete=%d %s",
			u.SnapshotEpoch, u.LeaderEpoch, u.StartOffset, u.DeliveryCompleteCount, coordBatchText(u.StateBatches))
	}
	return "tombstone"
}

func coordBatchText(batches []wire.StateBatch) string {
	var parts []string
	for _, b := range batches {
		s := fmt.Sprintf("%d-%d:%d*%d", b.FirstOffset, b.LastOffset, b.DeliveryState, b.DeliveryCount)
		if !b.Staged.IsNone() {
			s += fmt.Sprintf("(%d,%d,%d,%d)", b.Staged.ProducerID, b.Staged.ProducerEpoch, b.Staged.AcknowledgeType, b.Staged.DeliveryState)
		}
		parts = append(parts, s)
	}
	return "[" + strings.Join(parts, " ") + "]"
}

func coordStateText(st shareState) string {
	return fmt.Sprintf("state=%d leader=%d start=%d complete=%d %s",
		st.stateEpoch, st.leaderEpoch, st.startOffset, st.deliveryCompleteCount, coordBatchText(st.batches))
}

func coordBatch(first, last int64, state wire.RecordState, count int16) wire.StateBatch {
	return wire.StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: state, DeliveryCount: count, Staged: wire.NoStagedOwner()}
}

// coordStaged is a batch staged with ACCEPT.
func coordStaged(first, last int64, count int16, producerID int64, epoch int16) wire.StateBatch {
	b := coordBatch(first, last, wire.TxPending, count)
	b.Staged = wire.StagedOwner{ProducerID: producerID, ProducerEpoch: epoch, AcknowledgeType: 1, DeliveryState: 2}
	return b
}

func loadCoordinator(t *testing.T, k *coordinatorKafka) *shareCoordinator {
	t.Helper()
	s, err := loadShareCoordinator(t.Context(), k, func() time.Time { return coordTime })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// initialized returns a coordinator whose coordKey has state epoch 2, leader
// epoch 5 and start offset 100.
func initialized(t *testing.T) (*coordinatorKafka, *shareCoordinator) {
	t.Helper()
	k := newCoordinatorKafka(1)
	s := loadCoordinator(t, k)
	if code := s.initialize(t.Context(), coordKey, 2, 100); code != 0 {
		t.Fatalf("initialize: %d", code)
	}
	if _, code := s.read(t.Context(), coordKey, 5); code != 0 {
		t.Fatalf("read: %d", code)
	}
	return k, s
}

// coordWrite is a write that coordKey as initialized accepts.
func coordWrite(batches ...wire.StateBatch) shareStateWrite {
	return shareStateWrite{
		shareStateKey: coordKey, stateEpoch: 2, leaderEpoch: 5, startOffset: -1, deliveryCompleteCount: -1, batches: batches,
	}
}

func mustWrite(t *testing.T, s *shareCoordinator, writes ...shareStateWrite) {
	t.Helper()
	for i, code := range s.write(t.Context(), writes) {
		if code != 0 {
			t.Fatalf("write %d: code %d", i, code)
		}
	}
}

func wantState(t *testing.T, s *shareCoordinator, k shareStateKey, want string) {
	t.Helper()
	st, code := s.read(t.Context(), k, -1)
	if got := coordStateText(st); code != 0 || got != want {
		t.Errorf("state of %s = %s, code %d\nwant %s", k, got, code, want)
	}
}

func wantRecords(t *testing.T, k *coordinatorKafka, want ...string) {
	t.Helper()
	if got := k.values(t); !slices.Equal(got, want) {
		t.Errorf("records:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestShareCoordinatorInitialize(t *testing.T) {
	for _, tt := range []struct {
		name       string
		key        shareStateKey
		stateEpoch int32
		start      int64
		code       int16
		state      string // of coordKey afterwards
	}{
		{"partition below 0", shareStateKey{"g", coordTopic, -1}, 2, 0, 42, "state=2 leader=5 start=100 complete=0 []"},
		{"no group", shareStateKey{"", coordTopic, 0}, 2, 0, 42, "state=2 leader=5 start=100 complete=0 []"},
		{"state epoch below 0", coordKey, -1, 0, 42, "state=2 leader=5 start=100 complete=0 []"},
		{"start offset below -1", coordKey, 3, -2, 42, "state=2 leader=5 start=100 complete=0 []"},
		{"older state epoch", coordKey, 1, 0, 124, "state=2 leader=5 start=100 complete=0 []"},
		{"no such topic", shareStateKey{"g", [16]byte{9}, 0}, 2, 0, 3, "state=2 leader=5 start=100 complete=0 []"},
		{"no such partition", shareStateKey{"g", coordTopic, 4}, 2, 0, 3, "state=2 leader=5 start=100 complete=0 []"},
		{"what it is already", coordKey, 2, 100, 0, "state=2 leader=5 start=100 complete=0 []"},
		{"same state epoch, another offset", coordKey, 2, 50, 0, "state=2 leader=5 start=50 complete=0 []"},
		{"newer state epoch", coordKey, 3, 7, 0, "state=3 leader=5 start=7 complete=0 []"},
		{"no offset yet", coordKey, 3, -1, 0, "state=3 leader=5 start=-1 complete=-1 []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, s := initialized(t)
			before := k.appends
			if code := s.initialize(t.Context(), tt.key, tt.stateEpoch, tt.start); code != tt.code {
				t.Errorf("code = %d, want %d", code, tt.code)
			}
			wantState(t, s, coordKey, tt.state)
			if wrote := k.appends > before; wrote != (tt.state != "state=2 leader=5 start=100 complete=0 []") {
				t.Errorf("wrote = %v", wrote)
			}
		})
	}
}

// State that is set anew does not keep batches of the state before.
func TestShareCoordinatorInitializeDropsBatches(t *testing.T) {
	k, s := initialized(t)
	mustWrite(t, s, coordWrite(coordStaged(100, 109, 1, 7, 0)))
	if code := s.initialize(t.Context(), coordKey, 3, 0); code != 0 {
		t.Fatalf("code = %d", code)
	}
	wantState(t, s, coordKey, "state=3 leader=5 start=0 complete=0 []")
	wantState(t, loadCoordinator(t, k), coordKey, "state=3 leader=5 start=0 complete=0 []")
	wantRecords(t, k,
		"snapshot 0 state=2 leader=0 start=100 complete=0 []",
		"update 0 leader=5 start=100 complete=0 []",
		"update 0 leader=5 start=100 complete=0 [100-109:5*1(7,0,1,2)]",
		"snapshot 1 state=3 leader=5 start=0 complete=0 []",
	)
}

func TestShareCoordinatorRead(t *testing.T) {
	for _, tt := range []struct {
		name        string
		key         shareStateKey
		leaderEpoch int32
		code        int16
		state       string
		record      string // that it writes
	}{
		{"partition below 0", shareStateKey{"g", coordTopic, -1}, 5, 42, "", ""},
		{"leader epoch below -1", coordKey, -2, 42, "", ""},
		{"not initialized", shareStateKey{"h", coordTopic, 0}, 5, 42, "", ""},
		{"older leader", coordKey, 4, 74, "", ""},
		{"the leader", coordKey, 5, 0, "state=2 leader=5 start=100 complete=0 [100-104:0*1]", ""},
		{"newer leader", coordKey, 6, 0, "state=2 leader=6 start=100 complete=0 [100-104:0*1]", "update 0 leader=6 start=100 complete=0 []"},
		{"no leader", coordKey, -1, 0, "state=2 leader=5 start=100 complete=0 [100-104:0*1]", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, s := initialized(t)
			mustWrite(t, s, coordWrite(coordBatch(100, 104, wire.Available, 1)))
			before := k.values(t)
			st, code := s.read(t.Context(), tt.key, tt.leaderEpoch)
			if code != tt.code {
				t.Fatalf("code = %d, want %d", code, tt.code)
			}
			if code == 0 && coordStateText(st) != tt.state {
				t.Errorf("state = %s, want %s", coordStateText(st), tt.state)
			}
			if tt.record != "" {
				before = append(before, tt.record)
			}
			wantRecords(t, k, before...)
		})
	}

	t.Run("topic gone", func(t *testing.T) {
		k, s := initialized(t)
		delete(k.topics, coordTopic)
		if _, code := s.read(t.Context(), coordKey, 5); code != 3 {
			t.Errorf("code = %d, want 3", code)
		}
	})
	t.Run("what is returned is the caller's", func(t *testing.T) {
		_, s := initialized(t)
		mustWrite(t, s, coordWrite(coordBatch(100, 104, wire.Available, 1)))
		st, _ := s.read(t.Context(), coordKey, -1)
		st.batches[0].DeliveryState = wire.Archived
		wantState(t, s, coordKey, "state=2 leader=5 start=100 complete=0 [100-104:0*1]")
	})
	t.Run("newer leader that cannot be written", func(t *testing.T) {
		k, s := initialized(t)
		k.appendErr = errors.New("disk full")
		if _, code := s.read(t.Context(), coordKey, 6); code != 15 {
			t.Errorf("code = %d, want 15", code)
		}
		if st, code := s.read(t.Context(), coordKey, 5); code != 0 || st.leaderEpoch != 5 {
			t.Errorf("the leader in office reads %s, code %d", coordStateText(st), code)
		}
	})
}

func TestShareCoordinatorWriteCodes(t *testing.T) {
	with := func(f func(*shareStateWrite)) shareStateWrite {
		w := coordWrite(coordBatch(100, 100, wire.Acknowledged, 1))
		f(&w)
		return w
	}
	badBatch := func(f func(*wire.StateBatch)) shareStateWrite {
		b := coordStaged(100, 100, 1, 7, 0)
		f(&b)
		return coordWrite(b)
	}
	for _, tt := range []struct {
		name string
		w    shareStateWrite
		code int16
	}{
		{"as it should be", with(func(*shareStateWrite) {}), 0},
		{"partition below 0", with(func(w *shareStateWrite) { w.partition = -1 }), 42},
		{"leader epoch below -1", with(func(w *shareStateWrite) { w.leaderEpoch = -2 }), 42},
		{"state epoch below -1", with(func(w *shareStateWrite) { w.stateEpoch = -2 }), 42},
		{"start offset below -1", with(func(w *shareStateWrite) { w.startOffset = -2 }), 42},
		{"count below -1", with(func(w *shareStateWrite) { w.deliveryCompleteCount = -2 }), 42},
		{"not initialized", with(func(w *shareStateWrite) { w.group = "h" }), 42},
		{"older leader", with(func(w *shareStateWrite) { w.leaderEpoch = 4 }), 74},
		{"newer leader", with(func(w *shareStateWrite) { w.leaderEpoch = 6 }), 0},
		{"leader epoch not compared", with(func(w *shareStateWrite) { w.leaderEpoch = -1 }), 0},
		{"older state epoch", with(func(w *shareStateWrite) { w.stateEpoch = 1 }), 124},
		{"state epoch not compared", with(func(w *shareStateWrite) { w.stateEpoch = -1 }), 0},
		{"older leader and state epoch", with(func(w *shareStateWrite) { w.leaderEpoch, w.stateEpoch = 4, 1 }), 74},
		{"batch below offset 0", badBatch(func(b *wire.StateBatch) { b.FirstOffset = -1 }), 42},
		{"batch that ends before it starts", badBatch(func(b *wire.StateBatch) { b.LastOffset = 99 }), 42},
		{"delivery count below 0", badBatch(func(b *wire.StateBatch) { b.DeliveryCount = -1 }), 42},
		{"ACQUIRED", badBatch(func(b *wire.StateBatch) { b.DeliveryState = wire.Acquired }), 42},
		{"no state", badBatch(func(b *wire.StateBatch) { b.DeliveryState = 6 }), 42},
		{"TX_PENDING of nobody", badBatch(func(b *wire.StateBatch) { b.Staged = wire.NoStagedOwner() }), 42},
		{"TX_PENDING", badBatch(func(*wire.StateBatch) {}), 0},
		{"ARCHIVING", badBatch(func(b *wire.StateBatch) { b.DeliveryState = wire.Archiving }), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k, s := initialized(t)
			before := k.appends
			if codes := s.write(t.Context(), []shareStateWrite{tt.w}); !slices.Equal(codes, []int16{tt.code}) {
				t.Errorf("codes = %d, want %d", codes, tt.code)
			}
			if wrote := k.appends > before; wrote != (tt.code == 0) {
				t.Errorf("wrote = %v, code %d", wrote, tt.code)
			}
			if st, _ := s.read(t.Context(), coordKey, -1); len(st.batches) > 0 != (tt.code == 0) || st.leaderEpoch != 5 {
				t.Errorf("state = %s", coordStateText(st))
			}
		})
	}
	t.Run("topic gone", func(t *testing.T) {
		k, s := initialized(t)
		delete(k.topics, coordTopic)
		if codes := s.write(t.Context(), []shareStateWrite{coordWrite()}); codes[0] != 3 {
			t.Errorf("codes = %d, want 3", codes)
		}
	})
	t.Run("cannot be written", func(t *testing.T) {
		k, s := initialized(t)
		k.appendErr = errors.New("disk full")
		codes := s.write(t.Context(), []shareStateWrite{coordWrite(coordBatch(100, 100, wire.Acknowledged, 1)), with(func(w *shareStateWrite) { w.leaderEpoch = 4 })})
		if !slices.Equal(codes, []int16{15, 74}) {
			t.Errorf("codes = %d, want 15 and 74", codes)
		}
		wantState(t, s, coordKey, "state=2 leader=5 start=100 complete=0 []")
	})
}

func TestShareCoordinatorWriteRecords(t *testing.T) {
	k, s := initialized(t)
	head := []string{
		"snapshot 0 state=2 leader=0 start=100 complete=0 []",
		"update 0 leader=5 start=100 complete=0 []",
	}
	wantRecords(t, k, head...)

	// Batches are merged and clipped, the start offset and the count taken over.
	w := coordWrite(coordBatch(108, 109, wire.Acknowledged, 1), coordBatch(103, 107, wire.Acknowledged, 1), coordBatch(90, 99, wire.Archived, 1))
	w.startOffset, w.deliveryCompleteCount = 102, 7
	mustWrite(t, s, w)
	wantState(t, s, coordKey, "state=2 leader=5 start=102 complete=7 [103-109:2*1]")

	// Neither moves with -1, nor by a write that is older than the state.
	mustWrite(t, s, coordWrite(coordBatch(105, 105, wire.Archived, 1)))
	w = coordWrite(coordBatch(101, 103, wire.Archived, 2))
	w.startOffset, w.deliveryCompleteCount = 101, 1
	mustWrite(t, s, w)
	wantState(t, s, coordKey, "state=2 leader=5 start=102 complete=7 [102-103:4*2 104-104:2*1 105-105:4*1 106-109:2*1]")

	// The end of a transaction is one snapshot; a staged owner that does not
	// belong there is dropped.
	resolved := coordStaged(104, 104, 1, 7, 0)
	resolved.DeliveryState = wire.Available
	w = coordWrite(resolved)
	w.snapshot = true
	mustWrite(t, s, w)

	// Staging in a snapshot is an update first.
	w = coordWrite(coordStaged(109, 109, 1, 7, 0))
	w.snapshot = true
	mustWrite(t, s, w)

	wantRecords(t, k, append(head,
		"update 0 leader=5 start=102 complete=7 [103-109:2*1]",
		"update 0 leader=5 start=102 complete=7 [105-105:4*1]",
		"update 0 leader=5 start=102 complete=7 [102-103:4*2]",
		"snapshot 1 state=2 leader=5 start=102 complete=7 [102-103:4*2 104-104:0*1 105-105:4*1 106-109:2*1]",
		"update 1 leader=5 start=102 complete=7 [109-109:5*1(7,0,1,2)]",
		"snapshot 2 state=2 leader=5 start=102 complete=7 [102-103:4*2 104-104:0*1 105-105:4*1 106-108:2*1 109-109:5*1(7,0,1,2)]",
	)...)
	for _, r := range k.log[0] {
		if !r.timestamp.Equal(coordTime) {
			t.Errorf("record %s has timestamp %v", coordRecordText(t, r), r.timestamp)
		}
	}
}

func TestShareCoordinatorSnapshotsAfterSoManyUpdates(t *testing.T) {
	for _, tt := range []struct {
		config string
		limit  int
	}{{"", 500}, {"3", 3}, {"nonsense", 500}} {
		k, s := initialized(t) // with one update
		k.configs["share.coordinator.snapshot.update.records.per.snapshot"] = tt.config
		var got []int
		for i := range int64(2 * tt.limit) {
			mustWrite(t, s, coordWrite(coordBatch(100+i, 100+i, wire.Acknowledged, 1)))
			if i == int64(tt.limit)/2 { // the count outlives the process
				s = loadCoordinator(t, k)
			}
		}
		updates := 0
		for _, v := range k.values(t)[1:] {
			if strings.HasPrefix(v, "snapshot ") {
				got = append(got, updates)
				updates = 0
				continue
			}
			updates++
		}
		if !slices.Equal(got, []int{tt.limit, tt.limit}) {
			t.Errorf("limit %q: snapshots after %d updates, want %d each", tt.config, got, tt.limit)
		}
	}
}

func TestShareCoordinatorWritesAllKeysWithOneAppend(t *testing.T) {
	k := newCoordinatorKafka(50)
	s := loadCoordinator(t, k)
	var writes []shareStateWrite
	for p := range int32(4) {
		key := shareStateKey{"g", coordTopic, p}
		if code := s.initialize(t.Context(), key, 0, 0); code != 0 {
			t.Fatal(code)
		}
		writes = append(writes, shareStateWrite{shareStateKey: key, startOffset: -1, deliveryCompleteCount: -1, batches: []wire.StateBatch{coordBatch(1, 1, wire.Acknowledged, 1)}})
	}
	// The same key twice: the second write builds on the first.
	writes = append(writes, writes[2], writes[0])
	writes[4].batches = []wire.StateBatch{coordBatch(2, 2, wire.Acknowledged, 1)}
	writes[5].stateEpoch = -1
	bad := writes[1]
	bad.batches = []wire.StateBatch{coordBatch(1, 1, wire.Acquired, 1)}
	before := k.appends
	if codes := s.write(t.Context(), append(writes, bad)); !slices.Equal(codes, []int16{0, 0, 0, 0, 0, 0, 42}) {
		t.Errorf("codes = %d", codes)
	}
	if k.appends != before+1 {
		t.Errorf("%d appends, want 1", k.appends-before)
	}
	wantState(t, s, writes[2].shareStateKey, "state=0 leader=0 start=0 complete=0 [1-2:2*1]")
	wantState(t, loadCoordinator(t, k), writes[2].shareStateKey, "state=0 leader=0 start=0 complete=0 [1-2:2*1]")
	if codes := s.write(t.Context(), nil); len(codes) != 0 {
		t.Errorf("no writes: codes %d", codes)
	}
}

// A write that failed may be in the log all the same. What is written next ends
// the doubt, so that a restart sees what the leader was told.
func TestShareCoordinatorEndsDoubt(t *testing.T) {
	k, s := initialized(t)
	k.appendErr, k.lost = context.DeadlineExceeded, true
	if codes := s.write(t.Context(), []shareStateWrite{coordWrite(coordStaged(100, 109, 1, 7, 0))}); codes[0] != 15 {
		t.Fatalf("codes = %d", codes)
	}
	k.appendErr = nil
	wantState(t, s, coordKey, "state=2 leader=5 start=100 complete=0 []")
	mustWrite(t, s, coordWrite(coordBatch(120, 120, wire.Acknowledged, 1)))
	const want = "state=2 leader=5 start=100 complete=0 [120-120:2*1]"
	wantState(t, s, coordKey, want)
	wantState(t, loadCoordinator(t, k), coordKey, want)
	before := len(k.values(t))
	mustWrite(t, s, coordWrite(coordBatch(121, 121, wire.Acknowledged, 1)))
	if got := k.values(t)[before:]; len(got) != 1 || !strings.HasPrefix(got[0], "update ") {
		t.Errorf("the write after that wrote %q, want one update", got)
	}

	// The same for what initialize could not write: again is not "already so".
	k.appendErr = context.DeadlineExceeded
	if code := s.initialize(t.Context(), coordKey, 3, 0); code != 15 {
		t.Fatalf("code = %d", code)
	}
	k.appendErr = nil
	if code := s.initialize(t.Context(), coordKey, 2, 100); code != 0 {
		t.Fatalf("code = %d", code)
	}
	wantState(t, loadCoordinator(t, k), coordKey, "state=2 leader=5 start=100 complete=0 []")
}

func TestShareCoordinatorRemove(t *testing.T) {
	k, s := initialized(t)
	if code := s.remove(t.Context(), shareStateKey{"h", coordTopic, 0}); code != 0 {
		t.Errorf("unknown key: code %d, want 0", code)
	}
	if code := s.remove(t.Context(), shareStateKey{"g", coordTopic, -1}); code != 42 {
		t.Errorf("partition -1: code %d, want 42", code)
	}
	k.appendErr = errors.New("disk full")
	if code := s.remove(t.Context(), coordKey); code != 15 {
		t.Errorf("disk full: code %d, want 15", code)
	}
	wantState(t, s, coordKey, "state=2 leader=5 start=100 complete=0 []")
	k.appendErr = nil

	delete(k.topics, coordTopic) // state of a deleted topic can be removed
	before := k.values(t)
	if code := s.remove(t.Context(), coordKey); code != 0 {
		t.Errorf("code = %d, want 0", code)
	}
	wantRecords(t, k, append(before, "tombstone")...)
	for _, c := range []*shareCoordinator{s, loadCoordinator(t, k)} {
		if keys := c.keys(); len(keys) != 0 {
			t.Errorf("keys = %v, want none", keys)
		}
		if _, code := c.read(t.Context(), coordKey, -1); code != 42 {
			t.Errorf("read: code %d, want 42", code)
		}
	}
}

func TestShareCoordinatorKeysAreSorted(t *testing.T) {
	k := newCoordinatorKafka(7)
	k.topics[[16]byte{0, 1}] = topicInfo{name: "a", partitions: 4}
	s := loadCoordinator(t, k)
	want := []shareStateKey{{"a", coordTopic, 3}, {"b", [16]byte{0, 1}, 0}, {"b", coordTopic, 0}, {"b", coordTopic, 2}}
	for _, i := range []int{2, 0, 3, 1} {
		if code := s.initialize(t.Context(), want[i], 0, 0); code != 0 {
			t.Fatal(code)
		}
	}
	if got := s.keys(); !slices.Equal(got, want) {
		t.Errorf("keys = %v, want %v", got, want)
	}
	if got := s.partitions(); got != 7 {
		t.Errorf("partitions = %d, want 7", got)
	}
	for key := range maps.Keys(s.states) {
		if n := s.partitionFor(key); len(k.log[n]) == 0 {
			t.Errorf("no record of %s in partition %d", key, n)
		}
	}
}

// Whoever waits for a partition of the topic stops waiting when its context
// ends, and nobody waits for another partition.
func TestShareCoordinatorWaitsItsTurn(t *testing.T) {
	k := newCoordinatorKafka(2)
	s := loadCoordinator(t, k)
	var keys [2]shareStateKey // by partition of the topic
	for p := range int32(4) {
		key := shareStateKey{"g", coordTopic, p}
		keys[s.partitionFor(key)] = key
	}
	for _, key := range keys {
		if code := s.initialize(t.Context(), key, 0, 0); code != 0 {
			t.Fatalf("%v: %d", keys, code)
		}
	}
	write := func(ctx context.Context, key shareStateKey) []int16 {
		return s.write(ctx, []shareStateWrite{{shareStateKey: key, startOffset: -1, deliveryCompleteCount: -1, batches: []wire.StateBatch{coordBatch(1, 1, wire.Acknowledged, 1)}}})
	}
	k.enter, k.leave = make(chan struct{}), make(chan struct{})
	done := make(chan []int16)
	go func() { done <- write(t.Context(), keys[0]) }()
	<-k.enter // it holds its partition now

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if codes := write(canceled, keys[0]); codes[0] != 15 {
		t.Errorf("write without time: %d, want 15", codes)
	}
	if _, code := s.read(canceled, keys[0], 1); code != 15 {
		t.Errorf("read without time: %d, want 15", code)
	}
	if code := s.initialize(canceled, keys[0], 1, 0); code != 15 {
		t.Errorf("initialize without time: %d, want 15", code)
	}
	if code := s.remove(canceled, keys[0]); code != 15 {
		t.Errorf("remove without time: %d, want 15", code)
	}
	if _, code := s.read(t.Context(), keys[1], 0); code != 0 {
		t.Errorf("read of the other partition: %d", code)
	}
	k.leave <- struct{}{}
	if codes := <-done; codes[0] != 0 {
		t.Errorf("write: %d", codes)
	}
}

func TestShareCoordinatorConcurrently(t *testing.T) {
	k := newCoordinatorKafka(3)
	s := loadCoordinator(t, k)
	const rounds = 50
	var wg sync.WaitGroup
	for p := range int32(4) {
		key := shareStateKey{"g", coordTopic, p}
		if code := s.initialize(t.Context(), key, 0, 0); code != 0 {
			t.Fatal(code)
		}
		for g := range int64(3) {
			wg.Go(func() {
				for i := range int64(rounds) {
					at := 3*i + g
					other := shareStateKey{"g", coordTopic, (p + 1) % 4}
					codes := s.write(t.Context(), []shareStateWrite{
						{shareStateKey: other, startOffset: -1, deliveryCompleteCount: -1},
						{shareStateKey: key, startOffset: -1, deliveryCompleteCount: -1, batches: []wire.StateBatch{coordBatch(at, at, wire.Acknowledged, 1)}},
					})
					if codes[0] != 0 || codes[1] != 0 {
						t.Errorf("codes = %d", codes)
					}
					s.keys()
				}
			})
		}
	}
	wg.Wait()
	loaded := loadCoordinator(t, k)
	for p := range int32(4) {
		want := fmt.Sprintf("state=0 leader=0 start=0 complete=0 [0-%d:2*1]", 3*rounds-1)
		wantState(t, s, shareStateKey{"g", coordTopic, p}, want)
		wantState(t, loaded, shareStateKey{"g", coordTopic, p}, want)
	}
}

// Loading

// coordSnapshot and coordUpdate are records of coordKey.
func coordSnapshot(epoch, stateEpoch int32, start int64, complete int32, batches ...wire.StateBatch) stateRecord {
	v := wire.ShareSnapshot{SnapshotEpoch: epoch, StateEpoch: stateEpoch, LeaderEpoch: 5, StartOffset: start, DeliveryCompleteCount: complete, StateBatches: batches}
	return coordRecord(wire.ShareSnapshotType, v.AppendTo(nil))
}

func coordUpdate(start int64, complete int32, batches ...wire.StateBatch) stateRecord {
	v := wire.ShareUpdate{LeaderEpoch: 5, StartOffset: start, DeliveryCompleteCount: complete, StateBatches: batches}
	return coordRecord(wire.ShareUpdateType, v.AppendTo(nil))
}

func coordRecord(recordType int16, value []byte) stateRecord {
	key := wire.ShareStateKey{Type: recordType, GroupID: coordKey.group, TopicID: coordKey.topicID, Partition: coordKey.partition}
	return stateRecord{key: key.AppendTo(nil), value: value}
}

func coordEnd(producerID int64, epoch int16, commit bool) stateRecord {
	return stateRecord{marker: true, producerID: producerID, producerEpoch: epoch, commit: commit}
}

func TestLoadShareCoordinator(t *testing.T) {
	rejected := coordStaged(104, 104, 2, 7, 3)
	rejected.Staged.AcknowledgeType, rejected.Staged.DeliveryState = 3, 3
	noTarget := coordStaged(100, 109, 1, 7, 3)
	noTarget.Staged.DeliveryState = -1
	old := coordStaged(100, 101, 1, 7, 2)
	olderLeader := coordRecord(wire.ShareUpdateType, wire.ShareUpdate{LeaderEpoch: 3, StartOffset: -1, DeliveryCompleteCount: -1}.AppendTo(nil))
	oldestLeader := coordRecord(wire.ShareSnapshotType, wire.ShareSnapshot{LeaderEpoch: 1, StateEpoch: 3, StartOffset: 4, DeliveryCompleteCount: -1}.AppendTo(nil))

	for _, tt := range []struct {
		name  string
		log   []stateRecord
		want  string // "" is no state
		wrote string // what loading adds to the log
	}{
		{"nothing", nil, "", ""},
		{
			"snapshot, updates", []stateRecord{
				coordSnapshot(4, 2, 100, 0, coordBatch(100, 109, wire.Available, 1)),
				coordUpdate(-1, -1, coordBatch(103, 104, wire.Acknowledged, 1)),
				coordUpdate(102, 5, coordBatch(100, 102, wire.Acknowledged, 1)),
			}, "state=2 leader=5 start=102 complete=5 [102-104:2*1 105-109:0*1]", "",
		},
		{
			"a snapshot replaces", []stateRecord{
				coordSnapshot(0, 2, 100, 0, coordBatch(100, 109, wire.Available, 1)),
				coordSnapshot(1, 3, 7, 0),
			}, "state=3 leader=5 start=7 complete=0 []", "",
		},
		{"an update alone", []stateRecord{coordUpdate(-1, -1, coordBatch(3, 4, wire.Archived, 1))}, "state=0 leader=5 start=-1 complete=-1 [3-4:4*1]", ""},
		{"a leader stays fenced", []stateRecord{coordSnapshot(0, 2, 100, 0), olderLeader}, "state=2 leader=5 start=100 complete=0 []", ""},
		{"a leader stays fenced when state is set anew", []stateRecord{coordSnapshot(0, 2, 100, 0), oldestLeader}, "state=3 leader=5 start=4 complete=-1 []", ""},
		{
			"tombstone", []stateRecord{coordSnapshot(0, 2, 100, 0), coordRecord(wire.ShareSnapshotType, nil)}, "", "",
		},
		{
			"state after a tombstone", []stateRecord{
				coordSnapshot(0, 2, 100, 0, coordBatch(100, 109, wire.Available, 1)),
				coordRecord(wire.ShareSnapshotType, nil),
				coordSnapshot(0, 0, 3, 0),
			}, "state=0 leader=5 start=3 complete=0 []", "",
		},
		{
			"a record of a type of the future",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), {key: []byte{0, 9, 1}, value: []byte{1}}},
			"state=2 leader=5 start=100 complete=0 []", "",
		},
		{
			"open transaction",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3))},
			"state=2 leader=5 start=100 complete=0 [100-109:5*1(7,3,1,2)]", "",
		},
		{
			"committed",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 1), coordUpdate(-1, -1, coordStaged(100, 103, 1, 7, 3), rejected), coordEnd(7, 3, true),
			},
			"state=2 leader=5 start=100 complete=5 [100-103:2*1 104-104:3*2]",
			"snapshot 1 state=2 leader=5 start=100 complete=5 [100-103:2*1 104-104:3*2]",
		},
		{
			"aborted",
			[]stateRecord{coordSnapshot(0, 2, 100, 1), coordUpdate(-1, -1, coordStaged(100, 103, 1, 7, 3), rejected), coordEnd(7, 3, false)},
			"state=2 leader=5 start=100 complete=1 [100-103:0*1 104-104:0*2]",
			"snapshot 1 state=2 leader=5 start=100 complete=1 [100-103:0*1 104-104:0*2]",
		},
		{
			"committed, epoch of the marker bumped",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3)), coordEnd(7, 4, true)},
			"state=2 leader=5 start=100 complete=10 [100-109:2*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=10 [100-109:2*1]",
		},
		{
			"fenced: epoch of the marker bumped twice",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3)), coordEnd(7, 5, false)},
			"state=2 leader=5 start=100 complete=0 [100-109:0*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=0 [100-109:0*1]",
		},
		{
			"a commit that is of another transaction",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3)), coordEnd(7, 5, true)},
			"state=2 leader=5 start=100 complete=0 [100-109:0*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=0 [100-109:0*1]",
		},
		{
			"a commit does not take in what an older epoch left",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, old, coordStaged(102, 103, 1, 7, 3)), coordEnd(7, 3, true),
			},
			"state=2 leader=5 start=100 complete=2 [100-101:0*1 102-103:2*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=2 [100-101:0*1 102-103:2*1]",
		},
		{
			"target not persisted",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, noTarget), coordEnd(7, 3, true)},
			"state=2 leader=5 start=100 complete=10 [100-109:2*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=10 [100-109:2*1]",
		},
		{
			"marker of another producer",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3)), coordEnd(8, 3, true)},
			"state=2 leader=5 start=100 complete=0 [100-109:5*1(7,3,1,2)]", "",
		},
		{
			"marker of an older epoch",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3)), coordEnd(7, 2, true)},
			"state=2 leader=5 start=100 complete=0 [100-109:5*1(7,3,1,2)]", "",
		},
		{
			"marker before the record: the next transaction of that epoch",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordEnd(7, 3, true), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3))},
			"state=2 leader=5 start=100 complete=0 [100-109:5*1(7,3,1,2)]", "",
		},
		{
			"staged after its transaction was fenced",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordEnd(7, 4, false), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3))},
			"state=2 leader=5 start=100 complete=0 [100-109:0*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=0 [100-109:0*1]",
		},
		{
			"marker twice",
			[]stateRecord{coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3)), coordEnd(7, 3, true), coordEnd(7, 3, true)},
			"state=2 leader=5 start=100 complete=10 [100-109:2*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=10 [100-109:2*1]",
		},
		{
			"acted on before the end: nothing to add", []stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 109, 1, 7, 3)), coordEnd(7, 3, true),
				coordSnapshot(1, 2, 100, 10, coordBatch(100, 109, wire.Acknowledged, 1)),
			}, "state=2 leader=5 start=100 complete=10 [100-109:2*1]", "",
		},
		{
			// Two transactions end; the snapshot of the first to be acted on
			// repeats what the second had staged.
			"a snapshot behind the marker that does not know of it",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 0),
				coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordUpdate(-1, -1, coordStaged(105, 109, 1, 8, 0)),
				coordEnd(7, 3, true), coordEnd(8, 0, true),
				coordSnapshot(1, 2, 100, 5, coordStaged(100, 104, 1, 7, 3), coordBatch(105, 109, wire.Acknowledged, 1)),
			},
			"state=2 leader=5 start=100 complete=10 [100-109:2*1]",
			"snapshot 2 state=2 leader=5 start=100 complete=10 [100-109:2*1]",
		},
		{
			"updates behind the marker that do not know of it",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, 0, coordStaged(100, 104, 1, 7, 3)), coordEnd(7, 3, true),
				coordUpdate(-1, 1, coordBatch(105, 105, wire.Acknowledged, 1)),
			},
			"state=2 leader=5 start=100 complete=6 [100-105:2*1]",
			"snapshot 1 state=2 leader=5 start=100 complete=6 [100-105:2*1]",
		},
		{
			"aborted, acted on, staged again with the same epoch",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordEnd(7, 3, false),
				coordSnapshot(1, 2, 100, 0, coordBatch(100, 104, wire.Available, 1)),
				coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)),
				coordSnapshot(2, 2, 100, 0, coordStaged(100, 104, 1, 7, 3)),
			},
			"state=2 leader=5 start=100 complete=0 [100-104:5*1(7,3,1,2)]", "",
		},
		{
			"staged again after an abort that only the log knows",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordEnd(7, 3, false),
				coordUpdate(-1, -1, coordStaged(102, 104, 2, 7, 3)),
				coordSnapshot(1, 2, 100, 0, coordStaged(100, 101, 1, 7, 3), coordStaged(102, 104, 2, 7, 3)),
			},
			"state=2 leader=5 start=100 complete=0 [100-101:0*1 102-104:5*2(7,3,1,2)]",
			"snapshot 2 state=2 leader=5 start=100 complete=0 [100-101:0*1 102-104:5*2(7,3,1,2)]",
		},
		{
			"a snapshot that was acted on in part",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordEnd(7, 3, true),
				coordSnapshot(1, 2, 100, 2, coordBatch(100, 101, wire.Archived, 1), coordStaged(102, 103, 1, 7, 3), coordBatch(104, 104, wire.Available, 3)),
			},
			"state=2 leader=5 start=100 complete=4 [100-101:4*1 102-103:2*1 104-104:0*3]",
			"snapshot 2 state=2 leader=5 start=100 complete=4 [100-101:4*1 102-103:2*1 104-104:0*3]",
		},
		{
			"a snapshot in which another has staged what was aborted",
			[]stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordEnd(7, 3, false),
				coordSnapshot(1, 2, 100, 0, coordStaged(100, 101, 2, 8, 0), coordStaged(102, 104, 1, 7, 3)),
			},
			"state=2 leader=5 start=100 complete=0 [100-101:5*2(8,0,1,2) 102-104:0*1]",
			"snapshot 2 state=2 leader=5 start=100 complete=0 [100-101:5*2(8,0,1,2) 102-104:0*1]",
		},
		{
			"removed while staged, then ended", []stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordRecord(wire.ShareSnapshotType, nil), coordEnd(7, 3, true),
			}, "", "",
		},
		{
			"decided, then set anew", []stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordEnd(7, 3, true), coordSnapshot(1, 3, 0, 0),
			}, "state=3 leader=5 start=0 complete=0 []", "",
		},
		{
			"decided, then removed", []stateRecord{
				coordSnapshot(0, 2, 100, 0), coordUpdate(-1, -1, coordStaged(100, 104, 1, 7, 3)), coordEnd(7, 3, true), coordRecord(wire.ShareSnapshotType, nil),
			}, "", "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newCoordinatorKafka(1)
			k.log[0] = slices.Clone(tt.log)
			s := loadCoordinator(t, k)
			if tt.want == "" {
				if keys := s.keys(); len(keys) > 0 {
					t.Fatalf("keys = %v, want none", keys)
				}
			} else {
				wantState(t, s, coordKey, tt.want)
			}
			var wrote []string
			for _, r := range k.log[0][len(tt.log):] {
				wrote = append(wrote, coordRecordText(t, r))
			}
			if got := strings.Join(wrote, "\n"); got != tt.wrote {
				t.Errorf("loading wrote %q\nwant %q", got, tt.wrote)
			}
			// Loading what was loaded changes nothing.
			n := len(k.log[0])
			again := loadCoordinator(t, k)
			if !reflect.DeepEqual(again.states, s.states) || len(k.log[0]) != n {
				t.Errorf("loaded again: %+v and %d new records\nwant %+v and none", again.states, len(k.log[0])-n, s.states)
			}
		})
	}
}

// A marker speaks for its own partition of __share_group_state alone, and
// there for every share-partition.
func TestLoadAppliesMarkersByPartition(t *testing.T) {
	k := newCoordinatorKafka(2)
	s := loadCoordinator(t, k)
	byPartition := make(map[int32][]shareStateKey)
	for p := range int32(4) {
		for _, g := range []string{"g", "h", "i"} {
			key := shareStateKey{g, coordTopic, p}
			if code := s.initialize(t.Context(), key, 0, 0); code != 0 {
				t.Fatal(code)
			}
			mustWrite(t, s, shareStateWrite{shareStateKey: key, startOffset: -1, deliveryCompleteCount: -1, batches: []wire.StateBatch{coordStaged(0, 4, 1, 7, 0)}})
			n := s.partitionFor(key)
			byPartition[n] = append(byPartition[n], key)
		}
	}
	if len(byPartition[0]) < 2 || len(byPartition[1]) < 2 {
		t.Fatalf("keys %v do not spread over two partitions", byPartition)
	}
	k.marker(1, 7, 0, true)
	before := k.appends
	s = loadCoordinator(t, k)
	if k.appends != before+1 {
		t.Errorf("%d appends, want 1", k.appends-before)
	}
	for _, key := range byPartition[0] {
		wantState(t, s, key, "state=0 leader=0 start=0 complete=0 [0-4:5*1(7,0,1,2)]")
	}
	for _, key := range byPartition[1] {
		wantState(t, s, key, "state=0 leader=0 start=0 complete=5 [0-4:2*1]")
	}
}

func TestLoadShareCoordinatorErrors(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name  string
		kafka func(*coordinatorKafka)
		want  string
	}{
		{"no topic", func(k *coordinatorKafka) { k.leaders = nil }, "load share coordinator: topic __share_group_state does not exist"},
		{"read fails", func(k *coordinatorKafka) { k.readErr = boom }, "load share coordinator: boom"},
		{"corrupt record", func(k *coordinatorKafka) {
			k.log[3] = []stateRecord{{partition: 3, key: coordSnapshot(0, 0, 0, 0).key, value: []byte{0, 0, 1}}}
		}, "load share coordinator: __share_group_state-3: share snapshot: truncated"},
		{"record of an unknown version", func(k *coordinatorKafka) {
			k.log[0] = []stateRecord{{key: coordSnapshot(0, 0, 0, 0).key, value: []byte{0, 1}}}
		}, "load share coordinator: __share_group_state-0: share snapshot: unsupported version: 1"},
		{"decision cannot be written", func(k *coordinatorKafka) {
			k.log[0] = []stateRecord{coordUpdate(0, 0, coordStaged(0, 0, 1, 7, 0)), coordEnd(7, 0, true)}
			k.appendErr = boom
		}, "load share coordinator: write what end markers decided: boom"},
	} {
		k := newCoordinatorKafka(4)
		tt.kafka(k)
		if _, err := loadShareCoordinator(t.Context(), k, time.Now); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

// coordTxn is a transaction of TestLoadAfterCrash.
type coordTxn struct {
	producerID int64
	epoch      int16
	ended      bool
	commit     bool
}

// TestLoadAfterCrash stages, ends and acts on the end of transactions in any
// order the sandbox can, stops at a random moment, loads, and compares with a
// model that knows how each record's transaction ended.
func TestLoadAfterCrash(t *testing.T) {
	const offsets = 12
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 11))
		k := newCoordinatorKafka(1)
		k.configs["share.coordinator.snapshot.update.records.per.snapshot"] = fmt.Sprint(1 + rng.IntN(6))
		s := loadCoordinator(t, k)
		if code := s.initialize(t.Context(), coordKey, 2, 0); code != 0 {
			t.Fatal(code)
		}
		bumps := rng.IntN(2) == 0 // markers carry the epoch after the staging's

		var txns []*coordTxn
		epochs := map[int64]int16{}
		owners := [offsets]*coordTxn{} // who staged the record last
		live := [offsets]wire.StateBatch{}
		for o := range live {
			live[o] = coordBatch(int64(o), int64(o), wire.Available, 0)
		}
		write := func(snapshot bool, at ...int) {
			w := coordWrite()
			w.snapshot = snapshot
			for _, o := range at {
				w.batches = append(w.batches, live[o])
			}
			w.deliveryCompleteCount = 0
			for _, b := range live {
				if b.DeliveryState.Terminal() {
					w.deliveryCompleteCount++
				}
			}
			mustWrite(t, s, w)
		}
		for range rng.IntN(60) {
			o := rng.IntN(offsets)
			switch b := &live[o]; rng.IntN(5) {
			case 0, 1: // stage what is available, in a new or an open transaction
				if b.DeliveryState != wire.Available {
					continue
				}
				pid := 7 + rng.Int64N(3)
				i := slices.IndexFunc(txns, func(x *coordTxn) bool { return x.producerID == pid && !x.ended })
				if i < 0 {
					txns = append(txns, &coordTxn{producerID: pid, epoch: epochs[pid]})
					i = len(txns) - 1
				}
				*b = coordStaged(int64(o), int64(o), b.DeliveryCount+1, pid, txns[i].epoch)
				owners[o] = txns[i]
				write(false, o)
			case 2: // the coordinator ends a transaction
				i := slices.IndexFunc(txns, func(x *coordTxn) bool { return !x.ended })
				if i < 0 {
					continue
				}
				x := txns[i]
				x.ended, x.commit = true, rng.IntN(2) == 0
				marker := x.epoch
				if bumps {
					marker++
				}
				k.marker(0, x.producerID, marker, x.commit)
				epochs[x.producerID]++
			case 3: // the share plane acts on the end of one
				i := rng.IntN(len(txns) + 1)
				if i == len(txns) || !txns[i].ended {
					continue
				}
				var at []int
				for o, x := range owners {
					if b := &live[o]; x == txns[i] && b.DeliveryState == wire.TxPending {
						b.DeliveryState = wire.Available
						if x.commit {
							b.DeliveryState = wire.Acknowledged
						}
						b.Staged = wire.NoStagedOwner()
						at = append(at, o)
					}
				}
				if len(at) > 0 {
					write(true, at...)
				}
			case 4: // a plain acknowledgement
				if b.DeliveryState == wire.Available {
					b.DeliveryState = wire.Archived
					write(false, o)
				}
			}
		}

		want, complete := make([]wire.StateBatch, 0, offsets), 0
		for o, b := range live {
			if x := owners[o]; b.DeliveryState == wire.TxPending && x.ended {
				b.DeliveryState, b.Staged = wire.Available, wire.NoStagedOwner()
				if x.commit {
					b.DeliveryState = wire.Acknowledged
				}
			}
			if b.DeliveryState.Terminal() {
				complete++
			}
			if b.DeliveryState != wire.Available || b.DeliveryCount > 0 {
				want = append(want, b)
			}
		}
		loaded := loadCoordinator(t, k)
		st, code := loaded.read(t.Context(), coordKey, -1)
		if code != 0 {
			t.Fatalf("seed %d: code %d", seed, code)
		}
		if got := coordBatchText(st.batches); got != coordBatchText(wire.MergeStateBatches(nil, want, 0)) || int(st.deliveryCompleteCount) != complete {
			t.Fatalf("seed %d, markers bump %v: loaded %s complete=%d\nwant %s complete=%d\nlog:\n  %s",
				seed, bumps, got, st.deliveryCompleteCount, coordBatchText(wire.MergeStateBatches(nil, want, 0)), complete, strings.Join(k.values(t), "\n  "))
		}
		// Who reads the log without its markers sees the same.
		plain := newCoordinatorKafka(1)
		plain.log[0] = slices.DeleteFunc(slices.Clone(k.log[0]), func(r stateRecord) bool { return r.marker })
		if st2, _ := loadCoordinator(t, plain).read(t.Context(), coordKey, -1); coordStateText(st2) != coordStateText(st) {
			t.Fatalf("seed %d: without markers the log says %s, want %s", seed, coordStateText(st2), coordStateText(st))
		}
	}
}

// BenchmarkLoadShareCoordinator loads a log of updates of a share-partition that
// has some thousand ranges at any time; what counts is the time per record.
func BenchmarkLoadShareCoordinator(b *testing.B) {
	for _, records := range []int64{5_000, 20_000} {
		b.Run(fmt.Sprint("records=", records), func(b *testing.B) {
			k := newCoordinatorKafka(1)
			s := newShareCoordinator(k, time.Now, 1)
			if code := s.initialize(b.Context(), coordKey, 2, 0); code != 0 {
				b.Fatal(code)
			}
			for i := range records {
				w := coordWrite(coordBatch(2*i, 2*i, wire.Acknowledged, 1))
				w.startOffset = max(2*i-4000, 0)
				if codes := s.write(b.Context(), []shareStateWrite{w}); codes[0] != 0 {
					b.Fatal(codes)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := loadShareCoordinator(b.Context(), k, time.Now); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(int64(b.N)*records), "ns/record")
		})
	}
}
