package sandbox

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func TestAuthorizedBy(t *testing.T) {
	const (
		topic, group = kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup
		literal      = kmsg.ACLResourcePatternTypeLiteral
		prefixed     = kmsg.ACLResourcePatternTypePrefixed
		read, write  = kmsg.ACLOperationRead, kmsg.ACLOperationWrite
		describe     = kmsg.ACLOperationDescribe
		alter, del   = kmsg.ACLOperationAlter, kmsg.ACLOperationDelete
	)
	allow := func(name string, pattern kmsg.ACLResourcePatternType, op kmsg.ACLOperation) ACL {
		return ACL{Principal: "User:a", Resource: topic, Name: name, Pattern: pattern, Operation: op}
	}
	deny := func(l ACL) ACL { l.Deny = true; return l }
	to := func(principal string, l ACL) ACL { l.Principal = principal; return l }
	from := func(host string, l ACL) ACL { l.Host = host; return l }
	tests := []struct {
		name string
		acls []ACL
		op   kmsg.ACLOperation
		want bool
	}{
		{"no list", nil, read, false},
		{"literal", []ACL{allow("orders", literal, read)}, read, true},
		{"another name", []ACL{allow("order", literal, read)}, read, false},
		{"another operation", []ACL{allow("orders", literal, write)}, read, false},
		{"another resource", []ACL{{Principal: "User:a", Resource: group, Name: "orders", Pattern: literal, Operation: read}}, read, false},
		{"another principal", []ACL{to("User:b", allow("orders", literal, read))}, read, false},
		{"every principal", []ACL{to("User:*", allow("orders", literal, read))}, read, true},
		{"prefix", []ACL{allow("ord", prefixed, read)}, read, true},
		{"prefix of nothing", []ACL{allow("x", prefixed, read)}, read, false},
		{"prefix is not a wildcard", []ACL{allow("*", prefixed, read)}, read, false},
		{"every name", []ACL{allow("*", literal, read)}, read, true},
		{"host", []ACL{from("10.0.0.1", allow("orders", literal, read))}, read, true},
		{"another host", []ACL{from("10.0.0.2", allow("orders", literal, read))}, read, false},
		{"every host", []ACL{from("*", allow("orders", literal, read))}, read, true},
		{"all operations", []ACL{allow("orders", literal, kmsg.ACLOperationAll)}, del, true},
		{"read implies describe", []ACL{allow("orders", literal, read)}, describe, true},
		{"write implies describe", []ACL{allow("orders", literal, write)}, describe, true},
		{"delete implies describe", []ACL{allow("orders", literal, del)}, describe, true},
		{"alter implies describe", []ACL{allow("orders", literal, alter)}, describe, true},
		{"describe implies nothing", []ACL{allow("orders", literal, describe)}, read, false},
		{"alter configs implies describe configs", []ACL{allow("orders", literal, kmsg.ACLOperationAlterConfigs)}, kmsg.ACLOperationDescribeConfigs, true},
		{"alter configs implies no describe", []ACL{allow("orders", literal, kmsg.ACLOperationAlterConfigs)}, describe, false},
		{"deny wins", []ACL{allow("orders", literal, read), deny(allow("ord", prefixed, read))}, read, false},
		{"deny wins, first", []ACL{deny(allow("*", literal, kmsg.ACLOperationAll)), allow("orders", literal, read)}, read, false},
		{"denied read does not deny describe", []ACL{allow("orders", literal, describe), deny(allow("orders", literal, read))}, describe, true},
		{"deny of another operation", []ACL{allow("orders", literal, read), deny(allow("orders", literal, write))}, read, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := authorizedBy(tt.acls, "User:a", "10.0.0.1", tt.op, topic, "orders"); got != tt.want {
				t.Errorf("authorised: %v, want %v", got, tt.want)
			}
		})
	}
}

// What cannot be decided is denied, and asked again.
func TestAuthorizerWithoutLists(t *testing.T) {
	failing := true
	a := &authorizer{enabled: true, super: map[string]bool{"User:root": true}, load: func(context.Context) ([]ACL, error) {
		if failing {
			return nil, errors.New("no")
		}
		return []ACL{{Principal: "User:*", Resource: kmsg.ACLResourceTypeTopic, Name: "*", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationAll}}, nil
	}}
	ask := func(principal string) bool {
		return a.authorized(principal, "h", kmsg.ACLOperationRead, kmsg.ACLResourceTypeTopic, "t")
	}
	if ask("User:a") || !ask("User:root") {
		t.Error("without lists only a super user may pass")
	}
	failing = false
	if !ask("User:a") {
		t.Error("a list that could not be read once was not asked for again")
	}
}

