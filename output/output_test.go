package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// rowState is an enumeration as the domain packages have them.
type rowState int8

func (s rowState) String() string { return [...]string{"AVAILABLE", "TX_PENDING"}[s] }

type envelopeHead struct {
	Total int   `json:"total"`
	Oldst *bool `json:"oldest_known"`
}

type goldenRow struct {
	GroupID         string         `json:"group_id"`
	Partition       int32          `json:"partition"`
	FirstOffset     int64          `json:"first_offset"`
	State           rowState       `json:"state"`
	TransactionalID []byte         `json:"transactional_id"`
	Started         time.Time      `json:"started"`
	Age             time.Duration  `json:"age"`
	LockDuration    time.Duration  `json:"lock_duration_ms"`
	Lag             *int64         `json:"lag"`
	Dead            string         `json:"dead,omitempty"`
	Racks           []string       `json:"racks"`
	Counts          map[string]int `json:"counts"`
	Ratio           float64        `json:"ratio"`
	Raw             json.RawMessage
	hidden          int
	Skipped         int `json:"-"`
}

func goldenView() View {
	started := time.Date(2026, 11, 29, 12, 0, 0, 5_000_000, time.FixedZone("", 3600))
	lag := int64(1<<53 + 1)
	rows := []goldenRow{
		{
			GroupID: "billing", Partition: 2, FirstOffset: 1 << 60, State: 1, TransactionalID: []byte("tx-1"),
			Started: started, Age: 192 * time.Second, LockDuration: 30 * time.Second, Lag: &lag,
			Racks: []string{"a", "no", "1e3"}, Counts: map[string]int{"z": 1, "a": 2}, Ratio: 0.5,
			Raw: json.RawMessage(`{"b":1,"a":[12345678901234567890]}`), hidden: 1, Skipped: 1,
		},
		{
			GroupID: "g\x1b[31m\nx\u202e", TransactionalID: []byte{0xff, 0xfe, 0x0a, 0x00}, Dead: "caf\xe9",
			Age: 1500 * time.Microsecond, Raw: json.RawMessage("null"),
		},
	}
	t := NewTable("GROUP", "PARTITION", "FIRST-OFFSET", "STATE", "TRANSACTIONAL-ID", "AGE", "LAG")
	for _, r := range rows {
		t.Row(Key(r.GroupID), r.Partition, r.FirstOffset, r.State, r.TransactionalID, r.Age, r.Lag)
	}
	t.Row(Bad("\u65e5\u672c\u8a9e"), NA(), int64(0), Warn("e\u0301e\u0301"), strings.Repeat("t", 249), time.Duration(0), Unknown())
	w := NewTable("GROUP", "STARTED")
	w.Row("billing", started)
	return View{
		Kind: "test.rows", Version: 1, ClusterID: "c1", Time: started, Incomplete: true,
		Warnings: []string{"broker 3 did not answer"},
		Items:    rows, Data: struct {
			envelopeHead
			Note string `json:"note"`
		}{envelopeHead{Total: 2}, "a \u2028 b"},
		Table: t, Wide: w,
	}
}

func TestFormatsGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		opts Options
	}{
		{"table", Options{Format: FormatTable}},
		{"table_narrow", Options{Format: FormatTable, Width: 100}},
		{"table_color", Options{Format: FormatTable, Color: true, Width: 120}},
		{"wide", Options{Format: FormatWide, Width: 10}},
		{"json", Options{Format: FormatJSON, Color: true}},
		{"json_stream", Options{Format: FormatJSON, Stream: true}},
		{"yaml", Options{Format: FormatYAML}},
		{"yaml_stream", Options{Format: FormatYAML, Stream: true}},
		{"csv", Options{Format: FormatCSV, Width: 10}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := Write(&b, goldenView(), c.opts); err != nil {
				t.Fatal(err)
			}
			golden(t, c.name, b.Bytes())
			if !c.opts.Color && bytes.ContainsRune(b.Bytes(), 0x1b) && c.opts.Format != FormatCSV {
				t.Errorf("a terminal sequence got through: %q", b.Bytes())
			}
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs, see go test -update.\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

// JSON and YAML hold one document, and the same one.
func TestJSONAndYAMLAgree(t *testing.T) {
	var j, y bytes.Buffer
	if err := Write(&j, goldenView(), Options{Format: FormatJSON}); err != nil {
		t.Fatal(err)
	}
	if err := Write(&y, goldenView(), Options{Format: FormatYAML}); err != nil {
		t.Fatal(err)
	}
	var fromYAML any
	if err := yaml.Unmarshal(y.Bytes(), &fromYAML); err != nil {
		t.Fatal(err)
	}
	back, err := json.Marshal(fromYAML)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(j.Bytes(), &a); err != nil {
		t.Fatalf("not one JSON document: %v", err)
	}
	if err := json.Unmarshal(back, &b); err != nil {
		t.Fatal(err)
	}
	aa, _ := json.Marshal(a)
	bb, _ := json.Marshal(b)
	if !bytes.Equal(aa, bb) {
		t.Errorf("JSON and YAML differ:\n%s\n%s", aa, bb)
	}
}

func TestEmptyLists(t *testing.T) {
	v := View{Kind: "k", Version: 1, Items: []string(nil), Table: NewTable("A", "B")}
	for _, c := range []struct {
		format Format
		want   string
	}{
		{FormatJSON, `{"kind":"k","version":1,"cluster_id":null,"time":null,"incomplete":false,"warnings":[],"items":[]}` + "\n"},
		{FormatYAML, "---\nkind: k\nversion: 1\ncluster_id: null\ntime: null\nincomplete: false\nwarnings: []\nitems: []\n"},
		{FormatTable, ""},
		{FormatWide, ""},
		{FormatCSV, "A,B\n"},
	} {
		var b strings.Builder
		if err := Write(&b, v, Options{Format: c.format, Stream: true}); err != nil {
			t.Fatal(err)
		}
		if b.String() != c.want {
			t.Errorf("Write(%s) = %q, want %q", c.format, b.String(), c.want)
		}
	}
}

func TestViewIsZero(t *testing.T) {
	type result struct{}
	for _, c := range []struct {
		name string
		view View
		want bool
	}{
		{"nothing", View{Kind: "k"}, true},
		{"nil pointer", View{Data: (*result)(nil)}, true},
		{"nil list is a result", View{Items: []int(nil)}, false},
		{"struct", View{Data: result{}}, false},
	} {
		if got := c.view.IsZero(); got != c.want {
			t.Errorf("%s: IsZero() = %v, want %v", c.name, got, c.want)
		}
	}
}

func TestWriteFails(t *testing.T) {
	for _, c := range []struct {
		name string
		view View
		opts Options
		want string
	}{
		{"no JSON form", View{Kind: "k", Data: map[string]any{"f": func() {}}}, Options{Format: FormatJSON}, `write k: data: "f": type func() has no JSON form`},
		{"infinity", View{Kind: "k", Items: []float64{1, inf()}}, Options{Format: FormatYAML}, "write k: items: [1]: number +Inf has no JSON form"},
		{"no columns", View{Kind: "k", Data: 1}, Options{Format: FormatCSV}, "write k: this result has no columns, take json or yaml"},
		{"format", View{Kind: "k", Data: 1}, Options{Format: "xml"}, `write k: unknown format "xml"`},
	} {
		err := Write(io.Discard, c.view, c.opts)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: Write() = %v, want %s", c.name, err, c.want)
		}
	}
	broken := errors.New("pipe")
	err := Write(writerFunc(func([]byte) (int, error) { return 0, broken }), View{Kind: "k", Data: 1}, Options{Format: FormatJSON})
	if !errors.Is(err, broken) {
		t.Errorf("Write() to a broken pipe = %v, want %v", err, broken)
	}
}

func inf() float64 {
	zero := 0.0
	return 1 / zero
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                      "plain",
		"\u65e5\u672c e\u0301":       "\u65e5\u672c e\u0301",
		"a\tb\nc\rd":                 `a\tb\nc\rd`,
		"\x1b[31m\x07\x7f":           `\x1b[31m\x07\x7f`,
		"\u009b31m":                  `\u009b31m`,
		"\xff\xfe":                   `\xff\xfe`,
		"\ufffd":                     `\ufffd`,
		"\u202eabc":                  `\u202eabc`,
		"\U000e0001":                 `\U000e0001`,
		"\u0645\u06cc\u200c\u062e":   "\u0645\u06cc\u200c\u062e",
		"\U0001f469\u200d\U0001f4bb": "\U0001f469\u200d\U0001f4bb",
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                                  "0ms",
		999 * time.Microsecond:             "1ms",
		999_400 * time.Microsecond:         "999ms",
		999_600 * time.Microsecond:         "1.0s",
		12_340 * time.Millisecond:          "12.3s",
		59_940 * time.Millisecond:          "59.9s",
		59_960 * time.Millisecond:          "1m0s",
		192 * time.Second:                  "3m12s",
		time.Hour - time.Millisecond:       "1h0m",
		3*time.Hour + 12*time.Minute:       "3h12m",
		24*time.Hour - time.Second:         "1d0h",
		52 * time.Hour:                     "2d4h",
		-90 * time.Second:                  "-1m30s",
		2147483647 * time.Millisecond:      "24d21h",
		59*time.Minute + 59*time.Second:    "59m59s",
		23*time.Hour + 59*time.Minute:      "23h59m",
		time.Second - 501*time.Microsecond: "999ms",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestRowOfWrongLengthPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a row of two cells under one heading was accepted")
		}
	}()
	NewTable("A").Row(1, 2)
}

