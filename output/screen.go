package output

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Screen shows one frame after the other in the same place on a terminal. It uses
// the alternate screen, so that what was there before comes back in the end. It
// is used by one goroutine.
type Screen struct {
	w    io.Writer
	open bool
}

// NewScreen returns a screen on w, which has to be a terminal. Nothing is written
// before the first frame.
func NewScreen(w io.Writer) *Screen { return &Screen{w: w} }

// Draw shows a frame, in one call of Write. Lines beyond height are left out,
// and the last line then says how many; a height of 0 is not known and leaves out
// none. What of a line is wider than the terminal is cut by it. Styles in a line
// have to end in that line.
func (s *Screen) Draw(frame string, height int) error {
	lines := strings.Split(strings.TrimRight(frame, "\n"), "\n")
	if height > 0 && len(lines) > height {
		left := len(lines) - height + 1
		lines = append(lines[:height-1], fmt.Sprintf("... and %d more lines", left))
	}
	var b bytes.Buffer
	if !s.open {
		s.open = true
		b.WriteString(ansi.SetModeAltScreenSaveCursor + ansi.HideCursor + ansi.ResetModeAutoWrap)
	}
	b.WriteString(ansi.CursorHomePosition)
	for i, l := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(l + ansi.EraseLineRight)
	}
	b.WriteString(ansi.EraseScreenBelow)
	_, err := s.w.Write(b.Bytes())
	return err
}

// Close gives the terminal back as it was. It may be called more than once.
func (s *Screen) Close() error {
	if !s.open {
		return nil
	}
	s.open = false
	_, err := io.WriteString(s.w, ansi.SetModeAutoWrap+ansi.ShowCursor+ansi.ResetModeAltScreenSaveCursor)
	return err
}
