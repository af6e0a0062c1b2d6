package feature

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/drain"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/pause"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The upgrade types of UpdateFeatures v1 and later. v0 has a flag that allows a
// safe downgrade instead.
const (
	upgradeOnly     = 1
	safeDowngrade   = 2
	unsafeDowngrade = 3
)

// The defaults of [ExecuteOptions].
const (
	defaultPoll = 200 * time.Millisecond
	// requestTimeout is Kafka's own default for UpdateFeatures.
	requestTimeout = 60 * time.Second
)

// ExecuteOptions are the options of [Change.Execute].
type ExecuteOptions struct {
	// DryRun has the controller validate the change, unless a drain would come
	// first, and changes nothing.
	DryRun bool
	// Guard is applied once more right before the change is sent, and once
	// after it.
	Guard GuardOptions
	// Poll is the pause between two looks at the brokers; 0 is 200 ms.
	Poll time.Duration
	// WaitTimeout bounds the wait for the brokers; 0 waits as long as ctx lasts.
	WaitTimeout time.Duration
	// Dialect is that of [DescribeOptions].
	Dialect string
	// Drain waits until nobody would suffer from the change, before the guard is
	// applied; it is called where that matters, and not in a dry run. Its error
	// ends the change. nil does not wait. See [Change.DrainOptions].
	Drain func(context.Context) (*drain.Result, error)
	// Observer looks at who would suffer; nil is [Change.Observer].
	Observer drain.Observer
	// Now is the clock of this machine; nil is time.Now.
	Now func() time.Time
	// Waiting is told at each look what the wait is for; nil is nobody.
	Waiting func(sentences []string)
}

// Result is what came of a change.
type Result struct {
	*Change
	DryRun bool `json:"dry_run"`
	// Changed says whether a level in force is another one than before.
	Changed bool `json:"changed"`
	// Validated says whether the controller was asked first, and agreed.
	Validated bool `json:"validated"`
	// Confirmed says whether every broker reports the new levels.
	Confirmed bool `json:"confirmed"`
	// Raced says that transactions were begun between the last look and the
	// change, which stranded them.
	Raced bool `json:"raced"`
	// Drain is what came of the drain; nil if there was none.
	Drain *drain.Result `json:"drain"`
	// TxnAcks is the verdict after the change; nil if it was not looked at.
	TxnAcks *TxnAcks `json:"txn_share_acknowledge"`
	// Transactions are those in the way, or those that raced, and Pending the
	// records that they hold, the oldest first.
	Transactions []Transaction        `json:"transactions"`
	Pending      []inspect.PendingRow `json:"pending"`
	Warnings     []string             `json:"-"`
}

// Result returns what is known of the change before it is executed, or when it
// is not.
func (c *Change) Result() *Result { return &Result{Change: c} }

// Execute makes the change: it drains if it is to, looks at open transactions
// again, has the controller validate, sends exactly one request, waits until
// every broker reports the levels, and advertises TxnShareAcknowledge or does not
// any more, and looks once more at who suffers. A refusal is final: nothing
// stronger is ever tried. When nothing is to change it sends nothing. It returns
// the result also with an error.
//
// It may return *RefusedError, *UpdateError, *PartialError, *LostAnswerError,
// *NotConfirmedError, *RacedError, *cluster.UnsupportedError or
// *cluster.AuthError, and those of the drain.
func (c *Change) Execute(ctx context.Context, cl Cluster, o ExecuteOptions) (*Result, error) {
	res := &Result{Change: c, DryRun: o.DryRun}
	if !c.Needed() {
		res.Confirmed = true
		return res, nil
	}
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	if o.Drain != nil && !o.DryRun && c.NeedsTransactions() {
		var err error
		if res.Drain, err = o.Drain(ctx); err != nil {
			return res, fmt.Errorf("%s: %w", c.Op(), err)
		}
	}
	seen, err := c.Check(ctx, cl, o)
	if err != nil {
		return res, err
	}
	if o.DryRun && c.drainsFirst(seen, res, o) {
		return res, nil // a controller that looks would refuse it now, and rightly
	}
	canValidate, err := c.validates(o.DryRun)
	if err != nil {
		return res, err
	}
	if canValidate {
		if err := c.validate(ctx, cl); err != nil {
			return res, c.explain(ctx, cl, res, o, err)
		}
		res.Validated = true
	}
	if o.DryRun {
		for i := range c.Items {
			if c.Items[i].needed() {
				c.Items[i].Reason = new("dry run: the controller would make this change")
			}
		}
		return res, nil
	}
	sendErr := c.apply(ctx, cl, res, o)
	if !res.Changed {
		return res, c.explain(ctx, cl, res, o, sendErr)
	}
	if err := c.wait(ctx, cl, res, o); err != nil {
		return res, errors.Join(sendErr, err)
	}
	if err := c.lookBack(ctx, cl, res, o); err != nil {
		return res, errors.Join(sendErr, err)
	}
	return res, sendErr
}

