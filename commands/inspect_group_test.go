package commands

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/output"
	"github.com/spf13/cobra"
)

// oddIDs are IDs that Kafka, or a client that is not well, may have.
func oddIDs() []string {
	return []string{
		strings.Repeat("g", 249), "\u65e5\u672c\u8a9e \U0001F600 e\u0301", "a\nb\tc\x1b[31m\x00\u202e\u009b9", "caf\xe9\xff\xfe",
	}
}

// parseInspect is [parse] for words that are separated by "|".
func parseInspect[O, R any](t *testing.T, newCmd func(*Deps, runFunc[O, R]) *cobra.Command, args string) (O, error) {
	t.Helper()
	return parse(t, &Deps{}, newCmd, barWords(args))
}

func TestInspectGroupParsing(t *testing.T) {
	for args, want := range map[string]inspectGroupOptions{
		"":                      {},
		"billing":               {GroupIDs: []string{"billing"}},
		"b|a|--dialect|draft":   {connection: connection{Dialect: "draft"}, GroupIDs: []string{"b", "a"}},
		"--|-x":                 {GroupIDs: []string{"-x"}},
		"a group|--dialect=kip": {connection: connection{Dialect: "kip"}, GroupIDs: []string{"a group"}},
	} {
		if got, err := parseInspect(t, newInspectGroupCmd, args); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("inspect group %s = %+v, %v, want %+v", args, got, err, want)
		}
	}
	for args, want := range map[string]string{
		"--dialect|x": `--dialect "x": want kip or draft`,
		"a|":          "a group ID is empty",
	} {
		_, err := parseInspect(t, newInspectGroupCmd, args)
		if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("inspect group %s: error %v (%d), want a usage error with %q", args, err, code, want)
		}
	}
}

// goldenGroup is a share group that has all that one can have.
func goldenGroup() inspect.GroupRow {
	return inspect.GroupRow{
		GroupID: "billing", State: new("Stable"), Coordinator: new(int32(2)), GroupEpoch: new(int32(7)), AssignmentEpoch: new(int32(6)),
		Assignor: new("simple"), MemberCount: new(2), SharePartitionCount: new(4), Lag: new(int64(1009)),
		GroupDescription: &inspect.GroupDescription{
			Members: []inspect.MemberRow{
				{
					MemberID: "Xf1ztk5HQ9m4TTFZMHGzDw", ClientID: "billing-1", ClientHost: "/10.0.0.7", RackID: "r1", MemberEpoch: 7,
					Topics: []string{"invoices", "orders"}, Assignment: []inspect.TopicPartitions{{Topic: "invoices", Partitions: []int32{0}}, {Topic: "orders", Partitions: []int32{0, 1, 2, 5}}},
				},
				{MemberID: "zdVvZgp4RYSZlHbwJsVJwA", ClientID: "billing-2", ClientHost: "/10.0.0.8", MemberEpoch: 6, Topics: []string{"orders"}, Assignment: []inspect.TopicPartitions{}},
			},
			SharePartitions: []inspect.SharePartitionRow{
				{Topic: "invoices", TopicID: "AAECAwQFBgcICQoLDA0ODw", TopicState: "recreated", Partition: 0, StartOffset: new(int64(4)), Lag: new(int64(1000)), LeaderEpoch: new(int32(1)), Members: []string{"Xf1ztk5HQ9m4TTFZMHGzDw"}},
				{Topic: "orders", TopicID: "Z03cdLzLTb6RkKltydTIXQ", Partition: 0, StartOffset: new(int64(1200)), EndOffset: new(int64(1212)), Lag: new(int64(9)), LeaderEpoch: new(int32(0)), Members: []string{"Xf1ztk5HQ9m4TTFZMHGzDw"}},
				{Topic: "orders", TopicID: "Z03cdLzLTb6RkKltydTIXQ", Partition: 1, EndOffset: new(int64(0)), LeaderEpoch: new(int32(0))},
				{Topic: "orders", TopicID: "Z03cdLzLTb6RkKltydTIXQ", Partition: 2, StartOffset: new(int64(7)), Lag: new(int64(0)), LeaderEpoch: new(int32(0))},
			},
			Configs: []inspect.GroupConfig{
				{Name: "share.auto.offset.reset", Value: new("earliest"), Source: "GROUP_CONFIG"},
				{Name: "share.record.lock.duration.ms", Value: new("30000"), Source: "DEFAULT_CONFIG", BrokerConfig: "group.share.record.lock.duration.ms"},
				{Name: "share.session.timeout.ms", Source: "DEFAULT_CONFIG"},
			},
			RecordLockDurationMS: new(int64(30_000)),
			DeadLetterQueue:      &inspect.DeadLetterQueue{Active: true, Reason: `topic "billing-dlq" takes rejected records`, Topic: new("billing-dlq"), CopyRecord: true},
			TxPending:            &inspect.TxPendingSummary{Status: inspect.StatusPending, Reason: "11 records of 2 share-partitions are in TX_PENDING", Records: 11, SharePartitions: 2, Owners: 1, OldestAgeMS: new(int64(12_300))},
		},
	}
}

func groupReport(rows ...inspect.GroupRow) *inspect.GroupReport {
	return &inspect.GroupReport{ClusterID: "golden", Groups: rows}
}

