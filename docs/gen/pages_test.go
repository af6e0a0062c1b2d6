package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/commands"
	"github.com/spf13/pflag"
)

// root is that of the repository.
const root = "../.."

// The committed files are those of the command tree, and there are no others.
func TestFilesAreCurrent(t *testing.T) {
	files, err := generate(root, commands.Root())
	if err != nil {
		t.Fatal(err)
	}
	made := map[string][]string{}
	for _, f := range files {
		dir := path.Dir(f.path)
		made[dir] = append(made[dir], path.Base(f.path))
		committed, err := os.ReadFile(filepath.Join(root, f.path))
		if err != nil {
			t.Errorf("%v: run 'make docs'", err)
			continue
		}
		if !bytes.Equal(f.data, committed) {
			t.Errorf("%s is not what the command tree makes: run 'make docs'", f.path)
		}
	}
	for _, dir := range []string{manDir, markdownDir, completionsDir, schemaDir} {
		slices.Sort(made[dir])
		if got := generated(t, filepath.Join(root, dir)); !slices.Equal(got, made[dir]) {
			t.Errorf("%s holds %v, the command tree makes %v: run 'make docs'", dir, got, made[dir])
		}
	}
}

// generated lists the files of a directory that are neither Go source nor written
// by hand, sorted.
func generated(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() && filepath.Ext(e.Name()) != ".go" && (path.Base(dir) != path.Base(schemaDir) || filepath.Ext(e.Name()) != ".md") {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestRunWritesTheFiles(t *testing.T) {
	dir := t.TempDir()
	gone := []string{filepath.Join(dir, "docs/man/kshare-gone.1"), filepath.Join(dir, "docs/json/gone.schema.json")}
	for _, g := range gone {
		if err := os.MkdirAll(filepath.Dir(g), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(g, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(root, dir); err != nil {
		t.Fatal(err)
	}
	for _, g := range gone {
		if _, err := os.Stat(g); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is of something that is no more, and is still there: %v", g, err)
		}
	}
	for _, name := range []string{"docs/man/kshare-sandbox-run.1", "docs/cli/kshare_sandbox_run.md", "completions/kshare.zsh", "docs/json/inspect.pending.schema.json"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		want, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("run wrote another %s than the committed one", name)
		}
	}
	if err := run(root, filepath.Join(dir, "docs/man/kshare.1")); err == nil {
		t.Error("run into a directory that cannot be made reports no error")
	}
}

// Every page of a command lists its exit codes; the help topic has none.
func TestPagesListExitCodes(t *testing.T) {
	files, err := generate(root, commands.Root())
	if err != nil {
		t.Fatal(err)
	}
	with := map[string]bool{}
	for _, f := range files {
		with[f.path] = bytes.Contains(f.data, []byte("Exit status"))
	}
	for name, want := range map[string]bool{
		"docs/man/kshare-sandbox-run.1":  true,
		"docs/cli/kshare_sandbox_run.md": true,
		"docs/man/kshare-sandbox.1":      false,
		"docs/man/kshare-exit-codes.1":   false,
	} {
		if got, ok := with[name]; got != want || !ok {
			t.Errorf("%s lists exit codes = %v (made: %v), want %v", name, got, ok, want)
		}
	}
}

// A manual page says all that the help says: what it is made by takes some of a text
// for marks, and drops them.
func TestManualPagesDropNothing(t *testing.T) {
	tree := commands.Root()
	files, err := generate(root, tree)
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]string{}
	for _, f := range files {
		made[f.path] = words(roff.Replace(string(f.data)))
	}
	for _, cmd := range collectPages(tree, nil) {
		name := path.Join(manDir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1")
		wants := []string{cmd.UseLine(), cmd.Short}
		wants = append(wants, strings.Split(cmd.Long, "\n")...)
		wants = append(wants, strings.Split(cmd.Example, "\n")...)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { wants = append(wants, f.Usage) })
		for _, want := range wants {
			want = strings.TrimPrefix(words(strings.NewReplacer("`", "", `\`, "").Replace(want)), "- ") // a bullet
			if !strings.Contains(made[name], want) {
				t.Errorf("%s does not say %q", name, want)
			}
		}
	}
}

// roff takes the marks of a manual page out of its text.
var roff = strings.NewReplacer(`\fB`, "", `\fP`, "", `\fI`, "", `\fR`, "", `\fC`, "", `\-`, "-", `\&`, "", `\(bu`, "", `\[bu]`, "", `\\`, "", `\`, "", ".PP", " ", ".RE", " ", ".EX", " ", ".EE", " ")

// words returns a text with one blank between two words.
func words(s string) string { return strings.Join(strings.Fields(s), " ") }
