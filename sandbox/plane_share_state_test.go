package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// stateRequests are the five requests for partition p of coordKey, valid for
// what initialized has set up.
func stateRequests(group string, topicID [16]byte, partition int32) map[string]kmsg.Request {
	init := kmsg.NewPtrInitializeShareGroupStateRequest()
	init.GroupID = group
	init.Topics = []kmsg.InitializeShareGroupStateRequestTopic{{TopicID: topicID, Partitions: []kmsg.InitializeShareGroupStateRequestTopicPartition{{
		Partition: partition, StateEpoch: 2, StartOffset: 100,
	}}}}
	read := kmsg.NewPtrReadShareGroupStateRequest()
	read.GroupID = group
	read.Topics = []kmsg.ReadShareGroupStateRequestTopic{{TopicID: topicID, Partitions: []kmsg.ReadShareGroupStateRequestTopicPartition{{
		Partition: partition, LeaderEpoch: 5,
	}}}}
	write := kmsg.NewPtrWriteShareGroupStateRequest()
	write.GroupID = group
	write.Topics = []kmsg.WriteShareGroupStateRequestTopic{{TopicID: topicID, Partitions: []kmsg.WriteShareGroupStateRequestTopicPartition{{
		Partition: partition, StateEpoch: 2, LeaderEpoch: 5, StartOffset: -1, DeliveryCompleteCount: -1,
	}}}}
	remove := kmsg.NewPtrDeleteShareGroupStateRequest()
	remove.GroupID = group
	remove.Topics = []kmsg.DeleteShareGroupStateRequestTopic{{TopicID: topicID, Partitions: []kmsg.DeleteShareGroupStateRequestTopicPartition{{Partition: partition}}}}
	summary := kmsg.NewPtrReadShareGroupStateSummaryRequest()
	summary.GroupID = group
	summary.Topics = []kmsg.ReadShareGroupStateSummaryRequestTopic{{TopicID: topicID, Partitions: []kmsg.ReadShareGroupStateSummaryRequestTopicPartition{{
		Partition: partition, LeaderEpoch: 5,
	}}}}
	return map[string]kmsg.Request{"initialize": init, "read": read, "write": write, "delete": remove, "summary": summary}
}

// stateAnswers returns "partition:code" of each partition in a response, with a
// "!" where the message does not go with the code.
func stateAnswers(t *testing.T, resp kmsg.Response) []string {
	t.Helper()
	out := []string{}
	add := func(partition int32, code int16, message *string) {
		s := fmt.Sprintf("%d:%d", partition, code)
		if (message == nil) != (code == 0) {
			s += "!"
		}
		out = append(out, s)
	}
	switch resp := resp.(type) {
	case *kmsg.InitializeShareGroupStateResponse:
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				add(p.Partition, p.ErrorCode, p.ErrorMessage)
			}
		}
	case *kmsg.ReadShareGroupStateResponse:
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				add(p.Partition, p.ErrorCode, p.ErrorMessage)
			}
		}
	case *kmsg.WriteShareGroupStateResponse:
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				add(p.Partition, p.ErrorCode, p.ErrorMessage)
			}
		}
	case *kmsg.DeleteShareGroupStateResponse:
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				add(p.Partition, p.ErrorCode, p.ErrorMessage)
			}
		}
	case *kmsg.ReadShareGroupStateSummaryResponse:
		for _, topic := range resp.Topics {
			for _, p := range topic.Partitions {
				add(p.Partition, p.ErrorCode, p.ErrorMessage)
			}
		}
	default:
		t.Fatalf("response %T", resp)
	}
	return out
}

// stateHandle sends a request to broker 1 and returns its response as a client
// decodes it.
func stateHandle[R kmsg.Response](t *testing.T, k *coordinatorKafka, s *shareCoordinator, req kmsg.Request) R {
	t.Helper()
	resp, err := shareStateAPI{kafka: k, coordinator: s}.handle(t.Context(), caller{broker: 1}, req)
	if err != nil {
		t.Fatal(err)
	}
	back := req.ResponseKind()
	if err := back.ReadFrom(resp.AppendTo(nil)); err != nil {
		t.Fatalf("decode %T: %v", resp, err)
	}
	if resp.GetVersion() != req.GetVersion() || resp.Key() != req.Key() {
		t.Errorf("answered key %d version %d with key %d version %d", req.Key(), req.GetVersion(), resp.Key(), resp.GetVersion())
	}
	return back.(R)
}

