package feature

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/wire"
)

// Direction is the way that levels are changed.
type Direction string

// The directions.
const (
	Upgrade   Direction = "upgrade"
	Downgrade Direction = "downgrade"
)

func (d Direction) other() Direction {
	if d == Upgrade {
		return Downgrade
	}
	return Upgrade
}

func (d Direction) verb() string {
	if d == Upgrade {
		return "raise"
	}
	return "lower"
}

// Item is one feature of a change.
type Item struct {
	Feature string `json:"feature"`
	From    *int16 `json:"from_level"` // nil when it is not known
	To      int16  `json:"to_level"`
	Meaning string `json:"meaning"` // of To on this cluster
	// Applied says whether the controller made the change.
	Applied bool `json:"applied"`
	// Level is what every broker reports at the end; nil when it is not known
	// or brokers differ.
	Level *int16 `json:"level"`
	// Reason is why it was not applied; the broker's own text, word for word,
	// where the broker refused this feature.
	Reason *string `json:"reason"`

	refused bool // by the controller, while others of the request may be applied
}

// needed reports whether the level has to be changed.
func (it Item) needed() bool { return it.From == nil || *it.From != it.To }

func (it Item) fromText() string {
	if it.From == nil {
		return "?"
	}
	return levelText(it.Feature, *it.From)
}

// Change is levels to change in one request, with all that is to know before.
type Change struct {
	Direction Direction `json:"direction"`
	// Unsafe asks the controller for an unsafe downgrade.
	Unsafe bool   `json:"unsafe"`
	Items  []Item `json:"-"` // sorted by feature
	// Effects say, a sentence each, what else the change does.
	Effects []string `json:"effects"`
	// NoReturn says, a sentence each, what cannot be done after it.
	NoReturn []string `json:"points_of_no_return"`

	report *Report
	// What the change takes away, or may.
	losesTxnAcks  bool
	cutsProducers bool
	// hidesTxnAcks says that share.version goes below the level that has
	// transactional acknowledgement, so that brokers need not advertise it.
	hidesTxnAcks bool
	// stopsGroups says that share groups are switched off.
	stopsGroups bool
	// enables says that it switches transactional acknowledgement on.
	enables bool
}

// Needed reports whether anything has to be changed.
func (c *Change) Needed() bool { return slices.ContainsFunc(c.Items, Item.needed) }

// Op says what the change does: "raise share.version from 1 to 2".
func (c *Change) Op() string { return describeItems(c.Direction, c.Items) }

// Question says what the change does to which cluster, as a sentence.
func (c *Change) Question() string {
	kind := ""
	if c.Unsafe {
		kind = " by an unsafe downgrade, which may lose metadata"
	}
	return fmt.Sprintf("This is to %s on cluster %s%s.", c.Op(), c.report.ClusterID, kind)
}

// ClusterID returns the ID of the cluster that the change is for.
func (c *Change) ClusterID() string { return c.report.ClusterID }

// Names returns the features that are changed, joined by commas.
func (c *Change) Names() string {
	var names []string
	for _, it := range c.Items {
		if it.needed() {
			names = append(names, it.Feature)
		}
	}
	return strings.Join(names, ",")
}

func describeItems(d Direction, items []Item) string {
	parts := make([]string, 0, len(items))
	for _, it := range items {
		parts = append(parts, fmt.Sprintf("%s from %s to %s", it.Feature, it.fromText(), levelText(it.Feature, it.To)))
	}
	return d.verb() + " " + strings.Join(parts, " and ")
}

const notApplied = "not applied: the request is atomic"

// refuse marks all items as not applied; culprit, if it is one of them, for that
// reason.
func (c *Change) refuse(culprit, reason string) {
	for i := range c.Items {
		it := &c.Items[i]
		switch {
		case it.Feature == culprit || len(c.Items) == 1:
			it.Reason = &reason
		case it.needed():
			it.Reason = new(notApplied)
		}
	}
}

// newChange makes a change of updates and checks what is the same in both
// directions. It returns the change with an error too, so that it can be shown.
func newChange(r *Report, d Direction, updates []Update) (*Change, error) {
	c := &Change{Direction: d, report: r}
	for _, u := range updates {
		it := Item{Feature: u.Feature, To: u.Level, Meaning: Meaning(u.Feature, u.Level, r.support)}
		if f, ok := r.Feature(u.Feature); ok && f.Finalized != nil {
			it.From, it.Level = new(*f.Finalized), new(*f.Finalized)
		}
		c.Items = append(c.Items, it)
	}
	slices.SortFunc(c.Items, func(a, b Item) int { return strings.Compare(a.Feature, b.Feature) })
	for _, it := range c.Items {
		if err := r.checkSupported(it); err != nil {
			c.refuse(it.Feature, err.Error())
			return c, &LevelError{Change: it, Asked: d, Err: err}
		}
	}
	if unknown := r.Unknowns(); len(unknown) > 0 {
		return c, c.refused("", "start the broker, or unregister it if it is gone for good (kafka-cluster.sh unregister); unknown is not zero", unknown...)
	}
	for _, it := range c.Items {
		if err := r.checkSkew(c, it); err != nil {
			return c, err
		}
		if err := r.checkMeaning(c, it); err != nil {
			return c, err
		}
	}
	for _, it := range c.Items {
		if it.needed() && (it.To > *it.From) != (d == Upgrade) {
			err := &DirectionError{Change: it, Asked: d}
			c.refuse(it.Feature, err.Error())
			return c, err
		}
	}
	c.foresee()
	for i := range c.Items {
		if !c.Items[i].needed() {
			c.Items[i].Reason = new("already at level " + levelText(c.Items[i].Feature, c.Items[i].To))
		}
	}
	return c, nil
}

