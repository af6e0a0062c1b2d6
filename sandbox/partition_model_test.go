package sandbox

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
)

// partModel is a share-partition kept record by record, as simply as can be:
// what sharePartition is compared with.
type partModel struct {
	dialect wire.Dialect
	start   int64
	recs    map[int64]partModelRec // every offset of the window
}

type partModelRec struct {
	state   wire.RecordState
	count   int16
	member  string
	expiry  time.Time
	owner   owner
	ackType wire.AcknowledgeType
	target  wire.RecordState
	hole    bool // archived by an acquire, which persists nothing
}

var partNobody = owner{-1, -1}

func newPartModel(d wire.Dialect) *partModel {
	return &partModel{dialect: d, recs: map[int64]partModelRec{}}
}

func (m *partModel) clone() *partModel {
	return &partModel{m.dialect, m.start, maps.Clone(m.recs)}
}

func (m *partModel) end() int64 { return m.start + int64(len(m.recs)) - 1 }

func (m *partModel) advance() {
	for len(m.recs) > 0 && m.recs[m.start].state.Terminal() {
		delete(m.recs, m.start)
		m.start++
	}
}

func (m *partModel) acquire(now time.Time, member string, batches []span, maxRecords int, strict bool, lim partitionLimits) int {
	limit, end := min(maxRecords, lim.maxRecordLocks-len(m.recs)), int64(math.MaxInt64)
	if limit <= 0 {
		limit, end = maxRecords, m.end()
	}
	got := 0
	next := int64(-1) // first offset that was read and is not accounted for
	for _, b := range batches {
		if got >= limit || b.first > end {
			break
		}
		for o := max(m.start, b.first); next >= 0 && next < o; next++ {
			if r, ok := m.recs[next]; ok && r.state == wire.Available {
				r.state, r.hole = wire.Archived, true
				m.recs[next] = r
			}
		}
		for o := b.first; o <= b.last; o++ {
			if o < m.start || o > end || strict && got == limit {
				continue
			}
			for e := m.end() + 1; e < o; e++ {
				m.recs[e] = partModelRec{state: wire.Archived, owner: partNobody, hole: true}
			}
			r := m.recs[o]
			if r.state != wire.Available {
				continue
			}
			m.recs[o] = partModelRec{
				state: wire.Acquired, count: r.count + 1, member: member,
				expiry: now.Add(lim.lockDuration), owner: partNobody,
			}
			got++
		}
		next = b.last + 1
	}
	m.advance()
	return got
}

func (m *partModel) released(r partModelRec, lim partitionLimits) partModelRec {
	n := partModelRec{state: wire.Available, count: r.count, owner: partNobody}
	if r.count >= lim.deliveryCountLimit {
		n.state = wire.Archived
		if lim.deadLetterQueue {
			n.state = wire.Archiving
		}
	}
	return n
}

func (m *partModel) decided(t wire.AcknowledgeType, lim partitionLimits) wire.RecordState {
	switch {
	case t == wire.Accept:
		return wire.Acknowledged
	case t == wire.Reject && lim.deadLetterQueue:
		return wire.Archiving
	}
	return wire.Archived
}

// offsets calls do with every offset of b and its type until a code comes back.
func (m *partModel) offsets(b ackBatch, do func(int64, wire.AcknowledgeType) int16) int16 {
	switch {
	case b.last < m.start:
		return 0
	case len(m.recs) == 0:
		return 121
	case b.last > m.end():
		return 42
	}
	for o := b.first; o <= b.last; o++ {
		t := b.types[0]
		if len(b.types) > 1 {
			t = b.types[o-b.first]
		}
		if o < m.start {
			continue
		}
		if code := do(o, wire.AcknowledgeType(t)); code != 0 {
			return code
		}
	}
	return 0
}

