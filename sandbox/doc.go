// Package sandbox is a Kafka cluster in this process that implements share
// groups (KIP-932) and their transactional acknowledgements (KIP-1289), for
// rehearsals, demonstrations and tests. It protects nothing, replicates nothing
// and is no place for data that matters.
//
//	s, err := sandbox.Start(ctx, sandbox.WithTopics(sandbox.Topic{Name: "orders"}))
//	if err != nil {
//		return err
//	}
//	defer s.Close()
//	fmt.Println(s.BootstrapServers())
//
// # Parts
//
// kfake, the in-process cluster of franz-go, keeps the logs, topics, consumer
// groups, transactions, access control lists, users and their persistence. In
// front of it is a gateway: clients connect to it, and it serves what kfake does
// not know or serves otherwise. The share plane behind the gateway is what the
// brokers do for share groups; the share coordinator keeps its state in
// __share_group_state, in Kafka's records.
//
//	client -- gateway --+-- kfake            logs, groups, transactions, ...
//	                    |     |
//	                    +-- share plane      76-79, 90-92, TxnShareAcknowledge
//	                          |
//	                          +-- share coordinator    83-87
//
// # Profiles
//
// The numbers of KIP-1289 clash with those of released Kafka, so a sandbox shows
// itself as one consistent build that has them, by its [wire.Dialect]:
//
//   - "kip", the text put to the vote: a build before 4.4, with
//     TxnShareAcknowledge as key 93 while share.version 2 is finalized.
//     share.version is supported from 0 to 2, metadata.version up to 30
//     (4.3-IV0), and no request has a version that 4.4 brought.
//   - "draft", the newest draft: a build after 4.4, with TxnShareAcknowledge as
//     key 95 at any level. share.version is supported from 0 to 3,
//     metadata.version up to 34 (4.5-IV0).
//
// What nobody here serves is not advertised: no requests of streams groups, and in
// the draft profile neither 93 (StreamsGroupTopologyDescriptionUpdate) nor 94
// (UnregisterController), which such a build would have.
//
// # After a crash
//
// A sandbox with a data directory can be killed at any moment: the records of a
// transaction and its acknowledgements share one outcome, and a client that lost
// the answer to its EndTxn is told which. Nothing is synced to the disk, as by a
// broker, so this holds for the death of the process and not for that of the
// machine. What differs from a broker that restarts:
//
//   - A transaction that was open and had records, or offsets of consumer groups,
//     stays Ongoing and can only be aborted: adding to it and committing it is
//     TRANSACTION_ABORTABLE. With share acknowledgements alone it goes on.
//   - Members of groups are forgotten, and have to join again.
//
// # Faults
//
// [Sandbox.InjectFault] makes something go wrong, for as long as it is told, and
// [Sandbox.ClearFault] ends it; the control address does the same over HTTP. What
// is true meanwhile, whatever the brokers say, is told by [Sandbox.Pending],
// [Sandbox.OpenParticipants] and [Sandbox.State]:
//
//	f, err := s.InjectFault(ctx, sandbox.Fault{Kind: sandbox.FaultDelayMarker, TransactionalID: "billing-1"})
//	// ... the transaction commits, and its records stay TX_PENDING ...
//	_, err = s.ClearFault(f.ID)
//
// # Where a sandbox differs from brokers that implement the KIP
//
//   - The answer to EndTxn comes after its markers are applied, not before: once
//     a client knows that its transaction ended, TX_PENDING is gone. A
//     transaction goes from Ongoing to CompleteCommit or CompleteAbort at once,
//     unless its markers cannot be applied.
//   - A transaction is aborted when its timeout has passed, and not only when the
//     coordinator looks next.
//   - Lowering share.version below the level of the dialect is refused with
//     INVALID_UPDATE_VERSION while any record is in TX_PENDING, as the KIP says
//     and no draft does. This holds for unsafe downgrades too.
//   - In the draft profile an EndTxn below version 5, which is a client without
//     KIP-890, is refused with UNSUPPORTED_VERSION if the transaction holds share
//     acknowledgements. A broker would accept it, then find that
//     __share_group_state takes no such marker, and be stuck in PrepareCommit or
//     PrepareAbort.
//   - WriteTxnMarkers for a partition of __share_group_state resolves all that
//     the producer has staged, and not only what that partition holds.
//   - Clients cannot append to __share_group_state, nor delete it, trim it or
//     give it more partitions.
//   - A record batch is checked against its header only if it is not compressed.
//   - Requests without records are limited to 10 MiB, where a broker takes 100
//     MiB of any; before authentication the limit is 512 KiB, as there.
package sandbox
