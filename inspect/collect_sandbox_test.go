package inspect_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// rig is a sandbox with records in topic "in" and a member of group "g".
type rig struct {
	t      *testing.T
	sb     *sandbox.Sandbox
	user   string // that the rig's own clients are; "": no users
	member *share.Consumer
}

func newRig(t *testing.T, user string, opts ...sandbox.Option) *rig {
	t.Helper()
	sb, err := sandbox.Start(t.Context(), append(opts, sandbox.WithTopics(sandbox.Topic{Name: "in", Partitions: 2}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, sb: sb, user: user}
	cl := r.connect(user, nil)
	if err := cl.SetGroupConfig(t.Context(), "g", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	producer, err := cl.NewKgo(kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i := range 20 {
		if err := producer.ProduceSync(t.Context(), &kgo.Record{Key: []byte(strconv.Itoa(i))}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	r.member, err = share.NewConsumer(t.Context(), cl, share.Config{GroupID: "g", Topics: []string{"in"}, MaxWait: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.member.Close(context.WithoutCancel(t.Context())) })
	return r
}

func (r *rig) connect(user string, tap *wiretap.Tap) *cluster.Client {
	r.t.Helper()
	cfg := cluster.Config{BootstrapServers: r.sb.Addrs()}
	if user != "" {
		cfg.SASL = []sasl.Mechanism{plain.Auth{User: user, Pass: "secret"}.AsMechanism()}
	}
	if tap != nil {
		cfg.Dialer = tap.Dial
	}
	cl, err := cluster.Connect(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cl.Close)
	return cl
}

// stage acknowledges records in a transaction that stays open, and returns how
// many.
func (r *rig) stage(id string, typ wire.AcknowledgeType) (*txn.Session, int64) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Minute)
	defer cancel()
	b, err := r.member.Poll(ctx, 5)
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := txn.NewSession(ctx, r.connect(r.user, nil), txn.Config{TransactionalID: id})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close(context.WithoutCancel(r.t.Context())) })
	err = s.Begin(ctx)
	if err == nil {
		err = s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: b.All(typ), Group: r.member.GroupMetadata()})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return s, int64(b.Len())
}

func (r *rig) collect(cl *cluster.Client) *inspect.Evidence {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Minute)
	defer cancel()
	ev, err := inspect.Collect(ctx, cl, inspect.CollectOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return ev
}

// pending counts the records in TX_PENDING by their producer.
func pending(ev *inspect.Evidence) map[int64]int64 {
	out := make(map[int64]int64)
	for _, s := range ev.States {
		for _, b := range s.Batches {
			if b.DeliveryState == wire.TxPending {
				out[b.Staged.ProducerID] += b.LastOffset - b.FirstOffset + 1
			}
		}
	}
	return out
}

func eachDialect(t *testing.T, test func(*testing.T, wire.Dialect)) {
	t.Helper()
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) { test(t, d) })
	}
}

func TestCollect(t *testing.T) {
	eachDialect(t, func(t *testing.T, d wire.Dialect) {
		r := newRig(t, "", sandbox.WithDialect(d))
		tap := wiretap.New()
		cl := r.connect("", tap)
		before := time.Now().Add(-time.Second)
		s, n := r.stage("billing-1", wire.Accept)
		ev := r.collect(cl)
		if len(ev.Gaps) > 0 || ev.Support.Verdict != cluster.Usable || ev.StatePartitions != 50 || !ev.Persists || ev.StatesRead == 0 {
			t.Errorf("evidence %+v", ev)
		}
		if len(ev.Transactions) != 1 || len(ev.Ended) > 0 {
			t.Fatalf("transactions %+v, ended %+v, want one open", ev.Transactions, ev.Ended)
		}
		tx := ev.Transactions[0]
		parts, known := tx.StatePartitions()
		if tx.TransactionalID != "billing-1" || tx.State != "Ongoing" || tx.Started.Before(before) || tx.TimeoutMS <= 0 || !known || len(parts) == 0 {
			t.Errorf("transaction %+v", tx)
		}
		if got := pending(ev); len(got) != 1 || got[tx.ProducerID] != n {
			t.Errorf("pending by producer %v, want %d of %d", got, n, tx.ProducerID)
		}
		for _, st := range ev.States {
			i := slices.IndexFunc(st.Batches, func(b wire.StateBatch) bool { return b.DeliveryState == wire.TxPending })
			owner := st.Batches[i].Staged
			if st.GroupID != "g" || ev.Topics[st.TopicID] != "in" || !slices.Contains(parts, st.StatePartition) ||
				!slices.Equal(st.Sources, []inspect.Source{inspect.SourceStateTopic, inspect.SourceShareGroupState}) ||
				owner.ProducerEpoch != tx.ProducerEpoch || st.WrittenBy(owner).Before(before) || !st.Written.Equal(st.WrittenBy(owner)) {
				t.Errorf("state %+v", st)
			}
		}
		if len(ev.Groups) != 1 || ev.Groups[0].GroupID != "g" || len(ev.Groups[0].Members) != 1 || len(ev.Groups[0].Partitions) == 0 {
			t.Errorf("groups %+v", ev.Groups)
		}
		if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
			t.Fatal(err)
		}
		if ev := r.collect(cl); len(ev.Transactions) > 0 || len(ev.States) > 0 || len(ev.Ended) > 0 || len(ev.Gaps) > 0 || !ev.Persists {
			t.Errorf("after the commit: %+v", ev)
		}
		tap.ReadOnly(t)
	})
}

