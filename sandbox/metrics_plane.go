package sandbox

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// planeMetrics is what happened on the share plane, by broker, as far as its
// state does not tell. It is safe for concurrent use; its mutex may be taken
// while any other is held.
type planeMetrics struct {
	now func() time.Time

	mu      sync.Mutex
	brokers map[int32]*brokerCounts
}

// brokerCounts is what happened on one broker.
type brokerCounts struct {
	acks        map[wire.AcknowledgeType]*meter // records, by plain acknowledgement
	loads       histogram                       // ms
	lockExpired int64                           // records in TX_PENDING
	topics      map[topicCount]*meter
	stages      histogram         // ms
	requests    map[int16]*meter  // TxnShareAcknowledge, by version
	errors      map[string]*meter // of TxnShareAcknowledge, by the name of the code
	writes      windowedStat      // of share state, ms
}

// topicCount is a metric of a topic; of all topics where that is "".
type topicCount struct{ name, topic string }

const (
	totalShareFetch = "TotalShareFetchRequestsPerSec"
	failedFetch     = "FailedShareFetchRequestsPerSec"
	totalShareAck   = "TotalShareAcknowledgementRequestsPerSec"
	failedShareAck  = "FailedShareAcknowledgementRequestsPerSec"
)

// countedAcks are the types that Kafka has a meter for. A gap is none of them.
func countedAcks() []wire.AcknowledgeType {
	return []wire.AcknowledgeType{wire.Accept, wire.Release, wire.Reject, wire.Renew}
}

// ackTypeTag is a type as Kafka writes it in the name of an MBean.
func ackTypeTag(t wire.AcknowledgeType) string {
	switch t {
	case wire.Accept:
		return "Accept"
	case wire.Release:
		return "Release"
	case wire.Reject:
		return "Reject"
	case wire.Renew:
		return "Renew"
	default:
		return "Gap"
	}
}

