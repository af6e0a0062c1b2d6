package commands

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/internal/config"
	"github.com/spf13/cobra"
)

// connecting is a process that reads its settings from env and from a file.
func connecting(t *testing.T, env map[string]string, file string) *Deps {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if file != "" {
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return &Deps{
		ErrOut: &strings.Builder{}, flags: &globalFlags{},
		Getenv: func(name string) string {
			if name == "KSHARE_CONFIG" {
				return path
			}
			return env[name]
		},
	}
}

func (d *Deps) testConfig(t *testing.T, c connection) (cluster.Config, error) {
	t.Helper()
	r, err := d.settings(c)
	if err != nil {
		return cluster.Config{}, err
	}
	cfg, _, err := d.clusterConfig(t.Context(), r)
	return cfg, err
}

func TestBootstrap(t *testing.T) {
	for _, c := range []struct {
		name string
		flag []string
		env  string
		want []string
	}{
		{"flag", []string{"a:1", "b:2,d:4"}, "c:3", []string{"a:1", "b:2", "d:4"}},
		{"environment", nil, "a:1, b:2,", []string{"a:1", "b:2"}},
		{"neither", nil, "", nil},
		{"blank", []string{" "}, "", nil},
		{"addresses", []string{"[::1]:9092", "[fe80::1%eth0]:9092", "broker", "127.0.0.1:65535"}, "", []string{"[::1]:9092", "[fe80::1%eth0]:9092", "broker", "127.0.0.1:65535"}},
		{"wrong", []string{"a:1", "b:99999"}, "", nil},
		{"wrong", []string{"b:0"}, "", nil},
		{"wrong", []string{"b:http"}, "", nil},
		{"wrong", []string{"::1"}, "", nil},
		{"wrong", []string{":9092"}, "", nil},
		{"wrong", []string{"http://b:9092"}, "", nil},
		{"wrong", nil, "b c:9092", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := connecting(t, map[string]string{"KSHARE_BOOTSTRAP_SERVER": c.env}, "")
			d.flags.Bootstrap = c.flag
			got, err := d.testConfig(t, connection{})
			if c.want != nil && (err != nil || !slices.Equal(got.BootstrapServers, c.want)) {
				t.Errorf("bootstrap servers %v, %v, want %v", got.BootstrapServers, err, c.want)
			}
			code, hint := classify(err)
			if c.name == "wrong" {
				if code != exitUsage || !strings.Contains(err.Error(), "HOST:PORT") {
					t.Errorf("%v, want a usage error about HOST:PORT", err)
				}
				return
			}
			if c.want == nil && (code != exitUsage || !strings.Contains(hint, "kshare sandbox run")) {
				t.Errorf("it fails with %v (%d, %q), want a usage error that names the sandbox", err, code, hint)
			}
		})
	}
}

// What a client is configured with, from all the places that say something.
func TestClusterConfig(t *testing.T) {
	const file = `
current_context: Prod.EU-1
contexts:
  - name: Prod.EU-1
    bootstrap_server: [prod:9093]
    client_id: ctx
    sasl_mechanism: PLAIN
    sasl_user: alice
    sasl_password: secret
    tls: true
  - name: plain
    bootstrap_server: plain:9092
`
	d := connecting(t, nil, file)
	got, err := d.testConfig(t, connection{})
	if err != nil || got.TLS == nil || len(got.SASL) != 1 || got.SASL[0].Name() != "PLAIN" || got.ClientID != "ctx" || !slices.Equal(got.BootstrapServers, []string{"prod:9093"}) {
		t.Errorf("of the current context: %+v, %v", got, err)
	}
	got, err = d.testConfig(t, connection{Context: "plain"})
	if err != nil || got.TLS != nil || got.SASL != nil || !slices.Equal(got.BootstrapServers, []string{"plain:9092"}) {
		t.Errorf("of another context: %+v, %v", got, err)
	}
	if !strings.HasPrefix(got.ClientID, "kshare-") || got.Version == "" {
		t.Errorf("client ID %q and version %q, want the program's", got.ClientID, got.Version)
	}
	got, err = d.testConfig(t, connection{TLS: "false", SASLMechanism: "SCRAM-SHA-256"})
	if err != nil || got.TLS != nil || got.SASL[0].Name() != "SCRAM-SHA-256" {
		t.Errorf("with flags: %+v, %v", got, err)
	}
	if _, err := d.testConfig(t, connection{Context: "prod.eu-1"}); err == nil || !strings.Contains(hintOf(err), `did you mean "Prod.EU-1"?`) {
		t.Errorf("a context in another case: %v (%s)", err, hintOf(err))
	}
	d.flags.Bootstrap = []string{"flag:1"}
	if got, err = d.testConfig(t, connection{}); err != nil || !slices.Equal(got.BootstrapServers, []string{"flag:1"}) || got.TLS == nil {
		t.Errorf("with -b: %+v, %v, want it alone replaced", got, err)
	}
}

