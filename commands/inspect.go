package commands

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/inspect"
	"github.com/spf13/cobra"
)

func newInspectCmd(d *Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect",
		Short: "Show share groups, share-partitions, transactions and pending records",
		Long: `Show share groups, share-partitions, transactions, and the records that wait in
one (TX_PENDING, KIP-1289).

Nothing is changed and no record is acquired. What could not be seen, because a
broker is silent or a permission is missing, is told, makes the answer
incomplete (exit status 3), and is never taken for nothing.`,
		Example: `  kshare inspect pending
  kshare inspect group billing -o json`,
	}
	cmd.AddCommand(
		newInspectPendingCmd(d, openInspectPending),
		newInspectGroupCmd(d, runInspectGroup),
		newInspectPartitionCmd(d, runInspectPartition),
		newInspectTxnCmd(d, runInspectTxn),
		newInspectMetricsCmd(d, runInspectMetrics),
	)
	return cmd
}

// gapWarnings says what could not be seen, a sentence each.
func gapWarnings(gaps []inspect.Gap) []string {
	out := make([]string, 0, len(gaps))
	for _, g := range gaps {
		out = append(out, g.Reason)
	}
	return out
}

// hintGaps says, once each, what to do about what could not be seen. Programs
// find it in the document.
func (d *Deps) hintGaps(gaps []inspect.Gap) {
	if d.machine() {
		return
	}
	var told []string
	for _, g := range gaps {
		if g.Advice != "" && !slices.Contains(told, g.Advice) {
			told = append(told, g.Advice)
			d.Hint(g.Advice)
		}
	}
}

// joinPartitions is a list of partitions for people: 0,1,2 as 0-2.
func joinPartitions(parts []int32) string {
	var b strings.Builder
	for i := 0; i < len(parts); {
		j := i
		for j+1 < len(parts) && parts[j+1] == parts[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(parts[i])))
		if j > i {
			b.WriteString("-" + strconv.Itoa(int(parts[j])))
		}
		i = j + 1
	}
	return b.String()
}

// joinTopicPartitions is what topics have, as "orders:0-2,5 shipped:1".
func joinTopicPartitions(topics []inspect.TopicPartitions) string {
	words := make([]string, 0, len(topics))
	for _, t := range topics {
		words = append(words, t.Topic+":"+joinPartitions(t.Partitions))
	}
	return strings.Join(words, " ")
}
