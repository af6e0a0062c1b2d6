package output

import (
	"os/exec"
	"strings"
	"testing"
)

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "''",
		"billing-7":             "billing-7",
		"a.b_c/d:e,f@g+h%":      "a.b_c/d:e,f@g+h%",
		"a b":                   "'a b'",
		"it's":                  `'it'\''s'`,
		"$HOME `id` \\ \"x\"":   "'$HOME `id` \\ \"x\"'",
		"~":                     "'~'",
		"a=b":                   "'a=b'",
		"a;b&c|d<e>f(g)*?[h]#!": "'a;b&c|d<e>f(g)*?[h]#!'",
		"\u65e5\u672c":          "'\u65e5\u672c'",
		"a\nb":                  `$'a\012b'`,
		"a\tb'c\\":              `$'a\011b\'c\\'`,
		"\x1b[31m9":             `$'\033[31m9'`,
		"\xff\xfe7":             `$'\377\3767'`,
		"\u202eabc":             `$'\342\200\256abc'`,
		"\u009b":                `$'\302\233'`,
		"\ufffd":                `$'\357\277\275'`,
	} {
		got, ok := ShellQuote(in)
		if !ok || got != want {
			t.Errorf("ShellQuote(%q) = %s, %v, want %s", in, got, ok, want)
		}
		if Escape(got) != got {
			t.Errorf("ShellQuote(%q) = %q, which cannot be shown as it is", in, got)
		}
	}
	if got, ok := ShellQuote("a\x00b"); ok {
		t.Errorf("ShellQuote of a NUL byte = %q", got)
	}
}

// Whatever is quoted comes out of a shell as it was.
func TestShellQuoteInShells(t *testing.T) {
	found := 0
	for _, shell := range []string{"bash", "zsh", "ksh"} {
		path, err := exec.LookPath(shell)
		if err != nil {
			continue
		}
		found++
		for _, in := range oddStrings() {
			word, ok := ShellQuote(in)
			if !ok {
				t.Fatalf("%q cannot be quoted", in)
			}
			out, err := exec.CommandContext(t.Context(), path, "-c", "printf '%s' "+word).Output()
			if err != nil || string(out) != in {
				t.Errorf("%s: %s comes out as %q, %v, want %q", shell, word, out, err, in)
			}
		}
	}
	if found == 0 {
		t.Skip("there is no shell that knows $'...'")
	}
}

// oddStrings are all bytes but NUL, each before a digit and a letter that an
// escape could swallow, and some of the worst characters.
func oddStrings() []string {
	var all strings.Builder
	for c := 1; c < 256; c++ {
		all.WriteString(string([]byte{byte(c), '7', 'a'}))
	}
	return []string{all.String(), "", " ", "'", "''", `\`, "-x", "!!", "a\nb\n", "\u202e\u2028\U000e0001", strings.Repeat("'\x01", 249)}
}

func FuzzShellQuote(f *testing.F) {
	for _, s := range oddStrings() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := ShellQuote(s)
		if ok == strings.Contains(s, "\x00") {
			t.Fatalf("ShellQuote(%q) = %q, %v", s, got, ok)
		}
		if ok && (got == "" || Escape(got) != got) {
			t.Errorf("ShellQuote(%q) = %q, which is nothing or cannot be shown", s, got)
		}
	})
}
