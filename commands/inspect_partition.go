package commands

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
)

// inspectPartitionOptions is everything "inspect partition" can be told.
type inspectPartitionOptions struct {
	connection
	GroupID   string
	Topic     string
	Partition int32
}

func newInspectPartitionCmd(d *Deps, run runFunc[inspectPartitionOptions, *inspect.PartitionReport]) *cobra.Command {
	var opts inspectPartitionOptions
	cmd := &cobra.Command{
		Use:   "partition <group-id> <topic> <partition>",
		Short: "Show one share-partition: offsets, persisted states, owners",
		Long: `Show one share-partition: start offset, end offset, lag, epochs, and the state
of its records as far as it is persisted, drawn as a strip from the start offset
on and listed range by range. A range in TX_PENDING names its owner.

What is not persisted, nobody tells: a record that is acquired looks like one
that is available, since that is held by the leader of the partition in memory.
A record that was released is persisted as AVAILABLE and may be acquired again.

The strip is as wide as the terminal, and 80 characters where there is none. A
letter in lower case, or a comma, stands for records that are not all in one
state: the one that most needs a look is shown.`,
		Example: `  kshare inspect partition billing orders 0 -b localhost:9092
  kshare inspect partition billing orders 0 -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 3 {
				return hintf(usagef("%q needs a group, a topic and a partition, and got %s", cmd.CommandPath(), count(len(args), "argument", "arguments")),
					"such as: %s billing orders 0", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseInt(args[2], 10, 32)
			switch {
			case err != nil || n < 0:
				return usagef("partition %q: want a number from 0 on", args[2])
			case args[0] == "":
				return usagef("the group ID is empty")
			}
			opts.GroupID, opts.Topic, opts.Partition = args[0], args[1], int32(n)
			if err := checkTopicName("the topic", args[1], args[1]); err != nil {
				return err
			}
			if err := checkDialect(opts.Dialect); err != nil {
				return err
			}
			rep, err := run(cmd.Context(), d, opts)
			err = d.show(inspectPartitionView(rep, d.stripWidth()), err)
			if rep != nil {
				d.hintGaps(rep.Gaps)
			}
			return err
		},
	}
	opts.connection.addTo(cmd.Flags())
	return exits(cmd, exitPartial, exitAuth)
}

// defaultStripWidth is how many characters a strip has off a terminal.
const defaultStripWidth = 80

func (d *Deps) stripWidth() int {
	if w := d.width(); w > 0 {
		return w
	}
	return defaultStripWidth
}

func runInspectPartition(ctx context.Context, d *Deps, opts inspectPartitionOptions) (*inspect.PartitionReport, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return inspect.DescribePartition(ctx, cl, inspect.PartitionOptions{
		GroupID: opts.GroupID, Topic: opts.Topic, Partition: opts.Partition, Dialect: cl.Dialect(), Now: d.Now,
	})
}

func inspectPartitionView(r *inspect.PartitionReport, width int) output.View {
	if r == nil {
		return output.View{}
	}
	head := output.NewTable("GROUP", "TOPIC", "PARTITION", "START-OFFSET", "END-OFFSET", "LAG", "LEADER")
	head.Row(output.Key(r.GroupID), partitionTopicCell(r), r.Partition, notYet(r.StartOffset), r.EndOffset, notYet(r.Lag), r.Leader)
	state := output.NewTable("LEADER-EPOCH", "STATE-PARTITION", "STATE-EPOCH", "DELIVERY-COMPLETE-COUNT")
	state.Row(r.LeaderEpoch, r.StatePartition, stateReadCell(r, r.StateEpoch), stateReadCell(r, r.DeliveryCompleteCount))
	wideHead := output.NewTable("GROUP", "TOPIC", "TOPIC-ID", "PARTITION", "START-OFFSET", "END-OFFSET", "LAG", "LEADER", "LEADER-EPOCH",
		"STATE-PARTITION", "SHARE-COORDINATOR", "STATE-EPOCH", "STATE-LEADER-EPOCH", "DELIVERY-COMPLETE-COUNT", "MEMBERS")
	wideHead.Row(output.Key(r.GroupID), partitionTopicCell(r), r.TopicID, r.Partition, notYet(r.StartOffset), r.EndOffset, notYet(r.Lag), r.Leader, r.LeaderEpoch,
		r.StatePartition, r.ShareCoordinator, stateReadCell(r, r.StateEpoch), stateReadCell(r, r.StateLeaderEpoch), stateReadCell(r, r.DeliveryCompleteCount),
		strings.Join(r.Members, " "))
	ranges, wideRanges := rangeTables(r)
	return output.View{
		Kind: "inspect.partition", Version: 1, ClusterID: r.ClusterID, Time: r.Time.Truncate(time.Millisecond),
		Incomplete: len(r.Gaps) > 0, Warnings: append(gapWarnings(r.Gaps), partitionNotes(r)...),
		Items: r.Ranges, Data: r, Table: ranges, Wide: wideRanges,
		Sections: []output.Section{
			{Table: head, Wide: wideHead},
			{Table: state, Wide: output.NewTable()}, // wide has it in one
			stripSection(r, width),
			{Table: ranges, Wide: wideRanges},
			{Text: partitionText(r)},
		},
	}
}

func partitionTopicCell(r *inspect.PartitionReport) any {
	if r.TopicState != "" {
		return output.Warn(r.Topic + " (" + r.TopicState + ")")
	}
	return r.Topic
}

// stateReadCell is the cell of a number of the persisted state, which is not
// known where it was not read, and not there where nothing is persisted.
func stateReadCell(r *inspect.PartitionReport, n *int32) any {
	if n == nil && r.StateRead {
		return output.NA()
	}
	return n
}

func partitionNotes(r *inspect.PartitionReport) []string {
	if r.TopicState == "" {
		return nil
	}
	return []string{fmt.Sprintf("topic %q was deleted and created again since share group %q has state for it", r.Topic, r.GroupID)}
}

func rangeTables(r *inspect.PartitionReport) (t, wide *output.Table) {
	t = output.NewTable("OFFSETS", "COUNT", "STATE", "DELIVERY-COUNT", "TRANSACTIONAL-ID", "AGE")
	wide = output.NewTable("FIRST-OFFSET", "LAST-OFFSET", "COUNT", "STATE", "DELIVERY-COUNT",
		"ACKNOWLEDGE-TYPE", "TRANSACTIONAL-ID", "TRANSACTION-STATE", "PRODUCER-ID", "PRODUCER-EPOCH", "AGE", "VERDICT")
	for _, g := range r.Ranges {
		state := stateMark(g.RecordState)
		offsets := any(g.FirstOffset)
		if g.Count > 1 {
			offsets = fmt.Sprintf("%d-%d", g.FirstOffset, g.LastOffset)
		}
		o := g.Owner
		if o == nil {
			na := output.NA()
			t.Row(offsets, g.Count, state.cell(g.State), g.DeliveryCount, na, na)
			wide.Row(g.FirstOffset, g.LastOffset, g.Count, state.cell(g.State), g.DeliveryCount, na, na, na, na, na, na, na)
			continue
		}
		t.Row(offsets, g.Count, state.cell(g.State), g.DeliveryCount, o.TransactionalID, ageCell(o.AgeMS))
		wide.Row(g.FirstOffset, g.LastOffset, g.Count, state.cell(g.State), g.DeliveryCount,
			o.AcknowledgeType, o.TransactionalID, o.TransactionState, o.ProducerID, o.ProducerEpoch, ageCell(o.AgeMS), string(o.Verdict))
	}
	return t, wide
}

// stripMark is how a state looks in a strip.
type stripMark struct {
	output.Mark
	mixed byte
	text  string
}

func (m stripMark) cell(state string) output.Cell {
	switch m.Style {
	case output.StyleGood:
		return output.Good(state)
	case output.StyleWarn:
		return output.Warn(state)
	case output.StyleMuted:
		return output.Muted(state)
	default:
		return output.CellOf(state)
	}
}

func stateMark(s wire.RecordState) stripMark {
	mark := func(letter byte, style output.Style, text string) stripMark {
		return stripMark{Mark: output.Mark{Letter: letter, Style: style}, mixed: letter - 'A' + 'a', text: s.String() + text}
	}
	switch s {
	case wire.TxPending:
		return mark('P', output.StyleWarn, ": waits in a transaction")
	case wire.Archiving:
		return mark('G', output.StyleMuted, ": on its way to the dead-letter queue")
	case wire.Archived:
		return mark('X', output.StyleMuted, "")
	case wire.Acknowledged:
		return mark('K', output.StyleGood, "")
	case wire.Available:
		return mark('A', output.StyleNone, ": delivered before, and perhaps acquired again")
	default:
		return mark('U', output.StyleNone, ": a state that kshare does not know")
	}
}

// unknownMark stands for records of which nothing is persisted.
func unknownMark() stripMark {
	return stripMark{Mark: output.Mark{Letter: '.'}, mixed: ',', text: "nothing is persisted: available or acquired"}
}

// stripSection draws the persisted states, with a legend of what occurs.
func stripSection(r *inspect.PartitionReport, width int) output.Section {
	first, last, ok := r.Window(width)
	if !ok || !r.StateRead {
		return output.Section{}
	}
	buckets := r.Strip(first, last, width)
	strip := &output.Strip{First: strconv.FormatInt(first, 10), Last: strconv.FormatInt(last, 10)}
	seen, mixed := make(map[byte]bool), false
	for _, b := range buckets {
		m := unknownMark()
		if !b.Unknown {
			m = stateMark(b.State)
		}
		if !seen[m.Letter] {
			seen[m.Letter] = true
			strip.Legend = append(strip.Legend, output.Legend{Mark: m.Mark, Text: m.text})
		}
		mark := m.Mark
		if b.Mixed {
			mark.Letter, mixed = m.mixed, true
		}
		strip.Marks = append(strip.Marks, mark)
	}
	return output.Section{Strip: strip, Text: stripText(r, buckets, mixed)}
}

// stripText says what the strip does not: how much one mark is, and what follows.
func stripText(r *inspect.PartitionReport, buckets []inspect.Bucket, mixed bool) string {
	var lines []string
	if n := buckets[0].Last - buckets[0].First + 1; n > 1 {
		line := fmt.Sprintf("each letter is %d records", n)
		if mixed {
			line += "; in lower case, or as a comma, they are not all in one state"
		}
		lines = append(lines, line)
	}
	if left := *r.EndOffset - 1 - buckets[len(buckets)-1].Last; left > 0 {
		lines = append(lines, fmt.Sprintf("%d more records follow up to the end; nothing is persisted of them", left))
	}
	return strings.Join(lines, "\n")
}

// partitionText says in sentences what is not a table.
func partitionText(r *inspect.PartitionReport) string {
	var lines []string
	switch {
	case !r.StateRead:
		lines = append(lines, "the persisted state could not be read")
	case len(r.Ranges) == 0:
		lines = append(lines, "no state of a record is persisted")
	}
	f := r.InFlight
	switch {
	case f.AtMost == nil:
		lines = append(lines, fmt.Sprintf("in flight: at least %d: %s", f.AtLeast, f.Reason))
	case f.AtLeast == *f.AtMost:
		lines = append(lines, fmt.Sprintf("in flight: %d", f.AtLeast))
	default:
		lines = append(lines, fmt.Sprintf("in flight: %d to %d: %s", f.AtLeast, *f.AtMost, f.Reason))
	}
	if p := r.TxPending; p != nil {
		lines = append(lines, "TX_PENDING: "+pendingSummaryText(p))
	}
	for _, row := range r.Pending {
		if row.FirstOffset == nil { // the others are in the table
			lines = append(lines, fmt.Sprintf("%s: %s", row.Verdict, strings.Join(row.Evidence, "; ")))
		}
	}
	return strings.Join(lines, "\n")
}
