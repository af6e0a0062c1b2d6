//go:build unix

package main

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/mdtest"
)

var updatePages = flag.Bool("update-pages", false, "write what commands print into the pages that show something else")

// unexecuted are the command lines of pages that TestDocs does not run, and why
// not.
var unexecuted = map[string]string{
	"git clone https://github.com/kshare/kshare && cd kshare": "needs the network",
	"go install github.com/kshare/kshare/cmd/kshare@latest":   "needs the network",
	"go get github.com/kshare/kshare@latest":                  "needs the network",
	"go test ./cmd/kshare -run TestDocs -update-pages":        "is this test",
	"go test ./...": "is this test",
	"make lint":     "is a step of CI of its own",
	"make bench":    "takes minutes",
	`kshare sandbox run --topic orders --load orders=examples/orders.ndjson`: "needs PostgreSQL; see examples/two_phase_test.go",
	`cd examples/two-phase`: "needs PostgreSQL; see examples/two_phase_test.go",
	`go run . run -b 127.0.0.1:9092 -database 'dbname=orders' -hold database-prepared   # and kill it`:          "needs PostgreSQL; see examples/two_phase_test.go",
	`psql -d orders -c 'SELECT gid, prepared FROM pg_prepared_xacts'`:                                           "needs PostgreSQL; see examples/two_phase_test.go",
	`go run . recover -b 127.0.0.1:9092 -database 'dbname=orders'`:                                              "needs PostgreSQL; see examples/two_phase_test.go",
	`kshare ack --group billing --accept orders:0:7-9 --prepare --txn-timeout 15m --token-file token.txt --yes`: "needs PostgreSQL; see examples/two_phase_test.go",
	`psql -d orders -v token="$(cat token.txt)" -f prepare.sql`:                                                 "needs PostgreSQL; see examples/two_phase_test.go",
	`kshare txn resume --token-file token.txt --commit --yes -r --jq '.items[0].outcome'`:                       "needs PostgreSQL; see examples/two_phase_test.go",
	`echo "COMMIT PREPARED :'token'" | psql -d orders -v token="$(cat token.txt)"`:                              "needs PostgreSQL; see examples/two_phase_test.go",
	"go build -o kshare ./cmd/kshare && GODEBUG=inittrace=1 ./kshare version":                                   "leaves a program behind",
	"kshare inspect metrics --endpoint b1:9404 --endpoint b2:9404 --for 60s --check":                            "needs two real brokers",
	"sudo apt-get install ./kshare_1.2.3_amd64.deb":                                                             "needs a release",
	"sudo dnf install ./kshare-1.2.3-1.x86_64.rpm":                                                              "needs a release",
	"sudo apk add --allow-untrusted ./kshare_1.2.3_x86_64.apk":                                                  "needs a release",
	"brew install --cask kshare/tap/kshare":                                                                     "needs a release",
	"docker run --rm ghcr.io/kshare/kshare:1.2.3 feature describe -b kafka:9092":                                "needs a release",
	"cosign verify-blob checksums.txt --bundle checksums.txt.sigstore.json --certificate-oidc-issuer https://token.actions.githubusercontent.com --certificate-identity https://github.com/kshare/kshare/.github/workflows/release.yml@refs/tags/v1.2.3": "needs a release",
	"sha256sum --ignore-missing -c checksums.txt": "needs a release",
	"cosign verify ghcr.io/kshare/kshare:1.2.3 --certificate-oidc-issuer https://token.actions.githubusercontent.com --certificate-identity https://github.com/kshare/kshare/.github/workflows/release.yml@refs/tags/v1.2.3": "needs a release",
	`jq -r '.components[] | "\(.name) \(.version)"' kshare_1.2.3_linux_amd64.cdx.json`: "needs a release",
	"go version -m /usr/bin/kshare":                                                                 "needs a release",
	"govulncheck -mode=binary /usr/bin/kshare":                                                      "needs a release",
	"git clone --branch v1.2.3 https://github.com/kshare/kshare && cd kshare":                       "needs the network",
	"go run github.com/goreleaser/goreleaser/v2@v2.13.0 release --clean --skip=publish,docker,sign": "is run by .ci/packages",
	"diff dist/checksums.txt ~/Downloads/checksums.txt":                                             "needs a release",
	`CGO_ENABLED=0 go build -trimpath -buildvcs=true -o kshare -ldflags "-s -w -X github.com/kshare/kshare/commands.version=1.2.3 -X github.com/kshare/kshare/commands.commit=$(git rev-parse HEAD) -X github.com/kshare/kshare/commands.date=$(TZ=UTC git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)" ./cmd/kshare`: "is run by .ci/packages",
}

