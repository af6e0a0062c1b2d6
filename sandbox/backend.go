package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"
)

// backend implements the kafka interface over kfake. What kfake's Cluster tells
// directly is asked there; the rest goes as ordinary requests over in-memory
// connections. Topics, configuration and ACLs are cached, and forgotten when a
// request that changes them has passed the gateway (see the invalidate methods).
type backend struct {
	cluster *kfake.Cluster
	client  *brokerClient
	auth    *authorizer
	txns    *txnLog
	faults  *faultTable
	brokers []node

	// A method of Cluster blocks for ever once the cluster is closed.
	mu     sync.RWMutex
	closed bool

	topics  topicCache
	configs configCache
}

var _ kafka = (*backend)(nil)

// topicCache holds the topics that were looked up. A topic that does not exist
// is looked up each time: it may be created at any moment.
type topicCache struct {
	mu     sync.RWMutex
	gen    uint64
	byName map[string]topicInfo
	byID   map[[16]byte]topicInfo
}

func (c *topicCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen++
	c.byName, c.byID = nil, nil
}

func (c *topicCache) generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.gen
}

// put keeps t unless the cache was cleared since gen: t may be older than that.
func (c *topicCache) put(gen uint64, t topicInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen != gen {
		return
	}
	if c.byName == nil {
		c.byName, c.byID = make(map[string]topicInfo), make(map[[16]byte]topicInfo)
	}
	c.byName[t.name], c.byID[t.id] = t, t
}

// codeError returns the error with that code, nil for 0.
func codeError(code int16) error { return kerr.ErrorForCode(code) }

// codeOf returns the Kafka error code that err carries: UNKNOWN_SERVER_ERROR if
// it carries none, 0 if it is nil.
func codeOf(err error) int16 {
	if err == nil {
		return 0
	}
	if k, ok := errors.AsType[*kerr.Error](err); ok {
		return k.Code
	}
	return kerr.UnknownServerError.Code
}

// live runs fn unless the cluster is closed.
func (b *backend) live(fn func()) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.closed {
		fn()
	}
}

