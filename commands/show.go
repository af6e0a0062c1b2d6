package commands

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kshare/kshare/output"
)

// show writes a result to stdout, then returns err: half a result is still
// shown. Nothing is written where the operation failed before it had one. A
// view that is incomplete without an error ends with exitPartial.
func (d *Deps) show(v output.View, err error) error {
	if v.IsZero() {
		return err
	}
	if v.Time.IsZero() {
		v.Time = d.Now().Truncate(time.Millisecond) // as exact as Kafka is
	}
	if v.ClusterID == "" {
		v.ClusterID = d.clusterID
	}
	if !d.machine() {
		for _, w := range v.Warnings {
			d.Warn(w)
		}
		if v.Table.Len() == 0 && v.Empty != "" {
			d.Notice(v.Empty)
		}
	}
	if v.HasTimes(d.options(0)) {
		d.findTimeZone()
	}
	werr := output.Write(d.Out, v, d.options(d.width()))
	if werr == nil {
		d.tellRest(v)
		if left := v.LeftOut(d.options(d.width())); len(left) > 0 {
			d.Notice(fmt.Sprintf("the terminal is %d columns wide, which is too narrow for %s: -o wide shows all, --columns picks", d.width(), strings.Join(left, ", ")))
		}
	}
	switch {
	case err != nil:
		// The reason of the command is the stronger one, but no result is no small
		// thing either.
		if isA[*output.FilterError]()(werr) {
			d.Warn(werr.Error())
		}
		return err
	case werr != nil:
		return resultError(werr)
	case v.Incomplete:
		return errIncomplete
	default:
		return nil
	}
}

// options says how to write a result.
func (d *Deps) options(width int) output.Options {
	return output.Options{
		Format: d.flags.Output, Color: d.color(d.StdoutTTY), Width: width, Location: d.zone,
		Columns: d.flags.Columns, NoHeaders: d.flags.NoHeaders,
		Filter: d.filter, Context: d.ended, Terminal: d.StdoutTTY,
	}
}

// tellRest says on stderr what people would have found beside the rows that they
// asked for alone.
func (d *Deps) tellRest(v output.View) {
	if !d.rowsOnly() || d.flags.Output == output.FormatCSV || v.Table == nil && len(d.flags.Columns) == 0 {
		return
	}
	text := v.Text
	for _, s := range v.Sections {
		text += "\n" + s.Text
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			d.Notice(line)
		}
	}
}

// resultError is an error of writing a result.
func resultError(err error) error {
	if isA[*output.FilterError]()(err) {
		return hintf(err, "the result was there, and the expression does not fit it; -o json shows what it has")
	}
	if isA[*output.ColumnsError]()(err) {
		return columnsError(err, nil)
	}
	return hintf(stdoutError(err), "only its result could not be written; what it had to change is changed")
}

// stdoutError tells a reader that went away from a write that failed.
func stdoutError(err error) error {
	if errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("%w: %w", errClosedPipe, err)
	}
	return err
}

func (d *Deps) width() int {
	if !d.StdoutTTY {
		return 0
	}
	return d.Width
}

// size is the size of the terminal now; 0 for what is not known.
func (d *Deps) size() (width, height int) {
	if d.Size == nil {
		return d.width(), 0
	}
	return d.Size()
}

// Warn prints something that a person should look at, on stderr.
func (d *Deps) Warn(msg string) {
	if d.flags.Output == output.FormatJSON {
		d.printLine(noteLine{Kind: "warning", Message: msg})
		return
	}
	d.say(output.NewStyler(d.color(d.StderrTTY)).Render(output.StyleWarn, "warning:"), msg)
}

// Notice prints on stderr what is good to know, unless --quiet.
func (d *Deps) Notice(msg string) {
	switch {
	case d.flags.Quiet:
	case d.flags.Output == output.FormatJSON:
		d.printLine(noteLine{Kind: "notice", Message: msg})
	default:
		d.say("", msg)
	}
}

// Hint prints on stderr what to do next, unless --quiet.
func (d *Deps) Hint(msg string) {
	switch {
	case d.flags.Quiet:
	case d.flags.Output == output.FormatJSON:
		d.printLine(noteLine{Kind: "hint", Message: msg})
	default:
		d.say(output.NewStyler(d.color(d.StderrTTY)).Render(output.StyleKey, "hint:"), msg)
	}
}

// Progress returns a display on stderr for an operation that takes a while. unit is
// that of the rate to show; "" shows none.
func (d *Deps) Progress(label, unit string) output.Progress {
	o := output.ProgressOptions{
		Label:    label,
		Unit:     unit,
		Quiet:    d.flags.Quiet,
		Terminal: d.StderrTTY && d.flags.Output != output.FormatJSON && d.Getenv("TERM") != "dumb",
		Now:      d.Now,
		Line:     func(s string) { d.say("", s) },
	}
	if d.flags.Output == output.FormatJSON {
		o.Line = func(s string) { d.printLine(noteLine{Kind: "progress", Message: s}) }
	}
	return output.NewProgress(d.ErrOut, o)
}

// noteLine is a line on stderr with -o json that is no error. Every line there
// is then an object with a kind, so a script that reads stderr finds the error
// by its kind.
type noteLine struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// say prints one line for people on stderr. tag is "" or a word such as
// "error:", which may be styled; the message is escaped, since some of it came
// from a cluster.
func (d *Deps) say(tag, msg string) {
	if tag != "" {
		tag += " "
	}
	fmt.Fprintf(d.ErrOut, "kshare: %s%s\n", tag, output.Escape(msg))
}

func (d *Deps) printLine(x any) {
	line, err := output.Line(x)
	if err != nil {
		panic(err) // the types of these lines are ours and have a JSON form
	}
	fmt.Fprintln(d.ErrOut, line)
}
