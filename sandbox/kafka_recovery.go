package sandbox

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What is done to kfake's directory after the sandbox was killed, before kfake
// opens it. kfake's segments are whole after that; but it knows no more which
// transactions were open, and so
//   - it aborts those that have records, in memory alone: after the producer's
//     next commit to that partition and a second crash it takes the aborted
//     records for committed ones;
//   - the end of a transaction, which it writes partition by partition, may be
//     missing in some of them, which would be aborted while the others are not;
//   - records whose index entry is missing are not known to be transactional,
//     so that everybody sees them at once;
//   - what it remembers of idempotent producers is that of the last time it was
//     closed: a batch that is sent again is appended again, and one that
//     continues is refused.
//
// Here each open transaction of the logs gets its end marker, as the transaction
// log decided or else ABORT, index entries are completed, and the sequence
// numbers of producers are taken from the logs. All of it can be done again if
// the sandbox is killed meanwhile.
//
// The form of the files is that of the kfake that go.mod names:
// partitions/TOPIC-N/BASE.dat holds record batches, BASE.idx one entry of 15
// bytes for each.

// recoverKafka makes the directory of a kfake that was killed fit to be opened.
// What it decides about open transactions it writes to txns first.
func recoverKafka(dir string, txns *txnLog) error {
	logs, err := readPartitionLogs(filepath.Join(dir, "partitions"))
	if err != nil {
		return fmt.Errorf("recover after a crash: %w", err)
	}
	if err := decideOpenTransactions(logs, txns); err != nil {
		return fmt.Errorf("recover after a crash: %w", err)
	}
	for _, l := range logs {
		if err := l.repair(txns); err != nil {
			return fmt.Errorf("recover %s-%d after a crash: %w", l.topic, l.partition, err)
		}
	}
	if err := writeSequences(dir, logs); err != nil {
		return fmt.Errorf("recover after a crash: %w", err)
	}
	// Left if the crash came while kfake closed: the same transactions would
	// be opened again.
	if err := os.Remove(filepath.Join(dir, "session_state.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("recover after a crash: %w", err)
	}
	return nil
}

// partitionLog is what the segments of a partition say.
type partitionLog struct {
	topic     string
	partition int32
	dir       string
	segments  []*segmentLog // by base offset

	next         int64 // offset after the last record
	leaderEpoch  int32 // of the last batch
	maxTimestamp int64
	open         map[int64]int16 // epoch of the open transaction, by producer ID
	ended        map[int64]int16 // highest epoch of an end marker, by producer ID
	sequences    map[int64]*sequenceWindow
}

// segmentLog is one segment: the batches that are whole.
type segmentLog struct {
	base    int64
	size    int64 // of the whole batches
	total   int64 // of the file
	batches []segmentBatch
}

// segmentBatch is the header of a batch, as much of it as is needed.
type segmentBatch struct {
	first, last   int64
	leaderEpoch   int32
	maxTimestamp  int64
	producerID    int64
	producerEpoch int16
	firstSequence int32
	records       int32
	inTxn         bool
	control       bool
}

func readPartitionLogs(dir string) ([]*partitionLog, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var logs []*partitionLog
	for _, e := range entries {
		name, number, ok := cutLast(e.Name(), "-")
		n, err := strconv.ParseInt(number, 10, 32)
		if !ok || err != nil || !e.IsDir() {
			continue
		}
		topic, err := url.PathUnescape(name)
		if err != nil {
			continue
		}
		l, err := readPartitionLog(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		l.topic, l.partition = topic, int32(n)
		logs = append(logs, l)
	}
	return logs, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func readPartitionLog(dir string) (*partitionLog, error) {
	l := &partitionLog{
		dir: dir, open: make(map[int64]int16), ended: make(map[int64]int16), sequences: make(map[int64]*sequenceWindow),
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, isSegment := strings.CutSuffix(e.Name(), ".dat")
		base, err := strconv.ParseInt(number, 10, 64)
		if !isSegment || err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		s := &segmentLog{base: base, total: int64(len(raw))}
		s.batches, s.size = segmentBatches(raw)
		l.segments = append(l.segments, s)
	}
	slices.SortFunc(l.segments, func(a, b *segmentLog) int { return cmp.Compare(a.base, b.base) })
	for _, s := range l.segments {
		for i := range s.batches {
			l.replay(&s.batches[i])
		}
	}
	return l, nil
}

// segmentBatches returns the headers of the whole batches at the start of a
// segment, and their size. Where kfake stops reading, this does.
func segmentBatches(raw []byte) ([]segmentBatch, int64) {
	var batches []segmentBatch
	pos := 0
	for pos+batchHeaderBytes <= len(raw) {
		b := raw[pos:]
		size := 12 + int(int32(binary.BigEndian.Uint32(b[batchLengthAt:])))
		if size < batchHeaderBytes || size > len(b) ||
			binary.BigEndian.Uint32(b[17:]) != crc32.Checksum(b[batchCRCStart:size], castagnoli()) {
			break
		}
		first := int64(binary.BigEndian.Uint64(b))
		attributes := binary.BigEndian.Uint16(b[batchAttributesAt:])
		control := attributes&batchControl != 0
		batches = append(batches, segmentBatch{
			first: first, last: first + int64(int32(binary.BigEndian.Uint32(b[batchLastDeltaAt:]))),
			leaderEpoch:   int32(binary.BigEndian.Uint32(b[12:])),
			maxTimestamp:  int64(binary.BigEndian.Uint64(b[35:])),
			producerID:    int64(binary.BigEndian.Uint64(b[batchProducerIDAt:])),
			producerEpoch: int16(binary.BigEndian.Uint16(b[51:])),
			firstSequence: int32(binary.BigEndian.Uint32(b[53:])),
			records:       int32(binary.BigEndian.Uint32(b[57:])),
			inTxn:         attributes&batchTransactional != 0 && !control,
			control:       control,
		})
		pos += size
	}
	return batches, int64(pos)
}

func (l *partitionLog) replay(b *segmentBatch) {
	l.next, l.leaderEpoch = b.last+1, b.leaderEpoch
	l.maxTimestamp = max(l.maxTimestamp, b.maxTimestamp)
	switch {
	case b.control:
		delete(l.open, b.producerID)
		if e, ok := l.ended[b.producerID]; !ok || b.producerEpoch > e {
			l.ended[b.producerID] = b.producerEpoch
		}
		return
	case b.inTxn:
		l.open[b.producerID] = b.producerEpoch
	}
	if b.producerID >= 0 && b.firstSequence >= 0 {
		w := l.sequences[b.producerID]
		if w == nil {
			w = new(sequenceWindow)
			l.sequences[b.producerID] = w
		}
		w.add(b)
	}
}

// decideOpenTransactions writes to the transaction log what becomes of the
// transactions that were open. Those with records or with offsets of consumer
// groups can only be aborted, by their producers or by time. Those that hold
// share acknowledgements alone stay as they are.
func decideOpenTransactions(logs []*partitionLog, txns *txnLog) error {
	open := make(map[int64]int16)
	ended := make(map[int64]int16)
	for _, l := range logs {
		for id, epoch := range l.open {
			open[id] = epoch
		}
		for id, epoch := range l.ended {
			ended[id] = max(ended[id], epoch)
		}
	}
	now := time.Now().UnixMilli()
	for _, r := range txns.all() {
		epoch, hasRecords := open[r.ProducerID]
		switch {
		case r.prepared() && (!hasRecords || epoch == r.ProducerEpoch):
			continue // decided
		case hasRecords && epoch < r.ProducerEpoch:
			continue // the end of a former one, which could not be written
		case r.State == txnOngoing && ended[r.ProducerID] > r.ProducerEpoch:
			// kfake aborted it by its own clock, and may not have come to
			// write down that the epoch rose.
			r.State, r.NextEpoch, r.AbortOnly = txnPrepareAbort, r.ProducerEpoch+1, false
		case hasRecords:
			r = txnRecord{
				TransactionalID: r.TransactionalID, ProducerID: r.ProducerID, ProducerEpoch: epoch,
				State: txnOngoing, TimeoutMs: r.TimeoutMs, StartMs: now, AbortOnly: true,
			}
		case r.State == txnOngoing && !r.AbortOnly && (r.Offsets || len(r.StatePartitions) == 0):
			r.AbortOnly, r.StatePartitions = true, nil
		default:
			continue
		}
		if err := txns.put(r); err != nil {
			return err
		}
	}
	return nil
}

// repair ends the open transactions of a partition and completes its index.
func (l *partitionLog) repair(txns *txnLog) error {
	for _, s := range l.segments {
		if err := s.completeIndex(l.dir); err != nil {
			return err
		}
	}
	if len(l.open) == 0 {
		return nil
	}
	commits := make(map[owner]bool)
	for _, r := range txns.all() {
		switch r.State {
		case txnPrepareCommit:
			commits[owner{r.ProducerID, r.ProducerEpoch}] = true
		case txnCompleteCommit:
			commits[owner{r.ProducerID, r.ProducerEpoch - 1}] = true
		}
	}
	last := l.segments[len(l.segments)-1]
	var dat, idx []byte
	for _, id := range sortedKeys64(l.open) {
		b := encodeEndMarker(l.next, l.leaderEpoch, owner{id, l.open[id]}, commits[owner{id, l.open[id]}], l.maxTimestamp)
		dat = append(dat, b...)
		idx = append(idx, indexEntry(l.leaderEpoch, l.maxTimestamp, false)...)
		l.next++
	}
	// The index first: kfake drops entries that have no batch.
	if err := appendFile(filepath.Join(l.dir, fmt.Sprintf("%d.idx", last.base)), idx); err != nil {
		return err
	}
	return appendFile(filepath.Join(l.dir, fmt.Sprintf("%d.dat", last.base)), dat)
}

func sortedKeys64(m map[int64]int16) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// encodeEndMarker encodes the control batch that ends a transaction.
func encodeEndMarker(offset int64, leaderEpoch int32, o owner, commit bool, timestamp int64) []byte {
	key := kmsg.ControlRecordKey{Type: kmsg.ControlRecordKeyTypeAbort}
	if commit {
		key.Type = kmsg.ControlRecordKeyTypeCommit
	}
	value := kmsg.EndTxnMarker{}
	r := kmsg.Record{Key: key.AppendTo(nil), Value: value.AppendTo(nil)}
	r.Length = int32(len(r.AppendTo(nil)) - 1) // a length of 0 took one byte
	b := kmsg.RecordBatch{
		FirstOffset: offset, PartitionLeaderEpoch: leaderEpoch, Magic: 2, Attributes: batchControl | batchTransactional,
		FirstTimestamp: timestamp, MaxTimestamp: timestamp,
		ProducerID: o.producerID, ProducerEpoch: o.producerEpoch, FirstSequence: -1,
		NumRecords: 1, Records: r.AppendTo(nil),
	}
	enc := b.AppendTo(nil)
	binary.BigEndian.PutUint32(enc[batchLengthAt:], uint32(len(enc)-12))
	binary.BigEndian.PutUint32(enc[17:], crc32.Checksum(enc[batchCRCStart:], castagnoli()))
	return enc
}

const indexEntryBytes = 15

// indexEntry encodes an entry of an index: a version, the low byte of a checksum
// of what follows, the leader epoch, a timestamp that is not read, and whether
// the batch is part of a transaction.
func indexEntry(leaderEpoch int32, timestamp int64, inTxn bool) []byte {
	e := make([]byte, indexEntryBytes)
	e[0] = 1
	binary.LittleEndian.PutUint32(e[2:], uint32(leaderEpoch))
	binary.LittleEndian.PutUint64(e[6:], uint64(timestamp))
	if inTxn {
		e[14] = 1
	}
	e[1] = byte(crc32.Checksum(e[2:], castagnoli()))
	return e
}

// completeIndex cuts off what is not whole and adds the entries that are missing.
func (s *segmentLog) completeIndex(dir string) error {
	if s.size < s.total {
		if err := os.Truncate(filepath.Join(dir, fmt.Sprintf("%d.dat", s.base)), s.size); err != nil {
			return err
		}
	}
	name := filepath.Join(dir, fmt.Sprintf("%d.idx", s.base))
	info, err := os.Stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	have := int64(0)
	if err == nil {
		have = min(info.Size()/indexEntryBytes, int64(len(s.batches)))
		if info.Size() != have*indexEntryBytes {
			if err := os.Truncate(name, have*indexEntryBytes); err != nil {
				return err
			}
		}
	}
	var missing []byte
	for _, b := range s.batches[have:] {
		missing = append(missing, indexEntry(b.leaderEpoch, b.maxTimestamp, b.inTxn)...)
	}
	if len(missing) == 0 {
		return nil
	}
	return appendFile(name, missing)
}

func appendFile(name string, content []byte) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// sequenceWindow is what kfake knows of a producer on a partition: the last five
// batches, to find those that are sent again, and the sequence number to come.
type sequenceWindow struct {
	entries [5]sequenceEntry
	at      uint8 // next to be overwritten
	count   uint8
	epoch   int16
	next    int32
	seen    bool
}

type sequenceEntry struct {
	First  int32 `json:"first_seq"`
	Next   int32 `json:"next_seq"`
	Offset int64 `json:"offset"`
}

func (w *sequenceWindow) add(b *segmentBatch) {
	next := int32((int64(b.firstSequence) + int64(b.records)) % math.MaxInt32)
	if !w.seen || b.producerEpoch != w.epoch {
		*w = sequenceWindow{epoch: b.producerEpoch, seen: true}
	}
	w.entries[w.at] = sequenceEntry{b.firstSequence, next, b.first}
	w.at = (w.at + 1) % 5
	w.count = min(w.count+1, 5)
	w.next = next
}

// sequenceFile is kfake's seq_windows.json.
type sequenceFile struct {
	Version int              `json:"version"`
	Windows []sequenceRecord `json:"windows"`
}

type sequenceRecord struct {
	PID       int64            `json:"pid"`
	Topic     string           `json:"topic"`
	Partition int32            `json:"partition"`
	Entries   [5]sequenceEntry `json:"entries"`
	Count     uint8            `json:"count"`
	At        uint8            `json:"at"`
	Epoch     int16            `json:"epoch"`
	Seen      bool             `json:"seen"`
	NextSeq   int32            `json:"next_seq"`
}

func writeSequences(dir string, logs []*partitionLog) error {
	f := sequenceFile{Version: 1, Windows: []sequenceRecord{}}
	for _, l := range logs {
		for id, w := range l.sequences {
			f.Windows = append(f.Windows, sequenceRecord{
				PID: id, Topic: l.topic, Partition: l.partition,
				Entries: w.entries, Count: w.count, At: w.at, Epoch: w.epoch, Seen: w.seen, NextSeq: w.next,
			})
		}
	}
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, "seq_windows.json"), raw)
}
