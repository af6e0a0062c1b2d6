package inspect

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/pause"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// collectFake collects inside a bubble, so that waiting takes no time.
func collectFake(t *testing.T, set func(*fakeCluster), opts CollectOptions, check func(*testing.T, *fakeCluster, *Evidence)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster()
		set(f)
		ev, err := Collect(t.Context(), f, opts)
		if err != nil {
			t.Fatal(err)
		}
		check(t, f, ev)
	})
}

func wantGapsIn(t *testing.T, ev *Evidence, want ...string) {
	t.Helper()
	if got := gapsBy(ev.Gaps); !slices.Equal(got, want) {
		t.Errorf("gaps %q, want %q", got, want)
	}
}

// owners returns whose records are pending, sorted.
func ownersIn(ev *Evidence) []int64 {
	var out []int64
	for _, s := range ev.States {
		for _, b := range pendingBatches(s.Batches) {
			out = append(out, b.Staged.ProducerID)
		}
	}
	slices.Sort(out)
	return out
}

func TestCollectNothing(t *testing.T) {
	collectFake(t, func(*fakeCluster) {}, CollectOptions{}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
		if len(ev.Gaps)+len(ev.Transactions)+len(ev.Ended)+len(ev.States)+len(ev.Groups)+ev.StatesRead > 0 || ev.Persists {
			t.Errorf("evidence %+v, want nothing", ev)
		}
		if ev.ClusterID != "fake" || ev.StatePartitions != fakePartitions || ev.Sweep != 5*time.Second || ev.Time.IsZero() ||
			ev.Topics[fakeTopicID] != fakeTopicName || ev.Support.Verdict != cluster.NotSupported {
			t.Errorf("evidence %+v", ev)
		}
	})
}

func TestCollectWithoutStateTopic(t *testing.T) {
	collectFake(t, func(f *fakeCluster) {
		f.topics = f.topics[1:]
		f.begin("a", 1, 0, 0, "Ongoing")
	}, CollectOptions{}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
		if wantGapsIn(t, ev); ev.StatePartitions != 0 || len(ev.Transactions) != 1 {
			t.Errorf("evidence %+v", ev)
		}
	})
}

func TestCollectOwners(t *testing.T) {
	k0, k1, k2 := fakeKey(0), fakeKey(1), fakeKey(2)
	collectFake(t, func(f *fakeCluster) {
		f.begin("ongoing", 1, 5, 0, "Ongoing", 0)
		f.begin("ending", 2, 6, 1, "PrepareCommit") // its partitions are confirmed already
		f.begin("unrelated", 3, 1, 2, "Ongoing")
		f.begin("memory", 4, 1, 2, "Ongoing", 2) // its state is not written down
		f.write(k0, pendingBatch(0, 4, ownedBy(1, 5)), stateBatchOf(5, 5, wire.Acknowledged))
		f.write(k1, pendingBatch(0, 0, ownedBy(2, 5)))
		f.write(k2, stateBatchOf(0, 5, wire.Available))
		f.groups = []Group{{GroupID: "g", State: "Empty", Coordinator: 1, Partitions: []SharePartition{{Topic: fakeTopicName, TopicID: fakeTopicID, Lag: 3}}}}
	}, CollectOptions{}, func(t *testing.T, f *fakeCluster, ev *Evidence) {
		wantGapsIn(t, ev)
		if got := idsOf(ev.Transactions); !slices.Equal(got, []string{"ending", "memory", "ongoing", "unrelated"}) || len(ev.Ended) > 0 {
			t.Errorf("transactions %v, ended %+v", got, ev.Ended)
		}
		if got := ownersIn(ev); !slices.Equal(got, []int64{1, 2}) || !ev.Persists || ev.StatesRead != 3 {
			t.Errorf("owners %v, persists %t, %d states read", got, ev.Persists, ev.StatesRead)
		}
		for _, s := range ev.States {
			if !slices.Equal(s.Sources, []Source{SourceStateTopic, SourceShareGroupState}) || !s.Written.Equal(stagedAt) {
				t.Errorf("state %+v", s)
			}
		}
		if len(ev.Groups) != 1 || len(ev.Groups[0].Partitions) != 1 {
			t.Errorf("groups %+v", ev.Groups)
		}
		// What was not pending by the topic was not asked for.
		for _, req := range requestsOf[*kmsg.ReadShareGroupStateRequest](f) {
			for _, p := range req.Topics[0].Partitions {
				if p.Partition == k2.Partition {
					t.Error("a share-partition was asked for in which nothing is pending")
				}
			}
		}
	})
}

