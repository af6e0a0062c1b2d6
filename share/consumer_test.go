package share_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// newCluster starts a sandbox with topic "in", n records in it, and a group "g"
// that reads from the start.
func newCluster(t *testing.T, n int, opts ...sandbox.Option) *cluster.Client {
	t.Helper()
	sb, err := sandbox.Start(t.Context(), append([]sandbox.Option{sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 3})}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := cl.SetGroupConfig(t.Context(), "g", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	producer, err := kgo.NewClient(kgo.SeedBrokers(sb.Addrs()...), kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i := range n {
		r := &kgo.Record{Key: []byte(strconv.Itoa(i)), Value: []byte("v")}
		if err := producer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return cl
}

// join makes a member of group "g", with connections of its own.
func join(t *testing.T, cl *cluster.Client, change func(*share.Config)) *share.Consumer {
	t.Helper()
	own, err := cl.Clone()
	if err != nil {
		t.Fatal(err)
	}
	cfg := share.Config{GroupID: "g", Topics: []string{"in"}, MaxWait: 50 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	c, err := share.NewConsumer(t.Context(), own, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
		own.Close()
	})
	return c
}

// patience is how long a test waits for what is to happen at once. No machine is so
// slow; it ends what would hang.
const patience = 5 * time.Minute

// take polls until n records are there, and returns them by key with how often
// each was delivered.
func take(t *testing.T, c *share.Consumer, n int, do func(*share.Batch)) map[string]int16 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := make(map[string]int16)
	for len(got) < n {
		b, err := c.Poll(ctx, n-len(got))
		if err != nil {
			t.Fatalf("Poll after %d of %d records: %v", len(got), n, err)
		}
		for _, p := range b.Partitions {
			for _, r := range p.Records {
				got[string(r.Key)] = p.DeliveryCount(r.Offset)
			}
		}
		do(b)
	}
	return got
}

// wantNothing fails if a record comes before two fetches from each leader were
// empty.
func wantNothing(t *testing.T, c *share.Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		for c.EmptyFetches() < 6 && ctx.Err() == nil {
		}
		cancel()
	}()
	if b, err := c.Poll(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Poll = %+v, %v; want nothing to be left", b, err)
	}
}

func acknowledgeAs(t *testing.T, c *share.Consumer, typ wire.AcknowledgeType) func(*share.Batch) {
	return func(b *share.Batch) {
		if err := c.Acknowledge(t.Context(), b, b.All(typ)); err != nil {
			t.Fatalf("acknowledge as %s: %v", typ, err)
		}
	}
}

func TestAcceptedRecordsDoNotComeAgain(t *testing.T) {
	c := join(t, newCluster(t, 30), nil)
	got := take(t, c, 30, acknowledgeAs(t, c, wire.Accept))
	for key, count := range got {
		if count != 1 {
			t.Errorf("record %s was delivered %d times at first", key, count)
		}
	}
	wantNothing(t, c)
}

func TestReleasedRecordsComeAgain(t *testing.T) {
	c := join(t, newCluster(t, 10), nil)
	var held []*share.Batch
	take(t, c, 10, func(b *share.Batch) { held = append(held, b) })
	for _, b := range held {
		acknowledgeAs(t, c, wire.Release)(b)
	}
	for key, count := range take(t, c, 10, acknowledgeAs(t, c, wire.Accept)) {
		if count < 2 {
			t.Errorf("record %s came again with delivery count %d", key, count)
		}
	}
	wantNothing(t, c)
}

func TestRejectedRecordsDoNotComeAgain(t *testing.T) {
	c := join(t, newCluster(t, 10), nil)
	take(t, c, 10, acknowledgeAs(t, c, wire.Reject))
	wantNothing(t, c)
}

// Close gives back what was acquired, whether Poll has returned it or not.
func TestCloseReleasesToOthers(t *testing.T) {
	cl := newCluster(t, 20)
	first := join(t, cl, nil)
	take(t, first, 1, func(*share.Batch) {})
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Poll(t.Context(), 1); !errors.Is(err, share.ErrClosed) {
		t.Errorf("Poll after Close: %v, want %v", err, share.ErrClosed)
	}
	second := join(t, cl, nil)
	take(t, second, 20, acknowledgeAs(t, second, wire.Accept))
	wantNothing(t, second)
}

func TestResetReleasesWhatWasFetched(t *testing.T) {
	c := join(t, newCluster(t, 20), nil)
	take(t, c, 5, func(*share.Batch) {})
	c.Reset()
	take(t, c, 20, acknowledgeAs(t, c, wire.Accept))
	wantNothing(t, c)
}

func TestRenewMovesTheDeadline(t *testing.T) {
	c := join(t, newCluster(t, 5), nil)
	take(t, c, 5, func(b *share.Batch) {
		before := b.LockDeadline()
		if b.LockDuration() != 30*time.Second {
			t.Errorf("the lock duration is %s, want 30s", b.LockDuration())
		}
		if err := c.Renew(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if !b.LockDeadline().After(before) {
			t.Errorf("the deadline %s was not moved from %s", b.LockDeadline(), before)
		}
		acknowledgeAs(t, c, wire.Accept)(b)
	})
	wantNothing(t, c)
}

// What a member acknowledges without holding it is refused, by name. What lies
// below the start offset is not: there, a broker has forgotten who held it.
func TestAcknowledgeWhatIsNotHeld(t *testing.T) {
	c := join(t, newCluster(t, 20), nil)
	var held []*share.Batch
	take(t, c, 20, func(b *share.Batch) { held = append(held, b) })
	for _, b := range held {
		p := b.Partitions[0]
		if len(p.Records) < 2 {
			continue
		}
		last := new(share.Acknowledgements)
		last.Add(p.TopicPartition, p.Records[len(p.Records)-1].Offset, wire.Accept)
		if err := c.Acknowledge(t.Context(), b, last); err != nil {
			t.Fatal(err)
		}
		err := c.Acknowledge(t.Context(), b, last)
		e, ok := errors.AsType[*cluster.Error](err)
		if !errors.Is(err, kerr.InvalidRecordState) || !ok || e.Topic != "in" || e.Broker < 0 {
			t.Errorf("a second acknowledgement: %v, want INVALID_RECORD_STATE of a partition and a broker", err)
		}
		return
	}
	t.Fatal("no batch has two records of a partition")
}

func TestTwoMembersShareTheRecords(t *testing.T) {
	cl := newCluster(t, 60)
	a, b := join(t, cl, nil), join(t, cl, nil)
	seen := make(chan string, 60)
	for _, c := range []*share.Consumer{a, b} {
		go func() {
			for {
				batch, err := c.Poll(t.Context(), 5)
				if err != nil {
					return
				}
				if c.Acknowledge(t.Context(), batch, batch.All(wire.Accept)) != nil {
					continue // lost in the rebalance; it comes again
				}
				for _, p := range batch.Partitions {
					for _, r := range p.Records {
						seen <- string(r.Key)
					}
				}
			}
		}()
	}
	got := make(map[string]int)
	for range 60 {
		select {
		case key := <-seen:
			got[key]++
		case <-time.After(patience):
			t.Fatalf("%d of 60 records after %s", len(got), patience)
		}
	}
	if len(got) != 60 {
		t.Errorf("%d different records of 60: some were accepted twice", len(got))
	}
}

// All methods may be called at once, and what each returns is the caller's: the
// race detector finds what is not.
func TestConcurrentUse(t *testing.T) {
	const records = 100
	cl := newCluster(t, records)
	c := join(t, cl, func(cfg *share.Config) { cfg.MaxRecords = 20 })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var accepted atomic.Int64
	var polling, others sync.WaitGroup
	for range 4 {
		polling.Go(func() {
			for accepted.Load() < records {
				b, err := c.Poll(ctx, 3)
				if err != nil {
					return
				}
				if b.LockDeadline().IsZero() || c.CheckHeld(b) != nil {
					t.Error("a batch without a deadline, or that is not held")
				}
				acks := b.All(wire.Accept)
				if err := c.Acknowledge(ctx, b, acks); err != nil {
					t.Errorf("acknowledge: %v", err)
				}
				c.Committed(b, acks)
				if accepted.Add(acks.Count(wire.Accept)) >= records {
					cancel()
				}
			}
		})
	}
	for _, do := range []func(){
		func() {
			// Some of it may be taken and accepted before the broker is asked.
			if err := c.RenewWaiting(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, kerr.InvalidRecordState) {
				t.Errorf("renew: %v", err)
			}
		},
		func() {
			if w := c.Waiting(); w.Acquired() > 0 && (w.LockDeadline().IsZero() || w.LockDuration() != 30*time.Second) {
				t.Errorf("what waits has the deadline %s and the duration %s", w.LockDeadline(), w.LockDuration())
			}
		},
		func() {
			if m := c.GroupMetadata(); m.GroupID != "g" || m.MemberEpoch < 1 {
				t.Errorf("GroupMetadata = %+v", m)
			}
		},
		func() { c.ConfirmMembership(ctx) },
		func() { c.Assigned(); c.EmptyFetches() },
		func() { _ = c.Wait(ctx) },
	} {
		others.Go(func() {
			for ctx.Err() == nil {
				do()
			}
		})
	}
	polling.Wait()
	cancel()
	others.Wait()
	if n := accepted.Load(); n != records {
		t.Errorf("%d of %d records were accepted", n, records)
	}
	// To close it at once is as good as to close it once.
	for range 3 {
		others.Go(func() {
			if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	others.Wait()
}

func TestGroupMetadata(t *testing.T) {
	cl := newCluster(t, 0)
	c := join(t, cl, func(cfg *share.Config) { cfg.MemberID = "me" })
	m := c.GroupMetadata()
	if m.GroupID != "g" || m.MemberID != "me" || m.MemberEpoch < 1 {
		t.Errorf("GroupMetadata = %+v", m)
	}
}

func TestNewConsumerRefuses(t *testing.T) {
	cl := newCluster(t, 0)
	tests := map[string]share.Config{
		"no group":             {Topics: []string{"in"}},
		"no topic":             {GroupID: "g"},
		"a member ID too long": {GroupID: "g", Topics: []string{"in"}, MemberID: "0123456789012345678901234567890123456"},
	}
	for name, cfg := range tests {
		t.Run(name, func(t *testing.T) {
			if c, err := share.NewConsumer(t.Context(), cl, cfg); err == nil {
				_ = c.Close(t.Context())
				t.Error("NewConsumer succeeded")
			}
		})
	}
}

func TestConsumerWithoutPermission(t *testing.T) {
	sb, err := sandbox.Start(t.Context(),
		sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 1}),
		sandbox.WithUsers(sandbox.User{Name: "admin", Password: "a", Super: true}, sandbox.User{Name: "eve", Password: "e"}),
		sandbox.WithACLs(sandbox.ACL{Principal: "User:eve", Resource: kmsg.ACLResourceTypeTopic, Name: "in", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationRead}),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sb.Close() }()
	cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs(), SASL: plainSASL("eve", "e")})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	_, err = share.NewConsumer(t.Context(), cl, share.Config{GroupID: "g", Topics: []string{"in"}})
	a, ok := errors.AsType[*cluster.AuthError](err)
	if !ok || !errors.Is(err, kerr.GroupAuthorizationFailed) || a.Hint() == "" {
		t.Errorf("NewConsumer without READ on the group: %v, want an *AuthError with a hint", err)
	}
}

// A member that gives up what it holds gives it up at leaders too of which it has
// no partition any more: another member gets it before the locks expire.
func TestResetAfterARebalance(t *testing.T) {
	const records = 30
	lock := strconv.FormatInt(2*patience.Milliseconds(), 10)
	cl := newCluster(t, records, sandbox.WithBrokerConfigs(map[string]string{
		"group.share.max.record.lock.duration.ms": lock, "group.share.record.lock.duration.ms": lock,
	}))
	first := join(t, cl, nil)
	take(t, first, records, func(*share.Batch) {})
	second := join(t, cl, nil)
	all := len(first.Assigned())
	for len(first.Assigned()) == all && t.Context().Err() == nil {
		first.ConfirmMembership(t.Context())
	}
	first.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	got := make(map[string]bool)
	var wg sync.WaitGroup
	for _, c := range []*share.Consumer{first, second} {
		wg.Go(func() {
			for {
				b, err := c.Poll(ctx, records)
				if err != nil {
					return // another one has had the last records
				}
				mu.Lock()
				for _, p := range b.Partitions {
					for _, r := range p.Records {
						got[string(r.Key)] = true
					}
				}
				if len(got) == records {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(got) < records {
		t.Errorf("%d of %d records came again before their locks expired", len(got), records)
	}
}
