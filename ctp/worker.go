package ctp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// idleCheck is how long a worker without records waits before it asks
	// whether the group has any left.
	idleCheck = 100 * time.Millisecond
	// cleanUpTimeout bounds aborting and releasing after a failed batch, and all
	// that is still done after a run was told to stop.
	cleanUpTimeout = 5 * time.Second
	// leaveTimeout is how much of that is kept for leaving the group: it has to be
	// told even if the transaction coordinator is silent, or the share-partitions of
	// this member would have no reader until its session times out.
	leaveTimeout = 1500 * time.Millisecond
	// commitTimeout bounds a commit. A signal shortens it to cleanUpTimeout, less
	// leaveTimeout, and not to nothing: its outcome would be unknown.
	commitTimeout = 30 * time.Second
	// sparedDeliveries is how many deliveries of a record are left when a worker
	// gives up: at the group's delivery count limit the broker archives it.
	sparedDeliveries = 2

	minRetryWait = 100 * time.Millisecond
	// maxRetryShift bounds the wait after an abort to 64 times minRetryWait.
	maxRetryShift = 6
)

// StuckError says that records were delivered again and again and their
// transactions always had to be aborted. The worker gives up while the group
// still would deliver them once more.
type StuckError struct {
	TransactionalID string
	Deliveries      int16 // of the record that was delivered most often
	Limit           int16 // the group's delivery count limit
	Err             error // why the last transaction was aborted
}

// Error names the transactional ID and the last cause.
func (e *StuckError) Error() string {
	return fmt.Sprintf("gave up on records that were delivered %d times, of at most %d, and could not be committed by %q: %v",
		e.Deliveries, e.Limit, e.TransactionalID, e.Err)
}

// Unwrap returns why the last transaction was aborted.
func (e *StuckError) Unwrap() error { return e.Err }

// Hint says what is at stake.
func (e *StuckError) Hint() string {
	if _, ok := errors.AsType[*txn.GuardError](e.Err); ok {
		return "the records stay in the share group; lower --batch-records or raise --txn-timeout"
	}
	return "the records stay in the share group; remove the cause before the next run, the broker archives records at the delivery count limit"
}

// worker is one member of the share group with one transactional ID.
type worker struct {
	*run
	id string

	cl       *cluster.Client
	consumer *share.Consumer
	session  *txn.Session

	transformer transformer // nil copies
	failed      *attempts

	lockDuration time.Duration // of the last batch
	idleSince    time.Time     // the end of the last batch
	regainedAt   time.Time     // when regain looked last

	shared  bool // the assignment is one since all workers have joined
	batch   int  // most records of the next transaction; smaller when one was too slow
	aborts  int  // in a row
	ends    int  // transactions that could be committed, for the drill
	noRenew atomic.Bool

	aside      *share.Batch            // of the batch that was polled, what comes after the part in work
	unfinished []*share.PartitionBatch // what the run ended with

	// ending and final are for what has to be done also when the run is told to
	// stop: for the end of a transaction, and for leaving the group after it. The
	// latter ends cleanUpTimeout after that, the former leaveTimeout before.
	ending, final context.Context
}

