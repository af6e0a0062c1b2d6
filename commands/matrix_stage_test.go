package commands_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stage is a cluster that is as [cmdtest.Call] wants it, with spare parts.
type stage struct {
	tb        testing.TB
	sandbox   *sandbox.Sandbox
	tap       *wiretap.Tap
	listeners []*mortal // by node ID
	control   string    // address
	file      string    // with a line
	cluster   *cluster.Client
	ids       int // used
	offsets   int // of in-0, used
}

func newStage(tb testing.TB, opts ...sandbox.Option) *stage {
	tb.Helper()
	s := &stage{tb: tb, tap: wiretap.New(), file: filepath.Join(tb.TempDir(), "lines")}
	if err := os.WriteFile(s.file, []byte("a line\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	s.tap.Ignore(bystander)
	var err error
	s.sandbox, err = sandbox.Start(tb.Context(), append([]sandbox.Option{
		sandbox.WithListen(s.listen), sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 1}, sandbox.Topic{Name: "out", Partitions: 1}),
	}, opts...)...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.sandbox.Close() })
	control := httptest.NewServer(s.sandbox.ControlHandler())
	tb.Cleanup(control.Close)
	s.control = control.Listener.Addr().String()
	s.populate()
	return s
}

// startSandbox starts a sandbox of which nothing is expected, and returns the
// address of its brokers.
func startSandbox(tb testing.TB, opts ...sandbox.Option) string {
	tb.Helper()
	sb, err := sandbox.Start(tb.Context(), opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = sb.Close() })
	return sb.BootstrapServers()
}

// populate makes the group, the records and the open transaction.
func (s *stage) populate() {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), 10*time.Minute)
	defer cancel()
	check := func(err error) {
		s.tb.Helper()
		if err != nil {
			s.tb.Fatal(err)
		}
	}
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: s.sandbox.Addrs(), ClientID: bystander})
	check(err)
	s.tb.Cleanup(cl.Close)
	_, err = s.sandbox.Load(ctx, "in", strings.NewReader(strings.Repeat("x\n", 20)), sandbox.LoadOptions{})
	check(err)
	s.cluster = cl
	check(cl.SetGroupConfig(ctx, "g", "share.auto.offset.reset", "earliest"))
	member, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "g", Topics: []string{"in"}, MaxWait: 50 * time.Millisecond})
	check(err)
	_, err = member.Poll(ctx, 1)
	check(err)
	check(member.Close(ctx))
	producer, err := cl.NewKgo(kgo.TransactionalID("id"), kgo.DefaultProduceTopic("out"))
	check(err)
	s.tb.Cleanup(producer.Close)
	check(producer.BeginTransaction())
	check(producer.ProduceSync(ctx, &kgo.Record{}).FirstErr())
}

// place is where a call does its work.
func (s *stage) place(c cmdtest.Call) cmdtest.Place {
	s.tb.Helper()
	p := cmdtest.Place{File: s.file, Offset: strconv.Itoa(s.offsets), ID: fmt.Sprintf("id-%d", s.ids), Peer: s.sandbox.BootstrapServers()}
	s.ids++
	if strings.Contains(c.Line, "{offset}") {
		s.offsets++
	}
	if strings.Contains(c.Line, "{token}") {
		p.Token = s.prepare(p)
	}
	if c.Peer == cmdtest.Control || c.Peer == cmdtest.Metrics {
		p.Peer = s.control
	}
	return p
}

// prepare prepares a transaction and returns its token.
func (s *stage) prepare(p cmdtest.Place) string {
	s.tb.Helper()
	file := filepath.Join(s.tb.TempDir(), "token")
	cmdtest.Run(s.tb, cmdtest.Setup{Change: realTime}, "txn", "prepare", "--transactional-id", p.ID, "--produce", "out="+p.File, "--token-file", file, "--yes", "-b", p.Peer).Want(s.tb, 0)
	token, err := os.ReadFile(file)
	if err != nil {
		s.tb.Fatal(err)
	}
	return strings.TrimSpace(string(token))
}

// coordinator is the broker that coordinates the transactions of an ID.
func (s *stage) coordinator(id string) int {
	s.tb.Helper()
	res := cmdtest.Run(s.tb, cmdtest.Setup{Change: realTime}, "inspect", "txn", id, "-o", "json", "-b", s.sandbox.BootstrapServers()).Want(s.tb, 0)
	var doc struct{ Items []struct{ Coordinator int } }
	if err := json.Unmarshal([]byte(res.Stdout), &doc); err != nil || len(doc.Items) != 1 {
		s.tb.Fatalf("%v, %s", err, res.Stdout)
	}
	return doc.Items[0].Coordinator
}

