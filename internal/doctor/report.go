package doctor

import "slices"

// State is what came of a check.
type State string

// The states, from good to bad.
const (
	OK      State = "ok"
	Warning State = "warning" // works, and somebody should look at it
	Unknown State = "unknown" // could not be found out
	Failed  State = "failed"
)

// Finding is one thing that was looked at.
type Finding struct {
	Check   string `json:"check"`             // what was looked at: one of a few words with underscores
	Subject string `json:"subject,omitempty"` // at which one, such as an address
	State   State  `json:"state"`
	Detail  string `json:"detail"`
	Advice  string `json:"advice,omitempty"`
}

// Report is what [Run] has found.
type Report struct {
	ClusterID string // "" when no broker says
	Findings  []Finding
}

// Incomplete reports whether something failed or could not be found out.
func (r *Report) Incomplete() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.State == Unknown || f.State == Failed })
}

func (r *Report) add(check, subject string, state State, detail, advice string) {
	r.Findings = append(r.Findings, Finding{check, subject, state, detail, advice})
}
