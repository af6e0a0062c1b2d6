package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// readRig is a cluster with a topic "in" of one partition, and a connection.
type readRig struct {
	t     *testing.T
	kafka *fakekafka.Cluster
	cl    *cluster.Client
}

func newReadRig(t *testing.T) *readRig {
	t.Helper()
	r := &readRig{t: t, kafka: fakekafka.Start(t, fakekafka.Config{Brokers: 2, Topics: []string{"in"}})}
	var err error
	if r.cl, err = cluster.Connect(r.ctx(), cluster.Config{BootstrapServers: []string{r.kafka.Addr(0), r.kafka.Addr(1)}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cl.Close)
	return r
}

func (r *readRig) ctx() context.Context {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Minute)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *readRig) produce(n, size int, opts ...kgo.Opt) {
	r.t.Helper()
	cl, err := r.cl.NewKgo(append(opts, kgo.DefaultProduceTopic("in"))...)
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	for range n {
		if err := cl.ProduceSync(r.ctx(), &kgo.Record{Value: bytes.Repeat([]byte("v"), size)}).FirstErr(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *readRig) topic() cluster.Topic {
	r.t.Helper()
	topics, err := r.cl.Topics(r.ctx(), "in")
	if err != nil {
		r.t.Fatal(err)
	}
	return topics["in"]
}

func (r *readRig) read(topic cluster.Topic) (offsets []int64, err error) {
	r.t.Helper()
	err = r.cl.ReadPartition(r.ctx(), topic, 0, func(rec *kgo.Record) { offsets = append(offsets, rec.Offset) })
	return offsets, err
}

func upTo(from, n int64) []int64 {
	var out []int64
	for o := from; o < n; o++ {
		out = append(out, o)
	}
	return out
}

func TestReadPartition(t *testing.T) {
	r := newReadRig(t)
	if got, err := r.read(r.topic()); err != nil || len(got) > 0 {
		t.Errorf("empty: %v, %v", got, err)
	}
	const n = 12
	r.produce(n, 100<<10, kgo.ProducerBatchCompression(kgo.NoCompression()))
	got, err := r.read(r.topic())
	if err != nil || !slices.Equal(got, upTo(0, n)) {
		t.Errorf("got %v, %v, want all %d", got, err, n)
	}
	if fetches := len(r.kafka.Requests(int16(kmsg.Fetch))); fetches < 5 {
		t.Errorf("%d fetches for 1.2 MB: is what is held at a time bounded?", fetches)
	}
}

// Records that come while it is read are left for the next time, or reading a
// busy partition would have no end.
func TestReadPartitionEndsAtTheHighWatermark(t *testing.T) {
	r := newReadRig(t)
	r.produce(6, 100<<10, kgo.ProducerBatchCompression(kgo.NoCompression()))
	var got []int64
	err := r.cl.ReadPartition(r.ctx(), r.topic(), 0, func(rec *kgo.Record) {
		if got = append(got, rec.Offset); len(got) <= 20 {
			r.produce(1, 1)
		}
	})
	if err != nil || !slices.Equal(got, upTo(0, 6)) {
		t.Errorf("got %v, %v, want 6", got, err)
	}
}

func TestReadPartitionOfTransactions(t *testing.T) {
	r := newReadRig(t)
	cl, err := r.cl.NewKgo(kgo.TransactionalID("id"), kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(r.ctx(), &kgo.Record{}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(r.ctx(), end); err != nil {
			t.Fatal(err)
		}
	}
	// Records at 0 and 2, markers at 1 and 3: the last of all is no record.
	if got, err := r.read(r.topic()); err != nil || !slices.Equal(got, []int64{0, 2}) {
		t.Errorf("got %v, %v, want the records alone, aborted ones too", got, err)
	}
}

func (r *readRig) deleteRecords(to int64) {
	r.t.Helper()
	req := kmsg.NewPtrDeleteRecordsRequest()
	rt := kmsg.NewDeleteRecordsRequestTopic()
	rt.Topic = "in"
	rp := kmsg.NewDeleteRecordsRequestTopicPartition()
	rp.Offset = to
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	if _, err := r.cl.Request(r.ctx(), req); err != nil {
		r.t.Fatal(err)
	}
}

func TestReadPartitionThatIsPruned(t *testing.T) {
	r := newReadRig(t)
	const n = 12
	r.produce(n, 100<<10, kgo.ProducerBatchCompression(kgo.NoCompression()))
	r.deleteRecords(2)
	if got, err := r.read(r.topic()); err != nil || !slices.Equal(got, upTo(2, n)) {
		t.Errorf("got %v, %v, want those from 2 on", got, err)
	}
	var got []int64
	err := r.cl.ReadPartition(r.ctx(), r.topic(), 0, func(rec *kgo.Record) {
		if got = append(got, rec.Offset); len(got) == 1 {
			r.deleteRecords(9)
		}
	})
	if err != nil || len(got) == 0 || got[0] != 2 || !slices.Equal(got[len(got)-3:], upTo(9, n)) {
		t.Errorf("got %v, %v, want to go on at 9", got, err)
	}
}

func TestReadPartitionThatMoves(t *testing.T) {
	r := newReadRig(t)
	r.produce(3, 1)
	before := r.topic()
	if err := r.kafka.Fake().MoveTopicPartition("in", 0, 1-before.Leader(0)); err != nil {
		t.Fatal(err)
	}
	if got, err := r.read(before); err != nil || !slices.Equal(got, upTo(0, 3)) {
		t.Errorf("got %v, %v, want all", got, err)
	}
}

func TestReadPartitionFails(t *testing.T) {
	fails := func(code *kerr.Error) func(int32, kmsg.Request) (kmsg.Response, bool) {
		return func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
			f := req.(*kmsg.FetchRequest)
			resp := f.ResponseKind().(*kmsg.FetchResponse)
			for _, t := range f.Topics {
				rt := kmsg.NewFetchResponseTopic()
				rt.Topic, rt.TopicID = t.Topic, t.TopicID
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.ErrorCode = code.Code
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
			}
			return resp, true
		}
	}
	for _, c := range []struct {
		code    *kerr.Error
		fetches int
	}{
		{kerr.TopicAuthorizationFailed, 1},
		{kerr.UnknownServerError, 1},
		{kerr.NotLeaderForPartition, 3},
	} {
		t.Run(c.code.Message, func(t *testing.T) {
			r := newReadRig(t)
			r.kafka.Answer(int16(kmsg.Fetch), fails(c.code))
			topic := r.topic()
			_, err := r.read(topic)
			e, ok := errors.AsType[*cluster.Error](err)
			if !errors.Is(err, c.code) || !ok || e.Broker != topic.Leader(0) || e.Topic != "in" {
				t.Errorf("error %v, want %v of broker %d", err, c.code, topic.Leader(0))
			}
			if _, auth := errors.AsType[*cluster.AuthError](err); auth != (c.code == kerr.TopicAuthorizationFailed) {
				t.Errorf("error %T", err)
			}
			if n := len(r.kafka.Requests(int16(kmsg.Fetch))); n != c.fetches {
				t.Errorf("%d fetches, want %d", n, c.fetches)
			}
		})
	}
	t.Run("another topic of that name", func(t *testing.T) {
		r := newReadRig(t)
		topic := r.topic()
		topic.ID[0]++
		if _, err := r.read(topic); !errors.Is(err, kerr.UnknownTopicID) {
			t.Errorf("error %v, want UNKNOWN_TOPIC_ID", err)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		r := newReadRig(t)
		r.kafka.Answer(int16(kmsg.Fetch), fails(kerr.NotLeaderForPartition))
		topic := r.topic()
		ctx, cancel := context.WithCancelCause(r.ctx())
		stopped := errors.New("stopped")
		r.kafka.After(int16(kmsg.Fetch), func(int32) { cancel(stopped) })
		if err := r.cl.ReadPartition(ctx, topic, 0, func(*kgo.Record) {}); !errors.Is(err, stopped) {
			t.Errorf("error %v, want the cause of ctx", err)
		}
	})
}

func TestAllTopics(t *testing.T) {
	r := newReadRig(t)
	topics, err := r.cl.AllTopics(r.ctx())
	if err != nil || len(topics) != 1 || topics[0].Name != "in" || topics[0].ID == [16]byte{} || len(topics[0].Partitions) == 0 {
		t.Errorf("AllTopics = %+v, %v", topics, err)
	}
}
