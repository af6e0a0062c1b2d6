package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Member epochs with a meaning of their own (KIP-932).
const (
	joinEpoch  int32 = 0
	leaveEpoch int32 = -1
)

// join sends the first heartbeat until the coordinator accepts it, and returns
// the interval to heartbeat at.
func (c *Consumer) join(ctx context.Context) (time.Duration, error) {
	for try := 0; ; try++ {
		resp, err := c.heartbeat(ctx, joinEpoch)
		if err == nil {
			return heartbeatInterval(resp), nil
		}
		if unanswered := cluster.IsUnanswered(err) && try < joinTries; !isRetriable(err) && !unanswered {
			return 0, err
		}
		if ended := pause.For(ctx, backoff(try)); ended != nil {
			return 0, cluster.Join(ended, err)
		}
	}
}

// joinTries is how often joining is tried again when no broker answers, in some
// seconds. A coordinator that answers that it is loading is waited for.
const joinTries = 8

func heartbeatInterval(resp *kmsg.ShareGroupHeartbeatResponse) time.Duration {
	return time.Duration(max(resp.HeartbeatIntervalMillis, 1)) * time.Millisecond
}

func isRetriable(err error) bool {
	ke, ok := errors.AsType[*kerr.Error](err)
	return ok && ke.Retriable
}

// heartbeat sends one heartbeat under the given epoch and takes over what the
// coordinator answers.
func (c *Consumer) heartbeat(ctx context.Context, epoch int32) (*kmsg.ShareGroupHeartbeatResponse, error) {
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.GroupID, req.MemberID, req.MemberEpoch = c.cfg.GroupID, c.cfg.MemberID, epoch
	if c.cfg.RackID != "" {
		req.RackID = &c.cfg.RackID
	}
	if epoch == joinEpoch {
		req.SubscribedTopicNames = c.cfg.Topics
	}
	kresp, err := c.cl.Request(ctx, req)
	if err != nil {
		if epoch == joinEpoch {
			if tooOld := c.tooOld(ctx); tooOld != nil {
				return nil, tooOld
			}
		}
		return nil, &cluster.Error{Op: c.op("heartbeat to"), Broker: -1, Err: err}
	}
	resp := kresp.(*kmsg.ShareGroupHeartbeatResponse)
	if resp.ErrorCode == kerr.UnsupportedVersion.Code {
		return nil, notEnabled()
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		e := &cluster.Error{Op: c.op("heartbeat to"), Broker: -1, Err: err, Advice: heartbeatHint(resp.ErrorCode)}
		if resp.ErrorMessage != nil {
			e.Detail = *resp.ErrorMessage
		}
		return nil, cluster.Classify(e)
	}
	if epoch == leaveEpoch {
		return resp, nil
	}
	return resp, c.takeAssignment(ctx, epoch, resp)
}

// heartbeatHint returns what to do about an error of a heartbeat, "" if nothing
// is known to help.
func heartbeatHint(code int16) string {
	switch code {
	case kerr.GroupIDNotFound.Code:
		return "the group ID belongs to a group of another type; choose another --group"
	case kerr.GroupMaxSizeReached.Code:
		return "the group is full (group.share.max.size); stop a member or raise the limit"
	default:
		return ""
	}
}

// whatShareGroups is what cannot be used on a cluster without them.
const whatShareGroups = "a share group (KIP-932)"

// notEnabled is what a broker that knows share groups means by
// UNSUPPORTED_VERSION.
func notEnabled() error {
	return &cluster.UnsupportedError{
		What: whatShareGroups, Reason: "share.version is 0",
		Advice: "finalize a level of share.version",
	}
}

func isUnsupported(err error) bool {
	_, ok := errors.AsType[*cluster.UnsupportedError](err)
	return ok
}

