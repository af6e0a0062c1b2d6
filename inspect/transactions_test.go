package inspect

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func idsOf(txns []Transaction) []string {
	ids := make([]string, 0, len(txns))
	for _, t := range txns {
		ids = append(ids, t.TransactionalID)
	}
	return ids
}

// Filters give the same rows whether the broker or kshare applies them.
func TestListTransactionsFilters(t *testing.T) {
	for _, c := range []struct {
		name string
		q    TransactionQuery
		want []string
	}{
		{"all", TransactionQuery{}, []string{"billing-1", "billing-2", "done", "shipping"}},
		{"open", TransactionQuery{States: OpenStates()}, []string{"billing-1", "billing-2", "shipping"}},
		{"prepared", TransactionQuery{States: []string{"PrepareCommit"}}, []string{"billing-2"}},
		{"producers", TransactionQuery{ProducerIDs: []int64{1, 3, 99}}, []string{"billing-1", "shipping"}},
		{"pattern", TransactionQuery{Pattern: "billing-.*"}, []string{"billing-1", "billing-2"}},
		{"whole ID", TransactionQuery{Pattern: "billing|ship"}, []string{}},
		{"old", TransactionQuery{MinDuration: 90 * time.Second}, []string{"billing-2", "done"}},
		{"just as old", TransactionQuery{MinDuration: 2 * time.Minute, States: OpenStates()}, []string{}},
		{"both", TransactionQuery{MinDuration: 90 * time.Second, Pattern: ".*2"}, []string{"billing-2"}},
	} {
		for version := int16(0); version <= 2; version++ {
			t.Run(fmt.Sprintf("%s v%d", c.name, version), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeCluster()
					for i := range f.versions {
						f.versions[i].Keys[int16(kmsg.ListTransactions)] = cluster.VersionRange{Max: version}
					}
					f.begin("billing-1", 1, 0, 0, "Ongoing")
					f.begin("billing-2", 2, 0, 1, "PrepareCommit")
					f.begin("shipping", 3, 0, 2, "Ongoing")
					f.begin("done", 4, 0, 2, "CompleteCommit")
					for id, age := range map[string]time.Duration{"billing-1": time.Minute, "billing-2": 2 * time.Minute, "shipping": time.Second, "done": time.Hour} {
						tx := f.txns[id]
						tx.Started = time.Now().Add(-age)
						f.txns[id] = tx
					}
					txns, gaps, err := ListTransactions(t.Context(), f, f.versions, c.q)
					if err != nil || len(gaps) > 0 {
						t.Fatalf("gaps %+v, %v", gaps, err)
					}
					if got := idsOf(txns); !slices.Equal(got, c.want) {
						t.Errorf("got %v, want %v", got, c.want)
					}
					for _, req := range requestsOf[*kmsg.ListTransactionsRequest](f) {
						if version < 1 && req.DurationFilterMillis != -1 || version < 2 && req.TransactionalIDPattern != nil {
							t.Errorf("request %+v to a broker with v%d", req, version)
						}
					}
				})
			})
		}
	}
}

func TestListTransactionsPatternThatIsNone(t *testing.T) {
	if _, _, err := ListTransactions(t.Context(), newFakeCluster(), nil, TransactionQuery{Pattern: "("}); err == nil || !strings.Contains(err.Error(), `pattern "("`) {
		t.Errorf("error %v, want the pattern", err)
	}
}

func TestListTransactionsDescribes(t *testing.T) {
	f := newFakeCluster()
	f.begin("a", 1, 5, 0, "Ongoing", 2, 0)
	f.begin("b", 2, 6, 0, "PrepareAbort")
	txns, gaps, err := ListTransactions(t.Context(), f, f.versions, TransactionQuery{Describe: true})
	if err != nil || len(gaps) > 0 || len(txns) != 2 {
		t.Fatalf("%+v, gaps %+v, %v", txns, gaps, err)
	}
	a, b := txns[0], txns[1]
	if a.ProducerEpoch != 5 || a.TimeoutMS != 60_000 || !a.Started.Equal(stagedAt) || a.Coordinator != 0 {
		t.Errorf("a: %+v", a)
	}
	if parts, known := a.StatePartitions(); !known || !slices.Equal(parts, []int32{0, 2}) {
		t.Errorf("a: partitions %v, known %t", parts, known)
	}
	if parts, known := b.StatePartitions(); !known || len(parts) > 0 || b.State != "PrepareAbort" {
		t.Errorf("b: %+v", b)
	}
	if n := len(requestsOf[*kmsg.DescribeTransactionsRequest](f)); n != 1 {
		t.Errorf("%d describes, want 1", n)
	}
}

