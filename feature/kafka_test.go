package feature_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

// kafkaClient connects to a real Kafka without security.
func kafkaClient(t *testing.T, k *kafkatest.Cluster) *cluster.Client {
	t.Helper()
	cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: k.Bootstrap()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func describeKafka(t *testing.T, cl *cluster.Client) *feature.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	r, err := feature.Describe(ctx, cl, feature.DescribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// toolFeature is a line of "kafka-features.sh describe". metadata.version has
// names in place of levels there.
type toolFeature struct{ lo, hi, finalized string }

var toolLine = regexp.MustCompile(`^Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)\s+Epoch: (\S+)$`)

// toolFeatures asks Kafka's own tool.
func toolFeatures(t *testing.T, k *kafkatest.Cluster) (map[string]toolFeature, int64) {
	t.Helper()
	out, err := k.Tool(t.Context(), kafkatest.FeatureTool, "describe")
	if err != nil {
		t.Fatal(err)
	}
	features, epoch := make(map[string]toolFeature), int64(-1)
	for line := range strings.Lines(out) {
		m := toolLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("FeatureCommand describe writes %q", line)
		}
		features[m[1]] = toolFeature{m[2], m[3], m[4]}
		if epoch, err = strconv.ParseInt(m[5], 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return features, epoch
}

// ourFeatures is a report in the form of Kafka's tool.
func ourFeatures(t *testing.T, r *feature.Report) map[string]toolFeature {
	t.Helper()
	out := make(map[string]toolFeature)
	for _, f := range r.Features {
		if f.Min == nil || f.Finalized == nil || f.State != feature.Agreed {
			t.Errorf("feature %+v of a healthy cluster", f)
			continue
		}
		text := func(level int16) string {
			if n := feature.LevelName(f.Name, level); n != "" {
				return n
			}
			return strconv.Itoa(int(level))
		}
		out[f.Name] = toolFeature{text(*f.Min), text(*f.Max), text(*f.Finalized)}
	}
	return out
}

func releases() []string {
	return []string{kafkatest.Kafka40, kafkatest.Kafka42, kafkatest.Kafka44}
}

// We agree with Kafka's own tool on every feature, level and epoch; and with the
// tables that it prints about its release.
func TestKafkaDescribe(t *testing.T) {
	for _, version := range releases() {
		t.Run(version, func(t *testing.T) {
			k := kafkatest.Shared(t, kafkatest.Config{Version: version})
			cl := kafkaClient(t, k)
			before := describeKafka(t, cl)
			tool, epoch := toolFeatures(t, k)
			after := describeKafka(t, cl)
			wantSameFeatures(t, ourFeatures(t, before), tool)
			// The epoch is the offset of the metadata log, which grows.
			if before.Epoch == nil || after.Epoch == nil || *before.Epoch > epoch || epoch > *after.Epoch {
				t.Errorf("epoch %v, then %v, and %d of the tool in between", before.Epoch, after.Epoch, epoch)
			}
			if before.ClusterID != k.ClusterID() || before.Incomplete() {
				t.Errorf("cluster %q is incomplete: %q", before.ClusterID, before.Unknowns())
			}
			if before.Verdict() != cluster.NotSupported {
				t.Errorf("the verdict is %s: %s", before.Verdict(), before.TxnAcks.Reason)
			}
			if version == kafkatest.Kafka44 && !strings.Contains(before.TxnAcks.Reason, "share.version=2 is share groups with dead-letter queues (KIP-1191) here and key 93 is StreamsGroupTopologyDescriptionUpdate") {
				t.Errorf("the verdict %q does not name the dead-letter queue", before.TxnAcks.Reason)
			}
			wantMapping(t, k, version)
		})
	}
}

func wantSameFeatures(t *testing.T, ours, tool map[string]toolFeature) {
	t.Helper()
	for name, want := range tool {
		if got := ours[name]; got != want {
			t.Errorf("%s: %v, the tool says %v", name, got, want)
		}
	}
	if len(ours) != len(tool) {
		t.Errorf("features %v, the tool says %v", ours, tool)
	}
}

var mappingLine = regexp.MustCompile(`^([a-z.]+)=(\d+)( \(\S+\))?$`)

// wantMapping compares our table of a release with what it says itself.
func wantMapping(t *testing.T, k *kafkatest.Cluster, version string) {
	t.Helper()
	minor := version[:strings.LastIndex(version, ".")]
	out, err := k.Tool(t.Context(), kafkatest.FeatureTool, "version-mapping")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int16)
	for _, r := range feature.Releases() {
		if r.Name != minor {
			continue
		}
		for _, l := range r.Levels {
			got[l.Feature] = l.Default
		}
	}
	compared := 0
	for line := range strings.Lines(out) {
		m := mappingLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("FeatureCommand version-mapping writes %q", line)
		}
		level, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		ours, known := got[m[1]]
		if !known && level == 0 {
			continue // not in production in that release
		}
		compared++
		if int(ours) != level && m[1] != "kraft.version" { // which depends on how the quorum is formed
			t.Errorf("a new cluster of %s has %s=%d, the tool says %d", minor, m[1], ours, level)
		}
	}
	if compared < 3 {
		t.Errorf("version-mapping has only %d features that we know:\n%s", compared, out)
	}
}

// What needs another feature, Kafka says itself.
func TestKafkaDependencies(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44})
	r := describeKafka(t, kafkaClient(t, k))
	for _, f := range r.Features {
		for _, l := range f.Levels {
			u := feature.Update{Feature: f.Name, Level: l.Level}
			out, err := k.Tool(t.Context(), kafkatest.FeatureTool, "feature-dependencies", "--feature", u.String())
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, d := range feature.Dependencies() {
				if d.EnforcedBy == "controller" && d.Feature == u.Feature && d.Level == u.Level {
					want = append(want, fmt.Sprintf("%s=%d", d.Needs, d.NeedsMin))
				}
			}
			if len(want) == 0 && !strings.Contains(out, "no dependencies") {
				t.Errorf("%s: the tool says %q, we know of none", u, out)
			}
			for _, w := range want {
				if !strings.Contains(out, w) {
					t.Errorf("%s: the tool says %q, we know of %s", u, out, w)
				}
			}
		}
	}
}

