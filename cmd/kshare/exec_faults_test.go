//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/commands"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// flaky is a program for --exec. It dies of records with "poison", says no to those
// with "refuse", and dies now and then for no reason; what is in its buffer then is
// lost.
func flaky() {
	d := commands.System()
	in, out := bufio.NewReader(d.In), bufio.NewWriter(d.Out)
	for {
		line, err := in.ReadString('\n')
		switch {
		case err != nil:
			_ = out.Flush() // the end
			return
		case strings.Contains(line, "poison"), rand.IntN(3000) == 0:
			os.Exit(139) //nolint:forbidigo // it is a process of its own
		case strings.Contains(line, "refuse"):
			line = `{"error":"no"}` + "\n"
		}
		_, _ = out.WriteString(line)
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return
			}
		}
	}
}

// execFaults is what goes wrong in a sandbox while ctp works: each of these ends by
// itself. What never does, such as a marker that is dropped, is not for an
// application to cure.
func execFaults(rnd *rand.Rand) map[string]any {
	broker := rnd.IntN(3)
	all := []map[string]any{
		{"kind": "delay-marker", "count": 2, "duration_ms": 200},
		{"kind": "duplicate-marker", "count": 2, "duration_ms": 100},
		{"kind": "lose-response", "count": 1}, // to a stage
		{"kind": "lose-response", "count": 1, "api_key": kmsg.EndTxn},
		{"kind": "lose-response", "count": 1, "api_key": kmsg.Produce},
		{"kind": "lose-response", "count": 1, "api_key": kmsg.ShareFetch},
		{"kind": "lose-response", "count": 1, "api_key": kmsg.InitProducerID},
		{"kind": "answer-error", "count": 2, "api_key": kmsg.EndTxn, "error": "CONCURRENT_TRANSACTIONS"},
		{"kind": "answer-error", "count": 1, "api_key": kmsg.ShareFetch, "error": "SHARE_SESSION_NOT_FOUND"},
		{"kind": "hang-coordinator", "count": 1, "coordinator": "transaction", "duration_ms": 300},
		{"kind": "fail-coordinator", "count": 2, "coordinator": "share"},
		{"kind": "move-coordinator", "coordinator": "transaction"},
		{"kind": "crash-leader", "topic": "src"},
		{"kind": "move-leader", "topic": "src", "partition": rnd.IntN(6), "to_broker": broker},
		{"kind": "restart-broker", "broker": broker},
		{"kind": "freeze-broker", "broker": broker},
		{"kind": "expire-locks", "topic": "src"},
	}
	return all[rnd.IntN(len(all))]
}

// ctp transforms by a program that dies, on a cluster where something goes wrong
// all the time, and is killed itself now and then. In the end each record is in the
// one topic or the other, once.
func TestExecUnderFaults(t *testing.T) {
	t.Parallel()
	const every = 250 // one poisonous record, and one that is refused
	faults := int(envNumber(t, "KSHARE_TEST_FAULTS", 30))
	records := max(3500, 120*faults)
	seed := envNumber(t, "KSHARE_TEST_SEED", uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	profile := []string{"kip", "draft"}[rnd.IntN(2)]
	c := startSandbox(t, "--profile", profile, "--control", "127.0.0.1:0", "--topic", "src:6", "--topic", "dst:3", "--topic", "dead:1",
		"--broker-config", "group.share.min.record.lock.duration.ms=1000", "--broker-config", "group.share.heartbeat.interval.ms=200")
	// Each fault costs what is in flight one delivery.
	c.setGroupConfig("g", "share.delivery.count.limit", "10")
	c.setGroupConfig("g", "share.record.lock.duration.ms", "3000")
	value := func(i int) string {
		switch i % every {
		case 100:
			return "poison " + strconv.Itoa(i)
		case 200:
			return "refuse " + strconv.Itoa(i)
		}
		return "value " + strconv.Itoa(i)
	}
	var rs []*kgo.Record
	for i := range records {
		rs = append(rs, &kgo.Record{Topic: "src", Key: []byte(strconv.Itoa(i)), Value: []byte(value(i))})
	}
	if err := c.cl.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	load := startLoad(t, c.bootstrap, "--from", "src", "--to", "dst", "--dlq", "dead", "--exec", "flaky", "--group", "g", "--workers", "2",
		"--batch-records", "20", "--max-attempts", "2", "--auto-offset-reset", "earliest", "--isolation-level", "read_committed",
		"--until-empty", "--transactional-id", "exec-faults")
	kills := 0
	for i := range faults {
		c.awaitGrowth("dst", int64(50+rnd.IntN(50)), load)
		if load.ended() { // what it does between two faults counts for neither
			if i < faults/2 {
				t.Errorf("only %d of %d faults met work", i, faults)
			}
			faults = i
			break
		}
		if rnd.IntN(4) == 0 {
			load.kill()
			kills++
			continue
		}
		c.inject(execFaults(rnd))
	}
	c.clearFaults()
	load.wait()

	where := make(map[string][2]int) // how often in dst, and in dead
	for i, topic := range []string{"dst", "dead"} {
		c.read(topic, func(r *kgo.Record) {
			n := where[string(r.Key)]
			n[i]++
			where[string(r.Key)] = n
			if k, err := strconv.Atoi(string(r.Key)); err != nil || string(r.Value) != value(k) {
				t.Errorf("%s has %q: %q", topic, r.Key, r.Value)
			}
		})
	}
	bystanders := 0
	for i := range records {
		n := where[strconv.Itoa(i)]
		bad := i%every == 100 || i%every == 200
		switch {
		case n == [2]int{0, 1} && !bad:
			bystanders++ // it was there each time that the program died
		case n != [2]int{1, 0} && !bad, n != [2]int{0, 1} && bad:
			t.Errorf("record %q is there %d times, and %d times as a dead letter", value(i), n[0], n[1])
		}
	}
	if bystanders > records/500 {
		t.Errorf("%d of %d records were given up that are harmless", bystanders, records)
	}
	if lag := c.lag("g", "src"); lag != 0 {
		t.Errorf("lag %d of the group, want 0", lag)
	}
	t.Logf("%s: %d faults, %d kills, ctp was started %d times, %d bystanders", profile, faults-kills, kills, load.starts, bystanders)
}

// inject makes something go wrong in the sandbox. A broker that is frozen is so for
// a moment.
func (c *cluster) inject(fault map[string]any) {
	c.t.Helper()
	body, err := json.Marshal(fault)
	if err != nil {
		c.t.Fatal(err)
	}
	if code, text := c.controlRequest(http.MethodPost, "/faults", body); code != http.StatusCreated {
		c.t.Fatalf("inject %s: %d %s", body, code, text)
	}
	if fault["kind"] == "freeze-broker" {
		timer := time.NewTimer(300 * time.Millisecond)
		<-timer.C // that is how long it is frozen
		c.clearFaults()
	}
}

func (c *cluster) clearFaults() {
	c.t.Helper()
	if code, text := c.controlRequest(http.MethodDelete, "/faults", nil); code != http.StatusOK {
		c.t.Fatalf("clear faults: %d %s", code, text)
	}
}

func (c *cluster) controlRequest(method, path string, body []byte) (code int, text string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.control+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
