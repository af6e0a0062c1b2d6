package txn

import (
	"context"
	"fmt"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Outcome is how a transaction ended, as far as its coordinator says.
type Outcome int8

const (
	// OutcomeUnknown: the coordinator knows only a later transaction, or none.
	OutcomeUnknown Outcome = iota
	// OutcomeOpen: the transaction is still ongoing; the end did not arrive.
	OutcomeOpen
	// OutcomeEnding: the decision is durable, its markers are being written.
	OutcomeEnding
	// OutcomeCommitted: committed.
	OutcomeCommitted
	// OutcomeAborted: aborted, by its producer, by timeout or by fencing.
	OutcomeAborted
)

// description is a transaction as DescribeTransactions shows it.
type description struct {
	state         string
	producerID    int64
	producerEpoch int16
}

// judge says how the transaction of (producerID, epoch) ended, from what the
// coordinator describes. With transaction.version 2 the end of a transaction
// raises the epoch by one, and InitProducerId raises it again (KIP-890).
func judge(producerID int64, epoch int16, d description) Outcome {
	if d.producerID != producerID || d.producerEpoch < epoch || d.producerEpoch > epoch+1 {
		return OutcomeUnknown
	}
	switch d.state {
	case "Ongoing":
		if d.producerEpoch == epoch {
			return OutcomeOpen
		}
		return OutcomeUnknown // the next transaction of this producer
	case "PrepareCommit", "PrepareAbort", "PrepareEpochFence":
		return OutcomeEnding
	case "CompleteCommit":
		return OutcomeCommitted
	case "CompleteAbort":
		return OutcomeAborted
	}
	return OutcomeUnknown
}

func describe(ctx context.Context, cl *cluster.Client, transactionalID string) (description, error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{transactionalID}
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return description{}, err
	}
	for _, t := range resp.TransactionStates {
		if t.TransactionalID != transactionalID {
			continue
		}
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return description{}, &cluster.Error{Op: fmt.Sprintf("describe transaction %q", transactionalID), Broker: -1, Err: err}
		}
		return description{t.State, t.ProducerID, t.ProducerEpoch}, nil
	}
	return description{}, fmt.Errorf("describe transaction %q: not in the answer", transactionalID)
}

const (
	// outcomePoll is the pause between two looks at a transaction that is ending.
	outcomePoll = 100 * time.Millisecond
	// outcomeWait bounds the search for the outcome of a commit.
	outcomeWait = 15 * time.Second
)

// awaitOutcome asks the coordinator until it says how the transaction ended, or
// until the context ends. An ongoing transaction is reported as such at once.
func awaitOutcome(ctx context.Context, cl *cluster.Client, transactionalID string, producerID int64, epoch int16) (Outcome, description) {
	ctx, cancel := context.WithTimeout(ctx, outcomeWait)
	defer cancel()
	var last description
	for {
		d, err := describe(ctx, cl, transactionalID)
		if err == nil {
			last = d
			if o := judge(producerID, epoch, d); o != OutcomeEnding {
				return o, d
			}
		}
		t := time.NewTimer(outcomePoll)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return OutcomeUnknown, last
		}
	}
}
