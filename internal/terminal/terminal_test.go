//go:build unix

package terminal_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/terminal"
)

// shell runs a script on a terminal of 20 columns and 6 lines.
func shell(t *testing.T, o terminal.Options, script string) *terminal.Session {
	t.Helper()
	o.Width, o.Height = 20, 6
	s, err := terminal.Start(t.Context(), o, "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wait(t *testing.T, s *terminal.Session, code int) {
	t.Helper()
	if got, err := s.Wait(); got != code || err != nil {
		t.Fatalf("ended with %d, %v, want %d\n%s", got, err, code, s.Screen().Text())
	}
}

func waitFor(t *testing.T, s *terminal.Session, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if err := s.WaitFor(ctx, text); err != nil {
		t.Fatal(err)
	}
}

func TestScreen(t *testing.T) {
	for name, c := range map[string]struct{ script, text, marked string }{
		"plain":              {`printf 'a\n\nb\n'`, "a\n\nb\n", "a\n\nb\n"},
		"styles":             {`printf '\033[1;31mred\033[0m \033[2mfaint\033[0m \033[92mg\033[0m'`, "red faint g\n", "[red bold|red] [faint|faint] [bright green|g]\n"},
		"what is not used":   {`printf '\033[4mu\033[0m\033[38;2;255;0;0mr'`, "ur\n", "[other|u][bright red other|r]\n"},
		"wide characters":    {`printf '\346\227\245\346\234\254 e\314\201|'`, "\u65e5\u672c e\u0301|\n", "\u65e5\u672c e\u0301|\n"},
		"a long line wraps":  {`printf '%025d' 7`, strings.Repeat("0", 20) + "\n00007\n", strings.Repeat("0", 20) + "\n00007\n"},
		"a line is redrawn":  {`printf 'one two\rONE\033[K'`, "ONE\n", "ONE\n"},
		"lines scroll":       {`seq 1 8`, "4\n5\n6\n7\n8\n", "4\n5\n6\n7\n8\n"},
		"another screen":     {`printf 'before\n\033[?1049hinside\033[?1049lafter'`, "before\nafter\n", "before\nafter\n"},
		"nothing":            {`true`, "", ""},
		"the size and kind":  {`stty size; echo $TERM`, "6 20\nxterm-256color\n", "6 20\nxterm-256color\n"},
		"no more than it is": {`test -z "$SECRET" && echo none`, "none\n", "none\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SECRET", "x")
			s := shell(t, terminal.Options{Env: []string{"PATH=/usr/bin:/bin"}}, c.script)
			wait(t, s, 0)
			if got := s.Screen(); got.Text() != c.text || got.Marked() != c.marked {
				t.Errorf("text %q, marked %q, want %q and %q", got.Text(), got.Marked(), c.text, c.marked)
			}
		})
	}
}

func TestTyping(t *testing.T) {
	s := shell(t, terminal.Options{}, `printf 'name: '; read x; echo "hello $x"; exit 3`)
	waitFor(t, s, "name:")
	if err := s.Type("me\n"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, s, "hello me")
	wait(t, s, 3)
	if got, want := s.Screen().Text(), "name: me\nhello me\n"; got != want {
		t.Errorf("screen %q, want %q", got, want)
	}
}

func TestInterrupt(t *testing.T) {
	s := shell(t, terminal.Options{}, `trap 'echo caught; exit 5' INT; echo ready; while :; do read x; done`)
	waitFor(t, s, "ready")
	if err := s.Interrupt(); err != nil {
		t.Fatal(err)
	}
	wait(t, s, 5)
	if !strings.Contains(s.Screen().Text(), "caught") {
		t.Errorf("screen %q", s.Screen().Text())
	}
}

// stdout may be a pipe, which the terminal does not show.
func TestStdoutIsAPipe(t *testing.T) {
	var stdout bytes.Buffer
	s := shell(t, terminal.Options{Stdout: &stdout}, `test -t 1 || echo pipe; test -t 2 && echo terminal >&2`)
	wait(t, s, 0)
	if stdout.String() != "pipe\n" || s.Screen().Text() != "terminal\n" {
		t.Errorf("stdout %q, screen %q", stdout.String(), s.Screen().Text())
	}
}

func TestWaitForFails(t *testing.T) {
	s := shell(t, terminal.Options{}, `echo something`)
	if err := s.WaitFor(t.Context(), "else"); err == nil || !strings.Contains(err.Error(), "something") {
		t.Errorf("a text that never comes: %v", err)
	}
	wait(t, s, 0)
	s = shell(t, terminal.Options{}, `echo ready; read x`)
	waitFor(t, s, "ready")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := s.WaitFor(ctx, "else"); err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
		t.Errorf("a text that does not come in time: %v", err)
	}
	if err := s.Type("\n"); err != nil {
		t.Fatal(err)
	}
	wait(t, s, 0)
}

// A picture is well-formed, and has the text as it is.
func TestSVG(t *testing.T) {
	s := shell(t, terminal.Options{}, `printf 'a  <b> & "c"\n\033[1;31mred\033[0m'`)
	wait(t, s, 0)
	svg := s.Screen().SVG(`run '<x>'`)
	var text strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
		if c, ok := tok.(xml.CharData); ok {
			text.Write(c)
		}
	}
	for _, want := range []string{`a  <b> & "c"`, "red", `$ run '<x>'`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the picture has no %q:\n%s", want, svg)
		}
	}
	if !bytes.Contains(svg, []byte(`<tspan class="b c1">red</tspan>`)) {
		t.Errorf("red is not red:\n%s", svg)
	}
}
