package sandbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fakeKafka is the cluster behind the share plane, in memory. Its topics have
// leaders spread over three brokers; broker 0 coordinates everything.
type fakeKafka struct {
	mu      sync.Mutex
	topics  []*fakeTopic
	configs map[string]string // group configs, and broker configs under their own names
	denied  map[string]bool   // names of resources that may not be used
	txns    map[string]txnState
	added   [][]int32 // partitions of each registration
	reads   int

	register func(transactionalID string, producerID int64, producerEpoch int16) int16
}

type fakeTopic struct {
	topicInfo
	parts []*fakePartition
}

type fakePartition struct {
	partitionInfo
	batches []fakeBatch
	aborted []fakeAborted
}

// fakeAborted is an aborted transaction, and the offset of its end marker.
type fakeAborted struct {
	abortedTxn
	marker int64
}

type fakeBatch struct {
	span
	raw []byte
}

var _ kafka = (*fakeKafka)(nil)

func newFakeKafka() *fakeKafka {
	return &fakeKafka{configs: make(map[string]string), denied: make(map[string]bool), txns: make(map[string]txnState)}
}

// topic adds a topic whose partition n is led by broker n mod 3.
func (k *fakeKafka) topic(name string, partitions int) [16]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := &fakeTopic{topicInfo: topicInfo{name: name, partitions: int32(partitions)}}
	t.id[0], t.id[15] = 0xee, byte(len(k.topics)+1)
	for n := range partitions {
		t.parts = append(t.parts, &fakePartition{partitionInfo: partitionInfo{leader: int32(n % 3), leaderEpoch: 1}})
	}
	k.topics = append(k.topics, t)
	return t.id
}

func (k *fakeKafka) deleteTopic(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.topics = slices.DeleteFunc(k.topics, func(t *fakeTopic) bool { return t.name == name })
}

// part returns a partition for a change under k.mu.
func (k *fakeKafka) part(topic string, partition int32) *fakePartition {
	for _, t := range k.topics {
		if t.name == topic && partition >= 0 && int(partition) < len(t.parts) {
			return t.parts[partition]
		}
	}
	return nil
}

// fakeBatchHead is what a batch in the fake log says of itself.
type fakeBatchHead struct {
	records  int
	producer int64 // of a transaction, 0 for none
	control  bool
	open     bool // keeps the last stable offset where it is
}

// produce appends a batch.
func (k *fakeKafka) produce(topic string, partition int32, h fakeBatchHead) span {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.part(topic, partition)
	first := p.highWatermark
	s := span{first, first + int64(h.records) - 1}
	p.batches = append(p.batches, fakeBatch{s, encodeFakeBatch(s, h)})
	p.highWatermark = s.last + 1
	if !h.open {
		p.lastStableOffset = p.highWatermark
	}
	return s
}

func encodeFakeBatch(s span, h fakeBatchHead) []byte {
	raw := make([]byte, batchHeaderSize+10*h.records)
	binary.BigEndian.PutUint64(raw, uint64(s.first))
	binary.BigEndian.PutUint32(raw[batchLengthAt:], uint32(len(raw)-batchLengthFieldsEnd))
	raw[batchMagicAt] = 2
	var attributes uint16
	if h.producer != 0 {
		attributes |= batchTransactional
	}
	if h.control {
		attributes |= batchControl
	}
	binary.BigEndian.PutUint16(raw[batchAttributesAt:], attributes)
	binary.BigEndian.PutUint32(raw[batchLastDeltaAt:], uint32(s.last-s.first))
	binary.BigEndian.PutUint64(raw[batchProducerIDAt:], uint64(h.producer))
	return raw
}

// move makes another broker the leader of a partition.
func (k *fakeKafka) move(topic string, partition, leader int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.part(topic, partition)
	p.leader, p.leaderEpoch = leader, p.leaderEpoch+1
}

func (k *fakeKafka) set(name, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.configs[name] = value
}

func (k *fakeKafka) deny(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.denied[name] = true
}

func (k *fakeKafka) nodes() []node {
	return []node{{0, "localhost", 9000}, {1, "localhost", 9001}, {2, "localhost", 9002}}
}

func (k *fakeKafka) topicByName(name string) (topicInfo, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.topics {
		if t.name == name {
			return t.topicInfo, true
		}
	}
	return topicInfo{}, false
}

func (k *fakeKafka) topicByID(id [16]byte) (topicInfo, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.topics {
		if t.id == id {
			return t.topicInfo, true
		}
	}
	return topicInfo{}, false
}

