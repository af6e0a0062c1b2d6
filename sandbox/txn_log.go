package sandbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// What a transaction coordinator knows of its transactional IDs and Kafka keeps
// in __transaction_state. kfake tells only whether a transaction is open, and
// forgets that when it is killed.
//
// With a data directory each change is a line of transactions.log, written
// before kfake is asked to do what it says. The last line of an ID counts. A
// write that reached the operating system survives the death of the process,
// which is what the sandbox has to stand; the log is not synced, no more than
// kfake's own, so a machine that loses power may lose the last transactions.

// The states of a transactional ID (KIP-664).
const (
	txnEmpty          = "Empty"
	txnOngoing        = "Ongoing"
	txnPrepareCommit  = "PrepareCommit"
	txnPrepareAbort   = "PrepareAbort"
	txnCompleteCommit = "CompleteCommit"
	txnCompleteAbort  = "CompleteAbort"
)

// txnRecord is what is known of one transactional ID.
type txnRecord struct {
	TransactionalID string `json:"transactional_id"`
	ProducerID      int64  `json:"producer_id"`
	// ProducerEpoch is that of the transaction while it is Ongoing or
	// Prepare*, otherwise the one that the producer uses next.
	ProducerEpoch int16  `json:"producer_epoch"`
	State         string `json:"state"`
	TimeoutMs     int32  `json:"timeout_ms"` // that the client asked for; 0: not known
	StartMs       int64  `json:"start_ms,omitempty"`

	// NextEpoch is the producer's epoch after Prepare*: higher by one, or the
	// same for an EndTxn before version 5.
	NextEpoch int16 `json:"next_epoch,omitempty"`
	// StatePartitions of __share_group_state are registered in the open
	// transaction, or wait for its end marker.
	StatePartitions []int32 `json:"state_partitions,omitempty"`
	// Offsets says that offsets of consumer groups are part of the transaction;
	// kfake keeps them in memory.
	Offsets bool `json:"offsets,omitempty"`
	// AbortOnly says that a part of the open transaction was lost in a crash.
	AbortOnly bool `json:"abort_only,omitempty"`
}

func (r txnRecord) prepared() bool { return r.State == txnPrepareCommit || r.State == txnPrepareAbort }

// is reports whether the record speaks of that producer and epoch.
func (r txnRecord) is(producerID int64, epoch int16) bool {
	return r.ProducerID == producerID && r.ProducerEpoch == epoch
}

// prepare is the state after an EndTxn was decided, complete that after its
// markers were written.
func prepare(commit bool) string {
	if commit {
		return txnPrepareCommit
	}
	return txnPrepareAbort
}

func completed(commit bool) string {
	if commit {
		return txnCompleteCommit
	}
	return txnCompleteAbort
}

// txnLog holds a txnRecord for each transactional ID. It is safe for concurrent
// use.
type txnLog struct {
	path string // "" keeps it in memory
	warn func(text string)

	// blockedCount lets Produce pass without a lock while there is none.
	blockedCount atomic.Int32

	mu      sync.Mutex
	byID    map[string]txnRecord
	blocked map[int64]txnRecord // by producer ID: what is being ended or must be aborted
	ongoing int                 // records that are Ongoing
	file    *os.File            // nil: to be written anew
	size    int64
	live    int64 // size of the file when it was written anew
}

// txnLogSlack is how much a log may grow beyond twice what is live in it.
const txnLogSlack = 1 << 20

// openTxnLog reads the log of a data directory, and writes it anew.
func openTxnLog(path string, warn func(text string)) (*txnLog, error) {
	l := &txnLog{path: path, warn: warn, byID: make(map[string]txnRecord), blocked: make(map[int64]txnRecord)}
	if path == "" {
		return l, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("transaction log: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, len(raw)+1)
	for lines.Scan() {
		var r txnRecord
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			// A line that a crash cut short; what it was to say has not
			// happened. It cannot be followed by another one.
			break
		}
		l.set(r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l, l.rewrite()
}

// set takes a record over into memory.
func (l *txnLog) set(r txnRecord) {
	if old, ok := l.byID[r.TransactionalID]; ok {
		delete(l.blocked, old.ProducerID)
		if old.State == txnOngoing {
			l.ongoing--
		}
	}
	if r.State == txnOngoing {
		l.ongoing++
	}
	l.byID[r.TransactionalID] = r
	if r.prepared() || r.AbortOnly {
		l.blocked[r.ProducerID] = r
	}
	l.blockedCount.Store(int32(len(l.blocked)))
}

// rewrite replaces the file by one with the last record of each ID.
func (l *txnLog) rewrite() error {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	for _, id := range slices.Sorted(maps.Keys(l.byID)) {
		if err := enc.Encode(l.byID[id]); err != nil {
			return fmt.Errorf("transaction log: %w", err)
		}
	}
	if err := replaceFile(l.path, buf.Bytes()); err != nil {
		return fmt.Errorf("transaction log: %w", err)
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("transaction log: %w", err)
	}
	l.file, l.size, l.live = f, int64(buf.Len()), int64(buf.Len())
	return nil
}

// put writes what is known now of a transactional ID. When that fails memory
// keeps it all the same: the caller decides whether to go on, and the next put
// writes the whole log.
func (l *txnLog) put(r txnRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(r)
	if l.path == "" {
		return nil
	}
	if l.file == nil || l.size > 2*l.live+txnLogSlack {
		return l.rewrite()
	}
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("transaction log: %w", err)
	}
	n, err := l.file.Write(append(line, '\n'))
	l.size += int64(n)
	if err != nil {
		_ = l.file.Close()
		l.file = nil
		return fmt.Errorf("transaction log: %w", err)
	}
	return nil
}

// note is put for what has happened already.
func (l *txnLog) note(r txnRecord) {
	if err := l.put(r); err != nil {
		l.warn(err.Error())
	}
}

func (l *txnLog) get(transactionalID string) (txnRecord, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.byID[transactionalID]
	return r, ok
}

// openCount counts the transactions that the log has as open, which are not those
// with records alone.
func (l *txnLog) openCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ongoing
}

// all returns the records by transactional ID.
func (l *txnLog) all() []txnRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.byID), func(a, b txnRecord) int {
		return strings.Compare(a.TransactionalID, b.TransactionalID)
	})
}

