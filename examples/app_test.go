// Package examples has the tests of the examples.
package examples

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// build builds an example as what it is, a module of its own that requires kshare,
// and returns the path of the program.
func build(t *testing.T, module string) string {
	t.Helper()
	dir := t.TempDir()
	// With copies of its go.mod and go.sum, which go may complete: app from modules
	// that this one requires too, so that nothing has to be downloaded.
	for _, name := range []string{"go.mod", "go.sum"} {
		copyFile(t, filepath.Join(module, name), filepath.Join(dir, name))
	}
	program := filepath.Join(dir, module)
	for _, args := range [][]string{{"vet"}, {"build", "-o", program}} {
		args = append(args, "-mod=mod", "-modfile="+filepath.Join(dir, "go.mod"), ".")
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = module
		cmd.Env = append(cmd.Environ(), "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		if !bytes.Equal(read(t, filepath.Join(module, name)), read(t, filepath.Join(dir, name))) {
			t.Errorf("examples/%s/%s is out of date: run go mod tidy there", module, name)
		}
	}
	return program
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, read(t, from), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestApp(t *testing.T) {
	t.Parallel()
	program := build(t, "app")
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			const n = 200
			sb, err := sandbox.Start(t.Context(), sandbox.WithDialect(d), sandbox.WithTopics(
				sandbox.Topic{Name: "orders", Partitions: 3}, sandbox.Topic{Name: "shipped", Partitions: 1},
			))
			if err != nil {
				t.Fatal(err)
			}
			defer sb.Close()
			cl, err := cluster.Connect(t.Context(), cluster.Config{BootstrapServers: sb.Addrs()})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			for _, group := range []string{"copy", "sink", "sink-again"} {
				if err := cl.SetGroupConfig(t.Context(), group, "share.auto.offset.reset", "earliest"); err != nil {
					t.Fatal(err)
				}
			}
			produceOrders(t, cl, n)
			app := func(args ...string) string {
				t.Helper()
				cmd := exec.CommandContext(t.Context(), program, append(args, "-b", strings.Join(sb.Addrs(), ","), "-idle", "1s")...)
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				if err != nil || stderr.Len() > 0 {
					t.Fatalf("app %v: %v\n%s", args, err, stderr.Bytes())
				}
				return strings.TrimSpace(string(out))
			}

			want := fmt.Sprint(n, " orders")
			if got := app("copy", "-group", "copy"); got != want {
				t.Errorf("copy says %q, want %q", got, want)
			}
			if got := committed(t, cl, "shipped"); got != n-1 { // one makes no sense, and is rejected
				t.Errorf("%d records are in the destination, want %d", got, n-1)
			}

			file := filepath.Join(t.TempDir(), "out.tsv")
			// A line that a dead predecessor has not finished.
			if err := os.WriteFile(file, []byte("orders-0@0\t\"ord"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, group := range []string{"sink", "sink-again"} {
				if got := app("sink", "-group", group, "-file", file); got != want {
					t.Errorf("sink says %q, want %q", got, want)
				}
				lines := strings.Split(strings.TrimSpace(string(read(t, file))), "\n")
				slices.Sort(lines)
				if got := len(slices.Compact(lines)); got != n {
					t.Errorf("%d different lines, want %d", got, n)
				}
			}
			if st, err := sb.State(); err != nil || st.Pending != 0 {
				t.Errorf("%d records are pending (%v)", st.Pending, err)
			}
			if got := app("sink", "-group", "sink", "-file", file); got != "0 orders" {
				t.Errorf("once more sink says %q, want nothing left", got)
			}
		})
	}
}

func produceOrders(t *testing.T, cl *cluster.Client, n int) {
	t.Helper()
	p, err := cl.NewKgo(kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var records []*kgo.Record
	for i := range n {
		records = append(records, &kgo.Record{Key: []byte(strconv.Itoa(i)), Value: fmt.Append(nil, "order ", i)})
	}
	records[n/2].Value = nil
	if err := p.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// committed counts the records of a topic of one partition that are committed.
func committed(t *testing.T, cl *cluster.Client, topic string) int {
	t.Helper()
	list := kmsg.NewPtrListOffsetsRequest()
	list.ReplicaID, list.IsolationLevel = -1, 1
	lt := kmsg.NewListOffsetsRequestTopic()
	lt.Topic = topic
	lp := kmsg.NewListOffsetsRequestTopicPartition()
	lp.Timestamp = -1
	lt.Partitions = append(lt.Partitions, lp)
	list.Topics = append(list.Topics, lt)
	resp, err := list.RequestWith(t.Context(), cl.Requestor())
	if err != nil {
		t.Fatal(err)
	}
	end := resp.Topics[0].Partitions[0].Offset
	c, err := cl.NewKgo(kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	n := 0
	for next := int64(0); next < end; {
		fetches := c.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				n++
			}
		}
	}
	return n
}
