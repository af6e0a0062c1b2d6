package sandbox

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/wire"
)

// partBench is a share-partition on the bench: what the tests do to it reads as
// one line each, and its state as one string.
type partBench struct {
	*testing.T
	*sharePartition
	now time.Time
	lim partitionLimits
}

var (
	partTxn7   = owner{7, 3}
	partAbort  = false
	partCommit = true
)

func newPartBench(t *testing.T, d wire.Dialect) *partBench {
	t.Helper()
	return &partBench{
		T: t, sharePartition: newSharePartition(shareState{}, d), now: partEpoch,
		lim: partitionLimits{deliveryCountLimit: 5, maxRecordLocks: 2000, lockDuration: 30 * time.Second, renew: true},
	}
}

// get acquires the batch first-last.
func (b *partBench) get(member string, first, last int64) {
	b.Helper()
	b.acquire(b.now, member, []span{{first, last}}, int(last-first+1), false, b.lim)
}

func partAcks(first, last int64, types ...wire.AcknowledgeType) []ackBatch {
	a := ackBatch{span: span{first, last}}
	for _, t := range types {
		a.types = append(a.types, int8(t))
	}
	return []ackBatch{a}
}

func (b *partBench) ack(member string, first, last int64, types ...wire.AcknowledgeType) (change, int16) {
	return b.acknowledge(b.now, member, partAcks(first, last, types...), true, b.lim)
}

func (b *partBench) stageAs(member string, o owner, first, last int64, types ...wire.AcknowledgeType) (change, int16) {
	return b.stage(b.now, member, o, partAcks(first, last, types...), b.lim)
}

// marker applies the end marker of o's transaction.
func (b *partBench) marker(o owner, commit bool) change {
	return b.resolve(b.now, o.producerID, func(e int16) bool { return e == o.producerEpoch }, commit, b.lim)
}

// wait lets d pass and expires locks.
func (b *partBench) wait(d time.Duration) change {
	b.now = b.now.Add(d)
	return b.expire(b.now, b.lim)
}

// must fails the test when code is not 0.
func (b *partBench) must(c change, code int16) change {
	b.Helper()
	if code != 0 {
		b.Fatalf("code %d, want 0", code)
	}
	return c
}

// String is the window: offsets, state, delivery count, and who has the records.
func (b *partBench) String() string {
	var out []string
	for _, r := range b.ranges() {
		s := fmt.Sprintf("%d-%d %v %d", r.first, r.last, r.state, r.deliveryCount)
		if r.memberID != "" {
			s += " " + r.memberID
		}
		if r.producerID >= 0 {
			s += fmt.Sprintf(" %d/%d", r.producerID, r.producerEpoch)
		}
		if !r.lockExpiry.IsZero() {
			s += " " + r.lockExpiry.Sub(b.now).String()
		}
		out = append(out, s)
	}
	if out == nil {
		return fmt.Sprintf("empty at %d", b.startOffset())
	}
	return strings.Join(out, ", ")
}

func (b *partBench) want(want string) {
	b.Helper()
	if got := b.String(); got != want {
		b.Errorf("window\n got %s\nwant %s", got, want)
	}
	if err := partCheck(b.sharePartition); err != nil {
		b.Error(err)
	}
}

// partSavedString is what an operation wants persisted.
func partSavedString(c change) string {
	var out []string
	for _, s := range c.batches {
		line := fmt.Sprintf("%d-%d %v %d", s.FirstOffset, s.LastOffset, s.DeliveryState, s.DeliveryCount)
		if !s.Staged.IsNone() {
			line += fmt.Sprintf(" %d/%d %v %v", s.Staged.ProducerID, s.Staged.ProducerEpoch,
				wire.AcknowledgeType(s.Staged.AcknowledgeType), wire.RecordState(s.Staged.DeliveryState))
		}
		out = append(out, line)
	}
	return strings.Join(out, ", ")
}

func (b *partBench) wantSaved(c change, want string) {
	b.Helper()
	if got := partSavedString(c); got != want {
		b.Errorf("persisted\n got %s\nwant %s", got, want)
	}
}

