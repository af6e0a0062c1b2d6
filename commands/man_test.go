package commands_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kshare/kshare/completions"
	"github.com/kshare/kshare/internal/cmdtest"
)

// The committed pages and scripts are those of this command tree.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	dir := t.TempDir()
	fresh := func(name string) string { return filepath.Join(dir, name) }
	cmdtest.Run(t, cmdtest.Setup{}, "man", "--man-dir", fresh("man"), "--markdown-dir", fresh("cli"), "--completions-dir", fresh("completions")).Want(t, 0)
	for name, committed := range map[string]string{
		"man": "../docs/man", "cli": "../docs/cli", "completions": "../completions",
	} {
		want := generated(t, committed)
		got := generated(t, fresh(name))
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s holds %v, the command tree makes %v: run 'make docs'", committed, want, got)
			continue
		}
		for _, file := range want {
			a, err := os.ReadFile(filepath.Join(committed, file))
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(fresh(name), file))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a, b) {
				t.Errorf("%s/%s is not what the command tree makes: run 'make docs'", committed, file)
			}
		}
	}
}

// generated lists the files of a directory that are no Go source, sorted.
func generated(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".go" {
			names = append(names, e.Name())
		}
	}
	return names
}

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
