package cluster

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kversion"
)

// released returns what a broker of a released Kafka answers, by kversion's
// tables, with the features of a new cluster finalized.
func released(v *kversion.Versions) BrokerVersions {
	b := BrokerVersions{
		Keys: make(map[int16]VersionRange), Supported: make(map[string]VersionRange),
		Finalized: make(map[string]int16), FinalizedEpoch: 1,
	}
	v.EachMaxKeyVersion(func(key, version int16) { b.Keys[key] = VersionRange{0, version} })
	v.EachSupportedFeature(func(name string, minLevel, maxLevel int16) { b.Supported[name] = VersionRange{minLevel, maxLevel} })
	v.EachFinalizedFeature(func(name string, level int16) { b.Finalized[name] = level })
	return b
}

// kipBuild is a build of the voting text on Kafka 4.2: key 93 appears when
// share.version 2 is finalized.
func kipBuild(shareVersion, transactionVersion int16) BrokerVersions {
	b := released(kversion.V4_2_0())
	b.Supported["share.version"] = VersionRange{0, 2}
	b.Finalized["share.version"] = shareVersion
	b.Finalized["transaction.version"] = transactionVersion
	if shareVersion >= 2 {
		b.Keys[93] = VersionRange{0, 0}
	}
	return b
}

// draftBuild is a build of the newest draft on Kafka 4.4: key 95 is always there.
func draftBuild(shareVersion int16) BrokerVersions {
	b := released(kversion.V4_4_0())
	b.Supported["share.version"] = VersionRange{0, 3}
	b.Finalized["share.version"] = shareVersion
	b.Keys[95] = VersionRange{0, 0}
	return b
}

func with(b BrokerVersions, change func(*BrokerVersions)) BrokerVersions {
	b.Keys, b.Supported, b.Finalized = maps.Clone(b.Keys), maps.Clone(b.Supported), maps.Clone(b.Finalized)
	change(&b)
	return b
}

