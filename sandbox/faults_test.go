package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// try sends a request and returns why no response came.
func try(c *rawConn, req kmsg.Request) error {
	_, err := c.roundTrip(req)
	return err
}

func TestFaultCheck(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "in", Partitions: 2}))
	for want, f := range map[string]Fault{
		"fault : no such kind":                                                                         {},
		"fault explode: no such kind":                                                                  {Kind: "explode"},
		"fault stop-sweeper: topic does not apply":                                                     {Kind: FaultStopSweeper, Topic: "in"},
		"fault answer-error: api_key is needed":                                                        {Kind: FaultAnswerError, Error: "NOT_COORDINATOR"},
		"fault answer-error: error is needed":                                                          {Kind: FaultAnswerError, APIKey: new(int16(26))},
		`fault answer-error: "NO_SUCH_ERROR" is no error of Kafka's`:                                   {Kind: FaultAnswerError, APIKey: new(int16(26)), Error: "NO_SUCH_ERROR"},
		"fault answer-error: api key 999 is not served":                                                {Kind: FaultAnswerError, APIKey: new(int16(999)), Error: "NOT_COORDINATOR"},
		"fault drop-marker: count and duration_ms cannot be below 0":                                   {Kind: FaultDropMarker, Count: -1},
		"fault drop-marker: duration_ms does not apply":                                                {Kind: FaultDropMarker, DurationMs: 1},
		"fault drop-marker: there is no partition 50 of __share_group_state":                           {Kind: FaultDropMarker, StatePartition: new(int32(50))},
		"fault freeze-broker: there is no broker 3":                                                    {Kind: FaultFreezeBroker, Broker: new(int32(3))},
		"fault freeze-broker: there is no broker -1":                                                   {Kind: FaultFreezeBroker, Broker: new(int32(-1))},
		`fault hang-coordinator: coordinator is "group", want "transaction" or "share"`:                {Kind: FaultHangCoordinator, Coordinator: "group"},
		"fault hang-coordinator: the share coordinator is not found by that":                           {Kind: FaultHangCoordinator, Coordinator: CoordinatorShare, TransactionalID: "t"},
		"fault hang-coordinator: the transaction coordinator is not found by that":                     {Kind: FaultHangCoordinator, Coordinator: CoordinatorTransaction, StatePartition: new(int32(0))},
		"fault move-coordinator: state_partition and to_broker are needed to move a share coordinator": {Kind: FaultMoveCoordinator, Coordinator: CoordinatorShare, StatePartition: new(int32(0))},
		"fault crash-leader: partition needs topic":                                                    {Kind: FaultCrashLeader, Partition: new(int32(0))},
		`fault crash-leader: there is no topic "out"`:                                                  {Kind: FaultCrashLeader, Topic: "out"},
		`fault expire-locks: topic "in" has no partition 2`:                                            {Kind: FaultExpireLocks, Topic: "in", Partition: new(int32(2))},
		"fault move-leader: partition is needed":                                                       {Kind: FaultMoveLeader, Topic: "in", ToBroker: new(int32(0))},
		`fault forget-transaction: there is no transactional ID "t"`:                                   {Kind: FaultForgetTransaction, TransactionalID: "t"},
	} {
		_, err := s.InjectFault(t.Context(), f)
		if _, ok := errors.AsType[*FaultError](err); !ok || err.Error() != want {
			t.Errorf("InjectFault(%+v) = %v, want %s", f, err, want)
		}
	}
	if faults := s.Faults(); len(faults) != 0 {
		t.Errorf("faults that were refused are active: %+v", faults)
	}
	if _, err := s.ClearFault("stop-sweeper-1"); !errors.Is(err, ErrNoFault) {
		t.Errorf("ClearFault of none = %v", err)
	}
	if n := len(FaultKinds()); n != 15 {
		t.Errorf("%d kinds", n)
	}
}