// drainsFirst reports whether a drain would have somebody to wait for, and says
// so.
func (c *Change) drainsFirst(ev *inspect.Evidence, res *Result, o ExecuteOptions) bool {
	o.Guard.WillDrain = false
	u := c.inTheWay(ev, o.Guard)
	if len(u.holders)+len(u.open) == 0 {
		return false
	}
	res.Pending, res.Transactions = u.rows, u.open
	names := holderNames(u.holders)
	if names == "" {
		names = ids(u.open)
	}
	for i := range c.Items {
		if c.Items[i].needed() {
			c.Items[i].Reason = new("dry run: a drain would come first, which waits for " + names)
		}
	}
	return true
}

// validates reports whether the broker that takes the request can validate it
// without making the change: UpdateFeatures v0 has no such flag, and would make
// it.
func (c *Change) validates(dryRun bool) (bool, error) {
	b := c.report.taker()
	if b == nil {
		return false, c.refused("", "", "no broker answers")
	}
	r, ok := b.Keys[int16(kmsg.UpdateFeatures)]
	var missing string
	switch {
	case !ok:
		missing = "does not serve UpdateFeatures"
	case r.Max >= 1:
		return true, nil
	case dryRun:
		missing = "serves UpdateFeatures v0 alone, which cannot validate without making the change"
	case c.Unsafe:
		missing = "serves UpdateFeatures v0 alone, which knows no unsafe downgrade"
	default:
		return false, nil
	}
	err := &cluster.UnsupportedError{What: c.Op(), Reason: fmt.Sprintf("broker %d %s", b.NodeID, missing)}
	c.refuse("", err.Error())
	return false, err
}

// taker returns the broker that takes UpdateFeatures; nil if none answers.
func (r *Report) taker() *cluster.BrokerVersions {
	for i, b := range r.versions {
		if b.NodeID == r.controller {
			return &r.versions[i]
		}
	}
	return nil
}

// request returns the request for the levels that differ.
func (c *Change) request(ctx context.Context, validateOnly bool) *kmsg.UpdateFeaturesRequest {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	req.ValidateOnly = validateOnly
	req.TimeoutMillis = int32(requestTimeout.Milliseconds())
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline) //nolint:forbidigo // a context's deadline is by the real clock
		req.TimeoutMillis = int32(max(1, min(requestTimeout, left).Milliseconds()))
	}
	for _, it := range c.Items {
		if !it.needed() {
			continue
		}
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel = it.Feature, it.To
		switch {
		case c.Direction == Upgrade:
			u.UpgradeType = upgradeOnly
		case c.Unsafe:
			u.UpgradeType, u.AllowDowngrade = unsafeDowngrade, true
		default:
			u.UpgradeType, u.AllowDowngrade = safeDowngrade, true
		}
		req.FeatureUpdates = append(req.FeatureUpdates, u)
	}
	return req
}

// send sends one request, once, to the broker that takes it for the controller.
func (c *Change) send(ctx context.Context, cl Cluster, validateOnly bool) (*kmsg.UpdateFeaturesResponse, error) {
	kresp, err := cl.RequestBroker(ctx, c.report.controller, c.request(ctx, validateOnly))
	if err != nil {
		return nil, err
	}
	return kresp.(*kmsg.UpdateFeaturesResponse), nil
}