// Each right that is missing, in turn, is a gap that names it.
func TestCollectWithoutRights(t *testing.T) {
	const clusterAction, readTopic = "ReadShareGroupState CLUSTER_ACTION on CLUSTER kafka-cluster CLUSTER_AUTHORIZATION_FAILED",
		"__share_group_state READ on TOPIC __share_group_state TOPIC_AUTHORIZATION_FAILED"
	for _, c := range []struct {
		name   string
		denied []ACL
		want   []string
		owners []int64 // seen all the same
		sorted []string
	}{
		{"all", nil, nil, []int64{1}, []string{"a"}},
		{
			"DESCRIBE on transactional IDs",
			[]ACL{aclTransactionalIDs},
			[]string{"DescribeTransactions DESCRIBE on TRANSACTIONAL_ID * TRANSACTIONAL_ID_AUTHORIZATION_FAILED"},
			[]int64{1},
			[]string{},
		},
		{
			"DESCRIBE on the topic", []ACL{aclDescribeState, aclReadState}, // the one implies the other
			[]string{"Metadata DESCRIBE on TOPIC __share_group_state TOPIC_AUTHORIZATION_FAILED"}, nil, []string{"a"},
		},
		{"READ on the topic", []ACL{aclReadState}, []string{readTopic}, []int64{1}, []string{"a"}},
		{"CLUSTER_ACTION", []ACL{aclClusterAction}, []string{clusterAction}, []int64{1}, []string{"a"}},
		{"both ways to the state", []ACL{aclClusterAction, aclReadState}, []string{clusterAction, readTopic}, nil, []string{"a"}},
		{
			"DESCRIBE on groups",
			[]ACL{aclGroups},
			[]string{"ShareGroupDescribe DESCRIBE on GROUP * GROUP_AUTHORIZATION_FAILED"},
			[]int64{1},
			[]string{"a"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			collectFake(t, func(f *fakeCluster) {
				f.begin("a", 1, 5, 0, "Ongoing", 0)
				f.write(fakeKey(0), pendingBatch(0, 4, ownedBy(1, 5)))
				f.write(fakeKey(1))
				f.groups = []Group{{GroupID: "g", Coordinator: 1, Partitions: []SharePartition{
					{Topic: fakeTopicName, TopicID: fakeTopicID, Partition: fakeKey(0).Partition, Lag: 5},
					{Topic: fakeTopicName, TopicID: fakeTopicID, Partition: fakeKey(1).Partition, Lag: 0},
				}}}
				for _, acl := range c.denied {
					f.denied[acl] = true
				}
			}, CollectOptions{}, func(t *testing.T, f *fakeCluster, ev *Evidence) {
				wantGapsIn(t, ev, c.want...)
				for _, g := range ev.Gaps {
					if g.Reason == "" || g.ACL == nil || g.Advice == "" {
						t.Errorf("gap %+v", g)
					}
				}
				if got := ownersIn(ev); !slices.Equal(got, c.owners) || !slices.Equal(idsOf(ev.Transactions), c.sorted) || len(ev.Ended) > 0 {
					t.Errorf("owners %v, transactions %v, ended %+v; want %v and %v", got, idsOf(ev.Transactions), ev.Ended, c.owners, c.sorted)
				}
				if c.name != "READ on the topic" {
					return
				}
				// What is done, by its lag, is not asked for.
				if ev.StatesRead != 1 || ev.States[0].WrittenBy(ownedBy(1, 5)) != (time.Time{}) {
					t.Errorf("%d states read, %+v", ev.StatesRead, ev.States)
				}
			})
		})
	}
}

func TestGrant(t *testing.T) {
	const start = "bin/kafka-acls.sh --bootstrap-server HOST:PORT --add --allow-principal User:NAME --operation "
	for acl, want := range map[ACL]string{
		aclTransactionalIDs:              "Describe --transactional-id '*'",
		aclReadState:                     "Read --topic '__share_group_state'",
		aclClusterAction:                 "ClusterAction --cluster",
		{"DESCRIBE", "GROUP", "it's me"}: `Describe --group 'it'\''s me'`,
	} {
		if got := acl.grant(); got != start+want {
			t.Errorf("grant of %s: %q, want %q", acl, got, start+want)
		}
	}
}

