package feature

import (
	"context"
	"fmt"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
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
