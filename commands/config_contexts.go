package commands

import (
	"context"

	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

type configGetContextsOptions struct{}

// contextRow is a context, in a list.
type contextRow struct {
	Name     string                `json:"name"`
	Current  bool                  `json:"current"`
	Settings map[config.Key]string `json:"settings"` // *** for secrets
}

// contextsData is where contexts are.
type contextsData struct {
	File *string `json:"file"` // the configuration file; null if it has no place
}

// contextList is what a configuration file has.
type contextList struct {
	File     string
	Contexts []contextRow
}

func newConfigGetContextsCmd(d *Deps, run runFunc[configGetContextsOptions, *contextList]) *cobra.Command {
	return instant(&cobra.Command{
		Use:   "get-contexts",
		Short: "List the contexts of the configuration file",
		Long: `List the contexts of the configuration file, in its order. A file that does not
exist has none.`,
		Example: `  kshare config get-contexts
  kshare config get-contexts -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := run(cmd.Context(), d, configGetContextsOptions{})
			return d.show(configGetContextsView(l), err)
		},
	})
}

func runConfigGetContexts(_ context.Context, d *Deps, _ configGetContextsOptions) (*contextList, error) {
	c, err := config.Read(d.configPath())
	if err != nil {
		return nil, err
	}
	l := &contextList{File: c.Path, Contexts: []contextRow{}}
	for _, x := range c.All {
		l.Contexts = append(l.Contexts, contextRow{Name: x.Name, Current: x.Name == c.Current, Settings: x.Values()})
	}
	return l, nil
}

func configGetContextsView(l *contextList) output.View {
	if l == nil {
		return output.View{}
	}
	t := output.NewTable("CURRENT", "NAME", "BOOTSTRAP-SERVER", "COMMAND-CONFIG", "SASL-MECHANISM")
	for _, c := range l.Contexts {
		current := output.NA()
		if c.Current {
			current = output.Good("*")
		}
		t.Row(current, output.Key(c.Name), orNA(known(c.Settings[config.BootstrapServer])), orNA(known(c.Settings[config.CommandConfig])), orNA(known(c.Settings[config.SASLMechanism])))
	}
	return output.View{
		Kind: "config.contexts", Version: 1, Items: l.Contexts, Table: t, Empty: "there are no contexts; 'kshare config set-context NAME' adds one",
		Data: contextsData{known(l.File)},
	}
}
