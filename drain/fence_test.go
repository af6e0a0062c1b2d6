package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fakeCluster is a cluster of functions.
type fakeCluster struct {
	request       func(kmsg.Request) (kmsg.Response, error)
	requestBroker func(node int32, req kmsg.Request) (kmsg.Response, error)
	topic         cluster.Topic
	describe      cluster.Description
}

func (f *fakeCluster) Describe(context.Context) (cluster.Description, error) { return f.describe, nil }

func (f *fakeCluster) Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return f.request(req)
}

func (f *fakeCluster) RequestBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return f.requestBroker(node, req)
}

func (f *fakeCluster) Topics(context.Context, ...string) (map[string]cluster.Topic, error) {
	return map[string]cluster.Topic{f.topic.Name: f.topic}, nil
}

// coordinator is a transaction coordinator that answers as it is told.
type coordinator struct {
	node    int32
	named   func(lookup int) int32 // by FindCoordinator; nil is node
	state   string
	epoch   int16
	answers []int16 // of InitProducerId, one after the other; the last is repeated
	missing bool    // nobody has the ID

	lookups  int
	inits    []*kmsg.InitProducerIDRequest
	describe int
}

func (c *coordinator) cluster() *fakeCluster {
	return &fakeCluster{
		request: func(req kmsg.Request) (kmsg.Response, error) {
			find, ok := req.(*kmsg.FindCoordinatorRequest)
			if !ok || find.CoordinatorType != 1 || find.CoordinatorKey != "billing-1" {
				return nil, fmt.Errorf("unexpected request %+v", req)
			}
			c.lookups++
			node := c.node
			if c.named != nil {
				node = c.named(c.lookups)
			}
			resp := find.ResponseKind().(*kmsg.FindCoordinatorResponse)
			co := kmsg.NewFindCoordinatorResponseCoordinator()
			co.Key, co.NodeID = find.CoordinatorKey, node
			resp.Coordinators = append(resp.Coordinators, co)
			return resp, nil
		},
		requestBroker: func(node int32, req kmsg.Request) (kmsg.Response, error) {
			switch req := req.(type) {
			case *kmsg.DescribeTransactionsRequest:
				c.describe++
				resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
				s := kmsg.NewDescribeTransactionsResponseTransactionState()
				s.TransactionalID, s.State, s.ProducerID, s.ProducerEpoch = "billing-1", c.state, 7, c.epoch
				switch {
				case node != c.node:
					s.ErrorCode = kerr.NotCoordinator.Code
				case c.missing:
					s.ErrorCode = kerr.TransactionalIDNotFound.Code
				}
				resp.TransactionStates = append(resp.TransactionStates, s)
				return resp, nil
			case *kmsg.InitProducerIDRequest:
				c.inits = append(c.inits, req)
				resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
				resp.ErrorCode = c.answers[min(len(c.inits), len(c.answers))-1]
				if resp.ErrorCode == 0 {
					resp.ProducerID, resp.ProducerEpoch = 7, c.epoch+2
				}
				return resp, nil
			}
			return nil, fmt.Errorf("unexpected request %+v", req)
		},
	}
}

