package sandbox

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
)

// partLoad is the load of the benchmark and of the test of proportions:
// 1,000,000 records over 30 share-partitions, staged record by record with
// accept and reject in turn, so that no two neighbours are alike, and then
// committed.
const (
	partLoadRecords    = 1_000_000
	partLoadPartitions = 30
	partLoadEach       = (partLoadRecords + partLoadPartitions - 1) / partLoadPartitions
	partLoadBatch      = 500 // records of one acquire, and batches of one stage
)

var partLoadLimits = partitionLimits{deliveryCountLimit: 5, maxRecordLocks: partLoadRecords, lockDuration: 30 * time.Second}

func partLoadNew() []*sharePartition {
	var out []*sharePartition
	for range partLoadPartitions {
		p := newSharePartition(shareState{}, wire.Dialects()[0])
		now := partEpoch
		for first := int64(0); first < partLoadEach; first += partLoadBatch {
			p.acquire(now, "m1", []span{{first, min(first+partLoadBatch, partLoadEach) - 1}}, partLoadBatch, true, partLoadLimits)
			now = now.Add(time.Millisecond)
		}
		out = append(out, p)
	}
	return out
}

// partLoadAcks is one request's worth of batches of one record each.
func partLoadAcks(acks []ackBatch, first int64, types [][]int8) []ackBatch {
	acks = acks[:0]
	for o := first; o < min(first+partLoadBatch, partLoadEach); o++ {
		acks = append(acks, ackBatch{span: span{o, o}, types: types[o%2]})
	}
	return acks
}

// partLoadStage stages everything, each request as the transaction of one
// producer, and returns the producers.
func partLoadStage(tb testing.TB, p *sharePartition, acks []ackBatch) []owner {
	tb.Helper()
	var owners []owner
	types := [][]int8{{int8(wire.Accept)}, {int8(wire.Reject)}}
	for first := int64(0); first < partLoadEach; first += partLoadBatch {
		o := owner{int64(len(owners)), 0}
		acks = partLoadAcks(acks, first, types)
		if _, code := p.stage(partEpoch, "m1", o, acks, partLoadLimits); code != 0 {
			tb.Fatalf("stage(%d...) = %d", first, code)
		}
		owners = append(owners, o)
	}
	return owners
}

func partLoadResolve(p *sharePartition, owners []owner) {
	for _, o := range owners {
		p.resolve(partEpoch, o.producerID, func(int16) bool { return true }, true, partLoadLimits)
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkStageResolve stages and commits 1,000,000 records, one batch each.
// It reports the heap that a range costs while all of them are TX_PENDING.
func BenchmarkStageResolve(b *testing.B) {
	acks := make([]ackBatch, 0, partLoadBatch)
	b.ReportAllocs()
	ranges, heap := 0, uint64(0)
	for b.Loop() {
		b.StopTimer()
		ps := partLoadNew()
		before := heapInUse()
		b.StartTimer()
		var owners []owner
		for _, p := range ps {
			owners = partLoadStage(b, p, acks)
		}
		b.StopTimer()
		heap += max(heapInUse(), before) - before
		for _, p := range ps {
			ranges += partLoadRanges(p)
		}
		b.StartTimer()
		for _, p := range ps {
			partLoadResolve(p, owners)
		}
		b.StopTimer()
		for _, p := range ps {
			if p.startOffset() != partLoadEach {
				b.Fatalf("start offset %d, want %d", p.startOffset(), partLoadEach)
			}
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(heap)/float64(ranges), "B/range")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/partLoadRecords, "ns/record")
}

func partLoadRanges(p *sharePartition) int {
	n := 0
	for _, c := range p.window.chunks {
		n += len(c.ranges)
	}
	return n
}

// TestSharePartitionProportions checks that what a share-partition keeps goes
// with the ranges that differ, not with records, operations or history.
func TestSharePartitionProportions(t *testing.T) {
	p := partLoadNew()[0]
	requests := (partLoadEach + partLoadBatch - 1) / partLoadBatch
	size := func(when string, ranges, holds int) {
		t.Helper()
		if got := partLoadRanges(p); got != ranges {
			t.Errorf("%s: %d ranges, want %d", when, got, ranges)
		}
		if got := len(p.holds.all); got != holds {
			t.Errorf("%s: %d holds, want %d", when, got, holds)
		}
		// A chunk is at least a quarter full, but for what splits and merges leave.
		if got, limit := len(p.window.chunks), 1+8*ranges/partChunkMax; got > limit {
			t.Errorf("%s: %d chunks for %d ranges, want at most %d", when, got, ranges, limit)
		}
		if err := partCheck(p); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	size("acquired", requests, requests)
	owners := partLoadStage(t, p, nil)
	size("staged record by record", partLoadEach, 2*requests)

	// From the back, so that the start offset stays and ranges have to join.
	slices.Reverse(owners)
	for i, o := range owners[:len(owners)-1] {
		p.resolve(partEpoch, o.producerID, func(int16) bool { return true }, false, partLoadLimits)
		p.release(partEpoch, "m1", partLoadLimits)
		if i == len(owners)/2 {
			break
		}
	}
	pending := partLoadEach - (partLoadEach - (requests-1)*partLoadBatch) - len(owners)/2*partLoadBatch
	size("half aborted and released", pending+1, 2*pending/partLoadBatch)

	partLoadResolve(p, owners)
	size("all resolved", 1, 0)

	// Every second record, then all but a few: ranges get fewer everywhere.
	left := p.inFlight()
	p.acquire(partEpoch, "m1", []span{{0, partLoadEach - 1}}, partLoadEach, true, partLoadLimits)
	release := func(which func(int64) bool) {
		for o := range int64(partLoadEach) {
			if which(o) {
				p.acknowledge(partEpoch, "m1", []ackBatch{{span{o, o}, []int8{int8(wire.Release)}}}, false, partLoadLimits)
			}
		}
	}
	release(func(o int64) bool { return o%2 == 1 })
	size("every second released", left, 1)
	release(func(o int64) bool { return o%2 == 0 && o%100 != 0 })
	size("all but every hundredth released", 2*((left+99)/100), 1)
	p.truncateTo(partLoadEach)
	size("truncated", 0, 0)
}

// BenchmarkAcknowledge acquires and accepts 500 records at a time, the traffic of
// a group without transactions.
func BenchmarkAcknowledge(b *testing.B) {
	p := newSharePartition(shareState{}, wire.Dialects()[0])
	b.ReportAllocs()
	first := int64(0)
	for b.Loop() {
		s := span{first, first + partLoadBatch - 1}
		p.acquire(partEpoch, "m1", []span{s}, partLoadBatch, false, partLoadLimits)
		if _, code := p.acknowledge(partEpoch, "m1", []ackBatch{{s, []int8{int8(wire.Accept)}}}, false, partLoadLimits); code != 0 {
			b.Fatalf("acknowledge = %d", code)
		}
		first += partLoadBatch
	}
}
