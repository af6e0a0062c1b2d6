package feature

import (
	"errors"
	"maps"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kversion"
)

// The evidence of tests: what brokers of some builds answer.

// released is a broker of a released Kafka, with the features of a new cluster
// finalized.
func released(v *kversion.Versions) cluster.BrokerVersions {
	b := cluster.BrokerVersions{
		Keys: make(map[int16]cluster.VersionRange), Supported: make(map[string]cluster.VersionRange),
		Finalized: make(map[string]int16), FinalizedEpoch: 7,
	}
	v.EachMaxKeyVersion(func(key, version int16) { b.Keys[key] = cluster.VersionRange{Max: version} })
	v.EachSupportedFeature(func(name string, lo, hi int16) { b.Supported[name] = cluster.VersionRange{Min: lo, Max: hi} })
	v.EachFinalizedFeature(func(name string, level int16) {
		if level > 0 {
			b.Finalized[name] = level
		}
	})
	return b
}

// stock44 is a stock Kafka 4.4 at a level of share.version.
func stock44(shareVersion int16) cluster.BrokerVersions {
	return at(released(kversion.V4_4_0()), "share.version", shareVersion)
}

// kip is a build of the text put to the vote, on Kafka 4.3.
func kip(shareVersion, transactionVersion int16) cluster.BrokerVersions {
	b := released(kversion.V4_3_0())
	b.Supported["share.version"] = cluster.VersionRange{Max: 2}
	if shareVersion >= 2 {
		b.Keys[93] = cluster.VersionRange{}
	}
	return at(at(b, "share.version", shareVersion), "transaction.version", transactionVersion)
}

// draft is a build of the newest draft, on Kafka 4.4.
func draft(shareVersion int16) cluster.BrokerVersions {
	b := released(kversion.V4_4_0())
	b.Supported["share.version"] = cluster.VersionRange{Max: 3}
	b.Keys[95] = cluster.VersionRange{}
	return at(b, "share.version", shareVersion)
}

func at(b cluster.BrokerVersions, name string, level int16) cluster.BrokerVersions {
	b.Finalized = maps.Clone(b.Finalized)
	delete(b.Finalized, name)
	if level > 0 {
		b.Finalized[name] = level
	}
	return b
}

func supporting(b cluster.BrokerVersions, name string, lo, hi int16) cluster.BrokerVersions {
	b.Supported = maps.Clone(b.Supported)
	b.Supported[name] = cluster.VersionRange{Min: lo, Max: hi}
	return b
}

func atEpoch(b cluster.BrokerVersions, epoch int64) cluster.BrokerVersions {
	b.FinalizedEpoch = epoch
	if epoch < 0 {
		b.Finalized = map[string]int16{}
	}
	return b
}

func silent() cluster.BrokerVersions {
	return cluster.BrokerVersions{FinalizedEpoch: -1, Err: &cluster.Error{Op: "read ApiVersions", Broker: 1, Err: errors.New("connection refused")}}
}

// described numbers brokers from 0.
func described(brokers ...cluster.BrokerVersions) cluster.Description {
	d := cluster.Description{ClusterID: "c1", ControllerID: 0}
	for i, b := range brokers {
		b.NodeID, b.Host, b.Port = int32(i), "broker", 9092
		d.Brokers = append(d.Brokers, b)
	}
	return d
}

func report(brokers ...cluster.BrokerVersions) *Report { return NewReport(described(brokers...), "") }
