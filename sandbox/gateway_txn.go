package sandbox

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// InitProducerId: v0-5; EndTxn: v0-5; WriteTxnMarkers: v0-2; AddPartitionsToTxn,
// AddOffsetsToTxn, TxnOffsetCommit: as kfake
//
// Behavior:
//   - what ends a transaction is first written to the transaction log, then done
//     in kfake, then told to the share plane, all under the guard of the
//     transactional ID: nothing is staged in between. The client has its answer
//     when all is done; a broker answers when the decision is logged, and writes
//     the markers after that. What a crash interrupts is finished at the next
//     start, as it was decided: see txn_recovery.go
//   - what could not be applied yet leaves the transaction in PrepareCommit or
//     PrepareAbort; its producer gets CONCURRENT_TRANSACTIONS until it is
//   - the epoch of a marker is one above that of the producer with transaction
//     version 2, and when a transaction is fenced; else it is the same
//   - an EndTxn that finds no open transaction is answered here, by what the log
//     says of the last one: the same decision again is a success
//   - kfake is told the longest transaction timeout that it allows; those that
//     clients ask for are enforced here: see txn_sweeper.go
//
// Version notes:
//   - EndTxn v5 is a client of transaction version 2 (KIP-890)
//   - WriteTxnMarkers v2 carries the transaction version (KIP-1228)
//
// Where we differ from a broker:
//   - kfake looks a producer up by its ID alone. The transactional ID is
//     compared here.
//   - In the drafts a marker of a transaction version below 2 is refused by
//     __share_group_state. A transaction with share acknowledgements that is
//     ended by EndTxn v4 or older is then stuck in PrepareCommit or PrepareAbort
//     for ever. We answer such an EndTxn with UNSUPPORTED_VERSION and leave the
//     transaction as it is.
//   - A producer ID is given up one epoch early: see exhaustedEpoch.
//   - Mostly a transaction goes from Ongoing to CompleteCommit or CompleteAbort
//     at once.

// endTxnBumpsEpoch is the first version of EndTxn that belongs to transaction
// version 2.
const endTxnBumpsEpoch = 5

// exhaustedEpoch is the first producer epoch that no client gets. kfake gives a
// producer a new ID after it; but when a transaction times out at this epoch, it
// loops for ever and takes all memory. So the gateway makes kfake change the ID
// before a client has seen the epoch, and refuses it to those that guess it.
const exhaustedEpoch = math.MaxInt16 - 1

// usesExhaustedEpoch reports whether a request could open a transaction at such
// an epoch. Produce has its own check.
func usesExhaustedEpoch(req kmsg.Request) bool {
	switch req := req.(type) {
	case *kmsg.AddPartitionsToTxnRequest:
		return req.ProducerEpoch >= exhaustedEpoch || slices.ContainsFunc(req.Transactions, func(t kmsg.AddPartitionsToTxnRequestTransaction) bool {
			return t.ProducerEpoch >= exhaustedEpoch
		})
	case *kmsg.AddOffsetsToTxnRequest:
		return req.ProducerEpoch >= exhaustedEpoch
	case *kmsg.TxnOffsetCommitRequest:
		return req.ProducerEpoch >= exhaustedEpoch
	}
	return false
}

// freshProducer returns the producer that a client gets to use next: the one
// that kfake says, or that with a new ID if its epochs are used up.
func (g *gateway) freshProducer(id string, producerID int64, epoch int16) (int64, int16, error) {
	if epoch < exhaustedEpoch {
		return producerID, epoch, nil
	}
	req := kmsg.NewPtrEndTxnRequest() // of a transaction without anything: raises the epoch
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = endTxnBumpsEpoch, id, producerID, epoch
	resp, err := call[*kmsg.EndTxnResponse](g.ctx, g.kafka.client, g.kafka.coordinator(id), req)
	if err == nil {
		err = codeError(resp.ErrorCode)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("new producer ID for %q: %w", id, err)
	}
	return resp.ProducerID, resp.ProducerEpoch, nil
}

// markersNeedVersion2 reports whether a marker of a lower transaction version
// cannot resolve what was staged.
func (g *gateway) markersNeedVersion2() bool { return g.dialect.Key > maxStockKey }

