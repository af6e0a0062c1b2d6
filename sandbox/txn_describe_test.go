package sandbox

import (
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// described is a transaction as DescribeTransactions shows it.
func (c *txnConn) described(t testing.TB) kmsg.DescribeTransactionsResponseTransactionState {
	t.Helper()
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{c.id}
	return askGateway[*kmsg.DescribeTransactionsResponse](t, c.rawConn, req).TransactionStates[0]
}

// listed returns the state that ListTransactions shows with a filter of states,
// "" where it does not list the transaction.
func (c *txnConn) listed(t testing.TB, states ...string) string {
	t.Helper()
	req := kmsg.NewPtrListTransactionsRequest()
	req.StateFilters, req.DurationFilterMillis = states, -1
	for _, s := range askGateway[*kmsg.ListTransactionsResponse](t, c.rawConn, req).TransactionStates {
		if s.TransactionalID == c.id {
			return s.TransactionState
		}
	}
	return ""
}

// A client that lost the answer to its EndTxn learns how the transaction ended.
func TestTransactionsSayHowTheyEnded(t *testing.T) {
	s := startSandbox(t)
	tests := map[string]struct {
		end  func(c *txnConn, producerID int64, epoch int16)
		want string
	}{
		"committed":             {func(c *txnConn, id int64, epoch int16) { c.end(t, 5, id, epoch, true) }, txnCompleteCommit},
		"committed by EndTxnV4": {func(c *txnConn, id int64, epoch int16) { c.end(t, 4, id, epoch, true) }, txnCompleteCommit},
		"aborted":               {func(c *txnConn, id int64, epoch int16) { c.end(t, 5, id, epoch, false) }, txnCompleteAbort},
		"fenced":                {func(c *txnConn, _ int64, _ int16) { c.init(t) }, txnEmpty},
		"still open":            {func(*txnConn, int64, int16) {}, txnOngoing},
		"open again after a commit": {func(c *txnConn, id int64, epoch int16) {
			next := c.end(t, 5, id, epoch, true)
			c.register(t, next.ProducerID, next.ProducerEpoch, 2)
		}, txnOngoing},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := dialCoordinator(t, s, name)
			id, epoch := c.init(t)
			if got := c.described(t).State; got != txnEmpty {
				t.Fatalf("a new transactional ID is %s", got)
			}
			c.register(t, id, epoch, 1)
			tt.end(c, id, epoch)
			d := c.described(t)
			if d.State != tt.want {
				t.Errorf("described as %s, want %s", d.State, tt.want)
			}
			if d.TimeoutMillis != 60_000 {
				t.Errorf("described with a timeout of %d ms, asked for 60 s", d.TimeoutMillis)
			}
			if got := c.listed(t); got != tt.want {
				t.Errorf("listed as %q, want %s", got, tt.want)
			}
			for _, filter := range []string{txnEmpty, txnOngoing, txnCompleteCommit, txnCompleteAbort} {
				want := ""
				if filter == tt.want {
					want = tt.want
				}
				if got := c.listed(t, filter); got != want {
					t.Errorf("listed as %q with filter %s, want %q", got, filter, want)
				}
			}
		})
	}
}

func TestTransactionThatTimedOutIsAborted(t *testing.T) {
	s := startSandbox(t)
	c := dialCoordinator(t, s, "late")
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis = 5, &c.id, 1
	init := askGateway[*kmsg.InitProducerIDResponse](t, c.rawConn, req)
	c.register(t, init.ProducerID, init.ProducerEpoch, 1)
	// The sandbox or kfake, whichever looks first, aborts it; the sandbox
	// writes its decision before it carries it out.
	for d := c.described(t); d.State != txnCompleteAbort; d = c.described(t) {
		if !slices.Contains([]string{txnOngoing, txnPrepareAbort}, d.State) || t.Context().Err() != nil {
			t.Fatalf("described as %s, want %s", d.State, txnCompleteAbort)
		}
	}
	if d := c.described(t); d.ProducerEpoch != init.ProducerEpoch+1 {
		t.Errorf("the epoch is %d, want %d", d.ProducerEpoch, init.ProducerEpoch+1)
	}
}
