package txn

// Metrics is told what the client metrics of KIP-1289 count of a producer. Its
// methods must not block, and are called from several goroutines at once.
type Metrics interface {
	// ShareAcknowledgementsSent is called with each attempt to stage
	// acknowledgements in a transaction (share-ack-txn-send-rate), and with why
	// it failed, nil when all were staged (share-ack-txn-send-error-rate).
	ShareAcknowledgementsSent(err error)
}
