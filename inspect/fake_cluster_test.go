package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	fakePartitions = 3 // of __share_group_state
	fakeTopicName  = "orders"
)

// fakeTopicID is that of fakeTopicName.
var fakeTopicID = [16]byte{1}

// fakeCluster is a cluster of three brokers, 0 to 2, that answers what a healthy
// one does from its fields. Partition n of __share_group_state is led by broker n.
type fakeCluster struct {
	mu       sync.Mutex
	versions []cluster.BrokerVersions
	topics   []cluster.Topic
	txns     map[string]Transaction // by transactional ID
	states   map[ShareKey]*ShareState
	records  map[int32][]*kgo.Record // of __share_group_state
	groups   []Group
	denied   map[ACL]bool
	// intercept is called before a request is answered, outside of the lock; it
	// may change the cluster, and answers instead where it returns true.
	intercept func(node int32, req kmsg.Request) (kmsg.Response, error, bool)
	// beforeRead is called before a partition is read.
	beforeRead func(partition int32) error
	sent       []fakeRequest
}

type fakeRequest struct {
	node int32
	req  kmsg.Request
}

func newFakeCluster() *fakeCluster {
	f := &fakeCluster{
		txns: make(map[string]Transaction), states: make(map[ShareKey]*ShareState),
		records: make(map[int32][]*kgo.Record), denied: make(map[ACL]bool),
	}
	state := cluster.Topic{Name: stateTopic, ID: [16]byte{9}, IsInternal: true}
	for i := range int32(fakePartitions) {
		keys := make(map[int16]cluster.VersionRange)
		for k, v := range map[kmsg.Key]int16{
			kmsg.ListTransactions: 2, kmsg.DescribeTransactions: 0, kmsg.ShareGroupDescribe: 1, kmsg.DescribeShareGroupOffsets: 1,
			kmsg.ReadShareGroupState: 0, kmsg.ReadShareGroupStateSummary: 1,
		} {
			keys[int16(k)] = cluster.VersionRange{Max: v}
		}
		f.versions = append(f.versions, cluster.BrokerVersions{NodeID: i, Keys: keys})
		state.Partitions = append(state.Partitions, cluster.Partition{Partition: i, Leader: i})
	}
	f.topics = []cluster.Topic{state, {Name: fakeTopicName, ID: fakeTopicID}}
	return f
}

// fakeKey is a share-partition whose state is in a partition of the topic.
func fakeKey(where int32) ShareKey {
	for p := int32(0); ; p++ {
		if wire.ShareStatePartition("g", fakeTopicID, p, fakePartitions) == where {
			return ShareKey{"g", fakeTopicID, p}
		}
	}
}

func ownedBy(producerID int64, epoch int16) wire.StagedOwner {
	return wire.StagedOwner{ProducerID: producerID, ProducerEpoch: epoch, AcknowledgeType: int8(wire.Accept), DeliveryState: int8(wire.Acknowledged)}
}

func pendingBatch(first, last int64, owner wire.StagedOwner) wire.StateBatch {
	return wire.StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: wire.TxPending, DeliveryCount: 1, Staged: owner}
}

func stateBatchOf(first, last int64, state wire.RecordState) wire.StateBatch {
	return wire.StateBatch{FirstOffset: first, LastOffset: last, DeliveryState: state, DeliveryCount: 1, Staged: wire.NoStagedOwner()}
}

// stagedAt is when records of the fake are written.
var stagedAt = time.Date(2026, 11, 29, 11, 58, 0, 0, time.UTC)

// write writes a snapshot of a state to the topic, and makes it what the share
// coordinator knows.
func (f *fakeCluster) write(k ShareKey, batches ...wire.StateBatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	where := wire.ShareStatePartition(k.GroupID, k.TopicID, k.Partition, fakePartitions)
	f.states[k] = &ShareState{GroupID: k.GroupID, TopicID: k.TopicID, Partition: k.Partition, StateEpoch: 1, LeaderEpoch: 7, Batches: batches}
	f.records[where] = append(f.records[where], &kgo.Record{
		Key:    wire.ShareStateKey{GroupID: k.GroupID, TopicID: k.TopicID, Partition: k.Partition}.AppendTo(nil),
		Value:  wire.ShareSnapshot{StateEpoch: 1, LeaderEpoch: 7, StateBatches: batches, DeliveryCompleteCount: -1}.AppendTo(nil),
		Offset: int64(len(f.records[where])), Timestamp: stagedAt,
	})
}

