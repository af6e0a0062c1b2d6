package inspect

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestReadShareStates(t *testing.T) {
	f := newFakeCluster()
	batches := []wire.StateBatch{stateBatchOf(0, 4, wire.Acknowledged), pendingBatch(5, 9, ownedBy(7, 3)), stateBatchOf(10, 10, wire.Archived)}
	f.write(fakeKey(2), batches...)
	f.write(fakeKey(0))
	none := ShareKey{"nobody", fakeTopicID, 0}
	states, gaps, err := ReadShareStates(t.Context(), f, []ShareKey{none, fakeKey(0), fakeKey(2)})
	if err != nil || len(gaps) > 0 || len(states) != 2 {
		t.Fatalf("%+v, gaps %+v, %v", states, gaps, err)
	}
	i := slices.IndexFunc(states, func(s ShareState) bool { return s.Key() == fakeKey(2) })
	s := states[i]
	if s.StatePartition != 2 || s.StateEpoch != 1 || s.LeaderEpoch != 7 || s.StartOffset != 0 || !slices.Equal(s.Batches, batches) ||
		!slices.Equal(s.Sources, []Source{SourceShareGroupState}) || !s.Written.IsZero() {
		t.Errorf("state %+v", s)
	}
	if n := len(requestsOf[*kmsg.FindCoordinatorRequest](f)); n > 0 {
		t.Errorf("%d FindCoordinator requests: they create the topic where there is none", n)
	}
	for _, req := range requestsOf[*kmsg.ReadShareGroupStateRequest](f) {
		for _, t1 := range req.Topics {
			for _, p := range t1.Partitions {
				if p.LeaderEpoch != 7 {
					t.Errorf("read with leader epoch %d, want that of the summary, 7", p.LeaderEpoch)
				}
			}
		}
	}
}

func TestReadShareStatesWithoutTopic(t *testing.T) {
	f := newFakeCluster()
	f.topics = f.topics[1:]
	states, gaps, err := ReadShareStates(t.Context(), f, []ShareKey{fakeKey(0)})
	if err != nil || len(states)+len(gaps) > 0 || len(f.sent) > 0 {
		t.Errorf("%+v, gaps %+v, %v, %d requests; want nothing", states, gaps, err, len(f.sent))
	}
}

