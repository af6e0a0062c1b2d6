package drain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/inspect"
)

// look is one look at the cluster.
type look struct {
	*inspect.Evidence
	watched []inspect.Transaction
	gauge   *Gauge
	report  *inspect.PendingReport // in scope
	steps   []Step
	began   time.Time
	took    time.Duration
	err     error // why there is no evidence; nil when there is
}

// Producer is one that began a transaction with share acknowledgements, or went
// on with its transactional ID, while a drain waited.
type Producer struct {
	TransactionalID string    `json:"transactional_id"`
	ProducerID      int64     `json:"producer_id"`
	Seen            int       `json:"seen"` // looks in which it did something new
	Last            time.Time `json:"last"` // of these looks
}

// Look sums up one look, as a result tells of it.
type Look struct {
	Time         time.Time      `json:"time"`
	Status       inspect.Status `json:"status"`
	Records      int64          `json:"records"`
	Transactions int            `json:"transactions"` // that hold records, and orphans
	Reason       string         `json:"reason"`
}

// history is what the looks of a drain say together. Looks are added in order;
// it is otherwise pure: no clock, no I/O.
type history struct {
	o     Options
	last  look
	good  look // the last one with evidence
	count int

	clean      int       // looks in a row that found nothing, and nobody at work
	cleanSince time.Time // when the first of them began

	persists bool          // TX_PENDING was seen in the log
	longest  time.Duration // transaction timeout that was seen
	sweep    time.Duration

	known    map[string]bool        // transactions that were seen, by transactionKey
	suspects []string               // transactional IDs that held something, in the order of discovery
	resting  map[string]producerKey // of suspects without open transaction: where they stood
	running  []Producer             // in the order of discovery

	orphans map[string]int    // looks in a row, by orphanKey
	tried   map[string]string // orphans whose marker was written, and what came of it
	fenced  bool              // the fencing of the plan is done
	stalled int               // looks in a row with nobody but the same who will not end
	stalls  string            // who they are
	trail   []Look
}

// producerKey is where a producer stands.
type producerKey struct {
	producerID int64
	epoch      int16
}

func newHistory(o Options) *history {
	return &history{
		o:       o,
		known:   make(map[string]bool),
		resting: make(map[string]producerKey),
		orphans: make(map[string]int),
		tried:   make(map[string]string),
	}
}

// transactionKey is equal for one transaction in all of its states: its end
// raises the epoch, and the start stays.
func transactionKey(t inspect.Transaction) string {
	if !t.Started.IsZero() {
		return fmt.Sprintf("%s\x00%d", t.TransactionalID, t.Started.UnixMilli())
	}
	epoch := t.ProducerEpoch
	if t.Preparing() {
		epoch--
	}
	return fmt.Sprintf("%s\x00%d/%d", t.TransactionalID, t.ProducerID, epoch)
}

func orphanKey(s Step) string { return fmt.Sprintf("%d/%d", *s.ProducerID, *s.ProducerEpoch) }

// add takes a look in. A look that has no steps yet gets those of a drain that
// fences nobody: whom to fence is decided once, by the plan.
func (h *history) add(l look) {
	h.count++
	if l.err != nil {
		h.last, h.clean, h.stalled = l, 0, 0
		h.note(Look{Time: l.began, Status: inspect.StatusUnknown, Reason: l.err.Error()})
		return
	}
	if l.steps == nil {
		l.steps = steps(l.Evidence, l.report, h.o.withoutFencing())
	}
	for i := range l.steps {
		h.afterTry(&l.steps[i])
	}
	h.persists = h.persists || l.Persists
	h.sweep = max(h.sweep, l.Sweep)
	active := h.watch(l)
	h.last, h.good = l, l
	switch {
	case active, !nothing(l.report), len(l.steps) > 0, h.o.counts(l.gauge):
		h.clean = 0
	case h.clean == 0:
		h.clean, h.cleanSince = 1, l.began
	default:
		h.clean++
	}
	h.countOrphans()
	h.countStalls()
	h.note(Look{
		Time: l.began, Status: l.report.Status, Records: l.report.Records,
		Transactions: len(l.steps), Reason: l.report.Reason,
	})
}

