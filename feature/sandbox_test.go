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
	type right struct {
		resource kmsg.ACLResourceType
		name     string
		op       kmsg.ACLOperation
	}
	var (
		alter  = right{kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationAlter}
		action = right{kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationClusterAction}
		ids    = right{kmsg.ACLResourceTypeTransactionalId, "*", kmsg.ACLOperationDescribe}
		topic  = right{kmsg.ACLResourceTypeTopic, "__share_group_state", kmsg.ACLOperationDescribe}
		read   = right{kmsg.ACLResourceTypeTopic, "__share_group_state", kmsg.ACLOperationRead}
		groups = right{kmsg.ACLResourceTypeGroup, "*", kmsg.ACLOperationDescribe}
	)
	all := []right{alter, action, ids, topic, read, groups}
	cases := map[string]struct {
		without []right
		instead right  // what is granted in its place, if anything
		refused string // part of the refusal; "" is none
		advice  string
		denied  bool
	}{
		"noids":   {without: []right{ids}, refused: "lacks DESCRIBE on TRANSACTIONAL_ID * (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)", advice: "--operation Describe --transactional-id '*'"},
		"someids": {without: []right{ids}, instead: right{ids.resource, "billing", ids.op}, refused: "lacks DESCRIBE on TRANSACTIONAL_ID *", advice: "--transactional-id '*'"},
		"noread":  {without: []right{read}, refused: "lacks READ on TOPIC __share_group_state (TOPIC_AUTHORIZATION_FAILED)", advice: "--operation Read --topic '__share_group_state'"},
		// Who may read may describe.
		"notopic":  {without: []right{topic, read}, refused: "lacks DESCRIBE on TOPIC __share_group_state (TOPIC_AUTHORIZATION_FAILED)", advice: "--operation Describe --topic '__share_group_state'"},
		"nogroups": {without: []right{groups}, refused: "lacks DESCRIBE on GROUP * (GROUP_AUTHORIZATION_FAILED)", advice: "--operation Describe --group '*'"},
		"noaction": {without: []right{action}, refused: "lacks CLUSTER_ACTION on CLUSTER kafka-cluster (CLUSTER_AUTHORIZATION_FAILED)", advice: "--operation ClusterAction --cluster"},
		"noalter":  {without: []right{alter}, denied: true},
		"all":      {},
	}
	var users []sandbox.User
	var acls []sandbox.ACL
	for name, c := range cases {
		users = append(users, sandbox.User{Name: name, Password: "secret"})
		for _, r := range append(slices.Clone(all), c.instead) {
			if !slices.Contains(c.without, r) && r != (right{}) {
				acls = append(acls, allow(name, r.resource, r.name, r.op))
			}
		}
	}
	sb, err := sandbox.Start(t.Context(), sandbox.WithBrokers(1), sandbox.WithUsers(users...), sandbox.WithACLs(acls...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	// The level is lowered once, by the last.
	for _, name := range []string{"noids", "someids", "notopic", "noread", "nogroups", "noaction", "noalter", "all"} {
		c := cases[name]
		t.Run(name, func(t *testing.T) {
			cl := login(t, sb, name)
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
