package sandbox

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topics: what a broker checks and kfake does not, the internal topic, and the
// configs that kfake does not know.

// maxNewPartitions is how many partitions one request may create, as in Kafka.
const maxNewPartitions = 10_000

func (c *gatewayConn) handleCreateTopics(r *request, req *kmsg.CreateTopicsRequest) error {
	var total int64
	for i := range req.Topics {
		total += max(int64(req.Topics[i].NumPartitions), 1) + int64(len(req.Topics[i].ReplicaAssignment))
	}
	var own []kmsg.CreateTopicsResponseTopic
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.CreateTopicsRequestTopic) bool {
		code, why := checkNewTopic(&t)
		if total > maxNewPartitions {
			code, why = kerr.PolicyViolation.Code, fmt.Sprintf("more than %d partitions in one request", maxNewPartitions)
		}
		if code == 0 {
			return false
		}
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic, rt.ErrorCode, rt.ErrorMessage = t.Topic, code, &why
		rt.NumPartitions, rt.ReplicationFactor = -1, -1
		own = append(own, rt)
		return true
	})
	return passRest(c, r, req, len(req.Topics) > 0, own == nil, func(resp *kmsg.CreateTopicsResponse) {
		resp.Topics = append(resp.Topics, own...)
	})
}

func checkNewTopic(t *kmsg.CreateTopicsRequestTopic) (code int16, why string) {
	assigned := len(t.ReplicaAssignment) > 0
	switch {
	case !validTopicName(t.Topic):
		return kerr.InvalidTopicException.Code, "a topic name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and is not '.' or '..'"
	case !assigned && (t.NumPartitions == 0 || t.NumPartitions < -1):
		return kerr.InvalidPartitions.Code, fmt.Sprintf("%d partitions: give at least 1, or -1 for the default", t.NumPartitions)
	case !assigned && (t.ReplicationFactor == 0 || t.ReplicationFactor < -1):
		return kerr.InvalidReplicationFactor.Code, fmt.Sprintf("replication factor %d: give at least 1, or -1 for the default", t.ReplicationFactor)
	}
	return 0, ""
}

func (c *gatewayConn) handleCreatePartitions(r *request, req *kmsg.CreatePartitionsRequest) error {
	var total int64
	for i := range req.Topics {
		have, _ := c.g.kafka.topicByName(req.Topics[i].Topic)
		total += max(int64(req.Topics[i].Count)-int64(have.partitions), 0)
	}
	var own []kmsg.CreatePartitionsResponseTopic
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.CreatePartitionsRequestTopic) bool {
		var why string
		switch {
		case t.Topic == stateTopic:
			why = "the number of partitions of " + stateTopic + " decides where state is found, and cannot change"
		case total > maxNewPartitions:
			why = fmt.Sprintf("more than %d partitions in one request", maxNewPartitions)
		default:
			return false
		}
		rt := kmsg.NewCreatePartitionsResponseTopic()
		rt.Topic, rt.ErrorCode, rt.ErrorMessage = t.Topic, kerr.PolicyViolation.Code, &why
		own = append(own, rt)
		return true
	})
	if own == nil {
		return c.passThen(r, c.g.kafka.invalidateTopics)
	}
	return passRest(c, r, req, len(req.Topics) > 0, false, func(resp *kmsg.CreatePartitionsResponse) {
		c.g.kafka.invalidateTopics()
		resp.Topics = append(resp.Topics, own...)
	})
}

func (c *gatewayConn) handleDeleteTopics(r *request, req *kmsg.DeleteTopicsRequest) error {
	c.g.deletion.Lock()
	defer c.g.deletion.Unlock()
	var own []kmsg.DeleteTopicsResponseTopic
	refuse := func(name *string, id [16]byte) bool {
		if (name == nil || *name != stateTopic) && id != c.g.stateTopicID {
			return false
		}
		rt := kmsg.NewDeleteTopicsResponseTopic()
		rt.Topic, rt.TopicID, rt.ErrorCode = name, id, kerr.PolicyViolation.Code
		rt.ErrorMessage = kmsg.StringPtr("the sandbox does not work without " + stateTopic)
		own = append(own, rt)
		return true
	}
	req.TopicNames = slices.DeleteFunc(req.TopicNames, func(name string) bool { return refuse(&name, [16]byte{}) })
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.DeleteTopicsRequestTopic) bool { return refuse(t.Topic, t.TopicID) })
	if own == nil {
		return c.passThen(r, c.g.kafka.invalidateTopics)
	}
	return passRest(c, r, req, len(req.TopicNames)+len(req.Topics) > 0, false, func(resp *kmsg.DeleteTopicsResponse) {
		c.g.kafka.invalidateTopics()
		resp.Topics = append(resp.Topics, own...)
	})
}

