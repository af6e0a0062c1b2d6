package sandbox

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	ackGap     = int8(wire.Gap)
	ackAccept  = int8(wire.Accept)
	ackRelease = int8(wire.Release)
	ackReject  = int8(wire.Reject)
	ackRenew   = int8(wire.Renew)
)

// TestTxnShareAcknowledgeErrors goes through what a broker checks, in its order.
// Each row breaks one thing in a request that else would succeed. The code is
// the request's if top, else the partition's.
func TestTxnShareAcknowledgeErrors(t *testing.T) {
	type row struct {
		name       string
		prepare    func(r *planeRig, m *rigMember)
		change     func(r *planeRig, req *wire.TxnShareAcknowledgeRequest)
		top        bool
		kip, draft *kerr.Error // draft is as kip where nil
		registered bool        // the transaction holds the state partition afterwards
	}
	part := func(req *wire.TxnShareAcknowledgeRequest) *wire.TxnShareAcknowledgeRequestTopicPartition {
		return &req.Topics[0].Partitions[0]
	}
	types := func(types ...int8) func(*planeRig, *wire.TxnShareAcknowledgeRequest) {
		return func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) {
			part(req).AcknowledgementBatches[0].AcknowledgeTypes = types
		}
	}
	offsets := func(first, last int64) func(*planeRig, *wire.TxnShareAcknowledgeRequest) {
		return func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) {
			b := &part(req).AcknowledgementBatches[0]
			b.FirstOffset, b.LastOffset = first, last
		}
	}
	denied := func(name string) func(*planeRig, *rigMember) {
		return func(r *planeRig, _ *rigMember) { r.k.deny(name) }
	}
	registering := func(code int16) func(*planeRig, *rigMember) {
		return func(r *planeRig, _ *rigMember) { r.k.register = func(string, int64, int16) int16 { return code } }
	}
	writing := func(e *kerr.Error) func(*planeRig, *rigMember) {
		return func(r *planeRig, _ *rigMember) {
			r.co.failWrites(func(shareStateWrite) int16 { return e.Code })
		}
	}
	rows := []row{
		{name: "the feature is not finalized", prepare: func(r *planeRig, _ *rigMember) { r.enabled = false }, top: true, kip: kerr.UnsupportedVersion},
		{name: "no transactional ID", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.TransactionalID = nil }, top: true, kip: kerr.InvalidRequest},
		{name: "an empty member ID", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.MemberID = "" }, top: true, kip: kerr.InvalidRequest},
		{name: "a member ID of 37 characters", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.MemberID = strings.Repeat("m", 37) }, top: true, kip: kerr.InvalidRequest},
		{name: "no WRITE on the transactional ID", prepare: denied("t"), top: true, kip: kerr.TransactionalIDAuthorizationFailed},
		{name: "no READ on the group", prepare: denied("g"), top: true, kip: kerr.GroupAuthorizationFailed},
		{name: "an unknown topic ID", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.Topics[0].TopicID[3] = 9 }, kip: kerr.UnknownTopicID},
		{name: "a partition that does not exist", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { part(req).Partition = 7 }, kip: kerr.UnknownTopicOrPartition},
		{name: "a negative partition", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { part(req).Partition = -1 }, kip: kerr.UnknownTopicOrPartition},
		{name: "a group that does not exist", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.GroupID = "none" }, top: true, kip: kerr.UnknownMemberID},
		{name: "a member that is not in the group", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.MemberID = "stranger" }, top: true, kip: kerr.UnknownMemberID},
		{name: "an older member epoch", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.MemberEpoch-- }, top: true, kip: kerr.StaleMemberEpoch},
		{name: "a newer member epoch", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.MemberEpoch++ }, top: true, kip: kerr.StaleMemberEpoch},
		{name: "the transaction coordinator is loading", prepare: registering(kerr.CoordinatorLoadInProgress.Code), top: true, kip: kerr.CoordinatorLoadInProgress},
		{name: "the transaction coordinator is not known", prepare: registering(kerr.CoordinatorNotAvailable.Code), top: true, kip: kerr.CoordinatorNotAvailable},
		{name: "the transaction coordinator moved", prepare: registering(kerr.NotCoordinator.Code), top: true, kip: kerr.NotCoordinator},
		{name: "the transaction coordinator is lost", prepare: registering(kerr.NetworkException.Code), top: true, kip: kerr.NetworkException},
		{name: "the producer was fenced", prepare: registering(kerr.InvalidProducerEpoch.Code), top: true, kip: kerr.InvalidProducerEpoch},
		{name: "the producer is not that of the transactional ID", prepare: registering(kerr.InvalidProducerIDMapping.Code), top: true, kip: kerr.InvalidProducerIDMapping},
		{name: "the transaction before it is still ending", prepare: registering(kerr.ConcurrentTransactions.Code), top: true, kip: kerr.ConcurrentTransactions},
		{name: "the transaction is in another state", prepare: registering(kerr.InvalidTxnState.Code), top: true, kip: kerr.InvalidTxnState},
		{name: "the transaction can only be aborted", prepare: registering(kerr.TransactionAbortable.Code), top: true, kip: kerr.TransactionAbortable},
		{name: "another broker leads the partition", prepare: func(r *planeRig, _ *rigMember) { r.k.move("in", 0, 2) }, kip: kerr.NotLeaderForPartition, registered: true},
		{name: "RELEASE", change: types(ackRelease), kip: kerr.InvalidRecordState, draft: kerr.InvalidRequest, registered: true},
		{name: "RENEW", change: types(ackRenew), kip: kerr.InvalidRecordState, draft: kerr.InvalidRequest, registered: true},
		{name: "a type that nobody knows", change: types(9), kip: kerr.InvalidRecordState, draft: kerr.InvalidRequest, registered: true},
		{name: "a negative type", change: types(-1), kip: kerr.InvalidRecordState, draft: kerr.InvalidRequest, registered: true},
		{name: "no type", change: types(), kip: kerr.InvalidRequest, registered: true},
		{name: "two types for five offsets", change: types(ackAccept, ackReject), kip: kerr.InvalidRequest, registered: true},
		{name: "a range that ends before it begins", change: offsets(4, 3), kip: kerr.InvalidRequest, registered: true},
		{name: "a range that runs past the acquired records", change: offsets(5, 12), kip: kerr.InvalidRequest, registered: true},
		{name: "records that another member acquired", change: func(_ *planeRig, req *wire.TxnShareAcknowledgeRequest) { req.MemberID, req.MemberEpoch = "other", 2 }, kip: kerr.InvalidRecordState, registered: true},
		{name: "records that are released", prepare: func(_ *planeRig, m *rigMember) { m.ack(0, 2, 3, ackRelease) }, kip: kerr.InvalidRecordState, registered: true},
		{name: "records that are acknowledged", prepare: func(_ *planeRig, m *rigMember) { m.ack(0, 2, 3, ackAccept) }, kip: kerr.InvalidRecordState, registered: true},
		{name: "records of another epoch's transaction", prepare: func(r *planeRig, m *rigMember) {
			r.wantCode(m.stage("t", owner{7, 2}, 0, 2, 2, ackAccept), nil)
		}, kip: kerr.InvalidRecordState, registered: true},
		{name: "records staged with another type", prepare: func(r *planeRig, m *rigMember) {
			r.wantCode(m.stage("t", owner{7, 3}, 0, 2, 2, ackReject), nil)
		}, kip: kerr.InvalidRecordState, registered: true},
		{name: "the share coordinator is loading", prepare: writing(kerr.CoordinatorLoadInProgress), kip: kerr.CoordinatorNotAvailable, registered: true},
		{name: "the share coordinator moved", prepare: writing(kerr.NotCoordinator), kip: kerr.CoordinatorNotAvailable, registered: true},
		{name: "the share coordinator knows a newer leader", prepare: writing(kerr.FencedLeaderEpoch), kip: kerr.NotLeaderForPartition, registered: true},
		{name: "the share coordinator knows a newer state", prepare: writing(kerr.FencedStateEpoch), kip: kerr.NotLeaderForPartition, registered: true},
		{name: "the share coordinator misses the group", prepare: writing(kerr.GroupIDNotFound), kip: kerr.GroupIDNotFound, registered: true},
		{name: "the share coordinator misses the topic", prepare: writing(kerr.UnknownTopicOrPartition), kip: kerr.UnknownTopicOrPartition, registered: true},
		{name: "the share coordinator fails", prepare: writing(kerr.KafkaStorageError), kip: kerr.UnknownServerError, registered: true},
		{name: "nothing is wrong", change: func(*planeRig, *wire.TxnShareAcknowledgeRequest) {}, registered: true},
	}
	for _, d := range bothDialects {
		for _, row := range rows {
			t.Run(d+"/"+row.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newPlaneRig(t, d)
					r.k.topic("in", 3)
					r.k.produce("in", 0, fakeBatchHead{records: 10})
					m := r.join("g", "m", "in", 0, 0)
					r.join("g", "other", "in", 0, 0)
					r.wantRanges(m.fetch(10), delivered(0, 9, 1))
					if row.prepare != nil {
						row.prepare(r, m)
					}
					req := m.txnRequest("t", owner{7, 3}, 0, 0, 4, ackAccept)
					if row.change != nil {
						row.change(r, req)
					}
					before := len(r.k.added)
					pending := r.p.pendingCount()
					resp := m.sendTxn(req)

					want := row.kip
					if d == "draft" && row.draft != nil {
						want = row.draft
					}
					if row.top {
						r.wantCode(resp.ErrorCode, want)
						if len(resp.Topics) != 0 {
							t.Errorf("partitions %v beside a top-level error", resp.Topics)
						}
					} else {
						r.wantCode(resp.ErrorCode, nil)
						r.wantCode(resp.Topics[0].Partitions[0].ErrorCode, want)
					}
					if got := len(r.k.added) > before; got != row.registered {
						t.Errorf("registered = %v, want %v", got, row.registered)
					}
					if n := r.p.pendingCount(); want != nil && n != pending {
						t.Errorf("%d records pending after an error, want %d", n, pending)
					} else if want == nil && n != 5 {
						t.Errorf("%d records pending, want 5", n)
					}
				})
			})
		}
	}
}

