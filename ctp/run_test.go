package ctp_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// env is a sandbox with topics "in" and "out", and a connection to it.
type env struct {
	t  *testing.T
	sb *sandbox.Sandbox
	cl *cluster.Client

	dial    func(ctx context.Context, network, address string) (net.Conn, error) // nil dials TCP
	network func(ctx context.Context, network, address string) (net.Conn, error) // of a bubble, without what dial does
	limit   time.Duration                                                        // of a run, 0 is a minute
	restart func(down time.Duration)                                             // of the sandbox, with its data directory
	lose    atomic.Pointer[func(key int16) bool]                                 // requests that no broker gets
	fate    atomic.Pointer[func(address string, frame []byte) fate]              // of the others
}

func newEnv(t *testing.T, dialect string, opts ...sandbox.Option) *env {
	t.Helper()
	d, ok := wire.DialectByName(dialect)
	if !ok {
		t.Fatalf("no dialect %q", dialect)
	}
	opts = append([]sandbox.Option{
		sandbox.WithDialect(d),
		sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 4}, sandbox.Topic{Name: "out", Partitions: 3}),
	}, opts...)
	sb, err := sandbox.Start(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Errorf("close sandbox: %v", err)
		}
	})
	cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &env{t: t, sb: sb, cl: cl}
}

func (e *env) client(opts ...kgo.Opt) *kgo.Client {
	e.t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(e.sb.Addrs()...)}, opts...)
	if e.dial != nil {
		opts = append(opts, kgo.Dialer(e.dial))
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(cl.Close)
	return cl
}

// shareState is what the tests look at in the sandbox's state.
type shareState struct {
	Groups []struct {
		GroupID string `json:"group_id"`
		Members []struct {
			MemberID string `json:"member_id"`
		} `json:"members"`
	} `json:"groups"`
	Sessions   []json.RawMessage `json:"sessions"`
	Partitions []struct {
		Ranges []struct {
			FirstOffset   int64  `json:"first_offset"`
			LastOffset    int64  `json:"last_offset"`
			State         string `json:"state"`
			DeliveryCount int16  `json:"delivery_count"`
		} `json:"ranges"`
	} `json:"partitions"`
}