func (c *gatewayConn) handleDeleteRecords(r *request, req *kmsg.DeleteRecordsRequest) error {
	var own []kmsg.DeleteRecordsResponseTopic
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.DeleteRecordsRequestTopic) bool {
		if t.Topic != stateTopic {
			return false
		}
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewDeleteRecordsResponseTopicPartition()
			rp.Partition, rp.LowWatermark, rp.ErrorCode = p.Partition, -1, kerr.InvalidTopicException.Code
			rt.Partitions = append(rt.Partitions, rp)
		}
		own = append(own, rt)
		return true
	})
	return passRest(c, r, req, len(req.Topics) > 0, own == nil, func(resp *kmsg.DeleteRecordsResponse) {
		resp.Topics = append(resp.Topics, own...)
	})
}

// handleMetadata keeps kfake from creating topics with names it should refuse.
func (c *gatewayConn) handleMetadata(r *request, req *kmsg.MetadataRequest) error {
	if !c.g.autoCreate || !req.AllowAutoTopicCreation {
		return c.pass(r)
	}
	bad := slices.ContainsFunc(req.Topics, func(t kmsg.MetadataRequestTopic) bool {
		return t.Topic != nil && !validTopicName(*t.Topic)
	})
	if !bad {
		return c.pass(r)
	}
	req.AllowAutoTopicCreation = false
	return c.exchange(r, req, appendRequest(nil, r, req), c.answer(r))
}

// Configs

func (c *gatewayConn) handleDescribeConfigs(r *request, req *kmsg.DescribeConfigsRequest) error {
	if !slices.ContainsFunc(req.Resources, func(rr kmsg.DescribeConfigsRequestResource) bool {
		return rr.ResourceType == kmsg.ConfigResourceTypeGroupConfig
	}) {
		return c.pass(r)
	}
	names := make(map[string][]string, len(req.Resources))
	for _, rr := range req.Resources {
		if rr.ResourceType == kmsg.ConfigResourceTypeGroupConfig {
			names[rr.ResourceName] = rr.ConfigNames
		}
	}
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		described := resp.(*kmsg.DescribeConfigsResponse)
		broker := c.g.kafka.describeConfigs(kmsg.ConfigResourceTypeBroker, "")
		for i := range described.Resources {
			rr := &described.Resources[i]
			if rr.ResourceType == kmsg.ConfigResourceTypeGroupConfig && rr.ErrorCode == 0 {
				rr.Configs = c.g.kafka.configs.groups.describe(rr.ResourceName, names[rr.ResourceName], broker, req.IncludeSynonyms)
			}
		}
		return c.respond(r, described)
	})
}

// checkBrokerConfig returns what is wrong with the value of a broker config: of
// those that are intervals, which kfake believes and makes tickers of.
func checkBrokerConfig(name, value string) error {
	switch name {
	case "log.cleaner.backoff.ms", "offsets.retention.check.interval.ms":
		if ms, err := strconv.ParseInt(value, 10, 32); err != nil || ms < 1 {
			return fmt.Errorf("broker config %s: %q is not a number of milliseconds above 0", name, value)
		}
	}
	return nil
}

// handleAlterConfigs refuses bad values of broker configs.
func (c *gatewayConn) handleAlterConfigs(r *request, req *kmsg.AlterConfigsRequest) error {
	var own []kmsg.AlterConfigsResponseResource
	req.Resources = slices.DeleteFunc(req.Resources, func(rr kmsg.AlterConfigsRequestResource) bool {
		for _, rc := range rr.Configs {
			if rr.ResourceType != kmsg.ConfigResourceTypeBroker || rc.Value == nil {
				continue
			}
			if err := checkBrokerConfig(rc.Name, *rc.Value); err != nil {
				bad := kmsg.NewAlterConfigsResponseResource()
				bad.ResourceType, bad.ResourceName = rr.ResourceType, rr.ResourceName
				bad.ErrorCode, bad.ErrorMessage = kerr.InvalidConfig.Code, kmsg.StringPtr(err.Error())
				own = append(own, bad)
				return true
			}
		}
		return false
	})
	if own == nil {
		return c.passThen(r, c.g.kafka.invalidateConfigs)
	}
	return passRest(c, r, req, len(req.Resources) > 0, false, func(resp *kmsg.AlterConfigsResponse) {
		c.g.kafka.invalidateConfigs()
		resp.Resources = append(resp.Resources, own...)
	})
}

