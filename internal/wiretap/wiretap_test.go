package wiretap

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// It hears the same at both ends.
func TestTap(t *testing.T) {
	for _, end := range []string{"client", "broker"} {
		t.Run(end, func(t *testing.T) {
			tap := New()
			fakeOpts, opts := []kfake.Opt{kfake.NumBrokers(1), kfake.SeedTopics(1, "topic")}, []kgo.Opt{kgo.ClientID("heard")}
			if end == "client" {
				opts = append(opts, kgo.Dialer(tap.Dial))
			} else {
				fakeOpts = append(fakeOpts, kfake.ListenFn(tap.Listen))
			}
			fake, err := kfake.NewCluster(fakeOpts...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(fake.Close)
			cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(fake.ListenAddrs()...))...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cl.Close)
			testTap(t, tap, func(req kmsg.Request) {
				t.Helper()
				if _, err := cl.Request(context.Background(), req); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func testTap(t *testing.T, tap *Tap, send func(kmsg.Request)) {
	t.Helper()
	send(kmsg.NewPtrMetadataRequest())
	tap.ReadOnly(t)
	heard := tap.Exchanges()
	i := slices.IndexFunc(heard, func(e Exchange) bool { return e.Key == kmsg.Metadata })
	if i < 0 || heard[i].Response == nil || len(heard[i].Response.(*kmsg.MetadataResponse).Topics) != 1 || heard[i].ClientID != "heard" {
		t.Fatalf("heard %+v, want Metadata and its response", heard)
	}

	creates := kmsg.NewPtrMetadataRequest()
	creates.AllowAutoTopicCreation = true
	send(creates)
	if got := tap.violations(); len(got) != 1 || !strings.Contains(got[0], "creates topics") {
		t.Errorf("violations %q, want that of the Metadata request", got)
	}
	tap.Reset()
	send(kmsg.NewPtrCreateTopicsRequest())
	if got := tap.violations(); len(got) != 1 || !strings.Contains(got[0], "CreateTopics") {
		t.Errorf("violations %q, want CreateTopics", got)
	}
	tap.Reset()
	tap.Ignore("heard")
	send(kmsg.NewPtrCreateTopicsRequest())
	if got := tap.Exchanges(); len(got) > 0 {
		t.Errorf("heard %+v of a client to be ignored", got)
	}
}

// The rules about reading the state of share-partitions fire.
func TestLeaderEpochsAreNotGuessed(t *testing.T) {
	summary := func(epoch int32) Exchange {
		req, resp := kmsg.NewPtrReadShareGroupStateSummaryRequest(), kmsg.NewPtrReadShareGroupStateSummaryResponse()
		req.GroupID = "g"
		resp.Topics = []kmsg.ReadShareGroupStateSummaryResponseTopic{{
			Partitions: []kmsg.ReadShareGroupStateSummaryResponseTopicPartition{{LeaderEpoch: epoch}},
		}}
		return Exchange{Key: kmsg.ReadShareGroupStateSummary, Request: req, Response: resp}
	}
	read := func(epoch int32) Exchange {
		req := kmsg.NewPtrReadShareGroupStateRequest()
		req.GroupID = "g"
		req.Topics = []kmsg.ReadShareGroupStateRequestTopic{{
			Partitions: []kmsg.ReadShareGroupStateRequestTopicPartition{{LeaderEpoch: epoch}},
		}}
		return Exchange{Key: kmsg.ReadShareGroupState, Request: req}
	}
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorType = coordinatorTypeShare
	for _, c := range []struct {
		name  string
		heard []Exchange
		want  int
	}{
		{"as told", []Exchange{summary(3), read(3)}, 0},
		{"as told last", []Exchange{summary(3), summary(4), read(4)}, 0},
		{"not told", []Exchange{read(0)}, 1},
		{"higher", []Exchange{summary(3), read(4)}, 1},
		{"told before", []Exchange{summary(4), summary(3), read(4)}, 1},
		{"-1", []Exchange{summary(3), read(-1)}, 1},
		{"share coordinator", []Exchange{{Key: kmsg.FindCoordinator, Request: find}}, 1},
	} {
		tap := New()
		for _, e := range c.heard {
			tap.exchanges = append(tap.exchanges, &e)
		}
		if got := tap.violations(); len(got) != c.want {
			t.Errorf("%s: violations %q, want %d", c.name, got, c.want)
		}
	}
}
