package drain_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// soakPlan is what a run does. It follows from the seed alone.
type soakPlan struct {
	seed            uint64
	dialect         wire.Dialect
	pending         sandbox.PendingState
	statePartitions int32
	records         map[string]int // of topics
	groups          []soakGroup
	apps            []soakAppPlan
	faults          []soakFault
	drains          []soakDrain
	finally         bool // a last drain has to succeed
	last            drain.Options
}

// soakGroup is a share group with one member, which its applications share.
type soakGroup struct {
	id     string
	topics []string
}

type soakAppPlan struct {
	at      time.Duration
	id      string // transactional ID
	group   int
	timeout time.Duration
	steps   []soakStep
}

// twoPhase is the timeout of a transaction that takes part in a two-phase commit.
const twoPhase = math.MaxInt32 * time.Millisecond

// soakStep is something that an application does.
type soakStep struct {
	after time.Duration // the step before
	do    soakDo
	n     int // records at most
	how   wire.AcknowledgeType
}

type soakDo string

const (
	doStage  soakDo = "stage"
	doCommit soakDo = "commit"
	doAbort  soakDo = "abort"
	// doFence takes the transactional ID anew, as an instance that is started
	// does, and goes on as that.
	doFence soakDo = "fence"
	// doZombie goes on as the instance that was fenced last.
	doZombie soakDo = "be a zombie"
	doDie    soakDo = "die"
	// doTimeOut waits for longer than the transaction may last.
	doTimeOut soakDo = "time out"
)

type soakFault struct {
	sandbox.Fault
	at, lasts time.Duration // lasts is 0 of what is momentary
}

// passive reports whether a fault strikes without being counted: it keeps
// something from happening.
func (f soakFault) passive() bool {
	return f.Kind == sandbox.FaultStopSweeper || f.Kind == sandbox.FaultForgetTransaction
}

type soakDrain struct {
	name string
	at   time.Duration
	drain.Options
	metrics bool          // the metrics of brokers are read
	away    time.Duration // of the brokers: the longer a look takes, the more happens meanwhile
}

// kinds names the options for the tally.
func (d soakDrain) kinds() []string {
	var out []string
	for name, is := range map[string]bool{
		"of all": len(d.Groups)+len(d.Topics) == 0, "of groups": len(d.Groups) > 0, "of topics": len(d.Topics) > 0,
		"that only wait": !d.FenceAll && len(d.Fence) == 0 && !d.AbortHanging,
		"--fence all":    d.FenceAll, "--fence id": len(d.Fence) > 0, "--abort-hanging": d.AbortHanging,
		"with a timeout": d.Timeout > 0, "with a quiet period": d.QuietPeriod > 0,
		"--accept-memory": d.AcceptMemory, "with metrics": d.metrics,
	} {
		if is {
			out = append(out, name)
		}
	}
	return out
}

// planner draws a plan.
type planner struct {
	*rand.Rand
	*soakPlan
}

func newSoakPlan(seed uint64) *soakPlan {
	p := planner{rand.New(rand.NewPCG(seed, 1289)), &soakPlan{seed: seed}}
	p.dialect = pick(p.Rand, wire.Dialects()...)
	p.pending = pick(p.Rand, sandbox.PendingPersisted, sandbox.PendingPersisted, sandbox.PendingMemory)
	p.statePartitions = int32(1 + p.IntN(4))
	p.records = map[string]int{"in": 2 + p.IntN(40), "other": 1 + p.IntN(20)}
	p.groups = []soakGroup{{"g", []string{"in"}}}
	if p.chance(60) {
		p.groups = append(p.groups, soakGroup{"h", pick(p.Rand, []string{"other"}, []string{"in"}, []string{"in", "other"})})
	}
	for i := range 1 + p.IntN(3) {
		p.apps = append(p.apps, p.app(i))
	}
	if p.chance(85) { // the rest shows that what is said without faults is right as well
		for range 1 + p.IntN(pick(p.Rand, 2, 5, 10)) {
			p.faults = append(p.faults, p.fault())
		}
	}
	for i := range 1 + p.IntN(2) {
		p.drains = append(p.drains, p.drain(i))
	}
	if p.chance(25) {
		p.together()
	}
	p.finally = p.chance(30)
	p.last = drain.Options{FenceAll: true, AbortHanging: true, Interval: p.seconds(1, 5)}
	return p.soakPlan
}

