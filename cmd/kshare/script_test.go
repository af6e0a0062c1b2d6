//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/schematest"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"kshare": main, "stuck": stuck, "flaky": flaky})
}

// tests are run where this is not one of the commands that they start.
type tests struct{ *testing.M }

// Run runs them. Most of what is tested here waits: for quiet periods, for timeouts,
// for other processes. So more than one test a core runs at a time, unless -parallel
// says how many.
func (m tests) Run() int {
	if !flag.Parsed() { // what is asked for counts
		if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	// Under nohup a hang-up is ignored, and by the programs that are started too;
	// what is caught has its default action in them.
	if signal.Ignored(syscall.SIGHUP) {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	return m.M.Run()
}

// stuck is a command that does not end when it is asked to.
func stuck() {
	d := commands.System()
	ctx, stop := d.Notify(context.Background())
	defer stop()
	fmt.Fprintln(d.Out, "ready")
	<-ctx.Done()
	fmt.Fprintln(d.Out, context.Cause(ctx))
	_, _ = io.Copy(d.Out, d.In) // what it is told shows that it is there
	select {}
}

// The first signal asks, and one that comes later ends the process.
func TestLaterSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	p := startStuck(t)
	p.interrupt(t)
	if p.says(t) != "interrupt" {
		t.Fatal("it does not say that it was interrupted")
	}
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-ended: // the status says more
			if ws := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGINT {
				t.Errorf("it ended with %v, want to be killed by a later SIGINT", p.cmd.ProcessState)
			}
			return
		case <-again.C:
			_ = p.cmd.Process.Signal(os.Interrupt) // it may have ended meanwhile
		}
	}
}

// A terminal that goes away ends what was not started to outlive it.
func TestHangUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command []string
		want    string
	}{
		"in a terminal": {[]string{"stuck"}, "hangup"},
		"with nohup":    {[]string{"sh", "-c", `trap "" HUP; exec stuck`}, "interrupt"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startStuck(t, c.command...)
			if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			if c.want == "interrupt" {
				p.interrupt(t)
			}
			if got := p.says(t); got != c.want {
				t.Errorf("it ends for %q, want %q", got, c.want)
			}
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		})
	}
}

// What sends a signal to a program and to its process group, as coreutils' timeout
// does, asks once.
func TestSignalSentTwiceIsOne(t *testing.T) {
	t.Parallel()
	// Had this test to wait for a processor between the two, they would be two. It
	// is then done again.
	for range 10 {
		p := startStuck(t)
		begin := time.Now()
		p.interrupt(t)
		if p.says(t) != "interrupt" {
			t.Fatal("it does not say that it was interrupted")
		}
		p.interrupt(t)
		took := time.Since(begin)
		alive := true
		for range 100 { // it takes a moment to die
			_, err := io.WriteString(p.in, "what now?\n")
			alive = alive && err == nil && p.says(t) == "what now?"
		}
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		switch {
		case alive:
			return
		case took < 400*time.Millisecond:
			t.Fatalf("it ended with %v, of a signal that came %v after the first", p.cmd.ProcessState, took)
		}
	}
	t.Fatal("no two signals could be sent in a row")
}

// stuckProcess is a process that runs stuck.
type stuckProcess struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// startStuck starts stuck, by a command that ends up in it if one is given, and
// returns when it is ready.
func startStuck(t *testing.T, command ...string) *stuckProcess {
	t.Helper()
	if len(command) == 0 {
		command = []string{"stuck"}
	}
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &stuckProcess{cmd: cmd, in: stdin, out: bufio.NewScanner(stdout)}
	if p.says(t) != "ready" {
		t.Fatal("it does not say that it is ready")
	}
	return p
}

func (p *stuckProcess) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
}

// says returns the next line of it, "" if there is none.
func (p *stuckProcess) says(t *testing.T) string {
	t.Helper()
	if !p.out.Scan() {
		return ""
	}
	return p.out.Text()
}

// A reader that goes away is told by a code, not by death.
func TestClosedPipeEndsWith141(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("kshare")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"version"}, {"--help"}, {"demo", "--timeout", "1m"}} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Stdout = w
		err = cmd.Run()
		_ = w.Close()
		if code := cmd.ProcessState.ExitCode(); code != 141 {
			t.Errorf("kshare %v into a closed pipe ended with %v (%v), want exit code 141", args, cmd.ProcessState, err)
		}
	}
}

// scripts has the end-to-end runs of the binary.
const scripts = "testdata/script"

// TestScript runs testdata/script, one sandbox a script where it needs one. Read
// in order they are the manual.
func TestScript(t *testing.T) {
	t.Parallel()
	p := scriptParams(nil)
	p.Dir = scripts
	testscript.Run(t, p)
}

