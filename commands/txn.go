package commands

import (
	"context"
	"errors"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/spf13/cobra"
)

func newTxnCmd(d *Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "txn",
		Short: "Prepare and end transactions by hand, and find those that nobody will end",
		Long: `Prepare and end transactions by hand, and find those that nobody will end.

A transaction that is prepared is committed or aborted by its token, in any
process and after any crash of the one that prepared it (KIP-1289).

'kshare inspect txn' shows transactions, 'kshare drain' ends all that hold share
acknowledgements, and says when none is left.`,
		Example: `  kshare txn find-hanging
  kshare txn fence billing-1 --dry-run`,
	}
	cmd.AddCommand(
		newTxnPrepareCmd(d, runTxnPrepare),
		newTxnDescribeCmd(d, runTxnEnd),
		newTxnResumeCmd(d, runTxnEnd),
		newTxnCommitCmd(d, runTxnEnd),
		newTxnFenceCmd(d, runTxnFence),
		newTxnAbortCmd(d, runTxnAbort),
		newTxnFindHangingCmd(d, runTxnFindHanging),
	)
	return cmd
}

// gapError says why a command cannot go on that has to know what it could not find
// out.
func gapError(g inspect.Gap) error {
	err := errors.New(g.Reason)
	switch {
	case g.ACL != nil:
		return &cluster.AuthError{Err: err, Advice: g.Advice}
	case g.KafkaError == "":
		err = &unansweredError{g.Reason}
	}
	return hintf(err, "%s", g.Advice)
}

// unansweredError says that a broker gave no answer.
type unansweredError struct{ reason string }

func (e *unansweredError) Error() string { return e.reason }

// Unwrap returns what it is to a script: time ran out.
func (*unansweredError) Unwrap() error { return context.DeadlineExceeded }
