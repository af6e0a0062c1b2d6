package share

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// rangeSet is a set of offsets: ranges that are ascending, and neither overlap
// nor touch.
type rangeSet []Range

// newRangeSet returns the offsets of ranges that may be in any order and overlap.
func newRangeSet(in []Range) rangeSet {
	sorted := slices.SortedFunc(slices.Values(in), func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.FirstOffset, b.FirstOffset), cmp.Compare(a.LastOffset, b.LastOffset))
	})
	var out rangeSet
	for _, r := range sorted {
		if n := len(out); n > 0 && r.FirstOffset-1 <= out[n-1].LastOffset {
			out[n-1].LastOffset = max(out[n-1].LastOffset, r.LastOffset)
			continue
		}
		out = append(out, r)
	}
	return out
}

// and returns the offsets that are in both.
func (s rangeSet) and(o rangeSet) rangeSet {
	var out rangeSet
	for i, j := 0, 0; i < len(s) && j < len(o); {
		if r := (Range{max(s[i].FirstOffset, o[j].FirstOffset), min(s[i].LastOffset, o[j].LastOffset)}); r.FirstOffset <= r.LastOffset {
			out = append(out, r)
		}
		if s[i].LastOffset < o[j].LastOffset {
			i++
		} else {
			j++
		}
	}
	return out
}

// without returns the offsets of s that are not in o.
func (s rangeSet) without(o rangeSet) rangeSet {
	var out rangeSet
	for _, r := range s {
		rest := true // r has an end that was not looked at
		for _, x := range o {
			if x.LastOffset < r.FirstOffset {
				continue
			}
			if x.FirstOffset > r.LastOffset {
				break
			}
			if x.FirstOffset > r.FirstOffset {
				out = append(out, Range{r.FirstOffset, x.FirstOffset - 1})
			}
			if rest = x.LastOffset < r.LastOffset; !rest {
				break
			}
			r.FirstOffset = x.LastOffset + 1
		}
		if rest {
			out = append(out, r)
		}
	}
	return out
}

func (s rangeSet) has(offset int64) bool {
	_, ok := slices.BinarySearchFunc(s, offset, func(r Range, o int64) int {
		switch {
		case r.LastOffset < o:
			return -1
		case r.FirstOffset > o:
			return 1
		}
		return 0
	})
	return ok
}

func (s rangeSet) len() int64 {
	var n int64
	for _, r := range s {
		n += r.Len()
	}
	return n
}

// last returns the highest offset; -1 for none.
func (s rangeSet) last() int64 {
	if len(s) == 0 {
		return -1
	}
	return s[len(s)-1].LastOffset
}

// offsets returns what a part of a partition holds.
func (p *PartitionBatch) offsets() rangeSet {
	in := make([]Range, 0, len(p.Acquired))
	for _, r := range p.Acquired {
		in = append(in, r.Range)
	}
	return newRangeSet(in)
}

// keep returns the part of p that is in set; nil for none.
func (p *PartitionBatch) keep(set rangeSet) *PartitionBatch {
	out := *p
	out.Acquired, out.Records, out.Gaps = nil, nil, nil
	for _, r := range p.Acquired {
		for _, k := range (rangeSet{r.Range}).and(set) {
			out.Acquired = append(out.Acquired, AcquiredRange{k, r.DeliveryCount})
		}
	}
	if len(out.Acquired) == 0 {
		return nil
	}
	out.Gaps = rangeSet(p.Gaps).and(set)
	out.Records = slices.DeleteFunc(slices.Clone(p.Records), func(r *kgo.Record) bool { return !set.has(r.Offset) })
	return &out
}

// RangeStatus says what became of offsets that were asked for.
type RangeStatus int8

const (
	// RangeAcquired: this member holds them.
	RangeAcquired RangeStatus = iota
	// RangeTerminal: acknowledged or archived; the group never delivers them again.
	RangeTerminal
	// RangePending: staged in a transaction that has not ended (KIP-1289).
	RangePending
	// RangeLocked: not offered, and in no state that is persisted but available.
	// Another member holds the acquisition lock; or, where brokers keep TX_PENDING
	// in memory alone, a transaction the records.
	RangeLocked
	// RangeBeyondEnd: the log has not come that far, or, for a group that reads
	// committed records only, an open transaction of a producer stands before.
	RangeBeyondEnd
	// RangeNotOffered: the broker does not offer them, and this principal may not
	// read why: they are terminal, pending or locked.
	RangeNotOffered
	// RangeUntried: nothing that can be read speaks against acquiring them. Another
	// member may hold them all the same. [DescribeRanges] alone says so.
	RangeUntried
)

// String returns the status in words, such as "beyond the end".
func (s RangeStatus) String() string {
	switch s {
	case RangeAcquired:
		return "acquired"
	case RangeTerminal:
		return "terminal"
	case RangePending:
		return "pending"
	case RangeLocked:
		return "locked"
	case RangeBeyondEnd:
		return "beyond the end"
	case RangeNotOffered:
		return "not offered"
	case RangeUntried:
		return "not tried"
	}
	return fmt.Sprintf("RangeStatus(%d)", int8(s))
}

// RangeReport says what became of a range of offsets that was asked for, or of a
// part of one: as much as has the same answer.
type RangeReport struct {
	TopicPartition
	Range
	Status RangeStatus
	// DeliveryCount counts the deliveries, this one included; 0 unless acquired.
	DeliveryCount int16
	// State is the persisted state of terminal and pending records, where it was
	// read; 0 otherwise.
	State wire.RecordState
	// Owner is whose transaction pending records are part of; [wire.NoStagedOwner]
	// otherwise, and where brokers do not persist it.
	Owner wire.StagedOwner
	// TransactionalID belongs to Owner; "" where it is not known.
	TransactionalID string
	// Reason says it in a sentence, without a full stop.
	Reason string
}

