package sandbox

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The gateway is what clients connect to. It reads requests frame by frame and
// sends each where it is served: to the share plane, to kfake, or answers it
// itself.
//
// Behavior:
//   - the requests of a connection are handled one after the other, so that the
//     responses keep their order, as a broker does
//   - one request is read ahead: that a client went away is seen while its
//     request is handled
//   - what is not served, in key, version or form, closes the connection it came
//     on and nothing else, as a broker does; nothing is passed on that kmsg
//     cannot decode, since kfake would panic
//
// Most requests go to kfake as the bytes they came in, and most responses come
// back so. The exceptions are in gateway_requests.go and gateway_txn.go.

// sharePlane is what the gateway needs of the share plane.
type sharePlane interface {
	// handle answers one request; an error closes the connection.
	handle(ctx context.Context, c caller, req kmsg.Request) (kmsg.Response, error)
	connectionClosed(c caller)
	close()

	// transactionGuard serialises what starts, stages into and ends a
	// transaction of one ID.
	transactionGuard(transactionalID string) (unlock func())
	// transactionEnded applies an end marker to the records that its producer
	// staged; done is called once that is persisted.
	transactionEnded(ctx context.Context, t endedTxn, done func())
	// pendingCount counts the records in TX_PENDING.
	pendingCount() int

	// logAppended and logMayHaveGrown wake who waits for records.
	logAppended(topic string, partition int32)
	logMayHaveGrown()
	snapshot() planeSnapshot
	now() time.Time
	metrics() map[int32][]mbean // by broker
	pendingRanges() []PendingRange

	// crashLeaders and expireLocksOf let faults strike share-partitions.
	crashLeaders(which leadSelector)
	expireLocksOf(which leadSelector)

	// listGroups lists the share groups that a broker coordinates, -1 for all.
	listGroups(broker int32) []groupListing
	// deleteGroup reports false for an ID that no share group has.
	deleteGroup(ctx context.Context, id string) (code int16, found bool)
}

const (
	// maxFrameBytes is socket.request.max.bytes.
	maxFrameBytes = 100 << 20
	// maxSASLFrameBytes is sasl.server.max.receive.size: what a client may send
	// before it has authenticated.
	maxSASLFrameBytes = 512 << 10
	// maxOtherFrameBytes bounds requests without records. A decoded one takes
	// many times the memory of its frame.
	maxOtherFrameBytes = 10 << 20

	frameStepBytes = 64 << 10 // what is allocated for a frame before any of it has come
	acceptPause    = 50 * time.Millisecond
)

// gateway accepts and serves the connections of clients.
type gateway struct {
	nodes    []*gatewayNode // by node ID
	kafka    *backend
	plane    sharePlane
	features *featureLevels
	versions *apiVersions
	dialect  wire.Dialect
	logf     func(format string, args ...any)

	txns   *txnLog
	faults *faultTable
	byHand handMarkers

	stateTopicID [16]byte // of __share_group_state
	sasl         bool     // clients have to authenticate
	autoCreate   bool     // Metadata may create topics

	ctx    context.Context
	cancel context.CancelFunc

	deletion sync.RWMutex // held while topics are deleted

	mu     sync.Mutex
	closed bool
	conns  map[*gatewayConn]struct{}
	wg     sync.WaitGroup
}

// gatewayNode is one broker as clients see it, and its counterpart in kfake.
type gatewayNode struct {
	id    int32
	outer net.Listener
	inner *pipeListener
}

// serve starts to accept connections.
func (g *gateway) serve() {
	for _, n := range g.nodes {
		g.wg.Go(func() { g.accept(n) })
	}
}

func (g *gateway) accept(n *gatewayNode) {
	for {
		client, err := n.outer.Accept()
		if err != nil {
			if g.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			g.logf("broker %d: accept: %v", n.id, err)
			select { // out of file descriptors, most likely
			case <-time.After(acceptPause):
				continue
			case <-g.ctx.Done():
				return
			}
		}
		c := &gatewayConn{
			g: g, node: n, id: connIDs.Add(1), client: client,
			gone: make(chan struct{}), done: make(chan struct{}), ended: make(chan struct{}),
			sasl: saslSession{required: g.sasl},
		}
		if !g.add(c) {
			_ = client.Close()
			return
		}
	}
}

func (g *gateway) add(c *gatewayConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	if g.conns == nil {
		g.conns = make(map[*gatewayConn]struct{})
	}
	g.conns[c] = struct{}{}
	g.wg.Go(c.serve)
	return true
}

