package sandbox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// joinShareGroup sends the first heartbeat of a member to the coordinator.
func joinShareGroup(t testing.TB, s *Sandbox, group, member, topic string) (*rawConn, *kmsg.ShareGroupHeartbeatResponse) {
	t.Helper()
	c := dialRaw(t, s, int(s.kafka.coordinator(group)))
	req := kmsg.NewPtrShareGroupHeartbeatRequest()
	req.Version, req.GroupID, req.MemberID, req.SubscribedTopicNames = 1, group, member, []string{topic}
	return c, askGateway[*kmsg.ShareGroupHeartbeatResponse](t, c, req)
}

// Share groups are listed and deleted beside those of kfake.
func TestShareGroupsAmongOthers(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t"}))
	ctx := testContext(t)
	classic := newTestClient(t, s, kgo.ConsumerGroup("classic"), kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	produceValues(t, newTestClient(t, s), "t", 1)
	consumeValues(t, classic, 1)
	if err := classic.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	classic.Close()
	conn, joined := joinShareGroup(t, s, "shared", "m-1", "t")
	if joined.ErrorCode != 0 {
		t.Fatalf("join: code %d", joined.ErrorCode)
	}

	list := func(types, states []string) map[string]string {
		found := make(map[string]string)
		for broker := range defaultBrokers {
			req := kmsg.NewPtrListGroupsRequest()
			req.Version, req.TypesFilter, req.StatesFilter = 5, types, states
			for _, g := range askGateway[*kmsg.ListGroupsResponse](t, dialRaw(t, s, broker), req).Groups {
				if _, twice := found[g.Group]; twice {
					t.Errorf("group %s is listed by two brokers", g.Group)
				}
				found[g.Group] = g.GroupType + "/" + g.GroupState
			}
		}
		return found
	}
	if got := list(nil, nil); got["shared"] != "share/Stable" || got["classic"] == "" || len(got) != 2 {
		t.Errorf("all groups: %v", got)
	}
	if got := list([]string{"Share"}, nil); len(got) != 1 || got["shared"] == "" {
		t.Errorf("share groups: %v", got)
	}
	if got := list([]string{"classic"}, nil); len(got) != 1 || got["classic"] == "" {
		t.Errorf("classic groups: %v", got)
	}
	if got := list(nil, []string{"Stable"}); len(got) != 1 || got["shared"] == "" {
		t.Errorf("stable groups: %v", got)
	}

	del := func(broker int32) map[string]int16 {
		req := kmsg.NewPtrDeleteGroupsRequest()
		req.Version, req.Groups = 2, []string{"shared", "classic", "none"}
		codes := make(map[string]int16)
		for _, g := range askGateway[*kmsg.DeleteGroupsResponse](t, dialRaw(t, s, int(broker)), req).Groups {
			codes[g.Group] = g.ErrorCode
		}
		return codes
	}
	coordinator := s.kafka.coordinator("shared")
	if got := del((coordinator + 1) % defaultBrokers); got["shared"] != kerr.NotCoordinator.Code || len(got) != 3 {
		t.Errorf("delete at another broker: %v", got)
	}
	if got := del(coordinator); got["shared"] != kerr.NonEmptyGroup.Code {
		t.Errorf("delete with a member: %v", got)
	}
	leave := kmsg.NewPtrShareGroupHeartbeatRequest()
	leave.Version, leave.GroupID, leave.MemberID, leave.MemberEpoch = 1, "shared", "m-1", -1
	if resp := askGateway[*kmsg.ShareGroupHeartbeatResponse](t, conn, leave); resp.ErrorCode != 0 {
		t.Fatalf("leave: code %d", resp.ErrorCode)
	}
	if got := del(coordinator); got["shared"] != 0 {
		t.Errorf("delete: %v", got)
	}
	if got := list([]string{"share"}, nil); len(got) != 0 {
		t.Errorf("after the deletion: %v", got)
	}
}

// With share.version 0 there are no share groups, and the requests are still
// advertised.
func TestShareVersionZero(t *testing.T) {
	s := startSandbox(t, WithBrokers(1), WithShareVersion(0), WithTopics(Topic{Name: "t"}))
	code := kerr.UnsupportedVersion.Code
	conn, joined := joinShareGroup(t, s, "g", "m", "t")
	if joined.ErrorCode != code {
		t.Errorf("heartbeat: code %d, want %d", joined.ErrorCode, code)
	}
	describe := kmsg.NewPtrShareGroupDescribeRequest()
	describe.Version, describe.GroupIDs = 1, []string{"g"}
	if got := askGateway[*kmsg.ShareGroupDescribeResponse](t, conn, describe).Groups; len(got) != 1 || got[0].ErrorCode != code {
		t.Errorf("describe: %+v", got)
	}
	offsets := kmsg.NewPtrDescribeShareGroupOffsetsRequest()
	rg := kmsg.NewDescribeShareGroupOffsetsRequestGroup()
	rg.GroupID = "g"
	offsets.Groups = append(offsets.Groups, rg)
	if got := askGateway[*kmsg.DescribeShareGroupOffsetsResponse](t, conn, offsets).Groups; len(got) != 1 || got[0].ErrorCode != code {
		t.Errorf("describe offsets: %+v", got)
	}
	fetch := kmsg.NewPtrShareFetchRequest()
	fetch.Version = 1
	if got := askGateway[*kmsg.ShareFetchResponse](t, conn, fetch); got.ErrorCode != code {
		t.Errorf("fetch: code %d", got.ErrorCode)
	}

	raise := updateShareVersion(1)
	raise.FeatureUpdates[0].UpgradeType = 1
	if resp := askGateway[*kmsg.UpdateFeaturesResponse](t, conn, raise); resp.ErrorCode != 0 {
		t.Fatalf("raise: %d %s", resp.ErrorCode, *resp.ErrorMessage)
	}
	if _, joined := joinShareGroup(t, s, "g", "m", "t"); joined.ErrorCode != 0 {
		t.Errorf("heartbeat at level 1: code %d", joined.ErrorCode)
	}
}

// TxnShareAcknowledge is known to the binary before its level is finalized, and
// is answered, not a reason to close the connection.
func TestTxnShareAcknowledgeBeforeItsLevel(t *testing.T) {
	for _, d := range wire.Dialects() {
		s := startSandbox(t, WithBrokers(1), WithDialect(d), WithShareVersion(d.ShareVersion-1))
		req := wire.NewTxnShareAcknowledgeRequest(d)
		req.TransactionalID, req.GroupID, req.MemberID = kmsg.StringPtr("txn"), "g", "m"
		resp := askGateway[*wire.TxnShareAcknowledgeResponse](t, dialRaw(t, s, 0), req)
		if resp.ErrorCode != kerr.UnsupportedVersion.Code {
			t.Errorf("%s: code %d, want %d", d.Name, resp.ErrorCode, kerr.UnsupportedVersion.Code)
		}
	}
}

// waitingPlane holds each request until its client is gone.
type waitingPlane struct {
	sharePlane
	called, closed chan caller
}

func (p *waitingPlane) handle(ctx context.Context, c caller, req kmsg.Request) (kmsg.Response, error) {
	p.called <- c
	select {
	case <-c.gone:
	case <-ctx.Done():
	}
	return req.ResponseKind(), nil
}

func (p *waitingPlane) connectionClosed(c caller) { p.closed <- c }

// That a client went away is seen while its request waits.
func TestClientGoneWhileItWaits(t *testing.T) {
	p := &waitingPlane{called: make(chan caller, 1), closed: make(chan caller, 1)}
	s := startSandbox(t, WithBrokers(1), func(c *config) {
		c.wrapPlane = func(inner sharePlane) sharePlane { p.sharePlane = inner; return p }
	})
	c := dialRaw(t, s, 0)
	req := kmsg.NewPtrShareFetchRequest()
	req.Version, req.MaxWaitMillis = 1, 1<<30
	if err := c.sendRaw(c.format.AppendRequest(nil, req, 1)[4:]); err != nil {
		t.Fatal(err)
	}
	called := <-p.called
	_ = c.Close()
	select {
	case closed := <-p.closed:
		if closed.conn != called.conn {
			t.Errorf("connection %d closed, the request came on %d", closed.conn, called.conn)
		}
	case <-testContext(t).Done():
		t.Fatal("the connection was not closed")
	}
}

// slowPlane lets a stage wait, and count as pending once it is done.
type slowPlane struct {
	sharePlane
	staging, finish chan struct{}
	pending         int
}

func (p *slowPlane) handle(_ context.Context, _ caller, req kmsg.Request) (kmsg.Response, error) {
	close(p.staging)
	<-p.finish
	p.pending = 5
	return req.ResponseKind(), nil
}

func (p *slowPlane) pendingCount() int { return p.pending }

// A downgrade waits for a stage under way: it must not slip between the check of
// the level and the count of pending records.
func TestDowngradeWaitsForStaging(t *testing.T) {
	p := &slowPlane{staging: make(chan struct{}), finish: make(chan struct{})}
	s := startSandbox(t, WithBrokers(1), func(c *config) {
		c.wrapPlane = func(inner sharePlane) sharePlane { p.sharePlane = inner; return p }
	})
	stage := wire.NewTxnShareAcknowledgeRequest(s.Dialect())
	staged := make(chan error, 1)
	conn := dialRaw(t, s, 0)
	go func() {
		_, err := conn.roundTrip(stage)
		staged <- err
	}()
	<-p.staging
	if s.gateway.features.staging.TryLock() {
		t.Fatal("a stage under way does not hold the lock")
	}
	updated := make(chan *kmsg.UpdateFeaturesResponse, 1)
	other := dialRaw(t, s, 0)
	go func() {
		resp, _ := other.roundTrip(updateShareVersion(1))
		updated <- resp.(*kmsg.UpdateFeaturesResponse)
	}()
	close(p.finish)
	if err := <-staged; err != nil {
		t.Fatal(err)
	}
	if resp := <-updated; resp.ErrorCode != kerr.InvalidUpdateVersion.Code || s.ShareVersion() != 2 {
		t.Errorf("downgrade: code %d, level %d; want it refused", resp.ErrorCode, s.ShareVersion())
	}
}

func TestTLS(t *testing.T) {
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	s := startSandbox(t, WithTLS(&tls.Config{Certificates: web.TLS.Certificates}), withSASLUsers(), WithTopics(Topic{Name: "t"}))
	cl := newTestClient(t, s, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}), kgo.SASL(saslUsers[1].auth))
	produceValues(t, cl, "t", 10)
	plain := dialRaw(t, s, 0)
	if _, err := plain.roundTrip(kmsg.NewPtrApiVersionsRequest()); err == nil {
		t.Error("a plain connection was served")
	}
}

func TestTopicAutoCreation(t *testing.T) {
	for _, auto := range []bool{true, false} {
		var opts []Option
		if auto {
			opts = append(opts, WithTopicAutoCreation())
		}
		s := startSandbox(t, opts...)
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.AllowAutoTopicCreation = 12, true
		for _, name := range []string{"new", "../bad"} {
			rt := kmsg.NewMetadataRequestTopic()
			rt.Topic = kmsg.StringPtr(name)
			req.Topics = []kmsg.MetadataRequestTopic{rt}
			resp := askGateway[*kmsg.MetadataResponse](t, dialRaw(t, s, 0), req)
			if created, want := resp.Topics[0].ErrorCode == 0, auto && name == "new"; created != want {
				t.Errorf("auto creation %v: %q created: %v (code %d)", auto, name, created, resp.Topics[0].ErrorCode)
			}
		}
	}
}
