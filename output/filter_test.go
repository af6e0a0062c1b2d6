package output

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

type filtered struct {
	ID    string `json:"id"`
	Big   int64  `json:"big"`
	Lag   *int64 `json:"lag"`
	Bytes []byte `json:"bytes"`
}

func filterView() View {
	return View{
		Kind: "test.filter", Version: 1, Time: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
		Items: []filtered{
			{ID: "a \"quoted\"", Big: 1<<53 + 1, Bytes: []byte{0xff, 0}},
			{ID: "l1\nl2\x1b[31m\u009b", Big: 1<<63 - 1, Bytes: []byte("text")},
		},
	}
}

func TestFilter(t *testing.T) {
	t.Setenv("KSHARE_SASL_PASSWORD", "secret")
	for name, c := range map[string]struct {
		expression string
		raw        bool
		terminal   bool
		want       string
	}{
		"numbers keep their digits":    {".items[].big", false, false, "9007199254740993\n9223372036854775807\n"},
		"also when they are compared":  {".items[] | select(.big == 9007199254740993) | .big", false, false, "9007199254740993\n"},
		"and when they are passed on":  {"[.items[] | {big}]", false, false, `[{"big":9007199254740993},{"big":9223372036854775807}]` + "\n"},
		"a string is JSON":             {".items[0].id", false, false, `"a \"quoted\""` + "\n"},
		"a raw string":                 {".items[0].id, .items[0].big", true, false, "a \"quoted\"\n9007199254740993\n"},
		"controls are escaped in JSON": {".items[1].id", false, false, `"l1\nl2\u001b[31m\u009b"` + "\n"},
		"a raw one is as it is":        {".items[1].id", true, false, "l1\nl2\x1b[31m\u009b\n"},
		"but not on a terminal":        {".items[1].id", true, true, "l1\nl2\\x1b[31m\\u009b\n"},
		"bytes that are no text":       {".items[].bytes", false, false, `{"encoding":"base64","value":"/wA="}` + "\n" + `"text"` + "\n"},
		"null, true and nothing":       {"null, true, empty", false, false, "null\ntrue\n"},
		"no result":                    {".items[] | select(.lag)", false, false, ""},
		"the envelope":                 {".kind, .version, .time, .incomplete, .warnings", false, false, "\"test.filter\"\n1\n\"2026-11-29T12:00:00Z\"\nfalse\n[]\n"},
		"no environment":               {"env, $ENV, $ENV.KSHARE_SASL_PASSWORD", false, false, "{}\n{}\nnull\n"},
		"halt ends it":                 {"1, halt, 2", false, false, "1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := NewFilter(c.expression, c.raw)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			if err := Write(&b, filterView(), Options{Format: FormatJSON, Filter: f, Terminal: c.terminal}); err != nil || b.String() != c.want {
				t.Errorf("%s = %q, %v; want %q", c.expression, b.String(), err, c.want)
			}
		})
	}
}

func TestFilterThatDoesNotCompile(t *testing.T) {
	for _, expression := range []string{"{", ".a |", "nosuchfunction", "$nosuchvariable", "input", "inputs", `import "a" as a; .`} {
		_, err := NewFilter(expression, false)
		if !isFilterError(err) || !strings.Contains(err.Error(), "jq expression") {
			t.Errorf("NewFilter(%q) = %v, want an error that shows the expression", expression, err)
		}
	}
}

func isFilterError(err error) bool {
	_, ok := errors.AsType[*FilterError](err)
	return ok
}

// What came before a failure is shown, and the failure told.
func TestFilterThatFails(t *testing.T) {
	for expression, wrote := range map[string]string{
		".items[0].big, (.items | .nope)": "9007199254740993\n",
		`error("no")`:                     "",
		`"x" | halt_error`:                "",
	} {
		f, err := NewFilter(expression, false)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		err = Write(&b, filterView(), Options{Format: FormatJSON, Filter: f})
		if !isFilterError(err) || b.String() != wrote {
			t.Errorf("%s: wrote %q and failed with %v", expression, b.String(), err)
		}
	}
	f, err := NewFilter("[range(1000)] | tostring | .*100 | error", false)
	if err != nil {
		t.Fatal(err)
	}
	err = Write(io.Discard, filterView(), Options{Format: FormatJSON, Filter: f})
	if err == nil || len(err.Error()) > 700 || !utf8.ValidString(err.Error()) {
		t.Errorf("a long message of jq became %d bytes: %.100v", len(err.Error()), err)
	}
}

func TestFilterIsBounded(t *testing.T) {
	endless, err := NewFilter("repeat(1)", false)
	if err != nil {
		t.Fatal(err)
	}
	w := &closingWriter{}
	if err := Write(w, filterView(), Options{Format: FormatJSON, Filter: endless}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("endless results into a pipe that closes: %v", err)
	}
	loop, err := NewFilter("def f: f; f", false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := Write(io.Discard, filterView(), Options{Format: FormatJSON, Filter: loop, Context: ctx}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an endless loop ends with %v, want %v", err, context.DeadlineExceeded)
	}
	// A command that was told to stop before still shows what it has.
	kind, err := NewFilter(".kind", false)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Write(&b, filterView(), Options{Format: FormatJSON, Filter: kind, Context: ctx}); err != nil || b.String() != "\"test.filter\"\n" {
		t.Errorf("after the end: %q, %v", b.String(), err)
	}
}

// closingWriter is a pipe whose reader goes away after one write.
type closingWriter struct{ writes int }

func (w *closingWriter) Write(b []byte) (int, error) {
	if w.writes++; w.writes > 1 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}
