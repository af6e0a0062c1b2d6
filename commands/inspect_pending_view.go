package commands

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
)

// view is what is shown of a report.
func (o *inspectPendingOptions) view(d *Deps, rep *inspect.PendingReport) output.View {
	if o.Summary {
		return inspectPendingSummaryView(rep)
	}
	return inspectPendingView(d, rep)
}

// pendingItem is a row with the command that resolves it, which can be pasted
// into a shell; null when there is none.
type pendingItem struct {
	inspect.PendingRow
	Command *string `json:"command"`
}

func inspectPendingView(d *Deps, rep *inspect.PendingReport) output.View {
	if rep == nil {
		return output.View{}
	}
	items := make([]pendingItem, len(rep.Rows))
	t := output.NewTable("GROUP", "TOPIC", "PARTITION", "OFFSETS", "COUNT", "TRANSACTIONAL-ID", "STATE", "AGE", "LEFT", "VERDICT")
	wide := output.NewTable(
		"GROUP", "TOPIC", "TOPIC-ID", "TOPIC-STATE", "PARTITION", "FIRST-OFFSET", "LAST-OFFSET", "COUNT", "ACKNOWLEDGE-TYPE", "DELIVERY-COUNT",
		"TRANSACTIONAL-ID", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR", "STATE", "STARTED", "AGE", "STAGED", "TIMEOUT", "DEADLINE",
		"TWO-PHASE", "STUCK", "STATE-PARTITION", "CANDIDATES", "GROUP-MEMBERS", "VERDICT", "EVIDENCE", "ADVICE", "COMMAND",
	)
	for i := range rep.Rows {
		r := &rep.Rows[i]
		items[i] = pendingItem{PendingRow: *r}
		command := output.NA()
		if c, ok := d.commandLine(r.Command); ok {
			items[i].Command, command = &c, output.CellOf(c)
		}
		t.Row(output.Key(r.GroupID), topicCell(r), r.Partition, offsetsCell(r), r.Count,
			output.Key(r.TransactionalID), stateCell(r, true), ageCell(r.AgeMS), leftCell(r, rep.Time), verdictCell(r.Verdict))
		wide.Row(
			output.Key(r.GroupID), r.Topic, r.TopicID, topicStateCell(r), r.Partition, r.FirstOffset, r.LastOffset, r.Count, r.AcknowledgeType, r.DeliveryCount,
			output.Key(r.TransactionalID), r.ProducerID, r.ProducerEpoch, r.Coordinator, stateCell(r, false), r.Started, ageCell(r.AgeMS), r.Staged, timeoutCell(r), deadlineCell(r),
			yesNo(r.TwoPhase), yesNo(r.Stuck), statePartitionCell(r), candidatesCell(r), r.GroupMembers, verdictCell(r.Verdict),
			strings.Join(r.Evidence, "; "), r.Advice, command,
		)
	}
	return output.View{
		Kind: "inspect.pending", Version: 1, ClusterID: rep.ClusterID, Time: rep.Time.Truncate(time.Millisecond),
		Incomplete: rep.Status == inspect.StatusUnknown, Warnings: pendingWarnings(rep),
		Items: items, Data: rep, Table: t, Wide: wide,
		Text: pendingText(rep), Empty: emptyPending(rep),
	}
}

func inspectPendingSummaryView(rep *inspect.PendingReport) output.View {
	if rep == nil {
		return output.View{}
	}
	t := output.NewTable("BY", "NAME", "RECORDS", "SHARE-PARTITIONS", "OWNERS", "PRODUCER-IDS", "STATE", "OLDEST", "LEFT") // for CSV
	groups := output.NewTable("GROUP", "RECORDS", "SHARE-PARTITIONS", "OWNERS", "OLDEST")
	owners := output.NewTable("TRANSACTIONAL-ID", "PRODUCER-IDS", "RECORDS", "SHARE-PARTITIONS", "STATE", "OLDEST", "LEFT")
	for i := range rep.Groups {
		g := &rep.Groups[i]
		name, oldest := output.Key(g.GroupID), ageCell(g.OldestAgeMS)
		groups.Row(name, g.Records, g.SharePartitions, g.Owners, oldest)
		t.Row("group", name, g.Records, g.SharePartitions, g.Owners, output.NA(), output.NA(), oldest, output.NA())
	}
	for i := range rep.Owners {
		o := &rep.Owners[i]
		name, oldest := output.Key(o.TransactionalID), ageCell(o.OldestAgeMS)
		ids, state, left := producerIDsCell(o.ProducerIDs), ownerStateCell(o), ownerLeftCell(o, rep.Time)
		owners.Row(name, ids, o.Records, o.SharePartitions, state, oldest, left)
		t.Row("owner", name, o.Records, o.SharePartitions, output.NA(), ids, state, oldest, left)
	}
	return output.View{
		Kind: "inspect.pending.summary", Version: 1, ClusterID: rep.ClusterID, Time: rep.Time.Truncate(time.Millisecond),
		Incomplete: rep.Status == inspect.StatusUnknown, Warnings: pendingWarnings(rep),
		Data: rep, Table: t, Sections: []output.Section{{Table: groups}, {Table: owners}},
		Text: pendingText(rep), Empty: emptyPending(rep),
	}
}