// harmless matches what commands of pages begin with. Another one is not run: a
// page may tell its readers to install something, which a test must not do.
var harmless = regexp.MustCompile(`^(#|(KSHARE_[A-Z_]+=[^ ]+ )*(kshare|go run \./cmd/kshare|examples/runbooks/[a-z-]+\.sh|head|tail|cat|echo|export|wait|kill)( |$))`)

// before is what a page takes for granted, by its path: shell commands that are
// not shown.
var before = map[string]string{
	"docs/connecting.md": `cat >client.properties <<'END'
bootstrap.servers=broker1:9093
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";
acks=all
END
echo secret >password`,
}

// handwritten returns the pages that are not generated.
func handwritten(t *testing.T) []*mdtest.Page {
	t.Helper()
	files, err := mdtest.Files("../..")
	if err != nil {
		t.Fatal(err)
	}
	var pages []*mdtest.Page
	for _, file := range files {
		if strings.HasPrefix(file, "docs/cli/") {
			continue
		}
		p, err := mdtest.Read("../..", file)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, p)
	}
	return pages
}

// TestDocs runs what pages tell their readers to, and compares what they show.
//
//   - In a block of the language console, lines that start with "$ " are commands.
//     Those with "> ", or after a backslash, go on with one; the rest is what they
//     print. If a block shows the output of any command, one without output has to
//     print nothing. A command has to succeed, unless the next one looks at $?. A
//     line "..." stands for any number of lines, and "..." at the end of a line for
//     its rest.
//   - A block of the language bash is a script, run in a subshell; it has to
//     succeed.
//   - A block of the language sh is not run, and has to be in unexecuted.
//
// A page is one session: what a command leaves behind, the next ones find. What no
// two runs share, such as times, is not compared (see normal), nor what matches R
// in a comment "varies: R" before a block. With -update-pages, pages are written anew.
func TestDocs(t *testing.T) {
	t.Parallel()
	pages := handwritten(t)
	left := map[string]bool{}
	commands := 0
	var sessions together
	defer sessions.wait()
	for _, p := range pages {
		var steps []step
		for _, b := range p.Blocks {
			switch b.Lang {
			case "console":
				for _, s := range consoleSteps(t, p, b) {
					left[s.command] = true
					switch {
					case unexecuted[s.command] != "":
					case !harmless.MatchString(s.command):
						t.Errorf("%s:%d: %q is not run: it is not harmless; give a reason in unexecuted", p.Path, s.line, s.command)
					default:
						steps = append(steps, s)
					}
				}
			case "bash":
				steps = append(steps, step{line: b.Line, command: "(\n" + b.Text + ")"})
			case "sh":
				for line := range strings.Lines(b.Text) {
					line = strings.TrimSpace(line)
					if line != "" && unexecuted[line] == "" {
						t.Errorf("%s:%d: nothing runs %q: make it a console block, or give a reason in unexecuted", p.Path, b.Line, line)
					}
					left[line] = true
				}
			default:
				if regexp.MustCompile(`(?m)^(\$ |kshare )`).MatchString(b.Text) {
					t.Errorf("%s:%d: a block of language %q has commands, which nothing runs", p.Path, b.Line, b.Lang)
				}
			}
		}
		if len(steps) == 0 {
			continue
		}
		commands += len(steps)
		sessions.run(t, strings.ReplaceAll(p.Path, "/", "_"), func(t *testing.T) { runPage(t, p, steps) })
	}
	for line := range unexecuted {
		if !left[line] {
			t.Errorf("unexecuted has %q, which is on no page", line)
		}
	}
	if commands < 20 {
		t.Errorf("the pages have %d commands, want at least 20", commands)
	}
}

