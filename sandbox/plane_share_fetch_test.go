package sandbox

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestShareFetchErrors(t *testing.T) {
	for _, row := range []struct {
		name    string
		prepare func(r *planeRig)
		change  func(req *kmsg.ShareFetchRequest)
		top     *kerr.Error
		part    *kerr.Error
	}{
		{"nothing is wrong", nil, nil, nil, nil},
		{"no group", nil, func(req *kmsg.ShareFetchRequest) { req.GroupID = nil }, kerr.InvalidRequest, nil},
		{"no member", nil, func(req *kmsg.ShareFetchRequest) { req.MemberID = nil }, kerr.InvalidRequest, nil},
		{"no READ on the group", func(r *planeRig) { r.k.deny("g") }, nil, kerr.GroupAuthorizationFailed, nil},
		{"no READ on the topic", func(r *planeRig) { r.k.deny("in") }, nil, nil, kerr.TopicAuthorizationFailed},
		{"an unknown topic", nil, func(req *kmsg.ShareFetchRequest) { req.Topics[0].TopicID[1] = 1 }, nil, kerr.UnknownTopicID},
		{"an unknown partition", nil, func(req *kmsg.ShareFetchRequest) { req.Topics[0].Partitions[0].Partition = 9 }, nil, kerr.UnknownTopicOrPartition},
		{"another leader", nil, func(req *kmsg.ShareFetchRequest) { req.Topics[0].Partitions[0].Partition = 1 }, nil, kerr.NotLeaderForPartition},
		{"renewal without acknowledgements", nil, func(req *kmsg.ShareFetchRequest) { req.IsRenewAck = true }, kerr.InvalidRequest, nil},
		{"share state that was never initialised", func(r *planeRig) {
			for _, k := range r.co.keys() {
				r.co.remove(r.t.Context(), k)
			}
		}, nil, nil, kerr.UnknownServerError},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip")
				r.k.topic("in", 2)
				m := r.join("g", "m", "in", 0, 0)
				if row.prepare != nil {
					row.prepare(r)
				}
				req := m.request(10)
				if row.change != nil {
					row.change(req)
				}
				resp := m.send(req)
				r.wantCode(resp.ErrorCode, row.top)
				if row.top == nil {
					p := resp.Topics[0].Partitions[0]
					r.wantCode(p.ErrorCode, row.part)
					want := [2]int32{-1, -1}
					if row.part == kerr.NotLeaderForPartition {
						want = [2]int32{1, 1}
						if len(resp.NodeEndpoints) != 1 || resp.NodeEndpoints[0].NodeID != 1 || resp.NodeEndpoints[0].Port != 9001 {
							t.Errorf("endpoints %v, want broker 1 at port 9001", resp.NodeEndpoints)
						}
					}
					if got := [2]int32{p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch}; got != want {
						t.Errorf("current leader %v, want %v", got, want)
					}
				}
			})
		})
	}
}

