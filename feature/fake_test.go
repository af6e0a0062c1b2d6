package feature

import (
	"context"
	"fmt"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fakeCluster is a cluster of functions; nil ones have nothing.
type fakeCluster struct {
	describe      func() (cluster.Description, error)
	request       func(kmsg.Request) (kmsg.Response, error)
	requestBroker func(node int32, req kmsg.Request) (kmsg.Response, error)
	topics        func(name string) (cluster.Topic, error)

	updates []*kmsg.UpdateFeaturesRequest // that were sent
}

func (f *fakeCluster) Describe(ctx context.Context) (cluster.Description, error) {
	if ctx.Err() != nil {
		return cluster.Description{}, context.Cause(ctx)
	}
	return f.describe()
}

func (f *fakeCluster) Request(_ context.Context, req kmsg.Request) (kmsg.Response, error) {
	return f.request(req)
}

func (f *fakeCluster) RequestBroker(_ context.Context, node int32, req kmsg.Request) (kmsg.Response, error) {
	if u, ok := req.(*kmsg.UpdateFeaturesRequest); ok {
		u.Version = 2
		f.updates = append(f.updates, u)
	}
	if f.requestBroker == nil {
		return nil, fmt.Errorf("broker %d has no answer to %s", node, kmsg.NameForKey(req.Key()))
	}
	return f.requestBroker(node, req)
}

func (f *fakeCluster) Topics(_ context.Context, names ...string) (map[string]cluster.Topic, error) {
	if f.topics == nil {
		return nil, kerr.UnknownTopicOrPartition
	}
	out := make(map[string]cluster.Topic)
	for _, name := range names {
		t, err := f.topics(name)
		if err != nil {
			return nil, err
		}
		out[name] = t
	}
	return out, nil
}

func (f *fakeCluster) AllTopics(context.Context) ([]cluster.Topic, error) { return nil, nil }

func (f *fakeCluster) ReadPartition(context.Context, cluster.Topic, int32, func(*kgo.Record)) error {
	return kerr.UnknownTopicOrPartition
}

// sees is an observer of what a function says.
type sees func() *inspect.Evidence

func (f sees) Observe(context.Context, []string) (drain.Observation, error) {
	return drain.Observation{Evidence: f()}, nil
}

// nobody is an observer of a cluster without transactions that hides nothing.
func nobody() drain.Observer { return sees(func() *inspect.Evidence { return using() }) }

// using is evidence of open transactions.
func using(ts ...inspect.Transaction) *inspect.Evidence {
	return &inspect.Evidence{Time: time.Unix(2000, 0), Transactions: ts, StatePartitions: 50}
}

// hiding is evidence in which something could not be seen.
func hiding(ts ...inspect.Transaction) *inspect.Evidence {
	ev := using(ts...)
	ev.Gaps = []inspect.Gap{{Source: inspect.SourceListTransactions, Reason: "hidden", Advice: "grant it"}}
	return ev
}

// holdingAcks is a transaction with share acknowledgements, plain one without.
func holdingAcks(id, state string) inspect.Transaction {
	t := plain(id, state)
	t.Partitions = append(t.Partitions, inspect.TopicPartitions{Topic: stateTopic, Partitions: []int32{7}})
	return t
}

func plain(id, state string) inspect.Transaction {
	return inspect.Transaction{
		TransactionalID: id, State: state, ProducerID: 9, ProducerEpoch: 1, TimeoutMS: 60_000, Started: time.Unix(1990, 0),
		Partitions: []inspect.TopicPartitions{{Topic: "out", Partitions: []int32{0}}},
	}
}
