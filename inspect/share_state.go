package inspect

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ShareKey names a share-partition.
type ShareKey struct {
	GroupID   string
	TopicID   [16]byte
	Partition int32
}

func (k ShareKey) compare(o ShareKey) int {
	return cmp.Or(strings.Compare(k.GroupID, o.GroupID), bytes.Compare(k.TopicID[:], o.TopicID[:]), cmp.Compare(k.Partition, o.Partition))
}

// Key names the share-partition of the state.
func (s ShareState) Key() ShareKey { return ShareKey{s.GroupID, s.TopicID, s.Partition} }

// ReadShareStates asks the share coordinators for the state of share-partitions
// (ReadShareGroupStateSummary v0 and v1, then ReadShareGroupState v0). The result
// is sorted by group ID, topic ID and partition; share-partitions that have no
// state, or none but that they exist, are not in it. What could not be read is in
// the gaps. The error is that of ctx.
//
// ReadShareGroupState is sent with the leader epoch that the coordinator has, and
// with no other: a higher one would take the share-partition from its leader, and
// released brokers refuse -1.
func ReadShareStates(ctx context.Context, cl Cluster, keys []ShareKey) ([]ShareState, []Gap, error) {
	var mu sync.Mutex
	var out []ShareState
	r := newStateReader(cl, func(_ ShareKey, s *ShareState) {
		if s != nil {
			mu.Lock()
			defer mu.Unlock()
			out = append(out, *s)
		}
	})
	if err := r.read(ctx, keys); err != nil {
		return nil, nil, err
	}
	sortStates(out)
	return out, r.gaps.sorted(), nil
}

func sortStates(states []ShareState) {
	slices.SortFunc(states, func(a, b ShareState) int { return a.Key().compare(b.Key()) })
}

// stateBatch is how many states are read with one request; a state has up to
// some thousand batches.
const stateBatch = 100

// stateReader reads states from share coordinators.
type stateReader struct {
	cl Cluster
	// took is called concurrently: with nil for a share-partition that has no
	// state, and not at all for one whose state could not be read.
	took func(ShareKey, *ShareState)
	gaps gapList
	// denied: CLUSTER_ACTION is missing, so that nothing can be read.
	denied bool
	mu     sync.Mutex
}

func newStateReader(cl Cluster, took func(ShareKey, *ShareState)) *stateReader {
	return &stateReader{cl: cl, took: took}
}

// lostState is a share-partition whose state the broker that was asked did not
// tell, since it is not its coordinator, or not yet.
type lostState struct {
	key  ShareKey
	node int32
	err  error
}

// read reads the states of keys. The error is that of ctx.
func (r *stateReader) read(ctx context.Context, keys []ShareKey) error {
	var lost []lostState
	for try := 1; len(keys) > 0; try++ {
		// The coordinator of a key is the leader of its partition. FindCoordinator
		// would tell as well, but it creates the topic where there is none.
		topics, err := r.cl.Topics(ctx, stateTopic)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, kerr.UnknownTopicOrPartition):
			for _, k := range keys {
				r.took(k, nil)
			}
			return nil
		case err != nil:
			r.gaps.add(stateTopicGap(err))
			return nil
		}
		lost = r.round(ctx, keys, topics[stateTopic])
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case len(lost) == 0 || r.denied:
			return nil
		case lastTry(ctx, try):
			r.giveUp(lost)
			return nil
		}
		if err := pause.For(ctx, backoff(try)); err != nil {
			return err
		}
		keys = keys[:0:0]
		for _, l := range lost {
			keys = append(keys, l.key)
		}
	}
	return nil
}

// stateTopicGap is the gap that is left when the topic cannot be described.
func stateTopicGap(err error) Gap {
	if errors.Is(err, kerr.TopicAuthorizationFailed) {
		return aclGap(SourceMetadata, aclDescribeState, kerr.TopicAuthorizationFailed,
			"it is hidden which transactions hold share acknowledgements, and where the state of share-partitions is")
	}
	return ErrorGap(SourceMetadata, "topic "+stateTopic+" could not be described", err)
}

// stateRequest is what one request reads: share-partitions of one group that have
// one coordinator.
type stateRequest struct {
	node  int32
	group string
	keys  []ShareKey
	where map[ShareKey]int32 // partition of __share_group_state
}

