package commands

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

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
	build, ok := debug.ReadBuildInfo()
	v.Commit, v.Date = known(commit), known(date)
	if ok {
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

// buildVersion is the version of this build, "devel" where nothing says which.
func buildVersion() string {
	if version != "" {
		return version
	}
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" && build.Main.Version != "(devel)" {
		return build.Main.Version
	}
	return "devel"
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
