package completions

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Whatever takes its time, and whether or not it heeds its context, it is over
// when patience is.
func TestAskIsBounded(t *testing.T) {
	never := make(chan struct{})
	silent := func(context.Context, string, string) (net.Conn, error) {
		conn, _ := net.Pipe() // what is written to it is never read
		return conn, nil
	}
	dials := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	connectBy := func(dial func(context.Context, string, string) (net.Conn, error)) func(context.Context) (*cluster.Client, error) {
		return func(ctx context.Context) (*cluster.Client, error) {
			return cluster.Connect(ctx, cluster.Config{BootstrapServers: []string{"a:1", "b:1"}, Dialer: dial})
		}
	}
	for _, c := range []struct {
		name    string
		connect func(context.Context) (*cluster.Client, error)
		want    time.Duration
	}{
		{"fails", func(context.Context) (*cluster.Client, error) { return nil, errors.New("no") }, 0},
		{"heeds nothing", func(context.Context) (*cluster.Client, error) {
			<-never
			return nil, errors.New("no")
		}, Patience},
		{"no answer to a dial", connectBy(dials), Patience},
		{"no answer of brokers", connectBy(silent), Patience},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				never = make(chan struct{})
				start := time.Now()
				got := Ask(t.Context(), c.connect, func(context.Context, *cluster.Client) []Choice { return Words("x") })
				if took := time.Since(start); got != nil || took != c.want {
					t.Errorf("Ask = %v after %s, want nothing after %s", got, took, c.want)
				}
				close(never)
			})
		})
	}
}

// A broker that has stopped answering does not take the others' names away.
func TestAskWithASilentBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		sb, err := sandbox.Start(t.Context(),
			sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092), sandbox.WithBrokers(3),
			sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 1}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sb.Close() }()
		connect := func(ctx context.Context) (*cluster.Client, error) {
			return cluster.Connect(ctx, cluster.Config{BootstrapServers: sb.Addrs(), Dialer: network.DialContext})
		}
		cl, err := connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		var all []string
		for i := range 8 {
			id := fmt.Sprintf("group-%d", i)
			m, err := share.NewConsumer(t.Context(), cl, share.Config{GroupID: id, Topics: []string{"in"}})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Abandon()
			all = append(all, id)
		}
		words := func() (out []string) {
			for _, c := range Ask(t.Context(), connect, Groups) {
				out = append(out, c.Word)
			}
			return out
		}
		if got := words(); !slices.Equal(got, all) {
			t.Errorf("Groups = %q, want %q", got, all)
		}
		if _, err := sb.InjectFault(t.Context(), sandbox.Fault{Kind: sandbox.FaultFreezeBroker, Broker: new(int32(1))}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		got := words()
		took := time.Since(start)
		if len(got) == 0 || len(got) == len(all) || took > Patience {
			t.Errorf("with a silent broker Groups = %q after %s, want some of %q within %s", got, took, all, Patience)
		}
	})
}

func TestSupported(t *testing.T) {
	levels := func(l levelsOf) (out []string) {
		for _, c := range l.levels {
			out = append(out, c.Word+" "+c.About)
		}
		return out
	}
	f := feature.Feature{
		Name: "share.version", Min: new(int16(0)), Max: new(int16(2)), Finalized: new(int16(1)),
		Levels: []feature.Level{{Level: 0, Meaning: "off"}, {Level: 1, Meaning: "on"}, {Level: 2, Meaning: "more"}},
	}
	for _, c := range []struct {
		step Step
		want []string
	}{
		{AnyLevel, []string{"0 off", "1 on, now", "2 more"}},
		{Up, []string{"2 more"}},
		{Down, []string{"0 off"}},
	} {
		if got := supported(f, c.step); !slices.Equal(levels(got), c.want) || got.about != "supported 0 to 2, now 1" {
			t.Errorf("step %d: %q (%s), want %q", c.step, levels(got), got.about, c.want)
		}
	}
	f.Finalized = nil // not known: any level may be above it, or below
	for _, step := range []Step{AnyLevel, Up, Down} {
		if got := supported(f, step); len(got.levels) != 3 || got.about != "supported 0 to 2" {
			t.Errorf("step %d where the level is not known: %q (%s)", step, levels(got), got.about)
		}
	}
	f.Min, f.Max = nil, nil
	if got := supported(f, AnyLevel); len(got.levels) != 0 {
		t.Errorf("levels where no broker says: %q", levels(got))
	}
	metadata := feature.Feature{Name: "metadata.version", Min: new(int16(28)), Max: new(int16(29)), Finalized: new(int16(29))}
	if got := levels(supported(metadata, AnyLevel)); len(got) != 2 || got[1] != "29 "+feature.LevelName("metadata.version", 29)+", now" {
		t.Errorf("levels with names: %q", got)
	}
}

func TestReleasedFeatures(t *testing.T) {
	if got := ReleasedFeatures("share.version=1"); !slices.Contains(got, Choice{Word: "share.version=1", About: feature.ReleasedMeaning("share.version", 1)}) {
		t.Errorf("ReleasedFeatures(share.version=1) = %v", got)
	}
	got := ReleasedFeatures("sh")
	if !slices.IsSortedFunc(got, func(a, b Choice) int { return strings.Compare(a.Word, b.Word) }) || !slices.ContainsFunc(got, func(c Choice) bool { return c.Word == "share.version=" && c.Open }) {
		t.Errorf("ReleasedFeatures(sh) = %v", got)
	}
	if got := ReleasedFeatures("nothing="); got == nil || len(got) > 0 {
		t.Errorf("ReleasedFeatures(nothing=) = %v", got)
	}
}
