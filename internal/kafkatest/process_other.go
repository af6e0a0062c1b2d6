//go:build !linux

package kafkatest

import "syscall"

// Where a kernel cannot do it, nodes end with [Main] and with the test.
func dieWithParent() *syscall.SysProcAttr { return nil }

// Where there is no lock, two processes that use a release for the first time at
// once ask Maven twice.
func lock(string) (unlock func(), err error) { return func() {}, nil }
