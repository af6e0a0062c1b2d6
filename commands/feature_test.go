package commands

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kversion"
)

// parseFeature is [parse] for a line as a shell reads it.
func parseFeature[O, R any](t *testing.T, newCmd func(*Deps, runFunc[O, R]) *cobra.Command, args string) (O, error) {
	t.Helper()
	return parse(t, &Deps{}, newCmd, splitWords(args))
}

// All spellings of a level come to the same.
func TestFeatureChangeParsing(t *testing.T) {
	share2 := []feature.Update{{Feature: "share.version", Level: 2}}
	both := []feature.Update{{Feature: "share.version", Level: 2}, {Feature: "transaction.version", Level: 1}}
	change := func(u []feature.Update, change func(*featureChangeOptions)) featureChangeOptions {
		o := featureChangeOptions{featureTarget: featureTarget{Updates: u}, WaitTimeout: time.Minute}
		if change != nil {
			change(&o)
		}
		return o
	}
	for _, c := range []struct {
		args string
		want featureChangeOptions
	}{
		{"share.version=2", change(share2, nil)},
		{"--feature share.version=2", change(share2, nil)},
		{"--feature=share.version=2", change(share2, nil)},
		{"--feature share.version --version 2", change(share2, nil)},
		{"--version 2 --feature share.version", change(share2, nil)},
		{"transaction.version=1 share.version=2", change(both, nil)},
		{"share.version=2 --feature transaction.version=1", change(both, nil)},
		{"--feature transaction.version --version 1 --feature share.version --version 2", change(both, nil)},
		{"--feature transaction.version=1 --feature share.version --version 2", change(both, nil)},
		{"--feature metadata.version --version 4.4-IV0", change([]feature.Update{{Feature: "metadata.version", Level: 31}}, nil)},
		{"share.version=2 --dry-run --wait-timeout 5s --dialect kip", change(share2, func(o *featureChangeOptions) {
			o.DryRun, o.WaitTimeout, o.Dialect = true, 5*time.Second, "kip"
		})},
	} {
		for name, newCmd := range map[string]func(*Deps, runFunc[featureChangeOptions, *feature.Result]) *cobra.Command{
			"upgrade": newFeatureUpgradeCmd, "downgrade": newFeatureDowngradeCmd,
		} {
			if got, err := parseFeature(t, newCmd, c.args); err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("feature %s %s = %+v, %v, want %+v", name, c.args, got, err, c.want)
			}
		}
	}
	got, err := parseFeature(t, newFeatureUpgradeCmd, "--enable txn-acks")
	if want := change(nil, func(o *featureChangeOptions) { o.Enable = "txn-acks" }); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("feature upgrade --enable = %+v, %v, want %+v", got, err, want)
	}
	got, err = parseFeature(t, newFeatureDowngradeCmd, "share.version=2 --unsafe --force-live-producers")
	if want := change(share2, func(o *featureChangeOptions) { o.Unsafe, o.ForceLiveProducer = true, true }); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("feature downgrade --unsafe = %+v, %v, want %+v", got, err, want)
	}
}

func TestFeatureChangeUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                   "no level is given",
		"share.version":                      `feature "share.version" has no level`,
		"--feature share.version":            `feature "share.version" has no level`,
		"--version 2":                        "--version 2: there is no --feature without a level",
		"share.version --version 2":          `feature "share.version" has no level`,
		"--feature a.b=1 --version 2":        "--version 2: there is no --feature",
		"--feature a.b --version x":          "a.b=x: want a level",
		"share.version=-1":                   "share.version=-1: want a level, a number from 0 to 32767",
		"share.version=2 share.version=1":    "feature share.version is given twice",
		"share.version=two":                  "want a level",
		"Share=1":                            "want the name of a feature",
		"share.version=1 --dialect x":        `--dialect "x": want kip or draft`,
		"share.version=1 --wait-timeout 0s":  "--wait-timeout 0s: want a positive duration",
		"share.version=1 --wait-timeout=-1s": "want a positive duration",
	} {
		for name, newCmd := range map[string]func(*Deps, runFunc[featureChangeOptions, *feature.Result]) *cobra.Command{
			"upgrade": newFeatureUpgradeCmd, "downgrade": newFeatureDowngradeCmd,
		} {
			_, err := parseFeature(t, newCmd, args)
			if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), want) {
				t.Errorf("feature %s %s: error %v (%d), want a usage error with %q", name, args, err, code, want)
			}
		}
	}
	// Both spellings are shown to whoever knows neither.
	_, err := parseFeature(t, newFeatureUpgradeCmd, "--feature share.version")
	if _, hint := classify(err); hint != "write --feature share.version=LEVEL, or --feature share.version --version LEVEL" {
		t.Errorf("hint %q", hint)
	}
	for args, want := range map[string]string{
		"--enable dlq":                      `--enable "dlq": want txn-acks`,
		"--enable txn-acks share.version=1": "--enable and levels exclude each other",
	} {
		_, err := parseFeature(t, newFeatureUpgradeCmd, args)
		if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("feature upgrade %s: error %v (%d), want a usage error with %q", args, err, code, want)
		}
	}
}

