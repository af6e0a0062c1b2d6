package sandbox

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// kfake tells the open producers of a partition from what their coordinator
// knows, and a marker that is written by hand goes past that: the transaction
// would stay listed. A leader goes by its log, where the marker ends it.

// handMarkers are the end markers that were written by hand.
type handMarkers struct {
	mu     sync.Mutex
	epochs map[producerPartition]int16 // of the marker
}

type producerPartition struct {
	topic      string
	partition  int32
	producerID int64
}

// wrote takes in which of the markers of a request were written.
func (h *handMarkers) wrote(req *kmsg.WriteTxnMarkersRequest, resp *kmsg.WriteTxnMarkersResponse) {
	epochs := make(map[int64]int16, len(req.Markers))
	for _, m := range req.Markers {
		epochs[m.ProducerID] = m.ProducerEpoch
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epochs == nil {
		h.epochs = make(map[producerPartition]int16)
	}
	for _, m := range resp.Markers {
		for _, t := range m.Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode == 0 {
					h.epochs[producerPartition{t.Topic, p.Partition, m.ProducerID}] = epochs[m.ProducerID]
				}
			}
		}
	}
}

// added forgets the marker of a partition that a producer adds to a transaction
// again.
func (h *handMarkers) added(producerID int64, topics []kmsg.AddPartitionsToTxnRequestTopic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range topics {
		for _, p := range t.Partitions {
			delete(h.epochs, producerPartition{t.Topic, p, producerID})
		}
	}
}

// apply takes the transactions that were ended by hand out of a response: their
// producers have none there.
func (h *handMarkers) apply(resp *kmsg.DescribeProducersResponse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			for i := range p.ActiveProducers {
				a := &p.ActiveProducers[i]
				if e, ok := h.epochs[producerPartition{t.Topic, p.Partition, a.ProducerID}]; ok && a.ProducerEpoch <= int32(e) {
					a.CurrentTxnStartOffset = -1
				}
			}
		}
	}
}

func (c *gatewayConn) handleDescribeProducers(r *request, req *kmsg.DescribeProducersRequest) error {
	return c.exchange(r, req, r.frame, func(resp kmsg.Response) error {
		c.g.byHand.apply(resp.(*kmsg.DescribeProducersResponse))
		return c.respond(r, resp)
	})
}
