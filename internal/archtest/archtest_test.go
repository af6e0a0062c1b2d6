package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kshare/kshare"

// pkg is what "go list" says of one package. Imports leaves out those of tests.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

// mayImport says which packages of ours a package may import. A package that is
// not here has no place in the picture yet.
func mayImport() map[string][]string {
	client := []string{"cluster", "internal/pause", "share", "txn", "wire"}
	operator := append([]string{"ctp", "drain", "feature", "inspect", "internal/demo", "sandbox"}, client...)
	return map[string][]string{
		"cmd/kshare":        {"commands"},
		"commands":          append([]string{"cluster/auth", "completions", "internal/config", "internal/doctor", "internal/promtext", "output"}, operator...),
		"completions":       append([]string{"feature", "inspect"}, client...),
		"output":            nil,
		"feature":           append([]string{"drain", "inspect"}, client...),
		"drain":             append([]string{"inspect"}, client...),
		"inspect":           append([]string{"internal/promtext"}, client...),
		"ctp":               client,
		"sandbox":           {"internal/promtext", "wire"},
		"txn":               {"cluster", "internal/pause", "share", "wire"},
		"share":             {"cluster", "internal/pause", "wire"},
		"metrics":           {"share", "txn"}, // apart from both: Prometheus costs at import time
		"cluster":           {"internal/pause", "wire"},
		"wire":              nil,
		"internal/pause":    nil,
		"internal/promtext": nil,
		"internal/cmdtest":  {"commands"},
		"internal/demo":     append([]string{"ctp", "drain", "feature", "inspect"}, client...),

		// Whoever connects in plaintext needs no key stores, so cluster does
		// without them; and settings become what auth takes.
		"cluster/auth":    nil,
		"internal/config": {"cluster/auth"},
		"internal/doctor": {"cluster", "cluster/auth", "wire"},

		// Of tests.
		"internal/apptest":    append([]string{"inspect", "sandbox"}, client...),
		"internal/bigcluster": {"wire"},
		"internal/fakekafka":  nil,
		"internal/kafkatest":  {"internal/need"},
		"internal/mdtest":     nil,
		"internal/need":       nil,
		"internal/scene":      append([]string{"sandbox"}, client...),
		"internal/schematest": nil,
		"internal/terminal":   nil,
		"internal/wiretap":    nil,
		// These have tests only, or stand apart.
		"internal/archtest":   nil,
		"bench":               append([]string{"ctp", "inspect", "internal/bigcluster", "internal/kafkatest", "sandbox"}, client...),
		"docs":                nil,
		"docs/gen":            {"commands", "completions"},
		"examples":            nil,
		"examples/gen":        nil,
		"examples/monitoring": nil,
	}
}

