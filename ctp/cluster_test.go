package ctp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A cluster of too few brokers for the topic of share groups, which is not there,
// is told what it lacks, and how that is cured. By default the topic has three
// replicas; where brokers say so themselves, a run does not begin either: it would
// wait for an assignment for ever. What may not be seen is not taken for missing.
func TestPreflightOfStateTopic(t *testing.T) {
	for name, tt := range map[string]struct {
		brokers  int
		replicas string // "" is not told
		hidden   bool   // whether the topic exists
		ok, runs bool
	}{
		"one":                        {brokers: 1, runs: true},
		"three":                      {brokers: 3, ok: true, runs: true},
		"one, for three replicas":    {brokers: 1, replicas: "3"},
		"one, for one replica":       {brokers: 1, replicas: "1", ok: true, runs: true},
		"three, for five replicas":   {brokers: 3, replicas: "5"},
		"one, that does not tell it": {brokers: 1, hidden: true, ok: true, runs: true},
	} {
		t.Run(name, func(t *testing.T) {
			fake := fakekafka.Start(t, fakekafka.Config{Brokers: tt.brokers, Topics: []string{"in", "out"}})
			const config = "share.coordinator.state.topic.replication.factor"
			fake.Answer(int16(kmsg.DescribeConfigs), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
				r := req.(*kmsg.DescribeConfigsRequest).Resources[0]
				if tt.replicas == "" || !slices.Contains(r.ConfigNames, config) {
					return nil, false
				}
				resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
				c := kmsg.NewDescribeConfigsResponseResourceConfig()
				c.Name, c.Value = config, &tt.replicas
				resp.Resources = []kmsg.DescribeConfigsResponseResource{{ResourceType: r.ResourceType, ResourceName: r.ResourceName, Configs: []kmsg.DescribeConfigsResponseResourceConfig{c}}}
				return resp, true
			})
			fake.Answer(int16(kmsg.Metadata), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
				topics := req.(*kmsg.MetadataRequest).Topics
				if !tt.hidden || len(topics) != 1 || topics[0].Topic == nil || *topics[0].Topic != "__share_group_state" {
					return nil, false
				}
				resp := req.ResponseKind().(*kmsg.MetadataResponse)
				rt := kmsg.NewMetadataResponseTopic()
				rt.Topic, rt.ErrorCode = topics[0].Topic, kerr.TopicAuthorizationFailed.Code
				resp.Topics = append(resp.Topics, rt)
				host, port, _ := strings.Cut(fake.BootstrapServers(), ":")
				n, err := strconv.ParseInt(port, 10, 32)
				resp.Brokers = []kmsg.MetadataResponseBroker{{Host: host, Port: int32(n)}}
				return resp, err == nil
			})
			cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: strings.Split(fake.BootstrapServers(), ",")})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			opts := ctp.Options{From: "in", To: "out", Guarantee: ctp.AtLeastOnce, UntilEmpty: true}
			checks, err := ctp.Preflight(t.Context(), cl, opts)
			i := slices.IndexFunc(checks, func(c ctp.Check) bool { return c.Name == "share state topic" })
			if i < 0 || checks[i].OK != tt.ok || !strings.Contains(checks[i].Detail, "__share_group_state") {
				t.Fatalf("Preflight = %+v, %v; want the share state topic found %v", checks, err, tt.ok)
			}
			if !tt.ok {
				wantStateTopicAdvice(t, err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			fake.After(int16(kmsg.ShareGroupHeartbeat), func(int32) { cancel() }) // it runs
			_, err = ctp.Run(ctx, cl, opts)
			if joined := ctx.Err() != nil; joined != tt.runs {
				t.Errorf("Run: %v, joined the group %v, want %v", err, joined, tt.runs)
			}
			if !tt.runs {
				wantStateTopicAdvice(t, err)
			}
		})
	}
}

func wantStateTopicAdvice(t *testing.T, err error) {
	t.Helper()
	u, ok := errors.AsType[*cluster.UnsupportedError](err)
	if !ok {
		t.Fatalf("%v, want an *UnsupportedError", err)
	}
	for _, setting := range []string{"share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr", "offsets.topic.replication.factor"} {
		if !strings.Contains(u.Advice, setting) {
			t.Errorf("the advice %q does not name %s", u.Advice, setting)
		}
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
					strays := e.strays(topics["in"])
					moved := false
					opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
						if string(r.Key) == "150" && !moved {
							moved = true
							strays.watch.Store(true)
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
					if staged, others := strays.staged.Load(), strays.others.Load(); staged == 0 || others > 0 {
						e.t.Errorf("of the batch in work %d partitions were staged, %d of them at another leader than the one that handed them out", staged, others)
					}
					e.wantOutcome(n, res)
				})
			})
		}
	})
}

// strays counts the partitions that are staged while watch is set, which the end of
// the transaction clears, and those that another broker is told of than the one
// that leads them at first.
type strays struct {
	watch          atomic.Bool
	staged, others atomic.Int64
}

func (e *env) strays(topic cluster.Topic) *strays {
	s := new(strays)
	dialect, err := e.cl.RequireTxnShareAcknowledge(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	do := func(address string, frame []byte) fate {
		switch key := int16(binary.BigEndian.Uint16(frame[4:])); {
		case !s.watch.Load():
		case key == int16(kmsg.EndTxn):
			s.watch.Store(false)
		case key == dialect.Key:
			req := wire.NewTxnShareAcknowledgeRequest(dialect)
			b := frame[12:] // size, key, version, correlation ID
			b = b[2+binary.BigEndian.Uint16(b):]
			if err := req.ReadFrom(b[1:]); err != nil { // no tags
				e.t.Errorf("stage: %v", err)
			}
			for _, p := range req.Topics[0].Partitions {
				s.staged.Add(1)
				if e.sb.Addrs()[topic.Leader(p.Partition)] != address {
					s.others.Add(1)
				}
			}
		}
		return arrives
	}
	e.fate.Store(&do)
	return s
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
