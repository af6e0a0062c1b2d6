package inspect

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/wire"
)

// NewPendingReport joins evidence into a report about the records that are in
// TX_PENDING (KIP-1289) and pass f. It is pure, and its cost is linear in the
// size of the evidence.
//
// A state that says TX_PENDING is joined with the open transaction of its staged
// producer. An open transaction that lists a partition of __share_group_state in
// which no such state was seen is joined with the share-partitions whose state is
// kept there. What a gap in the evidence may hide is never taken for absent: no
// record is called an orphan because its owner may not be described.
//
// The status is about the rows that pass f; gaps make it [StatusUnknown] with any
// filter.
func NewPendingReport(ev *Evidence, f Filter) *PendingReport {
	j := newJoin(ev, f)
	for i := range ev.States {
		j.stateRows(&ev.States[i])
	}
	for i := range ev.Transactions {
		j.transactionRows(&ev.Transactions[i])
	}
	return j.report()
}

// join is the evidence, indexed, and the rows that were made of it.
type join struct {
	ev *Evidence
	f  Filter

	open    map[int64]*Transaction   // open transactions by producer ID
	ended   map[int64]*Transaction   // ended ones that own records
	listers map[int32][]*Transaction // open ones by the state partitions they list
	// seen has each state partition of each open transaction in which records of
	// it were seen.
	seen       map[listing]bool
	seenOf     map[*Transaction]bool // whether there is any
	candidates map[int32]*candidates
	members    map[string]*int     // of groups; nil where that is not told
	topicNames map[[16]byte]string // also of topics that are no more, where a group knows them
	named      map[string][16]byte // the topics that exist, by name

	// What gaps may hide.
	hidesTransactions, hidesListings, hidesGroups, hidesStates, hidesTopics bool

	rows     []PendingRow
	filtered int // rows that do not pass
}

// listing is a state partition that a transaction lists.
type listing struct {
	txn            *Transaction
	statePartition int32
}

func newJoin(ev *Evidence, f Filter) *join {
	j := &join{
		ev: ev, f: f,
		open:    make(map[int64]*Transaction, len(ev.Transactions)),
		ended:   make(map[int64]*Transaction, len(ev.Ended)),
		listers: make(map[int32][]*Transaction),
		seen:    make(map[listing]bool),
		seenOf:  make(map[*Transaction]bool),
		members: make(map[string]*int, len(ev.Groups)),
	}
	for i := range ev.Transactions {
		t := &ev.Transactions[i]
		if !t.Open() {
			continue
		}
		if o := j.open[t.ProducerID]; o == nil || o.ProducerEpoch < t.ProducerEpoch {
			j.open[t.ProducerID] = t
		}
		parts, _ := t.StatePartitions()
		for _, p := range parts {
			j.listers[p] = append(j.listers[p], t)
		}
	}
	for i := range ev.Ended {
		j.ended[ev.Ended[i].ProducerID] = &ev.Ended[i]
	}
	for _, g := range ev.Groups {
		if g.Members != nil {
			j.members[g.GroupID] = new(len(g.Members))
		}
	}
	for _, g := range ev.Gaps {
		j.hide(g)
	}
	return j
}

// hide notes what a gap may hide. A broker that did not answer may be any
// coordinator and any leader, whatever it was asked for.
func (j *join) hide(g Gap) {
	switch g.Source {
	case SourceListTransactions:
		j.hidesTransactions = true
	case SourceDescribeTransactions:
		j.hidesTransactions, j.hidesListings = true, true
	case SourceListGroups, SourceShareGroupDescribe, SourceShareGroupOffsets:
		j.hidesGroups = true
	case SourceShareGroupState, SourceStateTopic:
		j.hidesStates = true
	case SourceMetadata:
		j.hidesListings = j.hidesListings || g.ACL == nil
		j.hidesTopics = j.hidesTopics || g.ACL == nil
	case SourceDescribeProducers, SourceDescribeConfigs, SourceListOffsets:
	}
	switch {
	case g.ACL == nil && g.Broker != nil:
		j.hidesTransactions, j.hidesListings, j.hidesGroups, j.hidesStates = true, true, true, true
	case g.ACL == nil:
	case g.ACL.ResourceType == "TRANSACTIONAL_ID":
		j.hidesTransactions = true
	case g.ACL.ResourceType == "GROUP":
		j.hidesGroups = true
	case g.ACL.ResourceName == stateTopic:
		j.hidesListings = true
	}
}

