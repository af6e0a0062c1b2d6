package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
)

// add keeps a row that passes the filter.
func (j *join) add(r PendingRow) {
	if !j.passes(&r) {
		j.filtered++
		return
	}
	if r.Evidence == nil {
		r.Evidence = []string{}
	}
	j.rows = append(j.rows, r)
}

// passes reports whether a row passes the filter. What it does not know, it may
// be.
func (j *join) passes(r *PendingRow) bool {
	f := &j.f
	if r.AgeMS != nil && time.Duration(*r.AgeMS)*time.Millisecond < f.OlderThan {
		return false
	}
	if !passes(f.TransactionalIDs, r.TransactionalID) {
		return false
	}
	// One of several candidates that a row names is a guess: it may be another.
	named := r.GroupID != nil && (r.CandidateParts <= 1 && !f.Done || r.FirstOffset != nil)
	if named || r.StatePartition < 0 || len(f.Groups)+len(f.Topics) == 0 {
		return passes(f.Groups, r.GroupID) && passes(f.Topics, r.Topic)
	}
	c := j.candidatesOf(r.StatePartition)
	return c.passes || c.donePasses || c.count == 0 || j.hidesGroups
}

// passes reports whether value is among those wanted; nil may be any.
func passes(want []string, value *string) bool {
	return len(want) == 0 || value == nil || slices.Contains(want, *value)
}

// report sorts the rows and sums them up.
func (j *join) report() *PendingReport {
	slices.SortStableFunc(j.rows, compareRows)
	rep := &PendingReport{
		Time: j.ev.Time, ClusterID: j.ev.ClusterID, Rows: j.rows,
		Candidates: j.listCandidates(), Gaps: append([]Gap{}, j.ev.Gaps...),
	}
	for i := range j.rows {
		rep.count(&j.rows[i])
	}
	rep.Groups = sumGroups(j.rows)
	rep.Owners = sumOwners(j.rows)
	rep.Status, rep.Reason = j.status(rep)
	if n := len(j.ev.Support.Brokers); rep.Status == StatusNone && j.ev.StatePartitions == 0 && n > 0 && n < defaultStateCopies {
		// Kafka makes the topic for the first share group, and cannot where there
		// are fewer brokers than copies: share groups do not work then.
		rep.Warnings = append(rep.Warnings, fmt.Sprintf("%s cannot create topic %s unless share.coordinator.state.topic.replication.factor, share.coordinator.state.topic.min.isr and offsets.topic.replication.factor are at most that number (by default they are 3, 2 and 3)",
			plural(n, "broker", "brokers"), stateTopic))
	}
	return rep
}

// defaultStateCopies is Kafka's default of
// share.coordinator.state.topic.replication.factor.
const defaultStateCopies = 3

// compareRows puts the oldest first.
func compareRows(a, b PendingRow) int {
	return cmp.Or(
		compareAges(a.AgeMS, b.AgeMS),
		comparePtr(a.GroupID, b.GroupID),
		comparePtr(a.Topic, b.Topic),
		comparePtr(a.Partition, b.Partition),
		comparePtr(a.FirstOffset, b.FirstOffset),
		comparePtr(a.TransactionalID, b.TransactionalID),
		cmp.Compare(a.StatePartition, b.StatePartition),
	)
}

// compareAges puts the higher age first, and one that is not known last.
func compareAges(a, b *int64) int {
	if a == nil || b == nil {
		return comparePtr(a, b)
	}
	return cmp.Compare(*b, *a)
}

// comparePtr puts what is not known last.
func comparePtr[T cmp.Ordered](a, b *T) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*a, *b)
}

// count adds a row to the sums of the report.
func (rep *PendingReport) count(r *PendingRow) {
	rep.Records += recordsOf(r)
	if r.TwoPhase {
		rep.TwoPhase++
	}
	if r.Stuck {
		rep.Stuck++
	}
	if r.Deadline == nil {
		return
	}
	if rep.NextDeadline == nil || r.Deadline.Before(*rep.NextDeadline) {
		rep.NextDeadline = r.Deadline
	}
	if rep.LastDeadline == nil || r.Deadline.After(*rep.LastDeadline) {
		rep.LastDeadline = r.Deadline
	}
}

