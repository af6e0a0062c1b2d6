package commands

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// inspectGroupOptions is everything "inspect group" can be told.
type inspectGroupOptions struct {
	connection
	GroupIDs []string // nil: all, a line each
}

func newInspectGroupCmd(d *Deps, run runFunc[inspectGroupOptions, *inspect.GroupReport]) *cobra.Command {
	var opts inspectGroupOptions
	cmd := &cobra.Command{
		Use:   "group [<group-id>...]",
		Short: "List share groups, or describe some: members, offsets, lag, configs",
		Long: `List share groups, or describe those that are named: their members and what is
assigned to them, start offset, end offset and lag of each share-partition, the
configs that are in force and where they come from, where rejected records go,
and how many records are in TX_PENDING.

The lag of a share-partition counts the records from its start offset on that
are not done. Kafka does not tell how many of them are acquired: that is held by
the leader of the partition, in memory.

CSV has a line for each group of a list, and one for each share-partition of
groups that are named. A name that no share group has ends with exit status 1,
after all others were shown.`,
		Example: `  kshare inspect group -b localhost:9092
  kshare inspect group billing
  kshare inspect group billing audit -o json`,
		Args: func(_ *cobra.Command, args []string) error { return checkGroupIDs(args) },
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkDialect(opts.Dialect); err != nil {
				return err
			}
			if len(args) > 0 {
				opts.GroupIDs = args
			}
			rep, err := run(cmd.Context(), d, opts)
			err = d.show(inspectGroupView(rep, opts.GroupIDs != nil), err)
			if rep != nil {
				d.hintGaps(rep.Gaps)
			}
			return err
		},
	}
	opts.connection.addTo(cmd.Flags())
	return exits(cmd, exitPartial, exitAuth)
}

// checkGroupIDs returns a usage error for arguments that no group can have for
// its ID: what a shell makes of a variable that is not set.
func checkGroupIDs(args []string) error {
	for _, a := range args {
		if a == "" {
			return hintf(usagef("a group ID is empty"), "leave the argument out to list all share groups")
		}
	}
	return nil
}

func runInspectGroup(ctx context.Context, d *Deps, opts inspectGroupOptions) (*inspect.GroupReport, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return inspect.DescribeGroups(ctx, cl, inspect.GroupOptions{GroupIDs: opts.GroupIDs, Dialect: cl.Dialect(), Now: d.Now})
}

func inspectGroupView(r *inspect.GroupReport, named bool) output.View {
	if r == nil {
		return output.View{}
	}
	v := output.View{
		Kind: "inspect.group", Version: 1, ClusterID: r.ClusterID,
		Incomplete: len(r.Gaps) > 0, Warnings: append(gapWarnings(r.Gaps), r.Notes...),
		Items: r.Groups, Data: r, Empty: "there are no share groups",
	}
	groups, wideGroups := groupTables(r.Groups)
	if !named {
		v.Table, v.Wide = groups, wideGroups
		if v.Incomplete {
			v.Empty = "no share group could be seen, and there may be some"
		}
		return v
	}
	v.Empty = ""
	parts, wideParts := sharePartitionTables(r.Groups)
	v.Table, v.Wide = parts, wideParts
	v.Sections = []output.Section{
		{Table: wideGroups},
		{Table: parts, Wide: wideParts},
		{Table: memberTable(r.Groups)},
		{Table: groupConfigTable(r.Groups)},
		{Text: groupText(r.Groups)},
	}
	return v
}

func groupTables(groups []inspect.GroupRow) (t, wide *output.Table) {
	t = output.NewTable("GROUP", "STATE", "MEMBERS", "SHARE-PARTITIONS", "LAG")
	wide = output.NewTable("GROUP", "STATE", "MEMBERS", "SHARE-PARTITIONS", "LAG", "GROUP-EPOCH", "ASSIGNMENT-EPOCH", "ASSIGNOR", "COORDINATOR")
	for _, g := range groups {
		t.Row(output.Key(g.GroupID), groupStateCell(g.State), g.MemberCount, g.SharePartitionCount, g.Lag)
		wide.Row(output.Key(g.GroupID), groupStateCell(g.State), g.MemberCount, g.SharePartitionCount, g.Lag,
			g.GroupEpoch, g.AssignmentEpoch, g.Assignor, g.Coordinator)
	}
	return t, wide
}

