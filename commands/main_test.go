package commands_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"go.yaml.in/yaml/v3"
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
		{"a command of another", "pending", "kshare: error: unknown command \"pending\" for \"kshare\"\nkshare: hint: did you mean 'kshare inspect pending'?\n"},
		{"unknown command with flags", "drian --fence all", "kshare: error: unknown command \"drian\" for \"kshare\"\nkshare: hint: did you mean 'kshare drain'?\n"},
		{"flags before it", "-q --timeout 5s inspect pendign --check", "kshare: error: unknown command \"pendign\" for \"kshare inspect\"\nkshare: hint: did you mean 'kshare inspect pending'?\n"},
		{"unknown flag before it", "--nope drian", "kshare: error: unknown flag: --nope\nkshare: hint: 'kshare --help' lists commands, 'kshare COMMAND --help' lists flags\n"},
		{"value of a flag", "--timeout 5s --nope", "kshare: error: unknown flag: --nope\n"},
		{"too few arguments", "inspect partition billing", "kshare: error: \"kshare inspect partition\" needs a group, a topic and a partition, and got 1 argument\nkshare: hint: such as: kshare inspect partition billing orders 0\n"},
		{"unknown flag", "version --nope", "unknown flag: --nope"},
		{"argument", "version x", "\"kshare version\" takes no argument, and got \"x\""},
		{"format", "version -o xml", "want one of table, wide, json, yaml, csv"},
		{"colour", "version --color=blue", "want auto, always or never"},
		{"timeout", "version --timeout=-1s", "want a positive duration"},
		{"no unit", "version --timeout=5", "invalid argument \"5\" for \"--timeout\" flag"},
		{"shell", "completion tcsh", "invalid argument \"tcsh\" for \"kshare completion\""},
		{"help topic", "help nope", "no help about \"nope\""},
		{"global flag of help", "help version --color=blue", "want auto, always or never"},
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
		for _, args := range [][]string{{"version"}, {"completion", "bash"}, {"--help"}, {"help", "version"}} {
			res := cmdtest.Run(t, cmdtest.Setup{Stdout: failingWriter{err}}, args...).Want(t, 141)
			if res.Stderr != "" {
				t.Errorf("%s: kshare %v says %q", name, args, res.Stderr)
			}
		}
	}
	res := cmdtest.Run(t, cmdtest.Setup{Stdout: failingWriter{syscall.ENOSPC}}, "version").Want(t, 1)
	if !strings.Contains(res.Stderr, "no space left") || !strings.Contains(res.Stderr, "hint: only its result could not be written") {
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

// A command that is over at once does not set signals up, which takes a good
// part of its time; all others do, and let go of them in the end.
func TestInstantCommandsLeaveSignalsAlone(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want int
	}{
		{"version", 0, 0},
		{"completion bash", 0, 0},
		{"--help", 0, 0},
		{"help version", 0, 0},
		{"demo --profile none", 64, 1},
	} {
		var caught, released int
		setup := cmdtest.Setup{Change: func(d *commands.Deps) {
			d.Notify = func(ctx context.Context) (context.Context, context.CancelFunc) {
				caught++
				return ctx, func() { released++ }
			}
		}}
		cmdtest.Run(t, setup, strings.Fields(c.args)...).Want(t, c.code)
		if caught != c.want || released != c.want {
			t.Errorf("kshare %s: signals caught %d times and released %d times, want %d", c.args, caught, released, c.want)
		}
	}
}

// memorySandbox is a sandbox that is nowhere.
type memorySandbox struct {
	closed *int
	err    error
}

func (memorySandbox) BootstrapServers() string { return "127.0.0.1:9092" }
func (memorySandbox) ClusterID() string        { return "c1" }
func (memorySandbox) ShareVersion() int16      { return 1 }
func (memorySandbox) ControlAddress() string   { return "127.0.0.1:9999" }

func (memorySandbox) Load(context.Context, string, string, io.Reader) (int64, error) { return 7, nil }

func (s memorySandbox) Close() error {
	*s.closed++
	return s.err
}