// usedBy says which packages may import a library. Others may be used anywhere.
func usedBy() map[string][]string {
	return map[string][]string{
		"github.com/spf13/cobra":               {"commands", "completions", "docs/gen"},
		"github.com/spf13/pflag":               {"commands"},
		"github.com/spf13/viper":               {"internal/config"},
		"github.com/twmb/franz-go/pkg/kfake":   {"internal/apptest", "internal/fakekafka", "sandbox"},
		"github.com/olekukonko/tablewriter":    {"output"},
		"github.com/charmbracelet/lipgloss":    {"output"},
		"github.com/muesli/termenv":            {"output"},
		"github.com/schollz/progressbar/v3":    {"output"},
		"github.com/gofrs/flock":               {"internal/config"},
		"github.com/agnivade/levenshtein":      {"internal/config"},
		"go.yaml.in/yaml/v3":                   {"output", "internal/config"},
		"github.com/itchyny/gojq":              {"ctp", "output"},
		"golang.org/x/term":                    {"commands"},
		"github.com/rogpeppe/go-internal":      nil, // tests only
		"github.com/creack/pty":                {"internal/terminal"},
		"github.com/charmbracelet/x/vt":        {"internal/terminal"},
		"github.com/charmbracelet/ultraviolet": {"internal/terminal"},
		"github.com/prometheus":                {"metrics"}, // and tests: see internal/promtext
		"github.com/VictoriaMetrics":           nil,         // tests only
		"github.com/twmb/franz-go/pkg/kadm":    nil,         // tests only: it hides which broker answered what
		// commands makes records of the lines of a file.
		"github.com/twmb/franz-go/pkg/kgo":      {"bench", "commands", "internal/apptest", "internal/fakekafka", "internal/kafkatest", "internal/scene", "cluster", "ctp", "inspect", "share", "txn"},
		"github.com/twmb/franz-go/pkg/kmsg":     {"bench", "internal/bigcluster", "internal/doctor", "internal/fakekafka", "internal/kafkatest", "internal/wiretap", "cluster", "ctp", "drain", "feature", "inspect", "sandbox", "share", "txn", "wire"},
		"github.com/twmb/franz-go/pkg/kerr":     {"bench", "internal/bigcluster", "internal/doctor", "internal/kafkatest", "cluster", "commands", "ctp", "drain", "feature", "inspect", "sandbox", "share", "txn"},
		"github.com/twmb/franz-go/pkg/kbin":     {"internal/bigcluster", "internal/wiretap", "sandbox", "wire"},
		"github.com/twmb/franz-go/pkg/sasl":     {"cluster", "cluster/auth", "internal/kafkatest"},
		"github.com/twmb/franz-go/pkg/kversion": {"bench", "cluster", "feature", "internal/fakekafka", "internal/kafkatest", "sandbox"},

		"github.com/magiconair/properties":        {"cluster/auth"},
		"github.com/pavlo-v-chernykh/keystore-go": {"cluster/auth"},
		"software.sslmate.com/src/go-pkcs12":      {"cluster/auth"},
		"github.com/youmark/pkcs8":                {"cluster/auth"},
		"github.com/jcmturner/gokrb5":             {"cluster/auth"},
		"golang.org/x/oauth2":                     {"cluster/auth"},
	}
}

// mayUse says which files may use a name that reaches around the dependencies a
// function is given.
func mayUse() map[string][]string {
	process := []string{"bench/main.go", "cmd/kshare/main.go", "commands/deps.go", "docs/gen/main.go", "examples/gen/main.go"}
	return map[string][]string{
		"os.Exit":       process,
		"os.Stdin":      process,
		"os.Stdout":     process,
		"os.Stderr":     process,
		"os.Args":       process,
		"kgo.NewClient": {"bench/main.go", "bench/txn.go", "cluster/connect.go", "internal/fakekafka/cluster.go", "internal/kafkatest/cluster.go"},
	}
}

func TestImports(t *testing.T) {
	pkgs := list(t)
	for _, want := range []string{"cmd/kshare", "commands", "output", "wire"} {
		if !slices.ContainsFunc(pkgs, func(p pkg) bool { return short(p.ImportPath) == want }) {
			t.Fatalf("go list does not know %s: is the test looking at the right module?", want)
		}
	}
	for _, p := range pkgs {
		for _, v := range importViolations(p) {
			t.Error(v)
		}
	}
}

