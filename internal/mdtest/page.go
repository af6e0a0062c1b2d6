package mdtest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// Page is what tests look at in a Markdown file.
type Page struct {
	// Path is relative to the root of the repository, with slashes.
	Path   string
	Blocks []Block
	Links  []Link
	// Anchors are the fragments that lead to a heading, as GitHub makes them.
	Anchors map[string]bool
	// Inline are the code spans in running text.
	Inline []Span
}

// Block is fenced or indented code.
type Block struct {
	// Line is that of the first line of code, counted from 1.
	Line int
	// Lang is what follows the fence, "" when nothing does or for indented code.
	Lang string
	Text string
	// Comment is the text of an HTML comment right before the block, or "".
	Comment string
	// Under is the heading that the block is under.
	Under string
}

// Link is a link or an image.
type Link struct {
	Line        int
	Destination string
}

// Span is a code span.
type Span struct {
	Line int
	Text string
}

// Files returns the paths of all Markdown files below root, relative to it and
// sorted. Hidden directories and testdata have none.
func Files(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"testdata", "dist", "bin"}, d.Name())):
			return fs.SkipDir
		case !d.IsDir() && path.Ext(d.Name()) == ".md":
			rel, err := filepath.Rel(root, name)
			files = append(files, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	slices.Sort(files)
	return files, err
}

// Read reads the page at a path below root.
func Read(root, file string) (*Page, error) {
	source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	p := Parse(source)
	p.Path = file
	return p, nil
}

// Parse reads a page, in GitHub's Markdown as far as tables.
func Parse(source []byte) *Page {
	p := &Page{Anchors: map[string]bool{}}
	lineOf := func(offset int) int { return 1 + strings.Count(string(source[:offset]), "\n") }
	line := 1 // of the block that is being walked
	comment, under := "", ""
	doc := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it fails only if this does
		if !entering {
			return ast.WalkContinue, nil
		}
		if n.Type() == ast.TypeBlock && n.Lines().Len() > 0 {
			line = lineOf(n.Lines().At(0).Start)
		}
		switch n := n.(type) {
		case *ast.HTMLBlock:
			html := string(n.Lines().Value(source))
			if n.HasClosure() {
				html += string(n.ClosureLine.Value(source))
			}
			if in, ok := strings.CutPrefix(strings.TrimSpace(html), "<!--"); ok {
				comment = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(in), "-->"))
				return ast.WalkContinue, nil
			}
		case *ast.FencedCodeBlock:
			p.Blocks = append(p.Blocks, Block{Line: line, Lang: string(n.Language(source)), Text: string(n.Lines().Value(source)), Comment: comment, Under: under})
		case *ast.CodeBlock:
			p.Blocks = append(p.Blocks, Block{Line: line, Text: string(n.Lines().Value(source)), Comment: comment, Under: under})
		case *ast.Heading:
			under = plain(n, source)
			p.anchor(under)
		case *ast.Link:
			p.Links = append(p.Links, Link{line, string(n.Destination)})
		case *ast.Image:
			p.Links = append(p.Links, Link{line, string(n.Destination)})
		case *ast.CodeSpan:
			p.Inline = append(p.Inline, Span{line, plain(n, source)})
		}
		if n.Type() == ast.TypeBlock {
			comment = ""
		}
		return ast.WalkContinue, nil
	})
	return p
}

// plain returns the text of a node without its marks.
func plain(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // as above
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			b.Write(n.Value(source))
			if n.SoftLineBreak() {
				b.WriteByte(' ')
			}
		case *ast.String:
			b.Write(n.Value)
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// anchor adds the fragment of a heading, as GitHub makes it: lower case, blanks
// become hyphens, of other characters only letters, digits, "_" and "-" remain,
// and a number tells the second of two from the first.
func (p *Page) anchor(heading string) {
	slug := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '_', r == '-', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
	unique := slug
	for i := 1; p.Anchors[unique]; i++ {
		unique = fmt.Sprintf("%s-%d", slug, i)
	}
	p.Anchors[unique] = true
}
