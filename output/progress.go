package output

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/olekukonko/tablewriter/pkg/twwidth"
)

// Progress shows how far an operation has come. It is used by one goroutine.
type Progress interface {
	// Update says that done of total units are done; total is -1 while it is
	// not known. Units need not grow: a drain counts what is left.
	Update(done, total int64, note string)
	// Close ends the display. The progress must not be used afterwards.
	Close()
}

// ProgressOptions says how to show progress.
type ProgressOptions struct {
	Label    string           // what is being done, such as "copied"
	Terminal bool             // draw a bar that moves; else print a line now and then
	Quiet    bool             // show nothing
	Every    time.Duration    // between lines where there is no terminal; 0 is 10 s
	Now      func() time.Time // the clock; required unless Quiet
	Line     func(string)     // prints a line where there is no terminal; nil prints it as it is
}

// NewProgress returns a progress that is shown on w, which is meant to be
// stderr. Nothing is shown before the first Update.
func NewProgress(w io.Writer, o ProgressOptions) Progress {
	switch {
	case o.Quiet:
		return noProgress{}
	case o.Terminal:
		return &barProgress{w: w, o: o, started: o.Now()}
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	if o.Line == nil {
		o.Line = func(s string) { fmt.Fprintln(w, s) }
	}
	return &lineProgress{o: o, started: o.Now()}
}

type noProgress struct{}

func (noProgress) Update(int64, int64, string) {}
func (noProgress) Close()                      {}

const (
	barColumns = 20
	barEvery   = 100 * time.Millisecond // what eyes can follow
)

// barProgress is a line that is drawn again and again: with a bar, or with a
// stroke that turns while the total is not known.
type barProgress struct {
	w       io.Writer
	o       ProgressOptions
	started time.Time
	drawn   time.Time
	width   int // of what is on the line
	turns   int
}

func (p *barProgress) Update(done, total int64, note string) {
	now := p.o.Now()
	if !p.drawn.IsZero() && now.Sub(p.drawn) < barEvery {
		return
	}
	p.drawn = now
	p.draw(p.bar(done, total) + " " + progressText(p.o.Label, note, done, total, now.Sub(p.started)))
}

func (p *barProgress) bar(done, total int64) string {
	if total <= 0 {
		p.turns++
		return `|/-\`[p.turns%4:][:1]
	}
	share := min(max(float64(done)/float64(total), 0), 1)
	full := int(share * barColumns)
	return fmt.Sprintf("[%s%s] %3.0f%%", strings.Repeat("#", full), strings.Repeat(" ", barColumns-full), share*100)
}

// draw replaces what is on the line. Blanks take away what the new line leaves of
// a longer one: every terminal knows those.
func (p *barProgress) draw(line string) {
	width := twwidth.Width(line)
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(p.width-width, 0)))
	p.width = width
}

func (p *barProgress) Close() {
	if p.width > 0 {
		p.draw("")
		fmt.Fprint(p.w, "\r")
	}
}

// lineProgress prints a line at most once per Every, for logs.
type lineProgress struct {
	o       ProgressOptions
	started time.Time
	last    time.Time
}

func (p *lineProgress) Update(done, total int64, note string) {
	now := p.o.Now()
	since := p.last
	if since.IsZero() {
		since = p.started
	}
	if now.Sub(since) < p.o.Every {
		return
	}
	p.last = now
	p.o.Line(progressText(p.o.Label, note, done, total, now.Sub(p.started)))
}

func (*lineProgress) Close() {}

func progressText(label, note string, done, total int64, took time.Duration) string {
	if note != "" {
		label += " (" + note + ")"
	}
	count := strconv.FormatInt(done, 10)
	if total >= 0 {
		count = fmt.Sprintf("%d of %d", done, total)
	}
	return fmt.Sprintf("%s: %s after %s", Escape(label), count, Duration(took))
}
