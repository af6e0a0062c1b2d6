package ctp_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kfake"
)

// bubble runs a test on a sandbox whose time is that of a synctest bubble: a
// transform that takes minutes takes none.
func bubble(t *testing.T, dialect string, do func(e *env), opts ...sandbox.Option) {
	t.Helper()
	d, ok := wire.DialectByName(dialect)
	if !ok {
		t.Fatalf("no dialect %q", dialect)
	}
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		e := &env{t: t, limit: 24 * time.Hour}
		e.network = network.DialContext
		e.dial = func(ctx context.Context, n, address string) (net.Conn, error) {
			conn, err := network.DialContext(ctx, n, address)
			if err != nil {
				return nil, err
			}
			return &filteredConn{Conn: conn, e: e, address: address}, nil
		}
		opts = append([]sandbox.Option{
			sandbox.WithDialect(d), sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092),
			sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 6}, sandbox.Topic{Name: "out", Partitions: 3}),
		}, opts...)
		start := func() {
			var err error
			if e.sb, err = sandbox.Start(t.Context(), opts...); err != nil {
				t.Fatal(err)
			}
		}
		stop := func() {
			if err := e.sb.Close(); err != nil {
				t.Errorf("close sandbox: %v", err)
			}
		}
		e.restart = func(down time.Duration) {
			stop()
			bubbleSleep(down)
			start()
		}
		start()
		defer stop()
		var err error
		if e.cl, err = cluster.Connect(t.Context(), cluster.Config{BootstrapServers: e.sb.Addrs(), Dialer: e.dial}); err != nil {
			t.Fatal(err)
		}
		defer e.cl.Close()
		do(e)
	})
}

// bubbleSleep lets the bubble's clock run on.
func bubbleSleep(d time.Duration) { <-time.After(d) }

// filteredConn loses the requests that the test wants to be lost: as from a
// broker that hangs, there is no answer, and no end of the connection. Others have
// the fate that the test wants them to have.
type filteredConn struct {
	net.Conn
	e       *env
	address string

	mu  sync.Mutex
	cut bool // at the next byte that the broker sends
}

func (c *filteredConn) Write(b []byte) (int, error) {
	if len(b) <= 6 {
		return c.Conn.Write(b)
	}
	if lose := c.e.lose.Load(); lose != nil && (*lose)(int16(binary.BigEndian.Uint16(b[4:]))) {
		return len(b), nil
	}
	do := c.e.fate.Load()
	if do == nil {
		return c.Conn.Write(b)
	}
	switch (*do)(c.address, b) {
	case cutBefore:
		_ = c.Conn.Close()
		return 0, &net.OpError{Op: "write", Err: io.ErrClosedPipe}
	case cutAfter:
		c.mu.Lock()
		c.cut = true
		c.mu.Unlock()
	case arrives:
	}
	return c.Conn.Write(b)
}

// fate is what the network does to a request.
type fate int

const (
	arrives   fate = iota
	cutBefore      // the connection breaks, and the broker gets nothing
	cutAfter       // the broker handles it, and the connection breaks before its answer
)

func (c *filteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut && n > 0 {
		_ = c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}
