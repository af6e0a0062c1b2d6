package ctp_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kshare/kshare/ctp"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A run whose source ends with an open transaction waits for it, and says so.
func TestRunBehindOpenTransaction(t *testing.T) {
	for _, stalls := range []bool{false, true} {
		bubble(t, "kip", func(e *env) {
			e.produce(5, plain)
			upstream := e.client(kgo.DefaultProduceTopic("in"), kgo.TransactionalID("upstream"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			if err := upstream.BeginTransaction(); err != nil {
				e.t.Fatal(err)
			}
			before := e.ends("in")[2]
			if err := upstream.ProduceSync(e.t.Context(), &kgo.Record{Partition: 2, Key: []byte("5")}, &kgo.Record{Partition: 2, Key: []byte("6")}).FirstErr(); err != nil {
				e.t.Fatal(err)
			}
			end := func() {
				if err := upstream.EndTransaction(e.t.Context(), kgo.TryCommit); err != nil {
					e.t.Error(err)
				}
			}
			var said []string
			opts := e.options()
			opts.Warn = func(err error) {
				if errors.Is(err, ctp.ErrWaiting) {
					said = append(said, err.Error())
				}
			}
			where := "(in-2 from offset " + strconv.FormatInt(before, 10) + ")"
			if stalls {
				opts.StallTimeout = 5 * time.Second
				res, err := ctp.Run(e.t.Context(), e.cl, opts)
				stalled, ok := errors.AsType[*ctp.StalledError](err)
				if !ok || !strings.Contains(stalled.Hint(), where) || res.Consumed != 5 {
					e.t.Errorf("Run = %+v, %v; want it stalled, and told of %s", res, err, where)
				}
				end()
				return
			}
			time.AfterFunc(30*time.Second, end)
			if res := e.run(opts); res.Consumed != 7 {
				e.t.Errorf("Run = %+v, want 7 consumed", res)
			}
			if len(said) != 1 || !strings.Contains(said[0], where) || !strings.Contains(said[0], "behind an open transaction") {
				e.t.Errorf("said %q, want once that it waits, and for %s", said, where)
			}
		})
	}
}
