package feature

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kversion"
)

// metadataVersion is the feature whose levels have names, such as 4.4-IV0.
const metadataVersion = "metadata.version"

// kraftVersion is how the quorum of controllers is formed. Raising it is a
// change of the quorum, which nobody should be talked into by a hint.
const kraftVersion = "kraft.version"

// Update is a level that is wanted.
type Update struct {
	Feature string `json:"feature"`
	Level   int16  `json:"level"`
}

// String returns NAME=LEVEL.
func (u Update) String() string { return fmt.Sprintf("%s=%d", u.Feature, u.Level) }

// ParseUpdate parses NAME=LEVEL. A level is a number from 0 to 32767; that of
// metadata.version may also be a name, such as 4.4-IV0.
func ParseUpdate(s string) (Update, error) {
	name, level, ok := strings.Cut(s, "=")
	if !ok {
		return Update{}, fmt.Errorf("%q: want NAME=LEVEL, such as share.version=1", s)
	}
	n, err := parseLevel(name, level)
	return Update{Feature: name, Level: n}, err
}

// parseLevel parses a level of a feature; see [ParseUpdate].
func parseLevel(name, level string) (int16, error) {
	if !validName(name) {
		return 0, fmt.Errorf("%q: want the name of a feature, such as share.version", name)
	}
	n, err := strconv.ParseInt(level, 10, 16)
	switch {
	case err == nil && n >= 0:
		return int16(n), nil
	case name == metadataVersion:
		if n, ok := metadataLevel(level); ok {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s=%s: want a level, a number from 0 to 32767", name, level)
}

// validName holds for what can be the name of a feature, so that no mistyped
// argument is taken for one.
func validName(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_' {
			return false
		}
	}
	return s != ""
}

// Release is a release of Apache Kafka and the levels that its brokers know.
type Release struct {
	Name   string         `json:"release"` // such as "4.4"
	Levels []ReleaseLevel `json:"features"`
}

// ReleaseLevel is one feature in a release.
type ReleaseLevel struct {
	Feature string `json:"feature"`
	Min     int16  `json:"supported_min"`
	Max     int16  `json:"supported_max"`
	// Default is the level of a new cluster.
	Default int16 `json:"default_level"`
	// LevelName is the name of Default; "" where levels have none.
	LevelName string `json:"level_name,omitempty"`
	Meaning   string `json:"meaning"` // of Default
}

// Releases returns the releases of Apache Kafka that have features, 3.3 being
// the first, oldest first, with features sorted by name. The slice is the
// caller's.
func Releases() []Release {
	var out []Release
	versions := kversion.VersionStrings()
	slices.Reverse(versions) // newest first
	for _, s := range versions {
		v := kversion.FromString(s)
		r := Release{Name: releaseName(s)}
		defaults := make(map[string]int16)
		v.EachFinalizedFeature(func(name string, level int16) { defaults[name] = level })
		v.EachSupportedFeature(func(name string, lo, hi int16) {
			level := defaults[name]
			r.Levels = append(r.Levels, ReleaseLevel{
				Feature: name, Min: lo, Max: hi, Default: level,
				LevelName: LevelName(name, level), Meaning: ReleasedMeaning(name, level),
			})
		})
		if len(r.Levels) == 0 {
			continue
		}
		slices.SortFunc(r.Levels, func(a, b ReleaseLevel) int { return strings.Compare(a.Feature, b.Feature) })
		out = append(out, r)
	}
	return out
}

// releaseName turns kversion's "v4.4" into "4.4".
func releaseName(s string) string { return strings.TrimPrefix(s, "v") }

// knownFeatures returns the names of the features of all releases, sorted.
func knownFeatures() []string {
	var names []string
	for _, r := range Releases() {
		for _, l := range r.Levels {
			if !slices.Contains(names, l.Feature) {
				names = append(names, l.Feature)
			}
		}
	}
	slices.Sort(names)
	return names
}

// since returns the first release whose software knows a level; "" if none does.
func since(name string, level int16) string {
	for _, r := range Releases() {
		for _, l := range r.Levels {
			if l.Feature == name && l.Min <= level && level <= l.Max {
				return r.Name
			}
		}
	}
	return ""
}

// LevelName returns the name of a level, such as 4.4-IV0, and "" for features
// whose levels have none.
func LevelName(name string, level int16) string {
	if name != metadataVersion {
		return ""
	}
	n, _, ok := strings.Cut(kversion.FeatureLevelDescription(name, level), ": ")
	if !ok {
		return ""
	}
	return n
}

// metadataLevel is the inverse of LevelName.
func metadataLevel(levelName string) (int16, bool) {
	for level := int16(0); ; level++ {
		n := LevelName(metadataVersion, level)
		switch {
		case n == levelName && n != "":
			return level, true
		case n == "" && level > 0 && kversion.FeatureLevelDescription(metadataVersion, level) == "":
			return 0, false
		}
	}
}

