package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/twmb/franz-go/pkg/kerr"
)

type hintedTestError struct{}

func (hintedTestError) Error() string { return "x" }
func (hintedTestError) Hint() string  { return "do y" }

func TestClassify(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("stage: %w", err) }
	for _, c := range []struct {
		name string
		err  error
		code int
		hint string // a part of it
	}{
		{"none", nil, 0, ""},
		{"anything", errors.New("x"), 1, ""},
		{"its own hint", wrap(hintedTestError{}), 1, "do y"},
		{"the hint of its cause", wrap(&cluster.Error{Op: "x", Broker: -1, Err: hintedTestError{}}), 1, "do y"},
		{"incomplete", errIncomplete, 3, "lacks"},
		{"authorisation", wrap(kerr.GroupAuthorizationFailed), 4, "ACLs"},
		{"authentication", wrap(kerr.SaslAuthenticationFailed), 4, "credentials"},
		{"auth error", wrap(&cluster.AuthError{Err: kerr.GroupAuthorizationFailed, Advice: "grant it"}), 4, "grant it"},
		{"unsupported", wrap(kerr.UnsupportedVersion), 5, ""},
		{"unsupported by the dialect", wrap(&cluster.UnsupportedError{What: "x", Reason: "y"}), 5, ""},
		{"no broker", &cluster.DialError{Err: io.EOF}, 7, ""},
		{"fenced by name", wrap(&txn.FencedError{Err: kerr.InvalidTxnState}), 8, "transactional ID"},
		{"unknown outcome", wrap(&txn.OutcomeUnknownError{Err: context.DeadlineExceeded}), 9, "ask again"},
		{"unknown outcome over the signal", fmt.Errorf("%w: %w", &SignalError{os.Interrupt}, &txn.OutcomeUnknownError{}), 9, ""},
		{"transaction that is not known", wrap(&txn.NotKnownError{}), 9, "look for the transaction's own records"},
		{"token that is none", wrap(&txn.TokenError{Reason: "x"}), 64, ""},
		{"wrong order of calls", wrap(&txn.StateError{Op: "x", State: "y"}), 1, "nothing was sent"},
		{"aborted by its coordinator, which says fenced", wrap(&txn.AbortedError{Err: kerr.ProducerFenced}), 11, "a new transaction"},
		{"aborted before", hintf(&txn.AbortedError{}, "it comes again"), 11, "it comes again"},
		{"committed before", &txn.CommittedError{Err: kerr.InvalidTxnState}, 11, ""},
		{"unknown, on top of an abort", cluster.Join(&txn.AbortedError{}, &txn.OutcomeUnknownError{}), 9, ""},
		{"records that could not be committed", wrap(&ctp.StuckError{Err: &txn.AbortedError{Err: kerr.ProducerFenced}}), 1, "stay in the share group"},
		{"not all offsets", wrap(&ackRefusedError{"x", "wait"}), 6, "wait"},
		{"option of ctp", wrap(&ctp.OptionError{Option: "--to", Reason: "x"}), 64, ""},
		{"transaction timeout", wrap(&txn.TimeoutRejectedError{Err: kerr.InvalidTransactionTimeout}), 64, ""},
		{"deadline", wrap(context.DeadlineExceeded), 7, ""},
		{"--timeout", &timeoutError{"1s"}, 7, ""},
		{"dial", wrap(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), 7, ""},
		{"read is no dial", wrap(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), 1, ""},
		{"fenced", wrap(kerr.ProducerFenced), 8, "transactional ID"},
		{"data directory of another sandbox", sandboxError(wrap(&sandbox.MismatchError{})), 64, "as it was started first"},
		{"data directory in use", sandboxError(wrap(&sandbox.InUseError{})), 1, "another --data-dir"},
		{"data directory not ours", sandboxError(wrap(os.ErrPermission)), 1, "may write to"},
		{"port in use", sandboxError(wrap(&sandbox.PortError{})), 1, "another --port"},
		{"not drained", wrap(&drain.NotDrainedError{Result: &drain.Result{Status: drain.StatusPending}}), 6, "inspect pending"},
		{"drain is out of time", wrap(&drain.TimeoutError{Result: &drain.Result{}}), 7, ""},
		{"acts of a drain", wrap(&drain.PartialError{Result: &drain.Result{}, Failed: []error{kerr.TransactionalIDAuthorizationFailed}}), 3, ""},
		{"act is denied", wrap(&drain.ActError{Err: &cluster.AuthError{Err: kerr.ClusterAuthorizationFailed, Advice: "grant it"}}), 4, "grant it"},
		{"act on a fenced producer", wrap(&drain.ActError{Err: &cluster.Error{Err: kerr.InvalidProducerEpoch}}), 1, ""},
		{"act that a drain does not do", wrap(&drain.RefusedError{Advice: "leave it"}), 6, "leave it"},
		{"coordinator that does not", wrap(&drain.CoordinatorError{Last: kerr.ConcurrentTransactions, Err: context.DeadlineExceeded}), 7, "markers"},
		{"coordinator, and a signal", wrap(&drain.CoordinatorError{Last: kerr.ConcurrentTransactions, Err: &SignalError{os.Interrupt}}), 130, ""},
		{"some of several", wrap(&partlyError{[]error{kerr.TransactionalIDAuthorizationFailed}}), 3, ""},
		{"level is refused", wrap(&feature.UpdateError{Err: kerr.InvalidUpdateVersion}), 1, ""},
		{"level is refused while pending", wrap(&feature.UpdateError{Err: kerr.InvalidUpdateVersion, Pending: make([]inspect.PendingRow, 1)}), 6, "kshare drain"},
		{"--check", wrap(&pendingCheckError{"x"}), 6, ""},
		{"usage", wrap(usagef("x")), 64, ""},
		{"usage with hint", hintf(usagef("x"), "read %s", "this"), 64, "read this"},
		{"SIGINT", &SignalError{os.Interrupt}, 130, ""},
		{"SIGTERM", &SignalError{syscall.SIGTERM}, 143, ""},
		{"closed pipe", wrap(syscall.EPIPE), 141, ""},
		{"signal over what it broke", fmt.Errorf("%w: %w", &SignalError{os.Interrupt}, kerr.ProducerFenced), 130, ""},
	} {
		code, hint := classify(c.err)
		if code != c.code || !strings.Contains(hint, c.hint) {
			t.Errorf("%s: classify(%v) = %d, %q, want %d, %q", c.name, c.err, code, hint, c.code, c.hint)
		}
	}
}

// Every rule ends with a code that the table documents.
func TestExitRulesAreDocumented(t *testing.T) {
	known := map[int]bool{}
	last := -1
	for _, c := range ExitCodes() {
		if c.Code <= last {
			t.Errorf("exit code %d is out of order", c.Code)
		}
		last = c.Code
		known[c.Code] = true
	}
	for _, r := range exitRules() {
		if !known[r.code] {
			t.Errorf("exit code %d has a rule and no meaning", r.code)
		}
	}
}
