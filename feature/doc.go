// Package feature reads, plans, raises and lowers the feature levels of a
// cluster (KIP-584, KIP-1022), and says what a level means on that cluster: on
// Apache Kafka 4.4 share.version 2 is the dead-letter queue, on a cluster of the
// dialect "kip" it is transactional acknowledgement.
//
// What can be decided without a connection is decided by pure functions over
// evidence: [NewReport] from the ApiVersions of every broker, [NewPlan],
// [NewUpgrade] and [NewDowngrade] from a report. Unknown is never taken for
// zero: where a broker is silent, or access control hides transactions, the
// levels are not changed.
//
//	rep, err := feature.Describe(ctx, cl, feature.DescribeOptions{})
//	if err != nil {
//		return err
//	}
//	change, err := feature.NewUpgrade(rep, []feature.Update{{Feature: "share.version", Level: 1}})
//	if err != nil {
//		return err
//	}
//	res, err := change.Execute(ctx, cl, feature.ExecuteOptions{})
//
// A downgrade that somebody would suffer from is refused with a [*RefusedError]
// that names them, or waits for them: [ExecuteOptions.Drain] takes a drain
// (package drain). It ends no transaction by itself.
package feature
