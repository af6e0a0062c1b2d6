//go:build !unix

package config

import "io/fs"

// errNotDir is what a path through something that is no directory fails with.
var errNotDir = fs.ErrNotExist
