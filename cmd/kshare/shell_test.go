//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kshare/kshare/internal/need"
)

// shell is a bash that runs the commands of a page, one after the other, as a
// reader would type them. It is in a directory with the examples of the
// repository, which is its home too.
//
// Pages name ports, such as 9092. Several pages run at a time, and other programs
// listen, so what is run has other ports of as many digits, and what is printed
// has those of the page again.
type shell struct {
	t     *testing.T
	dir   string // home and working directory
	files string // commands and their outputs
	in    io.Writer
	codes *bufio.Scanner
	ports map[string]string // of pages, to those used
	shown map[string]string // and back
	n     int
	code  int // of the last command
}

// pagePorts are the ports that pages may name: those of brokers, of a sandbox's
// control endpoint, and of metrics.
var pagePorts = []string{"9092", "9093", "9094", "9099", "9404"}

var port = regexp.MustCompile(`\b[0-9]{4}\b`)

// newShell starts a shell, which ends with the test, and all that it has started
// with it. Where there is no bash it skips the test, but not on CI.
func newShell(t *testing.T) *shell {
	t.Helper()
	bash, err := exec.LookPath("bash")
	need.None(t, err)
	s := &shell{t: t, dir: t.TempDir(), files: t.TempDir()}
	s.takePorts()
	if err := os.CopyFS(filepath.Join(s.dir, "examples"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	codes, codesWriter, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bash, "--noprofile", "--norc")
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "KSHARE_CONFIG="+filepath.Join(s.dir, "config.yaml"),
		"GORACE=atexit_sleep_ms=50", "PAGE_ROOT="+root, "PAGE_HOME="+os.Getenv("HOME"))
	cmd.ExtraFiles = []*os.File{codesWriter}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // what it has started, too
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = codesWriter.Close()
	s.codes = bufio.NewScanner(codes)
	t.Cleanup(func() { // the context of the test has ended, so all of it is being killed
		_ = cmd.Wait()
		_ = codes.Close()
	})
	// go run is of this repository, where its packages have been compiled already.
	s.feed(`go() { (cd "$PAGE_ROOT" && HOME=$PAGE_HOME command go "$@"); }; status() { return "$1"; }`)
	return s
}

// together runs subtests at the same time, more of them than t.Parallel lets on a
// small machine: shells wait for most of their time.
type together struct {
	wg   sync.WaitGroup
	free chan struct{}
}

func (r *together) run(t *testing.T, name string, f func(*testing.T)) {
	if r.free == nil {
		r.free = make(chan struct{}, 6)
	}
	r.wg.Go(func() {
		r.free <- struct{}{}
		defer func() { <-r.free }()
		t.Run(name, f)
	})
}

func (r *together) wait() { r.wg.Wait() }

func (s *shell) feed(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// takenPorts are those of shells that have not ended, which need not listen yet.
var takenPorts struct {
	sync.Mutex
	ports map[string]bool
}

// takePorts finds ports that are free, consecutive where those of pages are.
func (s *shell) takePorts() {
	s.t.Helper()
	takenPorts.Lock()
	defer takenPorts.Unlock()
	first, _ := strconv.Atoi(pagePorts[0])
	for range 100 {
		base := 5000 + rand.IntN(3900)
		s.ports, s.shown = map[string]string{}, map[string]string{}
		free := true
		for _, p := range pagePorts {
			n, _ := strconv.Atoi(p)
			used := strconv.Itoa(base + n - first)
			s.ports[p], s.shown[used] = used, p
			l, err := net.Listen("tcp", "127.0.0.1:"+used)
			if err != nil || takenPorts.ports[used] {
				free = false
			}
			if err != nil {
				break
			}
			_ = l.Close()
		}
		if !free {
			continue
		}
		if takenPorts.ports == nil {
			takenPorts.ports = map[string]bool{}
		}
		mine := s.shown
		for p := range mine {
			takenPorts.ports[p] = true
		}
		s.t.Cleanup(func() {
			takenPorts.Lock()
			defer takenPorts.Unlock()
			for p := range mine {
				delete(takenPorts.ports, p)
			}
		})
		return
	}
	s.t.Fatal("no free ports")
}

// rename replaces the ports of a text.
func rename(text string, ports map[string]string) string {
	return port.ReplaceAllStringFunc(text, func(p string) string {
		if to, ok := ports[p]; ok {
			return to
		}
		return p
	})
}

// run runs a command and returns what it printed, both streams, and its exit
// status. A command in the background, one that ends with &, is waited for until
// ready says that its output is all there.
func (s *shell) run(command string, ready func(output string) bool) (output string, code int) {
	s.t.Helper()
	s.n++
	file := filepath.Join(s.files, strconv.Itoa(s.n))
	if err := os.WriteFile(file, []byte(rename(command, s.ports)+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.feed(fmt.Sprintf("status %d; . %s >%s.out 2>&1 </dev/null; echo $? >&3", s.code, file, file))
	line := make(chan string, 1)
	go func() {
		s.codes.Scan()
		line <- s.codes.Text()
	}()
	read := func() string {
		b, err := os.ReadFile(file + ".out")
		if err != nil {
			s.t.Fatal(err)
		}
		return strings.ReplaceAll(rename(string(b), s.shown), s.dir, "/home/alice")
	}
	deadline := time.After(10 * time.Minute) // which the first "go run" takes on no machine
	select {
	case text := <-line:
		var err error
		if s.code, err = strconv.Atoi(text); err != nil {
			s.t.Fatalf("$ %s\n%sthe shell is gone: %v", command, read(), err)
		}
	case <-deadline:
		s.t.Fatalf("$ %s\n%shas not ended after 10 minutes", command, read())
	}
	if !strings.HasSuffix(command, "&") {
		return read(), s.code
	}
	if *updatePages { // what is ready is not known yet
		deadline = time.After(5 * time.Second)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if output := read(); ready(output) {
			return output, s.code
		}
		select {
		case <-tick.C:
		case <-deadline:
			return read(), s.code
		}
	}
}
