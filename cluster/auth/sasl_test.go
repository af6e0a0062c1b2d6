package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
)

// canary is a secret that must be nowhere.
const canary = "c4n4ry-s3cr3t"

// first is the first message of a mechanism.
func first(t *testing.T, m sasl.Mechanism) (string, error) {
	t.Helper()
	_, b, err := m.Authenticate(t.Context(), "b-1.c.kafka.eu-west-1.amazonaws.com:9098")
	return string(b), err
}

// The bytes that reach SASL are those of the password.
func TestPlainBytes(t *testing.T) {
	const password = "a\"b\\c;d=e f$g${h}#i!j\u00e4\u20ac'k\t"
	m, err := (&SASL{Name: MechanismPlain, User: "al ice", Password: password}).Mechanism()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := first(t, m); err != nil || got != "\x00al ice\x00"+password {
		t.Errorf("PLAIN sends %q, %v", got, err)
	}
}

func TestMechanismsAreChecked(t *testing.T) {
	for _, c := range []struct {
		s    SASL
		want string
	}{
		{SASL{Name: "PLAIN", Password: "x"}, "SASL PLAIN needs a user"},
		{SASL{Name: "SCRAM-SHA-256", User: "x"}, "SASL SCRAM-SHA-256 needs a password"},
		{SASL{Name: "OAUTHBEARER"}, "SASL OAUTHBEARER needs a token"},
		{SASL{Name: "OAUTHBEARER", OAuth: OAuth{TokenURL: "idp/token"}}, "no http or https URL"},
		{SASL{Name: "OAUTHBEARER", OAuth: OAuth{TokenURL: "https://idp/token"}}, "needs the ID and the secret of a client"},
		{SASL{Name: "OAUTHBEARER", OAuth: OAuth{TokenURL: "https://idp/token", ClientID: "a", ClientSecret: "b", TLS: &TLS{Trust: TrustStore{File: "/nope"}}}}, "/nope: open store"},
		{SASL{Name: "OAUTHBEARER", OAuth: OAuth{Token: "t", Extensions: map[string]string{"auth": "x"}}}, `extension "auth"`},
		{SASL{Name: "OAUTHBEARER", OAuth: OAuth{Token: "t", Extensions: map[string]string{"a-b": "x"}}}, `extension "a-b"`},
		{SASL{Name: "OAUTHBEARER", OAuth: OAuth{Token: "t", Extensions: map[string]string{"a": "\x01"}}}, `extension "a"`},
		{SASL{Name: "GSSAPI", Kerberos: Kerberos{Config: "/nope"}}, "/nope: read Kerberos configuration"},
		{SASL{Name: "plain"}, `"plain" is not supported: want one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, AWS_MSK_IAM, GSSAPI`},
	} {
		_, err := c.s.Mechanism()
		if e, ok := errors.AsType[*ConfigError](err); !ok || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.s.Name, err, c.want)
		}
	}
	conf := filepath.Join(t.TempDir(), "krb5.conf")
	if err := os.WriteFile(conf, []byte("[libdefaults]\n  default_realm = R\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user     string
		password Secret
		k        Kerberos
		want     string
	}{
		{"", "", Kerberos{}, "needs a principal"},
		{"a", "", Kerberos{}, "needs a keytab, a ticket cache or a password"},
		{"a", "", Kerberos{Keytab: "/nope"}, "/nope: read Kerberos keytab"},
		{"", "", Kerberos{TicketCache: "FILE:/nope"}, "/nope: read Kerberos ticket cache"},
		{"a@R", "p", Kerberos{}, ""},
	} {
		c.k.Config = conf
		_, err := (&SASL{Name: "GSSAPI", User: c.user, Password: c.password, Kerberos: c.k}).Mechanism()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("GSSAPI of %+v: %v, want %q", c, err, c.want)
		}
	}
}

// idp is a token endpoint.
type idp struct {
	requests []*http.Request
	forms    []string
	answer   func(w http.ResponseWriter)
}

func (p *idp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	p.requests, p.forms = append(p.requests, r), append(p.forms, r.PostForm.Encode())
	p.answer(w)
}

func (p *idp) tokens(life time.Duration) {
	p.answer = func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":%d}`, len(p.requests), int(life.Seconds()))
	}
}

