package apptest

import (
	"context"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Bench is a sandbox in a bubble, with the topics "in" and "other". It is used by
// the test's goroutine, and applications by one goroutine each.
type Bench struct {
	T       *testing.T
	Sandbox *sandbox.Sandbox
	Pending sandbox.PendingState

	network kfake.VirtualNetwork
	clients []*cluster.Client
	closers []func(context.Context)
	over    chan struct{} // closed at the end: nothing is far away any more
}

// Run runs a test on a bench. opts come after its own.
func Run(t *testing.T, d wire.Dialect, p sandbox.PendingState, do func(b *Bench), opts ...sandbox.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &Bench{T: t, Pending: p, over: make(chan struct{})}
		var err error
		b.Sandbox, err = sandbox.Start(t.Context(), append([]sandbox.Option{
			sandbox.WithDialect(d), sandbox.WithPendingState(p), sandbox.WithListen(b.network.Listen), sandbox.WithBasePort(9092),
			sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 2}, sandbox.Topic{Name: "other", Partitions: 1}),
		}, opts...)...)
		b.Check(err)
		defer func() {
			if err := b.Sandbox.Close(); err != nil {
				t.Error(err)
			}
		}()
		defer func() {
			close(b.over)
			for _, cl := range b.clients {
				cl.Close()
			}
		}()
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
			defer cancel()
			for _, c := range slices.Backward(b.closers) {
				c(ctx)
			}
		}()
		do(b)
	})
}

// Everywhere runs a test on a bench of each dialect and pending state.
func Everywhere(t *testing.T, test func(b *Bench)) {
	t.Helper()
	for _, d := range wire.Dialects() {
		for _, p := range []sandbox.PendingState{sandbox.PendingPersisted, sandbox.PendingMemory} {
			t.Run(d.Name+"/"+p.String(), func(t *testing.T) { Run(t, d, p, test) })
		}
	}
}

// Check fails the test at an error.
func (b *Bench) Check(err error) {
	b.T.Helper()
	if err != nil {
		b.T.Fatal(err)
	}
}

// Connect returns a further connection, which ends with the test.
func (b *Bench) Connect() *cluster.Client {
	b.T.Helper()
	return b.ConnectFrom(0)
}

// ConnectFrom is Connect from far away: each request takes that long to a broker.
func (b *Bench) ConnectFrom(away time.Duration) *cluster.Client {
	b.T.Helper()
	cl, err := cluster.Connect(b.T.Context(), cluster.Config{
		BootstrapServers: b.Sandbox.Addrs(),
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := b.network.DialContext(ctx, network, address)
			if err != nil || away == 0 {
				return conn, err
			}
			return &farConn{Conn: conn, away: away, near: b.over}, nil
		},
	})
	b.Check(err)
	b.clients = append(b.clients, cl)
	return cl
}

// farConn is a connection to a broker that is far away.
type farConn struct {
	net.Conn
	away time.Duration
	near <-chan struct{} // closed when it is far away no more
}

func (c *farConn) Write(p []byte) (int, error) {
	select {
	case <-time.After(c.away):
	case <-c.near:
	}
	return c.Conn.Write(p)
}

// AtEnd calls f when the test is over, before the connections are closed. Its
// context ends after 5 s.
func (b *Bench) AtEnd(f func(context.Context)) { b.closers = append(b.closers, f) }

// Truth is what the sandbox itself knows: records in TX_PENDING, and the open
// transactions that hold share acknowledgements.
func (b *Bench) Truth() (records, open int) {
	b.T.Helper()
	st, err := b.Sandbox.State()
	b.Check(err)
	cl := b.Connect()
	d, err := cl.Describe(b.T.Context())
	b.Check(err)
	txns, gaps, err := inspect.ListTransactions(b.T.Context(), cl, d.Brokers, inspect.TransactionQuery{States: inspect.OpenStates(), Describe: true})
	b.Check(err)
	if len(gaps) > 0 {
		b.T.Fatalf("transactions are hidden: %v", gaps)
	}
	for _, t := range txns {
		if t.HoldsShareAcks() {
			open++
		}
	}
	return st.Pending, open
}

// Timeout is the transaction timeout of an application.
const Timeout = 40 * time.Second

// App is an application that acknowledges records of a topic in transactions.
type App struct {
	Session *txn.Session

	b      *Bench
	member *share.Consumer
	input  *kgo.Client
}

// App starts an application.
func (b *Bench) App(group, topic, transactionalID string) *App {
	b.T.Helper()
	ctx := b.T.Context()
	cl := b.Connect()
	b.Check(cl.SetGroupConfig(ctx, group, "share.auto.offset.reset", "earliest"))
	a := &App{b: b}
	var err error
	a.input, err = cl.NewKgo(kgo.DefaultProduceTopic(topic))
	b.Check(err)
	a.member, err = share.NewConsumer(ctx, cl, share.Config{GroupID: group, Topics: []string{topic}, MaxWait: 50 * time.Millisecond})
	b.Check(err)
	a.Session, err = txn.NewSession(ctx, b.Connect(), txn.Config{TransactionalID: transactionalID, Timeout: Timeout})
	b.Check(err)
	b.closers = append(b.closers, func(ctx context.Context) {
		_ = a.Session.Close(ctx) // the transaction may have been taken from it
		_ = a.member.Close(ctx)
		a.input.Close()
	})
	return a
}

// Stage produces a record, acquires it, and stages its acknowledgement in a new
// transaction.
func (a *App) Stage() error {
	ctx := a.b.T.Context()
	if err := a.input.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
		return err
	}
	var batch *share.Batch
	for batch == nil || batch.Len() == 0 {
		var err error
		if batch, err = a.member.Poll(ctx, 10); err != nil {
			return err
		}
	}
	if err := a.Session.Begin(ctx); err != nil {
		return err
	}
	return a.Session.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: batch.All(wire.Accept), Group: a.member.GroupMetadata()})
}

// MustStage is Stage, which fails the test where it fails.
func (a *App) MustStage() {
	a.b.T.Helper()
	a.b.Check(a.Stage())
}

// Commit commits the transaction.
func (a *App) Commit() error { return a.Session.Commit(a.b.T.Context(), txn.Guard{}) }

// Abort aborts the transaction.
func (a *App) Abort() error { return a.Session.Abort(a.b.T.Context()) }

// Busy lets the application go on in the background: it holds each transaction
// open for a time, commits it, and pauses before the next. The function that is
// returned stops it and waits. A transaction has to be open.
func (a *App) Busy(open, pause time.Duration) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			<-time.After(open)
			if err := a.Commit(); err != nil {
				a.b.T.Error(err)
				return
			}
			select {
			case <-end:
				return
			case <-time.After(pause):
			}
			if err := a.Stage(); err != nil {
				a.b.T.Error(err)
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