// tooOld explains a request that was not sent by the brokers that do not know
// it, nil when all do: kgo's own error is none that could be told from others.
func (c *Consumer) tooOld(ctx context.Context) error {
	brokers, err := c.cl.BrokerVersions(ctx)
	if err != nil {
		return nil
	}
	var nodes []string
	for _, b := range brokers {
		if _, ok := b.Keys[kmsg.ShareGroupHeartbeat.Int16()]; b.Err == nil && !ok {
			nodes = append(nodes, strconv.Itoa(int(b.NodeID)))
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return &cluster.UnsupportedError{
		What: whatShareGroups, Reason: "these brokers do not know it: " + strings.Join(nodes, ", "),
		Advice: "share groups need Kafka 4.1 or later on all brokers",
	}
}

func (c *Consumer) op(verb string) string {
	return fmt.Sprintf("%s share group %q", verb, c.cfg.GroupID)
}

// takeAssignment stores the epoch and, when it came with one, the assignment. sent
// is the epoch that the heartbeat had.
//
// A coordinator tells an assignment once. An epoch that has risen without one may
// be that of an assignment whose response was lost, and that kgo has asked for again
// by itself: to the coordinator, nothing has changed since then.
func (c *Consumer) takeAssignment(ctx context.Context, sent int32, resp *kmsg.ShareGroupHeartbeatResponse) error {
	var assigned map[TopicPartition]bool
	untold := resp.Assignment == nil && resp.MemberEpoch != sent
	if resp.Assignment != nil {
		topics, err := c.cl.Topics(ctx, c.cfg.Topics...)
		if err != nil {
			return err
		}
		names := make(map[[16]byte]string, len(topics))
		for name, t := range topics {
			names[t.ID] = name
		}
		assigned = make(map[TopicPartition]bool)
		for _, t := range resp.Assignment.TopicPartitions {
			name, ok := names[t.TopicID]
			if !ok {
				// It was deleted, which the next assignment says, or is so new that
				// not every broker knows it yet.
				untold = true
				continue
			}
			for _, p := range t.Partitions {
				assigned[TopicPartition{name, t.TopicID, p}] = true
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memberEpoch = resp.MemberEpoch
	if assigned != nil {
		c.assigned = assigned
		c.stale = true
	}
	c.untold = untold || c.untold && assigned == nil
	c.notify()
	return nil
}

// heartbeatLoop keeps the membership alive. A member that was removed joins
// again under the same ID; what it had acquired, it no longer owns.
func (c *Consumer) heartbeatLoop(interval time.Duration) {
	fails, early := 0, 0
	for {
		// A coordinator hands out the assignment some heartbeats after the join;
		// waiting a whole interval for it would idle every short run.
		wait := interval
		if len(c.Assigned()) == 0 {
			wait = min(interval, backoff(early))
			early++
		} else {
			early = 0
		}
		if fails > 0 {
			wait = min(interval, backoff(fails))
		}
		done, ok := c.waitToBeat(wait)
		if !ok {
			return
		}
		next, err := c.beatOnce()
		done <- struct{}{}
		switch {
		case err == nil:
			fails = 0
			interval = next
		case c.ctx.Err() != nil:
			return
		case isFatal(err):
			c.fail(err)
			return
		default:
			fails++
		}
	}
}

// waitToBeat waits for the next heartbeat to be due, or to be asked for. It
// returns whom to tell when it is done; false when the consumer ends.
func (c *Consumer) waitToBeat(wait time.Duration) (done chan<- struct{}, ok bool) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return make(chan struct{}, 1), true
	case done := <-c.beat:
		return done, true
	case <-c.ctx.Done():
		return nil, false
	}
}

// beatOnce sends one heartbeat, and joins again if the coordinator does not know
// the member as we do. It returns the interval to the next one.
func (c *Consumer) beatOnce() (time.Duration, error) {
	epoch := c.beatEpoch()
	resp, err := c.heartbeat(c.ctx, epoch)
	switch {
	case isLost(err):
		go c.cfg.Lost(err)
		c.dropAssignment()
		resp, err = c.heartbeat(c.ctx, joinEpoch)
	case err == nil && epoch != joinEpoch && c.beatEpoch() == joinEpoch:
		resp, err = c.heartbeat(c.ctx, joinEpoch)
	}
	if err != nil {
		return 0, err
	}
	return heartbeatInterval(resp), nil
}

// beatEpoch is the epoch for the next heartbeat: the member's, or that of a join
// when the assignment is to be told again, as to one that comes back. A member that
// is known keeps its place and its epoch then.
func (c *Consumer) beatEpoch() int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.untold {
		return joinEpoch
	}
	return c.memberEpoch
}

func (c *Consumer) dropAssignment() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.memberEpoch = joinEpoch
	c.assigned = make(map[TopicPartition]bool)
	c.resetSessions()
	c.notify()
}

func (c *Consumer) leave(ctx context.Context) error {
	if c.identity().MemberEpoch == joinEpoch {
		return nil
	}
	_, err := c.heartbeat(ctx, leaveEpoch)
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.GroupIDNotFound) || isUnsupported(err) {
		return nil // gone already, which is what was wanted
	}
	return err
}