func (g *gateway) remove(c *gatewayConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// close ends all connections and returns when nothing of the gateway runs.
func (g *gateway) close() {
	g.mu.Lock()
	g.closed = true
	g.cancel()
	for _, n := range g.nodes {
		_ = n.outer.Close()
	}
	for c := range g.conns {
		c.abort()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

// gatewayConn is the connection of one client.
type gatewayConn struct {
	g      *gateway
	node   *gatewayNode
	id     uint64
	client net.Conn
	sasl   saslSession
	known  atomic.Bool // the client has authenticated

	gone  chan struct{} // closed when the client is seen to be gone
	done  chan struct{} // closed when serve returns
	ended chan struct{} // closed when the connection has left nothing behind
	lose  bool          // the response to the request being handled, by a fault

	mu       sync.Mutex // of upstream, which abort closes
	upstream *pipeConn  // to kfake; nil until it is needed
	aborted  bool

	out []byte // the response being written
}

// connIDs numbers connections for the life of the process.
var connIDs atomic.Uint64

// request is a request whose header is decoded.
type request struct {
	key, version int16
	correlation  int32
	clientID     string
	body         []byte
	frame        []byte // all of it, length included
}

var (
	errNotServed        = errors.New("not served")
	errNotAuthenticated = errors.New("the client has not authenticated")
	errMalformed        = errors.New("malformed")
)

func (c *gatewayConn) serve() {
	frames := make(chan *frame)
	c.g.wg.Go(func() { c.read(frames) })
	defer func() {
		close(c.done)
		c.abort()
		c.g.remove(c)
		c.g.plane.connectionClosed(c.caller(&request{}))
		close(c.ended)
	}()
	for f := range frames {
		if err := c.handle(f.bytes); err != nil {
			// The frame is not used again: kfake may be about to read it.
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				c.g.logf("broker %d: close the connection of %s: %v", c.node.id, c.client.RemoteAddr(), err)
			}
			return
		}
		f.free()
	}
}

// abort closes the connection in both directions.
func (c *gatewayConn) abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	_ = c.client.Close()
	if c.upstream != nil {
		_ = c.upstream.Close()
	}
}

// read reads frames until the client is gone. What was read before is still
// handled: a client may send its last request and leave.
func (c *gatewayConn) read(frames chan<- *frame) {
	defer close(frames)
	defer close(c.gone)
	r := bufio.NewReaderSize(c.client, 16<<10)
	for {
		f, err := readFrame(r, c.frameLimit)
		if err != nil {
			if errors.Is(err, errMalformed) {
				c.g.logf("broker %d: close the connection of %s: %v", c.node.id, c.client.RemoteAddr(), err)
			}
			return
		}
		select {
		case frames <- f:
		case <-c.done:
			return
		}
	}
}

// frameLimit returns how long a frame that starts with key may be.
func (c *gatewayConn) frameLimit(key int16) int {
	switch {
	case c.sasl.required && !c.known.Load():
		return maxSASLFrameBytes
	case key == int16(kmsg.Produce):
		return maxFrameBytes
	default:
		return maxOtherFrameBytes
	}
}

// frame is a request as it came, in a buffer that is used again.
type frame struct{ bytes []byte }

var framePool = sync.Pool{New: func() any { return new(frame) }}

func (f *frame) free() { framePool.Put(f) }

// readFrame reads one request. The buffer grows with what has arrived: a length
// alone reserves no memory.
func readFrame(r *bufio.Reader, limit func(key int16) int) (*frame, error) {
	head, err := r.Peek(6)
	if err != nil {
		return nil, err
	}
	size := int(int32(binary.BigEndian.Uint32(head)))
	if size < 8 || size > maxFrameBytes || size > limit(int16(binary.BigEndian.Uint16(head[4:]))) {
		return nil, fmt.Errorf("frame of %d bytes: %w", size, errMalformed)
	}
	f := framePool.Get().(*frame)
	buf, total := f.bytes[:0], 4+size
	for len(buf) < total {
		if len(buf) == cap(buf) {
			bigger := make([]byte, len(buf), min(total, max(2*cap(buf), frameStepBytes)))
			copy(bigger, buf)
			buf = bigger
		}
		have, want := len(buf), min(total, cap(buf))
		if _, err := io.ReadFull(r, buf[have:want]); err != nil {
			f.bytes = buf
			f.free()
			return nil, err
		}
		buf = buf[:want]
	}
	f.bytes = buf
	return f, nil
}

// parseRequest decodes the header of a request and returns an empty request of
// its kind.
func parseRequest(frame []byte, newRequest func(key int16) kmsg.Request) (*request, kmsg.Request, error) {
	r := kbin.Reader{Src: frame[4:]}
	req := &request{frame: frame, key: r.Int16(), version: r.Int16(), correlation: r.Int32()}
	clientID := r.NullableString()
	if !r.Ok() {
		return nil, nil, fmt.Errorf("request header: %w", errMalformed)
	}
	if clientID != nil {
		req.clientID = *clientID
	}
	kreq := newRequest(req.key)
	if kreq == nil {
		return nil, nil, fmt.Errorf("api key %d: %w", req.key, errNotServed)
	}
	kreq.SetVersion(req.version)
	if kreq.IsFlexible() && !skipTags(&r) {
		return nil, nil, fmt.Errorf("request header of %s: %w", kmsg.NameForKey(req.key), errMalformed)
	}
	req.body = r.Src
	return req, kreq, nil
}

// skipTags skips the tagged fields of a header; false if they are malformed.
func skipTags(r *kbin.Reader) bool {
	n := r.Uvarint()
	if int64(n) > int64(len(r.Src)) {
		return false
	}
	for ; n > 0 && r.Ok(); n-- {
		r.Uvarint()
		r.Span(int(r.Uvarint()))
	}
	return r.Ok()
}

func (g *gateway) newRequest(key int16) kmsg.Request {
	if key == g.dialect.Key {
		return wire.NewTxnShareAcknowledgeRequest(g.dialect)
	}
	if _, ok := g.versions.apis[key]; !ok {
		return nil
	}
	return kmsg.RequestForKey(key)
}

// rangeOf returns the versions in which a request is served. TxnShareAcknowledge
// is always known to the binary; its handler says whether it is enabled.
func (g *gateway) rangeOf(key int16) apiRange {
	if key == g.dialect.Key {
		return apiRange{0, g.dialect.MaxVersion}
	}
	return g.versions.apis[key]
}

func (c *gatewayConn) handle(frame []byte) error {
	r, req, err := parseRequest(frame, c.g.newRequest)
	if err != nil {
		return err
	}
	if !c.sasl.allows(r.key) {
		return fmt.Errorf("%s: %w", kmsg.NameForKey(r.key), errNotAuthenticated)
	}
	served := c.g.rangeOf(r.key)
	if r.key == int16(kmsg.ApiVersions) && r.version > served.max {
		return c.respond(r, c.g.versions.respond(req.(*kmsg.ApiVersionsRequest), c.node.id))
	}
	if r.version < served.min || r.version > served.max {
		return fmt.Errorf("version %d of api key %d: %w", r.version, r.key, errNotServed)
	}
	if err := req.ReadFrom(r.body); err != nil {
		return fmt.Errorf("version %d of api key %d: %w: %w", r.version, r.key, errMalformed, err)
	}
	if answered, err := c.fault(r, req); answered || err != nil {
		return err
	}
	return c.dispatch(r, req)
}

func (c *gatewayConn) caller(r *request) caller {
	host, _, err := net.SplitHostPort(c.client.RemoteAddr().String())
	if err != nil {
		host = c.client.RemoteAddr().String()
	}
	return caller{
		conn: c.id, broker: c.node.id, principal: c.sasl.principal(),
		clientID: r.clientID, host: host, version: r.version, gone: c.gone,
	}
}

// respond writes a response that the gateway or the share plane made.
func (c *gatewayConn) respond(r *request, resp kmsg.Response) error {
	if err := c.deliver(); err != nil {
		return err
	}
	c.out = appendResponse(c.out[:0], r.correlation, resp)
	_, err := c.client.Write(c.out)
	if cap(c.out) > frameStepBytes {
		c.out = nil
	}
	return err
}

func appendResponse(dst []byte, correlation int32, resp kmsg.Response) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = kbin.AppendInt32(dst, correlation)
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		dst = append(dst, 0) // no tags
	}
	dst = resp.AppendTo(dst)
	binary.BigEndian.PutUint32(dst, uint32(len(dst)-4))
	return dst
}