func (m *partModel) acknowledge(now time.Time, member string, acks []ackBatch, lim partitionLimits) int16 {
	undo := m.clone()
	for _, b := range acks {
		code := m.offsets(b, func(o int64, t wire.AcknowledgeType) int16 {
			r := m.recs[o]
			switch {
			case r.state != wire.Acquired || r.member != member || t == wire.Renew && !lim.renew:
				return 121
			case t == wire.Renew:
				r.expiry = now.Add(lim.lockDuration)
				m.recs[o] = r
			case t == wire.Release:
				m.recs[o] = m.released(r, lim)
			default:
				m.recs[o] = partModelRec{state: m.decided(t, lim), count: r.count, owner: partNobody}
			}
			return 0
		})
		if code != 0 {
			*m = *undo
			return code
		}
	}
	m.advance()
	return 0
}

func (m *partModel) stage(member string, o owner, acks []ackBatch, lim partitionLimits) int16 {
	undo := m.clone()
	for _, b := range acks {
		code := m.offsets(b, func(offset int64, t wire.AcknowledgeType) int16 {
			r := m.recs[offset]
			n := partModelRec{
				state: wire.TxPending, count: r.count, member: member,
				owner: o, ackType: t, target: m.decided(t, lim),
			}
			if r != n && (r.state != wire.Acquired || r.member != member) {
				return 121
			}
			m.recs[offset] = n
			return 0
		})
		if slices.ContainsFunc(b.types, func(t int8) bool { return !m.dialect.Allows(wire.AcknowledgeType(t)) }) {
			code = m.dialect.InvalidTypeCode
		}
		if code != 0 {
			*m = *undo
			return code
		}
	}
	return 0
}

// stopLocks is what undoing a stage means for the records that it staged.
func (m *partModel) stopLocks(staged *partModel) {
	for o, r := range m.recs {
		if r.state == wire.Acquired && staged.recs[o].state == wire.TxPending {
			r.expiry = time.Time{}
			m.recs[o] = r
		}
	}
}

// each changes the records that do has something to say of.
func (m *partModel) each(do func(int64, partModelRec) (partModelRec, bool)) {
	for o, r := range m.recs {
		if n, ok := do(o, r); ok {
			m.recs[o] = n
		}
	}
	m.advance()
}

func (m *partModel) resolve(now time.Time, pid int64, below int16, commit bool, lim partitionLimits) {
	m.each(func(_ int64, r partModelRec) (partModelRec, bool) {
		n := partModelRec{state: wire.Available, count: r.count, owner: partNobody}
		switch {
		case commit:
			n.state = r.target
		case m.dialect.AfterAbort == wire.Acquired && r.member != "":
			n.state, n.member, n.expiry = wire.Acquired, r.member, now.Add(lim.lockDuration)
		}
		return n, r.state == wire.TxPending && r.owner.producerID == pid && r.owner.producerEpoch < below
	})
}

func (m *partModel) archiveGaps(spans []span) {
	for _, s := range spans {
		for o := s.first; o <= s.last; o++ {
			r, ok := m.recs[o]
			if ok && r.state == wire.Available || o == m.end()+1 {
				m.recs[o] = partModelRec{state: wire.Archived, count: r.count, owner: partNobody}
			}
		}
	}
	m.advance()
}

func (m *partModel) truncateTo(logStart int64) {
	for m.start < logStart {
		delete(m.recs, m.start)
		m.start++
	}
	m.advance()
}

// ranges is what sharePartition.ranges should return.
func (m *partModel) ranges() []rangeState {
	var out []rangeState
	for o := m.start; o <= m.end(); o++ {
		r := m.recs[o]
		s := rangeState{span{o, o}, r.state, r.count, r.member, r.expiry, r.owner}
		joins := o > m.start && partAlike(m.recs[o-1], r)
		if joins {
			out[len(out)-1].last = o
			continue
		}
		out = append(out, s)
	}
	return out
}

func partAlike(a, b partModelRec) bool {
	a.hole = b.hole
	return a == b
}

