package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/wire"
)

// pendingRun is one run of "inspect pending" over reports that a test gives.
type pendingRun struct {
	out, errOut bytes.Buffer
	code        int
	looks       int
	closed      int
	opts        inspectPendingOptions
}

// look returns the report, or the error, of the n-th look, counted from 0.
type look func(ctx context.Context, n int) (*inspect.PendingReport, error)

// always looks at the same evidence.
func always(evs ...*inspect.Evidence) look {
	return func(_ context.Context, n int) (*inspect.PendingReport, error) {
		return inspect.NewPendingReport(evs[min(n, len(evs)-1)], inspect.Filter{}), nil
	}
}

func runPending(t *testing.T, look look, change func(*Deps), args ...string) *pendingRun {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	return runPendingContext(t, ctx, look, change, args...)
}

func runPendingContext(t *testing.T, ctx context.Context, look look, change func(*Deps), args ...string) *pendingRun {
	t.Helper()
	r := new(pendingRun)
	d := &Deps{
		Out: &r.out, ErrOut: &r.errOut, Getenv: func(string) string { return "" },
		Now: time.Now, flags: &globalFlags{},
	}
	if change != nil {
		change(d)
	}
	cmd := newInspectPendingCmd(d, func(_ context.Context, _ *Deps, o inspectPendingOptions) (*pendingLooker, error) {
		r.opts = o
		return &pendingLooker{
			Look: func(ctx context.Context) (*inspect.PendingReport, error) {
				r.looks++
				return look(ctx, r.looks-1)
			},
			Close: func() { r.closed++ },
		}, nil
	})
	d.flags.addTo(cmd.PersistentFlags())
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{}, args...))
	r.code = d.report(withCause(ctx, cmd.ExecuteContext(ctx)))
	return r
}

var pendingNoon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// pendingEvidence is that of a cluster where nothing is pending.
func pendingEvidence(change ...func(*inspect.Evidence)) *inspect.Evidence {
	ev := &inspect.Evidence{
		Time: pendingNoon, ClusterID: "golden", Support: cluster.Support{Verdict: cluster.Usable}, StatePartitions: 50, Sweep: 10 * time.Second,
		Topics: map[[16]byte]string{{1}: "orders", {2}: "invoices"},
	}
	for _, c := range change {
		c(ev)
	}
	return ev
}

func pendingTxn(id, state string, pid int64, epoch int16, age time.Duration, statePartitions ...int32) inspect.Transaction {
	return inspect.Transaction{
		TransactionalID: id, State: state, ProducerID: pid, ProducerEpoch: epoch, Coordinator: 2, TimeoutMS: 60_000, Started: pendingNoon.Add(-age),
		Partitions: []inspect.TopicPartitions{{Topic: "__share_group_state", Partitions: statePartitions}},
	}
}

func pendingStaged(first, last, pid int64, epoch int16, ack wire.AcknowledgeType) wire.StateBatch {
	return wire.StateBatch{
		FirstOffset: first, LastOffset: last, DeliveryState: wire.TxPending, DeliveryCount: 1,
		Staged: wire.StagedOwner{ProducerID: pid, ProducerEpoch: epoch, AcknowledgeType: int8(ack), DeliveryState: 2},
	}
}

func pendingState(group string, topic byte, partition int32, batches ...wire.StateBatch) inspect.ShareState {
	id := [16]byte{topic}
	return inspect.ShareState{
		GroupID: group, TopicID: id, Partition: partition, StatePartition: wire.ShareStatePartition(group, id, partition, 50),
		Batches: batches, Written: pendingNoon.Add(-2 * time.Minute), Sources: []inspect.Source{inspect.SourceStateTopic, inspect.SourceShareGroupState},
	}
}