// A topic without READ fails the whole request in kip and its own partitions
// in the draft, where the others are staged.
func TestTxnShareAcknowledgeDeniedTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range bothDialects {
			r := newPlaneRig(t, d)
			r.k.topic("in", 1)
			secret := r.k.topic("secret", 1)
			r.k.produce("in", 0, fakeBatchHead{records: 10})
			m := r.join("g", "m", "in", 0, 0)
			m.fetch(10)
			r.k.deny("secret")
			req := m.txnRequest("t", owner{7, 3}, 0, 0, 4, ackAccept)
			more := m.txnRequest("t", owner{7, 3}, 0, 0, 4, ackAccept).Topics[0]
			more.TopicID = secret
			req.Topics = append(req.Topics, more)
			resp := m.sendTxn(req)
			if d == "kip" {
				r.wantCode(resp.ErrorCode, kerr.TopicAuthorizationFailed)
				if len(r.k.added) != 0 || r.p.pendingCount() != 0 {
					t.Errorf("registered %v and %d records pending, want nothing", r.k.added, r.p.pendingCount())
				}
				continue
			}
			r.wantCode(resp.ErrorCode, nil)
			r.wantCode(resp.Topics[0].Partitions[0].ErrorCode, nil)
			r.wantCode(resp.Topics[1].Partitions[0].ErrorCode, kerr.TopicAuthorizationFailed)
			r.wantStates("g", "in", 0, "0-4 TX_PENDING", "5-9 ACQUIRED")
		}
	})
}

