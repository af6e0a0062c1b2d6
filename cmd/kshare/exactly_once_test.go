//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is a sandbox in a process of its own, seen by a plain client.
type cluster struct {
	t         *testing.T
	bootstrap string
	control   string // its control address, "" without
	cl        *kgo.Client
}

// startSandbox runs "kshare sandbox run" and waits until it is ready.
func startSandbox(t *testing.T, args ...string) *cluster {
	t.Helper()
	cmd := kshareCommand(t.Context(), t, append([]string{"sandbox", "run", "-o", "json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("sandbox: %v\n%s", err, &stderr)
		}
	})
	var doc struct {
		Data struct {
			BootstrapServers string `json:"bootstrap_servers"`
			Control          string `json:"control"`
		} `json:"data"`
	}
	if err := json.NewDecoder(bufio.NewReader(stdout)).Decode(&doc); err != nil {
		t.Fatalf("sandbox: %v\n%s", err, &stderr)
	}
	c := &cluster{t: t, bootstrap: doc.Data.BootstrapServers, control: doc.Data.Control}
	c.cl = c.client()
	return c
}

// kshareCommand is this test binary in the role of kshare. It ends with the
// test, not with its context, so that it can be asked to end first.
func kshareCommand(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("kshare")
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(context.WithoutCancel(ctx), path, args...)
}

func (c *cluster) client(opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(c.bootstrap, ",")...)}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(cl.Close)
	return cl
}

