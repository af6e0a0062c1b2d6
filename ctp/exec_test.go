package ctp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/sandbox"
	"github.com/twmb/franz-go/pkg/kgo"
)

// programEnv makes this test binary the program of --exec; its value says what it
// does.
const programEnv = "CTP_TEST_PROGRAM"

// program answers each line with itself, but for lines with "poison".
func program(mode string) int {
	fmt.Fprintln(os.Stderr, "started") //nolint:forbidigo // it is a process of its own
	mode, leash, _ := strings.Cut(mode, "@")
	switch {
	case mode == "daemon":
		leashed(leash)
		return 0
	case leash != "":
		startDaemon(leash)
	}
	in := bufio.NewReader(os.Stdin)   //nolint:forbidigo // the same
	out := bufio.NewWriter(os.Stdout) //nolint:forbidigo // it is a process of its own
	defer out.Flush()
	for n := 0; ; n++ {
		if mode == "skips" {
			if _, err := in.ReadSlice('\n'); err != nil { // long enough for it
				_, _ = fmt.Fprintln(out, "[]")
				_ = out.Flush()
				select {}
			}
		}
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		if strings.Contains(line, "poison") || mode == "dies" {
			switch mode {
			case "crash", "dies":
				return 139
			case "buffers": // answers to what came before are lost
				out.Reset(io.Discard)
				return 139
			case "hangs":
				select {}
			case "drops":
				continue
			case "error":
				line = `{"error":"it is poison"}` + "\n"
			case "garbage":
				line = "garbage\n"
			}
		}
		switch mode {
		case "none":
			line = "[]\n"
		case "two":
			one := strings.TrimSpace(line)
			line = `[` + one + `,{"value":"extra"}]` + "\n"
		}
		_, _ = out.WriteString(line)
		if mode != "buffers" || n%50 == 49 || in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return 1
			}
		}
	}
}

func (e *env) program(mode string) *ctp.Exec {
	e.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	return &ctp.Exec{Command: []string{exe}, Env: []string{programEnv + "=" + mode}}
}

// A record with every kind of byte comes through a program that answers with what
// it reads exactly as it is.
func TestRunExecKeepsBytes(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect)
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		values := [][]byte{all, nil, {}, []byte("plain"), []byte("\x00\x01\"\\\n\r\t\x7f\u2028\u00e9\U0001f600"), []byte(`{"a":1}`), {0xff}}
		e.produce(len(values), func(i int) []byte { return values[i] })
		opts := e.options()
		opts.Exec = e.program("cat")
		res := e.run(opts)
		got := e.committed()
		if len(got) != len(values) || res.Produced != int64(len(values)) {
			t.Fatalf("%d records arrived, Run = %+v", len(got), res)
		}
		for _, r := range got {
			i, _ := strconv.Atoi(string(r.Key))
			want := fmt.Sprintf("%#v", values[i])
			if fmt.Sprintf("%#v", r.Value) != want {
				t.Errorf("record %d arrived as %#v, want %s", i, r.Value, want)
			}
			headers := fmt.Sprintf("%#v", []kgo.RecordHeader{{Key: "b", Value: []byte("1")}, {Key: "a"}, {Key: "b", Value: []byte{}}})
			if fmt.Sprintf("%#v", r.Headers) != headers || r.Timestamp.UnixMilli() != int64(1000+i) {
				t.Errorf("record %d arrived with %#v at %d", i, r.Headers, r.Timestamp.UnixMilli())
			}
		}
	})
}

// What a program says decides about each record.
func TestRunExecAnswers(t *testing.T) {
	const n = 300
	poison := func(i int) bool { return i == 123 }
	value := func(i int) []byte {
		if poison(i) {
			return []byte("poison")
		}
		return plain(i)
	}
	for _, c := range []struct {
		mode               string
		produced, rejected int64
	}{
		{"cat", n, 0},
		{"none", 0, 0},
		{"two", 2 * n, 0},
		{"error", n - 1, 1},
		{"garbage", n - 1, 1},
		{"crash", n - 1, 1},
		{"buffers", n - 1, 1},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, "kip")
			e.produce(n, value)
			opts := e.options()
			opts.OnError = ctp.Reject
			opts.Exec = e.program(c.mode)
			res := e.run(opts)
			if res.Consumed != n || res.Produced != c.produced || res.Rejected != c.rejected || res.Aborted != 0 {
				t.Errorf("Run = %+v, want %d consumed, %d produced, %d rejected, nothing aborted", res, n, c.produced, c.rejected)
			}
			if c.rejected > 0 {
				wantEachOnce(t, e.committed(), n, poison)
			}
			e.wantQuiet()
		})
	}
}

