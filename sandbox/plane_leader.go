package sandbox

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// leaderPartition is a share-partition in the hands of the leader of its
// partition: the state machine, and what has to happen around it. It lives as
// long as the leader epoch; a new leader starts over from the persisted state.
//
// An operation goes: take op, change the state under mu, persist the change,
// take it back if that failed, leave op. So a change is undone before any
// other sees it, and readers that need no more than memory wait for nobody.
type leaderPartition struct {
	key         shareStateKey
	topic       string
	leader      int32
	leaderEpoch int32

	ready chan struct{} // closed when loading ended
	code  int16         // why loading failed; set before ready is closed

	op   chan struct{} // held for an operation, during its write
	read chan struct{} // held while reading the log and acquiring from it

	window *logWindow // guarded by read

	mu         sync.Mutex
	sp         *sharePartition
	stateEpoch int32
	retired    bool // another leader, or none, has the share-partition now
	pending    int  // records in TX_PENDING
	waiters    map[*fetchWaiter]struct{}
	timer      *time.Timer // fires when the first acquisition lock expires
	timerAt    time.Time   // zero: not running
	metrics    leaderMetrics
}

// compareStateKeys orders share-partitions; op locks are taken in this order.
func compareStateKeys(a, b shareStateKey) int {
	return cmp.Or(
		strings.Compare(a.group, b.group),
		slices.Compare(a.topicID[:], b.topicID[:]),
		cmp.Compare(a.partition, b.partition))
}

// topicIDText returns a topic ID in Kafka's text form.
func topicIDText(id [16]byte) string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// lead returns the leader's hold of a share-partition, loading it if need be.
// The code is NOT_LEADER_OR_FOLLOWER if broker does not lead the partition,
// UNKNOWN_TOPIC_OR_PARTITION if there is none, or why loading failed. A broker
// of -1 stands for whichever leads.
func (p *plane) lead(ctx context.Context, key shareStateKey, topic string, broker int32) (*leaderPartition, int16) {
	for {
		info, ok := p.k.partition(topic, key.partition)
		if !ok {
			return nil, kerr.UnknownTopicOrPartition.Code
		}
		if broker >= 0 && info.leader != broker {
			return nil, kerr.NotLeaderForPartition.Code
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, kerr.NotLeaderForPartition.Code
		}
		lp := p.leads[key]
		if lp != nil && lp.leaderEpoch == info.leaderEpoch {
			p.mu.Unlock()
			select {
			case <-lp.ready:
				return lp, lp.code
			case <-ctx.Done():
				return nil, kerr.NotLeaderForPartition.Code
			}
		}
		if lp != nil && lp.leaderEpoch > info.leaderEpoch {
			p.mu.Unlock()
			continue // the leader moved since we asked
		}
		fresh := &leaderPartition{
			key: key, topic: topic, leader: info.leader, leaderEpoch: info.leaderEpoch,
			ready: make(chan struct{}), op: make(chan struct{}, 1), read: make(chan struct{}, 1),
			waiters: make(map[*fetchWaiter]struct{}),
		}
		p.leads[key] = fresh
		log := logKey{topic, key.partition}
		if p.logs[log] == nil {
			p.logs[log] = make(map[*leaderPartition]struct{})
		}
		p.logs[log][fresh] = struct{}{}
		p.mu.Unlock()
		if lp != nil {
			p.retire(lp)
		}
		fresh.code = p.measuredLoad(fresh)
		if fresh.code != 0 {
			p.forget(fresh)
		}
		close(fresh.ready)
		return fresh, fresh.code
	}
}

// loaded returns the leader's hold of a share-partition only if it is there
// already and of the current leader epoch.
func (p *plane) loaded(key shareStateKey, topic string, broker int32) (*leaderPartition, int16) {
	info, ok := p.k.partition(topic, key.partition)
	if !ok {
		return nil, kerr.UnknownTopicOrPartition.Code
	}
	if info.leader != broker {
		return nil, kerr.NotLeaderForPartition.Code
	}
	p.mu.Lock()
	lp := p.leads[key]
	p.mu.Unlock()
	if lp == nil || lp.leaderEpoch != info.leaderEpoch {
		return nil, kerr.UnknownTopicOrPartition.Code
	}
	<-lp.ready
	return lp, lp.code
}

