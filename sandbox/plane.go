package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The share plane: what the brokers of the sandbox do for share groups and for
// their transactions (KIP-932, KIP-1289).
//
// One plane serves all brokers of the sandbox. A request counts as sent to the
// broker that the caller addressed: a broker that does not lead a partition
// answers NOT_LEADER_OR_FOLLOWER, one that does not coordinate a group answers
// NOT_COORDINATOR.
//
// Where things are:
//   - group.go: members, epochs, the assignor (76, 77)
//   - session.go: share sessions (78, 79)
//   - plane_leader.go: the leader's hold of a share-partition: loading, locking,
//     persisting, the acquisition lock timer
//   - plane_log.go: what ShareFetch reads of the log
//   - markers.go: everything that ends a TX_PENDING record
//
// Locks, in the order in which they may be taken: the op lock of a group or the
// guard of a transaction; the read lock of a share-partition; the op locks of
// share-partitions, in the order of their keys; the mutex of the plane, of a
// share-partition, of the transaction table. The first four are channels and
// are held during I/O; mutexes never are.
//
// Where we differ from a broker:
//   - a new share-partition is initialised within the heartbeat that first
//     needs it, so that its answer already assigns it;
//   - the start offset that share.auto.offset.reset gives is persisted at once
//     and not with the first acknowledgement;
//   - a share-partition stays loaded when its last session ends.

// planeConfig is what the share plane is told once.
type planeConfig struct {
	dialect        wire.Dialect
	persistPending bool        // TX_PENDING survives the leader (--pending-state persisted)
	enabled        func() bool // share.version and transaction.version are finalized high enough
	now            func() time.Time
	logf           func(format string, args ...any)
}

// plane is the broker side of share groups. It is safe for concurrent use.
type plane struct {
	k     kafka
	co    coordinator
	cfg   planeConfig
	state shareStateAPI

	// ctx ends with the plane. Writes of share state use it and not the
	// request's: a connection that breaks must not leave it open whether a
	// change was persisted.
	ctx    context.Context
	cancel context.CancelFunc

	sessions sessionCache
	txns     txnTable
	counted  planeMetrics

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // timers' functions that run
	groups map[string]*shareGroup
	leads  map[shareStateKey]*leaderPartition
	logs   map[logKey]map[*leaderPartition]struct{} // leads by what they read
	waits  map[*fetchWaiter]struct{}
}

// logKey names a partition of the log.
type logKey struct {
	topic     string
	partition int32
}

func newPlane(k kafka, co coordinator, cfg planeConfig) *plane {
	if cfg.now == nil {
		cfg.now = time.Now
	}
	if cfg.logf == nil {
		cfg.logf = func(string, ...any) {}
	}
	if cfg.enabled == nil {
		cfg.enabled = func() bool { return true }
	}
	p := &plane{
		k: k, co: co, cfg: cfg,
		state:  shareStateAPI{kafka: k, coordinator: co},
		groups: make(map[string]*shareGroup),
		leads:  make(map[shareStateKey]*leaderPartition),
		logs:   make(map[logKey]map[*leaderPartition]struct{}),
		waits:  make(map[*fetchWaiter]struct{}),
	}
	p.counted.now = cfg.now
	p.co = measuredCoordinator{co, k, &p.counted}
	p.state.coordinator = p.co
	p.sessions.init()
	p.txns.init()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// handle answers one request; an error means that the connection has to be
// closed. It may block: ShareFetch waits for records.
func (p *plane) handle(ctx context.Context, c caller, req kmsg.Request) (resp kmsg.Response, err error) {
	defer func(start time.Time) { p.measured(c, req, resp, start) }(p.cfg.now())
	switch req := req.(type) {
	case *kmsg.ShareGroupHeartbeatRequest:
		return p.handleHeartbeat(ctx, c, req)
	case *kmsg.ShareGroupDescribeRequest:
		return p.handleDescribe(c, req)
	case *kmsg.ShareFetchRequest:
		return p.handleShareFetch(ctx, c, req)
	case *kmsg.ShareAcknowledgeRequest:
		return p.handleShareAcknowledge(ctx, c, req)
	case *kmsg.DescribeShareGroupOffsetsRequest:
		return p.handleDescribeOffsets(ctx, c, req)
	case *kmsg.AlterShareGroupOffsetsRequest:
		return p.handleAlterOffsets(ctx, c, req)
	case *kmsg.DeleteShareGroupOffsetsRequest:
		return p.handleDeleteOffsets(ctx, c, req)
	case *wire.TxnShareAcknowledgeRequest:
		return p.handleTxnShareAcknowledge(ctx, c, req)
	case *kmsg.InitializeShareGroupStateRequest, *kmsg.ReadShareGroupStateRequest,
		*kmsg.WriteShareGroupStateRequest, *kmsg.DeleteShareGroupStateRequest,
		*kmsg.ReadShareGroupStateSummaryRequest:
		return p.state.handle(ctx, c, req)
	}
	return nil, fmt.Errorf("share plane: api key %d is not served", req.Key())
}

// close ends every wait and timer and returns when nothing of the plane runs.
func (p *plane) close() {
	p.mu.Lock()
	p.closed = true
	groups := make([]*shareGroup, 0, len(p.groups))
	for _, g := range p.groups {
		groups = append(groups, g)
	}
	leads := make([]*leaderPartition, 0, len(p.leads))
	for _, lp := range p.leads {
		leads = append(leads, lp)
	}
	p.mu.Unlock()

	p.cancel()
	for _, g := range groups {
		g.stopTimers()
	}
	for _, lp := range leads {
		lp.stopTimer()
	}
	p.work.Wait()
}

// after runs f in d, unless the plane is closed by then.
func (p *plane) after(d time.Duration, f func()) *time.Timer {
	return time.AfterFunc(max(d, 0), func() {
		if !p.enter() {
			return
		}
		defer p.work.Done()
		f()
	})
}

// enter counts the caller as work that close waits for; false when closed.
func (p *plane) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.work.Add(1)
	return true
}