// A fetch that has nothing waits, and is woken by whatever makes a record
// available to it.
func TestShareFetchWaits(t *testing.T) {
	const wait = time.Minute
	type row struct {
		name    string
		dialect string
		records int                             // that another member has acquired before
		wake    func(r *planeRig, o *rigMember) // after 3 s
		after   time.Duration
		want    []acquiredRange
	}
	rows := []row{
		{"nothing comes", "kip", 0, nil, wait, nil},
		{"new records", "kip", 0, func(r *planeRig, _ *rigMember) {
			r.k.produce("in", 0, fakeBatchHead{records: 5})
			r.p.logAppended("in", 0)
		}, 3 * time.Second, []acquiredRange{delivered(0, 4, 1)}},
		{"new records somewhere", "kip", 0, func(r *planeRig, _ *rigMember) {
			r.k.produce("in", 0, fakeBatchHead{records: 5})
			r.p.logMayHaveGrown()
		}, 3 * time.Second, []acquiredRange{delivered(0, 4, 1)}},
		{"new records that nobody tells of", "kip", 0, func(r *planeRig, _ *rigMember) {
			bubbleSleep(time.Millisecond) // past the look at 3s
			r.k.produce("in", 0, fakeBatchHead{records: 5})
		}, 3*time.Second + fetchFallback, []acquiredRange{delivered(0, 4, 1)}},
		{
			"a release", "kip", 5, func(_ *planeRig, o *rigMember) { o.ack(0, 0, 2, ackRelease) },
			3 * time.Second,
			[]acquiredRange{delivered(0, 2, 2)},
		},
		{
			"the end of another session", "kip", 5, func(r *planeRig, o *rigMember) { r.p.connectionClosed(o.c) },
			3 * time.Second,
			[]acquiredRange{delivered(0, 4, 2)},
		},
		{"the end of acquisition locks", "kip", 5, nil, 30 * time.Second, []acquiredRange{delivered(0, 4, 2)}},
		{"an aborted transaction", "draft", 5, func(r *planeRig, o *rigMember) {
			r.wantCode(o.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
			r.end("t", owner{7, 3}, false)
		}, 3 * time.Second, []acquiredRange{delivered(0, 4, 2)}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, row.dialect)
				r.k.topic("in", 1)
				m, o := r.join("g", "m", "in", 0, 0), r.join("g", "o", "in", 0, 0)
				o.epoch = r.heartbeat("g", "o", o.epoch).MemberEpoch
				if row.records > 0 {
					r.k.produce("in", 0, fakeBatchHead{records: row.records})
					o.fetch(100)
				}
				start, reads := bubbleNow(), r.k.reads
				var done sync.WaitGroup
				if row.wake != nil {
					done.Go(func() {
						bubbleSleep(3 * time.Second)
						row.wake(r, o)
					})
				}
				req := m.request(100)
				req.MaxWaitMillis = int32(wait / time.Millisecond)
				r.wantRanges(rangesOf(m.send(req), 0), row.want...)
				if d := bubbleNow().Sub(start); row.after > 0 && d != row.after {
					t.Errorf("the fetch took %v, want %v", d, row.after)
				}
				if n := r.k.reads - reads; n > 1 {
					t.Errorf("%d reads of the log, want at most 1", n)
				}
				done.Wait()
			})
		})
	}
}

func TestShareFetchMinBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		m := r.join("g", "m", "in", 0, 0)
		batch := len(encodeFakeBatch(span{0, 9}, fakeBatchHead{records: 10}))
		start := bubbleNow()
		go func() {
			for range 3 {
				bubbleSleep(time.Second)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				r.p.logAppended("in", 0)
			}
		}()
		req := m.request(100)
		req.MaxWaitMillis, req.MinBytes = 60_000, int32(2*batch)
		r.wantRanges(rangesOf(m.send(req), 0), delivered(0, 19, 1))
		if d := bubbleNow().Sub(start); d != 2*time.Second {
			t.Errorf("the fetch took %v, want the 2s until there were %d bytes", d, 2*batch)
		}
		req = m.request(100)
		req.MaxWaitMillis, req.MinBytes = 5_000, int32(2*batch)
		r.wantRanges(rangesOf(m.send(req), 0), delivered(20, 29, 1)) // less, when the time is over
		if d := bubbleNow().Sub(start); d != 7*time.Second {
			t.Errorf("the fetch took until %v, want 7s", d)
		}
	})
}

