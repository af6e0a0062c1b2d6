package commands

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/wire"
)

func TestTxnParsing(t *testing.T) {
	fence, err := parseAct(t, newTxnFenceCmd, "billing-1|billing-2|--dialect|draft", true)
	if want := (txnFenceOptions{TransactionalIDs: []string{"billing-1", "billing-2"}, connection: connection{Dialect: "draft"}}); err != nil || !reflect.DeepEqual(fence, want) {
		t.Errorf("txn fence = %+v, %v, want %+v", fence, err, want)
	}
	none := txnAbortOptions{Partition: -1, StartOffset: -1, ProducerID: -1, ProducerEpoch: -1, CoordinatorEpoch: -1}
	for args, change := range map[string]func(*txnAbortOptions){
		"--topic|shipped|--partition|3|--start-offset|1200": func(o *txnAbortOptions) { o.Topic, o.Partition, o.StartOffset = "shipped", 3, 1200 },
		"--topic|shipped|--partition|0|--producer-id|4000|--producer-epoch|0|--coordinator-epoch|7": func(o *txnAbortOptions) {
			o.Topic, o.Partition, o.ProducerID, o.ProducerEpoch, o.CoordinatorEpoch = "shipped", 0, 4000, 0, 7
		},
		"--topic|__share_group_state|--partition|7|--producer-id|4000|--producer-epoch|1|--dry-run|--force": func(o *txnAbortOptions) {
			o.Topic, o.Partition, o.ProducerID, o.ProducerEpoch, o.DryRun, o.Force = statesTopic, 7, 4000, 1, true, true
		},
	} {
		want := none
		change(&want)
		if got, err := parseAct(t, newTxnAbortCmd, args, true); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("txn abort %s = %+v, %v, want %+v", args, got, err, want)
		}
	}
	find, err := parseAct(t, newTxnFindHangingCmd, "--topic|a|--topic|b|--partition|0,3|--older-than|15m", true)
	if want := (txnFindHangingOptions{Topics: []string{"a", "b"}, Partitions: []int32{0, 3}, OlderThan: 15 * time.Minute}); err != nil || !reflect.DeepEqual(find, want) {
		t.Errorf("txn find-hanging = %+v, %v, want %+v", find, err, want)
	}
}

func TestTxnUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":              `"fence" needs a transactional ID`,
		"a||b":          "a transactional ID is empty",
		"a|b|a":         "a transactional ID is given twice",
		"a|--dialect|x": `--dialect "x"`,
	} {
		wantUsage(t, "txn fence", args, want, func() error { _, err := parseAct(t, newTxnFenceCmd, args, true); return err })
	}
	wantUsage(t, "txn fence", "a", "no terminal to confirm it on", func() error { _, err := parseAct(t, newTxnFenceCmd, "a", false); return err })
	for args, want := range map[string]string{
		"":                         "--topic and --partition are needed, or a token",
		"--topic|a":                "--topic and --partition are needed, or a token",
		"--topic|a|--partition|-1": "--partition: want 0 or more",
		"--topic|a|--partition|0":  "want --start-offset, or --producer-id and --producer-epoch",
		"--topic|a|--partition|0|--producer-id|4":                                    "want --start-offset, or --producer-id and --producer-epoch",
		"--topic|a|--partition|0|--start-offset|-2":                                  "--start-offset: want 0 or more",
		"--topic|a|--partition|0|--start-offset|5|--producer-id|4":                   "--start-offset names the transaction by itself",
		"--topic|a|--partition|0|--start-offset|5|--coordinator-epoch|4":             "--start-offset names the transaction by itself",
		"--topic|__share_group_state|--partition|0|--start-offset|5":                 "records are not staged at an offset of it",
		"--topic|a|--partition|0|--producer-id|4|--producer-epoch|0|--dialect|other": `--dialect "other"`,
	} {
		wantUsage(t, "txn abort", args, want, func() error { _, err := parseAct(t, newTxnAbortCmd, args, true); return err })
	}
	wantUsage(t, "txn abort", "", "no terminal to confirm it on", func() error {
		_, err := parseAct(t, newTxnAbortCmd, "--topic|a|--partition|0|--start-offset|5", false)
		return err
	})
	for args, want := range map[string]string{
		"x":                           "takes no argument",
		"--partition|1":               "--partition needs --topic",
		"--topic|a|--partition|-1":    "--partition: want 0 or more",
		"--older-than|0s":             "--older-than 0s: want a positive duration",
		"--older-than|1m|--dialect|x": `--dialect "x"`,
	} {
		wantUsage(t, "txn find-hanging", args, want, func() error { _, err := parseAct(t, newTxnFindHangingCmd, args, true); return err })
	}
}

func wantUsage(t *testing.T, command, args, want string, parse func() error) {
	t.Helper()
	err := parse()
	if code, _ := classify(err); code != exitUsage || !strings.Contains(err.Error(), want) {
		t.Errorf("%s %s: error %v (%d), want a usage error with %q", command, args, err, code, want)
	}
}

