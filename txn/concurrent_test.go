package txn_test

import (
	"context"
	"sync"
	"testing"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
)

// Records are produced and acknowledgements staged by many goroutines at once, and
// whoever asks whether the session still has its transactional ID may do so at any
// time: every transaction takes effect as a whole.
func TestSessionConcurrently(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		const transactions, records = 3, 20 // of each transaction
		r := newRig(t, dialect, transactions*records)
		s := r.session(txn.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for ctx.Err() == nil {
					if err := s.CheckOwner(ctx); err != nil && ctx.Err() == nil {
						t.Errorf("CheckOwner: %v", err)
					}
				}
			})
		}
		for range transactions {
			if err := s.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for _, b := range r.acquire(records) {
				for _, p := range b.Partitions {
					for _, rec := range p.Records {
						acks := new(share.Acknowledgements)
						acks.Add(p.TopicPartition, rec.Offset, wire.Accept)
						wg.Go(func() {
							if err := s.SendShareAcknowledgements(t.Context(), txn.ShareAcknowledgements{
								Acknowledgements: acks, Group: r.c.GroupMetadata(), Leaders: b.Leaders(),
							}); err != nil {
								t.Error(err)
							}
						})
						wg.Go(func() {
							if err := s.Produce(t.Context(), out()); err != nil {
								t.Error(err)
							}
						})
					}
				}
			}
			wg.Wait()
			if staged, produced := s.Staged(), s.Produced(); staged != records || produced != records {
				t.Errorf("%d staged and %d produced, want %d of each", staged, produced, records)
			}
			if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		asking.Wait()
		const all = transactions * records
		if pending, accepted := r.accepted(); pending != 0 || accepted != all || r.visible() != all {
			t.Errorf("%d records pending, %d acknowledged; want 0 and %d, and as many visible", pending, accepted, all)
		}
	})
}

// Some commit and some abort a transaction by its token at once: it ends in one
// way, and each of them is told which.
func TestResumedConcurrently(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		r := newRig(t, dialect, 4)
		token, e := preparers()["records and acknowledgements"](r)
		if err := e.close(t.Context()); err != nil {
			t.Fatal(err)
		}
		resumed := make([]*txn.Resumed, 4)
		for i := range resumed { // before any of them has ended it
			var err error
			if resumed[i], err = txn.Resume(t.Context(), r.cl, token); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var commits, aborts []error
		var wg sync.WaitGroup
		for i := range 16 {
			res := resumed[i%len(resumed)]
			wg.Go(func() {
				end, results := res.Commit, &commits
				if i%2 == 1 {
					end, results = res.Abort, &aborts
				}
				err := end(t.Context())
				if o := res.Outcome(); o != txn.OutcomeCommitted && o != txn.OutcomeAborted {
					t.Errorf("outcome %s after %v", o, err)
				}
				mu.Lock()
				defer mu.Unlock()
				*results = append(*results, err)
			})
		}
		wg.Wait()
		committed := resumed[0].Outcome() == txn.OutcomeCommitted
		for _, err := range commits {
			if committed != (err == nil) || !committed && !isA[*txn.AbortedError](err) {
				t.Errorf("Commit: %v, and it is committed: %v", err, committed)
			}
		}
		for _, err := range aborts {
			if committed == (err == nil) || committed && !isA[*txn.CommittedError](err) {
				t.Errorf("Abort: %v, and it is committed: %v", err, committed)
			}
		}
		if committed {
			r.wantCommitted(e)
		} else {
			r.wantAborted()
		}
	})
}
