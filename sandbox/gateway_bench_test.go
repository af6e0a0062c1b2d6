package sandbox

import (
	"bytes"
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The cost of the gateway: the same work against kfake itself and through the
// gateway. The ratio is direct/gateway, 1 for a gateway that costs nothing.

const benchTopic = "bench"

func benchDirect(b *testing.B) []string {
	b.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(6, benchTopic))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c.ListenAddrs()
}

func benchGateway(b *testing.B) []string {
	b.Helper()
	s, err := Start(b.Context(), WithBrokers(1), WithTopics(Topic{Name: benchTopic, Partitions: 6}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s.Addrs()
}

func benchClient(b *testing.B, addrs []string, opts ...kgo.Opt) *kgo.Client {
	b.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addrs...), kgo.ProducerBatchCompression(kgo.NoCompression())}, opts...)...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cl.Close)
	return cl
}

// benchProduce produces n records of size bytes.
func benchProduce(b *testing.B, cl *kgo.Client, n, size int) {
	b.Helper()
	value := bytes.Repeat([]byte("x"), size)
	ctx := context.Background()
	for range n {
		cl.Produce(ctx, &kgo.Record{Topic: benchTopic, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkGateway(b *testing.B) {
	targets := []struct {
		name  string
		start func(*testing.B) []string
	}{{"kfake", benchDirect}, {"gateway", benchGateway}}
	work := []struct {
		name string
		run  func(*testing.B, []string)
	}{
		{"metadata", func(b *testing.B, addrs []string) {
			cl := benchClient(b, addrs)
			req := kmsg.NewPtrMetadataRequest()
			req.Topics = []kmsg.MetadataRequestTopic{} // brokers alone; nil would be all topics
			for b.Loop() {
				if _, err := req.RequestWith(b.Context(), cl); err != nil {
					b.Fatal(err)
				}
			}
		}},
		{"produce", func(b *testing.B, addrs []string) {
			cl := benchClient(b, addrs)
			const n, size = 10_000, 1000
			b.SetBytes(n * size)
			for b.Loop() {
				benchProduce(b, cl, n, size)
			}
		}},
		{"fetch", func(b *testing.B, addrs []string) {
			const n, size = 50_000, 1000
			benchProduce(b, benchClient(b, addrs), n, size)
			b.SetBytes(n * size)
			for b.Loop() {
				cl := benchClient(b, addrs, kgo.ConsumeTopics(benchTopic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
				for got := 0; got < n; {
					fetches := cl.PollFetches(b.Context())
					if err := fetches.Err(); err != nil {
						b.Fatal(err)
					}
					got += fetches.NumRecords()
				}
				cl.Close()
			}
		}},
	}
	for _, w := range work {
		b.Run(w.name, func(b *testing.B) {
			var direct float64
			for _, target := range targets {
				b.Run(target.name, func(b *testing.B) {
					addrs := target.start(b)
					w.run(b, addrs)
					perOp := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
					if target.name == "kfake" {
						direct = perOp
					} else if direct > 0 {
						b.ReportMetric(direct/perOp, "ratio")
					}
				})
			}
		})
	}
}
