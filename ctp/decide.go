package ctp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
)

// transformer transforms the records of one worker.
type transformer interface {
	// transform calls done once for each record, in order, with what it becomes or
	// why it cannot be transformed. It fails with what done fails with, with the
	// cause of ctx, or with *ExecError.
	transform(ctx context.Context, in []source, done func(i int, out []*kgo.Record, err error) error) error
	// since returns since when the record is under way that done comes for next.
	since() time.Time
	close()
}

// funcTransformer is a transformer by a function.
type funcTransformer struct {
	f     Transform
	now   func() time.Time
	began time.Time
}

func (t *funcTransformer) since() time.Time { return t.began }

func (t *funcTransformer) transform(ctx context.Context, in []source, done func(i int, out []*kgo.Record, err error) error) error {
	for i := range in {
		t.began = t.now()
		out, err := t.f(ctx, in[i].record)
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := done(i, out, err); err != nil {
			return err
		}
	}
	return nil
}

func (*funcTransformer) close() {}

// copies is the transformer of a run that has none.
func copies(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) { return []*kgo.Record{r}, nil }

// slowError says which record was being transformed when the time of a
// transaction ran out.
type slowError struct {
	record source
	took   time.Duration // the record alone
	of     time.Duration // the whole batch was given
	err    error         // a *txn.GuardError
}

func (e *slowError) Error() string {
	r := e.record.record
	return fmt.Sprintf("transform record at offset %d of %s-%d: %v", r.Offset, r.Topic, r.Partition, e.err)
}

func (e *slowError) Unwrap() error { return e.err }

// transform decides each record and produces what it becomes. Acknowledgements
// are noted before a record is produced: the producer writes to it.
func (w *worker) transform(ctx context.Context, b *share.Batch, d *decisions) error {
	guard := w.transformGuard(b)
	deadline, _ := guard.Deadline()
	given := deadline.Sub(w.opts.Now())
	tctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	t := w.transformer
	if t == nil {
		t = &funcTransformer{f: copies, now: w.opts.Now}
	}
	in := make([]source, 0, b.Len())
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			in = append(in, source{record: r, tp: p.TopicPartition, deliveries: p.DeliveryCount(r.Offset)})
		}
		w.decideGaps(p, d)
	}
	err := w.transformAll(ctx, tctx, t, in, d)
	if slow, ok := errors.AsType[*slowError](err); ok {
		slow.of, slow.err = given, guard.Check(w.opts.Now().Add(1)) // the deadline itself is not late
	}
	return err
}

// transformAll transforms records, but for those that were tried often enough.
// tctx ends when the transaction has to.
func (w *worker) transformAll(ctx, tctx context.Context, t transformer, in []source, d *decisions) error {
	for len(in) > 0 {
		n := 0 // records before one that was tried often enough
		for n < len(in) && w.failed.spent(in[n]) == nil {
			n++
		}
		next := 0
		err := t.transform(tctx, in[:n], func(i int, out []*kgo.Record, err error) error {
			next = i + 1
			return w.decide(in[i], out, err, d)
		})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errNotTaken):
			return err
		case tctx.Err() != nil && next < n:
			return &slowError{record: in[next], took: w.opts.Now().Sub(t.since())}
		default:
			return err
		}
		if n < len(in) {
			if err := w.decide(in[n], nil, w.failed.spent(in[n]), d); err != nil {
				return err
			}
			n++
		}
		in = in[n:]
	}
	return nil
}

// decide notes what becomes of one record, and produces. What the destination
// does not take is a matter of the record, as what cannot be transformed is.
func (w *worker) decide(s source, out []*kgo.Record, err error, d *decisions) error {
	r, offset := s.record, s.record.Offset
	if err == nil {
		err = w.fits(out)
	}
	if err == nil {
		w.failed.forget(r)
		d.staged.Add(s.tp, offset, wire.Accept)
		d.accepted++
		for _, o := range out {
			if err := w.produce(o, s.tp.Partition, d); err != nil {
				return err
			}
		}
		return nil
	}
	switch w.opts.OnError {
	case Reject:
		if w.opts.DeadLetterTopic != "" {
			letter := w.deadLetter(s, err)
			if derr := w.dead.takes(letter); derr != nil {
				return s.refused(fmt.Errorf("%w; its dead letter cannot be produced: %w", err, derr))
			}
			if err := w.handToProducer(letter, d); err != nil {
				return err
			}
			d.dead++
		}
		d.staged.Add(s.tp, offset, wire.Reject)
		d.rejected++
	case Release:
		d.plain.Add(s.tp, offset, wire.Release)
		d.released++
	case Fail:
		return s.refused(err)
	}
	w.failed.forget(r)
	return nil
}

// fits returns an error for what the destination does not take.
func (w *worker) fits(out []*kgo.Record) error {
	for _, o := range out {
		if err := w.to.takes(o); err != nil {
			return err
		}
	}
	return nil
}

// The headers of a dead letter are those that Kafka 4.4 writes (KIP-1191).
const (
	headerDeadTopic      = "__dlq.errors.topic"
	headerDeadPartition  = "__dlq.errors.partition"
	headerDeadOffset     = "__dlq.errors.offset"
	headerDeadGroup      = "__dlq.errors.group"
	headerDeadDeliveries = "__dlq.errors.delivery.count"
	headerDeadMessage    = "__dlq.errors.message"
)

// deadLetter is a copy of a record that says where it comes from and why it is
// there. Headers of an earlier dead letter stay before it.
func (w *worker) deadLetter(s source, why error) *kgo.Record {
	r := s.record
	h := make([]kgo.RecordHeader, 0, len(r.Headers)+6)
	h = append(h, r.Headers...)
	for _, kv := range [][2]string{
		{headerDeadTopic, r.Topic},
		{headerDeadPartition, strconv.Itoa(int(r.Partition))},
		{headerDeadOffset, strconv.FormatInt(r.Offset, 10)},
		{headerDeadGroup, w.opts.GroupID},
		{headerDeadDeliveries, strconv.Itoa(int(s.deliveries))},
		{headerDeadMessage, shortened{why}.Error()},
	} {
		h = append(h, kgo.RecordHeader{Key: kv[0], Value: []byte(kv[1])})
	}
	return &kgo.Record{Topic: w.opts.DeadLetterTopic, Key: r.Key, Value: r.Value, Headers: h, Timestamp: r.Timestamp}
}

// blame notes that a record took so much of the time of its transaction that it
// is to blame for its end, and reports whether there is one and OnError will
// decide about it in the end. The record is in a transaction of its own from
// then on, so that it costs no other record a delivery.
func (w *worker) blame(err error) bool {
	if _, ok := errors.AsType[*unprovenError](err); ok {
		return w.opts.OnError != Fail
	}
	slow, ok := errors.AsType[*slowError](err)
	if !ok || slow.took < slow.of/2 {
		return false
	}
	w.failed.add(slow.record, slow.err)
	return w.opts.OnError != Fail
}