// handleIncrementalAlterConfigs refuses bad values of broker configs and serves
// the configs of groups. kfake learns of them what it needs.
func (c *gatewayConn) handleIncrementalAlterConfigs(r *request, req *kmsg.IncrementalAlterConfigsRequest) error {
	own := refuseBrokerConfigs(req)
	refused, groups := c.takeGroupConfigs(req)
	own = append(own, refused...)
	if len(own)+len(groups) == 0 {
		return c.passThen(r, c.g.kafka.invalidateConfigs)
	}
	return passRest(c, r, req, len(req.Resources) > 0, false, func(resp *kmsg.IncrementalAlterConfigsResponse) {
		for i := range resp.Resources {
			rr := &resp.Resources[i]
			values, ours := groups[rr.ResourceName]
			if rr.ResourceType != kmsg.ConfigResourceTypeGroupConfig || rr.ErrorCode != 0 || !ours || req.ValidateOnly {
				continue
			}
			if err := c.g.kafka.configs.groups.set(rr.ResourceName, values); err != nil {
				c.g.logf("configs of group %q: %v", rr.ResourceName, err)
				rr.ErrorCode, rr.ErrorMessage = kerr.UnknownServerError.Code, kmsg.StringPtr(err.Error())
			}
		}
		c.g.kafka.invalidateConfigs()
		resp.Resources = append(resp.Resources, own...)
	})
}

// takeGroupConfigs takes the configs of groups out of req, but those that kfake
// needs. It returns the answers for those that are refused, and what the others
// would have set then.
func (c *gatewayConn) takeGroupConfigs(req *kmsg.IncrementalAlterConfigsRequest) ([]kmsg.IncrementalAlterConfigsResponseResource, map[string]map[string]string) {
	var refused []kmsg.IncrementalAlterConfigsResponseResource
	groups := make(map[string]map[string]string)
	req.Resources = slices.DeleteFunc(req.Resources, func(rr kmsg.IncrementalAlterConfigsRequestResource) bool {
		if rr.ResourceType != kmsg.ConfigResourceTypeGroupConfig {
			return false
		}
		code := kerr.InvalidConfig.Code
		values, why := c.g.kafka.configs.groups.check(rr.ResourceName, rr.Configs)
		if rr.ResourceName == "" {
			code, why = kerr.InvalidRequest.Code, "Default group resources are not allowed."
		}
		if why == "" {
			groups[rr.ResourceName] = values
			return false
		}
		bad := kmsg.NewIncrementalAlterConfigsResponseResource()
		bad.ResourceType, bad.ResourceName = rr.ResourceType, rr.ResourceName
		bad.ErrorCode, bad.ErrorMessage = code, kmsg.StringPtr(why)
		refused = append(refused, bad)
		return true
	})
	for i := range req.Resources {
		rr := &req.Resources[i]
		if rr.ResourceType == kmsg.ConfigResourceTypeGroupConfig {
			rr.Configs = slices.DeleteFunc(rr.Configs, func(rc kmsg.IncrementalAlterConfigsRequestResourceConfig) bool {
				return !strings.HasPrefix(rc.Name, consumerConfigs)
			})
		}
	}
	return refused, groups
}

// consumerConfigs begin the names of what consumer groups are configured by.
const consumerConfigs = "consumer."

// ofConsumers returns the configs of a group that kfake needs.
func ofConsumers(values map[string]string) map[string]string {
	out := make(map[string]string)
	for name, v := range values {
		if strings.HasPrefix(name, consumerConfigs) {
			out[name] = v
		}
	}
	return out
}

func refuseBrokerConfigs(req *kmsg.IncrementalAlterConfigsRequest) []kmsg.IncrementalAlterConfigsResponseResource {
	var own []kmsg.IncrementalAlterConfigsResponseResource
	req.Resources = slices.DeleteFunc(req.Resources, func(rr kmsg.IncrementalAlterConfigsRequestResource) bool {
		for _, rc := range rr.Configs {
			if rr.ResourceType != kmsg.ConfigResourceTypeBroker || rc.Op == kmsg.IncrementalAlterConfigOpDelete || rc.Value == nil {
				continue
			}
			if err := checkBrokerConfig(rc.Name, *rc.Value); err != nil {
				bad := kmsg.NewIncrementalAlterConfigsResponseResource()
				bad.ResourceType, bad.ResourceName = rr.ResourceType, rr.ResourceName
				bad.ErrorCode, bad.ErrorMessage = kerr.InvalidConfig.Code, kmsg.StringPtr(err.Error())
				own = append(own, bad)
				return true
			}
		}
		return false
	})
	return own
}