// leaderLoop looks up leaders when the assignment or an answer asks for it, and
// starts a fetcher for each leader.
func (c *Consumer) leaderLoop() {
	for try := 0; ; {
		c.mu.Lock()
		stale, changed := c.stale && len(c.assigned) > 0, c.changed
		c.mu.Unlock()
		if !stale {
			select {
			case <-changed:
				continue
			case <-c.ctx.Done():
				return
			}
		}
		err := c.lookUpLeaders()
		switch {
		case err == nil:
			try = 0
			continue
		case c.ctx.Err() != nil:
			return
		case isFatal(err), errors.Is(err, kerr.UnknownTopicOrPartition) && try >= maxUnknownTopic:
			c.fail(err)
			return
		case try == 0:
			c.cfg.Warn(err)
		}
		if !c.wait(backoff(try)) {
			return
		}
		try++
	}
}

// maxUnknownTopic is how often a topic may be unknown in a row, about half a
// minute, before it is taken for deleted.
const maxUnknownTopic = 10

func (c *Consumer) lookUpLeaders() error {
	c.mu.Lock()
	c.stale = false
	c.mu.Unlock()
	topics, err := c.cl.Topics(c.ctx, c.cfg.Topics...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.stale = true
		return err
	}
	leaders := make(map[TopicPartition]int32, len(c.assigned))
	for _, tp := range sortedPartitions(c.assigned) {
		t := topics[tp.Topic]
		if t.ID != tp.TopicID {
			// Recreated, as the next assignment says; or it is, and this broker has
			// not heard of it yet.
			c.stale = true
			err = &cluster.Error{Op: c.op("find the leader for"), Broker: -1, Topic: tp.Topic, Partition: tp.Partition, Err: kerr.UnknownTopicID}
			continue
		}
		leader := t.Leader(tp.Partition)
		if leader < 0 {
			c.stale = true
			err = &cluster.Error{Op: c.op("find the leader for"), Broker: -1, Topic: tp.Topic, Partition: tp.Partition, Err: kerr.LeaderNotAvailable}
			continue
		}
		leaders[tp] = leader
	}
	c.leaders = leaders
	for _, node := range leaders {
		if c.sessions[node] == nil && !c.closed {
			s := c.newSession(node)
			c.sessions[node] = s
			c.wg.Go(s.fetchLoop)
		}
	}
	c.notify()
	return err
}

// newSession returns a session with a leader that is not open yet.
func (c *Consumer) newSession(node int32) *session {
	return &session{c: c, node: node, have: make(map[TopicPartition]bool), turns: make(map[TopicPartition]int64), turn: make(chan struct{}, 1), left: c.named}
}

// lookAgain asks the leader loop for another look. Called without mu.
func (c *Consumer) lookAgain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stale = true
	c.notify()
}

func sortedPartitions[V any](m map[TopicPartition]V) []TopicPartition {
	return slices.SortedFunc(maps.Keys(m), compareTopicPartitions)
}