// produce writes n records to topic, each unlike all others.
func (c *cluster) produce(topic string, n int) {
	c.t.Helper()
	cl := c.client(kgo.DefaultProduceTopic(topic), kgo.MaxBufferedRecords(n+1))
	var failed error
	for i := range n {
		cl.Produce(c.t.Context(), sourceRecord(i), func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := cl.Flush(c.t.Context()); err != nil || failed != nil {
		c.t.Fatal(err, failed)
	}
}

// sourceRecord makes record i, with all that has to survive being copied.
func sourceRecord(i int) *kgo.Record {
	r := &kgo.Record{
		Key: []byte(strconv.Itoa(i)), Value: fmt.Appendf(nil, "value \x00\xff %d", i), Timestamp: time.UnixMilli(int64(1_700_000_000_000 + i)),
		Headers: []kgo.RecordHeader{{Key: "twice", Value: []byte("a")}, {Key: "null"}, {Key: "twice", Value: fmt.Append(nil, i)}, {Key: "", Value: []byte{}}},
	}
	if i%10 == 3 {
		r.Value = nil
	}
	return r
}

// sameRecord compares what has to survive.
func sameRecord(a, b *kgo.Record) bool {
	if !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || (a.Value == nil) != (b.Value == nil) ||
		!a.Timestamp.Equal(b.Timestamp) || len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !bytes.Equal(a.Headers[i].Value, b.Headers[i].Value) || (a.Headers[i].Value == nil) != (b.Headers[i].Value == nil) {
			return false
		}
	}
	return true
}

// wantExactlyOnce fails unless the n source records are in topic, each once and
// unchanged.
func (c *cluster) wantExactlyOnce(topic string, n int) {
	c.t.Helper()
	if lost, doubled, changed := c.compare(topic, n); lost+doubled+changed > 0 {
		c.t.Errorf("%s differs from the %d source records: %d lost, %d doubled, %d changed", topic, n, lost, doubled, changed)
	}
}

// compare reads topic as a read_committed consumer does, and counts which of the
// n source records are not there, are there more than once, and what is there
// that is none of them.
func (c *cluster) compare(topic string, n int) (lost, doubled, changed int) {
	c.t.Helper()
	seen := make(map[string]int, n)
	c.read(topic, func(r *kgo.Record) {
		seen[string(r.Key)]++
		if i, err := strconv.Atoi(string(r.Key)); err != nil || i >= n || !sameRecord(r, sourceRecord(i)) {
			changed++
		}
	})
	for i := range n {
		switch seen[strconv.Itoa(i)] {
		case 0:
			lost++
		case 1:
		default:
			doubled++
		}
	}
	return lost, doubled, changed
}

// read calls each for everything that a read_committed consumer finds in topic.
func (c *cluster) read(topic string, each func(*kgo.Record)) {
	c.t.Helper()
	ends := c.ends(topic, readCommitted)
	cl := c.client(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	// Each partition ends with an end marker of the last commit, which is read
	// as a control record; one that ends with an aborted batch is followed by
	// the marker of the abort.
	for left := len(ends) - ends.done(); left > 0; {
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
		fetches := cl.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); err != nil {
			c.t.Fatalf("read %s, %d partitions left: %v", topic, left, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset == ends[r.Partition]-1 {
				left--
			}
			if !r.Attrs.IsControl() {
				each(r)
			}
		})
	}
}

const (
	readUncommitted = 0
	readCommitted   = 1
)

type endOffsets map[int32]int64

// done counts the partitions without any record.
func (e endOffsets) done() int {
	n := 0
	for _, end := range e {
		if end == 0 {
			n++
		}
	}
	return n
}

// sum adds up the offsets.
func (e endOffsets) sum() int64 {
	var n int64
	for _, end := range e {
		n += end
	}
	return n
}

// awaitProgress waits until topic has grown beyond sum, or done has something.
func (c *cluster) awaitProgress(topic string, sum int64, done chan error) {
	c.t.Helper()
	for c.ends(topic, readUncommitted).sum() <= sum && len(done) == 0 && c.t.Context().Err() == nil {
	}
}

func (c *cluster) ends(topic string, isolation int8) endOffsets {
	c.t.Helper()
	meta := kmsg.NewPtrMetadataRequest()
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = &topic
	meta.Topics = append(meta.Topics, mt)
	mresp, err := meta.RequestWith(c.t.Context(), c.cl)
	if err != nil {
		c.t.Fatal(err)
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for _, p := range mresp.Topics[0].Partitions {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p.Partition, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(c.t.Context(), c.cl)
	if err != nil {
		c.t.Fatal(err)
	}
	out := make(endOffsets)
	for _, p := range resp.Topics[0].Partitions {
		out[p.Partition] = p.Offset
	}
	return out
}

// setGroupConfig sets one config of a share group.
func (c *cluster) setGroupConfig(group, name, value string) {
	c.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	cfg.Name, cfg.Value = name, &value
	r.Configs = append(r.Configs, cfg)
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(c.t.Context(), c.cl)
	if err != nil || resp.Resources[0].ErrorCode != 0 {
		c.t.Fatal(err, resp)
	}
}

// ctpResult is the part of a run's result that the tests look at.
type ctpResult struct {
	Data struct {
		Consumed     int64 `json:"consumed"`
		Produced     int64 `json:"produced"`
		Transactions struct {
			Aborted int64 `json:"aborted"`
			Unknown int64 `json:"unknown"`
		} `json:"transactions"`
	} `json:"data"`
}

// ctp runs "kshare ctp" to its end.
func (c *cluster) ctp(args ...string) ctpResult {
	c.t.Helper()
	cmd := kshareCommand(c.t.Context(), c.t, append([]string{"ctp", "-b", c.bootstrap, "-o", "json", "--timeout", "5m"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		c.t.Fatalf("kshare %s: %v\n%s", strings.Join(cmd.Args[1:], " "), err, &stderr)
	}
	var res ctpResult
	if err := json.Unmarshal(stdout.Bytes(), &res); err != nil {
		c.t.Fatalf("kshare %s printed %q: %v", strings.Join(cmd.Args[1:], " "), &stdout, err)
	}
	return res
}

// With the cluster in one process and ctp in another, every source record is at
// the destination exactly once and unchanged: in both dialects, wherever staged
// acknowledgements are kept, for one worker and for four.
func TestExactlyOnceAcrossProcesses(t *testing.T) {
	t.Parallel()
	const records = 20_000
	for _, profile := range []string{"kip", "draft"} {
		for _, pending := range []string{"persisted", "memory"} {
			t.Run(profile+"/"+pending, func(t *testing.T) {
				c := startSandbox(t, "--profile", profile, "--pending-state", pending,
					"--topic", "src:6", "--topic", "dst-1:3", "--topic", "dst-4:3")
				c.produce("src", records)
				for _, workers := range []string{"1", "4"} {
					res := c.ctp("--from", "src", "--to", "dst-"+workers, "--group", "g-"+workers, "--workers", workers,
						"--auto-offset-reset", "earliest", "--isolation-level", "read_committed", "--batch-records", "700", "--until-empty")
					if d := res.Data; d.Consumed != records || d.Produced != records || d.Transactions.Unknown != 0 {
						t.Errorf("%s workers: %+v, want %d consumed and produced", workers, d, records)
					}
					c.wantExactlyOnce("dst-"+workers, records)
				}
			})
		}
	}
}

// ctp is killed at 50 random moments and started again each time; in the end
// nothing is lost and nothing is doubled.
func TestKilledAtRandomMoments(t *testing.T) {
	t.Parallel()
	const (
		kills   = 50
		records = 100_000
	)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	c := startSandbox(t, "--profile", []string{"kip", "draft"}[rnd.IntN(2)], "--topic", "src:6", "--topic", "dst:3",
		"--broker-config", "group.share.min.record.lock.duration.ms=1000")
	c.produce("src", records)
	// Each kill costs the records in flight one delivery; this is the most that
	// Kafka allows.
	c.setGroupConfig("g", "share.delivery.count.limit", "10")
	// A member that is killed just after some of its partitions were given to
	// another one leaves records of them locked.
	c.setGroupConfig("g", "share.record.lock.duration.ms", "3000")
	args := []string{
		"--from", "src", "--to", "dst", "--group", "g", "--workers", "2",
		"--auto-offset-reset", "earliest", "--isolation-level", "read_committed", "--until-empty",
	}

	c.killAtRandomMoments(rnd, kills, "dst", 0, append([]string{"--batch-records", "5"}, args...)...)
	last := c.ctp(args...)
	t.Logf("%d kills, the last run consumed %d", kills, last.Data.Consumed)
	if last.Data.Consumed == 0 {
		t.Error("the last run found nothing: all others had to be killed at work")
	}
	c.wantExactlyOnce("dst", records)
}

// killAtRandomMoments starts "kshare ctp" so many times, and kills it each time
// before it has come to its end. Every other run is left alone until topic to has
// grown by more than progress offsets.
func (c *cluster) killAtRandomMoments(rnd *rand.Rand, kills int, to string, progress int64, args ...string) {
	c.t.Helper()
	var killed int
	var produced int64
	for i := range kills {
		cmd := kshareCommand(c.t.Context(), c.t, append([]string{"ctp", "-b", c.bootstrap, "-q"}, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			c.t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		// Every other run is killed at any moment, be it before it has joined.
		// The ones between are killed once they have got somewhere, so that no
		// record is delivered as often as the limit allows without a chance.
		if i%2 == 0 {
			c.awaitProgress(to, produced+progress, done)
		}
		kill := time.AfterFunc(time.Duration(rnd.IntN(300))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		err := <-done
		kill.Stop()
		switch ws := cmd.ProcessState.Sys().(syscall.WaitStatus); {
		case ws.Signaled() && ws.Signal() == syscall.SIGKILL:
			killed++
		case err != nil:
			c.t.Fatalf("ctp ended by itself: %v\n%s", err, &stderr)
		}
		produced = c.ends(to, readUncommitted).sum()
	}
	if killed < kills {
		c.t.Errorf("%d of %d runs were killed: all had to be", killed, kills)
	}
	if produced == 0 {
		c.t.Error("no run that was killed had produced anything")
	}
}
