package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TxnShareAcknowledge (KIP-1289, a draft; read on 2026-11-29).
//
// A producer sends it to the leader of the partitions whose records it
// acknowledges within its transaction. All known forms have version 0 alone,
// and it is flexible. The forms differ in the api key, in how a batch carries
// its acknowledge types, and in the fields of the response; a [Dialect] says
// which. A dialect is data: a new one adds no code here.
//
// Decoding is strict where a broker is: a null array or string that may not be
// null, a length that runs past the end and bytes after the end are errors. The
// last matters most, because other releases use the same api keys for other
// requests, and such a request often has a prefix that can be read as this one.
// Tags that are not known are kept and written again.

var (
	_ kmsg.Request             = (*TxnShareAcknowledgeRequest)(nil)
	_ kmsg.Response            = (*TxnShareAcknowledgeResponse)(nil)
	_ kmsg.ThrottleResponse    = (*TxnShareAcknowledgeResponse)(nil)
	_ kmsg.SetThrottleResponse = (*TxnShareAcknowledgeResponse)(nil)
)

// The least number of bytes an element of each array takes on the wire, its
// tag section included.
const (
	minTopicSize        = 16 + 1 + 1
	minPartitionSize    = 4 + 1 + 1
	minBatchSize        = 8 + 8 + 1 + 1
	minNodeEndpointSize = 4 + 1 + 4 + 1 + 1
)

// AcknowledgementBatch acknowledges a range of offsets, as in ShareAcknowledge
// (KIP-932).
type AcknowledgementBatch struct {
	FirstOffset      int64  // first offset of the range
	LastOffset       int64  // last offset of the range, inclusive
	AcknowledgeTypes []int8 // one [AcknowledgeType] for the whole range, or one for each offset

	UnknownTags kmsg.Tags // tags of a newer schema
}

// TxnShareAcknowledgeRequestTopicPartition is one partition of a
// TxnShareAcknowledge request.
type TxnShareAcknowledgeRequestTopicPartition struct {
	Partition              int32
	AcknowledgementBatches []AcknowledgementBatch

	UnknownTags kmsg.Tags // tags of a newer schema
}

// TxnShareAcknowledgeRequestTopic is one topic of a TxnShareAcknowledge
// request.
type TxnShareAcknowledgeRequestTopic struct {
	TopicID    [16]byte
	Partitions []TxnShareAcknowledgeRequestTopicPartition

	UnknownTags kmsg.Tags // tags of a newer schema
}

// TxnShareAcknowledgeRequest acknowledges acquired records of a share group
// within a transaction. It implements [kmsg.Request]; it must be sent to the
// leader of every partition in it. Brokers answer with a
// [TxnShareAcknowledgeResponse].
type TxnShareAcknowledgeRequest struct {
	Dialect Dialect // the form in force; not on the wire
	Version int16   // not on the wire

	TransactionalID *string // nil is allowed on the wire and refused by brokers
	GroupID         string
	ProducerID      int64
	ProducerEpoch   int16
	MemberID        string // at most 36 bytes
	MemberEpoch     int32
	Topics          []TxnShareAcknowledgeRequestTopic

	UnknownTags kmsg.Tags // tags of a newer schema
}

// NewTxnShareAcknowledgeRequest returns an empty request in the form of d, with
// a producer ID and epoch of -1.
func NewTxnShareAcknowledgeRequest(d Dialect) *TxnShareAcknowledgeRequest {
	return &TxnShareAcknowledgeRequest{Dialect: d, ProducerID: -1, ProducerEpoch: -1}
}

// Key returns the api key of the dialect.
func (r *TxnShareAcknowledgeRequest) Key() int16 { return r.Dialect.Key }

// MaxVersion returns the newest version that the dialect has.
func (r *TxnShareAcknowledgeRequest) MaxVersion() int16 { return r.Dialect.MaxVersion }

// SetVersion sets the version of the request and of its response.
func (r *TxnShareAcknowledgeRequest) SetVersion(version int16) { r.Version = version }

// GetVersion returns the version of the request.
func (r *TxnShareAcknowledgeRequest) GetVersion() int16 { return r.Version }

// IsFlexible returns true: all versions are flexible.
func (r *TxnShareAcknowledgeRequest) IsFlexible() bool { return true }

// ResponseKind returns an empty response of the same dialect and version.
func (r *TxnShareAcknowledgeRequest) ResponseKind() kmsg.Response {
	return &TxnShareAcknowledgeResponse{Dialect: r.Dialect, Version: r.Version}
}