func producerIDsCell(ids []int64) any {
	if len(ids) == 0 {
		return output.Unknown()
	}
	words := make([]string, len(ids))
	for i, id := range ids {
		words[i] = strconv.FormatInt(id, 10)
	}
	return strings.Join(words, ",")
}

// pendingWarnings says what could not be seen, and what else is not as it should
// be.
func pendingWarnings(rep *inspect.PendingReport) []string {
	return append(gapWarnings(rep.Gaps), rep.Warnings...)
}

// emptyPending is the sentence in place of a table without rows.
func emptyPending(rep *inspect.PendingReport) string {
	if rep.Status == inspect.StatusUnknown {
		return "no record in TX_PENDING could be seen, and there may be some"
	}
	return rep.Reason
}

// pendingText stands below a table that has rows: what it comes to, and the
// candidates of rows that do not know their share-partition.
func pendingText(rep *inspect.PendingReport) string {
	if len(rep.Rows) == 0 {
		return ""
	}
	return "\n" + strings.Join(append([]string{output.Escape(rep.Reason)}, candidatesLines(rep)...), "\n")
}

// shownCandidates is how many candidates of one state partition people are shown.
const shownCandidates = 5

func candidatesLines(rep *inspect.PendingReport) []string {
	var lines []string
	for _, c := range rep.Candidates {
		var names []string
		for _, s := range c.SharePartitions[:min(len(c.SharePartitions), shownCandidates)] {
			names = append(names, output.Escape(fmt.Sprintf("%s/%s-%d", s.GroupID, s.Topic, s.Partition)))
		}
		line := fmt.Sprintf("candidates of __share_group_state-%d: %s", c.StatePartition, strings.Join(names, ", "))
		if more := c.Count - len(names); more > 0 {
			line += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, line)
	}
	return lines
}

func topicCell(r *inspect.PendingRow) any {
	switch {
	case r.Topic == nil && r.TopicState != "":
		return output.Warn("(" + r.TopicState + ")")
	case r.Topic == nil:
		return output.Unknown()
	case r.TopicState != "":
		return output.Warn(*r.Topic + " (" + r.TopicState + ")")
	}
	return *r.Topic
}

func topicStateCell(r *inspect.PendingRow) any {
	if r.TopicState == "" {
		return output.NA()
	}
	return output.Warn(r.TopicState)
}

func offsetsCell(r *inspect.PendingRow) any {
	switch {
	case r.FirstOffset == nil:
		return output.Unknown()
	case *r.FirstOffset == *r.LastOffset:
		return *r.FirstOffset
	}
	return fmt.Sprintf("%d-%d", *r.FirstOffset, *r.LastOffset)
}

// stateCell is the state of the transaction, with marks where they have no column
// of their own. That of an orphan does not apply where another transaction came
// after it.
func stateCell(r *inspect.PendingRow, marks bool) any {
	switch {
	case r.TransactionState == nil && r.Verdict == inspect.VerdictOrphan:
		return output.NA()
	case r.TransactionState == nil || !marks:
		return output.CellOf(r.TransactionState)
	}
	return markedState(*r.TransactionState, r.TwoPhase, r.Stuck)
}

func ownerStateCell(o *inspect.OwnerSummary) any {
	switch {
	case o.TransactionState != nil:
		return markedState(*o.TransactionState, o.TwoPhase, o.Stuck)
	case o.Orphan:
		return output.Bad("orphan")
	}
	return output.Unknown()
}

func markedState(state string, twoPhase, stuck bool) any {
	if twoPhase {
		state += " (two-phase)"
	}
	if stuck {
		return output.Bad(state + " (stuck)")
	}
	return state
}

func ageCell(ms *int64) any {
	if ms == nil {
		return output.Unknown()
	}
	return time.Duration(*ms) * time.Millisecond
}