func TestFeaturePlanParsing(t *testing.T) {
	both := []feature.Update{{Feature: "share.version", Level: 2}, {Feature: "transaction.version", Level: 2}}
	for _, args := range []string{
		"--to share.version=2,transaction.version=2", "--to transaction.version=2 --to share.version=2",
		"share.version=2 transaction.version=2", "share.version=2 --to transaction.version=2",
		"--feature share.version --version 2 --feature transaction.version=2",
	} {
		got, err := parseFeature(t, newFeaturePlanCmd, args)
		if err != nil || !reflect.DeepEqual(got.Updates, both) {
			t.Errorf("feature plan %s = %+v, %v, want %+v", args, got, err, both)
		}
	}
	if got, err := parseFeature(t, newFeaturePlanCmd, "--enable txn-acks"); err != nil || got.Enable != "txn-acks" || len(got.Updates) > 0 {
		t.Errorf("feature plan --enable = %+v, %v", got, err)
	}
	for _, args := range []string{"", "--to share.version", "--to x=1 --enable txn-acks"} {
		_, err := parseFeature(t, newFeaturePlanCmd, args)
		if code, _ := classify(err); code != exitUsage {
			t.Errorf("feature plan %s: %v (%d), want a usage error", args, err, code)
		}
	}
}

func TestFeatureTables(t *testing.T) {
	m, err := runFeatureMapping(t.Context(), nil, featureMappingOptions{Release: "4.1"})
	if err != nil || len(m.Releases) != 1 || m.Releases[0].Name != "4.1" || len(m.Dialects) != 2 {
		t.Errorf("mapping of 4.1 = %+v, %v", m, err)
	}
	_, err = runFeatureMapping(t.Context(), nil, featureMappingOptions{Release: "1.0"})
	if code, hint := classify(err); code != exitUsage || !strings.Contains(hint, "4.4") {
		t.Errorf("mapping of 1.0: %v (%d, %q), want a usage error that names the known ones", err, code, hint)
	}
	for level, want := range map[int16][]string{0: nil, 1: nil, 2: {"kip"}, 3: {"kip", "draft"}} {
		deps, err := runFeatureDependencies(t.Context(), nil, featureDependenciesOptions{Updates: []feature.Update{{Feature: "share.version", Level: level}}})
		var got []string
		for _, dep := range deps {
			got = append(got, dep.Dialect)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("dependencies of share.version=%d are of %q, %v, want %q", level, got, err, want)
		}
	}
	_, err = runFeatureDependencies(t.Context(), nil, featureDependenciesOptions{Updates: []feature.Update{{Feature: "x", Level: 1}}})
	if code, _ := classify(err); code != exitUsage {
		t.Errorf("dependencies of x: %v (%d), want a usage error", err, code)
	}
}