func TestTxnGolden(t *testing.T) {
	row := func(id, state string, change func(*inspect.TxnRow)) txnFence {
		r := inspect.TxnRow{TransactionalID: id, State: state, ProducerID: 4000, ProducerEpoch: new(int16(3)), Coordinator: 1, TimeoutMS: new(int32(60_000)), HoldsShareAcks: new(false)}
		if change != nil {
			change(&r)
		}
		return newTxnFence(r)
	}
	open := func(r *inspect.TxnRow) {
		r.Started, r.HoldsShareAcks = new(pendingNoon.Add(-time.Minute)), new(true)
		r.Partitions = []inspect.TopicPartitions{{Topic: statesTopic, Partitions: []int32{7}}, {Topic: "shipped", Partitions: []int32{0, 1}}}
	}
	fenced := row("billing-1", "Ongoing", open)
	fenced.Result, fenced.NewProducerID, fenced.NewEpoch = "fenced", new(int64(4000)), new(int16(5))
	failed := row("billing-2", "CompleteCommit", nil)
	failed.Result, failed.Error = "failed", new("broker 1: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
	aborting := row("billing-3", "PrepareAbort", open)
	aborting.Result = "not_attempted"
	fence := txnFenceView(&txnFenceResult{ClusterID: "golden", Items: []txnFence{fenced, failed, aborting, row("flink-1", "PrepareCommit", func(r *inspect.TxnRow) { open(r); r.TwoPhase = true })}})
	abort := txnAbortView(&txnAbortResult{ClusterID: "golden", DryRun: true, Items: []txnAbort{
		{Topic: "shipped", Partition: 3, ProducerID: 4000, ProducerEpoch: 1, CoordinatorEpoch: new(int32(7)), StartOffset: new(int64(1200)), Plan: "its ABORT marker is written: no coordinator knows its transaction", Result: "planned"},
		{Topic: statesTopic, Partition: 7, ProducerID: 4001, ProducerEpoch: 0, TransactionalID: new("billing-1"), TransactionState: new("Ongoing"), Plan: `"billing-1" is open (Ongoing) and its coordinator will end it`, Result: "refused"},
	}})
	fence.Time, abort.Time = pendingNoon, pendingNoon
	golden(t, filepath.Join("testdata", "txn_fence.golden"), allFormats(t, fence))
	golden(t, filepath.Join("testdata", "txn_abort.golden"), allFormats(t, abort))
}

// A marker for __share_group_state is for records that are there.
func TestTxnAbortStaged(t *testing.T) {
	batch := func(state wire.RecordState, id int64, epoch int16) wire.StateBatch {
		return wire.StateBatch{FirstOffset: 1, LastOffset: 2, DeliveryState: state, Staged: wire.StagedOwner{ProducerID: id, ProducerEpoch: epoch}}
	}
	states := func(partition int32, batches ...wire.StateBatch) *inspect.Evidence {
		return &inspect.Evidence{Persists: true, States: []inspect.ShareState{{StatePartition: partition, Batches: batches}}}
	}
	gap := states(7)
	gap.Gaps = []inspect.Gap{{Reason: "a broker is silent", Advice: "start it"}}
	for name, tt := range map[string]struct {
		ev                *inspect.Evidence
		why, advice, fail string // of each the beginning
	}{
		"staged":                 {ev: states(7, batch(wire.TxPending, 1, 0), batch(wire.TxPending, 4000, 3))},
		"by another producer":    {ev: states(7, batch(wire.TxPending, 4001, 3)), fail: "no record is seen"},
		"with another epoch":     {ev: states(7, batch(wire.TxPending, 4000, 2)), fail: "records in __share_group_state-7 are staged by producer 4000 with epoch 2, not 3"},
		"in another partition":   {ev: states(8, batch(wire.TxPending, 4000, 3)), fail: "no record is seen"},
		"not pending any more":   {ev: states(7, batch(wire.Acknowledged, 4000, 3)), fail: "no record is seen"},
		"nothing, with a gap":    {ev: gap, why: "no record is seen in __share_group_state-7 that producer 4000 has staged, and not all can be seen: a broker is silent", advice: "start it"},
		"nothing, or in memory":  {ev: &inspect.Evidence{}, why: "no record is seen in __share_group_state-7 that producer 4000 has staged, which is no proof", advice: "--force"},
		"staged, and with a gap": {ev: &inspect.Evidence{States: states(7, batch(wire.TxPending, 4000, 3)).States, Gaps: gap.Gaps}},
	} {
		t.Run(name, func(t *testing.T) {
			a := txnAbort{Topic: statesTopic, Partition: 7, ProducerID: 4000, ProducerEpoch: 3}
			why, advice, err := a.staged(tt.ev)
			fail := ""
			if err != nil {
				fail = err.Error()
			}
			for _, s := range []struct{ what, got, want string }{{"why", why, tt.why}, {"advice", advice, tt.advice}, {"error", fail, tt.fail}} {
				if !strings.HasPrefix(s.got, s.want) || (s.got == "") != (s.want == "") {
					t.Errorf("%s: %q, want %q", s.what, s.got, s.want)
				}
			}
		})
	}
}
