package bigcluster

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	stateTopic             = "__share_group_state"
	defaultStatePartitions = 50
	topicCount             = 10 // that groups read, each one

	firstProducerID = 1000
	producerEpoch   = 5
	leaderEpoch     = 3
	stateEpoch      = 1

	// What a share-partition holds: records that are done, records that are in
	// TX_PENDING or available, and the rest of its lag.
	doneRecords    = 10
	pendingRecords = 20
	lag            = 500

	recordsInBatch = 500 // of __share_group_state
)

// data is what the cluster is made of.
type data struct {
	Config
	perGroup int                     // share-partitions of a group
	topics   [topicCount + 1]topicOf // the last is __share_group_state
	started  time.Time
	owner    []int                // of each share-partition: the transaction, or -1
	where    []int32              // of each share-partition: the partition of __share_group_state
	held     []int                // of each transaction: the share-partition
	groupOf  map[string]int       // by group ID
	txnOf    map[string]int       // by transactional ID
	topicOf  map[[16]byte]int     // by topic ID
	log      map[int32][]logBatch // of __share_group_state
}

type topicOf struct {
	name       string
	id         [16]byte
	partitions int
}

// logBatch is one record batch.
type logBatch struct {
	first, next int64 // offsets
	bytes       []byte
}

func generate(cfg Config) (*data, error) {
	if cfg.StatePartitions == 0 {
		cfg.StatePartitions = defaultStatePartitions
	}
	if cfg.Groups < 1 || cfg.SharePartitions%cfg.Groups != 0 || cfg.Transactions > cfg.SharePartitions {
		return nil, fmt.Errorf("bigcluster: %d transactions, %d groups, %d share-partitions: the last is a multiple of the second and no less than the first", cfg.Transactions, cfg.Groups, cfg.SharePartitions)
	}
	d := &data{
		Config: cfg, perGroup: cfg.SharePartitions / cfg.Groups, started: time.Now().Add(-20 * time.Second).Truncate(time.Millisecond), //nolint:forbidigo // the age that transactions show
		owner: make([]int, cfg.SharePartitions), where: make([]int32, cfg.SharePartitions), held: make([]int, cfg.Transactions),
		groupOf: make(map[string]int, cfg.Groups), txnOf: make(map[string]int, cfg.Transactions),
		topicOf: make(map[[16]byte]int), log: make(map[int32][]logBatch),
	}
	for i := range d.topics {
		d.topics[i] = topicOf{fmt.Sprintf("orders-%d", i), [16]byte{0: 1, 15: byte(i)}, d.perGroup}
	}
	d.topics[topicCount].name, d.topics[topicCount].partitions = stateTopic, cfg.StatePartitions
	for i, t := range d.topics {
		d.topicOf[t.id] = i
	}
	for g := range cfg.Groups {
		d.groupOf[groupID(g)] = g
	}
	for s := range d.owner {
		d.owner[s] = -1
		g, t, p := d.sharePartition(s)
		d.where[s] = wire.ShareStatePartition(groupID(g), d.topics[t].id, p, int32(cfg.StatePartitions))
	}
	for i := range d.held {
		d.txnOf[transactionalID(i)] = i
		d.held[i] = i * (cfg.SharePartitions / cfg.Transactions)
		d.owner[d.held[i]] = i
	}
	d.writeLog()
	return d, nil
}

func groupID(g int) string         { return fmt.Sprintf("group-%05d", g) }
func transactionalID(i int) string { return fmt.Sprintf("txn-%06d", i) }

// sharePartition returns group, topic and partition of a share-partition.
func (d *data) sharePartition(s int) (group, topic int, partition int32) {
	group = s / d.perGroup
	return group, group % topicCount, int32(s % d.perGroup)
}

// index is the inverse of sharePartition; -1 for one that is not there.
func (d *data) index(group string, topicID [16]byte, partition int32) int {
	g, ok := d.groupOf[group]
	if t, known := d.topicOf[topicID]; !ok || !known || t != g%topicCount || partition < 0 || int(partition) >= d.perGroup {
		return -1
	}
	return g*d.perGroup + int(partition)
}

// leaderOf is who leads a partition of a topic, and with it what else is kept
// there.
func leaderOf(partition int32) int32 { return partition % Brokers }

// batches is the state of a share-partition.
func (d *data) batches(s int) []wire.StateBatch {
	none := wire.NoStagedOwner()
	out := []wire.StateBatch{
		{FirstOffset: 0, LastOffset: doneRecords - 1, DeliveryState: wire.Acknowledged, DeliveryCount: 1, Staged: none},
		{FirstOffset: doneRecords, LastOffset: doneRecords + pendingRecords - 1, DeliveryState: wire.Available, DeliveryCount: 1, Staged: none},
	}
	if i := d.owner[s]; i >= 0 {
		out[1].DeliveryState = wire.TxPending
		out[1].Staged = wire.StagedOwner{
			ProducerID: firstProducerID + int64(i), ProducerEpoch: producerEpoch,
			AcknowledgeType: int8(wire.Accept), DeliveryState: int8(wire.Acknowledged),
		}
	}
	return out
}

// writeLog writes a snapshot of each share-partition.
func (d *data) writeLog() {
	records := make(map[int32][]kmsg.Record)
	next := make(map[int32]int64)
	flush := func(p int32) {
		d.log[p] = append(d.log[p], newLogBatch(next[p], d.started, records[p]))
		next[p] += int64(len(records[p]))
		records[p] = records[p][:0]
	}
	for s := range d.owner {
		g, t, p := d.sharePartition(s)
		where := d.where[s]
		var r kmsg.Record
		r.Key = wire.ShareStateKey{Type: wire.ShareSnapshotType, GroupID: groupID(g), TopicID: d.topics[t].id, Partition: p}.AppendTo(nil)
		r.Value = wire.ShareSnapshot{
			StateEpoch: stateEpoch, LeaderEpoch: leaderEpoch, StateBatches: d.batches(s), DeliveryCompleteCount: doneRecords,
			CreateTimestamp: d.started.UnixMilli(), WriteTimestamp: d.started.UnixMilli(),
		}.AppendTo(nil)
		if records[where] = append(records[where], r); len(records[where]) == recordsInBatch {
			flush(where)
		}
	}
	for p := range int32(d.StatePartitions) {
		if len(records[p]) > 0 {
			flush(p)
		}
	}
}

// newLogBatch encodes a record batch without compression (KIP-98).
func newLogBatch(first int64, at time.Time, records []kmsg.Record) logBatch {
	b := kmsg.RecordBatch{
		FirstOffset: first, Magic: 2, LastOffsetDelta: int32(len(records) - 1),
		FirstTimestamp: at.UnixMilli(), MaxTimestamp: at.UnixMilli(),
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(len(records)),
	}
	for i := range records {
		r := &records[i]
		r.OffsetDelta = int32(i)
		body := r.AppendTo(nil)[1:] // a length of 0 takes one byte
		b.Records = append(kbin.AppendVarint(b.Records, int32(len(body))), body...)
	}
	const lengthAt, crcAt = 8, 17
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[lengthAt:], uint32(len(raw)-lengthAt-4))
	binary.BigEndian.PutUint32(raw[crcAt:], crc32.Checksum(raw[crcAt+4:], crc32.MakeTable(crc32.Castagnoli)))
	return logBatch{first, first + int64(len(records)), raw}
}
