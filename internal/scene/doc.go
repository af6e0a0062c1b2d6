// Package scene is a sandbox in a state that people would look at: open
// transactions that hold records of share groups. Tests of what a terminal shows
// and the pictures of the documentation have it in common.
package scene
