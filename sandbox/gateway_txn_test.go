package sandbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// endMarker is one call of transactionEnded.
type endMarker struct {
	id         string
	producerID int64
	epoch      int16
	version    int8
	commit     bool
}

// markerPlane notes the end markers that the gateway tells the share plane.
type markerPlane struct {
	sharePlane
	mu    sync.Mutex
	ended []endMarker
}

func (p *markerPlane) transactionEnded(ctx context.Context, t endedTxn, done func()) {
	p.mu.Lock()
	p.ended = append(p.ended, endMarker{t.transactionalID, t.producerID, t.markerEpoch, t.version, t.commit})
	p.mu.Unlock()
	p.sharePlane.transactionEnded(ctx, t, done)
}

// take returns the markers since the last call.
func (p *markerPlane) take() []endMarker {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.ended
	p.ended = nil
	return m
}

func withMarkers(p *markerPlane) Option {
	return func(c *config) {
		c.wrapPlane = func(inner sharePlane) sharePlane {
			p.sharePlane = inner
			return p
		}
	}
}

// txnConn is a raw connection to the coordinator of a transactional ID.
type txnConn struct {
	*rawConn
	s  *Sandbox
	id string
}

func dialCoordinator(t testing.TB, s *Sandbox, id string) *txnConn {
	t.Helper()
	return &txnConn{dialRaw(t, s, int(s.kafka.coordinator(id))), s, id}
}

func (c *txnConn) init(t testing.TB) (int64, int16) {
	t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 5, &c.id, 60_000
	resp := askGateway[*kmsg.InitProducerIDResponse](t, c.rawConn, req)
	if resp.ErrorCode != 0 {
		t.Fatalf("InitProducerId of %q: code %d", c.id, resp.ErrorCode)
	}
	return resp.ProducerID, resp.ProducerEpoch
}

// register makes the transaction hold share acknowledgements.
func (c *txnConn) register(t testing.TB, producerID int64, epoch int16, partitions ...int32) {
	t.Helper()
	if code := c.s.kafka.addPartitionsToTxn(t.Context(), c.id, producerID, epoch, partitions); code != 0 {
		t.Fatalf("register in %q: code %d", c.id, code)
	}
}

func (c *txnConn) end(t testing.TB, version int16, producerID int64, epoch int16, commit bool) *kmsg.EndTxnResponse {
	t.Helper()
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = version, c.id, producerID, epoch, commit
	return askGateway[*kmsg.EndTxnResponse](t, c.rawConn, req)
}

func TestEndTxnTellsTheMarker(t *testing.T) {
	tests := []struct {
		dialect string
		version int16
		commit  bool
		code    int16
		epoch   int16 // of the marker, from that of the producer
		txn     int8
	}{
		{"kip", 5, true, 0, 1, 2},
		{"kip", 5, false, 0, 1, 2},
		{"kip", 4, true, 0, 0, 0},
		{"kip", 3, false, 0, 0, 0},
		{"draft", 5, true, 0, 1, 2},
		{"draft", 4, true, kerr.UnsupportedVersion.Code, 0, 0},
		{"draft", 0, false, kerr.UnsupportedVersion.Code, 0, 0},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s v%d commit %v", tt.dialect, tt.version, tt.commit), func(t *testing.T) {
			p := new(markerPlane)
			s := startSandbox(t, WithDialect(testDialect(t, tt.dialect)), withMarkers(p))
			c := dialCoordinator(t, s, "txn")
			producerID, epoch := c.init(t)
			c.register(t, producerID, epoch, 3)
			resp := c.end(t, tt.version, producerID, epoch, tt.commit)
			if resp.ErrorCode != tt.code {
				t.Fatalf("code %d, want %d", resp.ErrorCode, tt.code)
			}
			var want []endMarker
			if tt.code == 0 {
				want = []endMarker{{"txn", producerID, epoch + tt.epoch, tt.txn, tt.commit}}
			}
			if got := p.take(); !slices.Equal(got, want) {
				t.Errorf("markers %+v, want %+v", got, want)
			}
			st, _, err := s.kafka.describeTransaction(t.Context(), "txn")
			if err != nil {
				t.Fatal(err)
			}
			if open := st.state == txnOngoing; open != (tt.code != 0) {
				t.Errorf("the transaction is %s", st.state)
			}
		})
	}
}

