// Package docs has the tests of the pages that are not run: their links, and the
// Go that they show. Commands are run by TestDocs of cmd/kshare.
package docs

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/mdtest"
)

var update = flag.Bool("update", false, "write the functions that pages name into them")

const root = ".."

func pages(t *testing.T) map[string]*mdtest.Page {
	t.Helper()
	files, err := mdtest.Files(root)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*mdtest.Page{}
	for _, file := range files {
		if all[file], err = mdtest.Read(root, file); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Every link to something of this repository leads to it, and its fragment to a
// heading.
func TestLinks(t *testing.T) {
	all := pages(t)
	links := 0
	for _, p := range all {
		for _, l := range p.Links {
			u, err := url.Parse(l.Destination)
			if err != nil {
				t.Errorf("%s:%d: %v", p.Path, l.Line, err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			links++
			target := p.Path
			if u.Path != "" {
				target = path.Join(path.Dir(p.Path), u.Path)
			}
			if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(target))); err != nil || strings.HasPrefix(target, "..") {
				t.Errorf("%s:%d: link to %q leads nowhere: %v", p.Path, l.Line, l.Destination, err)
				continue
			}
			if to := all[target]; u.Fragment != "" && (to == nil || !to.Anchors[u.Fragment]) {
				t.Errorf("%s:%d: link to %q: %s has no such heading", p.Path, l.Line, l.Destination, target)
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links, want at least 100", links)
	}
}

// Every page can be come to from README.md.
func TestPagesAreLinked(t *testing.T) {
	all := pages(t)
	seen := map[string]bool{}
	var visit func(file string)
	visit = func(file string) {
		p := all[file]
		if p == nil || seen[file] {
			return
		}
		seen[file] = true
		for _, l := range p.Links {
			if u, err := url.Parse(l.Destination); err == nil && u.Scheme == "" {
				visit(path.Join(path.Dir(file), u.Path))
			}
		}
	}
	visit("README.md")
	for file := range all {
		if !seen[file] && strings.HasPrefix(file, "docs/") {
			t.Errorf("no page that README.md leads to has a link to %s", file)
		}
	}
}

// What pages show of Go is the text of functions that compile, and that tests
// run. A comment before a block names them: "go: txn/example_test.go
// ExampleSession".
func TestGoBlocks(t *testing.T) {
	for _, p := range pages(t) {
		for _, b := range p.Blocks {
			if b.Lang != "go" {
				continue
			}
			names := strings.Fields(b.Comment)
			if len(names) < 3 || names[0] != "go:" {
				t.Errorf("%s:%d: a block of Go has to name its file and functions before it", p.Path, b.Line)
				continue
			}
			var parts []string
			for _, name := range names[2:] {
				parts = append(parts, function(t, names[1], name))
			}
			want := strings.Join(parts, "\n\n") + "\n"
			switch {
			case b.Text == want:
			case *update:
				file := filepath.Join(root, filepath.FromSlash(p.Path))
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				fence := "-->\n```go\n"
				page := strings.Replace(string(text), b.Comment+" "+fence+b.Text, b.Comment+" "+fence+want, 1)
				if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
					t.Fatal(err)
				}
			default:
				t.Errorf("%s:%d: it shows\n%s\nand %s has\n%s", p.Path, b.Line, b.Text, names[1], want)
			}
		}
	}
}

// function returns the text of a function, of a type, or of a ".method" without
// its comment.
func function(t *testing.T, file, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		named := ""
		switch d := d.(type) {
		case *ast.FuncDecl:
			named = d.Name.Name
			if d.Recv != nil {
				named = "." + named
			}
		case *ast.GenDecl:
			if spec, ok := d.Specs[0].(*ast.TypeSpec); ok {
				named = spec.Name.Name
			}
		}
		if named == name {
			return string(text[set.Position(d.Pos()).Offset:set.Position(d.End()).Offset])
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return ""
}