// forget drops lp from the table, so that its next use loads it anew.
func (p *plane) forget(lp *leaderPartition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leads[lp.key] == lp {
		delete(p.leads, lp.key)
	}
	log := logKey{lp.topic, lp.key.partition}
	delete(p.logs[log], lp)
	if len(p.logs[log]) == 0 {
		delete(p.logs, log)
	}
}

// retire ends lp: operations that come later find it retired, waiting fetches
// wake up. It returns once no operation runs.
func (p *plane) retire(lp *leaderPartition) {
	<-lp.ready
	lp.op <- struct{}{}
	defer func() { <-lp.op }()
	p.retireLocked(lp)
}

// retireLocked is retire for the holder of op.
func (p *plane) retireLocked(lp *leaderPartition) {
	p.forget(lp)
	lp.mu.Lock()
	lp.retired = true
	lp.pending = 0
	if lp.timer != nil {
		lp.timer.Stop()
	}
	lp.wakeLocked()
	lp.mu.Unlock()
	if !p.cfg.persistPending {
		p.txns.dropKey(lp.key) // what was staged is known nowhere else
	}
}

// drop forgets a share-partition whose persisted state was replaced or removed.
func (p *plane) drop(key shareStateKey) {
	p.mu.Lock()
	lp := p.leads[key]
	p.mu.Unlock()
	if lp != nil {
		p.retire(lp)
	}
	p.txns.dropKey(key)
}

// load reads the persisted state of a share-partition as its leader.
func (p *plane) load(lp *leaderPartition) int16 {
	st, code := p.co.read(p.ctx, lp.key, lp.leaderEpoch)
	if code != 0 {
		return leaderCode(code)
	}
	if !p.cfg.persistPending {
		// Left by a run that did persist it.
		for i := range st.batches {
			if b := &st.batches[i]; b.DeliveryState == wire.TxPending {
				b.DeliveryState, b.Staged = wire.Available, wire.NoStagedOwner()
			}
		}
	}
	lp.stateEpoch = st.stateEpoch
	if st.startOffset < 0 {
		start, err := p.resetOffset(lp)
		if err != nil {
			p.cfg.logf("share-partition %s: reset offset: %v", lp.key, err)
			return kerr.UnknownServerError.Code
		}
		code := p.co.write(p.ctx, []shareStateWrite{{
			shareStateKey: lp.key, stateEpoch: lp.stateEpoch, leaderEpoch: lp.leaderEpoch,
			startOffset: start, deliveryCompleteCount: 0,
		}})[0]
		if code != 0 {
			return leaderCode(code)
		}
		st.startOffset = start
	}
	lp.mu.Lock()
	lp.sp = newSharePartition(st, p.cfg.dialect)
	p.recountPending(lp)
	lp.mu.Unlock()
	return 0
}

// resetOffset returns where a share-partition starts that has no start offset.
func (p *plane) resetOffset(lp *leaderPartition) (int64, error) {
	info, ok := p.k.partition(lp.topic, lp.key.partition)
	if !ok {
		return 0, fmt.Errorf("partition %s-%d is gone", lp.topic, lp.key.partition)
	}
	reset := p.k.groupConfig(lp.key.group, "share.auto.offset.reset")
	switch {
	case reset == "earliest":
		return info.logStartOffset, nil
	case strings.HasPrefix(reset, "by_duration:"):
		d, err := parseISODuration(strings.TrimPrefix(reset, "by_duration:"))
		if err != nil {
			return 0, fmt.Errorf("share.auto.offset.reset: %w", err)
		}
		at, err := p.k.offsetForTime(p.ctx, lp.topic, lp.key.partition, p.cfg.now().Add(-d))
		if err != nil {
			return 0, err
		}
		if at >= 0 {
			return at, nil
		}
	}
	return info.highWatermark, nil
}

