package output

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape makes s safe to show on a terminal, on one line: control characters,
// invalid UTF-8, and the characters that reorder a line or break it become
// escapes such as \n, \x1b or \u202e. What can be seen stays as it is.
func Escape(s string) string {
	if !strings.ContainsFunc(s, needsEscape) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == utf8.RuneError && isInvalid(s[i:]):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !needsEscape(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// escapeLines escapes s but keeps its line feeds.
func escapeLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = Escape(l)
	}
	return strings.Join(lines, "\n")
}

// needsEscape holds for controls (Cc), for formats (Cf, such as bidirectional
// overrides; not the joiners, without which some scripts cannot be written),
// for line and paragraph separators (Zl, Zp), and for U+FFFD, which stands for
// invalid bytes when a string is ranged over.
func needsEscape(r rune) bool {
	const zeroWidthNonJoiner, zeroWidthJoiner = 0x200c, 0x200d
	switch r {
	case zeroWidthNonJoiner, zeroWidthJoiner:
		return false
	case utf8.RuneError:
		return true
	default:
		return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
	}
}

func isInvalid(s string) bool {
	_, n := utf8.DecodeRuneInString(s)
	return n == 1
}
