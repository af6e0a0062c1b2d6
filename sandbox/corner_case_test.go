package sandbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The corner cases of KIP-1289, numbered as there, over the network: in both
// dialects, with what is staged persisted or in memory. What goes wrong is
// injected as anybody can inject it. The title of the fourth is not in the text
// that was read; it is taken to be that of the case that the others leave out.

// cornerCase is a sandbox with one producer and one member that has acquired ten
// records of each partition.
type cornerCase struct {
	*shareE2E
	pending PendingState
	m       *e2eMember
	p       *e2eProducer
}

func forCornerCase(t *testing.T, partitions int32, f func(c *cornerCase), opts ...Option) {
	t.Helper()
	for _, d := range bothDialects {
		for _, pending := range []PendingState{PendingPersisted, PendingMemory} {
			t.Run(d+"/"+pending.String(), func(t *testing.T) {
				t.Parallel()
				c := &cornerCase{pending: pending}
				c.shareE2E = startShareE2E(t, d, partitions, append([]Option{WithPendingState(pending)}, opts...)...)
				for n := range partitions {
					c.produce(n, 10)
				}
				c.m, c.p = c.join("m"), c.producer("t", time.Minute)
				for n := range partitions {
					c.m.acquire(n)
				}
				f(c)
			})
		}
	}
}

func (c *cornerCase) inject(f Fault) Fault {
	c.t.Helper()
	f, err := c.s.InjectFault(testContext(c.t), f)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c *cornerCase) clear(f Fault) {
	c.t.Helper()
	if _, err := c.s.ClearFault(f.ID); err != nil {
		c.t.Fatal(err)
	}
}

// struck waits until a fault has struck.
func (c *cornerCase) struck(f Fault) {
	c.t.Helper()
	if err := c.s.AwaitFault(testContext(c.t), f.ID, 1); err != nil {
		c.t.Fatal(err)
	}
}

// state returns what DescribeTransactions shows of the transaction.
func (c *cornerCase) state() kmsg.DescribeTransactionsResponseTransactionState {
	c.t.Helper()
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{"t"}
	resp := to[*kmsg.DescribeTransactionsResponse](c.shareE2E, c.s.kafka.coordinator("t"), req)
	return resp.TransactionStates[0]
}

func (c *cornerCase) wantTxn(state string) {
	c.t.Helper()
	if got := c.state(); got.ErrorCode != 0 || got.State != state {
		c.t.Fatalf("the transaction is %q, %s; want %s", got.State, errorName(got.ErrorCode), state)
	}
}

// pendingOf returns the ground truth: ranges and who owns them.
func (c *cornerCase) pendingOf() []string {
	out := []string{}
	for _, r := range c.s.Pending() {
		out = append(out, fmt.Sprintf("%s-%d %d-%d %s:%d", r.Topic, r.Partition, r.FirstOffset, r.LastOffset, r.TransactionalID, r.ProducerEpoch))
	}
	return out
}

func (c *cornerCase) wantPending(want ...string) {
	c.t.Helper()
	if got := c.pendingOf(); !slices.Equal(got, append([]string{}, want...)) {
		c.t.Fatalf("pending are %q, want %q", got, want)
	}
	if n := int64(c.s.plane.pendingCount()); n != sum(c.s.Pending()) {
		c.t.Fatalf("%d records are counted as pending, of %q", n, want)
	}
}

func sum(ranges []PendingRange) int64 {
	var n int64
	for _, r := range ranges {
		n += r.Count()
	}
	return n
}

// statePartition returns the partition of __share_group_state that a
// share-partition's state is in.
func (c *cornerCase) statePartition(partition int32) int32 {
	return wire.ShareStatePartition(e2eGroup, c.topic.id, partition, defaultStatePartitions)
}

// marker writes an end marker to __share_group_state by hand.
func (c *cornerCase) marker(producerID int64, epoch int16, commit bool) {
	c.t.Helper()
	n := c.statePartition(0)
	info, _ := c.s.kafka.partition(stateTopic, n)
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	mk := kmsg.NewWriteTxnMarkersRequestMarker()
	mk.ProducerID, mk.ProducerEpoch, mk.Committed, mk.TransactionVersion = producerID, epoch, commit, 2
	mt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	mt.Topic, mt.Partitions = stateTopic, []int32{n}
	mk.Topics = append(mk.Topics, mt)
	req.Markers = append(req.Markers, mk)
	resp := to[*kmsg.WriteTxnMarkersResponse](c.shareE2E, info.leader, req)
	if code := resp.Markers[0].Topics[0].Partitions[0].ErrorCode; code != 0 {
		c.t.Fatalf("marker: %s", errorName(code))
	}
}

