package output

import (
	"bytes"
	"strings"
	"testing"
)

func sectionsView() View {
	t := NewTable("GROUP", "STATE")
	t.Row("g", "Stable")
	w := NewTable("GROUP", "STATE", "EPOCH")
	w.Row("g", "Stable", 3)
	strip := &Strip{
		First: "1200", Last: "1239",
		Legend: []Legend{{Mark{'P', StyleWarn}, "TX_PENDING"}, {Mark{'K', StyleGood}, "ACKNOWLEDGED\x1b"}, {Mark{'.', StyleNone}, "nothing"}},
	}
	for _, l := range []byte("PPPKKp......") {
		strip.Marks = append(strip.Marks, Mark{l, map[byte]Style{'P': StyleWarn, 'p': StyleWarn, 'K': StyleGood}[l]})
	}
	return View{
		Kind: "test.sections", Version: 1, Items: []int{1}, Table: NewTable("UNUSED"), Wide: w, Text: "the end\n",
		Sections: []Section{{Table: t, Wide: w}, {Table: NewTable("EMPTY")}, {Strip: strip, Text: "half\x1b\nof it"}, {Table: t}},
	}
}

func TestSectionsGolden(t *testing.T) {
	var all bytes.Buffer
	for _, o := range []Options{{Format: FormatTable}, {Format: FormatTable, Color: true, Width: 80}, {Format: FormatWide}, {Format: FormatCSV}} {
		var b bytes.Buffer
		if err := Write(&b, sectionsView(), o); err != nil {
			t.Fatal(err)
		}
		if !o.Color && strings.ContainsRune(b.String(), 0x1b) {
			t.Errorf("%+v: a terminal sequence got through: %q", o, b.String())
		}
		all.WriteString("-- " + string(o.Format) + " --\n")
		all.Write(b.Bytes())
	}
	golden(t, "sections", all.Bytes())
}

// The ends stand where they belong, also over a strip that is shorter than they.
func TestStripEnds(t *testing.T) {
	for _, c := range []struct {
		first, last string
		marks       int
		want        string
	}{
		{"0", "9", 10, "0        9"},
		{"0", "0", 1, "0"},
		{"100", "101", 2, "100 101"},
		{"", "", 0, ""},
	} {
		var b bytes.Buffer
		(&Strip{First: c.first, Last: c.last, Marks: make([]Mark, c.marks)}).render(&b, Options{})
		if got, _, _ := strings.Cut(b.String(), "\n"); got != c.want {
			t.Errorf("ends of %s to %s over %d = %q, want %q", c.first, c.last, c.marks, got, c.want)
		}
	}
}
