package sandbox

import (
	"strings"
	"testing"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func testDialect(t testing.TB, name string) wire.Dialect {
	t.Helper()
	d, ok := wire.DialectByName(name)
	if !ok {
		t.Fatalf("no dialect %q", name)
	}
	return d
}

func testLevels(t testing.TB, dialect string, level int16, pending int) *featureLevels {
	t.Helper()
	d := testDialect(t, dialect)
	b := buildOf(d)
	b.levels[wire.FeatureShareVersion] = level
	return &featureLevels{dialect: d, supported: b.features, levels: b.levels, epoch: 1, pending: func() int { return pending }}
}

func TestUpdateFeatures(t *testing.T) {
	share := func(level int16, kind int8) featureUpdate {
		return featureUpdate{wire.FeatureShareVersion, level, kind}
	}
	group := func(level int16, kind int8) featureUpdate { return featureUpdate{"group.version", level, kind} }
	tests := []struct {
		name     string
		dialect  string
		level    int16 // of share.version
		pending  int
		updates  []featureUpdate
		validate bool
		code     int16
		message  []string // parts of it
		want     int16    // level of share.version afterwards
		changed  bool     // the epoch rises
	}{
		{name: "raise", dialect: "kip", level: 1, updates: []featureUpdate{share(2, 1)}, want: 2, changed: true},
		{name: "raise two levels at once", dialect: "draft", level: 1, updates: []featureUpdate{share(3, 1)}, want: 3, changed: true},
		{name: "equal level", dialect: "kip", level: 2, updates: []featureUpdate{share(2, 1)}, want: 2},
		{name: "equal level by downgrade", dialect: "kip", level: 2, updates: []featureUpdate{share(2, 2)}, want: 2},
		{name: "above the range", dialect: "kip", level: 2, updates: []featureUpdate{share(3, 1)}, code: 95, message: []string{"share.version", "level 3", "0 to 2"}, want: 2},
		{name: "below the range", dialect: "kip", level: 2, updates: []featureUpdate{share(-1, 3)}, code: 95, message: []string{"share.version", "level -1", "0 to 2"}, want: 2},
		{name: "not a feature", dialect: "kip", level: 2, updates: []featureUpdate{{"shard.version", 1, 1}}, code: 95, message: []string{"shard.version"}, want: 2},
		{name: "lower without the type", dialect: "kip", level: 2, updates: []featureUpdate{share(1, 1)}, code: 95, message: []string{"at level 2"}, want: 2},
		{name: "raise with the type of a downgrade", dialect: "kip", level: 1, updates: []featureUpdate{share(2, 2)}, code: 95, want: 1},
		{name: "unknown type", dialect: "kip", level: 1, updates: []featureUpdate{share(2, 0)}, code: 95, want: 1},
		{name: "lower safely", dialect: "kip", level: 2, updates: []featureUpdate{share(1, 2)}, want: 1, changed: true},
		{name: "lower unsafely", dialect: "draft", level: 3, updates: []featureUpdate{share(0, 3)}, want: 0, changed: true},
		{name: "lower with pending records", dialect: "kip", level: 2, pending: 7, updates: []featureUpdate{share(1, 2)}, code: 95, message: []string{"7 records", "TX_PENDING"}, want: 2},
		{name: "unsafe is no way round pending records", dialect: "kip", level: 2, pending: 7, updates: []featureUpdate{share(1, 3)}, code: 95, want: 2},
		{name: "validate with pending records", dialect: "kip", level: 2, pending: 7, updates: []featureUpdate{share(1, 2)}, validate: true, code: 95, want: 2},
		{name: "lower below the level that allows pending", dialect: "draft", level: 2, pending: 7, updates: []featureUpdate{share(1, 2)}, want: 1, changed: true},
		{name: "validate only", dialect: "kip", level: 1, updates: []featureUpdate{share(2, 1)}, validate: true, want: 1},
		{name: "two features", dialect: "kip", level: 1, updates: []featureUpdate{share(2, 1), group(0, 2)}, want: 2, changed: true},
		{name: "one of two is refused", dialect: "kip", level: 1, updates: []featureUpdate{share(2, 1), group(9, 1)}, code: 95, message: []string{"group.version"}, want: 1},
		{name: "the other of two is refused", dialect: "kip", level: 1, updates: []featureUpdate{group(0, 2), share(9, 1)}, code: 95, message: []string{"share.version"}, want: 1},
		{name: "named twice", dialect: "kip", level: 1, updates: []featureUpdate{share(2, 1), share(2, 1)}, code: kerr.InvalidRequest.Code, want: 1},
		{name: "transaction.version does not depend on it", dialect: "kip", level: 2, updates: []featureUpdate{{wire.FeatureTransactionVersion, 1, 2}}, want: 2, changed: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := testLevels(t, tt.dialect, tt.level, tt.pending)
			before, _ := f.snapshot()
			err := f.apply(tt.updates, tt.validate)
			var code int16
			if err != nil {
				code = err.code
				for _, part := range tt.message {
					if !strings.Contains(err.message, part) {
						t.Errorf("message %q lacks %q", err.message, part)
					}
				}
			}
			if code != tt.code {
				t.Errorf("code %d (%+v), want %d", code, err, tt.code)
			}
			after, epoch := f.snapshot()
			if got := after[wire.FeatureShareVersion]; got != tt.want {
				t.Errorf("share.version %d, want %d", got, tt.want)
			}
			if changed := epoch > 1; changed != tt.changed {
				t.Errorf("epoch %d, want it raised: %v", epoch, tt.changed)
			}
			if tt.code != 0 || tt.validate {
				for name, level := range before {
					if after[name] != level {
						t.Errorf("%s went from %d to %d", name, level, after[name])
					}
				}
			}
		})
	}
}