// afterEnd is what partition 0 consists of when records 0-4 were staged and the
// others are still acquired.
func (c *cornerCase) afterEnd(commit bool) []string {
	switch {
	case commit:
		return []string{"5-9 ACQUIRED"}
	case c.dialect.AfterAbort == wire.Acquired:
		return []string{"0-4 ACQUIRED", "5-9 ACQUIRED"} // the first five with a new lock
	}
	return []string{"0-4 AVAILABLE", "5-9 ACQUIRED"}
}

// The leader of the source partition crashes. In memory alone TX_PENDING is lost:
// the records are delivered again although the transaction commits. What is
// persisted is loaded, not delivered, and resolved by the marker.
func TestCornerCase01(t *testing.T) {
	for name, fault := range map[string]Fault{
		"crash": {Kind: FaultCrashLeader, Topic: e2eTopic, Partition: new(int32(0))},
		"move":  {Kind: FaultMoveLeader, Topic: e2eTopic, Partition: new(int32(0))},
	} {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/commit %v", name, commit), func(t *testing.T) {
				forCornerCase(t, 1, func(c *cornerCase) {
					old := c.leader(0)
					c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
					if fault.Kind == FaultMoveLeader {
						fault := fault
						fault.ToBroker = new((old + 1) % 3)
						c.inject(fault)
						resp := c.p.stage(c.m, old, e2eStage{0, 5, 5, nil})
						c.wantCode(worstCode(resp), kerr.NotLeaderForPartition)
					} else {
						c.inject(fault)
					}
					c.wantTxn(txnOngoing)
					got := c.m.acquire(0)
					if c.pending == PendingMemory {
						if want := []acquiredRange{delivered(0, 9, 1)}; !slices.Equal(got, want) {
							c.t.Fatalf("acquired %v after the crash, want %v", got, want)
						}
						c.wantPending()
						c.p.mustEnd(commit)
						c.wantStates(0, "0-9 ACQUIRED") // a duplicate if it committed
						return
					}
					// ACQUIRED is never persisted, and its delivery not counted.
					if want := []acquiredRange{delivered(5, 9, 1)}; !slices.Equal(got, want) {
						c.t.Fatalf("acquired %v after the crash, want %v", got, want)
					}
					c.wantPending("in-0 0-4 t:0")
					c.wantStates(0, "0-4 TX_PENDING", "5-9 ACQUIRED")
					c.p.mustEnd(commit)
					if commit {
						c.wantTxn(txnCompleteCommit)
						c.wantStates(0, "5-9 ACQUIRED")
						return
					}
					// The owner did not survive: nobody has them.
					c.wantTxn(txnCompleteAbort)
					c.wantStates(0, "0-4 AVAILABLE", "5-9 ACQUIRED")
				})
			})
		}
	}
}

// The transaction cannot be registered: nothing is staged, the records stay
// acquired under their lock, and the same request may be sent again.
func TestCornerCase02(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		for _, ke := range []*kerr.Error{kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress} {
			c.inject(Fault{Kind: FaultFailCoordinator, Coordinator: CoordinatorTransaction, TransactionalID: "t", Error: ke.Message, Count: 1})
			c.wantCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, ke)
			c.wantStates(0, "0-9 ACQUIRED")
			c.wantTxn(txnEmpty)
		}
		if faults := c.s.Faults(); len(faults) != 0 {
			c.t.Fatalf("faults that struck are still there: %+v", faults)
		}
		for _, part := range c.s.plane.snapshot().Partitions {
			if part.Ranges[0].LockExpiry == nil {
				c.t.Error("no acquisition lock runs")
			}
		}
		// A coordinator that does not answer for a while holds the stage up.
		hang := c.inject(Fault{Kind: FaultHangCoordinator, Coordinator: CoordinatorTransaction, TransactionalID: "t"})
		staged := make(chan int16, 1)
		go func() { staged <- worstCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 0, 4, nil})) }()
		c.struck(hang)
		c.wantStates(0, "0-9 ACQUIRED")
		c.clear(hang)
		if code := <-staged; code != 0 {
			c.t.Fatalf("stage: %s", errorName(code))
		}
		c.wantStates(0, "0-4 TX_PENDING", "5-9 ACQUIRED")
		c.p.mustEnd(true)
		c.wantStates(0, c.afterEnd(true)...)
	})
}

