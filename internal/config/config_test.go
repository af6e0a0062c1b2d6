package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/internal/need"
)

// canary is a secret that must be nowhere.
const canary = "c4n4ry-s3cr3t"

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func environment(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

const twoContexts = `
# mine
current_context: Prod.EU-1
contexts:
  - name: Prod.EU-1 # the big one
    bootstrap_server: b1:9093,b2:9093
    tls: true
    sasl_mechanism: SCRAM-SHA-512
    sasl_user: alice
    sasl_password: ` + canary + `
  - name: test
    bootstrap_server: ["t:9092"]
    sasl_oauth_extensions: {Pool-A: "x=y", b: z}
    sasl_password_command: [pass, show, "my kafka"]
    tls_ca: ca.pem
`

func TestRead(t *testing.T) {
	path := write(t, "config.yaml", twoContexts)
	_, err := Read(path)
	if err == nil || !strings.Contains(err.Error(), "sasl_oauth_extensions: want a list of NAME=VALUE") {
		t.Errorf("Read = %v, want an error about the map", err) // viper would change the case of its keys
	}
	path = write(t, "config.yaml", strings.Replace(twoContexts, `{Pool-A: "x=y", b: z}`, `[Pool-A=x=y, b=z]`, 1))
	c, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Current != "Prod.EU-1" || !slices.Equal(c.Names(), []string{"Prod.EU-1", "test"}) || !c.Exists {
		t.Errorf("Read = %+v", c)
	}
	want := map[Key]string{
		BootstrapServer: "t:9092", SASLOAuthExtensions: "Pool-A=x=y,b=z", SASLPasswordCommand: "pass ***",
		TLSCA: filepath.Join(filepath.Dir(path), "ca.pem"),
	}
	if got := c.All[1].Values(); !maps.Equal(got, want) {
		t.Errorf("context test has %v, want %v", got, want)
	}
	if got := c.All[0].Values()[SASLPassword]; got != "***" {
		t.Errorf("the password is shown as %q", got)
	}
}

func TestReadNothing(t *testing.T) {
	for _, path := range []string{"", filepath.Join(t.TempDir(), "none.yaml"), write(t, "empty.yaml", ""), write(t, "comment.yaml", "# x\n"), write(t, "null.yaml", "contexts:\ncurrent_context:\n")} {
		if c, err := Read(path); err != nil || len(c.All) != 0 || c.Current != "" {
			t.Errorf("Read(%q) = %+v, %v, want no contexts", path, c, err)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	context := func(line string) string { return "contexts:\n  - name: a\n    " + line + "\n" }
	for _, c := range []struct{ name, file, want string }{
		{"no YAML", "contexts: [", "is not valid YAML"},
		{"tab", "contexts:\n\t- name: a\n", ":2: is not valid YAML"},
		{"a text", canary, "is not valid YAML"},
		{"a list", "- " + canary, "is not valid YAML"},
		{"an anchor that is none", context("sasl_password: *" + canary), "is not valid YAML"},
		{"a key twice", "contexts: []\ncontexts: []\n", "is not valid YAML"},
		{"two documents", "contexts: []\n---\ncontexts: []\n", "has more than one YAML document"},
		{"something after the document", "contexts: []\n---\n- : [" + canary, "is not valid YAML"},
		{"upper case", "Contexts: []\n", `there is no key "Contexts"`},
		{"upper case in a context", context("saslPassword: " + canary), `context "a": there is no setting "saslPassword"`},
		{"unknown key", "current: a\n", `there is no key "current"`},
		{"current is a number", "current_context: 1\n", "current_context: want the name of a context"},
		{"contexts are none", "contexts: " + canary, "contexts: want a list of contexts"},
		{"context is a text", "contexts: [" + canary + "]", "contexts: entry 1 has no keys"},
		{"no name", "contexts: [{tls: true}]", "entry 1 has no name"},
		{"name is a number", "contexts: [{name: 1}]", "entry 1 has no name"},
		{"name twice", "contexts: [{name: a}, {name: a}]", `"a" is there twice`},
		{"unknown setting", context("sasl.password: " + canary), `context "a": there is no setting "sasl.password"`},
		{"a context in a context", context("context: b"), `there is no setting "context"`},
		{"no bool", context("tls: " + canary), "tls: want true or false"},
		{"number for a text", context("sasl_password: 12345"), "sasl_password: want a text: put quotes around it"},
		{"octal number", context("sasl_password: 0123"), "sasl_password: want a text: put quotes around it"},
		{"bool for a text", context("sasl_password: true"), "sasl_password: want a text: put quotes around it"},
		{"nothing", context("sasl_password:"), "sasl_password: has no value"},
		{"list for a text", context("sasl_password: [" + canary + "]"), "sasl_password: a list is nothing"},
		{"list of numbers", context("bootstrap_server: [1]"), "bootstrap_server: want a list of texts"},
		{"map", context("bootstrap_server: {a: b}"), "bootstrap_server: want a text or a list"},
		{"pairs", context("sasl_oauth_params: " + canary), "sasl_oauth_params: want NAME=VALUE"},
		{"command with an open quote", context(`sasl_password_command: "sh -c 'echo ` + canary + `"`), "is no command"},
		{"command for a shell", context(`sasl_password_command: "echo x | cat ` + canary + `"`), "has something for a shell"},
		{"two sources", context("sasl_password: " + canary + "\n    sasl_password_file: x"), "sasl_password and sasl_password_file exclude each other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, "config.yaml", c.file)
			_, err := Read(path)
			e, ok := errors.AsType[*Error](err)
			if !ok || !strings.Contains(e.Error(), c.want) || !strings.HasPrefix(e.Error(), path) {
				t.Fatalf("Read(%q) = %v, want %q about the file", c.file, err, c.want)
			}
			if strings.Contains(e.Error()+e.Hint(), canary) {
				t.Errorf("Read says %v (%s), which has a value in it", e, e.Hint())
			}
		})
	}
	for file, want := range map[string]string{
		context("sasl-password: x"):            "did you mean sasl_password?",
		context("bootstrapServer: x:1"):        "did you mean bootstrap_server?",
		context("bootstrap_servers: x:1"):      "did you mean bootstrap_server?",
		"contexts: [{NAME: a}]":                "did you mean name?",
		"Current_Context: a":                   "did you mean current_context?",
		"contexts: [{name: a, no_such: true}]": "'kshare help settings' lists them",
	} {
		e := new(Error)
		if _, err := Read(write(t, "config.yaml", file)); !errors.As(err, &e) || !strings.Contains(e.Hint(), want) {
			t.Errorf("%q: %v (%s), want %q", file, err, e.Hint(), want)
		}
	}
}

// From the weakest to the strongest source, and the origin that is told of each.
func TestPrecedence(t *testing.T) {
	properties := write(t, "client.properties", "bootstrap.servers=props:1\nclient.id=props\nsecurity.protocol=SSL\n")
	file := fmt.Sprintf("current_context: a\ncontexts:\n  - {name: a, bootstrap_server: 'ctx:1', command_config: %s, sasl_user: ctx}\n  - {name: b, client_id: b}\n", properties)
	path := write(t, "config.yaml", file)
	for _, c := range []struct {
		name   string
		flags  map[Key]string
		env    map[string]string
		want   string // of bootstrap servers, client ID, protocol and context
		origin string // of the bootstrap servers
	}{
		{"context and its properties", nil, nil, "ctx:1 props SSL a", "context a in " + path},
		{"environment over context", nil, map[string]string{"KSHARE_BOOTSTRAP_SERVER": "env:1"}, "env:1 props SSL a", "environment $KSHARE_BOOTSTRAP_SERVER"},
		{"flag over environment", map[Key]string{BootstrapServer: "flag:1"}, map[string]string{"KSHARE_BOOTSTRAP_SERVER": "env:1"}, "flag:1 props SSL a", "flag --bootstrap-server"},
		{"properties of a flag in place of the context", map[Key]string{CommandConfig: properties}, nil, "props:1 props SSL ", properties + ":1"},
		{"properties of the environment", nil, map[string]string{"KSHARE_COMMAND_CONFIG": properties}, "props:1 props SSL ", properties + ":1"},
		{"context of a flag over properties of the environment", map[Key]string{Context: "a"}, map[string]string{"KSHARE_COMMAND_CONFIG": "/nope"}, "ctx:1 props SSL a", "context a in " + path},
		{"properties of a flag over a context of the environment", map[Key]string{CommandConfig: properties}, map[string]string{"KSHARE_CONTEXT": "a"}, "props:1 props SSL ", properties + ":1"},
		{"another context", nil, map[string]string{"KSHARE_CONTEXT": "b"}, " b PLAINTEXT b", "default"},
		{"flag over the context of the environment", map[Key]string{Context: "a"}, map[string]string{"KSHARE_CONTEXT": "b"}, "ctx:1 props SSL a", "context a in " + path},
		{"client ID of the environment", nil, map[string]string{"KSHARE_CLIENT_ID": "env"}, "ctx:1 env SSL a", "context a in " + path},
		{"TLS off by a flag", map[Key]string{TLS: "false"}, nil, "ctx:1 props PLAINTEXT a", "context a in " + path},
		{"TLS by a setting that implies it", map[Key]string{Context: "b", TLSSkipVerify: "true"}, nil, " b SSL b", "default"},
		{"a setting that says no implies nothing", map[Key]string{Context: "b", TLSSkipVerify: "false"}, nil, " b PLAINTEXT b", "default"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Resolve(Input{Flags: c.flags, Getenv: environment(c.env), Path: path, ClientID: "default"})
			if err != nil {
				t.Fatal(err)
			}
			o, err := r.Options(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			servers, origin := r.BootstrapServers()
			if got := fmt.Sprintf("%s %s %s %s", strings.Join(servers, ","), r.ClientID(), o.Protocol(), r.Context); got != c.want || origin.String() != c.origin {
				t.Errorf("it comes to %q from %q, want %q from %q", got, origin, c.want, c.origin)
			}
		})
	}
}

// Of the sources of a secret the strongest place has the say, not the kind.
func TestGroups(t *testing.T) {
	secret := write(t, "secret", "from file\r\n")
	path := write(t, "config.yaml", "current_context: a\ncontexts: [{name: a, sasl_mechanism: PLAIN, sasl_user: u, sasl_password: from context}]")
	for _, c := range []struct {
		name  string
		flags map[Key]string
		env   map[string]string
		want  auth.Secret
	}{
		{"context", nil, nil, "from context"},
		{"environment over context", nil, map[string]string{"KSHARE_SASL_PASSWORD": "from env"}, "from env"},
		{"file of a flag over password of the environment", map[Key]string{SASLPasswordFile: secret}, map[string]string{"KSHARE_SASL_PASSWORD": "from env"}, "from file"},
		{"command of the environment over context", nil, map[string]string{"KSHARE_SASL_PASSWORD_COMMAND": "echo 'from  command'"}, "from  command"},
	} {
		r, err := Resolve(Input{Flags: c.flags, Getenv: environment(c.env), Path: path})
		if err != nil {
			t.Fatal(err)
		}
		o, err := r.Options(t.Context(), nil)
		if err != nil || string(o.SASL.Password) != string(c.want) {
			t.Errorf("%s: password %q, %v, want %q", c.name, string(o.SASL.Password), err, string(c.want))
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	path := write(t, "config.yaml", "current_context: gone\ncontexts: [{name: a}]")
	for _, c := range []struct {
		name  string
		flags map[Key]string
		env   map[string]string
		want  string
	}{
		{"current context that is gone", nil, nil, "current_context: there is no context \"gone\""},
		{"no such context", map[Key]string{Context: "b"}, nil, `there is no context "b"`},
		{"context and properties, flags", map[Key]string{Context: "a", CommandConfig: "x"}, nil, "the command line: context and command_config exclude each other"},
		{"context and properties, environment", nil, map[string]string{"KSHARE_CONTEXT": "a", "KSHARE_COMMAND_CONFIG": "x"}, "the environment: context and command_config exclude each other"},
		{"two passwords", nil, map[string]string{"KSHARE_SASL_PASSWORD": canary, "KSHARE_SASL_PASSWORD_FILE": "x"}, "the environment: sasl_password and sasl_password_file exclude each other"},
		{"no bool", nil, map[string]string{"KSHARE_TLS": canary}, "$KSHARE_TLS: want true or false"},
		{"no command", map[Key]string{SASLPasswordCommand: " "}, nil, "--sasl-password-command: names no program"},
		{"command with quotes", map[Key]string{SASLPasswordCommand: "echo '" + canary}, nil, "--sasl-password-command: is no command"},
		{"properties that are not there", map[Key]string{CommandConfig: "/nope"}, nil, "/nope: read properties"},
		{"mechanism", map[Key]string{Context: "a", SASLMechanism: "plain"}, nil, `"plain" is not supported`},
		{"user without mechanism", map[Key]string{Context: "a", SASLUser: "u"}, nil, "--sasl-user: is set, and no SASL mechanism"},
		{"TLS and no TLS", map[Key]string{Context: "a", TLS: "false", TLSCA: "/ca.pem"}, nil, "--tls-ca: is set, and --tls=false says not to connect by TLS"},
		{"any certificate and no TLS", map[Key]string{Context: "a", TLS: "false", TLSSkipVerify: "true"}, nil, "--tls-skip-verify: is set, and --tls=false"},
		{"certificate without key", map[Key]string{Context: "a", TLSCert: "x"}, nil, "tls_cert and tls_key need each other"},
		{"password file that is not there", map[Key]string{Context: "a", SASLMechanism: "PLAIN", SASLUser: "u", SASLPasswordFile: "/nope"}, nil, "secret in /nope: "},
		{"command that is not there", map[Key]string{Context: "a", SASLMechanism: "PLAIN", SASLUser: "u", SASLPasswordCommand: "/nope " + canary}, nil, `secret from command "/nope": `},
		{"command that fails", map[Key]string{Context: "a", SASLMechanism: "PLAIN", SASLUser: "u", SASLPasswordCommand: `sh -c "echo ` + canary + `; echo ` + canary + ` >&2; exit 3"`}, nil, `secret from command "sh": exit status 3`},
		{"command that says nothing", map[Key]string{Context: "a", SASLMechanism: "PLAIN", SASLUser: "u", SASLPasswordCommand: "true"}, nil, `secret from command "true": it writes nothing`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Resolve(Input{Flags: c.flags, Getenv: environment(c.env), Path: path})
			if err == nil {
				_, err = r.Options(t.Context(), nil)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			h, _ := errors.AsType[interface {
				error
				Hint() string
			}](err)
			if strings.Contains(fmt.Sprintf("%v %+v %s", err, err, h.Hint()), canary) {
				t.Errorf("%v (%s) has a secret in it", err, h.Hint())
			}
		})
	}
}

func TestMisspeltEnvironment(t *testing.T) {
	for names, want := range map[string]string{
		"KSHARE_BOOTSTRAP_SERVERS":       "KSHARE_BOOTSTRAP_SERVERS is no setting and not read; did you mean KSHARE_BOOTSTRAP_SERVER?",
		"KSHARE_SASL_PASWORD":            "KSHARE_SASL_PASWORD is no setting and not read; did you mean KSHARE_SASL_PASSWORD?",
		"KSHARE_SASL_OAUTH_CLIENTSECRET": "did you mean KSHARE_SASL_OAUTH_CLIENT_SECRET?",
		"KSHARE_TLS_KEYS":                "did you mean KSHARE_TLS_KEY?",
		"KSHARE_tls":                     "did you mean KSHARE_TLS?",
		// Settings, what is none of ours, and what may be a script's own.
		"KSHARE_TLS": "", "KSHARE_CONFIG": "", "KSHARE_SANDBOX_CONTROL": "", "KSHARE_HOME": "", "KSHARE_TMP": "",
		"KSHARE_VERSION": "", "KSHARE_TEST_FAULTS": "", "XKSHARE_TLS_KEYS": "", "": "",
		// The one that is meant is set.
		"KSHARE_SASL_USERS KSHARE_SASL_USER": "",
	} {
		env, environ := map[string]string{}, []string{}
		for _, name := range strings.Fields(names) {
			v := map[bool]string{true: "true", false: canary}[name == "KSHARE_TLS"]
			env[name], environ = v, append(environ, name+"="+v)
		}
		r, err := Resolve(Input{Getenv: environment(env), Environ: environ})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(r.Warnings, "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) || strings.Contains(got, canary) {
			t.Errorf("%s: %q, want %q", names, got, want)
		}
	}
}

// --tls=false turns off what a context says of TLS.
func TestNoTLSOverContext(t *testing.T) {
	path := write(t, "config.yaml", "contexts: [{name: a, tls_ca: /ca.pem}]\n")
	r, err := Resolve(Input{Flags: map[Key]string{Context: "a", TLS: "false"}, Getenv: environment(nil), Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if o, err := r.Options(t.Context(), nil); err != nil || o.TLS != nil {
		t.Errorf("TLS %+v, %v", o.TLS, err)
	}
}

// What settings come to, where the properties file says something else.
func TestOptionsOverProperties(t *testing.T) {
	properties := write(t, "client.properties", "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=M required username=\"u\" password=\"p\";\nssl.truststore.location=/t.jks\nssl.endpoint.identification.algorithm=\n")
	resolve := func(flags map[Key]string, env map[string]string) auth.Options {
		t.Helper()
		flags[CommandConfig] = properties
		r, err := Resolve(Input{Flags: flags, Getenv: environment(env)})
		if err != nil {
			t.Fatal(err)
		}
		o, err := r.Options(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := resolve(map[Key]string{}, nil)
	if o.SASL.User != "u" || string(o.SASL.Password) != "p" || o.TLS.Trust.File != "/t.jks" || !o.TLS.SkipHostName {
		t.Errorf("of the file: %+v %+v", o.TLS, o.SASL)
	}
	o = resolve(map[Key]string{SASLUser: "v", TLSCA: "/ca.pem", TLSServerName: "n"}, map[string]string{"KSHARE_SASL_PASSWORD": "q"})
	if o.SASL.User != "v" || string(o.SASL.Password) != "q" || o.TLS.Trust.File != "/ca.pem" || o.TLS.ServerName != "n" || o.TLS.SkipHostName {
		t.Errorf("with settings: %+v %+v", o.TLS, o.SASL)
	}
	o = resolve(map[Key]string{SASLMechanism: "OAUTHBEARER"}, map[string]string{
		"KSHARE_SASL_OAUTH_TOKEN_URL": "https://idp", "KSHARE_SASL_OAUTH_CLIENT_ID": "id", "KSHARE_SASL_OAUTH_CLIENT_SECRET": "s",
		"KSHARE_SASL_OAUTH_SCOPE": "a b", "KSHARE_SASL_OAUTH_PARAMS": "audience=x", "KSHARE_SASL_OAUTH_EXTENSIONS": "pool=p,id=i", "KSHARE_SASL_OAUTH_CA": "/ca",
	})
	got := o.SASL.OAuth
	if got.TokenURL != "https://idp" || got.ClientID != "id" || string(got.ClientSecret) != "s" || got.Scope != "a b" || got.Params["audience"] != "x" ||
		!maps.Equal(got.Extensions, map[string]string{"pool": "p", "id": "i"}) || got.TLS.Trust.File != "/ca" || got.RawBasic {
		t.Errorf("another mechanism: %+v", got)
	}
	o = resolve(map[Key]string{SASLMechanism: "GSSAPI", SASLUser: "a@R"}, map[string]string{"KSHARE_SASL_KERBEROS_KEYTAB": "/k", "KSHARE_SASL_KERBEROS_CONFIG": "/c", "KSHARE_SASL_KERBEROS_SERVICE": "s"})
	if want := (auth.Kerberos{Service: "s", Keytab: "/k", Config: "/c"}); o.SASL.Kerberos != want || o.SASL.User != "a@R" {
		t.Errorf("GSSAPI: %+v", o.SASL)
	}
	o = resolve(map[Key]string{SASLMechanism: "AWS_MSK_IAM"}, map[string]string{"KSHARE_SASL_AWS_PROFILE": "p"})
	if o.SASL.AWS.Profile != "p" {
		t.Errorf("AWS_MSK_IAM: %+v", o.SASL.AWS)
	}
}

// A secret is asked for when it is needed and nothing sets it, and only then.
func TestAsk(t *testing.T) {
	asked := ""
	ask := func(_ context.Context, what string) (auth.Secret, error) {
		asked = what
		return "typed", nil
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"KSHARE_SASL_MECHANISM": "PLAIN", "KSHARE_SASL_USER": "u"}, "password of u for SASL PLAIN"},
		{map[string]string{"KSHARE_SASL_MECHANISM": "PLAIN", "KSHARE_SASL_USER": "u", "KSHARE_SASL_PASSWORD": "p"}, ""},
		{map[string]string{"KSHARE_SASL_MECHANISM": "GSSAPI", "KSHARE_SASL_USER": "u@R"}, "password of u@R for SASL GSSAPI"},
		{map[string]string{"KSHARE_SASL_MECHANISM": "GSSAPI", "KSHARE_SASL_USER": "u@R", "KSHARE_SASL_KERBEROS_KEYTAB": "/k"}, ""},
		{map[string]string{"KSHARE_SASL_MECHANISM": "OAUTHBEARER", "KSHARE_SASL_OAUTH_TOKEN_URL": "https://x", "KSHARE_SASL_OAUTH_CLIENT_ID": "id"}, "secret of OAuth client id"},
		{map[string]string{"KSHARE_SASL_MECHANISM": "OAUTHBEARER", "KSHARE_SASL_TOKEN": "t"}, ""},
		{map[string]string{"KSHARE_SASL_MECHANISM": "AWS_MSK_IAM"}, ""},
		{map[string]string{"KSHARE_SASL_USER": "u"}, ""},
	} {
		asked = ""
		r, err := Resolve(Input{Getenv: environment(c.env)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Options(t.Context(), ask); err != nil || asked != c.want {
			t.Errorf("%v: asked for %q, %v, want %q", c.env, asked, err, c.want)
		}
	}
}

// Where nobody may be disturbed, no command is run and nobody asked, now or when
// the connection authenticates.
func TestUnattended(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "marker")
	command := "touch " + marker
	plain := map[string]string{"KSHARE_SASL_MECHANISM": "PLAIN", "KSHARE_SASL_USER": "u"}
	oauth := map[string]string{"KSHARE_SASL_MECHANISM": "OAUTHBEARER"}
	url := map[string]string{"KSHARE_SASL_MECHANISM": "OAUTHBEARER", "KSHARE_SASL_OAUTH_TOKEN_URL": "https://x", "KSHARE_SASL_OAUTH_CLIENT_ID": "id"}
	iam := map[string]string{"KSHARE_SASL_MECHANISM": "AWS_MSK_IAM"}
	keys := map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
	for _, c := range []struct {
		name string
		env  []map[string]string // together
		want error
	}{
		{"nothing", nil, nil},
		{"password", []map[string]string{plain, {"KSHARE_SASL_PASSWORD": "p"}}, nil},
		{"no password", []map[string]string{plain}, ErrAttended},
		{"password of a command", []map[string]string{plain, {"KSHARE_SASL_PASSWORD_COMMAND": command}}, ErrAttended},
		{"command that nothing needs", []map[string]string{{"KSHARE_SASL_PASSWORD_COMMAND": command}}, nil},
		{"password of a key of a command", []map[string]string{{"KSHARE_TLS": "true", "KSHARE_TLS_KEY_PASSWORD_COMMAND": command}}, ErrAttended},
		{"token", []map[string]string{oauth, {"KSHARE_SASL_TOKEN": "t"}}, nil},
		{"token of a command", []map[string]string{oauth, {"KSHARE_SASL_TOKEN_COMMAND": command}}, ErrAttended},
		{"secret of a client", []map[string]string{url, {"KSHARE_SASL_OAUTH_CLIENT_SECRET": "s"}}, nil},
		{"no secret of a client", []map[string]string{url}, ErrAttended},
		{"secret of a client of a command", []map[string]string{url, {"KSHARE_SASL_OAUTH_CLIENT_SECRET_COMMAND": command}}, ErrAttended},
		{"keys of AWS", []map[string]string{iam, keys}, nil},
		{"no keys of AWS", []map[string]string{iam}, ErrAttended},
		{"a profile of AWS", []map[string]string{iam, keys, {"KSHARE_SASL_AWS_PROFILE": "p"}}, ErrAttended},
	} {
		env := make(map[string]string)
		for _, part := range c.env {
			maps.Copy(env, part)
		}
		r, err := Resolve(Input{Getenv: environment(env)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.UnattendedOptions(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Fatalf("%s: the command was run", c.name)
		}
	}
}

func TestRows(t *testing.T) {
	properties := write(t, "client.properties", "bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=M required username=\"u\" password=\""+canary+"\";\nssl.truststore.location=/t\nssl.truststore.password="+canary+"\nacks=all\n")
	r, err := Resolve(Input{
		Flags:    map[Key]string{CommandConfig: properties, TLSCA: "/ca"},
		Getenv:   environment(map[string]string{"KSHARE_SASL_PASSWORD": canary, "KSHARE_SASL_TOKEN_COMMAND": "echo " + canary}),
		ClientID: "kshare-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range r.Rows() {
		got = append(got, fmt.Sprintf("%s=%s (%s)", row.Key, row.Value, row.Origin))
	}
	want := []string{
		"command_config=" + properties + " (flag --command-config)",
		"client_id=kshare-1 (default)",
		"tls_ca=/ca (flag --tls-ca)",
		"sasl_password=*** (environment $KSHARE_SASL_PASSWORD)",
		"sasl_token_command=echo *** (environment $KSHARE_SASL_TOKEN_COMMAND)",
		"bootstrap.servers=a:1 (" + properties + ":1)",
		"security.protocol=SASL_SSL (" + properties + ":2)",
		"sasl.mechanism=PLAIN (" + properties + ":3)",
		"sasl.jaas.config=*** (" + properties + ":4)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("Rows =\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "client.properties: not used: acks") {
		t.Errorf("Warnings = %q", r.Warnings)
	}
}

func TestWriting(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "config.yaml")
	added, changed, err := SetContext(t.Context(), path, "Prod.EU-1", Change{Set: map[Key]string{BootstrapServer: "a:1,b:2", TLS: "true", TLSCA: "ca.pem", SASLPasswordCommand: "pass show kafka", SASLUser: "true"}})
	if err != nil || !added || !changed {
		t.Fatalf("SetContext = %v, %v, %v", added, changed, err)
	}
	working, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := "contexts:\n  - name: Prod.EU-1\n    bootstrap_server: ['a:1', 'b:2']\n    tls: true\n    tls_ca: " + filepath.Join(working, "ca.pem") +
		"\n    sasl_user: \"true\"\n    sasl_password_command: [pass, show, kafka]\n"
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("the file has\n%s%v\nwant\n%s", b, err, want)
	}
	if added, changed, err = SetContext(t.Context(), path, "Prod.EU-1", Change{Set: map[Key]string{TLS: "true"}}); err != nil || added || changed {
		t.Errorf("the same again: %v, %v, %v", added, changed, err)
	}
	if changed, err := UseContext(t.Context(), path, "Prod.EU-1"); err != nil || !changed {
		t.Errorf("UseContext = %v, %v", changed, err)
	}
	if changed, err := UseContext(t.Context(), path, "Prod.EU-1"); err != nil || changed {
		t.Errorf("UseContext again = %v, %v", changed, err)
	}
	// Another source of the password replaces the one that is there.
	if _, _, err = SetContext(t.Context(), path, "Prod.EU-1", Change{Set: map[Key]string{SASLPasswordFile: "/p"}, Unset: []Key{TLSCA, ClientID}}); err != nil {
		t.Fatal(err)
	}
	c, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.All[0].Values(); got[SASLPasswordFile] != "/p" || got[SASLPasswordCommand] != "" || got[TLSCA] != "" || c.Current != "Prod.EU-1" {
		t.Errorf("the context has %v, current is %q", got, c.Current)
	}
	if was, err := DeleteContext(t.Context(), path, "Prod.EU-1"); err != nil || !was {
		t.Errorf("DeleteContext = %v, %v", was, err)
	}
	if c, err = Read(path); err != nil || len(c.All) != 0 || c.Current != "" {
		t.Errorf("after it was removed: %+v, %v", c, err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 2 || left[0].Name() != ".config.yaml.lock" {
		t.Errorf("left are %v, %v, want the file and its lock", left, err)
	}
}

// Of changes at the same time none is lost.
func TestWritingAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "config.yaml")
	const writers = 20
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			name := fmt.Sprint("c", i)
			if added, _, err := SetContext(t.Context(), path, name, Change{Set: map[Key]string{BootstrapServer: "x:1"}}); err != nil || !added {
				t.Errorf("SetContext = %v, %v", added, err)
			}
			if _, err := UseContext(t.Context(), path, name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.All) != writers {
		t.Errorf("%d contexts are there, want %d: %v", len(c.All), writers, c.Names())
	}
}

// Who waits for the other change can be stopped.
func TestWritingWaits(t *testing.T) {
	path := write(t, "config.yaml", "contexts: [{name: a}]")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	stop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if _, err := UseContext(ctx, path, "a"); !errors.Is(err, stop) {
		t.Errorf("UseContext = %v, want %v", err, stop)
	}
}

// What is no file stays what it is.
func TestWritingToNoFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		return
	}
	path := filepath.Join(t.TempDir(), "null")
	if err := os.Symlink("/dev/null", path); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = SetContext(t.Context(), path, "a", Change{})
	if e, ok := errors.AsType[*Error](err); !ok || e.Where != "/dev/null" || !strings.Contains(e.Error(), "is no regular file") {
		t.Errorf("SetContext = %v", err)
	}
	if after, err := os.Stat(path); err != nil || after.Mode() != before.Mode() {
		t.Errorf("it is %v, %v, and was %v", after.Mode(), err, before.Mode())
	}
	// It can be read, and has nothing.
	if c, err := Read(path); err != nil || len(c.All) != 0 {
		t.Errorf("Read = %+v, %v", c, err)
	}
}

// An editor's comments and order survive, and what could not be read again is
// not written.
func TestWritingKeepsTheFile(t *testing.T) {
	const before = "# mine\ncurrent_context: b\ncontexts:\n  # first\n  - name: b\n    tls: true # always\n    bootstrap_server: \"x:1\"\n  - name: a\n"
	path := write(t, "config.yaml", before)
	link := filepath.Join(t.TempDir(), "link.yaml")
	if err := os.Symlink(path, link); err != nil {
		need.None(t, err)
	}
	if _, _, err := SetContext(t.Context(), link, "b", Change{Set: map[Key]string{BootstrapServer: "y:1"}}); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(before, `"x:1"`, `['y:1']`, 1)
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("the file has\n%s%v\nwant\n%s", b, err, want)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info.Mode(), err)
	}
	broken := write(t, "config.yaml", "contexts: [{name: a, nonsense: 1}]\n")
	_, _, err := SetContext(t.Context(), broken, "b", Change{})
	if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Error(), "would no longer be valid") {
		t.Errorf("SetContext of a file with a mistake = %v", err)
	}
	if _, _, err := SetContext(t.Context(), write(t, "config.yaml", "contexts: ["), "b", Change{}); err == nil {
		t.Error("SetContext of a file that is no YAML succeeds")
	}
	for _, text := range []string{"# nothing yet\n\n# and more\n", "\ufeff# nothing yet\n\n# and more\n"} {
		comments := write(t, "config.yaml", text)
		if _, _, err := SetContext(t.Context(), comments, "b", Change{}); err != nil {
			t.Fatal(err)
		}
		want := "# nothing yet\n\n# and more\n\ncontexts:\n  - name: b\n"
		if b, err := os.ReadFile(comments); err != nil || string(b) != want {
			t.Errorf("the file has\n%q%v\nwant\n%q", b, err, want)
		}
	}
	// A link may lead to where there is no file yet.
	dir := t.TempDir()
	for link, target := range map[string]string{"relative.yaml": "new.yaml", "absolute.yaml": filepath.Join(dir, "new2.yaml")} {
		link = filepath.Join(dir, link)
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		if _, _, err := SetContext(t.Context(), link, "b", Change{}); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("the link is %v, %v", info.Mode(), err)
		}
	}
	// What is there in another form would be lost.
	const other = "contexts: {a: {tls: true}}\n"
	path2 := write(t, "config.yaml", other)
	if _, _, err := SetContext(t.Context(), path2, "b", Change{}); err == nil || !strings.Contains(err.Error(), "want a list of contexts") {
		t.Errorf("SetContext of contexts that are no list = %v", err)
	}
	if b, err := os.ReadFile(path2); err != nil || string(b) != other {
		t.Errorf("the file has\n%s%v\nwant\n%s", b, err, other)
	}
	for _, f := range []func() error{
		func() error { _, err := UseContext(t.Context(), path, "c"); return err },
		func() error { _, err := DeleteContext(t.Context(), path, "c"); return err },
	} {
		if e, ok := errors.AsType[*Error](f()); !ok || !strings.Contains(e.Error(), `there is no context "c"`) || !strings.Contains(e.Hint(), "b, a") {
			t.Errorf("a context that is not there: %v", e)
		}
	}
	if _, _, err := SetContext(t.Context(), "", "a", Change{}); err == nil {
		t.Error("SetContext without a place succeeds")
	}
}

func TestModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // its files have no such modes
	}
	path := filepath.Join(t.TempDir(), "kshare", "config.yaml")
	if _, _, err := SetContext(t.Context(), path, "a", Change{Set: map[Key]string{SASLUser: "u"}}); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v, want %v", p, info.Mode().Perm(), err, want)
		}
	}
	secret := write(t, "config.yaml", "contexts: [{name: a, sasl_password: x}]")
	for _, c := range []struct {
		path string
		mode os.FileMode
		want bool
	}{{path, 0o644, false}, {secret, 0o600, false}, {secret, 0o640, true}, {secret, 0o604, true}} {
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		r, err := Resolve(Input{Getenv: environment(nil), Path: c.path})
		if err != nil || (len(r.Warnings) == 1) != c.want {
			t.Errorf("mode %v of %s: warnings %q, %v, want one: %v", c.mode, c.path, r.Warnings, err, c.want)
		}
	}
	// Written anew, it is nobody else's any more.
	if _, _, err := SetContext(t.Context(), secret, "b", Change{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v after a change", info.Mode().Perm(), err)
	}
}

