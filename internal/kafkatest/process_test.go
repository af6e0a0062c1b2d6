package kafkatest

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// heir is set in the process that TestNothingOutlivesTheTest kills.
const heir = "KAFKATEST_HEIR"

// A child that inherits the writing end of a pipe keeps it open: the reading end
// sees the end of the pipe when parent and child are gone.
func TestNothingOutlivesTheTest(t *testing.T) {
	if os.Getenv(heir) != "" {
		p, err := startProcess(exec.Command("sleep", "600"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.NewFile(3, "pipe").WriteString("started"); err != nil {
			t.Fatal(err)
		}
		<-p.done // killed before
		return
	}
	if dieWithParent() == nil {
		t.Skip("this system does not tie a child to its parent")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestNothingOutlivesTheTest$")
	cmd.Env = append(os.Environ(), heir+"=1")
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	started := make([]byte, len("started"))
	if _, err := io.ReadFull(r, started); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		t.Errorf("after the end of the test: %q, %v", rest, err)
	}
}

func TestFailureToStartShowsWhy(t *testing.T) {
	Need(t)
	for name, tt := range map[string]struct {
		cfg  Config
		want string
	}{
		"format":  {Config{Features: map[string]int16{"share.version": 99}}, "share.version"},
		"node":    {Config{Props: map[string]string{"num.io.threads": "many"}}, "num.io.threads"},
		"release": {Config{Version: "no:release"}, "download Kafka no:release with Maven"},
		"config":  {Config{Authorizer: true}, "an authorizer without users"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.cfg.Version != "" {
				t.Setenv("XDG_CACHE_HOME", t.TempDir())
			}
			c, err := start(t.Context(), tt.cfg)
			if err == nil {
				c.end(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("start(%+v): %v, want %q", tt.cfg, err, tt.want)
			}
		})
	}
}

func TestCompareVersions(t *testing.T) {
	for _, v := range [][2]string{{"4.0.2", "4.4.0"}, {"4.2.2", "4.10.0"}, {"4.2", "4.2.1"}} {
		if compareVersions(v[0], v[1]) >= 0 || compareVersions(v[1], v[0]) <= 0 || compareVersions(v[0], v[0]) != 0 {
			t.Errorf("compareVersions does not put %s before %s", v[0], v[1])
		}
	}
}

// outcome keeps what a test was told.
type outcome struct {
	testing.TB
	failed, skipped string
}

func (o *outcome) Helper()                   {}
func (o *outcome) Fatalf(f string, a ...any) { o.failed = f }
func (o *outcome) Skip(args ...any)          { o.skipped = "skipped" }

func TestNeed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CI", "")
	var o outcome
	if Need(&o); o.failed != "" || o.skipped == "" {
		t.Errorf("without Java: %+v, want it skipped", o)
	}
	t.Setenv("CI", "true")
	o = outcome{}
	if Need(&o); o.failed == "" || o.skipped != "" {
		t.Errorf("without Java in CI: %+v, want it failed", o)
	}
}
