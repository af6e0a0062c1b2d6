package promtext

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Label is a name and a value, both UTF-8.
type Label struct{ Name, Value string }

// Sample is one value of one time series. A timestamp that came with it is not
// kept.
type Sample struct {
	Name   string
	Labels []Label // in the order in which they were written
	Value  float64 // may be NaN or an infinity
}

// MaxLineBytes is the longest line that is read.
const MaxLineBytes = 1 << 20

// What a [SyntaxError] wraps.
var (
	errMalformed = errors.New("malformed")
	errNameless  = errors.New("a metric without name")
	errGlued     = errors.New("a quote that belongs around a whole name, in braces")
)

// SyntaxError says which line is not of the format.
type SyntaxError struct {
	Line int // from 1
	Err  error
}

// Error names the line.
func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

// Unwrap returns what is wrong with the line.
func (e *SyntaxError) Unwrap() error { return e.Err }

// Parse reads samples from r and calls each for those whose name is wanted, in
// the order in which they come. want must not keep the name. Of what is not
// wanted, no more is looked at than shows that it is a sample at all, so that
// little of a large page costs little. Comments, and with them types, are passed
// over. It may return a *[SyntaxError], or what r returns.
func Parse(r io.Reader, want func(name []byte) bool, each func(Sample)) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	var long []byte
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], line...)
			line, err = readLong(lines, &long)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			if errors.Is(err, errMalformed) {
				return &SyntaxError{n, err}
			}
			return err
		}
		if serr := parseLine(bytes.TrimSuffix(line, []byte("\n")), want, each); serr != nil {
			return &SyntaxError{n, serr}
		}
		if err != nil {
			return nil // the end
		}
	}
}

// readLong reads the rest of a line that does not fit the reader's buffer.
func readLong(lines *bufio.Reader, line *[]byte) ([]byte, error) {
	for {
		more, err := lines.ReadSlice('\n')
		*line = append(*line, more...)
		switch {
		case len(*line) > MaxLineBytes:
			return nil, fmt.Errorf("longer than %d bytes: %w", MaxLineBytes, errMalformed)
		case !errors.Is(err, bufio.ErrBufferFull):
			return *line, err
		}
	}
}

func parseLine(line []byte, want func([]byte) bool, each func(Sample)) error {
	line = bytes.TrimLeft(line, " \t")
	if len(line) == 0 || line[0] == '#' {
		return nil
	}
	p := lineParser{rest: line}
	name := p.name()
	if p.at('"') {
		return fmt.Errorf("metric %.100q: %w", name, errGlued)
	}
	quoted := len(name) == 0 && p.at('{') // {"name",label="value"} 1
	if len(name) == 0 && !quoted {
		return fmt.Errorf("want the name of a metric, not %.20q: %w", line, errMalformed)
	}
	p.blanks()
	if !quoted && !want(name) && p.at('{') {
		return nil
	}
	s := Sample{}
	if p.at('{') {
		var err error
		if s.Labels, err = p.labels(&name); err != nil {
			return err
		}
	}
	if len(name) == 0 {
		return errNameless
	}
	var err error
	if s.Value, err = p.value(); err != nil {
		return fmt.Errorf("metric %.100q: %w", name, err)
	}
	if want(name) {
		s.Name = string(name)
		each(s)
	}
	return nil
}

// lineParser is what is left of a line.
type lineParser struct{ rest []byte }

func (p *lineParser) at(c byte) bool { return len(p.rest) > 0 && p.rest[0] == c }

func (p *lineParser) blanks() { p.rest = bytes.TrimLeft(p.rest, " \t") }

