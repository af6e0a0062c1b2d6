// Package archtest holds the direction of imports between the packages of
// kshare: what may import what, which libraries are used where, and who may
// touch the process. It has tests only; ARCHITECTURE.md draws the picture.
package archtest