// somePending has a row of every kind.
func somePending() *inspect.Evidence {
	return pendingEvidence(func(ev *inspect.Evidence) {
		ev.States = []inspect.ShareState{
			pendingState("billing", 1, 0, pendingStaged(10, 19, 4000, 3, wire.Accept), pendingStaged(20, 20, 4000, 3, wire.Reject)),
			pendingState("billing", 1, 1, pendingStaged(7, 7, 4001, 0, wire.Accept)),
			pendingState("billing", 9, 0, pendingStaged(0, 4, 4002, 1, wire.Accept)),
			pendingState("audit", 2, 3, pendingStaged(100, 199, 4003, 8, wire.Accept)),
			pendingState("audit", 2, 4, pendingStaged(1, 1, 4004, 0, wire.Accept)),
		}
		n := func(i int) int32 { return ev.States[i].StatePartition }
		twoPhase := pendingTxn("flink-sink-1", "Ongoing", 4003, 8, 26*time.Hour, n(3))
		twoPhase.TimeoutMS = inspect.TwoPhaseTimeoutMS
		ev.Transactions = []inspect.Transaction{
			pendingTxn("billing-7", "Ongoing", 4000, 3, 12300*time.Millisecond, n(0)),
			pendingTxn("billing-8", "PrepareCommit", 4001, 1, 5*time.Minute, n(1)),
			twoPhase,
			pendingTxn("over", "Ongoing", 4004, 0, 72*time.Second, n(4)),
			pendingTxn("somewhere", "Ongoing", 4005, 0, time.Second, 7),
		}
		many := inspect.Group{GroupID: "many", Members: []string{"m1"}}
		for p := range int32(500) {
			many.Partitions = append(many.Partitions, inspect.SharePartition{Topic: "orders", TopicID: [16]byte{1}, Partition: p, Lag: int64(p)})
		}
		ev.Groups = []inspect.Group{{GroupID: "audit", Members: []string{}}, {GroupID: "billing"}, many}
	})
}

// oddPending has the worst of names.
func oddPending() *inspect.Evidence {
	names := []string{
		strings.Repeat("long-", 49) + "name", "\u65e5\u672c \u202e\u0645\u0631", "a\nb\x1b[31m\x00\u009b'\"", "\xff\xfe bytes", "-x --flag",
	}
	return pendingEvidence(func(ev *inspect.Evidence) {
		for i, name := range names {
			s := pendingState(name, 1, int32(i), pendingStaged(0, 9, int64(i), 0, wire.Accept))
			ev.States = append(ev.States, s)
			ev.Transactions = append(ev.Transactions, pendingTxn(name, "Ongoing", int64(i), 0, time.Duration(i+1)*time.Second, s.StatePartition))
		}
		ev.Groups = []inspect.Group{{GroupID: names[2], Partitions: []inspect.SharePartition{{Topic: "a\nb", TopicID: [16]byte{1}, Lag: -1}, {Topic: "a\nb", TopicID: [16]byte{1}, Partition: 50, Lag: 3}}}}
		ev.Transactions = append(ev.Transactions, pendingTxn("many candidates", "Ongoing", 99, 0, 0, wire.ShareStatePartition(names[2], [16]byte{1}, 0, 50)))
	})
}

func unknownPending(rows bool) *inspect.Evidence {
	ev := pendingEvidence()
	if rows {
		ev = somePending()
	}
	ev.Gaps = []inspect.Gap{
		{
			Source: inspect.SourceDescribeTransactions, Reason: "this principal lacks DESCRIBE on TRANSACTIONAL_ID *, so open transactions may be hidden", KafkaError: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
			ACL: &inspect.ACL{Operation: "DESCRIBE", ResourceType: "TRANSACTIONAL_ID", ResourceName: "*"}, Advice: "grant it: bin/kafka-acls.sh --add --operation Describe --transactional-id '*'",
		},
		{Source: inspect.SourceListTransactions, Broker: new(int32(3)), Reason: "broker 3 did not answer: connection refused", Advice: "start broker 3"},
	}
	return ev
}

