package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TransactionQuery says which transactions to list; the zero value is all of
// them, ended ones included, as far as their coordinators remember.
type TransactionQuery struct {
	States      []string // Kafka's names; empty: any
	ProducerIDs []int64  // empty: any
	// MinDuration leaves out transactions that began no longer ago than that, by
	// the coordinator's clock where the broker filters itself, and by Now
	// otherwise; 0: none. As with Kafka's own filter, those that have not begun
	// are not left out.
	MinDuration time.Duration
	// Pattern is a regular expression (RE2) that the whole transactional ID has to
	// match; "": any.
	Pattern string
	// Describe asks the coordinators for all that they know of each. Without it,
	// epoch, timeout, start and partitions are not told.
	Describe bool
	// Now is the clock that stands in for the coordinator's; nil is time.Now.
	Now func() time.Time
}

// OpenStates returns the states of a transaction that has begun and not ended.
// The last is that of a fenced producer whose transaction is being aborted (Kafka
// before 4.0); brokers that do not know a state pass it over.
func OpenStates() []string {
	return []string{"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
}

// The versions of ListTransactions that brought a filter (KIP-994, KIP-1152).
const (
	listWithDuration = 1
	listWithPattern  = 2
)

// describeBatch is how many transactions are described with one request.
const describeBatch = 500

// ListTransactions asks every broker for the transactions that it coordinates
// (ListTransactions v0 to v2), and if need be describes them (DescribeTransactions
// v0). The result is sorted by transactional ID, which is unique in it. What could
// not be seen is in the gaps; the rows stand all the same. That transactional IDs
// are hidden from this principal no broker tells: see [ProbeTransactions].
//
// The error is that of ctx, or a pattern that is none.
func ListTransactions(ctx context.Context, cl Cluster, brokers []cluster.BrokerVersions, q TransactionQuery) ([]Transaction, []Gap, error) {
	l := transactionLister{cl: cl, q: q, found: make(map[string]*listedTransaction)}
	if q.Pattern != "" {
		whole, err := regexp.Compile(`\A(?:` + q.Pattern + `)\z`)
		if err != nil {
			return nil, nil, fmt.Errorf("pattern %q of transactional IDs: %w", q.Pattern, err)
		}
		l.pattern = whole
	}
	if q.Now == nil {
		l.q.Now = time.Now
	}
	each(brokers, inFlight, func(b cluster.BrokerVersions) { l.list(ctx, b) })
	l.describe(ctx, brokers)
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	return l.rows(), l.gaps.sorted(), nil
}

type transactionLister struct {
	cl      Cluster
	q       TransactionQuery
	pattern *regexp.Regexp // nil: any
	gaps    gapList

	mu    sync.Mutex
	found map[string]*listedTransaction
}

type listedTransaction struct {
	Transaction
	// ownDuration: its broker does not filter by duration.
	ownDuration bool
}

func (l *transactionLister) list(ctx context.Context, b cluster.BrokerVersions) {
	versions, ok := b.Keys[int16(kmsg.ListTransactions)]
	switch {
	case b.Err != nil:
		l.gaps.add(silentGap(SourceListTransactions, b))
		return
	case !ok:
		l.gaps.add(newGap(SourceListTransactions, b.NodeID, "list its transactions", errors.New("its software is older than Kafka 3.0")))
		return
	}
	req := kmsg.NewPtrListTransactionsRequest()
	req.StateFilters, req.ProducerIDFilters = l.q.States, l.q.ProducerIDs
	duration := l.q.MinDuration > 0 && versions.Max >= listWithDuration
	if duration {
		req.DurationFilterMillis = l.q.MinDuration.Milliseconds()
	}
	if l.pattern != nil && versions.Max >= listWithPattern {
		req.TransactionalIDPattern = &l.q.Pattern
	}
	resp, err := l.listAt(ctx, b.NodeID, req)
	if err != nil {
		l.gaps.add(newGap(SourceListTransactions, b.NodeID, "list its transactions", err))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range resp.TransactionStates {
		if l.pattern != nil && !l.pattern.MatchString(t.TransactionalID) {
			continue
		}
		l.found[t.TransactionalID] = &listedTransaction{
			Transaction: Transaction{
				TransactionalID: t.TransactionalID, State: t.TransactionState, ProducerID: t.ProducerID,
				ProducerEpoch: -1, Coordinator: b.NodeID, TimeoutMS: -1,
			},
			ownDuration: l.q.MinDuration > 0 && !duration,
		}
	}
}

// listAt asks one broker until it has loaded what it coordinates.
func (l *transactionLister) listAt(ctx context.Context, node int32, req *kmsg.ListTransactionsRequest) (*kmsg.ListTransactionsResponse, error) {
	for try := 1; ; try++ {
		resp, err := ask[*kmsg.ListTransactionsResponse](ctx, l.cl, node, req)
		if err != nil {
			return nil, err
		}
		if resp.ErrorCode == 0 {
			return resp, nil
		}
		if lastTry(ctx, try) || !movedCoordinator(resp.ErrorCode) {
			return nil, kerr.ErrorForCode(resp.ErrorCode)
		}
		if err := pause.For(ctx, backoff(try)); err != nil {
			return nil, err
		}
	}
}

// describe asks the coordinators about all that was found and has to be
// described.
func (l *transactionLister) describe(ctx context.Context, brokers []cluster.BrokerVersions) {
	byNode := make(map[int32][]string)
	for id, t := range l.found {
		if l.q.Describe || t.ownDuration {
			byNode[t.Coordinator] = append(byNode[t.Coordinator], id)
		}
	}
	d := transactionDescriber{cl: l.cl, brokers: brokers, gaps: &l.gaps, took: l.took}
	d.describe(ctx, byNode)
}

// took takes over what a coordinator says of a transaction; nil is that there is
// none of that ID.
func (l *transactionLister) took(id string, described *Transaction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if described == nil {
		delete(l.found, id) // it ended and expired since it was listed
		return
	}
	l.found[id].Transaction = *described
}

// rows returns what fits the query, also where it was listed and has changed
// since.
func (l *transactionLister) rows() []Transaction {
	producers := make(map[int64]bool, len(l.q.ProducerIDs))
	for _, id := range l.q.ProducerIDs {
		producers[id] = true
	}
	var out []Transaction
	for _, t := range l.found {
		switch {
		case len(l.q.States) > 0 && !slices.Contains(l.q.States, t.State):
		case len(producers) > 0 && !producers[t.ProducerID]:
		case t.ownDuration && !t.Started.IsZero() && l.q.Now().Sub(t.Started) <= l.q.MinDuration:
		default:
			out = append(out, t.Transaction)
		}
	}
	slices.SortFunc(out, func(a, b Transaction) int { return strings.Compare(a.TransactionalID, b.TransactionalID) })
	return out
}

// transactionDescriber describes transactions, and follows those whose
// coordinator moves.
type transactionDescriber struct {
	cl      Cluster
	brokers []cluster.BrokerVersions
	gaps    *gapList
	// took is called concurrently with what each coordinator says; with nil for
	// an ID that it does not know.
	took func(id string, t *Transaction)
}

// astray is a transaction that the broker which was asked did not describe,
// since it is not its coordinator, or not yet, or went away.
type astray struct {
	id   string
	node int32 // that was asked
	err  error
}

// describe describes transactional IDs, by the node to ask first.
func (d *transactionDescriber) describe(ctx context.Context, byNode map[int32][]string) {
	var named map[string]int32
	for try := 1; ; try++ {
		lost := d.round(ctx, byNode)
		if len(lost) == 0 || ctx.Err() != nil {
			return
		}
		if lastTry(ctx, try) {
			d.giveUp(lost, named)
			return
		}
		if pause.For(ctx, backoff(try)) != nil {
			return
		}
		named = d.find(ctx, lost)
		clear(byNode)
		for _, a := range lost {
			node, ok := named[a.id]
			if !ok {
				node = a.node
			}
			byNode[node] = append(byNode[node], a.id)
		}
	}
}

type describeBatchOf struct {
	node int32
	ids  []string
}

// round asks each node once for each of its batches.
func (d *transactionDescriber) round(ctx context.Context, byNode map[int32][]string) []astray {
	var batches []describeBatchOf
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		slices.Sort(byNode[node])
		for ids := range slices.Chunk(byNode[node], describeBatch) {
			batches = append(batches, describeBatchOf{node, ids})
		}
	}
	var mu sync.Mutex
	var lost []astray
	each(batches, inFlight, func(b describeBatchOf) {
		l := d.batch(ctx, b)
		mu.Lock()
		defer mu.Unlock()
		lost = append(lost, l...)
	})
	slices.SortFunc(lost, func(a, b astray) int { return strings.Compare(a.id, b.id) })
	return lost
}

func (d *transactionDescriber) batch(ctx context.Context, b describeBatchOf) (lost []astray) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = b.ids
	resp, err := ask[*kmsg.DescribeTransactionsResponse](ctx, d.cl, b.node, req)
	switch {
	case err != nil && cluster.IsUnanswered(err) && !isTimeout(err):
		for _, id := range b.ids { // the broker went away, and what it coordinates moves
			lost = append(lost, astray{id, b.node, err})
		}
		return lost
	case err != nil:
		d.gaps.add(newGap(SourceDescribeTransactions, b.node, fmt.Sprintf("describe %s", some(b.ids)), err))
		return nil
	}
	failed := make(map[int16][]string)
	for i := range resp.TransactionStates {
		s := &resp.TransactionStates[i]
		switch code := s.ErrorCode; {
		case code == 0:
			d.took(s.TransactionalID, newTransaction(s, b.node))
		case code == kerr.TransactionalIDNotFound.Code:
			d.took(s.TransactionalID, nil)
		case movedCoordinator(code):
			lost = append(lost, astray{s.TransactionalID, b.node, kerr.ErrorForCode(code)})
		default:
			failed[code] = append(failed[code], s.TransactionalID)
		}
	}
	for code, ids := range failed {
		d.gaps.add(describeGap(b.node, ids, kerr.ErrorForCode(code)))
	}
	return lost
}

