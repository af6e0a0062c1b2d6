package commands

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
)

func ackOf(t wire.AcknowledgeType, topic string, partition int32, first, last int64) ackRange {
	return ackRange{Type: t, AskedRange: share.AskedRange{Topic: topic, Partition: partition, Range: share.Range{FirstOffset: first, LastOffset: last}}}
}

func TestAckParsing(t *testing.T) {
	got, err := parseAct(t, newAckCmd, "--group|g|--accept|b:1:7-9|--accept|b:1:10|--reject|a:0:4|--accept|b:1:8|--partial|--wait|3s|--prepare|--two-phase|--token-file|x|--transactional-id|id|--dialect|draft", true)
	want := ackOptions{
		connection: connection{Dialect: "draft"},
		ackSelection: ackSelection{GroupID: "g", Ranges: []ackRange{
			ackOf(wire.Reject, "a", 0, 4, 4), ackOf(wire.Accept, "b", 1, 7, 10),
		}},
		TransactionalID: "id", TxnTimeout: txn.DefaultTimeout, Wait: 3 * time.Second, Partial: true, Prepare: true, TwoPhase: true, TokenFile: "x",
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ack = %+v, %v, want %+v", got, err, want)
	}
	prepare, err := parseAct(t, newTxnPrepareCmd, "--transactional-id|id|--produce|out=ack_test.go|--txn-timeout|5m|--dry-run", true)
	if want := (txnPrepareOptions{
		ackOptions: ackOptions{TransactionalID: "id", TxnTimeout: 5 * time.Minute, Prepare: true, DryRun: true},
		Produce:    []produceFile{{"out", "ack_test.go"}},
	}); err != nil || !reflect.DeepEqual(prepare, want) {
		t.Errorf("txn prepare = %+v, %v, want %+v", prepare, err, want)
	}
}

func TestAckUsage(t *testing.T) {
	const g = "--group|g|--accept|"
	for args, want := range map[string]string{
		"":                              "--group is needed",
		"--group|g":                     "--accept, --reject or --from-file is needed",
		g + "a:0":                       "want TOPIC:PARTITION:FIRST-LAST",
		g + "a:0:x":                     "want TOPIC:PARTITION:FIRST-LAST",
		g + "a:0:-1":                    "want TOPIC:PARTITION:FIRST-LAST",
		g + "a:-1:1":                    "want TOPIC:PARTITION:FIRST-LAST",
		g + "a:0:1-2-3":                 "want TOPIC:PARTITION:FIRST-LAST",
		g + "a:0:9223372036854775808":   "want TOPIC:PARTITION:FIRST-LAST",
		g + "a:0:0-9223372036854775807": "a-0, offsets 0 to 9223372036854775807: these are more offsets than there can be",
		g + "a:0:1-9223372036854775806|--reject|b:0:0-9": "b-0, offsets 0 to 9: these are more offsets than there can be",
		g + ":0:1":                   "want TOPIC:PARTITION:FIRST-LAST",
		g + "a:0:2-1":                "the last offset 1 is below the first one, 2",
		g + "a:0:1-5|--reject|a:0:5": "a-0: offset 5 is to be accepted and rejected",
		g + "a:0:1-9|--accept|a:0:2|--reject|a:0:8":        "a-0: offset 8 is to be accepted and rejected",
		g + "a:0:1|--two-phase":                            "--prepare is not given",
		g + "a:0:1|--token-file|x":                         "--prepare is not given",
		g + "a:0:1|--wait|0s":                              "--wait 0s: want a positive duration",
		g + "a:0:1|--txn-timeout|1ms":                      "--txn-timeout 1ms: want at least 1s",
		g + "a:0:1|--prepare|--two-phase|--txn-timeout|5s": "exclude each other",
		g + "a:0:1|--dialect|x":                            `--dialect "x"`,
		"--group|g|--from-file|nowhere":                    "--from-file: open nowhere",
	} {
		wantUsage(t, "ack", args, want, func() error { _, err := parseAct(t, newAckCmd, args, true); return err })
	}
	for args, want := range map[string]string{
		g + "a:0:1":               "no terminal to confirm it on",
		"--group|g|--from-file|-": "stdin has the offsets",
	} {
		wantUsage(t, "ack", args, want, func() error { _, err := parseAct(t, newAckCmd, args, false); return err })
	}
	const id = "--transactional-id|id|"
	for args, want := range map[string]string{
		"":                                    "--transactional-id is needed",
		"--transactional-id|id":               "what to prepare",
		id + "--produce|out":                  "want TOPIC=FILE",
		id + "--produce|out=nowhere":          "stat nowhere",
		id + "--produce|out=-|--produce|in=-": "stdin can be read once only",
		id + "--produce|out=ack_test.go|--two-phase": "--two-phase is for acknowledgements alone",
		id + "--produce|out=ack_test.go|--group|g":   "are for acknowledgements",
		id + "--accept|a:0:1":                        "--group is needed",
	} {
		wantUsage(t, "txn prepare", args, want, func() error { _, err := parseAct(t, newTxnPrepareCmd, args, true); return err })
	}
	wantUsage(t, "txn prepare", "", "stdin has what is to be prepared", func() error {
		_, err := parseAct(t, newTxnPrepareCmd, id+"--produce|out=-", false)
		return err
	})
}

