package commands_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kshare/kshare/completions"
	"github.com/kshare/kshare/internal/cmdtest"
)

func TestEveryShellHasAScript(t *testing.T) {
	for _, shell := range completions.Shells() {
		res := cmdtest.Run(t, cmdtest.Setup{}, "completion", shell, "-o", "json").Want(t, 0)
		committed, err := os.ReadFile(filepath.Join("..", "completions", completions.FileName("kshare", shell)))
		if err != nil {
			t.Fatal(err)
		}
		if res.Stdout != string(committed) || res.Stderr != "" {
			t.Errorf("kshare completion %s writes another script than the committed one, stderr %q", shell, res.Stderr)
		}
	}
}
