package output

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
)

// columnsView has a column in both tables, some in one alone, a text and a time.
func columnsView() View {
	at := time.Date(2026, 11, 29, 23, 30, 0, 5_000_000, time.UTC)
	t := NewTable("GROUP", "OFFSETS", "MEMBERS")
	w := NewTable("GROUP", "FIRST-OFFSET", "STARTED", "MEMBERS")
	t.Row(Key("billing"), "1-2", 1)
	w.Row(Key("billing"), 1, at, "m1")
	t.Row(Key("a\nb"), "7", 2)
	w.Row(Key("a\nb"), 7, NA(), "m1 m2")
	return View{
		Kind: "test.columns", Version: 1, Items: []int{1}, Table: t, Wide: w, Text: "what it comes to",
		Sections: []Section{{Table: t, Wide: w}, {Text: "in sections"}},
	}
}

func TestColumns(t *testing.T) {
	for name, c := range map[string]struct {
		columns   string
		format    Format
		noHeaders bool
		want      string
	}{
		"of table":                {"members,GROUP", FormatTable, false, "MEMBERS  GROUP\n1        billing\n2        a\\nb\n"},
		"of wide, in table":       {"first-offset,members", FormatTable, false, "FIRST-OFFSET  MEMBERS\n1             m1\n7             m1 m2\n"},
		"of wide, in wide":        {"Members", FormatWide, false, "MEMBERS\nm1\nm1 m2\n"},
		"of both":                 {"offsets,started,members", FormatTable, false, "OFFSETS  STARTED               MEMBERS\n1-2      2026-11-29T23:30:00Z  1\n7        -                     2\n"},
		"of both, in csv":         {"OFFSETS,MEMBERS,STARTED", FormatCSV, false, "OFFSETS,MEMBERS,STARTED\n1-2,m1,2026-11-29T23:30:00.005Z\n7,m1 m2,\n"},
		"twice":                   {"group,group", FormatCSV, false, "GROUP,GROUP\nbilling,billing\n\"a\nb\",\"a\nb\"\n"},
		"without headings":        {"group,first-offset", FormatTable, true, "billing  1\na\\nb     7\n"},
		"csv without headings":    {"offsets", FormatCSV, true, "1-2\n7\n"},
		"all, without headings":   {"", FormatTable, true, "billing  1-2  1\na\\nb     7    2\n"},
		"all wide, without":       {"", FormatWide, true, "billing  1  2026-11-29T23:30:00Z  m1\na\\nb     7  -                     m1 m2\n"},
		"all of csv, without any": {"", FormatCSV, true, "billing,1,2026-11-29T23:30:00.005Z,m1\n\"a\nb\",7,,m1 m2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Format: c.format, NoHeaders: c.noHeaders}
			if c.columns != "" {
				o.Columns = strings.Split(c.columns, ",")
			}
			var b bytes.Buffer
			if err := Write(&b, columnsView(), o); err != nil {
				t.Fatal(err)
			}
			if b.String() != c.want {
				t.Errorf("columns %q of %s:\n%s\nwant:\n%s", c.columns, c.format, b.String(), c.want)
			}
		})
	}
}

func TestColumnsThatAreNot(t *testing.T) {
	v := columnsView()
	const known = "GROUP OFFSETS MEMBERS FIRST-OFFSET STARTED"
	if got := strings.Join(v.ColumnNames(), " "); got != known {
		t.Errorf("ColumnNames() = %s, want %s", got, known)
	}
	for name, c := range map[string]struct {
		columns []string
		apart   bool
		unknown string
		fails   bool
	}{
		"an unknown one":                {[]string{"group", "lag"}, false, "lag", true},
		"an empty one":                  {[]string{""}, false, "", true},
		"of both":                       {[]string{"offsets", "started"}, false, "", false},
		"of both, with other rows":      {[]string{"offsets", "started"}, true, "", true},
		"of one of them, though apart":  {[]string{"group", "started"}, true, "", false},
		"an unknown one, though apart":  {[]string{"offsets", "started", "x"}, true, "x", true},
		"one that table and wide share": {[]string{"MEMBERS"}, true, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			v := v
			v.WideApart = c.apart
			err := v.CheckColumns(c.columns)
			e, ok := errors.AsType[*ColumnsError](err)
			if ok != c.fails || ok && (e.Unknown != c.unknown || strings.Join(e.Known, " ") != known) {
				t.Fatalf("CheckColumns(%q) = %v", c.columns, err)
			}
			var b bytes.Buffer
			werr := Write(&b, v, Options{Format: FormatTable, Columns: c.columns})
			if (werr != nil) != c.fails || c.fails && b.Len() > 0 {
				t.Errorf("Write with columns %q = %v, and wrote %q", c.columns, werr, b.String())
			}
		})
	}
}