func (k *fakeKafka) partition(topic string, partition int32) (partitionInfo, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.part(topic, partition)
	if p == nil {
		return partitionInfo{}, false
	}
	return p.partitionInfo, true
}

func (k *fakeKafka) coordinator(string) int32 { return 0 }

func (k *fakeKafka) fetch(_ context.Context, topic string, partition int32, offset int64, maxBytes int32, readCommitted bool) (fetched, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	p := k.part(topic, partition)
	switch {
	case p == nil:
		return fetched{}, kerr.UnknownTopicOrPartition
	case offset < p.logStartOffset || offset > p.highWatermark:
		return fetched{}, kerr.OffsetOutOfRange
	}
	f := fetched{partitionInfo: p.partitionInfo}
	end := p.highWatermark
	if readCommitted {
		end = p.lastStableOffset
		for _, a := range p.aborted {
			if a.marker >= offset {
				f.aborted = append(f.aborted, a.abortedTxn)
			}
		}
	}
	for _, b := range p.batches {
		if b.last < offset {
			continue
		}
		if b.first >= end || len(f.records) > 0 && len(f.records)+len(b.raw) > int(maxBytes) {
			break
		}
		f.records = append(f.records, b.raw...)
	}
	return f, nil
}

func (k *fakeKafka) offsetForTime(_ context.Context, topic string, partition int32, _ time.Time) (int64, error) {
	info, _ := k.partition(topic, partition)
	if info.highWatermark < 3 {
		return -1, nil
	}
	return 3, nil
}

func (k *fakeKafka) groupConfig(_, name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.configs[name]
}

func (k *fakeKafka) brokerConfig(name string) string { return k.groupConfig("", name) }

func (k *fakeKafka) authorized(_ caller, _ kmsg.ACLOperation, _ kmsg.ACLResourceType, name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.denied[name]
}

func (k *fakeKafka) addPartitionsToTxn(_ context.Context, id string, producerID int64, epoch int16, partitions []int32) int16 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.register != nil {
		if code := k.register(id, producerID, epoch); code != 0 {
			return code
		}
	}
	k.added = append(k.added, slices.Clone(partitions))
	if _, ok := k.txns[id]; !ok {
		k.txns[id] = txnState{
			transactionalID: id, state: "Ongoing", producerID: producerID, producerEpoch: epoch,
			start: bubbleNow(), timeout: time.Minute, statePartitions: []int32{0},
		}
	}
	return 0
}

// end makes a transaction end as kfake does: it is Empty, with the next epoch.
func (k *fakeKafka) end(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.txns[id]
	st.state = "Empty"
	st.producerEpoch++
	k.txns[id] = st
}

func (k *fakeKafka) listTransactions(context.Context) ([]txnState, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var open []txnState
	for _, st := range k.txns {
		if st.state == txnOngoing {
			open = append(open, st)
		}
	}
	return open, nil
}

func (k *fakeKafka) appendState(context.Context, []stateRecord) error { return nil }

func (k *fakeKafka) readState(context.Context, func(stateRecord) error) error { return nil }

// fakeCoordinator is a share coordinator in memory.
type fakeCoordinator struct {
	mu     sync.Mutex
	states map[shareStateKey]*fakeState
	writes [][]shareStateWrite
	fail   func(shareStateWrite) int16 // the code of a write
	refuse func(shareStateKey) int16   // the code of an initialize
}

type fakeState struct {
	shareState
	offsets map[int64]wire.StateBatch
}

var _ coordinator = (*fakeCoordinator)(nil)

func newFakeCoordinator() *fakeCoordinator {
	return &fakeCoordinator{states: make(map[shareStateKey]*fakeState)}
}

func (co *fakeCoordinator) initialize(_ context.Context, k shareStateKey, stateEpoch int32, startOffset int64) int16 {
	co.mu.Lock()
	defer co.mu.Unlock()
	if co.refuse != nil && co.refuse(k) != 0 {
		return co.refuse(k)
	}
	if st := co.states[k]; st != nil && st.stateEpoch > stateEpoch {
		return kerr.FencedStateEpoch.Code
	}
	co.states[k] = &fakeState{
		shareState: shareState{stateEpoch: stateEpoch, leaderEpoch: -1, startOffset: startOffset},
		offsets:    make(map[int64]wire.StateBatch),
	}
	return 0
}