func (c *gatewayConn) handleInitProducerID(r *request, req *kmsg.InitProducerIDRequest) error {
	if req.TransactionalID == nil {
		return c.pass(r)
	}
	id := *req.TransactionalID
	unlock := c.g.plane.transactionGuard(id)
	defer unlock()
	before, known, err := c.g.kafka.describeTransaction(c.g.ctx, id)
	if err != nil {
		return err
	}
	last, _ := c.g.txns.get(id)
	if c.g.forgotten(id) {
		// What it staged is nobody's now: kfake ends the rest.
		known, last = false, txnRecord{}
		defer c.g.remembers(id)
	}
	longest := c.g.longestTxnTimeout()
	var code int16
	switch {
	case req.ProducerID >= 0 && (!known || before.producerID != req.ProducerID):
		code = kerr.InvalidProducerIDMapping.Code
	case req.TransactionTimeoutMillis <= 0 || req.TransactionTimeoutMillis > longest:
		code = kerr.InvalidTransactionTimeout.Code
	case known && last.prepared():
		code = kerr.ConcurrentTransactions.Code
	}
	code = c.refuseTxn(r, id, code)
	open := code == 0 && known && (before.state == txnOngoing || last.AbortOnly && last.is(before.producerID, before.producerEpoch))
	if open {
		code = c.g.decide(last, before, before.producerEpoch+1, false)
	}
	if code != 0 {
		return c.respond(r, refusedInit(req, code))
	}
	timeout := req.TransactionTimeoutMillis
	req.TransactionTimeoutMillis = longest
	answered := false
	err = c.exchange(r, req, appendRequest(nil, r, req), func(resp kmsg.Response) error {
		answered = true
		init := resp.(*kmsg.InitProducerIDResponse)
		if init.ErrorCode != 0 {
			if open {
				c.g.txns.note(last)
			}
			return c.respond(r, init)
		}
		init.ProducerID, init.ProducerEpoch, err = c.g.freshProducer(id, init.ProducerID, init.ProducerEpoch)
		if err != nil {
			return err
		}
		fresh := txnRecord{TransactionalID: id, ProducerID: init.ProducerID, ProducerEpoch: init.ProducerEpoch, State: txnEmpty, TimeoutMs: timeout}
		if !open {
			c.g.txns.note(fresh)
			return c.respond(r, init)
		}
		// Who fences is the coordinator, in the transaction version of the
		// cluster.
		version := int8(c.g.features.level(wire.FeatureTransactionVersion))
		c.g.ended(endedTxn{
			transactionalID: id, producerID: before.producerID, markerEpoch: before.producerEpoch + 1, version: version,
			statePartitions: before.statePartitions,
		}, func() { c.g.txns.note(fresh) })
		if now, _ := c.g.txns.get(id); now.prepared() {
			return c.respond(r, refusedInit(req, kerr.ConcurrentTransactions.Code))
		}
		return c.respond(r, init)
	})
	if open && !answered {
		return errors.Join(err, c.g.finishDecided(id))
	}
	return err
}

func refusedInit(req *kmsg.InitProducerIDRequest, code int16) *kmsg.InitProducerIDResponse {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = code, -1, -1
	return resp
}

// longestTxnTimeout is transaction.max.timeout.ms.
func (g *gateway) longestTxnTimeout() int32 {
	return int32(parseConfigInt(g.kafka.brokerConfig("transaction.max.timeout.ms"), defaultMaxTxnTimeoutMs))
}

const defaultMaxTxnTimeoutMs = 900_000

// decide writes down how an open transaction ends, before anything is done about
// it. next is the producer's epoch after that.
func (g *gateway) decide(last txnRecord, open txnState, next int16, commit bool) int16 {
	r := txnRecord{
		TransactionalID: open.transactionalID, ProducerID: open.producerID, ProducerEpoch: open.producerEpoch,
		State: prepare(commit), NextEpoch: next, TimeoutMs: last.TimeoutMs, StatePartitions: open.statePartitions,
	}
	if !open.start.IsZero() {
		r.StartMs = open.start.UnixMilli()
	}
	if err := g.txns.put(r); err != nil {
		g.txns.note(last) // which says why
		return kerr.CoordinatorNotAvailable.Code
	}
	return 0
}

