package sandbox

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The corner cases of KIP-1289, numbered as there, over the network with both
// dialects.

// forDialects runs f with a sandbox of each dialect.
func forDialects(t *testing.T, partitions int32, f func(*shareE2E), opts ...Option) {
	t.Helper()
	for _, d := range bothDialects {
		t.Run(d, func(t *testing.T) {
			f(startShareE2E(t, d, partitions, opts...))
		})
	}
}

// afterAbort is the state of staged records after an abort, in words.
func (e *shareE2E) afterAbort() string { return e.dialect.AfterAbort.String() }

// failRegistrations makes the transaction coordinator answer the next n
// registrations with an error.
func (e *shareE2E) failRegistrations(n int, ke *kerr.Error) {
	for range n {
		e.s.cluster.ControlKey(int16(kmsg.AddPartitionsToTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
			r := req.(*kmsg.AddPartitionsToTxnRequest)
			resp := r.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
			for _, rt := range r.Topics {
				t := kmsg.NewAddPartitionsToTxnResponseTopic()
				t.Topic = rt.Topic
				for _, n := range rt.Partitions {
					p := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
					p.Partition, p.ErrorCode = n, ke.Code
					t.Partitions = append(t.Partitions, p)
				}
				resp.Topics = append(resp.Topics, t)
			}
			return resp, nil, true
		})
	}
}

// A leader that crashes forgets what it staged if that is in memory alone; the
// record is delivered again although the transaction commits.
func TestCornerCase01LeaderCrashes(t *testing.T) {
	for _, pending := range []PendingState{PendingPersisted, PendingMemory} {
		t.Run(pending.String(), func(t *testing.T) {
			forDialects(t, 1, func(e *shareE2E) {
				e.produce(0, 10)
				m, p := e.join("m"), e.producer("t", time.Minute)
				m.acquire(0)
				p.mustStage(m, e2eStage{0, 0, 4, nil})
				next := (e.leader(0) + 1) % 3
				if err := e.s.cluster.MoveTopicPartition(e2eTopic, 0, next); err != nil {
					e.t.Fatal(err)
				}
				got := m.acquire(0)
				if pending == PendingMemory {
					if want := []acquiredRange{delivered(0, 9, 1)}; !slices.Equal(got, want) {
						e.t.Fatalf("acquired %v of the new leader, want %v", got, want)
					}
					p.mustEnd(true)
					e.wantStates(0, "0-9 ACQUIRED")
					return
				}
				if want := []acquiredRange{delivered(5, 9, 1)}; !slices.Equal(got, want) {
					e.t.Fatalf("acquired %v of the new leader, want %v", got, want)
				}
				e.wantStates(0, "0-4 TX_PENDING", "5-9 ACQUIRED")
				p.mustEnd(true)
				e.wantStates(0, "5-9 ACQUIRED")
			}, WithPendingState(pending))
		})
	}
}