func (m *partModel) pending() []pendingRange {
	var out []pendingRange
	for o := m.start; o <= m.end(); o++ {
		r := m.recs[o]
		if r.state != wire.TxPending {
			continue
		}
		if n := len(out) - 1; n >= 0 && out[n].last == o-1 && partAlike(m.recs[o-1], r) {
			out[n].last = o
			continue
		}
		out = append(out, pendingRange{span{o, o}, r.owner, r.ackType, r.target, r.count, r.member})
	}
	return out
}

func (m *partModel) count(states ...wire.RecordState) int64 {
	n := int64(0)
	for _, r := range m.recs {
		if slices.Contains(states, r.state) {
			n++
		}
	}
	return n
}

func (m *partModel) nextFetchOffset() int64 {
	for o := m.start; o <= m.end(); o++ {
		if m.recs[o].state == wire.Available {
			return o
		}
	}
	return m.end() + 1
}

func (m *partModel) nextExpiry() (time.Time, bool) {
	var first time.Time
	for _, r := range m.recs {
		if !r.expiry.IsZero() && (first.IsZero() || r.expiry.Before(first)) {
			first = r.expiry
		}
	}
	return first, !first.IsZero()
}

// partSaved is the persisted state, kept record by record as well.
type partSaved struct {
	start   int64
	batches map[int64]wire.StateBatch
}

func (s *partSaved) save(p *sharePartition, c change) {
	for _, b := range c.batches {
		for o := b.FirstOffset; o <= b.LastOffset; o++ {
			one := b
			one.FirstOffset, one.LastOffset = o, o
			s.batches[o] = one
		}
	}
	s.start = p.startOffset()
	maps.DeleteFunc(s.batches, func(o int64, _ wire.StateBatch) bool { return o < s.start })
}

func (s *partSaved) state() shareState {
	st := shareState{startOffset: s.start}
	for _, o := range slices.Sorted(maps.Keys(s.batches)) {
		st.batches = append(st.batches, s.batches[o])
	}
	return st
}

// partRun drives a sharePartition and its model with the same operations.
type partRun struct {
	*testing.T
	rnd   *rand.Rand
	p     *sharePartition
	m     *partModel
	saved *partSaved
	now   time.Time
	lim   partitionLimits
	seen  map[string]int // operations that did something
}

func TestSharePartitionModel(t *testing.T) {
	steps := 3000
	if testing.Short() {
		steps = 1000
	}
	for _, d := range wire.Dialects() {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s/%d", d.Name, seed), func(t *testing.T) {
				r := &partRun{
					T: t, rnd: rand.New(rand.NewPCG(seed, 1289)), now: partEpoch,
					p: newSharePartition(shareState{}, d), m: newPartModel(d),
					saved: &partSaved{batches: map[int64]wire.StateBatch{}}, seen: map[string]int{},
				}
				for i := range steps {
					r.lim = r.limits(seed)
					op := r.step()
					r.compare(fmt.Sprintf("step %d (%s)", i, op))
					if i%8 == 0 {
						r.reload(fmt.Sprintf("step %d (%s)", i, op))
					}
				}
				for _, op := range []string{"acquire", "acknowledge", "stage", "resolve", "release", "expire", "gaps", "truncate", "archiving", "undo", "refused"} {
					if r.seen[op] == 0 {
						t.Errorf("no %s did anything in %d steps", op, steps)
					}
				}
			})
		}
	}
}

func (r *partRun) limits(seed uint64) partitionLimits {
	return partitionLimits{
		deliveryCountLimit: int16(2 + seed%4), maxRecordLocks: 40 << (seed % 4), lockDuration: time.Duration(1+r.rnd.IntN(5)) * time.Second,
		deadLetterQueue: r.rnd.IntN(3) == 0, renew: r.rnd.IntN(8) > 0,
	}
}

func (r *partRun) member() string { return string(rune('a' + r.rnd.IntN(3))) }

func (r *partRun) owner() owner { return owner{int64(r.rnd.IntN(3)), int16(r.rnd.IntN(3))} }

