package inspect

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// brokerLook is what one broker says at one time: metrics by ID, a split behind a
// space. A nil map is a broker that is silent.
type brokerLook map[string]float64

// looksOf makes looks at brokers "b0", "b1", ... of one endpoint, 15 s apart.
func looksOf(t *testing.T, index *metricIndex, brokers ...[]brokerLook) (names [][]string, history []metricsLook) {
	t.Helper()
	for i := range brokers[0] {
		l := metricsLook{time: metricsTime.Add(time.Duration(i) * 15 * time.Second)}
		for b, looks := range brokers {
			a := endpointAnswer{values: make(map[seriesKey]metricValue)}
			if looks[i] == nil {
				a = endpointAnswer{err: errors.New("no answer within 5s")}
			}
			for id, v := range looks[i] {
				id, split, _ := strings.Cut(id, " ")
				at := slices.IndexFunc(index.metrics, func(m Metric) bool { return m.ID() == id })
				if at < 0 {
					t.Fatalf("no metric %q", id)
				}
				a.values[seriesKey{at, "b" + string('0'+rune(b)), split}] = metricValue{v, 1}
			}
			l.answers = append(l.answers, a)
		}
		history = append(history, l)
	}
	for b := range brokers {
		names = append(names, []string{"b" + string('0'+rune(b))})
	}
	return names, history
}

