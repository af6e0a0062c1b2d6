package wire

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func staged(producerID int64, epoch int16, ackType, state int8) StagedOwner {
	return StagedOwner{ProducerID: producerID, ProducerEpoch: epoch, AcknowledgeType: ackType, DeliveryState: state}
}

func batch(first, last int64, state RecordState, count int16) StateBatch {
	return StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: state, DeliveryCount: count, Staged: NoStagedOwner()}
}

func pending(first, last int64, count int16, o StagedOwner) StateBatch {
	return StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: TxPending, DeliveryCount: count, Staged: o}
}

var vectorSnapshot = ShareSnapshot{
	SnapshotEpoch: 4, StateEpoch: 2, LeaderEpoch: 9, StartOffset: 100,
	CreateTimestamp: 1764369566720, WriteTimestamp: 1764369566721,
	StateBatches: []StateBatch{
		batch(100, 109, Acknowledged, 1),
		pending(110, 110, 2, staged(1001, 7, 3, 4)),
	},
	DeliveryCompleteCount: 10,
}

var vectorUpdate = ShareUpdate{
	SnapshotEpoch: 4, LeaderEpoch: 9, StartOffset: -1,
	StateBatches:          []StateBatch{batch(111, 111, Available, 1)},
	DeliveryCompleteCount: -1,
}

func TestShareStateRecordVectors(t *testing.T) {
	snapshotKey := ShareStateKey{Type: ShareSnapshotType, GroupID: "g1", TopicID: testTopicID, Partition: 3}
	updateKey := ShareStateKey{Type: ShareUpdateType, GroupID: "g1", TopicID: testTopicID, Partition: 3}
	for _, tt := range []struct {
		key, value string // names of vectors; "" is no value
		want       ShareStateRecord
		bytes      []byte
	}{
		{"key_snapshot", "value_snapshot", ShareStateRecord{Key: snapshotKey, Snapshot: &vectorSnapshot}, vectorSnapshot.AppendTo(nil)},
		{"key_update", "value_update", ShareStateRecord{Key: updateKey, Update: &vectorUpdate}, vectorUpdate.AppendTo(nil)},
		{"key_snapshot", "", ShareStateRecord{Key: snapshotKey}, nil},
		{"key_update", "", ShareStateRecord{Key: updateKey}, nil},
	} {
		key := vector(t, tt.key)
		var value []byte
		if tt.value != "" {
			value = vector(t, tt.value)
		}
		got, err := ParseShareStateRecord(key, value)
		if err != nil {
			t.Errorf("%s, %q: %v", tt.key, tt.value, err)
			continue
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s, %q = %+v, want %+v", tt.key, tt.value, got, tt.want)
		}
		if got.Tombstone() != (tt.value == "") {
			t.Errorf("%s, %q: Tombstone() = %v", tt.key, tt.value, got.Tombstone())
		}
		if b := tt.want.Key.AppendTo(nil); !bytes.Equal(b, key) {
			t.Errorf("%s: key %x, want %x", tt.key, b, key)
		}
		if !bytes.Equal(tt.bytes, value) {
			t.Errorf("%s: value %x, want %x", tt.value, tt.bytes, value)
		}
	}
}

