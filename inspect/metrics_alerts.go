package inspect

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AlertState says whether an alert would fire.
type AlertState string

// The states of an alert, in the order in which one of many brokers decides for
// all.
const (
	AlertFiring AlertState = "firing"
	// AlertWatch: what it is about holds now. Whether it lasts, only more looks
	// tell.
	AlertWatch AlertState = "watch"
	// AlertUnknown: a metric that it needs is missing, which is not 0.
	AlertUnknown AlertState = "unknown"
	AlertOK      AlertState = "ok"
)

// MetricAlert is the judgement on one alert.
type MetricAlert struct {
	Alert    string     `json:"alert"`    // as in examples/monitoring/alerts.yml
	Severity string     `json:"severity"` // critical or warning
	State    AlertState `json:"state"`
	Reason   string     `json:"reason"`  // for the state, without a full stop; "" when ok
	Brokers  []string   `json:"brokers"` // that are in the state; [] when ok
	Metrics  []string   `json:"metrics"` // that it looks at, by Metric.ID
	Meaning  string     `json:"meaning"` // of its firing, a sentence without full stop
	Advice   string     `json:"advice"`  // what to do when it fires
}

// Decided reports whether the alert fires, or does not.
func (a MetricAlert) Decided() bool { return a.State == AlertFiring || a.State == AlertOK }

// AlertError says which alerts fire.
type AlertError struct{ Firing []MetricAlert }

// Error names the alerts.
func (e *AlertError) Error() string {
	var parts []string
	for _, a := range e.Firing {
		parts = append(parts, fmt.Sprintf("%s (%s): %s", a.Alert, a.Severity, a.Reason))
	}
	return "alerts fire: " + strings.Join(parts, "; ")
}

// Hint returns what to do about the first alert.
func (e *AlertError) Hint() string { return e.Firing[0].Advice }

// UndecidedError says which alerts could not be judged.
type UndecidedError struct{ Alerts []MetricAlert }

// Error names the alerts, those with the same reason together.
func (e *UndecidedError) Error() string {
	names := make(map[string][]string)
	var why []string
	for _, a := range e.Alerts {
		reason := string(a.State) + ": " + a.Reason
		if names[reason] == nil {
			why = append(why, reason)
		}
		names[reason] = append(names[reason], a.Alert)
	}
	parts := make([]string, 0, len(why))
	for _, reason := range why {
		parts = append(parts, strings.Join(names[reason], ", ")+": "+reason)
	}
	return "alerts are not decided: " + strings.Join(parts, "; ")
}

// Hint returns how they could be.
func (e *UndecidedError) Hint() string {
	if slices.ContainsFunc(e.Alerts, func(a MetricAlert) bool { return a.State == AlertWatch }) {
		return "--for 60s looks longer, which tells what lasts; --alert NAME checks some alone"
	}
	return "look whether the brokers have these metrics and their exporters let them through; --alert NAME checks some alone"
}

// CheckAlerts returns an *[AlertError] if an alert fires, else an *[UndecidedError]
// if one could not be judged, else nil.
func (r *MetricsReport) CheckAlerts() error {
	var firing, undecided []MetricAlert
	for _, a := range r.Alerts {
		switch {
		case a.State == AlertFiring:
			firing = append(firing, a)
		case !a.Decided():
			undecided = append(undecided, a)
		}
	}
	switch {
	case len(firing) > 0:
		return &AlertError{firing}
	case len(undecided) > 0:
		return &UndecidedError{undecided}
	}
	return nil
}

// The metrics that alerts look at, by Metric.ID.
const (
	idPending   = "TxnPendingRecordsCount"
	idExpired   = "TxnPendingLockExpiredCount/Count"
	idStages    = "TxnShareAcknowledgeRequestLatencyMs/Count"
	idStageTime = "TxnShareAcknowledgeRequestLatencyMs/99thPercentile"
	idErrors    = "ErrorsPerSec/Count"
	idLate      = "PartitionsWithLateTransactionsCount"
	idTimeouts  = "AcquisitionLockTimeoutPerSec/Count"
	idTimeoutsS = "AcquisitionLockTimeoutPerSec/OneMinuteRate"
	idSessions  = "ShareSessionsCount"
)

