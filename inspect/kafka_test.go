package inspect_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
)

func TestMain(m *testing.M) { kafkatest.Main(m) }

// connectKafka connects as a user of a secured cluster. The tap hears what is said
// inside of TLS.
func connectKafka(t *testing.T, k *kafkatest.Cluster, u kafkatest.User, tap *wiretap.Tap) *cluster.Client {
	t.Helper()
	d := tls.Dialer{Config: k.TLS()}
	cl, err := cluster.Connect(t.Context(), cluster.Config{
		BootstrapServers: k.Bootstrap(), SASL: []sasl.Mechanism{u.Mechanism(kafkatest.Plain)},
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := d.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return tap.Client(conn), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// A released Kafka has share groups, their state and transactions, and no
// TX_PENDING. Each right that is missing, in turn, is named; looking changes
// nothing.
func TestKafkaCollect(t *testing.T) {
	k := kafkatest.Shared(t, kafkatest.Config{Security: kafkatest.SASLSSL, Authorizer: true})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	const topic, group, id = "collect-in", "collect-group", "collect-txn"
	admin := connectKafka(t, k, kafkatest.Admin, wiretap.New())
	producer, err := admin.NewKgo(kgo.TransactionalID(id), kgo.TransactionTimeout(5*time.Minute), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	adm := kadm.NewClient(producer)
	if _, err := adm.CreateTopic(ctx, 2, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := producer.ProduceSync(ctx, &kgo.Record{}, &kgo.Record{}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if n == 2 {
			break // the last one stays open
		}
		if err := producer.EndTransaction(ctx, kgo.TransactionEndTry(n == 0)); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = producer.EndTransaction(context.WithoutCancel(ctx), kgo.TryAbort) }()
	if err := admin.SetGroupConfig(ctx, group, "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	member, err := share.NewConsumer(ctx, admin, share.Config{GroupID: group, Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = member.Close(context.WithoutCancel(ctx)) }()
	acknowledge := func() {
		t.Helper()
		b, err := member.Poll(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := member.Acknowledge(ctx, b, b.All(wire.Accept)); err != nil {
			t.Fatal(err)
		}
	}
	acknowledge()

	const user, state = "User:alice", "__share_group_state"
	allow := func(op kadm.ACLOperation) *kadm.ACLBuilder {
		return kadm.NewACLs().ResourcePatternType(kmsg.ACLResourcePatternTypeLiteral).Operations(op).Allow(user).AllowHosts("*")
	}
	rights := map[string]*kadm.ACLBuilder{
		"DESCRIBE on TRANSACTIONAL_ID *":          allow(kadm.OpDescribe).TransactionalIDs("*"),
		"DESCRIBE on GROUP *":                     allow(kadm.OpDescribe).Groups("*"),
		"DESCRIBE on TOPIC *":                     allow(kadm.OpDescribe).Topics("*"),
		"READ on TOPIC __share_group_state":       allow(kadm.OpRead).Topics(state),
		"CLUSTER_ACTION on CLUSTER kafka-cluster": allow(kadm.OpClusterAction).Clusters(),
	}
	// DESCRIBE on the topic follows from two others, so it is denied.
	describeState := kadm.NewACLs().ResourcePatternType(kmsg.ACLResourcePatternTypeLiteral).Operations(kadm.OpDescribe).Topics(state).Deny(user).DenyHosts("*")
	create := func(b *kadm.ACLBuilder) {
		t.Helper()
		if _, err := adm.CreateACLs(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(b *kadm.ACLBuilder) {
		t.Helper()
		if _, err := adm.DeleteACLs(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range rights {
		create(b)
	}
	tap := wiretap.New()
	alice := connectKafka(t, k, kafkatest.Alice, tap)
	collect := func() *inspect.Evidence {
		t.Helper()
		ev, err := inspect.Collect(ctx, alice, inspect.CollectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return ev
	}
	// missing collects until what is missing is that: a change of rights takes a
	// moment.
	missing := func(want ...string) *inspect.Evidence {
		t.Helper()
		for {
			ev := collect()
			var got []string
			for _, g := range ev.Gaps {
				if g.ACL == nil || g.Advice == "" {
					t.Fatalf("gap %+v", g)
				}
				if name := g.ACL.String(); !slices.Contains(got, name) {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			if slices.Equal(got, want) {
				return ev
			}
			if ctx.Err() != nil {
				t.Fatalf("missing %q, want %q", got, want)
			}
		}
	}

	ev := missing()
	if ev.Support.Verdict != cluster.NotSupported || ev.ClusterID != k.ClusterID() || ev.StatePartitions != 3 || ev.Sweep <= 0 {
		t.Errorf("evidence %+v", ev)
	}
	if len(ev.States) > 0 || ev.Persists || ev.StatesRead == 0 || len(ev.Ended) > 0 {
		t.Errorf("states %+v of %d, persists %t: there is no TX_PENDING here", ev.States, ev.StatesRead, ev.Persists)
	}
	if len(ev.Transactions) != 1 || ev.Transactions[0].TransactionalID != id || ev.Transactions[0].State != "Ongoing" || ev.Transactions[0].HoldsShareAcks() {
		t.Errorf("transactions %+v", ev.Transactions)
	}
	if len(ev.Groups) != 1 || ev.Groups[0].GroupID != group || len(ev.Groups[0].Members) != 1 || len(ev.Groups[0].Partitions) != 2 {
		t.Errorf("groups %+v", ev.Groups)
	}
	if rep := inspect.NewPendingReport(ev, inspect.Filter{}); rep.Status != inspect.StatusUnsupported || len(rep.Rows) > 0 {
		t.Errorf("report %+v", rep)
	}
	for name, b := range rights {
		remove(b)
		if rep := inspect.NewPendingReport(missing(name), inspect.Filter{}); rep.Status != inspect.StatusUnknown {
			t.Errorf("%s is missing: status %s", name, rep.Status)
		}
		create(b)
		missing()
	}
	create(describeState)
	missing("DESCRIBE on TOPIC __share_group_state")
	remove(describeState)
	missing()

	// The state that coordinators tell is that of the topic, and its leader is not
	// fenced by asking.
	var keys []inspect.ShareKey
	for _, p := range ev.Groups[0].Partitions {
		keys = append(keys, inspect.ShareKey{GroupID: group, TopicID: p.TopicID, Partition: p.Partition})
	}
	states, gaps, err := inspect.ReadShareStates(ctx, alice, keys)
	if err != nil || len(gaps) > 0 || len(states) == 0 || len(states[0].Batches)+int(states[0].StartOffset) == 0 {
		t.Errorf("states %+v, gaps %+v, %v", states, gaps, err)
	}
	acknowledge()
	tap.ReadOnly(t)
	if tap.Count()[kmsg.ReadShareGroupState] == 0 || tap.Count()[kmsg.Fetch] == 0 {
		t.Errorf("heard %v, want states read", tap.Count())
	}
}
