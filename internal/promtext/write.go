package promtext

import (
	"bufio"
	"cmp"
	"io"
	"strconv"
	"strings"
)

// ContentType is the media type of what [Write] writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Family is the samples of one name.
type Family struct {
	Name    string
	Help    string
	Type    string   // [Counter], [Gauge]; "" is untyped
	Samples []Sample // their names are not looked at
}

// What [Family.Type] may be. A JMX exporter without rules has everything untyped.
const (
	Counter = "counter"
	Gauge   = "gauge"
)

// Write writes families in the order given. It returns what w does. Names must be
// valid.
func Write(w io.Writer, families []Family) error {
	b := bufio.NewWriterSize(w, 32<<10)
	// Not variables of the package: those would be made at every start.
	inHelp := strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	inLabel := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	for _, f := range families {
		_, _ = b.WriteString("# HELP " + f.Name + " " + inHelp.Replace(f.Help) + "\n# TYPE " + f.Name + " " + cmp.Or(f.Type, "untyped") + "\n")
		for _, s := range f.Samples {
			writeSample(b, inLabel, f.Name, s)
		}
	}
	return b.Flush() // which tells of every error before
}

func writeSample(b *bufio.Writer, inLabel *strings.Replacer, name string, s Sample) {
	_, _ = b.WriteString(name)
	for i, l := range s.Labels {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		_, _ = b.WriteString(sep + l.Name + `="`)
		_, _ = inLabel.WriteString(b, strings.ToValidUTF8(l.Value, "\ufffd"))
		_ = b.WriteByte('"')
	}
	if len(s.Labels) > 0 {
		_ = b.WriteByte('}')
	}
	_ = b.WriteByte(' ')
	_, _ = b.Write(strconv.AppendFloat(b.AvailableBuffer(), s.Value, 'g', -1, 64))
	_ = b.WriteByte('\n')
}
