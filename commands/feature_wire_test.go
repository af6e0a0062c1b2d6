package commands_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// featureDoc is what tests read of the documents of the feature commands.
type featureDoc struct {
	Kind       string
	Incomplete bool
	Warnings   []string
	Items      []featureItem
	Data       struct {
		Changed, Validated, Confirmed, Raced bool
		Effects                              []string
		NoReturn                             []string `json:"points_of_no_return"`
		Transactions                         []struct {
			ID string `json:"transactional_id"`
		}
		Brokers []featureBroker
		Hints   []struct{ Command string }
	}
}

type featureItem struct {
	Feature   string
	ID        string
	State     string
	Max       *int16 `json:"supported_max"`
	Finalized *int16 `json:"finalized_level"`
	Level     *int16
	Applied   *bool
	Reason    *string
	Brokers   []struct {
		NodeID    int32  `json:"node_id"`
		Max       *int16 `json:"supported_max"`
		Finalized *int16 `json:"finalized_level"`
		Epoch     *int64
	}
}

type featureBroker struct {
	Verdict    string `json:"txn_share_acknowledge"`
	Advertised *bool  `json:"txn_share_acknowledge_advertised"`
}

// runFeature runs a feature command with -o json on a cluster.
func runFeature(t *testing.T, c *fakekafka.Cluster, code int, args ...string) (featureDoc, cmdtest.Result) {
	t.Helper()
	args = append([]string{"feature"}, args...)
	res := cmdtest.Run(t, cmdtest.Setup{Env: map[string]string{"KSHARE_BOOTSTRAP_SERVER": c.BootstrapServers()}}, append(args, "-o", "json")...).Want(t, code)
	var doc featureDoc
	if res.Stdout != "" {
		if err := json.Unmarshal([]byte(res.Stdout), &doc); err != nil {
			t.Fatalf("stdout of %v is no document: %v\n%s", args, err, res.Stdout)
		}
	}
	return doc, res
}

func (d featureDoc) item(t *testing.T, name string) int {
	t.Helper()
	for i, it := range d.Items {
		if it.Feature == name {
			return i
		}
	}
	t.Fatalf("no item %s in %+v", name, d)
	return -1
}

func deref[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// invalid is a broker's refusal of an update, in the way of a version.
func invalid(version int16, name, text string) func(int32, kmsg.Request) (kmsg.Response, bool) {
	return func(_ int32, r kmsg.Request) (kmsg.Response, bool) {
		req := r.(*kmsg.UpdateFeaturesRequest)
		if req.Version != version {
			return nil, false
		}
		resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
		if version == 2 {
			resp.ErrorCode, resp.ErrorMessage = kerr.InvalidUpdateVersion.Code, &text
			return resp, true
		}
		for _, u := range req.FeatureUpdates {
			res := kmsg.NewUpdateFeaturesResponseResult()
			res.Feature = u.Feature
			if u.Feature == name {
				res.ErrorCode, res.ErrorMessage = kerr.InvalidUpdateVersion.Code, &text
			}
			resp.Results = append(resp.Results, res)
		}
		return resp, true
	}
}

// R01, R05: a refusal in any version of the request is a failure, with the
// broker's own words, and nothing is said to be changed. R11: it is final.
func TestFeatureRefusedOnTheWire(t *testing.T) {
	const text = "Invalid update version 1 for feature share.version. Broker 2 says no."
	for version := range int16(3) {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) {
			c := fakekafka.Start(t, fakekafka.Config{})
			c.ChangeVersions(-1, func(r *kmsg.ApiVersionsResponse) { fakekafka.Serve(r, int16(kmsg.UpdateFeatures), version) })
			c.Answer(int16(kmsg.UpdateFeatures), invalid(version, "share.version", text))
			doc, res := runFeature(t, c, 1, "downgrade", "share.version=1", "--yes")
			if doc.Data.Changed || *doc.Items[0].Applied || deref(doc.Items[0].Reason) != text {
				t.Errorf("document says %+v, want nothing changed, for %q", doc, text)
			}
			line := res.ErrorLine(t)
			for k, want := range map[string]any{
				"feature": "share.version", "from_level": 2.0, "to_level": 1.0, "direction": "downgrade", "reason": text,
				"kafka_error": "INVALID_UPDATE_VERSION", "exit_code": 1.0,
			} {
				if line[k] != want {
					t.Errorf("error key %s is %v, want %v", k, line[k], want)
				}
			}
			if msg := line["error"].(string); !strings.Contains(msg, "lower share.version from 2 to 1") || !strings.Contains(msg, text) {
				t.Errorf("error %q", msg)
			}
			sent := c.Updates()
			if len(sent) != 1 {
				t.Fatalf("%d UpdateFeatures were sent, want 1", len(sent))
			}
			u := sent[0].FeatureUpdates[0]
			if version == 0 && !u.AllowDowngrade || version > 0 && u.UpgradeType != 2 || sent[0].ValidateOnly != (version > 0) {
				t.Errorf("sent %+v, want a safe downgrade, validated where the version can", sent[0])
			}
			if c.Level("share.version") != 2 {
				t.Error("the level was changed")
			}
		})
	}
}

