package txn_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fate is what a network does to a request.
type fate int

const (
	arrives   fate = iota
	cutBefore      // the connection breaks, and the broker gets nothing
	cutAfter       // the broker handles it, and the connection breaks before its answer
	held           // nothing happens: it may arrive later, see release
)

// badNetwork loses requests to order.
type badNetwork struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex
	fate  func(key int16) fate
	down  bool // nothing can be dialled, and what is open breaks
	conns map[*badConn]bool
	held  []heldRequest
	seen  map[int16]int // requests, by key
}

type heldRequest struct {
	address string
	frame   []byte
}

func (n *badNetwork) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	down := n.down
	n.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("the network is down")}
	}
	conn, err := n.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &badConn{Conn: conn, n: n, address: address}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = true
	return c, nil
}

// lose sets what happens to requests from now on; nil lets them pass.
func (n *badNetwork) lose(f func(key int16) fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fate = f
}

// loseFrom loses the first EndTxn, and from then on nobody answers.
func (n *badNetwork) loseFrom(f fate) {
	n.lose(func(key int16) fate {
		if key != endTxnKey {
			return arrives
		}
		n.fate = func(int16) fate { return cutBefore } // mu is held
		return f
	})
}

func (n *badNetwork) setDown(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down = down; down {
		for c := range n.conns {
			c.Conn.Close()
			delete(n.conns, c)
		}
	}
}

func (n *badNetwork) count(key int16) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen[key]
}

// release sends what was held, over connections of its own, and returns the
// error codes at the place where EndTxn has it.
func (n *badNetwork) release(t *testing.T) []error {
	t.Helper()
	n.mu.Lock()
	requests := n.held
	n.held = nil
	n.mu.Unlock()
	var out []error
	for _, r := range requests {
		conn, err := n.dial(t.Context(), "tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(r.frame); err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 4)
		if _, err := io.ReadFull(conn, head); err != nil {
			t.Fatal(err)
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(conn, body); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		out = append(out, kerr.ErrorForCode(int16(binary.BigEndian.Uint16(body[9:])))) // correlation, tags, throttle
	}
	return out
}

type badConn struct {
	net.Conn
	n       *badNetwork
	address string

	mu  sync.Mutex
	cut bool // at the next byte that the broker sends
}

func (c *badConn) Write(b []byte) (int, error) {
	f := arrives
	if len(b) > 6 {
		key := int16(binary.BigEndian.Uint16(b[4:]))
		c.n.mu.Lock()
		c.n.seen[key]++
		if c.n.fate != nil {
			f = c.n.fate(key)
		}
		if f == held {
			c.n.held = append(c.n.held, heldRequest{c.address, append([]byte{}, b...)})
		}
		c.n.mu.Unlock()
	}
	switch f {
	case cutBefore:
		c.Conn.Close()
		return 0, &net.OpError{Op: "write", Err: io.ErrClosedPipe}
	case cutAfter:
		c.mu.Lock()
		c.cut = true
		c.mu.Unlock()
	case held:
		return len(b), nil
	case arrives:
	}
	return c.Conn.Write(b)
}

func (c *badConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut && n > 0 {
		c.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}

const endTxnKey = int16(kmsg.EndTxn)

// once loses the first EndTxn alone.
func once(f fate) func(int16) fate {
	done := false
	return func(key int16) fate {
		if key != endTxnKey || done {
			return arrives
		}
		done = true
		return f
	}
}

// each loses every EndTxn.
func each(f fate) func(int16) fate {
	return func(key int16) fate {
		if key != endTxnKey {
			return arrives
		}
		return f
	}
}

// onBadNetwork runs a test in each dialect, in the time of a bubble.
func onBadNetwork(t *testing.T, records int, do func(r *rig, n *badNetwork)) {
	t.Helper()
	for _, d := range wire.Dialects() {
		t.Run(d.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var network kfake.VirtualNetwork
				n := &badNetwork{dial: network.DialContext, conns: make(map[*badConn]bool), seen: make(map[int16]int)}
				r := newRigOn(t, n.Dial, d.Name, records, sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092))
				do(r, n)
				n.lose(nil)
				n.setDown(false)
			})
		})
	}
}

// ender is what a transaction is ended with: a session that has produced, one
// that has not, an acknowledger.
type ender struct {
	commit, abort, close func(ctx context.Context) error
	visible              int64 // records of "out" once it is committed
}

