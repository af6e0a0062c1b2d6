package commands

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
)

// featureMappingOptions is everything "feature mapping" can be told.
type featureMappingOptions struct {
	Release string // "" is all
}

// featureMapping is the table of releases and of the dialects of KIP-1289.
type featureMapping struct {
	Releases []feature.Release `json:"-"`
	Dialects []dialectMapping  `json:"dialects"`
}

// dialectMapping is what a dialect of KIP-1289 needs.
type dialectMapping struct {
	Name               string `json:"dialect"`
	Key                int16  `json:"api_key"`
	ShareVersion       int16  `json:"share_version"`
	TransactionVersion int16  `json:"transaction_version"`
}

func newFeatureMappingCmd(d *Deps, run runFunc[featureMappingOptions, *featureMapping]) *cobra.Command {
	var opts featureMappingOptions
	cmd := &cobra.Command{
		Use:   "mapping",
		Short: "Show which release of Kafka knows which levels",
		Long: `Show which levels the brokers of each release of Apache Kafka know, and at which
level a new cluster of it starts. Neither the network nor any file is touched.`,
		Example: `  kshare feature mapping
  kshare feature mapping --release 4.4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := run(cmd.Context(), d, opts)
			return d.show(featureMappingView(m), err)
		},
	}
	cmd.Flags().StringVar(&opts.Release, "release", "", "only this `release`, such as 4.4")
	return cmd
}

func runFeatureMapping(_ context.Context, _ *Deps, opts featureMappingOptions) (*featureMapping, error) {
	m := &featureMapping{}
	var names []string
	for _, r := range feature.Releases() {
		names = append(names, r.Name)
		if opts.Release == "" || opts.Release == r.Name {
			m.Releases = append(m.Releases, r)
		}
	}
	if len(m.Releases) == 0 {
		return nil, hintf(usagef("--release %q is not known", opts.Release), "known are %s", strings.Join(names, ", "))
	}
	for _, dl := range wire.Dialects() {
		m.Dialects = append(m.Dialects, dialectMapping{dl.Name, dl.Key, dl.ShareVersion, wire.TransactionVersion})
	}
	return m, nil
}

func featureMappingView(m *featureMapping) output.View {
	if m == nil {
		return output.View{}
	}
	t := output.NewTable("RELEASE", "FEATURE", "SUPPORTED", "NEW-CLUSTER", "MEANING")
	for _, r := range m.Releases {
		for _, l := range r.Levels {
			level := strconv.Itoa(int(l.Default))
			if l.LevelName != "" {
				level += " (" + l.LevelName + ")"
			}
			t.Row(output.Key(r.Name), l.Feature, fmt.Sprintf("%d-%d", l.Min, l.Max), level, l.Meaning)
		}
	}
	var text strings.Builder
	text.WriteString("\nno release has transactional acknowledgement (KIP-1289); a build that has it needs:\n")
	for _, dl := range m.Dialects {
		fmt.Fprintf(&text, "  dialect %-6s share.version=%d and transaction.version=%d, with api key %d\n", dl.Name, dl.ShareVersion, dl.TransactionVersion, dl.Key)
	}
	return output.View{Kind: "feature.mapping", Version: 1, Items: m.Releases, Data: m, Table: t, Text: text.String()}
}
