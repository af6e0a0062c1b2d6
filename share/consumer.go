package share

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	mrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config describes one member of a share group.
type Config struct {
	// GroupID is the share group; required.
	GroupID string
	// Topics are the topics to subscribe to; at least one.
	Topics []string
	// MemberID identifies the member: at most 36 characters, and for Kafka 4.1 a
	// UUID in Kafka's text form, such as [NamedMemberID] returns; "" makes a random
	// one. A member that comes back after a crash under its old ID takes its
	// place again at once instead of waiting for its own session timeout.
	MemberID string
	// RackID is sent with heartbeats when it is not "".
	RackID string
	// MaxRecords is how many records one fetch from one leader asks for. From
	// 1000 on, and from brokers older than Kafka 4.2, the answer may have more, up
	// to the end of a record batch. 0 is 500.
	MaxRecords int32
	// MaxBytes bounds the bytes of one fetch from one leader; 0 is 8 MiB.
	MaxBytes int32
	// MaxWait is how long a leader may hold a fetch for which it has no
	// records, when it had none for a while; 0 is 500 ms. Acknowledgements to
	// that leader wait meanwhile, and so does Close.
	MaxWait time.Duration
	// Warn is told of conditions that pass by themselves but that an operator
	// should know, such as SHARE_SESSION_LIMIT_REACHED. nil drops them.
	Warn func(err error)
	// Lost is told, in a goroutine of its own, when a broker or the coordinator
	// says that it knows the member or its session no more, or in another state.
	// The consumer recovers by itself; but another process that uses the same
	// member ID looks like that, too. nil drops it.
	Lost func(err error)
	// Metrics is told what Kafka's own client counts; nil counts nothing.
	Metrics Metrics
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Metrics is told what the client metrics of KIP-1289 count of a share consumer.
// Its methods must not block, and are called from several goroutines at once.
type Metrics interface {
	// GroupMetadataFetched is called with each [Consumer.GroupMetadata]
	// (share-group-metadata-fetch-rate).
	GroupMetadataFetched()
}

const (
	defaultMaxRecords = 500
	defaultMaxBytes   = 8 << 20
	defaultMaxWait    = 500 * time.Millisecond
	// maxMemberIDLen is the longest member ID that a broker takes (KIP-932).
	maxMemberIDLen = 36

	minBackoff = 50 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// GroupMetadata identifies a member at one moment: what a transaction needs to
// know of it (KIP-1289, ShareGroupMetadata). It is comparable and never changes.
type GroupMetadata struct {
	GroupID     string
	MemberID    string
	MemberEpoch int32 // > 0; 0 before the member has joined
}

// Consumer is one member of a share group. All methods are safe for concurrent
// use; Poll hands each record to one caller only.
type Consumer struct {
	cl  *cluster.Client
	cfg Config
	dec kgo.Decompressor

	ctx    context.Context // ends when Close begins
	cancel context.CancelCauseFunc
	// requests is the context of fetches. It ends later: a fetch that was given
	// up on could still acquire records after its session was thought closed.
	requests       context.Context
	cancelRequests context.CancelFunc
	named          bool                 // the member ID may have been used before
	beat           chan chan<- struct{} // asks for a heartbeat at once; told when it is done
	wg             sync.WaitGroup

	mu          sync.Mutex
	changed     chan struct{} // closed and replaced when anything below changes
	memberEpoch int32
	assigned    map[TopicPartition]bool
	untold      bool // the assignment may be another one by now
	leaders     map[TopicPartition]int32
	sessions    map[int32]*session
	holdings    map[TopicPartition]*holdings
	ready       []*PartitionBatch // decoded and not handed out yet, in order of arrival
	fatal       error
	stale       bool // leaders are to be looked up again
	closed      bool
	limited     time.Time // when Warn was told last that there are too many share sessions
	empty       int64     // fetches that returned nothing since the last that returned something
}

// NewConsumer joins the share group and starts to heartbeat and to fetch. It
// returns once the group coordinator has accepted the member. It may return
// *cluster.Error, *cluster.AuthError, *cluster.DialError or
// *cluster.UnsupportedError.
func NewConsumer(ctx context.Context, cl *cluster.Client, cfg Config) (*Consumer, error) {
	c, interval, err := newMember(ctx, cl, cfg)
	if err != nil {
		return nil, err
	}
	c.wg.Go(func() { c.heartbeatLoop(interval) })
	c.wg.Go(c.leaderLoop)
	return c, nil
}

// newMember joins, and returns the interval to heartbeat at.
func newMember(ctx context.Context, cl *cluster.Client, cfg Config) (*Consumer, time.Duration, error) {
	named := cfg.MemberID != ""
	if err := cfg.setDefaults(); err != nil {
		return nil, 0, err
	}
	c := &Consumer{
		cl: cl, cfg: cfg, named: named, dec: kgo.DefaultDecompressor(),
		changed:  make(chan struct{}),
		beat:     make(chan chan<- struct{}),
		assigned: make(map[TopicPartition]bool),
		leaders:  make(map[TopicPartition]int32),
		sessions: make(map[int32]*session), holdings: make(map[TopicPartition]*holdings),
	}
	// The consumer outlives the call that made it, and ends by Close.
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.requests, c.cancelRequests = context.WithCancel(context.WithoutCancel(ctx))
	interval, err := c.join(ctx)
	if err != nil {
		c.cancel(err)
		c.cancelRequests()
		return nil, 0, err
	}
	return c, interval, nil
}

func (cfg *Config) setDefaults() error {
	if cfg.GroupID == "" {
		return errors.New("share consumer: no group ID")
	}
	if len(cfg.Topics) == 0 {
		return fmt.Errorf("share consumer of group %q: no topics", cfg.GroupID)
	}
	if cfg.MemberID == "" {
		cfg.MemberID = newMemberID()
	}
	if len(cfg.MemberID) > maxMemberIDLen {
		return fmt.Errorf("share consumer of group %q: member ID %q is longer than %d characters", cfg.GroupID, cfg.MemberID, maxMemberIDLen)
	}
	if cfg.MaxRecords <= 0 {
		cfg.MaxRecords = defaultMaxRecords
	}
	if cfg.MaxBytes <= 0 {
		cfg.MaxBytes = defaultMaxBytes
	}
	if cfg.MaxWait <= 0 {
		cfg.MaxWait = defaultMaxWait
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Warn == nil {
		cfg.Warn = func(error) {}
	}
	if cfg.Lost == nil {
		cfg.Lost = func(error) {}
	}
	return nil
}

// newMemberID returns a random (version 4) UUID in text form.
func newMemberID() string {
	var b [16]byte
	rand.Read(b[:])
	return formatUUID(b, 4)
}

// NamedMemberID returns a member ID that depends on names only: members with
// the same names are the same member to the group coordinator, so a process
// that comes back after a crash takes its own place again.
func NamedMemberID(names ...string) string {
	h := sha256.New()
	for _, n := range names {
		fmt.Fprintf(h, "%d:%s,", len(n), n)
	}
	return formatUUID([16]byte(h.Sum(nil)), 8)
}

// formatUUID returns a UUID as Kafka writes it. A broker of 4.1 fails on every
// fetch of a member whose ID it cannot read as that. Like Kafka's, none begins
// with "-".
func formatUUID(b [16]byte, version byte) string {
	b[0] &= 0x7f
	b[6] = b[6]&0x0f | version<<4
	b[8] = b[8]&0x3f | 0x80
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// notify wakes everything that waits for a change. Called with mu held.
func (c *Consumer) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// GroupMetadata returns the identity of the member now, for
// SendShareAcknowledgements of package txn (KIP-1289,
// ShareConsumer.shareGroupMetadata). Group ID, member ID and member epoch are of
// one moment. It never blocks, and may be called beside Poll and Acknowledge.
//
// When the member epoch rises between this and the stage, the broker refuses to
// stage with STALE_MEMBER_EPOCH: abort the transaction and process the records
// again. A MemberEpoch of 0 says that the coordinator does not know the member
// any more; it is joining again.
func (c *Consumer) GroupMetadata() GroupMetadata {
	if c.cfg.Metrics != nil {
		c.cfg.Metrics.GroupMetadataFetched()
	}
	return c.identity()
}

// identity is GroupMetadata for our own use.
func (c *Consumer) identity() GroupMetadata {
	c.mu.Lock()
	defer c.mu.Unlock()
	return GroupMetadata{GroupID: c.cfg.GroupID, MemberID: c.cfg.MemberID, MemberEpoch: c.memberEpoch}
}

// ConfirmMembership heartbeats at once, and joins again if the coordinator does
// not know the member any more. It is for a member that was told so by a broker,
// by UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH, and would wait for its next
// heartbeat otherwise. It returns when an answer was there, whatever it was, or
// the context ended.
func (c *Consumer) ConfirmMembership(ctx context.Context) {
	done := make(chan struct{}, 1)
	select {
	case c.beat <- done:
	case <-ctx.Done():
		return
	case <-c.ctx.Done():
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
}

// Reset drops everything that was fetched and not returned by Poll, and makes
// the next fetch from each leader close the share session and open a new one, so
// that the broker releases what the old one has acquired. It is for a member
// that learnt, by INVALID_RECORD_STATE, that it does not hold what it thought.
func (c *Consumer) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resetSessions()
	c.notify()
}

// resetSessions is called with mu held.
func (c *Consumer) resetSessions() {
	c.ready = nil
	for _, s := range c.sessions {
		s.reset()
	}
}

// Assigned lists the share-partitions that the member may fetch now, sorted.
func (c *Consumer) Assigned() []TopicPartition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return sortedPartitions(c.assigned)
}

// Poll returns up to maxRecords acquired records (at least one partition's
// gaps when there are no records), as soon as there are any. While the caller
// works on them, one fetch for each leader is in flight or waiting. It returns
// the context's error when there were none in time, and the error that ended
// the consumer when there is one: *cluster.AuthError, *cluster.UnsupportedError
// or *cluster.Error.
func (c *Consumer) Poll(ctx context.Context, maxRecords int) (*Batch, error) {
	for {
		if err := c.Wait(ctx); err != nil {
			return nil, err
		}
		c.mu.Lock()
		if len(c.ready) > 0 {
			b := c.takeReady(maxRecords)
			c.mu.Unlock()
			return b, nil
		}
		c.mu.Unlock() // another Poll has taken it
	}
}

// Wait waits until Poll has something to return, and takes nothing. It fails as
// Poll does.
func (c *Consumer) Wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return ErrClosed
		}
		if len(c.ready) > 0 {
			c.mu.Unlock()
			return nil
		}
		err, changed := c.fatal, c.changed
		c.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
}

// takeReady moves up to n records out of c.ready. Called with mu held.
func (c *Consumer) takeReady(n int) *Batch {
	b := &Batch{}
	i := 0
	for ; i < len(c.ready); i++ {
		p := c.ready[i]
		if n <= 0 && len(b.Partitions) > 0 {
			break
		}
		part, rest := p.take(max(n, 1))
		b.Partitions = append(b.Partitions, part)
		n -= len(part.Records)
		if rest != nil {
			c.ready[i] = rest
			break
		}
	}
	c.ready = append(c.ready[:0], c.ready[i:]...)
	c.notify() // fetchers may go on
	return b
}

// dropReady drops what Poll has not handed out yet, of which its leader will not
// take an acknowledgement any more. Called with mu held.
func (c *Consumer) dropReady(lost func(*PartitionBatch) bool) {
	c.ready = slices.DeleteFunc(c.ready, lost)
	c.notify()
}

// EmptyFetches counts the fetches since the last one that acquired something,
// over all leaders. It tells an idle group from one that was not asked yet.
func (c *Consumer) EmptyFetches() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.empty
}

