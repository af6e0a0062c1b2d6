package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestStateRoundTrip(t *testing.T) {
	s := startSandbox(t, WithStatePartitions(5))
	ctx := testContext(t)
	at := time.UnixMilli(1_800_000_000_000)
	var want []stateRecord
	for i := range 200 {
		r := stateRecord{
			partition: int32(i % 5), key: fmt.Appendf(nil, "key %d", i), timestamp: at.Add(time.Duration(i) * time.Millisecond),
		}
		if i%7 != 0 { // the others are tombstones
			r.value = bytes.Repeat([]byte{byte(i)}, i*100)
		}
		want = append(want, r)
	}
	for chunk := range slices.Chunk(want, 60) {
		if err := s.kafka.appendState(ctx, chunk); err != nil {
			t.Fatal(err)
		}
	}
	c := dialCoordinator(t, s, "txn")
	producerID, epoch := c.init(t)
	c.register(t, producerID, epoch, 2)
	c.end(t, 4, producerID, epoch, true)

	got := make(map[int32][]stateRecord)
	if err := s.kafka.readState(ctx, func(r stateRecord) error { got[r.partition] = append(got[r.partition], r); return nil }); err != nil {
		t.Fatal(err)
	}
	for p := range int32(5) {
		records := got[p]
		if p == 2 {
			last := records[len(records)-1]
			if !last.marker || !last.commit || last.producerID != producerID || last.producerEpoch != epoch || last.key != nil {
				t.Errorf("end marker %+v", last)
			}
			records = records[:len(records)-1]
		}
		i := 0
		for _, w := range want {
			if w.partition != p {
				continue
			}
			if i >= len(records) {
				t.Fatalf("partition %d has %d records", p, len(records))
			}
			r := records[i]
			if !bytes.Equal(r.key, w.key) || !bytes.Equal(r.value, w.value) || (r.value == nil) != (w.value == nil) || !r.timestamp.Equal(w.timestamp) || r.marker {
				t.Fatalf("partition %d, record %d: key %q, %d bytes of value at %v; want %q, %d, %v", p, i, r.key, len(r.value), r.timestamp, w.key, len(w.value), w.timestamp)
			}
			i++
		}
		if i != len(records) {
			t.Errorf("partition %d has %d records, want %d", p, len(records), i)
		}
	}

	stop := errors.New("stop")
	if err := s.kafka.readState(ctx, func(stateRecord) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("readState = %v, want the error of the callback", err)
	}
	if err := s.kafka.appendState(ctx, []stateRecord{{partition: 99}}); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("append to partition 99 of 5: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.kafka.appendState(canceled, want[:1]); !errors.Is(err, context.Canceled) {
		t.Errorf("append with a canceled context: %v", err)
	}
}

