package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// firstDraft is a dialect that the table does not have: KIP-1289's first draft.
// That it works shows that a dialect is data.
var firstDraft = Dialect{
	Name: "first-draft", Key: 93, Form: AcknowledgeTypeSingle, Layout: ResponseCodesOnly,
	Allowed: []AcknowledgeType{Accept, Reject}, ShareVersion: 2,
	AfterAbort: Available, InvalidTypeCode: 42,
}

func testDialects(t testing.TB) []Dialect {
	t.Helper()
	ds := append(Dialects(), firstDraft)
	if len(ds) < 3 {
		t.Fatalf("%d dialects", len(ds))
	}
	return ds
}

func dialect(t testing.TB, name string) Dialect {
	t.Helper()
	d, ok := DialectByName(name)
	if !ok {
		t.Fatalf("no dialect %q", name)
	}
	return d
}

func tags(kv ...any) kmsg.Tags {
	var tags kmsg.Tags
	for i := 0; i < len(kv); i += 2 {
		tags.Set(uint32(kv[i].(int)), kv[i+1].([]byte))
	}
	return tags
}

func vectorRequest(d Dialect, batches ...AcknowledgementBatch) *TxnShareAcknowledgeRequest {
	r := NewTxnShareAcknowledgeRequest(d)
	r.TransactionalID = ptr("t1")
	r.GroupID = "g1"
	r.ProducerID = 1001
	r.ProducerEpoch = 7
	r.MemberID = "m"
	r.MemberEpoch = 5
	r.Topics = []TxnShareAcknowledgeRequestTopic{{
		TopicID: testTopicID,
		Partitions: []TxnShareAcknowledgeRequestTopicPartition{{
			Partition:              3,
			AcknowledgementBatches: batches,
		}},
	}}
	return r
}

