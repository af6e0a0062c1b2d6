package terminal

import (
	"strings"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
)

// Screen is what a terminal shows at one moment: its lines from the top, without
// those at the bottom that are empty.
type Screen struct {
	Width int
	Lines [][]Span
}

// Span is a piece of a line in one style.
type Span struct {
	Text  string
	Style Style
}

// Style is how a terminal was asked to show a text.
type Style struct {
	Color int // of the text, 0 to 15; -1 is that of the terminal
	Bold  bool
	Faint bool
	Other bool // anything else, which kshare does not use
}

func (s Style) plain() bool { return s == Style{Color: -1} }

// capture reads the cells of a screen. Blanks at the ends of lines are left out,
// styles and all.
func capture(e *vt.Emulator) Screen {
	s := Screen{Width: e.Width()}
	for y := range e.Height() {
		var line []Span
		for x := 0; x < e.Width(); x++ {
			text, style := " ", Style{Color: -1}
			if c := e.CellAt(x, y); c != nil {
				if c.Width == 0 && c.Content == "" {
					continue // the right half of a wide character
				}
				text, style = c.Content, styleOf(c.Style)
			}
			if text == "" {
				text = " "
			}
			if n := len(line); n > 0 && line[n-1].Style == style {
				line[n-1].Text += text
				continue
			}
			line = append(line, Span{text, style})
		}
		s.Lines = append(s.Lines, trimRight(line))
	}
	for n := len(s.Lines); n > 0 && len(s.Lines[n-1]) == 0; n-- {
		s.Lines = s.Lines[:n-1]
	}
	return s
}

func styleOf(c uv.Style) Style {
	s := Style{Color: -1, Bold: c.Attrs&uv.AttrBold != 0, Faint: c.Attrs&uv.AttrFaint != 0}
	s.Other = c.Attrs&^(uv.AttrBold|uv.AttrFaint) != 0 || c.Bg != nil || c.Underline != 0
	if c.Fg != nil {
		basic, ok := c.Fg.(ansi.BasicColor)
		if s.Color = int(basic); !ok {
			s.Color, s.Other = int(ansi.Convert16(c.Fg)), true
		}
	}
	return s
}

func trimRight(line []Span) []Span {
	for n := len(line); n > 0; n-- {
		last := &line[n-1]
		if last.Text = strings.TrimRight(last.Text, " "); last.Text != "" {
			break
		}
		line = line[:n-1]
	}
	return line
}

// Text is the screen without styles, each line with its line feed.
func (s Screen) Text() string {
	var b strings.Builder
	for _, line := range s.Lines {
		for _, span := range line {
			b.WriteString(span.Text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// unwrapped is the text without line feeds.
func (s Screen) unwrapped() string { return strings.ReplaceAll(s.Text(), "\n", "") }

// Marked is the text with its styles, such as "[bold|GROUP] [red bold|orphan]".
func (s Screen) Marked() string {
	var b strings.Builder
	for _, line := range s.Lines {
		for _, span := range line {
			if span.Style.plain() {
				b.WriteString(span.Text)
				continue
			}
			b.WriteString("[" + span.Style.String() + "|" + span.Text + "]")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// String names the style in words.
func (s Style) String() string {
	var words []string
	if s.Color >= 0 {
		words = append(words, colorNames()[s.Color])
	}
	for _, w := range []struct {
		is   bool
		word string
	}{{s.Bold, "bold"}, {s.Faint, "faint"}, {s.Other, "other"}} {
		if w.is {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}

func colorNames() []string {
	return []string{
		"black", "red", "green", "yellow", "blue", "magenta", "cyan", "white",
		"bright black", "bright red", "bright green", "bright yellow", "bright blue", "bright magenta", "bright cyan", "bright white",
	}
}
