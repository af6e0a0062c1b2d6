package doctor_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/cluster/auth"
	"github.com/kshare/kshare/internal/doctor"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func run(t *testing.T, o doctor.Options, servers ...string) (*doctor.Report, error) {
	t.Helper()
	o.Cluster.BootstrapServers = servers
	o.Cluster.DialTimeout = time.Second
	o.Now = time.Now
	r, err := doctor.Run(t.Context(), o)
	if r == nil {
		t.Fatalf("Run = %v without a report", err)
	}
	return r, err
}

// of lists the findings of a check: "subject: state: detail".
func of(r *doctor.Report, check string) []string {
	var out []string
	for _, f := range r.Findings {
		if f.Check == check {
			out = append(out, fmt.Sprintf("%s: %s: %s", f.Subject, f.State, f.Detail))
		}
	}
	return out
}

func wantPrefixes(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	ok := len(got) == len(want)
	for i := range want {
		ok = ok && strings.HasPrefix(got[i], want[i])
	}
	if !ok {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const everything = 1<<31 - 1

// allow answers as a cluster that lets this principal do everything.
func allow(k *fakekafka.Cluster) {
	k.Answer(int16(kmsg.DescribeCluster), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
		if !req.(*kmsg.DescribeClusterRequest).IncludeClusterAuthorizedOperations {
			return nil, false
		}
		resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
		resp.ClusterAuthorizedOperations = everything
		return resp, true
	})
}

func TestHealthyCluster(t *testing.T) {
	k := fakekafka.Start(t, fakekafka.Config{Topics: []string{"orders"}})
	allow(k)
	r, err := run(t, doctor.Options{Topics: []string{"orders"}, TransactionalIDs: []string{"x"}}, k.Addr(0), k.Addr(1))
	if err != nil {
		t.Fatal(err)
	}
	if r.ClusterID != "fake" || r.Incomplete() {
		t.Errorf("cluster %q, incomplete %v: %+v", r.ClusterID, r.Incomplete(), r.Findings)
	}
	wantPrefixes(t, "bootstrap servers", of(r, "bootstrap_server"), k.Addr(0)+": ok: answers, PLAINTEXT", k.Addr(1)+": ok: ")
	wantPrefixes(t, "identity", of(r, "identity"), ": ok: User:ANONYMOUS")
	wantPrefixes(t, "cluster", of(r, "cluster"), "fake: ok: fake, 3 brokers")
	wantPrefixes(t, "brokers", of(r, "broker"), "0: ok: "+k.Addr(0)+" answers, with ", "1: ok: ", "2: ok: ")
	// A stock Kafka 4.4: nothing is wrong with it, it just cannot.
	wantPrefixes(t, "dialect", of(r, "txn_share_acknowledge"), ": warning: transactional acknowledgement (KIP-1289): not supported: ")
	wantPrefixes(t, "state topics", of(r, "state_topic"), "__share_group_state: ok: is not there", "__transaction_state: ok: is not there")
}

func TestWhatIsWrongWithBrokers(t *testing.T) {
	k := fakekafka.Start(t, fakekafka.Config{})
	allow(k)
	k.AddFenced(7)
	k.AddUnreachable(9)
	r, err := run(t, doctor.Options{}, k.Addr(0), "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	if !r.Incomplete() {
		t.Error("the report is not incomplete")
	}
	wantPrefixes(t, "bootstrap servers", of(r, "bootstrap_server"), k.Addr(0)+": ok: ", "127.0.0.1:1: failed: no bootstrap server answered")
	wantPrefixes(t, "cluster", of(r, "cluster"), "fake: failed: fake, 5 brokers, 2 of 5 brokers do not answer")
	wantPrefixes(t, "brokers", of(r, "broker"), "0: ok: ", "1: ok: ", "2: ok: ", "7: failed: 127.0.0.1:1 is registered, but fenced", "9: failed: 127.0.0.1:1 does not answer: ")
}

// Nobody answers, or nobody lets one in: the report says so of each, and the
// error is the first.
func TestNoWayIn(t *testing.T) {
	r, err := run(t, doctor.Options{}, "127.0.0.1:1")
	if _, ok := errors.AsType[*cluster.DialError](err); !ok || len(r.Findings) != 1 || r.Findings[0].State != doctor.Failed || r.Findings[0].Advice == "" {
		t.Errorf("Run = %+v, %v", r, err)
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "right"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o := auth.Options{SASL: &auth.SASL{Name: "PLAIN", User: "u", Password: "wrong"}}
	_, mechanisms, err := o.Client()
	if err != nil {
		t.Fatal(err)
	}
	r, err = run(t, doctor.Options{Identity: o, Cluster: cluster.Config{SASL: mechanisms}}, c.ListenAddrs()...)
	if _, ok := errors.AsType[*cluster.AuthError](err); !ok || len(r.Findings) != 1 || strings.Contains(fmt.Sprintf("%+v %v", r, err), "wrong") {
		t.Errorf("Run with a wrong password = %+v, %v", r, err)
	}
	o.SASL.Password = "right"
	if _, mechanisms, err = o.Client(); err != nil {
		t.Fatal(err)
	}
	r, err = run(t, doctor.Options{Identity: o, Cluster: cluster.Config{SASL: mechanisms}}, c.ListenAddrs()...)
	if err != nil {
		t.Fatal(err)
	}
	wantPrefixes(t, "identity", of(r, "identity"), ": ok: User:u, logged in by PLAIN")
}

// What brokers say of ACLs, and what they do not.
func TestAccess(t *testing.T) {
	const describeAndRead = 1<<kmsg.ACLOperationDescribe | 1<<kmsg.ACLOperationRead
	k := fakekafka.Start(t, fakekafka.Config{Brokers: 1, Topics: []string{"orders"}})
	k.Answer(int16(kmsg.DescribeCluster), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
		if !req.(*kmsg.DescribeClusterRequest).IncludeClusterAuthorizedOperations {
			return nil, false
		}
		resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
		resp.ClusterAuthorizedOperations = 0 // DESCRIBE is missing
		return resp, true
	})
	k.Answer(int16(kmsg.Metadata), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
		r := req.(*kmsg.MetadataRequest)
		if !r.IncludeTopicAuthorizedOperations {
			return nil, false
		}
		resp := req.ResponseKind().(*kmsg.MetadataResponse)
		t := kmsg.NewMetadataResponseTopic()
		t.Topic = r.Topics[0].Topic
		switch *t.Topic {
		case "orders":
			t.AuthorizedOperations = describeAndRead
		case "nope":
			t.ErrorCode = kerr.UnknownTopicOrPartition.Code
		default:
			t.ErrorCode = kerr.TopicAuthorizationFailed.Code
		}
		resp.Topics = append(resp.Topics, t)
		return resp, true
	})
	k.Answer(int16(kmsg.ShareGroupDescribe), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
		resp := req.ResponseKind().(*kmsg.ShareGroupDescribeResponse)
		g := kmsg.NewShareGroupDescribeResponseGroup()
		g.GroupID = req.(*kmsg.ShareGroupDescribeRequest).GroupIDs[0]
		switch g.GroupID {
		case "seen":
			g.AuthorizedOperations = describeAndRead
		case "new":
			g.ErrorCode = kerr.GroupIDNotFound.Code
		default:
			g.ErrorCode = kerr.GroupAuthorizationFailed.Code
		}
		resp.Groups = append(resp.Groups, g)
		return resp, true
	})
	k.Answer(int16(kmsg.DescribeTransactions), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
		resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		s := kmsg.NewDescribeTransactionsResponseTransactionState()
		if s.TransactionalID = req.(*kmsg.DescribeTransactionsRequest).TransactionalIDs[0]; s.TransactionalID != "mine" {
			s.ErrorCode = kerr.TransactionalIDAuthorizationFailed.Code
		}
		resp.TransactionStates = append(resp.TransactionStates, s)
		return resp, true
	})
	r, err := run(t, doctor.Options{
		Topics: []string{"orders", "nope", "hidden"}, Groups: []string{"seen", "new", "hidden"}, TransactionalIDs: []string{"mine", "it's"},
	}, k.Addr(0))
	if err != nil {
		t.Fatal(err)
	}
	wantPrefixes(t, "ACLs", of(r, "acl"),
		"cluster: warning: missing: DESCRIBE: ", "cluster: unknown: ALTER: ", "cluster: unknown: CLUSTER_ACTION: ", "cluster: unknown: DESCRIBE_CONFIGS: ",
		"topic __share_group_state: warning: missing: DESCRIBE: ", "topic __share_group_state: unknown: READ: ",
		"topic orders: ok: DESCRIBE: ", "topic orders: ok: READ: ", "topic orders: warning: missing: WRITE: ",
		"topic nope: unknown: there is no such topic",
		"topic hidden: warning: missing: DESCRIBE: ", "topic hidden: unknown: READ: ", "topic hidden: unknown: WRITE: ",
		"group seen: ok: DESCRIBE: ", "group seen: ok: READ: ", "group seen: warning: missing: DESCRIBE_CONFIGS: ", "group seen: warning: missing: ALTER_CONFIGS: ",
		"group new: ok: DESCRIBE: ", "group new: unknown: the group does not exist yet",
		"group hidden: warning: missing: DESCRIBE: ", "group hidden: unknown: READ: ", "group hidden: unknown: DESCRIBE_CONFIGS: ", "group hidden: unknown: ALTER_CONFIGS: ",
		"transactional_id *: warning: missing: DESCRIBE: ", "transactional_id mine: ok: DESCRIBE: ", "transactional_id it's: warning: missing: DESCRIBE: ",
	)
	wantPrefixes(t, "state topics", of(r, "state_topic"), "__share_group_state: unknown: hidden: TOPIC_AUTHORIZATION_FAILED", "__transaction_state: unknown: hidden: ")
	advice := map[string]string{
		"cluster":                   "bin/kafka-acls.sh --add --allow-principal User:NAME --operation Describe --cluster",
		"topic orders":              "bin/kafka-acls.sh --add --allow-principal User:NAME --operation Write --topic orders",
		"group seen":                "bin/kafka-acls.sh --add --allow-principal User:NAME --operation DescribeConfigs --group seen",
		"transactional_id *":        "bin/kafka-acls.sh --add --allow-principal User:NAME --operation Describe --transactional-id '*'",
		"transactional_id it's":     `bin/kafka-acls.sh --add --allow-principal User:NAME --operation Describe --transactional-id 'it'\''s'`,
		"topic __share_group_state": "bin/kafka-acls.sh --add --allow-principal User:NAME --operation Describe --topic __share_group_state",
	}
	for subject, want := range advice {
		if !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.Check == "acl" && f.Subject == subject && f.Advice == want }) {
			t.Errorf("no finding about %s advises %q", subject, want)
		}
	}
	// Nothing was sent that changes anything.
	for _, key := range []kmsg.Key{kmsg.InitProducerID, kmsg.CreateTopics, kmsg.Produce, kmsg.ShareFetch, kmsg.ShareGroupHeartbeat, kmsg.UpdateFeatures, kmsg.CreateACLs} {
		if n := len(k.Requests(int16(key))); n > 0 {
			t.Errorf("%d %s requests were sent", n, key.Name())
		}
	}
}
