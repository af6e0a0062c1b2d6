package metrics_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kshare/kshare/metrics"
	"github.com/kshare/kshare/txn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
)

func TestClient(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m, err := metrics.New(reg)
	if err != nil {
		t.Fatal(err)
	}
	m.GroupMetadataFetched()
	m.GroupMetadataFetched()
	m.ShareAcknowledgementsSent(nil)
	m.ShareAcknowledgementsSent(errors.New("a connection broke"))
	m.ShareAcknowledgementsSent(&txn.FencedError{Err: kerr.ProducerFenced})
	want := `
# HELP kafka_consumer_share_group_metadata_fetch_total Snapshots of a share consumer's group metadata (KIP-1289, share-group-metadata-fetch-rate).
# TYPE kafka_consumer_share_group_metadata_fetch_total counter
kafka_consumer_share_group_metadata_fetch_total 2
# HELP kafka_producer_share_ack_txn_send_error_total Attempts to stage acknowledgements that failed, by what has to be done (KIP-1289, share-ack-txn-send-error-rate).
# TYPE kafka_producer_share_ack_txn_send_error_total counter
kafka_producer_share_ack_txn_send_error_total{class="abortable"} 1
kafka_producer_share_ack_txn_send_error_total{class="fatal"} 1
kafka_producer_share_ack_txn_send_error_total{class="retriable"} 0
# HELP kafka_producer_share_ack_txn_send_total Attempts to stage acknowledgements of share-group records in a transaction (KIP-1289, share-ack-txn-send-rate).
# TYPE kafka_producer_share_ack_txn_send_total counter
kafka_producer_share_ack_txn_send_total 3
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("Prometheus' own linter: %v, %v", problems, err)
	}
	if _, err := metrics.New(reg); err == nil {
		t.Error("the same names were registered twice")
	}
	shared := prometheus.NewPedanticRegistry()
	for _, id := range []string{"one", "two"} {
		if _, err := metrics.New(prometheus.WrapRegistererWith(prometheus.Labels{"client_id": id}, shared)); err != nil {
			t.Errorf("counters of client %s: %v", id, err)
		}
	}
	if _, err := shared.Gather(); err != nil {
		t.Error(err)
	}
}