// changeKafka changes a level and returns what came of it.
func changeKafka(t *testing.T, cl *cluster.Client, d feature.Direction, u feature.Update, unsafe bool) (*feature.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	r := describeKafka(t, cl)
	var c *feature.Change
	var err error
	if d == feature.Upgrade {
		c, err = feature.NewUpgrade(r, []feature.Update{u})
	} else {
		c, err = feature.NewDowngrade(r, []feature.Update{u}, unsafe)
	}
	if err != nil {
		return c.Result(), err
	}
	return c.Execute(ctx, cl, feature.ExecuteOptions{})
}

// Levels go down and up wherever the controller allows it, and Kafka's own tool
// sees them change.
func TestKafkaChange(t *testing.T) {
	type step struct {
		feature  string
		level    int16
		up       bool
		effect   string // one of them; "" is none to look for
		noReturn string
	}
	tv := []step{
		{feature: "transaction.version", level: 1, effect: "producers that are running with transaction.version 2 are cut off"},
		{feature: "transaction.version", level: 0},
		{feature: "transaction.version", level: 1, up: true, noReturn: "software older than Kafka 4.0"},
		{feature: "transaction.version", level: 2, up: true, effect: "transactional producers use the new protocol"},
	}
	for version, steps := range map[string][]step{
		kafkatest.Kafka40: tv,
		kafkatest.Kafka42: append([]step{
			{feature: "share.version", level: 0, effect: "share groups are switched off"},
			{feature: "share.version", level: 1, up: true, effect: "share groups are switched on", noReturn: "software older than Kafka 4.1"},
		}, tv...),
		kafkatest.Kafka44: append([]step{
			{feature: "share.version", level: 1, effect: "dead-letter queues are switched off"},
			{feature: "share.version", level: 0, effect: "share groups are switched off"},
			{feature: "share.version", level: 1, up: true, effect: "share groups are switched on"},
			{feature: "share.version", level: 2, up: true, effect: "not transactional acknowledgement (KIP-1289)", noReturn: "software older than Kafka 4.4"},
		}, tv...),
	} {
		t.Run(version, func(t *testing.T) {
			k := kafkatest.Start(t, kafkatest.Config{Version: version})
			cl := kafkaClient(t, k)
			for _, s := range steps {
				d := feature.Downgrade
				if s.up {
					d = feature.Upgrade
				}
				u := feature.Update{Feature: s.feature, Level: s.level}
				res, err := changeKafka(t, cl, d, u, false)
				if err != nil {
					t.Fatalf("%s %s: %v", d, u, err)
				}
				if !res.Changed || !res.Validated || !res.Confirmed || res.Raced || *res.Items[0].Level != s.level {
					t.Errorf("%s %s: %+v, %+v", d, u, res, res.Items)
				}
				contains := func(sentences []string, part string) bool {
					return part == "" || slices.ContainsFunc(sentences, func(s string) bool { return strings.Contains(s, part) })
				}
				if !contains(res.Effects, s.effect) || !contains(res.NoReturn, s.noReturn) {
					t.Errorf("%s %s: effects %q, points of no return %q, want %q and %q", d, u, res.Effects, res.NoReturn, s.effect, s.noReturn)
				}
				tool, _ := toolFeatures(t, k)
				if got := tool[s.feature].finalized; got != strconv.Itoa(int(s.level)) {
					t.Errorf("after %s %s the tool says %s", d, u, got)
				}
				// Once more there is nothing to do.
				if res, err = changeKafka(t, cl, d, u, false); err != nil || res.Changed || res.Validated {
					t.Errorf("%s %s again: %+v, %v", d, u, res, err)
				}
			}
		})
	}
}

