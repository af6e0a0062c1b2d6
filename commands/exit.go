package commands

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/twmb/franz-go/pkg/kerr"
)

// The exit codes. They are an interface: a script may rely on them, and none is
// ever given another meaning.
const (
	exitDone           = 0
	exitFailed         = 1
	exitPartial        = 3
	exitAuth           = 4
	exitUnsupported    = 5
	exitRefused        = 6
	exitDeadline       = 7
	exitFenced         = 8
	exitUnknownOutcome = 9
	exitChanged        = 10
	exitOtherwise      = 11
	exitUsage          = 64
	exitInterrupted    = 130
	exitClosedPipe     = 141
	exitTerminated     = 143
)

// ExitCode is one exit code and what it tells a script.
type ExitCode struct {
	Code    int
	Meaning string
}

// ExitCodes returns all exit codes that kshare can end with, ascending. The
// slice is the caller's.
func ExitCodes() []ExitCode {
	return []ExitCode{
		{exitDone, "done, or already so"},
		{exitFailed, "failed"},
		{exitPartial, "partly done, or the answer is incomplete"},
		{exitAuth, "not authenticated or not authorised"},
		{exitUnsupported, "not supported by this cluster"},
		{exitRefused, "stopped by a safety check"},
		{exitDeadline, "deadline passed, or no broker could be reached"},
		{exitFenced, "fenced by another producer"},
		{exitUnknownOutcome, "the outcome of a commit is unknown"},
		{exitChanged, "changed (only with --detailed-exitcode)"},
		{exitOtherwise, "the transaction has ended the other way: aborted, or committed"},
		{exitUsage, "wrong usage or configuration"},
		{exitInterrupted, "interrupted (SIGINT)"},
		{exitClosedPipe, "the reader of stdout closed it"},
		{exitTerminated, "terminated (SIGTERM, or SIGHUP: the terminal is gone)"},
	}
}

// exitRule says which errors end with a code, and what to do about them. An
// error that is a hinter brings a better hint itself.
type exitRule struct {
	code  int
	match func(error) bool
	hint  string
}

// exitRules is the one place where errors become exit codes. The first rule
// that matches decides, so what a script most needs to know comes first: a
// commit with an unknown outcome stays one when it was a signal that cut it.
// An error that no rule matches is exitFailed.
//
// A package says what happened by a sentinel or a type of its own; it gets a
// row here by isAny(pkg.ErrX) or isA[*pkg.XError]().
func exitRules() []exitRule {
	return []exitRule{
		{exitUnknownOutcome, isA[*txn.NotKnownError](), ""},
		{exitUnknownOutcome, isA[*txn.OutcomeUnknownError](), "records and acknowledgements share the outcome; ask again with the transactional ID above before the batch is repeated"},
		{exitUsage, anyOf(isA[*usageError](), isA[*ctp.OptionError](), isA[*txn.TimeoutRejectedError](), isA[*txn.TokenError](),
			isA[*sandbox.AddressError](), isA[*sandbox.MismatchError](),
			isA[*cluster.ListenerError](), isA[*cluster.ConfigError](),
			isA[*config.Error](), isA[*auth.ConfigError](), isA[*feature.DirectionError]()), ""},
		{exitClosedPipe, isAny(syscall.EPIPE, errClosedPipe), ""},
		{exitInterrupted, isSignal(os.Interrupt), ""},
		{exitTerminated, anyOf(isSignal(syscall.SIGTERM), isSignal(syscall.SIGHUP)), ""},
		{exitChanged, isAny(errChanged), ""},
		{exitPartial, anyOf(isA[*feature.PartialError](), isA[*feature.RacedError](), isA[*drain.PartialError](), isA[*partlyError]()), ""},
		{exitPartial, isAny(errIncomplete), "the result on stdout lacks what could not be read"},
		// Before those who fence: what a coordinator answers about a transaction that it
		// has aborted itself is called PRODUCER_FENCED too.
		{exitFailed, func(err error) bool { return isA[*ctp.StuckError]()(err) && endedOtherwise(err) }, ""},
		{exitOtherwise, endedOtherwise, "how it ended does not change any more; to try again needs a new transaction"},
		{exitFenced, anyOf(isA[*txn.FencedError](), isAny(
			kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping,
		)), "another producer uses the same transactional ID; give each process its own"},
		{exitAuth, anyOf(isA[*cluster.AuthError](), isA[*auth.CredentialError](), isAny(
			kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
			kerr.ClusterAuthorizationFailed, kerr.GroupAuthorizationFailed,
			kerr.TopicAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed,
			kerr.DelegationTokenAuthDisabled, kerr.SecurityDisabled,
		)), "check the credentials, and the ACLs of this principal"},
		{exitRefused, anyOf(isA[*feature.RefusedError](), isA[*drain.RefusedError](), isA[*drain.NotDrainedError](),
			isA[*ctp.RefusedError](), isA[*pendingCheckError](), isA[*inspect.AlertError](), isA[*inspect.UndecidedError](), isA[*ackRefusedError](), isPendingUpdate), ""},
		{exitUnsupported, anyOf(isA[*cluster.UnsupportedError](), isAny(kerr.UnsupportedVersion)), ""},
		{exitDeadline, anyOf(isA[*cluster.DialError](), isA[*cluster.NoBrokersError](), isA[*feature.NotConfirmedError](), isA[*ctp.StalledError](), isDeadline), ""},
		{exitFailed, isA[*txn.StateError](), "nothing was sent, and everything is as it was"},
	}
}