// Only kip tells who leads a partition.
func TestTxnShareAcknowledgeNamesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range bothDialects {
			r := newPlaneRig(t, d)
			r.k.topic("in", 1)
			r.k.produce("in", 0, fakeBatchHead{records: 10})
			m := r.join("g", "m", "in", 0, 0)
			m.fetch(10)
			r.k.move("in", 0, 2)
			req := m.txnRequest("t", owner{7, 3}, 0, 0, 4, ackAccept)
			body := m.sendTxn(req).AppendTo(nil)
			resp := wire.NewTxnShareAcknowledgeResponse(r.dialect)
			if err := resp.ReadFrom(body); err != nil {
				t.Fatal(err)
			}
			p := resp.Topics[0].Partitions[0]
			if d == "draft" {
				if p.CurrentLeader != nil || len(resp.NodeEndpoints) != 0 {
					t.Errorf("draft: leader %v, endpoints %v, want none", p.CurrentLeader, resp.NodeEndpoints)
				}
				continue
			}
			if p.CurrentLeader == nil || p.CurrentLeader.LeaderID != 2 || p.CurrentLeader.LeaderEpoch != 2 {
				t.Errorf("leader %v, want 2 in epoch 2", p.CurrentLeader)
			}
			if len(resp.NodeEndpoints) != 1 || resp.NodeEndpoints[0].NodeID != 2 || resp.NodeEndpoints[0].Port != 9002 {
				t.Errorf("endpoints %v, want broker 2 at port 9002", resp.NodeEndpoints)
			}
		}
	})
}

