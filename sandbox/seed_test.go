package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestEachLine(t *testing.T) {
	tests := []struct {
		name  string
		input string
		opts  LoadOptions
		want  []string
		line  int // of the error
		why   string
	}{
		{name: "empty", input: "", want: nil},
		{name: "lines", input: "a\nb\n", want: []string{"a", "b"}},
		{name: "no line end at the end", input: "a\nb", want: []string{"a", "b"}},
		{name: "CRLF", input: "a\r\nb\r\n", want: []string{"a", "b"}},
		{name: "CR within and before CRLF", input: "a\rb\r\r\n", want: []string{"a\rb\r"}},
		{name: "empty lines", input: "\na\n\r\n\nb\n\n", want: []string{"a", "b"}},
		{name: "spaces stay", input: " a \t\n", want: []string{" a \t"}},
		{name: "any bytes", input: "\xff\xfe\n", want: []string{"\xff\xfe"}},
		{name: "as long as may be", input: "12345\n12345", opts: LoadOptions{MaxRecordBytes: 5}, want: []string{"12345", "12345"}},
		{name: "as long as may be, CRLF", input: "12345\r\n", opts: LoadOptions{MaxRecordBytes: 5}, want: []string{"12345"}},
		{name: "too long", input: "a\n123456\nb\n", opts: LoadOptions{MaxRecordBytes: 5}, want: []string{"a"}, line: 2, why: "longer than 5 bytes"},
		{name: "far too long", input: "a\n" + strings.Repeat("x", 100_000), opts: LoadOptions{MaxRecordBytes: 5}, want: []string{"a"}, line: 2, why: "longer than 5 bytes"},
		{name: "binary", input: "a\n\nb\x00c\n", want: []string{"a"}, line: 3, why: "NUL"},
		{name: "malformed JSON is data", input: "{\"a\":1}\n{oops\n", opts: LoadOptions{JSON: true}, want: []string{"{\"a\":1}", "{oops"}},
		{name: "JSON is UTF-8", input: "{}\n\xff\n", opts: LoadOptions{JSON: true}, want: []string{"{}"}, line: 2, why: "not UTF-8"},
		{name: "strict", input: "{}\n[1]\nnull\n{oops\n", opts: LoadOptions{Strict: true}, want: []string{"{}", "[1]", "null"}, line: 4, why: "not valid JSON"},
		{name: "strict is UTF-8 too", input: "\"\xff\"\n", opts: LoadOptions{Strict: true}, line: 1, why: "not UTF-8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.opts.Name = "file"
			var got []string
			err := eachLine(strings.NewReader(tt.input), tt.opts, func(line []byte) error { got = append(got, string(line)); return nil })
			if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", tt.want) {
				t.Errorf("lines %q, want %q", got, tt.want)
			}
			var line *LineError
			switch {
			case tt.line == 0 && err != nil:
				t.Errorf("error %v", err)
			case tt.line > 0 && (!errors.As(err, &line) || line.Line != tt.line || line.Name != "file" || !strings.Contains(line.Reason, tt.why)):
				t.Errorf("error %v, want line %d and %q", err, tt.line, tt.why)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t", Partitions: 4}))
	ctx := testContext(t)
	var in bytes.Buffer
	const n = 5000
	for i := range n {
		fmt.Fprintf(&in, "%d %s\n", i, strings.Repeat("x", i%400))
	}
	values := int64(in.Len() - n)
	for _, topic := range []string{"t", "created"} {
		done, err := s.Load(ctx, topic, bytes.NewReader(in.Bytes()), LoadOptions{})
		if err != nil || done.Records != n || done.Bytes != values {
			t.Fatalf("%s: %+v, %v; want %d records of %d bytes", topic, done, err, n, values)
		}
		cl := newTestClient(t, s, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		got := consumeValues(t, cl, n)
		for line := range strings.Lines(in.String()) {
			if got[strings.TrimSuffix(line, "\n")] != 1 {
				t.Fatalf("%s: %q came %d times", topic, line, got[strings.TrimSuffix(line, "\n")])
			}
		}
		info, _ := s.kafka.topicByName(topic)
		for p := range info.partitions {
			pi, _ := s.kafka.partition(topic, p)
			if want := int64(n) / int64(info.partitions); pi.highWatermark < want || pi.highWatermark > want+1 {
				t.Errorf("%s-%d has %d records, want %d", topic, p, pi.highWatermark, want)
			}
		}
	}
}

func TestLoadFails(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t"}))
	ctx := testContext(t)
	for _, topic := range []string{stateTopic, "../x", ""} {
		if _, err := s.Load(ctx, topic, strings.NewReader("a\n"), LoadOptions{}); !errors.Is(err, kerr.InvalidTopicException) {
			t.Errorf("topic %q: %v", topic, err)
		}
	}
	done, err := s.Load(ctx, "t", strings.NewReader("a\nb\n\x00\nc\n"), LoadOptions{Name: "data.txt"})
	if _, ok := errors.AsType[*LineError](err); !ok || done.Records != 2 || !strings.Contains(err.Error(), "data.txt:3: ") {
		t.Errorf("malformed line: %+v, %v", done, err)
	}
	broken := errors.New("disk on fire")
	if _, err := s.Load(ctx, "t", &failingReader{"a\nb\nc", broken}, LoadOptions{Name: "data.txt"}); !errors.Is(err, broken) {
		t.Errorf("reader that fails: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Load(canceled, "t", strings.NewReader("a\n"), LoadOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := s.Load(ctx, "t", strings.NewReader(strings.Repeat("x", 1_048_580)), LoadOptions{MaxRecordBytes: 2_000_000}); !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("a line above max.message.bytes: %v", err)
	}
	if _, err := s.Load(ctx, "t", strings.NewReader(strings.Repeat("x", DefaultMaxRecordBytes)), LoadOptions{}); err != nil {
		t.Errorf("a line of the default limit: %v", err)
	}
}

type failingReader struct {
	data string
	err  error
}

func (r *failingReader) Read(p []byte) (int, error) {
	if r.data == "" {
		return 0, r.err
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// A file that is given at the start is loaded all or not at all.
func TestLoadsAtStart(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.ndjson", "{\"id\":1}\n{\"id\":\n")
	s := startSandbox(t, WithLoads(Load{Topic: "orders", Path: good}))
	cl := newTestClient(t, s, kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if got := consumeValues(t, cl, 2); got[`{"id":1}`] != 1 || got[`{"id":`] != 1 {
		t.Errorf("values %v", got)
	}
	for _, l := range []Load{
		{Topic: "orders", Path: good, LoadOptions: LoadOptions{Strict: true}},
		{Topic: "orders", Path: write("latin1.json", "{}\n\"\xe4\"\n")},
		{Topic: "orders", Path: write("binary.txt", "a\n\x00\n")},
		{Topic: "orders", Path: filepath.Join(dir, "missing")},
		{Topic: "or/ders", Path: good},
	} {
		s, err := Start(t.Context(), WithLoads(l))
		if err == nil {
			_ = s.Close()
			t.Errorf("started with %+v", l)
		} else if line, ok := errors.AsType[*LineError](err); ok && (line.Line != 2 || line.Name != l.Path) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// A million records of 100 bytes. With -benchtime 1x this is one load.
func BenchmarkLoad(b *testing.B) {
	const n, size = 1_000_000, 100
	line := append(bytes.Repeat([]byte("x"), size), '\n')
	in := bytes.Repeat(line, n)
	b.SetBytes(n * size)
	for b.Loop() {
		s, err := Start(b.Context(), WithTopics(Topic{Name: "t"}))
		if err != nil {
			b.Fatal(err)
		}
		if done, err := s.Load(b.Context(), "t", bytes.NewReader(in), LoadOptions{}); err != nil || done.Records != n {
			b.Fatal(done, err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
