package feature

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/wire"
)

// StepState says where a step of a plan stands.
type StepState string

// The states of a step.
const (
	StepDone    StepState = "done"    // already true
	StepReady   StepState = "ready"   // may be done now
	StepBlocked StepState = "blocked" // something named stands in the way
	StepTodo    StepState = "todo"    // comes after a step that is not done
)

// Step is one step of a plan.
type Step struct {
	ID    string    `json:"id"`
	Title string    `json:"title"`
	State StepState `json:"state"`
	// Why says how the state was found out, or what stands in the way.
	Why string `json:"why"`
	// Command does the step; nil where no command of kshare does.
	Command *string  `json:"command"`
	Effects []string `json:"effects"`
	// NoReturn says what cannot be done after the step.
	NoReturn []string `json:"points_of_no_return"`
}

// Plan is the way from the levels in force to others, in the order in which its
// steps have to be done: binaries before levels on the way up, levels before
// binaries on the way down (KIP-1289, "Compatibility, Deprecation, and Migration
// Plan").
type Plan struct {
	Direction Direction `json:"direction"`
	Updates   []Update  `json:"updates"` // sorted by feature
	Steps     []Step    `json:"-"`
	// Next is the first step that is not done; nil when all are.
	Next *string `json:"next"`

	report *Report
	change *Change
}

// NeedsTransactions reports whether it matters to the plan which transactions
// are open.
func (p *Plan) NeedsTransactions() bool { return p.change.NeedsTransactions() }

// Observer is [Change.Observer].
func (p *Plan) Observer(cl Cluster, dialect string, now func() time.Time) drain.Observer {
	return p.change.Observer(cl, dialect, now)
}

// Incomplete reports whether the plan was made without knowing all brokers.
func (p *Plan) Incomplete() bool { return p.report.Incomplete() }

// Report returns what the plan was made from.
func (p *Plan) Report() *Report { return p.report }

// NewPlan plans the way from a report to levels. It is pure. ev is what is known
// of who would suffer from a downgrade; nil is nothing, which blocks what depends
// on it.
// It may return *DirectionError when some levels are to go up and others down:
// that is two plans.
func NewPlan(r *Report, updates []Update, ev *inspect.Evidence) (*Plan, error) {
	updates = slices.Clone(updates)
	slices.SortFunc(updates, func(a, b Update) int { return strings.Compare(a.Feature, b.Feature) })
	c, err := planned(r, updates)
	if err != nil {
		return nil, err
	}
	p := &Plan{Direction: c.Direction, Updates: updates, report: r, change: c}
	if c.Direction == Upgrade {
		p.Steps = stepsUp(r, c)
	} else {
		p.Steps = stepsDown(r, c, ev)
	}
	order(p.Steps)
	for _, s := range p.Steps {
		if s.State != StepDone {
			p.Next = new(s.ID)
			break
		}
	}
	return p, nil
}

// planned makes the change of a plan, in whichever direction it goes. Unlike one
// that is to be executed it may ask for what is not possible yet.
func planned(r *Report, updates []Update) (*Change, error) {
	c := &Change{Direction: Upgrade, report: r}
	var up, down []Item
	for _, u := range updates {
		it := Item{Feature: u.Feature, To: u.Level, Meaning: Meaning(u.Feature, u.Level, r.support)}
		if f, ok := r.Feature(u.Feature); !ok {
			it.From = new(int16(0)) // what no software knows is not in force
		} else if f.Finalized != nil {
			it.From = new(*f.Finalized)
		}
		switch {
		case it.From == nil:
		case it.To > *it.From:
			up = append(up, it)
		case it.To < *it.From:
			down = append(down, it)
		}
		c.Items = append(c.Items, it)
	}
	if len(up) > 0 && len(down) > 0 {
		return nil, &DirectionError{Change: down[0], Asked: Upgrade}
	}
	if len(down) > 0 {
		c.Direction = Downgrade
	}
	if !slices.ContainsFunc(c.Items, func(it Item) bool { return it.From == nil }) {
		c.foresee()
	}
	return c, nil
}

// order turns what is ready into todo behind the first step that is not done,
// except where a step is blocked by something of its own.
func order(steps []Step) {
	for i := 1; i < len(steps); i++ {
		if steps[i].State == StepReady && steps[i-1].State != StepDone {
			steps[i].State = StepTodo
		}
	}
}