// Levels of share.version are lowered under a consumer: without dead-letter queues
// it works on, without share groups it stops, and both is told before.
func TestKafkaDowngradeUnderConsumer(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka44})
	cl := kafkaClient(t, k)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if _, err := kadm.NewClient(k.Client(t)).CreateTopic(ctx, 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	if err := cl.SetGroupConfig(ctx, "billing", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	producer := k.Client(t, kgo.DefaultProduceTopic("orders"))
	member, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "billing", Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	defer member.Abandon()
	// works returns when the member has got a record that is produced now, or with
	// what it fails with.
	works := func() error {
		if err := producer.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
		for {
			batch, err := member.Poll(ctx, 10)
			if err != nil {
				return err
			}
			if batch.Len() > 0 {
				return member.Acknowledge(ctx, batch, batch.All(wire.Accept))
			}
		}
	}
	lower := func(level int16) []string {
		t.Helper()
		c, err := feature.NewDowngrade(describeKafka(t, cl), []feature.Update{{Feature: "share.version", Level: level}}, false)
		if err != nil {
			t.Fatal(err)
		}
		live, err := c.LiveGroups(ctx, cl)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := c.Execute(ctx, cl, feature.ExecuteOptions{}); err != nil || !res.Confirmed {
			t.Fatalf("share.version=%d: %+v, %v", level, res, err)
		}
		return live
	}
	if err := works(); err != nil {
		t.Fatal(err)
	}
	if live := lower(1); len(live) > 0 {
		t.Errorf("lowered to 1, where members go on: %q", live)
	}
	if err := works(); err != nil {
		t.Errorf("a member without dead-letter queues: %v, want it to go on", err)
	}
	if live := lower(0); !slices.Equal(live, []string{`share group "billing" has 1 member, which stops working`}) {
		t.Errorf("lowered to 0: %q, want the member named", live)
	}
	if err := works(); err == nil || ctx.Err() != nil {
		t.Errorf("a member without share groups: %v, want it to fail", err)
	}
}

// A refusal has the controller's words, which are those that Kafka's own tool
// prints, and nothing stronger was tried.
func TestKafkaRefuses(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44})
	cl := kafkaClient(t, k)
	for _, c := range []struct {
		update feature.Update
		unsafe bool
		want   string
	}{
		{feature.Update{Feature: "metadata.version", Level: 7}, false, "Refusing to perform the requested downgrade because it might delete metadata information"},
		{feature.Update{Feature: "metadata.version", Level: 7}, true, "Unsafe metadata downgrade is not supported in this version."},
		{feature.Update{Feature: "kraft.version", Level: 0}, false, "Invalid update version 0 for feature kraft.version."},
	} {
		args := []string{"downgrade", "--feature", c.update.String()}
		if c.unsafe {
			args = append(args, "--unsafe")
		}
		out, err := k.Tool(t.Context(), kafkatest.FeatureTool, args...)
		if err == nil {
			t.Fatalf("the tool downgrades to %s: %s", c.update, out)
		}
		res, err := changeKafka(t, cl, feature.Downgrade, c.update, c.unsafe)
		e, ok := errors.AsType[*feature.UpdateError](err)
		if !ok || res.Changed || !strings.Contains(e.Message, c.want) || e.Culprit != c.update.Feature {
			t.Errorf("%s: %+v, %v, want it refused with %q", c.update, res, err, c.want)
			continue
		}
		if !strings.Contains(out, e.Message) || *res.Items[0].Reason != e.Message {
			t.Errorf("%s: the controller says %q\nto the tool: %s", c.update, e.Message, out)
		}
	}
	tool, _ := toolFeatures(t, k)
	if got := tool["metadata.version"].finalized; got != "4.4-IV2" {
		t.Errorf("metadata.version is %s after refusals", got)
	}
}

