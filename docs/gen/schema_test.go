package main

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/inspect"
)

type colour int8

func (c colour) String() string { return "red" }

type absent struct {
	Gone string `json:"gone"`
}

type inner struct {
	N int16 `json:"n"`
}

type everything struct {
	*absent
	inner
	Text     string            `json:"text"`
	Maybe    *string           `json:"maybe"`
	Left     string            `json:"left,omitempty"`
	List     []inner           `json:"list"`
	Strings  []string          `json:"strings"`
	Map      map[string]int64  `json:"map"`
	Raw      []byte            `json:"raw"`
	ID       [16]byte          `json:"id"`
	At       time.Time         `json:"at"`
	Since    *time.Time        `json:"since"`
	Age      time.Duration     `json:"age"`
	Took     time.Duration     `json:"age_ms"`
	Colour   colour            `json:"colour"`
	Anything json.RawMessage   `json:"anything"`
	Verdict  inspect.Verdict   `json:"verdict"`
	MaybeV   *inspect.Verdict  `json:"maybe_verdict"`
	Count    *int64            `json:"count"`
	Nested   *inner            `json:"nested"`
	Hidden   map[[2]int]string `json:"-"`
}

// Schemas follow the rules of package output, which are not those of
// encoding/json.
func TestSchemaRules(t *testing.T) {
	g := &schemaMaker{sources: newSources(root)}
	s, err := g.schema(reflect.TypeFor[everything]())
	if err != nil {
		t.Fatal(err)
	}
	const (
		text      = `{"$ref":"#/$defs/text"}`
		maybeText = `{"anyOf":[{"$ref":"#/$defs/text"},{"type":"null"}]}`
		n         = `{"type":"integer","minimum":-32768,"maximum":32767}`
		innerType = `{"type":"object","properties":{"n":` + n + `},"required":["n"]}`
		verdicts  = `"exact","orphan","likely","possible"`
	)
	want := map[string]string{
		"gone": text, "n": n, "text": text, "maybe": maybeText, "left": text,
		"list":          `{"type":"array","items":` + innerType + `}`,
		"strings":       `{"type":"array","items":` + text + `}`,
		"map":           `{"type":"object","additionalProperties":{"type":"integer"}}`,
		"raw":           maybeText,
		"id":            text,
		"at":            `{"type":["string","null"],"format":"date-time"}`,
		"since":         `{"type":["string","null"],"format":"date-time"}`,
		"age":           `{"type":"string"}`,
		"age_ms":        `{"type":"integer"}`,
		"colour":        `{"type":"string"}`,
		"anything":      `true`,
		"verdict":       `{"enum":[` + verdicts + `]}`,
		"maybe_verdict": `{"enum":[` + verdicts + `,null]}`,
		"count":         `{"type":["null","integer"]}`,
		"nested":        strings.Replace(innerType, `"object"`, `["null","object"]`, 1),
	}
	for name, w := range want {
		p := s.Properties[name]
		if p == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		if got, err := json.Marshal(p); err != nil || string(got) != w {
			t.Errorf("%s is %s, %v, want %s", name, got, err, w)
		}
	}
	if got := slices.Sorted(maps.Keys(s.Properties)); len(got) != len(want) {
		t.Errorf("properties %q", got)
	}
	optional := map[string]bool{"gone": true, "left": true} // of a nil struct, and empty
	for name := range want {
		if slices.Contains(s.Required, name) == optional[name] {
			t.Errorf("%s: required is %v", name, !optional[name])
		}
	}
	if s.AdditionalProperties != nil {
		t.Error("a reader may not take keys that were added")
	}
}

// Comments of the sources become descriptions.
func TestSchemaDescriptions(t *testing.T) {
	s := newSources(root)
	for _, c := range []struct {
		t           reflect.Type
		field, want string
	}{
		{reflect.TypeFor[inspect.PendingRow](), "LastOffset", "inclusive"},
		{reflect.TypeFor[inspect.PendingRow](), "Deadline", "null also when it never ends by itself"},
		{reflect.TypeFor[inspect.PendingReport](), "", "PendingReport says which records are TX_PENDING."},
		{reflect.TypeFor[inspect.PendingRow](), "GroupID", ""},
		{reflect.TypeFor[time.Time](), "", ""},
	} {
		if got := s.comment(c.t, c.field); got != c.want {
			t.Errorf("comment of %s %s = %q, want %q", c.t, c.field, got, c.want)
		}
	}
	if got := inJSON("It is nil at [StuckAfter]\n  and [cluster.Verdict], not nilable."); got != "It is null at StuckAfter and cluster.Verdict, not nilable." {
		t.Errorf("inJSON = %q", got)
	}
}

// A line on stderr has no envelope, and says its kind.
func TestSchemaOfLine(t *testing.T) {
	for _, d := range commands.Documents() {
		if d.Line == nil {
			continue
		}
		s, err := (&schemaMaker{sources: newSources(root)}).document(d)
		if err != nil {
			t.Fatal(err)
		}
		if s.Properties["version"] != nil || *s.Properties["kind"].Const != any(d.Kind) {
			t.Errorf("%s has properties %v", d.Kind, s.PropertyOrder)
		}
	}
}