// The second look.
func TestCollectLooksAgain(t *testing.T) {
	k := fakeKey(0)
	for _, c := range []struct {
		name  string
		set   func(*fakeCluster)
		open  []string
		owns  []int64  // whose records stay pending
		ended []string // owners of orphans
	}{
		{
			"ended between the listing and the topic", func(f *fakeCluster) {
				f.begin("a", 1, 5, 0, "Ongoing", 0)
				f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
				f.onRead(func() {
					f.begin("a", 1, 6, 0, "CompleteCommit")
					f.write(k, stateBatchOf(0, 4, wire.Acknowledged))
				})
			}, []string{}, nil, nil,
		},
		{
			"expired between the listing and the topic", func(f *fakeCluster) {
				f.begin("a", 1, 5, 0, "Ongoing", 0)
				f.onRead(func() { f.remove("a") })
			}, []string{}, nil, nil,
		},
		{
			"resolved between the topic and the coordinator", func(f *fakeCluster) {
				f.begin("a", 1, 5, 0, "Ongoing", 0)
				f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
				f.on(kmsg.ReadShareGroupStateSummary, 2, func() { // the first is a probe
					f.begin("a", 1, 6, 0, "CompleteAbort")
					f.write(k, stateBatchOf(0, 4, wire.Available))
				})
			}, []string{}, nil, nil,
		},
		{
			"begun after the listing", func(f *fakeCluster) {
				f.onRead(func() {
					f.begin("a", 1, 5, 2, "Ongoing", 0)
					f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
				})
			}, []string{"a"}, []int64{1}, nil,
		},
		{
			"the next one begun after the listing", func(f *fakeCluster) {
				f.begin("a", 1, 5, 2, "Ongoing", 0)
				f.onRead(func() {
					f.begin("a", 1, 6, 2, "Ongoing", 0)
					f.write(k, pendingBatch(0, 4, ownedBy(1, 6)))
				})
			}, []string{"a"}, []int64{1}, nil,
		},
		{
			"begun and ended after the listing", func(f *fakeCluster) {
				f.onRead(func() {
					f.begin("a", 1, 6, 2, "CompleteCommit")
					f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
				})
				f.on(kmsg.ReadShareGroupStateSummary, 3, func() { f.write(k, stateBatchOf(0, 4, wire.Acknowledged)) })
			}, []string{}, nil, nil,
		},
		{
			"the end is known before the records are resolved", func(f *fakeCluster) {
				f.begin("a", 1, 6, 2, "CompleteCommit")
				f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
				f.on(kmsg.ReadShareGroupStateSummary, 4, func() { f.write(k, stateBatchOf(0, 4, wire.Acknowledged)) })
			}, []string{}, nil, nil,
		},
		{
			"an orphan of nobody", func(f *fakeCluster) { f.write(k, pendingBatch(0, 4, ownedBy(1, 5))) },
			[]string{},
			[]int64{1},
			nil,
		},
		{
			"an orphan of one that ended", func(f *fakeCluster) {
				f.begin("a", 1, 6, 1, "CompleteAbort")
				f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
			}, []string{}, []int64{1}, []string{"a CompleteAbort 1 6"},
		},
		{
			"an orphan of one whose epoch was raised", func(f *fakeCluster) {
				f.begin("a", 1, 7, 1, "Ongoing", 0)
				f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
			}, []string{"a"}, []int64{1}, []string{"a Ongoing 1 7"},
		},
		{
			"an orphan of one that does not list the partition", func(f *fakeCluster) {
				f.begin("a", 1, 5, 1, "Ongoing", 2)
				f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
			}, []string{"a"}, []int64{1}, nil,
		},
		{
			"an orphan of one whose producer ID was rotated", func(f *fakeCluster) {
				f.begin("a", 1, 32766, 1, "Ongoing", 0)
				f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
				f.on(kmsg.ReadShareGroupStateSummary, 2, func() { f.begin("a", 77, 0, 1, "Ongoing", 2) })
			}, []string{"a"}, []int64{1}, []string{"a Ongoing 1 -1"},
		},
		{
			"an orphan without an owner that can be read", func(f *fakeCluster) {
				f.write(k, pendingBatch(0, 4, wire.NoStagedOwner()))
			}, []string{}, []int64{-1}, nil,
		},
		{
			"no owner that can be read, and one that lists the partition", func(f *fakeCluster) {
				f.begin("a", 1, 5, 1, "Ongoing", 0)
				f.write(k, pendingBatch(0, 4, wire.NoStagedOwner()))
			}, []string{"a"}, []int64{-1}, nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			collectFake(t, c.set, CollectOptions{}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
				wantGapsIn(t, ev)
				if got := idsOf(ev.Transactions); !slices.Equal(got, c.open) {
					t.Errorf("open %v, want %v", got, c.open)
				}
				if got := ownersIn(ev); !slices.Equal(got, c.owns) {
					t.Errorf("pending of producers %v, want %v", got, c.owns)
				}
				if got := describeEnded(ev); !slices.Equal(got, c.ended) {
					t.Errorf("ended %v, want %v", got, c.ended)
				}
			})
		})
	}
}

