package inspect

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TxnOptions says which transactions to read. The zero value is those that are
// open and hold share acknowledgements.
type TxnOptions struct {
	// TransactionalIDs are the transactions to describe, whatever state they are
	// in; nil lists, and then what follows counts.
	TransactionalIDs []string
	// All is those without share acknowledgements too, and where States is empty
	// those that have ended.
	All    bool
	States []string // Kafka's names; empty: what All says
	// OlderThan leaves out what is not open, or began no longer ago.
	OlderThan time.Duration
	Pattern   string // as in [TransactionQuery]
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// TxnReport is what coordinators tell of transactions.
type TxnReport struct {
	ClusterID string    `json:"-"`
	Time      time.Time `json:"-"`
	Rows      []TxnRow  `json:"-"` // sorted by transactional ID
	// Others is how many transactions were left out because they hold no share
	// acknowledgements.
	Others int   `json:"without_share_acknowledgements"`
	Gaps   []Gap `json:"gaps"`
}

// TxnRow is one transaction. Nil is unknown throughout.
type TxnRow struct {
	TransactionalID string `json:"transactional_id"`
	State           string `json:"state"`
	ProducerID      int64  `json:"producer_id"`
	ProducerEpoch   *int16 `json:"producer_epoch"`
	Coordinator     int32  `json:"coordinator"`
	TimeoutMS       *int32 `json:"timeout_ms"`
	// TwoPhase: it never times out, see [Transaction.TwoPhase].
	TwoPhase bool `json:"two_phase"`
	// Started is when it began, or the last one of the ID where that has ended; nil
	// also when there was none.
	Started *time.Time `json:"started"`
	AgeMS   *int64     `json:"age_ms"` // never below 0; nil also when it is not open
	// Deadline is when it ends by itself at the latest; nil also when it never
	// does, or its end is decided.
	Deadline *time.Time `json:"deadline"`
	// HoldsShareAcks: share acknowledgements are staged in it.
	HoldsShareAcks *bool `json:"holds_share_acknowledgements"`
	// Partitions are what takes part in it.
	Partitions []TopicPartitions `json:"topic_partitions"`
}

// TransactionNotFoundError says that no coordinator knows a transactional ID.
type TransactionNotFoundError struct{ TransactionalID string }

// Error names the ID.
func (e *TransactionNotFoundError) Error() string {
	return fmt.Sprintf("no such transactional ID: %q", e.TransactionalID)
}

// Unwrap returns TRANSACTIONAL_ID_NOT_FOUND, which is what a coordinator answers.
func (*TransactionNotFoundError) Unwrap() error { return kerr.TransactionalIDNotFound }

// Hint says where to look.
func (*TransactionNotFoundError) Hint() string {
	return "'kshare inspect txn --all' lists what coordinators remember; they forget an ID that is not used for transactional.id.expiration.ms"
}

// DescribeTransactions reads transactions. What could not be seen is in the
// report. It may return, together with a report of the others, a
// *TransactionNotFoundError, or a *cluster.AuthError when no transaction that was
// asked for may be described; without one, *cluster.DialError, *cluster.AuthError,
// an error of the pattern, or that of ctx.
func DescribeTransactions(ctx context.Context, cl Cluster, o TxnOptions) (*TxnReport, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	d, err := cl.Describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe transactions: %w", err)
	}
	t := txnReader{cl: cl, o: o, brokers: d.Brokers}
	r := &TxnReport{ClusterID: d.ClusterID, Time: o.Now()}
	var txns []Transaction
	if o.TransactionalIDs != nil {
		txns, err = t.named(ctx)
	} else {
		txns, err = t.listed(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	sweep := readSweep(ctx, cl, d.Brokers)
	for _, txn := range txns {
		row := newTxnRow(txn, sweep, r.Time)
		if _, ok := txn.StatePartitions(); ok && (txn.HoldsShareAcks() || !t.hidesState()) {
			row.HoldsShareAcks = new(txn.HoldsShareAcks())
		}
		r.Rows = append(r.Rows, row)
	}
	missing := t.missing(ctx, txns)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r.Gaps = t.gaps.sorted()
	return r, missing
}

func newTxnRow(t Transaction, sweep time.Duration, now time.Time) TxnRow {
	r := TxnRow{
		TransactionalID: t.TransactionalID, State: t.State, ProducerID: t.ProducerID, ProducerEpoch: told(t.ProducerEpoch),
		Coordinator: t.Coordinator, TimeoutMS: told(t.TimeoutMS), TwoPhase: t.TwoPhase(),
		Started: known(t.Started), Deadline: known(t.Deadline(sweep)), Partitions: t.Partitions,
	}
	if t.Open() && r.Started != nil {
		r.AgeMS = new(max(0, now.Sub(t.Started).Milliseconds()))
	}
	return r
}

type txnReader struct {
	cl      Cluster
	o       TxnOptions
	brokers []cluster.BrokerVersions
	gaps    gapList
}

// hidesState reports whether it is hidden which transactions have partitions of
// __share_group_state.
func (t *txnReader) hidesState() bool {
	return slices.ContainsFunc(t.gaps.gaps, func(g Gap) bool {
		return g.Source == SourceMetadata || g.ACL != nil && *g.ACL == aclDescribeState
	})
}

// listed returns the transactions that the options choose.
func (t *txnReader) listed(ctx context.Context, r *TxnReport) ([]Transaction, error) {
	q := TransactionQuery{States: t.o.States, MinDuration: t.o.OlderThan, Pattern: t.o.Pattern, Describe: true, Now: t.o.Now}
	if len(q.States) == 0 && (!t.o.All || t.o.OlderThan > 0) {
		q.States = OpenStates()
	}
	gaps, err := ProbeTransactions(ctx, t.cl, t.brokers)
	if err != nil {
		return nil, err
	}
	t.gaps.add(gaps...)
	txns, gaps, err := ListTransactions(ctx, t.cl, t.brokers, q)
	if err != nil {
		return nil, err
	}
	t.gaps.add(gaps...)
	return slices.DeleteFunc(txns, func(txn Transaction) bool {
		switch {
		case t.o.OlderThan > 0 && !txn.Open():
			return true
		case !t.o.All && !txn.HoldsShareAcks() && !t.hidesState():
			r.Others++
			return true
		}
		return false
	}), nil
}

// named returns the transactions that are asked for. Their coordinators are found
// by listing: FindCoordinator would create __transaction_state where there is
// none.
func (t *txnReader) named(ctx context.Context) ([]Transaction, error) {
	listed, gaps, err := ListTransactions(ctx, t.cl, t.brokers, TransactionQuery{Pattern: anyOf(t.o.TransactionalIDs), Now: t.o.Now})
	if err != nil {
		return nil, err
	}
	t.gaps.add(gaps...)
	byNode := make(map[int32][]string)
	for _, txn := range listed {
		if slices.Contains(t.o.TransactionalIDs, txn.TransactionalID) {
			byNode[txn.Coordinator] = append(byNode[txn.Coordinator], txn.TransactionalID)
		}
	}
	found := make(map[string]Transaction)
	var mu sync.Mutex
	d := transactionDescriber{cl: t.cl, brokers: t.brokers, gaps: &t.gaps, took: func(id string, txn *Transaction) {
		mu.Lock()
		defer mu.Unlock()
		if txn != nil {
			found[id] = *txn
		}
	}}
	d.describe(ctx, byNode)
	if len(found) > 0 {
		p := prober{cl: t.cl, brokers: t.brokers}
		p.stateTopic(ctx)
		t.gaps.add(p.gaps.sorted()...)
	}
	txns := make([]Transaction, 0, len(found))
	for _, id := range slices.Sorted(maps.Keys(found)) {
		txns = append(txns, found[id])
	}
	return txns, nil
}

// maxPattern bounds the pattern that names IDs.
const maxPattern = 16 << 10

// anyOf is a pattern that exactly these IDs match; "", which all do, where there
// is none that is worth it.
func anyOf(ids []string) string {
	words := make([]string, 0, len(ids))
	for _, id := range ids {
		if !utf8.ValidString(id) {
			return ""
		}
		words = append(words, regexp.QuoteMeta(id))
	}
	if p := strings.Join(words, "|"); len(p) <= maxPattern {
		return p
	}
	return ""
}

// missing returns an error about the transactions that were asked for and are
// not known.
func (t *txnReader) missing(ctx context.Context, found []Transaction) error {
	var ids []string
	for _, id := range t.o.TransactionalIDs {
		if !slices.ContainsFunc(found, func(txn Transaction) bool { return txn.TransactionalID == id }) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	denied := t.denied(ctx, ids)
	hidden := slices.ContainsFunc(t.gaps.gaps, hidesTransactions)
	var errs []error
	for _, id := range ids {
		switch {
		case denied[id]:
			acl := ACL{"DESCRIBE", "TRANSACTIONAL_ID", id}
			t.gaps.add(aclGap(SourceDescribeTransactions, acl, kerr.TransactionalIDAuthorizationFailed, "the transaction is hidden from it"))
			if len(found) == 0 {
				err := &cluster.Error{Op: fmt.Sprintf("describe transaction %q", id), Broker: -1, Err: kerr.TransactionalIDAuthorizationFailed}
				errs = append(errs, &cluster.AuthError{Err: err, Advice: "grant it: " + acl.grant()})
			}
		case hidden: // it may be there
		default:
			errs = append(errs, &TransactionNotFoundError{TransactionalID: id})
		}
	}
	return cluster.Join(errs...)
}

// denied returns which IDs may not be described. Any broker tells: it checks
// access first.
func (t *txnReader) denied(ctx context.Context, ids []string) map[string]bool {
	out := make(map[string]bool)
	i := slices.IndexFunc(t.brokers, func(b cluster.BrokerVersions) bool { return b.Err == nil })
	if i < 0 {
		return out
	}
	for batch := range slices.Chunk(ids, describeBatch) {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = batch
		resp, err := ask[*kmsg.DescribeTransactionsResponse](ctx, t.cl, t.brokers[i].NodeID, req)
		if err != nil {
			t.gaps.add(newGap(SourceDescribeTransactions, t.brokers[i].NodeID, "describe "+some(batch), err))
			return out
		}
		for _, s := range resp.TransactionStates {
			out[s.TransactionalID] = s.ErrorCode == kerr.TransactionalIDAuthorizationFailed.Code
		}
	}
	return out
}
