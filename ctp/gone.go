package ctp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
)

// ErrGone is warned of, once, when source records were deleted while they were
// being processed.
var ErrGone = errors.New("source records were deleted before their transaction was committed")

// goneTimeout bounds how long a commit waits for what is only counted.
const goneTimeout = 2 * time.Second

// noteGone counts the records of b that their topic does not have any more. A
// broker takes acknowledgements below the start offset of a share-partition, which
// the start of the log moves up, without a word, and nothing comes of them. It is
// called when everything is staged: from then on nothing but another deletion moves
// the start offset before the commit does.
func (w *worker) noteGone(ctx context.Context, b *share.Batch, d *decisions) {
	lctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	var partitions []int32
	for tp := range b.Leaders() {
		partitions = append(partitions, tp.Partition)
	}
	firsts, err := listOffsets(lctx, w.cl, w.opts.From, partitions, earliestOffset)
	if err != nil {
		if ctx.Err() == nil {
			w.opts.Warn(fmt.Errorf("whether records were deleted while they were processed is not known: %w", err))
		}
		return
	}
	var last share.TopicPartition
	for _, tp := range d.staged.Partitions() {
		if d.countGone(tp, firsts[tp.Partition]) {
			last = tp
		}
	}
	if n := d.gone(); n > 0 {
		w.toldGone.Do(func() {
			w.opts.Warn(fmt.Errorf("%w: %d of one batch, those below offset %d of %s among them; what they became is produced, and they count as gone and not as consumed",
				ErrGone, n, firsts[last.Partition], last))
		})
	}
}

// countGone counts what was decided about records below first, and reports whether
// there are any.
func (d *decisions) countGone(tp share.TopicPartition, first int64) bool {
	batches, err := d.staged.Batches(tp)
	if err != nil {
		return false // it is not staged, then
	}
	before := d.gone()
	for _, b := range batches {
		for offset := b.FirstOffset; offset <= min(b.LastOffset, first-1); offset++ {
			t := b.AcknowledgeTypes[0]
			if len(b.AcknowledgeTypes) > 1 {
				t = b.AcknowledgeTypes[offset-b.FirstOffset]
			}
			switch wire.AcknowledgeType(t) {
			case wire.Accept:
				d.goneAccepted++
			case wire.Reject:
				d.goneRejected++
			case wire.Gap, wire.Release, wire.Renew: // no record that would be consumed
			}
		}
	}
	return d.gone() > before
}

// gone counts the records that were decided about and are deleted.
func (d *decisions) gone() int64 { return d.goneAccepted + d.goneRejected }
