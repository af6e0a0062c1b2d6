package commands_test

import (
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/fakekafka"
)

// A cluster without the KIP is told by 5, with the reason, before anything is done
// there.
func TestAckUnsupported(t *testing.T) {
	c := fakekafka.Start(t, fakekafka.Config{Topics: []string{"in"}})
	for _, args := range [][]string{
		{"ack", "--group", "g", "--accept", "in:0:1", "--yes"},
		{"ack", "--group", "g", "--accept", "in:0:1", "--dry-run"},
		{"txn", "prepare", "--transactional-id", "id", "--group", "g", "--accept", "in:0:1", "--yes"},
	} {
		res := cmdtest.Run(t, cmdtest.Setup{}, append(args, "-o", "json", "-b", c.BootstrapServers())...).Want(t, 5)
		if line := res.ErrorLine(t); res.Stdout != "" || line["hint"] == nil || !strings.Contains(line["error"].(string), "KIP-1289") {
			t.Errorf("%v: error %v, stdout %q", args, line, res.Stdout)
		}
	}
}
