package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

const jsonIndent = "  "

func writeJSON(b *bytes.Buffer, v View, oneLine bool) error {
	doc, err := v.envelope()
	if err != nil {
		return err
	}
	if oneLine {
		appendJSON(b, doc, "", "")
	} else {
		appendJSON(b, doc, "\n", jsonIndent)
	}
	b.WriteByte('\n')
	return nil
}

// Line returns x as JSON on one line without line feed, by the rules of the
// package comment and without envelope: for the messages of a command that is
// still running, such as an error on stderr.
func Line(x any) (string, error) {
	n, err := encode(x)
	if err != nil {
		return "", fmt.Errorf("write line: %w", err)
	}
	var b bytes.Buffer
	appendJSON(&b, n, "", "")
	return b.String(), nil
}

// appendJSON writes n. Each element goes on a line of its own when newline,
// which holds the line feed and the indentation so far, is not "".
func appendJSON(b *bytes.Buffer, n node, newline, indent string) {
	inner := newline
	if newline != "" {
		inner += indent
	}
	switch n := n.(type) {
	case null:
		b.WriteString("null")
	case boolean:
		fmt.Fprint(b, bool(n))
	case number:
		b.WriteString(string(n))
	case text:
		appendString(b, string(n))
	case list:
		appendAll(b, '[', ']', len(n), newline, inner, func(i int) {
			appendJSON(b, n[i], inner, indent)
		})
	case object:
		appendAll(b, '{', '}', len(n), newline, inner, func(i int) {
			appendString(b, n[i].key)
			b.WriteByte(':')
			if newline != "" {
				b.WriteByte(' ')
			}
			appendJSON(b, n[i].val, inner, indent)
		})
	}
}

func appendAll(b *bytes.Buffer, open, shut byte, n int, newline, inner string, each func(int)) {
	b.WriteByte(open)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(inner)
		each(i)
	}
	if n > 0 {
		b.WriteString(newline)
	}
	b.WriteByte(shut)
}

// appendString quotes s. Beyond what JSON asks for it escapes DEL and the C1
// controls: 0x9b alone starts a terminal sequence, and a document may well be
// shown on one.
func appendString(b *bytes.Buffer, s string) {
	var quoted bytes.Buffer
	enc := json.NewEncoder(&quoted)
	enc.SetEscapeHTML(false)
	// Encoding a string cannot fail; invalid UTF-8 never gets here.
	_ = enc.Encode(s)
	q := strings.TrimSuffix(quoted.String(), "\n")
	if strings.IndexFunc(q, unicode.IsControl) < 0 {
		b.WriteString(q)
		return
	}
	for _, r := range q {
		if unicode.IsControl(r) {
			fmt.Fprintf(b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
}