// An old EndTxn is fine in the draft dialect for a transaction that the refused
// marker does not concern.
func TestEndTxnOfOtherTransactionsPasses(t *testing.T) {
	s := startSandbox(t, WithDialect(testDialect(t, "draft")), WithTopics(Topic{Name: "t"}))
	c := dialCoordinator(t, s, "txn")
	producerID, epoch := c.init(t)
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = 3, "txn", producerID, epoch
	rt := kmsg.NewAddPartitionsToTxnRequestTopic()
	rt.Topic, rt.Partitions = "t", []int32{0}
	req.Topics = append(req.Topics, rt)
	askGateway[*kmsg.AddPartitionsToTxnResponse](t, c.rawConn, req)
	if resp := c.end(t, 4, producerID, epoch, true); resp.ErrorCode != 0 {
		t.Errorf("code %d", resp.ErrorCode)
	}
}

func TestInitProducerIDFences(t *testing.T) {
	p := new(markerPlane)
	s := startSandbox(t, withMarkers(p))
	c := dialCoordinator(t, s, "txn")
	producerID, epoch := c.init(t)
	if got := p.take(); len(got) > 0 {
		t.Errorf("markers %+v of a new ID", got)
	}
	c.register(t, producerID, epoch, 1)
	next, nextEpoch := c.init(t)
	if next != producerID || nextEpoch != epoch+1 {
		t.Errorf("producer %d, epoch %d after %d, %d", next, nextEpoch, producerID, epoch)
	}
	want := []endMarker{{"txn", producerID, epoch + 1, 2, false}}
	if got := p.take(); !slices.Equal(got, want) {
		t.Errorf("markers %+v, want %+v", got, want)
	}
	if resp := c.end(t, 5, producerID, epoch, true); resp.ErrorCode == 0 {
		t.Error("the fenced producer could commit")
	}
	if got := p.take(); len(got) > 0 {
		t.Errorf("markers %+v of a refused EndTxn", got)
	}
}

// kfake would end a transaction by the producer ID alone.
func TestTransactionsOfOthers(t *testing.T) {
	p := new(markerPlane)
	s := startSandbox(t, withMarkers(p), WithBrokers(1))
	mine, theirs := dialCoordinator(t, s, "mine"), dialCoordinator(t, s, "theirs")
	producerID, epoch := mine.init(t)
	theirs.init(t)
	mine.register(t, producerID, epoch, 1)
	p.take()

	for _, c := range []*txnConn{theirs, dialCoordinator(t, s, "unknown")} {
		if resp := c.end(t, 5, producerID, epoch, true); resp.ErrorCode != kerr.InvalidProducerIDMapping.Code {
			t.Errorf("EndTxn of %q: code %d, want %d", c.id, resp.ErrorCode, kerr.InvalidProducerIDMapping.Code)
		}
		req := kmsg.NewPtrInitProducerIDRequest()
		req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 5, &c.id, 60_000
		req.ProducerID, req.ProducerEpoch = producerID, epoch
		if resp := askGateway[*kmsg.InitProducerIDResponse](t, c.rawConn, req); resp.ErrorCode != kerr.InvalidProducerIDMapping.Code {
			t.Errorf("InitProducerId of %q: code %d, want %d", c.id, resp.ErrorCode, kerr.InvalidProducerIDMapping.Code)
		}
		if code := s.kafka.addPartitionsToTxn(t.Context(), c.id, producerID, epoch, []int32{1}); code != kerr.InvalidProducerIDMapping.Code {
			t.Errorf("register in %q: code %d, want %d", c.id, code, kerr.InvalidProducerIDMapping.Code)
		}
	}
	if got := p.take(); len(got) > 0 {
		t.Errorf("markers %+v", got)
	}
	if code := s.kafka.addPartitionsToTxn(t.Context(), "mine", producerID, epoch+1, []int32{1}); code != kerr.InvalidProducerEpoch.Code {
		t.Errorf("register with a wrong epoch: code %d, want %d", code, kerr.InvalidProducerEpoch.Code)
	}
	if code := s.kafka.addPartitionsToTxn(t.Context(), "mine", producerID, epoch, []int32{1, 99}); code != kerr.UnknownTopicOrPartition.Code {
		t.Errorf("register a partition that is not there: code %d, want %d", code, kerr.UnknownTopicOrPartition.Code)
	}
}

