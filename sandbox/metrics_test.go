package sandbox

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kshare/kshare/internal/promtext"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// scraped is a page: values by name and labels, as they stand in it.
type scraped map[string]float64

func scrape(t *testing.T, h http.Handler, path string) scraped {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.RemoteAddr, r.Host = "127.0.0.1:5", "localhost:9"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Fatalf("GET %s: %d, %v: %s", path, w.Code, w.Header(), w.Body)
	}
	return readPage(t, w.Body.Bytes())
}

func readPage(t *testing.T, page []byte) scraped {
	t.Helper()
	out := make(scraped)
	err := promtext.Parse(bytes.NewReader(page), func([]byte) bool { return true }, func(s promtext.Sample) {
		var b strings.Builder
		b.WriteString(s.Name)
		for _, l := range s.Labels {
			b.WriteString(" " + l.Name + "=" + l.Value)
		}
		if _, ok := out[b.String()]; ok {
			t.Errorf("%s is there twice", b.String())
		}
		out[b.String()] = s.Value
	})
	if err != nil {
		t.Fatalf("%v in %s", err, page)
	}
	return out
}

// scrapeRig returns the page of one broker of a share plane over fakes.
func (r *planeRig) scrape(broker int32) scraped {
	r.t.Helper()
	page := make(metricPage)
	page.add("", r.p.metrics()[broker])
	var b bytes.Buffer
	if err := promtext.Write(&b, page.families()); err != nil {
		r.t.Fatal(err)
	}
	return readPage(r.t, b.Bytes())
}

func (s scraped) want(t *testing.T, what string, want scraped) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if got, ok := s[k]; !ok || !near(got, want[k]) {
			t.Errorf("%s: %s = %v (there: %v), want %v", what, k, got, ok, want[k])
		}
	}
}

const (
	metricPending = "kafka_server_ShareGroupMetrics_Value name=TxnPendingRecordsCount"
	metricStages  = "kafka_server_ShareGroupMetrics_Count name=TxnShareAcknowledgeRequestLatencyMs"
)

