package ctp_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Workers that have all joined share the partitions from then on, and not with
// their next heartbeat: the first one was assigned all of them.
func TestRunWorkersShareThePartitions(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		bubble(t, dialect, func(e *env) {
			const first, second, workers, partitions = 60, 600, 3, 6
			e.produce(first, plain)
			opts := e.options()
			opts.UntilEmpty, opts.MaxRecords = false, first+second
			opts.Workers, opts.BatchRecords = workers, 20
			opts.Counts = new(ctp.Counts)
			opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
				from := ""
				if string(r.Value) == "later" {
					from = fmt.Sprint(r.Partition)
				}
				return []*kgo.Record{{Key: r.Key, Value: []byte(from)}}, nil
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				for opts.Counts.Consumed.Load() < first {
					bubbleSleep(100 * time.Millisecond)
				}
				bubbleSleep(time.Second) // heartbeats are 5 s apart
				e.produce(second, func(int) []byte { return []byte("later") })
			})
			if res := e.run(opts); res.Consumed != first+second || res.Aborted != 0 {
				e.t.Errorf("Run = %+v, want %d consumed and none aborted", res, first+second)
			}
			wg.Wait()
			by := make(map[string]map[int64]bool) // producers by source partition
			all := make(map[int64]bool)
			for _, r := range e.committed() {
				from := string(r.Value)
				if from == "" {
					continue
				}
				if by[from] == nil {
					by[from] = make(map[int64]bool)
				}
				by[from][r.ProducerID], all[r.ProducerID] = true, true
			}
			for from, producers := range by {
				if len(producers) != 1 {
					e.t.Errorf("partition %s was worked on by %d workers", from, len(producers))
				}
			}
			if len(by) != partitions || len(all) != workers {
				e.t.Errorf("%d workers had records of %d partitions, want %d and %d", len(all), len(by), workers, partitions)
			}
		})
	})
}

// A run that has consumed what it may ends at once, but for the fetches that are
// held: its workers have long been idle but one.
func TestRunEndsSoon(t *testing.T) {
	const held = 100 * time.Millisecond
	for workers := range 3 {
		for phase := range 5 { // of a fetch that is held for half a second
			bubble(t, "kip", func(e *env) {
				const n = 60
				e.produce(n, plain)
				opts := e.options()
				opts.UntilEmpty, opts.MaxRecords = false, n
				opts.Workers, opts.BatchRecords = workers+1, 10
				var last time.Time
				opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
					if string(r.Key) == "59" {
						bubbleSleep(20*time.Second + time.Duration(phase)*held)
						last = time.Now()
					}
					return []*kgo.Record{r}, nil
				}
				e.run(opts)
				if took := time.Since(last); took > held {
					e.t.Errorf("%d workers ended %s after the last record", opts.Workers, took)
				}
			})
		}
	}
}
