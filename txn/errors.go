package txn

import (
	"errors"
	"fmt"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
)

// FencedError says that another producer took over the transactional ID.
type FencedError struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16 // ours
	CurrentEpoch    int16 // the coordinator's; -1 when it did not say
	Err             error
}

// Error names the transactional ID and both epochs.
func (e *FencedError) Error() string {
	current := "unknown"
	if e.CurrentEpoch >= 0 {
		current = fmt.Sprint(e.CurrentEpoch)
	}
	return fmt.Sprintf("transactional ID %q is fenced: producer ID %d has epoch %d, the coordinator's epoch is %s: %s",
		e.TransactionalID, e.ProducerID, e.ProducerEpoch, current, cluster.Name(e.Err))
}

// Unwrap returns the broker's answer.
func (e *FencedError) Unwrap() error { return e.Err }

// OutcomeUnknownError says that a commit was sent and that nobody could be
// asked in time how it ended. Produced records and acknowledgements share the
// outcome, whichever it is.
type OutcomeUnknownError struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	Records         int64 // records staged in the transaction
	State           string
	Err             error
}

// Error names the transaction and the last state seen.
func (e *OutcomeUnknownError) Error() string {
	state := e.State
	if state == "" {
		state = "not to be read"
	}
	return fmt.Sprintf("outcome of the commit of transactional ID %q (producer ID %d, epoch %d, %d records staged) is unknown: its state is %s: %v",
		e.TransactionalID, e.ProducerID, e.ProducerEpoch, e.Records, state, e.Err)
}

// Unwrap returns what made the outcome unknown.
func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// AbortedError says that the coordinator had aborted the transaction by itself
// when the commit arrived: nothing of it took effect.
type AbortedError struct {
	TransactionalID string
	Err             error
}

// Error names the transactional ID.
func (e *AbortedError) Error() string {
	return fmt.Sprintf("transaction of %q was aborted by its coordinator: %s", e.TransactionalID, cluster.Name(e.Err))
}

// Unwrap returns the broker's answer to the commit.
func (e *AbortedError) Unwrap() error { return e.Err }

// TimeoutRejectedError says that the broker does not allow transactions as long
// as was asked for (transaction.max.timeout.ms).
type TimeoutRejectedError struct {
	TransactionalID string
	Err             error
}

// Error names the config to change.
func (e *TimeoutRejectedError) Error() string {
	return fmt.Sprintf("transactional ID %q: the transaction timeout is above the broker's transaction.max.timeout.ms: %s", e.TransactionalID, cluster.Name(e.Err))
}

// Unwrap returns the broker's answer.
func (e *TimeoutRejectedError) Unwrap() error { return e.Err }

// class is what to do about an error of a producer (the reference's section 9.2).
type class int8

const (
	abortable class = iota // abort, then go on with the same producer
	retriable              // send the same request again, within the transaction
	fenced                 // another producer may own the transactional ID
	fatal                  // this producer cannot go on
)

func classOf(err error) class {
	ke, ok := errors.AsType[*kerr.Error](err)
	if !ok {
		return abortable
	}
	switch ke {
	case kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator,
		kerr.NetworkException, kerr.ConcurrentTransactions:
		return retriable
	case kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping:
		return fenced
	case kerr.TransactionalIDAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed,
		kerr.ClusterAuthorizationFailed, kerr.UnsupportedVersion:
		return fatal
	}
	return abortable
}

// IsFatal reports whether a producer cannot go on after err: it is fenced, not
// authorised, or the cluster does not support (any more) what it does. After
// any other error the transaction is to be aborted and the next one may begin.
func IsFatal(err error) bool {
	if _, ok := errors.AsType[*FencedError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*cluster.UnsupportedError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*cluster.AuthError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*TimeoutRejectedError](err); ok {
		return true
	}
	return classOf(err) == fatal
}
