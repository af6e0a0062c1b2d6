// Package inspect says which records of share groups wait in a transaction
// (TX_PENDING, KIP-1289), who owns them, since when, and how sure that is; and
// what share groups, share-partitions and transactions there are. It reads and
// never changes anything, and it acquires no record.
//
// No request lists TX_PENDING records. They are found by joining what several
// sources say, so the work is in two halves:
//
//   - Collectors, one for each source, read what the principal may read and say
//     what they could not see, as a [Gap]. [Collect] runs them and returns
//     [Evidence].
//   - [NewPendingReport] is a pure function from evidence to a [PendingReport].
//
// Nothing found is "none" only where every source that was needed could be read;
// otherwise the report is [StatusUnknown]. Unknown is not zero.
//
//	ev, err := inspect.Collect(ctx, cl, inspect.CollectOptions{})
//	if err != nil {
//		return err
//	}
//	rep := inspect.NewPendingReport(ev, inspect.Filter{})
//
// The evidence is not one moment of the cluster: sources are read one after the
// other. What does not fit together at first sight is looked at a second time,
// so that a transaction that ended in between is not taken for an orphan.
//
// [ReadMetrics] stands apart: it reads over HTTP what brokers measure, from their
// exporters, and judges the alerts on that.
package inspect
