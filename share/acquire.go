package share

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// AskedRange is a range of offsets of a partition.
type AskedRange struct {
	Topic     string
	Partition int32
	Range
}

// String returns "topic-3: offsets 7 to 9".
func (r AskedRange) String() string {
	return fmt.Sprintf("%s-%d: offsets %d to %d", r.Topic, r.Partition, r.FirstOffset, r.LastOffset)
}

// AcquireConfig says what [AcquireRanges] is to acquire.
type AcquireConfig struct {
	// GroupID is the share group; required. It has to exist.
	GroupID string
	// Ranges are what to acquire; at least one. They may be in any order and
	// overlap.
	Ranges []AskedRange
	// MemberID identifies the member while it is in the group, as in [Config].
	MemberID string
	// Wait is how long to go on asking for offsets that another member holds: they
	// come back when its lock expires. 0 does not wait.
	Wait time.Duration
	// Warn is told of conditions that pass by themselves; nil drops them.
	Warn func(err error)
	// Metrics is told what Kafka's own client counts; nil counts nothing.
	Metrics Metrics
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Acquisition holds offsets of a share group that were asked for, as a member of
// it. It has to be closed.
type Acquisition struct {
	// Batch is what is held: of the offsets that were asked for all that could be
	// had, and no others.
	Batch *Batch
	// Reports say what became of every offset that was asked for, by topic,
	// partition and offset.
	Reports []RangeReport
	// Bystanders counts the offsets that had to be acquired to come to those that
	// were asked for. They were released at once, and have one delivery less left.
	Bystanders int64
	// MaxDeliveryCount is the largest delivery count of a bystander; 0 without
	// any. At the group's limit (share.delivery.count.limit) the broker has
	// archived it.
	MaxDeliveryCount int16

	consumer *Consumer // nil when there was nothing to join for
}

// Complete reports whether all that was asked for is held.
func (a *Acquisition) Complete() bool {
	return !slices.ContainsFunc(a.Reports, func(r RangeReport) bool { return r.Status != RangeAcquired })
}

// GroupMetadata returns the identity of the member that holds the offsets, to
// stage acknowledgements as.
func (a *Acquisition) GroupMetadata() GroupMetadata {
	if a.consumer == nil {
		return GroupMetadata{}
	}
	return a.consumer.GroupMetadata()
}

// Acknowledge acknowledges plainly, outside any transaction; see
// [Consumer.Acknowledge].
func (a *Acquisition) Acknowledge(ctx context.Context, acks *Acknowledgements) error {
	if a.consumer == nil {
		return nil
	}
	return a.consumer.Acknowledge(ctx, a.Batch, acks)
}

// Close releases what was neither acknowledged nor staged in a transaction, and
// leaves the group.
func (a *Acquisition) Close(ctx context.Context) error {
	if a.consumer == nil {
		return nil
	}
	return a.consumer.Close(ctx)
}

const (
	// dryFetches is how often a leader has to offer nothing before it is taken
	// for having nothing.
	dryFetches = 2
	// acquireTries is how often a fetch in a row may fail.
	acquireTries = 8
	// acquirePause is the time between two looks for what another member holds.
	acquirePause = 500 * time.Millisecond
	// acquireMaxWait is how long a leader may hold such a fetch.
	acquireMaxWait = 100 * time.Millisecond
)

// AcquireRanges acquires given offsets of a share group by hand, to acknowledge
// them: it joins the group as a member, fetches until each offset is held or
// found not to be had, and releases everything else. The caller acknowledges the
// batch, in a transaction of package txn or plainly, before the acquisition locks
// expire ([Batch.LockDeadline]), and closes it.
//
// A share group offers the lowest available offset first: what lies between the
// start offset and the offsets asked for is acquired on the way, and each of
// these records loses one delivery. So may records behind them, where another
// member holds some of those before, where the state that says which are terminal
// cannot be read, or where brokers are older than Kafka 4.2. Partitions are fetched
// from whether they are assigned to this member or not, but while it is in the
// group the coordinator may assign it some, whose other members wait meanwhile.
//
// Offsets that were not acquired are no error: see [Acquisition.Reports]. Which of
// them are terminal or pending it can tell only to a principal with
// CLUSTER_ACTION on the cluster, which brokers ask for to show the state of a
// share-partition. It may return *cluster.Error, *cluster.AuthError,
// *cluster.UnsupportedError or *cluster.DialError; nothing is held then.
func AcquireRanges(ctx context.Context, cl *cluster.Client, cfg AcquireConfig) (*Acquisition, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	w, err := newWalk(ctx, cl, cfg)
	if err != nil {
		return nil, err
	}
	if err := w.know(ctx); err != nil {
		return nil, err
	}
	if w.open() {
		w.states(ctx)
	}
	if w.open() {
		if err := w.join(ctx); err != nil {
			return nil, err
		}
		if err := w.acquire(ctx); err != nil {
			closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
			defer cancel()
			return nil, cluster.Join(err, w.c.Close(closeCtx))
		}
	}
	return w.result(ctx), nil
}

// askTimeout bounds giving everything back after a failure, and looking for the
// reason of what was not acquired.
const askTimeout = 5 * time.Second

// walk is one AcquireRanges under way.
type walk struct {
	cl     *cluster.Client
	cfg    AcquireConfig
	c      *Consumer
	topics map[string]cluster.Topic
	asked  map[TopicPartition]rangeSet
	known  map[TopicPartition]knowledge

	held map[TopicPartition][]*PartitionBatch // everything acquired, in order of arrival
	dry  map[TopicPartition]int               // fetches in a row that offered nothing
	wait bool                                 // what is wanted is the lowest there is

	bystanders int64
	deliveries int16 // most of a bystander
}

func newWalk(ctx context.Context, cl *cluster.Client, cfg AcquireConfig) (*walk, error) {
	op := fmt.Sprintf("acquire offsets of share group %q", cfg.GroupID)
	if cfg.GroupID == "" || len(cfg.Ranges) == 0 {
		return nil, fmt.Errorf("%s: no group, or no offsets", op)
	}
	w := &walk{
		cl: cl, cfg: cfg, asked: make(map[TopicPartition]rangeSet), known: make(map[TopicPartition]knowledge),
		held: make(map[TopicPartition][]*PartitionBatch), dry: make(map[TopicPartition]int),
	}
	var names []string
	for _, r := range cfg.Ranges {
		if r.FirstOffset < 0 || r.LastOffset < r.FirstOffset {
			return nil, fmt.Errorf("%s: %s: that is no range", op, r)
		}
		if !slices.Contains(names, r.Topic) {
			names = append(names, r.Topic)
		}
	}
	var err error
	if w.topics, err = cl.Topics(ctx, names...); err != nil {
		return nil, err
	}
	all := make(map[TopicPartition][]Range)
	for _, r := range cfg.Ranges {
		t := w.topics[r.Topic]
		if !slices.ContainsFunc(t.Partitions, func(p cluster.Partition) bool { return p.Partition == r.Partition }) {
			return nil, &cluster.Error{
				Op: op, Broker: -1, Topic: r.Topic, Partition: r.Partition, Err: kerr.UnknownTopicOrPartition,
				Advice: fmt.Sprintf("topic %q has partitions 0 to %d", r.Topic, len(t.Partitions)-1),
			}
		}
		tp := TopicPartition{r.Topic, t.ID, r.Partition}
		all[tp] = append(all[tp], r.Range)
	}
	for tp, ranges := range all {
		w.asked[tp] = newRangeSet(ranges)
	}
	return w, nil
}

// missing returns what was asked for of a partition, is not held, and may still
// be acquired.
func (w *walk) missing(tp TopicPartition) rangeSet {
	var held rangeSet
	for _, p := range w.held[tp] {
		held = append(held, p.offsets()...)
	}
	left := w.asked[tp].without(newRangeSet(held))
	k := w.known[tp]
	if k.start > 0 {
		left = left.without(rangeSet{{0, k.start - 1}})
	}
	if k.end >= 0 {
		left = left.without(rangeSet{{k.end, maxOffset}})
	}
	return left
}

// open reports whether anything may still be acquired.
func (w *walk) open() bool {
	for tp := range w.asked {
		if len(w.missing(tp)) > 0 {
			return true
		}
	}
	return false
}

// passed reports whether the group has offered something above all that is
// missing of a partition: then it will not offer that now.
func (w *walk) passed(tp TopicPartition) bool {
	last := w.missing(tp).last()
	return slices.ContainsFunc(w.held[tp], func(p *PartitionBatch) bool { return p.offsets().last() > last })
}

// join makes the member. Unlike that of NewConsumer it fetches only when told to.
func (w *walk) join(ctx context.Context) error {
	var names []string
	for tp := range w.asked {
		if !slices.Contains(names, tp.Topic) {
			names = append(names, tp.Topic)
		}
	}
	slices.Sort(names)
	c, interval, err := newMember(ctx, w.cl, Config{
		GroupID: w.cfg.GroupID, Topics: names, MemberID: w.cfg.MemberID, MaxWait: acquireMaxWait,
		Warn: w.cfg.Warn, Metrics: w.cfg.Metrics, Now: w.cfg.Now,
	})
	if err != nil {
		return err
	}
	w.c = c
	c.wg.Go(func() { c.heartbeatLoop(interval) })
	return nil
}

// acquire fetches until everything is held that can be had, and releases the
// rest.
func (w *walk) acquire(ctx context.Context) error {
	// A fetch that is given up on could acquire records later: it is cut off only
	// when the caller cannot wait for it.
	defer context.AfterFunc(ctx, w.c.cancelRequests)()
	until := w.cfg.Now().Add(w.cfg.Wait)
	for tries := 0; ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wants := w.wants(false)
		if len(wants) == 0 {
			if wants = w.wants(true); len(wants) == 0 || !w.cfg.Now().Before(until) || !w.keepLocks(ctx) {
				return w.releaseOthers(ctx)
			}
			w.wait = true
			if err := pause.For(ctx, acquirePause); err != nil {
				return err
			}
		}
		err := w.fetch(wants)
		switch {
		case err == nil:
			tries = 0
			continue
		case isFatal(err), tries == acquireTries:
			return err
		}
		if err := pause.For(ctx, backoff(tries)); err != nil {
			return err
		}
		tries++
		if w.topics, err = w.cl.Topics(ctx, slices.Collect(maps.Keys(w.topics))...); err != nil {
			return err
		}
	}
}

