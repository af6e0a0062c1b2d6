package sandbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// What ends TX_PENDING (KIP-1289).
//
// The gateway tells of each transaction that ended while it was looking
// (transactionEnded): EndTxn, InitProducerId, WriteTxnMarkers. What ends without
// a request, by transaction.timeout.ms, is found by a watch on each transaction
// that holds staged records. What ended while the sandbox was down is found by
// resume.
//
// A marker resolves what its producer staged with an epoch that it ends. With
// transaction.version 2 the end of a transaction raises the epoch. A commit has
// the epoch E+1 and commits what was staged with E, nothing older: what an
// earlier transaction left behind is not committed by a later one. An abort has
// E+1, or E+2 from older brokers after a timeout or fencing, and returns
// everything below. With version 0 or 1 marker and stage have the same epoch;
// the drafts refuse such markers.
//
// All share-partitions of a marker are resolved under their op locks and written
// as snapshots with one append. What cannot be written stays pending and is
// tried again, as a transaction coordinator repeats a marker. A marker that
// matches nothing does nothing, so that it may come twice.

const (
	// markerRetry is the first pause before a marker is applied again, and
	// markerRetryMost the longest: each is twice the one before.
	markerRetry     = 100 * time.Millisecond
	markerRetryMost = 10 * time.Second
	// watchFirst is when a transaction is first looked at. Most have ended by
	// then, and cost nothing.
	watchFirst = time.Second
	// watchRetry is the pause between looks at a transaction that is overdue,
	// or cannot be described.
	watchRetry = 200 * time.Millisecond
	// watchLongest bounds the time between two looks.
	watchLongest = time.Minute
)

// txnTable knows which transactions hold staged records, and where.
type txnTable struct {
	mu      sync.Mutex
	guards  map[string]*txnGuard
	staged  map[int64]map[shareStateKey]int // records in TX_PENDING, by producer ID
	owners  map[shareStateKey][]int64       // the inverse
	ids     map[int64]string                // transactional ID, by producer ID; of those in staged
	watches map[string]*txnWatch            // by transactional ID
	closed  bool
}

func (t *txnTable) init() {
	t.guards = make(map[string]*txnGuard)
	t.staged = make(map[int64]map[shareStateKey]int)
	t.owners = make(map[shareStateKey][]int64)
	t.ids = make(map[int64]string)
	t.watches = make(map[string]*txnWatch)
}

// setOwners notes what is pending on a share-partition, in place of what was
// noted before.
func (t *txnTable) setOwners(key shareStateKey, pending []pendingRange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.owners[key]
	delete(t.owners, key)
	for _, id := range before {
		delete(t.staged[id], key)
	}
	for _, r := range pending {
		if t.staged[r.producerID] == nil {
			t.staged[r.producerID] = make(map[shareStateKey]int)
		}
		if t.staged[r.producerID][key] == 0 {
			t.owners[key] = append(t.owners[key], r.producerID)
		}
		t.staged[r.producerID][key] += int(r.last - r.first + 1)
	}
	for _, id := range before {
		if len(t.staged[id]) == 0 {
			delete(t.staged, id)
			delete(t.ids, id)
		}
	}
}

// dropKey forgets what was pending on a share-partition.
func (t *txnTable) dropKey(key shareStateKey) { t.setOwners(key, nil) }

// keys lists the share-partitions where a producer has records staged, in the
// order of their locks.
func (t *txnTable) keys(producerID int64) []shareStateKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := make([]shareStateKey, 0, len(t.staged[producerID]))
	for k := range t.staged[producerID] {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareStateKeys)
	return keys
}

func (t *txnTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, keys := range t.staged {
		for _, records := range keys {
			n += records
		}
	}
	return n
}

// idOf returns the transactional ID of a producer that has records staged, ""
// if it is not known.
func (t *txnTable) idOf(producerID int64) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ids[producerID]
}

func (t *txnTable) stopTimers() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, w := range t.watches {
		w.timer.Stop()
	}
}

// pendingCount returns the number of records in TX_PENDING, as
// TxnPendingRecordsCount does, over all brokers.
func (p *plane) pendingCount() int { return p.txns.count() }

// txnGuard is the lock of one transaction.
type txnGuard struct {
	held  chan struct{}
	users int
}

