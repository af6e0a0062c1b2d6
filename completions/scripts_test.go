package completions

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrite(t *testing.T) {
	for _, shell := range append(Shells(), "tcsh") {
		var b strings.Builder
		err := Write(&b, &cobra.Command{Use: "tool"}, shell)
		if known := shell != "tcsh"; (err == nil) != known || strings.Contains(b.String(), "tool") != known {
			t.Errorf("Write(%s) = %v, script of %d bytes", shell, err, b.Len())
		}
	}
}

// macOS has bash 3.2, which fails on these.
func TestBashIsOldBash(t *testing.T) {
	for what, pattern := range map[string]string{
		"associative arrays":     `(declare|local|typeset) -[a-zA-Z]*A`,
		"references":             `(declare|local|typeset) -[a-zA-Z]*n\b`,
		"global declarations":    `(declare|typeset) -[a-zA-Z]*g`,
		"mapfile":                `\b(mapfile|readarray|coproc)\b`,
		"upper and lower case":   `\$\{[a-zA-Z_]+(\[[^]]*\])?(,|\^)`,
		"transformations":        `\$\{[^}]*@[A-Za-z]\}`,
		"indexes from the end":   `\[-[0-9]`,
		"lengths from the end":   `:[^:}]*: *-`,
		"elements by printf -v":  `printf -v "?[a-z]+\[`,
		"pipes of both streams":  `\|&|&>>`,
		"falling through":        `;;?&`,
		"whether a name is set":  `\[\[ -v `,
		"fractions of a second":  `read -t *[0-9]*\.`,
		"numbers of descriptors": `exec \{`,
		"ranges with a step":     `\{[0-9a-z]+\.\.[0-9a-z]+\.\.`,
		"escapes of code points": `\\[uU][0-9a-fA-F]{4}`,
		"the package":            `_(filedir|init_completion|get_comp_words_by_ref)`,
		"running what is typed":  `\beval\b`,
	} {
		re := regexp.MustCompile(pattern)
		for line := range strings.Lines(bash) {
			if !strings.HasPrefix(strings.TrimSpace(line), "#") && re.MatchString(line) {
				t.Errorf("%s: %s", what, line)
			}
		}
	}
}

// Nor does another script run what is typed. That of PowerShell is cobra's.
func TestNothingIsEvaluated(t *testing.T) {
	for name, script := range map[string]string{"zsh": zsh, "fish": fish} {
		if regexp.MustCompile(`\beval\b|\$\{\([A-Za-z@]*e`).MatchString(script) {
			t.Errorf("the script of %s evaluates something", name)
		}
	}
}

func TestFileName(t *testing.T) {
	for shell, want := range map[string]string{"bash": "tool.bash", "zsh": "tool.zsh", "powershell": "tool.ps1"} {
		if got := FileName("tool", shell); got != want {
			t.Errorf("FileName(%s) = %s, want %s", shell, got, want)
		}
	}
}
