package feature

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
)

// Agreement says whether brokers agree about something.
type Agreement string

// The kinds of agreement. Skew wins over Incomplete.
const (
	Agreed     Agreement = "agreed"
	Skew       Agreement = "skew"       // brokers that answered differ
	Incomplete Agreement = "incomplete" // those that know agree, others do not know
	Unknown    Agreement = "unknown"    // no broker knows
)

// Report is what the brokers of a cluster say of its features. It is not
// changed after it was made.
type Report struct {
	ClusterID string    `json:"-"`
	Features  []Feature `json:"-"` // sorted by name

	// Epoch is the newest metadata offset that a broker reports levels of.
	Epoch   *int64   `json:"epoch"`
	TxnAcks TxnAcks  `json:"txn_share_acknowledge"`
	Brokers []Broker `json:"brokers"` // sorted by node ID
	Hints   []Hint   `json:"hints"`

	controller int32 // node that takes UpdateFeatures; -1 when none answers
	support    cluster.Support
	versions   []cluster.BrokerVersions // as Brokers
}

// TxnAcks is the verdict about transactional acknowledgement on a cluster.
type TxnAcks struct {
	Verdict string  `json:"verdict"` // see [cluster.Verdict]
	Dialect *string `json:"dialect"` // null when no dialect fits
	Reason  string  `json:"reason"`
}

// Broker is one broker. What a silent broker would have said is nil.
type Broker struct {
	NodeID  int32  `json:"node_id"`
	Host    string `json:"host"`
	Port    int32  `json:"port"`
	Error   string `json:"error,omitempty"` // why it did not answer
	Fenced  bool   `json:"fenced"`
	Epoch   *int64 `json:"epoch"` // nil also when the broker does not know it
	Verdict string `json:"txn_share_acknowledge"`
	// Advertised says whether the broker's ApiVersions has the api key of the
	// dialect; nil when it did not answer or no dialect fits.
	Advertised *bool  `json:"txn_share_acknowledge_advertised"`
	Reason     string `json:"reason"`
}

// Feature is one feature as all brokers together have it.
type Feature struct {
	Name string `json:"feature"`
	// Min and Max are the levels that every broker which answered supports; nil
	// when no broker says.
	Min *int16 `json:"supported_min"`
	Max *int16 `json:"supported_max"`
	// Finalized is the level in force, by the broker with the newest epoch; nil
	// when no broker knows.
	Finalized     *int16    `json:"finalized_level"`
	FinalizedName string    `json:"finalized_level_name,omitempty"`
	State         Agreement `json:"state"`
	Meaning       *string   `json:"meaning"` // of Finalized; null with it
	// Levels are all levels from Min to Max, for features whose levels are few.
	Levels  []Level        `json:"levels"`
	Brokers []BrokerLevels `json:"brokers"` // sorted by node ID
}

// Level is a level and what it means on this cluster.
type Level struct {
	Level   int16  `json:"level"`
	Meaning string `json:"meaning"`
}

// BrokerLevels is what one broker says of one feature; nil where it does not.
type BrokerLevels struct {
	NodeID    int32  `json:"node_id"`
	Min       *int16 `json:"supported_min"`
	Max       *int16 `json:"supported_max"`
	Finalized *int16 `json:"finalized_level"`
	Epoch     *int64 `json:"epoch"`
}

// Hint is a useful level that every broker supports and that is not finalized.
type Hint struct {
	Feature string `json:"feature"`
	Level   int16  `json:"level"`
	Meaning string `json:"meaning"`
	Command string `json:"command"`
}

// DescribeOptions are the options of [Describe].
type DescribeOptions struct {
	// Dialect names the dialect to assume where the numbers are ambiguous; ""
	// assumes none.
	Dialect string
}

// Describe asks every broker for its features. Brokers that do not answer are in
// the report with the reason. It may return *cluster.DialError or
// *cluster.AuthError.
func Describe(ctx context.Context, cl Cluster, o DescribeOptions) (*Report, error) {
	d, err := cl.Describe(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe features: %w", err)
	}
	return NewReport(d, o.Dialect), nil
}