// transactionGuard locks a transaction against being ended while something is
// staged in it, and the other way round. Who ends a transaction holds the guard
// until transactionEnded, or transactionUnresolved, has returned; these two do
// not take it.
func (p *plane) transactionGuard(transactionalID string) (unlock func()) {
	t := &p.txns
	t.mu.Lock()
	g := t.guards[transactionalID]
	if g == nil {
		g = &txnGuard{held: make(chan struct{}, 1)}
		t.guards[transactionalID] = g
	}
	g.users++
	t.mu.Unlock()
	g.held <- struct{}{}
	return func() {
		<-g.held
		t.mu.Lock()
		defer t.mu.Unlock()
		if g.users--; g.users == 0 {
			delete(t.guards, transactionalID)
		}
	}
}

// transactionEnded applies the end marker of a transaction. The transactional
// ID may be "" where it is not known, as for WriteTxnMarkers. It returns once
// the marker was applied; what could not be persisted is tried again later.
func (p *plane) transactionEnded(_ context.Context, transactionalID string, producerID int64, markerEpoch int16, transactionVersion int8, commit bool) {
	matches, ok := p.markerMatch(markerEpoch, transactionVersion, commit)
	if !ok {
		p.cfg.logf("marker of producer %d, epoch %d: transaction version %d is refused", producerID, markerEpoch, transactionVersion)
		return
	}
	p.unwatchTransaction(transactionalID, producerID, matches)
	p.resolve(producerID, matches, commit, markerRetry)
}

// markerMatch returns which staged epochs a marker ends; false if the marker has
// to be refused (UNSUPPORTED_VERSION).
func (p *plane) markerMatch(markerEpoch int16, transactionVersion int8, commit bool) (func(int16) bool, bool) {
	switch {
	case transactionVersion >= 2 && commit:
		return func(staged int16) bool { return staged == markerEpoch-1 }, true
	case transactionVersion >= 2:
		return func(staged int16) bool { return staged < markerEpoch }, true
	case p.cfg.dialect.Layout == wire.ResponseWithLeader:
		return func(staged int16) bool { return staged == markerEpoch }, true
	}
	return nil, false
}

// transactionUnresolved tells that a transaction has ended but that its marker
// does not come, or later: its records stay TX_PENDING, and the watch that
// would find the end leaves them alone.
func (p *plane) transactionUnresolved(transactionalID string) {
	p.unwatchTransaction(transactionalID, -1, func(int16) bool { return true })
}

// resolve ends what a producer staged with epochs that match; what it cannot, it
// tries again after a pause.
func (p *plane) resolve(producerID int64, matches func(int16) bool, commit bool, pause time.Duration) {
	var ops []*operation
	again := false
	for _, key := range p.txns.keys(producerID) {
		lp, code := p.leadForMarker(key)
		switch {
		case lp != nil:
		case code == 0: // gone with its topic
			p.txns.dropKey(key)
			continue
		default:
			p.cfg.logf("share-partition %s: marker of producer %d: %s", key, producerID, errorName(code))
			again = true
			continue
		}
		if p.begin(p.ctx, lp) != 0 {
			again = true // another leader came between
			continue
		}
		o := &operation{lp: lp, pending: true}
		ops = append(ops, o)
		lim := p.limits(key.group)
		lp.mu.Lock()
		o.ch = lp.sp.resolve(p.cfg.now(), producerID, matches, commit, lim)
		lp.mu.Unlock()
	}
	p.persist(ops, true)
	for _, o := range ops {
		again = again || o.code != 0
		p.end(o.lp, true)
	}
	if again {
		p.after(pause, func() { p.resolve(producerID, matches, commit, min(2*pause, markerRetryMost)) })
	}
}

// leadForMarker returns the leader's hold of a share-partition, whoever leads;
// nil and 0 if the topic is gone.
func (p *plane) leadForMarker(key shareStateKey) (*leaderPartition, int16) {
	topic, ok := p.k.topicByID(key.topicID)
	if !ok {
		return nil, 0
	}
	lp, code := p.lead(p.ctx, key, topic.name, -1)
	if code != 0 {
		return nil, code
	}
	return lp, 0
}

// Transactions that end without a request

// txnWatch looks after a transaction that has records staged.
type txnWatch struct {
	transactionalID string
	owner
	timer *time.Timer
}

// watchTransaction makes sure that the end of a transaction is noticed.
func (p *plane) watchTransaction(transactionalID string, o owner) {
	t := &p.txns
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids[o.producerID] = transactionalID
	old := t.watches[transactionalID]
	if t.closed || old != nil && old.owner == o {
		return
	}
	if old != nil {
		old.timer.Stop()
	}
	w := &txnWatch{transactionalID: transactionalID, owner: o}
	w.timer = p.after(watchFirst, func() { p.lookAtTransaction(w) })
	t.watches[transactionalID] = w
}

