package share_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

// onKafka runs a test on each release that has share groups.
func onKafka(t *testing.T, test func(*testing.T, *kafka)) {
	t.Helper()
	for _, version := range []string{kafkatest.Kafka44, kafkatest.Kafka42} {
		t.Run(version, func(t *testing.T) {
			test(t, newKafka(t, kafkatest.Shared(t, sharedConfig(version))))
		})
	}
}

// sharedConfig is a cluster whose locks may end within a test.
func sharedConfig(version string) kafkatest.Config {
	return kafkatest.Config{
		Version: version,
		Props:   map[string]string{"group.share.min.record.lock.duration.ms": "1000"},
	}
}

// kafka is a real Kafka, with a topic and a group of the test's own.
type kafka struct {
	*kafkatest.Cluster
	adm   *kadm.Client
	topic string
	group string
}

// testTimeout bounds each test.
const testTimeout = 2 * time.Minute

func newKafka(t *testing.T, c *kafkatest.Cluster) *kafka {
	t.Helper()
	name := strings.NewReplacer("/", "-", ".", "-").Replace(t.Name())
	return &kafka{Cluster: c, adm: kadm.NewClient(c.Client(t)), topic: name, group: name}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func (k *kafka) create(t *testing.T, partitions int32) {
	t.Helper()
	if _, err := k.adm.CreateTopic(testContext(t), partitions, -1, nil, k.topic); err != nil {
		t.Fatal(err)
	}
}

func (k *kafka) produce(t *testing.T, n int, opts ...kgo.Opt) {
	t.Helper()
	cl := k.Client(t, append(opts, kgo.DefaultProduceTopic(k.topic), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))...)
	var records []*kgo.Record
	for i := range n {
		records = append(records, &kgo.Record{Value: fmt.Appendf(nil, "%d", i)})
	}
	if err := cl.ProduceSync(testContext(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// connect connects the way that a command does.
func (k *kafka) connect(t *testing.T) *cluster.Client {
	t.Helper()
	cl, err := cluster.Connect(testContext(t), cluster.Config{BootstrapServers: k.Bootstrap()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// fromEarliest makes the group begin at the beginning, with further configs.
func (k *kafka) fromEarliest(t *testing.T, configs ...string) {
	t.Helper()
	cl := k.connect(t)
	configs = append(configs, "share.auto.offset.reset", "earliest")
	for i := 0; i < len(configs); i += 2 {
		if err := cl.SetGroupConfig(testContext(t), k.group, configs[i], configs[i+1]); err != nil {
			t.Fatal(err)
		}
	}
}

// member joins the group; what it is told to worry about fails the test.
func (k *kafka) member(t *testing.T, cfg share.Config) *share.Consumer {
	t.Helper()
	cfg.GroupID, cfg.Topics = k.group, []string{k.topic}
	if cfg.Warn == nil {
		cfg.Warn = func(err error) { t.Errorf("Warn: %v", err) }
	}
	if cfg.Lost == nil {
		cfg.Lost = func(err error) { t.Errorf("Lost: %v", err) }
	}
	c, err := share.NewConsumer(testContext(t), k.connect(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func poll(t *testing.T, c *share.Consumer, n int) *share.Batch {
	t.Helper()
	b, err := c.Poll(testContext(t), n)
	if err != nil {
		t.Fatalf("Poll: %v", err)
	}
	return b
}

func acknowledge(t *testing.T, c *share.Consumer, b *share.Batch, typ wire.AcknowledgeType) {
	t.Helper()
	if err := c.Acknowledge(testContext(t), b, b.All(typ)); err != nil {
		t.Fatalf("Acknowledge as %s: %v", typ, err)
	}
}

// offsets are the records of a batch, as "partition/offset".
func offsets(b *share.Batch) map[string]int16 {
	out := make(map[string]int16)
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			out[fmt.Sprintf("%d/%d", p.Partition, r.Offset)] = p.DeliveryCount(r.Offset)
		}
	}
	return out
}

// wantLag asks Kafka's own tool, and the request that it sends, what is left to
// consume.
func (k *kafka) wantLag(t *testing.T, want int64) {
	t.Helper()
	if lag := k.lag(t); lag != want {
		t.Errorf("DescribeShareGroupOffsets of %s: lag %d, want %d", k.group, lag, want)
	}
	out, err := k.Tool(testContext(t), kafkatest.ShareGroupTool, "--describe", "--group", k.group, "--offsets")
	if err != nil {
		t.Fatal(err)
	}
	lag, rows := int64(0), 0
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == k.group {
			var n int64
			if _, err := fmt.Sscan(f[4], &n); err != nil {
				t.Fatalf("lag in %q: %v", line, err)
			}
			lag += n
			rows++
		}
	}
	if rows == 0 || lag != want {
		t.Errorf("kafka-share-groups: lag %d in %d rows, want %d:\n%s", lag, rows, want, out)
	}
}

// lag is -1 when the broker does not know, as before the first acknowledgement.
func (k *kafka) lag(t *testing.T) int64 {
	t.Helper()
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID = k.group
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(testContext(t), k.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	var lag int64
	for _, topic := range resp.Groups[0].Topics {
		for _, p := range topic.Partitions {
			if p.Lag < 0 {
				return -1
			}
			lag += p.Lag
		}
	}
	return lag
}

func TestEveryRecordOnceOnKafka(t *testing.T) {
	onKafka(t, func(t *testing.T, k *kafka) {
		const n, partitions = 10_000, 3
		k.create(t, partitions)
		k.fromEarliest(t)
		k.produce(t, n, kgo.ProducerBatchCompression(kgo.ZstdCompression()))
		c := k.member(t, share.Config{})
		seen := make(map[string]int16, n)
		for len(seen) < n {
			b := poll(t, c, 500)
			for o, deliveries := range offsets(b) {
				if seen[o]++; seen[o] > 1 || deliveries != 1 {
					t.Fatalf("record %s was returned %d times, delivery count %d", o, seen[o], deliveries)
				}
			}
			acknowledge(t, c, b, wire.Accept)
		}
		if len(c.Assigned()) != partitions {
			t.Errorf("assigned %v, want %d partitions", c.Assigned(), partitions)
		}
		k.wantLag(t, 0)
	})
}

func TestReleasedRecordsComeAgainOnKafka(t *testing.T) {
	onKafka(t, func(t *testing.T, k *kafka) {
		k.create(t, 1)
		k.fromEarliest(t)
		k.produce(t, 10)
		c := k.member(t, share.Config{})
		first := poll(t, c, 10)
		acknowledge(t, c, first, wire.Release)
		second := poll(t, c, 10)
		for o := range offsets(first) {
			if count := offsets(second)[o]; count != 2 {
				t.Errorf("record %s after its release: delivery count %d, want 2", o, count)
			}
		}
		k.wantLag(t, 10)
		acknowledge(t, c, second, wire.Reject)
		k.wantLag(t, 0)
		k.produce(t, 1)
		third := poll(t, c, 10)
		if got := offsets(third); len(got) != 1 || got["0/10"] != 1 {
			t.Errorf("after a reject: %v, want the record produced since", got)
		}
		acknowledge(t, c, third, wire.Accept)
	})
}

func TestCloseReleasesOnKafka(t *testing.T) {
	onKafka(t, func(t *testing.T, k *kafka) {
		k.create(t, 1)
		k.fromEarliest(t, "share.record.lock.duration.ms", "60000")
		k.produce(t, 10)
		first := k.member(t, share.Config{})
		held := poll(t, first, 4)
		if held.Len() != 4 {
			t.Fatalf("Poll(4) returned %d records", held.Len())
		}
		second := k.member(t, share.Config{})
		began := time.Now()
		if err := first.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]int16)
		for len(seen) < 10 {
			b := poll(t, second, 10)
			for o, count := range offsets(b) {
				seen[o] = count
			}
			acknowledge(t, second, b, wire.Accept)
		}
		// A session would have held them for 45 s, a lock for 60 s.
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("records came %s after Close", d)
		}
		for o, count := range seen {
			if count != 2 {
				t.Errorf("record %s after Close: delivery count %d, want 2", o, count)
			}
		}
		k.wantLag(t, 0)
	})
}

func TestRenewOnKafka(t *testing.T) {
	onKafka(t, func(t *testing.T, k *kafka) {
		const lock = 5 * time.Second // a machine may be slow to renew
		k.create(t, 1)
		k.fromEarliest(t, "share.record.lock.duration.ms", fmt.Sprint(lock.Milliseconds()))
		k.produce(t, 5)
		c := k.member(t, share.Config{})
		b := poll(t, c, 5)
		if b.LockDuration() != lock {
			t.Fatalf("lock duration %s, want %s", b.LockDuration(), lock)
		}
		// Until a lock of another record, taken later and not renewed, expires.
		k.produce(t, 1)
		later := poll(t, c, 1)
		renewals := 0
		ticker := time.NewTicker(lock / 4)
		defer ticker.Stop()
		redelivered := make(chan *share.Batch)
		go func() {
			b, err := c.Poll(testContext(t), 10)
			if err != nil {
				t.Error(err)
			}
			redelivered <- b
		}()
		var again *share.Batch
		for again == nil {
			select {
			case <-ticker.C:
				before := b.LockDeadline()
				if err := c.Renew(testContext(t), b); err != nil {
					t.Fatalf("Renew: %v", err)
				}
				if !b.LockDeadline().After(before) {
					t.Error("Renew did not move the deadline")
				}
				renewals++
			case again = <-redelivered:
			}
		}
		if got := offsets(again); len(got) != 1 || got["0/5"] != 2 {
			t.Errorf("came again: %v, want the record that was not renewed (%v)", got, offsets(later))
		}
		if renewals == 0 {
			t.Error("nothing was renewed before a lock expired")
		}
		acknowledge(t, c, b, wire.Accept)
		acknowledge(t, c, again, wire.Accept)
		k.wantLag(t, 0)
	})
}

// In 4.1 share groups are a preview, without record limit, renewal and lag.
func TestPreviewOnKafka(t *testing.T) {
	k := newKafka(t, kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka41, Features: map[string]int16{"share.version": 1}}))
	const n = 100
	k.create(t, 1)
	k.fromEarliest(t)
	k.produce(t, n)
	c := k.member(t, share.Config{})
	for _, typ := range []wire.AcknowledgeType{wire.Release, wire.Accept} {
		for seen := 0; seen < n; {
			b := poll(t, c, 30)
			seen += b.Len()
			if typ == wire.Release {
				err := c.Renew(testContext(t), b)
				if !errors.Is(err, kerr.UnsupportedVersion) && !errors.Is(err, kerr.InvalidRequest) {
					t.Errorf("Renew: %v", err)
				}
			}
			acknowledge(t, c, b, typ)
		}
	}
	k.produce(t, 1)
	if got := offsets(poll(t, c, n)); len(got) != 1 || got[fmt.Sprintf("0/%d", n)] != 1 {
		t.Errorf("after all were accepted: %v, want the record produced since", got)
	}
}

func TestTransactionMarkersOnKafka(t *testing.T) {
	onKafka(t, func(t *testing.T, k *kafka) {
		k.create(t, 1)
		k.fromEarliest(t)
		ctx := testContext(t)
		cl := k.Client(t, kgo.TransactionalID(k.group), kgo.DefaultProduceTopic(k.topic))
		for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryCommit} {
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := cl.ProduceSync(ctx, &kgo.Record{Value: fmt.Appendf(nil, "%d", i)}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			if err := cl.EndTransaction(ctx, end); err != nil {
				t.Fatal(err)
			}
		}
		c := k.member(t, share.Config{})
		n, gaps := 0, int64(0)
		for n < 9 {
			b := poll(t, c, math.MaxInt)
			n += b.Len()
			a := new(share.Acknowledgements)
			for _, p := range b.Partitions {
				for _, r := range p.Records {
					if want := fmt.Sprint(r.Offset / 4); string(r.Value) != want {
						t.Errorf("offset %d is %q, want %q", r.Offset, r.Value, want)
					}
					a.Add(p.TopicPartition, r.Offset, wire.Accept)
				}
				for _, g := range p.Gaps {
					a.AddRange(p.TopicPartition, g, wire.Gap)
					gaps += g.Len()
				}
			}
			if err := c.Acknowledge(ctx, b, a); err != nil {
				t.Fatal(err)
			}
		}
		if gaps != 3 {
			t.Errorf("%d gaps, want one for each end of a transaction", gaps)
		}
		k.wantLag(t, 0)
	})
}

// The leader of a third of the partitions, which may be a coordinator too, is
// restarted while a member works.
func TestBrokerRestartOnKafka(t *testing.T) {
	c := kafkatest.Start(t, kafkatest.Config{Nodes: 3})
	k := newKafka(t, c)
	const n = 3000
	k.create(t, 6)
	k.fromEarliest(t)
	k.produce(t, n)
	drop := func(error) {} // a restart is worth a warning
	m := k.member(t, share.Config{MaxRecords: 100, Warn: drop, Lost: drop})
	seen := make(map[string]int16, n)
	work := func(until int) {
		for len(seen) < until {
			b := poll(t, m, 100)
			for o := range offsets(b) {
				seen[o]++
			}
			// What a stopped broker did not answer comes again.
			if err := m.Acknowledge(testContext(t), b, b.All(wire.Accept)); err != nil {
				t.Log(err)
			}
		}
	}
	work(n / 3)
	c.StopNode(t, 2)
	work(n * 2 / 3)
	c.StartNode(t, 2)
	work(n)
	// Some are left whose acknowledgement was lost.
	for k.lag(t) != 0 {
		ctx, cancel := context.WithTimeout(testContext(t), time.Second)
		b, err := m.Poll(ctx, 100)
		cancel()
		if err == nil {
			acknowledge(t, m, b, wire.Accept)
		}
	}
	k.wantLag(t, 0)
}

func wantUnsupported(t *testing.T, err error, reason string) {
	t.Helper()
	u, ok := errors.AsType[*cluster.UnsupportedError](err)
	if !ok || u.Reason != reason {
		t.Errorf("%T %v, want an UnsupportedError: %s", err, err, reason)
	}
}

func TestNoShareGroupsOnKafka(t *testing.T) {
	k := newKafka(t, kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka40}))
	_, err := share.NewConsumer(testContext(t), k.connect(t), share.Config{GroupID: k.group, Topics: []string{k.topic}})
	wantUnsupported(t, err, "these brokers do not know it: 1")
}

