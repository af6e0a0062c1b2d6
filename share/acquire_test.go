package share_test

import (
	"context"
	"errors"
	"fmt"
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

// newLog starts a sandbox with topic "in" of one partition, n records in it, and
// a group "g" that one member has read the first `done` records of.
func newLog(t *testing.T, n, done int, opts ...sandbox.Option) *cluster.Client {
	t.Helper()
	opts = append([]sandbox.Option{sandbox.WithTopics(sandbox.Topic{Name: "one", Partitions: 1})}, opts...)
	cl := newCluster(t, 0, opts...)
	p, err := cl.NewKgo(kgo.DefaultProduceTopic("one"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for i := range n {
		if err := p.ProduceSync(t.Context(), &kgo.Record{Value: fmt.Append(nil, i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	c := memberOfOne(t, cl)
	for done > 0 {
		done -= acknowledgeNext(t, c, done, wire.Accept)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cl
}

func memberOfOne(t *testing.T, cl *cluster.Client) *share.Consumer {
	t.Helper()
	return join(t, cl, func(cfg *share.Config) { cfg.Topics, cfg.MaxRecords = []string{"one"}, 4 })
}

func acknowledgeNext(t *testing.T, c *share.Consumer, n int, typ wire.AcknowledgeType) int {
	t.Helper()
	b, err := c.Poll(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	acknowledgeAs(t, c, typ)(b)
	return b.Len()
}

func acquire(t *testing.T, cl *cluster.Client, wait time.Duration, ranges ...share.Range) *share.Acquisition {
	t.Helper()
	cfg := share.AcquireConfig{GroupID: "g", Wait: wait, Warn: func(err error) { t.Log(err) }}
	for _, r := range ranges {
		cfg.Ranges = append(cfg.Ranges, share.AskedRange{Topic: "one", Range: r})
	}
	a, err := share.AcquireRanges(t.Context(), cl, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return a
}

// said is reports in short.
func said(a *share.Acquisition) string {
	out := ""
	for _, r := range a.Reports {
		out += fmt.Sprintf("%d-%d %s; ", r.FirstOffset, r.LastOffset, r.Status)
	}
	return out
}

func wantReports(t *testing.T, a *share.Acquisition, want string) {
	t.Helper()
	if got := said(a); got != want {
		t.Errorf("reports %q, want %q", got, want)
		for _, r := range a.Reports {
			t.Logf("%+v", r)
		}
	}
}

// Exactly what was asked for is held; what lies before it goes back, with one
// delivery less left; and nothing after it was touched.
func TestAcquireRanges(t *testing.T) {
	cl := newLog(t, 30, 5)
	a := acquire(t, cl, 0, share.Range{FirstOffset: 8, LastOffset: 9}, share.Range{FirstOffset: 9, LastOffset: 11}, share.Range{FirstOffset: 20, LastOffset: 20})
	wantReports(t, a, "8-11 acquired; 20-20 acquired; ")
	if !a.Complete() || a.Batch.Len() != 5 || a.Batch.Acquired() != 5 || a.GroupMetadata().MemberEpoch < 1 {
		t.Errorf("the batch has %d records, complete %v, as %+v", a.Batch.Len(), a.Complete(), a.GroupMetadata())
	}
	if a.Bystanders != 3+8 || a.MaxDeliveryCount < 1 {
		t.Errorf("%d bystanders, delivered up to %d times; want 11, delivered once", a.Bystanders, a.MaxDeliveryCount)
	}
	if err := a.Acknowledge(t.Context(), a.Batch.All(wire.Accept)); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What was acknowledged out of order is not counted as on the way to 24: 21 to 23.
	later := acquire(t, cl, 0, share.Range{FirstOffset: 24, LastOffset: 24}, share.Range{FirstOffset: 5, LastOffset: 7}, share.Range{FirstOffset: 12, LastOffset: 19})
	if later.Bystanders != 3 || !later.Complete() {
		t.Errorf("%d bystanders, complete %v; want 3, true", later.Bystanders, later.Complete())
	}
	if err := later.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := memberOfOne(t, cl)
	got := make(map[int64]bool)
	for len(got) < 20 {
		b, err := c.Poll(t.Context(), 30)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range b.Partitions {
			for _, r := range p.Records {
				got[r.Offset] = true
			}
		}
		acknowledgeAs(t, c, wire.Accept)(b)
	}
	for o := int64(5); o < 30; o++ {
		if asked := o >= 8 && o <= 11 || o == 20; got[o] == asked {
			t.Errorf("offset %d came again: %v, and was asked for: %v", o, got[o], asked)
		}
	}
	wantNothing(t, c)
}

// What cannot be had is named by what it is.
func TestAcquireRangesThatCannotBeHad(t *testing.T) {
	cl := newLog(t, 20, 4)
	// 4 and 5 are rejected, 6 and 7 are held by another member.
	other := memberOfOne(t, cl)
	b, err := other.Poll(t.Context(), 4)
	if err != nil {
		t.Fatal(err)
	}
	acks := new(share.Acknowledgements)
	acks.AddRange(b.Partitions[0].TopicPartition, share.Range{FirstOffset: 5, LastOffset: 5}, wire.Reject)
	if err := other.Acknowledge(t.Context(), b, acks); err != nil {
		t.Fatal(err)
	}
	a := acquire(t, cl, 0, share.Range{FirstOffset: 0, LastOffset: 8}, share.Range{FirstOffset: 18, LastOffset: 25})
	if a.Complete() {
		t.Error("it is said to be complete")
	}
	for _, r := range a.Reports {
		var want share.RangeStatus
		switch {
		case r.LastOffset < 4, r.FirstOffset == 5:
			want = share.RangeTerminal
		case r.LastOffset < 8:
			want = share.RangeLocked // 4, 6 and 7, and what the other one fetched ahead
		case r.FirstOffset >= 20:
			want = share.RangeBeyondEnd
		default:
			continue
		}
		if r.Status != want || r.Reason == "" {
			t.Errorf("%d-%d are %s (%s), want %s", r.FirstOffset, r.LastOffset, r.Status, r.Reason, want)
		}
	}
	// Once the other one has gone, they can be had.
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := acquire(t, cl, 0, share.Range{FirstOffset: 6, LastOffset: 7})
	wantReports(t, again, "6-7 acquired; ")
}

// Nothing is joined for what is known beforehand not to be there.
func TestAcquireRangesWithoutJoining(t *testing.T) {
	cl := newLog(t, 6, 4)
	a := acquire(t, cl, time.Minute, share.Range{FirstOffset: 0, LastOffset: 3}, share.Range{FirstOffset: 6, LastOffset: 9})
	wantReports(t, a, "0-3 terminal; 6-9 beyond the end; ")
	if m := a.GroupMetadata(); m != (share.GroupMetadata{}) || a.Batch.Acquired() != 0 {
		t.Errorf("a member %+v holds %d offsets", m, a.Batch.Acquired())
	}
}

// What can be told beforehand is told without a member, and without a delivery.
func TestDescribeRanges(t *testing.T) {
	cl := newLog(t, 20, 4)
	one, err := cl.Topics(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	cfg := share.AcquireConfig{GroupID: "g"}
	for _, r := range []share.Range{{FirstOffset: 2, LastOffset: 5}, {FirstOffset: 10, LastOffset: 10}, {FirstOffset: 19, LastOffset: 25}} {
		cfg.Ranges = append(cfg.Ranges, share.AskedRange{Topic: "one", Range: r})
	}
	d, err := share.DescribeRanges(t.Context(), cl, cfg)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, r := range d.Reports {
		got += fmt.Sprintf("%d-%d %s; ", r.FirstOffset, r.LastOffset, r.Status)
		if r.TopicID != one["one"].ID || r.Reason == "" {
			t.Errorf("report %+v", r)
		}
	}
	if want := "2-3 terminal; 4-5 not tried; 10-10 not tried; 19-19 not tried; 20-25 beyond the end; "; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	// 6 to 9 and 11 to 18 lie on the way.
	if d.Bystanders != 12 {
		t.Errorf("%d bystanders, want 12", d.Bystanders)
	}
}

// With a time to wait, what another member holds is had when it gives it back.
func TestAcquireRangesWaits(t *testing.T) {
	cl := newLog(t, 10, 0)
	other := memberOfOne(t, cl)
	if _, err := other.Poll(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	// It looks at the clock when it begins, when it fetches, and when it has found
	// out that it has to wait.
	var looks atomic.Int32
	waits := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		<-waits
		done <- other.Close(t.Context())
	}()
	a, err := share.AcquireRanges(t.Context(), cl, share.AcquireConfig{
		GroupID: "g", Wait: 20 * time.Second,
		Ranges: []share.AskedRange{{Topic: "one", Range: share.Range{FirstOffset: 1, LastOffset: 2}}},
		Now: func() time.Time {
			if looks.Add(1) == 4 {
				close(waits)
			}
			return time.Now()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(context.WithoutCancel(t.Context()))
	wantReports(t, a, "1-2 acquired; ")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAcquireRangesRefuses(t *testing.T) {
	cl := newLog(t, 4, 1)
	r := share.Range{FirstOffset: 1, LastOffset: 2}
	for name, tt := range map[string]struct {
		cfg  share.AcquireConfig
		want error
	}{
		"no group":            {share.AcquireConfig{Ranges: []share.AskedRange{{Topic: "one", Range: r}}}, nil},
		"no ranges":           {share.AcquireConfig{GroupID: "g"}, nil},
		"no range":            {share.AcquireConfig{GroupID: "g", Ranges: []share.AskedRange{{Topic: "one", Range: share.Range{FirstOffset: 2, LastOffset: 1}}}}, nil},
		"an unknown topic":    {share.AcquireConfig{GroupID: "g", Ranges: []share.AskedRange{{Topic: "two", Range: r}}}, kerr.UnknownTopicOrPartition},
		"no such partition":   {share.AcquireConfig{GroupID: "g", Ranges: []share.AskedRange{{Topic: "one", Partition: 1, Range: r}}}, kerr.UnknownTopicOrPartition},
		"an unknown group":    {share.AcquireConfig{GroupID: "none", Ranges: []share.AskedRange{{Topic: "one", Range: r}}}, kerr.GroupIDNotFound},
		"a member ID to long": {share.AcquireConfig{GroupID: "g", MemberID: "0123456789012345678901234567890123456", Ranges: []share.AskedRange{{Topic: "one", Range: r}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := share.AcquireRanges(t.Context(), cl, tt.cfg)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("AcquireRanges(%+v) = %+v, %v; want %v", tt.cfg, a, err, tt.want)
			}
			if e, ok := errors.AsType[*cluster.Error](err); ok && e.Hint() == "" {
				t.Errorf("%v: it does not say what to do", err)
			}
		})
	}
}

// Why something was not acquired is shown to principals with CLUSTER_ACTION; the
// others get as much as they can see.
func TestAcquireRangesWithoutClusterAction(t *testing.T) {
	allow := func(resource kmsg.ACLResourceType, name string, operation kmsg.ACLOperation) sandbox.ACL {
		return sandbox.ACL{Principal: "User:eve", Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: operation}
	}
	sb, err := sandbox.Start(t.Context(),
		sandbox.WithTopics(sandbox.Topic{Name: "one", Partitions: 1}),
		sandbox.WithUsers(sandbox.User{Name: "admin", Password: "a", Super: true}, sandbox.User{Name: "eve", Password: "e"}),
		sandbox.WithACLs(allow(kmsg.ACLResourceTypeTopic, "one", kmsg.ACLOperationRead), allow(kmsg.ACLResourceTypeGroup, "g", kmsg.ACLOperationRead)),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close() })
	connect := func(user, password string) *cluster.Client {
		cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs(), SASL: plainSASL(user, password)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	admin := connect("admin", "a")
	if err := admin.SetGroupConfig(t.Context(), "g", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	p, err := admin.NewKgo(kgo.DefaultProduceTopic("one"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 6 {
		if err := p.ProduceSync(t.Context(), &kgo.Record{}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	holder := memberOfOne(t, admin)
	if _, err := holder.Poll(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	a := acquire(t, connect("eve", "e"), 0, share.Range{FirstOffset: 0, LastOffset: 1})
	wantReports(t, a, "0-1 not offered; ")
}