// doom returns a broker to take down. It leads in-0, and does not coordinate group
// "g", of which nothing could be seen then.
func (s *stage) doom() int {
	s.tb.Helper()
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorKeys = []string{"g"}
	resp, err := req.RequestWith(s.tb.Context(), s.cluster.Requestor())
	if err != nil || len(resp.Coordinators) != 1 {
		s.tb.Fatal(resp, err)
	}
	node := (resp.Coordinators[0].NodeID + 1) % int32(len(s.listeners))
	if _, err := s.sandbox.InjectFault(s.tb.Context(), sandbox.Fault{Kind: sandbox.FaultMoveLeader, Topic: "in", Partition: new(int32(0)), ToBroker: &node}); err != nil {
		s.tb.Fatal(err)
	}
	return int(node)
}

// takeDown makes a broker refuse connections.
func (s *stage) takeDown(node int) { s.listeners[node].die() }

func (s *stage) listen(network, address string) (net.Listener, error) {
	l, err := s.tap.Listen(network, address)
	if err != nil {
		return nil, err
	}
	m := &mortal{Listener: l, closed: make(chan struct{})}
	s.listeners = append(s.listeners, m)
	return m, nil
}

// mortal is a listener whose socket can be closed without the sandbox learning of
// it: to Accept nobody comes any more.
type mortal struct {
	net.Listener
	once   sync.Once
	closed chan struct{}

	mu    sync.Mutex
	conns []net.Conn
}

// Accept implements net.Listener.
func (m *mortal) Accept() (net.Conn, error) {
	conn, err := m.Listener.Accept()
	if err != nil {
		<-m.closed
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns = append(m.conns, conn)
	return conn, nil
}

// Close implements net.Listener.
func (m *mortal) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Listener.Close()
}

func (m *mortal) die() {
	_ = m.Listener.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, conn := range m.conns {
		_ = conn.Close()
	}
}

// realTime is for commands that wait.
func realTime(d *commands.Deps) { d.Now = time.Now }

// cell is a command and how it is called.
type cell struct {
	call  cmdtest.Call
	place cmdtest.Place
	args  []string // behind those of the call
	env   map[string]string
	tty   bool
	// untilStopped lets a sandbox run on when it is ready.
	untilStopped bool
	change       func(*commands.Deps)
}

// run calls it. Stdin must not be read.
func (c cell) run(tb testing.TB) cmdtest.Result {
	tb.Helper()
	config := filepath.Join(tb.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("contexts: [{name: a, bootstrap_server: '127.0.0.1:1'}]\n"), 0o600); err != nil {
		tb.Error(err)
	}
	env := map[string]string{"KSHARE_CONFIG": config}
	for k, v := range c.env {
		env[k] = v
	}
	setup := cmdtest.Setup{TTY: c.tty, Env: env, Stdin: unread{tb, c.call.Command}, Change: func(d *commands.Deps) {
		d.Now, d.StartSandbox = time.Now, commands.System().StartSandbox
		if c.call.Command == "sandbox run" && !c.untilStopped {
			s := newSignal()
			d.Notify = s.notify
			d.Out = &ready{d.Out, func() { s.send(os.Interrupt) }}
		}
		if c.change != nil {
			c.change(d)
		}
	}}
	return cmdtest.Run(tb, setup, append(c.call.Args(c.place), c.args...)...)
}

// unread fails the test when it is read.
type unread struct {
	tb      testing.TB
	command string
}

// Read implements io.Reader.
func (u unread) Read([]byte) (int, error) {
	u.tb.Errorf("kshare %s reads stdin", u.command)
	return 0, io.EOF
}

// ready tells of everything that is written.
type ready struct {
	io.Writer
	tell func()
}

// Write implements io.Writer.
func (r *ready) Write(b []byte) (int, error) {
	n, err := r.Writer.Write(b)
	r.tell()
	return n, err
}

// signal is what a process is sent once.
type signal struct {
	sent chan os.Signal
	once sync.Once
}

func newSignal() *signal { return &signal{sent: make(chan os.Signal, 1)} }

func (s *signal) send(sig os.Signal) { s.once.Do(func() { s.sent <- sig }) }

// notify is for commands.Deps.
func (s *signal) notify(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	select {
	case sig := <-s.sent:
		cancel(&commands.SignalError{Signal: sig})
	default:
	}
	go func() {
		select {
		case sig := <-s.sent:
			cancel(&commands.SignalError{Signal: sig})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// silent is the address of somebody who accepts connections and says nothing; heard
// is called at each.
func silent(tb testing.TB, heard func()) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var conns []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
			heard()
		}
	}()
	tb.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	return l.Addr().String()
}
