// Package promtext reads and writes the text format in which Prometheus scrapes
// metrics (version 0.0.4): plain samples, whatever their type.
//
// It is here because the format's own parser comes with protocol buffers, whose
// reflection keeps the linker from dropping any exported method: kshare would be
// a third larger and start more slowly, for a grammar of four lines. Tests hold
// this one against that one.
//
//	err := promtext.Parse(body, func(name []byte) bool { return true }, func(s promtext.Sample) {
//		fmt.Println(s.Name, s.Value)
//	})
package promtext