func TestShareGroupsSwitchedOffOnKafka(t *testing.T) {
	k := newKafka(t, kafkatest.Start(t, kafkatest.Config{}))
	k.create(t, 1)
	k.fromEarliest(t)
	k.produce(t, 1)
	cfg := share.Config{GroupID: k.group, Topics: []string{k.topic}}
	c, err := share.NewConsumer(testContext(t), k.connect(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	acknowledge(t, c, poll(t, c, 1), wire.Accept)
	if _, err := k.Tool(testContext(t), kafkatest.FeatureTool, "downgrade", "--feature", "share.version=0"); err != nil {
		t.Fatal(err)
	}
	_, err = c.Poll(testContext(t), 1)
	wantUnsupported(t, err, "share.version is 0")
	if err := c.Close(testContext(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	_, err = share.NewConsumer(testContext(t), k.connect(t), cfg)
	wantUnsupported(t, err, "share.version is 0")
}

// A member has fetched more than it has polled when it loses the session.
func TestLostSessionOnKafka(t *testing.T) {
	const n = 10
	drop := func(error) {}
	// begin holds 4 of the records and has the others in store.
	begin := func(t *testing.T, k *kafka) (*share.Consumer, *share.Batch) {
		t.Helper()
		k.create(t, 1)
		// A broker does not release what a member holds when it opens a session
		// anew: only the locks end it.
		k.fromEarliest(t, "share.record.lock.duration.ms", "1000")
		k.produce(t, n)
		c := k.member(t, share.Config{Warn: drop, Lost: drop})
		b := poll(t, c, 4)
		if b.Len() != 4 {
			t.Fatalf("Poll(4) returned %d records", b.Len())
		}
		return c, b
	}
	finish := func(t *testing.T, k *kafka, c *share.Consumer) {
		t.Helper()
		seen := make(map[string]bool)
		for len(seen) < n {
			b := poll(t, c, n)
			for o := range offsets(b) {
				seen[o] = true
			}
			acknowledge(t, c, b, wire.Accept)
		}
		k.wantLag(t, 0)
	}
	t.Run("by a restart of the broker", func(t *testing.T) {
		k := newKafka(t, kafkatest.Start(t, sharedConfig(kafkatest.Kafka44)))
		c, held := begin(t, k)
		k.StopNode(t, 1)
		k.StartNode(t, 1)
		if err := c.Acknowledge(testContext(t), held, held.All(wire.Accept)); err == nil {
			t.Error("acknowledged in a session that ended with its connection")
		}
		finish(t, k, c)
	})
	t.Run("by removal from the group", func(t *testing.T) {
		k := newKafka(t, kafkatest.Shared(t, sharedConfig(kafkatest.Kafka44)))
		c, _ := begin(t, k)
		leave := kmsg.NewPtrShareGroupHeartbeatRequest()
		leave.GroupID, leave.MemberID, leave.MemberEpoch = k.group, c.GroupMetadata().MemberID, -1
		if _, err := leave.RequestWith(testContext(t), k.Client(t)); err != nil {
			t.Fatal(err)
		}
		for ctx := testContext(t); len(c.Assigned()) > 0; {
			if ctx.Err() != nil {
				t.Fatal("the member does not learn that it was removed")
			}
		}
		finish(t, k, c)
	})
}
