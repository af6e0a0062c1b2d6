package metrics

import (
	"fmt"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/prometheus/client_golang/prometheus"
)

// Client counts what share and txn tell it. It is safe for concurrent use, and
// may be shared by any number of consumers, sessions and acknowledgers.
type Client struct {
	send, groupMetadata prometheus.Counter
	sendError           *prometheus.CounterVec
}

var (
	_ share.Metrics = (*Client)(nil)
	_ txn.Metrics   = (*Client)(nil)
)

// The names are Kafka's, written as Prometheus writes names.
const (
	sendName          = "kafka_producer_share_ack_txn_send_total"
	sendErrorName     = "kafka_producer_share_ack_txn_send_error_total"
	groupMetadataName = "kafka_consumer_share_group_metadata_fetch_total"
	classLabel        = "class"
)

// New returns counters that are registered with reg. To tell several clients of
// one process apart, wrap reg for each with a label of its own
// ([prometheus.WrapRegistererWith]). It returns an error when reg has one of the
// names already.
//
//   - kafka_producer_share_ack_txn_send_total: attempts to stage acknowledgements
//     (share-ack-txn-send-rate)
//   - kafka_producer_share_ack_txn_send_error_total: those that failed, by what a
//     caller does about it, the label class, see [txn.Class]
//     (share-ack-txn-send-error-rate)
//   - kafka_consumer_share_group_metadata_fetch_total: calls of GroupMetadata
//     (share-group-metadata-fetch-rate)
func New(reg prometheus.Registerer) (*Client, error) {
	c := &Client{
		send: prometheus.NewCounter(prometheus.CounterOpts{
			Name: sendName, Help: "Attempts to stage acknowledgements of share-group records in a transaction (KIP-1289, share-ack-txn-send-rate).",
		}),
		sendError: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: sendErrorName, Help: "Attempts to stage acknowledgements that failed, by what has to be done (KIP-1289, share-ack-txn-send-error-rate).",
		}, []string{classLabel}),
		groupMetadata: prometheus.NewCounter(prometheus.CounterOpts{
			Name: groupMetadataName, Help: "Snapshots of a share consumer's group metadata (KIP-1289, share-group-metadata-fetch-rate).",
		}),
	}
	for _, collector := range []prometheus.Collector{c.send, c.sendError, c.groupMetadata} {
		if err := reg.Register(collector); err != nil {
			return nil, fmt.Errorf("register client metrics: %w", err)
		}
	}
	// What has not happened yet is 0 and not absent, so that a rate sees the first.
	for _, class := range []txn.Class{txn.ClassAbortable, txn.ClassRetriable, txn.ClassFatal} { // no stage has an unknown outcome
		c.sendError.WithLabelValues(class.String())
	}
	return c, nil
}

// ShareAcknowledgementsSent counts an attempt to stage.
func (c *Client) ShareAcknowledgementsSent(err error) {
	c.send.Inc()
	if err != nil {
		c.sendError.WithLabelValues(txn.Classify(err).String()).Inc()
	}
}

// GroupMetadataFetched counts a snapshot.
func (c *Client) GroupMetadataFetched() { c.groupMetadata.Inc() }
