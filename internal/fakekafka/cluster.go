package fakekafka

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// Config says which cluster to start.
type Config struct {
	Brokers  int                // 0 is 3; node IDs count from 0
	Versions *kversion.Versions // the build of all brokers; nil is a stock Kafka 4.4
	Topics   []string
}

// Cluster is a running cluster. Its methods may be called at any time, also by
// the functions that it calls.
type Cluster struct {
	fake *kfake.Cluster

	versions *kmsg.ApiVersionsResponse // what brokers answer without a change
	metadata *kmsg.MetadataResponse    // likewise, without topics
	describe *kmsg.DescribeClusterResponse

	mu         sync.Mutex
	levels     map[string]int16 // finalized; changed by UpdateFeatures
	epoch      int64
	change     map[int32]func(*kmsg.ApiVersionsResponse)
	silent     map[int32]bool
	unreached  []int32
	fenced     []int32
	answer     map[int16]func(node int32, req kmsg.Request) (kmsg.Response, bool)
	after      map[int16]func(node int32)
	requests   []Request
	loseAnswer map[int16]bool
}

// Request is a request that a broker received.
type Request struct {
	Node    int32
	Key     int16
	Request kmsg.Request
}

// Start starts a cluster that ends with the test.
func Start(tb testing.TB, cfg Config) *Cluster {
	tb.Helper()
	if cfg.Brokers == 0 {
		cfg.Brokers = 3
	}
	if cfg.Versions == nil {
		cfg.Versions = kversion.V4_4_0()
	}
	opts := []kfake.Opt{kfake.NumBrokers(cfg.Brokers), kfake.MaxVersions(cfg.Versions), kfake.ClusterID("fake")}
	if len(cfg.Topics) > 0 {
		opts = append(opts, kfake.SeedTopics(1, cfg.Topics...))
	}
	fake, err := kfake.NewCluster(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(fake.Close)
	c := &Cluster{
		fake: fake, levels: make(map[string]int16), epoch: 1,
		change: make(map[int32]func(*kmsg.ApiVersionsResponse)), silent: make(map[int32]bool),
		answer:     make(map[int16]func(int32, kmsg.Request) (kmsg.Response, bool)),
		after:      make(map[int16]func(int32)),
		loseAnswer: make(map[int16]bool),
	}
	c.learn(tb)
	// What a broker of the build serves and kfake does not, it shows all the same.
	cfg.Versions.EachMaxKeyVersion(func(key, version int16) {
		if !slices.ContainsFunc(c.versions.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == key }) {
			Serve(c.versions, key, version)
		}
	})
	cfg.Versions.EachFinalizedFeature(func(name string, level int16) { c.levels[name] = level })
	fake.Control(c.control)
	return c
}

// learn keeps what kfake answers by itself, which is then changed.
func (c *Cluster) learn(tb testing.TB) {
	tb.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.fake.ListenAddrs()...))
	if err != nil {
		tb.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	av := kmsg.NewPtrApiVersionsRequest()
	av.ClientSoftwareName, av.ClientSoftwareVersion = "fakekafka", "1"
	meta := kmsg.NewPtrMetadataRequest()
	meta.Topics = []kmsg.MetadataRequestTopic{}
	desc := kmsg.NewPtrDescribeClusterRequest()
	var errs [3]error
	c.versions, errs[0] = av.RequestWith(ctx, cl)
	c.metadata, errs[1] = meta.RequestWith(ctx, cl)
	c.describe, errs[2] = desc.RequestWith(ctx, cl)
	if err := errors.Join(errs[:]...); err != nil {
		tb.Fatal(err)
	}
}

// Addr returns the address of a broker.
func (c *Cluster) Addr(node int32) string { return c.fake.ListenAddrs()[node] }

// BootstrapServers returns the addresses of all brokers that run.
func (c *Cluster) BootstrapServers() string { return strings.Join(c.fake.ListenAddrs(), ",") }

// Fake returns the kfake cluster.
func (c *Cluster) Fake() *kfake.Cluster { return c.fake }

// SetLevel finalizes a level.
func (c *Cluster) SetLevel(name string, level int16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.levels[name] = level
	c.epoch++
}

// Level returns a finalized level.
func (c *Cluster) Level(name string) int16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.levels[name]
}

// ChangeVersions has a broker answer ApiVersions with a change. The function
// must not keep the response. -1 is every broker that has no change of its own.
func (c *Cluster) ChangeVersions(node int32, change func(*kmsg.ApiVersionsResponse)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change[node] = change
}

// Silence has a broker accept connections and answer nothing.
func (c *Cluster) Silence(node int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent[node] = true
}

// AddUnreachable adds a broker to the metadata at an address where nobody
// listens.
func (c *Cluster) AddUnreachable(node int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unreached = append(c.unreached, node)
}

// AddFenced adds a broker that is registered and not alive.
func (c *Cluster) AddFenced(node int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fenced = append(c.fenced, node)
}

// Answer answers a kind of request; where the function returns false the cluster
// does, and a nil response is no answer.
func (c *Cluster) Answer(key int16, answer func(node int32, req kmsg.Request) (kmsg.Response, bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer[key] = answer
}

// LoseAnswer closes the connection in place of the next answer to a kind of
// request, after the request took effect.
func (c *Cluster) LoseAnswer(key int16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loseAnswer[key] = true
}

// After calls a function after a kind of request took effect.
func (c *Cluster) After(key int16, f func(node int32)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after[key] = f
}

// Requests returns the requests of a kind, in the order of their arrival.
func (c *Cluster) Requests(key int16) []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.requests), func(r Request) bool { return r.Key != key })
}

