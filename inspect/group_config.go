package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// GroupConfig is a config of a share group that is in force.
type GroupConfig struct {
	Name  string  `json:"name"`
	Value *string `json:"value"` // nil: the broker does not tell
	// Source is Kafka's name of where the value comes from: GROUP_CONFIG,
	// DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG, STATIC_BROKER_CONFIG or
	// DEFAULT_CONFIG.
	Source string `json:"source"`
	// BrokerConfig is the broker's config that gives the value; "" when the group
	// has one of its own, or none of the broker's does.
	BrokerConfig string `json:"broker_config,omitempty"`
}

// DeadLetterQueue says where records go that are rejected, or delivered too often
// (KIP-1191).
type DeadLetterQueue struct {
	Active     bool    `json:"active"`
	Reason     string  `json:"reason"`      // for it, a sentence without a full stop
	Topic      *string `json:"topic"`       // nil: none is set
	CopyRecord bool    `json:"copy_record"` // key, value and headers, and not only where the record is
}

// The configs of groups and topics that this package reads.
const (
	configLockDuration    = "share.record.lock.duration.ms"
	configDeadLetterTopic = "errors.deadletterqueue.topic.name"
	configDeadLetterCopy  = "errors.deadletterqueue.copy.record.enable"
	configDeadLetterAllow = "errors.deadletterqueue.group.enable" // of the topic
)

// isShareConfig reports whether a config of a group concerns share groups: one of
// each type of group has its own.
func isShareConfig(name string) bool {
	return strings.HasPrefix(name, "share.") || strings.HasPrefix(name, "errors.deadletterqueue.")
}

// configsBatch is how many groups one request asks the configs of.
const configsBatch = 100

// groupConfigs reads the configs of groups (DescribeConfigs v1 and later), by
// group ID, each sorted by name. Any broker knows them.
func groupConfigs(ctx context.Context, cl Cluster, brokers []cluster.BrokerVersions, groups []Group, gaps *gapList) map[string][]GroupConfig {
	out := make(map[string][]GroupConfig, len(groups))
	i := slices.IndexFunc(brokers, func(b cluster.BrokerVersions) bool { return b.Err == nil })
	if i < 0 {
		return out
	}
	for batch := range slices.Chunk(groups, configsBatch) {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.IncludeSynonyms = true
		for _, g := range batch {
			r := kmsg.NewDescribeConfigsRequestResource()
			r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, g.GroupID
			req.Resources = append(req.Resources, r)
		}
		resp, err := ask[*kmsg.DescribeConfigsResponse](ctx, cl, brokers[i].NodeID, req)
		if err != nil {
			gaps.add(newGap(SourceDescribeConfigs, brokers[i].NodeID, "tell the configs of share groups", err))
			return out
		}
		for _, r := range resp.Resources {
			switch err := kerr.ErrorForCode(r.ErrorCode); {
			case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
				acl := ACL{"DESCRIBE_CONFIGS", "GROUP", r.ResourceName}
				gaps.add(aclGap(SourceDescribeConfigs, acl, kerr.TypedErrorForCode(r.ErrorCode), "the configs of the group are hidden from it"))
			case err != nil:
				gaps.add(newGap(SourceDescribeConfigs, brokers[i].NodeID, fmt.Sprintf("tell the configs of share group %q", r.ResourceName), err))
			default:
				out[r.ResourceName] = newGroupConfigs(r.Configs)
			}
		}
	}
	return out
}

func newGroupConfigs(configs []kmsg.DescribeConfigsResponseResourceConfig) []GroupConfig {
	var out []GroupConfig
	for _, c := range configs {
		if !isShareConfig(c.Name) {
			continue
		}
		g := GroupConfig{Name: c.Name, Value: c.Value, Source: c.Source.String()}
		if len(c.ConfigSynonyms) > 0 && c.ConfigSynonyms[0].Name != c.Name {
			g.BrokerConfig = c.ConfigSynonyms[0].Name
		}
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b GroupConfig) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func configValue(configs []GroupConfig, name string) (string, bool) {
	for _, c := range configs {
		if c.Name == name && c.Value != nil {
			return *c.Value, true
		}
	}
	return "", false
}

func configInt(configs []GroupConfig, name string) *int64 {
	s, _ := configValue(configs, name)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// deadLetterLevel is the level of share.version that brings dead-letter queues.
const deadLetterLevel = 2

// newDeadLetterQueue says what a group does with rejected records; nil where
// brokers know no dead-letter queues. topics is nil where it is not known which
// there are.
func newDeadLetterQueue(ctx context.Context, cl Cluster, configs []GroupConfig, topics map[string]cluster.Topic, shareVersion int16) *DeadLetterQueue {
	name, ok := configValue(configs, configDeadLetterTopic)
	if !ok {
		return nil
	}
	copyRecord, _ := configValue(configs, configDeadLetterCopy)
	q := &DeadLetterQueue{CopyRecord: copyRecord == "true"}
	if name == "" {
		q.Reason = "the group names no topic (" + configDeadLetterTopic + ")"
		return q
	}
	q.Topic = &name
	_, exists := topics[name]
	allowed, err := topicConfig(ctx, cl, name, configDeadLetterAllow)
	switch {
	case shareVersion >= 0 && shareVersion < deadLetterLevel:
		q.Reason = fmt.Sprintf("share.version is %d, and dead-letter queues need %d", shareVersion, deadLetterLevel)
	case topics != nil && !exists:
		q.Reason = fmt.Sprintf("topic %q does not exist", name)
	case err != nil:
		q.Reason = fmt.Sprintf("whether topic %q may be used is not known: %s", name, cluster.Name(err))
	case allowed != "true":
		q.Reason = fmt.Sprintf("topic %q may not be used: %s is not true there", name, configDeadLetterAllow)
	default:
		q.Active, q.Reason = true, fmt.Sprintf("topic %q takes rejected records", name)
	}
	return q
}

// topicConfig reads one config of a topic; "" where it has none.
func topicConfig(ctx context.Context, cl Cluster, topic, config string) (string, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kmsg.ConfigResourceTypeTopic, topic, []string{config}
	req.Resources = append(req.Resources, r)
	ctx, cancel := limited(ctx)
	defer cancel()
	kresp, err := cl.Request(ctx, req)
	if err != nil {
		return "", err
	}
	for _, r := range kresp.(*kmsg.DescribeConfigsResponse).Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return "", err
		}
		for _, c := range r.Configs {
			if c.Name == config && c.Value != nil {
				return *c.Value, nil
			}
		}
	}
	return "", nil
}
