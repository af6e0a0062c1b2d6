package inspect

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Where little time is left, what is known is told, and nothing is tried again.
func TestLastTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			left time.Duration // 0: no deadline
			try  int
			want bool
		}{
			{0, 1, false},
			{0, tries - 1, false},
			{0, tries, true},
			{time.Hour, tries, true},
			{time.Hour, tries - 1, false},
			{time.Second, 1, false},
			{time.Second, 2, true},
			{900 * time.Millisecond, 1, true},
		} {
			ctx := t.Context()
			if c.left > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.left)
				defer cancel()
			}
			if got := lastTry(ctx, c.try); got != c.want {
				t.Errorf("lastTry with %s left, try %d = %v, want %v", c.left, c.try, got, c.want)
			}
		}
	})
}

// One look describes the brokers once, and one that was silent then is asked for
// nothing more; one that could not be reached may be there again.
func TestSparingDescribes(t *testing.T) {
	f := newFakeCluster()
	f.versions[1].Err = context.DeadlineExceeded
	f.versions[2].Err = errors.New("connection refused")
	s := newSparing(f)
	if newSparing(s) != s {
		t.Error("a look in a look is another one")
	}
	if _, err := s.Describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := f.versions
	f.versions = nil
	d, err := s.Describe(t.Context())
	if err != nil || len(d.Brokers) != fakePartitions {
		t.Errorf("Describe again = %+v, %v, want what it was", d, err)
	}
	f.versions = all
	for node, silent := range map[int32]bool{0: false, 1: true, 2: false} {
		_, err := s.RequestBroker(t.Context(), node, kmsg.NewPtrListTransactionsRequest())
		if errors.Is(err, errSilent) != silent {
			t.Errorf("a request to broker %d: %v, want none to be sent: %v", node, err, silent)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newSparing(f).Describe(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Describe = %v, want %v", err, context.Canceled)
	}
}
