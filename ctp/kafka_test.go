package ctp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(programEnv); mode != "" {
		os.Exit(program(mode)) //nolint:forbidigo // it is a process of its own
	}
	kafkatest.Main(m)
}

// requestCounter counts the requests that go out on the connections it dials,
// by api key.
type requestCounter struct {
	mu   sync.Mutex
	keys map[int16]int
}

func (c *requestCounter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, c: c}, nil
}

func (c *requestCounter) count(keys ...int16) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, k := range keys {
		n += c.keys[k]
	}
	return n
}

// countedConn reads the frames of requests as they are written.
type countedConn struct {
	net.Conn
	c    *requestCounter
	head []byte // of a frame: its length and api key
	skip int    // bytes of the frame that are still to come
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	for _, b := range p[:n] {
		if c.skip > 0 {
			c.skip--
			continue
		}
		if c.head = append(c.head, b); len(c.head) == 6 {
			c.c.mu.Lock()
			c.c.keys[int16(binary.BigEndian.Uint16(c.head[4:]))]++
			c.c.mu.Unlock()
			c.skip = int(binary.BigEndian.Uint32(c.head)) - 2
			c.head = c.head[:0]
		}
	}
	return n, err
}

// kafkaEnv is a real Kafka with topics "in" and "out" of the test's own.
func kafkaEnv(t *testing.T, k *kafkatest.Cluster, counter *requestCounter) (cl *cluster.Client, opts ctp.Options) {
	t.Helper()
	cfg := cluster.Config{BootstrapServers: k.Bootstrap()}
	if counter != nil {
		cfg.Dialer = counter.dial
	}
	cl, err := cluster.Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	name := strings.NewReplacer("/", "-").Replace(t.Name())
	for _, topic := range []string{name + "-in", name + "-out"} {
		if _, err := kadm.NewClient(k.Client(t)).CreateTopic(t.Context(), 4, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	return cl, ctp.Options{
		From: name + "-in", To: name + "-out", GroupID: name, UntilEmpty: true,
		AutoOffsetReset: "earliest", IsolationLevel: "read_committed",
		Warn: func(err error) { t.Logf("warning: %v", err) },
	}
}

// On Kafka 4.4 the numbers of the KIP mean other things: nothing of them is sent,
// and the group is not joined.
func TestExactlyOnceIsRefusedByReleasedKafka(t *testing.T) {
	kafkatest.Need(t)
	k := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44})
	counter := &requestCounter{keys: make(map[int16]int)}
	cl, opts := kafkaEnv(t, k, counter)
	res, err := ctp.Run(t.Context(), cl, opts)
	u, ok := errors.AsType[*cluster.UnsupportedError](err)
	if !ok || res != nil {
		t.Fatalf("Run = %+v, %v; want it refused", res, err)
	}
	for _, part := range []string{"dead-letter queues", "StreamsGroupTopologyDescriptionUpdate"} {
		if !strings.Contains(u.Error(), part) {
			t.Errorf("the reason is %q, want it to name %s", u, part)
		}
	}
	const heartbeat, initProducerID, fetch, txnAck, unregister, draftAck = 76, 22, 78, 93, 94, 95
	if n := counter.count(heartbeat, initProducerID, fetch, txnAck, unregister, draftAck); n != 0 {
		t.Errorf("%d requests of a member, a producer or the KIP were sent: %v", n, counter.keys)
	}
	if counter.count(18) == 0 {
		t.Error("no ApiVersions was counted: the counter does not work")
	}
}

// At-least-once works on released Kafka: nothing is lost, and afterwards the
// group has no lag by Kafka's own tool.
func TestAtLeastOnceOnReleasedKafka(t *testing.T) {
	kafkatest.Need(t)
	for version, records := range map[string]int{kafkatest.Kafka44: 200_000, kafkatest.Kafka42: 20_000} {
		t.Run(version, func(t *testing.T) {
			k := kafkatest.Shared(t, kafkatest.Config{Version: version})
			cl, opts := kafkaEnv(t, k, nil)
			opts.Guarantee, opts.Workers = ctp.AtLeastOnce, 2
			produceTo(t, k, opts.From, records)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			res, err := ctp.Run(ctx, cl, opts)
			if err != nil {
				t.Fatalf("Run = %+v, %v", res, err)
			}
			if res.Consumed != int64(records) || res.Produced != int64(records) || res.Unconfirmed != 0 {
				t.Errorf("Run = %+v, want %d records and all acknowledged", res, records)
			}
			seen := readKeys(t, k, opts.To, int(res.Produced))
			if len(seen) != records {
				t.Errorf("%d different records of %d arrived", len(seen), records)
			}
			wantNoLag(t, k, opts.GroupID)
		})
	}
}

