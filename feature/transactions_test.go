package feature

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// txnCluster is a cluster of three brokers with transactions, as ListOpen asks
// it.
type txnCluster struct {
	listed    map[int32][]kmsg.ListTransactionsResponseTransactionState
	states    map[string]kmsg.DescribeTransactionsResponseTransactionState
	moved     map[string]bool // the broker that lists it does not coordinate it any more
	listErr   map[int32]int16
	hidden    int16 // code of a transactional ID that does not exist
	topic     error
	requested [][]string // batches that were described
}

func (c *txnCluster) fake() *fakeCluster {
	return &fakeCluster{
		topics: func(string) (cluster.Topic, error) { return cluster.Topic{}, c.topic },
		requestBroker: func(node int32, req kmsg.Request) (kmsg.Response, error) {
			switch req := req.(type) {
			case *kmsg.ListTransactionsRequest:
				if c.listErr[node] == -100 {
					return nil, errors.New("connection refused")
				}
				return &kmsg.ListTransactionsResponse{ErrorCode: c.listErr[node], TransactionStates: c.listed[node]}, nil
			case *kmsg.DescribeTransactionsRequest:
				return c.describe(req, true), nil
			}
			return nil, errors.New("unexpected")
		},
		request: func(req kmsg.Request) (kmsg.Response, error) {
			return c.describe(req.(*kmsg.DescribeTransactionsRequest), false), nil
		},
	}
}

func (c *txnCluster) describe(req *kmsg.DescribeTransactionsRequest, direct bool) *kmsg.DescribeTransactionsResponse {
	c.requested = append(c.requested, req.TransactionalIDs)
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	for _, id := range req.TransactionalIDs {
		s, ok := c.states[id]
		switch {
		case !ok:
			s.ErrorCode = c.hidden
		case direct && c.moved[id]:
			s = kmsg.DescribeTransactionsResponseTransactionState{ErrorCode: kerr.NotCoordinator.Code}
		}
		s.TransactionalID = id
		resp.TransactionStates = append(resp.TransactionStates, s)
	}
	return resp
}

func listed(id, state string) kmsg.ListTransactionsResponseTransactionState {
	return kmsg.ListTransactionsResponseTransactionState{TransactionalID: id, TransactionState: state, ProducerID: 4}
}

func state(state string, topics ...string) kmsg.DescribeTransactionsResponseTransactionState {
	s := kmsg.DescribeTransactionsResponseTransactionState{State: state, ProducerID: 5, TimeoutMillis: 60_000, StartTimestamp: 1_000}
	for _, name := range topics {
		s.Topics = append(s.Topics, kmsg.DescribeTransactionsResponseTransactionStateTopic{Topic: name})
	}
	return s
}

