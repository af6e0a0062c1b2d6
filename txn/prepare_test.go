package txn_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// preparers prepare a transaction that holds four records of "in", and leave the
// process as it is then. They return what can end it in this process.
func preparers() map[string]func(r *rig) (txn.Token, ender) {
	session := func(produce int) func(r *rig) (txn.Token, ender) {
		return func(r *rig) (txn.Token, ender) {
			s := r.session(txn.Config{})
			if err := s.Begin(r.t.Context()); err != nil {
				r.t.Fatal(err)
			}
			for range produce {
				r.produce(s)
			}
			if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
				r.t.Fatal(err)
			}
			token, err := s.Prepare(r.t.Context())
			if err != nil {
				r.t.Fatal(err)
			}
			return token, ender{
				commit:  func(ctx context.Context) error { return s.Commit(ctx, txn.Guard{LockDeadline: time.Unix(1, 0)}) },
				abort:   s.Abort,
				close:   s.Close,
				visible: int64(produce),
			}
		}
	}
	return map[string]func(r *rig) (txn.Token, ender){
		"records and acknowledgements": session(2),
		"acknowledgements alone":       session(0),
		"acknowledger": func(r *rig) (txn.Token, ender) {
			a := r.acknowledger(txn.AcknowledgerConfig{})
			token, err := a.PrepareAcknowledgements(r.t.Context(), r.acks(r.acquire(4), wire.Accept))
			if err != nil {
				r.t.Fatal(err)
			}
			return token, ender{commit: a.CommitPrepared, abort: a.AbortAcknowledgements, close: a.Close}
		},
	}
}

func eachPreparer(t *testing.T, do func(r *rig, token txn.Token, e ender)) {
	t.Helper()
	for name, prepare := range preparers() {
		t.Run(name, func(t *testing.T) {
			eachDialect(t, func(t *testing.T, dialect string) {
				r := newRig(t, dialect, 4)
				token, e := prepare(r)
				do(r, token, e)
			})
		})
	}
}

func TestPreparedToken(t *testing.T) {
	eachPreparer(t, func(r *rig, token txn.Token, _ ender) {
		if token.TransactionalID != "id" || token.ClusterID != r.sb.ClusterID() || token.ProducerID < 0 || fmt.Sprint(token.GroupIDs) != "[g]" || token.Dialect == "" {
			r.t.Errorf("the token is %+v", token)
		}
		if left := token.Deadline.Sub(token.Created); left < 50*time.Second || left > txn.DefaultTimeout {
			r.t.Errorf("the token is good for %s, want almost the transaction timeout", left)
		}
	})
}

// A prepared transaction is committed whatever the guard says: what it was
// prepared for may have been done.
func TestCommitPreparedHere(t *testing.T) {
	eachPreparer(t, func(r *rig, _ txn.Token, e ender) {
		if err := e.commit(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		r.wantCommitted(e)
	})
}

func TestAbortPreparedHere(t *testing.T) {
	eachPreparer(t, func(r *rig, _ txn.Token, e ender) {
		if err := e.abort(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		r.wantAborted()
	})
}

// Close leaves a prepared transaction to whoever has its token, and to end it
// twice the same way does no harm.
func TestResume(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprintf("commit %v", commit), func(t *testing.T) {
			eachPreparer(t, func(r *rig, token txn.Token, e ender) {
				if err := e.close(r.t.Context()); err != nil {
					r.t.Fatal(err)
				}
				if n := r.pending(); n != 4 {
					r.t.Fatalf("%d records are pending after Close, want 4", n)
				}
				token, err := txn.ParseToken(token.String())
				if err != nil {
					r.t.Fatal(err)
				}
				res := r.resume(token, txn.OutcomeOpen)
				if res.State() != "Ongoing" || res.Deadline().IsZero() {
					r.t.Errorf("resumed in state %q with deadline %s", res.State(), res.Deadline())
				}
				end, other := res.Commit, res.Abort
				want := txn.OutcomeCommitted
				if !commit {
					end, other, want = other, end, txn.OutcomeAborted
				}
				for range 2 {
					if err := end(r.t.Context()); err != nil {
						r.t.Errorf("end: %v", err)
					}
				}
				again := r.resume(token, want)
				for _, opposite := range []func(context.Context) error{other, map[bool]func(context.Context) error{true: again.Abort, false: again.Commit}[commit]} {
					err := opposite(r.t.Context())
					_, isCommitted := errors.AsType[*txn.CommittedError](err)
					_, isAborted := errors.AsType[*txn.AbortedError](err)
					if isCommitted != commit || isAborted == commit {
						r.t.Errorf("the opposite end: %v", err)
					}
				}
				if commit {
					r.wantCommitted(e)
				} else {
					r.wantAborted()
				}
			})
		})
	}
}