func hintOf(err error) string {
	_, hint := classify(err)
	return hint
}

// The environment does without any file.
func TestEnvironmentAlone(t *testing.T) {
	d := connecting(t, map[string]string{
		"KSHARE_BOOTSTRAP_SERVER": "a:1", "KSHARE_TLS": "true", "KSHARE_DIALECT": "kip",
		"KSHARE_SASL_MECHANISM": "SCRAM-SHA-512", "KSHARE_SASL_USER": "u", "KSHARE_SASL_PASSWORD": "p",
	}, "")
	got, err := d.testConfig(t, connection{})
	if err != nil || got.TLS == nil || len(got.SASL) != 1 || got.Dialect != "kip" {
		t.Errorf("%+v, %v", got, err)
	}
	d = connecting(t, map[string]string{"KSHARE_BOOTSTRAP_SERVER": "a:1", "KSHARE_DIALECT": "kraft"}, "")
	if _, err := d.testConfig(t, connection{}); err == nil || !strings.Contains(err.Error(), "environment $KSHARE_DIALECT") {
		t.Errorf("a dialect that is none: %v", err)
	}
}

func TestAskPassword(t *testing.T) {
	flags := connection{SASLMechanism: "PLAIN", SASLUser: "al\x1bice"}
	d := connecting(t, map[string]string{"KSHARE_BOOTSTRAP_SERVER": "a:1"}, "")
	_, err := d.testConfig(t, flags)
	if code, hint := classify(err); code != exitUsage || !strings.Contains(hint, "sasl_password_file") {
		t.Errorf("without a terminal: %v (%d, %q), want a usage error", err, code, hint)
	}
	d.StdinTTY, d.StderrTTY = true, true
	d.ReadPassword = func() ([]byte, error) { return []byte("typed"), nil }
	got, err := d.testConfig(t, flags)
	if err != nil || len(got.SASL) != 1 {
		t.Fatalf("on a terminal: %+v, %v", got, err)
	}
	_, first, err := got.SASL[0].Authenticate(t.Context(), "a:1")
	if err != nil || string(first) != "\x00al\x1bice\x00typed" {
		t.Errorf("it logs in with %q, %v", first, err)
	}
	if out := d.ErrOut.(*strings.Builder).String(); out != "kshare: password of al\\x1bice for SASL PLAIN: \n" {
		t.Errorf("it asks %q", out)
	}
	d.ReadPassword = func() ([]byte, error) { return nil, errors.New("hung up") }
	if _, err := d.testConfig(t, flags); err == nil || !strings.Contains(err.Error(), "hung up") {
		t.Errorf("the terminal fails: %v", err)
	}
}

