package auth

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/kafkatest"
)

// jaasCase is a value of sasl.jaas.config and its options; nil is an error.
type jaasCase struct {
	name, value string
	want        map[string]string
}

func jaasCases() []jaasCase {
	password := func(p string) map[string]string { return map[string]string{"password": p} }
	return []jaasCase{
		{"plain", `M required username="alice" password="secret";`, map[string]string{"username": "alice", "password": "secret"}},
		{"no options", `M required;`, map[string]string{}},
		{"flag in another case", `M Required password="x";`, password("x")},
		{"optional", `M optional password="x";`, password("x")},
		{"single quotes", `M required password='a"b';`, password(`a"b`)},
		{"apostrophe in double quotes", `M required password="a'b";`, password("a'b")},
		{"no quotes", `M required password=abc123;`, password("abc123")},
		{"no quotes, characters of names", `M required password=a_$-.1$;`, password("a_$-.1$")},
		{"number without quotes", `M required password=0123;`, nil},
		{"no quotes, starts with a digit", `M required password=1a;`, nil},
		{"no quotes, special characters", `M required password=a!b;`, nil},
		{"backslash without quotes", `M required password=a\b;`, nil},
		{"blanks everywhere", " \tM   required\n password \t= \r\n \"x\"\n ;\n", password("x")},
		{"escaped quote", `M required password="a\"b";`, password(`a"b`)},
		{"escaped backslash", `M required password="a\\b";`, password(`a\b`)},
		{"escaped apostrophe", `M required password='a\'b';`, password("a'b")},
		{"needless escape", `M required password="a\xb\-\;";`, password("axb-;")},
		{"control escapes", `M required password="\a\b\f\n\r\t\v";`, password("\a\b\f\n\r\t\v")},
		{"octal escapes", `M required password="\101\12\0\377\400x\7";`, password("A\n\x00\u00ff 0x\x07")},
		{"semicolon", `M required password="a;b";`, password("a;b")},
		{"equals sign", `M required password="a=b=";`, password("a=b=")},
		{"blank in quotes", `M required password=" a b ";`, password(" a b ")},
		{"dollar sign", `M required password="$a${b}$";`, password("$a${b}$")},
		{"slash in quotes", `M required password="a/b//c/*d*/";`, password("a/b//c/*d*/")},
		{"not ASCII", "M required password=\"\u00e4\u20ac\U0001f600\";", password("\u00e4\u20ac\U0001f600")},
		{"not ASCII, no quotes", "M required password=\u00e4\u20ac;", password("\u00e4\u20ac")},
		{"empty value", `M required password="";`, password("")},
		{"the last one counts", `M required password="a" password="b";`, password("b")},
		{"key in quotes", `M required "password"="a";`, password("a")},
		{"comments", "// x\nM /* y ; */ required # password=\"x\";", nil},
		{"comments between", "/* a */ M required // b\n password=\"x\" /* c */ ; // d", password("x")},
		{"one slash is a comment", "M required password=\"x\" / y\n;", password("x")},
		{"no semicolon", `M required password="x"`, nil},
		{"semicolon in no quotes ends", `M required password=a;b;`, nil},
		{"no flag", `M password="x";`, nil},
		{"nothing", ``, nil},
		{"blanks", ` `, nil},
		{"module alone", `M`, nil},
		{"two modules", `M required; N required;`, nil},
		{"no value", `M required password;`, nil},
		{"no value after the sign", `M required password=;`, nil},
		{"quote that does not close", `M required password="x;`, nil},
		{"quote closed by the end of the line", "M required password=\"x\n;", password("x")},
		{"equals sign without quotes", `M required password=a=b;`, nil},
		{"blank without quotes", `M required password=a b;`, nil},
	}
}

func TestParseJAAS(t *testing.T) {
	for _, c := range jaasCases() {
		t.Run(c.name, func(t *testing.T) {
			m, err := parseJAAS(c.value)
			if c.want == nil {
				if e, ok := errors.AsType[*ConfigError](err); !ok || e.Key != jaasKey {
					t.Errorf("parseJAAS(%q) = %v, %v, want a *ConfigError", c.value, m.options, err)
				}
				return
			}
			if err != nil || m.class != "M" || !maps.Equal(m.options, c.want) {
				t.Errorf("parseJAAS(%q) = %q %q, %v, want M %q", c.value, m.class, m.options, err, c.want)
			}
		})
	}
}

