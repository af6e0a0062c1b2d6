package commands

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/ctp"
	"github.com/kshare/kshare/internal/promtext"
	"github.com/kshare/kshare/txn"
)

// checkMetrics completes and checks --metrics-addr.
func (o *ctpOptions) checkMetrics(changed func(string) bool) error {
	const flag = "metrics-addr"
	if !changed(flag) {
		return nil
	}
	if o.Preflight {
		return usagef("--%s is for a run, and --preflight makes none", flag)
	}
	address := o.MetricsAddr
	if isPort(address) {
		address = net.JoinHostPort("127.0.0.1", address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || !isPort(port) || !isHost(host) {
		return usagef("--%s %q: want HOST:PORT, such as 127.0.0.1:9400, or PORT", flag, withoutUser(o.MetricsAddr))
	}
	o.MetricsAddr = address
	return nil
}

// isPort holds for the number of a TCP port, and for 0.
func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// isLoopback reports whether only this machine reaches what listens on host.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ctpMetrics serves the metrics of one run.
type ctpMetrics struct {
	opts    *ctpOptions
	server  *http.Server
	cl      atomic.Pointer[cluster.Client] // nil until there is a connection
	clients clientCounts
}

// serveCtpMetrics listens where --metrics-addr says, and says so; without the flag
// it returns nil, whose methods do nothing.
func serveCtpMetrics(ctx context.Context, d *Deps, opts *ctpOptions) (*ctpMetrics, error) {
	if opts.MetricsAddr == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", opts.MetricsAddr)
	if err != nil {
		return nil, hintf(fmt.Errorf("--metrics-addr %s: %w", opts.MetricsAddr, err), "give another address, or port 0 for any that is free")
	}
	if host, _, _ := net.SplitHostPort(opts.MetricsAddr); !isLoopback(host) {
		d.Warn(fmt.Sprintf("metrics are served to everybody who reaches %s, without a password", l.Addr()))
	}
	d.Notice(fmt.Sprintf("metrics are served on http://%s/metrics", l.Addr()))
	opts.GroupID = cmp.Or(opts.GroupID, ctp.DefaultGroupID(opts.From))
	m := &ctpMetrics{opts: opts}
	opts.Metrics = &m.clients
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.serve)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "ok") // the client has gone, or gets it
	})
	m.server = &http.Server{Handler: mux, ReadHeaderTimeout: metricsTimeout, WriteTimeout: 2 * metricsTimeout}
	go func() {
		_ = m.server.Serve(l) // it ends when Close closes the listener
	}()
	return m, nil
}

// metricsTimeout bounds how long a client may take to send its request.
const metricsTimeout = 10 * time.Second

// Connected says that the lag can be asked for from now on.
func (m *ctpMetrics) Connected(cl *cluster.Client) {
	if m != nil {
		m.cl.Store(cl)
	}
}

// Close ends the serving, and cuts off who is being served.
func (m *ctpMetrics) Close() {
	if m != nil {
		_ = m.server.Close() // of a listener, which is gone either way
	}
}

// lagTimeout bounds how long a scrape waits for the group's coordinator.
const lagTimeout = 2 * time.Second

func (m *ctpMetrics) serve(w http.ResponseWriter, r *http.Request) {
	families := ctpFamilies(m.opts, &m.clients)
	if cl := m.cl.Load(); cl != nil {
		ctx, cancel := context.WithTimeout(r.Context(), lagTimeout)
		defer cancel()
		// Unknown is not 0: what cannot be told is left out.
		if lag, err := ctp.Lag(ctx, cl, m.opts.GroupID, m.opts.From); err == nil && lag >= 0 {
			families = append(families, promtext.Family{
				Name: "kshare_ctp_lag_records", Type: promtext.Gauge, Help: "Records of the source topic that the share group has not done yet.",
				Samples: []promtext.Sample{{Value: float64(lag)}},
			})
		}
	}
	w.Header().Set("Content-Type", promtext.ContentType)
	_ = promtext.Write(w, families) // the client has gone, or gets it
}

