package wire

import "strconv"

// RecordState is the delivery state of one record of a share-partition
// (KIP-932; TxPending is KIP-1289). Values are those persisted in
// __share_group_state.
type RecordState int8

// The record states. Acquired is never persisted; Archiving exists since
// Kafka 4.4 (KIP-1191); TxPending is in the drafts of KIP-1289 only.
const (
	Available    RecordState = 0
	Acquired     RecordState = 1
	Acknowledged RecordState = 2
	Archiving    RecordState = 3
	Archived     RecordState = 4
	TxPending    RecordState = 5
)

// Terminal reports whether a record in this state is never delivered again and
// no longer holds back the start offset of its share-partition.
func (s RecordState) Terminal() bool { return s == Acknowledged || s == Archived }

// String returns Kafka's own name of the state, such as "TX_PENDING".
func (s RecordState) String() string {
	switch s {
	case Available:
		return "AVAILABLE"
	case Acquired:
		return "ACQUIRED"
	case Acknowledged:
		return "ACKNOWLEDGED"
	case Archiving:
		return "ARCHIVING"
	case Archived:
		return "ARCHIVED"
	case TxPending:
		return "TX_PENDING"
	}
	return "RecordState(" + strconv.Itoa(int(s)) + ")"
}

// AcknowledgeType is what a member says of one record it acquired (KIP-932;
// Renew is KIP-1222).
type AcknowledgeType int8

// The acknowledge types, with their values on the wire.
const (
	Gap     AcknowledgeType = 0
	Accept  AcknowledgeType = 1
	Release AcknowledgeType = 2
	Reject  AcknowledgeType = 3
	Renew   AcknowledgeType = 4
)

// String returns Kafka's own name of the type in lower case, such as "accept".
func (t AcknowledgeType) String() string {
	switch t {
	case Gap:
		return "gap"
	case Accept:
		return "accept"
	case Release:
		return "release"
	case Reject:
		return "reject"
	case Renew:
		return "renew"
	}
	return "AcknowledgeType(" + strconv.Itoa(int(t)) + ")"
}