// scriptParams says how scripts run: on sandboxes of their own, or on k if it is
// not nil. The conditions [sandbox] and [kafka] tell them which of the two it is.
func scriptParams(k *scriptKafka) testscript.Params {
	sandbox := cmdSandbox
	if k != nil {
		sandbox = k.cmdSandbox
	}
	return testscript.Params{
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Values[envKey{}] = env
			env.Values[processesKey{}] = map[string]*process{}
			env.Values[transactionsKey{}] = openTransactions{}
			examples, err := filepath.Abs("../../examples")
			env.Setenv("EXAMPLES", examples)
			// The race detector lets every process sleep for a second before it
			// exits, and a runbook is made of many.
			env.Setenv("GORACE", "atexit_sleep_ms=50")
			return err
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "sandbox":
				return k == nil, nil
			case "kafka":
				return k != nil, nil
			}
			return false, fmt.Errorf("no such condition: %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"begin":     cmdBegin,
			"commit":    cmdCommit,
			"consumers": cmdConsumers,
			"exitcode":  cmdExitcode,
			"member":    cmdMember,
			"sandbox":   sandbox,
			"schema":    cmdSchema,
			"signal":    cmdSignal,
			"stage":     cmdStage,
			"start":     cmdStart,
		},
	}
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

var schemas = sync.OnceValues(func() (schematest.Schemas, error) { return schematest.Load("../../docs/json") })

// cmdSchema fails unless a file, or stdout or stderr of the last command, holds
// documents of a kind, one or more, as its schema has them:
//
//	schema stdout version
func cmdSchema(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: schema {stdout | stderr | FILE} KIND")
	}
	all, err := schemas()
	ts.Check(err)
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	n := 0
	for ; dec.More(); n++ {
		var doc json.RawMessage
		ts.Check(dec.Decode(&doc))
		kind, err := all.Check(doc)
		ts.Check(err)
		if kind != args[1] {
			ts.Fatalf("%s has a document of kind %q, want %q", args[0], kind, args[1])
		}
	}
	if n == 0 {
		ts.Fatalf("%s has no document", args[0])
	}
}

// process is a kshare that runs beside the script.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr watched
	done           chan struct{} // closed when it has ended
}

// watched keeps what is written to it, and says when something wanted was.
type watched struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	want  string
	found chan struct{}
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if w.want != "" && strings.Contains(w.buf.String(), w.want) {
		w.want = ""
		close(w.found)
	}
	return len(b), nil
}

func (w *watched) Bytes() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Clone(w.buf.Bytes())
}

// start starts kshare and returns when it has written the one to stdout or the
// other to stderr; "" is not waited for.
func start(ts *testscript.TestScript, name, onStdout, onStderr string, args ...string) *process {
	path, err := exec.LookPath("kshare")
	ts.Check(err)
	found := make(chan struct{})
	p := &process{done: make(chan struct{})}
	p.stdout.want, p.stdout.found = onStdout, found
	p.stderr.want, p.stderr.found = onStderr, found
	p.cmd = exec.Command(path, args...)
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = ts.Value(envKey{}).(*testscript.Env).Vars
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	ts.Check(p.cmd.Start())
	ts.Defer(func() { _ = p.cmd.Process.Kill() })
	go func() {
		_ = p.cmd.Wait() // the script looks at the code
		close(p.done)
	}()
	ts.Value(processesKey{}).(map[string]*process)[name] = p
	select {
	case <-found:
	case <-p.done:
		ts.Fatalf("%s ended before it was ready\n%s%s", name, p.stdout.Bytes(), p.stderr.Bytes())
	case <-time.After(time.Minute):
		ts.Fatalf("%s was not ready after a minute\n%s%s", name, p.stdout.Bytes(), p.stderr.Bytes())
	}
	return p
}

// cmdStart starts a kshare beside the script and waits until its stderr has a
// text:
//
//	start COPY 'running on a sandbox' ctp --sandbox --from a --to b
func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME TEXT ARG...")
	}
	start(ts, args[0], "", args[1], args[2:]...)
}

// cmdSandbox starts "kshare sandbox run -o json" and returns when it is ready.
// The document it prints becomes the file NAME.json, its bootstrap servers the
// variable NAME, the port of the first of them NAME_PORT, the control address
// NAME_CONTROL:
//
//	sandbox CLUSTER --topic orders
func cmdSandbox(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: sandbox NAME [FLAG...]")
	}
	name := args[0]
	p := start(ts, name, "\n}\n", "", append([]string{"sandbox", "run", "-o", "json"}, args[1:]...)...)
	var doc struct {
		Data struct {
			BootstrapServers string `json:"bootstrap_servers"`
			Control          string `json:"control"`
		}
	}
	ts.Check(json.Unmarshal(p.stdout.Bytes(), &doc))
	first, _, _ := strings.Cut(doc.Data.BootstrapServers, ",")
	_, port, err := net.SplitHostPort(first)
	ts.Check(err)
	ts.Setenv(name, doc.Data.BootstrapServers)
	ts.Setenv(name+"_PORT", port)
	ts.Setenv(name+"_CONTROL", doc.Data.Control)
	ts.Check(writeFile(ts.MkAbs(name+".json"), p.stdout.Bytes()))
}

// cmdSignal sends a signal to a process of start or sandbox and waits for it to
// end with a code; its output becomes the files NAME.out and NAME.err:
//
//	signal CLUSTER TERM 0
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: signal NAME {INT | TERM | HUP | KILL} CODE")
	}
	sig, ok := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}[args[1]]
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
	ts.Check(writeFile(ts.MkAbs(args[0]+".out"), p.stdout.Bytes()))
	ts.Check(writeFile(ts.MkAbs(args[0]+".err"), p.stderr.Bytes()))
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("%s ended with %d, want %d\n%s", args[0], got, want, p.stderr.Bytes())
	}
}

func writeFile(path string, b []byte) error { return os.WriteFile(path, b, 0o600) }
