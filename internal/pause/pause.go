// Package pause waits between tries.
package pause

import (
	"context"
	"time"
)

// For waits d, or until ctx ends, and returns the cause then. With a ctx that has
// ended it may return nil if d is 0 or less.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
