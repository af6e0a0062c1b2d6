//go:build unix

package ctp

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the terminal's signals from the program: it is ended when the
// open batch is, and not before.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills the program and everything that it has started.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may be gone already
}
