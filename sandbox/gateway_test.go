package sandbox

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// rawConn is a connection to the gateway that sends what it is told.
type rawConn struct {
	net.Conn
	format      *kmsg.RequestFormatter
	correlation int32
}

func dialRaw(t testing.TB, s *Sandbox, broker int) *rawConn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addrs()[broker])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(5 * time.Minute))
	return &rawConn{Conn: c, format: kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw"))}
}

// exchangeRaw sends a frame without its length and returns the answer without it.
func (c *rawConn) exchangeRaw(frame []byte) ([]byte, error) {
	if err := c.sendRaw(frame); err != nil {
		return nil, err
	}
	return c.readRaw()
}

func (c *rawConn) sendRaw(frame []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}

func (c *rawConn) readRaw() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	raw := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c, raw)
	return raw, err
}

func (c *rawConn) roundTrip(req kmsg.Request) (kmsg.Response, error) {
	c.correlation++
	raw, err := c.exchangeRaw(c.format.AppendRequest(nil, req, c.correlation)[4:])
	if err != nil {
		return nil, err
	}
	return decodeResponse(req, c.correlation, append(binary.BigEndian.AppendUint32(nil, uint32(len(raw))), raw...))
}

// askGateway sends a request to a broker through the gateway.
func askGateway[R kmsg.Response](t testing.TB, c *rawConn, req kmsg.Request) R {
	t.Helper()
	resp, err := c.roundTrip(req)
	if err != nil {
		t.Fatalf("%s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return resp.(R)
}

// wantAlive fails unless a new connection is served.
func wantAlive(t testing.TB, s *Sandbox) {
	t.Helper()
	if resp := describeBroker(t, s, 0, 4); resp.ErrorCode != 0 {
		t.Fatalf("ApiVersions: code %d", resp.ErrorCode)
	}
}

// wantClosed fails unless the broker has closed the connection.
func wantClosed(t testing.TB, c net.Conn) {
	t.Helper()
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	if err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("read: %v, want the connection closed", err)
	}
}

// What a broker closes the connection for, the gateway does; and it lives on.
func TestGatewayClosesConnection(t *testing.T) {
	s := startSandbox(t, WithBrokers(1))
	header := func(key, version int16) []byte {
		b := binary.BigEndian.AppendUint16(nil, uint16(key))
		b = binary.BigEndian.AppendUint16(b, uint16(version))
		return append(b, 0, 0, 0, 1, 0xff, 0xff) // correlation ID, no client ID
	}
	frame := func(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	tests := []struct {
		name  string
		bytes []byte
	}{
		{"length 0", []byte{0, 0, 0, 0, 0, 0}},
		{"negative length", []byte{0xff, 0xff, 0xff, 0xff, 0, 0}},
		{"2 GiB length", []byte{0x7f, 0xff, 0xff, 0xff, 0, 0}},
		{"length above socket.request.max.bytes", append(binary.BigEndian.AppendUint32(nil, maxFrameBytes+1), 0, 0)},
		{"HTTP", []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")},
		{"TLS client hello", []byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}},
		{"unknown key", frame(header(1234, 0))},
		{"negative key", frame(header(-1, 0))},
		{"key of a controller", frame(header(52, 0))}, // Vote
		{"key of the draft dialect", frame(append(header(95, 0), 0))},
		{"key that 4.4 has", frame(append(header(94, 0), 0))},
		{"version above the range", frame(header(3, 99))},
		{"version below the range", frame(header(0, 0))},
		{"negative version", frame(header(18, -1))},
		{"share fetch of the early access", frame(append(header(78, 0), 0))},
		{"header cut off", frame([]byte{0, 3, 0, 1, 0, 0, 0, 1})},
		{"client ID longer than the frame", frame([]byte{0, 3, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 'a'})},
		{"tags of the header longer than the frame", frame(append(header(3, 12), 1, 0, 200, 1))},
		{"endless tags", frame(append(header(3, 12), 0xff, 0xff, 0xff, 0xff, 0x0f))},
		{"body cut off", frame(append(header(3, 12), 0, 5))},
		{"huge array", frame(append(header(3, 1), 0x7f, 0xff, 0xff, 0xff))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := dialRaw(t, s, 0)
			if _, err := c.Write(tt.bytes); err != nil {
				t.Fatal(err)
			}
			wantClosed(t, c)
			wantAlive(t, s)
		})
	}
}

// A client may send its requests without waiting; the answers come in order.
func TestGatewayKeepsOrder(t *testing.T) {
	s := startSandbox(t, WithBrokers(1), WithTopics(Topic{Name: "t", Partitions: 1}))
	c := dialRaw(t, s, 0)
	fetch := kmsg.NewPtrFetchRequest() // waits, and must not be overtaken
	fetch.Version, fetch.MaxWaitMillis, fetch.MinBytes, fetch.MaxBytes = 12, 200, 1, 1000
	rt := kmsg.NewFetchRequestTopic()
	rt.Topic = "t"
	rt.Partitions = append(rt.Partitions, kmsg.NewFetchRequestTopicPartition())
	rt.Partitions[0].PartitionMaxBytes = 1000
	fetch.Topics = append(fetch.Topics, rt)
	versions := kmsg.NewPtrApiVersionsRequest()
	heartbeat := kmsg.NewPtrShareGroupDescribeRequest()
	heartbeat.Version = 1
	reqs := []kmsg.Request{fetch, versions, kmsg.NewPtrMetadataRequest(), heartbeat, versions}
	for i, req := range reqs {
		if err := c.sendRaw(c.format.AppendRequest(nil, req, int32(i))[4:]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range reqs {
		raw, err := c.readRaw()
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if got := int(binary.BigEndian.Uint32(raw)); got != i {
			t.Fatalf("answer %d is to request %d", i, got)
		}
	}
}

// The last request of a client that leaves at once is still done, as with acks 0.
func TestGatewayHandlesWhatAClientLeaves(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t", Partitions: 1}))
	const n = 100
	for i := range n {
		cl, err := kgo.NewClient(kgo.SeedBrokers(s.Addrs()...), kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(testContext(t), &kgo.Record{Topic: "t", Value: []byte{byte(i)}}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		cl.Close()
	}
	cl := newTestClient(t, s, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if got := consumeValues(t, cl, n); len(got) != n {
		t.Errorf("%d records, want %d", len(got), n)
	}
}

func TestGatewayRefusesWhatKfakeDoesNot(t *testing.T) {
	s := startSandbox(t, WithBrokers(1), WithTopics(Topic{Name: "t", Partitions: 1}))
	c := dialRaw(t, s, 0)

	t.Run("append to the state topic", func(t *testing.T) {
		for _, version := range []int16{9, 13} {
			req := testProduce(version, -1, testBatch("v"))
			own := req.Topics[0]
			own.Topic, own.TopicID = stateTopic, s.gateway.stateTopicID
			other := req.Topics[0]
			other.Topic = "t"
			info, _ := s.kafka.topicByName("t")
			other.TopicID = info.id
			req.Topics = []kmsg.ProduceRequestTopic{own, other}
			codes := make(map[string]int16)
			for _, rt := range askGateway[*kmsg.ProduceResponse](t, c, req).Topics {
				name := rt.Topic
				if version >= 13 {
					known, _ := s.kafka.topicByID(rt.TopicID)
					name = known.name
				}
				codes[name] = rt.Partitions[0].ErrorCode
			}
			if codes[stateTopic] != kerr.InvalidTopicException.Code || codes["t"] != 0 || len(codes) != 2 {
				t.Errorf("v%d: codes %v", version, codes)
			}
		}
	})

	t.Run("batch that counts records it does not have", func(t *testing.T) {
		before, _ := s.kafka.partition("t", 0)
		for _, count := range []int32{-1, 0, 2, 1 << 30} {
			b := testBatch("v")
			binary.BigEndian.PutUint32(b[23:], uint32(count-1))
			binary.BigEndian.PutUint32(b[57:], uint32(count))
			sealBatch(b)
			req := testProduce(9, -1, b)
			req.Topics[0].Topic = "t"
			resp := askGateway[*kmsg.ProduceResponse](t, c, req)
			if code := resp.Topics[0].Partitions[0].ErrorCode; code != kerr.InvalidRecord.Code {
				t.Errorf("count %d: code %d, want %d", count, code, kerr.InvalidRecord.Code)
			}
		}
		if after, _ := s.kafka.partition("t", 0); after != before {
			t.Errorf("the partition went from %+v to %+v", before, after)
		}
	})

	t.Run("topics", func(t *testing.T) {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.Version = 7
		want := map[string]int16{
			"good": 0, "../../etc": 17, "..": 17, "": 17, "a b": 17,
			"zero": kerr.InvalidPartitions.Code, "none": kerr.InvalidReplicationFactor.Code,
		}
		for name := range want {
			rt := kmsg.NewCreateTopicsRequestTopic()
			rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, 1, 1
			switch name {
			case "zero":
				rt.NumPartitions = 0
			case "none":
				rt.ReplicationFactor = 0
			}
			req.Topics = append(req.Topics, rt)
		}
		got := make(map[string]int16)
		for _, rt := range askGateway[*kmsg.CreateTopicsResponse](t, c, req).Topics {
			got[rt.Topic] = rt.ErrorCode
		}
		for name, code := range want {
			if g, ok := got[name]; !ok || g != code {
				t.Errorf("topic %q: code %d, want %d", name, g, code)
			}
		}

		many := kmsg.NewPtrCreateTopicsRequest()
		many.Version = 7
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = "many", 2_000_000_000, 1
		many.Topics = append(many.Topics, rt)
		if code := askGateway[*kmsg.CreateTopicsResponse](t, c, many).Topics[0].ErrorCode; code != kerr.PolicyViolation.Code {
			t.Errorf("2000000000 partitions: code %d, want %d", code, kerr.PolicyViolation.Code)
		}
	})

	t.Run("changes of the state topic", func(t *testing.T) {
		del := kmsg.NewPtrDeleteTopicsRequest()
		del.Version = 6
		for _, name := range []string{stateTopic, "good"} {
			rt := kmsg.NewDeleteTopicsRequestTopic()
			rt.Topic = kmsg.StringPtr(name)
			del.Topics = append(del.Topics, rt)
		}
		byID := kmsg.NewDeleteTopicsRequestTopic()
		byID.TopicID = s.gateway.stateTopicID
		del.Topics = append(del.Topics, byID)
		for _, rt := range askGateway[*kmsg.DeleteTopicsResponse](t, c, del).Topics {
			want := kerr.PolicyViolation.Code
			if rt.Topic != nil && *rt.Topic == "good" {
				want = 0
			}
			if rt.ErrorCode != want {
				t.Errorf("delete %v: code %d, want %d", rt.Topic, rt.ErrorCode, want)
			}
		}
		if _, ok := s.kafka.topicByName("good"); ok {
			t.Error("a deleted topic is still found")
		}

		grow := kmsg.NewPtrCreatePartitionsRequest()
		grow.Version = 3
		for _, name := range []string{stateTopic, "t"} {
			rt := kmsg.NewCreatePartitionsRequestTopic()
			rt.Topic, rt.Count = name, 60
			grow.Topics = append(grow.Topics, rt)
		}
		for _, rt := range askGateway[*kmsg.CreatePartitionsResponse](t, c, grow).Topics {
			want := int16(0)
			if rt.Topic == stateTopic {
				want = kerr.PolicyViolation.Code
			}
			if rt.ErrorCode != want {
				t.Errorf("grow %s: code %d, want %d", rt.Topic, rt.ErrorCode, want)
			}
		}
		if info, _ := s.kafka.topicByName("t"); info.partitions != 60 {
			t.Errorf("%d partitions after growing, want 60", info.partitions)
		}

		trim := kmsg.NewPtrDeleteRecordsRequest()
		trim.Version = 2
		rt := kmsg.NewDeleteRecordsRequestTopic()
		rt.Topic = stateTopic
		rt.Partitions = append(rt.Partitions, kmsg.NewDeleteRecordsRequestTopicPartition())
		trim.Topics = append(trim.Topics, rt)
		if code := askGateway[*kmsg.DeleteRecordsResponse](t, c, trim).Topics[0].Partitions[0].ErrorCode; code != kerr.InvalidTopicException.Code {
			t.Errorf("delete records: code %d, want %d", code, kerr.InvalidTopicException.Code)
		}
	})
}

// testBatch is a batch of one record.
func testBatch(value string) []byte {
	var b batchBuilder
	b.add([]byte(value))
	return b.finish(time.Now().UnixMilli())
}

func testProduce(version, acks int16, batch []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks = version, acks
	rt := kmsg.NewProduceRequestTopic()
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Records = batch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return req
}

func TestAcksAt(t *testing.T) {
	long := string(make([]byte, 300))
	for _, id := range []*string{nil, kmsg.StringPtr(""), kmsg.StringPtr("id"), &long} {
		for version := int16(3); version <= 13; version++ {
			req := testProduce(version, 0, nil)
			req.TransactionID = id
			body := req.AppendTo(nil)
			binary.BigEndian.PutUint16(body[acksAt(req):], acksLeader)
			got := kmsg.NewPtrProduceRequest()
			got.Version = version
			if err := got.ReadFrom(body); err != nil {
				t.Fatal(err)
			}
			if got.Acks != acksLeader || got.TimeoutMillis != req.TimeoutMillis || (got.TransactionID == nil) != (id == nil) {
				t.Errorf("v%d, transactional ID %v: %+v", version, id, got)
			}
		}
	}
}

// Metadata names the gateway, and the state topic is internal.
func TestMetadataNamesTheGateway(t *testing.T) {
	s := startSandbox(t)
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	resp := askGateway[*kmsg.MetadataResponse](t, dialRaw(t, s, 0), req)
	if resp.ClusterID == nil || *resp.ClusterID != s.ClusterID() || len(s.ClusterID()) != 22 {
		t.Errorf("cluster ID %v, want %q", resp.ClusterID, s.ClusterID())
	}
	for i, b := range resp.Brokers {
		addr := net.JoinHostPort(b.Host, fmtPort(b.Port))
		if b.NodeID != int32(i) || addr != s.Addrs()[i] {
			t.Errorf("broker %d is at %s, want %s", b.NodeID, addr, s.Addrs()[i])
		}
	}
	internal := false
	for _, rt := range resp.Topics {
		if rt.Topic != nil && *rt.Topic == stateTopic {
			internal = rt.IsInternal && len(rt.Partitions) == defaultStatePartitions
		}
	}
	if !internal {
		t.Errorf("%s is not listed as an internal topic of %d partitions", stateTopic, defaultStatePartitions)
	}
}

func TestFindShareCoordinator(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t"}))
	info, _ := s.kafka.topicByName("t")
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.Version, req.CoordinatorType = 6, 2
	keys := []string{wire.ShareCoordinatorKey("g1", info.id, 0), wire.ShareCoordinatorKey("g1", info.id, 5), "g1"}
	req.CoordinatorKeys = keys
	resp := askGateway[*kmsg.FindCoordinatorResponse](t, dialRaw(t, s, 1), req)
	if len(resp.Coordinators) != len(keys) {
		t.Fatalf("%d answers to %d keys", len(resp.Coordinators), len(keys))
	}
	for i, partition := range []int32{0, 5} {
		n := wire.ShareStatePartition("g1", info.id, partition, defaultStatePartitions)
		want, _ := s.kafka.partition(stateTopic, n)
		got := resp.Coordinators[i]
		if got.ErrorCode != 0 || got.NodeID != want.leader || net.JoinHostPort(got.Host, fmtPort(got.Port)) != s.Addrs()[want.leader] {
			t.Errorf("key %s: %+v, want the leader of %s-%d, which is %d", got.Key, got, stateTopic, n, want.leader)
		}
	}
	if code := resp.Coordinators[2].ErrorCode; code != kerr.InvalidRequest.Code {
		t.Errorf("key %q: code %d, want %d", keys[2], code, kerr.InvalidRequest.Code)
	}
}
