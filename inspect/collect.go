package inspect

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// CollectOptions says how to collect; the zero value is right for one look.
type CollectOptions struct {
	// Dialect is that of [cluster.Config]: what to assume where ApiVersions is
	// ambiguous; "" assumes nothing.
	Dialect string
	// Previous is earlier evidence of the same cluster, from which follows since
	// when something has not moved; nil: there is none.
	Previous *Evidence
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
}

// Collect reads every source that this principal may read, and changes nothing:
//
//  1. the brokers and their versions, the topics;
//  2. the transactions that are open, from every broker;
//  3. share groups with their offsets, and beside them __share_group_state to its
//     high watermark;
//  4. from the share coordinators, the states that hold TX_PENDING by the topic,
//     or where the topic cannot be read those of all share-partitions that are
//     not done;
//  5. once more what does not fit together, until it does or stays as it is.
//
// What could not be seen is in the evidence. Collect fails only with the error of
// ctx, or when no broker can be reached; then it may return *cluster.DialError or
// *cluster.AuthError.
func Collect(ctx context.Context, cl Cluster, opts CollectOptions) (*Evidence, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	c := &collector{
		cl: newSparing(cl), opts: opts,
		ev:      &Evidence{Time: opts.Now()},
		written: make(map[ShareKey]ShareState), asked: make(map[ShareKey]*ShareState),
	}
	for _, step := range []func(context.Context) error{c.brokersAndTopics, c.transactions, c.groupsAndStates, c.lookAgain, c.topicsOfStates} {
		err := step(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
	}
	c.ev.States, c.ev.Gaps = c.states(), c.gaps.gaps
	c.ev.since(opts.Previous)
	return c.ev, nil
}

// defaultSweep is Kafka's default of the config below.
const defaultSweep = 10 * time.Second

const sweepConfig = "transaction.abort.timed.out.transaction.cleanup.interval.ms"

// collector is the evidence in the making. Its steps run one after the other.
type collector struct {
	cl   Cluster
	opts CollectOptions
	ev   *Evidence
	gaps gapList

	brokers []cluster.BrokerVersions // that answer
	topic   *cluster.Topic           // __share_group_state; nil: there is none, or it is hidden
	unread  []int32                  // its partitions that could not be read
	// coordinators are the partitions of __transaction_state; nil: not known.
	coordinators []cluster.Partition

	// The states that hold TX_PENDING, by the topic.
	written map[ShareKey]ShareState
	// What the share coordinators say of a state; nil: nothing in it is pending.
	// Where they were not asked, or did not answer, there is no entry.
	asked map[ShareKey]*ShareState
	// denied: the share coordinators may not be asked.
	denied bool
}

// brokersAndTopics finds out who answers, what may be seen and what topics there
// are.
func (c *collector) brokersAndTopics(ctx context.Context) error {
	d, err := c.cl.Describe(ctx)
	if err != nil {
		return err
	}
	c.ev.ClusterID, c.ev.Support = d.ClusterID, cluster.Detect(d.Brokers, c.opts.Dialect)
	for _, b := range d.Brokers {
		if b.Err != nil {
			// What it leads and coordinates is nowhere else, or soon will be.
			c.gaps.add(silentGap(SourceMetadata, b))
			continue
		}
		c.brokers = append(c.brokers, b)
	}
	p := prober{cl: c.cl, brokers: c.brokers}
	var topicGap gapList
	var wg sync.WaitGroup
	wg.Go(func() { p.transactionalIDs(ctx) })
	wg.Go(func() { p.transactionTopic(ctx) })
	wg.Go(func() { p.clusterAction(ctx) })
	wg.Go(func() { c.topic = p.stateTopic(ctx) })
	wg.Go(func() { topicGap.add(c.topics(ctx)...) })
	wg.Go(func() { c.ev.Sweep = readSweep(ctx, c.cl, c.brokers) })
	wg.Wait()
	c.gaps.add(p.gaps.sorted()...)
	c.gaps.add(topicGap.sorted()...)
	c.denied = slices.ContainsFunc(c.gaps.gaps, func(g Gap) bool { return g.ACL != nil && *g.ACL == aclClusterAction })
	if c.topic != nil {
		c.ev.StatePartitions = int32(len(c.topic.Partitions))
	}
	return nil
}

// topics names all topics.
func (c *collector) topics(ctx context.Context) []Gap {
	all, err := c.cl.AllTopics(ctx)
	if err != nil {
		return []Gap{ErrorGap(SourceMetadata, "the topics could not be described", err)}
	}
	c.ev.Topics = make(map[[16]byte]string, len(all))
	for _, t := range all {
		c.ev.Topics[t.ID] = t.Name
		if t.Name == transactionTopic {
			c.coordinators = t.Partitions
		}
	}
	return nil
}

// readSweep reads how often coordinators look for transactions that are over
// their timeout, from the first broker that tells; Kafka's default where none
// does.
func readSweep(ctx context.Context, cl Cluster, brokers []cluster.BrokerVersions) time.Duration {
	for _, b := range brokers {
		if b.Err != nil {
			continue
		}
		req := kmsg.NewPtrDescribeConfigsRequest()
		r := kmsg.NewDescribeConfigsRequestResource()
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(b.NodeID))
		r.ConfigNames = []string{sweepConfig}
		req.Resources = append(req.Resources, r)
		resp, err := ask[*kmsg.DescribeConfigsResponse](ctx, cl, b.NodeID, req)
		if err != nil {
			continue
		}
		for _, r := range resp.Resources {
			for _, cfg := range r.Configs {
				if cfg.Name != sweepConfig || cfg.Value == nil {
					continue
				}
				if ms, err := strconv.ParseInt(*cfg.Value, 10, 32); err == nil && ms > 0 {
					return time.Duration(ms) * time.Millisecond
				}
			}
		}
		break
	}
	return defaultSweep
}