// run1 runs one worker from joining to leaving.
func (w *worker) run1(ctx context.Context) (err error) {
	if w.cl, err = w.run.cl.Clone(); err != nil {
		return err
	}
	defer w.cl.Close()
	// The session comes first: it aborts what a dead predecessor left open, so
	// that its records are there to be fetched.
	w.session, err = txn.NewSession(ctx, w.cl, txn.Config{
		TransactionalID: w.id, Timeout: w.opts.TxnTimeout, Now: w.opts.Now,
		ProduceOnly: w.opts.Guarantee == AtLeastOnce,
		Metrics:     w.opts.Metrics,
		ProducerOpts: []kgo.Opt{
			kgo.DefaultProduceTopic(w.opts.To),
			kgo.RecordPartitioner(w.partitioner()),
			kgo.ProducerBatchMaxBytes(w.to.maxRecord),
			kgo.MaxBufferedRecords(2 * max(w.opts.BatchRecords, 1)),
			kgo.MaxBufferedBytes(max(maxBufferedBytes, int(w.to.maxRecord))),
		},
	})
	if err != nil {
		return err
	}
	w.failed = newAttempts(w.opts.MaxAttempts)
	switch {
	case w.opts.Exec != nil:
		w.transformer = newExecTransformer(*w.opts.Exec, w.opts.MaxAttempts, w.limits.deliveries, w.failed, &w.opts.Counts.ExecRestarts, w.opts.Now)
	case w.opts.Transform != nil:
		w.transformer = &funcTransformer{f: w.opts.Transform, now: w.opts.Now}
	}
	if w.transformer != nil {
		defer w.transformer.close()
	}
	w.lockDuration, w.idleSince = defaultLockDuration, w.opts.Now()
	w.batch = w.opts.BatchRecords
	w.noRenew.Store(!w.limits.renew)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer w.outlive(ctx)()
	w.consumer, err = share.NewConsumer(ctx, w.cl, share.Config{
		GroupID: w.opts.GroupID, Topics: []string{w.opts.From},
		MemberID:   share.NamedMemberID(w.opts.GroupID, w.id),
		MaxRecords: int32(w.mostRecords()), MaxWait: w.maxWait(), Warn: w.opts.Warn, Now: w.opts.Now,
		Metrics: w.opts.Metrics,
		Lost:    func(lost error) { w.lost(ctx, cancel, lost) },
	})
	if err == nil {
		w.joined.Add(1)
		err = w.loop(ctx)
	}
	_, fenced := errors.AsType[*txn.FencedError](err)
	w.leave(fenced)
	return err
}

// maxWait is how long a leader may hold a fetch. To leave, a worker waits for the
// fetches that are held, so a run that ends by itself has only short ones; it asks
// after what is left as often anyway.
func (w *worker) maxWait() time.Duration {
	if w.opts.MaxRecords > 0 || w.opts.UntilEmpty {
		return idleCheck
	}
	return 0 // as package share has it
}

// lost is called when a broker does not know our share session or the member as
// we do. Since member and transactional ID go together, a successor that uses
// the one has taken over the other too: then this worker ends at once, even in
// the middle of a transform, instead of competing for the session.
func (w *worker) lost(ctx context.Context, cancel context.CancelCauseFunc, lost error) {
	err := w.session.CheckOwner(ctx)
	if _, ok := errors.AsType[*txn.FencedError](err); ok {
		cancel(err)
		return
	}
	if ctx.Err() == nil {
		w.opts.Warn(lost)
	}
}

// maxBufferedBytes bounds what the producer holds of large records.
const maxBufferedBytes = 32 << 20

// outlive makes the contexts that end some time after ctx, or when the function is
// called that it returns.
func (w *worker) outlive(ctx context.Context) (end func()) {
	var endings, finals func()
	w.ending, endings = endAfter(ctx, cleanUpTimeout-leaveTimeout)
	w.final, finals = endAfter(ctx, cleanUpTimeout)
	return func() {
		endings()
		finals()
	}
}

// endAfter returns a context that ends so long after ctx, or when the function is
// called that it returns too.
func endAfter(ctx context.Context, d time.Duration) (later context.Context, end func()) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(d, cancel)
		context.AfterFunc(later, func() { t.Stop() })
	})
	return later, func() {
		stop()
		cancel()
	}
}

// cleanUp returns a context for what has to be done whether the run goes on or
// not.
func (w *worker) cleanUp() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.ending, cleanUpTimeout)
}

// leave gives everything back. Failures are warnings: what the run has done is
// not changed by them, and the broker cleans up by itself in time. A fenced
// worker has nothing to give back, and its member is its successor's.
func (w *worker) leave(fenced bool) {
	ctx, cancel := context.WithTimeout(w.final, cleanUpTimeout)
	defer cancel()
	defer w.closeSession(fenced)()
	if w.consumer != nil {
		w.warnOfLastDeliveries()
	}
	switch {
	case w.consumer == nil:
	case fenced:
		w.consumer.Abandon()
	default:
		if err := w.consumer.Close(ctx); err != nil {
			w.opts.Warn(fmt.Errorf("leave share group %q: %w", w.opts.GroupID, err))
		}
	}
}

