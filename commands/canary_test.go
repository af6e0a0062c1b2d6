package commands_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/sandbox"
	"github.com/twmb/franz-go/pkg/kfake"
)

// secretCase is a process that has the canary among its settings.
type secretCase struct {
	name string
	env  map[string]string
	tty  bool // the canary is typed
}

// secretCases are all ways to give kshare a secret, right ones and wrong ones.
func secretCases(t *testing.T, idp string) []secretCase {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := func(more ...string) map[string]string {
		env := map[string]string{"KSHARE_SASL_MECHANISM": "PLAIN", "KSHARE_SASL_USER": "u"}
		for i := 0; i < len(more); i += 2 {
			env[more[i]] = more[i+1]
		}
		return env
	}
	oauth := func(more ...string) map[string]string {
		env := plain(more...)
		env["KSHARE_SASL_MECHANISM"] = "OAUTHBEARER"
		return env
	}
	properties := func(name, text string) map[string]string {
		return map[string]string{"KSHARE_COMMAND_CONFIG": file(name, text)}
	}
	context := func(name, settings string) map[string]string {
		return map[string]string{"KSHARE_CONFIG": file(name, "current_context: a\ncontexts:\n  - name: a\n    "+settings+"\n")}
	}
	sasl := "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
	jaas := `sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="` + canary + `"`
	cases := []secretCase{
		{"environment", plain("KSHARE_SASL_PASSWORD", canary), false},
		{"environment, SCRAM", func() map[string]string {
			env := plain("KSHARE_SASL_PASSWORD", canary)
			env["KSHARE_SASL_MECHANISM"] = "SCRAM-SHA-256"
			return env
		}(), false},
		{"file", plain("KSHARE_SASL_PASSWORD_FILE", file("password", canary+"\n")), false},
		{"command", plain("KSHARE_SASL_PASSWORD_COMMAND", "echo "+canary), false},
		{"command that fails", plain("KSHARE_SASL_PASSWORD_COMMAND", `sh -c "echo `+canary+`; echo `+canary+` >&2; exit 1"`), false},
		{"command that is none", plain("KSHARE_SASL_PASSWORD_COMMAND", "'"+canary), false},
		{"typed", plain(), true},
		{"context", context("a.yaml", "sasl_mechanism: PLAIN\n    sasl_user: u\n    sasl_password: "+canary), false},
		{"context, wrong type", context("b.yaml", "sasl_password: ["+canary+"]"), false},
		{"context, wrong key", context("c.yaml", "password: "+canary), false},
		{"context, an anchor", context("d.yaml", "sasl_password: *"+canary), false},
		{"context, wrong bool", context("e.yaml", "tls: "+canary), false},
		{"properties", properties("a.properties", sasl+jaas+";\n"), false},
		{"properties, plaintext", properties("b.properties", jaas+";\n"), false},
		{"properties, unfinished JAAS", properties("c.properties", sasl+jaas+"\n"), false},
		{"properties, JAAS in pieces", properties("d.properties", sasl+"sasl.jaas.config=M required password=a"+canary+"\"b;\n"), false},
		{"properties, wrong escape", properties("e.properties", sasl+"sasl.jaas.config="+canary+"\\u00zz\n"), false},
		{"properties, no key", properties("f.properties", "="+canary+"\n"), false},
		{"properties, passwords of stores", properties("g.properties", "security.protocol=SSL\nssl.truststore.location="+file("trust.p12", "0\x80")+"\nssl.truststore.password="+canary+
			"\nssl.keystore.location="+file("key.jks", "\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x00"+strings.Repeat("x", 20))+"\nssl.keystore.password="+canary+"\nssl.key.password="+canary+"\n"), false},
		{"properties, key that is none", properties("h.properties", "security.protocol=SSL\nssl.keystore.certificate.chain="+canary+"\nssl.keystore.key="+canary+"\n"), false},
		{"key password", map[string]string{"KSHARE_TLS_CERT": file("cert.pem", "x"), "KSHARE_TLS_KEY": file("key.pem", canary), "KSHARE_TLS_KEY_PASSWORD": canary}, false},
		{"token", oauth("KSHARE_SASL_TOKEN", canary), false},
		{"token file", oauth("KSHARE_SASL_TOKEN_FILE", file("token", canary)), false},
		{"token command", oauth("KSHARE_SASL_TOKEN_COMMAND", "echo "+canary), false},
		{"token command that fails", oauth("KSHARE_SASL_TOKEN_COMMAND", "false "+canary), false},
		{"client secret", oauth("KSHARE_SASL_OAUTH_TOKEN_URL", idp, "KSHARE_SASL_OAUTH_CLIENT_ID", "id", "KSHARE_SASL_OAUTH_CLIENT_SECRET", canary), false},
		{"client secret, no endpoint", oauth("KSHARE_SASL_OAUTH_TOKEN_URL", "http://127.0.0.1:1", "KSHARE_SASL_OAUTH_CLIENT_ID", "id", "KSHARE_SASL_OAUTH_CLIENT_SECRET", canary), false},
		{"secret in a URL", oauth("KSHARE_SASL_OAUTH_TOKEN_URL", "http://u:"+canary+"@127.0.0.1:1", "KSHARE_SASL_OAUTH_CLIENT_ID", "id", "KSHARE_SASL_OAUTH_CLIENT_SECRET", canary), false},
		{"AWS", map[string]string{"KSHARE_SASL_MECHANISM": "AWS_MSK_IAM", "AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": canary, "AWS_SESSION_TOKEN": canary}, false},
		{"two passwords", plain("KSHARE_SASL_PASSWORD", canary, "KSHARE_SASL_PASSWORD_FILE", file("other", canary)), false},
		{"no such mechanism", func() map[string]string {
			env := plain("KSHARE_SASL_PASSWORD", canary)
			env["KSHARE_SASL_MECHANISM"] = "NTLM"
			return env
		}(), false},
	}
	return cases
}