func (e *env) share() (pending int, s shareState) {
	e.t.Helper()
	st, err := e.sb.State()
	if err == nil {
		err = json.Unmarshal(st.Share, &s)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return st.Pending, s
}

// wantQuiet fails unless nothing is pending or acquired, no session is open and
// no member is left.
func (e *env) wantQuiet() {
	e.t.Helper()
	pending, s := e.share()
	members, held := 0, 0
	for _, g := range s.Groups {
		members += len(g.Members)
	}
	for _, p := range s.Partitions {
		for _, r := range p.Ranges {
			if r.State == wire.Acquired.String() || r.State == wire.TxPending.String() {
				held++
			}
		}
	}
	if pending != 0 || held != 0 || len(s.Sessions) != 0 || members != 0 {
		e.t.Errorf("after the run: %d records TX_PENDING, %d ranges held, %d share sessions, %d members; want none", pending, held, len(s.Sessions), members)
	}
}

// produce writes n records with values from "0" on.
func (e *env) produce(n int, value func(i int) []byte) {
	e.t.Helper()
	cl := e.client(kgo.DefaultProduceTopic("in"))
	var rs []*kgo.Record
	for i := range n {
		rs = append(rs, &kgo.Record{
			Key: []byte(strconv.Itoa(i)), Value: value(i), Timestamp: time.UnixMilli(int64(1000 + i)),
			Headers: []kgo.RecordHeader{{Key: "b", Value: []byte("1")}, {Key: "a"}, {Key: "b", Value: []byte{}}},
		})
	}
	if err := cl.ProduceSync(e.t.Context(), rs...).FirstErr(); err != nil {
		e.t.Fatal(err)
	}
}

func plain(i int) []byte { return []byte(strconv.Itoa(i)) }

// committed returns everything that a read_committed consumer finds in "out".
func (e *env) committed() []*kgo.Record {
	e.t.Helper()
	return e.read("out")
}

// read returns everything that a read_committed consumer finds in a topic.
func (e *env) read(topic string) []*kgo.Record {
	e.t.Helper()
	cl := e.client(
		kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	ends := e.ends(topic)
	var out []*kgo.Record
	next := make(map[int32]int64)
	for {
		done := true
		for p, end := range ends {
			done = done && next[p] >= end
		}
		if done {
			return out
		}
		fetches := cl.PollFetches(e.t.Context())
		if err := fetches.Err(); err != nil {
			e.t.Fatal(err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			for _, r := range p.Records {
				next[r.Partition] = r.Offset + 1
				if !r.Attrs.IsControl() {
					out = append(out, r)
				}
			}
			next[p.Partition] = max(next[p.Partition], abortedUpTo(p))
		})
	}
}

// abortedUpTo is how far a fetched partition is known to be read: an aborted
// batch at its end leaves no record to tell.
func abortedUpTo(p kgo.FetchTopicPartition) int64 {
	if len(p.Records) == 0 {
		return 0
	}
	return p.Records[len(p.Records)-1].Offset + 1
}

// ends returns the last stable offset of each partition of a topic.
func (e *env) ends(topic string) map[int32]int64 {
	e.t.Helper()
	topics, err := e.cl.Topics(e.t.Context(), topic)
	if err != nil {
		e.t.Fatal(err)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, 1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for _, p := range topics[topic].Partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.Partition, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(e.t.Context(), e.cl.Requestor())
	if err != nil {
		e.t.Fatal(err)
	}
	out := make(map[int32]int64)
	for _, p := range resp.Topics[0].Partitions {
		out[p.Partition] = p.Offset
	}
	return out
}

func (e *env) options() ctp.Options {
	return ctp.Options{
		From: "in", To: "out", GroupID: "g", AutoOffsetReset: "earliest", IsolationLevel: "read_committed", UntilEmpty: true,
		Warn: func(err error) { e.t.Logf("warning: %v", err) },
	}
}

func (e *env) run(opts ctp.Options) *ctp.Result {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), cmp.Or(e.limit, 10*time.Minute))
	defer cancel()
	res, err := ctp.Run(ctx, e.cl, opts)
	if err != nil {
		e.t.Fatalf("Run: %v (%+v)", err, res)
	}
	return res
}

// wantEachOnce fails unless the values are those of records 0 to n-1, except
// skip, each once.
func wantEachOnce(t *testing.T, got []*kgo.Record, n int, skip func(i int) bool) {
	t.Helper()
	counts := make(map[string]int)
	for _, r := range got {
		counts[string(r.Key)]++
	}
	for i := range n {
		want := 1
		if skip != nil && skip(i) {
			want = 0
		}
		if c := counts[strconv.Itoa(i)]; c != want {
			t.Errorf("record %d is there %d times, want %d", i, c, want)
		}
	}
}

func eachDialect(t *testing.T, do func(t *testing.T, dialect string)) {
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			do(t, d.Name)
		})
	}
}

func TestRunCopiesEverythingOnce(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		const n = 3000
		e.produce(n, plain)
		opts := e.options()
		opts.BatchRecords = 250
		res := e.run(opts)
		if res.Consumed != n || res.Produced != n || res.Acknowledged != n || res.Aborted != 0 || res.Unknown != 0 || res.Committed < n/250 {
			t.Errorf("Run = %+v, want all %d consumed, produced and acknowledged, nothing aborted", res, n)
		}
		got := e.committed()
		wantEachOnce(t, got, n, nil)
		for _, r := range got {
			i, _ := strconv.Atoi(string(r.Key))
			want := fmt.Sprint([]kgo.RecordHeader{{Key: "b", Value: []byte("1")}, {Key: "a"}, {Key: "b", Value: []byte{}}})
			if string(r.Value) != strconv.Itoa(i) || r.Timestamp.UnixMilli() != int64(1000+i) || fmt.Sprint(r.Headers) != want || r.Headers[1].Value != nil {
				t.Fatalf("record %d arrived as %q at %d with %v", i, r.Value, r.Timestamp.UnixMilli(), r.Headers)
			}
		}
		e.wantQuiet()
	})
}

