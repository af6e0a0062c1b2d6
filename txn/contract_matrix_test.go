package txn_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/sandbox"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/txn"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The conditions that KIP-1289 names errors for.
const (
	illegalState       = "illegal state"
	fenced             = "fenced"
	staleMemberEpoch   = "stale member epoch"
	unsupportedVersion = "unsupported version"
	groupAuthorization = "group authorization"
	staleProducerEpoch = "stale producer epoch"
)

// expectation is what a method returns under a condition.
type expectation struct {
	text  string
	holds func(error) bool // nil: the condition cannot be met, and text says why
}

func errorOf[E error](text string, causes ...*kerr.Error) expectation {
	return expectation{text, func(err error) bool {
		return isA[E](err) && (len(causes) == 0 || slices.ContainsFunc(causes, func(ke *kerr.Error) bool { return errors.Is(err, ke) }))
	}}
}

func errorLike(want error) expectation {
	return expectation{want.Error(), func(err error) bool { return errors.Is(err, want) }}
}

func never(why string) expectation { return expectation{text: why} }

var (
	succeeds    = expectation{"success", func(err error) bool { return err == nil }}
	isFenced    = errorOf[*txn.FencedError]("a *FencedError", kerr.ProducerFenced, kerr.InvalidProducerEpoch)
	isAborted   = errorOf[*txn.AbortedError]("an *AbortedError")
	isState     = errorOf[*txn.StateError]("a *StateError")
	isDenied    = errorOf[*cluster.AuthError]("an *AuthError of the group", kerr.GroupAuthorizationFailed)
	isStale     = errorOf[*txn.StageError]("a *StageError with STALE_MEMBER_EPOCH", kerr.StaleMemberEpoch)
	unsupported = expectation{"an *UnsupportedError or UNSUPPORTED_VERSION", func(err error) bool {
		return txn.IsFatal(err) && (isA[*cluster.UnsupportedError](err) || errors.Is(err, kerr.UnsupportedVersion))
	}}

	noState    = never("it is no method of something that has a state")
	noMember   = never("it knows no member")
	noProducer = never("it knows no producer")
	noGroup    = never("what may not be staged is not there to be ended")
	noLowering = never("brokers do not lower the level while records are staged")
	ownBegin   = never("each call begins a transaction of its own")
)

// scene is what a method is called in.
type scene struct {
	r     *rig
	s     *txn.Session
	a     *txn.Acknowledger
	acks  txn.ShareAcknowledgements
	token txn.Token
	res   *txn.Resumed
	batch *share.Batch
	acq   *share.Acquisition
}

func (e *scene) ctx() context.Context { return e.r.t.Context() }

func (e *scene) must(err error) {
	e.r.t.Helper()
	if err != nil {
		e.r.t.Fatal(err)
	}
}

func (e *scene) session() { e.s = e.r.session(txn.Config{}) }

func (e *scene) begun() {
	e.session()
	e.must(e.s.Begin(e.ctx()))
}

// acquired holds all records. The session has produced one, so that its
// transaction is known to the coordinator.
func (e *scene) acquired() {
	if e.s != nil {
		e.r.produce(e.s)
	}
	e.acks = e.r.acks(e.r.acquire(4), wire.Accept)
}

func (e *scene) open() {
	e.begun()
	e.acquired()
}

func (e *scene) staged() {
	e.open()
	e.must(e.s.SendShareAcknowledgements(e.ctx(), e.acks))
}

// leftOpen has a transaction that could not be aborted.
func (e *scene) leftOpen() {
	e.staged()
	ctx, cancel := context.WithCancel(e.ctx())
	cancel()
	if err := e.s.Abort(ctx); err == nil {
		e.r.t.Fatal("Abort succeeds without asking anybody")
	}
}

func (e *scene) acknowledger() {
	e.a = e.r.acknowledger(txn.AcknowledgerConfig{})
	e.acquired()
}

func (e *scene) prepared() {
	e.acknowledger()
	var err error
	e.token, err = e.a.PrepareAcknowledgements(e.ctx(), e.acks)
	e.must(err)
}

func (e *scene) resumed() {
	e.prepared()
	e.res = e.r.resume(e.token, txn.OutcomeOpen)
}

