package sandbox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// ApiVersions: v0-4, in a build after 4.4 v0-5; UpdateFeatures: v0-2
//
// Behavior:
//   - all brokers answer alike: a sandbox has one build and one set of levels
//   - a version of ApiVersions that is not served is answered in v0 with
//     UNSUPPORTED_VERSION and the range of ApiVersions alone (KIP-511)
//   - an update of features is atomic over all that one request names
//   - share.version is not lowered below the level of TxnShareAcknowledge while
//     records are in TX_PENDING: the guard that the KIP asks of the broker
//
// Version notes:
//   - ApiVersions v0-3 omit the supported features whose minimum is 0
//   - UpdateFeatures v2 has the top-level error alone; v0 and v1 list the
//     features on success
//
// Where we differ from a broker: metadata.version is checked as any feature is,
// and not for what a downgrade would lose.

// featureRange is the range of levels of a feature that a build supports.
type featureRange struct{ min, max int16 }

// build is what the brokers of one profile present themselves as.
type build struct {
	versions *kversion.Versions // of requests; what kfake serves of these is advertised
	features map[string]featureRange
	levels   map[string]int16 // of a new cluster
	txnAcks  func(level int16) bool
}

// metadataVersionAfter44 is the newest metadata.version after release 4.4, an
// unstable one.
const metadataVersionAfter44 = 34

// buildOf returns the build that implements a dialect. One with key 93 must come
// before release 4.4, which gave that key to another request, and must not look
// like 4.4 in anything else; one above key 94 must come after it.
func buildOf(d wire.Dialect) build {
	after44 := d.Key > maxStockKey
	b := build{versions: kversion.V4_3_0(), features: make(map[string]featureRange), levels: make(map[string]int16)}
	if after44 {
		b.versions = kversion.Stable()
	}
	b.versions.EachSupportedFeature(func(name string, lo, hi int16) { b.features[name] = featureRange{lo, hi} })
	b.versions.EachFinalizedFeature(func(name string, level int16) { b.levels[name] = level })
	if after44 {
		b.features[featureMetadataVersion] = featureRange{b.features[featureMetadataVersion].min, metadataVersionAfter44}
		b.levels[featureMetadataVersion] = metadataVersionAfter44
	}
	b.features[wire.FeatureShareVersion] = featureRange{0, d.ShareVersion}
	// The text of the KIP advertises the request once its level is finalized,
	// the drafts whenever the binary has it. Those drafts refuse it till then.
	b.txnAcks = func(level int16) bool { return after44 || level >= d.ShareVersion }
	return b
}

const (
	featureMetadataVersion = "metadata.version"
	// maxStockKey is the highest api key that a released Kafka has for
	// brokers' clients (4.4: UnregisterController).
	maxStockKey int16 = 94
)

// featureLevels are the finalized levels of a cluster. It is safe for
// concurrent use.
type featureLevels struct {
	dialect   wire.Dialect
	supported map[string]featureRange
	pending   func() int                                       // records in TX_PENDING
	save      func(levels map[string]int16, epoch int64) error // nil: nowhere

	// staging is held for reading while a TxnShareAcknowledge is handled, for
	// writing while the level that allows it is lowered: the count of pending
	// records holds until the new level does.
	staging sync.RWMutex

	update sync.Mutex // serialises updates

	mu     sync.RWMutex
	levels map[string]int16
	epoch  int64
}

func (f *featureLevels) level(name string) int16 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.levels[name]
}

// txnAcksEnabled reports whether TxnShareAcknowledge is allowed.
func (f *featureLevels) txnAcksEnabled() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.levels[wire.FeatureShareVersion] >= f.dialect.ShareVersion &&
		f.levels[wire.FeatureTransactionVersion] >= wire.TransactionVersion
}

// snapshot returns the levels and their epoch. The map is not to be changed.
func (f *featureLevels) snapshot() (map[string]int16, int64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.levels, f.epoch
}

// featureUpdate is one entry of an UpdateFeatures, whatever its version.
type featureUpdate struct {
	name  string
	level int16
	kind  int8 // 1 upgrade, 2 safe and 3 unsafe downgrade
}

// The upgrade types of UpdateFeatures v1 and later.
const (
	upgradeOnly     = 1
	safeDowngrade   = 2
	unsafeDowngrade = 3
)

func featureUpdates(req *kmsg.UpdateFeaturesRequest) []featureUpdate {
	updates := make([]featureUpdate, 0, len(req.FeatureUpdates))
	for _, u := range req.FeatureUpdates {
		kind := u.UpgradeType
		if req.Version == 0 {
			kind = upgradeOnly
			if u.AllowDowngrade {
				kind = safeDowngrade
			}
		}
		updates = append(updates, featureUpdate{name: u.Feature, level: u.MaxVersionLevel, kind: kind})
	}
	return updates
}

