package feature_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// login connects to a sandbox as a user.
func login(t *testing.T, sb *sandbox.Sandbox, user string) *cluster.Client {
	t.Helper()
	cl, err := cluster.Connect(t.Context(), cluster.Config{
		BootstrapServers: sb.Addrs(),
		SASL:             []sasl.Mechanism{plain.Auth{User: user, Pass: "secret"}.AsMechanism()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func allow(user string, resource kmsg.ACLResourceType, name string, op kmsg.ACLOperation) sandbox.ACL {
	return sandbox.ACL{
		Principal: "User:" + user, Resource: resource, Name: name,
		Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op,
	}
}

// What access control hides is unknown, and unknown is not zero. Each right that
// is needed is missing once.
func TestDowngradeByRights(t *testing.T) {
	alter := func(user string) sandbox.ACL {
		return allow(user, kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationAlter)
	}
	ids := func(user, name string) sandbox.ACL {
		return allow(user, kmsg.ACLResourceTypeTransactionalId, name, kmsg.ACLOperationDescribe)
	}
	topic := func(user string) sandbox.ACL {
		return allow(user, kmsg.ACLResourceTypeTopic, "__share_group_state", kmsg.ACLOperationDescribe)
	}
	sb, err := sandbox.Start(t.Context(), sandbox.WithBrokers(1),
		sandbox.WithUsers(
			sandbox.User{Name: "all", Password: "secret"}, sandbox.User{Name: "noids", Password: "secret"},
			sandbox.User{Name: "someids", Password: "secret"}, sandbox.User{Name: "notopic", Password: "secret"},
			sandbox.User{Name: "noalter", Password: "secret"},
		),
		sandbox.WithACLs(
			alter("all"), ids("all", "*"), topic("all"),
			alter("noids"), topic("noids"),
			alter("someids"), ids("someids", "billing"), topic("someids"),
			alter("notopic"), ids("notopic", "*"),
			ids("noalter", "*"), topic("noalter"),
		))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		user    string
		refused string // part of the refusal; "" is none
		advice  string
		denied  bool
	}{
		{"noids", "may not describe every transactional ID (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)", "--transactional-id '*'", false},
		{"someids", "may not describe every transactional ID (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)", "--transactional-id '*'", false},
		{"notopic", "may not describe topic __share_group_state (TOPIC_AUTHORIZATION_FAILED)", "grant DESCRIBE on topic __share_group_state", false},
		{"noalter", "", "", true},
		{"all", "", "", false},
	} {
		t.Run(c.user, func(t *testing.T) {
			cl := login(t, sb, c.user)
			rep, err := feature.Describe(t.Context(), cl, feature.DescribeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			change, err := feature.NewDowngrade(rep, []feature.Update{{Feature: wire.FeatureShareVersion, Level: 1}}, false)
			if err != nil {
				t.Fatal(err)
			}
			res, err := change.Execute(t.Context(), cl, feature.ExecuteOptions{})
			refused, ok := errors.AsType[*feature.RefusedError](err)
			switch {
			case c.refused != "":
				if !ok || !strings.Contains(err.Error(), c.refused) || !strings.Contains(refused.Hint(), c.advice) || res.Changed {
					t.Errorf("Execute = %v, %v, want it refused with %q", res, err, c.refused)
				}
			case c.denied:
				if e, ok := errors.AsType[*feature.UpdateError](err); !ok || !strings.Contains(err.Error(), "CLUSTER_AUTHORIZATION_FAILED") || e.Hint() == "" || res.Changed {
					t.Errorf("Execute = %v, %v, want it denied", res, err)
				}
			case err != nil || !res.Changed || !res.Confirmed:
				t.Errorf("Execute = %+v, %v, want it done", res, err)
			}
		})
	}
}

// In both dialects the sandbox is what the tables say, and goes up and down.
func TestUpAndDown(t *testing.T) {
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			sb, err := sandbox.Start(t.Context(), sandbox.WithBrokers(3), sandbox.WithDialect(d), sandbox.WithShareVersion(d.ShareVersion-1))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := sb.Close(); err != nil {
					t.Error(err)
				}
			}()
			cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs()})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			var verdicts []cluster.Verdict
			describe := func() *feature.Report {
				rep, err := feature.Describe(t.Context(), cl, feature.DescribeOptions{})
				if err != nil {
					t.Fatal(err)
				}
				verdicts = append(verdicts, rep.Verdict())
				if rep.ClusterID != sb.ClusterID() || rep.Incomplete() || len(rep.Brokers) != 3 {
					t.Errorf("report of cluster %q: %+v", rep.ClusterID, rep)
				}
				return rep
			}
			rep := describe()
			enable, err := rep.EnableUpdates()
			if err != nil {
				t.Fatal(err)
			}
			up, err := feature.NewUpgrade(rep, enable)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := up.Execute(t.Context(), cl, feature.ExecuteOptions{}); err != nil {
				t.Fatal(err)
			}
			down, err := feature.NewDowngrade(describe(), []feature.Update{{Feature: wire.FeatureShareVersion, Level: d.ShareVersion - 1}}, false)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := down.Execute(t.Context(), cl, feature.ExecuteOptions{}); err != nil {
				t.Fatal(err)
			}
			describe()
			if want := []cluster.Verdict{cluster.NotEnabled, cluster.Usable, cluster.NotEnabled}; !slices.Equal(verdicts, want) {
				t.Errorf("verdicts %v, want %v", verdicts, want)
			}
		})
	}
}