// NewReport joins what the brokers said. dialect is that of [DescribeOptions].
func NewReport(d cluster.Description, dialect string) *Report {
	r := &Report{
		ClusterID: d.ClusterID, controller: -1,
		versions: d.Brokers, support: cluster.Detect(d.Brokers, dialect),
	}
	r.TxnAcks = TxnAcks{Verdict: r.support.Verdict.String(), Reason: r.support.Reason}
	if name := r.support.Dialect.Name; name != "" {
		r.TxnAcks.Dialect = &name
	}
	for i, b := range d.Brokers {
		r.Brokers = append(r.Brokers, newBroker(b, r.support.Brokers[i]))
		if b.Err == nil && (r.controller < 0 || b.NodeID == d.ControllerID) {
			r.controller = b.NodeID
		}
	}
	newest := newestEpoch(d.Brokers)
	if newest != nil {
		r.Epoch = new(newest.FinalizedEpoch)
	}
	for _, name := range featureNames(d.Brokers) {
		r.Features = append(r.Features, r.newFeature(name, newest))
	}
	r.Hints = r.hints()
	return r
}

func newBroker(b cluster.BrokerVersions, s cluster.BrokerSupport) Broker {
	out := Broker{NodeID: b.NodeID, Host: b.Host, Port: b.Port, Verdict: s.Verdict.String(), Reason: s.Reason}
	if b.Err != nil {
		out.Error = b.Err.Error()
		out.Fenced = isFenced(b)
		return out
	}
	if b.FinalizedEpoch >= 0 {
		out.Epoch = new(b.FinalizedEpoch)
	}
	if s.Dialect.Name != "" {
		_, ok := b.Keys[s.Dialect.Key]
		out.Advertised = &ok
	}
	return out
}

// newestEpoch returns the broker that knows the newest levels; nil if none
// knows any.
func newestEpoch(brokers []cluster.BrokerVersions) *cluster.BrokerVersions {
	var newest *cluster.BrokerVersions
	for i, b := range brokers {
		if b.Err == nil && b.FinalizedEpoch >= 0 && (newest == nil || b.FinalizedEpoch > newest.FinalizedEpoch) {
			newest = &brokers[i]
		}
	}
	return newest
}

