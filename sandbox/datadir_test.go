package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// startAgain starts a sandbox on a data directory; the test closes it.
func startAgain(t testing.TB, dir string, opts ...Option) *Sandbox {
	t.Helper()
	s, err := Start(t.Context(), append([]Option{WithDataDir(dir), WithLogger(t.Logf)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func closeSandbox(t testing.TB, s *Sandbox) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestRestartKeepsEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dir")
	s := startAgain(t, dir, WithTopics(Topic{Name: "t", Partitions: 2}))
	id := s.ClusterID()
	topic, _ := s.kafka.topicByName("t")
	produceValues(t, newTestClient(t, s), "t", 50)
	if resp := s.gateway.features.updateFeatures(updateShareVersion(1)); resp.ErrorCode != 0 {
		t.Fatal(*resp.ErrorMessage)
	}
	alterGroup(t, s, "g", map[string]string{"share.renew.acknowledge.enable": "false", "share.isolation.level": "read_committed"})
	c := dialCoordinator(t, s, "txn")
	producerID, epoch := c.init(t)
	c.register(t, producerID, epoch, 3, 17)
	done := dialCoordinator(t, s, "done")
	donePID, doneEpoch := done.init(t)
	done.register(t, donePID, doneEpoch, 3)
	done.end(t, 5, donePID, doneEpoch, true)
	closeSandbox(t, s)

	s = startAgain(t, dir, WithTopics(Topic{Name: "t", Partitions: 2}))
	if s.ClusterID() != id {
		t.Errorf("cluster ID %q, was %q", s.ClusterID(), id)
	}
	if again, ok := s.kafka.topicByName("t"); !ok || again != topic {
		t.Errorf("topic %+v, was %+v", again, topic)
	}
	if level := s.ShareVersion(); level != 1 {
		t.Errorf("share.version %d, was 1", level)
	}
	if _, epoch := s.gateway.features.snapshot(); epoch != 2 {
		t.Errorf("features epoch %d, was 2", epoch)
	}
	for name, want := range map[string]string{"share.renew.acknowledge.enable": "false", "share.isolation.level": "read_committed"} {
		if got := s.kafka.groupConfig("g", name); got != want {
			t.Errorf("%s of the group is %q, was %q", name, got, want)
		}
	}
	open, err := s.kafka.listTransactions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(open) != 1 || open[0].transactionalID != "txn" || open[0].producerID != producerID || !slices.Equal(open[0].statePartitions, []int32{3, 17}) {
		t.Errorf("open transactions with share acknowledgements: %+v", open)
	}
	if resp := dialCoordinator(t, s, "txn").end(t, 5, producerID, epoch, true); resp.ErrorCode != 0 {
		t.Errorf("commit after the restart: code %d", resp.ErrorCode)
	}
	cl := newTestClient(t, s, kgo.ConsumeTopics("t"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	consumeValues(t, cl, 50)
}

func updateShareVersion(level int16) *kmsg.UpdateFeaturesRequest {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.Version = 2
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.Feature, u.MaxVersionLevel, u.UpgradeType = "share.version", level, 3
	req.FeatureUpdates = append(req.FeatureUpdates, u)
	return req
}

// Users may change from run to run, whatever kfake has kept of them.
func TestRestartWithOtherUsers(t *testing.T) {
	dir := t.TempDir()
	closeSandbox(t, startAgain(t, dir, WithUsers(User{Name: "old", Password: "p"})))
	s := startAgain(t, dir, withSASLUsers())
	for _, u := range saslUsers {
		if err := newTestClient(t, s, kgo.SASL(u.auth)).Ping(testContext(t)); err != nil {
			t.Errorf("%s: %v", u.user.Name, err)
		}
	}
}

func TestDataDirOfAnotherSandbox(t *testing.T) {
	dir := t.TempDir()
	s := startAgain(t, dir)
	if _, err := Start(t.Context(), WithDataDir(dir)); err == nil {
		t.Error("two sandboxes on one data directory")
	} else if _, ok := errors.AsType[*InUseError](err); !ok || !strings.Contains(err.Error(), dir) {
		t.Errorf("second sandbox: %v", err)
	}
	closeSandbox(t, s)
	for what, opt := range map[string]Option{
		"dialect": WithDialect(testDialect(t, "draft")), "number of brokers": WithBrokers(5), "pending state": WithPendingState(PendingMemory),
	} {
		s, err := Start(t.Context(), WithDataDir(dir), opt)
		if err == nil {
			_ = s.Close()
			t.Errorf("started with another %s", what)
			continue
		}
		if m, ok := errors.AsType[*MismatchError](err); !ok || m.What != what || m.Dir != dir {
			t.Errorf("%s: %v", what, err)
		}
	}
	startAgain(t, dir) // and nothing was harmed
}

func TestDataDirBroken(t *testing.T) {
	for name, content := range map[string]string{"not JSON": "{", "of a later kshare": `{"format": 99}`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "sandbox.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := Start(t.Context(), WithDataDir(dir)); err == nil {
			_ = s.Close()
			t.Errorf("%s: started", name)
		} else if !strings.Contains(err.Error(), "sandbox.json") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
