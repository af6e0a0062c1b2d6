package commands

import (
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/mdtest"
)

// What pages name in running text, such as `kshare inspect pending --check`, is
// there: commands and flags. That blocks of commands do what they show is tested by
// running them, in cmd/kshare.
func TestPagesNameWhatThereIs(t *testing.T) {
	files, err := mdtest.Files("..")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		if strings.HasPrefix(file, "docs/cli/") || file == "CHANGELOG.md" { // which tells of what was, too
			continue
		}
		p, err := mdtest.Read("..", file)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range p.Inline {
			args, ok := strings.CutPrefix(span.Text, "kshare ")
			if !ok {
				continue
			}
			seen++
			words := splitWords(strings.TrimPrefix(args, "help "))
			root := testTree(t)
			found, rest, err := root.Find(words)
			if err != nil || found == root && !strings.HasPrefix(words[0], "-") {
				t.Errorf("%s:%d: %q is no command: %v", p.Path, span.Line, span.Text, err)
				continue
			}
			for _, w := range rest {
				name, isFlag := strings.CutPrefix(w, "--")
				name, _, _ = strings.Cut(name, "=")
				if isFlag && name != "help" && found.Flag(name) == nil {
					t.Errorf("%s:%d: %q: %s has no flag --%s", p.Path, span.Line, span.Text, found.CommandPath(), name)
				}
			}
		}
	}
	if seen < 30 {
		t.Errorf("the pages name %d commands, want at least 30", seen)
	}
}
