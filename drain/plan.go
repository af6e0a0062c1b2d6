package drain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
)

// stateTopic holds the state of share-partitions (KIP-932).
const stateTopic = "__share_group_state"

// The defaults of [Options].
const (
	DefaultLooks    = 3
	DefaultInterval = 2 * time.Second
)

const (
	// shortQuiet is the least quiet period where pending records are written down.
	shortQuiet = 5 * time.Second
	// kafkaTimeout is the default of a producer's transaction.timeout.ms.
	kafkaTimeout = time.Minute
	// slack is what the default deadline has on top: for markers to be written,
	// for the looks themselves, and for clocks that differ.
	slack = 30 * time.Second
)

// Options say what to drain and what may be done for it.
type Options struct {
	// Groups and Topics are the scope: records of these share groups and of
	// these topics. Empty takes all. What may concern the scope, and cannot be
	// told, counts.
	Groups []string
	Topics []string

	// AllTransactions waits for transactions without share acknowledgements too,
	// of any scope; none of them is ever acted on. It is for transaction.version,
	// which they depend on as well.
	AllTransactions bool

	// Fence are transactional IDs whose transaction is to be aborted by
	// InitProducerId. It is the only way to end one that is part of a two-phase
	// commit.
	Fence []string
	// FenceAll does it to every open transaction in scope, except for those of
	// two-phase commits and those whose end is decided. It means those that the
	// plan names: who begins anew while the drain waits is reported, not fenced.
	FenceAll bool
	// AbortHanging writes end markers (WriteTxnMarkers) for records that no
	// transaction will end any more, also those that come to light later.
	AbortHanging bool

	// AcceptMemory calls it drained also where leaders may hold records in memory
	// that nothing gives away. Where this cluster is not known to write TX_PENDING
	// down, an end marker that was lost leaves its records pending in the memory of
	// a leader when no transaction is open any more, and a share-partition that is
	// not done may have some: it is not known, then. Nothing is lost by a leader
	// that restarts with them: it forgets them, and delivers the records again.
	AcceptMemory bool

	// Looks is how many looks in a row have to find nothing; 0 is 3.
	Looks int
	// Interval is the pause between two looks; 0 is 2 s.
	Interval time.Duration
	// QuietPeriod is for how long nothing may have been seen. 0 chooses by what
	// can be seen:
	//
	//   - Where this cluster is known to write TX_PENDING to __share_group_state,
	//     or cannot stage anything, it is two intervals, at least 5 s. A record is
	//     then pending for as long as the log says so, whatever became of its
	//     markers, so a look misses none, and the period is there for coordinators
	//     on the move and producers between two transactions.
	//   - Otherwise a leader may hold it in memory alone, where only the
	//     transactions give it away. It is the largest transaction timeout that
	//     was seen, at least Kafka's default of 60 s, and a sweep (the reference's
	//     section 8).
	QuietPeriod time.Duration
	// Timeout bounds the whole, from the plan on. 0 is as long as it takes the
	// last open transaction to end by itself, the quiet period, and 30 s.
	Timeout time.Duration
}

func (o Options) looks() int              { return cmp.Or(o.Looks, DefaultLooks) }
func (o Options) interval() time.Duration { return cmp.Or(o.Interval, DefaultInterval) }
func (o Options) scoped() bool            { return len(o.Groups)+len(o.Topics) > 0 }
func (o Options) fences(id string) bool   { return slices.Contains(o.Fence, id) }
func (o Options) filter() inspect.Filter {
	return inspect.Filter{Groups: o.Groups, Topics: o.Topics, Done: true}
}
func (o Options) withoutFencing() Options   { o.Fence, o.FenceAll = nil, false; return o }
func (o Options) shortQuiet() time.Duration { return max(shortQuiet, 2*o.interval()) }

// Action says what becomes of a holder of pending records.
type Action string

// The actions, the mildest first.
const (
	ActionWait  Action = "wait"  // it ends by itself
	ActionFence Action = "fence" // InitProducerId aborts its transaction
	// ActionCommit writes the COMMIT marker that did not arrive: the coordinator
	// says that the transaction was committed.
	ActionCommit Action = "commit"
	ActionAbort  Action = "abort" // an ABORT marker is written by hand
	ActionLeave  Action = "leave" // it does not end by itself, and nothing is done about it
)

func (a Action) acts() bool { return a == ActionFence || a == ActionCommit || a == ActionAbort }