// slowStageMS is how long staging may take.
const slowStageMS = 1000

// alertRule is an alert and how a broker is judged.
type alertRule struct {
	name, severity  string
	metrics         []string
	meaning, advice string
	judge           func(brokerHistory) (AlertState, string)
}

// AlertNames returns the names of all alerts. The slice is the caller's.
func AlertNames() []string {
	var names []string
	for _, r := range alertRules() {
		names = append(names, r.name)
	}
	return names
}

func alertRules() []alertRule {
	const critical, warning = "critical", "warning"
	return []alertRule{
		{
			name: "KafkaShareTxnPendingRecords", severity: warning, metrics: []string{idPending},
			meaning: "records were in TX_PENDING all the time; a share-partition does not get past them, and share.version cannot be lowered",
			advice:  "kshare inspect pending shows whose they are and when they end by themselves",
			judge: func(b brokerHistory) (AlertState, string) {
				return b.lasts(idPending, 0, pendingText)
			},
		},
		{
			name: "KafkaShareTxnPendingStuck", severity: critical, metrics: []string{idPending, idStages},
			meaning: "records are in TX_PENDING and nothing is staged any more: transactions were left, or end markers do not come",
			advice:  "kshare inspect pending names the transactions; kshare drain ends them",
			judge:   judgeStuck,
		},
		{
			name: "KafkaShareTxnPendingLockExpired", severity: critical, metrics: []string{idExpired},
			meaning: "records stayed in TX_PENDING for longer than their acquisition lock",
			advice:  "kshare inspect pending names the transactions that take so long",
			judge:   judgeExpired,
		},
		{
			name: "KafkaShareTxnAcknowledgeErrors", severity: warning, metrics: []string{idErrors, idStages},
			meaning: "acknowledgements could not be staged; each of these transactions has to be aborted",
			advice:  "look which errors they are; a fenced producer shares its transactional ID with another",
			judge:   judgeErrors,
		},
		{
			name: "KafkaShareTxnAcknowledgeSlow", severity: warning, metrics: []string{idStageTime, idStages},
			meaning: "staging takes more than a second; transactions last longer, and acquisition locks may run out before they are staged",
			advice:  "look at the write latency of share-coordinator-metrics, and at the transaction coordinators",
			judge:   judgeSlow,
		},
		{
			name: "KafkaShareAcquisitionLockTimeouts", severity: warning, metrics: []string{idTimeouts, idTimeoutsS, idSessions},
			meaning: "records are not acknowledged in time; they are delivered again, and archived in the end",
			advice:  "look for members that hang, or raise share.record.lock.duration.ms of the group",
			judge:   judgeTimeouts,
		},
		{
			name: "KafkaShareLateTransactions", severity: critical, metrics: []string{idLate},
			meaning: "a transaction is open for longer than any may be: it hangs, and holds consumers up that read committed records",
			advice:  "kshare inspect txn finds it",
			judge: func(b brokerHistory) (AlertState, string) {
				n, ok := b.now(idLate)
				switch {
				case !ok:
					return b.missing(idLate)
				case n > 0:
					return AlertFiring, metricCount(n, "partition", "")
				}
				return AlertOK, ""
			},
		},
	}
}

// judgeMetrics judges alerts, all for no names.
func judgeMetrics(names []string, index *metricIndex, brokers [][]string, history []metricsLook) []MetricAlert {
	out := []MetricAlert{}
	for _, r := range alertRules() {
		if len(names) > 0 && !slices.Contains(names, r.name) {
			continue
		}
		a := MetricAlert{
			Alert: r.name, Severity: r.severity, Metrics: r.metrics, Meaning: r.meaning, Advice: r.advice,
			State: AlertOK, Brokers: []string{},
		}
		order := []AlertState{AlertOK, AlertUnknown, AlertWatch, AlertFiring}
		var reasons []string
		for i, bs := range brokers {
			for _, b := range bs {
				state, reason := r.judge(brokerHistory{index, history, i, b})
				if slices.Index(order, state) > slices.Index(order, a.State) {
					a.State, a.Brokers, reasons = state, []string{}, nil
				}
				if state == a.State && state != AlertOK {
					a.Brokers = append(a.Brokers, b)
					reasons = append(reasons, "broker "+b+": "+reason)
				}
			}
		}
		a.Reason = joinSome(reasons)
		out = append(out, a)
	}
	return out
}

