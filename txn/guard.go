package txn

import (
	"fmt"
	"time"
)

// Guard says until when a transaction may be committed. A commit that comes
// later could meet records that went back to the group, or a transaction that
// the coordinator has aborted. The zero value allows everything.
type Guard struct {
	// LockDeadline is when the first acquisition lock of the staged records
	// expires; the zero time means that none does.
	LockDeadline time.Time
	// LockDuration is the acquisition lock duration.
	LockDuration time.Duration
	// TxnDeadline is when the coordinator may abort the transaction.
	TxnDeadline time.Time
	// TxnTimeout is the transaction timeout.
	TxnTimeout time.Duration
}

// marginDivisor is the part of a duration that has to be left: one fifth, so
// that work ends at 80 % of what is allowed.
const marginDivisor = 5

// Deadline is the last moment at which Check passes; false when there is none.
func (g Guard) Deadline() (time.Time, bool) {
	d, _, ok := g.earliest()
	return d, ok
}

func (g Guard) earliest() (deadline time.Time, what string, ok bool) {
	if !g.LockDeadline.IsZero() {
		deadline, what, ok = g.LockDeadline.Add(-g.LockDuration/marginDivisor), "acquisition lock", true
	}
	if !g.TxnDeadline.IsZero() {
		if d := g.TxnDeadline.Add(-g.TxnTimeout / marginDivisor); !ok || d.Before(deadline) {
			deadline, what, ok = d, "transaction timeout", true
		}
	}
	return deadline, what, ok
}

// Check returns a *GuardError when now is after the deadline.
func (g Guard) Check(now time.Time) error {
	d, what, ok := g.earliest()
	if !ok || !now.After(d) {
		return nil
	}
	return &GuardError{What: what, Late: now.Sub(d)}
}

// GuardError says that a transaction was not committed, because a deadline was
// too near. The transaction has to be aborted; its records are delivered again.
type GuardError struct {
	What string        // "acquisition lock" or "transaction timeout"
	Late time.Duration // how long after the last safe moment
}

// Error names the deadline.
func (e *GuardError) Error() string {
	return fmt.Sprintf("not committed: the %s leaves no margin (%s too late)", e.What, e.Late.Round(time.Millisecond))
}