// Earlier evidence knows whose a producer ID was that no coordinator knows now.
func TestCollectNamesOwnersByEarlierEvidence(t *testing.T) {
	prev := &Evidence{ClusterID: "fake", Transactions: []Transaction{
		{TransactionalID: "rotated", State: "Ongoing", ProducerID: 1, Coordinator: 1},
		{TransactionalID: "expired", State: "Ongoing", ProducerID: 2, Coordinator: 17},
	}}
	for _, c := range []struct {
		cluster string
		want    []string
	}{
		{"fake", []string{"expired Dead 2 -1", "rotated Empty 1 -1"}},
		{"another", nil},
	} {
		prev.ClusterID = c.cluster
		collectFake(t, func(f *fakeCluster) {
			f.begin("rotated", 77, 0, 1, "Empty")
			f.write(fakeKey(0), pendingBatch(0, 4, ownedBy(1, 5)), pendingBatch(5, 5, ownedBy(2, 5)))
		}, CollectOptions{Previous: prev}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
			wantGapsIn(t, ev)
			if got := describeEnded(ev); !slices.Equal(got, c.want) {
				t.Errorf("ended %v, want %v", got, c.want)
			}
		})
	}
}

// A share-partition that is staged anew with every look cannot be joined.
func TestCollectNeverStill(t *testing.T) {
	collectFake(t, func(f *fakeCluster) {
		f.write(fakeKey(0), pendingBatch(0, 4, ownedBy(1, 0)))
		producerID := int64(1)
		f.intercept = func(_ int32, req kmsg.Request) (kmsg.Response, error, bool) {
			if req.Key() == int16(kmsg.ReadShareGroupStateSummary) {
				producerID++
				f.write(fakeKey(0), pendingBatch(0, 4, ownedBy(producerID, 0)))
			}
			return nil, nil, false
		}
	}, CollectOptions{}, func(t *testing.T, f *fakeCluster, ev *Evidence) {
		wantGapsIn(t, ev, "ReadShareGroupState")
		// One for each broker and look, and the first.
		if n := len(requestsOf[*kmsg.ListTransactionsRequest](f)); n != 3+3*mostLooks {
			t.Errorf("%d requests to list transactions, want an end after %d looks", n, mostLooks)
		}
	})
}

// Where transactions are hidden no number of looks finds them.
func TestCollectDoesNotLookForWhatIsHidden(t *testing.T) {
	collectFake(t, func(f *fakeCluster) {
		f.denied[aclTransactionalIDs] = true
		f.write(fakeKey(0), pendingBatch(0, 4, ownedBy(1, 5)))
	}, CollectOptions{}, func(t *testing.T, f *fakeCluster, ev *Evidence) {
		if n := len(requestsOf[*kmsg.ListTransactionsRequest](f)); n > 6 || !slices.Equal(ownersIn(ev), []int64{1}) {
			t.Errorf("%d requests to list transactions, owners %v", n, ownersIn(ev))
		}
	})
}

// Where coordinators may not be asked, the topic is read again.
func TestCollectLooksAtTheTopicAgain(t *testing.T) {
	k := fakeKey(1)
	collectFake(t, func(f *fakeCluster) {
		f.denied[aclClusterAction] = true
		f.begin("a", 1, 6, 0, "CompleteCommit")
		f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
		f.write(fakeKey(0), pendingBatch(0, 4, ownedBy(2, 5)))
		reads := 0
		f.beforeRead = func(p int32) error {
			if p != 1 {
				return nil
			}
			if reads++; reads == 2 {
				f.write(k, stateBatchOf(0, 4, wire.Acknowledged))
			}
			return nil
		}
	}, CollectOptions{}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
		if got := ownersIn(ev); !slices.Equal(got, []int64{2}) || ev.StatesRead != 2 {
			t.Errorf("owners %v, %d states read; want the other alone of 2", got, ev.StatesRead)
		}
	})
}

