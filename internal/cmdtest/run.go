package cmdtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/commands"
)

// Setup is the process that a command believes to run in. The zero value is one
// without terminal, with an empty stdin and environment, at [Now].
type Setup struct {
	Stdin  io.Reader
	Env    map[string]string
	TTY    bool // stdin, stdout and stderr are a terminal of 80 columns
	Stdout io.Writer
	// Change is called with the dependencies before the command runs.
	Change func(*commands.Deps)
}

// Now is the time in every command.
func Now() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }

// Result is what a command did.
type Result struct {
	Args           []string
	Stdout, Stderr string
	Code           int
}

// Run runs a command to its end.
func Run(tb testing.TB, s Setup, args ...string) Result {
	tb.Helper()
	return RunContext(tb, tb.Context(), s, args...)
}

// RunContext is [Run] with a context.
func RunContext(tb testing.TB, ctx context.Context, s Setup, args ...string) Result {
	tb.Helper()
	if s.Stdin == nil {
		s.Stdin = strings.NewReader("")
	}
	var stdout, stderr bytes.Buffer
	out := io.Writer(&stdout)
	if s.Stdout != nil {
		out = s.Stdout
	}
	deps := commands.Deps{
		In: s.Stdin, Out: out, ErrOut: &stderr,
		StdinTTY: s.TTY, StdoutTTY: s.TTY, StderrTTY: s.TTY,
		Getenv:  func(k string) string { return s.Env[k] },
		Environ: func() []string { return environ(s.Env) },
		Now:     Now,
	}
	if s.TTY {
		deps.Width = 80
	}
	if s.Change != nil {
		s.Change(&deps)
	}
	code := commands.Main(ctx, args, deps)
	return Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Code: code}
}

func environ(env map[string]string) []string {
	out := []string{"PATH=" + os.Getenv("PATH")}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// Want fails the test when the command ended with another code.
func (r Result) Want(tb testing.TB, code int) Result {
	tb.Helper()
	if r.Code != code {
		tb.Fatalf("kshare %s ended with %d, want %d\nstdout:\n%s\nstderr:\n%s", strings.Join(r.Args, " "), r.Code, code, r.Stdout, r.Stderr)
	}
	return r
}

// ErrorLine returns the one error on stderr of a command with -o json; any
// other line there must be an object with a kind too.
func (r Result) ErrorLine(tb testing.TB) map[string]any {
	tb.Helper()
	var found map[string]any
	for line := range strings.Lines(r.Stderr) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			tb.Fatalf("kshare %s: line %q on stderr is no JSON object: %v", strings.Join(r.Args, " "), line, err)
		}
		switch m["kind"] {
		case "error":
			if found != nil {
				tb.Fatalf("kshare %s: more than one error on stderr:\n%s", strings.Join(r.Args, " "), r.Stderr)
			}
			found = m
		case nil:
			tb.Fatalf("kshare %s: line %q on stderr has no kind", strings.Join(r.Args, " "), line)
		}
	}
	if found == nil {
		tb.Fatalf("kshare %s: no error on stderr:\n%s", strings.Join(r.Args, " "), r.Stderr)
	}
	return found
}
