package inspect

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
)

// Sources are read one after the other, so that a transaction may end, or begin,
// between the listing of transactions and the reading of states. What does not fit
// together is looked at again, transactions first: a record whose owner was not
// found, was looked for, and still is in TX_PENDING after that, is an orphan. The
// end of a transaction may be known a moment before its records are resolved, so
// it takes a few looks, and a moment between them.
const (
	looks     = 3 // before what is found is believed
	mostLooks = 6 // where each finds something new
)

// staging is the records of one owner in one share-partition.
type staging struct {
	key   ShareKey
	where int32 // partition of __share_group_state
	owner owner
}

// owner is who staged records, as states name it.
type owner struct {
	producerID    int64 // -1: could not be decoded
	producerEpoch int16
}

// lookAgain looks at what does not fit together until it fits, or stays.
func (c *collector) lookAgain(ctx context.Context) error {
	s := secondLook{collector: c, idOf: make(map[int64]string), now: make(map[string]*Transaction)}
	lost, doubted := s.unowned(), s.unseen()
	for look := 1; len(lost) > 0 || len(doubted) > 0; look++ {
		if err := s.transactionsOf(ctx, lost, doubted); err != nil {
			return err
		}
		if err := s.statesOf(ctx, lost); err != nil {
			return err
		}
		before := make(map[staging]bool, len(lost))
		for _, g := range lost {
			before[g] = true
		}
		lost, doubted = s.unowned(), nil
		stays := !slices.ContainsFunc(lost, func(g staging) bool { return !before[g] })
		switch {
		case len(lost) == 0:
			return nil
		case stays && look >= looks, c.ownersHidden():
			s.keepEnded(lost)
			return nil
		case look == mostLooks:
			s.keepEnded(lost)
			c.gaps.add(Gap{
				Source: SourceShareGroupState, Advice: "look again",
				Reason: "records became pending and were resolved faster than their owners could be looked for",
			})
			return nil
		}
		if err := pause.For(ctx, backoff(look)); err != nil {
			return err
		}
	}
	return nil
}

// ownersHidden reports whether an owner may be there and not be seen, so that no
// number of looks proves that it is not.
func (c *collector) ownersHidden() bool {
	return slices.ContainsFunc(c.gaps.gaps, func(g Gap) bool {
		switch g.Source {
		case SourceListTransactions, SourceDescribeTransactions:
			return true
		case SourceMetadata:
			return g.Broker != nil // it may be any coordinator
		default:
			return false
		}
	})
}

type secondLook struct {
	*collector
	idOf map[int64]string        // transactional IDs of producers, also former ones
	now  map[string]*Transaction // what was seen last; nil: no coordinator knows the ID
}

// unowned returns the stagings whose owner has no open transaction that could be
// found and fits, sorted.
func (s *secondLook) unowned() []staging {
	open := make(map[int64]*Transaction, len(s.ev.Transactions))
	listed := make(map[int32]bool)
	for i := range s.ev.Transactions {
		t := &s.ev.Transactions[i]
		open[t.ProducerID] = t
		parts, _ := t.StatePartitions()
		for _, p := range parts {
			listed[p] = true
		}
	}
	seen := make(map[staging]bool)
	var out []staging
	for _, st := range s.states() {
		for _, b := range pendingBatches(st.Batches) {
			g := staging{st.Key(), st.StatePartition, owner{b.Staged.ProducerID, b.Staged.ProducerEpoch}}
			if seen[g] {
				continue
			}
			seen[g] = true
			owned := listed[g.where] // of an owner that could not be decoded no more is known
			if g.owner.producerID >= 0 {
				owned = open[g.owner.producerID].holds(g)
			}
			if !owned {
				out = append(out, g)
			}
		}
	}
	return out
}

// holds reports whether the transaction may be the one that staged g: it is being
// ended at that epoch or above, or is open at it and lists the partition. One that
// was described at a lower epoch was described too early.
func (t *Transaction) holds(g staging) bool {
	switch {
	case t == nil:
		return false
	case t.ProducerEpoch < 0 || g.owner.producerEpoch < 0: // not told
		return true
	case t.Preparing():
		return t.ProducerEpoch >= g.owner.producerEpoch
	}
	parts, known := t.StatePartitions()
	return t.ProducerEpoch == g.owner.producerEpoch && (!known || slices.Contains(parts, g.where))
}

// unseen returns the transactions that list a partition in which nothing of them
// is pending: they may have ended.
func (s *secondLook) unseen() []*Transaction {
	type place struct {
		producerID int64
		where      int32
	}
	seen := make(map[place]bool)
	for _, st := range s.states() {
		for _, b := range pendingBatches(st.Batches) {
			seen[place{b.Staged.ProducerID, st.StatePartition}] = true
		}
	}
	var out []*Transaction
	for i := range s.ev.Transactions {
		t := &s.ev.Transactions[i]
		parts, _ := t.StatePartitions()
		if slices.ContainsFunc(parts, func(p int32) bool { return !seen[place{t.ProducerID, p}] }) {
			out = append(out, t)
		}
	}
	return out
}

