package ctp

import (
	"context"
	"fmt"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// groupEmpty reports whether the share group has nothing left of the topic:
// every partition was initialised and has no lag, so nothing is available,
// acquired by anybody, or pending in a transaction.
func groupEmpty(ctx context.Context, cl *cluster.Client, group, topic string) (bool, error) {
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID = group
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return false, err
	}
	topics, err := cl.Topics(ctx, topic)
	if err != nil {
		return false, err
	}
	known := make(map[int32]kmsg.DescribeShareGroupOffsetsResponseGroupTopicPartition)
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return false, cluster.Classify(&cluster.Error{Op: fmt.Sprintf("describe offsets of share group %q", group), Broker: -1, Err: err})
		}
		for _, t := range g.Topics {
			if t.Topic != topic || t.TopicID != topics[topic].ID {
				continue
			}
			for _, p := range t.Partitions {
				known[p.Partition] = p
			}
		}
	}
	ends := map[int32]int64(nil)
	for _, p := range topics[topic].Partitions {
		o, ok := known[p.Partition]
		if !ok || o.ErrorCode != 0 || o.StartOffset < 0 {
			return false, nil // not initialised: nobody knows yet where it starts
		}
		lag := o.Lag
		if lag < 0 { // v0 brokers do not report it
			if ends == nil {
				if ends, err = endOffsets(ctx, cl, topics[topic]); err != nil {
					return false, err
				}
			}
			lag = ends[p.Partition] - o.StartOffset
		}
		if lag > 0 {
			return false, nil
		}
	}
	return true, nil
}

func endOffsets(ctx context.Context, cl *cluster.Client, topic cluster.Topic) (map[int32]int64, error) {
	const latest = -1
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic.Name
	for _, p := range topic.Partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.Partition, latest
		t.Partitions = append(t.Partitions, rp)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return nil, err
	}
	out := make(map[int32]int64, len(topic.Partitions))
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return nil, &cluster.Error{Op: "list end offsets of", Broker: -1, Topic: t.Topic, Partition: p.Partition, Err: err}
			}
			out[p.Partition] = p.Offset
		}
	}
	return out, nil
}
