package share_test

import (
	"errors"
	"testing"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
)

// A batch whose share session has ended is superseded once the same records may
// have come again. What is said of it then does not reach the later delivery.
func TestSupersededBatch(t *testing.T) {
	cl := newCluster(t, 30)
	c := join(t, cl, nil)
	var old []*share.Batch
	take(t, c, 30, func(b *share.Batch) {
		if err := c.CheckHeld(b); err != nil {
			t.Errorf("a batch that was just polled: %v", err)
		}
		old = append(old, b)
	})
	c.Reset()
	var again []*share.Batch
	got := take(t, c, 30, func(b *share.Batch) { again = append(again, b) })
	for key, n := range got {
		if n != 2 {
			t.Errorf("record %s was delivered %d times, want 2", key, n)
		}
	}
	for _, b := range old {
		if err := c.CheckHeld(b); !isSuperseded(err) {
			t.Errorf("CheckHeld = %v for the first delivery, want a SupersededError", err)
		}
		if err := c.Acknowledge(t.Context(), b, b.All(wire.Release)); err != nil {
			t.Errorf("release of the first delivery: %v", err)
		}
	}
	for _, b := range again {
		if err := c.CheckHeld(b); err != nil {
			t.Errorf("CheckHeld = %v for the second delivery", err)
		}
		// Had the release reached the broker, it would refuse this.
		if err := c.Acknowledge(t.Context(), b, b.All(wire.Accept)); err != nil {
			t.Errorf("accept the second delivery: %v", err)
		}
	}
	wantNothing(t, c)
}

func isSuperseded(err error) bool {
	e, ok := errors.AsType[*share.SupersededError](err)
	return ok && e.TopicPartition.Topic == "in" && e.Error() != ""
}