// A producer that was fenced stages nothing more, and what it had staged comes
// back.
func TestCornerCase03(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		old := c.p
		old.mustStage(c.m, e2eStage{0, 0, 4, nil})
		c.p = c.producer("t", time.Minute)
		if c.p.producerID != old.producerID || c.p.producerEpoch <= old.producerEpoch {
			c.t.Fatalf("producer %+v after %+v", c.p.owner, old.owner)
		}
		c.wantPending()
		c.wantStates(0, c.afterEnd(false)...)
		c.wantTxn(txnEmpty)
		c.wantCode(old.stage(c.m, c.leader(0), e2eStage{0, 5, 9, nil}).ErrorCode, kerr.InvalidProducerEpoch)
		c.wantCode(old.end(true), kerr.ProducerFenced)
		c.wantStates(0, c.afterEnd(false)...)
		// Its successor has nothing of it.
		c.p.mustStage(c.m, e2eStage{0, 5, 9, nil})
		c.wantPending("in-0 5-9 t:1")
		c.p.mustEnd(true)
	})
}

// The member that staged is gone, or only its session is: the marker decides, and
// what is aborted is anybody's.
func TestCornerCase04(t *testing.T) {
	for name, gone := range map[string]func(c *cornerCase){
		"leaves": func(c *cornerCase) {
			c.m.sessions[c.leader(0)] = -1
			c.m.fetch(1, 0)
			c.m.epoch = -1
			c.m.heartbeat()
		},
		"loses its connection": func(c *cornerCase) {
			c.cl.Close()
			c.connect()
			c.await(func() bool { return len(c.s.plane.snapshot().Sessions) == 0 })
		},
	} {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/commit %v", name, commit), func(t *testing.T) {
				forCornerCase(t, 1, func(c *cornerCase) {
					c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
					gone(c)
					c.awaitStates(0, "0-4 TX_PENDING", "5-9 AVAILABLE")
					c.wantPending("in-0 0-4 t:0")
					c.p.mustEnd(commit)
					if commit {
						c.wantStates(0, "5-9 AVAILABLE")
						return
					}
					n := c.join("n")
					want := []acquiredRange{delivered(0, 9, 2)}
					if c.dialect.AfterAbort == wire.Acquired {
						// The text returns them to their owner, gone or not,
						// until the lock expires.
						c.wantStates(0, "0-4 ACQUIRED", "5-9 AVAILABLE")
						c.inject(Fault{Kind: FaultExpireLocks, GroupID: e2eGroup})
					}
					if got := n.acquire(0); !slices.Equal(got, want) {
						c.t.Errorf("acquired %v after the abort, want %v", got, want)
					}
				})
			})
		}
	}
}

// A marker that comes twice finds nothing to do, not even in the producer's next
// transaction.
func TestCornerCase05(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit %v", commit), func(t *testing.T) {
			forCornerCase(t, 1, func(c *cornerCase) {
				twice := c.inject(Fault{Kind: FaultDuplicateMarker, TransactionalID: "t", Count: 1, DurationMs: time.Hour.Milliseconds()})
				first := c.p.owner
				c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
				c.p.mustEnd(commit)
				c.wantStates(0, c.afterEnd(commit)...)
				c.p.mustStage(c.m, e2eStage{0, 5, 7, nil})
				want := slices.Concat(c.afterEnd(commit)[:len(c.afterEnd(commit))-1], []string{"5-7 TX_PENDING", "8-9 ACQUIRED"})
				c.wantStates(0, want...)
				if f := c.s.Faults(); len(f) != 1 || f[0].Held != 1 {
					c.t.Fatalf("faults %+v, want one that holds the marker", f)
				}
				c.clear(twice)
				c.await(func() bool { return len(c.s.Faults()) == 0 })
				for _, again := range []bool{commit, !commit, commit} {
					c.marker(first.producerID, first.producerEpoch+1, again)
				}
				c.wantStates(0, want...)
				c.wantPending("in-0 5-7 t:1")
				c.p.mustEnd(true)
				c.wantPending()
			})
		})
	}
}

