// Package wire holds the bytes that kmsg lacks: the TxnShareAcknowledge
// request and response of KIP-1289 in each of its dialects, the records of the
// __share_group_state topic, and the function that maps a share-partition to a
// partition of that topic.
//
// It opens no connection and reads no clock. KIP-1289 is a draft; the constants
// of each dialect are rows of one table (see [Dialects]), as read on 2026-11-29.
package wire
