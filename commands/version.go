package commands

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// Set by the linker in released builds (-X); "" in others, which then say what
// the Go tool recorded.
var version, commit, date string

// versionInfo says which build this is. Fields are null where the build does
// not know.
type versionInfo struct {
	Version string  `json:"version"`
	Commit  *string `json:"commit"`
	Date    *string `json:"date"` // of the commit, RFC 3339
	Go      string  `json:"go"`
	OS      string  `json:"os"`
	Arch    string  `json:"arch"`
}

type versionOptions struct{}

func newVersionCmd(d *Deps, run runFunc[versionOptions, versionInfo]) *cobra.Command {
	return instant(&cobra.Command{
		Use:   "version",
		Short: "Show which build of kshare this is",
		Long:  "Show which build of kshare this is. Neither the network nor any file is touched.",
		Example: `  kshare version
  kshare version -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := run(cmd.Context(), d, versionOptions{})
			return d.show(versionView(v), err)
		},
	})
}

func runVersion(context.Context, *Deps, versionOptions) (versionInfo, error) {
	v := versionInfo{Version: buildVersion(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	v.Commit, v.Date = known(commit), known(date)
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			switch {
			case s.Key == "vcs.revision" && v.Commit == nil:
				v.Commit = known(s.Value)
			case s.Key == "vcs.time" && v.Date == nil:
				v.Date = known(s.Value)
			}
		}
	}
	return v, nil
}

// buildVersion is the version of this build, "devel" where nothing says which. It has
// no v in front, however the program was built.
func buildVersion() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = new(debug.BuildInfo)
	}
	return versionOf(version, build)
}

// versionOf prefers what the linker was told. The Go tool has recorded the version
// that "go install" was given, or one that it made from the tag and the commit.
func versionOf(linked string, build *debug.BuildInfo) string {
	switch {
	case linked != "":
		return linked
	case build.Main.Version == "" || build.Main.Version == "(devel)":
		return "devel"
	default:
		return strings.TrimPrefix(build.Main.Version, "v")
	}
}

func known(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func versionView(v versionInfo) output.View {
	t := output.NewTable("VERSION", "COMMIT", "DATE", "GO", "PLATFORM")
	t.Row(output.Key(v.Version), v.Commit, v.Date, v.Go, fmt.Sprintf("%s/%s", v.OS, v.Arch))
	return output.View{Kind: "version", Version: 1, Data: v, Table: t}
}
