// Package fakekafka is a Kafka for tests of what kshare does with answers that
// no healthy cluster gives: brokers of different builds, silent and unreachable
// ones, old versions of a request, refusals, answers that are lost. It is kfake
// with every request counted and any answer changed, and nothing that kshare
// itself runs on.
package fakekafka
