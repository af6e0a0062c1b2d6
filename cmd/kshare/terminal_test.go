//go:build unix

package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/kshare/kshare/internal/scene"
	"github.com/kshare/kshare/internal/terminal"
	"github.com/kshare/kshare/wire"
)

var update = flag.Bool("update", false, "write the golden screens instead of comparing with them")

// person runs kshare as somebody at a terminal does.
type person struct {
	*testing.T
	scene *scene.Scene
}

// start starts kshare on a terminal.
func (p person) start(o terminal.Options, args ...string) *terminal.Session {
	p.Helper()
	if o.Height == 0 {
		o.Height = 40
	}
	path, err := exec.LookPath("kshare")
	if err != nil {
		p.Fatal(err)
	}
	o.Env = append(o.Env, "KSHARE_BOOTSTRAP_SERVER="+p.scene.BootstrapServers(), "HOME="+p.TempDir(), "GORACE=atexit_sleep_ms=50")
	s, err := terminal.Start(p.Context(), o, path, args...)
	if err != nil {
		p.Fatal(err)
	}
	return s
}

// end waits for a command and returns its last screen.
func (p person) end(s *terminal.Session, code int) terminal.Screen {
	p.Helper()
	got, err := s.Wait()
	if err != nil || got != code {
		p.Fatalf("it ended with %d, want %d: %v\n%s", got, code, err, s.Screen().Text())
	}
	return s.Screen()
}

// see runs a command to its end.
func (p person) see(width, code int, args ...string) terminal.Screen {
	p.Helper()
	return p.end(p.start(terminal.Options{Width: width}, args...), code)
}

func (p person) waitFor(s *terminal.Session, text string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 10*time.Minute)
	defer cancel()
	if err := s.WaitFor(ctx, text); err != nil {
		p.Fatal(err)
	}
}

func (p person) typeIn(s *terminal.Session, text string) {
	p.Helper()
	if err := s.Type(text); err != nil {
		p.Fatal(err)
	}
}