// No rows are no lines, in CSV no lines below the heading.
func TestRowsOnlyOfNothing(t *testing.T) {
	v := View{Kind: "test", Version: 1, Items: []int{}, Table: NewTable("A", "B"), Text: "nothing"}
	for format, want := range map[Format]string{FormatTable: "", FormatWide: "", FormatCSV: "B\n"} {
		var b bytes.Buffer
		if err := Write(&b, v, Options{Format: format, Columns: []string{"b"}}); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v; want %q", format, b.String(), err, want)
		}
	}
	// What people see in place of a table is all that there is without columns.
	v = View{Kind: "test", Version: 1, Data: 1, Text: "127.0.0.1:9092", Wide: NewTable("SERVERS", "ID")}
	v.Wide.Row("127.0.0.1:9092", "c1")
	for columns, want := range map[string]string{"": "127.0.0.1:9092\n", "id": "c1\n"} {
		o := Options{NoHeaders: true}
		if columns != "" {
			o.Columns = []string{columns}
		}
		var b bytes.Buffer
		if err := Write(&b, v, o); err != nil || b.String() != want {
			t.Errorf("columns %q: %q, %v; want %q", columns, b.String(), err, want)
		}
	}
}

// A heading that is not shown takes no room from what is, and rows fit a terminal
// without one too.
func TestNoHeadersFits(t *testing.T) {
	table := NewTable("TRANSACTIONAL-ID", "COUNT")
	table.Row(strings.Repeat("x", 100), 12)
	for _, noHeaders := range []bool{false, true} {
		var b bytes.Buffer
		if err := Write(&b, View{Kind: "test", Items: 1, Table: table}, Options{Width: 40, NoHeaders: noHeaders}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 40 {
				t.Errorf("line of %d columns at a width of 40: %q", n, line)
			}
		}
		if noHeaders && strings.Contains(b.String(), "COUNT") {
			t.Errorf("a heading is there: %q", b.String())
		}
	}
}

// A row is one line however narrow the terminal is; numbers are never cut, and what
// has no room is told.
func TestRowsFit(t *testing.T) {
	table := NewTable("GROUP", "TOPIC", "PARTITION", "OFFSETS", "TRANSACTIONAL-ID", "AGE", "VERDICT")
	table.Row(Key(strings.Repeat("g", 249)), "orders", 12345, "1000-1999", "\u65e5\u672c\u8a9e-e\u0301-"+strings.Repeat("x", 240), 90*time.Second, Bad("orphan"))
	table.Row(Key("billing"), "orders", 0, "7", NA(), Unknown(), "exact")
	v := View{Kind: "test", Version: 1, Items: 1, Table: table}
	for width := 12; width < 620; width++ {
		o := Options{Width: width}
		var b bytes.Buffer
		if err := Write(&b, v, o); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != 3 {
			t.Fatalf("width %d: %d lines, want 3:\n%s", width, len(lines), b.String())
		}
		for _, l := range lines {
			if w := twwidth.Width(l); w > width {
				t.Fatalf("width %d: a line is %d wide: %q", width, w, l)
			}
		}
		left := v.LeftOut(o)
		if marked := strings.HasSuffix(lines[0], columnGap+ellipsis); marked != (len(left) > 0) {
			t.Fatalf("width %d: %q are left out, and the heading is %q", width, left, lines[0])
		}
		if slices.Contains(left, "PARTITION") == strings.Contains(lines[1], "  12345") {
			t.Fatalf("width %d: PARTITION is cut, or it is left out and shown: %q", width, lines[1])
		}
		// Colours change nothing about it.
		var colored bytes.Buffer
		o.Color = true
		if err := Write(&colored, v, o); err != nil || ansi.Strip(colored.String()) != b.String() {
			t.Fatalf("width %d: in colour it is\n%s\nwant\n%s", width, ansi.Strip(colored.String()), b.String())
		}
	}
	if left := v.LeftOut(Options{Width: 50}); strings.Join(left, " ") != "AGE VERDICT" {
		t.Errorf("at 50 columns %q are left out", left)
	}
	if left := v.LeftOut(Options{Width: 12, Format: FormatWide}); left != nil {
		t.Errorf("wide leaves out %q", left)
	}
}