// So it is where a coordinator has told a state, and then tells it no more.
func TestCollectBelievesTheNewest(t *testing.T) {
	k := fakeKey(1)
	collectFake(t, func(f *fakeCluster) {
		f.begin("a", 1, 6, 0, "CompleteCommit")
		f.write(k, pendingBatch(0, 4, ownedBy(1, 5)))
		f.on(kmsg.ReadShareGroupStateSummary, 3, func() { // a probe, the first look, this one
			f.write(k, stateBatchOf(0, 4, wire.Acknowledged))
			f.mu.Lock()
			defer f.mu.Unlock()
			f.topics = f.topics[:1] // deleted
		})
	}, CollectOptions{}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
		wantGapsIn(t, ev)
		if len(ev.States) > 0 || len(ev.Ended) > 0 {
			t.Errorf("states %+v, ended %+v, want what the topic says last: nothing is pending", ev.States, ev.Ended)
		}
	})
}

func TestCollectTopics(t *testing.T) {
	hidden, deleted := [16]byte{2}, [16]byte{3}
	hiddenKey, deletedKey := ShareKey{"g", hidden, 0}, ShareKey{"g", deleted, 0}
	collectFake(t, func(f *fakeCluster) {
		f.topics = append(f.topics, cluster.Topic{Name: "secret", ID: hidden})
		f.denied[ACL{"DESCRIBE", "TOPIC", "secret"}] = true
		f.begin("a", 1, 5, 0, "Ongoing", 0, 1, 2)
		f.write(hiddenKey, pendingBatch(0, 0, ownedBy(1, 5)))
		f.write(deletedKey, pendingBatch(0, 0, ownedBy(1, 5)))
	}, CollectOptions{}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
		name, ok := ev.Topics[hidden]
		if _, there := ev.Topics[deleted]; name != "" || !ok || there || ev.Topics[fakeTopicID] != fakeTopicName {
			t.Errorf("topics %v", ev.Topics)
		}
		// The coordinator does not tell of a deleted topic.
		for _, s := range ev.States {
			if want := s.TopicID == hidden; slices.Contains(s.Sources, SourceShareGroupState) != want {
				t.Errorf("state of %x from %v", s.TopicID, s.Sources)
			}
		}
		if len(ev.States) != 2 {
			t.Errorf("states %+v", ev.States)
		}
	})
}

// A transaction whose coordinator moves behind the listing is not lost.
func TestCollectFollowsCoordinators(t *testing.T) {
	for _, c := range []struct {
		name  string
		moves int
		lists int
		gaps  []string
	}{
		{"none moves", 0, 1, nil},
		{"one moves once", 1, 2, nil},
		{"they move all the time", 99, mostLists, []string{"ListTransactions"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			collectFake(t, func(f *fakeCluster) {
				f.topics = append(f.topics, cluster.Topic{Name: transactionTopic, ID: [16]byte{8}, Partitions: []cluster.Partition{{Leader: 2}}})
				f.begin("a", 1, 5, 2, "Ongoing")
				f.intercept = func(node int32, req kmsg.Request) (kmsg.Response, error, bool) {
					f.mu.Lock()
					defer f.mu.Unlock()
					if req.Key() != int16(kmsg.ListTransactions) || node != 2 || c.moves == 0 {
						return nil, nil, false
					}
					c.moves--
					// From 2, which is asked now, to 0, which may have been asked.
					tx := f.txns["a"]
					tx.Coordinator = 0
					f.txns["a"] = tx
					part := f.topics[2].Partitions[0]
					part.LeaderEpoch++
					f.topics[2].Partitions = []cluster.Partition{part}
					return nil, nil, false
				}
			}, CollectOptions{}, func(t *testing.T, f *fakeCluster, ev *Evidence) {
				wantGapsIn(t, ev, c.gaps...)
				if n := len(requestsOf[*kmsg.ListTransactionsRequest](f)); n != 3*c.lists || c.gaps == nil && len(ev.Transactions) != 1 {
					t.Errorf("%d requests, transactions %+v", n, ev.Transactions)
				}
			})
		})
	}
}

