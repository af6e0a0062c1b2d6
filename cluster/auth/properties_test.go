package auth

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/kafkatest"
)

// propertiesCase is a file and what it says: keys and values in turn, the keys
// in the order in which they first appear.
type propertiesCase struct {
	name, file string
	want       []string // nil is an error
	notJava    bool     // java.util.Properties reads something else, on purpose
}

func propertiesCases() []propertiesCase {
	return []propertiesCase{
		{"empty file", "", []string{}, false},
		{"equals sign", "a=b\n", []string{"a", "b"}, false},
		{"colon", "a:b\n", []string{"a", "b"}, false},
		{"blank", "a b\n", []string{"a", "b"}, false},
		{"tab", "a\tb\n", []string{"a", "b"}, false},
		{"form feed", "a\fb\n", []string{"a", "b"}, false},
		{"blanks around the separator", "a \t = \f b\n", []string{"a", "b"}, false},
		{"one separator only", "a == b\n", []string{"a", "= b"}, false},
		{"colon after equals sign", "a=:b\n", []string{"a", ":b"}, false},
		{"blank, then a separator later", "a b=c\n", []string{"a", "b=c"}, false},
		{"blanks before the key", "  \t a=b\n", []string{"a", "b"}, false},
		{"blanks after the value stay", "a=b  \n", []string{"a", "b  "}, false},
		{"key alone", "a\n", []string{"a", ""}, false},
		{"key and separator", "a=\n", []string{"a", ""}, false},
		{"no key", "=b\n", []string{"", "b"}, false},
		{"no key, colon", " : b\n", []string{"", "b"}, false},
		{"no final newline", "a=b", []string{"a", "b"}, false},
		{"comments", "# a=b\n! c=d\n  # e=f\ng=h\n", []string{"g", "h"}, false},
		{"no comment after a value", "a=b # c\n", []string{"a", "b # c"}, false},
		{"comment that ends in a backslash", "# a \\\nb=c\n", []string{"b", "c"}, false},
		{"empty lines", "\n\n  \n\t\na=b\n\n", []string{"a", "b"}, false},
		{"the last one counts", "a=1\nb=2\na=3\n", []string{"a", "3", "b", "2"}, false},
		{"escapes", `a=\t\n\r\f\\\"\'\:\=\#\ \z` + "\n", []string{"a", "\t\n\r\f\\\"':=# z"}, false},
		{"escapes in the key", `a\ b\:c\=d\\=e` + "\n", []string{`a b:c=d\`, "e"}, false},
		{"unicode escape", `a=\u00e4\u20AC` + "\n", []string{"a", "\u00e4\u20ac"}, false},
		{"unicode escape of two halves", `a=\uD83D\ude00!` + "\n", []string{"a", "\U0001f600!"}, false},
		{"backslash before a unicode escape", `a=\\u0041\\\u0041` + "\n", []string{"a", `\u0041\A`}, false},
		{"malformed unicode escape", `a=\u00g0` + "\n", nil, false},
		{"short unicode escape", `a=\u00`, nil, false},
		{"ISO-8859-1", "a=\xe4\n", []string{"a", "\u00e4"}, false},
		{"UTF-8 is read as ISO-8859-1", "a=\xc3\xa4\n", []string{"a", "\u00c3\u00a4"}, false},
		{"continued value", "a=b\\\n   c\n", []string{"a", "bc"}, false},
		{"continued with a blank kept", "a=b \\\n   c\n", []string{"a", "b c"}, false},
		{"continued before the value", "a=\\\n  b\n", []string{"a", "b"}, false},
		{"continued before the separator", "a\\\n  =b\n", []string{"a", "b"}, false},
		{"continued after a blank", "a \\\n  = b\n", []string{"a", "b"}, false},
		{"continued key", "ab\\\n  cd=e\n", []string{"abcd", "e"}, false},
		{"continued over three lines", "a=1,\\\n  2,\\\n  3\nb=4\n", []string{"a", "1,2,3", "b", "4"}, false},
		{"continued by an empty line", "a=b\\\n\nc=d\n", []string{"a", "b", "c", "d"}, false},
		{"continued by what looks like a comment", "a=b\\\n# c\n", []string{"a", "b# c"}, false},
		{"a backslash alone, then a comment", "\\\n# a=b\nc=d\n", []string{"c", "d"}, false},
		{"a backslash alone, then an entry", "\\\na=b\n", []string{"a", "b"}, false},
		{"two backslashes do not continue", "a=b\\\\\nc=d\n", []string{"a", `b\`, "c", "d"}, false},
		{"three do", "a=b\\\\\\\nc=d\n", []string{"a", `b\c=d`}, false},
		{"a backslash ends the file", `a=b\`, []string{"a", "b"}, false},
		{"CRLF", "a=b\r\nc=d\r\n", []string{"a", "b", "c", "d"}, false},
		{"CRLF, continued", "a=b\\\r\n  c\r\nd=e\r\n", []string{"a", "bc", "d", "e"}, false},
		{"CRLF, continued before the separator", "a\\\r\n=b\r\n", []string{"a", "b"}, false},
		{"CR alone", "a=b\rc=d\r", []string{"a", "b", "c", "d"}, false},
		{"comment with CRLF", "# x\r\na=b\r\n", []string{"a", "b"}, false},
		{"no variables", "a=${HOME}\nb=${a}\n", []string{"a", "${HOME}", "b", "${a}"}, false},
		{"UTF-8 with its mark", "\xef\xbb\xbfa=\xc3\xa4\n", []string{"a", "\u00e4"}, true},
		{"mark and CRLF", "\xef\xbb\xbfa=b\\\r\n c\r\n", []string{"a", "bc"}, true},
		{"mark and a comment", "\xef\xbb\xbf# x\na=b\n", []string{"a", "b"}, true},
		{"mark before what is not UTF-8", "\xef\xbb\xbfa=\xe4\n", nil, true},
		{"UTF-16", "\xff\xfea\x00=\x00b\x00", nil, true},
		{"JAAS line", `sasl.jaas.config=org.x.M required username="a" password="p\"\;=:#! $w\\x";` + "\n", []string{"sasl.jaas.config", `org.x.M required username="a" password="p";=:#! $w\x";`}, false},
	}
}

func TestParseProperties(t *testing.T) {
	for _, c := range propertiesCases() {
		t.Run(c.name, func(t *testing.T) {
			got := []string{}
			props, err := ParseProperties([]byte(c.file))
			for _, p := range props {
				got = append(got, p.Key, p.Value)
			}
			if c.want == nil {
				if _, ok := errors.AsType[*ConfigError](err); !ok {
					t.Errorf("ParseProperties(%q) = %q, %v, want a *ConfigError", c.file, got, err)
				}
				return
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("ParseProperties(%q) = %q, %v, want %q", c.file, got, err, c.want)
			}
		})
	}
}

// Lines are those of a text editor, and what Java reads otherwise than people
// may think is marked.
func TestPropertyLines(t *testing.T) {
	props, err := ParseProperties([]byte("# x\r\n\r\na=1\\\r\n  2\r\n\r\nb=\xc3\xa4\r\nc=3\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Property{{"a", "12", 3, false}, {"b", "\u00c3\u00a4", 6, true}, {"c", "3", 7, false}}
	if !slices.Equal(props, want) {
		t.Errorf("ParseProperties = %+v, want %+v", props, want)
	}
}

// What is wrong with a file is told without its values.
func TestPropertiesErrorsHaveNoValues(t *testing.T) {
	for _, file := range []string{"a=hunter2\\u00zz", "hunter2\\u00zz=x", "a=1\nb=\\uhunter2"} {
		_, err := ParseProperties([]byte(file))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseProperties(%q) = %v, want an error without the value", file, err)
		}
	}
}

// javaProperties prints what java.util.Properties makes of each line of stdin,
// the hex digits of a file: "hexkey=hexvalue" of the characters. Half a character
// outside the basic plane is none in Go.
const javaProperties = `
import java.io.*;
import java.util.*;

public class Main {
    static String hex(String s) {
        StringBuilder b = new StringBuilder();
        s.codePoints().forEach(c -> b.append(String.format("%06x", c >= 0xd800 && c < 0xe000 ? 0xfffd : c)));
        return b.toString();
    }
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            Properties p = new Properties();
            try {
                p.load(new ByteArrayInputStream(HexFormat.of().parseHex(line)));
            } catch (IllegalArgumentException e) {
                System.out.println("error");
                continue;
            }
            System.out.println(String.join(" ", p.entrySet().stream().map(e -> hex((String) e.getKey()) + "=" + hex((String) e.getValue())).toList()));
        }
    }
}
`

// randomText makes a text of n characters of an alphabet.
func randomText(r *rand.Rand, alphabet []string, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

// ParseProperties reads what java.util.Properties reads: the table above, and
// many files that nobody would write.
func TestPropertiesAsJavaReadsThem(t *testing.T) {
	kafkatest.Need(t)
	var files []string
	for _, c := range propertiesCases() {
		if !c.notJava {
			files = append(files, c.file)
		}
	}
	table := len(files)
	r := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"a", "b", "=", ":", " ", "\t", "\f", "\n", "\r", "\r\n", `\`, `\`, "#", "!", `\u0041`, `\uD83D\uDE00`, "u", "n", "\xe4", "\x00", "$", "{"}
	for range 5000 {
		files = append(files, randomText(r, alphabet, 1+r.IntN(16)))
	}
	var stdin strings.Builder
	for _, f := range files {
		stdin.WriteString(hex.EncodeToString([]byte(f)) + "\n")
	}
	out := kafkatest.RunJava(t, kafkatest.Kafka44, javaProperties, []byte(stdin.String()))
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(files) {
		t.Fatalf("Java has read %d files of %d", len(lines), len(files))
	}
	for i, f := range files {
		got, want := propertyEntries(f), strings.Fields(lines[i])
		slices.Sort(want)
		if i >= table {
			// Java makes an entry without key and value of a backslash that is all
			// of the last line, if no CRLF ends it.
			got, want = withoutNoKey(got), withoutNoKey(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("ParseProperties(%q) = %s, Java has %s", f, got, want)
		}
	}
}

func withoutNoKey(entries []string) []string {
	return slices.DeleteFunc(entries, func(e string) bool { return strings.HasPrefix(e, "=") })
}

func propertyEntries(file string) []string {
	props, err := ParseProperties([]byte(file))
	if err != nil {
		return []string{"error"}
	}
	var entries []string
	for _, p := range props {
		entries = append(entries, hexRunes(p.Key)+"="+hexRunes(p.Value))
	}
	slices.Sort(entries)
	return entries
}

func hexRunes(s string) string {
	var b strings.Builder
	for _, r := range s {
		fmt.Fprintf(&b, "%06x", r)
	}
	return b.String()
}

func FuzzParseProperties(f *testing.F) {
	for _, c := range propertiesCases() {
		f.Add([]byte(c.file))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		props, err := ParseProperties(b)
		if err != nil {
			return
		}
		// With other ends of lines it is the same file.
		if !strings.ContainsAny(string(b), "\r") {
			again, err := ParseProperties([]byte(strings.ReplaceAll(string(b), "\n", "\r\n")))
			if err != nil || !slices.Equal(again, props) {
				t.Errorf("ParseProperties(%q) = %+v, with CRLF %+v, %v", b, props, again, err)
			}
		}
		if _, err := NewClientProperties(props, Override{}); err != nil {
			if _, ok := errors.AsType[*ConfigError](err); !ok {
				t.Errorf("NewClientProperties(%q): %T, want a *ConfigError", b, err)
			}
		}
	})
}