func (c *Change) command(verb string) *string {
	args := make([]string, 0, len(c.Items))
	for _, it := range c.Items {
		if it.needed() {
			args = append(args, fmt.Sprintf("%s=%d", it.Feature, it.To))
		}
	}
	return new("kshare feature " + verb + " " + strings.Join(args, " "))
}

func stepsUp(r *Report, c *Change) []Step {
	binaries := binariesStep(r, c)
	finalized := finalizedStep(r, c)
	soak := Step{
		ID: "soak", Title: "Let the new software run at the old levels", State: StepReady,
		Why:     "the old software can still be rolled back to: watch errors, latencies and the size of the in-sync replica sets for as long as you trust",
		Command: new("kshare feature describe"),
	}
	if finalized.State == StepDone {
		soak.State, soak.Why = StepDone, "the levels are finalized"
	}
	finalized.Effects, finalized.NoReturn = c.Effects, c.NoReturn
	if finalized.State != StepDone {
		finalized.Command = c.command("upgrade")
	}
	if finalized.State == StepReady {
		for _, d := range Dependencies() {
			if err := c.checkDependency(d); err != nil {
				finalized.State, finalized.Why = StepBlocked, strings.Join(err.Reasons, "; ")
			}
		}
	}
	steps := []Step{binaries, soak, finalized}
	if c.wantsTxnAcks() {
		steps = append(steps, advertisedStep(r), clientsStep(r))
	}
	return steps
}

// wantsTxnAcks reports whether the levels of the change have transactional
// acknowledgement.
func (c *Change) wantsTxnAcks() bool {
	for _, it := range c.Items {
		if it.Feature == wire.FeatureShareVersion {
			switch c.report.support.Verdict {
			case cluster.Usable, cluster.NotEnabled, cluster.Mixed:
				return shareSense(it.To, c.report.support).txnAcks
			case cluster.NotSupported, cluster.Ambiguous, cluster.Unknown:
			}
		}
	}
	return false
}

func binariesStep(r *Report, c *Change) Step {
	s := Step{ID: "binaries", Title: "Roll all brokers and controllers to software that knows the levels", State: StepDone}
	var lacking, unknown []string
	for _, it := range c.Items {
		f, ok := r.Feature(it.Feature)
		if !ok {
			lacking = append(lacking, "no broker knows "+it.Feature)
			continue
		}
		for _, b := range f.Brokers {
			if b.Min != nil && (it.To < *b.Min || it.To > *b.Max) {
				lacking = append(lacking, fmt.Sprintf("broker %d supports %s of %s", b.NodeID, rangeText(b.Min, b.Max), it.Feature))
			}
		}
	}
	unknown = r.Unknowns()
	switch {
	case len(lacking) > 0:
		s.State, s.Why = StepReady, strings.Join(append(lacking, unknown...), "; ")
		s.Effects = []string{"a rolling restart, broker by broker; nothing is switched on by it"}
	case len(unknown) > 0:
		s.State, s.Why = StepBlocked, strings.Join(unknown, "; ")
	default:
		s.Why = fmt.Sprintf("all %s answer and support %s", count(len(r.Brokers), "broker", "brokers"), itemsText(c.Items))
	}
	return s
}

func itemsText(items []Item) string {
	parts := make([]string, 0, len(items))
	for _, it := range items {
		parts = append(parts, fmt.Sprintf("%s=%d", it.Feature, it.To))
	}
	return strings.Join(parts, " and ")
}

// finalizedStep is where the levels are changed, in either direction.
func finalizedStep(r *Report, c *Change) Step {
	s := Step{ID: "levels", Title: "Finalize " + itemsText(c.Items), State: StepDone, Why: "every broker reports the levels"}
	var differ []string
	for _, it := range c.Items {
		switch {
		case it.From == nil:
			s.State, s.Why = StepBlocked, fmt.Sprintf("the level of %s is not known", it.Feature)
			return s
		case it.needed():
			differ = append(differ, fmt.Sprintf("%s is at %s (%s)", it.Feature, it.fromText(), Meaning(it.Feature, *it.From, r.support)))
		}
	}
	if len(differ) > 0 {
		s.State, s.Why = StepReady, strings.Join(differ, "; ")
		if unknown := r.Unknowns(); len(unknown) > 0 {
			s.State, s.Why = StepBlocked, strings.Join(append(differ, unknown...), "; ")
		}
		return s
	}
	var late []string
	for _, it := range c.Items {
		f, _ := r.Feature(it.Feature)
		for _, b := range f.Brokers {
			if b.Finalized != nil && *b.Finalized != it.To {
				late = append(late, fmt.Sprintf("broker %d still reports level %d of %s", b.NodeID, *b.Finalized, it.Feature))
			}
		}
	}
	if late = append(late, r.Unknowns()...); len(late) > 0 {
		s.State, s.Why = StepBlocked, strings.Join(late, "; ")
	}
	return s
}

