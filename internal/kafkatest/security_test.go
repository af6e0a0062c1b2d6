package kafkatest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestSecurity(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{Security: kafkatest.SASLSSL, Authorizer: true})
	mechanisms := []kafkatest.Mechanism{kafkatest.Plain, kafkatest.ScramSHA256, kafkatest.ScramSHA512}
	for _, m := range mechanisms {
		t.Run("login by "+string(m), func(t *testing.T) {
			cl := k.ClientAs(t, kafkatest.Alice, m)
			if err := cl.Ping(testContext(t)); err != nil {
				t.Errorf("login: %v", err)
			}
			wrong := k.ClientAs(t, kafkatest.User{Name: "alice", Password: "wrong"}, m)
			if err := wrong.Ping(testContext(t)); !errors.Is(err, kerr.SaslAuthenticationFailed) {
				t.Errorf("login with a wrong password: %v", err)
			}
		})
	}
	t.Run("login by an unsecured token", func(t *testing.T) {
		if err := k.ClientAs(t, kafkatest.Alice, kafkatest.OAuthBearer).Ping(testContext(t)); err != nil {
			t.Error(err)
		}
	})
	t.Run("no trust without the CA", func(t *testing.T) {
		cl, err := kgo.NewClient(kgo.SeedBrokers(k.Bootstrap()...), kgo.DialTLS(), kgo.SASL(kafkatest.Alice.Mechanism(kafkatest.Plain)))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.Ping(testContext(t)); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
			t.Errorf("Ping: %v", err)
		}
	})
	t.Run("the authorizer denies what no ACL allows", func(t *testing.T) {
		ctx := testContext(t)
		alice := kadm.NewClient(k.ClientAs(t, kafkatest.Alice, kafkatest.ScramSHA256))
		create := func() error {
			r, err := alice.CreateTopic(ctx, 1, 1, nil, "hers")
			return errors.Join(err, r.Err)
		}
		if err := create(); !errors.Is(err, kerr.TopicAuthorizationFailed) {
			t.Errorf("CreateTopic: %v", err)
		}
		// An ACL by Kafka's own tool, which logs in as the super user.
		if _, err := k.Tool(ctx, kafkatest.ACLTool, "--add", "--allow-principal", "User:alice", "--operation", "Create", "--topic", "hers"); err != nil {
			t.Fatal(err)
		}
		for err := create(); err != nil; err = create() {
			if ctx.Err() != nil {
				t.Fatalf("CreateTopic with an ACL: %v", err)
			}
		}
	})
	t.Run("share state is for brokers", func(t *testing.T) {
		cl := k.ClientAs(t, kafkatest.Alice, kafkatest.Plain)
		for _, req := range []kmsg.Request{
			readState("g", [16]byte{1}, 0, 0), readSummary("g", [16]byte{1}, 0),
		} {
			var code int16
			switch resp := request[kmsg.Response](t, cl.Broker(1), req).(type) {
			case *kmsg.ReadShareGroupStateResponse:
				code = resp.Topics[0].Partitions[0].ErrorCode
			case *kmsg.ReadShareGroupStateSummaryResponse:
				code = resp.Topics[0].Partitions[0].ErrorCode
			}
			if err := kerr.ErrorForCode(code); !errors.Is(err, kerr.ClusterAuthorizationFailed) {
				t.Errorf("%s without CLUSTER_ACTION: %v", kmsg.NameForKey(req.Key()), err)
			}
		}
	})
	t.Run("a client.properties for the tools", func(t *testing.T) {
		for _, m := range mechanisms {
			file := k.CommandConfig(t, kafkatest.Alice, m)
			_, err := k.Java(testContext(t), kafkatest.FeatureTool,
				"--bootstrap-server", strings.Join(k.Bootstrap(), ","), "--command-config", file, "describe")
			if err != nil {
				t.Errorf("%s: %v", m, err)
			}
		}
	})
}

func TestToolError(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{})
	_, err := k.Tool(testContext(t), kafkatest.FeatureTool, "upgrade", "--feature", "share.version=99")
	e, ok := errors.AsType[*kafkatest.ToolError](err)
	if !ok || e.Code != 1 || !strings.Contains(e.Stdout+e.Stderr, "only supports versions 0-2") {
		t.Errorf("%T %v, want the controller's text and code 1", err, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Tool(ctx, kafkatest.FeatureTool, "describe"); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}