// parseISODuration parses a duration as java.time.Duration writes it, such as
// "PT1H30M" or "P2DT0.5S".
func parseISODuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not an ISO-8601 duration", s)
	rest, ok := strings.CutPrefix(strings.ToUpper(s), "P")
	if !ok || rest == "" {
		return 0, bad
	}
	var total float64
	inTime := false
	units := "DHMS" // those that may still follow, in this order
	for rest != "" {
		if !inTime && rest[0] == 'T' {
			inTime, rest = true, rest[1:]
			if rest == "" {
				return 0, bad
			}
			continue
		}
		i := strings.IndexAny(rest, "DHMS")
		if i < 1 {
			return 0, bad
		}
		at := strings.IndexByte(units, rest[i])
		if at < 0 || (rest[i] == 'D') == inTime {
			return 0, bad
		}
		n, err := strconv.ParseFloat(rest[:i], 64)
		if err != nil || rest[i] != 'S' && strings.ContainsAny(rest[:i], ".eE") {
			return 0, bad
		}
		unit := map[byte]time.Duration{'D': 24 * time.Hour, 'H': time.Hour, 'M': time.Minute, 'S': time.Second}[rest[i]]
		total += n * float64(unit)
		units, rest = units[at+1:], rest[i+1:]
	}
	return time.Duration(total), nil
}

// String names a share-partition as the share coordinator's key does.
func (k shareStateKey) String() string {
	return wire.ShareCoordinatorKey(k.group, k.topicID, k.partition)
}

// leaderCode is what the leader answers when the share coordinator answered it
// with code.
func leaderCode(code int16) int16 {
	switch code {
	case 0, kerr.GroupIDNotFound.Code, kerr.UnknownTopicOrPartition.Code:
		return code
	case kerr.CoordinatorLoadInProgress.Code, kerr.CoordinatorNotAvailable.Code, kerr.NotCoordinator.Code:
		return kerr.CoordinatorNotAvailable.Code
	case kerr.FencedLeaderEpoch.Code, kerr.FencedStateEpoch.Code:
		return kerr.NotLeaderForPartition.Code
	}
	return kerr.UnknownServerError.Code
}

// begin takes op; the code says why it could not. The caller must end.
func (p *plane) begin(ctx context.Context, lp *leaderPartition) int16 {
	select {
	case lp.op <- struct{}{}:
	case <-ctx.Done():
		return kerr.RequestTimedOut.Code
	}
	lp.mu.Lock()
	retired := lp.retired
	lp.mu.Unlock()
	if retired {
		<-lp.op
		return kerr.NotLeaderForPartition.Code
	}
	return 0
}

// end leaves op. It sets the lock timer anew and wakes the fetches that wait
// when the operation may have made records available.
func (p *plane) end(lp *leaderPartition, wake bool) {
	lp.mu.Lock()
	p.armLocked(lp)
	if wake {
		lp.wakeLocked()
	}
	lp.mu.Unlock()
	<-lp.op
}

// operation is a change to one share-partition on its way to be persisted.
type operation struct {
	lp   *leaderPartition
	ch   change
	code int16 // of the change, then of its write

	// keep leaves the change in place when its write failed: what happened
	// by the clock has happened.
	keep bool
	// pending says that the change may have to do with TX_PENDING.
	pending bool
}

// persist writes the changes with one append. What could not be written is
// undone, its code set. The caller holds op of all.
func (p *plane) persist(ops []*operation, snapshot bool) {
	defer func() {
		for _, o := range ops {
			o.lp.mu.Lock()
			if o.pending && !o.lp.retired {
				p.recountPending(o.lp)
			}
			o.lp.mu.Unlock()
		}
	}()
	var (
		writes []shareStateWrite
		of     []*operation
	)
	for _, o := range ops {
		if o.code != 0 || len(o.ch.batches) == 0 {
			continue
		}
		batches := o.ch.batches
		if !p.cfg.persistPending {
			batches = slices.DeleteFunc(slices.Clone(batches), func(b wire.StateBatch) bool { return b.DeliveryState == wire.TxPending })
			if len(batches) == 0 {
				continue
			}
		}
		o.lp.mu.Lock()
		w := shareStateWrite{
			shareStateKey: o.lp.key, stateEpoch: o.lp.stateEpoch, leaderEpoch: o.lp.leaderEpoch,
			startOffset: o.lp.sp.startOffset(), deliveryCompleteCount: o.lp.sp.deliveryCompleteCount(),
			batches: batches, snapshot: snapshot,
		}
		o.lp.mu.Unlock()
		writes, of = append(writes, w), append(of, o)
	}
	if len(writes) == 0 {
		return
	}
	codes := p.co.write(p.ctx, writes)
	for i, o := range of {
		code := codes[i]
		if code == 0 {
			continue
		}
		p.cfg.logf("share-partition %s: write state: %s", o.lp.key, errorName(code))
		o.code = leaderCode(code)
		if !o.keep {
			o.lp.mu.Lock()
			o.ch.undo()
			o.lp.mu.Unlock()
		}
		if o.code == kerr.NotLeaderForPartition.Code {
			// Someone newer owns the state: what we hold is not it.
			p.retireLocked(o.lp)
		}
	}
}