// Every request that has an answer with an error can be answered with one, at its
// top or for each thing that it names.
func TestErrorResponses(t *testing.T) {
	topics := func(n int) (out []kmsg.ProduceRequestTopic) {
		for i := range n {
			rt := kmsg.NewProduceRequestTopic()
			rt.Topic = fmt.Sprint("t", i)
			rt.Partitions = append(rt.Partitions, kmsg.ProduceRequestTopicPartition{Partition: int32(i)})
			out = append(out, rt)
		}
		return out
	}
	id := "t"
	for name, c := range map[string]struct {
		req  kmsg.Request
		want string
	}{
		"at the top":       {&kmsg.EndTxnRequest{Version: 5, TransactionalID: id}, `"ErrorCode":16,"ProducerID":-1,"ProducerEpoch":-1`},
		"of partitions":    {&kmsg.ProduceRequest{Version: 9, Topics: topics(2)}, `"Partition":1,"ErrorCode":16`},
		"of numbers":       {&kmsg.AddPartitionsToTxnRequest{Version: 3, Topics: []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "a", Partitions: []int32{3, 4}}}}, `{"Partition":4,"ErrorCode":16`},
		"of names":         {&kmsg.DescribeTransactionsRequest{TransactionalIDs: []string{"a", "b"}}, `"ErrorCode":16,"TransactionalID":"b"`},
		"of keys":          {&kmsg.FindCoordinatorRequest{Version: 4, CoordinatorKeys: []string{"a"}}, `"Key":"a"`},
		"of share state":   {&kmsg.ReadShareGroupStateRequest{GroupID: "g", Topics: []kmsg.ReadShareGroupStateRequestTopic{{Partitions: []kmsg.ReadShareGroupStateRequestTopicPartition{{Partition: 7}}}}}, `"Partition":7,"ErrorCode":16`},
		"of share groups":  {&kmsg.DescribeShareGroupOffsetsRequest{Groups: []kmsg.DescribeShareGroupOffsetsRequestGroup{{GroupID: "g"}}}, `"GroupID":"g"`},
		"of acknowledging": {&wire.TxnShareAcknowledgeRequest{Dialect: testDialect(t, "draft")}, `"ErrorCode":16`},
	} {
		resp, ok := errorResponse(c.req, kerr.NotCoordinator.Code)
		raw, err := json.Marshal(resp)
		if !ok || err != nil || !strings.Contains(string(raw), c.want) {
			t.Errorf("%s: %s, %v, %v; want %s", name, raw, ok, err, c.want)
		}
		_ = resp.AppendTo(nil) // can be encoded
	}
	for key := range int16(95) {
		if req := kmsg.RequestForKey(key); req != nil && answersWithErrors(req) {
			req.SetVersion(req.MaxVersion())
			_, _ = errorResponse(req, 1) // of nothing, and no panic
		}
	}
}

// A response that is lost leaves the client without an answer and the work done;
// the same again is a success.
func TestFaultLosesResponse(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		c.inject(Fault{Kind: FaultLoseResponse, TransactionalID: "t", Count: 1})
		conn := dialRaw(c.t, c.s, int(c.leader(0)))
		if err := try(conn, c.p.stageRequest(c.m, e2eStage{0, 0, 4, nil})); !errors.Is(err, io.EOF) {
			c.t.Fatalf("the response came, or %v", err)
		}
		c.wantPending("in-0 0-4 t:0")
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		c.p.mustEnd(true)
		c.wantStates(0, "5-9 ACQUIRED")

		// The answer to a commit, too: the client finds out.
		c.p.mustStage(c.m, e2eStage{0, 5, 9, nil})
		c.inject(Fault{Kind: FaultLoseResponse, APIKey: new(int16(kmsg.EndTxn)), TransactionalID: "t", Count: 1})
		end := kmsg.NewPtrEndTxnRequest()
		end.Version, end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = 5, "t", c.p.producerID, c.p.producerEpoch, true
		if err := try(dialRaw(c.t, c.s, int(c.s.kafka.coordinator("t"))), end); !errors.Is(err, io.EOF) {
			c.t.Fatalf("the response came, or %v", err)
		}
		c.wantTxn(txnCompleteCommit)
		c.p.mustEnd(true) // again
	})
}

