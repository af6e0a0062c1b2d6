package commands

import (
	"io"
	"strings"

	"github.com/kshare/kshare/completions"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// typing is a command line that is being typed, up to the cursor.
type typing struct {
	d    *Deps
	cmd  *cobra.Command
	args []string // the arguments before the word
	word string   // what there is of it; of a list what follows the last comma
}

// words says what a word can be completed to. The zero value is nothing: what it
// is, only whoever types can know.
type words struct {
	choices func(*typing) []completions.Choice
	// shell says that the shell itself completes files or directories, as
	// directive has it.
	shell      bool
	directive  cobra.ShellCompDirective
	extensions []string // of files; directories are offered too
}

func nothing() words { return words{} }

func oneOf(names ...string) words { return among(completions.Words(names...)...) }

func among(choices ...completions.Choice) words {
	return from(func(*typing) []completions.Choice { return choices })
}

// oneFrom is for choices that take a moment to make, when nobody may want them.
func oneFrom(choices func() []completions.Choice) words {
	return from(func(*typing) []completions.Choice { return choices() })
}

func from(choices func(*typing) []completions.Choice) words { return words{choices: choices} }

// files are those with one of the extensions; all if there is none.
func files(extensions ...string) words {
	if len(extensions) == 0 {
		return words{shell: true, directive: cobra.ShellCompDirectiveDefault}
	}
	return words{shell: true, directive: cobra.ShellCompDirectiveFilterFileExt, extensions: extensions}
}

func directories() words {
	return words{shell: true, directive: cobra.ShellCompDirectiveFilterDirs}
}

// arguments says what the arguments of a command can be completed to.
type arguments struct {
	each []words // one after the other
	more bool    // the last of them may be repeated
}

func (a arguments) at(n int) (words, bool) {
	switch {
	case n < len(a.each):
		return a.each[n], true
	case a.more:
		return a.each[len(a.each)-1], true
	}
	return words{}, false
}

// isCompletion reports whether args are what the scripts of the shells ask.
func isCompletion(args []string) bool {
	return len(args) > 0 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd)
}

// complete makes the tree one that completes a command line and does nothing
// else. Other runs of kshare need not pay for it.
func (t *tree) complete() {
	t.root.SetErr(io.Discard)
	t.root.InitDefaultHelpCmd() // else it comes after this
	flags, args := flagWords(), argumentWords()
	seen := make(map[*pflag.Flag]bool)
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		// What is wrong elsewhere in the line is told when it is run.
		cmd.FParseErrWhitelist.UnknownFlags = true
		path := commandPath(cmd)
		each := func(f *pflag.Flag) {
			if !seen[f] {
				seen[f] = true
				t.completeFlag(cmd, f, wordsOf(flags, path, f.Name))
			}
		}
		cmd.LocalFlags().VisitAll(each)
		cmd.ValidArgs, cmd.ValidArgsFunction = nil, t.completeArgs(args[path])
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(t.root)
}

// commandPath is the path of a command without the name of the program.
func commandPath(cmd *cobra.Command) string {
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	return path
}

// wordsOf returns what the values of a flag are completed to: what the table has
// for that of the command, else for flags of the name.
func wordsOf(table map[string]words, path, flag string) words {
	if w, ok := table[path+" --"+flag]; ok {
		return w
	}
	return table["--"+flag]
}

func (t *tree) completeFlag(cmd *cobra.Command, f *pflag.Flag, w words) {
	// As the help shows it, without the quotes around the name of the value.
	_, f.Usage = pflag.UnquoteUsage(f)
	f.Value = lenient{f.Value}
	complete := func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		y := &typing{d: t.d, cmd: cmd, args: args, word: word}
		if f.Value.Type() == "stringSlice" {
			return y.completeList(w, y.flagValues(f.Name))
		}
		return y.complete(w, y.flagValues(f.Name))
	}
	// The one error is that there is something already.
	_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
}

func (t *tree) completeArgs(a arguments) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		y := &typing{d: t.d, cmd: cmd, args: args, word: word}
		w, _ := a.at(len(args))
		var taken []string
		if a.more {
			taken = args
		}
		return y.complete(w, taken)
	}
}

// complete returns what the word can be, but for what is there already.
func (y *typing) complete(w words, taken []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch {
	case w.shell:
		return w.extensions, w.directive
	case w.choices == nil:
		return completions.Encode(nil)
	}
	return completions.Encode(completions.Filter(w.choices(y), y.word, taken))
}

// completeList is [typing.complete] for a list with commas.
func (y *typing) completeList(w words, taken []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	last := strings.LastIndexByte(y.word, ',') + 1
	before := y.word[:last]
	y.word = y.word[last:]
	if w.choices == nil {
		return y.complete(w, nil)
	}
	choices := completions.Filter(w.choices(y), y.word, append(taken, strings.Split(before, ",")...))
	out := choices[:0]
	for _, c := range choices {
		if !strings.ContainsAny(c.Word, `,"`) { // it would be another list
			c.Word = before + c.Word
			out = append(out, c)
		}
	}
	return completions.Encode(out)
}

// lenient is the value of a flag that takes what is wrong without a word, so that
// the rest of the line is completed all the same.
type lenient struct{ pflag.Value }

// Set keeps the value as it is where it cannot be s.
func (l lenient) Set(s string) error {
	_ = l.Value.Set(s)
	return nil
}

// flag returns the value of a flag that was given; "" if it was not.
func (y *typing) flag(name string) string {
	f := y.cmd.Flags().Lookup(name)
	if f == nil || !f.Changed {
		return ""
	}
	return f.Value.String()
}

// flagValues returns the values of a flag that may be repeated; none if it may
// not.
func (y *typing) flagValues(name string) []string {
	f := y.cmd.Flags().Lookup(name)
	if f == nil || !f.Changed {
		return nil
	}
	v := f.Value
	if l, ok := v.(lenient); ok {
		v = l.Value
	}
	if s, ok := v.(pflag.SliceValue); ok {
		return s.GetSlice()
	}
	return nil
}
