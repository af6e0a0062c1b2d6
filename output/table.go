package output

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
)

// Table is rows under a header. It is filled by one goroutine.
type Table struct {
	header []string
	rows   [][]Cell
}

// NewTable returns a table without rows. Words of one heading are joined by "-",
// so that a reader who splits a line at spaces finds the same columns in it.
func NewTable(header ...string) *Table { return &Table{header: header} }

// Row appends a row; each value becomes a cell as [CellOf] says. It panics when
// their number is not that of the header, which is a mistake in the caller.
func (t *Table) Row(values ...any) {
	if len(values) != len(t.header) {
		panic(fmt.Sprintf("output: row of %d cells under %d headings %v", len(values), len(t.header), t.header))
	}
	row := make([]Cell, len(values))
	for i, v := range values {
		row[i] = CellOf(v)
	}
	t.rows = append(t.rows, row)
}

// Len returns the number of rows; 0 for a nil table.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	return len(t.rows)
}

// Cell is one value of a table: what people see, what CSV holds, and its style.
type Cell struct {
	shown string
	raw   string
	style Style
	whole bool      // half of it would be wrong, not short: a number, a time
	at    time.Time // what is shown, in the time zone of the reader; zero for all that is no time
}

// NA is the cell of what does not apply here: "-", and nothing in CSV.
func NA() Cell { return Cell{shown: "-", style: StyleMuted} }

// Unknown is the cell of what could not be read: "?" in every format.
func Unknown() Cell { return Cell{shown: "?", raw: "?", style: StyleWarn} }

// Good is the cell of v that says: as it should be.
func Good(v any) Cell { return styled(v, StyleGood) }

// Warn is the cell of v that says: needs a look.
func Warn(v any) Cell { return styled(v, StyleWarn) }

// Bad is the cell of v that says: wrong.
func Bad(v any) Cell { return styled(v, StyleBad) }

// Muted is the cell of v that may be passed over.
func Muted(v any) Cell { return styled(v, StyleMuted) }

// Key is the cell of v that names its row.
func Key(v any) Cell { return styled(v, StyleKey) }

func styled(v any, s Style) Cell {
	c := CellOf(v)
	c.style = s
	return c
}

// CellOf returns the cell of v: a [Cell] as it is, nil or a nil pointer [Unknown],
// a zero time [NA], a duration at the precision that people read, bytes as
// text, and all else as fmt prints it. An empty string shows as "-", so that
// columns can be counted.
func CellOf(v any) Cell {
	switch v := v.(type) {
	case Cell:
		return v
	case nil:
		return Unknown()
	case string:
		return textCell(v)
	case []byte:
		if v == nil {
			return NA()
		}
		return textCell(string(v))
	case time.Time:
		if v.IsZero() {
			return NA()
		}
		return Cell{shown: Time(v, nil), raw: v.UTC().Format(time.RFC3339Nano), whole: true, at: v}
	case *time.Time: // which has a String method that would come first
		if v == nil {
			return Unknown()
		}
		return CellOf(*v)
	case time.Duration:
		return Cell{shown: Duration(v), raw: v.String(), whole: true}
	}
	r := reflect.ValueOf(v)
	if r.CanInt() || r.CanUint() || r.CanFloat() {
		c := textCell(fmt.Sprint(v))
		c.whole = true
		return c
	}
	if r.Kind() == reflect.Pointer {
		if r.IsNil() {
			return Unknown()
		}
		if _, ok := v.(fmt.Stringer); !ok {
			return CellOf(r.Elem().Interface())
		}
	}
	return textCell(fmt.Sprint(v))
}

func textCell(s string) Cell {
	if s == "" {
		return Cell{shown: "-"}
	}
	return Cell{shown: Escape(s), raw: s}
}

// Time returns t as people read it, to the second and in a time zone, whose
// offset it tells; nil is UTC.
func Time(t time.Time, zone *time.Location) string {
	if zone == nil {
		zone = time.UTC
	}
	return t.In(zone).Format(time.RFC3339)
}