// TestSharePartitionTransitions has every state against every operation: the
// whole of the state machine, legal and illegal.
func TestSharePartitionTransitions(t *testing.T) {
	// Record 5 of an acquired batch 0-9 is in the state of the column, and the
	// operation is done to it. "=" is nothing, a number the code of a refusal,
	// which must change nothing either; "type" is the dialect's code for a bad
	// type, "after" its state after an abort, "gap" what it makes of a staged gap.
	states := []wire.RecordState{wire.Available, wire.Acquired, wire.Acknowledged, wire.Archiving, wire.Archived, wire.TxPending}
	one := func(c change) (change, int16) { return c, 0 }
	rows := []struct {
		name string
		do   func(*partBench) (change, int16)
		want string // in the order of states
	}{
		{"acquired by a member", func(b *partBench) (change, int16) {
			b.get("m2", 5, 5)
			return change{}, 0
		}, "ACQUIRED = = = = ="},
		{"gap", func(b *partBench) (change, int16) { return b.ack("m1", 5, 5, wire.Gap) }, "121 ARCHIVED 121 121 121 121"},
		{"accept", func(b *partBench) (change, int16) { return b.ack("m1", 5, 5, wire.Accept) }, "121 ACKNOWLEDGED 121 121 121 121"},
		{"release", func(b *partBench) (change, int16) { return b.ack("m1", 5, 5, wire.Release) }, "121 AVAILABLE 121 121 121 121"},
		{"reject", func(b *partBench) (change, int16) { return b.ack("m1", 5, 5, wire.Reject) }, "121 ARCHIVED 121 121 121 121"},
		{"reject with a dead-letter queue", func(b *partBench) (change, int16) {
			b.lim.deadLetterQueue = true
			return b.ack("m1", 5, 5, wire.Reject)
		}, "121 ARCHIVING 121 121 121 121"},
		{"gap with a dead-letter queue", func(b *partBench) (change, int16) {
			b.lim.deadLetterQueue = true
			return b.ack("m1", 5, 5, wire.Gap)
		}, "121 ARCHIVED 121 121 121 121"},
		{"renew", func(b *partBench) (change, int16) { return b.ack("m1", 5, 5, wire.Renew) }, "121 = 121 121 121 121"},
		{"renew where disabled", func(b *partBench) (change, int16) {
			b.lim.renew = false
			return b.ack("m1", 5, 5, wire.Renew)
		}, "121 121 121 121 121 121"},
		{"renew without IsRenewAck", func(b *partBench) (change, int16) {
			return b.acknowledge(b.now, "m1", partAcks(5, 5, wire.Renew), false, b.lim)
		}, "42 42 42 42 42 42"},
		{"accept by another member", func(b *partBench) (change, int16) { return b.ack("m2", 5, 5, wire.Accept) }, "121 121 121 121 121 121"},
		{"stage accept", func(b *partBench) (change, int16) { return b.stageAs("m1", partTxn7, 5, 5, wire.Accept) }, "121 TX_PENDING 121 121 121 ="},
		{"stage reject", func(b *partBench) (change, int16) { return b.stageAs("m1", partTxn7, 5, 5, wire.Reject) }, "121 TX_PENDING 121 121 121 121"},
		{"stage gap", func(b *partBench) (change, int16) { return b.stageAs("m1", partTxn7, 5, 5, wire.Gap) }, "gap gap gap gap gap gap"},
		{"stage release", func(b *partBench) (change, int16) { return b.stageAs("m1", partTxn7, 5, 5, wire.Release) }, "type type type type type type"},
		{"stage renew", func(b *partBench) (change, int16) { return b.stageAs("m1", partTxn7, 5, 5, wire.Renew) }, "type type type type type type"},
		{"stage by another member", func(b *partBench) (change, int16) { return b.stageAs("m2", partTxn7, 5, 5, wire.Accept) }, "121 121 121 121 121 121"},
		{"stage by no member", func(b *partBench) (change, int16) { return b.stageAs("", partTxn7, 5, 5, wire.Accept) }, "121 121 121 121 121 121"},
		{"stage in another epoch", func(b *partBench) (change, int16) { return b.stageAs("m1", owner{7, 4}, 5, 5, wire.Accept) }, "121 TX_PENDING 121 121 121 121"},
		{"stage by another producer", func(b *partBench) (change, int16) { return b.stageAs("m1", owner{8, 3}, 5, 5, wire.Accept) }, "121 TX_PENDING 121 121 121 121"},
		{"commit marker", func(b *partBench) (change, int16) { return one(b.marker(partTxn7, partCommit)) }, "= = = = = ACKNOWLEDGED"},
		{"abort marker", func(b *partBench) (change, int16) { return one(b.marker(partTxn7, partAbort)) }, "= = = = = after"},
		{"marker of another epoch", func(b *partBench) (change, int16) { return one(b.marker(owner{7, 4}, partCommit)) }, "= = = = = ="},
		{"marker of another producer", func(b *partBench) (change, int16) { return one(b.marker(owner{8, 3}, partAbort)) }, "= = = = = ="},
		{"lock expiry", func(b *partBench) (change, int16) { return one(b.wait(30 * time.Second)) }, "= AVAILABLE = = = ="},
		{"lock not yet expired", func(b *partBench) (change, int16) { return one(b.wait(30*time.Second - 1)) }, "= = = = = ="},
		{"session close", func(b *partBench) (change, int16) { return one(b.release(b.now, "m1", b.lim)) }, "= AVAILABLE = = = ="},
		{"session close of another member", func(b *partBench) (change, int16) { return one(b.release(b.now, "m2", b.lim)) }, "= = = = = ="},
		{"no record there", func(b *partBench) (change, int16) { return one(b.archiveGaps([]span{{5, 5}})) }, "ARCHIVED = = = = ="},
		{"dead-letter queue has it", func(b *partBench) (change, int16) { return one(b.completeArchiving(span{5, 5})) }, "= = = ARCHIVED = ="},
	}
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			for _, row := range rows {
				for i, cell := range strings.Fields(row.want) {
					t.Run(states[i].String()+"/"+row.name, func(t *testing.T) {
						b := newPartBench(t, d)
						b.get("m1", 0, 9)
						b.put(5, states[i])
						before := b.record(5)
						if before.state != states[i] {
							t.Fatalf("prepared %v", before.state)
						}
						rest := b.without(5)
						c, code := row.do(b)
						state, wantCode := partCell(cell, d, states[i])
						after := b.record(5)
						if code != wantCode || after.state != state {
							t.Fatalf("code %d, state %v; want code %d, state %v", code, after.state, wantCode, state)
						}
						if cell == "=" && row.name != "renew" && !reflect.DeepEqual(after, before) {
							t.Errorf("record is %+v, was %+v", after, before)
						}
						if code != 0 && (!reflect.DeepEqual(after, before) || !reflect.DeepEqual(b.without(5), rest) || len(c.batches) > 0) {
							t.Errorf("refused, but the window is %v, to be persisted %v", b, c.batches)
						}
						if err := partCheck(b.sharePartition); err != nil {
							t.Error(err)
						}
					})
				}
			}
		})
	}
}

// partCell reads a cell of the table of TestSharePartitionTransitions.
func partCell(cell string, d wire.Dialect, from wire.RecordState) (state wire.RecordState, code int16) {
	switch cell {
	case "=":
		return from, 0
	case "42":
		return from, 42
	case "121":
		return from, 121
	case "type":
		return from, d.InvalidTypeCode
	case "after":
		return d.AfterAbort, 0
	case "gap":
		switch {
		case !d.Allows(wire.Gap):
			return from, d.InvalidTypeCode
		case from == wire.Acquired:
			return wire.TxPending, 0
		}
		return from, 121
	}
	for s := range wire.RecordState(partStates) {
		if s.String() == cell {
			return s, 0
		}
	}
	panic("no such cell: " + cell)
}

// put brings an offset that m1 has acquired into a state.
func (b *partBench) put(offset int64, state wire.RecordState) {
	b.Helper()
	dlq := b.lim
	dlq.deadLetterQueue = true
	var (
		c    change
		code int16
	)
	switch state {
	case wire.Available:
		c, code = b.ack("m1", offset, offset, wire.Release)
	case wire.Acknowledged:
		c, code = b.ack("m1", offset, offset, wire.Accept)
	case wire.Archived:
		c, code = b.ack("m1", offset, offset, wire.Reject)
	case wire.Archiving:
		c, code = b.acknowledge(b.now, "m1", partAcks(offset, offset, wire.Reject), false, dlq)
	case wire.TxPending:
		c, code = b.stageAs("m1", partTxn7, offset, offset, wire.Accept)
	default: // ACQUIRED it is
	}
	b.must(c, code)
}

// record is the state of one offset.
func (b *partBench) record(offset int64) rangeState {
	for _, r := range b.ranges() {
		if r.first <= offset && offset <= r.last {
			r.span = span{offset, offset}
			return r
		}
	}
	return rangeState{state: -1}
}

// without is the state of every other offset.
func (b *partBench) without(offset int64) []rangeState {
	var out []rangeState
	for o := b.startOffset(); o <= b.endOffset(); o++ {
		if o != offset {
			out = append(out, b.record(o))
		}
	}
	return out
}

