//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/bigcluster"
)

// What there is to inspect, beside the transactions.
const (
	bigGroups          = 1000
	bigSharePartitions = 100_000
)

// startBig starts a cluster of that many transactions.
func startBig(ctx context.Context, transactions int64) (addrs string, stop func() error, err error) {
	c, err := bigcluster.Start(ctx, bigcluster.Config{Transactions: int(transactions), Groups: bigGroups, SharePartitions: bigSharePartitions})
	if err != nil {
		return "", nil, err
	}
	return strings.Join(c.Addrs(), ","), c.Close, nil
}

// inspectPending does what "kshare inspect pending" does, but for its output.
func inspectPending(ctx context.Context, j job) error {
	return inspected(ctx, j, func(cl *cluster.Client) (int, error) {
		ev, err := inspect.Collect(ctx, cl, inspect.CollectOptions{})
		if err != nil {
			return 0, err
		}
		rep := inspect.NewPendingReport(ev, inspect.Filter{})
		if rep.Status != inspect.StatusPending || ev.StatesRead != bigSharePartitions {
			return 0, fmt.Errorf("status %s: %s; %d states read", rep.Status, rep.Reason, ev.StatesRead)
		}
		return len(rep.Rows), nil
	})
}

// listTransactions lists and describes transactions alone.
func listTransactions(ctx context.Context, j job) error {
	return inspected(ctx, j, func(cl *cluster.Client) (int, error) {
		d, err := cl.Describe(ctx)
		if err != nil {
			return 0, err
		}
		txns, gaps, err := inspect.ListTransactions(ctx, cl, d.Brokers, inspect.TransactionQuery{States: inspect.OpenStates(), Describe: true})
		if err == nil && len(gaps) > 0 {
			err = errors.New(gaps[0].Reason)
		}
		return len(txns), err
	})
}

func inspected(ctx context.Context, j job, look func(*cluster.Client) (rows int, err error)) error {
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: strings.Split(j.bootstrap, ",")})
	if err != nil {
		return err
	}
	defer cl.Close()
	rows, err := look(cl)
	if err == nil && rows != int(j.records) {
		err = fmt.Errorf("%d rows of %d transactions", rows, j.records)
	}
	return err
}

// compareInspect inspects clusters of a thousand and of ten thousand
// transactions, each in a process of its own, and prints how the cost grows.
func compareInspect(ctx context.Context, _ int64, rounds int) error {
	sizes := []int64{1000, 10_000}
	fmt.Printf("inspect     3 brokers in another process, %d share groups, %d share-partitions, %d rounds\n", bigGroups, bigSharePartitions, rounds)
	for _, side := range []struct{ role, title string }{{"pending", "inspect pending"}, {"list", "list and describe"}} {
		seconds, memory := make(map[int64][]float64), make(map[int64][]float64)
		for range rounds {
			for _, n := range sizes {
				m, err := oneLook(ctx, side.role, n)
				if err != nil {
					return fmt.Errorf("%s of %d: %w", side.title, n, err)
				}
				seconds[n], memory[n] = append(seconds[n], m.Seconds), append(memory[n], m.MaxRSSMiB)
			}
		}
		for _, n := range sizes {
			fmt.Printf("            %-17s %6d transactions %6.2f s (%s) %6.1f MiB\n", side.title, n, median(seconds[n]), spread(seconds[n]), median(memory[n]))
		}
		few, many := sizes[0], sizes[1]
		fmt.Printf("            ratio of %d to %d: time %.2f, memory %.2f\n", many, few, median(seconds[many])/median(seconds[few]), median(memory[many])/median(memory[few]))
	}
	return nil
}

func oneLook(ctx context.Context, role string, transactions int64) (m measured, err error) {
	bootstrap, stop, err := startRole(ctx, job{role: "bigcluster", records: transactions})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	ms, err := child(ctx, job{role: role, bootstrap: bootstrap, records: transactions}, 1)
	if err != nil {
		return m, err
	}
	return ms[0], nil
}
