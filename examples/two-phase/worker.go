package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
)

// worker moves orders from the share group to the database.
type worker struct {
	options
	cl     *cluster.Client
	db     *database
	acks   *txn.Acknowledger
	member *share.Consumer

	orders, known int // in transactions that were committed; those whose row was there before
}

func (w *worker) run(ctx context.Context) error {
	// In this order. Whatever a predecessor has prepared in the database is ended
	// before its transactional ID is taken from it in Kafka: after that Kafka could
	// not tell any more how its transaction ended.
	if err := takeOver(ctx, w.cl, w.db, w.abort); err != nil {
		return err
	}
	var err error
	w.acks, err = txn.NewAcknowledger(ctx, w.cl, txn.AcknowledgerConfig{
		TransactionalID: w.id, Timeout: w.timeout, TwoPhaseCommit: w.twoPhaseCommit,
	})
	if err != nil {
		return err
	}
	defer leave(ctx, w.acks.Close)
	if err := w.checkTokenLength(); err != nil {
		return err
	}
	// Connections of its own: a broker answers what comes on one connection in turn,
	// and may hold a fetch for a while. A successor that takes the member's place
	// gets at once what a dead process had acquired.
	own, err := w.cl.Clone()
	if err != nil {
		return err
	}
	defer own.Close()
	w.member, err = share.NewConsumer(ctx, own, share.Config{
		GroupID: w.group, Topics: []string{w.from}, MemberID: share.NamedMemberID(w.group, w.id), MaxRecords: int32(w.batch),
	})
	if err != nil {
		return err
	}
	err = w.moveAll(ctx)
	if isA[*txn.FencedError](err) || errors.Is(err, errSucceeded) {
		w.member.Abandon() // a successor is the member now, and is not to be thrown out
		return err
	}
	leave(ctx, w.member.Close)
	return err
}

func (w *worker) moveAll(ctx context.Context) error {
	for {
		b, err := w.poll(ctx)
		if b == nil {
			return err
		}
		known, err := w.move(ctx, b)
		if err == nil {
			w.orders, w.known = w.orders+b.Len(), w.known+known
			continue
		}
		if isA[*databaseError](err) || txn.Classify(err) != txn.ClassAbortable || ctx.Err() != nil {
			return err // the next start finds out what became of it
		}
		fmt.Fprintln(os.Stderr, "two-phase: aborted, the orders come again:", err)
		w.member.Reset() // gives back what this member may still hold
	}
}

// checkTokenLength fails when a token can be too long for the name of a prepared
// transaction.
func (w *worker) checkTokenLength() error {
	now := time.Now()
	longest := txn.Token{
		TransactionalID: w.id, ProducerID: math.MaxInt64, ProducerEpoch: math.MaxInt16,
		ClusterID: w.cl.ClusterID(), Dialect: w.acks.Dialect().Name, GroupIDs: []string{w.group}, Created: now, Deadline: now,
	}.String()
	if len(longest) > maxGID {
		return fmt.Errorf("transactional ID %q and group %q are too long together: a token has up to %d bytes, and PostgreSQL takes %d", w.id, w.group, len(longest), maxGID)
	}
	return nil
}

// poll returns the next batch, nil when nothing came for a while.
func (w *worker) poll(ctx context.Context) (*share.Batch, error) {
	pctx, cancel := context.WithTimeout(ctx, w.idle)
	defer cancel()
	b, err := w.member.Poll(pctx, w.batch)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil
	}
	return b, err
}

// move does a batch, in one transaction of the database and one of Kafka. known
// counts the orders whose row was there.
func (w *worker) move(ctx context.Context, b *share.Batch) (known int, err error) {
	if err := w.db.begin(ctx); err != nil {
		return 0, err
	}
	token, known, err := w.prepare(ctx, b)
	if err != nil {
		// In whichever order: Kafka has not committed, so neither may the database.
		return 0, errors.Join(err, w.db.rollback(ctx), w.acks.AbortAcknowledgements(ctx))
	}
	err = w.acks.CommitPrepared(ctx)
	if err == nil {
		w.at(kafkaCommitted)
	}
	if isA[*txn.FencedError](err) {
		return 0, err // a successor has ended it in the database, or will
	}
	if err := w.db.follow(ctx, token, err); err != nil {
		return 0, err
	}
	w.at(databaseFollowed)
	return known, nil
}

// prepare makes both transactions ready to be committed by whoever has the token.
func (w *worker) prepare(ctx context.Context, b *share.Batch) (token string, known int, err error) {
	if known, err = w.db.write(ctx, w.group, b); err != nil {
		return "", 0, err
	}
	w.at(written)
	// All that was acquired, offsets without a record too: every dialect takes an
	// accept of those.
	t, err := w.acks.PrepareAcknowledgements(ctx, txn.ShareAcknowledgements{
		Acknowledgements: b.All(wire.Accept), Group: w.member.GroupMetadata(), Leaders: b.Leaders(),
	})
	if err != nil {
		return "", 0, err
	}
	token = t.String()
	w.at(kafkaPrepared)
	if err := w.db.record(ctx, token); err != nil {
		return "", 0, err
	}
	w.at(recorded)
	if err := w.db.prepare(ctx, token); err != nil {
		return "", 0, err
	}
	w.at(databasePrepared)
	return token, known, nil
}
