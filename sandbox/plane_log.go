package sandbox

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
)

// What ShareFetch reads of the log.
//
// Only the headers of record batches are decoded: which offsets a batch covers,
// who wrote it and whether it is a control batch. Its records go to the member
// as they are, compressed or not.
//
// A leader keeps the part of the log it read last. Members ask for a few
// hundred records at a time while one read returns many thousand, so most
// fetches cost no read. What has been read does not change: the log is cut only
// at its start, and by a new leader, who has a leaderPartition of its own.

// logReadBytes is how much of the log one read asks for.
const logReadBytes = 1 << 20

// Offsets of fields in a record batch of magic 2, and its attribute bits.
const (
	batchLengthAt        = 8
	batchMagicAt         = 16
	batchAttributesAt    = 21
	batchLastDeltaAt     = 23
	batchProducerIDAt    = 43
	batchHeaderSize      = 61
	batchTransactional   = 1 << 4
	batchControl         = 1 << 5
	batchLengthFieldsEnd = 12
)

// logBatch is the header of one record batch in a logWindow.
type logBatch struct {
	span
	pos, size  int // in the records of the window
	producerID int64
	inTxn      bool // written by a transaction, and not a control batch
	control    bool
	hidden     bool // not to be delivered: aborted, or a control batch under read_committed
}

// logWindow is a part of the log: whole batches, in order.
type logWindow struct {
	from      int64 // the offset asked for
	committed bool  // read under read_committed
	records   []byte
	batches   []logBatch
}

// newLogWindow reads the batch headers of records, which may end in the middle
// of a batch. With committed it hides the batches of the aborted transactions
// and all control batches.
func newLogWindow(from int64, records []byte, committed bool, aborted []abortedTxn) (*logWindow, error) {
	w := &logWindow{from: from, committed: committed, records: records}
	for pos := 0; pos+batchHeaderSize <= len(records); {
		b := records[pos:]
		size := batchLengthFieldsEnd + int(int32(binary.BigEndian.Uint32(b[batchLengthAt:])))
		if b[batchMagicAt] != 2 || size < batchHeaderSize {
			return nil, fmt.Errorf("record batch at offset %d: magic %d, size %d", int64(binary.BigEndian.Uint64(b)), b[batchMagicAt], size)
		}
		if size > len(b) {
			break
		}
		first := int64(binary.BigEndian.Uint64(b))
		attributes := binary.BigEndian.Uint16(b[batchAttributesAt:])
		lb := logBatch{
			span:       span{first, first + int64(int32(binary.BigEndian.Uint32(b[batchLastDeltaAt:])))},
			pos:        pos,
			size:       size,
			producerID: int64(binary.BigEndian.Uint64(b[batchProducerIDAt:])),
			control:    attributes&batchControl != 0,
		}
		lb.inTxn = attributes&batchTransactional != 0 && !lb.control
		w.batches = append(w.batches, lb)
		pos += size
	}
	if committed {
		hideUncommitted(w.batches, aborted)
	}
	return w, nil
}

// hideUncommitted hides control batches and what aborted transactions wrote. An
// entry of aborted holds from its first offset to the next control batch of
// that producer, which is its ABORT marker.
func hideUncommitted(batches []logBatch, aborted []abortedTxn) {
	aborted = slices.Clone(aborted)
	slices.SortFunc(aborted, func(a, b abortedTxn) int { return cmp.Compare(a.firstOffset, b.firstOffset) })
	open := make(map[int64]bool)
	for i := range batches {
		b := &batches[i]
		for len(aborted) > 0 && aborted[0].firstOffset <= b.last {
			open[aborted[0].producerID] = true
			aborted = aborted[1:]
		}
		if b.control {
			delete(open, b.producerID)
		}
		b.hidden = b.control || b.inTxn && open[b.producerID]
	}
}

// covers reports whether the window holds what follows offset.
func (w *logWindow) covers(offset int64) bool {
	return w.from <= offset && offset < w.next()
}

// next returns the offset that follows the window.
func (w *logWindow) next() int64 {
	if len(w.batches) == 0 {
		return w.from
	}
	return w.batches[len(w.batches)-1].last + 1
}

// size returns how many bytes the window has from offset on; it may be nil.
func (w *logWindow) size(offset int64) int {
	if w == nil {
		return 0
	}
	if b := w.at(offset, 1); len(b) > 0 {
		return len(w.records) - b[0].pos
	}
	return 0
}

// at returns the batches from the one that holds offset, or the first after it,
// for as many bytes as maxBytes, but at least one batch.
func (w *logWindow) at(offset int64, maxBytes int) []logBatch {
	i, _ := slices.BinarySearchFunc(w.batches, offset, func(b logBatch, o int64) int { return cmp.Compare(b.last, o) })
	size := 0
	for j := i; j < len(w.batches); j++ {
		size += w.batches[j].size
		if size > maxBytes && j > i {
			return w.batches[i:j]
		}
	}
	return w.batches[i:]
}

// bytes returns the batches of the window that hold any offset of ranges, which
// are sorted. The result may be a part of the window and must not be changed.
func (w *logWindow) bytes(batches []logBatch, ranges []acquiredRange) []byte {
	var out []byte
	from, end := -1, 0 // a run of adjacent batches
	flush := func() {
		switch run := w.records[max(from, 0):end:end]; {
		case from < 0:
		case out == nil:
			out = run // has no capacity to spare, so that append copies it
		default:
			out = append(out, run...)
		}
		from = -1
	}
	for _, b := range batches {
		for len(ranges) > 0 && ranges[0].last < b.first {
			ranges = ranges[1:]
		}
		if len(ranges) == 0 {
			break
		}
		if ranges[0].first > b.last {
			continue
		}
		if from >= 0 && b.pos != end {
			flush()
		}
		if from < 0 {
			from = b.pos
		}
		end = b.pos + b.size
	}
	flush()
	return out
}

// splitRanges cuts acquired ranges where a log batch ends once they hold
// batchSize records, which is what the member would best acknowledge together.
func splitRanges(ranges []acquiredRange, batches []logBatch, batchSize int) []acquiredRange {
	if batchSize <= 0 {
		return ranges
	}
	out := make([]acquiredRange, 0, len(ranges))
	for _, r := range ranges {
		i, _ := slices.BinarySearchFunc(batches, r.first, func(b logBatch, o int64) int { return cmp.Compare(b.last, o) })
		for ; i < len(batches) && batches[i].last < r.last; i++ {
			if batches[i].last-r.first+1 >= int64(batchSize) {
				head := r
				head.last = batches[i].last
				out = append(out, head)
				r.first = batches[i].last + 1
			}
		}
		out = append(out, r)
	}
	return out
}
