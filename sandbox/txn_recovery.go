package sandbox

import (
	"context"
	"fmt"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What is done about transactions between the start of kfake and that of the
// brokers. A transaction has its outcome from the transaction log, whatever the
// moment at which the sandbox went down:
//
//	decided (Prepare*)                 finished as decided, in the logs
//	                                   (kafka_recovery.go), in kfake's epochs and
//	                                   in the share coordinator's state
//	open, share acknowledgements alone stays open: kfake, which forgets
//	                                   partitions without records, is told them
//	                                   again
//	open, with records, stopped        stays open: kfake keeps it
//	open, with records, killed         kfake has lost it. It stays Ongoing, and
//	                                   can only be aborted: adding to it and
//	                                   committing it is TRANSACTION_ABORTABLE
//	                                   (KIP-890). Its records and its staged
//	                                   acknowledgements are aborted at once
//
// A log that cannot be read to its end lacks what was last written; that has not
// happened then, since it is written before anything is done about it.

// settleTransactions brings kfake and the plane to what the log says.
func (s *Sandbox) settleTransactions(ctx context.Context, p *plane) error {
	for _, r := range s.txns.all() {
		st, known, err := s.kafka.describeTransaction(ctx, r.TransactionalID)
		if err != nil {
			return err
		}
		if !known || st.producerID != r.ProducerID {
			st = txnState{transactionalID: r.TransactionalID, state: txnEmpty, producerID: r.ProducerID, producerEpoch: r.ProducerEpoch + 1}
		}
		switch {
		case r.prepared():
			err = s.finishTransaction(ctx, p, r, st)
		case r.State == txnOngoing:
			err = s.reopenTransaction(ctx, p, r, st)
		}
		if err != nil {
			return fmt.Errorf("transaction %q: %w", r.TransactionalID, err)
		}
	}
	return nil
}

// finishTransaction does what was decided and may not have been done.
func (s *Sandbox) finishTransaction(ctx context.Context, p *plane, r txnRecord, st txnState) error {
	commit := r.State == txnPrepareCommit
	s.cfg.logf("transaction %q of producer %d, epoch %d: finished, commit %v", r.TransactionalID, r.ProducerID, r.ProducerEpoch, commit)
	st, err := s.kafka.carryOut(ctx, r, st)
	if err != nil {
		return err
	}
	t := endedTxn{
		transactionalID: r.TransactionalID, producerID: r.ProducerID,
		markerEpoch: r.ProducerEpoch + 1, version: int8(wire.TransactionVersion), commit: commit,
	}
	p.transactionEnded(ctx, t, func() {
		s.txns.note(txnRecord{
			TransactionalID: r.TransactionalID, ProducerID: st.producerID, ProducerEpoch: st.producerEpoch,
			State: completed(commit), TimeoutMs: r.TimeoutMs,
		})
	})
	return nil
}

// reopenTransaction makes kfake know an open transaction again.
func (s *Sandbox) reopenTransaction(ctx context.Context, p *plane, r txnRecord, st txnState) error {
	t := endedTxn{
		transactionalID: r.TransactionalID, producerID: r.ProducerID,
		markerEpoch: r.ProducerEpoch + 1, version: int8(wire.TransactionVersion),
	}
	switch {
	case st.producerEpoch != r.ProducerEpoch: // it timed out while the sandbox was down
		p.transactionEnded(ctx, t, func() {
			s.txns.note(txnRecord{
				TransactionalID: r.TransactionalID, ProducerID: st.producerID, ProducerEpoch: st.producerEpoch,
				State: txnCompleteAbort, TimeoutMs: r.TimeoutMs,
			})
		})
		return nil
	case r.AbortOnly:
		p.transactionEnded(ctx, t, func() {})
		return nil
	case len(r.StatePartitions) == 0:
		return nil // of those with records, kfake knows
	}
	return codeError(s.kafka.addPartitionsToTxn(ctx, r.TransactionalID, r.ProducerID, r.ProducerEpoch, r.StatePartitions))
}

// carryOut makes kfake do what was decided, unless it has, and returns what it
// knows then.
func (b *backend) carryOut(ctx context.Context, r txnRecord, st txnState) (txnState, error) {
	ongoing := st.state == txnOngoing
	if !r.is(st.producerID, st.producerEpoch) || !ongoing && r.NextEpoch == r.ProducerEpoch {
		return st, nil
	}
	// The EndTxn did not get through to kfake, or its end is in the logs and not
	// in what kfake knows: ending a transaction without anything raises the epoch.
	var err error
	st.producerID, st.producerEpoch, err = b.endTransaction(ctx, r, ongoing && r.State == txnPrepareCommit)
	return st, err
}

// endTransaction ends a transaction in kfake, past the gateway, and returns the
// producer that follows.
func (b *backend) endTransaction(ctx context.Context, r txnRecord, commit bool) (int64, int16, error) {
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.Commit = endTxnBumpsEpoch, commit
	if r.NextEpoch == r.ProducerEpoch {
		req.Version--
	}
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = r.TransactionalID, r.ProducerID, r.ProducerEpoch
	resp, err := call[*kmsg.EndTxnResponse](ctx, b.client, b.coordinator(r.TransactionalID), req)
	if err == nil {
		err = codeError(resp.ErrorCode)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("end transaction %q: %w", r.TransactionalID, err)
	}
	if req.Version < endTxnBumpsEpoch {
		return r.ProducerID, r.ProducerEpoch, nil
	}
	return resp.ProducerID, resp.ProducerEpoch, nil
}

// finishDecided does what was decided about a transaction whose client's way to
// kfake broke before kfake had answered.
func (g *gateway) finishDecided(transactionalID string) error {
	r, _ := g.txns.get(transactionalID)
	if !r.prepared() || g.ctx.Err() != nil {
		return nil // closing; the next start does it
	}
	st, known, err := g.kafka.describeTransaction(g.ctx, transactionalID)
	if err != nil || !known {
		return err
	}
	if st, err = g.kafka.carryOut(g.ctx, r, st); err != nil {
		return err
	}
	commit := r.State == txnPrepareCommit
	t := endedTxn{
		transactionalID: transactionalID, producerID: r.ProducerID, markerEpoch: r.ProducerEpoch + 1,
		version: int8(wire.TransactionVersion), commit: commit, statePartitions: r.StatePartitions,
	}
	g.ended(t, func() {
		g.txns.note(txnRecord{
			TransactionalID: transactionalID, ProducerID: st.producerID, ProducerEpoch: st.producerEpoch,
			State: completed(commit), TimeoutMs: r.TimeoutMs,
		})
	})
	return nil
}