func TestRunOnErrorReject(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		const n = 1000
		bad := func(i int) bool { return i%100 == 7 }
		e.produce(n, func(i int) []byte {
			if bad(i) {
				return []byte("{")
			}
			return plain(i)
		})
		opts := e.options()
		opts.OnError = ctp.Reject
		opts.Transform = mustJQ(t, ". * 2")
		res := e.run(opts)
		if res.Consumed != n || res.Rejected != 10 || res.Produced != n-10 {
			t.Errorf("Run = %+v, want %d consumed, 10 rejected", res, n)
		}
		got := e.committed()
		wantEachOnce(t, got, n, bad)
		for _, r := range got {
			if i, _ := strconv.Atoi(string(r.Key)); string(r.Value) != strconv.Itoa(2*i) {
				t.Fatalf("record %d became %q", i, r.Value)
			}
		}
	})
}

func mustJQ(t *testing.T, expr string) ctp.Transform {
	t.Helper()
	tr, err := ctp.JQ(expr)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestRunOnErrorFailLosesNothing(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		e.produce(100, func(i int) []byte {
			if i == 50 {
				return []byte("not json")
			}
			return plain(i)
		})
		opts := e.options()
		opts.Transform = mustJQ(t, ".")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		res, err := ctp.Run(ctx, e.cl, opts)
		rec, ok := errors.AsType[*ctp.RecordError](err)
		if !ok || rec.Topic != "in" || !strings.Contains(err.Error(), "not JSON") {
			t.Fatalf("Run = %+v, %v; want a *RecordError about topic in", res, err)
		}
		if got := e.committed(); int64(len(got)) != res.Produced {
			t.Errorf("%d records are committed, the result says %d", len(got), res.Produced)
		}
		// Once the record is tolerated, everything else arrives, still once.
		opts.OnError = ctp.Reject
		second := e.run(opts)
		if res.Consumed+second.Consumed != 100 || second.Rejected != 1 {
			t.Errorf("runs consumed %d and %d with %d rejected, want 100 in all and 1", res.Consumed, second.Consumed, second.Rejected)
		}
		wantEachOnce(t, e.committed(), 100, func(i int) bool { return i == 50 })
	})
}

// A released record comes again until the delivery count limit archives it.
func TestRunOnErrorRelease(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		const n = 60
		bad := func(i int) bool { return i == 13 }
		e.produce(n, func(i int) []byte {
			if bad(i) {
				return []byte("{")
			}
			return plain(i)
		})
		opts := e.options()
		opts.OnError = ctp.Release
		opts.Transform = mustJQ(t, ".")
		res := e.run(opts)
		if res.Consumed != n-1 || res.Released != 5 || res.Rejected != 0 {
			t.Errorf("Run = %+v, want %d consumed and 1 released 5 times", res, n-1)
		}
		wantEachOnce(t, e.committed(), n, bad)
	})
}

// A transaction that holds acknowledgements and no record is ended by an EndTxn
// of our own, and the producer goes on with a new epoch.
func TestRunWithBatchesThatProduceNothing(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		const n = 400
		e.produce(n, plain)
		opts := e.options()
		opts.BatchRecords = 40
		opts.Transform = mustJQ(t, "select(. % 97 == 0)")
		res := e.run(opts)
		if res.Consumed != n || res.Produced != 5 || res.Aborted != 0 {
			t.Errorf("Run = %+v, want %d consumed and 5 produced", res, n)
		}
		wantEachOnce(t, e.committed(), n, func(i int) bool { return i%97 != 0 })
	})
}

