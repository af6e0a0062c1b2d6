package bigcluster

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// served are the requests that are answered, in all versions that kmsg knows.
func served() []kmsg.Key {
	return []kmsg.Key{
		kmsg.Fetch, kmsg.ListOffsets, kmsg.Metadata, kmsg.FindCoordinator, kmsg.ListGroups, kmsg.ApiVersions,
		kmsg.DescribeConfigs, kmsg.DescribeCluster, kmsg.DescribeTransactions, kmsg.ListTransactions,
		kmsg.ShareGroupDescribe, kmsg.DescribeShareGroupOffsets, kmsg.ReadShareGroupState, kmsg.ReadShareGroupStateSummary,
	}
}

// respond returns nil for a request that is not served.
func (c *Cluster) respond(node int32, req kmsg.Request) kmsg.Response {
	d := c.data
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		return d.apiVersions(req)
	case *kmsg.MetadataRequest:
		return c.metadata(req)
	case *kmsg.DescribeClusterRequest:
		return c.describeCluster(req)
	case *kmsg.DescribeConfigsRequest:
		return describeConfigs(req)
	case *kmsg.FindCoordinatorRequest:
		return c.findCoordinator(req)
	case *kmsg.ListTransactionsRequest:
		return d.listTransactions(node, req)
	case *kmsg.DescribeTransactionsRequest:
		return d.describeTransactions(node, req)
	case *kmsg.ListGroupsRequest:
		return d.listGroups(node, req)
	case *kmsg.ShareGroupDescribeRequest:
		return d.describeGroups(req)
	case *kmsg.DescribeShareGroupOffsetsRequest:
		return d.describeOffsets(req)
	case *kmsg.ReadShareGroupStateSummaryRequest:
		return d.summaries(node, req)
	case *kmsg.ReadShareGroupStateRequest:
		return d.states(node, req)
	case *kmsg.ListOffsetsRequest:
		return d.listOffsets(req)
	case *kmsg.FetchRequest:
		return d.fetch(node, req)
	}
	return nil
}