func (r *rig) resume(token txn.Token, want txn.Outcome) *txn.Resumed {
	r.t.Helper()
	res, err := txn.Resume(r.t.Context(), r.connect(), token)
	if err != nil {
		r.t.Fatal(err)
	}
	if got := res.Outcome(); got != want || res.Token().String() != token.String() {
		r.t.Fatalf("%s is resumed as %s, want %s", res.Token(), got, want)
	}
	return res
}

// After a takeover the coordinator cannot tell how the transaction ended, and
// Resume says so; the takeover has aborted it.
func TestResumeAfterATakeover(t *testing.T) {
	eachPreparer(t, func(r *rig, token txn.Token, e ender) {
		before := r.resume(token, txn.OutcomeOpen)
		r.acknowledger(txn.AcknowledgerConfig{})
		for name, try := range map[string]func() error{
			"Resume":            func() error { _, err := txn.Resume(r.t.Context(), r.cl, token); return err },
			"Commit":            func() error { return before.Commit(r.t.Context()) },
			"Commit of its own": func() error { return e.commit(r.t.Context()) },
		} {
			f, ok := errors.AsType[*txn.FencedError](try())
			if !ok || f.TransactionalID != "id" || f.ProducerEpoch != token.ProducerEpoch || f.CurrentEpoch <= token.ProducerEpoch {
				r.t.Errorf("%s after a takeover: %+v, want a *FencedError", name, f)
			}
		}
		r.wantAborted()
	})
}