// spans returns ascending spans that begin near the window.
func (r *partRun) spans(from int64) []span {
	var out []span
	for n := 1 + r.rnd.IntN(3); n > 0; n-- {
		s := span{from, from + r.rnd.Int64N(12)}
		out = append(out, s)
		from = s.last + 1 + r.rnd.Int64N(3)
	}
	return out
}

// offset is one in or near the window.
func (r *partRun) offset() int64 {
	return r.m.start - 3 + r.rnd.Int64N(int64(len(r.m.recs))+6)
}

func (r *partRun) acks(types []int8) []ackBatch {
	var out []ackBatch
	for _, s := range r.spans(max(0, r.offset())) {
		if s.last > r.m.end() && r.rnd.IntN(8) > 0 {
			s.last = r.m.end()
		}
		// Mostly what one member has, or else hardly anything is ever accepted.
		if rec, ok := r.m.recs[s.first]; ok && r.rnd.IntN(4) > 0 {
			for o := s.first + 1; o <= s.last; o++ {
				if n := r.m.recs[o]; n.state != rec.state || n.member != rec.member {
					s.last = o - 1
				}
			}
		}
		if s.last < s.first {
			continue
		}
		b := ackBatch{span: s, types: []int8{types[r.rnd.IntN(len(types))]}}
		for n := s.last - s.first; n > 0 && r.rnd.IntN(2) == 0; n-- {
			b.types = append(b.types, types[r.rnd.IntN(len(types))])
		}
		if int64(len(b.types)) != s.last-s.first+1 {
			b.types = b.types[:1]
		}
		out = append(out, b)
	}
	return out
}

// holder is mostly the member that has the first record of acks.
func (r *partRun) holder(acks []ackBatch) string {
	if len(acks) > 0 && r.rnd.IntN(8) > 0 {
		if m := r.m.recs[acks[0].first].member; m != "" {
			return m
		}
	}
	return r.member()
}

// step does one random operation on both.
func (r *partRun) step() string {
	before := r.m.clone()
	var (
		c    change
		code int16
		want int16
		op   string
	)
	switch k := r.rnd.IntN(100); {
	case k < 25:
		r.acquire()
		return "acquire"
	case k < 30:
		r.now = r.now.Add(time.Duration(r.rnd.IntN(2000)) * time.Millisecond)
		return "wait"
	case k < 50:
		op = "acknowledge"
		acks := r.acks([]int8{0, 1, 1, 1, 2, 2, 3, 4})
		m := r.holder(acks)
		want = r.m.acknowledge(r.now, m, acks, r.lim)
		c, code = r.p.acknowledge(r.now, m, acks, true, r.lim)
	case k < 70:
		op = "stage"
		types := []int8{1, 1, 3}
		if r.rnd.IntN(10) == 0 {
			types = []int8{0, 1, 2, 3, 4}
		}
		acks := r.acks(types)
		m, o := r.holder(acks), r.owner()
		want = r.m.stage(m, o, acks, r.lim)
		c, code = r.p.stage(r.now, m, o, acks, r.lim)
	case k < 80:
		op = "resolve"
		o, commit := r.owner(), r.rnd.IntN(2) == 0
		r.m.resolve(r.now, o.producerID, o.producerEpoch, commit, r.lim)
		c = r.p.resolve(r.now, o.producerID, func(e int16) bool { return e < o.producerEpoch }, commit, r.lim)
	case k < 83:
		op = "release"
		m := r.member()
		r.m.each(func(_ int64, rec partModelRec) (partModelRec, bool) {
			return r.m.released(rec, r.lim), rec.state == wire.Acquired && rec.member == m
		})
		c = r.p.release(r.now, m, r.lim)
	case k < 90:
		op = "expire"
		r.m.each(func(_ int64, rec partModelRec) (partModelRec, bool) {
			return r.m.released(rec, r.lim), !rec.expiry.IsZero() && !rec.expiry.After(r.now)
		})
		c = r.p.expire(r.now, r.lim)
	case k < 94:
		op = "gaps"
		spans := r.spans(r.offset())
		r.m.archiveGaps(spans)
		c = r.p.archiveGaps(spans)
	case k < 95:
		op = "truncate"
		to := r.m.start + r.rnd.Int64N(20) - 5
		r.m.truncateTo(to)
		c = r.p.truncateTo(to)
	default:
		op = "archiving"
		s := span{r.offset(), r.m.end()}
		r.m.each(func(o int64, rec partModelRec) (partModelRec, bool) {
			n := partModelRec{state: wire.Archived, count: rec.count, owner: partNobody}
			return n, rec.state == wire.Archiving && o >= s.first
		})
		c = r.p.completeArchiving(s)
	}
	return r.finish(op, before, c, code, want)
}

