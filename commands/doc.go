// Package commands is the command line of kshare: one file per command, which
// parses flags into options, runs one operation with them, and hands the result
// to package output.
//
//	os.Exit(commands.Main(ctx, os.Args[1:], commands.System()))
//
// It is not for doing things to Kafka: everything a command does is a function
// of another package that can be called from Go.
//
// The exit code of [Main] is part of the interface, see [ExitCodes].
package commands
