//go:build linux

package examples

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
)

// orders is how many there are, so many that they do not fit into one transaction.
const orders = 40

// shipping is the program two-phase, a cluster, and a database.
type shipping struct {
	t        *testing.T
	program  string
	kshare   string
	sb       *sandbox.Sandbox
	cl       *cluster.Client
	pg       *postgres
	database string
}

// twoPhase runs a test on clusters of each dialect, each with a database.
type twoPhase struct {
	program, kshare string
	pg              *postgres
}

func (tp *twoPhase) test(t *testing.T, name string, do func(s *shipping)) {
	t.Helper()
	for _, d := range wire.Dialects() {
		tp.testIn(t, d, name, do)
	}
}

// testIn is test in one dialect.
func (tp *twoPhase) testIn(t *testing.T, d wire.Dialect, name string, do func(s *shipping)) {
	t.Helper()
	t.Run(name+"/"+d.Name, func(t *testing.T) {
		t.Parallel()
		sb, err := sandbox.Start(t.Context(), sandbox.WithDialect(d), sandbox.WithTopics(sandbox.Topic{Name: "orders", Partitions: 3}),
			sandbox.WithBrokerConfigs(map[string]string{"group.share.delivery.count.limit": "10"}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sb.Close() })
		cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		if err := cl.SetGroupConfig(t.Context(), "two-phase", "share.auto.offset.reset", "earliest"); err != nil {
			t.Fatal(err)
		}
		produceOrders(t, cl, orders)
		s := &shipping{t: t, program: tp.program, kshare: tp.kshare, sb: sb, cl: cl, pg: tp.pg, database: strings.NewReplacer("/", "_", "-", "_").Replace(t.Name())}
		tp.pg.query(t, "postgres", `CREATE DATABASE "`+s.database+`"`)
		do(s)
	})
}

// held is a process that waits in the middle of its first transaction.
type held struct {
	s      *shipping
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout bytes.Buffer
	stderr *bufio.Reader
}

func (s *shipping) command(args ...string) *exec.Cmd {
	return exec.CommandContext(s.t.Context(), s.program, append([]string{
		args[0], "-b", strings.Join(s.sb.Addrs(), ","), "-idle", "500ms", "-batch", "20",
		"-database", s.pg.dsn(s.database),
	}, args[1:]...)...)
}

// hold starts the program and waits until it holds after a step.
func (s *shipping) hold(step string, args ...string) *held {
	s.t.Helper()
	h := &held{s: s, cmd: s.command(append([]string{"run", "-hold", step}, args...)...)}
	h.cmd.Stdout = &h.stdout
	var err error
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	stderr, err := h.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	h.stderr = bufio.NewReader(stderr)
	if err := h.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	if line, err := h.stderr.ReadString('\n'); err != nil || line != "two-phase: holding after "+step+"\n" {
		s.t.Fatalf("it says %q (%v), want it to hold after %s", line, err, step)
	}
	return h
}

// kill is SIGKILL.
func (h *held) kill() {
	h.s.t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		h.s.t.Fatal(err)
	}
	_ = h.cmd.Wait() // it was killed
}

// stop is SIGSTOP: nothing of it goes on, not even in the background.
func (h *held) stop() {
	h.s.t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		h.s.t.Fatal(err)
	}
}

// goOn lets it go on, and returns what it says when it has ended.
func (h *held) goOn() (stdout, stderr string, err error) {
	h.s.t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		h.s.t.Fatal(err)
	}
	if _, err := io.WriteString(h.stdin, "\n"); err != nil {
		h.s.t.Fatal(err)
	}
	rest, err := io.ReadAll(h.stderr)
	if err != nil {
		h.s.t.Fatal(err)
	}
	err = h.cmd.Wait()
	return strings.TrimSpace(h.stdout.String()), string(rest), err
}

// run runs the program to its end, and returns what it says.
func (s *shipping) run(args ...string) (stdout, stderr string) {
	s.t.Helper()
	cmd := s.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("two-phase %v: %v\n%s", args, err, errs.String())
	}
	return strings.TrimSpace(out.String()), errs.String()
}

// settle runs the runbook, and returns its exit status.
func (s *shipping) settle(args ...string) (code int, stderr string) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "runbooks/settle-database.sh", append(args, s.pg.dsn(s.database))...)
	cmd.Env = append(cmd.Environ(), "KSHARE="+s.kshare, "KSHARE_BOOTSTRAP_SERVER="+strings.Join(s.sb.Addrs(), ","))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil && !isExit(err) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), errs.String()
}

func isExit(err error) bool {
	_, ok := errors.AsType[*exec.ExitError](err)
	return ok
}

