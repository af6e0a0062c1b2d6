package kafkatest

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		// A process group of its own: the interrupt of a terminal goes to the
		// test, which ends its nodes in its own order.
		Setpgid: true,
	}
}

// lock waits until this process alone holds the lock of a file.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, err
		}
	}
	return func() { _ = f.Close() }, nil // which gives up the lock
}
