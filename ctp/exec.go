package ctp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
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
	execWindow = 1000
	// execLeave is how long a program has to end once its stdin is closed.
	execLeave = 2 * time.Second
	// maxAnswer bounds a line that a program answers with.
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
	failed      *attempts

	child *child
	// proven is set once any program of this worker has answered a record.
	proven bool
	inRow  int // programs in a row that ended without an answer
}

func newExecTransformer(cfg Exec, maxAttempts int, failed *attempts) *execTransformer {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultExecTimeout
	}
	return &execTransformer{cfg: cfg, maxAttempts: maxAttempts, failed: failed}
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
	i, alone, blamed := 0, 0, 0
	var last error // why the program ended
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
			x.proven, x.inRow, blamed = true, 0, 0
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
		if sent > 1 || window > 1 {
			alone = max(alone, first+sent)
			continue
		}
		if x.failed.add(in[i], died.err) < x.maxAttempts {
			continue
		}
		blamed++
		if blamed >= blamesInRow {
			return x.fault(fmt.Errorf("it fails for %d records in a row: %w", blamed, died.err))
		}
		if err := done(i, nil, x.failed.spent(in[i])); err != nil {
			return err
		}
		x.inRow = 0
		i++
	}
	if blamed > 0 && !x.proven {
		return x.fault(fmt.Errorf("it has not answered any record, so the records are not to blame: %w", last))
	}
	return nil
}

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
	}
	c := x.child
	if sent, err = c.offer(ctx, in); err != nil {
		return 0, 0, err
	}
	timer := time.NewTimer(x.cfg.Timeout)
	defer timer.Stop()
	for answered < len(in) {
		select {
		case a, ok := <-c.answers:
			if !ok {
				return answered, max(c.written(), answered), x.gone()
			}
			out, aerr := parseAnswer(a, in[answered].record)
			if aerr, lost := errors.AsType[*stepError](aerr); lost {
				x.kill()
				return answered, sent, x.fault(aerr)
			}
			if err := done(answered, out, aerr); err != nil {
				x.kill() // answers to the rest would be taken for those of the next batch
				return answered, sent, err
			}
			answered++
			timer.Reset(x.cfg.Timeout)
		case <-timer.C:
			x.kill()
			return answered, max(c.written(), answered), &diedError{ErrExecTimeout}
		case <-ctx.Done():
			x.kill()
			return answered, sent, context.Cause(ctx)
		}
	}
	return answered, sent, nil
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

// child is one running program.
type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	offers  chan []source // to the writer
	answers chan []byte   // lines; closed at the end of stdout
	quit    chan struct{} // closed when nobody reads answers any more
	readErr error         // set before answers is closed
	once    sync.Once

	mu    sync.Mutex
	wrote int // records of the last offer that were written
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
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin, offers: make(chan []source), answers: make(chan []byte, execWindow), quit: make(chan struct{})}
	go c.write()
	go c.read(stdout)
	return c, nil
}

// offer hands records to the writer.
func (c *child) offer(ctx context.Context, in []source) (int, error) {
	c.mu.Lock()
	c.wrote = 0
	c.mu.Unlock()
	select {
	case c.offers <- in:
		return len(in), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// written counts the records of the last offer that were written, the one that
// is being written included.
func (c *child) written() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrote
}

func (c *child) write() {
	w := bufio.NewWriterSize(c.stdin, 64<<10)
	var line []byte
	for {
		select {
		case in := <-c.offers:
			for i := range in {
				c.mu.Lock()
				c.wrote = i + 1
				c.mu.Unlock()
				line = appendQuestion(line[:0], &in[i])
				if _, err := w.Write(line); err != nil {
					break // the program is gone, which its stdout tells
				}
			}
			_ = w.Flush() // the same
		case <-c.quit:
			return
		}
	}
}

func (c *child) read(stdout io.Reader) {
	defer close(c.answers)
	r := bufio.NewReaderSize(stdout, 64<<10)
	for {
		line, err := readLine(r)
		if err != nil {
			c.readErr = err
			return
		}
		select {
		case c.answers <- line:
		case <-c.quit:
			return
		}
	}
}

// errLineTooLong ends a program that does not end its lines.
var errLineTooLong = fmt.Errorf("a line of its output is longer than %d bytes", maxAnswer)

// readLine returns the next line without its end. The slice is the caller's.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull) && len(line) <= maxAnswer:
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, errLineTooLong
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, fmt.Errorf("its output ends in the middle of a line: %w", io.ErrUnexpectedEOF)
		default:
			return nil, err
		}
	}
}

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
	killGroup(c.cmd)
	c.stop()
	for range c.answers { // until the reader has ended
	}
	_ = c.cmd.Wait() // that it was killed is known
}

// leave closes stdin, and kills what has not ended soon after.
func (c *child) leave() {
	c.stop()
	t := time.AfterFunc(execLeave, func() { killGroup(c.cmd) })
	defer t.Stop()
	for range c.answers { // until the reader has ended
	}
	_ = c.cmd.Wait() // how it ends matters to nobody any more
}
