package feature

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// upgrading is a cluster of three brokers, one of which learns of a level later
// than the others.
type upgrading struct {
	*fakeCluster
	broker func(level int16) cluster.BrokerVersions
	level  int16
	looks  int
	late   int // looks after which the last broker knows
	behind int16
}

func newUpgrading(broker func(int16) cluster.BrokerVersions, level int16) *upgrading {
	u := &upgrading{broker: broker, level: level, behind: level}
	u.fakeCluster = &fakeCluster{
		describe: func() (cluster.Description, error) {
			if u.looks++; u.looks > u.late {
				u.behind = u.level
			}
			return described(broker(u.level), broker(u.level), broker(u.behind)), nil
		},
		requestBroker: func(_ int32, req kmsg.Request) (kmsg.Response, error) {
			switch req := req.(type) {
			case *kmsg.UpdateFeaturesRequest:
				if !req.ValidateOnly {
					u.level = req.FeatureUpdates[0].MaxVersionLevel
				}
				return req.ResponseKind(), nil
			}
			return nil, errors.New("unexpected request")
		},
	}
	return u
}

func change(t *testing.T, cl Cluster, d Direction, levels ...string) *Change {
	t.Helper()
	r, err := Describe(t.Context(), cl, DescribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var c *Change
	if d == Upgrade {
		c, err = NewUpgrade(r, updates(t, levels...))
	} else {
		c, err = NewDowngrade(r, updates(t, levels...), false)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Execute validates, sends once, and waits for the last broker.
func TestExecuteWaitsForEveryBroker(t *testing.T) {
	for name, c := range map[string]struct {
		broker   func(int16) cluster.BrokerVersions
		from, to int16
		level    string
		verdict  cluster.Verdict
	}{
		"kip up":     {func(l int16) cluster.BrokerVersions { return kip(l, 2) }, 1, 2, "share.version=2", cluster.Usable},
		"kip down":   {func(l int16) cluster.BrokerVersions { return kip(l, 2) }, 2, 1, "share.version=1", cluster.NotEnabled},
		"draft up":   {draft, 1, 3, "share.version=3", cluster.Usable},
		"draft down": {draft, 3, 2, "share.version=2", cluster.NotEnabled},
		"stock 4.4":  {stock44, 2, 1, "share.version=1", cluster.NotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newUpgrading(c.broker, c.from)
				d := Upgrade
				if c.to < c.from {
					d = Downgrade
				}
				ch := change(t, u, d, c.level)
				u.late = u.looks + 4
				var told [][]string
				res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody(), Waiting: func(s []string) { told = append(told, s) }})
				if err != nil {
					t.Fatal(err)
				}
				if !res.Changed || !res.Validated || !res.Confirmed || res.Raced || res.TxnAcks.Verdict != c.verdict.String() {
					t.Errorf("result %+v, verdict %v, want changed, validated, confirmed and %s", res, res.TxnAcks, c.verdict)
				}
				if it := res.Items[0]; !it.Applied || it.Level == nil || *it.Level != c.to || it.Reason != nil {
					t.Errorf("item %+v, want applied at %d", it, c.to)
				}
				if len(u.updates) != 2 || !u.updates[0].ValidateOnly || u.updates[1].ValidateOnly {
					t.Errorf("sent %v, want one that validates and one that changes", u.updates)
				}
				if len(told) != 4 || !strings.Contains(told[0][0], "broker 2 reports level") {
					t.Errorf("waited for %q, want broker 2 four times", told)
				}
			})
		})
	}
}

// In the dialect that advertises its request by level, the request has to be
// gone when the level is lowered.
func TestExecuteWaitsForTheRequestToGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpgrading(func(l int16) cluster.BrokerVersions { return kip(l, 2) }, 2)
		ch := change(t, u, Downgrade, "share.version=1")
		still := u.looks + 3
		inner := u.describe
		u.describe = func() (cluster.Description, error) {
			d, err := inner()
			if u.looks <= still {
				d.Brokers[1].Keys[93] = cluster.VersionRange{}
			}
			return d, err
		}
		var told []string
		if _, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody(), Waiting: func(s []string) { told = append(told, s...) }}); err != nil {
			t.Fatal(err)
		}
		wantSentences(t, "waited for", told[:1], []string{"broker 1 still advertises TxnShareAcknowledge (api key 93)"})
	})
}

func TestExecuteWaitRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpgrading(stock44, 1)
		ch := change(t, u, Upgrade, "share.version=2")
		u.late = 1 << 30
		start := time.Now()
		res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody(), WaitTimeout: 30 * time.Second})
		e, ok := errors.AsType[*NotConfirmedError](err)
		if !ok || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "broker 2 reports level 1 of share.version") {
			t.Errorf("Execute = %v, want a *NotConfirmedError that names broker 2", err)
		}
		if ok && e.Hint() == "" {
			t.Error("it does not say what to do")
		}
		if !res.Changed || res.Confirmed || !res.Items[0].Applied || res.Items[0].Level != nil {
			t.Errorf("result %+v, item %+v, want changed and not confirmed", res, res.Items[0])
		}
		if got := time.Since(start); got != 30*time.Second {
			t.Errorf("waited %s, want 30s", got)
		}
	})
}

func TestExecuteNothing(t *testing.T) {
	u := newUpgrading(stock44, 2)
	ch := change(t, u, Upgrade, "share.version=2")
	looks := u.looks
	res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody()})
	if err != nil || res.Changed || !res.Confirmed || len(u.updates) != 0 || u.looks != looks {
		t.Errorf("Execute = %+v, %v after %d updates, want nothing changed and nothing sent", res, err, len(u.updates))
	}
}

func TestExecuteDryRun(t *testing.T) {
	u := newUpgrading(stock44, 1)
	res, err := change(t, u, Upgrade, "share.version=2").Execute(t.Context(), u, ExecuteOptions{Observer: nobody(), DryRun: true})
	if err != nil || res.Changed || !res.Validated || u.level != 1 || len(u.updates) != 1 || !u.updates[0].ValidateOnly {
		t.Errorf("Execute = %+v, %v; level %d, sent %v, want one request that validates", res, err, u.level, u.updates)
	}
}

// A refusal is final, whatever the version of the answer: one request, and
// nothing stronger.
func TestExecuteRefused(t *testing.T) {
	const text = "Invalid update version 1 for feature share.version. Refused."
	for name, c := range map[string]struct {
		answer func(*kmsg.UpdateFeaturesResponse)
		want   string
		reason string
	}{
		"v2": {func(r *kmsg.UpdateFeaturesResponse) {
			r.Version, r.ErrorCode, r.ErrorMessage = 2, kerr.InvalidUpdateVersion.Code, new(text)
		}, "lower share.version from 2 to 1: broker 0: INVALID_UPDATE_VERSION (" + text + ")", text},
		"v1, by feature": {func(r *kmsg.UpdateFeaturesResponse) {
			r.Version = 1
			r.Results = []kmsg.UpdateFeaturesResponseResult{{Feature: "share.version", ErrorCode: kerr.FeatureUpdateFailed.Code, ErrorMessage: new(text)}}
		}, "FEATURE_UPDATE_FAILED (" + text + ")", text},
		"v0, for all": {func(r *kmsg.UpdateFeaturesResponse) {
			r.Version, r.ErrorCode = 0, kerr.NotController.Code
		}, "broker 0: NOT_CONTROLLER", "NOT_CONTROLLER"},
		"not authorised": {func(r *kmsg.UpdateFeaturesResponse) {
			r.Version, r.ErrorCode = 2, kerr.ClusterAuthorizationFailed.Code
		}, "CLUSTER_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrading(stock44, 2)
			ch := change(t, u, Downgrade, "share.version=1")
			u.requestBroker = func(_ int32, req kmsg.Request) (kmsg.Response, error) {
				resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
				c.answer(resp)
				return resp, nil
			}
			res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody()})
			e, ok := errors.AsType[*UpdateError](err)
			if !ok || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Execute = %v, want a *UpdateError with %q", err, c.want)
			}
			if len(u.updates) != 1 || u.updates[0].FeatureUpdates[0].UpgradeType != safeDowngrade {
				t.Errorf("sent %+v, want one safe downgrade", u.updates)
			}
			if it := res.Items[0]; res.Changed || it.Applied || it.Reason == nil || *it.Reason != c.reason {
				t.Errorf("item %+v, want not applied for %q", it, c.reason)
			}
			if k := e.ErrorKeys(); k.Feature != "share.version" || *k.From != 2 || k.To != 1 || k.Direction != Downgrade {
				t.Errorf("keys %+v", k)
			}
			if e.BrokerID() != 0 {
				t.Errorf("broker %d, want 0", e.BrokerID())
			}
		})
	}
}

