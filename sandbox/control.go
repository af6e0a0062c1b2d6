package sandbox

import (
	"encoding/json"
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
	Share         json.RawMessage  `json:"share"`           // groups, sessions, share-partitions
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
	levels, epoch := s.gateway.features.snapshot()
	st := State{
		ClusterID: s.ClusterID(), Dialect: s.cfg.dialect.Name, PendingState: s.cfg.pending.String(),
		Features: make(map[string]int16, len(levels)), FeaturesEpoch: epoch,
		TxnAcks: TxnAcksState{
			Key: s.cfg.dialect.Key, Level: s.cfg.dialect.ShareVersion, Enabled: s.gateway.features.txnAcksEnabled(),
		},
		Pending: s.plane.pendingCount(), Share: share,
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

// ControlHandler serves the control address: GET /healthz answers 200 while the
// sandbox runs, GET /state answers a [State], GET /metrics what the JMX exporters
// of all brokers would, in the text format of Prometheus with a label "broker",
// and GET /metrics/0 what that of broker 0 would. It refuses requests from other
// machines, and those that a page from elsewhere made a browser send.
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
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(st)
	})
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("GET /metrics/{node}", s.serveMetrics)
	return loopbackOnly(mux)
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