// A frozen broker takes requests and answers none of them, until it thaws.
func TestFaultFreezesBroker(t *testing.T) {
	s := startSandbox(t)
	ask := func(broker int) <-chan error {
		done := make(chan error, 1)
		conn := dialRaw(t, s, broker)
		go func() {
			done <- try(conn, &kmsg.ApiVersionsRequest{Version: 3, ClientSoftwareName: "x", ClientSoftwareVersion: "1"})
		}()
		return done
	}
	f, err := s.InjectFault(t.Context(), Fault{Kind: FaultFreezeBroker, Broker: new(int32(1))})
	if err != nil {
		t.Fatal(err)
	}
	frozen := ask(1)
	if err := s.AwaitFault(testContext(t), f.ID, 1); err != nil {
		t.Fatal(err)
	}
	if err := <-ask(0); err != nil {
		t.Errorf("another broker: %v", err)
	}
	select {
	case err := <-frozen:
		t.Fatalf("a frozen broker answered, %v", err)
	default:
	}
	if got := s.Faults(); len(got) != 1 || got[0].Held != 1 {
		t.Errorf("faults %+v", got)
	}
	if cleared := s.ClearFaults(); len(cleared) != 1 {
		t.Errorf("cleared %+v", cleared)
	}
	if err := <-frozen; err != nil {
		t.Errorf("after the thaw: %v", err)
	}
	if got := s.Faults(); len(got) != 0 {
		t.Errorf("faults %+v", got)
	}
}

// A sandbox that is closed does not wait for what faults hold back.
func TestFaultsEndWithTheSandbox(t *testing.T) {
	s := startSandbox(t)
	for _, f := range []Fault{
		{Kind: FaultFreezeBroker, Broker: new(int32(0))},
		{Kind: FaultHangCoordinator, Coordinator: CoordinatorTransaction},
		{Kind: FaultDelayMarker},
	} {
		if _, err := s.InjectFault(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	conn := dialRaw(t, s, 0)
	done := make(chan error, 1)
	go func() { done <- try(conn, &kmsg.ApiVersionsRequest{}) }()
	if err := s.AwaitFault(testContext(t), s.Faults()[0].ID, 1); err != nil {
		t.Fatal(err)
	}
	closeSandbox(t, s)
	if err := <-done; err == nil {
		t.Error("a frozen broker answered")
	}
}

// A broker that restarts loses its connections, the sessions on them, and what it
// held as a leader.
func TestFaultRestartsBroker(t *testing.T) {
	forCornerCase(t, 3, func(c *cornerCase) {
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		conn := dialRaw(c.t, c.s, int(c.leader(0)))
		if err := try(conn, &kmsg.ApiVersionsRequest{}); err != nil {
			c.t.Fatal(err)
		}
		c.inject(Fault{Kind: FaultRestartBroker, Broker: new(c.leader(0))})
		if err := try(conn, &kmsg.ApiVersionsRequest{}); err == nil {
			c.t.Error("a connection has survived")
		}
		for _, s := range c.s.plane.snapshot().Sessions {
			if s.Broker == c.leader(0) {
				c.t.Errorf("a session has survived: %+v", s)
			}
		}
		for n := range int32(3) {
			if states := c.states(n); (len(states) > 0) == (c.leader(n) == c.leader(0)) {
				c.t.Errorf("partition %d of broker %d, after the restart of %d: %q", n, c.leader(n), c.leader(0), states)
			}
		}
		want := []string{}
		if c.pending == PendingPersisted {
			want = append(want, "in-0 0-4 t:0")
		}
		c.wantPending(want...)
		if pending := c.s.Pending(); len(pending) > 0 && (pending[0].Loaded || pending[0].MemberID != "" || pending[0].AcknowledgeType != ackAccept) {
			c.t.Errorf("pending %+v, which no leader has loaded", pending)
		}
		c.p.mustEnd(true)
		c.wantPending()
	})
}

// A connection that breaks while its EndTxn is carried out leaves nothing half
// done, whether kfake did it or not.
func TestConnectionBreaksDuringEndTxn(t *testing.T) {
	for name, reaches := range map[string]bool{"kfake did it": true, "kfake did not": false} {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/commit %v", name, commit), func(t *testing.T) {
				forCornerCase(t, 1, func(c *cornerCase) {
					c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
					conn := dialRaw(c.t, c.s, int(c.s.kafka.coordinator("t")))
					c.s.cluster.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
						c.s.gateway.mu.Lock()
						defer c.s.gateway.mu.Unlock()
						for gc := range c.s.gateway.conns {
							if gc.client.RemoteAddr().String() == conn.LocalAddr().String() {
								gc.abort()
							}
						}
						return nil, errors.New("broken"), !reaches
					})
					end := kmsg.NewPtrEndTxnRequest()
					end.Version, end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = 5, "t", c.p.producerID, c.p.producerEpoch, commit
					if err := try(conn, end); err == nil {
						c.t.Fatal("the response came")
					}
					c.awaitStates(0, c.afterEnd(commit)...)
					c.await(func() bool { return c.state().State == completed(commit) })
					c.wantTxn(completed(commit))
					c.p.mustEnd(commit) // again
					c.p.mustStage(c.m, e2eStage{0, 5, 9, nil})
					c.p.mustEnd(true)
				})
			})
		}
	}
}