// appendRequest encodes req anew under the header of r.
func appendRequest(dst []byte, r *request, req kmsg.Request) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, r.frame[4:len(r.frame)-len(r.body)]...)
	dst = req.AppendTo(dst)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

// broker returns the connection to kfake.
func (c *gatewayConn) broker() (*pipeConn, error) {
	if c.upstream != nil {
		return c.upstream, nil
	}
	up, err := c.node.inner.dial(c.g.ctx, c.client.RemoteAddr())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		_ = up.Close()
		return nil, net.ErrClosed
	}
	c.upstream = up
	return up, nil
}

// forward sends a frame to kfake and lends its response, length and header
// included, to fn.
func (c *gatewayConn) forward(frame []byte, fn func(response []byte) error) error {
	up, err := c.broker()
	if err != nil {
		return fmt.Errorf("connect to kfake: %w", err)
	}
	if err := up.post(frame); err != nil {
		return fmt.Errorf("send to kfake: %w", err)
	}
	response, err := up.lend()
	if err != nil {
		return fmt.Errorf("read from kfake: %w", err)
	}
	defer up.release()
	return fn(response)
}

// pass sends a request to kfake and its response to the client, both as they are.
func (c *gatewayConn) pass(r *request) error {
	return c.forward(r.frame, c.send)
}

func (c *gatewayConn) send(response []byte) error {
	if err := c.deliver(); err != nil {
		return err
	}
	_, err := c.client.Write(response)
	return err
}

// exchange sends a frame to kfake and decodes the response, which is valid
// within fn only.
func (c *gatewayConn) exchange(r *request, req kmsg.Request, frame []byte, fn func(kmsg.Response) error) error {
	return c.forward(frame, func(response []byte) error {
		resp, err := decodeResponse(req, r.correlation, response)
		if err != nil {
			return fmt.Errorf("%s from kfake: %w", kmsg.NameForKey(r.key), err)
		}
		return fn(resp)
	})
}