// A broker that once did not answer is not waited for again.
func TestCollectSparesTheSilent(t *testing.T) {
	collectFake(t, func(f *fakeCluster) {
		for p := range int32(2000) {
			f.write(ShareKey{"g", fakeTopicID, p}, pendingBatch(0, 0, ownedBy(1, 5)))
		}
		f.begin("a", 1, 5, 0, "Ongoing", 0, 1, 2)
		f.intercept = func(node int32, _ kmsg.Request) (kmsg.Response, error, bool) {
			if node != 1 {
				return nil, nil, false
			}
			return nil, cmp.Or(pause.For(context.Background(), 10*time.Second), context.DeadlineExceeded), true
		}
		f.beforeRead = func(p int32) error {
			if p == 1 {
				t.Error("the silent broker was fetched from")
			}
			return nil
		}
	}, CollectOptions{}, func(t *testing.T, f *fakeCluster, ev *Evidence) {
		n := 0
		for _, s := range f.sent {
			if s.node == 1 {
				n++
			}
		}
		if n != 1 || time.Since(ev.Time) > time.Minute {
			t.Errorf("%d requests to the silent broker, in %v; want 1", n, time.Since(ev.Time))
		}
		for _, s := range ev.States {
			if s.StatePartition == 1 {
				t.Errorf("state %+v of the silent broker", s)
				break
			}
		}
		if len(ev.States) == 0 || len(ev.Gaps) == 0 {
			t.Errorf("%d states, gaps %+v", len(ev.States), ev.Gaps)
		}
	})
}

// A broker that did not even tell its ApiVersions is one gap.
func TestCollectWithoutABroker(t *testing.T) {
	collectFake(t, func(f *fakeCluster) {
		f.versions[1].Err = cluster.ErrFenced
		f.begin("a", 1, 5, 0, "Ongoing", 0)
		f.write(fakeKey(0), pendingBatch(0, 0, ownedBy(1, 5)))
	}, CollectOptions{}, func(t *testing.T, f *fakeCluster, ev *Evidence) {
		wantGapsIn(t, ev, "Metadata broker 1")
		if ev.Gaps[0].Advice == "" || !slices.Equal(ownersIn(ev), []int64{1}) {
			t.Errorf("gap %+v, owners %v", ev.Gaps[0], ownersIn(ev))
		}
		for _, s := range f.sent {
			if s.node == 1 {
				t.Errorf("%s was sent to it", kmsg.NameForKey(s.req.Key()))
			}
		}
	})
}

func TestCollectSince(t *testing.T) {
	before := time.Date(2026, 11, 29, 11, 0, 0, 0, time.UTC)
	earlier := before.Add(-time.Hour)
	part := func(partition int32, start, lag int64, since time.Time) SharePartition {
		return SharePartition{Topic: fakeTopicName, TopicID: fakeTopicID, Partition: partition, StartOffset: start, Lag: lag, UnmovedSince: since}
	}
	set := func(f *fakeCluster) {
		f.begin("same", 1, 6, 0, "PrepareCommit")
		f.begin("new", 2, 6, 0, "PrepareCommit")
		f.begin("next", 3, 9, 0, "PrepareAbort")
		f.begin("ongoing", 4, 9, 0, "Ongoing")
		f.groups = []Group{{GroupID: "g", Coordinator: 0, Partitions: []SharePartition{
			part(0, 10, 5, time.Time{}), part(1, 11, 5, time.Time{}), part(2, 10, 0, time.Time{}), part(3, 10, 5, time.Time{}), part(4, 10, -1, time.Time{}),
		}}}
	}
	prev := &Evidence{
		Time: before, ClusterID: "fake",
		Transactions: []Transaction{
			{TransactionalID: "same", State: "PrepareCommit", ProducerID: 1, ProducerEpoch: 6},
			{TransactionalID: "next", State: "PrepareAbort", ProducerID: 3, ProducerEpoch: 8, PrepareSince: earlier},
			{TransactionalID: "ongoing", State: "Ongoing", ProducerID: 4, ProducerEpoch: 9},
		},
		Groups: []Group{{GroupID: "g", Partitions: []SharePartition{
			part(0, 10, 4, earlier), part(1, 10, 5, earlier), part(2, 10, 1, earlier), part(3, 10, 9, time.Time{}), part(4, 10, 1, earlier),
		}}},
	}
	collectFake(t, set, CollectOptions{Previous: prev}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
		for id, want := range map[string]time.Time{"same": before, "new": {}, "next": {}, "ongoing": {}} {
			i := slices.Index(idsOf(ev.Transactions), id)
			if got := ev.Transactions[i].PrepareSince; !got.Equal(want) {
				t.Errorf("%s: prepared since %v, want %v", id, got, want)
			}
		}
		for i, want := range []time.Time{earlier, {}, {}, before, {}} {
			if got := ev.Groups[0].Partitions[i].UnmovedSince; !got.Equal(want) {
				t.Errorf("partition %d: unmoved since %v, want %v", i, got, want)
			}
		}
	})
	prev.ClusterID = "another"
	collectFake(t, set, CollectOptions{Previous: prev}, func(t *testing.T, _ *fakeCluster, ev *Evidence) {
		if !ev.Transactions[0].PrepareSince.IsZero() || !ev.Groups[0].Partitions[0].UnmovedSince.IsZero() {
			t.Errorf("%+v takes over from another cluster", ev)
		}
	})
}

