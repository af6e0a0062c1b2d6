// Package completions writes the completion scripts of kshare for four shells.
// The scripts hold no list of commands: they ask the binary, so they fit every
// version of it. The files beside this one are written by it (make docs).
package completions