// recordsOf is the number of records that are TX_PENDING for certain.
func recordsOf(r *PendingRow) int64 {
	if r.Count == nil {
		return 0
	}
	return *r.Count
}

// listCandidates lists the candidates that rows without a share-partition refer
// to, by state partition.
func (j *join) listCandidates() []Candidates {
	out := []Candidates{}
	listed := make(map[int32]bool)
	for i := range j.rows {
		r := &j.rows[i]
		if r.GroupID != nil || r.StatePartition < 0 || listed[r.StatePartition] {
			continue
		}
		listed[r.StatePartition] = true
		if c := j.candidatesOf(r.StatePartition); c.count > 0 {
			out = append(out, Candidates{StatePartition: r.StatePartition, Count: c.count, SharePartitions: c.named})
		}
	}
	slices.SortFunc(out, func(a, b Candidates) int { return cmp.Compare(a.StatePartition, b.StatePartition) })
	return out
}

// sharePart names a share-partition.
type sharePart struct {
	groupID, topicID string
	partition        int32
}

// sharePartOf returns the share-partition of a row, and whether it names one.
func sharePartOf(r *PendingRow) (sharePart, bool) {
	if r.GroupID == nil || r.TopicID == nil || r.Partition == nil {
		return sharePart{}, false
	}
	return sharePart{*r.GroupID, *r.TopicID, *r.Partition}, true
}

// ownerKey tells owners apart. A transactional ID whose producer ID was rotated
// is one owner.
type ownerKey struct {
	transactionalID string
	producerID      int64 // -1 where the former is known, or neither is
	named           bool
}

func ownerOf(r *PendingRow) ownerKey {
	switch {
	case r.TransactionalID != nil:
		return ownerKey{transactionalID: *r.TransactionalID, producerID: -1, named: true}
	case r.ProducerID != nil:
		return ownerKey{producerID: *r.ProducerID}
	}
	return ownerKey{producerID: -1}
}

// sumGroups sums up rows by group, the oldest first, then by group ID.
func sumGroups(rows []PendingRow) []GroupSummary {
	type group struct {
		GroupSummary
		parts  map[sharePart]bool
		owners map[ownerKey]bool
	}
	byID := make(map[string]*group)
	var order []*group
	for i := range rows {
		r := &rows[i]
		part, ok := sharePartOf(r)
		if !ok {
			continue
		}
		g := byID[*r.GroupID]
		if g == nil {
			// Rows come oldest first, so the first one has the age.
			g = &group{
				GroupSummary: GroupSummary{GroupID: *r.GroupID, OldestAgeMS: r.AgeMS},
				parts:        make(map[sharePart]bool), owners: make(map[ownerKey]bool),
			}
			byID[*r.GroupID] = g
			order = append(order, g)
		}
		g.Records += recordsOf(r)
		g.parts[part], g.owners[ownerOf(r)] = true, true
	}
	out := make([]GroupSummary, 0, len(order))
	for _, g := range order {
		g.SharePartitions, g.GroupSummary.Owners = len(g.parts), len(g.owners)
		out = append(out, g.GroupSummary)
	}
	slices.SortStableFunc(out, func(a, b GroupSummary) int {
		return cmp.Or(compareAges(a.OldestAgeMS, b.OldestAgeMS), strings.Compare(a.GroupID, b.GroupID))
	})
	return out
}