// A request is all or nothing: one culprit, and the others say so.
func TestAnswered(t *testing.T) {
	const both = "share.version=2 transaction.version=99"
	for name, c := range map[string]struct {
		items   string
		resp    kmsg.UpdateFeaturesResponse
		applied []string
		reasons []string
		err     string
		culprit string
	}{
		"all made": {items: both, applied: []string{"share.version", "transaction.version"}, reasons: []string{"", ""}},
		"v2, named": {
			items:   both,
			resp:    kmsg.UpdateFeaturesResponse{Version: 2, ErrorCode: 95, ErrorMessage: new("The update failed for all features since: 99 for feature transaction.version.")},
			reasons: []string{notApplied, "The update failed for all features since: 99 for feature transaction.version."}, err: "INVALID_UPDATE_VERSION", culprit: "transaction.version",
		},
		"v2, both named, the first one counts": {
			items:   both,
			resp:    kmsg.UpdateFeaturesResponse{Version: 2, ErrorCode: 95, ErrorMessage: new("share.version could not be set to 2 because it depends on transaction.version level 2")},
			reasons: []string{"share.version could not", notApplied}, err: "INVALID_UPDATE_VERSION", culprit: "share.version",
		},
		"v2, none named": {
			items: both, resp: kmsg.UpdateFeaturesResponse{Version: 2, ErrorCode: 7},
			reasons: []string{notApplied, notApplied}, err: "REQUEST_TIMED_OUT",
		},
		"v1, partly": {
			items: both,
			resp: kmsg.UpdateFeaturesResponse{Version: 1, Results: []kmsg.UpdateFeaturesResponseResult{
				{Feature: "share.version"}, {Feature: "transaction.version", ErrorCode: 95, ErrorMessage: new("no 99")},
			}},
			applied: []string{"share.version"}, reasons: []string{"", "no 99"}, err: "partly done", culprit: "transaction.version",
		},
		"v0, a result is missing": {
			items: both,
			resp: kmsg.UpdateFeaturesResponse{Results: []kmsg.UpdateFeaturesResponseResult{
				{Feature: "transaction.version", ErrorCode: 95},
			}},
			applied: []string{"share.version"}, reasons: []string{"", "INVALID_UPDATE_VERSION"}, err: "partly done", culprit: "transaction.version",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := report(supporting(stock44(1), "transaction.version", 0, 99))
			ch, err := NewUpgrade(r, updates(t, strings.Fields(c.items)...))
			if err != nil {
				t.Fatal(err)
			}
			applied, err := ch.answered(&c.resp)
			if strings.Join(applied, " ") != strings.Join(c.applied, " ") {
				t.Errorf("applied %q, want %q", applied, c.applied)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			for i, it := range ch.Items {
				got := ""
				if it.Reason != nil {
					got = *it.Reason
				}
				if c.reasons[i] == "" && got != "" || !strings.Contains(got, c.reasons[i]) {
					t.Errorf("%s: reason %q, want %q", it.Feature, got, c.reasons[i])
				}
			}
			if e, ok := errors.AsType[*UpdateError](err); ok {
				k := e.ErrorKeys()
				if (k == nil) != (c.culprit == "") || k != nil && k.Feature != c.culprit {
					t.Errorf("keys %+v, want those of %q", k, c.culprit)
				}
			}
		})
	}
}

