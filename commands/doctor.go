package commands

import (
	"context"
	"fmt"
	"strings"

	"github.com/kshare/kshare/internal/doctor"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// doctorOptions is everything "doctor" can be told.
type doctorOptions struct {
	connection
	Groups           []string
	Topics           []string
	TransactionalIDs []string
}

func newDoctorCmd(d *Deps, run runFunc[doctorOptions, *doctor.Report]) *cobra.Command {
	var opts doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether kshare can work with a cluster from here",
		Long: `Find out whether kshare can work with a cluster from here: whether each
bootstrap server answers, as whom one is known, what every broker is, which
dialect of KIP-1289 the cluster speaks, whether the topics that hold state are
healthy, and which of the ACLs that the commands need are there.

It changes nothing, and sends nothing that could. What cannot be found out that
way is shown as unknown. Brokers tell of ACLs on a group or a topic only when it
is named: --group, --topic and --transactional-id name some.

A check is ok, warning, unknown or failed. It ends with 0 when none is unknown
or failed, else with 3; with 4 when no bootstrap server lets it in, and with 7
when none can be reached.`,
		Example: `  kshare doctor -b localhost:9092
  kshare doctor --context prod --group billing --topic orders
  kshare doctor -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rep, err := run(cmd.Context(), d, opts)
			return d.show(doctorView(rep), err)
		},
	}
	fs := cmd.Flags()
	addRepeated(fs, &opts.Groups, "group", "look at the ACLs on a share `group` too; may be repeated")
	addRepeated(fs, &opts.Topics, "topic", "look at the ACLs on a `topic` too; may be repeated")
	addRepeated(fs, &opts.TransactionalIDs, "transactional-id", "look at the ACLs on a transactional `id` too; may be repeated")
	opts.connection.addTo(fs)
	return exits(cmd, exitPartial, exitAuth)
}

func runDoctor(ctx context.Context, d *Deps, opts doctorOptions) (*doctor.Report, error) {
	r, err := d.settings(opts.connection)
	if err != nil {
		return nil, err
	}
	cfg, identity, err := d.clusterConfig(ctx, r)
	if err != nil {
		return nil, err
	}
	return doctor.Run(ctx, doctor.Options{
		Cluster: cfg, Identity: identity, Now: d.Now,
		Groups: opts.Groups, Topics: opts.Topics, TransactionalIDs: opts.TransactionalIDs,
	})
}

func doctorView(r *doctor.Report) output.View {
	if r == nil {
		return output.View{}
	}
	t, wide := output.NewTable("CHECK", "STATE", "DETAIL"), output.NewTable("CHECK", "STATE", "DETAIL", "ADVICE")
	var advice strings.Builder
	for _, f := range r.Findings {
		check := strings.ReplaceAll(f.Check, "_", " ")
		if f.Subject != "" && f.Check != "cluster" {
			check += " " + f.Subject
		}
		t.Row(output.Key(check), findingStateCell(f.State), f.Detail)
		wide.Row(output.Key(check), findingStateCell(f.State), f.Detail, orNA(known(f.Advice)))
		if f.Advice != "" {
			// On a line of its own no terminal is too narrow for it.
			fmt.Fprintf(&advice, "\n%s: %s", check, f.Advice)
		}
	}
	return output.View{
		Kind: "doctor", Version: 1, ClusterID: r.ClusterID, Incomplete: r.Incomplete(),
		Items: r.Findings, Table: t, Wide: wide, Text: advice.String(),
	}
}

func findingStateCell(s doctor.State) any {
	switch s {
	case doctor.OK:
		return output.Good(string(s))
	case doctor.Failed:
		return output.Bad(string(s))
	case doctor.Warning, doctor.Unknown:
	}
	return output.Warn(string(s))
}
