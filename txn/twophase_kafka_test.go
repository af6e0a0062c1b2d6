package txn

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Kafka 4.4 has InitProducerId v6 (KIP-939), and offers it only where versions that
// are unstable are allowed. It stages no acknowledgements, so this is an
// acknowledger without them.
func TestTwoPhaseCommitOnKafka(t *testing.T) {
	for name, tt := range map[string]struct {
		props map[string]string
		do    func(ctx context.Context, t *testing.T, a *Acknowledger)
	}{
		"as released": {
			map[string]string{"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}, // the cluster of the other tests
			func(ctx context.Context, t *testing.T, a *Acknowledger) {
				if err := a.initialise(ctx, -1, -1); !isA[*cluster.UnsupportedError](err) {
					t.Errorf("two-phase commit: %v, want an *UnsupportedError", err)
				}
			},
		},
		"with what is unstable": {
			map[string]string{"unstable.api.versions.enable": "true", "transaction.two.phase.commit.enable": "true"},
			func(ctx context.Context, t *testing.T, a *Acknowledger) {
				for epoch := range int16(2) {
					if err := a.initialise(ctx, -1, -1); err != nil {
						t.Fatal(err)
					}
					if a.producerID < 0 || a.epoch != epoch {
						t.Errorf("producer ID %d with epoch %d, want epoch %d", a.producerID, a.epoch, epoch)
					}
				}
				// A timeout of 2147483647 ms is what marks two-phase commit, and no timeout.
				d, err := describe(ctx, a.cl, a.transactionalID)
				if err != nil || d.timeout != 0 || d.producerID != a.producerID {
					t.Errorf("described as %+v (%v), want no timeout", d, err)
				}
				// To keep what is prepared it has not learnt yet: Resume asks for nothing of
				// that kind, and goes by the producer ID and epoch of the token.
				req := wire.NewInitProducerIDRequest()
				req.TransactionalID, req.TransactionTimeoutMillis, req.Enable2Pc, req.KeepPreparedTxn = &a.transactionalID, 1<<31-1, true, true
				kresp, _, err := a.request(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				if err := kerr.ErrorForCode(kresp.(*wire.InitProducerIDResponse).ErrorCode); !errors.Is(err, kerr.UnsupportedVersion) {
					t.Errorf("to keep a prepared transaction: %v, want UNSUPPORTED_VERSION", err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44, Props: tt.props})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: c.Bootstrap()})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			tt.do(ctx, t, &Acknowledger{cfg: AcknowledgerConfig{TwoPhaseCommit: true}, identity: identity{
				cl: cl, transactionalID: "two-phase", now: time.Now, producerID: -1, epoch: -1, node: -1,
			}})
		})
	}
}