// stateRows adds the rows of one share-partition: a row for each maximal range
// with one owner and one acknowledge type.
func (j *join) stateRows(s *ShareState) {
	var first, last *wire.StateBatch
	deliveries := int16(0)
	flush := func() {
		if first != nil {
			j.stateRow(s, *first, last.LastOffset, deliveries)
		}
		first = nil
	}
	for i := range s.Batches {
		b := &s.Batches[i]
		if b.DeliveryState != wire.TxPending {
			continue
		}
		if first != nil && (b.FirstOffset != last.LastOffset+1 || !sameOwner(b.Staged, first.Staged)) {
			flush()
		}
		if first == nil {
			first, deliveries = b, b.DeliveryCount
		}
		last, deliveries = b, max(deliveries, b.DeliveryCount)
	}
	flush()
}

// sameOwner reports whether two batches belong in one row.
func sameOwner(a, b wire.StagedOwner) bool {
	return a.ProducerID == b.ProducerID && a.ProducerEpoch == b.ProducerEpoch && a.AcknowledgeType == b.AcknowledgeType
}

func (j *join) stateRow(s *ShareState, b wire.StateBatch, last int64, deliveries int16) {
	r := PendingRow{
		GroupID:       &s.GroupID,
		Partition:     &s.Partition,
		FirstOffset:   new(b.FirstOffset),
		LastOffset:    &last,
		Count:         new(last - b.FirstOffset + 1),
		DeliveryCount: &deliveries,
		Staged:        stagedSince(s, b.Staged),

		StatePartition: s.StatePartition,
	}
	if b.Staged.AcknowledgeType >= 0 {
		r.AcknowledgeType = new(wire.AcknowledgeType(b.Staged.AcknowledgeType).String())
	}
	if b.Staged.ProducerID < 0 {
		r.Evidence = append(r.Evidence, stateSays(s)+", and names no owner that can be read")
		j.resolve(&r, j.onlyLister(&r))
	} else {
		r.ProducerID = new(b.Staged.ProducerID)
		says := fmt.Sprintf("%s, staged by producer %d", stateSays(s), b.Staged.ProducerID)
		if b.Staged.ProducerEpoch >= 0 {
			r.ProducerEpoch = new(b.Staged.ProducerEpoch)
			says += fmt.Sprintf(" with epoch %d", b.Staged.ProducerEpoch)
		}
		r.Evidence = append(r.Evidence, says)
		j.resolve(&r, j.owner(&r))
	}
	j.setTopic(&r, s.TopicID)
	r.GroupMembers = j.members[s.GroupID]
	j.add(r)
}

// stagedSince is when the first of an owner's records was staged, or any one's
// where that is not told apart.
func stagedSince(s *ShareState, owner wire.StagedOwner) *time.Time {
	if since := s.WrittenBy(owner); !since.IsZero() {
		return known(since)
	}
	return known(s.Written)
}

func stateSays(s *ShareState) string {
	if len(s.Sources) == 0 {
		return "the persisted state is TX_PENDING"
	}
	names := make([]string, 0, len(s.Sources))
	for _, src := range s.Sources {
		names = append(names, string(src))
	}
	return strings.Join(names, " and ") + ": the persisted state is TX_PENDING"
}

// resolve completes a row of a state: t is its open transaction, or nil where it
// has none or that is not known. The verdict is set already.
func (j *join) resolve(r *PendingRow, t *Transaction) {
	if t != nil {
		j.seen[listing{t, r.StatePartition}], j.seenOf[t] = true, true
		j.setTransaction(r, t)
		return
	}
	r.AgeMS = j.age(r)
	if r.Verdict == VerdictOrphan {
		adviseOrphan(r)
		return
	}
	r.Advice = "see who owns it first: what could not be seen is told with this report"
}

// owner returns the open transaction that holds the records of a row whose owner
// could be read, and sets the verdict.
func (j *join) owner(r *PendingRow) *Transaction {
	r.Verdict = VerdictExact
	t := j.open[*r.ProducerID]
	if t == nil {
		j.ownerGone(r)
		return nil
	}
	if why := j.contradiction(t, r); why != "" {
		r.Verdict, r.TransactionalID, r.Coordinator = VerdictOrphan, &t.TransactionalID, &t.Coordinator
		r.Evidence = append(r.Evidence, why)
		return nil
	}
	r.Evidence = append(r.Evidence, fmt.Sprintf("%s: transaction %s of this producer is %s%s", transactionSource(t), quote(t.TransactionalID), t.State, atEpoch(t)))
	return t
}

