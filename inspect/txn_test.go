package inspect

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
)

// txnCluster has transactions of all kinds.
func txnCluster() *fakeCluster {
	f := newFakeCluster()
	f.begin("acks", 1, 3, 0, "Ongoing", 2)
	f.begin("commit", 2, 0, 1, "PrepareCommit", 0, 1)
	f.begin("plain", 3, 0, 2, "Ongoing")
	f.begin("done", 4, 5, 0, "CompleteCommit")
	f.begin("empty", 5, 0, 1, "Empty")
	f.begin("two-phase", 6, 0, 2, "Ongoing", 1)
	t := f.txns["two-phase"]
	t.TimeoutMS = TwoPhaseTimeoutMS
	f.txns["two-phase"] = t
	t = f.txns["empty"]
	t.Started = time.UnixMilli(-1)
	f.txns["empty"] = t
	return f
}

func TestDescribeTransactionsLists(t *testing.T) {
	// id state age left acks, as far as they are known
	acks, commit, two := "acks Ongoing 1m0s 5s true", "commit PrepareCommit 1m0s ? true", "two-phase Ongoing 1m0s ? true"
	plain, done, empty := "plain Ongoing 1m0s 5s false", "done CompleteCommit ? ? false", "empty Empty ? ? false"
	for name, c := range map[string]struct {
		options TxnOptions
		change  func(*fakeCluster)
		want    []string
		others  int
		gaps    []string
		err     string
	}{
		"those that hold share acknowledgements": {want: []string{acks, commit, two}, others: 1},
		"all":                                    {options: TxnOptions{All: true}, want: []string{acks, commit, done, empty, plain, two}},
		"in a state":                             {options: TxnOptions{States: []string{"PrepareCommit"}}, want: []string{commit}},
		"in a state, all":                        {options: TxnOptions{All: true, States: []string{"Ongoing", "Empty"}}, want: []string{acks, empty, plain, two}},
		"a pattern":                              {options: TxnOptions{All: true, Pattern: "(do|em).*"}, want: []string{done, empty}},
		"a pattern that is whole":                {options: TxnOptions{All: true, Pattern: "do"}},
		"a pattern that is none":                 {options: TxnOptions{Pattern: "("}, err: "missing closing )"},
		"ended ones have no age":                 {options: TxnOptions{All: true, OlderThan: 30 * time.Second}, want: []string{acks, commit, plain, two}},
		"none is that old":                       {options: TxnOptions{All: true, OlderThan: 100000 * time.Hour}},
		"named":                                  {options: TxnOptions{TransactionalIDs: []string{"done", "acks"}}, want: []string{acks, done}},
		"named, and not there":                   {options: TxnOptions{TransactionalIDs: []string{"done", "x"}}, want: []string{done}, err: `no such transactional ID: "x"`},
		"named like a pattern":                   {options: TxnOptions{TransactionalIDs: []string{"a..s", "\xff"}}, err: `no such transactional ID: "a..s"; no such transactional ID: "\xff"`},
		"a coordinator is silent": {
			change: func(f *fakeCluster) { f.versions[2].Err = errRefused },
			want:   []string{acks, commit},
			gaps:   []string{"2 ListTransactions  broker 2 did not answer"},
		},
		"named, and a coordinator is silent": {
			options: TxnOptions{TransactionalIDs: []string{"two-phase"}},
			change:  func(f *fakeCluster) { f.versions[2].Err = errRefused },
			gaps:    []string{"2 ListTransactions  broker 2 did not answer"},
		},
		"transactional IDs are hidden": {
			change: func(f *fakeCluster) { f.denied[aclTransactionalIDs] = true },
			gaps:   []string{"- DescribeTransactions TRANSACTIONAL_ID_AUTHORIZATION_FAILED DESCRIBE on TRANSACTIONAL_ID *"},
		},
		"named ones are hidden": {
			options: TxnOptions{TransactionalIDs: []string{"acks"}},
			change:  func(f *fakeCluster) { f.denied[aclTransactionalIDs] = true },
			gaps:    []string{"- DescribeTransactions TRANSACTIONAL_ID_AUTHORIZATION_FAILED DESCRIBE on TRANSACTIONAL_ID acks"},
			err:     `describe transaction "acks": TRANSACTIONAL_ID_AUTHORIZATION_FAILED`,
		},
		"the state topic is hidden": { // so that any may hold share acknowledgements
			change: func(f *fakeCluster) { f.denied[aclDescribeState] = true },
			want:   []string{"acks Ongoing 1m0s 5s ?", "commit PrepareCommit 1m0s ? ?", "plain Ongoing 1m0s 5s ?", "two-phase Ongoing 1m0s ? ?"},
			gaps:   []string{"- Metadata TOPIC_AUTHORIZATION_FAILED DESCRIBE on TOPIC __share_group_state"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := txnCluster()
			if c.change != nil {
				c.change(f)
			}
			c.options.Now = func() time.Time { return stagedAt.Add(time.Minute) }
			r, err := DescribeTransactions(t.Context(), f, c.options)
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || c.err == "" && err != nil {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if r == nil {
				if c.want != nil {
					t.Errorf("no report, want %q", c.want)
				}
				return
			}
			var got []string
			for _, x := range r.Rows {
				age, left := "?", "?"
				if x.AgeMS != nil {
					age = (time.Duration(*x.AgeMS) * time.Millisecond).String()
				}
				if x.Deadline != nil {
					left = x.Deadline.Sub(r.Time).String()
				}
				acks := "?"
				if x.HoldsShareAcks != nil {
					acks = strconv.FormatBool(*x.HoldsShareAcks)
				}
				got = append(got, fmt.Sprintf("%s %s %s %s %s", x.TransactionalID, x.State, age, left, acks))
				if x.TwoPhase != (x.TransactionalID == "two-phase") || x.Started == nil != (x.State == "Empty") {
					t.Errorf("row %+v", x)
				}
			}
			if !slices.Equal(got, c.want) || r.Others != c.others {
				t.Errorf("rows %q and %d others, want %q and %d", got, r.Others, c.want, c.others)
			}
			wantGaps(t, r.Gaps, c.gaps)
		})
	}
}

// What is not there, and what may not be seen, are different errors.
func TestDescribeTransactionsErrors(t *testing.T) {
	f := txnCluster()
	_, err := DescribeTransactions(t.Context(), f, TxnOptions{TransactionalIDs: []string{"x"}})
	if _, ok := errors.AsType[*TransactionNotFoundError](err); !ok || !errors.Is(err, kerr.TransactionalIDNotFound) {
		t.Errorf("error %v, want a *TransactionNotFoundError", err)
	}
	f.denied[aclTransactionalIDs] = true
	_, err = DescribeTransactions(t.Context(), f, TxnOptions{TransactionalIDs: []string{"acks"}})
	if a, ok := errors.AsType[*cluster.AuthError](err); !ok || !strings.Contains(a.Hint(), "--transactional-id 'acks'") {
		t.Errorf("error %v, want an *AuthError that says what to grant", err)
	}
	ctx, cancel := contextWithCause(t)
	cancel(errStopped)
	if _, err = DescribeTransactions(ctx, f, TxnOptions{}); !errors.Is(err, errStopped) {
		t.Errorf("error %v, want the cause", err)
	}
}