// Each alert by what a broker says in one look or in several: its state and the
// reason.
func TestAlerts(t *testing.T) {
	const (
		pending  = "KafkaShareTxnPendingRecords"
		stuck    = "KafkaShareTxnPendingStuck"
		expired  = "KafkaShareTxnPendingLockExpired"
		failures = "KafkaShareTxnAcknowledgeErrors"
		slow     = "KafkaShareTxnAcknowledgeSlow"
		timeouts = "KafkaShareAcquisitionLockTimeouts"
		late     = "KafkaShareLateTransactions"
		bad      = idErrors + " INVALID_TXN_STATE"
		none     = idErrors + " NONE"
	)
	of := func(id string, values ...float64) []brokerLook {
		var out []brokerLook
		for _, v := range values {
			out = append(out, brokerLook{id: v})
		}
		return out
	}
	and := func(looks []brokerLook, id string, values ...float64) []brokerLook {
		for i, v := range values {
			looks[i][id] = v
		}
		return looks
	}
	for _, c := range []struct {
		alert  string
		looks  []brokerLook
		state  AlertState
		reason string // "" is not looked at where the state is ok
	}{
		{pending, of(idPending, 0), AlertOK, ""},
		{pending, of(idPending, 3), AlertWatch, "3 records in TX_PENDING now"},
		{pending, of(idPending, 3, 1, 2), AlertFiring, "2 records in TX_PENDING, all the time for 30s"},
		{pending, of(idPending, 3, 0, 2), AlertOK, ""},
		{pending, of(idPending, 3, 3, 0), AlertOK, ""},
		{pending, []brokerLook{{}}, AlertUnknown, "no TxnPendingRecordsCount (KIP-1289)"},
		{pending, []brokerLook{nil}, AlertUnknown, "no answer within 5s"},
		{pending, []brokerLook{{idPending: 3}, nil}, AlertUnknown, "no answer within 5s"},
		{pending, []brokerLook{nil, {idPending: 3}}, AlertUnknown, "no TxnPendingRecordsCount (KIP-1289) in look 1"},
		{pending, []brokerLook{nil, {idPending: 0}}, AlertOK, ""}, // none now, whatever was before

		{stuck, of(idPending, 3), AlertWatch, "3 records in TX_PENDING now"},
		{stuck, of(idPending, 0), AlertOK, ""},
		{stuck, and(of(idPending, 3, 3), idStages, 7, 7), AlertFiring, "3 records in TX_PENDING, all the time for 15s, and nothing was staged meanwhile"},
		{stuck, and(of(idPending, 3, 3), idStages, 7, 8), AlertOK, ""},
		{stuck, and(of(idPending, 3, 0), idStages, 7, 7), AlertOK, ""},
		{stuck, and(of(idPending, 3, 3), idStages, 7), AlertUnknown, "no TxnShareAcknowledgeRequestLatencyMs/Count (KIP-1289)"},
		{stuck, []brokerLook{{idStages: 7}}, AlertUnknown, "no TxnPendingRecordsCount (KIP-1289)"},

		{expired, of(idExpired, 0), AlertOK, ""},
		{expired, of(idExpired, 2), AlertFiring, "2 records since the broker started"},
		{expired, of(idExpired, 2, 2), AlertOK, ""}, // nothing new
		{expired, of(idExpired, 2, 5), AlertFiring, "3 records in 15s"},
		{expired, of(idExpired, 9, 1), AlertFiring, "1 record in 15s"}, // a new life
		{expired, []brokerLook{{}}, AlertUnknown, "no TxnPendingLockExpiredCount/Count (KIP-1289)"},
		{expired, []brokerLook{{}, {idExpired: 1}}, AlertUnknown, "no TxnPendingLockExpiredCount/Count (KIP-1289)"},

		{failures, of(none, 9), AlertOK, ""},
		{failures, and(of(none, 9), bad, 2), AlertWatch, "2 errors since the broker started"},
		{failures, and(of(none, 9, 9), bad, 2, 2), AlertOK, ""},
		{failures, and(of(none, 9, 9), bad, 2, 5), AlertFiring, "3 errors in 15s"},
		{failures, []brokerLook{{none: 9}, {none: 9, bad: 1}}, AlertFiring, "1 error in 15s"}, // the first of its code
		{failures, and(of(none, 9, 1), bad, 5, 1), AlertFiring, "1 error in 15s"},             // a new life
		{failures, of(idStages, 0), AlertOK, ""},                                              // no request yet
		{failures, of(idStages, 4), AlertUnknown, "no ErrorsPerSec/Count (KIP-1289)"},
		{failures, []brokerLook{{}}, AlertUnknown, "no ErrorsPerSec/Count (KIP-1289)"},
		{failures, []brokerLook{{idStages: 0}, {idStages: 1, bad: 1}}, AlertFiring, "1 error in 15s"},
		{failures, []brokerLook{{idStages: 4}, {idStages: 5, bad: 1}}, AlertUnknown, "no ErrorsPerSec/Count (KIP-1289) in look 1"},

		{slow, of(idStageTime, 1000), AlertOK, ""},
		{slow, of(idStageTime, 1000.5), AlertWatch, "1000.5 ms now"},
		{slow, and(of(idStageTime, 1200, 1300), idStages, 1, 2), AlertFiring, "1300 ms, all the time for 15s"},
		{slow, and(of(idStageTime, 1200, 1200), idStages, 2, 2), AlertOK, ""}, // of long ago
		{slow, of(idStageTime, 1200, 1200), AlertUnknown, "no TxnShareAcknowledgeRequestLatencyMs/Count (KIP-1289)"},

		{timeouts, of(idTimeoutsS, 0.001), AlertOK, ""},
		{timeouts, of(idTimeoutsS, 0.5), AlertFiring, "30 records a minute"},
		{timeouts, of(idSessions, 0), AlertOK, ""}, // nothing is loaded
		{timeouts, of(idSessions, 1), AlertUnknown, "no AcquisitionLockTimeoutPerSec/OneMinuteRate"},
		{timeouts, []brokerLook{{}}, AlertUnknown, "no AcquisitionLockTimeoutPerSec/OneMinuteRate"},
		{timeouts, of(idTimeouts, 4, 4), AlertOK, ""},
		{timeouts, of(idTimeouts, 4, 9), AlertFiring, "5 records in 15s"},
		{timeouts, of(idTimeouts, 9, 4), AlertOK, ""}, // share-partitions are loaded no more
		{timeouts, []brokerLook{{idSessions: 0}, {idTimeouts: 2}}, AlertFiring, "2 records in 15s"},
		{timeouts, []brokerLook{{idTimeouts: 2}, {idSessions: 0}}, AlertOK, ""},
		{timeouts, []brokerLook{{idTimeouts: 2}, {}}, AlertUnknown, "no AcquisitionLockTimeoutPerSec/Count"},

		{late, of(idLate, 0), AlertOK, ""},
		{late, of(idLate, 2), AlertFiring, "2 partitions"},
		{late, of(idLate, 2, 0), AlertOK, ""},
		{late, []brokerLook{{}}, AlertUnknown, "no PartitionsWithLateTransactionsCount"},
	} {
		index := newMetricIndex(Metrics())
		brokers, history := looksOf(t, index, c.looks)
		got := judgeMetrics([]string{c.alert}, index, brokers, history)
		if len(got) != 1 || got[0].Alert != c.alert || got[0].State != c.state {
			t.Errorf("%s of %v = %+v, want %s", c.alert, c.looks, got, c.state)
			continue
		}
		want := "broker b0: " + c.reason
		if c.state == AlertOK {
			want = ""
		}
		if got[0].Reason != want {
			t.Errorf("%s of %v: reason %q, want %q", c.alert, c.looks, got[0].Reason, want)
		}
		if ok := c.state == AlertOK; ok != (len(got[0].Brokers) == 0) || got[0].Brokers == nil {
			t.Errorf("%s of %v: brokers %q", c.alert, c.looks, got[0].Brokers)
		}
	}
}

