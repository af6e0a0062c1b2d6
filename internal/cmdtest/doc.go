// Package cmdtest runs kshare commands inside a test: no process, no terminal,
// no clock, no environment but what the test gives.
//
//	res := cmdtest.Run(t, cmdtest.Setup{}, "version", "-o", "json")
//	res.Want(t, 0)
package cmdtest
