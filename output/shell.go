package output

import (
	"fmt"
	"strings"
)

// ShellQuote returns s as one word of a POSIX shell that can be shown, copied and
// run: as it is where nothing in it is special, in single quotes otherwise, and
// as $'...' where it has bytes that cannot be shown. The last is understood by
// bash, zsh, ksh and busybox, and is POSIX since 2024. It returns false for a NUL
// byte, which no argument can hold.
func ShellQuote(s string) (string, bool) {
	switch {
	case strings.ContainsRune(s, 0):
		return "", false
	case strings.ContainsFunc(s, needsEscape):
		return ansiQuote(s), true
	case s == "" || strings.ContainsFunc(s, isSpecial):
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", true
	}
	return s, true
}

// isSpecial holds for what a shell may take for more than itself. A "~" or "="
// matters in some places only, which is reason enough.
func isSpecial(r rune) bool {
	switch {
	case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
		return false
	}
	return !strings.ContainsRune("-_./:,@+%", r)
}

// ansiQuote writes what cannot be shown in octal, always three digits: unlike
// those in hexadecimal, they end by themselves in every shell.
func ansiQuote(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i, r := range s {
		switch {
		case r == '\'' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case !needsEscape(r):
			b.WriteRune(r)
		case isInvalid(s[i:]):
			fmt.Fprintf(&b, `\%03o`, s[i])
		default:
			for _, c := range []byte(string(r)) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		}
	}
	b.WriteByte('\'')
	return b.String()
}
