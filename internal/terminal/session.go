package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
)

// Options says what terminal a program gets.
type Options struct {
	Width, Height int
	Env           []string // "KEY=value" each, and nothing else is set but TERM
	Dir           string
	// Stdout takes what the program writes to stdout, which then is a pipe; the
	// terminal shows stderr alone. nil is the terminal.
	Stdout io.Writer
}

// Session is a program that runs on a terminal. Its methods can be called by
// several goroutines, but for Wait.
type Session struct {
	cmd     *exec.Cmd
	pty     io.ReadWriteCloser
	answers io.Closer     // of the screen to what programs ask it
	read    chan struct{} // closed when all output is on the screen

	mu      sync.Mutex // of what follows
	screen  *vt.Emulator
	changed chan struct{} // closed, and another one made, when the screen changes
}

// Start starts a program, which is killed when ctx ends.
func Start(ctx context.Context, o Options, program string, args ...string) (*Session, error) {
	s := &Session{
		cmd:    exec.CommandContext(ctx, program, args...),
		read:   make(chan struct{}),
		screen: vt.NewEmulator(o.Width, o.Height), changed: make(chan struct{}),
	}
	answers, ok := s.screen.InputPipe().(io.Closer)
	if !ok {
		return nil, errors.New("the emulator of terminals cannot be closed")
	}
	s.answers = answers
	s.cmd.Env = append([]string{"TERM=xterm-256color"}, o.Env...)
	s.cmd.Dir, s.cmd.Stdout = o.Dir, o.Stdout
	f, err := pty.StartWithSize(s.cmd, &pty.Winsize{Rows: uint16(o.Height), Cols: uint16(o.Width)})
	if err != nil {
		return nil, fmt.Errorf("start %s on a terminal: %w", program, err)
	}
	s.pty = f
	// A terminal answers what programs ask it.
	go func() { _, _ = io.Copy(s.pty, s.screen) }()
	go s.show()
	return s, nil
}

// show brings what the program writes onto the screen, until it has ended.
func (s *Session) show() {
	defer close(s.read)
	buf := make([]byte, 1<<12)
	for {
		n, err := s.pty.Read(buf) // fails when the last process has closed the terminal
		if n > 0 {
			s.mu.Lock()
			_, _ = s.screen.Write(buf[:n]) // fails for a closed one alone
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// Type types a text, in which "\n" is the return key.
func (s *Session) Type(text string) error {
	_, err := io.WriteString(s.pty, strings.ReplaceAll(text, "\n", "\r"))
	return err
}

// Interrupt types Ctrl-C.
func (s *Session) Interrupt() error { return s.Type("\x03") }

// WaitFor waits until a text is on the screen, however lines are wrapped. It fails
// when the program ends without it, and with the error of ctx.
func (s *Session) WaitFor(ctx context.Context, text string) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if strings.Contains(s.Screen().unwrapped(), text) {
			return nil
		}
		select {
		case <-changed:
		case <-s.read:
			if screen := s.Screen(); !strings.Contains(screen.unwrapped(), text) {
				return fmt.Errorf("the program ended, and %q is not on its screen:\n%s", text, screen.Text())
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%q is not on the screen: %w\n%s", text, context.Cause(ctx), s.Screen().Text())
		}
	}
}

// Wait waits for the program to end and returns its exit code; -1 for one that was
// killed.
func (s *Session) Wait() (code int, err error) {
	err = s.cmd.Wait()
	<-s.read
	err = errors.Join(exitless(err), s.pty.Close(), s.answers.Close())
	return s.cmd.ProcessState.ExitCode(), err
}

// exitless leaves out the error that says only how a program ended.
func exitless(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// Screen returns what is on the screen now.
func (s *Session) Screen() Screen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return capture(s.screen)
}
