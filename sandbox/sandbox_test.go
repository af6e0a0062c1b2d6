package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// startSandbox starts a sandbox that ends with the test.
func startSandbox(t testing.TB, opts ...Option) *Sandbox {
	t.Helper()
	s, err := Start(t.Context(), append([]Option{WithLogger(t.Logf)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close sandbox: %v", err)
		}
	})
	return s
}

// newTestClient returns a client that ends with the test.
func newTestClient(t testing.TB, s *Sandbox, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.Addrs()...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// produceValues produces n records "v0", "v1", ... and waits for them.
func produceValues(t testing.TB, cl *kgo.Client, topic string, n int) {
	t.Helper()
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "v%d", i)}
	}
	if err := cl.ProduceSync(testContext(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// consumeValues polls until n distinct values have come.
func consumeValues(t testing.TB, cl *kgo.Client, n int) map[string]int {
	t.Helper()
	ctx := testContext(t)
	got := make(map[string]int)
	for len(got) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d values: %v", len(got), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { got[string(r.Value)]++ })
	}
	return got
}

func TestClientThroughGateway(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "orders"}))
	produceValues(t, newTestClient(t, s), "orders", 1000)
	group := newTestClient(t, s, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for v, n := range consumeValues(t, group, 1000) {
		if n != 1 {
			t.Errorf("value %q came %d times", v, n)
		}
	}
}

func fmtPort(port int32) string { return strconv.Itoa(int(port)) }

// sealBatch sets the CRC of a batch that was changed.
func sealBatch(b []byte) {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[batchCRCStart:], castagnoli()))
}

// What kfake could not write is told, once for all partitions of a full disk, and
// again when some time has passed.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told, logged []string
		l := kfakeLogger{
			logf: func(format string, args ...any) { logged = append(logged, fmt.Sprintf(format, args...)) },
			warn: oncePerPause(func(text string) { told = append(told, text) }),
		}
		full := errors.New("write x.dat: no space left on device")
		l.Logf(kfake.LogLevelWarn, "persist batch %s-%d: %v", "a", 0, full)
		l.Logf(kfake.LogLevelWarn, "persist batch %s-%d: %v", "a", 1, full)
		l.Logf(kfake.LogLevelError, "persist to disk: %v", errors.New("permission denied"))
		l.Logf(kfake.LogLevelWarn, "txn: EndTxn slow")
		l.Logf(kfake.LogLevelInfo, "persist nothing")
		bubbleSleep(warnPause)
		l.Logf(kfake.LogLevelWarn, "persist batch %s-%d: %v", "a", 2, full)
		want := []string{
			"persist batch a-0: write x.dat: no space left on device", "persist to disk: permission denied",
			"persist batch a-2: write x.dat: no space left on device",
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		if !slices.Equal(logged, []string{"kfake: txn: EndTxn slow"}) {
			t.Errorf("logged %q", logged)
		}
	})
}