func (r *partRun) finish(op string, before *partModel, c change, code, want int16) string {
	r.Helper()
	changed := r.m.start != before.start || !maps.Equal(r.m.recs, before.recs)
	switch {
	case code != want:
		r.Fatalf("%s: code %d, want %d", op, code, want)
	case code != 0:
		r.seen["refused"]++
		if len(c.batches) > 0 {
			r.Fatalf("%s: refused with %d, but has batches %v", op, code, c.batches)
		}
		c.undo()
		return op
	case changed:
		r.seen[op]++
	case len(c.batches) > 0:
		r.Fatalf("%s: changed nothing, but has batches %v", op, c.batches)
	}
	if r.rnd.IntN(4) > 0 {
		r.saved.save(r.p, c)
		return op
	}
	r.compare(op + " before its undo")
	c.undo()
	if op == "stage" {
		before.stopLocks(r.m)
	}
	*r.m = *before
	if changed {
		r.seen["undo"]++
	}
	return op + " and its undo"
}

func (r *partRun) acquire() {
	r.Helper()
	from := r.p.nextFetchOffset()
	if r.rnd.IntN(4) == 0 {
		from = max(0, r.offset())
	}
	batches := r.spans(from)
	n, strict, member := r.rnd.IntN(30), r.rnd.IntN(2) == 0, r.member()
	got := int64(0)
	for _, a := range r.p.acquire(r.now, member, batches, n, strict, r.lim) {
		got += a.last - a.first + 1
		for o := a.first; o <= a.last; o++ {
			if c := r.m.recs[o].count + 1; c != a.deliveryCount {
				r.Fatalf("acquire: offset %d has delivery count %d, want %d", o, a.deliveryCount, c)
			}
		}
	}
	want := r.m.acquire(r.now, member, batches, n, strict, r.lim)
	if got != int64(want) {
		r.Fatalf("acquire(%v, %d, %t) = %d records, want %d", batches, n, strict, got, want)
	}
	if got > 0 {
		r.seen["acquire"]++
	}
}

func (r *partRun) compare(after string) {
	r.Helper()
	p, m := r.p, r.m
	if got, want := p.ranges(), m.ranges(); !reflect.DeepEqual(got, want) {
		r.Fatalf("after %s: ranges\n got %v\nwant %v", after, got, want)
	}
	if got, want := p.pending(), m.pending(); !reflect.DeepEqual(got, want) {
		r.Fatalf("after %s: pending\n got %v\nwant %v", after, got, want)
	}
	type facts struct {
		start, end, next, complete, lag int64
		inFlight                        int
		canAcquire, locked              bool
		expiry                          time.Time
	}
	got := facts{
		start: p.startOffset(), end: p.endOffset(), next: p.nextFetchOffset(), complete: int64(p.deliveryCompleteCount()),
		lag: p.lag(m.end() + 5), inFlight: p.inFlight(), canAcquire: p.canAcquire(r.lim),
	}
	got.expiry, got.locked = p.nextExpiry()
	want := facts{
		start: m.start, end: m.end(), next: m.nextFetchOffset(), complete: m.count(wire.Acknowledged, wire.Archived),
		inFlight: len(m.recs), canAcquire: m.count(wire.Available) > 0 || len(m.recs) < r.lim.maxRecordLocks,
	}
	want.lag = int64(want.inFlight) + 4 - want.complete
	want.expiry, want.locked = m.nextExpiry()
	if got != want {
		r.Fatalf("after %s:\n got %+v\nwant %+v", after, got, want)
	}
	if err := partCheck(p); err != nil {
		r.Fatalf("after %s: %v", after, err)
	}
}

