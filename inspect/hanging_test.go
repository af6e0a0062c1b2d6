package inspect

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestFindHanging(t *testing.T) {
	open := func(topic string, partition int32, producerID, start int64) Producer {
		return Producer{Topic: topic, Partition: partition, ProducerID: producerID, TxnStartOffset: start}
	}
	of := func(id, state string, producerID int64, parts ...TopicPartitions) Transaction {
		return Transaction{TransactionalID: id, State: state, ProducerID: producerID, Partitions: slices.Concat([]TopicPartitions{}, parts)}
	}
	at := func(topic string, parts ...int32) TopicPartitions { return TopicPartitions{topic, parts} }
	hidden := []Gap{{Source: SourceDescribeTransactions, ACL: &ACL{"DESCRIBE", "TRANSACTIONAL_ID", "*"}}}
	for name, c := range map[string]struct {
		open []Producer
		txns []Transaction
		gaps []Gap
		want []string // topic-partition producer certain id state: part of the reason
	}{
		"nothing": {},
		"no transaction is open": {
			open: []Producer{open("a", 0, 1, -1)},
		},
		"open, and its transaction lists it": {
			open: []Producer{open("a", 0, 1, 5), open("a", 1, 1, 7), open("b", 0, 2, 0)},
			txns: []Transaction{of("x", "Ongoing", 1, at("a", 0, 1)), of("y", "PrepareCommit", 2, at("b", 0))},
		},
		"nobody knows the producer": {
			open: []Producer{open("a", 0, 1, 5)},
			want: []string{"a-0 1 true  : no coordinator knows"},
		},
		"another transaction of the producer": {
			open: []Producer{open("a", 0, 1, 5), open("a", 1, 1, 6)},
			txns: []Transaction{of("x", "Ongoing", 1, at("a", 1), at("b", 0))},
			want: []string{"a-0 1 true x Ongoing: (Ongoing) does not list the partition"},
		},
		"it has ended": {
			open: []Producer{open("__consumer_offsets", 7, 1, 5)},
			txns: []Transaction{of("x", "CompleteAbort", 1, at("__consumer_offsets", 7))},
			want: []string{"__consumer_offsets-7 1 true x CompleteAbort: no open transaction (CompleteAbort)"},
		},
		"a producer that never began": {
			open: []Producer{open("a", 0, 1, 5)}, txns: []Transaction{of("x", "Empty", 1)},
			want: []string{"a-0 1 true x Empty: no open transaction (Empty)"},
		},
		"transactions are hidden": {
			open: []Producer{open("a", 0, 1, 5), open("a", 1, 2, 5)},
			txns: []Transaction{of("x", "CompleteCommit", 2)}, gaps: hidden,
			want: []string{"a-0 1 false  : it may be hidden", "a-1 2 true x CompleteCommit: no open transaction (CompleteCommit)"},
		},
		"a broker did not list its transactions": {
			open: []Producer{open("a", 0, 1, 5)}, gaps: []Gap{{Source: SourceListTransactions, Broker: new(int32(2))}},
			want: []string{"a-0 1 false  : it may be hidden"},
		},
		"other gaps do not matter": {
			open: []Producer{open("a", 0, 1, 5)}, gaps: []Gap{{Source: SourceDescribeProducers}},
			want: []string{"a-0 1 true  : no coordinator knows"},
		},
		"it is not known what the transaction lists": {
			open: []Producer{open("a", 0, 1, 5)}, txns: []Transaction{{TransactionalID: "x", State: "Ongoing", ProducerID: 1}},
			want: []string{"a-0 1 false x Ongoing: is not known"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, h := range findHanging(c.open, c.txns, c.gaps) {
				got = append(got, fmt.Sprintf("%s-%d %d %t %s %s: %s", h.Topic, h.Partition, h.ProducerID, h.Certain, h.TransactionalID, h.State, h.Reason))
			}
			wantLike(t, got, c.want)
		})
	}
}

