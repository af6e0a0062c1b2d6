package sandbox

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/kshare/kshare/wire"
)

// bubbleSleep lets the clock of a synctest bubble run on; nothing waits for real.
func bubbleSleep(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock of the bubble
}

// bubbleNow reads the clock of a synctest bubble.
func bubbleNow() time.Time {
	return time.Now()
}

var bothDialects = []string{"kip", "draft"}

func TestFetchAcquiresAndAcknowledgeAdvances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		r.wantRanges(m.fetch(4), delivered(0, 3, 1))
		r.wantRanges(m.fetch(100), delivered(4, 9, 1))
		r.wantCode(m.ack(0, 0, 5, int8(wire.Accept)), nil)
		r.wantStates("g", "in", 0, "6-9 ACQUIRED")
		r.wantCode(m.ack(0, 6, 7, int8(wire.Release)), nil)
		r.wantRanges(m.fetch(100), delivered(6, 7, 2))
		r.wantCode(m.ack(0, 6, 9, int8(wire.Reject)), nil)
		r.wantStates("g", "in", 0)
	})
}

func TestLockExpiryRedelivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 3})
		m, o := r.join("g", "m", "in", 0, 0), r.join("g", "o", "in", 0, 0)
		r.wantRanges(m.fetch(10), delivered(0, 2, 1))
		r.wantRanges(o.fetch(10))
		start := bubbleNow()
		req := o.request(10)
		req.MaxWaitMillis = 60_000
		r.wantRanges(rangesOf(o.send(req), 0), delivered(0, 2, 2))
		if d := bubbleNow().Sub(start); d != 30*time.Second {
			t.Fatalf("redelivered after %v, want the lock duration of 30s", d)
		}
		r.wantCode(m.ack(0, 0, 2, int8(wire.Accept)), kerr.InvalidRecordState)
	})
}

func TestStageThenCommit(t *testing.T) {
	for _, d := range bothDialects {
		t.Run(d, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, d)
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(10)
				o := owner{7, 3}
				r.wantCode(m.stage("t", o, 0, 0, 4, int8(wire.Accept)), nil)
				r.wantStates("g", "in", 0, "0-4 TX_PENDING", "5-9 ACQUIRED")
				if n := r.p.pendingCount(); n != 5 {
					t.Fatalf("pendingCount() = %d, want 5", n)
				}
				r.end("t", o, true)
				r.wantStates("g", "in", 0, "5-9 ACQUIRED")
				if n := r.p.pendingCount(); n != 0 {
					t.Fatalf("pendingCount() = %d, want 0", n)
				}
			})
		})
	}
}

// A leader that loses its memory in the middle of its term starts over from what
// is persisted, and a waiting fetch goes on with that.
func TestCrashLeader(t *testing.T) {
	for _, memory := range []bool{false, true} {
		t.Run(map[bool]string{false: "persisted", true: "memory"}[memory], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newPlaneRig(t, "kip", func(r *planeRig) { r.memory = memory })
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 10})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(10)
				r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, int8(wire.Accept)), nil)
				time.AfterFunc(time.Second, func() { r.p.crashLeaders(leadSelector{topic: "in"}) })
				req := m.request(10)
				req.MaxWaitMillis = 20_000
				start := bubbleNow()
				got := rangesOf(m.send(req), 0)
				if d := bubbleNow().Sub(start); d != time.Second {
					t.Errorf("the fetch took %v, want 1s", d)
				}
				if memory {
					r.wantRanges(got, delivered(0, 9, 1))
					return
				}
				r.wantRanges(got, delivered(5, 9, 1))
				r.wantStates("g", "in", 0, "0-4 TX_PENDING", "5-9 ACQUIRED")
			})
		})
	}
}

func TestExpireAllLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(10)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 4, int8(wire.Accept)), nil)
		r.p.expireLocksOf(leadSelector{topic: "in"})
		r.wantStates("g", "in", 0, "0-4 TX_PENDING", "5-9 AVAILABLE")
	})
}
