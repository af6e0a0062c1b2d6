package inspect_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/wiretap"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What the commands look at, in the middle of a transaction: in both dialects, and
// wherever TX_PENDING is kept. Nothing is changed by looking.
func TestDescribeOnSandbox(t *testing.T) {
	for _, where := range []sandbox.PendingState{sandbox.PendingPersisted, sandbox.PendingMemory} {
		t.Run(where.String(), func(t *testing.T) {
			eachDialect(t, func(t *testing.T, d wire.Dialect) { describeOnSandbox(t, d, where) })
		})
	}
}

func describeOnSandbox(t *testing.T, d wire.Dialect, where sandbox.PendingState) {
	t.Helper()
	r := newRig(t, "", sandbox.WithDialect(d), sandbox.WithPendingState(where))
	_, n := r.stage("billing-1", wire.Accept)
	tap := wiretap.New()
	cl := r.connect("", tap)
	ctx := t.Context()

	txns, err := inspect.DescribeTransactions(ctx, cl, inspect.TxnOptions{})
	if err != nil || len(txns.Gaps) > 0 || len(txns.Rows) != 1 || !*txns.Rows[0].HoldsShareAcks || txns.Rows[0].AgeMS == nil || txns.Rows[0].Deadline == nil {
		t.Fatalf("transactions %+v, %v, want the one that holds share acknowledgements", txns, err)
	}
	staged := txns.Rows[0].Partitions

	groups, err := inspect.DescribeGroups(ctx, cl, inspect.GroupOptions{GroupIDs: []string{"g"}})
	if err != nil || len(groups.Gaps) > 0 || len(groups.Groups) != 1 {
		t.Fatalf("groups %+v, %v", groups, err)
	}
	g := groups.Groups[0]
	lag := int64(0) // nothing is done yet of what the member has begun to fetch
	for _, p := range g.SharePartitions {
		if p.StartOffset != nil {
			lag += *p.EndOffset
		}
	}
	if lag < n || *g.Lag != lag || *g.MemberCount != 1 || *g.RecordLockDurationMS != 30_000 || g.DeadLetterQueue != nil || g.TxPending.Status != inspect.StatusPending {
		t.Errorf("group %+v, %+v, want all records to lag, and some to be pending", g, g.GroupDescription)
	}
	if want := map[sandbox.PendingState]int64{sandbox.PendingPersisted: n}[where]; g.TxPending.Records != want {
		t.Errorf("%d records are pending, want %d", g.TxPending.Records, want)
	}

	pending, likely := int64(0), 0
	for p := range int32(2) {
		part, err := inspect.DescribePartition(ctx, cl, inspect.PartitionOptions{GroupID: "g", Topic: "in", Partition: p})
		if err != nil || len(part.Gaps) > 0 || !part.StateRead {
			t.Fatalf("share-partition %+v, %v", part, err)
		}
		for _, row := range part.Pending {
			if row.Verdict == inspect.VerdictLikely || row.Verdict == inspect.VerdictPossible {
				likely++
				if parts := staged[slices.IndexFunc(staged, func(tp inspect.TopicPartitions) bool { return tp.Topic == "__share_group_state" })].Partitions; !slices.Contains(parts, *part.StatePartition) {
					t.Errorf("partition %d may have pending records, and its state is in %d, which is not of %v", p, *part.StatePartition, parts)
				}
			}
		}
		for _, x := range part.Ranges {
			if x.RecordState != wire.TxPending {
				continue
			}
			pending += x.Count
			if *x.Owner.TransactionalID != "billing-1" || *x.Owner.AcknowledgeType != "accept" || x.Owner.Verdict != inspect.VerdictExact {
				t.Errorf("range %+v of %+v, want it to be exactly that of billing-1", x, x.Owner)
			}
			first, last, ok := part.Window(80)
			if !ok || !slices.ContainsFunc(part.Strip(first, last, 80), func(b inspect.Bucket) bool { return !b.Unknown && b.State == wire.TxPending }) {
				t.Errorf("the strip of %+v shows nothing pending", part)
			}
		}
	}
	if where == sandbox.PendingPersisted && (pending != n || likely > 0) || where == sandbox.PendingMemory && (pending != 0 || likely == 0) {
		t.Errorf("%d records pending for certain, and %d rows that are not, want %d in all", pending, likely, n)
	}

	hanging, err := inspect.ListHanging(ctx, cl, inspect.HangingOptions{})
	if err != nil || len(hanging.Gaps)+len(hanging.Rows) > 0 || hanging.Partitions < 2 {
		t.Errorf("hanging %+v, %v, want none", hanging, err)
	}
	tap.ReadOnly(t)
}

