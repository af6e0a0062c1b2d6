package sandbox

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Configuration that Kafka has and kfake does not. The gateway answers for it
// in DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

// extraGroupConfigs are the GROUP configs of the share plane that kfake refuses
// as unknown, with their defaults, sorted by name.
var extraGroupConfigs = []extraGroupConfig{
	{"share.renew.acknowledge.enable", kmsg.ConfigTypeBoolean, "true"}, // KIP-1222
}

type extraGroupConfig struct {
	name         string
	kind         kmsg.ConfigType
	defaultValue string
}

func extraGroupConfigByName(name string) (extraGroupConfig, bool) {
	for _, c := range extraGroupConfigs {
		if c.name == name {
			return c, true
		}
	}
	return extraGroupConfig{}, false
}

// extraConfigs holds the values of configs that kfake does not know.
type extraConfigs struct {
	mu     sync.Mutex
	groups map[string]map[string]string // by group ID, then by name
	save   func(map[string]map[string]string) error
}

func (e *extraConfigs) group(group, name string) (string, bool) {
	c, ok := extraGroupConfigByName(name)
	if !ok {
		return "", false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return cmp.Or(e.groups[group][name], c.defaultValue), true
}

// brokerDefault returns the default of a broker config that kfake has none for,
// "" for others.
func (*extraConfigs) brokerDefault(name string) string {
	switch name {
	case "group.share.max.record.lock.duration.ms":
		return "60000"
	case "group.share.min.record.lock.duration.ms":
		return "15000"
	case "share.coordinator.snapshot.update.records.per.snapshot":
		return "500"
	case "share.coordinator.state.topic.num.partitions":
		return strconv.Itoa(defaultStatePartitions)
	case "socket.request.max.bytes":
		return strconv.Itoa(maxFrameBytes)
	case "transaction.abort.timed.out.transaction.cleanup.interval.ms":
		return "10000"
	default:
		return ""
	}
}

// alter applies the operations on extra configs of a group. It returns false if
// one of them is not valid, and then changes nothing.
func (e *extraConfigs) alter(group string, ops []kmsg.IncrementalAlterConfigsRequestResourceConfig, validateOnly bool) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	values := maps.Clone(e.groups[group])
	if values == nil {
		values = make(map[string]string)
	}
	for _, op := range ops {
		switch op.Op {
		case kmsg.IncrementalAlterConfigOpSet:
			if op.Value == nil || !validExtraConfig(op.Name, *op.Value) {
				return false, nil
			}
			values[op.Name] = strings.ToLower(*op.Value)
		case kmsg.IncrementalAlterConfigOpDelete:
			delete(values, op.Name)
		default:
			return false, nil
		}
	}
	if validateOnly {
		return true, nil
	}
	groups := maps.Clone(e.groups)
	if groups == nil {
		groups = make(map[string]map[string]string)
	}
	groups[group] = values
	if len(values) == 0 {
		delete(groups, group)
	}
	if e.save != nil {
		if err := e.save(groups); err != nil {
			return false, err
		}
	}
	e.groups = groups
	return true, nil
}

func validExtraConfig(name, value string) bool {
	c, _ := extraGroupConfigByName(name)
	switch c.kind {
	case kmsg.ConfigTypeBoolean:
		return strings.EqualFold(value, "true") || strings.EqualFold(value, "false")
	default:
		return false
	}
}

// describe returns the extra configs of a group, those in names only unless nil.
func (e *extraConfigs) describe(group string, names []string) []kmsg.DescribeConfigsResponseResourceConfig {
	e.mu.Lock()
	defer e.mu.Unlock()
	var configs []kmsg.DescribeConfigsResponseResourceConfig
	for _, extra := range extraGroupConfigs {
		if names != nil && !slices.Contains(names, extra.name) {
			continue
		}
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.ConfigType = extra.name, extra.kind
		value, set := e.groups[group][extra.name]
		c.Source, c.IsDefault = kmsg.ConfigSourceGroupConfig, !set
		if !set {
			value, c.Source = extra.defaultValue, kmsg.ConfigSourceDefaultConfig
		}
		c.Value = kmsg.StringPtr(value)
		configs = append(configs, c)
	}
	return configs
}

// groupConfigsInForce completes the configs of a group that it has not set: Kafka
// tells the value that is in force and which config of the broker gives it, kfake
// tells none. What only kfake takes for a config of a group is left out unless it
// is set.
func groupConfigsInForce(configs []kmsg.DescribeConfigsResponseResourceConfig, broker map[string]kmsg.DescribeConfigsResponseResourceConfig, synonyms bool) []kmsg.DescribeConfigsResponseResourceConfig {
	out := configs[:0]
	for _, c := range configs {
		if c.Value == nil {
			of, ok := groupConfigDefault(c.Name, broker)
			if !ok {
				continue
			}
			c.Value, c.Source, c.ConfigType = of.Value, of.Source, of.ConfigType
			if synonyms {
				c.ConfigSynonyms = []kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{{Name: of.Name, Value: of.Value, Source: of.Source}}
			}
		}
		out = append(out, c)
	}
	return out
}

// groupConfigDefault returns what is in force where a group has not set a config.
func groupConfigDefault(name string, broker map[string]kmsg.DescribeConfigsResponseResourceConfig) (kmsg.DescribeConfigsResponseResourceConfig, bool) {
	c := kmsg.NewDescribeConfigsResponseResourceConfig()
	c.Name, c.Source, c.ConfigType = name, kmsg.ConfigSourceDefaultConfig, kmsg.ConfigTypeString
	switch name {
	case "share.auto.offset.reset":
		c.Value = kmsg.StringPtr("latest")
	case "share.isolation.level":
		c.Value = kmsg.StringPtr("read_uncommitted")
	case "share.max.size", "share.max.share.sessions":
		return c, false
	default:
		c = broker["group."+name]
	}
	return c, c.Value != nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