// The tags of the staged owner are a guess: a tag that cannot be ours must not
// hide the rest of the record.
func TestForeignTagsAreSkipped(t *testing.T) {
	got, err := ParseShareUpdate(vector(t, "value_update_foreign_tags"))
	want := ShareUpdate{
		StartOffset:           5,
		StateBatches:          []StateBatch{{FirstOffset: 5, LastOffset: 5, DeliveryState: TxPending, DeliveryCount: 1, Staged: NoStagedOwner()}},
		DeliveryCompleteCount: 0,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestInvalidShareStateRecords(t *testing.T) {
	key := vector(t, "key_snapshot")
	for n := range key {
		if _, err := ParseShareStateKey(key[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("first %d bytes of a key: %v, want %v", n, err, ErrTruncated)
		}
	}
	if _, err := ParseShareStateKey(append(bytes.Clone(key), 0)); !errors.Is(err, ErrTrailingBytes) {
		t.Errorf("key and a byte: %v, want %v", err, ErrTrailingBytes)
	}
	snapshot, update := vector(t, "value_snapshot"), vector(t, "value_update")
	for n := range snapshot {
		if _, err := ParseShareSnapshot(snapshot[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("first %d bytes of a snapshot: %v, want %v", n, err, ErrTruncated)
		}
	}
	for n := range update {
		if _, err := ParseShareUpdate(update[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("first %d bytes of an update: %v, want %v", n, err, ErrTruncated)
		}
	}

	for _, tt := range []struct {
		name       string
		key, value []byte
		want       error
	}{
		{"type 2", []byte{0, 2, 9, 9}, nil, ErrUnknownRecordType},
		{"type -1", []byte{0xff, 0xff}, nil, ErrUnknownRecordType},
		{"group of -1 bytes", append([]byte{0, 0, 0xff, 0xff}, make([]byte, 20)...), nil, ErrTruncated},
		{"empty value", key, []byte{}, ErrTruncated},
		{"value of version 1", key, append([]byte{0, 1}, snapshot[2:]...), ErrUnsupportedVersion},
		{"snapshot and a byte", key, append(bytes.Clone(snapshot), 7), ErrTrailingBytes},
		{"update as a snapshot", key, update, ErrNull},
		{"snapshot as an update", vector(t, "key_update"), snapshot, ErrNull},
		{"null batches", vector(t, "key_update"), append(bytes.Clone(update[:18]), 0, 0), ErrNull},
		{"count of another size", vector(t, "key_update"), append(bytes.Clone(update[:18]), 1, 1, 0, 5, 0, 0, 0, 0, 1), ErrTrailingBytes},
	} {
		if _, err := ParseShareStateRecord(tt.key, tt.value); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}

	// A reader that skips records of a type it does not know needs the type.
	if r, err := ParseShareStateRecord([]byte{0, 7, 1}, nil); r.Key.Type != 7 {
		t.Errorf("record of type 7 = %+v, %v; want its type", r, err)
	}
}

func TestShareStateKeyRefusesWhatItCannotSay(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a group ID of 32768 bytes was written")
		}
	}()
	ShareStateKey{GroupID: string(make([]byte, 32768))}.AppendTo(nil)
}

func TestStagedOwner(t *testing.T) {
	if !NoStagedOwner().IsNone() || (StagedOwner{}).IsNone() || staged(1, -1, -1, -1).IsNone() {
		t.Error("IsNone holds for anything but NoStagedOwner")
	}
	for _, tt := range []struct {
		o    StagedOwner
		want RecordState
	}{
		{staged(1, 1, int8(Accept), int8(Acknowledged)), Acknowledged},
		{staged(1, 1, int8(Reject), int8(Archiving)), Archiving},
		{staged(1, 1, int8(Accept), -1), Acknowledged},
		{staged(1, 1, int8(Reject), -1), Archived},
		{staged(1, 1, int8(Gap), -1), Archived},
	} {
		if got := tt.o.AfterCommit(); got != tt.want {
			t.Errorf("%+v.AfterCommit() = %v, want %v", tt.o, got, tt.want)
		}
	}
}

// kmsg's share state messages know no staged owner but keep its tags: through
// them the owner reaches the other side, in the bytes of our own records.
func TestStagedOwnerTravelsInKmsgTags(t *testing.T) {
	for _, o := range []StagedOwner{
		NoStagedOwner(),
		staged(1001, 7, 3, 4),
		staged(0, 0, 0, 0),
		staged(math.MaxInt64, math.MaxInt16, -1, 2),
		staged(-1, 4, 1, -1),
	} {
		b := kmsg.NewReadShareGroupStateResponseTopicPartitionStateBatch()
		b.FirstOffset, b.LastOffset, b.DeliveryState, b.DeliveryCount = 110, 111, 5, 2
		b.UnknownTags = StagedOwnerTags(o)
		p := kmsg.NewReadShareGroupStateResponseTopicPartition()
		p.StateBatches = append(p.StateBatches, b)
		topic := kmsg.NewReadShareGroupStateResponseTopic()
		topic.Partitions = append(topic.Partitions, p)
		resp := kmsg.NewReadShareGroupStateResponse()
		resp.Topics = append(resp.Topics, topic)
		wire := resp.AppendTo(nil)

		back := kmsg.NewReadShareGroupStateResponse()
		if err := back.ReadFrom(wire); err != nil {
			t.Fatal(err)
		}
		if got := StagedOwnerFromTags(back.Topics[0].Partitions[0].StateBatches[0].UnknownTags); got != o {
			t.Errorf("owner = %+v, want %+v", got, o)
		}
		ours := appendStateBatches(nil, []StateBatch{{FirstOffset: 110, LastOffset: 111, DeliveryState: TxPending, DeliveryCount: 2, Staged: o}})
		if !bytes.Contains(wire, ours) {
			t.Errorf("%+v: kmsg wrote %x, our record has %x", o, wire, ours)
		}
	}
}

func randomStateBatches(rng *rand.Rand) []StateBatch {
	return randomSlice(rng, func(b *StateBatch) {
		*b = batch(int64(rng.Uint64()), int64(rng.Uint64()), RecordState(rng.Uint32()), int16(rng.Uint32()))
		if rng.IntN(2) == 0 {
			b.Staged = staged(int64(rng.Uint64()), int16(rng.Uint32()), int8(rng.Uint32()), int8(rng.Uint32()))
		}
	})
}

func TestShareStateRecordRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		s := ShareSnapshot{
			SnapshotEpoch: int32(rng.Uint32()), StateEpoch: int32(rng.Uint32()), LeaderEpoch: int32(rng.Uint32()),
			StartOffset: int64(rng.Uint64()), CreateTimestamp: int64(rng.Uint64()), WriteTimestamp: int64(rng.Uint64()),
			StateBatches: randomStateBatches(rng), DeliveryCompleteCount: rng.Int32N(3) - 1,
		}
		if got, err := ParseShareSnapshot(s.AppendTo(nil)); err != nil || !reflect.DeepEqual(got, s) {
			t.Fatalf("snapshot %+v became %+v, %v", s, got, err)
		}
		u := ShareUpdate{
			SnapshotEpoch: s.SnapshotEpoch, LeaderEpoch: s.LeaderEpoch, StartOffset: s.StartOffset,
			StateBatches: s.StateBatches, DeliveryCompleteCount: s.DeliveryCompleteCount,
		}
		if got, err := ParseShareUpdate(u.AppendTo(nil)); err != nil || !reflect.DeepEqual(got, u) {
			t.Fatalf("update %+v became %+v, %v", u, got, err)
		}
		k := ShareStateKey{Type: int16(rng.IntN(2)), GroupID: randomText(rng), TopicID: testTopicID, Partition: int32(rng.Uint32())}
		if got, err := ParseShareStateKey(k.AppendTo(nil)); err != nil || got != k {
			t.Fatalf("key %+v became %+v, %v", k, got, err)
		}
	}
}

func TestMergeStateBatches(t *testing.T) {
	type bs = []StateBatch
	const av, ack, arch = Available, Acknowledged, Archived
	owner := staged(1, 2, 1, 2)
	for _, tt := range []struct {
		name         string
		base, update bs
		start        int64
		want         bs
	}{
		{"nothing", nil, nil, -1, nil},
		{"base alone", bs{batch(1, 2, av, 1)}, nil, -1, bs{batch(1, 2, av, 1)}},
		{"update alone", nil, bs{batch(1, 2, av, 1)}, -1, bs{batch(1, 2, av, 1)}},
		{"apart", bs{batch(1, 2, av, 1)}, bs{batch(5, 6, av, 1)}, -1, bs{batch(1, 2, av, 1), batch(5, 6, av, 1)}},
		{"apart, update first", bs{batch(5, 6, av, 1)}, bs{batch(1, 2, av, 1)}, -1, bs{batch(1, 2, av, 1), batch(5, 6, av, 1)}},
		{"adjacent and alike", bs{batch(1, 4, av, 1)}, bs{batch(5, 6, av, 1)}, -1, bs{batch(1, 6, av, 1)}},
		{"adjacent, another count", bs{batch(1, 4, av, 1)}, bs{batch(5, 6, av, 2)}, -1, bs{batch(1, 4, av, 1), batch(5, 6, av, 2)}},
		{"adjacent, another owner", bs{pending(1, 4, 1, owner)}, bs{pending(5, 6, 1, staged(1, 3, 1, 2))}, -1, bs{pending(1, 4, 1, owner), pending(5, 6, 1, staged(1, 3, 1, 2))}},
		{"same range", bs{batch(1, 4, av, 1)}, bs{batch(1, 4, ack, 2)}, -1, bs{batch(1, 4, ack, 2)}},
		{"split", bs{batch(1, 9, av, 1)}, bs{batch(4, 5, ack, 1)}, -1, bs{batch(1, 3, av, 1), batch(4, 5, ack, 1), batch(6, 9, av, 1)}},
		{"split twice", bs{batch(1, 9, av, 1)}, bs{batch(2, 3, ack, 1), batch(6, 7, arch, 1)}, -1, bs{batch(1, 1, av, 1), batch(2, 3, ack, 1), batch(4, 5, av, 1), batch(6, 7, arch, 1), batch(8, 9, av, 1)}},
		{"overlaps the end", bs{batch(1, 5, av, 1)}, bs{batch(4, 9, ack, 1)}, -1, bs{batch(1, 3, av, 1), batch(4, 9, ack, 1)}},
		{"overlaps the start", bs{batch(4, 9, av, 1)}, bs{batch(1, 5, ack, 1)}, -1, bs{batch(1, 5, ack, 1), batch(6, 9, av, 1)}},
		{"swallows several", bs{batch(1, 2, av, 1), batch(4, 5, ack, 1), batch(7, 9, av, 2)}, bs{batch(2, 8, arch, 1)}, -1, bs{batch(1, 1, av, 1), batch(2, 8, arch, 1), batch(9, 9, av, 2)}},
		{"newer wins though its state is lower", bs{pending(1, 4, 2, owner)}, bs{batch(2, 3, av, 2)}, -1, bs{pending(1, 1, 2, owner), batch(2, 3, av, 2), pending(4, 4, 2, owner)}},
		{"joins what it splits from", bs{batch(1, 9, av, 1)}, bs{batch(4, 5, av, 1)}, -1, bs{batch(1, 9, av, 1)}},
		{"fills a gap", bs{batch(1, 2, ack, 1), batch(5, 6, ack, 1)}, bs{batch(3, 4, ack, 1)}, -1, bs{batch(1, 6, ack, 1)}},
		{"below the start offset", bs{batch(1, 2, ack, 1), batch(3, 6, av, 1)}, bs{batch(7, 8, ack, 1)}, 5, bs{batch(5, 6, av, 1), batch(7, 8, ack, 1)}},
		{"all below the start offset", bs{batch(1, 2, ack, 1)}, bs{batch(3, 4, ack, 1)}, 5, nil},
		{"start offset 0 cuts nothing at 0", bs{batch(0, 2, ack, 1)}, nil, 0, bs{batch(0, 2, ack, 1)}},
		{"last offset there is", bs{batch(1, math.MaxInt64, av, 1)}, bs{batch(math.MaxInt64, math.MaxInt64, ack, 1)}, -1, bs{batch(1, math.MaxInt64-1, av, 1), batch(math.MaxInt64, math.MaxInt64, ack, 1)}},
		{"up to the last offset there is", bs{batch(1, 5, av, 1)}, bs{batch(3, math.MaxInt64, ack, 1)}, -1, bs{batch(1, 2, av, 1), batch(3, math.MaxInt64, ack, 1)}},
		{"update not sorted", nil, bs{batch(5, 9, av, 1), batch(1, 2, ack, 1)}, -1, bs{batch(1, 2, ack, 1), batch(5, 9, av, 1)}},
		{"update overlaps itself: the later wins", nil, bs{batch(1, 9, av, 1), batch(4, 5, ack, 1), batch(5, 6, arch, 1)}, -1, bs{batch(1, 3, av, 1), batch(4, 4, ack, 1), batch(5, 6, arch, 1), batch(7, 9, av, 1)}},
		{"ends before it starts", bs{batch(3, 2, av, 1)}, bs{batch(9, 8, av, 1), batch(1, 1, ack, 1)}, -1, bs{batch(1, 1, ack, 1)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base, update := slices.Clone(tt.base), slices.Clone(tt.update)
			got := MergeStateBatches(base, update, tt.start)
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v\nwant %v", got, tt.want)
			}
			if !slices.Equal(base, tt.base) || !slices.Equal(update, tt.update) {
				t.Error("an argument was changed")
			}
		})
	}
}