func TestTxnShareAcknowledgeRequestVectors(t *testing.T) {
	kip := dialect(t, "kip")
	tagged := NewTxnShareAcknowledgeRequest(kip)
	tagged.Topics = []TxnShareAcknowledgeRequestTopic{{
		Partitions: []TxnShareAcknowledgeRequestTopicPartition{{
			AcknowledgementBatches: []AcknowledgementBatch{{UnknownTags: tags(5, []byte{0xaa})}},
			UnknownTags:            tags(6, []byte{}),
		}},
		UnknownTags: tags(7, []byte{0xbb, 0xcc}),
	}}
	tagged.UnknownTags = tags(0, []byte{0xdd}, 300, []byte{0xee})

	for _, tt := range []struct {
		vector  string
		dialect Dialect
		want    *TxnShareAcknowledgeRequest
	}{
		{
			"request_types_array", kip,
			vectorRequest(kip,
				AcknowledgementBatch{FirstOffset: 10, LastOffset: 14, AcknowledgeTypes: []int8{1}},
				AcknowledgementBatch{FirstOffset: 20, LastOffset: 22, AcknowledgeTypes: []int8{1, 1, 3}}),
		},
		{
			"request_types_array", dialect(t, "draft"),
			vectorRequest(dialect(t, "draft"),
				AcknowledgementBatch{FirstOffset: 10, LastOffset: 14, AcknowledgeTypes: []int8{1}},
				AcknowledgementBatch{FirstOffset: 20, LastOffset: 22, AcknowledgeTypes: []int8{1, 1, 3}}),
		},
		{
			"request_type_single", firstDraft,
			vectorRequest(firstDraft,
				AcknowledgementBatch{FirstOffset: 10, LastOffset: 14, AcknowledgeTypes: []int8{1}},
				AcknowledgementBatch{FirstOffset: 20, LastOffset: 21, AcknowledgeTypes: []int8{1}},
				AcknowledgementBatch{FirstOffset: 22, LastOffset: 22, AcknowledgeTypes: []int8{3}}),
		},
		{"request_tags", kip, tagged},
	} {
		t.Run(tt.vector+"/"+tt.dialect.Name, func(t *testing.T) {
			src := vector(t, tt.vector)
			got := NewTxnShareAcknowledgeRequest(tt.dialect)
			if err := got.ReadFrom(src); err != nil {
				t.Fatalf("ReadFrom: %v", err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("ReadFrom = %+v, want %+v", got, tt.want)
			}
			if b := tt.want.AppendTo([]byte("x")); !bytes.Equal(b, append([]byte("x"), src...)) {
				t.Errorf("AppendTo = %x, want %x", b[1:], src)
			}
		})
	}
}

func TestTxnShareAcknowledgeResponseVectors(t *testing.T) {
	kip, draft := dialect(t, "kip"), dialect(t, "draft")
	topics := func(ps ...TxnShareAcknowledgeResponseTopicPartition) []TxnShareAcknowledgeResponseTopic {
		return []TxnShareAcknowledgeResponseTopic{{TopicID: testTopicID, Partitions: ps}}
	}
	for _, tt := range []struct {
		vector string
		want   *TxnShareAcknowledgeResponse
	}{
		{"response_with_leader", &TxnShareAcknowledgeResponse{
			Dialect: kip, ThrottleMillis: 100,
			Topics: topics(
				TxnShareAcknowledgeResponseTopicPartition{},
				TxnShareAcknowledgeResponseTopicPartition{
					Partition: 1, ErrorCode: 6, ErrorMessage: ptr("moved"),
					CurrentLeader: &TxnShareAcknowledgeResponseCurrentLeader{LeaderID: 2, LeaderEpoch: 11},
					UnknownTags:   tags(3, []byte{0xff}),
				}),
			NodeEndpoints: []TxnShareAcknowledgeResponseNodeEndpoint{{NodeID: 2, Host: "host", Port: 9092, Rack: ptr("rack1")}},
		}},
		{"response_with_message", &TxnShareAcknowledgeResponse{
			Dialect: draft, ErrorCode: 113,
			Topics: topics(TxnShareAcknowledgeResponseTopicPartition{
				Partition: 1, ErrorCode: 121, ErrorMessage: ptr("no"), UnknownTags: tags(0, []byte{0x55}),
			}),
			UnknownTags: tags(0, []byte{0x66}),
		}},
		{"response_codes_only", &TxnShareAcknowledgeResponse{
			Dialect: firstDraft,
			Topics: topics(
				TxnShareAcknowledgeResponseTopicPartition{},
				TxnShareAcknowledgeResponseTopicPartition{Partition: 1, ErrorCode: 42}),
		}},
	} {
		t.Run(tt.vector, func(t *testing.T) {
			src := vector(t, tt.vector)
			got := NewTxnShareAcknowledgeResponse(tt.want.Dialect)
			if err := got.ReadFrom(src); err != nil {
				t.Fatalf("ReadFrom: %v", err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("ReadFrom = %+v, want %+v", got, tt.want)
			}
			if b := tt.want.AppendTo([]byte("x")); !bytes.Equal(b, append([]byte("x"), src...)) {
				t.Errorf("AppendTo = %x, want %x", b[1:], src)
			}
		})
	}
}

// A reader that skips unknown tags reads the response with and without tagged
// fields alike (KIP-1289 as voted, and the newest draft).
func TestLayoutsThatDifferInTagsReadEachOther(t *testing.T) {
	draft := NewTxnShareAcknowledgeResponse(dialect(t, "draft"))
	if err := draft.ReadFrom(vector(t, "response_with_leader")); err != nil {
		t.Fatal(err)
	}
	if got := draft.Topics[0].Partitions[1]; got.ErrorCode != 6 || got.CurrentLeader != nil || got.UnknownTags.Len() != 2 {
		t.Errorf("partition 1 = %+v, want code 6, no leader, two unknown tags", got)
	}
	if draft.UnknownTags.Len() != 1 || draft.NodeEndpoints != nil {
		t.Errorf("response = %+v, want one unknown tag, no endpoints", draft)
	}
	if b := draft.AppendTo(nil); !bytes.Equal(b, vector(t, "response_with_leader")) {
		t.Errorf("AppendTo = %x, want the bytes that were read", b)
	}
}

func TestTxnShareAcknowledgeIsAKmsgRequest(t *testing.T) {
	d := Dialect{Name: "future", Key: 321, MaxVersion: 2}
	req := NewTxnShareAcknowledgeRequest(d)
	if req.ProducerID != -1 || req.ProducerEpoch != -1 {
		t.Errorf("new request has producer (%d, %d), want none", req.ProducerID, req.ProducerEpoch)
	}
	req.SetVersion(1)
	resp := req.ResponseKind()
	back := resp.RequestKind()
	for _, m := range []interface {
		Key() int16
		MaxVersion() int16
		GetVersion() int16
		IsFlexible() bool
	}{req, resp, back} {
		if m.Key() != 321 || m.MaxVersion() != 2 || m.GetVersion() != 1 || !m.IsFlexible() {
			t.Errorf("%T: key %d, max version %d, version %d, flexible %v; want 321, 2, 1, true",
				m, m.Key(), m.MaxVersion(), m.GetVersion(), m.IsFlexible())
		}
	}
	if !reflect.DeepEqual(back.(*TxnShareAcknowledgeRequest).Dialect, d) {
		t.Errorf("RequestKind lost the dialect")
	}
	resp.SetVersion(2)
	if resp.GetVersion() != 2 {
		t.Errorf("response version = %d, want 2", resp.GetVersion())
	}
	resp.(kmsg.SetThrottleResponse).SetThrottle(250)
	if ms, after := resp.(kmsg.ThrottleResponse).Throttle(); ms != 250 || !after {
		t.Errorf("Throttle = %d, %v; want 250, true", ms, after)
	}
}

// Whatever a request held before, ReadFrom replaces it.
func TestReadFromReplacesAllFields(t *testing.T) {
	kip := dialect(t, "kip")
	used := NewTxnShareAcknowledgeRequest(kip)
	if err := used.ReadFrom(vector(t, "request_tags")); err != nil {
		t.Fatal(err)
	}
	if err := used.ReadFrom(vector(t, "request_types_array")); err != nil {
		t.Fatal(err)
	}
	fresh := NewTxnShareAcknowledgeRequest(kip)
	if err := fresh.ReadFrom(vector(t, "request_types_array")); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(used, fresh) {
		t.Errorf("second ReadFrom = %+v, want %+v", used, fresh)
	}

	usedResp := NewTxnShareAcknowledgeResponse(kip)
	if err := usedResp.ReadFrom(vector(t, "response_with_leader")); err != nil {
		t.Fatal(err)
	}
	none := NewTxnShareAcknowledgeResponse(kip)
	if err := usedResp.ReadFrom(none.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(usedResp, none) {
		t.Errorf("second ReadFrom = %+v, want %+v", usedResp, none)
	}
}

// What was decoded must survive its source, which is a buffer of a connection.
func TestDecodedMessagesKeepNoPartOfTheirSource(t *testing.T) {
	kip := dialect(t, "kip")
	for _, tt := range []struct {
		vector string
		msg    interface {
			ReadFrom([]byte) error
			AppendTo([]byte) []byte
		}
	}{
		{"request_tags", NewTxnShareAcknowledgeRequest(kip)},
		{"request_types_array", NewTxnShareAcknowledgeRequest(kip)},
		{"response_with_leader", NewTxnShareAcknowledgeResponse(kip)},
	} {
		src := vector(t, tt.vector)
		want := bytes.Clone(src)
		if err := tt.msg.ReadFrom(src); err != nil {
			t.Fatal(err)
		}
		clear(src)
		if got := tt.msg.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("%s changed with its source: %x, want %x", tt.vector, got, want)
		}
	}
}

func TestTruncatedMessages(t *testing.T) {
	kip := dialect(t, "kip")
	for _, tt := range []struct {
		vector string
		msg    interface{ ReadFrom([]byte) error }
	}{
		{"request_types_array", NewTxnShareAcknowledgeRequest(kip)},
		{"request_tags", NewTxnShareAcknowledgeRequest(kip)},
		{"request_type_single", NewTxnShareAcknowledgeRequest(firstDraft)},
		{"response_with_leader", NewTxnShareAcknowledgeResponse(kip)},
		{"response_with_message", NewTxnShareAcknowledgeResponse(dialect(t, "draft"))},
		{"response_codes_only", NewTxnShareAcknowledgeResponse(firstDraft)},
	} {
		src := vector(t, tt.vector)
		for n := range src {
			if err := tt.msg.ReadFrom(src[:n]); !errors.Is(err, ErrTruncated) {
				t.Errorf("%s: first %d of %d bytes: error %v, want %v", tt.vector, n, len(src), err, ErrTruncated)
			}
		}
		if err := tt.msg.ReadFrom(append(src, 0)); !errors.Is(err, ErrTrailingBytes) {
			t.Errorf("%s and one byte more: error %v, want %v", tt.vector, err, ErrTrailingBytes)
		}
	}
}

func TestInvalidMessages(t *testing.T) {
	head := []byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1} // all before Topics
	topic := append(append([]byte{}, head...), append([]byte{2}, make([]byte, 16)...)...)
	partition := append(append([]byte{}, topic...), 2, 0, 0, 0, 0)
	batch := append(append([]byte{}, partition...), append([]byte{2}, make([]byte, 16)...)...)
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0x0f} // 2^32-1: a length of 2^32-2
	long := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0x01}
	join := func(a []byte, b ...byte) []byte { return append(bytes.Clone(a), b...) }

	for _, tt := range []struct {
		name string
		src  []byte
		want error
	}{
		{"transactional ID longer than the message", join(huge), ErrTruncated},
		{"null group ID", []byte{0, 0}, ErrNull},
		{"null topics", join(head, 0, 0), ErrNull},
		{"2^32-2 topics", join(head, huge...), ErrTruncated},
		{"count that is no varint", join(head, long...), ErrTruncated},
		{"null partitions", join(topic, 0, 0), ErrNull},
		{"2^32-2 partitions", join(topic, huge...), ErrTruncated},
		{"null batches", join(partition, 0, 0, 0, 0), ErrNull},
		{"2^32-2 batches", join(partition, huge...), ErrTruncated},
		{"null types", join(batch, 0, 0, 0, 0, 0), ErrNull},
		{"2^32-2 types", join(batch, huge...), ErrTruncated},
		{"2^32-1 tags", join(head, append([]byte{1}, huge...)...), ErrTruncated},
		{"tag of 2^32-1 bytes", join(head, append([]byte{1, 1, 9}, huge...)...), ErrTruncated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := NewTxnShareAcknowledgeRequest(dialect(t, "kip")).ReadFrom(tt.src)
			if !errors.Is(err, tt.want) {
				t.Errorf("ReadFrom(%x) = %v, want %v", tt.src, err, tt.want)
			}
		})
	}

	for _, tt := range []struct {
		name string
		tag  []byte
		want error
	}{
		{"null endpoints", []byte{0}, ErrNull},
		{"endpoint cut short", []byte{2, 0, 0, 0, 1}, ErrTruncated},
		{"bytes after the endpoints", []byte{1, 0xff}, ErrTrailingBytes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			src := append([]byte{0, 0, 0, 0, 0, 0, 1, 1, 0, byte(len(tt.tag))}, tt.tag...)
			err := NewTxnShareAcknowledgeResponse(dialect(t, "kip")).ReadFrom(src)
			if !errors.Is(err, tt.want) {
				t.Errorf("ReadFrom(%x) = %v, want %v", src, err, tt.want)
			}
		})
	}
}

