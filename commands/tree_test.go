package commands

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// testTree returns the command tree of a process that has nothing.
func testTree(t *testing.T) *cobra.Command {
	t.Helper()
	d := &Deps{
		In: strings.NewReader(""), Out: &strings.Builder{}, ErrOut: &strings.Builder{},
		Getenv: func(string) string { return "" },
		Now:    func() time.Time { return time.Time{} },
		flags:  &globalFlags{},
	}
	return newTree(d).root
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

// Every command makes the whole tree before it does anything, so what the tree
// allocates is in front of each of them: 2,028 times when this was written.
func TestTreeIsCheap(t *testing.T) {
	const most = 2500
	if n := testing.AllocsPerRun(3, func() { testTree(t) }); n > most {
		t.Errorf("the command tree takes %.0f allocations, at most %d are allowed: see what a new flag or command does when it is made", n, most)
	}
}

// useLine is the grammar of a Use line: <required>, [optional] and {one | of}
// arguments, "..." for what may be repeated, and flags that are required.
var useLine = regexp.MustCompile(`^[a-z][a-z0-9-]*( --[a-z-]+ <[a-z-]+>| <[a-z-]+>(\.\.\.)?| \[<[a-z-]+>(\.\.\.)?\]| \{[a-z]+( \| [a-z]+)+\})*$`)

func TestEveryCommand(t *testing.T) {
	root := testTree(t)
	walk(root, func(cmd *cobra.Command) {
		t.Run(strings.ReplaceAll(cmd.CommandPath(), " ", "_"), func(t *testing.T) {
			if !useLine.MatchString(cmd.Use) {
				t.Errorf("Use %q is not in the grammar of use lines", cmd.Use)
			}
			for what, s := range map[string]string{"Short": cmd.Short, "Long": cmd.Long} {
				if what == "Long" && s == "" && cmd.Name() == "help" {
					continue
				}
				if s == "" || s[:1] != strings.ToUpper(s[:1]) {
					t.Errorf("%s %q does not start with a capital", what, s)
				}
			}
			if strings.HasSuffix(cmd.Short, ".") {
				t.Errorf("Short %q ends with a full stop", cmd.Short)
			}
			for line := range strings.Lines(cmd.Long) {
				if len(strings.TrimRight(line, "\n")) > 80 {
					t.Errorf("line of Long is wider than 80: %q", line)
				}
			}
			checkFlags(t, cmd)
			if cmd.IsAdditionalHelpTopicCommand() {
				return
			}
			if cmd.Example == "" {
				t.Error("no example")
			}
			if cmd.RunE == nil || cmd.Run != nil {
				t.Error("RunE must be set, and Run must not")
			}
			checkHelp(t, cmd)
		})
	})
}

func checkFlags(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	names := map[string]bool{}
	shorts := map[string]string{}
	check := func(f *pflag.Flag) {
		if names[f.Name] {
			t.Errorf("flag --%s shadows another", f.Name)
		}
		names[f.Name] = true
		if f.Usage == "" || strings.HasSuffix(f.Usage, ".") || f.Name != "help" && strings.ToLower(f.Usage[:1]) != f.Usage[:1] {
			t.Errorf("flag --%s: usage %q must be lower case without full stop", f.Name, f.Usage)
		}
		if f.Shorthand != "" {
			if other := shorts[f.Shorthand]; other != "" {
				t.Errorf("-%s is --%s and --%s", f.Shorthand, f.Name, other)
			}
			shorts[f.Shorthand] = f.Name
		}
	}
	cmd.LocalFlags().VisitAll(check)
	cmd.InheritedFlags().VisitAll(check)
}

func checkHelp(t *testing.T, cmd *cobra.Command) {
	t.Helper()
	help := helpText(cmd)
	if cmd.HasSubCommands() {
		return
	}
	if !strings.Contains(help, "\nExit status:\n") {
		t.Errorf("help lists no exit codes:\n%s", help)
	}
	known := ExitCodes()
	for _, c := range exitCodesOf(cmd) {
		if !slices.ContainsFunc(known, func(k ExitCode) bool { return k.Code == c }) {
			t.Errorf("exit code %d is not in the table", c)
		}
	}
	for line := range strings.Lines(help) {
		if strings.TrimRight(line, " \n") != strings.TrimRight(line, "\n") {
			t.Errorf("help has blanks at the end of line %q", line)
		}
	}
}

// Every line of an example that runs kshare names a command and flags that exist.
func TestExamplesParse(t *testing.T) {
	walk(testTree(t), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			_, args, ok := strings.Cut(line, "kshare ")
			if !ok {
				continue
			}
			args, _, _ = strings.Cut(args, " > ")
			args, _, _ = strings.Cut(args, " | ")
			words := splitWords(args)
			root := testTree(t)
			found, rest, err := root.Find(words)
			if err != nil || found == root && !strings.HasPrefix(words[0], "-") {
				t.Errorf("%s: example %q names no command: %v", cmd.CommandPath(), line, err)
				continue
			}
			if err := found.ParseFlags(rest); err != nil {
				t.Errorf("%s: example %q: %v", cmd.CommandPath(), line, err)
			}
			if err := found.ValidateArgs(found.Flags().Args()); err != nil {
				t.Errorf("%s: example %q: %v", cmd.CommandPath(), line, err)
			}
		}
	})
}

// splitWords splits as a shell does, as far as examples need it: single quotes.
func splitWords(s string) []string {
	var words []string
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			words[len(words)-1] += part
			continue
		}
		fields := strings.Fields(part)
		words = append(words, fields...)
		if strings.HasSuffix(part, " ") {
			words = append(words, "")
		}
	}
	return slices.DeleteFunc(words, func(w string) bool { return w == "" })
}
