package auth

import (
	"fmt"
	"slices"
	"strings"
)

// loginModule is the login module of a sasl.jaas.config.
type loginModule struct {
	class   string
	options map[string]string
}

const (
	jaasKey     = "sasl.jaas.config"
	jaasQuoting = `put quotes around values; in them a quote is \" and a backslash \\, and a properties file wants each backslash twice`
)

// parseJAAS reads "module flag key=value ...;" as Kafka's JaasConfig does, which
// is what java.io.StreamTokenizer makes of it: a quoted value has the escapes \n
// \t \" \\ and octal ones, one without quotes is of letters, digits and "_$.-", and
// starts with none of the last ones, and "/" starts a comment outside quotes.
func parseJAAS(s string) (loginModule, error) {
	t := jaasTokens{rest: []rune(s)}
	var modules []loginModule
	for {
		tok := t.next()
		if tok.kind == jaasEnd {
			break
		}
		m, err := t.module(tok)
		if err != nil {
			return loginModule{}, err
		}
		modules = append(modules, m)
	}
	if len(modules) != 1 {
		return loginModule{}, keyError(jaasKey, "has %d login modules, want one", len(modules)).
			advise("write: LOGIN_MODULE required username=\"USER\" password=\"PASSWORD\";")
	}
	return modules[0], nil
}

// module reads a login module that starts with a token.
func (t *jaasTokens) module(first jaasToken) (loginModule, error) {
	m := loginModule{class: first.text, options: make(map[string]string)}
	if first.kind != jaasWord {
		return m, keyError(jaasKey, "does not start with a login module")
	}
	flag := t.next()
	flags := []string{"required", "requisite", "sufficient", "optional"}
	if flag.kind != jaasWord || !slices.Contains(flags, strings.ToLower(flag.text)) {
		return m, keyError(jaasKey, "after the login module comes no control flag").advise("write: LOGIN_MODULE required ...;")
	}
	for {
		name := t.next()
		switch {
		case name.kind == jaasChar && name.text == ";":
			return m, nil
		case name.kind == jaasEnd:
			return m, keyError(jaasKey, "does not end with a semicolon").advise(jaasQuoting)
		case name.kind != jaasWord:
			// Not the token itself: it may be a part of a password.
			return m, keyError(jaasKey, "option %d has no name", len(m.options)+1).advise(jaasQuoting)
		}
		eq, value := t.next(), jaasToken{}
		if eq.kind == jaasChar && eq.text == "=" {
			value = t.next()
		}
		if value.kind != jaasWord {
			return m, keyError(jaasKey, "option %d has no value", len(m.options)+1).advise(jaasQuoting)
		}
		m.options[name.text] = value.text
	}
}

type jaasKind int8

const (
	jaasNone jaasKind = iota
	jaasWord          // also one in quotes
	jaasChar          // any character by itself, as ";" and "=" are; or a number
	jaasEnd
)

type jaasToken struct {
	kind jaasKind
	text string
}

// jaasTokens splits a text into tokens.
type jaasTokens struct{ rest []rune }

// peek returns the next character, -1 at the end.
func (t *jaasTokens) peek() rune {
	if len(t.rest) == 0 {
		return -1
	}
	return t.rest[0]
}

func (t *jaasTokens) read() rune {
	r := t.peek()
	if r >= 0 {
		t.rest = t.rest[1:]
	}
	return r
}

// isWord holds for what a word without quotes goes on with.
func isWord(r rune) bool {
	return r >= 160 || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_' || r == '$' || isNumber(r)
}

// isNumber holds for what a number starts with: no word, also if letters follow.
func isNumber(r rune) bool { return r >= '0' && r <= '9' || r == '.' || r == '-' }

func (t *jaasTokens) next() jaasToken {
	for {
		switch r := t.read(); {
		case r < 0:
			return jaasToken{kind: jaasEnd}
		case r <= ' ':
		case r == '"', r == '\'':
			return jaasToken{jaasWord, t.quoted(r)}
		case r == '/':
			t.comment()
		case isNumber(r):
			return jaasToken{jaasChar, t.number(r)}
		case isWord(r):
			word := []rune{r}
			for isWord(t.peek()) {
				word = append(word, t.read())
			}
			return jaasToken{jaasWord, string(word)}
		default:
			return jaasToken{jaasChar, string(r)}
		}
	}
}

// number reads digits with at most one point, and a minus sign before them.
func (t *jaasTokens) number(r rune) string {
	text := []rune{r}
	point := r == '.'
	for next := t.peek(); ; next = t.peek() {
		switch {
		case next >= '0' && next <= '9':
		case next == '.' && !point:
			point = true
		default:
			return string(text)
		}
		text = append(text, t.read())
	}
}

// comment passes over a comment whose "/" was read: to the end of the line, or
// to the end of "/* */". What follows the "/" is a part of it, even a line feed.
func (t *jaasTokens) comment() {
	if t.read() != '*' {
		for r := t.peek(); r >= 0 && r != '\n' && r != '\r'; r = t.peek() {
			t.read()
		}
		return
	}
	for last := rune(0); ; {
		r := t.read()
		if r < 0 || r == '/' && last == '*' {
			return
		}
		last = r
	}
}

// quoted reads to the closing quote, or to the end of the line, which closes it
// as well.
func (t *jaasTokens) quoted(quote rune) string {
	var b strings.Builder
	for {
		r := t.peek()
		if r < 0 || r == '\n' || r == '\r' {
			return b.String()
		}
		t.read()
		switch r {
		case quote:
			return b.String()
		case '\\':
			t.escape(&b)
		default:
			b.WriteRune(r)
		}
	}
}

// escape reads what stands after a backslash.
func (t *jaasTokens) escape(b *strings.Builder) {
	r := t.read()
	if r < 0 {
		return
	}
	if r >= '0' && r <= '7' {
		t.octal(b, r)
		return
	}
	if i := strings.IndexRune("abfnrtv", r); i >= 0 {
		r = rune("\a\b\f\n\r\t\v"[i])
	}
	b.WriteRune(r)
}

// octal reads up to \377.
func (t *jaasTokens) octal(b *strings.Builder, first rune) {
	digits := 2
	if first <= '3' {
		digits = 3
	}
	v := first - '0'
	for n := 1; n < digits; n++ {
		r := t.peek()
		if r < '0' || r > '7' {
			break
		}
		v = v<<3 + t.read() - '0'
	}
	b.WriteRune(v)
}

// String names the module, without its options.
func (m loginModule) String() string {
	return fmt.Sprintf("%s with %d options", m.class, len(m.options))
}