func TestResumeRefuses(t *testing.T) {
	r := newRig(t, "draft", 4)
	token, _ := preparers()["acknowledger"](r)
	for name, tt := range map[string]struct {
		change func(*txn.Token)
		want   func(error) bool
	}{
		"nothing":             {func(t *txn.Token) { *t = txn.Token{} }, isA[*txn.TokenError]},
		"another cluster":     {func(t *txn.Token) { t.ClusterID = "other" }, isA[*txn.TokenError]},
		"an unknown dialect":  {func(t *txn.Token) { t.Dialect = "none" }, isA[*txn.TokenError]},
		"an unknown ID":       {func(t *txn.Token) { t.TransactionalID = "none" }, isA[*txn.NotKnownError]},
		"an epoch to come":    {func(t *txn.Token) { t.ProducerEpoch += 5 }, isA[*txn.NotKnownError]},
		"another producer ID": {func(t *txn.Token) { t.ProducerID++ }, isA[*txn.FencedError]},
	} {
		t.Run(name, func(t *testing.T) {
			token := token
			tt.change(&token)
			if _, err := txn.Resume(t.Context(), r.cl, token); !tt.want(err) || txn.Classify(err) != txn.ClassFatal {
				t.Errorf("Resume(%+v) = %T %v", token, err, err)
			}
		})
	}
	if n := r.pending(); n != 4 {
		t.Errorf("%d records are pending after all that, want 4", n)
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// Without two-phase commit the transaction timeout ends what is prepared, and the
// token tells when, and afterwards that it did.
func TestPreparedTransactionTimesOut(t *testing.T) {
	for name, prepare := range preparers() {
		t.Run(name, func(t *testing.T) {
			eachBubble(t, 4, func(r *rig) {
				token, e := prepare(r)
				<-time.After(time.Until(token.Deadline) + 20*time.Second)
				res := r.resume(token, txn.OutcomeAborted)
				for name, end := range map[string]func(context.Context) error{"by the token": res.Commit, "here": e.commit} {
					if err := end(r.t.Context()); !isA[*txn.AbortedError](err) || txn.IsFatal(err) {
						r.t.Errorf("Commit %s after the deadline: %v, want an *AbortedError", name, err)
					}
				}
				r.wantAborted()
			})
		})
	}
}

// eachBubble runs a test in each dialect, in the time of a bubble.
func eachBubble(t *testing.T, records int, do func(r *rig)) {
	t.Helper()
	onBadNetwork(t, records, func(r *rig, _ *badNetwork) { do(r) })
}

// A process prepares, and is killed. Another one decides.
func TestPrepareInOneProcessAndEndInAnother(t *testing.T) {
	eachDialect(t, func(t *testing.T, dialect string) {
		for _, produce := range []string{"0", "3"} {
			t.Run(produce+" produced", func(t *testing.T) {
				e := ender{visible: int64(produce[0] - '0')}
				t.Run("commit", func(t *testing.T) {
					r := newRig(t, dialect, 4)
					token := r.prepareElsewhere(produce)
					if err := r.resume(token, txn.OutcomeOpen).Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
					r.wantCommitted(e)
				})
				t.Run("abort", func(t *testing.T) {
					r := newRig(t, dialect, 4)
					token := r.prepareElsewhere(produce)
					if err := r.resume(token, txn.OutcomeOpen).Abort(t.Context()); err != nil {
						t.Fatal(err)
					}
					r.wantAborted()
				})
				t.Run("never, until it is fenced", func(t *testing.T) {
					r := newRig(t, dialect, 4, sandbox.WithBrokerConfigs(map[string]string{
						"group.share.record.lock.duration.ms": "1000", // after an abort the dead member may have the lock
					}))
					token := r.prepareElsewhere(produce)
					if n := r.pending(); n != 4 {
						t.Fatalf("%d records are pending, want 4", n)
					}
					s := r.session(txn.Config{})
					r.wantAborted()
					if _, err := txn.Resume(t.Context(), r.cl, token); !isA[*txn.FencedError](err) {
						t.Errorf("Resume: %v, want a *FencedError", err)
					}
					// All of it can be done again, once.
					r.takeMembersPlace()
					if err := s.Begin(t.Context()); err != nil {
						t.Fatal(err)
					}
					if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
						t.Fatal(err)
					}
					if err := s.Commit(t.Context(), txn.Guard{}); err != nil {
						t.Fatal(err)
					}
					r.wantCommitted(ender{})
				})
			})
		}
	})
}

// preparing is set in the environment of a child process: the bootstrap servers,
// and how many records it is to produce.
const preparing = "KSHARE_TEST_PREPARE"

// TestMain lets the test binary be that child.
func TestMain(m *testing.M) {
	if os.Getenv(preparing) != "" {
		if err := prepareAndWait(os.Getenv(preparing)); err != nil {
			panic(err)
		}
		return
	}
	kafkatest.Main(m)
}

// prepareAndWait prepares a transaction, writes its token to file descriptor 3,
// and goes on as a process does that does not know that it will be killed.
func prepareAndWait(job string) error {
	ctx := context.Background()
	servers, produce, _ := strings.Cut(job, "/")
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: strings.Split(servers, ",")})
	if err != nil {
		return err
	}
	c, err := share.NewConsumer(ctx, cl, childMember())
	if err != nil {
		return err
	}
	s, err := txn.NewSession(ctx, cl, txn.Config{TransactionalID: "id"})
	if err != nil {
		return err
	}
	if err := s.Begin(ctx); err != nil {
		return err
	}
	for range produce[0] - '0' {
		if err := s.Produce(ctx, out()); err != nil {
			return err
		}
	}
	for n := 0; n < 4; {
		b, err := c.Poll(ctx, 4)
		if err != nil {
			return err
		}
		if err := s.SendShareAcknowledgements(ctx, txn.ShareAcknowledgements{
			Acknowledgements: share.FromRecords(b, nil), Group: c.GroupMetadata(), Leaders: b.Leaders(),
		}); err != nil {
			return err
		}
		n += b.Len()
	}
	token, err := s.Prepare(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.NewFile(3, "token"), token); err != nil {
		return err
	}
	select {}
}

// prepareElsewhere returns the token of a process that is dead.
func (r *rig) prepareElsewhere(produce string) txn.Token {
	r.t.Helper()
	if err := r.c.Close(r.t.Context()); err != nil { // so that the child gets all
		r.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	from, to, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	defer from.Close()
	child := exec.CommandContext(r.t.Context(), self)
	child.Env = append(child.Environ(), preparing+"="+strings.Join(r.sb.Addrs(), ",")+"/"+produce)
	child.ExtraFiles = []*os.File{to}
	var stderr strings.Builder
	child.Stderr = &stderr
	if err := child.Start(); err != nil {
		r.t.Fatal(err)
	}
	to.Close()
	line, err := bufio.NewReader(from).ReadString('\n')
	if kerr := child.Process.Kill(); err == nil && kerr != nil {
		r.t.Fatal(kerr)
	}
	_ = child.Wait() // it was killed
	if err != nil {
		r.t.Fatalf("the child ended: %v\n%s", err, stderr.String())
	}
	token, err := txn.ParseToken(line)
	if err != nil {
		r.t.Fatal(err)
	}
	return token
}

// takeMembersPlace makes the member of the rig the one that the child was.
func (r *rig) takeMembersPlace() {
	r.t.Helper()
	var err error
	if r.c, err = share.NewConsumer(r.t.Context(), r.connect(), childMember()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = r.c.Close(context.WithoutCancel(r.t.Context())) })
}