func TestSandboxRunEnds(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*commands.Deps)
		args  string
		err   error
		code  int
	}{
		{"SIGINT", signalled(os.Interrupt), "", nil, 0},
		{"SIGTERM", signalled(syscall.SIGTERM), "", nil, 0},
		{"--timeout", nil, "--timeout=1ns", nil, 7},
		{"closing fails", signalled(os.Interrupt), "", errors.New("disk full"), 130},
	} {
		t.Run(c.name, func(t *testing.T) {
			closed := 0
			setup := cmdtest.Setup{Change: func(d *commands.Deps) {
				if c.setup != nil {
					c.setup(d)
				}
				d.StartSandbox = func(context.Context, commands.SandboxConfig) (commands.Sandbox, error) {
					return memorySandbox{&closed, c.err}, nil
				}
			}}
			args := append([]string{"sandbox", "run"}, strings.Fields(c.args)...)
			res := cmdtest.Run(t, setup, args...).Want(t, c.code)
			if res.Stdout != "127.0.0.1:9092\n" {
				t.Errorf("stdout %q, want the bootstrap server alone", res.Stdout)
			}
			if !strings.Contains(res.Stderr, "this is a sandbox") {
				t.Errorf("stderr %q does not say that it is a sandbox", res.Stderr)
			}
			if closed != 1 {
				t.Errorf("closed %d times, want 1", closed)
			}
			if c.err != nil && !strings.Contains(res.Stderr, "disk full") {
				t.Errorf("stderr %q does not say what failed", res.Stderr)
			}
		})
	}
}

func TestSandboxRunDocument(t *testing.T) {
	closed := 0
	setup := cmdtest.Setup{
		Stdin: strings.NewReader("x\n"),
		Change: func(d *commands.Deps) {
			signalled(os.Interrupt)(d)
			d.StartSandbox = func(context.Context, commands.SandboxConfig) (commands.Sandbox, error) {
				return memorySandbox{&closed, nil}, nil
			}
		},
	}
	res := cmdtest.Run(t, setup, "sandbox", "run", "-q", "-o", "json", "--load", "orders=-", "--profile", "draft").Want(t, 0)
	want := `{
  "kind": "sandbox.run",
  "version": 1,
  "cluster_id": "c1",
  "time": "2026-11-29T12:00:00Z",
  "incomplete": false,
  "warnings": [],
  "data": {
    "bootstrap_servers": "127.0.0.1:9092",
    "cluster_id": "c1",
    "profile": "draft",
    "share_version": 1,
    "pending_state": "persisted",
    "data_dir": null,
    "control": "127.0.0.1:9999",
    "loaded": [
      {
        "topic": "orders",
        "file": "-",
        "records": 7
      }
    ]
  }
}
`
	if res.Stdout != want {
		t.Errorf("stdout:\n%s\nwant:\n%s", res.Stdout, want)
	}
	if res.Stderr != "" {
		t.Errorf("stderr %q, want nothing with -q", res.Stderr)
	}
}

func TestSandboxThatDoesNotStart(t *testing.T) {
	setup := cmdtest.Setup{Change: func(d *commands.Deps) {
		d.StartSandbox = func(context.Context, commands.SandboxConfig) (commands.Sandbox, error) {
			return nil, errors.New("port 9092: address already in use")
		}
	}}
	line := cmdtest.Run(t, setup, "sandbox", "run", "-o", "json").Want(t, 1).ErrorLine(t)
	if line["error"] != "port 9092: address already in use" || line["exit_code"] != 1.0 {
		t.Errorf("error %v", line)
	}
}

// A broker that accepts a connection and then says nothing must not keep the
// process from ending.
func TestInterruptedWhileConnecting(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	setup := cmdtest.Setup{Change: func(d *commands.Deps) {
		d.Notify = func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			go func() {
				conn, err := l.Accept()
				if err == nil {
					defer conn.Close()
				}
				cancel(&commands.SignalError{Signal: os.Interrupt})
				<-ctx.Done()
			}()
			return ctx, func() { cancel(nil) }
		}
	}}
	res := cmdtest.Run(t, setup, "ctp", "-b", l.Addr().String(), "--from", "a", "--to", "b", "-o", "json").Want(t, 130)
	if line := res.ErrorLine(t); line["exit_code"] != 130.0 || res.Stdout != "" {
		t.Errorf("error %v, stdout %q", line, res.Stdout)
	}
}
