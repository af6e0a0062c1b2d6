package completions

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

func TestFilter(t *testing.T) {
	all := Words("b", "ab", "a", "abc")
	if got, want := Filter(all, "a", []string{"ab", "x"}), Words("a", "abc"); !slices.Equal(got, want) {
		t.Errorf("Filter = %v, want %v", got, want)
	}
	Sort(all)
	if want := Words("a", "ab", "abc", "b"); !slices.Equal(all, want) {
		t.Errorf("Sort = %v, want %v", all, want)
	}
}

func TestEncode(t *testing.T) {
	const (
		words = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
		open  = words | cobra.ShellCompDirectiveNoSpace
	)
	for _, c := range []struct {
		name      string
		choices   []Choice
		want      []string
		directive cobra.ShellCompDirective
	}{
		{"nothing", nil, nil, words},
		{"order stays", []Choice{{Word: "10"}, {Word: "9", About: "nine"}}, []string{"10", "9\tnine"}, words},
		{"all go on", []Choice{{Word: "a:", Open: true}, {Word: "b:", Open: true}}, []string{"a:", "b:"}, open},
		{"one goes on", []Choice{{Word: "a"}, {Word: "b:", Open: true}}, []string{"a", "b:"}, words},
		{"all that is left goes on", []Choice{{Word: "a\nb"}, {Word: "b:", Open: true}}, []string{"b:"}, open},
		{"blanks, quotes, other alphabets", Words("my group", `"'$x`, "Gr\u00f6\u00dfe"), []string{"my group", `"'$x`, "Gr\u00f6\u00dfe"}, words},
		{"what a line cannot hold", Words("", "a\nb", "a\tb", " a", "a ", "a\x1b[2J", "\xff", "a\u0085b", "_activeHelp_ x"), nil, words},
		{"an explanation is one line", []Choice{{Word: "a", About: "one\ntwo\x1b[2J\t"}}, []string{"a\tone two [2J"}, words},
	} {
		got, directive := Encode(c.choices)
		if !slices.Equal(got, c.want) || directive != c.directive {
			t.Errorf("%s: Encode = %q, %d, want %q, %d", c.name, got, directive, c.want, c.directive)
		}
	}
}
