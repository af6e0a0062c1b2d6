//go:build race

package drain_test

// The race detector makes a run ten times as slow.
const soakRuns = 200
