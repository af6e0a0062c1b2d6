package share

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Share session epochs with a meaning of their own (KIP-932).
const (
	openSession  int32 = 0
	closeSession int32 = -1
)

// How a broker is to acquire (KIP-1206, ShareFetch v2).
const (
	// acquireBatchOptimised acquires whole record batches, so that none has to
	// be sent and decoded again for its other records.
	acquireBatchOptimised int8 = 0
	// acquireRecordLimit acquires no more than was asked for.
	acquireRecordLimit int8 = 1
)

// recordLimitBelow is up to which MaxRecords the limit is kept to the record.
// Below it, the rest of a record batch may be many times what was asked for; it
// would be held for long, and lose one delivery each time its holder dies.
const recordLimitBelow = 1000

func acquireMode(maxRecords int32) int8 {
	if maxRecords < recordLimitBelow {
		return acquireRecordLimit
	}
	return acquireBatchOptimised
}

// session is the share session with one leader. Its epoch has to rise by one
// with each request, so requests take turns.
type session struct {
	c    *Consumer
	node int32
	turn chan struct{} // holds one token while a request is under way

	// The fields below are touched with the turn held only.
	epoch int32
	have  map[TopicPartition]bool  // partitions in the session
	turns map[TopicPartition]int64 // holdings.turn when they were added to it
	empty int                      // fetches in a row that returned nothing
	left  bool                     // the broker may still have a session, given up on or of a predecessor

	stale bool // close it, and open a new one when there is something to fetch; guarded by c.mu
}

func (s *session) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) give() { <-s.turn }

// reset makes the next request open a new session. Called with c.mu held.
func (s *session) reset() { s.stale = true }

// begin returns the epoch for the next request. Called with the turn held.
func (s *session) begin() int32 {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.stale {
		s.stale = false
		s.left = s.left || s.epoch != openSession
		s.epoch = openSession
	}
	if s.epoch == openSession {
		clear(s.have)
	}
	return s.epoch
}

// advance moves to the epoch after a request that the broker accepted.
func (s *session) advance() {
	if s.epoch == math.MaxInt32 {
		s.epoch = 1
		return
	}
	s.epoch++
}

// abandon forgets the session after a request whose fate is unknown or that the
// broker refused as a whole. What it handed out and Poll has not returned yet
// is dropped: the broker releases it with the session.
func (s *session) abandon(err error) {
	s.left = !errors.Is(err, kerr.ShareSessionNotFound)
	s.epoch = openSession
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	s.stale = true
	c.dropReady(func(p *PartitionBatch) bool { return p.session == s })
}

// fetchLoop fetches whenever Poll has taken all of the fetch before.
func (s *session) fetchLoop() {
	fails, warned := 0, ""
	for {
		want, ok := s.awaitDemand()
		if !ok {
			return
		}
		var err error
		if len(want) > 0 {
			err = s.fetch(want)
		} else {
			err = s.giveUp()
		}
		switch {
		case err == nil:
			fails, warned = 0, ""
		case s.c.ctx.Err() != nil:
			return
		case isFatal(err):
			s.c.fail(err)
			return
		default:
			switch {
			case isLost(err):
				go s.c.cfg.Lost(err)
			case errors.Is(err, kerr.ShareSessionLimitReached):
				s.c.warnOfLimit(err)
			case err.Error() != warned: // an outage is told once, not with each try
				warned = err.Error()
				if partly, ok := errors.AsType[*partlyError](err); ok {
					err = partly.error
				}
				s.c.cfg.Warn(err)
			}
			s.c.lookAgain()
			pause := backoff(fails)
			fails++
			if partly, ok := errors.AsType[*partlyError](err); ok {
				// The others have records, or will: they do not wait long for it.
				pause = min(pause, partlyBackoff)
				if partly.fetched {
					fails = 0
				}
			}
			if !s.c.wait(pause) {
				return
			}
		}
	}
}

// partlyBackoff is how long a leader is left alone, at the most, that cannot serve
// some partitions. It answers at once for as long as that is so.
const partlyBackoff = time.Second

// partlyError says that a fetch has failed for some of its partitions.
type partlyError struct {
	error        // of the first one
	fetched bool // others have brought records
}

// Unwrap returns the error.
func (e *partlyError) Unwrap() error { return e.error }

// limitWarnings is how often is told of a limit that others have to make room
// below: it may last, and nothing else shows it.
const limitWarnings = time.Minute

