package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// What ends TX_PENDING (KIP-1289).
//
// The transaction coordinator tells of each transaction that ended
// (transactionEnded): EndTxn, InitProducerId, WriteTxnMarkers and timeouts. What
// ended while the sandbox was down is told by resume.
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
)

// txnTable knows which transactions hold staged records, and where.
type txnTable struct {
	mu     sync.Mutex
	guards map[string]*txnGuard
	staged map[int64]map[shareStateKey]int // records in TX_PENDING, by producer ID
	owners map[shareStateKey][]int64       // the inverse
	ids    map[int64]string                // transactional ID, by producer ID; of those in staged
}

func (t *txnTable) init() {
	t.guards = make(map[string]*txnGuard)
	t.staged = make(map[int64]map[shareStateKey]int)
	t.owners = make(map[shareStateKey][]int64)
	t.ids = make(map[int64]string)
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

// allKeys lists the share-partitions where anything is staged, in the order of
// their locks.
func (t *txnTable) allKeys() []shareStateKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Keys(t.owners), compareStateKeys)
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

// name notes the transactional ID of a producer that stages records.
func (t *txnTable) name(producerID int64, transactionalID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids[producerID] = transactionalID
}

// forgetName is called when a producer has staged nothing, after all.
func (t *txnTable) forgetName(producerID int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.staged[producerID]) == 0 {
		delete(t.ids, producerID)
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
// until transactionEnded has returned, which does not take it.
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

// endedTxn is the end marker of a transaction.
type endedTxn struct {
	transactionalID string // "" where it is not known, as for WriteTxnMarkers
	producerID      int64
	markerEpoch     int16
	version         int8 // transaction version of the marker
	commit          bool

	statePartitions []int32 // of __share_group_state, that were registered; sorted
	// only restricts it to some of these; nil is all that the producer staged.
	only func(statePartition int32) bool
}

// transactionEnded applies the end marker of a transaction. It returns once the
// marker was applied; what could not be persisted is tried again later. done is
// called when nothing is left to do.
func (p *plane) transactionEnded(_ context.Context, t endedTxn, done func()) {
	matches, ok := p.markerMatch(t.markerEpoch, t.version, t.commit)
	if !ok {
		p.cfg.logf("marker of producer %d, epoch %d: transaction version %d is refused", t.producerID, t.markerEpoch, t.version)
		done()
		return
	}
	p.resolve(marker{t.producerID, matches, t.commit, t.only}, markerRetry, done)
}

// marker says what becomes of which staged records.
type marker struct {
	producerID int64
	matches    func(epoch int16) bool
	commit     bool
	only       func(statePartition int32) bool // nil is all
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

// resolve ends what a producer staged; what it cannot, it tries again after a
// pause.
func (p *plane) resolve(m marker, pause time.Duration, done func()) {
	var ops []*operation
	again := false
	for _, key := range p.txns.keys(m.producerID) {
		if m.only != nil && !m.only(wire.ShareStatePartition(key.group, key.topicID, key.partition, p.co.partitions())) {
			continue
		}
		lp, code := p.leadForMarker(key)
		switch {
		case lp != nil:
		case code == 0: // gone with its topic
			p.txns.dropKey(key)
			continue
		default:
			p.cfg.logf("share-partition %s: marker of producer %d: %s", key, m.producerID, errorName(code))
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
		o.ch = lp.sp.resolve(p.cfg.now(), m.producerID, m.matches, m.commit, lim)
		lp.mu.Unlock()
	}
	p.persist(ops, true)
	for _, o := range ops {
		again = again || o.code != 0
		p.end(o.lp, true)
	}
	if !again {
		done()
		return
	}
	p.after(pause, func() { p.resolve(m, min(2*pause, markerRetryMost), done) })
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

// resume makes good for what happened while the sandbox was down: it brings back
// the groups that have state, and for what is persisted as TX_PENDING finds out
// what became of the transaction. settle finishes the transactions whose end was
// decided, and returns those that are still open. What is left then was never
// committed: it is aborted.
func (p *plane) resume(ctx context.Context, settle func(context.Context) ([]txnState, error)) error {
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
		p.txns.setOwners(k, pendingBatches(st.batches))
	}
	open, err := settle(ctx)
	if err != nil {
		return err
	}
	left, err := p.stagedOwners(ctx)
	if err != nil {
		return err
	}
	for _, st := range open {
		o := owner{st.producerID, st.producerEpoch}
		if left[o] {
			p.txns.name(st.producerID, st.transactionalID)
			delete(left, o)
		}
	}
	for o := range left {
		p.cfg.logf("producer %d, epoch %d: its transaction is gone, what it staged is aborted", o.producerID, o.producerEpoch)
		p.resolve(marker{producerID: o.producerID, matches: func(epoch int16) bool { return epoch == o.producerEpoch }}, markerRetry, func() {})
	}
	return nil
}

// stagedOwners returns who has records persisted as TX_PENDING.
func (p *plane) stagedOwners(ctx context.Context) (map[owner]bool, error) {
	owners := make(map[owner]bool)
	for _, k := range p.txns.allKeys() {
		st, code := p.co.read(ctx, k, -1)
		if code == kerr.UnknownTopicOrPartition.Code {
			continue
		}
		if code != 0 {
			return nil, fmt.Errorf("share-partition %s: read state: %w", k, kerr.ErrorForCode(code))
		}
		for _, r := range pendingBatches(st.batches) {
			owners[r.owner] = true
		}
	}
	return owners, nil
}

// pendingBatches returns the TX_PENDING ranges of persisted batches.
func pendingBatches(batches []wire.StateBatch) []pendingRange {
	var out []pendingRange
	for _, b := range batches {
		if b.DeliveryState == wire.TxPending {
			out = append(out, pendingRange{
				span:    span{b.FirstOffset, b.LastOffset},
				owner:   owner{b.Staged.ProducerID, b.Staged.ProducerEpoch},
				ackType: wire.AcknowledgeType(b.Staged.AcknowledgeType), target: b.Staged.AfterCommit(), deliveryCount: b.DeliveryCount,
			})
		}
	}
	return out
}
