package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// readBytes is what one fetch brings, or one record batch if that is larger.
	// Decompressed and decoded, small records take many times as much.
	readBytes = 256 << 10
	// readTries is how often a partition is asked for without an answer that gets
	// reading on, its leader being looked up in between.
	readTries = 3
	// readTimeout bounds the wait for one answer.
	readTimeout = 10 * time.Second
)

// ReadPartition reads a partition from its start to the high watermark that it
// has when reading begins, and calls fn for each record in turn. Control records
// are left out; records of open and aborted transactions are not. Records that
// are deleted meanwhile are passed over. The record belongs to the caller. At
// most one fetch of 256 KiB, or one larger record batch, is held at a time, and
// what it is decompressed.
//
// It follows a partition whose leader moves, for a few seconds. It may return
// *Error, *AuthError, or the error of ctx; what fn was called with is then a part
// of the partition, from its start.
func (c *Client) ReadPartition(ctx context.Context, topic Topic, partition int32, fn func(*kgo.Record)) error {
	r := partitionReader{
		c: c, topic: topic, partition: partition, leader: topic.Leader(partition),
		offset: -1, end: -1, decompressor: kgo.DefaultDecompressor(),
	}
	for try := 1; !r.done(); try++ {
		before := r.offset
		err := r.step(ctx, fn)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && (r.offset > before || r.done()):
			try = 0
			continue
		case err == nil:
			err = errors.New("the fetch brought nothing, and there has to be more")
		case !movedPartition(err):
			return r.failed(err)
		}
		if try == readTries {
			return r.failed(err)
		}
		if err := r.lookAgain(ctx, try); err != nil {
			return err
		}
	}
	return nil
}

type partitionReader struct {
	c            *Client
	topic        Topic
	partition    int32
	leader       int32 // -1: none
	offset, end  int64 // the next to read, and the first not to; -1: not known yet
	decompressor kgo.Decompressor
}

func (r *partitionReader) done() bool { return r.end >= 0 && r.offset >= r.end }

func (r *partitionReader) failed(err error) error {
	return classifyAuth(&Error{Op: "read", Broker: r.leader, Topic: r.topic.Name, Partition: r.partition, Err: err})
}

// movedPartition reports whether a partition has, or will have, another leader,
// or the fetch may succeed there at another offset.
func movedPartition(err error) bool {
	for _, e := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.ReplicaNotAvailable, kerr.KafkaStorageError,
		kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.OffsetNotAvailable, kerr.UnknownTopicOrPartition,
		kerr.UnknownTopicID, kerr.OffsetOutOfRange,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	ne, ok := errors.AsType[net.Error](err)
	return IsUnanswered(err) && !(ok && ne.Timeout())
}

// lookAgain waits and asks who leads the partition now.
func (r *partitionReader) lookAgain(ctx context.Context, try int) error {
	if err := backOff(ctx, try); err != nil {
		return err
	}
	topics, err := r.c.Topics(ctx, r.topic.Name)
	if err != nil {
		return err
	}
	if topics[r.topic.Name].ID != r.topic.ID {
		return r.failed(kerr.UnknownTopicID) // another one has the name now
	}
	r.leader = topics[r.topic.Name].Leader(r.partition)
	return nil
}

// step finds out where the partition starts, or fetches once.
func (r *partitionReader) step(ctx context.Context, fn func(*kgo.Record)) error {
	if r.leader < 0 {
		return kerr.LeaderNotAvailable
	}
	ctx, cancel := limited(ctx, readTimeout, 2)
	defer cancel()
	if r.offset < 0 {
		start, err := r.start(ctx)
		if err != nil {
			return err
		}
		r.offset = start
	}
	fetched, next, err := r.fetch(ctx)
	if errors.Is(err, kerr.OffsetOutOfRange) {
		// The start has moved on.
		start, err := r.start(ctx)
		if err != nil {
			return err
		}
		r.offset = max(r.offset, start)
		return kerr.OffsetOutOfRange
	}
	if err != nil {
		return err
	}
	if r.end < 0 {
		r.end = fetched.HighWatermark
	}
	for _, record := range fetched.Records {
		if record.Offset < r.end {
			fn(record)
		}
	}
	r.offset = next
	return nil
}

// earliest is the timestamp of ListOffsets that stands for the first offset.
const earliest = -2

func (r *partitionReader) start(ctx context.Context) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = r.topic.Name
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp = r.partition, earliest
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	kresp, err := r.c.kgo.Broker(int(r.leader)).Request(ctx, req)
	if err != nil {
		return 0, err
	}
	for _, t := range kresp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			if p.Partition == r.partition {
				return p.Offset, kerr.ErrorForCode(p.ErrorCode)
			}
		}
	}
	return 0, errors.New("ListOffsets tells of another partition")
}

// fetch returns the records from r.offset on, and the offset that comes next.
func (r *partitionReader) fetch(ctx context.Context) (kgo.FetchPartition, int64, error) {
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.MaxBytes = 0, 0, readBytes
	t := kmsg.NewFetchRequestTopic()
	t.Topic, t.TopicID = r.topic.Name, r.topic.ID
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = r.partition, r.offset, readBytes
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	kresp, err := r.c.kgo.Broker(int(r.leader)).Request(ctx, req)
	if err != nil {
		return kgo.FetchPartition{}, 0, err
	}
	resp := kresp.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return kgo.FetchPartition{}, 0, err
	}
	for i := range resp.Topics {
		parts := resp.Topics[i].Partitions
		j := slices.IndexFunc(parts, func(p kmsg.FetchResponseTopicPartition) bool { return p.Partition == r.partition })
		if j < 0 {
			continue
		}
		fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			Offset: r.offset, Topic: r.topic.Name, Partition: r.partition,
		}, &parts[j], r.decompressor, nil)
		if fetched.Err != nil && kerr.TypedErrorForCode(parts[j].ErrorCode) == nil {
			fetched.Err = fmt.Errorf("at offset %d: %w", next, fetched.Err)
		}
		return fetched, next, fetched.Err
	}
	return kgo.FetchPartition{}, 0, errors.New("the fetch tells of another partition")
}