// ErrClosed is returned by calls on a closed consumer.
var ErrClosed = errors.New("share consumer is closed")

// Abandon stops fetching and heartbeating and tells nobody: the share sessions
// end with the connections, and the membership with the session timeout. It is
// for a member whose ID another process has taken over, which Close would throw
// out of the group.
func (c *Consumer) Abandon() {
	if c.stop() {
		c.cancelRequests()
		c.wg.Wait()
	}
}

// stop ends fetching and heartbeating; false when that was done before.
func (c *Consumer) stop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	c.notify()
	c.cancel(ErrClosed)
	return true
}

// Close releases everything that was acquired and not acknowledged or staged,
// closes the share sessions and leaves the group, in that order. Records that
// are staged in a transaction stay with it. It returns the first failure, after
// trying everything; the broker cleans up by itself after the session timeout.
func (c *Consumer) Close(ctx context.Context) error {
	if !c.stop() {
		return nil
	}
	defer c.cancelRequests()
	defer context.AfterFunc(ctx, c.cancelRequests)()
	c.wg.Wait()

	c.mu.Lock()
	sessions := make([]*session, 0, len(c.sessions))
	for _, s := range c.sessions {
		sessions = append(sessions, s)
	}
	c.mu.Unlock()
	errs := make([]error, len(sessions)+1)
	var wg sync.WaitGroup
	for i, s := range sessions {
		wg.Go(func() { errs[i] = s.close(ctx) })
	}
	wg.Wait()
	errs[len(sessions)] = c.leave(ctx)
	return cluster.Join(errs...)
}

