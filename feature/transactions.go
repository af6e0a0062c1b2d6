package feature

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stateTopic holds the state of share-partitions (KIP-932). A transaction that
// has share acknowledgements staged has partitions of it as participants.
const stateTopic = "__share_group_state"

// OpenTransactions is what is known of the transactions that have not ended.
type OpenTransactions struct {
	Transactions []Transaction // sorted by transactional ID
	// Unknown says, a sentence each, why there may be more than those, or why
	// it is not known whether they hold share acknowledgements. No transaction
	// and nothing unknown is none.
	Unknown []string
	// Advice is what to do about the first of Unknown; "" when there is nothing
	// to say.
	Advice string
}

// Transaction is a transaction that is open: begun and not ended, or ended and
// its markers not all written (PrepareCommit, PrepareAbort).
type Transaction struct {
	TransactionalID string     `json:"transactional_id"`
	State           string     `json:"state"`
	ProducerID      int64      `json:"producer_id"`
	Coordinator     int32      `json:"coordinator"`
	Started         *time.Time `json:"started"`    // nil when the coordinator does not say
	TimeoutMS       *int32     `json:"timeout_ms"` // nil when it does not say
	// HoldsShareAcks says whether share acknowledgements may be staged in it;
	// nil when it is not known.
	HoldsShareAcks *bool `json:"holds_share_acknowledgements"`
}

// HoldingShareAcks returns the transactions that hold share acknowledgements,
// or of which it is not known.
func (o *OpenTransactions) HoldingShareAcks() []Transaction {
	var out []Transaction
	for _, t := range o.Transactions {
		if t.HoldsShareAcks == nil || *t.HoldsShareAcks {
			out = append(out, t)
		}
	}
	return out
}

// openStates are the states of a transaction that has not ended. The last is
// that of a fenced producer whose transaction is being aborted (Kafka before
// 4.0); brokers that do not know a state pass it over.
func openStates() []string {
	return []string{"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"}
}