// Step is one holder of pending records and what becomes of it. Nil is unknown.
type Step struct {
	Action Action `json:"action"`
	Reason string `json:"reason"` // a sentence without a full stop
	// Warning is what to know before it is done; "" when there is nothing.
	Warning string `json:"warning,omitempty"`

	TransactionalID  *string `json:"transactional_id"`
	ProducerID       *int64  `json:"producer_id"`
	ProducerEpoch    *int16  `json:"producer_epoch"`    // of the transaction, or of the staged records of an orphan
	Coordinator      *int32  `json:"coordinator"`       // node ID
	TransactionState *string `json:"transaction_state"` // nil also for an orphan
	TimeoutMS        *int32  `json:"timeout_ms"`
	TwoPhase         bool    `json:"two_phase"`
	// ShareAcks says whether it holds share acknowledgements, or may.
	ShareAcks bool            `json:"holds_share_acknowledgements"`
	Verdict   inspect.Verdict `json:"verdict,omitempty"` // the surest of its rows; "" without share acknowledgements
	Started   *time.Time      `json:"started"`
	Until     *time.Time      `json:"until"` // when it ends by itself at the latest; nil also when it never does

	Records         int64    `json:"records"`          // in scope, for certain
	Groups          []string `json:"groups"`           // in scope, sorted
	OtherGroups     []string `json:"other_groups"`     // out of scope, which an act would concern as well; sorted
	StatePartitions []int32  `json:"state_partitions"` // of __share_group_state, ascending; of markers
}

// Name names the holder: the transactional ID in quotes, or else the producer.
func (s Step) Name() string {
	switch {
	case s.TransactionalID != nil:
		return fmt.Sprintf("%q", *s.TransactionalID)
	case s.ProducerID != nil:
		return fmt.Sprintf("producer %d", *s.ProducerID)
	}
	return "an unknown owner"
}

// Plan is what a drain found at first and is going to do.
type Plan struct {
	Options   Options
	ClusterID string
	// Steps are the holders in scope, the oldest first.
	Steps []Step
	// Pending is what was found, within the scope.
	Pending *inspect.PendingReport
	// QuietPeriod is the one that holds by what is known so far.
	QuietPeriod time.Duration
	Started     time.Time
	Deadline    time.Time
	// Warnings are what to know before it begins, a sentence each.
	Warnings []string

	first *inspect.Evidence
}

// NewPlan plans a drain from what was seen at first. It is pure; now is when. It
// may return *RefusedError where a transactional ID is to be fenced whose
// transaction holds no share acknowledgements, or none in scope: a drain does
// not touch those.
func NewPlan(ev *inspect.Evidence, o Options, now time.Time) (*Plan, error) {
	rep := inspect.NewPendingReport(ev, o.filter())
	p := &Plan{
		Options: o, ClusterID: ev.ClusterID, Pending: rep, Started: now, first: ev,
		Steps: steps(ev, rep, o),
	}
	if err := p.checkNamed(); err != nil {
		return nil, err
	}
	h := newHistory(o)
	h.add(look{Evidence: ev, report: rep, began: now})
	p.QuietPeriod = h.quietPeriod()
	p.Deadline = now.Add(cmp.Or(o.Timeout, p.defaultTimeout()))
	p.warn()
	return p, nil
}

// Acts are the steps that change something, in the order in which they are
// done: the mildest first.
func (p *Plan) Acts() []Step { return acts(p.Steps) }