func TestInspectPendingParsing(t *testing.T) {
	base := func(change func(*inspectPendingOptions)) inspectPendingOptions {
		o := inspectPendingOptions{Interval: 2 * time.Second}
		change(&o)
		return o
	}
	for args, want := range map[string]inspectPendingOptions{
		"": base(func(*inspectPendingOptions) {}),
		"--group a,b --group c --topic t --txn x --older-than 1m": base(func(o *inspectPendingOptions) {
			o.Groups, o.Topics, o.TransactionalIDs, o.OlderThan = []string{"a,b", "c"}, []string{"t"}, []string{"x"}, time.Minute
		}),
		"--summary --check --dialect kip": base(func(o *inspectPendingOptions) { o.Summary, o.Check, o.Dialect = true, true, "kip" }),
		"--wait --check --interval 5s":    base(func(o *inspectPendingOptions) { o.Wait, o.Check, o.Interval = true, true, 5*time.Second }),
	} {
		r := runPending(t, always(pendingEvidence()), nil, splitWords(args)...)
		if r.code != 0 || !reflect.DeepEqual(r.opts, want) {
			t.Errorf("inspect pending %s: %+v, exit code %d, want %+v\n%s", args, r.opts, r.code, want, r.errOut.String())
		}
	}
}

func TestInspectPendingUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--older-than 0s":       "--older-than 0s: want a positive duration",
		"--older-than=-1s":      "want a positive duration",
		"--watch --wait":        "--watch and --wait exclude each other",
		"--watch --check":       "--check is about one look",
		"--interval 1s":         "--interval is for --watch and --wait",
		"--wait --interval 1ms": "--interval 1ms: want at least 100ms",
		"--watch -o csv":        "--watch has no CSV form",
		"--dialect x":           `--dialect "x": want kip or draft`,
		"billing":               `takes no argument, and got "billing"`,
	} {
		r := runPending(t, always(pendingEvidence()), nil, splitWords(args)...)
		if r.code != exitUsage || !strings.Contains(r.errOut.String(), want) || r.looks > 0 {
			t.Errorf("inspect pending %s: exit code %d, %d looks, want a usage error with %q\n%s", args, r.code, r.looks, want, r.errOut.String())
		}
	}
}

// The whole of what is shown, in every format, with exit code and stderr.
func TestInspectPendingGolden(t *testing.T) {
	for name, c := range map[string]struct {
		ev   *inspect.Evidence
		args []string
		code int
	}{
		"pending":               {ev: somePending()},
		"pending_check":         {ev: somePending(), args: []string{"--check", "-q"}, code: exitRefused},
		"pending_summary":       {ev: somePending(), args: []string{"--summary"}},
		"pending_odd":           {ev: oddPending()},
		"pending_odd_summary":   {ev: oddPending(), args: []string{"--summary"}},
		"pending_none":          {ev: pendingEvidence(), args: []string{"--check"}},
		"pending_none_summary":  {ev: pendingEvidence(), args: []string{"--summary"}},
		"pending_unsupported":   {ev: pendingEvidence(func(ev *inspect.Evidence) { ev.Support = cluster.Support{Reason: "api key 93 is not advertised"} }), args: []string{"--check"}},
		"pending_unknown":       {ev: unknownPending(false), code: exitPartial},
		"pending_unknown_rows":  {ev: unknownPending(true), code: exitPartial},
		"pending_unknown_check": {ev: unknownPending(false), args: []string{"--check"}, code: exitRefused},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			for _, f := range output.Formats() {
				r := runPending(t, always(c.ev), nil, append([]string{"-o", string(f), "-b", "broker:9092"}, c.args...)...)
				if r.code != c.code || r.closed != 1 {
					t.Errorf("-o %s: exit code %d, want %d; closed %d times", f, r.code, c.code, r.closed)
				}
				fmt.Fprintf(&b, "-- %s --\n%s-- %s, stderr --\n%s", f, r.out.String(), f, r.errOut.String())
				if f != output.FormatCSV && strings.ContainsAny(r.out.String()+r.errOut.String(), "\x1b\x00\u009b") {
					t.Errorf("-o %s writes characters that drive a terminal", f)
				}
			}
			golden(t, filepath.Join("testdata", "inspect_"+name+".golden"), b.String())
		})
	}
}

