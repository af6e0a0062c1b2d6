package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A share consumer that knows nothing of this sandbox gets every record once.
func TestForeignShareConsumers(t *testing.T) {
	e := startShareE2E(t, "kip", 4)
	const records, consumers = 2000, 3
	for n := range int32(4) {
		e.produce(n, records/4)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	got := make(chan string, records)
	for n := range consumers {
		cl := newTestClient(t, e.s, kgo.ShareGroup(e2eGroup), kgo.ConsumeTopics(e2eTopic), kgo.ClientID(fmt.Sprint("c", n)))
		go func() {
			for ctx.Err() == nil {
				cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) { got <- fmt.Sprint(r.Partition, "/", r.Offset) })
			}
		}()
	}
	seen := make(map[string]int)
	for len(seen) < records {
		select {
		case id := <-got:
			seen[id]++
		case <-ctx.Done():
			t.Fatalf("%d of %d records came", len(seen), records)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		if seen[id] != 1 {
			t.Errorf("record %s came %d times", id, seen[id])
		}
	}
}

// Under read_committed the records of an open transaction come when it commits,
// those of an aborted one never, and a waiting fetch is told.
func TestReadCommittedSource(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(map[bool]string{true: "commit", false: "abort"}[commit], func(t *testing.T) {
			e := startShareE2E(t, "draft", 1)
			e.setGroupConfig("share.isolation.level", "read_committed")
			up := newTestClient(t, e.s, kgo.TransactionalID("up"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			if err := up.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if err := up.ProduceSync(testContext(t), &kgo.Record{Topic: e2eTopic, Value: []byte("open")}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			e.produce(0, 3) // behind the open transaction
			m := e.join("m")
			if got := m.acquire(0); len(got) != 0 {
				t.Fatalf("acquired %v of an open transaction", got)
			}
			ended := make(chan error)
			go func() {
				ended <- up.EndTransaction(testContext(t), kgo.TransactionEndTry(commit))
			}()
			var got []acquiredRange
			e.await(func() bool {
				got = m.acquire(0)
				return len(got) > 0
			})
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			want := []acquiredRange{delivered(5, 7, 1)}
			if commit {
				want = []acquiredRange{delivered(0, 7, 1)}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("acquired %v, want %v", got, want)
			}
			// Offset 8 is the end marker: it is passed without anybody's help.
			if got := m.acquire(0); len(got) != 0 {
				t.Fatalf("acquired %v, which is an end marker", got)
			}
		})
	}
}