// closeSession closes the session, which ends a transaction that is open: what comes
// back by that, the member can give back. It waits for that for as long as there is
// time left to leave the group; the function that it returns waits for the rest.
func (w *worker) closeSession(fenced bool) (wait func()) {
	ctx, cancel := context.WithTimeout(w.ending, cleanUpTimeout-leaveTimeout)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.session.Close(ctx); err != nil && !fenced {
			w.opts.Warn(fmt.Errorf("close %q: %w", w.id, err))
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return func() {
		<-done
		cancel()
	}
}

// ErrLastDelivery is warned of when a run ends with records that the group will
// not deliver again.
var ErrLastDelivery = errors.New("records had their last delivery and were not committed")

// warnOfLastDeliveries tells of records that a broker archives now: since
// KAFKA-19972 a delivery counts also if the member leaves before it has looked.
func (w *worker) warnOfLastDeliveries() {
	held := append(w.consumer.Waiting().Partitions, w.unfinished...)
	n := int64(0)
	for _, p := range held {
		for _, r := range p.Acquired {
			if r.DeliveryCount >= w.limits.deliveries {
				n += r.Len()
			}
		}
	}
	if n > 0 {
		w.opts.Warn(fmt.Errorf("%d %w: share group %q delivers a record %d times (share.delivery.count.limit), and the broker may archive these of topic %q",
			n, ErrLastDelivery, w.opts.GroupID, w.limits.deliveries, w.opts.From))
	}
}

// takeShare heartbeats once more when all workers have joined: those that did first
// were assigned the partitions of the others too, and would hear of it with their
// next heartbeat only, by default after 5 s. It is called between transactions,
// since the member epoch may rise.
func (w *worker) takeShare(ctx context.Context) {
	if w.shared || w.opts.Workers == 1 || int(w.joined.Load()) < w.opts.Workers {
		return
	}
	w.shared = true
	w.consumer.ConfirmMembership(ctx)
}

func (w *worker) loop(ctx context.Context) error {
	for {
		b, reserved, err := w.poll(ctx)
		if b == nil {
			return err
		}
		w.working.Add(1)
		w.settle(reserved-b.Len(), 0)
		parts := w.isolate(b)
		for i, part := range parts {
			w.setAside(parts[i+1:])
			if i > 0 {
				w.freshen(ctx, part)
			}
			n := part.Len()
			consumed, err := w.process(ctx, part)
			w.settle(n, consumed)
			if err != nil {
				for _, rest := range parts[i+1:] {
					w.settle(rest.Len(), 0)
					w.opts.Counts.Released.Add(int64(rest.Len()))
					w.unfinished = append(w.unfinished, rest.Partitions...)
				}
				return err
			}
		}
		if err := w.throttle(ctx, b.Len()); err != nil {
			return err
		}
		w.working.Add(-1)
		w.idleSince = w.opts.Now()
	}
}

// poll returns the next batch, and how many records were reserved for it; nil
// with a nil error when the run is done. It reserves records once it can have
// some, so as to keep none from the other workers.
func (w *worker) poll(ctx context.Context) (b *share.Batch, reserved int, err error) {
	for {
		switch done, err := w.wait(ctx); {
		case err != nil:
			return nil, 0, err
		case done:
			return nil, 0, nil
		}
		if reserved, err = w.reserve(ctx, min(w.batch, w.mostRecords())); reserved == 0 {
			return nil, 0, err
		}
		pctx, cancel := context.WithTimeout(ctx, idleCheck)
		b, err := w.consumer.Poll(pctx, reserved)
		cancel()
		if err == nil {
			w.lockDuration = cmp.Or(b.LockDuration(), w.lockDuration)
			return b, reserved, nil
		}
		w.settle(reserved, 0) // what there was has been given up meanwhile
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			return nil, 0, err
		}
	}
}

