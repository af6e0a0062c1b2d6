package commands

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
)

func parsedCtp(t *testing.T, args ...string) (ctpOptions, error) {
	t.Helper()
	return parse(t, &Deps{}, newCtpCmd, args)
}

func TestCtpRefuses(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", "--from and --to are needed"},
		{"--from a", "--from and --to are needed"},
		{"--from a --to a", `--from and --to are both "a"`},
		{"--from a --to b/c", `--to "b/c": a name has 1 to 249`},
		{"--from a --to b --exec cat --jq .", "--exec and --jq exclude each other"},
		{"--from a --to b --exec=", "--exec: no command is given"},
		{"--from a --to b --exec-timeout 1s", "--exec-timeout is for --exec"},
		{"--from a --to b --exec cat --exec-timeout 1m", "--exec-timeout 1m0s: want less than 48s"},
		{"--from a --to b --exec cat --exec-timeout 20s --txn-timeout 20s", "--exec-timeout 20s: want less than 16s"},
		{"--from a --to b --exec cat --exec-timeout 0s", "--exec-timeout 0s: want a positive duration"},
		{"--from a --to b --dlq a", `--dlq and --from are both "a"`},
		{"--from a --to b --dlq a", `--dlq and --from are both "a"`},
		{"--from a --to b --dlq b", `--dlq and --to are both "b"`},
		{"--from a --to b --dlq c --on-error release", "--dlq is for records that are rejected, and --on-error is release"},
		{"--from a --to b --dlq=", `--dlq "": a name has 1 to 249`},
		{"--from a --to b --follow --until-empty", "--follow excludes --until-empty"},
		{"--from a --to b --partition random", `--partition "random": want hash or keep`},
		{"--from a --to b --rate 0", "--rate 0: want more than 0"},
		{"--from a --to b --rate NaN", "--rate NaN: want more than 0"},
		{"--from a --to b --stall-timeout 1ms", "--stall-timeout 1ms: want at least 1s"},
		{"--from a --to b --abort-every 1", "--abort-every 1: want at least 2"},
		{"--from a --to b --max-attempts 0", "--max-attempts 0: want at least 1"},
		{"--from a --to b --metrics-addr localhost", `--metrics-addr "localhost": want HOST:PORT`},
		{"--from a --to b --metrics-addr 70000", `--metrics-addr "70000": want HOST:PORT`},
		{"--from a --to b --metrics-addr a/b:1", `--metrics-addr "a/b:1": want HOST:PORT`},
		{"--from a --to b --metrics-addr=", `--metrics-addr "": want HOST:PORT`},
		{"--from a --to b --metrics-addr 0 --preflight", "--metrics-addr is for a run"},
		{"--from a --to b --preflight --sandbox", "--preflight looks at a cluster"},
		{"--from a --to ..", `--to "..": a name has 1 to 249`},
		{"--from __share_group_state --to b", `--from "__share_group_state": topic __share_group_state is internal`},
		{"--from a --to __consumer_offsets", "is internal to Kafka"},
		{"--from a --to b --batch-records 0", "--batch-records 0: want 1 to 1000000"},
		{"--from a --to b --batch-records 4294967297", "want 1 to 1000000"},
		{"--from a --to b --max-records 0", "--max-records 0: want at least 1"},
		{"--from a --to b --max-records -1", "--max-records -1: want at least 1"},
		{"--from a --to b --workers 0", "--workers 0: want 1 to 64"},
		{"--from a --to b --workers 65", "--workers 65: want 1 to 64"},
		{"--from a --to b --txn-timeout 999ms", "--txn-timeout 999ms: want at least 1s"},
		{"--from a --to b --hold-before-commit 0s", "--hold-before-commit 0s: want a positive duration"},
		{"--from a --to b --hold-before-commit 48s", "--hold-before-commit 48s: want less than 48s"},
		{"--from a --to b --hold-before-commit 9s --txn-timeout 10s", "want less than 8s, after which a transaction with --txn-timeout 10s is not committed"},
		{"--from a --to b --hold-before-commit 9s --guarantee at-least-once", "at-least-once stages nothing"},
		{"--from a --to b --on-error skip", `--on-error "skip": want fail, release or reject`},
		{"--from a --to b --guarantee at-most-once", "want exactly-once or at-least-once"},
		{"--from a --to b --isolation-level committed", "want read_committed or read_uncommitted"},
		{"--from a --to b --auto-offset-reset first", `--auto-offset-reset "first": want earliest, latest`},
		{"--from a --to b --auto-offset-reset by_duration:1h", "by_duration:PT1H30M"},
		{"--from a --to b --dialect kraft", `--dialect "kraft": want kip or draft`},
		{"--from a --to b --jq {", `--jq: jq expression "{"`},
		{"--from a --to b --load a=x", "--sandbox is not given"},
		{"--from a --to b --topic a", "--sandbox is not given"},
		{"--from a --to b --profile kip", "--sandbox is not given"},
		{"--from a --to b --sandbox --load a", `--load "a": want TOPIC=FILE`},
		{"--from a --to b --sandbox --topic a:0", "with 1 to 10000 partitions"},
		{"--from a --to b --sandbox --topic __transaction_state:2", "is internal to Kafka"},
		{"--from a --to b --sandbox --load __consumer_offsets=x", "is internal to Kafka"},
		{"--from a --to b .status", `takes no argument, and got ".status"`},
	} {
		_, err := parsedCtp(t, strings.Fields(c.args)...)
		if code, _ := classify(err); err == nil || code != exitUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ctp %s: %v (exit code %d), want %s", c.args, err, code, c.want)
		}
	}
}