// blockedCode returns why a producer cannot add anything to its transaction:
// CONCURRENT_TRANSACTIONS while the end of the last one is not done,
// TRANSACTION_ABORTABLE when a part of the open one is lost (KIP-890), 0 if it
// can. A former epoch is left to be refused as such.
func (l *txnLog) blockedCode(producerID int64, epoch int16) int16 {
	if l.blockedCount.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.blocked[producerID]
	switch {
	case !ok:
	case r.prepared() && epoch >= r.NextEpoch:
		return kerr.ConcurrentTransactions.Code
	case r.AbortOnly && epoch == r.ProducerEpoch:
		return kerr.TransactionAbortable.Code
	}
	return 0
}

// open notes that a transaction is open, and what changes in its record by
// change, which returns false for nothing. The caller holds the guard of the
// transactional ID.
func (l *txnLog) open(transactionalID string, producerID int64, epoch int16, change func(*txnRecord) bool) {
	r, _ := l.get(transactionalID)
	if r.State != txnOngoing || !r.is(producerID, epoch) {
		r = txnRecord{
			TransactionalID: transactionalID, ProducerID: producerID, ProducerEpoch: epoch,
			State: txnOngoing, TimeoutMs: r.TimeoutMs, StartMs: time.Now().UnixMilli(),
		}
	}
	if change(&r) {
		l.note(r)
	}
}

// holdsOffsets notes that offsets of consumer groups are part of a transaction.
func (l *txnLog) holdsOffsets(transactionalID string, producerID int64, epoch int16) {
	l.open(transactionalID, producerID, epoch, func(r *txnRecord) bool {
		news := !r.Offsets
		r.Offsets = true
		return news
	})
}

// holdsShareAcks notes that partitions of __share_group_state are registered in
// a transaction.
func (l *txnLog) holdsShareAcks(transactionalID string, producerID int64, epoch int16, partitions []int32) {
	l.open(transactionalID, producerID, epoch, func(r *txnRecord) bool {
		before := len(r.StatePartitions)
		all := append(slices.Clone(r.StatePartitions), partitions...)
		slices.Sort(all)
		r.StatePartitions = slices.Compact(all)
		return len(r.StatePartitions) > before
	})
}

// awaitsMarkers notes which partitions of __share_group_state wait for their end
// marker, while the transaction is prepared.
func (l *txnLog) awaitsMarkers(transactionalID string, partitions []int32) {
	r, _ := l.get(transactionalID)
	if r.prepared() && !slices.Equal(r.StatePartitions, partitions) {
		r.StatePartitions = partitions
		l.note(r)
	}
}

// timeout returns what the client asked for, otherwise unless it is known.
func (l *txnLog) timeout(transactionalID string, otherwise time.Duration) time.Duration {
	if r, ok := l.get(transactionalID); ok && r.TimeoutMs > 0 {
		return time.Duration(r.TimeoutMs) * time.Millisecond
	}
	return otherwise
}

// state returns the state that a broker would describe, given what kfake says.
func (l *txnLog) state(transactionalID string, producerID int64, epoch int16, kfakes string) string {
	if kfakes != txnEmpty {
		return kfakes
	}
	r, ok := l.get(transactionalID)
	switch {
	case !ok:
		return txnEmpty
	case r.prepared() && r.ProducerID == producerID:
		return r.State
	case r.is(producerID, epoch):
		return r.State
	}
	return txnCompleteAbort // the epoch rose without a request: kfake aborted it
}

func (l *txnLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	if err != nil {
		return fmt.Errorf("transaction log: %w", err)
	}
	return nil
}
