package txn

import (
	"errors"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestGuard(t *testing.T) {
	t0 := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	lock := Guard{LockDeadline: at(30), LockDuration: 30 * time.Second}
	both := lock
	both.TxnDeadline, both.TxnTimeout = at(10), 10*time.Second
	tests := map[string]struct {
		guard Guard
		now   time.Time
		what  string // "" passes
	}{
		"no deadline":                             {Guard{}, at(1000), ""},
		"at 80 % of the lock":                     {lock, at(24), ""},
		"after 80 % of the lock":                  {lock, at(24).Add(1), "acquisition lock"},
		"at 80 % of the transaction":              {both, at(8), ""},
		"after 80 % of the transaction":           {both, at(8).Add(1), "transaction timeout"},
		"the earlier deadline counts, not the ID": {Guard{LockDeadline: at(5), LockDuration: 5 * time.Second, TxnDeadline: at(60), TxnTimeout: 60 * time.Second}, at(5), "acquisition lock"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.guard.Check(tt.now)
			g, _ := errors.AsType[*GuardError](err)
			if tt.what == "" && err != nil || tt.what != "" && (g == nil || g.What != tt.what) {
				t.Errorf("Check(%s) = %v, want %q", tt.now.Sub(t0), err, tt.what)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	const pid, epoch = 7, 3
	of := func(state string, id int64, e int16) description {
		return description{state: state, producerID: id, producerEpoch: e}
	}
	tests := map[string]struct {
		d      description
		raises bool // transaction.version 2
		want   Outcome
	}{
		"committed":                                {of("CompleteCommit", pid, epoch+1), true, OutcomeCommitted},
		"committed without raising the epoch":      {of("CompleteCommit", pid, epoch), false, OutcomeCommitted},
		"the commit before, and nothing since":     {of("CompleteCommit", pid, epoch), true, OutcomeOpen},
		"the abort before, and nothing since":      {of("CompleteAbort", pid, epoch), true, OutcomeOpen},
		"the commit before is not through":         {of("PrepareCommit", pid, epoch), true, OutcomeOpen},
		"initialised, and nothing since":           {of("Empty", pid, epoch), true, OutcomeOpen},
		"aborted by its coordinator":               {of("CompleteAbort", pid, epoch+1), true, OutcomeAborted},
		"aborted by its coordinator, which raises": {of("CompleteAbort", pid, epoch+1), false, OutcomeAborted},
		"still open": {of("Ongoing", pid, epoch), true, OutcomeOpen},
		"the next transaction of the same producer":       {of("Ongoing", pid, epoch+1), true, OutcomeUnknown},
		"markers of a commit under way":                   {of("PrepareCommit", pid, epoch+1), true, OutcomeEnding},
		"markers of a commit under way, the old way":      {of("PrepareCommit", pid, epoch), false, OutcomeEnding},
		"markers of an abort under way":                   {of("PrepareAbort", pid, epoch+1), true, OutcomeEnding},
		"another producer came and committed":             {of("CompleteCommit", pid, epoch+2), true, OutcomeUnknown},
		"another producer ID":                             {of("CompleteCommit", pid+1, epoch), true, OutcomeUnknown},
		"initialised again since":                         {of("Empty", pid, epoch+1), true, OutcomeUnknown},
		"an epoch before ours cannot be of this one":      {of("CompleteCommit", pid, epoch-1), true, OutcomeUnknown},
		"a state that this version of Kafka may not have": {of("Whatever", pid, epoch), true, OutcomeUnknown},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := judge(pid, epoch, tt.raises, tt.d); got != tt.want {
				t.Errorf("judge(%d, %d, %v, %v) = %s, want %s", pid, epoch, tt.raises, tt.d, got, tt.want)
			}
		})
	}
}

// The decision is durable before the first marker is written.
func TestDecided(t *testing.T) {
	for state, want := range map[string]Outcome{
		"PrepareCommit": OutcomeCommitted, "PrepareAbort": OutcomeAborted, "PrepareEpochFence": OutcomeAborted,
	} {
		if got := decided(description{state: state}, OutcomeEnding); got != want {
			t.Errorf("decided(%s) = %s, want %s", state, got, want)
		}
		if got := decided(description{state: state}, OutcomeUnknown); got != OutcomeUnknown {
			t.Errorf("decided(%s of another transaction) = %s", state, got)
		}
	}
}

func TestClassOf(t *testing.T) {
	for err, want := range map[error]class{
		kerr.CoordinatorLoadInProgress:          retriable,
		kerr.CoordinatorNotAvailable:            retriable,
		kerr.NotCoordinator:                     retriable,
		kerr.ConcurrentTransactions:             retriable,
		kerr.InvalidRecordState:                 abortable,
		kerr.StaleMemberEpoch:                   abortable,
		kerr.UnknownMemberID:                    abortable,
		kerr.TransactionAbortable:               abortable,
		kerr.NotLeaderForPartition:              abortable,
		errors.New("connection reset"):          abortable,
		kerr.ProducerFenced:                     fenced,
		kerr.InvalidProducerEpoch:               fenced,
		kerr.InvalidProducerIDMapping:           fenced,
		kerr.TransactionalIDNotFound:            fenced,
		kerr.TransactionalIDAuthorizationFailed: fatal,
		kerr.GroupAuthorizationFailed:           fatal,
		kerr.UnsupportedVersion:                 fatal,
	} {
		wrapped := &cluster.Error{Op: "stage", Broker: 1, Err: err}
		if got := classOf(wrapped); got != want {
			t.Errorf("classOf(%v) = %d, want %d", wrapped, got, want)
		}
	}
}

// A producer that is late is told from one that is fenced by our own clock and
// by an epoch that rose by one.
func TestFencedOrLate(t *testing.T) {
	t0 := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	const pid, epoch = 7, 3
	tests := map[string]struct {
		elapsed time.Duration
		d       description
		late    bool
	}{
		"timed out":                        {61 * time.Second, description{state: "CompleteAbort", producerID: pid, producerEpoch: epoch + 1}, true},
		"timed out, and initialised since": {61 * time.Second, description{state: "Empty", producerID: pid, producerEpoch: epoch + 1}, true},
		"fenced in good time":              {5 * time.Second, description{state: "Empty", producerID: pid, producerEpoch: epoch + 1}, false},
		"another producer is at work":      {61 * time.Second, description{state: "Ongoing", producerID: pid, producerEpoch: epoch + 1}, false},
		"fenced twice":                     {61 * time.Second, description{state: "Empty", producerID: pid, producerEpoch: epoch + 2}, false},
		"nothing is known":                 {61 * time.Second, description{producerID: -1}, false},
		"the ID is known to nobody":        {5 * time.Second, description{producerID: -1, forgotten: true}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &identity{transactionalID: "id", timeout: time.Minute, now: func() time.Time { return t0.Add(tt.elapsed) }, began: t0, producerID: pid, epoch: epoch}
			err := p.fencedOrLate(tt.d, kerr.ProducerFenced)
			_, late := errors.AsType[*AbortedError](err)
			_, fenced := errors.AsType[*FencedError](err)
			if late != tt.late || fenced == tt.late {
				t.Errorf("fencedOrLate(%v) after %s = %v, want late %v", tt.d, tt.elapsed, err, tt.late)
			}
		})
	}
}