func TestCtpMetricsAddr(t *testing.T) {
	for args, want := range map[string]string{"9400": "127.0.0.1:9400", ":9400": ":9400", "0": "127.0.0.1:0", "[::1]:9400": "[::1]:9400", "host.example:9400": "host.example:9400"} {
		if got, err := parsedCtp(t, "--from", "a", "--to", "b", "--metrics-addr", args); err != nil || got.MetricsAddr != want {
			t.Errorf("--metrics-addr %s is %q, %v; want %q", args, got.MetricsAddr, err, want)
		}
	}
}

func TestCtpOffsetReset(t *testing.T) {
	for value, want := range map[string]bool{
		"earliest": true, "latest": true, "none": false, "": false, "by_duration:": false,
		"by_duration:P": false, "by_duration:PT": false, "by_duration:P1DT": false, "by_duration:PT1": false,
		"by_duration:PT1H": true, "by_duration:P2D": true, "by_duration:P2DT3H4M5.5S": true, "by_duration:PT0S": true,
	} {
		if got := isOffsetReset(value); got != want {
			t.Errorf("isOffsetReset(%q) = %v, want %v", value, got, want)
		}
	}
}

// A throw-away sandbox has the destination, starts at the beginning and reads
// committed records, unless something else is said.
func TestCtpSandboxDefaults(t *testing.T) {
	o, err := parsedCtp(t, "--sandbox", "--from", "a", "--to", "b", "--load", "a=x")
	if err != nil {
		t.Fatal(err)
	}
	if o.AutoOffsetReset != "earliest" || o.IsolationLevel != "read_committed" || !slices.Contains(o.SandboxConfig.Topics, SandboxTopic{"b", 6}) {
		t.Errorf("options %+v", o)
	}
	o, err = parsedCtp(t, "--sandbox", "--from", "a", "--to", "b", "--topic", "b:1", "--auto-offset-reset", "by_duration:PT1H", "--isolation-level", "read_uncommitted")
	if err != nil {
		t.Fatal(err)
	}
	if o.AutoOffsetReset != "by_duration:PT1H" || o.IsolationLevel != "read_uncommitted" || !slices.Equal(o.SandboxConfig.Topics, []SandboxTopic{{"b", 1}}) {
		t.Errorf("options %+v", o)
	}
}

func TestCtpViewSeconds(t *testing.T) {
	v := ctpView(&ctp.Result{Elapsed: 1691 * time.Millisecond})
	if got := v.Data.(*ctpResult).Seconds; got != 1.691 {
		t.Errorf("1691 ms are %v seconds", got)
	}
}

// The command of --exec is split into words and given to no shell.
func TestCtpExecWords(t *testing.T) {
	for _, c := range []struct {
		exec string
		want []string
	}{
		{"cat", []string{"cat"}},
		{` jq  -c --unbuffered '.value |= "x y"' `, []string{"jq", "-c", "--unbuffered", `.value |= "x y"`}},
		{`a "$HOME" 'b c'`, []string{"a", "$HOME", "b c"}},
	} {
		o, err := parsedCtp(t, "--from", "a", "--to", "b", "--exec", c.exec)
		if err != nil || !slices.Equal(o.Exec.Command, c.want) || o.Exec.Timeout != ctp.DefaultExecTimeout {
			t.Errorf("--exec %q = %+v, %v; want %q", c.exec, o.Exec, err, c.want)
		}
	}
	for _, bad := range []string{"a | b", "a > b", "a; b", "a && b", "'a"} {
		if o, err := parsedCtp(t, "--from", "a", "--to", "b", "--exec", bad); err == nil {
			t.Errorf("--exec %q = %q, want an error", bad, o.Exec.Command)
		}
	}
}

// A dead-letter topic says what becomes of records that fail.
func TestCtpDeadLettersReject(t *testing.T) {
	if o, err := parsedCtp(t, "--from", "a", "--to", "b", "--dlq", "c"); err != nil || o.OnError != ctp.Reject {
		t.Errorf("--dlq c: %+v, %v", o.OnError, err)
	}
}

func TestLineWriter(t *testing.T) {
	var got []string
	w := &lineWriter{line: func(s string) { got = append(got, s) }}
	for _, s := range []string{"a", "b\r\nc\n", "", "d", strings.Repeat("x", maxLine)} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	_, _ = w.Write([]byte("end"))
	w.Flush()
	if want := []string{"ab", "c", "d" + strings.Repeat("x", maxLine), "end"}; !slices.Equal(got, want) {
		t.Errorf("lines %q", got)
	}
}
