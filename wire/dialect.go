package wire

import "slices"

// AcknowledgeForm says how a batch of a TxnShareAcknowledge request carries its
// acknowledge types.
type AcknowledgeForm int8

const (
	// AcknowledgeTypesArray is an array: one entry for the whole range, or one
	// for each offset of it.
	AcknowledgeTypesArray AcknowledgeForm = iota
	// AcknowledgeTypeSingle is one int8 for the whole range.
	AcknowledgeTypeSingle
)

// ResponseLayout says which fields a TxnShareAcknowledge response has.
type ResponseLayout int8

const (
	// ResponseWithLeader has an error message for each partition, and the
	// tagged fields CurrentLeader and NodeEndpoints.
	ResponseWithLeader ResponseLayout = iota
	// ResponseWithMessage has an error message for each partition and no
	// tagged fields.
	ResponseWithMessage
	// ResponseCodesOnly has neither.
	ResponseCodesOnly
)

// Dialect is one published form of KIP-1289: the numbers that a cluster which
// implements it uses. The numbers clash with released Kafka, so nothing here
// may be concluded from a number alone; package cluster decides which dialect a
// cluster speaks.
type Dialect struct {
	Name            string            // "kip", "draft"
	Key             int16             // api key of TxnShareAcknowledge
	MaxVersion      int16             // newest version of that request; 0 in all drafts
	Form            AcknowledgeForm   // how a batch carries acknowledge types
	Layout          ResponseLayout    // fields of the response
	Allowed         []AcknowledgeType // acknowledge types that may be staged, ascending
	ShareVersion    int16             // share.version level that enables the request
	AfterAbort      RecordState       // state of a staged record after ABORT
	InvalidTypeCode int16             // partition error for a type that is not allowed
	// AlwaysAdvertised: brokers advertise Key whatever level is finalized, and
	// refuse the request below ShareVersion. Others advertise it from there on.
	AlwaysAdvertised bool
}

// TransactionVersion is the transaction.version level that every dialect needs
// (KIP-890 part 2).
const TransactionVersion int16 = 2

// FeatureShareVersion and FeatureTransactionVersion name the two features that
// KIP-1289 depends on.
const (
	FeatureShareVersion       = "share.version"
	FeatureTransactionVersion = "transaction.version"
)

// Allows reports whether t may be staged in a transaction.
func (d Dialect) Allows(t AcknowledgeType) bool { return slices.Contains(d.Allowed, t) }

// Dialects returns the known dialects: "kip", the text put to the vote, and
// "draft", the newest implementation seen. The slice is the caller's.
func Dialects() []Dialect {
	return []Dialect{
		{
			Name: "kip", Key: 93, Form: AcknowledgeTypesArray, Layout: ResponseWithLeader,
			Allowed: []AcknowledgeType{Accept, Reject}, ShareVersion: 2,
			AfterAbort: Acquired, InvalidTypeCode: 121,
		},
		{
			Name: "draft", Key: 95, Form: AcknowledgeTypesArray, Layout: ResponseWithMessage,
			Allowed: []AcknowledgeType{Gap, Accept, Reject}, ShareVersion: 3,
			AfterAbort: Available, InvalidTypeCode: 42, AlwaysAdvertised: true,
		},
	}
}

// DialectByName returns the dialect with that name; false if there is none.
func DialectByName(name string) (Dialect, bool) {
	for _, d := range Dialects() {
		if d.Name == name {
			return d, true
		}
	}
	return Dialect{}, false
}