// wants returns the partitions to fetch from, by leader: those of which something
// is missing that was not found to be held back; with waiting also those.
func (w *walk) wants(waiting bool) map[int32]map[TopicPartition]bool {
	out := make(map[int32]map[TopicPartition]bool)
	for tp := range w.asked {
		if len(w.missing(tp)) == 0 || !waiting && (w.dry[tp] >= dryFetches || w.passed(tp)) {
			continue
		}
		node := w.topics[tp.Topic].Leader(tp.Partition)
		if out[node] == nil {
			out[node] = make(map[TopicPartition]bool)
		}
		out[node][tp] = true
	}
	return out
}

// fetch fetches once from each leader.
func (w *walk) fetch(wants map[int32]map[TopicPartition]bool) error {
	for _, node := range slices.Sorted(maps.Keys(wants)) {
		want := wants[node]
		if node < 0 {
			tp := sortedPartitions(want)[0]
			return &cluster.Error{Op: w.c.op("find the leader for"), Broker: -1, Topic: tp.Topic, Partition: tp.Partition, Err: kerr.LeaderNotAvailable}
		}
		s := w.c.sessionOf(node)
		w.c.cfg.MaxRecords = w.limit(want)
		err := s.fetch(want)
		got := w.c.takeAll()
		for _, p := range got {
			w.held[p.TopicPartition] = append(w.held[p.TopicPartition], p)
		}
		if err != nil {
			if s.epoch == openSession {
				w.lose(s)
			}
			return err
		}
		for tp := range want {
			w.dry[tp]++
			if slices.ContainsFunc(got, func(p *PartitionBatch) bool { return p.TopicPartition == tp }) {
				w.dry[tp] = 0
			}
		}
	}
	return nil
}

