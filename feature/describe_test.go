package feature

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kversion"
)

func TestReport(t *testing.T) {
	old := released(kversion.V4_2_0())
	fenced := cluster.BrokerVersions{FinalizedEpoch: -1, Err: cluster.ErrFenced}
	noList := stock44(2)
	noList.Supported = nil
	for name, c := range map[string]struct {
		brokers    []cluster.BrokerVersions
		min, max   int16 // of share.version; -1 is nil
		finalized  int16 // -1 is nil
		state      Agreement
		epoch      int64 // -1 is nil
		unknowns   []string
		skews      []string
		verdict    cluster.Verdict
		incomplete bool
	}{
		"brokers that agree": {
			brokers: []cluster.BrokerVersions{stock44(2), stock44(2)},
			min:     0, max: 2, finalized: 2, state: Agreed, epoch: 7, verdict: cluster.NotSupported,
		},
		"one at the old software": {
			brokers: []cluster.BrokerVersions{stock44(1), stock44(1), old},
			min:     0, max: 1, finalized: 1, state: Skew, epoch: 7, verdict: cluster.NotSupported,
			skews: []string{
				"skew in metadata.version: broker 0 supports 7-33 and is at 33, broker 1 supports 7-33 and is at 33, broker 2 supports 7-29 and is at 29",
				"skew in share.version: broker 0 supports 0-2 and is at 1, broker 1 supports 0-2 and is at 1, broker 2 supports 0-1 and is at 1",
			},
		},
		"one that does not know the feature": {
			brokers: []cluster.BrokerVersions{stock44(0), released(kversion.V4_0_0())},
			min:     0, max: 0, finalized: 0, state: Skew, epoch: 7, verdict: cluster.NotSupported,
			skews: []string{"eligible.leader", "metadata.version", "skew in share.version: broker 0 supports 0-2 and is at 0, broker 1 supports no level and is at 0", "streams.version"},
		},
		"one behind with the levels; the newest epoch counts": {
			brokers: []cluster.BrokerVersions{atEpoch(stock44(1), 5), atEpoch(stock44(2), 9)},
			min:     0, max: 2, finalized: 2, state: Skew, epoch: 9, verdict: cluster.NotSupported,
			skews: []string{"skew in share.version: broker 0 supports 0-2 and is at 1, broker 1 supports 0-2 and is at 2"},
		},
		"one silent": {
			brokers: []cluster.BrokerVersions{stock44(2), silent()},
			min:     0, max: 2, finalized: 2, state: Incomplete, epoch: 7, verdict: cluster.NotSupported, incomplete: true,
			unknowns: []string{"broker 1 (broker:9092) did not answer: broker 1: connection refused"},
		},
		"one fenced": {
			brokers: []cluster.BrokerVersions{stock44(2), fenced},
			min:     0, max: 2, finalized: 2, state: Incomplete, epoch: 7, verdict: cluster.NotSupported, incomplete: true,
			unknowns: []string{"broker 1 is registered, but fenced"},
		},
		"one that does not know the levels": {
			brokers: []cluster.BrokerVersions{stock44(2), atEpoch(stock44(2), -1)},
			min:     0, max: 2, finalized: 2, state: Incomplete, epoch: 7, verdict: cluster.NotSupported, incomplete: true,
			unknowns: []string{"broker 1 does not know which levels are finalized (epoch -1)"},
		},
		"none knows the levels": {
			brokers: []cluster.BrokerVersions{atEpoch(stock44(2), -1)},
			min:     0, max: 2, finalized: -1, state: Incomplete, epoch: -1, verdict: cluster.NotSupported, incomplete: true,
			unknowns: []string{"epoch -1"},
		},
		"one that cannot list what it supports": {
			brokers: []cluster.BrokerVersions{stock44(2), noList},
			min:     0, max: 2, finalized: 2, state: Incomplete, epoch: 7, verdict: cluster.NotSupported, incomplete: true,
			unknowns: []string{"broker 1 answers ApiVersions below v4"},
		},
		"a skew and a silent one": {
			brokers: []cluster.BrokerVersions{stock44(2), supporting(stock44(2), "share.version", 0, 3), silent()},
			min:     0, max: 2, finalized: 2, state: Skew, epoch: 7, verdict: cluster.NotSupported, incomplete: true,
			unknowns: []string{"broker 2"}, skews: []string{"broker 1 supports 0-3 and is at 2, broker 2 supports ? and is at ?"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := report(c.brokers...)
			f, ok := r.Feature("share.version")
			if !ok {
				t.Fatal("share.version is not in the report")
			}
			if got := []int16{value(f.Min), value(f.Max), value(f.Finalized)}; !slices.Equal(got, []int16{c.min, c.max, c.finalized}) || f.State != c.state {
				t.Errorf("share.version supports %d-%d, is at %d and %s, want %d-%d, %d, %s", got[0], got[1], got[2], f.State, c.min, c.max, c.finalized, c.state)
			}
			epoch := int64(-1)
			if r.Epoch != nil {
				epoch = *r.Epoch
			}
			if epoch != c.epoch || r.Incomplete() != c.incomplete || r.Verdict() != c.verdict {
				t.Errorf("epoch %d, incomplete %v, verdict %s, want %d, %v, %s", epoch, r.Incomplete(), r.Verdict(), c.epoch, c.incomplete, c.verdict)
			}
			wantSentences(t, "unknowns", r.Unknowns(), c.unknowns)
			wantSentences(t, "skews", r.Skews(), c.skews)
			if (f.Meaning == nil) != (f.Finalized == nil) {
				t.Errorf("meaning %v of finalized %v", f.Meaning, f.Finalized)
			}
			if len(r.Brokers) != len(c.brokers) || len(f.Brokers) != len(c.brokers) {
				t.Errorf("%d brokers, %d of the feature, want %d", len(r.Brokers), len(f.Brokers), len(c.brokers))
			}
		})
	}
}