// wantLike compares what was got with the head, and a part of the rest, of what
// is wanted: they are separated by ": ".
func wantLike(t *testing.T, got, want []string) {
	t.Helper()
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		head, part, _ := strings.Cut(want[i], ": ")
		ok = ok && strings.HasPrefix(got[i], head+": ") && strings.Contains(got[i], part)
	}
	if !ok {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// logs are partitions with producers, led by broker partition%3.
type logs struct {
	mu     sync.Mutex
	active map[topicPartition][]kmsg.DescribeProducersResponseTopicPartitionActiveProducer
	leader map[topicPartition]int32 // where another broker leads than Metadata says
	code   map[topicPartition]int16
	broken map[int32]error
	sent   []int // partitions of each request
	// before is called before a request is answered with how many there were.
	before func(n int)
}

func (l *logs) intercept(node int32, req kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // as kfake has it
	r, ok := req.(*kmsg.DescribeProducersRequest)
	if !ok {
		return nil, nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.before != nil {
		l.before(len(l.sent))
	}
	if err := l.broken[node]; err != nil {
		return nil, err, true
	}
	resp := r.ResponseKind().(*kmsg.DescribeProducersResponse)
	n := 0
	for _, rt := range r.Topics {
		t := kmsg.NewDescribeProducersResponseTopic()
		t.Topic = rt.Topic
		for _, p := range rt.Partitions {
			n++
			tp := topicPartition{rt.Topic, p}
			rp := kmsg.NewDescribeProducersResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p, l.code[tp]
			leader, moved := l.leader[tp]
			switch {
			case moved && leader != node || !moved && p%3 != node:
				rp.ErrorCode = kerr.NotLeaderForPartition.Code
			case rp.ErrorCode == 0:
				rp.ActiveProducers = l.active[tp]
			}
			t.Partitions = append(t.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, t)
	}
	l.sent = append(l.sent, n)
	return resp, nil, true
}

func activeProducer(id, start int64) kmsg.DescribeProducersResponseTopicPartitionActiveProducer {
	return kmsg.DescribeProducersResponseTopicPartitionActiveProducer{
		ProducerID: id, ProducerEpoch: 3, LastSequence: 9, LastTimestamp: stagedAt.UnixMilli(), CoordinatorEpoch: -1, CurrentTxnStartOffset: start,
	}
}

// topicOf is a topic of n partitions, led by broker partition%3.
func topicOf(name string, n int32) cluster.Topic {
	t := cluster.Topic{Name: name, ID: [16]byte{name[0], byte(n)}}
	for p := range n {
		t.Partitions = append(t.Partitions, cluster.Partition{Partition: p, Leader: p % 3})
	}
	return t
}

func TestDescribeProducers(t *testing.T) {
	a0, a1, b0 := topicPartition{"a", 0}, topicPartition{"a", 1}, topicPartition{"b", 0}
	full := []string{"a-0 at 0: 1@5", "a-0 at 0: 2@-1", "a-1 at 1: 1@7", "b-0 at 0: 4@0"}
	for name, c := range map[string]struct {
		change func(*logs, *fakeCluster, []cluster.Topic)
		open   bool
		want   []string
		gaps   []string
	}{
		"all":       {want: full},
		"open ones": {open: true, want: []string{full[0], full[2], full[3]}},
		"a leader that moved": {
			change: func(l *logs, f *fakeCluster, _ []cluster.Topic) {
				l.leader = map[topicPartition]int32{a1: 2}
				f.topics[1].Partitions[1].Leader = 2 // and a look tells
			},
			want: []string{full[0], full[1], "a-1 at 2: 1@7", full[3]},
		},
		"a leader that nobody knows": {
			change: func(l *logs, _ *fakeCluster, _ []cluster.Topic) { l.leader = map[topicPartition]int32{a1: 2} },
			want:   []string{full[0], full[1], full[3]},
			gaps:   []string{"1 DescribeProducers NOT_LEADER_FOR_PARTITION describe the producers of a-1:"},
		},
		"no leader": {
			change: func(_ *logs, f *fakeCluster, topics []cluster.Topic) {
				topics[0].Partitions[1].Leader, f.topics[1].Partitions[1].Leader = -1, -1
			},
			want: []string{full[0], full[1], full[3]},
			gaps: []string{"- DescribeProducers LEADER_NOT_AVAILABLE no broker could be asked a-1:"},
		},
		"a topic that may not be read": {
			change: func(l *logs, _ *fakeCluster, _ []cluster.Topic) {
				l.code = map[topicPartition]int16{a0: kerr.TopicAuthorizationFailed.Code, a1: kerr.TopicAuthorizationFailed.Code}
			},
			want: []string{full[3]},
			gaps: []string{"- DescribeProducers TOPIC_AUTHORIZATION_FAILED READ on TOPIC a --operation Read --topic 'a'"},
		},
		"two topics that may not be read": {
			change: func(l *logs, _ *fakeCluster, _ []cluster.Topic) {
				l.code = map[topicPartition]int16{a1: kerr.TopicAuthorizationFailed.Code, b0: kerr.TopicAuthorizationFailed.Code}
			},
			want: full[:2],
			gaps: []string{"- DescribeProducers TOPIC_AUTHORIZATION_FAILED READ on TOPIC * 2 topics, a among them --operation Read --topic '*'"},
		},
		"deleted meanwhile": {
			change: func(l *logs, _ *fakeCluster, _ []cluster.Topic) {
				l.code = map[topicPartition]int16{b0: kerr.UnknownTopicOrPartition.Code}
			},
			want: full[:3],
		},
		"another error": {
			change: func(l *logs, _ *fakeCluster, _ []cluster.Topic) {
				l.code = map[topicPartition]int16{b0: kerr.KafkaStorageError.Code, a0: kerr.KafkaStorageError.Code}
			},
			want: full[2:3],
			gaps: []string{"0 DescribeProducers KAFKA_STORAGE_ERROR describe the producers of a-0 and 1 more:"},
		},
		"a leader that is down": {
			change: func(l *logs, _ *fakeCluster, _ []cluster.Topic) {
				l.broken = map[int32]error{1: fmt.Errorf("read: %w", io.EOF)}
			},
			want: []string{full[0], full[1], full[3]},
			gaps: []string{"1 DescribeProducers  describe the producers of a-1: read: EOF"},
		},
		"a broker that cannot": {
			change: func(l *logs, _ *fakeCluster, _ []cluster.Topic) {
				l.broken = map[int32]error{0: errors.New("its software is too old")}
			},
			want: full[2:3],
			gaps: []string{"0 DescribeProducers  2 partitions, a-0 among them: its software is too old"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeCluster()
			topics := []cluster.Topic{topicOf("a", 2), topicOf("b", 1)}
			f.topics = append(f.topics[:1], topicOf("a", 2), topicOf("b", 1))
			l := &logs{active: map[topicPartition][]kmsg.DescribeProducersResponseTopicPartitionActiveProducer{
				a0: {activeProducer(2, -1), activeProducer(1, 5)}, a1: {activeProducer(1, 7)}, b0: {activeProducer(4, 0)},
			}}
			f.intercept = l.intercept
			if c.change != nil {
				c.change(l, f, topics)
			}
			producers, gaps, err := DescribeProducers(t.Context(), f, ProducerQuery{Topics: topics, Open: c.open})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range producers {
				got = append(got, fmt.Sprintf("%s-%d at %d: %d@%d", p.Topic, p.Partition, p.Leader, p.ProducerID, p.TxnStartOffset))
				if p.ProducerEpoch != 3 || p.LastSequence != 9 || p.CoordinatorEpoch != -1 || !p.LastTimestamp.Equal(stagedAt) {
					t.Errorf("producer %+v", p)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("producers\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			wantGaps(t, gaps, c.gaps)
		})
	}
}

func TestDescribeProducersInBatches(t *testing.T) {
	f := newFakeCluster()
	l := new(logs)
	f.intercept = l.intercept
	if _, gaps, err := DescribeProducers(t.Context(), f, ProducerQuery{Topics: []cluster.Topic{topicOf("a", 3000)}}); err != nil || len(gaps) > 0 {
		t.Fatalf("DescribeProducers: %+v, %v", gaps, err)
	}
	if want := []int{500, 500, 500, 500, 500, 500}; !slices.Equal(l.sent, want) {
		t.Errorf("requests for %v partitions, want %v", l.sent, want)
	}
}

func TestListHanging(t *testing.T) {
	const leaders = 3 // that the first look asks
	now := stagedAt.Add(time.Hour)
	a0, offsets := topicPartition{"a", 0}, topicPartition{"__consumer_offsets", 2}
	for name, c := range map[string]struct {
		change  func(*logs, *fakeCluster)
		options HangingOptions
		want    []string
		gaps    []string
	}{
		"two, one of them in an internal topic": {
			want: []string{"__consumer_offsets-2 9 true  : no coordinator knows", "a-0 1 true x CompleteAbort: no open transaction (CompleteAbort)"},
		},
		"of a topic": {
			options: HangingOptions{Topics: []string{"a"}}, want: []string{"a-0 1 true x CompleteAbort: no open transaction (CompleteAbort)"},
		},
		"of another partition": {options: HangingOptions{Topics: []string{"a"}, Partitions: []int32{1}}},
		"older than they are":  {options: HangingOptions{MinAge: time.Hour}},
		"as old as they are": {
			options: HangingOptions{MinAge: time.Hour - time.Millisecond, Topics: []string{"a"}}, want: []string{"a-0 1 true x CompleteAbort: no open transaction (CompleteAbort)"},
		},
		"ended between two looks": {
			change: func(l *logs, _ *fakeCluster) {
				l.before = func(n int) {
					if n == leaders {
						delete(l.active, a0)
					}
				}
			},
			want: []string{"__consumer_offsets-2 9 true  : no coordinator knows"},
		},
		"another transaction between two looks": {
			change: func(l *logs, _ *fakeCluster) {
				l.before = func(n int) {
					if n == leaders {
						l.active[a0] = []kmsg.DescribeProducersResponseTopicPartitionActiveProducer{activeProducer(1, 50)}
					}
				}
			},
			want: []string{"__consumer_offsets-2 9 true  : no coordinator knows"},
		},
		"transactional IDs are hidden": {
			change: func(_ *logs, f *fakeCluster) { f.denied[aclTransactionalIDs] = true },
			want:   []string{"__consumer_offsets-2 9 false  : may be hidden", "a-0 1 false  : may be hidden", "a-1 2 false  : may be hidden"},
			gaps:   []string{"- DescribeTransactions TRANSACTIONAL_ID_AUTHORIZATION_FAILED DESCRIBE on TRANSACTIONAL_ID *"},
		},
		"nothing is open": {change: func(l *logs, _ *fakeCluster) { l.active = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeCluster()
			f.topics = append(f.topics, topicOf("a", 2), topicOf("__consumer_offsets", 3))
			f.begin("x", 1, 3, 1, "CompleteAbort")
			f.begin("y", 2, 3, 2, "Ongoing")
			f.txns["y"] = Transaction{TransactionalID: "y", State: "Ongoing", ProducerID: 2, Coordinator: 2, Started: stagedAt, Partitions: []TopicPartitions{{"a", []int32{1}}}}
			l := &logs{active: map[topicPartition][]kmsg.DescribeProducersResponseTopicPartitionActiveProducer{
				a0: {activeProducer(1, 5)}, {"a", 1}: {activeProducer(2, 8)}, offsets: {activeProducer(9, 0)},
			}}
			f.intercept = l.intercept
			if c.change != nil {
				c.change(l, f)
			}
			c.options.Now = func() time.Time { return now }
			r, err := ListHanging(t.Context(), f, c.options)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range r.Rows {
				id, state := "", ""
				if h.TransactionalID != nil {
					id, state = *h.TransactionalID, *h.TransactionState
				}
				got = append(got, fmt.Sprintf("%s-%d %d %t %s %s: %s", h.Topic, h.Partition, h.ProducerID, h.Certain, id, state, h.Reason))
				if *h.AgeMS != time.Hour.Milliseconds() || h.CoordinatorEpoch != nil || (h.Command != nil) != h.Certain {
					t.Errorf("row %+v", h)
				}
			}
			wantLike(t, got, c.want)
			wantGaps(t, r.Gaps, c.gaps)
		})
	}
}

func TestHangingCommand(t *testing.T) {
	h := Hanging{Producer: Producer{Topic: "a", Partition: 7, ProducerID: 4, ProducerEpoch: 2, TxnStartOffset: 9}, Certain: true}
	want := []string{"txn", "abort", "--topic", "a", "--partition", "7", "--producer-id", "4", "--producer-epoch", "2"}
	if got := newHangingRow(h, stagedAt); !reflect.DeepEqual(got.Command, want) || got.AgeMS != nil || got.LastTimestamp != nil {
		t.Errorf("row %+v, want command %q", got, want)
	}
}