func timeoutCell(r *inspect.PendingRow) any {
	switch {
	case r.TwoPhase, r.TimeoutMS == nil && r.Verdict == inspect.VerdictOrphan:
		return output.NA()
	case r.TimeoutMS == nil:
		return output.Unknown()
	}
	return time.Duration(*r.TimeoutMS) * time.Millisecond
}

// endless reports whether no deadline applies to a row: it has no open
// transaction, or one that does not time out, or one whose end is decided.
func endless(r *inspect.PendingRow) bool {
	return r.Verdict == inspect.VerdictOrphan || r.TwoPhase || r.TransactionState != nil && *r.TransactionState != "Ongoing"
}

func deadlineCell(r *inspect.PendingRow) any {
	if r.Deadline == nil && endless(r) {
		return output.NA()
	}
	return r.Deadline
}

// leftCell is how long it is until the transaction of a row ends by itself.
func leftCell(r *inspect.PendingRow, now time.Time) any {
	if r.Deadline == nil && endless(r) {
		return output.NA()
	}
	return untilCell(r.Deadline, now)
}

func ownerLeftCell(o *inspect.OwnerSummary, now time.Time) any {
	if o.Deadline == nil && (o.Orphan || o.TwoPhase || o.TransactionState != nil && *o.TransactionState != "Ongoing") {
		return output.NA()
	}
	return untilCell(o.Deadline, now)
}

func untilCell(deadline *time.Time, now time.Time) any {
	if deadline == nil {
		return output.Unknown()
	}
	if left := deadline.Sub(now); left >= 0 {
		return left.Round(time.Millisecond)
	}
	return output.Warn("over")
}

func verdictCell(v inspect.Verdict) any {
	switch v {
	case inspect.VerdictOrphan:
		return output.Bad(string(v))
	case inspect.VerdictLikely, inspect.VerdictPossible:
		return output.Warn(string(v))
	case inspect.VerdictExact:
	}
	return string(v)
}

func statePartitionCell(r *inspect.PendingRow) any {
	if r.StatePartition < 0 {
		return output.Unknown()
	}
	return r.StatePartition
}

func candidatesCell(r *inspect.PendingRow) any {
	if r.Verdict == inspect.VerdictExact || r.Verdict == inspect.VerdictOrphan {
		return output.NA()
	}
	return r.CandidateParts
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// shownHints is how many owners people are told how to resolve.
const shownHints = 10

// hintPending says what to do: about what could not be seen, and about each owner
// once. Programs find the latter in the document.
func (d *Deps) hintPending(rep *inspect.PendingReport) {
	if rep == nil {
		return
	}
	d.hintGaps(rep.Gaps)
	if d.flags.Output == output.FormatTable || d.flags.Output == output.FormatWide {
		for _, h := range pendingHints(d, rep) {
			d.Hint(h)
		}
	}
}

func pendingHints(d *Deps, rep *inspect.PendingReport) []string {
	var out []string
	told := make(map[string]bool)
	for i := range rep.Rows {
		h := pendingHint(d, &rep.Rows[i])
		if told[h] {
			continue
		}
		told[h] = true
		if len(told) <= shownHints {
			out = append(out, h)
		}
	}
	if more := len(told) - shownHints; more > 0 {
		out = append(out, fmt.Sprintf("and %d more; -o wide and -o json have the command of each row", more))
	}
	return out
}

// pendingHint is the same for all rows of one owner that one command resolves.
func pendingHint(d *Deps, r *inspect.PendingRow) string {
	var ids []int64
	if r.ProducerID != nil {
		ids = append(ids, *r.ProducerID)
	}
	h := ownerName(r.TransactionalID, ids) + ": " + r.Advice
	if c, ok := d.commandLine(r.Command); ok {
		h += ": " + c
	}
	return h
}

// ownerName names an owner in a sentence.
func ownerName(transactionalID *string, producerIDs []int64) string {
	switch {
	case transactionalID != nil:
		return strconv.Quote(*transactionalID)
	case len(producerIDs) > 0:
		return fmt.Sprintf("producer %d", producerIDs[0])
	}
	return "an owner that is not known"
}

// commandLine returns arguments of kshare as a line that can be run as it is
// printed: quoted, and with the brokers, as [Deps.command] has them. It returns
// false where there are none, and where a shell could not pass them on.
func (d *Deps) commandLine(args []string) (string, bool) {
	if len(args) == 0 {
		return "", false
	}
	line, rest := "kshare", ""
	for _, a := range args {
		word, ok := output.ShellQuote(a)
		if !ok {
			return "", false
		}
		if a == "--" || rest != "" {
			rest += " " + word // no flag may follow
			continue
		}
		line += " " + word
	}
	return d.command(line) + rest, true
}