// wait waits until there is a batch, or until the run is done.
func (w *worker) wait(ctx context.Context) (done bool, err error) {
	for {
		if err := w.recover(ctx); err != nil {
			return false, err
		}
		w.takeShare(ctx)
		wctx, cancel := context.WithTimeout(ctx, idleCheck)
		stop := context.AfterFunc(w.end, cancel)
		err := w.consumer.Wait(wctx)
		stop()
		cancel()
		switch {
		case err == nil:
			w.got.Store(true)
			return false, nil
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case w.finished():
			return true, nil
		case !errors.Is(err, context.DeadlineExceeded):
			return false, err
		}
		w.regain(ctx)
		if !w.opts.UntilEmpty {
			w.tellNothingYet()
			continue
		}
		empty, err := groupEmpty(ctx, w.cl, w.opts.GroupID, w.opts.From, w.idle())
		if err != nil && ctx.Err() == nil && txn.IsFatal(err) {
			return false, err
		}
		if empty {
			return true, nil
		}
		if err == nil {
			w.tellWaiting(ctx)
		}
	}
}

// recover aborts what could not be aborted before. The next transaction would, but
// the records that are staged may be all that there is left for one. Where an abort
// leaves them acquired, nobody has released them.
func (w *worker) recover(ctx context.Context) error {
	rctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	aborted, err := w.session.Recover(rctx)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && txn.IsFatal(err):
		return err
	case aborted && w.dialect.AfterAbort == wire.Acquired:
		w.consumer.Reset()
	}
	return nil
}

// defaultLockDuration is Kafka's (group.share.record.lock.duration.ms).
const defaultLockDuration = 30 * time.Second

// regain ends the share sessions of a member that has got nothing for as long as
// an acquisition lock lasts, although the group has records left: the broker
// releases then whatever it takes this member to hold. In the drafts of KIP-1289
// no lock runs for records whose stage could not be persisted; when their release
// cannot be, or nobody was there any more to release them, only that gets them back.
func (w *worker) regain(ctx context.Context) {
	now := w.opts.Now()
	if now.Sub(w.regainedAt) < w.lockDuration || now.Sub(w.idleSince) < w.lockDuration {
		return
	}
	w.regainedAt = now
	if empty, err := groupEmpty(ctx, w.cl, w.opts.GroupID, w.opts.From, false); err == nil && !empty {
		w.consumer.Reset()
	}
}

// idleFetches is how many fetches in a row have to return nothing before a
// worker takes its share-partitions for empty that nobody can describe yet. With
// the waits between them, see maxWait, that is several seconds.
const idleFetches = 70

// idle reports whether this member is assigned something and has found nothing
// for a while.
func (w *worker) idle() bool {
	return len(w.consumer.Assigned()) > 0 && w.consumer.EmptyFetches() >= idleFetches
}

// process takes one batch through one transaction. It returns how many of its
// records are done; an error ends the run.
func (w *worker) process(ctx context.Context, b *share.Batch) (int, error) {
	if b.Len() == 0 {
		w.acknowledge(b, b.GapAcknowledgements())
		return 0, nil
	}
	if err := w.dropLate(ctx, b); err != nil || b.Len() == 0 {
		return 0, err
	}
	d, err := w.transaction(ctx, b)
	if err == nil {
		w.committed(b, d)
		return int(d.accepted + d.rejected), nil
	}
	if w.isUnknown(err) {
		return 0, err
	}
	w.countExpired(b, err)
	aerr := w.abort()
	switch _, committed := errors.AsType[*txn.CommittedError](aerr); {
	case committed: // the commit that seemed to have failed had not
		w.committed(b, d)
		return int(d.accepted + d.rejected), nil
	case w.isUnknown(aerr):
		return 0, aerr
	}
	if d.begun {
		w.opts.Counts.Aborted.Add(1)
	}
	_, refused := errors.AsType[*RecordError](err)
	_, broken := errors.AsType[*ExecError](err)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case refused || broken || txn.IsFatal(err):
	case aerr != nil:
		err = aerr
	case isPermanent(err):
	default:
		blamed := w.blame(err)
		if serr := w.stuck(b, err); serr != nil && !blamed && !errors.Is(err, ErrDrill) {
			err = serr
			break
		}
		w.giveBack(b, d)
		return 0, w.retryLater(ctx, d, err, blamed)
	}
	// The run ends, and the end of the share sessions gives the records back. On
	// Kafka 4.1 and 4.2 they lose no delivery then, as they would by a release.
	w.opts.Counts.Released.Add(int64(b.Len()))
	w.unfinished = append(w.unfinished, b.Partitions...)
	return 0, err
}

