package commands_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/commands"
	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

// txnKafka is a real Kafka 4.4 on which transactions can be made to hang.
type txnKafka struct {
	*kafkatest.Cluster
	t *testing.T
}

func startTxnKafka(t *testing.T) *txnKafka {
	t.Helper()
	k := &txnKafka{kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka44, Props: map[string]string{"transaction.partition.verification.enable": "false"}}), t}
	if _, err := kadm.NewClient(k.Client(t)).CreateTopic(t.Context(), 4, 1, nil, "shipped"); err != nil {
		t.Fatal(err)
	}
	return k
}

// kshare runs a command, by the real clock.
func (k *txnKafka) kshare(code int, args ...string) cmdtest.Result {
	k.t.Helper()
	setup := cmdtest.Setup{Change: func(d *commands.Deps) { d.Now = time.Now }}
	return cmdtest.Run(k.t, setup, append(args, "-b", strings.Join(k.Bootstrap(), ","), "-o", "json")...).Want(k.t, code)
}

// items are those of a document.
func items[T any](t *testing.T, r cmdtest.Result) []T {
	t.Helper()
	var doc struct{ Items []T }
	if err := json.Unmarshal([]byte(r.Stdout), &doc); err != nil {
		t.Fatalf("%v\n%s", err, r.Stdout)
	}
	return doc.Items
}

type hanging struct {
	Partition   int32
	ProducerID  int64 `json:"producer_id"`
	StartOffset int64 `json:"start_offset"`
	Command     string
}

// marker is an end marker as it stands in a log.
type marker struct {
	producerID    int64
	producerEpoch int16
	attributes    uint8
	key, value    string
}

// markers reads the end markers of a partition.
func (k *txnKafka) markers(topic string, partition int32) []marker {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 10*time.Minute)
	defer cancel()
	cl := k.Client(k.t, kgo.KeepControlRecords(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err != nil {
		k.t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, partition)
	var out []marker
	for next := int64(0); next < end.Offset; {
		fetched := cl.PollFetches(ctx)
		if err := fetched.Err(); err != nil {
			k.t.Fatal(err)
		}
		fetched.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if r.Attrs.IsControl() {
				out = append(out, marker{r.ProducerID, r.ProducerEpoch, r.Attrs.CompressionType(), string(r.Key), string(r.Value)})
			}
		})
	}
	return out
}

// A transaction that hangs is found and aborted as Kafka's own tool does it: what
// is in the log afterwards is the same.
func TestKafkaTxnAbort(t *testing.T) {
	k := startTxnKafka(t)
	k.completes() // while it is new
	hourAgo := time.Now().Add(-time.Hour)
	for p := range int32(3) {
		k.AppendOpen(t, "shipped", p, 4000+int64(p), 2, hourAgo)
	}
	found := items[hanging](t, k.kshare(6, "txn", "find-hanging", "--topic", "shipped", "--check"))
	if len(found) != 3 {
		t.Fatalf("%d transactions hang, want three: %+v", len(found), found)
	}
	if _, err := k.Tool(t.Context(), kafkatest.TransactionTool, "abort", "--topic", "shipped", "--partition", "0", "--start-offset", strconv.FormatInt(found[0].StartOffset, 10)); err != nil {
		t.Fatal(err)
	}
	// The command that is told with it is the one to run.
	words := strings.Fields(found[1].Command)
	if words[0] != "kshare" {
		t.Fatalf("command %q", found[1].Command)
	}
	dry := k.kshare(0, append(slices.Clone(words[1:]), "--dry-run")...)
	if !strings.Contains(dry.Stdout, `"result": "planned"`) {
		t.Errorf("dry run: %s", dry.Stdout)
	}
	if left := items[hanging](t, k.kshare(0, "txn", "find-hanging")); len(left) != 2 {
		t.Errorf("after a dry run %d transactions hang, want two", len(left))
	}
	k.kshare(0, append(slices.Clone(words[1:]), "--yes")...)
	k.kshare(0, "txn", "abort", "--topic", "shipped", "--partition", "2", "--producer-id", "4002", "--producer-epoch", "2", "--yes")
	k.kshare(0, "txn", "find-hanging", "--check")
	want := k.markers("shipped", 0)
	if len(want) != 1 {
		t.Fatalf("the tool has written %d markers", len(want))
	}
	for p := int32(1); p < 3; p++ {
		want[0].producerID = 4000 + int64(p)
		if got := k.markers("shipped", p); !slices.Equal(got, want) {
			t.Errorf("markers of shipped-%d: %+v, Kafka's tool has written %+v", p, got, want)
		}
	}
	if out, err := k.Tool(t.Context(), kafkatest.TransactionTool, "find-hanging", "--topic", "shipped"); err != nil || strings.Contains(out, "shipped") {
		t.Errorf("Kafka's tool finds %q, %v, want nothing", out, err)
	}
	// Nothing is left to abort.
	k.kshare(1, "txn", "abort", "--topic", "shipped", "--partition", "2", "--producer-id", "4002", "--producer-epoch", "2", "--yes")
}