// A cluster that keeps TX_PENDING in its leaders has nothing to read, but the
// transaction lists the partition.
func TestCollectFromMemoryState(t *testing.T) {
	r := newRig(t, "", sandbox.WithPendingState(sandbox.PendingMemory))
	_, _ = r.stage("billing-1", wire.Accept)
	ev := r.collect(r.connect("", nil))
	if len(ev.Gaps) > 0 || len(ev.States) > 0 || ev.Persists || len(ev.Transactions) != 1 {
		t.Fatalf("evidence %+v", ev)
	}
	if parts, _ := ev.Transactions[0].StatePartitions(); len(parts) == 0 || !ev.Transactions[0].HoldsShareAcks() {
		t.Errorf("transaction %+v", ev.Transactions[0])
	}
}

// However a transaction ends, nothing of it is left; what has no transaction any
// more is found with its former owner.
func TestCollectAfterTheEnd(t *testing.T) {
	eachDialect(t, func(t *testing.T, d wire.Dialect) {
		r := newRig(t, "", sandbox.WithDialect(d))
		cl := r.connect("", nil)
		for name, end := range map[string]func(*txn.Session) error{
			"abort": func(s *txn.Session) error { return s.Abort(t.Context()) },
			"fence": func(*txn.Session) error {
				s, err := txn.NewSession(t.Context(), r.connect("", nil), txn.Config{TransactionalID: "fence"})
				if err == nil {
					err = s.Close(t.Context())
				}
				return err
			},
		} {
			s, n := r.stage(name, wire.Reject)
			if got := pending(r.collect(cl)); len(got) != 1 || n == 0 {
				t.Errorf("%s: pending %v before the end, want %d of one producer", name, got, n)
			}
			if err := end(s); err != nil {
				t.Fatal(err)
			}
			if ev := r.collect(cl); len(ev.States)+len(ev.Transactions)+len(ev.Ended)+len(ev.Gaps) > 0 {
				t.Errorf("%s: evidence after the end %+v", name, ev)
			}
		}
	})
}

// Each right that is missing, in turn, is named.
func TestCollectByRights(t *testing.T) {
	rights := map[string]sandbox.ACL{
		"noids":     allow("", kmsg.ACLResourceTypeTransactionalId, "*", kmsg.ACLOperationDescribe),
		"noread":    allow("", kmsg.ACLResourceTypeTopic, "__share_group_state", kmsg.ACLOperationRead),
		"nogroup":   allow("", kmsg.ACLResourceTypeGroup, "*", kmsg.ACLOperationDescribe),
		"nocluster": allow("", kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationClusterAction),
		"notopics":  allow("", kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationDescribe),
	}
	users := []sandbox.User{{Name: "admin", Password: "secret", Super: true}, {Name: "all", Password: "secret"}}
	var acls []sandbox.ACL
	grant := func(user string, but ...string) {
		users = append(users, sandbox.User{Name: user, Password: "secret"})
		for name, acl := range rights {
			if !slices.Contains(but, name) {
				acl.Principal = "User:" + user
				acls = append(acls, acl)
			}
		}
	}
	for name := range rights {
		grant(name, name)
	}
	grant("notopic", "noread", "notopics")
	acls = append(acls, allow("notopic", kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationDescribe))
	users = slices.DeleteFunc(users, func(u sandbox.User) bool { return u.Name == "all" })
	grant("all")
	// One ID of several does not do.
	grant("someids", "noids")
	acls = append(acls, allow("someids", kmsg.ACLResourceTypeTransactionalId, "billing-1", kmsg.ACLOperationDescribe))

	r := newRig(t, "admin", sandbox.WithUsers(users...), sandbox.WithACLs(acls...))
	_, n := r.stage("billing-1", wire.Accept)
	for _, c := range []struct {
		user    string
		want    []string // the ACLs that are missing
		pending bool     // seen all the same
	}{
		{"all", nil, true},
		{"noids", []string{"DESCRIBE on TRANSACTIONAL_ID *"}, true},
		{"someids", []string{"DESCRIBE on TRANSACTIONAL_ID *"}, true},
		{"noread", []string{"READ on TOPIC __share_group_state"}, true},
		{"nogroup", []string{"DESCRIBE on GROUP *"}, true},
		{"nocluster", []string{"CLUSTER_ACTION on CLUSTER kafka-cluster"}, true},
		{"notopics", []string{"DESCRIBE on TOPIC *"}, true},
		{"notopic", []string{"DESCRIBE on TOPIC *", "DESCRIBE on TOPIC __share_group_state"}, false},
	} {
		t.Run(c.user, func(t *testing.T) {
			tap := wiretap.New()
			ev := r.collect(r.connect(c.user, tap))
			var got []string
			for _, g := range ev.Gaps {
				if g.ACL == nil || g.Advice == "" || g.Reason == "" {
					t.Errorf("gap %+v", g)
					continue
				}
				got = append(got, g.ACL.String())
			}
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, c.want) {
				t.Errorf("missing %q, want %q", got, c.want)
			}
			seen := int64(0)
			for _, n := range pending(ev) {
				seen += n
			}
			if c.pending && seen != n || !c.pending && seen != 0 || len(ev.Ended) > 0 {
				t.Errorf("%d records pending, want %d: %t; ended %+v", seen, n, c.pending, ev.Ended)
			}
			tap.ReadOnly(t)
		})
	}
}

func allow(user string, resource kmsg.ACLResourceType, name string, op kmsg.ACLOperation) sandbox.ACL {
	return sandbox.ACL{
		Principal: "User:" + user, Resource: resource, Name: name,
		Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: op,
	}
}