// step is a command of a page.
type step struct {
	line     int
	command  string
	output   string // what the page shows
	compare  bool   // whether it is compared
	mayFail  bool   // whether the next one looks at the exit status
	varies   *regexp.Regexp
	inSource string // command and output as they are in the page
}

// consoleSteps takes a console block apart.
func consoleSteps(t *testing.T, p *mdtest.Page, b mdtest.Block) []step {
	t.Helper()
	var varies *regexp.Regexp
	if expr, ok := strings.CutPrefix(b.Comment, "varies: "); ok {
		var err error
		if varies, err = regexp.Compile("(?m)" + strings.TrimSpace(expr)); err != nil {
			t.Fatalf("%s:%d: %v", p.Path, b.Line, err)
		}
	}
	var steps []step
	shows := false
	goesOn := false
	n := b.Line - 1
	for line := range strings.Lines(b.Text) {
		n++
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			steps = append(steps, step{line: n, command: command, inSource: line, varies: varies})
			goesOn = true
			continue
		}
		if len(steps) == 0 {
			t.Fatalf("%s:%d: a console block has to start with a command", p.Path, b.Line)
		}
		s := &steps[len(steps)-1]
		s.inSource += line
		if more, ok := strings.CutPrefix(line, "> "); goesOn && (ok || strings.HasSuffix(s.command, "\\\n")) {
			s.command += more
			continue
		}
		goesOn = false
		s.output += line
		shows = true
	}
	for i := range steps {
		steps[i].command = strings.TrimSuffix(steps[i].command, "\n")
		steps[i].compare = shows
		steps[i].mayFail = i+1 < len(steps) && strings.Contains(steps[i+1].command, "$?")
	}
	return steps
}

func runPage(t *testing.T, p *mdtest.Page, steps []step) {
	s := newShell(t)
	if setup := before[p.Path]; setup != "" {
		if out, code := s.run(setup, nil); code != 0 {
			t.Fatalf("%s\n%s", setup, out)
		}
	}
	for _, st := range steps {
		same := func(got string) bool {
			return !st.compare || matches(normal(got, st.varies), normal(st.output, st.varies))
		}
		got, code := s.run(st.command, same)
		if code != 0 && !st.mayFail {
			t.Errorf("%s:%d: $ %s\n%sended with %d", p.Path, st.line, st.command, got, code)
		}
		switch {
		case same(got):
		case *updatePages:
			command := strings.TrimSuffix(st.inSource, st.output)
			rewrite(t, p, st.inSource, command+strings.TrimRight(got, "\n")+"\n")
		default:
			t.Errorf("%s:%d: $ %s\n%s\nthe page shows:\n%s", p.Path, st.line, st.command, got, st.output)
		}
	}
}

