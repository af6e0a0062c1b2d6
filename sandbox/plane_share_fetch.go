package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ShareFetch: v1-2 (KIP-932, KIP-1206, KIP-1222)
//
// Behavior:
//   - Opens (epoch 0), continues and closes (-1) a share session; see session.go
//   - Acknowledgements in the request are done first; in epoch 0 they are
//     refused
//   - Acquires records on the partitions of the session that this broker leads,
//     and returns the log batches that hold any of them
//   - With nothing to acquire, or less than MinBytes, waits up to MaxWaitMillis
//   - Under share.isolation.level=read_committed reads up to the last stable
//     offset and never delivers aborted records or control batches: they are
//     archived, so that the start offset passes them
//
// Version notes:
//   - v1: MaxRecords, BatchSize, AcquisitionLockTimeoutMillis (KIP-932)
//   - v2: ShareAcquireMode (KIP-1206), IsRenewAck (KIP-1222)

// fetchFallback is how often a waiting fetch looks at the log without having
// been told of new records.
const fetchFallback = 500 * time.Millisecond

// shareAcquireModeStrict is the ShareAcquireMode that never exceeds MaxRecords.
const shareAcquireModeStrict = 1

// validMemberID reports whether a member ID may be in a request.
func validMemberID(id string) bool { return id != "" && len(id) <= 36 }

func (p *plane) handleShareFetch(ctx context.Context, c caller, req *kmsg.ShareFetchRequest) (kmsg.Response, error) {
	resp := req.ResponseKind().(*kmsg.ShareFetchResponse)
	refuse := func(code int16) (kmsg.Response, error) {
		resp.ErrorCode, resp.ErrorMessage = code, message(code)
		return resp, nil
	}
	group, member := stringOf(req.GroupID), stringOf(req.MemberID)
	if group == "" {
		return refuse(kerr.InvalidRequest.Code)
	}
	if !p.k.authorized(c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeGroup, group) {
		return refuse(kerr.GroupAuthorizationFailed.Code)
	}
	if !validMemberID(member) {
		return refuse(kerr.InvalidRequest.Code)
	}
	acks := acksOfFetch(req.Topics)
	if req.IsRenewAck && (len(acks) == 0 || req.MaxBytes != 0 || req.MinBytes != 0 || req.MaxRecords != 0 || req.MaxWaitMillis != 0) {
		return refuse(kerr.InvalidRequest.Code)
	}

	session, code := p.fetchSession(c, sessionKey{group, member, c.broker}, req, len(acks) > 0)
	if code != 0 {
		return refuse(code)
	}
	resp.AcquisitionLockTimeoutMillis = int32(p.lockDuration(group) / time.Millisecond)
	b := newFetchResponse(resp)
	acked := p.acknowledge(ctx, c, group, member, acks, req.IsRenewAck)
	if req.ShareSessionEpoch == -1 {
		p.closeSession(session)
	} else if !req.IsRenewAck {
		p.fetchInto(ctx, c, session, req, b)
	}
	for _, a := range acked {
		part := b.partition(a.topicID, a.partition)
		part.AcknowledgeErrorCode, part.AcknowledgeErrorMessage = a.code, message(a.code)
		if a.code == kerr.NotLeaderForPartition.Code {
			part.CurrentLeader.LeaderID, part.CurrentLeader.LeaderEpoch = a.leader, a.leaderEpoch
		}
	}
	b.finish(p.k.nodes())
	return resp, nil
}

func stringOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// fetchSession opens the session of a ShareFetch, or continues it.
func (p *plane) fetchSession(c caller, key sessionKey, req *kmsg.ShareFetchRequest, acks bool) (*shareSession, int16) {
	var add, forget []sessionPartition
	for _, t := range req.Topics {
		for _, rp := range t.Partitions {
			add = append(add, sessionPartition{t.TopicID, rp.Partition})
		}
	}
	for _, t := range req.ForgottenTopicsData {
		for _, n := range t.Partitions {
			forget = append(forget, sessionPartition{t.TopicID, n})
		}
	}
	switch req.ShareSessionEpoch {
	case 0:
		if acks {
			return nil, kerr.InvalidRequest.Code
		}
		return p.sessions.open(key, c.conn, add, int(p.brokerInt("group.share.max.share.sessions", 2000)))
	case -1:
		s := p.sessions.find(key)
		if s == nil {
			return nil, kerr.ShareSessionNotFound.Code
		}
		return s, 0
	}
	s, code := p.sessions.advance(key, req.ShareSessionEpoch)
	if code == 0 {
		s.change(add, forget)
	}
	return s, code
}

