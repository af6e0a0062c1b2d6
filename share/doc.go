// Package share is one member of a share group (KIP-932): it joins and
// heartbeats, keeps a share session with each leader, and returns acquired
// records with what has to be known to acknowledge them, plainly here or in a
// transaction with package txn.
//
// Acknowledgement is explicit: nothing is acknowledged by polling again, since
// that would acknowledge records whose transaction was aborted. Records that are
// neither acknowledged nor staged return to the group when their acquisition
// lock expires, when they are released, or when the consumer is closed.
//
//	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "g", Topics: []string{"orders"}})
//	if err != nil {
//		return err
//	}
//	defer c.Close(context.WithoutCancel(ctx))
//	batch, err := c.Poll(ctx, 500)
//
// Brokers tell deliveries of one record to one member not apart, so who commits
// acknowledgements in transactions looks with [Consumer.CheckHeld] first, and says
// so with [Consumer.Committed] afterwards.
//
// [AcquireRanges] acquires given offsets by hand, for those who have decided about
// them already.
package share
