package feature

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
)

// RefusedError says that a safety check stopped a change before anything was
// sent to the cluster.
type RefusedError struct {
	Op      string   // such as "lower transaction.version from 2 to 1"
	Reasons []string // sentences without full stops, at least one
	Advice  string   // what to do next
	// Direction and Items are those of the change; zero where it was refused
	// before it was known which.
	Direction Direction
	Items     []Item
	// Transactions are those that stand in the way, if it is transactions, and
	// Pending the records that they hold, the oldest first.
	Transactions []Transaction
	Pending      []inspect.PendingRow
}

// Error reads "op: refused, nothing was sent: reason; reason".
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s: refused, nothing was changed: %s", e.Op, strings.Join(e.Reasons, "; "))
}

// Hint returns what to do next.
func (e *RefusedError) Hint() string { return e.Advice }

// ErrorKeys returns feature, levels and direction, if the change is of one
// feature.
func (e *RefusedError) ErrorKeys() *ErrorKeys {
	if len(e.Items) != 1 {
		return nil
	}
	return keysOf(e.Items[0], e.Direction, "")
}

// LevelError says that no broker supports a level.
type LevelError struct {
	Change Item
	Asked  Direction
	Err    *cluster.UnsupportedError
}

// Error is that of Err.
func (e *LevelError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *LevelError) Unwrap() error { return e.Err }

// ErrorKeys returns feature, levels and direction.
func (e *LevelError) ErrorKeys() *ErrorKeys { return keysOf(e.Change, e.Asked, "") }

// DirectionError says that a level lies the other way: an upgrade was asked for
// and it is lower than the level in force, or the reverse.
type DirectionError struct {
	Change Item
	Asked  Direction
}

// Error names the feature, both levels and the direction.
func (e *DirectionError) Error() string {
	return fmt.Sprintf("%s is at level %s, so level %s is %s and not %s", e.Change.Feature,
		e.Change.fromText(), levelText(e.Change.Feature, e.Change.To),
		withArticle(e.Asked.other()), withArticle(e.Asked))
}

// Hint names the other command.
func (e *DirectionError) Hint() string {
	return fmt.Sprintf("'kshare feature %s %s=%d'", e.Asked.other(), e.Change.Feature, e.Change.To)
}

func withArticle(d Direction) string {
	if d == Upgrade {
		return "an upgrade"
	}
	return "a downgrade"
}

// ErrorKeys returns what a program wants to know of the change.
func (e *DirectionError) ErrorKeys() *ErrorKeys { return keysOf(e.Change, e.Asked, "") }

// UpdateError says that the cluster refused a change. It wraps the broker's
// error.
type UpdateError struct {
	Direction Direction
	Items     []Item // all that were asked for, sorted by feature
	// Culprit is the feature that the broker names; "" when it names none.
	Culprit string
	Broker  int32
	Err     error  // a *kerr.Error
	Message string // the broker's own text, "" when it gave none
	// Pending are the records in TX_PENDING, the oldest first, where the level was
	// to be lowered that allows them. Whether they are why, the broker has to say.
	Pending []inspect.PendingRow
}

// Error reads "lower share.version from 2 to 1: broker 0: CODE (text)".
func (e *UpdateError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: broker %d: %s", describeItems(e.Direction, e.Items), e.Broker, cluster.Name(e.Err))
	if e.Message != "" {
		fmt.Fprintf(&b, " (%s)", e.Message)
	}
	return b.String()
}

// reason is the broker's own text, or the name of its error if it gave none.
func (e *UpdateError) reason() string {
	if e.Message == "" {
		return cluster.Name(e.Err)
	}
	return e.Message
}

// Unwrap returns the broker's error.
func (e *UpdateError) Unwrap() error { return e.Err }

// BrokerID returns the broker that answered.
func (e *UpdateError) BrokerID() int32 { return e.Broker }

// Hint returns what to do next.
func (e *UpdateError) Hint() string {
	switch {
	case errors.Is(e.Err, kerr.ClusterAuthorizationFailed):
		return "grant ALTER on the cluster to this principal"
	case len(e.Pending) > 0:
		return "records are pending in transactions: see kshare inspect pending; kshare drain waits until none is, or ends them"
	case errors.Is(e.Err, kerr.InvalidUpdateVersion), errors.Is(e.Err, kerr.FeatureUpdateFailed):
		return "'kshare feature describe -o wide' shows which levels each broker supports; nothing stronger was tried"
	}
	return ""
}