// The worst broker decides: one that fires, then one that may, then one of which
// nothing is known.
func TestAlertsOfManyBrokers(t *testing.T) {
	n := func(v float64) []brokerLook { return []brokerLook{{idPending: v, idExpired: v}} }
	index := newMetricIndex(Metrics())
	for _, c := range []struct {
		brokers [][]brokerLook
		alert   int
		state   AlertState
		reason  string
		of      []string
	}{
		{[][]brokerLook{n(0), n(0)}, 0, AlertOK, "", []string{}},
		{[][]brokerLook{n(0), {{}}, n(0)}, 0, AlertUnknown, "broker b1: no TxnPendingRecordsCount (KIP-1289)", []string{"b1"}},
		{[][]brokerLook{{{}}, n(2), n(1)}, 0, AlertWatch, "broker b1: 2 records in TX_PENDING now, broker b2: 1 record in TX_PENDING now", []string{"b1", "b2"}},
		{[][]brokerLook{{nil}, n(0), n(1)}, 2, AlertFiring, "broker b2: 1 record since the broker started", []string{"b2"}},
		{
			[][]brokerLook{n(1), n(1), n(1), n(1), n(1), n(1)},
			2, AlertFiring,
			strings.Join([]string{
				"broker b0: 1 record since the broker started", "broker b1: 1 record since the broker started",
				"broker b2: 1 record since the broker started", "broker b3: 1 record since the broker started", "and 2 more",
			}, ", "),
			[]string{"b0", "b1", "b2", "b3", "b4", "b5"},
		},
	} {
		brokers, history := looksOf(t, index, c.brokers...)
		all := judgeMetrics(nil, index, brokers, history)
		if len(all) != len(AlertNames()) {
			t.Fatalf("%d of %d alerts", len(all), len(AlertNames()))
		}
		if got := all[c.alert]; got.State != c.state || got.Reason != c.reason || !reflect.DeepEqual(got.Brokers, c.of) {
			t.Errorf("%v: %s %q of %q, want %s %q of %q", c.brokers, got.State, got.Reason, got.Brokers, c.state, c.reason, c.of)
		}
	}
}

// What fires wins over what is not decided, and that over nothing.
func TestCheckAlerts(t *testing.T) {
	alert := func(name string, s AlertState) MetricAlert {
		return MetricAlert{Alert: name, Severity: "critical", State: s, Reason: "why " + name, Advice: "do " + name}
	}
	for _, c := range []struct {
		alerts    []MetricAlert
		err, hint string
	}{
		{nil, "", ""},
		{[]MetricAlert{alert("a", AlertOK)}, "", ""},
		{[]MetricAlert{alert("a", AlertUnknown), alert("b", AlertFiring), alert("c", AlertFiring)}, "alerts fire: b (critical): why b; c (critical): why c", "do b"},
		{[]MetricAlert{alert("a", AlertOK), alert("b", AlertUnknown)}, "alerts are not decided: b: unknown: why b", "look whether the brokers have these metrics and their exporters let them through; --alert NAME checks some alone"},
		{[]MetricAlert{{Alert: "a", State: AlertUnknown, Reason: "r"}, {Alert: "b", State: AlertUnknown, Reason: "s"}, {Alert: "c", State: AlertUnknown, Reason: "r"}}, "alerts are not decided: a, c: unknown: r; b: unknown: s", "look whether the brokers have these metrics and their exporters let them through; --alert NAME checks some alone"},
		{[]MetricAlert{alert("a", AlertUnknown), alert("b", AlertWatch)}, "alerts are not decided: a: unknown: why a; b: watch: why b", "--for 60s looks longer, which tells what lasts; --alert NAME checks some alone"},
	} {
		err := (&MetricsReport{Alerts: c.alerts}).CheckAlerts()
		if c.err == "" {
			if err != nil {
				t.Errorf("%v: %v", c.alerts, err)
			}
			continue
		}
		h, ok := errors.AsType[interface {
			error
			Hint() string
		}](err)
		if !ok || err.Error() != c.err || h.Hint() != c.hint {
			t.Errorf("%v: %v, want %q with the hint %q", c.alerts, err, c.err, c.hint)
		}
	}
}
