package commands

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// newHelpCmd replaces cobra's: that one ends with 0 when there is no such topic.
func newHelpCmd(root *cobra.Command) *cobra.Command {
	return instant(&cobra.Command{
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
	})
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
'kshare sandbox run' serves until it is told to stop, so these signals
are its normal end: once it is ready it then ends with 0.

A second signal, half a second later or more, ends the process at once, without
clean-up. What nohup has started does not end with its terminal.`,
	}
}

// newExecTopic documents what ctp and its program say to each other.
func newExecTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exec",
		Short: "How a program transforms records",
		Long: `'kshare ctp --exec COMMAND' starts COMMAND once for each worker. Its words are
split as a shell does, and no shell is involved. It reads one JSON object a
line, and answers each with one line, in the same order:

    {"topic":"orders","partition":0,"offset":7,"delivery_count":1,
     "timestamp_ms":1764417600000,"key":"k","value":"v",
     "headers":[{"key":"h","value":null}]}

A key, a value, or the value of a header is null, a string where it is valid
UTF-8, and {"encoding":"base64","value":"..."} where it is not.

The answer is one of

    {"value":"..."}       one record; key, value, headers and timestamp_ms that
                          it leaves out are those of the source
    [{...},{...}]         several records
    []                    none: the source is acknowledged, nothing is produced
    {"error":"..."}       it cannot be transformed: --on-error decides

so that 'cat' copies. An answer that names another topic, partition or offset
than those of its record ends the run.

A program has to flush its output after each line ('jq --unbuffered',
'python3 -u', 'sed -u'), or it will seem to hang. It has --exec-timeout for each
record. Should it die, the records that it had been given are given to a new
one, each alone; the one that kills it --max-attempts times is left to
--on-error, and the others go on. If it dies for everything it is given, the run
fails and nothing of its batch takes effect.

What it writes to stderr is shown. It does not see the KSHARE_ variables. It
should end when its stdin does.`,
	}
}