// dropLate takes those parts out of a batch whose acquisition locks expire too
// soon: they have waited too long behind another batch.
func (w *worker) dropLate(ctx context.Context, b *share.Batch) error {
	now := w.opts.Now()
	late, held := new(share.Batch), new(share.Batch)
	var cause error
	b.Partitions = slices.DeleteFunc(b.Partitions, func(p *share.PartitionBatch) bool {
		err := txn.Guard{LockDeadline: p.LockDeadline, LockDuration: p.LockDuration}.Check(now)
		if err == nil {
			return false
		}
		cause = err
		late.Partitions = append(late.Partitions, p)
		if now.Before(p.LockDeadline) {
			held.Partitions = append(held.Partitions, p)
		}
		return true
	})
	if cause == nil {
		return nil
	}
	w.opts.Counts.LockExpired.Add(int64(late.Len()))
	// What has expired may be acquired again already, by this member too, and is
	// not to be released then.
	if len(held.Partitions) > 0 {
		rctx, cancel := context.WithDeadline(ctx, held.LockDeadline())
		defer cancel()
		w.release(rctx, held, held.All(wire.Release))
	}
	w.opts.Counts.Released.Add(int64(late.Len()))
	return w.stuck(late, cause)
}

// countExpired counts the records of b that are not committed because of their
// acquisition locks: before the coordinator or the leader was asked, or because
// the leader said so.
func (w *worker) countExpired(b *share.Batch, err error) {
	if _, late := errors.AsType[*txn.GuardError](err); !late && !errors.Is(err, kerr.InvalidRecordState) {
		return
	}
	now := w.opts.Now()
	for _, p := range b.Partitions {
		if (txn.Guard{LockDeadline: p.LockDeadline, LockDuration: p.LockDuration}).Check(now) != nil {
			w.opts.Counts.LockExpired.Add(int64(len(p.Records)))
		}
	}
}

// mostDeliveries is how often the record of b was delivered that was so most
// often.
func mostDeliveries(b *share.Batch) int16 {
	n := int16(0)
	for _, p := range b.Partitions {
		for _, r := range p.Acquired {
			n = max(n, r.DeliveryCount)
		}
	}
	return n
}

// stuck returns a *StuckError when records of b have few deliveries left.
func (w *worker) stuck(b *share.Batch, err error) error {
	n := mostDeliveries(b)
	if n < max(1, w.limits.deliveries-sparedDeliveries) {
		return nil
	}
	return &StuckError{TransactionalID: w.id, Deliveries: n, Limit: w.limits.deliveries, Err: err}
}

// isPermanent holds for what a broker says of records that it will never take.
func isPermanent(err error) bool {
	return slices.ContainsFunc([]error{
		kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp,
		kerr.UnsupportedForMessageFormat, kerr.UnsupportedCompressionType, kerr.InvalidTopicException, kerr.PolicyViolation,
	}, func(target error) bool { return errors.Is(err, target) })
}

// retryLater waits after an aborted batch, longer each time in a row.
func (w *worker) retryLater(ctx context.Context, d *decisions, err error, blamed bool) error {
	w.opts.Warn(err)
	w.aborts++
	if err := pause.For(ctx, minRetryWait<<min(w.aborts, maxRetryShift)); err != nil {
		return err
	}
	if blamed || errors.Is(err, ErrDrill) {
		return nil
	}
	if _, ok := errors.AsType[*txn.GuardError](err); ok {
		// What was done in time, and half of it for good measure.
		w.batch = max(1, min(w.batch, int(d.accepted+d.rejected+d.released))/2)
		return nil
	}
	if errors.Is(err, kerr.InvalidRecordState) {
		w.consumer.Reset()
	}
	if _, ok := errors.AsType[*kerr.Error](err); !ok {
		w.cl.ForgetBrokers() // no broker said this: connections broke
	}
	// A broker that was restarted may have forgotten the member.
	w.consumer.ConfirmMembership(ctx)
	return nil
}