// answers is the address of something that gives one answer and hangs up.
func answers(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1024))
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

// No secret is ever told: whatever is wrong with it, whoever is connected to, by
// whatever command and in whatever format.
func TestSecretsAreNotTold(t *testing.T) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, secret, _ := r.BasicAuth()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":"invalid_client","error_description":"%s is wrong"}`, secret)
	}))
	defer echo.Close()
	start := func(opts ...kfake.Opt) string {
		t.Helper()
		c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c.ListenAddrs()[0]
	}
	servers := map[string]string{
		"nobody":    "127.0.0.1:1",
		"no SASL":   start(),
		"with SASL": start(kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "right"), kfake.Superuser("SCRAM-SHA-256", "u", "right")),
		"HTTP":      answers(t, "HTTP/1.1 400 Bad Request\r\n\r\n"),
	}
	offline := []string{
		"config view", "config view --origin", "config get-contexts", "config check", "config use-context a",
		"config set-context b --set sasl_password=" + canary, "config set-context b --set sasl_password_command='" + canary,
	}
	online := []string{"feature describe", "doctor", "ctp --from a --to b"}
	for _, c := range secretCases(t, echo.URL) {
		try := func(server, format, command string) {
			t.Helper()
			env := map[string]string{"KSHARE_BOOTSTRAP_SERVER": server}
			for k, v := range c.env {
				env[k] = v
			}
			args := append(strings.Fields(command), "-o", format, "--timeout", "10s")
			res := cmdtest.Run(t, cmdtest.Setup{Env: env, TTY: c.tty, Change: func(d *commands.Deps) {
				d.ReadPassword = func() ([]byte, error) { return []byte(canary), nil }
			}}, args...)
			notTold(t, c.name, res)
			if res.Code == 0 && strings.HasPrefix(command, "config set-context") {
				t.Errorf("%s: kshare %s takes a secret from the command line:\n%s%s", c.name, command, res.Stdout, res.Stderr)
			}
		}
		for _, format := range []string{"table", "wide", "json", "yaml", "csv"} {
			for _, command := range offline {
				try("127.0.0.1:1", format, command)
			}
		}
		for _, server := range servers {
			for _, command := range online {
				for _, format := range []string{"table", "json"} {
					try(server, format, command)
				}
			}
		}
	}
}

