package commands

import "github.com/spf13/cobra"

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
