package inspect_test

import (
	"context"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/bigcluster"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func startBig(t *testing.T, cfg bigcluster.Config, tap *wiretap.Tap) (*bigcluster.Cluster, *cluster.Client) {
	t.Helper()
	big, err := bigcluster.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := big.Close(); err != nil {
			t.Error(err)
		}
	})
	c := cluster.Config{BootstrapServers: big.Addrs()}
	if tap != nil {
		c.Dialer = tap.Dial
	}
	cl, err := cluster.Connect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return big, cl
}

// The number of requests is what makes a large cluster slow to look at: it
// follows the batches and not the transactions.
func TestCollectAsksInBatches(t *testing.T) {
	const transactions, groups, perGroup, statePartitions = 3100, 40, 100, 10
	tap := wiretap.New()
	big, cl := startBig(t, bigcluster.Config{
		Transactions: transactions, Groups: groups, SharePartitions: groups * perGroup, StatePartitions: statePartitions,
	}, tap)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ev, err := inspect.Collect(ctx, cl, inspect.CollectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(ev.Gaps) > 0 || len(ev.Transactions) != transactions || len(ev.States) != transactions || len(ev.Groups) != groups ||
		ev.StatesRead != groups*perGroup || len(ev.Ended) > 0 || ev.Support.Verdict != cluster.Usable {
		t.Errorf("%d transactions, %d states of %d, %d groups, gaps %+v", len(ev.Transactions), len(ev.States), ev.StatesRead, len(ev.Groups), ev.Gaps)
	}
	const each = (transactions+bigcluster.Brokers-1)/bigcluster.Brokers/500 + 1 // of 500 transactions
	for node := range int32(bigcluster.Brokers) {
		for key, most := range map[kmsg.Key]int{
			kmsg.ListTransactions:     1,
			kmsg.DescribeTransactions: each + 1, // and a probe
			kmsg.ListGroups:           1,
			kmsg.ShareGroupDescribe:   2, // likewise
			kmsg.FindCoordinator:      0,
			// One for each group, whose share-partitions are spread over the brokers.
			kmsg.ReadShareGroupState:        groups,
			kmsg.ReadShareGroupStateSummary: groups + 1,
			kmsg.Fetch:                      statePartitions,
			kmsg.ListOffsets:                statePartitions,
		} {
			if got := big.Count(node, key); got > most {
				t.Errorf("broker %d got %d %s requests, want at most %d", node, got, key.Name(), most)
			}
		}
	}
	tap.ReadOnly(t)
	rep := inspect.NewPendingReport(ev, inspect.Filter{})
	if rep.Status != inspect.StatusPending || len(rep.Rows) != transactions || rep.Rows[0].Verdict != inspect.VerdictExact {
		t.Errorf("report %s with %d rows", rep.Status, len(rep.Rows))
	}
}
