package output

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// narrowest is a terminal on which lines are still broken at blanks.
const narrowest = 20

// Wrap breaks a line for people into lines of at most width columns, at blanks; what
// follows the first one is indented. The first has taken columns less. A command in
// single quotes stays on one line where it can, so that it can be copied. A word
// that is longer than a line is left to the terminal, as everything is where width
// is 0 or very small.
func Wrap(text string, width, taken int) string {
	const indent = "  "
	if width < narrowest || taken+ansi.StringWidth(text) <= width {
		return text
	}
	var b strings.Builder
	column, empty := taken, true
	for _, w := range unbreakable(text) {
		n := ansi.StringWidth(w)
		// What is wider than a line is broken by the terminal wherever it begins.
		if fits := len(indent)+n <= width; !empty && column+1+n > width && (fits || column >= width) {
			b.WriteString("\n" + indent)
			column, empty = len(indent), true
		}
		if !empty {
			b.WriteByte(' ')
			column++
		}
		b.WriteString(w)
		column, empty = column+n, false
	}
	return b.String()
}

// TextWidth is how many columns a text with styles takes.
func TextWidth(s string) int { return ansi.StringWidth(s) }

// unbreakable splits a text into words, of which a command in single quotes is one.
func unbreakable(text string) []string {
	words := strings.Split(text, " ")
	var out []string
	for i := 0; i < len(words); {
		n := 1
		if opens(words[i]) {
			for j := i; j < len(words); j++ {
				if closes(words[j]) {
					n = j - i + 1
					break
				}
			}
		}
		out = append(out, strings.Join(words[i:i+n], " "))
		i += n
	}
	return out
}

// opens reports whether a word begins what is in quotes.
func opens(word string) bool { return strings.HasPrefix(strings.TrimLeft(word, "("), "'") }

// closes reports whether a word ends what is in quotes. An apostrophe, as in
// "broker's", does not.
func closes(word string) bool {
	return strings.HasSuffix(strings.TrimRight(word, ".,;:)?"), "'") && word != "'"
}
