package txn_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// twoPhaseProxy makes brokers of those behind it that have InitProducerId v6
// (KIP-939): it says so in their ApiVersions, and translates to v5 and back.
type twoPhaseProxy struct {
	code int16 // answered to v6 when it is not 0

	mu      sync.Mutex
	enabled int // requests with Enable2Pc
}

type twoPhaseConn struct {
	net.Conn
	p *twoPhaseProxy

	mu      sync.Mutex
	pending map[int32]int16 // key, and its version in the next 16 bits, by correlation ID
	ready   []byte          // what Read returns next
}

// Write takes whole requests, as kgo writes them.
func (c *twoPhaseConn) Write(b []byte) (int, error) {
	size := 4 + int(binary.BigEndian.Uint32(b))
	if len(b) != size {
		panic("a request in parts")
	}
	key, version := int16(binary.BigEndian.Uint16(b[4:])), int16(binary.BigEndian.Uint16(b[6:]))
	correlation := int32(binary.BigEndian.Uint32(b[8:]))
	frame := b
	switch {
	case key == int16(kmsg.InitProducerID) && version == wire.InitProducerIDTwoPhase:
		head := 12 + 2 + int(binary.BigEndian.Uint16(b[12:])) + 1 // with client ID and tags
		req := wire.NewInitProducerIDRequest()
		if err := req.ReadFrom(b[head:]); err != nil {
			panic(err)
		}
		c.p.mu.Lock()
		if req.Enable2Pc {
			c.p.enabled++
		}
		c.p.mu.Unlock()
		v5 := kmsg.NewPtrInitProducerIDRequest()
		v5.Version, v5.TransactionalID, v5.TransactionTimeoutMillis = 5, req.TransactionalID, req.TransactionTimeoutMillis
		v5.ProducerID, v5.ProducerEpoch = req.ProducerID, req.ProducerEpoch
		frame = v5.AppendTo(append([]byte{}, b[:head]...))
		binary.BigEndian.PutUint16(frame[6:], 5)
		binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
		c.expect(correlation, key)
	case key == int16(kmsg.ApiVersions):
		c.expect(correlation, -version) // negative, to tell it from the other
	}
	if _, err := c.Conn.Write(frame); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (c *twoPhaseConn) expect(correlation int32, what int16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending == nil {
		c.pending = make(map[int32]int16)
	}
	c.pending[correlation] = what
}

func (c *twoPhaseConn) Read(b []byte) (int, error) {
	for len(c.ready) == 0 {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(c.Conn, body); err != nil {
			return 0, err
		}
		body = c.translate(body)
		c.ready = append(kbin.AppendInt32(nil, int32(len(body))), body...)
	}
	n := copy(b, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

func (c *twoPhaseConn) translate(body []byte) []byte {
	correlation := int32(binary.BigEndian.Uint32(body))
	c.mu.Lock()
	what, ok := c.pending[correlation]
	delete(c.pending, correlation)
	c.mu.Unlock()
	switch {
	case !ok:
		return body
	case what == int16(kmsg.InitProducerID):
		v5 := kmsg.NewPtrInitProducerIDResponse()
		v5.Version = 5
		if err := v5.ReadFrom(body[5:]); err != nil {
			panic(err)
		}
		v6 := &wire.InitProducerIDResponse{
			Version: wire.InitProducerIDTwoPhase, ErrorCode: v5.ErrorCode, ProducerID: v5.ProducerID, ProducerEpoch: v5.ProducerEpoch,
			OngoingTxnProducerID: -1, OngoingTxnProducerEpoch: -1,
		}
		if c.p.code != 0 {
			v6.ErrorCode, v6.ProducerID, v6.ProducerEpoch = c.p.code, -1, -1
		}
		return v6.AppendTo(append([]byte{}, body[:5]...))
	}
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = -what
	if err := resp.ReadFrom(body[4:]); err != nil || resp.ErrorCode != 0 {
		return body // of another version than was asked for
	}
	for i := range resp.ApiKeys {
		if k := &resp.ApiKeys[i]; k.ApiKey == int16(kmsg.InitProducerID) {
			k.MaxVersion = wire.InitProducerIDTwoPhase
		}
	}
	return resp.AppendTo(append([]byte{}, body[:4]...))
}
