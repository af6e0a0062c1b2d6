package sandbox

import (
	"fmt"
	"math"
	"slices"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// InitProducerId: v0-5; EndTxn: v0-5; WriteTxnMarkers: v0-2
//
// Behavior:
//   - what ends a transaction is done in kfake first and then told to the share
//     plane, both under the guard of the transactional ID: nothing is staged in
//     between. The client has its answer when both are done; a broker answers
//     when the decision is logged, and writes the markers after that.
//   - the epoch of a marker is one above that of the producer with transaction
//     version 2, and when a transaction is fenced; else it is the same
//   - a transaction that times out is ended by kfake; the share plane watches
//     the deadline itself
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
//   - A transaction goes from Ongoing to CompleteCommit or CompleteAbort at once:
//     there is no state between.

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
	if req.ProducerID >= 0 && (!known || before.producerID != req.ProducerID) {
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = c.refuseTxn(r, id, kerr.InvalidProducerIDMapping.Code), -1, -1
		return c.respond(r, resp)
	}
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		init := resp.(*kmsg.InitProducerIDResponse)
		if init.ErrorCode != 0 {
			return c.respond(r, init)
		}
		if known && before.state == txnOngoing {
			// Who fences is the coordinator, in the transaction version of
			// the cluster.
			version := int8(c.g.features.level(wire.FeatureTransactionVersion))
			c.g.ended(id, before.producerID, before.producerEpoch+1, version, false)
		}
		init.ProducerID, init.ProducerEpoch, err = c.g.freshProducer(id, init.ProducerID, init.ProducerEpoch)
		if err != nil {
			return err
		}
		c.g.outcomes.note(id, txnOutcome{init.ProducerID, init.ProducerEpoch, txnEmpty})
		return c.respond(r, init)
	})
}

const txnOngoing = "Ongoing"

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
// the transaction.
func (g *gateway) ended(id string, producerID int64, markerEpoch int16, transactionVersion int8, commit bool) {
	g.plane.transactionEnded(g.ctx, id, producerID, markerEpoch, transactionVersion, commit)
	g.plane.logMayHaveGrown()
}

func (c *gatewayConn) handleEndTxn(r *request, req *kmsg.EndTxnRequest) error {
	id := req.TransactionalID
	unlock := c.g.plane.transactionGuard(id)
	defer unlock()
	before, known, err := c.g.kafka.describeTransaction(c.g.ctx, id)
	if err != nil {
		return err
	}
	var code int16
	switch {
	case !known || before.producerID != req.ProducerID:
		code = kerr.InvalidProducerIDMapping.Code
	case before.holdsShareAcks && req.Version < endTxnBumpsEpoch && c.g.markersNeedVersion2():
		code = kerr.UnsupportedVersion.Code
	}
	if code != 0 {
		resp := req.ResponseKind().(*kmsg.EndTxnResponse)
		resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = c.refuseTxn(r, id, code), -1, -1
		return c.respond(r, resp)
	}
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		end := resp.(*kmsg.EndTxnResponse)
		switch {
		case end.ErrorCode != 0:
		case req.Version < endTxnBumpsEpoch:
			c.g.ended(id, req.ProducerID, req.ProducerEpoch, 0, req.Commit)
			c.g.outcomes.note(id, txnOutcome{req.ProducerID, req.ProducerEpoch, completed(req.Commit)})
		default:
			c.g.ended(id, req.ProducerID, req.ProducerEpoch+1, int8(wire.TransactionVersion), req.Commit)
			end.ProducerID, end.ProducerEpoch, err = c.g.freshProducer(id, end.ProducerID, end.ProducerEpoch)
			if err != nil {
				return err
			}
			c.g.outcomes.note(id, txnOutcome{end.ProducerID, end.ProducerEpoch, completed(req.Commit)})
		}
		return c.respond(r, end)
	})
}

// handleWriteTxnMarkers applies the markers for __share_group_state to the share
// plane, which writes what becomes of the records. The other ones go to kfake.
func (c *gatewayConn) handleWriteTxnMarkers(r *request, req *kmsg.WriteTxnMarkersRequest) error {
	ours := func(t kmsg.WriteTxnMarkersRequestMarkerTopic) bool { return t.Topic == stateTopic }
	if !slices.ContainsFunc(req.Markers, func(m kmsg.WriteTxnMarkersRequestMarker) bool { return slices.ContainsFunc(m.Topics, ours) }) {
		return c.passThen(r, c.g.plane.logMayHaveGrown)
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
		c.g.ended("", m.ProducerID, m.ProducerEpoch, txnVersion, m.Committed)
	}
	return answer
}