// TestMergeStateBatchesProperty compares the merge of ranges with one that goes
// offset by offset.
func TestMergeStateBatchesProperty(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	const offsets = 24
	random := func() []StateBatch {
		var out []StateBatch
		for range rng.IntN(8) {
			first := rng.Int64N(offsets)
			b := batch(first, min(first+rng.Int64N(6)-1, offsets-1), RecordState(2*rng.IntN(2)), int16(rng.IntN(2)))
			if rng.IntN(3) == 0 {
				b = pending(b.FirstOffset, b.LastOffset, b.DeliveryCount, staged(rng.Int64N(2), 0, 1, 2))
			}
			out = append(out, b)
		}
		if rng.IntN(2) == 0 { // as persisted state is
			return MergeStateBatches(nil, out, -1)
		}
		return out
	}
	for range 20000 {
		base, update, start := random(), random(), rng.Int64N(offsets+2)-1
		got := MergeStateBatches(base, update, start)

		var model [offsets]*StateBatch
		for _, list := range [][]StateBatch{base, update} {
			for _, b := range list {
				for o := b.FirstOffset; o <= b.LastOffset; o++ {
					model[o] = &b
				}
			}
		}
		var flat [offsets]*StateBatch
		for i, b := range got {
			if b.FirstOffset > b.LastOffset || b.FirstOffset < start {
				t.Fatalf("Merge(%v, %v, %d) = %v: batch %d is out of range", base, update, start, got, i)
			}
			if i > 0 {
				p := got[i-1]
				if p.LastOffset >= b.FirstOffset || p.LastOffset+1 == b.FirstOffset && p.alike(b) {
					t.Fatalf("Merge(%v, %v, %d) = %v: batches %d and %d overlap or should be one", base, update, start, got, i-1, i)
				}
			}
			for o := b.FirstOffset; o <= b.LastOffset; o++ {
				flat[o] = &b
			}
		}
		for o := range flat {
			want := model[o]
			if int64(o) < start {
				want = nil
			}
			if (flat[o] == nil) != (want == nil) || want != nil && !want.alike(*flat[o]) {
				t.Fatalf("Merge(%v, %v, %d) = %v: offset %d is %v, want %v", base, update, start, got, o, flat[o], want)
			}
		}
	}
}