func TestFence(t *testing.T) {
	concurrent, done := kerr.ConcurrentTransactions.Code, int16(0)
	want := inspect.Transaction{TransactionalID: "billing-1", State: "Ongoing", ProducerID: 7, ProducerEpoch: 3, TimeoutMS: 45_000}
	for name, c := range map[string]struct {
		co      coordinator
		timeout int32 // of want; 0 is 45 s
		asked   int32 // the transaction timeout that is asked with at last
		inits   int
		err     error  // is
		text    string // part of the error
	}{
		"at once":                    {co: coordinator{answers: []int16{done}}, asked: 45_000, inits: 1},
		"through concurrent ones":    {co: coordinator{answers: []int16{concurrent, concurrent, concurrent, done}}, asked: 45_000, inits: 4},
		"concurrent for ever":        {co: coordinator{answers: []int16{concurrent}}, asked: 45_000, inits: -1, err: context.DeadlineExceeded, text: "CONCURRENT_TRANSACTIONS"},
		"not the coordinator":        {co: coordinator{named: func(int) int32 { return 2 }}, err: context.DeadlineExceeded, text: "broker 2: NOT_COORDINATOR"},
		"the coordinator moved":      {co: coordinator{named: func(n int) int32 { return int32(3 - min(n, 2)) }, answers: []int16{done}}, asked: 45_000, inits: 1},
		"denied":                     {co: coordinator{answers: []int16{kerr.TransactionalIDAuthorizationFailed.Code}}, asked: 45_000, inits: 1, err: kerr.TransactionalIDAuthorizationFailed, text: "broker 1: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"},
		"ended":                      {co: coordinator{state: "CompleteCommit", epoch: 4}, err: ErrEnded},
		"began anew":                 {co: coordinator{epoch: 4}, err: ErrEnded},
		"expired":                    {co: coordinator{missing: true}, err: ErrEnded},
		"two-phase":                  {co: coordinator{answers: []int16{done}}, timeout: inspect.TwoPhaseTimeoutMS, asked: 60_000, inits: 1},
		"timeout not told":           {co: coordinator{answers: []int16{done}}, timeout: -1, asked: 60_000, inits: 1},
		"timeout above what may be":  {co: coordinator{answers: []int16{kerr.InvalidTransactionTimeout.Code, done}}, timeout: 900_000, asked: 60_000, inits: 2},
		"timeout that never may be":  {co: coordinator{answers: []int16{kerr.InvalidTransactionTimeout.Code}}, asked: 45_000, inits: 1, err: kerr.InvalidTransactionTimeout},
		"the answer to it was lost ": {co: coordinator{answers: []int16{kerr.NetworkException.Code, done}, epoch: 3}, asked: 45_000, inits: 2},
	} {
		t.Run(name, func(t *testing.T) {
			c.co.node = 1
			if c.co.state == "" {
				c.co.state = "Ongoing"
			}
			if c.co.epoch == 0 {
				c.co.epoch = 3
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			clock := &limitedClock{now: t0, end: t0.Add(time.Minute), cancel: cancel}
			w := want
			if c.timeout != 0 {
				w.TimeoutMS = c.timeout
			}
			got, err := Fence(ctx, c.co.cluster(), clock, w)
			if c.err == nil && (err != nil || got != (Fenced{7, 5})) || c.err != nil && (!errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("Fence = %+v, %v; want %v with %q", got, err, c.err, c.text)
			}
			if c.inits >= 0 && len(c.co.inits) != c.inits || c.inits < 0 && (len(c.co.inits) < 5 || len(c.co.inits) > 50) {
				t.Errorf("%d InitProducerId, want %d", len(c.co.inits), c.inits)
			}
			if c.co.lookups > 50 {
				t.Errorf("%d look-ups of the coordinator in a minute", c.co.lookups)
			}
			if n := len(c.co.inits); n > 0 {
				req := c.co.inits[n-1]
				if req.TransactionTimeoutMillis != c.asked || *req.TransactionalID != "billing-1" || req.ProducerID != -1 || req.ProducerEpoch != -1 {
					t.Errorf("asked with %+v, want a timeout of %d", req, c.asked)
				}
			}
		})
	}
}

// limitedClock is virtual time that ends a context.
type limitedClock struct {
	now, end time.Time
	cancel   context.CancelCauseFunc
}

func (c *limitedClock) Now() time.Time { return c.now }

func (c *limitedClock) Wait(ctx context.Context, d time.Duration) error {
	if c.now = c.now.Add(d); !c.now.Before(c.end) {
		c.cancel(context.DeadlineExceeded)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// A marker goes to the leader of its partition, and says what the broker has to
// know.
func TestWriteMarkers(t *testing.T) {
	staged := Marker{Topic: stateTopic, Partition: 4, ProducerID: 7, ProducerEpoch: 3, CoordinatorEpoch: -1}
	commit := staged
	commit.Commit = true
	produced := Marker{Topic: "shipped", Partition: 4, ProducerID: 7, ProducerEpoch: 3, CoordinatorEpoch: 12}
	for name, c := range map[string]struct {
		marker  Marker
		codes   []int16 // of the answers; the last is repeated
		epoch   int32   // that DescribeProducers has; -2: no such producer
		version int16   // of WriteTxnMarkers that the leader serves
		sent    int
		want    kmsg.WriteTxnMarkersRequestMarker
		failed  string // part of the error; "" is none
		err     error
	}{
		"abort of what is staged":  {marker: staged, epoch: -2, version: 2, sent: 1, want: wireMarker(stateTopic, 4, 0, 2, false)},
		"commit of what is staged": {marker: commit, epoch: -2, version: 2, sent: 1, want: wireMarker(stateTopic, 4, 0, 2, true)},
		"epoch of the coordinator": {marker: staged, epoch: 5, version: 2, sent: 1, want: wireMarker(stateTopic, 4, 5, 2, false)},
		"epoch that is not known":  {marker: staged, epoch: -1, version: 2, sent: 1, want: wireMarker(stateTopic, 4, 0, 2, false)},
		"records":                  {marker: produced, version: 1, sent: 1, want: wireMarker("shipped", 3, 12, 0, false)},
		"the leader moves":         {marker: staged, epoch: -2, version: 2, codes: []int16{kerr.NotLeaderForPartition.Code, 0}, sent: 2, want: wireMarker(stateTopic, 4, 0, 2, false)},
		"the leader keeps moving":  {marker: staged, epoch: -2, version: 2, codes: []int16{kerr.NotLeaderForPartition.Code}, sent: markerTries, failed: "write the ABORT marker of producer 7, epoch 3: broker 2: __share_group_state-4: NOT_LEADER", err: kerr.NotLeaderForPartition},
		"denied":                   {marker: staged, epoch: -2, version: 2, codes: []int16{kerr.ClusterAuthorizationFailed.Code}, sent: 1, failed: "CLUSTER_AUTHORIZATION_FAILED", err: kerr.ClusterAuthorizationFailed},
		"broker is too old":        {marker: staged, epoch: -2, version: 1, failed: "serves WriteTxnMarkers up to v1, and v2 is needed"},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []*kmsg.WriteTxnMarkersRequest
			cl := &fakeCluster{
				topic: cluster.Topic{Name: c.marker.Topic, Partitions: []cluster.Partition{{Partition: 3, Leader: 1}, {Partition: 4, Leader: 2}}},
				describe: cluster.Description{Brokers: []cluster.BrokerVersions{
					{NodeID: 1, Keys: map[int16]cluster.VersionRange{27: {Max: 2}}},
					{NodeID: 2, Keys: map[int16]cluster.VersionRange{27: {Max: c.version}}},
				}},
				requestBroker: func(node int32, req kmsg.Request) (kmsg.Response, error) {
					if node != 2 {
						return nil, fmt.Errorf("broker %d does not lead it", node)
					}
					switch req := req.(type) {
					case *kmsg.DescribeProducersRequest:
						return producers(req, c.epoch), nil
					case *kmsg.WriteTxnMarkersRequest:
						sent = append(sent, req)
						code := int16(0)
						if len(c.codes) > 0 {
							code = c.codes[min(len(sent), len(c.codes))-1]
						}
						return written(req, code), nil
					}
					return nil, fmt.Errorf("unexpected request %+v", req)
				},
			}
			err := WriteMarkers(t.Context(), cl, &limitedClock{now: t0, end: t0.Add(time.Hour)}, []Marker{c.marker})
			if c.failed == "" && err != nil || c.failed != "" && (err == nil || !strings.Contains(err.Error(), c.failed)) || c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("WriteMarkers = %v, want %q", err, c.failed)
			}
			if len(sent) != c.sent {
				t.Fatalf("%d requests, want %d", len(sent), c.sent)
			}
			if c.failed != "" {
				return
			}
			got := sent[len(sent)-1].Markers
			if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(c.want) {
				t.Errorf("sent %+v, want %+v", got, c.want)
			}
		})
	}
}

