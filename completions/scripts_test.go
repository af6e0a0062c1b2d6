package completions

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrite(t *testing.T) {
	for _, shell := range append(Shells(), "tcsh") {
		var b strings.Builder
		err := Write(&b, &cobra.Command{Use: "tool"}, shell)
		if known := shell != "tcsh"; (err == nil) != known || strings.Contains(b.String(), "tool") != known {
			t.Errorf("Write(%s) = %v, script of %d bytes", shell, err, b.Len())
		}
	}
}

func TestFileName(t *testing.T) {
	for shell, want := range map[string]string{"bash": "tool.bash", "zsh": "tool.zsh", "powershell": "tool.ps1"} {
		if got := FileName("tool", shell); got != want {
			t.Errorf("FileName(%s) = %s, want %s", shell, got, want)
		}
	}
}