// closeSession ends a session as its member asked for.
func (p *plane) closeSession(s *shareSession) {
	if p.sessions.remove(s) {
		p.releaseSession(s)
	}
}

// fetchTarget is one partition of a fetch.
type fetchTarget struct {
	sessionPartition
	topic string
	lp    *leaderPartition
}

// fetchInto acquires records for the session and puts them into the response.
func (p *plane) fetchInto(ctx context.Context, c caller, s *shareSession, req *kmsg.ShareFetchRequest, b *fetchResponse) {
	f := &shareFetch{
		p: p, c: c, session: s, b: b,
		deadline:   p.cfg.now().Add(time.Duration(req.MaxWaitMillis) * time.Millisecond),
		minBytes:   int(req.MinBytes),
		maxBytes:   int(req.MaxBytes),
		maxRecords: int(req.MaxRecords),
		batchSize:  int(req.BatchSize),
		strict:     req.ShareAcquireMode == shareAcquireModeStrict,
		committed:  p.readCommitted(s.key.group),
		waiter:     newFetchWaiter(),
	}
	targets := f.targets(ctx)
	p.watch(f.waiter, targets) // before the first look, so that nothing is missed
	defer p.unwatch(f.waiter, targets)
	for len(targets) > 0 {
		last := f.moved || !p.cfg.now().Before(f.deadline)
		if f.acquireAll(ctx, targets, last) || last || f.moved || !f.wait(ctx) {
			break
		}
	}
	// What the member did not hear of yet, it hears now, even if nothing came.
	for _, sp := range s.list() {
		part := b.existing(sp.topicID, sp.partition)
		var code int16
		if part != nil {
			code = part.ErrorCode
		}
		if s.respond(sp, code, part != nil) {
			b.partition(sp.topicID, sp.partition)
		}
	}
}

// shareFetch is a ShareFetch under way.
type shareFetch struct {
	p        *plane
	c        caller
	session  *shareSession
	b        *fetchResponse
	deadline time.Time
	waiter   *fetchWaiter

	minBytes, maxBytes int
	maxRecords         int
	batchSize          int
	strict, committed  bool

	moved bool // some partition has another leader now: tell at once
}

// targets returns the partitions of the session that can be fetched here; the
// others get their error.
func (f *shareFetch) targets(ctx context.Context) []*fetchTarget {
	var out []*fetchTarget
	for _, sp := range f.session.list() {
		t := &fetchTarget{sessionPartition: sp}
		topic, ok := f.p.k.topicByID(sp.topicID)
		if !ok {
			f.fail(t, kerr.UnknownTopicID.Code)
			continue
		}
		t.topic = topic.name
		if !f.p.k.authorized(f.c, kmsg.ACLOperationRead, kmsg.ACLResourceTypeTopic, topic.name) {
			f.fail(t, kerr.TopicAuthorizationFailed.Code)
			continue
		}
		lp, code := f.p.lead(ctx, shareStateKey{f.session.key.group, sp.topicID, sp.partition}, topic.name, f.c.broker)
		if code != 0 {
			f.fail(t, code)
			continue
		}
		t.lp = lp
		out = append(out, t)
	}
	return out
}

// fail puts an error into the response.
func (f *shareFetch) fail(t *fetchTarget, code int16) {
	part := f.b.partition(t.topicID, t.partition)
	part.ErrorCode, part.ErrorMessage = code, message(code)
	if code == kerr.NotLeaderForPartition.Code {
		f.moved = true
		if info, ok := f.p.k.partition(t.topic, t.partition); ok {
			part.CurrentLeader.LeaderID, part.CurrentLeader.LeaderEpoch = info.leader, info.leaderEpoch
		}
	}
}

// wait returns when there may be something new, false when nothing will come.
func (f *shareFetch) wait(ctx context.Context) bool {
	timer := time.NewTimer(min(fetchFallback, f.deadline.Sub(f.p.cfg.now())))
	defer timer.Stop()
	select {
	case <-f.waiter.woken:
		return true
	case <-timer.C:
		return true
	case <-f.session.done:
	case <-f.c.gone:
	case <-ctx.Done():
	case <-f.p.ctx.Done():
	}
	return false
}

