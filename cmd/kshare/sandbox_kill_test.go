//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// sandboxKills is how often a sandbox is killed in one run of a test;
// KSHARE_TEST_SANDBOX_KILLS sets another number.
const sandboxKills = 12

// The sandbox is killed at random moments while ctp works, and ctp with it, as
// when a machine dies. Both are started again where they were. In the end nothing
// is lost and nothing is doubled, and the group has no lag.
func TestSandboxAndClientKilled(t *testing.T) {
	t.Parallel()
	killSandbox(t, func(l *load) { l.kill() })
}

// The same with a client that goes on. It has to tell the records that it got
// from the former leader from those that it gets again from the next one.
func TestSandboxKilledUnderClient(t *testing.T) {
	t.Parallel()
	killSandbox(t, func(*load) {})
}

// killSandbox kills the sandbox under a load; then is called each time.
func killSandbox(t *testing.T, then func(*load)) {
	t.Helper()
	kills := int(envNumber(t, "KSHARE_TEST_SANDBOX_KILLS", sandboxKills))
	records := max(20_000, 1500*kills)
	seed := envNumber(t, "KSHARE_TEST_SEED", uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	profile := []string{"kip", "draft"}[rnd.IntN(2)]
	k := newMortalSandbox(t, "--profile", profile, "--topic", "src:6", "--topic", "dst:3",
		"--broker-config", "group.share.min.record.lock.duration.ms=1000",
		// A sandbox that starts again has no members, which they learn so.
		"--broker-config", "group.share.heartbeat.interval.ms=200")
	c := k.start()
	c.produce("src", records)
	// Each kill costs what is in flight one delivery.
	c.setGroupConfig("g", "share.delivery.count.limit", "10")
	c.setGroupConfig("g", "share.record.lock.duration.ms", "3000")
	load := startLoad(t, c.bootstrap, "--from", "src", "--to", "dst", "--group", "g", "--workers", "2", "--batch-records", "20",
		"--auto-offset-reset", "earliest", "--isolation-level", "read_committed", "--until-empty", "--transactional-id", "kill-test")
	for i := range kills {
		c.awaitGrowth("dst", int64(rnd.IntN(500)), load)
		timer := time.NewTimer(time.Duration(rnd.IntN(30_000)) * time.Microsecond)
		<-timer.C // the moment is the point
		if load.ended() {
			t.Errorf("only %d of %d kills met work, lag %d", i, kills, c.lag("g", "src"))
			break
		}
		k.kill()
		then(load)
		c = k.start()
	}
	load.wait()
	c.wantExactlyOnce("dst", records)
	if lag := c.lag("g", "src"); lag != 0 {
		t.Errorf("lag %d of the group, want 0", lag)
	}
	t.Logf("%s: %d kills, ctp was started %d times", profile, kills, load.starts)
	k.stop()
}

// envNumber returns the number in an environment variable.
func envNumber(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// mortalSandbox is a sandbox in a process of its own that can be killed and
// started again where it was.
type mortalSandbox struct {
	t       *testing.T
	args    []string
	cmd     *exec.Cmd
	stderr  *bytes.Buffer
	cluster *cluster
}

func newMortalSandbox(t *testing.T, args ...string) *mortalSandbox {
	t.Helper()
	port := strconv.Itoa(freePorts(t, 3))
	return &mortalSandbox{t: t, args: append([]string{
		"sandbox", "run", "-o", "json", "--port", port, "--data-dir", filepath.Join(t.TempDir(), "data"),
	}, args...)}
}

// freePorts returns the first of n ports in a row that were free a moment ago. They
// are below those that systems give to connections and to listeners on port 0, one
// of which could have them while the sandbox is down.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		if first := 10_000 + rand.IntN(20_000); tryPorts(t.Context(), first, n) {
			return first
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

func tryPorts(ctx context.Context, first, n int) bool {
	var lc net.ListenConfig
	for port := first; port < first+n; port++ {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return false
		}
		defer func() { _ = l.Close() }()
	}
	return true
}

// start starts it and waits until it is ready.
func (k *mortalSandbox) start() *cluster {
	k.t.Helper()
	k.cmd = kshareCommand(k.t.Context(), k.t, k.args...)
	k.stderr = new(bytes.Buffer)
	k.cmd.Stderr = k.stderr
	stdout, err := k.cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := k.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = k.cmd.Process.Kill() })
	var doc struct {
		Data struct {
			BootstrapServers string `json:"bootstrap_servers"`
		} `json:"data"`
	}
	if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&doc); err != nil {
		_ = k.cmd.Wait()
		k.t.Fatalf("sandbox: %v\n%s", err, k.stderr)
	}
	// A client that has met an outage looks only now and then whether it is over.
	k.cluster = &cluster{t: k.t, bootstrap: doc.Data.BootstrapServers}
	k.cluster.cl = k.cluster.client()
	return k.cluster
}