// A leader that has moved goes on after the sandbox has been stopped or killed,
// though kfake has forgotten the leader epoch.
func TestFaultMovedLeaderSurvives(t *testing.T) {
	dir := t.TempDir()
	e := startShareE2E(t, "draft", 1, WithDataDir(dir))
	for n := range 3 {
		to := (e.leader(0) + 1) % 3
		if _, err := e.s.InjectFault(t.Context(), Fault{Kind: FaultMoveLeader, Topic: e2eTopic, Partition: new(int32(0)), ToBroker: &to}); err != nil {
			t.Fatal(err)
		}
		if e.leader(0) != to {
			t.Fatalf("move %d: led by %d, want %d", n, e.leader(0), to)
		}
		e.join("m").fetch(10, 0) // the new leader stores its epoch
	}
	e.produce(0, 10)
	c := &crash{t: t, dir: dir}
	c.now()
	e.cl.Close()
	closeSandbox(t, e.s)
	for name, d := range map[string]string{"killed": c.copy, "stopped": dir} {
		e.s = startSandbox(t, WithDialect(e.dialect), WithDataDir(d))
		e.connect()
		if got, want := e.join("n").acquire(0), []acquiredRange{delivered(0, 9, 1)}; !slices.Equal(got, want) {
			t.Errorf("%s: acquired %v, want %v", name, got, want)
		}
		e.cl.Close()
		closeSandbox(t, e.s)
	}
}

// The coordinators of all groups and transactions move, and are found again.
func TestFaultMovesCoordinators(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		before := c.s.kafka.coordinator("t")
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		for c.s.kafka.coordinator("t") == before {
			c.inject(Fault{Kind: FaultMoveCoordinator, Coordinator: CoordinatorTransaction})
		}
		d := kmsg.NewPtrDescribeTransactionsRequest()
		d.TransactionalIDs = []string{"t"}
		if st := to[*kmsg.DescribeTransactionsResponse](c.shareE2E, before, d).TransactionStates[0]; st.ErrorCode != kerr.NotCoordinator.Code {
			c.t.Errorf("the former coordinator: %s", errorName(st.ErrorCode))
		}
		c.p.mustEnd(true)
		c.wantTxn(txnCompleteCommit)
		c.m.heartbeat()
	})
}

// A share coordinator that hangs leaves a transaction prepared, and whatever
// waits for it goes on when it answers again.
func TestFaultHangsShareCoordinator(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		hang := c.inject(Fault{Kind: FaultHangCoordinator, Coordinator: CoordinatorShare, StatePartition: new(c.statePartition(0))})
		c.p.mustEnd(true)
		c.wantTxn(txnPrepareCommit)
		c.struck(hang)
		c.clear(hang)
		c.awaitStates(0, "5-9 ACQUIRED")
		c.await(func() bool { return c.state().State == txnCompleteCommit })
		c.wantTxn(txnCompleteCommit)
	})
}

