package ctp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// deleteTopic deletes a topic.
func (e *env) deleteTopic(ctx context.Context, topic string) error {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = 10_000
	req.TopicNames = []string{topic}
	rt := kmsg.NewDeleteTopicsRequestTopic()
	rt.Topic = &topic
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, e.cl.Requestor())
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
}

// A topic that is deleted while a run works ends the run, and soon;
// nothing takes effect that was not committed before, and nothing is left open.
func TestRunWhoseTopicIsDeleted(t *testing.T) {
	for _, topic := range []string{"in", "out"} {
		t.Run(topic, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				bubble(t, dialect, func(e *env) {
					const n = 60
					e.produce(n, plain)
					var since time.Time
					opts := e.options()
					opts.UntilEmpty, opts.BatchRecords = false, 20
					opts.Transform = func(ctx context.Context, r *kgo.Record) ([]*kgo.Record, error) {
						if string(r.Key) == "30" && since.IsZero() {
							since = time.Now()
							if err := e.deleteTopic(ctx, topic); err != nil {
								e.t.Errorf("delete topic %s: %v", topic, err)
							}
						}
						return []*kgo.Record{r}, nil
					}
					ctx, cancel := context.WithTimeout(e.t.Context(), e.limit)
					defer cancel()
					res, err := ctp.Run(ctx, e.cl, opts)
					if took := time.Since(since); !errors.Is(err, kerr.UnknownTopicOrPartition) || took > 2*time.Minute {
						e.t.Errorf("Run = %+v, %v after %s; want it to end soon because of the topic", res, err, took)
					}
					if topic == "in" {
						if got := e.committed(); int64(len(got)) != res.Produced {
							e.t.Errorf("%d records are at the destination, the run counts %d", len(got), res.Produced)
						}
					}
					e.wantQuiet()
				})
			})
		})
	}
}
