package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// FaultKind says what goes wrong.
type FaultKind string

// The kinds of faults. Those that are momentary have happened when
// [Sandbox.InjectFault] returns, and are not listed; all others last until they
// have struck Count times or are cleared.
const (
	// FaultDropMarker loses end markers on their way to __share_group_state:
	// the coordinator counts them as written, the records stay TX_PENDING.
	FaultDropMarker FaultKind = "drop-marker"
	// FaultDelayMarker holds end markers back, for Duration or until cleared:
	// meanwhile the transaction is in PrepareCommit or PrepareAbort.
	FaultDelayMarker FaultKind = "delay-marker"
	// FaultDuplicateMarker applies end markers twice, the second time after
	// Duration.
	FaultDuplicateMarker FaultKind = "duplicate-marker"
	// FaultLoseResponse handles requests and then closes the connection instead
	// of answering; without APIKey those of TxnShareAcknowledge.
	FaultLoseResponse FaultKind = "lose-response"
	// FaultAnswerError answers requests with Error instead of handling them.
	FaultAnswerError FaultKind = "answer-error"
	// FaultHangCoordinator leaves requests to a coordinator unanswered, for
	// Duration or until cleared.
	FaultHangCoordinator FaultKind = "hang-coordinator"
	// FaultFailCoordinator answers requests to a coordinator with Error;
	// COORDINATOR_NOT_AVAILABLE if there is none.
	FaultFailCoordinator FaultKind = "fail-coordinator"
	// FaultMoveCoordinator moves a coordinator to another broker: that of
	// StatePartition to ToBroker, or all transaction and group coordinators.
	// It is momentary.
	FaultMoveCoordinator FaultKind = "move-coordinator"
	// FaultCrashLeader makes the leaders of share-partitions lose what they
	// hold in memory; what is persisted is loaded again. It is momentary.
	FaultCrashLeader FaultKind = "crash-leader"
	// FaultMoveLeader moves the leader of a partition to ToBroker, which raises
	// the leader epoch. It is momentary.
	FaultMoveLeader FaultKind = "move-leader"
	// FaultRestartBroker closes the connections of a broker and makes it lose
	// share sessions and what it holds as a leader. It is momentary.
	FaultRestartBroker FaultKind = "restart-broker"
	// FaultFreezeBroker makes a broker accept connections and answer nothing.
	FaultFreezeBroker FaultKind = "freeze-broker"
	// FaultExpireLocks makes acquisition locks run out. It is momentary.
	FaultExpireLocks FaultKind = "expire-locks"
	// FaultStopSweeper stops the sweeper, which aborts the transactions that
	// have timed out.
	FaultStopSweeper FaultKind = "stop-sweeper"
	// FaultForgetTransaction makes the coordinator forget a transactional ID:
	// it is in no list, its producer is not known, and nobody will ever end its
	// transaction. What it staged stays TX_PENDING. InitProducerId ends the
	// fault: the ID is known again, the transaction is not.
	FaultForgetTransaction FaultKind = "forget-transaction"
)

// FaultKinds returns all kinds, in the order above.
func FaultKinds() []FaultKind {
	kinds := make([]FaultKind, 0, len(faultRules))
	for _, r := range faultRules {
		kinds = append(kinds, r.kind)
	}
	return kinds
}

// The coordinators of a Fault.
const (
	CoordinatorTransaction = "transaction"
	CoordinatorShare       = "share"
)

