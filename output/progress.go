package output

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
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
	Unit     string           // of the rate that is shown, such as "records"; "" shows none
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
		return &barProgress{w: w, label: o.Label, unit: o.Unit}
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

// barProgress is a bar, or a spinner while the total is not known.
type barProgress struct {
	w     io.Writer
	label string
	unit  string
	bar   *progressbar.ProgressBar
}

func (p *barProgress) Update(done, total int64, note string) {
	if p.bar == nil {
		options := []progressbar.Option{
			progressbar.OptionSetWriter(p.w),
			progressbar.OptionSetWidth(20),
			progressbar.OptionThrottle(100 * time.Millisecond),
			progressbar.OptionClearOnFinish(),
		}
		if total >= 0 {
			options = append(options, progressbar.OptionShowCount())
		}
		if p.unit != "" {
			options = append(options, progressbar.OptionShowIts(), progressbar.OptionSetItsString(p.unit))
		}
		p.bar = progressbar.NewOptions64(total, options...)
	}
	if total != p.bar.GetMax64() && total > 0 {
		p.bar.ChangeMax64(total)
	}
	label := p.label
	if total < 0 { // the count of a spinner has a total, which nobody knows
		label = fmt.Sprintf("%s: %d", label, done)
	}
	p.bar.Describe(Escape(describe(label, note)))
	// The bar refuses what it cannot draw; there is nobody to tell.
	_ = p.bar.Set64(done)
}

func (p *barProgress) Close() {
	if p.bar != nil {
		// A spinner draws itself from a goroutine of its own, which only a finished
		// bar ends. To finish it clears the line.
		_ = p.bar.Finish()
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
	count := fmt.Sprint(done)
	if total >= 0 {
		count = fmt.Sprintf("%d of %d", done, total)
	}
	p.o.Line(fmt.Sprintf("%s: %s after %s", Escape(describe(p.o.Label, note)), count, Duration(now.Sub(p.started))))
}

func (*lineProgress) Close() {}

func describe(label, note string) string {
	if note == "" {
		return label
	}
	return label + " (" + note + ")"
}
