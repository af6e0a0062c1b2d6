package ctp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A hundred transactions that are open at once on the source and are aborted, with
// others between them that are committed: of the records of the aborted ones none
// is copied. They have written to the destination too, where a consumer finds
// nothing of them either, in whatever order brokers list them.
func TestRunFromInterleavedAborts(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		const (
			aborts, commits = 100, 20
			rounds          = 3
		)
		e := newEnv(t, dialect)
		rnd := rand.New(rand.NewPCG(1, 2))
		upstream := make([]*kgo.Client, aborts+commits)
		for i := range upstream {
			upstream[i] = e.client(kgo.TransactionalID("upstream-"+strconv.Itoa(i)), kgo.ProducerLinger(0))
			if err := upstream[i].BeginTransaction(); err != nil {
				t.Fatal(err)
			}
		}
		aborted := func(key int) bool { return key < aborts*rounds }
		for round := range rounds {
			for _, i := range rnd.Perm(len(upstream)) {
				key := []byte(strconv.Itoa(i*rounds + round))
				err := upstream[i].ProduceSync(t.Context(),
					&kgo.Record{Topic: "in", Key: key, Value: key},
					&kgo.Record{Topic: "out", Key: append([]byte("upstream "), key...)},
				).FirstErr()
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, i := range rnd.Perm(len(upstream)) {
			if err := upstream[i].EndTransaction(t.Context(), kgo.TransactionEndTry(!aborted(i*rounds))); err != nil {
				t.Fatal(err)
			}
		}

		opts := e.options()
		opts.BatchRecords = 7
		if res := e.run(opts); res.Consumed != commits*rounds {
			t.Errorf("Run = %+v, want the %d records consumed whose transactions were committed", res, commits*rounds)
		}
		shuffler := &shuffler{rnd: rand.New(rand.NewPCG(3, 4))}
		e.dial = shuffler.dial
		counts := make(map[string]int)
		for _, r := range e.committed() {
			counts[string(r.Key)]++
		}
		for key := range (aborts + commits) * rounds {
			want := 1
			if aborted(key) {
				want = 0
			}
			if n, m := counts[strconv.Itoa(key)], counts["upstream "+strconv.Itoa(key)]; n != want || m != want {
				t.Errorf("record %d was copied %d times, and that of its transaction in the destination is seen %d times, want %d", key, n, m, want)
			}
		}
		if shuffler.lists == 0 {
			t.Error("no list of aborted transactions was shuffled: the test proves nothing")
		}
	})
}

// A group that sees uncommitted records is warned of, unless that was asked for.
func TestRunWarnsOfUncommitted(t *testing.T) {
	bubble(t, "kip", func(e *env) {
		e.produce(3, plain)
		for level, want := range map[string]bool{"": true, "read_uncommitted": false, "read_committed": false} {
			opts := e.options()
			opts.GroupID, opts.IsolationLevel = "group"+level, level
			warned := false
			opts.Warn = func(err error) { warned = warned || errors.Is(err, ctp.ErrReadUncommitted) }
			if e.run(opts); warned != want {
				e.t.Errorf("isolation level %q: warned %v, want %v", level, warned, want)
			}
		}
	})
}

// shuffler is a network that shuffles the lists of aborted transactions which
// brokers answer fetches with.
type shuffler struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	lists int // of more than one transaction
}

func (s *shuffler) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &shuffledConn{Conn: conn, s: s, fetches: make(map[int32]int16)}, nil
}

type shuffledConn struct {
	net.Conn
	s *shuffler

	mu      sync.Mutex
	fetches map[int32]int16 // versions, by correlation ID
	rest    bytes.Buffer    // of a response that was read
}

func (c *shuffledConn) Write(b []byte) (int, error) {
	if len(b) > 12 && int16(binary.BigEndian.Uint16(b[4:])) == int16(kmsg.Fetch) {
		c.mu.Lock()
		c.fetches[int32(binary.BigEndian.Uint32(b[8:]))] = int16(binary.BigEndian.Uint16(b[6:]))
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// Read is called by one goroutine at a time.
func (c *shuffledConn) Read(b []byte) (int, error) {
	if c.rest.Len() == 0 {
		frame, err := c.next()
		if err != nil {
			return 0, err
		}
		c.rest.Write(frame)
	}
	return c.rest.Read(b)
}

func (c *shuffledConn) next() ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(c.Conn, head); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head))
	if _, err := io.ReadFull(c.Conn, body); err != nil {
		return nil, err
	}
	c.mu.Lock()
	version, ok := c.fetches[int32(binary.BigEndian.Uint32(body))]
	c.mu.Unlock()
	if !ok {
		return append(head, body...), nil
	}
	header := 4 // correlation ID
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(version)
	if resp.IsFlexible() {
		header++ // no tags
	}
	if err := resp.ReadFrom(body[header:]); err != nil {
		return nil, err
	}
	c.s.shuffle(resp)
	body = resp.AppendTo(body[:header:header])
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...), nil
}

func (s *shuffler) shuffle(resp *kmsg.FetchResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			list := resp.Topics[i].Partitions[j].AbortedTransactions
			s.rnd.Shuffle(len(list), func(a, b int) { list[a], list[b] = list[b], list[a] })
			if len(list) > 1 {
				s.lists++
			}
		}
	}
}