// After a partial change the wait is for what was made alone.
func TestExecutePartly(t *testing.T) {
	tv := int16(1)
	u := newUpgrading(func(l int16) cluster.BrokerVersions { return at(stock44(l), "transaction.version", tv) }, 1)
	ch := change(t, u, Upgrade, "share.version=2", "transaction.version=2")
	u.requestBroker = func(_ int32, req kmsg.Request) (kmsg.Response, error) {
		r := req.(*kmsg.UpdateFeaturesRequest)
		resp := r.ResponseKind().(*kmsg.UpdateFeaturesResponse)
		if !r.ValidateOnly {
			u.level = 2
			resp.Version = 1
			resp.Results = []kmsg.UpdateFeaturesResponseResult{{Feature: "share.version"}, {Feature: "transaction.version", ErrorCode: 95, ErrorMessage: new("no")}}
		}
		return resp, nil
	}
	res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody()})
	if _, ok := errors.AsType[*PartialError](err); !ok || !res.Changed || !res.Confirmed {
		t.Fatalf("Execute = %+v, %v, want a partial change that is confirmed", res, err)
	}
	if a, b := res.Items[0], res.Items[1]; !a.Applied || *a.Level != 2 || b.Applied || *b.Level != 1 || *b.Reason != "no" {
		t.Errorf("items %+v, %+v", a, b)
	}
}

// UpdateFeatures v0 has no way to validate: asked to, it would make the change.
func TestOldBrokerNeverValidates(t *testing.T) {
	oldest := func(l int16) cluster.BrokerVersions {
		b := stock44(l)
		b.Keys[int16(kmsg.UpdateFeatures)] = cluster.VersionRange{}
		return b
	}
	u := newUpgrading(oldest, 2)
	res, err := change(t, u, Downgrade, "share.version=1").Execute(t.Context(), u, ExecuteOptions{Observer: nobody()})
	if err != nil || !res.Changed || res.Validated || len(u.updates) != 1 || u.updates[0].ValidateOnly || !u.updates[0].FeatureUpdates[0].AllowDowngrade {
		t.Errorf("Execute = %+v, %v; sent %+v, want the change alone", res, err, u.updates)
	}
	for name, c := range map[string]struct {
		unsafe, dryRun bool
		serve          bool
	}{"dry run": {dryRun: true, serve: true}, "unsafe": {unsafe: true, serve: true}, "no UpdateFeatures": {}} {
		u := newUpgrading(oldest, 2)
		ch := change(t, u, Downgrade, "share.version=1")
		ch.Unsafe = c.unsafe
		if !c.serve {
			delete(ch.report.versions[0].Keys, int16(kmsg.UpdateFeatures))
		}
		_, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody(), DryRun: c.dryRun})
		if kind(err) != "unsupported" || len(u.updates) != 0 {
			t.Errorf("%s: Execute = %v after %d requests, want it unsupported and nothing sent", name, err, len(u.updates))
		}
	}
}

func TestUnsafeIsAskedForAlone(t *testing.T) {
	u := newUpgrading(stock44, 2)
	r, err := Describe(t.Context(), u, DescribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ch, err := NewDowngrade(r, updates(t, "share.version=1"), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody()}); err != nil {
		t.Fatal(err)
	}
	for _, req := range u.updates {
		if req.FeatureUpdates[0].UpgradeType != unsafeDowngrade {
			t.Errorf("upgrade type %d, want that of an unsafe downgrade", req.FeatureUpdates[0].UpgradeType)
		}
	}
	if !strings.Contains(ch.Question(), "unsafe downgrade, which may lose metadata") {
		t.Errorf("the question %q does not say that it is unsafe", ch.Question())
	}
}

// The answer that is lost is looked for in the levels; the request is not sent
// again.
func TestExecuteLostAnswer(t *testing.T) {
	lost := errors.New("connection reset")
	for name, c := range map[string]struct {
		err     error
		made    bool
		changed bool
		want    string // part of the error; "" is none
	}{
		"made":     {lost, true, true, ""},
		"not made": {lost, false, false, "the request was sent and its answer lost, and the levels are not changed yet"},
		"not sent": {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, false, false, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrading(stock44, 1)
			ch := change(t, u, Upgrade, "share.version=2")
			u.requestBroker = func(_ int32, req kmsg.Request) (kmsg.Response, error) {
				if req.(*kmsg.UpdateFeaturesRequest).ValidateOnly {
					return req.ResponseKind(), nil
				}
				if c.made {
					u.level = 2
				}
				return nil, c.err
			}
			res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: nobody()})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Execute = %v, want %q", err, c.want)
			}
			if _, ok := errors.AsType[*LostAnswerError](err); ok != (name == "not made") {
				t.Errorf("Execute = %T", err)
			}
			if res.Changed != c.changed || len(u.updates) != 2 || c.made != (len(res.Warnings) == 1) {
				t.Errorf("changed %v, %d requests, warnings %q", res.Changed, len(u.updates), res.Warnings)
			}
		})
	}
}

