package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Fenced is the producer that a transactional ID has after it was fenced.
type Fenced struct {
	ProducerID    int64
	ProducerEpoch int16
}

// Fence takes a transactional ID from its producer (InitProducerId, as
// kafka-transactions.sh force-terminate does): its open transaction is aborted,
// and the producer's next request fails. It returns when the abort is complete:
// until then the coordinator answers CONCURRENT_TRANSACTIONS, and is asked again
// until ctx ends.
//
// want is the transaction as it was last seen; where the ID stands elsewhere by
// now, nothing is done and [ErrEnded] returned. Between that look and the act
// there is a gap of one request, in which a producer may begin anew.
//
// It may return *CoordinatorError, *cluster.Error or *cluster.AuthError: it
// needs WRITE and DESCRIBE on the transactional ID.
func Fence(ctx context.Context, cl Cluster, clock Clock, want inspect.Transaction) (Fenced, error) {
	var out Fenced
	op := fmt.Sprintf("fence transactional ID %q", want.TransactionalID)
	timeout := fenceTimeout(want)
	began := false
	err := atCoordinator(ctx, cl, clock, op, want.TransactionalID, func(node int32) error {
		if !began {
			if err := stillSo(ctx, cl, node, want); err != nil {
				return err
			}
		}
		// A request without answer may have begun the abort.
		began = true
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID = &want.TransactionalID
		req.TransactionTimeoutMillis = timeout
		req.ProducerID, req.ProducerEpoch = -1, -1
		kresp, err := cl.RequestBroker(ctx, node, req)
		if err != nil {
			return err
		}
		resp := kresp.(*kmsg.InitProducerIDResponse)
		err = kerr.ErrorForCode(resp.ErrorCode)
		if errors.Is(err, kerr.InvalidTransactionTimeout) && timeout > defaultTimeoutMS {
			timeout = defaultTimeoutMS // transaction.max.timeout.ms was lowered since
			return kerr.ConcurrentTransactions
		}
		out = Fenced{resp.ProducerID, resp.ProducerEpoch}
		return err
	})
	return out, err
}

var defaultTimeoutMS = int32(kafkaTimeout / time.Millisecond)

// fenceTimeout returns the transaction timeout to ask with. It is for the
// producer that comes next, which brings its own; a coordinator refuses one that
// is not positive, and that of a two-phase commit.
func fenceTimeout(t inspect.Transaction) int32 {
	if t.TimeoutMS <= 0 || t.TwoPhase() {
		return defaultTimeoutMS
	}
	return t.TimeoutMS
}

// stillSo returns nil while a transactional ID stands where it was last seen,
// and ErrEnded when it does not.
func stillSo(ctx context.Context, cl Cluster, node int32, want inspect.Transaction) error {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{want.TransactionalID}
	kresp, err := cl.RequestBroker(ctx, node, req)
	if err != nil {
		return err
	}
	for _, s := range kresp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
		if s.TransactionalID != want.TransactionalID {
			continue
		}
		switch err := kerr.ErrorForCode(s.ErrorCode); {
		case errors.Is(err, kerr.TransactionalIDNotFound):
			return ErrEnded
		case err != nil:
			return err
		case s.State != want.State || s.ProducerID != want.ProducerID || s.ProducerEpoch != want.ProducerEpoch:
			return ErrEnded
		}
		return nil
	}
	return fmt.Errorf("broker %d described another transaction", node)
}
