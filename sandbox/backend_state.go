package sandbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Reading and writing __share_group_state. Its records are written as plain
// record batches (magic 2, no compression, no producer), one batch per
// partition and request, as the share coordinator of Kafka does.

const (
	// stateBatchBytes is where a batch is closed. Kafka's own limit,
	// max.message.bytes, is twice that; one record is far smaller.
	stateBatchBytes = 512 << 10
	// stateFetchBytes is how much of a partition is read at once.
	stateFetchBytes = 4 << 20

	batchHeaderBytes = 61 // of a record batch of magic 2, up to its records
	batchCRCStart    = 21 // the CRC covers what follows it
)

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// stateBatches encodes records of one partition as batches, in order.
func stateBatches(records []stateRecord) [][]byte {
	var batches [][]byte
	for len(records) > 0 {
		n, size := 0, 0
		for n < len(records) && (n == 0 || size < stateBatchBytes) {
			size += len(records[n].key) + len(records[n].value)
			n++
		}
		batches = append(batches, encodeStateBatch(records[:n]))
		records = records[n:]
	}
	return batches
}

func encodeStateBatch(records []stateRecord) []byte {
	first := records[0].timestamp.UnixMilli()
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2,
		LastOffsetDelta: int32(len(records) - 1), NumRecords: int32(len(records)),
		FirstTimestamp: first, MaxTimestamp: first,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
	}
	var scratch []byte
	for i, r := range records {
		at := r.timestamp.UnixMilli()
		b.MaxTimestamp = max(b.MaxTimestamp, at)
		kr := kmsg.Record{TimestampDelta64: at - first, OffsetDelta: int32(i), Key: r.key, Value: r.value}
		scratch = kr.AppendTo(scratch[:0])
		kr.Length = int32(len(scratch) - 1) // a length of 0 took one byte
		b.Records = kr.AppendTo(b.Records)
	}
	enc := b.AppendTo(make([]byte, 0, batchHeaderBytes+len(b.Records)))
	binary.BigEndian.PutUint32(enc[8:], uint32(len(enc)-12))
	binary.BigEndian.PutUint32(enc[17:], crc32.Checksum(enc[batchCRCStart:], castagnoli()))
	return enc
}

// eachStateRecord decodes the records from offset on in a run of record batches,
// and returns the offset that follows them.
func eachStateRecord(raw []byte, partition int32, offset int64, each func(stateRecord) error) (int64, error) {
	for len(raw) > 0 {
		var b kmsg.RecordBatch
		if err := b.ReadFrom(raw); err != nil {
			return offset, fmt.Errorf("%s-%d at offset %d: decode record batch: %w", stateTopic, partition, offset, err)
		}
		size := 12 + int(b.Length)
		if b.Magic != 2 || b.Length < batchHeaderBytes-12 || size > len(raw) || b.Attributes&7 != 0 {
			return offset, fmt.Errorf("%s-%d at offset %d: not a plain record batch", stateTopic, partition, offset)
		}
		raw = raw[size:]
		next := b.FirstOffset + int64(b.LastOffsetDelta) + 1
		if next <= offset {
			continue
		}
		if err := eachInBatch(&b, partition, offset, each); err != nil {
			return offset, fmt.Errorf("%s-%d at offset %d: %w", stateTopic, partition, b.FirstOffset, err)
		}
		offset = next
	}
	return offset, nil
}

func eachInBatch(b *kmsg.RecordBatch, partition int32, from int64, each func(stateRecord) error) error {
	records := b.Records
	for range b.NumRecords {
		var r kmsg.Record
		length, n := binary.Varint(records)
		if n <= 0 || length < 0 || int(length) > len(records)-n {
			return fmt.Errorf("record batch is cut short")
		}
		if err := r.ReadFrom(records[:n+int(length)]); err != nil {
			return fmt.Errorf("decode record: %w", err)
		}
		records = records[n+int(length):]
		if b.FirstOffset+int64(r.OffsetDelta) < from {
			continue
		}
		sr := stateRecord{partition: partition, timestamp: time.UnixMilli(b.FirstTimestamp + r.TimestampDelta64)}
		if b.Attributes&controlBit == 0 {
			sr.key, sr.value = r.Key, r.Value
		} else {
			var key kmsg.ControlRecordKey
			if err := key.ReadFrom(r.Key); err != nil {
				return fmt.Errorf("decode control record: %w", err)
			}
			switch key.Type {
			case kmsg.ControlRecordKeyTypeCommit, kmsg.ControlRecordKeyTypeAbort:
			default:
				continue
			}
			sr.marker, sr.commit = true, key.Type == kmsg.ControlRecordKeyTypeCommit
			sr.producerID, sr.producerEpoch = b.ProducerID, b.ProducerEpoch
		}
		if err := each(sr); err != nil {
			return err
		}
	}
	return nil
}

