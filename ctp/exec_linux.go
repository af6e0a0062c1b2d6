package ctp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// widen lets a pipe hold more than its 64 KiB, as far as the system allows: each
// time that it is full or empty, its two ends have to take turns.
func widen(pipe any) {
	f, ok := pipe.(syscall.Conn)
	if !ok {
		return
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, wideBytes) // it stays as it is
	})
}

const wideBytes = 1 << 20
