package feature

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kversion"
)

func TestNewPlan(t *testing.T) {
	old := released(kversion.V4_3_0())
	holding := holdingAcks("tx", "Ongoing")
	for name, c := range map[string]struct {
		brokers []cluster.BrokerVersions
		to      []string
		open    *inspect.Evidence
		err     string
		dir     Direction
		steps   []string          // "id state"
		why     map[string]string // part of the reason, by step
		next    string
		command string // of the levels
	}{
		"before the binaries are rolled": {
			brokers: []cluster.BrokerVersions{old, old}, to: []string{"share.version=2"}, dir: Upgrade,
			steps: []string{"binaries ready", "soak todo", "levels todo"}, next: "binaries",
			why:     map[string]string{"binaries": "broker 0 supports 0-1 of share.version; broker 1 supports 0-1"},
			command: "kshare feature upgrade share.version=2",
		},
		"in the midst of the roll": {
			brokers: []cluster.BrokerVersions{kip(1, 2), old}, to: []string{"share.version=2", "transaction.version=2"}, dir: Upgrade,
			steps: []string{"binaries ready", "soak todo", "levels todo", "advertised todo", "clients todo"}, next: "binaries",
			why: map[string]string{"binaries": "broker 1 supports 0-1 of share.version"}, command: "kshare feature upgrade share.version=2",
		},
		"soaking": {
			brokers: []cluster.BrokerVersions{kip(1, 1), kip(1, 1)}, to: []string{"share.version=2", "transaction.version=2"}, dir: Upgrade,
			steps: []string{"binaries done", "soak ready", "levels todo", "advertised todo", "clients todo"}, next: "soak",
			why: map[string]string{
				"binaries": "all 2 brokers answer and support share.version=2 and transaction.version=2",
				"levels":   "share.version is at 1 (share groups (KIP-932)); transaction.version is at 1",
			},
			command: "kshare feature upgrade share.version=2 transaction.version=2",
		},
		"a level that lacks another": {
			brokers: []cluster.BrokerVersions{kip(1, 1)}, to: []string{"share.version=2"}, dir: Upgrade,
			steps: []string{"binaries done", "soak ready", "levels blocked", "advertised todo", "clients todo"}, next: "soak",
			why: map[string]string{"levels": "share.version=2 needs transaction.version=2"}, command: "kshare feature upgrade share.version=2",
		},
		"all but the clients": {
			brokers: []cluster.BrokerVersions{kip(2, 2)}, to: []string{"share.version=2", "transaction.version=2"}, dir: Upgrade,
			steps: []string{"binaries done", "soak done", "levels done", "advertised done", "clients ready"}, next: "clients",
			why: map[string]string{"clients": "TxnPendingRecordsCount above 0 for more than 60 s"},
		},
		"the draft": {
			brokers: []cluster.BrokerVersions{draft(2)}, to: []string{"share.version=3"}, dir: Upgrade,
			steps: []string{"binaries done", "soak ready", "levels todo", "advertised todo", "clients todo"}, next: "soak",
			command: "kshare feature upgrade share.version=3",
		},
		"a silent broker blocks": {
			brokers: []cluster.BrokerVersions{kip(1, 2), silent()}, to: []string{"share.version=2"}, dir: Upgrade,
			steps: []string{"binaries blocked", "soak todo", "levels blocked", "advertised todo", "clients todo"}, next: "binaries",
			why: map[string]string{"binaries": "broker 1 (broker:9092) did not answer", "levels": "did not answer"}, command: "kshare feature upgrade share.version=2",
		},
		"one broker behind": {
			brokers: []cluster.BrokerVersions{atEpoch(stock44(1), 3), stock44(2)}, to: []string{"share.version=2"}, dir: Upgrade,
			steps: []string{"binaries done", "soak ready", "levels blocked"}, next: "soak",
			why: map[string]string{"levels": "broker 0 still reports level 1 of share.version"}, command: "kshare feature upgrade ",
		},
		"the dead-letter queue has no clients to wait for": {
			brokers: []cluster.BrokerVersions{stock44(1)}, to: []string{"share.version=2"}, dir: Upgrade,
			steps: []string{"binaries done", "soak ready", "levels todo"}, next: "soak", command: "kshare feature upgrade share.version=2",
		},
		"a feature that no broker knows": {
			brokers: []cluster.BrokerVersions{released(kversion.V4_0_0())}, to: []string{"share.version=1"}, dir: Upgrade,
			steps: []string{"binaries ready", "soak todo", "levels todo"}, next: "binaries",
			why: map[string]string{"binaries": "no broker knows share.version"}, command: "kshare feature upgrade share.version=1",
		},
		"levels that are not known": {
			brokers: []cluster.BrokerVersions{atEpoch(stock44(1), -1)}, to: []string{"share.version=2"}, dir: Upgrade,
			steps: []string{"binaries blocked", "soak todo", "levels blocked"}, next: "binaries",
			why: map[string]string{"levels": "the level of share.version is not known"}, command: "kshare feature upgrade share.version=2",
		},
		"down, with a transaction open": {
			brokers: []cluster.BrokerVersions{kip(2, 2)}, to: []string{"share.version=1"}, dir: Downgrade, open: using(holding),
			steps: []string{"halt ready", "drain blocked", "levels todo", "binaries todo"}, next: "halt",
			why: map[string]string{"halt": `they are at work: "tx" (Ongoing)`, "drain": "1 transaction is open"}, command: "kshare feature downgrade share.version=1",
		},
		"down, with something hidden": {
			brokers: []cluster.BrokerVersions{kip(2, 2)}, to: []string{"share.version=1"}, dir: Downgrade, open: hiding(),
			steps: []string{"halt ready", "drain blocked", "levels todo", "binaries todo"}, next: "halt",
			why: map[string]string{"drain": "unknown is not zero: hidden"}, command: "kshare feature downgrade share.version=1",
		},
		"down, without a look": {
			brokers: []cluster.BrokerVersions{kip(2, 2)}, to: []string{"share.version=1"}, dir: Downgrade,
			steps: []string{"halt ready", "drain blocked", "levels todo", "binaries todo"}, next: "halt",
			why: map[string]string{"drain": "it is not known which transactions are open"}, command: "kshare feature downgrade share.version=1",
		},
		"down, drained": {
			brokers: []cluster.BrokerVersions{kip(2, 2)}, to: []string{"share.version=1"}, dir: Downgrade, open: using(),
			steps: []string{"halt done", "drain done", "levels ready", "binaries todo"}, next: "levels",
			why: map[string]string{"levels": "share.version is at 2"}, command: "kshare feature downgrade share.version=1",
		},
		"down, producers": {
			brokers: []cluster.BrokerVersions{stock44(2)}, to: []string{"transaction.version=1"}, dir: Downgrade, open: using(plain("p", "Ongoing")),
			steps: []string{"halt ready", "drain blocked", "levels todo", "binaries todo"}, next: "halt",
			why: map[string]string{"halt": `"p"`}, command: "kshare feature downgrade transaction.version=1",
		},
		"down, with nobody to suffer": {
			brokers: []cluster.BrokerVersions{stock44(2)}, to: []string{"share.version=1"}, dir: Downgrade,
			steps: []string{"levels ready", "binaries todo"}, next: "levels", command: "kshare feature downgrade share.version=1",
		},
		"both ways at once": {
			brokers: []cluster.BrokerVersions{stock44(1)}, to: []string{"share.version=2", "transaction.version=1"}, err: "direction",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlan(report(c.brokers...), updates(t, c.to...), c.open)
			if kind(err) != c.err {
				t.Fatalf("NewPlan fails with %v, want %q", err, c.err)
			}
			if err != nil {
				return
			}
			var steps []string
			for _, s := range p.Steps {
				steps = append(steps, s.ID+" "+string(s.State))
				if want, ok := c.why[s.ID]; ok && !strings.Contains(s.Why, want) {
					t.Errorf("step %s: why %q, want %q in it", s.ID, s.Why, want)
				}
				if s.Title == "" || s.Why == "" {
					t.Errorf("step %s has no title or reason", s.ID)
				}
				if s.ID == "levels" {
					got := ""
					if s.Command != nil {
						got = *s.Command
					}
					if got != c.command {
						t.Errorf("the levels are changed by %q, want %q", got, c.command)
					}
				}
			}
			if !slices.Equal(steps, c.steps) || p.Direction != c.dir {
				t.Errorf("%s by %q, want %s by %q", p.Direction, steps, c.dir, c.steps)
			}
			if p.Next == nil || *p.Next != c.next {
				t.Errorf("next %v, want %s", p.Next, c.next)
			}
		})
	}
}