func TestJoinStates(t *testing.T) {
	a, b, none := ownedBy(1, 5), ownedBy(2, 5), wire.NoStagedOwner()
	written := ShareState{
		Batches: []wire.StateBatch{pendingBatch(0, 4, a), pendingBatch(5, 9, b)}, Written: stagedAt, Sources: []Source{SourceStateTopic},
		Staged: []StagedSince{{1, 5, stagedAt}, {2, 5, stagedAt.Add(time.Minute)}},
	}
	both, one := []Source{SourceStateTopic, SourceShareGroupState}, []Source{SourceShareGroupState}
	for _, c := range []struct {
		name    string
		asked   []wire.StateBatch
		want    []wire.StateBatch
		staged  []StagedSince
		sources []Source
	}{
		{"the same", written.Batches, written.Batches, written.Staged, both},
		{"without owners", []wire.StateBatch{pendingBatch(0, 9, none)}, written.Batches, written.Staged, both},
		{
			"without owners, moved on",
			[]wire.StateBatch{stateBatchOf(0, 2, wire.Acknowledged), pendingBatch(3, 12, none)},
			[]wire.StateBatch{stateBatchOf(0, 2, wire.Acknowledged), pendingBatch(3, 4, a), pendingBatch(5, 9, b), pendingBatch(10, 12, none)},
			written.Staged, one,
		},
		{"one resolved", []wire.StateBatch{pendingBatch(5, 9, b)}, []wire.StateBatch{pendingBatch(5, 9, b)}, written.Staged[1:], one},
		{"another one", []wire.StateBatch{pendingBatch(0, 9, ownedBy(3, 5))}, []wire.StateBatch{pendingBatch(0, 9, ownedBy(3, 5))}, nil, one},
	} {
		got := joinStates(written, ShareState{Batches: c.asked, Sources: one})
		var first time.Time
		if len(c.staged) > 0 {
			first = c.staged[0].Since
		}
		if !slices.Equal(got.Batches, c.want) || !slices.Equal(got.Staged, c.staged) || !slices.Equal(got.Sources, c.sources) || !got.Written.Equal(first) {
			t.Errorf("%s: %+v, want %+v of %+v by %v", c.name, got, c.want, c.staged, c.sources)
		}
	}
}

func TestCollectFails(t *testing.T) {
	f := newFakeCluster()
	ctx, cancel := contextWithCause(t)
	f.onRead(func() { cancel(errStopped) })
	f.begin("a", 1, 5, 0, "Ongoing", 0)
	if ev, err := Collect(ctx, f, CollectOptions{}); !errors.Is(err, errStopped) || ev != nil {
		t.Errorf("Collect = %+v, %v, want the cause of ctx", ev, err)
	}
	if ev, err := Collect(t.Context(), unreachable{f}, CollectOptions{}); !errors.Is(err, kerr.BrokerNotAvailable) || ev != nil {
		t.Errorf("Collect = %+v, %v, want that no broker can be reached", ev, err)
	}
}

// unreachable is a cluster of which no broker answers.
type unreachable struct{ *fakeCluster }

func (unreachable) Describe(context.Context) (cluster.Description, error) {
	return cluster.Description{}, &cluster.DialError{Err: kerr.BrokerNotAvailable}
}