const controlBit = 1 << 5 // of a batch's attributes

func (b *backend) appendState(ctx context.Context, records []stateRecord) error {
	byPartition := make(map[int32][]stateRecord)
	for _, r := range records {
		byPartition[r.partition] = append(byPartition[r.partition], r)
	}
	partitions := make(map[int32][][]byte, len(byPartition))
	byLeader := make(map[int32][]int32)
	for p, rs := range byPartition {
		info, ok := b.partition(stateTopic, p)
		if !ok {
			return fmt.Errorf("append to %s-%d: %w", stateTopic, p, kerr.UnknownTopicOrPartition)
		}
		partitions[p] = stateBatches(rs)
		byLeader[info.leader] = append(byLeader[info.leader], p)
	}
	return b.eachLeader(ctx, byLeader, func(ctx context.Context, broker int32, ps []int32) error {
		for i := 0; ; i++ { // the i-th batch of each partition
			var round []kmsg.ProduceRequestTopicPartition
			for _, p := range ps {
				if i < len(partitions[p]) {
					rp := kmsg.NewProduceRequestTopicPartition()
					rp.Partition, rp.Records = p, partitions[p][i]
					round = append(round, rp)
				}
			}
			if len(round) == 0 {
				return nil
			}
			if err := b.produce(ctx, broker, stateTopic, round); err != nil {
				return err
			}
		}
	})
}

// produceVersion names topics, and is flexible.
const produceVersion = 9

// produce appends one batch to each of the partitions, which a broker leads.
func (b *backend) produce(ctx context.Context, broker int32, topic string, partitions []kmsg.ProduceRequestTopicPartition) error {
	req := kmsg.NewPtrProduceRequest()
	req.Version = produceVersion
	req.Acks = -1
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic, rt.Partitions = topic, partitions
	req.Topics = append(req.Topics, rt)
	resp, err := call[*kmsg.ProduceResponse](ctx, b.client, broker, req)
	if err != nil {
		return fmt.Errorf("append to %s: %w", topic, err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := codeError(p.ErrorCode); err != nil {
				return fmt.Errorf("append to %s-%d: %w", topic, p.Partition, err)
			}
		}
	}
	return nil
}

func (b *backend) readState(ctx context.Context, each func(stateRecord) error) error {
	t, ok := b.topicByName(stateTopic)
	if !ok {
		return fmt.Errorf("read %s: %w", stateTopic, kerr.UnknownTopicOrPartition)
	}
	byLeader := make(map[int32][]int32)
	for p := range t.partitions {
		info, ok := b.partition(stateTopic, p)
		if !ok {
			return fmt.Errorf("read %s-%d: %w", stateTopic, p, kerr.UnknownTopicOrPartition)
		}
		if info.highWatermark > info.logStartOffset {
			byLeader[info.leader] = append(byLeader[info.leader], p)
		}
	}
	var mu sync.Mutex
	one := func(r stateRecord) error {
		mu.Lock()
		defer mu.Unlock()
		return each(r)
	}
	return b.eachLeader(ctx, byLeader, func(ctx context.Context, _ int32, ps []int32) error {
		slices.Sort(ps)
		for _, p := range ps {
			if err := b.readStatePartition(ctx, p, one); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *backend) readStatePartition(ctx context.Context, partition int32, each func(stateRecord) error) error {
	info, _ := b.partition(stateTopic, partition)
	for offset := info.logStartOffset; offset < info.highWatermark; {
		f, err := b.fetch(ctx, stateTopic, partition, offset, stateFetchBytes, false)
		if err != nil {
			return err
		}
		next, err := eachStateRecord(f.records, partition, offset, each)
		if err != nil {
			return err
		}
		if next == offset {
			return fmt.Errorf("read %s-%d: nothing at offset %d below the high watermark %d", stateTopic, partition, offset, info.highWatermark)
		}
		offset = next
	}
	return nil
}