func rewrite(t *testing.T, p *mdtest.Page, from, to string) {
	t.Helper()
	name := filepath.Join("../..", filepath.FromSlash(p.Path))
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(strings.Replace(string(b), from, to, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What differs from run to run, each with a name for it.
var variable = []struct {
	what *regexp.Regexp
	name string
}{
	// Progress is told now and then, where something takes longer than usual.
	{regexp.MustCompile(`(?m)^kshare: .*: [0-9].* after [0-9][0-9a-z.]*\n`), ""},
	{regexp.MustCompile(`ktx1\.[A-Za-z0-9_-]+`), "TOKEN"},
	{regexp.MustCompile(`\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9:]+)`), "TIME$1"},
	{regexp.MustCompile(`\b([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+\b`), "DURATION"},
	{regexp.MustCompile(`\b[0-9]{15,}\b`), "NUMBER"},
	{regexp.MustCompile(`\bpending in [0-9]+ looks\b`), "pending in LOOKS"},
	{regexp.MustCompile(`\bkshare-(devel|v[0-9][^ "]*)`), "kshare-VERSION"},
	{regexp.MustCompile(`(?m)^((?:[0-9*]+ +){8})[0-9.]+$`), "${1}SECONDS"}, // of ctp
	{regexp.MustCompile(`  +`), "  "},                                      // columns are as wide as what is in them
	{regexp.MustCompile(`(?m) +$`), ""},
}

// uuid is a UUID in Kafka's text form, with what surrounds it: cluster, member and
// topic IDs.
var uuid = regexp.MustCompile(`(^|[^A-Za-z0-9_-])[A-Za-z0-9_-]{22}($|[^A-Za-z0-9_-])`)

// normal is a text without what differs from run to run.
func normal(text string, varies *regexp.Regexp) string {
	if varies != nil {
		text = replaceGroups(varies, text)
	}
	for _, v := range variable {
		text = v.what.ReplaceAllString(text, v.name)
	}
	return strings.TrimRight(uuid.ReplaceAllString(text, "${1}ID$2"), "\n")
}

// replaceGroups replaces the groups of all matches by "*", or matches without
// groups.
func replaceGroups(expr *regexp.Regexp, text string) string {
	var b strings.Builder
	end := 0
	for _, m := range expr.FindAllStringSubmatchIndex(text, -1) {
		if len(m) > 2 {
			m = m[2:]
		}
		for i := 0; i < len(m); i += 2 {
			if m[i] >= end {
				b.WriteString(text[end:m[i]] + "*")
				end = m[i+1]
			}
		}
	}
	return b.String() + text[end:]
}

// matches reports whether lines are those that a page shows.
func matches(got, shown string) bool {
	return matchLines(strings.Split(got, "\n"), strings.Split(shown, "\n"))
}

func matchLines(got, shown []string) bool {
	if len(shown) == 0 {
		return len(got) == 0
	}
	if shown[0] == "..." {
		for i := range len(got) + 1 {
			if matchLines(got[i:], shown[1:]) {
				return true
			}
		}
		return false
	}
	if len(got) == 0 {
		return false
	}
	prefix, rest := strings.CutSuffix(shown[0], " ...")
	return (got[0] == shown[0] || rest && strings.HasPrefix(got[0], prefix)) && matchLines(got[1:], shown[1:])
}

func TestNormal(t *testing.T) {
	for text, want := range map[string]string{
		"kshare: draining, records left (quiet for 7.3s of 5s): 0 after 11.9s\ndrained: x": "drained: x",
		"kshare: error: not drained after 2s: 1 record":                                    "kshare: error: not drained after DURATION: 1 record",
	} {
		if got := normal(text, nil); got != want {
			t.Errorf("normal(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		got, shown string
		want       bool
	}{
		{"a\nb\nc", "a\nb\nc", true},
		{"a\nb\nc", "a\n...", true},
		{"a\nb\nc", "...\nc", true},
		{"a\nb\nc", "a\n...\nb", false},
		{"a\nb\nc", "a\nb", false},
		{"a", "a\n...", true},
		{"a", "a\nb", false},
		{"age 17ms", "age ...", true},
		{"", "", true},
		{"x", "", false},
		{"took 12.5s  for 3", "took 1m2s    for 3", true},
		{"took 12.5s for 4", "took 1m2s for 3", false},
		{"group AAECAwQFBgcICQoLDA0ODw, 2026-11-29T23:27:53Z", "group _-ECAwQFBgcICQoLDA0OD-, 2025-01-01T00:00:00Z", true},
		{"n=3 m=5", "n=7 m=5", true},
		{"n=3 m=5", "n=3 m=6", false},
	} {
		varies := regexp.MustCompile(`n=([0-9])`)
		if got := matches(normal(c.got, varies), normal(c.shown, varies)); got != c.want {
			t.Errorf("matches(%q, %q) = %v, want %v", c.got, c.shown, got, c.want)
		}
	}
}

func TestConsoleSteps(t *testing.T) {
	block := mdtest.Block{Line: 5, Text: "$ a <<X\n> b\n> X\nout\nmore\n$ c \\\n  d\n$ echo $?\n1\n"}
	var got []string
	for _, s := range consoleSteps(t, &mdtest.Page{}, block) {
		got = append(got, strings.Join([]string{strconv.Itoa(s.line), s.command, s.output, strconv.FormatBool(s.mayFail)}, "|"))
	}
	want := []string{"5|a <<X\nb\nX|out\nmore\n|false", "10|c \\\n  d||true", "12|echo $?|1\n|false"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