// Duration returns d as people read it: the two largest units from minutes on
// ("3h12m", "2d4h"), one decimal below ("12.3s") unless it is whole seconds
// ("30s"), whole milliseconds under a second.
func Duration(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	const day = 24 * time.Hour
	switch {
	case d < time.Second-time.Millisecond/2:
		return sign + strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) + "ms"
	case d < time.Minute && d%time.Second == 0: // a setting, rather than an age
		return sign + strconv.FormatInt(int64(d/time.Second), 10) + "s"
	case d < time.Minute-50*time.Millisecond:
		return sign + strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d < time.Hour-time.Second/2:
		d = d.Round(time.Second)
		return fmt.Sprintf("%s%dm%ds", sign, d/time.Minute, d%time.Minute/time.Second)
	case d < day-time.Minute/2:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%s%dh%dm", sign, d/time.Hour, d%time.Hour/time.Minute)
	default:
		d = d.Round(time.Hour)
		return fmt.Sprintf("%s%dd%dh", sign, d/day, d%day/time.Hour)
	}
}

// columnGap is what stands between two columns.
const columnGap = "  "

// render lays the table out. tablewriter sees plain text only; styles are put
// on afterwards, when no width depends on them.
func (t *Table) render(b *bytes.Buffer, o Options) error {
	grid, columns := t.grid(o)
	var plain bytes.Buffer
	tab := newTablewriter(&plain)
	first := 0 // line of the table that is grid[0]; the heading is 0
	if o.NoHeaders {
		grid, first = grid[1:], 1
	} else {
		tab.Header(grid[0])
	}
	for _, row := range grid[1-first:] {
		if err := tab.Append(row); err != nil {
			return err
		}
	}
	if err := tab.Render(); err != nil {
		return err
	}
	s := NewStyler(o.Color)
	i := 0
	for line := range strings.Lines(plain.String()) {
		t.styleLine(b, s, strings.TrimRight(line, " \n"), i+first, grid[i], columns)
		b.WriteByte('\n')
		i++
	}
	return nil
}

// grid returns the header and the rows as plain text, cut to the width, and how
// many columns of the table are there. A header that is not shown takes no room.
func (t *Table) grid(o Options) (grid [][]string, columns int) {
	grid = make([][]string, 0, len(t.rows)+1)
	grid = append(grid, append([]string(nil), t.header...))
	if o.NoHeaders {
		clear(grid[0])
	}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = c.shown
			if !c.at.IsZero() {
				cells[i] = Time(c.at, o.Location)
			}
		}
		grid = append(grid, cells)
	}
	if o.Width > 0 && len(t.header) > 0 {
		return grid, t.fit(grid, o.Width)
	}
	return grid, len(t.header)
}

func (t *Table) hasTimes() bool {
	return t != nil && slices.ContainsFunc(t.rows, func(row []Cell) bool {
		return slices.ContainsFunc(row, func(c Cell) bool { return !c.at.IsZero() })
	})
}

// leftOut returns the names of the columns that do not fit into the width.
func (t *Table) leftOut(o Options) []string {
	if t.Len() == 0 {
		return nil
	}
	_, n := t.grid(o)
	return t.header[n:]
}

// minColumn is the width below which a column is not cut, minHeading that for the
// heading over cells that must not be cut: an ellipsis in less says nothing.
const (
	minColumn  = 8
	minHeading = 5
)

const ellipsis = "\u2026"

// fit cuts cells until rows fit width: the widest columns first, and none below
// its floor. What names a row is cut after what is said of it, unless it takes more
// than half of the width, and headings are cut after cells. What does not fit even so, columns from the right, is left out, with
// an ellipsis in its place: a row is one line. It returns how many columns stay.
func (t *Table) fit(grid [][]string, width int) int {
	widths, floors := t.widths(grid)
	n := fitting(floors, width)
	if n < len(widths) {
		width -= len(columnGap) + twwidth.Width(ellipsis)
	}
	headed := slices.Clone(floors)
	for i, h := range grid[0] {
		headed[i] = max(headed[i], twwidth.Width(h))
	}
	cut := make([]bool, n)
	for _, f := range [][]int{t.keyFloors(grid, headed, width), headed, floors} {
		narrow(widths[:n], f, width, cut)
	}
	for r, row := range grid {
		for i, s := range row[:n] {
			if cut[i] && twwidth.Width(s) > widths[i] {
				row[i] = twwidth.Truncate(s, widths[i], ellipsis)
			}
		}
		if n < len(row) {
			grid[r] = append(row[:n], ellipsis)
		}
	}
	return n
}