// Pending records are counted while nothing can be staged.
func TestPendingIsCountedUnderTheLock(t *testing.T) {
	f := testLevels(t, "kip", 2, 0)
	counted := false
	f.pending = func() int {
		counted = true
		if f.staging.TryRLock() {
			t.Error("a stage could begin")
		}
		return 0
	}
	if err := f.apply([]featureUpdate{{wire.FeatureShareVersion, 1, safeDowngrade}}, false); err != nil || !counted {
		t.Errorf("apply = %+v, counted: %v", err, counted)
	}
	if !f.staging.TryLock() {
		t.Error("the lock is still held")
	}
}

func TestUpdateFeaturesVersions(t *testing.T) {
	req := func(version int16, fn func(*kmsg.UpdateFeaturesRequestFeatureUpdate)) *kmsg.UpdateFeaturesRequest {
		r := kmsg.NewPtrUpdateFeaturesRequest()
		r.Version = version
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel = wire.FeatureShareVersion, 1
		fn(&u)
		r.FeatureUpdates = append(r.FeatureUpdates, u)
		return r
	}
	tests := []struct {
		name    string
		req     *kmsg.UpdateFeaturesRequest
		code    int16
		results int
	}{
		{"v0 allows a downgrade", req(0, func(u *kmsg.UpdateFeaturesRequestFeatureUpdate) { u.AllowDowngrade = true }), 0, 1},
		{"v0 does not", req(0, func(*kmsg.UpdateFeaturesRequestFeatureUpdate) {}), 95, 0},
		{"v1", req(1, func(u *kmsg.UpdateFeaturesRequestFeatureUpdate) { u.UpgradeType = 2 }), 0, 1},
		{"v1 refused", req(1, func(u *kmsg.UpdateFeaturesRequestFeatureUpdate) { u.UpgradeType = 1 }), 95, 0},
		{"v2 has no results", req(2, func(u *kmsg.UpdateFeaturesRequestFeatureUpdate) { u.UpgradeType = 3 }), 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := testLevels(t, "kip", 2, 0).updateFeatures(tt.req)
			if resp.ErrorCode != tt.code || len(resp.Results) != tt.results {
				t.Errorf("code %d with %d results, want %d with %d", resp.ErrorCode, len(resp.Results), tt.code, tt.results)
			}
			if (resp.ErrorMessage != nil) != (tt.code != 0) {
				t.Errorf("message %v with code %d", resp.ErrorMessage, resp.ErrorCode)
			}
		})
	}
}

// describeBroker asks one broker for its ApiVersions.
func describeBroker(t testing.TB, s *Sandbox, broker int, version int16) *kmsg.ApiVersionsResponse {
	t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.ClientSoftwareName, req.ClientSoftwareVersion = "test", "1"
	req.Version = version
	c := dialRaw(t, s, broker)
	resp, err := c.roundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.(*kmsg.ApiVersionsResponse)
}

