// Package completions completes command lines of kshare in four shells: it writes
// their scripts, and asks clusters for the names that words can become.
//
// The scripts hold no list of commands: they ask the binary, so they fit every
// version of it. The files kshare.* beside this one are written by it (make docs).
//
//	choices := completions.Ask(ctx, connect, completions.Groups)
//	words, directive := completions.Encode(completions.Filter(choices, "bill", nil))
//
// Nothing here fails: where a cluster does not answer, there are no choices. Which
// word of which command is what, package commands knows.
package completions
