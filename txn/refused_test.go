package txn

import (
	"strings"
	"testing"

	"github.com/kshare/kshare/cluster"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A broker refuses a record without a key in a compacted topic by a name alone.
func TestRefusedRecordAdvice(t *testing.T) {
	for name, tt := range map[string]struct {
		key  []byte
		err  error
		want string // "" gives none
	}{
		"no key":            {nil, kerr.InvalidRecord, "compacted topic"},
		"a key":             {[]byte{}, kerr.InvalidRecord, ""},
		"for other reasons": {nil, kerr.InvalidTimestamp, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := new(Session), new(deliveries)
			s.promiseTo(d)(&kgo.Record{Topic: "shipped", Partition: 2, Key: tt.key}, tt.err)
			err, ok := (*d.err.Load()).(*cluster.Error)
			if !ok || !strings.HasPrefix(err.Error(), "produce: shipped-2: ") {
				t.Fatalf("it says %v", *d.err.Load())
			}
			if got := err.Hint(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("hint %q, want one about %q", got, tt.want)
			}
		})
	}
}