// begin makes a transaction that is coordinated by a broker and has partitions of
// __share_group_state.
func (f *fakeCluster) begin(id string, producerID int64, epoch int16, coordinator int32, state string, parts ...int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := Transaction{
		TransactionalID: id, State: state, ProducerID: producerID, ProducerEpoch: epoch, Coordinator: coordinator,
		TimeoutMS: 60_000, Started: stagedAt, Partitions: []TopicPartitions{},
	}
	if len(parts) > 0 {
		t.Partitions = append(t.Partitions, TopicPartitions{stateTopic, parts})
	}
	f.txns[id] = t
}

func (f *fakeCluster) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.txns, id)
}

func (f *fakeCluster) lacks(acl ACL) bool { return f.denied[acl] }

func (f *fakeCluster) Describe(ctx context.Context) (cluster.Description, error) {
	if ctx.Err() != nil {
		return cluster.Description{}, context.Cause(ctx)
	}
	return cluster.Description{ClusterID: "fake", Brokers: slices.Clone(f.versions)}, nil
}

func (f *fakeCluster) AllTopics(context.Context) ([]cluster.Topic, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.topics), func(t cluster.Topic) bool {
		return f.lacks(ACL{"DESCRIBE", "TOPIC", t.Name})
	}), nil
}

func (f *fakeCluster) Topics(_ context.Context, names ...string) (map[string]cluster.Topic, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]cluster.Topic)
	for _, name := range names {
		i := slices.IndexFunc(f.topics, func(t cluster.Topic) bool { return t.Name == name })
		switch {
		case f.lacks(ACL{"DESCRIBE", "TOPIC", name}):
			return nil, &cluster.AuthError{Err: &cluster.Error{Broker: -1, Err: kerr.TopicAuthorizationFailed}}
		case i < 0:
			return nil, &cluster.Error{Broker: -1, Err: kerr.UnknownTopicOrPartition}
		}
		out[name] = f.topics[i]
	}
	return out, nil
}

func (f *fakeCluster) ReadPartition(_ context.Context, topic cluster.Topic, partition int32, fn func(*kgo.Record)) error {
	if f.beforeRead != nil {
		if err := f.beforeRead(partition); err != nil {
			return err
		}
	}
	f.mu.Lock()
	records, denied := slices.Clone(f.records[partition]), f.lacks(aclReadState)
	f.mu.Unlock()
	if denied {
		return &cluster.AuthError{Err: &cluster.Error{Broker: topic.Leader(partition), Err: kerr.TopicAuthorizationFailed}}
	}
	for _, r := range records {
		fn(r)
	}
	return nil
}

func (f *fakeCluster) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	return f.RequestBroker(ctx, -1, req)
}

func (f *fakeCluster) RequestBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	f.mu.Lock()
	f.sent = append(f.sent, fakeRequest{node, req})
	intercept := f.intercept
	f.mu.Unlock()
	if intercept != nil {
		if resp, err, ok := intercept(node, req); ok {
			return resp, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch req := req.(type) {
	case *kmsg.ListTransactionsRequest:
		return f.listTransactions(node, req), nil
	case *kmsg.DescribeTransactionsRequest:
		return f.describeTransactions(node, req), nil
	case *kmsg.FindCoordinatorRequest:
		return f.findCoordinator(req), nil
	case *kmsg.DescribeConfigsRequest:
		return f.describeConfigs(req), nil
	case *kmsg.MetadataRequest:
		return f.metadata(req), nil
	case *kmsg.ListGroupsRequest:
		resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
		for _, g := range f.groups {
			if g.Coordinator == node && !f.lacks(aclGroups) {
				resp.Groups = append(resp.Groups, kmsg.ListGroupsResponseGroup{Group: g.GroupID, GroupType: "share", GroupState: g.State})
			}
		}
		return resp, nil
	case *kmsg.ShareGroupDescribeRequest:
		return f.describeGroups(req), nil
	case *kmsg.DescribeShareGroupOffsetsRequest:
		return f.describeOffsets(req), nil
	case *kmsg.ReadShareGroupStateSummaryRequest:
		return f.summaries(node, req), nil
	case *kmsg.ReadShareGroupStateRequest:
		return f.readStates(node, req), nil
	}
	return nil, fmt.Errorf("the fake has no answer to %s", kmsg.NameForKey(req.Key()))
}

// requests returns the requests of a kind that were sent.
func requestsOf[R kmsg.Request](f *fakeCluster) []R {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []R
	for _, s := range f.sent {
		if req, ok := s.req.(R); ok {
			out = append(out, req)
		}
	}
	return out
}

func (f *fakeCluster) sorted() []Transaction {
	var out []Transaction
	for _, t := range f.txns {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Transaction) int { return strings.Compare(a.TransactionalID, b.TransactionalID) })
	return out
}

