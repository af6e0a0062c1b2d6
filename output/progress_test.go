package output

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/olekukonko/tablewriter/pkg/twwidth"
)

func TestProgressLines(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	var b bytes.Buffer
	p := NewProgress(&b, ProgressOptions{Label: "consumed", Now: func() time.Time { return now }})
	for _, step := range []struct {
		after       time.Duration
		done, total int64
		note        string
	}{
		{0, 1, -1, ""},                      // too early
		{10 * time.Second, 10, -1, ""},      // a line
		{9 * time.Second, 20, -1, ""},       // too early
		{time.Second, 30, 100, "2\x1b[31m"}, // a line
	} {
		now = now.Add(step.after)
		p.Update(step.done, step.total, step.note)
	}
	p.Close()
	want := "consumed: 10 after 10.0s\nconsumed (2\\x1b[31m): 30 of 100 after 20.0s\n"
	if b.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
	}
}

func TestProgressLinesGoWhereTheyAreTold(t *testing.T) {
	now := time.Time{}.Add(time.Hour)
	var lines []string
	var b bytes.Buffer
	p := NewProgress(&b, ProgressOptions{
		Label: "left", Every: time.Second, Now: func() time.Time { return now },
		Line: func(s string) { lines = append(lines, s) },
	})
	now = now.Add(time.Second)
	p.Update(3, -1, "")
	if b.Len() > 0 || len(lines) != 1 || lines[0] != "left: 3 after 1.0s" {
		t.Errorf("lines %q, writer %q", lines, b.String())
	}
}

// A bar is drawn on one line, which is empty again when it is closed.
func TestProgressBar(t *testing.T) {
	for _, c := range []struct {
		name  string
		total int64
		want  []string // what the line shows after each update
	}{
		{"known", 50, []string{
			"[##                  ]  10% consumed (1 transaction): 5 of 50 after 0ms",
			"[##                  ]  10% consumed (1 transaction): 5 of 50 after 0ms",
			"[########            ]  40% consumed: 20 of 50 after 100ms",
			"[####################] 100% consumed (\u65e5\u672c): 60 of 50 after 1m0s",
			"",
		}},
		{"unknown", -1, []string{
			"/ consumed (1 transaction): 5 after 0ms",
			"/ consumed (1 transaction): 5 after 0ms",
			"- consumed: 20 after 100ms",
			"\\ consumed (\u65e5\u672c): 60 after 1m0s",
			"",
		}},
	} {
		now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
		var b bytes.Buffer
		p := NewProgress(&b, ProgressOptions{Label: "consumed", Terminal: true, Now: func() time.Time { return now }})
		var got []string
		shown := func() { got = append(got, onLine(t, b.String())) }
		p.Update(5, c.total, "1 transaction")
		shown()
		now = now.Add(99 * time.Millisecond)
		p.Update(10, c.total, "too early")
		shown()
		now = now.Add(time.Millisecond)
		p.Update(20, c.total, "")
		shown()
		now = now.Add(time.Minute - 100*time.Millisecond)
		p.Update(60, c.total, "\u65e5\u672c")
		shown()
		p.Close()
		shown()
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: shown %q, want %q", c.name, got, c.want)
		}
	}
}

// onLine returns what a terminal shows after it was sent s, which may have
// carriage returns but no line feeds.
func onLine(t *testing.T, s string) string {
	t.Helper()
	if strings.ContainsAny(s, "\n\x1b") {
		t.Errorf("%q leaves its line", s)
	}
	var line []rune // a wide rune takes two columns, the second one is 0
	for part := range strings.SplitSeq(s, "\r") {
		at := 0
		for _, r := range part {
			columns := []rune{r, 0}[:twwidth.Width(string(r))]
			line = slices.Replace(line, at, min(at+len(columns), len(line)), columns...)
			at += len(columns)
		}
	}
	return strings.TrimRight(strings.ReplaceAll(string(line), "\x00", ""), " ")
}

func TestProgressQuiet(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b, ProgressOptions{Label: "x", Quiet: true, Terminal: true})
	p.Update(1, 2, "")
	p.Close()
	if b.Len() > 0 {
		t.Errorf("a quiet progress shows %q", b.String())
	}
	// Closing what was never shown shows nothing either.
	NewProgress(&b, ProgressOptions{Label: "x", Terminal: true, Now: time.Now}).Close()
	if b.Len() > 0 {
		t.Errorf("an unused bar shows %q", b.String())
	}
}
