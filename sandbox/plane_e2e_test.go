package sandbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// shareE2E is a sandbox with a topic, and raw requests to it over the network.
type shareE2E struct {
	t       testing.TB
	s       *Sandbox
	cl      *kgo.Client
	dialect wire.Dialect
	topic   topicInfo
}

const e2eTopic, e2eGroup = "in", "g"

// startShareE2E starts a sandbox with a topic of so many partitions.
func startShareE2E(tb testing.TB, dialect string, partitions int32, opts ...Option) *shareE2E {
	tb.Helper()
	d, ok := wire.DialectByName(dialect)
	if !ok {
		tb.Fatalf("no dialect %q", dialect)
	}
	e := &shareE2E{t: tb, dialect: d}
	e.s = startSandbox(tb, append([]Option{WithDialect(d), WithTopics(Topic{Name: e2eTopic, Partitions: partitions})}, opts...)...)
	e.connect()
	e.setGroupConfig("share.auto.offset.reset", "earliest")
	return e
}

// connect makes a new client.
func (e *shareE2E) connect() {
	e.t.Helper()
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(e.dialect.Key, e.dialect.MaxVersion)
	e.cl = newTestClient(e.t, e.s, kgo.MaxVersions(versions), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(1<<20))
	e.topic, _ = e.s.kafka.topicByName(e2eTopic)
}

func (e *shareE2E) setGroupConfig(name, value string) {
	e.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, e2eGroup
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = name, &value
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(testContext(e.t), e.cl)
	if err != nil {
		e.t.Fatal(err)
	}
	if code := resp.Resources[0].ErrorCode; code != 0 {
		e.t.Fatalf("set %s=%s: %s", name, value, errorName(code))
	}
}

// produce writes n records to a partition, and waits for them.
func (e *shareE2E) produce(partition int32, n int) {
	e.t.Helper()
	rs := make([]*kgo.Record, n)
	for i := range rs {
		rs[i] = &kgo.Record{Topic: e2eTopic, Partition: partition, Value: fmt.Appendf(nil, "v%d", i)}
	}
	if err := e.cl.ProduceSync(testContext(e.t), rs...).FirstErr(); err != nil {
		e.t.Fatal(err)
	}
}

// to sends a request to a broker.
func to[R kmsg.Response](e *shareE2E, broker int32, req kmsg.Request) R {
	e.t.Helper()
	resp, err := e.cl.Broker(int(broker)).Request(testContext(e.t), req)
	if err != nil {
		e.t.Fatalf("%T to broker %d: %v", req, broker, err)
	}
	return resp.(R)
}

func (e *shareE2E) leader(partition int32) int32 {
	info, _ := e.s.kafka.partition(e2eTopic, partition)
	return info.leader
}

// e2eMember is a member of the share group, with a session per broker.
type e2eMember struct {
	e        *shareE2E
	id       string
	epoch    int32
	sessions map[int32]int32
}

func (e *shareE2E) join(id string) *e2eMember {
	e.t.Helper()
	m := &e2eMember{e: e, id: id, sessions: make(map[int32]int32)}
	m.heartbeat(e2eTopic)
	return m
}

func (m *e2eMember) heartbeat(topics ...string) *kmsg.ShareGroupHeartbeatResponse {
	m.e.t.Helper()
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.GroupID, req.MemberID, req.MemberEpoch, req.SubscribedTopicNames = e2eGroup, m.id, m.epoch, topics
	resp := to[*kmsg.ShareGroupHeartbeatResponse](m.e, m.e.s.kafka.coordinator(e2eGroup), req)
	if resp.ErrorCode != 0 {
		m.e.t.Fatalf("heartbeat: %s", errorName(resp.ErrorCode))
	}
	m.epoch = resp.MemberEpoch
	return resp
}

