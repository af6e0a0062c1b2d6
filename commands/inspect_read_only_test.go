package commands_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// No command of "inspect" sends a request that changes anything or acquires a
// record.
func TestInspectReadsOnly(t *testing.T) {
	lines := []string{
		"pending", "pending --summary", "pending --group g -o json",
		"group", "group g", "group nobody",
		"partition g in 0", "partition g nothing 0", "partition nobody in 0",
		"txn", "txn --all", "txn --hanging", "txn id", "txn nobody",
	}
	inspect, _, err := commands.Root().Find([]string{"inspect"})
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range inspect.Commands() {
		tested := slices.ContainsFunc(lines, func(line string) bool { return strings.Fields(line)[0] == cmd.Name() })
		if asksBrokers := cmd.Name() != "metrics"; asksBrokers && !tested {
			t.Errorf("%q is not tested here", cmd.CommandPath())
		}
	}
	for _, pending := range []sandbox.PendingState{sandbox.PendingPersisted, sandbox.PendingMemory} {
		t.Run(pending.String(), func(t *testing.T) {
			tap := wiretap.New()
			tap.Ignore(bystander)
			sb, err := sandbox.Start(t.Context(), sandbox.WithListen(tap.Listen), sandbox.WithPendingState(pending), sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 1}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sb.Close() })
			stageAside(t, sb)
			for _, line := range lines {
				tap.Reset()
				args := append([]string{"inspect"}, strings.Fields(line)...)
				res := cmdtest.Run(t, cmdtest.Setup{}, append(args, "-b", sb.BootstrapServers())...)
				if res.Code == 64 {
					t.Errorf("kshare inspect %s: %s", line, res.Stderr)
				}
				if len(tap.Exchanges()) == 0 {
					t.Errorf("kshare inspect %s: nothing was heard", line)
				}
				tap.ReadOnly(t)
			}
		})
	}
}

// bystander is the client ID of those who do not inspect.
const bystander = "bystander"

// stageAside leaves a record of topic "in" staged by group "g" in transaction
// "id".
func stageAside(t *testing.T, sb *sandbox.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: sb.Addrs(), ClientID: bystander})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	producer, err := cl.NewKgo(kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	if err := producer.ProduceSync(ctx, &kgo.Record{}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.SetGroupConfig(ctx, "g", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	member, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "g", Topics: []string{"in"}, MaxWait: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = member.Close(context.WithoutCancel(t.Context())) })
	b, err := member.Poll(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "id"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.WithoutCancel(t.Context())) })
	err = s.Begin(ctx)
	if err == nil {
		err = s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: b.All(wire.Accept), Group: member.GroupMetadata()})
	}
	if err != nil {
		t.Fatal(err)
	}
}
