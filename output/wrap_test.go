package output

import (
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

func TestWrap(t *testing.T) {
	const hint = "the broker's certificate is no good; 'kshare doctor -b host:9092' says why, and ('kshare help settings')."
	for _, c := range []struct {
		name, text   string
		width, taken int
		want         string
	}{
		{"no terminal", hint, 0, 14, hint},
		{"wide enough", hint, 200, 14, hint},
		{"exactly", "aaa bbb ccc ddd eee", 20, 1, "aaa bbb ccc ddd eee"},
		{"one less", "aaa bbb ccc ddd eeee", 20, 1, "aaa bbb ccc ddd\n  eeee"},
		{"commands are whole", hint, 60, 14, "the broker's certificate is no good;\n  'kshare doctor -b host:9092' says why, and\n  ('kshare help settings')."},
		{"a long word", "see /" + strings.Repeat("x", 40) + " for more of it", 30, 14, "see /" + strings.Repeat("x", 40) + "\n  for more of it"},
		{"a quote that does not end", "say 'kshare doctor and all that follows", 20, 6, "say 'kshare\n  doctor and all\n  that follows"},
		{"wide characters", "日本 日本 日本 日本 日本", 20, 6, "日本 日本 日本\n  日本 日本"},
		{"a terminal of nothing", hint, 5, 14, hint},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Wrap(c.text, c.width, c.taken)
			if got != c.want {
				t.Errorf("Wrap =\n%s\nwant\n%s", got, c.want)
			}
			if strings.Join(strings.Fields(got), " ") != c.text {
				t.Errorf("Wrap changes %q to %q", c.text, got)
			}
			for i, line := range strings.Split(got, "\n") {
				n := ansi.StringWidth(line)
				if i == 0 {
					n += c.taken
				}
				if c.name != "a long word" && c.width >= narrowest && n > c.width {
					t.Errorf("line %q has %d columns, want %d at most", line, n, c.width)
				}
			}
		})
	}
}
