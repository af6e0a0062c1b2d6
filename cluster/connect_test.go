package cluster_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func connect(t *testing.T, servers ...string) (*cluster.Client, error) {
	t.Helper()
	cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: servers, DialTimeout: 2 * time.Second})
	if err == nil {
		t.Cleanup(cl.Close)
	}
	return cl, err
}

// A bootstrap server that accepts connections and says nothing, and one that is
// not there, do not hide the next one.
func TestConnectPassesOverSilence(t *testing.T) {
	t.Parallel()
	k := fakekafka.Start(t, fakekafka.Config{})
	k.Silence(0)
	for name, first := range map[string]string{"silent": k.Addr(0), "not there": "127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl, err := connect(t, first, k.Addr(1))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second) // of which a part is for the silent one
			defer cancel()
			d, err := cl.Describe(ctx)
			if err != nil {
				t.Fatalf("Describe: %v", err)
			}
			var answered []int32
			for _, b := range d.Brokers {
				if b.Err == nil {
					answered = append(answered, b.NodeID)
				}
			}
			if !slices.Equal(answered, []int32{1, 2}) || d.ClusterID != "fake" {
				t.Errorf("cluster %q, brokers %v answered, want 1 and 2 of fake", d.ClusterID, answered)
			}
		})
	}
}

func TestConnectFails(t *testing.T) {
	t.Parallel()
	k := fakekafka.Start(t, fakekafka.Config{Brokers: 1})
	k.Silence(0)
	for name, servers := range map[string][]string{"silent": {k.Addr(0)}, "not there": {"127.0.0.1:1"}} {
		_, err := connect(t, servers...)
		if _, ok := errors.AsType[*cluster.DialError](err); !ok || !strings.Contains(err.Error(), servers[0]) {
			t.Errorf("%s: Connect = %v, want a *DialError with the address", name, err)
		}
	}
	// What one server says weighs more than the silence of another.
	c := fakekafka.Start(t, fakekafka.Config{Brokers: 1})
	c.ChangeVersions(0, func(r *kmsg.ApiVersionsResponse) {
		fakekafka.Serve(r, int16(kmsg.Metadata), -1)
		fakekafka.Serve(r, int16(kmsg.Vote), 2)
	})
	for _, servers := range [][]string{{"127.0.0.1:1", c.Addr(0)}, {c.Addr(0), "127.0.0.1:1"}} {
		_, err := connect(t, servers...)
		if e, ok := errors.AsType[*cluster.ListenerError](err); !ok || e.Addr != c.Addr(0) || e.Hint() == "" {
			t.Errorf("Connect(%v) = %v, want a *ListenerError about the controller", servers, err)
		}
	}
}

// Something listens that is no broker: which server it is, and what it seems.
func TestConnectToSomethingElse(t *testing.T) {
	for name, answer := range map[string]string{
		"HTTP":    "HTTP/1.1 400 Bad Request\r\n\r\n",
		"garbage": "\x00\x00\x00\x08garbage!",
		"nothing": "",
		"TLS":     "\x15\x03\x03\x00\x02\x02\x16",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 1024))
				_, _ = conn.Write([]byte(answer))
				_ = conn.Close()
			}
		}()
		_, err = connect(t, l.Addr().String())
		_, listener := errors.AsType[*cluster.ListenerError](err)
		_, auth := errors.AsType[*cluster.AuthError](err)
		if wantAuth := name == "TLS" || name == "nothing"; err == nil || auth != wantAuth || listener == wantAuth || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("%s: Connect = %v, want the address and what is wrong with it", name, err)
		}
	}
}

// Brokers that Metadata leaves out are listed by DescribeCluster, where it can.
func TestDescribeFenced(t *testing.T) {
	k := fakekafka.Start(t, fakekafka.Config{Brokers: 2})
	k.AddFenced(5)
	cl, err := connect(t, k.Addr(0))
	if err != nil {
		t.Fatal(err)
	}
	d, err := cl.Describe(t.Context())
	if err != nil || len(d.Brokers) != 3 || d.Brokers[2].NodeID != 5 || !errors.Is(d.Brokers[2].Err, cluster.ErrFenced) {
		t.Fatalf("Describe = %+v, %v, want broker 5 fenced", d, err)
	}
	k.ChangeVersions(-1, func(r *kmsg.ApiVersionsResponse) { fakekafka.Serve(r, int16(kmsg.DescribeCluster), 1) })
	if d, err = cl.Describe(t.Context()); err != nil || len(d.Brokers) != 2 {
		t.Errorf("Describe = %+v, %v, want what Metadata lists", d, err)
	}
}