// transactionTopic holds the state of transactions; the leader of a partition
// coordinates those in it.
const transactionTopic = "__transaction_state"

// mostLists is how often transactions are listed while their coordinators move.
const mostLists = 3

// transactions lists and describes the open transactions. One whose coordinator
// moves from a broker that was not asked yet to one that was is listed by neither,
// so the coordinators have to be the same before and after.
func (c *collector) transactions(ctx context.Context) error {
	for n := 1; ; n++ {
		txns, gaps, err := ListTransactions(ctx, c.cl, c.brokers, TransactionQuery{States: OpenStates(), Describe: true, Now: c.opts.Now})
		if err != nil {
			return err
		}
		before := c.coordinators
		c.coordinators = c.readCoordinators(ctx)
		moved := before != nil && c.coordinators != nil && !slices.Equal(before, c.coordinators)
		if moved && n < mostLists {
			continue
		}
		c.ev.Transactions = txns
		c.gaps.add(gaps...)
		if moved {
			c.gaps.add(Gap{
				Source: SourceListTransactions, Advice: "look again",
				Reason: "the coordinators of transactions moved each time that these were listed, so some may be missing",
			})
		}
		return nil
	}
}

// readCoordinators returns who coordinates transactions; nil where that is not
// told, which is no gap by itself.
func (c *collector) readCoordinators(ctx context.Context) []cluster.Partition {
	if c.coordinators == nil {
		return nil
	}
	topics, err := c.cl.Topics(ctx, transactionTopic)
	if err != nil {
		return nil
	}
	return topics[transactionTopic].Partitions
}

// groupsAndStates reads share groups and, beside them, the topic of their states.
// Both come after the transactions: what those had staged when they were listed
// is in the topic, unless it is resolved.
func (c *collector) groupsAndStates(ctx context.Context) error {
	var groupGaps, topicGaps []Gap
	var groupErr, topicErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		c.ev.Groups, groupGaps, groupErr = ListShareGroups(ctx, c.cl, c.brokers, GroupQuery{Members: true, Offsets: true})
	})
	wg.Go(func() {
		if c.topic != nil {
			var read topicStates
			read, topicErr = c.readTopic(ctx, partitionsOf(*c.topic))
			c.ev.StatesRead, c.unread, topicGaps = read.read, read.unread, read.gaps
		}
	})
	wg.Wait()
	c.gaps.add(groupGaps...)
	c.gaps.add(topicGaps...)
	if err := cmp.Or(groupErr, topicErr); err != nil {
		return err
	}
	_, err := c.askStates(ctx, append(slices.Collect(maps.Keys(c.written)), c.unreadKeys()...))
	return err
}

func partitionsOf(t cluster.Topic) []int32 {
	out := make([]int32, 0, len(t.Partitions))
	for _, p := range t.Partitions {
		out = append(out, p.Partition)
	}
	return out
}