// Three nodes, one of them at older software: a skew, by broker, which stops an
// upgrade. One down on top of it: not known, and nothing is changed any more.
func TestKafkaSkewAndDown(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Config{Nodes: 3, NodeVersions: map[int32]string{3: kafkatest.Kafka42}})
	cl := kafkaClient(t, k)
	up := feature.Update{Feature: "share.version", Level: 2}
	r := describeKafka(t, cl)
	f, _ := r.Feature("share.version")
	if f.State != feature.Skew || *f.Max != 1 || r.Incomplete() || len(f.Brokers) != 3 || *f.Brokers[2].Max != 1 || *f.Brokers[0].Max != 2 {
		t.Errorf("share.version is %+v, %s; incomplete: %q", f, f.State, r.Unknowns())
	}
	if _, err := changeKafka(t, cl, feature.Upgrade, up, false); !refusedWith(err, "broker 3 supports 0-1 of share.version") {
		t.Errorf("upgrade in the midst of a rolling: %v, want it refused", err)
	}
	p, err := feature.NewPlan(r, []feature.Update{up}, nil)
	if err != nil || *p.Next != "binaries" || !strings.Contains(p.Steps[0].Why, "broker 3 supports 0-1") {
		t.Errorf("plan %+v, %v, want the binaries to be rolled first", p, err)
	}
	k.StopNode(t, 2)
	r = describeKafka(t, cl)
	if !r.Incomplete() || len(r.Brokers) != 3 || r.Brokers[1].NodeID != 2 || r.Brokers[1].Error == "" {
		t.Errorf("with broker 2 stopped: brokers %+v, unknown %q", r.Brokers, r.Unknowns())
	}
	if f, _ := r.Feature("share.version"); f.Brokers[1].Finalized != nil || f.Finalized == nil || *f.Finalized != 1 {
		t.Errorf("share.version is %+v, want what the others say", f)
	}
	if _, err := changeKafka(t, cl, feature.Downgrade, feature.Update{Feature: "share.version", Level: 0}, false); !refusedWith(err, "broker 2 ") {
		t.Errorf("downgrade with broker 2 down: %v, want it refused", err)
	}
	k.StartNode(t, 2)
	if r = describeKafka(t, cl); r.Incomplete() {
		t.Errorf("with broker 2 back: %q", r.Unknowns())
	}
}

func refusedWith(err error, part string) bool {
	_, ok := errors.AsType[*feature.RefusedError](err)
	return ok && strings.Contains(err.Error(), part)
}