func wireMarker(topic string, epoch int16, coordinatorEpoch int32, version int8, commit bool) kmsg.WriteTxnMarkersRequestMarker {
	m := kmsg.NewWriteTxnMarkersRequestMarker()
	m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch, m.TransactionVersion, m.Committed = 7, epoch, coordinatorEpoch, version, commit
	m.Topics = []kmsg.WriteTxnMarkersRequestMarkerTopic{{Topic: topic, Partitions: []int32{4}}}
	return m
}

func producers(req *kmsg.DescribeProducersRequest, epoch int32) *kmsg.DescribeProducersResponse {
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	if epoch < -1 {
		return resp
	}
	p := kmsg.NewDescribeProducersResponseTopicPartition()
	p.Partition = req.Topics[0].Partitions[0]
	p.ActiveProducers = []kmsg.DescribeProducersResponseTopicPartitionActiveProducer{{ProducerID: 6, CoordinatorEpoch: 99}, {ProducerID: 7, CoordinatorEpoch: epoch}}
	resp.Topics = []kmsg.DescribeProducersResponseTopic{{Topic: req.Topics[0].Topic, Partitions: []kmsg.DescribeProducersResponseTopicPartition{p}}}
	return resp
}

func written(req *kmsg.WriteTxnMarkersRequest, code int16) *kmsg.WriteTxnMarkersResponse {
	resp := req.ResponseKind().(*kmsg.WriteTxnMarkersResponse)
	for _, m := range req.Markers {
		rm := kmsg.NewWriteTxnMarkersResponseMarker()
		rm.ProducerID = m.ProducerID
		for _, t := range m.Topics {
			rt := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rt.Partitions = append(rt.Partitions, kmsg.WriteTxnMarkersResponseMarkerTopicPartition{Partition: p, ErrorCode: code})
			}
			rm.Topics = append(rm.Topics, rt)
		}
		resp.Markers = append(resp.Markers, rm)
	}
	return resp
}