// What happens on a share plane is in the metrics of the broker it happened on.
func TestPlaneMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic(stateTopic, 50)
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 10})
		r.scrape(0).want(t, "at first", scraped{
			metricPending: 0, metricStages: 0,
			"kafka_server_ShareGroupMetrics_Count ackType=Accept name=RecordAcknowledgementsPerSec":  0,
			"kafka_server_BrokerTopicMetrics_Count name=TotalShareFetchRequestsPerSec":               0,
			"kafka_server_BrokerTopicMetrics_Count name=FailedShareAcknowledgementRequestsPerSec":    0,
			"kafka_server_group_coordinator_metrics_group_count protocol=share":                      0,
			"kafka_server_share_coordinator_metrics_num_partitions state=active":                     17, // of 50
			"kafka_server_ShareGroupMetrics_99thPercentile name=TxnShareAcknowledgeRequestLatencyMs": 0,
		})
		m := r.join("g", "m", "in", 0, 0)
		r.wantRanges(m.fetch(8), delivered(0, 7, 1))
		r.wantCode(m.ack(0, 0, 2, ackAccept, ackRelease, ackReject), nil)
		r.wantCode(m.ack(0, 3, 3, ackRenew), nil)
		r.wantCode(m.ack(0, 9, 9, ackAccept), kerr.InvalidRequest)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 4, 5, ackAccept), nil)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 9, 9, ackAccept), kerr.InvalidRequest)
		partition := " group=g name=%s partition=0 topic=in"
		of := func(name string) string { return strings.ReplaceAll(partition, "%s", name) }
		r.scrape(0).want(t, "after some of all", scraped{
			metricPending: 2, metricStages: 2,
			"kafka_server_ShareGroupMetrics_Count ackType=Accept name=RecordAcknowledgementsPerSec":             1,
			"kafka_server_ShareGroupMetrics_Count ackType=Release name=RecordAcknowledgementsPerSec":            1,
			"kafka_server_ShareGroupMetrics_Count ackType=Reject name=RecordAcknowledgementsPerSec":             1,
			"kafka_server_ShareGroupMetrics_Count ackType=Renew name=RecordAcknowledgementsPerSec":              1,
			"kafka_server_ShareGroupMetrics_Count name=PartitionLoadTimeMs":                                     1,
			"kafka_server_ShareGroupMetrics_Count name=TxnPendingLockExpiredCount":                              0,
			"kafka_server_BrokerTopicMetrics_Count name=TotalShareFetchRequestsPerSec":                          1,
			"kafka_server_BrokerTopicMetrics_Count name=TotalShareFetchRequestsPerSec topic=in":                 1,
			"kafka_server_BrokerTopicMetrics_Count name=FailedShareFetchRequestsPerSec":                         0,
			"kafka_server_BrokerTopicMetrics_Count name=TotalShareAcknowledgementRequestsPerSec":                3,
			"kafka_server_BrokerTopicMetrics_Count name=TotalShareAcknowledgementRequestsPerSec topic=in":       3,
			"kafka_server_BrokerTopicMetrics_Count name=FailedShareAcknowledgementRequestsPerSec topic=in":      1,
			"kafka_network_RequestMetrics_Count name=RequestsPerSec request=TxnShareAcknowledge version=0":      2,
			"kafka_network_RequestMetrics_Count error=NONE name=ErrorsPerSec request=TxnShareAcknowledge":       3,
			"kafka_network_RequestMetrics_Count name=TotalTimeMs request=TxnShareAcknowledge":                   2,
			"kafka_server_SharePartitionMetrics_Value" + of("InFlightMessageCount"):                             7,
			"kafka_server_SharePartitionMetrics_Value" + of("InFlightBatchCount"):                               5,
			"kafka_server_SharePartitionMetrics_Count" + of("AcquisitionLockTimeoutPerSec"):                     0,
			"kafka_server_ShareSessionCache_Value name=ShareSessionsCount":                                      1,
			"kafka_server_ShareSessionCache_Value name=SharePartitionsCount":                                    1,
			"kafka_server_group_coordinator_metrics_group_count protocol=share":                                 1,
			"kafka_server_group_coordinator_metrics_share_group_count state=Stable":                             1,
			"kafka_server_group_coordinator_metrics_share_group_count state=Empty":                              0,
			"kafka_server_group_coordinator_metrics_share_group_count state=Dead":                               0,
			"kafka_network_RequestMetrics_Count error=INVALID_REQUEST name=ErrorsPerSec request=" + txnAcksName: 1,
		})
		writes := 0.0
		for broker := range int32(3) {
			writes += r.scrape(broker)["kafka_server_share_coordinator_metrics_write"]
		}
		if writes < 3 {
			t.Errorf("the share coordinator wrote %v times, want at least one for each acknowledgement and the stage", writes)
		}

		// ACQUIRED records come back when their locks run out, TX_PENDING ones not.
		bubbleSleep(31 * time.Second)
		r.wantStates("g", "in", 0, "1-1 AVAILABLE", "2-2 ARCHIVED", "3-3 AVAILABLE", "4-5 TX_PENDING", "6-7 AVAILABLE")
		r.scrape(0).want(t, "after the locks", scraped{
			metricPending: 2,
			"kafka_server_SharePartitionMetrics_Count" + of("AcquisitionLockTimeoutPerSec"): 3,
		})
		r.end("t", owner{7, 3}, true)
		r.scrape(0).want(t, "after the commit", scraped{metricPending: 0})

		// Where the leader goes the metrics go.
		r.wantRanges(m.fetch(1), delivered(1, 1, 2))
		r.wantCode(m.stage("u", owner{8, 0}, 0, 1, 1, ackAccept), nil)
		r.k.move("in", 0, 1)
		r.scrape(1).want(t, "at the new leader", scraped{metricPending: 1})
		r.scrape(0).want(t, "at the old leader", scraped{metricPending: 0})
	})
}

// A fetch counts for the topics of its session, and as failed for those of which
// it brought an error.
func TestFetchMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "draft")
		r.k.topic("in", 2)
		r.k.produce("in", 0, fakeBatchHead{records: 3})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(1)
		m.fetch(1)
		r.k.move("in", 0, 1)
		req := m.request(1)
		b := kmsg.NewShareFetchRequestTopicPartitionAcknowledgementBatch()
		b.FirstOffset, b.LastOffset, b.AcknowledgeTypes = 0, 0, []int8{ackAccept}
		rp := kmsg.NewShareFetchRequestTopicPartition()
		rp.AcknowledgementBatches = append(rp.AcknowledgementBatches, b)
		rt := kmsg.NewShareFetchRequestTopic()
		rt.TopicID = m.topicID
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		if resp := m.send(req); resp.ErrorCode != 0 || partOf(resp, 0).ErrorCode != kerr.NotLeaderForPartition.Code {
			t.Fatalf("fetch from the old leader: %+v", resp)
		}
		r.scrape(0).want(t, "after three fetches", scraped{
			"kafka_server_BrokerTopicMetrics_Count name=TotalShareFetchRequestsPerSec topic=in":            3,
			"kafka_server_BrokerTopicMetrics_Count name=FailedShareFetchRequestsPerSec":                    1,
			"kafka_server_BrokerTopicMetrics_Count name=FailedShareFetchRequestsPerSec topic=in":           1,
			"kafka_server_BrokerTopicMetrics_Count name=TotalShareAcknowledgementRequestsPerSec topic=in":  1,
			"kafka_server_BrokerTopicMetrics_Count name=FailedShareAcknowledgementRequestsPerSec topic=in": 1,
			"kafka_server_ShareGroupMetrics_Count ackType=Accept name=RecordAcknowledgementsPerSec":        0,
		})
	})
}

