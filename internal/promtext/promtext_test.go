package promtext

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func all([]byte) bool { return true }

// parse returns what Parse gives of a page.
func parse(page string, want func([]byte) bool) ([]Sample, error) {
	var got []Sample
	err := Parse(strings.NewReader(page), want, func(s Sample) { got = append(got, s) })
	return got, err
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		page string
		want []Sample
	}{
		"nothing":                   {"", nil},
		"comments and empty lines":  {"# HELP a b\n# TYPE a gauge\n\n#\n  # x\n", nil},
		"without labels":            {"a 1\nb_total -2.5e3\n", []Sample{{Name: "a", Value: 1}, {Name: "b_total", Value: -2500}}},
		"last line without an end":  {"a 1", []Sample{{Name: "a", Value: 1}}},
		"empty set of labels":       {"a{} 1\n", []Sample{{Name: "a", Value: 1}}},
		"labels":                    {`a{x="1",y="a b"} 2` + "\n", []Sample{{"a", []Label{{"x", "1"}, {"y", "a b"}}, 2}}},
		"comma at the end":          {`a{x="1",} 2`, []Sample{{"a", []Label{{"x", "1"}}, 2}}},
		"blanks":                    {"\ta { x = \"1\" , y=\"\" }\t2  ", []Sample{{"a", []Label{{"x", "1"}, {"y", ""}}, 2}}},
		"escapes":                   {`a{x="\\n\"\n",y="\\"} 1`, []Sample{{"a", []Label{{"x", "\\n\"\n"}, {"y", `\`}}, 1}}},
		"braces in a value":         {`a{x="}{,=# 1"} 1`, []Sample{{"a", []Label{{"x", "}{,=# 1"}}, 1}}},
		"unicode":                   {`a{x="Grüße"} 1`, []Sample{{"a", []Label{{"x", "Grüße"}}, 1}}},
		"timestamp":                 {"a 1 1395066363000\na 2 -5\n", []Sample{{Name: "a", Value: 1}, {Name: "a", Value: 2}}},
		"OpenMetrics":               {"a_total 1.0 1.5 # {trace_id=\"x\"} 0.5\n# EOF\n", []Sample{{Name: "a_total", Value: 1}}},
		"infinities":                {"a +Inf\nb -Inf\n", []Sample{{Name: "a", Value: math.Inf(1)}, {Name: "b", Value: math.Inf(-1)}}},
		"quoted name":               {`{"a.b",x="1"} 2`, []Sample{{"a.b", []Label{{"x", "1"}}, 2}}},
		"quoted name of a label":    {`a{"x.y"="1"} 2`, []Sample{{"a", []Label{{"x.y", "1"}}, 2}}},
		"line feeds of Windows":     {"a 1\r\n", []Sample{{Name: "a", Value: 1}}},
		"longer than the buffer":    {`a{x="` + strings.Repeat("y", 200_000) + `"} 1` + "\nb 2\n", []Sample{{"a", []Label{{"x", strings.Repeat("y", 200_000)}}, 1}, {Name: "b", Value: 2}}},
		"a colon, as rules name it": {"job:a:sum 1\n", []Sample{{Name: "job:a:sum", Value: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(c.page, all)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("Parse(%.100q) = %.200v, want %.200v", c.page, got, c.want)
			}
		})
	}
	got, err := parse("a NaN\n", all)
	if err != nil || len(got) != 1 || !math.IsNaN(got[0].Value) {
		t.Errorf("NaN is read as %v, %v", got, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for page, line := range map[string]int{
		"<html>\n":              1,
		"{\n":                   1,
		`{"error":"not found"}`: 1,
		"a 1\nb\n":              2,
		"a 1\n\n# x\na x\n":     4,
		"hello world\n":         1,
		"a 1 2 3\n":             1,
		"a 1 x\n":               1,
		"a 0x1p4\n":             1,
		"a 1_000\n":             1,
		`a{x="1} 1`:             1,
		`a{x="1"`:               1,
		`a{x=1} 1`:              1,
		`a{x} 1`:                1,
		`a{x="1" y="2"} 1`:      1,
		`a{x="\q"} 1`:           1,
		`a{x="\`:                1,
		`a{"b"} 1`:              1,
		`{} 1`:                  1,
		`{x="1"} 1`:             1,
		"a{x=\"\xff\"} 1":       1,
		`a{x:y="1"} 1`:          1,
		"a 1\na{x=\"" + strings.Repeat("y", 2<<20): 2,
	} {
		got, err := parse(page, all)
		bad, ok := errors.AsType[*SyntaxError](err)
		if !ok || bad.Line != line {
			t.Errorf("Parse(%.60q) = %v, %v, want a syntax error of line %d", page, got, err, line)
		}
	}
}

// What is not wanted is not looked into, but it has to look like a sample.
func TestParseWanted(t *testing.T) {
	want := func(name []byte) bool { return bytes.HasPrefix(name, []byte("k")) }
	got, err := parse("a{broken\nka{x=\"1\"} 2\nb 3\n{\"kb\"} 4\n{\"c\"} 5\n", want)
	if err != nil || !reflect.DeepEqual(got, []Sample{{"ka", []Label{{"x", "1"}}, 2}, {Name: "kb", Value: 4}}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parse("not found\n", want); err == nil {
		t.Error("a sentence passes for a metric")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestErrorsOfTheStream(t *testing.T) {
	broken := errors.New("broken")
	if err := Parse(failing{broken}, all, func(Sample) {}); !errors.Is(err, broken) {
		t.Errorf("Parse: %v", err)
	}
	if err := Write(failing{broken}, []Family{{Name: "a"}}); !errors.Is(err, broken) {
		t.Errorf("Write: %v", err)
	}
}

func TestWrite(t *testing.T) {
	families := []Family{
		{Name: "a", Help: "one\\\ntwo", Samples: []Sample{{Labels: []Label{{"x", "\\ \" \n"}, {"y", "\xff"}}, Value: 1.5}, {Value: 1e21}}},
		{Name: "b", Help: "", Samples: []Sample{{Value: math.Inf(-1)}}},
		{Name: "c", Help: "without samples", Type: Counter},
	}
	var b bytes.Buffer
	if err := Write(&b, families); err != nil {
		t.Fatal(err)
	}
	want := `# HELP a one\\\ntwo
# TYPE a untyped
a{x="\\ \" \n",y="` + "\ufffd" + `"} 1.5
a 1e+21
# HELP b 
# TYPE b untyped
b -Inf
# HELP c without samples
# TYPE c counter
`
	if b.String() != want {
		t.Errorf("wrote\n%s\nwant\n%s", b.String(), want)
	}
	read, err := reference(b.String())
	if err != nil || len(read) != 3 || len(read[0].Labels) != 0 || read[1].Labels[0] != (Label{"x", "\\ \" \n"}) {
		t.Errorf("the reference parser reads %v, %v", read, err)
	}
}

// reference reads a page with the parser of Prometheus's own library, which in
// v0.67.5 panics on "{}".
func reference(page string) (_ []Sample, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		return nil, err
	}
	var out []Sample
	for name, f := range families {
		for _, m := range f.Metric {
			if f.GetType() != dto.MetricType_UNTYPED {
				return nil, errors.New("not a plain sample")
			}
			s := Sample{Name: name, Value: m.GetUntyped().GetValue()}
			for _, l := range m.Label {
				s.Labels = append(s.Labels, Label{l.GetName(), l.GetValue()})
			}
			out = append(out, s)
		}
	}
	sortSamples(out)
	return out, nil
}

func sortSamples(s []Sample) {
	slices.SortStableFunc(s, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), slices.CompareFunc(a.Labels, b.Labels, func(a, b Label) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
		}), cmp.Compare(math.Float64bits(a.Value), math.Float64bits(b.Value)))
	})
}

// FuzzParse holds that nothing panics, and that every page that Prometheus's own
// parser takes is read as it reads it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"a 1\n", `kafka_server_ShareGroupMetrics_Value{name="TxnPendingRecordsCount"} 0.0` + "\n",
		"a{x=\"\\\\\\\"\\n\"} NaN 5\n", "{\"a.b\",\"c.d\"=\"e\"} +Inf\n", "a{,} 1", "a{x=\"1\",} 2\n# HELP a b\n", "a{} 1\nA 2\n", "{A\"\"}0\n", "A\"b\" 1\n", "\"0\"0\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, page string) {
		got, err := parse(page, all)
		want, rerr := reference(page)
		if rerr != nil {
			return // it is stricter: about names that come twice, and times
		}
		if errors.Is(err, errNameless) {
			return // it takes "{} 1" for the metric of the line before
		}
		if errors.Is(err, errGlued) {
			return // it takes a"b" for ab, and "a" without braces
		}
		if err != nil {
			t.Fatalf("%q: %v, want %v", page, err, want)
		}
		sortSamples(got)
		if !slices.EqualFunc(got, want, equalSamples) {
			t.Fatalf("%q: %v, want %v", page, got, want)
		}
	})
}

func equalSamples(a, b Sample) bool {
	return a.Name == b.Name && slices.Equal(a.Labels, b.Labels) && math.Float64bits(a.Value) == math.Float64bits(b.Value)
}
