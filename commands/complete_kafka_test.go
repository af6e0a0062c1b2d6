package commands_test

import (
	"strings"

	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/twmb/franz-go/pkg/kadm"
)

// completes completes names on a Kafka that is new: none of its internal topics
// is there, and completing creates none.
func (k *txnKafka) completes() {
	k.t.Helper()
	topics := func() string {
		k.t.Helper()
		all, err := kadm.NewClient(k.Client(k.t)).ListTopicsWithInternal(k.t.Context())
		if err != nil {
			k.t.Fatal(err)
		}
		return strings.Join(all.Names(), " ")
	}
	before := topics()
	setup := cmdtest.Setup{Env: map[string]string{"KSHARE_BOOTSTRAP_SERVER": strings.Join(k.Bootstrap(), ",")}}
	for line, want := range map[string]string{
		"inspect|group|":               "",
		"inspect|txn|":                 "",
		"drain|--topic|":               "shipped\t4 partitions",
		"ack|--accept|shipped:3":       "shipped:3:\tleader 1",
		"feature|plan|share.version=1": "share.version=1\tshare groups (KIP-932)",
		"feature|plan|share.version=2": "share.version=2\tshare groups with dead-letter queues (KIP-1191), now",
	} {
		if got := completeFrom(k.t, setup, line, want); got != want {
			k.t.Errorf("completing %s: %q, want %q", line, got, want)
		}
	}
	if after := topics(); after != before {
		k.t.Errorf("the topics were %s, and completing has made them %s", before, after)
	}
}