func (e *scene) held() { e.batch = e.r.acquire(1)[0] }

// config is of a member beside that of the rig, which leaves.
func (e *scene) config() share.AcquireConfig {
	return share.AcquireConfig{GroupID: "g", Ranges: []share.AskedRange{{Topic: "in", Partition: 0, Range: share.Range{FirstOffset: 0, LastOffset: 0}}}}
}

func (e *scene) alone() { e.must(e.r.c.Close(e.ctx())) }

func (e *scene) acquisition() {
	e.alone()
	var err error
	e.acq, err = share.AcquireRanges(e.ctx(), e.r.cl, e.config())
	e.must(err)
	e.r.t.Cleanup(func() { _ = e.acq.Close(context.WithoutCancel(e.r.t.Context())) })
}

func nothing(*scene) {}

// method is one that speaks to brokers: how the state is reached in which it may
// be called, the call, and what it returns if a condition is met in between.
type method struct {
	before func(e *scene)
	call   func(ctx context.Context, e *scene) error
	want   map[string]expectation
}

// conditions names all six, in the order of the constants.
func conditions(illegal, fence, member, version, group, epoch expectation) map[string]expectation {
	return map[string]expectation{
		illegalState: illegal, fenced: fence, staleMemberEpoch: member,
		unsupportedVersion: version, groupAuthorization: group, staleProducerEpoch: epoch,
	}
}

