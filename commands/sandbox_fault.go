package commands

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/sandbox"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newSandboxFaultCmd(d *Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Make something go wrong in a running sandbox",
		Long: `Make something go wrong in a running sandbox, see what does, and take it back.

The sandbox has to have a control endpoint ('kshare sandbox run --control'),
which --control or KSHARE_SANDBOX_CONTROL names here; the default is
` + defaultControl + `. Faults end with the sandbox.`,
		Example: `  kshare sandbox fault inject delay-marker --transactional-id billing-1
  kshare sandbox fault list
  kshare sandbox fault clear --all`,
	}
	cmd.AddCommand(
		newSandboxFaultListCmd(d, runSandboxFaultList),
		newSandboxFaultInjectCmd(d, runSandboxFaultInject),
		newSandboxFaultClearCmd(d, runSandboxFaultClear),
	)
	return cmd
}

// sandboxFaultListOptions is everything "sandbox fault list" can be told.
type sandboxFaultListOptions struct{ sandboxControl }

func newSandboxFaultListCmd(d *Deps, run runFunc[sandboxFaultListOptions, []sandbox.Fault]) *cobra.Command {
	var opts sandboxFaultListOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the faults that are active",
		Long: `List the faults that are active, in the order in which they were injected, with
how often each has struck (HITS) and what it holds back at this moment (HELD).`,
		Example: `  kshare sandbox fault list
  kshare sandbox fault list --control 127.0.0.1:9099 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.resolve(d); err != nil {
				return err
			}
			faults, err := run(cmd.Context(), d, opts)
			return d.show(sandboxFaultView(faults, err), err)
		},
	}
	opts.addTo(cmd.Flags())
	return exits(cmd)
}

func runSandboxFaultList(ctx context.Context, _ *Deps, opts sandboxFaultListOptions) ([]sandbox.Fault, error) {
	return opts.client().faults(ctx)
}

// sandboxFaultInjectOptions is everything "sandbox fault inject" can be told.
type sandboxFaultInjectOptions struct {
	sandboxControl
	Fault sandbox.Fault
}

func newSandboxFaultInjectCmd(d *Deps, run runFunc[sandboxFaultInjectOptions, []sandbox.Fault]) *cobra.Command {
	var opts sandboxFaultInjectOptions
	var flags faultFlags
	cmd := &cobra.Command{
		Use:   "inject <kind>",
		Short: "Make something go wrong",
		Long:  faultInjectHelp(),
		Example: `  kshare sandbox fault inject drop-marker --transactional-id billing-1 --count 1
  kshare sandbox fault inject delay-marker --state-partition 12 --duration 30s
  kshare sandbox fault inject lose-response --count 1
  kshare sandbox fault inject answer-error --api-key 26 --error CONCURRENT_TRANSACTIONS --count 3
  kshare sandbox fault inject hang-coordinator --coordinator share --state-partition 12
  kshare sandbox fault inject move-leader --topic orders --partition 0 --to-broker 2`,
		Args: faultKindArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opts.resolve(d); err != nil {
				return err
			}
			opts.Fault = flags.fault(cmd.Flags(), sandbox.FaultKind(args[0]))
			faults, err := run(cmd.Context(), d, opts)
			return d.show(sandboxFaultView(faults, err), err)
		},
	}
	flags.addTo(cmd.Flags())
	opts.addTo(cmd.Flags())
	return exits(cmd)
}

// faultGroup are kinds of faults that concern the same thing.
type faultGroup struct {
	title string
	kinds []faultText
}

type faultText struct {
	kind      sandbox.FaultKind
	about     string
	momentary bool // has happened when inject returns
}

func faultGroups() []faultGroup {
	return []faultGroup{
		{"End markers on their way to __share_group_state", []faultText{
			{sandbox.FaultDropMarker, "are lost, and count as written: records stay TX_PENDING", false},
			{sandbox.FaultDelayMarker, "are held back, for --duration or until cleared", false},
			{sandbox.FaultDuplicateMarker, "come twice, the second time after --duration", false},
		}},
		{"Requests and responses", []faultText{
			{sandbox.FaultLoseResponse, "is not sent (without --api-key: of TxnShareAcknowledge)", false},
			{sandbox.FaultAnswerError, "--api-key is answered with --error", false},
		}},
		{"Coordinators (--coordinator transaction or share)", []faultText{
			{sandbox.FaultHangCoordinator, "does not answer, for --duration or until cleared", false},
			{sandbox.FaultFailCoordinator, "answers with --error, or COORDINATOR_NOT_AVAILABLE", false},
			{sandbox.FaultMoveCoordinator, "goes to another broker", true},
			{sandbox.FaultStopSweeper, "does not abort transactions that have timed out", false},
			{sandbox.FaultForgetTransaction, "knows nothing of --transactional-id any more", false},
		}},
		{"Leaders and brokers", []faultText{
			{sandbox.FaultCrashLeader, "of share-partitions lose what they hold in memory", true},
			{sandbox.FaultMoveLeader, "of --topic and --partition goes to --to-broker", true},
			{sandbox.FaultRestartBroker, "loses connections, share sessions and memory", true},
			{sandbox.FaultFreezeBroker, "accepts connections and answers nothing", false},
			{sandbox.FaultExpireLocks, "acquisition locks run out", true},
		}},
	}
}

// faultAbout says in a few words what a kind of fault does.
func faultAbout(kind sandbox.FaultKind) string {
	for _, g := range faultGroups() {
		for _, f := range g.kinds {
			if f.kind == kind {
				return f.about
			}
		}
	}
	return ""
}

func faultInjectHelp() string {
	var b strings.Builder
	b.WriteString(`Make something go wrong, in the requests and transactions that the flags select;
what is not given selects all. A fault lasts until it has struck --count times,
or until it is cleared; those marked * have happened at once.
`)
	for _, g := range faultGroups() {
		fmt.Fprintf(&b, "\n%s:", g.title)
		for _, f := range g.kinds {
			name := string(f.kind)
			if f.momentary {
				name += " *"
			}
			fmt.Fprintf(&b, "\n  %-19s %s", name, f.about)
		}
	}
	return b.String()
}

// faultKindArg wants one argument, a kind.
func faultKindArg(_ *cobra.Command, args []string) error {
	names := make([]string, 0, len(sandbox.FaultKinds()))
	for _, k := range sandbox.FaultKinds() {
		if len(args) == 1 && args[0] == string(k) {
			return nil
		}
		names = append(names, string(k))
	}
	if len(args) != 1 {
		return hintf(usagef("want one kind of fault"), "the kinds are %s", strings.Join(names, ", "))
	}
	return hintf(usagef("no kind of fault is called %q", args[0]), "the kinds are %s", strings.Join(names, ", "))
}

// faultFlags are the flags that select what goes wrong.
type faultFlags struct {
	transactionalID, group, topic, coordinator, err     string
	statePartition, partition, broker, toBroker, apiKey int
	count                                               int
	duration                                            time.Duration
}

func (f *faultFlags) addTo(fs *pflag.FlagSet) {
	fs.StringVar(&f.transactionalID, "transactional-id", "", "transactional `id`")
	fs.IntVar(&f.statePartition, "state-partition", 0, "`partition` of __share_group_state")
	fs.StringVar(&f.group, "group", "", "share `group-id`")
	fs.StringVar(&f.topic, "topic", "", "topic `name`")
	fs.IntVar(&f.partition, "partition", 0, "`partition` of the topic")
	fs.IntVar(&f.broker, "broker", 0, "`node` that is addressed")
	fs.IntVar(&f.toBroker, "to-broker", 0, "`node` to move to")
	fs.IntVar(&f.apiKey, "api-key", 0, "api `key` of requests")
	fs.StringVar(&f.coordinator, "coordinator", "", "`kind` of coordinator: transaction or share")
	fs.StringVar(&f.err, "error", "", "error to answer, by Kafka's `name`, such as NOT_COORDINATOR")
	fs.IntVar(&f.count, "count", 0, "strike `number` times (default until cleared)")
	fs.DurationVar(&f.duration, "duration", 0, "let go after `duration` (default when cleared)")
}

// fault is what the flags say; those that were not given are not set.
func (f *faultFlags) fault(fs *pflag.FlagSet, kind sandbox.FaultKind) sandbox.Fault {
	number := func(name string, n int) *int32 {
		if !fs.Changed(name) {
			return nil
		}
		return new(int32(n))
	}
	fault := sandbox.Fault{
		Kind: kind, TransactionalID: f.transactionalID, GroupID: f.group, Topic: f.topic,
		Coordinator: f.coordinator, Error: f.err, Count: f.count, DurationMs: f.duration.Milliseconds(),
		StatePartition: number("state-partition", f.statePartition), Partition: number("partition", f.partition),
		Broker: number("broker", f.broker), ToBroker: number("to-broker", f.toBroker),
	}
	if fs.Changed("api-key") {
		fault.APIKey = new(int16(f.apiKey))
	}
	return fault
}

func runSandboxFaultInject(ctx context.Context, _ *Deps, opts sandboxFaultInjectOptions) ([]sandbox.Fault, error) {
	f, err := opts.client().inject(ctx, opts.Fault)
	if err != nil {
		return nil, err
	}
	return []sandbox.Fault{f}, nil
}

// sandboxFaultClearOptions is everything "sandbox fault clear" can be told.
type sandboxFaultClearOptions struct {
	sandboxControl
	IDs []string
	All bool
}

func newSandboxFaultClearCmd(d *Deps, run runFunc[sandboxFaultClearOptions, []sandbox.Fault]) *cobra.Command {
	var opts sandboxFaultClearOptions
	cmd := &cobra.Command{
		Use:   "clear [<id>...]",
		Short: "End faults, and let go on what they hold back",
		Long: `End faults, by their IDs or with --all. What they hold back goes on: markers are
applied, requests answered. Markers that were dropped do not come back.`,
		Example: `  kshare sandbox fault clear delay-marker-1
  kshare sandbox fault clear --all`,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.IDs = args
			if opts.All == (len(args) > 0) {
				return hintf(usagef("want IDs of faults, or --all"), "'kshare sandbox fault list' has the IDs")
			}
			if err := opts.resolve(d); err != nil {
				return err
			}
			faults, err := run(cmd.Context(), d, opts)
			return d.show(sandboxFaultView(faults, err), err)
		},
	}
	cmd.Flags().BoolVar(&opts.All, "all", false, "end all faults")
	opts.addTo(cmd.Flags())
	return exits(cmd)
}

// runSandboxFaultClear returns the faults that were cleared, also if one could not
// be.
func runSandboxFaultClear(ctx context.Context, _ *Deps, opts sandboxFaultClearOptions) ([]sandbox.Fault, error) {
	c := opts.client()
	if opts.All {
		return c.clearAll(ctx)
	}
	var cleared []sandbox.Fault
	for _, id := range opts.IDs {
		f, err := c.clear(ctx, id)
		if err != nil {
			return cleared, err
		}
		cleared = append(cleared, f)
	}
	return cleared, nil
}

// sandboxFaultView shows faults; nothing where there is only an error.
func sandboxFaultView(faults []sandbox.Fault, err error) output.View {
	if err != nil && len(faults) == 0 {
		return output.View{}
	}
	t := output.NewTable("ID", "KIND", "SELECTS", "COUNT", "HITS", "HELD", "SINCE")
	for _, f := range faults {
		count := any(output.NA())
		if f.Count > 0 {
			count = f.Count
		}
		t.Row(output.Key(f.ID), string(f.Kind), faultSelection(f), count, f.Hits, f.Held, f.Since)
	}
	if faults == nil {
		faults = []sandbox.Fault{}
	}
	return output.View{Kind: "sandbox.fault", Version: 1, Items: faults, Table: t, Empty: "no faults"}
}

// faultSelection says in one cell what a fault selects and does.
func faultSelection(f sandbox.Fault) any {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	number := func(name string, n *int32) {
		if n != nil {
			add(name, strconv.Itoa(int(*n)))
		}
	}
	add("transactional-id", f.TransactionalID)
	number("state-partition", f.StatePartition)
	add("group", f.GroupID)
	add("topic", f.Topic)
	number("partition", f.Partition)
	add("coordinator", f.Coordinator)
	number("broker", f.Broker)
	if f.APIKey != nil {
		add("api-key", strconv.Itoa(int(*f.APIKey)))
	}
	number("to-broker", f.ToBroker)
	add("error", f.Error)
	if f.DurationMs > 0 {
		add("duration", fmt.Sprint(time.Duration(f.DurationMs)*time.Millisecond))
	}
	if len(parts) == 0 {
		return output.NA()
	}
	return strings.Join(parts, ",")
}