// The same request is understood by brokers of every version.
func TestFeatureChangedOnTheWire(t *testing.T) {
	for version := range int16(3) {
		t.Run(fmt.Sprintf("v%d", version), func(t *testing.T) {
			c := fakekafka.Start(t, fakekafka.Config{})
			c.ChangeVersions(-1, func(r *kmsg.ApiVersionsResponse) { fakekafka.Serve(r, int16(kmsg.UpdateFeatures), version) })
			doc, _ := runFeature(t, c, 10, "downgrade", "share.version=1", "--yes", "--detailed-exitcode")
			if !doc.Data.Changed || !doc.Data.Confirmed || doc.Data.Validated != (version > 0) || deref(doc.Items[0].Level) != int16(1) {
				t.Errorf("document says %+v", doc)
			}
			// R47: what is already so changes nothing, and sends nothing.
			sent := len(c.Updates())
			doc, _ = runFeature(t, c, 0, "downgrade", "share.version=1", "--detailed-exitcode")
			if doc.Data.Changed || len(c.Updates()) != sent {
				t.Errorf("a second run says %+v and sends %d requests", doc, len(c.Updates())-sent)
			}
			code := 0
			if version == 0 {
				code = 5 // it cannot validate without making the change
			}
			runFeature(t, c, code, "downgrade", "share.version=0", "--dry-run")
			if c.Level("share.version") != 1 {
				t.Error("a dry run changed the level")
			}
		})
	}
}

