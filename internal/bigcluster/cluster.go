package bigcluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Brokers is how many brokers there are; their node IDs count from 0.
const Brokers = 3

// Config says how large the cluster is.
type Config struct {
	Transactions    int // open, each with share acknowledgements staged in one share-partition
	Groups          int // share groups, of one member each
	SharePartitions int // of all groups together, a multiple of Groups
	StatePartitions int // of __share_group_state; 0 is Kafka's default, 50
}

// Cluster is a running cluster. It is safe for concurrent use.
type Cluster struct {
	data      *data
	listeners [Brokers]net.Listener

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	counts [Brokers]map[kmsg.Key]int
	wg     sync.WaitGroup
}

// Start starts a cluster; ctx bounds the start alone.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	d, err := generate(cfg)
	if err != nil {
		return nil, err
	}
	c := &Cluster{data: d, conns: make(map[net.Conn]struct{})}
	for i := range c.listeners {
		c.counts[i] = make(map[kmsg.Key]int)
		if c.listeners[i], err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	for i := range c.listeners {
		c.wg.Go(func() { c.accept(int32(i)) })
	}
	return c, nil
}

// Close ends the cluster, and returns when nothing of it runs.
func (c *Cluster) Close() error {
	c.mu.Lock()
	c.closed = true
	var err error
	for _, l := range c.listeners {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.wg.Wait()
	return err
}

// Addrs returns the addresses of the brokers, by node ID.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, 0, Brokers)
	for _, l := range c.listeners {
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}

// Count returns how many requests of a kind a broker has received.
func (c *Cluster) Count(node int32, key kmsg.Key) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[node][key]
}

func (c *Cluster) accept(node int32) {
	for {
		conn, err := c.listeners[node].Accept()
		if err != nil {
			return // it is closed
		}
		if !c.add(conn) {
			_ = conn.Close()
			return
		}
		c.wg.Go(func() {
			defer c.remove(conn)
			_ = c.serve(node, conn) // the client is gone, or sent what is not served
		})
	}
}

func (c *Cluster) add(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.conns[conn] = struct{}{}
	return true
}

func (c *Cluster) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	_ = conn.Close()
}

// maxFrameBytes is more than any request that is served takes.
const maxFrameBytes = 10 << 20

// serve answers the requests of a connection one after the other.
func (c *Cluster) serve(node int32, conn net.Conn) error {
	r := bufio.NewReader(conn)
	var frame, out []byte
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		size := binary.BigEndian.Uint32(head[:])
		if size > maxFrameBytes {
			return fmt.Errorf("frame of %d bytes", size)
		}
		if int(size) > cap(frame) {
			frame = make([]byte, size)
		}
		frame = frame[:size]
		if _, err := io.ReadFull(r, frame); err != nil {
			return err
		}
		resp, correlation, err := c.answer(node, frame)
		if err != nil {
			return err
		}
		out = append(out[:0], 0, 0, 0, 0)
		out = kbin.AppendInt32(out, correlation)
		if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
			out = append(out, 0)
		}
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := conn.Write(out); err != nil {
			return err
		}
	}
}

func (c *Cluster) answer(node int32, frame []byte) (kmsg.Response, int32, error) {
	r := kbin.Reader{Src: frame}
	key, version, correlation := r.Int16(), r.Int16(), r.Int32()
	r.NullableString() // client ID
	req := kmsg.RequestForKey(key)
	if req == nil {
		return nil, 0, fmt.Errorf("api key %d is not served", key)
	}
	req.SetVersion(version)
	if req.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	if err := req.ReadFrom(r.Src); err != nil {
		return nil, 0, err
	}
	c.mu.Lock()
	c.counts[node][kmsg.Key(key)]++
	c.mu.Unlock()
	resp := c.respond(node, req)
	if resp == nil {
		return nil, 0, fmt.Errorf("%s is not served", kmsg.NameForKey(key))
	}
	return resp, correlation, nil
}
