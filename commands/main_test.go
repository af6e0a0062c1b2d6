package commands_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"gopkg.in/yaml.v3"
)

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   string
		stderr string
	}{
		{"unknown command", "vresion", "kshare: error: unknown command \"vresion\" for \"kshare\"\nkshare: hint: did you mean 'kshare version'?\n"},
		{"unknown subcommand", "sandbox rnu", "kshare: error: unknown command \"rnu\" for \"kshare sandbox\"\nkshare: hint: did you mean 'kshare sandbox run'?\n"},
		{"nothing like it", "sandbox xyzzy", "kshare: error: unknown command \"xyzzy\" for \"kshare sandbox\"\nkshare: hint: 'kshare sandbox --help' lists commands\n"},
		{"unknown flag", "version --nope", "unknown flag: --nope"},
		{"argument", "version x", "unknown command \"x\" for \"kshare version\""},
		{"format", "version -o xml", "want one of table, wide, json, yaml, csv"},
		{"colour", "version --color=blue", "want auto, always or never"},
		{"timeout", "version --timeout=-1s", "want a positive duration"},
		{"no unit", "version --timeout=5", "invalid argument \"5\" for \"--timeout\" flag"},
		{"shell", "completion tcsh", "invalid argument \"tcsh\" for \"kshare completion\""},
		{"help topic", "help nope", "no help about \"nope\""},
		{"man", "man", "nothing to write"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := cmdtest.Run(t, cmdtest.Setup{}, strings.Fields(c.args)...).Want(t, 64)
			if res.Stdout != "" || !strings.Contains(res.Stderr, c.stderr) {
				t.Errorf("stdout %q, stderr %q, want %q on stderr alone", res.Stdout, res.Stderr, c.stderr)
			}
			// The same as JSON, wherever -o json stands.
			for _, args := range [][]string{
				append(strings.Fields(c.args), "-o", "json"),
				append([]string{"--output=json"}, strings.Fields(c.args)...),
			} {
				if c.name == "format" {
					continue
				}
				line := cmdtest.Run(t, cmdtest.Setup{}, args...).Want(t, 64).ErrorLine(t)
				if line["exit_code"] != 64.0 || line["error"] == "" {
					t.Errorf("kshare %v: error %v", args, line)
				}
			}
		})
	}
}

func TestBareParentShowsHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"sandbox"}} {
		res := cmdtest.Run(t, cmdtest.Setup{}, args...).Want(t, 64)
		if res.Stdout != "" || !strings.Contains(res.Stderr, "Commands:\n") || !strings.Contains(res.Stderr, "needs a command") {
			t.Errorf("kshare %v: stdout %q, stderr %q, want help and the reason on stderr", args, res.Stdout, res.Stderr)
		}
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	for _, args := range []string{"--help", "help", "sandbox run --help", "help sandbox run", "help exit-codes", "sandbox -h"} {
		res := cmdtest.Run(t, cmdtest.Setup{}, strings.Fields(args)...).Want(t, 0)
		if res.Stdout == "" || res.Stderr != "" {
			t.Errorf("kshare %s: stdout %q, stderr %q", args, res.Stdout, res.Stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	res := cmdtest.Run(t, cmdtest.Setup{}, "version", "-o", "json").Want(t, 0)
	var doc struct {
		Kind      string
		Version   int
		Time      string
		ClusterID *string `json:"cluster_id"`
		Warnings  []string
		Data      struct{ Version, Go string }
	}
	if err := json.Unmarshal([]byte(res.Stdout), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Kind != "version" || doc.Version != 1 || doc.Time != "2026-11-29T12:00:00Z" || doc.ClusterID != nil || doc.Warnings == nil {
		t.Errorf("envelope %+v", doc)
	}
	if doc.Data.Version == "" || !strings.HasPrefix(doc.Data.Go, "go") {
		t.Errorf("data %+v", doc.Data)
	}
	var y any
	if err := yaml.Unmarshal([]byte(cmdtest.Run(t, cmdtest.Setup{}, "version", "-o", "yaml").Want(t, 0).Stdout), &y); err != nil {
		t.Error(err)
	}
}

func TestColor(t *testing.T) {
	for _, c := range []struct {
		name string
		tty  bool
		env  map[string]string
		args []string
		want bool
	}{
		{"pipe", false, nil, nil, false},
		{"terminal", true, nil, nil, true},
		{"NO_COLOR", true, map[string]string{"NO_COLOR": "1"}, nil, false},
		{"NO_COLOR empty", true, map[string]string{"NO_COLOR": ""}, nil, true},
		{"dumb", true, map[string]string{"TERM": "dumb"}, nil, false},
		{"--no-color", true, nil, []string{"--no-color"}, false},
		{"--color=never", true, nil, []string{"--color=never"}, false},
		{"--color=always", false, map[string]string{"NO_COLOR": "1"}, []string{"--color=always"}, true},
		{"json is never coloured", true, nil, []string{"--color=always", "-o", "json"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"version"}, c.args...)
			res := cmdtest.Run(t, cmdtest.Setup{TTY: c.tty, Env: c.env}, args...).Want(t, 0)
			if got := strings.Contains(res.Stdout, "\x1b"); got != c.want {
				t.Errorf("coloured = %v, want %v: %q", got, c.want, res.Stdout)
			}
		})
	}
}

// stdout may be closed by its reader at any time; that is no reason to speak.
func TestClosedStdout(t *testing.T) {
	for name, err := range map[string]error{"EPIPE": &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}, "in memory": io.ErrClosedPipe} {
		for _, args := range [][]string{{"version"}, {"completion", "bash"}} {
			res := cmdtest.Run(t, cmdtest.Setup{Stdout: failingWriter{err}}, args...).Want(t, 141)
			if res.Stderr != "" {
				t.Errorf("%s: kshare %v says %q", name, args, res.Stderr)
			}
		}
	}
	res := cmdtest.Run(t, cmdtest.Setup{Stdout: failingWriter{syscall.ENOSPC}}, "version").Want(t, 1)
	if !strings.Contains(res.Stderr, "no space left") {
		t.Errorf("a full disk: stderr %q", res.Stderr)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// signalled returns dependencies whose context a signal ends at once.
func signalled(s os.Signal) func(*commands.Deps) {
	return func(d *commands.Deps) {
		d.Notify = func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(&commands.SignalError{Signal: s})
			return ctx, func() {}
		}
	}
}