// On a terminal rows are cut to its width, one line each.
func TestInspectPendingNarrow(t *testing.T) {
	r := runPending(t, always(oddPending()), func(d *Deps) { d.StdoutTTY, d.Width = true, 100 }, "--no-color")
	golden(t, filepath.Join("testdata", "inspect_pending_narrow.golden"), r.out.String())
}

// The command of a row can be pasted: it is complete, and a shell brings the
// arguments back as they are.
func TestPendingCommandLine(t *testing.T) {
	for _, c := range []struct {
		args      []string
		bootstrap []string
		want      string
	}{
		{[]string{"txn", "fence", "billing-7"}, nil, "kshare txn fence billing-7"},
		{[]string{"txn", "fence", "billing-7"}, []string{"a:1", "b:2"}, "kshare txn fence billing-7 -b a:1,b:2"},
		{[]string{"txn", "fence", "it's \"mine\""}, []string{"a:1"}, `kshare txn fence 'it'\''s "mine"' -b a:1`},
		{[]string{"txn", "fence", "a\x1b\nb"}, []string{"a:1"}, `kshare txn fence $'a\033\012b' -b a:1`},
		{[]string{"txn", "fence", "--", "-x"}, []string{"a:1"}, "kshare txn fence -b a:1 -- -x"},
		{[]string{"txn", "fence", "a\x00b"}, nil, ""},
		{nil, nil, ""},
	} {
		d := &Deps{flags: &globalFlags{Bootstrap: c.bootstrap}}
		if got, ok := d.commandLine(c.args); got != c.want || ok != (c.want != "") {
			t.Errorf("command line of %q with -b %q = %q, %v, want %q", c.args, c.bootstrap, got, ok, c.want)
		}
	}
}

// Each owner is told once, however many rows it has, and not too many of them.
func TestPendingHints(t *testing.T) {
	ev := pendingEvidence(func(ev *inspect.Evidence) {
		for i := range int32(15) {
			s := pendingState("g", 1, i, pendingStaged(0, 0, int64(i), 0, wire.Accept), pendingStaged(5, 5, int64(i), 0, wire.Accept))
			ev.States = append(ev.States, s)
			ev.Transactions = append(ev.Transactions, pendingTxn(fmt.Sprint("txn-", i), "Ongoing", int64(i), 0, time.Second, s.StatePartition))
		}
	})
	got := pendingHints(&Deps{flags: &globalFlags{}}, inspect.NewPendingReport(ev, inspect.Filter{}))
	if len(got) != 11 || got[10] != "and 5 more; -o wide and -o json have the command of each row" {
		t.Errorf("hints are\n%s", strings.Join(got, "\n"))
	}
	if want := `"txn-0": ends by itself at 2026-11-29T12:01:09Z; fencing its transactional ID ends it now: kshare txn fence txn-0`; got[0] != want {
		t.Errorf("the first hint is %q, want %q", got[0], want)
	}
}