// refused returns a *RefusedError and marks the items.
func (c *Change) refused(culprit, advice string, reasons ...string) *RefusedError {
	err := &RefusedError{Op: c.Op(), Reasons: reasons, Advice: advice, Direction: c.Direction, Items: slices.Clone(c.Items)}
	if culprit == "" {
		for i := range c.Items {
			c.Items[i].Reason = new(strings.Join(reasons, "; "))
		}
		return err
	}
	c.refuse(culprit, strings.Join(reasons, "; "))
	return err
}

// checkSupported returns an error when no broker supports a level, by name of
// the feature or by number.
func (r *Report) checkSupported(it Item) *cluster.UnsupportedError {
	what := fmt.Sprintf("%s=%d", it.Feature, it.To)
	f, ok := r.Feature(it.Feature)
	if !ok {
		if !r.anySupported() {
			return nil // nothing is known, which is for another check
		}
		names := make([]string, 0, len(r.Features))
		for _, f := range r.Features {
			names = append(names, f.Name)
		}
		return &cluster.UnsupportedError{
			What: what, Reason: fmt.Sprintf("no broker knows feature %q", it.Feature),
			Advice: "known here are " + strings.Join(names, ", "),
		}
	}
	var ranges []string
	for _, b := range f.Brokers {
		switch {
		case b.Min == nil:
		case *b.Min <= it.To && it.To <= *b.Max:
			return nil
		default:
			if s := rangeText(b.Min, b.Max); !slices.Contains(ranges, s) {
				ranges = append(ranges, s)
			}
		}
	}
	if len(ranges) == 0 {
		return nil
	}
	e := &cluster.UnsupportedError{What: what, Reason: fmt.Sprintf("brokers support %s of %s", strings.Join(ranges, " or "), it.Feature)}
	if first := since(it.Feature, it.To); first != "" {
		e.Advice = fmt.Sprintf("level %s came with Kafka %s: upgrade the software first", levelText(it.Feature, it.To), first)
	}
	return e
}

func (r *Report) anySupported() bool {
	return slices.ContainsFunc(r.versions, func(b cluster.BrokerVersions) bool { return b.Supported != nil })
}

// checkSkew refuses a level that some brokers do not support, and a feature
// whose level brokers do not agree about. It is called when every broker is
// known.
func (r *Report) checkSkew(c *Change, it Item) error {
	f, ok := r.Feature(it.Feature)
	if !ok {
		return nil
	}
	var reasons []string
	for _, b := range f.Brokers {
		if it.To < *b.Min || it.To > *b.Max {
			reasons = append(reasons, fmt.Sprintf("broker %d supports %s of %s", b.NodeID, rangeText(b.Min, b.Max), it.Feature))
		}
	}
	if len(reasons) > 0 {
		return c.refused(it.Feature, "finish the rolling upgrade, so that every broker supports the level", reasons...)
	}
	levels := make(map[int16]bool)
	for _, b := range f.Brokers {
		levels[*b.Finalized] = true
		reasons = append(reasons, fmt.Sprintf("broker %d is at level %s of %s", b.NodeID, levelText(it.Feature, *b.Finalized), it.Feature))
	}
	if len(levels) > 1 {
		return c.refused(it.Feature, "wait until the brokers agree: another change may be on its way", reasons...)
	}
	return nil
}

// checkMeaning refuses to change share.version where it is not known what a
// level of it means.
func (r *Report) checkMeaning(c *Change, it Item) error {
	if it.Feature != wire.FeatureShareVersion || !it.needed() || max(it.To, *it.From) < releasedDeadLetters {
		return nil
	}
	switch r.support.Verdict {
	case cluster.Mixed, cluster.Unknown, cluster.Ambiguous:
		return c.refused(it.Feature, r.support.Unsupported().Hint(), fmt.Sprintf("it is not known what the level means here: %s", r.support.Reason))
	case cluster.Usable, cluster.NotEnabled, cluster.NotSupported:
	}
	return nil
}

