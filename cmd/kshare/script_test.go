//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kshare": main})
}

// TestScript runs testdata/script: end-to-end runs of the binary, one sandbox a
// script where it needs one. Read in order they are the manual.
func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		Deadline:            time.Now().Add(2 * time.Minute),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Values[envKey{}] = env
			env.Values[processesKey{}] = map[string]*process{}
			examples, err := filepath.Abs("../../examples")
			env.Setenv("EXAMPLES", examples)
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exitcode": cmdExitcode,
			"sandbox":  cmdSandbox,
			"signal":   cmdSignal,
		},
	})
}

type (
	envKey       struct{}
	processesKey struct{}
)

// cmdExitcode runs a command that has to end with a code:
//
//	exitcode 64 kshare feature
func cmdExitcode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode CODE PROGRAM [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("%v ended with %d, want %d", args[1:], got, want)
	}
}

// process is a kshare that runs beside the script.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan error // gets the result of Wait once
}

// cmdSandbox starts "kshare sandbox run -o json" and returns when it is ready.
// The document it prints becomes the file NAME.json, its bootstrap servers the
// variable NAME, the port of the first of them NAME_PORT:
//
//	sandbox CLUSTER --topic orders
func cmdSandbox(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: sandbox NAME [FLAG...]")
	}
	name := args[0]
	path, err := exec.LookPath("kshare")
	ts.Check(err)
	p := &process{done: make(chan error, 1)}
	p.cmd = exec.Command(path, append([]string{"sandbox", "run", "-o", "json"}, args[1:]...)...)
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = ts.Value(envKey{}).(*testscript.Env).Vars
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(p.cmd.Start())
	ts.Defer(func() { _ = p.cmd.Process.Kill() })
	var doc struct {
		Data struct {
			BootstrapServers string `json:"bootstrap_servers"`
		}
	}
	var raw json.RawMessage
	err = json.NewDecoder(stdout).Decode(&raw)
	go func() {
		_, _ = io.Copy(io.Discard, stdout) // Wait closes the pipe
		p.done <- p.cmd.Wait()
	}()
	if err != nil {
		<-p.done
		ts.Fatalf("sandbox %s did not start: %v\n%s", name, err, p.stderr.Bytes())
	}
	ts.Check(json.Unmarshal(raw, &doc))
	first, _, _ := strings.Cut(doc.Data.BootstrapServers, ",")
	_, port, err := net.SplitHostPort(first)
	ts.Check(err)
	ts.Setenv(name, doc.Data.BootstrapServers)
	ts.Setenv(name+"_PORT", port)
	ts.Check(writeFile(ts.MkAbs(name+".json"), append(raw, '\n')))
	ts.Value(processesKey{}).(map[string]*process)[name] = p
}

// cmdSignal sends a signal to a process of cmdSandbox and waits for it to end
// with a code; its stderr becomes the file NAME.err:
//
//	signal CLUSTER TERM 0
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: signal NAME {INT | TERM | KILL} CODE")
	}
	sig, ok := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}[args[1]]
	p := ts.Value(processesKey{}).(map[string]*process)[args[0]]
	want, err := strconv.Atoi(args[2])
	if !ok || p == nil || err != nil {
		ts.Fatalf("signal %v: no such signal, process or code", args)
	}
	ts.Check(p.cmd.Process.Signal(sig))
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		ts.Fatalf("%s has not ended a minute after the signal\n%s", args[0], p.stderr.Bytes())
	}
	ts.Check(writeFile(ts.MkAbs(args[0]+".err"), p.stderr.Bytes()))
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("%s ended with %d, want %d\n%s", args[0], got, want, p.stderr.Bytes())
	}
}

func writeFile(path string, b []byte) error { return os.WriteFile(path, b, 0o600) }