// A record on which the program hangs is given up after its time, and all others
// come through.
func TestRunExecHangs(t *testing.T) {
	e := newEnv(t, "draft")
	const n = 100
	poison := func(i int) bool { return i == 50 }
	e.produce(n, func(i int) []byte {
		if poison(i) {
			return []byte("poison")
		}
		return plain(i)
	})
	opts := e.options()
	opts.OnError, opts.MaxAttempts = ctp.Reject, 2
	opts.Exec = e.program("hangs")
	opts.Exec.Timeout = 200 * time.Millisecond
	res := e.run(opts)
	if res.Consumed != n || res.Rejected != 1 || res.Aborted != 0 {
		t.Errorf("Run = %+v, want %d consumed, 1 rejected", res, n)
	}
	wantEachOnce(t, e.committed(), n, poison)
}

// A program that has answered and does not read any more is not waited for until
// the transaction has to end, and no record is to blame.
func TestRunExecDoesNotRead(t *testing.T) {
	e := newEnv(t, "kip")
	// More than a pipe holds.
	e.produce(2, func(int) []byte { return bytes.Repeat([]byte{'"'}, 600_000) })
	opts := e.options()
	opts.BatchRecords, opts.Workers = 1, 1
	opts.OnError, opts.MaxAttempts = ctp.Reject, 1
	opts.TxnTimeout = 10 * time.Second
	opts.Exec = e.program("skips")
	opts.Exec.Timeout = time.Second
	res := e.run(opts)
	if res.Consumed != 2 || res.Rejected != 0 || res.Aborted != 0 || res.ExecRestarts != 1 {
		t.Errorf("Run = %+v, want 2 consumed by 2 programs, nothing rejected or aborted", res)
	}
	e.wantQuiet()
}

// A program that is broken costs no record: the run ends, and nothing is rejected.
func TestRunExecBroken(t *testing.T) {
	for _, c := range []struct {
		name string
		exec func(e *env) *ctp.Exec
		want string
	}{
		{"dies", func(e *env) *ctp.Exec { return e.program("dies") }, "exit status 139"},
		{"absent", func(*env) *ctp.Exec { return &ctp.Exec{Command: []string{"/does/not/exist"}} }, "no such file"},
		{"drops", func(e *env) *ctp.Exec { return e.program("drops") }, "answers for another record"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, "kip")
			const n = 100
			e.produce(n, func(i int) []byte {
				if i == 50 {
					return []byte("poison")
				}
				return plain(i)
			})
			opts := e.options()
			opts.OnError = ctp.Reject
			opts.Exec = c.exec(e)
			res, err := ctp.Run(t.Context(), e.cl, opts)
			broken, ok := errors.AsType[*ctp.ExecError](err)
			if !ok || !strings.Contains(err.Error(), c.want) || res.Rejected != 0 {
				t.Fatalf("Run = %+v, %v; want an ExecError with %q, nothing rejected", res, err, c.want)
			}
			if broken.Hint() == "" {
				t.Error("no hint")
			}
			e.wantQuiet()

			// Nothing is lost by it.
			opts.Exec = nil
			res2 := e.run(opts)
			if res.Consumed+res2.Consumed != n {
				t.Errorf("then %+v, want all %d consumed in the end", res2, n)
			}
			wantEachOnce(t, e.committed(), n, nil)
		})
	}
}