// levelText is a level with its name where it has one: "31 (4.4-IV0)".
func levelText(name string, level int16) string {
	if n := LevelName(name, level); n != "" {
		return fmt.Sprintf("%d (%s)", level, n)
	}
	return strconv.Itoa(int(level))
}

// ReleasedMeaning says what a level means in released Apache Kafka; "" if it is
// no level there.
func ReleasedMeaning(name string, level int16) string {
	if name == wire.FeatureShareVersion {
		if kversion.FeatureLevelDescription(name, level) == "" {
			return ""
		}
		return cluster.ShareVersionMeaning(level)
	}
	text := kversion.FeatureLevelDescription(name, level)
	if name == metadataVersion {
		_, text, _ = strings.Cut(text, ": ")
	}
	return text
}

// sense is what a level of share.version switches on, on one cluster.
type sense struct {
	text        string
	shareGroups bool
	deadLetters bool
	txnAcks     bool
}

// shareSense says what a level of share.version means on a cluster that
// [cluster.Detect] judged so. Where that is not certain, all that it may switch
// on counts, so that a safety check errs on the safe side.
func shareSense(level int16, s cluster.Support) sense {
	out := sense{shareGroups: level >= 1, text: ReleasedMeaning(wire.FeatureShareVersion, level)}
	released := level >= releasedDeadLetters
	d := s.Dialect
	switch s.Verdict {
	case cluster.Usable, cluster.NotEnabled:
		out.txnAcks = level >= d.ShareVersion
		// A dialect that took the number over has no dead-letter queue yet.
		out.deadLetters = released && d.ShareVersion != releasedDeadLetters
		if level == d.ShareVersion {
			out.text = txnAcksText(d)
		}
	case cluster.Ambiguous:
		out.txnAcks, out.deadLetters = level >= d.ShareVersion, released
		if level == d.ShareVersion {
			out.text = eitherText(txnAcksText(d), out.text)
		}
	case cluster.NotSupported:
		out.deadLetters = released
	case cluster.Mixed, cluster.Unknown:
		out.txnAcks, out.deadLetters = released, released
		if released {
			out.text = "not known: " + s.Reason
		}
	}
	if out.text == "" {
		out.text = "not a level that kshare knows"
	}
	return out
}

// releasedDeadLetters is the share.version that is the dead-letter queue in
// released Kafka (4.4, KIP-1191).
const releasedDeadLetters = 2

func txnAcksText(d wire.Dialect) string {
	return fmt.Sprintf("share groups with transactional acknowledgement (KIP-1289, dialect %q)", d.Name)
}

func eitherText(a, b string) string {
	if b == "" {
		return a + ", or something else"
	}
	return a + ", or " + b
}

// Meaning says what a level of a feature means on a cluster that
// [cluster.Detect] judged so.
func Meaning(name string, level int16, s cluster.Support) string {
	if name == wire.FeatureShareVersion {
		return shareSense(level, s).text
	}
	if text := ReleasedMeaning(name, level); text != "" {
		return text
	}
	return "not a level that kshare knows"
}

// Dependency is what a level needs of another feature.
type Dependency struct {
	Feature  string `json:"feature"`
	Level    int16  `json:"level"`
	Dialect  string `json:"dialect,omitempty"` // where the level means this only in a dialect
	Needs    string `json:"needs_feature"`
	NeedsMin int16  `json:"needs_level"`
	// EnforcedBy is "controller" where UpdateFeatures is refused without it,
	// and "broker" where only requests are.
	EnforcedBy string `json:"enforced_by"`
}

// Dependencies returns what is known of levels that need another feature,
// sorted by feature and level. The slice is the caller's.
func Dependencies() []Dependency {
	out := []Dependency{{
		Feature: "eligible.leader.replicas.version", Level: 1,
		Needs: metadataVersion, NeedsMin: metadataVersionOfELR, EnforcedBy: "controller",
	}}
	for _, d := range wire.Dialects() {
		out = append(out, Dependency{
			Feature: wire.FeatureShareVersion, Level: d.ShareVersion, Dialect: d.Name,
			Needs: wire.FeatureTransactionVersion, NeedsMin: wire.TransactionVersion, EnforcedBy: "broker",
		})
	}
	return out
}

// metadataVersionOfELR is 4.0-IV1 (KIP-966).
const metadataVersionOfELR = 23

// CheckKnown returns an error if no release and no dialect has that level.
func CheckKnown(u Update) error {
	names := knownFeatures()
	if !slices.Contains(names, u.Feature) {
		return fmt.Errorf("feature %q is not known; known are %s", u.Feature, strings.Join(names, ", "))
	}
	if ReleasedMeaning(u.Feature, u.Level) != "" {
		return nil
	}
	for _, d := range wire.Dialects() {
		if u.Feature == wire.FeatureShareVersion && u.Level == d.ShareVersion {
			return nil
		}
	}
	return fmt.Errorf("level %d of %s is not known", u.Level, u.Feature)
}