func (co *fakeCoordinator) read(_ context.Context, k shareStateKey, leaderEpoch int32) (shareState, int16) {
	co.mu.Lock()
	defer co.mu.Unlock()
	st := co.states[k]
	if st == nil {
		return shareState{}, kerr.InvalidRequest.Code
	}
	if leaderEpoch >= 0 && leaderEpoch < st.leaderEpoch {
		return shareState{}, kerr.FencedLeaderEpoch.Code
	}
	st.leaderEpoch = max(st.leaderEpoch, leaderEpoch)
	out := st.shareState
	for _, o := range slices.Sorted(mapsKeys(st.offsets)) {
		b := st.offsets[o]
		if n := len(out.batches); n > 0 {
			last := &out.batches[n-1]
			if last.LastOffset == o-1 && last.DeliveryState == b.DeliveryState && last.DeliveryCount == b.DeliveryCount && last.Staged == b.Staged {
				last.LastOffset = o
				continue
			}
		}
		b.FirstOffset, b.LastOffset = o, o
		out.batches = append(out.batches, b)
	}
	return out, 0
}

func mapsKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (co *fakeCoordinator) write(_ context.Context, writes []shareStateWrite) []int16 {
	co.mu.Lock()
	defer co.mu.Unlock()
	codes := make([]int16, len(writes))
	var done []shareStateWrite
	for i, w := range writes {
		st := co.states[w.shareStateKey]
		switch {
		case st == nil:
			codes[i] = kerr.UnknownTopicOrPartition.Code
		case co.fail != nil && co.fail(w) != 0:
			codes[i] = co.fail(w)
		case w.stateEpoch < st.stateEpoch:
			codes[i] = kerr.FencedStateEpoch.Code
		case w.leaderEpoch < st.leaderEpoch:
			codes[i] = kerr.FencedLeaderEpoch.Code
		}
		if codes[i] != 0 {
			continue
		}
		done = append(done, w)
		st.leaderEpoch = w.leaderEpoch
		if w.startOffset >= 0 {
			st.startOffset = w.startOffset
		}
		if w.deliveryCompleteCount >= 0 {
			st.deliveryCompleteCount = w.deliveryCompleteCount
		}
		for _, b := range w.batches {
			for o := b.FirstOffset; o <= b.LastOffset; o++ {
				st.offsets[o] = b
			}
		}
		for o := range st.offsets {
			if o < st.startOffset {
				delete(st.offsets, o)
			}
		}
	}
	co.writes = append(co.writes, done)
	return codes
}

func (co *fakeCoordinator) remove(_ context.Context, k shareStateKey) int16 {
	co.mu.Lock()
	defer co.mu.Unlock()
	delete(co.states, k)
	return 0
}

func (co *fakeCoordinator) peek(k shareStateKey) (shareState, bool) {
	st, code := co.read(context.Background(), k, -1)
	return st, code == 0
}

func (co *fakeCoordinator) keys() []shareStateKey {
	co.mu.Lock()
	defer co.mu.Unlock()
	return slices.SortedFunc(mapsKeys(co.states), compareStateKeys)
}

func (co *fakeCoordinator) partitions() int32 { return 50 }

func (co *fakeCoordinator) failWrites(fail func(shareStateWrite) int16) {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.fail = fail
}

// planeRig is a share plane over fakes, and the requests that tests send to it.
type planeRig struct {
	t       *testing.T
	k       *fakeKafka
	co      *fakeCoordinator
	p       *plane
	dialect wire.Dialect
	enabled bool
	memory  bool
	conns   uint64
}

func newPlaneRig(t *testing.T, dialect string, opts ...func(*planeRig)) *planeRig {
	t.Helper()
	d, ok := wire.DialectByName(dialect)
	if !ok {
		t.Fatalf("no dialect %q", dialect)
	}
	r := &planeRig{t: t, k: newFakeKafka(), co: newFakeCoordinator(), dialect: d, enabled: true}
	for _, o := range opts {
		o(r)
	}
	r.k.set("share.auto.offset.reset", "earliest")
	r.start()
	t.Cleanup(func() { r.p.close() })
	return r
}

// start makes a plane over the fakes, as a restart of the sandbox does.
func (r *planeRig) start() {
	r.t.Helper()
	if r.p != nil {
		r.p.close()
	}
	r.p = newPlane(r.k, r.co, planeConfig{
		dialect: r.dialect, persistPending: !r.memory,
		enabled: func() bool { return r.enabled }, logf: r.t.Logf,
	})
	if err := r.p.resume(r.t.Context(), r.k.listTransactions); err != nil {
		r.t.Fatalf("resume: %v", err)
	}
}

