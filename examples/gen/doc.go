// Command gen writes examples/orders.ndjson: 10,000 order events, one JSON
// object a line, as varied as those of a shop that has been on-line for some
// years, and 20 lines among them that are not JSON.
//
//	go run ./examples/gen > examples/orders.ndjson
//
// The same program gives the same bytes on every machine and with every version
// of Go; a test holds the committed file to that. Nobody in it exists.
package main