// connectionClosed closes the share sessions that were opened on c: records
// acquired in them become available again, TX_PENDING ones stay.
func (p *plane) connectionClosed(c caller) {
	for _, s := range p.sessions.removeConnection(c.conn) {
		p.releaseSession(s)
	}
}

// logAppended tells that records were appended to a partition, or that more of
// them became visible there.
func (p *plane) logAppended(topic string, partition int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for lp := range p.logs[logKey{topic, partition}] {
		lp.wake()
	}
}

// logMayHaveGrown tells that any partition may have new records to show, such
// as after the end of a transaction.
func (p *plane) logMayHaveGrown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.waits {
		w.wake()
	}
}

// Configuration

// configInt reads a numeric GROUP config, such as
// "share.record.lock.duration.ms".
func (p *plane) configInt(group, name string, otherwise int64) int64 {
	return parseConfigInt(p.k.groupConfig(group, name), otherwise)
}

// brokerInt reads a numeric broker config, such as "group.share.max.size".
func (p *plane) brokerInt(name string, otherwise int64) int64 {
	return parseConfigInt(p.k.brokerConfig(name), otherwise)
}

func parseConfigInt(s string, otherwise int64) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

func (p *plane) lockDuration(group string) time.Duration {
	return time.Duration(p.configInt(group, "share.record.lock.duration.ms", 30_000)) * time.Millisecond
}

func (p *plane) readCommitted(group string) bool {
	return p.k.groupConfig(group, "share.isolation.level") == "read_committed"
}

// limits returns what an operation on a share-partition of the group obeys.
func (p *plane) limits(group string) partitionLimits {
	return partitionLimits{
		deliveryCountLimit: int16(p.configInt(group, "share.delivery.count.limit", 5)),
		maxRecordLocks:     int(p.configInt(group, "share.partition.max.record.locks", 2000)),
		lockDuration:       p.lockDuration(group),
		renew:              p.k.groupConfig(group, "share.renew.acknowledge.enable") != "false",
	}
}

// errorName returns Kafka's name of an error code.
func errorName(code int16) string {
	if e := kerr.TypedErrorForCode(code); e != nil {
		return e.Message
	}
	return "NONE"
}

// message returns the error message that goes with a code, nil with none.
func message(code int16) *string {
	if code == 0 {
		return nil
	}
	e := kerr.TypedErrorForCode(code)
	if e == nil {
		return nil
	}
	return &e.Description
}

// What the control address and tests see

// planeSnapshot is the state of the share plane at one moment: each part of it
// is consistent in itself, the parts may be a request apart.
type planeSnapshot struct {
	Groups     []groupSnapshot     `json:"groups"`     // by group ID
	Sessions   []sessionSnapshot   `json:"sessions"`   // by group, member, broker
	Partitions []partitionSnapshot `json:"partitions"` // those loaded; by group, topic, partition
}

// groupSnapshot is one share group.
type groupSnapshot struct {
	GroupID    string           `json:"group_id"`
	State      string           `json:"state"` // "Empty" or "Stable"
	GroupEpoch int32            `json:"group_epoch"`
	Members    []memberSnapshot `json:"members"` // by member ID
}

