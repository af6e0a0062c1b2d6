package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Hostile clients. Whatever one sends, its connection is answered or closed, and
// the sandbox serves the next one. A panic in kfake ends the process, which is
// what these tests are to find.

// fuzzTarget is the sandbox of a whole fuzz run. It is in memory: real
// connections would soon use up the ports.
type fuzzTarget struct {
	s       *Sandbox
	network kfake.VirtualNetwork
	topicID [16]byte
}

func newFuzzTarget(f testing.TB) *fuzzTarget {
	f.Helper()
	ft := new(fuzzTarget)
	s, err := Start(f.Context(), WithListen(ft.network.Listen), WithBasePort(9092), WithBrokers(2),
		WithTopics(Topic{Name: "t", Partitions: 2}), WithStatePartitions(2), WithTopicAutoCreation())
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	ft.s = s
	info, _ := s.kafka.topicByName("t")
	ft.topicID = info.id
	return ft
}

func (ft *fuzzTarget) dial(t testing.TB, broker int) net.Conn {
	t.Helper()
	c, err := ft.network.DialContext(t.Context(), "tcp", ft.s.Addrs()[broker])
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	fuzzPatience = 50 * time.Millisecond // for a request that may wait
	fuzzLimit    = time.Minute           // for one that may not
)

// try sends bytes and reads what comes, until the connection is closed or quiet.
func (ft *fuzzTarget) try(t *testing.T, broker int, data []byte) {
	c := ft.dial(t, broker)
	defer func() { _ = c.Close() }()
	go func() {
		_, _ = c.Write(data)
		_, _ = c.Write(fuzzHello) // whose answer says that all before it was handled
	}()
	for {
		_ = c.SetReadDeadline(time.Now().Add(fuzzPatience))
		var head [8]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		size := int32(binary.BigEndian.Uint32(head[:]))
		if size < 4 || size > 64<<20 {
			t.Fatalf("a response of %d bytes", size)
		}
		if _, err := io.CopyN(io.Discard, c, int64(size)-4); err != nil {
			return
		}
		if binary.BigEndian.Uint32(head[4:]) == fuzzCorrelation {
			return
		}
	}
}

const fuzzCorrelation = 0x5eed5eed

var fuzzHello = kmsg.NewRequestFormatter().AppendRequest(nil, kmsg.NewPtrApiVersionsRequest(), fuzzCorrelation)

// wantAlive fails unless both brokers serve a new connection.
func (ft *fuzzTarget) wantAlive(t *testing.T) {
	for broker := range 2 {
		c := ft.dial(t, broker)
		_ = c.SetDeadline(time.Now().Add(fuzzLimit))
		raw := &rawConn{Conn: c, format: kmsg.NewRequestFormatter()}
		for _, req := range []kmsg.Request{kmsg.NewPtrApiVersionsRequest(), kmsg.NewPtrMetadataRequest()} {
			if _, err := raw.roundTrip(req); err != nil {
				t.Fatalf("broker %d afterwards: %v", broker, err)
			}
		}
		_ = c.Close()
	}
}

// FuzzGateway sends bytes: a frame without its length, or all as it is.
func FuzzGateway(f *testing.F) {
	ft := newFuzzTarget(f)
	for _, key := range ft.keys() {
		served := ft.s.gateway.rangeOf(key)
		for _, version := range []int16{served.min, served.max} {
			req := ft.s.gateway.newRequest(key)
			req.SetVersion(version)
			frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("f")).AppendRequest(nil, req, 1)
			f.Add(false, frame[4:])
		}
	}
	f.Add(true, []byte{0x7f, 0xff, 0xff, 0xff, 0, 0})
	f.Fuzz(func(t *testing.T, whole bool, data []byte) {
		if !whole {
			data = append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
		}
		ft.try(t, 0, data)
		ft.wantAlive(t)
	})
}