func TestRunMaxRecords(t *testing.T) {
	e := newEnv(t, "kip")
	e.produce(1000, plain)
	opts := e.options()
	opts.UntilEmpty = false
	opts.MaxRecords = 333
	opts.Workers = 3
	opts.BatchRecords = 50
	res := e.run(opts)
	if res.Consumed != 333 || res.Produced != 333 {
		t.Errorf("Run = %+v, want exactly 333", res)
	}
	if got := e.committed(); len(got) != 333 {
		t.Errorf("%d records are committed, want 333", len(got))
	}
	opts.MaxRecords, opts.UntilEmpty = 0, true
	if rest := e.run(opts); rest.Consumed != 667 {
		t.Errorf("the next run consumed %d, want the other 667", rest.Consumed)
	}
	wantEachOnce(t, e.committed(), 1000, nil)
}

// A run that is to consume few records takes few: each one that it acquires and
// gives back has one delivery less left.
func TestRunMaxRecordsTakesNoMore(t *testing.T) {
	e := newEnv(t, "kip")
	e.produce(1000, plain)
	opts := e.options()
	opts.UntilEmpty, opts.MaxRecords = false, 5
	if res := e.run(opts); res.Consumed != 5 {
		t.Errorf("Run = %+v, want 5 consumed", res)
	}
	_, s := e.share()
	n := int64(0)
	for _, p := range s.Partitions {
		for _, r := range p.Ranges {
			if r.DeliveryCount > 0 {
				n += r.LastOffset - r.FirstOffset + 1
			}
		}
	}
	// Beside these 5, of each of 3 leaders 5 may wait and 5 be on their way.
	if n < 5 || n > 5+3*2*5 {
		t.Errorf("%d records were acquired, to consume 5", n)
	}
}

// Aborted and open source transactions are not copied by a group that reads
// committed records, and control records do not stop either kind of group.
func TestRunFromTransactionalSource(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		cl := e.client(kgo.DefaultProduceTopic("in"), kgo.TransactionalID("upstream"))
		for i := range 40 {
			if err := cl.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			for j := range 5 {
				cl.Produce(t.Context(), &kgo.Record{Key: []byte(strconv.Itoa(5*i + j)), Value: plain(i)}, nil)
			}
			if err := cl.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := cl.EndTransaction(t.Context(), kgo.TransactionEndTry(i%2 == 0)); err != nil {
				t.Fatal(err)
			}
		}
		res := e.run(e.options())
		if res.Consumed != 100 {
			t.Errorf("Run = %+v, want the 100 committed records", res)
		}
		wantEachOnce(t, e.committed(), 200, func(i int) bool { return i/5%2 != 0 })

		dirty := e.options()
		dirty.GroupID, dirty.IsolationLevel = "dirty", "read_uncommitted"
		if res := e.run(dirty); res.Consumed != 200 {
			t.Errorf("a group that reads uncommitted records consumed %d, want 200", res.Consumed)
		}
	})
}

// When the context ends in the middle of a batch, nothing of it is visible and
// everything comes again.
func TestRunStoppedMidBatch(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		e.produce(500, plain)
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		opts := e.options()
		opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
			if string(r.Key) == "250" {
				cancel(stopped)
			}
			return []*kgo.Record{r}, nil
		}
		res, err := ctp.Run(ctx, e.cl, opts)
		if !errors.Is(err, stopped) {
			t.Fatalf("Run = %+v, %v; want the cause %v", res, err, stopped)
		}
		e.wantQuiet()
		opts.Transform = nil
		second := e.run(opts)
		if res.Consumed+second.Consumed != 500 {
			t.Errorf("runs consumed %d and %d, want 500 in all", res.Consumed, second.Consumed)
		}
		wantEachOnce(t, e.committed(), 500, nil)
	})
}