// fetch fetches up to so many records of partitions, all of one leader.
func (m *e2eMember) fetch(most int, partitions ...int32) *kmsg.ShareFetchResponse {
	m.e.t.Helper()
	broker := m.e.leader(partitions[0])
	group := e2eGroup
	req := kmsg.NewPtrShareFetchRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = &group, &m.id, m.sessions[broker]
	req.MinBytes, req.MaxBytes, req.MaxRecords, req.MaxWaitMillis = 1, 50<<20, int32(most), 100
	req.ShareAcquireMode = shareAcquireModeStrict
	t := kmsg.NewShareFetchRequestTopic()
	t.TopicID = m.e.topic.id
	for _, n := range partitions {
		p := kmsg.NewShareFetchRequestTopicPartition()
		p.Partition = n
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	resp := to[*kmsg.ShareFetchResponse](m.e, broker, req)
	if resp.ErrorCode != 0 {
		m.e.t.Fatalf("fetch: %s", errorName(resp.ErrorCode))
	}
	m.sessions[broker] = nextSessionEpoch(m.sessions[broker])
	return resp
}

// acquire fetches all of a partition and returns what was acquired.
func (m *e2eMember) acquire(partition int32) []acquiredRange {
	m.e.t.Helper()
	return rangesOf(m.fetch(2000, partition), partition)
}

// e2eProducer is a transactional producer.
type e2eProducer struct {
	e  *shareE2E
	id string
	owner
}

func (e *shareE2E) producer(id string, timeout time.Duration) *e2eProducer {
	e.t.Helper()
	p := &e2eProducer{e: e, id: id, owner: owner{-1, -1}}
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &id, int32(timeout/time.Millisecond), -1, -1
	resp, err := req.RequestWith(testContext(e.t), e.cl)
	if err != nil {
		e.t.Fatal(err)
	}
	if resp.ErrorCode != 0 {
		e.t.Fatalf("init producer %q: %s", id, errorName(resp.ErrorCode))
	}
	p.owner = owner{resp.ProducerID, resp.ProducerEpoch}
	return p
}

// e2eStage is what to stage on one partition.
type e2eStage struct {
	partition   int32
	first, last int64
	types       []int8
}

// stage sends one TxnShareAcknowledge to broker.
func (p *e2eProducer) stage(m *e2eMember, broker int32, stages ...e2eStage) *wire.TxnShareAcknowledgeResponse {
	p.e.t.Helper()
	return to[*wire.TxnShareAcknowledgeResponse](p.e, broker, p.stageRequest(m, stages...))
}

func (p *e2eProducer) stageRequest(m *e2eMember, stages ...e2eStage) *wire.TxnShareAcknowledgeRequest {
	req := wire.NewTxnShareAcknowledgeRequest(p.e.dialect)
	req.TransactionalID, req.GroupID, req.MemberID, req.MemberEpoch = &p.id, e2eGroup, m.id, m.epoch
	req.ProducerID, req.ProducerEpoch = p.producerID, p.producerEpoch
	t := wire.TxnShareAcknowledgeRequestTopic{TopicID: p.e.topic.id}
	for _, s := range stages {
		types := s.types
		if types == nil {
			types = []int8{ackAccept}
		}
		t.Partitions = append(t.Partitions, wire.TxnShareAcknowledgeRequestTopicPartition{
			Partition:              s.partition,
			AcknowledgementBatches: []wire.AcknowledgementBatch{{FirstOffset: s.first, LastOffset: s.last, AcknowledgeTypes: types}},
		})
	}
	req.Topics = append(req.Topics, t)
	return req
}

// mustStage stages ranges of one leader's partitions.
func (p *e2eProducer) mustStage(m *e2eMember, stages ...e2eStage) {
	p.e.t.Helper()
	resp := p.stage(m, p.e.leader(stages[0].partition), stages...)
	if code := worstCode(resp); code != 0 {
		p.e.t.Fatalf("stage: %s", errorName(code))
	}
}

// worstCode returns the first error code in a response, 0 if it has none.
func worstCode(resp *wire.TxnShareAcknowledgeResponse) int16 {
	if resp.ErrorCode != 0 {
		return resp.ErrorCode
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return p.ErrorCode
			}
		}
	}
	return 0
}

// end ends the transaction as a client of transaction.version 2 does.
func (p *e2eProducer) end(commit bool) int16 {
	p.e.t.Helper()
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.id, p.producerID, p.producerEpoch, commit
	resp, err := req.RequestWith(testContext(p.e.t), p.e.cl)
	if err != nil {
		p.e.t.Fatal(err)
	}
	if resp.ErrorCode == 0 {
		p.owner = owner{resp.ProducerID, resp.ProducerEpoch}
	}
	return resp.ErrorCode
}

func (p *e2eProducer) mustEnd(commit bool) {
	p.e.t.Helper()
	if code := p.end(commit); code != 0 {
		p.e.t.Fatalf("end transaction: %s", errorName(code))
	}
}

// states returns the ranges of a share-partition, as "first-last STATE".
func (e *shareE2E) states(partition int32) []string {
	var out []string
	for _, p := range e.s.plane.snapshot().Partitions {
		if p.GroupID == e2eGroup && p.Topic == e2eTopic && p.Partition == partition {
			for _, r := range p.Ranges {
				out = append(out, rangeText(r))
			}
		}
	}
	return out
}

func (e *shareE2E) wantStates(partition int32, want ...string) {
	e.t.Helper()
	if got := e.states(partition); !slices.Equal(got, want) {
		e.t.Fatalf("states of partition %d = %q, want %q", partition, got, want)
	}
}

// await waits until cond holds, which nothing tells of.
func (e *shareE2E) await(cond func() bool) bool {
	ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// awaitStates waits until a share-partition consists of these ranges.
func (e *shareE2E) awaitStates(partition int32, want ...string) {
	e.t.Helper()
	e.await(func() bool { return slices.Equal(e.states(partition), want) })
	e.wantStates(partition, want...)
}

func (e *shareE2E) wantCode(got int16, want *kerr.Error) {
	e.t.Helper()
	if got != want.Code {
		e.t.Fatalf("code %s, want %s", errorName(got), want.Message)
	}
}
