package kafkatest

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// AppendOpen appends a record of a transaction that no coordinator was told of, as
// a client does that sends it too late: there will be no end marker, the
// transaction hangs (KIP-664). It is for a cluster of one node, without security,
// that has transaction.partition.verification.enable=false: a leader that asks
// the coordinator first would not take it; Kafka's own tests turn that off too.
func (c *Cluster) AppendOpen(tb testing.TB, topic string, partition int32, producerID int64, epoch int16, at time.Time) {
	tb.Helper()
	// A producer of before KIP-890, whose leader does not add the partition; and
	// one that may write to internal topics.
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.Produce), 11)
	cl := c.Client(tb, kgo.MaxVersions(versions), kgo.ClientID("__admin_client"))
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis, req.TransactionID = -1, 10_000, kmsg.StringPtr("late")
	t := kmsg.NewProduceRequestTopic()
	t.Topic = topic
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, transactionalBatch(producerID, epoch, at)
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	err := c.await(ctx, func(ctx context.Context) (bool, error) {
		kresp, err := cl.Broker(int(c.NodeIDs()[0])).Request(ctx, req)
		if err == nil {
			err = kerr.ErrorForCode(kresp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
		}
		if errors.Is(err, kerr.NotLeaderForPartition) { // of a topic that is new
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		tb.Fatalf("append to %s-%d: %v", topic, partition, err)
	}
}

// transactionalBatch is a record batch (v2) of one record of a transaction.
func transactionalBatch(producerID int64, epoch int16, at time.Time) []byte {
	record := kmsg.Record{Key: []byte{0x7f, 0xff}, Value: []byte("late")} // a key of no type that __consumer_offsets has
	body := record.AppendTo(nil)[1:]                                      // without the length, which is not known yet
	encoded := append(binary.AppendVarint(nil, int64(len(body))), body...)
	const transactional = 1 << 4
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: transactional,
		FirstTimestamp: at.UnixMilli(), MaxTimestamp: at.UnixMilli(),
		ProducerID: producerID, ProducerEpoch: epoch, NumRecords: 1, Records: encoded,
	}
	const beforeLength, beforeCRC = 8 + 4, 8 + 4 + 4 + 1 + 4 // first offset and length; leader epoch, magic and CRC too
	b.Length = int32(len(b.AppendTo(nil)) - beforeLength)
	raw := b.AppendTo(nil)
	b.CRC = int32(crc32.Checksum(raw[beforeCRC:], crc32.MakeTable(crc32.Castagnoli)))
	return b.AppendTo(nil)
}