// ErrorKeys returns feature, levels, direction and the broker's reason, if it is
// clear which feature was refused.
func (e *UpdateError) ErrorKeys() *ErrorKeys {
	i := slices.IndexFunc(e.Items, func(it Item) bool { return len(e.Items) == 1 || it.Feature == e.Culprit })
	if i < 0 {
		return nil
	}
	return keysOf(e.Items[i], e.Direction, e.Message)
}

// ErrorKeys are what a program wants to know of a change that failed.
type ErrorKeys struct {
	Feature   string    `json:"feature"`
	From      *int16    `json:"from_level"` // nil when it is not known
	To        int16     `json:"to_level"`
	Direction Direction `json:"direction"`
	// Reason is the broker's own text; nil when none was asked or it gave none.
	Reason *string `json:"reason"`
}

func keysOf(it Item, d Direction, reason string) *ErrorKeys {
	k := &ErrorKeys{Feature: it.Feature, From: it.From, To: it.To, Direction: d}
	if reason != "" {
		k.Reason = &reason
	}
	return k
}

// NotConfirmedError says that the controller took a change, and that not all
// brokers showed it before the deadline.
type NotConfirmedError struct {
	Op      string
	Waiting []string // what is missing, a sentence each
	Err     error    // why the wait ended
}

// Error says what is missing.
func (e *NotConfirmedError) Error() string {
	return fmt.Sprintf("%s: the controller took it, and waiting for all brokers ended (%v): %s", e.Op, e.Err, strings.Join(e.Waiting, "; "))
}

// Unwrap returns why the wait ended.
func (e *NotConfirmedError) Unwrap() error { return e.Err }

// Hint returns what to do next.
func (e *NotConfirmedError) Hint() string {
	return "the levels are changed; 'kshare feature describe -o wide' shows which broker has yet to learn of it"
}

// LostAnswerError says that a change was sent and no answer came, and that the
// cluster does not have the levels.
type LostAnswerError struct {
	Op     string
	Broker int32
	Err    error
}

// Error says that the outcome is open.
func (e *LostAnswerError) Error() string {
	return fmt.Sprintf("%s: broker %d: the request was sent and its answer lost, and the levels are not changed yet: %v", e.Op, e.Broker, e.Err)
}

// Unwrap returns why there was no answer.
func (e *LostAnswerError) Unwrap() error { return e.Err }

// BrokerID returns the broker that was asked.
func (e *LostAnswerError) BrokerID() int32 { return e.Broker }

// Hint returns what to do next.
func (e *LostAnswerError) Hint() string {
	return "it may still take effect; run the command again, which changes nothing that is already so"
}

// PartialError says that a broker before Kafka 4.0, where a request is not
// atomic, made some changes of a request and refused others.
type PartialError struct {
	Op      string
	Refused []*UpdateError // one for each feature that was refused
}

// Error lists what was refused.
func (e *PartialError) Error() string {
	parts := make([]string, 0, len(e.Refused))
	for _, r := range e.Refused {
		parts = append(parts, r.Error())
	}
	return e.Op + ": partly done: " + strings.Join(parts, "; ")
}

// Unwrap returns the refusals.
func (e *PartialError) Unwrap() []error {
	out := make([]error, 0, len(e.Refused))
	for _, r := range e.Refused {
		out = append(out, r)
	}
	return out
}

// RacedError says that a level was lowered, and that records became pending, or
// transactions were begun, which suffer from it between the last look and the
// change.
type RacedError struct {
	Op string
	// Holders are who holds the records, Transactions the open transactions, those
	// of holders among them.
	Holders      []drain.Step
	Transactions []Transaction
	Pending      []inspect.PendingRow // the oldest first
}

// Error names the owners.
func (e *RacedError) Error() string {
	names := holderNames(e.Holders)
	if names == "" {
		names = ids(e.Transactions)
	}
	return fmt.Sprintf("%s: done, but raced: %s after the last look: %s", e.Op,
		count(max(len(e.Holders), len(e.Transactions)), "transaction was begun", "transactions were begun"), names)
}

// Hint returns what to do next.
func (e *RacedError) Hint() string {
	return "raise the level again, so that these transactions can end, stop the producers, and repeat the downgrade"
}
