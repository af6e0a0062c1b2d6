package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Verdict says whether TxnShareAcknowledge may be sent to a broker or cluster.
type Verdict int8

const (
	// NotSupported: the software does not implement KIP-1289, or what looks
	// like it is something else in released Kafka.
	NotSupported Verdict = iota
	// NotEnabled: implemented, but a feature level is not finalized.
	NotEnabled
	// Ambiguous: the numbers fit a dialect and something else too.
	Ambiguous
	// Usable: the request may be sent.
	Usable
	// Mixed: brokers that answered do not agree. For a whole cluster only.
	Mixed
	// Unknown: the broker did not answer; for a cluster, none did.
	Unknown
)

// String returns the verdict in words.
func (v Verdict) String() string {
	switch v {
	case NotSupported:
		return "not supported"
	case NotEnabled:
		return "present but not enabled"
	case Ambiguous:
		return "ambiguous"
	case Usable:
		return "usable"
	case Mixed:
		return "mixed"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("Verdict(%d)", int8(v))
}

// BrokerSupport is the verdict about one broker.
type BrokerSupport struct {
	NodeID  int32
	Verdict Verdict
	Dialect wire.Dialect // the zero value when no dialect fits
	Reason  string       // one sentence without a full stop
}

// Support is the verdict about a cluster.
type Support struct {
	Verdict Verdict
	Dialect wire.Dialect // the zero value when no dialect fits
	Reason  string       // one sentence without a full stop
	Brokers []BrokerSupport
}

// Detect decides from the ApiVersions of every broker which dialect of KIP-1289
// a cluster speaks (the reference's section 6.4). It is pure. override names a
// dialect to assume where the numbers are ambiguous, and only there; "" assumes
// none. Brokers that did not answer count for nothing unless none did.
func Detect(brokers []BrokerVersions, override string) Support {
	s := Support{Verdict: Unknown, Reason: "no broker answered ApiVersions"}
	first := true
	for _, b := range brokers {
		bs := detectBroker(b, override)
		s.Brokers = append(s.Brokers, bs)
		switch {
		case bs.Verdict == Unknown:
		case first:
			first = false
			s.Verdict, s.Dialect, s.Reason = bs.Verdict, bs.Dialect, bs.Reason
		case s.Verdict != Mixed && (bs.Verdict != s.Verdict || bs.Dialect.Name != s.Dialect.Name):
			s.Verdict, s.Dialect = Mixed, wire.Dialect{}
		}
	}
	if s.Verdict == Unknown && len(s.Brokers) > 0 {
		s.Reason += "; " + s.Brokers[0].Reason
	}
	if s.Verdict == Mixed {
		parts := make([]string, 0, len(s.Brokers))
		for _, b := range s.Brokers {
			parts = append(parts, fmt.Sprintf("broker %d is %s", b.NodeID, b.Verdict))
		}
		s.Reason = "brokers do not agree: " + strings.Join(parts, ", ")
	}
	return s
}

func detectBroker(b BrokerVersions, override string) BrokerSupport {
	out := BrokerSupport{NodeID: b.NodeID}
	if b.Err != nil {
		out.Verdict, out.Reason = Unknown, fmt.Sprintf("broker %d did not answer ApiVersions: %v", b.NodeID, b.Err)
		return out
	}
	dialects := wire.Dialects()
	slices.SortStableFunc(dialects, func(a, b wire.Dialect) int { return cmp.Compare(b.ShareVersion, a.ShareVersion) })
	stock := releasedFingerprints(b)
	var fit *BrokerSupport
	var reasons []string
	for _, d := range dialects {
		bs, fits := detectDialect(b, d, stock)
		switch {
		case !fits:
			reasons = append(reasons, bs.Reason)
		case fit == nil, hasKey(b, d.Key) && !hasKey(b, fit.Dialect.Key):
			fit = &bs // the newest dialect, but one whose key is there before one whose is not
		}
	}
	if fit == nil {
		out.Verdict, out.Reason = NotSupported, strings.Join(reasons, "; ")
		return out
	}
	out.Verdict, out.Dialect, out.Reason = fit.Verdict, fit.Dialect, fit.Reason
	if out.Verdict == Ambiguous && override == out.Dialect.Name {
		out.Verdict = Usable
		out.Reason = fmt.Sprintf("dialect %q was asked for, and the broker's numbers allow it", out.Dialect.Name)
	}
	if sv := b.Finalized[wire.FeatureShareVersion]; out.Verdict == Usable && sv < out.Dialect.ShareVersion {
		out.Verdict = NotEnabled
		out.Reason += fmt.Sprintf(", but share.version is finalized at %d and has to be %d", sv, out.Dialect.ShareVersion)
	}
	if tv := b.Finalized[wire.FeatureTransactionVersion]; out.Verdict == Usable && tv < wire.TransactionVersion {
		out.Verdict = NotEnabled
		out.Reason = fmt.Sprintf("transaction.version is finalized at %d and has to be %d", tv, wire.TransactionVersion)
	}
	return out
}

func hasKey(b BrokerVersions, key int16) bool {
	_, ok := b.Keys[key]
	return ok
}

// detectDialect judges one broker against one dialect. It returns false, with
// the reason, when the broker cannot be of that dialect.
func detectDialect(b BrokerVersions, d wire.Dialect, stock []string) (BrokerSupport, bool) {
	bs := BrokerSupport{Dialect: d}
	advertised := hasKey(b, d.Key)
	finalized := b.Finalized[wire.FeatureShareVersion]
	supported, listed := b.Supported[wire.FeatureShareVersion]
	meaning := releasedMeaning(d.Key)

	// Released software first: its numbers for other things are known.
	if len(stock) > 0 && d.ShareVersion <= releasedShareVersionMax {
		what := fmt.Sprintf("share.version=%d is %s here", d.ShareVersion, ShareVersionMeaning(d.ShareVersion))
		if advertised && meaning != "" {
			what += fmt.Sprintf(" and key %d is %s", d.Key, meaning)
		}
		bs.Reason = fmt.Sprintf("%s (%s)", what, strings.Join(stock, ", "))
		return bs, false
	}
	switch {
	case listed && supported.Max < d.ShareVersion:
		bs.Reason = fmt.Sprintf("dialect %q needs share.version %d, this software knows levels up to %d", d.Name, d.ShareVersion, supported.Max)
		return bs, false
	case !listed && b.Supported != nil:
		bs.Reason = fmt.Sprintf("dialect %q needs share.version %d, this software does not know the feature", d.Name, d.ShareVersion)
		return bs, false
	case !listed && !advertised:
		bs.Reason = fmt.Sprintf("dialect %q needs api key %d, which is not advertised", d.Name, d.Key)
		return bs, false
	case d.AlwaysAdvertised && !advertised:
		bs.Reason = fmt.Sprintf("dialect %q always advertises api key %d, which is not here: share.version %d is something else", d.Name, d.Key, d.ShareVersion)
		return bs, false
	case listed && supported.Max > d.ShareVersion && meaning != "":
		bs.Verdict = Ambiguous
		bs.Reason = fmt.Sprintf("share.version levels up to %d are known here, above the level %d of dialect %q, so api key %d may be %s", supported.Max, d.ShareVersion, d.Name, d.Key, meaning)
	case !listed && meaning != "":
		bs.Verdict = Ambiguous
		bs.Reason = fmt.Sprintf("api key %d is advertised, which is %s in released Kafka, and the broker does not list the levels it supports", d.Key, meaning)
	case finalized < d.ShareVersion:
		bs.Verdict = NotEnabled
		bs.Reason = fmt.Sprintf("share.version is finalized at %d, dialect %q is enabled by level %d", finalized, d.Name, d.ShareVersion)
	case !advertised:
		bs.Reason = fmt.Sprintf("share.version is finalized at %d but api key %d of dialect %q is not advertised", finalized, d.Key, d.Name)
		return bs, false
	default:
		bs.Verdict = Usable
		bs.Reason = fmt.Sprintf("dialect %q: share.version is finalized at %d and api key %d is advertised", d.Name, finalized, d.Key)
	}
	return bs, true
}

// releasedShareVersionMax is the highest share.version of released Kafka (4.4).
const releasedShareVersionMax = 2

// ShareVersionMeaning says what a share.version level means in released Kafka.
func ShareVersionMeaning(level int16) string {
	switch level {
	case 0:
		return "share groups off"
	case 1:
		return "share groups (KIP-932)"
	case 2:
		return "share groups with dead-letter queues (KIP-1191)"
	}
	return "not a level of released Kafka"
}

// releasedMeaning names the request that released Kafka has under key; "" when
// the key is free there. kmsg's table is that of released Kafka.
func releasedMeaning(key int16) string {
	if kmsg.RequestForKey(key) == nil {
		return ""
	}
	return kmsg.NameForKey(key)
}

// releasedFingerprints lists what marks a broker as Kafka 4.4 or later, where
// the numbers of the voting text mean other things. Empty for other software.
func releasedFingerprints(b BrokerVersions) []string {
	var out []string
	atLeast := func(key, version int16) {
		if r, ok := b.Keys[key]; ok && r.Max >= version {
			out = append(out, fmt.Sprintf("%s v%d", kmsg.NameForKey(key), r.Max))
		}
	}
	atLeast(int16(kmsg.ApiVersions), 5)
	atLeast(int16(kmsg.TxnOffsetCommit), 6)
	atLeast(int16(kmsg.DeleteGroups), 3)
	atLeast(int16(kmsg.StreamsGroupHeartbeat), 1)
	if r, ok := b.Supported["metadata.version"]; ok && r.Max >= metadataVersionOfDLQ {
		out = append(out, fmt.Sprintf("metadata.version %d", r.Max))
	}
	if hasKey(b, int16(kmsg.UnregisterController)) {
		out = append(out, "UnregisterController")
	}
	return out
}

// metadataVersionOfDLQ is 4.4-IV0, the first metadata.version whose
// share.version 2 is the dead-letter queue.
const metadataVersionOfDLQ = 31