// TestSharePartitionEvents has what a transition does besides changing a state:
// delivery counts, locks, owners, and what is persisted.
func TestSharePartitionEvents(t *testing.T) {
	type row struct {
		name  string
		only  string // dialect
		do    func(*partBench) change
		want  string
		saved string
	}
	rows := []row{
		{
			name: "acquire counts a delivery, starts a lock and persists nothing",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				return change{}
			},
			want: "0-9 ACQUIRED 1 m1 30s",
		},
		{
			name: "accept at the head moves the start offset",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				return b.must(b.ack("m1", 0, 4, wire.Accept))
			},
			want:  "5-9 ACQUIRED 1 m1 30s",
			saved: "0-4 ACKNOWLEDGED 1",
		},
		{
			name: "the start offset passes what was done before, too",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.ack("m1", 3, 5, wire.Accept))
				b.must(b.ack("m1", 6, 6, wire.Gap))
				return b.must(b.ack("m1", 0, 2, wire.Reject))
			},
			want:  "7-9 ACQUIRED 1 m1 30s",
			saved: "0-2 ARCHIVED 1",
		},
		{
			name: "a window that is done with is empty",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				return b.must(b.ack("m1", 0, 9, wire.Accept))
			},
			want:  "empty at 10",
			saved: "0-9 ACKNOWLEDGED 1",
		},
		{
			name: "one type for each offset",
			do: func(b *partBench) change {
				b.get("m1", 0, 4)
				return b.must(b.ack("m1", 0, 4, wire.Release, wire.Accept, wire.Accept, wire.Reject, wire.Gap))
			},
			want:  "0-0 AVAILABLE 1, 1-2 ACKNOWLEDGED 1, 3-4 ARCHIVED 1",
			saved: "0-0 AVAILABLE 1, 1-2 ACKNOWLEDGED 1, 3-4 ARCHIVED 1",
		},
		{
			name: "renew restarts the lock and persists nothing",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.wait(20 * time.Second)
				return b.must(b.ack("m1", 2, 3, wire.Renew))
			},
			want: "0-1 ACQUIRED 1 m1 10s, 2-3 ACQUIRED 1 m1 30s, 4-9 ACQUIRED 1 m1 10s",
		},
		{
			name: "a renewed record outlives its first lock",
			do: func(b *partBench) change {
				b.get("m1", 0, 2)
				b.wait(20 * time.Second)
				b.must(b.ack("m1", 1, 1, wire.Renew))
				return b.wait(10 * time.Second)
			},
			want:  "0-0 AVAILABLE 1, 1-1 ACQUIRED 1 m1 20s, 2-2 AVAILABLE 1",
			saved: "0-0 AVAILABLE 1, 2-2 AVAILABLE 1",
		},
		{
			name: "a released record is delivered again, counted",
			do: func(b *partBench) change {
				b.get("m1", 0, 0)
				b.must(b.ack("m1", 0, 0, wire.Release))
				b.get("m2", 0, 0)
				return change{}
			},
			want: "0-0 ACQUIRED 2 m2 30s",
		},
		{
			name: "release at the delivery count limit archives",
			do: func(b *partBench) change {
				b.lim.deliveryCountLimit = 1
				b.get("m1", 0, 9)
				return b.must(b.ack("m1", 5, 5, wire.Release))
			},
			want:  "0-4 ACQUIRED 1 m1 30s, 5-5 ARCHIVED 1, 6-9 ACQUIRED 1 m1 30s",
			saved: "5-5 ARCHIVED 1",
		},
		{
			name: "lock expiry at the limit archives",
			do: func(b *partBench) change {
				b.lim.deliveryCountLimit = 1
				b.get("m1", 0, 9)
				return b.wait(30 * time.Second)
			},
			want:  "empty at 10",
			saved: "0-9 ARCHIVED 1",
		},
		{
			name: "session close at the limit archives",
			do: func(b *partBench) change {
				b.lim.deliveryCountLimit = 1
				b.get("m1", 0, 4)
				b.get("m2", 5, 9)
				return b.release(b.now, "m2", b.lim)
			},
			want:  "0-4 ACQUIRED 1 m1 30s, 5-9 ARCHIVED 1",
			saved: "5-9 ARCHIVED 1",
		},
		{
			name: "release at the limit with a dead-letter queue is archiving, and holds the start offset",
			do: func(b *partBench) change {
				b.lim.deliveryCountLimit, b.lim.deadLetterQueue = 1, true
				b.get("m1", 0, 9)
				return b.must(b.ack("m1", 0, 9, wire.Release))
			},
			want:  "0-9 ARCHIVING 1",
			saved: "0-9 ARCHIVING 1",
		},
		{
			name: "lock expiry at the limit with a dead-letter queue is archiving",
			do: func(b *partBench) change {
				b.lim.deliveryCountLimit, b.lim.deadLetterQueue = 1, true
				b.get("m1", 0, 9)
				return b.wait(30 * time.Second)
			},
			want:  "0-9 ARCHIVING 1",
			saved: "0-9 ARCHIVING 1",
		},
		{
			name: "archiving ends when the dead-letter queue has it",
			do: func(b *partBench) change {
				b.lim.deadLetterQueue = true
				b.get("m1", 0, 9)
				b.must(b.ack("m1", 0, 5, wire.Reject))
				return b.completeArchiving(span{0, 2})
			},
			want:  "3-5 ARCHIVING 1, 6-9 ACQUIRED 1 m1 30s",
			saved: "0-2 ARCHIVED 1",
		},
		{
			name: "stage takes the lock away and names the owner; the rest of the batch stays acquired",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				return b.must(b.stageAs("m1", partTxn7, 2, 4, wire.Accept, wire.Accept, wire.Reject))
			},
			want:  "0-1 ACQUIRED 1 m1 30s, 2-3 TX_PENDING 1 m1 7/3, 4-4 TX_PENDING 1 m1 7/3, 5-9 ACQUIRED 1 m1 30s",
			saved: "2-3 TX_PENDING 1 7/3 accept ACKNOWLEDGED, 4-4 TX_PENDING 1 7/3 reject ARCHIVED",
		},
		{
			name: "staged reject with a dead-letter queue aims at archiving",
			do: func(b *partBench) change {
				b.lim.deadLetterQueue = true
				b.get("m1", 0, 0)
				return b.must(b.stageAs("m1", partTxn7, 0, 0, wire.Reject))
			},
			want:  "0-0 TX_PENDING 1 m1 7/3",
			saved: "0-0 TX_PENDING 1 7/3 reject ARCHIVING",
		},
		{
			name: "staged gap aims at archived, dead-letter queue or not", only: "draft",
			do: func(b *partBench) change {
				b.lim.deadLetterQueue = true
				b.get("m1", 0, 0)
				return b.must(b.stageAs("m1", partTxn7, 0, 0, wire.Gap))
			},
			want:  "0-0 TX_PENDING 1 m1 7/3",
			saved: "0-0 TX_PENDING 1 7/3 gap ARCHIVED",
		},
		{
			name: "an identical stage changes nothing",
			do: func(b *partBench) change {
				b.get("m1", 0, 4)
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				return b.must(b.stageAs("m1", partTxn7, 1, 3, wire.Accept))
			},
			want: "0-4 TX_PENDING 1 m1 7/3",
		},
		{
			name: "a stage that is partly identical takes the rest",
			do: func(b *partBench) change {
				b.get("m1", 0, 4)
				b.must(b.stageAs("m1", partTxn7, 0, 2, wire.Accept))
				return b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
			},
			want:  "0-4 TX_PENDING 1 m1 7/3",
			saved: "3-4 TX_PENDING 1 7/3 accept ACKNOWLEDGED",
		},
		{
			name: "TX_PENDING holds the start offset",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 0, wire.Accept))
				return b.must(b.ack("m1", 1, 9, wire.Accept))
			},
			want:  "0-0 TX_PENDING 1 m1 7/3, 1-9 ACKNOWLEDGED 1",
			saved: "1-9 ACKNOWLEDGED 1",
		},
		{
			name: "commit of accept",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				return b.marker(partTxn7, partCommit)
			},
			want:  "5-9 ACQUIRED 1 m1 30s",
			saved: "0-4 ACKNOWLEDGED 1",
		},
		{
			name: "commit of reject",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 5, 9, wire.Reject))
				return b.marker(partTxn7, partCommit)
			},
			want:  "0-4 ACQUIRED 1 m1 30s, 5-9 ARCHIVED 1",
			saved: "5-9 ARCHIVED 1",
		},
		{
			name: "commit of reject with a dead-letter queue, then the queue has it",
			do: func(b *partBench) change {
				b.lim.deadLetterQueue = true
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 9, wire.Reject))
				b.wantSaved(b.marker(partTxn7, partCommit), "0-9 ARCHIVING 1")
				b.want("0-9 ARCHIVING 1")
				return b.completeArchiving(span{0, 9})
			},
			want:  "empty at 10",
			saved: "0-9 ARCHIVED 1",
		},
		{
			name: "what was staged is committed, whatever the dead-letter queue is now",
			do: func(b *partBench) change {
				b.lim.deadLetterQueue = true
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 9, wire.Reject))
				b.lim.deadLetterQueue = false
				return b.marker(partTxn7, partCommit)
			},
			want:  "0-9 ARCHIVING 1",
			saved: "0-9 ARCHIVING 1",
		},
		{
			name: "abort gives the record back to its member with a new lock, and persists it as available", only: "kip",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 9, wire.Accept))
				b.wait(40 * time.Second)
				return b.marker(partTxn7, partAbort)
			},
			want:  "0-9 ACQUIRED 1 m1 30s",
			saved: "0-9 AVAILABLE 1",
		},
		{
			name: "an aborted record may expire", only: "kip",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 9, wire.Accept))
				b.marker(partTxn7, partAbort)
				return b.wait(30 * time.Second)
			},
			want:  "0-9 AVAILABLE 1",
			saved: "0-9 AVAILABLE 1",
		},
		{
			name: "abort makes the record available, without an owner", only: "draft",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 9, wire.Accept))
				return b.marker(partTxn7, partAbort)
			},
			want:  "0-9 AVAILABLE 1",
			saved: "0-9 AVAILABLE 1",
		},
		{
			name: "abort does not look at the delivery count limit: one delivery more", only: "draft",
			do: func(b *partBench) change {
				b.lim.deliveryCountLimit = 1
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 9, wire.Accept))
				b.marker(partTxn7, partAbort)
				b.get("m2", 0, 9)
				b.want("0-9 ACQUIRED 2 m2 30s")
				return b.must(b.ack("m2", 0, 9, wire.Release))
			},
			want:  "empty at 10",
			saved: "0-9 ARCHIVED 2",
		},
		{
			name: "session close leaves what is staged to the marker",
			do: func(b *partBench) change {
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				b.wantSaved(b.release(b.now, "m1", b.lim), "5-9 AVAILABLE 1")
				b.want("0-4 TX_PENDING 1 m1 7/3, 5-9 AVAILABLE 1")
				return b.marker(partTxn7, partCommit)
			},
			want:  "5-9 AVAILABLE 1",
			saved: "0-4 ACKNOWLEDGED 1",
		},
		{
			name: "several members in one transaction",
			do: func(b *partBench) change {
				b.get("m1", 0, 4)
				b.get("m2", 5, 9)
				b.must(b.stageAs("m2", partTxn7, 5, 9, wire.Accept))
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				b.want("0-4 TX_PENDING 1 m1 7/3, 5-9 TX_PENDING 1 m2 7/3")
				return b.marker(partTxn7, partCommit)
			},
			want:  "empty at 10",
			saved: "0-9 ACKNOWLEDGED 1",
		},
	}
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			for _, r := range rows {
				if r.only != "" && r.only != d.Name {
					continue
				}
				t.Run(r.name, func(t *testing.T) {
					b := newPartBench(t, d)
					c := r.do(b)
					b.want(r.want)
					b.wantSaved(c, r.saved)
				})
			}
		})
	}
}