// readTopic reads partitions of the topic, for the first time or again.
func (c *collector) readTopic(ctx context.Context, partitions []int32) (topicStates, error) {
	read, err := readStateTopic(ctx, c.cl, *c.topic, partitions)
	if err != nil {
		return read, err
	}
	for k, s := range c.written {
		if slices.Contains(partitions, s.StatePartition) && !slices.Contains(read.unread, s.StatePartition) {
			delete(c.written, k)
		}
	}
	for _, s := range read.pending {
		c.written[s.Key()] = s
	}
	c.ev.Persists = c.ev.Persists || read.persists
	return read, nil
}

// unreadKeys returns the share-partitions that are not done and whose state is in
// a partition of the topic that could not be read. Those that are done, by their
// lag, have nothing pending.
func (c *collector) unreadKeys() []ShareKey {
	var keys []ShareKey
	if len(c.unread) == 0 {
		return nil
	}
	for _, g := range c.ev.Groups {
		for _, p := range g.Partitions {
			n := wire.ShareStatePartition(g.GroupID, p.TopicID, p.Partition, c.ev.StatePartitions)
			if p.Lag != 0 && slices.Contains(c.unread, n) {
				keys = append(keys, ShareKey{g.GroupID, p.TopicID, p.Partition})
			}
		}
	}
	return keys
}

// askStates asks the share coordinators for states, and returns which they told.
func (c *collector) askStates(ctx context.Context, keys []ShareKey) (map[ShareKey]bool, error) {
	if c.denied || len(keys) == 0 {
		return nil, nil
	}
	var mu sync.Mutex
	told := make(map[ShareKey]bool)
	r := newStateReader(c.cl, func(k ShareKey, s *ShareState) {
		mu.Lock()
		defer mu.Unlock()
		if _, again := c.asked[k]; !again && s != nil && slices.Contains(c.unread, s.StatePartition) {
			c.ev.StatesRead++
		}
		if s != nil && !s.pending() {
			s = nil
		}
		told[k], c.asked[k] = true, s
		c.ev.Persists = c.ev.Persists || s != nil && s.namesOwner()
	})
	err := r.read(ctx, keys)
	c.gaps.add(r.gaps.sorted()...)
	return told, err
}

// pending reports whether the state holds records in TX_PENDING.
func (s *ShareState) pending() bool {
	return slices.ContainsFunc(s.Batches, func(b wire.StateBatch) bool { return b.DeliveryState == wire.TxPending })
}

func (s *ShareState) namesOwner() bool {
	return slices.ContainsFunc(s.Batches, func(b wire.StateBatch) bool {
		return b.DeliveryState == wire.TxPending && !b.Staged.IsNone()
	})
}

// states returns the states that hold TX_PENDING by the newest that is known.
func (c *collector) states() []ShareState {
	var out []ShareState
	for k, w := range c.written {
		s, ok := c.asked[k]
		switch {
		case !ok:
			out = append(out, w)
		case s != nil:
			out = append(out, joinStates(w, *s))
		}
	}
	for k, s := range c.asked {
		if _, ok := c.written[k]; !ok && s != nil {
			out = append(out, *s)
		}
	}
	sortStates(out)
	return out
}

// joinStates returns what a share coordinator says of a state, with what only the
// topic tells: since when owners have records pending, and who they are where the
// coordinator does not say.
func joinStates(written, asked ShareState) ShareState {
	out := asked
	out.Batches = wire.MergeStateBatches(asked.Batches, ownersOf(written.Batches, asked.Batches), -1)
	out.Written, out.Staged = time.Time{}, nil
	for _, s := range written.Staged {
		if !slices.ContainsFunc(out.Batches, func(b wire.StateBatch) bool { return b.DeliveryState == wire.TxPending && s.owns(b.Staged) }) {
			continue
		}
		out.Staged = append(out.Staged, s)
		if out.Written.IsZero() || s.Since.Before(out.Written) {
			out.Written = s.Since
		}
	}
	if slices.Equal(pendingBatches(written.Batches), pendingBatches(out.Batches)) {
		out.Sources = append(slices.Clone(written.Sources), asked.Sources...)
	}
	return out
}

func pendingBatches(batches []wire.StateBatch) []wire.StateBatch {
	var out []wire.StateBatch
	for _, b := range batches {
		if b.DeliveryState == wire.TxPending {
			out = append(out, b)
		}
	}
	return out
}