// saslUsers are the users of the tests, with what kgo needs to be them.
var saslUsers = []struct {
	user User
	auth sasl.Mechanism
}{
	{User{Name: "alice", Password: "a-secret", Super: true}, plain.Auth{User: "alice", Pass: "a-secret"}.AsMechanism()},
	{User{Name: "bob", Password: "b-secret", Mechanism: saslScram256}, scram.Auth{User: "bob", Pass: "b-secret"}.AsSha256Mechanism()},
	{User{Name: "c,=l", Password: "c-secret", Mechanism: saslScram512}, scram.Auth{User: "c,=l", Pass: "c-secret"}.AsSha512Mechanism()},
}

func withSASLUsers() Option {
	users := make([]User, 0, len(saslUsers))
	for _, u := range saslUsers {
		users = append(users, u.user)
	}
	return WithUsers(users...)
}

// The principal that the share plane is told is the one that authenticated.
func TestPrincipalOfAConnection(t *testing.T) {
	p := &callerPlane{callers: make(chan caller, 10)}
	s := startSandbox(t, withSASLUsers(), WithTopics(Topic{Name: "t"}), func(c *config) {
		c.wrapPlane = func(inner sharePlane) sharePlane {
			p.sharePlane = inner
			return p
		}
	})
	for _, u := range saslUsers {
		cl := newTestClient(t, s, kgo.SASL(u.auth), kgo.ClientID("cid"))
		req := kmsg.NewPtrShareGroupDescribeRequest()
		req.GroupIDs = []string{"g"}
		if _, err := req.RequestWith(testContext(t), cl); err != nil {
			t.Fatalf("%s: %v", u.user.Name, err)
		}
		c := <-p.callers
		if c.principal != "User:"+u.user.Name || c.host != "127.0.0.1" || c.clientID != "cid" {
			t.Errorf("caller %+v, want User:%s", c, u.user.Name)
		}
	}
}

// callerPlane notes who calls.
type callerPlane struct {
	sharePlane
	callers chan caller
}

func (p *callerPlane) handle(ctx context.Context, c caller, req kmsg.Request) (kmsg.Response, error) {
	p.callers <- c
	return p.sharePlane.handle(ctx, c, req)
}

func TestAuthenticationFailures(t *testing.T) {
	s := startSandbox(t, withSASLUsers())
	for name, auth := range map[string]sasl.Mechanism{
		"PLAIN, wrong password":                plain.Auth{User: "alice", Pass: "x"}.AsMechanism(),
		"PLAIN, unknown user without password": rawPlain("\x00nobody\x00"),
		"PLAIN, no user":                       rawPlain("\x00\x00"),
		"PLAIN, not that at all":               rawPlain("hello"),
		"PLAIN, user of another mechanism":     plain.Auth{User: "bob", Pass: "b-secret"}.AsMechanism(),
		"PLAIN, the sandbox's own user":        plain.Auth{User: internalUser, Pass: "x"}.AsMechanism(),
		"SCRAM, wrong password":                scram.Auth{User: "bob", Pass: "x"}.AsSha256Mechanism(),
		"SCRAM, unknown user":                  scram.Auth{User: "nobody", Pass: "x"}.AsSha512Mechanism(),
	} {
		t.Run(name, func(t *testing.T) {
			cl := newTestClient(t, s, kgo.SASL(auth), kgo.RetryTimeout(0), kgo.RequestRetries(0))
			if err := cl.Ping(testContext(t)); !errors.Is(err, kerr.SaslAuthenticationFailed) {
				t.Errorf("ping: %v, want %v", err, kerr.SaslAuthenticationFailed)
			}
		})
	}
	t.Run("not at all", func(t *testing.T) {
		c := dialRaw(t, s, 0)
		if err := c.sendRaw(c.format.AppendRequest(nil, kmsg.NewPtrMetadataRequest(), 1)[4:]); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, c)
	})
	t.Run("share plane before authentication", func(t *testing.T) {
		c := dialRaw(t, s, 0)
		req := kmsg.NewPtrShareGroupDescribeRequest()
		req.Version = 1
		if err := c.sendRaw(c.format.AppendRequest(nil, req, 1)[4:]); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, c)
	})
	t.Run("large frame before authentication", func(t *testing.T) {
		c := dialRaw(t, s, 0)
		if _, err := c.Write([]byte{0, 0x10, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, c)
	})
}

