package sandbox

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestControlHandler(t *testing.T) {
	s := startSandbox(t)
	get := func(path, remote, host string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.RemoteAddr, r.Host = remote, host
		w := httptest.NewRecorder()
		s.ControlHandler().ServeHTTP(w, r)
		return w
	}
	if w := get("/healthz", "127.0.0.1:5", "localhost:9"); w.Code != http.StatusOK || w.Body.String() != "ok\n" {
		t.Errorf("healthz: %d %q", w.Code, w.Body)
	}
	for _, from := range [][2]string{{"10.0.0.1:5", "localhost:9"}, {"127.0.0.1:5", "evil.example:9"}, {"", ""}} {
		if w := get("/state", from[0], from[1]); w.Code != http.StatusForbidden {
			t.Errorf("from %q to %q: %d", from[0], from[1], w.Code)
		}
	}
	w := get("/state", "[::1]:5", "[::1]:9")
	var st State
	if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil {
		t.Fatalf("%v in %s", err, w.Body)
	}
	if st.ClusterID != s.ClusterID() || st.Dialect != "kip" || st.PendingState != "persisted" || len(st.Brokers) != 3 ||
		st.Brokers[2].Address != s.Addrs()[2] || st.Features["share.version"] != 2 || st.TxnAcks != (TxnAcksState{93, 2, true}) {
		t.Errorf("state %+v", st)
	}
	if strings.Contains(w.Body.String(), "null") {
		t.Errorf("a list is null in %s", w.Body)
	}
	if w := get("/nothing", "127.0.0.1:5", "127.0.0.1"); w.Code != http.StatusNotFound {
		t.Errorf("unknown path: %d", w.Code)
	}
	closeSandbox(t, s)
	if w := get("/healthz", "127.0.0.1:5", "localhost:9"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("healthz after close: %d", w.Code)
	}
}
