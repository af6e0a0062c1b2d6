package output

import (
	"bytes"
	"strings"
)

// Strip draws a range as one line, a character for each part of it. The letters
// say all, so that nothing is lost without colour; a legend says what they are.
type Strip struct {
	Marks []Mark
	// First and Last are what stands at its ends, such as the first and the last
	// offset.
	First, Last string
	Legend      []Legend // in this order
}

// Mark is one character of a strip.
type Mark struct {
	Letter byte // printable ASCII
	Style  Style
}

// Legend is what a mark stands for.
type Legend struct {
	Mark
	Text string
}

// render writes the ends above the marks, then the legend, a line each.
func (s *Strip) render(b *bytes.Buffer, o Options) {
	styler := NewStyler(o.Color)
	ends := s.First
	if s.Last != s.First {
		// The last end stands over the last mark, where there is room.
		ends += strings.Repeat(" ", max(1, len(s.Marks)-len(s.First)-len(s.Last))) + s.Last
	}
	b.WriteString(Escape(ends))
	b.WriteByte('\n')
	for i := 0; i < len(s.Marks); {
		run := s.Marks[i:]
		n := 1
		for n < len(run) && run[n].Style == run[0].Style {
			n++
		}
		letters := make([]byte, 0, n)
		for _, m := range run[:n] {
			letters = append(letters, m.Letter)
		}
		b.WriteString(styler.Render(run[0].Style, string(letters)))
		i += n
	}
	b.WriteByte('\n')
	for _, l := range s.Legend {
		b.WriteString(styler.Render(l.Style, string(rune(l.Letter))))
		b.WriteString("  " + Escape(l.Text) + "\n")
	}
}
