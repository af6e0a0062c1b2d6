package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestIsUnanswered(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		{net.ErrClosed, true},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, true},
		{nil, false},
		{errors.New("x"), false},
		{context.Canceled, false},
		{context.DeadlineExceeded, false},
		{kerr.NotCoordinator, false},
		{kerr.RequestTimedOut, false},
	} {
		if got := cluster.IsUnanswered(c.err); got != c.want {
			t.Errorf("IsUnanswered(%v) = %v", c.err, got)
		}
	}
}

// writes calls done when n requests of a kind were written.
type writes struct {
	n    atomic.Int32
	key  int16
	done func()
}

func (w *writes) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == w.key && err == nil && w.n.Add(-1) == 0 {
		w.done()
	}
}

// All requests on a connection that breaks are unanswered, and not the first alone.
func TestIsUnansweredOnOneConnection(t *testing.T) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer fake.Close()
	const n = 5
	written := make(chan struct{})
	w := &writes{key: int16(kmsg.DescribeTransactions), done: sync.OnceFunc(func() { close(written) })}
	w.n.Store(n)
	fake.ControlKey(w.key, func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		<-written
		return nil, errors.New("the connection is closed"), true
	})
	cl, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.WithHooks(w))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, errs[i] = cl.Broker(0).Request(t.Context(), kmsg.NewPtrDescribeTransactionsRequest())
		})
	}
	wg.Wait()
	nameless := 0
	for _, err := range errs {
		if !cluster.IsUnanswered(err) {
			t.Errorf("IsUnanswered(%v) = false", err)
		}
		if err != nil && strings.Contains(err.Error(), "connection has died") {
			nameless++
		}
	}
	if nameless == 0 {
		t.Errorf("the errors are %v, want one that has no name", errs)
	}
}
