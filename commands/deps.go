package commands

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/kshare/kshare/output"
	"golang.org/x/term"
)

// Deps is everything that a command gets from the process it runs in. [System]
// fills it from the real one, a test with buffers and a clock of its own. In,
// Out, ErrOut, Getenv and Now are required.
type Deps struct {
	In     io.Reader
	Out    io.Writer // results, nothing else
	ErrOut io.Writer // errors, warnings, progress, prompts

	StdinTTY  bool
	StdoutTTY bool
	StderrTTY bool
	Width     int // columns of the terminal behind Out, 0 if unknown
	// StderrWidth is that of ErrOut's.
	StderrWidth int
	// Size returns the size of the terminal behind Out as it is now, 0 for what is
	// not known. nil knows nothing but Width.
	Size func() (width, height int)

	Getenv  func(string) string
	Environ func() []string // "KEY=value" each; nil is not known
	Now     func() time.Time

	// Notify returns a context that is cancelled, with a *SignalError as its
	// cause, when the process is asked to stop. nil never is. Main calls it for
	// commands that are not over at once, and ends it after the last line.
	Notify func(context.Context) (context.Context, context.CancelFunc)

	// ConfigDir returns the directory for the configuration files of a user; nil
	// is a process that has none.
	ConfigDir func() (string, error)

	// ReadPassword reads a line from the terminal without showing it; nil cannot.
	ReadPassword func() ([]byte, error)

	// StartSandbox starts a sandbox in this process.
	StartSandbox func(context.Context, SandboxConfig) (Sandbox, error)

	flags  *globalFlags    // set by Main, before a command runs
	filter *output.Filter  // of --output-jq; set before a command runs, nil if there is none
	zone   *time.Location  // of times for people; nil is UTC
	ended  context.Context //nolint:containedctx // of the command that runs: it ends a filter that would not
	used   connection      // set when a command connects, for commands to suggest

	clusterID string // of the cluster that the command has connected to
}

// SignalError is the cause of a context that a signal cancelled.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return e.Signal.String() }

// System returns the dependencies of a real process.
func System() Deps {
	size := func() (width, height int) {
		width, height, err := term.GetSize(int(os.Stdout.Fd()))
		if err != nil {
			return 0, 0
		}
		return width, height
	}
	width, _ := size()
	stderrWidth, _, _ := term.GetSize(int(os.Stderr.Fd())) // 0 where it is no terminal
	return Deps{
		In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr,
		StdinTTY:  term.IsTerminal(int(os.Stdin.Fd())),
		StdoutTTY: term.IsTerminal(int(os.Stdout.Fd())),
		StderrTTY: term.IsTerminal(int(os.Stderr.Fd())),
		Width:     width, StderrWidth: stderrWidth,
		Size:      size,
		Getenv:    os.Getenv,
		Environ:   os.Environ,
		Now:       time.Now,
		Notify:    notify,
		ConfigDir: os.UserConfigDir,

		ReadPassword: func() ([]byte, error) { return term.ReadPassword(int(os.Stdin.Fd())) },

		StartSandbox: startSandbox,
	}
}

// sameSignal is how long after the first signal others are taken for the same
// request to stop: coreutils' timeout sends each twice in a row, to its child and
// to their process group.
const sameSignal = 500 * time.Millisecond

// notify cancels the context at the first SIGINT, SIGTERM or SIGHUP and restores
// what these signals do by default after sameSignal, so that the next one ends the
// process at once, whatever it is waiting for. What nohup has started goes on
// without its terminal.
func notify(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(stop, syscall.SIGHUP)
	}
	go func() {
		select {
		case s := <-stop:
			time.AfterFunc(sameSignal, func() { signal.Stop(stop) })
			cancel(&SignalError{Signal: s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(stop)
		cancel(nil)
	}
}
