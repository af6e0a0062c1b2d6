package main

import (
	"context"
	"os"

	"github.com/kshare/kshare/commands"
)

func main() {
	os.Exit(commands.Main(context.Background(), os.Args[1:], commands.System()))
}