// unwatchTransaction ends the watch on a transaction, of any epoch that matches.
// Without a transactional ID it is found by the producer.
func (p *plane) unwatchTransaction(transactionalID string, producerID int64, matches func(int16) bool) {
	t := &p.txns
	t.mu.Lock()
	defer t.mu.Unlock()
	if transactionalID == "" {
		transactionalID = t.ids[producerID]
	}
	w := t.watches[transactionalID]
	if w == nil || !matches(w.producerEpoch) {
		return
	}
	w.timer.Stop()
	delete(t.watches, transactionalID)
	if len(t.staged[w.producerID]) == 0 {
		delete(t.ids, w.producerID)
	}
}

// current reports whether w is still the watch on its transaction.
func (t *txnTable) current(w *txnWatch) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.watches[w.transactionalID] == w
}

// lookAtTransaction aborts what a transaction staged if it has timed out.
func (p *plane) lookAtTransaction(w *txnWatch) {
	unlock := p.transactionGuard(w.transactionalID)
	defer unlock()
	if !p.txns.current(w) {
		return
	}
	if len(p.txns.keys(w.producerID)) == 0 {
		p.unwatchTransaction(w.transactionalID, w.producerID, func(e int16) bool { return e == w.producerEpoch })
		return
	}
	st, known, err := p.k.describeTransaction(p.ctx, w.transactionalID)
	switch {
	case err != nil:
		p.cfg.logf("watch: %v", err)
		w.timer.Reset(watchRetry)
	case known && st.producerID == w.producerID && st.producerEpoch == w.producerEpoch && !ended(st.state):
		w.timer.Reset(min(max(st.start.Add(st.timeout).Sub(p.cfg.now()), watchRetry), watchLongest))
	default:
		epoch := w.producerEpoch + 1
		if known && st.producerID == w.producerID {
			epoch = max(epoch, st.producerEpoch)
		}
		p.cfg.logf("transaction %q of producer %d, epoch %d: timed out", w.transactionalID, w.producerID, w.producerEpoch)
		p.transactionEnded(p.ctx, w.transactionalID, w.producerID, epoch, 2, false)
	}
}

// ended reports whether a transaction in that state has been decided and done.
func ended(state string) bool {
	switch state {
	case "Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence":
		return false
	}
	return true
}

// resume makes good for what happened while the sandbox was down: it brings back
// the groups that have state, and for what is persisted as TX_PENDING finds out
// what became of the transaction. One that is still open is watched. For the
// others the share coordinator has applied the end markers that it met while it
// loaded, so what is left was never committed: it is aborted.
func (p *plane) resume(ctx context.Context) error {
	staged := make(map[owner]bool)
	for _, k := range p.co.keys() {
		if p.group(k.group) == nil {
			p.createGroup(ctx, k.group)
		}
		if !p.cfg.persistPending {
			continue
		}
		st, code := p.co.read(ctx, k, -1)
		if code == kerr.UnknownTopicOrPartition.Code {
			continue // gone with its topic
		}
		if code != 0 {
			return fmt.Errorf("share-partition %s: read state: %w", k, kerr.ErrorForCode(code))
		}
		pending := pendingBatches(st.batches)
		for _, r := range pending {
			staged[r.owner] = true
		}
		p.txns.setOwners(k, pending)
	}
	if len(staged) == 0 {
		return nil
	}
	open, err := p.k.listTransactions(ctx)
	if err != nil {
		return err
	}
	for _, st := range open {
		o := owner{st.producerID, st.producerEpoch}
		if staged[o] {
			p.watchTransaction(st.transactionalID, o)
			delete(staged, o)
		}
	}
	for o := range staged {
		p.cfg.logf("producer %d, epoch %d: its transaction is gone, what it staged is aborted", o.producerID, o.producerEpoch)
		p.resolve(o.producerID, func(epoch int16) bool { return epoch == o.producerEpoch }, false, markerRetry)
	}
	return nil
}

// pendingBatches returns the TX_PENDING ranges of persisted batches.
func pendingBatches(batches []wire.StateBatch) []pendingRange {
	var out []pendingRange
	for _, b := range batches {
		if b.DeliveryState == wire.TxPending {
			out = append(out, pendingRange{
				span:  span{b.FirstOffset, b.LastOffset},
				owner: owner{b.Staged.ProducerID, b.Staged.ProducerEpoch},
			})
		}
	}
	return out
}
