package commands_test

import (
	"strings"
	"testing"

	"github.com/kshare/kshare/internal/cmdtest"
	"github.com/kshare/kshare/internal/fakekafka"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fenceWire runs "txn fence" on a producer with an open transaction, while
// InitProducerId is answered with an error some times; -1 is always.
func fenceWire(t *testing.T, code int16, times, exit int, args ...string) cmdtest.Result {
	t.Helper()
	c := fakekafka.Start(t, fakekafka.Config{Topics: []string{"out"}})
	end := openTransaction(t, c, "worker-1")
	defer end()
	met := 0
	c.Answer(int16(kmsg.InitProducerID), func(_ int32, req kmsg.Request) (kmsg.Response, bool) {
		init := req.(*kmsg.InitProducerIDRequest)
		if init.TransactionTimeoutMillis <= 0 {
			t.Errorf("transaction timeout %d", init.TransactionTimeoutMillis)
		}
		if met == times {
			return nil, false
		}
		met++
		resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = code, -1, -1
		return resp, true
	})
	res := cmdtest.Run(t, cmdtest.Setup{}, append([]string{"txn", "fence", "worker-1", "--yes", "-o", "json", "-b", c.BootstrapServers()}, args...)...).Want(t, exit)
	if times >= 0 && met != times {
		t.Errorf("%d of %d answers were met", met, times)
	}
	return res
}

// R20: a coordinator that is still aborting is asked again; one that never is done
// ends the command by its deadline, not by the producer's.
func TestTxnFenceConcurrent(t *testing.T) {
	t.Parallel()
	res := fenceWire(t, kerr.ConcurrentTransactions.Code, 3, 0)
	if !strings.Contains(res.Stdout, `"result": "fenced"`) {
		t.Errorf("document %s", res.Stdout)
	}
	res = fenceWire(t, kerr.ConcurrentTransactions.Code, -1, 7, "--timeout", "4s")
	line := res.ErrorLine(t)
	if msg := line["error"].(string); !strings.Contains(msg, "CONCURRENT_TRANSACTIONS") || !strings.Contains(res.Stdout, `"result": "failed"`) || line["broker"] == nil {
		t.Errorf("error %v, document %s", line, res.Stdout)
	}
}

// R18: a coordinator that says that it is none is not asked for ever, and named.
func TestTxnFenceNotCoordinator(t *testing.T) {
	t.Parallel()
	line := fenceWire(t, kerr.NotCoordinator.Code, -1, 7, "--timeout", "4s").ErrorLine(t)
	if msg := line["error"].(string); !strings.Contains(msg, "NOT_COORDINATOR") || line["broker"] == nil || line["hint"] == nil {
		t.Errorf("error %v", line)
	}
}

// A right that is missing is told by 4.
func TestTxnFenceDenied(t *testing.T) {
	line := fenceWire(t, kerr.TransactionalIDAuthorizationFailed.Code, 1, 4).ErrorLine(t)
	if line["kafka_error"] != "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" || line["hint"] == nil {
		t.Errorf("error %v", line)
	}
}
