package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topic is one topic as Metadata describes it.
type Topic struct {
	Name       string
	ID         [16]byte
	IsInternal bool
	Partitions []Partition // by partition number, ascending
}

// Partition is one partition of a topic.
type Partition struct {
	Partition   int32
	Leader      int32 // node ID; -1 when there is none
	LeaderEpoch int32 // -1 when the broker does not say
	Err         error // a *kerr.Error such as LEADER_NOT_AVAILABLE
}

// Leader returns the node ID of the leader of a partition; -1 when the topic
// has no such partition or no leader now.
func (t Topic) Leader(partition int32) int32 {
	for _, p := range t.Partitions {
		if p.Partition == partition {
			return p.Leader
		}
	}
	return -1
}

// Topics describes the named topics, without creating any. It may return
// *Error with UNKNOWN_TOPIC_OR_PARTITION, *AuthError, *DialError, or
// *NoBrokersError; the first topic that fails ends the call.
func (c *Client) Topics(ctx context.Context, names ...string) (map[string]Topic, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := c.requestMetadata(ctx, req)
	if err != nil {
		return nil, classify(err, c.cfg.BootstrapServers)
	}
	out := make(map[string]Topic, len(resp.Topics))
	for _, rt := range resp.Topics {
		name := ""
		if rt.Topic != nil {
			name = *rt.Topic
		}
		if err := kerr.ErrorForCode(rt.ErrorCode); err != nil {
			return nil, topicError(name, err)
		}
		out[name] = newTopic(name, rt)
	}
	return out, nil
}

// AllTopics describes every topic that the principal may describe, internal ones
// included, in no order. It may return *AuthError, *DialError or *NoBrokersError.
func (c *Client) AllTopics(ctx context.Context) ([]Topic, error) {
	resp, err := c.requestMetadata(ctx, kmsg.NewPtrMetadataRequest())
	if err != nil {
		return nil, classify(err, c.cfg.BootstrapServers)
	}
	out := make([]Topic, 0, len(resp.Topics))
	for _, rt := range resp.Topics {
		if rt.Topic != nil { // an error, such as that of a leader, is one of the moment
			out = append(out, newTopic(*rt.Topic, rt))
		}
	}
	return out, nil
}

func topicError(name string, err error) error {
	e := &Error{Op: fmt.Sprintf("describe topic %q", name), Broker: -1, Err: err}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		e.Advice = "create the topic first, or check its name"
	}
	return classifyAuth(e)
}

func newTopic(name string, rt kmsg.MetadataResponseTopic) Topic {
	t := Topic{Name: name, ID: rt.TopicID, IsInternal: rt.IsInternal}
	for _, rp := range rt.Partitions {
		t.Partitions = append(t.Partitions, Partition{
			Partition: rp.Partition, Leader: rp.Leader, LeaderEpoch: rp.LeaderEpoch,
			Err: kerr.ErrorForCode(rp.ErrorCode),
		})
	}
	slices.SortFunc(t.Partitions, func(a, b Partition) int { return int(a.Partition) - int(b.Partition) })
	return t
}

// ResourceConfig returns one config of a resource and whether the broker gave a
// value for it. resource is kmsg.ConfigResourceTypeBroker with name "" for the
// cluster-wide view of any broker, or a topic or group.
func (c *Client) ResourceConfig(ctx context.Context, resource kmsg.ConfigResourceType, name, config string) (string, bool, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = resource, name, []string{config}
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return "", false, classify(err, c.cfg.BootstrapServers)
	}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			e := &Error{Op: fmt.Sprintf("describe config %s", config), Broker: -1, Err: err}
			if r.ErrorMessage != nil {
				e.Detail = *r.ErrorMessage
			}
			return "", false, classifyAuth(e)
		}
		for _, cfg := range r.Configs {
			if cfg.Name == config && cfg.Value != nil {
				return *cfg.Value, true, nil
			}
		}
	}
	return "", false, nil
}

// GroupConfig returns the value in force of a config of a group, and whether the
// brokers know it; see [Client.ResourceConfig].
func (c *Client) GroupConfig(ctx context.Context, group, config string) (string, bool, error) {
	return c.ResourceConfig(ctx, kmsg.ConfigResourceTypeGroupConfig, group, config)
}

// AnyBroker returns the node ID of a broker that is alive, the lowest one.
func (c *Client) AnyBroker(ctx context.Context) (int32, error) {
	brokers, err := c.brokers(ctx)
	if err != nil {
		return -1, err
	}
	if len(brokers) == 0 {
		return -1, &DialError{Addrs: c.cfg.BootstrapServers, Err: kerr.BrokerNotAvailable}
	}
	return brokers[0].NodeID, nil
}

// SetGroupConfig sets one config of a share group (IncrementalAlterConfigs on
// resource type GROUP). It may return *Error or *AuthError.
func (c *Client) SetGroupConfig(ctx context.Context, group, config, value string) error {
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Op, cfg.Value = config, kmsg.IncrementalAlterConfigOpSet, kmsg.StringPtr(value)
	r.Configs = append(r.Configs, cfg)
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return classify(err, c.cfg.BootstrapServers)
	}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			e := &Error{Op: fmt.Sprintf("set %s=%s of group %q", config, value, group), Broker: -1, Err: err}
			if r.ErrorMessage != nil {
				e.Detail = *r.ErrorMessage
			}
			return classifyAuth(e)
		}
	}
	return nil
}
