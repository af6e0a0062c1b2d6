package commands

import (
	"context"

	"github.com/kshare/kshare/feature"
	"github.com/spf13/cobra"
)

func newFeatureDowngradeCmd(d *Deps, run runFunc[featureChangeOptions, *feature.Result]) *cobra.Command {
	var opts featureChangeOptions
	var target featureTargetFlags
	var detailed, noDrain bool
	cmd := &cobra.Command{
		Use:   "downgrade [<name-level>...]",
		Short: "Lower feature levels, unless somebody would suffer",
		Long: `Lower feature levels. Released controllers do not look at who uses a level, so
this command does, and stops before anything is sent (exit status 6):

- while share acknowledgements are pending in a transaction, when the level that
  allows them goes away: they would be stuck;
- while a producer has a transaction open, when transaction.version is lowered:
  it would end with a fatal error; --force-live-producers accepts that;
- where a broker is silent, or access control may hide any of that from this
  principal: unknown is not zero.

With --drain it waits until all of that has ended, as 'kshare drain' does
without being told to end anything, and then lowers the level at once. --timeout
bounds the wait (exit status 7). What does not end by itself is not waited for
(6): 'kshare drain' can end it.

It looks again right before the change, and once after it: who got in between is
named (3). Levels come down before binaries do.

The controller decides whether a downgrade is safe, and its own words are shown
when it refuses. The command never asks for an unsafe downgrade by itself;
--unsafe asks for one, which most controllers refuse as well.`,
		Example: `  kshare feature downgrade --feature share.version --version 1 --dry-run
  kshare feature downgrade share.version=1 --yes
  kshare feature downgrade share.version=1 --drain --timeout 5m --yes
  kshare feature downgrade transaction.version=1 --force-live-producers --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if opts.featureTarget, err = target.target(args); err != nil {
				return err
			}
			if err := opts.check(); err != nil {
				return err
			}
			if opts.Drain && noDrain {
				return usagef("--drain and --no-drain exclude each other")
			}
			res, err := run(cmd.Context(), d, opts)
			return d.showFeatureChange("feature.downgrade", res, err, detailed)
		},
	}
	fs := cmd.Flags()
	target.addTo(fs)
	opts.addTo(fs, &detailed)
	fs.BoolVar(&opts.Drain, "drain", false, "wait until nobody would suffer, and lower the levels then")
	fs.BoolVar(&noDrain, "no-drain", false, "look, and do not wait; this is the default")
	fs.BoolVar(&opts.ForceLiveProducer, "force-live-producers", false, "lower transaction.version under producers that have transactions open")
	fs.BoolVar(&opts.Unsafe, "unsafe", false, "ask the controller for an unsafe downgrade, which may lose metadata")
	return exits(cmd, exitPartial, exitAuth, exitUnsupported, exitRefused, exitChanged)
}

func runFeatureDowngrade(ctx context.Context, d *Deps, opts featureChangeOptions) (*feature.Result, error) {
	cl, err := d.connect(ctx, opts.connection)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	rep, err := feature.Describe(ctx, cl, feature.DescribeOptions{Dialect: cl.Dialect()})
	if err != nil {
		return nil, err
	}
	change, err := feature.NewDowngrade(rep, opts.Updates, opts.Unsafe)
	if err != nil {
		return change.Result(), err
	}
	return d.changeFeatures(ctx, cl, change, opts)
}