func TestShareFetchLimits(t *testing.T) {
	batch := int32(len(encodeFakeBatch(span{0, 9}, fakeBatchHead{records: 10})))
	for _, row := range []struct {
		name   string
		change func(req *kmsg.ShareFetchRequest)
		locks  string
		want   map[int32][]acquiredRange
		bytes  int // of records on partition 0
	}{
		{"none", nil, "", map[int32][]acquiredRange{0: {delivered(0, 29, 1)}, 3: {delivered(0, 29, 1)}}, 3},
		{
			"MaxRecords, to the record", func(req *kmsg.ShareFetchRequest) { req.MaxRecords = 15 }, "",
			map[int32][]acquiredRange{0: {delivered(0, 14, 1)}},
			2,
		},
		{
			"MaxRecords, to the batch", func(req *kmsg.ShareFetchRequest) { req.MaxRecords, req.ShareAcquireMode = 15, 0 }, "",
			map[int32][]acquiredRange{0: {delivered(0, 19, 1)}},
			2,
		},
		{
			"MaxBytes is shared", func(req *kmsg.ShareFetchRequest) { req.MaxBytes = 4 * batch }, "",
			map[int32][]acquiredRange{0: {delivered(0, 19, 1)}, 3: {delivered(0, 19, 1)}},
			2,
		},
		{
			"MaxBytes below one batch", func(req *kmsg.ShareFetchRequest) { req.MaxBytes = 1 }, "",
			map[int32][]acquiredRange{0: {delivered(0, 9, 1)}},
			1,
		},
		{
			"BatchSize", func(req *kmsg.ShareFetchRequest) { req.BatchSize = 10 }, "",
			map[int32][]acquiredRange{
				0: {delivered(0, 9, 1), delivered(10, 19, 1), delivered(20, 29, 1)},
				3: {delivered(0, 9, 1), delivered(10, 19, 1), delivered(20, 29, 1)},
			},
			3,
		},
		{"no records", func(req *kmsg.ShareFetchRequest) { req.MaxRecords = 0 }, "", nil, 0},
		{"record locks", nil, "5", map[int32][]acquiredRange{0: {delivered(0, 4, 1)}, 3: {delivered(0, 4, 1)}}, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip")
				r.k.topic("in", 4)
				if row.locks != "" {
					r.k.set("share.partition.max.record.locks", row.locks)
				}
				m := r.join("g", "m", "in", 0, 0, 3)
				for range 3 {
					r.k.produce("in", 0, fakeBatchHead{records: 10})
					r.k.produce("in", 3, fakeBatchHead{records: 10})
				}
				m.fetch(0) // now the session's turn comes to partition 0
				req := m.request(1000)
				if row.change != nil {
					row.change(req)
				}
				resp := m.send(req)
				for _, n := range m.partitions {
					r.wantRanges(rangesOf(resp, n), row.want[n]...)
				}
				if p := partOf(resp, 0); row.bytes > 0 && len(p.Records) != row.bytes*int(batch) {
					t.Errorf("%d bytes, want %d batches of %d", len(p.Records), row.bytes, batch)
				}
			})
		})
	}
}

func TestShareFetchDoesItsAcknowledgementsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 2)
		r.k.set("share.partition.max.record.locks", "5")
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		r.wantRanges(m.fetch(100), delivered(0, 4, 1))
		req := m.withAck(m.withAck(m.request(100), 0, 0, 4, ackAccept), 1, 0, 4, ackAccept)
		req.ForgottenTopicsData = []kmsg.ShareFetchRequestForgottenTopicsData{{TopicID: m.topicID, Partitions: []int32{1}}}
		resp := m.send(req)
		r.wantRanges(rangesOf(resp, 0), delivered(5, 9, 1))
		r.wantCode(partOf(resp, 0).AcknowledgeErrorCode, nil)
		p := partOf(resp, 1)
		r.wantCode(p.AcknowledgeErrorCode, kerr.NotLeaderForPartition)
		r.wantCode(p.ErrorCode, nil)
		resp = m.send(m.withAck(m.request(100), 0, 0, 9, ackAccept, ackAccept))
		r.wantCode(partOf(resp, 0).AcknowledgeErrorCode, kerr.InvalidRequest)
		r.wantStates("g", "in", 0, "5-9 ACQUIRED")
	})
}

func TestShareFetchRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		bubbleSleep(20 * time.Second)
		req := m.withAck(m.request(0), 0, 0, 4, ackRenew)
		req.IsRenewAck, req.MaxBytes, req.MinBytes = true, 0, 0
		resp := m.send(req)
		r.wantCode(resp.ErrorCode, nil)
		r.wantCode(partOf(resp, 0).AcknowledgeErrorCode, nil)
		if resp.AcquisitionLockTimeoutMillis != 30_000 {
			t.Errorf("AcquisitionLockTimeoutMillis = %d, want 30000", resp.AcquisitionLockTimeoutMillis)
		}
		r.wantRanges(rangesOf(resp, 0)) // a renewal fetches nothing
		bubbleSleep(20 * time.Second)
		r.wantStates("g", "in", 0, "0-4 ACQUIRED", "5-9 AVAILABLE")
		r.wantCode(m.ack(0, 0, 4, ackRenew), nil)
		r.k.set("share.renew.acknowledge.enable", "false")
		r.wantCode(m.ack(0, 0, 4, ackRenew), kerr.InvalidRecordState)
		bubbleSleep(31 * time.Second)
		r.wantStates("g", "in", 0, "0-9 AVAILABLE")
	})
}