func TestReadShareStatesGaps(t *testing.T) {
	// stateError answers one of the two requests of a broker with an error, n times.
	stateError := func(f *fakeCluster, node int32, key kmsg.Key, code *kerr.Error, n int) {
		f.intercept = func(at int32, req kmsg.Request) (kmsg.Response, error, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if at != node || req.Key() != int16(key) || n == 0 {
				return nil, nil, false
			}
			n--
			switch req := req.(type) {
			case *kmsg.ReadShareGroupStateSummaryRequest:
				resp := f.summaries(at, req).(*kmsg.ReadShareGroupStateSummaryResponse)
				resp.Topics[0].Partitions[0].ErrorCode = code.Code
				return resp, nil, true
			case *kmsg.ReadShareGroupStateRequest:
				resp := f.readStates(at, req).(*kmsg.ReadShareGroupStateResponse)
				resp.Topics[0].Partitions[0].ErrorCode = code.Code
				return resp, nil, true
			}
			return nil, nil, false
		}
	}
	for _, c := range []struct {
		name string
		set  func(*fakeCluster)
		rows int // of 2
		want []string
		says string
	}{
		{"all there", func(*fakeCluster) {}, 2, nil, ""},
		{
			"no CLUSTER_ACTION", func(f *fakeCluster) { f.denied[aclClusterAction] = true },
			0,
			[]string{"ReadShareGroupState CLUSTER_ACTION on CLUSTER kafka-cluster CLUSTER_AUTHORIZATION_FAILED"},
			"",
		},
		{
			"no DESCRIBE on the topic", func(f *fakeCluster) { f.denied[aclDescribeState] = true },
			0,
			[]string{"Metadata DESCRIBE on TOPIC __share_group_state TOPIC_AUTHORIZATION_FAILED"},
			"",
		},
		{
			"moves for a moment", func(f *fakeCluster) {
				stateError(f, 1, kmsg.ReadShareGroupStateSummary, kerr.NotCoordinator, 2)
			},
			2, nil, "",
		},
		{
			"epoch rises in between", func(f *fakeCluster) {
				stateError(f, 1, kmsg.ReadShareGroupState, kerr.FencedLeaderEpoch, 1)
			},
			2, nil, "",
		},
		{
			"nobody's for ever", func(f *fakeCluster) {
				stateError(f, 1, kmsg.ReadShareGroupStateSummary, kerr.NotCoordinator, -1)
			},
			1,
			[]string{"ReadShareGroupState broker 1 NOT_COORDINATOR"},
			"after 3 look-ups of the leader",
		},
		{
			"no leader", func(f *fakeCluster) { f.topics[0].Partitions[1].Leader = -1 },
			1,
			[]string{"ReadShareGroupState LEADER_NOT_AVAILABLE"},
			"no broker could be asked",
		},
		{
			"fails", func(f *fakeCluster) {
				stateError(f, 1, kmsg.ReadShareGroupState, kerr.UnknownServerError, -1)
			},
			1,
			[]string{"ReadShareGroupState broker 1 UNKNOWN_SERVER_ERROR"},
			`tell the state of share group "g"`,
		},
		{
			"removed in between", func(f *fakeCluster) {
				stateError(f, 1, kmsg.ReadShareGroupState, kerr.InvalidRequest, -1)
			},
			1, nil, "",
		},
		{
			"refused", func(f *fakeCluster) {
				f.failAt(1, kmsg.ReadShareGroupStateSummary, &net.OpError{Op: "dial", Err: errRefused}, -1)
			},
			1,
			[]string{"ReadShareGroupState broker 1"},
			"connection refused, after 3 look-ups",
		},
		{
			"deleted topic", func(f *fakeCluster) {
				stateError(f, 1, kmsg.ReadShareGroupStateSummary, kerr.UnknownTopicOrPartition, -1)
			},
			1, nil, "",
		},
		{
			"older than the request", func(f *fakeCluster) {
				f.failAt(1, kmsg.ReadShareGroupStateSummary, errors.New("the broker is too old"), -1)
			},
			1,
			[]string{"ReadShareGroupState broker 1"},
			"too old",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster()
				f.write(fakeKey(0), pendingBatch(0, 1, ownedBy(7, 3)))
				f.write(fakeKey(1), pendingBatch(0, 1, ownedBy(7, 3)))
				c.set(f)
				states, gaps, err := ReadShareStates(t.Context(), f, []ShareKey{fakeKey(0), fakeKey(1)})
				if err != nil || len(states) != c.rows || !slices.Equal(gapsBy(gaps), c.want) {
					t.Fatalf("%d states, gaps %q, %v; want %d and %q", len(states), gapsBy(gaps), err, c.rows, c.want)
				}
				if c.says != "" && !strings.Contains(gaps[0].Reason, c.says) {
					t.Errorf("gap %q, want %q", gaps[0].Reason, c.says)
				}
				if f.states[fakeKey(1)].LeaderEpoch != 7 {
					t.Errorf("the leader epoch became %d", f.states[fakeKey(1)].LeaderEpoch)
				}
			})
		})
	}
}

func TestReadShareStatesInBatches(t *testing.T) {
	f := newFakeCluster()
	var keys []ShareKey
	for p := range int32(700) {
		k := ShareKey{fmt.Sprintf("g%d", p%2), fakeTopicID, p}
		f.write(k)
		keys = append(keys, k)
	}
	states, gaps, err := ReadShareStates(t.Context(), f, keys)
	if err != nil || len(gaps) > 0 || len(states) != len(keys) {
		t.Fatalf("%d states, gaps %+v, %v", len(states), gaps, err)
	}
	// 350 share-partitions of each group over 3 brokers, 100 in each request.
	if n := len(requestsOf[*kmsg.ReadShareGroupStateRequest](f)); n > 2*3*2 {
		t.Errorf("%d requests", n)
	}
}