// enders opens a transaction that holds all of held, in each way.
func enders() map[string]func(r *rig) ender {
	session := func(produce int) func(r *rig) ender {
		return func(r *rig) ender {
			s := r.session(txn.Config{Timeout: 10 * time.Minute})
			if err := s.Begin(r.t.Context()); err != nil {
				r.t.Fatal(err)
			}
			for range produce {
				r.produce(s)
			}
			if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
				r.t.Fatal(err)
			}
			return ender{
				commit:  func(ctx context.Context) error { return s.Commit(ctx, txn.Guard{}) },
				abort:   s.Abort,
				visible: int64(produce),
			}
		}
	}
	return map[string]func(r *rig) ender{
		"records and acknowledgements": session(2),
		"acknowledgements alone":       session(0),
		"acknowledger": func(r *rig) ender {
			a := r.acknowledger(txn.AcknowledgerConfig{Timeout: 10 * time.Minute})
			if _, err := a.PrepareAcknowledgements(r.t.Context(), r.acks(r.acquire(4), wire.Accept)); err != nil {
				r.t.Fatal(err)
			}
			return ender{commit: a.CommitPrepared, abort: a.AbortAcknowledgements}
		},
	}
}

// wantCommitted fails unless the transaction of e took effect, all of it.
func (r *rig) wantCommitted(e ender) {
	r.t.Helper()
	pending, accepted := r.accepted()
	if visible := r.visible(); pending != 0 || accepted != 4 || visible != e.visible {
		r.t.Errorf("%d records pending, %d acknowledged, %d visible; want 0, 4 and %d", pending, accepted, visible, e.visible)
	}
}

// wantAborted fails unless nothing of the transaction took effect.
func (r *rig) wantAborted() {
	r.t.Helper()
	pending, accepted := r.accepted()
	if visible := r.visible(); pending != 0 || accepted != 0 || visible != 0 {
		r.t.Errorf("%d records pending, %d acknowledged, %d visible; want none", pending, accepted, visible)
	}
}

// A transaction that could not be aborted is so in the end, and not left to its
// timeout: whoever reads committed records would wait for it.
func TestCloseAbortsWhatAbortCouldNot(t *testing.T) {
	onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
		ctx := r.t.Context()
		s := r.session(txn.Config{Timeout: 10 * time.Minute})
		if err := s.Begin(ctx); err != nil {
			r.t.Fatal(err)
		}
		r.produce(s)
		if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
			r.t.Fatal(err)
		}
		n.lose(each(cutBefore))
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := s.Abort(short); err == nil {
			r.t.Fatal("Abort: no error, and no EndTxn has arrived")
		}
		n.lose(nil)
		if err := s.Close(ctx); err != nil {
			r.t.Errorf("Close: %v", err)
		}
		r.wantAborted()
	})
}

// lateHook takes its time before the producer tells what became of a record.
type lateHook time.Duration

func (h lateHook) OnProduceRecordUnbuffered(*kgo.Record, error) { <-time.After(time.Duration(h)) }