// What no longer fits the query when it is described is no row.
func TestListTransactionsThatChange(t *testing.T) {
	for _, q := range []TransactionQuery{{States: OpenStates(), Describe: true}, {ProducerIDs: []int64{1}, Describe: true}} {
		f := newFakeCluster()
		f.begin("a", 1, 5, 0, "Ongoing")
		f.on(kmsg.DescribeTransactions, 1, func() { f.begin("a", 2, 0, 0, "CompleteAbort") })
		if txns, gaps, err := ListTransactions(t.Context(), f, f.versions, q); err != nil || len(txns)+len(gaps) > 0 {
			t.Errorf("%+v: %+v, gaps %+v, %v; want none", q, txns, gaps, err)
		}
	}
}

// One broker that fails leaves the rows of the others, and a gap (R21).
func TestListTransactionsWithoutABroker(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errRefused}
	for _, c := range []struct {
		name string
		set  func(*fakeCluster)
		want string
	}{
		{"silent", func(f *fakeCluster) { f.versions[1].Err = cluster.ErrFenced }, "ListTransactions broker 1"},
		{"too old", func(f *fakeCluster) { delete(f.versions[1].Keys, int16(kmsg.ListTransactions)) }, "ListTransactions broker 1"},
		{"unreachable", func(f *fakeCluster) { f.failAt(1, kmsg.ListTransactions, refused, -1) }, "ListTransactions broker 1"},
		{"refuses", func(f *fakeCluster) { f.refuseAt(1, kerr.UnknownServerError, -1) }, "ListTransactions broker 1 UNKNOWN_SERVER_ERROR"},
		{"loads for ever", func(f *fakeCluster) { f.refuseAt(1, kerr.CoordinatorLoadInProgress, -1) }, "ListTransactions broker 1 COORDINATOR_LOAD_IN_PROGRESS"},
		{"loads for a moment", func(f *fakeCluster) { f.refuseAt(1, kerr.CoordinatorLoadInProgress, 2) }, ""},
		{"closed an idle connection", func(f *fakeCluster) { f.failAt(1, kmsg.ListTransactions, io.EOF, 1) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster()
				f.begin("a", 1, 0, 0, "Ongoing")
				f.begin("b", 2, 0, 1, "Ongoing")
				f.begin("c", 3, 0, 2, "Ongoing")
				c.set(f)
				txns, gaps, err := ListTransactions(t.Context(), f, f.versions, TransactionQuery{States: OpenStates()})
				if err != nil {
					t.Fatal(err)
				}
				want, wantGaps := []string{"a", "b", "c"}, []string(nil)
				if c.want != "" {
					want, wantGaps = []string{"a", "c"}, []string{c.want}
				}
				if got := idsOf(txns); !slices.Equal(got, want) || !slices.Equal(gapsBy(gaps), wantGaps) {
					t.Errorf("got %v and gaps %q, want %v and %q", got, gapsBy(gaps), want, wantGaps)
				}
			})
		})
	}
}

// failAt has a broker fail a kind of request n times; -1 is always.
func (f *fakeCluster) failAt(node int32, key kmsg.Key, err error, n int) {
	f.intercept = func(at int32, req kmsg.Request) (kmsg.Response, error, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if at != node || req.Key() != int16(key) || n == 0 {
			return nil, nil, false
		}
		n--
		return nil, err, true
	}
}

// refuseAt has a broker answer ListTransactions with an error n times.
func (f *fakeCluster) refuseAt(node int32, code *kerr.Error, n int) {
	f.intercept = func(at int32, req kmsg.Request) (kmsg.Response, error, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if at != node || req.Key() != int16(kmsg.ListTransactions) || n == 0 {
			return nil, nil, false
		}
		n--
		resp := req.ResponseKind().(*kmsg.ListTransactionsResponse)
		resp.ErrorCode = code.Code
		return resp, nil, true
	}
}

// describeError has a broker answer DescribeTransactions of an ID with an error.
func describeError(node int32, id string, code *kerr.Error) func(int32, kmsg.Request) (kmsg.Response, error, bool) {
	return func(at int32, req kmsg.Request) (kmsg.Response, error, bool) {
		d, ok := req.(*kmsg.DescribeTransactionsRequest)
		if !ok || at != node || !slices.Contains(d.TransactionalIDs, id) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		for _, id := range d.TransactionalIDs {
			s := kmsg.NewDescribeTransactionsResponseTransactionState()
			s.TransactionalID, s.ErrorCode = id, code.Code
			resp.TransactionStates = append(resp.TransactionStates, s)
		}
		return resp, nil, true
	}
}