// acquireAll acquires on all targets what it can, true if that was anything.
// Unless it is the last try it leaves everything alone while less than MinBytes
// could be returned.
func (f *shareFetch) acquireAll(ctx context.Context, targets []*fetchTarget, last bool) bool {
	if !last && f.minBytes > 1 && f.available(ctx, targets) < min(f.minBytes, f.maxBytes) {
		return false
	}
	records, size := 0, 0
	for i, t := range targets {
		if records >= f.maxRecords || i > 0 && size >= f.maxBytes {
			break
		}
		// Each partition may use an equal share of what is left, and one
		// batch in any case.
		budget := (f.maxBytes - size) / (len(targets) - i)
		got, code := f.acquire(ctx, t, f.maxRecords-records, budget)
		if code == kerr.NotLeaderForPartition.Code && f.relead(ctx, t) {
			got, code = f.acquire(ctx, t, f.maxRecords-records, budget)
		}
		if code != 0 {
			f.fail(t, code)
			continue
		}
		for _, r := range got.ranges {
			records += int(r.last - r.first + 1)
		}
		size += len(got.records)
		if len(got.ranges) > 0 {
			f.b.addRecords(t.sessionPartition, got)
		}
	}
	return records > 0
}

// relead takes up a target again whose leader epoch rose while the leader is
// still this broker.
func (f *shareFetch) relead(ctx context.Context, t *fetchTarget) bool {
	lp, code := f.p.lead(ctx, t.lp.key, t.topic, f.c.broker)
	if code != 0 || lp == t.lp {
		return false
	}
	t.lp = lp
	f.p.watch(f.waiter, []*fetchTarget{t})
	return true
}

// acquired is what a fetch got of one partition.
type acquired struct {
	records []byte
	ranges  []acquiredRange
}

// acquire acquires records on one partition.
func (f *shareFetch) acquire(ctx context.Context, t *fetchTarget, maxRecords, maxBytes int) (acquired, int16) {
	lp := t.lp
	select {
	case lp.read <- struct{}{}:
	case <-ctx.Done():
		return acquired{}, 0
	case <-f.session.done:
		return acquired{}, 0
	}
	defer func() { <-lp.read }()
	for {
		from, end, code := f.fetchOffset(ctx, t)
		if code != 0 || from < 0 {
			return acquired{}, code
		}
		batches, code := f.readLog(ctx, t, from, end, maxBytes)
		if code != 0 || len(batches) == 0 {
			return acquired{}, code
		}
		got, more, code := f.take(ctx, t, from, batches, maxRecords)
		if code != 0 || len(got.ranges) > 0 || !more {
			return got, code
		}
	}
}

// fetchOffset returns the offset from which records can be acquired, -1 if none
// can, and where the log ends for this fetch.
func (f *shareFetch) fetchOffset(ctx context.Context, t *fetchTarget) (from, end int64, code int16) {
	lp := t.lp
	info, ok := f.p.k.partition(t.topic, t.partition)
	switch {
	case !ok:
		return -1, 0, kerr.UnknownTopicOrPartition.Code
	case info.leader != f.c.broker || info.leaderEpoch != lp.leaderEpoch:
		return -1, 0, kerr.NotLeaderForPartition.Code
	}
	from, start, code := f.next(lp)
	if code == 0 && start < info.logStartOffset {
		// Records were deleted from the log: there is nothing to deliver.
		if code = f.p.truncate(ctx, lp, info.logStartOffset); code == 0 {
			from, _, code = f.next(lp)
		}
	}
	end = info.highWatermark
	if f.committed {
		end = info.lastStableOffset
	}
	if code != 0 || from >= end {
		return -1, end, code
	}
	return from, end, 0
}

// next returns where lp can acquire next, -1 if its record locks are used up,
// and its start offset.
func (f *shareFetch) next(lp *leaderPartition) (from, start int64, code int16) {
	lim := f.p.limits(lp.key.group)
	lp.mu.Lock()
	defer lp.mu.Unlock()
	if lp.retired {
		return -1, 0, kerr.NotLeaderForPartition.Code
	}
	start = lp.sp.startOffset()
	if !lp.sp.canAcquire(lim) {
		return -1, start, 0
	}
	return lp.sp.nextFetchOffset(), start, 0
}

