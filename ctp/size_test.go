package ctp_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/kshare/kshare/ctp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// setMaxMessageBytes sets the largest batch that a topic takes.
func (e *env) setMaxMessageBytes(topic string, n int) {
	e.t.Helper()
	e.setTopicConfig(topic, "max.message.bytes", strconv.Itoa(n))
}

func (e *env) setTopicConfig(topic, name, value string) {
	e.t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	c := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.Name, c.Value = name, kmsg.StringPtr(value)
	r.Configs = append(r.Configs, c)
	req.Resources = append(req.Resources, r)
	resp, err := req.RequestWith(e.t.Context(), e.client())
	if err == nil {
		err = kerr.ErrorForCode(resp.Resources[0].ErrorCode)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// A record that the destination does not take is told by name, is subject to
// OnError, and is copied when the destination takes it.
func TestRunTooLargeRecord(t *testing.T) {
	const (
		n     = 20
		large = 3 << 20
	)
	for _, transform := range []string{"", "."} {
		t.Run(transform, func(t *testing.T) {
			e := newEnv(t, "kip")
			e.setMaxMessageBytes("in", 2*large)
			cl := e.client(kgo.DefaultProduceTopic("in"), kgo.ProducerBatchMaxBytes(2*large))
			for i := range n {
				r := &kgo.Record{Key: []byte(strconv.Itoa(i)), Value: []byte("1")}
				if i == 7 {
					r.Value = []byte(`"` + strings.Repeat("x", large) + `"`)
				}
				if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			opts := e.options()
			if transform != "" {
				opts.Transform = mustJQ(t, transform)
			}
			res, err := ctp.Run(t.Context(), e.cl, opts)
			if _, ok := errors.AsType[*ctp.RecordError](err); !ok || !errors.Is(err, ctp.ErrTooLarge) || !strings.Contains(err.Error(), `topic "out" takes 1048588`) {
				t.Fatalf("Run = %+v, %v; want the record refused", res, err)
			}
			opts.OnError = ctp.Reject
			if rest := e.run(opts); res.Consumed+rest.Consumed != n || rest.Rejected != 1 {
				t.Errorf("runs consumed %d and %+v, want %d in all and one rejected", res.Consumed, rest, n)
			}
			wantEachOnce(t, e.committed(), n, func(i int) bool { return i == 7 })

			e.setMaxMessageBytes("out", 2*large)
			opts.GroupID, opts.OnError = "other", ctp.Fail
			if res := e.run(opts); res.Consumed != n || res.Aborted != 0 {
				t.Errorf("Run = %+v, want all %d copied", res, n)
			}
		})
	}
}

// A record without a key is told by name where the destination is compacted, and is
// subject to OnError: the broker would refuse its batch for ever.
func TestRunRecordWithoutKey(t *testing.T) {
	const n = 20
	for _, transform := range []string{"", "."} {
		t.Run(transform, func(t *testing.T) {
			e := newEnv(t, "kip")
			e.setTopicConfig("out", "cleanup.policy", "delete,compact")
			cl := e.client(kgo.DefaultProduceTopic("in"))
			for i := range n {
				r := &kgo.Record{Key: []byte(strconv.Itoa(i)), Value: []byte("1")}
				switch i {
				case 3:
					r.Key, r.Value = []byte{}, nil // an empty key is one, and a tombstone has none the less
				case 7:
					r.Key = nil
				}
				if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			opts := e.options()
			if transform != "" {
				opts.Transform = mustJQ(t, transform)
			}
			res, err := ctp.Run(t.Context(), e.cl, opts)
			if _, ok := errors.AsType[*ctp.RecordError](err); !ok || !errors.Is(err, ctp.ErrNoKey) || !strings.Contains(err.Error(), `topic "out" is compacted`) {
				t.Fatalf("Run = %+v, %v; want the record refused", res, err)
			}
			opts.OnError = ctp.Reject
			if rest := e.run(opts); res.Consumed+rest.Consumed != n || rest.Rejected != 1 || res.Produced+rest.Produced != n-1 {
				t.Errorf("runs consumed %d and %+v, want %d in all and one rejected", res.Consumed, rest, n)
			}
		})
	}
}

// What a broker will never take ends the run at once: to try again would only
// bring the records nearer to their delivery count limit.
// A broker's refusal is no matter of the record, whatever is done about those.
func TestRunRefusedByTheBroker(t *testing.T) {
	for _, onError := range []ctp.OnError{ctp.Fail, ctp.Release, ctp.Reject} {
		t.Run(string(onError), func(t *testing.T) { testRefusedByTheBroker(t, onError) })
	}
}

func testRefusedByTheBroker(t *testing.T, onError ctp.OnError) {
	t.Helper()
	e := newEnv(t, "draft")
	e.produce(10, func(i int) []byte { // that does not compress
		b := make([]byte, 5000)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(b) // never fails
		return b
	})
	opts := e.options()
	opts.OnError = onError
	lowered := false
	opts.Transform = func(_ context.Context, r *kgo.Record) ([]*kgo.Record, error) {
		if !lowered {
			lowered = true
			e.setMaxMessageBytes("out", 2000)
		}
		return []*kgo.Record{r}, nil
	}
	res, err := ctp.Run(t.Context(), e.cl, opts)
	if !errors.Is(err, kerr.MessageTooLarge) || res.Aborted != 1 || res.Consumed != 0 || res.Rejected != 0 {
		t.Errorf("Run = %+v, %v; want it to end with the first MESSAGE_TOO_LARGE", res, err)
	}
}
