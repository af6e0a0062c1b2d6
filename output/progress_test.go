package output

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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
	want := "consumed: 10 after 10s\nconsumed (2\\x1b[31m): 30 of 100 after 20s\n"
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
	if b.Len() > 0 || len(lines) != 1 || lines[0] != "left: 3 after 1s" {
		t.Errorf("lines %q, writer %q", lines, b.String())
	}
}

// A bar is drawn on one line, which is empty again when it is closed.
func TestProgressBar(t *testing.T) {
	for _, total := range []int64{-1, 50} {
		var b bytes.Buffer
		p := NewProgress(&b, ProgressOptions{Label: "consumed", Unit: "records", Terminal: true})
		p.Update(10, total, "1 transaction")
		p.Update(20, total, "2 transactions")
		p.Close()
		if strings.Contains(b.String(), "\n") {
			t.Errorf("total %d: the bar leaves its line: %q", total, b.String())
		}
		if !strings.Contains(b.String(), "consumed") || !strings.Contains(b.String(), "records/") {
			t.Errorf("total %d: the bar does not say what it shows: %q", total, b.String())
		}
		last := b.String()[strings.LastIndex(b.String(), "\r")+1:]
		if strings.TrimSpace(strings.ReplaceAll(last, "\x1b[2K", "")) != "" {
			t.Errorf("total %d: %q is left on the line", total, last)
		}
	}
}

// A spinner moves between two updates, and not after it was closed: by then its
// line belongs to what is printed next.
func TestProgressSpinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drawn counter
		p := NewProgress(&drawn, ProgressOptions{Label: "left", Terminal: true})
		wait := func() int64 {
			before := drawn.Load()
			<-time.After(time.Second)
			synctest.Wait()
			return drawn.Load() - before
		}
		p.Update(3, -1, "")
		if wait() == 0 {
			t.Error("the spinner stands still")
		}
		p.Close()
		if n := wait(); n > 0 {
			t.Errorf("the spinner draws %d bytes after it was closed", n)
		}
	})
}

// counter counts the bytes that are written to it.
type counter struct{ atomic.Int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.Add(int64(len(b)))
	return len(b), nil
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
	NewProgress(&b, ProgressOptions{Label: "x", Terminal: true}).Close()
	if b.Len() > 0 {
		t.Errorf("an unused bar shows %q", b.String())
	}
}
