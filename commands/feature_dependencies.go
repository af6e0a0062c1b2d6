package commands

import (
	"context"
	"fmt"

	"github.com/kshare/kshare/feature"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// featureDependenciesOptions is everything "feature dependencies" can be told.
type featureDependenciesOptions struct {
	Updates []feature.Update // empty is all
}

func newFeatureDependenciesCmd(d *Deps, run runFunc[featureDependenciesOptions, []feature.Dependency]) *cobra.Command {
	var target featureTargetFlags
	cmd := &cobra.Command{
		Use:     "dependencies [<name-level>...]",
		Aliases: []string{"deps"},
		Short:   "Show which levels need another feature",
		Long: `Show which levels need a level of another feature, and who insists on it: the
controller, which refuses the change, or the brokers, which refuse the requests
later. Neither the network nor any file is touched.`,
		Example: `  kshare feature dependencies
  kshare feature dependencies share.version=2`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var opts featureDependenciesOptions
			if len(args) > 0 || len(target.features) > 0 {
				t, err := target.target(args)
				if err != nil {
					return err
				}
				opts.Updates = t.Updates
			}
			deps, err := run(cmd.Context(), d, opts)
			if err != nil {
				return err
			}
			return d.show(featureDependenciesView(deps), nil)
		},
	}
	target.addTo(cmd.Flags())
	return cmd
}

func runFeatureDependencies(_ context.Context, _ *Deps, opts featureDependenciesOptions) ([]feature.Dependency, error) {
	if len(opts.Updates) == 0 {
		return feature.Dependencies(), nil
	}
	found := []feature.Dependency{}
	for _, u := range opts.Updates {
		if err := feature.CheckKnown(u); err != nil {
			return nil, usagef("%s", err)
		}
		for _, dep := range feature.Dependencies() {
			if dep.Feature == u.Feature && u.Level >= dep.Level {
				found = append(found, dep)
			}
		}
	}
	return found, nil
}

func featureDependenciesView(deps []feature.Dependency) output.View {
	t := output.NewTable("FEATURE", "LEVEL", "DIALECT", "NEEDS", "ENFORCED-BY")
	for _, dep := range deps {
		dialect := any(output.NA())
		if dep.Dialect != "" {
			dialect = dep.Dialect
		}
		needs := fmt.Sprintf("%s=%d", dep.Needs, dep.NeedsMin)
		if n := feature.LevelName(dep.Needs, dep.NeedsMin); n != "" {
			needs += " (" + n + ")"
		}
		t.Row(output.Key(dep.Feature), dep.Level, dialect, needs, dep.EnforcedBy)
	}
	return output.View{
		Kind: "feature.dependencies", Version: 1, Items: deps, Table: t,
		Empty: "these levels need no other feature",
	}
}
