package commands

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newHelpCmd replaces cobra's: that one ends with 0 when there is no such topic.
func newHelpCmd(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [<command>...]",
		Short: "Show the help of a command or topic",
		Example: `  kshare help sandbox run
  kshare help exit-codes`,
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return hintf(usagef("no help about %q", strings.Join(args, " ")), "'kshare help' lists commands and topics")
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// newExitCodesTopic documents the exit codes, from the table that produces them.
func newExitCodesTopic() *cobra.Command {
	var b strings.Builder
	for _, c := range ExitCodes() {
		fmt.Fprintf(&b, "    %-4d %s\n", c.Code, c.Meaning)
	}
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: `Exit codes are an interface. A script may rely on them; none is ever given
another meaning.

` + b.String() + `
'kshare sandbox run' serves until it is told to stop, so SIGINT and SIGTERM are
its normal end: once it is ready it then ends with 0.

A second SIGINT or SIGTERM ends the process at once, without clean-up.`,
	}
}
