package sandbox

import (
	"context"
	"time"
)

// newSharePlane loads the share coordinator and starts the share plane.
func newSharePlane(ctx context.Context, k kafka, cfg config, enabled func() bool) (sharePlane, error) {
	co, err := loadShareCoordinator(ctx, k, time.Now)
	if err != nil {
		return nil, err
	}
	p := newPlane(k, co, planeConfig{
		dialect: cfg.dialect, persistPending: cfg.pending == PendingPersisted,
		enabled: enabled, now: time.Now, logf: cfg.logf,
	})
	if err := p.resume(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}
