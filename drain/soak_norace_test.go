//go:build !race

package drain_test

const soakRuns = 2000
