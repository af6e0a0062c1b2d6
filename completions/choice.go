package completions

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Choice is something that a word can be completed to.
type Choice struct {
	Word  string
	About string // a few words for people; "" is none
	// Open says that the word goes on after this: a shell leaves no blank behind.
	Open bool
}

// Filter returns the choices that begin with prefix, in the same order, but for
// those that are among taken.
func Filter(choices []Choice, prefix string, taken []string) []Choice {
	var out []Choice
	for _, c := range choices {
		if strings.HasPrefix(c.Word, prefix) && !slices.Contains(taken, c.Word) {
			out = append(out, c)
		}
	}
	return out
}

// Sort sorts choices by word.
func Sort(choices []Choice) {
	slices.SortStableFunc(choices, func(a, b Choice) int { return cmp.Compare(a.Word, b.Word) })
}

// Words makes choices of words that need no explanation.
func Words(words ...string) []Choice {
	out := make([]Choice, 0, len(words))
	for _, w := range words {
		out = append(out, Choice{Word: w})
	}
	return out
}

// Encode writes choices as the scripts of the shells read them: one a line, so
// that a name which has a line feed, or begins or ends with a blank, cannot be
// among them. Files are never offered in their place, and the order stays.
func Encode(choices []Choice) ([]cobra.Completion, cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	var out []cobra.Completion
	open := 0
	for _, c := range choices {
		if !transportable(c.Word) {
			continue
		}
		if c.Open {
			open++
		}
		if about := oneLine(c.About); about != "" {
			out = append(out, cobra.CompletionWithDesc(c.Word, about))
		} else {
			out = append(out, c.Word)
		}
	}
	if open > 0 && open == len(out) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return out, directive
}

// transportable holds for what a shell gets as it is.
func transportable(word string) bool {
	return word != "" && utf8.ValidString(word) && strings.TrimSpace(word) == word &&
		!strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsPrint(r) }) &&
		!strings.HasPrefix(word, activeHelp)
}

// activeHelp is how cobra marks a line that is no choice.
const activeHelp = "_activeHelp_ "

// oneLine replaces what would do something to a terminal.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s))
}