// The command to run next goes to the same cluster.
func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		bootstrap []string
		want      string
	}{
		{nil, "kshare feature describe"},
		{[]string{"a:1", "b:2"}, "kshare feature describe -b a:1,b:2"},
	} {
		d := &Deps{flags: &globalFlags{Bootstrap: c.bootstrap}}
		if got := d.command("kshare feature describe"); got != c.want {
			t.Errorf("command of %v = %q, want %q", c.bootstrap, got, c.want)
		}
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// Every view of the feature commands in every format, against files that are
// read as a user would.
func TestFeatureGolden(t *testing.T) {
	d := &Deps{Now: func() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }, flags: &globalFlags{}}
	skewed := goldenReport(t, 1, func(b []cluster.BrokerVersions) {
		b[2].Supported["share.version"] = cluster.VersionRange{Max: 1}
		b[1] = cluster.BrokerVersions{NodeID: 1, Host: "b1", Port: 9092, FinalizedEpoch: -1, Err: errors.New("connection refused")}
	})
	stock := goldenReport(t, 1, nil)
	up, err := feature.NewUpgrade(stock, []feature.Update{{Feature: "share.version", Level: 2}, {Feature: "transaction.version", Level: 2}})
	if err != nil {
		t.Fatal(err)
	}
	down, err := feature.NewDowngrade(stock, []feature.Update{{Feature: "transaction.version", Level: 1}}, false)
	if err != nil {
		t.Fatal(err)
	}
	open := &inspect.Evidence{Transactions: []inspect.Transaction{{
		TransactionalID: "billing-7", State: "Ongoing", ProducerID: 4000, Coordinator: 2, TimeoutMS: 60000,
		Started: time.Date(2026, 11, 29, 11, 59, 0, 0, time.UTC), Partitions: []inspect.TopicPartitions{{Topic: "shipped", Partitions: []int32{0}}},
	}}}
	refused := down.Result()
	if err := down.Guard(open, feature.GuardOptions{}); err == nil {
		t.Fatal("the guard lets a live producer be cut off")
	}
	refused.Transactions = down.Affected(open)
	plan, err := feature.NewPlan(stock, []feature.Update{{Feature: "share.version", Level: 2}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	planDown, err := feature.NewPlan(stock, []feature.Update{{Feature: "transaction.version", Level: 1}}, open)
	if err != nil {
		t.Fatal(err)
	}
	mapping, err := runFeatureMapping(t.Context(), nil, featureMappingOptions{Release: "4.4"})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]output.View{
		"describe":      featureDescribeView(d, stock),
		"describe_skew": featureDescribeView(d, skewed),
		"plan":          featurePlanView(d, plan),
		"plan_down":     featurePlanView(d, planDown),
		"upgrade":       featureChangeView("feature.upgrade", up.Result()),
		"downgrade":     featureChangeView("feature.downgrade", refused),
		"matrix":        featureMatrixView(&featureMatrixResult{feature.NewMatrix(skewed), skewed}),
		"mapping":       featureMappingView(mapping),
		"dependencies":  featureDependenciesView(feature.Dependencies()),
	} {
		t.Run(name, func(t *testing.T) {
			v.Time = d.Now()
			var b strings.Builder
			for _, f := range []output.Format{output.FormatTable, output.FormatWide, output.FormatCSV, output.FormatJSON} {
				b.WriteString("-- " + string(f) + " --\n")
				if err := output.Write(&b, v, output.Options{Format: f}); err != nil {
					t.Fatal(err)
				}
			}
			golden(t, filepath.Join("testdata", "feature_"+name+".golden"), b.String())
		})
	}
}

// Every key of a document is documented.
func TestFeatureKeysAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/json/feature.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/feature_*.golden")
	if err != nil || len(files) < 9 {
		t.Fatalf("goldens %q, %v", files, err)
	}
	key := regexp.MustCompile(`(?m)^ +"([a-z_]+)": `)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range key.FindAllSubmatch(b, -1) {
			if !bytes.Contains(doc, []byte("`"+string(m[1])+"`")) {
				t.Errorf("%s has the key %s, which docs/json/feature.md does not", f, m[1])
			}
		}
	}
}

// goldenReport is three brokers of Kafka 4.4 at a level of share.version.
func goldenReport(t *testing.T, shareVersion int16, change func([]cluster.BrokerVersions)) *feature.Report {
	t.Helper()
	d := cluster.Description{ClusterID: "golden", ControllerID: 0}
	for i := range int32(3) {
		b := cluster.BrokerVersions{
			NodeID: i, Host: fmt.Sprintf("b%d", i), Port: 9092, FinalizedEpoch: 42,
			Keys: map[int16]cluster.VersionRange{}, Supported: map[string]cluster.VersionRange{}, Finalized: map[string]int16{},
		}
		v := kversion.V4_4_0()
		v.EachMaxKeyVersion(func(key, version int16) { b.Keys[key] = cluster.VersionRange{Max: version} })
		for _, name := range []string{"share.version", "transaction.version", "metadata.version"} {
			v.EachSupportedFeature(func(n string, lo, hi int16) {
				if n == name {
					b.Supported[n] = cluster.VersionRange{Min: lo, Max: hi}
					b.Finalized[n] = hi
				}
			})
		}
		b.Finalized["share.version"] = shareVersion
		d.Brokers = append(d.Brokers, b)
	}
	if change != nil {
		change(d.Brokers)
	}
	return feature.NewReport(d, "")
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; 'make golden' writes it anew, and the diff is a change of the interface:\n%s", path, got)
	}
}
