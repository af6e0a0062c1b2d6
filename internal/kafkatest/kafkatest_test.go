package kafkatest_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// request sends req to a broker and fails the test when there is no answer.
func request[R kmsg.Response](t *testing.T, b *kgo.Broker, req kmsg.Request) R {
	t.Helper()
	resp, err := b.Request(testContext(t), req)
	if err != nil {
		t.Fatalf("%s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return resp.(R)
}

func apiVersions(t *testing.T, b *kgo.Broker) *kmsg.ApiVersionsResponse {
	t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "kafkatest", "1"
	resp := request[*kmsg.ApiVersionsResponse](t, b, req)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		t.Fatal(err)
	}
	return resp
}

// levels are the levels of a feature: supported, and finalized.
type levels struct{ min, max, finalized int16 }

func features(resp *kmsg.ApiVersionsResponse) map[string]levels {
	out := make(map[string]levels)
	for _, f := range resp.SupportedFeatures {
		out[f.Name] = levels{min: f.MinVersion, max: f.MaxVersion}
	}
	for _, f := range resp.FinalizedFeatures {
		l := out[f.Name]
		l.finalized = f.MaxVersionLevel
		out[f.Name] = l
	}
	return out
}

// What kshare takes for granted about releases (the tables of api keys and
// feature levels), asked of each.
func TestReleases(t *testing.T) {
	type keys map[int16][2]int16
	shareGroups42 := keys{
		76: {1, 1}, 77: {1, 1}, 78: {1, 2}, 79: {1, 2}, 83: {0, 0}, 84: {0, 0}, 85: {0, 1}, 86: {0, 0}, 87: {0, 1},
		88: {0, 0}, 89: {0, 0}, 90: {0, 1}, 91: {0, 0}, 92: {0, 0},
	}
	shareGroups44 := maps.Clone(shareGroups42)
	maps.Copy(shareGroups44, keys{
		88: {0, 1}, 89: {0, 1},
		93: {0, 0}, // StreamsGroupTopologyDescriptionUpdate
		94: {0, 0}, // UnregisterController
	})
	for _, tt := range []struct {
		version  string
		keys     keys // from 76 on, but for 80 and 81, which are not about groups
		features map[string]levels
		// Of requests that tell 4.4 from what came before.
		apiVersions, txnOffsetCommit, deleteGroups int16
	}{
		{kafkatest.Kafka40, keys{}, map[string]levels{
			"metadata.version": {7, 25, 25}, "transaction.version": {0, 2, 2}, "group.version": {0, 1, 1},
			"kraft.version": {0, 1, 1}, "eligible.leader.replicas.version": {0, 1, 0},
		}, 4, 5, 2},
		{kafkatest.Kafka42, shareGroups42, map[string]levels{
			"metadata.version": {7, 29, 29}, "transaction.version": {0, 2, 2}, "group.version": {0, 1, 1},
			"share.version": {0, 1, 1}, "streams.version": {0, 1, 1},
			"kraft.version": {0, 1, 1}, "eligible.leader.replicas.version": {0, 1, 1},
		}, 4, 5, 2},
		{kafkatest.Kafka44, shareGroups44, map[string]levels{
			"metadata.version": {7, 33, 33}, "transaction.version": {0, 2, 2}, "group.version": {0, 1, 1},
			"share.version": {0, 2, 2}, "streams.version": {0, 1, 1},
			"kraft.version": {0, 1, 1}, "eligible.leader.replicas.version": {0, 1, 1},
		}, 5, 6, 3},
	} {
		t.Run(tt.version, func(t *testing.T) {
			k := kafkatest.Shared(t, kafkatest.Config{Version: tt.version})
			resp := apiVersions(t, k.Client(t).Broker(1))
			got := make(keys)
			maximum := make(map[int16]int16)
			for _, key := range resp.ApiKeys {
				maximum[key.ApiKey] = key.MaxVersion
				if key.ApiKey >= 76 && key.ApiKey != 80 && key.ApiKey != 81 {
					got[key.ApiKey] = [2]int16{key.MinVersion, key.MaxVersion}
				}
			}
			if !maps.Equal(got, tt.keys) {
				t.Errorf("api keys %v, want %v", got, tt.keys)
			}
			if !maps.Equal(features(resp), tt.features) {
				t.Errorf("features %v, want %v", features(resp), tt.features)
			}
			fingerprints := [3]int16{maximum[18], maximum[28], maximum[42]}
			if want := [3]int16{tt.apiVersions, tt.txnOffsetCommit, tt.deleteGroups}; fingerprints != want {
				t.Errorf("newest ApiVersions, TxnOffsetCommit and DeleteGroups: %v, want %v", fingerprints, want)
			}
			wantFeatureTool(t, k, features(resp))
		})
	}
}

// wantFeatureTool compares with what kafka-features prints. Of metadata.version
// it prints a name.
func wantFeatureTool(t *testing.T, k *kafkatest.Cluster, want map[string]levels) {
	t.Helper()
	out, err := k.Tool(testContext(t), kafkatest.FeatureTool, "describe")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]levels)
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 10 {
			t.Fatalf("kafka-features: %q", line)
		}
		if f[1] == "metadata.version" {
			got[f[1]] = want[f[1]]
			continue
		}
		var l levels
		if _, err := fmt.Sscan(f[3]+" "+f[5]+" "+f[7], &l.min, &l.max, &l.finalized); err != nil {
			t.Fatalf("kafka-features: %q: %v", line, err)
		}
		got[f[1]] = l
	}
	if !maps.Equal(got, want) {
		t.Errorf("kafka-features prints %v, want %v:\n%s", got, want, out)
	}
}