// fail ends the consumer: Poll returns err from now on.
func (c *Consumer) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fatal == nil {
		c.fatal = err
		c.notify()
	}
}

// wait sleeps d, or less when the consumer ends; it reports whether to go on.
func (c *Consumer) wait(d time.Duration) bool { return pause.For(c.ctx, d) == nil }

// backoff returns the time to wait before try n (from 0): exponential with
// jitter, from 50 ms to 10 s.
func backoff(n int) time.Duration {
	d := time.Duration(float64(minBackoff) * math.Pow(2, float64(min(n, 16))))
	d = min(d, maxBackoff)
	return d/2 + mrand.N(d/2+1)
}

// isLost reports whether err says that the member or its session is not known,
// or not as we know it.
func isLost(err error) bool {
	return isAny(err, kerr.InvalidShareSessionEpoch, kerr.ShareSessionNotFound,
		kerr.UnknownMemberID, kerr.FencedMemberEpoch, kerr.StaleMemberEpoch)
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// isFatal reports whether no retry cures err.
func isFatal(err error) bool {
	return isUnsupported(err) || isAny(err,
		kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.SaslAuthenticationFailed, kerr.InvalidRequest, kerr.UnsupportedVersion,
		kerr.GroupMaxSizeReached, kerr.GroupIDNotFound)
}
