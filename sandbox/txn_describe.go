package sandbox

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// DescribeTransactions: v0; ListTransactions: v0-2
//
// Behavior:
//   - kfake knows Ongoing and Empty. A client that lost the answer to its EndTxn
//     has to learn from CompleteCommit or CompleteAbort how it ended, so the
//     transaction log says how each transaction ended. An end that it does not
//     have is that of a timeout in kfake.
//   - the timeout is the one that the client asked for: see txn_sweeper.go
//   - while end markers are on their way the state is PrepareCommit or
//     PrepareAbort, and the partitions of __share_group_state that wait for one
//     are listed; all other partitions have theirs
//   - a broker lists the transactions that it coordinates, kfake's brokers all

// fillTransaction makes what kfake describes that of a broker.
func (c *gatewayConn) fillTransaction(r *request, s *kmsg.DescribeTransactionsResponseTransactionState) {
	if s.ErrorCode != 0 {
		return
	}
	if c.g.forgotten(s.TransactionalID) {
		*s = kmsg.DescribeTransactionsResponseTransactionState{
			TransactionalID: s.TransactionalID, ErrorCode: kerr.TransactionalIDNotFound.Code, ProducerID: -1, ProducerEpoch: -1,
		}
		return
	}
	txns := c.g.txns
	s.State = txns.state(s.TransactionalID, s.ProducerID, s.ProducerEpoch, s.State)
	rec, ok := txns.get(s.TransactionalID)
	if !ok {
		return
	}
	if rec.TimeoutMs > 0 {
		s.TimeoutMillis = rec.TimeoutMs
	}
	if s.State != rec.State || !rec.prepared() && !rec.AbortOnly {
		return
	}
	s.StartTimestamp = rec.StartMs
	if len(rec.StatePartitions) > 0 && len(s.Topics) == 0 && c.authorized(r, kmsg.ACLOperationDescribe, kmsg.ACLResourceTypeTopic, stateTopic) {
		t := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
		t.Topic, t.Partitions = stateTopic, rec.StatePartitions
		s.Topics = append(s.Topics, t)
	}
}

func (c *gatewayConn) handleDescribeTransactions(r *request, req *kmsg.DescribeTransactionsRequest) error {
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		d := resp.(*kmsg.DescribeTransactionsResponse)
		for i := range d.TransactionStates {
			c.fillTransaction(r, &d.TransactionStates[i])
		}
		return c.respond(r, d)
	})
}

func (c *gatewayConn) handleListTransactions(r *request, req *kmsg.ListTransactionsRequest) error {
	want := slices.Clone(req.StateFilters)
	frame := r.frame
	over := slices.ContainsFunc(want, func(s string) bool { return s == txnCompleteCommit || s == txnCompleteAbort })
	if len(want) > 0 && !slices.Contains(want, txnEmpty) && (over || c.g.txns.blockedCount.Load() > 0) {
		req.StateFilters = append(req.StateFilters, txnEmpty) // as which kfake knows all that is not open
		frame = appendRequest(nil, r, req)
	}
	return c.exchange(r, req, frame, func(resp kmsg.Response) error {
		list := resp.(*kmsg.ListTransactionsResponse)
		list.TransactionStates = slices.DeleteFunc(list.TransactionStates, func(s kmsg.ListTransactionsResponseTransactionState) bool {
			return c.g.kafka.coordinator(s.TransactionalID) != c.node.id || c.g.forgotten(s.TransactionalID)
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
				s.TransactionState = c.g.txns.state(s.TransactionalID, described.producerID, described.producerEpoch, described.state)
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
