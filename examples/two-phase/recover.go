package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/txn"
)

// recoverPrepared ends what a predecessor has left between its two phases: each
// transaction that the database has prepared under a token, the way that Kafka's
// ended, or is ended now.
func recoverPrepared(ctx context.Context, cl *cluster.Client, db *database, abort bool) error {
	tokens, err := db.prepared(ctx)
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if err := finish(ctx, cl, db, t, abort); err != nil {
			return fmt.Errorf("transaction %s stays prepared in the database: %w", t, err)
		}
	}
	return nil
}

func finish(ctx context.Context, cl *cluster.Client, db *database, t txn.Token, abort bool) error {
	err := end(ctx, cl, t, abort)
	switch {
	case isA[*txn.CommittedError](err): // to abort it, this is too late
		err = nil
	case isA[*txn.FencedError](err), isA[*txn.NotKnownError](err):
		// Somebody else has used the transactional ID, and Kafka cannot tell any more
		// how this ended. With a commit both cases end well: orders that were not
		// acknowledged come again, and their rows are found by the key. A rollback
		// would lose those that were.
		fmt.Fprintln(os.Stderr, "two-phase: in doubt, committed in the database:", err)
		err = nil
	}
	if err := db.follow(ctx, t.String(), err); err != nil && !isA[*txn.AbortedError](err) {
		return err
	}
	return nil
}

// end ends Kafka's transaction. One that has ended before it leaves as it is. With
// abort it returns an *txn.AbortedError in the good case, as for one that cannot be
// committed.
func end(ctx context.Context, cl *cluster.Client, t txn.Token, abort bool) error {
	r, err := txn.Resume(ctx, cl, t)
	if err != nil {
		return err
	}
	if !abort {
		return r.Commit(ctx)
	}
	if err := r.Abort(ctx); err != nil {
		return err
	}
	return &txn.AbortedError{TransactionalID: t.TransactionalID}
}

// takeOver makes this process the one that may write under the transactional ID:
// when it returns nothing of a predecessor is prepared in the database, and nothing
// of it can be from then on.
func takeOver(ctx context.Context, cl *cluster.Client, db *database, abort bool) error {
	for {
		if err := recoverPrepared(ctx, cl, db, abort); err != nil {
			return err
		}
		// A predecessor that is not dead holds its row while it has a transaction open
		// or prepared: in that case look again.
		if taken, err := db.own(ctx); taken || err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "two-phase: a predecessor has a transaction open in the database")
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
