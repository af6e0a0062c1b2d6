package commands

import (
	"testing"

	"github.com/spf13/cobra"
)

func TestHelpText(t *testing.T) {
	run := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "tool", Short: "Do things", Long: "Do things, well.\n", Example: "  tool do\n"}
	root.PersistentFlags().Bool("loud", false, "speak up")
	do := &cobra.Command{
		Use: "do <what>", Short: "Do one thing", RunE: run,
	}
	do.Flags().Int("times", 1, "do it `n` times")
	topic := &cobra.Command{Use: "topic", Short: "What is what", Long: "This is what."}
	root.AddCommand(do, topic, &cobra.Command{Use: "secret", Short: "Nobody knows", Hidden: true, RunE: run})

	for _, c := range []struct {
		cmd  *cobra.Command
		want string
	}{
		{root, `Do things, well.

Usage:
  tool <command> [flags]

Examples:
  tool do

Commands:
  do          Do one thing

Flags:
      --loud   speak up

Topics ('kshare help <topic>'):
  topic       What is what
`},
		{do, `Do one thing

Usage:
  tool do <what> [flags]

Flags:
      --times n   do it n times (default 1)

Global flags:
      --loud   speak up

Exit status:
` + ExitStatus(do) + "\n"},
		{topic, "This is what.\n"},
	} {
		if got := helpText(c.cmd); got != c.want {
			t.Errorf("helpText(%s) =\n%s\nwant:\n%s", c.cmd.Name(), got, c.want)
		}
	}
}
