package ctp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
)

// waitingAfter is how long a run until empty gets nothing before it says for what
// it waits.
const waitingAfter = 10 * time.Second

// tellWaiting says once for what a run until empty waits, whose group has records
// left and hands none out.
func (w *worker) tellWaiting(ctx context.Context) {
	now := w.opts.Now()
	if now.Sub(w.idleSince) < waitingAfter || now.Sub(w.start) < waitingAfter {
		return
	}
	w.toldWait.Do(func() {
		w.opts.Warn(fmt.Errorf("%w: share group %q has records left of topic %q that it does not hand out; %s",
			ErrWaiting, w.opts.GroupID, w.opts.From, w.heldBy(ctx)))
	})
}

// heldBy says who may have records that a group has left: an open transaction of
// the topic's own producers if it is in their way, else whoever took them.
func (r *run) heldBy(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	const someone = "another member may hold them, or a transaction: 'kshare inspect pending' and 'kshare inspect group' tell"
	committed := r.opts.IsolationLevel == readCommitted
	if !committed {
		value, ok, err := r.cl.GroupConfig(ctx, r.opts.GroupID, isolationConfig)
		committed = err == nil && ok && value == readCommitted
	}
	if !committed {
		return someone
	}
	blocked, err := r.behindOpenTransaction(ctx)
	if err != nil || len(blocked) == 0 {
		return someone
	}
	const named = 3
	s := strings.Join(blocked[:min(named, len(blocked))], ", ")
	if n := len(blocked) - named; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("they are behind an open transaction of the topic's own producers, whose end read_committed waits for (%s): 'kshare inspect txn --all' lists the open ones, and 'kshare inspect txn --hanging' those that never end", s)
}

// behindOpenTransaction returns the partitions, and where, in which everything
// that the group has left is behind the last stable offset.
func (r *run) behindOpenTransaction(ctx context.Context) ([]string, error) {
	topics, err := r.cl.Topics(ctx, r.opts.From)
	if err != nil {
		return nil, err
	}
	partitions, err := groupPartitions(ctx, r.cl, r.opts.GroupID, topics[r.opts.From])
	if err != nil || len(partitions) == 0 {
		return nil, err
	}
	if err := readLogs(ctx, r.cl, r.opts.From, partitions); err != nil {
		return nil, err
	}
	all := slices.Sorted(maps.Keys(partitions))
	stable, err := listStableOffsets(ctx, r.cl, r.opts.From, all)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range all {
		if p := partitions[n]; p.needsLog() && p.blocked(stable[n]) {
			out = append(out, fmt.Sprintf("%s-%d from offset %d", r.opts.From, n, stable[n]))
		}
	}
	return out, nil
}

// blocked reports whether all that is left of the partition is at or behind the
// last stable offset, where something is. A group that has no start offset yet is
// taken to begin at that of the log.
func (p sourcePartition) blocked(stable int64) bool {
	return stable < p.end && max(p.start, p.first) >= stable
}

// listStableOffsets returns the last stable offsets of partitions.
func listStableOffsets(ctx context.Context, cl *cluster.Client, topic string, partitions []int32) (map[int32]int64, error) {
	req := offsetsRequest(topic, partitions, latestOffset)
	req.IsolationLevel = 1 // read_committed
	return askOffsets(ctx, cl, req)
}