// acknowledged lists the offsets that the share group is done with, as
// "orders|0|7", sorted.
func (s *shipping) acknowledged() []string {
	s.t.Helper()
	st, err := s.sb.State()
	if err != nil {
		s.t.Fatal(err)
	}
	var doc struct {
		Partitions []struct {
			Topic       string `json:"topic"`
			Partition   int    `json:"partition"`
			StartOffset int64  `json:"start_offset"`
			Ranges      []struct {
				FirstOffset int64  `json:"first_offset"`
				LastOffset  int64  `json:"last_offset"`
				State       string `json:"state"`
			} `json:"ranges"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal(st.Share, &doc); err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, p := range doc.Partitions {
		add := func(first, end int64) {
			for o := first; o < end; o++ {
				out = append(out, fmt.Sprintf("%s|%d|%d", p.Topic, p.Partition, o))
			}
		}
		add(0, p.StartOffset)
		for _, r := range p.Ranges {
			if r.State == wire.Acknowledged.String() {
				add(r.FirstOffset, r.LastOffset+1)
			}
		}
	}
	slices.Sort(out)
	return out
}

// wantEqual fails unless the database has rows of exactly the orders that are
// acknowledged, and nothing is between the phases. It returns how many.
func (s *shipping) wantEqual() int {
	s.t.Helper()
	rows := s.pg.query(s.t, s.database, "SELECT topic, partition, record_offset FROM shipped")
	slices.Sort(rows)
	acknowledged := s.acknowledged()
	if !slices.Equal(rows, acknowledged) {
		s.t.Errorf("%d rows and %d acknowledged orders, want the same\n%v\n%v", len(rows), len(acknowledged), rows, acknowledged)
	}
	if gids := s.pg.query(s.t, s.database, "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"); len(gids) > 0 {
		s.t.Errorf("transactions are prepared in the database: %v", gids)
	}
	return len(rows)
}

// wantAll runs the program until all orders are done, and fails unless they are
// then. known is how many come again though their row is there.
func (s *shipping) wantAll(known int) {
	s.t.Helper()
	again := 0
	for try := 0; try == 0 || len(s.acknowledged()) < orders && try < 20; try++ {
		// What an abort leaves with a member that is dead, or was fetched by one that
		// hangs, comes again when its lock expires.
		if _, err := s.sb.InjectFault(s.t.Context(), sandbox.Fault{Kind: sandbox.FaultExpireLocks}); err != nil {
			s.t.Fatal(err)
		}
		stdout, stderr := s.run("run")
		var n, k int
		if _, err := fmt.Sscanf(stdout, "%d orders, %d of them were there", &n, &k); err != nil {
			s.t.Fatalf("it says %q: %v\n%s", stdout, err, stderr)
		}
		again += k
	}
	if again != known {
		s.t.Errorf("%d orders came again whose row was there, want %d", again, known)
	}
	if n := s.wantEqual(); n != orders {
		s.t.Errorf("%d orders are done, want %d", n, orders)
	}
	if n := len(s.sb.Pending()); n != 0 {
		s.t.Errorf("%d ranges are pending", n)
	}
}

func (s *shipping) awaitAbort() {
	s.t.Helper()
	for len(s.sb.Pending()) > 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.t.Context().Done():
			s.t.Fatal("the coordinator does not abort the transaction")
		}
	}
}

// TestMain lets more tests run at once than there are processors: these wait for
// other processes most of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	m.Run()
}

// Orders are acknowledged and have their row, or neither, wherever a process dies
// (docs/two-phase.md).
func TestTwoPhase(t *testing.T) {
	t.Parallel()
	tp := &twoPhase{pg: startPostgres(t), program: build(t, "two-phase"), kshare: filepath.Join(t.TempDir(), "kshare")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", tp.kshare, "../cmd/kshare").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	// All parts run at once, and end before the server does.
	t.Run("all", func(t *testing.T) {
		tp.test(t, "nobody dies", func(s *shipping) {
			s.wantAll(0)
		})
		for step, done := range map[string]bool{
			"written": false, "kafka-prepared": false, "recorded": false,
			// Once the database has prepared its part, both can be committed.
			"database-prepared": true, "kafka-committed": true, "database-followed": true,
		} {
			tp.test(t, "killed after "+step, func(s *shipping) {
				s.hold(step).kill()
				s.run("recover")
				if n := s.wantEqual(); n > 0 != done {
					s.t.Errorf("%d orders are done", n)
				}
				s.wantAll(0)
			})
		}
		for step, done := range map[string]bool{"database-prepared": false, "kafka-committed": true} {
			tp.test(t, "aborted after "+step, func(s *shipping) {
				s.hold(step).kill()
				for range 2 { // it may die too, or be started twice
					s.run("recover", "-abort")
					if n := s.wantEqual(); n > 0 != done {
						s.t.Errorf("%d orders are done", n)
					}
				}
				s.wantAll(0)
			})
		}
		// A process that was only late finds that another one has taken its place.
		for _, step := range []string{"written", "recorded", "database-prepared", "kafka-committed"} {
			tp.test(t, "late after "+step, func(s *shipping) {
				h := s.hold(step, "-database", s.pg.dsn(s.database)+" idle_in_transaction_session_timeout=500ms")
				h.stop()
				s.wantAll(0)
				stdout, stderr, err := h.goOn()
				if !isExit(err) {
					s.t.Errorf("it ends with %v, and says %q\n%s", err, stdout, stderr)
				}
				s.wantAll(0)
			})
		}
		// Without KIP-939 the coordinator aborts what takes too long, prepared or not.
		for _, step := range []string{"kafka-prepared", "database-prepared"} {
			tp.test(t, "timed out after "+step, func(s *shipping) {
				h := s.hold(step, "-txn-timeout", "2s")
				s.awaitAbort()
				stdout, stderr, err := h.goOn()
				if err != nil || !strings.Contains(stderr, "aborted, the orders come again") || !strings.HasSuffix(stdout, " orders, 0 of them were there") {
					s.t.Errorf("it ends with %v, and says %q\n%s", err, stdout, stderr)
				}
				s.wantEqual()
				s.wantAll(0)
			})
			tp.test(t, "timed out and killed after "+step, func(s *shipping) {
				h := s.hold(step, "-txn-timeout", "2s")
				s.awaitAbort()
				h.kill()
				s.run("recover")
				if n := s.wantEqual(); n != 0 {
					s.t.Errorf("%d orders are done, want none", n)
				}
				s.wantAll(0)
			})
		}
		// Somebody has used the transactional ID before the recovery did: what became of
		// the transaction cannot be told, and the key of the rows says what was done.
		for step, aborted := range map[string]bool{"database-prepared": true, "kafka-committed": false} {
			tp.test(t, "in doubt after "+step, func(s *shipping) {
				s.hold(step).kill()
				a, err := txn.NewAcknowledger(s.t.Context(), s.cl, txn.AcknowledgerConfig{TransactionalID: "two-phase-1"})
				if err != nil {
					s.t.Fatal(err)
				}
				if err := a.Close(context.WithoutCancel(s.t.Context())); err != nil {
					s.t.Fatal(err)
				}
				if _, stderr := s.run("recover"); !strings.Contains(stderr, "in doubt, committed in the database") {
					s.t.Errorf("it says %q, want that it is in doubt", stderr)
				}
				rows := len(s.pg.query(s.t, s.database, "SELECT 1 FROM shipped"))
				if rows == 0 {
					s.t.Error("the database has no rows")
				}
				if !aborted {
					s.wantEqual()
					rows = 0
				}
				s.wantAll(rows)
			})
		}
		// The same by hand, with what everybody has: kshare and psql. One dialect will do.
		one := wire.Dialects()[0]
		for name, tt := range map[string]struct {
			step  string
			flags []string
			done  bool
		}{
			"committed":         {"database-prepared", nil, true},
			"aborted":           {"database-prepared", []string{"--abort"}, false},
			"too late to abort": {"kafka-committed", []string{"--abort"}, true},
		} {
			tp.testIn(t, one, "settled by hand and "+name, func(s *shipping) {
				s.hold(tt.step).kill()
				if code, stderr := s.settle(tt.flags...); code != 0 || len(s.pg.query(s.t, s.database, "SELECT 1 FROM pg_prepared_xacts WHERE database = current_database()")) != 1 {
					s.t.Errorf("a rehearsal ends with %d, and changes something\n%s", code, stderr)
				}
				if code, stderr := s.settle(append(tt.flags, "--yes")...); code != 0 {
					s.t.Errorf("it ends with %d\n%s", code, stderr)
				}
				if n := s.wantEqual(); n > 0 != tt.done {
					s.t.Errorf("%d orders are done", n)
				}
				if code, stderr := s.settle("--yes"); code != 0 || !strings.Contains(stderr, "nothing is prepared") {
					s.t.Errorf("a second time it ends with %d\n%s", code, stderr)
				}
				s.wantAll(0)
			})
		}
		tp.testIn(t, one, "settled by hand and timed out", func(s *shipping) {
			h := s.hold("database-prepared", "-txn-timeout", "1s")
			s.awaitAbort()
			h.kill()
			if code, stderr := s.settle("--yes"); code != 0 || !strings.Contains(stderr, ": aborted in Kafka: ROLLBACK PREPARED") {
				s.t.Errorf("it ends with %d\n%s", code, stderr)
			}
			s.wantEqual()
			s.wantAll(0)
		})
		tp.testIn(t, one, "settled by hand and fenced", func(s *shipping) {
			s.hold("database-prepared").kill()
			a, err := txn.NewAcknowledger(s.t.Context(), s.cl, txn.AcknowledgerConfig{TransactionalID: "two-phase-1"})
			if err != nil {
				s.t.Fatal(err)
			}
			defer a.Close(context.WithoutCancel(s.t.Context()))
			if code, stderr := s.settle("--yes"); code != 8 || !strings.Contains(stderr, "stays prepared") {
				s.t.Errorf("it ends with %d, want 8\n%s", code, stderr)
			}
		})
	})
}