// A transaction that is begun in between stops the change if there is time, and
// is told if there is none.
func TestExecuteRaces(t *testing.T) {
	for name, c := range map[string]struct {
		begins    func(sent int) bool // when a transaction is open
		err       string
		changed   bool
		wantSends int
	}{
		"before the change": {func(int) bool { return true }, "refused", false, 0},
		"after it":          {func(sent int) bool { return sent == 2 }, "raced", true, 2},
		"never":             {func(int) bool { return false }, "", true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrading(func(l int16) cluster.BrokerVersions { return kip(l, 2) }, 2)
			ch := change(t, u, Downgrade, "share.version=1")
			res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: sees(func() *inspect.Evidence {
				if c.begins(len(u.updates)) {
					return using(holdingAcks("tx", "Ongoing"))
				}
				return using()
			})})
			switch c.err {
			case "":
				if err != nil || res.Raced {
					t.Errorf("Execute = %+v, %v", res, err)
				}
			case "refused":
				if e, ok := errors.AsType[*RefusedError](err); !ok || len(e.Transactions) != 1 || len(e.Pending) != 1 {
					t.Errorf("Execute = %v, want a refusal with the transaction and its records", err)
				}
			case "raced":
				e, ok := errors.AsType[*RacedError](err)
				if !ok || !res.Raced || len(e.Transactions) != 1 || len(res.Transactions) != 1 || len(res.Pending) != 1 || e.Hint() == "" || !strings.Contains(err.Error(), `"tx"`) {
					t.Errorf("Execute = %+v, %v, want it raced by tx", res, err)
				}
			}
			if res.Changed != c.changed || len(u.updates) != c.wantSends {
				t.Errorf("changed %v with %d requests, want %v with %d", res.Changed, len(u.updates), c.changed, c.wantSends)
			}
		})
	}
}

// Where a level is to be lowered that somebody uses, what is pending goes with
// the broker's refusal.
func TestExecuteRefusedWithPending(t *testing.T) {
	for name, broker := range map[string]func(int16) cluster.BrokerVersions{
		"kip": func(l int16) cluster.BrokerVersions { return kip(l, 2) },
		// Nobody can hold anything there.
		"stock 4.4": stock44,
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrading(broker, 2)
			ch := change(t, u, Downgrade, "share.version=1")
			u.requestBroker = func(_ int32, req kmsg.Request) (kmsg.Response, error) {
				resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
				resp.ErrorCode, resp.ErrorMessage = kerr.InvalidUpdateVersion.Code, new("records are pending")
				return resp, nil
			}
			res, err := ch.Execute(t.Context(), u, ExecuteOptions{Observer: sees(func() *inspect.Evidence {
				if len(u.updates) > 0 { // staged after the look
					return using(holdingAcks("tx", "Ongoing"))
				}
				return using()
			})})
			want := 0
			if name == "kip" {
				want = 1
			}
			e, ok := errors.AsType[*UpdateError](err)
			if !ok || len(e.Pending) != want || len(res.Pending) != want || len(res.Transactions) != want || strings.Contains(e.Hint(), "kshare drain") != (want == 1) || res.Changed {
				t.Errorf("Execute = %+v, %v (%q), want it refused with %d rows", res, err, e.Hint(), want)
			}
		})
	}
}

