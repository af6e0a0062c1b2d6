//go:build unix

// Command bench compares kshare's consume-transform-produce loop with the plain
// consumer-group loop of franz-go that it replaces, and prints ratios. Each
// comparison is made of runs in turn on one machine, so that what else the
// machine does falls on both.
//
// It runs itself in the roles of cluster and clients; see README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/sandbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

const (
	// recordValue is JSON, for --jq.
	recordValue = `{"id":1000001,"customer":"c-0339","status":"paid","total_minor":8198,"at":"2026-01-01T00:00:04.47Z"}`
	recordBytes = len(recordValue)
	partitions  = 12
	txnRecords  = 5000
)

// job is what one run of a role does.
type job struct {
	role      string
	bootstrap string
	records   int64
	topic     string // source
	to        string
	name      string // of the group and the transactional ID
}

// measured is what one run of a client cost.
type measured struct {
	Records    int64   `json:"records"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
	MaxRSSMiB  float64 `json:"max_rss_mib"`
}

func (m measured) rate() float64          { return float64(m.Records) / m.Seconds }
func (m measured) cpuPerMillion() float64 { return m.CPUSeconds / float64(m.Records) * 1e6 }

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	var j job
	fs.StringVar(&j.role, "role", "", "role that a child process has; none runs all comparisons")
	fs.StringVar(&j.bootstrap, "b", "", "bootstrap servers, for roles of clients")
	fs.Int64Var(&j.records, "records", 1_000_000, "records of each run")
	fs.StringVar(&j.topic, "from", "", "source topic")
	fs.StringVar(&j.to, "to", "", "destination topic")
	fs.StringVar(&j.name, "name", "", "group and transactional ID")
	rounds := fs.Int("rounds", 3, "runs of each side of a comparison")
	only := fs.String("only", "throughput,client,memory,start,exec,workers,inspect", "comparisons to make")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch j.role {
	case "":
		return compareAll(ctx, strings.Split(*only, ","), j.records, *rounds)
	case "cluster":
		return serve(startSandbox(ctx))
	case "inprocess":
		return inProcess(ctx, j, *rounds)
	case "load":
		return load(ctx, j)
	case "bigcluster":
		return serve(startBig(ctx, j.records))
	}
	return client(ctx, j)
}

func startSandbox(ctx context.Context) (addrs string, stop func() error, err error) {
	sb, err := sandbox.Start(ctx)
	if err != nil {
		return "", nil, err
	}
	return sb.BootstrapServers(), sb.Close, nil
}

// serve prints where a cluster is that was started, and stops it when stdin ends.
func serve(addrs string, stop func() error, err error) error {
	if err != nil {
		return err
	}
	fmt.Println(addrs)
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, stop())
}

// client runs one client and prints what it cost this process.
func client(ctx context.Context, j job) error {
	loop, ok := map[string]func(context.Context, job) error{
		"group": groupLoop, "ctp": ctpLoop, "exec": execLoop, "workers": workersLoop, "jq": jqLoop, "jqworkers": jqWorkersLoop,
		"pending": inspectPending, "list": listTransactions,
	}[j.role]
	if !ok {
		return fmt.Errorf("unknown role %q", j.role)
	}
	m, err := measure(j.records, func() error { return loop(ctx, j) })
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m)
}

func measure(records int64, do func() error) (measured, error) {
	start := time.Now()
	err := do()
	m := measured{Records: records, Seconds: time.Since(start).Seconds()}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return m, err
	}
	m.CPUSeconds = seconds(u.Utime) + seconds(u.Stime)
	m.MaxRSSMiB = float64(u.Maxrss) / 1024
	return m, err
}

func seconds(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// createTopics makes topics with the partitions of the benchmark.
func createTopics(ctx context.Context, bootstrap string, names ...string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		return err
	}
	defer cl.Close()
	req := newCreateTopics(names)
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return err
	}
	return createError(resp)
}

// load produces the source records.
func load(ctx context.Context, j job) error {
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(j.bootstrap, ",")...),
		kgo.DefaultProduceTopic(j.topic),
		kgo.MaxBufferedRecords(100_000),
		kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		return err
	}
	defer cl.Close()
	failed := make(chan error, 1)
	value := []byte(recordValue)
	for range j.records {
		cl.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// groupLoop is the loop of a plain consumer group with exactly-once semantics.
func groupLoop(ctx context.Context, j job) error {
	s, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(j.bootstrap, ",")...),
		kgo.ConsumerGroup(j.name), kgo.ConsumeTopics(j.topic),
		kgo.TransactionalID(j.name), kgo.DefaultProduceTopic(j.to),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.MaxBufferedRecords(2*txnRecords),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer s.Close()
	for done := int64(0); done < j.records; {
		fetches := s.PollRecords(ctx, txnRecords)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := s.Begin(); err != nil {
			return err
		}
		var failed error
		n := 0
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			n++
			s.Produce(ctx, &kgo.Record{Topic: j.to, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}, func(_ *kgo.Record, err error) {
				if err != nil && failed == nil {
					failed = err
				}
			})
		}
		committed, err := s.End(ctx, kgo.TryCommit)
		if err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		if committed {
			done += int64(n)
		}
	}
	return nil
}

// ctpLoop is kshare's loop, with one worker.
func ctpLoop(ctx context.Context, j job) error { return ctpWith(ctx, j, func(*ctp.Options) {}) }

// ctpWith is ctpLoop with options changed.
func ctpWith(ctx context.Context, j job, change func(*ctp.Options)) error {
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: strings.Split(j.bootstrap, ","), Dialect: "kip"})
	if err != nil {
		return err
	}
	defer cl.Close()
	opts := ctp.Options{
		From: j.topic, To: j.to, GroupID: j.name, TransactionalID: j.name,
		BatchRecords: txnRecords, MaxRecords: j.records,
		AutoOffsetReset: "earliest", IsolationLevel: "read_committed",
		Warn: func(err error) { fmt.Fprintln(os.Stderr, "bench: ctp:", err) },
	}
	change(&opts)
	res, err := ctp.Run(ctx, cl, opts)
	if err != nil {
		return err
	}
	if res.Consumed != j.records || res.Produced != j.records {
		return fmt.Errorf("ctp consumed %d and produced %d of %d records", res.Consumed, res.Produced, j.records)
	}
	return nil
}

// inProcess runs both loops, in turn, beside the cluster in one process, and
// prints one line for each run.
func inProcess(ctx context.Context, j job, rounds int) error {
	enc := json.NewEncoder(os.Stdout)
	for i := range rounds {
		sb, err := sandbox.Start(ctx)
		if err != nil {
			return err
		}
		j.bootstrap, j.topic = sb.BootstrapServers(), "src"
		if err := createTopics(ctx, j.bootstrap, "src", "dst-group", "dst-ctp"); err != nil {
			return err
		}
		if err := load(ctx, j); err != nil {
			return err
		}
		sides := []string{"group", "ctp"}
		if i%2 == 1 {
			slices.Reverse(sides)
		}
		out := make(map[string]measured)
		for _, side := range sides {
			j.to, j.name = "dst-"+side, side
			loop := groupLoop
			if side == "ctp" {
				loop = ctpLoop
			}
			if out[side], err = measure(j.records, func() error { return loop(ctx, j) }); err != nil {
				return fmt.Errorf("%s: %w", side, err)
			}
		}
		if err := errors.Join(enc.Encode(out["group"]), enc.Encode(out["ctp"]), sb.Close()); err != nil {
			return err
		}
	}
	return nil
}

// child runs this program in a role and returns its lines of JSON.
func child(ctx context.Context, j job, rounds int) ([]measured, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-role", j.role, "-b", j.bootstrap, "-records", strconv.FormatInt(j.records, 10),
		"-from", j.topic, "-to", j.to, "-name", j.name, "-rounds", strconv.Itoa(rounds))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("role %s: %w", j.role, err)
	}
	var all []measured
	for line := range strings.Lines(string(out)) {
		var m measured
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			return nil, fmt.Errorf("role %s printed %q: %w", j.role, line, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// startCluster runs the sandbox in a process of its own.
func startCluster(ctx context.Context) (bootstrap string, stop func() error, err error) {
	return startRole(ctx, job{role: "cluster"})
}

// startRole runs this program in a role that serves until its stdin ends, and
// prints where.
func startRole(ctx context.Context, j job) (bootstrap string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-role", j.role, "-records", strconv.FormatInt(j.records, 10))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	stop = func() error { return errors.Join(stdin.Close(), cmd.Wait()) }
	if err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return strings.TrimSpace(line), stop, nil
}

func compareAll(ctx context.Context, only []string, records int64, rounds int) error {
	for _, c := range []struct {
		name string
		run  func(context.Context, int64, int) error
	}{
		{"throughput", compareThroughput},
		{"client", compareClient},
		{"memory", compareMemory},
		{"start", compareStart},
		{"exec", compareExec},
		{"workers", compareWorkers},
		{"inspect", compareInspect},
		{"txn", compareTxn},
	} {
		if !slices.Contains(only, c.name) {
			continue
		}
		if err := c.run(ctx, records, rounds); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func compareThroughput(ctx context.Context, records int64, rounds int) error {
	ms, err := child(ctx, job{role: "inprocess", records: records}, rounds)
	if err != nil {
		return err
	}
	var ratios, group, loop []float64
	for i := 0; i+1 < len(ms); i += 2 {
		group, loop = append(group, ms[i].rate()), append(loop, ms[i+1].rate())
		ratios = append(ratios, ms[i+1].rate()/ms[i].rate())
	}
	fmt.Printf("throughput  cluster and loop in one process, %d records of %d bytes, %d a transaction\n", records, recordBytes, txnRecords)
	fmt.Printf("            group loop %9.0f records/s   ctp %9.0f records/s   ratio %.2f (%s)\n", median(group), median(loop), median(ratios), spread(ratios))
	return nil
}

// compareClient runs each loop in a process of its own, against a cluster in
// another one, and compares what the client process spends.
func compareClient(ctx context.Context, records int64, rounds int) error {
	var ratios, rates, group, loop []float64
	for i := range rounds {
		var m [2]measured
		order := []int{0, 1}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			var err error
			if m[side], err = oneClient(ctx, []string{"group", "ctp"}[side], records); err != nil {
				return err
			}
		}
		group, loop = append(group, m[0].cpuPerMillion()), append(loop, m[1].cpuPerMillion())
		ratios = append(ratios, m[1].cpuPerMillion()/m[0].cpuPerMillion())
		rates = append(rates, m[1].rate()/m[0].rate())
	}
	fmt.Printf("client      cluster in another process, CPU seconds of the client per million records\n")
	fmt.Printf("            group loop %9.2f s          ctp %9.2f s          ratio %.2f (%s), records/s ratio %.2f\n", median(group), median(loop), median(ratios), spread(ratios), median(rates))
	return nil
}

func oneClient(ctx context.Context, role string, records int64) (m measured, err error) {
	bootstrap, stop, err := startCluster(ctx)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := createTopics(ctx, bootstrap, "src", "dst"); err != nil {
		return m, err
	}
	j := job{role: "load", bootstrap: bootstrap, records: records, topic: "src", to: "dst", name: role}
	if _, err := child(ctx, j, 1); err != nil {
		return m, err
	}
	j.role = role
	ms, err := child(ctx, j, 1)
	if err != nil {
		return m, err
	}
	return ms[0], nil
}

func compareMemory(ctx context.Context, _ int64, _ int) error {
	fmt.Printf("memory      cluster in another process, peak resident memory of the ctp process\n")
	var peaks []float64
	for _, n := range []int64{100_000, 2_000_000} {
		m, err := oneClient(ctx, "ctp", n)
		if err != nil {
			return err
		}
		peaks = append(peaks, m.MaxRSSMiB)
		fmt.Printf("            %9d records %7.1f MiB\n", n, m.MaxRSSMiB)
	}
	fmt.Printf("            ratio %.2f\n", peaks[1]/peaks[0])
	return nil
}

const startRuns = 15

// compareStart runs "kshare version" and an empty Go program in turn.
func compareStart(ctx context.Context, _ int64, _ int) (err error) {
	dir, err := os.MkdirTemp("", "kshare-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	empty := filepath.Join(dir, "empty.go")
	if err := os.WriteFile(empty, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		return err
	}
	bins := []string{filepath.Join(dir, "empty"), filepath.Join(dir, "kshare")}
	for i, src := range []string{empty, "./cmd/kshare"} {
		// Both as releases are built.
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", bins[i], src)
		build.Env = append(build.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w: %s", src, err, out)
		}
	}
	var times [2][]float64
	var ratios []float64
	for range startRuns {
		for i, bin := range bins {
			start := time.Now()
			if err := exec.CommandContext(ctx, bin, "version").Run(); err != nil {
				return err
			}
			times[i] = append(times[i], time.Since(start).Seconds()*1000)
		}
		n := len(times[0]) - 1
		ratios = append(ratios, times[1][n]/times[0][n])
	}
	fmt.Printf("start       whole process, %d runs in turn\n", startRuns)
	fmt.Printf("            empty program %6.2f ms       kshare version %6.2f ms       ratio %.2f (%s)\n", median(times[0]), median(times[1]), median(ratios), spread(ratios))
	return nil
}

func median(xs []float64) float64 {
	s := slices.Sorted(slices.Values(xs))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}

func spread(xs []float64) string {
	return fmt.Sprintf("%.2f to %.2f, %d rounds", slices.Min(xs), slices.Max(xs), len(xs))
}