// limit returns how many records one fetch from these partitions may acquire, such
// that none is acquired behind what is missing: it would lose a delivery for
// nothing. The broker may take all of them from one partition.
func (w *walk) limit(want map[TopicPartition]bool) int32 {
	if w.wait {
		return 1
	}
	n := int64(defaultMaxRecords)
	for tp := range want {
		var held []Range
		for _, p := range w.held[tp] {
			held = append(held, p.offsets()...)
		}
		n = min(n, onTheWay(w.missing(tp).last(), newRangeSet(held), w.known[tp]))
	}
	return int32(max(n, 1))
}

// lose drops what was acquired in a share session that has ended: the broker
// releases it.
func (w *walk) lose(s *session) {
	for tp, held := range w.held {
		w.held[tp] = slices.DeleteFunc(held, func(p *PartitionBatch) bool { return p.session == s })
		w.dry[tp] = 0
	}
}

// sessionOf returns the share session with a leader, a new one if need be.
func (c *Consumer) sessionOf(node int32) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[node]
	if s == nil {
		s = c.newSession(node)
		c.sessions[node] = s
	}
	return s
}

// takeAll returns everything that was fetched.
func (c *Consumer) takeAll() []*PartitionBatch {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.ready
	c.ready = nil
	return out
}

// batch returns everything that is held.
func (w *walk) batch() *Batch {
	b := new(Batch)
	for _, tp := range sortedPartitions(w.asked) {
		b.Partitions = append(b.Partitions, w.held[tp]...)
	}
	return b
}