// Where all that a group had left was deleted, as retention does, Kafka goes on
// reporting it as its lag. It is nothing to wait for.
func TestUntilEmptyAfterDeletion(t *testing.T) {
	kafkatest.Need(t)
	k := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44})
	cl, opts := kafkaEnv(t, k, nil)
	opts.Guarantee, opts.MaxRecords, opts.BatchRecords = ctp.AtLeastOnce, 20, 5
	produceTo(t, k, opts.From, 400)
	if res, err := ctp.Run(t.Context(), cl, opts); err != nil || res.Consumed != 20 {
		t.Fatalf("Run = %+v, %v", res, err)
	}
	adm := kadm.NewClient(k.Client(t))
	ends, err := adm.ListEndOffsets(t.Context(), opts.From)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := adm.DeleteRecords(t.Context(), ends.Offsets()); err != nil {
		t.Fatal(err)
	}
	out, err := k.Tool(t.Context(), kafkatest.ShareGroupTool, "--describe", "--offsets", "--group", opts.GroupID)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("Kafka's own tool:\n%s", out)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	opts.MaxRecords = 0
	if res, err := ctp.Run(ctx, cl, opts); err != nil || res.Consumed != 0 {
		t.Errorf("Run = %+v, %v; want it to end, with nothing", res, err)
	}
	if lag, err := ctp.Lag(t.Context(), cl, opts.GroupID, opts.From); err != nil || lag != 0 {
		t.Errorf("Lag = %d, %v", lag, err)
	}
}

// A group that is new and begins at the end of the log has no start offset before its
// first acknowledgement: nothing that the log had before is left of it, and that is
// no stall. What the run itself holds is one.
func TestStallBeforeFirstAcknowledgement(t *testing.T) {
	kafkatest.Need(t)
	k := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44})
	counter := &requestCounter{keys: make(map[int16]int)}
	cl, opts := kafkaEnv(t, k, counter)
	opts.Guarantee, opts.AutoOffsetReset, opts.UntilEmpty = ctp.AtLeastOnce, "latest", false
	opts.StallTimeout = 2 * time.Second
	produceTo(t, k, opts.From, 40)

	lookedTwice := errors.New("it looked twice")
	describeOffsets := new(kmsg.DescribeShareGroupOffsetsRequest).Key()
	idle, end := context.WithCancelCause(t.Context())
	defer end(nil)
	var helpers sync.WaitGroup
	helpers.Go(func() {
		every(idle, func() {
			if counter.count(describeOffsets) > 1 {
				end(lookedTwice)
			}
		})
	})
	res, err := ctp.Run(idle, cl, opts)
	if !errors.Is(err, lookedTwice) || res.Consumed != 0 {
		t.Errorf("Run = %+v, %v; want it to go on with nothing to do", res, err)
	}

	limited, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	waiting, held := context.WithCancel(limited)
	opts.Transform = func(ctx context.Context, _ *kgo.Record) ([]*kgo.Record, error) {
		held()
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	producer := k.Client(t, kgo.DefaultProduceTopic(opts.From))
	helpers.Go(func() {
		every(waiting, func() {
			if err := producer.ProduceSync(limited, kgo.StringRecord("late")).FirstErr(); err != nil {
				t.Error(err)
			}
		})
	})
	res, err = ctp.Run(limited, cl, opts)
	if stalled, ok := errors.AsType[*ctp.StalledError](err); !ok || stalled.Err != nil {
		t.Errorf("Run that holds a record = %+v, %v; want a StalledError", res, err)
	}
	end(nil)
	held()
	helpers.Wait()
}

// every calls do every 50 ms until the context ends.
func every(ctx context.Context, do func()) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do()
		case <-ctx.Done():
			return
		}
	}
}

func produceTo(t *testing.T, k *kafkatest.Cluster, topic string, n int) {
	t.Helper()
	cl := k.Client(t, kgo.DefaultProduceTopic(topic), kgo.MaxBufferedRecords(n+1))
	var failed error
	for i := range n {
		cl.Produce(t.Context(), &kgo.Record{Key: []byte(strconv.Itoa(i)), Value: make([]byte, 50)}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := cl.Flush(t.Context()); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// readKeys reads n committed records and returns how often each key came.
func readKeys(t *testing.T, k *kafkatest.Cluster, topic string, n int) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cl := k.Client(t, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	seen := make(map[string]int)
	for read := 0; read < n; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d records read: %v", read, n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Key)]++; read++ })
	}
	return seen
}

// wantNoLag asks Kafka's own tool.
func wantNoLag(t *testing.T, k *kafkatest.Cluster, group string) {
	t.Helper()
	out, err := k.Tool(t.Context(), "org.apache.kafka.tools.consumer.group.ShareGroupCommand", "--describe", "--offsets", "--group", group)
	if err != nil {
		t.Fatal(err)
	}
	partitions := 0
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 5 || f[0] != group {
			continue
		}
		partitions++
		if lag := f[len(f)-1]; lag != "0" {
			t.Errorf("lag %s: %s", lag, line)
		}
	}
	if partitions != 4 {
		t.Errorf("the tool tells of %d partitions, want 4:\n%s", partitions, out)
	}
}
