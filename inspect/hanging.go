package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kshare/kshare/cluster"
)

// Hanging is a transaction that is open in a partition and whose end marker no
// coordinator will write: consumers with read_committed do not get past it
// (KIP-664).
type Hanging struct {
	Producer
	// Certain is false where the transaction that it belongs to may be one that
	// could not be seen.
	Certain bool
	// TransactionalID is the ID of the producer, and State that of its transaction;
	// "" where no coordinator tells.
	TransactionalID string
	State           string
	Reason          string // why it hangs, a sentence without a full stop
}

// findHanging joins the transactions that are open in partitions with those that
// coordinators tell of: a transaction hangs where it is open and no open
// transaction of its producer lists the partition. txns have to be described and
// have to be all of these producers, ended ones included; gaps are what could not
// be seen of them. It is pure. The result is in the order of open.
//
// A transaction that ends while the sources are read looks like one that hangs:
// look twice, as [ListHanging] does.
func findHanging(open []Producer, txns []Transaction, gaps []Gap) []Hanging {
	byProducer := make(map[int64]*Transaction, len(txns))
	for i := range txns {
		byProducer[txns[i].ProducerID] = &txns[i]
	}
	hidden := slices.ContainsFunc(gaps, hidesTransactions)
	var out []Hanging
	for _, p := range open {
		if p.TxnStartOffset < 0 {
			continue
		}
		h := Hanging{Producer: p, Certain: true}
		t := byProducer[p.ProducerID]
		if t != nil {
			h.TransactionalID, h.State = t.TransactionalID, t.State
		}
		switch {
		case t == nil && hidden:
			h.Certain, h.Reason = false, "no transaction of its producer is seen, and it may be hidden"
		case t == nil:
			h.Reason = "no coordinator knows a transaction of its producer"
		case !t.Open():
			h.Reason = fmt.Sprintf("its producer has no open transaction (%s), and no end marker has reached the partition", t.State)
		case t.Partitions == nil:
			h.Certain, h.Reason = false, "which partitions the transaction of its producer has is not known"
		case lists(t, p.Topic, p.Partition):
			continue
		default:
			h.Reason = fmt.Sprintf("the transaction of its producer (%s) does not list the partition", t.State)
		}
		out = append(out, h)
	}
	return out
}

func lists(t *Transaction, topic string, partition int32) bool {
	return slices.ContainsFunc(t.Partitions, func(tp TopicPartitions) bool {
		return tp.Topic == topic && slices.Contains(tp.Partitions, partition)
	})
}

// hidesTransactions reports whether a gap may hide a transaction.
func hidesTransactions(g Gap) bool {
	return g.Source == SourceListTransactions || g.Source == SourceDescribeTransactions || g.ACL != nil && g.ACL.ResourceType == "TRANSACTIONAL_ID"
}

// HangingOptions says where to look for hanging transactions. The zero value
// looks at every partition of every topic, internal ones included: transactions
// often hang in __consumer_offsets.
type HangingOptions struct {
	// Topics are the names of the topics to look at; nil: all.
	Topics []string
	// Partitions are the partitions to look at; nil: all.
	Partitions []int32
	// MinAge leaves out transactions whose last record is not older, by the clock
	// of this machine and that of the producer; 0: none. Kafka's own tool leaves
	// out those that could yet time out.
	MinAge time.Duration
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// HangingReport has the transactions that hang.
type HangingReport struct {
	ClusterID  string       `json:"-"`
	Time       time.Time    `json:"-"`
	Rows       []HangingRow `json:"-"` // sorted by topic, partition and producer ID
	Partitions int          `json:"partitions"`
	Gaps       []Gap        `json:"gaps"`
}

// HangingRow is a transaction that hangs. Nil is unknown throughout.
type HangingRow struct {
	Topic            string     `json:"topic"`
	Partition        int32      `json:"partition"`
	Leader           int32      `json:"leader"`
	ProducerID       int64      `json:"producer_id"`
	ProducerEpoch    int32      `json:"producer_epoch"`
	CoordinatorEpoch *int32     `json:"coordinator_epoch"` // nil also when none has written a marker
	StartOffset      int64      `json:"start_offset"`
	LastTimestamp    *time.Time `json:"last_timestamp"`
	AgeMS            *int64     `json:"age_ms"` // since LastTimestamp; never below 0
	TransactionalID  *string    `json:"transactional_id"`
	TransactionState *string    `json:"transaction_state"`
	Certain          bool       `json:"certain"`
	Reason           string     `json:"reason"`
	// Command is the kshare command that resolves it, as arguments after
	// "kshare"; nil where it is not certain.
	Command []string `json:"-"`
}

// ListHanging looks for transactions that hang, and looks again at those that
// seem to: a transaction that ends in between does not. It may return
// *cluster.DialError, *cluster.AuthError, or the error of ctx; what could not be
// seen is in the report.
func ListHanging(ctx context.Context, cl Cluster, o HangingOptions) (*HangingReport, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	d, err := cl.Describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("find hanging transactions: %w", err)
	}
	r := &HangingReport{ClusterID: d.ClusterID, Time: o.Now()}
	l := hangingLister{cl: cl, o: o, brokers: d.Brokers}
	topics, err := l.topics(ctx)
	if err != nil {
		return nil, fmt.Errorf("find hanging transactions: %w", err)
	}
	for _, t := range topics {
		r.Partitions += len(t.Partitions)
	}
	hanging, err := l.look(ctx, topics)
	if err == nil && len(hanging) > 0 {
		hanging, err = l.lookAgain(ctx, topics, hanging)
	}
	if err != nil {
		return nil, err
	}
	for _, h := range hanging {
		if o.MinAge == 0 || h.LastTimestamp.IsZero() || r.Time.Sub(h.LastTimestamp) > o.MinAge {
			r.Rows = append(r.Rows, newHangingRow(h, r.Time))
		}
	}
	r.Gaps = l.gaps.sorted()
	return r, nil
}

