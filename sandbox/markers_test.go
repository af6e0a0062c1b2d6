package sandbox

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// afterAbort is the state of staged records after an abort, in words.
func (e *shareE2E) afterAbort() string { return e.dialect.AfterAbort.String() }

// Two epochs of one producer, where the marker of the first transaction is late:
// each marker resolves what its own epoch staged.
func TestMarkerEpochs(t *testing.T) {
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