// refuseTxn returns the code for a request that names a producer which does not
// belong to the transactional ID: what comes before that check comes first.
func (c *gatewayConn) refuseTxn(r *request, id string, code int16) int16 {
	switch {
	case !c.authorized(r, kmsg.ACLOperationWrite, kmsg.ACLResourceTypeTransactionalId, id):
		return kerr.TransactionalIDAuthorizationFailed.Code
	case c.g.kafka.coordinator(id) != c.node.id:
		return kerr.NotCoordinator.Code
	}
	return code
}

// ended tells the share plane of an end marker, and who waits for records of
// the transaction. done is called once the marker is applied.
func (g *gateway) ended(t endedTxn, done func()) {
	g.markers(t, done)
	g.plane.logMayHaveGrown()
}

// forgotten reports whether the coordinator has forgotten a transactional ID, by
// a fault.
func (g *gateway) forgotten(transactionalID string) bool {
	return g.faults.lasts(FaultForgetTransaction, func(f *Fault) bool { return f.TransactionalID == transactionalID })
}

// remembers ends the fault that made the coordinator forget a transactional ID.
func (g *gateway) remembers(transactionalID string) {
	g.faults.clear(func(f *Fault) bool { return f.Kind == FaultForgetTransaction && f.TransactionalID == transactionalID })
}

func (c *gatewayConn) handleEndTxn(r *request, req *kmsg.EndTxnRequest) error {
	id := req.TransactionalID
	unlock := c.g.plane.transactionGuard(id)
	defer unlock()
	before, known, err := c.g.kafka.describeTransaction(c.g.ctx, id)
	if err != nil {
		return err
	}
	last, logged := c.g.txns.get(id)
	abortOnly := logged && last.AbortOnly && last.is(before.producerID, before.producerEpoch)
	open := before.state == txnOngoing || abortOnly
	respond := func(code int16, producerID int64, epoch int16) error {
		resp := req.ResponseKind().(*kmsg.EndTxnResponse)
		resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = c.refuseTxn(r, id, code), producerID, epoch
		if resp.ErrorCode != 0 {
			resp.ProducerID, resp.ProducerEpoch = -1, -1
		}
		return c.respond(r, resp)
	}
	switch {
	case !known || before.producerID != req.ProducerID || c.g.forgotten(id):
		return respond(kerr.InvalidProducerIDMapping.Code, -1, -1)
	case last.prepared():
		return respond(endWhilePrepared(req, last), -1, -1)
	case before.holdsShareAcks() && req.Version < endTxnBumpsEpoch && c.g.markersNeedVersion2():
		return respond(kerr.UnsupportedVersion.Code, -1, -1)
	case !open && logged:
		state := c.g.txns.state(id, before.producerID, before.producerEpoch, before.state)
		switch answerEnd(req, before, state) {
		case endRetried:
			return respond(0, before.producerID, before.producerEpoch)
		case endRefused:
			return respond(kerr.InvalidTxnState.Code, -1, -1)
		case endFenced:
			return respond(kerr.ProducerFenced.Code, -1, -1)
		case endPassed:
		}
	case abortOnly && req.ProducerEpoch == before.producerEpoch && req.Commit:
		return respond(kerr.TransactionAbortable.Code, -1, -1)
	}
	if code := c.refuseTxn(r, id, 0); code != 0 {
		return respond(code, -1, -1)
	}
	next := req.ProducerEpoch
	if req.Version >= endTxnBumpsEpoch {
		next++
	}
	if open = open && req.ProducerEpoch == before.producerEpoch; open {
		if code := c.g.decide(last, before, next, req.Commit); code != 0 {
			return respond(code, -1, -1)
		}
	}
	over := func(producerID int64, epoch int16) func() {
		return func() {
			c.g.txns.note(txnRecord{
				TransactionalID: id, ProducerID: producerID, ProducerEpoch: epoch,
				State: completed(req.Commit), TimeoutMs: last.TimeoutMs,
			})
		}
	}
	if abortOnly && open && req.Version < endTxnBumpsEpoch { // of which kfake knows nothing
		over(req.ProducerID, req.ProducerEpoch)()
		return respond(0, -1, -1)
	}
	answered := false
	err = c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		answered = true
		end := resp.(*kmsg.EndTxnResponse)
		t := endedTxn{
			transactionalID: id, producerID: req.ProducerID, markerEpoch: next, commit: req.Commit,
			statePartitions: before.statePartitions,
		}
		switch {
		case end.ErrorCode != 0 && open:
			c.g.txns.note(last)
		case end.ErrorCode != 0:
		case req.Version < endTxnBumpsEpoch:
			c.g.ended(t, over(req.ProducerID, req.ProducerEpoch))
		default:
			t.version = int8(wire.TransactionVersion)
			end.ProducerID, end.ProducerEpoch, err = c.g.freshProducer(id, end.ProducerID, end.ProducerEpoch)
			if err != nil {
				return err
			}
			c.g.ended(t, over(end.ProducerID, end.ProducerEpoch))
		}
		return c.respond(r, end)
	})
	if open && !answered {
		return errors.Join(err, c.g.finishDecided(id))
	}
	return err
}

