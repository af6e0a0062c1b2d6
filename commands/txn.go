package commands

import "github.com/spf13/cobra"

func newTxnCmd(d *Deps) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "txn",
		Short: "End transactions by hand, and find those that nobody will end",
		Long: `End transactions by hand, and find those that nobody will end.

'kshare inspect txn' shows transactions, 'kshare drain' ends all that hold share
acknowledgements, and says when none is left.`,
		Example: `  kshare txn find-hanging
  kshare txn fence billing-1 --dry-run`,
	}
	cmd.AddCommand(
		newTxnFenceCmd(d, runTxnFence),
		newTxnAbortCmd(d, runTxnAbort),
		newTxnFindHangingCmd(d, runTxnFindHanging),
	)
	return cmd
}