// joinSome joins the first sentences, and says how many there are more.
func joinSome(sentences []string) string {
	const most = 4
	if n := len(sentences); n > most {
		sentences = append(sentences[:most:most], fmt.Sprintf("and %d more", n-most))
	}
	return strings.Join(sentences, ", ")
}

// brokerHistory is one broker in all looks.
type brokerHistory struct {
	index    *metricIndex
	looks    []metricsLook
	endpoint int
	broker   string
}

// once is true where there is one look only.
func (b brokerHistory) once() bool { return len(b.looks) == 1 }

// window is the time between the first look and the last, in words.
func (b brokerHistory) window() string {
	return b.looks[len(b.looks)-1].time.Sub(b.looks[0].time).Round(100 * time.Millisecond).String()
}

// at returns a metric in one look, all that it is split into but except; false if
// there is nothing of it.
func (b brokerHistory) at(look int, id, except string) (float64, bool) {
	sum, ok := 0.0, false
	for k, v := range b.looks[look].answers[b.endpoint].values {
		if k.broker != b.broker || b.index.metrics[k.metric].ID() != id {
			continue
		}
		ok = true
		if k.split == "" || k.split != except {
			sum += v.value
		}
	}
	return sum, ok
}

// now returns a metric in the last look.
func (b brokerHistory) now(id string) (float64, bool) { return b.at(len(b.looks)-1, id, "") }

// rose returns how much a counter rose between the looks; false where it is
// missing in one, or there is one only.
func (b brokerHistory) rose(id, except string) (float64, bool) {
	total, before := 0.0, 0.0
	for i := range b.looks {
		v, ok := b.at(i, id, except)
		if !ok {
			return 0, false
		}
		switch {
		case i == 0:
		case v < before: // it began anew
			total += v
		default:
			total += v - before
		}
		before = v
	}
	return total, !b.once()
}

// missing is the judgement where a metric is.
func (b brokerHistory) missing(id string) (AlertState, string) {
	if err := b.looks[len(b.looks)-1].answers[b.endpoint].err; err != nil {
		return AlertUnknown, err.Error()
	}
	return AlertUnknown, b.without(id)
}

// without says that a metric is missing, and whether that is to be expected.
func (b brokerHistory) without(id string) string {
	proposed := slices.ContainsFunc(b.index.metrics, func(m Metric) bool { return m.ID() == id && m.Proposed })
	if proposed {
		return "no " + id + " (KIP-1289)"
	}
	return "no " + id
}

// lasts fires when a metric is above a limit in every look.
func (b brokerHistory) lasts(id string, limit float64, text func(float64) string) (AlertState, string) {
	last, ok := b.now(id)
	switch {
	case !ok:
		return b.missing(id)
	case last <= limit:
		return AlertOK, ""
	case b.once():
		return AlertWatch, text(last) + " now"
	}
	for i := range b.looks {
		v, ok := b.at(i, id, "")
		if !ok {
			return AlertUnknown, fmt.Sprintf("%s in look %d", b.without(id), i+1)
		}
		if v <= limit {
			return AlertOK, ""
		}
	}
	return AlertFiring, text(last) + ", all the time for " + b.window()
}

func judgeStuck(b brokerHistory) (AlertState, string) {
	state, reason := b.lasts(idPending, 0, pendingText)
	if state != AlertFiring {
		return state, reason
	}
	staged, ok := b.rose(idStages, "")
	switch {
	case !ok:
		return b.missing(idStages)
	case staged > 0:
		return AlertOK, ""
	}
	return AlertFiring, reason + ", and nothing was staged meanwhile"
}