// warnOfLimit warns of it, whichever leader says so.
func (c *Consumer) warnOfLimit(err error) {
	c.mu.Lock()
	now := c.cfg.Now()
	due := c.limited.IsZero() || now.Sub(c.limited) >= limitWarnings
	if due {
		c.limited = now
	}
	c.mu.Unlock()
	if due {
		c.cfg.Warn(err)
	}
}

// awaitDemand blocks until there is something to fetch from this leader and
// room for it, or nothing to fetch and a session to close; false when the consumer
// ends.
func (s *session) awaitDemand() (map[TopicPartition]bool, bool) {
	for {
		c := s.c
		c.mu.Lock()
		want := make(map[TopicPartition]bool)
		for tp, node := range c.leaders {
			if node == s.node && c.assigned[tp] {
				want[tp] = true
			}
		}
		idle := len(want) == 0 && !s.stale || slices.ContainsFunc(c.ready, func(p *PartitionBatch) bool { return p.session == s })
		closed, changed := c.closed, c.changed
		c.mu.Unlock()
		if closed {
			return nil, false
		}
		if !idle {
			return want, true
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
			return nil, false
		}
	}
}

// giveUp closes a session that was given up, at a leader from which there is
// nothing to fetch any more: what it has acquired would stay locked otherwise.
func (s *session) giveUp() error {
	if err := s.take(s.c.ctx); err != nil {
		return err
	}
	defer s.give()
	if s.begin(); !s.left {
		return nil
	}
	return s.sendClose(s.c.requests)
}

func (s *session) fetch(want map[TopicPartition]bool) error {
	c := s.c
	if err := s.take(c.ctx); err != nil {
		return err
	}
	defer s.give()
	epoch := s.begin()
	if s.left {
		// Opening a session over another one would leave what that one acquired
		// locked; closing it releases that.
		if err := s.sendClose(c.requests); err != nil {
			return err
		}
	}
	req := kmsg.NewPtrShareFetchRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = &c.cfg.GroupID, &c.cfg.MemberID, epoch
	req.MaxWaitMillis = int32(s.maxWait().Milliseconds())
	req.MinBytes, req.MaxBytes = 1, c.cfg.MaxBytes
	req.MaxRecords, req.BatchSize = c.cfg.MaxRecords, c.cfg.MaxRecords
	req.ShareAcquireMode = acquireMode(c.cfg.MaxRecords)
	s.addPartitions(req, want)

	sent := c.cfg.Now()
	kresp, err := c.cl.RequestBroker(c.requests, s.node, req)
	if err != nil {
		s.abandon(err)
		return &cluster.Error{Op: c.op("fetch for"), Broker: s.node, Err: err}
	}
	resp := kresp.(*kmsg.ShareFetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		s.abandon(err)
		return s.responseError("fetch for", err, resp.ErrorMessage)
	}
	s.advance()
	for tp := range want {
		s.have[tp] = true
	}
	return s.takeFetched(resp, sent)
}

// firstWait is how long the first fetch after records waits for more.
const firstWait = 50 * time.Millisecond

// maxWait is how long the broker may hold the next fetch: longer with each one
// that was empty, up to MaxWait. A fetch that is held cannot be called back, and
// delays both acknowledgements and Close, so a busy member waits briefly.
func (s *session) maxWait() time.Duration {
	return min(s.c.cfg.MaxWait, firstWait<<min(s.empty, 10))
}

// addPartitions tells the broker what changed in the session's partitions.
func (s *session) addPartitions(req *kmsg.ShareFetchRequest, want map[TopicPartition]bool) {
	byTopic := make(map[[16]byte]*kmsg.ShareFetchRequestTopic)
	var order [][16]byte
	for _, tp := range sortedPartitions(want) {
		if s.have[tp] {
			continue
		}
		s.turns[tp] = s.c.nextTurn(tp)
		t := byTopic[tp.TopicID]
		if t == nil {
			t = &kmsg.ShareFetchRequestTopic{TopicID: tp.TopicID}
			byTopic[tp.TopicID] = t
			order = append(order, tp.TopicID)
		}
		p := kmsg.NewShareFetchRequestTopicPartition()
		p.Partition = tp.Partition
		p.PartitionMaxBytes = req.MaxBytes
		t.Partitions = append(t.Partitions, p)
	}
	for _, id := range order {
		req.Topics = append(req.Topics, *byTopic[id])
	}
	for _, tp := range sortedPartitions(s.have) {
		if want[tp] {
			continue
		}
		delete(s.have, tp)
		n := len(req.ForgottenTopicsData)
		if n == 0 || req.ForgottenTopicsData[n-1].TopicID != tp.TopicID {
			req.ForgottenTopicsData = append(req.ForgottenTopicsData, kmsg.ShareFetchRequestForgottenTopicsData{TopicID: tp.TopicID})
			n++
		}
		f := &req.ForgottenTopicsData[n-1]
		f.Partitions = append(f.Partitions, tp.Partition)
	}
}

