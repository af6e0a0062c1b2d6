package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// runFunc is the operation behind a command. The tree passes the real one; a
// test of parsing passes a function that keeps the options.
type runFunc[O, R any] func(context.Context, *Deps, O) (R, error)

// Main runs kshare with args, which do not include the name of the program, and
// returns its exit code. It prints everything there is to print, also errors.
// It can be called more than once in a process; calls share nothing.
func Main(ctx context.Context, args []string, deps Deps) int {
	d := &deps
	d.flags = &globalFlags{}
	t := newTree(d)
	if isCompletion(args) {
		t.complete()
	}
	t.root.SetArgs(args)
	defer func() { t.stop() }()
	return d.report(t.execute(ctx, args))
}

// Root returns the command tree, for what documents it. It cannot be run: [Main]
// does that, with a tree of its own.
func Root() *cobra.Command { return newTree(&Deps{flags: &globalFlags{}}).root }

// tree is the command tree of one call of Main.
type tree struct {
	d       *Deps
	root    *cobra.Command
	started bool   // a command was reached and its flags and arguments are right
	helpErr error  // why a help text could not be written; cobra cannot return it
	stop    func() // ends what a command asked of the process
}

func newTree(d *Deps) *tree {
	root := &cobra.Command{
		Use:   "kshare",
		Short: "Operate Kafka share groups that take part in transactions",
		Long: `Kshare is for share groups that take part in transactions (KIP-1289).

No released Apache Kafka implements KIP-1289. Kshare works with clusters that
do, with released Kafka for what is real there, and brings a sandbox that
implements it: 'kshare sandbox run'.

It is made for scripts: results go to stdout and all else to stderr, -o json has
a stable schema, and exit codes are an interface ('kshare help exit-codes').
With -o json every line on stderr is a JSON object too; the one of an error has
the kind "error". --jq filters the JSON, --columns and --no-headers are for
scripts that read lines.`,
		Example: `  kshare sandbox run --topic orders
  kshare version -o json
  kshare version -r --jq .data.version
  kshare feature mapping --columns release,feature,supported --no-headers`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	}
	t := &tree{d: d, root: root, stop: func() {}}
	d.flags.addTo(root.PersistentFlags())
	root.SetIn(d.In)
	root.SetOut(d.Out)
	root.SetErr(d.ErrOut)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_, t.helpErr = io.WriteString(cmd.OutOrStdout(), helpText(cmd))
	})
	root.SetHelpCommand(newHelpCmd(root))
	root.AddCommand(
		newFeatureCmd(d),
		newDrainCmd(d, runDrain),
		newTxnCmd(d),
		newAckCmd(d, runAck),
		newInspectCmd(d),
		newCtpCmd(d, runCtp),
		newConfigCmd(d),
		newDoctorCmd(d, runDoctor),
		newSandboxCmd(d),
		newDemoCmd(d, runDemo),
		newCompletionCmd(d, runCompletion),
		newVersionCmd(d, runVersion),
		newExitCodesTopic(), newExecTopic(), newSettingsTopic(),
	)
	root.InitDefaultHelpCmd() // it is added now, and not when the tree runs: it is finished like all others
	t.finish(root)
	return t
}

// finish gives every command what all of them share. It runs once, over the
// whole tree, so that no command can forget it.
func (t *tree) finish(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		t.finish(sub)
	}
	cmd.Flags().SortFlags = false
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = needSubcommand
	}
	if !cmd.Runnable() {
		return // a help topic
	}
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := t.d.flags.check(); err != nil {
			return err
		}
		if err := checkNotEmpty(cmd.Flags()); err != nil {
			return err
		}
		if err := t.d.checkResult(cmd); err != nil {
			return err
		}
		t.started = true
		ctx := cmd.Context()
		if t.d.Notify != nil && cmd.Annotations[instantAnnotation] == "" {
			ctx, t.stop = t.d.Notify(ctx)
		}
		ctx, cancel := t.withTimeout(ctx)
		defer cancel()
		cmd.SetContext(ctx)
		t.d.ended = ctx
		return withCause(ctx, run(cmd, args))
	}
}

// instantAnnotation is the key under which a command says that it is instant.
const instantAnnotation = "kshare instant"

// instant marks a command that waits for nothing and leaves nothing half done.
// Signals may do to it what they do by default: catching them is a tenth of the
// time that it takes.
func instant(cmd *cobra.Command) *cobra.Command {
	annotate(cmd, instantAnnotation, "true")
	return cmd
}

func annotate(cmd *cobra.Command, key, value string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] = value
}

func (t *tree) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if t.d.flags.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, t.d.flags.Timeout, &timeoutError{flag: t.d.flags.Timeout.String()})
}

// timeoutError is the cause of a context that --timeout ended.
type timeoutError struct{ flag string }

func (e *timeoutError) Error() string { return "--timeout " + e.flag + " passed" }
func (*timeoutError) Unwrap() error   { return context.DeadlineExceeded }

