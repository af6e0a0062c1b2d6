// Package txn is Kafka transactions that hold acknowledgements of share-group
// records (KIP-1289), alone or with produced records: on commit all of it takes
// effect, on abort nothing does.
//
// [Session] is for read-process-write. Records go through kgo's transactional
// producer; acknowledgements are staged by TxnShareAcknowledge requests of our
// own, one for each leader of the source partitions. [Acknowledger] is for those
// that write elsewhere than to Kafka, and needs no producer. With both a
// transaction can be prepared, and be ended by its [Token] in another process
// ([Resume]).
//
//	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "orders-1"})
//	...
//	if err := s.Begin(ctx); err != nil { ... }
//	err = s.Produce(ctx, record)
//	if err == nil {
//		err = s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: acks, Group: consumer.GroupMetadata()})
//	}
//	if err == nil {
//		err = consumer.CheckHeld(batch)
//	}
//	if err == nil {
//		err = s.Commit(ctx, txn.Guard{LockDeadline: batch.LockDeadline(), LockDuration: batch.LockDuration()})
//	}
//	if err != nil {
//		err = errors.Join(err, s.Abort(ctx))
//		consumer.Reset()
//	} else {
//		consumer.Committed(batch, acks)
//	}
//
// # What is never guessed
//
// Any doubt about what was staged, an error at any level or an answer that did
// not arrive, forbids the commit: abort, and the records are delivered again.
//
// A commit whose answer is lost is looked up, by the state and the epoch that the
// coordinator describes. One that has not arrived is sent again, or, by Abort, the
// opposite: the coordinator takes the first, and what is still on its way cannot
// change that. Where none of this gives an answer the result is an
// *OutcomeUnknownError, and its token finds out later.
//
// # Errors
//
// [Classify] says of every error what to do about it: abort, call again, stop, or
// find out what happened.
//
// # Differences from the Java API of the KIP
//
//   - SendShareAcknowledgements waits for the brokers' answers, where Java's
//     method enqueues and the commit reports.
//   - Group metadata that cannot be had is a MemberEpoch of 0, which brokers
//     refuse, and not an error of its own.
//   - The KIP asks for Write on the share group. Every implementation checks READ.
package txn