// updateError is why an update is refused.
type updateError struct {
	code    int16
	message string
}

func refuseUpdate(u featureUpdate, format string, args ...any) *updateError {
	return &updateError{
		code:    kerr.InvalidUpdateVersion.Code,
		message: fmt.Sprintf("invalid update of feature %s to level %d: ", u.name, u.level) + fmt.Sprintf(format, args...),
	}
}

// check is what the controller checks of one update.
func (u featureUpdate) check(supported map[string]featureRange, current int16) *updateError {
	if u.kind < upgradeOnly || u.kind > unsafeDowngrade {
		return refuseUpdate(u, "the upgrade type %d is not known", u.kind)
	}
	r, ok := supported[u.name]
	switch {
	case !ok:
		return refuseUpdate(u, "the brokers do not support this feature")
	case u.level < r.min || u.level > r.max:
		return refuseUpdate(u, "the brokers support levels %d to %d", r.min, r.max)
	case u.level < current && u.kind == upgradeOnly:
		return refuseUpdate(u, "it is at level %d, and lowering it takes the upgrade type of a safe or unsafe downgrade", current)
	case u.level > current && u.kind != upgradeOnly:
		return refuseUpdate(u, "it is at level %d, which a downgrade cannot raise", current)
	}
	return nil
}

// apply makes all updates or none.
func (f *featureLevels) apply(updates []featureUpdate, validateOnly bool) *updateError {
	f.update.Lock()
	defer f.update.Unlock()
	current, epoch := f.snapshot()
	next := maps.Clone(current)
	seen := make(map[string]bool, len(updates))
	for _, u := range updates {
		if seen[u.name] {
			return &updateError{code: kerr.InvalidRequest.Code, message: fmt.Sprintf("feature %s is named twice", u.name)}
		}
		seen[u.name] = true
		if err := u.check(f.supported, current[u.name]); err != nil {
			return err
		}
		next[u.name] = u.level
	}
	if needed := f.dialect.ShareVersion; current[wire.FeatureShareVersion] >= needed && next[wire.FeatureShareVersion] < needed {
		f.staging.Lock()
		defer f.staging.Unlock()
		if n := f.pending(); n > 0 {
			u := featureUpdate{name: wire.FeatureShareVersion, level: next[wire.FeatureShareVersion]}
			return refuseUpdate(u, "%d records are in TX_PENDING, and level %d has no such state", n, u.level)
		}
	}
	if validateOnly || len(updates) == 0 {
		return nil
	}
	if !maps.Equal(next, current) {
		epoch++
	}
	if f.save != nil {
		if err := f.save(next, epoch); err != nil {
			return &updateError{code: kerr.FeatureUpdateFailed.Code, message: fmt.Sprintf("keep the levels: %v", err)}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.levels, f.epoch = next, epoch
	return nil
}

// updateFeatures answers an UpdateFeatures of an authorised client.
func (f *featureLevels) updateFeatures(req *kmsg.UpdateFeaturesRequest) *kmsg.UpdateFeaturesResponse {
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	updates := featureUpdates(req)
	if err := f.apply(updates, req.Version > 0 && req.ValidateOnly); err != nil {
		resp.ErrorCode, resp.ErrorMessage = err.code, &err.message
		return resp
	}
	if req.Version < 2 {
		for _, u := range updates {
			r := kmsg.NewUpdateFeaturesResponseResult()
			r.Feature = u.name
			resp.Results = append(resp.Results, r)
		}
	}
	return resp
}

// describe fills the features of an ApiVersions response, which v3 and later
// have.
func (f *featureLevels) describe(resp *kmsg.ApiVersionsResponse) {
	levels, epoch := f.snapshot()
	for _, name := range sortedKeys(f.supported) {
		r := f.supported[name]
		if r.min == 0 && resp.Version < 4 {
			continue // the version cannot say 0
		}
		sf := kmsg.NewApiVersionsResponseSupportedFeature()
		sf.Name, sf.MinVersion, sf.MaxVersion = name, r.min, r.max
		resp.SupportedFeatures = append(resp.SupportedFeatures, sf)
	}
	for _, name := range sortedKeys(levels) {
		if levels[name] == 0 {
			continue
		}
		ff := kmsg.NewApiVersionsResponseFinalizedFeature()
		ff.Name, ff.MinVersionLevel, ff.MaxVersionLevel = name, levels[name], levels[name]
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, ff)
	}
	resp.FinalizedFeaturesEpoch = epoch
}

// apiRange is the range of versions of a request that the brokers serve.
type apiRange struct{ min, max int16 }

// planeAPIs are the requests that the share plane serves, beside
// TxnShareAcknowledge.
var planeAPIs = []struct {
	key kmsg.Key
	apiRange
}{
	{kmsg.ShareGroupHeartbeat, apiRange{1, 1}},
	{kmsg.ShareGroupDescribe, apiRange{1, 1}},
	{kmsg.ShareFetch, apiRange{1, 2}},
	{kmsg.ShareAcknowledge, apiRange{1, 2}},
	{kmsg.InitializeShareGroupState, apiRange{0, 0}},
	{kmsg.ReadShareGroupState, apiRange{0, 0}},
	{kmsg.WriteShareGroupState, apiRange{0, 1}},
	{kmsg.DeleteShareGroupState, apiRange{0, 0}},
	{kmsg.ReadShareGroupStateSummary, apiRange{0, 1}},
	{kmsg.DescribeShareGroupOffsets, apiRange{0, 1}},
	{kmsg.AlterShareGroupOffsets, apiRange{0, 0}},
	{kmsg.DeleteShareGroupOffsets, apiRange{0, 0}},
}

func isPlaneAPI(key int16) bool {
	for _, api := range planeAPIs {
		if api.key.Int16() == key {
			return true
		}
	}
	return false
}

// servedAPIs returns what the brokers serve: of the build, the requests that
// kfake has, and those of the share plane.
func servedAPIs(kfakeKeys []kmsg.ApiVersionsResponseApiKey, v *kversion.Versions) map[int16]apiRange {
	apis := make(map[int16]apiRange, len(kfakeKeys)+len(planeAPIs))
	for _, k := range kfakeKeys {
		if hi, ok := v.LookupMaxKeyVersion(k.ApiKey); ok && min(hi, k.MaxVersion) >= k.MinVersion {
			apis[k.ApiKey] = apiRange{k.MinVersion, min(hi, k.MaxVersion)}
		}
	}
	for _, api := range planeAPIs {
		apis[api.key.Int16()] = api.apiRange
	}
	return apis
}

// apiVersions answers ApiVersions.
type apiVersions struct {
	apis      map[int16]apiRange // without TxnShareAcknowledge
	dialect   wire.Dialect
	txnAcks   func(level int16) bool // whether TxnShareAcknowledge is advertised
	features  *featureLevels
	clusterID string
}

func (a *apiVersions) respond(req *kmsg.ApiVersionsRequest, node int32) *kmsg.ApiVersionsResponse {
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	own := a.apis[int16(kmsg.ApiVersions)]
	if req.Version > own.max {
		resp.Version = 0
		resp.ErrorCode = kerr.UnsupportedVersion.Code
		resp.ApiKeys = append(resp.ApiKeys, apiKey(int16(kmsg.ApiVersions), own))
		return resp
	}
	if code := a.check(req, node); code != 0 {
		resp.ErrorCode = code
		return resp
	}
	resp.ApiKeys = make([]kmsg.ApiVersionsResponseApiKey, 0, len(a.apis)+1)
	for key, r := range a.apis {
		resp.ApiKeys = append(resp.ApiKeys, apiKey(key, r))
	}
	if a.txnAcks(a.features.level(wire.FeatureShareVersion)) {
		resp.ApiKeys = append(resp.ApiKeys, apiKey(a.dialect.Key, apiRange{0, a.dialect.MaxVersion}))
	}
	slices.SortFunc(resp.ApiKeys, func(x, y kmsg.ApiVersionsResponseApiKey) int { return cmp.Compare(x.ApiKey, y.ApiKey) })
	a.features.describe(resp)
	return resp
}

// check returns the code for what is wrong with a request that is understood.
func (a *apiVersions) check(req *kmsg.ApiVersionsRequest, node int32) int16 {
	if req.Version >= 3 && (!validSoftware(req.ClientSoftwareName) || !validSoftware(req.ClientSoftwareVersion)) {
		return kerr.InvalidRequest.Code
	}
	if req.Version < 5 {
		return 0
	}
	// KIP-1242: whom the client thinks it talks to.
	named, numbered := req.ClusterID != nil, req.NodeID != -1
	switch {
	case named != numbered:
		return kerr.InvalidRequest.Code
	case named && (*req.ClusterID != a.clusterID || req.NodeID != node):
		return kerr.RebootstrapRequired.Code
	}
	return 0
}

func apiKey(key int16, r apiRange) kmsg.ApiVersionsResponseApiKey {
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MinVersion, k.MaxVersion = key, r.min, r.max
	return k
}

// validSoftware is the form of a client's software name and version (KIP-511).
func validSoftware(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		inner := i > 0 && i < len(s)-1
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !(inner && (c == '-' || c == '.')) {
			return false
		}
	}
	return true
}
