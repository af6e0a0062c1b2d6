package txn_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/txn"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Released Kafka stages no acknowledgements, but it has the transactions: epochs
// and states are its own there, and not those of the sandbox.
func TestEndsOnKafka(t *testing.T) {
	c := kafkatest.Shared(t, kafkatest.Config{Version: kafkatest.Kafka44, Props: map[string]string{
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
	}})
	for name, do := range map[string]func(k *kafka){
		"prepared, and committed by the token": func(k *kafka) {
			token := k.prepare(txn.DefaultTimeout)
			if err := k.resume(token, txn.OutcomeOpen).Commit(k.ctx); err != nil {
				k.t.Fatal(err)
			}
			err := k.resume(token, txn.OutcomeCommitted).Abort(k.ctx)
			if !isA[*txn.CommittedError](err) {
				k.t.Errorf("Abort after that: %v, want a *CommittedError", err)
			}
			k.wantVisible(2)
		},
		"prepared, and aborted by the token": func(k *kafka) {
			token := k.prepare(txn.DefaultTimeout)
			if err := k.resume(token, txn.OutcomeOpen).Abort(k.ctx); err != nil {
				k.t.Fatal(err)
			}
			if err := k.resume(token, txn.OutcomeAborted).Commit(k.ctx); !isA[*txn.AbortedError](err) {
				k.t.Errorf("Commit after that: %v, want an *AbortedError", err)
			}
			k.wantVisible(0)
		},
		"prepared, and timed out": func(k *kafka) {
			token := k.prepare(2 * time.Second)
			var res *txn.Resumed
			for res == nil || res.Outcome() == txn.OutcomeOpen {
				var err error
				if res, err = txn.Resume(k.ctx, k.cl, token); err != nil {
					k.t.Fatal(err)
				}
			}
			if res.Outcome() != txn.OutcomeAborted {
				k.t.Errorf("it is %s, want aborted", res.Outcome())
			}
			k.wantVisible(0)
		},
		"prepared, and fenced": func(k *kafka) {
			token := k.prepare(txn.DefaultTimeout)
			k.session(txn.DefaultTimeout)
			if _, err := txn.Resume(k.ctx, k.cl, token); !isA[*txn.FencedError](err) {
				k.t.Errorf("Resume: %v, want a *FencedError", err)
			}
			k.wantVisible(0)
		},
		"the answer to a commit is lost": func(k *kafka) {
			for range 2 {
				s := k.open(txn.DefaultTimeout)
				k.n.lose(once(cutAfter))
				if err := s.Commit(k.ctx, txn.Guard{}); err != nil {
					k.t.Fatal(err)
				}
			}
			k.wantVisible(4)
		},
		"the answers to a commit are lost": func(k *kafka) {
			s := k.open(txn.DefaultTimeout)
			k.n.lose(each(cutAfter))
			if err := s.Commit(k.ctx, txn.Guard{}); err != nil {
				k.t.Fatal(err)
			}
			k.n.lose(nil)
			k.wantVisible(2)
		},
		"the answer to an abort is lost": func(k *kafka) {
			s := k.open(txn.DefaultTimeout)
			k.n.lose(once(cutAfter))
			if err := s.Abort(k.ctx); err != nil {
				k.t.Fatal(err)
			}
			if err := s.Begin(k.ctx); err != nil { // and the session goes on
				k.t.Fatal(err)
			}
			k.produce(s)
			if err := s.Commit(k.ctx, txn.Guard{}); err != nil {
				k.t.Fatal(err)
			}
			k.wantVisible(2)
		},
		"a commit arrives after the abort": func(k *kafka) {
			s := k.open(txn.DefaultTimeout)
			ctx, cancel := context.WithCancel(k.ctx)
			defer cancel()
			k.n.lose(func(key int16) fate {
				if key != endTxnKey {
					return arrives
				}
				cancel() // nobody waits any longer for what is on its way now
				return held
			})
			if err := s.Commit(ctx, txn.Guard{}); !isA[*txn.OutcomeUnknownError](err) {
				k.t.Fatalf("Commit without an answer: %v, want an *OutcomeUnknownError", err)
			}
			k.n.lose(nil)
			if err := s.Abort(k.ctx); err != nil {
				k.t.Fatal(err)
			}
			late := k.n.release(k.t)
			if len(late) == 0 || slices.Contains(late, nil) {
				k.t.Errorf("the answers to the late commit are %v, want it refused", late)
			}
			k.wantVisible(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			topic := strings.NewReplacer("/", "-", ",", "").Replace(t.Name())
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			t.Cleanup(cancel)
			var dialer net.Dialer
			k := &kafka{t: t, c: c, ctx: ctx, topic: topic, n: &badNetwork{dial: dialer.DialContext, conns: make(map[*badConn]bool), seen: make(map[int16]int)}}
			if _, err := kadm.NewClient(c.Client(t)).CreateTopic(ctx, 1, 1, nil, topic); err != nil {
				t.Fatal(err)
			}
			var err error
			if k.cl, err = cluster.Connect(ctx, cluster.Config{BootstrapServers: c.Bootstrap(), Dialer: k.n.Dial}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(k.cl.Close)
			for { // a producer that asks too early asks again only after some seconds
				if _, err := k.cl.Topics(ctx, topic); err == nil {
					break
				} else if ctx.Err() != nil {
					t.Fatal(err)
				}
			}
			do(k)
		})
	}
}

// kafka is a real Kafka with a topic of the test's own, over a network that can
// be made to lose things.
type kafka struct {
	t     *testing.T
	c     *kafkatest.Cluster
	ctx   context.Context
	cl    *cluster.Client
	n     *badNetwork
	topic string
}

func (k *kafka) session(timeout time.Duration) *txn.Session {
	k.t.Helper()
	s, err := txn.NewSession(k.ctx, k.cl, txn.Config{TransactionalID: k.topic, Timeout: timeout, ProduceOnly: true})
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = s.Close(context.WithoutCancel(k.ctx)) })
	return s
}