func TestApiVersionsBelowVersion4LeavesOutFeaturesWithMinimum0(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{})
	v := kversion.Stable()
	v.SetMaxKeyVersion(kmsg.ApiVersions.Int16(), 3)
	resp := apiVersions(t, k.Client(t, kgo.MaxVersions(v)).Broker(1))
	var supported []string
	for _, f := range resp.SupportedFeatures {
		supported = append(supported, f.Name)
	}
	if want := []string{"metadata.version"}; resp.Version != 3 || !slices.Equal(supported, want) {
		t.Errorf("ApiVersions v%d: supported features %v, want %v", resp.Version, supported, want)
	}
}

// So a changed epoch does not mean that a feature changed.
func TestFinalizedEpochRisesByItself(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{})
	b := k.Client(t).Broker(1)
	first := apiVersions(t, b)
	for ctx := testContext(t); ; {
		now := apiVersions(t, b)
		if now.FinalizedFeaturesEpoch > first.FinalizedFeaturesEpoch {
			if !reflect.DeepEqual(features(now), features(first)) {
				t.Errorf("features changed from %v to %v", features(first), features(now))
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("epoch is still %d", now.FinalizedFeaturesEpoch)
		}
	}
}

func nodes(t *testing.T, cl *kgo.Client) []int32 {
	t.Helper()
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(testContext(t), cl)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int32
	for _, b := range resp.Brokers {
		ids = append(ids, b.NodeID)
	}
	slices.Sort(ids)
	return ids
}

func TestThreeNodesOfWhichOneStopsStartsAndOneIsKilled(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Config{Nodes: 3, Features: map[string]int16{"share.version": 1, "transaction.version": 1}})
	cl := k.Client(t, kgo.DefaultProduceTopic("t"))
	if got := nodes(t, cl); !slices.Equal(got, k.NodeIDs()) {
		t.Fatalf("brokers %v, want %v", got, k.NodeIDs())
	}
	for _, id := range k.NodeIDs() {
		f := features(apiVersions(t, cl.Broker(int(id))))
		if f["share.version"].finalized != 1 || f["transaction.version"].finalized != 1 {
			t.Errorf("node %d: %v, want the configured levels", id, f)
		}
	}
	if _, err := kadm.NewClient(cl).CreateTopic(testContext(t), 3, 3, nil, "t"); err != nil {
		t.Fatal(err)
	}
	k.StopNode(t, 2)
	if got, want := nodes(t, cl), []int32{1, 3}; !slices.Equal(got, want) {
		t.Fatalf("brokers without node 2: %v, want %v", got, want)
	}
	for i := range 9 {
		if err := cl.ProduceSync(testContext(t), &kgo.Record{Value: fmt.Appendf(nil, "%d", i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	k.StartNode(t, 2)
	if got := nodes(t, cl); !slices.Equal(got, k.NodeIDs()) {
		t.Fatalf("brokers with node 2 again: %v, want %v", got, k.NodeIDs())
	}
	ends, err := kadm.NewClient(cl).ListEndOffsets(testContext(t), "t")
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	if n != 9 {
		t.Errorf("%d records, want 9", n)
	}
	k.KillNode(t, 3)
	if got, want := nodes(t, cl), []int32{1, 2}; !slices.Equal(got, want) {
		t.Errorf("brokers after node 3 crashed: %v, want %v", got, want)
	}
}

// A cluster in the middle of a rolling upgrade: the levels stay those that the
// older release knows, and the controller says which node is in the way.
func TestNodesOfTwoReleases(t *testing.T) {
	k := kafkatest.Start(t, kafkatest.Config{Nodes: 2, NodeVersions: map[int32]string{2: kafkatest.Kafka42}})
	cl := k.Client(t)
	for id, want := range map[int32]levels{1: {0, 2, 1}, 2: {0, 1, 1}} {
		if got := features(apiVersions(t, cl.Broker(int(id))))["share.version"]; got != want {
			t.Errorf("node %d: share.version %v, want %v", id, got, want)
		}
	}
	// Either node may lead the quorum: it is itself in the way, or sees the other.
	err := updateFeatures(t, cl, update{"share.version", 2, upgrade})
	if err == nil || !strings.Contains(err.Error(), "Broker 2 only supports versions 0-1") &&
		!strings.Contains(err.Error(), "Local controller 2 only supports versions 0-1") {
		t.Errorf("UpdateFeatures: %v, want a refusal that names node 2", err)
	}
}