// A topic that is deleted, or another one by now, appears as such.
func TestDescribeADeletedTopicOnSandbox(t *testing.T) {
	r := newRig(t, "")
	r.stage("billing-1", wire.Accept)
	cl := r.connect("", nil)
	k, err := cl.NewKgo()
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if _, err := kadm.NewClient(k).DeleteTopics(t.Context(), "in"); err != nil {
		t.Fatal(err)
	}
	groups, err := inspect.DescribeGroups(t.Context(), cl, inspect.GroupOptions{GroupIDs: []string{"g"}})
	if err != nil || len(groups.Groups) != 1 || !strings.Contains(strings.Join(groups.Notes, "; "), `topic "in", which members of share group "g" subscribe to, does not exist`) {
		t.Errorf("groups %+v, %v, want a note that the topic does not exist", groups, err)
	}
	_, err = inspect.DescribePartition(t.Context(), cl, inspect.PartitionOptions{GroupID: "g", Topic: "in"})
	if e, ok := errors.AsType[*cluster.Error](err); !ok || !strings.Contains(e.Hint(), "inspect pending") {
		t.Errorf("share-partition of a deleted topic: %v, want where to look for what is pending", err)
	}
	if _, err := kadm.NewClient(k).CreateTopic(t.Context(), 2, 1, nil, "in"); err != nil {
		t.Fatal(err)
	}
	part, err := inspect.DescribePartition(t.Context(), cl, inspect.PartitionOptions{GroupID: "g", Topic: "in"})
	if err != nil || slices.ContainsFunc(part.Ranges, func(x inspect.RangeRow) bool { return x.RecordState == wire.TxPending }) {
		t.Errorf("share-partition of the topic that has the name now: %+v, %v, want nothing of the old one", part, err)
	}
}

// Without DESCRIBE on topics a broker leaves share-partitions out, and without
// DESCRIBE on a group all of it.
func TestDescribeByRightsOnSandbox(t *testing.T) {
	users := []sandbox.User{{Name: "admin", Password: "secret", Super: true}, {Name: "notopics", Password: "secret"}, {Name: "other", Password: "secret"}}
	r := newRig(t, "admin", sandbox.WithUsers(users...), sandbox.WithACLs(
		allow("notopics", kmsg.ACLResourceTypeGroup, "*", kmsg.ACLOperationDescribe),
		allow("other", kmsg.ACLResourceTypeGroup, "h", kmsg.ACLOperationDescribe),
		allow("other", kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationDescribe),
	))
	r.stage("billing-1", wire.Accept)
	for _, c := range []struct {
		user  string
		named bool
		want  string // a gap
		auth  bool
	}{
		{"notopics", false, "DESCRIBE on TOPIC *", false},
		{"notopics", true, "DESCRIBE on TOPIC *", false},
		{"other", false, "DESCRIBE on GROUP *", false},
		{"other", true, "DESCRIBE on GROUP g", true},
	} {
		o := inspect.GroupOptions{}
		if c.named {
			o.GroupIDs = []string{"g"}
		}
		rep, err := inspect.DescribeGroups(t.Context(), r.connect(c.user, nil), o)
		if _, auth := errors.AsType[*cluster.AuthError](err); auth != c.auth || err != nil && !auth {
			t.Errorf("%s, named %t: error %v", c.user, c.named, err)
		}
		if !slices.ContainsFunc(rep.Gaps, func(g inspect.Gap) bool { return g.ACL != nil && g.ACL.String() == c.want }) {
			t.Errorf("%s, named %t: gaps %+v, want one that names %s", c.user, c.named, rep.Gaps, c.want)
		}
		for _, g := range rep.Groups {
			if c.user == "notopics" && g.SharePartitionCount != nil && *g.SharePartitionCount > 0 {
				t.Errorf("group %+v, want no share-partition to be seen", g)
			}
		}
	}
}
