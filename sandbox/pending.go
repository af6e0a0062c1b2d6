package sandbox

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The ground truth of transactions, which no request of Kafka's tells in full.

// PendingRange is a range of records in TX_PENDING that have one owner.
type PendingRange struct {
	GroupID         string `json:"group_id"`
	Topic           string `json:"topic"`
	Partition       int32  `json:"partition"`
	FirstOffset     int64  `json:"first_offset"`
	LastOffset      int64  `json:"last_offset"` // inclusive
	DeliveryCount   int16  `json:"delivery_count"`
	AcknowledgeType int8   `json:"acknowledge_type"` // that was staged: 0 gap, 1 accept, 3 reject
	// MemberID is "" after a leader has loaded the records.
	MemberID      string `json:"member_id"`
	ProducerID    int64  `json:"producer_id"`
	ProducerEpoch int16  `json:"producer_epoch"`
	// TransactionalID is "" where it is not known.
	TransactionalID string `json:"transactional_id"`
	StatePartition  int32  `json:"state_partition"` // of __share_group_state
	Loaded          bool   `json:"loaded"`          // a leader has it in memory
}

// Count is the number of records.
func (r PendingRange) Count() int64 { return r.LastOffset - r.FirstOffset + 1 }

// OpenTransaction is a transaction that holds share acknowledgements, or had, and
// is not over.
type OpenTransaction struct {
	TransactionalID string     `json:"transactional_id"`
	ProducerID      int64      `json:"producer_id"`
	ProducerEpoch   int16      `json:"producer_epoch"`
	State           string     `json:"state"` // "Ongoing", "PrepareCommit" or "PrepareAbort"
	Start           *time.Time `json:"start"` // null where it is not known
	TimeoutMs       int64      `json:"timeout_ms"`
	// StatePartitions of __share_group_state take part; in a Prepare state
	// those that have not got their end marker.
	StatePartitions []int32 `json:"state_partitions"`
	// OtherPartitions counts the partitions of other topics.
	OtherPartitions int `json:"other_partitions"`
	// AbortOnly says that a part of it was lost in a crash.
	AbortOnly bool `json:"abort_only"`
	// Forgotten says that its coordinator does not know it, by a fault.
	Forgotten bool `json:"forgotten"`
}

// Pending returns the records in TX_PENDING, by group, topic, partition and
// offset. A share-partition is read as its leader holds it, or, if no leader has
// loaded it, as it is persisted.
func (s *Sandbox) Pending() []PendingRange { return s.plane.pendingRanges() }

// OpenParticipants returns the transactions that are not over, by transactional
// ID: those that have no share acknowledgements too.
func (s *Sandbox) OpenParticipants(ctx context.Context) ([]OpenTransaction, error) {
	open, err := s.kafka.listTransactions(ctx)
	if err != nil {
		return nil, err
	}
	out := []OpenTransaction{}
	for _, st := range open {
		d, err := s.kafka.describeKafkaTransaction(ctx, st.transactionalID)
		if err != nil {
			return nil, err
		}
		if d == nil || d.State != txnOngoing {
			continue
		}
		start := st.start.UTC()
		t := OpenTransaction{
			TransactionalID: st.transactionalID, ProducerID: d.ProducerID, ProducerEpoch: d.ProducerEpoch, State: txnOngoing,
			Start: &start, TimeoutMs: s.txns.timeout(st.transactionalID, st.timeout).Milliseconds(),
			StatePartitions: []int32{}, Forgotten: s.gateway.forgotten(st.transactionalID),
		}
		t.addPartitions(d.Topics)
		out = append(out, t)
	}
	for _, r := range s.txns.all() {
		if r.prepared() || r.AbortOnly {
			start := time.UnixMilli(r.StartMs).UTC()
			out = append(out, OpenTransaction{
				TransactionalID: r.TransactionalID, ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch, State: r.State,
				Start: &start, TimeoutMs: int64(r.TimeoutMs), StatePartitions: slices.Concat([]int32{}, r.StatePartitions), AbortOnly: r.AbortOnly,
				Forgotten: s.gateway.forgotten(r.TransactionalID),
			})
		}
	}
	slices.SortFunc(out, func(a, b OpenTransaction) int { return cmp.Compare(a.TransactionalID, b.TransactionalID) })
	return slices.CompactFunc(out, func(a, b OpenTransaction) bool { return a.TransactionalID == b.TransactionalID }), nil
}

func (t *OpenTransaction) addPartitions(topics []kmsg.DescribeTransactionsResponseTransactionStateTopic) {
	for _, topic := range topics {
		if topic.Topic == stateTopic {
			t.StatePartitions = append(t.StatePartitions, topic.Partitions...)
			slices.Sort(t.StatePartitions)
			continue
		}
		t.OtherPartitions += len(topic.Partitions)
	}
}

// pendingRanges implements [Sandbox.Pending].
func (p *plane) pendingRanges() []PendingRange {
	out := []PendingRange{}
	loaded := make(map[shareStateKey]bool)
	for _, lp := range p.leadsOf(leadSelector{}) {
		select {
		case <-lp.ready:
		default:
			continue // being loaded
		}
		lp.mu.Lock()
		if lp.sp != nil && !lp.retired {
			loaded[lp.key] = true
			for _, r := range lp.sp.pending() {
				out = append(out, p.pendingRange(lp.key, lp.topic, r, true))
			}
		}
		lp.mu.Unlock()
	}
	if p.cfg.persistPending {
		for _, k := range p.co.keys() {
			topic, ok := p.k.topicByID(k.topicID)
			if !ok || loaded[k] {
				continue
			}
			st, _ := p.co.peek(k)
			for _, r := range pendingBatches(st.batches) {
				out = append(out, p.pendingRange(k, topic.name, r, false))
			}
		}
	}
	slices.SortFunc(out, func(a, b PendingRange) int {
		return cmp.Or(cmp.Compare(a.GroupID, b.GroupID), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.FirstOffset, b.FirstOffset))
	})
	return out
}

func (p *plane) pendingRange(k shareStateKey, topic string, r pendingRange, loaded bool) PendingRange {
	return PendingRange{
		GroupID: k.group, Topic: topic, Partition: k.partition, FirstOffset: r.first, LastOffset: r.last,
		DeliveryCount: r.deliveryCount, AcknowledgeType: int8(r.ackType), MemberID: r.memberID,
		ProducerID: r.producerID, ProducerEpoch: r.producerEpoch, TransactionalID: p.txns.idOf(r.producerID),
		StatePartition: wire.ShareStatePartition(k.group, k.topicID, k.partition, p.co.partitions()), Loaded: loaded,
	}
}
