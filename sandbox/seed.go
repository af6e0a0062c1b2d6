package sandbox

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Loading text into topics.
//
// One line is one record: the line is the value, byte for byte, without its line
// end, which is "\n" or "\r\n". There is no key and there are no headers; the
// lines go to the partitions in turn. Empty lines are no records.
//
// A line is malformed, and ends the load, if it is longer than a broker takes,
// if it holds a NUL, as a file that is not text does, if JSON is expected and it
// is not UTF-8, and, with Strict, if it is not one JSON value. Without Strict a
// line that is not JSON is loaded as it is: data to try an error path with has
// such lines on purpose.

const (
	// DefaultMaxRecordBytes is the longest line that [Sandbox.Load] takes. A
	// broker takes batches of 1048588 bytes.
	DefaultMaxRecordBytes = 1_000_000

	loadBatchBytes = 256 << 10 // where the batch of a partition is closed
	loadRoundBytes = 8 << 20   // what is buffered before it is sent
)

// LoadOptions say what a load expects.
type LoadOptions struct {
	Name           string // of the source, for errors; "" is "input"
	JSON           bool   // lines are UTF-8, as JSON is
	Strict         bool   // lines are JSON values; implies JSON
	MaxRecordBytes int    // 0: DefaultMaxRecordBytes
}

// LoadResult is what was loaded.
type LoadResult struct {
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"` // of values
}

// LineError says that a line of a source is malformed.
type LineError struct {
	Name   string
	Line   int // from 1
	Reason string
}

// Error says "NAME:LINE: REASON".
func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %s", e.Name, e.Line, e.Reason) }

// Load reads lines from r and appends each to the topic as a record, bypassing
// any client. A topic that does not exist is created. It may return *LineError;
// the lines before that one are then loaded, as the result says.
func (s *Sandbox) Load(ctx context.Context, topic string, r io.Reader, opts LoadOptions) (LoadResult, error) {
	l, err := s.newLoader(ctx, topic)
	if err != nil {
		return LoadResult{}, fmt.Errorf("load into %s: %w", topic, err)
	}
	err = eachLine(r, opts, func(line []byte) error { return l.add(ctx, line) })
	err = errors.Join(err, l.flush(ctx))
	if err != nil {
		return l.done, fmt.Errorf("load into %s: %w", topic, err)
	}
	return l.done, nil
}

// loadFile loads a file all or not at all: it is checked first.
func (s *Sandbox) loadFile(ctx context.Context, l Load) error {
	opts := l.LoadOptions
	opts.Name = cmp.Or(opts.Name, l.Path)
	switch strings.ToLower(filepath.Ext(l.Path)) {
	case ".ndjson", ".jsonl", ".json":
		opts.JSON = true
	}
	f, err := os.Open(l.Path)
	if err != nil {
		return fmt.Errorf("load into %s: %w", l.Topic, err)
	}
	defer func() { _ = f.Close() }()
	if err := eachLine(f, opts, func([]byte) error { return ctx.Err() }); err != nil {
		return fmt.Errorf("load into %s: %w", l.Topic, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("load into %s: %w", l.Topic, err)
	}
	done, err := s.Load(ctx, l.Topic, f, opts)
	if err != nil {
		return err
	}
	s.cfg.logf("loaded %d records of %s into topic %s", done.Records, opts.Name, l.Topic)
	return nil
}

// eachLine calls fn for each line that is a record.
func eachLine(r io.Reader, opts LoadOptions, fn func(line []byte) error) error {
	name, longest := cmp.Or(opts.Name, "input"), cmp.Or(opts.MaxRecordBytes, DefaultMaxRecordBytes)
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, min(64<<10, longest+2)), longest+2) // a line end has up to two bytes
	n := 0
	for sc.Scan() {
		n++
		line := sc.Bytes()
		if len(line) == 0 {
			continue
		}
		if reason := opts.malformed(line, longest); reason != "" {
			return &LineError{Name: name, Line: n, Reason: reason}
		}
		if err := fn(line); err != nil {
			return err
		}
	}
	err := sc.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		return &LineError{Name: name, Line: n + 1, Reason: tooLong(longest)}
	}
	if err != nil {
		return fmt.Errorf("read %s after line %d: %w", name, n, err)
	}
	return nil
}

func tooLong(longest int) string { return fmt.Sprintf("longer than %d bytes", longest) }

func (o LoadOptions) malformed(line []byte, longest int) string {
	switch {
	case len(line) > longest:
		return tooLong(longest)
	case bytes.IndexByte(line, 0) >= 0:
		return "holds a NUL byte; is it text?"
	case (o.JSON || o.Strict) && !utf8.Valid(line):
		return "not UTF-8"
	case o.Strict && !json.Valid(line):
		return "not valid JSON"
	}
	return ""
}

// loader appends values to the partitions of a topic in turn.
type loader struct {
	s        *Sandbox
	topic    string
	batches  []batchBuilder // of the partitions
	next     int
	buffered int
	done     LoadResult
}

