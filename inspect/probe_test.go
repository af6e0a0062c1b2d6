package inspect

import (
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
)

// Transactions whose coordinator is nobody are hidden, and not none.
func TestTransactionsWithoutLeader(t *testing.T) {
	for name, c := range map[string]struct {
		leaders []int32 // of __transaction_state; nil: there is no such topic
		denied  bool
		want    string // reason of the gap; "" is none
	}{
		"led":         {leaders: []int32{0, 1, 2}},
		"unused":      {},
		"one is not":  {leaders: []int32{0, -1, 2}, want: "1 partition of __transaction_state has no leader, __transaction_state-1 first"},
		"two are not": {leaders: []int32{-1, 1, -1}, want: "2 partitions of __transaction_state have no leader, __transaction_state-0 first"},
		"hidden":      {leaders: []int32{0, -1, 2}, denied: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeCluster()
			if c.leaders != nil {
				topic := cluster.Topic{Name: transactionTopic}
				for i, l := range c.leaders {
					topic.Partitions = append(topic.Partitions, cluster.Partition{Partition: int32(i), Leader: l})
				}
				f.topics = append(f.topics, topic)
			}
			f.denied[ACL{"DESCRIBE", "TOPIC", transactionTopic}] = c.denied
			ev, err := Collect(t.Context(), f, CollectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			probed, err := ProbeTransactions(t.Context(), f, f.versions)
			if err != nil {
				t.Fatal(err)
			}
			for what, gaps := range map[string][]Gap{"Collect": ev.Gaps, "ProbeTransactions": probed} {
				found := slices.ContainsFunc(gaps, func(g Gap) bool { return g.Advice != "" && strings.HasPrefix(g.Reason, c.want) })
				if c.want == "" && len(gaps) > 0 || c.want != "" && !found {
					t.Errorf("%s has gaps %+v, want %q", what, gaps, c.want)
				}
			}
		})
	}
}
