package commands

import (
	"fmt"
	"strings"

	"github.com/kshare/kshare/internal/config"
	"github.com/spf13/cobra"
)

func newConfigCmd(d *Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and change how kshare connects",
		Long: `Show and change how kshare connects. A context is a name for the settings of a
connection; the configuration file has contexts, and one of them may be the
current one, which is used where no other is named.

The file is $KSHARE_CONFIG, else kshare/config.yaml in the user's configuration
directory. It is written with mode 0600. 'kshare help settings' lists the
settings, and the order in which flags, environment and files count.`,
		Example: `  kshare config set-context prod -b broker1:9093 --command-config client.properties
  kshare config use-context prod
  kshare config view --origin`,
	}
	cmd.AddCommand(
		newConfigViewCmd(d, runConfigView),
		newConfigGetContextsCmd(d, runConfigGetContexts),
		newConfigUseContextCmd(d, runConfigUseContext),
		newConfigSetContextCmd(d, runConfigSetContext),
		newConfigDeleteContextCmd(d, runConfigDeleteContext),
		newConfigCheckCmd(d, runConfigCheck),
	)
	return cmd
}

// needConfigPath returns where the configuration file is, or a usage error.
func (d *Deps) needConfigPath() (string, error) {
	if p := d.configPath(); p != "" {
		return p, nil
	}
	return "", hintf(usagef("there is no place for a configuration file"), "set KSHARE_CONFIG to a path; neither HOME nor XDG_CONFIG_HOME is set")
}

// oneArg wants exactly one argument, and says what it is.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("%q needs the %s", cmd.CommandPath(), what)
		case len(args) > 1:
			return hintf(usagef("%q takes one argument, the %s, and got %q too", cmd.CommandPath(), what, args[1]), "quote values that have blanks")
		}
		return nil
	}
}

// newSettingsTopic documents the settings, from the table that reads them.
func newSettingsTopic() *cobra.Command {
	var b strings.Builder
	for _, s := range config.Settings() {
		name := string(s.Key)
		if s.Flag != "" {
			name += ", --" + s.Flag
		}
		fmt.Fprintf(&b, "    %s\n        %s\n", name, s.About)
	}
	return &cobra.Command{
		Use:   "settings",
		Short: "The settings of a connection, and where they come from",
		Long: `A setting comes from the first of these that has it:

    1. a flag
    2. the environment: KSHARE_ and its name in upper case, such as
       KSHARE_SASL_PASSWORD; a name that is nearly one is warned of
    3. the context that --context or KSHARE_CONTEXT names, else the current one
       of the configuration file, and the properties file that the context names
    4. its default

A properties file that --command-config or KSHARE_COMMAND_CONFIG names takes the
place of the context: each of them describes a connection as a whole.

Of settings that exclude each other, such as sasl_password and
sasl_password_file, the one that comes first in this order counts. Secrets are
shown as ***, also by 'kshare config view'; there is no flag for a password,
since others can see the arguments of a program. Where a password is needed and
not set, it is asked for on a terminal.

A command, such as that of sasl_password_command, is split into words as a shell
does it, and run without one; in the configuration file it may be a list too. A
relative path in the configuration file starts where that file is.

    ` + strings.TrimLeft(b.String(), " "),
	}
}