// The acquisition lock runs out while a record is staged: it does not, since no
// lock runs then.
func TestCornerCase06(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		for _, r := range c.s.plane.snapshot().Partitions[0].Ranges {
			if locked := r.LockExpiry != nil; locked == (r.State == wire.TxPending.String()) {
				c.t.Errorf("%s: lock expiry %v", rangeText(r), r.LockExpiry)
			}
		}
		c.inject(Fault{Kind: FaultExpireLocks, GroupID: e2eGroup, Topic: e2eTopic, Partition: new(int32(0))})
		c.wantStates(0, "0-4 TX_PENDING", "5-9 AVAILABLE")
		c.wantTxn(txnOngoing)
		c.p.mustEnd(true)
		c.wantStates(0, "5-9 AVAILABLE")
	})
}

// A transaction times out: its coordinator aborts it and fences the producer, if
// it looks.
func TestCornerCase07(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		stop := c.inject(Fault{Kind: FaultStopSweeper})
		c.p = c.producer("t", time.Millisecond)
		epoch := c.p.producerEpoch
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		if pause := c.s.gateway.sweep(testContext(c.t)); pause != sweepMost {
			c.t.Errorf("a sweeper that is stopped looks again in %s", pause)
		}
		c.wantTxn(txnOngoing)
		c.wantPending(fmt.Sprintf("in-0 0-4 t:%d", epoch))
		c.clear(stop)
		c.awaitStates(0, c.afterEnd(false)...)
		if !c.await(func() bool { return c.state().State == txnCompleteAbort }) {
			c.wantTxn(txnCompleteAbort)
		}
		if got := c.state().ProducerEpoch; got != epoch+1 {
			c.t.Errorf("epoch %d after the timeout of %d", got, epoch)
		}
		c.wantPending()
		c.wantCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 5, 9, nil}).ErrorCode, kerr.InvalidProducerEpoch)
		c.wantCode(c.p.end(true), kerr.InvalidTxnState)
	})
}

// A member epoch that is not the current one, or a member that nobody knows,
// fails the request before anything is registered.
func TestCornerCase08(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		stale := *c.m
		c.join("other") // raises the group epoch
		c.m.heartbeat()
		c.wantCode(c.p.stage(&stale, c.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, kerr.StaleMemberEpoch)
		stale.id = "stranger"
		c.wantCode(c.p.stage(&stale, c.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, kerr.UnknownMemberID)
		c.wantTxn(txnEmpty)
		c.wantStates(0, "0-9 ACQUIRED")
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		c.join("another") // once staged, the epoch does not matter
		c.p.mustEnd(true)
		c.wantStates(0, c.afterEnd(true)...)
	})
}

// While a cluster is upgraded the feature is not finalized, and the request is
// refused; so does a broker that is not as far as the others. Once records are
// pending, the level does not come down.
func TestCornerCase09(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		level := func(to int16, upgrade int8) int16 {
			req := kmsg.NewPtrUpdateFeaturesRequest()
			req.Version = 1
			u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
			u.Feature, u.MaxVersionLevel, u.UpgradeType = wire.FeatureShareVersion, to, upgrade
			req.FeatureUpdates = append(req.FeatureUpdates, u)
			resp, err := req.RequestWith(testContext(c.t), c.cl)
			if err != nil {
				c.t.Fatal(err)
			}
			return resp.ErrorCode
		}
		if code := level(1, 2); code != 0 {
			c.t.Fatalf("lower share.version: %s", errorName(code))
		}
		c.wantCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, kerr.UnsupportedVersion)
		c.wantTxn(txnEmpty)
		if code := level(c.dialect.ShareVersion, 1); code != 0 {
			c.t.Fatalf("raise share.version: %s", errorName(code))
		}
		old := c.inject(Fault{Kind: FaultAnswerError, APIKey: &c.dialect.Key, Broker: new(c.leader(0)), Error: kerr.UnsupportedVersion.Message})
		c.wantCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 0, 4, nil}).ErrorCode, kerr.UnsupportedVersion)
		c.wantStates(0, "0-9 ACQUIRED")
		c.clear(old)
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		c.wantCode(level(1, 2), kerr.InvalidUpdateVersion)
		c.p.mustEnd(true)
		if code := level(1, 2); code != 0 {
			c.t.Fatalf("lower share.version at the end: %s", errorName(code))
		}
	})
}

