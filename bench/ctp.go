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

// jqLoop is ctpLoop with every record through a jq expression.
func jqLoop(ctx context.Context, j job) error { return jqWith(ctx, j, 1) }

// jqWorkersLoop is jqLoop with four workers.
func jqWorkersLoop(ctx context.Context, j job) error { return jqWith(ctx, j, 4) }

func jqWith(ctx context.Context, j job, workers int) error {
	transform, err := ctp.JQ(`select(.status == "paid") | .status = "shipped"`)
	if err != nil {
		return err
	}
	return ctpWith(ctx, j, func(o *ctp.Options) { o.Transform, o.Workers = transform, workers })
}

func compareExec(ctx context.Context, records int64, rounds int) error {
	return compareRates(ctx, "exec        ctp with --exec cat to ctp, cluster in another process", "ctp", "exec", records, rounds)
}

// compareWorkers compares four workers with one, twice: a copy leaves next to
// nothing to share, since one worker keeps the cluster, which has the other core,
// as busy as it gets; with an expression it is ctp that works.
func compareWorkers(ctx context.Context, records int64, rounds int) error {
	if err := compareRates(ctx, "workers     4 workers to 1, with --jq, cluster in another process", "jq", "jqworkers", records, rounds); err != nil {
		return err
	}
	return compareRates(ctx, "            the same, without a transform", "ctp", "workers", records, rounds)
}

// compareRates compares the records a second of a role with those of another.
func compareRates(ctx context.Context, title, than, role string, records int64, rounds int) error {
	var plain, other, ratios []float64
	for i := range rounds {
		order := []string{than, role}
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
		plain, other = append(plain, rates[than]), append(other, rates[role])
		ratios = append(ratios, rates[role]/rates[than])
	}
	fmt.Println(title)
	fmt.Printf("            %-9s  %9.0f records/s   %-9s  %9.0f records/s   ratio %.2f (%s)\n", than, median(plain), role, median(other), median(ratios), spread(ratios))
	return nil
}
