//go:build unix

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/kshare/kshare/ctp"
)

// execLoop is ctpLoop with every record through "cat".
func execLoop(ctx context.Context, j job) error {
	return ctpWith(ctx, j, func(o *ctp.Options) { o.Exec = &ctp.Exec{Command: []string{"cat"}} })
}

// workersLoop is ctpLoop with four workers.
func workersLoop(ctx context.Context, j job) error {
	return ctpWith(ctx, j, func(o *ctp.Options) { o.Workers = 4 })
}

func compareExec(ctx context.Context, records int64, rounds int) error {
	return compareRates(ctx, "exec        ctp with --exec cat, cluster in another process", "exec", records, rounds)
}

func compareWorkers(ctx context.Context, records int64, rounds int) error {
	return compareRates(ctx, "workers     ctp with 4 workers, cluster in another process", "workers", records, rounds)
}

// compareRates compares the records a second of a role with those of ctp.
func compareRates(ctx context.Context, title, role string, records int64, rounds int) error {
	var plain, other, ratios []float64
	for i := range rounds {
		order := []string{"ctp", role}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		rates := make(map[string]float64)
		for _, r := range order {
			m, err := oneClient(ctx, r, records)
			if err != nil {
				return err
			}
			rates[r] = m.rate()
		}
		plain, other = append(plain, rates["ctp"]), append(other, rates[role])
		ratios = append(ratios, rates[role]/rates["ctp"])
	}
	fmt.Println(title)
	fmt.Printf("            ctp        %9.0f records/s   with it %5.0f records/s   ratio %.2f (%s)\n", median(plain), median(other), median(ratios), spread(ratios))
	return nil
}