// classify returns the exit code of err and the hint that goes with it.
func classify(err error) (code int, hint string) {
	if err == nil {
		return exitDone, ""
	}
	code = exitFailed
	for _, r := range exitRules() {
		if r.match(err) {
			code, hint = r.code, r.hint
			break
		}
	}
	if u, ok := errors.AsType[*txn.OutcomeUnknownError](err); ok && u.Token().String() != "" {
		hint = outcomeHint(u)
	}
	if own := ownHint(err); own != "" {
		hint = own
	}
	return code, hint
}

// ownHint is the hint of the outermost error that has one. One that could have one
// and has none may wrap another that has.
func ownHint(err error) string {
	for {
		h, ok := errors.AsType[hinter](err)
		if !ok {
			return ""
		}
		if hint := h.Hint(); hint != "" {
			return hint
		}
		err = errors.Unwrap(h)
	}
}

// outcomeHint is the command that finds out, with the token that it needs.
func outcomeHint(e *txn.OutcomeUnknownError) string {
	return fmt.Sprintf("records and acknowledgements share the outcome; before anything else uses the transactional ID, "+
		"'kshare txn describe %[1]s' tells it, and 'kshare txn resume %[1]s --commit' commits what is still open", e.Token())
}

// hinter is an error that knows what to do next. Packages implement it without
// knowing of this one.
type hinter interface {
	error
	Hint() string
}

// brokerError is an error that knows which broker it came from; -1 is none.
type brokerError interface {
	error
	BrokerID() int32
}

// changeError is an error about a change of features; nil keys are none.
type changeError interface {
	error
	ErrorKeys() *feature.ErrorKeys
}

