package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // --time-zone, where the system has no time zones: Windows, and images with this program alone

	"github.com/kshare/kshare/commands"
)

func main() {
	// A write to a closed pipe then fails with EPIPE. By default it would kill
	// the process in the middle of a transaction. Caught and not ignored: programs
	// that are started inherit what is ignored, and most rely on dying of it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(commands.Main(context.Background(), os.Args[1:], commands.System()))
}
