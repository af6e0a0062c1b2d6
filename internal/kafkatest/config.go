package kafkatest

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config says which cluster to start. The zero value is one node of [Kafka44]
// with the feature levels of a new cluster, without any security.
type Config struct {
	// Version is the release of all nodes; "" is [Kafka44].
	Version string
	// NodeVersions has the release of nodes that differ, by node ID: a cluster
	// in the middle of a rolling upgrade. It is formatted with the tools of the
	// oldest, whose levels all can read.
	NodeVersions map[int32]string
	// Nodes is how many nodes there are, each a broker and a controller; their
	// IDs count from 1. 0 is 1.
	Nodes int
	// Features are the levels that a new cluster is formatted with, where they
	// are not to be the defaults of the release or of metadata.version.
	Features map[string]int16
	// Security is how clients connect.
	Security Security
	// Authorizer sets StandardAuthorizer: what no ACL allows is denied, but to
	// [Admin]. It needs [SASLSSL], or all clients would be the same principal.
	Authorizer bool
	// Exporter is a configuration of Prometheus's JMX exporter, such as "{}". With
	// one, every node serves its metrics in the two ways that operators read them:
	// see [Cluster.ExporterAddr] and [Cluster.JolokiaAddr].
	Exporter string
	// Props are further broker configs, of all nodes. They win over what this
	// package sets.
	Props map[string]string
}

// Security is how clients connect to the brokers.
type Security string

// The ways to connect.
const (
	Plaintext Security = ""
	// SASLSSL asks for a user by PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or, with
	// unsecured tokens, OAUTHBEARER, over TLS with a certificate of a CA of the
	// test's own. A second listener asks for a certificate of the client in place
	// of that; see [Cluster.BootstrapMutualTLS].
	SASLSSL Security = "SASL_SSL"
)

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Version == "" {
		cfg.Version = Kafka44
	}
	if cfg.Nodes == 0 {
		cfg.Nodes = 1
	}
	if cfg.Authorizer && cfg.Security != SASLSSL {
		return cfg, fmt.Errorf("kafkatest: an authorizer without users")
	}
	for id := range cfg.NodeVersions {
		if id < 1 || int(id) > cfg.Nodes {
			return cfg, fmt.Errorf("kafkatest: a release for node %d of %d", id, cfg.Nodes)
		}
	}
	return cfg, nil
}

func (cfg Config) version(node int32) string {
	if v, ok := cfg.NodeVersions[node]; ok {
		return v
	}
	return cfg.Version
}

// oldest is the oldest release of the cluster.
func (cfg Config) oldest() string {
	return slices.MinFunc(append(slices.Collect(maps.Values(cfg.NodeVersions)), cfg.Version), compareVersions)
}

// compareVersions compares dotted numbers.
func compareVersions(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	})
}

// node is one node of a cluster as configured.
type node struct {
	id          int32
	client      string // address of the listener for clients
	mutualTLS   string // address of the one that wants certificates; "" without security
	internal    string // address of the listener between brokers
	controller  string // address of the controller's listener
	exporter    string // address of the JMX exporter; "" without metrics
	jolokia     string // address of the Jolokia agent; "" without metrics
	directoryID string // of its metadata log
	dir         string
}

// properties returns the server.properties of a node.
func (cfg Config) properties(n *node, nodes []*node, sec *security) string {
	clients, between := "PLAINTEXT", "PLAINTEXT"
	if cfg.Security != Plaintext {
		clients = string(cfg.Security)
	}
	if cfg.Authorizer {
		between = "SASL_PLAINTEXT"
	}
	copies := min(cfg.Nodes, 3)
	props := map[string]any{
		"process.roles":                       "broker,controller",
		"node.id":                             n.id,
		"log.dirs":                            filepath.Join(n.dir, "data"),
		"listeners":                           fmt.Sprintf("CLIENT://%s,INTERNAL://%s,CONTROLLER://%s", n.client, n.internal, n.controller),
		"listener.security.protocol.map":      fmt.Sprintf("CLIENT:%s,INTERNAL:%s,CONTROLLER:%s", clients, between, between),
		"inter.broker.listener.name":          "INTERNAL",
		"controller.listener.names":           "CONTROLLER",
		"controller.quorum.bootstrap.servers": joinNodes(nodes, func(n *node) string { return n.controller }),

		// More than one of everything that a test looks at, but no more.
		"default.replication.factor":                       copies,
		"offsets.topic.num.partitions":                     3,
		"offsets.topic.replication.factor":                 copies,
		"transaction.state.log.num.partitions":             3,
		"transaction.state.log.replication.factor":         copies,
		"transaction.state.log.min.isr":                    1,
		"share.coordinator.state.topic.num.partitions":     3,
		"share.coordinator.state.topic.replication.factor": copies,
		"share.coordinator.state.topic.min.isr":            1,
		// Small and fast.
		"num.network.threads": 2,
		"num.io.threads":      4,
		// What tests write may be as old as they like: half a minute after its start
		// a broker would delete it.
		"log.retention.ms":                                            -1,
		"log.cleaner.dedupe.buffer.size":                              4 << 20, // else half of the heap
		"group.initial.rebalance.delay.ms":                            0,
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
		"broker.heartbeat.interval.ms":                                500,
		"broker.session.timeout.ms":                                   cfg.sessionTimeout().Milliseconds(),
		// 4.3 and later; others ignore it. A second for each new member.
		"group.share.assignment.interval.ms": 0,
	}
	if sec != nil {
		maps.Copy(props, sec.properties(cfg))
		props["listeners"] = fmt.Sprintf("%v,MUTUAL://%s", props["listeners"], n.mutualTLS)
		props["listener.security.protocol.map"] = fmt.Sprintf("%v,MUTUAL:SSL", props["listener.security.protocol.map"])
	}
	for k, v := range cfg.Props {
		props[k] = v
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(props)) {
		v := strings.ReplaceAll(fmt.Sprint(props[k]), `\`, `\\`) // the format's escape
		fmt.Fprintf(&b, "%s=%s\n", k, v)
	}
	return b.String()
}

// sessionTimeout is how long the controller does without a node's heartbeats before
// it fences the node. A single node that is fenced is a cluster without brokers, and
// on a busy machine heartbeats are late. One of several is missed sooner, and is let
// in again only when its former life has timed out.
func (cfg Config) sessionTimeout() time.Duration {
	if cfg.Nodes == 1 {
		return 60 * time.Second
	}
	return 6 * time.Second
}

// formatArgs returns the arguments of StorageTool for a node.
func (cfg Config) formatArgs(clusterID, properties string, nodes []*node, sec *security) []string {
	args := []string{
		"format", "--cluster-id", clusterID, "--config", properties,
		"--initial-controllers", joinNodes(nodes, func(n *node) string {
			return fmt.Sprintf("%d@%s:%s", n.id, n.controller, n.directoryID)
		}),
	}
	for _, f := range slices.Sorted(maps.Keys(cfg.Features)) {
		args = append(args, "--feature", fmt.Sprintf("%s=%d", f, cfg.Features[f]))
	}
	if sec != nil {
		args = append(args, sec.scramArgs()...)
	}
	return args
}

func joinNodes(nodes []*node, f func(*node) string) string {
	var all []string
	for _, n := range nodes {
		all = append(all, f(n))
	}
	return strings.Join(all, ",")
}
