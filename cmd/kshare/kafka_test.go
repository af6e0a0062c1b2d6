//go:build unix

package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// notOnKafka are the scripts that a real Kafka has no part in, and why.
var notOnKafka = map[string]string{
	"ack_unknown.txtar":         "is about answers that a sandbox is told to lose",
	"completion.txtar":          "connects to no cluster",
	"config_check.txtar":        "connects to no cluster",
	"config_contexts.txtar":     "connects to no cluster",
	"ctp_interrupted.txtar":     "is about the sandbox in the process of ctp --sandbox",
	"ctp_sandbox.txtar":         "is about ctp --sandbox, and copies in transactions, which no release of Kafka can; ctp_guarantee.txtar runs on both",
	"demo.txtar":                "is about the demonstration, which has a sandbox of its own",
	"feature_tables.txtar":      "connects to no cluster",
	"inspect_metrics.txtar":     "is about the metrics that the sandbox serves; a test of package inspect reads those of Kafka",
	"sandbox_fault.txtar":       "is about the sandbox",
	"runbook_rows.txtar":        "connects to no cluster",
	"sandbox_run.txtar":         "is about the sandbox",
	"sandbox_run_refused.txtar": "is about the sandbox",
	"usage_errors.txtar":        "connects to no cluster",
	"version.txtar":             "connects to no cluster",
}

// TestScriptOnKafka runs the scripts of [TestScript] on a real Kafka, one after
// the other because levels are the cluster's. What differs there is marked in
// the scripts.
func TestScriptOnKafka(t *testing.T) {
	kafkatest.Need(t)
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(scripts, "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	total := len(files)
	files = slices.DeleteFunc(files, func(f string) bool { return notOnKafka[filepath.Base(f)] != "" })
	if left := total - len(files); left != len(notOnKafka) {
		t.Errorf("%d of the %d scripts that are not for Kafka are there", left, len(notOnKafka))
	}
	p := scriptParams(&scriptKafka{kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka44})})
	p.Files = files
	testscript.RunT(sequential{t}, p)
}

// What differs between a sandbox and Kafka says why, in its phase of the script.
func TestScriptsSayWhyTheyDiffer(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(scripts, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		said := false
		for i, line := range strings.Split(string(b), "\n") {
			switch {
			case line == "":
				said = false // the phase ends
			case strings.HasPrefix(line, "#"):
				said = said || strings.Contains(line, "Kafka")
			case !said && (strings.HasPrefix(line, "[sandbox]") || strings.HasPrefix(line, "[kafka]")):
				t.Errorf("%s:%d: %s: no # line of its phase says what Kafka has to do with it", f, i+1, line)
			}
		}
	}
}

// sequential runs scripts one by one.
type sequential struct{ *testing.T }

func (s sequential) Parallel()     {}
func (s sequential) Verbose() bool { return testing.Verbose() }

func (s sequential) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(sequential{t}) })
}

// scriptKafka is the Kafka that scripts run on.
type scriptKafka struct{ *kafkatest.Cluster }