// transactionsOf looks for the transactions of owners, in whatever state they are,
// and at those in doubt.
func (s *secondLook) transactionsOf(ctx context.Context, lost []staging, doubted []*Transaction) error {
	producers := make(map[int64]bool)
	for _, g := range lost {
		if g.owner.producerID >= 0 {
			producers[g.owner.producerID] = true
		}
	}
	known := s.knownOf(producers)
	for _, t := range doubted {
		known[t.TransactionalID] = t
	}
	if len(producers) > 0 {
		found, gaps, err := ListTransactions(ctx, s.cl, s.brokers, TransactionQuery{ProducerIDs: slices.Sorted(maps.Keys(producers)), Describe: true, Now: s.opts.Now})
		if err != nil {
			return err
		}
		s.gaps.add(gaps...)
		for i := range found {
			t := &found[i]
			s.idOf[t.ProducerID], s.now[t.TransactionalID] = t.TransactionalID, t
			delete(known, t.TransactionalID)
		}
	}
	// One whose producer ID was rotated is not found by it.
	s.describe(ctx, known)
	s.ev.Transactions = s.stillOpen()
	return nil
}

// knownOf returns the transactions that producers have, or had in earlier
// evidence, by transactional ID.
func (s *secondLook) knownOf(producers map[int64]bool) map[string]*Transaction {
	lists := [][]Transaction{s.ev.Transactions}
	if prev := s.opts.Previous; prev != nil && prev.ClusterID == s.ev.ClusterID {
		lists = [][]Transaction{prev.Ended, prev.Transactions, s.ev.Transactions}
	}
	known := make(map[string]*Transaction)
	for _, list := range lists {
		for i := range list {
			if t := &list[i]; producers[t.ProducerID] {
				known[t.TransactionalID] = t
				s.idOf[t.ProducerID] = t.TransactionalID
			}
		}
	}
	return known
}

// describe describes transactions at the coordinators that they had.
func (s *secondLook) describe(ctx context.Context, known map[string]*Transaction) {
	byNode := make(map[int32][]string)
	for id, t := range known {
		node := t.Coordinator
		if !slices.ContainsFunc(s.brokers, func(b cluster.BrokerVersions) bool { return b.NodeID == node }) && len(s.brokers) > 0 {
			node = s.brokers[0].NodeID // which knows who it is
		}
		byNode[node] = append(byNode[node], id)
	}
	var mu sync.Mutex
	d := transactionDescriber{cl: s.cl, brokers: s.brokers, gaps: &s.gaps, took: func(id string, t *Transaction) {
		mu.Lock()
		defer mu.Unlock()
		s.now[id] = t
	}}
	d.describe(ctx, byNode)
}

// stillOpen returns the open transactions by what was seen last, sorted.
func (s *secondLook) stillOpen() []Transaction {
	var out []Transaction
	listed := make(map[string]bool, len(s.ev.Transactions))
	for _, t := range s.ev.Transactions {
		listed[t.TransactionalID] = true
		if now, ok := s.now[t.TransactionalID]; !ok {
			out = append(out, t)
		} else if now != nil && now.Open() {
			out = append(out, *now)
		}
	}
	for id, now := range s.now {
		if !listed[id] && now != nil && now.Open() {
			out = append(out, *now)
		}
	}
	slices.SortFunc(out, func(a, b Transaction) int { return strings.Compare(a.TransactionalID, b.TransactionalID) })
	return out
}

// statesOf reads the states of stagings again: from their share coordinators, or
// from the topic where those do not tell.
func (s *secondLook) statesOf(ctx context.Context, lost []staging) error {
	where := make(map[ShareKey]int32)
	for _, g := range lost {
		where[g.key] = g.where
	}
	told, err := s.askStates(ctx, slices.Collect(maps.Keys(where)))
	if err != nil {
		return err
	}
	var partitions []int32
	for k, p := range where {
		if !told[k] && !slices.Contains(s.unread, p) && !slices.Contains(partitions, p) {
			partitions = append(partitions, p)
		}
	}
	if len(partitions) == 0 || s.topic == nil {
		return nil
	}
	read, err := s.readTopic(ctx, partitions)
	if err != nil {
		return err
	}
	s.gaps.add(read.gaps...)
	for k, p := range where {
		if !told[k] && slices.Contains(partitions, p) && !slices.Contains(read.unread, p) {
			delete(s.asked, k) // the topic is newer
		}
	}
	return nil
}

// keepEnded keeps the transactions that stagings had as owners, as far as it is
// known which. One whose coordinator did not answer is not kept: it may be open.
func (s *secondLook) keepEnded(lost []staging) {
	kept := make(map[int64]bool)
	for _, g := range lost {
		id, ok := s.idOf[g.owner.producerID]
		now, told := s.now[id]
		if !ok || !told || kept[g.owner.producerID] {
			continue
		}
		t := Transaction{TransactionalID: id, State: "Dead", ProducerID: g.owner.producerID, ProducerEpoch: -1, Coordinator: -1, TimeoutMS: -1}
		if now != nil {
			t = *now
		}
		if t.Open() && t.ProducerID == g.owner.producerID && t.ProducerEpoch == g.owner.producerEpoch {
			continue // it does not list the partition, and has not ended
		}
		if t.ProducerID != g.owner.producerID {
			// The ID has got another producer ID since, whose epochs, start and
			// partitions are those of other transactions.
			t.ProducerID, t.ProducerEpoch, t.Started, t.Partitions = g.owner.producerID, -1, time.Time{}, nil
		}
		kept[g.owner.producerID] = true
		s.ev.Ended = append(s.ev.Ended, t)
	}
	slices.SortFunc(s.ev.Ended, func(a, b Transaction) int {
		return cmp.Or(strings.Compare(a.TransactionalID, b.TransactionalID), cmp.Compare(a.ProducerID, b.ProducerID))
	})
}