// Under read_committed a member sees neither what was aborted nor what may yet
// be; the start offset passes aborted records and end markers.
func TestReadCommittedHides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.set("share.isolation.level", "read_committed")
		m := r.join("g", "m", "in", 0, 0)

		r.k.produce("in", 0, fakeBatchHead{records: 5, producer: 9, open: true}) // 0-4, open
		r.k.produce("in", 0, fakeBatchHead{records: 5, open: true})              // 5-9, behind it
		r.wantRanges(m.fetch(100))
		r.k.mu.Lock()
		p := r.k.part("in", 0)
		p.aborted = append(p.aborted, fakeAborted{abortedTxn{9, 0}, 10})
		r.k.mu.Unlock()
		r.k.produce("in", 0, fakeBatchHead{records: 1, producer: 9, control: true}) // 10, aborts it
		r.wantRanges(m.fetch(100), delivered(5, 9, 1))
		r.wantStates("g", "in", 0, "5-9 ACQUIRED")
		r.wantCode(m.ack(0, 5, 9, ackAccept), nil)
		r.wantRanges(m.fetch(100))
		st, code := r.co.read(t.Context(), r.co.keys()[0], -1)
		if code != 0 || st.startOffset != 11 {
			t.Errorf("persisted start offset %d, %s, want 11, past the marker", st.startOffset, errorName(code))
		}

		r.k.produce("in", 0, fakeBatchHead{records: 5, producer: 9, open: true})    // 11-15
		r.k.produce("in", 0, fakeBatchHead{records: 1, producer: 9, control: true}) // 16, commits it
		r.k.produce("in", 0, fakeBatchHead{records: 3})                             // 17-19
		r.wantRanges(m.fetch(100), delivered(11, 15, 1), delivered(17, 19, 1))
	})
}

// Under read_uncommitted everything is delivered, end markers too: it is for
// the member to acknowledge them as gaps.
func TestReadUncommittedDeliversAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		m := r.join("g", "m", "in", 0, 0)
		r.k.produce("in", 0, fakeBatchHead{records: 5, producer: 9, open: true})
		r.wantRanges(m.fetch(100), delivered(0, 4, 1))
		r.k.produce("in", 0, fakeBatchHead{records: 1, producer: 9, control: true})
		r.wantRanges(m.fetch(100), delivered(5, 5, 1))
		r.wantCode(m.ack(0, 0, 5, ackAccept, ackAccept, ackAccept, ackAccept, ackAccept, ackGap), nil)
		r.wantStates("g", "in", 0)
	})
}

func TestShareAutoOffsetReset(t *testing.T) {
	for _, row := range []struct {
		reset string
		want  []acquiredRange
	}{
		{"earliest", []acquiredRange{delivered(0, 14, 1)}},
		{"latest", []acquiredRange{delivered(10, 14, 1)}},
		{"by_duration:PT1H", []acquiredRange{delivered(3, 14, 1)}}, // the fake has offset 3 at any time
	} {
		t.Run(row.reset, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip")
				r.k.topic("in", 1)
				r.k.set("share.auto.offset.reset", row.reset)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(0)
				r.k.produce("in", 0, fakeBatchHead{records: 5})
				r.wantRanges(m.fetch(100), row.want...)
			})
		})
	}
}

func TestParseISODuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"PT1H": time.Hour, "P1D": 24 * time.Hour, "P2DT3H4M5.5S": 51*time.Hour + 4*time.Minute + 5500*time.Millisecond,
		"pt30s": 30 * time.Second, "PT0S": 0, "PT90M": 90 * time.Minute,
	} {
		if got, err := parseISODuration(in); err != nil || got != want {
			t.Errorf("parseISODuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "P", "PT", "1H", "P1H", "PT1D", "PT1", "PTH", "PT1S1M", "PT1.5H", "P1DT", "PTxS", "PT1e3M"} {
		if got, err := parseISODuration(in); err == nil {
			t.Errorf("parseISODuration(%q) = %v, want an error", in, got)
		}
	}
}

// The log start offset moves when records are deleted; what was below it is
// done with.
func TestLogStartMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		m := r.join("g", "m", "in", 0, 0)
		for range 2 {
			r.k.produce("in", 0, fakeBatchHead{records: 10})
		}
		m.fetch(5)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 1, ackAccept), nil)
		r.k.mu.Lock()
		p := r.k.part("in", 0)
		p.logStartOffset, p.batches = 10, p.batches[1:]
		r.k.mu.Unlock()
		r.wantRanges(m.fetch(100), delivered(10, 19, 1))
		r.wantStates("g", "in", 0, "10-19 ACQUIRED")
		if n := r.p.pendingCount(); n != 0 {
			t.Errorf("%d records pending", n)
		}
	})
}

// A new leader starts from what is persisted: ACQUIRED is AVAILABLE, TX_PENDING
// stays, or is forgotten where it is in memory alone.
func TestLeaderChanges(t *testing.T) {
	for _, memory := range []bool{false, true} {
		for _, row := range []struct {
			name   string
			leader int32
		}{{"to another broker", 2}, {"of the same broker", 0}} {
			t.Run(map[bool]string{false: "persisted ", true: "memory "}[memory]+row.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newPlaneRig(t, "kip", func(r *planeRig) { r.memory = memory })
					r.k.topic("in", 1)
					r.k.produce("in", 0, fakeBatchHead{records: 10})
					m := r.join("g", "m", "in", 0, 0)
					m.fetch(10)
					r.wantCode(m.ack(0, 9, 9, ackAccept), nil)
					r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
					waiting := make(chan *kmsg.ShareFetchResponse)
					go func() {
						req := m.request(10)
						req.MaxWaitMillis = 60_000
						waiting <- m.send(req)
					}()
					synctest.Wait()
					r.k.move("in", 0, row.leader)
					resp := <-waiting
					if row.leader != 0 {
						r.wantCode(partOf(resp, 0).ErrorCode, kerr.NotLeaderForPartition)
						if got := partOf(resp, 0).CurrentLeader.LeaderID; got != row.leader {
							t.Errorf("current leader %d, want %d", got, row.leader)
						}
						m.c, m.session = r.on(row.leader), 0
						resp = m.send(m.request(10))
					}
					if memory {
						r.wantRanges(rangesOf(resp, 0), delivered(0, 8, 1))
						r.end("t", owner{7, 3}, true)
						r.wantStates("g", "in", 0, "0-8 ACQUIRED", "9-9 ACKNOWLEDGED")
						return
					}
					r.wantRanges(rangesOf(resp, 0), delivered(5, 8, 1))
					// The member is not persisted, so staging again is refused.
					r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), kerr.InvalidRecordState)
					r.end("t", owner{7, 3}, true)
					r.wantStates("g", "in", 0, "5-8 ACQUIRED", "9-9 ACKNOWLEDGED")
				})
			})
		}
	}
}

// Marker and new leader may come in any order: what is persisted is resolved
// even when nobody has the share-partition loaded.
func TestMarkerAfterLeaderChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "draft")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, ackAccept), nil)
		r.k.move("in", 0, 1)
		r.end("t", owner{7, 3}, true)
		m.c, m.session = r.on(1), 0
		r.wantRanges(m.fetch(10), delivered(5, 9, 1))
		if st, _ := r.co.read(t.Context(), r.co.keys()[0], -1); st.startOffset != 5 {
			t.Errorf("persisted start offset %d, want 5", st.startOffset)
		}
	})
}