func TestPath(t *testing.T) {
	dir := func() (string, error) { return "/home/a/.config", nil }
	noHome := func() (string, error) { return "", errors.New("neither $XDG_CONFIG_HOME nor $HOME are defined") }
	for _, c := range []struct {
		env  string
		dir  func() (string, error)
		want string
	}{
		{"/x.yaml", dir, "/x.yaml"},
		{"", dir, filepath.Join("/home/a/.config", "kshare", "config.yaml")},
		{"", noHome, ""},
		{"", nil, ""},
		{"/x.yaml", noHome, "/x.yaml"},
	} {
		if got := Path(environment(map[string]string{"KSHARE_CONFIG": c.env}), c.dir); got != c.want {
			t.Errorf("Path with KSHARE_CONFIG=%q is %q, want %q", c.env, got, c.want)
		}
	}
}

// The table is what help texts, the environment and files are made of.
func TestSettingsTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range Settings() {
		if seen[string(s.Key)] || seen[s.Env()] || s.Flag != "" && seen["--"+s.Flag] {
			t.Errorf("%s is there twice", s.Key)
		}
		seen[string(s.Key)], seen[s.Env()], seen["--"+s.Flag] = true, true, s.Flag != ""
		if s.About == "" || strings.HasSuffix(s.About, ".") {
			t.Errorf("%s: about %q", s.Key, s.About)
		}
		if s.Flag != "" && strings.ReplaceAll(s.Flag, "-", "_") != string(s.Key) {
			t.Errorf("%s has the flag --%s", s.Key, s.Flag)
		}
		if s.Kind == Secret && s.Flag != "" {
			t.Errorf("%s is a secret and has a flag, which others can see", s.Key)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(twoContexts))
	f.Add([]byte("contexts: [{name: a, sasl_password: " + canary + "}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Read(path)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("Read(%q): %T, want an *Error", b, err)
			}
			return
		}
		// What can be read can be changed, or stays as it was, and nothing is lost.
		_, _, err = SetContext(t.Context(), path, "fuzz", Change{Set: map[Key]string{TLS: "true"}})
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			t.Fatalf("SetContext of %q: %T %v, want an *Error", b, err, err)
		}
		again, err := Read(path)
		if err != nil || again.Current != c.Current || len(again.All) < len(c.All) {
			t.Fatalf("Read after a change of %q = %+v, %v", b, again, err)
		}
	})
}
