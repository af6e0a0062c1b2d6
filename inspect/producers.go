package inspect

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ProducerQuery says which producers to read.
type ProducerQuery struct {
	// Topics are the topics to look at, with all partitions that they have here;
	// see [Cluster]. Internal ones are topics like any other.
	Topics []cluster.Topic
	// Open leaves out producers that have no transaction open in the partition.
	Open bool
}

// Producer is a producer that the leader of a partition remembers
// (DescribeProducers v0).
type Producer struct {
	Topic         string
	Partition     int32
	Leader        int32 // node ID of the broker that tells
	ProducerID    int64
	ProducerEpoch int32
	// CoordinatorEpoch is that of the last end marker of it in the partition; -1:
	// there has been none.
	CoordinatorEpoch int32
	LastSequence     int32     // -1: none
	LastTimestamp    time.Time // of its last record, by the producer's clock; zero: not told
	// TxnStartOffset is where its transaction begins that is open in the
	// partition, and beyond which read_committed consumers do not get; -1: none is.
	TxnStartOffset int64
}

// producersBatch is how many partitions one request asks about.
const producersBatch = 500

// DescribeProducers asks the leaders of partitions for the producers that are
// active there. The result is sorted by topic, partition and producer ID. What
// could not be seen is in the gaps: it needs READ on each topic. The error is that
// of ctx.
func DescribeProducers(ctx context.Context, cl Cluster, q ProducerQuery) ([]Producer, []Gap, error) {
	r := producerReader{cl: cl, q: q, denied: make(map[string]bool), failed: make(map[leaderFailure]failedPartitions)}
	if err := r.read(ctx); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(r.out, func(a, b Producer) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.ProducerID, b.ProducerID))
	})
	r.giveUp()
	return r.out, r.gaps.sorted(), nil
}

type producerReader struct {
	cl   Cluster
	q    ProducerQuery
	gaps gapList

	mu     sync.Mutex
	out    []Producer
	denied map[string]bool // topics
	failed map[leaderFailure]failedPartitions
}

// leaderFailure is why partitions of one leader are not known.
type leaderFailure struct {
	node int32 // -1: there is no leader
	text string
}

type failedPartitions struct {
	partitionFailure
	err error
}

// lostPartition is a partition that the broker which was asked does not lead, or
// not any more; node is -1 where no broker does.
type lostPartition struct {
	topicPartition
	node int32
	err  error
}

// read asks all leaders, and those that became leaders meanwhile.
func (r *producerReader) read(ctx context.Context) error {
	leaders := make(map[topicPartition]int32)
	for _, t := range r.q.Topics {
		for _, p := range t.Partitions {
			leaders[topicPartition{t.Name, p.Partition}] = p.Leader
		}
	}
	for try := 1; ; try++ {
		lost := r.round(ctx, leaders)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case len(lost) == 0:
			return nil
		case lastTry(ctx, try):
			for _, l := range lost {
				r.fail(l)
			}
			return nil
		}
		if err := pause.For(ctx, backoff(try)); err != nil {
			return err
		}
		var err error
		if leaders, err = r.lookUp(ctx, lost); err != nil {
			r.gaps.add(ErrorGap(SourceMetadata, "the leaders of partitions could not be looked up", err))
			return nil
		}
	}
}

// lookUp returns the leaders of what is still there.
func (r *producerReader) lookUp(ctx context.Context, lost []lostPartition) (map[topicPartition]int32, error) {
	topics, err := r.cl.AllTopics(ctx)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]cluster.Topic, len(topics))
	for _, t := range topics {
		byName[t.Name] = t
	}
	leaders := make(map[topicPartition]int32, len(lost))
	for _, l := range lost {
		if t, ok := byName[l.topic]; ok && int(l.partition) < len(t.Partitions) {
			leaders[l.topicPartition] = t.Leader(l.partition)
		}
	}
	return leaders, nil
}

type producersRequest struct {
	node  int32
	parts []topicPartition // sorted
}

// round asks each leader once for each of its partitions.
func (r *producerReader) round(ctx context.Context, leaders map[topicPartition]int32) []lostPartition {
	byNode := make(map[int32][]topicPartition)
	var lost []lostPartition
	for tp, node := range leaders {
		if node < 0 {
			lost = append(lost, lostPartition{tp, -1, kerr.LeaderNotAvailable})
			continue
		}
		byNode[node] = append(byNode[node], tp)
	}
	var requests []producersRequest
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		slices.SortFunc(byNode[node], topicPartition.compare)
		for parts := range slices.Chunk(byNode[node], producersBatch) {
			requests = append(requests, producersRequest{node, parts})
		}
	}
	var mu sync.Mutex
	each(requests, inFlight, func(q producersRequest) {
		l := r.ask(ctx, q)
		mu.Lock()
		defer mu.Unlock()
		lost = append(lost, l...)
	})
	return lost
}

