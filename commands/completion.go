package commands

import (
	"bytes"
	"context"
	"strings"

	"github.com/kshare/kshare/completions"
	"github.com/spf13/cobra"
)

// completionOptions is everything "completion" can be told.
type completionOptions struct {
	Shell string
	Root  *cobra.Command
}

func newCompletionCmd(d *Deps, run runFunc[completionOptions, []byte]) *cobra.Command {
	return instant(&cobra.Command{
		Use:   "completion {bash | zsh | fish | powershell}",
		Short: "Write a completion script for a shell",
		Long: `Write a completion script for a shell to stdout, whatever --output says.

    bash         kshare completion bash > /etc/bash_completion.d/kshare
    zsh          kshare completion zsh > "${fpath[1]}/_kshare"
    fish         kshare completion fish > ~/.config/fish/completions/kshare.fish
    powershell   kshare completion powershell | Out-String | Invoke-Expression`,
		Example:   `  kshare completion bash > kshare.bash`,
		ValidArgs: completions.Shells(),
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(cmd *cobra.Command, args []string) error {
			script, err := run(cmd.Context(), d, completionOptions{Shell: args[0], Root: cmd.Root()})
			if err != nil {
				return err
			}
			_, err = d.Out.Write(script)
			return stdoutError(err)
		},
	})
}

func runCompletion(_ context.Context, _ *Deps, opts completionOptions) ([]byte, error) {
	var b bytes.Buffer
	if err := completions.Write(&b, opts.Root, opts.Shell); err != nil {
		return nil, err
	}
	return trimLines(b.Bytes()), nil
}

// trimLines drops blanks at the ends of lines, which cobra leaves.
func trimLines(b []byte) []byte {
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		out.WriteString(strings.TrimRight(line, " \t\n"))
		out.WriteByte('\n')
	}
	return []byte(out.String())
}
