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
