package auth

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/magiconair/properties"
)

// Property is an entry of a Java properties file.
type Property struct {
	Key, Value string
	Line       int // where it starts, from 1
	// NotASCII is set where the file has bytes above 127 in the entry, which
	// Java reads as ISO-8859-1 even if they were written as UTF-8.
	NotASCII bool
}

// utf8BOM is what editors on Windows put in front of a file in UTF-8. Java takes
// it for a part of the first key, so its tools pass over the first setting.
const utf8BOM = "\xef\xbb\xbf"

// ParseProperties reads a Java properties file as java.util.Properties.load does
// from a stream, which is how Kafka's tools read theirs: in ISO-8859-1, with the
// escapes \t \n \r \f \uXXXX, logical lines over several natural ones that end in
// a backslash, the separators "=", ":" and blank, and without variables. The last
// of several entries with one key counts. A file that starts with a UTF-8 byte
// order mark is read as UTF-8, where Java would misread the first line.
//
// It returns the entries in the order in which their keys first appear. It may
// return *ConfigError.
func ParseProperties(data []byte) ([]Property, error) {
	text, err := decodeProperties(data)
	if err != nil {
		return nil, err
	}
	var out []Property
	index := make(map[string]int)
	for _, l := range logicalLines(text) {
		p, err := parseProperty(l)
		if err != nil {
			return nil, err
		}
		if i, ok := index[p.Key]; ok {
			out[i] = p
			continue
		}
		index[p.Key] = len(out)
		out = append(out, p)
	}
	return out, nil
}

// readProperties is ParseProperties of a file.
func readProperties(file string) ([]Property, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err // the message has the name already
		}
		return nil, &ConfigError{File: file, Reason: "read properties", Err: err, Advice: "check the path; no setting is taken from a file that cannot be read"}
	}
	props, err := ParseProperties(data)
	return props, inFile(err, file)
}

// decodeProperties returns the characters of a file.
func decodeProperties(data []byte) (string, error) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return "", &ConfigError{Reason: "the file is in UTF-16", Advice: "save it as ASCII or ISO-8859-1, as Java reads it"}
	}
	if rest, ok := bytes.CutPrefix(data, []byte(utf8BOM)); ok {
		if !utf8.Valid(rest) {
			return "", &ConfigError{Reason: "the file has the byte order mark of UTF-8 and is not UTF-8"}
		}
		return utf8BOM + string(rest), nil
	}
	runes := make([]rune, len(data))
	for i, b := range data {
		runes[i] = rune(b)
	}
	return string(runes), nil
}

// logicalLine is a line of a properties file after lines that a backslash
// continues were joined: no comment, not empty, without leading blanks.
type logicalLine struct {
	text string
	line int
	utf8 bool // the file says that it is UTF-8
}

const propertyBlanks = " \t\f"

// logicalLines splits a file as Java does. The library joins lines in values
// alone, and takes the line feed after a continued "\r" for an end.
func logicalLines(text string) []logicalLine {
	text, isUTF8 := strings.CutPrefix(text, utf8BOM)
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	var out []logicalLine
	var joined strings.Builder
	start, continued := 0, false
	for i, natural := range strings.Split(text, "\n") {
		l := strings.TrimLeft(natural, propertyBlanks)
		if joined.Len() == 0 {
			// Also after a line that has nothing but a backslash.
			if l != "" && (l[0] == '#' || l[0] == '!') || l == "" {
				continued = false
				continue
			}
			if !continued {
				start = i + 1
			}
		}
		l, continued = cutContinuation(l)
		joined.WriteString(l)
		if !continued && joined.Len() > 0 {
			out = append(out, logicalLine{joined.String(), start, isUTF8})
			joined.Reset()
		}
	}
	if joined.Len() > 0 { // the file ends in a backslash
		out = append(out, logicalLine{joined.String(), start, isUTF8})
	}
	return out
}

// cutContinuation cuts a backslash at the end that is not escaped itself.
func cutContinuation(l string) (string, bool) {
	n := len(l) - len(strings.TrimRight(l, `\`))
	if n%2 == 0 {
		return l, false
	}
	return l[:len(l)-1], true
}

// parseProperty splits a logical line and resolves its escapes.
func parseProperty(l logicalLine) (Property, error) {
	p := Property{Line: l.line, NotASCII: !l.utf8 && strings.ContainsFunc(l.text, func(r rune) bool { return r > unicode.MaxASCII })}
	text := l.text
	// The library wants a key, where Java takes none for an empty one.
	noKey := text[0] == '=' || text[0] == ':'
	if noKey {
		text = "x" + text
	}
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	props, err := loader.LoadBytes([]byte(joinSurrogates(text)))
	if err != nil || props.Len() != 1 {
		// The library's own message may have a part of the value in it.
		return Property{}, &ConfigError{Line: l.line, Reason: `malformed \uXXXX escape`, Advice: `write a backslash as \\`}
	}
	p.Key = props.Keys()[0]
	p.Value, _ = props.Get(p.Key)
	if noKey {
		p.Key = ""
	}
	return p, nil
}

// joinSurrogates resolves \uD83D\uDE00, two halves of one character outside the
// basic plane, which the library takes for two characters.
func joinSurrogates(s string) string {
	if !strings.Contains(s, `\u`) {
		return s
	}
	pair := regexp.MustCompile(`\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)`)
	return pair.ReplaceAllStringFunc(s, func(m string) string {
		if len(m) != len(`\uD83D\uDE00`) {
			return m // any other escape, passed over as a whole
		}
		hi, _ := strconv.ParseUint(m[2:6], 16, 16)
		lo, _ := strconv.ParseUint(m[8:12], 16, 16)
		return fmt.Sprintf("%c", utf16.DecodeRune(rune(hi), rune(lo)))
	})
}