func (c *Change) validate(ctx context.Context, cl Cluster) error {
	resp, err := c.send(ctx, cl, true)
	if err != nil {
		return fmt.Errorf("%s: have it validated: broker %d: %w", c.Op(), c.report.controller, err)
	}
	_, err = c.answered(resp)
	return err
}

// answered reads an answer. v2 has an error for the whole request. v0 and v1
// have one too, and results for each feature: those of Kafka before 4.0 may
// differ, with the features that have none being changed.
func (c *Change) answered(resp *kmsg.UpdateFeaturesResponse) (applied []string, err error) {
	node := c.report.controller
	var asked []Item
	for _, it := range c.Items {
		if it.needed() {
			asked = append(asked, it)
		}
	}
	if resp.ErrorCode != 0 {
		e := c.updateError(node, asked, resp.ErrorCode, resp.ErrorMessage)
		e.Culprit = culprit(asked, e.Message)
		c.refuse(e.Culprit, e.reason())
		return nil, e
	}
	var refused []*UpdateError
	for _, it := range asked {
		i := slices.IndexFunc(resp.Results, func(r kmsg.UpdateFeaturesResponseResult) bool { return r.Feature == it.Feature })
		if i < 0 || resp.Results[i].ErrorCode == 0 {
			applied = append(applied, it.Feature)
			continue
		}
		e := c.updateError(node, []Item{it}, resp.Results[i].ErrorCode, resp.Results[i].ErrorMessage)
		e.Culprit = it.Feature
		refused = append(refused, e)
		c.note(it.Feature, e)
	}
	switch {
	case len(refused) == 0:
		return applied, nil
	case len(asked) == 1:
		return nil, refused[0]
	}
	return applied, &PartialError{Op: describeItems(c.Direction, asked), Refused: refused}
}

// note keeps why a feature was not changed.
func (c *Change) note(name string, e *UpdateError) {
	for i := range c.Items {
		if it := &c.Items[i]; it.Feature == name {
			it.refused, it.Reason = true, new(e.reason())
		}
	}
}

func (c *Change) updateError(node int32, items []Item, code int16, message *string) *UpdateError {
	e := &UpdateError{Direction: c.Direction, Items: items, Broker: node, Err: kerr.ErrorForCode(code)}
	if message != nil {
		e.Message = *message
	}
	return e
}

// culprit returns the feature that a broker's text is about: the one it names
// first, since what it goes on to name is what the feature lacks. "" if it names
// none.
func culprit(items []Item, message string) string {
	name, at := "", len(message)
	for _, it := range items {
		if i := strings.Index(message, it.Feature); i >= 0 && i < at {
			name, at = it.Feature, i
		}
	}
	return name
}

// apply sends the change. An answer that is lost leaves the outcome open, so the
// brokers are asked for it: the request is not sent again.
func (c *Change) apply(ctx context.Context, cl Cluster, res *Result, o ExecuteOptions) error {
	var applied []string
	resp, err := c.send(ctx, cl, false)
	switch {
	case err == nil:
		applied, err = c.answered(resp)
	case notSent(err):
		return fmt.Errorf("%s: broker %d: %w", c.Op(), c.report.controller, err)
	default:
		if applied, err = c.lostAnswer(ctx, cl, o, err); err == nil {
			res.Warnings = append(res.Warnings, "the answer to the change was lost; the levels that the brokers report show that it was made")
		}
	}
	for i := range c.Items {
		it := &c.Items[i]
		if it.needed() && slices.Contains(applied, it.Feature) {
			it.Applied, it.Reason, it.Level = true, nil, nil
			res.Changed = true
		}
	}
	return err
}

