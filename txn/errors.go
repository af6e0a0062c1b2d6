package txn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
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

// OutcomeUnknownError says that the end of a transaction was sent and that nobody
// could be asked in time how it ended. Produced records and acknowledgements
// share the outcome, whichever it is. It carries what finds out later: resume its
// Token before anything else uses the transactional ID.
type OutcomeUnknownError struct {
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	Records         int64          // source records staged in the transaction
	Staged          []StagedRanges // which those are, in the order in which they were staged
	Produced        int64          // records produced in the transaction
	ClusterID       string         // "" when the brokers do not say
	Dialect         string         // "" when nothing could be staged
	State           string         // the coordinator's, as it was last seen; "" when it was not
	Deadline        time.Time      // the coordinator aborts the transaction then if it is open; zero for never
	Began           time.Time      // when the transaction was begun
	Err             error
}

// StagedRanges are acknowledgements of one partition that were staged in a
// transaction. A type is that of the whole batch or of each offset.
type StagedRanges struct {
	GroupID        string
	TopicPartition share.TopicPartition
	Batches        []wire.AcknowledgementBatch
}

// shownRanges is how many partitions Error lists.
const shownRanges = 4

// Error names the transaction, the source records and the last state seen.
func (e *OutcomeUnknownError) Error() string {
	state := e.State
	if state == "" {
		state = "not to be read"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "outcome of the commit of transactional ID %q (producer ID %d, epoch %d, %d records staged", e.TransactionalID, e.ProducerID, e.ProducerEpoch, e.Records)
	for i, s := range e.Staged {
		if i == shownRanges {
			fmt.Fprintf(&b, ", and of %d more partitions", len(e.Staged)-i)
			break
		}
		if n := len(s.Batches); n > 0 {
			fmt.Fprintf(&b, ", %s offsets %d to %d", s.TopicPartition, s.Batches[0].FirstOffset, s.Batches[n-1].LastOffset)
		}
	}
	fmt.Fprintf(&b, ") is unknown: its state is %s: %v", state, e.Err)
	return b.String()
}

// Unwrap returns what made the outcome unknown.
func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// Token returns the token of the transaction. [Resume] tells from it how the
// transaction ended, as long as no other producer has used the transactional ID.
func (e *OutcomeUnknownError) Token() Token {
	t := Token{
		TransactionalID: e.TransactionalID, ProducerID: e.ProducerID, ProducerEpoch: e.ProducerEpoch,
		ClusterID: e.ClusterID, Dialect: e.Dialect, Created: e.Began, Deadline: e.Deadline,
	}
	for _, s := range e.Staged {
		if !slices.Contains(t.GroupIDs, s.GroupID) {
			t.GroupIDs = append(t.GroupIDs, s.GroupID)
		}
	}
	return t
}

// AbortedError says that the coordinator had aborted the transaction by itself
// when the commit arrived: nothing of it took effect.
type AbortedError struct {
	TransactionalID string
	Err             error // the answer to the commit; nil when it was not sent
}

// Error names the transactional ID.
func (e *AbortedError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("transaction of %q is aborted and cannot be committed", e.TransactionalID)
	}
	return fmt.Sprintf("transaction of %q was aborted by its coordinator: %s", e.TransactionalID, cluster.Name(e.Err))
}

// Unwrap returns the broker's answer to the commit.
func (e *AbortedError) Unwrap() error { return e.Err }

// CommittedError says that a transaction that was to be aborted had been
// committed before: all of it took effect.
type CommittedError struct {
	TransactionalID string
	Err             error // why the abort was refused; nil when it was not sent
}

// Error names the transactional ID.
func (e *CommittedError) Error() string {
	return fmt.Sprintf("transaction of %q is committed and cannot be aborted", e.TransactionalID)
}

// Unwrap returns the broker's answer to the abort.
func (e *CommittedError) Unwrap() error { return e.Err }

// StateError says that a method was called when it may not be. Nothing was sent,
// and everything is as it was before the call.
type StateError struct {
	Op    string // what was asked for, such as "begin transaction"
	State string // why it may not be, such as "one is open"
}

// Error reads "begin transaction: one is open".
func (e *StateError) Error() string { return e.Op + ": " + e.State }

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

// Class is what a caller does about an error of this package.
type Class int8

const (
	// ClassNone: there is no error, and nothing to do about it.
	ClassNone Class = iota
	// ClassAbortable: abort the transaction; the next one may begin. Nothing of
	// the transaction took effect, or will.
	ClassAbortable
	// ClassRetriable: the same call may be made again; it changed nothing.
	ClassRetriable
	// ClassFatal: the producer is at its end, or the program is wrong. What was
	// open is aborted by its successor, or when it times out.
	ClassFatal
	// ClassOutcomeUnknown: a commit or abort was sent, and whether it took effect
	// is not known. Find out before the records are processed again; see
	// [OutcomeUnknownError].
	ClassOutcomeUnknown
)

// String returns the class in words, such as "outcome unknown".
func (c Class) String() string {
	switch c {
	case ClassNone:
		return "none"
	case ClassAbortable:
		return "abortable"
	case ClassRetriable:
		return "retriable"
	case ClassFatal:
		return "fatal"
	case ClassOutcomeUnknown:
		return "outcome unknown"
	}
	return fmt.Sprintf("Class(%d)", int8(c))
}

// Classify says what to do about an error that a method of this package
// returned; nil is [ClassNone]. What it does not know is abortable, the class in
// which nothing is ever lost or doubled.
func Classify(err error) Class {
	if err == nil {
		return ClassNone
	}
	if _, ok := errors.AsType[*OutcomeUnknownError](err); ok {
		return ClassOutcomeUnknown
	}
	for _, is := range []func(error) bool{
		isA[*FencedError], isA[*cluster.UnsupportedError], isA[*cluster.AuthError], isA[*TimeoutRejectedError],
		isA[*StateError], isA[*CommittedError], isA[*TokenError], isA[*NotKnownError],
	} {
		if is(err) {
			return ClassFatal
		}
	}
	for _, is := range []func(error) bool{
		isA[*StageError], isA[*TypeError], isA[*GuardError], isA[*AbortedError], isA[*share.ConflictError],
	} {
		if is(err) {
			return ClassAbortable
		}
	}
	if isA[*cluster.DialError](err) {
		return ClassRetriable
	}
	switch classOf(err) {
	case retriable:
		return ClassRetriable
	case fatal:
		return ClassFatal
	case fenced:
		if errors.Is(err, kerr.InvalidProducerEpoch) {
			return ClassAbortable // it may only be late: the abort tells
		}
		return ClassFatal
	case abortable:
	}
	return ClassAbortable
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// IsFatal reports whether a producer cannot go on after err: it is fenced, not
// authorised, or the cluster does not support (any more) what it does. It is
// [Classify] with the result [ClassFatal].
func IsFatal(err error) bool { return Classify(err) == ClassFatal }

// class is what to do about an error that a broker named (the reference's
// section 9.2).
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