func TestShareStateCodes(t *testing.T) {
	other := [16]byte{9}
	type codes = map[string]int16 // by request; those left out answer 0
	for _, tt := range []struct {
		name      string
		setUp     func(*coordinatorKafka)
		group     string
		topicID   [16]byte
		partition int32
		want      codes
	}{
		{"as it should be", nil, "g", coordTopic, 0, codes{}},
		{
			"not allowed", func(k *coordinatorKafka) { k.denied = true }, "g", coordTopic, 0,
			codes{"initialize": 31, "read": 31, "write": 31, "delete": 31, "summary": 31},
		},
		{
			"another broker leads the state", func(k *coordinatorKafka) { k.leaders[0] = 2 }, "g", coordTopic, 0,
			codes{"initialize": 16, "read": 16, "write": 16, "delete": 16, "summary": 16},
		},
		{
			"no partition of the topic", func(k *coordinatorKafka) { k.leaders = nil }, "g", coordTopic, 0,
			codes{"initialize": 15, "read": 15, "write": 15, "delete": 15, "summary": 15},
		},
		{"partition below 0", nil, "g", coordTopic, -1, codes{"initialize": 42, "read": 42, "write": 42, "delete": 42, "summary": 42}},
		{"no state", nil, "h", coordTopic, 0, codes{"read": 42, "write": 42}},
		{"no such topic", nil, "g", other, 0, codes{"initialize": 3, "read": 42, "write": 42, "delete": 3, "summary": 3}},
		{
			"topic gone", func(k *coordinatorKafka) { delete(k.topics, coordTopic) }, "g", coordTopic, 0,
			codes{"initialize": 3, "read": 3, "write": 3, "delete": 3, "summary": 3},
		},
		{"disk full", func(k *coordinatorKafka) { k.appendErr = errors.New("disk full") }, "g", coordTopic, 0, codes{"write": 15, "delete": 15}},
	} {
		for name, req := range stateRequests(tt.group, tt.topicID, tt.partition) {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				k, s := initialized(t)
				if tt.setUp != nil {
					tt.setUp(k)
				}
				resp := stateHandle[kmsg.Response](t, k, s, req)
				want := []string{fmt.Sprintf("%d:%d", tt.partition, tt.want[name])}
				if got := stateAnswers(t, resp); !slices.Equal(got, want) {
					t.Errorf("partitions = %v, want %v", got, want)
				}
			})
		}
	}

	t.Run("no group", func(t *testing.T) {
		k, s := initialized(t)
		for name, req := range stateRequests("", coordTopic, 0) {
			if got := stateAnswers(t, stateHandle[kmsg.Response](t, k, s, req)); len(got) != 0 {
				t.Errorf("%s: %v, want no results", name, got)
			}
		}
	})
	t.Run("another request", func(t *testing.T) {
		k, s := initialized(t)
		if resp, err := (shareStateAPI{kafka: k, coordinator: s}).handle(t.Context(), caller{broker: 1}, kmsg.NewPtrMetadataRequest()); err == nil {
			t.Errorf("Metadata: %+v, want an error", resp)
		}
	})
}

