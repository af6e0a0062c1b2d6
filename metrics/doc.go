// Package metrics counts, for Prometheus, what KIP-1289 has Kafka's own clients
// count: how often acknowledgements were staged in a transaction, how often that
// failed, and how often a member's identity was asked for. It is a package of its
// own so that share and txn, and programs that do without it, need no Prometheus.
//
//	m, err := metrics.New(prometheus.DefaultRegisterer)
//	...
//	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "g", Topics: topics, Metrics: m})
//	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "orders-1", Metrics: m})
//
// Java's metrics are rates over a window. Prometheus makes a rate of a counter by
// itself, over any window: rate(kafka_producer_share_ack_txn_send_total[5m]) is
// share-ack-txn-send-rate.
package metrics
