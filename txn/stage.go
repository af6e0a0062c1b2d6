package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// ShareAcknowledgements is what SendShareAcknowledgements stages.
type ShareAcknowledgements struct {
	// Acknowledgements say Accept or Reject, and Gap where the dialect allows
	// it, of records that the member has acquired.
	Acknowledgements *share.Acknowledgements
	// Group is the member's identity, taken as late as possible.
	Group share.GroupMetadata
	// Leaders maps source partitions to the broker that handed the records out.
	// Partitions that are not in it are looked up.
	Leaders map[share.TopicPartition]int32
}

// StageError says that acknowledgements were not staged, or not all of them.
// The transaction must be aborted.
type StageError struct {
	Errors []*cluster.Error // sorted by broker, topic and partition; never empty
}

// Error lists the failures.
func (e *StageError) Error() string {
	parts := make([]string, 0, len(e.Errors))
	for _, p := range e.Errors {
		parts = append(parts, p.Error())
	}
	return strings.Join(parts, "; ")
}

// Unwrap returns the failures.
func (e *StageError) Unwrap() []error {
	out := make([]error, 0, len(e.Errors))
	for _, p := range e.Errors {
		out = append(out, p)
	}
	return out
}

// TypeError says that an acknowledge type may not be staged in this dialect.
// Release and Renew never may; nothing was sent.
type TypeError struct {
	Dialect        wire.Dialect
	TopicPartition share.TopicPartition
	Type           wire.AcknowledgeType
}

// Error names the type and the partition.
func (e *TypeError) Error() string {
	return fmt.Sprintf("%s: %s may not be part of a transaction (dialect %q)", e.TopicPartition, e.Type, e.Dialect.Name)
}

const (
	stageMinBackoff = 5 * time.Millisecond
	stageMaxBackoff = time.Second
)

// backOff waits before try n+1; false when the context ended first.
func backOff(ctx context.Context, n int) bool {
	return pause.For(ctx, min(stageMaxBackoff, stageMinBackoff<<min(n, 8))) == nil
}

// staging is what is known of the acknowledgements of the open transaction. It
// is safe for concurrent use.
type staging struct {
	mu         sync.Mutex
	registered bool           // a stage was sent: the coordinator may know the transaction
	count      int64          // offsets that brokers confirmed as staged
	ranges     []StagedRanges // which those are
	doubt      error          // why the transaction must not be committed
}

func (t *staging) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.registered, t.count, t.ranges, t.doubt = false, 0, nil, nil
}

// doubtful keeps the first reason not to commit, and returns err.
func (t *staging) doubtful(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.doubt == nil {
		t.doubt = err
	}
	return err
}

func (t *staging) confirmed(ranges []StagedRanges, count int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count += count
	t.ranges = append(t.ranges, ranges...)
}

func (t *staging) state() (registered bool, count int64, doubt error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.registered, t.count, t.doubt
}

func (t *staging) staged() []StagedRanges {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ranges)
}

// groupIDs lists the share groups that acknowledgements were staged of, sorted.
func (t *staging) groupIDs() []string {
	var out []string
	for _, r := range t.staged() {
		if !slices.Contains(out, r.GroupID) {
			out = append(out, r.GroupID)
		}
	}
	slices.Sort(out)
	return out
}

// SendShareAcknowledgements stages acknowledgements in the open transaction: one
// request for each leader, all at once (KIP-1289,
// Producer.sendShareAcknowledgementsToTransaction). Unlike Java's it waits for
// the answers. It returns nil only when every broker has confirmed every
// partition. After any error but *StateError, an answer that did not arrive among
// them, Commit refuses and the transaction has to be aborted. It may return
// *StateError when no transaction is open or it is prepared, *TypeError before a
// byte is sent, *StageError, *share.ConflictError, *FencedError, *AbortedError,
// *cluster.AuthError or *cluster.UnsupportedError.
func (s *Session) SendShareAcknowledgements(ctx context.Context, in ShareAcknowledgements) error {
	const op = "stage acknowledgements"
	if s.cfg.ProduceOnly {
		return &StateError{op, "the session only produces"}
	}
	if err := s.mustBeOpen(op); err != nil {
		return err
	}
	if err := s.stage(ctx, &s.staging, in); err != nil {
		if fencedAnswer(err) {
			s.stale.Store(true)
		}
		return err
	}
	return nil
}