func (k *mortalSandbox) kill() {
	k.t.Helper()
	if err := k.cmd.Process.Kill(); err != nil {
		k.t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := k.cmd.Wait(); !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
		k.t.Fatalf("sandbox ended by itself: %v\n%s", err, k.stderr)
	}
}

func (k *mortalSandbox) stop() {
	k.t.Helper()
	_ = k.cmd.Process.Signal(syscall.SIGTERM)
	if err := k.cmd.Wait(); err != nil {
		k.t.Errorf("sandbox: %v\n%s", err, k.stderr)
	}
}

// load is a ctp that is started again until it ends with 0.
type load struct {
	t      *testing.T
	starts int
	done   chan struct{}

	mu   sync.Mutex
	last string    // what the last one that failed said
	cmd  *exec.Cmd // that runs
	over bool      // none is to be started after it
	says *watched  // on stderr
}

func startLoad(t *testing.T, bootstrap string, args ...string) *load {
	t.Helper()
	l := &load{t: t, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() {
		cancel()
		<-l.done
	})
	args = append([]string{"ctp", "-b", bootstrap, "-q", "--timeout", "2m"}, args...)
	path, err := exec.LookPath("kshare")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.done)
		for ctx.Err() == nil {
			stderr := new(watched)
			cmd := exec.CommandContext(ctx, path, args...)
			cmd.Stderr = stderr
			l.starts++
			l.mu.Lock()
			l.cmd, l.says = cmd, stderr
			err := cmd.Start()
			l.mu.Unlock()
			if err == nil {
				err = cmd.Wait()
			}
			if err == nil {
				return
			}
			l.mu.Lock()
			l.last = err.Error() + ": " + string(stderr.Bytes())
			over := l.over
			l.mu.Unlock()
			if over {
				return
			}
		}
	}()
	return l
}

// kill kills the ctp that runs; another one takes its place.
func (l *load) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cmd != nil && l.cmd.Process != nil {
		_ = l.cmd.Process.Kill() // or it has ended by itself
	}
}

func (l *load) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// wait waits until ctp has found its source empty. One that does not come to an
// end has to say what its goroutines wait for.
func (l *load) wait() {
	l.t.Helper()
	timer := time.NewTimer(5 * time.Minute)
	defer timer.Stop()
	select {
	case <-l.done:
		return
	case <-timer.C:
	}
	l.mu.Lock()
	cmd, says, last := l.cmd, l.says, l.last
	l.over = true
	l.mu.Unlock()
	if cmd.Process != nil {
		_ = cmd.Process.Signal(syscall.SIGQUIT) // or it has ended meanwhile
	}
	<-l.done
	l.t.Fatalf("ctp does not come to an end; this one says: %s\nthe last one that failed: %s", says.Bytes(), last)
}

// awaitGrowth waits until topic has grown by more than so many offsets, or the
// load has come to its end.
func (c *cluster) awaitGrowth(topic string, by int64, l *load) {
	c.t.Helper()
	start := c.ends(topic, readUncommitted).sum()
	for c.ends(topic, readUncommitted).sum() <= start+by && !l.ended() && c.t.Context().Err() == nil {
	}
}

// lag adds up the lag of a share group on a topic.
func (c *cluster) lag(group, topic string) int64 {
	c.t.Helper()
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	rg := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	rg.GroupID = group
	req.Groups = append(req.Groups, rg)
	resp, err := req.RequestWith(c.t.Context(), c.cl)
	if err != nil {
		c.t.Fatal(err)
	}
	var lag int64
	for _, t := range resp.Groups[0].Topics {
		for _, p := range t.Partitions {
			if t.Topic == topic {
				lag += p.Lag
			}
		}
	}
	return lag
}
