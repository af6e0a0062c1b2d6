package wiretap

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Tap hears all connections that it is put into. It is safe for concurrent use.
type Tap struct {
	mu        sync.Mutex
	ignored   string
	exchanges []*Exchange
	broken    []error // frames that could not be read
}

// Exchange is a request and its response.
type Exchange struct {
	Addr     string // of the broker
	ClientID string
	Key      kmsg.Key
	Version  int16
	Request  kmsg.Request  // nil: kmsg does not know the key
	Response kmsg.Response // nil: none has come yet, or it could not be read
}

// New returns a tap that has heard nothing.
func New() *Tap { return new(Tap) }

// Ignore makes the tap deaf to the client that calls itself so.
func (t *Tap) Ignore(clientID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ignored = clientID
}

// Dial dials TCP; it is for cluster.Config.Dialer. Where there is TLS, give what
// is inside of it to Client.
func (t *Tap) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return t.Client(conn), nil
}

// Client hears what passes conn, the client's end of a connection.
func (t *Tap) Client(conn net.Conn) net.Conn {
	return &client{heard{Conn: conn, tap: t, broker: conn.RemoteAddr().String(), waiting: make(map[int32]*Exchange)}}
}

// Listen opens a listener for a broker, of which all connections are heard; it is
// for sandbox.WithListen.
func (t *Tap) Listen(network, address string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	return &listener{l, t}, nil
}

type listener struct {
	net.Listener
	tap *Tap
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &broker{heard{Conn: conn, tap: l.tap, broker: conn.LocalAddr().String(), waiting: make(map[int32]*Exchange)}}, nil
}

// Exchanges returns what was heard, in the order of the requests.
func (t *Tap) Exchanges() []Exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Exchange, 0, len(t.exchanges))
	for _, e := range t.exchanges {
		out = append(out, *e)
	}
	return out
}

// Reset forgets what was heard.
func (t *Tap) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exchanges = nil
}

// Count returns how many requests of each kind were heard.
func (t *Tap) Count() map[kmsg.Key]int {
	out := make(map[kmsg.Key]int)
	for _, e := range t.Exchanges() {
		out[e.Key]++
	}
	return out
}

// mayRead are the requests that change nothing and acquire nothing, as long as
// ReadOnly finds no more to say against them.
func mayRead() []kmsg.Key {
	return []kmsg.Key{
		kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate,
		kmsg.Metadata, kmsg.DescribeCluster, kmsg.DescribeConfigs, kmsg.FindCoordinator,
		kmsg.ListTransactions, kmsg.DescribeTransactions, kmsg.DescribeProducers,
		kmsg.ListGroups, kmsg.ShareGroupDescribe, kmsg.DescribeShareGroupOffsets,
		kmsg.ReadShareGroupState, kmsg.ReadShareGroupStateSummary,
		kmsg.Fetch, kmsg.ListOffsets,
		// kgo tells brokers how clients fare, if they ask for it (KIP-714).
		kmsg.GetTelemetrySubscriptions, kmsg.PushTelemetry,
	}
}

// ReadOnly fails the test if a request was heard that changes the cluster or
// acquires records, or may do so: Metadata that creates topics, FindCoordinator of
// share coordinators, which creates their topic, and ReadShareGroupState with
// another leader epoch than the one that ReadShareGroupStateSummary told before.
func (t *Tap) ReadOnly(tb testing.TB) {
	tb.Helper()
	for _, v := range t.violations() {
		tb.Error(v)
	}
}

func (t *Tap) violations() []string {
	t.mu.Lock()
	var out []string
	for _, err := range t.broken {
		out = append(out, err.Error())
	}
	t.mu.Unlock()
	epochs := make(map[sharePartition]int32)
	allowed := mayRead()
	for _, e := range t.Exchanges() {
		if !slices.Contains(allowed, e.Key) {
			out = append(out, fmt.Sprintf("%s (key %d) was sent to %s", e.Key.Name(), e.Key, e.Addr))
			continue
		}
		switch req := e.Request.(type) {
		case *kmsg.MetadataRequest:
			if req.AllowAutoTopicCreation {
				out = append(out, "Metadata was sent that creates topics")
			}
		case *kmsg.FindCoordinatorRequest:
			if req.CoordinatorType == coordinatorTypeShare {
				out = append(out, "FindCoordinator was sent for share coordinators")
			}
		case *kmsg.ReadShareGroupStateSummaryRequest:
			learn(epochs, e)
		case *kmsg.ReadShareGroupStateRequest:
			out = append(out, guessed(epochs, req)...)
		}
	}
	return out
}

