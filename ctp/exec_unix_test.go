//go:build unix

package ctp_test

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
)

// startDaemon starts a process in a session of its own. It holds stdout and stderr
// open for as long as somebody holds the connection to the address.
func startDaemon(address string) {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(context.Background(), exe) //nolint:gosec // it is this test
	cmd.Env = []string{programEnv + "=daemon@" + address}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr //nolint:forbidigo // it is a process of its own
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// leashed is the daemon.
func leashed(address string) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, conn)
}

// A program starts a daemon, which lives on with the program's stdout. The run ends
// without it, and a program that hangs is ended without it.
func TestRunExecDaemon(t *testing.T) {
	for _, mode := range []string{"cat", "hangs"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, "kip")
			const n = 10
			e.produce(n, func(i int) []byte {
				if i == 5 {
					return []byte("poison")
				}
				return plain(i)
			})
			leash, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			opts := e.options()
			opts.OnError, opts.MaxAttempts = ctp.Reject, 1
			opts.Exec = e.program(mode + "@" + leash.Addr().String())
			opts.Exec.Timeout = time.Second
			done := make(chan struct{})
			var res *ctp.Result
			go func() {
				defer close(done)
				res, err = ctp.Run(t.Context(), e.cl, opts)
			}()
			late := time.NewTimer(30 * time.Second)
			defer late.Stop()
			select {
			case <-late.C:
				t.Error("Run waits for the daemon")
			case <-done:
			}
			_ = leash.Close() // and with it what has dialled
			<-done
			if err != nil || res.Consumed != n {
				t.Errorf("Run = %+v, %v; want %d consumed", res, err, n)
			}
		})
	}
}
