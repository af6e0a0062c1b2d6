package commands

import (
	"context"

	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// configViewOptions is everything "config view" can be told.
type configViewOptions struct {
	connection
}

// configView is which settings count.
type configView struct {
	File     string
	Context  string
	Settings []configSetting
	Origin   bool // show where each comes from
}

// configSetting is a setting that counts.
type configSetting struct {
	Key    string        `json:"key"`   // of kshare's settings, or of the properties file
	Value  string        `json:"value"` // *** for a secret
	Secret bool          `json:"secret"`
	Source config.Source `json:"source"`         // flag, environment, context, properties or default
	Name   string        `json:"name,omitempty"` // of the flag, the variable, the context or the property
	File   string        `json:"file,omitempty"` // with the context or the property
	Line   int           `json:"line,omitempty"` // of a properties file, from 1

	origin string
}

// configViewData is what the settings that count were made of.
type configViewData struct {
	File    *string `json:"file"`    // the configuration file; null if there is none
	Context *string `json:"context"` // in use; null if none is
}

func newConfigViewCmd(d *Deps, run runFunc[configViewOptions, *configView]) *cobra.Command {
	var opts configViewOptions
	var origin bool
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Show the settings that count, and where they come from",
		Long: `Show the settings that count for a command that is run here and now with the
same flags: those of kshare, and the entries of the properties file in use.
Secrets are shown as ***.

Nothing is connected to, no command is run and no password is asked for.`,
		Example: `  kshare config view --origin
  kshare config view --command-config client.properties -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := run(cmd.Context(), d, opts)
			if v != nil {
				v.Origin = origin
			}
			return d.show(configViewView(v), err)
		},
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "show where each setting comes from, as -o wide does")
	opts.connection.addTo(cmd.Flags())
	return cmd
}

func runConfigView(_ context.Context, d *Deps, opts configViewOptions) (*configView, error) {
	r, err := d.settings(opts.connection)
	if err != nil {
		return nil, err
	}
	v := &configView{Context: r.Context, Settings: []configSetting{}}
	if r.Contexts.Exists {
		v.File = r.Contexts.Path
	}
	for _, row := range r.Rows() {
		v.Settings = append(v.Settings, configSetting{
			Key: row.Key, Value: row.Value, Secret: row.Secret,
			Source: row.Origin.Source, Name: row.Origin.Name, File: row.Origin.File, Line: row.Origin.Line,
			origin: row.Origin.String(),
		})
	}
	return v, nil
}

func configViewView(v *configView) output.View {
	if v == nil {
		return output.View{}
	}
	table, wide := output.NewTable("SETTING", "VALUE"), output.NewTable("SETTING", "VALUE", "ORIGIN")
	for _, s := range v.Settings {
		table.Row(output.Key(s.Key), s.Value)
		wide.Row(output.Key(s.Key), s.Value, s.origin)
	}
	if v.Origin {
		table = wide
	}
	return output.View{
		Kind: "config.view", Version: 1, Items: v.Settings, Table: table, Wide: wide,
		Data: configViewData{known(v.File), known(v.Context)},
	}
}
