package commands

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newFeatureCmd(d *Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "feature",
		Short: "Show and change feature levels, and say what they mean here",
		Long: `Show and change feature levels, and say what they mean on this cluster.

The same number means different things: on Apache Kafka 4.4 share.version=2 is
the dead-letter queue (KIP-1191), in the text of KIP-1289 it is transactional
acknowledgement. Kshare decides by the ApiVersions of every broker, never by the
number alone and never by trying.`,
		Example: `  kshare feature describe
  kshare feature plan --enable txn-acks`,
	}
	cmd.AddCommand(
		newFeatureDescribeCmd(d, runFeatureDescribe),
		newFeaturePlanCmd(d, runFeaturePlan),
		newFeatureUpgradeCmd(d, runFeatureUpgrade),
		newFeatureDowngradeCmd(d, runFeatureDowngrade),
		newFeatureMatrixCmd(d, runFeatureMatrix),
		newFeatureMappingCmd(d, runFeatureMapping),
		newFeatureDependenciesCmd(d, runFeatureDependencies),
	)
	return cmd
}

// featureTarget is which levels are wanted: some, or what enables something.
type featureTarget struct {
	Updates []feature.Update // sorted by feature
	Enable  string           // "" or feature.EnableTxnAcks
}

// featureTargetFlags are the ways to write a target.
type featureTargetFlags struct {
	features []string // NAME=LEVEL, or NAME with one of versions
	versions []string
	enable   string
}

func (f *featureTargetFlags) addTo(fs *pflag.FlagSet) {
	addRepeated(fs, &f.features, "feature", "`name=level`, or name alone with --version; may be repeated")
	addRepeated(fs, &f.versions, "version", "`level` of the --feature that has none; may be repeated")
}

func (f *featureTargetFlags) addEnable(fs *pflag.FlagSet) {
	fs.StringVar(&f.enable, "enable", "", "the levels that enable `what` in the dialect of the cluster: "+feature.EnableTxnAcks)
}

// target reads the arguments and flags. It returns a usage error, also when no
// level is named: there is no default, since going up cannot always be undone.
func (f *featureTargetFlags) target(args []string) (featureTarget, error) {
	var t featureTarget
	bare := 0
	for _, s := range slices.Concat(args, f.features) {
		name, _, hasLevel := strings.Cut(s, "=")
		if !hasLevel && slices.Contains(f.features, s) {
			if bare >= len(f.versions) {
				return t, levelMissing(name)
			}
			s = name + "=" + f.versions[bare]
			bare++
		}
		if err := t.add(s); err != nil {
			return t, err
		}
	}
	switch {
	case bare < len(f.versions):
		return t, usagef("--version %s: there is no --feature without a level that it could belong to", f.versions[bare])
	case f.enable != "" && f.enable != feature.EnableTxnAcks:
		return t, usagef("--enable %q: want %s", f.enable, feature.EnableTxnAcks)
	case f.enable != "" && len(t.Updates) > 0:
		return t, usagef("--enable and levels exclude each other")
	case f.enable == "" && len(t.Updates) == 0:
		return t, hintf(usagef("no level is given"), "name it, such as %s=1; the highest one is never taken by itself", wire.FeatureShareVersion)
	}
	t.Enable = f.enable
	slices.SortFunc(t.Updates, func(a, b feature.Update) int { return strings.Compare(a.Feature, b.Feature) })
	return t, nil
}

func (t *featureTarget) add(s string) error {
	if !strings.Contains(s, "=") {
		return levelMissing(s)
	}
	u, err := feature.ParseUpdate(s)
	if err != nil {
		return usagef("%s", err)
	}
	if slices.ContainsFunc(t.Updates, func(o feature.Update) bool { return o.Feature == u.Feature }) {
		return usagef("feature %s is given twice", u.Feature)
	}
	t.Updates = append(t.Updates, u)
	return nil
}

func levelMissing(name string) error {
	return hintf(usagef("feature %q has no level", name),
		"write --feature %s=LEVEL, or --feature %s --version LEVEL", name, name)
}

// joinNodes is a list of node IDs for people; what is not there does not apply.
func joinNodes(ids []int32) any {
	if len(ids) == 0 {
		return output.NA()
	}
	parts := make([]string, 0, len(ids))
	for _, id := range ids {
		parts = append(parts, strconv.Itoa(int(id)))
	}
	return strings.Join(parts, ",")
}
