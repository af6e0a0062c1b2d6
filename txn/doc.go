// Package txn is one Kafka transaction at a time that holds both produced
// records and acknowledgements of share-group records (KIP-1289): on commit
// both take effect, on abort neither does.
//
// Records go through kgo's transactional producer; acknowledgements are staged
// by TxnShareAcknowledge requests of our own, one for each leader of the source
// partitions. Any doubt, an error at any level or an answer that did not arrive,
// forbids the commit: abort, and the records are delivered again.
//
//	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "orders-1"})
//	...
//	if err := s.Begin(ctx); err != nil { ... }
//	s.Produce(ctx, record)
//	err = s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{Acknowledgements: acks, Group: consumer.GroupMetadata()})
//	if err == nil {
//		err = s.Commit(ctx, txn.Guard{})
//	}
//	if err != nil {
//		err = errors.Join(err, s.Abort(ctx))
//	}
package txn
