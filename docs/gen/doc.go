// Command gen writes the manual pages, the Markdown and the completion scripts
// of kshare from its command tree, below the current directory:
//
//	go run ./docs/gen
//
// The same tree gives the same bytes at any time; a test holds the committed
// files to that. It is a program of its own, and no command of kshare, because
// what makes the pages does work at import time, which every command would wait
// for.
package main
