package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeConn is one end of an in-memory connection. It is a net.Conn for kfake,
// and has two methods more for the gateway, which moves whole frames: post
// hands a frame over without waiting, and lend shows what the peer is writing
// in the peer's own buffer. A request so costs one copy on its way to kfake,
// and a response none on its way back.
//
// All waiting is on sync.Cond, which testing/synctest counts as durably
// blocked: in a bubble the clock runs on while both ends are idle.
type pipeConn struct {
	in, out       *pipeHalf
	local, remote net.Addr
}

// newPipe returns the two ends of a connection. The addresses are as seen from
// the first end, which is the dialling one.
func newPipe(local, remote net.Addr) (*pipeConn, *pipeConn) {
	there, back := newPipeHalf(), newPipeHalf()
	return &pipeConn{in: back, out: there, local: local, remote: remote},
		&pipeConn{in: there, out: back, local: remote, remote: local}
}

// pipeHalf is one direction of a connection. The writer's slice is lent to the
// reader: nothing is buffered here.
type pipeHalf struct {
	mu   sync.Mutex
	cond sync.Cond

	data   []byte // what the reader has not taken yet
	posted bool   // nobody waits for data to be taken
	lent   bool   // the reader holds data outside of the lock
	closed bool

	readDeadline, writeDeadline pipeDeadline
}

func newPipeHalf() *pipeHalf {
	h := new(pipeHalf)
	h.cond.L = &h.mu
	return h
}

// pipeDeadline wakes the waiters of a half when it passes.
type pipeDeadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *pipeDeadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func (h *pipeHalf) setDeadline(d *pipeDeadline, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = at
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.cond.Broadcast()
		})
	}
	h.cond.Broadcast()
}

// awaitRoom waits until the data written before has been taken.
func (h *pipeHalf) awaitRoom() error {
	for {
		switch {
		case h.closed:
			return io.ErrClosedPipe
		case h.writeDeadline.passed():
			return os.ErrDeadlineExceeded
		case len(h.data) == 0 && !h.lent:
			return nil
		}
		h.cond.Wait()
	}
}

// write lends p to the reader and returns once the reader is done with it.
func (h *pipeHalf) write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.awaitRoom(); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	h.data, h.posted = p, false
	h.cond.Broadcast()
	for len(h.data) > 0 || h.lent {
		// What is lent is in use: not even a closed connection gives the
		// slice back to the writer before the reader has.
		if !h.lent && (h.closed || h.writeDeadline.passed()) {
			n := len(p) - len(h.data)
			h.data = nil
			if h.closed {
				return n, io.ErrClosedPipe
			}
			return n, os.ErrDeadlineExceeded
		}
		h.cond.Wait()
	}
	return len(p), nil
}

func (h *pipeHalf) post(p []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.awaitRoom(); err != nil {
		return err
	}
	h.data, h.posted = p, true
	h.cond.Broadcast()
	return nil
}

// awaitData waits until there is something to read.
func (h *pipeHalf) awaitData() error {
	for {
		switch {
		case len(h.data) > 0:
			return nil
		case h.closed:
			return io.EOF
		case h.readDeadline.passed():
			return os.ErrDeadlineExceeded
		}
		h.cond.Wait()
	}
}

func (h *pipeHalf) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.awaitData(); err != nil {
		return 0, err
	}
	n := copy(p, h.data)
	h.take(n)
	return n, nil
}

// take drops n bytes of data and tells the writer when none are left.
func (h *pipeHalf) take(n int) {
	h.data = h.data[n:]
	if len(h.data) > 0 {
		return
	}
	h.data = nil
	h.cond.Broadcast()
}

func (h *pipeHalf) lend() ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.awaitData(); err != nil {
		return nil, err
	}
	h.lent = true
	return h.data, nil
}

func (h *pipeHalf) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lent = false
	h.data = nil
	h.cond.Broadcast()
}

// close ends the direction. Data that nobody waits for, and data that is not
// lent, is dropped: its writer may use the slice again.
func (h *pipeHalf) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.posted && !h.lent {
		h.data = nil
	}
	h.readDeadline.stop()
	h.writeDeadline.stop()
	h.cond.Broadcast()
}

func (d *pipeDeadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

// Read implements net.Conn.
func (c *pipeConn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write implements net.Conn. It returns once the peer has read all of p.
func (c *pipeConn) Write(p []byte) (int, error) { return c.out.write(p) }

// post hands p to the peer without waiting until it is read. The caller must
// not change p before the peer is known to have read it, as a response shows,
// or the connection is closed.
func (c *pipeConn) post(p []byte) error { return c.out.post(p) }

// lend returns the bytes of the peer's pending Write, in the peer's buffer. The
// peer stays blocked until release.
func (c *pipeConn) lend() ([]byte, error) { return c.in.lend() }

// release gives the bytes of the last lend back; all of them count as read.
func (c *pipeConn) release() { c.in.release() }

// Close implements net.Conn. Both directions end, at both ends.
func (c *pipeConn) Close() error {
	c.in.close()
	c.out.close()
	return nil
}

// LocalAddr implements net.Conn.
func (c *pipeConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn. For kfake this is the address of the client
// behind the gateway: its ACLs may name hosts.
func (c *pipeConn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *pipeConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *pipeConn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readDeadline, t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *pipeConn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeDeadline, t)
	return nil
}

// errPipeListenerClosed is what Accept and dial return after Close.
var errPipeListenerClosed = errors.New("in-memory listener closed")

// pipeListener is the listener that a broker of kfake gets. Its address is the
// one that clients dial, so that Metadata names the gateway.
type pipeListener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener(addr net.Addr) *pipeListener {
	return &pipeListener{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// dial connects to the broker on behalf of a client at address from.
func (l *pipeListener) dial(ctx context.Context, from net.Addr) (*pipeConn, error) {
	near, far := newPipe(from, l.addr)
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, errPipeListenerClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, errPipeListenerClosed
	}
}

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return l.addr }