// Nothing is staged when the transaction cannot be registered: the records stay
// acquired, and the same request may be sent again.
func TestCornerCase02RegistrationFails(t *testing.T) {
	forDialects(t, 1, func(e *shareE2E) {
		e.produce(0, 10)
		m, p := e.join("m"), e.producer("t", time.Minute)
		m.acquire(0)
		for _, ke := range []*kerr.Error{kerr.CoordinatorNotAvailable, kerr.NotCoordinator} {
			e.failRegistrations(1, ke)
			e.wantCode(p.stage(m, e.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, ke)
			e.wantStates(0, "0-9 ACQUIRED")
		}
		for _, part := range e.s.plane.snapshot().Partitions {
			if part.Ranges[0].LockExpiry == nil {
				e.t.Error("no acquisition lock runs")
			}
		}
		p.mustStage(m, e2eStage{0, 0, 4, nil})
		e.wantStates(0, "0-4 TX_PENDING", "5-9 ACQUIRED")
		p.mustEnd(true)
		e.wantStates(0, "5-9 ACQUIRED")
	})
}

// A producer that was fenced stages nothing, and what it had staged comes back.
func TestCornerCase03ProducerFenced(t *testing.T) {
	forDialects(t, 1, func(e *shareE2E) {
		e.produce(0, 10)
		m, old := e.join("m"), e.producer("t", time.Minute)
		m.acquire(0)
		old.mustStage(m, e2eStage{0, 0, 4, nil})
		e.producer("t", time.Minute)
		if e.dialect.AfterAbort == wire.Acquired {
			e.wantStates(0, "0-4 ACQUIRED", "5-9 ACQUIRED") // the first five with a new lock
		} else {
			e.wantStates(0, "0-4 AVAILABLE", "5-9 ACQUIRED")
		}
		e.wantCode(old.stage(m, e.leader(0), e2eStage{0, 5, 9, nil}).ErrorCode, kerr.InvalidProducerEpoch)
		if n := e.s.plane.pendingCount(); n != 0 {
			e.t.Errorf("%d records pending", n)
		}
		if code := old.end(true); code == 0 {
			e.t.Error("a fenced producer committed")
		}
	})
}

// The member that staged may be gone: the marker decides.
func TestCornerCase04MemberGone(t *testing.T) {
	forDialects(t, 1, func(e *shareE2E) {
		e.produce(0, 10)
		m, p := e.join("m"), e.producer("t", time.Minute)
		m.acquire(0)
		p.mustStage(m, e2eStage{0, 0, 4, nil})
		m.sessions[e.leader(0)] = -1
		m.fetch(1, 0)
		m.epoch = -1
		m.heartbeat()
		e.wantStates(0, "0-4 TX_PENDING", "5-9 AVAILABLE")
		p.mustEnd(true)
		e.wantStates(0, "5-9 AVAILABLE")
	})
}

// A marker that comes again finds nothing to do and succeeds.
func TestCornerCase05DuplicateMarkers(t *testing.T) {
	forDialects(t, 1, func(e *shareE2E) {
		e.produce(0, 10)
		m, p := e.join("m"), e.producer("t", time.Minute)
		m.acquire(0)
		o := p.owner
		p.mustStage(m, e2eStage{0, 0, 4, nil})
		p.mustEnd(true)
		p.mustStage(m, e2eStage{0, 5, 7, nil})
		e.wantStates(0, "5-7 TX_PENDING", "8-9 ACQUIRED")

		n := wire.ShareStatePartition(e2eGroup, e.topic.id, 0, defaultStatePartitions)
		info, _ := e.s.kafka.partition(stateTopic, n)
		for _, commit := range []bool{true, false, true} {
			req := kmsg.NewPtrWriteTxnMarkersRequest()
			mk := kmsg.NewWriteTxnMarkersRequestMarker()
			mk.ProducerID, mk.ProducerEpoch, mk.Committed, mk.TransactionVersion = o.producerID, o.producerEpoch+1, commit, 2
			mt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			mt.Topic, mt.Partitions = stateTopic, []int32{n}
			mk.Topics = append(mk.Topics, mt)
			req.Markers = append(req.Markers, mk)
			resp := to[*kmsg.WriteTxnMarkersResponse](e, info.leader, req)
			if code := resp.Markers[0].Topics[0].Partitions[0].ErrorCode; code != 0 {
				e.t.Fatalf("marker: %s", errorName(code))
			}
			e.wantStates(0, "5-7 TX_PENDING", "8-9 ACQUIRED")
		}
		p.mustEnd(true)
		e.wantStates(0, "8-9 ACQUIRED")
	})
}

// No acquisition lock runs while a record is staged.
func TestCornerCase06LockDoesNotExpire(t *testing.T) {
	for _, d := range bothDialects {
		t.Run(d, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, d)
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(10)
				r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
				bubbleSleep(31 * time.Second)
				r.wantStates("g", "in", 0, "0-4 TX_PENDING", "5-9 AVAILABLE")
				r.end("t", owner{7, 3}, true)
				r.wantStates("g", "in", 0, "5-9 AVAILABLE")
			})
		})
	}
}

// A transaction that times out is aborted by its coordinator: the records come
// back and the producer is fenced.
func TestCornerCase07TransactionTimesOut(t *testing.T) {
	forDialects(t, 1, func(e *shareE2E) {
		e.produce(0, 10)
		m, p := e.join("m"), e.producer("t", 300*time.Millisecond)
		m.acquire(0)
		p.mustStage(m, e2eStage{0, 0, 9, nil})
		e.wantStates(0, "0-9 TX_PENDING")
		e.awaitStates(0, "0-9 "+e.afterAbort())
		e.await(func() bool { return e.s.plane.pendingCount() == 0 }) // counted a moment later
		if code := p.end(true); code == 0 {
			e.t.Error("a transaction committed after it timed out")
		}
	})
}