func (r *producerReader) ask(ctx context.Context, q producersRequest) (lost []lostPartition) {
	req := kmsg.NewPtrDescribeProducersRequest()
	for _, tp := range q.parts {
		if n := len(req.Topics); n == 0 || req.Topics[n-1].Topic != tp.topic {
			t := kmsg.NewDescribeProducersRequestTopic()
			t.Topic = tp.topic
			req.Topics = append(req.Topics, t)
		}
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, tp.partition)
	}
	resp, err := ask[*kmsg.DescribeProducersResponse](ctx, r.cl, q.node, req)
	switch {
	case err != nil && cluster.IsUnanswered(err) && !isTimeout(err):
		for _, tp := range q.parts { // the broker went away, and others become leaders
			lost = append(lost, lostPartition{tp, q.node, err})
		}
		return lost
	case err != nil:
		r.gaps.add(newGap(SourceDescribeProducers, q.node, fmt.Sprintf("describe the producers of %s", somePartitions(q.parts)), err))
		return nil
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			tp := topicPartition{t.Topic, p.Partition}
			switch p.ErrorCode {
			case 0:
				r.take(q.node, tp, p.ActiveProducers)
			case kerr.NotLeaderForPartition.Code:
				lost = append(lost, lostPartition{tp, q.node, kerr.NotLeaderForPartition})
			case kerr.UnknownTopicOrPartition.Code: // it was deleted meanwhile
			case kerr.TopicAuthorizationFailed.Code:
				r.deny(t.Topic)
			default:
				r.fail(lostPartition{tp, q.node, kerr.ErrorForCode(p.ErrorCode)})
			}
		}
	}
	return lost
}

func somePartitions(parts []topicPartition) string {
	if len(parts) == 1 {
		return parts[0].String()
	}
	return fmt.Sprintf("%d partitions, %s among them", len(parts), parts[0])
}

func (r *producerReader) take(node int32, tp topicPartition, active []kmsg.DescribeProducersResponseTopicPartitionActiveProducer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range active {
		if r.q.Open && a.CurrentTxnStartOffset < 0 {
			continue
		}
		p := Producer{
			Topic: tp.topic, Partition: tp.partition, Leader: node,
			ProducerID: a.ProducerID, ProducerEpoch: a.ProducerEpoch, CoordinatorEpoch: a.CoordinatorEpoch,
			LastSequence: a.LastSequence, TxnStartOffset: a.CurrentTxnStartOffset,
		}
		if a.LastTimestamp >= 0 {
			p.LastTimestamp = time.UnixMilli(a.LastTimestamp).UTC()
		}
		r.out = append(r.out, p)
	}
}

func (r *producerReader) deny(topic string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied[topic] = true
}

func (r *producerReader) fail(l lostPartition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := leaderFailure{l.node, l.err.Error()}
	r.failed[k] = failedPartitions{r.failed[k].and(l.topicPartition), l.err}
}

// giveUp leaves one gap for all topics that may not be read, and one for each
// broker and error.
func (r *producerReader) giveUp() {
	switch denied := slices.Sorted(maps.Keys(r.denied)); len(denied) {
	case 0:
	case 1:
		r.gaps.add(aclGap(SourceDescribeProducers, ACL{"READ", "TOPIC", denied[0]}, kerr.TopicAuthorizationFailed,
			"the transactions that are open there are hidden from it"))
	default:
		r.gaps.add(aclGap(SourceDescribeProducers, ACL{"READ", "TOPIC", "*"}, kerr.TopicAuthorizationFailed,
			fmt.Sprintf("the transactions that are open in %d topics, %s among them, are hidden from it", len(denied), denied[0])))
	}
	for k, f := range r.failed {
		what := fmt.Sprintf("describe the producers of %s", f.partitionFailure)
		if k.node >= 0 {
			r.gaps.add(newGap(SourceDescribeProducers, k.node, what, f.err))
			continue
		}
		r.gaps.add(ErrorGap(SourceDescribeProducers, "no broker could be asked to "+what, f.err))
	}
}