// TestSharePartitionRefusals has the errors of one partition of a request.
func TestSharePartitionRefusals(t *testing.T) {
	// The window is 10-19, acquired by m1; 5 to 9 were acknowledged.
	type row struct {
		name string
		acks []ackBatch
		ack  int16 // code of a plain acknowledgement
		kip  int16 // code of a stage
		dft  int16
	}
	types := func(n int) []int8 { return slices.Repeat([]int8{1}, n) }
	rows := []row{
		{"wholly below the start offset", partAcks(5, 9, 1), 0, 0, 0},
		{"far below the start offset", partAcks(0, 3, 1), 0, 0, 0},
		{"partly below the start offset", partAcks(8, 12, 1), 0, 0, 0},
		{"partly below, one type for each", partAcks(8, 11, 3, 3, 1, 3), 0, 0, 0},
		{"below the start offset, with a bad type", partAcks(5, 9, 9), 42, 121, 42},
		{"runs past the window", partAcks(15, 20, 1), 42, 42, 42},
		{"wholly behind the window", partAcks(20, 25, 1), 42, 42, 42},
		{"spans the window", partAcks(0, 99, 1), 42, 42, 42},
		{"no types", []ackBatch{{span{10, 12}, nil}}, 42, 42, 42},
		{"too few types", []ackBatch{{span{10, 12}, types(2)}}, 42, 42, 42},
		{"too many types", []ackBatch{{span{10, 12}, types(4)}}, 42, 42, 42},
		{"ends before it begins", []ackBatch{{span{12, 11}, types(1)}}, 42, 42, 42},
		{"all offsets there are", []ackBatch{{span{-1 << 63, 1<<63 - 1}, nil}}, 42, 42, 42},
		{"unknown type", partAcks(10, 12, 5), 42, 121, 42},
		{"negative type", partAcks(10, 12, -1), 42, 121, 42},
		{"one bad type of many", partAcks(10, 12, 1, 7, 1), 42, 121, 42},
		{"a bad type in the last batch", append(partAcks(10, 11, 1), partAcks(12, 12, 7)...), 42, 121, 42},
		{"the last batch runs past", append(partAcks(10, 11, 1), partAcks(12, 20, 1)...), 42, 42, 42},
		{"the last batch is someone else's", append(partAcks(10, 11, 1), partAcks(19, 19, 1)...), 121, 121, 121},
		{"descending batches", append(partAcks(12, 13, 1), partAcks(10, 11, 1)...), 42, 0, 0},
		{"the same batch twice", append(partAcks(12, 13, 1), partAcks(12, 13, 1)...), 42, 0, 0},
		{"the same offset twice, differently", append(partAcks(12, 13, 1), partAcks(13, 13, 3)...), 42, 121, 121},
		{"no batch", nil, 0, 0, 0},
	}
	prepare := func(t *testing.T, d wire.Dialect) *partBench {
		t.Helper()
		b := newPartBench(t, d)
		b.get("m1", 5, 18)
		b.get("m2", 19, 19)
		b.must(b.ack("m1", 5, 9, wire.Accept))
		b.want("10-18 ACQUIRED 1 m1 30s, 19-19 ACQUIRED 1 m2 30s")
		return b
	}
	check := func(t *testing.T, b *partBench, code, want int16) {
		t.Helper()
		if code != want {
			t.Fatalf("code %d, want %d", code, want)
		}
		if code != 0 {
			b.want("10-18 ACQUIRED 1 m1 30s, 19-19 ACQUIRED 1 m2 30s")
		}
	}
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			for _, r := range rows {
				t.Run("acknowledge/"+r.name, func(t *testing.T) {
					b := prepare(t, d)
					_, code := b.acknowledge(b.now, "m1", r.acks, false, b.lim)
					check(t, b, code, r.ack)
				})
				t.Run("stage/"+r.name, func(t *testing.T) {
					b := prepare(t, d)
					_, code := b.stage(b.now, "m1", partTxn7, r.acks, b.lim)
					want := r.kip
					if d.Name == "draft" {
						want = r.dft
					}
					check(t, b, code, want)
				})
			}
			t.Run("nothing was ever acquired", func(t *testing.T) {
				b := newPartBench(t, d)
				if _, code := b.stageAs("m1", partTxn7, 0, 0, wire.Accept); code != 121 {
					t.Errorf("stage: code %d, want 121", code)
				}
				if _, code := b.ack("m1", 0, 0, wire.Accept); code != 121 {
					t.Errorf("acknowledge: code %d, want 121", code)
				}
			})
		})
	}
}

