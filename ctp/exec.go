package ctp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Exec is a program that transforms records. Each worker runs one for as long as
// it lives. The program reads one JSON object a line on its stdin and answers
// each with one line on its stdout, in the same order:
//
//	{"topic":"orders","partition":0,"offset":7,"delivery_count":1,
//	 "timestamp_ms":1764417600000,"key":"k","value":"v","headers":[{"key":"h","value":null}]}
//
// A key, a value, or the value of a header is null, a string where it is valid
// UTF-8, and {"encoding":"base64","value":"..."} where it is not. The answer is
// an object, which becomes one record; an array of such objects, which may be
// empty; or {"error":"..."} for a record that it cannot transform. What an
// answer leaves out of key, value, headers and timestamp_ms is that of the
// source, so that "cat" copies. An answer that names another offset than that of
// the record it is for ends the run: the program has lost step.
//
// A program that buffers its output has to flush it after each line.
type Exec struct {
	// Command is the program and its arguments. No shell is involved.
	Command []string
	// Env is its environment; nil is an empty one.
	Env []string
	// Stderr gets what it writes to its stderr; nil drops it. It may be written
	// to by several workers at once.
	Stderr io.Writer
	// Timeout is how long it may take for one record; 0 is 30 s.
	Timeout time.Duration
}

// DefaultExecTimeout is how long a program may take for one record when nothing
// else is said.
const DefaultExecTimeout = 30 * time.Second

const (
	// execWindow is how many records are on their way through the program at
	// once, at the most.
	execWindow = 4096
	// execLeave is how long a program has to end once its stdin is closed.
	execLeave = 2 * time.Second
	// maxAnswer bounds a line that a program answers with; errLineTooLong tells it.
	maxAnswer = 64 << 20
	// restartsInRow bounds how often a program is started again that has not
	// answered anything in between, beyond the attempts for one record.
	restartsInRow = 3
	// blamesInRow is how many records in a row may kill the program before it is
	// the program that is taken for broken, and not the records.
	blamesInRow = 3
)

// ExecError says that the program itself is at fault, and not a record. Nothing
// of the open batch was committed.
type ExecError struct {
	Command string // the program, without its arguments, which may hold secrets
	Err     error
}

// Error names the program.
func (e *ExecError) Error() string { return fmt.Sprintf("program %q: %v", e.Command, e.Err) }

// Unwrap returns the cause.
func (e *ExecError) Unwrap() error { return e.Err }

// Hint says how to look at it.
func (e *ExecError) Hint() string {
	if errors.Is(e.Err, exec.ErrNotFound) {
		return "--exec starts a program and no shell: give its path, or have it in PATH"
	}
	return "it has to answer each line with one line and flush it; feed it one by hand to see what it does"
}

// ErrExecTimeout is why a record is refused that the program has not answered in
// time.
var ErrExecTimeout = errors.New("no answer in time: does the program flush its output after each line?")

// diedError is why an exchange ended: the program is gone.
type diedError struct{ err error }

func (e *diedError) Error() string { return "the program ended: " + e.err.Error() }
func (e *diedError) Unwrap() error { return e.err }

// execTransformer keeps one program running.
type execTransformer struct {
	cfg         Exec
	maxAttempts int
	deliveries  int16 // the group's delivery count limit
	failed      *attempts

	child    *child
	started  bool // a program was, before
	restarts *atomic.Int64
	// proven is set once any program of this worker has answered a record.
	proven bool
	waits  time.Time // since when, for the next answer
	now    func() time.Time
	inRow  int // programs in a row that ended without an answer
	blamed int // records that were blamed since the last answer
}

func newExecTransformer(cfg Exec, maxAttempts int, deliveries int16, failed *attempts, restarts *atomic.Int64, now func() time.Time) *execTransformer {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultExecTimeout
	}
	return &execTransformer{cfg: cfg, maxAttempts: maxAttempts, deliveries: deliveries, failed: failed, restarts: restarts, now: now}
}

func (x *execTransformer) fault(err error) error {
	return &ExecError{Command: x.cfg.Command[0], Err: err}
}

