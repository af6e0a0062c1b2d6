// Command gen writes the manual pages, the Markdown and the completion scripts
// of kshare from its command tree, and the schemas of its JSON from the types of
// its results and their comments, below the current directory:
//
//	go run ./docs/gen
//
// The same sources give the same bytes at any time; a test holds the committed
// files to that. It is a program of its own, and no command of kshare, because
// what makes the pages does work at import time, which every command would wait
// for.
package main