// foresee finds out what else the change does.
func (c *Change) foresee() {
	s := c.report.support
	tvBefore, tvAfter := c.level(wire.FeatureTransactionVersion)
	svBefore, svAfter := c.level(wire.FeatureShareVersion)
	before, after := shareSense(svBefore, s), shareSense(svAfter, s)
	acksBefore := before.txnAcks && tvBefore >= wire.TransactionVersion
	acksAfter := after.txnAcks && tvAfter >= wire.TransactionVersion
	c.enables = acksAfter && !acksBefore
	c.losesTxnAcks = acksBefore && !acksAfter
	c.hidesTxnAcks = before.txnAcks && !after.txnAcks
	c.stopsGroups = before.shareGroups && !after.shareGroups
	c.cutsProducers = tvAfter < tvBefore
	for _, it := range c.Items {
		if it.needed() {
			c.Effects = append(c.Effects, c.effects(it)...)
		}
	}
	switch {
	case c.enables:
		c.Effects = append(c.Effects, fmt.Sprintf("brokers accept TxnShareAcknowledge (api key %d), and records can be in TX_PENDING", s.Dialect.Key))
	case c.losesTxnAcks:
		c.Effects = append(c.Effects, "clients that acknowledge in transactions are refused with UNSUPPORTED_VERSION")
	}
	if c.Direction == Downgrade && c.Needed() {
		c.Effects = append(c.Effects, levelsFirst)
	}
	for _, it := range c.Items {
		if text := c.noReturn(it); text != "" {
			c.NoReturn = append(c.NoReturn, text)
		}
	}
}

// levelsFirst is the order of a downgrade.
const levelsFirst = "levels come down first, binaries second: roll older software out only when every broker reports the lower level"

// level returns the level of a feature before and after the change; 0 for one
// that the cluster does not know.
func (c *Change) level(name string) (before, after int16) {
	if f, ok := c.report.Feature(name); ok && f.Finalized != nil {
		before = *f.Finalized
	}
	for _, it := range c.Items {
		if it.Feature == name {
			return before, it.To
		}
	}
	return before, before
}

func (c *Change) effects(it Item) []string {
	up := c.Direction == Upgrade
	switch it.Feature {
	case wire.FeatureShareVersion:
		return shareEffects(it, c.report.support)
	case wire.FeatureTransactionVersion:
		switch {
		case !up && *it.From >= wire.TransactionVersion:
			return []string{"producers that are running with transaction.version 2 are cut off: they end with UNSUPPORTED_VERSION, which is fatal, and have to be restarted"}
		case up && it.To >= wire.TransactionVersion:
			return []string{"transactional producers use the new protocol (KIP-890) from their next connection on"}
		}
	case metadataVersion:
		if !up {
			return []string{"a lower metadata.version may lose metadata; the controller decides whether it is allowed"}
		}
	case "group.version":
		if !up {
			return []string{"consumer groups of the new protocol (KIP-848) stop working"}
		}
	case "streams.version":
		if !up {
			return []string{"streams groups (KIP-1071) stop working"}
		}
	}
	return nil
}

// shareEffects tells the levels of share.version apart by what they switch on
// here. Raised to the dead-letter queue, it also says what that level is not:
// the KIP's own text gives its number to transactional acknowledgement.
func shareEffects(it Item, s cluster.Support) []string {
	before, after := shareSense(*it.From, s), shareSense(it.To, s)
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case after.shareGroups && !before.shareGroups:
		add("share groups are switched on (KIP-932)")
	case before.shareGroups && !after.shareGroups:
		add("share groups are switched off: every share session ends, and share consumers stop working")
	}
	switch {
	case after.deadLetters && !before.deadLetters && !after.txnAcks:
		add("on this cluster share.version=%d is %s, not transactional acknowledgement (KIP-1289); it came with metadata.version %s",
			it.To, after.text, levelText(metadataVersion, metadataVersionOfDeadLetters))
	case after.deadLetters && !before.deadLetters:
		add("dead-letter queues for share groups are switched on as well (KIP-1191)")
	case before.deadLetters && !after.deadLetters:
		add("dead-letter queues are switched off: records that are rejected, or delivered too often, are archived and not written to a dead-letter topic")
	}
	return out
}

// metadataVersionOfDeadLetters is 4.4-IV0.
const metadataVersionOfDeadLetters = 31

// noReturn says which software is left behind by a level that is raised; "" if
// the level in force has left it behind before.
func (c *Change) noReturn(it Item) string {
	if c.Direction != Upgrade || !it.needed() {
		return ""
	}
	what := ""
	if it.Feature == wire.FeatureShareVersion && shareSense(it.To, c.report.support).txnAcks {
		what = "software without KIP-1289"
	} else if first := since(it.Feature, it.To); first != "" && (*it.From == 0 || first != since(it.Feature, *it.From)) {
		what = "software older than Kafka " + first
	}
	if what == "" {
		return ""
	}
	return fmt.Sprintf("point of no return: %s cannot start after this, unless %s is lowered first", what, it.Feature)
}