func acts(steps []Step) []Step {
	var out []Step
	for _, s := range steps {
		if s.Action.acts() {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b Step) int {
		return cmp.Compare(b2i(a.Action != ActionFence), b2i(b.Action != ActionFence))
	})
	return out
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// defaultTimeout is how long it takes until all have ended that end, and a quiet
// period has passed.
func (p *Plan) defaultTimeout() time.Duration {
	var longest time.Duration
	for _, s := range p.Steps {
		switch {
		case s.Action == ActionWait && s.Until != nil:
			longest = max(longest, s.Until.Sub(p.Started))
		case s.Action == ActionWait, s.Action == ActionFence:
			// Its markers come soon, or it is found to be stuck.
			longest = max(longest, inspect.StuckAfter)
		}
	}
	return longest + p.QuietPeriod + slack
}

// checkNamed looks at the transactional IDs that are to be fenced. One that is
// not open any more is no mistake: the drain may be a second one.
func (p *Plan) checkNamed() error {
	for _, id := range p.Options.Fence {
		if slices.ContainsFunc(p.Steps, func(s Step) bool { return s.TransactionalID != nil && *s.TransactionalID == id }) {
			continue
		}
		i := slices.IndexFunc(p.first.Transactions, func(t inspect.Transaction) bool { return t.TransactionalID == id })
		if i < 0 {
			p.Warnings = append(p.Warnings, fmt.Sprintf("transaction %q is not open: there is nothing to fence", id))
			continue
		}
		e := &RefusedError{
			Op:     fmt.Sprintf("fence %q", id),
			Reason: "its transaction holds no share acknowledgements, and a drain does not touch others",
			Advice: fmt.Sprintf("leave it out of --fence, or fence it by itself: kshare txn fence %s", id),
		}
		if p.first.Transactions[i].HoldsShareAcks() {
			e.Reason = "its transaction holds no share acknowledgements in the scope of this drain"
			e.Advice = "widen the scope: leave out --group and --topic, or name the others too"
		}
		return e
	}
	return nil
}

// warn says what does not end by itself, and what the acts do beside.
func (p *Plan) warn() {
	for _, s := range p.Steps {
		switch {
		case s.Warning != "":
			p.Warnings = append(p.Warnings, s.Warning)
		case s.Action == ActionLeave:
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s is not waited for: %s", s.Name(), s.Reason))
		}
		if s.Action.acts() && len(s.OtherGroups) > 0 {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s also holds acknowledgements of share groups out of scope, which share its fate: %s", s.Name(), strings.Join(s.OtherGroups, ", ")))
		}
	}
}

// Holders returns who holds the records of a report that was made of ev, the
// oldest first, and what becomes of them where nothing is done. It is pure.
func Holders(ev *inspect.Evidence, rep *inspect.PendingReport) []Step {
	return steps(ev, rep, Options{})
}

// steps says of each holder in a report what becomes of it under options. The
// rows of a report are sorted by age, so the steps are.
func steps(ev *inspect.Evidence, rep *inspect.PendingReport, o Options) []Step {
	var out []Step
	index := make(map[string]int)
	for _, row := range rep.Rows {
		k := holderKey(row)
		i, ok := index[k]
		if !ok {
			i = len(out)
			index[k] = i
			out = append(out, newStep(ev, row))
		}
		out[i].add(row)
	}
	others := otherGroups(ev, o, index)
	for i := range out {
		s := &out[i]
		for k, j := range index {
			if j == i {
				s.OtherGroups = slices.DeleteFunc(others[k], func(g string) bool { return slices.Contains(s.Groups, g) })
			}
		}
		slices.Sort(s.Groups)
		slices.Sort(s.StatePartitions)
		s.decide(ev, stuckRows(rep, *s), o)
	}
	if o.AllTransactions {
		for _, t := range ev.Transactions {
			if _, ok := index["id "+t.TransactionalID]; !ok && t.Open() {
				out = append(out, plainStep(ev, t))
			}
		}
	}
	return out
}

// plainStep is that of a transaction which holds nothing that is drained.
func plainStep(ev *inspect.Evidence, t inspect.Transaction) Step {
	s := Step{
		TransactionalID: &t.TransactionalID, ProducerID: &t.ProducerID, ProducerEpoch: &t.ProducerEpoch,
		Coordinator: &t.Coordinator, TransactionState: &t.State, TwoPhase: t.TwoPhase(), ShareAcks: t.HoldsShareAcks(),
		Groups: []string{}, OtherGroups: []string{}, StatePartitions: []int32{},
	}
	if t.TimeoutMS >= 0 {
		s.TimeoutMS = &t.TimeoutMS
	}
	if !t.Started.IsZero() {
		s.Started = &t.Started
	}
	if end := t.Deadline(ev.Sweep); !end.IsZero() {
		s.Until = &end
	}
	s.decide(ev, t.Stuck(ev.Time, ev.Sweep), Options{})
	return s
}

// holderKey is equal for rows with one owner: a transaction, or a producer whose
// transaction is gone.
func holderKey(r inspect.PendingRow) string {
	switch {
	case r.Verdict == inspect.VerdictOrphan && r.ProducerID != nil && r.ProducerEpoch != nil:
		return fmt.Sprintf("orphan %d %d", *r.ProducerID, *r.ProducerEpoch)
	case r.TransactionalID != nil:
		return "id " + *r.TransactionalID
	case r.ProducerID != nil:
		return fmt.Sprintf("producer %d", *r.ProducerID)
	}
	return fmt.Sprintf("state partition %d", r.StatePartition)
}

func newStep(ev *inspect.Evidence, r inspect.PendingRow) Step {
	s := Step{
		TransactionalID: r.TransactionalID, ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch,
		Coordinator: r.Coordinator, TransactionState: r.TransactionState, TimeoutMS: r.TimeoutMS,
		TwoPhase: r.TwoPhase, ShareAcks: true, Verdict: r.Verdict, Started: r.Started, Until: r.Deadline,
		Groups: []string{}, OtherGroups: []string{}, StatePartitions: []int32{},
	}
	if r.Verdict == inspect.VerdictOrphan {
		s.TransactionState = nil
		return s
	}
	if t := transactionOf(ev, s); t != nil {
		s.ProducerEpoch = &t.ProducerEpoch // of the transaction: what an act is compared with
	}
	return s
}

func (s *Step) add(r inspect.PendingRow) {
	if r.GroupID != nil && !slices.Contains(s.Groups, *r.GroupID) {
		s.Groups = append(s.Groups, *r.GroupID)
	}
	if r.StatePartition >= 0 && !slices.Contains(s.StatePartitions, r.StatePartition) {
		s.StatePartitions = append(s.StatePartitions, r.StatePartition)
	}
	if r.Count != nil && (r.Verdict == inspect.VerdictExact || r.Verdict == inspect.VerdictOrphan) {
		s.Records += *r.Count
	}
	if sureness(r.Verdict) < sureness(s.Verdict) {
		s.Verdict = r.Verdict
	}
}

func sureness(v inspect.Verdict) int {
	return slices.Index([]inspect.Verdict{inspect.VerdictExact, inspect.VerdictOrphan, inspect.VerdictLikely, inspect.VerdictPossible}, v)
}

// otherGroups returns the groups of each holder that are out of scope.
func otherGroups(ev *inspect.Evidence, o Options, holders map[string]int) map[string][]string {
	out := make(map[string][]string)
	if !o.scoped() {
		return out
	}
	for _, r := range inspect.NewPendingReport(ev, inspect.Filter{}).Rows {
		k := holderKey(r)
		if _, ok := holders[k]; ok && r.GroupID != nil && !slices.Contains(out[k], *r.GroupID) {
			out[k] = append(out[k], *r.GroupID)
		}
	}
	for k := range out {
		slices.Sort(out[k])
	}
	return out
}

func stuckRows(rep *inspect.PendingReport, s Step) bool {
	return slices.ContainsFunc(rep.Rows, func(r inspect.PendingRow) bool {
		return r.Stuck && r.TransactionalID != nil && s.TransactionalID != nil && *r.TransactionalID == *s.TransactionalID
	})
}

// transactionOf returns the open transaction of a step; nil when there is none.
func transactionOf(ev *inspect.Evidence, s Step) *inspect.Transaction {
	if s.TransactionalID == nil {
		return nil
	}
	for i, t := range ev.Transactions {
		if t.TransactionalID == *s.TransactionalID {
			return &ev.Transactions[i]
		}
	}
	return nil
}

// decide chooses the action of a step.
func (s *Step) decide(ev *inspect.Evidence, stuck bool, o Options) {
	if s.Verdict == inspect.VerdictOrphan {
		s.decideOrphan(ev, o)
		return
	}
	t := transactionOf(ev, *s)
	switch {
	case t == nil:
		s.Action, s.Reason = ActionWait, "its transaction cannot be seen"
	case t.Preparing():
		s.decideEnding(*t, stuck)
	case s.fenced(*t, o):
		s.Action = ActionFence
		s.Reason = "its producer is fenced by InitProducerId, which aborts its transaction"
		if t.TwoPhase() {
			s.Warning = fmt.Sprintf("%s is part of a two-phase commit: fencing it discards the decision, if it is prepared", s.Name())
		}
	case t.TwoPhase():
		s.Action = ActionLeave
		s.Reason = "it is part of a two-phase commit (KIP-939) and never times out; its owner ends it, or fencing it discards it"
	case stuck:
		s.Action = ActionLeave
		s.Reason = "it should have timed out, and its coordinator has not ended it; fencing it does"
	case s.Until != nil:
		s.Action, s.Reason = ActionWait, "it ends when its producer ends it, or by its timeout at "+s.Until.UTC().Format(time.RFC3339)
	default:
		s.Action, s.Reason = ActionWait, "it ends when its producer ends it, or by its timeout"
	}
}

// fenced reports whether the transaction is to be fenced. Of one whose
// participants are not known it is not known that it holds any share
// acknowledgements.
func (s *Step) fenced(t inspect.Transaction, o Options) bool {
	parts, _ := t.StatePartitions()
	if len(parts) == 0 && s.Verdict != inspect.VerdictExact {
		return false
	}
	return o.fences(t.TransactionalID) || o.FenceAll && !t.TwoPhase()
}

func (s *Step) decideEnding(t inspect.Transaction, stuck bool) {
	s.Action, s.Reason = ActionWait, fmt.Sprintf("its end is decided (%s), and its markers are being written", t.State)
	if stuck {
		s.Action = ActionLeave
		s.Reason = fmt.Sprintf("its end is decided (%s), and its markers have not been written for a long time: look at broker %d, which coordinates it, and at the leaders of its partitions", t.State, t.Coordinator)
	}
}

// decideOrphan chooses for records that no transaction will end. A transaction
// that was committed must not be aborted after the fact: its output is out, and
// its input would be delivered again.
func (s *Step) decideOrphan(ev *inspect.Evidence, o Options) {
	if s.ProducerID == nil || s.ProducerEpoch == nil || len(s.StatePartitions) == 0 {
		s.Action, s.Reason = ActionLeave, "no transaction will end it, and who staged it cannot be read"
		return
	}
	outcome := OutcomeOf(ev.Ended, *s.ProducerID, *s.ProducerEpoch)
	if !o.AbortHanging {
		s.Action, s.Reason = ActionLeave, "no transaction will end it: "+outcome.Text+"; --abort-hanging does"
		return
	}
	s.Action, s.Reason = ActionAbort, "no transaction will end it: "+outcome.Text
	switch {
	case outcome.Committed:
		s.Action = ActionCommit
	case !outcome.Aborted:
		s.Warning = fmt.Sprintf("%s: whether its transaction was committed is not known; if it was, its records are delivered again after the abort", s.Name())
	}
}

// Outcome is how a transaction ended, as far as its coordinator still tells.
type Outcome struct {
	Committed, Aborted bool   // neither: not known
	Text               string // a sentence without a full stop
}

// OutcomeOf says how the transaction ended that staged records with an epoch of a
// producer, by where the producer's transactional ID stands now. The end of a
// transaction raises the epoch by one (KIP-890), so what is complete at the next
// epoch is this one. Two above may be it too, by a timeout before KAFKA-19367, or
// the one that came after it.
func OutcomeOf(now []inspect.Transaction, producerID int64, epoch int16) Outcome {
	for _, t := range now {
		if t.ProducerID != producerID {
			continue
		}
		switch ahead := int32(t.ProducerEpoch) - int32(epoch); {
		case ahead == 1 && t.State == "CompleteCommit":
			return Outcome{Committed: true, Text: fmt.Sprintf("%q was committed, and its marker did not arrive", t.TransactionalID)}
		case ahead == 1 && t.State == "CompleteAbort":
			return Outcome{Aborted: true, Text: fmt.Sprintf("%q was aborted, and its marker did not arrive", t.TransactionalID)}
		}
		return Outcome{Text: fmt.Sprintf("%q has gone on since", t.TransactionalID)}
	}
	return Outcome{Text: "no coordinator knows its transaction"}
}

// mayHoldInMemory returns the share-partitions of a scope that may hold records in
// memory: those that are not done. A lag of 0 proves that nothing is pending.
func mayHoldInMemory(ev *inspect.Evidence, o Options) []string {
	var out []string
	for _, g := range ev.Groups {
		if len(o.Groups) > 0 && !slices.Contains(o.Groups, g.GroupID) {
			continue
		}
		for _, p := range g.Partitions {
			if p.Lag != 0 && (len(o.Topics) == 0 || slices.Contains(o.Topics, p.Topic)) {
				out = append(out, fmt.Sprintf("%s/%s-%d", g.GroupID, p.Topic, p.Partition))
			}
		}
	}
	return out
}

// canStage reports whether records can become TX_PENDING on the cluster. Where
// brokers do not agree, some may.
func canStage(ev *inspect.Evidence) bool {
	switch ev.Support.Verdict {
	case cluster.NotSupported, cluster.NotEnabled:
		return false
	case cluster.Ambiguous, cluster.Usable, cluster.Mixed, cluster.Unknown:
	}
	return ev.StatePartitions > 0
}
