//go:build unix

package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/txn"
)

// commands/matrix_test.go has the matrix of all commands. Here are the cells that
// are about a process: signals, a pipe that is closed, and what children are given.

// kshareProcess is a process that has an environment of its own. It ends with the
// test, at the latest.
func kshareProcess(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, stdout, stderr *watched) {
	t.Helper()
	path, err := exec.LookPath("kshare")
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), path, args...)
	home := t.TempDir()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_CONFIG_HOME=" + home, "GORACE=atexit_sleep_ms=50"}, env...)
	stdout, stderr = &watched{}, &watched{}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// dead is a broker that accepts connections and says nothing. heard gets a value at
// each connection, as long as somebody takes them.
func dead(t *testing.T) (addr string, heard <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ch := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}()
	return l.Addr().String(), ch
}

func placeOf(peer string) cmdtest.Place {
	token := txn.Token{TransactionalID: "t", ProducerID: 1, ProducerEpoch: 1, Created: cmdtest.Now()}
	return cmdtest.Place{Peer: peer, Token: token.String(), ID: "t", Offset: "0", File: "main.go"}
}

// Each command that waits for somebody ends by the signal, and says so, though
// nobody answers, there is no --timeout, and stdin is a pipe that stays open.
func TestMatrixSignals(t *testing.T) {
	t.Parallel()
	for _, call := range cmdtest.AllCalls(t) {
		if call.Peer == cmdtest.Nobody && call.Command != "sandbox run" {
			continue // it is over before a signal could come; commands/matrix_test.go
		}
		for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
			addr, heard := dead(t)
			cmd, stdout, stderr := kshareProcess(t, nil, append(call.Args(placeOf(addr)), "-o", "json")...)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			ready := make(chan struct{})
			stdout.want, stdout.found = "}\n", ready // a sandbox is ready, and it is its end
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-heard:
			case <-ready:
				code = 0
			case <-t.Context().Done():
				t.Fatalf("kshare %s is silent", call.Command)
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the code says more
			_ = stdin.Close()
			if got := cmd.ProcessState.ExitCode(); got != code {
				t.Errorf("kshare %s ended with %v after %v, want %d\n%s", call.Command, cmd.ProcessState, sig, code, stderr.Bytes())
				continue
			}
			if code == 0 {
				continue
			}
			if len(stdout.Bytes()) > 0 && !json.Valid(stdout.Bytes()) {
				t.Errorf("kshare %s: stdout is no document:\n%s", call.Command, stdout.Bytes())
			}
			var line struct {
				Kind     string
				ExitCode int `json:"exit_code"`
			}
			if err := json.Unmarshal(stderr.Bytes(), &line); err != nil || line.Kind != "error" || line.ExitCode != code {
				t.Errorf("kshare %s: stderr %q (%v), want one error with exit code %d", call.Command, stderr.Bytes(), err, code)
			}
		}
	}
}

// Into a pipe that nobody reads every command ends with 141, and without a word.
func TestMatrixClosedPipe(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "config.yaml")
	for _, call := range cmdtest.AllCalls(t) {
		if call.Peer != cmdtest.Nobody || call.Command == "demo" {
			continue // the others need a cluster; commands/matrix_test.go
		}
		if err := writeFile(config, []byte("contexts: [{name: a, bootstrap_server: '127.0.0.1:1'}]\n")); err != nil {
			t.Fatal(err)
		}
		cmd, _, stderr := kshareProcess(t, []string{"KSHARE_CONFIG=" + config}, append(call.Args(placeOf("")), "-q", "-o", "json")...)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		cmd.Stdout = w
		_ = cmd.Run() // the code says more
		_ = w.Close()
		if code := cmd.ProcessState.ExitCode(); code != 141 || len(stderr.Bytes()) > 0 {
			t.Errorf("kshare %s into a closed pipe ended with %v and says %q, want 141 without a word", call.Command, cmd.ProcessState, stderr.Bytes())
		}
	}
}

// canary is a secret that nobody may be told.
const canary = "c4n4ry-s3cr3t"

func tells(b []byte) bool {
	return bytes.Contains(b, []byte(canary)) || bytes.Contains(b, []byte(base64.RawStdEncoding.EncodeToString([]byte(canary))))
}

// A program that transforms records, and one that has the password, get the
// environment without kshare's settings, and are told nothing by their arguments.
func TestChildrenAreNotToldSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := func(name string) string { return filepath.Join(dir, name) }
	look := func(name, then string) string {
		return `sh -c "env > ` + seen(name) + `.env; tr '\\0' ' ' < /proc/\$\$/cmdline > ` + seen(name) + `.args; ` + then + `"`
	}
	lines := seen("lines")
	if err := writeFile(lines, []byte("a\n")); err != nil {
		t.Fatal(err)
	}
	env := []string{
		"KSHARE_SASL_PASSWORD=" + canary, "KSHARE_TLS_KEY_PASSWORD=" + canary, "KSHARE_SASL_OAUTH_CLIENT_SECRET=" + canary, "OTHER=kept",
	}
	cmd, stdout, stderr := kshareProcess(t, env, "ctp", "--sandbox", "--load", "in="+lines, "--from", "in", "--to", "out", "--until-empty", "--exec", look("exec", "cat"))
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.Bytes(), stderr.Bytes())
	}
	cmd, stdout, stderr = kshareProcess(t, append(env[1:], "KSHARE_SASL_MECHANISM=PLAIN", "KSHARE_SASL_USER=u"),
		"feature", "describe", "-b", "127.0.0.1:1", "--sasl-password-command", look("password", "echo "+canary))
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("%v\n%s%s", err, stdout.Bytes(), stderr.Bytes())
	}
	for _, name := range []string{"exec", "password"} {
		got, err := os.ReadFile(seen(name) + ".env")
		if err != nil {
			t.Fatal(err)
		}
		if tells(got) || bytes.Contains(got, []byte("KSHARE_")) || !bytes.Contains(got, []byte("OTHER=kept\n")) {
			t.Errorf("the environment of --%s:\n%s\nwant all but KSHARE_ variables", name, got)
		}
	}
	args, err := os.ReadFile(seen("exec") + ".args")
	if err == nil && tells(args) { // other systems than Linux have no such file
		t.Errorf("the arguments of --exec: %s", args)
	}
	if tells(stdout.Bytes()) || tells(stderr.Bytes()) {
		t.Errorf("it tells the secret:\n%s%s", stdout.Bytes(), stderr.Bytes())
	}
}

// What a crash leaves behind has no secret: SIGQUIT makes the same of a process.
func TestCrashDoesNotTellSecrets(t *testing.T) {
	t.Parallel()
	addr, heard := dead(t)
	cmd, stdout, stderr := kshareProcess(t, []string{
		"GOTRACEBACK=all", "KSHARE_SASL_MECHANISM=PLAIN", "KSHARE_SASL_USER=u", "KSHARE_SASL_PASSWORD=" + canary,
	}, "inspect", "pending", "-b", addr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-heard
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the output says more
	if !strings.Contains(string(stderr.Bytes()), "goroutine ") || cmd.ProcessState.ExitCode() != 2 {
		t.Fatalf("it ended with %v:\n%s", cmd.ProcessState, stderr.Bytes())
	}
	if tells(stdout.Bytes()) || tells(stderr.Bytes()) {
		t.Errorf("it tells the secret:\n%s", stderr.Bytes())
	}
}
