//go:build !unix

package ctp_test

// There are no daemons.
func startDaemon(string) {}
func leashed(string)     {}
