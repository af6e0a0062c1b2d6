// Package mdtest reads the Markdown pages of this repository for the tests that
// hold them to what is true: that their commands do what they show, and that
// their links lead somewhere.
package mdtest