// A second run with the same transactional ID fences the first one, which stops
// and says so. What the first one holds and cannot release any more comes back
// with its locks, which are short here.
func TestRunFencedByAnother(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect, sandbox.WithBrokerConfigs(map[string]string{"group.share.record.lock.duration.ms": "1000"}))
		e.produce(200, plain)
		opts := e.options()
		opts.UntilEmpty, opts.BatchRecords = false, 10
		reached, goOn := make(chan struct{}), make(chan struct{})
		opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
			if string(r.Key) == "100" {
				close(reached)
				<-goOn
			}
			return []*kgo.Record{r}, nil
		}
		type done struct {
			res *ctp.Result
			err error
		}
		first := make(chan done)
		go func() {
			res, err := ctp.Run(t.Context(), e.cl, opts)
			first <- done{res, err}
		}()
		<-reached
		second := e.options()
		second.MaxRecords, second.UntilEmpty = 1, false
		if res := e.run(second); res.Consumed != 1 {
			t.Errorf("the second run consumed %d, want 1", res.Consumed)
		}
		close(goOn)
		f := <-first
		if !errors.Is(f.err, kerr.ProducerFenced) && !errors.Is(f.err, kerr.InvalidProducerEpoch) {
			t.Fatalf("the first run ended with %+v, %v; want it fenced", f.res, f.err)
		}
		rest := e.run(e.options())
		if got := f.res.Consumed + 1 + rest.Consumed; got != 200 {
			t.Errorf("the runs consumed %d, want 200 in all", got)
		}
		wantEachOnce(t, e.committed(), 200, nil)
	})
}

// A run that was fenced ends in the midst of a transform when it finds out, and leaves
// the place in the group to the one that has it now: both go by one member ID.
func TestRunFencedLeavesItsPlace(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const n = 60
			e.produce(n, plain)
			ctx, cancel := context.WithTimeout(e.t.Context(), e.limit)
			defer cancel()
			opts := e.options()
			opts.UntilEmpty, opts.BatchRecords = false, 10
			reached := make(chan struct{})
			opts.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				if string(r.Key) == "30" {
					close(reached)
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return []*kgo.Record{r}, nil
			}
			var wg sync.WaitGroup
			var first, second *ctp.Result
			var firstErr, secondErr error
			ended := make(chan struct{})
			wg.Go(func() {
				defer close(ended)
				first, firstErr = ctp.Run(ctx, e.cl, opts)
			})
			<-reached
			done := errors.New("done")
			ctx2, stop := context.WithCancelCause(ctx)
			next := e.options()
			next.UntilEmpty, next.Counts = false, new(ctp.Counts)
			wg.Go(func() { second, secondErr = ctp.Run(ctx2, e.cl, next) })
			for next.Counts.Consumed.Load() == 0 && ctx.Err() == nil {
				bubbleSleep(10 * time.Millisecond)
			}
			since := time.Now()
			<-ended
			if took := time.Since(since); took > 20*time.Second {
				e.t.Errorf("the first run went on for %s, want it to end when it renews its locks, after 15 s", took)
			}
			if _, s := e.share(); len(s.Groups) != 1 || len(s.Groups[0].Members) != 1 {
				e.t.Errorf("the groups are %+v after the first run, want the second one's member in it", s.Groups)
			}
			for next.Counts.Consumed.Load()+first.Consumed < n && ctx.Err() == nil {
				bubbleSleep(time.Second)
			}
			stop(done)
			wg.Wait()
			if _, fenced := errors.AsType[*txn.FencedError](firstErr); !fenced || !errors.Is(secondErr, done) {
				e.t.Errorf("the runs ended with %v and %v, want the first one fenced", firstErr, secondErr)
			}
			e.wantOutcome(n, first, second)
		})
	})
}