// keepLocks renews the acquisition locks when half of their time is over. It
// reports whether there is time left to wait.
func (w *walk) keepLocks(ctx context.Context) bool {
	b := w.batch()
	if len(b.Partitions) == 0 || w.cfg.Now().Before(b.LockDeadline().Add(-b.LockDuration()/2)) {
		return true
	}
	return w.c.Renew(ctx, b) == nil
}

// releaseOthers releases what was not asked for.
func (w *walk) releaseOthers(ctx context.Context) error {
	b, others := w.batch(), new(Acknowledgements)
	for _, p := range b.Partitions {
		rest := p.offsets().without(w.asked[p.TopicPartition])
		for _, r := range rest {
			others.AddRange(p.TopicPartition, r, wire.Release)
			w.bystanders += r.Len()
		}
		if o := p.keep(rest); o != nil {
			for _, r := range o.Acquired {
				w.deliveries = max(w.deliveries, r.DeliveryCount)
			}
		}
	}
	if others.Empty() {
		return nil
	}
	return w.c.Acknowledge(ctx, b, others)
}

// result reports on what was asked for.
func (w *walk) result(ctx context.Context) *Acquisition {
	a := &Acquisition{Batch: new(Batch), Bystanders: w.bystanders, MaxDeliveryCount: w.deliveries, consumer: w.c}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, tp := range sortedPartitions(w.asked) {
		var acquired []AcquiredRange
		for _, p := range w.held[tp] {
			if k := p.keep(w.asked[tp]); k != nil {
				a.Batch.Partitions = append(a.Batch.Partitions, k)
				acquired = append(acquired, k.Acquired...)
			}
		}
		k := w.known[tp]
		if len(w.missing(tp)) > 0 {
			k = w.whyMissing(ctx, tp, k)
		}
		a.Reports = append(a.Reports, report(tp, w.asked[tp], acquired, k)...)
	}
	return a
}