// takeFetched decodes a response and queues what it holds for Poll.
func (s *session) takeFetched(resp *kmsg.ShareFetchResponse, sent time.Time) error {
	c := s.c
	lock := time.Duration(resp.AcquisitionLockTimeoutMillis) * time.Millisecond
	var out []*PartitionBatch
	var undecodable Acknowledgements
	var firstErr error
	for i := range resp.Topics {
		rt := &resp.Topics[i]
		for j := range rt.Partitions {
			rp := &rt.Partitions[j]
			tp, ok := s.lookUp(rt.TopicID, rp.Partition)
			if !ok {
				continue
			}
			if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
				// It stays in the session, and the broker answers at once for as
				// long as it does: a later request forgets it, when the leader is
				// known to be another one.
				if firstErr == nil {
					firstErr = s.partitionError("fetch for", tp, err, rp.ErrorMessage)
				}
				continue
			}
			ranges := acquiredRanges(rp)
			fetch := s.acquired(tp, ranges)
			p, err := decodePartition(tp, rp, ranges, c.dec)
			if err != nil {
				for _, r := range p.Acquired {
					undecodable.AddRange(tp, r.Range, wire.Release)
				}
				firstErr = s.partitionError("decode records for", tp, err, nil)
				continue
			}
			if len(p.Acquired) == 0 {
				continue
			}
			// The lock started when the broker acquired, after the request was
			// sent: counting from there errs on the safe side.
			p.session, p.turn, p.fetch, p.Leader, p.LockDuration, p.LockDeadline = s, s.turns[tp], fetch, s.node, lock, sent.Add(lock)
			out = append(out, p)
		}
	}
	if !undecodable.Empty() {
		if err := s.acknowledge(c.requests, &undecodable, false); err != nil {
			c.cfg.Warn(err)
		}
	}
	s.empty++
	if len(out) > 0 {
		s.empty = 0
	}
	c.mu.Lock()
	if s.stale {
		out = nil // given up while it was on its way
	}
	c.ready = append(c.ready, out...)
	if len(out) == 0 {
		c.empty++
	} else {
		c.empty = 0
	}
	c.notify()
	c.mu.Unlock()
	if firstErr != nil {
		return &partlyError{firstErr, len(out) > 0}
	}
	return nil
}

// acquired notes what a fetch has acquired before the records are decoded, which
// takes a while, and returns its number.
func (s *session) acquired(tp TopicPartition, ranges []AcquiredRange) int64 {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.c.holdingsOf(tp).acquire(ranges)
}

// lookUp finds the name of a partition of the session.
func (s *session) lookUp(id [16]byte, partition int32) (TopicPartition, bool) {
	for tp := range s.have {
		if tp.TopicID == id && tp.Partition == partition {
			return tp, true
		}
	}
	return TopicPartition{}, false
}

func (s *session) responseError(verb string, err error, message *string) error {
	if errors.Is(err, kerr.UnsupportedVersion) {
		return notEnabled()
	}
	e := &cluster.Error{Op: s.c.op(verb), Broker: s.node, Err: err}
	if message != nil {
		e.Detail = *message
	}
	if errors.Is(err, kerr.ShareSessionLimitReached) {
		e.Detail = "group.share.max.share.sessions is reached; waiting for others to leave"
		e.Advice = "raise group.share.max.share.sessions on the brokers, or run fewer members"
	}
	return cluster.Classify(e)
}

func (s *session) partitionError(verb string, tp TopicPartition, err error, message *string) error {
	e := &cluster.Error{Op: s.c.op(verb), Broker: s.node, Topic: tp.Topic, Partition: tp.Partition, Err: err}
	if message != nil {
		e.Detail = *message
	}
	return cluster.Classify(e)
}

// Acknowledge acknowledges plainly, outside any transaction, in one request for
// each leader. Only Gap, Accept, Release and Reject are allowed; for Renew see
// [Consumer.Renew]. Partitions that were superseded ([Consumer.CheckHeld]) are
// left out: what was acquired since is another batch's. It returns the first error
// of each leader, joined: INVALID_RECORD_STATE and SHARE_SESSION_NOT_FOUND mean that
// the records are not held any more. After Close it returns ErrClosed.
func (c *Consumer) Acknowledge(ctx context.Context, b *Batch, acks *Acknowledgements) error {
	return c.eachLeader(ctx, b, acks, func(ctx context.Context, s *session, a *Acknowledgements) error {
		return s.acknowledgeTaken(ctx, a, false)
	})
}