func TestRunRefusesBeforeItJoins(t *testing.T) {
	e := newEnv(t, "kip", sandbox.WithBrokerConfigs(map[string]string{"transaction.max.timeout.ms": "60000"}))
	tests := map[string]struct {
		change func(*ctp.Options)
		want   string
	}{
		"unknown source":       {func(o *ctp.Options) { o.From = "nope" }, `describe topic "nope": UNKNOWN_TOPIC_OR_PARTITION`},
		"unknown destination":  {func(o *ctp.Options) { o.To = "nope" }, `describe topic "nope": UNKNOWN_TOPIC_OR_PARTITION`},
		"source is the target": {func(o *ctp.Options) { o.To = "in" }, "consumed again for ever"},
		"internal destination": {func(o *ctp.Options) { o.To = "__share_group_state" }, "internal"},
		"timeout too long":     {func(o *ctp.Options) { o.TxnTimeout = 2 * time.Hour }, "at most 1m0s (transaction.max.timeout.ms=60000)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			opts := e.options()
			tt.change(&opts)
			res, err := ctp.Run(t.Context(), e.cl, opts)
			if res != nil || err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Run = %+v, %v; want an error with %q", res, err, tt.want)
			}
			if _, s := e.share(); len(s.Groups) != 0 {
				t.Errorf("share groups %v were made by a run that was refused", s.Groups)
			}
		})
	}
}

func TestRunNeedsTheFeature(t *testing.T) {
	e := newEnv(t, "kip", sandbox.WithShareVersion(1))
	res, err := ctp.Run(t.Context(), e.cl, e.options())
	u, ok := errors.AsType[*cluster.UnsupportedError](err)
	if !ok || res != nil || !strings.Contains(u.Reason, "share.version is finalized at 1") {
		t.Errorf("Run = %+v, %v; want it refused for share.version", res, err)
	}
}

func TestRunOnEmptySource(t *testing.T) {
	e := newEnv(t, "draft")
	var warned []error
	opts := e.options()
	opts.Warn = func(err error) { warned = append(warned, err) }
	res := e.run(opts)
	if res.Consumed != 0 || !slices.ContainsFunc(warned, func(err error) bool { return errors.Is(err, ctp.ErrNothingConsumed) }) {
		t.Errorf("Run = %+v with warnings %v, want 0 and a warning that nothing was consumed", res, warned)
	}
}

// A run that goes on says once that it got nothing: a group that is new reads
// nothing of what is there unless it is told to.
func TestRunSaysThatItGotNothing(t *testing.T) {
	for _, reset := range []string{"", "earliest"} {
		bubble(t, "kip", func(e *env) {
			e.produce(5, func(int) []byte { return []byte("1") })
			var warned []error
			opts := e.options()
			opts.UntilEmpty, opts.AutoOffsetReset, opts.GroupID = false, reset, "new"
			opts.Warn = func(err error) { warned = append(warned, err) }
			ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
			defer cancel()
			res, _ := ctp.Run(ctx, e.cl, opts)
			said := 0
			for _, err := range warned {
				if errors.Is(err, ctp.ErrNothingYet) && strings.Contains(err.Error(), `share group "new"`) && strings.Contains(err.Error(), "--auto-offset-reset earliest") {
					said++
				}
			}
			if want := map[string]int{"": 1}[reset]; said != want || (res.Consumed == 0) != (want == 1) {
				t.Errorf("from %q: consumed %d, said %d times of %v, want %d", reset, res.Consumed, said, warned, want)
			}
		})
	}
}

// closeSessions closes the share sessions of a member behind its back.
func closeSessions(ctx context.Context, cl *kgo.Client, member string) error {
	req := kmsg.NewPtrShareAcknowledgeRequest()
	req.GroupID, req.MemberID, req.ShareSessionEpoch = kmsg.StringPtr("g"), &member, -1
	for node := range 3 {
		if _, err := cl.Broker(node).Request(ctx, req); err != nil {
			return err
		}
	}
	return nil
}

