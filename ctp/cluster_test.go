package ctp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/kshare/kshare/sandbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A cluster of one broker without the topic of share groups is told what it lacks,
// and how that is cured; one of three makes the topic by itself.
func TestPreflightWithoutStateTopic(t *testing.T) {
	for brokers, want := range map[int]bool{1: false, 3: true} {
		t.Run(fmt.Sprint(brokers), func(t *testing.T) {
			fake := fakekafka.Start(t, fakekafka.Config{Brokers: brokers, Topics: []string{"in", "out"}})
			cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: strings.Split(fake.BootstrapServers(), ",")})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			checks, err := ctp.Preflight(t.Context(), cl, ctp.Options{From: "in", To: "out", Guarantee: ctp.AtLeastOnce})
			var found *ctp.Check
			for i := range checks {
				if checks[i].Name == "share state topic" {
					found = &checks[i]
				}
			}
			if found == nil || found.OK != want || !strings.Contains(found.Detail, "__share_group_state") {
				t.Fatalf("Preflight = %+v, %v; want the share state topic found %v", checks, err, want)
			}
			if want {
				return
			}
			u, ok := errors.AsType[*cluster.UnsupportedError](err)
			if !ok {
				t.Fatalf("Preflight: %v, want an *UnsupportedError", err)
			}
			for _, setting := range []string{"share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr", "offsets.topic.replication.factor"} {
				if !strings.Contains(u.Advice, setting) {
					t.Errorf("the advice %q does not name %s", u.Advice, setting)
				}
			}
		})
	}
}

// The leaders of all partitions move while a batch is transformed, once there and
// once back: what is acquired is another leader's then, or a later delivery, and
// each record is committed once. In the end no share session is left.
func TestRunLeadersMove(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprintf("back %v", back), func(t *testing.T) {
				bubble(t, dialect, func(e *env) {
					const n = 300
					e.produce(n, plain)
					topics, err := e.cl.Topics(e.t.Context(), "in")
					if err != nil {
						e.t.Fatal(err)
					}
					move := func(by int32) {
						for _, p := range topics["in"].Partitions {
							number, to := p.Partition, (p.Leader+by)%3
							if _, err := e.sb.InjectFault(e.t.Context(), sandbox.Fault{Kind: sandbox.FaultMoveLeader, Topic: "in", Partition: &number, ToBroker: &to}); err != nil {
								e.t.Fatal(err)
							}
						}
					}
					opts := e.options()
					opts.BatchRecords = 20
					moved := false
					opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
						if string(r.Key) == "150" && !moved {
							moved = true
							move(1)
							if back {
								move(0)
							}
						}
						bubbleSleep(10 * time.Millisecond)
						return []*kgo.Record{r}, nil
					}
					res := e.run(opts)
					if res.Aborted == 0 || res.Unknown != 0 {
						e.t.Errorf("Run = %+v, want the batch in work aborted", res)
					}
					e.wantOutcome(n, res)
				})
			})
		}
	})
}

// Versions of franz-go before 1.21.5 leak share sessions, and before 1.21.4 take
// aborted records for committed ones when brokers list the transactions out of
// order.
func TestLibraryIsNewEnough(t *testing.T) {
	b, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\tgithub\.com/twmb/franz-go v(\S+)$`).FindSubmatch(b)
	if m == nil {
		t.Fatal("go.mod does not require franz-go")
	}
	var major, minor, patch int
	if _, err := fmt.Sscanf(string(m[1]), "%d.%d.%d", &major, &minor, &patch); err != nil {
		t.Fatalf("version %q: %v", m[1], err)
	}
	if major != 1 || minor < 21 || minor == 21 && patch < 5 {
		t.Errorf("go.mod requires franz-go %s, want 1.21.5 or later", m[1])
	}
}