// Updates returns the UpdateFeatures requests.
func (c *Cluster) Updates() []*kmsg.UpdateFeaturesRequest {
	var out []*kmsg.UpdateFeaturesRequest
	for _, r := range c.Requests(int16(kmsg.UpdateFeatures)) {
		out = append(out, r.Request.(*kmsg.UpdateFeaturesRequest))
	}
	return out
}

var errClosed = errors.New("the test closes the connection")

// control sees every request. kfake calls it one request at a time.
func (c *Cluster) control(req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's order
	c.fake.KeepControl()
	node, key := c.fake.CurrentNode(), req.Key()
	c.mu.Lock()
	c.requests = append(c.requests, Request{node, key, req})
	silent, answer, after, lose := c.silent[node], c.answer[key], c.after[key], c.loseAnswer[key]
	delete(c.loseAnswer, key)
	c.mu.Unlock()
	if silent {
		return nil, nil, true
	}
	resp, handled := kmsg.Response(nil), false
	if answer != nil {
		resp, handled = answer(node, req)
	}
	if !handled {
		resp, handled = c.own(node, req)
	}
	if after != nil {
		after(node)
	}
	if lose {
		return nil, errClosed, true
	}
	return resp, nil, handled
}

// own is what this cluster answers in place of kfake.
func (c *Cluster) own(node int32, req kmsg.Request) (kmsg.Response, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		return c.apiVersions(node, req), true
	case *kmsg.MetadataRequest:
		if len(req.Topics) == 0 && req.Topics != nil && len(c.unreached) > 0 {
			return c.brokers(req), true
		}
	case *kmsg.DescribeClusterRequest:
		return c.cluster(req), true
	case *kmsg.UpdateFeaturesRequest:
		return c.update(req), true
	}
	return nil, false
}

func (c *Cluster) apiVersions(node int32, req *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	version := resp.Version
	*resp = *c.versions
	resp.Version = version
	resp.ApiKeys = slices.Clone(c.versions.ApiKeys)
	resp.SupportedFeatures = slices.Clone(c.versions.SupportedFeatures)
	resp.FinalizedFeatures, resp.FinalizedFeaturesEpoch = nil, c.epoch
	for name, level := range c.levels {
		if level > 0 {
			f := kmsg.NewApiVersionsResponseFinalizedFeature()
			f.Name, f.MinVersionLevel, f.MaxVersionLevel = name, level, level
			resp.FinalizedFeatures = append(resp.FinalizedFeatures, f)
		}
	}
	change, ok := c.change[node]
	if !ok {
		change, ok = c.change[-1]
	}
	if ok {
		change(resp)
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey == req.Key() && k.MaxVersion < version { // KIP-511
			resp.Version, resp.ErrorCode = 0, 35
		}
	}
	return resp
}

func (c *Cluster) brokers(req *kmsg.MetadataRequest) kmsg.Response {
	resp := *c.metadata
	resp.Version = req.Version
	resp.Brokers = slices.Clone(resp.Brokers)
	for _, id := range c.unreached {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = id, "127.0.0.1", 1
		resp.Brokers = append(resp.Brokers, b)
	}
	return &resp
}

func (c *Cluster) cluster(req *kmsg.DescribeClusterRequest) kmsg.Response {
	resp := *c.describe
	resp.Version = req.Version
	resp.Brokers = slices.Clone(resp.Brokers)
	for _, id := range c.fenced {
		if !req.IncludeFencedBrokers {
			break
		}
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port, b.IsFenced = id, "127.0.0.1", 1, true
		resp.Brokers = append(resp.Brokers, b)
	}
	return &resp
}

// update makes all changes of a request: what is refused, a test says.
func (c *Cluster) update(req *kmsg.UpdateFeaturesRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	for _, u := range req.FeatureUpdates {
		if req.Version < 1 || !req.ValidateOnly {
			c.levels[u.Feature] = u.MaxVersionLevel
			c.epoch++
		}
		if req.Version < 2 {
			r := kmsg.NewUpdateFeaturesResponseResult()
			r.Feature = u.Feature
			resp.Results = append(resp.Results, r)
		}
	}
	return resp
}

// Support changes the levels of a feature that an answer supports; hi below 0
// takes the feature out.
func Support(resp *kmsg.ApiVersionsResponse, name string, lo, hi int16) {
	resp.SupportedFeatures = slices.DeleteFunc(resp.SupportedFeatures, func(f kmsg.ApiVersionsResponseSupportedFeature) bool { return f.Name == name })
	if hi < 0 {
		return
	}
	f := kmsg.NewApiVersionsResponseSupportedFeature()
	f.Name, f.MinVersion, f.MaxVersion = name, lo, hi
	resp.SupportedFeatures = append(resp.SupportedFeatures, f)
}

// Serve changes the newest version of a request that an answer has; below 0 it
// takes the request out.
func Serve(resp *kmsg.ApiVersionsResponse, key, maxVersion int16) {
	resp.ApiKeys = slices.DeleteFunc(resp.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool { return k.ApiKey == key })
	if maxVersion < 0 {
		return
	}
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MaxVersion = key, maxVersion
	resp.ApiKeys = append(resp.ApiKeys, k)
}