func TestListOpen(t *testing.T) {
	type states = map[string]kmsg.DescribeTransactionsResponseTransactionState
	type lists = map[int32][]kmsg.ListTransactionsResponseTransactionState
	noList := stock44(2)
	noList.Keys = map[int16]cluster.VersionRange{}
	for name, c := range map[string]struct {
		brokers []cluster.BrokerVersions // default is three of stock 4.4
		cluster txnCluster
		open    []string // "id state acks"
		unknown []string
		advice  string
	}{
		"nothing": {},
		"of several brokers": {
			cluster: txnCluster{
				listed: lists{0: {listed("b", "Ongoing")}, 2: {listed("a", "PrepareCommit")}},
				states: states{"a": state("PrepareCommit", "out", "__share_group_state"), "b": state("Ongoing", "out")},
			},
			open: []string{"a PrepareCommit true", "b Ongoing false"},
		},
		"listed by every broker": {
			cluster: txnCluster{
				listed: lists{0: {listed("a", "Ongoing")}, 1: {listed("a", "Ongoing")}, 2: {listed("a", "Ongoing")}},
				states: states{"a": state("Ongoing")}, moved: map[string]bool{"a": true},
			},
			open: []string{"a Ongoing false"},
		},
		"ended while we look": {
			cluster: txnCluster{
				listed: lists{0: {listed("a", "Ongoing"), listed("b", "Ongoing"), listed("c", "Ongoing")}},
				states: states{"a": state("CompleteCommit"), "c": {ErrorCode: kerr.TransactionalIDNotFound.Code}, "b": state("PrepareAbort")},
			},
			open: []string{"b PrepareAbort false"},
		},
		"states that a broker does not filter": {
			cluster: txnCluster{listed: lists{0: {listed("a", "Empty")}}, states: states{"a": state("Empty")}},
		},
		"a coordinator that is loading": {
			cluster: txnCluster{
				listed: lists{0: {listed("a", "Ongoing")}}, states: states{"a": {ErrorCode: kerr.CoordinatorLoadInProgress.Code}},
			},
			open: []string{"a Ongoing ?"}, unknown: []string{`describe transaction "a": COORDINATOR_LOAD_IN_PROGRESS`},
		},
		"a broker that fails": {
			cluster: txnCluster{listErr: map[int32]int16{1: kerr.CoordinatorNotAvailable.Code, 2: -100}},
			unknown: []string{"list transactions: broker 1: COORDINATOR_NOT_AVAILABLE", "list transactions: broker 2: connection refused"},
		},
		"a silent broker": {
			brokers: []cluster.BrokerVersions{stock44(2), silent()},
			unknown: []string{"broker 1 (broker:9092) did not answer"}, advice: "unregister it",
		},
		"a broker that cannot": {
			brokers: []cluster.BrokerVersions{noList}, unknown: []string{"broker 0 cannot list its transactions"},
		},
		"IDs that are hidden": {
			cluster: txnCluster{hidden: kerr.TransactionalIDAuthorizationFailed.Code},
			unknown: []string{"TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}, advice: "kafka-acls.sh --add --operation Describe --transactional-id",
		},
		"the state topic is hidden": {
			cluster: txnCluster{topic: kerr.TopicAuthorizationFailed},
			unknown: []string{"may not describe topic __share_group_state (TOPIC_AUTHORIZATION_FAILED)"}, advice: "grant DESCRIBE on topic __share_group_state",
		},
		"there is no state topic": {cluster: txnCluster{topic: kerr.UnknownTopicOrPartition}},
		"the state topic fails":   {cluster: txnCluster{topic: kerr.LeaderNotAvailable}, unknown: []string{"describe topic __share_group_state: LEADER_NOT_AVAILABLE"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.brokers == nil {
				c.brokers = []cluster.BrokerVersions{stock44(2), stock44(2), stock44(2)}
			}
			if c.cluster.hidden == 0 {
				c.cluster.hidden = kerr.NotCoordinator.Code
			}
			got, err := ListOpen(t.Context(), c.cluster.fake(), report(c.brokers...))
			if err != nil {
				t.Fatal(err)
			}
			var open []string
			for _, tx := range got.Transactions {
				acks := "?"
				if tx.HoldsShareAcks != nil {
					acks = map[bool]string{true: "true", false: "false"}[*tx.HoldsShareAcks]
					if tx.Started == nil || !tx.Started.Equal(time.UnixMilli(1_000)) || *tx.TimeoutMS != 60_000 || tx.ProducerID != 5 {
						t.Errorf("transaction %+v", tx)
					}
				}
				open = append(open, tx.TransactionalID+" "+tx.State+" "+acks)
			}
			if !slices.Equal(open, c.open) {
				t.Errorf("open %q, want %q", open, c.open)
			}
			wantSentences(t, "unknown", got.Unknown, c.unknown)
			if !strings.Contains(got.Advice, c.advice) {
				t.Errorf("advice %q, want %q", got.Advice, c.advice)
			}
		})
	}
}

// Many transactions are described in batches, by coordinator.
func TestListOpenInBatches(t *testing.T) {
	c := txnCluster{
		listed: map[int32][]kmsg.ListTransactionsResponseTransactionState{}, hidden: kerr.NotCoordinator.Code,
		states: map[string]kmsg.DescribeTransactionsResponseTransactionState{},
	}
	for i := range 1200 {
		id := "tx-" + string(rune('a'+i/100)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10))
		c.listed[int32(i%2)] = append(c.listed[int32(i%2)], listed(id, "Ongoing"))
		c.states[id] = state("Ongoing")
	}
	got, err := ListOpen(t.Context(), c.fake(), report(stock44(2), stock44(2)))
	if err != nil || len(got.Transactions) != 1200 {
		t.Fatalf("ListOpen = %d transactions, %v", len(got.Transactions), err)
	}
	if batches := len(c.requested) - 1; batches != 4 { // one more is the probe
		t.Errorf("described in %d requests, want 2 for each of 2 coordinators", batches)
	}
	for _, b := range c.requested {
		if len(b) > describeBatch {
			t.Errorf("a request for %d transactions, want at most %d", len(b), describeBatch)
		}
	}
}
