package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

func parsedSandboxRun(t *testing.T, args ...string) (sandboxRunOptions, error) {
	t.Helper()
	return parse(t, &Deps{}, newSandboxRunCmd, args)
}

func TestSandboxRunParsing(t *testing.T) {
	defaults := SandboxConfig{Brokers: 3, Profile: "kip", ShareVersion: 2, PendingState: "persisted"}
	with := func(change func(*SandboxConfig)) SandboxConfig {
		c := defaults
		change(&c)
		return c
	}
	for _, c := range []struct {
		name string
		args string
		want sandboxRunOptions
	}{
		{"nothing", "", sandboxRunOptions{SandboxConfig: defaults}},
		{"level of the profile", "--profile draft", sandboxRunOptions{SandboxConfig: with(func(c *SandboxConfig) { c.Profile, c.ShareVersion = "draft", 3 })}},
		{"level", "--share-version 0", sandboxRunOptions{SandboxConfig: with(func(c *SandboxConfig) { c.ShareVersion = 0 })}},
		{"topics", "--topic a --topic b:12", sandboxRunOptions{SandboxConfig: with(func(c *SandboxConfig) {
			c.Topics = []SandboxTopic{{"a", 6}, {"b", 12}}
		})}},
		{"loads", "--topic a:1 --load a=x --load b=y=z --load c=-", sandboxRunOptions{
			SandboxConfig: with(func(c *SandboxConfig) { c.Topics = []SandboxTopic{{"a", 1}, {"b", 6}, {"c", 6}} }),
			Loads:         []sandboxLoad{{"a", "x"}, {"b", "y=z"}, {"c", "-"}},
		}},
		{"two files for a topic", "--load a=x --load a=y", sandboxRunOptions{
			SandboxConfig: with(func(c *SandboxConfig) { c.Topics = []SandboxTopic{{"a", 6}} }),
			Loads:         []sandboxLoad{{"a", "x"}, {"a", "y"}},
		}},
		{"broker configs", "--broker-config a=b --broker-config c=d=e --broker-config f=", sandboxRunOptions{SandboxConfig: with(func(c *SandboxConfig) {
			c.BrokerConfigs = map[string]string{"a": "b", "c": "d=e", "f": ""}
		})}},
		{"all else", "--brokers 1 --port 9092 --pending-state memory --data-dir d --control 127.0.0.1:0 --any-address", sandboxRunOptions{SandboxConfig: with(func(c *SandboxConfig) {
			c.Brokers, c.Port, c.PendingState, c.DataDir, c.Control, c.AnyAddress = 1, 9092, "memory", "d", "127.0.0.1:0", true
		})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parsedSandboxRun(t, strings.Fields(c.args)...)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("options %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestSandboxRunRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--brokers 0", "--brokers 0: want 1 to 16"},
		{"--any-address --advertised-host a:9092", `--advertised-host "a:9092": want a host name`},
		{"--any-address --advertised-host a/b", `--advertised-host "a/b": want a host name`},
		{"--topic __share_group_state", `--topic "__share_group_state": topic __share_group_state is internal`},
		{"--brokers 17", "--brokers 17: want 1 to 16"},
		{"--port -1", "--port -1: want 0 to 65533"},
		{"--port 65534", "--port 65534: want 0 to 65533"},
		{"--profile kraft", `--profile "kraft": want kip or draft`},
		{"--share-version 3", `--share-version 3: profile "kip" supports 0 to 2`},
		{"--share-version -2", `--share-version -2: profile "kip" supports 0 to 2`},
		{"--pending-state disk", `--pending-state "disk": want persisted or memory`},
		{"--control 9099", `--control "9099": want HOST:PORT`},
		{"--control :9099", `--control ":9099": not a loopback address`},
		{"--control 192.0.2.1:9099", `--control "192.0.2.1:9099": not a loopback address`},
		{"--advertised-host x", "--advertised-host: needs --any-address"},
		{"--topic a/b", `--topic "a/b": a name has`},
		{"--topic :3", `--topic ":3": a name has`},
		{"--topic ..", `--topic "..": a name has`},
		{"--topic a:0", `--topic "a:0": want NAME or NAME:PARTITIONS`},
		{"--topic a:x", `--topic "a:x": want NAME or NAME:PARTITIONS`},
		{"--topic a --topic a:2", `--topic "a": given twice`},
		{"--broker-config a", `--broker-config "a": want NAME=VALUE`},
		{"--broker-config =a", `--broker-config "=a": want NAME=VALUE`},
		{"--load orders.ndjson", `--load "orders.ndjson": want TOPIC=FILE`},
		{"--load a=", `--load "a=": want TOPIC=FILE`},
		{"--load =x", `--load "=x": want TOPIC=FILE`},
		{"--load a=- --load b=-", "--load: stdin can be loaded once only"},
	} {
		_, err := parsedSandboxRun(t, strings.Fields(c.args)...)
		if code, _ := classify(err); code != exitUsage || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("sandbox run %s: %v (exit code %d), want %s", c.args, err, code, c.want)
		}
	}
}

// fakeSandbox is a sandbox that keeps what is loaded.
type fakeSandbox struct {
	load   func(topic, name, content string) error
	closed error
	closes int
}

func (*fakeSandbox) BootstrapServers() string { return "127.0.0.1:1,127.0.0.1:2" }
func (*fakeSandbox) ClusterID() string        { return "c1" }
func (*fakeSandbox) ShareVersion() int16      { return 1 }
func (*fakeSandbox) ControlAddress() string   { return "" }

func (f *fakeSandbox) Load(_ context.Context, topic, name string, r io.Reader) (int64, error) {
	b, err := io.ReadAll(r)
	if err == nil && f.load != nil {
		err = f.load(topic, name, string(b))
	}
	return int64(strings.Count(string(b), "\n")), err
}

func (f *fakeSandbox) Close() error {
	f.closes++
	return f.closed
}

func TestSandboxRunClosesWhatItStarted(t *testing.T) {
	bad := errors.New("orders.ndjson:3: line is too long")
	sb := &fakeSandbox{load: func(topic, name, content string) error {
		if topic != "orders" || name != "-" || content != "a\nb\n" {
			t.Errorf("Load(%q, %q) got %q", topic, name, content)
		}
		return bad
	}}
	var config SandboxConfig
	d := &Deps{In: strings.NewReader("a\nb\n"), StartSandbox: func(_ context.Context, c SandboxConfig) (Sandbox, error) {
		if c.Warning == nil {
			t.Error("nobody would hear of a warning")
		}
		config, config.Warning = c, nil
		return sb, nil
	}}
	want := SandboxConfig{Brokers: 1, Topics: []SandboxTopic{{"orders", 2}}}
	_, err := runSandboxRun(t.Context(), d, sandboxRunOptions{SandboxConfig: want, Loads: []sandboxLoad{{"orders", "-"}}})
	if !errors.Is(err, bad) {
		t.Errorf("runSandboxRun() = %v, want %v", err, bad)
	}
	if sb.closes != 1 || !reflect.DeepEqual(config, want) {
		t.Errorf("closed %d times, want 1; started with %+v, want %+v", sb.closes, config, want)
	}
}

// A pipe that nobody writes to does not keep the command from being stopped.
func TestSandboxRunStoppedWhileItLoads(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stdin, writer := io.Pipe()
	defer func() { _ = writer.Close() }()
	sb := &fakeSandbox{}
	d := &Deps{In: stdin, StartSandbox: func(context.Context, SandboxConfig) (Sandbox, error) { return sb, nil }}
	go func() {
		_, _ = writer.Write([]byte("one\n")) // returns when it is read
		cancel(&SignalError{Signal: os.Interrupt})
	}()
	_, err := runSandboxRun(ctx, d, sandboxRunOptions{Loads: []sandboxLoad{{"orders", "-"}}})
	if code, _ := classify(err); code != exitInterrupted || sb.closes != 1 {
		t.Errorf("runSandboxRun() = %v, exit code %d, closed %d times; want it interrupted", err, code, sb.closes)
	}
}

// A file that is not there is told before anything is started.
func TestSandboxRunOpensFilesFirst(t *testing.T) {
	d := &Deps{StartSandbox: func(context.Context, SandboxConfig) (Sandbox, error) {
		t.Error("a sandbox was started")
		return &fakeSandbox{}, nil
	}}
	_, err := runSandboxRun(t.Context(), d, sandboxRunOptions{Loads: []sandboxLoad{{"orders", "no/such/file"}}})
	if code, _ := classify(err); code != exitUsage {
		t.Errorf("runSandboxRun() = %v, exit code %d, want %d", err, code, exitUsage)
	}
}

// kfake does not say why it could not write.
func TestSandboxRunOnAFullDisk(t *testing.T) {
	sb := &fakeSandbox{load: func(string, string, string) error { return fmt.Errorf("append: %w", kerr.UnknownServerError) }}
	d := &Deps{In: strings.NewReader("a\n"), StartSandbox: func(context.Context, SandboxConfig) (Sandbox, error) { return sb, nil }}
	_, err := runSandboxRun(t.Context(), d, sandboxRunOptions{SandboxConfig: SandboxConfig{DataDir: "dir"}, Loads: []sandboxLoad{{"orders", "-"}}})
	if code, hint := classify(err); code != exitFailed || !strings.Contains(hint, "room left in dir") {
		t.Errorf("runSandboxRun() = %v, exit code %d, hint %q", err, code, hint)
	}
}