// Fault is something that goes wrong in a sandbox, and in which requests or
// transactions. A selector that is not set selects all.
type Fault struct {
	ID   string    `json:"id"` // given by the sandbox
	Kind FaultKind `json:"kind"`

	TransactionalID string `json:"transactional_id,omitempty"`
	StatePartition  *int32 `json:"state_partition,omitempty"` // of __share_group_state
	GroupID         string `json:"group_id,omitempty"`
	Topic           string `json:"topic,omitempty"`
	Partition       *int32 `json:"partition,omitempty"`
	Broker          *int32 `json:"broker,omitempty"`      // node ID
	APIKey          *int16 `json:"api_key,omitempty"`     // of requests
	Coordinator     string `json:"coordinator,omitempty"` // "transaction" or "share"

	ToBroker *int32 `json:"to_broker,omitempty"` // node ID to move to
	Error    string `json:"error,omitempty"`     // Kafka's name of an error

	// Count is how often the fault strikes; 0 is until it is cleared.
	Count int `json:"count"`
	// DurationMs is how long each strike lasts, in milliseconds; 0 is until the
	// fault is cleared, and for a duplicate at once.
	DurationMs int64 `json:"duration_ms,omitempty"`

	Hits  int       `json:"hits"` // how often it has struck
	Held  int       `json:"held"` // what it holds back at this moment
	Since time.Time `json:"since"`
}

// FaultError says why a fault cannot be injected.
type FaultError struct {
	Kind   FaultKind
	Reason string
}

// Error names the kind and the reason.
func (e *FaultError) Error() string { return fmt.Sprintf("fault %s: %s", e.Kind, e.Reason) }

// ErrNoFault is returned for the ID of a fault that is not active.
var ErrNoFault = errors.New("no such fault")

// faultRule says what a kind can be told.
type faultRule struct {
	kind      FaultKind
	momentary bool
	needs     []string // selectors that must be set
	takes     []string // others that may be
}

// faultRules are sorted as the constants are.
var faultRules = []faultRule{
	{kind: FaultDropMarker, takes: []string{"transactional_id", "state_partition", "count"}},
	{kind: FaultDelayMarker, takes: []string{"transactional_id", "state_partition", "count", "duration_ms"}},
	{kind: FaultDuplicateMarker, takes: []string{"transactional_id", "state_partition", "count", "duration_ms"}},
	{kind: FaultLoseResponse, takes: []string{"api_key", "broker", "transactional_id", "count"}},
	{kind: FaultAnswerError, needs: []string{"api_key", "error"}, takes: []string{"broker", "transactional_id", "count"}},
	{kind: FaultHangCoordinator, needs: []string{"coordinator"}, takes: []string{"transactional_id", "state_partition", "broker", "count", "duration_ms"}},
	{kind: FaultFailCoordinator, needs: []string{"coordinator"}, takes: []string{"transactional_id", "state_partition", "broker", "error", "count"}},
	{kind: FaultMoveCoordinator, momentary: true, needs: []string{"coordinator"}, takes: []string{"state_partition", "to_broker"}},
	{kind: FaultCrashLeader, momentary: true, takes: []string{"group_id", "topic", "partition"}},
	{kind: FaultMoveLeader, momentary: true, needs: []string{"topic", "partition", "to_broker"}},
	{kind: FaultRestartBroker, momentary: true, needs: []string{"broker"}},
	{kind: FaultFreezeBroker, needs: []string{"broker"}},
	{kind: FaultExpireLocks, momentary: true, takes: []string{"group_id", "topic", "partition"}},
	{kind: FaultStopSweeper},
	{kind: FaultForgetTransaction, needs: []string{"transactional_id"}},
}