// Large states are written as several batches, in order.
func TestStateBatchesAreBounded(t *testing.T) {
	var records []stateRecord
	for i := range 40 {
		records = append(records, stateRecord{key: []byte{byte(i)}, value: make([]byte, 100<<10), timestamp: time.Unix(1, 0)})
	}
	batches := stateBatches(records)
	if len(batches) < 2 {
		t.Fatalf("%d batches", len(batches))
	}
	var next byte
	for _, b := range batches {
		if len(b) > 1<<20 {
			t.Errorf("a batch of %d bytes", len(b))
		}
		if _, err := eachStateRecord(b, 0, 0, func(r stateRecord) error {
			if r.key[0] != next {
				return fmt.Errorf("record %d where %d was awaited", r.key[0], next)
			}
			next++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if next != 40 {
		t.Errorf("%d records, want 40", next)
	}
}

func TestBackendFetch(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t", Partitions: 1}))
	ctx := testContext(t)
	cl := newTestClient(t, s, kgo.TransactionalID("txn"))
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produceValues(t, cl, "t", 3)

	for _, committed := range []bool{false, true} {
		f, err := s.kafka.fetch(ctx, "t", 0, 0, 1<<20, committed)
		if err != nil {
			t.Fatal(err)
		}
		if (len(f.records) == 0) != committed || f.highWatermark != 3 || f.lastStableOffset != 0 {
			t.Errorf("open transaction, committed only %v: %d bytes, %+v", committed, len(f.records), f.partitionInfo)
		}
	}
	if err := cl.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	f, err := s.kafka.fetch(ctx, "t", 0, 0, 1<<20, true)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.records) == 0 || len(f.aborted) != 1 || f.aborted[0].firstOffset != 0 || f.lastStableOffset != 4 {
		t.Errorf("aborted transaction: %d bytes, %+v", len(f.records), f)
	}
	again, err := s.kafka.fetch(ctx, "t", 0, 0, 1<<20, true)
	if err != nil || !bytes.Equal(again.records, f.records) {
		t.Errorf("a second fetch differs, %v", err)
	}
	again.records[0]++ // shares nothing with the first
	if bytes.Equal(again.records, f.records) {
		t.Error("two fetches share their bytes")
	}
	if f, err := s.kafka.fetch(ctx, "t", 0, 4, 1<<20, false); err != nil || len(f.records) != 0 {
		t.Errorf("at the end: %d bytes, %v", len(f.records), err)
	}
	if _, err := s.kafka.fetch(ctx, "t", 0, 5, 1<<20, false); !errors.Is(err, kerr.OffsetOutOfRange) {
		t.Errorf("past the end: %v", err)
	}
	if _, err := s.kafka.fetch(ctx, "none", 0, 0, 1<<20, false); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("no such topic: %v", err)
	}
}

func TestOffsetForTime(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t", Partitions: 1}))
	ctx := testContext(t)
	cl := newTestClient(t, s)
	base := time.UnixMilli(1_700_000_000_000)
	for i := range 5 {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "t", Timestamp: base.Add(time.Duration(i) * time.Hour)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		at   time.Time
		want int64
	}{
		{time.Time{}, 0}, {base, 0}, {base.Add(time.Millisecond), 1}, {base.Add(2 * time.Hour), 2}, {base.Add(24 * time.Hour), -1},
	} {
		if got, err := s.kafka.offsetForTime(ctx, "t", 0, tt.at); err != nil || got != tt.want {
			t.Errorf("offset for %v: %d, %v; want %d", tt.at, got, err, tt.want)
		}
	}
}

// alterGroup sets configs of a group through the gateway.
func alterGroup(t testing.TB, s *Sandbox, group string, configs map[string]string) {
	t.Helper()
	if code := alterGroupCode(t, s, group, configs); code != 0 {
		t.Fatalf("alter %v of group %s: code %d", configs, group, code)
	}
}

func alterGroupCode(t testing.TB, s *Sandbox, group string, configs map[string]string) int16 {
	t.Helper()
	return tryAlterGroup(t, s, group, configs).ErrorCode
}

func tryAlterGroup(t testing.TB, s *Sandbox, group string, configs map[string]string) kmsg.IncrementalAlterConfigsResponseResource {
	t.Helper()
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	req.Version = 1
	rr := kmsg.NewIncrementalAlterConfigsRequestResource()
	rr.ResourceType, rr.ResourceName = kmsg.ConfigResourceTypeGroupConfig, group
	for _, name := range sortedKeys(configs) {
		rc := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		rc.Name, rc.Value = name, kmsg.StringPtr(configs[name])
		rr.Configs = append(rr.Configs, rc)
	}
	req.Resources = append(req.Resources, rr)
	return askGateway[*kmsg.IncrementalAlterConfigsResponse](t, dialRaw(t, s, 0), req).Resources[0]
}

// What a group cannot have is refused in Kafka's words, and nothing of it kept.
func TestGroupConfigsRefused(t *testing.T) {
	s := startSandbox(t, WithBrokerConfigs(map[string]string{"group.share.min.heartbeat.interval.ms": "1000", "group.share.max.heartbeat.interval.ms": "50000"}))
	for name, tt := range map[string]struct {
		configs map[string]string
		want    string // "" is accepted
	}{
		"unknown":            {map[string]string{"share.no.such.config": "1"}, "Unknown group config name: share.no.such.config"},
		"a broker's name":    {map[string]string{"group.share.session.timeout.ms": "50000"}, "Unknown group config name: group.share.session.timeout.ms"},
		"no strategy":        {map[string]string{"share.auto.offset.reset": "foo"}, "Invalid value foo for configuration share.auto.offset.reset: Invalid value `foo` for configuration share.auto.offset.reset. The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS.>'."},
		"no duration":        {map[string]string{"share.auto.offset.reset": "by_duration:1h"}, "Invalid value by_duration:1h for configuration share.auto.offset.reset: Invalid value `by_duration:1h` for configuration share.auto.offset.reset. The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS.>'."},
		"a duration":         {map[string]string{"share.auto.offset.reset": "by_duration:PT1H"}, ""},
		"no isolation level": {map[string]string{"share.isolation.level": "serializable"}, "Invalid value serializable for configuration share.isolation.level: String must be one of: read_committed, read_uncommitted"},
		"no number":          {map[string]string{"share.record.lock.duration.ms": "30s"}, "Invalid value 30s for configuration share.record.lock.duration.ms: Not a number of type INT"},
		"too big a number":   {map[string]string{"share.record.lock.duration.ms": "3000000000"}, "Invalid value 3000000000 for configuration share.record.lock.duration.ms: Not a number of type INT"},
		"below any minimum":  {map[string]string{"share.record.lock.duration.ms": "999"}, "Invalid value 999 for configuration share.record.lock.duration.ms: Value must be at least 1000"},
		"a lock too short":   {map[string]string{"share.record.lock.duration.ms": "14999"}, "share.record.lock.duration.ms must be in the range 15000 to 60000 inclusive."},
		"a lock too long":    {map[string]string{"share.record.lock.duration.ms": "60001"}, "share.record.lock.duration.ms must be in the range 15000 to 60000 inclusive."},
		"the shortest lock":  {map[string]string{"share.record.lock.duration.ms": "15000"}, ""},
		"one delivery":       {map[string]string{"share.delivery.count.limit": "1"}, "share.delivery.count.limit must be in the range 2 to 10 inclusive."},
		"too many locks":     {map[string]string{"share.partition.max.record.locks": "10001"}, "share.partition.max.record.locks must be in the range 100 to 10000 inclusive."},
		"bounds of a broker": {map[string]string{"share.heartbeat.interval.ms": "999"}, "share.heartbeat.interval.ms must be in the range 1000 to 50000 inclusive."},
		"too slow a heart":   {map[string]string{"share.heartbeat.interval.ms": "45000"}, "share.session.timeout.ms must be greater than share.heartbeat.interval.ms"},
		"both of them":       {map[string]string{"share.heartbeat.interval.ms": "45000", "share.session.timeout.ms": "46000"}, ""},
		"no boolean":         {map[string]string{"share.renew.acknowledge.enable": "perhaps"}, "Invalid value perhaps for configuration share.renew.acknowledge.enable: Expected value to be either true or false"},
		"consumers":          {map[string]string{"consumer.session.timeout.ms": "1000"}, "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive."},
		"one of two is bad":  {map[string]string{"share.delivery.count.limit": "9", "share.isolation.level": ""}, "Invalid value  for configuration share.isolation.level: String must be one of: read_committed, read_uncommitted"},
	} {
		t.Run(name, func(t *testing.T) {
			group := t.Name()
			got := tryAlterGroup(t, s, group, tt.configs)
			text := ""
			if got.ErrorMessage != nil {
				text = *got.ErrorMessage
			}
			if refused := tt.want != ""; text != tt.want || refused != (got.ErrorCode == kerr.InvalidConfig.Code) || !refused && got.ErrorCode != 0 {
				t.Errorf("code %d, %q; want %q", got.ErrorCode, text, tt.want)
			}
			for n, v := range tt.configs {
				if _, set := s.kafka.configs.groups.get(group, n); set != (tt.want == "") {
					t.Errorf("%s=%s: kept %v", n, v, set)
				}
			}
		})
	}
	if got := tryAlterGroup(t, s, "", map[string]string{"share.delivery.count.limit": "9"}); got.ErrorCode != kerr.InvalidRequest.Code {
		t.Errorf("a default for all groups: code %d", got.ErrorCode)
	}
}

func TestConfigs(t *testing.T) {
	s := startSandbox(t, WithBrokerConfigs(map[string]string{"group.share.record.lock.duration.ms": "20000", "some.future.config": "x"}))
	ctx := testContext(t)
	want := func(group, name, value string) {
		t.Helper()
		if got := s.kafka.groupConfig(group, name); got != value {
			t.Errorf("%s of group %q is %q, want %q", name, group, got, value)
		}
	}
	want("g", "share.record.lock.duration.ms", "20000")
	want("g", "share.session.timeout.ms", "45000")
	want("g", "share.renew.acknowledge.enable", "true")
	want("g", "no.such.config", "")
	if got := s.kafka.brokerConfig("some.future.config"); got != "x" {
		t.Errorf("a broker config that kfake does not know is %q", got)
	}
	if got := s.kafka.brokerConfig("transaction.max.timeout.ms"); got != "900000" {
		t.Errorf("transaction.max.timeout.ms is %q", got)
	}

	alterGroup(t, s, "g", map[string]string{"share.record.lock.duration.ms": "31000", "share.renew.acknowledge.enable": "FALSE"})
	want("g", "share.record.lock.duration.ms", "31000")
	want("g", "share.renew.acknowledge.enable", "false")
	want("other", "share.record.lock.duration.ms", "20000")
	want("other", "share.renew.acknowledge.enable", "true")

	if code := alterGroupCode(t, s, "g", map[string]string{"share.renew.acknowledge.enable": "perhaps"}); code != kerr.InvalidConfig.Code {
		t.Errorf("a boolean that is none: code %d", code)
	}
	if code := alterGroupCode(t, s, "g", map[string]string{"no.such.config": "1", "share.renew.acknowledge.enable": "true"}); code != kerr.InvalidConfig.Code {
		t.Errorf("an unknown config: code %d", code)
	}
	want("g", "share.renew.acknowledge.enable", "false") // nothing of a refused request is kept

	adm := kadm.NewClient(newTestClient(t, s))
	describe := kmsg.NewPtrDescribeConfigsRequest()
	describe.Version, describe.IncludeSynonyms = 4, true
	rr := kmsg.NewDescribeConfigsRequestResource()
	rr.ResourceType, rr.ResourceName = kmsg.ConfigResourceTypeGroupConfig, "g"
	describe.Resources = append(describe.Resources, rr)
	values := make(map[string]string)
	for _, c := range askGateway[*kmsg.DescribeConfigsResponse](t, dialRaw(t, s, 0), describe).Resources[0].Configs {
		if !strings.HasPrefix(c.Name, "share.") {
			continue
		}
		if c.Value == nil {
			t.Errorf("no value of %s", c.Name)
			continue
		}
		values[c.Name] = *c.Value + " " + c.Source.String()
		if len(c.ConfigSynonyms) > 0 {
			values[c.Name] += " " + c.ConfigSynonyms[0].Name
		}
	}
	// All that is in force is told, and where it comes from, as Kafka does.
	wantValues := map[string]string{
		"share.auto.offset.reset":          "latest DEFAULT_CONFIG share.auto.offset.reset",
		"share.delivery.count.limit":       "5 DEFAULT_CONFIG group.share.delivery.count.limit",
		"share.heartbeat.interval.ms":      "5000 DEFAULT_CONFIG group.share.heartbeat.interval.ms",
		"share.isolation.level":            "read_uncommitted DEFAULT_CONFIG share.isolation.level",
		"share.partition.max.record.locks": "2000 DEFAULT_CONFIG group.share.partition.max.record.locks",
		"share.record.lock.duration.ms":    "31000 GROUP_CONFIG",
		"share.renew.acknowledge.enable":   "false GROUP_CONFIG",
		"share.session.timeout.ms":         "45000 DEFAULT_CONFIG group.share.session.timeout.ms",
	}
	if !maps.Equal(values, wantValues) {
		t.Errorf("described as %v, want %v", values, wantValues)
	}
	if _, err := adm.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "group.share.record.lock.duration.ms", Value: kadm.StringPtr("25000")}}); err != nil {
		t.Fatal(err)
	}
	want("other", "share.record.lock.duration.ms", "25000")
}

// After the close, nothing blocks.
func TestBackendAfterClose(t *testing.T) {
	s := startSandbox(t, WithTopics(Topic{Name: "t"}))
	closeSandbox(t, s)
	if _, ok := s.kafka.topicByName("new"); ok {
		t.Error("found a topic")
	}
	if _, ok := s.kafka.partition("t", 0); ok {
		t.Error("found a partition")
	}
	if n := s.kafka.coordinator("g"); n != -1 {
		t.Errorf("coordinator %d", n)
	}
	if _, err := s.kafka.listTransactions(t.Context()); err == nil {
		t.Error("listed transactions")
	}
	if got := s.kafka.brokerConfig("group.max.size"); got != "" {
		t.Errorf("config %q", got)
	}
}