// contradiction says why t, which is open, cannot be the transaction that staged
// the records of a row, though the producer is the same; "" when it can. An epoch
// below that of the records only says that t was described before they were
// staged, and one above it is what any transaction has that is being ended.
func (j *join) contradiction(t *Transaction, r *PendingRow) string {
	if t.Preparing() || t.ProducerEpoch < 0 || r.ProducerEpoch == nil {
		return ""
	}
	parts, described := t.StatePartitions()
	switch staged := *r.ProducerEpoch; {
	case t.ProducerEpoch > staged:
		return fmt.Sprintf("transactional ID %s has gone on to epoch %d, so the transaction of epoch %d has ended", quote(t.TransactionalID), t.ProducerEpoch, staged)
	case t.ProducerEpoch == staged && described && !j.hidesListings && !slices.Contains(parts, r.StatePartition):
		return fmt.Sprintf("transaction %s of this producer is open and does not list %s-%d, so its end will not reach the records", quote(t.TransactionalID), stateTopic, r.StatePartition)
	}
	return ""
}

// ownerGone sets the verdict on a row whose producer has no open transaction that
// could be seen.
func (j *join) ownerGone(r *PendingRow) {
	e := j.ended[*r.ProducerID]
	switch {
	case e != nil:
		r.Verdict, r.TransactionalID, r.Coordinator = VerdictOrphan, &e.TransactionalID, &e.Coordinator
		says := fmt.Sprintf("transaction %s of this producer is %s%s", quote(e.TransactionalID), e.State, atEpoch(e))
		if e.Open() {
			says = fmt.Sprintf("transactional ID %s has gone on to another transaction%s", quote(e.TransactionalID), atEpoch(e))
		} else if endOf(e, r) {
			r.TransactionState = &e.State
		}
		r.Evidence = append(r.Evidence, says)
	case j.hidesTransactions:
		r.Evidence = append(r.Evidence, "no transaction of this producer could be seen, and some may be hidden")
	default:
		r.Verdict = VerdictOrphan
		r.Evidence = append(r.Evidence, "no coordinator knows an open transaction of this producer")
	}
}

// endOf reports whether the state of e is that of the transaction that staged the
// records: its epoch is the same, or one more (TV2).
func endOf(e *Transaction, r *PendingRow) bool {
	if r.ProducerEpoch == nil || e.ProducerEpoch < 0 {
		return false
	}
	ahead := int(e.ProducerEpoch) - int(*r.ProducerEpoch)
	return ahead == 0 || ahead == 1
}

// onlyLister returns the open transaction that holds records without an owner
// that can be read, if only one can, and sets the verdict.
func (j *join) onlyLister(r *PendingRow) *Transaction {
	r.Verdict = VerdictExact
	listers := j.listers[r.StatePartition]
	part := fmt.Sprintf("%s-%d", stateTopic, r.StatePartition)
	hidden := j.hidesTransactions || j.hidesListings
	switch {
	case len(listers) == 1 && !hidden:
		t := listers[0]
		r.ProducerID, r.ProducerEpoch = told(t.ProducerID), told(t.ProducerEpoch)
		r.Evidence = append(r.Evidence, fmt.Sprintf("%s: transaction %s is the only one that lists %s, and is %s", SourceDescribeTransactions, quote(t.TransactionalID), part, t.State))
		return t
	case len(listers) > 0:
		r.Evidence = append(r.Evidence, fmt.Sprintf("%s: %s by which it may be held", SourceDescribeTransactions, plural(len(listers), "open transaction lists "+part, "open transactions list "+part)))
	case hidden:
		r.Evidence = append(r.Evidence, "no open transaction that could be seen lists "+part+", and some may be hidden")
	default:
		r.Verdict = VerdictOrphan
		r.Evidence = append(r.Evidence, "no open transaction lists "+part)
	}
	return nil
}

// transactionRows adds the rows of an open transaction that lists, or may list,
// state partitions in which no records of it were seen: one for each.
func (j *join) transactionRows(t *Transaction) {
	if !t.Open() || !t.HoldsShareAcks() {
		return
	}
	parts, described := t.StatePartitions()
	if !described {
		if j.seenOf[t] {
			return
		}
		r := j.transactionRow(t, -1)
		r.Evidence = append(r.Evidence,
			fmt.Sprintf("%s: transaction %s is %s", SourceListTransactions, quote(t.TransactionalID), t.State),
			"its coordinator does not tell which partitions take part, so it may hold share acknowledgements")
		j.add(r)
		return
	}
	for _, p := range parts {
		if !j.seen[listing{t, p}] {
			j.add(j.listingRow(t, p))
		}
	}
}

