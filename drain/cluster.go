package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Cluster is what this package needs of a connection; *cluster.Client is one.
type Cluster interface {
	Describe(ctx context.Context) (cluster.Description, error)
	Request(ctx context.Context, req kmsg.Request) (kmsg.Response, error)
	RequestBroker(ctx context.Context, node int32, req kmsg.Request) (kmsg.Response, error)
	Topics(ctx context.Context, names ...string) (map[string]cluster.Topic, error)
}

// The pauses between tries: each is twice the one before.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// CoordinatorError says that a transaction coordinator did not do what it was
// asked for until time was up, or a signal came. It wraps the reason of that.
type CoordinatorError struct {
	Op        string
	Asked     int32 // node that was asked last; -1 when none was named
	Suggested int32 // node that the cluster named last; -1 when none
	Tries     int
	Last      error // of the last try
	Err       error // why there was no further one
}

// Error names the nodes and the last error.
func (e *CoordinatorError) Error() string {
	s := fmt.Sprintf("%s: %v after %d tries: ", e.Op, e.Err, e.Tries)
	switch {
	case e.Asked < 0:
		return s + cluster.Name(e.Last)
	case e.Suggested >= 0 && e.Suggested != e.Asked:
		return s + fmt.Sprintf("broker %d, which is not the coordinator any more (that is said to be broker %d): %s", e.Asked, e.Suggested, cluster.Name(e.Last))
	}
	return s + fmt.Sprintf("broker %d: %s", e.Asked, cluster.Name(e.Last))
}

// Unwrap returns why there was no further try.
func (e *CoordinatorError) Unwrap() error { return e.Err }

// BrokerID returns the broker that was asked last.
func (e *CoordinatorError) BrokerID() int32 { return e.Asked }

// Hint returns what to do next.
func (e *CoordinatorError) Hint() string {
	switch {
	case errors.Is(e.Last, kerr.ConcurrentTransactions):
		return "the transaction is being ended, and its markers are not written: look at the leaders of its partitions; then repeat the command"
	case errors.Is(e.Last, kerr.NotCoordinator):
		return "the brokers do not agree on who coordinates it: see whether partitions of __transaction_state have leaders"
	}
	return "repeat the command when the broker answers; nothing is left half done"
}

// atCoordinator calls do with the coordinator of a transactional ID, again after
// a pause and with a new look-up while it says that it cannot yet, until ctx
// ends. do must be safe to repeat when its outcome is not known.
func atCoordinator(ctx context.Context, cl Cluster, clock Clock, op, id string, do func(node int32) error) error {
	e := &CoordinatorError{Op: op, Asked: -1, Suggested: -1}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		node, err := findCoordinator(ctx, cl, id)
		if err == nil {
			e.Asked, e.Suggested = node, node
			err = do(node)
		}
		if err == nil {
			return nil
		}
		e.Tries++
		if ctx.Err() == nil {
			e.Last = err
		} else if e.Last == nil {
			e.Last = err
		}
		if ctx.Err() == nil && !retriable(err) {
			return cluster.Classify(&cluster.Error{Op: op, Broker: e.Asked, Err: err})
		}
		if e.Err = clock.Wait(ctx, pause); e.Err != nil {
			return e
		}
	}
}

func findCoordinator(ctx context.Context, cl Cluster, id string) (int32, error) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.CoordinatorType = coordinatorTransaction
	req.CoordinatorKey, req.CoordinatorKeys = id, []string{id}
	kresp, err := cl.Request(ctx, req)
	if err != nil {
		return -1, err
	}
	resp := kresp.(*kmsg.FindCoordinatorResponse)
	if len(resp.Coordinators) == 0 { // before v4 (KIP-699)
		return resp.NodeID, kerr.ErrorForCode(resp.ErrorCode)
	}
	c := resp.Coordinators[0]
	return c.NodeID, kerr.ErrorForCode(c.ErrorCode)
}

// coordinatorTransaction is FindCoordinator's key type of transactional IDs.
const coordinatorTransaction = 1

// retriable reports whether the same request may succeed a moment later.
func retriable(err error) bool {
	for _, r := range []error{
		kerr.ConcurrentTransactions, kerr.NotCoordinator, kerr.CoordinatorNotAvailable,
		kerr.CoordinatorLoadInProgress, kerr.RequestTimedOut, kerr.NetworkException,
		kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.BrokerNotAvailable,
	} {
		if errors.Is(err, r) {
			return true
		}
	}
	return cluster.IsUnanswered(err)
}