// cmdSandbox is [cmdSandbox] on Kafka: the cluster becomes what a sandbox of
// these flags would be, in levels, topics and records. It has one broker whatever
// --brokers says, and the dialect of its release. Share groups stay, so scripts
// name groups of their own.
func (k *scriptKafka) cmdSandbox(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: sandbox NAME [FLAG...]")
	}
	flags := flag.NewFlagSet("sandbox", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the error says it
	flags.Int("brokers", 1, "")
	flags.String("profile", "", "")
	level := flags.Int("share-version", 2, "")
	partitions := make(map[string]int32)
	flags.Func("topic", "", func(s string) error {
		name, number, _ := strings.Cut(s, ":")
		n, err := strconv.Atoi(cmp.Or(number, "6"))
		partitions[name] = int32(n)
		return err
	})
	files := make(map[string]string)
	flags.Func("load", "", func(s string) error {
		topic, file, _ := strings.Cut(s, "=")
		files[topic] = ts.MkAbs(file)
		return nil
	})
	ts.Check(flags.Parse(args[1:]))
	for topic := range files {
		if partitions[topic] == 0 {
			partitions[topic] = 6
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	// Topics come and go faster than a client looks for by itself.
	cl, err := kgo.NewClient(append(k.Opts(kafkatest.Admin, kafkatest.Plain), kgo.MetadataMinAge(100*time.Millisecond))...)
	ts.Check(err)
	defer cl.Close()
	ts.Check(k.abortTransactions(ctx, cl))
	ts.Check(setLevels(ctx, cl, map[string]int16{"share.version": int16(*level), "transaction.version": 2}))
	ts.Check(createTopics(ctx, cl, partitions))
	for topic, file := range files {
		ts.Check(loadLines(ctx, cl, topic, file))
	}
	ts.Setenv(args[0], strings.Join(k.Bootstrap(), ","))
}

// abortTransactions aborts what an earlier script left open.
func (k *scriptKafka) abortTransactions(ctx context.Context, cl *kgo.Client) error {
	open, err := kadm.NewClient(cl).ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		return err
	}
	for _, id := range open.TransactionalIDs() {
		p, err := kgo.NewClient(append(k.Opts(kafkatest.Admin, kafkatest.Plain), kgo.TransactionalID(id))...)
		if err != nil {
			return err
		}
		_, _, err = p.ProducerID(ctx) // fences and aborts
		p.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// setLevels finalizes levels, up or down, and waits until they are in force.
func setLevels(ctx context.Context, cl *kgo.Client, want map[string]int16) error {
	for sent := false; ; {
		resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		req := kmsg.NewPtrUpdateFeaturesRequest()
		for name, level := range want {
			current := int16(0) // level 0 is not told
			for _, f := range resp.FinalizedFeatures {
				if f.Name == name {
					current = f.MaxVersionLevel
				}
			}
			if current == level {
				continue
			}
			u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
			u.Feature, u.MaxVersionLevel, u.UpgradeType = name, level, 1
			if level < current {
				u.UpgradeType = 2 // a safe downgrade
			}
			req.FeatureUpdates = append(req.FeatureUpdates, u)
		}
		if len(req.FeatureUpdates) == 0 {
			return nil
		}
		if sent {
			continue
		}
		updated, err := req.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		if err := kerr.ErrorForCode(updated.ErrorCode); err != nil {
			return err
		}
		sent = true
	}
}

// createTopics makes these the only topics of the cluster, and new.
func createTopics(ctx context.Context, cl *kgo.Client, partitions map[string]int32) error {
	adm := kadm.NewClient(cl)
	old, err := adm.ListTopics(ctx)
	if err != nil {
		return err
	}
	if names := old.Names(); len(names) > 0 {
		deleted, err := adm.DeleteTopics(ctx, names...)
		if err != nil {
			return err
		}
		if err := deleted.Error(); err != nil {
			return err
		}
	}
	for name, n := range partitions {
		created, err := adm.CreateTopic(ctx, n, 1, nil, name)
		if err != nil {
			return err
		}
		// Until the broker has heard of it, the old one may be there.
		for {
			now, err := adm.ListTopics(ctx, name)
			if err != nil {
				return err
			}
			if d := now[name]; d.Err == nil && d.ID == created.ID && len(d.Partitions) == int(n) {
				break
			}
		}
	}
	return nil
}

// loadLines produces each line of a file but empty ones.
func loadLines(ctx context.Context, cl *kgo.Client, topic, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var records []*kgo.Record
	for line := range bytes.Lines(b) {
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			records = append(records, &kgo.Record{Topic: topic, Value: line})
		}
	}
	return cl.ProduceSync(ctx, records...).FirstErr()
}

// ctp is killed at random moments on a Kafka that cannot keep exactly-once, and
// started again each time; in the end nothing is lost.
func TestKilledAtRandomMomentsOnKafka(t *testing.T) {
	kafkatest.Need(t)
	t.Parallel()
	const (
		kills   = 12
		records = 20_000
	)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	k := kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka44, Props: map[string]string{
		// Each kill costs the records in flight one delivery; this is the most
		// that Kafka allows.
		"group.share.delivery.count.limit": "10",
		// What a member that is killed has locked, and the partitions that it
		// was given, come back when these have passed.
		"group.share.min.record.lock.duration.ms": "1000",
		"group.share.record.lock.duration.ms":     "3000",
		"group.share.min.session.timeout.ms":      "1000",
		"group.share.session.timeout.ms":          "3000",
		"group.share.min.heartbeat.interval.ms":   "500",
		"group.share.heartbeat.interval.ms":       "500",
	}})
	c := &cluster{t: t, bootstrap: strings.Join(k.Bootstrap(), ",")}
	c.cl = c.client()
	if err := createTopics(t.Context(), c.cl, map[string]int32{"src": 6, "dst": 3}); err != nil {
		t.Fatal(err)
	}
	c.produce("src", records)
	args := []string{
		"--from", "src", "--to", "dst", "--group", "g", "--workers", "2", "--guarantee", "at-least-once",
		"--auto-offset-reset", "earliest", "--isolation-level", "read_committed", "--until-empty",
	}
	// A transaction is 5 records and a marker: this is enough of them for a turn
	// of every source partition.
	const progress = 100
	c.killAtRandomMoments(rnd, kills, "dst", progress, append([]string{"--batch-records", "5"}, args...)...)
	last := c.ctp(args...)
	lost, doubled, changed := c.compare("dst", records)
	t.Logf("%d kills, the last run consumed %d, %d records arrived more than once", kills, last.Data.Consumed, doubled)
	if last.Data.Consumed == 0 {
		t.Error("the last run found nothing: all others had to be killed at work")
	}
	if lost+changed > 0 {
		t.Errorf("of %d records %d are lost and %d changed", records, lost, changed)
	}

	out, err := k.Tool(t.Context(), kafkatest.ShareGroupTool, "--describe", "--offsets", "--group", "g")
	if err != nil {
		t.Fatal(err)
	}
	partitions := 0
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "g" {
			continue
		}
		partitions++
		if lag := f[len(f)-1]; lag != "0" {
			t.Errorf("lag %s: %s", lag, line)
		}
	}
	if partitions != 6 {
		t.Errorf("Kafka's tool tells of %d partitions, want 6:\n%s", partitions, out)
	}
}
