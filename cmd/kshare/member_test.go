//go:build unix

package main

import (
	"strconv"

	"github.com/kshare/kshare/share"
	"github.com/kshare/kshare/wire"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/twmb/franz-go/pkg/kadm"
)

// cmdMember joins a share group, accepts the first records of a topic, releases
// the one after them, and stays a member until the script ends:
//
//	member $CLUSTER billing orders 3
func cmdMember(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: member BOOTSTRAP GROUP TOPIC RECORDS")
	}
	n, err := strconv.Atoi(args[3])
	ts.Check(err)
	ctx, cl := connectScript(ts, args[0])
	ts.Check(cl.SetGroupConfig(ctx, args[1], "share.auto.offset.reset", "earliest"))
	c, err := share.NewConsumer(ctx, cl, share.Config{GroupID: args[1], Topics: []string{args[2]}, MaxRecords: 1})
	ts.Check(err)
	ts.Defer(c.Abandon)
	for i := 0; i <= n; {
		b, err := c.Poll(ctx, 1)
		ts.Check(err)
		say := wire.Accept
		if i += b.Len(); i > n {
			say = wire.Release
		}
		ts.Check(c.Acknowledge(ctx, b, b.All(say)))
	}
}

// cmdConsumers makes a consumer group by committing an offset:
//
//	consumers $CLUSTER readers orders
func cmdConsumers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: consumers BOOTSTRAP GROUP TOPIC")
	}
	ctx, cl := connectScript(ts, args[0])
	k, err := cl.NewKgo()
	ts.Check(err)
	ts.Defer(k.Close)
	var offsets kadm.Offsets
	offsets.AddOffset(args[2], 0, 1, -1)
	ts.Check(kadm.NewClient(k).CommitAllOffsets(ctx, args[1], offsets))
}