// What no two runs share: times, durations, and the width of columns that have
// them.
var (
	anyTime     = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)`)
	anyDuration = regexp.MustCompile(`\b(\d+(\.\d+)?(ms|s)|\d+m\d+s)\b`)
	anyBlanks   = regexp.MustCompile(` {2,}`)
)

func masked(screen string) string {
	screen = anyTime.ReplaceAllString(screen, "TIME")
	screen = anyDuration.ReplaceAllString(screen, "DURATION")
	return anyBlanks.ReplaceAllString(screen, "  ")
}

func (p person) golden(name string, screen terminal.Screen) {
	p.Helper()
	path := filepath.Join("testdata", "screens", name+".txt")
	got := masked(screen.Marked())
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			p.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		p.Fatal(err)
	}
	if got != string(want) {
		p.Errorf("the screen of %s is\n%s\nwant\n%s", name, got, want)
	}
}

// lines returns the lines of a screen that begin with a text.
func lines(s terminal.Screen, prefix string) []string {
	var out []string
	for l := range strings.Lines(s.Text()) {
		if strings.HasPrefix(l, prefix) {
			out = append(out, strings.TrimSuffix(l, "\n"))
		}
	}
	return out
}

// longID is a transactional ID of 249 characters.
const longID = "shipping-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" +
	"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

// startScene starts a scene that ends with the test.
func startScene(t *testing.T) *scene.Scene {
	t.Helper()
	sc, err := scene.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sc.Close(); err != nil {
			t.Error(err)
		}
	})
	return sc
}

// What a person sees: the screens are in testdata/screens, with styles in brackets.
func TestTerminal(t *testing.T) {
	t.Parallel()
	sc := startScene(t)
	for _, s := range []struct{ id, group, topic string }{{"billing-1", "billing", scene.Orders}, {longID, "audit-of-all-invoices", scene.Invoices}} {
		if err := sc.Stage(t.Context(), s.id, 10*time.Minute, s.group, s.topic, scene.Do{Count: 3, As: wire.Accept, Staged: true}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		run  func(p person)
	}{
		{"a table in colour", seeTable},
		{"no colour when asked for none", seeNoColor},
		{"one row is one line", seeNarrow},
		{"a pipe beside a terminal", seePipe},
		{"a watch in place", seeWatch},
		{"progress", seeProgress},
		{"a question", seeQuestion},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(person{t, sc}) })
	}
}

func seeTable(p person) {
	p.golden("inspect_pending", p.see(120, 0, "inspect", "pending", "--group", "billing"))
	p.golden("error", p.see(80, 64, "inspect", "pending", "--columns", "nope"))
}

func seeNoColor(p person) {
	for _, c := range []struct {
		env  []string
		args []string
	}{{[]string{"NO_COLOR=1"}, nil}, {[]string{"TERM=dumb"}, nil}, {nil, []string{"--no-color"}}, {nil, []string{"--color=never"}}} {
		s := p.end(p.start(terminal.Options{Width: 120, Env: c.env}, append([]string{"inspect", "pending"}, c.args...)...), 0)
		if s.Marked() != s.Text() || !strings.Contains(s.Text(), "billing-1") {
			p.Errorf("%v %v:\n%s", c.env, c.args, s.Marked())
		}
	}
}

// Even of an ID of 249 characters, at 60 columns.
func seeNarrow(p person) {
	for _, width := range []int{60, 80, 200} {
		s := p.see(width, 0, "inspect", "pending", "-q")
		for _, row := range []string{"GROUP", "billing", "audit"} {
			if got := lines(s, row); len(got) != 1 {
				p.Errorf("%d columns: %d lines of %s, want 1:\n%s", width, len(got), row, s.Text())
			}
		}
		// Below the three lines are an empty one and the sum, which may wrap.
		if got := strings.Split(s.Text(), "\n"); len(got) < 5 || got[3] != "" || !strings.HasPrefix(got[4], "6 records of 2 share-partitions") {
			p.Errorf("%d columns: a row has wrapped:\n%s", width, s.Text())
		}
	}
	p.golden("inspect_pending_60", p.see(60, 0, "inspect", "pending", "-q", "--group", "billing", "--columns", "group,topic,partition,offsets,count,transactional-id,state,verdict"))
}

// Colour is for the stream that is a terminal.
func seePipe(p person) {
	var stdout bytes.Buffer
	s := p.end(p.start(terminal.Options{Width: 120, Stdout: &stdout}, "inspect", "pending", "--check"), 6)
	if ansi.Strip(stdout.String()) != stdout.String() || !strings.Contains(stdout.String(), " "+longID+" ") {
		p.Errorf("stdout, a pipe, is coloured or cut: %q", stdout.String())
	}
	if !strings.Contains(s.Marked(), "[red bold|error:]") || strings.Contains(s.Text(), "GROUP") {
		p.Errorf("stderr, a terminal, shows\n%s", s.Marked())
	}
	stdout.Reset()
	s = p.end(p.start(terminal.Options{Width: 120, Stdout: &stdout}, "inspect", "pending", "--color=always", "-q"), 0)
	if !strings.Contains(stdout.String(), "\x1b[1mGROUP\x1b[0m") || s.Text() != "" {
		p.Errorf("--color=always: stdout %q, stderr\n%s", stdout.String(), s.Text())
	}
}

// A watch has the screen for itself, and leaves its last frame.
func seeWatch(p person) {
	s := p.start(terminal.Options{Width: 120, Height: 12}, "inspect", "pending", "--watch", "--interval", "100ms", "--group", "billing")
	p.waitFor(s, "billing-1")
	p.golden("watch", s.Screen())
	if err := s.Interrupt(); err != nil {
		p.Fatal(err)
	}
	end := p.end(s, 130)
	if len(lines(end, "billing")) != 1 || !strings.Contains(end.Marked(), "[red bold|error:] interrupt") {
		p.Errorf("after the watch:\n%s", end.Marked())
	}
}

// A spinner is on stderr, in one line that comes and goes.
func seeProgress(p person) {
	var stdout watched
	s := p.start(terminal.Options{Width: 150, Stdout: &stdout}, "inspect", "pending", "--wait", "--interval", "100ms", "--group", "billing", "-o", "csv")
	p.waitFor(s, "records in TX_PENDING: 3 (1 owner, next deadline in ")
	if n := strings.Count(s.Screen().Text(), "records in TX_PENDING: 3 ("); n != 1 {
		p.Errorf("the spinner is there %d times:\n%s", n, s.Screen().Text())
	}
	if b := stdout.Bytes(); len(b) > 0 {
		p.Errorf("stdout has %q while it waits", b)
	}
	if err := p.scene.Commit(p.Context(), "billing-1"); err != nil {
		p.Fatal(err)
	}
	if end := p.end(s, 0).Text(); strings.Contains(end, "records in TX_PENDING: 3 (") || !bytes.HasPrefix(stdout.Bytes(), []byte("GROUP,")) {
		p.Errorf("in the end the screen has\n%s\nand stdout %q", end, stdout.Bytes())
	}
}

// Before a level comes down, its name has to be typed; anything else changes nothing.
func seeQuestion(p person) {
	args := []string{"feature", "downgrade", "transaction.version=1", "--force-live-producers"}
	if err := p.scene.Commit(p.Context(), longID); err != nil {
		p.Fatal(err)
	}
	const question = `Type "transaction.version" to` // "go on" is on the next line
	s := p.start(terminal.Options{Width: 100}, args...)
	p.waitFor(s, question)
	p.golden("question", s.Screen())
	p.typeIn(s, "yes\n")
	if end := p.end(s, 1); !strings.Contains(end.Text(), "not confirmed, nothing was changed") {
		p.Errorf("after another answer:\n%s", end.Text())
	}
	// Without a terminal nothing is asked, and nothing read.
	path, err := exec.LookPath("kshare")
	if err != nil {
		p.Fatal(err)
	}
	cmd := exec.CommandContext(p.Context(), path, append(args, "-b", p.scene.BootstrapServers())...)
	cmd.Stdin = strings.NewReader("transaction.version\n")
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 64 || bytes.Contains(out, []byte(question)) {
		p.Errorf("without a terminal: %v\n%s", err, out)
	}
	s = p.start(terminal.Options{Width: 100}, args...)
	p.waitFor(s, question)
	p.typeIn(s, "transaction.version\n")
	p.golden("downgrade", p.end(s, 0))
}