func (p planner) chance(percent int) bool { return p.IntN(100) < percent }

func (p planner) seconds(least, most float64) time.Duration {
	s := least + p.Float64()*(most-least)
	return time.Duration(s*1000) * time.Millisecond
}

func (p planner) app(i int) soakAppPlan {
	a := soakAppPlan{at: p.seconds(0, pick(p.Rand, 0.1, 30)), id: fmt.Sprintf("app-%d", i), group: p.IntN(len(p.groups)), timeout: p.seconds(3, 40)}
	if p.chance(6) {
		a.timeout = twoPhase
	}
	pace := pick(p.Rand, 0.1, 0.5, 1.5, 4.0, 8.0)
	for range 1 + p.IntN(pick(p.Rand, 3, 6, 12)) {
		for range 1 + p.IntN(3) {
			a.steps = append(a.steps, soakStep{
				after: p.seconds(0, pace), do: doStage, n: 1 + p.IntN(4),
				how: pick(p.Rand, wire.Accept, wire.Accept, wire.Reject),
			})
		}
		end := soakStep{after: p.seconds(0, pace)}
		switch n := p.IntN(100); {
		case n < 40:
			end.do = doCommit
		case n < 60:
			end.do = doAbort
		case n < 72:
			end.do = doFence
		case n < 80:
			end.do = doZombie
		case n < 90:
			end.do = doTimeOut
		default:
			end.do = doDie
		}
		a.steps = append(a.steps, end)
		if end.do == doDie {
			break
		}
	}
	return a
}

// keysToFail are the requests that a fault answers with an error, or whose
// answer it loses: those of applications and those of a drain.
func (p planner) keysToFail() []int16 {
	return []int16{
		p.dialect.Key, int16(kmsg.InitProducerID), int16(kmsg.EndTxn), int16(kmsg.FindCoordinator),
		int16(kmsg.ListTransactions), int16(kmsg.DescribeTransactions), int16(kmsg.WriteTxnMarkers), int16(kmsg.DescribeProducers),
		int16(kmsg.ListGroups), int16(kmsg.ShareGroupDescribe), int16(kmsg.DescribeShareGroupOffsets),
		int16(kmsg.ReadShareGroupState), int16(kmsg.ReadShareGroupStateSummary),
		int16(kmsg.Metadata), int16(kmsg.ListOffsets), int16(kmsg.Fetch), int16(kmsg.ApiVersions),
	}
}