// clock is a time that a test moves.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func TestTokenEndpoint(t *testing.T) {
	p := &idp{}
	p.tokens(time.Hour)
	server := httptest.NewServer(p)
	defer server.Close()
	c := &clock{time.Now()}
	s := &SASL{Name: MechanismOAuthBearer, Now: c.Now, OAuth: OAuth{
		TokenURL: server.URL + "/token", ClientID: "id+1", ClientSecret: "s+/%", Scope: "a b", Params: map[string]string{"audience": "kafka"},
		Extensions: map[string]string{"pool": "p", "cluster": "c"},
	}}
	m, err := s.Mechanism()
	if err != nil {
		t.Fatal(err)
	}
	got, err := first(t, m)
	if want := "n,,\x01auth=Bearer token-1\x01cluster=c\x01pool=p\x01\x01"; err != nil || got != want {
		t.Fatalf("it sends %q, %v, want %q", got, err, want)
	}
	if want := "audience=kafka&grant_type=client_credentials&scope=a+b"; p.forms[0] != want {
		t.Errorf("the endpoint gets %q, want %q", p.forms[0], want)
	}
	if user, pass, _ := p.requests[0].BasicAuth(); user != "id%2B1" || pass != "s%2B%2F%25" {
		t.Errorf("the endpoint gets %q and %q, want them URL-encoded (RFC 6749)", user, pass)
	}
	// Kept until a minute is left, and not longer.
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{58 * time.Minute, "token-1"}, {90 * time.Second, "token-2"}, {time.Minute, "token-2"}} {
		c.now = c.now.Add(step.after)
		if got, err = first(t, m); err != nil || !strings.Contains(got, step.want) {
			t.Errorf("%s later it sends %q, %v, want %s", step.after, got, err, step.want)
		}
	}
	// As Kafka's own client sends them.
	s.OAuth.RawBasic = true
	if m, err = s.Mechanism(); err != nil {
		t.Fatal(err)
	}
	if _, err = first(t, m); err != nil {
		t.Fatal(err)
	}
	if user, pass, _ := p.requests[len(p.requests)-1].BasicAuth(); user != "id+1" || pass != "s+/%" {
		t.Errorf("the endpoint gets %q and %q, want them as they are", user, pass)
	}
}

