package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
)

// ErrEnded is what an [Actor] returns where the transaction, or what was left of
// it, had ended by itself, so that nothing was done.
var ErrEnded = errors.New("it has ended by itself")

// ErrOpen is what an [Actor] returns where it was to write end markers and found
// that a transaction will, or may, so that nothing was done.
var ErrOpen = errors.New("its transaction is open after all, or may be")

// RefusedError says that a drain, or an act, was not begun, since it would do
// what it must not.
type RefusedError struct {
	Op     string // such as `fence "billing-1"`
	Reason string // a sentence without a full stop
	Advice string
}

// Error reads "op: refused, nothing was changed: reason".
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s: refused, nothing was changed: %s", e.Op, e.Reason)
}

// Hint returns what to do next.
func (e *RefusedError) Hint() string { return e.Advice }

// NotDrainedError says that a drain ended and something is, or may be, pending
// that will not end by itself. Result has the survivors.
type NotDrainedError struct{ Result *Result }

// Error gives the reason.
func (e *NotDrainedError) Error() string {
	if e.Result.Status == StatusUnknown {
		return "not drained: it is not known what is pending: " + e.Result.Reason
	}
	return "not drained: " + e.Result.Reason
}

// Hint returns what to do next.
func (e *NotDrainedError) Hint() string {
	for _, g := range e.Result.Gaps {
		if g.Advice != "" {
			return g.Advice
		}
	}
	if len(e.Result.InMemory) > 0 && len(e.Result.Steps) == 0 {
		return "the metrics of every broker tell: --endpoint, or --jolokia; if this cluster is known to write TX_PENDING down, or it does not matter: --accept-memory"
	}
	return survivorsHint(e.Result)
}

// survivorsHint names the mildest act that would help.
func survivorsHint(r *Result) string {
	var fence []string
	hanging := false
	for _, s := range r.Steps {
		switch {
		case s.Verdict == inspect.VerdictOrphan:
			hanging = hanging || s.ProducerID != nil
		case s.TransactionalID != nil && s.TransactionState != nil && *s.TransactionState == "Ongoing" && !fenceTried(r, *s.TransactionalID):
			fence = append(fence, *s.TransactionalID)
		}
	}
	switch {
	case len(r.Running) > 0:
		return "stop the producers, and drain again"
	case len(fence) > 0:
		return "have the owners end their transactions, or abort them: --fence " + strings.Join(fence[:min(len(fence), maxNamed)], " --fence ")
	case hanging:
		return "nobody will end these any more: --abort-hanging writes their end markers"
	}
	return "'kshare inspect pending' has the rows, each with what resolves it"
}

// fenceTried reports whether a drain was told to fence an ID, and has tried to.
func fenceTried(r *Result, id string) bool {
	return slices.ContainsFunc(r.Acts, func(a ActResult) bool {
		return a.Action == ActionFence && a.TransactionalID != nil && *a.TransactionalID == id &&
			(a.Status == ActFailed || a.Status == ActUnknown)
	})
}

// TimeoutError says that time was up before a cluster was drained. It is a
// context.DeadlineExceeded.
type TimeoutError struct{ Result *Result }

// Error gives the reason.
func (e *TimeoutError) Error() string {
	return fmt.Sprintf("not drained after %s: %s", e.Result.Ended.Sub(e.Result.Started).Round(100e6), e.Result.Reason)
}

// Unwrap returns context.DeadlineExceeded.
func (*TimeoutError) Unwrap() error { return context.DeadlineExceeded }

// Hint returns what to do next.
func (e *TimeoutError) Hint() string {
	if e.Result.Clean > 0 && len(e.Result.Running) == 0 {
		return "leave enough time for the quiet period, or shorten that: --quiet-period"
	}
	return survivorsHint(e.Result)
}

// ActError says that an act failed. It wraps the cause, except for errors of a
// producer that is fenced: here it is not this process that was fenced.
type ActError struct {
	Step Step
	Err  error
}

// Error is that of Err, which names what was done.
func (e *ActError) Error() string { return e.Err.Error() }

// Unwrap returns the cause, or nil.
func (e *ActError) Unwrap() error {
	for _, fenced := range []error{kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping} {
		if errors.Is(e.Err, fenced) {
			return nil
		}
	}
	return e.Err
}

// BrokerID returns the broker that answered; -1 when none did.
func (e *ActError) BrokerID() int32 {
	if c, ok := errors.AsType[*cluster.Error](e.Err); ok {
		return c.Broker
	}
	return -1
}

// PartialError says that some acts of a drain were done and some failed, and
// that the cluster is not drained.
type PartialError struct {
	Result *Result
	Failed []error // *ActError each
}

// Error lists what failed.
func (e *PartialError) Error() string {
	return fmt.Sprintf("partly done, and not drained: %s; %s", cluster.Join(e.Failed...), e.Result.Reason)
}

// Hint returns what to do next.
func (e *PartialError) Hint() string { return survivorsHint(e.Result) }
