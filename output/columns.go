package output

import (
	"fmt"
	"slices"
	"strings"
)

// ColumnNames returns the names of the columns that the rows of v have, each
// once: those of table, then what only wide has. It is empty for a result that
// has no rows in any format.
func (v View) ColumnNames() []string {
	var names []string
	for _, t := range []*Table{v.Table, v.Wide} {
		if t == nil {
			continue
		}
		for _, h := range t.header {
			if !slices.Contains(names, h) {
				names = append(names, h)
			}
		}
	}
	return names
}

// ColumnsError says that a result has no such columns.
type ColumnsError struct {
	// Unknown is the first name that is no column; "" if all are, and no row has
	// all of them: those of table and those of wide are not the same.
	Unknown string
	Known   []string // the columns that there are
}

// Error names the column, or says why the columns do not go together.
func (e *ColumnsError) Error() string {
	if e.Unknown == "" {
		return "the columns do not go together: they are those of different rows"
	}
	return fmt.Sprintf("there is no column %q", e.Unknown)
}

// Hint lists the columns that exist.
func (e *ColumnsError) Hint() string { return "columns are " + strings.Join(e.Known, ", ") }

// CheckColumns fails with *[ColumnsError] unless v has all columns of these
// names. Case does not matter.
func (v View) CheckColumns(names []string) error {
	_, err := v.pick(names, FormatTable)
	return err
}

// rows returns the one table of v that holds its rows: with the columns of these
// names in that order, or with those of the format if there are none. Where table
// and wide have a column of the same name, the one of the format is taken.
func (v View) rows(names []string, f Format) (*Table, error) {
	if len(names) > 0 {
		return v.pick(names, f)
	}
	if f == FormatTable && v.Table != nil {
		return v.Table, nil
	}
	return v.wide(), nil
}

func (v View) pick(names []string, f Format) (*Table, error) {
	from := []*Table{v.Table, v.Wide}
	if f == FormatWide || f == FormatCSV {
		slices.Reverse(from)
	}
	from = slices.DeleteFunc(from, func(t *Table) bool { return t == nil })
	for _, name := range names {
		if !slices.ContainsFunc(v.ColumnNames(), func(h string) bool { return strings.EqualFold(h, name) }) {
			return nil, &ColumnsError{Unknown: name, Known: v.ColumnNames()}
		}
	}
	for _, t := range from {
		if cols, ok := t.indexes(names); ok {
			return selectColumns([]*Table{t}, cols), nil
		}
	}
	if v.WideApart {
		return nil, &ColumnsError{Known: v.ColumnNames()}
	}
	cols := make([]columnRef, len(names))
	for i, name := range names {
		for n, t := range slices.Backward(from) {
			if at := t.index(name); at >= 0 {
				cols[i] = columnRef{n, at}
			}
		}
	}
	return selectColumns(from, cols), nil
}

// columnRef is a column of one of several tables.
type columnRef struct{ table, column int }

// index returns where the column of that name is; -1 if there is none.
func (t *Table) index(name string) int {
	return slices.IndexFunc(t.header, func(h string) bool { return strings.EqualFold(h, name) })
}

func (t *Table) indexes(names []string) ([]columnRef, bool) {
	cols := make([]columnRef, len(names))
	for i, name := range names {
		if cols[i].column = t.index(name); cols[i].column < 0 {
			return nil, false
		}
	}
	return cols, true
}

// selectColumns makes a table of columns of tables that have the same rows.
func selectColumns(from []*Table, cols []columnRef) *Table {
	t := &Table{header: make([]string, len(cols))}
	for i, c := range cols {
		t.header[i] = from[c.table].header[c.column]
	}
	for r := range from[0].rows {
		row := make([]Cell, len(cols))
		for i, c := range cols {
			row[i] = from[c.table].rows[r][c.column]
		}
		t.rows = append(t.rows, row)
	}
	return t
}