// eat passes over c, if it is next.
func (p *lineParser) eat(c byte) bool {
	if !p.at(c) {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// name takes the name of a metric or, since colons are for metrics alone, a
// little more than the name of a label.
func (p *lineParser) name() []byte {
	n := 0
	for n < len(p.rest) && isNameByte(p.rest[n], n == 0) {
		n++
	}
	name := p.rest[:n]
	p.rest = p.rest[n:]
	return name
}

func isNameByte(c byte, first bool) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || c == ':' || !first && '0' <= c && c <= '9'
}

// labels takes a set of labels. A name alone, at first, is that of the metric.
func (p *lineParser) labels(metric *[]byte) ([]Label, error) {
	var out []Label
	p.eat('{')
	for {
		p.blanks()
		if p.eat('}') {
			return out, nil
		}
		key := p.name()
		if len(key) == 0 {
			s, err := p.quoted()
			if err != nil {
				return nil, fmt.Errorf("name of a label: %w", err)
			}
			key = []byte(s)
		} else if p.at('"') {
			return nil, fmt.Errorf("label %.100q: %w", key, errGlued)
		} else if bytes.IndexByte(key, ':') >= 0 {
			return nil, fmt.Errorf("label %.100q: %w", key, errMalformed)
		}
		p.blanks()
		switch {
		case p.eat('='):
			p.blanks()
			value, err := p.quoted()
			if err != nil {
				return nil, fmt.Errorf("label %.100q: %w", key, err)
			}
			out = append(out, Label{string(key), value})
		case len(*metric) == 0 && len(out) == 0:
			*metric = key
		default:
			return nil, fmt.Errorf("label %.100q has no value: %w", key, errMalformed)
		}
		p.blanks()
		if !p.eat(',') && !p.at('}') {
			return nil, fmt.Errorf("after label %.100q: %w", key, errMalformed)
		}
	}
}

// quoted takes a quoted string, in which \\, \" and \n are escapes.
func (p *lineParser) quoted() (string, error) {
	if !p.eat('"') {
		return "", fmt.Errorf("want a quoted string: %w", errMalformed)
	}
	var b strings.Builder
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; c {
		case '"':
			s := b.String()
			if b.Len() == 0 {
				s = string(p.rest[:i])
			}
			p.rest = p.rest[i+1:]
			if !utf8.ValidString(s) {
				return "", fmt.Errorf("%.100q is not UTF-8: %w", s, errMalformed)
			}
			return s, nil
		case '\\':
			if b.Len() == 0 {
				b.Grow(len(p.rest))
				b.Write(p.rest[:i])
			}
			if i++; i == len(p.rest) {
				return "", fmt.Errorf("a quoted string without end: %w", errMalformed)
			}
			switch p.rest[i] {
			case 'n':
				b.WriteByte('\n')
			case '"', '\\':
				b.WriteByte(p.rest[i])
			default:
				return "", fmt.Errorf("escape \\%c: %w", p.rest[i], errMalformed)
			}
		default:
			if b.Len() > 0 {
				b.WriteByte(c)
			}
		}
	}
	return "", fmt.Errorf("a quoted string without end: %w", errMalformed)
}

// value takes the value and what may follow it: a timestamp, and what OpenMetrics
// has behind a '#'.
func (p *lineParser) value() (float64, error) {
	text, _, _ := bytes.Cut(p.rest, []byte("#"))
	fields := bytes.Fields(text)
	if len(fields) == 0 || len(fields) > 2 {
		return 0, fmt.Errorf("want a value, and perhaps a timestamp: %w", errMalformed)
	}
	v, err := parseFloat(string(fields[0]))
	if err != nil {
		return 0, fmt.Errorf("value %.100q: %w", fields[0], errMalformed)
	}
	if len(fields) == 2 {
		if _, err := parseFloat(string(fields[1])); err != nil { // OpenMetrics has seconds with a fraction
			return 0, fmt.Errorf("timestamp %.100q: %w", fields[1], errMalformed)
		}
	}
	return v, nil
}

// parseFloat takes what Go does, without what only Go does.
func parseFloat(s string) (float64, error) {
	if strings.ContainsAny(s, "pP_") {
		return 0, errMalformed
	}
	return strconv.ParseFloat(s, 64)
}