func (ft *fuzzTarget) keys() []int16 {
	keys := []int16{ft.s.gateway.dialect.Key}
	for key := range ft.s.gateway.versions.apis {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// FuzzGatewayRequests sends requests that are well-formed and make no sense: a
// run of them on one connection, each a request of some key with values made
// from a seed.
func FuzzGatewayRequests(f *testing.F) {
	ft := newFuzzTarget(f)
	keys := ft.keys()
	for i := range keys {
		f.Add(uint64(i), uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64, first uint8) {
		g := &fuzzValues{r: rand.New(rand.NewPCG(seed, uint64(first))), ft: ft}
		var data []byte
		for i := range 4 {
			key := keys[(int(first)+i*g.r.IntN(len(keys)))%len(keys)]
			served := ft.s.gateway.rangeOf(key)
			req := ft.s.gateway.newRequest(key)
			req.SetVersion(served.min + int16(g.r.IntN(int(served.max-served.min)+1)))
			g.fill(reflect.ValueOf(req).Elem(), "", 0)
			g.sober(req)
			data = kmsg.NewRequestFormatter().AppendRequest(data, req, int32(i))
		}
		ft.try(t, g.r.IntN(2), data)
		ft.wantAlive(t)
	})
}

// fuzzValues makes values that are at home in the sandbox, or hostile.
type fuzzValues struct {
	r  *rand.Rand
	ft *fuzzTarget
}

// fuzzStrings are names that mean something somewhere.
var fuzzStrings = []string{
	"", "t", "t", "g", "txn", "m", "0", "1", "*", "x y", "../x", stateTopic, "consumer", "range", "uniform", "share",
	"kafka-cluster", "User:a", "PLAIN", "SCRAM-SHA-256", "-1", "9223372036854775807", "-9223372036854775808", "true",
	"cleanup.policy", "compact", "retention.ms", "segment.bytes", "segment.ms", "max.message.bytes", "log.cleaner.backoff.ms",
	"share.record.lock.sweep.interval.ms", "offsets.retention.check.interval.ms", "group.max.size", "group.min.session.timeout.ms",
	"transaction.max.timeout.ms", "transactional.id.expiration.ms", "max.incremental.fetch.session.cache.slots",
	"offset.retention.ms", "state.log.compact.bytes", "message.timestamp.type", "default.replication.factor",
	"group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms", "connections.max.reauth.ms",
	"share.version", "transaction.version", "producer_byte_rate", "user", "client-id", "(", "[a-z", "interval.ms", "Ongoing",
}

// fuzzNames are what a field of that name needs for a request to get somewhere.
var fuzzNames = map[string][]string{
	"Topic": {"t"}, "Group": {"g", "g2"}, "GroupID": {"g", "g2"}, "Groups": {"g", "g2"}, "GroupIDs": {"g", "g2"},
	"MemberID": {"", "m1", "m2"}, "InstanceID": {"i"}, "TransactionalID": {"txn", "txn2"}, "TransactionID": {"txn"},
	"CoordinatorKey": {"g", "txn"}, "CoordinatorKeys": {"g", "txn"}, "ProtocolType": {"consumer"}, "Protocol": {"range", "uniform"},
	"SubscribedTopicNames": {"t"}, "SubscribedTopicRegex": {"t.*", "("}, "ServerAssignor": {"range", "uniform"},
	"Mechanism": {saslPlain}, "ResourceName": {"", "0", "1", "g", "t"}, "ClientSoftwareName": {"f"}, "ClientSoftwareVersion": {"1"},
	"Feature": {"share.version", "transaction.version"}, "Value": {"0", "-1", "1", "9223372036854775807", "x"},
}

// fuzzNumbers are the same for numbers.
var fuzzNumbers = map[string][]int64{
	"SessionTimeoutMillis": {10_000}, "RebalanceTimeoutMillis": {1, 100}, "TransactionTimeoutMillis": {1, 60_000},
	"ResourceType": {2, 4, 16, 32}, "Op": {0, 1, 2, 3}, "Acks": {-1, 0, 1}, "Partition": {0, 1}, "Partitions": {0, 1},
	"MemberEpoch": {0, -1, -2, 1, 2}, "Generation": {-1, 0, 1, 2}, "PartitionMaxBytes": {1 << 20}, "MaxBytes": {1 << 20},
	"CurrentLeaderEpoch": {-1, 0}, "Timestamp": {-1, -2, -3, -4}, "SessionID": {0, 1, 2}, "SessionEpoch": {-1, 0, 1, 2},
	"NumPartitions": {1, 2}, "ReplicationFactor": {1, -1}, "ProducerEpoch": {0, 1, 2, 3}, "CoordinatorType": {0, 1, 2},
	"ShareSessionEpoch": {0, 1, 2, -1}, "MaxRecords": {10}, "AcknowledgeTypes": {0, 1, 2, 3, 4}, "UpgradeType": {1, 2, 3},
}

// fuzzProducerID is what kfake gives the transactional ID "txn".
func fuzzProducerID() int64 {
	h := fnv.New64()
	_, _ = h.Write([]byte("txn"))
	return int64(h.Sum64() & math.MaxInt64)
}

func (g *fuzzValues) number(name string, bits int) int64 {
	if g.r.IntN(3) > 0 {
		if name == "ProducerID" {
			return fuzzProducerID()
		}
		if known := fuzzNumbers[name]; known != nil {
			return known[g.r.IntN(len(known))]
		}
	}
	return g.int(bits)
}

func (g *fuzzValues) text(name string) string {
	if known := fuzzNames[name]; known != nil && g.r.IntN(3) > 0 {
		return known[g.r.IntN(len(known))]
	}
	return fuzzStrings[g.r.IntN(len(fuzzStrings))]
}

func (g *fuzzValues) int(bits int) int64 {
	switch g.r.IntN(12) {
	case 0:
		return math.MaxInt64 >> (64 - bits)
	case 1:
		return math.MinInt64 >> (64 - bits)
	case 2:
		return g.r.Int64() >> (64 - bits)
	case 3, 4:
		return -1
	case 5:
		return int64(g.r.IntN(100))
	default:
		return int64(g.r.IntN(4))
	}
}

func (g *fuzzValues) fill(v reflect.Value, name string, depth int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			switch field := v.Type().Field(i); field.Name {
			case "Version", "Dialect", "UnknownTags":
			default:
				g.fill(v.Field(i), field.Name, depth)
			}
		}
	case reflect.Pointer:
		if g.r.IntN(4) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			g.fill(v.Elem(), name, depth)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(g.bytes(name))
			return
		}
		n := [...]int{0, 1, 1, 1, 2, 3}[g.r.IntN(6)]
		if n == 0 && g.r.IntN(2) == 0 {
			return // nil
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			g.fill(v.Index(i), name, depth+1)
		}
	case reflect.Array:
		switch g.r.IntN(3) {
		case 0:
			v.Set(reflect.ValueOf(g.ft.topicID))
		case 1:
			v.Set(reflect.ValueOf(g.ft.s.gateway.stateTopicID))
		}
	case reflect.String:
		v.SetString(g.text(name))
	case reflect.Bool:
		v.SetBool(g.r.IntN(2) == 0)
	case reflect.Int8:
		v.SetInt(g.number(name, 8))
	case reflect.Int16:
		v.SetInt(g.number(name, 16))
	case reflect.Int32:
		v.SetInt(g.number(name, 32))
	case reflect.Int64:
		v.SetInt(g.number(name, 64))
	case reflect.Float64:
		v.SetFloat([...]float64{0, -1, 1e300, math.NaN(), math.Inf(1)}[g.r.IntN(5)])
	case reflect.Uint32:
		v.SetUint(uint64(g.r.Uint32()))
	default:
		panic(fmt.Sprintf("%s is a %s", name, v.Kind()))
	}
}