// One poisonous record among many kills the program. Everything else arrives
// once, and the record is in the dead-letter topic, by the same transaction as
// its reject, with headers that say why.
func TestRunExecPoisonToDeadLetters(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		e := newEnv(t, dialect, sandbox.WithTopics(sandbox.Topic{Name: "dead", Partitions: 1}))
		n := 100_000
		if testing.Short() {
			n = 5_000
		}
		poison := func(i int) bool { return i == n/2 }
		e.produce(n, func(i int) []byte {
			if poison(i) {
				return []byte("poison")
			}
			return plain(i)
		})
		opts := e.options()
		opts.DeadLetterTopic = "dead"
		opts.Exec = e.program("crash")
		res := e.run(opts)
		if res.Consumed != int64(n) || res.Produced != int64(n) || res.Rejected != 1 || res.DeadLetters != 1 || res.Aborted != 0 || res.ExecRestarts == 0 {
			t.Errorf("Run = %+v, want all %d consumed, one of them rejected and dead", res, n)
		}
		wantEachOnce(t, e.committed(), n, poison)
		dead := e.read("dead")
		if len(dead) != 1 {
			t.Fatalf("%d dead letters, want 1", len(dead))
		}
		if string(dead[0].Key) != strconv.Itoa(n/2) || string(dead[0].Value) != "poison" {
			t.Errorf("the dead letter is %q: %q", dead[0].Key, dead[0].Value)
		}
		headers := make(map[string]string)
		for _, h := range dead[0].Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers["__dlq.errors.topic"] != "in" || headers["__dlq.errors.group"] != "g" || headers["__dlq.errors.delivery.count"] != "1" ||
			headers["__dlq.errors.offset"] == "" || headers["__dlq.errors.partition"] == "" || !strings.Contains(headers["__dlq.errors.message"], "exit status 139") {
			t.Errorf("the dead letter has headers %v", headers)
		}
		e.wantQuiet()
	})
}

// Without a decision about such records the run fails, names the record, and
// loses nothing.
func TestRunExecPoisonFails(t *testing.T) {
	e := newEnv(t, "kip")
	e.produce(10, func(i int) []byte {
		if i == 5 {
			return []byte("poison")
		}
		return plain(i)
	})
	opts := e.options()
	opts.MaxAttempts = 1
	opts.Exec = e.program("crash")
	res, err := ctp.Run(t.Context(), e.cl, opts)
	if bad, ok := errors.AsType[*ctp.RecordError](err); !ok || bad.Topic != "in" {
		t.Fatalf("Run = %+v, %v; want a RecordError", res, err)
	}
	opts.Exec = nil
	e.run(opts)
	wantEachOnce(t, e.committed(), 10, nil)
}

// A run that is told to stop ends its programs.
func TestRunExecStopped(t *testing.T) {
	e := newEnv(t, "kip")
	e.produce(10, func(int) []byte { return []byte("poison") })
	opts := e.options()
	opts.Exec = e.program("hangs")
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	opts.Exec.Stderr = writerFunc(func(p []byte) (int, error) {
		cancel(stopped) // the program has started
		return len(p), nil
	})
	if res, err := ctp.Run(ctx, e.cl, opts); !errors.Is(err, stopped) {
		t.Fatalf("Run = %+v, %v", res, err)
	}
	e.wantQuiet()
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A poisonous record that is alone with a program that has answered nothing yet
// may be bad luck, and may be a broken program: the run fails rather than reject
// it. It is a dead letter at its last delivery, when the broker would archive it
// otherwise.
func TestRunExecLonePoison(t *testing.T) {
	e := newEnv(t, "kip", sandbox.WithTopics(sandbox.Topic{Name: "dead", Partitions: 1}))
	e.produce(1, func(int) []byte { return []byte("poison") })
	opts := e.options()
	opts.DeadLetterTopic = "dead"
	opts.Exec = e.program("crash")
	for runs := 1; ; runs++ {
		res, err := ctp.Run(t.Context(), e.cl, opts)
		if err == nil {
			if runs == 1 || res.DeadLetters != 1 {
				t.Errorf("run %d ended with %+v, want a dead letter in a later one", runs, res)
			}
			break
		}
		if _, ok := errors.AsType[*ctp.ExecError](err); !ok && runs == 1 || runs > 5 {
			t.Fatalf("run %d: %v", runs, err)
		}
	}
	if dead := e.read("dead"); len(dead) != 1 {
		t.Errorf("%d dead letters, want 1", len(dead))
	}
}