// A producer in the midst of a transaction stops the downgrade of
// transaction.version, by name.
func TestKafkaLiveProducer(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Config{})
	cl := kafkaClient(t, k)
	p := k.Client(t, kgo.TransactionalID("billing-7"), kgo.DefaultProduceTopic("billing"), kgo.AllowAutoTopicCreation())
	if err := p.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := p.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	down := feature.Update{Feature: "transaction.version", Level: 1}
	_, err := changeKafka(t, cl, feature.Downgrade, down, false)
	if !refusedWith(err, `1 producer has an open transaction: "billing-7" (Ongoing)`) {
		t.Fatalf("downgrade under a producer: %v, want it refused", err)
	}
	change, err := feature.NewDowngrade(describeKafka(t, cl), []feature.Update{down}, false)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := change.Observer(cl, "", nil).Observe(t.Context(), nil)
	if err != nil || len(seen.Evidence.Gaps) > 0 {
		t.Fatalf("evidence %+v, %v", seen.Evidence, err)
	}
	affected := change.Affected(seen.Evidence)
	if len(affected) != 1 || affected[0].Started == nil || affected[0].TimeoutMS == nil || affected[0].HoldsShareAcks == nil || *affected[0].HoldsShareAcks {
		t.Errorf("transactions %+v", affected)
	}
	// share.version is not what it uses.
	if res, err := changeKafka(t, cl, feature.Downgrade, feature.Update{Feature: "share.version", Level: 1}, false); err != nil || !res.Changed {
		t.Errorf("downgrade of share.version under a producer: %v", err)
	}
	if err := p.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	// The markers are written after the end is confirmed.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for {
		_, err := changeKafka(t, cl, feature.Downgrade, down, false)
		if err == nil {
			break
		}
		if !refusedWith(err, "Prepare") || ctx.Err() != nil {
			t.Fatalf("downgrade after the end: %v", err)
		}
	}
}

// Rights are asked of the brokers, and what they hide is unknown.
func TestKafkaRights(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Config{Security: kafkatest.SASLSSL, Authorizer: true})
	as := func(u kafkatest.User) *cluster.Client {
		cl, err := cluster.Connect(t.Context(), cluster.Config{
			BootstrapServers: k.Bootstrap(), TLS: k.TLS(), SASL: []sasl.Mechanism{u.Mechanism(kafkatest.ScramSHA512)},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	alice := as(kafkatest.Alice)
	// Nobody needs a right to see the levels.
	if r := describeKafka(t, alice); r.Incomplete() || r.ClusterID != k.ClusterID() {
		t.Errorf("what alice sees is incomplete: %q", r.Unknowns())
	}
	down := feature.Update{Feature: "transaction.version", Level: 1}
	if _, err := changeKafka(t, alice, feature.Downgrade, down, false); !refusedWith(err, "lacks DESCRIBE on TRANSACTIONAL_ID * (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)") {
		t.Errorf("downgrade without DESCRIBE on IDs: %v", err)
	}
	grant(t, k, "--operation", "Describe", "--transactional-id", "*")
	// Nobody holds share acknowledgements here: what hides those does not matter.
	_, err := changeKafka(t, alice, feature.Downgrade, down, false)
	if e, ok := errors.AsType[*feature.UpdateError](err); !ok || !strings.Contains(err.Error(), "CLUSTER_AUTHORIZATION_FAILED") || e.Hint() != "grant ALTER on the cluster to this principal" {
		t.Errorf("downgrade without ALTER: %v", err)
	}
	grant(t, k, "--operation", "Alter", "--cluster")
	if res, err := changeKafka(t, alice, feature.Downgrade, down, false); err != nil || !res.Changed {
		t.Errorf("downgrade with all rights: %+v, %v", res, err)
	}
}

// grant gives alice a right, and returns when it holds.
func grant(t *testing.T, k *kafkatest.Cluster, args ...string) {
	t.Helper()
	if _, err := k.Tool(t.Context(), kafkatest.ACLTool, append([]string{"--add", "--allow-principal", "User:alice"}, args...)...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cl := k.Client(t)
	want := len(args) // of the rights that were given, the last one
	for {
		req := kmsg.NewPtrDescribeACLsRequest()
		req.ResourceType, req.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
		req.Operation, req.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			t.Fatalf("right %v of %d arguments is not there: %v", args, want, err)
		}
		for _, r := range resp.Resources {
			for _, a := range r.ACLs {
				if a.Principal == "User:alice" && strings.EqualFold(a.Operation.String(), args[1]) && (len(args) < 4 || r.ResourceName == args[3]) {
					return
				}
			}
		}
	}
}

// The listener of a controller is told from that of a broker.
func TestKafkaControllerAddress(t *testing.T) {
	for _, version := range releases() {
		k := kafkatest.Shared(t, kafkatest.Config{Version: version})
		addr := k.Controller(t, 1)
		_, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: []string{addr}})
		if e, ok := errors.AsType[*cluster.ListenerError](err); !ok || e.Addr != addr {
			t.Errorf("%s: Connect = %v, want a *cluster.ListenerError", version, err)
		}
	}
}
