package sandbox

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestShareSessionEpochs(t *testing.T) {
	for _, row := range []struct {
		name  string
		epoch func(next int32) int32
		fetch *kerr.Error // of a ShareFetch with that epoch
		ack   *kerr.Error // of a ShareAcknowledge
	}{
		{"the next", func(next int32) int32 { return next }, nil, nil},
		{"the same again", func(next int32) int32 { return next - 1 }, kerr.InvalidShareSessionEpoch, kerr.InvalidShareSessionEpoch},
		{"one too many", func(next int32) int32 { return next + 1 }, kerr.InvalidShareSessionEpoch, kerr.InvalidShareSessionEpoch},
		{"0 opens anew, by ShareFetch alone", func(int32) int32 { return 0 }, nil, kerr.InvalidShareSessionEpoch},
		{"-1 closes", func(int32) int32 { return -1 }, nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip")
				r.k.topic("in", 1)
				for i, want := range []*kerr.Error{row.fetch, row.ack} {
					m := r.join("g", []string{"m", "n"}[i], "in", 0, 0)
					m.fetch(1)
					m.fetch(1)
					epoch := row.epoch(m.session)
					if i == 0 {
						req := m.request(1)
						req.ShareSessionEpoch = epoch
						r.wantCode(ask[*kmsg.ShareFetchResponse](r, m.c, req).ErrorCode, want)
					} else {
						req := &kmsg.ShareAcknowledgeRequest{Version: 1, GroupID: &m.group, MemberID: &m.id, ShareSessionEpoch: epoch}
						r.wantCode(ask[*kmsg.ShareAcknowledgeResponse](r, m.c, req).ErrorCode, want)
					}
				}
			})
		})
	}
}

func TestShareSessionIsPerMemberAndBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 2)
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(1)
		for name, c := range map[string]struct {
			member string
			broker int32
		}{"another member": {"n", 0}, "another broker": {"m", 1}} {
			req := m.request(1)
			req.MemberID = &c.member
			if got := ask[*kmsg.ShareFetchResponse](r, r.on(c.broker), req).ErrorCode; got != kerr.ShareSessionNotFound.Code {
				t.Errorf("%s: %s, want SHARE_SESSION_NOT_FOUND", name, errorName(got))
			}
		}
	})
}

func TestShareSessionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 2)
		r.k.set("group.share.max.share.sessions", "1")
		m, o := r.join("g", "m", "in", 0, 0), r.join("g", "o", "in", 0, 0)
		m.fetch(1)
		r.wantCode(o.send(o.request(1)).ErrorCode, kerr.ShareSessionLimitReached)
		m.session = 0 // opening one anew needs no room
		r.wantCode(m.send(m.request(1)).ErrorCode, nil)
		o.c = r.on(1) // the limit is each broker's
		r.wantCode(o.send(o.request(1)).ErrorCode, nil)
	})
}

func TestAcknowledgementsMayNotOpenASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		m.session = 0
		r.wantCode(m.send(m.withAck(m.request(10), 0, 0, 9, ackAccept)).ErrorCode, kerr.InvalidRequest)
		r.wantStates("g", "in", 0, "0-9 ACQUIRED")
	})
}