// R06: a request is all or nothing, and only the culprit has the broker's words.
func TestFeatureOneCulprit(t *testing.T) {
	const text = "The update failed for all features since the following feature had an error: Invalid update version 99 for feature transaction.version."
	c := fakekafka.Start(t, fakekafka.Config{})
	c.SetLevel("share.version", 1)
	c.ChangeVersions(-1, func(r *kmsg.ApiVersionsResponse) { fakekafka.Support(r, "transaction.version", 0, 99) })
	c.Answer(int16(kmsg.UpdateFeatures), invalid(2, "transaction.version", text))
	doc, res := runFeature(t, c, 1, "upgrade", "--feature", "share.version=2", "--feature", "transaction.version=99", "--yes")
	sv, tv := doc.Items[doc.item(t, "share.version")], doc.Items[doc.item(t, "transaction.version")]
	if doc.Data.Changed || *sv.Applied || *tv.Applied {
		t.Errorf("document says %+v, want nothing applied", doc)
	}
	if deref(tv.Reason) != text || deref(sv.Reason) != "not applied: the request is atomic" {
		t.Errorf("reasons %v and %v", deref(sv.Reason), deref(tv.Reason))
	}
	if line := res.ErrorLine(t); line["feature"] != "transaction.version" || line["reason"] != text {
		t.Errorf("error %v, want it about transaction.version", line)
	}
	if n := len(c.Updates()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// R08: every broker is asked; one at the old software is a skew, and stops an
// upgrade before anything is sent.
func TestFeatureSkew(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{})
	c.SetLevel("share.version", 1)
	c.ChangeVersions(2, func(r *kmsg.ApiVersionsResponse) { fakekafka.Support(r, "share.version", 0, 1) })
	doc, _ := runFeature(t, c, 0, "describe")
	sv := doc.Items[doc.item(t, "share.version")]
	if sv.State != "skew" || deref(sv.Max) != int16(1) || len(sv.Brokers) != 3 || deref(sv.Brokers[2].Max) != int16(1) || deref(sv.Brokers[0].Max) != int16(2) || sv.Brokers[2].Epoch == nil {
		t.Errorf("share.version is %+v, want a skew with every broker", sv)
	}
	if len(doc.Warnings) != 1 || !strings.Contains(doc.Warnings[0], "broker 2 supports 0-1 and is at 1") {
		t.Errorf("warnings %q", doc.Warnings)
	}
	_, res := runFeature(t, c, 6, "upgrade", "share.version=2", "--yes")
	if msg := res.ErrorLine(t)["error"].(string); !strings.Contains(msg, "broker 2 supports 0-1 of share.version") || strings.Contains(msg, "broker 0") {
		t.Errorf("error %q, want it to name broker 2 alone", msg)
	}
	if n := len(c.Updates()); n != 0 {
		t.Errorf("%d UpdateFeatures were sent", n)
	}
}

// A broker that is silent, fenced or unreachable, or does not know the levels:
// the rest is shown within the time that was given, and nothing is changed.
func TestFeatureIncomplete(t *testing.T) {
	for name, c := range map[string]struct {
		node  int32
		setup func(*fakekafka.Cluster)
		want  string // of the warning
	}{
		"silent":      {1, func(c *fakekafka.Cluster) { c.Silence(1) }, "broker 1 (127.0.0.1:"},
		"unreachable": {7, func(c *fakekafka.Cluster) { c.AddUnreachable(7) }, "broker 7 (127.0.0.1:1) did not answer: broker 7: "},
		"fenced":      {8, func(c *fakekafka.Cluster) { c.AddFenced(8) }, "broker 8 is registered, but fenced"},
		"epoch -1": {0, func(c *fakekafka.Cluster) {
			c.ChangeVersions(0, func(r *kmsg.ApiVersionsResponse) { r.FinalizedFeatures, r.FinalizedFeaturesEpoch = nil, -1 })
		}, "broker 0 does not know which levels are finalized (epoch -1)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := fakekafka.Start(t, fakekafka.Config{})
			c.setup(k)
			// 3, and not 7: what the others say is shown before the time is up.
			doc, res := runFeature(t, k, 3, "describe", "--timeout", "4s")
			if !doc.Incomplete || len(doc.Warnings) != 1 || !strings.Contains(doc.Warnings[0], c.want) {
				t.Errorf("incomplete %v, warnings %q, want %q", doc.Incomplete, doc.Warnings, c.want)
			}
			sv := doc.Items[doc.item(t, "share.version")]
			if deref(sv.Finalized) != int16(2) || sv.State != "incomplete" {
				t.Errorf("share.version is %+v, want what the others say", sv)
			}
			for _, b := range sv.Brokers {
				if known := b.Finalized != nil; known == (b.NodeID == c.node) {
					t.Errorf("the level of broker %d is %v", b.NodeID, deref(b.Finalized))
				}
			}
			if len(doc.Data.Hints) > 0 {
				t.Errorf("hints %v while something is not known", doc.Data.Hints)
			}
			if line := res.ErrorLine(t); line["exit_code"] != 3.0 {
				t.Errorf("error %v", line)
			}
			for _, args := range [][]string{{"upgrade", "share.version=2"}, {"downgrade", "share.version=1"}, {"downgrade", "transaction.version=1", "--force-live-producers"}} {
				if args[0] == "upgrade" {
					k.SetLevel("share.version", 1)
				} else {
					k.SetLevel("share.version", 2)
				}
				_, res := runFeature(t, k, 6, append(args, "--yes", "--timeout", "4s")...)
				if msg := res.ErrorLine(t)["error"].(string); !strings.Contains(msg, c.want) {
					t.Errorf("%v: error %q, want %q", args, msg, c.want)
				}
			}
			if n := len(k.Updates()); n != 0 {
				t.Errorf("%d UpdateFeatures were sent", n)
			}
		})
	}
}

// R02, R03: on a stock 4.4 the numbers of the KIP mean other things. Everything
// says so, and no byte of keys 93 to 95 is ever sent.
func TestFeatureOnStock44(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{})
	c.SetLevel("share.version", 1)
	doc, _ := runFeature(t, c, 0, "describe")
	if want := []struct{ Command string }{{"kshare feature upgrade share.version=2"}}; !slices.Equal(doc.Data.Hints, want) {
		t.Errorf("hints %v, want %v", doc.Data.Hints, want)
	}
	_, res := runFeature(t, c, 64, "upgrade", "--feature", "share.version=2")
	for _, want := range []string{
		"share.version=2 means here: share groups with dead-letter queues (KIP-1191)",
		"not transactional acknowledgement (KIP-1289); it came with metadata.version 31 (4.4-IV0)",
		"point of no return: software older than Kafka 4.4 cannot start after this",
		"repeat the command with --yes",
	} {
		if !strings.Contains(res.Stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, res.Stderr)
		}
	}
	if n := len(c.Updates()); n != 0 {
		t.Errorf("%d UpdateFeatures were sent without consent", n)
	}
	_, res = runFeature(t, c, 5, "upgrade", "--enable", "txn-acks", "--yes")
	if msg := res.ErrorLine(t)["error"].(string); !strings.Contains(msg, "share.version=2 is share groups with dead-letter queues (KIP-1191) here and key 93 is StreamsGroupTopologyDescriptionUpdate") {
		t.Errorf("error %q", msg)
	}
	runFeature(t, c, 0, "plan", "--to", "share.version=2")
	runFeature(t, c, 0, "matrix")
	runFeature(t, c, 0, "upgrade", "share.version=2", "--yes")
	if c.Level("share.version") != 2 {
		t.Error("the level was not changed")
	}
	for key := int16(93); key <= 95; key++ {
		if n := len(c.Requests(key)); n != 0 {
			t.Errorf("%d requests of key %d were sent", n, key)
		}
	}
}