// Renew restarts the acquisition lock of everything in the batch (KIP-1222,
// ShareAcknowledge v2 with Renew), and moves the batch's deadlines, which nobody
// may read meanwhile. It returns an error, and leaves the deadlines, when a broker
// is too old for it or the group does not allow it (share.renew.acknowledge.enable).
func (c *Consumer) Renew(ctx context.Context, b *Batch) error {
	sent := c.cfg.Now()
	if err := c.renew(ctx, b); err != nil {
		return err
	}
	for _, p := range b.Partitions {
		p.LockDeadline = sent.Add(p.LockDuration)
	}
	return nil
}

// Waiting returns what was fetched and Poll has not returned yet. It is to be
// looked at only: the records still belong to the consumer. The deadlines are those
// of now.
func (c *Consumer) Waiting() *Batch {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &Batch{Partitions: make([]*PartitionBatch, 0, len(c.ready))}
	for _, p := range c.ready {
		b.Partitions = append(b.Partitions, new(*p)) // RenewWaiting writes to p
	}
	return b
}

// RenewWaiting restarts the acquisition locks of everything that was fetched and
// that Poll has not returned yet, as Renew does for a batch. A caller that takes
// long over one batch calls it, so that what waits behind it does not lose its
// locks, and with each of them a delivery. What Poll returns meanwhile keeps its
// old deadline; when that is acknowledged before this arrives, the error is
// INVALID_RECORD_STATE and no deadline is moved.
func (c *Consumer) RenewWaiting(ctx context.Context) error {
	waiting := c.Waiting()
	sent := c.cfg.Now()
	if err := c.renew(ctx, waiting); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.ready {
		if slices.ContainsFunc(waiting.Partitions, p.sameFetch) {
			p.LockDeadline = sent.Add(p.LockDuration)
		}
	}
	return nil
}

// renew restarts the locks of everything in b, and leaves its deadlines.
func (c *Consumer) renew(ctx context.Context, b *Batch) error {
	return c.eachLeader(ctx, b, b.All(wire.Renew), func(ctx context.Context, s *session, a *Acknowledgements) error {
		return s.acknowledgeTaken(ctx, a, true)
	})
}

// eachLeader splits acks by the leaders of the batch's partitions and calls do
// for each, at once. It returns ErrClosed after Close, which has released all.
func (c *Consumer) eachLeader(ctx context.Context, b *Batch, acks *Acknowledgements, do func(context.Context, *session, *Acknowledgements) error) error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return ErrClosed
	}
	superseded := c.superseded(b)
	byNode := make(map[int32]*Acknowledgements)
	for _, p := range b.Partitions {
		if superseded[p.TopicPartition] {
			continue
		}
		part := acks.parts[p.TopicPartition]
		if part == nil || len(part.spans) == 0 {
			continue
		}
		a := byNode[p.Leader]
		if a == nil {
			a = new(Acknowledgements)
			byNode[p.Leader] = a
		}
		if a.parts[p.TopicPartition] == nil { // one partition may come in several parts
			to := a.Partition(p.TopicPartition)
			for i := range part.spans {
				part.spans[i].each(to.AddRange)
			}
		}
	}
	errs := make(chan error, len(byNode))
	for node, a := range byNode {
		c.mu.Lock()
		s := c.sessions[node]
		c.mu.Unlock()
		go func() { errs <- do(ctx, s, a) }()
	}
	var all []error
	for range byNode {
		all = append(all, <-errs)
	}
	return cluster.Join(all...)
}

func (s *session) acknowledgeTaken(ctx context.Context, acks *Acknowledgements, renew bool) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	return s.acknowledge(ctx, acks, renew)
}

