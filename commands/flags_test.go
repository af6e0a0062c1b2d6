package commands

import (
	"errors"
	"io"
	"slices"
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

func TestBootstrap(t *testing.T) {
	for _, c := range []struct {
		name string
		flag []string
		env  string
		want []string
	}{
		{"flag", []string{"a:1", "b:2,d:4"}, "c:3", []string{"a:1", "b:2", "d:4"}},
		{"environment", nil, "a:1, b:2,", []string{"a:1", "b:2"}},
		{"neither", nil, "", nil},
		{"blank", []string{" "}, "c:3", nil},
		{"addresses", []string{"[::1]:9092", "[fe80::1%eth0]:9092", "broker", "127.0.0.1:65535"}, "", []string{"[::1]:9092", "[fe80::1%eth0]:9092", "broker", "127.0.0.1:65535"}},
		{"wrong", []string{"a:1", "b:99999"}, "", nil},
		{"wrong", []string{"b:0"}, "", nil},
		{"wrong", []string{"b:http"}, "", nil},
		{"wrong", []string{"::1"}, "", nil},
		{"wrong", []string{":9092"}, "", nil},
		{"wrong", []string{"http://b:9092"}, "", nil},
		{"wrong", nil, "b c:9092", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &Deps{Getenv: func(string) string { return c.env }, flags: &globalFlags{Bootstrap: c.flag}}
			got, err := d.bootstrap()
			if !slices.Equal(got, c.want) {
				t.Errorf("bootstrap() = %v, want %v", got, c.want)
			}
			code, hint := classify(err)
			if c.name == "wrong" {
				if code != exitUsage || !strings.Contains(err.Error(), "HOST:PORT") {
					t.Errorf("bootstrap() = %v, want a usage error about HOST:PORT", err)
				}
				return
			}
			if c.want == nil && (code != exitUsage || !strings.Contains(hint, "kshare sandbox run")) {
				t.Errorf("bootstrap() fails with %v (%d, %q), want a usage error that names the sandbox", err, code, hint)
			}
		})
	}
}
