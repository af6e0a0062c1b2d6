package commands

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/internal/config"
	"github.com/kshare/kshare/internal/demo"
	"github.com/kshare/kshare/internal/doctor"
	"github.com/kshare/kshare/internal/schematest"
	"github.com/kshare/kshare/output"
)

func loadSchemas(t *testing.T) schematest.Schemas {
	t.Helper()
	s, err := schematest.Load("../docs/json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every kind is in the list that schemas are made from, so that none can be
// forgotten, and the list is sorted.
func TestDocumentsAreComplete(t *testing.T) {
	documented := make(map[string]bool)
	last := ""
	for _, d := range Documents() {
		documented[d.Kind] = true
		if d.Line == nil && d.Kind <= last {
			t.Errorf("%s stands after %s", d.Kind, last)
		}
		if last = d.Kind; d.Line == nil == (d.Items == nil && d.Data == nil) {
			t.Errorf("%s is neither a document nor a line", d.Kind)
		}
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") || f == "documents.go" {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			key, isIdent := kv.Key.(*ast.Ident)
			lit, isLit := kv.Value.(*ast.BasicLit)
			if !isIdent || !isLit || key.Name != "Kind" || lit.Kind != token.STRING {
				return true
			}
			found++
			if kind, _ := strconv.Unquote(lit.Value); !documented[kind] {
				t.Errorf("%s: kind %s is not in Documents: add it, and run 'make docs'", f, lit.Value)
			}
			return true
		})
	}
	if found < 10 {
		t.Errorf("only %d kinds were found in the sources", found)
	}
}

// What is written is what the schemas say, and each of them is put to the test.
func TestOutputIsValid(t *testing.T) {
	schemas := loadSchemas(t)
	seen := make(map[string]bool)
	check := func(where string, doc []byte) {
		t.Helper()
		kind, err := schemas.Check(doc)
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		seen[kind] = true
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if doc := goldenSection(string(b), "json"); doc != "" {
			check(f, []byte(doc))
		}
		for line := range strings.Lines(goldenSection(string(b), "json, stderr")) {
			check(f+", stderr", []byte(line))
		}
	}
	d := &Deps{Now: func() time.Time { return pendingNoon }, Getenv: func(string) string { return "" }, flags: &globalFlags{Output: output.FormatJSON}}
	for name, v := range map[string]output.View{
		"config change":   contextChangeView(&contextChange{File: "f", Context: "c", Changed: true}),
		"config check":    configCheckView(&configCheck{File: "f", Findings: []configFinding{{"", findingOK, "1 contexts", ""}, {"c", findingError, "d", "a"}}}),
		"config contexts": configGetContextsView(&contextList{Contexts: []contextRow{{"a", true, map[config.Key]string{config.SASLPassword: "***"}}}}),
		"config view": configViewView(&configView{Context: "c", Settings: []configSetting{
			{Key: "tls_ca", Value: "f", Source: config.FromFlag, Name: "tls-ca"},
			{Key: "sasl.jaas.config", Value: "***", Secret: true, Source: config.FromProperties, Name: "sasl.jaas.config", File: "f", Line: 3},
		}}),
		"doctor": doctorView(&doctor.Report{ClusterID: "c", Findings: []doctor.Finding{
			{Check: "identity", State: doctor.OK, Detail: "d"},
			{Check: "broker", Subject: "1", State: doctor.Warning, Detail: "d", Advice: "a"},
		}}),
		"ctp":             ctpView(&ctp.Result{Elapsed: time.Second, Dialect: "kip"}),
		"ctp, no dialect": ctpView(&ctp.Result{Consumed: 1 << 60}),
		"ctp preflight":   ctpPreflightView([]ctp.Check{{Name: "topics", OK: true}}),
		"demo":            demoView([]demo.Step{{Name: "a", Duration: time.Second}}),
		"sandbox":         sandboxRunView(sandboxInfo{ClusterID: "c", DataDir: new("\xff")}),
		"version":         versionView(versionInfo{}),
	} {
		var b strings.Builder
		d.Out = &b
		if err := d.show(v, nil); err != nil {
			t.Fatal(err)
		}
		check(name, []byte(b.String()))
	}
	var lines strings.Builder
	d.ErrOut = &lines
	d.Warn("w")
	d.Notice("n\x00")
	d.Hint("h\xff")
	d.printLine(noteLine{Kind: "progress", Message: "p"})
	d.report(usagef("wrong"))
	for line := range strings.Lines(lines.String()) {
		check("stderr", []byte(line))
	}
	for _, doc := range Documents() {
		if !seen[doc.Kind] {
			t.Errorf("no %s is validated: give it a golden file with a json section", doc.Kind)
		}
	}
}

// goldenSection returns a section of a golden file that has one for each format;
// "" where there is none.
func goldenSection(golden, name string) string {
	_, rest, _ := strings.Cut("\n"+golden, "\n-- "+name+" --\n")
	if i := strings.Index("\n"+rest, "\n-- "); i >= 0 {
		rest = rest[:i]
	}
	return strings.TrimSpace(rest)
}

// A schema finds what is wrong: otherwise nothing that it takes proves anything.
func TestSchemasAreStrict(t *testing.T) {
	schemas := loadSchemas(t)
	const valid = `{"kind":"version","version":1,"cluster_id":null,"time":"2026-11-29T12:00:00Z","incomplete":false,"warnings":[],` +
		`"data":{"version":"1","commit":null,"date":null,"go":"go1.26","os":"linux","arch":"amd64"}}`
	if _, err := schemas.Check([]byte(valid)); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][2]string{
		"a key too many":   {`"os"`, `"more":1,"os"`},
		"a key is missing": {`"os":"linux",`, ``},
		"another version":  {`"version":1,`, `"version":2,`},
		"a number":         {`"go1.26"`, `1.26`},
		"no time":          {`"2026-11-29T12:00:00Z"`, `"noon"`},
		"no list":          {`[]`, `null`},
		"no null":          {`"linux"`, `null`},
	} {
		doc := strings.Replace(valid, edit[0], edit[1], 1)
		if _, err := schemas.Check([]byte(doc)); err == nil || doc == valid {
			t.Errorf("%s: %s is taken for valid", name, doc)
		}
	}
}
