package inspect

import (
	"errors"
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
)

// What does not exist is told, unless it may only be hidden.
func TestMissing(t *testing.T) {
	seen := func(change func(*Evidence)) *Evidence {
		e := &Evidence{Groups: []Group{{GroupID: "billing"}}, Topics: map[[16]byte]string{{1}: "orders"}}
		if change != nil {
			change(e)
		}
		return e
	}
	deleted := func(e *Evidence) { e.States = []ShareState{{TopicID: [16]byte{2}}} }
	for name, c := range map[string]struct {
		evidence *Evidence
		filter   Filter
		want     string // of the error; "" is none
	}{
		"no filter":          {seen(nil), Filter{}, ""},
		"both exist":         {seen(nil), Filter{Groups: []string{"billing"}, Topics: []string{"orders"}}, ""},
		"no such group":      {seen(nil), Filter{Groups: []string{"billing", "biling"}}, `no such share group: "biling"`},
		"no such topic":      {seen(nil), Filter{Topics: []string{"orders", "oders"}}, `describe topic "oders": UNKNOWN_TOPIC_OR_PARTITION`},
		"IDs are forgotten":  {seen(nil), Filter{TransactionalIDs: []string{"x"}}, ""},
		"something hidden":   {seen(func(e *Evidence) { e.Gaps = []Gap{{}} }), Filter{Groups: []string{"biling"}, Topics: []string{"oders"}}, ""},
		"topics not known":   {seen(func(e *Evidence) { e.Topics = nil }), Filter{Topics: []string{"oders"}}, ""},
		"a topic is deleted": {seen(deleted), Filter{Topics: []string{"oders"}}, ""},
		"and no such group":  {seen(deleted), Filter{Groups: []string{"biling"}}, `no such share group: "biling"`},
	} {
		err := c.evidence.Missing(c.filter)
		if err == nil != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A gap that is an error is the one that left it, with what to do about either.
func TestGapError(t *testing.T) {
	old := &cluster.UnsupportedError{What: "x", Reason: "y", Advice: "upgrade"}
	e := &GapError{newGap(SourceListTransactions, 2, "answer", old)}
	if !errors.Is(e, old) || e.Hint() != "upgrade" || e.BrokerID() != 2 {
		t.Errorf("%v (%s): want the unsupported request of broker 2", e, e.Hint())
	}
	e = &GapError{silentGap(SourceListTransactions, cluster.BrokerVersions{NodeID: 1, Err: old})}
	if !strings.Contains(e.Hint(), "start broker 1") {
		t.Errorf("hint %q, want the gap's own", e.Hint())
	}
	e = &GapError{aclGap(SourceListTransactions, ACL{"DESCRIBE", "CLUSTER", "kafka-cluster"}, kerr.ClusterAuthorizationFailed, "x")}
	if !errors.Is(e, kerr.ClusterAuthorizationFailed) {
		t.Errorf("%v does not wrap what the broker answered", e)
	}
	e = &GapError{Gap{Reason: "x"}}
	if e.Unwrap() != nil || e.Hint() != "" || e.BrokerID() != -1 {
		t.Errorf("a gap of its own: %v, %q, %d", e.Unwrap(), e.Hint(), e.BrokerID())
	}
}
