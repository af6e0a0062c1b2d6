package commands

import (
	"context"
	"fmt"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/demo"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
	"github.com/spf13/cobra"
)

// demoOptions is everything "demo" can be told.
type demoOptions struct {
	Dialect wire.Dialect
}

func newDemoCmd(d *Deps, run runFunc[demoOptions, []demo.Step]) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show transactional acknowledgements on a sandbox, step by step",
		Long: `Show the life of transactional acknowledgements on a sandbox that lives as long
as the command: the level of share.version is raised, orders are copied in
transactions, some records are left in TX_PENDING and looked at, the level is
not lowered under them, they are drained, and the level is lowered.

The steps of an operator are those of 'kshare feature upgrade', 'inspect
pending', 'drain' and 'feature downgrade'. Each asks the cluster whether it
worked: a step that did not ends the demonstration.`,
		Example: `  kshare demo
  kshare demo --profile draft -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dialect, ok := wire.DialectByName(profile)
			if !ok {
				return usagef("--profile %q: want %s", profile, dialectChoice())
			}
			steps, err := run(cmd.Context(), d, demoOptions{Dialect: dialect})
			return d.show(demoView(steps), err)
		},
	}
	cmd.Flags().StringVar(&profile, "profile", "kip", "`dialect` of KIP-1289: "+dialectChoice())
	return cmd
}

func runDemo(ctx context.Context, d *Deps, opts demoOptions) (steps []demo.Step, err error) {
	sb, err := d.StartSandbox(ctx, SandboxConfig{
		Brokers: defaultSandboxBrokers, Profile: opts.Dialect.Name, PendingState: pendingPersisted,
		ShareVersion: int(opts.Dialect.ShareVersion) - 1,
		Topics: []SandboxTopic{
			{Name: demo.SourceTopic, Partitions: defaultSandboxPartitions},
			{Name: demo.DestinationTopic, Partitions: defaultSandboxPartitions},
		},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = cluster.Join(err, sb.Close()) }()
	if _, err := sb.Load(ctx, demo.SourceTopic, "example orders", demo.Orders()); err != nil {
		return nil, err
	}
	n := 0
	return demo.Run(ctx, demo.Options{
		BootstrapServers: strings.Split(sb.BootstrapServers(), ","),
		Dialect:          opts.Dialect,
		Now:              d.Now,
		Started: func(s demo.Step) {
			n++
			d.Notice(fmt.Sprintf("step %d: %s", n, s.Title))
		},
	})
}

func demoView(steps []demo.Step) output.View {
	if steps == nil {
		return output.View{}
	}
	t := output.NewTable("STEP", "DURATION", "RESULT")
	for _, s := range steps {
		t.Row(output.Key(s.Name), s.Duration, s.Result)
	}
	return output.View{Kind: "demo", Version: 1, Items: steps, Table: t}
}
