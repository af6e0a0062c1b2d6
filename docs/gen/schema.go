package main

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/kshare/kshare/commands"
)

const (
	schemaDir  = "docs/json"
	schemaBase = "https://github.com/kshare/kshare/blob/main/docs/json/"
)

// schemaFile is the name of the schema of a kind.
func schemaFile(kind string) string { return kind + ".schema.json" }

// addSchemas adds a JSON schema for each kind of document. dir is the root of the
// repository, whose sources say what types, fields and constants are for.
func addSchemas(dir string, docs []commands.Document, add func(name string, data []byte)) error {
	g := &schemaMaker{sources: newSources(dir)}
	for _, d := range docs {
		s, err := g.document(d)
		if err != nil {
			return fmt.Errorf("make schema of %s: %w", d.Kind, err)
		}
		raw, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("make schema of %s: %w", d.Kind, err)
		}
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return err
		}
		b.WriteByte('\n')
		add(schemaFile(d.Kind), b.Bytes())
	}
	return nil
}

// schemaMaker makes schemas of what package output makes of Go values. Its rules
// are not those of encoding/json: lists are never null, a zero time is, a string
// that is not UTF-8 is an object, and a type with a String method is a string.
type schemaMaker struct {
	sources *sources
	text    bool // text is used in this document
}

func (g *schemaMaker) document(d commands.Document) (*jsonschema.Schema, error) {
	g.text = false
	s := &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema", ID: schemaBase + schemaFile(d.Kind), Title: d.Kind,
	}
	if d.Line != nil {
		line, err := g.schema(d.Line)
		if err != nil {
			return nil, err
		}
		line.Schema, line.ID, line.Title = s.Schema, s.ID, s.Title
		line.Properties["kind"] = &jsonschema.Schema{Const: jsonschema.Ptr[any](d.Kind)}
		s = line
	} else if err := g.envelope(s, d); err != nil {
		return nil, err
	}
	if g.text {
		s.Defs = map[string]*jsonschema.Schema{"text": textSchema()}
	}
	return s, nil
}

// textSchema is a string of the cluster, which can hold any bytes.
func textSchema() *jsonschema.Schema {
	return &jsonschema.Schema{
		Description: "A string. One that is not valid UTF-8 is an object that holds its bytes.",
		AnyOf: []*jsonschema.Schema{
			{Type: "string"},
			{
				Type: "object", PropertyOrder: []string{"encoding", "value"}, Required: []string{"encoding", "value"},
				Properties: map[string]*jsonschema.Schema{
					"encoding": {Const: jsonschema.Ptr[any]("base64")},
					"value":    {Type: "string", ContentEncoding: "base64"},
				},
			},
		},
	}
}

// envelope fills in what all documents share: see the comment of package output.
func (g *schemaMaker) envelope(s *jsonschema.Schema, d commands.Document) error {
	add := func(name string, p *jsonschema.Schema) {
		s.Properties[name] = p
		s.PropertyOrder = append(s.PropertyOrder, name)
		s.Required = append(s.Required, name)
	}
	s.Type, s.Properties = "object", make(map[string]*jsonschema.Schema)
	add("kind", &jsonschema.Schema{Description: "What the document holds.", Const: jsonschema.Ptr[any](d.Kind)})
	add("version", &jsonschema.Schema{Description: "Version of the schema of this kind. Adding a key keeps it.", Const: jsonschema.Ptr[any](d.Version)})
	add("cluster_id", &jsonschema.Schema{Description: "The cluster the result came from; null if none was asked.", Types: []string{"string", "null"}})
	add("time", &jsonschema.Schema{Description: "When the result was made, in UTC.", Type: "string", Format: "date-time"})
	add("incomplete", &jsonschema.Schema{Description: "Something could not be read; the exit status is then not 0.", Type: "boolean"})
	add("warnings", &jsonschema.Schema{Description: "Sentences.", Type: "array", Items: &jsonschema.Schema{Type: "string"}})
	if d.Items != nil {
		item, err := g.schema(d.Items)
		if err != nil {
			return err
		}
		add("items", &jsonschema.Schema{Type: "array", Items: item})
	}
	if d.Data != nil {
		data, err := g.schema(d.Data)
		if err != nil {
			return err
		}
		add("data", data)
	}
	return nil
}

