//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/scene"
	"github.com/kshare/kshare/internal/terminal"
	"github.com/kshare/kshare/wire"
)

// pictures has the pictures of the documentation.
const pictures = "../../docs/pictures"

// What differs from run to run beside times and durations: IDs and leaders that are
// drawn by lot, how many batches and looks it took, the looks of a spinner, and
// where lines are wrapped for all that.
var (
	anyProducer = regexp.MustCompile(`\b(producer(-id| ID)?) \d+`)
	anyCount    = regexp.MustCompile(`\b\d+ (transaction|look)s?\b`)
	anyState    = regexp.MustCompile(`--partition \d+|>0  \d+  1  25<`) // partition of __share_group_state
	anyLeader   = regexp.MustCompile(`(0  0  60  35  )\d<`)
	anyWrap     = regexp.MustCompile(`</text>\s*<text[^>]*>|<svg[^>]*>|<rect[^>]*>|\s+`)
	anySpinner  = regexp.MustCompile(`[^ ] +draining, records left: \d+|\[DURATION\]`)
	anyEllipsis = regexp.MustCompile(`[^ ]*\x{2026}`)
)

func maskedPicture(svg string) string {
	svg = masked(svg)
	svg = anyProducer.ReplaceAllString(svg, "$1 N")
	svg = anyCount.ReplaceAllString(svg, "N $1")
	svg = anyState.ReplaceAllString(svg, "STATE-PARTITION")
	svg = anySpinner.ReplaceAllString(svg, "SPINNER")
	svg = anyLeader.ReplaceAllString(svg, "${1}N<")
	svg = anyEllipsis.ReplaceAllString(svg, "CUT") // where, depends on other columns
	return anyWrap.ReplaceAllString(svg, "")
}

// picture compares a screen with its picture, or draws it anew if it has changed.
func (p person) picture(name, command string, s terminal.Screen) {
	p.Helper()
	path := filepath.Join(pictures, name+".svg")
	got := s.SVG(command)
	old, err := os.ReadFile(path)
	if err != nil && !*update {
		p.Fatal(err)
	}
	if maskedPicture(string(old)) == maskedPicture(string(got)) {
		return
	}
	if !*update {
		p.Errorf("%s shows what kshare does not print any more: 'make pictures' draws it anew, and this is the new screen\n%s\n%s", path, s.Text(), maskedPicture(string(got)))
		return
	}
	if err := os.WriteFile(path, got, 0o644); err != nil {
		p.Fatal(err)
	}
}

// take pictures what a command shows at its end.
func (p person) take(name string, width, code int, command string) {
	p.Helper()
	p.picture(name, command, p.see(width, code, strings.Fields(command)[1:]...))
}

// The pictures of the documentation show what kshare prints. They are drawn from
// real output on a sandbox: make pictures.
func TestPictures(t *testing.T) {
	t.Parallel()
	sc := startScene(t)
	p := person{t, sc}
	stage := func(id string, timeout time.Duration, group, topic string, all ...scene.Do) {
		t.Helper()
		if err := sc.Stage(t.Context(), id, timeout, group, topic, all...); err != nil {
			t.Fatal(err)
		}
	}
	stage("billing-7", 5*time.Minute, "billing", scene.Orders,
		scene.Do{Count: 3, As: wire.Accept, Staged: true}, scene.Do{Count: 14, As: wire.Accept}, scene.Do{Count: 3, As: wire.Reject},
		scene.Do{Count: 8, As: wire.Accept}, scene.Do{Count: 4, As: wire.Release}, scene.Do{Count: 6, As: wire.Accept, Staged: true}, scene.Do{Count: 2, As: wire.Gap})
	stage("audit-2", 15*time.Minute, "audit", scene.Invoices, scene.Do{Count: 12, As: wire.Accept, Staged: true})
	p.take("feature-describe", 130, 0, "kshare feature describe")
	p.take("feature-plan", 118, 0, "kshare feature plan --to share.version=1")
	drain := "kshare drain --interval 200ms"
	s := p.start(terminal.Options{Width: 140}, strings.Fields(drain)[1:]...)
	p.waitFor(s, "draining, records left: ")
	p.picture("drain", drain, s.Screen())
	if err := s.Interrupt(); err != nil {
		t.Fatal(err)
	}
	p.end(s, 130)
	stage("shipping-1", 5*time.Minute, "shipping", scene.Orders, scene.Do{Count: 5, As: wire.Accept, Staged: true})
	if err := sc.Forget(t.Context(), "shipping-1"); err != nil {
		t.Fatal(err)
	}
	p.take("inspect-pending", 130, 0, "kshare inspect pending")
	p.take("inspect-partition", 118, 0, "kshare inspect partition billing orders 0")
	p.take("demo", 118, 0, "kshare demo")
}