// In the text put to the vote the lock of a staged record runs on, and is counted
// when it runs out; in the drafts it is cancelled.
func TestPendingLockExpired(t *testing.T) {
	names := map[string]string{
		"kip":   "kafka_server_ShareGroupMetrics_Count name=TxnPendingLockExpiredCount",
		"draft": "kafka_server_ShareGroupMetrics_Value name=TxnPendingLockExpiredCount",
	}
	for _, d := range bothDialects {
		t.Run(d, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counts := func(n float64) float64 {
					if d == "draft" {
						return 0
					}
					return n
				}
				r := newPlaneRig(t, d)
				r.k.topic("in", 1)
				r.k.produce("in", 0, fakeBatchHead{records: 20})
				m := r.join("g", "m", "in", 0, 0)
				m.fetch(5) // 0-4, until 30 s
				bubbleSleep(10 * time.Second)
				m.fetch(5) // 5-9, until 40 s
				r.wantCode(m.stage("t", owner{7, 3}, 0, 1, 7, ackAccept), nil)
				r.wantCode(m.stage("t", owner{7, 3}, 0, 1, 7, ackAccept), nil) // once more
				r.wantCode(m.stage("u", owner{8, 0}, 0, 8, 9, ackAccept), nil)
				want := func(what string, n float64) {
					t.Helper()
					r.scrape(0).want(t, what, scraped{names[d]: counts(n)})
				}
				want("staged", 0)
				bubbleSleep(21 * time.Second) // 31 s
				want("the first locks are out", 4)
				want("looked at twice", 4)
				r.end("u", owner{8, 0}, true) // in time
				bubbleSleep(20 * time.Second) // 51 s
				r.end("t", owner{7, 3}, true) // too late, and nobody looked in between
				want("after the end", 7)
				bubbleSleep(time.Hour)
				want("for good", 7)
			})
		})
	}
}

// A stage that fails, and one that could not be persisted, leave no lock behind.
func TestPendingLocksOfFailedStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newPlaneRig(t, "kip")
		r.k.topic("in", 1)
		r.k.produce("in", 0, fakeBatchHead{records: 5})
		m := r.join("g", "m", "in", 0, 0)
		m.fetch(5)
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 2, ackRelease), kerr.InvalidRecordState)
		r.co.failWrites(func(shareStateWrite) int16 { return kerr.KafkaStorageError.Code })
		r.wantCode(m.stage("t", owner{7, 3}, 0, 0, 2, ackAccept), kerr.UnknownServerError)
		r.co.failWrites(nil)
		for _, lp := range r.p.leads { // nothing else runs
			if len(lp.metrics.staged) > 0 {
				t.Errorf("locks are kept of what is not staged: %v", lp.metrics.staged)
			}
		}
		bubbleSleep(time.Minute)
		r.scrape(0).want(t, "after the locks", scraped{"kafka_server_ShareGroupMetrics_Count name=TxnPendingLockExpiredCount": 0})
	})
}