// decisions is what was decided about the records of a batch.
type decisions struct {
	staged   share.Acknowledgements // in the transaction
	plain    share.Acknowledgements // outside, once the transaction is committed
	accepted int64
	rejected int64
	dead     int64
	released int64
	produced int64
	// Of accepted and rejected, what was deleted meanwhile.
	goneAccepted, goneRejected int64

	begun    bool // the transaction was begun
	sent     bool // staging was tried
	stagedOK bool // every broker has confirmed it

	// producing ends when the transaction has to, or is over.
	producing context.Context //nolint:containedctx // it is that of many calls
}

// transaction does everything up to the confirmed commit. On an error the
// transaction is still open, or known to be over; see [txn.Session.Commit].
func (w *worker) transaction(ctx context.Context, b *share.Batch) (*decisions, error) {
	d := new(decisions)
	if err := w.begin(ctx, b); err != nil {
		return d, err
	}
	d.begun = true
	late, _ := txn.Guard{TxnDeadline: w.session.Deadline(), TxnTimeout: w.opts.TxnTimeout}.Deadline()
	var over context.CancelFunc
	d.producing, over = context.WithDeadline(ctx, late)
	defer over()
	work := w.transformAndStage
	if w.transformer == nil && w.allFit(b) {
		work = w.copyAndStage
	}
	if err := work(ctx, b, d); err != nil {
		return d, err
	}
	// What was staged may have been a later delivery of the same records.
	if err := w.consumer.CheckHeld(b); err != nil {
		return d, err
	}
	if w.drill(b) {
		return d, ErrDrill
	}
	guard := txn.Guard{LockDeadline: b.LockDeadline(), LockDuration: b.LockDuration()}
	if w.opts.HoldBeforeCommit > 0 {
		if err := w.hold(ctx, b, guard); err != nil {
			return d, err
		}
		guard = txn.Guard{} // Commit adds the transaction's own deadline
	}
	cctx, cancel := context.WithTimeout(w.ending, commitTimeout)
	defer cancel()
	return d, w.session.Commit(cctx, guard)
}

// copyAndStage produces every record as it is. How each will be acknowledged is
// known from the start, so that is staged while the records are produced.
func (w *worker) copyAndStage(ctx context.Context, b *share.Batch, d *decisions) error {
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			d.staged.Add(p.TopicPartition, r.Offset, wire.Accept)
		}
		d.accepted += int64(len(p.Records))
		w.decideGaps(p, d)
	}
	staged := make(chan error, 1)
	go func() { staged <- w.stage(ctx, b, d) }()
	var err error
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			if perr := w.produce(r, r.Partition, d); err == nil {
				err = perr
			}
		}
	}
	return cluster.Join(err, <-staged)
}

// transformAndStage transforms and produces, and stages once every record is
// decided, while the last ones are on their way.
func (w *worker) transformAndStage(ctx context.Context, b *share.Batch, d *decisions) error {
	locks := w.keepLocks(ctx, b)
	err := w.transform(ctx, b, d)
	locks.stop()
	if err != nil {
		return err
	}
	return w.stage(ctx, b, d)
}

// stage stages what was decided, unless it is acknowledged after the commit.
func (w *worker) stage(ctx context.Context, b *share.Batch, d *decisions) error {
	if w.opts.Guarantee == AtLeastOnce {
		w.noteGone(ctx, b, d)
		return nil
	}
	d.sent = true
	err := w.session.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{
		Acknowledgements: &d.staged, Group: w.consumer.GroupMetadata(), Leaders: b.Leaders(),
	})
	if d.stagedOK = err == nil; d.stagedOK {
		w.noteGone(ctx, b, d)
	}
	return err
}