// TestSharePartitionCornerCases has what of the corner cases of KIP-1289 one
// share-partition decides.
func TestSharePartitionCornerCases(t *testing.T) {
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			t.Run("4 member gone while TX_PENDING", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 4)
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				if c := b.release(b.now, "m1", b.lim); len(c.batches) > 0 {
					t.Errorf("released %v", c.batches)
				}
				b.marker(partTxn7, partCommit)
				b.want("empty at 5")
			})
			t.Run("5 duplicate markers", func(t *testing.T) {
				for _, commit := range []bool{partCommit, partAbort} {
					b := newPartBench(t, d)
					b.get("m1", 0, 4)
					b.must(b.stageAs("m1", partTxn7, 1, 3, wire.Accept))
					b.marker(partTxn7, commit)
					once := b.String()
					for range 3 {
						if c := b.marker(partTxn7, commit); len(c.batches) > 0 {
							t.Errorf("duplicate persists %v", c.batches)
						}
						if c := b.marker(partTxn7, !commit); len(c.batches) > 0 {
							t.Errorf("late marker persists %v", c.batches)
						}
					}
					b.want(once)
				}
			})
			t.Run("6 lock expiry while TX_PENDING", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 4)
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				if at, ok := b.nextExpiry(); ok {
					t.Errorf("a lock expires at %v", at)
				}
				if c := b.wait(time.Hour); len(c.batches) > 0 {
					t.Errorf("expired %v", c.batches)
				}
				b.want("0-4 TX_PENDING 1 m1 7/3")
			})
			t.Run("10 invalid type rolls back the partition", func(t *testing.T) {
				for _, bad := range []wire.AcknowledgeType{wire.Release, wire.Renew} {
					b := newPartBench(t, d)
					b.get("m1", 0, 4)
					_, code := b.stage(b.now, "m1", partTxn7, append(partAcks(0, 1, wire.Accept), partAcks(2, 2, bad)...), b.lim)
					if code != d.InvalidTypeCode {
						t.Errorf("%v: code %d, want %d", bad, code, d.InvalidTypeCode)
					}
					b.want("0-4 ACQUIRED 1 m1 30s")
				}
			})
			t.Run("11 one partition fails, the other stays staged", func(t *testing.T) {
				b, other := newPartBench(t, d), newPartBench(t, d)
				b.get("m1", 0, 4)
				other.get("m2", 0, 4)
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				if _, code := other.stageAs("m1", partTxn7, 0, 4, wire.Accept); code != 121 {
					t.Errorf("code %d, want 121", code)
				}
				b.want("0-4 TX_PENDING 1 m1 7/3")
				other.want("0-4 ACQUIRED 1 m2 30s")
				for _, p := range []*partBench{b, other} {
					p.marker(partTxn7, partAbort)
				}
				if got := b.record(0).state; got != d.AfterAbort {
					t.Errorf("after the abort %v, want %v", got, d.AfterAbort)
				}
				other.want("0-4 ACQUIRED 1 m2 30s")
			})
			t.Run("14 two epochs of one producer", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 9)
				newer := owner{7, 4}
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				if _, code := b.stageAs("m1", newer, 4, 5, wire.Accept); code != 121 {
					t.Errorf("code %d, want 121", code)
				}
				b.must(b.stageAs("m1", newer, 5, 9, wire.Accept))
				b.marker(newer, partCommit)
				b.want("0-4 TX_PENDING 1 m1 7/3, 5-9 ACKNOWLEDGED 1")
				b.marker(partTxn7, partCommit)
				b.want("empty at 10")
			})
			t.Run("14 a marker that fences matches every older epoch", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
				b.must(b.stageAs("m1", owner{7, 4}, 5, 9, wire.Accept))
				b.resolve(b.now, 7, func(staged int16) bool { return staged < 5 }, true, b.lim)
				b.want("empty at 10")
			})
		})
	}
}

func TestSharePartitionReload(t *testing.T) {
	staged := wire.StagedOwner{ProducerID: 7, ProducerEpoch: 3, AcknowledgeType: 1, DeliveryState: 2}
	none := wire.NoStagedOwner()
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			load := func(t *testing.T, start int64, batches ...wire.StateBatch) *partBench {
				t.Helper()
				b := newPartBench(t, d)
				b.sharePartition = newSharePartition(shareState{startOffset: start, batches: batches}, d)
				return b
			}
			t.Run("nothing persisted", func(t *testing.T) {
				b := load(t, 42)
				b.want("empty at 42")
				if got := b.nextFetchOffset(); got != 42 {
					t.Errorf("nextFetchOffset() = %d, want 42", got)
				}
			})
			t.Run("what was left out is available, and read first", func(t *testing.T) {
				b := load(t, 10, wire.StateBatch{FirstOffset: 15, LastOffset: 19, DeliveryState: wire.Acknowledged, DeliveryCount: 1, Staged: none},
					wire.StateBatch{FirstOffset: 22, LastOffset: 24, DeliveryState: wire.Archived, DeliveryCount: 2, Staged: none})
				b.want("10-14 AVAILABLE 0, 15-19 ACKNOWLEDGED 1, 20-21 AVAILABLE 0, 22-24 ARCHIVED 2")
				if got := b.nextFetchOffset(); got != 10 {
					t.Errorf("nextFetchOffset() = %d, want 10", got)
				}
				if got := b.deliveryCompleteCount(); got != 8 {
					t.Errorf("deliveryCompleteCount() = %d, want 8", got)
				}
				if got := b.lag(30); got != 12 {
					t.Errorf("lag(30) = %d, want 12", got)
				}
			})
			t.Run("a terminal head is passed, batches below the start offset ignored", func(t *testing.T) {
				load(t, 10, wire.StateBatch{FirstOffset: 5, LastOffset: 12, DeliveryState: wire.Archived, DeliveryCount: 1, Staged: none},
					wire.StateBatch{FirstOffset: 13, LastOffset: 14, DeliveryState: wire.Archiving, DeliveryCount: 1, Staged: none}).
					want("13-14 ARCHIVING 1")
				load(t, 10, wire.StateBatch{FirstOffset: 5, LastOffset: 9, DeliveryState: wire.TxPending, DeliveryCount: 1, Staged: staged}).
					want("empty at 10")
			})
			t.Run("ACQUIRED is never persisted", func(t *testing.T) {
				load(t, 0, wire.StateBatch{FirstOffset: 0, LastOffset: 4, DeliveryState: wire.Acquired, DeliveryCount: 1, Staged: none}).
					want("0-4 AVAILABLE 1")
			})
			t.Run("1 and 12 TX_PENDING keeps its owner, not its member", func(t *testing.T) {
				b := load(t, 0, wire.StateBatch{FirstOffset: 0, LastOffset: 4, DeliveryState: wire.TxPending, DeliveryCount: 1, Staged: staged})
				b.want("0-4 TX_PENDING 1 7/3")
				want := []pendingRange{{span{0, 4}, partTxn7, wire.Accept, wire.Acknowledged, 1, ""}}
				if got := b.pending(); !slices.Equal(got, want) {
					t.Errorf("pending() = %+v, want %+v", got, want)
				}
				if _, code := b.stageAs("m1", partTxn7, 0, 4, wire.Accept); code != 121 {
					t.Errorf("stage sent again after the reload: code %d, want 121", code)
				}
				if _, code := b.stageAs("", partTxn7, 0, 4, wire.Accept); code != 121 {
					t.Errorf("stage by nobody after the reload: code %d, want 121", code)
				}
				b.get("m1", 0, 4)
				b.want("0-4 TX_PENDING 1 7/3")
				b.marker(partTxn7, partCommit)
				b.want("empty at 5")
			})
			t.Run("abort without a member is available in every dialect", func(t *testing.T) {
				b := load(t, 0, wire.StateBatch{FirstOffset: 0, LastOffset: 4, DeliveryState: wire.TxPending, DeliveryCount: 1, Staged: staged})
				b.wantSaved(b.marker(partTxn7, partAbort), "0-4 AVAILABLE 1")
				b.want("0-4 AVAILABLE 1")
			})
			t.Run("a target that was not persisted follows from the type", func(t *testing.T) {
				older := staged
				older.DeliveryState = -1
				rejected := older
				rejected.AcknowledgeType = int8(wire.Reject)
				b := load(t, 0, wire.StateBatch{FirstOffset: 0, LastOffset: 4, DeliveryState: wire.TxPending, DeliveryCount: 1, Staged: older},
					wire.StateBatch{FirstOffset: 5, LastOffset: 9, DeliveryState: wire.TxPending, DeliveryCount: 1, Staged: rejected})
				b.lim.deadLetterQueue = true
				b.wantSaved(b.marker(partTxn7, partCommit), "0-4 ACKNOWLEDGED 1, 5-9 ARCHIVING 1")
			})
		})
	}
}

