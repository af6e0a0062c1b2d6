package mdtest

import (
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	got := Parse([]byte("# Exit codes: `6`, and 7\n\nRun `kshare drain`\nas [told](b.md#c).\n\n<!-- varies: x -->\n```console\n$ kshare\n```\n\n```sh\nls\n```\n\n## Twice\n\n## Twice\n\n| a |\n| --- |\n| [x](y) `z` |\n"))
	want := &Page{
		Blocks:  []Block{{Line: 8, Lang: "console", Text: "$ kshare\n", Comment: "varies: x", Under: "Exit codes: 6, and 7"}, {Line: 12, Lang: "sh", Text: "ls\n", Under: "Exit codes: 6, and 7"}},
		Links:   []Link{{3, "b.md#c"}, {21, "y"}},
		Anchors: map[string]bool{"exit-codes-6-and-7": true, "twice": true, "twice-1": true},
		Inline:  []Span{{1, "6"}, {3, "kshare drain"}, {21, "z"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
