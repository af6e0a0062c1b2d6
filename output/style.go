package output

import (
	"io"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
)

// Style is what a piece of text means to the reader.
type Style int8

// The styles. Their looks are in one place, [NewStyler].
const (
	StyleNone   Style = iota
	StyleGood         // as it should be
	StyleWarn         // needs a look
	StyleBad          // wrong
	StyleMuted        // may be passed over
	StyleKey          // names the thing
	StyleHeader       // headings of a table
)

// Styler renders styles, or leaves text alone when colour is off. The zero
// Styler leaves it alone.
type Styler struct {
	looks map[Style]lipgloss.Style // nil when colour is off
}

// NewStyler returns a styler. Only the sixteen colours are used, which follow
// the theme of the terminal.
func NewStyler(color bool) Styler {
	if !color {
		return Styler{}
	}
	// A renderer of our own with a fixed profile: the default one queries the
	// terminal, and decides once for stdout and stderr.
	r := lipgloss.NewRenderer(io.Discard)
	r.SetColorProfile(termenv.ANSI)
	r.SetHasDarkBackground(true)
	fg := func(c string) lipgloss.Style { return r.NewStyle().Foreground(lipgloss.Color(c)) }
	return Styler{looks: map[Style]lipgloss.Style{
		StyleGood:   fg("2"),
		StyleWarn:   fg("3"),
		StyleBad:    fg("1").Bold(true),
		StyleMuted:  r.NewStyle().Faint(true),
		StyleKey:    r.NewStyle().Bold(true),
		StyleHeader: r.NewStyle().Bold(true),
	}}
}

// Render returns text in that style. It is text itself when colour is off.
func (s Styler) Render(style Style, text string) string {
	look, ok := s.looks[style]
	if !ok {
		return text
	}
	return look.Render(text)
}