func TestDescribeTransactionsThatMove(t *testing.T) {
	t.Run("moved", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster()
			f.begin("a", 1, 5, 0, "Ongoing")
			move := once(func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				tx := f.txns["a"]
				tx.Coordinator = 2
				f.txns["a"] = tx
			})
			f.intercept = func(_ int32, req kmsg.Request) (kmsg.Response, error, bool) {
				if req.Key() == int16(kmsg.DescribeTransactions) {
					move()
				}
				return nil, nil, false
			}
			txns, gaps, err := ListTransactions(t.Context(), f, f.versions, TransactionQuery{Describe: true})
			if err != nil || len(gaps) > 0 || len(txns) != 1 || txns[0].ProducerEpoch != 5 || txns[0].Coordinator != 2 {
				t.Errorf("%+v, gaps %+v, %v", txns, gaps, err)
			}
		})
	})
	t.Run("nobody's for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster()
			f.begin("a", 1, 5, 0, "Ongoing")
			f.intercept = describeError(0, "a", kerr.NotCoordinator)
			start := time.Now()
			txns, gaps, err := ListTransactions(t.Context(), f, f.versions, TransactionQuery{Describe: true})
			if err != nil || len(txns) != 1 || txns[0].ProducerEpoch != -1 || txns[0].Partitions != nil {
				t.Errorf("%+v, %v, want it listed and not described", txns, err)
			}
			want := `broker 0 did not describe transaction "a": NOT_COORDINATOR, and after 3 look-ups FindCoordinator still names broker 0`
			if len(gaps) != 1 || gaps[0].Reason != want || *gaps[0].Broker != 0 || gaps[0].KafkaError != "NOT_COORDINATOR" {
				t.Errorf("gaps %+v, want %q", gaps, want)
			}
			if n := len(requestsOf[*kmsg.FindCoordinatorRequest](f)); n != 3 || time.Since(start) > 5*time.Second {
				t.Errorf("%d look-ups in %v", n, time.Since(start))
			}
		})
	})
	t.Run("went away with its broker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster()
			f.begin("a", 1, 5, 0, "Ongoing")
			f.failAt(0, kmsg.DescribeTransactions, &net.OpError{Op: "dial", Err: errRefused}, -1)
			txns, gaps, err := ListTransactions(t.Context(), f, f.versions, TransactionQuery{Describe: true})
			if err != nil || len(txns) != 1 || len(gaps) != 1 || !strings.Contains(gaps[0].Reason, "connection refused, and after 3 look-ups FindCoordinator still names broker 0") {
				t.Errorf("%+v, gaps %+v, %v", txns, gaps, err)
			}
		})
	})
}

func TestDescribeTransactionsFails(t *testing.T) {
	for _, c := range []struct {
		code  *kerr.Error
		rows  int
		gaps  []string
		acl   bool
		about string
	}{
		{kerr.TransactionalIDNotFound, 0, nil, false, ""},
		{kerr.TransactionalIDAuthorizationFailed, 2, []string{"DescribeTransactions broker 0 DESCRIBE on TRANSACTIONAL_ID * TRANSACTIONAL_ID_AUTHORIZATION_FAILED"}, true, `2 transactions, "a" among them`},
		{kerr.UnknownServerError, 2, []string{"DescribeTransactions broker 0 UNKNOWN_SERVER_ERROR"}, false, `2 transactions, "a" among them`},
	} {
		t.Run(c.code.Message, func(t *testing.T) {
			f := newFakeCluster()
			f.begin("a", 1, 5, 0, "Ongoing")
			f.begin("b", 2, 5, 0, "Ongoing")
			f.intercept = describeError(0, "a", c.code)
			txns, gaps, err := ListTransactions(t.Context(), f, f.versions, TransactionQuery{Describe: true})
			if err != nil || len(txns) != c.rows || !slices.Equal(gapsBy(gaps), c.gaps) {
				t.Fatalf("%+v, gaps %+v, %v", txns, gaps, err)
			}
			for _, g := range gaps {
				if !strings.Contains(g.Reason, c.about) || c.acl != strings.Contains(g.Advice, "--operation Describe --transactional-id '*'") {
					t.Errorf("gap %+v", g)
				}
			}
		})
	}
}

func TestDescribeTransactionsInBatches(t *testing.T) {
	f := newFakeCluster()
	for i := range 1201 {
		f.begin(fmt.Sprintf("id-%04d", i), int64(i), 0, 0, "Ongoing")
	}
	f.begin("other", 9999, 0, 1, "Ongoing")
	txns, gaps, err := ListTransactions(t.Context(), f, f.versions, TransactionQuery{Describe: true})
	if err != nil || len(gaps) > 0 || len(txns) != 1202 || !slices.IsSorted(idsOf(txns)) {
		t.Fatalf("%d rows, gaps %+v, %v", len(txns), gaps, err)
	}
	var sizes []int
	for _, req := range requestsOf[*kmsg.DescribeTransactionsRequest](f) {
		sizes = append(sizes, len(req.TransactionalIDs))
	}
	slices.Sort(sizes)
	if !slices.Equal(sizes, []int{1, 201, 500, 500}) {
		t.Errorf("described in batches of %v", sizes)
	}
}

func TestListTransactionsStops(t *testing.T) {
	f := newFakeCluster()
	ctx, cancel := contextWithCause(t)
	f.intercept = func(int32, kmsg.Request) (kmsg.Response, error, bool) {
		cancel(errStopped)
		return nil, nil, false
	}
	if _, _, err := ListTransactions(ctx, f, f.versions, TransactionQuery{Describe: true}); !errors.Is(err, errStopped) {
		t.Errorf("error %v, want the cause of ctx", err)
	}
}