// A record that the producer does not even take into its buffer is one that was not
// delivered, also when nobody has been told of that yet.
func TestCommitAwaitsRefusedRecords(t *testing.T) {
	onBadNetwork(t, 4, func(r *rig, _ *badNetwork) {
		ctx := r.t.Context()
		s := r.session(txn.Config{Timeout: 10 * time.Minute, ProducerOpts: []kgo.Opt{
			kgo.MaxBufferedBytes(100), kgo.WithHooks(lateHook(time.Minute)),
		}})
		err := s.Begin(ctx)
		if err == nil {
			err = s.Produce(ctx, &kgo.Record{Topic: "out", Value: make([]byte, 1000)})
		}
		if err == nil {
			err = r.stage(s, r.acquire(4), wire.Accept)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if err := s.Commit(ctx, txn.Guard{}); !errors.Is(err, kerr.MessageTooLarge) {
			r.t.Errorf("Commit: %v, want %v", err, kerr.MessageTooLarge)
		}
		if err := s.Abort(ctx); err != nil {
			r.t.Error(err)
		}
		r.wantAborted()
	})
}

// A producer that finds nothing to commit says that it has. The acknowledgements are
// not committed then, and not with the next transaction either.
func TestCommitThatTheProducerDoesNotSend(t *testing.T) {
	onBadNetwork(t, 4, func(r *rig, _ *badNetwork) {
		ctx := r.t.Context()
		s := r.session(txn.Config{})
		err := s.Begin(ctx)
		if err == nil {
			err = r.stage(s, r.acquire(4), wire.Accept)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		s.CountDelivered()
		if err := s.Commit(ctx, txn.Guard{}); err == nil {
			r.t.Error("Commit: nil, and nothing was sent")
		}
		if err := s.Abort(ctx); err != nil {
			r.t.Error(err)
		}
		r.wantAborted()
	})
}

// Whether the connection breaks before or after the broker has handled the end of
// a transaction, what is reported is what has happened.
func TestLostEndTxn(t *testing.T) {
	for name, open := range enders() {
		for fateName, lose := range map[string]func() func(int16) fate{
			"cut before":               func() func(int16) fate { return once(cutBefore) },
			"cut after":                func() func(int16) fate { return once(cutAfter) },
			"cut after, and each time": func() func(int16) fate { return each(cutAfter) },
		} {
			t.Run(name+"/"+fateName+"/commit", func(t *testing.T) {
				onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
					e := open(r)
					n.lose(lose())
					if err := e.commit(r.t.Context()); err != nil {
						r.t.Errorf("Commit: %v", err)
					}
					r.wantCommitted(e)
				})
			})
			t.Run(name+"/"+fateName+"/abort", func(t *testing.T) {
				onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
					e := open(r)
					n.lose(lose())
					if err := e.abort(r.t.Context()); err != nil {
						r.t.Errorf("Abort: %v", err)
					}
					r.wantAborted()
				})
			})
		}
	}
}

// When nobody can be asked, the outcome is unknown, with what it takes to find
// out later: by the same session, or by its token.
func TestUnknownOutcome(t *testing.T) {
	for name, open := range enders() {
		for _, f := range []fate{cutBefore, cutAfter} {
			for _, by := range []string{"commit again", "abort", "resume"} {
				t.Run(fmt.Sprintf("%s/%d/%s", name, f, by), func(t *testing.T) {
					onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
						e := open(r)
						n.loseFrom(f)
						ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
						defer cancel()
						err := e.commit(ctx)
						u, ok := errors.AsType[*txn.OutcomeUnknownError](err)
						if !ok || txn.Classify(err) != txn.ClassOutcomeUnknown || u.Records != 4 || u.Produced != e.visible || len(u.Staged) == 0 {
							r.t.Fatalf("Commit without an answer: %v (%+v), want an *OutcomeUnknownError with 4 records", err, u)
						}
						n.lose(nil)
						committed := f == cutAfter
						switch by {
						case "commit again":
							if err := e.commit(r.t.Context()); err != nil {
								r.t.Errorf("Commit again: %v", err)
							}
							committed = true
						case "abort":
							err := e.abort(r.t.Context())
							if _, late := errors.AsType[*txn.CommittedError](err); late != committed || !late && err != nil {
								r.t.Errorf("Abort after that: %v, want a *CommittedError %v", err, committed)
							}
						case "resume":
							committed = r.resumeUnknown(u, committed)
						}
						if committed {
							r.wantCommitted(e)
						} else {
							r.wantAborted()
						}
					})
				})
			}
		}
	}
}

// resumeUnknown ends a transaction whose outcome was unknown by its token, in the
// other way if that is still possible.
func (r *rig) resumeUnknown(u *txn.OutcomeUnknownError, committed bool) bool {
	r.t.Helper()
	res, err := txn.Resume(r.t.Context(), r.cl, u.Token())
	if err != nil {
		r.t.Fatal(err)
	}
	want := txn.OutcomeOpen
	if committed {
		want = txn.OutcomeCommitted
	}
	if got := res.Outcome(); got != want {
		r.t.Errorf("resumed as %s, want %s", got, want)
	}
	err = res.Abort(r.t.Context())
	if _, late := errors.AsType[*txn.CommittedError](err); late != committed || !late && err != nil {
		r.t.Errorf("Abort by the token: %v, want a *CommittedError %v", err, committed)
	}
	return committed
}