// endWhilePrepared returns the code for an EndTxn while markers of the last
// transaction are on their way: the client has to wait for the decision that it
// asked for, and cannot have the other one.
func endWhilePrepared(req *kmsg.EndTxnRequest, last txnRecord) int16 {
	switch {
	case req.ProducerEpoch < last.ProducerEpoch:
		return kerr.ProducerFenced.Code
	case last.State == prepare(req.Commit):
		return kerr.ConcurrentTransactions.Code
	}
	return kerr.InvalidTxnState.Code
}

type endAnswer int8

const (
	endPassed  endAnswer = iota // kfake answers
	endRetried                  // a success, once more
	endRefused                  // INVALID_TXN_STATE
	endFenced                   // PRODUCER_FENCED
)

// answerEnd decides on an EndTxn that found no open transaction. kfake remembers
// how the last one ended, but not across a crash, and takes a commit of nothing
// after a commit for a retry.
func answerEnd(req *kmsg.EndTxnRequest, last txnState, state string) endAnswer {
	same := state == completed(req.Commit)
	switch {
	case req.Version >= endTxnBumpsEpoch && req.ProducerEpoch+1 == last.producerEpoch && state != txnEmpty:
		if same {
			return endRetried
		}
		return endRefused
	case req.ProducerEpoch != last.producerEpoch:
		return endFenced
	case req.Version >= endTxnBumpsEpoch && req.Commit: // of nothing
		return endRefused
	case req.Version < endTxnBumpsEpoch && same:
		return endRetried
	case req.Version < endTxnBumpsEpoch && req.Commit:
		return endRefused
	}
	return endPassed
}

// Adding to a transaction

func (c *gatewayConn) handleAddPartitionsToTxn(r *request, req *kmsg.AddPartitionsToTxnRequest) error {
	code := c.g.txns.blockedCode(req.ProducerID, req.ProducerEpoch)
	if code == 0 || req.Version > 3 {
		c.g.byHand.added(req.ProducerID, req.Topics)
		return c.pass(r)
	}
	resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewAddPartitionsToTxnResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p, abortable(code, false)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return c.respond(r, resp)
}

func (c *gatewayConn) handleAddOffsetsToTxn(r *request, req *kmsg.AddOffsetsToTxnRequest) error {
	if code := c.g.txns.blockedCode(req.ProducerID, req.ProducerEpoch); code != 0 {
		resp := req.ResponseKind().(*kmsg.AddOffsetsToTxnResponse)
		resp.ErrorCode = abortable(code, req.Version >= 4)
		return c.respond(r, resp)
	}
	unlock := c.g.plane.transactionGuard(req.TransactionalID)
	defer unlock()
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		if resp.(*kmsg.AddOffsetsToTxnResponse).ErrorCode == 0 {
			c.g.txns.holdsOffsets(req.TransactionalID, req.ProducerID, req.ProducerEpoch)
		}
		return c.respond(r, resp)
	})
}

