// Package terminal runs programs on a terminal that nobody sits at: a pty whose
// screen is emulated, so that tests, and the pictures of the documentation, have
// what a person would see, colours included. It is for Unix.
//
//	s, err := terminal.Start(ctx, terminal.Options{Width: 80, Height: 24}, "kshare", "version")
//	err = s.WaitFor(ctx, "VERSION")
//	code, err := s.Wait()
//	fmt.Println(s.Screen().Text())
package terminal
