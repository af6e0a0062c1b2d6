package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
)

// sinkRecords writes somewhere else than to Kafka, and so needs no producer. A
// line is written and on the disk before its record is acknowledged. Should the
// program die in between, the record comes again, and its line is found.
func sinkRecords(ctx context.Context, cl *cluster.Client, o options) (int, error) {
	f, err := openSink(o.file)
	if err != nil {
		return 0, err
	}
	defer f.file.Close()
	a, err := txn.NewAcknowledger(ctx, cl, txn.AcknowledgerConfig{TransactionalID: o.id})
	if err != nil {
		return 0, err
	}
	defer leave(ctx, a.Close)
	c, done, err := join(ctx, cl, o)
	if err != nil {
		return 0, err
	}
	defer done()
	n := 0
	for {
		b, err := poll(ctx, c, o.idle)
		if b == nil {
			return n, err
		}
		if err := f.write(b); err != nil {
			return n, err
		}
		// All that was acquired, offsets without a record too: every dialect takes
		// an accept of those.
		err = a.CommitAcknowledgements(ctx, txn.ShareAcknowledgements{
			Acknowledgements: b.All(wire.Accept), Group: c.GroupMetadata(), Leaders: b.Leaders(),
		})
		switch txn.Classify(err) {
		case txn.ClassFatal, txn.ClassOutcomeUnknown:
			return n, err
		case txn.ClassNone, txn.ClassAbortable, txn.ClassRetriable:
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "app: not acknowledged, the records come again:", err)
			c.Reset()
			continue
		}
		n += b.Len()
	}
}

// sink is a file of lines, each of one record: where it came from, and its value.
type sink struct {
	file *os.File
	has  map[string]bool // where records came from that have a line
}

// openSink reads which records the file has, and drops a line that was cut off.
func openSink(name string) (*sink, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	s := &sink{file: f, has: make(map[string]bool)}
	whole := int64(0)
	for r := bufio.NewReader(f); ; {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		whole += int64(len(line))
		from, _, _ := strings.Cut(line, "\t")
		s.has[from] = true
	}
	if err := f.Truncate(whole); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(whole, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

// write adds the records that have no line yet. When it returns they are on the
// disk.
func (s *sink) write(b *share.Batch) error {
	w := bufio.NewWriter(s.file)
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			from := fmt.Sprintf("%s@%d", p.TopicPartition, r.Offset)
			if s.has[from] {
				continue
			}
			s.has[from] = true
			fmt.Fprintf(w, "%s\t%q\n", from, r.Value)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return s.file.Sync()
}
