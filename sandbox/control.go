package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/kshare/kshare/wire"
)

// State is what GET /state of the control address answers.
type State struct {
	ClusterID     string           `json:"cluster_id"`
	Dialect       string           `json:"dialect"`
	PendingState  string           `json:"pending_state"`
	Brokers       []BrokerState    `json:"brokers"`  // by node ID
	Features      map[string]int16 `json:"features"` // finalized levels
	FeaturesEpoch int64            `json:"features_epoch"`
	TxnAcks       TxnAcksState     `json:"txn_share_acknowledge"`
	Pending       int              `json:"pending_records"` // in TX_PENDING, over all brokers
	// PendingRanges says which records these are, and who owns them.
	PendingRanges []PendingRange    `json:"pending_ranges"`
	Transactions  []OpenTransaction `json:"transactions"` // that are not over; by transactional ID
	Faults        []Fault           `json:"faults"`       // that are active, as injected
	Share         json.RawMessage   `json:"share"`        // groups, sessions, share-partitions
}

// BrokerState is one broker of the sandbox.
type BrokerState struct {
	NodeID  int32  `json:"node_id"`
	Address string `json:"address"`
}

// TxnAcksState says how TxnShareAcknowledge is served.
type TxnAcksState struct {
	Key     int16 `json:"key"`
	Level   int16 `json:"share_version"` // that enables it
	Enabled bool  `json:"enabled"`
}

// State returns what the sandbox is and does at this moment.
func (s *Sandbox) State() (State, error) {
	snapshot := s.plane.snapshot()
	snapshot.fillLists()
	share, err := json.Marshal(snapshot)
	if err != nil {
		return State{}, err
	}
	open, err := s.OpenParticipants(s.gateway.ctx)
	if err != nil {
		return State{}, fmt.Errorf("state of the sandbox: %w", err)
	}
	levels, epoch := s.gateway.features.snapshot()
	st := State{
		ClusterID: s.ClusterID(), Dialect: s.cfg.dialect.Name, PendingState: s.cfg.pending.String(),
		Features: make(map[string]int16, len(levels)), FeaturesEpoch: epoch,
		TxnAcks: TxnAcksState{
			Key: s.cfg.dialect.Key, Level: s.cfg.dialect.ShareVersion, Enabled: s.gateway.features.txnAcksEnabled(),
		},
		Pending: s.plane.pendingCount(), PendingRanges: s.Pending(), Transactions: open, Faults: s.Faults(), Share: share,
	}
	for name, level := range levels {
		if level > 0 {
			st.Features[name] = level
		}
	}
	for i, a := range s.Addrs() {
		st.Brokers = append(st.Brokers, BrokerState{NodeID: int32(i), Address: a})
	}
	return st, nil
}

// fillLists makes empty lists of those that are nil: in JSON a list is never
// null.
func (s *planeSnapshot) fillLists() {
	fillList(&s.Groups)
	fillList(&s.Sessions)
	fillList(&s.Partitions)
	for i := range s.Groups {
		fillList(&s.Groups[i].Members)
		for j := range s.Groups[i].Members {
			fillList(&s.Groups[i].Members[j].Topics)
		}
	}
	for i := range s.Partitions {
		fillList(&s.Partitions[i].Ranges)
	}
}

func fillList[T any](list *[]T) {
	if *list == nil {
		*list = []T{}
	}
}

// ShareVersion returns the finalized level of share.version.
func (s *Sandbox) ShareVersion() int16 { return s.gateway.features.level(wire.FeatureShareVersion) }

// ControlHandler serves the control address:
//
//	GET /healthz         200 while the sandbox runs
//	GET /state           a [State]
//	GET /metrics         what the JMX exporters of all brokers would say, in the
//	                     text format of Prometheus with a label "broker"
//	GET /metrics/{node}  what that of one broker would say
//	GET /faults          the faults that are active, as a [FaultList]
//	POST /faults         injects a [Fault] and answers it with its ID, with 201
//	DELETE /faults       ends all faults and answers them
//	DELETE /faults/{id}  ends one fault and answers it
//
// Errors are [ControlError] documents. It refuses requests from other machines,
// and those that a page from elsewhere made a browser send.
func (s *Sandbox) ControlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if s.gateway.ctx.Err() != nil {
			http.Error(w, "closed", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		st, err := s.State()
		if err != nil {
			writeError(w, http.StatusInternalServerError, err)
			return
		}
		writeJSON(w, http.StatusOK, st)
	})
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("GET /metrics/{node}", s.serveMetrics)
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, FaultList{s.Faults()})
	})
	mux.HandleFunc("POST /faults", s.serveInject)
	mux.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, FaultList{s.ClearFaults()})
	})
	mux.HandleFunc("DELETE /faults/{id}", func(w http.ResponseWriter, r *http.Request) {
		f, err := s.ClearFault(r.PathValue("id"))
		if err != nil {
			writeError(w, http.StatusNotFound, err)
			return
		}
		writeJSON(w, http.StatusOK, f)
	})
	return loopbackOnly(http.NewCrossOriginProtection().Handler(mux))
}

// FaultList is what /faults of the control address answers.
type FaultList struct {
	Faults []Fault `json:"faults"`
}

// ControlError is what the control address answers in place of what was asked.
type ControlError struct {
	Error string `json:"error"`
}

// maxFaultBytes is far more than any fault has.
const maxFaultBytes = 64 << 10

func (s *Sandbox) serveInject(w http.ResponseWriter, r *http.Request) {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFaultBytes))
	dec.DisallowUnknownFields()
	var f Fault
	if err := dec.Decode(&f); err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("fault: %w", err))
		return
	}
	f, err := s.InjectFault(r.Context(), f)
	_, wrong := errors.AsType[*FaultError](err)
	switch {
	case wrong:
		writeError(w, http.StatusBadRequest, err)
	case err != nil:
		writeError(w, http.StatusInternalServerError, err)
	default:
		writeJSON(w, http.StatusCreated, f)
	}
}

func writeError(w http.ResponseWriter, code int, err error) {
	writeJSON(w, code, ControlError{err.Error()})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // a client that is gone
}

// loopbackOnly refuses what does not come from this machine, or was addressed to
// a name that only happens to resolve to it (DNS rebinding).
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(r.RemoteAddr) || !isLoopback(r.Host) {
			http.Error(w, "the control address serves this machine alone", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