// sumOwners sums up rows by owner, the oldest first, then by transactional ID and
// producer ID.
func sumOwners(rows []PendingRow) []OwnerSummary {
	type owner struct {
		OwnerSummary
		parts map[sharePart]bool
		ids   map[int64]bool
	}
	byKey := make(map[ownerKey]*owner)
	var order []*owner
	for i := range rows {
		r := &rows[i]
		o := byKey[ownerOf(r)]
		if o == nil {
			o = &owner{
				OwnerSummary: OwnerSummary{TransactionalID: r.TransactionalID, OldestAgeMS: r.AgeMS},
				parts:        make(map[sharePart]bool), ids: make(map[int64]bool),
			}
			byKey[ownerOf(r)] = o
			order = append(order, o)
		}
		o.add(r)
		if r.ProducerID != nil {
			o.ids[*r.ProducerID] = true
		}
		if part, ok := sharePartOf(r); ok {
			o.parts[part] = true
		}
	}
	out := make([]OwnerSummary, 0, len(order))
	for _, o := range order {
		o.SharePartitions = len(o.parts)
		o.ProducerIDs = make([]int64, 0, len(o.ids))
		for id := range o.ids {
			o.ProducerIDs = append(o.ProducerIDs, id)
		}
		slices.Sort(o.ProducerIDs)
		out = append(out, o.OwnerSummary)
	}
	slices.SortStableFunc(out, func(a, b OwnerSummary) int {
		return cmp.Or(
			compareAges(a.OldestAgeMS, b.OldestAgeMS),
			comparePtr(a.TransactionalID, b.TransactionalID),
			slices.Compare(a.ProducerIDs, b.ProducerIDs),
		)
	})
	return out
}

// add adds a row to the sums. The state is that of the transaction that is open,
// if any row has one.
func (o *OwnerSummary) add(r *PendingRow) {
	o.Rows++
	o.Records += recordsOf(r)
	o.TwoPhase = o.TwoPhase || r.TwoPhase
	o.Stuck = o.Stuck || r.Stuck
	o.Orphan = o.Orphan || r.Verdict == VerdictOrphan
	if o.TransactionState == nil || r.Verdict != VerdictOrphan && r.TransactionState != nil {
		o.TransactionState = r.TransactionState
	}
	if r.Deadline != nil && (o.Deadline == nil || r.Deadline.After(*o.Deadline)) {
		o.Deadline = r.Deadline
	}
}

// status decides on the whole.
func (j *join) status(rep *PendingReport) (Status, string) {
	if n := len(rep.Gaps); n > 0 {
		says := "no record in TX_PENDING could be seen, and there may be some: "
		if len(rep.Rows) > 0 {
			says = pendingReason(rep) + ", and there may be more: "
		}
		says += rep.Gaps[0].Reason
		if n > 1 {
			says += fmt.Sprintf(" (and %d more could not be seen)", n-1)
		}
		return StatusUnknown, says
	}
	switch {
	case len(rep.Rows) > 0:
		return StatusPending, pendingReason(rep)
	case j.ev.Support.Verdict == cluster.NotSupported:
		return StatusUnsupported, "TX_PENDING does not exist on this cluster, which does not implement KIP-1289: " + j.ev.Support.Reason
	case j.filtered > 0:
		return StatusNone, fmt.Sprintf("nothing that was asked for is in TX_PENDING; %s", plural(j.filtered, "other row is left out", "other rows are left out"))
	case j.ev.StatePartitions == 0:
		return StatusNone, "no record is in TX_PENDING: the topic " + stateTopic + " does not exist, so no share group has been used yet"
	}
	return StatusNone, "no record is in TX_PENDING, and no open transaction holds share acknowledgements"
}

func pendingReason(rep *PendingReport) string {
	parts := make(map[sharePart]bool)
	uncertain := make(map[ownerKey]bool)
	for i := range rep.Rows {
		r := &rep.Rows[i]
		if r.Count == nil {
			uncertain[ownerOf(r)] = true
			continue
		}
		if p, ok := sharePartOf(r); ok {
			parts[p] = true
		}
	}
	var says []string
	if rep.Records > 0 {
		verb := "are"
		if rep.Records == 1 {
			verb = "is"
		}
		says = append(says, fmt.Sprintf("%s of %s %s in TX_PENDING",
			plural(int(rep.Records), "record", "records"), plural(len(parts), "share-partition", "share-partitions"), verb))
	}
	if n := len(uncertain); n > 0 {
		what := "records in TX_PENDING"
		if rep.Records > 0 {
			what = "more"
		}
		says = append(says, plural(n, "open transaction", "open transactions")+" may hold "+what)
	}
	return strings.Join(says, ", and ")
}
