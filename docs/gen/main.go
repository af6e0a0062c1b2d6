package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kshare/kshare/commands"
)

func main() {
	if err := run(".", "."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// run writes all files below dir. Pages of commands, and schemas of documents, that
// are no more go. The sources, in which comments are, are below root.
func run(root, dir string) error {
	files, err := generate(root, commands.Root())
	if err != nil {
		return err
	}
	for _, pages := range []string{manDir, markdownDir} {
		if err := os.RemoveAll(filepath.Join(dir, filepath.FromSlash(pages))); err != nil {
			return err
		}
	}
	old, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(schemaDir), schemaFile("*")))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.path))
		//nolint:gosec // documentation is for everybody to read
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		//nolint:gosec // as above
		if err := os.WriteFile(path, f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