// described is a transaction as its coordinator tells of it.
type described struct {
	state string
	epoch int16
}

func (k *txnKafka) describe(id string) described {
	k.t.Helper()
	got, err := kadm.NewClient(k.Client(k.t)).DescribeTransactions(k.t.Context(), id)
	if err != nil {
		k.t.Fatal(err)
	}
	return described{got[id].State, got[id].ProducerEpoch}
}

// open begins a transaction and produces a record in it.
func (k *txnKafka) open(id string, partition int32) *kgo.Client {
	k.t.Helper()
	p := k.Client(k.t, kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	err := p.BeginTransaction()
	if err == nil {
		err = p.ProduceSync(k.t.Context(), &kgo.Record{Topic: "shipped", Partition: partition, Value: []byte("x")}).FirstErr()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return p
}

// What is fenced stands where Kafka's own tool leaves it, in the log too, and its
// producer meets the same error.
func TestKafkaTxnFence(t *testing.T) {
	k := startTxnKafka(t)
	theirs, ours := k.open("theirs", 0), k.open("ours", 1)
	before := k.describe("ours")
	if _, err := k.Tool(t.Context(), kafkatest.TransactionTool, "forceTerminateTransaction", "--transactionalId", "theirs"); err != nil {
		t.Fatal(err)
	}
	got := items[struct {
		Result   string
		NewEpoch *int16 `json:"new_producer_epoch"`
	}](t, k.kshare(0, "txn", "fence", "ours", "--yes"))
	want, is := k.describe("theirs"), k.describe("ours")
	if is != want || is == before || len(got) != 1 || got[0].Result != "fenced" || *got[0].NewEpoch != is.epoch {
		t.Errorf("fenced: %+v (%+v), Kafka's tool leaves %+v", is, got, want)
	}
	m, o := k.markers("shipped", 0), k.markers("shipped", 1)
	if len(m) != 1 || len(o) != 1 {
		t.Fatalf("markers %+v and %+v, want one each", m, o)
	}
	if o[0].producerID = m[0].producerID; o[0] != m[0] {
		t.Errorf("marker %+v, Kafka's tool leads to %+v", o[0], m[0])
	}
	var errs []string
	for _, p := range []*kgo.Client{theirs, ours} {
		err := p.EndTransaction(t.Context(), kgo.TryCommit)
		ke, ok := errors.AsType[*kerr.Error](err)
		if !ok {
			t.Fatalf("a producer that was fenced commits with %v", err)
		}
		errs = append(errs, ke.Message)
	}
	if errs[0] != errs[1] {
		t.Errorf("the producer meets %s, and %s after Kafka's tool", errs[1], errs[0])
	}
}

// A hanging transaction of a coordinator whose state was removed: the transactional
// ID is known to nobody any more, and the tool and we abort the same.
func TestKafkaTxnStateRemoved(t *testing.T) {
	k := startTxnKafka(t)
	p := k.open("lost", 3)
	pid, epoch, err := p.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k.removeState("lost")
	found := items[hanging](t, k.kshare(0, "txn", "find-hanging", "--topic", "shipped"))
	if len(found) != 1 || found[0].ProducerID != pid || found[0].Partition != 3 {
		t.Fatalf("hanging %+v, want producer %d in shipped-3", found, pid)
	}
	k.kshare(0, "txn", "abort", "--topic", "shipped", "--partition", "3", "--producer-id", fmt.Sprint(pid), "--producer-epoch", fmt.Sprint(epoch), "--yes")
	k.kshare(0, "txn", "find-hanging", "--check")
}

// removeState writes a tombstone for a transactional ID, and has its coordinator
// load its state anew.
func (k *txnKafka) removeState(id string) {
	k.t.Helper()
	const topic = "__transaction_state"
	cl := k.Client(k.t, kgo.ClientID("__admin_client"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	topics, err := kadm.NewClient(cl).ListTopicsWithInternal(k.t.Context())
	if err != nil {
		k.t.Fatal(err)
	}
	var h int32 // String.hashCode
	for _, c := range id {
		h = 31*h + c
	}
	partition := max(h, -h) % int32(len(topics[topic].Partitions))
	key := append(binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(id))), id...) // version 0
	if err := cl.ProduceSync(k.t.Context(), &kgo.Record{Topic: topic, Partition: partition, Key: key}).FirstErr(); err != nil {
		k.t.Fatal(err)
	}
	node := k.NodeIDs()[0]
	k.StopNode(k.t, node)
	k.StartNode(k.t, node)
}