func (s *Sandbox) newLoader(ctx context.Context, topic string) (*loader, error) {
	if !validTopicName(topic) {
		return nil, fmt.Errorf("topic %q: %w", topic, kerr.InvalidTopicException)
	}
	if topic == stateTopic {
		return nil, fmt.Errorf("an internal topic: %w", kerr.InvalidTopicException)
	}
	if err := s.kafka.ensureTopic(ctx, topic, defaultPartitions, nil); err != nil {
		return nil, err
	}
	t, ok := s.kafka.topicByName(topic)
	if !ok {
		return nil, kerr.UnknownTopicOrPartition
	}
	return &loader{s: s, topic: topic, batches: make([]batchBuilder, t.partitions)}, nil
}

func (l *loader) add(ctx context.Context, value []byte) error {
	b := &l.batches[l.next]
	if b.size() > 0 && b.size()+len(value) > loadBatchBytes || l.buffered+len(value) > loadRoundBytes {
		if err := l.flush(ctx); err != nil {
			return err
		}
	}
	b.add(value)
	l.buffered += len(value)
	l.next = (l.next + 1) % len(l.batches)
	return nil
}

// flush sends what is buffered, to all leaders at once.
func (l *loader) flush(ctx context.Context) error {
	if l.buffered == 0 {
		return nil
	}
	byLeader := make(map[int32][]int32)
	for p := range l.batches {
		if l.batches[p].count == 0 {
			continue
		}
		info, ok := l.s.kafka.partition(l.topic, int32(p))
		if !ok {
			return fmt.Errorf("%s-%d: %w", l.topic, p, kerr.UnknownTopicOrPartition)
		}
		byLeader[info.leader] = append(byLeader[info.leader], int32(p))
	}
	now := time.Now().UnixMilli()
	err := l.s.kafka.eachLeader(ctx, byLeader, func(ctx context.Context, broker int32, ps []int32) error {
		partitions := make([]kmsg.ProduceRequestTopicPartition, 0, len(ps))
		for _, p := range ps {
			rp := kmsg.NewProduceRequestTopicPartition()
			rp.Partition, rp.Records = p, l.batches[p].finish(now)
			partitions = append(partitions, rp)
		}
		return l.s.kafka.produce(ctx, broker, l.topic, partitions)
	})
	if err != nil {
		return err
	}
	for p := range l.batches {
		b := &l.batches[p]
		if b.count == 0 {
			continue
		}
		l.done.Records += int64(b.count)
		l.done.Bytes += b.bytes
		b.reset()
		l.s.plane.logAppended(l.topic, int32(p))
	}
	l.buffered = 0
	return nil
}

// batchBuilder makes a record batch of values. Its buffer is used again.
type batchBuilder struct {
	buf   []byte // the header's room, then the records
	count int32
	bytes int64 // of values
}

func (b *batchBuilder) size() int { return len(b.buf) }

func (b *batchBuilder) reset() { b.buf, b.count, b.bytes = b.buf[:0], 0, 0 }

func (b *batchBuilder) add(value []byte) {
	if len(b.buf) == 0 {
		b.buf = append(b.buf, make([]byte, batchHeaderBytes)...)
	}
	var head [2 + 3*binary.MaxVarintLen32]byte
	h := append(head[:0], 0, 0)                // attributes, time since the first record
	h = binary.AppendVarint(h, int64(b.count)) // offset since the first record
	h = binary.AppendVarint(h, -1)             // no key
	h = binary.AppendVarint(h, int64(len(value)))
	b.buf = binary.AppendVarint(b.buf, int64(len(h)+len(value)+1))
	b.buf = append(b.buf, h...)
	b.buf = append(b.buf, value...)
	b.buf = append(b.buf, 0) // no headers
	b.count++
	b.bytes += int64(len(value))
}

// finish fills the header in, of a batch without compression and producer.
func (b *batchBuilder) finish(now int64) []byte {
	h := b.buf[:0:batchHeaderBytes]
	h = binary.BigEndian.AppendUint64(h, 0)                     // first offset
	h = binary.BigEndian.AppendUint32(h, uint32(len(b.buf)-12)) // length
	h = binary.BigEndian.AppendUint32(h, ^uint32(0))            // leader epoch
	h = append(h, 2, 0, 0, 0, 0)                                // magic, CRC
	h = binary.BigEndian.AppendUint16(h, 0)                     // attributes
	h = binary.BigEndian.AppendUint32(h, uint32(b.count-1))     // last offset delta
	h = binary.BigEndian.AppendUint64(h, uint64(now))           // first timestamp
	h = binary.BigEndian.AppendUint64(h, uint64(now))           // greatest timestamp
	h = binary.BigEndian.AppendUint64(h, ^uint64(0))            // producer ID
	h = binary.BigEndian.AppendUint16(h, ^uint16(0))            // producer epoch
	h = binary.BigEndian.AppendUint32(h, ^uint32(0))            // first sequence
	_ = binary.BigEndian.AppendUint32(h, uint32(b.count))
	binary.BigEndian.PutUint32(b.buf[17:], crc32.Checksum(b.buf[batchCRCStart:], castagnoli()))
	return b.buf
}