// memberSnapshot is one member of a share group.
type memberSnapshot struct {
	MemberID    string             `json:"member_id"`
	MemberEpoch int32              `json:"member_epoch"`
	ClientID    string             `json:"client_id"`
	Topics      []string           `json:"subscribed_topic_names"`
	Assignment  map[string][]int32 `json:"assignment"` // by topic name
}

// sessionSnapshot is one share session.
type sessionSnapshot struct {
	GroupID    string `json:"group_id"`
	MemberID   string `json:"member_id"`
	Broker     int32  `json:"broker"`
	NextEpoch  int32  `json:"next_epoch"`
	Partitions int    `json:"partitions"`
}

// partitionSnapshot is one share-partition as its leader holds it.
type partitionSnapshot struct {
	GroupID      string          `json:"group_id"`
	Topic        string          `json:"topic"`
	Partition    int32           `json:"partition"`
	Leader       int32           `json:"leader"`
	LeaderEpoch  int32           `json:"leader_epoch"`
	StateEpoch   int32           `json:"state_epoch"`
	StartOffset  int64           `json:"start_offset"`
	EndOffset    int64           `json:"end_offset"`
	InFlight     int             `json:"in_flight"`
	PendingCount int             `json:"pending_count"`
	Ranges       []rangeSnapshot `json:"ranges"`
}

// rangeSnapshot is a range of records that are alike.
type rangeSnapshot struct {
	FirstOffset     int64      `json:"first_offset"`
	LastOffset      int64      `json:"last_offset"`
	State           string     `json:"state"`
	DeliveryCount   int16      `json:"delivery_count"`
	MemberID        string     `json:"member_id,omitempty"`
	LockExpiry      *time.Time `json:"lock_expiry,omitempty"`
	ProducerID      *int64     `json:"producer_id,omitempty"`      // of TX_PENDING
	ProducerEpoch   *int16     `json:"producer_epoch,omitempty"`   // of TX_PENDING
	TransactionalID string     `json:"transactional_id,omitempty"` // of TX_PENDING, where known
}

// snapshot returns the state of the plane.
func (p *plane) snapshot() planeSnapshot {
	p.mu.Lock()
	groups := make([]*shareGroup, 0, len(p.groups))
	for _, g := range p.groups {
		groups = append(groups, g)
	}
	leads := make([]*leaderPartition, 0, len(p.leads))
	for _, lp := range p.leads {
		leads = append(leads, lp)
	}
	p.mu.Unlock()

	s := planeSnapshot{Sessions: p.sessions.snapshot()}
	for _, g := range groups {
		s.Groups = append(s.Groups, g.snapshot(p.topicName))
	}
	slices.SortFunc(s.Groups, func(a, b groupSnapshot) int { return cmp.Compare(a.GroupID, b.GroupID) })
	for _, lp := range leads {
		if ps, ok := p.partitionSnapshot(lp); ok {
			s.Partitions = append(s.Partitions, ps)
		}
	}
	slices.SortFunc(s.Partitions, func(a, b partitionSnapshot) int {
		return cmp.Or(cmp.Compare(a.GroupID, b.GroupID), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return s
}

// topicName returns the name of a topic, its ID in Kafka's text form if it is gone.
func (p *plane) topicName(id [16]byte) string {
	if t, ok := p.k.topicByID(id); ok {
		return t.name
	}
	return topicIDText(id)
}

func (p *plane) partitionSnapshot(lp *leaderPartition) (partitionSnapshot, bool) {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	if lp.sp == nil || lp.retired {
		return partitionSnapshot{}, false
	}
	ps := partitionSnapshot{
		GroupID: lp.key.group, Topic: lp.topic, Partition: lp.key.partition, Leader: lp.leader,
		LeaderEpoch: lp.leaderEpoch, StateEpoch: lp.stateEpoch,
		StartOffset: lp.sp.startOffset(), EndOffset: lp.sp.endOffset(),
		InFlight: lp.sp.inFlight(), PendingCount: lp.pending,
	}
	for _, r := range lp.sp.ranges() {
		rs := rangeSnapshot{
			FirstOffset: r.first, LastOffset: r.last, State: r.state.String(),
			DeliveryCount: r.deliveryCount, MemberID: r.memberID,
		}
		if !r.lockExpiry.IsZero() {
			rs.LockExpiry = &r.lockExpiry
		}
		if r.state == wire.TxPending {
			rs.ProducerID, rs.ProducerEpoch = &r.producerID, &r.producerEpoch
			rs.TransactionalID = p.txns.idOf(r.producerID)
		}
		ps.Ranges = append(ps.Ranges, rs)
	}
	return ps, true
}