type hangingLister struct {
	cl      Cluster
	o       HangingOptions
	brokers []cluster.BrokerVersions
	gaps    gapList
	probed  bool
}

// topics returns what to look at.
func (l *hangingLister) topics(ctx context.Context) ([]cluster.Topic, error) {
	var topics []cluster.Topic
	if l.o.Topics != nil {
		named, err := l.cl.Topics(ctx, l.o.Topics...)
		if err != nil {
			return nil, err
		}
		for _, name := range l.o.Topics {
			topics = append(topics, named[name])
		}
	} else {
		var err error
		if topics, err = l.cl.AllTopics(ctx); err != nil {
			return nil, err
		}
		p := prober{cl: l.cl, brokers: l.brokers}
		p.topics(ctx, SourceMetadata, "transactions that are open in them are hidden too")
		l.gaps.add(p.gaps.sorted()...)
	}
	if l.o.Partitions != nil {
		for i := range topics {
			topics[i].Partitions = slices.DeleteFunc(slices.Clone(topics[i].Partitions), func(p cluster.Partition) bool {
				return !slices.Contains(l.o.Partitions, p.Partition)
			})
		}
	}
	return topics, nil
}

// look reads what is open in partitions, and joins it with what coordinators
// tell.
func (l *hangingLister) look(ctx context.Context, topics []cluster.Topic) ([]Hanging, error) {
	open, gaps, err := DescribeProducers(ctx, l.cl, ProducerQuery{Topics: topics, Open: true})
	if err != nil {
		return nil, err
	}
	l.gaps.add(gaps...)
	var ids []int64
	for _, p := range open {
		ids = append(ids, p.ProducerID)
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) == 0 {
		return nil, ctx.Err()
	}
	if !l.probed { // whether anything is hidden only matters now
		p := prober{cl: l.cl, brokers: l.brokers}
		p.transactionalIDs(ctx)
		l.gaps.add(p.gaps.sorted()...)
		l.probed = true
	}
	txns, gaps, err := ListTransactions(ctx, l.cl, l.brokers, TransactionQuery{ProducerIDs: ids, Describe: true, Now: l.o.Now})
	if err != nil {
		return nil, err
	}
	l.gaps.add(gaps...)
	return findHanging(open, txns, l.gaps.gaps), nil
}

// lookAgain returns what of hanging still hangs, the same as before.
func (l *hangingLister) lookAgain(ctx context.Context, topics []cluster.Topic, hanging []Hanging) ([]Hanging, error) {
	suspect := make(map[topicPartition]bool, len(hanging))
	before := make(map[Producer]bool, len(hanging))
	for _, h := range hanging {
		suspect[topicPartition{h.Topic, h.Partition}] = true
		before[openTransaction(h.Producer)] = true
	}
	var again []cluster.Topic
	for _, t := range topics {
		t.Partitions = slices.DeleteFunc(slices.Clone(t.Partitions), func(p cluster.Partition) bool { return !suspect[topicPartition{t.Name, p.Partition}] })
		if len(t.Partitions) > 0 {
			again = append(again, t)
		}
	}
	found, err := l.look(ctx, again)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(h Hanging) bool { return !before[openTransaction(h.Producer)] }), nil
}

// openTransaction is p without what changes while its transaction is open.
func openTransaction(p Producer) Producer {
	return Producer{Topic: p.Topic, Partition: p.Partition, ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, TxnStartOffset: p.TxnStartOffset}
}

func newHangingRow(h Hanging, now time.Time) HangingRow {
	r := HangingRow{
		Topic: h.Topic, Partition: h.Partition, Leader: h.Leader, ProducerID: h.ProducerID, ProducerEpoch: h.ProducerEpoch,
		CoordinatorEpoch: told(h.CoordinatorEpoch), StartOffset: h.TxnStartOffset, LastTimestamp: known(h.LastTimestamp),
		Certain: h.Certain, Reason: h.Reason,
	}
	if r.LastTimestamp != nil {
		r.AgeMS = new(max(0, now.Sub(h.LastTimestamp).Milliseconds()))
	}
	if h.TransactionalID != "" {
		r.TransactionalID, r.TransactionState = &h.TransactionalID, &h.State
	}
	if h.Certain {
		r.Command = []string{
			"txn", "abort", "--topic", h.Topic, "--partition", strconv.Itoa(int(h.Partition)),
			"--producer-id", strconv.FormatInt(h.ProducerID, 10), "--producer-epoch", strconv.Itoa(int(h.ProducerEpoch)),
		}
	}
	return r
}
