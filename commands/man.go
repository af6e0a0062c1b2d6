package commands

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kshare/kshare/completions"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manOptions is everything "man" can be told. A directory that is "" is not
// written.
type manOptions struct {
	Man         string
	Markdown    string
	Completions string
	Root        *cobra.Command
}

// manResult lists what was written.
type manResult struct {
	Files []string `json:"files"` // sorted by directory, then in the order of commands
}

func newManCmd(d *Deps, run runFunc[manOptions, *manResult]) *cobra.Command {
	var opts manOptions
	cmd := &cobra.Command{
		Use:    "man",
		Short:  "Write manual pages, Markdown and completion scripts",
		Hidden: true,
		Long: `Write manual pages, Markdown and completion scripts, made from the command tree.
The same build writes the same bytes at any time. Files of other names in these
directories are left alone.`,
		Example: `  kshare man --man-dir docs/man --markdown-dir docs/cli --completions-dir completions`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Man == "" && opts.Markdown == "" && opts.Completions == "" {
				return usagef("nothing to write: give --man-dir, --markdown-dir or --completions-dir")
			}
			opts.Root = cmd.Root()
			res, err := run(cmd.Context(), d, opts)
			return d.show(manView(res), err)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.Man, "man-dir", "", "write manual pages (section 1) to `directory`")
	fs.StringVar(&opts.Markdown, "markdown-dir", "", "write Markdown to `directory`")
	fs.StringVar(&opts.Completions, "completions-dir", "", "write completion scripts to `directory`")
	return cmd
}

// manDate is on every manual page: one that moved would make each build differ.
func manDate() *time.Time { return new(time.Date(2026, time.November, 29, 0, 0, 0, 0, time.UTC)) }

func runMan(_ context.Context, _ *Deps, opts manOptions) (*manResult, error) {
	var pages []*cobra.Command
	collectPages(opts.Root, &pages)
	for _, cmd := range pages {
		addExitStatus(cmd)
	}
	w := &fileWriter{}
	for _, cmd := range pages {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		w.write(opts.Man, name+".1", func(b *bytes.Buffer) error {
			return doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Date: manDate(), Source: "kshare", Manual: "kshare manual"}, b)
		})
	}
	for _, cmd := range pages {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "_")
		w.write(opts.Markdown, name+".md", func(b *bytes.Buffer) error { return doc.GenMarkdown(cmd, b) })
	}
	for _, shell := range completions.Shells() {
		w.write(opts.Completions, completions.FileName(opts.Root.Name(), shell), func(b *bytes.Buffer) error {
			return completions.Write(b, opts.Root, shell)
		})
	}
	return &manResult{Files: w.files}, w.err
}

// collectPages appends cmd and all below it that have a page: commands that are
// not hidden, and help topics.
func collectPages(cmd *cobra.Command, pages *[]*cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	*pages = append(*pages, cmd)
	for _, sub := range cmd.Commands() {
		collectPages(sub, pages)
	}
}

// addExitStatus adds to the description what the help text has in a section of
// its own, which cobra's pages do not know.
func addExitStatus(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	codes := cmd.Annotations[exitAnnotation]
	if codes == "" || cmd.HasSubCommands() {
		return
	}
	if cmd.Long == "" {
		cmd.Long = cmd.Short
	}
	// Four blanks are a block of code in Markdown, which the pages are made of.
	cmd.Long += "\n\nExit status:\n\n  " + strings.ReplaceAll(codes, "\n", "\n  ")
}

// fileWriter writes files until one fails.
type fileWriter struct {
	files []string
	err   error
}

func (w *fileWriter) write(dir, name string, fill func(*bytes.Buffer) error) {
	if dir == "" || w.err != nil {
		return
	}
	path := filepath.Join(dir, name)
	var b bytes.Buffer
	if err := fill(&b); err != nil {
		w.err = fmt.Errorf("make %s: %w", path, err)
		return
	}
	//nolint:gosec // documentation is for everybody to read
	if w.err = os.MkdirAll(dir, 0o755); w.err != nil {
		return
	}
	//nolint:gosec // as above
	if w.err = os.WriteFile(path, trimLines(b.Bytes()), 0o644); w.err == nil {
		w.files = append(w.files, path)
	}
}

func manView(res *manResult) output.View {
	if res == nil {
		return output.View{}
	}
	t := output.NewTable("FILE")
	for _, f := range res.Files {
		t.Row(f)
	}
	return output.View{Kind: "man", Version: 1, Items: res.Files, Table: t}
}