// close makes every later call fail, and waits for those under way.
func (b *backend) close() {
	b.client.close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

func (b *backend) nodes() []node { return b.brokers }

// controller is the broker that kfake makes changes of the cluster on: its last.
func (b *backend) controller() int32 { return b.brokers[len(b.brokers)-1].id }

func (b *backend) topicByName(name string) (topicInfo, bool) {
	b.topics.mu.RLock()
	t, ok := b.topics.byName[name]
	b.topics.mu.RUnlock()
	if ok {
		return t, true
	}
	gen := b.topics.generation()
	b.live(func() {
		var parts []*kfake.PartitionInfo
		info := b.cluster.TopicInfo(name)
		if info != nil {
			parts = b.cluster.PartitionInfos(name)
		}
		if len(parts) > 0 {
			t, ok = topicInfo{name: name, id: info.TopicID, partitions: int32(len(parts))}, true
		}
	})
	if ok {
		b.topics.put(gen, t)
	}
	return t, ok
}

func (b *backend) topicByID(id [16]byte) (topicInfo, bool) {
	b.topics.mu.RLock()
	t, ok := b.topics.byID[id]
	b.topics.mu.RUnlock()
	if ok {
		return t, true
	}
	var name string
	b.live(func() {
		if info := b.cluster.TopicIDInfo(id); info != nil {
			name = info.Topic
		}
	})
	if name == "" {
		return topicInfo{}, false
	}
	t, ok = b.topicByName(name)
	return t, ok && t.id == id
}

func (b *backend) partition(topic string, partition int32) (partitionInfo, bool) {
	var info *kfake.PartitionInfo
	b.live(func() { info = b.cluster.PartitionInfo(topic, partition) })
	if info == nil {
		return partitionInfo{}, false
	}
	return partitionInfo{
		leader: info.Leader, leaderEpoch: info.Epoch,
		logStartOffset: info.LogStartOffset, highWatermark: info.HighWatermark, lastStableOffset: info.LastStableOffset,
	}, true
}

func (b *backend) coordinator(key string) int32 {
	n := int32(-1)
	b.live(func() { n = b.cluster.CoordinatorFor(key) })
	return n
}

// fetchVersion is the first that names topics by ID and still has replica_id -1
// as a plain field.
const fetchVersion = 13

func (b *backend) fetch(ctx context.Context, topic string, partition int32, offset int64, maxBytes int32, readCommitted bool) (fetched, error) {
	t, ok := b.topicByName(topic)
	if !ok {
		return fetched{}, fmt.Errorf("fetch %s-%d: %w", topic, partition, kerr.UnknownTopicOrPartition)
	}
	info, ok := b.partition(topic, partition)
	if !ok {
		return fetched{}, fmt.Errorf("fetch %s-%d: %w", topic, partition, kerr.UnknownTopicOrPartition)
	}
	req := kmsg.NewPtrFetchRequest()
	req.Version = fetchVersion
	req.MaxBytes = maxBytes
	if readCommitted {
		req.IsolationLevel = 1
	}
	rt := kmsg.NewFetchRequestTopic()
	rt.TopicID = t.id
	rp := kmsg.NewFetchRequestTopicPartition()
	rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes = partition, offset, maxBytes
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := call[*kmsg.FetchResponse](ctx, b.client, info.leader, req)
	if err != nil {
		return fetched{}, fmt.Errorf("fetch %s-%d: %w", topic, partition, err)
	}
	if err := codeError(resp.ErrorCode); err != nil {
		return fetched{}, fmt.Errorf("fetch %s-%d: %w", topic, partition, err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return fetched{}, fmt.Errorf("fetch %s-%d: the response lacks the partition", topic, partition)
	}
	p := &resp.Topics[0].Partitions[0]
	if err := codeError(p.ErrorCode); err != nil {
		return fetched{}, fmt.Errorf("fetch %s-%d at offset %d: %w", topic, partition, offset, err)
	}
	info.highWatermark, info.lastStableOffset, info.logStartOffset = p.HighWatermark, p.LastStableOffset, p.LogStartOffset
	f := fetched{records: p.RecordBatches, partitionInfo: info}
	for _, a := range p.AbortedTransactions {
		f.aborted = append(f.aborted, abortedTxn{producerID: a.ProducerID, firstOffset: a.FirstOffset})
	}
	return f, nil
}

func (b *backend) offsetForTime(ctx context.Context, topic string, partition int32, at time.Time) (int64, error) {
	info, ok := b.partition(topic, partition)
	if !ok {
		return -1, fmt.Errorf("list offsets of %s-%d: %w", topic, partition, kerr.UnknownTopicOrPartition)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 7
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = partition, max(at.UnixMilli(), 0) // below 0 are the special positions
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := call[*kmsg.ListOffsetsResponse](ctx, b.client, info.leader, req)
	if err != nil {
		return -1, fmt.Errorf("list offsets of %s-%d: %w", topic, partition, err)
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return -1, fmt.Errorf("list offsets of %s-%d: the response lacks the partition", topic, partition)
	}
	p := &resp.Topics[0].Partitions[0]
	if err := codeError(p.ErrorCode); err != nil {
		return -1, fmt.Errorf("list offsets of %s-%d: %w", topic, partition, err)
	}
	return p.Offset, nil
}

// configCache holds configuration of the brokers as they describe it, and that of
// groups.
type configCache struct {
	mu     sync.Mutex
	gen    uint64
	broker map[string]string
	groups *groupConfigs
}

func (c *configCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen++
	c.broker = nil
}

func (b *backend) groupConfig(group, name string) string {
	if v, ok := b.configs.groups.get(group, name); ok {
		return v
	}
	return b.configs.groups.inForce(name)
}

func (b *backend) brokerConfig(name string) string {
	c := &b.configs
	c.mu.Lock()
	values, gen := c.broker, c.gen
	c.mu.Unlock()
	if values == nil {
		values = b.configValues(kmsg.ConfigResourceTypeBroker, "")
		c.mu.Lock()
		if values != nil && c.gen == gen {
			c.broker = values
		}
		c.mu.Unlock()
	}
	if v, ok := values[name]; ok {
		return v
	}
	return brokerDefault(name)
}

// configTimeout bounds the reading of configuration, for which the caller has
// no context of its own: kfake answers it from memory.
const configTimeout = 10 * time.Second

// configValues returns the values that are set; nil when they cannot be read.
func (b *backend) configValues(kind kmsg.ConfigResourceType, name string) map[string]string {
	configs := b.describeConfigs(kind, name)
	if configs == nil {
		return nil
	}
	values := make(map[string]string, len(configs))
	for _, c := range configs {
		if c.Value != nil {
			values[c.Name] = *c.Value
		}
	}
	return values
}

// describeConfigs returns configs as kfake has them, by name; nil when they cannot
// be read.
func (b *backend) describeConfigs(kind kmsg.ConfigResourceType, name string) map[string]kmsg.DescribeConfigsResponseResourceConfig {
	ctx, cancel := context.WithTimeout(context.Background(), configTimeout)
	defer cancel()
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version = 4
	rr := kmsg.NewDescribeConfigsRequestResource()
	rr.ResourceType, rr.ResourceName = kind, name
	req.Resources = append(req.Resources, rr)
	resp, err := call[*kmsg.DescribeConfigsResponse](ctx, b.client, 0, req)
	if err != nil || len(resp.Resources) != 1 || resp.Resources[0].ErrorCode != 0 {
		return nil
	}
	configs := make(map[string]kmsg.DescribeConfigsResponseResourceConfig, len(resp.Resources[0].Configs))
	for _, c := range resp.Resources[0].Configs {
		configs[c.Name] = c
	}
	return configs
}

func (b *backend) authorized(c caller, op kmsg.ACLOperation, resource kmsg.ACLResourceType, name string) bool {
	return b.auth.authorized(c.principal, c.host, op, resource, name)
}

// invalidateTopics, invalidateConfigs and invalidateACLs are called after the
// change was made and before its client is told.
func (b *backend) invalidateTopics()  { b.topics.clear() }
func (b *backend) invalidateConfigs() { b.configs.clear() }
func (b *backend) invalidateACLs()    { b.auth.invalidate() }

func (b *backend) addPartitionsToTxn(ctx context.Context, transactionalID string, producerID int64, producerEpoch int16, partitions []int32) int16 {
	to := coordinated{coordinator: CoordinatorTransaction, transactionalIDs: []string{transactionalID}}
	if code := b.faults.coordinatorFault(ctx, to, kerr.NetworkException.Code); code != 0 {
		return registrationCode(code)
	}
	if code := b.txns.blockedCode(producerID, producerEpoch); code != 0 {
		return code
	}
	forgotten := b.faults.lasts(FaultForgetTransaction, func(f *Fault) bool { return f.TransactionalID == transactionalID })
	// kfake looks the producer up by its ID alone. A transaction coordinator
	// looks at the transactional ID first.
	s, ok, err := b.describeTransaction(ctx, transactionalID)
	switch {
	case err != nil:
		return registrationCode(codeOf(err))
	case !ok || s.producerID != producerID || forgotten:
		return kerr.InvalidProducerIDMapping.Code
	case producerEpoch >= exhaustedEpoch:
		return kerr.InvalidProducerEpoch.Code
	}
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version = 3 // the last form with one transaction
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = transactionalID, producerID, producerEpoch
	rt := kmsg.NewAddPartitionsToTxnRequestTopic()
	rt.Topic, rt.Partitions = stateTopic, partitions
	req.Topics = append(req.Topics, rt)
	resp, err := call[*kmsg.AddPartitionsToTxnResponse](ctx, b.client, b.coordinator(transactionalID), req)
	if err != nil {
		return registrationCode(codeOf(err))
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 && p.ErrorCode != kerr.OperationNotAttempted.Code {
				return registrationCode(p.ErrorCode)
			}
		}
	}
	b.txns.holdsShareAcks(transactionalID, producerID, producerEpoch, partitions)
	return 0
}

// registrationCode maps what the transaction coordinator said to what the leader
// sees, as the broker's AddPartitionsToTxn manager does: a lost connection is
// NETWORK_EXCEPTION, a fenced producer INVALID_PRODUCER_EPOCH.
func registrationCode(code int16) int16 {
	switch code {
	case kerr.UnknownServerError.Code:
		return kerr.NetworkException.Code
	case kerr.ProducerFenced.Code:
		return kerr.InvalidProducerEpoch.Code
	case kerr.TransactionalIDAuthorizationFailed.Code, kerr.ClusterAuthorizationFailed.Code, kerr.TopicAuthorizationFailed.Code:
		return kerr.InvalidTxnState.Code
	}
	return code
}

// describeKafkaTransaction describes a transaction with its partitions; nil if
// the coordinator does not know the ID.
func (b *backend) describeKafkaTransaction(ctx context.Context, transactionalID string) (*kmsg.DescribeTransactionsResponseTransactionState, error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{transactionalID}
	resp, err := call[*kmsg.DescribeTransactionsResponse](ctx, b.client, b.coordinator(transactionalID), req)
	if err != nil {
		return nil, fmt.Errorf("describe transaction %q: %w", transactionalID, err)
	}
	if len(resp.TransactionStates) != 1 {
		return nil, fmt.Errorf("describe transaction %q: the response lacks it", transactionalID)
	}
	s := &resp.TransactionStates[0]
	switch err := codeError(s.ErrorCode); {
	case errors.Is(err, kerr.TransactionalIDNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("describe transaction %q: %w", transactionalID, err)
	}
	return s, nil
}

func (b *backend) describeTransaction(ctx context.Context, transactionalID string) (txnState, bool, error) {
	s, err := b.describeKafkaTransaction(ctx, transactionalID)
	if err != nil || s == nil {
		return txnState{}, false, err
	}
	st := txnState{
		transactionalID: transactionalID, state: s.State,
		producerID: s.ProducerID, producerEpoch: s.ProducerEpoch,
		timeout: time.Duration(s.TimeoutMillis) * time.Millisecond,
	}
	for _, t := range s.Topics {
		if t.Topic == stateTopic {
			st.statePartitions = slices.Sorted(slices.Values(t.Partitions))
		}
	}
	if s.StartTimestamp >= 0 {
		st.start = time.UnixMilli(s.StartTimestamp)
	}
	return st, true, nil
}

func (b *backend) listTransactions(ctx context.Context) ([]txnState, error) {
	req := kmsg.NewPtrListTransactionsRequest()
	req.Version = 1
	req.StateFilters = []string{"Ongoing", "PrepareCommit", "PrepareAbort"}
	req.DurationFilterMillis = -1
	var open []txnState
	seen := make(map[string]bool)
	for _, n := range b.brokers {
		resp, err := call[*kmsg.ListTransactionsResponse](ctx, b.client, n.id, req)
		if err == nil {
			err = codeError(resp.ErrorCode)
		}
		if err != nil {
			return nil, fmt.Errorf("list transactions of broker %d: %w", n.id, err)
		}
		// kfake's brokers list the transactions of all coordinators.
		for _, s := range resp.TransactionStates {
			if seen[s.TransactionalID] {
				continue
			}
			seen[s.TransactionalID] = true
			st, ok, err := b.describeTransaction(ctx, s.TransactionalID)
			if err != nil {
				return nil, err
			}
			if ok && st.state != "Empty" && !strings.HasPrefix(st.state, "Complete") {
				open = append(open, st)
			}
		}
	}
	slices.SortFunc(open, func(x, y txnState) int { return strings.Compare(x.transactionalID, y.transactionalID) })
	return open, nil
}

// ensureTopic creates a topic unless it exists.
func (b *backend) ensureTopic(ctx context.Context, name string, partitions int32, configs map[string]string) error {
	if _, ok := b.topicByName(name); ok {
		return nil
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = 7
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, partitions, -1
	for _, k := range sortedKeys(configs) {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = k, kmsg.StringPtr(configs[k])
		rt.Configs = append(rt.Configs, c)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := call[*kmsg.CreateTopicsResponse](ctx, b.client, b.controller(), req)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	for _, t := range resp.Topics {
		if err := codeError(t.ErrorCode); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", name, err)
		}
	}
	return nil
}

// eachLeader runs fn for each broker that leads partitions of the state topic,
// all at once.
func (b *backend) eachLeader(ctx context.Context, leaders map[int32][]int32, fn func(ctx context.Context, broker int32, partitions []int32) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for broker, partitions := range leaders {
		g.Go(func() error { return fn(ctx, broker, partitions) })
	}
	return g.Wait()
}
