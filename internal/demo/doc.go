// Package demo is the life of transactional acknowledgements on one cluster, in
// steps: the level is raised, records are copied in transactions, some are
// staged and seen in TX_PENDING, drained, and the level is lowered again. Each
// step asks the cluster whether it worked.
//
// It changes the finalized level of share.version, so it is for a sandbox.
package demo
