package commands

import (
	"runtime/debug"
	"testing"
)

func TestVersionOf(t *testing.T) {
	for name, tt := range map[string]struct {
		linked, recorded string
		want             string
	}{
		"release":              {"1.2.3", "v1.2.3", "1.2.3"},
		"snapshot of a commit": {"1.2.4-next", "v1.2.4-0.20261129231545-f73c9d0aabbc", "1.2.4-next"},
		"go install @v1.2.3":   {"", "v1.2.3", "1.2.3"},
		"go install @main":     {"", "v0.0.0-20261129231545-f73c9d0aabbc", "0.0.0-20261129231545-f73c9d0aabbc"},
		"go build, changed":    {"", "v1.2.3+dirty", "1.2.3+dirty"},
		"go build, no VCS":     {"", "(devel)", "devel"},
		"no build information": {"", "", "devel"},
	} {
		t.Run(name, func(t *testing.T) {
			build := &debug.BuildInfo{Main: debug.Module{Version: tt.recorded}}
			if got := versionOf(tt.linked, build); got != tt.want {
				t.Errorf("versionOf(%q, %q) = %q, want %q", tt.linked, tt.recorded, got, tt.want)
			}
		})
	}
}
