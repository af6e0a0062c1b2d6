package main

import (
	"context"
	"fmt"
	"os"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// copyRecords is read-process-write: what it writes and that it has read take
// effect together, in one transaction of Kafka.
func copyRecords(ctx context.Context, cl *cluster.Client, o options) (int, error) {
	// The session first: it aborts what a dead predecessor left open.
	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: o.id})
	if err != nil {
		return 0, err
	}
	defer leave(ctx, s.Close)
	c, done, err := join(ctx, cl, o)
	if err != nil {
		return 0, err
	}
	defer done()
	n := 0
	for {
		b, err := poll(ctx, c, o.idle)
		if b == nil {
			return n, err
		}
		err = copyBatch(ctx, s, c, b, o.to)
		switch txn.Classify(err) {
		case txn.ClassFatal, txn.ClassOutcomeUnknown:
			return n, err
		case txn.ClassNone, txn.ClassAbortable, txn.ClassRetriable:
		}
		if err == nil {
			n += b.Len()
			continue
		}
		fmt.Fprintln(os.Stderr, "app: aborted, the records come again:", err)
		if err := s.Abort(ctx); txn.IsFatal(err) {
			return n, err
		}
		c.Reset() // gives back what this member may still hold
	}
}

func copyBatch(ctx context.Context, s *txn.Session, c *share.Consumer, b *share.Batch, to string) error {
	if err := s.Begin(ctx); err != nil {
		return err
	}
	// An order that makes no sense is rejected, in the same transaction.
	acks := share.FromRecords(b, func(r *kgo.Record) wire.AcknowledgeType {
		if len(r.Value) == 0 {
			return wire.Reject
		}
		return wire.Accept
	})
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			if len(r.Value) == 0 {
				continue
			}
			if err := s.Produce(ctx, &kgo.Record{Topic: to, Key: r.Key, Value: append([]byte("shipped: "), r.Value...)}); err != nil {
				return err
			}
		}
	}
	if err := s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{
		Acknowledgements: acks, Group: c.GroupMetadata(), Leaders: b.Leaders(),
	}); err != nil {
		return err
	}
	// What was staged may have been a later delivery of the same records.
	if err := c.CheckHeld(b); err != nil {
		return err
	}
	if err := s.Commit(ctx, txn.Guard{LockDeadline: b.LockDeadline(), LockDuration: b.LockDuration()}); err != nil {
		return err
	}
	// Offsets without a record may not be part of a transaction in every dialect.
	// If this fails they come again.
	if err := c.Acknowledge(ctx, b, b.GapAcknowledgements()); err != nil {
		fmt.Fprintln(os.Stderr, "app: gaps:", err)
	}
	c.Committed(b, acks)
	return nil
}