func (j *join) listingRow(t *Transaction, p int32) PendingRow {
	r := j.transactionRow(t, p)
	r.Evidence = append(r.Evidence, fmt.Sprintf("%s: transaction %s is %s and lists %s-%d", SourceDescribeTransactions, quote(t.TransactionalID), t.State, stateTopic, p))
	c := j.candidatesOf(p)
	r.CandidateGroups, r.CandidateParts = c.groups, c.count
	if j.ev.Persists && !j.hidesStates {
		// Registration comes before staging, so this is an ordinary moment.
		r.Evidence = append(r.Evidence, "this cluster writes TX_PENDING down, and none of its records is: nothing may be staged there yet")
		return r
	}
	if one, why := c.likely(j.ev.Time, j.hidesGroups); one != nil {
		r.Verdict = VerdictLikely
		r.GroupID, r.Partition = &one.groupID, &one.part.Partition
		r.Evidence = append(r.Evidence, why)
		j.setTopic(&r, one.part.TopicID)
		r.GroupMembers = j.members[one.groupID]
		return r
	}
	switch {
	case c.count == 0 && j.hidesGroups:
		r.Evidence = append(r.Evidence, "no share-partition that could be seen has its state there, and some may be hidden")
	case c.count == 0:
		r.Evidence = append(r.Evidence, "no share-partition that is not done has its state there: nothing may be staged, or its group is gone")
	default:
		r.Evidence = append(r.Evidence, fmt.Sprintf("it may concern any of the share-partitions that are not done and have their state there: %s in %s",
			plural(c.count, "candidate", "candidates"), plural(c.groups, "group", "groups")))
	}
	return r
}

func (j *join) transactionRow(t *Transaction, statePartition int32) PendingRow {
	r := PendingRow{Verdict: VerdictPossible, StatePartition: statePartition}
	r.ProducerID, r.ProducerEpoch = told(t.ProducerID), told(t.ProducerEpoch)
	j.setTransaction(&r, t)
	return r
}

// setTransaction sets what an open transaction says of a row that it holds.
func (j *join) setTransaction(r *PendingRow, t *Transaction) {
	r.TransactionalID, r.TransactionState, r.Coordinator = &t.TransactionalID, &t.State, &t.Coordinator
	r.Started = known(t.Started)
	r.TimeoutMS = told(t.TimeoutMS)
	r.Deadline = known(t.Deadline(j.ev.Sweep))
	r.TwoPhase = t.TwoPhase()
	r.Stuck = t.Stuck(j.ev.Time, j.ev.Sweep)
	r.AgeMS = j.age(r)
	advise(r, j.ev.Time)
}

// age is how long ago the transaction of a row began, or else its records were
// staged, in ms. The clocks are not the same one, so it is held at 0 and more.
func (j *join) age(r *PendingRow) *int64 {
	since := r.Started
	if since == nil {
		since = r.Staged
	}
	if since == nil {
		return nil
	}
	return new(max(0, j.ev.Time.Sub(*since).Milliseconds()))
}

// setTopic names the topic of a row as far as it is known.
func (j *join) setTopic(r *PendingRow, id [16]byte) {
	r.TopicID = new(base64.RawURLEncoding.EncodeToString(id[:]))
	if name, ok := j.ev.Topics[id]; ok {
		if name != "" { // else it exists, and its name is hidden
			r.Topic = &name
		}
		return
	}
	if j.hidesTopics {
		return
	}
	r.TopicState = "deleted"
	if name, ok := j.formerName(id); ok {
		r.Topic = &name
		if _, again := j.named[name]; again {
			r.TopicState = "recreated"
		}
	}
	r.Evidence = append(r.Evidence, "no topic that this principal may describe has the ID "+*r.TopicID)
}

// formerName is the name that a group has for a topic that is no more.
func (j *join) formerName(id [16]byte) (string, bool) {
	if j.topicNames == nil {
		j.topicNames = make(map[[16]byte]string)
		j.named = make(map[string][16]byte, len(j.ev.Topics))
		for id, name := range j.ev.Topics {
			j.named[name] = id
		}
		for _, g := range j.ev.Groups {
			for _, p := range g.Partitions {
				if _, ok := j.ev.Topics[p.TopicID]; !ok && p.Topic != "" {
					j.topicNames[p.TopicID] = p.Topic
				}
			}
		}
	}
	name, ok := j.topicNames[id]
	return name, ok
}

// transactionSource is who says that t is open: without an epoch it was listed
// and not described.
func transactionSource(t *Transaction) Source {
	if t.ProducerEpoch < 0 {
		return SourceListTransactions
	}
	return SourceDescribeTransactions
}

func atEpoch(t *Transaction) string {
	if t.ProducerEpoch < 0 {
		return ""
	}
	return fmt.Sprintf(" at epoch %d", t.ProducerEpoch)
}

// known is nil for a time that is not known, and in UTC otherwise.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

// told is nil for a number that was not told, which is -1 in the protocol.
func told[T int16 | int32 | int64](n T) *T {
	if n < 0 {
		return nil
	}
	return &n
}

func quote(s string) string { return strconv.Quote(s) }

// plural counts one or many.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}