// ctpFamilies is what a run has counted so far. The names of what Kafka's own
// clients count are those of package metrics, which comes with Prometheus' library
// and is not linked for its size.
func ctpFamilies(o *ctpOptions, clients *clientCounts) []promtext.Family {
	c := o.Counts
	one := func(name, help string, n *atomic.Int64) promtext.Family {
		return promtext.Family{Name: name, Type: promtext.Counter, Help: help, Samples: []promtext.Sample{{Value: float64(n.Load())}}}
	}
	by := func(label, value string, n *atomic.Int64) promtext.Sample {
		return promtext.Sample{Labels: []promtext.Label{{Name: label, Value: value}}, Value: float64(n.Load())}
	}
	errors := promtext.Family{
		Name: "kafka_producer_share_ack_txn_send_error_total", Type: promtext.Counter,
		Help: "Attempts to stage acknowledgements that failed, by what has to be done (KIP-1289, share-ack-txn-send-error-rate).",
	}
	for i, class := range stagingClasses() {
		errors.Samples = append(errors.Samples, by("class", class.String(), &clients.failed[i]))
	}
	return []promtext.Family{
		{
			Name: "kshare_build_info", Type: promtext.Gauge, Help: "Which build of kshare this is, always 1.",
			Samples: []promtext.Sample{{Labels: []promtext.Label{{Name: "version", Value: buildVersion()}, {Name: "go", Value: runtime.Version()}}, Value: 1}},
		},
		{
			Name: "kshare_ctp_info", Type: promtext.Gauge, Help: "What is run, always 1.",
			Samples: []promtext.Sample{{Labels: []promtext.Label{
				{Name: "from", Value: o.From}, {Name: "to", Value: o.To}, {Name: "group", Value: o.GroupID}, {Name: "guarantee", Value: string(o.Guarantee)},
			}, Value: 1}},
		},
		one("kshare_ctp_records_consumed_total", "Source records whose acknowledgement was committed.", &c.Consumed),
		one("kshare_ctp_records_produced_total", "Records produced in committed transactions.", &c.Produced),
		one("kshare_ctp_records_acknowledged_total", "Source records accepted.", &c.Acknowledged),
		one("kshare_ctp_records_rejected_total", "Source records rejected.", &c.Rejected),
		one("kshare_ctp_dead_letters_total", "Of the produced records, those for the dead-letter topic.", &c.DeadLetters),
		one("kshare_ctp_records_released_total", "Source records given back, after an abort or by --on-error release.", &c.Released),
		one("kshare_ctp_records_unconfirmed_total", "Source records that may be produced again: committed and not acknowledged, with --guarantee at-least-once.", &c.Unconfirmed),
		one("kshare_ctp_locks_expired_total", "Source records given up because their acquisition locks had run out, or left no margin.", &c.LockExpired),
		one("kshare_ctp_records_gone_total", "Source records that were deleted from their topic before their transaction was committed; none of the other counters has them.", &c.Gone),
		one("kshare_ctp_exec_restarts_total", "Programs of --exec that were started in place of one that had ended.", &c.ExecRestarts),
		{
			Name: "kshare_ctp_transactions_total", Type: promtext.Counter, Help: "Transactions, by how they ended.",
			Samples: []promtext.Sample{by("outcome", "committed", &c.Committed), by("outcome", "aborted", &c.Aborted), by("outcome", "unknown", &c.Unknown)},
		},
		one("kafka_producer_share_ack_txn_send_total", "Attempts to stage acknowledgements of share-group records in a transaction (KIP-1289, share-ack-txn-send-rate).", &clients.sent),
		errors,
		one("kafka_consumer_share_group_metadata_fetch_total", "Snapshots of a share consumer's group metadata (KIP-1289, share-group-metadata-fetch-rate).", &clients.metadata),
	}
}

// clientCounts counts for all workers of a run what Kafka's own clients count.
type clientCounts struct {
	sent, metadata atomic.Int64
	failed         [3]atomic.Int64 // as stagingClasses
}

// stagingClasses are the classes of errors of a stage, whose outcome is never
// unknown for long: the transaction is aborted.
func stagingClasses() [3]txn.Class {
	return [3]txn.Class{txn.ClassAbortable, txn.ClassFatal, txn.ClassRetriable}
}

// ShareAcknowledgementsSent implements [txn.Metrics].
func (c *clientCounts) ShareAcknowledgementsSent(err error) {
	c.sent.Add(1)
	if err == nil {
		return
	}
	class := txn.Classify(err)
	for i, known := range stagingClasses() {
		if class == known {
			c.failed[i].Add(1)
		}
	}
}

// GroupMetadataFetched implements [share.Metrics].
func (c *clientCounts) GroupMetadataFetched() { c.metadata.Add(1) }