func (p planner) fault() soakFault {
	f := soakFault{at: p.seconds(0, pick(p.Rand, 5, 30, 60.0)), lasts: p.seconds(0.5, pick(p.Rand, 5, 20, 90.0))}
	f.Kind = pick(p.Rand, sandbox.FaultKinds()...)
	txn := func() {
		if p.chance(50) {
			f.TransactionalID = pick(p.Rand, p.apps...).id
		}
	}
	statePartition := func(percent int) {
		if p.chance(percent) {
			f.StatePartition = new(int32(p.IntN(int(p.statePartitions))))
		}
	}
	broker := func() *int32 { return new(int32(p.IntN(3))) }
	count := func(most int) {
		if p.chance(60) {
			f.Count = 1 + p.IntN(most)
		}
	}
	where := func() {
		if p.chance(50) {
			f.Topic = pick(p.Rand, "in", "other")
			if p.chance(50) {
				f.Partition = new(int32(0))
			}
		}
		if p.chance(30) {
			f.GroupID = pick(p.Rand, p.groups...).id
		}
	}
	switch f.Kind {
	case sandbox.FaultDropMarker:
		txn()
		statePartition(30)
		count(2)
	case sandbox.FaultDelayMarker, sandbox.FaultDuplicateMarker:
		txn()
		statePartition(30)
		count(3)
		if p.chance(60) {
			f.DurationMs = p.seconds(0.1, 20).Milliseconds()
		}
	case sandbox.FaultLoseResponse:
		if p.chance(70) {
			f.APIKey = new(pick(p.Rand, p.keysToFail()...))
		}
		if p.chance(30) {
			f.Broker = broker()
		}
		count(3)
	case sandbox.FaultAnswerError:
		f.APIKey = new(pick(p.Rand, p.keysToFail()...))
		f.Error = pick(p.Rand, "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "REQUEST_TIMED_OUT",
			"UNKNOWN_SERVER_ERROR", "NOT_LEADER_OR_FOLLOWER", "CONCURRENT_TRANSACTIONS", "INVALID_REQUEST")
		if p.chance(50) {
			f.Broker = broker()
		}
		count(6)
	case sandbox.FaultHangCoordinator, sandbox.FaultFailCoordinator:
		f.Coordinator = pick(p.Rand, sandbox.CoordinatorTransaction, sandbox.CoordinatorShare)
		if f.Coordinator == sandbox.CoordinatorTransaction {
			txn()
		} else {
			statePartition(50)
		}
		if p.chance(30) {
			f.Broker = broker()
		}
		count(4)
		if f.Kind == sandbox.FaultHangCoordinator {
			if p.chance(50) {
				f.DurationMs = p.seconds(0.1, 15).Milliseconds()
			}
		} else if p.chance(50) {
			f.Error = pick(p.Rand, "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS")
		}
	case sandbox.FaultMoveCoordinator:
		f.lasts = 0
		if f.Coordinator = pick(p.Rand, sandbox.CoordinatorTransaction, sandbox.CoordinatorShare); f.Coordinator == sandbox.CoordinatorShare {
			statePartition(100)
			f.ToBroker = broker()
		}
	case sandbox.FaultCrashLeader, sandbox.FaultExpireLocks:
		f.lasts = 0
		where()
	case sandbox.FaultMoveLeader:
		f.lasts, f.Topic, f.Partition, f.ToBroker = 0, pick(p.Rand, "in", "other"), new(int32(0)), broker()
	case sandbox.FaultRestartBroker:
		f.lasts, f.Broker = 0, broker()
	case sandbox.FaultFreezeBroker:
		f.Broker = broker()
	case sandbox.FaultStopSweeper:
	case sandbox.FaultForgetTransaction:
		f.TransactionalID = pick(p.Rand, p.apps...).id
		f.lasts = p.seconds(5, 60)
	}
	return f
}

// together makes a fault last all through a drain that acts: what it hides must
// not be taken for gone.
func (p planner) together() {
	if len(p.faults) == 0 {
		return
	}
	f, d := &p.faults[p.IntN(len(p.faults))], &p.drains[0]
	d.AbortHanging = true
	if f.lasts > 0 {
		f.at, f.lasts, f.Count, f.DurationMs = d.at+p.seconds(0, 10), p.seconds(20, 120), 0, 0
	}
	for i := range p.apps {
		a := &p.apps[i]
		a.at, a.timeout = max(0, d.at-p.seconds(0, 5)), p.seconds(60, 300)
	}
}

func (p planner) drain(i int) soakDrain {
	d := soakDrain{name: fmt.Sprint(i), at: p.seconds(0, 25)}
	d.Interval = p.seconds(1, 6)
	if p.chance(60) {
		d.away = pick(p.Rand, time.Millisecond, 20*time.Millisecond, 100*time.Millisecond, 400*time.Millisecond)
	}
	switch n := p.IntN(100); {
	case n < 15:
		d.Groups = []string{pick(p.Rand, p.groups...).id}
	case n < 25:
		d.Topics = []string{pick(p.Rand, "in", "other")}
	case n < 30:
		d.Groups, d.Topics = []string{"g", "h"}, []string{pick(p.Rand, "in", "other")}
	}
	switch n := p.IntN(100); {
	case n < 25:
		d.FenceAll = true
	case n < 40:
		d.Fence = []string{pick(p.Rand, p.apps...).id}
	}
	d.AbortHanging = p.chance(50)
	if p.chance(60) {
		d.Timeout = p.seconds(3, 120)
	}
	if p.chance(30) {
		d.QuietPeriod = p.seconds(1, 20)
	}
	if p.pending == sandbox.PendingMemory {
		d.AcceptMemory, d.metrics = p.chance(30), p.chance(40)
	}
	if p.chance(20) {
		d.Looks = 1 + p.IntN(4)
	}
	return d
}