// produce produces a record that comes from a partition of the source.
func (w *worker) produce(r *kgo.Record, partition int32, d *decisions) error {
	r.Topic, r.Partition = w.opts.To, partition
	return w.handToProducer(r, d)
}

// errNotTaken is why a transaction is given up whose records wait in the producer.
var errNotTaken = errors.New("it has taken no records until the transaction had to end")

// handToProducer waits while the producer's buffer is full, which it stays when the
// topic takes nothing: then the records are not to be kept from others for ever.
func (w *worker) handToProducer(r *kgo.Record, d *decisions) error {
	before := d.producing.Err()
	d.produced++
	if err := w.session.Produce(d.producing, r); err != nil {
		return err
	}
	if before == nil && errors.Is(d.producing.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("produce to topic %q: %w", r.Topic, errNotTaken)
	}
	return nil
}

// partitioner leaves the partition of a record as it is set, or takes Kafka's own
// way, by key, and otherwise the same partition for as long as a batch.
func (w *worker) partitioner() kgo.Partitioner {
	byKey := kgo.UniformBytesPartitioner(64<<10, true, true, nil) // kgo's default
	if !w.opts.KeepPartition {
		return byKey
	}
	return topicPartitioner{keep: w.opts.To, manual: kgo.ManualPartitioner(), other: byKey}
}

// topicPartitioner keeps the partition for one topic only: a dead-letter topic
// need not have as many partitions.
type topicPartitioner struct {
	keep          string
	manual, other kgo.Partitioner
}

// ForTopic implements kgo.Partitioner.
func (p topicPartitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if topic == p.keep {
		return p.manual.ForTopic(topic)
	}
	return p.other.ForTopic(topic)
}

// decideGaps acknowledges acquired offsets that have no record, in the
// transaction where the dialect has gaps there.
func (w *worker) decideGaps(p *share.PartitionBatch, d *decisions) {
	to := &d.plain
	if w.dialect.Allows(wire.Gap) {
		to = &d.staged
	}
	for _, g := range p.Gaps {
		to.AddRange(p.TopicPartition, g, wire.Gap)
	}
}

// begin begins a transaction. A coordinator that cannot be reached for a moment
// costs no delivery: it is tried again as long as the locks of the batch allow.
func (w *worker) begin(ctx context.Context, b *share.Batch) error {
	guard := txn.Guard{LockDeadline: b.LockDeadline(), LockDuration: b.LockDuration()}
	for try := 0; ; try++ {
		err := w.session.Begin(ctx)
		if err == nil || txn.IsFatal(err) || ctx.Err() != nil {
			return err
		}
		if gerr := guard.Check(w.opts.Now()); gerr != nil {
			return cluster.Join(gerr, err)
		}
		if try == 0 {
			w.opts.Warn(err)
		}
		if err := pause.For(ctx, minRetryWait<<min(try, 5)); err != nil {
			return err
		}
	}
}

func (w *worker) allFit(b *share.Batch) bool {
	for _, p := range b.Partitions {
		for _, r := range p.Records {
			if w.to.takes(r) != nil {
				return false
			}
		}
	}
	return true
}

// batchBytes is at least what a record batch has that holds only r.
func batchBytes(r *kgo.Record) int64 {
	const batch, record, header = 61, 36, 10 // without keys and values
	n := batch + record + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += header + len(h.Key) + len(h.Value)
	}
	return int64(n)
}

// transformGuard says until when a transform may go on. Locks that are renewed
// do not bound it.
func (w *worker) transformGuard(b *share.Batch) txn.Guard {
	g := txn.Guard{TxnDeadline: w.session.Deadline(), TxnTimeout: w.opts.TxnTimeout}
	if w.noRenew.Load() {
		g.LockDeadline, g.LockDuration = b.LockDeadline(), b.LockDuration()
	}
	return g
}