// schema returns the schema of a type: that of the library, refined by our rules
// and by what the sources say.
func (g *schemaMaker) schema(t reflect.Type) (*jsonschema.Schema, error) {
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{IgnoreInvalidTypes: true})
	if err != nil {
		return nil, err
	}
	g.refine(t, s, "")
	if s.Description == "" {
		s.Description = g.sources.comment(t, "")
	}
	return s, nil
}

// refine changes the schema of a value of type t that is held by a key of that
// name, "" for none.
func (g *schemaMaker) refine(t reflect.Type, s *jsonschema.Schema, name string) {
	nullable := false
	for t.Kind() == reflect.Pointer {
		nullable, t = true, t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		become(s, &jsonschema.Schema{Type: "string", Format: "date-time"}, true)
	case t == reflect.TypeFor[time.Duration]() && strings.HasSuffix(name, "_ms"):
		become(s, &jsonschema.Schema{Type: "integer"}, nullable)
	case t == reflect.TypeFor[time.Duration]():
		become(s, &jsonschema.Schema{Type: "string"}, nullable)
	case t.Implements(reflect.TypeFor[json.Marshaler]()):
		become(s, &jsonschema.Schema{}, false) // it may be anything
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()), t.Implements(reflect.TypeFor[fmt.Stringer]()) && t.Kind() != reflect.Struct:
		become(s, &jsonschema.Schema{Type: "string"}, nullable)
	case t.Kind() == reflect.String:
		if values := g.sources.constants(t); len(values) > 0 {
			become(s, &jsonschema.Schema{Enum: values}, nullable)
			return
		}
		g.text = true
		become(s, &jsonschema.Schema{Ref: "#/$defs/text"}, nullable)
	case isBytes(t):
		g.text = true
		become(s, &jsonschema.Schema{Ref: "#/$defs/text"}, t.Kind() == reflect.Slice)
	case t.Kind() == reflect.Slice, t.Kind() == reflect.Array:
		s.Type, s.Types = "array", nil
		g.refine(t.Elem(), s.Items, "")
	case t.Kind() == reflect.Map:
		s.Type, s.Types = "object", nil
		g.refine(t.Elem(), s.AdditionalProperties, "")
	case t.Kind() == reflect.Struct:
		g.refineStruct(t, s)
	}
}

func isBytes(t reflect.Type) bool {
	return (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() == reflect.Uint8
}

func (g *schemaMaker) refineStruct(t reflect.Type, s *jsonschema.Schema) {
	s.AdditionalProperties = nil // a reader takes keys that were added since
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if p == nil || f.Anonymous {
			continue
		}
		g.refine(f.Type, p, name)
		holder := t
		for _, i := range f.Index[:len(f.Index)-1] {
			holder = holder.Field(i).Type
			if holder.Kind() == reflect.Pointer { // all of it is absent when that is nil
				holder = holder.Elem()
				s.Required = slices.DeleteFunc(s.Required, func(r string) bool { return r == name })
			}
		}
		if p.Description == "" {
			p.Description = g.sources.comment(holder, f.Name)
		}
	}
}

// become makes s the schema that is given, or null.
func become(s, as *jsonschema.Schema, nullable bool) {
	switch {
	case !nullable:
	case as.Ref != "":
		as = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{as, {Type: "null"}}}
	case as.Enum != nil:
		as.Enum = append(slices.Clone(as.Enum), nil)
	case as.Type != "":
		as.Types, as.Type = []string{as.Type, "null"}, ""
	}
	*s = *as
}