func describeGap(node int32, ids []string, err error) Gap {
	g := newGap(SourceDescribeTransactions, node, "describe "+some(ids), err)
	if errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		acl := aclTransactionalIDs
		g.ACL, g.Advice = &acl, "grant it: "+acl.grant()
	}
	return g
}

// some names the first of several transactional IDs.
func some(ids []string) string {
	if len(ids) == 1 {
		return fmt.Sprintf("transaction %q", ids[0])
	}
	return fmt.Sprintf("%d transactions, %q among them", len(ids), slices.Min(ids))
}

func newTransaction(s *kmsg.DescribeTransactionsResponseTransactionState, node int32) *Transaction {
	t := &Transaction{
		TransactionalID: s.TransactionalID, State: s.State, ProducerID: s.ProducerID, ProducerEpoch: s.ProducerEpoch,
		Coordinator: node, TimeoutMS: s.TimeoutMillis, Partitions: make([]TopicPartitions, 0, len(s.Topics)),
	}
	if s.StartTimestamp >= 0 {
		t.Started = time.UnixMilli(s.StartTimestamp).UTC()
	}
	for _, topic := range s.Topics {
		slices.Sort(topic.Partitions)
		t.Partitions = append(t.Partitions, TopicPartitions{topic.Topic, topic.Partitions})
	}
	slices.SortFunc(t.Partitions, func(a, b TopicPartitions) int { return cmp.Compare(a.Topic, b.Topic) })
	return t
}