// A commit that was given up on, and arrives after the abort, changes nothing.
func TestCommitThatComesTooLate(t *testing.T) {
	for name, open := range enders() {
		t.Run(name, func(t *testing.T) {
			onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
				e := open(r)
				n.lose(each(held))
				ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
				defer cancel()
				err := e.commit(ctx)
				if _, ok := errors.AsType[*txn.OutcomeUnknownError](err); !ok {
					r.t.Fatalf("Commit without an answer: %v, want an *OutcomeUnknownError", err)
				}
				n.lose(nil)
				if err := e.abort(r.t.Context()); err != nil {
					r.t.Fatalf("Abort: %v", err)
				}
				late := n.release(r.t)
				if len(late) == 0 || slices.Contains(late, nil) {
					r.t.Errorf("the answers to the late commit are %v, want it refused", late)
				}
				r.wantAborted()
			})
		})
	}
}

// What was told to be aborted is not committed later, though nobody has confirmed
// the abort.
func TestUnconfirmedAbortIsNotCommitted(t *testing.T) {
	for _, f := range []fate{cutBefore, cutAfter} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
				a := r.acknowledger(txn.AcknowledgerConfig{})
				if _, err := a.PrepareAcknowledgements(r.t.Context(), r.acks(r.acquire(4), wire.Accept)); err != nil {
					r.t.Fatal(err)
				}
				n.loseFrom(f)
				ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
				defer cancel()
				if err := a.AbortAcknowledgements(ctx); err == nil || txn.IsFatal(err) {
					r.t.Errorf("AbortAcknowledgements without an answer: %v", err)
				}
				n.lose(nil)
				if err := a.CommitPrepared(r.t.Context()); !isA[*txn.StateError](err) {
					r.t.Errorf("CommitPrepared after that: %v, want a *StateError", err)
				}
				if err := a.AbortAcknowledgements(r.t.Context()); err != nil {
					r.t.Errorf("AbortAcknowledgements again: %v", err)
				}
				r.wantAborted()
			})
		})
	}
}

// What a commit is answered with that comes after the end of its transaction
// depends on the broker's release. What is reported does not: it is what the
// coordinator describes.
func TestRefusedCommit(t *testing.T) {
	type commit struct {
		*rig
		n    *badNetwork
		code *kerr.Error
		late *atomic.Bool // the session's clock stands still until then
	}
	tests := map[string]struct {
		before func(c commit)
		check  func(c commit, s *txn.Session, err error)
	}{
		"timed out": {
			before: func(c commit) {
				<-time.After(3 * time.Minute)
				c.refuseEnds(c.code)
				c.n.lose(func(key int16) fate {
					if key == endTxnKey {
						c.late.Store(true) // it was in time when it was sent
					}
					return arrives
				})
			},
			check: func(c commit, s *txn.Session, err error) {
				if a, ok := errors.AsType[*txn.AbortedError](err); !ok || !errors.Is(a.Err, c.code) {
					c.t.Errorf("Commit after the timeout: %v, want an *AbortedError because of %s", err, c.code.Message)
				}
				c.wantAborted()
				if err := s.Begin(c.t.Context()); err != nil {
					c.t.Fatalf("Begin after that: %v", err)
				}
				c.c.Reset() // what was fetched since may have lost its locks by now
				if err := c.stage(s, c.acquire(4), wire.Accept); err != nil {
					c.t.Fatal(err)
				}
				c.produce(s)
				if err := s.Commit(c.t.Context(), txn.Guard{}); err != nil {
					c.t.Errorf("Commit of the next transaction: %v", err)
				}
				c.wantCommitted(ender{visible: 1})
			},
		},
		"fenced by another": {
			before: func(c commit) {
				c.session(txn.Config{})
				c.refuseEnds(c.code)
			},
			check: func(c commit, _ *txn.Session, err error) {
				f, ok := errors.AsType[*txn.FencedError](err)
				if !ok || f.TransactionalID != "id" || f.CurrentEpoch <= f.ProducerEpoch || !txn.IsFatal(err) {
					c.t.Errorf("Commit after a takeover: %v, want a *FencedError with both epochs", err)
				}
				c.wantAborted()
			},
		},
		"committed": {
			before: func(c commit) {
				ends := 0
				c.n.lose(func(key int16) fate {
					if key != endTxnKey {
						return arrives
					}
					if ends++; ends == 1 {
						return cutAfter
					}
					if ends == 2 {
						c.refuseEnds(c.code)
					}
					return arrives
				})
			},
			check: func(c commit, _ *txn.Session, err error) {
				if err != nil {
					c.t.Errorf("Commit whose repetition is refused: %v", err)
				}
				c.wantCommitted(ender{visible: 1})
			},
		},
	}
	for name, tt := range tests {
		for _, code := range []*kerr.Error{kerr.InvalidTxnState, kerr.ProducerFenced} {
			t.Run(name+"/"+code.Message, func(t *testing.T) {
				onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
					c := commit{r, n, code, new(atomic.Bool)}
					start := time.Now()
					s := r.session(txn.Config{Timeout: 2 * time.Minute, Now: func() time.Time {
						if c.late.Load() {
							return time.Now()
						}
						return start
					}})
					if err := s.Begin(r.t.Context()); err != nil {
						r.t.Fatal(err)
					}
					r.produce(s)
					if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
						r.t.Fatal(err)
					}
					tt.before(c)
					err := s.Commit(r.t.Context(), txn.Guard{})
					n.lose(nil)
					r.sb.ClearFaults()
					tt.check(c, s, err)
				})
			})
		}
	}
}

