package completions

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Shells returns the names of the shells that have a script. The slice is the
// caller's.
func Shells() []string { return []string{"bash", "zsh", "fish", "powershell"} }

// FileName returns the name of the script of a shell for a program.
func FileName(program, shell string) string {
	if shell == "powershell" {
		return program + ".ps1"
	}
	return program + "." + shell
}

// Write writes the script of a shell for the program whose root command is root.
// It fails for a shell that [Shells] does not name.
func Write(w io.Writer, root *cobra.Command, shell string) error {
	switch shell {
	case "bash":
		return root.GenBashCompletionV2(w, true)
	case "zsh":
		return root.GenZshCompletion(w)
	case "fish":
		return root.GenFishCompletion(w, true)
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(w)
	default:
		return fmt.Errorf("no completion script for shell %q: want one of %s", shell, strings.Join(Shells(), ", "))
	}
}