// recountPending counts the TX_PENDING records of lp, whose mutex the caller
// holds, and tells the transaction table who owns them.
func (p *plane) recountPending(lp *leaderPartition) {
	pending := lp.sp.pending()
	lp.pending = 0
	for _, r := range pending {
		lp.pending += int(r.last - r.first + 1)
	}
	p.txns.setOwners(lp.key, pending)
	p.settleLocks(lp, pending, p.cfg.now())
}

// Acquisition locks

// armLocked sets the timer to the first lock that expires. A timer that fires
// too early does no harm and sets itself anew, so it is only ever advanced.
func (p *plane) armLocked(lp *leaderPartition) {
	if lp.sp == nil || lp.retired {
		return
	}
	at, ok := lp.sp.nextExpiry()
	if !ok || !lp.timerAt.IsZero() && !at.Before(lp.timerAt) {
		return
	}
	lp.timerAt = at
	d := at.Sub(p.cfg.now())
	if lp.timer == nil {
		lp.timer = p.after(d, func() { p.expireLocks(lp, p.cfg.now()) })
		return
	}
	lp.timer.Reset(max(d, 0))
}

// expireLocks releases the records whose acquisition lock has run out by now.
func (p *plane) expireLocks(lp *leaderPartition, now time.Time) {
	if p.begin(p.ctx, lp) != 0 {
		return
	}
	o := &operation{lp: lp, keep: true}
	lp.mu.Lock()
	lp.timerAt = time.Time{}
	o.ch = p.expire(lp, now)
	lp.mu.Unlock()
	p.persist([]*operation{o}, false)
	p.end(lp, true)
}

// longestLock is longer than any acquisition lock.
const longestLock = 24 * time.Hour

func (lp *leaderPartition) stopTimer() {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	if lp.timer != nil {
		lp.timer.Stop()
	}
}

// releaseSession makes the records available again that the member of an ended
// session holds on the partitions of that session.
func (p *plane) releaseSession(s *shareSession) {
	var leads []*leaderPartition
	p.mu.Lock()
	for _, sp := range s.list() {
		if lp := p.leads[shareStateKey{s.key.group, sp.topicID, sp.partition}]; lp != nil && lp.leader == s.key.broker {
			leads = append(leads, lp)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(leads, func(a, b *leaderPartition) int { return compareStateKeys(a.key, b.key) })
	lim := p.limits(s.key.group)
	var ops []*operation
	for _, lp := range leads {
		<-lp.ready
		if lp.code != 0 || p.begin(p.ctx, lp) != 0 {
			continue
		}
		o := &operation{lp: lp}
		ops = append(ops, o)
		lp.mu.Lock()
		o.ch = lp.sp.release(p.cfg.now(), s.key.member, lim)
		lp.mu.Unlock()
	}
	p.persist(ops, false)
	for _, o := range ops {
		p.end(o.lp, true)
	}
}

// Waiting fetches

// fetchWaiter is a ShareFetch that waits for records.
type fetchWaiter struct {
	woken chan struct{} // holds one token
}

func newFetchWaiter() *fetchWaiter { return &fetchWaiter{woken: make(chan struct{}, 1)} }

// wake makes the fetch look again.
func (w *fetchWaiter) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// watch makes w hear of what changes on the share-partitions of targets.
func (p *plane) watch(w *fetchWaiter, targets []*fetchTarget) {
	for _, t := range targets {
		t.lp.mu.Lock()
		t.lp.waiters[w] = struct{}{}
		t.lp.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits[w] = struct{}{}
}

// unwatch ends watch.
func (p *plane) unwatch(w *fetchWaiter, targets []*fetchTarget) {
	for _, t := range targets {
		t.lp.mu.Lock()
		delete(t.lp.waiters, w)
		t.lp.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waits, w)
}

// wake makes the fetches that wait on the share-partition look again.
func (lp *leaderPartition) wake() {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	lp.wakeLocked()
}

func (lp *leaderPartition) wakeLocked() {
	for w := range lp.waiters {
		w.wake()
	}
}