func childMember() share.Config {
	return share.Config{GroupID: "g", Topics: []string{"in"}, MemberID: share.NamedMemberID("child"), MaxWait: 50 * time.Millisecond}
}

// A broker without InitProducerId v6 would take a two-phase commit for an
// ordinary one, so it is never asked.
func TestTwoPhaseCommitIsNotOffered(t *testing.T) {
	onBadNetwork(t, 0, func(r *rig, n *badNetwork) {
		before := n.count(int16(kmsg.InitProducerID))
		_, err := txn.NewAcknowledger(r.t.Context(), r.cl, txn.AcknowledgerConfig{TransactionalID: "id", TwoPhaseCommit: true})
		u, ok := errors.AsType[*cluster.UnsupportedError](err)
		if !ok || !strings.Contains(u.What, "KIP-939") || u.Hint() == "" || txn.Classify(err) != txn.ClassFatal {
			r.t.Errorf("two-phase commit without InitProducerId v6: %v, want an *UnsupportedError", err)
		}
		if sent := n.count(int16(kmsg.InitProducerID)) - before; sent != 0 {
			r.t.Errorf("%d requests were sent", sent)
		}
	})
}

// With InitProducerId v6 the transaction does not time out: its token has no
// deadline, and is as good after a day as after a second.
func TestTwoPhaseCommit(t *testing.T) {
	for _, d := range wire.Dialects() {
		for name, code := range map[string]int16{
			"allowed": 0, "switched off": kerr.InvalidTxnState.Code,
			"not authorised": kerr.TransactionalIDAuthorizationFailed.Code, // to Kafka 4.4 the same as switched off
		} {
			t.Run(d.Name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var network kfake.VirtualNetwork
					p := &twoPhaseProxy{code: code}
					r := newRigOn(t, func(ctx context.Context, n, address string) (net.Conn, error) {
						conn, err := network.DialContext(ctx, n, address)
						return &twoPhaseConn{Conn: conn, p: p}, err
					}, d.Name, 4, sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092),
						sandbox.WithBrokerConfigs(map[string]string{"transaction.max.timeout.ms": fmt.Sprint(math.MaxInt32)}))
					cfg := txn.AcknowledgerConfig{TransactionalID: "id", TwoPhaseCommit: true}
					if code != 0 {
						_, err := txn.NewAcknowledger(t.Context(), r.cl, cfg)
						h, ok := errors.AsType[interface {
							error
							Hint() string
						}](err)
						if !ok || !strings.Contains(h.Hint(), "transaction.two.phase.commit.enable=true") || !txn.IsFatal(err) {
							t.Errorf("a broker that refuses: %T %v, want a hint at its config", err, err)
						}
						if want := code == kerr.InvalidTxnState.Code; isA[*cluster.UnsupportedError](err) != want || isA[*cluster.AuthError](err) == want {
							t.Errorf("a broker that refuses: %T %v", err, err)
						}
						return
					}
					a := r.acknowledger(cfg)
					token, err := a.PrepareAcknowledgements(t.Context(), r.acks(r.acquire(4), wire.Accept))
					if err != nil {
						t.Fatal(err)
					}
					if !token.Deadline.IsZero() || p.enabled != 1 {
						t.Errorf("the token has the deadline %s after %d requests for two-phase commit, want none and 1", token.Deadline, p.enabled)
					}
					if err := r.c.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
					<-time.After(24 * time.Hour)
					res := r.resume(token, txn.OutcomeOpen)
					if !res.Deadline().IsZero() {
						t.Errorf("the transaction has the deadline %s", res.Deadline())
					}
					if err := res.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
					r.wantCommitted(ender{})
				})
			})
		}
	}
}
