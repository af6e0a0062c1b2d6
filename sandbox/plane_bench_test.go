package sandbox

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// BenchmarkShareTransactions moves records of 100 bytes through ShareFetch,
// TxnShareAcknowledge and EndTxn: an operation is one transaction of 500
// records, and every partition has a member and a producer of its own.
func BenchmarkShareTransactions(b *testing.B) {
	const perTxn = 500
	for _, partitions := range []int{1, 6} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			e := startShareE2E(b, "kip", int32(partitions), WithLogger(func(string, ...any) {}))
			each := (b.N + partitions - 1) / partitions
			value := make([]byte, 100)
			members := make([]*e2eMember, partitions)
			producers := make([]*e2eProducer, partitions)
			for n := range partitions {
				rs := make([]*kgo.Record, each*perTxn)
				for i := range rs {
					rs[i] = &kgo.Record{Topic: e2eTopic, Partition: int32(n), Value: value}
				}
				if err := e.cl.ProduceSync(testContext(b), rs...).FirstErr(); err != nil {
					b.Fatal(err)
				}
				members[n], producers[n] = e.join(fmt.Sprint("m", n)), e.producer(fmt.Sprint("t", n), time.Minute)
			}
			for _, m := range members {
				m.heartbeat()
			}
			b.ResetTimer()
			var wg sync.WaitGroup
			for n, m := range members {
				p := producers[n]
				wg.Go(func() {
					for range each {
						for _, r := range rangesOf(m.fetch(perTxn, int32(n)), int32(n)) {
							p.mustStage(m, e2eStage{int32(n), r.first, r.last, nil})
						}
						p.mustEnd(true)
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(each*perTxn*partitions)/b.Elapsed().Seconds(), "records/s")
			for n := range partitions {
				e.wantStates(int32(n))
			}
		})
	}
}