func (g *fuzzValues) bytes(name string) []byte {
	if name != "Records" || g.r.IntN(4) == 0 {
		b := make([]byte, g.r.IntN(80))
		for i := range b {
			b[i] = byte(g.r.Uint32())
		}
		return b
	}
	b := testBatch("value")
	if g.r.IntN(2) == 0 { // transactional
		binary.BigEndian.PutUint16(b[21:], 1<<4)
		binary.BigEndian.PutUint64(b[43:], uint64(fuzzProducerID()))
		binary.BigEndian.PutUint16(b[51:], uint16(g.r.IntN(3)))
		binary.BigEndian.PutUint32(b[53:], 0)
	}
	for range g.r.IntN(3) { // a field of the header, in a batch that is sealed again
		at := [...]int{12, 16, 21, 22, 23, 27, 35, 43, 51, 53, 57}[g.r.IntN(11)]
		binary.BigEndian.PutUint16(b[at:], uint16(g.int(16)))
	}
	sealBatch(b)
	return b
}

// sober takes out of a request what only makes the test slow.
func (g *fuzzValues) sober(req kmsg.Request) {
	short := func(ms *int32) { *ms = min(*ms, 5) }
	switch req := req.(type) {
	case *kmsg.FetchRequest:
		short(&req.MaxWaitMillis)
	case *kmsg.ShareFetchRequest:
		short(&req.MaxWaitMillis)
	case *kmsg.CreateTopicsRequest:
		for i := range req.Topics {
			req.Topics[i].NumPartitions = min(req.Topics[i].NumPartitions, 3)
		}
	case *kmsg.CreatePartitionsRequest:
		for i := range req.Topics {
			req.Topics[i].Count = min(req.Topics[i].Count, 5)
		}
	}
}

