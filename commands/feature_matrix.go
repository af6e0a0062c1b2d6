package commands

import (
	"context"

	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// featureMatrixResult is the matrix with the report that it was made from.
type featureMatrixResult struct {
	*feature.Matrix
	report *feature.Report
}

func newFeatureMatrixCmd(d *Deps, run runFunc[featureDescribeOptions, *featureMatrixResult]) *cobra.Command {
	var opts featureDescribeOptions
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Show which clients work with which brokers here",
		Long: `Show the cross-version matrix of KIP-1289 with the brokers of this cluster in
it: what a client that acknowledges in transactions (new), and one that does not
(old), sees of each kind of broker, and which brokers here are of that kind.`,
		Example: `  kshare feature matrix
  kshare feature matrix -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkDialect(opts.Dialect); err != nil {
				return err
			}
			m, err := run(cmd.Context(), d, opts)
			return d.show(featureMatrixView(m), err)
		},
	}
	opts.connection.addTo(cmd.Flags())
	return exits(cmd, exitPartial, exitAuth)
}

func runFeatureMatrix(ctx context.Context, d *Deps, opts featureDescribeOptions) (*featureMatrixResult, error) {
	rep, err := runFeatureDescribe(ctx, d, opts)
	if err != nil {
		return nil, err
	}
	return &featureMatrixResult{feature.NewMatrix(rep), rep}, nil
}

func featureMatrixView(m *featureMatrixResult) output.View {
	if m == nil {
		return output.View{}
	}
	t := output.NewTable("CLIENT", "BROKER", "OUTCOME", "BROKERS-HERE")
	for _, c := range m.Cells {
		t.Row(output.Key(c.Client), output.Key(c.Broker), c.Outcome, joinNodes(c.Here))
	}
	return output.View{
		Kind: "feature.matrix", Version: 1, ClusterID: m.report.ClusterID,
		Incomplete: m.report.Incomplete(), Warnings: m.report.Unknowns(),
		Items: m.Cells, Data: m.Matrix, Table: t, Text: "\n" + txnAcksLine(m.TxnAcks),
	}
}
