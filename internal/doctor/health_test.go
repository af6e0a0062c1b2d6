package doctor

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/cluster/auth"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestHealth(t *testing.T) {
	part := func(p, leader int32, replicas, isr int) kmsg.MetadataResponseTopicPartition {
		return kmsg.MetadataResponseTopicPartition{Partition: p, Leader: leader, Replicas: make([]int32, replicas), ISR: make([]int32, isr)}
	}
	many := make([]kmsg.MetadataResponseTopicPartition, 12)
	for i := range many {
		many[i] = part(int32(i), -1, 3, 0)
	}
	for _, c := range []struct {
		name       string
		partitions []kmsg.MetadataResponseTopicPartition
		minISR     int
		brokers    int
		state      State
		detail     string
	}{
		{"healthy", []kmsg.MetadataResponseTopicPartition{part(0, 1, 3, 3), part(1, 2, 3, 3)}, 2, 3, OK, "2 partitions, 3 replicas, min.insync.replicas 2"},
		{"min ISR not told", []kmsg.MetadataResponseTopicPartition{part(0, 1, 3, 3)}, 0, 3, OK, "1 partitions, 3 replicas, min.insync.replicas not known"},
		{"under-replicated", []kmsg.MetadataResponseTopicPartition{part(0, 1, 3, 3), part(1, 2, 3, 2)}, 2, 3, Warning, "under-replicated: 1"},
		{"below min ISR", []kmsg.MetadataResponseTopicPartition{part(0, 1, 3, 1), part(1, 2, 3, 2)}, 2, 3, Failed, "in sync below that: 0"},
		{"no leader", []kmsg.MetadataResponseTopicPartition{part(3, -1, 3, 0), part(1, 2, 3, 1)}, 2, 3, Failed, "without leader: 3"},
		{"many without leader", many, 2, 3, Failed, "without leader: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2 more"},
		{"one replica", []kmsg.MetadataResponseTopicPartition{part(0, 1, 1, 1)}, 1, 3, Warning, "1 partitions, 1 replicas"},
		{"one replica, one broker", []kmsg.MetadataResponseTopicPartition{part(0, 1, 1, 1)}, 1, 1, OK, "1 partitions, 1 replicas"},
	} {
		f := health(kmsg.MetadataResponseTopic{Partitions: c.partitions}, c.minISR, c.brokers)
		if f.State != c.state || !strings.Contains(f.Detail, c.detail) || (f.Advice == "") != (c.state == OK) {
			t.Errorf("%s: health = %+v, want %s: %s", c.name, f, c.state, c.detail)
		}
	}
}

func TestExpiry(t *testing.T) {
	now := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
	for left, want := range map[time.Duration]State{-time.Hour: Warning, 24 * time.Hour: Warning, 29 * 24 * time.Hour: Warning, 31 * 24 * time.Hour: OK} {
		if got, advice := expiry(&x509.Certificate{NotAfter: now.Add(left)}, now); got != want || (advice == "") != (want == OK) {
			t.Errorf("a certificate with %s left is %s (%s), want %s", left, got, advice, want)
		}
	}
}

func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		o    auth.Options
		want string
	}{
		{auth.Options{}, "User:ANONYMOUS"},
		{auth.Options{TLS: &auth.TLS{}}, "User:ANONYMOUS: no certificate"},
		{auth.Options{TLS: &auth.TLS{}, SASL: &auth.SASL{Name: "SCRAM-SHA-512", User: "alice"}}, "User:alice, logged in by SCRAM-SHA-512"},
		{auth.Options{SASL: &auth.SASL{Name: "SCRAM-SHA-512", User: "id", DelegationToken: true}}, "the owner of the delegation token"},
		{auth.Options{SASL: &auth.SASL{Name: "OAUTHBEARER"}}, "the subject of the token"},
		{auth.Options{SASL: &auth.SASL{Name: "AWS_MSK_IAM"}}, "the IAM identity"},
		{auth.Options{SASL: &auth.SASL{Name: "GSSAPI"}}, "the principal of the Kerberos ticket"},
		{auth.Options{SASL: &auth.SASL{Name: "GSSAPI", User: "a@R"}}, "User:a@R, logged in by GSSAPI"},
	} {
		var r Report
		if r.identity(c.o); len(r.Findings) != 1 || !strings.HasPrefix(r.Findings[0].Detail, c.want) {
			t.Errorf("identity of %+v is %+v, want %q", c.o, r.Findings, c.want)
		}
	}
}
