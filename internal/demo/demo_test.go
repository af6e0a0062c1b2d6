package demo_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/demo"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
)

// start starts a sandbox of a dialect at a level, with the orders loaded.
func start(t *testing.T, d wire.Dialect, level int16) []string {
	t.Helper()
	sb, err := sandbox.Start(t.Context(),
		sandbox.WithBrokers(1), sandbox.WithDialect(d), sandbox.WithShareVersion(level),
		sandbox.WithTopics(sandbox.Topic{Name: demo.SourceTopic, Partitions: 3}, sandbox.Topic{Name: demo.DestinationTopic, Partitions: 3}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := sb.Load(t.Context(), demo.SourceTopic, demo.Orders(), sandbox.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	return strings.Split(sb.BootstrapServers(), ",")
}

func TestRun(t *testing.T) {
	t.Parallel()
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			var started []string
			steps, err := demo.Run(t.Context(), demo.Options{
				BootstrapServers: start(t, d, d.ShareVersion-1), Dialect: d, Now: time.Now,
				Started: func(s demo.Step) { started = append(started, s.Name) },
			})
			if err != nil {
				t.Fatal(err)
			}
			want := []struct{ name, result string }{
				{"look", "not enabled"},
				{"raise", "are usable"},
				{"copy", "1000 consumed, 250 produced, 10 rejected"},
				{"stage", "25 records of share group"},
				{"inspect", "25 records in TX_PENDING; transaction \"demo-pending-0\" is Ongoing"},
				{"refuse", `refused, nothing was changed: 1 open transaction holds or may hold share acknowledgements: "demo-pending-0" (Ongoing)`},
				{"drain", `25 records acknowledged: transaction "demo-pending-0" is CompleteCommit; drained: nothing was pending in `},
				{"lower", "not enabled"},
			}
			if len(steps) != len(want) || len(started) != len(want) {
				t.Fatalf("%d steps, %d started, want %d", len(steps), len(started), len(want))
			}
			for i, w := range want {
				if steps[i].Name != w.name || started[i] != w.name || !strings.Contains(steps[i].Result, w.result) {
					t.Errorf("step %d: %q, started %q, result %q, want %q with %q", i, steps[i].Name, started[i], steps[i].Result, w.name, w.result)
				}
			}
		})
	}
}

// A step that did not do what it says ends the demonstration: nothing is faked.
func TestRunNoticesWhatIsNotSo(t *testing.T) {
	t.Parallel()
	d := wire.Dialects()[0]
	steps, err := demo.Run(t.Context(), demo.Options{BootstrapServers: start(t, d, d.ShareVersion), Dialect: d, Now: time.Now})
	if err == nil || !strings.Contains(err.Error(), `demo step "look": transactional acknowledgements are usable`) {
		t.Errorf("Run() on an enabled cluster = %v, want a failure of the first step", err)
	}
	if len(steps) != 0 {
		t.Errorf("%d steps are said to be done, want none", len(steps))
	}
}