// AppendTo appends the body of the request to dst.
func (r *TxnShareAcknowledgeRequest) AppendTo(dst []byte) []byte {
	dst = kbin.AppendCompactNullableString(dst, r.TransactionalID)
	dst = kbin.AppendCompactString(dst, r.GroupID)
	dst = kbin.AppendInt64(dst, r.ProducerID)
	dst = kbin.AppendInt16(dst, r.ProducerEpoch)
	dst = kbin.AppendCompactString(dst, r.MemberID)
	dst = kbin.AppendInt32(dst, r.MemberEpoch)
	dst = kbin.AppendCompactArrayLen(dst, len(r.Topics))
	for i := range r.Topics {
		t := &r.Topics[i]
		dst = append(dst, t.TopicID[:]...)
		dst = kbin.AppendCompactArrayLen(dst, len(t.Partitions))
		for j := range t.Partitions {
			p := &t.Partitions[j]
			dst = kbin.AppendInt32(dst, p.Partition)
			dst = AppendAcknowledgementBatches(dst, p.AcknowledgementBatches, r.Dialect.Form)
			dst = appendTags(dst, &p.UnknownTags)
		}
		dst = appendTags(dst, &t.UnknownTags)
	}
	return appendTags(dst, &r.UnknownTags)
}

// ReadFrom replaces all fields of the request by those in src, the body of a
// request. Dialect and Version say how to read it and stay. The request keeps
// no part of src. It may return [ErrTruncated], [ErrNull] or
// [ErrTrailingBytes]; the fields are then undefined.
func (r *TxnShareAcknowledgeRequest) ReadFrom(src []byte) error {
	d := newDecoder(src)
	r.TransactionalID = d.compactNullableString()
	r.GroupID = d.compactString()
	r.ProducerID = d.r.Int64()
	r.ProducerEpoch = d.r.Int16()
	r.MemberID = d.compactString()
	r.MemberEpoch = d.r.Int32()
	r.Topics = readArray(&d, minTopicSize, func(d *decoder, t *TxnShareAcknowledgeRequestTopic) {
		t.TopicID = d.r.Uuid()
		t.Partitions = readArray(d, minPartitionSize, func(d *decoder, p *TxnShareAcknowledgeRequestTopicPartition) {
			p.Partition = d.r.Int32()
			p.AcknowledgementBatches = d.acknowledgementBatches(r.Dialect.Form)
			p.UnknownTags = d.unknownTags()
		})
		t.UnknownTags = d.unknownTags()
	})
	r.UnknownTags = d.unknownTags()
	if err := d.finish(); err != nil {
		return fmt.Errorf("TxnShareAcknowledge request (%s): %w", r.Dialect.Name, err)
	}
	return nil
}

// readArray reads a compact array of elements of at least minSize bytes each.
func readArray[T any](d *decoder, minSize int, read func(*decoder, *T)) []T {
	n := d.count(minSize)
	if n == 0 {
		return nil
	}
	s := make([]T, n)
	for i := range s {
		if !d.ok() {
			return nil
		}
		read(d, &s[i])
	}
	return s
}

// AppendAcknowledgementBatches appends batches to dst as the compact array that
// a partition of a TxnShareAcknowledge request holds. It allocates nothing when
// dst has the capacity and no batch has unknown tags.
//
// With [AcknowledgeTypeSingle] a batch that has one type for each offset is
// split where the type changes. A batch whose number of types is neither one
// nor the number of its offsets cannot be said in that form; it is written with
// the type -1, which brokers refuse.
func AppendAcknowledgementBatches(dst []byte, batches []AcknowledgementBatch, form AcknowledgeForm) []byte {
	if form == AcknowledgeTypeSingle {
		return appendSingleTypeBatches(dst, batches)
	}
	dst = kbin.AppendCompactArrayLen(dst, len(batches))
	for i := range batches {
		b := &batches[i]
		dst = kbin.AppendInt64(dst, b.FirstOffset)
		dst = kbin.AppendInt64(dst, b.LastOffset)
		dst = kbin.AppendCompactArrayLen(dst, len(b.AcknowledgeTypes))
		dst = appendTypes(dst, b.AcknowledgeTypes)
		dst = appendTags(dst, &b.UnknownTags)
	}
	return dst
}

