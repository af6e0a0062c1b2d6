package sandbox

import (
	"context"
	"time"
)

// newSharePlane loads the share coordinator, starts the share plane, and
// finishes the transactions that a crash or a stop interrupted.
func (s *Sandbox) newSharePlane(ctx context.Context, enabled func() bool) (sharePlane, error) {
	co, err := loadShareCoordinator(ctx, s.kafka, time.Now)
	if err != nil {
		return nil, err
	}
	if err := s.raiseLeaderEpochs(co); err != nil {
		return nil, err
	}
	p := newPlane(s.kafka, &faultyCoordinator{co, co.partitionFor, s.gateway.faults}, planeConfig{
		dialect: s.cfg.dialect, persistPending: s.cfg.pending == PendingPersisted,
		enabled: enabled, now: time.Now, logf: s.cfg.logf,
	})
	settle := func(ctx context.Context) ([]txnState, error) {
		if err := s.settleTransactions(ctx, p); err != nil {
			return nil, err
		}
		return s.kafka.listTransactions(ctx)
	}
	if err := p.resume(ctx, settle); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}