// The control address has a page for each broker, and one for all.
func TestServeMetrics(t *testing.T) {
	e := startShareE2E(t, "kip", 3)
	for n := range int32(3) {
		e.produce(n, 4)
	}
	m, p := e.join("m"), e.producer("t", time.Minute)
	for n := range int32(3) {
		m.acquire(n)
		p.mustStage(m, e2eStage{partition: n, first: 0, last: int64(n), types: []int8{ackAccept}})
	}
	h := e.s.ControlHandler()
	all := scrape(t, h, "/metrics")
	total := 0.0
	for broker := range int32(3) {
		one := scrape(t, h, "/metrics/"+strconv.Itoa(int(broker)))
		want := 0.0
		for n := range int32(3) {
			if e.leader(n) == broker {
				want += float64(n + 1)
			}
		}
		one.want(t, "page of the broker", scraped{metricPending: want})
		total += one[metricPending]
		label := " broker=" + strconv.Itoa(int(broker))
		for k, v := range one {
			name, labels, _ := strings.Cut(k, " ")
			key := name + label
			if labels != "" {
				// Labels are in the order of their names.
				ls := append(strings.Split(labels, " "), label[1:])
				slices.Sort(ls)
				key = name + " " + strings.Join(ls, " ")
			}
			got, ok := all[key]
			if !ok || !strings.Contains(k, "Rate") && !near(got, v) {
				t.Errorf("%s is %v on the page of all (there: %v), %v on that of broker %d", key, got, ok, v, broker)
			}
		}
	}
	if total != float64(e.s.plane.pendingCount()) || total != 6 {
		t.Errorf("the brokers have %v pending, want %d", total, e.s.plane.pendingCount())
	}
	p.mustEnd(true)
	for k, v := range scrape(t, h, "/metrics") {
		if strings.Contains(k, "TxnPendingRecordsCount") && v != 0 {
			t.Errorf("after the commit %s = %v", k, v)
		}
	}
	for _, path := range []string{"/metrics/3", "/metrics/-1", "/metrics/x", "/metrics/4294967296"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.RemoteAddr, r.Host = "127.0.0.1:5", "localhost:9"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound {
			t.Errorf("GET %s: %d, want 404", path, w.Code)
		}
	}
}

// A transaction that is open for longer than any may be makes the partitions that
// it has records in late; those of share state are none of them.
func TestLateTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var network kfake.VirtualNetwork
		s, err := Start(t.Context(), WithListen(network.Listen), WithBasePort(9092), WithTopics(Topic{Name: "out", Partitions: 1}))
		if err != nil {
			t.Fatal(err)
		}
		defer closeSandbox(t, s)
		conn, err := network.DialContext(t.Context(), "tcp", s.Addrs()[s.kafka.coordinator("txn")])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		c := &txnConn{&rawConn{Conn: conn, format: kmsg.NewRequestFormatter()}, s, "txn"}
		init := kmsg.NewPtrInitProducerIDRequest()
		init.Version, init.TransactionalID, init.TransactionTimeoutMillis = 4, kmsg.StringPtr("txn"), 900_000
		pid := askGateway[*kmsg.InitProducerIDResponse](t, c.rawConn, init)
		if pid.ErrorCode != 0 {
			t.Fatalf("init producer ID: %s", errorName(pid.ErrorCode))
		}
		c.register(t, pid.ProducerID, pid.ProducerEpoch, 1)
		add := kmsg.NewPtrAddPartitionsToTxnRequest()
		add.Version, add.TransactionalID, add.ProducerID, add.ProducerEpoch = 3, "txn", pid.ProducerID, pid.ProducerEpoch
		rt := kmsg.NewAddPartitionsToTxnRequestTopic()
		rt.Topic, rt.Partitions = "out", []int32{0}
		add.Topics = append(add.Topics, rt)
		if resp := askGateway[*kmsg.AddPartitionsToTxnResponse](t, c.rawConn, add); resp.Topics[0].Partitions[0].ErrorCode != 0 {
			t.Fatalf("add partitions: %s", errorName(resp.Topics[0].Partitions[0].ErrorCode))
		}
		late := func() map[int32]int {
			t.Helper()
			m, err := s.kafka.lateTransactionPartitions(context.WithoutCancel(t.Context()), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		info, _ := s.kafka.partition("out", 0)
		bubbleSleep(6 * time.Minute)
		if got := late(); len(got) > 0 {
			t.Errorf("late after 6 minutes of 15 and 5: %v", got)
		}
		// From now on a transaction may last a second.
		alter := kmsg.NewPtrIncrementalAlterConfigsRequest()
		alter.Version = 1
		res := kmsg.NewIncrementalAlterConfigsRequestResource()
		res.ResourceType = kmsg.ConfigResourceTypeBroker
		cfg := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		cfg.Name, cfg.Value = "transaction.max.timeout.ms", kmsg.StringPtr("1000")
		res.Configs = append(res.Configs, cfg)
		alter.Resources = append(alter.Resources, res)
		if resp := askGateway[*kmsg.IncrementalAlterConfigsResponse](t, c.rawConn, alter); resp.Resources[0].ErrorCode != 0 {
			t.Fatalf("alter configs: %s", errorName(resp.Resources[0].ErrorCode))
		}
		if got := late(); len(got) != 1 || got[info.leader] != 1 {
			t.Errorf("late: %v, want one partition at broker %d", got, info.leader)
		}
	})
}