// appendTypes appends one byte for each type. A batch may have one for each of
// very many offsets, so eight go at once: the compiler makes one load and one
// store of them.
func appendTypes(dst []byte, types []int8) []byte {
	n := len(dst)
	dst = slices.Grow(dst, len(types))[:n+len(types)]
	to := dst[n:]
	for len(types) >= 8 && len(to) >= 8 {
		binary.LittleEndian.PutUint64(to, uint64(byte(types[0]))|uint64(byte(types[1]))<<8|
			uint64(byte(types[2]))<<16|uint64(byte(types[3]))<<24|uint64(byte(types[4]))<<32|
			uint64(byte(types[5]))<<40|uint64(byte(types[6]))<<48|uint64(byte(types[7]))<<56)
		types, to = types[8:], to[8:]
	}
	for i, t := range types {
		to[i] = byte(t)
	}
	return dst
}

func appendSingleTypeBatches(dst []byte, batches []AcknowledgementBatch) []byte {
	n := 0
	for i := range batches {
		for rest := 0; ; n++ {
			_, rest = batches[i].run(rest)
			if rest < 0 {
				n++
				break
			}
		}
	}
	dst = kbin.AppendCompactArrayLen(dst, n)
	for i := range batches {
		b := &batches[i]
		for at := 0; at >= 0; {
			first := b.FirstOffset + int64(at)
			var t int8
			t, at = b.run(at)
			last := b.LastOffset
			if at >= 0 {
				last = b.FirstOffset + int64(at) - 1
			}
			dst = kbin.AppendInt64(dst, first)
			dst = kbin.AppendInt64(dst, last)
			dst = append(dst, byte(t))
			dst = appendTags(dst, &b.UnknownTags)
		}
	}
	return dst
}

// run returns the acknowledge type at the index at, counted from FirstOffset,
// and the index where the next type starts; -1 if the type holds to the end of
// the batch.
func (b *AcknowledgementBatch) run(at int) (t int8, next int) {
	types := b.AcknowledgeTypes
	switch {
	case len(types) == 1:
		return types[0], -1
	case len(types) == 0 || b.LastOffset-b.FirstOffset != int64(len(types))-1:
		return -1, -1
	}
	for next = at + 1; next < len(types); next++ {
		if types[next] != types[at] {
			return types[at], next
		}
	}
	return types[at], -1
}

// typeSlab is how many acknowledge types are allocated together. Most batches
// have one type, and would else cost one allocation each.
const typeSlab = 256

func (d *decoder) acknowledgementBatches(form AcknowledgeForm) []AcknowledgementBatch {
	var slab []int8
	take := func(n int) []int8 {
		if n > len(slab) {
			// Never more than the source can still hold types for.
			slab = make([]int8, max(n, min(typeSlab, len(d.r.Src)/minBatchSize+1)))
		}
		types := slab[:n:n]
		slab = slab[n:]
		return types
	}
	return readArray(d, minBatchSize, func(d *decoder, b *AcknowledgementBatch) {
		b.FirstOffset = d.r.Int64()
		b.LastOffset = d.r.Int64()
		if form == AcknowledgeTypeSingle {
			b.AcknowledgeTypes = take(1)
			b.AcknowledgeTypes[0] = d.r.Int8()
		} else if n := d.count(1); n > 0 {
			b.AcknowledgeTypes = take(n)
			for i, t := range d.r.Span(n) {
				b.AcknowledgeTypes[i] = int8(t)
			}
		}
		b.UnknownTags = d.unknownTags()
	})
}

// TxnShareAcknowledgeResponseCurrentLeader names the leader to turn to after
// NOT_LEADER_OR_FOLLOWER.
type TxnShareAcknowledgeResponseCurrentLeader struct {
	LeaderID    int32 // -1: unknown
	LeaderEpoch int32 // -1: unknown

	UnknownTags kmsg.Tags // tags of a newer schema
}

// TxnShareAcknowledgeResponseTopicPartition is what became of one partition of
// a TxnShareAcknowledge request: all of its batches were staged, or none.
type TxnShareAcknowledgeResponseTopicPartition struct {
	Partition     int32
	ErrorCode     int16                                     // 0: staged
	ErrorMessage  *string                                   // nil: none; absent in [ResponseCodesOnly]
	CurrentLeader *TxnShareAcknowledgeResponseCurrentLeader // nil: not said; [ResponseWithLeader] only, as tag 0

	UnknownTags kmsg.Tags // tags of a newer schema
}

