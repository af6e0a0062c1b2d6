// Package need decides what becomes of a test that needs something from outside
// which is not there.
package need
