package commands

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// parse runs a command with a run function that keeps the options it was given, and
// returns them. d has what parsing alone may look at; what it lacks is empty.
func parse[O, R any](t *testing.T, d *Deps, newCmd func(*Deps, runFunc[O, R]) *cobra.Command, words []string) (O, error) {
	t.Helper()
	if d.flags == nil {
		d.flags = &globalFlags{}
	}
	d.Now = func() time.Time { return time.Time{} }
	var got O
	stop := errors.New("parsed")
	cmd := newCmd(d, func(_ context.Context, _ *Deps, o O) (R, error) {
		got = o
		var none R
		return none, stop
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{}, words...)) // cobra takes nil for those of the process
	err := cmd.ExecuteContext(t.Context())
	if errors.Is(err, stop) {
		err = nil
	}
	return got, err
}

// parseAct is [parse] for a command that may change the cluster, as of a script that
// says yes or not. Words are separated by "|".
func parseAct[O, R any](t *testing.T, newCmd func(*Deps, runFunc[O, R]) *cobra.Command, args string, yes bool) (O, error) {
	t.Helper()
	return parse(t, &Deps{flags: &globalFlags{Yes: yes}}, newCmd, barWords(args))
}

// barWords are the words of a line that are separated by "|".
func barWords(line string) []string {
	if line == "" {
		return nil
	}
	return strings.Split(line, "|")
}