// committed counts a batch and acknowledges what is not part of transactions:
// gaps and released records, or, for AtLeastOnce, everything.
func (w *worker) committed(b *share.Batch, d *decisions) {
	if w.opts.Guarantee == AtLeastOnce {
		d.plain.Merge(&d.staged)
	}
	w.aborts = 0
	if took := w.opts.TxnTimeout - w.session.Deadline().Sub(w.opts.Now()); took < w.opts.TxnTimeout/4 {
		w.batch = min(w.opts.BatchRecords, w.batch*2)
	}
	c := w.opts.Counts
	consumed := d.accepted + d.rejected - d.gone()
	c.Consumed.Add(consumed)
	c.Acknowledged.Add(d.accepted - d.goneAccepted)
	c.Rejected.Add(d.rejected - d.goneRejected)
	c.Gone.Add(d.gone())
	c.DeadLetters.Add(d.dead)
	c.Produced.Add(d.produced)
	c.Released.Add(d.released)
	c.Committed.Add(1)
	if !w.acknowledge(b, &d.plain) && w.opts.Guarantee == AtLeastOnce {
		c.Unconfirmed.Add(consumed)
	}
	if w.opts.Guarantee == ExactlyOnce {
		w.consumer.Committed(b, &d.staged)
	}
}

// acknowledge acknowledges plainly. A failure is a warning: the records come
// again when their lock expires. It reports whether all was acknowledged.
func (w *worker) acknowledge(b *share.Batch, acks *share.Acknowledgements) bool {
	if acks.Empty() {
		return true
	}
	// What is committed is acknowledged even if the run is told to stop now.
	ctx, cancel := w.cleanUp()
	defer cancel()
	if err := w.consumer.Acknowledge(ctx, b, acks); err != nil {
		w.opts.Warn(err)
		return false
	}
	return true
}

// isUnknown reports whether nobody knows whether a batch was committed, and notes
// it.
func (w *worker) isUnknown(err error) bool {
	unknown, ok := errors.AsType[*txn.OutcomeUnknownError](err)
	if ok {
		w.opts.Counts.Unknown.Add(1)
		w.unknown.CompareAndSwap(nil, unknown)
	}
	return ok
}

// abort ends the open transaction without effect. It returns an error when the
// worker cannot go on.
func (w *worker) abort() error {
	ctx, cancel := w.cleanUp()
	defer cancel()
	err := w.session.Abort(ctx)
	if err != nil && (txn.IsFatal(err) || txn.Classify(err) == txn.ClassOutcomeUnknown) {
		return err
	}
	if err != nil {
		w.opts.Warn(fmt.Errorf("abort: %w", err))
	}
	return nil
}

// giveBack releases the records of a batch whose transaction was aborted, so that
// they are delivered again at once.
//
// Staged records come back by the abort itself: in the KIP's text still acquired
// by us, so that they have to be released; in its implementation available to
// all, where a release could hit those that this member has just acquired again.
// After a stage that failed nobody knows which are which, and after one of a batch
// that was superseded the abort may have taken from a later delivery what it still
// seems to hold; ending the share sessions releases whatever this member holds.
func (w *worker) giveBack(b *share.Batch, d *decisions) {
	w.opts.Counts.Released.Add(int64(b.Len()))
	ctx, cancel := w.cleanUp()
	defer cancel()
	switch {
	case !d.sent:
		// What has expired may be acquired again already, by this member too.
		now, held := w.opts.Now(), new(share.Batch)
		for _, p := range b.Partitions {
			if now.Before(p.LockDeadline) {
				held.Partitions = append(held.Partitions, p)
			}
		}
		w.release(ctx, held, held.All(wire.Release))
	case !d.stagedOK, w.consumer.CheckHeld(b) != nil:
		w.consumer.Reset()
	default:
		if w.dialect.AfterAbort == wire.Acquired {
			w.release(ctx, b, d.staged.As(wire.Release))
		}
		w.release(ctx, b, d.plain.As(wire.Release))
	}
}

// release releases records of a batch. When it fails, they come back when their
// locks expire.
func (w *worker) release(ctx context.Context, b *share.Batch, acks *share.Acknowledgements) {
	if acks.Empty() {
		return
	}
	if err := w.consumer.Acknowledge(ctx, b, acks); err != nil && ctx.Err() == nil {
		w.opts.Warn(err)
	}
}
