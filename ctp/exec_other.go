//go:build !unix

package ctp

import "os/exec"

func ownGroup(*exec.Cmd) {}

// killGroup kills the program; what it has started ends with its pipes.
func killGroup(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may be gone already
}