var contract = map[string]method{
	"txn.NewSession": {
		nothing, func(ctx context.Context, e *scene) error {
			s, err := txn.NewSession(ctx, e.r.cl, txn.Config{TransactionalID: "id"})
			if err == nil {
				err = s.Close(ctx)
			}
			return err
		}, conditions(noState, succeeds, noMember, unsupported, succeeds, never("it makes the epoch a new one")),
	},
	"txn.Session.Begin": {
		(*scene).session, func(ctx context.Context, e *scene) error { return e.s.Begin(ctx) },
		conditions(isState, succeeds, noMember, succeeds, succeeds, never("no transaction is open that could time out")),
	},
	"txn.Session.Produce": {
		(*scene).begun, func(ctx context.Context, e *scene) error { return e.s.Produce(ctx, out()) },
		// It fills a buffer: what the brokers say, Commit says.
		conditions(isState, succeeds, noMember, succeeds, succeeds, succeeds),
	},
	"txn.Session.SendShareAcknowledgements": {
		(*scene).open, func(ctx context.Context, e *scene) error { return e.s.SendShareAcknowledgements(ctx, e.acks) },
		conditions(isState, isFenced, isStale, unsupported, isDenied, isAborted),
	},
	"txn.Session.Commit": {
		(*scene).staged, func(ctx context.Context, e *scene) error { return e.s.Commit(ctx, txn.Guard{}) },
		// The session's own clock is the first to say that it is too late.
		conditions(isState, isFenced, succeeds, noLowering, noGroup, errorOf[*txn.GuardError]("a *GuardError")),
	},
	"txn.Session.Prepare": {
		(*scene).staged, func(ctx context.Context, e *scene) error {
			_, err := e.s.Prepare(ctx)
			return err
		}, conditions(isState, isFenced, succeeds, noLowering, noGroup, isAborted),
	},
	"txn.Session.Abort": {
		(*scene).staged, func(ctx context.Context, e *scene) error { return e.s.Abort(ctx) },
		conditions(succeeds, isFenced, succeeds, noLowering, noGroup, succeeds),
	},
	"txn.Session.Close": {
		(*scene).staged, func(ctx context.Context, e *scene) error { return e.s.Close(ctx) },
		conditions(succeeds, isFenced, succeeds, noLowering, noGroup, succeeds),
	},
	"txn.Session.Recover": {
		(*scene).leftOpen, func(ctx context.Context, e *scene) error {
			_, err := e.s.Recover(ctx)
			return err
		}, conditions(succeeds, isFenced, noMember, noLowering, noGroup, succeeds),
	},
	"txn.Session.CheckOwner": {
		(*scene).begun, func(ctx context.Context, e *scene) error { return e.s.CheckOwner(ctx) },
		conditions(succeeds, isFenced, noMember, succeeds, succeeds, succeeds),
	},
	"txn.NewAcknowledger": {
		nothing, func(ctx context.Context, e *scene) error {
			a, err := txn.NewAcknowledger(ctx, e.r.cl, txn.AcknowledgerConfig{TransactionalID: "id"})
			if err == nil {
				err = a.Close(ctx)
			}
			return err
		}, conditions(noState, succeeds, noMember, unsupported, succeeds, never("it makes the epoch a new one")),
	},
	"txn.Acknowledger.CommitAcknowledgements": {
		(*scene).acknowledger, func(ctx context.Context, e *scene) error { return e.a.CommitAcknowledgements(ctx, e.acks) },
		conditions(isState, isFenced, isStale, unsupported, isDenied, ownBegin),
	},
	"txn.Acknowledger.PrepareAcknowledgements": {
		(*scene).acknowledger, func(ctx context.Context, e *scene) error {
			_, err := e.a.PrepareAcknowledgements(ctx, e.acks)
			return err
		}, conditions(isState, isFenced, isStale, unsupported, isDenied, ownBegin),
	},
	"txn.Acknowledger.CommitPrepared": {
		(*scene).prepared, func(ctx context.Context, e *scene) error { return e.a.CommitPrepared(ctx) },
		conditions(isState, isFenced, succeeds, noLowering, noGroup, isAborted),
	},
	"txn.Acknowledger.AbortAcknowledgements": {
		(*scene).prepared, func(ctx context.Context, e *scene) error { return e.a.AbortAcknowledgements(ctx) },
		conditions(succeeds, isFenced, succeeds, noLowering, noGroup, succeeds),
	},
	"txn.Acknowledger.Close": {
		// What is prepared it leaves alone.
		(*scene).prepared, func(ctx context.Context, e *scene) error { return e.a.Close(ctx) },
		conditions(succeeds, succeeds, succeeds, noLowering, noGroup, succeeds),
	},
	"txn.Resume": {
		(*scene).prepared, func(ctx context.Context, e *scene) error {
			_, err := txn.Resume(ctx, e.r.cl, e.token)
			return err
		}, conditions(noState, isFenced, succeeds, noLowering, noGroup, succeeds),
	},
	"txn.Resumed.Commit": {
		(*scene).resumed, func(ctx context.Context, e *scene) error { return e.res.Commit(ctx) },
		conditions(isAborted, isFenced, succeeds, noLowering, noGroup, isAborted),
	},
	"txn.Resumed.Abort": {
		(*scene).resumed, func(ctx context.Context, e *scene) error { return e.res.Abort(ctx) },
		conditions(succeeds, isFenced, succeeds, noLowering, noGroup, succeeds),
	},

	"share.NewConsumer": {
		(*scene).alone, func(ctx context.Context, e *scene) error {
			c, err := share.NewConsumer(ctx, e.r.cl, share.Config{GroupID: "g", Topics: []string{"in"}})
			if err == nil {
				err = c.Close(ctx)
			}
			return err
		}, conditions(noState, noProducer, noMember, succeeds, isDenied, noProducer),
	},
	"share.Consumer.Poll": {
		nothing, func(ctx context.Context, e *scene) error {
			_, err := e.r.c.Poll(ctx, 1)
			return err
		}, conditions(errorLike(share.ErrClosed), noProducer, succeeds, succeeds, isDenied, noProducer),
	},
	"share.Consumer.Wait": {
		nothing, func(ctx context.Context, e *scene) error { return e.r.c.Wait(ctx) },
		conditions(errorLike(share.ErrClosed), noProducer, succeeds, succeeds, isDenied, noProducer),
	},
	"share.Consumer.GroupMetadata": {
		nothing, func(_ context.Context, e *scene) error {
			if m := e.r.c.GroupMetadata(); m.GroupID != "g" || m.MemberID == "" {
				return errors.New("it is not whole")
			}
			return nil
		}, conditions(succeeds, noProducer, succeeds, succeeds, succeeds, noProducer),
	},
	"share.Consumer.Acknowledge": {
		(*scene).held, func(ctx context.Context, e *scene) error {
			return e.r.c.Acknowledge(ctx, e.batch, e.batch.All(wire.Accept))
		},
		conditions(errorLike(share.ErrClosed), noProducer, noMember, succeeds, isDenied, noProducer),
	},
	"share.Consumer.Renew": {
		(*scene).held, func(ctx context.Context, e *scene) error { return e.r.c.Renew(ctx, e.batch) },
		conditions(errorLike(share.ErrClosed), noProducer, noMember, succeeds, isDenied, noProducer),
	},
	"share.Consumer.RenewWaiting": {
		func(e *scene) { e.must(e.r.c.Wait(e.ctx())) }, func(ctx context.Context, e *scene) error { return e.r.c.RenewWaiting(ctx) },
		conditions(errorLike(share.ErrClosed), noProducer, noMember, succeeds, isDenied, noProducer),
	},
	"share.Consumer.ConfirmMembership": {
		// What comes of it, Poll says.
		nothing, func(ctx context.Context, e *scene) error {
			e.r.c.ConfirmMembership(ctx)
			return nil
		}, conditions(succeeds, noProducer, succeeds, succeeds, succeeds, noProducer),
	},
	"share.Consumer.Close": {
		(*scene).held, func(ctx context.Context, e *scene) error { return e.r.c.Close(ctx) },
		conditions(succeeds, noProducer, errorLike(kerr.FencedMemberEpoch), succeeds, isDenied, noProducer),
	},
	"share.AcquireRanges": {
		(*scene).alone, func(ctx context.Context, e *scene) error {
			a, err := share.AcquireRanges(ctx, e.r.cl, e.config())
			if err == nil {
				err = a.Close(ctx)
			}
			return err
		}, conditions(noState, noProducer, noMember, succeeds, isDenied, noProducer),
	},
	"share.Acquisition.Acknowledge": {
		(*scene).acquisition, func(ctx context.Context, e *scene) error { return e.acq.Acknowledge(ctx, e.acq.Batch.All(wire.Accept)) },
		conditions(errorLike(share.ErrClosed), noProducer, noMember, succeeds, isDenied, noProducer),
	},
	"share.Acquisition.Close": {
		(*scene).acquisition, func(ctx context.Context, e *scene) error { return e.acq.Close(ctx) },
		conditions(succeeds, noProducer, errorLike(kerr.FencedMemberEpoch), succeeds, isDenied, noProducer),
	},
	"share.DescribeRanges": {
		(*scene).alone, func(ctx context.Context, e *scene) error {
			_, err := share.DescribeRanges(ctx, e.r.cl, e.config())
			return err
		}, conditions(noState, noProducer, noMember, succeeds, isDenied, noProducer),
	},
}