// AllTopics and ReadPartition are there for [inspect.Cluster] alone.
func (*fakeCluster) AllTopics(context.Context) ([]cluster.Topic, error) { return nil, nil }

func (*fakeCluster) ReadPartition(context.Context, cluster.Topic, int32, func(*kgo.Record)) error {
	return nil
}

// Orphans may have records in several state partitions, each with its marker.
func TestClusterActorMarkers(t *testing.T) {
	var parts []int32
	cl := &fakeCluster{
		topic:    cluster.Topic{Name: stateTopic, Partitions: []cluster.Partition{{Partition: 3, Leader: 1}, {Partition: 4, Leader: 1}}},
		describe: cluster.Description{Brokers: []cluster.BrokerVersions{{NodeID: 1, Keys: map[int16]cluster.VersionRange{27: {Max: 2}, 66: {Max: 2}}}}},
		requestBroker: func(_ int32, req kmsg.Request) (kmsg.Response, error) {
			switch req := req.(type) {
			case *kmsg.WriteTxnMarkersRequest:
				parts = append(parts, req.Markers[0].Topics[0].Partitions...)
				return written(req, 0), nil
			case *kmsg.ListTransactionsRequest:
				return kmsg.NewPtrListTransactionsResponse(), nil
			default:
				return producers(req.(*kmsg.DescribeProducersRequest), -2), nil
			}
		},
	}
	a := &ClusterActor{Cluster: cl, Clock: &limitedClock{now: t0, end: t0.Add(time.Hour)}}
	s := Step{Action: ActionAbort, ProducerID: new(int64(7)), ProducerEpoch: new(int16(3)), StatePartitions: []int32{3, 4}}
	if err := a.WriteMarkers(t.Context(), s); err != nil || !slices.Equal(parts, []int32{3, 4}) {
		t.Errorf("markers for partitions %v, %v; want 3 and 4", parts, err)
	}
}

