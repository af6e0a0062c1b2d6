package commands

import (
	"context"
	"fmt"
	"strings"

	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// featurePlanOptions is everything "feature plan" can be told.
type featurePlanOptions struct {
	featureTarget
	connection
}

func newFeaturePlanCmd(d *Deps, run runFunc[featurePlanOptions, *feature.Plan]) *cobra.Command {
	var opts featurePlanOptions
	var target featureTargetFlags
	var to []string
	cmd := &cobra.Command{
		Use:   "plan [<name-level>...]",
		Short: "Show the steps to other levels, and where the cluster stands",
		Long: `Show the steps from the levels in force to others, in order, with what is
already true and what stands in the way. Nothing is changed.

Up, it is the rollout of KIP-1289: roll the binaries, let them soak, finalize
the levels, see the brokers advertise the request, roll out the clients. Down,
it is the reverse: stop the clients, let their transactions end, lower the
levels, and only then roll binaries back.

A step is done, ready, blocked (something named stands in the way) or todo (it
comes after one that is not done).`,
		Example: `  kshare feature plan --enable txn-acks
  kshare feature plan --to share.version=2,transaction.version=2
  kshare feature plan share.version=1 -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if opts.featureTarget, err = target.target(append(args, to...)); err != nil {
				return err
			}
			if err := checkDialect(opts.Dialect); err != nil {
				return err
			}
			p, err := run(cmd.Context(), d, opts)
			return d.show(featurePlanView(d, p), err)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&to, "to", nil, "`name=level` to go to; comma-separated, may be repeated")
	target.addTo(fs)
	target.addEnable(fs)
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth, exitUnsupported, exitRefused)
}

func runFeaturePlan(ctx context.Context, d *Deps, opts featurePlanOptions) (*feature.Plan, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	rep, err := feature.Describe(ctx, cl, feature.DescribeOptions{Dialect: cl.Dialect()})
	if err != nil {
		return nil, err
	}
	updates := opts.Updates
	if opts.Enable != "" {
		if updates, err = rep.PlanEnable(); err != nil {
			return nil, err
		}
	}
	p, err := feature.NewPlan(rep, updates, nil)
	if err != nil || !p.NeedsTransactions() {
		return p, err
	}
	seen, err := p.Observer(cl, cl.Dialect(), d.Now).Observe(ctx, nil)
	if err != nil {
		return nil, err
	}
	return feature.NewPlan(rep, updates, seen.Evidence)
}

// featurePlanData is what a plan has beside its steps.
type featurePlanData struct {
	*feature.Plan
	TxnAcks feature.TxnAcks `json:"txn_share_acknowledge"`
}

func featurePlanView(d *Deps, p *feature.Plan) output.View {
	if p == nil {
		return output.View{}
	}
	t := planTable()
	steps := make([]feature.Step, 0, len(p.Steps))
	var text strings.Builder
	for i, s := range p.Steps {
		if s.Command != nil {
			s.Command = new(d.command(*s.Command))
		}
		steps = append(steps, s)
		t.Row(output.Key(s.ID), stepCell(s.State), s.Title, s.Why)
		if s.State == feature.StepDone {
			continue
		}
		writeStep(&text, i+1, s)
	}
	rep := p.Report()
	return output.View{
		Kind: "feature.plan", Version: 1, ClusterID: rep.ClusterID,
		Incomplete: p.Incomplete(), Warnings: append(rep.Unknowns(), rep.Skews()...),
		Items: steps, Data: &featurePlanData{p, rep.TxnAcks}, Table: t, Text: text.String(),
	}
}

func planTable() *output.Table { return output.NewTable("STEP", "STATE", "TITLE", "REASON") }

// writeStep writes what is to know of a step that is not done.
func writeStep(b *strings.Builder, n int, s feature.Step) {
	if s.Command == nil && len(s.Effects) == 0 && len(s.NoReturn) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%d. %s\n", n, s.Title)
	if s.Command != nil {
		fmt.Fprintf(b, "   run: %s\n", *s.Command)
	}
	for _, e := range s.Effects {
		fmt.Fprintf(b, "   effect: %s\n", e)
	}
	for _, e := range s.NoReturn {
		fmt.Fprintf(b, "   %s\n", e)
	}
}

func stepCell(s feature.StepState) any {
	switch s {
	case feature.StepDone:
		return output.Muted(string(s))
	case feature.StepReady:
		return output.Good(string(s))
	case feature.StepBlocked:
		return output.Bad(string(s))
	case feature.StepTodo:
	}
	return string(s)
}