// The features of stock Kafka 4.4 tell that its key 93 is another request. A
// sandbox of the dialect that uses the key must have none of them.
func TestProfileIsOneConsistentBuild(t *testing.T) {
	stock44 := map[kmsg.Key]int16{kmsg.ApiVersions: 5, kmsg.TxnOffsetCommit: 6, kmsg.DeleteGroups: 3, kmsg.StreamsGroupHeartbeat: 1}
	tests := []struct {
		dialect   string
		level     int16
		txnAcks   bool // the key is advertised
		stock44   bool
		shareMax  int16
		versionIn [2]int16 // metadata.version supported
	}{
		{"kip", 2, true, false, 2, [2]int16{21, 30}},
		{"kip", 1, false, false, 2, [2]int16{21, 30}},
		{"draft", 3, true, true, 3, [2]int16{34, 99}},
		{"draft", 1, true, true, 3, [2]int16{34, 99}},
	}
	for _, tt := range tests {
		d := testDialect(t, tt.dialect)
		s := startSandbox(t, WithDialect(d), WithShareVersion(tt.level), WithBrokers(2))
		for broker := range 2 {
			resp := describeBroker(t, s, broker, 4)
			keys := make(map[kmsg.Key]int16)
			for _, k := range resp.ApiKeys {
				keys[kmsg.Key(k.ApiKey)] = k.MaxVersion
			}
			for key, version := range stock44 {
				if got, ok := keys[key]; ok && (got >= version) != tt.stock44 {
					t.Errorf("%s at %d: %s has versions up to %d", tt.dialect, tt.level, key.Name(), got)
				}
			}
			if _, ok := keys[kmsg.Key(d.Key)]; ok != tt.txnAcks {
				t.Errorf("%s at %d: key %d advertised: %v, want %v", tt.dialect, tt.level, d.Key, ok, tt.txnAcks)
			}
			for _, key := range []kmsg.Key{93, 94, 95} {
				if _, ok := keys[key]; ok && int16(key) != d.Key {
					t.Errorf("%s: key %d is advertised, and nobody serves it", tt.dialect, key)
				}
			}
			if keys[kmsg.ShareFetch] != 2 || keys[kmsg.ReadShareGroupStateSummary] != 1 {
				t.Errorf("%s: ShareFetch up to %d, ReadShareGroupStateSummary up to %d", tt.dialect, keys[kmsg.ShareFetch], keys[kmsg.ReadShareGroupStateSummary])
			}
			supported := make(map[string]kmsg.ApiVersionsResponseSupportedFeature)
			for _, f := range resp.SupportedFeatures {
				supported[f.Name] = f
			}
			if f := supported[wire.FeatureShareVersion]; f.MinVersion != 0 || f.MaxVersion != tt.shareMax {
				t.Errorf("%s: share.version %d to %d, want 0 to %d", tt.dialect, f.MinVersion, f.MaxVersion, tt.shareMax)
			}
			if f := supported["metadata.version"]; f.MaxVersion < tt.versionIn[0] || f.MaxVersion > tt.versionIn[1] {
				t.Errorf("%s: metadata.version up to %d, want it in %v", tt.dialect, f.MaxVersion, tt.versionIn)
			}
			finalized := make(map[string]int16)
			for _, f := range resp.FinalizedFeatures {
				finalized[f.Name] = f.MaxVersionLevel
			}
			if finalized[wire.FeatureShareVersion] != tt.level || finalized[wire.FeatureTransactionVersion] != 2 || resp.FinalizedFeaturesEpoch < 1 {
				t.Errorf("%s: finalized %v at epoch %d", tt.dialect, finalized, resp.FinalizedFeaturesEpoch)
			}
		}
	}
}

func TestApiVersionsVersions(t *testing.T) {
	s := startSandbox(t, WithBrokers(1))
	for version := int16(0); version <= 4; version++ {
		resp := describeBroker(t, s, 0, version)
		if resp.ErrorCode != 0 || len(resp.ApiKeys) < 50 {
			t.Errorf("v%d: code %d, %d keys", version, resp.ErrorCode, len(resp.ApiKeys))
		}
		has := false
		for _, f := range resp.SupportedFeatures {
			has = has || f.Name == wire.FeatureShareVersion
		}
		if want := version >= 4; has != want {
			t.Errorf("v%d: share.version among the supported features: %v, want %v", version, has, want)
		}
	}
}

// KIP-511: a client of a newer version is told the versions of ApiVersions.
func TestApiVersionsOfANewerClient(t *testing.T) {
	s := startSandbox(t, WithBrokers(1))
	c := dialRaw(t, s, 0)
	for _, version := range []int16{5, 99} {
		frame := append([]byte{0, 18, byte(version >> 8), byte(version), 0, 0, 0, 7, 0xff, 0xff, 0}, "anything"...)
		raw, err := c.exchangeRaw(frame)
		if err != nil {
			t.Fatal(err)
		}
		resp := kmsg.NewPtrApiVersionsResponse()
		if err := resp.ReadFrom(raw[4:]); err != nil {
			t.Fatal(err)
		}
		if resp.ErrorCode != kerr.UnsupportedVersion.Code || len(resp.ApiKeys) != 1 || resp.ApiKeys[0].ApiKey != 18 || resp.ApiKeys[0].MaxVersion != 4 {
			t.Errorf("v%d: %+v", version, resp)
		}
	}
}
