package txn

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
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

// String returns the outcome in one word, such as "committed".
func (o Outcome) String() string {
	switch o {
	case OutcomeUnknown:
		return "unknown"
	case OutcomeOpen:
		return "open"
	case OutcomeEnding:
		return "ending"
	case OutcomeCommitted:
		return "committed"
	case OutcomeAborted:
		return "aborted"
	}
	return fmt.Sprintf("Outcome(%d)", int8(o))
}

// The states of a transaction (KIP-664, KIP-890). Others say nothing of one.
const (
	stateEmpty             = "Empty"
	stateOngoing           = "Ongoing"
	statePrepareCommit     = "PrepareCommit"
	statePrepareAbort      = "PrepareAbort"
	statePrepareEpochFence = "PrepareEpochFence"
	stateCompleteCommit    = "CompleteCommit"
	stateCompleteAbort     = "CompleteAbort"
)

func completeState(commit bool) string {
	if commit {
		return stateCompleteCommit
	}
	return stateCompleteAbort
}

// description is a transaction as DescribeTransactions shows it.
type description struct {
	state         string
	producerID    int64
	producerEpoch int16
	start         time.Time     // zero when nothing is open
	timeout       time.Duration // 0: none, the transaction is of two-phase commit
	forgotten     bool          // the coordinator has answered that it does not know the ID
}

// deadline is from when on the coordinator aborts the transaction; the zero time
// when it does not.
func (d description) deadline() time.Time {
	if d.start.IsZero() || d.timeout == 0 {
		return time.Time{}
	}
	return d.start.Add(d.timeout)
}

// judge says how the transaction of (producerID, epoch) ended, from what the
// coordinator describes. raises says that the end of a transaction raises the
// epoch by one, as with transaction.version 2 (KIP-890): an end that it describes
// of our own epoch is then that of the transaction before, and ours holds nothing
// yet. InitProducerId raises the epoch once more.
func judge(producerID int64, epoch int16, raises bool, d description) Outcome {
	if d.producerID != producerID || d.producerEpoch < epoch || d.producerEpoch > epoch+1 {
		return OutcomeUnknown
	}
	before := raises && d.producerEpoch == epoch
	switch d.state {
	case stateEmpty:
		if d.producerEpoch == epoch {
			return OutcomeOpen
		}
		return OutcomeUnknown
	case stateOngoing:
		if d.producerEpoch == epoch {
			return OutcomeOpen
		}
		return OutcomeUnknown // the next transaction of this producer
	case statePrepareCommit, statePrepareAbort, statePrepareEpochFence, stateCompleteCommit, stateCompleteAbort:
		switch {
		case before:
			return OutcomeOpen
		case d.state == stateCompleteCommit:
			return OutcomeCommitted
		case d.state == stateCompleteAbort:
			return OutcomeAborted
		}
		return OutcomeEnding
	}
	return OutcomeUnknown
}

// decided says what a transaction that is still ending will have been: its
// decision is durable before the first marker is written.
func decided(d description, o Outcome) Outcome {
	if o != OutcomeEnding {
		return OutcomeUnknown
	}
	return ended(d.state == statePrepareCommit)
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
		d := description{state: t.State, producerID: t.ProducerID, producerEpoch: t.ProducerEpoch}
		if t.StartTimestamp > 0 {
			d.start = time.UnixMilli(t.StartTimestamp)
		}
		if t.TimeoutMillis < math.MaxInt32 {
			d.timeout = time.Duration(t.TimeoutMillis) * time.Millisecond
		}
		return d, nil
	}
	return description{}, fmt.Errorf("describe transaction %q: not in the answer", transactionalID)
}

// outcomeWait bounds the search for the outcome of a commit.
const outcomeWait = 15 * time.Second

// isAnswer reports whether a broker gave the error as its answer, one that does
// not change by asking again.
func isAnswer(err error) bool {
	ke, ok := errors.AsType[*kerr.Error](err)
	return ok && ke != kerr.UnknownServerError && ke != kerr.RequestTimedOut && classOf(err) != retriable
}

// isDial reports whether no connection was to be had, so that nothing was sent.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// mayPass reports whether err is one of a broker that could not be asked, or not
// now: asked again, it may give another answer.
func mayPass(err error) bool {
	return cluster.IsUnanswered(err) || isDial(err) || classOf(err) == retriable ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, kerr.UnknownServerError) || errors.Is(err, kerr.RequestTimedOut)
}
