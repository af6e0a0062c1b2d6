// Command kshare operates Kafka share groups that take part in transactions
// (KIP-1289). See 'kshare --help', and package commands for its contract.
package main