// judgeExpired fires on any, as the text put to the vote has it, and once there
// is more than one look on what came meanwhile: the counter starts again with the
// broker alone.
func judgeExpired(b brokerHistory) (AlertState, string) {
	n, ok := b.now(idExpired)
	rose, both := b.rose(idExpired, "")
	switch {
	case !ok || !b.once() && !both:
		return b.missing(idExpired)
	case b.once() && n > 0:
		return AlertFiring, metricCount(n, "record", "since the broker started")
	case rose > 0:
		return AlertFiring, metricCount(rose, "record", "in "+b.window())
	}
	return AlertOK, ""
}

// judgeErrors: a broker has no metric of a code before the first answer with it,
// and none at all before the first request.
func judgeErrors(b brokerHistory) (AlertState, string) {
	n, ok := b.at(len(b.looks)-1, idErrors, "NONE")
	if staged, known := b.now(idStages); !ok && known && staged == 0 {
		return AlertOK, ""
	}
	if !ok {
		return b.missing(idErrors)
	}
	if b.once() {
		if n > 0 {
			return AlertWatch, metricCount(n, "error", "since the broker started")
		}
		return AlertOK, ""
	}
	before, ok := b.at(0, idErrors, "NONE")
	if staged, known := b.at(0, idStages, ""); !ok && (!known || staged > 0) {
		return AlertUnknown, b.without(idErrors) + " in look 1"
	}
	if n < before {
		before = 0 // it began anew
	}
	if n > before {
		return AlertFiring, metricCount(n-before, "error", "in "+b.window())
	}
	return AlertOK, ""
}

// judgeSlow: the percentile stays what it was when nothing is staged any more, so
// that alone says nothing.
func judgeSlow(b brokerHistory) (AlertState, string) {
	state, reason := b.lasts(idStageTime, slowStageMS, func(ms float64) string { return metricNumber(ms) + " ms" })
	if state != AlertFiring {
		return state, reason
	}
	if staged, ok := b.rose(idStages, ""); !ok {
		return b.missing(idStages)
	} else if staged == 0 {
		return AlertOK, ""
	}
	return AlertFiring, reason
}

// judgeTimeouts: a share-partition that is not loaded has no metrics, and none is
// loaded while nobody has a share session.
func judgeTimeouts(b brokerHistory) (AlertState, string) {
	if b.once() {
		rate, ok := b.now(idTimeoutsS)
		if !ok {
			return b.withoutPartitions(len(b.looks)-1, idTimeoutsS)
		}
		if perMinute := 60 * rate; perMinute >= 1 {
			return AlertFiring, metricCount(perMinute, "record", "a minute")
		}
		return AlertOK, ""
	}
	for i := range b.looks {
		if _, ok := b.at(i, idTimeouts, ""); !ok {
			if state, reason := b.withoutPartitions(i, idTimeouts); state != AlertOK {
				return state, reason
			}
		}
	}
	// A share-partition that was loaded in between starts at 0.
	rose, before := 0.0, 0.0
	for i := range b.looks {
		v, _ := b.at(i, idTimeouts, "")
		if i > 0 && v > before {
			rose += v - before
		}
		before = v
	}
	if rose > 0 {
		return AlertFiring, metricCount(rose, "record", "in "+b.window())
	}
	return AlertOK, ""
}

// withoutPartitions judges a look in which there is no share-partition.
func (b brokerHistory) withoutPartitions(look int, id string) (AlertState, string) {
	if sessions, ok := b.at(look, idSessions, ""); ok && sessions == 0 {
		return AlertOK, ""
	}
	return b.missing(id)
}

func pendingText(n float64) string { return metricCount(n, "record", "in TX_PENDING") }

// metricCount is a number of things, and what more there is to say of them.
func metricCount(n float64, thing, more string) string {
	if n != 1 {
		thing += "s"
	}
	return strings.TrimSpace(metricNumber(n) + " " + thing + " " + more)
}

func metricNumber(n float64) string {
	digits := 0
	if n != math.Trunc(n) {
		digits = 1
	}
	return strconv.FormatFloat(n, 'f', digits, 64)
}
