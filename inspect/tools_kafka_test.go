package inspect_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafka is a real Kafka 4.4 with topics, and a client that is listened to.
type kafka struct {
	*kafkatest.Cluster
	t   *testing.T
	cl  *cluster.Client
	tap *wiretap.Tap
}

func startKafka(t *testing.T, props map[string]string) *kafka {
	t.Helper()
	k := &kafka{Cluster: kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka44, Props: props}), t: t, tap: wiretap.New()}
	var err error
	if k.cl, err = cluster.Connect(t.Context(), cluster.Config{BootstrapServers: k.Bootstrap(), Dialer: k.tap.Dial}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.cl.Close)
	for topic, n := range map[string]int32{"orders": 3, "shipped": 2} {
		if _, err := kadm.NewClient(k.Client(t)).CreateTopic(t.Context(), n, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// tool runs one of Kafka's tools and returns the lines of its answer, each cut at
// blanks, without empty ones and without those that begin with a heading.
func (k *kafka) tool(heading, class string, args ...string) [][]string {
	k.t.Helper()
	out, err := k.Tool(k.t.Context(), class, args...)
	if err != nil {
		k.t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != heading {
			rows = append(rows, f)
		}
	}
	slices.SortFunc(rows, func(a, b []string) int { return slices.Compare(a, b) })
	return rows
}

// agree fails the test where kshare and a tool of Kafka's say different things.
func (k *kafka) agree(what string, kshare, tool [][]string) {
	k.t.Helper()
	slices.SortFunc(kshare, func(a, b []string) int { return slices.Compare(a, b) })
	lines := func(rows [][]string) string {
		var b strings.Builder
		for _, r := range rows {
			b.WriteString(strings.Join(r, " ") + "\n")
		}
		return b.String()
	}
	if len(tool) == 0 || lines(kshare) != lines(tool) {
		k.t.Errorf("%s: kshare says\n%sKafka's tool says\n%s", what, lines(kshare), lines(tool))
	}
}

// member joins a group and accepts n records.
func (k *kafka) member(group, topic string, n int) *share.Consumer {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 10*time.Minute)
	defer cancel()
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: k.Bootstrap(), ClientID: "member of " + group})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(cl.Close)
	if err := cl.SetGroupConfig(ctx, group, "share.auto.offset.reset", "earliest"); err != nil {
		k.t.Fatal(err)
	}
	m, err := share.NewConsumer(ctx, cl, share.Config{GroupID: group, Topics: []string{topic}, MaxRecords: 1})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = m.Close(context.WithoutCancel(k.t.Context())) })
	for n > 0 {
		b, err := m.Poll(ctx, n)
		if err == nil {
			n -= b.Len()
			err = m.Acknowledge(ctx, b, b.All(wire.Accept))
		}
		if err != nil {
			k.t.Fatal(err)
		}
	}
	return m
}

// settled describes groups once nothing in them changes any more: every member has
// heard of its assignment, and all is as it was a look before.
func (k *kafka) settled(groups ...string) *inspect.GroupReport {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 10*time.Minute)
	defer cancel()
	for before := ""; ; {
		r, err := inspect.DescribeGroups(ctx, k.cl, inspect.GroupOptions{GroupIDs: groups})
		if err != nil {
			k.t.Fatal(err)
		}
		rebalancing := slices.ContainsFunc(r.Groups, func(g inspect.GroupRow) bool {
			return slices.ContainsFunc(g.Members, func(m inspect.MemberRow) bool { return m.MemberEpoch != *g.GroupEpoch })
		})
		now, err := json.Marshal(r.Groups)
		if err != nil {
			k.t.Fatal(err)
		}
		if !rebalancing && string(now) == before {
			return r
		}
		before = string(now)
	}
}

func text[T any](p *T) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprint(*p)
}