func TestSharePartitionAcquire(t *testing.T) {
	type row struct {
		name    string
		prepare func(*partBench)
		batches []span
		max     int
		strict  bool
		locks   int
		want    string // acquired, as first-last:count
		window  string
		next    int64
	}
	got09 := func(b *partBench) { b.get("m1", 0, 9) }
	rows := []row{
		{"whole batches until there are enough", nil, []span{{0, 9}, {10, 19}, {20, 29}}, 11, false, 2000, "0-19:1", "0-19 ACQUIRED 1 m2 30s", 20},
		{"exactly as many when strict", nil, []span{{0, 9}, {10, 19}, {20, 29}}, 11, true, 2000, "0-10:1", "0-10 ACQUIRED 1 m2 30s", 11},
		{"the rest of a batch follows", func(b *partBench) {
			b.acquire(b.now, "m1", []span{{0, 9}}, 4, true, b.lim)
		}, []span{{0, 9}}, 4, true, 2000, "4-7:1", "0-3 ACQUIRED 1 m1 30s, 4-7 ACQUIRED 1 m2 30s", 8},
		{"nothing to acquire", got09, []span{{0, 9}}, 10, false, 2000, "", "0-9 ACQUIRED 1 m1 30s", 10},
		{"nothing was read", got09, nil, 10, false, 2000, "", "0-9 ACQUIRED 1 m1 30s", 10},
		{"nothing is wanted", nil, []span{{0, 9}}, 0, false, 2000, "", "empty at 0", 0},
		{
			"only what is available", func(b *partBench) {
				got09(b)
				b.must(b.ack("m1", 2, 3, wire.Release))
				b.must(b.ack("m1", 6, 6, wire.Release))
				b.must(b.ack("m1", 7, 7, wire.Accept))
				b.must(b.stageAs("m1", partTxn7, 8, 8, wire.Accept))
			},
			[]span{{0, 9}, {10, 11}},
			100, false, 2000, "2-3:2 6-6:2 10-11:1",
			"0-1 ACQUIRED 1 m1 30s, 2-3 ACQUIRED 2 m2 30s, 4-5 ACQUIRED 1 m1 30s, 6-6 ACQUIRED 2 m2 30s, " +
				"7-7 ACKNOWLEDGED 1, 8-8 TX_PENDING 1 m1 7/3, 9-9 ACQUIRED 1 m1 30s, 10-11 ACQUIRED 1 m2 30s", 12,
		},
		{"a batch that begins below the start offset", func(b *partBench) {
			got09(b)
			b.must(b.ack("m1", 0, 5, wire.Accept))
			b.must(b.ack("m1", 6, 9, wire.Release))
		}, []span{{0, 9}}, 100, false, 2000, "6-9:2", "6-9 ACQUIRED 2 m2 30s", 10},
		{
			"between batches is nothing", nil,
			[]span{{0, 4}, {8, 9}},
			100, false, 2000, "0-4:1 8-9:1",
			"0-4 ACQUIRED 1 m2 30s, 5-7 ARCHIVED 0, 8-9 ACQUIRED 1 m2 30s", 10,
		},
		{"before the first batch is nothing", nil, []span{{3, 4}}, 100, false, 2000, "3-4:1", "3-4 ACQUIRED 1 m2 30s", 5},
		{
			"a record that the log lost between two batches", func(b *partBench) {
				got09(b)
				b.must(b.ack("m1", 3, 9, wire.Release))
			},
			[]span{{3, 4}, {8, 9}},
			100, false, 2000, "3-4:2 8-9:2",
			"0-2 ACQUIRED 1 m1 30s, 3-4 ACQUIRED 2 m2 30s, 5-7 ARCHIVED 1, 8-9 ACQUIRED 2 m2 30s", 10,
		},
		{"the record lock limit bounds the number", nil, []span{{0, 9}, {10, 19}}, 100, true, 15, "0-14:1", "0-14 ACQUIRED 1 m2 30s", 15},
		{"but not a whole batch", nil, []span{{0, 9}, {10, 19}, {20, 29}}, 100, false, 15, "0-19:1", "0-19 ACQUIRED 1 m2 30s", 20},
		{"at the record lock limit the window does not grow", func(b *partBench) {
			got09(b)
			b.must(b.ack("m1", 2, 2, wire.Release))
		}, []span{{0, 9}, {10, 19}}, 100, false, 10, "2-2:2", "0-1 ACQUIRED 1 m1 30s, 2-2 ACQUIRED 2 m2 30s, 3-9 ACQUIRED 1 m1 30s", 10},
		{"at the record lock limit, a batch across the end", func(b *partBench) {
			got09(b)
			b.must(b.ack("m1", 8, 9, wire.Release))
		}, []span{{5, 14}}, 100, false, 10, "8-9:2", "0-7 ACQUIRED 1 m1 30s, 8-9 ACQUIRED 2 m2 30s", 10},
		{"TX_PENDING counts against the limit", func(b *partBench) {
			got09(b)
			b.must(b.stageAs("m1", partTxn7, 0, 9, wire.Accept))
		}, []span{{10, 19}}, 100, false, 10, "", "0-9 TX_PENDING 1 m1 7/3", 10},
		{"so does what is done behind it", func(b *partBench) {
			got09(b)
			b.must(b.stageAs("m1", partTxn7, 0, 0, wire.Accept))
			b.must(b.ack("m1", 1, 9, wire.Accept))
		}, []span{{10, 19}}, 100, false, 10, "", "0-0 TX_PENDING 1 m1 7/3, 1-9 ACKNOWLEDGED 1", 10},
	}
	d := wire.Dialects()[0]
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			b := newPartBench(t, d)
			if r.prepare != nil {
				r.prepare(b)
			}
			b.lim.maxRecordLocks = r.locks
			var got []string
			for _, a := range b.acquire(b.now, "m2", r.batches, r.max, r.strict, b.lim) {
				got = append(got, fmt.Sprintf("%d-%d:%d", a.first, a.last, a.deliveryCount))
			}
			if got := strings.Join(got, " "); got != r.want {
				t.Errorf("acquired %q, want %q", got, r.want)
			}
			b.want(r.window)
			if got := b.nextFetchOffset(); got != r.next {
				t.Errorf("nextFetchOffset() = %d, want %d", got, r.next)
			}
		})
	}
}

func TestSharePartitionCanAcquire(t *testing.T) {
	b := newPartBench(t, wire.Dialects()[0])
	b.lim.maxRecordLocks = 10
	steps := []struct {
		name string
		do   func()
		want bool
	}{
		{"empty", func() {}, true},
		{"below the limit", func() { b.get("m1", 0, 8) }, true},
		{"at the limit", func() { b.get("m1", 9, 9) }, false},
		{"done behind the head", func() { b.must(b.ack("m1", 1, 4, wire.Accept)) }, false},
		{"released inside", func() { b.must(b.ack("m1", 5, 5, wire.Release)) }, true},
		{"acquired again", func() { b.get("m2", 5, 5) }, false},
		{"the head is done", func() { b.must(b.ack("m1", 0, 0, wire.Accept)) }, true},
	}
	for _, s := range steps {
		s.do()
		if got := b.canAcquire(b.lim); got != s.want {
			t.Fatalf("%s: canAcquire() = %t, want %t; window %v", s.name, got, s.want, b)
		}
	}
}

func TestSharePartitionArchiveGaps(t *testing.T) {
	rows := []struct {
		name   string
		spans  []span
		window string
		saved  string
	}{
		{"available", []span{{2, 3}}, "0-1 ACQUIRED 1 m1 30s, 2-3 ARCHIVED 1, 4-4 AVAILABLE 1, 5-9 ACQUIRED 1 m1 30s", "2-3 ARCHIVED 1"},
		{"acquired is left", []span{{0, 2}}, "0-1 ACQUIRED 1 m1 30s, 2-2 ARCHIVED 1, 3-4 AVAILABLE 1, 5-9 ACQUIRED 1 m1 30s", "2-2 ARCHIVED 1"},
		{"right behind the window", []span{{10, 12}}, "0-1 ACQUIRED 1 m1 30s, 2-4 AVAILABLE 1, 5-9 ACQUIRED 1 m1 30s, 10-12 ARCHIVED 0", "10-12 ARCHIVED 0"},
		{"across the end", []span{{4, 10}}, "0-1 ACQUIRED 1 m1 30s, 2-3 AVAILABLE 1, 4-4 ARCHIVED 1, 5-9 ACQUIRED 1 m1 30s, 10-10 ARCHIVED 0", "4-4 ARCHIVED 1, 10-10 ARCHIVED 0"},
		{"one after the other", []span{{10, 10}, {11, 12}}, "0-1 ACQUIRED 1 m1 30s, 2-4 AVAILABLE 1, 5-9 ACQUIRED 1 m1 30s, 10-12 ARCHIVED 0", "10-12 ARCHIVED 0"},
		{"further behind is left", []span{{11, 12}}, "0-1 ACQUIRED 1 m1 30s, 2-4 AVAILABLE 1, 5-9 ACQUIRED 1 m1 30s", ""},
		{"below the start offset is left", []span{{-5, -1}}, "0-1 ACQUIRED 1 m1 30s, 2-4 AVAILABLE 1, 5-9 ACQUIRED 1 m1 30s", ""},
	}
	prepare := func(t *testing.T) *partBench {
		t.Helper()
		b := newPartBench(t, wire.Dialects()[0])
		b.get("m1", 0, 9)
		b.must(b.ack("m1", 2, 4, wire.Release))
		return b
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			b := prepare(t)
			c := b.archiveGaps(r.spans)
			b.want(r.window)
			b.wantSaved(c, r.saved)
			c.undo()
			b.want(prepare(t).String())
		})
	}
	t.Run("an empty window moves on", func(t *testing.T) {
		b := newPartBench(t, wire.Dialects()[0])
		c := b.archiveGaps([]span{{0, 3}})
		b.want("empty at 4")
		b.wantSaved(c, "0-3 ARCHIVED 0")
		c.undo()
		b.want("empty at 0")
	})
}

func TestSharePartitionTruncateTo(t *testing.T) {
	rows := []struct {
		to     int64
		window string
	}{
		{-1, "0-4 TX_PENDING 1 m1 7/3, 5-5 ACQUIRED 1 m1 30s, 6-7 ACKNOWLEDGED 1, 8-9 ACQUIRED 1 m1 30s"},
		{0, "0-4 TX_PENDING 1 m1 7/3, 5-5 ACQUIRED 1 m1 30s, 6-7 ACKNOWLEDGED 1, 8-9 ACQUIRED 1 m1 30s"},
		{3, "3-4 TX_PENDING 1 m1 7/3, 5-5 ACQUIRED 1 m1 30s, 6-7 ACKNOWLEDGED 1, 8-9 ACQUIRED 1 m1 30s"},
		{5, "5-5 ACQUIRED 1 m1 30s, 6-7 ACKNOWLEDGED 1, 8-9 ACQUIRED 1 m1 30s"},
		{6, "8-9 ACQUIRED 1 m1 30s"},
		{9, "9-9 ACQUIRED 1 m1 30s"},
		{10, "empty at 10"},
		{99, "empty at 99"},
	}
	for _, r := range rows {
		t.Run(fmt.Sprint(r.to), func(t *testing.T) {
			b := newPartBench(t, wire.Dialects()[0])
			b.get("m1", 0, 9)
			b.must(b.stageAs("m1", partTxn7, 0, 4, wire.Accept))
			b.must(b.ack("m1", 6, 7, wire.Accept))
			before := b.String()
			c := b.truncateTo(r.to)
			b.want(r.window)
			b.wantSaved(c, "")
			after := b.String()
			c.undo()
			b.want(before)
			b.truncateTo(r.to)
			b.want(after)
			b.marker(partTxn7, partCommit) // finds what is left of it
			for _, s := range b.ranges() {
				if s.state == wire.TxPending {
					t.Errorf("still pending after the marker: %v", b)
				}
			}
		})
	}
}

func TestSharePartitionNextExpiry(t *testing.T) {
	b := newPartBench(t, wire.Dialects()[0])
	expect := func(when string, want time.Duration) {
		t.Helper()
		at, ok := b.nextExpiry()
		if want == 0 && ok || want != 0 && (!ok || !at.Equal(partEpoch.Add(want))) {
			t.Errorf("%s: nextExpiry() = %v after the start, %t; want %v", when, at.Sub(partEpoch), ok, want)
		}
	}
	expect("empty", 0)
	b.get("m1", 0, 4)
	b.wait(5 * time.Second)
	b.get("m2", 5, 9)
	expect("two locks", 30*time.Second)
	b.must(b.ack("m1", 0, 3, wire.Accept))
	expect("one record of the first left", 30*time.Second)
	b.must(b.ack("m1", 4, 4, wire.Renew))
	expect("renewed", 35*time.Second)
	b.must(b.stageAs("m2", partTxn7, 5, 9, wire.Accept))
	b.must(b.ack("m1", 4, 4, wire.Accept))
	expect("staged and acknowledged", 0)
}

// TestSharePartitionUndo has what undo does when a write failed, alone and after
// something else has happened. The model test covers exactness.
func TestSharePartitionUndo(t *testing.T) {
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			t.Run("a stage comes back acquired, without a lock", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 9)
				b.must(b.stageAs("m1", partTxn7, 2, 4, wire.Accept)).undo()
				b.want("0-1 ACQUIRED 1 m1 30s, 2-4 ACQUIRED 1 m1, 5-9 ACQUIRED 1 m1 30s")
				b.wait(30 * time.Second)
				b.want("0-1 AVAILABLE 1, 2-4 ACQUIRED 1 m1, 5-9 AVAILABLE 1")
				if _, ok := b.nextExpiry(); ok {
					t.Error("a lock runs")
				}
				b.must(b.stageAs("m1", partTxn7, 2, 2, wire.Accept))
				b.must(b.ack("m1", 3, 3, wire.Accept))
				b.release(b.now, "m1", b.lim)
				b.want("0-1 AVAILABLE 1, 2-2 TX_PENDING 1 m1 7/3, 3-3 ACKNOWLEDGED 1, 4-9 AVAILABLE 1")
			})
			t.Run("an acknowledgement comes back with its lock, run out or not", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 9)
				c := b.must(b.ack("m1", 0, 4, wire.Accept))
				b.now = b.now.Add(40 * time.Second)
				c.undo()
				b.want("0-9 ACQUIRED 1 m1 -10s")
				b.wait(0)
				b.want("0-9 AVAILABLE 1")
			})
			t.Run("twice is once", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 9)
				c := b.must(b.ack("m1", 0, 9, wire.Release))
				c.undo()
				b.must(b.ack("m1", 0, 9, wire.Release))
				c.undo()
				b.want("0-9 AVAILABLE 1")
			})
			t.Run("what a later operation changed stays", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 9)
				c := b.must(b.ack("m1", 2, 7, wire.Release))
				b.get("m2", 4, 5)
				c.undo()
				b.want("0-3 ACQUIRED 1 m1 30s, 4-5 ACQUIRED 2 m2 30s, 6-9 ACQUIRED 1 m1 30s")
			})
			t.Run("a start offset that has moved on stays", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 9)
				c := b.must(b.ack("m1", 0, 4, wire.Accept))
				b.must(b.ack("m1", 5, 5, wire.Accept))
				c.undo()
				b.want("6-9 ACQUIRED 1 m1 30s")
			})
			t.Run("records acquired behind a truncated window stay", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 4)
				c := b.truncateTo(20)
				b.get("m2", 20, 24)
				c.undo()
				b.want("0-4 ACQUIRED 1 m1 30s, 5-19 ARCHIVED 0, 20-24 ACQUIRED 1 m2 30s")
			})
			t.Run("an archived gap that is not the end any more stays", func(t *testing.T) {
				b := newPartBench(t, d)
				b.get("m1", 0, 4)
				c := b.archiveGaps([]span{{5, 5}})
				b.get("m2", 6, 9)
				c.undo()
				b.want("0-4 ACQUIRED 1 m1 30s, 5-5 ARCHIVED 0, 6-9 ACQUIRED 1 m2 30s")
			})
		})
	}
}

// TestPartHoldSpans has a hold that lives long while its records come and go at
// one instant, as they do under a fake clock.
func TestPartHoldSpans(t *testing.T) {
	b := newPartBench(t, wire.Dialects()[0])
	b.lim.deliveryCountLimit = 100
	b.get("m1", 0, 999)
	for i := range 5000 {
		o := 1 + int64(i*7%998)
		b.must(b.ack("m1", o, o, wire.Release))
		b.get("m1", o, o)
	}
	h := b.window.first().hold
	if n := len(h.spans); int64(n) > 2*h.records+1 {
		t.Errorf("a hold of %d records keeps %d spans", h.records, n)
	}
	b.wait(30 * time.Second)
	for _, r := range b.ranges() {
		if r.state != wire.Available {
			t.Fatalf("after the lock ran out: %+v", r)
		}
	}
}

// FuzzSharePartitionAcks sends lists of acknowledgement batches, however
// malformed, to a window that has every state. Six bytes are one batch: first
// offset, length, number of types, and three types.
func FuzzSharePartitionAcks(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add([]byte{20, 5, 1, 1, 0, 0}, true)
	f.Add([]byte{20, 3, 3, 1, 3, 0, 26, 2, 1, 4, 0, 0}, true)
	f.Add([]byte{90, 255, 1, 1, 0, 0}, false)
	f.Add([]byte{0, 9, 1, 2, 0, 0, 0, 9, 1, 2, 0, 0}, false)
	f.Add([]byte{44, 0, 0, 0, 0, 0}, true)
	f.Fuzz(func(t *testing.T, data []byte, renew bool) {
		var acks []ackBatch
		for ; len(data) >= 6; data = data[6:] {
			a := ackBatch{span: span{int64(data[0]), int64(data[0]) + int64(int8(data[1]))}}
			for i := range int(data[2]) {
				a.types = append(a.types, int8(data[3+i%3]))
			}
			acks = append(acks, a)
		}
		for _, d := range wire.Dialects() {
			b := newPartBench(t, d)
			b.get("m0", 0, 9)
			b.get("m1", 10, 99)
			b.must(b.ack("m0", 0, 9, wire.Accept))
			for i, s := range []wire.RecordState{wire.Available, wire.Acknowledged, wire.Archived, wire.Archiving, wire.TxPending} {
				for o := 30 + int64(i); o < 100; o += 10 {
					b.put(o, s)
				}
			}
			before := b.String()
			check := func(op string, c change, code int16, reverted string) {
				if err := partCheck(b.sharePartition); err != nil {
					t.Fatalf("%s(%v): %v", op, acks, err)
				}
				if code != 0 && code != 42 && code != 121 {
					t.Fatalf("%s(%v) = %d", op, acks, code)
				}
				if code != 0 && (b.String() != before || len(c.batches) > 0) {
					t.Fatalf("%s(%v) = %d, window\n got %v\nwant %v", op, acks, code, b, before)
				}
				for i := range c.batches {
					if s := c.batches[i]; s.LastOffset < s.FirstOffset || s.DeliveryState == wire.Acquired || i > 0 && s.FirstOffset <= c.batches[i-1].LastOffset {
						t.Fatalf("%s(%v): to be persisted %v", op, acks, c.batches)
					}
				}
				c.undo()
				if got := b.String(); reverted != "" && got != reverted {
					t.Fatalf("%s(%v) and its undo: window\n got %v\nwant %v", op, acks, got, reverted)
				}
				if err := partCheck(b.sharePartition); err != nil {
					t.Fatalf("%s(%v) and its undo: %v", op, acks, err)
				}
			}
			c, code := b.acknowledge(b.now, "m1", acks, renew, b.lim)
			check("acknowledge", c, code, before)
			c, code = b.stage(b.now, "m1", partTxn7, acks, b.lim)
			check("stage", c, code, "") // its undo stops locks
		}
	})
}