// truncate moves the start offset of a share-partition to the start of the log.
func (p *plane) truncate(ctx context.Context, lp *leaderPartition, logStart int64) int16 {
	if code := p.begin(ctx, lp); code != 0 {
		return code
	}
	defer p.end(lp, false)
	o := &operation{lp: lp, pending: true}
	lp.mu.Lock()
	o.ch = lp.sp.truncateTo(logStart)
	lp.mu.Unlock()
	p.persist([]*operation{o}, false)
	return o.code
}

// readLog returns batches from offset on, from the window of lp or the log,
// which goes on to end.
func (f *shareFetch) readLog(ctx context.Context, t *fetchTarget, offset, end int64, maxBytes int) ([]logBatch, int16) {
	lp := t.lp
	if w := lp.window; w == nil || w.committed != f.committed || !w.covers(offset) || w.next() < end && w.size(offset) < min(f.minBytes, maxBytes, logReadBytes) {
		got, err := f.p.k.fetch(ctx, t.topic, t.partition, offset, logReadBytes, f.committed)
		if err != nil {
			lp.window = nil
			if errors.Is(err, kerr.OffsetOutOfRange) || ctx.Err() != nil {
				return nil, 0 // the log was cut meanwhile: the next look sees it
			}
			f.p.cfg.logf("share-partition %s: %v", lp.key, err)
			return nil, fetchCode(err)
		}
		w, err := newLogWindow(offset, got.records, f.committed, got.aborted)
		if err != nil {
			f.p.cfg.logf("share-partition %s: %v", lp.key, err)
			return nil, kerr.UnknownServerError.Code
		}
		lp.window = w
		if !w.covers(offset) {
			lp.window = nil
			return nil, 0
		}
	}
	return lp.window.at(offset, maxBytes), 0
}

// fetchCode returns the error code to answer when the log could not be read.
func fetchCode(err error) int16 {
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		return ke.Code
	}
	return kerr.UnknownServerError.Code
}

// take acquires records of batches, which were read from offset on. more says
// that nothing was acquired but another look may find something.
func (f *shareFetch) take(ctx context.Context, t *fetchTarget, from int64, batches []logBatch, maxRecords int) (got acquired, more bool, code int16) {
	lp := t.lp
	if code := f.p.begin(ctx, lp); code != 0 {
		return acquired{}, false, code
	}
	defer f.p.end(lp, false)

	deliver := make([]span, 0, len(batches))
	var gaps []span // at the head of what was read, where nothing is to deliver
	if batches[0].first > from {
		gaps = append(gaps, span{from, batches[0].first - 1})
	}
	for _, b := range batches {
		switch {
		case !b.hidden:
			deliver = append(deliver, b.span)
		case len(deliver) == 0:
			gaps = append(gaps, span{max(from, b.first), b.last})
		}
	}
	lim := f.p.limits(lp.key.group)
	o := &operation{lp: lp, ch: change{undo: func() {}}, keep: true}
	lp.mu.Lock()
	if f.session.closed() {
		lp.mu.Unlock()
		return acquired{}, false, 0
	}
	if len(gaps) > 0 {
		o.ch = lp.sp.archiveGaps(gaps)
	}
	got.ranges = lp.sp.acquire(f.p.cfg.now(), f.session.key.member, deliver, maxRecords, f.strict, lim)
	next := lp.sp.nextFetchOffset()
	lp.mu.Unlock()
	f.p.persist([]*operation{o}, false)
	if o.code == kerr.NotLeaderForPartition.Code {
		return acquired{}, false, o.code
	}
	// Any other failure leaves the gaps unwritten: who reads them again
	// archives them again.
	if len(got.ranges) == 0 {
		return got, next != from, 0
	}
	got.records = lp.window.bytes(batches, got.ranges)
	got.ranges = splitRanges(got.ranges, batches, f.batchSize)
	if next >= lp.window.next() {
		lp.window = nil // used up
	}
	return got, false, 0
}

