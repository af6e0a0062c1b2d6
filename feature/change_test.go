package feature

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kversion"
)

func updates(t *testing.T, s ...string) []Update {
	t.Helper()
	var out []Update
	for _, s := range s {
		u, err := ParseUpdate(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
	return out
}

// kind names the type of an error for tables.
func kind(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.As(err, new(*DirectionError)):
		return "direction"
	case errors.As(err, new(*RefusedError)):
		return "refused"
	case errors.As(err, new(*LevelError)):
		return "level"
	case errors.As(err, new(*cluster.UnsupportedError)):
		return "unsupported"
	}
	return err.Error()
}

func TestNewUpgrade(t *testing.T) {
	old := released(kversion.V4_2_0())
	for name, c := range map[string]struct {
		brokers  []cluster.BrokerVersions
		updates  []string
		err      string // kind
		text     string // part of the error
		effects  []string
		noReturn []string
		items    []string // reasons by feature; "" is none
	}{
		"dead-letter queue on stock 4.4": {
			brokers: []cluster.BrokerVersions{stock44(1)}, updates: []string{"share.version=2"}, items: []string{""},
			effects:  []string{"on this cluster share.version=2 is share groups with dead-letter queues (KIP-1191), not transactional acknowledgement (KIP-1289); it came with metadata.version 31 (4.4-IV0)"},
			noReturn: []string{"software older than Kafka 4.4 cannot start after this"},
		},
		"share groups": {
			brokers: []cluster.BrokerVersions{stock44(0)}, updates: []string{"share.version=1"}, items: []string{""},
			effects: []string{"share groups are switched on"}, noReturn: []string{"software older than Kafka 4.1"},
		},
		"the KIP": {
			brokers: []cluster.BrokerVersions{kip(1, 2)}, updates: []string{"share.version=2"}, items: []string{""},
			effects: []string{"brokers accept TxnShareAcknowledge (api key 93)"}, noReturn: []string{"software without KIP-1289"},
		},
		"the draft has the dead-letter queue too": {
			brokers: []cluster.BrokerVersions{draft(1)}, updates: []string{"share.version=3"}, items: []string{""},
			effects:  []string{"dead-letter queues for share groups are switched on as well", "brokers accept TxnShareAcknowledge (api key 95)"},
			noReturn: []string{"software without KIP-1289"},
		},
		"both levels of the KIP in one request": {
			brokers: []cluster.BrokerVersions{kip(1, 0)}, updates: []string{"transaction.version=2", "share.version=2"}, items: []string{"", ""},
			effects:  []string{"transactional producers use the new protocol", "brokers accept TxnShareAcknowledge"},
			noReturn: []string{"software without KIP-1289", "software older than Kafka 4.0"},
		},
		"no new point of no return": {
			brokers: []cluster.BrokerVersions{kip(1, 1)}, updates: []string{"transaction.version=2"}, items: []string{""},
			effects: []string{"transactional producers use the new protocol"},
		},
		"the KIP without its transactions": {
			brokers: []cluster.BrokerVersions{kip(1, 1)}, updates: []string{"share.version=2"}, err: "refused",
			text: "share.version=2 needs transaction.version=2, which is at 1", items: []string{"share.version=2 needs"},
		},
		"already so": {
			brokers: []cluster.BrokerVersions{stock44(2)}, updates: []string{"share.version=2"}, items: []string{"already at level 2"},
		},
		"one of two already so": {
			brokers: []cluster.BrokerVersions{kip(1, 2)}, updates: []string{"share.version=2", "transaction.version=2"}, items: []string{"", "already at level 2"},
			effects: []string{"brokers accept TxnShareAcknowledge"}, noReturn: []string{"software without KIP-1289"},
		},
		"a level that nobody supports": {
			brokers: []cluster.BrokerVersions{stock44(1)}, updates: []string{"share.version=99", "group.version=1"}, err: "level",
			text: "share.version=99 cannot be used on this cluster: brokers support 0-2 of share.version", items: []string{"", "share.version=99 cannot be used"},
		},
		"a level of newer software": {
			brokers: []cluster.BrokerVersions{old}, updates: []string{"share.version=2"}, err: "level", text: "brokers support 0-1", items: []string{"share.version=2 cannot"},
		},
		"a feature that nobody knows": {
			brokers: []cluster.BrokerVersions{stock44(1)}, updates: []string{"x.version=1"}, err: "level", text: `no broker knows feature "x.version"`, items: []string{"x.version=1 cannot"},
		},
		"one broker at the old software": {
			brokers: []cluster.BrokerVersions{stock44(1), old, stock44(1)}, updates: []string{"share.version=2"}, err: "refused",
			text: "broker 1 supports 0-1 of share.version", items: []string{"broker 1 supports"},
		},
		"one broker behind with the level": {
			brokers: []cluster.BrokerVersions{atEpoch(stock44(0), 3), stock44(1)}, updates: []string{"share.version=2"}, err: "refused",
			text: "broker 0 is at level 0 of share.version; broker 1 is at level 1", items: []string{"broker 0 is at level 0"},
		},
		"one broker silent": {
			brokers: []cluster.BrokerVersions{stock44(1), silent()}, updates: []string{"share.version=2"}, err: "refused",
			text: "broker 1 (broker:9092) did not answer", items: []string{"broker 1"},
		},
		"no broker answers": {
			brokers: []cluster.BrokerVersions{silent()}, updates: []string{"share.version=2"}, err: "refused", text: "did not answer", items: []string{"broker 0"},
		},
		"no broker is named": {
			updates: []string{"share.version=2"}, err: "refused", text: "no broker is known", items: []string{"no broker is known"},
		},
		"levels that are not known": {
			brokers: []cluster.BrokerVersions{atEpoch(stock44(1), -1)}, updates: []string{"share.version=2"}, err: "refused", text: "epoch -1", items: []string{"epoch -1"},
		},
		"downwards": {
			brokers: []cluster.BrokerVersions{stock44(2)}, updates: []string{"share.version=1"}, err: "direction",
			text: "share.version is at level 2, so level 1 is a downgrade and not an upgrade", items: []string{"is a downgrade"},
		},
		"a level that means something else to each broker": {
			brokers: []cluster.BrokerVersions{kip(1, 2), supporting(stock44(1), "metadata.version", 7, 30)}, updates: []string{"share.version=2"}, err: "refused",
			text: "it is not known what the level means here: brokers do not agree", items: []string{"it is not known"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			change, err := NewUpgrade(report(c.brokers...), updates(t, c.updates...))
			checkChange(t, change, err, c.err, c.text, c.items)
			if err == nil {
				wantSentences(t, "effects", change.Effects, c.effects)
				wantSentences(t, "points of no return", change.NoReturn, c.noReturn)
			}
		})
	}
}

func checkChange(t *testing.T, change *Change, err error, wantKind, text string, reasons []string) {
	t.Helper()
	if kind(err) != wantKind || err != nil && !strings.Contains(err.Error(), text) {
		t.Fatalf("error %v (%s), want %s with %q", err, kind(err), wantKind, text)
	}
	if len(change.Items) != len(reasons) {
		t.Fatalf("%d items, want %d", len(change.Items), len(reasons))
	}
	for i, it := range change.Items {
		got := ""
		if it.Reason != nil {
			got = *it.Reason
		}
		if reasons[i] == "" && err != nil {
			if it.needed() && got != notApplied {
				t.Errorf("%s: reason %q, want %q", it.Feature, got, notApplied)
			}
			continue
		}
		if reasons[i] == "" && got != "" || !strings.Contains(got, reasons[i]) {
			t.Errorf("%s: reason %q, want %q", it.Feature, got, reasons[i])
		}
		if it.Applied {
			t.Errorf("%s is applied before anything was sent", it.Feature)
		}
	}
	if h, ok := errors.AsType[interface {
		error
		Hint() string
	}](err); err != nil && (!ok || h.Hint() == "") && wantKind != "level" {
		t.Errorf("error %v does not say what to do", err)
	}
}

func TestNewDowngrade(t *testing.T) {
	for name, c := range map[string]struct {
		brokers      []cluster.BrokerVersions
		updates      []string
		err, text    string
		items        []string
		effects      []string
		losesTxnAcks bool
		cutProducers bool
	}{
		"dead-letter queue off on stock 4.4": {
			brokers: []cluster.BrokerVersions{stock44(2)}, updates: []string{"share.version=1"}, items: []string{""},
			effects: []string{"dead-letter queues are switched off", levelsFirst},
		},
		"share groups off": {
			brokers: []cluster.BrokerVersions{stock44(1)}, updates: []string{"share.version=0"}, items: []string{""},
			effects: []string{"share groups are switched off", levelsFirst},
		},
		"everything off": {
			brokers: []cluster.BrokerVersions{draft(3)}, updates: []string{"share.version=0"}, items: []string{""}, losesTxnAcks: true,
			effects: []string{"share groups are switched off", "dead-letter queues are switched off", "clients that acknowledge in transactions", levelsFirst},
		},
		"the KIP off": {
			brokers: []cluster.BrokerVersions{kip(2, 2)}, updates: []string{"share.version=1"}, items: []string{""}, losesTxnAcks: true,
			effects: []string{"clients that acknowledge in transactions", levelsFirst},
		},
		"the KIP off, by its transactions": {
			brokers: []cluster.BrokerVersions{kip(2, 2)}, updates: []string{"transaction.version=1"}, items: []string{""}, losesTxnAcks: true, cutProducers: true,
			effects: []string{"producers that are running with transaction.version 2 are cut off", "clients that acknowledge in transactions", levelsFirst},
		},
		"the draft down to the dead-letter queue": {
			brokers: []cluster.BrokerVersions{draft(3)}, updates: []string{"share.version=2"}, items: []string{""}, losesTxnAcks: true,
			effects: []string{"clients that acknowledge in transactions", levelsFirst},
		},
		"transactions from 1 to 0": {
			brokers: []cluster.BrokerVersions{at(stock44(2), "transaction.version", 1)}, updates: []string{"transaction.version=0"}, items: []string{""}, cutProducers: true,
			effects: []string{levelsFirst},
		},
		"metadata.version": {
			brokers: []cluster.BrokerVersions{stock44(2)}, updates: []string{"metadata.version=4.4-IV0"}, items: []string{""},
			effects: []string{"a lower metadata.version may lose metadata", levelsFirst},
		},
		"other groups": {
			brokers: []cluster.BrokerVersions{stock44(2)}, updates: []string{"group.version=0", "streams.version=0"}, items: []string{"", ""},
			effects: []string{"consumer groups of the new protocol", "streams groups", levelsFirst},
		},
		"already so": {brokers: []cluster.BrokerVersions{stock44(1)}, updates: []string{"share.version=1"}, items: []string{"already at level 1"}},
		"upwards": {
			brokers: []cluster.BrokerVersions{stock44(1)}, updates: []string{"share.version=2"}, err: "direction",
			text: "share.version is at level 1, so level 2 is an upgrade and not a downgrade", items: []string{"is an upgrade"},
		},
		"a broker silent": {
			brokers: []cluster.BrokerVersions{stock44(2), silent()}, updates: []string{"share.version=1"}, err: "refused", text: "did not answer", items: []string{"broker 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			change, err := NewDowngrade(report(c.brokers...), updates(t, c.updates...), false)
			checkChange(t, change, err, c.err, c.text, c.items)
			if err != nil {
				return
			}
			wantSentences(t, "effects", change.Effects, c.effects)
			if len(change.NoReturn) > 0 {
				t.Errorf("a downgrade has points of no return: %q", change.NoReturn)
			}
			if change.losesTxnAcks != c.losesTxnAcks || change.cutsProducers != c.cutProducers {
				t.Errorf("loses acknowledgements %v, cuts producers %v, want %v, %v", change.losesTxnAcks, change.cutsProducers, c.losesTxnAcks, c.cutProducers)
			}
		})
	}
}

func TestGuard(t *testing.T) {
	holding, other := holdingAcks("holding", "PrepareCommit"), plain("plain", "Ongoing")
	unclear := inspect.Transaction{TransactionalID: "unclear", State: "Ongoing", ProducerEpoch: -1, TimeoutMS: -1}
	twoPhase := holdingAcks("flink", "Ongoing")
	twoPhase.TimeoutMS = inspect.TwoPhaseTimeoutMS
	orphan := using()
	orphan.States = []inspect.ShareState{{
		GroupID: "g", Partition: 1, Batches: []wire.StateBatch{{
			FirstOffset: 1, LastOffset: 2, DeliveryState: wire.TxPending, Staged: wire.StagedOwner{ProducerID: 77, ProducerEpoch: 3},
		}},
	}}
	for name, c := range map[string]struct {
		broker  cluster.BrokerVersions
		updates []string
		seen    *inspect.Evidence // nil is nobody
		o       GuardOptions
		text    string // part of the refusal; "" is none
		by      []string
		rows    int
	}{
		"nothing open":                            {broker: kip(2, 2), updates: []string{"share.version=1"}},
		"other transactions do not matter":        {broker: kip(2, 2), updates: []string{"share.version=1"}, seen: using(other)},
		"share acknowledgements":                  {broker: kip(2, 2), updates: []string{"share.version=1"}, seen: using(holding, other), text: `1 open transaction holds or may hold share acknowledgements: "holding" (PrepareCommit)`, by: []string{"holding"}, rows: 1},
		"perhaps share acknowledgements":          {broker: kip(2, 2), updates: []string{"share.version=1"}, seen: hiding(unclear), text: `"unclear"`, by: []string{"unclear"}, rows: 1},
		"left behind":                             {broker: kip(2, 2), updates: []string{"share.version=1"}, seen: orphan, text: "1 producer has left records in TX_PENDING, and no transaction will end that: producer 77", rows: 1},
		"something hidden":                        {broker: kip(2, 2), updates: []string{"share.version=1"}, seen: hiding(), text: "unknown is not zero: hidden"},
		"something hidden cannot be forced":       {broker: kip(2, 2), updates: []string{"share.version=1"}, o: GuardOptions{ForceLiveProducers: true}, seen: hiding(), text: "unknown is not zero"},
		"stock 4.4 has no share acknowledgements": {broker: stock44(2), updates: []string{"share.version=1"}, seen: hiding(holding)},
		"live producers":                          {broker: stock44(2), updates: []string{"transaction.version=1"}, seen: using(holding, other), text: `2 producers have open transactions: "holding" (PrepareCommit), "plain" (Ongoing)`, by: []string{"holding", "plain"}},
		"live producers, accepted":                {broker: stock44(2), updates: []string{"transaction.version=1"}, o: GuardOptions{ForceLiveProducers: true}, seen: using(other)},
		"live producers, hidden":                  {broker: stock44(2), updates: []string{"transaction.version=1"}, seen: hiding(), text: "unknown is not zero"},
		"live producers, hidden and accepted":     {broker: stock44(2), updates: []string{"transaction.version=1"}, o: GuardOptions{ForceLiveProducers: true}, seen: hiding()},
		"forcing producers strands no records":    {broker: kip(2, 2), updates: []string{"transaction.version=1"}, o: GuardOptions{ForceLiveProducers: true}, seen: using(holding), text: "share acknowledgements", by: []string{"holding"}, rows: 1},
		"another feature":                         {broker: stock44(2), updates: []string{"group.version=0"}, seen: using(other)},
		"nothing to change":                       {broker: kip(1, 2), updates: []string{"share.version=1"}, seen: using(holding)},
		"a drain waits for it":                    {broker: kip(2, 2), updates: []string{"share.version=1"}, o: GuardOptions{WillDrain: true}, seen: using(holding)},
		"a drain waits for producers":             {broker: stock44(2), updates: []string{"transaction.version=1"}, o: GuardOptions{WillDrain: true}, seen: using(other)},
		"a drain does not wait for ever":          {broker: kip(2, 2), updates: []string{"share.version=1"}, o: GuardOptions{WillDrain: true}, seen: using(holding, twoPhase), text: `1 open transaction holds or may hold share acknowledgements: "flink" (Ongoing)`, by: []string{"flink"}, rows: 2},
		"a drain sees what is hidden no better":   {broker: kip(2, 2), updates: []string{"share.version=1"}, o: GuardOptions{WillDrain: true}, seen: hiding(), text: "unknown is not zero"},
	} {
		t.Run(name, func(t *testing.T) {
			change, err := NewDowngrade(report(c.broker), updates(t, c.updates...), false)
			if err != nil {
				t.Fatal(err)
			}
			if c.seen == nil {
				c.seen = using()
			}
			err = change.Guard(c.seen, c.o)
			if c.text == "" {
				if err != nil {
					t.Errorf("Guard refuses: %v", err)
				}
				return
			}
			e, ok := errors.AsType[*RefusedError](err)
			if !ok || !strings.Contains(err.Error(), c.text) || e.Hint() == "" {
				t.Fatalf("Guard = %v, want a refusal with %q", err, c.text)
			}
			var by []string
			for _, tx := range e.Transactions {
				by = append(by, tx.TransactionalID)
			}
			if !slices.Equal(by, c.by) || len(e.Pending) != c.rows {
				t.Errorf("refused by %q with %d rows, want %q with %d", by, len(e.Pending), c.by, c.rows)
			}
		})
	}
}

// Where nobody has looked, nobody knows.
func TestGuardWithoutLook(t *testing.T) {
	for _, b := range []cluster.BrokerVersions{kip(2, 2), stock44(2)} {
		change, err := NewDowngrade(report(b), updates(t, "transaction.version=1"), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := change.Guard(nil, GuardOptions{}); kind(err) != "refused" {
			t.Errorf("Guard(nil) = %v, want a refusal", err)
		}
	}
}

func TestManyTransactionsAreNotAllNamed(t *testing.T) {
	var ts []Transaction
	for range 25 {
		ts = append(ts, Transaction{TransactionalID: "x", State: "Ongoing"})
	}
	if got := ids(ts); strings.Count(got, `"x"`) != 10 || !strings.HasSuffix(got, "and 15 more") {
		t.Errorf("ids(25) = %s, want ten and the number of others", got)
	}
}

func TestEnableUpdates(t *testing.T) {
	for name, c := range map[string]struct {
		brokers    []cluster.BrokerVersions
		want       []string
		err        string
		plan       []string // of PlanEnable; nil is as want
		planRefuse bool
	}{
		"kip":                {brokers: []cluster.BrokerVersions{kip(1, 1)}, want: []string{"share.version=2", "transaction.version=2"}},
		"draft":              {brokers: []cluster.BrokerVersions{draft(1)}, want: []string{"share.version=3", "transaction.version=2"}},
		"already so":         {brokers: []cluster.BrokerVersions{kip(2, 2)}, want: []string{"share.version=2", "transaction.version=2"}},
		"stock 4.4":          {brokers: []cluster.BrokerVersions{stock44(2)}, err: "unsupported", planRefuse: true},
		"in a rolling":       {brokers: []cluster.BrokerVersions{kip(1, 2), released(kversion.V4_3_0())}, err: "refused", plan: []string{"share.version=2", "transaction.version=2"}},
		"two dialects":       {brokers: []cluster.BrokerVersions{kip(1, 2), draft(1)}, err: "refused", planRefuse: true},
		"nobody answers":     {brokers: []cluster.BrokerVersions{silent()}, err: "refused", planRefuse: true},
		"a level is higher":  {brokers: []cluster.BrokerVersions{at(supporting(draft(3), "share.version", 0, 4), "share.version", 4)}, want: []string{"share.version=4", "transaction.version=2"}},
		"ambiguous is asked": {brokers: []cluster.BrokerVersions{supporting(kip(2, 2), "share.version", 0, 3)}, err: "unsupported", planRefuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := report(c.brokers...)
			got, err := r.EnableUpdates()
			if kind(err) != c.err || err == nil && !slices.Equal(got, updates(t, c.want...)) {
				t.Errorf("EnableUpdates() = %v, %v, want %v, %q", got, err, c.want, c.err)
			}
			if c.plan == nil {
				c.plan = c.want
			}
			got, err = r.PlanEnable()
			if (err != nil) != c.planRefuse || err == nil && !slices.Equal(got, updates(t, c.plan...)) {
				t.Errorf("PlanEnable() = %v, %v, want %v", got, err, c.plan)
			}
		})
	}
}