// A type that may not be staged fails its partition, whole, and no other. Gaps may
// be staged in the newest draft alone.
func TestCornerCase10(t *testing.T) {
	forCornerCase(t, 2, func(c *cornerCase) {
		invalid := kerr.TypedErrorForCode(c.dialect.InvalidTypeCode)
		for _, typ := range []int8{ackRelease, int8(wire.Renew), 9, -1} {
			resp := c.p.stage(c.m, 0, e2eStage{0, 0, 1, []int8{ackAccept, typ}}, e2eStage{1, 0, 1, nil})
			c.wantCode(resp.Topics[0].Partitions[0].ErrorCode, invalid)
			if code := resp.Topics[0].Partitions[1].ErrorCode; code != 0 {
				c.t.Fatalf("type %d: the other partition: %s", typ, errorName(code))
			}
			c.wantStates(0, "0-9 ACQUIRED")
			c.wantStates(1, "0-1 TX_PENDING", "2-9 ACQUIRED")
		}
		resp := c.p.stage(c.m, 0, e2eStage{0, 0, 1, []int8{int8(wire.Gap)}})
		if code := worstCode(resp); (code == 0) != c.dialect.Allows(wire.Gap) {
			c.t.Errorf("a gap: %s", errorName(code))
		}
		c.p.mustEnd(false)
		c.wantPending()
	}, WithBrokers(1))
}

// One of several partitions fails, here for its share coordinator: the others
// stay staged until the transaction ends, and the abort brings all of it back.
func TestCornerCase11(t *testing.T) {
	forCornerCase(t, 2, func(c *cornerCase) {
		a, b := e2eStage{0, 0, 4, nil}, e2eStage{1, 5, 12, nil}
		resp := c.p.stage(c.m, 0, a, b)
		if code := resp.Topics[0].Partitions[0].ErrorCode; resp.ErrorCode != 0 || code != 0 {
			c.t.Fatalf("partition 0: %s, %s", errorName(resp.ErrorCode), errorName(code))
		}
		c.wantCode(resp.Topics[0].Partitions[1].ErrorCode, kerr.InvalidRequest)
		c.wantStates(0, "0-4 TX_PENDING", "5-9 ACQUIRED")
		c.wantStates(1, "0-9 ACQUIRED")
		if c.pending == PendingPersisted {
			c.inject(Fault{Kind: FaultFailCoordinator, Coordinator: CoordinatorShare, StatePartition: new(c.statePartition(1)), Count: 1})
			c.wantCode(worstCode(c.p.stage(c.m, 0, e2eStage{1, 0, 4, nil})), kerr.CoordinatorNotAvailable)
			c.wantStates(1, "0-4 ACQUIRED", "5-9 ACQUIRED") // taken back
		}
		c.wantPending("in-0 0-4 t:0")
		c.p.mustEnd(false)
		c.wantTxn(txnCompleteAbort)
		c.wantStates(0, c.afterEnd(false)...)
		c.wantPending()
	}, WithBrokers(1))
}