// The plan names what the change names.
func TestPlanHasEffects(t *testing.T) {
	p, err := NewPlan(report(stock44(1)), updates(t, "share.version=2"), nil)
	if err != nil {
		t.Fatal(err)
	}
	levels := p.Steps[2]
	wantSentences(t, "effects", levels.Effects, []string{"share.version=2 is share groups with dead-letter queues"})
	wantSentences(t, "points of no return", levels.NoReturn, []string{"software older than Kafka 4.4"})
}

func TestMatrix(t *testing.T) {
	m := NewMatrix(report(kip(2, 2), kip(1, 2), stock44(2), silent()))
	var got []string
	for _, c := range m.Cells {
		for _, b := range c.Here {
			got = append(got, fmt.Sprintf("%s %d %s", c.Client, b, c.Outcome))
		}
	}
	want := []string{
		"new 0 works", "new 1 " + outcomeRefused, "new 2 " + outcomeRefused, "new 3 " + outcomeUnknown,
		"old 0 " + outcomeUnaffected, "old 1 " + outcomeUnaffected, "old 2 " + outcomeUnaffected, "old 3 " + outcomeUnaffected,
	}
	if !slices.Equal(got, want) {
		t.Errorf("matrix %q, want %q", got, want)
	}
	if cell := NewMatrix(report(draft(3))).Cells[0]; cell.Broker != "share.version=3" || !slices.Equal(cell.Here, []int32{0}) {
		t.Errorf("the first column of the draft is %+v", cell)
	}
}
