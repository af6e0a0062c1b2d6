package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Configuration that Kafka has and kfake does not, or does not check. The
// gateway answers for that of groups in DescribeConfigs and
// IncrementalAlterConfigs, and keeps it: kfake writes that of groups down only
// when it is closed.
//
// Behavior, as in GroupConfig of Kafka 4.4:
//   - the values that result from a request are checked together, and all of its
//     changes are refused with INVALID_CONFIG if one is wrong
//   - numbers have bounds, which the broker's configuration sets

// groupConfigDef is a config of a group.
type groupConfigDef struct {
	name         string
	kind         kmsg.ConfigType
	defaultValue string
	atLeast      int64 // of numbers
	// min and max are the broker configs that bound a number, with their
	// defaults; no names means no bounds.
	min, max configBound
	values   []string                // of strings; nil: any that check takes
	check    func(value string) bool // of strings
	expected string                  // what check takes, in Kafka's words
}

type configBound struct {
	name         string
	defaultValue int64
}

// groupConfigDefs are the configs of groups, by name.
var groupConfigDefs = []groupConfigDef{
	{
		name: "consumer.heartbeat.interval.ms", kind: kmsg.ConfigTypeInt, defaultValue: "5000", atLeast: 1,
		min: configBound{"group.consumer.min.heartbeat.interval.ms", 5000}, max: configBound{"group.consumer.max.heartbeat.interval.ms", 15_000},
	},
	{
		name: "consumer.session.timeout.ms", kind: kmsg.ConfigTypeInt, defaultValue: "45000", atLeast: 1,
		min: configBound{"group.consumer.min.session.timeout.ms", 45_000}, max: configBound{"group.consumer.max.session.timeout.ms", 60_000},
	},
	{
		name: "share.auto.offset.reset", kind: kmsg.ConfigTypeString, defaultValue: "latest", check: validOffsetReset,
		expected: "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS.>'.",
	},
	{
		name: "share.delivery.count.limit", kind: kmsg.ConfigTypeInt, defaultValue: "5", atLeast: 1,
		min: configBound{"group.share.min.delivery.count.limit", 2}, max: configBound{"group.share.max.delivery.count.limit", 10},
	},
	{
		name: "share.heartbeat.interval.ms", kind: kmsg.ConfigTypeInt, defaultValue: "5000", atLeast: 1,
		min: configBound{"group.share.min.heartbeat.interval.ms", 5000}, max: configBound{"group.share.max.heartbeat.interval.ms", 15_000},
	},
	{name: "share.isolation.level", kind: kmsg.ConfigTypeString, defaultValue: "read_uncommitted", values: []string{"read_committed", "read_uncommitted"}},
	{
		name: "share.partition.max.record.locks", kind: kmsg.ConfigTypeInt, defaultValue: "2000", atLeast: 1,
		min: configBound{"group.share.min.partition.max.record.locks", 100}, max: configBound{"group.share.max.partition.max.record.locks", 10_000},
	},
	{
		name: "share.record.lock.duration.ms", kind: kmsg.ConfigTypeInt, defaultValue: "30000", atLeast: 1000,
		min: configBound{"group.share.min.record.lock.duration.ms", 15_000}, max: configBound{"group.share.max.record.lock.duration.ms", 60_000},
	},
	{name: "share.renew.acknowledge.enable", kind: kmsg.ConfigTypeBoolean, defaultValue: "true"}, // KIP-1222
	{
		name: "share.session.timeout.ms", kind: kmsg.ConfigTypeInt, defaultValue: "45000", atLeast: 1,
		min: configBound{"group.share.min.session.timeout.ms", 45_000}, max: configBound{"group.share.max.session.timeout.ms", 60_000},
	},
}

func groupConfigByName(name string) (groupConfigDef, bool) {
	for i := range groupConfigDefs {
		if groupConfigDefs[i].name == name {
			return groupConfigDefs[i], true
		}
	}
	return groupConfigDef{}, false
}

func validOffsetReset(value string) bool {
	duration, ok := strings.CutPrefix(value, "by_duration:")
	if !ok {
		return value == "earliest" || value == "latest"
	}
	_, err := parseISODuration(duration)
	return err == nil
}

// parse returns the value in the form in which it is kept, or why it is none, in
// Kafka's words.
func (d *groupConfigDef) parse(value string) (parsed, why string) {
	invalid := func(why string) (string, string) {
		return "", fmt.Sprintf("Invalid value %s for configuration %s: %s", value, d.name, why)
	}
	trimmed := strings.TrimSpace(value)
	switch {
	case d.kind == kmsg.ConfigTypeInt:
		n, err := strconv.ParseInt(trimmed, 10, 32)
		switch {
		case err != nil:
			return invalid("Not a number of type INT")
		case n < d.atLeast:
			return invalid("Value must be at least " + strconv.FormatInt(d.atLeast, 10))
		}
		return trimmed, ""
	case d.kind == kmsg.ConfigTypeBoolean:
		if lower := strings.ToLower(trimmed); lower == "true" || lower == "false" {
			return lower, ""
		}
		return invalid("Expected value to be either true or false")
	case d.values != nil:
		if !slices.Contains(d.values, trimmed) {
			return invalid("String must be one of: " + strings.Join(d.values, ", "))
		}
		return trimmed, ""
	case !d.check(trimmed):
		return invalid(fmt.Sprintf("Invalid value `%s` for configuration %s. %s", value, d.name, d.expected))
	}
	return trimmed, ""
}