func (p *soakPlan) sandboxOptions() []sandbox.Option {
	return []sandbox.Option{
		sandbox.WithStatePartitions(p.statePartitions),
		sandbox.WithBrokerConfigs(map[string]string{"transaction.max.timeout.ms": fmt.Sprint(math.MaxInt32)}),
	}
}

// String is the plan for people.
func (p *soakPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  seed %d: dialect %s, %s, %d state partitions, records %v\n", p.seed, p.dialect.Name, p.pending, p.statePartitions, p.records)
	for _, g := range p.groups {
		fmt.Fprintf(&b, "  group %s of %v\n", g.id, g.topics)
	}
	for _, a := range p.apps {
		fmt.Fprintf(&b, "  %s at %v in group %s, timeout %v:", a.id, a.at, p.groups[a.group].id, a.timeout)
		for _, s := range a.steps {
			fmt.Fprintf(&b, " +%v %s", s.after, s.do)
		}
		b.WriteByte('\n')
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "  fault %s\n", f)
	}
	for _, d := range p.drains {
		fmt.Fprintf(&b, "  drain %s %s\n", d.name, d)
	}
	if p.finally {
		fmt.Fprintf(&b, "  drain last %s", soakDrain{Options: p.last})
	}
	return b.String()
}

// String is the fault for people.
func (f soakFault) String() string {
	s := fmt.Sprintf("at %v for %v: %s", f.at, f.lasts, f.Kind)
	add := func(name string, v any, is bool) {
		if is {
			s += fmt.Sprintf(" %s=%v", name, v)
		}
	}
	add("id", f.TransactionalID, f.TransactionalID != "")
	add("state-partition", deref(f.StatePartition), f.StatePartition != nil)
	add("group", f.GroupID, f.GroupID != "")
	add("topic", f.Topic, f.Topic != "")
	add("partition", deref(f.Partition), f.Partition != nil)
	add("broker", deref(f.Broker), f.Broker != nil)
	add("request", kmsg.NameForKey(deref(f.APIKey)), f.APIKey != nil)
	add("coordinator", f.Coordinator, f.Coordinator != "")
	add("to", deref(f.ToBroker), f.ToBroker != nil)
	add("error", f.Error, f.Error != "")
	add("count", f.Count, f.Count > 0)
	add("ms", f.DurationMs, f.DurationMs > 0)
	return s
}

// String is the drain for people.
func (d soakDrain) String() string {
	s := fmt.Sprintf("at %v from %v away every %v, %d looks", d.at, d.away, d.Interval, cmp.Or(d.Looks, drain.DefaultLooks))
	if len(d.Groups)+len(d.Topics) > 0 {
		s += fmt.Sprintf(" of groups %v and topics %v", d.Groups, d.Topics)
	}
	if d.FenceAll {
		s += " --fence all"
	}
	if len(d.Fence) > 0 {
		s += fmt.Sprintf(" --fence %v", d.Fence)
	}
	if d.AbortHanging {
		s += " --abort-hanging"
	}
	if d.AcceptMemory {
		s += " --accept-memory"
	}
	if d.metrics {
		s += " with metrics"
	}
	if d.Timeout > 0 {
		s += fmt.Sprintf(" --timeout %v", d.Timeout)
	}
	if d.QuietPeriod > 0 {
		s += fmt.Sprintf(" --quiet-period %v", d.QuietPeriod)
	}
	return s
}