func nothing(r *inspect.PendingReport) bool {
	return r.Status == inspect.StatusNone || r.Status == inspect.StatusUnsupported
}

// afterTry makes of an orphan whose marker was written already one that is left:
// what did not help once is not repeated.
func (h *history) afterTry(s *Step) {
	if s.Verdict != inspect.VerdictOrphan || s.ProducerID == nil || s.ProducerEpoch == nil {
		return
	}
	if what, ok := h.tried[orphanKey(*s)]; ok {
		s.Action, s.Reason = ActionLeave, what
	}
}

// watch finds out who is at work, and reports whether anybody is who was not at
// the first look.
func (h *history) watch(l look) bool {
	active := false
	asked := len(h.suspects)
	holders := make(map[string]bool)
	for _, s := range l.steps {
		t := transactionOf(l.Evidence, s)
		if t == nil {
			continue
		}
		holders[t.TransactionalID] = true
		delete(h.resting, t.TransactionalID)
		if t.TimeoutMS > 0 && !t.TwoPhase() {
			h.longest = max(h.longest, time.Duration(t.TimeoutMS)*time.Millisecond)
		}
		if !slices.Contains(h.suspects, t.TransactionalID) {
			h.suspects = append(h.suspects, t.TransactionalID)
		}
		if k := transactionKey(*t); !h.known[k] {
			h.known[k] = true
			if h.count > 1 {
				active = true
				h.atWork(*t, l.began)
			}
		}
	}
	watched := make(map[string]bool)
	for _, t := range l.watched {
		watched[t.TransactionalID] = true
		if !holders[t.TransactionalID] && h.moved(t) {
			active = true
			h.atWork(t, l.began)
		}
	}
	for _, id := range h.suspects[:asked] {
		if watched[id] || holders[id] || len(l.report.Gaps) > 0 {
			continue
		}
		// Its coordinator has dropped it, or lost it, and with it what it did last.
		before, ok := h.resting[id]
		h.resting[id] = nowhere
		active = active || ok && before != nowhere
	}
	return active
}

// nowhere is where a producer stands that no coordinator knows.
var nowhere = producerKey{-1, -1}

// moved reports whether a producer that holds nothing now has done something
// since the last look: begun a transaction, or had one, or taken a new epoch.
func (h *history) moved(t inspect.Transaction) bool {
	if t.Open() {
		delete(h.resting, t.TransactionalID)
		return true
	}
	now := producerKey{t.ProducerID, t.ProducerEpoch}
	before, ok := h.resting[t.TransactionalID]
	h.resting[t.TransactionalID] = now
	return ok && before != now
}

func (h *history) atWork(t inspect.Transaction, when time.Time) {
	i := slices.IndexFunc(h.running, func(p Producer) bool { return p.TransactionalID == t.TransactionalID })
	if i < 0 {
		i = len(h.running)
		h.running = append(h.running, Producer{TransactionalID: t.TransactionalID})
	}
	p := &h.running[i]
	p.ProducerID, p.Last = t.ProducerID, exact(when)
	p.Seen++
}

// countOrphans keeps for how many looks in a row an orphan was one.
func (h *history) countOrphans() {
	now := make(map[string]int)
	for _, s := range h.last.steps {
		if s.Verdict == inspect.VerdictOrphan && s.ProducerID != nil && s.ProducerEpoch != nil {
			now[orphanKey(s)] = h.orphans[orphanKey(s)] + 1
		}
	}
	h.orphans = now
}

// countStalls keeps for how many looks in a row all that was found are the same
// holders, none of whom will end.
func (h *history) countStalls() {
	var names []string
	for _, s := range h.last.steps {
		if s.Action != ActionLeave {
			h.stalled, h.stalls = 0, ""
			return
		}
		names = append(names, fmt.Sprint(s.Name(), s.StatePartitions, s.Records))
	}
	now := strings.Join(names, "; ")
	switch {
	case now == "" || len(h.last.report.Gaps) > 0:
		h.stalled = 0
	case now == h.stalls:
		h.stalled++
	default:
		h.stalled = 1
	}
	h.stalls = now
}

