package inspect

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// advise says what resolves a row that an open transaction holds.
func advise(r *PendingRow, now time.Time) {
	switch state := *r.TransactionState; {
	case state == "PrepareCommit":
		// The decision is durable. An abort would deliver records again whose
		// results are committed.
		r.Advice = "its commit is decided, do not abort it: " + awaitMarkers(r)
	case state != "Ongoing":
		r.Advice = "its abort is decided: " + awaitMarkers(r)
	case r.TwoPhase:
		r.Advice = "takes part in a two-phase commit and never times out: let whoever coordinates that decide; fencing its transactional ID discards a decision to commit that may have been prepared"
	case r.Stuck:
		r.Advice = fmt.Sprintf("its timeout has passed and %s has not ended it: look at that broker; fencing its transactional ID ends it too", coordinatorOf(r))
	case r.Deadline == nil:
		r.Advice = "ends by itself when its timeout has passed; fencing its transactional ID ends it now"
	case r.Deadline.Before(now):
		r.Advice = "its timeout has passed and its coordinator should end it any moment; fencing its transactional ID ends it now"
	default:
		r.Advice = fmt.Sprintf("ends by itself at %s; fencing its transactional ID ends it now", r.Deadline.Format(time.RFC3339))
	}
	if *r.TransactionState != "Ongoing" {
		return
	}
	r.Command = []string{"txn", "fence", *r.TransactionalID}
	if strings.HasPrefix(*r.TransactionalID, "-") {
		r.Command = []string{"txn", "fence", "--", *r.TransactionalID} // it is no flag
	}
}

// awaitMarkers says what a transaction waits for whose end is decided.
func awaitMarkers(r *PendingRow) string {
	if r.Stuck {
		return fmt.Sprintf("its end markers take longer than they should; look at %s and at the leaders of %s", coordinatorOf(r), stateTopic)
	}
	return "its end markers are being written"
}

// coordinatorOf names the coordinator of the transaction of a row.
func coordinatorOf(r *PendingRow) string {
	return fmt.Sprintf("its coordinator (broker %d)", *r.Coordinator)
}

// adviseOrphan says what resolves an orphan. The command is the last resort. It
// is no abort where it is known that the transaction was committed, which would
// deliver records again whose results are committed.
func adviseOrphan(r *PendingRow) {
	if r.ProducerID == nil || r.ProducerEpoch == nil {
		r.Advice = "nothing will resolve it by itself, and without its owner no end marker can be made for it"
		return
	}
	abort := []string{
		"txn", "abort", "--topic", stateTopic, "--partition", strconv.Itoa(int(r.StatePartition)),
		"--producer-id", strconv.FormatInt(*r.ProducerID, 10), "--producer-epoch", strconv.Itoa(int(*r.ProducerEpoch)),
	}
	if r.TransactionState != nil && *r.TransactionState == "CompleteCommit" {
		r.Advice = fmt.Sprintf("its transaction was committed and the end marker has not reached it: look at the leader of %s-%d; do not abort it, that would deliver the records again although their results are committed; a commit marker finishes it", stateTopic, r.StatePartition)
		r.Command = []string{"drain", "--abort-hanging", "--group", *r.GroupID}
		return
	}
	r.Advice = "nothing will resolve it by itself; an abort marker gives the records back to the group"
	r.Command = abort
}