// widths returns how wide each column is, and how narrow it may become.
func (t *Table) widths(grid [][]string) (widths, floors []int) {
	widths, floors = make([]int, len(t.header)), make([]int, len(t.header))
	for r, row := range grid {
		for i, s := range row {
			w := twwidth.Width(s)
			widths[i] = max(widths[i], w)
			switch {
			case r == 0:
				w = min(w, minHeading)
			case !t.rows[r-1][i].whole:
				w = min(w, minColumn)
			}
			floors[i] = max(floors[i], w)
		}
	}
	return widths, floors
}

// keyFloors are the floors as long as cells that name their row are not cut. Such
// columns have half of the width, and a long one no more than what others leave.
func (t *Table) keyFloors(grid [][]string, floors []int, width int) []int {
	named := make([]int, len(floors)) // the width of such cells, 0 in other columns
	var keys []int                    // the columns that have some
	for r, row := range t.rows {
		for i, c := range row {
			if c.style != StyleKey {
				continue
			}
			if named[i] == 0 {
				keys = append(keys, i)
			}
			named[i] = max(named[i], twwidth.Width(grid[r+1][i]))
		}
	}
	slices.SortFunc(keys, func(a, b int) int { return cmp.Compare(named[a], named[b]) })
	out := slices.Clone(floors)
	left := width / 2
	for i, k := range keys {
		w := min(named[k], left/(len(keys)-i))
		left -= w
		out[k] = max(out[k], w)
	}
	return out
}

// fitting returns how many columns, from the left, have room at their narrowest; 1
// at least. Where some have not, an ellipsis needs room too.
func fitting(floors []int, width int) int {
	total, n := 0, 0
	for i, w := range floors {
		if i > 0 {
			total += len(columnGap)
		}
		total += w
		if rest := len(columnGap) + twwidth.Width(ellipsis); total+rest <= width || total <= width && i == len(floors)-1 {
			n = i + 1
		}
	}
	return max(n, 1)
}

// narrow makes the widest columns narrower until all of them fit, as long as one
// has something to give, and notes which it has made so.
func narrow(widths, floors []int, width int, cut []bool) {
	total := len(columnGap) * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := -1
		for i, w := range widths {
			if w > floors[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		cut[widest] = true
	}
}

func newTablewriter(b *bytes.Buffer) *tablewriter.Table {
	part := tw.CellConfig{
		Alignment:  tw.CellAlignment{Global: tw.AlignLeft},
		Formatting: tw.CellFormatting{AutoWrap: tw.WrapNone, AutoFormat: tw.Off},
		Padding:    tw.CellPadding{Global: tw.Padding{Right: columnGap, Overwrite: true}},
	}
	return tablewriter.NewTable(b,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders:  tw.BorderNone,
			Settings: tw.Settings{Separators: tw.SeparatorsNone, Lines: tw.LinesNone},
		})),
		tablewriter.WithConfig(tablewriter.Config{
			Header:   part,
			Row:      part,
			Behavior: tw.Behavior{TrimSpace: tw.Off},
		}),
		// By default widths depend on the locale; the same result must give
		// the same bytes everywhere.
		tablewriter.WithEastAsian(false),
	)
}

// styleLine writes line i of the table (0 is the header), each cell in its
// style; what follows the columns is no cell. A cell is found by its text, left to right.
func (t *Table) styleLine(b *bytes.Buffer, s Styler, line string, i int, cells []string, columns int) {
	for col, shown := range cells {
		style := StyleHeader
		switch {
		case col == columns: // the ellipsis
			style = StyleMuted
		case i > 0:
			style = t.rows[i-1][col].style
		}
		at := strings.Index(line, shown)
		if at < 0 || style == StyleNone {
			if at >= 0 {
				b.WriteString(line[:at+len(shown)])
				line = line[at+len(shown):]
			}
			continue
		}
		b.WriteString(line[:at])
		b.WriteString(s.Render(style, shown))
		line = line[at+len(shown):]
	}
	b.WriteString(line)
}
