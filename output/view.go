package output

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Format names a way to write a result.
type Format string

// The formats.
const (
	FormatTable Format = "table" // columns for people
	FormatWide  Format = "wide"  // more columns for people, never truncated
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
	FormatCSV   Format = "csv" // the wide columns, RFC 4180 with line feeds
)

// Formats returns all formats, the default first. The slice is the caller's.
func Formats() []Format {
	return []Format{FormatTable, FormatWide, FormatJSON, FormatYAML, FormatCSV}
}

// Set makes *Format a flag value; it fails for a name that is no format.
func (f *Format) Set(s string) error {
	if !slices.Contains(Formats(), Format(s)) {
		return fmt.Errorf("want one of %s", joinFormats(", "))
	}
	*f = Format(s)
	return nil
}

// String returns the name of the format.
func (f *Format) String() string { return string(*f) }

// Type is the word that stands for a value in help texts.
func (*Format) Type() string { return "format" }

func joinFormats(sep string) string {
	var b strings.Builder
	for i, f := range Formats() {
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(string(f))
	}
	return b.String()
}

// View is a result on its way out. Kind, Version, and Items or Data or both are
// always set by the command; the rest where there is something to say.
type View struct {
	Kind       string    // such as "inspect.pending"
	Version    int       // schema version of Kind, from 1
	ClusterID  string    // "" if no cluster was asked
	Time       time.Time // when the result was made
	Incomplete bool      // something could not be read
	Warnings   []string

	Items any // a slice, or nil if this kind has no items
	Data  any // a struct or map, or nil if this kind has no data

	Table *Table // for table
	Wide  *Table // for wide and csv; nil takes Table
	// WideApart says that the rows of Wide are not those of Table, one for one:
	// no line can have columns of both.
	WideApart bool

	Text string // lines for people, after Table; without Table in its place, also in wide if there is no Wide
	// Sections are what people see, in table and wide, in place of Table and
	// Wide, where one table is not enough.
	Sections []Section
	Empty    string // sentence that the caller may show where Table has no rows
}

// Section is a part of a result for people: what is set of it, in this order. A
// table without rows is left out, and a section of nothing else with it.
type Section struct {
	Table *Table
	Wide  *Table // for wide; nil takes Table
	Strip *Strip
	Text  string
}

// IsZero reports whether there is nothing to write: the operation failed before
// it had a result. A nil pointer in Items or Data counts as nothing.
func (v View) IsZero() bool { return isNil(v.Items) && isNil(v.Data) }

func isNil(x any) bool {
	if x == nil {
		return true
	}
	switch r := reflect.ValueOf(x); r.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Map, reflect.Func, reflect.Chan:
		return r.IsNil()
	default: // a nil slice is an empty list, which is a result
		return false
	}
}

// Options says how to write a view.
type Options struct {
	Format Format // "" is FormatTable
	Color  bool   // style the table; other formats are never styled
	Width  int    // columns of the terminal; rows of a table are truncated to it; 0 never truncates
	Stream bool   // many documents follow each other: JSON on one line each, YAML after "---"

	// Columns and NoHeaders are for table, wide and csv, and for scripts that read
	// lines: each of them leaves the rows of one table, those that CSV has, and
	// nothing else. Columns picks and orders its columns, whatever the case of the
	// names; nil has those of the format.
	Columns   []string
	NoHeaders bool

	// Location is the time zone of the cells of table and wide; nil is UTC. Cells
	// tell the offset. CSV, JSON and YAML are in UTC.
	Location *time.Location

	// Filter is what JSON is put through; nil writes the document. Context ends a
	// filter that would not end; nil never does. Terminal escapes raw results.
	Filter   *Filter
	Context  context.Context //nolint:containedctx // of one call of Write
	Terminal bool
}

// RowsOnly reports whether there is nothing but rows on stdout for people: what
// a view has to say beside them the caller says elsewhere.
func (o Options) RowsOnly() bool { return o.NoHeaders || len(o.Columns) > 0 }

