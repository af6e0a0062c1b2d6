package wire

// StateBatch is the persisted state of a range of records of a
// share-partition (KIP-932, ShareSnapshotValue and ShareUpdateValue version 0).
type StateBatch struct {
	FirstOffset   int64       // first offset of the range
	LastOffset    int64       // last offset of the range, inclusive
	DeliveryState RecordState // never Acquired
	DeliveryCount int16       // how often the records were delivered
	Staged        StagedOwner // [NoStagedOwner] unless DeliveryState is TxPending
}

// StagedOwner says which transaction a TX_PENDING record belongs to and what
// its commit does to it (KIP-1289, draft). The zero value is not "none"; use
// [NoStagedOwner].
type StagedOwner struct {
	ProducerID      int64 // -1: none
	ProducerEpoch   int16 // -1: none
	AcknowledgeType int8  // an [AcknowledgeType]; -1: none
	DeliveryState   int8  // the [RecordState] after a commit; -1: none
}

// NoStagedOwner returns the owner of a record that no transaction holds: -1 in
// every field.
func NoStagedOwner() StagedOwner {
	return StagedOwner{ProducerID: -1, ProducerEpoch: -1, AcknowledgeType: -1, DeliveryState: -1}
}

// IsNone reports whether no transaction holds the record.
func (o StagedOwner) IsNone() bool { return o == NoStagedOwner() }