// set lists what a fault is told, by the names of JSON.
func (f *Fault) set() []string {
	var names []string
	for name, isSet := range map[string]bool{
		"transactional_id": f.TransactionalID != "", "state_partition": f.StatePartition != nil, "group_id": f.GroupID != "",
		"topic": f.Topic != "", "partition": f.Partition != nil, "broker": f.Broker != nil, "api_key": f.APIKey != nil,
		"coordinator": f.Coordinator != "", "to_broker": f.ToBroker != nil, "error": f.Error != "",
		"count": f.Count != 0, "duration_ms": f.DurationMs != 0,
	} {
		if isSet {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// check returns the rule of a fault, or why there can be no such fault.
func (f *Fault) check() (faultRule, error) {
	refuse := func(format string, args ...any) (faultRule, error) {
		return faultRule{}, &FaultError{Kind: f.Kind, Reason: fmt.Sprintf(format, args...)}
	}
	i := slices.IndexFunc(faultRules, func(r faultRule) bool { return r.kind == f.Kind })
	if i < 0 {
		return refuse("no such kind")
	}
	rule := faultRules[i]
	set := f.set()
	for _, name := range rule.needs {
		if !slices.Contains(set, name) {
			return refuse("%s is needed", name)
		}
	}
	for _, name := range set {
		if !slices.Contains(rule.needs, name) && !slices.Contains(rule.takes, name) {
			return refuse("%s does not apply", name)
		}
	}
	switch {
	case f.Count < 0 || f.DurationMs < 0:
		return refuse("count and duration_ms cannot be below 0")
	case f.Coordinator != "" && f.Coordinator != CoordinatorTransaction && f.Coordinator != CoordinatorShare:
		return refuse("coordinator is %q, want %q or %q", f.Coordinator, CoordinatorTransaction, CoordinatorShare)
	case f.Coordinator == CoordinatorTransaction && (f.StatePartition != nil || f.Kind == FaultMoveCoordinator && f.ToBroker != nil),
		f.Coordinator == CoordinatorShare && f.TransactionalID != "":
		return refuse("the %s coordinator is not found by that", f.Coordinator)
	case f.Kind == FaultMoveCoordinator && f.Coordinator == CoordinatorShare && (f.StatePartition == nil || f.ToBroker == nil):
		return refuse("state_partition and to_broker are needed to move a share coordinator")
	case f.Partition != nil && f.Topic == "":
		return refuse("partition needs topic")
	case f.Error != "" && errorCodeOf(f.Error) == 0:
		return refuse("%q is no error of Kafka's", f.Error)
	}
	return rule, nil
}

// errorCodeOf returns the code of an error by its name, 0 for no error.
func errorCodeOf(name string) int16 {
	const last = 200 // codes are dense, and end somewhere below
	for code := int16(-1); code < last; code++ {
		if e := kerr.TypedErrorForCode(code); e != nil && e.Message == name {
			return code
		}
	}
	return 0
}

// faultTable holds the faults that are active. It is safe for concurrent use.
type faultTable struct {
	count atomic.Int32 // lets requests pass without a lock while there is none

	mu      sync.Mutex
	next    int
	active  []*activeFault // as injected
	changed chan struct{}  // closed and replaced whenever one strikes, holds or ends
}

// activeFault is a fault that lasts. Its Fault is guarded by the table.
type activeFault struct {
	Fault
	cleared chan struct{}
	over    bool // cleared; it strikes no more
}

func newFaultTable() *faultTable { return &faultTable{changed: make(chan struct{})} }

func (t *faultTable) any() bool { return t.count.Load() > 0 }

// signal tells those who wait that something changed; the caller holds mu.
func (t *faultTable) signal() {
	t.count.Store(int32(len(t.active)))
	close(t.changed)
	t.changed = make(chan struct{})
}

// name gives a fault its ID and time.
func (t *faultTable) name(f Fault) Fault {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	f.ID, f.Since, f.Hits, f.Held = string(f.Kind)+"-"+strconv.Itoa(t.next), time.Now().UTC(), 0, 0
	return f
}

func (t *faultTable) add(f Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active = append(t.active, &activeFault{Fault: f, cleared: make(chan struct{})})
	t.signal()
}

// spent reports whether a fault strikes no more and holds nothing.
func (f *activeFault) spent() bool {
	return f.Held == 0 && (f.over || f.Count > 0 && f.Hits >= f.Count)
}

// prune drops what is spent; the caller holds mu.
func (t *faultTable) prune() {
	t.active = slices.DeleteFunc(t.active, (*activeFault).spent)
	t.signal()
}

// strike returns the first fault of a kind that matches and lets it strike; nil
// if there is none. With hold it counts as held until release.
func (t *faultTable) strike(kind FaultKind, hold bool, match func(*Fault) bool) *activeFault {
	if !t.any() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.active {
		if f.Kind != kind || f.over || f.Count > 0 && f.Hits >= f.Count || !match(&f.Fault) {
			continue
		}
		f.Hits++
		if hold {
			f.Held++
		}
		t.prune()
		return f
	}
	return nil
}

// lasts reports whether a fault of a kind matches, without striking.
func (t *faultTable) lasts(kind FaultKind, match func(*Fault) bool) bool {
	if !t.any() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.active, func(f *activeFault) bool {
		return f.Kind == kind && !f.over && (f.Count == 0 || f.Hits < f.Count) && match(&f.Fault)
	})
}

// await waits until a fault that holds lets go: it is cleared, its duration is
// over, or ctx ends, and then returns false. The caller must have struck with
// hold.
func (t *faultTable) await(ctx context.Context, f *activeFault, gone <-chan struct{}) bool {
	defer t.release(f)
	var over <-chan time.Time
	if f.DurationMs > 0 {
		timer := time.NewTimer(time.Duration(f.DurationMs) * time.Millisecond)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-f.cleared:
	case <-over:
	case <-gone:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

func (t *faultTable) release(f *activeFault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.Held--
	t.prune()
}

// clear ends the faults for which match holds, and returns them. What they hold
// goes on.
func (t *faultTable) clear(match func(*Fault) bool) []Fault {
	t.mu.Lock()
	defer t.mu.Unlock()
	ended := []Fault{}
	for _, f := range t.active {
		if !f.over && match(&f.Fault) {
			f.over = true
			ended = append(ended, f.Fault)
			close(f.cleared)
		}
	}
	t.prune()
	return ended
}

func (t *faultTable) list() []Fault {
	t.mu.Lock()
	defer t.mu.Unlock()
	faults := []Fault{}
	for _, f := range t.active {
		faults = append(faults, f.Fault)
	}
	return faults
}

// InjectFault makes something go wrong, at once and until it is cleared or has
// struck as often as its Count says. It returns the fault with its ID. It may
// return *FaultError. A fault does not outlive the sandbox.
func (s *Sandbox) InjectFault(ctx context.Context, f Fault) (Fault, error) {
	rule, err := f.check()
	if err != nil {
		return Fault{}, err
	}
	if err := s.checkFaultTarget(&f); err != nil {
		return Fault{}, err
	}
	f = s.gateway.faults.name(f)
	if rule.momentary {
		f.Hits = 1
		return f, s.strikeNow(ctx, &f)
	}
	if f.Kind == FaultLoseResponse && f.APIKey == nil {
		f.APIKey = &s.cfg.dialect.Key
	}
	// Nobody ends a transaction while it is being forgotten.
	if f.Kind == FaultForgetTransaction {
		defer s.plane.transactionGuard(f.TransactionalID)()
	}
	s.gateway.faults.add(f)
	return f, nil
}

// Faults returns the faults that are active, in the order in which they were
// injected.
func (s *Sandbox) Faults() []Fault { return s.gateway.faults.list() }

// ClearFault ends a fault: what it holds back goes on. It may return ErrNoFault.
func (s *Sandbox) ClearFault(id string) (Fault, error) {
	ended := s.gateway.faults.clear(func(f *Fault) bool { return f.ID == id })
	if len(ended) == 0 {
		return Fault{}, fmt.Errorf("fault %q: %w", id, ErrNoFault)
	}
	return ended[0], nil
}

// ClearFaults ends all faults and returns them.
func (s *Sandbox) ClearFaults() []Fault {
	return s.gateway.faults.clear(func(*Fault) bool { return true })
}

// AwaitFault waits until a fault has struck so many times, or has ended. It
// returns the error of ctx if that ends first.
func (s *Sandbox) AwaitFault(ctx context.Context, id string, hits int) error {
	t := s.gateway.faults
	for {
		t.mu.Lock()
		i := slices.IndexFunc(t.active, func(f *activeFault) bool { return f.ID == id })
		done := i < 0 || t.active[i].Hits >= hits
		changed := t.changed
		t.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("fault %q: %w", id, context.Cause(ctx))
		}
	}
}