// available returns how many bytes of log a fetch could return now, which is
// an estimate, as it is on a broker: from the first record to acquire on.
func (f *shareFetch) available(ctx context.Context, targets []*fetchTarget) int {
	size := 0
	for _, t := range targets {
		select {
		case t.lp.read <- struct{}{}:
		case <-ctx.Done():
			return size
		}
		from, end, code := f.fetchOffset(ctx, t)
		if code == 0 && from >= 0 {
			_, code = f.readLog(ctx, t, from, end, f.maxBytes)
			size += t.lp.window.size(from)
		}
		if code != 0 {
			size = f.maxBytes // an error is worth an answer
		}
		<-t.lp.read
	}
	return size
}

// fetchResponse builds a ShareFetch response.
type fetchResponse struct {
	resp  *kmsg.ShareFetchResponse
	parts map[sessionPartition]*kmsg.ShareFetchResponseTopicPartition
	order []sessionPartition
}

func newFetchResponse(resp *kmsg.ShareFetchResponse) *fetchResponse {
	return &fetchResponse{resp: resp, parts: make(map[sessionPartition]*kmsg.ShareFetchResponseTopicPartition)}
}

func (b *fetchResponse) existing(topicID [16]byte, partition int32) *kmsg.ShareFetchResponseTopicPartition {
	return b.parts[sessionPartition{topicID, partition}]
}

// partition returns the entry of a partition, which it adds if need be.
func (b *fetchResponse) partition(topicID [16]byte, partition int32) *kmsg.ShareFetchResponseTopicPartition {
	sp := sessionPartition{topicID, partition}
	if part := b.parts[sp]; part != nil {
		return part
	}
	part := kmsg.NewShareFetchResponseTopicPartition()
	part.Partition = partition
	part.CurrentLeader.LeaderID, part.CurrentLeader.LeaderEpoch = -1, -1 // 0 is a broker
	b.parts[sp] = &part
	b.order = append(b.order, sp)
	return &part
}

func (b *fetchResponse) addRecords(sp sessionPartition, got acquired) {
	part := b.partition(sp.topicID, sp.partition)
	part.ErrorCode, part.ErrorMessage = 0, nil // of a look before this one
	part.Records = got.records
	part.AcquiredRecords = make([]kmsg.ShareFetchResponseTopicPartitionAcquiredRecord, len(got.ranges))
	for i, r := range got.ranges {
		ar := &part.AcquiredRecords[i]
		ar.FirstOffset, ar.LastOffset, ar.DeliveryCount = r.first, r.last, r.deliveryCount
	}
}

// finish puts the entries in the response, by topic, and the brokers that they
// name as leaders.
func (b *fetchResponse) finish(nodes []node) {
	index := make(map[[16]byte]int)
	leaders := make(map[int32]bool)
	for _, sp := range b.order {
		i, ok := index[sp.topicID]
		if !ok {
			i = len(b.resp.Topics)
			index[sp.topicID] = i
			t := kmsg.NewShareFetchResponseTopic()
			t.TopicID = sp.topicID
			b.resp.Topics = append(b.resp.Topics, t)
		}
		part := b.parts[sp]
		b.resp.Topics[i].Partitions = append(b.resp.Topics[i].Partitions, *part)
		leaders[part.CurrentLeader.LeaderID] = true
	}
	for _, n := range nodes {
		if leaders[n.id] {
			e := kmsg.NewShareFetchResponseNodeEndpoint()
			e.NodeID, e.Host, e.Port = n.id, n.host, n.port
			b.resp.NodeEndpoints = append(b.resp.NodeEndpoints, e)
		}
	}
}

// acksOfFetch returns the partitions of a ShareFetch that carry
// acknowledgements.
func acksOfFetch(topics []kmsg.ShareFetchRequestTopic) []partitionAcks {
	var out []partitionAcks
	for _, t := range topics {
		for _, rp := range t.Partitions {
			if len(rp.AcknowledgementBatches) == 0 {
				continue
			}
			a := partitionAcks{sessionPartition: sessionPartition{t.TopicID, rp.Partition}}
			a.batches = slices.Grow(a.batches, len(rp.AcknowledgementBatches))
			for _, b := range rp.AcknowledgementBatches {
				a.batches = append(a.batches, ackBatch{span{b.FirstOffset, b.LastOffset}, b.AcknowledgeTypes})
			}
			out = append(out, a)
		}
	}
	return out
}