func TestReadAckRanges(t *testing.T) {
	got, err := readAckRanges("f", strings.NewReader("\ufeff# all\n\naccept a:0:1-3 # some\r\n\treject a:0:7\n"))
	if want := []ackRange{ackOf(wire.Accept, "a", 0, 1, 3), ackOf(wire.Reject, "a", 0, 7, 7)}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("ranges %+v, %v, want %+v", got, err, want)
	}
	for text, want := range map[string]string{
		"accept a:0:1\nrelease a:0:2": "f, line 2: want accept or reject",
		"accept":                      "f, line 1: want accept or reject",
		"accept a:0:1 a:0:2":          "f, line 1: want accept or reject",
		"reject a:0:z":                `f, line 1: "a:0:z": want TOPIC`,
	} {
		if _, err := readAckRanges("f", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// ackReports are of offsets 4 to 9 of which 6 is pending and the end is at 9.
func ackReports() []share.RangeReport {
	tp := share.TopicPartition{Topic: "orders", Partition: 2}
	of := func(first, last int64, s share.RangeStatus, change func(*share.RangeReport)) share.RangeReport {
		r := share.RangeReport{TopicPartition: tp, Range: share.Range{FirstOffset: first, LastOffset: last}, Status: s, Reason: s.String(), Owner: wire.NoStagedOwner()}
		if change != nil {
			change(&r)
		}
		return r
	}
	return []share.RangeReport{
		of(4, 5, share.RangeAcquired, func(r *share.RangeReport) { r.DeliveryCount = 2 }),
		of(6, 6, share.RangePending, func(r *share.RangeReport) { r.TransactionalID = "billing-1" }),
		of(7, 8, share.RangeAcquired, func(r *share.RangeReport) { r.DeliveryCount = 1 }),
		of(9, 9, share.RangeBeyondEnd, nil),
	}
}

// Reports are of what was asked for together; the types are of its parts.
func TestAckItems(t *testing.T) {
	asked := []ackRange{ackOf(wire.Accept, "orders", 2, 4, 7), ackOf(wire.Reject, "orders", 2, 8, 9)}
	items := newAckItems(asked, ackReports(), share.RangeAcquired, ackReleased)
	got := ""
	for _, i := range items {
		got += strings.Join([]string{i.Acknowledge, i.Status, i.Result}, " ") + "; "
	}
	if want := "accept acquired released; accept pending not_acquired; accept acquired released; reject acquired released; reject beyond_end not_acquired; "; got != want {
		t.Errorf("items %q, want %q", got, want)
	}
	acks := acknowledgementsOf(items)
	if a, r := acks.Count(wire.Accept), acks.Count(wire.Reject); a != 3 || r != 1 {
		t.Errorf("%d are accepted and %d rejected, want 3 and 1", a, r)
	}
	res := &ackResult{Items: items}
	if code, hint := classify(res.refuse(countOf(items, ackNotAcquired))); code != exitRefused || !strings.Contains(hint, "--partial") {
		t.Errorf("refused with %d and %q", code, hint)
	}
}

// What is not confirmed is not counted.
func TestAckCommitted(t *testing.T) {
	unknown := &txn.OutcomeUnknownError{TransactionalID: "id", ProducerID: 1, Began: pendingNoon, Err: errors.New("x")}
	for _, c := range []struct {
		err          error
		outcome      string
		acknowledged int64
		token        bool
	}{
		{nil, ackCommitted, 2, false},
		{unknown, ackUnknown, 0, true},
		{&txn.FencedError{}, ackFailed, 0, false},
		{&txn.AbortedError{}, ackFailed, 0, false},
	} {
		res := &ackResult{Outcome: ackFailed, Items: []ackItem{{Count: 2, Result: ackFailed}, {Count: 5, Result: ackNotAcquired}}}
		if err := res.committed(c.err); !errors.Is(err, c.err) {
			t.Errorf("error %v, want %v", err, c.err)
		}
		if res.Outcome != c.outcome || res.Items[0].Result != c.outcome || res.Items[1].Result != ackNotAcquired || res.Acknowledged != c.acknowledged || (res.Token != nil) != c.token {
			t.Errorf("after %v: %+v", c.err, res)
		}
	}
}

func TestAckGolden(t *testing.T) {
	asked := []ackRange{ackOf(wire.Accept, "orders", 2, 4, 7), ackOf(wire.Reject, "orders", 2, 8, 9)}
	token := goldenToken()
	res := &ackResult{
		ClusterID: "golden", GroupID: new("billing"), TransactionalID: token.TransactionalID, Dialect: new("kip"), Outcome: ackFailed,
		Items: newAckItems(asked, ackReports(), share.RangeAcquired, ackFailed), Bystanders: new(int64(3)), BystanderDeliveries: new(int16(4)),
	}
	planned := *res
	planned.Items = newAckItems(asked, ackReports(), share.RangeAcquired, ackPlanned)
	planned.Outcome, planned.DryRun, planned.Bystanders, planned.BystanderDeliveries = ackPlanned, true, nil, nil
	res.prepared(token)
	plan, ack := ackView(&planned), ackView(res)
	records := txnPrepareView(&ackResult{
		ClusterID: "golden", Items: []ackItem{}, TransactionalID: "shipping-1", Outcome: ackPrepared, Produced: 7, Bystanders: new(int64), Token: new(token.String()),
	})
	plan.Time, ack.Time, records.Time = pendingNoon, pendingNoon, pendingNoon
	golden(t, filepath.Join("testdata", "ack_plan.golden"), allFormats(t, plan))
	golden(t, filepath.Join("testdata", "ack_prepared.golden"), allFormats(t, ack))
	golden(t, filepath.Join("testdata", "txn_prepare.golden"), allFormats(t, records))
}