func TestWriteTxnMarkers(t *testing.T) {
	tests := []struct {
		name       string
		dialect    string
		version    int16
		txnVersion int8
		wrong      bool // sent to another broker
		code       int16
	}{
		{"v2", "draft", 2, 2, false, 0},
		{"v2, transaction version 0", "draft", 2, 0, false, kerr.UnsupportedVersion.Code},
		{"v1", "draft", 1, 0, false, kerr.UnsupportedVersion.Code},
		{"v1", "kip", 1, 0, false, 0},
		{"v2", "kip", 2, 2, false, 0},
		{"not the leader", "kip", 1, 0, true, kerr.NotLeaderForPartition.Code},
	}
	for _, tt := range tests {
		t.Run(tt.dialect+" "+tt.name, func(t *testing.T) {
			p := new(markerPlane)
			s := startSandbox(t, WithDialect(testDialect(t, tt.dialect)), withMarkers(p))
			info, _ := s.kafka.partition(stateTopic, 4)
			broker := info.leader
			if tt.wrong {
				broker = (broker + 1) % defaultBrokers
			}
			req := kmsg.NewPtrWriteTxnMarkersRequest()
			req.Version = tt.version
			m := kmsg.NewWriteTxnMarkersRequestMarker()
			m.ProducerID, m.ProducerEpoch, m.Committed, m.TransactionVersion = 77, 5, true, tt.txnVersion
			rt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			rt.Topic, rt.Partitions = stateTopic, []int32{4, 400}
			m.Topics = append(m.Topics, rt)
			req.Markers = append(req.Markers, m)
			resp := askGateway[*kmsg.WriteTxnMarkersResponse](t, dialRaw(t, s, int(broker)), req)
			got := resp.Markers[0].Topics[0].Partitions
			if len(got) != 2 || got[0].ErrorCode != tt.code || got[1].ErrorCode != kerr.UnknownTopicOrPartition.Code {
				t.Errorf("partitions %+v, want codes %d and %d", got, tt.code, kerr.UnknownTopicOrPartition.Code)
			}
			var want []endMarker
			if tt.code == 0 {
				want = []endMarker{{"", 77, 5, tt.txnVersion, true}}
			}
			if got := p.take(); !slices.Equal(got, want) {
				t.Errorf("markers %+v, want %+v", got, want)
			}
		})
	}
}

// A broker lists the transactions that it coordinates.
func TestListTransactionsOfACoordinator(t *testing.T) {
	s := startSandbox(t)
	const n = 12
	for i := range n {
		c := dialCoordinator(t, s, fmt.Sprintf("txn-%d", i))
		producerID, epoch := c.init(t)
		c.register(t, producerID, epoch, int32(i))
	}
	seen := make(map[string]int)
	for broker := range defaultBrokers {
		resp := askGateway[*kmsg.ListTransactionsResponse](t, dialRaw(t, s, broker), kmsg.NewPtrListTransactionsRequest())
		for _, st := range resp.TransactionStates {
			seen[st.TransactionalID]++
			if s.kafka.coordinator(st.TransactionalID) != int32(broker) {
				t.Errorf("broker %d lists %q", broker, st.TransactionalID)
			}
		}
	}
	if len(seen) != n {
		t.Errorf("%d transactions listed, want %d: %v", len(seen), n, seen)
	}
	open, err := s.kafka.listTransactions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(open) != n || !open[0].holdsShareAcks() || open[0].start.IsZero() {
		t.Errorf("listTransactions: %d, first %+v", len(open), open[0])
	}
}