// reload checks what a new leader would find.
func (r *partRun) reload(after string) {
	r.Helper()
	p := newSharePartition(r.saved.state(), r.m.dialect)
	if err := partCheck(p); err != nil {
		r.Fatalf("reloaded after %s: %v", after, err)
	}
	got := map[int64]rangeState{}
	for _, s := range p.ranges() {
		for o := s.first; o <= s.last; o++ {
			got[o] = s
		}
	}
	for o, rec := range r.m.recs {
		s, ok := got[o]
		want := rec.state
		if rec.hole || want == wire.Acquired {
			want = wire.Available
		}
		if want == wire.Available && !ok || o < p.startOffset() && rec.state.Terminal() {
			continue
		}
		if s.state != want || s.owner != rec.owner || s.memberID != "" {
			r.Fatalf("after %s: offset %d was %+v, reloaded as %+v", after, o, rec, s)
		}
	}
}

// partCheck checks what holds for every sharePartition.
func partCheck(p *sharePartition) error {
	next := p.start
	var (
		prev    *partRange
		records [partStates]int64
	)
	held := map[*partHold]int64{}
	for i, c := range p.window.chunks {
		if len(c.ranges) == 0 || len(c.ranges) > partChunkMax {
			return fmt.Errorf("chunk %d has %d ranges", i, len(c.ranges))
		}
		var states [partStates]int32
		for j := range c.ranges {
			r := &c.ranges[j]
			switch {
			case r.first != next || r.last < r.first:
				return fmt.Errorf("range %v where %d is next", r.span, next)
			case prev != nil && prev.partRecord == r.partRecord:
				return fmt.Errorf("ranges %v and %v are alike", prev.span, r.span)
			case (r.hold != nil) != (r.state == wire.Acquired || r.state == wire.TxPending):
				return fmt.Errorf("range %v is %v with hold %v", r.span, r.state, r.hold)
			}
			if r.hold != nil {
				held[r.hold] += r.records()
			}
			states[r.state]++
			records[r.state] += r.records()
			prev, next = r, r.last+1
		}
		if states != c.states {
			return fmt.Errorf("chunk %d counts states %v, has %v", i, c.states, states)
		}
	}
	if records != p.records {
		return fmt.Errorf("counts records %v, has %v", p.records, records)
	}
	return partCheckHolds(p, held)
}

func partCheckHolds(p *sharePartition, held map[*partHold]int64) error {
	if len(held) != len(p.holds.all) {
		return fmt.Errorf("%d holds, %d in use", len(p.holds.all), len(held))
	}
	locks, staged := 0, 0
	for k, h := range p.holds.all {
		if h.key() != k || h.records != held[h] {
			return fmt.Errorf("hold %+v counts %d records, has %d", h.partHolder, h.records, held[h])
		}
		if !h.lockExpiry.IsZero() {
			locks++
			if p.holds.locks[h.index] != h {
				return fmt.Errorf("hold %+v is not at %d in the locks", h.partHolder, h.index)
			}
		}
		if h.producerID >= 0 {
			staged++
			if !slices.Contains(p.holds.staged[h.producerID], h) {
				return fmt.Errorf("hold %+v is not found by its producer", h.partHolder)
			}
		}
	}
	for _, hs := range p.holds.staged {
		staged -= len(hs)
	}
	if locks != len(p.holds.locks) || staged != 0 {
		return fmt.Errorf("%d locks of %d holds, %d holds too few by producer", len(p.holds.locks), locks, staged)
	}
	return nil
}

var partEpoch = time.Unix(1_796_000_000, 0)