// groupConfigs holds the configs of groups. It is safe for concurrent use.
type groupConfigs struct {
	broker func(name string) string // a broker config, "" where it is not set
	save   func(map[string]map[string]string) error

	mu     sync.Mutex
	groups map[string]map[string]string // what is set, by group ID, then by name
}

func (g *groupConfigs) get(group, name string) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v, ok := g.groups[group][name]
	return v, ok
}

// inForce returns the value of a config where a group has none of its own.
func (g *groupConfigs) inForce(name string) string {
	if v := g.broker("group." + name); v != "" {
		return v
	}
	d, _ := groupConfigByName(name)
	return d.defaultValue
}

// check returns what a group would have set after ops, or why that cannot be, in
// Kafka's words.
func (g *groupConfigs) check(group string, ops []kmsg.IncrementalAlterConfigsRequestResourceConfig) (values map[string]string, why string) {
	g.mu.Lock()
	values = maps.Clone(g.groups[group])
	g.mu.Unlock()
	if values == nil {
		values = make(map[string]string)
	}
	for _, op := range ops {
		d, ok := groupConfigByName(op.Name)
		if !ok {
			return nil, "Unknown group config name: " + op.Name
		}
		switch op.Op {
		case kmsg.IncrementalAlterConfigOpDelete:
			delete(values, op.Name)
			continue
		case kmsg.IncrementalAlterConfigOpSet:
		default:
			return nil, fmt.Sprintf("Can't %s to key %s because its type is not LIST.", op.Op, op.Name)
		}
		if op.Value == nil {
			return nil, "Null value not supported for group configs: " + op.Name
		}
		if values[op.Name], why = d.parse(*op.Value); why != "" {
			return nil, why
		}
	}
	for _, d := range groupConfigDefs {
		if v, ok := values[d.name]; ok && d.min.name != "" {
			n, _ := strconv.ParseInt(v, 10, 32)
			low, high := g.bound(d.min), g.bound(d.max)
			if n < low || n > high {
				return nil, fmt.Sprintf("%s must be in the range %d to %d inclusive.", d.name, low, high)
			}
		}
	}
	for _, kind := range []string{"consumer", "share"} {
		session, heartbeat := kind+".session.timeout.ms", kind+".heartbeat.interval.ms"
		if _, ok := values[session]; !ok {
			if _, ok := values[heartbeat]; !ok {
				continue
			}
		}
		if g.number(values, session) <= g.number(values, heartbeat) {
			return nil, fmt.Sprintf("%s must be greater than %s", session, heartbeat)
		}
	}
	return values, ""
}

func (g *groupConfigs) bound(b configBound) int64 {
	return parseConfigInt(g.broker(b.name), b.defaultValue)
}

func (g *groupConfigs) number(values map[string]string, name string) int64 {
	v, ok := values[name]
	if !ok {
		v = g.inForce(name)
	}
	return parseConfigInt(v, 0)
}

// set keeps what check returned.
func (g *groupConfigs) set(group string, values map[string]string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	groups := maps.Clone(g.groups)
	if groups == nil {
		groups = make(map[string]map[string]string)
	}
	groups[group] = values
	if len(values) == 0 {
		delete(groups, group)
	}
	if g.save != nil {
		if err := g.save(groups); err != nil {
			return err
		}
	}
	g.groups = groups
	return nil
}

// describe returns the configs of a group, those in names only unless nil. What
// it has not set is in force by the config of the broker, or its default.
func (g *groupConfigs) describe(group string, names []string, broker map[string]kmsg.DescribeConfigsResponseResourceConfig, synonyms bool) []kmsg.DescribeConfigsResponseResourceConfig {
	var configs []kmsg.DescribeConfigsResponseResourceConfig
	for _, d := range groupConfigDefs {
		if names != nil && !slices.Contains(names, d.name) {
			continue
		}
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.ConfigType, c.Source = d.name, d.kind, kmsg.ConfigSourceGroupConfig
		if value, set := g.get(group, d.name); set {
			c.Value = kmsg.StringPtr(value)
			configs = append(configs, c)
			continue
		}
		from := kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{Name: d.name, Value: kmsg.StringPtr(d.defaultValue), Source: kmsg.ConfigSourceDefaultConfig}
		if of, ok := broker["group."+d.name]; ok && of.Value != nil {
			from.Name, from.Value, from.Source = of.Name, of.Value, of.Source
		}
		c.Value, c.Source, c.IsDefault = from.Value, from.Source, true
		if synonyms {
			c.ConfigSynonyms = append(c.ConfigSynonyms, from)
		}
		configs = append(configs, c)
	}
	return configs
}

// brokerDefault returns the default of a broker config that kfake has none for,
// "" for others.
func brokerDefault(name string) string {
	switch name {
	case "share.coordinator.snapshot.update.records.per.snapshot":
		return "500"
	case "share.coordinator.state.topic.num.partitions":
		return strconv.Itoa(defaultStatePartitions)
	case "socket.request.max.bytes":
		return strconv.Itoa(maxFrameBytes)
	case "transaction.abort.timed.out.transaction.cleanup.interval.ms":
		return "10000"
	}
	for _, d := range groupConfigDefs {
		for _, b := range []configBound{d.min, d.max} {
			if b.name == name {
				return strconv.FormatInt(b.defaultValue, 10)
			}
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