// The drain comes before the guard, where somebody could suffer, and not in a
// dry run.
func TestExecuteDrains(t *testing.T) {
	failed := errors.New("not drained")
	for name, c := range map[string]struct {
		broker  func(int16) cluster.BrokerVersions
		dryRun  bool
		fails   error
		open    bool // after the drain, though it succeeded
		drained bool
		changed bool
		err     string // part of it; "" is none
	}{
		"before the guard":   {broker: func(l int16) cluster.BrokerVersions { return kip(l, 2) }, drained: true, changed: true},
		"which fails":        {broker: func(l int16) cluster.BrokerVersions { return kip(l, 2) }, fails: failed, drained: true, err: "lower share.version from 2 to 1: not drained"},
		"and is raced":       {broker: func(l int16) cluster.BrokerVersions { return kip(l, 2) }, drained: true, open: true, err: "1 open transaction holds or may hold share acknowledgements"},
		"nobody to wait for": {broker: stock44, changed: true},
		"dry run":            {broker: func(l int16) cluster.BrokerVersions { return kip(l, 2) }, dryRun: true},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrading(c.broker, 2)
			ch := change(t, u, Downgrade, "share.version=1")
			drained := false
			res, err := ch.Execute(t.Context(), u, ExecuteOptions{
				DryRun: c.dryRun,
				Drain: func(context.Context) (*drain.Result, error) {
					drained = true
					return &drain.Result{Status: drain.StatusDrained}, c.fails
				},
				Observer: sees(func() *inspect.Evidence {
					if !drained && !c.dryRun || c.open {
						return using(holdingAcks("tx", "Ongoing"))
					}
					return using()
				}),
			})
			if drained != c.drained || (res.Drain != nil) != c.drained || res.Changed != c.changed {
				t.Errorf("drained %v, changed %v, want %v, %v", drained, res.Changed, c.drained, c.changed)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || c.fails != nil && !errors.Is(err, c.fails) {
				t.Errorf("Execute = %v, want %q", err, c.err)
			}
			if len(u.updates) > 0 && !c.changed && !c.dryRun {
				t.Errorf("%d requests were sent", len(u.updates))
			}
		})
	}
}

// The request gives up when the command does.
func TestRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch, err := NewUpgrade(report(stock44(1)), updates(t, "share.version=2"))
		if err != nil {
			t.Fatal(err)
		}
		if got := ch.request(t.Context(), true).TimeoutMillis; got != 60_000 {
			t.Errorf("timeout %d ms, want Kafka's default", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if got := ch.request(ctx, true).TimeoutMillis; got != 5_000 {
			t.Errorf("timeout %d ms, want what is left", got)
		}
	})
}

func TestCheckHealth(t *testing.T) {
	whole := cluster.Topic{Partitions: []cluster.Partition{{Partition: 0, Leader: 1}}}
	headless := cluster.Topic{Partitions: []cluster.Partition{{Partition: 0, Leader: 1}, {Partition: 3, Leader: -1}}}
	for name, c := range map[string]struct {
		broker cluster.BrokerVersions
		level  string
		topics func(string) (cluster.Topic, error)
		want   string
	}{
		"whole":           {kip(1, 2), "share.version=2", func(string) (cluster.Topic, error) { return whole, nil }, ""},
		"not there yet":   {kip(1, 2), "share.version=2", nil, ""},
		"without leader":  {kip(1, 2), "share.version=2", func(string) (cluster.Topic, error) { return headless, nil }, "partition __share_group_state-3 has no leader; partition __transaction_state-3 has no leader"},
		"hidden":          {kip(1, 2), "share.version=2", func(string) (cluster.Topic, error) { return cluster.Topic{}, kerr.TopicAuthorizationFailed }, "topic __share_group_state cannot be described: TOPIC_AUTHORIZATION_FAILED"},
		"not for the DLQ": {stock44(1), "share.version=2", func(string) (cluster.Topic, error) { return headless, nil }, ""},
	} {
		ch, err := NewUpgrade(report(c.broker), updates(t, c.level))
		if err != nil {
			t.Fatal(err)
		}
		_, err = ch.Check(t.Context(), &fakeCluster{topics: c.topics}, ExecuteOptions{})
		if (err == nil) != (c.want == "") || err != nil && (kind(err) != "refused" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: Check = %v, want %q", name, err, c.want)
		}
	}
}
