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
		Long: `Write a completion script for a shell to stdout, whatever --output says. The
packages for Debian, Red Hat and Homebrew have them in place already.

bash 3.2 or newer, with or without the package bash-completion:
    kshare completion bash > /usr/share/bash-completion/completions/kshare
  or, for you alone, with bash-completion 2 and without it (in ~/.bashrc):
    kshare completion bash > ~/.local/share/bash-completion/completions/kshare
    source <(kshare completion bash)     # with bash 3.2: eval "$(...)"
zsh, to a directory of $fpath, and then start the shell anew:
    kshare completion zsh > /usr/local/share/zsh/site-functions/_kshare
  or in ~/.zshrc, behind compinit:
    source <(kshare completion zsh)
fish:
    kshare completion fish > ~/.config/fish/completions/kshare.fish
    kshare completion fish > /usr/share/fish/vendor_completions.d/kshare.fish
PowerShell, also in the file that $PROFILE names:
    kshare completion powershell | Out-String | Invoke-Expression

Names of groups, topics, transactional IDs, feature levels and contexts complete
too. The first four come from the cluster that the line, the environment or the
current context names: one connection of at most a second in all, requests that
change nothing, and no word about a failure. Nothing is asked for: where a
password, a key or a token comes from a command, or from a prompt, names of the
cluster are not completed, since a command may ask for something in its turn.
Without a configured cluster nothing is sent.

Nothing that is typed is run by completing it. PowerShell is the exception: its
script, cobra's own, evaluates the line.`,
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