// No command tells a secret that it was given for the connection, whether somebody
// lets it in, or nobody is there.
func TestSecretsAreNotToldByAnyCommand(t *testing.T) {
	t.Parallel()
	servers := []string{"127.0.0.1:1", startSandbox(t, sandbox.WithUsers(sandbox.User{Name: "u", Password: "right"}))}
	given := []string{"environment", "file", "command that fails", "context", "properties", "token"}
	for _, secret := range secretCases(t, "http://127.0.0.1:1") {
		if !slices.Contains(given, secret.name) {
			continue
		}
		for _, call := range cmdtest.AllCalls(t) {
			if slices.Contains([]string{"demo", "sandbox run"}, call.Command) && secret.name != given[0] {
				continue // they look at no setting, and take their time
			}
			for _, server := range servers {
				if call.Peer != cmdtest.Kafka && server != servers[0] || call.Peer == cmdtest.Kafka && server == servers[0] && secret.name != given[0] {
					continue
				}
				c := cell{call: call, place: elsewhere(server), env: secret.env, args: inJSON}
				notTold(t, secret.name, c.run(t))
			}
		}
	}
}

// A password in a URL, in an address where there should be none, or in a command
// line, is not told either.
func TestSecretsInArgumentsAreNotTold(t *testing.T) {
	t.Parallel()
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		http.Error(w, password+" is wrong", http.StatusUnauthorized)
	}))
	defer echo.Close()
	peer := startSandbox(t)
	url := "http://u:" + canary + "@"
	for _, args := range [][]string{
		{"inspect", "metrics", "--endpoint", url + echo.Listener.Addr().String()},
		{"inspect", "metrics", "--jolokia", url + echo.Listener.Addr().String()},
		{"inspect", "metrics", "--endpoint", url + "127.0.0.1:1"},
		{"inspect", "metrics", "--endpoint", url + "[::1"},
		{"inspect", "metrics", "--endpoint", url + "127.0.0.1:1", "--endpoint", url + "127.0.0.1:1"},
		{"inspect", "metrics", "--endpoint", "u:" + canary + "@127.0.0.1:1"},
		{"drain", "--endpoint", url + "127.0.0.1:1", "--interval", "100ms", "--quiet-period", "100ms", "-b", peer},
		{"drain", "--jolokia", url + "[::1", "-b", peer},
		{"sandbox", "fault", "list", "--control", url + "127.0.0.1:1"},
		{"sandbox", "fault", "list", "--control", "u:" + canary + "@127.0.0.1:1"},
		{"feature", "describe", "-b", url + "127.0.0.1:9092"},
		{"feature", "describe", "-b", "u:" + canary + "@127.0.0.1:9092"},
		{"feature", "describe", "-b", "127.0.0.1:1", "--sasl-mechanism", "PLAIN", "--sasl-user", "u", "--sasl-password-command", "false " + canary},
		{"feature", "describe", "-b", "127.0.0.1:1", "--sasl-mechanism", "PLAIN", "--sasl-user", "u", "--sasl-password-command", "'" + canary},
		{"config", "view", "--sasl-password-command", "false " + canary},
		{"ctp", "--from", "a", "--to", "b", "-b", peer, "--exec", "'" + canary},
		{"ctp", "--from", "a", "--to", "b", "-b", peer, "--exec", "/nowhere/program " + canary},
	} {
		for _, format := range []string{"table", "json", "yaml"} {
			notTold(t, "argument", cmdtest.Run(t, cmdtest.Setup{Change: realTime}, append(args, "-o", format)...))
		}
	}
}

// notTold fails if a command has told the canary, in whatever form.
func notTold(t *testing.T, name string, res cmdtest.Result) {
	t.Helper()
	all := res.Stdout + res.Stderr
	for how, form := range map[string]string{
		"as it is": canary, "in hex": hex.EncodeToString([]byte(canary)),
		"in base64": base64.RawStdEncoding.EncodeToString([]byte(canary)), "in part": canary[:len(canary)-3],
	} {
		if strings.Contains(all, form) {
			t.Errorf("%s: kshare %s tells the secret %s:\n%s", name, strings.Join(res.Args[:2], " "), how, all)
		}
	}
}
