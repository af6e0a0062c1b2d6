// Package bigcluster is a Kafka of three brokers that is made up: it answers what
// inspection asks, over TCP and in Kafka's protocol, about thousands of
// transactions and share groups that were never made. Benchmarks and tests use it
// to see what inspecting a large cluster costs. Nothing in it changes, and it
// counts the requests.
package bigcluster
