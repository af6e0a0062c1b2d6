package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

const module = "github.com/kshare/kshare"

// sources is what the Go sources of the repository say of types: their comments,
// and the constants of a type.
type sources struct {
	dir  string
	read map[string]*source // by import path
}

// source is one package. Fields are named "Type.Field".
type source struct {
	comments map[string]string
	typed    map[string][]ast.Expr // values of typed constants, by type
	strings  map[string]string     // string constants without a type, by name
}

func newSources(dir string) *sources {
	return &sources{dir: dir, read: make(map[string]*source)}
}

// comment returns what is said of a field, or of the type where field is "", in
// the words of JSON.
func (s *sources) comment(t reflect.Type, field string) string {
	name := t.Name()
	if field != "" {
		name += "." + field
	}
	return inJSON(s.source(t).comments[name])
}

// constants returns the values that a string type has names for.
func (s *sources) constants(t reflect.Type) []any {
	if t.PkgPath() == "" {
		return nil
	}
	src := s.source(t)
	var out []any
	for _, v := range src.typed[t.Name()] {
		if text, ok := src.text(v); ok {
			out = append(out, text)
		}
	}
	return out
}

func (s *sources) source(t reflect.Type) *source {
	path := t.PkgPath()
	src := s.read[path]
	if src == nil {
		src = &source{comments: make(map[string]string), typed: make(map[string][]ast.Expr), strings: make(map[string]string)}
		s.read[path] = src
		if rel, ours := strings.CutPrefix(path, module+"/"); ours {
			src.parse(filepath.Join(s.dir, filepath.FromSlash(rel)))
		}
	}
	return src
}

// parse reads the sources in a directory. What cannot be parsed has no comments;
// the compiler will say more.
func (s *source) parse(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			continue
		}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				s.declaration(g)
			}
		}
	}
}

func (s *source) declaration(g *ast.GenDecl) {
	for _, spec := range g.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			doc := spec.Doc
			if doc == nil {
				doc = g.Doc
			}
			s.comments[spec.Name.Name] = doc.Text()
			if st, ok := spec.Type.(*ast.StructType); ok {
				s.fields(spec.Name.Name, st)
			}
		case *ast.ValueSpec:
			if g.Tok == token.CONST {
				s.constant(spec)
			}
		}
	}
}

func (s *source) constant(spec *ast.ValueSpec) {
	if typ, ok := spec.Type.(*ast.Ident); ok {
		s.typed[typ.Name] = append(s.typed[typ.Name], spec.Values...)
		return
	}
	for i, v := range spec.Values {
		if text, ok := s.text(v); ok {
			s.strings[spec.Names[i].Name] = text
		}
	}
}

// text is the value of a string literal, or of a constant that has one.
func (s *source) text(v ast.Expr) (string, bool) {
	switch v := v.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(v.Value)
		return text, err == nil && v.Kind == token.STRING
	case *ast.Ident:
		text, ok := s.strings[v.Name]
		return text, ok
	}
	return "", false
}

func (s *source) fields(typ string, st *ast.StructType) {
	for _, f := range st.Fields.List {
		doc := f.Doc.Text()
		if doc == "" {
			doc = f.Comment.Text()
		}
		for _, name := range f.Names {
			s.comments[typ+"."+name.Name] = doc
		}
	}
}

var (
	goNil  = regexp.MustCompile(`\bnil\b`)
	goLink = regexp.MustCompile(`\[\*?([A-Za-z.]+)\]`)
)

// inJSON turns a comment of Go into one paragraph about JSON.
func inJSON(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return goLink.ReplaceAllString(goNil.ReplaceAllString(s, "null"), "$1")
}
