package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topicPartition is one partition of a topic.
type topicPartition struct {
	topic     string
	partition int32
}

func (tp topicPartition) String() string { return fmt.Sprintf("%s-%d", tp.topic, tp.partition) }

func (tp topicPartition) compare(o topicPartition) int {
	return cmp.Or(strings.Compare(tp.topic, o.topic), cmp.Compare(tp.partition, o.partition))
}

// Special timestamps of ListOffsets.
const (
	latestOffset   = -1
	earliestOffset = -2
)

// endOffsets reads the high watermarks of the partitions that groups have state
// for.
func endOffsets(ctx context.Context, cl Cluster, groups []Group, gaps *gapList) map[topicPartition]int64 {
	seen := make(map[topicPartition]bool)
	byTopic := make(map[string][]int32)
	for _, g := range groups {
		for _, p := range g.Partitions {
			if tp := (topicPartition{p.Topic, p.Partition}); !seen[tp] {
				seen[tp] = true
				byTopic[p.Topic] = append(byTopic[p.Topic], p.Partition)
			}
		}
	}
	return listOffsets(ctx, cl, byTopic, latestOffset, gaps)
}

// listOffsets reads an offset of each partition (ListOffsets v1 and later), with
// records of open transactions counted in. A topic that is not there is passed
// over: whoever asks knows which there are.
func listOffsets(ctx context.Context, cl Cluster, byTopic map[string][]int32, timestamp int64, gaps *gapList) map[topicPartition]int64 {
	out := make(map[topicPartition]int64)
	if len(byTopic) == 0 {
		return out
	}
	req := kmsg.NewPtrListOffsetsRequest()
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = topic
		for _, p := range byTopic[topic] {
			rp := kmsg.NewListOffsetsRequestTopicPartition()
			rp.Partition, rp.Timestamp = p, timestamp
			t.Partitions = append(t.Partitions, rp)
		}
		req.Topics = append(req.Topics, t)
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	kresp, err := cl.Request(ctx, req) // kgo asks the leaders
	if kresp == nil {
		gaps.add(ErrorGap(SourceListOffsets, "end offsets could not be read", err))
		return out
	}
	failed := make(map[int16]partitionFailure)
	for _, t := range kresp.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			switch p.ErrorCode {
			case 0:
				out[topicPartition{t.Topic, p.Partition}] = p.Offset
			case kerr.UnknownTopicOrPartition.Code:
			default:
				failed[p.ErrorCode] = failed[p.ErrorCode].and(topicPartition{t.Topic, p.Partition})
			}
		}
	}
	for _, code := range slices.Sorted(maps.Keys(failed)) {
		gaps.add(ErrorGap(SourceListOffsets, fmt.Sprintf("end offsets of %s could not be read", failed[code]), kerr.ErrorForCode(code)))
	}
	if err != nil && len(failed) == 0 { // of a leader that did not answer
		gaps.add(ErrorGap(SourceListOffsets, "some end offsets could not be read", err))
	}
	return out
}

// partitionFailure counts partitions with one error.
type partitionFailure struct {
	first topicPartition
	count int
}

func (f partitionFailure) and(tp topicPartition) partitionFailure {
	if f.count == 0 || tp.compare(f.first) < 0 {
		f.first = tp
	}
	f.count++
	return f
}

func (f partitionFailure) String() string {
	if f.count == 1 {
		return f.first.String()
	}
	return fmt.Sprintf("%s and %d more", f.first, f.count-1)
}
