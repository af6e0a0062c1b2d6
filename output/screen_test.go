package output

import (
	"bytes"
	"errors"
	"testing"
)

func TestScreen(t *testing.T) {
	var b bytes.Buffer
	s := NewScreen(&b)
	if err := s.Close(); err != nil || b.Len() > 0 {
		t.Errorf("a screen without frame writes %q, %v", b.String(), err)
	}
	for _, c := range []struct {
		frame  string
		height int
		want   string
	}{
		{"one\ntwo\n", 0, "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J"},
		{"one\ntwo\n", 2, "\x1b[Hone\x1b[K\r\ntwo\x1b[K\x1b[J"},
		{"one\ntwo\nthree\nfour\n", 3, "\x1b[Hone\x1b[K\r\ntwo\x1b[K\r\n... and 2 more lines\x1b[K\x1b[J"},
		{"one\ntwo\n", 1, "\x1b[H... and 2 more lines\x1b[K\x1b[J"},
		{"", 5, "\x1b[H\x1b[K\x1b[J"},
	} {
		b.Reset()
		if err := s.Draw(c.frame, c.height); err != nil || b.String() != c.want {
			t.Errorf("Draw(%q, %d) writes %q, %v, want %q", c.frame, c.height, b.String(), err, c.want)
		}
	}
	b.Reset()
	const end = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	if err := s.Close(); err != nil || b.String() != end {
		t.Errorf("Close writes %q, %v, want %q", b.String(), err, end)
	}
	if err := s.Close(); err != nil || b.String() != end {
		t.Errorf("closed twice it has written %q, %v", b.String(), err)
	}
}

func TestScreenFails(t *testing.T) {
	broken := errors.New("gone")
	s := NewScreen(writerFunc(func([]byte) (int, error) { return 0, broken }))
	if err := s.Draw("x", 0); !errors.Is(err, broken) {
		t.Errorf("Draw = %v, want %v", err, broken)
	}
	if err := s.Close(); !errors.Is(err, broken) {
		t.Errorf("Close = %v, want %v", err, broken)
	}
}