// know asks how far the group and the logs have come.
func (w *walk) know(ctx context.Context) error {
	for tp := range w.asked {
		w.known[tp] = knowledge{start: -1, end: -1}
	}
	if err := w.startOffsets(ctx); err != nil {
		return err
	}
	return w.endOffsets(ctx)
}

// states reads which records the group never hands out, where they can be read.
func (w *walk) states(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for _, tp := range sortedPartitions(w.asked) {
		if len(w.missing(tp)) > 0 {
			w.known[tp] = w.whyMissing(ctx, tp, w.known[tp])
		}
	}
}

func (w *walk) startOffsets(ctx context.Context) error {
	op := fmt.Sprintf("describe offsets of share group %q", w.cfg.GroupID)
	req := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	g := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	g.GroupID = w.cfg.GroupID
	for _, name := range slices.Sorted(maps.Keys(w.topics)) {
		t := kmsg.NewDescribeShareGroupOffsetsRequestGroupTopic()
		t.Topic = name
		for _, tp := range sortedPartitions(w.asked) {
			if tp.Topic == name {
				t.Partitions = append(t.Partitions, tp.Partition)
			}
		}
		g.Topics = append(g.Topics, t)
	}
	req.Groups = append(req.Groups, g)
	resp, err := req.RequestWith(ctx, w.cl.Requestor())
	if err != nil {
		return &cluster.Error{Op: op, Broker: -1, Err: err}
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
			return cluster.Classify(&cluster.Error{Op: op, Broker: -1, Err: err, Advice: groupAdvice(err)})
		}
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				tp := TopicPartition{t.Topic, w.topics[t.Topic].ID, p.Partition}
				if k, ok := w.known[tp]; ok && p.ErrorCode == 0 {
					k.start = p.StartOffset
					w.known[tp] = k
				}
			}
		}
	}
	return nil
}

func groupAdvice(err error) string {
	if errors.Is(err, kerr.GroupIDNotFound) {
		return "check the group ID; a share group exists from its first member on"
	}
	return ""
}

// endOffsets asks for the offsets up to which the group may read: with
// share.isolation.level read_committed that is the last stable offset.
func (w *walk) endOffsets(ctx context.Context) error {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	if v, ok, err := w.cl.GroupConfig(ctx, w.cfg.GroupID, "share.isolation.level"); err == nil && ok && v == "read_committed" {
		req.IsolationLevel = 1
	}
	for _, name := range slices.Sorted(maps.Keys(w.topics)) {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = name
		for _, tp := range sortedPartitions(w.asked) {
			if tp.Topic == name {
				p := kmsg.NewListOffsetsRequestTopicPartition()
				p.Partition, p.Timestamp = tp.Partition, -1
				t.Partitions = append(t.Partitions, p)
			}
		}
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, w.cl.Requestor())
	if err != nil {
		return &cluster.Error{Op: "list offsets", Broker: -1, Err: err}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return cluster.Classify(&cluster.Error{Op: "list offsets of", Broker: -1, Topic: t.Topic, Partition: p.Partition, Err: err})
			}
			tp := TopicPartition{t.Topic, w.topics[t.Topic].ID, p.Partition}
			if k, ok := w.known[tp]; ok {
				k.end = p.Offset
				w.known[tp] = k
			}
		}
	}
	return nil
}

// whyMissing reads the persisted state of a share-partition, and who has records
// of it staged.
func (w *walk) whyMissing(ctx context.Context, tp TopicPartition, k knowledge) knowledge {
	start, states, err := readState(ctx, w.cl, w.cfg.GroupID, tp)
	if err != nil {
		k.states, k.ids, k.stateErr = nil, nil, err
		return k
	}
	k.start, k.states, k.stateErr = max(k.start, start), states, nil
	k.ids = transactionalIDs(ctx, w.cl, states)
	return k
}

// coordinatorTypeShare is the key type of FindCoordinator for share-partitions.
const coordinatorTypeShare = 2