// TestHostileRequests is a short run of FuzzGatewayRequests, with several
// clients at once.
func TestHostileRequests(t *testing.T) {
	ft := newFuzzTarget(t)
	keys := ft.keys()
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			g := &fuzzValues{r: rand.New(rand.NewPCG(uint64(client), 1)), ft: ft}
			for i := range 300 {
				key := keys[g.r.IntN(len(keys))]
				served := ft.s.gateway.rangeOf(key)
				req := ft.s.gateway.newRequest(key)
				req.SetVersion(served.min + int16(g.r.IntN(int(served.max-served.min)+1)))
				g.fill(reflect.ValueOf(req).Elem(), "", 0)
				g.sober(req)
				ft.try(t, i%2, kmsg.NewRequestFormatter().AppendRequest(nil, req, 1))
			}
		})
	}
	wg.Wait()
	ft.wantAlive(t)
}

// What fuzzing has found that kfake panics on. Each is answered with Kafka's code.
func TestWhatKfakePanicsOn(t *testing.T) {
	s := startSandbox(t, WithBrokers(1), WithTopics(Topic{Name: "t", Partitions: 1}))
	join := func(protocols ...string) *kmsg.JoinGroupRequest {
		req := kmsg.NewPtrJoinGroupRequest()
		req.Version, req.Group, req.ProtocolType = 3, "g", "consumer"
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 1
		for _, name := range protocols {
			p := kmsg.NewJoinGroupRequestProtocol()
			p.Name = name
			req.Protocols = append(req.Protocols, p)
		}
		return req
	}
	interval := func(name, value string) *kmsg.IncrementalAlterConfigsRequest {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		rr := kmsg.NewIncrementalAlterConfigsRequestResource()
		rr.ResourceType = kmsg.ConfigResourceTypeBroker
		rc := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		rc.Name, rc.Value = name, &value
		rr.Configs = append(rr.Configs, rc)
		topic := kmsg.NewIncrementalAlterConfigsRequestResource() // starts the ticker
		topic.ResourceType, topic.ResourceName = kmsg.ConfigResourceTypeTopic, "t"
		retention := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		retention.Name, retention.Value = "retention.ms", kmsg.StringPtr("1000000")
		topic.Configs = append(topic.Configs, retention)
		req.Resources = append(req.Resources, topic, rr)
		return req
	}
	set := func(name, value string) *kmsg.AlterConfigsRequest {
		req := kmsg.NewPtrAlterConfigsRequest()
		rr := kmsg.NewAlterConfigsRequestResource()
		rr.ResourceType = kmsg.ConfigResourceTypeBroker
		rc := kmsg.NewAlterConfigsRequestResourceConfig()
		rc.Name, rc.Value = name, &value
		rr.Configs = append(rr.Configs, rc)
		req.Resources = append(req.Resources, rr)
		return req
	}
	unknown := testProduce(13, -1, testBatch("v"))
	unknown.Topics[0].TopicID = [16]byte{1}
	other := unknown.Topics[0]
	other.TopicID = [16]byte{2}
	unknown.Topics = append(unknown.Topics, other)
	wrongAcks := testProduce(13, 7, testBatch("v"))
	info, _ := s.kafka.topicByName("t")
	wrongAcks.Topics[0].TopicID = info.id
	wrongAcks.Topics = append(wrongAcks.Topics, other)

	joinCode := func(r kmsg.Response) int16 { return r.(*kmsg.JoinGroupResponse).ErrorCode }
	produceCode := func(r kmsg.Response) int16 { return r.(*kmsg.ProduceResponse).Topics[1].Partitions[0].ErrorCode }
	incrementalCode := func(r kmsg.Response) int16 {
		return r.(*kmsg.IncrementalAlterConfigsResponse).Resources[1].ErrorCode
	}
	alterCode := func(r kmsg.Response) int16 { return r.(*kmsg.AlterConfigsResponse).Resources[0].ErrorCode }
	tests := []struct {
		name string
		req  kmsg.Request
		code func(kmsg.Response) int16
		want *kerr.Error
	}{
		{"no protocols", join(), joinCode, kerr.InconsistentGroupProtocol},
		{"a protocol twice", join("range", "range"), joinCode, kerr.InconsistentGroupProtocol},
		{"two unknown topic IDs", unknown, produceCode, kerr.UnknownTopicID},
		{"wrong acks for two topic IDs", wrongAcks, produceCode, kerr.InvalidRequiredAcks},
		{"an interval of nothing", interval("log.cleaner.backoff.ms", "0"), incrementalCode, kerr.InvalidConfig},
		{"an interval that overflows", interval("log.cleaner.backoff.ms", "9223372036854775807"), incrementalCode, kerr.InvalidConfig},
		{"a negative interval", set("offsets.retention.check.interval.ms", "-1"), alterCode, kerr.InvalidConfig},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := dialRaw(t, s, 0)
			if code := tt.code(askGateway[kmsg.Response](t, c, tt.req)); code != tt.want.Code {
				t.Errorf("code %d, want %s", code, tt.want.Message)
			}
			wantAlive(t, s)
		})
	}
}

// Every key that is advertised is answered when asked sensibly: no request is
// advertised that nobody serves.
func TestEveryAdvertisedKeyIsServed(t *testing.T) {
	for _, dialect := range wire.Dialects() {
		s := startSandbox(t, WithDialect(dialect), WithTopics(Topic{Name: "t"}))
		for _, k := range describeBroker(t, s, 0, 4).ApiKeys {
			for version := k.MinVersion; version <= k.MaxVersion; version++ {
				req := s.gateway.newRequest(k.ApiKey)
				req.SetVersion(version)
				if sensible, ok := req.(*kmsg.ApiVersionsRequest); ok {
					sensible.ClientSoftwareName, sensible.ClientSoftwareVersion = "t", "1"
				}
				if p, ok := req.(*kmsg.ProduceRequest); ok {
					p.Acks = -1
				}
				if _, err := dialRaw(t, s, 0).roundTrip(req); err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("%s: version %d of key %d: %v", dialect.Name, version, k.ApiKey, err)
				} else if err != nil {
					t.Errorf("%s: version %d of %s closes the connection", dialect.Name, version, kmsg.NameForKey(k.ApiKey))
				}
			}
		}
	}
}