func (f *fakeCluster) listTransactions(node int32, req *kmsg.ListTransactionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
	versions := f.versions[node].Keys[int16(kmsg.ListTransactions)]
	for _, t := range f.sorted() {
		switch {
		case t.Coordinator != node, f.lacks(aclTransactionalIDs):
		case len(req.StateFilters) > 0 && !slices.Contains(req.StateFilters, t.State):
		case len(req.ProducerIDFilters) > 0 && !slices.Contains(req.ProducerIDFilters, t.ProducerID):
		case versions.Max >= 1 && req.DurationFilterMillis >= 0 && time.Since(t.Started).Milliseconds() <= req.DurationFilterMillis:
		case versions.Max >= 2 && req.TransactionalIDPattern != nil && !regexp.MustCompile(`\A(?:`+*req.TransactionalIDPattern+`)\z`).MatchString(t.TransactionalID):
		default:
			resp.TransactionStates = append(resp.TransactionStates, kmsg.ListTransactionsResponseTransactionState{
				TransactionalID: t.TransactionalID, ProducerID: t.ProducerID, TransactionState: t.State,
			})
		}
	}
	return resp
}

func (f *fakeCluster) describeTransactions(node int32, req *kmsg.DescribeTransactionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	for _, id := range req.TransactionalIDs {
		s := kmsg.NewDescribeTransactionsResponseTransactionState()
		s.TransactionalID = id
		t, ok := f.txns[id]
		switch {
		case f.lacks(aclTransactionalIDs):
			s.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		case !ok:
			s.ErrorCode = kerr.TransactionalIDNotFound.Code
		case t.Coordinator != node:
			s.ErrorCode = kerr.NotCoordinator.Code
		default:
			s.State, s.ProducerID, s.ProducerEpoch, s.TimeoutMillis = t.State, t.ProducerID, t.ProducerEpoch, t.TimeoutMS
			s.StartTimestamp = t.Started.UnixMilli()
			for _, p := range t.Partitions {
				if !f.lacks(ACL{"DESCRIBE", "TOPIC", p.Topic}) { // left out without a word
					s.Topics = append(s.Topics, kmsg.DescribeTransactionsResponseTransactionStateTopic{Topic: p.Topic, Partitions: p.Partitions})
				}
			}
		}
		resp.TransactionStates = append(resp.TransactionStates, s)
	}
	return resp
}

func (f *fakeCluster) findCoordinator(req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	for _, key := range req.CoordinatorKeys {
		c := kmsg.NewFindCoordinatorResponseCoordinator()
		c.Key, c.NodeID = key, f.txns[key].Coordinator
		resp.Coordinators = append(resp.Coordinators, c)
	}
	return resp
}