// readState reads the state of a share-partition from its share coordinator
// (KIP-932). ReadShareGroupState with a leader epoch above the known one would
// fence the partition's leader, and brokers refuse one below it: the summary,
// which changes nothing, tells which it is.
func readState(ctx context.Context, cl *cluster.Client, group string, tp TopicPartition) (start int64, states []wire.StateBatch, err error) {
	op := fmt.Sprintf("read state of share group %q for", group)
	node, err := shareCoordinator(ctx, cl, wire.ShareCoordinatorKey(group, tp.TopicID, tp.Partition))
	if err != nil {
		return -1, nil, err
	}
	sum := kmsg.NewPtrReadShareGroupStateSummaryRequest()
	sum.GroupID = group
	st := kmsg.NewReadShareGroupStateSummaryRequestTopic()
	st.TopicID = tp.TopicID
	sp := kmsg.NewReadShareGroupStateSummaryRequestTopicPartition()
	sp.Partition, sp.LeaderEpoch = tp.Partition, -1
	st.Partitions = append(st.Partitions, sp)
	sum.Topics = append(sum.Topics, st)
	kresp, err := cl.RequestBroker(ctx, node, sum)
	if err != nil {
		return -1, nil, err
	}
	var epoch int32
	start = -1
	for _, t := range kresp.(*kmsg.ReadShareGroupStateSummaryResponse).Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return -1, nil, stateError(op, node, tp, err)
			}
			epoch, start = p.LeaderEpoch, p.StartOffset
		}
	}
	if start < 0 {
		return -1, nil, nil // nothing is persisted yet
	}
	req := kmsg.NewPtrReadShareGroupStateRequest()
	req.GroupID = group
	rt := kmsg.NewReadShareGroupStateRequestTopic()
	rt.TopicID = tp.TopicID
	rp := kmsg.NewReadShareGroupStateRequestTopicPartition()
	rp.Partition, rp.LeaderEpoch = tp.Partition, epoch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	if kresp, err = cl.RequestBroker(ctx, node, req); err != nil {
		return -1, nil, err
	}
	for _, t := range kresp.(*kmsg.ReadShareGroupStateResponse).Topics {
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return -1, nil, stateError(op, node, tp, err)
			}
			start = p.StartOffset
			for _, b := range p.StateBatches {
				states = append(states, wire.StateBatch{
					FirstOffset: b.FirstOffset, LastOffset: b.LastOffset, DeliveryState: wire.RecordState(b.DeliveryState),
					DeliveryCount: b.DeliveryCount, Staged: wire.StagedOwnerFromTags(b.UnknownTags),
				})
			}
		}
	}
	return start, states, nil
}

func stateError(op string, node int32, tp TopicPartition, err error) error {
	return &cluster.Error{Op: op, Broker: node, Topic: tp.Topic, Partition: tp.Partition, Err: err}
}

func shareCoordinator(ctx context.Context, cl *cluster.Client, key string) (int32, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType, req.CoordinatorKeys = coordinatorTypeShare, []string{key}
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return -1, err
	}
	for _, c := range resp.Coordinators {
		if c.Key == key {
			return c.NodeID, kerr.ErrorForCode(c.ErrorCode)
		}
	}
	return -1, kerr.CoordinatorNotAvailable
}

// transactionalIDs finds the transactional IDs of the producers that have
// something staged. What it cannot find out is left out.
func transactionalIDs(ctx context.Context, cl *cluster.Client, states []wire.StateBatch) map[int64]string {
	req := kmsg.NewPtrListTransactionsRequest()
	for _, b := range states {
		if id := b.Staged.ProducerID; b.DeliveryState == wire.TxPending && id >= 0 && !slices.Contains(req.ProducerIDFilters, id) {
			req.ProducerIDFilters = append(req.ProducerIDFilters, id)
		}
	}
	if len(req.ProducerIDFilters) == 0 {
		return nil
	}
	resp, err := req.RequestWith(ctx, cl.Requestor())
	if err != nil {
		return nil
	}
	out := make(map[int64]string)
	for _, t := range resp.TransactionStates {
		out[t.ProducerID] = t.TransactionalID
	}
	return out
}