// A count is believed only as far as the bytes after it go: a short message
// that announces many elements costs no memory.
func TestHostileCountsDoNotAllocate(t *testing.T) {
	src := append([]byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1}, 0xff, 0xff, 0xff, 0x7f)
	req := NewTxnShareAcknowledgeRequest(dialect(t, "kip"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := req.ReadFrom(src)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrTruncated) {
		t.Errorf("ReadFrom(%x) = %v, want %v", src, err, ErrTruncated)
	}
	// A million topics would be 48 MB; the rest is the runtime's own.
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<16 {
		t.Errorf("decoding %d bytes allocated %d", len(src), got)
	}
}

func TestSingleTypeBatches(t *testing.T) {
	type b = AcknowledgementBatch
	for _, tt := range []struct {
		name string
		in   []b
		want []b
	}{
		{"nothing", nil, nil},
		{"one type", []b{{FirstOffset: 1, LastOffset: 9, AcknowledgeTypes: []int8{3}}}, []b{{FirstOffset: 1, LastOffset: 9, AcknowledgeTypes: []int8{3}}}},
		{
			"types that are all alike",
			[]b{{FirstOffset: 1, LastOffset: 3, AcknowledgeTypes: []int8{1, 1, 1}}},
			[]b{{FirstOffset: 1, LastOffset: 3, AcknowledgeTypes: []int8{1}}},
		},
		{
			"types that alternate",
			[]b{{FirstOffset: 1, LastOffset: 3, AcknowledgeTypes: []int8{1, 3, 1}}, {FirstOffset: 7, LastOffset: 7, AcknowledgeTypes: []int8{0}}},
			[]b{
				{FirstOffset: 1, LastOffset: 1, AcknowledgeTypes: []int8{1}},
				{FirstOffset: 2, LastOffset: 2, AcknowledgeTypes: []int8{3}},
				{FirstOffset: 3, LastOffset: 3, AcknowledgeTypes: []int8{1}},
				{FirstOffset: 7, LastOffset: 7, AcknowledgeTypes: []int8{0}},
			},
		},
		{"no type", []b{{FirstOffset: 1, LastOffset: 1}}, []b{{FirstOffset: 1, LastOffset: 1, AcknowledgeTypes: []int8{-1}}}},
		{
			"too few types",
			[]b{{FirstOffset: 1, LastOffset: 3, AcknowledgeTypes: []int8{1, 1}}},
			[]b{{FirstOffset: 1, LastOffset: 3, AcknowledgeTypes: []int8{-1}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDecoder(AppendAcknowledgementBatches(nil, tt.in, AcknowledgeTypeSingle))
			got := d.acknowledgementBatches(AcknowledgeTypeSingle)
			if err := d.finish(); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// The batches of ShareAcknowledge, which kmsg knows, are those of the array
// form.
func TestBatchesAgreeWithKmsg(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		ours := randomBatches(rng, AcknowledgeTypesArray)
		theirs := kmsg.NewShareAcknowledgeRequest()
		theirs.Version = 1
		topic := kmsg.NewShareAcknowledgeRequestTopic()
		part := kmsg.NewShareAcknowledgeRequestTopicPartition()
		for _, b := range ours {
			kb := kmsg.NewShareAcknowledgeRequestTopicPartitionAcknowledgementBatch()
			kb.FirstOffset, kb.LastOffset, kb.AcknowledgeTypes, kb.UnknownTags = b.FirstOffset, b.LastOffset, b.AcknowledgeTypes, b.UnknownTags
			part.AcknowledgementBatches = append(part.AcknowledgementBatches, kb)
		}
		topic.Partitions = append(topic.Partitions, part)
		theirs.Topics = append(theirs.Topics, topic)

		// kmsg has no way to write batches alone: what stands around them has
		// a fixed size.
		const before, after = 1 + 1 + 4 + 1 + 16 + 1 + 4, 3
		want := theirs.AppendTo(nil)
		want = want[before : len(want)-after]
		if got := AppendAcknowledgementBatches(nil, ours, AcknowledgeTypesArray); !bytes.Equal(got, want) {
			t.Fatalf("%+v: %x, want %x", ours, got, want)
		}
	}
}

// CurrentLeader and NodeEndpoints have the form and the tags of Produce v10,
// which kmsg knows.
func TestLeaderTagsAgreeWithKmsg(t *testing.T) {
	kp := kmsg.NewProduceResponse()
	kp.Version = 10
	kpt := kmsg.NewProduceResponseTopic()
	kpp := kmsg.NewProduceResponseTopicPartition()
	kpp.CurrentLeader.LeaderID, kpp.CurrentLeader.LeaderEpoch = 2, 11
	kpt.Partitions = append(kpt.Partitions, kpp)
	kp.Topics = append(kp.Topics, kpt)
	kb := kmsg.NewProduceResponseBroker()
	kb.NodeID, kb.Host, kb.Port, kb.Rack = 2, "host", 9092, ptr("rack1")
	kp.Brokers = append(kp.Brokers, kb)
	theirs := kp.AppendTo(nil)

	ours := NewTxnShareAcknowledgeResponse(dialect(t, "kip"))
	ours.Topics = []TxnShareAcknowledgeResponseTopic{{Partitions: []TxnShareAcknowledgeResponseTopicPartition{{
		CurrentLeader: &TxnShareAcknowledgeResponseCurrentLeader{LeaderID: 2, LeaderEpoch: 11},
	}}}}
	ours.NodeEndpoints = []TxnShareAcknowledgeResponseNodeEndpoint{{NodeID: 2, Host: "host", Port: 9092, Rack: ptr("rack1")}}
	got := ours.AppendTo(nil)

	leader := []byte{1, 0, 9, 0, 0, 0, 2, 0, 0, 0, 11, 0}
	if !bytes.Contains(theirs, leader) || !bytes.Contains(got, leader) {
		t.Errorf("CurrentLeader %x: in Produce %v, in ours %v", leader, bytes.Contains(theirs, leader), bytes.Contains(got, leader))
	}
	endpoints := theirs[len(theirs)-24:] // 1 tag, number 0, size 21, and the 21 bytes
	if !bytes.HasSuffix(got, endpoints) {
		t.Errorf("response ends in %x, want %x", got[len(got)-24:], endpoints)
	}
}

func randomTags(rng *rand.Rand, from uint32) kmsg.Tags {
	var t kmsg.Tags
	for rng.IntN(4) == 0 {
		b := make([]byte, rng.IntN(200))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		t.Set(from+rng.Uint32N(1000), b)
	}
	return t
}

func randomText(rng *rand.Rand) string {
	return fmt.Sprintf("%0*d", rng.IntN(300), rng.IntN(10))[1:]
}

func randomNullable(rng *rand.Rand) *string {
	if rng.IntN(2) == 0 {
		return nil
	}
	return ptr(randomText(rng))
}

func randomSlice[T any](rng *rand.Rand, fn func(*T)) []T {
	n := rng.IntN(4)
	if n == 0 {
		return nil
	}
	s := make([]T, n)
	for i := range s {
		fn(&s[i])
	}
	return s
}

func randomBatches(rng *rand.Rand, form AcknowledgeForm) []AcknowledgementBatch {
	return randomSlice(rng, func(b *AcknowledgementBatch) {
		b.FirstOffset, b.LastOffset = int64(rng.Uint64()), int64(rng.Uint64())
		b.AcknowledgeTypes = []int8{int8(rng.Uint32())}
		if form == AcknowledgeTypesArray {
			b.AcknowledgeTypes = randomSlice(rng, func(t *int8) { *t = int8(rng.Uint32()) })
		}
		b.UnknownTags = randomTags(rng, 0)
	})
}

func TestTxnShareAcknowledgeRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, d := range testDialects(t) {
		for range 300 {
			req := &TxnShareAcknowledgeRequest{
				Dialect: d, TransactionalID: randomNullable(rng), GroupID: randomText(rng),
				ProducerID: int64(rng.Uint64()), ProducerEpoch: int16(rng.Uint32()),
				MemberID: randomText(rng), MemberEpoch: int32(rng.Uint32()),
				Topics: randomSlice(rng, func(t *TxnShareAcknowledgeRequestTopic) {
					t.TopicID[rng.IntN(16)] = byte(rng.Uint32())
					t.Partitions = randomSlice(rng, func(p *TxnShareAcknowledgeRequestTopicPartition) {
						p.Partition = int32(rng.Uint32())
						p.AcknowledgementBatches = randomBatches(rng, d.Form)
						p.UnknownTags = randomTags(rng, 0)
					})
					t.UnknownTags = randomTags(rng, 0)
				}),
				UnknownTags: randomTags(rng, 0),
			}
			got := NewTxnShareAcknowledgeRequest(d)
			if err := got.ReadFrom(req.AppendTo(nil)); err != nil {
				t.Fatalf("%s: %+v: %v", d.Name, req, err)
			}
			if !reflect.DeepEqual(got, req) {
				t.Fatalf("%s: got %+v, want %+v", d.Name, got, req)
			}

			withLeader := d.Layout == ResponseWithLeader
			resp := &TxnShareAcknowledgeResponse{
				Dialect: d, ThrottleMillis: int32(rng.Uint32()), ErrorCode: int16(rng.Uint32()),
				Topics: randomSlice(rng, func(t *TxnShareAcknowledgeResponseTopic) {
					t.TopicID[rng.IntN(16)] = byte(rng.Uint32())
					t.Partitions = randomSlice(rng, func(p *TxnShareAcknowledgeResponseTopicPartition) {
						p.Partition, p.ErrorCode = int32(rng.Uint32()), int16(rng.Uint32())
						if d.Layout != ResponseCodesOnly {
							p.ErrorMessage = randomNullable(rng)
						}
						if withLeader && rng.IntN(2) == 0 {
							p.CurrentLeader = &TxnShareAcknowledgeResponseCurrentLeader{
								LeaderID: int32(rng.Uint32()), LeaderEpoch: int32(rng.Uint32()), UnknownTags: randomTags(rng, 0),
							}
						}
						p.UnknownTags = randomTags(rng, 1)
					})
					t.UnknownTags = randomTags(rng, 0)
				}),
				UnknownTags: randomTags(rng, 1),
			}
			if withLeader {
				resp.NodeEndpoints = randomSlice(rng, func(n *TxnShareAcknowledgeResponseNodeEndpoint) {
					n.NodeID, n.Host, n.Port = int32(rng.Uint32()), randomText(rng), int32(rng.Uint32())
					n.Rack, n.UnknownTags = randomNullable(rng), randomTags(rng, 0)
				})
			}
			gotResp := NewTxnShareAcknowledgeResponse(d)
			if err := gotResp.ReadFrom(resp.AppendTo(nil)); err != nil {
				t.Fatalf("%s: %+v: %v", d.Name, resp, err)
			}
			if !reflect.DeepEqual(gotResp, resp) {
				t.Fatalf("%s: got %+v, want %+v", d.Name, gotResp, resp)
			}
		}
	}
}

// manyBatches is a request of the size that a busy share consumer stages.
func manyBatches() []AcknowledgementBatch {
	batches := make([]AcknowledgementBatch, 500)
	for i := range batches {
		first := int64(i) * 10
		batches[i] = AcknowledgementBatch{FirstOffset: first, LastOffset: first + 9, AcknowledgeTypes: []int8{1}}
		if i%10 == 0 {
			batches[i].AcknowledgeTypes = []int8{1, 1, 3, 1, 1, 1, 1, 1, 1, 3}
		}
	}
	return batches
}

func TestEncodingBatchesDoesNotAllocate(t *testing.T) {
	batches := manyBatches()
	buf := make([]byte, 0, 64<<10)
	for _, form := range []AcknowledgeForm{AcknowledgeTypesArray, AcknowledgeTypeSingle} {
		if got := testing.AllocsPerRun(100, func() { buf = AppendAcknowledgementBatches(buf[:0], batches, form) }); got != 0 {
			t.Errorf("form %d: %v allocations, want none", form, got)
		}
	}
	req := vectorRequest(dialect(t, "kip"), batches...)
	if got := testing.AllocsPerRun(100, func() { buf = req.AppendTo(buf[:0]) }); got != 0 {
		t.Errorf("request: %v allocations, want none", got)
	}
	if len(buf) == 0 {
		t.Error("nothing was written")
	}
}

func BenchmarkAppendAcknowledgementBatches(b *testing.B) {
	batches := manyBatches()
	for _, form := range []AcknowledgeForm{AcknowledgeTypesArray, AcknowledgeTypeSingle} {
		b.Run(fmt.Sprint("form=", form), func(b *testing.B) {
			buf := AppendAcknowledgementBatches(nil, batches, form)
			b.SetBytes(int64(len(buf)))
			b.ReportAllocs()
			for b.Loop() {
				buf = AppendAcknowledgementBatches(buf[:0], batches, form)
			}
		})
	}
}

func BenchmarkTxnShareAcknowledgeRequestReadFrom(b *testing.B) {
	d := Dialects()[0]
	src := vectorRequest(d, manyBatches()...).AppendTo(nil)
	req := NewTxnShareAcknowledgeRequest(d)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if err := req.ReadFrom(src); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzTxnShareAcknowledgeRequest: no input panics, and what can be read is
// written as it was, or at least reads the same.
func FuzzTxnShareAcknowledgeRequest(f *testing.F) {
	for _, name := range []string{"request_types_array", "request_type_single", "request_tags"} {
		for i := range testDialects(f) {
			f.Add(uint8(i), vector(f, name))
		}
	}
	f.Fuzz(func(t *testing.T, dialect uint8, src []byte) {
		ds := testDialects(t)
		d := ds[int(dialect)%len(ds)]
		req := NewTxnShareAcknowledgeRequest(d)
		if req.ReadFrom(bytes.Clone(src)) != nil {
			return
		}
		again := NewTxnShareAcknowledgeRequest(d)
		out := req.AppendTo(nil)
		if err := again.ReadFrom(out); err != nil {
			t.Fatalf("%s: %x became %x: %v", d.Name, src, out, err)
		}
		if !reflect.DeepEqual(again, req) {
			t.Fatalf("%s: %x became %x: %+v, want %+v", d.Name, src, out, again, req)
		}
	})
}

// FuzzTxnShareAcknowledgeResponse is as [FuzzTxnShareAcknowledgeRequest].
func FuzzTxnShareAcknowledgeResponse(f *testing.F) {
	for _, name := range []string{"response_with_leader", "response_with_message", "response_codes_only"} {
		for i := range testDialects(f) {
			f.Add(uint8(i), vector(f, name))
		}
	}
	f.Fuzz(func(t *testing.T, dialect uint8, src []byte) {
		ds := testDialects(t)
		d := ds[int(dialect)%len(ds)]
		resp := NewTxnShareAcknowledgeResponse(d)
		if resp.ReadFrom(bytes.Clone(src)) != nil {
			return
		}
		again := NewTxnShareAcknowledgeResponse(d)
		out := resp.AppendTo(nil)
		if err := again.ReadFrom(out); err != nil {
			t.Fatalf("%s: %x became %x: %v", d.Name, src, out, err)
		}
		if !reflect.DeepEqual(again, resp) {
			t.Fatalf("%s: %x became %x: %+v, want %+v", d.Name, src, out, again, resp)
		}
	})
}

// Types are written eight at a time; any number of them comes out.
func TestAppendTypes(t *testing.T) {
	for n := range 30 {
		types, want := make([]int8, n), []byte{0xff}
		for i := range types {
			types[i] = int8(i*37 - 100)
			want = append(want, byte(types[i]))
		}
		if got := appendTypes([]byte{0xff}, types); !bytes.Equal(got, want) {
			t.Errorf("appendTypes(ff, %v) = % x, want % x", types, got, want)
		}
	}
}