// withCause says why a context ended to an error that came of it. Whatever a
// command failed with after it was told to stop, the stop is the reason: a
// client that is cut off fails in ways of its own.
func withCause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if errors.Is(err, cause) {
		return err
	}
	if err.Error() == ctx.Err().Error() {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// execute runs the tree. What cobra itself complains of, before a command is
// started, is wrong usage.
func (t *tree) execute(ctx context.Context, args []string) error {
	cmd, err := t.root.ExecuteContextC(ctx)
	if err == nil {
		return stdoutError(t.helpErr)
	}
	if t.started {
		return err
	}
	if t.d.flags.Output == output.FormatTable && (wantsJSON(args) || t.wantsFilter(args)) {
		t.d.flags.Output = output.FormatJSON // it stands after the flag that is wrong
	}
	if isA[*usageError]()(err) {
		return err
	}
	// Flags that follow an unknown command are those of its parent to cobra, which
	// complains of them first.
	if parent, rest, findErr := t.root.Find(args); findErr == nil && parent.HasSubCommands() {
		if word := firstWord(parent, rest); word != "" {
			return needSubcommand(parent, []string{word})
		}
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok && e.GetFlag().Value.Type() == "duration" {
		if seconds, err := strconv.ParseFloat(e.GetValue(), 64); err == nil && seconds >= 0 {
			return hintf(usagef("%s", e), "a duration has a unit: --%s %ss, or 500ms, 2m, 1h30m", e.GetFlag().Name, e.GetValue())
		}
	}
	if cmd == t.root {
		return hintf(usagef("%s", err), "'kshare --help' lists commands, 'kshare COMMAND --help' lists flags")
	}
	return hintf(usagef("%s", err), "'%s --help' says how to call it", cmd.CommandPath())
}

// firstWord returns the first argument that is neither a flag of cmd nor the value
// of one, "" if there is none or a flag comes first that cmd does not have.
func firstWord(cmd *cobra.Command, args []string) string {
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "-")
		if !isFlag {
			return args[i]
		}
		name, _, hasValue := strings.Cut(name, "=")
		f := cmd.Flag(strings.TrimPrefix(name, "-"))
		if len(name) == 1 {
			f = cmd.InheritedFlags().ShorthandLookup(name)
			if f == nil {
				f = cmd.Flags().ShorthandLookup(name)
			}
		}
		if f == nil {
			return ""
		}
		if f.NoOptDefVal == "" && !hasValue {
			i++ // its value
		}
	}
	return ""
}

// wantsJSON looks for -o json among arguments that could not be parsed.
func wantsJSON(args []string) bool {
	for i, a := range args {
		switch a {
		case "--":
			return false
		case "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			if i+1 < len(args) && args[i+1] == "json" {
				return true
			}
		}
	}
	return false
}

// wantsFilter looks for a filter of JSON among arguments that could not be parsed.
func (t *tree) wantsFilter(args []string) bool {
	names := []string{flagOutputJQ}
	cmd, _, err := t.root.Find(args)
	if err == nil && cmd.Flag(flagJQ) == t.root.PersistentFlags().Lookup(flagJQ) {
		names = append(names, flagJQ)
	}
	for _, a := range args {
		name, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		switch {
		case a == "--":
			return false
		case strings.HasPrefix(a, "--") && slices.Contains(names, name):
			return true
		}
	}
	return false
}

// noArgs refuses arguments. An expression that the shell has split ends here.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return hintf(usagef("%q takes no argument, and got %q", cmd.CommandPath(), args[0]),
		"quote values that have blanks; '%s --help' lists flags", cmd.CommandPath())
}

// checkNotEmpty refuses flags whose value is empty, as that of --group "$GROUP"
// is where the variable is not set: a script that names something must not get
// the default instead. So is one of several values; but in a list of brokers, which
// are as good without it, a comma too many is none.
func checkNotEmpty(fs *pflag.FlagSet) error {
	var err error
	fs.Visit(func(f *pflag.Flag) {
		empty := f.Value.Type() == "string" && f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values := list.GetSlice()
			empty = len(values) == 0 || f.Name != "bootstrap-server" && slices.Contains(values, "")
		}
		if empty && err == nil {
			err = hintf(usagef("--%s: the value is empty", f.Name), "leave the flag out to get the default")
		}
	})
	return err
}

// needSubcommand is what a command does that only has subcommands: it tells
// them to whoever asked for none, and suggests one to whoever mistyped it.
func needSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{
			msg:  fmt.Sprintf("%q needs a command", cmd.CommandPath()),
			help: helpText(cmd),
		}
	}
	err := usagef("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return hintf(err, "did you mean '%s %s'?", cmd.CommandPath(), s[0])
	}
	if below := findBelow(cmd, args[0]); below != nil {
		return hintf(err, "did you mean '%s'?", below.CommandPath())
	}
	return hintf(err, "'%s --help' lists commands", cmd.CommandPath())
}

// findBelow returns the first command of a name below those of cmd, nil if there is
// none: "pending" is below inspect.
func findBelow(cmd *cobra.Command, name string) *cobra.Command {
	for _, sub := range cmd.Commands() {
		for _, below := range sub.Commands() {
			if below.Name() == name {
				return below
			}
		}
	}
	return nil
}

// exitAnnotation is the key under which a command keeps the exit codes that it has
// beside those of all.
const exitAnnotation = "kshare exit codes"

// ExitStatus returns the lines that the help of a command of [Root] has about
// exit codes; "" for a help topic.
func ExitStatus(cmd *cobra.Command) string {
	if !cmd.Runnable() {
		return ""
	}
	return exitCodeHelp(exitCodesOf(cmd))
}

// exits adds codes to those that every command can end with.
func exits(cmd *cobra.Command, codes ...int) *cobra.Command {
	var b strings.Builder
	for _, c := range codes {
		fmt.Fprintf(&b, "%d ", c)
	}
	annotate(cmd, exitAnnotation, b.String())
	return cmd
}

// exitCodesOf returns the codes that cmd can end with, ascending.
func exitCodesOf(cmd *cobra.Command) []int {
	codes := []int{exitDone, exitFailed, exitDeadline, exitUsage, exitInterrupted, exitClosedPipe, exitTerminated}
	for f := range strings.FieldsSeq(cmd.Annotations[exitAnnotation]) {
		var c int
		if _, err := fmt.Sscan(f, &c); err == nil && !slices.Contains(codes, c) {
			codes = append(codes, c)
		}
	}
	slices.Sort(codes)
	return codes
}