// transform implements transformer. When the program dies, any of the records
// that it had been given may be the one that killed it, and not just the first
// that it had not answered: it may have read ahead, or kept answers in a buffer.
// So those are given to a new one, each alone. The one that kills it alone is to
// blame.
func (x *execTransformer) transform(ctx context.Context, in []source, done func(i int, out []*kgo.Record, err error) error) error {
	i, alone := 0, 0
	var blamed []source // of these
	var last error      // why the program ended
	x.waits = x.now()
	for i < len(in) {
		window := min(execWindow, len(in)-i)
		if i < alone || in[i].deliveries > 1 {
			window = 1
		} else if n := firstRedelivered(in[i : i+window]); n > 0 {
			window = n
		}
		answered, sent, err := x.exchange(ctx, in[i:i+window], func(k int, out []*kgo.Record, err error) error { return done(i+k, out, err) })
		first := i
		i += answered
		if answered > 0 {
			x.proven, x.inRow, x.blamed = true, 0, 0
		}
		var died *diedError
		if err == nil {
			continue
		}
		if !errors.As(err, &died) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		last = died.err
		x.inRow++
		if x.inRow > x.maxAttempts+restartsInRow {
			return x.fault(fmt.Errorf("started %d times in a row without an answer: %w", x.inRow, died.err))
		}
		if sent != 1 || window > 1 { // no record was it alone
			alone = max(alone, first+sent)
			continue
		}
		if x.failed.add(in[i], died.err) < x.maxAttempts {
			continue
		}
		if in[i].deliveries < x.deliveries {
			x.blamed++
			blamed = append(blamed, in[i])
		} // else it is its last delivery, and the broker would archive it without a word
		if x.blamed >= blamesInRow {
			return x.fault(fmt.Errorf("it has failed %d times in a row with a record alone: %w", x.blamed, died.err))
		}
		if err := done(i, nil, x.failed.spent(in[i])); err != nil {
			return err
		}
		x.inRow = 0
		i++
	}
	if len(blamed) > 0 && !x.proven {
		for _, s := range blamed {
			x.failed.reprieve(s)
		}
		return &unprovenError{x.fault(fmt.Errorf("it has not answered any record yet: %w", last))}
	}
	return nil
}

// since implements transformer. What comes in one piece is decided at once.
func (x *execTransformer) since() time.Time { return x.waits }

// unprovenError says that records made a program end which has not answered any
// other yet. Whose fault that is, the next records will tell: these are tried
// again after them.
type unprovenError struct{ err error }

func (e *unprovenError) Error() string { return e.err.Error() }

// firstRedelivered returns the index of the first record that was delivered
// before, 0 if it is the first or there is none.
func firstRedelivered(in []source) int {
	for i := range in {
		if in[i].deliveries > 1 {
			return i
		}
	}
	return 0
}

// exchange gives records to the program and hands its answers on. It returns how
// many were answered, and how many were given to it; *diedError when it is gone.
func (x *execTransformer) exchange(ctx context.Context, in []source, done func(i int, out []*kgo.Record, err error) error) (answered, sent int, err error) {
	if x.child == nil {
		if x.child, err = startChild(x.cfg); err != nil {
			return 0, 0, x.fault(err)
		}
		if x.started {
			x.restarts.Add(1)
		}
		x.started = true
	}
	c := x.child
	q := &questions{in: in, lines: make([][]byte, len(in))}
	timer := time.NewTimer(x.cfg.Timeout)
	defer timer.Stop()
	select {
	case c.offers <- q:
	case <-timer.C: // it does not read what it has answered already
		x.kill()
		return 0, 0, &diedError{ErrExecTimeout}
	case <-ctx.Done():
		x.kill()
		return 0, 0, context.Cause(ctx)
	}
	given := func() int { return max(int(q.written.Load()), answered) }
	for {
		select {
		case lines, ok := <-c.answers:
			if !ok {
				return answered, given(), x.gone()
			}
			x.waits = x.now()
			for line := range bytes.Lines(lines) {
				if answered == len(in) || answered >= int(q.written.Load()) {
					x.kill()
					return answered, given(), x.fault(errors.New("it answers more than it was asked"))
				}
				out, aerr := parseAnswer(line, q.lines[answered], in[answered].record)
				if lost, ok := errors.AsType[*stepError](aerr); ok {
					x.kill()
					return answered, given(), x.fault(lost)
				}
				if err := done(answered, out, aerr); err != nil {
					x.kill() // answers to the rest would be taken for those of the next batch
					return answered, given(), err
				}
				answered++
			}
			c.recycle(lines)
			if answered == len(in) {
				return answered, answered, nil
			}
			timer.Reset(x.cfg.Timeout)
		case <-timer.C:
			x.kill()
			return answered, given(), &diedError{ErrExecTimeout}
		case <-ctx.Done():
			x.kill()
			return answered, given(), context.Cause(ctx)
		}
	}
}

// gone takes leave of a program that ended by itself.
func (x *execTransformer) gone() error {
	err := x.child.wait()
	x.child = nil
	return &diedError{err}
}

// kill ends the program at once.
func (x *execTransformer) kill() {
	x.child.kill()
	x.child = nil
}

// close lets the program end by itself, and ends it if it does not.
func (x *execTransformer) close() {
	if x.child != nil {
		x.child.leave()
		x.child = nil
	}
}