// A delay ends by itself.
func TestFaultDelayHasADuration(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		c.inject(Fault{Kind: FaultDelayMarker, DurationMs: 50, Count: 1})
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		c.p.mustEnd(true)
		c.awaitStates(0, "5-9 ACQUIRED")
		if !c.await(func() bool { return len(c.s.Faults()) == 0 && c.state().State == txnCompleteCommit }) {
			c.t.Errorf("faults %+v, transaction %+v", c.s.Faults(), c.state())
		}
	})
}

// A marker that is held back when the sandbox stops is applied at the next start,
// since faults end with the sandbox.
func TestFaultsDoNotOutliveTheSandbox(t *testing.T) {
	dir := WithDataDir(t.TempDir())
	e := startShareE2E(t, "kip", 1, dir)
	e.produce(0, 10)
	m, p := e.join("m"), e.producer("t", time.Minute)
	m.acquire(0)
	p.mustStage(m, e2eStage{0, 0, 9, nil})
	if _, err := e.s.InjectFault(t.Context(), Fault{Kind: FaultDelayMarker}); err != nil {
		t.Fatal(err)
	}
	p.mustEnd(true)
	if n := e.s.plane.pendingCount(); n != 10 {
		t.Fatalf("%d records are pending, want 10", n)
	}
	e.restart(dir)
	if n := e.s.plane.pendingCount(); n != 0 || len(e.s.Faults()) != 0 {
		t.Errorf("%d records are pending, faults %+v", n, e.s.Faults())
	}
	if got := dialCoordinator(t, e.s, "t").described(t).State; got != txnCompleteCommit {
		t.Errorf("the transaction is %s", got)
	}
}

func TestControlFaults(t *testing.T) {
	s := startSandbox(t)
	srv := httptest.NewServer(s.ControlHandler())
	t.Cleanup(srv.Close)
	do := func(method, path, body string, header ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(raw)
	}
	want := func(code int, text, method, path, body string, header ...string) string {
		t.Helper()
		got, raw := do(method, path, body, header...)
		if got != code || !strings.Contains(raw, text) {
			t.Errorf("%s %s %s = %d %s; want %d and %s", method, path, body, got, raw, code, text)
		}
		return raw
	}
	want(200, `"faults": []`, "GET", "/faults", "")
	var f Fault
	if err := json.Unmarshal([]byte(want(201, `"id": "stop-sweeper-1"`, "POST", "/faults", `{"kind":"stop-sweeper"}`)), &f); err != nil {
		t.Error(err)
	}
	want(201, `"id": "drop-marker-2"`, "POST", "/faults", `{"kind":"drop-marker","state_partition":3,"count":2}`)
	want(200, `"state_partition": 3`, "GET", "/faults", "")
	want(200, `"drop-marker-2"`, "GET", "/state", "")
	want(400, "fault explode: no such kind", "POST", "/faults", `{"kind":"explode"}`)
	want(400, `unknown field \"kinds\"`, "POST", "/faults", `{"kinds":"stop-sweeper"}`)
	want(400, "fault: ", "POST", "/faults", "{")
	want(403, "", "POST", "/faults", `{"kind":"stop-sweeper"}`, "Origin", "http://elsewhere.example")
	want(403, "", "DELETE", "/faults", "", "Sec-Fetch-Site", "cross-site")
	want(404, "no such fault", "DELETE", "/faults/drop-marker-9", "")
	want(200, `"id": "stop-sweeper-1"`, "DELETE", "/faults/stop-sweeper-1", "")
	want(200, `"drop-marker-2"`, "DELETE", "/faults", "")
	want(200, `"faults": []`, "DELETE", "/faults", "")
}

// AwaitFault waits for strikes, and for the end of a fault, but not for ever.
func TestAwaitFault(t *testing.T) {
	s := startSandbox(t)
	f, err := s.InjectFault(t.Context(), Fault{Kind: FaultStopSweeper})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.AwaitFault(ctx, f.ID, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("AwaitFault with a context that ended = %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- s.AwaitFault(t.Context(), f.ID, 1) }()
	if _, err := s.ClearFault(f.ID); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("AwaitFault of a fault that ended = %v", err)
	}
}