func TestTokenEndpointFails(t *testing.T) {
	p := &idp{}
	server := httptest.NewServer(p)
	defer server.Close()
	closed := httptest.NewServer(p)
	closed.Close()
	secure := httptest.NewTLSServer(p)
	defer secure.Close()
	stuck := make(chan struct{})
	defer close(stuck)
	for _, c := range []struct {
		name, url string
		answer    func(http.ResponseWriter)
		want      string
	}{
		{"refused", server.URL, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error":"invalid_client","error_description":"no client with %s"}`, canary)
		}, "the endpoint answers 401 Unauthorized: invalid_client: no client with ***"},
		{"HTML", server.URL, func(w http.ResponseWriter) { http.Error(w, "<html>"+canary, http.StatusBadGateway) }, "the endpoint answers 502 Bad Gateway"},
		{"no token", server.URL, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{}`)
		}, "the endpoint's answer has no access token"},
		{"not there", closed.URL, nil, "connection refused"},
		{"not trusted", secure.URL, nil, "certificate signed by unknown authority"},
		{"says nothing", server.URL, func(http.ResponseWriter) { <-stuck }, "no answer within 50ms"},
	} {
		p.answer = c.answer
		timeout := time.Minute
		if c.name == "says nothing" {
			timeout = 50 * time.Millisecond
		}
		m, err := (&SASL{Name: MechanismOAuthBearer, OAuth: OAuth{TokenURL: c.url, ClientID: "id", ClientSecret: canary, Timeout: timeout}}).Mechanism()
		if err != nil {
			t.Fatal(err)
		}
		_, err = first(t, m)
		e, ok := errors.AsType[*CredentialError](err)
		if !ok || !strings.Contains(e.Error(), c.want) || !strings.Contains(e.Error(), c.url) || e.Hint() == "" {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), canary) || strings.ContainsAny(err.Error(), "\n<") {
			t.Errorf("%s: %v, want one line without the secret", c.name, err)
		}
	}
}

// jwt is a token that says when it expires.
func jwt(expiry time.Time) Secret {
	claims, _ := json.Marshal(map[string]any{"exp": expiry.Unix()})
	return Secret("e30." + base64.RawURLEncoding.EncodeToString(claims) + ".sig")
}

// A file and a command are asked again when their token is soon to expire.
func TestTokensAreRenewed(t *testing.T) {
	c := &clock{time.Now()}
	file := filepath.Join(t.TempDir(), "token")
	put := func(s Secret) {
		t.Helper()
		if err := os.WriteFile(file, []byte(string(s)+"\r\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, o := range map[string]OAuth{"file": {TokenFile: file}, "command": {TokenCommand: []string{"cat", file}}} {
		m, err := (&SASL{Name: MechanismOAuthBearer, Now: c.Now, OAuth: o}).Mechanism()
		if err != nil {
			t.Fatal(err)
		}
		old, next := jwt(c.now.Add(time.Hour)), jwt(c.now.Add(2*time.Hour))
		put(old)
		for _, step := range []struct {
			after time.Duration
			want  Secret
		}{{0, old}, {30 * time.Minute, old}, {29*time.Minute + 30*time.Second, next}} {
			c.now = c.now.Add(step.after)
			got, err := first(t, m)
			if err != nil || !strings.Contains(got, string(step.want)) {
				t.Errorf("%s, %s later: %q, %v, want %q", name, step.after, got, err, string(step.want))
			}
			put(next)
		}
		// A token that has expired is not sent.
		c.now = c.now.Add(3 * time.Hour)
		if _, err := first(t, m); err == nil || !strings.Contains(err.Error(), "it expired at ") {
			t.Errorf("%s: a token of the past: %v", name, err)
		}
		put("opaque")
		if got, err := first(t, m); err != nil || !strings.Contains(got, "Bearer opaque\x01") {
			t.Errorf("%s: a token that says nothing: %q, %v", name, got, err)
		}
		put("")
		c.now = c.now.Add(2 * time.Minute)
		if _, err := first(t, m); err == nil {
			t.Errorf("%s: an empty token is sent", name)
		}
	}
}

func TestUnsecuredToken(t *testing.T) {
	now := time.Unix(1000, 0)
	m, err := (&SASL{Name: MechanismOAuthBearer, Now: func() time.Time { return now }, OAuth: OAuth{
		Unsecured: &UnsecuredToken{Claims: map[string]any{"sub": "alice", "scope": []string{"a"}}, Lifetime: time.Minute},
	}}).Mechanism()
	if err != nil {
		t.Fatal(err)
	}
	got, err := first(t, m)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(got, "n,,\x01auth=Bearer "), "\x01\x01"), ".")
	var decoded []string
	for _, p := range parts {
		b, err := base64.RawURLEncoding.DecodeString(p)
		if err != nil {
			t.Fatal(err)
		}
		decoded = append(decoded, string(b))
	}
	if want := `{"alg":"none"} {"exp":1060,"iat":1000,"scope":["a"],"sub":"alice"} `; strings.Join(decoded, " ") != want {
		t.Errorf("the token says %q, want %q", decoded, want)
	}
}

// awsCommand puts a program named aws into PATH.
func awsCommand(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "aws"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestAWS(t *testing.T) {
	message := func(a AWS, now func() time.Time) (map[string]string, error) {
		t.Helper()
		m, err := (&SASL{Name: MechanismAWSMSKIAM, AWS: a, Now: now}).Mechanism()
		if err != nil {
			t.Fatal(err)
		}
		got, err := first(t, m)
		if err != nil {
			return nil, err
		}
		var out map[string]string
		if err := json.Unmarshal([]byte(got), &out); err != nil {
			t.Fatalf("%v: %s", err, got)
		}
		return out, nil
	}
	env := func(pairs ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	// With keys in the environment nothing else is asked.
	awsCommand(t, "echo called >&2; exit 9")
	keys := []string{"AWS_ACCESS_KEY_ID", "AKIAENV", "AWS_SECRET_ACCESS_KEY", "secret", "AWS_SESSION_TOKEN", "session"}
	got, err := message(AWS{Getenv: env(keys...), UserAgent: "kshare-1"}, nil)
	if err != nil || !strings.HasPrefix(got["x-amz-credential"], "AKIAENV/") || !strings.Contains(got["x-amz-credential"], "/eu-west-1/kafka-cluster/") ||
		got["x-amz-security-token"] != "session" || got["user-agent"] != "kshare-1" {
		t.Errorf("of the environment: %v, %v", got, err)
	}
	if _, err = message(AWS{Getenv: env()}, nil); err == nil || !strings.Contains(err.Error(), `credentials of AWS_MSK_IAM from command "aws": exit status 9`) {
		t.Errorf("a command that fails: %v", err)
	}
	// A profile that is named wins over keys in the environment; so does its
	// expiry over what was kept.
	count := filepath.Join(t.TempDir(), "count")
	expiry := time.Now().Add(time.Hour)
	awsCommand(t, fmt.Sprintf(`echo x >> %s
echo '{"Version": 1, "AccessKeyId": "'"$*"'", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": "%s"}'`, count, expiry.UTC().Format(time.RFC3339)))
	c := &clock{time.Now()}
	m, err := (&SASL{Name: MechanismAWSMSKIAM, AWS: AWS{Profile: "prod", Getenv: env(keys...)}, Now: c.Now}).Mechanism()
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, 10 * time.Minute, 50 * time.Minute} {
		c.now = c.now.Add(after)
		if out, err := first(t, m); err != nil || !strings.Contains(out, "configure export-credentials --format process --profile prod/") {
			t.Errorf("profile: %s, %v", out, err)
		}
	}
	if b, _ := os.ReadFile(count); len(b) != len("x\nx\n") {
		t.Errorf("the command has run %d times, want twice: at first, and when an hour has almost passed", len(b)/2)
	}
	got, err = message(AWS{Getenv: env("AWS_PROFILE", "dev")}, nil)
	if err != nil || !strings.Contains(got["x-amz-credential"], "--profile dev/") {
		t.Errorf("profile of the environment: %v, %v", got, err)
	}
	awsCommand(t, `echo '{"Version": 1, "AccessKeyId": "`+canary+`"}'`)
	if _, err = message(AWS{Getenv: env()}, nil); err == nil || !strings.Contains(err.Error(), "its output has none") || strings.Contains(err.Error(), canary) {
		t.Errorf("an output without keys: %v", err)
	}
}

func TestCommandSecret(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"printf", "a b\\n"}, "a b"},
		{[]string{"printf", "a\\r\\n"}, "a"},
		{[]string{"printf", "a\\n\\n"}, "a\n"},
		{[]string{"printf", "a"}, "a"},
		{[]string{"echo", "$HOME; `x` | y"}, "$HOME; `x` | y"}, // no shell
		{[]string{"cat"}, ""},                                  // stdin is empty
	} {
		got, err := CommandSecret(t.Context(), c.argv)
		if c.want == "" && err == nil || c.want != "" && (err != nil || string(got) != c.want) {
			t.Errorf("CommandSecret(%q) = %q, %v, want %q", c.argv, string(got), err, c.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupted"))
	if _, err := CommandSecret(ctx, []string{"sleep", "60"}); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := CommandSecret(t.Context(), []string{"head", "-c", "2000000", "/dev/zero"}); err == nil || !strings.Contains(err.Error(), "more than a secret can be") {
		t.Errorf("a large output: %v", err)
	}
}

func TestReadSecretFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	for in, want := range map[string]string{"a": "a", "a\n": "a", "a\r\n": "a", "a\n\n": "a\n", " a ": " a ", "": "", "\n": ""} {
		if err := os.WriteFile(file, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadSecretFile(file); err != nil || string(got) != want {
			t.Errorf("ReadSecretFile of %q = %q, %v, want %q", in, string(got), err, want)
		}
	}
	if err := os.Truncate(file, 2<<20); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{file, file + "-none"} {
		if _, err := ReadSecretFile(f); err == nil || strings.Count(err.Error(), f) != 1 {
			t.Errorf("ReadSecretFile(%s) = %v, want an error with the name once", f, err)
		}
	}
}

// A secret is not printed, however it is tried.
func TestSecretIsNotPrinted(t *testing.T) {
	s := Secret(canary)
	all := struct {
		S *Secret
		T SASL
	}{&s, SASL{Password: s, OAuth: OAuth{Token: s, ClientSecret: s}}}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%10.5s"} {
		fmt.Fprintf(&out, verb+verb, s, all)
	}
	b, err := json.Marshal(map[string]any{"a": s, "b": all.T.OAuth.Token})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(b)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "s", s, "all", all.T)
	fmt.Fprint(&out, errors.New(s.String()), fmt.Errorf("%w %v", errors.ErrUnsupported, s))
	hex := fmt.Sprintf("%x", canary)
	if text := out.String(); strings.Contains(text, canary) || strings.Contains(strings.ToLower(text), hex) {
		t.Errorf("it is printed: %s", text)
	}
}

// A command gets the environment, without kshare's own settings.
func TestCommandEnvironment(t *testing.T) {
	t.Setenv("KSHARE_SASL_PASSWORD", canary)
	t.Setenv("OTHER", "there")
	got, err := CommandSecret(t.Context(), []string{"env"})
	if err != nil || !strings.Contains(string(got), "OTHER=there") || strings.Contains(string(got), "KSHARE_") {
		t.Errorf("the command fails with %v, or lacks OTHER, or has settings of kshare", err)
	}
}