func isAny(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

func isA[E error]() func(error) bool {
	return func(err error) bool {
		_, ok := errors.AsType[E](err)
		return ok
	}
}

func anyOf(matches ...func(error) bool) func(error) bool {
	return func(err error) bool {
		return slices.ContainsFunc(matches, func(m func(error) bool) bool { return m(err) })
	}
}

func isSignal(s os.Signal) func(error) bool {
	return func(err error) bool {
		e, ok := errors.AsType[*SignalError](err)
		return ok && e.Signal == s
	}
}

// isPendingUpdate holds where a broker refused to lower a level, and records are
// pending that would suffer.
func isPendingUpdate(err error) bool {
	e, ok := errors.AsType[*feature.UpdateError](err)
	return ok && len(e.Pending) > 0
}

// endedOtherwise holds for a transaction that is known to be aborted where it was to
// be committed, or the other way.
func endedOtherwise(err error) bool {
	return isA[*txn.AbortedError]()(err) || isA[*txn.CommittedError]()(err)
}

// isDeadline holds for a deadline that passed and for a broker that could not
// be reached, which to a script is the same: try again later.
func isDeadline(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// errIncomplete ends a command with exitPartial after its result was shown.
var errIncomplete = errors.New("the result is incomplete")

// partlyError says that some of what a command was to do is done, and some failed.
type partlyError struct{ failed []error }

func (e *partlyError) Error() string   { return "partly done: " + cluster.Join(e.failed...).Error() }
func (e *partlyError) Unwrap() []error { return e.failed }

// errChanged ends a command that has done its work with exitChanged. It is
// nothing to print.
var errChanged = errors.New("changed")

// errClosedPipe is what a write to stdout fails with when its reader is gone,
// on systems without EPIPE as well.
var errClosedPipe = errors.New("stdout is closed")

// usageError is a mistake on the command line or in the configuration. help is
// set where the help text says more than the message.
type usageError struct {
	msg  string
	help string
}

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error {
	return &usageError{msg: fmt.Sprintf(format, args...)}
}

// hintedError adds to an error what to do next.
type hintedError struct {
	err  error
	hint string
}

func (e *hintedError) Error() string { return e.err.Error() }
func (e *hintedError) Unwrap() error { return e.err }
func (e *hintedError) Hint() string  { return e.hint }

func hintf(err error, format string, args ...any) error {
	return &hintedError{err: err, hint: fmt.Sprintf(format, args...)}
}

// errorLine is an error on stderr with -o json.
type errorLine struct {
	Kind               string  `json:"kind"`
	Error              string  `json:"error"`
	KafkaError         *string `json:"kafka_error"`
	Broker             *int32  `json:"broker"`
	Hint               *string `json:"hint"`
	ExitCode           int     `json:"exit_code"`
	*feature.ErrorKeys         // of a change of features, otherwise absent
}

// report prints err, if there is anything to print, and returns the exit code.
func (d *Deps) report(err error) int {
	code, hint := classify(err)
	if code == exitDone || code == exitClosedPipe || code == exitChanged {
		return code
	}
	if d.flags.Output == output.FormatJSON {
		d.printLine(errorLineOf(err, code, hint))
		return code
	}
	s := output.NewStyler(d.color(d.StderrTTY))
	if u, ok := errors.AsType[*usageError](err); ok && u.help != "" {
		fmt.Fprintln(d.ErrOut, strings.TrimRight(u.help, "\n"))
		fmt.Fprintln(d.ErrOut)
	}
	d.say(s.Render(output.StyleBad, "error:"), err.Error())
	if hint != "" {
		d.say(s.Render(output.StyleKey, "hint:"), hint)
	}
	return code
}

func errorLineOf(err error, code int, hint string) errorLine {
	line := errorLine{Kind: "error", Error: err.Error(), ExitCode: code}
	if k, ok := errors.AsType[*kerr.Error](err); ok {
		line.KafkaError = &k.Message
	}
	if b, ok := errors.AsType[brokerError](err); ok && b.BrokerID() >= 0 {
		line.Broker = new(b.BrokerID())
	}
	if hint != "" {
		line.Hint = &hint
	}
	if c, ok := errors.AsType[changeError](err); ok {
		line.ErrorKeys = c.ErrorKeys()
	}
	return line
}

// exitCodeHelp returns the lines that help texts have about those codes.
func exitCodeHelp(codes []int) string {
	var b strings.Builder
	for _, c := range ExitCodes() {
		for _, want := range codes {
			if c.Code == want {
				fmt.Fprintf(&b, "  %-4s %s\n", strconv.Itoa(c.Code), c.Meaning)
				break
			}
		}
	}
	return strings.TrimRight(b.String(), "\n")
}
