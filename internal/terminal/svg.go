package terminal

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// The looks of a picture. A cell of a monospaced font is six tenths of its size
// wide, or a little more.
const (
	fontSize   = 14
	cellWidth  = 8.43
	lineHeight = 19
	margin     = 18
	barHeight  = 34
)

// SVG draws the screen as a window with a title, which is what was typed. The text
// in it can be selected and read aloud.
func (s Screen) SVG(title string) []byte {
	width := int(float64(s.Width)*cellWidth) + 2*margin
	height := barHeight + len(s.Lines)*lineHeight + 2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">`+"\n", width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n", escapeXML(title))
	b.WriteString("<style>\n" + svgStyles() + "</style>\n")
	fmt.Fprintf(&b, `<rect class="window" x="0.5" y="0.5" width="%d" height="%d" rx="8"/>`+"\n", width-1, height-1)
	for i, class := range []string{"c1", "c3", "c2"} { // as windows have them
		fmt.Fprintf(&b, `<circle class="%s" cx="%d" cy="%d" r="5"/>`+"\n", class, margin+5+i*17, barHeight/2+1)
	}
	fmt.Fprintf(&b, `<text class="f" xml:space="preserve" x="%d" y="%d">$ %s</text>`+"\n", margin+64, barHeight/2+6, escapeXML(title))
	for i, line := range s.Lines {
		if len(line) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<text xml:space="preserve" x="%d" y="%d">`, margin, barHeight+margin+i*lineHeight+fontSize)
		for _, span := range line {
			if class := span.Style.class(); class != "" {
				fmt.Fprintf(&b, `<tspan class="%s">%s</tspan>`, class, escapeXML(span.Text))
				continue
			}
			b.WriteString(escapeXML(span.Text))
		}
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// svgStyles has the classes of spans: b is bold, f faint, c0 to c15 are colours.
func svgStyles() string {
	var b strings.Builder
	fmt.Fprintf(&b, "text { font: %dpx \"DejaVu Sans Mono\", Menlo, Consolas, \"Liberation Mono\", monospace; fill: #d8dee9; white-space: pre; }\n", fontSize)
	b.WriteString(".window { fill: #1d2330; stroke: #3b4252; }\n.b { font-weight: bold; }\n.f { fill-opacity: 0.6; }\n")
	for i, c := range []string{
		"#4c566a", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
		"#6b7689", "#ff7b86", "#b5e890", "#ffd68a", "#7cc4ff", "#e08cf5", "#6fd3df", "#ffffff",
	} {
		fmt.Fprintf(&b, ".c%d { fill: %s; }\n", i, c)
	}
	return b.String()
}

func (s Style) class() string {
	var classes []string
	if s.Bold {
		classes = append(classes, "b")
	}
	if s.Faint {
		classes = append(classes, "f")
	}
	if s.Color >= 0 {
		classes = append(classes, fmt.Sprintf("c%d", s.Color))
	}
	return strings.Join(classes, " ")
}

func escapeXML(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a builder takes everything
	return b.String()
}