// strike lets a condition happen.
func (e *scene) strike(condition, name string) {
	e.r.t.Helper()
	switch condition {
	case illegalState:
		switch {
		case e.res != nil:
			e.must(e.res.Abort(e.ctx()))
		case e.a != nil:
			e.must(e.a.Close(e.ctx()))
		case e.s != nil:
			e.must(e.s.Close(e.ctx()))
		case e.acq != nil:
			e.must(e.acq.Close(e.ctx()))
		default:
			e.must(e.r.c.Close(e.ctx()))
		}
	case fenced:
		e.r.acknowledger(txn.AcknowledgerConfig{})
	case staleMemberEpoch:
		e.acks.Group.MemberEpoch += 7
		if e.token.TransactionalID != "" || e.s != nil && e.s.Staged() > 0 {
			e.must(e.r.c.Close(e.ctx())) // the member is gone
		}
		e.inject(kmsg.ShareGroupHeartbeat, kerr.FencedMemberEpoch, 1)
	case unsupportedVersion:
		e.lower()
	case groupAuthorization:
		if name == "share.Consumer.Poll" || name == "share.Consumer.Wait" {
			e.r.acquire(4) // so that nothing is there that was fetched before
		}
		if strings.HasPrefix(name, "share.") {
			for _, key := range []kmsg.Key{kmsg.ShareGroupHeartbeat, kmsg.ShareFetch, kmsg.ShareAcknowledge, kmsg.DescribeShareGroupOffsets} {
				e.inject(key, kerr.GroupAuthorizationFailed, 0)
			}
		}
	case staleProducerEpoch:
		<-time.After(txn.DefaultTimeout + 20*time.Second) // the coordinator has aborted it, and raised the epoch
	}
}