func TestInspectGroupGolden(t *testing.T) {
	short := func(id string) inspect.GroupRow {
		g := goldenGroup()
		g.GroupID, g.GroupDescription = id, nil
		return g
	}
	unknown := inspect.GroupRow{GroupID: "hidden", Coordinator: new(int32(1))}
	denied := groupReport(short("billing"), unknown)
	denied.Gaps = []inspect.Gap{{
		Source: inspect.SourceShareGroupDescribe, Reason: "this principal lacks DESCRIBE on GROUP hidden (GROUP_AUTHORIZATION_FAILED), so the group is hidden from it",
		KafkaError: "GROUP_AUTHORIZATION_FAILED", ACL: &inspect.ACL{Operation: "DESCRIBE", ResourceType: "GROUP", ResourceName: "hidden"}, Advice: "grant it: bin/kafka-acls.sh",
	}}
	stock := goldenGroup()
	stock.DeadLetterQueue = &inspect.DeadLetterQueue{Reason: "the group names no topic (errors.deadletterqueue.topic.name)"}
	stock.TxPending, stock.State, stock.MemberCount, stock.Members = nil, new("Empty"), new(0), []inspect.MemberRow{}
	noted := groupReport(goldenGroup())
	noted.Notes = []string{`topic "invoices" was deleted and created again since share group "billing" has state for it`}
	hidden := groupReport(inspect.GroupRow{GroupID: "hidden", Coordinator: new(int32(1)), GroupDescription: &inspect.GroupDescription{}})
	hidden.Gaps = denied.Gaps
	var odd []inspect.GroupRow
	for _, id := range oddIDs() {
		odd = append(odd, short(id))
	}
	oddMember := goldenGroup()
	oddMember.GroupID, oddMember.Members[0].ClientID, oddMember.Members[0].RackID = oddIDs()[3], oddIDs()[2], oddIDs()[1]
	for name, v := range map[string]output.View{
		"list":           inspectGroupView(groupReport(short("audit"), short("billing")), false),
		"list_denied":    inspectGroupView(denied, false),
		"list_empty":     inspectGroupView(groupReport(), false),
		"list_odd":       inspectGroupView(groupReport(odd...), false),
		"describe":       inspectGroupView(noted, true),
		"describe_stock": inspectGroupView(groupReport(stock), true),
		"describe_none":  inspectGroupView(hidden, true),
		"describe_odd":   inspectGroupView(groupReport(oddMember), true),
	} {
		t.Run(name, func(t *testing.T) { inspectGolden(t, "group_"+name, v) })
	}
}

// inspectGolden compares a view in every format with a file that is read as a
// user would.
func inspectGolden(t *testing.T, name string, v output.View) {
	t.Helper()
	if v.Time.IsZero() {
		v.Time = pendingNoon
	}
	var b strings.Builder
	for _, f := range output.Formats() {
		b.WriteString("-- " + string(f) + " --\n")
		var one strings.Builder
		if err := output.Write(&one, v, output.Options{Format: f}); err != nil {
			t.Fatal(err)
		}
		if f != output.FormatCSV && strings.ContainsRune(one.String(), 0x1b) {
			t.Errorf("%s: a terminal sequence got through: %q", f, one.String())
		}
		b.WriteString(one.String())
	}
	b.WriteString("-- empty --\n" + v.Empty + "\n")
	golden(t, filepath.Join("testdata", "inspect_"+name+".golden"), b.String())
}

// A line is a row whatever is in it, also on a narrow terminal.
func TestInspectRowsAreLines(t *testing.T) {
	var rows []inspect.GroupRow
	for _, id := range oddIDs() {
		g := goldenGroup()
		g.GroupID, g.GroupDescription = id, nil
		rows = append(rows, g)
	}
	var txns []inspect.TxnRow
	for _, id := range oddIDs() {
		txns = append(txns, inspect.TxnRow{TransactionalID: id, State: "Ongoing", Partitions: []inspect.TopicPartitions{}, HoldsShareAcks: new(false)})
	}
	for name, v := range map[string]output.View{
		"group": inspectGroupView(groupReport(rows...), false),
		"txn":   inspectTxnView(&inspect.TxnReport{Time: pendingNoon, Rows: txns}, inspectTxnOptions{}),
	} {
		for _, o := range []output.Options{{Format: output.FormatTable}, {Format: output.FormatTable, Width: 60, Color: true}, {Format: output.FormatWide}} {
			var b strings.Builder
			if err := output.Write(&b, v, o); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(b.String(), "\n"); n != len(oddIDs())+1 {
				t.Errorf("%s %+v: %d lines for %d rows:\n%s", name, o, n, len(oddIDs()), b.String())
			}
		}
	}
}

func TestJoinPartitions(t *testing.T) {
	for want, parts := range map[string][]int32{
		"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2": {0, 2}, "0-1,5,7-9": {0, 1, 5, 7, 8, 9},
	} {
		if got := joinPartitions(parts); got != want {
			t.Errorf("joinPartitions(%v) = %q, want %q", parts, got, want)
		}
	}
}

func pendingAge(d time.Duration) *int64 { return new(d.Milliseconds()) }