// What names a row is cut after all else, as long as it leaves half of the width.
func TestKeysAreCutLast(t *testing.T) {
	table := NewTable("GROUP", "CONFIG", "MEANING")
	table.Row(Key("billing"), Key("share.record.lock.duration.ms"), "how long a record stays acquired by a member")
	for width, want := range map[int]string{
		200: "billing  share.record.lock.duration.ms  how long a record stays acquired by a member",
		80:  "billing  share.record.lock.duration.ms  how long a record stays acquired by a m\u2026",
		60:  "billing  share.record.lock.durat\u2026  how long a record stays \u2026",
		40:  "billing  share.record.\u2026  how long a rec\u2026",
		30:  "billing  share.re\u2026  how long \u2026",
		26:  "billing  share.record.\u2026  \u2026",
	} {
		var b bytes.Buffer
		if err := Write(&b, View{Kind: "test", Version: 1, Items: 1, Table: table}, Options{Width: width, NoHeaders: true}); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(b.String(), "\n"); got != want {
			t.Errorf("at %d columns the row is %q, want %q", width, got, want)
		}
	}
}

func TestTimeZone(t *testing.T) {
	berlin := time.FixedZone("", 3600)
	v := columnsView()
	var nothing *time.Time
	v.Table = NewTable("STARTED", "UNKNOWN", "NEVER")
	v.Table.Row(time.Date(2026, 11, 29, 23, 30, 0, 0, time.UTC), nothing, time.Time{})
	v.Wide, v.Sections, v.Text = v.Table, nil, ""
	for name, c := range map[string]struct {
		format Format
		zone   *time.Location
		want   string
	}{
		"none is UTC":   {FormatTable, nil, "2026-11-29T23:30:00Z  ?        -"},
		"UTC":           {FormatTable, time.UTC, "2026-11-29T23:30:00Z  ?        -"},
		"elsewhere":     {FormatTable, berlin, "2026-11-30T00:30:00+01:00  ?        -"},
		"in wide":       {FormatWide, berlin, "2026-11-30T00:30:00+01:00  ?        -"},
		"csv is in UTC": {FormatCSV, berlin, "2026-11-29T23:30:00Z,?,"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Write(&b, v, Options{Format: c.format, Location: c.zone}); err != nil {
				t.Fatal(err)
			}
			_, row, _ := strings.Cut(b.String(), "\n")
			if row != c.want+"\n" {
				t.Errorf("row %q, want %q", row, c.want)
			}
		})
	}
	var b bytes.Buffer
	v.Time = time.Date(2026, 11, 30, 0, 30, 0, 0, berlin)
	if err := Write(&b, v, Options{Format: FormatJSON, Location: berlin, Stream: true}); err != nil || !strings.Contains(b.String(), `"time":"2026-11-29T23:30:00Z"`) {
		t.Errorf("JSON %s, %v: want UTC", b.String(), err)
	}
}