// rawPlain sends what PLAIN would not.
type rawPlain string

func (rawPlain) Name() string { return saslPlain }

func (p rawPlain) Authenticate(context.Context, string) (sasl.Session, []byte, error) {
	return p, []byte(p), nil
}

func (rawPlain) Challenge([]byte) (bool, []byte, error) { return true, nil, nil }

func TestSASLWithoutUsers(t *testing.T) {
	s := startSandbox(t)
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.Version, req.Mechanism = 1, saslPlain
	if resp := askGateway[*kmsg.SASLHandshakeResponse](t, dialRaw(t, s, 0), req); resp.ErrorCode != kerr.IllegalSaslState.Code {
		t.Errorf("code %d, want %d", resp.ErrorCode, kerr.IllegalSaslState.Code)
	}
}

// ACLs that clients change take effect at once, in the gateway and in kfake.
func TestACLsThroughGateway(t *testing.T) {
	s := startSandbox(t, withSASLUsers(), WithTopics(Topic{Name: "t"}), WithACLs(
		ACL{Principal: "User:bob", Resource: kmsg.ACLResourceTypeCluster, Name: clusterResource, Operation: kmsg.ACLOperationDescribe},
	))
	ctx := testContext(t)
	admin := kadm.NewClient(newTestClient(t, s, kgo.SASL(saslUsers[0].auth)))
	bob := newTestClient(t, s, kgo.SASL(saslUsers[1].auth))
	update := func() int16 {
		req := kmsg.NewPtrUpdateFeaturesRequest()
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel, u.UpgradeType = "share.version", 2, 1
		req.FeatureUpdates = append(req.FeatureUpdates, u)
		resp, err := req.RequestWith(ctx, bob)
		if err != nil {
			t.Fatal(err)
		}
		return resp.ErrorCode
	}
	cluster := func(op kadm.ACLOperation) *kadm.ACLBuilder {
		return kadm.NewACLs().Clusters().Allow("User:bob").AllowHosts().Operations(op).ResourcePatternType(kadm.ACLPatternLiteral)
	}
	if code := update(); code != kerr.ClusterAuthorizationFailed.Code {
		t.Errorf("without ALTER: code %d, want %d", code, kerr.ClusterAuthorizationFailed.Code)
	}
	if _, err := admin.CreateACLs(ctx, cluster(kadm.OpAlter)); err != nil {
		t.Fatal(err)
	}
	if code := update(); code != 0 {
		t.Errorf("with ALTER: code %d", code)
	}
	if _, err := admin.DeleteACLs(ctx, cluster(kadm.OpAlter)); err != nil {
		t.Fatal(err)
	}
	if code := update(); code != kerr.ClusterAuthorizationFailed.Code {
		t.Errorf("without ALTER again: code %d, want %d", code, kerr.ClusterAuthorizationFailed.Code)
	}
	// kfake knows the client behind the gateway.
	if err := bob.ProduceSync(ctx, &kgo.Record{Topic: "t"}).FirstErr(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("produce: %v, want %v", err, kerr.TopicAuthorizationFailed)
	}
}

func TestScramUser(t *testing.T) {
	for msg, want := range map[string]string{
		"n,,n=user,r=nonce":          "user",
		"n,a=user,n=user,r=nonce":    "user",
		"n,,m=x,n=user,r=nonce":      "user",
		"n,,n=a=2Cb=3Dc,r=nonce":     "a,b=c",
		"c=biws,r=nonce,p=proof":     "",
		"n=user":                     "",
		"":                           "",
		"c=biws,n=no,r=nonce,p=prof": "",
	} {
		if got, _ := scramUser([]byte(msg)); got != want {
			t.Errorf("scramUser(%q) = %q, want %q", msg, got, want)
		}
	}
}

func TestUserValidation(t *testing.T) {
	for i, u := range []User{
		{Name: "a"},
		{Password: "p"},
		{Name: internalUser, Password: "p"},
		{Name: "a", Password: "p", Mechanism: "GSSAPI"},
		{Name: "a\x00", Password: "p"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if s, err := Start(t.Context(), WithUsers(u)); err == nil {
				_ = s.Close()
				t.Errorf("user %+v was accepted", u)
			}
		})
	}
	if s, err := Start(t.Context(), WithACLs()); err == nil {
		_ = s.Close()
		t.Error("ACLs without users were accepted")
	}
}
