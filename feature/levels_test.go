package feature

import (
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kversion"
)

func TestParseUpdate(t *testing.T) {
	for in, want := range map[string]Update{
		"share.version=2":          {"share.version", 2},
		"share.version=0":          {"share.version", 0},
		"metadata.version=31":      {"metadata.version", 31},
		"metadata.version=4.4-IV0": {"metadata.version", 31},
		"x=32767":                  {"x", 32767},
	} {
		if got, err := ParseUpdate(in); err != nil || got != want {
			t.Errorf("ParseUpdate(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"share.version":            "want NAME=LEVEL",
		"share.version=":           "want a level",
		"share.version=-1":         "want a level",
		"share.version=32768":      "want a level",
		"share.version=1.0":        "want a level",
		"share.version=4.4-IV0":    "want a level",
		"share.version=1=2":        "want a level",
		"metadata.version=4.4-IV9": "want a level",
		"metadata.version=":        "want a level",
		"=1":                       "want the name of a feature",
		"Share Version=1":          "want the name of a feature",
		"share.version\x1b=1":      "want the name of a feature",
	} {
		if got, err := ParseUpdate(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseUpdate(%q) = %v, %v, want an error with %q", in, got, err, want)
		}
	}
}

func TestReleases(t *testing.T) {
	var names []string
	for _, r := range Releases() {
		names = append(names, r.Name)
		if !slices.IsSortedFunc(r.Levels, func(a, b ReleaseLevel) int { return strings.Compare(a.Feature, b.Feature) }) {
			t.Errorf("the features of %s are not sorted", r.Name)
		}
	}
	if want := []string{"3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3", "4.4"}; !slices.Equal(names[:min(len(names), len(want))], want) {
		t.Errorf("releases %v, want them to begin with %v", names, want)
	}
	i := slices.Index(names, "4.1")
	j := slices.IndexFunc(Releases()[i].Levels, func(l ReleaseLevel) bool { return l.Feature == "share.version" })
	got := Releases()[i].Levels[j]
	if want := (ReleaseLevel{Feature: "share.version", Min: 0, Max: 1, Default: 0, Meaning: "share groups off"}); got != want {
		t.Errorf("share.version of 4.1 is %+v, want %+v", got, want)
	}
}

func TestSince(t *testing.T) {
	for _, c := range []struct {
		name  string
		level int16
		want  string
	}{
		{"share.version", 1, "4.1"},
		{"share.version", 2, "4.4"},
		{"share.version", 3, ""},
		{"transaction.version", 2, "4.0"},
		{"metadata.version", 31, "4.4"},
		{"metadata.version", 1, "3.3"},
		{"no.such.feature", 1, ""},
	} {
		if got := since(c.name, c.level); got != c.want {
			t.Errorf("since(%s, %d) = %q, want %q", c.name, c.level, got, c.want)
		}
	}
}

// What a level means depends on the cluster, and on nothing else.
func TestMeaning(t *testing.T) {
	ambiguous := supporting(kip(2, 2), "share.version", 0, 3)
	ambiguous.Keys[93] = cluster.VersionRange{}
	for name, c := range map[string]struct {
		brokers []cluster.BrokerVersions
		feature string
		level   int16
		want    string
	}{
		"stock 4.4, 2 is the dead-letter queue":      {[]cluster.BrokerVersions{stock44(1)}, "share.version", 2, "share groups with dead-letter queues (KIP-1191)"},
		"stock 4.4, 3 is nothing":                    {[]cluster.BrokerVersions{stock44(1)}, "share.version", 3, "not a level that kshare knows"},
		"kip, 2 is the KIP":                          {[]cluster.BrokerVersions{kip(1, 2)}, "share.version", 2, `share groups with transactional acknowledgement (KIP-1289, dialect "kip")`},
		"kip, finalized":                             {[]cluster.BrokerVersions{kip(2, 2)}, "share.version", 2, `share groups with transactional acknowledgement (KIP-1289, dialect "kip")`},
		"draft, 2 is the dead-letter queue":          {[]cluster.BrokerVersions{draft(1)}, "share.version", 2, "share groups with dead-letter queues (KIP-1191)"},
		"draft, 3 is the KIP":                        {[]cluster.BrokerVersions{draft(1)}, "share.version", 3, `share groups with transactional acknowledgement (KIP-1289, dialect "draft")`},
		"1 is the same everywhere":                   {[]cluster.BrokerVersions{kip(1, 2), stock44(1)}, "share.version", 1, "share groups (KIP-932)"},
		"2 is not known where brokers do not agree":  {[]cluster.BrokerVersions{kip(1, 2), stock44(1)}, "share.version", 2, "not known: brokers do not agree"},
		"2 is not known where no broker answers":     {[]cluster.BrokerVersions{silent()}, "share.version", 2, "not known: no broker answered"},
		"one of two where the numbers fit both":      {[]cluster.BrokerVersions{ambiguous}, "share.version", 2, `(KIP-1289, dialect "kip"), or share groups with dead-letter queues`},
		"another feature is what released Kafka has": {[]cluster.BrokerVersions{kip(1, 2)}, "transaction.version", 2, kversion.FeatureLevelDescription("transaction.version", 2)},
		"metadata.version without its name":          {[]cluster.BrokerVersions{kip(1, 2)}, "metadata.version", 31, "dead letter queue for share groups (KIP-1191)"},
		"an unknown feature":                         {[]cluster.BrokerVersions{kip(1, 2)}, "x.version", 1, "not a level that kshare knows"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Meaning(c.feature, c.level, cluster.Detect(described(c.brokers...).Brokers, ""))
			if !strings.Contains(got, c.want) {
				t.Errorf("Meaning(%s, %d) = %q, want %q in it", c.feature, c.level, got, c.want)
			}
		})
	}
}

// A safety check goes by what a level may switch on.
func TestShareSense(t *testing.T) {
	for name, c := range map[string]struct {
		broker cluster.BrokerVersions
		level  int16
		want   sense
	}{
		"stock 4.4 at 2": {stock44(2), 2, sense{shareGroups: true, deadLetters: true}},
		"kip at 2":       {kip(2, 2), 2, sense{shareGroups: true, txnAcks: true}},
		"draft at 2":     {draft(3), 2, sense{shareGroups: true, deadLetters: true}},
		"draft at 3":     {draft(3), 3, sense{shareGroups: true, deadLetters: true, txnAcks: true}},
		"off":            {draft(3), 0, sense{}},
		"silent at 2":    {silent(), 2, sense{shareGroups: true, deadLetters: true, txnAcks: true}},
	} {
		got := shareSense(c.level, cluster.Detect([]cluster.BrokerVersions{c.broker}, ""))
		got.text = ""
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestCheckKnown(t *testing.T) {
	for u, want := range map[Update]string{
		{"share.version", 2}:     "",
		{"share.version", 3}:     "", // of the draft
		{"share.version", 4}:     "level 4 of share.version is not known",
		{"metadata.version", 33}: "",
		{"x.version", 1}:         `feature "x.version" is not known; known are eligible`,
	} {
		got := ""
		if err := CheckKnown(u); err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("CheckKnown(%s) = %q, want %q", u, got, want)
		}
	}
}
