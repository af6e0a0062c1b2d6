package txn_test

import (
	"context"
	"testing"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
)

// Offsets that are acquired by hand take part in a transaction like any others:
// those that were asked for, and no others. Those in another transaction are said
// to be.
func TestAcquiredByHand(t *testing.T) {
	for _, way := range []string{"commit", "prepare"} {
		t.Run(way, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				ctx := t.Context()
				r := newRig(t, dialect, 40)
				// One transaction has the first records of a partition pending.
				s := r.session(txn.Config{TransactionalID: "other"})
				if err := s.Begin(ctx); err != nil {
					t.Fatal(err)
				}
				b, err := r.c.Poll(ctx, 2)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.stage(s, []*share.Batch{b}, wire.Accept); err != nil {
					t.Fatal(err)
				}
				tp := b.Partitions[0].TopicPartition
				pending := b.Partitions[0].Acquired[0].Range
				if err := r.c.Close(ctx); err != nil {
					t.Fatal(err)
				}
				asked := share.Range{FirstOffset: pending.FirstOffset, LastOffset: pending.LastOffset + 3}
				a, err := share.AcquireRanges(ctx, r.connect(), share.AcquireConfig{
					GroupID: "g", Ranges: []share.AskedRange{{Topic: tp.Topic, Partition: tp.Partition, Range: asked}},
				})
				if err != nil {
					t.Fatal(err)
				}
				defer a.Close(context.WithoutCancel(ctx))
				if len(a.Reports) != 2 || a.Reports[0].Status != share.RangePending || a.Reports[0].TransactionalID != "other" ||
					a.Reports[0].Range != pending || a.Reports[1].Status != share.RangeAcquired || a.Batch.Acquired() != 3 {
					t.Fatalf("reports %+v, want the first offsets pending in \"other\"", a.Reports)
				}
				acks := txn.ShareAcknowledgements{Acknowledgements: a.Batch.All(wire.Accept), Group: a.GroupMetadata(), Leaders: a.Batch.Leaders()}
				k := r.acknowledger(txn.AcknowledgerConfig{TransactionalID: "by-hand"})
				if way == "commit" {
					err = k.CommitAcknowledgements(ctx, acks)
				} else {
					var token txn.Token
					if token, err = k.PrepareAcknowledgements(ctx, acks); err == nil {
						err = a.Close(ctx) // the member is not needed any more
					}
					if err == nil {
						err = r.resume(token, txn.OutcomeOpen).Commit(ctx)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				if p, accepted := r.accepted(); p != int(pending.Len()) || accepted != 3 {
					t.Errorf("%d records pending, %d acknowledged; want %d and 3", p, accepted, pending.Len())
				}
			})
		})
	}
}
