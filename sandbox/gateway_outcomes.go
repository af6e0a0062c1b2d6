package sandbox

import (
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DescribeTransactions: v0; ListTransactions: v0-2
//
// Behavior:
//   - kfake knows Ongoing and Empty. A client that lost the answer to its EndTxn
//     has to learn from CompleteCommit or CompleteAbort how it ended, so the
//     gateway remembers the end of each transaction that it passed on. An end
//     that it did not see is that of a timeout.
//   - a broker lists the transactions that it coordinates, kfake's brokers all
//
// Where we differ from a broker:
//   - what is remembered does not survive a restart: such a transaction is Empty

// The states of a transaction that is over (KIP-664).
const (
	txnEmpty          = "Empty"
	txnCompleteCommit = "CompleteCommit"
	txnCompleteAbort  = "CompleteAbort"
)

// txnOutcomes remembers how the last transaction of each transactional ID ended.
// The zero value is ready for use. It is safe for concurrent use.
type txnOutcomes struct {
	mu   sync.Mutex
	byID map[string]txnOutcome
}

// txnOutcome is the state that a transactional ID was left in, with the
// producer that it has since then.
type txnOutcome struct {
	producerID    int64
	producerEpoch int16
	state         string
}

func (o *txnOutcomes) note(transactionalID string, out txnOutcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byID == nil {
		o.byID = make(map[string]txnOutcome)
	}
	o.byID[transactionalID] = out
}

// state returns the state that a broker would describe.
func (o *txnOutcomes) state(transactionalID string, producerID int64, producerEpoch int16, state string) string {
	if state != txnEmpty {
		return state
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	last, ok := o.byID[transactionalID]
	switch {
	case !ok:
		return txnEmpty
	case last.producerID == producerID && last.producerEpoch == producerEpoch:
		return last.state
	}
	return txnCompleteAbort // the epoch rose without a request: it timed out
}

// completed is the state after an EndTxn.
func completed(commit bool) string {
	if commit {
		return txnCompleteCommit
	}
	return txnCompleteAbort
}

func (c *gatewayConn) handleDescribeTransactions(r *request, req *kmsg.DescribeTransactionsRequest) error {
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		d := resp.(*kmsg.DescribeTransactionsResponse)
		for i := range d.TransactionStates {
			s := &d.TransactionStates[i]
			s.State = c.g.outcomes.state(s.TransactionalID, s.ProducerID, s.ProducerEpoch, s.State)
		}
		return c.respond(r, d)
	})
}

func (c *gatewayConn) handleListTransactions(r *request, req *kmsg.ListTransactionsRequest) error {
	want := slices.Clone(req.StateFilters)
	frame := r.frame
	if slices.ContainsFunc(want, func(s string) bool { return s == txnCompleteCommit || s == txnCompleteAbort }) && !slices.Contains(want, txnEmpty) {
		req.StateFilters = append(req.StateFilters, txnEmpty)
		frame = appendRequest(nil, r, req)
	}
	return c.exchange(r, req, frame, func(resp kmsg.Response) error {
		list := resp.(*kmsg.ListTransactionsResponse)
		list.TransactionStates = slices.DeleteFunc(list.TransactionStates, func(s kmsg.ListTransactionsResponseTransactionState) bool {
			return c.g.kafka.coordinator(s.TransactionalID) != c.node.id
		})
		for i := range list.TransactionStates {
			s := &list.TransactionStates[i]
			if s.TransactionState != txnEmpty {
				continue
			}
			// The list has no epoch, which tells a timeout.
			described, ok, err := c.g.kafka.describeTransaction(c.g.ctx, s.TransactionalID)
			if err != nil {
				return err
			}
			if ok {
				s.TransactionState = c.g.outcomes.state(s.TransactionalID, described.producerID, described.producerEpoch, described.state)
			}
		}
		if len(want) > 0 {
			list.TransactionStates = slices.DeleteFunc(list.TransactionStates, func(s kmsg.ListTransactionsResponseTransactionState) bool {
				return !slices.Contains(want, s.TransactionState)
			})
		}
		return c.respond(r, list)
	})
}