// A marker that cannot be persisted is applied again until it can.
func TestMarkerIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 9, ackAccept), nil)
		r.co.failWrites(func(shareStateWrite) int16 { return kerr.CoordinatorLoadInProgress.Code })
		r.end("t", owner{7, 3}, true)
		bubbleSleep(time.Minute)
		r.wantStates("g", "in", 0, "0-9 TX_PENDING")
		r.co.failWrites(nil)
		bubbleSleep(markerRetryMost + time.Millisecond)
		r.wantStates("g", "in", 0)
	})
}

// Stages and their markers are persisted as they are to be: an update, then a
// snapshot.
func TestMarkerWritesASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 2)
		for n := range int32(2) {
			r.k.move("in", n, 0)
			r.k.produce("in", n, fakeBatchHead{records: 10})
		}
		m := r.join("g", "m", "in", 0, 0, 1)
		m.fetch(100)
		for n := range int32(2) {
			r.wantCode(m.stage("t", owner{7, 3}, n, 0, 9, ackReject), nil)
		}
		staged := r.co.writes[len(r.co.writes)-1][0]
		want := wire.StateBatch{
			FirstOffset: 0, LastOffset: 9, DeliveryState: wire.TxPending, DeliveryCount: 1,
			Staged: wire.StagedOwner{ProducerID: 7, ProducerEpoch: 3, AcknowledgeType: ackReject, DeliveryState: int8(wire.Archived)},
		}
		if staged.snapshot || len(staged.batches) != 1 || staged.batches[0] != want {
			t.Errorf("staged with %+v, want an update of %+v", staged, want)
		}
		r.end("t", owner{7, 3}, true)
		ends := r.co.writes[len(r.co.writes)-1]
		if len(ends) != 2 {
			t.Fatalf("%d share-partitions in the last write, want 2", len(ends))
		}
		for _, w := range ends {
			if !w.snapshot || w.startOffset != 10 || w.deliveryCompleteCount != 0 {
				t.Errorf("resolved with %+v, want a snapshot that starts at 10", w)
			}
		}
	})
}

// Members that fetch at the same time never get the same record.
func TestConcurrentFetchesShareNothing(t *testing.T) {
	r := newPlaneRig(t, "kip")
	r.k.topic("in", 1)
	const members, records = 8, 2000
	for range records / 20 {
		r.k.produce("in", 0, fakeBatchHead{records: 20})
	}
	r.k.set("share.partition.max.record.locks", "10000")
	var (
		mu   sync.Mutex
		seen = make(map[int64]string)
		wg   sync.WaitGroup
		ms   []*rigMember
	)
	for n := range members {
		ms = append(ms, r.join("g", string(rune('a'+n)), "in", 0, 0))
	}
	for _, m := range ms {
		wg.Go(func() {
			for {
				got := m.fetch(7)
				if len(got) == 0 {
					return
				}
				mu.Lock()
				for _, a := range got {
					for o := a.first; o <= a.last; o++ {
						if by, ok := seen[o]; ok {
							t.Errorf("offset %d came to %s and to %s", o, by, m.id)
						}
						seen[o] = m.id
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != records {
		t.Errorf("%d of %d records came", len(seen), records)
	}
	if r.k.reads > 2 {
		t.Errorf("%d reads of a log that fits in one", r.k.reads)
	}
}

// The bytes of a fetch are the batches that were acquired, and no more.
func TestShareFetchReturnsItsBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		var spans []span
		for range 4 {
			spans = append(spans, r.k.produce("in", 0, fakeBatchHead{records: 10}))
		}
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(40)
		r.wantCode(m.ack(0, 0, 39, slices.Concat(
			[]int8{ackRelease}, slices.Repeat([]int8{ackAccept}, 24), []int8{ackRelease}, slices.Repeat([]int8{ackAccept}, 14))...), nil)
		resp := m.send(m.request(100))
		r.wantRanges(rangesOf(resp, 0), delivered(0, 0, 2), delivered(25, 25, 2))
		w, err := newLogWindow(0, partOf(resp, 0).Records, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(w.batches) != 2 || w.batches[0].span != spans[0] || w.batches[1].span != spans[2] {
			t.Errorf("batches %+v, want those of %v and %v", w.batches, spans[0], spans[2])
		}
	})
}
