package completions

import (
	_ "embed" // for the scripts
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// The scripts, with PROGRAM for the name of the program. Those that cobra has
// give the line to eval, in bash and fish also names that they have completed
// themselves, so that a TAB can run what somebody has called a group; and that of
// bash needs the package bash-completion.
var (
	//go:embed templates/bash
	bash string
	//go:embed templates/zsh
	zsh string
	//go:embed templates/fish
	fish string
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
	var template string
	switch shell {
	case "bash":
		template = bash
	case "zsh":
		template = zsh
	case "fish":
		template = fish
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(w)
	default:
		return fmt.Errorf("no completion script for shell %q: want one of %s", shell, strings.Join(Shells(), ", "))
	}
	_, err := io.WriteString(w, strings.ReplaceAll(template, "PROGRAM", root.Name()))
	return err
}
