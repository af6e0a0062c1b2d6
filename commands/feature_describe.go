package commands

import (
	"context"
	"fmt"
	"strings"

	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
)

// featureDescribeOptions is everything "feature describe" can be told.
type featureDescribeOptions struct {
	connection
}

func newFeatureDescribeCmd(d *Deps, run runFunc[featureDescribeOptions, *feature.Report]) *cobra.Command {
	var opts featureDescribeOptions
	var wide bool
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Show every feature, its levels, and what they mean here",
		Long: `Show every feature: the levels that all brokers support, the level that is
finalized, and what it means on this cluster.

Every broker is asked. A feature about which brokers differ is a skew; a broker
that is silent, or does not know which levels are finalized (epoch -1), is named
and makes the answer incomplete (exit status 3). With --wide each broker has a
line of its own.`,
		Example: `  kshare feature describe -b localhost:9092
  kshare feature describe --wide
  kshare feature describe -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkDialect(opts.Dialect); err != nil {
				return err
			}
			if wide && d.flags.Output == output.FormatTable {
				d.flags.Output = output.FormatWide
			}
			rep, err := run(cmd.Context(), d, opts)
			err = d.show(featureDescribeView(d, rep), err)
			if rep != nil {
				for _, h := range rep.Hints {
					d.Hint(fmt.Sprintf("%s can be at level %d, %s: '%s'", h.Feature, h.Level, h.Meaning, d.command(h.Command)))
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&wide, "wide", false, "a line for each feature and broker, the same as -o wide")
	opts.connection.addTo(cmd.Flags())
	return exits(cmd, exitPartial, exitAuth)
}

func runFeatureDescribe(ctx context.Context, d *Deps, opts featureDescribeOptions) (*feature.Report, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return feature.Describe(ctx, cl, feature.DescribeOptions{Dialect: cl.Dialect()})
}

func featureDescribeView(d *Deps, r *feature.Report) output.View {
	if r == nil {
		return output.View{}
	}
	doc := *r
	doc.Hints = make([]feature.Hint, 0, len(r.Hints))
	for _, h := range r.Hints {
		h.Command = d.command(h.Command)
		doc.Hints = append(doc.Hints, h)
	}
	t := output.NewTable("FEATURE", "SUPPORTED", "FINALIZED", "BROKERS", "MEANING")
	for _, f := range r.Features {
		t.Row(output.Key(f.Name), levelRange(f), finalizedCell(f), agreementCell(f.State), f.Meaning)
	}
	wide := output.NewTable("FEATURE", "BROKER", "MIN", "MAX", "FINALIZED", "FEATURES-EPOCH", "STATE", "MEANING")
	for _, f := range r.Features {
		for _, b := range f.Brokers {
			wide.Row(output.Key(f.Name), b.NodeID, b.Min, b.Max, b.Finalized, b.Epoch, agreementCell(f.State), f.Meaning)
		}
	}
	return output.View{
		Kind: "feature.describe", Version: 1, ClusterID: r.ClusterID,
		Incomplete: r.Incomplete(), Warnings: append(r.Unknowns(), r.Skews()...),
		Items: r.Features, Data: &doc, Table: t, Wide: wide, WideApart: true,
		Text: "\n" + txnAcksLine(r.TxnAcks),
	}
}

func txnAcksLine(t feature.TxnAcks) string {
	return fmt.Sprintf("transactional acknowledgement (KIP-1289): %s: %s", t.Verdict, t.Reason)
}

func levelRange(f feature.Feature) any {
	if f.Min == nil {
		return output.Unknown()
	}
	if lo, hi := feature.LevelName(f.Name, *f.Min), feature.LevelName(f.Name, *f.Max); hi != "" {
		return fmt.Sprintf("%d-%d (%s)", *f.Min, *f.Max, strings.TrimPrefix(lo+" to "+hi, " to "))
	}
	return fmt.Sprintf("%d-%d", *f.Min, *f.Max)
}

func finalizedCell(f feature.Feature) any {
	switch {
	case f.Finalized == nil:
		return output.Unknown()
	case f.FinalizedName != "":
		return fmt.Sprintf("%d (%s)", *f.Finalized, f.FinalizedName)
	}
	return *f.Finalized
}

func agreementCell(a feature.Agreement) any {
	switch a {
	case feature.Agreed:
		return output.Good(string(a))
	case feature.Skew:
		return output.Bad(string(a))
	case feature.Incomplete, feature.Unknown:
	}
	return output.Warn(string(a))
}

// checkDialect returns a usage error for a dialect that does not exist.
func checkDialect(name string) error {
	if _, ok := wire.DialectByName(name); name != "" && !ok {
		return usagef("--dialect %q: want %s", name, dialectChoice())
	}
	return nil
}