// Write writes v to w in the format that o names, in one call of Write unless
// there is a filter, and ends it with a line feed. It fails for a value that has
// no JSON form, for rows of a view without columns, with *[ColumnsError],
// *[FilterError], and with the error of w.
func Write(w io.Writer, v View, o Options) error {
	if o.Format == "" {
		o.Format = FormatTable
	}
	if o.Format == FormatJSON && o.Filter != nil {
		doc, err := v.envelope()
		if err != nil {
			return fmt.Errorf("write %s: %w", v.Kind, err)
		}
		return writeFiltered(w, doc, o)
	}
	var b bytes.Buffer
	var err error
	switch o.Format {
	case FormatTable:
		err = writePeople(&b, v, v.Table, o)
	case FormatWide:
		o.Width = 0
		if v.Table == nil && v.Wide != nil {
			v.Text = ""
		}
		err = writePeople(&b, v, v.wide(), o)
	case FormatJSON:
		err = writeJSON(&b, v, o.Stream)
	case FormatYAML:
		err = writeYAML(&b, v, o.Stream)
	case FormatCSV:
		err = writeCSV(&b, v, o)
	default:
		err = fmt.Errorf("unknown format %q", o.Format)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", v.Kind, err)
	}
	if b.Len() == 0 {
		return nil
	}
	_, err = w.Write(b.Bytes())
	return err
}

func (v View) wide() *Table {
	if v.Wide != nil {
		return v.Wide
	}
	return v.Table
}

// writePeople writes the table, then the text. A table without rows is left out:
// a heading over nothing says less than the sentence the caller shows instead.
func writePeople(b *bytes.Buffer, v View, t *Table, o Options) error {
	// Without rows in this format, what stands in their place is the result.
	if o.RowsOnly() && (t != nil || len(o.Columns) > 0) {
		t, err := v.rows(o.Columns, o.Format)
		if err != nil || t.Len() == 0 {
			return err
		}
		return t.render(b, o)
	}
	if v.Sections != nil {
		if err := writeSections(b, v.Sections, o); err != nil {
			return err
		}
	} else if t.Len() > 0 {
		if err := t.render(b, o); err != nil {
			return err
		}
	}
	writeText(b, v.Text)
	return nil
}

// writeSections writes sections with an empty line between them.
func writeSections(b *bytes.Buffer, sections []Section, o Options) error {
	for _, s := range sections {
		t := s.Table
		if o.Format == FormatWide && s.Wide != nil {
			t = s.Wide
		}
		if t.Len() == 0 && s.Strip == nil && s.Text == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		if t.Len() > 0 {
			if err := t.render(b, o); err != nil {
				return err
			}
		}
		if s.Strip != nil {
			s.Strip.render(b, o)
		}
		writeText(b, s.Text)
	}
	return nil
}

// LeftOut returns the names of the columns that Write leaves out since they do not
// fit into the width; nil where none is.
func (v View) LeftOut(o Options) []string {
	if o.Format != FormatTable && o.Format != "" || o.Width == 0 {
		return nil
	}
	tables := []*Table{v.Table}
	switch {
	case o.RowsOnly():
		t, err := v.rows(o.Columns, o.Format)
		if err != nil {
			return nil
		}
		tables[0] = t
	case v.Sections != nil:
		tables = nil
		for _, s := range v.Sections {
			tables = append(tables, s.Table)
		}
	}
	var names []string
	for _, t := range tables {
		names = append(names, t.leftOut(o)...)
	}
	return names
}

// HasTimes reports whether [Write] has times to show in the time zone of the reader.
func (v View) HasTimes(o Options) bool {
	if o.Format != FormatTable && o.Format != FormatWide && o.Format != "" {
		return false
	}
	tables := []*Table{v.Table, v.Wide}
	for _, s := range v.Sections {
		tables = append(tables, s.Table, s.Wide)
	}
	return slices.ContainsFunc(tables, (*Table).hasTimes)
}

func writeText(b *bytes.Buffer, text string) {
	if text != "" {
		b.WriteString(escapeLines(strings.TrimRight(text, "\n")))
		b.WriteByte('\n')
	}
}

// envelope returns the document that JSON and YAML share.
func (v View) envelope() (object, error) {
	warnings := node(list{})
	if len(v.Warnings) > 0 {
		l := make(list, 0, len(v.Warnings))
		for _, w := range v.Warnings {
			l = append(l, text(w))
		}
		warnings = l
	}
	doc := object{
		{"kind", text(v.Kind)},
		{"version", number(fmt.Sprint(v.Version))},
		{"cluster_id", nullIfEmpty(v.ClusterID)},
		{"time", timeNode(v.Time)},
		{"incomplete", boolean(v.Incomplete)},
		{"warnings", warnings},
	}
	for _, part := range []struct {
		key string
		val any
	}{{"items", v.Items}, {"data", v.Data}} {
		if part.val == nil {
			continue
		}
		n, err := encode(part.val)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.key, err)
		}
		doc = append(doc, member{part.key, n})
	}
	return doc, nil
}

func nullIfEmpty(s string) node {
	if s == "" {
		return null{}
	}
	return text(s)
}
