// Package apptest runs applications that acknowledge in transactions on a sandbox
// whose time is that of a synctest bubble, for tests of what an operator does
// about them: hours pass in no time.
package apptest