func featureNames(brokers []cluster.BrokerVersions) []string {
	names := make(map[string]bool)
	for _, b := range brokers {
		for name := range b.Supported {
			names[name] = true
		}
		for name := range b.Finalized {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// maxListedLevels is up to how many levels a feature has them listed with their
// meaning. metadata.version has more, and nobody chooses one by reading them.
const maxListedLevels = 8

func (r *Report) newFeature(name string, newest *cluster.BrokerVersions) Feature {
	f := Feature{Name: name}
	for _, b := range r.versions {
		f.Brokers = append(f.Brokers, newBrokerLevels(name, b))
	}
	f.Min, f.Max = commonRange(f.Brokers)
	f.State = agreement(f.Brokers)
	if newest != nil {
		level := newest.Finalized[name]
		f.Finalized = &level
		f.FinalizedName = LevelName(name, level)
		f.Meaning = new(Meaning(name, level, r.support))
	}
	if f.Min != nil && *f.Max-*f.Min < maxListedLevels {
		for level := *f.Min; level <= *f.Max; level++ {
			f.Levels = append(f.Levels, Level{level, Meaning(name, level, r.support)})
		}
	}
	return f
}

func newBrokerLevels(name string, b cluster.BrokerVersions) BrokerLevels {
	out := BrokerLevels{NodeID: b.NodeID}
	if b.Err != nil {
		return out
	}
	if b.Supported != nil {
		// A feature that the software does not know is one at level 0, as the
		// controller has it.
		out.Min, out.Max = new(b.Supported[name].Min), new(b.Supported[name].Max)
	}
	if b.FinalizedEpoch >= 0 {
		out.Finalized, out.Epoch = new(b.Finalized[name]), new(b.FinalizedEpoch)
	}
	return out
}

// commonRange returns the levels that all brokers which say anything support;
// nil when none says, or when they have no level in common.
func commonRange(brokers []BrokerLevels) (lo, hi *int16) {
	for _, b := range brokers {
		switch {
		case b.Min == nil:
		case lo == nil:
			lo, hi = new(*b.Min), new(*b.Max)
		default:
			*lo, *hi = max(*lo, *b.Min), min(*hi, *b.Max)
		}
	}
	if lo != nil && *lo > *hi {
		return nil, nil
	}
	return lo, hi
}

func agreement(brokers []BrokerLevels) Agreement {
	var known, unknown int
	var first *BrokerLevels
	skew := false
	for i, b := range brokers {
		if b.Min == nil || b.Finalized == nil {
			unknown++
		}
		if b.Min == nil && b.Finalized == nil {
			continue
		}
		known++
		if first == nil {
			first = &brokers[i]
			continue
		}
		skew = skew || differ(first.Min, b.Min) || differ(first.Max, b.Max) || differ(first.Finalized, b.Finalized)
	}
	switch {
	case skew:
		return Skew
	case known == 0:
		return Unknown
	case unknown > 0:
		return Incomplete
	}
	return Agreed
}

func differ(a, b *int16) bool { return a != nil && b != nil && *a != *b }

// Feature returns a feature by name; false if no broker knows it.
func (r *Report) Feature(name string) (Feature, bool) {
	for _, f := range r.Features {
		if f.Name == name {
			return f, true
		}
	}
	return Feature{}, false
}

// Verdict returns whether TxnShareAcknowledge may be sent to the cluster.
func (r *Report) Verdict() cluster.Verdict { return r.support.Verdict }

// Incomplete reports whether a broker did not answer, or does not know the
// levels in force.
func (r *Report) Incomplete() bool { return len(r.Unknowns()) > 0 }

// Unknowns says, a sentence each, what could not be read, by node ID.
func (r *Report) Unknowns() []string {
	if len(r.versions) == 0 {
		return []string{"no broker is known"}
	}
	var out []string
	for _, b := range r.versions {
		switch {
		case isFenced(b):
			out = append(out, fmt.Sprintf("broker %d is %v", b.NodeID, b.Err))
		case b.Err != nil:
			out = append(out, fmt.Sprintf("broker %d (%s:%d) did not answer: %s", b.NodeID, b.Host, b.Port, cause(b.Err)))
		case b.FinalizedEpoch < 0:
			out = append(out, fmt.Sprintf("broker %d does not know which levels are finalized (epoch -1)", b.NodeID))
		case b.Supported == nil:
			out = append(out, fmt.Sprintf("broker %d answers ApiVersions below v4, which leaves out the levels it supports", b.NodeID))
		}
	}
	return out
}

// Skews says, a sentence each, what brokers do not agree about, by feature.
func (r *Report) Skews() []string {
	var out []string
	for _, f := range r.Features {
		if f.State != Skew {
			continue
		}
		parts := make([]string, 0, len(f.Brokers))
		for _, b := range f.Brokers {
			parts = append(parts, fmt.Sprintf("broker %d supports %s and is at %s", b.NodeID, rangeText(b.Min, b.Max), pointerText(b.Finalized)))
		}
		out = append(out, fmt.Sprintf("skew in %s: %s", f.Name, strings.Join(parts, ", ")))
	}
	return out
}

func rangeText(lo, hi *int16) string {
	switch {
	case lo == nil:
		return "?"
	case *lo == 0 && *hi == 0:
		return "no level"
	}
	return fmt.Sprintf("%d-%d", *lo, *hi)
}

func pointerText(level *int16) string {
	if level == nil {
		return "?"
	}
	return fmt.Sprint(*level)
}

func isFenced(b cluster.BrokerVersions) bool { return errors.Is(b.Err, cluster.ErrFenced) }

// cause is the text of an error of cluster without what was being done, which
// the sentence around it says.
func cause(err error) string {
	return strings.TrimPrefix(err.Error(), "read ApiVersions: ")
}

// hints returns the commands that raise features to the levels that every
// broker supports. Where something is not known there are none: an upgrade
// would be refused.
func (r *Report) hints() []Hint {
	if r.Incomplete() {
		return nil
	}
	var out []Hint
	if r.support.Verdict == cluster.NotEnabled {
		d := r.support.Dialect
		out = append(out, Hint{
			Feature: wire.FeatureShareVersion, Level: d.ShareVersion, Meaning: txnAcksText(d),
			Command: "kshare feature upgrade --enable " + EnableTxnAcks,
		})
	}
	for _, f := range r.Features {
		switch {
		case f.Name == kraftVersion, f.Max == nil, f.Finalized == nil, *f.Max <= *f.Finalized:
			continue
		case f.Name == wire.FeatureShareVersion && len(out) > 0 && *f.Max == out[0].Level:
			continue // what --enable does
		}
		u := Update{f.Name, *f.Max}
		out = append(out, Hint{
			Feature: f.Name, Level: u.Level, Meaning: Meaning(f.Name, u.Level, r.support),
			Command: "kshare feature upgrade " + u.String(),
		})
	}
	return out
}