func (k *kafka) produce(s *txn.Session) {
	k.t.Helper()
	for range 2 {
		if err := s.Produce(k.ctx, &kgo.Record{Topic: k.topic}); err != nil {
			k.t.Fatal(err)
		}
	}
}

// open returns a session whose transaction holds two records.
func (k *kafka) open(timeout time.Duration) *txn.Session {
	k.t.Helper()
	s := k.session(timeout)
	if err := s.Begin(k.ctx); err != nil {
		k.t.Fatal(err)
	}
	k.produce(s)
	return s
}

func (k *kafka) prepare(timeout time.Duration) txn.Token {
	k.t.Helper()
	s := k.open(timeout)
	token, err := s.Prepare(k.ctx)
	if err != nil {
		k.t.Fatal(err)
	}
	if err := s.Close(k.ctx); err != nil {
		k.t.Fatal(err)
	}
	return token
}

func (k *kafka) resume(token txn.Token, want txn.Outcome) *txn.Resumed {
	k.t.Helper()
	res, err := txn.Resume(k.ctx, k.cl, token)
	if err != nil || res.Outcome() != want {
		k.t.Fatalf("Resume(%+v) = %+v, %v; want it %s", token, res, err, want)
	}
	return res
}

// wantVisible fails unless n records can be read that are committed.
func (k *kafka) wantVisible(n int) {
	k.t.Helper()
	// A record of no transaction shows that all before it is decided.
	if err := k.c.Client(k.t).ProduceSync(k.ctx, &kgo.Record{Topic: k.topic, Value: []byte("end")}).FirstErr(); err != nil {
		k.t.Fatal(err)
	}
	cl := k.c.Client(k.t, kgo.ConsumeTopics(k.topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for got := 0; ; {
		fetches := cl.PollFetches(k.ctx)
		if err := fetches.Err(); err != nil {
			k.t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			if string(r.Value) != "end" {
				got++
				continue
			}
			if got != n {
				k.t.Errorf("%d records are visible, want %d", got, n)
			}
			return
		}
	}
}