// on returns a new connection to a broker.
func (r *planeRig) on(broker int32) caller {
	r.conns++
	return caller{conn: r.conns, broker: broker, principal: "User:ANONYMOUS", clientID: "test", gone: make(chan struct{})}
}

func ask[R kmsg.Response](r *planeRig, c caller, req kmsg.Request) R {
	r.t.Helper()
	resp, err := r.p.handle(r.t.Context(), c, req)
	if err != nil {
		r.t.Fatalf("%T: %v", req, err)
	}
	return resp.(R)
}

func (r *planeRig) heartbeat(group, member string, epoch int32, topics ...string) *kmsg.ShareGroupHeartbeatResponse {
	r.t.Helper()
	req := &kmsg.ShareGroupHeartbeatRequest{Version: 1, GroupID: group, MemberID: member, MemberEpoch: epoch, SubscribedTopicNames: topics}
	return ask[*kmsg.ShareGroupHeartbeatResponse](r, r.on(0), req)
}

// rigMember is a member of a share group with a session on one broker.
type rigMember struct {
	r          *planeRig
	c          caller
	group, id  string
	epoch      int32
	session    int32
	topicID    [16]byte
	partitions []int32
}

// join makes a member that fetches the given partitions of a topic from broker.
func (r *planeRig) join(group, id, topic string, broker int32, partitions ...int32) *rigMember {
	r.t.Helper()
	resp := r.heartbeat(group, id, 0, topic)
	if resp.ErrorCode != 0 {
		r.t.Fatalf("join %s of %s: %s", group, id, errorName(resp.ErrorCode))
	}
	info, _ := r.k.topicByName(topic)
	return &rigMember{r: r, c: r.on(broker), group: group, id: id, epoch: resp.MemberEpoch, topicID: info.id, partitions: partitions}
}

func (m *rigMember) request(most int) *kmsg.ShareFetchRequest {
	req := &kmsg.ShareFetchRequest{
		Version: 2, GroupID: &m.group, MemberID: &m.id, ShareSessionEpoch: m.session,
		MinBytes: 1, MaxBytes: 1 << 20, MaxRecords: int32(most), ShareAcquireMode: shareAcquireModeStrict,
	}
	if m.session == 0 {
		t := kmsg.NewShareFetchRequestTopic()
		t.TopicID = m.topicID
		for _, n := range m.partitions {
			p := kmsg.NewShareFetchRequestTopicPartition()
			p.Partition = n
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	return req
}

func (m *rigMember) send(req *kmsg.ShareFetchRequest) *kmsg.ShareFetchResponse {
	m.r.t.Helper()
	resp := ask[*kmsg.ShareFetchResponse](m.r, m.c, req)
	if resp.ErrorCode == 0 {
		m.session++
	}
	return resp
}

// fetch returns the ranges that a fetch of at most so many records acquired on
// partition 0 of those the member asks for, without waiting.
func (m *rigMember) fetch(most int) []acquiredRange {
	m.r.t.Helper()
	resp := m.send(m.request(most))
	if resp.ErrorCode != 0 {
		m.r.t.Fatalf("fetch: %s", errorName(resp.ErrorCode))
	}
	return rangesOf(resp, m.partitions[0])
}

func partOf(resp *kmsg.ShareFetchResponse, partition int32) *kmsg.ShareFetchResponseTopicPartition {
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			if p := &resp.Topics[i].Partitions[j]; p.Partition == partition {
				return p
			}
		}
	}
	return nil
}

func rangesOf(resp *kmsg.ShareFetchResponse, partition int32) []acquiredRange {
	p := partOf(resp, partition)
	if p == nil {
		return nil
	}
	var out []acquiredRange
	for _, a := range p.AcquiredRecords {
		out = append(out, acquiredRange{span{a.FirstOffset, a.LastOffset}, a.DeliveryCount})
	}
	return out
}

// ack acknowledges a range on a partition with ShareAcknowledge and returns the
// code of the partition.
func (m *rigMember) ack(partition int32, first, last int64, types ...int8) int16 {
	m.r.t.Helper()
	req := &kmsg.ShareAcknowledgeRequest{Version: 2, GroupID: &m.group, MemberID: &m.id, ShareSessionEpoch: m.session}
	for _, t := range types {
		req.IsRenewAck = req.IsRenewAck || t == int8(wire.Renew)
	}
	b := kmsg.NewShareAcknowledgeRequestTopicPartitionAcknowledgementBatch()
	b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = first, last, types
	p := kmsg.NewShareAcknowledgeRequestTopicPartition()
	p.Partition = partition
	p.AcknowledgementBatches = append(p.AcknowledgementBatches, b)
	t := kmsg.NewShareAcknowledgeRequestTopic()
	t.TopicID = m.topicID
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp := ask[*kmsg.ShareAcknowledgeResponse](m.r, m.c, req)
	if resp.ErrorCode != 0 {
		m.r.t.Fatalf("acknowledge: %s", errorName(resp.ErrorCode))
	}
	m.session++
	return resp.Topics[0].Partitions[0].ErrorCode
}