// ownersOf returns the parts of the pending batches in which asked names no owner
// and written does, with that owner.
func ownersOf(written, asked []wire.StateBatch) []wire.StateBatch {
	var out []wire.StateBatch
	for _, a := range pendingBatches(asked) {
		if !a.Staged.IsNone() {
			continue
		}
		for _, w := range pendingBatches(written) {
			b := a
			b.FirstOffset, b.LastOffset = max(a.FirstOffset, w.FirstOffset), min(a.LastOffset, w.LastOffset)
			b.Staged = w.Staged
			if b.FirstOffset <= b.LastOffset && !b.Staged.IsNone() {
				out = append(out, b)
			}
		}
	}
	return out
}

// idsBatch is how many topics are described by ID with one request.
const idsBatch = 500

// topicsOfStates finds out whether topics whose names are not known exist: one
// that may not be described is hidden, and not deleted.
func (c *collector) topicsOfStates(ctx context.Context) error {
	if c.ev.Topics == nil {
		return nil
	}
	var ids [][16]byte
	seen := make(map[[16]byte]bool)
	for _, s := range c.states() {
		if _, ok := c.ev.Topics[s.TopicID]; !ok && !seen[s.TopicID] {
			seen[s.TopicID] = true
			ids = append(ids, s.TopicID)
		}
	}
	for batch := range slices.Chunk(ids, idsBatch) {
		req := kmsg.NewPtrMetadataRequest()
		for _, id := range batch {
			t := kmsg.NewMetadataRequestTopic()
			t.TopicID = id
			req.Topics = append(req.Topics, t)
		}
		kresp, err := c.cl.Request(ctx, req)
		if err != nil {
			c.gaps.add(ErrorGap(SourceMetadata, "topics could not be described by their IDs", err))
			return nil
		}
		for _, t := range kresp.(*kmsg.MetadataResponse).Topics {
			switch {
			case t.Topic != nil && t.ErrorCode != kerr.UnknownTopicID.Code && t.ErrorCode != kerr.UnknownTopicOrPartition.Code:
				c.ev.Topics[t.TopicID] = *t.Topic // it was created since
			case t.ErrorCode == kerr.TopicAuthorizationFailed.Code:
				c.ev.Topics[t.TopicID] = ""
			}
		}
	}
	return nil
}

// since sets since when something is as it is, by earlier evidence of the same
// cluster.
func (ev *Evidence) since(prev *Evidence) {
	if prev == nil || prev.ClusterID != ev.ClusterID {
		return
	}
	prepared := make(map[string]*Transaction)
	for i := range prev.Transactions {
		if t := &prev.Transactions[i]; t.Preparing() {
			prepared[t.TransactionalID] = t
		}
	}
	for i := range ev.Transactions {
		t := &ev.Transactions[i]
		p := prepared[t.TransactionalID]
		if p == nil || p.State != t.State || p.ProducerID != t.ProducerID || p.ProducerEpoch != t.ProducerEpoch {
			continue
		}
		if t.PrepareSince = p.PrepareSince; t.PrepareSince.IsZero() {
			t.PrepareSince = prev.Time
		}
	}
	before := make(map[ShareKey]*SharePartition)
	for _, g := range prev.Groups {
		for i := range g.Partitions {
			if p := &g.Partitions[i]; p.Lag > 0 {
				before[ShareKey{g.GroupID, p.TopicID, p.Partition}] = p
			}
		}
	}
	for _, g := range ev.Groups {
		for i := range g.Partitions {
			p := &g.Partitions[i]
			b := before[ShareKey{g.GroupID, p.TopicID, p.Partition}]
			if b == nil || p.Lag <= 0 || b.StartOffset != p.StartOffset {
				continue
			}
			if p.UnmovedSince = b.UnmovedSince; p.UnmovedSince.IsZero() {
				p.UnmovedSince = prev.Time
			}
		}
	}
}

// ErrorGap returns the gap that an error leaves which is of no broker in
// particular. what says what could not be done, as a sentence without a full stop.
func ErrorGap(source Source, what string, err error) Gap {
	return Gap{
		Source: source, Reason: what + ": " + cluster.Name(err), KafkaError: kafkaError(err),
		Unanswered: isTimeout(err) || cluster.IsUnanswered(err), cause: err,
	}
}