// questions are records that are given to a program together.
type questions struct {
	in []source
	// lines are what was written for them, the first written of them; the writer
	// sets a line before it counts it.
	lines   [][]byte
	written atomic.Int64
}

// child is one running program.
type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stdout  io.Closer
	offers  chan *questions // to the writer
	answers chan []byte     // whole lines; closed at the end of stdout
	free    chan []byte     // of those, what is not needed any more
	quit    chan struct{}   // closed when nobody reads answers any more
	readErr error           // set before answers is closed
	once    sync.Once
}

func startChild(cfg Exec) (*child, error) {
	cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...) //nolint:gosec,noctx // it is what the caller wants to run, and it is ended by hand
	cmd.Env, cmd.Stderr = cfg.Env, cfg.Stderr
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.WaitDelay = execLeave // a grandchild may hold stderr open
	ownGroup(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	widen(stdin)
	widen(stdout)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin, stdout: stdout, offers: make(chan *questions), answers: make(chan []byte, 16), free: make(chan []byte, 4), quit: make(chan struct{})}
	go c.write()
	go c.read(stdout)
	return c, nil
}

// write writes questions. That the program is gone, its stdout tells.
func (c *child) write() {
	var lines []byte // of one offer at a time: the next comes when all are answered
	for {
		var q *questions
		select {
		case q = <-c.offers:
		case <-c.quit:
			return
		}
		lines = lines[:0]
		from := 0
		for i := range q.in {
			start := len(lines)
			lines = appendQuestion(lines, &q.in[i])
			q.lines[i] = lines[start:]
			q.written.Store(int64(i + 1))
			if len(lines)-from < pipeBytes && i < len(q.in)-1 {
				continue
			}
			if _, err := c.stdin.Write(lines[from:]); err != nil {
				break
			}
			from = len(lines)
		}
	}
}

// read hands on what the program writes, cut at the ends of lines.
func (c *child) read(stdout io.Reader) {
	defer close(c.answers)
	buf := make([]byte, 0, readBytes)
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, cap(buf)+1)
		}
		n, err := stdout.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if end := bytes.LastIndexByte(buf[len(buf)-n:], '\n'); end >= 0 {
			end += len(buf) - n + 1
			select {
			case c.answers <- buf[:end]:
			case <-c.quit:
				return
			}
			buf = append(c.buffer(), buf[end:]...)
		}
		if err == nil && len(buf) > maxAnswer {
			err = errLineTooLong
		}
		if err != nil {
			c.readErr = err
			return
		}
	}
}

// buffer returns an empty one to read into.
func (c *child) buffer() []byte {
	select {
	case b := <-c.free:
		return b
	default:
		return make([]byte, 0, readBytes)
	}
}

// recycle gives back lines that nothing refers to any more.
func (c *child) recycle(lines []byte) {
	if cap(lines) > 2*readBytes {
		return // one line was that long
	}
	select {
	case c.free <- lines[:0]:
	default:
	}
}

const (
	// pipeBytes is how much is written at once, and what a pipe holds on Linux.
	pipeBytes = 64 << 10
	// readBytes is how much is read at once.
	readBytes = 2 * pipeBytes
)

// errLineTooLong ends a program that does not end its lines.
var errLineTooLong = errors.New("a line of its output is longer than 64 MiB")

// wait waits for the end of a program whose stdout has ended, and returns how it
// ended: never nil.
func (c *child) wait() error {
	if errors.Is(c.readErr, errLineTooLong) {
		c.kill()
		return c.readErr
	}
	t := time.AfterFunc(execLeave, func() { killGroup(c.cmd) }) // it may have closed its stdout and gone on
	defer t.Stop()
	c.stop()
	err := c.cmd.Wait()
	if err == nil {
		return errors.New("exit status 0")
	}
	return errors.New(strings.TrimSpace(err.Error()))
}

// stop ends the writer and closes the program's stdin.
func (c *child) stop() {
	c.once.Do(func() {
		close(c.quit)
		_ = c.stdin.Close() // it may be closed by the program's end
	})
}

// kill ends the program and what it has started, at once.
func (c *child) kill() {
	c.end()
	c.stop()
	for range c.answers { // until the reader has ended
	}
	_ = c.cmd.Wait() // that it was killed is known
}

// end kills the program and what it has started. What has left its process group,
// as a daemon does, lives on and may hold its stdout, of which nothing is wanted any
// more: the reader does not wait for that.
func (c *child) end() {
	killGroup(c.cmd)
	_ = c.stdout.Close() // it was read to its end, or is not read any more
}

// leave closes stdin, and kills what has not ended soon after.
func (c *child) leave() {
	c.stop()
	t := time.AfterFunc(execLeave, c.end)
	defer t.Stop()
	for range c.answers { // until the reader has ended
	}
	_ = c.cmd.Wait() // how it ends matters to nobody any more
}
