package ctp_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kshare/kshare/ctp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// deleteRecords deletes what lies below an offset of a partition of "in".
func (e *env) deleteRecords(ctx context.Context, partition int32, below int64) error {
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis = 10_000
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = "in"
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Partition, rp.Offset = partition, below
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, e.cl.Requestor())
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

// Records are deleted while they are being processed. The broker takes their
// acknowledgements without a word; the run counts them as gone, and nowhere else.
func TestRunCountsWhatIsGone(t *testing.T) {
	for _, guarantee := range []ctp.Guarantee{ctp.ExactlyOnce, ctp.AtLeastOnce} {
		t.Run(string(guarantee), func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				bubble(t, dialect, func(e *env) {
					const n, deleted = 120, 5 // of these, one is rejected
					e.produce(n, plain)
					opts := e.options()
					opts.Guarantee, opts.OnError = guarantee, ctp.Reject
					told := 0
					opts.Warn = func(err error) {
						if errors.Is(err, ctp.ErrGone) {
							told++
						}
						e.t.Logf("warning: %v", err)
					}
					partition := int32(-1)
					opts.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
						switch {
						case partition < 0 && r.Offset == deleted-1:
							partition = r.Partition
							return []*kgo.Record{r}, e.deleteRecords(ctx, partition, deleted)
						case r.Offset == 1:
							return nil, fmt.Errorf("record %s is bad", r.Key)
						}
						return []*kgo.Record{r}, nil
					}
					res := e.run(opts)
					const partitions = 6 // each has a bad one
					want := ctp.Result{Consumed: n - deleted, Acknowledged: n - deleted - (partitions - 1), Rejected: partitions - 1, Gone: deleted, Produced: n - partitions}
					got := ctp.Result{Consumed: res.Consumed, Acknowledged: res.Acknowledged, Rejected: res.Rejected, Gone: res.Gone, Produced: res.Produced}
					if got != want || told != 1 {
						e.t.Errorf("Run = %+v, %d warnings; want %+v, and one", res, told, want)
					}
					e.wantQuiet()
				})
			})
		})
	}
}