// acknowledge sends one ShareAcknowledge. Called with the turn held.
func (s *session) acknowledge(ctx context.Context, acks *Acknowledgements, renew bool) error {
	c := s.c
	c.mu.Lock()
	ended := s.stale || s.epoch == openSession
	c.mu.Unlock()
	if ended { // the records were released with it
		return s.responseError("acknowledge for", kerr.ShareSessionNotFound, nil)
	}
	req := kmsg.NewPtrShareAcknowledgeRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = &c.cfg.GroupID, &c.cfg.MemberID, s.epoch
	req.IsRenewAck = renew
	if err := addAcknowledgements(req, acks); err != nil {
		return err
	}
	kresp, err := c.cl.RequestBroker(ctx, s.node, req)
	if err != nil {
		s.abandon(err)
		return &cluster.Error{Op: c.op("acknowledge for"), Broker: s.node, Err: err}
	}
	resp := kresp.(*kmsg.ShareAcknowledgeResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		s.abandon(err)
		return s.responseError("acknowledge for", err, resp.ErrorMessage)
	}
	s.advance()
	if renew && resp.Version < renewVersion {
		return &cluster.Error{Op: c.op("renew acquisition locks of"), Broker: s.node, Err: kerr.UnsupportedVersion}
	}
	return s.acknowledgeErrors(resp)
}

// renewVersion is the first version of ShareAcknowledge with IsRenewAck.
const renewVersion = 2

func (s *session) acknowledgeErrors(resp *kmsg.ShareAcknowledgeResponse) error {
	var errs []error
	for _, rt := range resp.Topics {
		for _, rp := range rt.Partitions {
			err := kerr.ErrorForCode(rp.ErrorCode)
			if err == nil {
				continue
			}
			tp, ok := s.lookUp(rt.TopicID, rp.Partition)
			if !ok {
				tp = TopicPartition{Topic: fmt.Sprintf("%x", rt.TopicID), TopicID: rt.TopicID, Partition: rp.Partition}
			}
			errs = append(errs, s.partitionError("acknowledge for", tp, err, rp.ErrorMessage))
			if needsLeader(err) {
				s.moved(tp)
			}
		}
	}
	return cluster.Join(errs...)
}

// moved is called when this leader does not lead a partition any more. What it
// handed out of it will be handed out again.
func (s *session) moved(tp TopicPartition) {
	s.c.mu.Lock()
	s.c.dropReady(func(p *PartitionBatch) bool { return p.session == s && p.TopicPartition == tp })
	s.c.mu.Unlock()
	s.c.lookAgain()
}

func addAcknowledgements(req *kmsg.ShareAcknowledgeRequest, acks *Acknowledgements) error {
	for _, tp := range acks.Partitions() {
		batches, err := acks.Batches(tp)
		if err != nil {
			return err
		}
		n := len(req.Topics)
		if n == 0 || req.Topics[n-1].TopicID != tp.TopicID {
			req.Topics = append(req.Topics, kmsg.ShareAcknowledgeRequestTopic{TopicID: tp.TopicID})
			n++
		}
		rp := kmsg.NewShareAcknowledgeRequestTopicPartition()
		rp.Partition = tp.Partition
		for _, b := range batches {
			rp.AcknowledgementBatches = append(rp.AcknowledgementBatches, kmsg.ShareAcknowledgeRequestTopicPartitionAcknowledgementBatch{
				FirstOffset: b.FirstOffset, LastOffset: b.LastOffset, AcknowledgeTypes: b.AcknowledgeTypes,
			})
		}
		req.Topics[n-1].Partitions = append(req.Topics[n-1].Partitions, rp)
	}
	return nil
}

// close ends the session: the broker releases what is acquired and neither
// acknowledged nor staged.
func (s *session) close(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if s.begin() == openSession && !s.left {
		return nil
	}
	return s.sendClose(ctx)
}

// sendClose closes whatever session the broker has for the member, or leaves that
// to the next request. Called with the turn held.
func (s *session) sendClose(ctx context.Context) error {
	err := s.requestClose(ctx)
	if err != nil {
		s.c.mu.Lock()
		s.stale = true
		s.c.mu.Unlock()
	}
	return err
}

func (s *session) requestClose(ctx context.Context) error {
	req := kmsg.NewPtrShareAcknowledgeRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = &s.c.cfg.GroupID, &s.c.cfg.MemberID, closeSession
	s.epoch = openSession
	kresp, err := s.c.cl.RequestBroker(ctx, s.node, req)
	if err != nil {
		return &cluster.Error{Op: s.c.op("close the share session of"), Broker: s.node, Err: err}
	}
	resp := kresp.(*kmsg.ShareAcknowledgeResponse)
	err = kerr.ErrorForCode(resp.ErrorCode)
	if err == nil || errors.Is(err, kerr.ShareSessionNotFound) || errors.Is(err, kerr.UnsupportedVersion) {
		s.left = false
		return nil // share sessions end when share groups are switched off
	}
	return s.responseError("close the share session of", err, resp.ErrorMessage)
}
