package ctp

import (
	"fmt"

	"github.com/kshare/kshare/share"
	"github.com/twmb/franz-go/pkg/kgo"
)

// source is a record to transform.
type source struct {
	record *kgo.Record
	tp     share.TopicPartition
	// deliveries counts how often the group delivered it, this time included.
	deliveries int16
}

func (s source) refused(err error) *RecordError {
	return &RecordError{Topic: s.tp.Topic, Partition: s.tp.Partition, Offset: s.record.Offset, Err: err}
}

// AttemptsError says that a record was tried as often as it may be: it made the
// program end, or took too long.
type AttemptsError struct {
	Attempts int
	Err      error // what happened the last time
}

// Error tells how often and why.
func (e *AttemptsError) Error() string {
	return fmt.Sprintf("gave up after %d attempts: %v", e.Attempts, e.Err)
}

// Unwrap returns what happened the last time.
func (e *AttemptsError) Unwrap() error { return e.Err }

// attempts remembers how often records failed in a way that is not decided at
// once. Deliveries that other processes had count as well, except the last: a
// record may have been a bystander each time.
type attempts struct {
	limit int
	known map[recordID]failure
}

type failure struct {
	n   int
	err error // the last time
}

type recordID struct {
	topic     string
	partition int32
	offset    int64
}

// maxRemembered bounds the memory. Records that fail are few; one that is
// forgotten is tried anew.
const maxRemembered = 10_000

func newAttempts(limit int) *attempts {
	return &attempts{limit: limit, known: make(map[recordID]failure)}
}

func idOf(r *kgo.Record) recordID { return recordID{r.Topic, r.Partition, r.Offset} }

// add counts a failed attempt and returns how many there were.
func (a *attempts) add(s source, err error) int {
	id := idOf(s.record)
	f, ok := a.known[id]
	if !ok && len(a.known) >= maxRemembered {
		clear(a.known)
	}
	f.n, f.err = max(f.n, min(int(s.deliveries)-1, a.limit-1))+1, err
	a.known[id] = f
	return f.n
}

// spent returns an error for a record that was tried as often as it may be.
func (a *attempts) spent(s source) error {
	if f := a.known[idOf(s.record)]; f.n >= a.limit {
		return &AttemptsError{Attempts: f.n, Err: f.err}
	}
	return nil
}

// reprieve gives a record one more attempt.
func (a *attempts) reprieve(s source) {
	id := idOf(s.record)
	f := a.known[id]
	f.n = min(f.n, a.limit-1)
	a.known[id] = f
}

// forget drops a record that is decided.
func (a *attempts) forget(r *kgo.Record) {
	if len(a.known) > 0 {
		delete(a.known, idOf(r))
	}
}

// isolate splits a batch so that each record that has failed before is in one of
// its own, after all others: whatever it does then, it does to itself.
//
// So is a record that has few deliveries left. Records that are too slow are found
// one by one, and each costs those that share its batch a delivery: with some of
// them in one batch, all the others would come to the group's limit.
func (w *worker) isolate(b *share.Batch) []*share.Batch {
	few := max(2, w.limits.deliveries-sparedDeliveries)
	rare := w.transformer != nil && mostDeliveries(b) >= few
	if len(w.failed.known) == 0 && !rare {
		return []*share.Batch{b}
	}
	rest, alone := b.Split(func(p *share.PartitionBatch, r *kgo.Record) bool {
		_, failed := w.failed.known[idOf(r)]
		return failed || rare && p.DeliveryCount(r.Offset) >= few
	})
	if rest.Acquired() == 0 {
		return alone
	}
	return append([]*share.Batch{rest}, alone...)
}