func advertisedStep(r *Report) Step {
	s := Step{
		ID: "advertised", Title: "See every broker advertise TxnShareAcknowledge", State: StepReady,
		Why: r.support.Verdict.String() + ": " + r.support.Reason, Command: new("kshare feature describe -o wide"),
	}
	if r.support.Verdict == cluster.Usable {
		s.State, s.Command = StepDone, nil
	}
	return s
}

func clientsStep(r *Report) Step {
	s := Step{
		ID: "clients", Title: "Roll out the clients that acknowledge in transactions", State: StepReady,
		Why: "alert on records that stay in TX_PENDING first: TxnPendingRecordsCount above 0 for more than 60 s",
	}
	if r.support.Verdict == cluster.Usable {
		s.Command = new("kshare ctp --from SOURCE --to DESTINATION")
	}
	return s
}

func stepsDown(r *Report, c *Change, ev *inspect.Evidence) []Step {
	levels := finalizedStep(r, c)
	// That levels come first is what the order of the steps says.
	levels.Effects = slices.DeleteFunc(slices.Clone(c.Effects), func(e string) bool { return e == levelsFirst })
	if levels.State != StepDone {
		levels.Command = c.command("downgrade")
	}
	var steps []Step
	if c.NeedsTransactions() {
		steps = append(steps, haltStep(c, ev), endedStep(c, ev))
	}
	lowered := levels.State == StepDone
	steps = append(steps, levels)
	back := Step{
		ID: "binaries", Title: "Roll back to older software, if that is what it is for", State: StepReady,
		Why: "only when every broker reports the lower levels: older software does not start at levels that it does not know",
	}
	if lowered {
		back.Why = "every broker reports the levels: software that knows them can run"
	}
	return append(steps, back)
}

func haltStep(c *Change, ev *inspect.Evidence) Step {
	s := Step{ID: "halt", Title: "Stop the clients that acknowledge in transactions", State: StepReady}
	if c.cutsProducers {
		s.Title = "Stop all transactional producers"
	}
	switch u := c.inTheWay(ev, GuardOptions{}); {
	case ev == nil:
		s.Why = "it is not known which transactions are open"
	case len(u.open) > 0:
		s.Why = fmt.Sprintf("they are at work: %s", ids(u.open))
	case len(u.unknown) > 0:
		s.Why = "it is not known whether any is at work: " + strings.Join(u.unknown, "; ")
	default:
		s.State, s.Why = StepDone, "none has a transaction open now; make sure that none begins one"
	}
	return s
}

func endedStep(c *Change, ev *inspect.Evidence) Step {
	s := Step{ID: "drain", Title: "Wait until their transactions have ended", State: StepBlocked}
	u := c.inTheWay(ev, GuardOptions{})
	_, orphans := orphaned(u.holders)
	if c.losesTxnAcks {
		s.Command = new("kshare drain")
	}
	switch {
	case ev == nil:
		s.Why = "it is not known which transactions are open"
	case len(orphans) > 0:
		s.Why = strings.Join(heldReasons(u), "; ")
		s.Command = new("kshare drain --abort-hanging")
	case len(u.open) > 0:
		s.Why = fmt.Sprintf("%s: %s; each ends when its producer ends it, or after its timeout", count(len(u.open), "transaction is open", "transactions are open"), ids(u.open))
	case len(u.unknown) > 0:
		s.Why = "unknown is not zero: " + strings.Join(u.unknown, "; ")
	default:
		s.State, s.Why, s.Command = StepDone, "no such transaction is open", nil
	}
	return s
}
