package inspect_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster"
	"github.com/kshare/kshare/inspect"
	"github.com/kshare/kshare/internal/kafkatest"
	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A real broker with the JMX exporter and with Jolokia: both tell what a member
// did, and that there is nothing of KIP-1289.
func TestMetricsOnKafka(t *testing.T) {
	const records, taken = 20, 8
	exporter, err := os.ReadFile("../examples/monitoring/jmx-exporter.yml")
	if err != nil {
		t.Fatal(err)
	}
	k := kafkatest.Start(t, kafkatest.Config{Version: kafkatest.Kafka44, Exporter: string(exporter)})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	producer := k.Client(t, kgo.DefaultProduceTopic("orders"))
	if _, err := kadm.NewClient(producer).CreateTopic(ctx, 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	for i := range records {
		if err := producer.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint(i))).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	cl, err := cluster.Connect(ctx, cluster.Config{BootstrapServers: k.Bootstrap()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.SetGroupConfig(ctx, "billing", "share.auto.offset.reset", "earliest"); err != nil {
		t.Fatal(err)
	}
	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: "billing", Topics: []string{"orders"}, MaxRecords: taken})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abandon()
	b, err := c.Poll(ctx, taken)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Acknowledge(ctx, b, b.All(wire.Accept)); err != nil {
		t.Fatal(err)
	}
	accepted := float64(b.Acquired())

	for _, c := range []struct {
		kind inspect.EndpointKind
		addr string
	}{
		{inspect.EndpointPrometheus, k.ExporterAddr(t, 1)},
		{inspect.EndpointJolokia, k.JolokiaAddr(t, 1)},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			e, err := inspect.NewMetricsEndpoint(c.kind, c.addr)
			if err != nil {
				t.Fatal(err)
			}
			// The first answer of a JVM that is still cold takes its time.
			rep, err := inspect.ReadMetrics(ctx, inspect.MetricsOptions{Endpoints: []inspect.MetricsEndpoint{e}, Now: time.Now, Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			if e := rep.Endpoints[0]; e.Error != nil {
				t.Fatalf("endpoint %s: %s", e.Endpoint, *e.Error)
			}
			checkKafkaMetrics(t, rep, accepted)
		})
	}
}

func checkKafkaMetrics(t *testing.T, rep *inspect.MetricsReport, accepted float64) {
	t.Helper()
	got := make(map[string]*float64)
	for _, r := range rep.Rows {
		name := r.Metric + "/" + r.Attribute
		for _, label := range []string{"ackType", "state"} {
			if v := r.Labels[label]; v != "" {
				name += " " + v
			}
		}
		got[name] = r.Value
		if r.Proposed && r.Value != nil {
			t.Errorf("%s of KIP-1289 is %v on a broker without it", name, *r.Value)
		}
		if !r.Proposed && r.Value == nil {
			t.Errorf("%s is not known: is its name right?", name)
		}
	}
	for name, want := range map[string]float64{
		"RecordAcknowledgementsPerSec/Count Accept":       accepted,
		"RecordAcknowledgementsPerSec/Count Release":      0,
		"PartitionsWithLateTransactionsCount/Value":       0,
		"TotalShareAcknowledgementRequestsPerSec/Count":   1, // and not once more for the topic
		"FailedShareFetchRequestsPerSec/Count":            0,
		"share-coordinator-metrics/num-partitions active": 3,
	} {
		if v := got[name]; v == nil || *v != want {
			t.Errorf("%s = %v, want %v", name, value(v), want)
		}
	}
	if v := got["TotalShareFetchRequestsPerSec/Count"]; v == nil || *v < 1 {
		t.Errorf("TotalShareFetchRequestsPerSec/Count = %v, want some", value(v))
	}
	states := make(map[string]inspect.AlertState)
	for _, a := range rep.Alerts {
		states[a.Alert] = a.State
	}
	for alert, want := range map[string]inspect.AlertState{
		"KafkaShareTxnPendingRecords": inspect.AlertUnknown, "KafkaShareTxnPendingStuck": inspect.AlertUnknown,
		"KafkaShareTxnPendingLockExpired": inspect.AlertUnknown, "KafkaShareLateTransactions": inspect.AlertOK,
	} {
		if states[alert] != want {
			t.Errorf("alert %s is %s, want %s", alert, states[alert], want)
		}
	}
}

func value(v *float64) any {
	if v == nil {
		return "not known"
	}
	return *v
}