// kgo's transactional producer and its group session work through the gateway.
func TestTransactionsThroughGateway(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "in"}, Topic{Name: "out"}))
	const n = 300
	produceValues(t, newTestClient(t, s), "in", n)
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(s.Addrs()...), kgo.TransactionalID("eos"), kgo.ConsumerGroup("eos"), kgo.ConsumeTopics("in"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	ctx := testContext(t)
	for done, round := 0, 0; done < n; round++ {
		fetches := session.PollRecords(ctx, 50)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		if err := session.Begin(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { session.Produce(ctx, &kgo.Record{Topic: "out", Value: r.Value}, nil) })
		commit := round%2 == 0
		ended, err := session.End(ctx, kgo.TransactionEndTry(commit))
		if err != nil || ended != commit {
			t.Fatalf("round %d: ended %v, %v; want %v", round, ended, err, commit)
		}
		if commit {
			done += fetches.NumRecords()
		}
	}
	cl := newTestClient(t, s, kgo.ConsumeTopics("out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for v, times := range consumeValues(t, cl, n) {
		if times != 1 {
			t.Errorf("value %q came %d times", v, times)
		}
	}
	ends, err := kadm.NewClient(newTestClient(t, s)).ListCommittedOffsets(ctx, "out")
	if err != nil || ends.Error() != nil {
		t.Fatal(err, ends.Error())
	}
}

// The last epoch of a producer ID is one too many for kfake, which never comes
// back from the timeout of a transaction at it.
func TestProducerEpochsAreUsedUp(t *testing.T) {
	s := startSandbox(t, WithBrokers(1), WithTopics(Topic{Name: "t", Partitions: 1}))
	c := dialCoordinator(t, s, "txn")
	producerID, epoch := c.init(t)
	raise := func(id int64, epoch int16) (int64, int16) {
		resp := c.end(t, 5, id, epoch, false)
		if resp.ErrorCode != 0 {
			t.Fatalf("EndTxn at epoch %d: code %d", epoch, resp.ErrorCode)
		}
		return resp.ProducerID, resp.ProducerEpoch
	}
	id := producerID
	for epoch < exhaustedEpoch-1 {
		if id, epoch = raise(id, epoch); id != producerID {
			t.Fatalf("a new producer ID at epoch %d", epoch)
		}
	}
	c.register(t, id, epoch, 0)
	if next, nextEpoch := raise(id, epoch); next == id || nextEpoch != 0 {
		t.Errorf("producer %d, epoch %d after %d, %d; want a new ID", next, nextEpoch, id, epoch)
	}

	req := testProduce(9, -1, testBatch("v"))
	req.Topics[0].Topic = "t"
	b := req.Topics[0].Partitions[0].Records
	binary.BigEndian.PutUint64(b[43:], 1234)
	binary.BigEndian.PutUint16(b[51:], exhaustedEpoch)
	binary.BigEndian.PutUint32(b[53:], 0)
	sealBatch(b)
	if code := askGateway[*kmsg.ProduceResponse](t, c.rawConn, req).Topics[0].Partitions[0].ErrorCode; code != kerr.InvalidProducerEpoch.Code {
		t.Errorf("a batch at that epoch: code %d, want %d", code, kerr.InvalidProducerEpoch.Code)
	}
	if code := s.kafka.addPartitionsToTxn(t.Context(), "txn", id, exhaustedEpoch, []int32{0}); code == 0 {
		t.Error("a registration at that epoch succeeded")
	}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.Version, add.TransactionalID, add.ProducerID, add.ProducerEpoch = 3, "txn", id, exhaustedEpoch
	if _, err := c.roundTrip(add); err == nil {
		t.Error("AddPartitionsToTxn at that epoch was answered")
	}
	wantAlive(t, s)
}