// at runs fn on what is counted of a broker.
func (m *planeMetrics) at(broker int32, fn func(b *brokerCounts, now time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	b := m.brokers[broker]
	if b == nil {
		b = &brokerCounts{
			acks: make(map[wire.AcknowledgeType]*meter), topics: make(map[topicCount]*meter),
			requests: make(map[int16]*meter), errors: make(map[string]*meter),
		}
		for _, t := range countedAcks() {
			b.acks[t] = newMeter(now)
		}
		for _, name := range []string{totalShareFetch, failedFetch, totalShareAck, failedShareAck} {
			b.topics[topicCount{name, ""}] = newMeter(now)
		}
		if m.brokers == nil {
			m.brokers = make(map[int32]*brokerCounts)
		}
		m.brokers[broker] = b
	}
	fn(b, now)
}

// meterOf returns the meter of a key, a new one if there is none.
func meterOf[K comparable](meters map[K]*meter, key K, now time.Time) *meter {
	m := meters[key]
	if m == nil {
		m = newMeter(now)
		meters[key] = m
	}
	return m
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Hooks of the share plane

// measured notes a request that came at start and its response, which is nil if
// the connection had to be closed.
func (p *plane) measured(c caller, req kmsg.Request, resp kmsg.Response, start time.Time) {
	switch resp := resp.(type) {
	case *kmsg.ShareFetchResponse:
		p.measuredFetch(c, req.(*kmsg.ShareFetchRequest), resp)
	case *kmsg.ShareAcknowledgeResponse:
		if resp.ErrorCode != 0 {
			return
		}
		failed := make(map[[16]byte]bool)
		for _, t := range resp.Topics {
			for _, rp := range t.Partitions {
				failed[t.TopicID] = failed[t.TopicID] || rp.ErrorCode != 0
			}
		}
		p.countTopics(c.broker, totalShareAck, failedShareAck, failed)
	case *wire.TxnShareAcknowledgeResponse:
		p.counted.at(c.broker, func(b *brokerCounts, now time.Time) {
			b.stages.update(milliseconds(now.Sub(start)))
			meterOf(b.requests, c.version, now).mark(now, 1)
			meterOf(b.errors, errorName(resp.ErrorCode), now).mark(now, 1)
			for _, t := range resp.Topics {
				for _, rp := range t.Partitions {
					meterOf(b.errors, errorName(rp.ErrorCode), now).mark(now, 1)
				}
			}
		})
	}
}

// measuredFetch counts the topics of the session, whether or not anything of them
// is in the response, and those with acknowledgements.
func (p *plane) measuredFetch(c caller, req *kmsg.ShareFetchRequest, resp *kmsg.ShareFetchResponse) {
	if resp.ErrorCode != 0 {
		return
	}
	fetched, acked := make(map[[16]byte]bool), make(map[[16]byte]bool)
	if s := p.sessions.find(sessionKey{stringOf(req.GroupID), stringOf(req.MemberID), c.broker}); s != nil && !req.IsRenewAck {
		for _, sp := range s.list() {
			fetched[sp.topicID] = false
		}
	}
	for _, a := range acksOfFetch(req.Topics) {
		acked[a.topicID] = false
	}
	for _, t := range resp.Topics {
		for _, rp := range t.Partitions {
			if rp.ErrorCode != 0 {
				fetched[t.TopicID] = true
			}
			if rp.AcknowledgeErrorCode != 0 {
				acked[t.TopicID] = true
			}
		}
	}
	p.countTopics(c.broker, totalShareFetch, failedFetch, fetched)
	p.countTopics(c.broker, totalShareAck, failedShareAck, acked)
}

// countTopics marks what was asked of topics, and of which it failed.
func (p *plane) countTopics(broker int32, total, failed string, topics map[[16]byte]bool) {
	names := make(map[string]bool, len(topics))
	for id, bad := range topics {
		if t, ok := p.k.topicByID(id); ok {
			names[t.name] = bad
		}
	}
	p.counted.at(broker, func(b *brokerCounts, now time.Time) {
		for topic, bad := range names {
			for _, of := range []string{"", topic} {
				meterOf(b.topics, topicCount{total, of}, now).mark(now, 1)
				if bad {
					meterOf(b.topics, topicCount{failed, of}, now).mark(now, 1)
				}
			}
		}
	})
}

// countAcks counts the records of plain acknowledgements that were done.
func (p *plane) countAcks(broker int32, acks []*partitionAcks) {
	p.counted.at(broker, func(b *brokerCounts, now time.Time) {
		for _, a := range acks {
			if a.code != 0 {
				continue
			}
			for _, batch := range a.batches {
				for t, s := range batch.runs() {
					if m := b.acks[t]; m != nil {
						m.mark(now, s.last-s.first+1)
					}
				}
			}
		}
	})
}

// measuredLoad loads a share-partition and notes how long it took.
func (p *plane) measuredLoad(lp *leaderPartition) int16 {
	start := p.cfg.now()
	code := p.load(lp)
	if code == 0 {
		p.counted.at(lp.leader, func(b *brokerCounts, now time.Time) { b.loads.update(milliseconds(now.Sub(start))) })
	}
	return code
}

// measuredCoordinator notes the writes of a share coordinator, at the broker that
// leads the partition of __share_group_state.
type measuredCoordinator struct {
	coordinator
	k       kafka
	metrics *planeMetrics
}

func (m measuredCoordinator) write(ctx context.Context, writes []shareStateWrite) []int16 {
	start := m.metrics.now()
	codes := m.coordinator.write(ctx, writes)
	for i, w := range writes {
		if codes[i] != 0 {
			continue
		}
		n := wire.ShareStatePartition(w.group, w.topicID, w.partition, m.partitions())
		if info, ok := m.k.partition(stateTopic, n); ok {
			m.metrics.at(info.leader, func(b *brokerCounts, now time.Time) { b.writes.record(now, milliseconds(now.Sub(start))) })
		}
	}
	return codes
}

// Acquisition locks

// leaderMetrics is what happened to one share-partition; its mutex guards it.
type leaderMetrics struct {
	timeouts *meter // records whose acquisition lock ran out; nil: none yet
	// staged has when the locks of staged records would have run out, by
	// producer ID. In the text put to the vote a lock runs on in TX_PENDING: when
	// it runs out that changes nothing, and is counted.
	staged map[int64][]stagedLock
}

// stagedLock is records whose acquisition locks end at the same moment.
type stagedLock struct {
	expiry  time.Time
	records int64
}

// stage is [sharePartition.stage], and notes the locks of what is staged. The
// caller holds the mutex.
func (lp *leaderPartition) stage(now time.Time, memberID string, o owner, acks []ackBatch, lim partitionLimits) (change, int16) {
	var locks []stagedLock
	if lp.sp.dialect.Layout == wire.ResponseWithLeader {
		locks = lp.sp.locksOf(memberID, acks)
	}
	ch, code := lp.sp.stage(now, memberID, o, acks, lim)
	if code == 0 && len(locks) > 0 {
		if lp.metrics.staged == nil {
			lp.metrics.staged = make(map[int64][]stagedLock)
		}
		lp.metrics.staged[o.producerID] = append(lp.metrics.staged[o.producerID], locks...)
	}
	return ch, code
}

// locksOf returns the acquisition locks that memberID has on the offsets of acks.
func (p *sharePartition) locksOf(memberID string, acks []ackBatch) []stagedLock {
	var out []stagedLock
	for _, b := range acks {
		if !b.wellFormed() {
			return nil
		}
		for r := range p.pieces(b.span) {
			if r.state != wire.Acquired || r.hold.memberID != memberID {
				continue
			}
			if n := len(out); n > 0 && out[n-1].expiry.Equal(r.hold.lockExpiry) {
				out[n-1].records += r.records()
				continue
			}
			out = append(out, stagedLock{r.hold.lockExpiry, r.records()})
		}
	}
	return out
}

// settleLocks counts the locks of staged records that have run out by now, and
// forgets those of producers that have nothing pending any more. The caller holds
// the mutex of lp.
func (p *plane) settleLocks(lp *leaderPartition, pending []pendingRange, now time.Time) {
	expired := int64(0)
	for id, locks := range lp.metrics.staged {
		locks = slices.DeleteFunc(locks, func(l stagedLock) bool {
			over := !l.expiry.IsZero() && !l.expiry.After(now)
			if over {
				expired += l.records
			}
			return over
		})
		lp.metrics.staged[id] = locks
		if len(locks) == 0 || !slices.ContainsFunc(pending, func(r pendingRange) bool { return r.producerID == id }) {
			delete(lp.metrics.staged, id)
		}
	}
	if expired > 0 {
		p.counted.at(lp.leader, func(b *brokerCounts, _ time.Time) { b.lockExpired += expired })
	}
}

// expire is [sharePartition.expire], and counts the records. The caller holds the
// mutex of lp.
func (p *plane) expire(lp *leaderPartition, now time.Time) change {
	before := lp.sp.records[wire.Acquired]
	ch := lp.sp.expire(now, p.limits(lp.key.group))
	if n := before - lp.sp.records[wire.Acquired]; n > 0 {
		if lp.metrics.timeouts == nil {
			lp.metrics.timeouts = newMeter(p.cfg.now())
		}
		lp.metrics.timeouts.mark(p.cfg.now(), n)
	}
	if len(lp.metrics.staged) > 0 {
		p.settleLocks(lp, lp.sp.pending(), now)
	}
	return ch
}

// What a broker serves

// now returns the time of the share plane.
func (p *plane) now() time.Time { return p.cfg.now() }

// metrics returns the MBeans of every broker.
func (p *plane) metrics() map[int32][]mbean {
	out := p.partitionMetrics() // which also settles some of what is counted
	pending, groups, states := p.pendingByLeader(), p.groupsByCoordinator(), p.statePartitionsByLeader()
	for _, n := range p.k.nodes() {
		beans := append(out[n.id], gauge("ShareGroupMetrics", "TxnPendingRecordsCount", float64(pending[n.id])))
		p.counted.at(n.id, func(b *brokerCounts, now time.Time) {
			beans = append(beans, b.metrics(p.cfg.dialect, now)...)
		})
		sessions, partitions := p.sessions.countOf(n.id)
		beans = append(beans,
			gauge("ShareSessionCache", "ShareSessionsCount", float64(sessions)),
			gauge("ShareSessionCache", "SharePartitionsCount", float64(partitions)),
			count("share-coordinator-metrics", "num-partitions", states[n.id], "state", "active"),
			count("group-coordinator-metrics", "group-count", len(groups[n.id]), "protocol", "share"))
		for _, state := range []string{"Empty", "Stable", "Dead"} {
			in := 0
			for _, s := range groups[n.id] {
				if s == state {
					in++
				}
			}
			beans = append(beans, count("group-coordinator-metrics", "share-group-count", in, "state", state))
		}
		out[n.id] = beans
	}
	return out
}

// count is one of Kafka's own metrics, a whole number.
func count(typ, name string, n int, tags ...string) mbean {
	return mbean{"kafka.server", typ, "", tags, []attribute{{name, float64(n)}}}
}

// partitionMetrics returns the MBeans of the share-partitions that are loaded, by
// the broker that leads them.
func (p *plane) partitionMetrics() map[int32][]mbean {
	p.mu.Lock()
	leads := slices.Collect(maps.Values(p.leads))
	p.mu.Unlock()
	now := p.cfg.now()
	out := make(map[int32][]mbean)
	for _, lp := range leads {
		lp.mu.Lock()
		if lp.sp != nil && !lp.retired {
			if len(lp.metrics.staged) > 0 {
				p.settleLocks(lp, lp.sp.pending(), now)
			}
			out[lp.leader] = append(out[lp.leader], lp.mbeans(now)...)
		}
		lp.mu.Unlock()
	}
	return out
}

// mbeans returns the MBeans of a share-partition; the caller holds its mutex.
func (lp *leaderPartition) mbeans(now time.Time) []mbean {
	const typ = "SharePartitionMetrics"
	tags := []string{"group", lp.key.group, "topic", lp.topic, "partition", strconv.Itoa(int(lp.key.partition))}
	timeouts := lp.metrics.timeouts
	if timeouts == nil {
		timeouts = newMeter(now)
	}
	return []mbean{
		gauge(typ, "InFlightMessageCount", float64(lp.sp.inFlight()), tags...),
		gauge(typ, "InFlightBatchCount", float64(lp.sp.window.count()), tags...),
		{"kafka.server", typ, "AcquisitionLockTimeoutPerSec", tags, timeouts.attributes(now)},
	}
}

// count returns the number of ranges.
func (l *partRanges) count() int {
	n := 0
	for _, c := range l.chunks {
		n += len(c.ranges)
	}
	return n
}

// pendingByLeader counts the records in TX_PENDING by the broker that leads their
// partition, whether or not it has loaded them since it started.
func (p *plane) pendingByLeader() map[int32]int {
	out := make(map[int32]int)
	for k, records := range p.txns.byKey() {
		topic, ok := p.k.topicByID(k.topicID)
		if !ok {
			continue
		}
		if info, ok := p.k.partition(topic.name, k.partition); ok {
			out[info.leader] += records
		}
	}
	return out
}

// byKey counts the records in TX_PENDING of each share-partition that has any.
func (t *txnTable) byKey() map[shareStateKey]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[shareStateKey]int)
	for _, keys := range t.staged {
		for k, n := range keys {
			out[k] += n
		}
	}
	return out
}