// notSent reports whether a request failed before a byte of it was written.
func notSent(err error) bool {
	if _, ok := errors.AsType[*cluster.AuthError](err); ok {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

func (c *Change) lostAnswer(ctx context.Context, cl Cluster, o ExecuteOptions, lost error) ([]string, error) {
	err := &LostAnswerError{Op: c.Op(), Broker: c.report.controller, Err: lost}
	after, derr := Describe(ctx, cl, DescribeOptions{Dialect: o.Dialect})
	if derr != nil {
		return nil, err
	}
	var made []string
	for _, it := range c.Items {
		f, _ := after.Feature(it.Feature)
		switch {
		case !it.needed():
		case f.Finalized == nil || *f.Finalized != it.To:
			return nil, err
		default:
			made = append(made, it.Feature)
		}
	}
	return made, nil
}

// wait looks at the brokers until all of them show the change.
func (c *Change) wait(ctx context.Context, cl Cluster, res *Result, o ExecuteOptions) error {
	if o.WaitTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.WaitTimeout)
		defer cancel()
	}
	missing := []string{"no broker was asked yet"}
	for {
		r, err := Describe(ctx, cl, DescribeOptions{Dialect: o.Dialect})
		if err == nil {
			missing = c.missing(r)
			c.observe(res, r)
			if len(missing) == 0 {
				res.Confirmed = true
				return nil
			}
		}
		if o.Waiting != nil {
			o.Waiting(missing)
		}
		if err := pause.For(ctx, o.Poll); err != nil {
			return &NotConfirmedError{Op: c.Op(), Waiting: missing, Err: err}
		}
	}
}

// observe keeps what a report says of the features and of transactional
// acknowledgement.
func (c *Change) observe(res *Result, r *Report) {
	res.TxnAcks = &r.TxnAcks
	for i := range c.Items {
		it := &c.Items[i]
		it.Level = nil
		if f, ok := r.Feature(it.Feature); ok && f.State == Agreed {
			it.Level = f.Finalized
		}
	}
}

// missing says, a sentence each, what a report lacks of the change.
func (c *Change) missing(r *Report) []string {
	out := r.Unknowns()
	for _, it := range c.Items {
		f, ok := r.Feature(it.Feature)
		if !it.needed() || it.refused || !ok {
			continue
		}
		for _, b := range f.Brokers {
			if b.Finalized != nil && *b.Finalized != it.To {
				out = append(out, fmt.Sprintf("broker %d reports level %s of %s", b.NodeID, levelText(it.Feature, *b.Finalized), it.Feature))
			}
		}
	}
	if len(out) > 0 {
		return out // the request follows the levels
	}
	for i, b := range r.support.Brokers {
		switch {
		case c.enables && b.Verdict != cluster.Usable:
			out = append(out, fmt.Sprintf("broker %d: %s", b.NodeID, b.Reason))
		case c.hidesTxnAcks:
			if text := gone(r.versions[i], c.report.support.Dialect); text != "" {
				out = append(out, text)
			}
		}
	}
	return out
}

// explain adds to a broker's refusal to lower a level what is pending, which may
// be why.
func (c *Change) explain(ctx context.Context, cl Cluster, res *Result, o ExecuteOptions, err error) error {
	e, ok := errors.AsType[*UpdateError](err)
	if !ok || !c.losesTxnAcks {
		return err
	}
	ev, lerr := c.look(ctx, cl, o)
	if lerr != nil {
		return err // the refusal says more
	}
	u := c.inTheWay(ev, o.Guard)
	e.Pending, res.Pending, res.Transactions = u.rows, u.rows, u.open
	return err
}

// lookBack finds who suffers after all: what was begun after the last look.
func (c *Change) lookBack(ctx context.Context, cl Cluster, res *Result, o ExecuteOptions) error {
	ev, err := c.look(ctx, cl, o)
	if err != nil {
		return fmt.Errorf("%s: done, and it is not known whether it was raced: %w", c.Op(), err)
	}
	u := c.inTheWay(ev, o.Guard)
	if len(u.unknown) > 0 {
		res.Warnings = append(res.Warnings, "it is not known whether transactions were begun in the meantime: "+strings.Join(u.unknown, "; "))
	}
	if len(u.holders) > 0 || len(u.open) > 0 {
		res.Raced, res.Transactions, res.Pending = true, u.open, u.rows
		return &RacedError{Op: c.Op(), Holders: u.holders, Transactions: u.open, Pending: u.rows}
	}
	return nil
}