// coordinatorTypeTransaction is the key type of FindCoordinator for
// transactional IDs.
const coordinatorTypeTransaction = 1

// find looks up who coordinates transactions now. Their IDs were listed, so that
// __transaction_state exists: a look-up would create it otherwise.
func (d *transactionDescriber) find(ctx context.Context, lost []astray) map[string]int32 {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType = coordinatorTypeTransaction
	for _, a := range lost {
		req.CoordinatorKeys = append(req.CoordinatorKeys, a.id)
	}
	named := make(map[string]int32, len(lost))
	for _, b := range d.brokers {
		if b.Err != nil {
			continue
		}
		resp, err := ask[*kmsg.FindCoordinatorResponse](ctx, d.cl, b.NodeID, req)
		if err != nil {
			continue
		}
		for _, c := range resp.Coordinators {
			if c.ErrorCode == 0 {
				named[c.Key] = c.NodeID
			}
		}
		break
	}
	return named
}

// giveUp leaves a gap for each node that was asked last in vain.
func (d *transactionDescriber) giveUp(lost []astray, named map[string]int32) {
	type failure struct {
		node  int32
		named bool
		text  string
	}
	ids := make(map[failure][]string)
	errs := make(map[failure]error)
	for _, a := range lost {
		_, ok := named[a.id]
		f := failure{a.node, ok, a.err.Error()}
		ids[f] = append(ids[f], a.id)
		errs[f] = a.err
	}
	for f, err := range errs {
		g := newGap(SourceDescribeTransactions, f.node, "describe "+some(ids[f]), err)
		if f.named {
			g.Reason += fmt.Sprintf(", and after %d look-ups FindCoordinator still names broker %d", tries-1, f.node)
		} else {
			g.Reason += fmt.Sprintf(", and in %d look-ups FindCoordinator named no other", tries-1)
		}
		d.gaps.add(g)
	}
}