// txnRequest is a TxnShareAcknowledge of one range.
func (m *rigMember) txnRequest(id string, o owner, partition int32, first, last int64, types ...int8) *wire.TxnShareAcknowledgeRequest {
	req := wire.NewTxnShareAcknowledgeRequest(m.r.dialect)
	req.TransactionalID, req.GroupID, req.MemberID, req.MemberEpoch = &id, m.group, m.id, m.epoch
	req.ProducerID, req.ProducerEpoch = o.producerID, o.producerEpoch
	req.Topics = []wire.TxnShareAcknowledgeRequestTopic{{
		TopicID: m.topicID,
		Partitions: []wire.TxnShareAcknowledgeRequestTopicPartition{{
			Partition:              partition,
			AcknowledgementBatches: []wire.AcknowledgementBatch{{FirstOffset: first, LastOffset: last, AcknowledgeTypes: types}},
		}},
	}}
	return req
}

func (m *rigMember) sendTxn(req *wire.TxnShareAcknowledgeRequest) *wire.TxnShareAcknowledgeResponse {
	m.r.t.Helper()
	return ask[*wire.TxnShareAcknowledgeResponse](m.r, m.c, req)
}

// stage stages one range and returns the code, of the request or the partition.
func (m *rigMember) stage(id string, o owner, partition int32, first, last int64, types ...int8) int16 {
	m.r.t.Helper()
	resp := m.sendTxn(m.txnRequest(id, o, partition, first, last, types...))
	if resp.ErrorCode != 0 {
		return resp.ErrorCode
	}
	return resp.Topics[0].Partitions[0].ErrorCode
}

// end ends a transaction as EndTxn v5 does.
func (r *planeRig) end(id string, o owner, commit bool) {
	r.t.Helper()
	unlock := r.p.transactionGuard(id)
	defer unlock()
	r.k.end(id)
	r.p.transactionEnded(r.t.Context(), ended(id, o.producerID, o.producerEpoch+1, commit), func() {})
}

// states returns the ranges of a share-partition, as "first-last STATE".
func (r *planeRig) states(group, topic string, partition int32) []string {
	r.t.Helper()
	var out []string
	for _, p := range r.p.snapshot().Partitions {
		if p.GroupID != group || p.Topic != topic || p.Partition != partition {
			continue
		}
		for _, s := range p.Ranges {
			out = append(out, rangeText(s))
		}
	}
	return out
}

func rangeText(s rangeSnapshot) string {
	return fmt.Sprintf("%d-%d %s", s.FirstOffset, s.LastOffset, s.State)
}

// wantStates fails the test unless a share-partition consists of these ranges.
func (r *planeRig) wantStates(group, topic string, partition int32, want ...string) {
	r.t.Helper()
	if got := r.states(group, topic, partition); !slices.Equal(got, want) {
		r.t.Fatalf("states of %s %s-%d = %q, want %q", group, topic, partition, got, want)
	}
}

// wantRanges fails the test unless a fetch acquired these ranges.
func (r *planeRig) wantRanges(got []acquiredRange, want ...acquiredRange) {
	r.t.Helper()
	if !slices.Equal(got, want) {
		r.t.Fatalf("acquired %v, want %v", got, want)
	}
}

func delivered(first, last int64, count int16) acquiredRange {
	return acquiredRange{span{first, last}, count}
}

// wantCode fails the test unless got is the code of want; nil is none.
func (r *planeRig) wantCode(got int16, want *kerr.Error) {
	r.t.Helper()
	code := int16(0)
	if want != nil {
		code = want.Code
	}
	if got != code {
		r.t.Fatalf("code %s, want %s", errorName(got), errorName(code))
	}
}

// ended is the marker of a transaction of version 2.
func ended(id string, producerID int64, markerEpoch int16, commit bool) endedTxn {
	return endedTxn{transactionalID: id, producerID: producerID, markerEpoch: markerEpoch, version: 2, commit: commit}
}