// bubblePending runs in a bubble, where waiting takes no time.
func bubblePending(t *testing.T, f func(*testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func TestInspectPendingWait(t *testing.T) {
	broken := errors.New("connection broke")
	denied := &cluster.AuthError{Err: errors.New("denied")}
	permission := unknownPending(false)
	silent := unknownPending(false)
	silent.Gaps = silent.Gaps[1:]
	fails := func(errs map[int]error, evs ...*inspect.Evidence) look {
		return func(ctx context.Context, n int) (*inspect.PendingReport, error) {
			if err := errs[n]; err != nil {
				return nil, err
			}
			return always(evs...)(ctx, n)
		}
	}
	for name, c := range map[string]struct {
		look  look
		args  []string
		code  int
		looks int
		took  time.Duration
		says  []string
		items int
	}{
		"none at once":         {look: always(pendingEvidence()), looks: 1, says: []string{"no record is in TX_PENDING"}},
		"none in the end":      {look: always(somePending(), somePending(), pendingEvidence()), looks: 3, took: 4 * time.Second},
		"another interval":     {look: always(somePending(), pendingEvidence()), args: []string{"--interval", "30s"}, looks: 2, took: 30 * time.Second},
		"not for ever":         {look: always(somePending()), code: exitDeadline, looks: 6, took: 10 * time.Second, items: 7, says: []string{"10s"}},
		"a permission":         {look: always(somePending(), permission), code: exitPartial, looks: 2, took: 2 * time.Second, says: []string{"grant it: bin/kafka-acls.sh"}},
		"a permission, check":  {look: always(permission), args: []string{"--check"}, code: exitRefused, looks: 1},
		"a silent broker":      {look: always(silent, silent, pendingEvidence()), looks: 3, took: 4 * time.Second, says: []string{"warning: broker 3 did not answer"}},
		"silent all the time":  {look: always(silent), code: exitDeadline, looks: 6, took: 10 * time.Second},
		"not supported":        {look: always(pendingEvidence(func(ev *inspect.Evidence) { ev.Support.Verdict = cluster.NotSupported })), looks: 1, says: []string{"does not exist on this cluster"}},
		"a look that fails":    {look: fails(map[int]error{1: broken, 2: broken}, somePending(), nil, nil, pendingEvidence()), looks: 4, took: 6 * time.Second, says: []string{"warning: connection broke"}},
		"the first look fails": {look: fails(map[int]error{0: broken}), code: exitFailed, looks: 1},
		"denied later":         {look: fails(map[int]error{1: denied}, somePending()), code: exitAuth, looks: 2, took: 2 * time.Second, items: 7},
		"endless ones are told": {
			look: always(somePending(), somePending(), pendingEvidence()), looks: 3, took: 4 * time.Second,
			says: []string{`"flink-sink-1" takes part in a two-phase commit and never times out`, "records of producer 4002 have no open transaction"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubblePending(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second+time.Millisecond, &timeoutError{flag: "10s"})
				if name == "another interval" {
					ctx = t.Context()
				}
				r := runPendingContext(t, ctx, c.look, nil, append([]string{"--wait", "-o", "json"}, c.args...)...)
				cancel()
				if took := time.Since(start).Truncate(10 * time.Millisecond); r.code != c.code || r.looks != c.looks || took != c.took {
					t.Errorf("exit code %d after %d looks and %s, want %d, %d, %s\n%s", r.code, r.looks, took, c.code, c.looks, c.took, r.errOut.String())
				}
				said := r.out.String() + unJSON(t, r.errOut.String())
				for _, want := range c.says {
					if !strings.Contains(said, want) {
						t.Errorf("nothing says %q\n%s", want, said)
					}
				}
				if n := strings.Count(r.errOut.String(), "two-phase commit"); n > 1 {
					t.Errorf("a two-phase commit is warned of %d times", n)
				}
				var doc struct{ Items []any }
				if r.out.Len() > 0 {
					if err := json.Unmarshal(r.out.Bytes(), &doc); err != nil {
						t.Fatal(err)
					}
				}
				if len(doc.Items) != c.items {
					t.Errorf("the document has %d items, want those of the last look, %d", len(doc.Items), c.items)
				}
			})
		})
	}
}

// unJSON turns the lines on stderr into what they say.
func unJSON(t *testing.T, lines string) string {
	t.Helper()
	var b strings.Builder
	for l := range strings.Lines(lines) {
		var m struct{ Kind, Message, Error, Hint string }
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("line %q on stderr: %v", l, err)
		}
		fmt.Fprintf(&b, "%s: %s%s %s\n", m.Kind, m.Message, m.Error, m.Hint)
	}
	return b.String()
}

