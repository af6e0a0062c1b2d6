package commands

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/output"
	"github.com/kshare/kshare/sandbox"
	"github.com/spf13/cobra"
)

// parseSandboxFault is [parse] where every variable of the environment is env.
func parseSandboxFault[O, R any](t *testing.T, newCmd func(*Deps, runFunc[O, R]) *cobra.Command, env, args string) (O, error) {
	t.Helper()
	return parse(t, &Deps{Getenv: func(string) string { return env }}, newCmd, strings.Fields(args))
}

func TestSandboxFaultParsing(t *testing.T) {
	at := sandboxControl{Control: "127.0.0.1:9099"}
	for _, c := range []struct {
		args string
		want sandbox.Fault
	}{
		{"stop-sweeper", sandbox.Fault{Kind: sandbox.FaultStopSweeper}},
		{"drop-marker --transactional-id t --state-partition 0 --count 2", sandbox.Fault{
			Kind: sandbox.FaultDropMarker, TransactionalID: "t", StatePartition: new(int32(0)), Count: 2,
		}},
		{"delay-marker --duration 1m30s", sandbox.Fault{Kind: sandbox.FaultDelayMarker, DurationMs: 90_000}},
		{"crash-leader --group g --topic in --partition 3", sandbox.Fault{
			Kind: sandbox.FaultCrashLeader, GroupID: "g", Topic: "in", Partition: new(int32(3)),
		}},
		{"move-leader --topic in --partition 0 --to-broker 0", sandbox.Fault{
			Kind: sandbox.FaultMoveLeader, Topic: "in", Partition: new(int32(0)), ToBroker: new(int32(0)),
		}},
		{"answer-error --api-key 26 --broker 1 --error NOT_COORDINATOR", sandbox.Fault{
			Kind: sandbox.FaultAnswerError, APIKey: new(int16(26)), Broker: new(int32(1)), Error: "NOT_COORDINATOR",
		}},
		{"hang-coordinator --coordinator share", sandbox.Fault{Kind: sandbox.FaultHangCoordinator, Coordinator: "share"}},
	} {
		got, err := parseSandboxFault(t, newSandboxFaultInjectCmd, "", c.args)
		if want := (sandboxFaultInjectOptions{at, c.want}); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("inject %s = %+v, %v; want %+v", c.args, got, err, want)
		}
	}
	for args, want := range map[string]sandboxFaultClearOptions{
		"--all":                     {sandboxControl: at, IDs: []string{}, All: true},
		"a b --control 127.0.0.1:1": {sandboxControl: sandboxControl{"127.0.0.1:1"}, IDs: []string{"a", "b"}},
	} {
		if got, err := parseSandboxFault(t, newSandboxFaultClearCmd, "", args); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("clear %s = %+v, %v; want %+v", args, got, err, want)
		}
	}
	if got, err := parseSandboxFault(t, newSandboxFaultListCmd, "localhost:7", ""); err != nil || got.Control != "localhost:7" {
		t.Errorf("list with an address in the environment = %+v, %v", got, err)
	}
}

func TestSandboxFaultRefuses(t *testing.T) {
	refuses := func(name string, err error, want string) {
		t.Helper()
		if code, _ := classify(err); code != exitUsage || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v (%d), want %s", name, err, code, want)
		}
	}
	_, err := parseSandboxFault(t, newSandboxFaultInjectCmd, "", "")
	refuses("inject", err, "want one kind of fault")
	_, err = parseSandboxFault(t, newSandboxFaultInjectCmd, "", "drop-marker stop-sweeper")
	refuses("inject two", err, "want one kind of fault")
	_, err = parseSandboxFault(t, newSandboxFaultInjectCmd, "", "drop-markers")
	refuses("inject drop-markers", err, `no kind of fault is called "drop-markers"`)
	_, err = parseSandboxFault(t, newSandboxFaultInjectCmd, "", "stop-sweeper --control 9099")
	refuses("a port alone", err, `--control "9099": want HOST:PORT`)
	_, err = parseSandboxFault(t, newSandboxFaultListCmd, "nowhere", "")
	refuses("a host alone in the environment", err, `--control "nowhere": want HOST:PORT`)
	_, err = parseSandboxFault(t, newSandboxFaultClearCmd, "", "")
	refuses("clear", err, "want IDs of faults, or --all")
	_, err = parseSandboxFault(t, newSandboxFaultClearCmd, "", "a --all")
	refuses("clear both", err, "want IDs of faults, or --all")
}

