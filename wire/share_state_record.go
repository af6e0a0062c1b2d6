package wire

import (
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Records of the topic __share_group_state (KIP-932 as of Kafka 4.2;
// DeliveryCompleteCount is KIP-1226, the staged owner the drafts of KIP-1289).
//
// A record's key is the type of the record and the share-partition, its value
// a version, which is 0, and either the whole state (ShareSnapshot) or what
// changed since (ShareUpdate). A record without a value says that the
// share-partition has no state any more.
//
// Where we differ from the broker: how a broker that implements KIP-1289 writes
// the staged owner is not published. We write it as the tags 0 to 3 of a state
// batch, and ignore tags of those numbers that cannot be ours. A reader that
// knows none of them still sees the delivery state TX_PENDING.

// The types of record in __share_group_state, as the first two bytes of a key.
const (
	ShareSnapshotType int16 = 0
	ShareUpdateType   int16 = 1
)

// shareStateVersion is the only version of either value.
const shareStateVersion int16 = 0

// The tags of the staged owner in a state batch: our own choice, see above.
const (
	tagStagedProducerID uint32 = iota
	tagStagedProducerEpoch
	tagStagedAcknowledgeType
	tagStagedDeliveryState
)

// tagDeliveryCompleteCount is a tag of either value.
const tagDeliveryCompleteCount uint32 = 0

// minStateBatchSize is the least number of bytes of a state batch on the wire.
const minStateBatchSize = 8 + 8 + 1 + 2 + 1

// StateBatch is the persisted state of a range of records of a
// share-partition (KIP-932, ShareSnapshotValue and ShareUpdateValue version 0).
type StateBatch struct {
	FirstOffset   int64       // first offset of the range
	LastOffset    int64       // last offset of the range, inclusive
	DeliveryState RecordState // never Acquired
	DeliveryCount int16       // how often the records were delivered
	Staged        StagedOwner // [NoStagedOwner] unless DeliveryState is TxPending
}

// alike reports whether records of a and b differ in nothing but their offsets.
func (b StateBatch) alike(a StateBatch) bool {
	return b.DeliveryState == a.DeliveryState && b.DeliveryCount == a.DeliveryCount && b.Staged == a.Staged
}

// StagedOwner says which transaction a TX_PENDING record belongs to and what
// its commit does to it (KIP-1289, draft). The zero value is not "none"; use
// [NoStagedOwner].
type StagedOwner struct {
	ProducerID      int64 // -1: none
	ProducerEpoch   int16 // -1: none
	AcknowledgeType int8  // an [AcknowledgeType]; -1: none
	DeliveryState   int8  // the [RecordState] after a commit; -1: none
}

// NoStagedOwner returns the owner of a record that no transaction holds: -1 in
// every field.
func NoStagedOwner() StagedOwner {
	return StagedOwner{ProducerID: -1, ProducerEpoch: -1, AcknowledgeType: -1, DeliveryState: -1}
}

// IsNone reports whether no transaction holds the record.
func (o StagedOwner) IsNone() bool { return o == NoStagedOwner() }

// AfterCommit returns the state of the record once its transaction has
// committed: DeliveryState, or what AcknowledgeType leads to where the former
// is not set, as in the first draft that persisted staged records.
func (o StagedOwner) AfterCommit() RecordState {
	switch {
	case o.DeliveryState >= 0:
		return RecordState(o.DeliveryState)
	case AcknowledgeType(o.AcknowledgeType) == Accept:
		return Acknowledged
	}
	return Archived
}

// tagCount is the number of tags that hold the owner.
func (o StagedOwner) tagCount() int {
	n := 0
	for _, set := range [...]bool{o.ProducerID != -1, o.ProducerEpoch != -1, o.AcknowledgeType != -1, o.DeliveryState != -1} {
		if set {
			n++
		}
	}
	return n
}

// appendEach appends the tags that hold the owner, without their number.
func (o StagedOwner) appendEach(dst []byte) []byte {
	if o.ProducerID != -1 {
		dst = append(dst, byte(tagStagedProducerID), 8)
		dst = kbin.AppendInt64(dst, o.ProducerID)
	}
	if o.ProducerEpoch != -1 {
		dst = append(dst, byte(tagStagedProducerEpoch), 2)
		dst = kbin.AppendInt16(dst, o.ProducerEpoch)
	}
	if o.AcknowledgeType != -1 {
		dst = append(dst, byte(tagStagedAcknowledgeType), 1, byte(o.AcknowledgeType))
	}
	if o.DeliveryState != -1 {
		dst = append(dst, byte(tagStagedDeliveryState), 1, byte(o.DeliveryState))
	}
	return dst
}

// set takes over the tag if it is one of the owner's.
func (o *StagedOwner) set(tag uint32, value []byte) {
	r := kbin.Reader{Src: value}
	switch {
	case tag == tagStagedProducerID && len(value) == 8:
		o.ProducerID = r.Int64()
	case tag == tagStagedProducerEpoch && len(value) == 2:
		o.ProducerEpoch = r.Int16()
	case tag == tagStagedAcknowledgeType && len(value) == 1:
		o.AcknowledgeType = r.Int8()
	case tag == tagStagedDeliveryState && len(value) == 1:
		o.DeliveryState = r.Int8()
	}
}

// StagedOwnerTags returns o as tags for a state batch of kmsg's
// WriteShareGroupStateRequest or ReadShareGroupStateResponse, which know no
// staged owner but keep tags; no tags if o is none.
func StagedOwnerTags(o StagedOwner) kmsg.Tags {
	var tags kmsg.Tags
	if o.ProducerID != -1 {
		tags.Set(tagStagedProducerID, kbin.AppendInt64(nil, o.ProducerID))
	}
	if o.ProducerEpoch != -1 {
		tags.Set(tagStagedProducerEpoch, kbin.AppendInt16(nil, o.ProducerEpoch))
	}
	if o.AcknowledgeType != -1 {
		tags.Set(tagStagedAcknowledgeType, []byte{byte(o.AcknowledgeType)})
	}
	if o.DeliveryState != -1 {
		tags.Set(tagStagedDeliveryState, []byte{byte(o.DeliveryState)})
	}
	return tags
}

// StagedOwnerFromTags is the inverse of [StagedOwnerTags]. Tags that are not
// the owner's, by number or by size, are ignored.
func StagedOwnerFromTags(tags kmsg.Tags) StagedOwner {
	o := NoStagedOwner()
	tags.Each(o.set)
	return o
}

// ShareStateKey is the key of a record of __share_group_state.
type ShareStateKey struct {
	Type      int16  // [ShareSnapshotType] or [ShareUpdateType]
	GroupID   string // at most 32767 bytes
	TopicID   [16]byte
	Partition int32
}

// AppendTo appends the bytes of the key to dst. It panics if the group ID is
// longer than the format can say.
func (k ShareStateKey) AppendTo(dst []byte) []byte {
	if len(k.GroupID) > math.MaxInt16 {
		panic(fmt.Sprintf("wire: group ID of %d bytes in a share state key", len(k.GroupID)))
	}
	dst = kbin.AppendInt16(dst, k.Type)
	dst = kbin.AppendString(dst, k.GroupID)
	dst = append(dst, k.TopicID[:]...)
	return kbin.AppendInt32(dst, k.Partition)
}

// ParseShareStateKey is the inverse of [ShareStateKey.AppendTo]. For a type of
// record that it does not know it returns that type in the key and
// [ErrUnknownRecordType]; Kafka skips such records.
func ParseShareStateKey(src []byte) (ShareStateKey, error) {
	d := newDecoder(src)
	k := ShareStateKey{Type: d.r.Int16()}
	if d.ok() && k.Type != ShareSnapshotType && k.Type != ShareUpdateType {
		return k, fmt.Errorf("share state key: %w: %d", ErrUnknownRecordType, k.Type)
	}
	k.GroupID = d.r.String()
	k.TopicID = d.r.Uuid()
	k.Partition = d.r.Int32()
	if err := d.finish(); err != nil {
		return ShareStateKey{}, fmt.Errorf("share state key: %w", err)
	}
	return k, nil
}

// ShareSnapshot is the whole state of a share-partition.
type ShareSnapshot struct {
	SnapshotEpoch         int32 // one more than that of the snapshot before
	StateEpoch            int32 // raised when the state is initialized anew
	LeaderEpoch           int32 // of the newest leader that read the state
	StartOffset           int64 // -1: not initialized to an offset
	CreateTimestamp       int64 // milliseconds since 1970
	WriteTimestamp        int64 // milliseconds since 1970; differs from CreateTimestamp when only refreshed
	StateBatches          []StateBatch
	DeliveryCompleteCount int32 // terminal records at or above StartOffset; -1: unknown
}

// AppendTo appends the value of a ShareSnapshot record to dst.
func (s ShareSnapshot) AppendTo(dst []byte) []byte {
	dst = kbin.AppendInt16(dst, shareStateVersion)
	dst = kbin.AppendInt32(dst, s.SnapshotEpoch)
	dst = kbin.AppendInt32(dst, s.StateEpoch)
	dst = kbin.AppendInt32(dst, s.LeaderEpoch)
	dst = kbin.AppendInt64(dst, s.StartOffset)
	dst = kbin.AppendInt64(dst, s.CreateTimestamp)
	dst = kbin.AppendInt64(dst, s.WriteTimestamp)
	dst = appendStateBatches(dst, s.StateBatches)
	return appendDeliveryCompleteCount(dst, s.DeliveryCompleteCount)
}

// ParseShareSnapshot is the inverse of [ShareSnapshot.AppendTo]. It may return
// [ErrTruncated], [ErrNull], [ErrTrailingBytes] or [ErrUnsupportedVersion].
func ParseShareSnapshot(value []byte) (ShareSnapshot, error) {
	d := newDecoder(value)
	d.shareStateVersion()
	s := ShareSnapshot{
		SnapshotEpoch:   d.r.Int32(),
		StateEpoch:      d.r.Int32(),
		LeaderEpoch:     d.r.Int32(),
		StartOffset:     d.r.Int64(),
		CreateTimestamp: d.r.Int64(),
		WriteTimestamp:  d.r.Int64(),
	}
	s.StateBatches = d.stateBatches()
	s.DeliveryCompleteCount = d.deliveryCompleteCount()
	if err := d.finish(); err != nil {
		return ShareSnapshot{}, fmt.Errorf("share snapshot: %w", err)
	}
	return s, nil
}

// ShareUpdate is what changed in a share-partition since its last ShareSnapshot
// or ShareUpdate.
type ShareUpdate struct {
	SnapshotEpoch         int32        // of the snapshot it adds to
	LeaderEpoch           int32        // -1: unchanged
	StartOffset           int64        // -1: unchanged
	StateBatches          []StateBatch // the ranges that changed
	DeliveryCompleteCount int32        // -1: unknown
}

// AppendTo appends the value of a ShareUpdate record to dst.
func (u ShareUpdate) AppendTo(dst []byte) []byte {
	dst = kbin.AppendInt16(dst, shareStateVersion)
	dst = kbin.AppendInt32(dst, u.SnapshotEpoch)
	dst = kbin.AppendInt32(dst, u.LeaderEpoch)
	dst = kbin.AppendInt64(dst, u.StartOffset)
	dst = appendStateBatches(dst, u.StateBatches)
	return appendDeliveryCompleteCount(dst, u.DeliveryCompleteCount)
}

// ParseShareUpdate is the inverse of [ShareUpdate.AppendTo]. It may return
// [ErrTruncated], [ErrNull], [ErrTrailingBytes] or [ErrUnsupportedVersion].
func ParseShareUpdate(value []byte) (ShareUpdate, error) {
	d := newDecoder(value)
	d.shareStateVersion()
	u := ShareUpdate{
		SnapshotEpoch: d.r.Int32(),
		LeaderEpoch:   d.r.Int32(),
		StartOffset:   d.r.Int64(),
	}
	u.StateBatches = d.stateBatches()
	u.DeliveryCompleteCount = d.deliveryCompleteCount()
	if err := d.finish(); err != nil {
		return ShareUpdate{}, fmt.Errorf("share update: %w", err)
	}
	return u, nil
}

// ShareStateRecord is one record of __share_group_state. Of Snapshot and Update
// one is set; neither in a tombstone, which removes the state.
type ShareStateRecord struct {
	Key      ShareStateKey
	Snapshot *ShareSnapshot
	Update   *ShareUpdate
}

// Tombstone reports whether the record removes the state of its key.
func (r ShareStateRecord) Tombstone() bool { return r.Snapshot == nil && r.Update == nil }

// ParseShareStateRecord reads a record by its key and value; a nil value is a
// tombstone. Errors are those of [ParseShareStateKey], [ParseShareSnapshot] and
// [ParseShareUpdate].
func ParseShareStateRecord(key, value []byte) (ShareStateRecord, error) {
	k, err := ParseShareStateKey(key)
	if err != nil {
		return ShareStateRecord{Key: k}, err
	}
	r := ShareStateRecord{Key: k}
	switch {
	case value == nil:
	case k.Type == ShareSnapshotType:
		s, err := ParseShareSnapshot(value)
		if err != nil {
			return r, err
		}
		r.Snapshot = &s
	default:
		u, err := ParseShareUpdate(value)
		if err != nil {
			return r, err
		}
		r.Update = &u
	}
	return r, nil
}

func (d *decoder) shareStateVersion() {
	if v := d.r.Int16(); d.ok() && v != shareStateVersion {
		d.fail(fmt.Errorf("%w: %d", ErrUnsupportedVersion, v))
	}
}

func appendStateBatches(dst []byte, batches []StateBatch) []byte {
	dst = kbin.AppendCompactArrayLen(dst, len(batches))
	for i := range batches {
		b := &batches[i]
		dst = kbin.AppendInt64(dst, b.FirstOffset)
		dst = kbin.AppendInt64(dst, b.LastOffset)
		dst = append(dst, byte(b.DeliveryState))
		dst = kbin.AppendInt16(dst, b.DeliveryCount)
		dst = append(dst, byte(b.Staged.tagCount()))
		dst = b.Staged.appendEach(dst)
	}
	return dst
}

func (d *decoder) stateBatches() []StateBatch {
	return readArray(d, minStateBatchSize, func(d *decoder, b *StateBatch) {
		b.FirstOffset = d.r.Int64()
		b.LastOffset = d.r.Int64()
		b.DeliveryState = RecordState(d.r.Int8())
		b.DeliveryCount = d.r.Int16()
		b.Staged = NoStagedOwner()
		d.eachTag(b.Staged.set)
	})
}

func appendDeliveryCompleteCount(dst []byte, n int32) []byte {
	if n == -1 {
		return append(dst, 0)
	}
	dst = append(dst, 1, byte(tagDeliveryCompleteCount), 4)
	return kbin.AppendInt32(dst, n)
}

func (d *decoder) deliveryCompleteCount() int32 {
	n := int32(-1)
	d.eachTag(func(tag uint32, value []byte) {
		if tag == tagDeliveryCompleteCount {
			n = readTag(d, value, func(d *decoder) int32 { return d.r.Int32() })
		}
	})
	return n
}

// MergeStateBatches applies update to base: where both say something of an
// offset, update wins; batches that are alike and adjacent become one; offsets
// below startOffset are cut away (-1 cuts nothing). The result is sorted and
// free of overlaps, and shares no memory with the arguments, which are not
// changed. It is nil when nothing is left.
//
// The time is linear in the number of batches when each argument is sorted and
// free of overlaps, as persisted state is. Other arguments are allowed: a batch
// wins over those that stand before it in the same list, and one that ends
// before it starts is dropped.
//
// Kafka's own merge lets the higher delivery count and state win over the lower
// rather than the newer over the older; for state that only ever moves forward
// the results are the same.
func MergeStateBatches(base, update []StateBatch, startOffset int64) []StateBatch {
	base, update = disjoint(base), disjoint(update)
	if startOffset < 0 {
		startOffset = math.MinInt64
	}
	m := merger{out: make([]StateBatch, 0, len(base)+2*len(update)), start: startOffset}

	i, from := 0, int64(math.MinInt64) // base[i] is used up below from
	for _, u := range update {
		for ; i < len(base) && base[i].LastOffset < u.FirstOffset; i++ {
			m.add(base[i], from, base[i].LastOffset)
		}
		if i < len(base) && base[i].FirstOffset < u.FirstOffset {
			m.add(base[i], from, u.FirstOffset-1)
		}
		m.add(u, u.FirstOffset, u.LastOffset)
		for i < len(base) && base[i].LastOffset <= u.LastOffset {
			i++
		}
		if i < len(base) {
			from = u.LastOffset + 1 // no overflow: base[i] ends after u
		}
	}
	for ; i < len(base); i++ {
		m.add(base[i], from, base[i].LastOffset)
	}
	if len(m.out) == 0 {
		return nil
	}
	return m.out
}

// merger collects the batches of a merge in order.
type merger struct {
	out   []StateBatch
	start int64 // nothing below is kept
}

// add appends the part of b from first to last.
func (m *merger) add(b StateBatch, first, last int64) {
	b.FirstOffset = max(b.FirstOffset, first, m.start)
	b.LastOffset = last
	if b.FirstOffset > b.LastOffset {
		return
	}
	if n := len(m.out); n > 0 {
		if p := &m.out[n-1]; p.LastOffset+1 == b.FirstOffset && p.alike(b) {
			p.LastOffset = b.LastOffset
			return
		}
	}
	m.out = append(m.out, b)
}

// disjoint returns batches sorted and without overlaps, a later one winning
// over an earlier; batches itself if it is so already.
func disjoint(batches []StateBatch) []StateBatch {
	for i, b := range batches {
		if b.FirstOffset > b.LastOffset || i > 0 && b.FirstOffset <= batches[i-1].LastOffset {
			if len(batches) == 1 {
				return nil
			}
			half := len(batches) / 2
			return MergeStateBatches(batches[:half], batches[half:], -1)
		}
	}
	return batches
}
