package sandbox

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// A hundred transactions that are aborted, interleaved with others that are not,
// and listed in any order: each of their batches is hidden, and no other.
func TestLogWindowOfInterleavedAborts(t *testing.T) {
	const producers, aborts, each = 120, 100, 3
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var log strings.Builder
		var aborted []abortedTxn
		offset := int64(0)
		add := func(producer int, marker string) {
			fmt.Fprintf(&log, "%d-%d:%d%s ", offset, offset, producer, marker)
			offset++
		}
		for round := range each {
			for _, p := range rnd.Perm(producers) {
				if round == 0 && p < aborts {
					aborted = append(aborted, abortedTxn{producerID: int64(p + 1), firstOffset: offset})
				}
				add(p+1, "")
			}
		}
		for _, p := range rnd.Perm(producers) {
			add(p+1, "c")
			if p%2 == 0 { // the next transaction of this producer is committed
				add(p+1, "")
				add(p+1, "c")
			}
		}
		rnd.Shuffle(len(aborted), func(i, j int) { aborted[i], aborted[j] = aborted[j], aborted[i] })
		w, err := newLogWindow(0, testLog(t, log.String()), true, aborted)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range w.batches {
			want := b.control || b.producerID <= aborts && b.first < producers*each
			if b.hidden != want {
				t.Fatalf("seed %d: the batch of producer %d at offset %d is hidden: %v, want %v", seed, b.producerID, b.first, b.hidden, want)
			}
		}
	}
}