// What a transaction ends after all, or may, is left to it.
func TestClusterActorLeavesOpen(t *testing.T) {
	staged := Step{Action: ActionAbort, TransactionalID: new("billing-1"), ProducerID: new(int64(7)), ProducerEpoch: new(int16(3)), StatePartitions: []int32{3, 4}}
	for name, c := range map[string]struct {
		code     int16
		state    string
		epoch    int16
		producer int64
		lists    int32
		want     error
	}{
		"open":               {0, "Ongoing", 3, 7, 4, ErrOpen},
		"ending":             {0, "PrepareCommit", 4, 7, 4, ErrOpen},
		"ended":              {0, "CompleteCommit", 4, 7, 4, nil},
		"gone on":            {0, "Ongoing", 4, 7, 4, nil},
		"another producer":   {0, "Ongoing", 3, 8, 4, nil},
		"listed elsewhere":   {0, "Ongoing", 3, 7, 5, nil},
		"not known":          {kerr.TransactionalIDNotFound.Code, "", 0, 0, 0, nil},
		"not told":           {kerr.CoordinatorLoadInProgress.Code, "", 0, 0, 0, ErrOpen},
		"not the one to ask": {kerr.NotCoordinator.Code, "", 0, 0, 0, ErrOpen},
	} {
		t.Run(name, func(t *testing.T) {
			cl := &fakeCluster{
				request: func(kmsg.Request) (kmsg.Response, error) {
					return &kmsg.FindCoordinatorResponse{Coordinators: []kmsg.FindCoordinatorResponseCoordinator{{Key: "billing-1", NodeID: 1}}}, nil
				},
				requestBroker: func(_ int32, req kmsg.Request) (kmsg.Response, error) {
					resp := kmsg.NewPtrDescribeTransactionsResponse()
					resp.TransactionStates = []kmsg.DescribeTransactionsResponseTransactionState{{
						ErrorCode: c.code, TransactionalID: "billing-1", State: c.state, ProducerID: c.producer, ProducerEpoch: c.epoch,
						Topics: []kmsg.DescribeTransactionsResponseTransactionStateTopic{{Topic: stateTopic, Partitions: []int32{c.lists}}},
					}}
					return resp, nil
				},
			}
			a := &ClusterActor{Cluster: cl, Clock: &limitedClock{now: t0, end: t0.Add(time.Hour)}}
			if err := a.stillLeft(t.Context(), staged); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("stillLeft fails with %v, want %v", err, c.want)
			}
		})
	}
}

// A producer whose coordinator does not tell what it does may be at work.
func TestWatchGaps(t *testing.T) {
	states := func(codes ...int16) *fakeCluster {
		return &fakeCluster{request: func(kmsg.Request) (kmsg.Response, error) {
			resp := kmsg.NewPtrDescribeTransactionsResponse()
			for i, code := range codes {
				resp.TransactionStates = append(resp.TransactionStates, kmsg.DescribeTransactionsResponseTransactionState{
					ErrorCode: code, TransactionalID: string(rune('a' + i)), State: "Empty",
				})
			}
			return resp, nil
		}}
	}
	for name, c := range map[string]struct {
		cl           *fakeCluster
		told, untold int
	}{
		"told":     {states(0, 0), 2, 0},
		"expired":  {states(0, kerr.TransactionalIDNotFound.Code), 1, 0},
		"untold":   {states(0, kerr.CoordinatorNotAvailable.Code, kerr.CoordinatorNotAvailable.Code), 1, 1},
		"silence":  {&fakeCluster{request: func(kmsg.Request) (kmsg.Response, error) { return nil, kerr.RequestTimedOut }}, 0, 1},
		"no error": {states(), 0, 0},
	} {
		o := &ClusterObserver{Cluster: c.cl}
		if told, gaps := o.Watch(t.Context(), []string{"a", "b", "c"}); len(told) != c.told || len(gaps) != c.untold {
			t.Errorf("%s: %v, and gaps %v; want %d and %d", name, told, gaps, c.told, c.untold)
		}
	}
}
