package ctp

import (
	"context"
	"fmt"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// sourcePartition is how far a share group has come in one partition.
type sourcePartition struct {
	start int64 // the group's start offset; -1 before it is persisted
	lag   int64 // -1 if the broker does not report it
	first int64 // of the log
	end   int64 // of the log: the offset that the next record gets
}

// empty reports whether the group has nothing left of the partition: nothing is
// available, acquired by anybody, or pending in a transaction. idle says that what
// the log has is no sign of records for a group that has no start offset yet: this
// member has looked for some again and again and got none, say.
//
// Kafka persists the start offset with the first acknowledgement, so before that
// only the log tells, and, for a group that does not begin at its start, a member
// that finds nothing. What is deleted from the log meanwhile, by retention say,
// counts in the lag until the next acknowledgement, which there may never be.
func (p sourcePartition) empty(idle bool) bool {
	switch {
	case p.lag == 0 && p.start >= 0, p.first == p.end:
		return true
	case p.start < 0:
		return idle
	case p.lag > 0:
		return false
	}
	return p.end <= p.start
}

// left is how many records the group may have left, of those that the log has; -1
// is not known.
func (p sourcePartition) left() int64 {
	switch {
	case p.lag == 0 && p.start >= 0, p.first == p.end:
		return 0
	case p.start < 0 || p.lag < 0:
		return -1
	}
	return min(p.lag, p.end-p.first)
}

// needsLog reports whether the log has to be asked.
func (p sourcePartition) needsLog() bool { return p.start < 0 || p.lag != 0 }

// Lag adds up how many records of the topic the share group has not done yet
// (KIP-1226; DescribeShareGroupOffsets v1), those that are acquired or pending
// included. It is -1 when a broker does not report it for some partition that has
// records: before Kafka 4.2, and where the group has no start offset yet. It may
// return *cluster.AuthError or *cluster.Error.
func Lag(ctx context.Context, cl *cluster.Client, groupID, topic string) (int64, error) {
	topics, err := cl.Topics(ctx, topic)
	if err != nil {
		return -1, err
	}
	partitions, err := groupPartitions(ctx, cl, groupID, topics[topic])
	if err != nil || partitions == nil {
		return -1, err
	}
	if err := readLogs(ctx, cl, topic, partitions); err != nil {
		return -1, err
	}
	lag := int64(0)
	for _, p := range partitions {
		left := p.left()
		if left < 0 {
			return -1, nil
		}
		lag += left
	}
	return lag, nil
}

// readLogs asks for the log's offsets of those partitions for which they are
// needed.
func readLogs(ctx context.Context, cl *cluster.Client, topic string, partitions map[int32]sourcePartition) error {
	var unclear []int32
	for n, p := range partitions {
		if p.needsLog() {
			unclear = append(unclear, n)
		}
	}
	if len(unclear) == 0 {
		return nil
	}
	firsts, err := listOffsets(ctx, cl, topic, unclear, earliestOffset)
	if err != nil {
		return err
	}
	ends, err := listOffsets(ctx, cl, topic, unclear, latestOffset)
	if err != nil {
		return err
	}
	for _, n := range unclear {
		p := partitions[n]
		p.first, p.end = firsts[n], ends[n]
		partitions[n] = p
	}
	return nil
}

// groupEmpty reports whether the share group has nothing left of the topic.
func groupEmpty(ctx context.Context, cl *cluster.Client, group, topic string, idle bool) (bool, error) {
	topics, err := cl.Topics(ctx, topic)
	if err != nil {
		return false, err
	}
	t := topics[topic]
	partitions, err := groupPartitions(ctx, cl, group, t)
	if err != nil || partitions == nil {
		return false, err
	}
	if err := readLogs(ctx, cl, topic, partitions); err != nil {
		return false, err
	}
	for _, p := range partitions {
		if !p.empty(idle) {
			return false, nil
		}
	}
	return true, nil
}

// groupPartitions asks the group coordinator; nil if it does not say for some
// partition.
func groupPartitions(ctx context.Context, cl *cluster.Client, group string, t cluster.Topic) (map[int32]sourcePartition, error) {
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID = group
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return nil, err
	}
	out := make(map[int32]sourcePartition, len(t.Partitions))
	for _, p := range t.Partitions {
		out[p.Partition] = sourcePartition{start: -1, lag: -1}
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return nil, cluster.Classify(&cluster.Error{Op: fmt.Sprintf("describe offsets of share group %q", group), Broker: -1, Err: err})
		}
		for _, gt := range g.Topics {
			if gt.Topic != t.Name || gt.TopicID != t.ID {
				continue
			}
			for _, p := range gt.Partitions {
				if p.ErrorCode != 0 {
					return nil, nil
				}
				out[p.Partition] = sourcePartition{start: p.StartOffset, lag: p.Lag}
			}
		}
	}
	return out, nil
}

// ListOffsets' special timestamps.
const (
	latestOffset   = -1
	earliestOffset = -2
)

// listOffsets returns the offsets of partitions for one of the special timestamps.
func listOffsets(ctx context.Context, cl *cluster.Client, topic string, partitions []int32, timestamp int64) (map[int32]int64, error) {
	return askOffsets(ctx, cl, offsetsRequest(topic, partitions, timestamp))
}

func offsetsRequest(topic string, partitions []int32, timestamp int64) *kmsg.ListOffsetsRequest {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for _, n := range partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = n, timestamp
		t.Partitions = append(t.Partitions, rp)
	}
	req.Topics = append(req.Topics, t)
	return req
}

func askOffsets(ctx context.Context, cl *cluster.Client, req *kmsg.ListOffsetsRequest) (map[int32]int64, error) {
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return nil, err
	}
	out := make(map[int32]int64)
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, &cluster.Error{Op: "list offsets of", Broker: -1, Topic: t.Topic, Partition: p.Partition, Err: err}
			}
			out[p.Partition] = p.Offset
		}
	}
	return out, nil
}