// groupsByCoordinator returns the states of all share groups.
func (p *plane) groupsByCoordinator() map[int32][]string {
	out := make(map[int32][]string)
	for _, g := range p.listGroups(-1) {
		broker := p.k.coordinator(g.id)
		out[broker] = append(out[broker], g.state)
	}
	return out
}

// statePartitionsByLeader counts the partitions of __share_group_state.
func (p *plane) statePartitionsByLeader() map[int32]int {
	out := make(map[int32]int)
	for i := range p.co.partitions() {
		if info, ok := p.k.partition(stateTopic, i); ok {
			out[info.leader]++
		}
	}
	return out
}

// countOf returns the number of share sessions on a broker, and of the partitions
// in them.
func (sc *sessionCache) countOf(broker int32) (sessions, partitions int) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	for k, s := range sc.byKey {
		if k.broker != broker {
			continue
		}
		sessions++
		s.mu.Lock()
		partitions += len(s.partitions)
		s.mu.Unlock()
	}
	return sessions, partitions
}

func (b *brokerCounts) metrics(d wire.Dialect, now time.Time) []mbean {
	const groups, requests = "ShareGroupMetrics", "RequestMetrics"
	// The text put to the vote has a counter, whose attribute is Count; the drafts
	// have a gauge.
	expired := gauge(groups, "TxnPendingLockExpiredCount", float64(b.lockExpired))
	if d.Layout == wire.ResponseWithLeader {
		expired.attributes[0].name = "Count"
	}
	out := []mbean{
		expired,
		{"kafka.server", groups, "TxnShareAcknowledgeRequestLatencyMs", nil, b.stages.attributes()},
		{"kafka.server", groups, "PartitionLoadTimeMs", nil, b.loads.attributes()},
		{"kafka.network", requests, "TotalTimeMs", []string{"request", txnAcksName}, b.stages.attributes()},
		{"kafka.server", "share-coordinator-metrics", "", nil, []attribute{
			{"write-total", float64(b.writes.total)},
			{"write-rate", b.writes.rate(now)},
			{"write-latency-avg", b.writes.average(now)},
			{"write-latency-max", b.writes.highest(now)},
		}},
	}
	for _, t := range countedAcks() {
		out = append(out, mbean{"kafka.server", groups, "RecordAcknowledgementsPerSec", []string{"ackType", ackTypeTag(t)}, b.acks[t].attributes(now)})
	}
	for k, m := range b.topics {
		var tags []string
		if k.topic != "" {
			tags = []string{"topic", k.topic}
		}
		out = append(out, mbean{"kafka.server", "BrokerTopicMetrics", k.name, tags, m.attributes(now)})
	}
	for v, m := range b.requests {
		out = append(out, mbean{"kafka.network", requests, "RequestsPerSec", []string{"request", txnAcksName, "version", strconv.Itoa(int(v))}, m.attributes(now)})
	}
	for name, m := range b.errors {
		out = append(out, mbean{"kafka.network", requests, "ErrorsPerSec", []string{"request", txnAcksName, "error", name}, m.attributes(now)})
	}
	return out
}

// txnAcksName is what a broker calls the request in its metrics.
const txnAcksName = "TxnShareAcknowledge"