// apiVersions shows a build that implements the draft of KIP-1289.
func (d *data) apiVersions(req *kmsg.ApiVersionsRequest) kmsg.Response {
	draft, _ := wire.DialectByName("draft")
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	add := func(key, version int16) {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MaxVersion = key, version
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	for _, key := range served() {
		add(int16(key), key.Request().MaxVersion())
	}
	add(draft.Key, draft.MaxVersion)
	resp.FinalizedFeaturesEpoch = 1
	for name, level := range map[string]int16{wire.FeatureShareVersion: draft.ShareVersion, wire.FeatureTransactionVersion: wire.TransactionVersion} {
		s, f := kmsg.NewApiVersionsResponseSupportedFeature(), kmsg.NewApiVersionsResponseFinalizedFeature()
		s.Name, s.MaxVersion = name, level
		f.Name, f.MinVersionLevel, f.MaxVersionLevel = name, level, level
		resp.SupportedFeatures, resp.FinalizedFeatures = append(resp.SupportedFeatures, s), append(resp.FinalizedFeatures, f)
	}
	return resp
}

// endpoints calls add with each broker.
func (c *Cluster) endpoints(add func(node int32, host string, port int32)) {
	for i, addr := range c.Addrs() {
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.ParseInt(port, 10, 32)
		add(int32(i), host, int32(n))
	}
}

const clusterID = "bigcluster"

func (c *Cluster) metadata(req *kmsg.MetadataRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	resp.ClusterID = kmsg.StringPtr(clusterID)
	c.endpoints(func(node int32, host string, port int32) {
		b := kmsg.NewMetadataResponseBroker()
		b.NodeID, b.Host, b.Port = node, host, port
		resp.Brokers = append(resp.Brokers, b)
	})
	if req.Topics == nil {
		for _, t := range c.data.topics {
			resp.Topics = append(resp.Topics, t.metadata())
		}
	}
	for _, rt := range req.Topics {
		i := slices.IndexFunc(c.data.topics[:], func(t topicOf) bool {
			return rt.Topic != nil && t.name == *rt.Topic || rt.Topic == nil && t.id == rt.TopicID
		})
		if i >= 0 {
			resp.Topics = append(resp.Topics, c.data.topics[i].metadata())
			continue
		}
		t := kmsg.NewMetadataResponseTopic()
		t.Topic, t.TopicID, t.ErrorCode = rt.Topic, rt.TopicID, kerr.UnknownTopicOrPartition.Code
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

func (t topicOf) metadata() kmsg.MetadataResponseTopic {
	out := kmsg.NewMetadataResponseTopic()
	out.Topic, out.TopicID, out.IsInternal = kmsg.StringPtr(t.name), t.id, t.name == stateTopic
	for p := range int32(t.partitions) {
		mp := kmsg.NewMetadataResponseTopicPartition()
		mp.Partition, mp.Leader, mp.LeaderEpoch = p, leaderOf(p), leaderEpoch
		out.Partitions = append(out.Partitions, mp)
	}
	return out
}

func (c *Cluster) describeCluster(req *kmsg.DescribeClusterRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	resp.ClusterID = clusterID
	c.endpoints(func(node int32, host string, port int32) {
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port = node, host, port
		resp.Brokers = append(resp.Brokers, b)
	})
	return resp
}

// describeConfigs knows no config: whoever asks takes Kafka's defaults.
func describeConfigs(req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for _, r := range req.Resources {
		rr := kmsg.NewDescribeConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = r.ResourceType, r.ResourceName
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

// coordinatorOf is who coordinates the nth transaction or group.
func coordinatorOf(n int) int32 { return int32(n % Brokers) }

func (c *Cluster) findCoordinator(req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	for _, key := range req.CoordinatorKeys {
		a := kmsg.NewFindCoordinatorResponseCoordinator()
		a.Key = key
		node := coordinatorOf(c.data.txnOf[key])
		if req.CoordinatorType == 0 {
			node = coordinatorOf(c.data.groupOf[key])
		}
		c.endpoints(func(n int32, host string, port int32) {
			if n == node {
				a.NodeID, a.Host, a.Port = n, host, port
			}
		})
		resp.Coordinators = append(resp.Coordinators, a)
	}
	return resp
}

const ongoing = "Ongoing"

func (d *data) listTransactions(node int32, req *kmsg.ListTransactionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
	if len(req.StateFilters) > 0 && !slices.Contains(req.StateFilters, ongoing) {
		return resp
	}
	producers := make(map[int64]bool, len(req.ProducerIDFilters))
	for _, id := range req.ProducerIDFilters {
		producers[id] = true
	}
	for i := range d.Transactions {
		producer := firstProducerID + int64(i)
		if coordinatorOf(i) != node || len(producers) > 0 && !producers[producer] {
			continue
		}
		s := kmsg.NewListTransactionsResponseTransactionState()
		s.TransactionalID, s.ProducerID, s.TransactionState = transactionalID(i), producer, ongoing
		resp.TransactionStates = append(resp.TransactionStates, s)
	}
	return resp
}

func (d *data) describeTransactions(node int32, req *kmsg.DescribeTransactionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	for _, id := range req.TransactionalIDs {
		s := kmsg.NewDescribeTransactionsResponseTransactionState()
		s.TransactionalID = id
		i, ok := d.txnOf[id]
		switch {
		case !ok:
			s.ErrorCode = kerr.TransactionalIDNotFound.Code
		case coordinatorOf(i) != node:
			s.ErrorCode = kerr.NotCoordinator.Code
		default:
			s.State, s.ProducerID, s.ProducerEpoch = ongoing, firstProducerID+int64(i), producerEpoch
			s.TimeoutMillis, s.StartTimestamp = 60_000, d.started.UnixMilli()
			t := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
			t.Topic, t.Partitions = stateTopic, []int32{d.where[d.held[i]]}
			s.Topics = append(s.Topics, t)
		}
		resp.TransactionStates = append(resp.TransactionStates, s)
	}
	return resp
}

const stable = "Stable"

func (d *data) listGroups(node int32, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	for g := range d.Groups {
		if coordinatorOf(g) != node {
			continue
		}
		lg := kmsg.NewListGroupsResponseGroup()
		lg.Group, lg.ProtocolType, lg.GroupType, lg.GroupState = groupID(g), "share", "share", stable
		resp.Groups = append(resp.Groups, lg)
	}
	return resp
}

func (d *data) describeGroups(req *kmsg.ShareGroupDescribeRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ShareGroupDescribeResponse)
	for _, id := range req.GroupIDs {
		rg := kmsg.NewShareGroupDescribeResponseGroup()
		rg.GroupID = id
		g, ok := d.groupOf[id]
		if !ok {
			rg.ErrorCode = kerr.GroupIDNotFound.Code
			resp.Groups = append(resp.Groups, rg)
			continue
		}
		rg.GroupState, rg.GroupEpoch, rg.AssignmentEpoch, rg.Assignor = stable, 1, 1, "simple"
		m := kmsg.NewShareGroupDescribeResponseGroupMember()
		topic := d.topics[g%topicCount]
		m.MemberID, m.MemberEpoch, m.ClientID, m.SubscribedTopicNames = "member-of-"+id, 1, "big", []string{topic.name}
		a := kmsg.NewShareGroupDescribeResponseGroupMemberAssignmentTopicPartition()
		a.Topic, a.TopicID = topic.name, topic.id
		for p := range int32(d.perGroup) {
			a.Partitions = append(a.Partitions, p)
		}
		m.Assignment.TopicPartitions = append(m.Assignment.TopicPartitions, a)
		rg.Members = append(rg.Members, m)
		resp.Groups = append(resp.Groups, rg)
	}
	return resp
}

func (d *data) describeOffsets(req *kmsg.DescribeShareGroupOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeShareGroupOffsetsResponse)
	for _, q := range req.Groups {
		rg := kmsg.NewDescribeShareGroupOffsetsResponseGroup()
		rg.GroupID = q.GroupID
		if g, ok := d.groupOf[q.GroupID]; ok {
			topic := d.topics[g%topicCount]
			rt := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopic()
			rt.Topic, rt.TopicID = topic.name, topic.id
			for p := range int32(d.perGroup) {
				rp := kmsg.NewDescribeShareGroupOffsetsResponseGroupTopicPartition()
				rp.Partition, rp.LeaderEpoch, rp.Lag = p, leaderEpoch, lag
				rt.Partitions = append(rt.Partitions, rp)
			}
			rg.Topics = append(rg.Topics, rt)
		}
		resp.Groups = append(resp.Groups, rg)
	}
	return resp
}

// stateOf returns the share-partition that a broker is asked for; -1 for none, and
// false where another broker has its state.
func (d *data) stateOf(node int32, group string, topicID [16]byte, partition int32) (int, bool) {
	s := d.index(group, topicID, partition)
	return s, s < 0 || leaderOf(d.where[s]) == node
}

func (d *data) summaries(node int32, req *kmsg.ReadShareGroupStateSummaryRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ReadShareGroupStateSummaryResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewReadShareGroupStateSummaryResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewReadShareGroupStateSummaryResponseTopicPartition()
			rp.Partition = p.Partition
			s, ok := d.stateOf(node, req.GroupID, t.TopicID, p.Partition)
			switch {
			case !ok:
				rp.ErrorCode = kerr.NotCoordinator.Code
			case s < 0:
				rp.StartOffset = -1
			default:
				rp.StateEpoch, rp.LeaderEpoch, rp.DeliveryCompleteCount = stateEpoch, leaderEpoch, doneRecords
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (d *data) states(node int32, req *kmsg.ReadShareGroupStateRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ReadShareGroupStateResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewReadShareGroupStateResponseTopic()
		rt.TopicID = t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewReadShareGroupStateResponseTopicPartition()
			rp.Partition = p.Partition
			s, ok := d.stateOf(node, req.GroupID, t.TopicID, p.Partition)
			switch {
			case !ok:
				rp.ErrorCode = kerr.NotCoordinator.Code
			case s < 0, p.LeaderEpoch != leaderEpoch:
				rp.ErrorCode = kerr.InvalidRequest.Code
			default:
				rp.StateEpoch = stateEpoch
				for _, b := range d.batches(s) {
					rb := kmsg.NewReadShareGroupStateResponseTopicPartitionStateBatch()
					rb.FirstOffset, rb.LastOffset = b.FirstOffset, b.LastOffset
					rb.DeliveryState, rb.DeliveryCount, rb.UnknownTags = int8(b.DeliveryState), b.DeliveryCount, wire.StagedOwnerTags(b.Staged)
					rp.StateBatches = append(rp.StateBatches, rb)
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// earliest is the timestamp of ListOffsets that stands for the first offset.
const earliest = -2

func (d *data) listOffsets(req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewListOffsetsResponseTopicPartition()
			rp.Partition, rp.Timestamp, rp.Offset = p.Partition, -1, 0
			switch {
			case p.Timestamp == earliest:
			case t.Topic == stateTopic:
				rp.Offset = d.end(p.Partition)
			case strings.HasPrefix(t.Topic, "orders-"):
				rp.Offset = doneRecords + lag
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// end is the high watermark of a partition of __share_group_state.
func (d *data) end(partition int32) int64 {
	log := d.log[partition]
	if len(log) == 0 {
		return 0
	}
	return log[len(log)-1].next
}

func (d *data) fetch(node int32, req *kmsg.FetchRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.Topics {
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = t.Topic, t.TopicID
		for _, p := range t.Partitions {
			rp := kmsg.NewFetchResponseTopicPartition()
			rp.Partition, rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = p.Partition, d.end(p.Partition), d.end(p.Partition), 0
			switch {
			case t.Topic != stateTopic && t.TopicID != d.topics[topicCount].id:
				rp.ErrorCode = kerr.UnknownTopicID.Code
			case leaderOf(p.Partition) != node:
				rp.ErrorCode = kerr.NotLeaderForPartition.Code
			default:
				for _, b := range d.log[p.Partition] {
					if b.next <= p.FetchOffset {
						continue
					}
					if len(rp.RecordBatches) > 0 && len(rp.RecordBatches)+len(b.bytes) > int(p.PartitionMaxBytes) {
						break
					}
					rp.RecordBatches = append(rp.RecordBatches, b.bytes...)
				}
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