// note keeps a look that differs from the one before.
func (h *history) note(l Look) {
	l.Time = exact(l.Time)
	if n := len(h.trail); n > 0 {
		p := h.trail[n-1]
		if p.Status == l.Status && p.Records == l.Records && p.Transactions == l.Transactions {
			return
		}
	}
	h.trail = append(h.trail, l)
}

// exact is a time as exact as Kafka is, in UTC, for a result.
func exact(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// quietPeriod returns for how long nothing may have been seen, by what is known
// so far; see [Options.QuietPeriod].
func (h *history) quietPeriod() time.Duration {
	switch {
	case h.o.QuietPeriod > 0:
		return h.o.QuietPeriod
	case h.persists, h.last.Evidence != nil && !canStage(h.last.Evidence):
		return h.o.shortQuiet()
	}
	return max(h.longest, kafkaTimeout) + h.sweep
}

// quietFor returns for how long nothing was seen.
func (h *history) quietFor() time.Duration {
	if h.clean == 0 {
		return 0
	}
	return h.last.began.Sub(h.cleanSince)
}

// decision is what to do next: to end with a status, to act, or to wait.
type decision struct {
	end    Status // "" to go on
	reason string // of the end, a sentence without a full stop
	acts   []Step // to do now
	wait   time.Duration
}

// decide says what to do next. fences are those of the plan.
func (h *history) decide(now, deadline time.Time, fences []Step) decision {
	// A look that time does not suffice for would be cut off, and tell nothing.
	left := deadline.Sub(now) - h.last.took
	late := left <= 0
	switch {
	case h.drained() && len(h.inMemory()) > 0 && !h.o.AcceptMemory:
		return decision{end: StatusUnknown, reason: h.inMemoryReason()}
	case h.drained():
		return decision{end: StatusDrained, reason: h.drainedReason()}
	case !late && !h.fenced && len(fences) > 0:
		return decision{acts: fences}
	case !late && len(h.hanging()) > 0:
		return decision{acts: h.hanging()}
	case h.blind():
		return decision{end: StatusUnknown, reason: h.last.report.Reason}
	case h.stalled >= h.o.looks():
		return decision{end: StatusPending, reason: h.stalledReason()}
	case late:
		return h.late()
	}
	return decision{wait: min(h.o.interval(), left)}
}

// drained reports whether it is sure that nothing is pending. A cluster that
// does not implement KIP-1289 needs to be looked at once.
func (h *history) drained() bool {
	if h.last.err == nil && h.last.report.Status == inspect.StatusUnsupported && !h.o.AllTransactions {
		return true
	}
	return h.clean >= h.o.looks() && h.quietFor() >= h.quietPeriod()
}

func (h *history) drainedReason() string {
	if h.last.report.Status == inspect.StatusUnsupported && !h.o.AllTransactions {
		return h.last.report.Reason
	}
	return fmt.Sprintf("nothing was pending in %d looks in a row over %s", h.clean, h.quietFor().Round(100*time.Millisecond))
}

// counts reports whether metrics say that something is pending. They know no
// scope, so they say it only of the whole cluster.
func (o Options) counts(g *Gauge) bool { return g != nil && g.Records > 0 && !o.scoped() }

// none reports whether metrics say of every broker that nothing is pending.
func (g *Gauge) none(ev *inspect.Evidence) bool {
	return g != nil && g.Records == 0 && g.Brokers > 0 && g.Brokers >= len(ev.Support.Brokers)
}

// inMemory returns the share-partitions that may hold records in the memory of
// their leaders, where nothing would give that away: not the log, and not the
// metrics of every broker.
func (h *history) inMemory() []string {
	if h.last.Evidence != nil && h.last.gauge.none(h.last.Evidence) {
		return nil
	}
	if h.persists || h.last.Evidence == nil || !canStage(h.last.Evidence) {
		return nil
	}
	return mayHoldInMemory(h.last.Evidence, h.o)
}

func (h *history) inMemoryReason() string {
	parts := h.inMemory()
	return fmt.Sprintf("nothing was seen to be pending over %s, but this cluster is not known to write TX_PENDING down, and %s not done and may hold records in the memory of a leader, whose end marker was lost: %s",
		h.quietFor().Round(100*time.Millisecond), countText(int64(len(parts)), "share-partition is", "share-partitions are"), strings.Join(parts[:min(len(parts), maxNamed)], ", ")) + more(len(parts))
}

// hanging returns the orphans that are to get their marker now. One look may
// have met a transaction between its end and its markers, so it takes two.
func (h *history) hanging() []Step {
	if h.last.err != nil {
		return nil
	}
	var out []Step
	for _, s := range h.last.steps {
		if (s.Action == ActionAbort || s.Action == ActionCommit) && h.orphans[orphanKey(s)] >= 2 {
			out = append(out, s)
		}
	}
	return out
}

// acted takes in what came of acts.
func (h *history) acted(results []ActResult) {
	for _, r := range results {
		switch {
		case r.Action == ActionFence:
			h.fenced = true
		case r.Status == ActNotAttempted: // it has to be an orphan in two looks again
			delete(h.orphans, orphanKey(r.Step))
		case r.Status == ActDone:
			h.tried[orphanKey(r.Step)] = "its end marker was written, and it is still there"
		case r.Status == ActFailed:
			h.tried[orphanKey(r.Step)] = "its end marker could not be written: " + *r.Error
		}
	}
}

// blind reports whether something needed is hidden by access control, which
// will not change by waiting.
func (h *history) blind() bool {
	return h.last.err == nil && slices.ContainsFunc(h.last.report.Gaps, func(g inspect.Gap) bool { return g.ACL != nil })
}

func (h *history) stalledReason() string {
	parts := make([]string, 0, len(h.last.steps))
	for _, s := range firstSteps(h.last.steps) {
		parts = append(parts, fmt.Sprintf("%s: %s", s.Name(), s.Reason))
	}
	return "what is pending does not end by itself: " + strings.Join(parts, "; ") + more(len(h.last.steps))
}

// late says how a drain ends whose time is up.
func (h *history) late() decision {
	switch {
	case h.last.err != nil:
		return decision{end: StatusUnknown, reason: "time is up, and the cluster could not be looked at: " + h.last.err.Error()}
	case h.last.report.Status == inspect.StatusUnknown:
		return decision{end: StatusUnknown, reason: "time is up, and " + h.last.report.Reason}
	case h.clean > 0:
		return decision{end: StatusTimedOut, reason: fmt.Sprintf("nothing is pending, but only for %s of a quiet period of %s", h.quietFor().Round(100*time.Millisecond), h.quietPeriod()) + h.runningText()}
	case len(h.last.steps) == 0 && h.o.counts(h.last.gauge):
		return decision{end: StatusTimedOut, reason: fmt.Sprintf("%s in TX_PENDING by the metrics of brokers, and no transaction holds them: a leader has them in memory", countText(h.last.gauge.Records, "record is", "records are")) + h.runningText()}
	case len(h.last.steps) == 0:
		return decision{end: StatusTimedOut, reason: "nothing is pending at the moment" + h.runningText()}
	}
	parts := make([]string, 0, len(h.last.steps))
	for _, s := range firstSteps(h.last.steps) {
		parts = append(parts, s.Name())
	}
	reason := "still open: "
	if n := h.last.report.Records; n > 0 {
		reason = countText(n, "record is", "records are") + " still held by "
	}
	return decision{end: StatusTimedOut, reason: reason + strings.Join(parts, ", ") + more(len(h.last.steps)) + h.runningText()}
}

// runningText continues a sentence with who is at work; "" when nobody is.
func (h *history) runningText() string {
	if len(h.running) == 0 {
		return ""
	}
	names := make([]string, 0, maxNamed)
	for _, p := range h.running[:min(len(h.running), maxNamed)] {
		names = append(names, fmt.Sprintf("%q", p.TransactionalID))
	}
	return "; producers still running: " + strings.Join(names, ", ") + more(len(h.running))
}

// maxNamed is how many holders a sentence names. The result has them all.
const maxNamed = 10

func firstSteps(s []Step) []Step { return s[:min(len(s), maxNamed)] }

// more ends a list that was cut.
func more(n int) string {
	if n <= maxNamed {
		return ""
	}
	return fmt.Sprintf(" and %d more", n-maxNamed)
}

func countText(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