// withAck adds acknowledgements of a range to a ShareFetch.
func (m *rigMember) withAck(req *kmsg.ShareFetchRequest, partition int32, first, last int64, types ...int8) *kmsg.ShareFetchRequest {
	b := kmsg.NewShareFetchRequestTopicPartitionAcknowledgementBatch()
	b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = first, last, types
	p := kmsg.NewShareFetchRequestTopicPartition()
	p.Partition = partition
	p.AcknowledgementBatches = append(p.AcknowledgementBatches, b)
	t := kmsg.NewShareFetchRequestTopic()
	t.TopicID = m.topicID
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// A session that ends gives back what its member acquired, after its last
// acknowledgements; staged records stay.
func TestShareSessionEnd(t *testing.T) {
	ends := map[string]func(r *planeRig, m *rigMember){
		"by ShareFetch": func(r *planeRig, m *rigMember) {
			req := m.withAck(m.request(0), 0, 0, 1, ackAccept)
			req.ShareSessionEpoch = -1
			resp := m.send(req)
			r.wantCode(resp.ErrorCode, nil)
			r.wantCode(partOf(resp, 0).AcknowledgeErrorCode, nil)
		},
		"by ShareAcknowledge": func(r *planeRig, m *rigMember) {
			m.session = -1
			r.wantCode(m.ack(0, 0, 1, ackAccept), nil)
		},
		"by the connection": func(r *planeRig, m *rigMember) {
			r.wantCode(m.ack(0, 0, 1, ackAccept), nil)
			r.p.connectionClosed(m.c)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip")
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(10)
				r.wantCode(m.stage("t", owner{7, 3}, 0, 2, 4, ackAccept), nil)
				end(r, m)
				r.wantStates("g", "in", 0, "2-4 TX_PENDING", "5-9 AVAILABLE")
				if n := len(r.p.snapshot().Sessions); n != 0 {
					t.Errorf("%d sessions are left", n)
				}
				m.session = 1
				r.wantCode(m.send(m.request(1)).ErrorCode, kerr.ShareSessionNotFound)
			})
		})
	}
}

// Another connection of the same member does not end its session.
func TestShareSessionBelongsToItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(1)
		r.p.connectionClosed(r.on(0))
		m.fetch(1)
		old := m.c
		m.session, m.c = 0, r.on(0)
		m.fetch(1)
		r.p.connectionClosed(old)
		m.fetch(1)
	})
}

// A fetch that waits ends with its session, and acquires nothing any more.
func TestWaitingFetchEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(1)
		start := bubbleNow()
		time.AfterFunc(3*time.Second, func() { r.p.connectionClosed(m.c) })
		req := m.request(10)
		req.MaxWaitMillis = 60_000
		r.wantRanges(rangesOf(m.send(req), 0))
		if d := bubbleNow().Sub(start); d != 3*time.Second {
			t.Errorf("the fetch ended after %v, want 3s", d)
		}
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		r.p.logAppended("in", 0)
		r.wantStates("g", "in", 0)
	})
}

func TestShareSessionPartitions(t *testing.T) {
	a, b, c := sessionPartition{partition: 0}, sessionPartition{partition: 1}, sessionPartition{partition: 2}
	var sc sessionCache
	sc.init()
	s, _ := sc.open(sessionKey{}, 1, []sessionPartition{a, b}, 10)
	s.change([]sessionPartition{b, c}, []sessionPartition{a})
	got := s.list()
	slices.SortFunc(got, func(x, y sessionPartition) int { return int(x.partition - y.partition) })
	if want := []sessionPartition{b, c}; !slices.Equal(got, want) {
		t.Fatalf("partitions %v, want %v", got, want)
	}

	// Every partition is told of once; later only with records or an error, and
	// when an error ends.
	steps := []struct {
		code    int16
		records bool
		want    bool
	}{{0, false, true}, {0, false, false}, {0, true, true}, {6, false, true}, {6, false, true}, {0, false, true}, {0, false, false}}
	for i, st := range steps {
		if got := s.respond(b, st.code, st.records); got != st.want {
			t.Errorf("step %d: respond(%d, %v) = %v, want %v", i, st.code, st.records, got, st.want)
		}
	}
}

// No partition is always the first: the order turns with the epoch.
func TestShareSessionTurns(t *testing.T) {
	var sc sessionCache
	sc.init()
	parts := []sessionPartition{{partition: 0}, {partition: 1}, {partition: 2}}
	s, _ := sc.open(sessionKey{}, 1, parts, 10)
	first := make(map[int32]bool)
	for e := int32(1); e <= 3; e++ {
		first[s.list()[0].partition] = true
		if _, code := sc.advance(sessionKey{}, e); code != 0 {
			t.Fatal(errorName(code))
		}
	}
	if len(first) != 3 {
		t.Errorf("first were %v, want each once", first)
	}
}

func TestNextSessionEpochWraps(t *testing.T) {
	for in, want := range map[int32]int32{0: 1, 1: 2, 1<<31 - 1: 1} {
		if got := nextSessionEpoch(in); got != want {
			t.Errorf("nextSessionEpoch(%d) = %d, want %d", in, got, want)
		}
	}
}