// What a leader does, through the requests alone.
func TestShareStateRequests(t *testing.T) {
	k := newCoordinatorKafka(1)
	s := loadCoordinator(t, k)
	reqs := stateRequests("g", coordTopic, 0)

	summary := reqs["summary"].(*kmsg.ReadShareGroupStateSummaryRequest)
	summary.Version = 1
	p := stateHandle[*kmsg.ReadShareGroupStateSummaryResponse](t, k, s, summary).Topics[0].Partitions[0]
	if p.ErrorCode != 0 || p.StartOffset != -1 || p.StateEpoch != 0 || p.LeaderEpoch != 0 || p.DeliveryCompleteCount != -1 {
		t.Errorf("summary without state = %+v", p)
	}

	stateHandle[kmsg.Response](t, k, s, reqs["initialize"])
	stateHandle[kmsg.Response](t, k, s, reqs["read"])
	write := reqs["write"].(*kmsg.WriteShareGroupStateRequest)
	write.Version = 1
	wp := &write.Topics[0].Partitions[0]
	wp.StartOffset, wp.DeliveryCompleteCount = 101, 4
	wp.StateBatches = []kmsg.WriteShareGroupStateRequestTopicPartitionStateBatch{
		{FirstOffset: 101, LastOffset: 104, DeliveryState: 2, DeliveryCount: 1},
		{FirstOffset: 105, LastOffset: 109, DeliveryState: 5, DeliveryCount: 3, UnknownTags: wire.StagedOwnerTags(wire.StagedOwner{ProducerID: 7, ProducerEpoch: 1, AcknowledgeType: 3, DeliveryState: 4})},
	}
	if got := stateAnswers(t, stateHandle[kmsg.Response](t, k, s, write)); !slices.Equal(got, []string{"0:0"}) {
		t.Errorf("write: %v", got)
	}
	wantState(t, s, coordKey, "state=2 leader=5 start=101 complete=4 [101-104:2*1 105-109:5*3(7,1,3,4)]")

	rp := stateHandle[*kmsg.ReadShareGroupStateResponse](t, k, s, reqs["read"]).Topics[0].Partitions[0]
	if rp.StateEpoch != 2 || rp.StartOffset != 101 || len(rp.StateBatches) != 2 {
		t.Fatalf("read = %+v", rp)
	}
	var got []wire.StateBatch
	for _, b := range rp.StateBatches {
		got = append(got, wire.StateBatch{
			FirstOffset: b.FirstOffset, LastOffset: b.LastOffset, DeliveryState: wire.RecordState(b.DeliveryState), DeliveryCount: b.DeliveryCount,
			Staged: wire.StagedOwnerFromTags(b.UnknownTags),
		})
	}
	if text := coordBatchText(got); text != "[101-104:2*1 105-109:5*3(7,1,3,4)]" {
		t.Errorf("batches = %s", text)
	}
	if n := rp.StateBatches[0].UnknownTags.Len(); n != 0 {
		t.Errorf("%d tags on a batch that nobody staged", n)
	}

	p = stateHandle[*kmsg.ReadShareGroupStateSummaryResponse](t, k, s, summary).Topics[0].Partitions[0]
	if p.ErrorCode != 0 || p.StartOffset != 101 || p.StateEpoch != 2 || p.LeaderEpoch != 5 || p.DeliveryCompleteCount != 4 {
		t.Errorf("summary = %+v", p)
	}

	// Version 0 has no count: the state keeps its own.
	write.Version = 0
	wp.DeliveryCompleteCount, wp.StateBatches = -1, nil
	decoded := kmsg.NewPtrWriteShareGroupStateRequest()
	if err := decoded.ReadFrom(write.AppendTo(nil)); err != nil {
		t.Fatal(err)
	}
	stateHandle[kmsg.Response](t, k, s, decoded)
	wantState(t, s, coordKey, "state=2 leader=5 start=101 complete=4 [101-104:2*1 105-109:5*3(7,1,3,4)]")

	// A read with the epoch that the summary says changes nothing.
	again := reqs["read"].(*kmsg.ReadShareGroupStateRequest)
	again.Topics[0].Partitions[0].LeaderEpoch = p.LeaderEpoch
	appends := k.appends
	if got := stateAnswers(t, stateHandle[kmsg.Response](t, k, s, again)); !slices.Equal(got, []string{"0:0"}) || k.appends != appends {
		t.Errorf("read with the epoch of the summary: %v, %d appends", got, k.appends-appends)
	}

	// A read with a newer epoch fences the leader in office, -1 does not.
	read := reqs["read"].(*kmsg.ReadShareGroupStateRequest)
	for _, epoch := range []int32{-1, 6} {
		read.Topics[0].Partitions[0].LeaderEpoch = epoch
		stateHandle[kmsg.Response](t, k, s, read)
		want := "0:0"
		if epoch == 6 {
			want = "0:74"
		}
		if got := stateAnswers(t, stateHandle[kmsg.Response](t, k, s, write)); !slices.Equal(got, []string{want}) {
			t.Errorf("write after a read with epoch %d: %v, want %s", epoch, got, want)
		}
	}

	stateHandle[kmsg.Response](t, k, s, reqs["delete"])
	if keys := s.keys(); len(keys) != 0 {
		t.Errorf("keys after delete: %v", keys)
	}
}

// One write request is one append, and every partition gets its own answer, in
// the order of the request.
func TestShareStateWriteAnswersEachPartition(t *testing.T) {
	k := newCoordinatorKafka(50)
	s := loadCoordinator(t, k)
	for p := range int32(4) {
		if code := s.initialize(t.Context(), shareStateKey{"g", coordTopic, p}, p, 0); code != 0 {
			t.Fatal(code)
		}
	}
	foreign := s.partitionFor(shareStateKey{"g", coordTopic, 1})
	k.leaders[foreign] = 2

	req := kmsg.NewPtrWriteShareGroupStateRequest()
	req.Version, req.GroupID = 1, "g"
	for _, ps := range [][]int32{{3, 1, 7}, {2, -1, 0}} {
		topic := kmsg.WriteShareGroupStateRequestTopic{TopicID: coordTopic}
		for _, p := range ps {
			rp := kmsg.NewWriteShareGroupStateRequestTopicPartition()
			rp.Partition, rp.StateEpoch, rp.StartOffset = p, 2, -1
			rp.StateBatches = []kmsg.WriteShareGroupStateRequestTopicPartitionStateBatch{{FirstOffset: 1, LastOffset: 1, DeliveryState: 2, DeliveryCount: 1}}
			topic.Partitions = append(topic.Partitions, rp)
		}
		req.Topics = append(req.Topics, topic)
	}
	before := k.appends
	got := stateAnswers(t, stateHandle[kmsg.Response](t, k, s, req))
	if want := []string{"3:124", "1:16", "7:42", "2:0", "-1:42", "0:0"}; !slices.Equal(got, want) {
		t.Errorf("partitions = %v, want %v", got, want)
	}
	if k.appends != before+1 {
		t.Errorf("%d appends, want 1", k.appends-before)
	}
}
