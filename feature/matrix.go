package feature

import (
	"fmt"

	"github.com/kshare/kshare/cluster"
)

// Matrix is the KIP's table of client and broker versions (KIP-1289,
// "Cross-Version Client/Broker Matrix"), with the brokers of a cluster put into
// its columns.
type Matrix struct {
	Cells []MatrixCell `json:"-"` // clients first, then brokers
	// Verdict is what the cluster as a whole offers to a new client.
	TxnAcks TxnAcks `json:"txn_share_acknowledge"`
}

// MatrixCell says what happens between one kind of client and one of broker.
type MatrixCell struct {
	Client string `json:"client"` // "new": one that acknowledges in transactions; "old"
	Broker string `json:"broker"` // kind of broker
	// Outcome is what the client sees.
	Outcome string `json:"outcome"`
	// Here are the node IDs of the brokers of that kind.
	Here []int32 `json:"brokers_here"`
}

const (
	outcomeWorks      = "works"
	outcomeRefused    = "refused by the client, nothing is sent (UnsupportedVersion)"
	outcomeUnaffected = "unaffected"
	outcomeUnknown    = "not known: nothing is sent"
)

// NewMatrix evaluates the table on a report. It is pure.
func NewMatrix(r *Report) *Matrix {
	m := &Matrix{TxnAcks: r.TxnAcks}
	level, below := "the enabling level", "below the enabling level"
	if d := r.support.Dialect; d.ShareVersion > 0 {
		level = fmt.Sprintf("share.version=%d", d.ShareVersion)
		below = fmt.Sprintf("share.version<%d or transaction.version<2", d.ShareVersion)
	}
	columns := []struct {
		name     string
		verdicts []cluster.Verdict
		outcome  string // for a new client
	}{
		{level, []cluster.Verdict{cluster.Usable}, outcomeWorks},
		{below, []cluster.Verdict{cluster.NotEnabled}, outcomeRefused},
		{"software without KIP-1289", []cluster.Verdict{cluster.NotSupported}, outcomeRefused},
		{"not known", []cluster.Verdict{cluster.Ambiguous, cluster.Unknown}, outcomeUnknown},
	}
	for _, client := range []string{"new", "old"} {
		for _, col := range columns {
			cell := MatrixCell{Client: client, Broker: col.name, Outcome: outcomeUnaffected}
			if client == "new" {
				cell.Outcome = col.outcome
			}
			for _, b := range r.support.Brokers {
				for _, v := range col.verdicts {
					if b.Verdict == v {
						cell.Here = append(cell.Here, b.NodeID)
					}
				}
			}
			m.Cells = append(m.Cells, cell)
		}
	}
	return m
}