// The leader of __share_group_state-N moves between stage and commit: the new one
// has the state and resolves it. While it loads, the marker is tried again.
func TestCornerCase12(t *testing.T) {
	forCornerCase(t, 1, func(c *cornerCase) {
		n := c.statePartition(0)
		c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
		before, _ := c.s.kafka.partition(stateTopic, n)
		next := (before.leader + 1) % 3
		c.inject(Fault{Kind: FaultMoveCoordinator, Coordinator: CoordinatorShare, StatePartition: &n, ToBroker: &next})
		c.wantPending("in-0 0-4 t:0")
		c.wantCode(c.readState(before.leader).ErrorCode, kerr.NotCoordinator)
		read := c.readState(next)
		if pending := slices.ContainsFunc(read.StateBatches, func(b kmsg.ReadShareGroupStateResponseTopicPartitionStateBatch) bool {
			return b.DeliveryState == int8(wire.TxPending)
		}); read.ErrorCode != 0 || pending != (c.pending == PendingPersisted) {
			c.t.Fatalf("the new coordinator has %+v", read)
		}
		loading := c.inject(Fault{
			Kind: FaultFailCoordinator, Coordinator: CoordinatorShare, StatePartition: &n, Error: kerr.CoordinatorLoadInProgress.Message,
		})
		c.p.mustEnd(true)
		c.wantTxn(txnPrepareCommit)
		c.wantPending("in-0 0-4 t:0")
		c.clear(loading)
		c.awaitStates(0, "5-9 ACQUIRED")
		c.await(func() bool { return c.state().State == txnCompleteCommit })
		c.wantTxn(txnCompleteCommit)
		if read := c.readState(next); read.StartOffset != 5 {
			c.t.Errorf("the state begins at %d, want 5", read.StartOffset)
		}
	})
}

// readState asks a share coordinator for the state of partition 0.
func (c *cornerCase) readState(broker int32) kmsg.ReadShareGroupStateResponseTopicPartition {
	c.t.Helper()
	req := kmsg.NewPtrReadShareGroupStateRequest()
	req.GroupID = e2eGroup
	rt := kmsg.NewReadShareGroupStateRequestTopic()
	rt.TopicID = c.topic.id
	rp := kmsg.NewReadShareGroupStateRequestTopicPartition()
	rp.LeaderEpoch = -1
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return to[*kmsg.ReadShareGroupStateResponse](c.shareE2E, broker, req).Topics[0].Partitions[0]
}

// The transaction is aborted, and its markers do not arrive. While the coordinator
// tries, it is in PrepareAbort and its producer waits; where the marker was lost
// it is CompleteAbort with pending records, and where the coordinator has
// forgotten it, it is nowhere.
func TestCornerCase13(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		forCornerCase(t, 1, func(c *cornerCase) {
			n := c.statePartition(0)
			delay := c.inject(Fault{Kind: FaultDelayMarker, TransactionalID: "t", StatePartition: &n})
			c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
			sent := c.p.owner
			c.p.mustEnd(false)
			c.wantTxn(txnPrepareAbort)
			if d := c.state(); len(d.Topics) != 1 || !slices.Equal(d.Topics[0].Partitions, []int32{n}) {
				c.t.Errorf("partitions that wait: %+v", d.Topics)
			}
			c.wantParticipants(OpenTransaction{TransactionalID: "t", ProducerEpoch: sent.producerEpoch, State: txnPrepareAbort, StatePartitions: []int32{n}})
			c.wantPending("in-0 0-4 t:0")
			c.wantCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 5, 9, nil}).ErrorCode, kerr.ConcurrentTransactions)
			c.wantCode(c.tryInit(), kerr.ConcurrentTransactions)
			again := *c.p
			again.owner = sent
			c.wantCode(again.end(false), kerr.ConcurrentTransactions)
			c.wantCode(again.end(true), kerr.InvalidTxnState)
			c.clear(delay)
			c.awaitStates(0, c.afterEnd(false)...)
			c.await(func() bool { return c.state().State == txnCompleteAbort })
			c.wantTxn(txnCompleteAbort)
			c.p.mustStage(c.m, e2eStage{0, 5, 9, nil})
			c.p.mustEnd(true)
		})
	})
	t.Run("lost", func(t *testing.T) {
		forCornerCase(t, 1, func(c *cornerCase) {
			c.inject(Fault{Kind: FaultDropMarker, TransactionalID: "t", Count: 1})
			c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
			staged := c.p.owner
			c.p.mustEnd(false)
			c.wantTxn(txnCompleteAbort)
			c.wantParticipants()
			c.wantPending("in-0 0-4 t:0")
			// The next transaction of the producer neither sees nor resolves
			// them, if it commits.
			c.p.mustStage(c.m, e2eStage{0, 5, 9, nil})
			c.p.mustEnd(true)
			c.wantPending("in-0 0-4 t:0")
			c.marker(staged.producerID, staged.producerEpoch+1, false)
			c.wantPending()
			c.wantStates(0, "0-4 "+c.afterAbort(), "5-9 ACKNOWLEDGED")
		})
	})
	t.Run("forgotten", func(t *testing.T) {
		forCornerCase(t, 1, func(c *cornerCase) {
			c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
			forget := c.inject(Fault{Kind: FaultForgetTransaction, TransactionalID: "t"})
			if d := c.state(); d.ErrorCode != kerr.TransactionalIDNotFound.Code {
				c.t.Fatalf("described as %+v", d)
			}
			c.wantCode(c.p.end(true), kerr.InvalidProducerIDMapping)
			c.wantCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 5, 9, nil}).ErrorCode, kerr.InvalidProducerIDMapping)
			c.wantParticipants(OpenTransaction{TransactionalID: "t", State: txnOngoing, StatePartitions: []int32{c.statePartition(0)}, Forgotten: true})
			c.wantPending("in-0 0-4 t:0")
			// Cleared, nothing has happened.
			c.clear(forget)
			c.wantTxn(txnOngoing)
			// Not cleared, the producer begins anew, and what it staged is
			// nobody's.
			c.inject(Fault{Kind: FaultForgetTransaction, TransactionalID: "t"})
			staged := c.p.owner
			c.p = c.producer("t", time.Minute)
			c.wantTxn(txnEmpty)
			c.wantParticipants()
			c.wantPending("in-0 0-4 t:0")
			c.marker(staged.producerID, staged.producerEpoch+1, false)
			c.wantPending()
			c.wantStates(0, c.afterEnd(false)...)
		})
	})
}