// ListOpen asks every broker of the report for its open transactions, and the
// coordinators whether they hold share acknowledgements. What could not be read
// is in the result: the call fails only with the error of ctx.
func ListOpen(ctx context.Context, cl Cluster, r *Report) (*OpenTransactions, error) {
	c := &openCollector{cl: cl, found: make(map[string]*Transaction)}
	for _, u := range r.Unknowns() {
		c.unknown("start the broker, or unregister it if it is gone for good", "%s", u)
	}
	var probed bool
	for _, b := range r.versions {
		if b.Err != nil {
			continue
		}
		if !probed {
			c.probeACLs(ctx, b.NodeID)
			probed = true
		}
		c.list(ctx, b)
	}
	c.describe(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for _, t := range c.found {
		if slices.Contains(openStates(), t.State) {
			c.out.Transactions = append(c.out.Transactions, *t)
		}
	}
	slices.SortFunc(c.out.Transactions, func(a, b Transaction) int { return strings.Compare(a.TransactionalID, b.TransactionalID) })
	return &c.out, nil
}

type openCollector struct {
	cl    Cluster
	found map[string]*Transaction
	out   OpenTransactions
}

func (c *openCollector) unknown(advice, format string, args ...any) {
	if len(c.out.Unknown) == 0 {
		c.out.Advice = advice
	}
	c.out.Unknown = append(c.out.Unknown, fmt.Sprintf(format, args...))
}

const (
	adviceTransactionalID = "grant DESCRIBE on all transactional IDs to this principal: bin/kafka-acls.sh --add --operation Describe --transactional-id '*'"
	adviceStateTopic      = "grant DESCRIBE on topic " + stateTopic + " to this principal"
)

// probeACLs finds out whether anything is hidden from this principal: a broker
// leaves out what may not be described, without a word. A transactional ID that
// nobody has is described on a broker that need not be its coordinator; the
// check of access comes first. One is only let through where all IDs are.
func (c *openCollector) probeACLs(ctx context.Context, node int32) {
	id := "kshare-probe-" + rand.Text()
	states, err := c.describeAt(ctx, node, []string{id})
	switch {
	case err != nil:
		c.unknown("", "find out whether transactions are hidden: %s", cluster.Name(err))
	case len(states) != 1:
		c.unknown("", "find out whether transactions are hidden: broker %d gave %d answers", node, len(states))
	case states[0].ErrorCode == kerr.TransactionalIDAuthorizationFailed.Code:
		c.unknown(adviceTransactionalID, "this principal may not describe every transactional ID (%s), so open transactions may be hidden from it", kerr.TransactionalIDAuthorizationFailed.Message)
	}
	_, err = c.cl.Topics(ctx, stateTopic)
	switch {
	case err == nil, errors.Is(err, kerr.UnknownTopicOrPartition): // without the topic there are no share groups
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		c.unknown(adviceStateTopic, "this principal may not describe topic %s (%s), so it is hidden which transactions hold share acknowledgements", stateTopic, kerr.TopicAuthorizationFailed.Message)
	default:
		c.unknown("", "describe topic %s: %s", stateTopic, cluster.Name(err))
	}
}

// list adds the open transactions that a broker coordinates.
func (c *openCollector) list(ctx context.Context, b cluster.BrokerVersions) {
	if _, ok := b.Keys[int16(kmsg.ListTransactions)]; !ok {
		c.unknown("", "broker %d cannot list its transactions: its software is older than Kafka 3.0", b.NodeID)
		return
	}
	req := kmsg.NewPtrListTransactionsRequest()
	req.StateFilters = openStates()
	kresp, err := c.cl.RequestBroker(ctx, b.NodeID, req)
	if err == nil {
		err = kerr.ErrorForCode(kresp.(*kmsg.ListTransactionsResponse).ErrorCode)
	}
	if err != nil {
		c.unknown("", "list transactions: broker %d: %s", b.NodeID, cluster.Name(err))
		return
	}
	for _, t := range kresp.(*kmsg.ListTransactionsResponse).TransactionStates {
		c.found[t.TransactionalID] = &Transaction{
			TransactionalID: t.TransactionalID, State: t.TransactionState, ProducerID: t.ProducerID, Coordinator: b.NodeID,
		}
	}
}

// describeBatch is how many transactions are described with one request.
const describeBatch = 500

// describe asks the coordinators about all that was found.
func (c *openCollector) describe(ctx context.Context) {
	byNode := make(map[int32][]string)
	for id, t := range c.found {
		byNode[t.Coordinator] = append(byNode[t.Coordinator], id)
	}
	for node, ids := range byNode {
		slices.Sort(ids)
		for batch := range slices.Chunk(ids, describeBatch) {
			states, err := c.describeAt(ctx, node, batch)
			if err != nil {
				c.unknown("", "describe transactions: broker %d: %s", node, cluster.Name(err))
				continue
			}
			c.described(ctx, states)
		}
	}
}

func (c *openCollector) describeAt(ctx context.Context, node int32, ids []string) ([]kmsg.DescribeTransactionsResponseTransactionState, error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = ids
	kresp, err := c.cl.RequestBroker(ctx, node, req)
	if err != nil {
		return nil, err
	}
	return kresp.(*kmsg.DescribeTransactionsResponse).TransactionStates, nil
}

// described takes over the answers of a broker. Of an ID whose coordinator has
// moved since it was listed, the new one is asked.
func (c *openCollector) described(ctx context.Context, states []kmsg.DescribeTransactionsResponseTransactionState) {
	var moved []string
	for _, s := range states {
		if s.ErrorCode == kerr.NotCoordinator.Code {
			moved = append(moved, s.TransactionalID)
			continue
		}
		c.take(s)
	}
	if len(moved) == 0 {
		return
	}
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = moved
	kresp, err := c.cl.Request(ctx, req)
	if err != nil {
		c.unknown("", "describe transactions: %s", cluster.Name(err))
		return
	}
	for _, s := range kresp.(*kmsg.DescribeTransactionsResponse).TransactionStates {
		c.take(s)
	}
}

func (c *openCollector) take(s kmsg.DescribeTransactionsResponseTransactionState) {
	t := c.found[s.TransactionalID]
	if t == nil {
		return
	}
	switch err := kerr.ErrorForCode(s.ErrorCode); {
	case errors.Is(err, kerr.TransactionalIDNotFound):
		delete(c.found, s.TransactionalID) // it ended and expired since it was listed
		return
	case err != nil:
		c.unknown("", "describe transaction %q: %s", s.TransactionalID, cluster.Name(err))
		return
	}
	t.State, t.ProducerID, t.TimeoutMS = s.State, s.ProducerID, new(s.TimeoutMillis)
	if s.StartTimestamp >= 0 {
		t.Started = new(time.UnixMilli(s.StartTimestamp).UTC())
	}
	t.HoldsShareAcks = new(slices.ContainsFunc(s.Topics, func(topic kmsg.DescribeTransactionsResponseTransactionStateTopic) bool {
		return topic.Topic == stateTopic
	}))
}