// knowledge is what is known of a share-partition beside what was acquired.
type knowledge struct {
	start    int64             // the group's start offset; -1 when there is none yet
	end      int64             // the offset after the last one that the group may read; -1 when not known
	states   []wire.StateBatch // persisted states, ascending
	stateErr error             // why they could not be read
	ids      map[int64]string  // transactional IDs, by producer ID
	untried  bool              // nobody has asked the leader for them
}

// report says what became of each offset of asked, of which acquired is held. It
// is pure; reports are ascending and cover each offset once.
func report(tp TopicPartition, asked rangeSet, acquired []AcquiredRange, k knowledge) []RangeReport {
	var out []RangeReport
	add := func(r Range, rep RangeReport) {
		rep.TopicPartition, rep.Range = tp, r
		out = append(out, rep)
	}
	left := asked
	var held rangeSet
	for _, a := range acquired {
		for _, r := range asked.and(rangeSet{a.Range}) {
			add(r, RangeReport{
				Status: RangeAcquired, DeliveryCount: a.DeliveryCount, Owner: wire.NoStagedOwner(),
				Reason: fmt.Sprintf("acquired, delivered for the %s time", ordinal(int(a.DeliveryCount))),
			})
		}
		held = append(held, a.Range)
	}
	left = left.without(newRangeSet(held))
	take := func(part rangeSet, rep RangeReport) {
		for _, r := range left.and(part) {
			add(r, rep)
		}
		left = left.without(part)
	}
	none := wire.NoStagedOwner()
	if k.start > 0 {
		take(rangeSet{{0, k.start - 1}}, RangeReport{
			Status: RangeTerminal, Owner: none,
			Reason: fmt.Sprintf("below the start offset %d of the group: acknowledged, archived, or deleted", k.start),
		})
	}
	if k.end >= 0 {
		take(rangeSet{{k.end, maxOffset}}, RangeReport{
			Status: RangeBeyondEnd, Owner: none,
			Reason: fmt.Sprintf("the group can read up to offset %d so far", k.end-1),
		})
	}
	for _, b := range k.states {
		part := rangeSet{{b.FirstOffset, b.LastOffset}}
		switch b.DeliveryState {
		case wire.Acknowledged, wire.Archived, wire.Archiving:
			take(part, RangeReport{Status: RangeTerminal, State: b.DeliveryState, Owner: none, Reason: b.DeliveryState.String()})
		case wire.TxPending:
			take(part, pendingReport(b, k.ids))
		case wire.Available, wire.Acquired:
		}
	}
	rest := RangeReport{Status: RangeLocked, Owner: none, Reason: "not offered: another member holds it, until its acquisition lock expires or it is acknowledged"}
	if k.stateErr != nil {
		rest = RangeReport{
			Status: RangeNotOffered, Owner: none,
			Reason: fmt.Sprintf("not offered: acknowledged, pending in a transaction, or held by another member; the state that tells cannot be read: %v", k.stateErr),
		}
	}
	if k.untried {
		rest = RangeReport{Status: RangeUntried, Owner: none, Reason: "available, or held by another member"}
		if k.stateErr != nil {
			rest.Reason = fmt.Sprintf("not known before it is tried: the state cannot be read: %v", k.stateErr)
		}
	}
	take(left, rest)
	slices.SortFunc(out, func(a, b RangeReport) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return mergeReports(out)
}

// mergeReports makes one report of those that follow each other and say the same.
func mergeReports(in []RangeReport) []RangeReport {
	out := in[:0]
	for _, r := range in {
		if n := len(out); n > 0 && out[n-1].LastOffset == r.FirstOffset-1 {
			same := r
			same.Range = out[n-1].Range
			if same == out[n-1] {
				out[n-1].LastOffset = r.LastOffset
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

const maxOffset = 1<<63 - 1

func pendingReport(b wire.StateBatch, ids map[int64]string) RangeReport {
	rep := RangeReport{Status: RangePending, State: b.DeliveryState, Owner: b.Staged, TransactionalID: ids[b.Staged.ProducerID]}
	switch {
	case rep.TransactionalID != "":
		rep.Reason = fmt.Sprintf("staged in an open transaction of %q (producer ID %d, epoch %d)", rep.TransactionalID, b.Staged.ProducerID, b.Staged.ProducerEpoch)
	case b.Staged.ProducerID >= 0:
		rep.Reason = fmt.Sprintf("staged in a transaction of producer ID %d, epoch %d", b.Staged.ProducerID, b.Staged.ProducerEpoch)
	default:
		rep.Reason = "staged in a transaction"
	}
	return rep
}

// onTheWay counts the offsets up to last, it included, that the group may hand out
// and that are not held: an upper bound where not all is known.
func onTheWay(last int64, held rangeSet, k knowledge) int64 {
	way := rangeSet{{max(k.start, 0), last}}.without(held)
	for _, b := range k.states {
		if b.DeliveryState != wire.Available && b.DeliveryState != wire.Acquired {
			way = way.without(rangeSet{{b.FirstOffset, b.LastOffset}})
		}
	}
	return way.len()
}

// bystanders counts the offsets that the group has to hand out before it comes to
// the last one of left. It is -1 when that is not known.
func bystanders(left rangeSet, k knowledge) int64 {
	switch {
	case len(left) == 0:
		return 0
	case k.start < 0 || k.stateErr != nil:
		return -1
	}
	return onTheWay(left.last(), left, k)
}

// ordinal returns "1st", "2nd", and so on.
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}
