//go:build unix

package config

import "syscall"

// errNotDir is what a path through something that is no directory fails with.
var errNotDir error = syscall.ENOTDIR