func groupStateCell(state *string) any {
	if state != nil && *state == "Stable" {
		return output.Good(*state)
	}
	return state
}

func sharePartitionTables(groups []inspect.GroupRow) (t, wide *output.Table) {
	t = output.NewTable("GROUP", "TOPIC", "PARTITION", "START-OFFSET", "END-OFFSET", "LAG", "MEMBERS")
	wide = output.NewTable("GROUP", "TOPIC", "TOPIC-ID", "TOPIC-STATE", "PARTITION", "START-OFFSET", "END-OFFSET", "LAG", "LEADER-EPOCH", "MEMBERS")
	for _, g := range groups {
		if g.GroupDescription == nil {
			continue
		}
		for _, p := range g.SharePartitions {
			topic := any(p.Topic)
			if p.TopicState != "" {
				topic = output.Warn(p.Topic + " (" + p.TopicState + ")")
			}
			t.Row(output.Key(g.GroupID), topic, p.Partition, notYet(p.StartOffset), p.EndOffset, notYet(p.Lag), len(p.Members))
			wide.Row(output.Key(g.GroupID), p.Topic, p.TopicID, p.TopicState, p.Partition, notYet(p.StartOffset), p.EndOffset, notYet(p.Lag),
				notYet(p.LeaderEpoch), strings.Join(p.Members, " "))
		}
	}
	return t, wide
}

// notYet is the cell of a number that may not be there yet.
func notYet[T any](n *T) any {
	if n == nil {
		return output.NA()
	}
	return *n
}

func memberTable(groups []inspect.GroupRow) *output.Table {
	t := output.NewTable("GROUP", "MEMBER", "CLIENT-ID", "HOST", "RACK", "MEMBER-EPOCH", "TOPICS", "ASSIGNMENT")
	for _, g := range groups {
		if g.GroupDescription == nil {
			continue
		}
		for _, m := range g.Members {
			t.Row(output.Key(g.GroupID), m.MemberID, m.ClientID, m.ClientHost, m.RackID, m.MemberEpoch,
				strings.Join(m.Topics, " "), joinTopicPartitions(m.Assignment))
		}
	}
	return t
}

func groupConfigTable(groups []inspect.GroupRow) *output.Table {
	t := output.NewTable("GROUP", "CONFIG", "VALUE", "SOURCE", "BROKER-CONFIG")
	for _, g := range groups {
		if g.GroupDescription == nil {
			continue
		}
		for _, c := range g.Configs {
			t.Row(output.Key(g.GroupID), output.Key(c.Name), c.Value, c.Source, c.BrokerConfig)
		}
	}
	return t
}

// groupText says in sentences what is not a table.
func groupText(groups []inspect.GroupRow) string {
	var lines []string
	for _, g := range groups {
		d := g.GroupDescription
		if d == nil {
			continue
		}
		name := output.Escape(g.GroupID)
		if ms := d.RecordLockDurationMS; ms != nil {
			lines = append(lines, fmt.Sprintf("%s: a record stays acquired for %s", name, output.Duration(time.Duration(*ms)*time.Millisecond)))
		}
		if q := d.DeadLetterQueue; q != nil {
			state := "off"
			if q.Active {
				state = "on"
			}
			lines = append(lines, fmt.Sprintf("%s: dead-letter queue %s: %s", name, state, q.Reason))
		}
		if p := d.TxPending; p != nil {
			lines = append(lines, fmt.Sprintf("%s: TX_PENDING: %s", name, pendingSummaryText(p)))
		}
	}
	if len(lines) > 0 {
		lines = append(lines, "lag counts available, acquired and TX_PENDING records alike; Kafka does not tell how many are in flight")
	}
	return strings.Join(lines, "\n")
}

func pendingSummaryText(p *inspect.TxPendingSummary) string {
	if p.Records == 0 {
		return fmt.Sprintf("%s: %s", p.Status, p.Reason)
	}
	s := fmt.Sprintf("%s: %d records of %s, held by %s", p.Status, p.Records,
		count(p.SharePartitions, "share-partition", "share-partitions"), count(p.Owners, "owner", "owners"))
	if p.OldestAgeMS != nil {
		s += ", the oldest since " + output.Duration(time.Duration(*p.OldestAgeMS)*time.Millisecond)
	}
	return s
}
