package commands_test

import (
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/kshare/kshare/sandbox"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// complete completes the last word of a line, of which | ends words.
func complete(t *testing.T, s cmdtest.Setup, line string) string {
	t.Helper()
	res := cmdtest.Run(t, s, append([]string{cobra.ShellCompRequestCmd}, strings.Split(line, "|")...)...).Want(t, 0)
	if res.Stderr != "" {
		t.Errorf("completing %s: stderr has %q", line, res.Stderr)
	}
	choices, _, ok := strings.Cut("\n"+res.Stdout, "\n:")
	if !ok {
		t.Fatalf("completing %s: stdout has %q", line, res.Stdout)
	}
	return strings.TrimPrefix(choices, "\n")
}

// completeFrom is [complete] of names that a cluster has. One that answers too
// late, as on a busy machine, completes nothing, and is asked again.
func completeFrom(t *testing.T, s cmdtest.Setup, line, want string) string {
	t.Helper()
	for range 20 {
		if got := complete(t, s, line); got != "" || want == "" {
			return got
		}
	}
	return ""
}

// Names of a cluster complete, by requests that change nothing and create no
// internal topic.
func TestCompleteCluster(t *testing.T) {
	tap := wiretap.New()
	sb, err := sandbox.Start(t.Context(), sandbox.WithListen(tap.Listen), sandbox.WithTopics(
		sandbox.Topic{Name: "in", Partitions: 2}, sandbox.Topic{Name: "out", Partitions: 1}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close() })
	b := sb.BootstrapServers()

	// On a cluster that is new, so that internal topics are not there yet.
	before := allTopics(t, sb)
	for _, line := range []string{"inspect|group|", "txn|fence|", "inspect|txn|", "ack|--accept|", "feature|plan|share.version="} {
		complete(t, cmdtest.Setup{}, strings.Replace(line, "|", "|-b|"+b+"|", 1))
	}
	if after := allTopics(t, sb); !slices.Equal(before, after) {
		t.Errorf("the topics were %q, and completing has made them %q", before, after)
	}

	tap.Ignore(bystander)
	stageAside(t, sb)
	config := filepath.Join(t.TempDir(), "config.yaml")
	context := "current_context: prod\ncontexts: [{name: prod, bootstrap_server: '" + b + "'}, {name: test, bootstrap_server: 'h:1'}]"
	if err := os.WriteFile(config, []byte(context), 0o600); err != nil {
		t.Fatal(err)
	}
	configured := map[string]string{"KSHARE_CONFIG": config}
	environment := map[string]string{"KSHARE_BOOTSTRAP_SERVER": b}
	properties := filepath.Join(t.TempDir(), "client.properties")
	if err := os.WriteFile(properties, []byte("bootstrap.servers="+b+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	const topics = "in\t2 partitions\nout\t1 partition"
	for _, c := range []struct {
		env        map[string]string
		line, want string
		local      bool // no request is sent
	}{
		{line: "inspect|group|-b|" + b + "|", want: "g\tStable"},
		{line: "inspect|pending|-b|" + b + "|--group|", want: "g\tStable"},
		{line: "inspect|pending|-b|" + b + "|--group=", want: "g\tStable"},
		{line: "inspect|pending|-b|" + b + "|--group|g|--group|", want: ""},
		{line: "inspect|pending|-b|" + b + "|--topic|", want: topics},
		{line: "inspect|partition|-b|" + b + "|g|o", want: "out\t1 partition"},
		{line: "inspect|partition|-b|" + b + "|g|out|", want: "0\tleader *"},
		{line: "inspect|partition|-b|" + b + "|g|none|", want: ""},
		{line: "txn|find-hanging|-b|" + b + "|--topic|out|--partition|", want: "0\tleader *"},
		{line: "txn|abort|-b|" + b + "|--topic|out|--partition|", want: "0\tleader *"},
		{line: "ack|-b|" + b + "|--accept|i", want: "in:\t2 partitions"},
		{line: "ack|-b|" + b + "|--reject|in:1", want: "in:1:\tleader *"},
		{line: "ctp|-b|" + b + "|--from|", want: topics},
		{line: "ctp|-b|" + b + "|--dlq|__share", want: "__share_group_state\t50 partitions"},
		{line: "txn|prepare|-b|" + b + "|--produce|i", want: "in=\t2 partitions"},
		{line: "txn|fence|-b|" + b + "|", want: "id\tOngoing"},
		{line: "inspect|txn|-b|" + b + "|id|", want: ""},
		{line: "inspect|pending|-b|" + b + "|--txn|", want: "id\tOngoing"},
		{line: "drain|-b|" + b + "|--fence|i", want: "id\tOngoing"},
		{line: "feature|upgrade|-b|" + b + "|share.version=", want: ""},
		{line: "feature|downgrade|-b|" + b + "|share.version=", want: "share.version=0\tshare groups off\nshare.version=1\tshare groups (KIP-932)"},
		{line: "feature|plan|-b|" + b + "|--to|share", want: "share.version=\tsupported 0 to 2, now 2"},
		{line: "feature|plan|-b|" + b + "|--feature|share.version|--version|1", want: "1\tshare groups (KIP-932)"},
		// Which cluster that is.
		{line: "inspect|group|--command-config|" + properties + "|", want: "g\tStable"},
		{env: environment, line: "inspect|group|", want: "g\tStable"},
		{env: configured, line: "inspect|group|", want: "g\tStable"},
		{env: configured, line: "inspect|group|--context|prod|", want: "g\tStable"},
		{env: configured, line: "drain|--context|", want: "prod\tcurrent, " + b + "\ntest\th:1", local: true},
		{env: configured, line: "config|check|prod|", want: "test\th:1", local: true},
		{env: configured, line: "config|use-context|t", want: "test\th:1", local: true},
		{env: configured, line: "drain|-b|h", want: "h:1\tcontext test", local: true},
		{env: environment, line: "ctp|--sandbox|--topic|x|--from|", want: "x", local: true},
		{env: environment, line: "sandbox|fault|clear|", want: "", local: true},
	} {
		tap.Reset()
		if c.env == nil {
			c.env = map[string]string{}
		}
		c.env["KSHARE_SANDBOX_CONTROL"] = "127.0.0.1:1"
		got := completeFrom(t, cmdtest.Setup{Env: c.env}, c.line, c.want)
		prefix, _, isPrefix := strings.Cut(c.want, "*")
		if got != c.want && (!isPrefix || !strings.HasPrefix(got, prefix)) {
			t.Errorf("completing %s: %q, want %q", c.line, got, c.want)
		}
		if heard := len(tap.Exchanges()) > 0; heard == c.local {
			t.Errorf("completing %s: requests were sent: %t", c.line, heard)
		}
		tap.ReadOnly(t)
		if n := tap.Count()[kmsg.FindCoordinator]; n > 0 {
			t.Errorf("completing %s: FindCoordinator was sent", c.line)
		}
	}
}

func allTopics(t *testing.T, sb *sandbox.Sandbox) []string {
	t.Helper()
	cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	topics, err := cl.AllTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, topic := range topics {
		names = append(names, topic.Name)
	}
	slices.Sort(names)
	return names
}

// Faults, nodes and topics of a sandbox complete from its control endpoint.
func TestCompleteSandbox(t *testing.T) {
	sb, err := sandbox.Start(t.Context(), sandbox.WithBrokers(1), sandbox.WithTopics(sandbox.Topic{Name: "orders", Partitions: 1}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close() })
	control := httptest.NewServer(sb.ControlHandler())
	t.Cleanup(control.Close)
	fault, err := sb.InjectFault(t.Context(), sandbox.Fault{Kind: sandbox.FaultStopSweeper})
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"KSHARE_SANDBOX_CONTROL": control.Listener.Addr().String()}
	for _, c := range []struct{ line, want string }{
		{"sandbox|fault|clear|", fault.ID + "\t0 hits"},
		{"sandbox|fault|clear|--control|127.0.0.1:1|", ""},
		{"sandbox|fault|inject|move-leader|--topic|o", "orders\t1 partition"},
		{"sandbox|fault|inject|move-leader|--topic|orders|--partition|", "0\tleader 0"},
		{"sandbox|fault|inject|move-leader|--to-broker|", "0\t" + sb.BootstrapServers()},
	} {
		if got := completeFrom(t, cmdtest.Setup{Env: env}, c.line, c.want); got != c.want {
			t.Errorf("completing %s: %q, want %q", c.line, got, c.want)
		}
	}
}

// Whatever goes wrong, nothing is offered and nothing is said; nobody is asked,
// no command that has a secret is run, and it is over within a second or so.
func TestCompleteIsSilent(t *testing.T) {
	silent := listen(t)
	var accepted atomic.Int64
	go func() {
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()
	closed := listen(t)
	_ = closed.Close()
	dir := t.TempDir()
	marker := filepath.Join(dir, "marker")
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho ran > "+marker+"\necho secret\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte("contexts: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := silent.Addr().String()
	plain := map[string]string{"KSHARE_BOOTSTRAP_SERVER": addr, "KSHARE_SASL_MECHANISM": "PLAIN", "KSHARE_SASL_USER": "u"}
	with := func(more ...string) map[string]string {
		env := map[string]string{}
		for k, v := range plain {
			env[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			env[more[i]] = more[i+1]
		}
		return env
	}
	for _, c := range []struct {
		name  string
		env   map[string]string
		line  string
		dials bool
	}{
		{"no cluster", nil, "inspect|group|", false},
		{"no such context", nil, "inspect|group|--context|none|", false},
		{"broken file", map[string]string{"KSHARE_CONFIG": broken}, "inspect|group|", false},
		{"context of a broken file", map[string]string{"KSHARE_CONFIG": broken}, "drain|--context|", false},
		{"no such properties", nil, "inspect|group|-b|" + addr + "|--command-config|/nothing|", false},
		{"no such CA", nil, "inspect|group|-b|" + addr + "|--tls-ca|/nothing|", false},
		{"no address", nil, "inspect|group|-b|:::|", false},
		{"nobody listens", nil, "inspect|group|-b|" + closed.Addr().String() + "|", false},
		{"a password would be asked for", plain, "inspect|group|", false},
		{"a password of a command", with("KSHARE_SASL_PASSWORD_COMMAND", program), "inspect|group|", false},
		{"a password of a command on the line", plain, "inspect|group|--sasl-password-command|" + program + "|", false},
		{"a token of a command", with("KSHARE_SASL_MECHANISM", "OAUTHBEARER", "KSHARE_SASL_TOKEN_COMMAND", program), "inspect|group|", false},
		{"credentials of a command", with("KSHARE_SASL_MECHANISM", "AWS_MSK_IAM", "KSHARE_SASL_AWS_PROFILE", "p"), "inspect|group|", false},
		{"the password of a key of a command", map[string]string{"KSHARE_BOOTSTRAP_SERVER": addr, "KSHARE_TLS": "true", "KSHARE_TLS_KEY_PASSWORD_COMMAND": program}, "inspect|group|", false},
		{"a broker that says nothing", nil, "inspect|group|-b|" + addr + "|", true},
		{"a broker that says nothing by TLS", nil, "inspect|group|--tls|-b|" + addr + "|", true},
		{"a broker that says nothing by SASL", with("KSHARE_SASL_PASSWORD", "p"), "inspect|group|", true},
		{"a control endpoint that says nothing", nil, "sandbox|fault|clear|--control|" + addr + "|", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			accepted.Store(0)
			setup := cmdtest.Setup{Env: c.env, TTY: true, Change: func(d *commands.Deps) {
				d.ReadPassword = func() ([]byte, error) {
					t.Error("a password was asked for")
					return nil, os.ErrClosed
				}
			}}
			if got := complete(t, setup, c.line); got != "" {
				t.Errorf("completing %s: %q, want nothing", c.line, got)
			}
			if dialled := accepted.Load() > 0; dialled != c.dials {
				t.Errorf("completing %s: connected: %t, want %t", c.line, dialled, c.dials)
			}
		})
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("a command was run")
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