const coordinatorTypeShare = 2

type sharePartition struct {
	group     string
	topicID   [16]byte
	partition int32
}

// learn notes the leader epochs that a coordinator told.
func learn(epochs map[sharePartition]int32, e Exchange) {
	resp, ok := e.Response.(*kmsg.ReadShareGroupStateSummaryResponse)
	if !ok {
		return
	}
	group := e.Request.(*kmsg.ReadShareGroupStateSummaryRequest).GroupID
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode == 0 {
				epochs[sharePartition{group, t.TopicID, p.Partition}] = p.LeaderEpoch
			}
		}
	}
}

func guessed(epochs map[sharePartition]int32, req *kmsg.ReadShareGroupStateRequest) []string {
	var out []string
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			told, ok := epochs[sharePartition{req.GroupID, t.TopicID, p.Partition}]
			if !ok || told != p.LeaderEpoch {
				out = append(out, fmt.Sprintf("ReadShareGroupState was sent with leader epoch %d for partition %d of group %q; told was %d (%t)", p.LeaderEpoch, p.Partition, req.GroupID, told, ok))
			}
		}
	}
	return out
}

// heard is a connection that is listened to.
type heard struct {
	net.Conn
	tap    *Tap
	broker string // address

	requests, responses frames
	mu                  sync.Mutex
	waiting             map[int32]*Exchange // by correlation ID
}

// client is the client's end.
type client struct{ heard }

// Write implements net.Conn.
func (c *client) Write(b []byte) (int, error) {
	// Before it is sent: the response may be read by another goroutine at once.
	c.requests.add(b, c.request)
	return c.Conn.Write(b)
}

// Read implements net.Conn.
func (c *client) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.responses.add(b[:n], c.response)
	return n, err
}

// broker is the broker's end.
type broker struct{ heard }

// Write implements net.Conn.
func (c *broker) Write(b []byte) (int, error) {
	c.responses.add(b, c.response)
	return c.Conn.Write(b)
}

// Read implements net.Conn.
func (c *broker) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.requests.add(b[:n], c.request)
	return n, err
}

func (c *heard) request(frame []byte) {
	r := kbin.Reader{Src: frame}
	key, version, correlation := r.Int16(), r.Int16(), r.Int32()
	e := &Exchange{Addr: c.broker, Key: kmsg.Key(key), Version: version}
	if id := r.NullableString(); id != nil {
		e.ClientID = *id
	}
	if c.tap.ignores(e.ClientID) {
		return
	}
	if req := kmsg.RequestForKey(key); req != nil {
		req.SetVersion(version)
		if req.IsFlexible() {
			kmsg.SkipTags(&r)
		}
		if err := req.ReadFrom(r.Src); err != nil {
			c.tap.fail(fmt.Errorf("%s v%d: %w", e.Key.Name(), version, err))
		}
		e.Request = req
	}
	c.mu.Lock()
	c.waiting[correlation] = e
	c.mu.Unlock()
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	c.tap.exchanges = append(c.tap.exchanges, e)
}

func (c *heard) response(frame []byte) {
	r := kbin.Reader{Src: frame}
	correlation := r.Int32()
	c.mu.Lock()
	e := c.waiting[correlation]
	delete(c.waiting, correlation)
	c.mu.Unlock()
	if e == nil || e.Request == nil {
		return
	}
	resp := e.Request.ResponseKind()
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		kmsg.SkipTags(&r)
	}
	if err := resp.ReadFrom(slices.Clone(r.Src)); err != nil {
		return // in version 0, since the broker does not know the version that was sent
	}
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	e.Response = resp
}

func (t *Tap) ignores(clientID string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ignored != "" && clientID == t.ignored
}

func (t *Tap) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = append(t.broken, err)
}

// frames cuts a stream into messages.
type frames struct{ buf []byte }

func (f *frames) add(b []byte, each func([]byte)) {
	f.buf = append(f.buf, b...)
	for len(f.buf) >= 4 {
		size := int(binary.BigEndian.Uint32(f.buf))
		if len(f.buf)-4 < size {
			return
		}
		each(slices.Clone(f.buf[4 : 4+size]))
		f.buf = f.buf[4+size:]
	}
}