// stage stages acknowledgements and tells the metrics.
func (p *identity) stage(ctx context.Context, t *staging, in ShareAcknowledgements) error {
	if in.Acknowledgements == nil || in.Acknowledgements.Empty() {
		return nil
	}
	err := p.stageAll(ctx, t, in)
	if err != nil {
		err = t.doubtful(err)
	}
	if p.metrics != nil {
		p.metrics.ShareAcknowledgementsSent(err)
	}
	return err
}

func (p *identity) stageAll(ctx context.Context, t *staging, in ShareAcknowledgements) error {
	requests, ranges, count, err := p.stageRequests(ctx, in)
	if err != nil {
		return err
	}
	for node := range requests {
		if err := p.cl.BrokerAllows(ctx, node, p.dialect); err != nil {
			return err
		}
	}
	t.mu.Lock()
	t.registered = true // from here on the coordinator may know the transaction
	t.mu.Unlock()

	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []*cluster.Error
	for node, req := range requests {
		wg.Go(func() {
			errs := p.stageAt(ctx, node, req, in.Acknowledgements)
			mu.Lock()
			all = append(all, errs...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(all) == 0 {
		t.confirmed(ranges, count)
		return nil
	}
	slices.SortFunc(all, func(a, b *cluster.Error) int { return strings.Compare(a.Error(), b.Error()) })
	return p.stageFailure(ctx, &StageError{all})
}

// stageFailure picks the error that decides what happens next: a producer that
// cannot go on counts for more than a partition that could not be staged.
func (p *identity) stageFailure(ctx context.Context, e *StageError) error {
	for _, f := range e.Errors {
		switch classOf(f.Err) {
		case fenced:
			return p.classify(ctx, "stage in transaction of", f)
		case fatal:
			return cluster.Classify(f)
		case abortable, retriable:
		}
	}
	return e
}

// stageRequests splits acknowledgements by leader and counts their offsets.
func (p *identity) stageRequests(ctx context.Context, in ShareAcknowledgements) (map[int32]*wire.TxnShareAcknowledgeRequest, []StagedRanges, int64, error) {
	var count int64
	var ranges []StagedRanges
	requests := make(map[int32]*wire.TxnShareAcknowledgeRequest)
	for _, tp := range in.Acknowledgements.Partitions() {
		batches, err := in.Acknowledgements.Batches(tp)
		if err != nil {
			return nil, nil, 0, err
		}
		for _, b := range batches {
			for _, t := range b.AcknowledgeTypes {
				if !p.dialect.Allows(wire.AcknowledgeType(t)) {
					return nil, nil, 0, &TypeError{p.dialect, tp, wire.AcknowledgeType(t)}
				}
			}
			count += b.LastOffset - b.FirstOffset + 1
		}
		ranges = append(ranges, StagedRanges{in.Group.GroupID, tp, batches})
	}
	for _, r := range ranges {
		tp := r.TopicPartition
		node, err := p.leader(ctx, tp, in.Leaders)
		if err != nil {
			return nil, nil, 0, err
		}
		req := requests[node]
		if req == nil {
			req = wire.NewTxnShareAcknowledgeRequest(p.dialect)
			req.TransactionalID = &p.transactionalID
			req.GroupID, req.MemberID, req.MemberEpoch = in.Group.GroupID, in.Group.MemberID, in.Group.MemberEpoch
			req.ProducerID, req.ProducerEpoch = p.producerID, p.epoch
			requests[node] = req
		}
		n := len(req.Topics)
		if n == 0 || req.Topics[n-1].TopicID != tp.TopicID {
			req.Topics = append(req.Topics, wire.TxnShareAcknowledgeRequestTopic{TopicID: tp.TopicID})
			n++
		}
		t := &req.Topics[n-1]
		t.Partitions = append(t.Partitions, wire.TxnShareAcknowledgeRequestTopicPartition{Partition: tp.Partition, AcknowledgementBatches: r.Batches})
	}
	return requests, ranges, count, nil
}

func (p *identity) leader(ctx context.Context, tp share.TopicPartition, known map[share.TopicPartition]int32) (int32, error) {
	if node, ok := known[tp]; ok {
		return node, nil
	}
	topics, err := p.cl.Topics(ctx, tp.Topic)
	if err != nil {
		return -1, err
	}
	node := topics[tp.Topic].Leader(tp.Partition)
	if node < 0 || topics[tp.Topic].ID != tp.TopicID {
		return -1, &cluster.Error{Op: "find the leader of", Broker: -1, Topic: tp.Topic, Partition: tp.Partition, Err: kerr.LeaderNotAvailable}
	}
	return node, nil
}

// stageAt sends one leader its request. Top-level answers that pass by
// themselves are retried within the transaction; a request without an answer is
// not, since the records may be staged already.
func (p *identity) stageAt(ctx context.Context, node int32, req *wire.TxnShareAcknowledgeRequest, acks *share.Acknowledgements) []*cluster.Error {
	op := fmt.Sprintf("stage acknowledgements of share group %q in transaction of %q", req.GroupID, p.transactionalID)
	for try := 0; ; try++ {
		kresp, err := p.cl.RequestBroker(ctx, node, req)
		if err != nil {
			return []*cluster.Error{{Op: op, Broker: node, Err: err}}
		}
		resp := kresp.(*wire.TxnShareAcknowledgeResponse)
		err = kerr.ErrorForCode(resp.ErrorCode)
		switch {
		case err == nil:
			return partitionErrors(op, node, req, resp, acks)
		case errors.Is(err, kerr.UnsupportedVersion):
			p.cl.ForgetBroker(node)
			return []*cluster.Error{{Op: op, Broker: node, Err: err, Advice: "a feature level changed while this was running"}}
		case classOf(err) != retriable || p.overdue() || !backOff(ctx, try):
			return []*cluster.Error{{Op: op, Broker: node, Err: err}}
		}
	}
}

// partitionErrors lists the partitions that were not confirmed: those with a
// code, and those that the answer does not mention.
func partitionErrors(op string, node int32, req *wire.TxnShareAcknowledgeRequest, resp *wire.TxnShareAcknowledgeResponse, acks *share.Acknowledgements) []*cluster.Error {
	type key struct {
		id        [16]byte
		partition int32
	}
	names := make(map[key]string)
	for _, tp := range acks.Partitions() {
		names[key{tp.TopicID, tp.Partition}] = tp.Topic
	}
	missing := make(map[key]bool)
	offsets := make(map[key]string)
	for _, t := range req.Topics {
		for _, p := range t.Partitions {
			k := key{t.TopicID, p.Partition}
			missing[k] = true
			if n := len(p.AcknowledgementBatches); n > 0 {
				offsets[k] = fmt.Sprintf("offsets %d to %d", p.AcknowledgementBatches[0].FirstOffset, p.AcknowledgementBatches[n-1].LastOffset)
			}
		}
	}
	var out []*cluster.Error
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			k := key{t.TopicID, p.Partition}
			delete(missing, k)
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				e := &cluster.Error{Op: op, Broker: node, Topic: names[k], Partition: p.Partition, Err: err, Detail: offsets[k]}
				if p.ErrorMessage != nil {
					e.Detail += ": " + *p.ErrorMessage
				}
				out = append(out, e)
			}
		}
	}
	for k := range missing {
		out = append(out, &cluster.Error{Op: op, Broker: node, Topic: names[k], Partition: k.partition, Err: kerr.UnknownServerError, Detail: offsets[k] + ": the broker's answer lacks this partition"})
	}
	return out
}
