package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The map of files in ARCHITECTURE.md names what is there, and every package.
func TestFileMap(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(b), "\n## Files\n")
	section, _, _ = strings.Cut(section, "\n## ")
	code := regexp.MustCompile("`([^`]+)`")
	named := map[string]bool{} // directories
	for row := range strings.Lines(section) {
		cells := strings.Split(row, "|")
		if len(cells) != 4 || !strings.Contains(cells[2], "`") {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[2], -1) {
			if strings.Contains(m[1], "<") {
				continue // a pattern for people
			}
			for _, name := range alternatives(m[1]) {
				found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(name)))
				if err != nil || len(found) == 0 {
					t.Errorf("the map of files names %s, and there is none", name)
				}
				for _, file := range found {
					dir := file
					if info, err := os.Stat(file); err == nil && !info.IsDir() {
						dir = filepath.Dir(file)
					}
					named[dir] = true
				}
			}
		}
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); path != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		sources, err := filepath.Glob(filepath.Join(path, "*.go"))
		sources = slices.DeleteFunc(sources, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
		if len(sources) > 0 && !named[path] {
			t.Errorf("the map of files does not know %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// alternatives are the names that one with {a,b} in it stands for.
func alternatives(name string) []string {
	before, rest, ok := strings.Cut(name, "{")
	if !ok {
		return []string{name}
	}
	list, after, _ := strings.Cut(rest, "}")
	var out []string
	for one := range strings.SplitSeq(list, ",") {
		out = append(out, alternatives(before+one+after)...)
	}
	return out
}