func BenchmarkMergeStateBatches(b *testing.B) {
	var base, update []StateBatch
	for i := range int64(2000) {
		base = append(base, batch(10*i, 10*i+9, RecordState(2*(i%2)), 1))
		if i%20 == 0 {
			update = append(update, batch(10*i+3, 10*i+6, Archived, 2))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(MergeStateBatches(base, update, 100)) == 0 {
			b.Fatal("empty")
		}
	}
}

// FuzzShareStateRecord: no key or value panics, and what can be read is written
// so that it reads the same.
func FuzzShareStateRecord(f *testing.F) {
	for _, key := range []string{"key_snapshot", "key_update"} {
		for _, value := range []string{"value_snapshot", "value_update", "value_update_foreign_tags"} {
			f.Add(vector(f, key), vector(f, value))
		}
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r, err := ParseShareStateRecord(key, value)
		if err != nil {
			return
		}
		if k := r.Key.AppendTo(nil); !bytes.Equal(k, key) {
			t.Fatalf("key %x became %x", key, k)
		}
		switch {
		case r.Snapshot != nil:
			again, err := ParseShareSnapshot(r.Snapshot.AppendTo(nil))
			if err != nil || !reflect.DeepEqual(again, *r.Snapshot) {
				t.Fatalf("snapshot %x became %+v, %v; want %+v", value, again, err, *r.Snapshot)
			}
		case r.Update != nil:
			again, err := ParseShareUpdate(r.Update.AppendTo(nil))
			if err != nil || !reflect.DeepEqual(again, *r.Update) {
				t.Fatalf("update %x became %+v, %v; want %+v", value, again, err, *r.Update)
			}
		case value != nil:
			t.Fatalf("value %x is a tombstone", value)
		}
	})
}