// A member that is thrown out of the group, or whose share sessions are closed
// behind its back, joins and opens them again; the batch that it lost is aborted.
func TestRunSurvivesTheLossOfItsPlace(t *testing.T) {
	losses := map[string]func(ctx context.Context, cl *kgo.Client, member string) error{
		"membership": func(ctx context.Context, cl *kgo.Client, member string) error {
			req := kmsg.NewPtrShareGroupHeartbeatRequest()
			req.GroupID, req.MemberID, req.MemberEpoch = "g", member, -1
			_, err := req.RequestWith(ctx, cl)
			return err
		},
		"share sessions": closeSessions,
	}
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				e := newEnv(t, dialect)
				const n = 600
				e.produce(n, plain)
				admin := e.client()
				opts := e.options()
				opts.BatchRecords = 50
				lost := false
				opts.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
					if string(r.Key) == "300" && !lost {
						lost = true
						_, s := e.share()
						if err := loss(ctx, admin, s.Groups[0].Members[0].MemberID); err != nil {
							return nil, err
						}
					}
					return []*kgo.Record{r}, nil
				}
				res := e.run(opts)
				if res.Consumed != n || !lost {
					t.Errorf("Run = %+v, want %d consumed", res, n)
				}
				wantEachOnce(t, e.committed(), n, nil)
				e.wantQuiet()
			})
		})
	}
}

// Without KIP-1289, records are committed first and acknowledged then.
func TestRunAtLeastOnce(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect, sandbox.WithShareVersion(1))
		const n = 2000
		bad := func(i int) bool { return i%100 == 7 }
		e.produce(n, func(i int) []byte {
			if bad(i) {
				return []byte("{")
			}
			return plain(i)
		})
		opts := e.options()
		opts.Guarantee, opts.BatchRecords, opts.OnError = ctp.AtLeastOnce, 300, ctp.Reject
		opts.Transform = mustJQ(t, ".")
		res := e.run(opts)
		if res.Consumed != n || res.Rejected != n/100 || res.Produced != n-n/100 || res.Unconfirmed != 0 || res.Dialect != "" {
			t.Errorf("Run = %+v, want %d consumed and %d rejected", res, n, n/100)
		}
		wantEachOnce(t, e.committed(), n, bad)
		e.wantQuiet()
	})
}

// Records whose share session ends between the commit and their acknowledgement
// are produced again, and counted as what may be.
func TestRunAtLeastOnceRepeatsWhatIsNotAcknowledged(t *testing.T) {
	e := newEnv(t, "kip", sandbox.WithShareVersion(1))
	const n = 200
	e.produce(n, plain)
	opts := e.options()
	opts.Guarantee, opts.BatchRecords = ctp.AtLeastOnce, 20
	lost := false
	opts.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
		if string(r.Key) == "100" && !lost {
			lost = true
			_, s := e.share()
			if err := closeSessions(ctx, e.client(), s.Groups[0].Members[0].MemberID); err != nil {
				return nil, err
			}
		}
		return []*kgo.Record{r}, nil
	}
	res := e.run(opts)
	counts := make(map[string]int)
	for _, r := range e.committed() {
		counts[string(r.Key)]++
	}
	if len(counts) != n || res.Unconfirmed == 0 || int64(len(e.committed())) > n+res.Unconfirmed {
		t.Errorf("%d of %d records arrived, %d in all; the result says %+v", len(counts), n, len(e.committed()), res)
	}
}

// Most of the bootstrap servers are not there: one that answers is enough.
func TestRunWithDeadBootstrapServers(t *testing.T) {
	e := newEnv(t, "kip")
	var servers []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, l.Addr().String())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	servers = append(servers, e.sb.Addrs()[1])
	for i := range 10 { // kgo begins with any of them
		cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: servers})
		if err != nil {
			t.Fatal(err)
		}
		e.produce(1, plain)
		opts := e.options()
		opts.MaxRecords = 1
		res, err := ctp.Run(t.Context(), cl, opts)
		cl.Close()
		if err != nil || res.Consumed != 1 {
			t.Fatalf("run %d: %+v, %v; want one record consumed", i, res, err)
		}
	}
}