// A member epoch that is not the current one fails the request before anything
// is registered.
func TestCornerCase08StaleMember(t *testing.T) {
	forDialects(t, 1, func(e *shareE2E) {
		e.produce(0, 10)
		m, p := e.join("m"), e.producer("t", time.Minute)
		m.acquire(0)
		stale := *m
		e.join("other") // raises the group epoch
		m.heartbeat()
		e.wantCode(p.stage(&stale, e.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, kerr.StaleMemberEpoch)
		stale.id = "stranger"
		e.wantCode(p.stage(&stale, e.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, kerr.UnknownMemberID)
		if st, _, err := e.s.kafka.describeTransaction(testContext(e.t), "t"); err != nil || st.state != "Empty" {
			e.t.Fatalf("transaction %+v, %v, want it not to have begun", st, err)
		}
		e.wantStates(0, "0-9 ACQUIRED")
		p.mustStage(m, e2eStage{0, 0, 4, nil})
		p.mustEnd(false)
	})
}

// A type that may not be staged fails its partition, whole, and no other.
func TestCornerCase10InvalidType(t *testing.T) {
	forDialects(t, 3, func(e *shareE2E) {
		m, p := e.join("m"), e.producer("t", time.Minute)
		a, b := e.twoOfOneLeader()
		e.produce(a, 10)
		e.produce(b, 10)
		m.fetch(2000, a, b)
		resp := p.stage(m, e.leader(a), e2eStage{a, 0, 1, []int8{ackAccept, ackRelease}}, e2eStage{b, 0, 1, nil})
		e.wantCode(resp.Topics[0].Partitions[0].ErrorCode, kerr.TypedErrorForCode(e.dialect.InvalidTypeCode))
		if code := resp.Topics[0].Partitions[1].ErrorCode; code != 0 {
			e.t.Fatalf("the other partition: %s", errorName(code))
		}
		e.wantStates(a, "0-9 ACQUIRED")
		e.wantStates(b, "0-1 TX_PENDING", "2-9 ACQUIRED")
		p.mustEnd(false)
	}, WithBrokers(1))
}

// twoOfOneLeader returns two partitions that one broker leads.
func (e *shareE2E) twoOfOneLeader() (a, b int32) {
	e.t.Helper()
	for a := range e.topic.partitions {
		for b := a + 1; b < e.topic.partitions; b++ {
			if e.leader(a) == e.leader(b) {
				return a, b
			}
		}
	}
	e.t.Fatal("no broker leads two partitions")
	return 0, 0
}

// When one of several partitions fails, the others stay staged until the
// transaction ends; the abort brings all of it back.
func TestCornerCase11PartialFailure(t *testing.T) {
	forDialects(t, 2, func(e *shareE2E) {
		m, p := e.join("m"), e.producer("t", time.Minute)
		e.produce(0, 10)
		e.produce(1, 10)
		m.fetch(2000, 0, 1)
		resp := p.stage(m, 0, e2eStage{0, 0, 4, nil}, e2eStage{1, 5, 12, nil})
		if code := resp.Topics[0].Partitions[0].ErrorCode; resp.ErrorCode != 0 || code != 0 {
			e.t.Fatalf("partition 0: %s, %s", errorName(resp.ErrorCode), errorName(code))
		}
		e.wantCode(resp.Topics[0].Partitions[1].ErrorCode, kerr.InvalidRequest)
		e.wantStates(0, "0-4 TX_PENDING", "5-9 ACQUIRED")
		e.wantStates(1, "0-9 ACQUIRED")
		p.mustEnd(false)
		e.wantStates(0, "0-4 "+e.afterAbort(), "5-9 ACQUIRED")
		e.wantStates(1, "0-9 ACQUIRED")
	}, WithBrokers(1))
}

// A record keeps its first stager; markers touch only their own.
func TestCornerCase14ConcurrentTransactions(t *testing.T) {
	forDialects(t, 1, func(e *shareE2E) {
		e.produce(0, 10)
		m := e.join("m")
		m.acquire(0)
		p, q := e.producer("t", time.Minute), e.producer("u", time.Minute)
		p.mustStage(m, e2eStage{0, 0, 4, nil})
		resp := q.stage(m, e.leader(0), e2eStage{0, 4, 6, nil})
		e.wantCode(worstCode(resp), kerr.InvalidRecordState)
		q.mustStage(m, e2eStage{0, 5, 6, nil})
		q.mustEnd(true)
		e.wantStates(0, "0-4 TX_PENDING", "5-6 ACKNOWLEDGED", "7-9 ACQUIRED")
		p.mustEnd(true)
		e.wantStates(0, "7-9 ACQUIRED")
	})
}

// The same with two epochs of one producer, where the marker of the first
// transaction is late.
func TestCornerCase14EpochsOfOneProducer(t *testing.T) {
	for _, d := range bothDialects {
		t.Run(d, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, d)
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(10)
				r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
				r.k.end("t")
				r.wantCode(m.stage("t", owner{7, 4}, 0, 2, 6, ackAccept), kerr.InvalidRecordState)
				r.wantCode(m.stage("t", owner{7, 4}, 0, 5, 6, ackAccept), nil)
				r.p.transactionEnded(t.Context(), ended("t", 8, 9, true), func() {}) // another producer
				r.wantStates("g", "in", 0, "0-4 TX_PENDING", "5-6 TX_PENDING", "7-9 ACQUIRED")
				r.p.transactionEnded(t.Context(), ended("t", 7, 4, true), func() {})
				r.wantStates("g", "in", 0, "5-6 TX_PENDING", "7-9 ACQUIRED")
				r.p.transactionEnded(t.Context(), ended("t", 7, 5, true), func() {})
				r.wantStates("g", "in", 0, "7-9 ACQUIRED")
			})
		})
	}
}

