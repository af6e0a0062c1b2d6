// Package demo is the life of transactional acknowledgements on one cluster, in
// steps: the level is raised, records are copied in transactions, some are
// staged and seen in TX_PENDING, the level is not lowered under them, they are
// drained, and the level is lowered. Each step asks the cluster whether it
// worked. The steps of an operator are done by the packages that the commands
// use: feature, inspect and drain.
//
// It changes the finalized level of share.version, so it is for a sandbox.
package demo
