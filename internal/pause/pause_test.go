package pause_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/internal/pause"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := pause.For(t.Context(), time.Hour); err != nil || time.Since(start) != time.Hour {
			t.Errorf("For = %v after %s, want nil after an hour", err, time.Since(start))
		}
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(stop) })
		start = time.Now()
		if err := pause.For(ctx, time.Hour); !errors.Is(err, stop) || time.Since(start) != time.Minute {
			t.Errorf("For = %v after %s, want the cause after a minute", err, time.Since(start))
		}
	})
}