// On a terminal the name of the feature has to be typed.
func TestFeatureConsent(t *testing.T) {
	for typed, code := range map[string]int{"share.version\n": 0, "yes\n": 1, "": 1} {
		c := fakekafka.Start(t, fakekafka.Config{Brokers: 1})
		res := cmdtest.Run(t, cmdtest.Setup{TTY: true, Stdin: strings.NewReader(typed)}, "feature", "downgrade", "share.version=1", "-b", c.BootstrapServers()).Want(t, code)
		if want := `This is to lower share.version from 2 to 1 on cluster fake. Type "share.version" to go on: `; !strings.Contains(res.Stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, res.Stderr)
		}
		if changed := c.Level("share.version") == 1; changed != (code == 0) || !changed && len(c.Updates()) > 0 {
			t.Errorf("after %q the level is %d, with %d requests", typed, c.Level("share.version"), len(c.Updates()))
		}
	}
}

// An answer that is lost after the change was made is no failure.
func TestFeatureLostAnswer(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{})
	c.After(int16(kmsg.UpdateFeatures), func(int32) {
		if len(c.Updates()) == 1 { // the one that validates
			c.LoseAnswer(int16(kmsg.UpdateFeatures))
		}
	})
	doc, _ := runFeature(t, c, 0, "downgrade", "share.version=1", "--yes")
	if !doc.Data.Changed || len(doc.Warnings) != 1 || !strings.Contains(doc.Warnings[0], "the answer to the change was lost") {
		t.Errorf("document says %+v", doc)
	}
	if n := len(c.Updates()); n != 2 {
		t.Errorf("%d requests, want one that validates and one that changes", n)
	}
}

// The wait for a broker that does not learn of the level ends with 7.
func TestFeatureNotConfirmed(t *testing.T) {
	t.Parallel()
	c := fakekafka.Start(t, fakekafka.Config{})
	c.SetLevel("share.version", 1)
	c.ChangeVersions(1, func(r *kmsg.ApiVersionsResponse) {
		for i, f := range r.FinalizedFeatures {
			if f.Name == "share.version" {
				r.FinalizedFeatures[i].MaxVersionLevel = 1
			}
		}
	})
	doc, res := runFeature(t, c, 7, "upgrade", "share.version=2", "--yes", "--wait-timeout", "4s")
	if !doc.Data.Changed || doc.Data.Confirmed || doc.Items[0].Level != nil {
		t.Errorf("document says %+v, want it changed and not confirmed", doc)
	}
	if msg := res.ErrorLine(t)["error"].(string); !strings.Contains(msg, "broker 1 reports level 1 of share.version") {
		t.Errorf("error %q", msg)
	}
}