// restart closes the sandbox and starts it again on the same data.
func (e *shareE2E) restart(opts ...Option) {
	e.t.Helper()
	e.cl.Close()
	if err := e.s.Close(); err != nil {
		e.t.Fatal(err)
	}
	e.s = startSandbox(e.t, append([]Option{WithDialect(e.dialect)}, opts...)...)
	e.connect()
}

// A sandbox that starts again still has what was staged, and its transaction
// goes on.
func TestRestartKeepsPending(t *testing.T) {
	for _, d := range bothDialects {
		for _, commit := range []bool{true, false} {
			t.Run(d+map[bool]string{true: "/commit", false: "/abort"}[commit], func(t *testing.T) {
				dir := WithDataDir(t.TempDir())
				e := startShareE2E(t, d, 1, dir)
				e.produce(0, 10)
				m, p := e.join("m"), e.producer("t", time.Minute)
				m.acquire(0)
				p.mustStage(m, e2eStage{0, 0, 4, nil})
				e.restart(dir)
				if n := e.s.plane.pendingCount(); n != 5 {
					t.Fatalf("pendingCount() = %d after the restart, want 5", n)
				}
				p.e, m = e, e.join("n")
				if got, want := m.acquire(0), []acquiredRange{delivered(5, 9, 2)}; !slices.Equal(got, want) {
					t.Fatalf("acquired %v after the restart, want %v", got, want)
				}
				e.wantStates(0, "0-4 TX_PENDING", "5-9 ACQUIRED")
				p.mustEnd(commit)
				if commit {
					e.wantStates(0, "5-9 ACQUIRED")
				} else {
					e.wantStates(0, "0-4 AVAILABLE", "5-9 ACQUIRED") // no member is known any more
				}
			})
		}
	}
}

// With the pending state in memory a restart forgets what was staged, which is
// delivered again.
func TestRestartForgetsPendingInMemory(t *testing.T) {
	opts := []Option{WithDataDir(t.TempDir()), WithPendingState(PendingMemory)}
	e := startShareE2E(t, "kip", 1, opts...)
	e.produce(0, 10)
	m, p := e.join("m"), e.producer("t", time.Minute)
	m.acquire(0)
	p.mustStage(m, e2eStage{0, 0, 4, nil})
	e.restart(opts...)
	if n := e.s.plane.pendingCount(); n != 0 {
		t.Fatalf("pendingCount() = %d after the restart, want 0", n)
	}
	if got, want := e.join("n").acquire(0), []acquiredRange{delivered(0, 4, 1), delivered(5, 9, 2)}; !slices.Equal(got, want) {
		t.Fatalf("acquired %v after the restart, want %v", got, want)
	}
}

// A transaction that timed out while the sandbox was down does not keep its
// records.
func TestRestartAbortsWhatTimedOut(t *testing.T) {
	dir := WithDataDir(t.TempDir())
	e := startShareE2E(t, "draft", 1, dir)
	e.produce(0, 10)
	m, p := e.join("m"), e.producer("t", 200*time.Millisecond)
	m.acquire(0)
	p.mustStage(m, e2eStage{0, 0, 9, nil})
	e.restart(dir)
	e.await(func() bool { return e.s.plane.pendingCount() == 0 })
	if got, want := e.join("n").acquire(0), []acquiredRange{delivered(0, 9, 2)}; !slices.Equal(got, want) {
		t.Fatalf("acquired %v after the timeout, want %v", got, want)
	}
}

// Without its own end marker, what is persisted as pending is judged by its
// producer.
func TestResume(t *testing.T) {
	for name, row := range map[string]struct {
		meanwhile func(r *planeRig)
		want      string
	}{
		"the transaction is open": {func(*planeRig) {}, "0-4 TX_PENDING"},
		"the transaction is gone": {func(r *planeRig) { delete(r.k.txns, "t") }, "0-4 AVAILABLE"},
		"its producer went on":    {func(r *planeRig) { r.k.end("t") }, "0-4 AVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip")
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(10)
				r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
				row.meanwhile(r)
				r.start()
				m = r.join("g", "m", "in", 0, 0)
				m.fetch(0) // loads the share-partition and acquires nothing
				r.wantStates("g", "in", 0, row.want)
			})
		})
	}
}