// Members, epochs, states, offsets and lag are those that Kafka's own tool tells.
func TestKafkaShareGroupTool(t *testing.T) {
	k := startKafka(t, nil)
	p := k.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range int32(30) {
		if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Partition: i % 3, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	k.member("billing", "orders", 7)
	k.member("billing", "orders", 2)
	if err := k.member("audit", "orders", 4).Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.member("idle", "shipped", 0)
	k.tap.Reset()

	named := k.settled("idle", "billing", "audit")
	listed, err := inspect.DescribeGroups(t.Context(), k.cl, inspect.GroupOptions{})
	if err != nil || len(listed.Gaps)+len(named.Gaps) > 0 {
		t.Fatalf("error %v, gaps %+v and %+v", err, listed.Gaps, named.Gaps)
	}
	k.tap.ReadOnly(t)

	const tool = kafkatest.ShareGroupTool
	var states [][]string
	for _, g := range listed.Groups {
		states = append(states, []string{g.GroupID, *g.State})
	}
	k.agree("list", states, k.tool("GROUP", tool, "--list", "--state"))
	for _, g := range named.Groups {
		describe := func(view ...string) [][]string {
			t.Helper()
			return k.tool("GROUP", tool, append([]string{"--describe", "--verbose", "--group", g.GroupID}, view...)...)
		}
		state := describe("--state") // GROUP, COORDINATOR and (ID), STATE, GROUP-EPOCH, ASSIGNMENT-EPOCH, #MEMBERS
		for i := range state {
			state[i] = slices.Delete(state[i], 1, 2)
		}
		k.agree("state of "+g.GroupID, [][]string{{
			g.GroupID, "(" + text(g.Coordinator) + ")", text(g.State), text(g.GroupEpoch), text(g.AssignmentEpoch), text(g.MemberCount),
		}}, state)

		var offsets [][]string // GROUP, TOPIC, PARTITION, LEADER-EPOCH, START-OFFSET, LAG
		for _, s := range g.SharePartitions {
			leaderEpoch := text(s.LeaderEpoch)
			if s.StartOffset == nil {
				leaderEpoch = "-" // the tool leaves out all of what has no start
			}
			offsets = append(offsets, []string{g.GroupID, s.Topic, strconv.Itoa(int(s.Partition)), leaderEpoch, text(s.StartOffset), text(s.Lag)})
		}
		k.agree("offsets of "+g.GroupID, offsets, describe("--offsets"))

		if g.GroupID == "audit" { // the tool says in a sentence that there are none
			if *g.MemberCount != 0 || *g.State != "Empty" {
				t.Errorf("audit is %+v, want it empty", g)
			}
			continue
		}
		var members [][]string // GROUP, CONSUMER-ID, HOST, CLIENT-ID (in three words here), #PARTITIONS, MEMBER-EPOCH, ASSIGNMENT
		for _, m := range g.Members {
			var parts []string
			for _, a := range m.Assignment {
				for _, p := range a.Partitions {
					parts = append(parts, strconv.Itoa(int(p)))
				}
			}
			assignment := "-"
			if len(parts) > 0 {
				assignment = m.Topics[0] + ":" + strings.Join(parts, ",")
			}
			members = append(members, append(append([]string{g.GroupID, m.MemberID, m.ClientHost}, strings.Fields(m.ClientID)...),
				strconv.Itoa(len(parts)), strconv.Itoa(int(m.MemberEpoch)), assignment))
		}
		k.agree("members of "+g.GroupID, members, describe("--members"))
	}

	// What is persisted agrees with what was done. It is asked for again: the tool
	// takes its time, and the locks of the members may have run out meanwhile.
	billing := k.settled("billing").Groups[0]
	if *billing.Lag != 30-9 || *billing.RecordLockDurationMS != 30_000 || billing.DeadLetterQueue == nil || billing.DeadLetterQueue.Active || billing.TxPending != nil {
		t.Errorf("billing is %+v, %+v; want a lag of 21, a lock of 30 s, no dead-letter queue that is active, and no TX_PENDING", billing, billing.GroupDescription)
	}
	for _, s := range billing.SharePartitions {
		part, err := inspect.DescribePartition(t.Context(), k.cl, inspect.PartitionOptions{GroupID: "billing", Topic: "orders", Partition: s.Partition})
		if err != nil || len(part.Gaps) > 0 {
			t.Fatalf("error %v, gaps %+v", err, part.Gaps)
		}
		if !part.StateRead || text(part.StartOffset) != text(s.StartOffset) || text(part.Lag) != text(s.Lag) || *part.EndOffset != 10 {
			t.Errorf("share-partition %+v, want it to agree with %+v", part, s)
		}
		if s.Lag == nil {
			continue
		}
		done := *part.EndOffset - *part.StartOffset - *part.Lag
		for _, r := range part.Ranges {
			if r.RecordState.Terminal() {
				done -= r.Count
			}
		}
		if done != 0 {
			t.Errorf("share-partition %+v: the ranges that are done and the lag do not add up to what there is", part)
		}
	}
	k.tap.ReadOnly(t)
}

// transaction begins a transaction, produces a record, and ends it as told; nil
// leaves it open.
func (k *kafka) transaction(id string, end *kgo.TransactionEndTry) *kgo.Client {
	k.t.Helper()
	p := k.Client(k.t, kgo.TransactionalID(id), kgo.TransactionTimeout(5*time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	err := p.BeginTransaction()
	for _, r := range []*kgo.Record{{Topic: "orders", Partition: 1}, {Topic: "shipped"}, {Topic: "orders", Partition: 2}} {
		if err == nil {
			r.Value = []byte("x")
			err = p.ProduceSync(k.t.Context(), r).FirstErr()
		}
	}
	if err == nil && end != nil {
		err = p.EndTransaction(k.t.Context(), *end)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return p
}

// topicPartitionWords is how Kafka's tool writes partitions: orders-1,orders-2.
func topicPartitionWords(topics []inspect.TopicPartitions) []string {
	var words []string
	for _, t := range topics {
		for _, p := range t.Partitions {
			words = append(words, fmt.Sprintf("%s-%d", t.Topic, p))
		}
	}
	slices.Sort(words)
	return words
}

// Open, finished and hanging transactions are those that Kafka's own tool finds.
func TestKafkaTransactionTool(t *testing.T) {
	k := startKafka(t, map[string]string{"transaction.partition.verification.enable": "false"})
	commit, abort := kgo.TryCommit, kgo.TryAbort
	k.transaction("open-1", nil)
	k.transaction("open-2", nil)
	k.transaction("committed", &commit)
	k.transaction("aborted", &abort)
	ended := k.transaction("ended", &commit)
	pid, epoch, err := ended.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k.member("g", "orders", 0) // makes __consumer_offsets
	hourAgo := time.Now().Add(-time.Hour)
	k.AppendOpen(t, "orders", 0, pid, epoch, hourAgo)                   // its ID is known, and its transaction has ended
	k.AppendOpen(t, "shipped", 1, 424_242, 0, hourAgo)                  // nobody knows the producer
	k.AppendOpen(t, "__consumer_offsets", 2, 434_343, 7, hourAgo)       // in an internal topic
	k.AppendOpen(t, "orders", 2, 444_444, 0, time.Now().Add(time.Hour)) // by a clock that is ahead
	k.tap.Reset()

	const tool = kafkatest.TransactionTool
	all, err := inspect.DescribeTransactions(t.Context(), k.cl, inspect.TxnOptions{All: true})
	if err != nil || len(all.Gaps) > 0 {
		t.Fatalf("error %v, gaps %+v", err, all.Gaps)
	}
	var list [][]string // TransactionalId, Coordinator, ProducerId, TransactionState
	var ids []string
	for _, x := range all.Rows {
		ids = append(ids, x.TransactionalID)
		list = append(list, []string{x.TransactionalID, strconv.Itoa(int(x.Coordinator)), strconv.FormatInt(x.ProducerID, 10), x.State})
	}
	k.agree("list", list, k.tool("TransactionalId", tool, "list"))

	named, err := inspect.DescribeTransactions(t.Context(), k.cl, inspect.TxnOptions{TransactionalIDs: ids})
	if err != nil || len(named.Gaps) > 0 || len(named.Rows) != 5 {
		t.Fatalf("error %v, gaps %+v, %d rows", err, named.Gaps, len(named.Rows))
	}
	for _, x := range named.Rows {
		// CoordinatorId, TransactionalId, ProducerId, ProducerEpoch, TransactionState, TransactionTimeoutMs,
		// CurrentTransactionStartTimeMs, TransactionDurationMs, TopicPartitions
		row := []string{
			strconv.Itoa(int(x.Coordinator)), x.TransactionalID, strconv.FormatInt(x.ProducerID, 10), text(x.ProducerEpoch), x.State, text(x.TimeoutMS),
			strconv.FormatInt(x.Started.UnixMilli(), 10),
		}
		if words := topicPartitionWords(x.Partitions); len(words) > 0 {
			row = append(row, strings.Join(words, ","))
		}
		told := k.tool("CoordinatorId", tool, "describe", "--transactional-id", x.TransactionalID)
		for i := range told {
			told[i] = slices.Delete(told[i], 7, 8) // the tool tells how long ended ones have lasted until now, too
			if len(told[i]) > 7 {
				words := strings.Split(told[i][7], ",")
				slices.Sort(words)
				told[i][7] = strings.Join(words, ",")
			}
		}
		k.agree("describe "+x.TransactionalID, [][]string{row}, told)
		if open := x.State == "Ongoing"; open != (x.AgeMS != nil) || open != (x.Deadline != nil) || *x.HoldsShareAcks {
			t.Errorf("transaction %+v, want an age and a deadline if it is open, and no share acknowledgements", x)
		}
	}

	hanging, err := inspect.ListHanging(t.Context(), k.cl, inspect.HangingOptions{})
	if err != nil || len(hanging.Gaps) > 0 {
		t.Fatalf("error %v, gaps %+v", err, hanging.Gaps)
	}
	var rows, old [][]string // Topic, Partition, ProducerId, ProducerEpoch, CoordinatorEpoch, StartOffset, LastTimestamp
	for _, h := range hanging.Rows {
		coordinator := int32(-1)
		if h.CoordinatorEpoch != nil {
			coordinator = *h.CoordinatorEpoch
		}
		row := []string{
			h.Topic, strconv.Itoa(int(h.Partition)), strconv.FormatInt(h.ProducerID, 10), strconv.Itoa(int(h.ProducerEpoch)),
			strconv.Itoa(int(coordinator)), strconv.FormatInt(h.StartOffset, 10), strconv.FormatInt(h.LastTimestamp.UnixMilli(), 10),
		}
		rows = append(rows, row)
		if h.ProducerID != 444_444 {
			old = append(old, row)
		}
		known := h.TransactionalID != nil
		if !h.Certain || known != (h.ProducerID == pid) || known && *h.TransactionalID != "ended" || h.Command == nil {
			t.Errorf("hanging %+v", h)
		}
	}
	if len(rows) != 4 {
		t.Errorf("%d transactions hang: %q, want the four", len(rows), rows)
	}
	found := k.tool("Topic", tool, "find-hanging", "--broker-id", strconv.Itoa(int(k.NodeIDs()[0])))
	for i := range found {
		found[i] = found[i][:7] // without the minutes
	}
	k.agree("find-hanging", old, found)
	aged, err := inspect.ListHanging(t.Context(), k.cl, inspect.HangingOptions{MinAge: 15 * time.Minute})
	if err != nil || len(aged.Rows) != len(old) {
		t.Errorf("%d hang for longer than 15 minutes (%v), want %d", len(aged.Rows), err, len(old))
	}
	k.tap.ReadOnly(t)

	// Server-side filters choose the same as the filters of older brokers.
	for name, c := range map[string]struct {
		o    inspect.TxnOptions
		want string
	}{
		"state":   {inspect.TxnOptions{All: true, States: []string{"Ongoing"}}, "open-1 open-2"},
		"pattern": {inspect.TxnOptions{All: true, Pattern: "(abor|commit)ted|open"}, "aborted committed"},
		"age":     {inspect.TxnOptions{All: true, OlderThan: time.Millisecond}, "open-1 open-2"},
		"no age":  {inspect.TxnOptions{All: true, OlderThan: time.Hour}, ""},
		"default": {inspect.TxnOptions{}, ""},
	} {
		r, err := inspect.DescribeTransactions(t.Context(), k.cl, c.o)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, x := range r.Rows {
			got = append(got, x.TransactionalID)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A transaction whose end is decided and whose marker cannot be written stays
// prepared, and is told as by Kafka's own tool; that a broker is down makes the
// answer incomplete, and takes nothing from it.
func TestKafkaPreparedTransaction(t *testing.T) {
	k := &kafka{Cluster: kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka44, Nodes: 3}), t: t, tap: wiretap.New()}
	const down = 3
	admin := k.Client(t)
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "solo", -1, -1
	topic.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Replicas: []int32{1, down}}}
	// With one replica down the leader takes no marker.
	topic.Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "min.insync.replicas", Value: kmsg.StringPtr("2")}}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(t.Context(), admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	id := k.coordinatedElsewhere(admin, down)
	p := k.Client(t, kgo.TransactionalID(id), kgo.TransactionTimeout(5*time.Minute))
	if err = p.BeginTransaction(); err == nil {
		err = p.ProduceSync(t.Context(), &kgo.Record{Topic: "solo", Value: []byte("x")}).FirstErr()
	}
	if err != nil {
		t.Fatal(err)
	}
	k.KillNode(t, down)
	if err := p.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}

	if k.cl, err = cluster.Connect(t.Context(), cluster.Config{BootstrapServers: k.Bootstrap()[:2], Dialer: k.tap.Dial}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.cl.Close)
	r, err := inspect.DescribeTransactions(t.Context(), k.cl, inspect.TxnOptions{All: true})
	if err != nil || len(r.Rows) != 1 {
		t.Fatalf("error %v, transactions %+v", err, r)
	}
	x := r.Rows[0]
	if x.State != "PrepareCommit" || x.AgeMS == nil || x.Deadline != nil || strings.Join(topicPartitionWords(x.Partitions), " ") != "solo-0" {
		t.Errorf("transaction %+v, want it prepared, with an age, and with its partition", x)
	}
	if !slices.ContainsFunc(r.Gaps, func(g inspect.Gap) bool { return g.Broker != nil && *g.Broker == down }) {
		t.Errorf("gaps %+v, want one of broker %d", r.Gaps, down)
	}
	const tool = kafkatest.TransactionTool
	k.agree("list", [][]string{{id, strconv.Itoa(int(x.Coordinator)), strconv.FormatInt(x.ProducerID, 10), x.State}}, k.tool("TransactionalId", tool, "list"))

	// It waits for its marker, and is no transaction that nobody will end.
	hanging, err := inspect.ListHanging(t.Context(), k.cl, inspect.HangingOptions{Topics: []string{"solo"}})
	if err != nil || len(hanging.Rows) > 0 || len(hanging.Gaps) == 0 {
		t.Errorf("hanging %+v, %v, want none to be seen, and a gap", hanging, err)
	}
	k.StartNode(t, down)
	for x.State != "CompleteCommit" {
		r, err := inspect.DescribeTransactions(t.Context(), k.cl, inspect.TxnOptions{TransactionalIDs: []string{id}})
		if err != nil || len(r.Rows) != 1 {
			t.Fatalf("error %v, transactions %+v", err, r)
		}
		x = r.Rows[0]
	}
	if x.AgeMS != nil || len(x.Partitions) > 0 {
		t.Errorf("transaction %+v, want an ended one to have neither age nor partitions", x)
	}
	k.tap.ReadOnly(t)
}

// coordinatedElsewhere returns a transactional ID that another node coordinates.
func (k *kafka) coordinatedElsewhere(cl *kgo.Client, node int32) string {
	k.t.Helper()
	for i := range 100 {
		req := kmsg.NewPtrFindCoordinatorRequest()
		id := fmt.Sprintf("prepared-%d", i)
		req.CoordinatorType, req.CoordinatorKeys = 1, []string{id}
		resp, err := req.RequestWith(k.t.Context(), cl)
		if err != nil || len(resp.Coordinators) != 1 {
			k.t.Fatalf("find the coordinator of %s: %+v, %v", id, resp, err)
		}
		if c := resp.Coordinators[0]; c.ErrorCode == 0 && c.NodeID != node {
			return id
		}
	}
	k.t.Fatalf("node %d coordinates all transactional IDs", node)
	return ""
}
