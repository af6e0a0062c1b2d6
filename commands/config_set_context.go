package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// configSetContextOptions is everything "config set-context" can be told.
type configSetContextOptions struct {
	Name   string
	Change config.Change
}

// contextChange is what became of a context.
type contextChange struct {
	File    string `json:"file"`    // the configuration file
	Context string `json:"context"` // its name
	Changed bool   `json:"changed"` // false when it was so already
	done    string // for people
}

func newConfigSetContextCmd(d *Deps, run runFunc[configSetContextOptions, *contextChange]) *cobra.Command {
	var c connection
	var set, unset []string
	cmd := &cobra.Command{
		Use:   "set-context <context>",
		Short: "Add a context to the configuration file, or change it",
		Long: `Add a context to the configuration file, or change settings of one that is
there. The connection flags set what they are named after; --set and --unset
reach all settings, by the names that 'kshare help settings' lists. Paths become
absolute.

A secret is not taken from the command line, where others can see it: name the
file or the command that has it, or write it into the file with an editor.`,
		Example: `  kshare config set-context prod -b broker1:9093,broker2:9093 --command-config client.properties
  kshare config set-context test -b localhost:9092 --sasl-mechanism SCRAM-SHA-512 --sasl-user alice --set sasl_password_command='pass show kafka'
  kshare config set-context test --unset sasl_mechanism`,
		Args: oneArg("name of a context"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ch, err := contextSettings(d.given(c), set, unset)
			if err != nil {
				return err
			}
			res, err := run(cmd.Context(), d, configSetContextOptions{args[0], ch})
			return d.show(contextChangeView(res), err)
		},
	}
	addRepeated(cmd.Flags(), &set, "set", "set `setting=value`; may be repeated")
	addRepeated(cmd.Flags(), &unset, "unset", "remove a `setting`; may be repeated")
	c.addTo(cmd.Flags())
	return cmd
}

// contextSettings reads the flags of set-context. It returns a usage error.
func contextSettings(given map[config.Key]string, set, unset []string) (config.Change, error) {
	ch := config.Change{Set: given}
	if given[config.Context] != "" {
		return ch, usagef("--context is no setting of a context")
	}
	for _, s := range set {
		name, text, ok := strings.Cut(s, "=")
		key, err := contextKey("--set", name)
		switch {
		case err != nil:
			return ch, err
		case !ok:
			return ch, usagef("--set %s: want SETTING=VALUE", name)
		case text == "":
			return ch, hintf(usagef("--set %s: the value is empty", name), "--unset %s removes the setting", name)
		case ch.Set[key] != "":
			return ch, usagef("%s is set twice", name)
		}
		if k, _ := config.Find(key); k.Kind == config.Secret {
			return ch, hintf(usagef("--set %s: a secret is not taken from the command line, where others can see it", name),
				"set %s_file or %s_command, or write it into the file with an editor", name, name)
		}
		ch.Set[key] = text
	}
	for _, name := range unset {
		key, err := contextKey("--unset", name)
		if err != nil {
			return ch, err
		}
		if ch.Set[key] != "" {
			return ch, usagef("%s is both set and removed", name)
		}
		ch.Unset = append(ch.Unset, key)
	}
	for key, text := range ch.Set {
		s, _ := config.Find(key)
		err := s.ParseText(text)
		switch {
		case err != nil:
		case key == config.SASLMechanism:
			err = auth.CheckMechanism(text)
		case key == config.Dialect:
			err = checkDialect(text)
		case key == config.BootstrapServer && slices.ContainsFunc(strings.Split(text, ","), func(s string) bool { return !isServer(strings.TrimSpace(s)) }):
			err = errors.New("want HOST:PORT, or several with commas between")
		}
		if err != nil {
			return ch, usagef("%s: %s", key, err)
		}
	}
	return ch, nil
}

func contextKey(flag, name string) (config.Key, error) {
	s, ok := config.Find(config.Key(name))
	if !ok || !s.InContext() {
		return "", hintf(usagef("%s: there is no setting %q", flag, name), "'kshare help settings' lists them")
	}
	return s.Key, nil
}

func runConfigSetContext(ctx context.Context, d *Deps, opts configSetContextOptions) (*contextChange, error) {
	path, err := d.needConfigPath()
	if err != nil {
		return nil, err
	}
	added, changed, err := config.SetContext(ctx, path, opts.Name, opts.Change)
	if err != nil {
		return nil, err
	}
	done := "context %q is as it was"
	switch {
	case added:
		done = "context %q is added"
	case changed:
		done = "context %q is changed"
	}
	return &contextChange{path, opts.Name, changed, fmt.Sprintf(done, opts.Name)}, nil
}

func contextChangeView(c *contextChange) output.View {
	if c == nil {
		return output.View{}
	}
	t := output.NewTable("FILE", "CONTEXT", "CHANGED")
	t.Row(c.File, output.Key(c.Context), c.Changed)
	return output.View{Kind: "config.change", Version: 1, Data: c, Text: c.done, Wide: t}
}

type configContextOptions struct{ Name string }

func newConfigUseContextCmd(d *Deps, run runFunc[configContextOptions, *contextChange]) *cobra.Command {
	return instant(&cobra.Command{
		Use:     "use-context <context>",
		Short:   "Make a context the current one",
		Long:    "Make a context the current one, which commands use that name no other.",
		Example: `  kshare config use-context prod`,
		Args:    oneArg("name of a context"),
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := run(cmd.Context(), d, configContextOptions{args[0]})
			return d.show(contextChangeView(res), err)
		},
	})
}

func runConfigUseContext(ctx context.Context, d *Deps, opts configContextOptions) (*contextChange, error) {
	path, err := d.needConfigPath()
	if err != nil {
		return nil, err
	}
	changed, err := config.UseContext(ctx, path, opts.Name)
	if err != nil {
		return nil, err
	}
	done := "context %q is the current one"
	if !changed {
		done += " already"
	}
	return &contextChange{path, opts.Name, changed, fmt.Sprintf(done, opts.Name)}, nil
}

func newConfigDeleteContextCmd(d *Deps, run runFunc[configContextOptions, *contextChange]) *cobra.Command {
	return instant(&cobra.Command{
		Use:   "delete-context <context>",
		Short: "Remove a context from the configuration file",
		Long: `Remove a context from the configuration file. When it was the current one, none
is until 'kshare config use-context'.`,
		Example: `  kshare config delete-context test`,
		Args:    oneArg("name of a context"),
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := run(cmd.Context(), d, configContextOptions{args[0]})
			return d.show(contextChangeView(res), err)
		},
	})
}

func runConfigDeleteContext(ctx context.Context, d *Deps, opts configContextOptions) (*contextChange, error) {
	path, err := d.needConfigPath()
	if err != nil {
		return nil, err
	}
	current, err := config.DeleteContext(ctx, path, opts.Name)
	if err != nil {
		return nil, err
	}
	c := &contextChange{path, opts.Name, true, fmt.Sprintf("context %q is removed", opts.Name)}
	if current {
		c.done += "; it was the current one, and now none is"
	}
	return c, nil
}