// TxnShareAcknowledgeResponseTopic is one topic of a TxnShareAcknowledge
// response.
type TxnShareAcknowledgeResponseTopic struct {
	TopicID    [16]byte
	Partitions []TxnShareAcknowledgeResponseTopicPartition

	UnknownTags kmsg.Tags // tags of a newer schema
}

// TxnShareAcknowledgeResponseNodeEndpoint is the address of a broker that some
// partition names as its CurrentLeader.
type TxnShareAcknowledgeResponseNodeEndpoint struct {
	NodeID int32
	Host   string
	Port   int32
	Rack   *string // nil: none

	UnknownTags kmsg.Tags // tags of a newer schema
}

// TxnShareAcknowledgeResponse answers a [TxnShareAcknowledgeRequest]. Only when
// ErrorCode and the code of every partition are 0 may the transaction commit.
// The numbers of its tags are not in the KIP; they are those of Produce v10.
type TxnShareAcknowledgeResponse struct {
	Dialect Dialect // the form in force; not on the wire
	Version int16   // not on the wire

	ThrottleMillis int32
	ErrorCode      int16 // 0: look at the partitions
	Topics         []TxnShareAcknowledgeResponseTopic
	NodeEndpoints  []TxnShareAcknowledgeResponseNodeEndpoint // [ResponseWithLeader] only, as tag 0

	UnknownTags kmsg.Tags // tags of a newer schema
}

// NewTxnShareAcknowledgeResponse returns an empty response in the form of d.
func NewTxnShareAcknowledgeResponse(d Dialect) *TxnShareAcknowledgeResponse {
	return &TxnShareAcknowledgeResponse{Dialect: d}
}

// Key returns the api key of the dialect.
func (r *TxnShareAcknowledgeResponse) Key() int16 { return r.Dialect.Key }

// MaxVersion returns the newest version that the dialect has.
func (r *TxnShareAcknowledgeResponse) MaxVersion() int16 { return r.Dialect.MaxVersion }

// SetVersion sets the version of the response.
func (r *TxnShareAcknowledgeResponse) SetVersion(version int16) { r.Version = version }

// GetVersion returns the version of the response.
func (r *TxnShareAcknowledgeResponse) GetVersion() int16 { return r.Version }

// IsFlexible returns true: all versions are flexible.
func (r *TxnShareAcknowledgeResponse) IsFlexible() bool { return true }

// Throttle returns how long, in milliseconds, the client has to pause after
// this response.
func (r *TxnShareAcknowledgeResponse) Throttle() (millis int32, afterResponse bool) {
	return r.ThrottleMillis, true
}

// SetThrottle sets the pause in milliseconds.
func (r *TxnShareAcknowledgeResponse) SetThrottle(millis int32) { r.ThrottleMillis = millis }

// RequestKind returns an empty request of the same dialect and version.
func (r *TxnShareAcknowledgeResponse) RequestKind() kmsg.Request {
	req := NewTxnShareAcknowledgeRequest(r.Dialect)
	req.Version = r.Version
	return req
}

// AppendTo appends the body of the response to dst. Fields that the dialect
// does not have are left out.
func (r *TxnShareAcknowledgeResponse) AppendTo(dst []byte) []byte {
	layout := r.Dialect.Layout
	dst = kbin.AppendInt32(dst, r.ThrottleMillis)
	dst = kbin.AppendInt16(dst, r.ErrorCode)
	dst = kbin.AppendCompactArrayLen(dst, len(r.Topics))
	for i := range r.Topics {
		t := &r.Topics[i]
		dst = append(dst, t.TopicID[:]...)
		dst = kbin.AppendCompactArrayLen(dst, len(t.Partitions))
		for j := range t.Partitions {
			dst = t.Partitions[j].appendTo(dst, layout)
		}
		dst = appendTags(dst, &t.UnknownTags)
	}
	if layout != ResponseWithLeader || len(r.NodeEndpoints) == 0 {
		return appendTags(dst, &r.UnknownTags)
	}
	dst = kbin.AppendUvarint(dst, uint32(1+r.UnknownTags.Len()))
	dst = kbin.AppendUvarint(dst, 0)
	dst = appendSized(dst, func(dst []byte) []byte {
		dst = kbin.AppendCompactArrayLen(dst, len(r.NodeEndpoints))
		for i := range r.NodeEndpoints {
			n := &r.NodeEndpoints[i]
			dst = kbin.AppendInt32(dst, n.NodeID)
			dst = kbin.AppendCompactString(dst, n.Host)
			dst = kbin.AppendInt32(dst, n.Port)
			dst = kbin.AppendCompactNullableString(dst, n.Rack)
			dst = appendTags(dst, &n.UnknownTags)
		}
		return dst
	})
	return r.UnknownTags.AppendEach(dst)
}