func TestUses(t *testing.T) {
	for _, p := range list(t) {
		for _, name := range p.GoFiles {
			uses, err := usesOf(filepath.Join(p.Dir, name), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range useViolations(short(p.ImportPath)+"/"+name, uses) {
				t.Error(v)
			}
		}
	}
}

// No rule is about a package that is gone, or allows a library where none uses it.
func TestRulesAreAboutSomething(t *testing.T) {
	imports := make(map[string][]string) // by package
	uses := make(map[string][]string)    // by file
	for _, p := range list(t) {
		imports[short(p.ImportPath)] = p.Imports
		for _, name := range p.GoFiles {
			used, err := usesOf(filepath.Join(p.Dir, name), nil)
			if err != nil {
				t.Fatal(err)
			}
			uses[short(p.ImportPath)+"/"+name] = used
		}
	}
	for self, others := range mayImport() {
		for _, name := range append([]string{self}, others...) {
			if _, ok := imports[name]; !ok {
				t.Errorf("mayImport names %s, which is no package", name)
			}
		}
	}
	for lib, users := range usedBy() {
		for _, user := range users {
			if !slices.ContainsFunc(imports[user], func(imp string) bool { return imp == lib || strings.HasPrefix(imp, lib+"/") }) {
				t.Errorf("usedBy lets %s import %s, which it does not", user, lib)
			}
		}
	}
	for name, files := range mayUse() {
		for _, file := range files {
			if name == "kgo.NewClient" && !slices.Contains(uses[file], name) {
				t.Errorf("mayUse lets %s use %s, which it does not", file, name)
			}
			if _, ok := uses[file]; !ok {
				t.Errorf("mayUse names %s, which is no file", file)
			}
		}
	}
}

// The rules would fire: each is broken once here.
func TestRulesFire(t *testing.T) {
	for _, c := range []struct {
		name string
		pkg  pkg
		want string
	}{
		{"points up", pkg{ImportPath: module + "/wire", Imports: []string{module + "/cluster"}}, "wire imports cluster"},
		{"output knows Kafka", pkg{ImportPath: module + "/output", Imports: []string{"github.com/twmb/franz-go/pkg/kgo"}}, "output imports github.com/twmb/franz-go/pkg/kgo"},
		{"cobra in a domain package", pkg{ImportPath: module + "/drain", Imports: []string{"github.com/spf13/cobra/doc"}}, "drain imports github.com/spf13/cobra/doc"},
		{"library of tests", pkg{ImportPath: module + "/txn", Imports: []string{"github.com/rogpeppe/go-internal/testscript"}}, "txn imports github.com/rogpeppe/go-internal/testscript"},
		{"new package", pkg{ImportPath: module + "/util"}, "util has no place in mayImport"},
		{"allowed", pkg{ImportPath: module + "/txn", Imports: []string{"os", module + "/share"}}, ""},
	} {
		got := strings.Join(importViolations(c.pkg), "; ")
		if got != c.want {
			t.Errorf("%s: violations %q, want %q", c.name, got, c.want)
		}
	}
	src := "package p\nimport (\n\t\"os\"\n\tx \"github.com/twmb/franz-go/pkg/kgo\"\n)\nvar a, b = os.Args, x.NewClient\nfunc f() { os.Exit(1); os.Getenv(\"\") }\n"
	uses, err := usesOf("p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"inspect/p.go uses os.Args", "inspect/p.go uses kgo.NewClient", "inspect/p.go uses os.Exit"}
	if got := useViolations("inspect/p.go", uses); !slices.Equal(got, want) {
		t.Errorf("violations %q, want %q", got, want)
	}
	if got := useViolations("commands/deps.go", []string{"os.Exit"}); len(got) > 0 {
		t.Errorf("violations %q, want none", got)
	}
}

func importViolations(p pkg) []string {
	self := short(p.ImportPath)
	allowed, ok := mayImport()[self]
	if !ok {
		return []string{self + " has no place in mayImport"}
	}
	var out []string
	for _, imp := range p.Imports {
		if own := short(imp); own != imp {
			if !slices.Contains(allowed, own) {
				out = append(out, fmt.Sprintf("%s imports %s", self, own))
			}
			continue
		}
		for lib, users := range usedBy() {
			if (imp == lib || strings.HasPrefix(imp, lib+"/")) && !slices.Contains(users, self) {
				out = append(out, fmt.Sprintf("%s imports %s", self, imp))
			}
		}
	}
	return out
}

func useViolations(file string, uses []string) []string {
	rules := mayUse()
	var out []string
	for _, u := range uses {
		if files, ok := rules[u]; ok && !slices.Contains(files, file) {
			out = append(out, fmt.Sprintf("%s uses %s", file, u))
		}
	}
	return out
}

// usesOf returns the qualified names that a file uses, by the last element of
// the import path, whatever the file calls the import.
func usesOf(path string, src []byte) ([]string, error) {
	var from any
	if src != nil {
		from = src
	}
	f, err := parser.ParseFile(token.NewFileSet(), path, from, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, imp := range f.Imports {
		full := strings.Trim(imp.Path.Value, `"`)
		base := full[strings.LastIndex(full, "/")+1:]
		if imp.Name != nil {
			names[imp.Name.Name] = base
		} else {
			names[base] = base
		}
	}
	var uses []string
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if id, ok := sel.X.(*ast.Ident); ok && names[id.Name] != "" {
				uses = append(uses, names[id.Name]+"."+sel.Sel.Name)
			}
		}
		return true
	})
	return uses, nil
}

// short returns the path of a package of ours within the module, and any other
// path as it is.
func short(path string) string { return strings.TrimPrefix(path, module+"/") }

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,GoFiles,Imports", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}