func TestJAASErrorsHaveNoValues(t *testing.T) {
	for _, value := range []string{
		`M required password=hunter2`, `M required password=x hunter2;`, `M required password=hunter2=3;`,
		`M required password="a"hunter2";`, `M hunter2 required;`, `=hunter2`, `M required password=a;hunter2;`,
	} {
		_, err := parseJAAS(value)
		e, ok := errors.AsType[*ConfigError](err)
		if !ok || strings.Contains(e.Error()+e.Hint(), "hunter2") {
			t.Errorf("parseJAAS(%q) = %v (%v), want an error without values", value, err, e)
		}
	}
}

// kafkaJAAS prints what Kafka makes of each line of stdin, the hex digits of a
// value of sasl.jaas.config: the module and its options.
const kafkaJAAS = `
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

public class Main {
    static String hex(String s) {
        return HexFormat.of().formatHex(s.getBytes(StandardCharsets.UTF_8));
    }
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            String value = new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8);
            try {
                var entry = JaasContext.loadClientContext(Map.of("sasl.jaas.config", new Password(value))).configurationEntries().get(0);
                if (entry.getOptions().containsKey(null)) throw new IllegalArgumentException("an option has no name");
                StringBuilder b = new StringBuilder(hex(entry.getLoginModuleName()));
                entry.getOptions().forEach((k, v) -> b.append(" " + hex(k) + "=" + hex((String) v)));
                System.out.println(b);
            } catch (RuntimeException e) {
                System.out.println("error");
            }
        }
    }
}
`

// parseJAAS reads what Kafka reads: the table above, and many values that nobody
// would write.
func TestJAASAsKafkaReadsIt(t *testing.T) {
	kafkatest.Need(t)
	var values []string
	for _, c := range jaasCases() {
		values = append(values, c.value)
	}
	r := rand.New(rand.NewPCG(3, 4))
	alphabet := []string{"a", "b", "7", "0", "=", ";", " ", "\t", "\n", "\r", `\`, `\`, `"`, `"`, `'`, "/", "*", "#", "\u00e4", "\u0080", "\u0085", "\u20ac", "k=", `k="v"`, "\x01"}
	for range 5000 {
		values = append(values, "M required "+randomText(r, alphabet, r.IntN(12))+";")
	}
	for range 1000 {
		values = append(values, randomText(r, append(alphabet, "M required"), r.IntN(12)))
	}
	var stdin strings.Builder
	for _, v := range values {
		stdin.WriteString(hex.EncodeToString([]byte(v)) + "\n")
	}
	out := kafkatest.RunJava(t, kafkatest.Kafka44, kafkaJAAS, []byte(stdin.String()))
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(values) {
		t.Fatalf("Kafka has read %d values of %d", len(lines), len(values))
	}
	for i, v := range values {
		want := strings.Fields(lines[i])
		slices.Sort(want)
		if got := jaasLine(v); !slices.Equal(got, want) {
			t.Errorf("parseJAAS(%q) = %s, Kafka has %s", v, got, want)
		}
	}
}

func jaasLine(value string) []string {
	m, err := parseJAAS(value)
	if err != nil {
		return []string{"error"}
	}
	out := []string{hex.EncodeToString([]byte(m.class))}
	for k, v := range m.options {
		out = append(out, fmt.Sprintf("%x=%x", k, v))
	}
	slices.Sort(out)
	return out
}

func FuzzParseJAAS(f *testing.F) {
	for _, c := range jaasCases() {
		f.Add(c.value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		m, err := parseJAAS(value)
		if err != nil {
			if _, ok := errors.AsType[*ConfigError](err); !ok {
				t.Errorf("parseJAAS(%q): %T, want a *ConfigError", value, err)
			}
			return
		}
		// What a value is quoted to, it is read from.
		quoted := `M required`
		for k, v := range m.options {
			quoted += fmt.Sprintf(" %s=%s", quoteJAAS(k), quoteJAAS(v))
		}
		again, err := parseJAAS(quoted + ";")
		if err != nil || !maps.Equal(again.options, m.options) {
			t.Errorf("parseJAAS(%q) = %q, %v, want %q", quoted+";", again.options, err, m.options)
		}
	})
}

// quoteJAAS quotes so that Kafka reads s.
func quoteJAAS(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`).Replace(s) + `"`
}