func (f *fakeCluster) describeConfigs(req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, r := range req.Resources {
		rr := kmsg.NewDescribeConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = r.ResourceType, r.ResourceName
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value = sweepConfig, kmsg.StringPtr("5000")
		rr.Configs = append(rr.Configs, c)
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

func (f *fakeCluster) metadata(req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	for _, rt := range req.Topics {
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.TopicID = rt.Topic, rt.TopicID
		i := slices.IndexFunc(f.topics, func(o cluster.Topic) bool {
			return rt.Topic != nil && o.Name == *rt.Topic || rt.Topic == nil && o.ID == rt.TopicID
		})
		switch {
		case i < 0 && rt.Topic != nil:
			t.ErrorCode = kerr.UnknownTopicOrPartition.Code
		case i < 0:
			t.ErrorCode = kerr.UnknownTopicID.Code
		case f.lacks(ACL{"DESCRIBE", "TOPIC", f.topics[i].Name}):
			t.ErrorCode = kerr.TopicAuthorizationFailed.Code
		default:
			t.Topic, t.TopicID = kmsg.StringPtr(f.topics[i].Name), f.topics[i].ID
		}
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func (f *fakeCluster) describeGroups(req *kmsg.ShareGroupDescribeRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ShareGroupDescribeResponse)
	for _, id := range req.GroupIDs {
		g := kmsg.NewShareGroupDescribeResponseGroup()
		g.GroupID, g.GroupState = id, "Empty"
		if !slices.ContainsFunc(f.groups, func(g Group) bool { return g.GroupID == id }) {
			g.ErrorCode = kerr.GroupIDNotFound.Code
		}
		if f.lacks(aclGroups) {
			g.ErrorCode = kerr.GroupAuthorizationFailed.Code
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}

func (f *fakeCluster) describeOffsets(req *kmsg.DescribeShareGroupOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeShareGroupOffsetsResponse)
	resp.Version = 1
	for _, rg := range req.Groups {
		g := kmsg.NewDescribeShareGroupOffsetsResponseGroup()
		g.GroupID = rg.GroupID
		for _, group := range f.groups {
			for _, p := range group.Partitions {
				if group.GroupID != rg.GroupID {
					continue
				}
				rt := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopic()
				rt.Topic, rt.TopicID = p.Topic, p.TopicID
				rp := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopicPartition()
				rp.Partition, rp.StartOffset, rp.Lag = p.Partition, p.StartOffset, p.Lag
				rt.Partitions = append(rt.Partitions, rp)
				g.Topics = append(g.Topics, rt)
			}
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}

// stateCode is why a broker does not tell the state of a share-partition.
func (f *fakeCluster) stateCode(node int32, k ShareKey) int16 {
	switch {
	case f.lacks(aclClusterAction):
		return kerr.ClusterAuthorizationFailed.Code
	case wire.ShareStatePartition(k.GroupID, k.TopicID, k.Partition, fakePartitions) != node:
		return kerr.NotCoordinator.Code
	case !slices.ContainsFunc(f.topics, func(t cluster.Topic) bool { return t.ID == k.TopicID }):
		return kerr.UnknownTopicOrPartition.Code
	}
	return 0
}

func (f *fakeCluster) summaries(node int32, req *kmsg.ReadShareGroupStateSummaryRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ReadShareGroupStateSummaryResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewReadShareGroupStateSummaryResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			k := ShareKey{req.GroupID, t.TopicID, p.Partition}
			rp := kmsg.NewReadShareGroupStateSummaryResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.StartOffset = p.Partition, f.stateCode(node, k), -1
			if s := f.states[k]; s != nil && rp.ErrorCode == 0 {
				rp.StateEpoch, rp.LeaderEpoch, rp.StartOffset = s.StateEpoch, s.LeaderEpoch, s.StartOffset
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (f *fakeCluster) readStates(node int32, req *kmsg.ReadShareGroupStateRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ReadShareGroupStateResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewReadShareGroupStateResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			k := ShareKey{req.GroupID, t.TopicID, p.Partition}
			rp := kmsg.NewReadShareGroupStateResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, f.stateCode(node, k)
			s := f.states[k]
			switch {
			case rp.ErrorCode != 0:
			case s == nil:
				rp.ErrorCode = kerr.InvalidRequest.Code
			case p.LeaderEpoch < s.LeaderEpoch:
				rp.ErrorCode = kerr.FencedLeaderEpoch.Code
			default:
				s.LeaderEpoch = p.LeaderEpoch // the harm that a guess does
				rp.StateEpoch, rp.StartOffset = s.StateEpoch, s.StartOffset
				for _, b := range s.Batches {
					rp.StateBatches = append(rp.StateBatches, kmsg.ReadShareGroupStateResponseTopicPartitionStateBatch{
						FirstOffset: b.FirstOffset, LastOffset: b.LastOffset, DeliveryState: int8(b.DeliveryState),
						DeliveryCount: b.DeliveryCount, UnknownTags: wire.StagedOwnerTags(b.Staged),
					})
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// once returns a function that calls fn the first time.
func once(fn func()) func() {
	var o sync.Once
	return func() { o.Do(fn) }
}

var errRefused = errors.New("connection refused")

// gapsBy describes gaps in short: source, broker, error, ACL.
func gapsBy(gaps []Gap) []string {
	var out []string
	for _, g := range gaps {
		s := string(g.Source)
		if g.Broker != nil {
			s += fmt.Sprintf(" broker %d", *g.Broker)
		}
		if g.ACL != nil {
			s += " " + g.ACL.String()
		}
		out = append(out, strings.TrimSpace(s+" "+g.KafkaError))
	}
	slices.SortFunc(out, cmp.Compare)
	return out
}

var errStopped = errors.New("stopped")

func contextWithCause(t *testing.T) (context.Context, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	t.Cleanup(func() { cancel(nil) })
	return ctx, cancel
}

// onRead calls fn when the topic is read for the first time.
func (f *fakeCluster) onRead(fn func()) {
	fn = once(fn)
	f.beforeRead = func(int32) error {
		fn()
		return nil
	}
}

// on calls fn before the nth request of a kind is answered.
func (f *fakeCluster) on(key kmsg.Key, nth int, fn func()) {
	before := f.intercept
	f.intercept = func(node int32, req kmsg.Request) (kmsg.Response, error, bool) {
		if before != nil {
			if resp, err, ok := before(node, req); ok {
				return resp, err, ok
			}
		}
		if req.Key() == int16(key) {
			f.mu.Lock()
			nth--
			now := nth == 0
			f.mu.Unlock()
			if now {
				fn()
			}
		}
		return nil, nil, false
	}
}

// describeEnded describes ended transactions in short: ID, state, producer, epoch.
func describeEnded(ev *Evidence) []string {
	var out []string
	for _, t := range ev.Ended {
		out = append(out, fmt.Sprintf("%s %s %d %d", t.TransactionalID, t.State, t.ProducerID, t.ProducerEpoch))
	}
	return out
}
