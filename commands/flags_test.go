package commands

import (
	"errors"
	"io"
	"strings"
	"testing"
)

type unreadable struct{ t *testing.T }

func (r unreadable) Read([]byte) (int, error) {
	r.t.Error("stdin was read")
	return 0, io.EOF
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		name  string
		tty   bool
		yes   bool
		stdin io.Reader
		code  int
	}{
		{"no terminal", false, false, unreadable{t}, exitUsage},
		{"--yes", false, true, unreadable{t}, exitDone},
		{"typed", true, false, strings.NewReader("share.version\nrest"), exitDone},
		{"typed without line feed", true, false, strings.NewReader("share.version"), exitDone},
		{"typed something else", true, false, strings.NewReader("y\n"), exitFailed},
		{"end of input", true, false, strings.NewReader(""), exitFailed},
		{"broken terminal", true, false, brokenReader{}, exitFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr strings.Builder
			d := &Deps{In: c.stdin, ErrOut: &stderr, StdinTTY: c.tty, StderrTTY: c.tty, flags: &globalFlags{Yes: c.yes}}
			err := d.Confirm("This lowers share.version.", "share.version")
			if code, _ := classify(err); code != c.code {
				t.Errorf("Confirm() = %v, exit code %d, want %d", err, code, c.code)
			}
			if asked := strings.Contains(stderr.String(), "This lowers"); asked != c.tty {
				t.Errorf("asked = %v, want %v", asked, c.tty)
			}
			if r, ok := c.stdin.(*strings.Reader); ok && c.name == "typed" && r.Len() != len("rest") {
				t.Errorf("%d bytes are left on stdin, want those after the line", r.Len())
			}
		})
	}
}

// Lines for people are broken at blanks on a terminal, and nowhere else.
func TestLinesAreWrapped(t *testing.T) {
	for _, c := range []struct {
		name         string
		tty          bool
		json         bool
		hint, asking string
	}{
		{"pipe", false, false, "kshare: hint: one two three four five\n", ""},
		{"terminal", true, false, "kshare: hint: one two three\n  four five\n", "This lowers the level of it.\n  Type \"it\" to go on: "},
		{"JSON", true, true, `{"kind":"hint","message":"one two three four five"}` + "\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr strings.Builder
			d := &Deps{
				In: strings.NewReader("it\n"), ErrOut: &stderr, StdinTTY: c.tty, StderrTTY: c.tty, StderrWidth: 28,
				Getenv: func(string) string { return "" }, flags: &globalFlags{NoColor: true},
			}
			if c.json {
				d.flags.Output = "json"
			}
			d.Hint("one two three four five")
			if stderr.String() != c.hint {
				t.Errorf("a hint is %q, want %q", stderr.String(), c.hint)
			}
			if c.asking == "" {
				return
			}
			stderr.Reset()
			if err := d.Confirm("This lowers the level of it.", "it"); err != nil || stderr.String() != c.asking {
				t.Errorf("a question is %q, %v, want %q", stderr.String(), err, c.asking)
			}
		})
	}
}
