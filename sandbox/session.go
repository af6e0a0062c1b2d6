package sandbox

import (
	"cmp"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Share sessions (KIP-932).
//
// A session is kept per group, member and broker. Epoch 0 opens one, in place
// of the one there was; each later ShareFetch or ShareAcknowledge must carry
// the next epoch; -1 closes. A session remembers the partitions a member wants,
// so that requests name only what changed. It belongs to the connection that
// opened it and ends with that.

// sessionKey names a share session.
type sessionKey struct {
	group, member string
	broker        int32
}

// sessionPartition names a partition in a share session.
type sessionPartition struct {
	topicID   [16]byte
	partition int32
}

// shareSession is one share session.
type shareSession struct {
	key  sessionKey
	conn uint64
	done chan struct{} // closed when the session is

	mu         sync.Mutex
	epoch      int32 // that the next request must carry
	partitions []sessionPartition
	update     map[sessionPartition]bool // must be in the next response even when empty
}

// closed reports whether the session ended. A fetch asks under the mutex of the
// share-partition right before it acquires: who closes a session marks it
// first and releases its records afterwards, so none is acquired in between.
func (s *shareSession) closed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// nextSessionEpoch returns the epoch after e; it wraps to 1, since 0 opens.
func nextSessionEpoch(e int32) int32 {
	if e+1 <= 0 {
		return 1
	}
	return e + 1
}

// list returns the partitions of the session, turned by its epoch so that no
// partition is always the first to be fetched.
func (s *shareSession) list() []sessionPartition {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.partitions)
	if n == 0 {
		return nil
	}
	at := int(s.epoch) % n
	return append(slices.Clone(s.partitions[at:]), s.partitions[:at]...)
}

// change adds and forgets partitions.
func (s *shareSession) change(add, forget []sessionPartition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sp := range add {
		if _, ok := s.update[sp]; !ok {
			s.partitions = append(s.partitions, sp)
			s.update[sp] = true
		}
	}
	for _, sp := range forget {
		if _, ok := s.update[sp]; ok {
			delete(s.update, sp)
			s.partitions = slices.DeleteFunc(s.partitions, func(o sessionPartition) bool { return o == sp })
		}
	}
}

// respond reports whether a partition has to be in the response, and remembers
// an error so that the response after it tells of its end.
func (s *shareSession) respond(sp sessionPartition, code int16, hasRecords bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	update, ok := s.update[sp]
	if ok {
		s.update[sp] = code != 0
	}
	return hasRecords || code != 0 || update
}

// sessionCache holds the share sessions of all brokers.
type sessionCache struct {
	mu     sync.Mutex
	byKey  map[sessionKey]*shareSession
	broker map[int32]int // number of sessions
}

func (sc *sessionCache) init() {
	sc.byKey = make(map[sessionKey]*shareSession)
	sc.broker = make(map[int32]int)
}

// open starts a session in place of the one that key has. Records acquired in
// the old one stay acquired: the member is the same.
func (sc *sessionCache) open(key sessionKey, conn uint64, partitions []sessionPartition, limit int) (*shareSession, int16) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if old := sc.byKey[key]; old != nil {
		sc.removeLocked(old)
	}
	if sc.broker[key.broker] >= limit {
		return nil, kerr.ShareSessionLimitReached.Code
	}
	s := &shareSession{
		key: key, conn: conn, epoch: 1,
		done: make(chan struct{}), update: make(map[sessionPartition]bool),
	}
	s.change(partitions, nil)
	sc.byKey[key] = s
	sc.broker[key.broker]++
	return s, 0
}

// advance finds the session for a request that carries epoch, and counts it.
func (sc *sessionCache) advance(key sessionKey, epoch int32) (*shareSession, int16) {
	sc.mu.Lock()
	s := sc.byKey[key]
	sc.mu.Unlock()
	if s == nil {
		return nil, kerr.ShareSessionNotFound.Code
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch {
		return nil, kerr.InvalidShareSessionEpoch.Code
	}
	s.epoch = nextSessionEpoch(s.epoch)
	return s, 0
}

// find returns the session of key, nil if there is none.
func (sc *sessionCache) find(key sessionKey) *shareSession {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	return sc.byKey[key]
}

// remove ends a session; false if it was not there any more.
func (sc *sessionCache) remove(s *shareSession) bool {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if sc.byKey[s.key] != s {
		return false
	}
	sc.removeLocked(s)
	return true
}

// removeConnection ends the sessions that were opened on a connection and
// returns them.
func (sc *sessionCache) removeConnection(conn uint64) []*shareSession {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	var gone []*shareSession
	for _, s := range sc.byKey {
		if s.conn == conn {
			gone = append(gone, s)
		}
	}
	for _, s := range gone {
		sc.removeLocked(s)
	}
	return gone
}

func (sc *sessionCache) removeLocked(s *shareSession) {
	delete(sc.byKey, s.key)
	sc.broker[s.key.broker]--
	close(s.done)
}

func (sc *sessionCache) snapshot() []sessionSnapshot {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	out := make([]sessionSnapshot, 0, len(sc.byKey))
	for k, s := range sc.byKey {
		s.mu.Lock()
		out = append(out, sessionSnapshot{
			GroupID: k.group, MemberID: k.member, Broker: k.broker,
			NextEpoch: s.epoch, Partitions: len(s.partitions),
		})
		s.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b sessionSnapshot) int {
		return cmp.Or(cmp.Compare(a.GroupID, b.GroupID), cmp.Compare(a.MemberID, b.MemberID), cmp.Compare(a.Broker, b.Broker))
	})
	return out
}