// While it waits, people see how many are left and when the next ones end.
func TestInspectPendingWaitProgress(t *testing.T) {
	bubblePending(t, func(t *testing.T) {
		evs := make([]*inspect.Evidence, 8)
		for i := range evs {
			evs[i] = somePending()
		}
		r := runPending(t, always(append(evs, pendingEvidence())...), nil, "--wait")
		if want := "kshare: records in TX_PENDING (6 owners, a deadline is over): 118 after 10s\n"; !strings.Contains(r.errOut.String(), want) {
			t.Errorf("stderr is\n%swant %s", r.errOut.String(), want)
		}
	})
}

// interrupted returns a context that a signal ends after some time.
func interrupted(t *testing.T, after time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(after, func() { cancel(&SignalError{Signal: os.Interrupt}) })
	return ctx
}

func TestInspectPendingWatchDocuments(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		tty  bool
		sep  string
	}{
		"json":             {args: []string{"-o", "json"}, tty: true},
		"yaml":             {args: []string{"-o", "yaml"}, sep: "---\n"},
		"table, no tty":    {},
		"wide, no tty":     {args: []string{"-o", "wide"}},
		"summary, no tty":  {args: []string{"--summary"}},
		"json, no changes": {args: []string{"-o", "json"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubblePending(t, func(t *testing.T) {
				r := runPendingContext(t, interrupted(t, 5*time.Second), always(somePending(), unknownPending(false), pendingEvidence()), func(d *Deps) { d.StdoutTTY = c.tty }, append([]string{"--watch"}, c.args...)...)
				if r.code != exitInterrupted || r.looks != 3 || r.closed != 1 {
					t.Errorf("exit code %d after %d looks, closed %d times", r.code, r.looks, r.closed)
				}
				if c.sep != "" {
					if n := strings.Count(r.out.String(), c.sep); n != 3 {
						t.Errorf("%d documents:\n%s", n, r.out.String())
					}
					return
				}
				lines := strings.Split(strings.TrimSuffix(r.out.String(), "\n"), "\n")
				var statuses []string
				for _, l := range lines {
					var doc struct {
						Kind       string
						Incomplete bool
						Data       struct{ Status string }
					}
					if err := json.Unmarshal([]byte(l), &doc); err != nil {
						t.Fatalf("line %q: %v", l, err)
					}
					statuses = append(statuses, fmt.Sprint(doc.Data.Status, doc.Incomplete))
				}
				if got := strings.Join(statuses, " "); got != "pendingfalse unknowntrue nonefalse" {
					t.Errorf("documents with %s", got)
				}
				unJSON(t, r.errOut.String()) // JSON as well
			})
		})
	}
}

// On a terminal the same place is drawn again, as high as it is, and the last
// frame stays when it ends.
func TestInspectPendingWatchScreen(t *testing.T) {
	bubblePending(t, func(t *testing.T) {
		height := 8
		r := runPendingContext(t, interrupted(t, 3*time.Second), always(somePending(), unknownPending(true)), func(d *Deps) {
			d.StdoutTTY, d.StderrTTY = true, true
			d.Size = func() (int, int) { height += 4; return 120, height }
		}, "--watch", "--no-color")
		if r.code != exitInterrupted {
			t.Errorf("exit code %d", r.code)
		}
		golden(t, filepath.Join("testdata", "inspect_pending_watch.golden"), strings.ReplaceAll(r.out.String(), "\x1b", "ESC")+"-- stderr --\n"+r.errOut.String())
	})
}

// A terminal that is gone ends the watch.
func TestInspectPendingWatchClosed(t *testing.T) {
	bubblePending(t, func(t *testing.T) {
		r := runPending(t, always(somePending()), func(d *Deps) {
			d.StdoutTTY = true
			d.Out = closedPipe{}
		}, "--watch")
		if r.code != exitClosedPipe || r.looks != 1 {
			t.Errorf("exit code %d after %d looks\n%s", r.code, r.looks, r.errOut.String())
		}
	})
}

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }
