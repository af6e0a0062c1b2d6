package sandbox

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// crash keeps what a sandbox would have left behind if it had been killed at a
// given moment: a copy of its data directory.
type crash struct {
	t    *testing.T
	dir  string
	once sync.Once
	copy string
}

// now is the moment; the first call counts.
func (c *crash) now() {
	c.once.Do(func() {
		to := filepath.Join(c.t.TempDir(), "crashed")
		if err := os.CopyFS(to, os.DirFS(c.dir)); err != nil {
			c.t.Errorf("copy the data directory: %v", err)
			return
		}
		c.copy = to
	})
}

// crashPlane crashes before or after an end marker is applied.
type crashPlane struct {
	sharePlane
	before, after func()
}

func (p *crashPlane) transactionEnded(ctx context.Context, t endedTxn, done func()) {
	if p.before != nil {
		p.before()
	}
	p.sharePlane.transactionEnded(ctx, t, func() {
		if p.after != nil {
			p.after()
		}
		done()
	})
}

// crashCase is a sandbox with a transaction that holds acknowledgements of two
// share-partitions, whose state is in different partitions of
// __share_group_state, and perhaps records in two partitions of "out".
type crashCase struct {
	*shareE2E
	*crash
	plane *crashPlane
	p     *e2eProducer
	m     *e2eMember
}

const crashRecords = 5 // of each partition

func startCrashCase(t *testing.T, dialect string, records bool) *crashCase {
	t.Helper()
	c := &crashCase{crash: &crash{t: t, dir: t.TempDir()}, plane: new(crashPlane)}
	c.shareE2E = startShareE2E(t, dialect, 2, WithBrokers(1), WithStatePartitions(4), WithDataDir(c.dir), WithTopics(Topic{Name: "out", Partitions: 2}),
		func(cfg *config) {
			cfg.wrapPlane = func(inner sharePlane) sharePlane {
				c.plane.sharePlane = inner
				return c.plane
			}
		})
	for n := range int32(2) {
		c.produce(n, crashRecords)
	}
	c.p, c.m = c.shareE2E.producer("t", time.Minute), c.join("m")
	// A transaction before: what kfake remembers of it must not be taken for
	// the next one.
	if records {
		c.send("before", 0)
		c.p.mustEnd(true)
	}
	c.m.fetch(100, 0, 1)
	c.p.mustStage(c.m, e2eStage{0, 0, crashRecords - 1, nil}, e2eStage{1, 0, crashRecords - 1, nil})
	if records {
		c.send("of the transaction", 0)
		c.send("of the transaction", 1)
	}
	return c
}

// send produces one record in the transaction of c.p.
func (c *crashCase) send(value string, partition int32) int16 {
	c.shareE2E.t.Helper()
	resp := sendInTxn(c.shareE2E, c.p, "out", partition, value)
	return resp.Topics[0].Partitions[0].ErrorCode
}

// sendInTxn produces one record as the first of its transaction on a partition.
func sendInTxn(e *shareE2E, p *e2eProducer, topic string, partition int32, value string) *kmsg.ProduceResponse {
	e.t.Helper()
	r := kmsg.Record{Value: []byte(value)}
	return sendBatch(e, topic, partition, &p.id, kmsg.RecordBatch{
		Attributes: batchTransactional, NumRecords: 1, ProducerID: p.producerID, ProducerEpoch: p.producerEpoch, Records: appendRecord(nil, r),
	})
}

// sendIdempotent produces n records with sequence numbers from first on.
func sendIdempotent(e *shareE2E, p *e2eProducer, first, n int32) *kmsg.ProduceResponse {
	e.t.Helper()
	b := kmsg.RecordBatch{NumRecords: n, LastOffsetDelta: n - 1, ProducerID: p.producerID, ProducerEpoch: p.producerEpoch, FirstSequence: first}
	for i := range n {
		b.Records = appendRecord(b.Records, kmsg.Record{OffsetDelta: i, Value: []byte("x")})
	}
	return sendBatch(e, "t", 0, nil, b)
}

func appendRecord(dst []byte, r kmsg.Record) []byte {
	r.Length = int32(len(r.AppendTo(nil)) - 1) // a length of 0 took one byte
	return r.AppendTo(dst)
}

func sendBatch(e *shareE2E, topic string, partition int32, transactionalID *string, b kmsg.RecordBatch) *kmsg.ProduceResponse {
	e.t.Helper()
	b.PartitionLeaderEpoch, b.Magic, b.FirstTimestamp, b.MaxTimestamp = -1, 2, 1, 1
	enc := b.AppendTo(nil)
	binary.BigEndian.PutUint32(enc[batchLengthAt:], uint32(len(enc)-12))
	binary.BigEndian.PutUint32(enc[17:], crc32.Checksum(enc[batchCRCStart:], castagnoli()))
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TransactionID, req.TimeoutMillis = 12, -1, transactionalID, 1000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, enc
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	return askGateway[*kmsg.ProduceResponse](e.t, dialRaw(e.t, e.s, 0), req)
}

// recovered starts a sandbox on what the crash left.
func (c *crashCase) recovered() {
	t := c.shareE2E.t.(*testing.T)
	t.Helper()
	if c.copy == "" {
		t.Fatal("the moment of the crash did not come")
	}
	closeSandbox(t, c.s)
	c.cl.Close()
	c.dir = c.copy
	c.s = startSandbox(t, WithDialect(c.dialect), WithBrokers(1), WithStatePartitions(4), WithDataDir(c.copy))
	c.connect()
}

// visible returns the values of "out" that read_committed shows.
func (c *crashCase) visible() []string {
	t := c.shareE2E.t.(*testing.T)
	t.Helper()
	var values []string
	for n := range int32(2) {
		info, _ := c.s.kafka.partition("out", n)
		if info.lastStableOffset != info.highWatermark {
			t.Fatalf("out-%d: last stable offset %d, high watermark %d", n, info.lastStableOffset, info.highWatermark)
		}
		f, err := c.s.kafka.fetch(t.Context(), "out", n, 0, 1<<20, true)
		if err != nil {
			t.Fatal(err)
		}
		w, err := newLogWindow(0, f.records, true, f.aborted)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range w.batches {
			if b.hidden {
				continue
			}
			raw := w.records[b.pos+batchHeaderBytes : b.pos+b.size]
			var r kmsg.Record
			if err := r.ReadFrom(raw); err != nil {
				t.Fatal(err)
			}
			values = append(values, string(r.Value))
		}
	}
	return values
}

// wantOutcome fails unless records and acknowledgements were both committed, or
// both were not.
func (c *crashCase) wantOutcome(records, committed bool) {
	t := c.shareE2E.t.(*testing.T)
	t.Helper()
	want := []string{"before"}
	if committed {
		want = []string{"before", "of the transaction", "of the transaction"}
	}
	if got := c.visible(); records && !slices.Equal(got, want) {
		t.Errorf("visible are %q, want %q", got, want)
	}
	if n := c.s.plane.pendingCount(); n != 0 {
		t.Errorf("%d records are pending", n)
	}
	m := c.join("after")
	for n := range int32(2) {
		got := rangesOf(m.fetch(100, n), n)
		if redelivered := len(got) > 0; redelivered == committed {
			t.Errorf("partition %d: delivered again: %v; the transaction was committed: %v", n, got, committed)
		}
	}
}

// truncateLast cuts the last batch off a partition, as if the sandbox had been
// killed before it was written.
func (c *crashCase) truncateLast(topic string, partition int32) {
	c.shareE2E.t.Helper()
	dir := filepath.Join(c.copy, "kafka", "partitions", fmt.Sprintf("%s-%d", topic, partition))
	l, err := readPartitionLog(dir)
	if err != nil {
		c.shareE2E.t.Fatal(err)
	}
	s := l.segments[len(l.segments)-1]
	name := filepath.Join(dir, fmt.Sprintf("%d.dat", s.base))
	raw, err := os.ReadFile(name)
	if err != nil {
		c.shareE2E.t.Fatal(err)
	}
	_, keep := segmentBatches(raw[:len(raw)-1])
	if err := os.Truncate(name, keep); err != nil {
		c.shareE2E.t.Fatal(err)
	}
}

// Whatever the moment at which the sandbox is killed, the records of a
// transaction and its acknowledgements share one outcome, and the client learns
// which.
func TestCrashDuringTheEnd(t *testing.T) {
	type moment struct {
		set    func(c *crashCase) // when to crash
		then   func(c *crashCase) // what was not written yet
		commit bool               // what the client asks for
		want   bool               // what becomes of it
	}
	beforeKafka := func(c *crashCase) {
		c.s.cluster.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.now()
			return nil, nil, false
		})
	}
	beforeMarkers := func(c *crashCase) { c.plane.before = c.now }
	afterMarkers := func(c *crashCase) { c.plane.after = c.now }
	moments := map[string]moment{
		"decided":                        {set: beforeKafka, commit: true, want: true},
		"decided to abort":               {set: beforeKafka},
		"in the logs":                    {set: beforeMarkers, commit: true, want: true},
		"in the logs, aborted":           {set: beforeMarkers},
		"in some of the logs":            {set: beforeMarkers, commit: true, want: true, then: func(c *crashCase) { c.truncateLast("out", 1) }},
		"in some of the logs, aborted":   {set: beforeMarkers, then: func(c *crashCase) { c.truncateLast("out", 0) }},
		"in the logs of records alone":   {set: beforeMarkers, commit: true, want: true, then: func(c *crashCase) { c.truncateState() }},
		"in one share-partition's state": {set: afterMarkers, commit: true, want: true, then: func(c *crashCase) { c.truncateState() }},
		"applied":                        {set: afterMarkers, commit: true, want: true},
		"applied, aborted":               {set: afterMarkers},
	}
	for dialect, records := range map[string]bool{"kip": true, "draft": false} {
		for name, mo := range moments {
			if !records && mo.then != nil {
				continue
			}
			t.Run(fmt.Sprintf("%s/records %v/%s", dialect, records, name), func(t *testing.T) {
				t.Parallel()
				c := startCrashCase(t, dialect, records)
				mo.set(c)
				sent := c.p.owner
				c.p.mustEnd(mo.commit)
				if mo.then != nil {
					mo.then(c)
				}
				c.recovered()
				c.wantOutcome(records, mo.want)
				txn := dialCoordinator(t, c.s, "t")
				if got, want := txn.described(t).State, completed(mo.commit); got != want {
					t.Errorf("described as %s, want %s", got, want)
				}
				// The client did not get its answer, and asks again.
				if resp := txn.end(t, 5, sent.producerID, sent.producerEpoch, mo.commit); resp.ErrorCode != 0 || resp.ProducerEpoch != sent.producerEpoch+1 {
					t.Errorf("asked again: %s, epoch %d", errorName(resp.ErrorCode), resp.ProducerEpoch)
				}
				if resp := txn.end(t, 5, sent.producerID, sent.producerEpoch, !mo.commit); resp.ErrorCode != kerr.InvalidTxnState.Code {
					t.Errorf("asked for the other outcome: %s", errorName(resp.ErrorCode))
				}
				c.wantUsable(sent.producerEpoch + 1)
			})
		}
	}
}

// truncateState cuts the last record or marker off one of the two partitions of
// __share_group_state that hold the state.
func (c *crashCase) truncateState() {
	n := int32(-1)
	for p := range int32(2) {
		n = max(n, statePartitionOf(c.shareE2E, p))
	}
	c.truncateLast(stateTopic, n)
}

func statePartitionOf(e *shareE2E, partition int32) int32 {
	co := newShareCoordinator(e.s.kafka, time.Now, 4)
	return co.partitionFor(shareStateKey{e2eGroup, e.topic.id, partition})
}

// wantUsable fails unless the producer can go on, and nothing of the past shows
// after another commit and another crash.
func (c *crashCase) wantUsable(epoch int16) {
	t := c.shareE2E.t.(*testing.T)
	t.Helper()
	before := c.visible()
	c.p.producerEpoch = epoch
	if code := c.send("after", 0); code != 0 {
		t.Fatalf("produce after the restart: %s", errorName(code))
	}
	c.p.mustEnd(true)
	again := &crash{t: t, dir: c.dir}
	again.now()
	c.crash = again
	c.recovered()
	want := slices.Sorted(slices.Values(append(before, "after")))
	if got := slices.Sorted(slices.Values(c.visible())); !slices.Equal(got, want) {
		t.Errorf("visible after another crash: %q, want %q", got, want)
	}
}

// A transaction that was open when the sandbox was killed stays open if it has
// acknowledgements alone, and can only be aborted if it has records.
func TestCrashWhileOpen(t *testing.T) {
	for _, dialect := range bothDialects {
		t.Run(dialect+"/acknowledgements", func(t *testing.T) {
			t.Parallel()
			for _, commit := range []bool{true, false} {
				c := startCrashCase(t, dialect, false)
				c.now()
				c.recovered()
				if d := dialCoordinator(t, c.s, "t").described(t); d.State != txnOngoing || len(d.Topics) != 1 || len(d.Topics[0].Partitions) != 2 {
					t.Errorf("described as %+v", d)
				}
				if n := c.s.plane.pendingCount(); n != 2*crashRecords {
					t.Errorf("%d records are pending, want %d", n, 2*crashRecords)
				}
				c.p.mustEnd(commit)
				c.wantOutcome(false, commit)
			}
		})
		t.Run(dialect+"/records", func(t *testing.T) {
			t.Parallel()
			c := startCrashCase(t, dialect, true)
			c.now()
			c.recovered()
			txn := dialCoordinator(t, c.s, "t")
			if d := txn.described(t); d.State != txnOngoing || d.ProducerEpoch != c.p.producerEpoch {
				t.Errorf("described as %+v", d)
			}
			if code := c.send("more", 1); code != kerr.TransactionAbortable.Code {
				t.Errorf("produce: %s", errorName(code))
			}
			m := c.join("more")
			m.fetch(1, 0)
			if resp := c.p.stage(m, 0, e2eStage{0, 0, 0, nil}); resp.ErrorCode != kerr.TransactionAbortable.Code {
				t.Errorf("stage: %s", errorName(resp.ErrorCode))
			}
			if code := c.p.end(true); code != kerr.TransactionAbortable.Code {
				t.Errorf("commit: %s", errorName(code))
			}
			// A second crash forgets none of it.
			again := &crash{t: t, dir: c.dir}
			again.now()
			c.crash = again
			c.recovered()
			if code := c.p.end(true); code != kerr.TransactionAbortable.Code {
				t.Errorf("commit after another crash: %s", errorName(code))
			}
			epoch := c.p.producerEpoch
			c.p.mustEnd(false)
			if c.p.producerEpoch != epoch+1 {
				t.Errorf("epoch %d after the abort of %d", c.p.producerEpoch, epoch)
			}
			c.wantOutcome(true, false)
			c.wantUsable(epoch + 1)
		})
		t.Run(dialect+"/records, fenced", func(t *testing.T) {
			t.Parallel()
			c := startCrashCase(t, dialect, true)
			c.now()
			c.recovered()
			old := c.p.owner
			c.p = c.shareE2E.producer("t", time.Minute)
			if c.p.producerEpoch <= old.producerEpoch {
				t.Errorf("epoch %d after %d", c.p.producerEpoch, old.producerEpoch)
			}
			c.wantOutcome(true, false)
			c.wantUsable(c.p.producerEpoch)
		})
		t.Run(dialect+"/records, timed out", func(t *testing.T) {
			t.Parallel()
			c := startCrashCase(t, dialect, true)
			r, _ := c.s.txns.get("t")
			r.TimeoutMs = 1
			c.s.txns.note(r)
			c.now()
			c.recovered()
			txn := dialCoordinator(t, c.s, "t")
			if !c.await(func() bool { return txn.described(t).State == txnCompleteAbort }) {
				t.Fatalf("described as %+v", txn.described(t))
			}
			c.wantOutcome(true, false)
			if code := c.p.end(true); code != kerr.InvalidTxnState.Code {
				t.Errorf("commit: %s", errorName(code))
			}
		})
	}
}

// A batch that is sent again after a crash is not appended twice, and one that
// continues is taken.
func TestCrashKeepsSequences(t *testing.T) {
	dir := t.TempDir()
	s := startSandbox(t, WithBrokers(1), WithDataDir(dir), WithTopics(Topic{Name: "t", Partitions: 1}))
	cl := newTestClient(t, s, kgo.DefaultProduceTopic("t"))
	produceValues(t, cl, "t", 10)
	id, epoch, err := cl.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &e2eProducer{owner: owner{id, epoch}}
	c := &crash{t: t, dir: dir}
	c.now()
	closeSandbox(t, s)
	s = startSandbox(t, WithBrokers(1), WithDataDir(c.copy))
	e := &shareE2E{t: t, s: s}
	l, err := readPartitionLog(filepath.Join(c.copy, "kafka", "partitions", "t-0"))
	if err != nil {
		t.Fatal(err)
	}
	w := l.sequences[id]
	last := w.entries[(w.at+4)%5]
	for name, row := range map[string]struct {
		first, n int32
		offset   int64
		code     int16
	}{
		"the last batch again": {last.First, last.Next - last.First, last.Offset, 0},
		"a gap":                {w.next + 1, 1, 0, kerr.OutOfOrderSequenceNumber.Code},
	} {
		resp := sendIdempotent(e, p, row.first, row.n).Topics[0].Partitions[0]
		if resp.ErrorCode != row.code || row.code == 0 && resp.BaseOffset != row.offset {
			t.Errorf("%s: %s at offset %d, want %s at %d", name, errorName(resp.ErrorCode), resp.BaseOffset, errorName(row.code), row.offset)
		}
	}
	if resp := sendIdempotent(e, p, w.next, 1).Topics[0].Partitions[0]; resp.ErrorCode != 0 || resp.BaseOffset != 10 {
		t.Errorf("the next batch: %s at offset %d", errorName(resp.ErrorCode), resp.BaseOffset)
	}
}