// A cell is one line and the number of columns stays, whatever the cells hold.
func TestTableKeepsRowsAndColumns(t *testing.T) {
	tab := NewTable("A", "B", "C")
	tab.Row("", " lead", "x ")
	tab.Row("two\nlines", []byte(nil), time.Time{})
	tab.Row(nil, (*int)(nil), "")
	var b strings.Builder
	if err := Write(&b, View{Kind: "k", Data: 1, Table: tab}, Options{}); err != nil {
		t.Fatal(err)
	}
	want := "" +
		"A           B      C\n" +
		"-            lead  x\n" +
		"two\\nlines  -      -\n" +
		"?           ?      -\n"
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestLine(t *testing.T) {
	got, err := Line(struct {
		A string  `json:"a"`
		B *string `json:"b"`
	}{A: "x\ny"})
	if want := `{"a":"x\ny","b":null}`; err != nil || got != want {
		t.Errorf("Line() = %s, %v, want %s", got, err, want)
	}
}

// Whatever a string holds, JSON and YAML bring it back, or its base64 form.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "no", "1e3", "~", "2026-11-29", "a: b", "- x", "\xff", "\u0085x", "tab\t\n", " lead", "trail ", "#", "\u2028", "\ufeffx", "line\r\nx\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := View{Kind: "k", Version: 1, Items: []any{s, map[string]string{"k" + s: s}}}
		var j, y bytes.Buffer
		if err := Write(&j, v, Options{Format: FormatJSON}); err != nil {
			t.Fatal(err)
		}
		if err := Write(&y, v, Options{Format: FormatYAML}); err != nil {
			t.Fatal(err)
		}
		type doc struct {
			Items []any `json:"items" yaml:"items"`
		}
		var fromJSON, fromYAML doc
		if err := json.Unmarshal(j.Bytes(), &fromJSON); err != nil {
			t.Fatalf("%v in %s", err, j.Bytes())
		}
		if err := yaml.Unmarshal(y.Bytes(), &fromYAML); err != nil {
			t.Fatalf("%v in %s", err, y.Bytes())
		}
		a, _ := json.Marshal(fromJSON)
		b, _ := json.Marshal(fromYAML)
		if !bytes.Equal(a, b) {
			t.Fatalf("JSON brings back %s, YAML %s", a, b)
		}
		if got, ok := fromJSON.Items[0].(string); ok && got != s {
			t.Fatalf("%q came back as %q", s, got)
		}
		for _, raw := range [][]byte{j.Bytes(), y.Bytes()} {
			if i := bytes.IndexFunc(raw, func(r rune) bool { return r != '\n' && (r < 0x20 || r >= 0x7f && r < 0xa0) }); i >= 0 {
				t.Fatalf("control character %q reaches the terminal", raw[i:i+1])
			}
		}
	})
}

// Times and their pointers look the same, in tables and in CSV.
func TestTimeCells(t *testing.T) {
	at := time.Date(2026, 11, 29, 13, 0, 0, 5_000_000, time.FixedZone("", 3600))
	var none *time.Time
	for _, c := range []struct {
		v          any
		shown, raw string
	}{
		{at, "2026-11-29T12:00:00Z", "2026-11-29T12:00:00.005Z"},
		{&at, "2026-11-29T12:00:00Z", "2026-11-29T12:00:00.005Z"},
		{time.Time{}, "-", ""},
		{none, "?", "?"},
	} {
		if got := CellOf(c.v); got.shown != c.shown || got.raw != c.raw {
			t.Errorf("CellOf(%v) shows %q and holds %q, want %q and %q", c.v, got.shown, got.raw, c.shown, c.raw)
		}
	}
}

// Numbers are written as encoding/json writes them.
func TestFloats(t *testing.T) {
	for _, f := range []float64{0, 1, -1.5, 0.1, 1234567, 1e20, 1e21, 1e-6, 1e-7, math.MaxInt32, math.MaxFloat64, math.SmallestNonzeroFloat64} {
		want, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Line(f)
		if err != nil || !sameNumber(got, string(want)) {
			t.Errorf("%v is written as %s, %v, want %s", f, got, err, want)
		}
	}
}

// sameNumber allows for the zero in an exponent, which encoding/json cuts off.
func sameNumber(a, b string) bool { return strings.Replace(a, "e-0", "e-", 1) == b }
