package main

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/completions"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

const (
	manDir         = "docs/man"
	markdownDir    = "docs/cli"
	completionsDir = "completions"
)

// file is a file to write; its path has slashes and starts at the root of the
// repository.
type file struct {
	path string
	data []byte
}

// generate returns all files, sorted by directory and then in the order of
// commands and kinds. It changes the tree. dir is the root of the repository,
// whose sources have the comments that schemas are made with.
func generate(dir string, root *cobra.Command) ([]file, error) {
	var files []file
	add := func(dir, name string, fill func(io.Writer) error) error {
		var b bytes.Buffer
		if err := fill(&b); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		files = append(files, file{path.Join(dir, name), trimLines(b.String())})
		return nil
	}
	pages := collectPages(root, nil)
	for _, cmd := range pages {
		addExitStatus(cmd)
	}
	for _, cmd := range pages {
		err := add(manDir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1", func(w io.Writer) error {
			defer asText(cmd)()
			return doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Date: manDate(), Source: "kshare", Manual: "kshare manual"}, w)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, cmd := range pages {
		err := add(markdownDir, strings.ReplaceAll(cmd.CommandPath(), " ", "_")+".md", func(w io.Writer) error {
			return doc.GenMarkdown(cmd, w)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, shell := range completions.Shells() {
		err := add(completionsDir, completions.FileName(root.Name(), shell), func(w io.Writer) error {
			return completions.Write(w, root, shell)
		})
		if err != nil {
			return nil, err
		}
	}
	err := addSchemas(dir, commands.Documents(), func(name string, data []byte) {
		files = append(files, file{path.Join(schemaDir, name), data})
	})
	return files, err
}

// manDate is on every manual page: one that moved would make each build differ.
func manDate() *time.Time { return new(time.Date(2026, time.November, 29, 0, 0, 0, 0, time.UTC)) }

// collectPages appends cmd and all below it that have a page: commands that are
// not hidden, and help topics.
func collectPages(cmd *cobra.Command, pages []*cobra.Command) []*cobra.Command {
	if cmd.Hidden || cmd.Name() == "help" {
		return pages
	}
	pages = append(pages, cmd)
	for _, sub := range cmd.Commands() {
		pages = collectPages(sub, pages)
	}
	return pages
}

// addExitStatus adds to the description what the help text has in a section of
// its own, which cobra's pages do not know.
func addExitStatus(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	codes := commands.ExitStatus(cmd)
	if codes == "" || cmd.HasSubCommands() {
		return
	}
	if cmd.Long == "" {
		cmd.Long = cmd.Short
	}
	// Four blanks are a block of code in Markdown, which the pages are made of.
	cmd.Long += "\n\nExit status:\n\n  " + strings.ReplaceAll(codes, "\n", "\n  ")
}

// asText keeps what stands for an argument in the synopsis, such as <group>: manual
// pages are made by way of Markdown, where that is a tag of HTML, and is dropped. The
// function that it returns undoes it.
func asText(cmd *cobra.Command) (undo func()) {
	use := cmd.Use
	cmd.Use = strings.ReplaceAll(use, "<", `\<`)
	return func() { cmd.Use = use }
}

// trimLines drops the blanks that cobra leaves at the ends of lines.
func trimLines(s string) []byte {
	var b bytes.Buffer
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(line, " \t\n"))
		b.WriteByte('\n')
	}
	return b.Bytes()
}
