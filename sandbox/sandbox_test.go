package sandbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
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
