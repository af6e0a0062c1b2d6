// Package monitoring has no code: it holds alert rules, a dashboard and the
// configuration of an exporter, and tests that these fit the metrics that brokers
// serve. README.md says how to use them.
package monitoring
