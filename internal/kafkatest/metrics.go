package kafkatest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// agents are the Java agents by which a node serves its metrics.
type agents struct {
	exporter       string // jar; "" for none
	exporterConfig string // file
	jolokia        string // jar
}

const agentsPom = `<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kshare.kafkatest</groupId>
  <artifactId>agents</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>io.prometheus.jmx</groupId><artifactId>jmx_prometheus_javaagent</artifactId><version>1.0.1</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.jolokia</groupId><artifactId>jolokia-agent-jvm</artifactId><version>2.2.9</version><classifier>javaagent</classifier>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
  </dependencies>
</project>
`

// resolveAgents finds the agents, and writes the configuration of the exporter to
// dir.
func resolveAgents(ctx context.Context, dir, exporter string) (agents, error) {
	_, classPath, err := download(ctx, "agents-1.0.1-2.2.9", "the agents for metrics", []byte(agentsPom))
	if err != nil {
		return agents{}, err
	}
	a := agents{exporterConfig: filepath.Join(dir, "exporter.yml")}
	for _, jar := range filepath.SplitList(classPath) {
		switch name := filepath.Base(jar); {
		case strings.HasPrefix(name, "jmx_prometheus_javaagent"):
			a.exporter = jar
		case strings.HasPrefix(name, "jolokia-agent-jvm"):
			a.jolokia = jar
		}
	}
	if a.exporter == "" || a.jolokia == "" {
		return agents{}, fmt.Errorf("the agents for metrics are not in %s", classPath)
	}
	return a, os.WriteFile(a.exporterConfig, []byte(exporter), 0o600)
}

// jvm returns the arguments that make a java run the agents for a node.
func (a agents) jvm(n *node) []string {
	if a.exporter == "" {
		return nil
	}
	host, port, _ := net.SplitHostPort(n.jolokia) // it is one of freePorts
	return []string{
		"-javaagent:" + a.exporter + "=" + n.exporter + ":" + a.exporterConfig,
		"-javaagent:" + a.jolokia + "=host=" + host + ",port=" + port,
	}
}

// ExporterAddr is where a node's JMX exporter serves metrics, at /metrics, in the
// text format of Prometheus. It needs [Config.Exporter].
func (c *Cluster) ExporterAddr(tb testing.TB, id int32) string {
	tb.Helper()
	return c.metricsAddr(tb, c.node(tb, id).exporter)
}

// JolokiaAddr is where a node's Jolokia agent answers, at /jolokia/. It needs
// [Config.Exporter].
func (c *Cluster) JolokiaAddr(tb testing.TB, id int32) string {
	tb.Helper()
	return c.metricsAddr(tb, c.node(tb, id).jolokia)
}

func (c *Cluster) metricsAddr(tb testing.TB, addr string) string {
	tb.Helper()
	if addr == "" {
		tb.Fatal("kafkatest: metrics need Config.Exporter")
	}
	return addr
}