// wantParticipants compares what the scenarios say of transactions.
func (c *cornerCase) wantParticipants(want ...OpenTransaction) {
	c.t.Helper()
	got, err := c.s.OpenParticipants(testContext(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	same := slices.EqualFunc(got, want, func(g, w OpenTransaction) bool {
		return g.TransactionalID == w.TransactionalID && g.ProducerEpoch == w.ProducerEpoch && g.State == w.State &&
			slices.Equal(g.StatePartitions, w.StatePartitions) && g.Forgotten == w.Forgotten && g.TimeoutMs == time.Minute.Milliseconds()
	})
	if !same {
		c.t.Errorf("open transactions %+v, want %+v", got, want)
	}
}

// tryInit returns what InitProducerId answers.
func (c *cornerCase) tryInit() int16 {
	c.t.Helper()
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &c.p.id, 60_000, -1, -1
	return to[*kmsg.InitProducerIDResponse](c.shareE2E, c.s.kafka.coordinator("t"), req).ErrorCode
}

// Two transactions want one record, of two producers or of two epochs of one: it
// keeps its first stager, and markers touch only their own.
func TestCornerCase14(t *testing.T) {
	t.Run("producers", func(t *testing.T) {
		forCornerCase(t, 1, func(c *cornerCase) {
			q := c.producer("u", time.Minute)
			c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
			c.wantCode(worstCode(q.stage(c.m, c.leader(0), e2eStage{0, 4, 6, nil})), kerr.InvalidRecordState)
			q.mustStage(c.m, e2eStage{0, 5, 6, nil})
			c.wantPending("in-0 0-4 t:0", "in-0 5-6 u:0")
			q.mustEnd(true)
			c.wantStates(0, "0-4 TX_PENDING", "5-6 ACKNOWLEDGED", "7-9 ACQUIRED")
			c.p.mustEnd(true)
			c.wantStates(0, "7-9 ACQUIRED")
		})
	})
	t.Run("epochs", func(t *testing.T) {
		forCornerCase(t, 1, func(c *cornerCase) {
			c.inject(Fault{Kind: FaultDropMarker, Count: 1})
			c.p.mustStage(c.m, e2eStage{0, 0, 4, nil})
			first := c.p.owner
			c.p.mustEnd(true)
			c.wantCode(worstCode(c.p.stage(c.m, c.leader(0), e2eStage{0, 2, 6, nil})), kerr.InvalidRecordState)
			c.p.mustStage(c.m, e2eStage{0, 5, 6, nil})
			c.wantPending("in-0 0-4 t:0", "in-0 5-6 t:1")
			c.marker(first.producerID, first.producerEpoch+1, true)
			c.wantPending("in-0 5-6 t:1")
			c.p.mustEnd(true)
			c.wantPending()
			c.wantStates(0, "7-9 ACQUIRED")
		})
	})
}