// The commands and the control endpoint of a sandbox understand each other.
func TestSandboxFaultOnSandbox(t *testing.T) {
	s, err := sandbox.Start(t.Context(), sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 1}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	srv := httptest.NewServer(s.ControlHandler())
	t.Cleanup(srv.Close)
	at := sandboxControl{strings.TrimPrefix(srv.URL, "http://")}
	ctx := t.Context()

	inject := func(f sandbox.Fault) ([]sandbox.Fault, error) {
		return runSandboxFaultInject(ctx, nil, sandboxFaultInjectOptions{at, f})
	}
	first, err := inject(sandbox.Fault{Kind: sandbox.FaultStopSweeper})
	if err != nil || len(first) != 1 || first[0].ID == "" || first[0].Since.IsZero() {
		t.Fatalf("inject = %+v, %v", first, err)
	}
	if _, err := inject(sandbox.Fault{Kind: sandbox.FaultFreezeBroker, Broker: new(int32(1))}); err != nil {
		t.Fatal(err)
	}
	if now, err := inject(sandbox.Fault{Kind: sandbox.FaultCrashLeader, Topic: "in"}); err != nil || now[0].Hits != 1 {
		t.Errorf("inject a momentary fault = %+v, %v", now, err)
	}
	listed, err := runSandboxFaultList(ctx, nil, sandboxFaultListOptions{at})
	if err != nil || len(listed) != 2 || !reflect.DeepEqual(listed[0], first[0]) {
		t.Errorf("list = %+v, %v", listed, err)
	}
	for name, c := range map[string]struct {
		f    sandbox.Fault
		want string
	}{
		"what does not apply": {sandbox.Fault{Kind: sandbox.FaultStopSweeper, Topic: "in"}, "fault stop-sweeper: topic does not apply"},
		"what is not there":   {sandbox.Fault{Kind: sandbox.FaultCrashLeader, Topic: "out"}, `fault crash-leader: there is no topic "out"`},
	} {
		_, err := inject(c.f)
		if code, _ := classify(err); code != exitUsage || err.Error() != c.want {
			t.Errorf("%s: %v (%d), want %s", name, err, code, c.want)
		}
	}
	cleared, err := runSandboxFaultClear(ctx, nil, sandboxFaultClearOptions{sandboxControl: at, IDs: []string{first[0].ID, "nothing"}})
	if code, _ := classify(err); code != exitFailed || len(cleared) != 1 || !strings.Contains(err.Error(), `fault "nothing": no such fault`) {
		t.Errorf("clear = %+v, %v (%d)", cleared, err, code)
	}
	if cleared, err := runSandboxFaultClear(ctx, nil, sandboxFaultClearOptions{sandboxControl: at, All: true}); err != nil || len(cleared) != 1 {
		t.Errorf("clear all = %+v, %v", cleared, err)
	}
	if listed, err := runSandboxFaultList(ctx, nil, sandboxFaultListOptions{at}); err != nil || len(listed) != 0 {
		t.Errorf("list at the end = %+v, %v", listed, err)
	}
}

func TestSandboxFaultElsewhere(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(srv.Close)
	for name, c := range map[string]struct {
		control, want, hint string
	}{
		"nobody there":  {"127.0.0.1:1", "sandbox at 127.0.0.1:1: ", "start the sandbox with --control"},
		"somebody else": {strings.TrimPrefix(srv.URL, "http://"), "404 Not Found", "control address of a sandbox"},
	} {
		_, err := runSandboxFaultList(t.Context(), nil, sandboxFaultListOptions{sandboxControl{c.control}})
		if code, hint := classify(err); code == exitDone || !strings.Contains(err.Error(), c.want) || !strings.Contains(hint, c.hint) {
			t.Errorf("%s: %v (%d, %q), want %s", name, err, code, hint, c.want)
		}
	}
}

func TestSandboxFaultGoldens(t *testing.T) {
	since := time.Date(2026, 11, 29, 12, 0, 0, 5e6, time.UTC)
	for name, faults := range map[string][]sandbox.Fault{
		"none": nil,
		"some": {
			{ID: "stop-sweeper-1", Kind: sandbox.FaultStopSweeper, Since: since},
			{
				ID: "delay-marker-2", Kind: sandbox.FaultDelayMarker, TransactionalID: "billing 1\x1b[31m", StatePartition: new(int32(0)),
				Count: 3, DurationMs: 90_000, Hits: 2, Held: 1, Since: since,
			},
			{ID: "answer-error-3", Kind: sandbox.FaultAnswerError, APIKey: new(int16(26)), Broker: new(int32(1)), Error: "NOT_COORDINATOR", Count: 1, Since: since},
			{ID: "move-leader-4", Kind: sandbox.FaultMoveLeader, Topic: "in", Partition: new(int32(2)), ToBroker: new(int32(0)), Hits: 1, Since: since},
			{ID: "crash-leader-5", Kind: sandbox.FaultCrashLeader, GroupID: "g", Hits: 1, Since: since},
			{ID: "hang-coordinator-6", Kind: sandbox.FaultHangCoordinator, Coordinator: sandbox.CoordinatorShare, Since: since},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := sandboxFaultView(faults, nil)
			v.Time = since
			var b strings.Builder
			for _, f := range []output.Format{output.FormatTable, output.FormatWide, output.FormatCSV, output.FormatJSON} {
				b.WriteString("-- " + string(f) + " --\n")
				if err := output.Write(&b, v, output.Options{Format: f}); err != nil {
					t.Fatal(err)
				}
			}
			golden(t, filepath.Join("testdata", "sandbox_fault_"+name+".golden"), b.String())
		})
	}
}