// round asks the coordinator of each key once.
func (r *stateReader) round(ctx context.Context, keys []ShareKey, topic cluster.Topic) []lostState {
	count := int32(len(topic.Partitions))
	where := make(map[ShareKey]int32, len(keys))
	type place struct {
		node  int32
		group string
	}
	places := make(map[place][]ShareKey)
	var lost []lostState
	for _, k := range keys {
		n := wire.ShareStatePartition(k.GroupID, k.TopicID, k.Partition, count)
		where[k] = n
		leader := topic.Leader(n)
		if leader < 0 {
			lost = append(lost, lostState{k, -1, kerr.LeaderNotAvailable})
			continue
		}
		places[place{leader, k.GroupID}] = append(places[place{leader, k.GroupID}], k)
	}
	var requests []stateRequest
	for p, keys := range places {
		slices.SortFunc(keys, ShareKey.compare)
		for some := range slices.Chunk(keys, stateBatch) {
			requests = append(requests, stateRequest{p.node, p.group, some, where})
		}
	}
	var mu sync.Mutex
	each(requests, inFlight, func(q stateRequest) {
		l := r.ask(ctx, q)
		mu.Lock()
		defer mu.Unlock()
		lost = append(lost, l...)
	})
	return lost
}

// ask reads the summaries, and then the states with the leader epochs of those.
func (r *stateReader) ask(ctx context.Context, q stateRequest) []lostState {
	if r.isDenied() {
		return nil
	}
	req := kmsg.NewPtrReadShareGroupStateSummaryRequest()
	req.GroupID = q.group
	for _, k := range q.keys {
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != k.TopicID {
			t := kmsg.NewReadShareGroupStateSummaryRequestTopic()
			t.TopicID = k.TopicID
			req.Topics = append(req.Topics, t)
		}
		t := &req.Topics[len(req.Topics)-1]
		p := kmsg.NewReadShareGroupStateSummaryRequestTopicPartition()
		p.Partition, p.LeaderEpoch = k.Partition, -1
		t.Partitions = append(t.Partitions, p)
	}
	resp, err := ask[*kmsg.ReadShareGroupStateSummaryResponse](ctx, r.cl, q.node, req)
	if err != nil {
		return r.unanswered(q, err)
	}
	var lost []lostState
	var read []ShareState // to be read, with all that the summary tells
	failed := make(map[int16][]ShareKey)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			k := ShareKey{q.group, t.TopicID, p.Partition}
			switch {
			case p.ErrorCode != 0:
				lost = r.refused(q.node, k, p.ErrorCode, lost, failed)
			case p.StartOffset < 0:
				r.took(k, nil) // no batch is written before the start offset is known
			case p.LeaderEpoch < 0:
				failed[kerr.UnknownServerError.Code] = append(failed[kerr.UnknownServerError.Code], k)
			default:
				read = append(read, ShareState{
					GroupID: k.GroupID, TopicID: k.TopicID, Partition: k.Partition,
					StatePartition: q.where[k], LeaderEpoch: p.LeaderEpoch,
					DeliveryCompleteCount: told(p.DeliveryCompleteCount),
				})
			}
		}
	}
	lost = append(lost, r.states(ctx, q, read, failed)...)
	for code, keys := range failed {
		r.gaps.add(stateGap(q.node, keys, kerr.ErrorForCode(code)))
	}
	return lost
}

// states reads the states whose leader epochs are known.
func (r *stateReader) states(ctx context.Context, q stateRequest, states []ShareState, failed map[int16][]ShareKey) []lostState {
	if len(states) == 0 {
		return nil
	}
	known := make(map[ShareKey]*ShareState, len(states))
	req := kmsg.NewPtrReadShareGroupStateRequest()
	req.GroupID = q.group
	for i := range states {
		s := &states[i]
		known[s.Key()] = s
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != s.TopicID {
			t := kmsg.NewReadShareGroupStateRequestTopic()
			t.TopicID = s.TopicID
			req.Topics = append(req.Topics, t)
		}
		t := &req.Topics[len(req.Topics)-1]
		p := kmsg.NewReadShareGroupStateRequestTopicPartition()
		p.Partition, p.LeaderEpoch = s.Partition, s.LeaderEpoch
		t.Partitions = append(t.Partitions, p)
	}
	// Sent once: between two tries the epoch could become another.
	resp, err := askOnce[*kmsg.ReadShareGroupStateResponse](ctx, r.cl, q.node, req)
	if err != nil {
		q.keys = q.keys[:0:0]
		for _, s := range states {
			q.keys = append(q.keys, s.Key())
		}
		return r.unanswered(q, err)
	}
	var lost []lostState
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			k := ShareKey{q.group, t.TopicID, p.Partition}
			s := known[k]
			switch {
			case s == nil:
			case p.ErrorCode == kerr.InvalidRequest.Code:
				r.took(k, nil) // it was removed since its summary was read
			case p.ErrorCode != 0:
				lost = r.refused(q.node, k, p.ErrorCode, lost, failed)
			default:
				s.StateEpoch, s.StartOffset = p.StateEpoch, p.StartOffset
				s.Batches = stateBatches(p.StateBatches)
				s.Sources = []Source{SourceShareGroupState}
				r.took(k, s)
			}
		}
	}
	return lost
}

func stateBatches(batches []kmsg.ReadShareGroupStateResponseTopicPartitionStateBatch) []wire.StateBatch {
	out := make([]wire.StateBatch, 0, len(batches))
	for _, b := range batches {
		out = append(out, wire.StateBatch{
			FirstOffset: b.FirstOffset, LastOffset: b.LastOffset,
			DeliveryState: wire.RecordState(b.DeliveryState), DeliveryCount: b.DeliveryCount,
			Staged: wire.StagedOwnerFromTags(b.UnknownTags),
		})
	}
	slices.SortFunc(out, func(a, b wire.StateBatch) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return out
}

// unanswered is what is left of a request without an answer: to be asked again
// where the broker went away, so that its partitions get other leaders.
func (r *stateReader) unanswered(q stateRequest, err error) []lostState {
	if !cluster.IsUnanswered(err) || isTimeout(err) {
		r.gaps.add(stateGap(q.node, q.keys, err))
		return nil
	}
	lost := make([]lostState, 0, len(q.keys))
	for _, k := range q.keys {
		lost = append(lost, lostState{k, q.node, err})
	}
	return lost
}

// refused sorts an error code: to be asked again, denied, or failed.
func (r *stateReader) refused(node int32, k ShareKey, code int16, lost []lostState, failed map[int16][]ShareKey) []lostState {
	switch {
	case code == kerr.ClusterAuthorizationFailed.Code:
		r.deny()
	case code == kerr.UnknownTopicOrPartition.Code, code == kerr.UnknownTopicID.Code:
		// The topic is deleted, and the coordinator does not tell what it still
		// has of it.
	case movedCoordinator(code), code == kerr.FencedLeaderEpoch.Code:
		return append(lost, lostState{k, node, kerr.ErrorForCode(code)})
	default:
		failed[code] = append(failed[code], k)
	}
	return lost
}

func (r *stateReader) deny() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.denied {
		r.denied = true
		r.gaps.add(clusterActionGap())
	}
}

func (r *stateReader) isDenied() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.denied
}

func clusterActionGap() Gap {
	return aclGap(SourceShareGroupState, aclClusterAction, kerr.ClusterAuthorizationFailed,
		"the state of share-partitions cannot be asked for at their coordinators")
}

// giveUp leaves a gap for each node that was asked in vain.
func (r *stateReader) giveUp(lost []lostState) {
	type failure struct {
		node int32
		text string
	}
	keys := make(map[failure][]ShareKey)
	errs := make(map[failure]error)
	for _, l := range lost {
		f := failure{l.node, l.err.Error()}
		keys[f] = append(keys[f], l.key)
		errs[f] = l.err
	}
	for f, err := range errs {
		g := stateGap(f.node, keys[f], err)
		g.Reason += fmt.Sprintf(", after %d look-ups of the leader of its partition of %s", tries-1, stateTopic)
		r.gaps.add(g)
	}
}

// stateGap is the gap that is left when states could not be read. node is -1
// where the partition that has them has no leader.
func stateGap(node int32, keys []ShareKey, err error) Gap {
	first := slices.MinFunc(keys, ShareKey.compare)
	what := fmt.Sprintf("tell the state of share group %q", first.GroupID)
	if len(keys) > 1 {
		what = fmt.Sprintf("tell %d states, of share group %q among them", len(keys), first.GroupID)
	}
	g := newGap(SourceShareGroupState, node, what, err)
	if node < 0 {
		g.Broker, g.Reason = nil, fmt.Sprintf("no broker could be asked to %s: %s", what, cluster.Name(err))
	}
	return g
}