func (c *gatewayConn) handleTxnOffsetCommit(r *request, req *kmsg.TxnOffsetCommitRequest) error {
	if code := c.g.txns.blockedCode(req.ProducerID, req.ProducerEpoch); code != 0 {
		resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, abortable(code, req.Version >= 4)
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return c.respond(r, resp)
	}
	unlock := c.g.plane.transactionGuard(req.TransactionalID)
	defer unlock()
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		taken := slices.ContainsFunc(resp.(*kmsg.TxnOffsetCommitResponse).Topics, func(t kmsg.TxnOffsetCommitResponseTopic) bool {
			return slices.ContainsFunc(t.Partitions, func(p kmsg.TxnOffsetCommitResponseTopicPartition) bool { return p.ErrorCode == 0 })
		})
		if taken {
			c.g.txns.holdsOffsets(req.TransactionalID, req.ProducerID, req.ProducerEpoch)
		}
		return c.respond(r, resp)
	})
}

// abortable is the code for a client that may not know TRANSACTION_ABORTABLE.
func abortable(code int16, knows bool) int16 {
	if code == kerr.TransactionAbortable.Code && !knows {
		return kerr.InvalidTxnState.Code
	}
	return code
}

// handleWriteTxnMarkers applies the markers for __share_group_state to the share
// plane, which writes what becomes of the records. The other ones go to kfake.
func (c *gatewayConn) handleWriteTxnMarkers(r *request, req *kmsg.WriteTxnMarkersRequest) error {
	ours := func(t kmsg.WriteTxnMarkersRequestMarkerTopic) bool { return t.Topic == stateTopic }
	if !slices.ContainsFunc(req.Markers, func(m kmsg.WriteTxnMarkersRequestMarker) bool { return slices.ContainsFunc(m.Topics, ours) }) {
		return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
			c.g.plane.logMayHaveGrown()
			c.g.byHand.wrote(req, resp.(*kmsg.WriteTxnMarkersResponse))
			return c.respond(r, resp)
		})
	}
	allowed := c.authorized(r, kmsg.ACLOperationClusterAction, kmsg.ACLResourceTypeCluster, clusterResource) ||
		c.authorized(r, kmsg.ACLOperationAlter, kmsg.ACLResourceTypeCluster, clusterResource)
	answers := make([]kmsg.WriteTxnMarkersResponseMarkerTopic, len(req.Markers))
	for i := range req.Markers {
		m := &req.Markers[i]
		if j := slices.IndexFunc(m.Topics, ours); j >= 0 {
			answers[i] = c.applyMarker(req.Version, m, m.Topics[j].Partitions, allowed)
			m.Topics = slices.DeleteFunc(m.Topics, ours)
		}
	}
	return c.exchange(r, req, appendRequest(nil, r, req), func(resp kmsg.Response) error {
		c.g.plane.logMayHaveGrown()
		written := resp.(*kmsg.WriteTxnMarkersResponse)
		c.g.byHand.wrote(req, written)
		if len(written.Markers) != len(answers) {
			return fmt.Errorf("write txn markers response from kfake: %d answers to %d markers", len(written.Markers), len(answers))
		}
		for i, a := range answers {
			if len(a.Partitions) > 0 {
				written.Markers[i].Topics = append(written.Markers[i].Topics, a)
			}
		}
		return c.respond(r, written)
	})
}

func (c *gatewayConn) applyMarker(version int16, m *kmsg.WriteTxnMarkersRequestMarker, partitions []int32, allowed bool) kmsg.WriteTxnMarkersResponseMarkerTopic {
	txnVersion := int8(0)
	if version >= 2 {
		txnVersion = m.TransactionVersion
	}
	answer := kmsg.NewWriteTxnMarkersResponseMarkerTopic()
	answer.Topic = stateTopic
	applies := false
	for _, p := range partitions {
		ap := kmsg.NewWriteTxnMarkersResponseMarkerTopicPartition()
		ap.Partition = p
		info, ok := c.g.kafka.partition(stateTopic, p)
		switch {
		case !allowed:
			ap.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		case !ok:
			ap.ErrorCode = kerr.UnknownTopicOrPartition.Code
		case info.leader != c.node.id:
			ap.ErrorCode = kerr.NotLeaderForPartition.Code
		case txnVersion < int8(wire.TransactionVersion) && c.g.markersNeedVersion2():
			ap.ErrorCode = kerr.UnsupportedVersion.Code
		default:
			applies = true
		}
		answer.Partitions = append(answer.Partitions, ap)
	}
	if applies {
		c.g.ended(endedTxn{producerID: m.ProducerID, markerEpoch: m.ProducerEpoch, version: txnVersion, commit: m.Committed}, func() {})
	}
	return answer
}