// openTransaction begins a transaction and leaves it open until the function
// that it returns is called.
func openTransaction(t *testing.T, c *fakekafka.Cluster, id string) (end func()) {
	t.Helper()
	p, err := kgo.NewClient(kgo.SeedBrokers(c.Addr(0)), kgo.TransactionalID(id), kgo.DefaultProduceTopic("out"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := p.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = p.EndTransaction(context.Background(), kgo.TryAbort)
		p.Close()
	}
}

// R12, R21: producers with open transactions stop the downgrade of
// transaction.version; so does a broker that does not list its own.
func TestFeatureLiveProducers(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{Topics: []string{"out"}})
	p := openTransaction(t, c, "worker-1")
	defer p()
	doc, res := runFeature(t, c, 6, "downgrade", "--feature", "transaction.version=1", "--yes")
	if len(doc.Data.Transactions) != 1 || doc.Data.Transactions[0].ID != "worker-1" || doc.Data.Changed {
		t.Errorf("document says %+v, want worker-1 in the way", doc)
	}
	if msg := res.ErrorLine(t)["error"].(string); !strings.Contains(msg, `1 producer has an open transaction: "worker-1" (Ongoing)`) {
		t.Errorf("error %q", msg)
	}
	plan, _ := runFeature(t, c, 0, "plan", "transaction.version=1")
	if i := slices.IndexFunc(plan.Items, func(it featureItem) bool {
		return it.ID == "drain"
	}); plan.Items[i].State != "blocked" {
		t.Errorf("the plan has %+v", plan.Items)
	}
	if n := len(c.Updates()); n != 0 {
		t.Errorf("%d UpdateFeatures were sent", n)
	}
	_, res = runFeature(t, c, 0, "downgrade", "transaction.version=1", "--yes", "--force-live-producers")
	if !strings.Contains(res.Stderr, `transaction \"worker-1\" is open (Ongoing`) || c.Level("transaction.version") != 1 {
		t.Errorf("level %d, stderr %s", c.Level("transaction.version"), res.Stderr)
	}
	c.SetLevel("transaction.version", 2)
	c.Answer(int16(kmsg.ListTransactions), func(node int32, req kmsg.Request) (kmsg.Response, bool) {
		return &kmsg.ListTransactionsResponse{Version: req.GetVersion(), ErrorCode: kerr.CoordinatorNotAvailable.Code}, node == 2
	})
	_, res = runFeature(t, c, 6, "downgrade", "transaction.version=1", "--yes")
	if msg := res.ErrorLine(t)["error"].(string); !strings.Contains(msg, "worker-1") {
		t.Errorf("error %q", msg)
	}
}

// The answers of a cluster to somebody without rights.
func TestFeatureNotAuthorised(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{})
	c.Answer(int16(kmsg.UpdateFeatures), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
		resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, true
	})
	doc, res := runFeature(t, c, 4, "downgrade", "share.version=1", "--yes")
	line := res.ErrorLine(t)
	if doc.Data.Changed || line["kafka_error"] != "CLUSTER_AUTHORIZATION_FAILED" || line["hint"] != "grant ALTER on the cluster to this principal" {
		t.Errorf("error %v", line)
	}
}

// The listener of a controller answers ApiVersions and nothing else of use.
func TestFeatureControllerAddress(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{Brokers: 1})
	c.ChangeVersions(-1, func(r *kmsg.ApiVersionsResponse) {
		fakekafka.Serve(r, int16(kmsg.Metadata), -1)
		fakekafka.Serve(r, int16(kmsg.Vote), 1)
	})
	_, res := runFeature(t, c, 64, "describe")
	line := res.ErrorLine(t)
	if msg := line["error"].(string); msg != c.Addr(0)+" is the listener of a KRaft controller, which serves brokers and not clients" || line["hint"] != "give the address of a broker" {
		t.Errorf("error %v", line)
	}
}

// A listener that wants TLS, and one that wants a login.
func TestFeatureWrongListener(t *testing.T) {
	for name, opt := range map[string]kfake.Opt{"TLS": kfake.TLS(selfSigned(t)), "SASL": kfake.EnableSASL()} {
		k, err := kfake.NewCluster(kfake.NumBrokers(1), opt)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		line := cmdtest.Run(t, cmdtest.Setup{}, "feature", "describe", "-b", k.ListenAddrs()[0], "-o", "json").Want(t, 4).ErrorLine(t)
		if hint, _ := line["hint"].(string); !strings.Contains(hint, "security.protocol") {
			t.Errorf("%s: error %v, want a hint that names security.protocol", name, line)
		}
	}
}

// selfSigned returns the configuration of a server with a certificate of its own.
func selfSigned(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

// Older brokers have no features to speak of.
func TestFeatureOnOldKafka(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{Versions: kversion.V4_0_0()})
	doc, _ := runFeature(t, c, 0, "describe")
	if slices.ContainsFunc(doc.Data.Brokers, func(b featureBroker) bool {
		return b.Verdict != "not supported" || b.Advertised != nil
	}) {
		t.Errorf("brokers %+v", doc.Data.Brokers)
	}
	_, res := runFeature(t, c, 5, "upgrade", "share.version=1", "--yes")
	line := res.ErrorLine(t)
	if msg := line["error"].(string); !strings.Contains(msg, `no broker knows feature "share.version"`) || line["feature"] != "share.version" {
		t.Errorf("error %v", line)
	}
}