func value(level *int16) int16 {
	if level == nil {
		return -1
	}
	return *level
}

// wantSentences compares sentence by sentence, each by a part of it.
func wantSentences(t *testing.T, what string, got, want []string) {
	t.Helper()
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		ok = strings.Contains(got[i], want[i])
	}
	if !ok {
		t.Errorf("%s:\n  %s\nwant:\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestHints(t *testing.T) {
	for name, c := range map[string]struct {
		brokers []cluster.BrokerVersions
		want    []string
	}{
		"nothing to raise":         {[]cluster.BrokerVersions{stock44(2)}, nil},
		"a level that is not used": {[]cluster.BrokerVersions{at(stock44(2), "group.version", 0)}, []string{"kshare feature upgrade group.version=1"}},
		"the dead-letter queue":    {[]cluster.BrokerVersions{stock44(1)}, []string{"kshare feature upgrade share.version=2"}},
		"the KIP, by what it does": {[]cluster.BrokerVersions{kip(1, 2)}, []string{"kshare feature upgrade --enable txn-acks"}},
		"the KIP without transaction.version": {
			[]cluster.BrokerVersions{kip(2, 1)},
			[]string{"kshare feature upgrade --enable txn-acks", "kshare feature upgrade transaction.version=2"},
		},
		"only what every broker supports": {[]cluster.BrokerVersions{stock44(1), supporting(stock44(1), "share.version", 0, 1)}, nil},
		"nothing while a broker is silent": {
			[]cluster.BrokerVersions{stock44(1), silent()}, nil,
		},
		"the quorum is not talked into": {[]cluster.BrokerVersions{at(stock44(2), "kraft.version", 0)}, nil},
	} {
		var got []string
		for _, h := range report(c.brokers...).Hints {
			got = append(got, h.Command)
			if h.Meaning == "" || h.Level == 0 {
				t.Errorf("%s: hint %+v lacks something", name, h)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: hints %q, want %q", name, got, c.want)
		}
	}
}

// The request for the controller goes to a broker that answers.
func TestController(t *testing.T) {
	for name, c := range map[string]struct {
		d    cluster.Description
		want int32
	}{
		"the controller":            {cluster.Description{ControllerID: 1, Brokers: described(stock44(2), stock44(2)).Brokers}, 1},
		"silent":                    {cluster.Description{ControllerID: 1, Brokers: described(stock44(2), silent()).Brokers}, 0},
		"not known":                 {cluster.Description{ControllerID: -1, Brokers: described(stock44(2), stock44(2)).Brokers}, 0},
		"nobody answers":            {described(silent()), -1},
		"the first one is silent":   {cluster.Description{ControllerID: 0, Brokers: described(silent(), stock44(2)).Brokers}, 1},
		"it is not in the metadata": {cluster.Description{ControllerID: 9, Brokers: described(stock44(2)).Brokers}, 0},
	} {
		if got := NewReport(c.d, "").controller; got != c.want {
			t.Errorf("%s: broker %d, want %d", name, got, c.want)
		}
	}
}

func TestDescribeFails(t *testing.T) {
	want := errors.New("no broker")
	_, err := Describe(t.Context(), &fakeCluster{describe: func() (cluster.Description, error) { return cluster.Description{}, want }}, DescribeOptions{})
	if !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "describe features: ") {
		t.Errorf("Describe fails with %v, want %v with what was being done", err, want)
	}
}
