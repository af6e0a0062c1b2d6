package sandbox

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/kshare/kshare/wire"
)

func TestOptionsRefused(t *testing.T) {
	tests := map[string]Option{
		"no brokers":                  WithBrokers(0),
		"port out of range":           WithBasePort(65534), // three brokers need 65536
		"negative port":               WithBasePort(-1),
		"level above the dialect's":   WithShareVersion(3),
		"no dialect":                  WithDialect(wire.Dialect{}),
		"no state partitions":         WithStatePartitions(0),
		"topic name":                  WithTopics(Topic{Name: "a/b"}),
		"too many partitions":         WithTopics(Topic{Name: "a", Partitions: maxNewPartitions + 1}),
		"broker config":               WithBrokerConfigs(map[string]string{"log.cleaner.backoff.ms": "0"}),
		"host that does not exist":    WithHost("no-such-host.invalid"),
		"address of no interface":     func(c *config) { c.host, c.anyAddress = "192.0.2.1", true },
		"any address, not advertised": func(c *config) { c.host, c.anyAddress = "0.0.0.0", true },
	}
	for name, opt := range tests {
		if s, err := Start(t.Context(), opt); err == nil {
			_ = s.Close()
			t.Errorf("%s: started", name)
		}
	}
	for _, host := range []string{"0.0.0.0", "::", "192.0.2.1"} {
		if s, err := Start(t.Context(), WithHost(host)); err == nil {
			_ = s.Close()
			t.Errorf("host %s: started", host)
		} else if a, ok := errors.AsType[*AddressError](err); !ok || a.Host != host {
			t.Errorf("host %s: %v", host, err)
		}
	}
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.Addr().(*net.TCPAddr).Port
	s, err := Start(t.Context(), WithBrokers(1), WithBasePort(port))
	if err == nil {
		_ = s.Close()
		t.Fatal("started on a port in use")
	}
	if p, ok := errors.AsType[*PortError](err); !ok || p.Port != port || !strings.Contains(err.Error(), strconv.Itoa(port)) {
		t.Errorf("%v, want a *PortError for %d", err, port)
	}
}

func TestAdvertisedHost(t *testing.T) {
	s := startSandbox(t, WithBrokers(1), WithHost("0.0.0.0"), WithAnyAddress(), WithAdvertisedHost("kafka.test"))
	host, port, err := net.SplitHostPort(s.BootstrapServers())
	if err != nil || host != "kafka.test" || port == "0" {
		t.Errorf("bootstrap servers %q", s.BootstrapServers())
	}
}

func TestTopicValidate(t *testing.T) {
	for _, topic := range []Topic{{"a", 0}, {"a", 3}, {"a.b_c-d", 1}, {"a", maxNewPartitions}} {
		if err := topic.validate(); err != nil {
			t.Errorf("%+v: %v", topic, err)
		}
	}
	for _, topic := range []Topic{{"", 1}, {"a b", 1}, {".", 1}, {"..", 1}, {"a:3", 1}, {strings.Repeat("a", 250), 1}, {"a", -1}, {"a", maxNewPartitions + 1}} {
		if err := topic.validate(); err == nil {
			t.Errorf("%+v is valid", topic)
		}
	}
}

func TestParsePendingState(t *testing.T) {
	for _, p := range []PendingState{PendingPersisted, PendingMemory} {
		if got, err := ParsePendingState(p.String()); err != nil || got != p {
			t.Errorf("ParsePendingState(%q) = %v, %v", p, got, err)
		}
	}
	if _, err := ParsePendingState("disk"); err == nil {
		t.Error(`ParsePendingState("disk") succeeded`)
	}
}