// Registered are the partitions of __share_group_state that hold the state,
// each once, and those of partitions with an error are not.
func TestTxnShareAcknowledgeRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "draft")
		id := r.k.topic("in", 7)
		m := r.join("g", "m", "in", 0, 0, 3, 6)
		for _, p := range []int32{0, 3, 6} {
			r.k.produce("in", p, fakeBatchHead{records: 10})
		}
		m.fetch(100)
		req := m.txnRequest("t", owner{7, 3}, 0, 0, 4, ackAccept)
		for _, n := range []int32{3, 6, 99} {
			p := req.Topics[0].Partitions[0]
			p.Partition = n
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, p)
		}
		m.sendTxn(req)
		var want []int32
		for _, n := range []int32{0, 3, 6} {
			want = append(want, wire.ShareStatePartition("g", id, n, 50))
		}
		slices.Sort(want)
		if len(r.k.added) != 1 || !slices.Equal(r.k.added[0], want) {
			t.Errorf("registered %v, want %v with one request", r.k.added, want)
		}
		if n := r.p.pendingCount(); n != 15 {
			t.Errorf("pendingCount() = %d, want 15", n)
		}
		if last := r.co.writes[len(r.co.writes)-1]; len(last) != 3 {
			t.Errorf("staged with a write of %d share-partitions, want 3 in one", len(last))
		}
	})
}

// When nothing valid is left no coordinator is asked.
func TestTxnShareAcknowledgeWithoutValidPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "draft")
		r.k.topic("in", 1)
		m := r.join("g", "m", "in", 0, 0)
		req := m.txnRequest("t", owner{7, 3}, 5, 0, 4, ackAccept)
		req.MemberEpoch = 99
		resp := m.sendTxn(req)
		r.wantCode(resp.ErrorCode, nil)
		r.wantCode(resp.Topics[0].Partitions[0].ErrorCode, kerr.UnknownTopicOrPartition)
		if len(r.k.added) != 0 {
			t.Errorf("registered %v, want nothing", r.k.added)
		}
	})
}

// A gap may be staged in the draft alone; a commit archives it.
func TestTxnShareAcknowledgeGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range bothDialects {
			r := newPlaneRig(t, d)
			r.k.topic("in", 1)
			r.k.produce("in", 0, fakeBatchHead{records: 3})
			m := r.join("g", "m", "in", 0, 0)
			m.fetch(10)
			code := m.stage("t", owner{7, 3}, 0, 0, 2, ackAccept, ackGap, ackReject)
			if d == "kip" {
				r.wantCode(code, kerr.InvalidRecordState)
				r.wantStates("g", "in", 0, "0-2 ACQUIRED")
				continue
			}
			r.wantCode(code, nil)
			r.wantStates("g", "in", 0, "0-0 TX_PENDING", "1-1 TX_PENDING", "2-2 TX_PENDING")
			r.end("t", owner{7, 3}, true)
			r.wantStates("g", "in", 0)
		}
	})
}

// Offsets below the start offset are done with: they count as staged.
func TestTxnShareAcknowledgeBelowStartOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.ack(0, 0, 4, ackAccept), nil)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 3, 6, ackAccept), nil)
		r.wantStates("g", "in", 0, "5-6 TX_PENDING", "7-9 ACQUIRED")
	})
}

// What was staged once is staged again with success: the first answer may have
// been lost. It writes nothing.
func TestTxnShareAcknowledgeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
		writes := len(r.co.writes)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
		if n := len(r.co.writes); n != writes {
			t.Errorf("%d writes for what was staged already", n-writes)
		}
		r.wantStates("g", "in", 0, "0-4 TX_PENDING", "5-9 ACQUIRED")
	})
}

// A record in a transaction is nobody's to acknowledge or acquire.
func TestStagedRecordsAreLeftAlone(t *testing.T) {
	for _, d := range bothDialects {
		t.Run(d, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, d)
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 5})
				m, o := r.join("g", "m", "in", 0, 0), r.join("g", "o", "in", 0, 0)
				m.epoch = r.heartbeat("g", "m", m.epoch).MemberEpoch
				m.fetch(10)
				r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
				for _, a := range []int8{ackGap, ackAccept, ackRelease, ackReject, ackRenew} {
					r.wantCode(m.ack(0, 0, 4, a), kerr.InvalidRecordState)
				}
				req := o.request(10)
				req.MaxWaitMillis = 40_000 // longer than the lock would have run
				r.wantRanges(rangesOf(o.send(req), 0))
				m.fetch(10)
				req = m.request(10)
				req.ShareSessionEpoch = -1
				m.send(req)
				r.wantStates("g", "in", 0, "0-4 TX_PENDING")
			})
		})
	}
}