// Each setting that is a flag is one of kshare's flags, and the other way round.
func TestConnectionFlagsAreSettings(t *testing.T) {
	var c connection
	root := testTree(t)
	cmd, _, err := root.Find([]string{"config", "view"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range config.Settings() {
		if s.Flag != "" && cmd.Flag(s.Flag) == nil {
			t.Errorf("setting %s: there is no flag --%s", s.Key, s.Flag)
		}
	}
	if got := c.given(nil); len(got) != 0 {
		t.Errorf("no flag gives %v", got)
	}
	c = connection{
		Dialect: "a", Context: "a", CommandConfig: "a", TLS: "true", TLSCA: "a", TLSCert: "a", TLSKey: "a", TLSServerName: "a",
		TLSSkipVerify: "true", SASLMechanism: "a", SASLUser: "a", SASLPasswordFile: "a", SASLPasswordCommand: "a",
	}
	d := &Deps{flags: &globalFlags{Bootstrap: []string{"a"}, resultFlags: resultFlags{TimeZone: "a"}}}
	given := d.given(c)
	for _, s := range config.Settings() {
		if (s.Flag != "") != (given[s.Key] != "") {
			t.Errorf("setting %s has flag %q, and flags give %q", s.Key, s.Flag, given[s.Key])
		}
	}
}

func TestSuggestedCommandsConnectAlike(t *testing.T) {
	d := connecting(t, nil, "contexts: [{name: p, bootstrap_server: 'a:1'}]")
	if _, err := d.settings(connection{Context: "p"}); err != nil {
		t.Fatal(err)
	}
	if got := d.command("kshare feature describe"); got != "kshare feature describe --context p" {
		t.Errorf("command is %q", got)
	}
}

// Errors of settings, files and credentials end with the codes that they mean.
func TestExitCodesOfSettings(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
	}{
		{&config.Error{Reason: "x"}, exitUsage},
		{&auth.ConfigError{Reason: "x"}, exitUsage},
		{&auth.CredentialError{What: "x", Err: errors.New("y")}, exitAuth},
		{&cluster.AuthError{Err: errors.New("x")}, exitAuth},
	} {
		if code, _ := classify(c.err); code != c.code {
			t.Errorf("%T ends with %d, want %d", c.err, code, c.code)
		}
	}
}

// A command that can fail to be let in takes the flags that let it in.
func TestCommandsThatConnectHaveTheFlags(t *testing.T) {
	n := 0
	walk(testTree(t), func(cmd *cobra.Command) {
		if cmd.HasSubCommands() || !slices.Contains(exitCodesOf(cmd), exitAuth) {
			return
		}
		if cmd.CommandPath() == "kshare inspect metrics" {
			return // it connects by HTTP, and who it is stands in the URLs
		}
		n++
		for _, flag := range []string{"context", "command-config", "tls", "sasl-mechanism"} {
			if cmd.Flag(flag) == nil {
				t.Errorf("%s connects and has no --%s", cmd.CommandPath(), flag)
			}
		}
	})
	if n < 5 {
		t.Errorf("%d commands connect, want more", n)
	}
}

// What a hint says can be pasted into a shell.
func TestSetServerLine(t *testing.T) {
	for name, want := range map[string]string{
		"Prod.EU-1": "Prod.EU-1", "a b": "'a b'", "it's; rm": `'it'\''s; rm'`, "": "''", "-x": "NAME",
	} {
		if got := setServerLine(name); got != "kshare config set-context "+want+" -b HOST:PORT" {
			t.Errorf("setServerLine(%q) = %s, want %s", name, got, want)
		}
	}
	d := connecting(t, nil, "contexts: [{name: a b}]")
	_, err := d.testConfig(t, connection{Context: "a b"})
	if _, hint := classify(err); hint != "kshare config set-context 'a b' -b HOST:PORT" {
		t.Errorf("a context without a server: %v, hint %q", err, hint)
	}
	if _, err := d.testConfig(t, connection{Context: "$x"}); !strings.Contains(ownHint(err), "a b") {
		t.Errorf("a context that is not there: %v, hint %q", err, ownHint(err))
	}
}