// refuseEnds answers each EndTxn with an error, from now on.
func (r *rig) refuseEnds(code *kerr.Error) {
	key := endTxnKey
	if _, err := r.sb.InjectFault(r.t.Context(), sandbox.Fault{Kind: sandbox.FaultAnswerError, APIKey: &key, Error: code.Message}); err != nil {
		r.t.Error(err)
	}
}

// A session whose abort nobody has confirmed goes on once brokers answer again,
// whether the abort has arrived or not: an epoch that its own abort has raised is
// not that of another producer.
func TestSessionAfterAnUnconfirmedAbort(t *testing.T) {
	for _, f := range []fate{cutBefore, cutAfter} {
		for name, produce := range map[string]int{"records and acknowledgements": 2, "acknowledgements alone": 0} {
			t.Run(fmt.Sprintf("%d/%s", f, name), func(t *testing.T) {
				onBadNetwork(t, 8, func(r *rig, n *badNetwork) {
					s := r.session(txn.Config{Timeout: 10 * time.Minute})
					if err := s.Begin(r.t.Context()); err != nil {
						r.t.Fatal(err)
					}
					for range produce {
						r.produce(s)
					}
					if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
						r.t.Fatal(err)
					}
					n.loseFrom(f)
					ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
					defer cancel()
					if err := s.Abort(ctx); err == nil || txn.IsFatal(err) || txn.Classify(err) == txn.ClassOutcomeUnknown {
						r.t.Errorf("Abort without an answer: %v, want an error that another transaction cures", err)
					}
					n.lose(nil)
					if err := s.CheckOwner(r.t.Context()); err != nil {
						r.t.Errorf("CheckOwner after that: %v", err)
					}
					if err := s.Begin(r.t.Context()); err != nil {
						r.t.Fatalf("Begin after that: %v", err)
					}
					if err := r.stage(s, r.acquire(4), wire.Accept); err != nil {
						r.t.Fatal(err)
					}
					if err := s.Commit(r.t.Context(), txn.Guard{}); err != nil {
						r.t.Fatal(err)
					}
					r.wantCommitted(ender{visible: 0})
				})
			})
		}
	}
}

// A commit whose answer is lost, and after which another producer has come, may
// have been either: the coordinator cannot tell any more.
func TestUnknownAfterATakeover(t *testing.T) {
	for name, open := range enders() {
		t.Run(name, func(t *testing.T) {
			onBadNetwork(t, 4, func(r *rig, n *badNetwork) {
				e := open(r)
				other, err := cluster.Connect(r.t.Context(), cluster.Config{BootstrapServers: r.sb.Addrs(), Dialer: n.dial})
				if err != nil {
					r.t.Fatal(err)
				}
				defer other.Close()
				lost := once(cutAfter)
				n.lose(func(key int16) fate {
					out := lost(key)
					if out == cutAfter {
						n.fate = func(int16) fate { return cutBefore }
						go func() {
							_, _ = txn.NewAcknowledger(r.t.Context(), other, txn.AcknowledgerConfig{TransactionalID: "id"})
							n.lose(nil)
						}()
					}
					return out
				})
				err = e.commit(r.t.Context())
				u, ok := errors.AsType[*txn.OutcomeUnknownError](err)
				if _, fenced := errors.AsType[*txn.FencedError](err); !ok || !fenced {
					r.t.Fatalf("Commit: %v, want an *OutcomeUnknownError because of a *FencedError", err)
				}
				if _, err := txn.Resume(r.t.Context(), r.cl, u.Token()); txn.Classify(err) != txn.ClassFatal {
					r.t.Errorf("Resume after that: %v, want a *FencedError", err)
				}
			})
		})
	}
}