func (p *TxnShareAcknowledgeResponseTopicPartition) appendTo(dst []byte, layout ResponseLayout) []byte {
	dst = kbin.AppendInt32(dst, p.Partition)
	dst = kbin.AppendInt16(dst, p.ErrorCode)
	if layout != ResponseCodesOnly {
		dst = kbin.AppendCompactNullableString(dst, p.ErrorMessage)
	}
	if layout != ResponseWithLeader || p.CurrentLeader == nil {
		return appendTags(dst, &p.UnknownTags)
	}
	dst = kbin.AppendUvarint(dst, uint32(1+p.UnknownTags.Len()))
	dst = kbin.AppendUvarint(dst, 0)
	dst = appendSized(dst, func(dst []byte) []byte {
		dst = kbin.AppendInt32(dst, p.CurrentLeader.LeaderID)
		dst = kbin.AppendInt32(dst, p.CurrentLeader.LeaderEpoch)
		return appendTags(dst, &p.CurrentLeader.UnknownTags)
	})
	return p.UnknownTags.AppendEach(dst)
}

// ReadFrom replaces all fields of the response by those in src, the body of a
// response. Dialect and Version say how to read it and stay. The response keeps
// no part of src. It may return [ErrTruncated], [ErrNull] or
// [ErrTrailingBytes]; the fields are then undefined.
func (r *TxnShareAcknowledgeResponse) ReadFrom(src []byte) error {
	layout := r.Dialect.Layout
	d := newDecoder(src)
	r.ThrottleMillis = d.r.Int32()
	r.ErrorCode = d.r.Int16()
	r.Topics = readArray(&d, minTopicSize, func(d *decoder, t *TxnShareAcknowledgeResponseTopic) {
		t.TopicID = d.r.Uuid()
		t.Partitions = readArray(d, minPartitionSize+1, func(d *decoder, p *TxnShareAcknowledgeResponseTopicPartition) {
			p.readFrom(d, layout)
		})
		t.UnknownTags = d.unknownTags()
	})
	r.NodeEndpoints, r.UnknownTags = nil, kmsg.Tags{}
	d.eachTag(func(tag uint32, value []byte) {
		if tag == 0 && layout == ResponseWithLeader {
			r.NodeEndpoints = readTag(&d, value, (*decoder).nodeEndpoints)
			return
		}
		r.UnknownTags.Set(tag, bytes.Clone(value))
	})
	if err := d.finish(); err != nil {
		return fmt.Errorf("TxnShareAcknowledge response (%s): %w", r.Dialect.Name, err)
	}
	return nil
}

func (p *TxnShareAcknowledgeResponseTopicPartition) readFrom(d *decoder, layout ResponseLayout) {
	p.Partition = d.r.Int32()
	p.ErrorCode = d.r.Int16()
	if layout != ResponseCodesOnly {
		p.ErrorMessage = d.compactNullableString()
	}
	d.eachTag(func(tag uint32, value []byte) {
		if tag == 0 && layout == ResponseWithLeader {
			p.CurrentLeader = readTag(d, value, (*decoder).currentLeader)
			return
		}
		p.UnknownTags.Set(tag, bytes.Clone(value))
	})
}

// readTag reads the value of a known tag, which must be used up; an error
// becomes the error of d.
func readTag[T any](d *decoder, value []byte, read func(*decoder) T) T {
	in := newDecoder(value)
	v := read(&in)
	if err := in.finish(); err != nil {
		d.fail(err)
	}
	return v
}

func (d *decoder) currentLeader() *TxnShareAcknowledgeResponseCurrentLeader {
	l := new(TxnShareAcknowledgeResponseCurrentLeader)
	l.LeaderID = d.r.Int32()
	l.LeaderEpoch = d.r.Int32()
	l.UnknownTags = d.unknownTags()
	return l
}

func (d *decoder) nodeEndpoints() []TxnShareAcknowledgeResponseNodeEndpoint {
	return readArray(d, minNodeEndpointSize, func(d *decoder, n *TxnShareAcknowledgeResponseNodeEndpoint) {
		n.NodeID = d.r.Int32()
		n.Host = d.compactString()
		n.Port = d.r.Int32()
		n.Rack = d.compactNullableString()
		n.UnknownTags = d.unknownTags()
	})
}