func (e *scene) inject(key kmsg.Key, answer *kerr.Error, n int) {
	e.r.t.Helper()
	k := int16(key)
	_, err := e.r.sb.InjectFault(e.ctx(), sandbox.Fault{Kind: sandbox.FaultAnswerError, APIKey: &k, Error: answer.Message, Count: n})
	e.must(err)
}

// lower sets share.version below the level that the dialect needs.
func (e *scene) lower() {
	e.r.t.Helper()
	req := kmsg.NewPtrUpdateFeaturesRequest()
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.Feature, u.MaxVersionLevel, u.UpgradeType = wire.FeatureShareVersion, 1, 2
	req.FeatureUpdates = append(req.FeatureUpdates, u)
	resp, err := req.RequestWith(e.ctx(), e.r.cl.Requestor())
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	e.must(err)
}

// Each method that speaks to brokers, under each condition that KIP-1289 names:
// the error is the typed one, or there is a reason why there is none.
func TestContract(t *testing.T) {
	for name, m := range contract {
		for condition, want := range m.want {
			if want.holds == nil {
				continue
			}
			for _, d := range wire.Dialects() {
				t.Run(condition+"/"+name+"/"+d.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var network kfake.VirtualNetwork
						opts := []sandbox.Option{sandbox.WithListen(network.Listen), sandbox.WithBasePort(9092)}
						if asAdmin(t) {
							opts = append(opts, sandbox.WithUsers(
								sandbox.User{Name: "admin", Password: "a", Super: true}, sandbox.User{Name: "eve", Password: "e"},
							), sandbox.WithACLs(eveMay()...))
						}
						r := newRigOn(t, network.DialContext, d.Name, 4, opts...)
						e := &scene{r: r}
						if condition == groupAuthorization && strings.HasPrefix(name, "txn.") {
							r.cl = r.connectAs("eve", "e")
						}
						m.before(e)
						e.strike(condition, name)
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						if err := m.call(ctx, e); !want.holds(err) {
							t.Errorf("%s: %T %v, want %s", name, err, err, want.text)
						}
						r.sb.ClearFaults()
					})
				})
			}
		}
	}
}

// eveMay is everything but the group.
func eveMay() []sandbox.ACL {
	var out []sandbox.ACL
	for _, may := range []struct {
		resource  kmsg.ACLResourceType
		name      string
		operation kmsg.ACLOperation
	}{
		{kmsg.ACLResourceTypeTopic, "in", kmsg.ACLOperationRead},
		{kmsg.ACLResourceTypeTopic, "out", kmsg.ACLOperationWrite},
		{kmsg.ACLResourceTypeTransactionalId, "id", kmsg.ACLOperationWrite},
		{kmsg.ACLResourceTypeTransactionalId, "id", kmsg.ACLOperationDescribe},
	} {
		out = append(out, sandbox.ACL{Principal: "User:eve", Resource: may.resource, Name: may.name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: may.operation})
	}
	return out
}

// A function or method that takes a context, which is to say that it speaks to
// brokers, has a row, and each row has all conditions.
func TestContractIsComplete(t *testing.T) {
	found := map[string]bool{"share.Consumer.GroupMetadata": true} // which the KIP names
	for dir, pkg := range map[string]string{".": "txn", "../share": "share"} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), dir+"/"+f.Name(), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range tree.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && isPublic(fn) && takesContext(fn) {
					found[pkg+"."+receiver(fn)+fn.Name.Name] = true
				}
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(contract)), slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
		t.Errorf("the contract has rows for\n%v, want\n%v", got, want)
	}
	for name, m := range contract {
		if len(m.want) != 6 {
			t.Errorf("%s has %d conditions, want 6", name, len(m.want))
		}
	}
}

func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	typ := fn.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	return typ.(*ast.Ident).Name + "."
}

func isPublic(fn *ast.FuncDecl) bool {
	return fn.Name.IsExported() && (fn.Recv == nil || ast.IsExported(receiver(fn)))
}

func takesContext(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(f *ast.Field) bool {
		sel, ok := f.Type.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Context"
	})
}
