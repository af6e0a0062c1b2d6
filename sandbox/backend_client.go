package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokerClient sends the sandbox's own requests to the brokers of kfake, past
// the gateway. It keeps no metadata and retries nothing: the caller says which
// broker, and learns what it answered.
type brokerClient struct {
	listeners      []*pipeListener // by node ID
	user, password string          // PLAIN; no user means no SASL
	format         *kmsg.RequestFormatter

	mu     sync.Mutex
	idle   [][]*brokerConn // by node ID
	closed bool
}

// brokerConn is one connection; it has at most one request under way.
type brokerConn struct {
	*pipeConn
	correlation int32
	buf         []byte
}

var errBrokerClientClosed = errors.New("the sandbox is closed")

func newBrokerClient(listeners []*pipeListener, user, password string) *brokerClient {
	return &brokerClient{
		listeners: listeners, user: user, password: password,
		format: kmsg.NewRequestFormatter(kmsg.FormatterClientID("kshare-sandbox")),
		idle:   make([][]*brokerConn, len(listeners)),
	}
}

// call sends req to a broker and returns its response as R. The version of req
// is the caller's to set.
func call[R kmsg.Response](ctx context.Context, c *brokerClient, broker int32, req kmsg.Request) (R, error) {
	var none R
	resp, err := c.request(ctx, broker, req)
	if err != nil {
		return none, fmt.Errorf("%s to broker %d: %w", kmsg.NameForKey(req.Key()), broker, err)
	}
	return resp.(R), nil
}

func (c *brokerClient) request(ctx context.Context, broker int32, req kmsg.Request) (kmsg.Response, error) {
	conn, err := c.take(ctx, broker)
	if err != nil {
		return nil, err
	}
	resp, err := conn.roundTrip(ctx, c.format, req)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.put(broker, conn)
	return resp, nil
}

func (c *brokerClient) take(ctx context.Context, broker int32) (*brokerConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errBrokerClientClosed
	}
	if broker < 0 || int(broker) >= len(c.listeners) {
		c.mu.Unlock()
		return nil, fmt.Errorf("no broker %d", broker)
	}
	if n := len(c.idle[broker]); n > 0 {
		conn := c.idle[broker][n-1]
		c.idle[broker] = c.idle[broker][:n-1]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	return c.dial(ctx, broker)
}

func (c *brokerClient) put(broker int32, conn *brokerConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = conn.Close()
		return
	}
	c.idle[broker] = append(c.idle[broker], conn)
}

func (c *brokerClient) dial(ctx context.Context, broker int32) (*brokerConn, error) {
	// The address that the sandbox's own requests come from.
	pipe, err := c.listeners[broker].dial(ctx, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	conn := &brokerConn{pipeConn: pipe}
	if c.user == "" {
		return conn, nil
	}
	if err := conn.authenticate(ctx, c.format, c.user, c.password); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("authenticate the sandbox's own connection: %w", err)
	}
	return conn, nil
}

func (c *brokerConn) authenticate(ctx context.Context, format *kmsg.RequestFormatter, user, password string) error {
	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.Version = 1
	hello.Mechanism = saslPlain
	resp, err := c.roundTrip(ctx, format, hello)
	if err != nil {
		return err
	}
	if err := codeError(resp.(*kmsg.SASLHandshakeResponse).ErrorCode); err != nil {
		return err
	}
	auth := kmsg.NewPtrSASLAuthenticateRequest()
	auth.Version = 2
	auth.SASLAuthBytes = []byte("\x00" + user + "\x00" + password)
	if resp, err = c.roundTrip(ctx, format, auth); err != nil {
		return err
	}
	return codeError(resp.(*kmsg.SASLAuthenticateResponse).ErrorCode)
}

// roundTrip fails the connection when ctx ends first.
func (c *brokerConn) roundTrip(ctx context.Context, format *kmsg.RequestFormatter, req kmsg.Request) (kmsg.Response, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	c.correlation++
	c.buf = format.AppendRequest(c.buf[:0], req, c.correlation)
	err := c.post(c.buf)
	if err == nil {
		var lent []byte
		if lent, err = c.lend(); err == nil {
			frame := slices.Clone(lent) // records in the response point into it
			c.release()
			return decodeResponse(req, c.correlation, frame)
		}
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return nil, ctxErr
	}
	return nil, err
}

// decodeResponse decodes the frame, length and header included, that answers req.
func decodeResponse(req kmsg.Request, correlation int32, frame []byte) (kmsg.Response, error) {
	if len(frame) < 8 || int(binary.BigEndian.Uint32(frame)) != len(frame)-4 {
		return nil, errors.New("response of a wrong length")
	}
	r := kbin.Reader{Src: frame[4:]}
	if got := r.Int32(); got != correlation {
		return nil, fmt.Errorf("response to request %d where %d was awaited", got, correlation)
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		kmsg.SkipTags(&r)
	}
	if err := resp.ReadFrom(r.Src); err != nil {
		return nil, fmt.Errorf("decode response: %w", err)
	}
	return resp, nil
}

// close closes the idle connections; those in use are closed when they come back.
func (c *brokerClient) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conns := range c.idle {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}
	c.idle = nil
}
