package ctp

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestJQ(t *testing.T) {
	tests := map[string]struct {
		expr, in string
		want     []string
		err      string // part of the message
	}{
		"a field":                            {".id", `{"id":7}`, []string{"7"}, ""},
		"several results":                    {".[]", `[1,"two",null]`, []string{"1", `"two"`, "null"}, ""},
		"no result":                          {"select(.x)", `{"x":false}`, nil, ""},
		"numbers keep their digits":          {".", `{"n":12345678901234567890.10}`, []string{`{"n":12345678901234567890.10}`}, ""},
		"unicode passes":                     {".s", `{"s":"日本\u00e9"}`, []string{`"日本é"`}, ""},
		"halt ends without a result":         {"halt", `1`, nil, ""},
		"not JSON":                           {".", `{"a":`, nil, "ends too early"},
		"nothing at all":                     {".", ``, nil, "ends too early"},
		"two values":                         {".", `1 2`, nil, "something follows it"},
		"plain text":                         {".", `hello`, nil, "not JSON"},
		"space around":                       {".a", " {\"a\":1}\r\n\t ", []string{"1"}, ""},
		"space alone":                        {".", "\n", nil, "ends too early"},
		"a value and a bracket":              {".", `{"a":1}]`, nil, "something follows it"},
		"two values and space":               {".", "{}\n[]\n", nil, "something follows it"},
		"an expression that does not fit":    {".a.b", `{"a":1}`, nil, "jq: "},
		"an expression that calls for error": {`error("no")`, `1`, nil, "no"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			transform, err := JQ(tt.expr)
			if err != nil {
				t.Fatal(err)
			}
			src := &kgo.Record{
				Key: []byte{0xff, 0}, Value: []byte(tt.in), Timestamp: time.UnixMilli(42),
				Headers: []kgo.RecordHeader{{Key: "a", Value: nil}, {Key: "a", Value: []byte("2")}},
			}
			out, err := transform(t.Context(), src)
			var got []string
			for _, r := range out {
				got = append(got, string(r.Value))
				if !reflect.DeepEqual(r.Key, src.Key) || !reflect.DeepEqual(r.Headers, src.Headers) || !r.Timestamp.Equal(src.Timestamp) {
					t.Errorf("%s of %s: key, headers or timestamp changed: %v", tt.expr, tt.in, r)
				}
			}
			if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s of %s = %q, %v; want %q, error with %q", tt.expr, tt.in, got, err, tt.want, tt.err)
			}
		})
	}
}

// What one record leaves behind is not seen by the next: numbers end where their
// record does, and what could not be read is gone.
func TestJQReadsEachRecordAlone(t *testing.T) {
	transform, err := JQ(".")
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 10_000)
	for _, tt := range []struct{ in, want string }{
		{"1", "1"},
		{"2", "2"},
		{"3\n", "3"},
		{"true", "true"},
		{`"` + long + `"`, `"` + long + `"`},
		{`{"a":`, ""},
		{"}", ""},
		{"4", "4"},
		{"-", ""},
		{"5 6", ""},
		{`{"a":1}`, `{"a":1}`},
		{"[]", "[]"},
	} {
		out, err := transform(t.Context(), &kgo.Record{Value: []byte(tt.in)})
		switch {
		case tt.want == "" && err == nil:
			t.Errorf("%.20s was read", tt.in)
		case tt.want != "" && (err != nil || len(out) != 1 || string(out[0].Value) != tt.want):
			t.Errorf("%.20s became %v, %v", tt.in, out, err)
		}
	}
}

func TestJQPassesTombstones(t *testing.T) {
	transform, err := JQ(".id")
	if err != nil {
		t.Fatal(err)
	}
	src := &kgo.Record{Key: []byte("k")}
	out, err := transform(t.Context(), src)
	if err != nil || len(out) != 1 || out[0].Value != nil {
		t.Errorf("a null value became %v, %v; want one null value", out, err)
	}
}

func TestJQWrongExpression(t *testing.T) {
	for _, expr := range []string{"{", ".a |", "nosuchfunction", "$nosuchvariable"} {
		if _, err := JQ(expr); err == nil || !strings.Contains(err.Error(), expr) {
			t.Errorf("JQ(%q) = %v, want an error that shows the expression", expr, err)
		}
	}
}

// A message of jq may hold the whole record.
func TestJQErrorIsShort(t *testing.T) {
	transform, err := JQ("error")
	if err != nil {
		t.Fatal(err)
	}
	long := []byte("\"" + strings.Repeat("\u00e4", 100_000) + "\"")
	_, err = transform(t.Context(), &kgo.Record{Value: long})
	if err == nil || len(err.Error()) > 600 || !strings.HasSuffix(err.Error(), "\u00e4...") || !utf8.ValidString(err.Error()) {
		t.Errorf("a long message of jq became %d bytes", len(err.Error()))
	}
}

func TestJQIsBounded(t *testing.T) {
	endless, err := JQ("repeat(1)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := endless(t.Context(), &kgo.Record{Value: []byte("1")}); !errors.Is(err, ErrTooManyOutputs) {
		t.Errorf("endless results end with %v, want %v", err, ErrTooManyOutputs)
	}
	loop, err := JQ("def f: f; f")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := loop(ctx, &kgo.Record{Value: []byte("1")}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an endless loop ends with %v, want %v", err, context.DeadlineExceeded)
	}
}