func TestDetect(t *testing.T) {
	stock44 := released(kversion.V4_4_0())
	silent := BrokerVersions{Err: errors.New("connection refused")}
	tests := map[string]struct {
		brokers  []BrokerVersions
		override string
		verdict  Verdict
		dialect  string
		reason   string // part of the sentence
	}{
		"kip with both levels finalized is usable":                    {[]BrokerVersions{kipBuild(2, 2)}, "", Usable, "kip", "api key 93 is advertised"},
		"kip below its share.version is present and not enabled":      {[]BrokerVersions{kipBuild(1, 2)}, "", NotEnabled, "kip", "share.version is finalized at 1"},
		"kip without transaction.version 2 is not enabled":            {[]BrokerVersions{kipBuild(2, 1)}, "", NotEnabled, "kip", "transaction.version is finalized at 1"},
		"draft with its level finalized is usable":                    {[]BrokerVersions{draftBuild(3)}, "", Usable, "draft", "api key 95 is advertised"},
		"draft at the level of the dead-letter queue is not enabled":  {[]BrokerVersions{draftBuild(2)}, "", NotEnabled, "draft", "enabled by level 3"},
		"stock 4.4 has key 93 and share.version 2 for other things":   {[]BrokerVersions{stock44}, "", NotSupported, "", "key 93 is StreamsGroupTopologyDescriptionUpdate"},
		"an override never turns stock 4.4 into the KIP":              {[]BrokerVersions{stock44}, "kip", NotSupported, "", "dead-letter queues (KIP-1191)"},
		"a level 3 without key 95 is something else":                  {[]BrokerVersions{with(draftBuild(2), func(b *BrokerVersions) { delete(b.Keys, 95) })}, "", NotSupported, "", "always advertises api key 95"},
		"stock 4.2 does not know the level":                           {[]BrokerVersions{released(kversion.V4_2_0())}, "", NotSupported, "", "knows levels up to 1"},
		"stock 4.0 does not know share.version":                       {[]BrokerVersions{released(kversion.V4_0_0())}, "", NotSupported, "", "does not know the feature"},
		"finalized levels without the key do not make a dialect":      {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { delete(b.Keys, 93) })}, "", NotSupported, "", "not advertised"},
		"key 94 beside 93 is Kafka 4.4":                               {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Keys[94] = VersionRange{} })}, "", NotSupported, "", "UnregisterController"},
		"ApiVersions v5 is a mark of Kafka 4.4":                       {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Keys[18] = VersionRange{0, 5} })}, "", NotSupported, "", "ApiVersions v5"},
		"TxnOffsetCommit v6 is a mark of Kafka 4.4":                   {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Keys[28] = VersionRange{0, 6} })}, "", NotSupported, "", "TxnOffsetCommit v6"},
		"DeleteGroups v3 is a mark of Kafka 4.4":                      {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Keys[42] = VersionRange{0, 3} })}, "", NotSupported, "", "DeleteGroups v3"},
		"StreamsGroupHeartbeat v1 is a mark of Kafka 4.4":             {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Keys[88] = VersionRange{0, 1} })}, "", NotSupported, "", "StreamsGroupHeartbeat v1"},
		"metadata.version 31 is a mark of Kafka 4.4":                  {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Supported["metadata.version"] = VersionRange{7, 31} })}, "", NotSupported, "", "metadata.version 31"},
		"key 93 with a level that the KIP does not have is ambiguous": {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Supported["share.version"] = VersionRange{0, 3} })}, "", Ambiguous, "kip", "may be StreamsGroupTopologyDescriptionUpdate"},
		"an override settles what is ambiguous":                       {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Supported["share.version"] = VersionRange{0, 3} })}, "kip", Usable, "kip", "was asked for"},
		"an override does not stand for a level": {[]BrokerVersions{with(kipBuild(1, 2), func(b *BrokerVersions) {
			b.Supported["share.version"] = VersionRange{0, 3}
			b.Keys[93] = VersionRange{}
		})}, "kip", NotEnabled, "kip", "finalized at 1"},
		"key 93 without a list of supported levels is ambiguous":    {[]BrokerVersions{with(kipBuild(2, 2), func(b *BrokerVersions) { b.Supported = nil })}, "", Ambiguous, "kip", "does not list the levels"},
		"brokers of two builds are mixed":                           {[]BrokerVersions{kipBuild(2, 2), released(kversion.V4_2_0())}, "", Mixed, "", "brokers do not agree"},
		"a silent broker does not change the verdict of the others": {[]BrokerVersions{silent, kipBuild(2, 2)}, "", Usable, "kip", "api key 93"},
		"a cluster of silent brokers is unknown":                    {[]BrokerVersions{silent}, "", Unknown, "", "no broker answered"},
		"no broker at all is unknown":                               {nil, "", Unknown, "", "no broker answered"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for i := range tt.brokers {
				tt.brokers[i].NodeID = int32(i)
			}
			got := Detect(tt.brokers, tt.override)
			if got.Verdict != tt.verdict || got.Dialect.Name != tt.dialect || !strings.Contains(got.Reason, tt.reason) {
				t.Errorf("Detect = %s, dialect %q: %s\nwant %s, dialect %q: …%s…", got.Verdict, got.Dialect.Name, got.Reason, tt.verdict, tt.dialect, tt.reason)
			}
			if len(got.Brokers) != len(tt.brokers) {
				t.Errorf("Detect has verdicts about %d brokers, want %d", len(got.Brokers), len(tt.brokers))
			}
		})
	}
}

// A draft build at an unfinalized epoch has no finalized levels to go by.
func TestDetectIgnoresFinalizedLevelsOfUnknownEpoch(t *testing.T) {
	b := draftBuild(3)
	b.FinalizedEpoch, b.Finalized = -1, map[string]int16{}
	if got := Detect([]BrokerVersions{b}, ""); got.Verdict != NotEnabled {
		t.Errorf("Detect = %s, want %s", got.Verdict, NotEnabled)
	}
}
